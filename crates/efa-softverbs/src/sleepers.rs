//! What the progress thread sleeps on while queue pairs sleep.
//!
//! ```text
//!  epoll ◄─┬─ descriptor of each queue pair that sleeps, for one wake-up: its link has something
//!          └─ timerfd: a queue pair must be looked at earlier than the thread has planned
//! ```

use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use efa_device::Time;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::boundary::Outcome;
use crate::clock::now;
use crate::process::lock;
use crate::queue_pair::Serial;

/// Most queue pairs that one call of the system reports.
const EVENTS: usize = 64;
/// The system rounds a timeout up to a multiple of this; a shorter pause needs the timer.
const LEAST_TIMEOUT: Duration = Duration::from_millis(1);
/// Pause after an unexpected error, so that the thread doesn't take the processor.
const AFTER_ERROR: Duration = Duration::from_millis(1);

/// What the thread sleeps on.
#[derive(Debug)]
pub(crate) struct Sleepers {
    poller: OwnedFd,
    timer: OwnedFd,
    /// When the timer expires.
    timer_at: Mutex<Option<Time>>,
}

impl Sleepers {
    pub(crate) fn new() -> Outcome<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&poller, &timer, data(Serial::NONE), epoll::EventFlags::IN)?;
        Ok(Self { poller, timer, timer_at: Mutex::default() })
    }

    /// Wakes the thread once when `descriptor` is readable, perhaps now.
    pub(crate) fn watch(&self, serial: Serial, descriptor: BorrowedFd<'_>) -> Outcome<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        let result = match epoll::modify(&self.poller, descriptor, data(serial), flags) {
            Err(Errno::NOENT) => epoll::add(&self.poller, descriptor, data(serial), flags),
            result => result,
        };
        Ok(result?)
    }

    /// Wakes the thread at this time at the latest.
    pub(crate) fn wake_at(&self, at: Time) {
        let mut timer_at = lock(&self.timer_at);
        if timer_at.is_some_and(|set| set <= at) {
            return;
        }
        // Not 0, which stops the timer.
        let span = (at - now()).max(Duration::from_nanos(1));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timer = Itimerspec { it_interval: zero, it_value: timespec(span) };
        if timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer).is_ok() {
            *timer_at = Some(at);
        }
    }

    /// Sleeps until a queue pair has something, a time that others have set, or `until`. Returns the queue
    /// pairs that have something in `woken`.
    pub(crate) fn sleep(&self, until: Option<Time>, woken: &mut Vec<Serial>) {
        let pause = until.map(|until| until - now());
        if let Some(until) = until.filter(|_| pause < Some(LEAST_TIMEOUT)) {
            self.wake_at(until);
        }
        let timeout = pause.map(timespec);
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        woken.clear();
        match epoll::wait(&self.poller, &mut events, timeout.as_ref()) {
            Ok((ready, _)) => woken.extend(ready.iter().map(serial_of)),
            Err(Errno::INTR) => {}
            Err(_) => std::thread::sleep(AFTER_ERROR),
        }
        if woken.contains(&Serial::NONE) {
            let mut timer_at = lock(&self.timer_at);
            let _ = rustix::io::read(&self.timer, &mut [0; 8]);
            *timer_at = None;
        }
    }
}

fn data(serial: Serial) -> epoll::EventData {
    epoll::EventData::new_u64(serial.number())
}

fn serial_of(event: &epoll::Event) -> Serial {
    Serial::from_number(event.data.u64())
}

fn timespec(span: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: span.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

    use super::*;

    fn woken_after(pause: Duration) -> Vec<Serial> {
        let sleepers = Sleepers::new().unwrap();
        let mut woken = Vec::new();
        sleepers.sleep(Some(now() + pause), &mut woken);
        woken
    }

    #[test]
    fn pause_below_a_millisecond_is_ended_by_the_timer_and_not_by_the_timeout_that_is_rounded_up() {
        assert_eq!(woken_after(Duration::from_micros(20)), [Serial::NONE]);
        assert_eq!(woken_after(Duration::from_millis(2)), []);
    }
}

//! The clock of a fabric.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use efa_device::Time;
use rustix::time::{ClockId, clock_gettime};

/// The clock that endpoints take the time from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Clock {
    /// The host's monotonic clock, counted from this instant. By default all fabrics on the links `shm` and `tcp` of a host,
    /// also those of other processes, have the same time.
    Host(Instant),
    /// A clock that the program advances, so that runs can be repeated.
    Manual(ManualClock),
}

impl Default for Clock {
    /// The host's monotonic clock, counted from where it counts from, so that all processes of the host have the same time.
    fn default() -> Self {
        Self::Host(*ZERO)
    }
}

/// When the host's monotonic clock was zero, to about a hundred nanoseconds.
static ZERO: LazyLock<Instant> = LazyLock::new(|| {
    let monotonic = || {
        let time = clock_gettime(ClockId::Monotonic);
        Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
    };
    let readings = (0..16).map(|_| {
        let (before, instant, after) = (monotonic(), Instant::now(), monotonic());
        (after - before, instant, before + (after - before) / 2)
    });
    // The thread may be interrupted between two of them.
    let best = readings.min_by_key(|(width, ..)| *width);
    best.and_then(|(_, instant, time)| instant.checked_sub(time)).unwrap_or_else(Instant::now)
});

impl From<&ManualClock> for Clock {
    fn from(clock: &ManualClock) -> Self {
        Self::Manual(clock.clone())
    }
}

impl Clock {
    #[inline]
    pub(crate) fn now(&self) -> Time {
        match self {
            Self::Host(origin) => Time::ZERO + origin.elapsed(),
            Self::Manual(clock) => clock.now(),
        }
    }

    pub(crate) fn is_manual(&self) -> bool {
        matches!(self, Self::Manual(_))
    }

    /// Lets time pass between two polls, of which there were `polls` so far. A manual clock is
    /// advanced, to `next` if that is given; with the host's, the thread yields now and then.
    pub(crate) fn pass(&self, next: Option<Time>, polls: u32) {
        match self {
            Self::Host(_) if polls.is_multiple_of(POLLS_PER_YIELD) => std::thread::yield_now(),
            // No `spin_loop`: on a virtual processor it can take longer than the message.
            Self::Host(_) => {}
            Self::Manual(clock) => clock.advance_to(next),
        }
    }
}

/// A yield takes longer than a message does to arrive, so not every poll is followed by one.
const POLLS_PER_YIELD: u32 = 64;

/// A clock that the program advances. It starts at zero. Clones are handles to the same clock.
///
/// [`CompletionQueue::wait`](crate::CompletionQueue::wait) advances it to the next timeout, so that a
/// program which doesn't sleep runs the same way every time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

/// How far a wait advances a clock when there is no timeout to wait for.
const STEP: Duration = Duration::from_micros(1);

impl ManualClock {
    /// A clock at time zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Its time.
    #[must_use]
    pub fn now(&self) -> Time {
        Time::from_nanos(self.0.load(Ordering::Acquire))
    }

    /// Advances it.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_max((self.now() + by).as_nanos(), Ordering::AcqRel);
    }

    fn advance_to(&self, next: Option<Time>) {
        let now = self.now();
        let to = next.filter(|next| *next > now).unwrap_or(now + STEP);
        self.0.fetch_max(to.as_nanos(), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_clock_is_the_hosts_monotonic_one() {
        let monotonic = || {
            let time = clock_gettime(ClockId::Monotonic);
            Time::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
        };
        let inexact = Duration::from_millis(1);
        let (before, now, after) = (monotonic(), Clock::default().now(), monotonic());
        assert!(
            now + inexact >= before && now <= after + inexact,
            "{now:?}: {before:?}, {after:?}"
        );
    }

    #[test]
    fn manual_clock_advances_only_when_asked_and_never_back() {
        let manual = ManualClock::new();
        let clock = Clock::from(&manual);
        assert_eq!(clock.now(), Time::ZERO);
        manual.advance(Duration::from_nanos(7));
        assert_eq!(clock.now(), Time::from_nanos(7));
        clock.pass(Some(Time::from_nanos(50)), 1);
        assert_eq!(manual.now(), Time::from_nanos(50));
        clock.pass(Some(Time::from_nanos(20)), 2);
        assert_eq!(manual.now(), Time::from_nanos(1050), "never back, and never still");
    }
}

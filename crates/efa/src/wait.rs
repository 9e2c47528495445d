//! Sleeping until a completion queue, event queue or counter has something.
//!
//! ```text
//!  epoll ◄─┬─ descriptors of the endpoints' queue pairs: the device has something
//!          ├─ eventfd: another thread completed an operation of this object, started one, or calls `signal`
//!          └─ timerfd: an endpoint has something to do at this time
//! ```
//!
//! Whoever sleeps first prepares: it empties the eventfd, progresses the endpoints, arms them and the timer,
//! and looks once more. What happens later makes the epoll descriptor readable, and it stays so until the
//! next preparation.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use efa_device::{DeviceError, Time};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::clock::Clock;

/// How an object can be waited on (`fi_wait_obj`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Wait {
    /// By the calls that block (`FI_WAIT_UNSPEC`). It has a descriptor all the same.
    Unspecified,
    /// By a descriptor for poll, select and epoll, and by the calls that block (`FI_WAIT_FD`).
    Fd,
    /// By a wait set, by its own descriptor, and by the calls that block (`FI_WAIT_SET`).
    Set(WaitSet),
}

impl Wait {
    /// Adds an object, which sleeps on `object`, to its wait set if it is one of a set. It leaves the set when what this
    /// returns is dropped.
    pub(crate) fn join<S: Source + 'static>(
        &self,
        source: &Arc<S>,
        object: &Arc<WaitObject>,
    ) -> Result<Option<Arc<Membership>>, DeviceError> {
        match self {
            Self::Unspecified | Self::Fd => Ok(None),
            Self::Set(set) => set.add(Arc::downgrade(source) as _, object).map(Some),
        }
    }
}

/// Why no thread may sleep now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TryWaitError {
    /// An object has something to be read (`-FI_EAGAIN`).
    #[error("something is there to be read")]
    Pending,
    /// An object was made without a wait object.
    #[error("the object can't be waited on")]
    NotWaitable,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// An object that can be waited on and polled: a completion queue, an event queue or a counter. It can't be
/// implemented elsewhere.
pub trait Waitable: sealed::Waitable {}

impl<T: sealed::Waitable> Waitable for T {}

pub(crate) mod sealed {
    use std::sync::Arc;

    /// What a [`Waitable`](super::Waitable) is made of.
    pub trait Waitable {
        #[doc(hidden)]
        fn source(&self) -> Arc<dyn super::Source>;
    }
}

/// An object as wait sets, poll sets and `try_wait` see it.
pub trait Source: fmt::Debug + Send + Sync {
    /// Does what its endpoints or connections need. Returns whether it has something to be read.
    #[doc(hidden)]
    fn is_pending(&self) -> bool;

    /// For objects of which a read takes nothing away: a number that changes with what is to be read.
    #[doc(hidden)]
    fn state(&self) -> Option<u64> {
        None
    }

    /// Prepares for sleep on its descriptor.
    #[doc(hidden)]
    fn prepare(&self) -> Result<(), TryWaitError>;

    /// What it sleeps on, if it can be waited on.
    #[doc(hidden)]
    fn wait_object(&self) -> Option<&WaitObject>;

    /// When it is to be looked at even if nothing is reported.
    #[cfg(feature = "tokio")]
    #[doc(hidden)]
    fn next_timeout(&self) -> Option<Time>;
}

fn failed(operation: &'static str) -> impl Fn(Errno) -> DeviceError {
    move |errno| DeviceError::System {
        operation: operation.into(),
        errno: errno.raw_os_error(),
        reason: std::io::Error::from(errno).to_string(),
    }
}

/// What an object that can be waited on sleeps on.
#[doc(hidden)]
#[derive(Debug)]
pub struct WaitObject {
    poller: OwnedFd,
    event: OwnedFd,
    timer: OwnedFd,
    /// Whether the eventfd was written since it was last emptied.
    notified: AtomicBool,
    /// Whether a call that blocks is to return.
    interrupted: AtomicBool,
    /// When the timer expires.
    timer_at: Mutex<Option<Time>>,
    /// Threads in [`pass`](Self::pass), and tasks.
    sleepers: AtomicUsize,
    /// Its wait set, if it is one of a set.
    set: Option<WaitSet>,
}

impl WaitObject {
    pub(crate) fn new() -> Result<Self, DeviceError> {
        Self::for_wait(&Wait::Unspecified)
    }

    /// One of an object that is made with `wait`, which it [joins](Wait::join).
    pub(crate) fn for_wait(wait: &Wait) -> Result<Self, DeviceError> {
        let set = match wait {
            Wait::Unspecified | Wait::Fd => None,
            Wait::Set(set) => Some(set.clone()),
        };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let timer_flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let poller = new_poller()?;
        let event = eventfd(0, flags).map_err(failed("eventfd"))?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, timer_flags)
            .map_err(failed("timerfd_create"))?;
        let wait = Self {
            poller,
            event,
            timer,
            notified: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
            timer_at: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            set,
        };
        wait.add(wait.event.as_fd())?;
        wait.add(wait.timer.as_fd())?;
        Ok(wait)
    }

    /// Also sleeps on this descriptor, until it is closed.
    pub(crate) fn add(&self, descriptor: BorrowedFd<'_>) -> Result<(), DeviceError> {
        watch(&self.poller, descriptor)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// Wakes who sleeps, after something was left for them. Costs a system call only for the first since the
    /// last [`reset`](Self::reset).
    pub(crate) fn notify(&self) {
        if !self.notified.swap(true, Ordering::AcqRel) {
            // It can't fail: the counter stays far below its limit.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Empties the eventfd. What was left before is to be looked for afterwards.
    pub(crate) fn reset(&self) {
        if self.notified.load(Ordering::Acquire) {
            // In this order: a notification after the read finds the flag set, and what it was for is
            // visible once the flag is cleared. If there is nothing to read, another thread is about to write,
            // and the flag must stay until that was read.
            if rustix::io::read(&self.event, &mut [0; 8]).is_ok() {
                self.notified.swap(false, Ordering::AcqRel);
            }
        }
    }

    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Release);
        self.notify();
    }

    /// Whether [`interrupt`](Self::interrupt) was called since the last call.
    pub(crate) fn take_interrupt(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed) && self.interrupted.swap(false, Ordering::AcqRel)
    }

    /// Makes the descriptor readable at this time at the latest. With a manual clock it does nothing.
    pub(crate) fn wake_at(&self, at: Option<Time>, clock: &Clock) -> Result<(), DeviceError> {
        let (now, mut timer_at) = (clock.now(), self.timer_at.lock());
        let at = at.filter(|_| !clock.is_manual());
        match (*timer_at, at) {
            (None, None) => return Ok(()),
            // One that expires earlier wakes for nothing, which costs less than setting it each time.
            (Some(set), at) if set > now && at.is_none_or(|at| set <= at) => return Ok(()),
            _ => {}
        }
        // 0 stops the timer; one that has expired is readable until then.
        let span = at.map_or(Duration::ZERO, |at| (at - now).max(Duration::from_nanos(1)));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timer = Itimerspec { it_interval: zero, it_value: timespec(span) };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer)
            .map_err(failed("timerfd_settime"))?;
        *timer_at = at;
        Ok(())
    }

    /// A thread or task may sleep on the descriptor from now on, until it [leaves](Self::leave).
    pub(crate) fn enter(&self) {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn leave(&self) {
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Wakes all that sleep if one that has [entered](Self::enter), or its wait set, found something: it may be for
    /// others, and the eventfd was emptied.
    fn wake_others(&self) {
        let of_set = self.set.as_ref().map_or(0, |set| set.0.sleepers.load(Ordering::Acquire));
        if self.sleepers.load(Ordering::Acquire) + of_set > 1 {
            self.notify();
        }
    }

    /// Prepares for the sleep of one that has [entered](Self::enter). Returns whether it may sleep: not if that found
    /// something, or [`interrupt`](Self::interrupt) was called.
    pub(crate) fn may_sleep(
        &self,
        prepare: impl FnOnce() -> Result<(), TryWaitError>,
    ) -> Result<bool, DeviceError> {
        let prepared = prepare();
        if prepared.is_err() {
            self.wake_others();
        }
        match prepared {
            // An interruption after the eventfd was emptied makes it readable again.
            Ok(()) => Ok(!self.interrupted.load(Ordering::Acquire)),
            Err(TryWaitError::Device(error)) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Prepares, and sleeps for `timeout` at most if it [may](Self::may_sleep).
    pub(crate) fn pass(
        &self,
        prepare: impl FnOnce() -> Result<(), TryWaitError>,
        timeout: Duration,
    ) -> Result<(), DeviceError> {
        self.enter();
        let passed = match self.may_sleep(prepare) {
            Ok(true) => self.sleep(timeout),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        self.leave();
        passed
    }

    /// Sleeps until the descriptor is readable, for `timeout` at most. The object was prepared.
    pub(crate) fn sleep(&self, timeout: Duration) -> Result<(), DeviceError> {
        sleep(&self.poller, timeout).map(drop)
    }
}

fn timespec(span: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: span.subsec_nanos().into(),
    }
}

fn watch(poller: &OwnedFd, descriptor: BorrowedFd<'_>) -> Result<(), DeviceError> {
    let data = epoll::EventData::new_u64(0);
    epoll::add(poller, descriptor, data, epoll::EventFlags::IN).map_err(failed("epoll_ctl"))
}

/// A descriptor of epoll without members.
pub(crate) fn new_poller() -> Result<OwnedFd, DeviceError> {
    epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create"))
}

/// Sleeps until the descriptor is readable, for `timeout` at most. Returns whether it may be.
fn sleep(descriptor: &OwnedFd, timeout: Duration) -> Result<bool, DeviceError> {
    // A year is as good as no limit, and no time that the system refuses.
    let timeout = timespec(timeout.min(Duration::from_secs(365 * 86400)));
    match poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        // A signal handler ran. The caller looks, and sleeps again.
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(failed("poll")(errno)),
    }
}

/// Whether the descriptor is readable now.
#[cfg(any(test, feature = "tokio"))]
pub(crate) fn is_readable(descriptor: &OwnedFd) -> Result<bool, DeviceError> {
    sleep(descriptor, Duration::ZERO)
}

/// Prepares an object for sleep. If it has something to be read, all that sleep on it are woken: it may be for them, and
/// the eventfd was emptied.
pub(crate) fn prepare(source: &dyn Source) -> Result<(), TryWaitError> {
    let wait = source.wait_object();
    wait.into_iter().for_each(WaitObject::enter);
    let prepared = prepare_entered(source);
    wait.into_iter().for_each(WaitObject::leave);
    prepared
}

/// The same for one that has [entered](WaitObject::enter), or is in the wait of a set.
fn prepare_entered(source: &dyn Source) -> Result<(), TryWaitError> {
    let prepared = source.prepare();
    if prepared.is_err() {
        source.wait_object().into_iter().for_each(WaitObject::wake_others);
    }
    prepared
}

// ---- wait sets ----------------------------------------------------------------------------------

/// Completion queues, event queues and counters that are waited on together (`fi_wait`). Objects join it when
/// they are made, with [`Wait::Set`], and leave it when the program has dropped its last handle of them. Clones are handles to
/// the same set.
#[derive(Clone, Debug)]
pub struct WaitSet(Arc<Set>);

#[derive(Debug)]
struct Set {
    poller: OwnedFd,
    members: Mutex<Vec<Weak<Membership>>>,
    /// Threads in [`WaitSet::wait`]. They sleep on each member, also on those that join meanwhile.
    sleepers: AtomicUsize,
}

/// The place of an object in its wait set. The program's handles of the object have it, and not those of endpoints, which
/// use the object for as long as they live: what the program can't read is not reported.
#[derive(Debug)]
pub(crate) struct Membership {
    set: WaitSet,
    source: Weak<dyn Source>,
    wait: Arc<WaitObject>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        // It fails only if the descriptor isn't there, which is as good.
        let _ = epoll::delete(&self.set.0.poller, self.wait.descriptor());
    }
}

impl WaitSet {
    pub(crate) fn new() -> Result<Self, DeviceError> {
        let (poller, members, sleepers) = (new_poller()?, Mutex::default(), AtomicUsize::new(0));
        Ok(Self(Arc::new(Set { poller, members, sleepers })))
    }

    fn add(
        &self,
        source: Weak<dyn Source>,
        wait: &Arc<WaitObject>,
    ) -> Result<Arc<Membership>, DeviceError> {
        watch(&self.0.poller, wait.descriptor())?;
        let member = Arc::new(Membership { set: self.clone(), source, wait: Arc::clone(wait) });
        self.0.members.lock().push(Arc::downgrade(&member));
        Ok(member)
    }

    /// Sleeps until an object of the set has something to be read (`fi_wait`). Returns `false` if none had
    /// within `timeout`.
    ///
    /// # Errors
    /// The device failed.
    pub fn wait(&self, timeout: Duration) -> Result<bool, DeviceError> {
        self.0.sleepers.fetch_add(1, Ordering::AcqRel);
        let found = self.sleep(timeout);
        self.0.sleepers.fetch_sub(1, Ordering::AcqRel);
        found
    }

    fn sleep(&self, timeout: Duration) -> Result<bool, DeviceError> {
        let begin = std::time::Instant::now();
        loop {
            match self.look(prepare_entered) {
                Ok(()) => {}
                Err(TryWaitError::Device(error)) => return Err(error),
                Err(_) => return Ok(true),
            }
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            sleep(&self.0.poller, left)?;
        }
    }

    /// Prepares all objects of the set for sleep on its descriptor.
    ///
    /// # Errors
    /// [`TryWaitError::Pending`] if one has something to be read; [`TryWaitError::Device`].
    pub fn try_wait(&self) -> Result<(), TryWaitError> {
        self.look(prepare)
    }

    fn look(
        &self,
        prepare: fn(&dyn Source) -> Result<(), TryWaitError>,
    ) -> Result<(), TryWaitError> {
        self.0.members.lock().retain(|member| member.strong_count() > 0);
        let members: Vec<_> = self.0.members.lock().iter().filter_map(Weak::upgrade).collect();
        let mut sources = members.iter().filter_map(|member| member.source.upgrade());
        sources.try_for_each(|source| prepare(source.as_ref()))
    }
}

impl AsFd for WaitSet {
    /// Readable when an object of the set may have something to be read, after
    /// [`try_wait`](Self::try_wait).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.poller.as_fd()
    }
}

// ---- poll sets ----------------------------------------------------------------------------------

/// Completion queues, event queues and counters that are polled together (`fi_poll`). They need no wait
/// object.
#[derive(Debug, Default)]
pub struct PollSet {
    members: Vec<Polled>,
}

/// A member of a poll set.
#[derive(Debug)]
struct Polled {
    source: Arc<dyn Source>,
    context: u64,
    /// Its [state](Source::state) when the set last reported it.
    reported: AtomicU64,
}

impl PollSet {
    /// A set without objects (`fi_poll_open`).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an object (`fi_poll_add`), with the context that [`poll`](Self::poll) returns for it. An object that
    /// is there gets the new context.
    pub fn add(&mut self, object: &dyn Waitable, context: u64) {
        self.remove(object);
        let (source, reported) = (object.source(), AtomicU64::new(0));
        self.members.push(Polled { source, context, reported });
    }

    /// Removes an object (`fi_poll_del`). Returns whether it was there.
    pub fn remove(&mut self, object: &dyn Waitable) -> bool {
        let (source, before) = (object.source(), self.members.len());
        self.members.retain(|member| !Arc::ptr_eq(&member.source, &source));
        self.members.len() < before
    }

    /// Progresses the endpoints of all objects, and writes the contexts of queues that have something to be read, and
    /// of counters that have changed since this set last reported them (`fi_poll`). Returns their number, at most
    /// `contexts.len()`.
    pub fn poll(&self, contexts: &mut [u64]) -> usize {
        let mut found = 0;
        for member in &self.members {
            let is_pending = member.source.is_pending();
            let Some(slot) = contexts.get_mut(found) else { continue };
            let has_news = match member.source.state() {
                Some(state) => member.reported.swap(state, Ordering::AcqRel) != state,
                None => is_pending,
            };
            if has_news {
                *slot = member.context;
                found += 1;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

    use std::sync::atomic::AtomicU32;

    use super::*;

    /// A notification that is half done while the sleeper prepares must not leave the descriptor readable for
    /// good: the sleeper would never sleep again.
    #[test]
    fn descriptor_is_quiet_once_a_notification_that_raced_with_resets_is_over() {
        const ROUNDS: u32 = 20_000;
        let wait = WaitObject::new().unwrap();
        let (begun, over) = (AtomicU32::new(0), AtomicU32::new(0));
        let first_readable = std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while begun.load(Ordering::Acquire) < round {
                        std::thread::yield_now();
                    }
                    wait.notify();
                    over.store(round, Ordering::Release);
                }
            });
            let readable_after = |round: &u32| {
                begun.store(*round, Ordering::Release);
                while over.load(Ordering::Acquire) < *round {
                    wait.reset();
                }
                wait.reset();
                is_readable(&wait.poller).unwrap()
            };
            let found = (1..=ROUNDS).find(readable_after);
            begun.store(ROUNDS, Ordering::Release);
            found
        });
        assert_eq!(first_readable, None, "readable for nothing after this round");
    }
}

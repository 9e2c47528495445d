//! The event queue: what happens to connections, and events of the program.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use efa_device::{DeviceError, Time};
use parking_lot::{Mutex, MutexGuard};

use super::event::{ControlError, ControlEvent};
use super::sources::{Entry, Removed, Source, Sources};
use super::state::{ConnectionState, Phase};
use super::stream::Watch;
use crate::error::Error;
use crate::fabric::Fabric;
use crate::insertion::{Insertion, Progress};
use crate::reporters::Reporters;
use crate::wait::{
    Membership, Source as WaitSource, TryWaitError, Wait, WaitObject, new_poller, sealed,
};

/// Options of an event queue.
///
/// ```
/// use efa::EventQueueOptions;
/// let options = EventQueueOptions::new().capacity(1024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventQueueOptions {
    /// Most events that are kept; 256 by default, at least 1. What happens beyond waits in its source and
    /// isn't lost.
    pub capacity: usize,
    /// A number of the program ([`Object::context`](crate::Object::context)).
    pub context: u64,
}

impl Default for EventQueueOptions {
    fn default() -> Self {
        Self { capacity: 256, context: 0 }
    }
}

impl EventQueueOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`capacity`](Self#structfield.capacity).
    #[must_use]
    pub fn capacity(self, capacity: usize) -> Self {
        Self { capacity, ..self }
    }

    /// Sets [`context`](Self#structfield.context).
    #[must_use]
    pub fn context(self, context: u64) -> Self {
        Self { context, ..self }
    }
}

/// A queue of control events (`fi_eq`): requests, connections and their ends, events of endpoints that report to it
/// ([`EndpointBuilder::bind_event_queue`](crate::EndpointBuilder::bind_event_queue)), and events of the program.
/// Completions of operations come to completion queues and never here. Clones are handles to the same queue.
///
/// Threads can sleep until it has something: in [`wait`](Self::wait), on its descriptor after
/// [`Fabric::try_wait`](crate::Fabric::try_wait), or in a [wait set](crate::WaitSet).
///
/// Any number of listeners and endpoints may be bound to it. Reading it does what they need
/// (`FI_PROGRESS_MANUAL`): between two reads no caller gets an answer. It progresses no operations, which reading
/// completion queues does.
///
/// A queue that is full takes nothing from its sources; they wait, and nothing is lost.
#[derive(Clone)]
pub struct EventQueue(
    Arc<Shared>,
    #[expect(dead_code, reason = "dropping the last one leaves the wait set")]
    Option<Arc<Membership>>,
);

/// Why [`EventQueue::wait`] returned no event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventWaitError {
    /// Nothing happened in time.
    #[error("nothing happened within {0:?}")]
    TimedOut(Duration),
    /// An attempt to connect failed.
    #[error(transparent)]
    Failed(#[from] ControlError),
    /// The system can't make the thread sleep.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The event queue holds as many events as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the event queue of {capacity} events is full")]
pub struct EventQueueFull {
    /// Its capacity.
    pub capacity: usize,
}

pub(super) struct Shared {
    fabric: Fabric,
    capacity: usize,
    context: u64,
    sources: Mutex<Sources>,
    /// Into address vectors, the oldest first. Locked after the sources.
    insertions: Mutex<VecDeque<Insertion>>,
    /// Locked after the sources.
    reporters: Reporters,
    watch: Watch,
    /// A request was answered at a listener that had too many.
    has_room_again: AtomicBool,
    /// Whether the program holds events besides.
    is_held: AtomicBool,
}

impl fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventQueue").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

/// Longest sleep while something has to be tried again, such as a completion queue that was full.
const RETRY: Duration = Duration::from_millis(1);
/// How often sources are run that have something to do, before the caller has to read again.
const TRIES: usize = 4;

impl EventQueue {
    pub(super) fn new(
        fabric: &Fabric,
        options: EventQueueOptions,
        wait: &Wait,
    ) -> Result<Self, Error> {
        let epoll = new_poller()?;
        let object = Arc::new(WaitObject::for_wait(wait)?);
        object.add(epoll.as_fd())?;
        let queue = Arc::new(Shared {
            fabric: fabric.clone(),
            capacity: options.capacity.max(1),
            context: options.context,
            sources: Mutex::new(Sources::new()),
            insertions: Mutex::default(),
            reporters: Reporters::new(&object),
            watch: Watch { epoll, wait: Arc::clone(&object) },
            has_room_again: AtomicBool::new(false),
            is_held: AtomicBool::new(false),
        });
        let member = wait.join(&queue, &object)?;
        Ok(Self(queue, member))
    }

    /// The handle of what is bound to it, which is none of the program's.
    pub(crate) fn bound(&self) -> Self {
        Self(Arc::clone(&self.0), None)
    }

    /// Most events that are kept.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Returns the next event, if there is one (`fi_eq_read`). An attempt to connect that failed comes in order
    /// with the others (`fi_eq_readerr`).
    pub fn read(&self) -> Option<Result<ControlEvent, ControlError>> {
        self.0.read()
    }

    /// Waits for the next event (`fi_eq_sread`). The thread sleeps meanwhile; with a
    /// [`ManualClock`](crate::ManualClock) the wait advances that clock instead.
    ///
    /// # Errors
    /// Nothing happened in time, an attempt to connect failed, or the system can't make the thread sleep.
    pub fn wait(&self, timeout: Duration) -> Result<ControlEvent, EventWaitError> {
        let deadline = self.0.now() + timeout;
        let mut polls = 0_u32;
        loop {
            if let Some(entry) = self.read() {
                return Ok(entry?);
            }
            if !self.0.pass(deadline, &mut polls)? {
                return Err(EventWaitError::TimedOut(timeout));
            }
        }
    }

    /// Waits until there is an event, which stays in the queue, or the program [holds](Self::hold) one. Returns `false`
    /// if there was none in time.
    ///
    /// # Errors
    /// The system can't make the thread sleep.
    pub fn wait_pending(&self, timeout: Duration) -> Result<bool, DeviceError> {
        let deadline = self.0.now() + timeout;
        let mut polls = 0_u32;
        while !self.0.is_pending() {
            if !self.0.pass(deadline, &mut polls)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Says whether the program itself holds events of this queue, which it has read and not used. While it does, the
    /// queue has something to be read for [`wait_pending`](Self::wait_pending), poll sets, wait sets and
    /// [`Fabric::try_wait`](crate::Fabric::try_wait). It wakes threads that sleep.
    ///
    /// Tasks that wait for the queue don't know of it: a program that holds events waits by threads.
    pub fn hold(&self, holds: bool) {
        self.0.is_held.store(holds, Ordering::Release);
        if holds {
            self.0.watch.wait.notify();
        }
    }

    /// Appends an event of the program (`fi_eq_write`), and wakes a thread that waits.
    ///
    /// # Errors
    /// The queue is full.
    pub fn write(&self, event: u64) -> Result<(), EventQueueFull> {
        let capacity = self.0.capacity;
        let mut sources = self.0.sources.lock();
        if sources.entries.len() >= capacity {
            return Err(EventQueueFull { capacity });
        }
        sources.entries.push_back(Ok(ControlEvent::User(event)));
        drop(sources);
        self.0.watch.wait.notify();
        Ok(())
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.0.fabric
    }

    /// The endpoints whose events come here.
    pub(crate) fn reporters(&self) -> &Reporters {
        &self.0.reporters
    }

    /// Does an insertion while the queue is read.
    pub(crate) fn insert_later(&self, insertion: Insertion) {
        self.0.insertions.lock().push_back(insertion);
        self.0.watch.wait.notify();
    }

    pub(crate) fn user_context(&self) -> u64 {
        self.0.context
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn clock(&self) -> &crate::clock::Clock {
        self.0.fabric.clock()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn wait_object(&self) -> &Arc<WaitObject> {
        &self.0.watch.wait
    }
}

/// For poll, select and epoll. After [`Fabric::try_wait`](crate::Fabric::try_wait) it becomes readable when
/// [`read`](EventQueue::read) may have something, also when only time brings it, such as an attempt to connect
/// that times out. It may become readable for nothing.
impl AsFd for EventQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.watch.wait.descriptor()
    }
}

impl sealed::Waitable for EventQueue {
    fn source(&self) -> Arc<dyn WaitSource> {
        self.0.clone()
    }
}

impl WaitSource for Shared {
    fn is_pending(&self) -> bool {
        let (sources, more) = self.progress();
        self.leave(&sources, more);
        !sources.entries.is_empty() || self.is_held()
    }

    fn prepare(&self) -> Result<(), TryWaitError> {
        for _ in 0..TRIES {
            let (sources, more) = self.progress();
            if !sources.entries.is_empty() || self.is_held() {
                return Err(TryWaitError::Pending);
            }
            if !more {
                let next = self.timeout_of(&sources);
                return Ok(self.watch.wait.wake_at(next, self.fabric.clock())?);
            }
        }
        Err(TryWaitError::Pending)
    }

    fn wait_object(&self) -> Option<&WaitObject> {
        Some(&self.watch.wait)
    }

    #[cfg(feature = "tokio")]
    fn next_timeout(&self) -> Option<Time> {
        self.timeout_of(&self.sources.lock())
    }
}

impl Shared {
    pub(super) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    #[cfg(all(test, feature = "sim"))]
    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    /// Lets time pass until there may be an event; returns `false` if none is left.
    fn pass(&self, deadline: Time, polls: &mut u32) -> Result<bool, DeviceError> {
        let clock = self.fabric.clock();
        let now = clock.now();
        if now >= deadline {
            return Ok(false);
        }
        if clock.is_manual() {
            let next = self.timeout_of(&self.sources.lock());
            *polls = polls.wrapping_add(1);
            clock.pass(Some(next.map_or(deadline, |next| next.min(deadline))), *polls);
        } else {
            self.watch.wait.pass(|| self.prepare(), deadline - now)?;
        }
        Ok(true)
    }

    fn has_pipes(&self) -> bool {
        #[cfg(feature = "sim")]
        return self.fabric.switchboard().is_some();
        #[cfg(not(feature = "sim"))]
        return false;
    }

    pub(super) fn now(&self) -> Time {
        self.fabric.clock().now()
    }

    /// Runs the sources that have something to do, and goes on with an insertion; returns whether there is more to
    /// do. Sleepers were woken for what was before.
    fn progress(&self) -> (MutexGuard<'_, Sources>, bool) {
        let now = self.now();
        let mut sources = self.sources.lock();
        self.watch.wait.reset();
        if self.has_room_again.swap(false, Ordering::AcqRel) {
            sources.resume_listeners();
        }
        sources.collect(&self.watch, self.has_pipes(), now);
        sources.run(&self.watch, self.capacity, now);
        let inserts = self.insert(&mut sources.entries);
        let reports = self.reporters.report(&mut sources.entries, self.capacity);
        let more = inserts || reports || sources.is_ready();
        (sources, more)
    }

    fn read(&self) -> Option<Entry> {
        let (mut sources, more) = self.progress();
        let entry = sources.entries.pop_front();
        self.leave(&sources, more);
        entry
    }

    /// Leaves the queue to threads that sleep, after one that doesn't has made progress. They have slept through what it
    /// was woken for.
    fn leave(&self, sources: &Sources, more: bool) {
        if more || !sources.entries.is_empty() || self.is_held() {
            self.watch.wait.notify();
        } else {
            // It can't fail: the time is valid.
            let _ = self.watch.wait.wake_at(self.timeout_of(sources), self.fabric.clock());
        }
    }

    /// Goes on with the oldest insertion, unless the queue is full; returns whether there are more.
    fn insert(&self, entries: &mut VecDeque<Entry>) -> bool {
        let mut insertions = self.insertions.lock();
        if let Some(oldest) = insertions.front_mut()
            && entries.len() < self.capacity
        {
            match oldest.advance() {
                Progress::More => return true,
                Progress::Done(event) => entries.push_back(Ok(event)),
                Progress::Ended => {}
            }
            insertions.pop_front();
        }
        !insertions.is_empty()
    }

    /// Adds what `make` returns for its key, which is run in the next read.
    pub(super) fn add<E>(
        &self,
        make: impl FnOnce(u64, &Watch) -> Result<Source, E>,
    ) -> Result<usize, E> {
        let key = self.sources.lock().add(|key| make(key, &self.watch))?;
        self.watch.wait.notify();
        Ok(key)
    }

    pub(super) fn remove(&self, key: usize) -> Option<Removed> {
        self.sources.lock().remove(key, &self.watch)
    }

    /// Ends the connection of an endpoint at this side, unless it has ended, and returns its source.
    pub(super) fn detach(&self, state: &ConnectionState) -> Option<Removed> {
        let mut sources = self.sources.lock();
        let mut phase = state.phase.lock();
        let Phase::Busy(key) = *phase else { return None };
        *phase = Phase::Over;
        drop(phase);
        sources.remove(key, &self.watch)
    }

    /// Lets an endpoint begin no connection any more, and returns the source of one that it has.
    pub(super) fn retire(&self, state: &ConnectionState) -> Option<Removed> {
        let mut sources = self.sources.lock();
        let phase = std::mem::replace(&mut *state.phase.lock(), Phase::Over);
        match phase {
            Phase::Busy(key) => sources.remove(key, &self.watch),
            Phase::Idle | Phase::Over => None,
        }
    }

    /// A listener that had too many requests without an answer has fewer now.
    pub(super) fn room_again(&self) {
        self.has_room_again.store(true, Ordering::Release);
        self.watch.wait.notify();
    }

    fn timeout_of(&self, sources: &Sources) -> Option<Time> {
        let retry = sources.has_later().then(|| self.now() + RETRY);
        let insertion = (!self.insertions.lock().is_empty()).then(|| self.now());
        [sources.next_timeout(), retry, insertion].into_iter().flatten().min()
    }
}

//! The event queue: what happens to connections, and events of the program.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use efa_device::{DeviceError, Time};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use super::event::{ControlError, ControlEvent};
use super::sources::{Entry, Removed, Source, Sources, WAKE};
use super::state::{ConnectionState, Phase};
use crate::error::Error;
use crate::fabric::Fabric;
use crate::insertion::{Insertion, Progress};

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

/// A queue of control events (`fi_eq`): requests, connections and their ends, and events of the program.
/// Completions of operations come to completion queues and never here. Clones are handles to the same queue.
///
/// Any number of listeners and endpoints may be bound to it. Reading it does what they need
/// (`FI_PROGRESS_MANUAL`): between two reads no caller gets an answer.
///
/// A queue that is full takes nothing from its sources; they wait, and nothing is lost.
#[derive(Clone, Debug)]
pub struct EventQueue(Arc<Shared>);

/// Why [`EventQueue::wait`] returned no event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventWaitError {
    /// Nothing happened in time.
    #[error("nothing happened within {0:?}")]
    TimedOut(Duration),
    /// An attempt to connect failed.
    #[error(transparent)]
    Failed(#[from] ControlError),
}

/// The event queue holds as many events as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the event queue of {capacity} events is full")]
pub struct EventQueueFull {
    /// Its capacity.
    pub capacity: usize,
}

#[derive(Debug)]
pub(super) struct Shared {
    fabric: Fabric,
    capacity: usize,
    context: u64,
    sources: Mutex<Sources>,
    /// Into address vectors, the oldest first. Locked after the sources.
    insertions: Mutex<VecDeque<Insertion>>,
    /// Reports changes of the sources' streams, and of `wake`.
    epoll: OwnedFd,
    /// Readable while there are entries, or something to be done.
    wake: OwnedFd,
    is_woken: AtomicBool,
    /// A request was answered at a listener that had too many.
    has_room_again: AtomicBool,
}

/// Longest sleep while something has to be tried again, such as a completion queue that was full.
const RETRY: Duration = Duration::from_millis(1);

impl EventQueue {
    pub(super) fn new(fabric: &Fabric, options: EventQueueOptions) -> Result<Self, Error> {
        let failed = |call: &str| {
            let call = call.to_owned();
            move |errno: rustix::io::Errno| {
                let (errno, reason) = (errno.raw_os_error(), errno.to_string());
                DeviceError::System { operation: call, errno, reason }
            }
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create"))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(failed("eventfd"))?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN).map_err(failed("epoll_ctl"))?;
        Ok(Self(Arc::new(Shared {
            fabric: fabric.clone(),
            capacity: options.capacity.max(1),
            context: options.context,
            sources: Mutex::new(Sources::new()),
            insertions: Mutex::default(),
            epoll,
            wake,
            is_woken: AtomicBool::new(false),
            has_room_again: AtomicBool::new(false),
        })))
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

    /// Waits for the next event (`fi_eq_sread`). The thread sleeps meanwhile, but on a simulated network, where
    /// it polls; with a [`ManualClock`](crate::ManualClock) the wait advances that clock.
    ///
    /// # Errors
    /// Nothing happened in time, or an attempt to connect failed.
    pub fn wait(&self, timeout: Duration) -> Result<ControlEvent, EventWaitError> {
        let clock = self.0.fabric.clock();
        let deadline = clock.now() + timeout;
        let mut polls = 0_u32;
        loop {
            if let Some(entry) = self.read() {
                return Ok(entry?);
            }
            let now = clock.now();
            if now >= deadline {
                return Err(EventWaitError::TimedOut(timeout));
            }
            let next = self.0.next_timeout().map_or(deadline, |next| next.min(deadline));
            if clock.is_manual() || self.0.has_pipes() {
                polls = polls.wrapping_add(1);
                clock.pass(Some(next), polls);
            } else {
                self.0.sleep(next - now);
            }
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
        self.0.wake();
        Ok(())
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.0.fabric
    }

    /// Does an insertion while the queue is read.
    pub(crate) fn insert_later(&self, insertion: Insertion) {
        self.0.insertions.lock().push_back(insertion);
        self.0.wake();
    }

    pub(crate) fn user_context(&self) -> u64 {
        self.0.context
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

/// Readable when [`read`](EventQueue::read) may have something, apart from what only time brings: an attempt
/// to connect that times out is reported by a read after its timeout. On a simulated network it is
/// readable only for events that were read from their sources.
impl AsFd for EventQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.epoll.as_fd()
    }
}

impl Shared {
    pub(super) fn fabric(&self) -> &Fabric {
        &self.fabric
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

    fn read(&self) -> Option<Entry> {
        let now = self.now();
        let mut sources = self.sources.lock();
        if self.has_room_again.swap(false, Ordering::AcqRel) {
            sources.resume_listeners();
        }
        if sources.collect(&self.epoll, self.has_pipes(), now) {
            self.drain_wake();
        }
        sources.run(&self.epoll, self.capacity, now);
        let inserts = self.insert(&mut sources.entries);
        let entry = sources.entries.pop_front();
        if inserts || !sources.entries.is_empty() || sources.is_ready() {
            self.wake();
        }
        entry
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
        make: impl FnOnce(u64, &OwnedFd) -> Result<Source, E>,
    ) -> Result<usize, E> {
        let key = self.sources.lock().add(|key| make(key, &self.epoll))?;
        self.wake();
        Ok(key)
    }

    pub(super) fn remove(&self, key: usize) -> Option<Removed> {
        self.sources.lock().remove(key, &self.epoll)
    }

    /// Ends the connection of an endpoint at this side, unless it has ended, and returns its source.
    pub(super) fn detach(&self, state: &ConnectionState) -> Option<Removed> {
        let mut sources = self.sources.lock();
        let mut phase = state.phase.lock();
        let Phase::Busy(key) = *phase else { return None };
        *phase = Phase::Over;
        drop(phase);
        sources.remove(key, &self.epoll)
    }

    /// A listener that had too many requests without an answer has fewer now.
    pub(super) fn room_again(&self) {
        self.has_room_again.store(true, Ordering::Release);
        self.wake();
    }

    fn next_timeout(&self) -> Option<Time> {
        let sources = self.sources.lock();
        let retry = sources.has_later().then(|| self.now() + RETRY);
        let insertion = (!self.insertions.lock().is_empty()).then(|| self.now());
        [sources.next_timeout(), retry, insertion].into_iter().flatten().min()
    }

    fn wake(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            // It fails only if it is readable already.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    fn drain_wake(&self) {
        if self.is_woken.swap(false, Ordering::AcqRel) {
            let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
        }
    }

    /// Sleeps until a source or a thread reports something.
    fn sleep(&self, most: Duration) {
        let most = Timespec::try_from(most).ok();
        let mut descriptors = [PollFd::new(&self.epoll, PollFlags::IN)];
        // Interrupted by a signal, the caller looks again.
        let _ = poll(&mut descriptors, most.as_ref());
    }
}

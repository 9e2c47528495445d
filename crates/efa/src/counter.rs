//! Counters: the number of operations that completed or failed.
//!
//! ```text
//!   engine ─► operation completed ─┬─► completion queue: context, result, buffer
//!                                  └─► counter of its kind: value + 1, or errors + 1
//! ```
//!
//! An operation is counted when it completes, so at its completion level: with delivery complete, when
//! the message is delivered. Packets of the protocol alone are never counted.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use efa_device::DeviceError;
#[cfg(feature = "tokio")]
use efa_device::Time;
use efa_rdm::Statistics;
use parking_lot::Mutex;

use crate::bound_endpoints::BoundEndpoints;
use crate::completion::Kind;
use crate::domain::Domain;
use crate::endpoint::Shared as EndpointShared;
use crate::wait::{Membership, Source, TryWaitError, Wait, WaitObject, sealed};

bitflags::bitflags! {
    /// Kinds of operations that a counter counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Counted: u8 {
        /// Messages sent, injected ones included (`FI_SEND`).
        const SEND = 1;
        /// Messages received (`FI_RECV`).
        const RECEIVE = 1 << 1;
        /// Reads, and atomics that return values (`FI_READ`).
        const READ = 1 << 2;
        /// Writes, and other atomics (`FI_WRITE`).
        const WRITE = 1 << 3;
        /// Reads of this endpoint's memory by peers, and their atomics that return values
        /// (`FI_REMOTE_READ`). RDMA reads of devices can't be counted.
        const REMOTE_READ = 1 << 4;
        /// Writes to this endpoint's memory by peers, and their other atomics (`FI_REMOTE_WRITE`). Of RDMA
        /// writes of devices, only those with data are counted.
        const REMOTE_WRITE = 1 << 5;
    }
}

/// What a counter counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CounterEvents {
    /// Completions (`FI_CNTR_EVENTS_COMP`).
    #[default]
    Completions,
    /// Bytes (`FI_CNTR_EVENTS_BYTES`). Never offered.
    Bytes,
}

/// Options of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterOptions {
    /// What it counts.
    pub events: CounterEvents,
    /// A number of the program ([`Object::context`](crate::Object::context)).
    pub context: u64,
}

impl CounterOptions {
    /// A counter of these events.
    #[must_use]
    pub const fn of(events: CounterEvents) -> Self {
        Self { events, context: 0 }
    }

    /// Sets [`context`](Self#structfield.context).
    #[must_use]
    pub const fn context(self, context: u64) -> Self {
        Self { context, ..self }
    }
}

/// A counter of completions (`fi_cntr`). Clones are handles to the same counter.
///
/// It may be bound to any number of endpoints, and to each for several kinds of operations. Reading it
/// progresses those endpoints, as reading their completion queues does. The operations also complete on
/// their queues, which must be read unless they are [queues that nobody reads](crate::Domain::unread_completion_queue).
///
/// ```
/// use std::time::Duration;
/// use efa::{
///     CompletionQueueOptions, Counted, CounterOptions, Direction, EndpointOptions, Fabric, LocalOptions,
///     Message, Receive,
/// };
///
/// let domain = Fabric::local(LocalOptions::default()).domain()?;
/// let queue = domain.completion_queue(CompletionQueueOptions::default());
/// let (addresses, arrived) = (domain.address_vector(), domain.counter(CounterOptions::default())?);
/// let endpoint = || {
///     domain
///         .endpoint(EndpointOptions::default())
///         .bind_completion_queue(&queue, Direction::Both)
///         .bind_address_vector(&addresses)
/// };
/// let alice = endpoint().enable()?;
/// let bob = endpoint().bind_counter(&arrived, Counted::RECEIVE).enable()?;
///
/// let to_bob = addresses.insert(bob.address())?;
/// for i in 0..10 {
///     bob.receive(Receive::untagged(), vec![0; 64], i)?;
///     alice.send(Message::to(to_bob), "hello", i)?;
/// }
/// // Reading Bob's counter progresses Bob's endpoint; reading the queue progresses both.
/// while arrived.value() < 10 {
///     queue.read();
/// }
/// assert_eq!((arrived.value(), arrived.errors()), (10, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Counter(
    Arc<Shared>,
    #[expect(dead_code, reason = "dropping the last one leaves the wait set")]
    Option<Arc<Membership>>,
);

struct Shared {
    domain: Domain,
    context: u64,
    value: AtomicU64,
    errors: AtomicU64,
    /// How often the program has set one of them.
    sets: AtomicU64,
    /// The state of the value that a reader has seen, and that of the errors.
    seen: [AtomicU64; 2],
    /// Whether the program reads the value, and whether it reads the errors. Who sees one of them has seen the other too
    /// if the program never reads that.
    is_read: [AtomicBool; 2],
    endpoints: BoundEndpoints,
    /// What the threads wait for that may sleep.
    awaited: Mutex<Vec<Awaited>>,
    /// What threads sleep on, if the counter is waitable.
    wait: Option<Arc<WaitObject>>,
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter")
            .field("value", &self.value.load(Ordering::Relaxed))
            .field("errors", &self.errors.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

/// Why [`Counter::wait`] ended before the threshold was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CounterError {
    /// The time is up (`FI_ETIMEDOUT`).
    #[error(
        "the counter is {value} after {timeout:?}, not yet {threshold}; failed operations: {errors}"
    )]
    TimedOut {
        /// The value.
        value: u64,
        /// The value that was waited for.
        threshold: u64,
        /// The timeout of the call.
        timeout: Duration,
        /// Failed operations in all, before the call or during it.
        errors: u64,
    },
    /// An operation failed (`FI_EAVAIL`). Its completion queue has the error; of an
    /// [unread](Domain::unread_completion_queue) one the error is lost.
    #[error("an operation failed ({errors} in all): its completion queue has the reason")]
    Failed {
        /// Failed operations in all.
        errors: u64,
    },
}

impl Counter {
    pub(crate) fn new(domain: &Domain, options: CounterOptions) -> Self {
        Self::with(domain, options, None)
    }

    pub(crate) fn waitable(
        domain: &Domain,
        options: CounterOptions,
        wait: &Wait,
    ) -> Result<Self, DeviceError> {
        let object = Arc::new(WaitObject::for_wait(wait)?);
        let counter = Self::with(domain, options, Some(Arc::clone(&object)));
        let member = wait.join(&counter.0, &object)?;
        Ok(Self(counter.0, member))
    }

    /// The handle of an endpoint, which is none of the program's.
    fn bound(&self) -> Self {
        Self(Arc::clone(&self.0), None)
    }

    fn with(domain: &Domain, options: CounterOptions, wait: Option<Arc<WaitObject>>) -> Self {
        let shared = Shared {
            domain: domain.clone(),
            context: options.context,
            value: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            sets: AtomicU64::new(0),
            seen: [const { AtomicU64::new(0) }; 2],
            is_read: [const { AtomicBool::new(false) }; 2],
            endpoints: BoundEndpoints::default(),
            awaited: Mutex::default(),
            wait,
        };
        Self(Arc::new(shared), None)
    }

    /// The descriptor of a [waitable](Domain::waitable_counter) counter for poll, select and epoll, `None` of
    /// any other. After [`Fabric::try_wait`](crate::Fabric::try_wait) it becomes readable when the value or the
    /// errors change.
    #[must_use]
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.wait.as_deref().map(WaitObject::descriptor)
    }

    pub(crate) fn wait_object(&self) -> Option<&Arc<WaitObject>> {
        self.0.wait.as_ref()
    }

    /// Returns the number of operations that completed without error (`fi_cntr_read`).
    ///
    /// For waits, the value has something to be read until this was called after it changed. So have the
    /// [errors](Self::errors) of a program that ever reads them.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.look(VALUE, ERRORS);
        self.0.value.load(Ordering::Acquire)
    }

    /// Returns the number of operations that failed (`fi_cntr_readerr`). For waits see [`value`](Self::value).
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.0.look(ERRORS, VALUE);
        self.0.errors.load(Ordering::Acquire)
    }

    /// Adds to the value (`fi_cntr_add`).
    pub fn add(&self, more: u64) {
        self.0.value.fetch_add(more, Ordering::AcqRel);
        self.0.notify();
    }

    /// Adds to the errors (`fi_cntr_adderr`).
    pub fn add_errors(&self, more: u64) {
        self.0.errors.fetch_add(more, Ordering::AcqRel);
        self.0.notify();
    }

    /// Sets the value (`fi_cntr_set`).
    pub fn set(&self, value: u64) {
        self.0.value.store(value, Ordering::Release);
        self.0.was_set();
    }

    /// Sets the errors (`fi_cntr_seterr`).
    pub fn set_errors(&self, errors: u64) {
        self.0.errors.store(errors, Ordering::Release);
        self.0.was_set();
    }

    /// Waits until the value is at least `threshold` (`fi_cntr_wait`).
    ///
    /// It blocks the thread, so don't call it in an async task. With a
    /// [waitable](Domain::waitable_counter) counter the thread sleeps; with any other it polls, as
    /// [`CompletionQueue::wait`](crate::CompletionQueue::wait) does.
    ///
    /// # Errors
    /// The time is up, or an operation failed during the wait. One that failed before doesn't end it: compare
    /// [`errors`](Self::errors) with what you know before you wait for operations that may have failed.
    pub fn wait(&self, threshold: u64, timeout: Duration) -> Result<(), CounterError> {
        let clock = self.0.domain.fabric().clock();
        let deadline = clock.now() + timeout;
        let errors = self.0.errors.load(Ordering::Acquire);
        let awaited = Awaited { threshold, errors };
        let _waiting = self.0.wait.is_some().then(|| Waiting::new(&self.0, awaited));
        let mut polls = 0_u32;
        loop {
            let before = self.0.states();
            let (value, errors) = (self.value(), self.0.errors.load(Ordering::Acquire));
            // It is looked at here too.
            self.0.see(ERRORS, before);
            if value >= threshold {
                return Ok(());
            }
            if errors != awaited.errors {
                return Err(CounterError::Failed { errors });
            }
            if clock.now() >= deadline {
                return Err(CounterError::TimedOut { value, threshold, timeout, errors });
            }
            polls = polls.wrapping_add(1);
            if let Some(wait) = &self.0.wait
                && !clock.is_manual()
            {
                let prepare = || match self.0.prepare() {
                    // Another thread may have read what this one hasn't.
                    Ok(()) if self.0.states() != before => Err(TryWaitError::Pending),
                    // One that is to return may have been asleep, and this one has taken its wake-up.
                    Ok(()) if self.0.ends_a_wait() => Err(TryWaitError::Pending),
                    prepared => prepared,
                };
                // If the device can't be armed the counter is polled.
                if wait.pass(prepare, deadline - clock.now()).is_ok() {
                    continue;
                }
            }
            clock.pass(self.0.endpoints.next_timeout().map(|next| next.min(deadline)), polls);
        }
    }

    pub(crate) fn user_context(&self) -> u64 {
        self.0.context
    }

    pub(crate) fn is_of(&self, domain: &Domain) -> bool {
        self.0.domain.is(domain)
    }

    pub(crate) fn bind(&self, endpoint: Arc<EndpointShared>) {
        self.0.endpoints.bind(endpoint, |_, _| {});
        // Who sleeps has not armed it.
        self.0.notify();
    }

    pub(crate) fn unbind(&self, endpoint: &Arc<EndpointShared>) {
        self.0.endpoints.unbind(endpoint, |_, _| {});
    }

    /// Polls an endpoint in each read again.
    pub(crate) fn recall(&self, endpoint: &Arc<EndpointShared>) {
        self.0.endpoints.recall(endpoint);
    }
}

/// The places in [`Shared::seen`].
const VALUE: usize = 0;
const ERRORS: usize = 1;

impl Shared {
    /// Numbers that change with the value and with the errors, also if they are set to what they were.
    fn states(&self) -> [u64; 2] {
        // A multiple that no number of operations reaches.
        let sets = self.sets.load(Ordering::Acquire).wrapping_mul(1 << 48);
        [&self.value, &self.errors].map(|of| of.load(Ordering::Acquire).wrapping_add(sets))
    }

    fn has_changed(&self) -> bool {
        self.states() != [VALUE, ERRORS].map(|which| self.seen[which].load(Ordering::Acquire))
    }

    fn was_set(&self) {
        self.sets.fetch_add(1, Ordering::AcqRel);
        self.notify();
    }

    /// Whether what a thread waits for has come.
    fn ends_a_wait(&self) -> bool {
        let awaited = self.awaited.lock();
        let value = self.value.load(Ordering::Acquire);
        let errors = self.errors.load(Ordering::Acquire);
        awaited.iter().any(|awaited| value >= awaited.threshold || errors != awaited.errors)
    }

    /// Progresses for a program that reads one of both.
    fn look(&self, read: usize, other: usize) {
        if !self.is_read[read].load(Ordering::Relaxed) {
            self.is_read[read].store(true, Ordering::Relaxed);
        }
        let before = self.states();
        self.endpoints.progress();
        self.see(read, before);
        if !self.is_read[other].load(Ordering::Relaxed) {
            self.see(other, before);
        }
    }

    /// Notes that a reader sees the value or the errors, as they were before it looked: what comes meanwhile is news
    /// for the next wait.
    fn see(&self, which: usize, before: [u64; 2]) {
        self.seen[which].store(before[which], Ordering::Release);
    }

    #[inline]
    fn notify(&self) {
        if let Some(wait) = &self.wait {
            wait.notify();
        }
    }
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Awaited {
    threshold: u64,
    /// The errors when it began, as others end the wait.
    errors: u64,
}

/// A thread in a wait, of which others know as long as this lives.
struct Waiting<'a> {
    counter: &'a Shared,
    awaited: Awaited,
}

impl<'a> Waiting<'a> {
    fn new(counter: &'a Shared, awaited: Awaited) -> Self {
        counter.awaited.lock().push(awaited);
        Self { counter, awaited }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut all = self.counter.awaited.lock();
        // Of those that are equal any will do.
        if let Some(at) = all.iter().position(|awaited| *awaited == self.awaited) {
            all.swap_remove(at);
        }
    }
}

impl Source for Shared {
    fn is_pending(&self) -> bool {
        self.endpoints.progress();
        self.has_changed()
    }

    fn state(&self) -> Option<u64> {
        let [value, errors] = self.states();
        Some(value.wrapping_add(errors.rotate_left(32)))
    }

    fn prepare(&self) -> Result<(), TryWaitError> {
        let wait = self.wait.as_ref().ok_or(TryWaitError::NotWaitable)?;
        wait.reset();
        self.endpoints.prepare(wait, self.domain.fabric().clock(), || self.has_changed())
    }

    fn wait_object(&self) -> Option<&WaitObject> {
        self.wait.as_deref()
    }

    #[cfg(feature = "tokio")]
    fn next_timeout(&self) -> Option<Time> {
        self.endpoints.next_timeout()
    }
}

impl sealed::Waitable for Counter {
    fn source(&self) -> Arc<dyn Source> {
        self.0.clone()
    }
}

/// The counters of an endpoint, at most one per kind of operation.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    of: [Option<Counter>; Counted::all().bits().count_ones() as usize],
    /// The engine's totals of operations without completions, as far as they have been counted.
    injected: u64,
    remote_reads: u64,
    remote_writes: u64,
}

impl Counters {
    /// Adds a counter of some kinds; returns whether none of them had one.
    #[must_use]
    pub(crate) fn add(&mut self, counter: &Counter, kinds: Counted) -> bool {
        let mut is_first = true;
        for kind in kinds.iter() {
            is_first &= self.of[index(kind)].replace(counter.bound()).is_none();
        }
        is_first
    }

    /// The counters; one of several kinds comes as many times.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Counter> {
        self.of.iter().flatten()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Counts an operation that ended.
    pub(crate) fn ended(&self, kind: Kind, ok: bool) {
        let kind = match kind {
            Kind::Send => Counted::SEND,
            Kind::Receive | Kind::MultiReceive => Counted::RECEIVE,
            Kind::Write | Kind::Atomic => Counted::WRITE,
            Kind::Read | Kind::FetchAtomic => Counted::READ,
            // The release of a buffer is no message. `follow` counts all writes of peers, which need not
            // have a completion.
            Kind::Released | Kind::RemoteWrite => return,
        };
        let Some(counter) = &self.of[index(kind)] else { return };
        if ok { counter.add(1) } else { counter.add_errors(1) }
    }

    /// Counts operations without completions, from the engine's totals.
    pub(crate) fn follow(&mut self, engine: &Statistics) {
        let totals = [
            (Counted::SEND, &mut self.injected, engine.injected),
            (Counted::REMOTE_READ, &mut self.remote_reads, engine.remote_reads),
            (Counted::REMOTE_WRITE, &mut self.remote_writes, engine.remote_writes),
        ];
        for (kind, counted, total) in totals {
            let more = total - std::mem::replace(counted, total);
            if let (1.., Some(counter)) = (more, &self.of[index(kind)]) {
                counter.add(more);
            }
        }
    }
}

/// Index of a single kind.
fn index(kind: Counted) -> usize {
    kind.bits().trailing_zeros() as usize
}

//! Counters: how many operations ended, without saying which.
//!
//! ```text
//!   engine ─► an operation ended ─┬─► completion queue: which, how, and its buffer
//!                                 └─► counter of its kind: one more, or one more failed
//! ```
//!
//! A counter follows the completion level of each operation: a send that is to be delivered is
//! counted when it is. What the protocol sends on its own account never counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use efa_rdm::Statistics;

use crate::bound_endpoints::BoundEndpoints;
use crate::completion::Kind;
use crate::domain::Domain;
use crate::endpoint::Shared as EndpointShared;

bitflags::bitflags! {
    /// Which operations of an endpoint a counter counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Counted: u8 {
        /// Messages sent, injected ones too (`FI_SEND`).
        const SEND = 1;
        /// Messages received (`FI_RECV`).
        const RECEIVE = 1 << 1;
        /// Reads, and atomics that bring values back (`FI_READ`).
        const READ = 1 << 2;
        /// Writes, and other atomics (`FI_WRITE`).
        const WRITE = 1 << 3;
        /// Reads of memory here by peers, and their atomics that bring values back
        /// (`FI_REMOTE_READ`). What a peer's device does alone is not told to anybody here.
        const REMOTE_READ = 1 << 4;
        /// Writes of peers to memory here, and their other atomics (`FI_REMOTE_WRITE`). Of what a
        /// peer's device does alone, only writes with data are told.
        const REMOTE_WRITE = 1 << 5;
    }
}

/// What a counter counts of its operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CounterEvents {
    /// Completions (`FI_CNTR_EVENTS_COMP`).
    #[default]
    Completions,
    /// Bytes (`FI_CNTR_EVENTS_BYTES`). Never offered.
    Bytes,
}

/// How a counter is to be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterOptions {
    /// What it counts.
    pub events: CounterEvents,
}

impl CounterOptions {
    /// Of this kind.
    #[must_use]
    pub const fn of(events: CounterEvents) -> Self {
        Self { events }
    }
}

/// A counter of completions. Clones are handles to the same one.
///
/// It may be bound to any number of endpoints, and to one for several kinds of operations. Reading it
/// moves the operations of those endpoints on, as reading their completion queues does. Completions go
/// to the queues all the same.
///
/// ```
/// use std::time::Duration;
/// use efa::*;
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
/// // Bob's side moves on when his counter is read, Alice's when the queue is.
/// while arrived.value() < 10 {
///     queue.read();
/// }
/// assert_eq!((arrived.value(), arrived.errors()), (10, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Counter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    domain: Domain,
    value: AtomicU64,
    errors: AtomicU64,
    endpoints: BoundEndpoints,
}

/// Why a counter was not waited for to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CounterError {
    /// It didn't get there in time (`FI_ETIMEDOUT`).
    #[error("counted {value} within {timeout:?}, and not {threshold}")]
    TimedOut {
        /// Where it got.
        value: u64,
        /// What was waited for.
        threshold: u64,
        /// How long.
        timeout: Duration,
    },
    /// An operation failed meanwhile (`FI_EAVAIL`): the completion queue tells which.
    #[error("{errors} operations failed")]
    Failed {
        /// All that were counted as failed.
        errors: u64,
    },
}

impl Counter {
    pub(crate) fn new(domain: &Domain) -> Self {
        Self(Arc::new(Shared {
            domain: domain.clone(),
            value: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            endpoints: BoundEndpoints::default(),
        }))
    }

    /// How many operations ended well (`fi_cntr_read`).
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.endpoints.progress();
        self.0.value.load(Ordering::Acquire)
    }

    /// How many failed (`fi_cntr_readerr`).
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.0.endpoints.progress();
        self.0.errors.load(Ordering::Acquire)
    }

    /// Counts some more that the application knows of (`fi_cntr_add`).
    pub fn add(&self, more: u64) {
        self.0.value.fetch_add(more, Ordering::AcqRel);
    }

    /// The same of failures (`fi_cntr_adderr`).
    pub fn add_errors(&self, more: u64) {
        self.0.errors.fetch_add(more, Ordering::AcqRel);
    }

    /// Goes on from `value` (`fi_cntr_set`).
    pub fn set(&self, value: u64) {
        self.0.value.store(value, Ordering::Release);
    }

    /// The same of failures (`fi_cntr_seterr`).
    pub fn set_errors(&self, errors: u64) {
        self.0.errors.store(errors, Ordering::Release);
    }

    /// Waits until `threshold` operations have ended well, by reading again and again, with the
    /// processor offered to others in between (`fi_cntr_wait`).
    ///
    /// # Errors
    /// They haven't in time, or one failed meanwhile.
    pub fn wait(&self, threshold: u64, timeout: Duration) -> Result<(), CounterError> {
        let clock = self.0.domain.fabric().clock();
        let deadline = clock.now() + timeout;
        let failed_before = self.0.errors.load(Ordering::Acquire);
        let mut looks = 0_u32;
        loop {
            let (value, errors) = (self.value(), self.0.errors.load(Ordering::Acquire));
            if value >= threshold {
                return Ok(());
            }
            if errors != failed_before {
                return Err(CounterError::Failed { errors });
            }
            if clock.now() >= deadline {
                return Err(CounterError::TimedOut { value, threshold, timeout });
            }
            looks = looks.wrapping_add(1);
            clock.pass(self.0.endpoints.next_timeout().map(|next| next.min(deadline)), looks);
        }
    }

    pub(crate) fn is_of(&self, domain: &Domain) -> bool {
        self.0.domain.is(domain)
    }

    pub(crate) fn bind(&self, endpoint: Weak<EndpointShared>) {
        self.0.endpoints.bind(endpoint);
    }

    pub(crate) fn unbind(&self, endpoint: &Arc<EndpointShared>) {
        self.0.endpoints.unbind(endpoint);
    }
}

/// The counters of an endpoint, at most one for each kind of operation.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    of: [Option<Counter>; Counted::all().bits().count_ones() as usize],
    /// What was counted of what the engine only tells the number of.
    injected: u64,
    remote_reads: u64,
    remote_writes: u64,
}

impl Counters {
    /// Has a counter count some kinds; tells whether none of them had one.
    #[must_use]
    pub(crate) fn add(&mut self, counter: &Counter, kinds: Counted) -> bool {
        let mut free = true;
        for kind in kinds.iter() {
            free &= self.of[place(kind)].replace(counter.clone()).is_none();
        }
        free
    }

    /// The counters, some of them perhaps more than once.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Counter> {
        self.of.iter().flatten()
    }

    /// None at all?
    pub(crate) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// An operation ended.
    pub(crate) fn ended(&self, kind: Kind, fetched: bool, well: bool) {
        let kind = match kind {
            Kind::Send => Counted::SEND,
            Kind::Receive | Kind::MultiReceive => Counted::RECEIVE,
            Kind::Write => Counted::WRITE,
            Kind::Atomic if !fetched => Counted::WRITE,
            Kind::Read | Kind::Atomic => Counted::READ,
            // The end of a buffer is no message, and writes of peers are counted with those that have
            // no completion.
            Kind::Released | Kind::RemoteWrite => return,
        };
        let Some(counter) = &self.of[place(kind)] else { return };
        if well { counter.add(1) } else { counter.add_errors(1) }
    }

    /// The engine has counted what has no completion.
    pub(crate) fn follow(&mut self, engine: &Statistics) {
        let news = [
            (Counted::SEND, &mut self.injected, engine.injected),
            (Counted::REMOTE_READ, &mut self.remote_reads, engine.remote_reads),
            (Counted::REMOTE_WRITE, &mut self.remote_writes, engine.remote_writes),
        ];
        for (kind, known, now) in news {
            let more = now - std::mem::replace(known, now);
            if let (1.., Some(counter)) = (more, &self.of[place(kind)]) {
                counter.add(more);
            }
        }
    }
}

/// The place of a single kind.
fn place(kind: Counted) -> usize {
    kind.bits().trailing_zeros() as usize
}

//! Receives that several endpoints share.
//!
//! ```text
//!   SharedReceiveQueue::receive ─► posted receives ◄── message of any of the endpoints
//!                                       │
//!                                       └─► completion on the queue of the endpoint that the message came to
//! ```
//!
//! Order of locks: that of an endpoint's driver, then that of the queue. A receive that finds an unexpected
//! message leaves the queue first, and then goes to the message's endpoint. If the message has ended by then, the
//! receive is posted anew: its call hasn't returned, so no later receive was posted before it by this thread.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use efa_rdm::{
    ClaimId, ReceiveSource, SharedMessage, SharedPlace, SharedPosting, SharedReceive,
    SharedReceives,
};
use parking_lot::Mutex;

use crate::buffer::{Buffer, ReceiveBuffer, Role, Slot};
use crate::completion::{Refused, StartError};
use crate::domain::Domain;
use crate::endpoint::{Shared as Endpoint, check_buffer, drive};
use crate::message::{Receive, ReceiveId};
use crate::region::LocalAccess;

/// Options of a shared receive queue.
///
/// ```
/// use efa::SharedReceiveQueueOptions;
/// let options = SharedReceiveQueueOptions::new().capacity(1024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedReceiveQueueOptions {
    /// Most receives posted and under way; 4096 by default, at least 1. It must be less than
    /// [`Config::max_receives`](crate::Config) of each endpoint.
    pub capacity: usize,
    /// A number of the program ([`Object::context`](crate::Object::context)).
    pub context: u64,
}

impl Default for SharedReceiveQueueOptions {
    fn default() -> Self {
        Self { capacity: 4096, context: 0 }
    }
}

impl SharedReceiveQueueOptions {
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

/// A queue of receives that several endpoints of a domain take from (`fi_srx_context`). Clones are handles to the
/// same queue.
///
/// A message that comes to one of the [bound](crate::EndpointBuilder::bind_shared_receive_queue) endpoints takes the
/// receive that was posted first of those that accept it, and completes on that endpoint's completion queue:
/// [`Completion::endpoint`](crate::Completion::endpoint) says which it was. A receive gets the message that arrived
/// first of those that it accepts, at whichever endpoint. Messages of one sender to one endpoint keep their order.
///
/// * Nothing is posted to the endpoints themselves: [`StartError::ReceivesShared`].
/// * A receive can't name a source, as an address stands for another peer in each address vector:
///   [`StartError::SharedSource`]. There are no multi-receive buffers.
/// * No completion queue has a credit for a receive before it is taken. While the completion queue of an endpoint is
///   full of such completions, that endpoint makes no progress.
/// * Unexpected messages are kept by their endpoints, and bounded there ([`Bounds`](crate::Bounds)).
/// * Long messages into memory that isn't registered go in packets; into
///   [registered](crate::Domain::registered) memory the device may place them.
/// * Receives that are posted when the last handle and the last endpoint are gone are dropped; to get their buffers,
///   [`close`](Self::close) the queue.
///
/// ```
/// # use std::time::Duration;
/// use efa::{
///     CompletionQueueOptions, Direction, EndpointOptions, Fabric, LocalOptions, Message, Receive,
///     SharedReceiveQueueOptions,
/// };
///
/// let domain = Fabric::local(LocalOptions::default()).domain()?;
/// let queue = domain.completion_queue(CompletionQueueOptions::default());
/// let addresses = domain.address_vector();
/// let shared = domain.shared_receive_queue(SharedReceiveQueueOptions::new());
/// let endpoint = || {
///     domain
///         .endpoint(EndpointOptions::default())
///         .bind_completion_queue(&queue, Direction::Both)
///         .bind_address_vector(&addresses)
///         .bind_shared_receive_queue(&shared)
///         .enable()
/// };
/// let (alice, bob) = (endpoint()?, endpoint()?);
///
/// shared.receive(Receive::tagged(7), vec![0; 64], 1)?;
/// let to_bob = addresses.insert(bob.address())?;
/// alice.send(Message::to(to_bob).tagged(7), "hello", 2)?;
/// let received = loop {
///     let completion = queue.wait(Duration::from_secs(10))?;
///     if completion.is_received() {
///         break completion;
///     }
/// };
/// assert_eq!((received.endpoint, received.context), (bob.id(), 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SharedReceiveQueue(Arc<Shared>);

struct Shared {
    domain: Domain,
    options: SharedReceiveQueueOptions,
    /// Receives posted and under way.
    in_use: Arc<AtomicUsize>,
    kinds: [Arc<Kind>; 3],
    state: Mutex<State>,
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("capacity", &self.options.capacity)
            .field("len", &self.in_use.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

struct State {
    receives: SharedReceives<Posted>,
    endpoints: HashMap<u32, Weak<Endpoint>>,
    /// The number of the next endpoint, unless it is taken.
    next: u32,
    closed: bool,
}

/// The buffer of a posted receive.
#[derive(Debug)]
struct Posted {
    buffer: Buffer,
    kind: Arc<Kind>,
}

/// A kind of receives of a queue.
#[derive(Debug)]
struct Kind {
    /// Whether they are signaled; `None`: as the endpoint's default flags say.
    completion: Option<bool>,
    /// Receives of the queue posted and under way, of all kinds.
    in_use: Arc<AtomicUsize>,
}

/// A receive that an endpoint has taken from a shared queue, until it completes. It has the size of a pointer, as it
/// is a part of each buffer.
#[derive(Debug)]
pub(crate) struct Taken(Arc<Kind>);

impl Taken {
    /// Whether the receive is signaled; `None`: as the endpoint's default flags say.
    pub(crate) fn completion(&self) -> Option<bool> {
        self.0.completion
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.in_use.fetch_sub(1, Ordering::AcqRel);
    }
}

impl SharedReceiveQueue {
    pub(crate) fn new(domain: &Domain, options: SharedReceiveQueueOptions, seed: u64) -> Self {
        let options = SharedReceiveQueueOptions { capacity: options.capacity.max(1), ..options };
        let state = State {
            receives: SharedReceives::new(seed),
            endpoints: HashMap::new(),
            next: 0,
            closed: false,
        };
        let in_use = Arc::new(AtomicUsize::new(0));
        let kinds = [None, Some(false), Some(true)]
            .map(|completion| Arc::new(Kind { completion, in_use: Arc::clone(&in_use) }));
        Self(Arc::new(Shared {
            domain: domain.clone(),
            options,
            in_use,
            kinds,
            state: Mutex::new(state),
        }))
    }

    /// Posts a receive for one message of any of the endpoints (`fi_recv`, `fi_trecv`).
    ///
    /// # Errors
    /// The receive was not posted; the buffer comes back. [`StartError::SharedSource`] if it names a source,
    /// [`StartError::Busy`] if as many receives are posted and under way as the queue takes.
    pub fn receive(
        &self,
        receive: Receive,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        let ReceiveBuffer(buffer) = buffer.into();
        if let Err(error) = self.check(&receive, &buffer) {
            return Err(Refused { error, buffer });
        }
        let kind = self.0.kinds.iter().find(|kind| kind.completion == receive.completion);
        let kind = Arc::clone(kind.unwrap_or(&self.0.kinds[0]));
        self.post(receive.tag, SharedReceive { buffer: Posted { buffer, kind }, context })
    }

    /// Cancels a receive that has not matched a message. It has no completion, as it belongs to no endpoint: its
    /// buffer comes back at once. `None` if there is no such receive.
    #[must_use = "the buffer"]
    pub fn cancel(&self, receive: ReceiveId) -> Option<Buffer> {
        let cancelled = self.0.state.lock().receives.cancel(receive.0)?;
        Some(self.0.give_back(cancelled).0)
    }

    /// Cancels a receive that was posted with this context and has not matched a message (`fi_cancel`). If there are
    /// several, it is the one posted first of the tagged ones, or if there is none, of the others. It looks at all
    /// posted receives; [`cancel`](Self::cancel) doesn't. Returns which receive it was, and its buffer.
    #[must_use = "the buffer"]
    pub fn cancel_context(&self, context: u64) -> Option<(ReceiveId, Buffer)> {
        let mut state = self.0.state.lock();
        let receive = state.receives.find(context)?;
        let cancelled = state.receives.cancel(receive)?;
        drop(state);
        Some((ReceiveId(receive), self.0.give_back(cancelled).0))
    }

    /// Closes the queue: cancels all receives, and returns their buffers and contexts. Later receives are refused
    /// with [`StartError::Closed`]. Receives that have matched a message complete. The endpoints stay as they are;
    /// messages that come to them are unexpected.
    pub fn close(&self) -> Vec<(Buffer, u64)> {
        let mut state = self.0.state.lock();
        state.closed = true;
        let cancelled = state.receives.drain();
        drop(state);
        cancelled.into_iter().map(|receive| self.0.give_back(receive)).collect()
    }

    /// Most receives posted and under way.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.options.capacity
    }

    /// Receives posted and under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.in_use.load(Ordering::Acquire)
    }

    /// Whether no receive is posted or under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn user_context(&self) -> u64 {
        self.0.options.context
    }

    pub(crate) fn is_of(&self, domain: &Domain) -> bool {
        self.0.domain.is(domain)
    }

    /// A place for an endpoint, which takes receives once it is [known](Member::introduce).
    pub(crate) fn join(&self) -> Member {
        let mut state = self.0.state.lock();
        while state.endpoints.contains_key(&state.next) {
            state.next = state.next.wrapping_add(1);
        }
        let number = state.next;
        state.endpoints.insert(number, Weak::new());
        state.next = state.next.wrapping_add(1);
        Member { queue: Arc::clone(&self.0), number }
    }

    /// Makes the endpoint of a [place](Self::join) known.
    pub(crate) fn introduce(&self, number: u32, endpoint: Weak<Endpoint>) {
        self.0.state.lock().endpoints.insert(number, endpoint);
    }

    fn check(&self, receive: &Receive, buffer: &Buffer) -> Result<(), StartError> {
        if let Some(source) = receive.source {
            return Err(StartError::SharedSource(source));
        }
        let domain = &self.0.domain;
        check_buffer(domain, domain.local_registration(), buffer, LocalAccess::RECV)?;
        let limit = self.0.options.capacity;
        let take = |used| (used < limit).then_some(used + 1);
        let taken = self.0.in_use.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        taken.map(|_| ()).map_err(|_| StartError::Busy { limit })
    }

    /// Posts a receive that is counted.
    fn post(
        &self,
        tag: Option<(u64, u64)>,
        mut receive: SharedReceive<Posted>,
    ) -> Result<ReceiveId, Refused> {
        loop {
            let mut state = self.0.state.lock();
            if state.closed {
                drop(state);
                let (buffer, _) = self.0.give_back(receive);
                return Err(Refused { error: StartError::Closed, buffer });
            }
            let (matched, SharedMessage { endpoint, message }) =
                match state.receives.post(tag, receive) {
                    SharedPosting::Waiting(id) => return Ok(ReceiveId(id)),
                    SharedPosting::Matched(matched, message) => (matched, message),
                };
            let endpoint = state.endpoints.get(&endpoint).and_then(Weak::upgrade);
            drop(state);
            let matched = Shared::taken(matched);
            let given = match endpoint {
                None => Err(matched),
                Some(endpoint) => drive!(
                    endpoint,
                    driver => driver.receive_shared(message, matched),
                    _ => Err(matched)
                ),
            };
            match given {
                Ok(()) => return Ok(ReceiveId(efa_rdm::ReceiveId::MATCHED)),
                Err(SharedReceive { buffer, context }) => {
                    let (buffer, role) = buffer.into_parts();
                    let kind = match &role {
                        Role::Taken(taken) => Arc::clone(&taken.0),
                        _ => Arc::clone(&self.0.kinds[0]),
                    };
                    // Counted anew before it is counted back.
                    self.0.in_use.fetch_add(1, Ordering::AcqRel);
                    drop(role);
                    receive = SharedReceive { buffer: Posted { buffer, kind }, context };
                }
            }
        }
    }
}

impl Shared {
    /// The buffer and context of a receive that left the queue without a message.
    fn give_back(&self, receive: SharedReceive<Posted>) -> (Buffer, u64) {
        self.in_use.fetch_sub(1, Ordering::AcqRel);
        (receive.buffer.buffer, receive.context)
    }

    /// A receive as an endpoint takes it.
    fn taken(receive: SharedReceive<Posted>) -> SharedReceive<Slot> {
        let SharedReceive { buffer: Posted { buffer, kind }, context } = receive;
        SharedReceive { buffer: Slot { buffer, role: Role::Taken(Taken(kind)) }, context }
    }
}

/// The place of an endpoint in a queue: what its engine takes receives through.
#[derive(Debug)]
pub(crate) struct Member {
    queue: Arc<Shared>,
    number: u32,
}

impl Member {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Most receives posted and under way.
    pub(crate) fn capacity(&self) -> usize {
        self.queue.options.capacity
    }
}

impl ReceiveSource<Slot> for Member {
    fn arrive(
        &self,
        tag: Option<u64>,
        message: ClaimId,
    ) -> Result<SharedReceive<Slot>, SharedPlace> {
        let message = SharedMessage { endpoint: self.number, message };
        let receive = self.queue.state.lock().receives.arrive(tag, message)?;
        Ok(Shared::taken(receive))
    }

    fn withdraw(&self, place: SharedPlace) {
        self.queue.state.lock().receives.withdraw(place);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.receives.leave(self.number);
        state.endpoints.remove(&self.number);
    }
}

//! An endpoint whose operations are futures.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use efa_device::DeviceError;
use efa_rdm::Statistics;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, Notify, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::task::coop::{consume_budget, has_budget_remaining};

use super::connections::Connection;
use super::reader::Reader;
use super::sleeper::{SleepError, StreamError};
use super::slots::{After, Left, Slots, Wanted};
use super::streams::CompletionStream;
use super::ticket::Ticket;
use crate::address::Address;
use crate::attributes::EndpointAttributes;
use crate::buffer::{Buffer, ReceiveBuffer};
use crate::capabilities::Capabilities;
use crate::completion::{Completion, CompletionError, Refused, StartError};
use crate::completion_queue::{CompletionQueue, CompletionQueueOptions, Entry};
use crate::domain::Domain;
use crate::endpoint::{Endpoint, EndpointId};
use crate::endpoint_builder::{Direction, EndpointBuilder};
use crate::error::{CloseError, EnableError, Error};
use crate::event::Event;
use crate::message::{Message, Receive, ReceiveId};
use crate::reporters::Signal;
use crate::rma::{Operation, Rma};
use crate::send_budget::SendBudget;
use crate::wait::Wait;

/// Why an [`AsyncEndpoint`] was not enabled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnableAsyncError {
    /// The endpoint can't be enabled.
    #[error(transparent)]
    Enable(#[from] EnableError),
    /// The device has no notification, or the system no file descriptors left.
    #[error(transparent)]
    Queue(#[from] Error),
    /// There is no runtime.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A completion queue is bound.
    #[error(
        "an endpoint whose operations are futures has a completion queue of its own, and none can be bound"
    )]
    CompletionQueue,
    /// The endpoint is bound to a shared receive queue, whose receives belong to no future of it.
    #[error("an endpoint whose operations are futures can't be bound to a shared receive queue")]
    SharedReceives,
}

/// Why an operation of an [`AsyncEndpoint`] has no completion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AsyncError {
    /// It was not started; the buffer comes back. It is never [`Busy`](StartError::Busy) or
    /// [`QueueFull`](StartError::QueueFull): the future waits instead.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It failed; the buffer is in the completion, whose context is a number of the endpoint's own.
    #[error(transparent)]
    Failed(#[from] CompletionError),
    /// Nobody reads the endpoint's completions any more. The buffer stays with the endpoint if the operation was
    /// under way.
    #[error("the completions are read no more: {0}")]
    Ended(Ended),
}

// Not `#[from]`, which would make it the source as well: a report of the whole chain would say it twice.
impl From<Ended> for AsyncError {
    fn from(ended: Ended) -> Self {
        Self::Ended(ended)
    }
}

/// Why nothing happens any more at an [`AsyncEndpoint`], a connection or a listener.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The runtime in which it was opened was shut down.
    #[error("the runtime was shut down")]
    Runtime,
    /// The device failed.
    #[error(transparent)]
    Device(DeviceError),
    /// The endpoint was [closed](AsyncEndpoint::close).
    #[error("the endpoint was closed")]
    Closed,
}

impl From<SleepError> for Ended {
    fn from(error: SleepError) -> Self {
        match error {
            SleepError::Runtime(_) => Self::Runtime,
            SleepError::Device(error) => Self::Device(error),
        }
    }
}

/// Completions without a future that are kept until somebody asks for them.
const OTHERS: usize = 1024;
/// Most operations of each side that are under way.
const UNDER_WAY: usize = 8192;

/// An endpoint whose operations are futures. Clones are handles to the same endpoint; it is closed when the last
/// one is dropped.
///
/// A task of the runtime reads its completions. Futures complete with the [`Completion`], whose buffer is the
/// one that was given; its context is a number of the endpoint's own. What becomes of dropped futures is
/// [written here](crate::with_tokio#dropped-futures). Operations whose futures are polled one after the other for the
/// first time keep that order as those of an [`Endpoint`] do, unless one of them waits for its turn.
///
/// At most 8192 receives are under way, and as many other operations, or fewer by
/// [`Config::max_sends`](crate::Config), `max_receives` and a [budget](crate::SendBudget). Further ones wait for their turn,
/// and may start in any order then: a program that needs the order keeps within the limits, or awaits one before it
/// begins the next. A task that begins one operation after the other doesn't keep those of other tasks waiting. A future
/// whose turn has come and that isn't polled does, as with locks of tokio. If one endpoint of a budget is enabled so, all must
/// be: no future learns of the shares that others return.
///
/// [Events](Event) come to whoever waits for [the next one](Self::next_event).
///
/// Messages can be injected here, but no writes and atomics: an [`Endpoint`] has all that, and its queue a [stream](crate::CompletionQueue::stream).
///
/// ```
/// use efa::{EndpointOptions, Fabric, LocalOptions, Message, Receive};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let domain = Fabric::local(LocalOptions::default()).domain()?;
/// let addresses = domain.address_vector();
/// let endpoint = || {
///     domain.endpoint(EndpointOptions::default()).bind_address_vector(&addresses).enable_async()
/// };
/// let (alice, bob) = (endpoint()?, endpoint()?);
/// let to_bob = addresses.insert(bob.address())?;
/// let (sent, received) = tokio::join!(
///     alice.send(Message::to(to_bob).tagged(7), "hello"),
///     bob.receive(Receive::tagged(7), vec![0; 64]),
/// );
/// sent?;
/// assert_eq!(received?.into_message(), *b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncEndpoint(pub(super) Arc<Inner>);

pub(super) struct Inner {
    // Dropped first: what is under way then fails.
    pub(super) endpoint: Endpoint,
    // The queue pair is destroyed before the other side learns of the end.
    pub(super) connection: Option<Box<Connection>>,
    // Dropped next: what is under way has returned its shares of the budget.
    _turns: TurnsAtEnd,
    pub(super) shared: Arc<Shared>,
    others: AsyncMutex<mpsc::UnboundedReceiver<Entry>>,
    runtime: Handle,
    reader: AbortHandle,
}

/// What futures share with the task that reads completions.
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// A permit for each operation that can be under way: sends and their like, and receives. Who waits for one gets it
    /// in turn, so that a task that begins one operation after the other keeps no other from its own.
    pub(super) permits: [Semaphore; 2],
    /// A permit for each completion without a future that can be kept; closed with the endpoint, which keeps all that are left.
    pub(super) kept_others: Semaphore,
    /// Something has completed, or has been looked for, so an operation that the engine had no room for may start.
    pub(super) turn: Notify,
    /// A message was kept, so a receive that waits for a permit or a turn may take it.
    pub(super) kept: Notify,
    /// A receive of many messages has room for another.
    pub(super) room: Notify,
    /// There was an event, or there are no more.
    pub(super) event: Notify,
    /// Set when there was an event, of which the reader tells those who wait.
    pub(super) signal: Arc<Signal>,
    /// The endpoint was closed: the reader keeps nothing more for [`AsyncEndpoint::unasked`].
    pub(super) closed: Notify,
    /// What the endpoint's sends take a share of, if it has one.
    budget: Option<SendBudget>,
}

/// Gives turns when it is dropped. Nobody reads the completions of an endpoint that is gone, so the reader doesn't.
struct TurnsAtEnd(Arc<Shared>);

impl Drop for TurnsAtEnd {
    fn drop(&mut self) {
        self.0.give_turns();
    }
}

/// The index of a side's permits.
pub(super) const TRANSMIT: usize = 0;
pub(super) const RECEIVE: usize = 1;

#[derive(Default)]
pub(super) struct State {
    pub(super) slots: Slots,
    /// Why nothing completes any more.
    pub(super) ended: Option<Ended>,
    pub(super) is_closed: bool,
}

impl EndpointBuilder {
    /// Enables the endpoint for a program of tokio, in whose runtime this is called: its operations are futures.
    /// It has a completion queue of its own; every operation completes on it, also if the builder was told to
    /// bind [selectively](Self::selective).
    ///
    /// # Errors
    /// As for [`enable`](Self::enable); a completion queue or a shared receive queue is bound; the device has no
    /// notification; there is no runtime.
    ///
    /// # Panics
    /// The runtime was built without its I/O driver.
    pub fn enable_async(self) -> Result<AsyncEndpoint, EnableAsyncError> {
        let futures = Futures::new(&self)?;
        let endpoint = futures.bind(self).enable()?;
        Ok(futures.start(endpoint, None))
    }
}

/// What an endpoint whose operations are futures has besides, before it is enabled.
pub(super) struct Futures {
    queue: CompletionQueue,
    completions: CompletionStream,
    signal: Arc<Signal>,
    budget: Option<SendBudget>,
}

impl Futures {
    pub(super) fn new(builder: &EndpointBuilder) -> Result<Self, EnableAsyncError> {
        if builder.shares_receives() {
            return Err(EnableAsyncError::SharedReceives);
        }
        if builder.has_completion_queue() {
            return Err(EnableAsyncError::CompletionQueue);
        }
        let options = CompletionQueueOptions::default().capacity(2 * UNDER_WAY);
        let queue = builder.domain().waitable_completion_queue(options, Wait::Fd)?;
        let completions = queue.stream()?;
        let wait = queue.shared().wait_object().ok_or(StreamError::NotWaitable)?;
        let signal = Signal::new(wait);
        let budget = builder.send_budget().cloned();
        Ok(Self { queue, completions, signal, budget })
    }

    pub(super) fn bind(&self, builder: EndpointBuilder) -> EndpointBuilder {
        let bound = builder.bind_completion_queue(&self.queue, Direction::Both);
        bound.report_all().signal_events(&self.signal)
    }

    /// Begins to read the completions of an endpoint that was bound, in this runtime.
    pub(super) fn start(
        self,
        endpoint: Endpoint,
        connection: Option<Box<Connection>>,
    ) -> AsyncEndpoint {
        let Self { completions, signal, budget, .. } = self;
        let (sender, others) = mpsc::unbounded_channel();
        let limits = [endpoint.transmit_attributes().size, endpoint.receive_attributes().size];
        let permits = limits.map(|limit| Semaphore::new(limit.min(UNDER_WAY)));
        let state = Mutex::default();
        let [turn, kept, room, event, closed] = [(); 5].map(|()| Notify::new());
        let kept_others = Semaphore::new(OTHERS);
        let shared = Arc::new(Shared {
            state,
            permits,
            kept_others,
            turn,
            kept,
            room,
            event,
            signal,
            closed,
            budget,
        });
        let runtime = Handle::current();
        let reader = Reader { shared: Arc::clone(&shared), others: Some(sender) };
        let reader = runtime.spawn(reader.run(completions)).abort_handle();
        let others = AsyncMutex::new(others);
        let _turns = TurnsAtEnd(Arc::clone(&shared));
        let inner = Inner { endpoint, connection, _turns, shared, others, runtime, reader };
        AsyncEndpoint(Arc::new(inner))
    }
}

impl AsyncEndpoint {
    /// The number of the endpoint in its domain.
    #[must_use]
    pub fn id(&self) -> EndpointId {
        self.0.endpoint.id()
    }

    /// The address that peers insert into their address vectors.
    #[must_use]
    pub fn address(&self) -> Address {
        self.0.endpoint.address()
    }

    /// Limits and properties of this endpoint.
    #[must_use]
    pub fn attributes(&self) -> &EndpointAttributes {
        self.0.endpoint.attributes()
    }

    /// The capabilities that were enabled.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.0.endpoint.capabilities()
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        self.0.endpoint.domain()
    }

    /// [Counts](Endpoint::statistics) since the endpoint was enabled.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.0.endpoint.statistics()
    }

    /// The next [event](Event), if there is one; [`next_event`](Self::next_event) waits for it.
    #[must_use]
    pub fn event(&self) -> Option<Event> {
        self.0.endpoint.event()
    }

    /// The next [event](Endpoint::event) of the endpoint (`fi_eq_sread`). Dropping the future loses none. Each event goes to
    /// one of those who wait, or to the [event queue](EndpointBuilder::bind_event_queue) if one is bound.
    ///
    /// # Errors
    /// The runtime was shut down, the device failed, or the endpoint was closed, whose events are gone then.
    pub async fn next_event(&self) -> Result<Event, Ended> {
        let shared = &self.0.shared;
        loop {
            consume_budget().await;
            // It is woken by what happens from now on.
            let later = shared.event.notified();
            if let Some(event) = self.event() {
                return Ok(event);
            }
            if shared.is_over() {
                return Err(shared.why_ended());
            }
            later.await;
        }
    }

    /// [Sends](Endpoint::send) a message.
    ///
    /// # Errors
    /// The send was refused or failed, or the runtime was shut down.
    pub async fn send(
        &self,
        message: Message,
        buffer: impl Into<Buffer>,
    ) -> Result<Completion, AsyncError> {
        let start = |endpoint: &Endpoint, buffer: Buffer, context| {
            endpoint.send(message, buffer, context).map(|()| None)
        };
        self.0.run(None, buffer.into(), start).await
    }

    /// [Receives](Endpoint::receive) a message: one that a dropped future has left, or the next that matches.
    ///
    /// # Errors
    /// The receive was refused or failed, or the runtime was shut down.
    pub async fn receive(
        &self,
        receive: Receive,
        buffer: impl Into<ReceiveBuffer>,
    ) -> Result<Completion, AsyncError> {
        let ReceiveBuffer(buffer) = buffer.into();
        let start = |endpoint: &Endpoint, buffer: Buffer, context| {
            endpoint.receive(receive, ReceiveBuffer(buffer), context).map(Some)
        };
        self.0.run(Some(receive), buffer, start).await
    }

    /// [Writes](Endpoint::write) to memory of a peer.
    ///
    /// # Errors
    /// The write was refused or failed, or the runtime was shut down.
    pub async fn write(
        &self,
        rma: Rma,
        buffer: impl Into<Buffer>,
    ) -> Result<Completion, AsyncError> {
        let start = |endpoint: &Endpoint, buffer: Buffer, context| {
            endpoint.write(rma, buffer, context).map(|()| None)
        };
        self.0.run(None, buffer.into(), start).await
    }

    /// [Reads](Endpoint::read) memory of a peer.
    ///
    /// # Errors
    /// The read was refused or failed, or the runtime was shut down.
    pub async fn read(
        &self,
        rma: Rma,
        buffer: impl Into<ReceiveBuffer>,
    ) -> Result<Completion, AsyncError> {
        let ReceiveBuffer(buffer) = buffer.into();
        let start = |endpoint: &Endpoint, buffer: Buffer, context| {
            endpoint.read(rma, ReceiveBuffer(buffer), context).map(|()| None)
        };
        self.0.run(None, buffer, start).await
    }

    /// Does an [atomic](Endpoint::atomic) on memory of a peer.
    ///
    /// # Errors
    /// The atomic was refused or failed, or the runtime was shut down.
    pub async fn atomic(&self, rma: Rma, operation: Operation) -> Result<Completion, AsyncError> {
        let mut pending = operation;
        let start = |endpoint: &Endpoint, buffer: Buffer, context| {
            let started = endpoint.atomic(rma, taken(&mut pending), context).map(|()| None);
            started.map_err(|refused| {
                pending = *refused.operation;
                Refused { error: refused.error, buffer }
            })
        };
        self.0.run(None, Buffer::default(), start).await
    }

    /// Does an [atomic that returns the previous values](Endpoint::fetch_atomic).
    ///
    /// # Errors
    /// The atomic was refused or failed, or the runtime was shut down.
    pub async fn fetch_atomic(
        &self,
        rma: Rma,
        operation: Operation,
        fetched: impl Into<ReceiveBuffer>,
    ) -> Result<Completion, AsyncError> {
        let ReceiveBuffer(fetched) = fetched.into();
        let mut pending = operation;
        let start = |endpoint: &Endpoint, buffer: Buffer, context| {
            let (operation, fetched) = (taken(&mut pending), ReceiveBuffer(buffer));
            let started = endpoint.fetch_atomic(rma, operation, fetched, context).map(|()| None);
            started.map_err(|refused| {
                pending = *refused.operation;
                Refused { error: refused.error, buffer: refused.fetched }
            })
        };
        self.0.run(None, fetched, start).await
    }

    /// [Injects](Endpoint::inject) a short message, which has no future. If it fails,
    /// [`unasked`](Self::unasked) reports it.
    ///
    /// # Errors
    /// It was not started.
    pub fn inject(&self, message: Message, bytes: &[u8]) -> Result<(), StartError> {
        self.0.endpoint.inject(message, bytes)
    }

    /// The next completion that belongs to no future: a peer's write with data, or an injected message that
    /// failed. Dropping the future loses none.
    ///
    /// 1024 of them are kept. If nobody takes them then, the endpoint makes no progress until somebody does, or it is
    /// closed. A program that lets peers write must therefore call this.
    ///
    /// # Errors
    /// An injected message failed; the runtime was shut down; the endpoint was closed, and none is kept
    /// ([`Ended::Closed`]).
    pub async fn unasked(&self) -> Result<Completion, AsyncError> {
        let mut others = self.0.others.lock().await;
        match others.recv().await {
            Some(entry) => {
                self.0.shared.kept_others.add_permits(1);
                Ok(entry?)
            }
            None => Err(self.0.shared.why_ended().into()),
        }
    }

    /// [Closes](Endpoint::close) the endpoint: finishes the sends under way, then ends the rest, whose
    /// futures fail with [`Closed`](crate::OperationError::Closed). A thread of the runtime for blocking
    /// calls polls meanwhile, and a runtime that is dropped waits for it. If this future is dropped, the endpoint is closed
    /// all the same. If the runtime was shut down, it is closed without waiting.
    ///
    /// # Errors
    /// Not all was sent in time.
    pub async fn close(&self, timeout: Duration) -> Result<(), CloseError> {
        self.0.block(timeout, Inner::close).await
    }
}

impl Inner {
    /// Runs what polls, on a thread for blocking calls; without the runtime at once, and without waiting.
    pub(super) async fn block(
        self: &Arc<Self>,
        timeout: Duration,
        run: fn(&Self, Duration) -> Result<(), CloseError>,
    ) -> Result<(), CloseError> {
        let inner = Arc::clone(self);
        match self.runtime.spawn_blocking(move || run(&inner, timeout)).await {
            Ok(result) => result,
            Err(ended) if ended.is_panic() => resume_unwind(ended.into_panic()),
            Err(_) => run(self, Duration::ZERO),
        }
    }

    fn close(&self, timeout: Duration) -> Result<(), CloseError> {
        let result = match &self.connection {
            None => self.endpoint.close(timeout),
            Some(connection) => connection.close(&self.endpoint, timeout),
        };
        self.shared.state.lock().is_closed = true;
        self.shared.closed.notify_one();
        self.shared.event.notify_waiters();
        // All futures end, also if nobody takes what the reader waits with.
        self.shared.kept_others.close();
        self.shared.room.notify_waiters();
        // The reader may be gone with its runtime, and those who share the budget run in another.
        self.shared.give_turns();
        result
    }

    /// Starts an operation, and waits for its completion.
    async fn run(
        &self,
        receive: Option<Receive>,
        buffer: Buffer,
        start: impl FnMut(&Endpoint, Buffer, u64) -> Result<Option<ReceiveId>, Refused>,
    ) -> Result<Completion, AsyncError> {
        let side = if receive.is_some() { RECEIVE } else { TRANSMIT };
        self.run_on(side, receive, buffer, start).await
    }

    /// The same, with a permit of this side. A message that was kept for `receive` is taken in place of one that comes.
    pub(super) async fn run_on(
        &self,
        side: usize,
        receive: Option<Receive>,
        buffer: Buffer,
        start: impl FnMut(&Endpoint, Buffer, u64) -> Result<Option<ReceiveId>, Refused>,
    ) -> Result<Completion, AsyncError> {
        let wanted = receive.map(|receive| Wanted::new(receive, &self.endpoint.addresses));
        let kept = |slots: &mut Slots| slots.take_kept(wanted.as_ref()?).map(Box::new);
        let slot = |slots: &mut Slots| slots.start(wanted);
        match self.begin(side, kept, slot, buffer, start).await? {
            Started::Kept(entry) => Ok((*entry)?),
            Started::Operation { key, receive } => Ok(Ticket::new(self, key, receive).await??),
        }
    }

    /// Starts an operation that gets a `slot`, unless it finds what was `kept` for it.
    pub(super) async fn begin<K>(
        &self,
        side: usize,
        kept: impl Fn(&mut Slots) -> Option<K>,
        slot: impl Fn(&mut Slots) -> usize,
        mut buffer: Buffer,
        mut start: impl FnMut(&Endpoint, Buffer, u64) -> Result<Option<ReceiveId>, Refused>,
    ) -> Result<Started<K>, AsyncError> {
        let mut acquire = pin!(self.shared.permits[side].acquire());
        let find = || kept(&mut self.shared.state.lock().slots);
        let permit = loop {
            let mut is_kept = pin!(self.shared.kept.notified());
            let first = poll_fn(|cx| match acquire.as_mut().poll(cx) {
                Poll::Ready(Ok(permit)) => Poll::Ready(Ok(Some(permit))),
                Poll::Ready(Err(_)) => Poll::Ready(Err(find())),
                // It is the turn of other tasks, also if messages are kept.
                Poll::Pending if !has_budget_remaining() => Poll::Pending,
                Poll::Pending => match find() {
                    None => is_kept.as_mut().poll(cx).map(|()| Ok(None)),
                    found => Poll::Ready(Err(found)),
                },
            });
            match first.await {
                Ok(Some(permit)) => break permit,
                Ok(None) => {}
                Err(Some(found)) => return Ok(Started::Kept(found)),
                Err(None) => return Err(self.shared.why_ended().into()),
            }
        };
        loop {
            let is_kept = self.shared.kept.notified();
            // What completes from now on gives a turn, also that of another endpoint with the same budget.
            let turn = self.shared.turn.notified();
            let share = self.shared.budget.as_ref().map(SendBudget::turn);
            buffer = match self.start(&kept, &slot, buffer, &mut start) {
                Ok(started) => {
                    if let Started::Operation { .. } = started {
                        // It comes back with the completion, also if this future is dropped.
                        permit.forget();
                    }
                    return Ok(started);
                }
                Err(AsyncError::Refused(Refused { error, buffer })) if error.is_busy() => buffer,
                Err(error) => return Err(error),
            };
            match share {
                Some(share) => either(either(turn, share), is_kept).await,
                None => either(turn, is_kept).await,
            }
        }
    }

    fn start<K>(
        &self,
        kept: &impl Fn(&mut Slots) -> Option<K>,
        slot: &impl Fn(&mut Slots) -> usize,
        buffer: Buffer,
        start: &mut impl FnMut(&Endpoint, Buffer, u64) -> Result<Option<ReceiveId>, Refused>,
    ) -> Result<Started<K>, AsyncError> {
        let mut state = self.shared.state.lock();
        if let Some(ended) = &state.ended {
            return Err(ended.clone().into());
        }
        // One may have been kept since the call began.
        if let Some(found) = kept(&mut state.slots) {
            return Ok(Started::Kept(found));
        }
        let key = slot(&mut state.slots);
        drop(state);
        match start(&self.endpoint, buffer, context_of(key)) {
            Ok(receive) => Ok(Started::Operation { key, receive }),
            Err(refused) => {
                self.shared.change(|slots| ((), [slots.not_started(key)]));
                Err(refused.into())
            }
        }
    }

    /// A receive whose future is gone takes no message any more.
    pub(super) fn give_up(&self, left: Left, receive: Option<ReceiveId>) {
        if let (Left::UnderWay, Some(receive)) = (left, receive) {
            self.endpoint.cancel(receive);
        }
    }
}

/// Completes when one of the two has.
pub(super) async fn either(first: impl Future<Output = ()>, second: impl Future<Output = ()>) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|cx| match first.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => second.as_mut().poll(cx),
    })
    .await;
}

/// The context of an operation; 0 is that of completions without one.
fn context_of(key: usize) -> u64 {
    key as u64 + 1
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// What a call began with.
pub(super) enum Started<K> {
    /// A receive found a message that was kept.
    Kept(K),
    /// An operation is under way. `receive` is its number if it is one that can be cancelled.
    Operation { key: usize, receive: Option<ReceiveId> },
}

impl Shared {
    /// From now on nothing completes.
    pub(super) fn end(&self, why: Ended) {
        let mut state = self.state.lock();
        state.ended.get_or_insert(why);
        let wakers = state.slots.wakers();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        self.permits.iter().for_each(Semaphore::close);
        self.turn.notify_waiters();
        self.event.notify_waiters();
    }

    /// Whether nothing happens at the endpoint any more.
    fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.is_closed || state.ended.is_some()
    }

    /// Changes the slots; does what `change` leaves beside its result, and wakes those for which it kept a message.
    pub(super) fn change<T, A: IntoIterator<Item = After>>(
        &self,
        change: impl FnOnce(&mut Slots) -> (T, A),
    ) -> T {
        let mut state = self.state.lock();
        let (result, after) = change(&mut state.slots);
        let is_newly_kept = state.slots.take_newly_kept();
        drop(state);
        after.into_iter().for_each(After::run);
        if is_newly_kept {
            self.kept.notify_waiters();
        }
        result
    }

    /// Gives up a receive of many messages.
    pub(super) fn stop_collecting(&self, key: usize) -> Left {
        let left = self.change(|slots| slots.stop_collecting(key));
        self.room.notify_waiters();
        left
    }

    /// Waits until a receive of many messages has room for another. If the endpoint is closed it takes all that are left.
    pub(super) async fn room_for(&self, key: usize) {
        let has_room = |state: &State| state.is_closed || !state.slots.is_full(key);
        loop {
            let room = self.room.notified();
            if has_room(&self.state.lock()) {
                return;
            }
            room.await;
        }
    }

    /// Has operations try again that found no room, also those of endpoints with the same budget.
    pub(super) fn give_turns(&self) {
        self.turn.notify_waiters();
        if let Some(budget) = &self.budget {
            budget.give_turns();
        }
    }

    fn why_ended(&self) -> Ended {
        let state = self.state.lock();
        let otherwise = if state.is_closed { Ended::Closed } else { Ended::Runtime };
        state.ended.clone().unwrap_or(otherwise)
    }
}

/// Takes an operation for an attempt to start it, after which it is put back if that failed.
fn taken(pending: &mut Operation) -> Operation {
    let nothing = Operation::read(pending.datatype);
    std::mem::replace(pending, nothing)
}

impl fmt::Debug for AsyncEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncEndpoint").field(&self.address()).finish()
    }
}

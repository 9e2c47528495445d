//! Enabled endpoints.

use std::fmt;
use std::sync::Arc;

use efa_device::{Armed, DeviceError, Time};
use efa_lock::Mutex as BiasedMutex;
use efa_rdm::{AtomicKind, AtomicOp, Datatype, Operands, Statistics};
use parking_lot::Mutex;

use crate::address::Address;
use crate::address_vector::{AddressVector, FiAddr};
use crate::any_driver::{AnyDriver, each_driver, in_place_driver};
use crate::attributes::{
    EndpointAttributes, LocalRegistration, ReceiveAttributes, TransmitAttributes,
};
use crate::buffer::{Buffer, ReceiveBuffer};
use crate::capabilities::{Capabilities, OperationFlags};
use crate::completion::{Refused, StartError};
use crate::completion_queue::{CompletionQueue, Entry, Reader, Room, Shared as QueueShared};
use crate::connection::MsgEndpoint;
use crate::counter::Counter;
use crate::domain::Domain;
#[cfg(doc)]
use crate::endpoint_options::Receiving;
use crate::event::Event;
use crate::injected::Copies;
use crate::message::{Message, Receive, ReceiveId};
use crate::named::Published;
use crate::packet::Packet;
use crate::region::LocalAccess;
use crate::rma::{AtomicRefused, Operation, Rma};
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::usable::Usable;

/// Locks the driver of an endpoint and evaluates `$call` with it, or `$value` if the endpoint is closed.
macro_rules! drive {
    ($shared:expr, $name:ident => $call:expr, $closed:pat => $value:expr) => {
        $crate::any_driver::each_driver!(
            &mut *$shared.driver.lock(), $name => $call, $closed => $value
        )
    };
}
pub(crate) use drive;

mod close;

/// Number of an endpoint in its domain, from 0 on; never reused. Completions carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub(crate) u64);

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An enabled endpoint (`FI_EP_RDM`): sends messages of any length to any peer of the address vector,
/// reliably, matched in the order in which they were sent.
///
/// Operations return at once. Reading the bound completion queues progresses them and returns their
/// completions. Any thread may call any method; calls on one endpoint are serialized.
///
/// When an endpoint is dropped or closed, operations under way complete with
/// [`OperationError::Closed`](crate::OperationError::Closed) after its queue pair is destroyed, so
/// that every buffer comes back. [`close`](Self::close) first finishes sends and queued responses;
/// dropping doesn't.
pub struct Endpoint {
    pub(crate) shared: Arc<Shared>,
    // The objects that know the endpoint. It is removed from them when it is closed or dropped.
    pub(crate) transmit: CompletionQueue,
    pub(crate) receive: CompletionQueue,
    pub(crate) addresses: AddressVector,
    pub(crate) counters: Vec<Counter>,
    pub(crate) shared_receives: Option<SharedReceiveQueue>,
}

impl Endpoint {
    /// The number of this endpoint in its domain. [`Completion::endpoint`](crate::Completion::endpoint)
    /// is the same number.
    #[must_use]
    pub fn id(&self) -> EndpointId {
        self.shared.id
    }

    /// The address that peers insert into their address vectors (`fi_getname`).
    #[must_use]
    pub fn address(&self) -> Address {
        self.shared.address
    }

    /// Limits and properties of this endpoint.
    #[must_use]
    pub fn attributes(&self) -> &EndpointAttributes {
        &self.shared.attributes
    }

    /// Limits and properties of its transmit side.
    #[must_use]
    pub fn transmit_attributes(&self) -> &TransmitAttributes {
        &self.shared.transmit
    }

    /// Limits and properties of its receive side.
    #[must_use]
    pub fn receive_attributes(&self) -> &ReceiveAttributes {
        &self.shared.receive
    }

    /// The capabilities that were enabled.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.shared.domain
    }

    /// Sends a message (`fi_send`, `fi_tsend`). It completes when the peer's device has all its packets
    /// (`FI_TRANSMIT_COMPLETE`).
    ///
    /// # Errors
    /// The operation was not started; the buffer comes back.
    pub fn send(
        &self,
        message: Message,
        buffer: impl Into<Buffer>,
        context: u64,
    ) -> Result<(), Refused> {
        self.send_buffer(message, buffer.into(), context)
    }

    // Once for all kinds of buffers, so that everything below is inlined here.
    fn send_buffer(&self, message: Message, buffer: Buffer, context: u64) -> Result<(), Refused> {
        if let Err(error) = self.check_send(&message, buffer.len()) {
            return Err(Refused { error, buffer });
        }
        if let Err(error) = self.shared.check_buffer(&buffer, LocalAccess::SEND) {
            return Err(Refused { error, buffer });
        }
        drive!(
            self.shared,
            driver => driver.send(message, buffer, context),
            _ => Err(Refused { error: StartError::Closed, buffer })
        )
    }

    /// Copies a short message and sends it (`fi_inject`). It has no context, and a completion only if it
    /// fails.
    ///
    /// # Errors
    /// As for [`send`](Self::send), and if it is longer than
    /// [`TransmitAttributes::inject_size`].
    pub fn inject(&self, message: Message, bytes: &[u8]) -> Result<(), StartError> {
        self.check_send(&message, bytes.len())?;
        drive!(
            self.shared,
            driver => driver.inject(message.to, message.tag, message.cq_data, bytes),
            _ => Err(StartError::Closed)
        )
    }

    /// Posts a receive for one message (`fi_recv`, `fi_trecv`).
    ///
    /// # Errors
    /// The operation was not started; the buffer comes back.
    pub fn receive(
        &self,
        receive: Receive,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        self.receive_buffer(receive, buffer.into().0, context)
    }

    // Once, as `send_buffer`.
    fn receive_buffer(
        &self,
        receive: Receive,
        buffer: Buffer,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        if let Err(error) = self.check_receive(&receive) {
            return Err(Refused { error, buffer });
        }
        if let Err(error) = self.shared.check_buffer(&buffer, LocalAccess::RECV) {
            return Err(Refused { error, buffer });
        }
        drive!(
            self.shared,
            driver => driver.receive(receive, buffer, context),
            _ => Err(Refused { error: StartError::Closed, buffer })
        )
    }

    /// Posts a buffer for many untagged messages, of one peer or of any (`FI_MULTI_RECV`).
    ///
    /// Each message is put behind the one before and completes as
    /// [`Kind::MultiReceive`](crate::Kind::MultiReceive) with its part of the buffer. When less than
    /// [`EndpointAttributes::min_multi_receive`] bytes are left, the rest of the buffer comes back as
    /// [`Kind::Released`](crate::Kind::Released).
    ///
    /// While the completion queue for receives is full of such messages, the endpoint makes no
    /// progress, not even with sends, until that queue is read.
    ///
    /// # Errors
    /// The operation was not started; the buffer comes back.
    pub fn receive_many(
        &self,
        source: Option<FiAddr>,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        let receive = Receive { source, ..Receive::untagged() };
        self.receive_many_of(receive, buffer.into(), context)
    }

    /// The same with flags (those of `fi_recvmsg`), in place of the endpoint's [default
    /// flags](crate::ContextOptions#structfield.flags): if the queue was bound
    /// [selectively](crate::EndpointBuilder::selective), messages complete if
    /// [`OperationFlags::COMPLETION`] is among them.
    ///
    /// # Errors
    /// As for [`receive_many`](Self::receive_many).
    pub fn receive_many_flags(
        &self,
        source: Option<FiAddr>,
        flags: OperationFlags,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        let receive = Receive { source, ..Receive::untagged() }.flags(flags);
        self.receive_many_of(receive, buffer.into(), context)
    }

    fn receive_many_of(
        &self,
        receive: Receive,
        ReceiveBuffer(buffer): ReceiveBuffer,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        let checked = self
            .require_to_receive(Capabilities::MULTI_RECV)
            .and_then(|()| self.check_receive(&receive))
            .and_then(|()| self.shared.check_buffer(&buffer, LocalAccess::RECV));
        if let Err(error) = checked {
            return Err(Refused { error, buffer });
        }
        drive!(
            self.shared,
            driver => driver.receive_many(receive, buffer, context),
            _ => Err(Refused { error: StartError::Closed, buffer })
        )
    }

    /// From now on, releases a multi-receive buffer with less space left than this many bytes
    /// (`FI_OPT_MIN_MULTI_RECV`), in place of [`EndpointAttributes::min_multi_receive`]. 0 means 1.
    pub fn set_min_multi_receive(&self, bytes: u64) {
        drive!(self.shared, driver => driver.set_min_multi_receive(bytes), _ => {});
    }

    /// Allocates a packet for [`receive_in_place`](Self::receive_in_place).
    ///
    /// # Errors
    /// [`StartError::NotInPlace`], or the device can't register more memory.
    pub fn packet(&self) -> Result<Packet, StartError> {
        in_place_driver!(
            &mut *self.shared.driver.lock(),
            driver => driver.packet(),
            error => Err(error)
        )
    }

    /// Posts a receive for one message of any peer, at an endpoint that [receives in
    /// place](Receiving::InPlace), and gives it a packet of this domain.
    ///
    /// The completion's buffer is a packet with the message, not necessarily the one that was given:
    /// [`Buffer::as_slice`] is the message, and [`Buffer::into_packet`] returns the packet for the next
    /// receive. If the receive fails, the endpoint keeps the packet.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use efa::{
    ///     Capabilities, CompletionQueueOptions, Config, Direction, EndpointOptions, Fabric,
    ///     LocalOptions, Message, Receiving, Release,
    /// };
    ///
    /// let domain = Fabric::local(LocalOptions::default()).domain()?;
    /// let queue = domain.completion_queue(CompletionQueueOptions::default());
    /// let addresses = domain.address_vector();
    /// let endpoint = |options| {
    ///     domain
    ///         .endpoint(options)
    ///         .bind_completion_queue(&queue, Direction::Both)
    ///         .bind_address_vector(&addresses)
    ///         .enable()
    /// };
    /// let alice = endpoint(EndpointOptions::default())?;
    /// let bob = endpoint(
    ///     EndpointOptions::new()
    ///         .capabilities(Capabilities::MSG | Capabilities::SOURCE)
    ///         .receiving(Receiving::InPlace)
    ///         .protocol(Config::as_release(Release::V1_20)),
    /// )?;
    ///
    /// let to_bob = addresses.insert(bob.address())?;
    /// let mut packet = bob.packet()?;
    /// for text in ["one", "two"] {
    ///     bob.receive_in_place(packet, 1)?;
    ///     alice.send(Message::to(to_bob), text, 2)?;
    ///     let received = loop {
    ///         let completion = queue.wait(Duration::from_secs(10))?;
    ///         if completion.is_received() {
    ///             break completion;
    ///         }
    ///     };
    ///     assert_eq!(received.buffer.as_slice(), Some(text.as_bytes()));
    ///     packet = received.buffer.into_packet().expect("received in place");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The receive was not posted; the packet comes back.
    pub fn receive_in_place(&self, packet: Packet, context: u64) -> Result<(), Refused> {
        let checked = self.require_to_receive(Capabilities::MSG | Capabilities::RECV);
        let checked = checked.and_then(|()| match self.shared.domain.device().owns(&packet) {
            true => Ok(()),
            false => Err(StartError::OtherDomain),
        });
        if let Err(error) = checked {
            return Err(Refused { error, buffer: packet.into() });
        }
        in_place_driver!(
            &mut *self.shared.driver.lock(),
            driver => driver.receive_in_place(packet, context),
            error => Err(Refused { error, buffer: packet.into() })
        )
    }

    /// Writes to memory of a peer (`fi_write`). It completes when the peer's device has the bytes, which
    /// are in the memory already if the device does RDMA writes. The peer gets a completion only if
    /// [data](Rma::with_data) is sent along. Writes have no order.
    ///
    /// A write in packets to memory that the peer doesn't offer: between endpoints of this implementation
    /// it fails with [`GivenUp`](crate::OperationError::GivenUp); with libfabric it never completes, and
    /// closing the endpoint cancels it. An eager write, unless it is
    /// [delivery-complete](Rma::delivery_complete), completes either way: nobody answers it.
    ///
    /// # Errors
    /// The operation was not started; the buffer comes back.
    pub fn write(&self, rma: Rma, buffer: impl Into<Buffer>, context: u64) -> Result<(), Refused> {
        let buffer = buffer.into();
        let checked = self
            .require_to_transmit(Capabilities::RMA)
            .and_then(|()| self.shared.check_buffer(&buffer, LocalAccess::WRITE));
        if let Err(error) = checked {
            return Err(Refused { error, buffer });
        }
        drive!(
            self.shared,
            driver => driver.write(rma, buffer, context),
            _ => Err(Refused { error: StartError::Closed, buffer })
        )
    }

    /// Reads memory of a peer (`fi_read`). It completes when all bytes are in the buffer. Reads have no
    /// order.
    ///
    /// A read in packets of memory that the peer doesn't offer: between endpoints of this implementation
    /// it fails with [`GivenUp`](crate::OperationError::GivenUp); with libfabric it never completes, and
    /// closing the endpoint cancels it. The peer gets an event.
    ///
    /// # Errors
    /// The operation was not started; the buffer comes back.
    pub fn read(
        &self,
        rma: Rma,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<(), Refused> {
        let ReceiveBuffer(buffer) = buffer.into();
        let checked = self
            .require_to_transmit(Capabilities::RMA)
            .and_then(|()| self.shared.check_buffer(&buffer, LocalAccess::READ));
        if let Err(error) = checked {
            return Err(Refused { error, buffer });
        }
        drive!(
            self.shared,
            driver => driver.read(rma, buffer, context),
            _ => Err(Refused { error: StartError::Closed, buffer })
        )
    }

    /// Does an atomic on memory of a peer (`fi_atomic`): each element changes atomically with respect to
    /// other atomics. It is ordered with the messages to the peer, and completes as a
    /// [write](Self::write) does.
    ///
    /// # Errors
    /// There is no such atomic; lengths differ, or exceed what a packet holds
    /// ([`atomic_limit`](Self::atomic_limit)); or it can't be started now. The operation comes back.
    pub fn atomic(
        &self,
        rma: Rma,
        operation: Operation,
        context: u64,
    ) -> Result<(), AtomicRefused> {
        if operation.comparand.is_some() {
            let Operation { op, datatype, .. } = operation;
            let kind = AtomicKind::Write;
            let error = efa_rdm::StartError::NoSuchAtomic { kind, op, datatype }.into();
            let (operation, fetched) = (Box::new(operation), Buffer::default());
            return Err(AtomicRefused { error, operation, fetched });
        }
        let Operation { op, datatype, operand, .. } = operation;
        let operands = Operands::Write { operand };
        self.start_atomic(rma, (op, datatype), operands, context)
    }

    /// Does an atomic that returns the previous values (`fi_fetch_atomic`, `fi_compare_atomic`), in a
    /// buffer as long as the remote memory. With a comparand it is conditional.
    ///
    /// # Errors
    /// As for [`atomic`](Self::atomic); operation and buffer come back.
    pub fn fetch_atomic(
        &self,
        rma: Rma,
        operation: Operation,
        fetched: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<(), AtomicRefused> {
        let ReceiveBuffer(fetched) = fetched.into();
        let Operation { op, datatype, operand, comparand } = operation;
        let operands = match comparand {
            None => Operands::Fetch { operand, fetched },
            Some(comparand) => Operands::Compare { operand, comparand, fetched },
        };
        self.start_atomic(rma, (op, datatype), operands, context)
    }

    /// Most bytes that one atomic can change; 0 after [`close`](Self::close).
    #[must_use]
    pub fn atomic_limit(&self, kind: AtomicKind) -> usize {
        drive!(
            self.shared,
            driver => driver.atomic_limit(kind),
            _ => 0
        )
    }

    fn start_atomic(
        &self,
        rma: Rma,
        how: (AtomicOp, Datatype),
        operands: Operands<Buffer>,
        context: u64,
    ) -> Result<(), AtomicRefused> {
        let checked = self
            .require_to_transmit(Capabilities::ATOMIC)
            .and_then(|()| self.shared.check_operands(&operands));
        if let Err(error) = checked {
            return Err(AtomicRefused::new(error, how, operands));
        }
        drive!(
            self.shared,
            driver => driver.atomic(rma, how, operands, context),
            _ => Err(AtomicRefused::new(StartError::Closed, how, operands))
        )
    }

    /// Cancels a receive that has not matched a message: it completes with
    /// [`OperationError::Cancelled`](crate::OperationError::Cancelled). Returns whether there was such a
    /// receive.
    pub fn cancel(&self, receive: ReceiveId) -> bool {
        drive!(self.shared, driver => driver.cancel(receive), _ => false)
    }

    /// Cancels a receive that was posted with this context and has not matched a message, as
    /// [`cancel`](Self::cancel) does (`fi_cancel`). If there are several, it is the one posted first of the
    /// tagged ones, or if there is none, of the others. Returns whether there was one. It looks at all
    /// posted receives; [`cancel`](Self::cancel) doesn't.
    pub fn cancel_context(&self, context: u64) -> bool {
        drive!(self.shared, driver => driver.cancel_context(context), _ => false)
    }

    /// Returns the next [event](Event), if there is one. A closed endpoint has none.
    ///
    /// 1,024 are kept; those that come then are lost, and [counted](Statistics#structfield.events_lost). To sleep until there
    /// is one, [bind an event queue](crate::EndpointBuilder::bind_event_queue): then that takes them.
    #[must_use]
    pub fn event(&self) -> Option<Event> {
        self.shared.event()
    }

    /// Returns counts since the endpoint was enabled; of a closed endpoint, the last ones.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        drive!(self.shared, driver => driver.statistics(), last => last.clone())
    }

    /// Operations under way, and later ones, complete on no queue and count on no counter, whether they succeed or not.
    /// Their buffers are dropped when they end. Completions that are in a queue already stay there. With a call before
    /// [`close`](Self::close) an endpoint is closed as by `fi_close`.
    pub fn discard_completions(&self) {
        let unread = CompletionQueue::unread(&self.shared.domain);
        drive!(self.shared, driver => driver.discard_completions(unread.shared()), _ => {});
    }

    pub(crate) fn user_context(&self) -> u64 {
        self.shared.context
    }

    #[inline]
    pub(crate) fn require_to_transmit(&self, needed: Capabilities) -> Result<(), StartError> {
        match self.shared.transmittable.allows(needed) {
            true => Ok(()),
            false => self.recall(needed),
        }
    }

    /// Ends the rest of the endpoint if it rests, as an operation starts; otherwise the operation is refused.
    #[cold]
    #[inline(never)]
    fn recall(&self, needed: Capabilities) -> Result<(), StartError> {
        let (usable, all) = (&self.shared.transmittable, self.shared.transmit.capabilities);
        // A peer that sends is connected, although the event queue may not have been read since.
        if usable.awaits() && self.shared.has_heard() {
            usable.establish();
        }
        if usable.recall(all) {
            self.transmit.shared().recall(&self.shared);
            self.receive.shared().recall(&self.shared);
            self.counters.iter().for_each(|counter| counter.recall(&self.shared));
        }
        usable.require(needed, all)
    }

    #[inline]
    fn require_to_receive(&self, needed: Capabilities) -> Result<(), StartError> {
        let required = self.shared.receivable.require(needed, self.shared.receive.capabilities);
        required.map_err(|error| self.not_receivable(error))
    }

    /// Of an endpoint that takes its receives from a shared queue nothing is usable, so that others needn't look.
    #[cold]
    fn not_receivable(&self, error: StartError) -> StartError {
        match error {
            StartError::NotConnected | StartError::Disabled(_)
                if self.shared_receives.is_some() =>
            {
                StartError::ReceivesShared
            }
            other => other,
        }
    }

    fn check_send(&self, message: &Message, length: usize) -> Result<(), StartError> {
        let capability = match message.tag {
            Some(_) => Capabilities::TAGGED,
            None => Capabilities::MSG,
        };
        self.require_to_transmit(capability | Capabilities::SEND)?;
        let (length, limit) = (length as u64, self.shared.attributes.max_message_size);
        if length > limit {
            return Err(StartError::TooLong { length, limit });
        }
        Ok(())
    }

    pub(crate) fn check_receive(&self, receive: &Receive) -> Result<(), StartError> {
        let capability = match receive.tag {
            Some(_) => Capabilities::TAGGED,
            None => Capabilities::MSG,
        };
        let source = match receive.source {
            Some(_) => Capabilities::DIRECTED_RECV,
            None => Capabilities::empty(),
        };
        self.require_to_receive(capability | source | Capabilities::RECV)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

/// Not the driver: it has all that is under way, and a lock.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.address).finish()
    }
}

/// The part of an endpoint that completion queues, counters and address vectors refer to.
pub(crate) struct Shared {
    pub(crate) id: EndpointId,
    pub(crate) domain: Domain,
    pub(crate) address: Address,
    pub(crate) capabilities: Capabilities,
    pub(crate) transmittable: Usable,
    pub(crate) receivable: Usable,
    /// Whether buffers of operations must be registered memory.
    pub(crate) local_registration: LocalRegistration,
    pub(crate) context: u64,
    pub(crate) attributes: EndpointAttributes,
    pub(crate) transmit: TransmitAttributes,
    pub(crate) receive: ReceiveAttributes,
    /// Locked after event queues, connections and lists of endpoints, and before tables, queues and receives
    /// (docs/architecture.md, "Locks of the crate `efa` have an order").
    pub(crate) driver: BiasedMutex<AnyDriver>,
    /// Of injected operations.
    pub(crate) copies: Mutex<Copies>,
}

impl Shared {
    pub(crate) fn progress(&self) {
        // The clock is read under the lock, so that the engine's time never goes back.
        drive!(self, driver => driver.progress(self.domain.fabric().clock()), _ => {});
    }

    /// Progresses the operations until one completes on the reader's queue; gives the reader that
    /// completion and returns whether there was one.
    #[inline(always)]
    pub(crate) fn poll<R: Room>(&self, reader: Reader<'_, R>) -> bool {
        let clock = self.domain.fabric().clock();
        let driver = &mut *self.driver.lock();
        if driver.is_idle() {
            return false;
        }
        each_driver!(driver, driver => driver.poll(clock, reader), _ => false)
    }

    /// As [`Driver::poll_many`](crate::driver::Driver::poll_many).
    pub(crate) fn poll_many(
        &self,
        queue: &QueueShared,
        (into, most): (&mut Vec<Entry>, usize),
    ) -> usize {
        let clock = self.domain.fabric().clock();
        let driver = &mut *self.driver.lock();
        if driver.is_idle() {
            return 0;
        }
        each_driver!(driver, driver => driver.poll_many(clock, queue, (into, most)), _ => 0)
    }

    /// Whether a poll would find nothing; `false` if that isn't known without one.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.driver.lock().is_idle()
    }

    /// Whether its device has found something that was not handled; `true` if that isn't known.
    pub(crate) fn has_found(&self) -> bool {
        match &*self.driver.lock() {
            #[cfg(feature = "sim")]
            AnyDriver::Soft(driver) => driver.has_found(),
            AnyDriver::Verbs(driver) => driver.has_found(),
            AnyDriver::Other(_) => true,
        }
    }

    /// Prepares for sleep. Nothing happens any more at a closed endpoint.
    pub(crate) fn arm(&self) -> Result<Armed, DeviceError> {
        let clock = self.domain.fabric().clock();
        drive!(self, driver => driver.arm(clock), _ => Ok(Armed::Quiet { until: None }))
    }

    pub(crate) fn next_timeout(&self) -> Option<Time> {
        drive!(self, driver => driver.next_timeout(), _ => None)
    }

    pub(crate) fn event(&self) -> Option<Event> {
        drive!(self, driver => driver.event(), _ => None)
    }

    /// A number that changes whenever the endpoint sends or receives a packet.
    pub(crate) fn activity(&self) -> u64 {
        drive!(self, driver => driver.activity(), _ => 0)
    }

    /// Leaves the rotation of a queue if nothing is under way; returns whether it does.
    pub(crate) fn rest(&self) -> bool {
        let may_rest =
            drive!(self, driver => driver.is_quiet() && driver.next_timeout().is_none(), _ => true);
        if may_rest {
            self.transmittable.rest(self.transmit.capabilities);
        }
        may_rest
    }

    pub(crate) fn peers_inserted(&self, peers: &[(FiAddr, Address)]) {
        drive!(self, driver => driver.peers_inserted(peers), _ => {});
    }

    pub(crate) fn published_peer_changed(
        &self,
        peer: FiAddr,
        removed: Published,
        another: Option<Published>,
    ) {
        drive!(self, driver => driver.published_peer_changed(peer, removed, another), _ => {});
    }

    pub(crate) fn peer_removed(&self, peer: FiAddr, address: &Address) {
        drive!(self, driver => driver.peer_removed(peer, address), _ => {});
    }

    pub(crate) fn name_removed(&self, name: FiAddr) {
        drive!(self, driver => driver.name_removed(name), _ => {});
    }

    /// Allows operations that need the peer of a connection, if that was awaited: one that this side is shutting down
    /// takes none.
    pub(crate) fn connection_made(&self) {
        self.transmittable.establish();
    }

    /// Forbids operations that need the peer of a connection.
    pub(crate) fn forbid_transmits(&self) {
        self.transmittable.forbid();
    }

    /// Forbids operations that need the peer of a connection until that is made.
    pub(crate) fn await_connection(&self) {
        self.transmittable.await_connection();
    }

    /// Whether the peer of a connection that is awaited has sent something.
    fn has_heard(&self) -> bool {
        drive!(self, driver => driver.has_heard(MsgEndpoint::PEER), _ => false)
    }

    /// Takes packets of a peer from now on.
    pub(crate) fn admit_peer(&self, peer: FiAddr) -> Result<(), DeviceError> {
        drive!(self, driver => driver.admit_peer(peer), _ => Ok(()))
    }

    /// Takes all that has arrived from the device; of what arrives meanwhile something may be left. Returns `false` while a
    /// completion queue is full, as it takes nothing then.
    pub(crate) fn drain(&self) -> bool {
        drive!(self, driver => driver.drain(self.domain.fabric().clock()), _ => true)
    }

    /// Ends the connection with the only peer.
    pub(crate) fn end_connection(&self, peer: FiAddr) {
        drive!(self, driver => driver.end_connection(peer), _ => {});
    }

    /// Whether an operation that needs this access can use the buffer.
    #[inline]
    pub(crate) fn check_buffer(
        &self,
        buffer: &Buffer,
        wanted: LocalAccess,
    ) -> Result<(), StartError> {
        match self.local_registration {
            LocalRegistration::NotNeeded if !buffer.has_regions() => Ok(()),
            _ => match buffer.region() {
                // It is registered, whatever the domain requires.
                Some(slice) => slice.check_use(&self.domain, wanted),
                None => check_buffer(&self.domain, self.local_registration, buffer, wanted),
            },
        }
    }
}

/// Whether an operation of a domain that needs this access can use the buffer.
#[inline(never)]
pub(crate) fn check_buffer(
    domain: &Domain,
    local_registration: LocalRegistration,
    buffer: &Buffer,
    wanted: LocalAccess,
) -> Result<(), StartError> {
    if !buffer.satisfies(local_registration) {
        return Err(StartError::NotRegistered { length: buffer.len() });
    }
    buffer.check_regions(|slice| slice.check_use(domain, wanted))
}

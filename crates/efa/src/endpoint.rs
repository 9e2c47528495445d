//! Endpoints: from builder to close.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use efa_device::{Qkey, QueuePairOptions, Time};
use efa_rdm::{AtomicKind, AtomicOp, Config, Datatype, Level, Operands, Statistics};
use parking_lot::Mutex;

use crate::address::Address;
use crate::address_vector::{AddressVector, FiAddr};
use crate::buffer::{Buffer, ReceiveBuffer};
use crate::completion::{Refused, StartError};
use crate::completion_queue::{CompletionQueue, Reader};
use crate::counter::{Counted, Counter, Counters};
use crate::device::{AnyDriver, InPlaceDriver, aside, each, each_driver};
use crate::domain::Domain;
use crate::driver::{Bindings, Sources};
use crate::error::{Bound, CloseError, EnableError};
use crate::event::Event;
use crate::info::{Capabilities, EndpointAttributes, MessageOrder};
use crate::packet::Packet;
use crate::rma::{Operation, Rma};

/// Takes a turn at the driver of an endpoint, of whichever kind it is.
macro_rules! drive {
    ($shared:expr, $name:ident => $call:expr) => {
        each_driver!(&mut *$shared.driver.lock(), $name => $call)
    };
}

/// How an endpoint is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointOptions {
    /// Services that are enabled; others are refused.
    pub capabilities: Capabilities,
    /// What becomes of messages that come in.
    pub receiving: Receiving,
    /// Longest message in bytes that is sent; no limit of the protocol.
    pub max_message_size: u64,
    /// Number of the endpoint's life, part of its address; drawn if `None`.
    pub connid: Option<u32>,
    /// Secret of the tables that remote tags go into; drawn if `None`.
    pub hash_seed: Option<u64>,
    /// Sends that the device holds at a time.
    pub send_depth: usize,
    /// Receive buffers that the device holds at a time.
    pub receive_depth: usize,
    /// How often the device tries again when the receiver is not ready; 7 means for ever.
    pub rnr_retry: u8,
    /// Settings of the protocol engine. Its `hash_seed` is not used.
    pub protocol: Config,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        let queue_pair = QueuePairOptions::default();
        Self {
            capabilities: Capabilities::OFFERED,
            receiving: Receiving::default(),
            max_message_size: u64::MAX,
            connid: None,
            hash_seed: None,
            send_depth: queue_pair.send_depth,
            receive_depth: queue_pair.receive_depth,
            rnr_retry: queue_pair.rnr_retry,
            protocol: Config::default(),
        }
    }
}

/// What becomes of the messages that an endpoint receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Receiving {
    /// They are matched with the receives posted, in the order in which they were sent, and copied
    /// into their buffers. They have any length.
    #[default]
    Matched,
    /// They are handed over in the packets that they came in, and no byte is copied; the next message
    /// goes to the next receive, whoever sent it and when ([`Endpoint::receive_in_place`]).
    ///
    /// So they have no order and no tags, and fit one packet: a longer one, a tagged one and an atomic
    /// are dropped, and [events](Event::PacketDropped) tell. [`Capabilities::TAGGED`], `ATOMIC`,
    /// `MULTI_RECV` and `DIRECTED_RECV` can't be enabled with it.
    ///
    /// It takes the habits of a release that does this
    /// ([`Config::as_release`](crate::Config::as_release)): from 1.13 to 1.21, which ask peers for
    /// headers of one length, or from 1.22 to 2.5, which have them send without headers to a queue pair
    /// of its own. What becomes of messages whose senders don't comply, as those of old releases and the
    /// first ones, which were sent before the request came, is
    /// [`Config::unexpected_header`](crate::Config::unexpected_header).
    InPlace,
}

/// What takes a match or an order, and can't be had in place.
const MATCHED: Capabilities = Capabilities::TAGGED
    .union(Capabilities::ATOMIC)
    .union(Capabilities::MULTI_RECV)
    .union(Capabilities::DIRECTED_RECV);

/// Which operations of an endpoint complete on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Sends (`FI_TRANSMIT`).
    Transmit,
    /// Receives (`FI_RECV`).
    Receive,
    /// Sends and receives.
    Both,
}

/// An endpoint that is not enabled. It gets its completion queues and address vector now, and
/// can't transfer anything: that is what [`Endpoint`] is for.
///
/// ```compile_fail,E0599
/// # use efa::*;
/// let domain = Fabric::local(LocalOptions::default()).domain()?;
/// let disabled = domain.endpoint(EndpointOptions::default());
/// disabled.receive(Receive::untagged(), vec![0; 64], 1)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// And an enabled endpoint can't be bound to anything:
///
/// ```compile_fail,E0599
/// # use efa::*;
/// # fn f(endpoint: Endpoint, addresses: AddressVector) {
/// endpoint.bind_address_vector(&addresses);
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an endpoint does nothing before it is enabled"]
pub struct EndpointBuilder {
    domain: Domain,
    options: EndpointOptions,
    transmit: Option<CompletionQueue>,
    receive: Option<CompletionQueue>,
    addresses: Option<AddressVector>,
    counters: Counters,
    /// The first thing that was bound and should not have been.
    wrong: Option<EnableError>,
}

impl EndpointBuilder {
    pub(crate) fn new(domain: &Domain, options: EndpointOptions) -> Self {
        Self {
            domain: domain.clone(),
            options,
            transmit: None,
            receive: None,
            addresses: None,
            counters: Counters::default(),
            wrong: None,
        }
    }

    /// Binds the queue on which operations complete. Each direction needs one, also if nothing is
    /// ever sent or received: failures go there.
    pub fn bind_completion_queue(mut self, queue: &CompletionQueue, direction: Direction) -> Self {
        let other_domain = !queue.shared().domain.is(&self.domain);
        let mut bind = |place: &mut Option<CompletionQueue>, bound| {
            if other_domain {
                self.wrong.get_or_insert(EnableError::OtherDomain(bound));
            } else if place.replace(queue.clone()).is_some() {
                self.wrong.get_or_insert(EnableError::Twice(bound));
            }
        };
        if matches!(direction, Direction::Transmit | Direction::Both) {
            bind(&mut self.transmit, Bound::TransmitQueue);
        }
        if matches!(direction, Direction::Receive | Direction::Both) {
            bind(&mut self.receive, Bound::ReceiveQueue);
        }
        self
    }

    /// Binds the address vector that names the peers.
    pub fn bind_address_vector(mut self, addresses: &AddressVector) -> Self {
        if !addresses.shared().domain.is(&self.domain) {
            self.wrong.get_or_insert(EnableError::OtherDomain(Bound::AddressVector));
        } else if self.addresses.replace(addresses.clone()).is_some() {
            self.wrong.get_or_insert(EnableError::Twice(Bound::AddressVector));
        }
        self
    }

    /// Binds a counter of operations of some kinds. It counts beside the completion queues.
    pub fn bind_counter(mut self, counter: &Counter, kinds: Counted) -> Self {
        if !counter.is_of(&self.domain) {
            self.wrong.get_or_insert(EnableError::OtherDomain(Bound::Counter));
        } else if !self.counters.add(counter, kinds) {
            self.wrong.get_or_insert(EnableError::CountedTwice(kinds));
        }
        self
    }

    /// Makes the endpoint ready to send and receive.
    ///
    /// # Errors
    /// Something is missing, bound twice or of another domain; a setting makes no sense; the
    /// device refuses.
    pub fn enable(self) -> Result<Endpoint, EnableError> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let transmit = self.transmit.ok_or(EnableError::Missing(Bound::TransmitQueue))?;
        let receive = self.receive.ok_or(EnableError::Missing(Bound::ReceiveQueue))?;
        let addresses = self.addresses.ok_or(EnableError::Missing(Bound::AddressVector))?;
        let not_offered = self.options.capabilities - Capabilities::OFFERED;
        if !not_offered.is_empty() {
            return Err(EnableError::NotOffered(not_offered));
        }
        let options = self.options;
        let matched = options.capabilities & MATCHED;
        if options.receiving == Receiving::InPlace && !matched.is_empty() {
            return Err(EnableError::NotInPlace(matched));
        }
        let queue_pair = QueuePairOptions {
            qkey: Qkey(options.connid.unwrap_or_else(|| draw() as u32 & CONNID_MASK)),
            send_depth: options.send_depth,
            receive_depth: options.receive_depth,
            rnr_retry: options.rnr_retry,
        };
        let hash_seed = options.hash_seed.unwrap_or_else(draw);
        let config = Config { hash_seed, ..options.protocol };
        let capabilities = options.capabilities.enabled();
        let sources = match capabilities.contains(Capabilities::SOURCE) {
            true => Sources::Told,
            false => Sources::Untold,
        };
        let counters: Vec<Counter> = self.counters.iter().cloned().collect();
        let bindings = Bindings {
            transmit: transmit.shared().clone(),
            receive: receive.shared().clone(),
            addresses: addresses.shared().clone(),
            sources,
            counters: self.counters,
        };
        let device = self.domain.device();
        let mut driver = device.drive(queue_pair, config.clone(), options.receiving, bindings)?;
        let (address, inject_limit) =
            each_driver!(&mut driver, driver => (driver.address(), driver.inject_limit()));
        let mut attributes =
            EndpointAttributes::of(&config, inject_limit, options.max_message_size);
        if options.receiving == Receiving::InPlace {
            attributes.message_order = MessageOrder::Unordered;
        }
        let shared = Arc::new(Shared {
            address,
            capabilities,
            attributes,
            driver: Mutex::new(driver),
            domain: self.domain,
        });
        // One that counts several kinds moves the endpoint on as many times; that does no harm.
        for counter in &counters {
            counter.bind(Arc::downgrade(&shared));
        }
        addresses.shared().bind(Arc::downgrade(&shared));
        transmit.shared().bind(Arc::downgrade(&shared));
        if !Arc::ptr_eq(transmit.shared(), receive.shared()) {
            receive.shared().bind(Arc::downgrade(&shared));
        }
        Ok(Endpoint { shared, transmit, receive, addresses, counters })
    }
}

/// Connids have 31 bits, as those of libfabric.
const CONNID_MASK: u32 = u32::MAX >> 1;

/// A random number: the standard library seeds its hash tables from the operating system.
fn draw() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Where a message goes, and what goes along with it.
///
/// ```
/// use efa::{FiAddr, Message};
/// let untagged = Message::to(FiAddr(0));
/// let tagged_with_data = Message::to(FiAddr(0)).tagged(7).with_data(0xdada);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Message {
    to: FiAddr,
    tag: Option<u64>,
    cq_data: Option<u64>,
    level: Level,
}

impl Message {
    /// An untagged message to a peer.
    pub fn to(peer: FiAddr) -> Self {
        Self { to: peer, tag: None, cq_data: None, level: Level::Transmit }
    }

    /// Makes it a tagged message. Tagged receives take it, and no others.
    pub fn tagged(self, tag: u64) -> Self {
        Self { tag: Some(tag), ..self }
    }

    /// Passes data to the receiver's completion (`FI_REMOTE_CQ_DATA`).
    pub fn with_data(self, data: u64) -> Self {
        Self { cq_data: Some(data), ..self }
    }

    /// Has the send complete only when the message lies in the buffer of the receive that it matched
    /// (`FI_DELIVERY_COMPLETE`). A peer that doesn't know this, of a release before 1.12, makes it
    /// fail with [`OperationError::PeerLacks`](crate::OperationError::PeerLacks). An
    /// [injected](Endpoint::inject) message has no completion, so this means nothing to it.
    pub fn delivery_complete(self) -> Self {
        Self { level: Level::Delivery, ..self }
    }
}

/// Which messages a receive takes.
///
/// ```
/// use efa::{FiAddr, Receive};
/// let any_untagged = Receive::untagged();
/// let one_tag_of_anyone = Receive::tagged(7);
/// let one_tag_of_one_peer = Receive::tagged(7).from(FiAddr(0));
/// let sixteen_tags = Receive::masked(0x70, 0x0f);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Receive {
    tag: Option<(u64, u64)>,
    source: Option<FiAddr>,
}

impl Receive {
    /// Untagged messages.
    pub fn untagged() -> Self {
        Self { tag: None, source: None }
    }

    /// Messages with exactly this tag.
    pub fn tagged(tag: u64) -> Self {
        Self::masked(tag, 0)
    }

    /// Messages whose tag agrees with `tag` in all bits that are not in `ignore`.
    pub fn masked(tag: u64, ignore: u64) -> Self {
        Self { tag: Some((tag, ignore)), source: None }
    }

    /// Only those of one peer (`FI_DIRECTED_RECV`).
    pub fn from(self, peer: FiAddr) -> Self {
        Self { source: Some(peer), ..self }
    }
}

/// A posted receive, to be [cancelled](Endpoint::cancel). It means something to the endpoint that
/// gave it only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveId(efa_rdm::ReceiveId);

/// An enabled endpoint: messages of any size to any peer of the address vector, reliable and
/// matched in the order in which they were sent.
///
/// Operations return at once. Their completions come out of the bound queues, which are also what
/// moves them on. Any thread may call any method; calls of one endpoint take turns.
///
/// When it is dropped, operations under way complete with
/// [`OperationError::Cancelled`](crate::OperationError::Cancelled), so that their buffers come
/// back, after the device has let go of them. Dropping waits for nothing but the turns of other
/// threads; [`close`](Self::close) first delivers what peers wait for.
pub struct Endpoint {
    shared: Arc<Shared>,
    // What moves it on, as long as this handle is there.
    transmit: CompletionQueue,
    receive: CompletionQueue,
    addresses: AddressVector,
    counters: Vec<Counter>,
}

impl Endpoint {
    /// Where peers reach this endpoint.
    #[must_use]
    pub fn address(&self) -> Address {
        self.shared.address
    }

    /// What it is like.
    #[must_use]
    pub fn attributes(&self) -> &EndpointAttributes {
        &self.shared.attributes
    }

    /// Services that are enabled.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }

    /// The domain it is of.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.shared.domain
    }

    /// Starts to send a message. It completes when every packet of it lies in the memory of the
    /// peer's device (`FI_TRANSMIT_COMPLETE`).
    ///
    /// # Errors
    /// The buffer comes back with the reason.
    pub fn send(
        &self,
        message: Message,
        buffer: impl Into<Buffer>,
        context: u64,
    ) -> Result<(), Refused> {
        let buffer = buffer.into();
        if let Err(error) = self.check_send(&message, buffer.len()) {
            return Err(Refused { error, buffer });
        }
        if let Err(error) = self.check_domain(&buffer) {
            return Err(Refused { error, buffer });
        }
        let Message { to, tag, cq_data, level } = message;
        drive!(self.shared, driver => driver.send(to, tag, cq_data, level, buffer, context))
    }

    /// Sends a short message by copy: `bytes` may be used again at once. It has no context, and a
    /// completion only if it fails (`FI_INJECT`).
    ///
    /// # Errors
    /// As for [`send`](Self::send), and if it is longer than
    /// [`EndpointAttributes::inject_size`].
    pub fn inject(&self, message: Message, bytes: &[u8]) -> Result<(), StartError> {
        self.check_send(&message, bytes.len())?;
        drive!(self.shared, driver => driver.inject(message.to, message.tag, message.cq_data, bytes))
    }

    /// Posts a buffer for one message.
    ///
    /// # Errors
    /// The buffer comes back with the reason.
    pub fn receive(
        &self,
        receive: Receive,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        let ReceiveBuffer(buffer) = buffer.into();
        if let Err(error) = self.check_receive(&receive).and_then(|()| self.check_domain(&buffer)) {
            return Err(Refused { error, buffer });
        }
        let Receive { tag, source } = receive;
        drive!(self.shared, driver => driver.receive(source, tag, buffer, context)).map(ReceiveId)
    }

    /// Posts a buffer for many untagged messages, of one peer or of anyone (`FI_MULTI_RECV`).
    ///
    /// Each message takes the next bytes of the buffer and completes with them, as
    /// [`Kind::MultiReceive`](crate::Kind::MultiReceive). When less than
    /// [`EndpointAttributes::min_multi_receive`] bytes are left, the rest comes back as
    /// [`Kind::Released`](crate::Kind::Released).
    ///
    /// While the queue for receives is full of such messages, the endpoint rests, sends included,
    /// until that queue is read.
    ///
    /// # Errors
    /// The buffer comes back with the reason.
    pub fn receive_many(
        &self,
        source: Option<FiAddr>,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        let ReceiveBuffer(buffer) = buffer.into();
        let receive = Receive { tag: None, source };
        let checked = self
            .require(Capabilities::MULTI_RECV)
            .and_then(|()| self.check_receive(&receive))
            .and_then(|()| self.check_domain(&buffer));
        if let Err(error) = checked {
            return Err(Refused { error, buffer });
        }
        drive!(self.shared, driver => driver.receive_many(source, buffer, context)).map(ReceiveId)
    }

    /// A packet for [`receive_in_place`](Self::receive_in_place).
    ///
    /// # Errors
    /// [`StartError::NotInPlace`], or the device can't register more memory.
    pub fn packet(&self) -> Result<Packet, StartError> {
        match &mut *self.shared.driver.lock() {
            AnyDriver::InPlace(driver) => {
                each!(InPlaceDriver in &mut **driver, driver => driver.packet())
            }
            _ => Err(StartError::NotInPlace),
        }
    }

    /// Posts a receive of one message of anyone, in exchange for a packet of this domain, at an endpoint
    /// that [receives in place](Receiving::InPlace).
    ///
    /// Its completion has the message in a packet, which need not be the same one:
    /// [`Buffer::as_slice`] shows it, and [`Buffer::into_packet`] gives the packet for the next receive.
    /// If the receive fails, the packet stays with the endpoint.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use efa::*;
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
    /// let bob = endpoint(EndpointOptions {
    ///     capabilities: Capabilities::MSG | Capabilities::SOURCE,
    ///     receiving: Receiving::InPlace,
    ///     protocol: Config::as_release(Release::V1_20),
    ///     ..EndpointOptions::default()
    /// })?;
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
    /// The packet comes back with the reason.
    pub fn receive_in_place(&self, packet: Packet, context: u64) -> Result<(), Refused> {
        let checked = self.require(Capabilities::MSG | Capabilities::RECV);
        let checked =
            checked.and_then(|()| match self.shared.domain.device().owns(packet.memory()) {
                true => Ok(()),
                false => Err(StartError::OtherDomain),
            });
        if let Err(error) = checked {
            return Err(Refused { error, buffer: packet.into() });
        }
        match &mut *self.shared.driver.lock() {
            AnyDriver::InPlace(driver) => {
                each!(InPlaceDriver in &mut **driver, driver => driver.receive_in_place(packet, context))
            }
            _ => Err(Refused { error: StartError::NotInPlace, buffer: packet.into() }),
        }
    }

    /// Starts to write to memory of a peer. It completes when the bytes lie in the memory of the
    /// peer's device, or there already if the device writes by itself; the peer gets a completion
    /// only if [data](Rma::with_data) goes along. Writes have no order.
    ///
    /// A write by packets to memory that the peer does not offer completes all the same: the
    /// protocol has no answer for that. [`Rma::delivery_complete`] makes sure.
    ///
    /// # Errors
    /// The buffer comes back with the reason.
    pub fn write(&self, rma: Rma, buffer: impl Into<Buffer>, context: u64) -> Result<(), Refused> {
        let buffer = buffer.into();
        let checked = self.require(Capabilities::RMA).and_then(|()| self.check_domain(&buffer));
        if let Err(error) = checked {
            return Err(Refused { error, buffer });
        }
        let Rma { peer, remote, cq_data, level } = rma;
        drive!(self.shared, driver => driver.write(peer, remote, cq_data, level, buffer, context))
    }

    /// Starts to read memory of a peer. It completes when all bytes are in the buffer. Reads have no
    /// order.
    ///
    /// # Errors
    /// The buffer comes back with the reason.
    pub fn read(
        &self,
        rma: Rma,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<(), Refused> {
        let ReceiveBuffer(buffer) = buffer.into();
        let checked = self.require(Capabilities::RMA).and_then(|()| self.check_domain(&buffer));
        if let Err(error) = checked {
            return Err(Refused { error, buffer });
        }
        drive!(self.shared, driver => driver.read(rma.peer, rma.remote, buffer, context))
    }

    /// Starts an atomic on memory of a peer: each element of it is changed at once as far as other
    /// atomics see. It has its turn among the messages to the peer, and completes as a
    /// [write](Self::write) does.
    ///
    /// # Errors
    /// There is no such atomic, its lengths differ or are more than a packet holds
    /// ([`atomic_limit`](Self::atomic_limit)), or it can't be started now.
    pub fn atomic(&self, rma: Rma, operation: Operation, context: u64) -> Result<(), StartError> {
        let Operation { op, datatype, operand, comparand } = operation;
        if comparand.is_some() {
            let kind = AtomicKind::Write;
            return Err(efa_rdm::StartError::NoSuchAtomic { kind, op, datatype }.into());
        }
        let operands = Operands::Write { operand: operand.into() };
        let started = self.start_atomic(rma, (op, datatype), operands, context);
        started.map_err(|refused| refused.error)
    }

    /// Starts an atomic that brings the previous values back, into a buffer of the length of the
    /// remote memory. With a comparand it changes only elements where that says so.
    ///
    /// # Errors
    /// As for [`atomic`](Self::atomic); the buffer comes back.
    pub fn fetch_atomic(
        &self,
        rma: Rma,
        operation: Operation,
        fetched: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<(), Refused> {
        let ReceiveBuffer(fetched) = fetched.into();
        let Operation { op, datatype, operand, comparand } = operation;
        let operand = operand.into();
        let operands = match comparand {
            None => Operands::Fetch { operand, fetched },
            Some(comparand) => Operands::Compare { operand, comparand: comparand.into(), fetched },
        };
        self.start_atomic(rma, (op, datatype), operands, context)
    }

    /// Most bytes of the target of an atomic.
    #[must_use]
    pub fn atomic_limit(&self, kind: AtomicKind) -> usize {
        drive!(self.shared, driver => driver.atomic_limit(kind))
    }

    fn start_atomic(
        &self,
        rma: Rma,
        how: (AtomicOp, Datatype),
        operands: Operands<Buffer>,
        context: u64,
    ) -> Result<(), Refused> {
        let fetched = match &operands {
            Operands::Write { .. } => None,
            Operands::Fetch { fetched, .. } | Operands::Compare { fetched, .. } => Some(fetched),
        };
        let checked = self
            .require(Capabilities::ATOMIC)
            .and_then(|()| fetched.map_or(Ok(()), |fetched| self.check_domain(fetched)));
        if let Err(error) = checked {
            return Err(Refused { error, buffer: operands.into_fetched().unwrap_or_default() });
        }
        drive!(self.shared, driver => driver.atomic(rma.peer, rma.remote, how, rma.level, operands, context))
    }

    /// Cancels a receive that no message has matched: it completes with
    /// [`OperationError::Cancelled`](crate::OperationError::Cancelled). Tells whether there was
    /// such a receive.
    pub fn cancel(&self, receive: ReceiveId) -> bool {
        drive!(self.shared, driver => driver.cancel(receive.0))
    }

    /// The next thing that happened outside operations.
    #[must_use]
    pub fn event(&self) -> Option<Event> {
        drive!(self.shared, driver => driver.event())
    }

    /// Counts since the endpoint was enabled.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        drive!(self.shared, driver => driver.statistics())
    }

    /// Finishes the sends under way and delivers what else peers wait for, then drops the endpoint.
    /// Receives complete with [`OperationError::Cancelled`](crate::OperationError::Cancelled).
    ///
    /// # Errors
    /// Not all could be delivered in time. The endpoint is closed nevertheless, and sends complete
    /// as cancelled too.
    pub fn close(self, timeout: Duration) -> Result<(), CloseError> {
        let clock = self.shared.domain.fabric().clock();
        let deadline = clock.now() + timeout;
        let mut looks = 0_u32;
        loop {
            self.shared.progress();
            if drive!(self.shared, driver => driver.is_quiet()) {
                return Ok(());
            }
            if clock.now() >= deadline {
                return Err(CloseError { timeout });
            }
            looks = looks.wrapping_add(1);
            clock.pass(self.shared.next_timeout().map(|next| next.min(deadline)), looks);
        }
    }

    fn require(&self, needed: Capabilities) -> Result<(), StartError> {
        match needed - self.shared.capabilities {
            none if none.is_empty() => Ok(()),
            missing => Err(StartError::Disabled(missing)),
        }
    }

    fn check_send(&self, message: &Message, length: usize) -> Result<(), StartError> {
        let service = match message.tag {
            Some(_) => Capabilities::TAGGED,
            None => Capabilities::MSG,
        };
        self.require(service | Capabilities::SEND)?;
        let (length, limit) = (length as u64, self.shared.attributes.max_message_size);
        if length > limit {
            return Err(StartError::TooLong { length, limit });
        }
        Ok(())
    }

    fn check_receive(&self, receive: &Receive) -> Result<(), StartError> {
        let service = match receive.tag {
            Some(_) => Capabilities::TAGGED,
            None => Capabilities::MSG,
        };
        let source = match receive.source {
            Some(_) => Capabilities::DIRECTED_RECV,
            None => Capabilities::empty(),
        };
        self.require(service | source | Capabilities::RECV)
    }

    fn check_domain(&self, buffer: &Buffer) -> Result<(), StartError> {
        match buffer.region() {
            Some(slice) if !slice.region().domain().is(&self.shared.domain) => {
                Err(StartError::OtherDomain)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // When nobody else has a handle the queue pair ends with this one, and not when threads that
        // poll happen to let go of theirs all at once.
        self.transmit.shared().unbind(&self.shared);
        self.receive.shared().unbind(&self.shared);
        self.addresses.shared().unbind(&self.shared);
        for counter in &self.counters {
            counter.unbind(&self.shared);
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.shared.address).finish()
    }
}

/// An endpoint as queues and address vectors know it.
#[derive(Debug)]
pub(crate) struct Shared {
    domain: Domain,
    address: Address,
    capabilities: Capabilities,
    attributes: EndpointAttributes,
    driver: Mutex<AnyDriver>,
}

impl Shared {
    pub(crate) fn progress(&self) {
        // The clock is read under the lock, so that the engine's time never goes back.
        drive!(self, driver => driver.progress(self.domain.fabric().clock()));
    }

    /// Moves the operations on until one ends whose completion is for this reader, who is given that.
    /// Tells whether one did.
    #[inline]
    pub(crate) fn poll(&self, reader: Reader<'_>) -> bool {
        let clock = self.domain.fabric().clock();
        drive!(self, driver => driver.poll(clock, reader))
    }

    pub(crate) fn next_timeout(&self) -> Option<Time> {
        drive!(self, driver => driver.next_timeout())
    }

    pub(crate) fn welcome(&self, peers: &[(FiAddr, Address)]) {
        drive!(self, driver => driver.welcome(peers));
    }

    pub(crate) fn forget(&self, peer: FiAddr, address: &Address) {
        drive!(self, driver => driver.forget(peer, address));
    }
}

//! The endpoint: its parts and its public calls.

use std::fmt;
use std::sync::Arc;

use efa_device::{QueuePair, Rdma, Time};
use efa_handshake::Extras;
use efa_match::{Cancelled, Forgotten, Pattern, Posted as Posting};
use efa_proto::RawAddress;

use crate::completion::{Completion, Level, OperationError, Refused, StartError};
use crate::config::{Config, ConfigError, inject_limit};
use crate::core::{Core, raw_address};
use crate::eager::Eager;
use crate::event::{Event, Events};
use crate::ids::{PeerId, ReceiveId};
use crate::in_place::InPlace;
use crate::inbound::Inbound;
use crate::matching::{
    Matching, Posted, ReceiveVacancy, Waiting, is_used_up, pattern, tagged_matcher,
};
use crate::memory::{KeyedRegions, Memory};
use crate::operations::{Operations, Send, SendRole};
use crate::payload::Payload;
use crate::peer::{PeerStatus, Peers};
use crate::schedule::Schedule;
use crate::statistics::Statistics;
use crate::transmit::Transmit;
use crate::work::abandon;

/// Device completions that are handled before other work that is due.
pub(crate) const PROGRESS_BUDGET: u32 = 64;

/// A reliable datagram endpoint: ordered messages of any size over a [`QueuePair`].
///
/// It is a state machine: calls start operations, [`poll`](Self::poll) moves them on and returns
/// their completions. It has no threads, no clock and no locks. `B` is the kind of buffer that
/// operations take and completions give back.
pub struct Endpoint<Q: QueuePair, B> {
    pub(crate) matching: Matching<Q, B>,
    /// `None`, unless the queue pair is an [`InPlaceQueue`](crate::InPlaceQueue).
    pub(crate) in_place: Option<Box<InPlace<Q>>>,
    pub(crate) inbound: Inbound<Q::Packet>,
    pub(crate) trim_at: Time,
    /// Device completions that may still be handled before other work that is due.
    pub(crate) budget: u32,
}

/// Prints the address, and nothing of what is under way.
impl<Q: QueuePair, B> fmt::Debug for Endpoint<Q, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &raw_address(&self.matching.ops.core.local))
            .finish_non_exhaustive()
    }
}

/// A message to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<B> {
    /// The receiver.
    pub peer: PeerId,
    /// The tag of a tagged message.
    pub tag: Option<u64>,
    /// 64 bits of CQ data for the receiver's completion.
    pub cq_data: Option<u64>,
    /// What has happened when the send completes. Injected messages have no completion.
    pub level: Level,
    /// The bytes.
    pub buffer: B,
    /// Comes back with the completion.
    pub context: u64,
}

/// What a posted receive accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// Untagged messages.
    Untagged {
        /// Of one sender, or of any.
        source: Option<PeerId>,
    },
    /// Tagged messages.
    Tagged {
        /// Of one sender, or of any.
        source: Option<PeerId>,
        /// The tag.
        tag: u64,
        /// Bits of the tag that are ignored.
        ignore: u64,
    },
}

impl Accept {
    /// Whether it accepts tagged messages, and which.
    pub(crate) fn pattern(self) -> (bool, Pattern) {
        match self {
            Self::Untagged { source } => (false, pattern(source, 0, u64::MAX)),
            Self::Tagged { source, tag, ignore } => (true, pattern(source, tag, ignore)),
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// Creates an endpoint on a queue pair. The queue pair's key becomes the endpoint's connid.
    ///
    /// # Errors
    /// A setting is out of range, or doesn't suit the device.
    pub fn new(queue_pair: Q, config: Config) -> Result<Self, ConfigError> {
        Self::assemble(queue_pair, None, config)
    }

    /// Creates an endpoint, with a second queue pair for messages in place if there is one.
    pub(crate) fn assemble(
        mut queue_pair: Q,
        user: Option<Q>,
        mut config: Config,
    ) -> Result<Self, ConfigError> {
        let attributes = queue_pair.attributes();
        config.check(attributes.mtu)?;
        config.profile.extras.remove(missing(attributes.rdma));
        let in_place = InPlace::new(&mut config, user)?;
        let most = config.max_receive_buffers.min(attributes.max_receive);
        let min_read = config.min_read_on(attributes);
        let tagged = tagged_matcher(&mut queue_pair, config.hash_seed.0);
        let inbound = Inbound::new(config.min_receive_buffers, most);
        let trim_at = Time::ZERO + config.trim_interval;
        let user_recv_qp = in_place.as_ref().and_then(|in_place| in_place.user_recv_qp());
        let core = Core {
            local: queue_pair.address(),
            transmit: Transmit::new(queue_pair),
            peers: Peers::new(config.hash_seed.0),
            schedule: Schedule::new(),
            events: Events::default(),
            statistics: Statistics::default(),
            ended: Vec::new(),
            user_recv_qp,
            now: Time::ZERO,
            lack: None,
            keyed: None,
            min_read,
            config,
        };
        let matching = Matching::new(Operations::new(core), tagged);
        let mut endpoint = Self { matching, in_place, inbound, trim_at, budget: PROGRESS_BUDGET };
        endpoint.split_headers();
        endpoint.refill();
        Ok(endpoint)
    }

    #[inline(always)]
    pub(crate) fn core(&self) -> &Core<Q, B> {
        &self.matching.ops.core
    }

    #[inline(always)]
    pub(crate) fn core_mut(&mut self) -> &mut Core<Q, B> {
        &mut self.matching.ops.core
    }

    #[inline(always)]
    pub(crate) fn schedule(&self) -> &Schedule<B> {
        &self.core().schedule
    }

    #[inline(always)]
    pub(crate) fn device_mut(&mut self) -> &mut Q {
        &mut self.core_mut().transmit.device
    }

    /// From now on peers name local memory by keys that the application chose. The device knows none of them,
    /// so the endpoint announces no RDMA, and what peers write and read goes in packets. To be called before
    /// anything is sent or received.
    pub fn use_keys(&mut self, keyed: Arc<dyn KeyedRegions<Q::Region>>) {
        let core = self.core_mut();
        core.config.profile.extras.remove(missing(Rdma::NONE));
        core.keyed = Some(keyed);
    }

    /// Where this endpoint can be reached (section 1.4).
    #[must_use]
    pub fn address(&self) -> RawAddress {
        raw_address(&self.core().local)
    }

    /// The peer with an address, made known if it was not.
    ///
    /// If another peer has the address's queue pair, that peer is gone: it restarted. The address
    /// of a peer that is gone makes a new peer.
    ///
    /// # Errors
    /// The device can't address it: the GID is zero, or there are too many interfaces.
    pub fn insert_peer(&mut self, address: RawAddress) -> Result<PeerId, efa_device::DeviceError> {
        match self.find_peer(&address) {
            Some(known) => Ok(known),
            None => {
                let added = self.core_mut().add_peer(address);
                self.settle();
                added
            }
        }
    }

    /// Removes a peer: its operations fail with [`OperationError::PeerRemoved`], and its packets
    /// are dropped. Receives from this peer alone stay posted until they are cancelled, but match
    /// nothing, even if the address is inserted again: that makes another peer.
    ///
    /// The peer may remove this endpoint too, and start anew. So a message with its address and the first message
    /// id discovers it, unless a message of it was arriving when it was removed. Other packets don't, and are dropped: insert
    /// the peer again before it sends a second message, or an operation that waits for the HANDSHAKE.
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.core_mut().end_peer(peer, OperationError::PeerRemoved);
        self.settle();
    }

    /// The address of a peer.
    #[must_use]
    pub fn peer_address(&self, peer: PeerId) -> Option<RawAddress> {
        self.core().peers.address(peer)
    }

    /// The peer with an address, if it is known and not gone.
    #[must_use]
    pub fn find_peer(&self, address: &RawAddress) -> Option<PeerId> {
        self.core()
            .peers
            .by_address(address)
            .filter(|peer| self.core().peers.status_of(*peer) == PeerStatus::Live)
    }

    /// Whether the latest peer with an address is gone: what it still sends is dropped.
    #[must_use]
    pub fn is_gone(&self, address: &RawAddress) -> bool {
        let peers = &self.core().peers;
        let known = peers.by_address(address).map(|peer| peers.status_of(peer));
        known == Some(PeerStatus::Gone)
    }

    /// The live peer on the queue pair of an address that has another connid and has sent a packet: it ends when that
    /// address is [inserted](Self::insert_peer).
    #[must_use]
    pub fn find_other_incarnation(&self, address: &RawAddress) -> Option<PeerId> {
        self.core().peers.heard_other_incarnation(address)
    }

    /// The features that a peer announced, if its HANDSHAKE has arrived.
    #[must_use]
    pub fn peer_extras(&self, peer: PeerId) -> Option<Extras> {
        self.core().peers.active(peer)?.handshake.extras()
    }

    /// Whether a packet of a live peer was received from it, or sent to it.
    #[must_use]
    pub fn has_exchanged(&self, peer: PeerId) -> bool {
        let peers = &self.core().peers;
        peers.status_of(peer) == PeerStatus::Live && peers.active(peer).is_some()
    }

    /// Starts to send a message.
    ///
    /// # Errors
    /// The buffer comes back if the peer is unknown or gone, or too many sends are under way.
    pub fn send(&mut self, message: Message<B>) -> Result<(), Refused<B>> {
        let length = message.buffer.length();
        // A message that the receiver may read or has to confirm is an operation.
        if message.level == Level::Transmit
            && self.core().min_read.excludes(length, || message.buffer.is_mapped())
            && self.matching.ops.check_sends().is_ok()
            && let Ok(length) = usize::try_from(length)
        {
            if length >= self.core().transmit.payloads_pay_from {
                return self.send_long_packet(message, length);
            }
            let Message { peer, tag, cq_data, ref buffer, .. } = message;
            let eager = Eager { tag, cq_data, length };
            let written =
                self.core_mut().write_at_once(peer, &eager, |bytes| buffer.read(0, bytes));
            if let Some(packet) = written {
                let Message { peer, tag, context, buffer, .. } = message;
                if !self.matching.ops.post_single_packet(
                    packet,
                    peer,
                    (tag, context, length, buffer),
                ) {
                    self.settle();
                }
                return Ok(());
            }
        }
        self.send_later(message)
    }

    /// Starts a message whose bytes the device [copies](QueuePair::post_send_with) if it fits a packet.
    #[inline(never)]
    fn send_long_packet(&mut self, message: Message<B>, length: usize) -> Result<(), Refused<B>> {
        let eager = Eager { tag: message.tag, cq_data: message.cq_data, length };
        let Some(packet) = self.core_mut().write_at_once(message.peer, &eager, |_| {}) else {
            return self.send_later(message);
        };
        let Message { peer, tag, context, buffer, .. } = message;
        let message = (tag, context, length, buffer);
        if !self.matching.ops.post_long_packet(packet, peer, message) {
            self.settle();
        }
        Ok(())
    }

    /// Starts a message that the receiver reads, one of several packets, or one that has to wait.
    #[inline(never)]
    fn send_later(&mut self, message: Message<B>) -> Result<(), Refused<B>> {
        let message = match self.matching.ops.send_longread_at_once(message) {
            Ok(()) => {
                self.settle();
                return Ok(());
            }
            Err(message) => message,
        };
        let Message { peer, tag, cq_data, level, buffer, context } = message;
        if let Err(error) =
            self.core_mut().check_peer(peer).and_then(|()| self.matching.ops.check_new_send())
        {
            return Err(Refused { error, buffer });
        }
        let length = buffer.length();
        let mut send = Send::new(peer, SendRole::Message, Memory::Buffer(buffer), length, context);
        (send.tag, send.cq_data, send.level) = (tag, cq_data, level);
        self.matching.ops.start_ordered(send);
        self.settle();
        Ok(())
    }

    /// Sends a short message by copy: its bytes may be reused at once, and it has a completion
    /// only if it fails.
    ///
    /// # Errors
    /// As [`send`](Self::send), or the message is longer than [`inject_limit`](Self::inject_limit).
    pub fn inject(&mut self, message: Message<&[u8]>) -> Result<(), StartError> {
        let Message { peer, tag, cq_data, buffer, .. } = message;
        let limit = self.inject_limit();
        if buffer.len() > limit {
            return Err(StartError::TooLongToInject { length: buffer.len(), limit });
        }
        let injected = self.matching.ops.inject_eager(peer, tag, cq_data, buffer);
        self.settle();
        injected
    }

    /// Most bytes that can be injected.
    #[must_use]
    pub fn inject_limit(&self) -> usize {
        inject_limit(self.core().transmit.mtu())
    }

    /// Posts a receive for one message.
    ///
    /// # Errors
    /// The buffer comes back if too many receives are posted.
    pub fn receive(
        &mut self,
        accept: Accept,
        buffer: B,
        context: u64,
    ) -> Result<ReceiveId, Refused<B>> {
        if let Err(error) = self.matching.check_receives() {
            return self.receive_refused(error, accept, (buffer, context));
        }
        match accept {
            Accept::Untagged { source } => {
                let posted = Posted { context, buffer, tag: 0 };
                self.post(false, pattern(source, 0, u64::MAX), posted)
            }
            Accept::Tagged { source, tag, ignore } => {
                let posted = Posted { context, buffer, tag };
                self.post(true, pattern(source, tag, ignore), posted)
            }
        }
    }

    /// Forced inline, so that each kind of receive is compiled for its own matcher.
    #[inline(always)]
    fn post(
        &mut self,
        tagged: bool,
        pattern: Pattern,
        posted: Posted<B>,
    ) -> Result<ReceiveId, Refused<B>> {
        if let Some(vacancy) = self.matching.vacancy(tagged, &pattern) {
            return Ok(vacancy.fill_with(posted));
        }
        self.receive_otherwise(tagged, pattern, posted)
    }

    /// A vacancy for a receive that waits for its message. To fill it does what [`receive`](Self::receive) does in most
    /// cases; the buffer is moved only then. `None`: call that, as the receive may match an unexpected message, a table
    /// must grow, or too many receives are posted.
    #[inline(always)]
    pub fn vacancy(&mut self, accept: Accept) -> Option<ReceiveVacancy<'_, B>> {
        self.matching.check_receives().ok()?;
        match accept {
            Accept::Untagged { source } => {
                self.matching.vacancy(false, &pattern(source, 0, u64::MAX))
            }
            Accept::Tagged { source, tag, ignore } => {
                self.matching.vacancy(true, &pattern(source, tag, ignore))
            }
        }
    }

    /// Posts a receive that may match an unexpected message, or for which a table must grow. It
    /// never fails; it returns its caller's result, so that the caller keeps no registers.
    #[inline(never)]
    fn receive_otherwise(
        &mut self,
        tagged: bool,
        pattern: Pattern,
        posted: Posted<B>,
    ) -> Result<ReceiveId, Refused<B>> {
        let waiting = self.matching.begin_wait(posted);
        match self.matching.matcher(tagged).post(pattern, waiting) {
            Posting::Waiting(post) => Ok(ReceiveId { post, tagged }),
            Posting::Matched(waiting, message) => {
                let posted = self.matching.end_wait(waiting);
                self.matching.receive_unexpected(posted.target(tagged), message);
                self.settle();
                Ok(ReceiveId::MATCHED)
            }
        }
    }

    /// Posts a multi-receive buffer for untagged messages. Each message takes a part of the
    /// buffer, which comes back with the message's completion; when less than
    /// [`Config::min_multi_receive`] is left, the rest comes back as [`Completion::Released`].
    ///
    /// # Errors
    /// The buffer comes back if too many receives are posted.
    pub fn receive_many(
        &mut self,
        source: Option<PeerId>,
        mut buffer: B,
        context: u64,
    ) -> Result<ReceiveId, Refused<B>> {
        let (_, pattern) = Accept::Untagged { source }.pattern();
        let has_ended = self.matching.connection_has_ended();
        if let Err(error) = self.matching.check_receives()
            && !has_ended
        {
            return Err(Refused { error, buffer });
        }
        while let Some(message) = self.matching.matcher(false).take(&pattern) {
            self.matching.receive_unexpected_part(&mut buffer, context, message);
            self.settle();
            if is_used_up(&buffer, self.core().config.min_multi_receive) {
                self.core_mut().schedule.complete(Completion::Released { context, buffer });
                return Ok(ReceiveId::MATCHED);
            }
        }
        let waiting = self.matching.begin_wait(Posted { context, buffer, tag: 0 });
        if has_ended {
            self.matching.receive_failed(waiting, false, self.core().end_of_receives());
            return Ok(ReceiveId::MATCHED);
        }
        let post = self.matching.matcher(false).post_lasting(pattern, waiting);
        Ok(ReceiveId { post, tagged: false })
    }

    /// Sets [`Config::min_multi_receive`], for what arrives from now on. 0 means 1.
    pub fn set_min_multi_receive(&mut self, bytes: u64) {
        self.core_mut().config.min_multi_receive = bytes.max(1);
    }

    /// Cancels a receive that has matched no message. It completes with
    /// [`OperationError::Cancelled`]. Returns whether there was such a receive.
    pub fn cancel(&mut self, receive: ReceiveId) -> bool {
        let ReceiveId { post, tagged } = receive;
        match self.matching.matcher(tagged).cancel(post) {
            Cancelled::Now(waiting) => {
                self.matching.receive_failed(waiting, tagged, OperationError::Cancelled);
                true
            }
            // The device holds it: it ends when the device has let go of it, or matched it.
            Cancelled::Pending => true,
            Cancelled::NotPosted => false,
        }
    }

    /// Cancels a receive that was posted with this context and has matched no message, as
    /// [`cancel`](Self::cancel) does. If there are several, it is the one posted first of the tagged ones, or
    /// if there is none, of the untagged ones. It looks at all posted receives.
    pub fn cancel_context(&mut self, context: u64) -> bool {
        let found = [true, false].into_iter().find_map(|tagged| {
            let is_it = |waiting: &Waiting<B>| waiting.context() == context;
            let post = self.matching.matcher(tagged).find_receive(is_it)?;
            Some(ReceiveId { post, tagged })
        });
        found.is_some_and(|receive| self.cancel(receive))
    }

    /// Ends every operation with [`OperationError::Closed`], so that all buffers come back.
    ///
    /// Peers don't learn of it, so call this before the endpoint is dropped. Until it is, the
    /// device may still read or write registered memory that comes back.
    pub fn end_operations(&mut self) {
        self.matching.end_posted_receives(OperationError::Closed);
        debug_assert_eq!(self.matching.waiting, 0);
        for id in self.matching.ops.receives.find(|_| true) {
            self.matching.ops.end_receive(id, Some(OperationError::Closed));
        }
        self.matching.ops.end_single_reads();
        for id in self.matching.ops.sends.find(|_| true) {
            self.matching.ops.fail_send(id, OperationError::Closed);
        }
        if let Some(in_place) = self.in_place.as_deref_mut() {
            in_place.end_receives(OperationError::Closed);
        }
        let core = self.core_mut();
        let packets = core.transmit.records_mut().chain(core.peers.queued_packets_mut());
        for (peer, message) in abandon(packets) {
            self.matching.ops.single_packet_ended(peer, message, Err(OperationError::Closed));
        }
    }

    /// Whether [`poll_completion`](Self::poll_completion) would return one.
    #[inline]
    #[must_use]
    pub fn has_completions(&self) -> bool {
        self.core().schedule.has_completions()
    }

    /// Takes the next completion.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion<B>> {
        self.core_mut().schedule.next_completion()
    }

    /// Why the last operation was refused with [`StartError::Lacking`]; `None` again when one has begun
    /// since.
    #[must_use]
    pub fn lack(&self) -> Option<&efa_device::DeviceError> {
        self.core().lack.as_deref()
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.core_mut().events.pop()
    }

    /// How many events there were since the endpoint was created, taken and lost ones too.
    #[must_use]
    pub fn event_count(&self) -> u64 {
        self.core().events.count()
    }

    /// Counters since the endpoint was created.
    pub fn statistics(&mut self) -> &Statistics {
        self.core_mut().statistics.events_lost = self.core().events.lost();
        &self.core().statistics
    }

    /// The queue pair under the endpoint.
    #[must_use]
    pub fn queue_pair(&self) -> &Q {
        &self.core().transmit.device
    }

    /// Whether nothing waits to be sent, no packet is in flight but HANDSHAKEs and those of messages that have failed, and
    /// no peer is reading or writing memory of this endpoint. If an endpoint is closed before, its peers may wait for
    /// packets in vain. The exceptions may never be taken: by a peer that needs nothing more, or one that was removed
    /// because it stands still.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let peers = &self.core().peers;
        let is_gone = |peer| peers.status_of(peer) == PeerStatus::Gone;
        self.core().transmit.is_quiet(is_gone)
            && self.matching.ops.waiting_transfers.is_empty()
            && !self.core().schedule.has_pausing()
            && self.core().peers.all_clear()
    }

    /// Packet buffers of the endpoint: sending, receiving, and kept for later.
    #[must_use]
    pub fn packets_held(&self) -> PacketsHeld {
        PacketsHeld {
            sending: self.core().transmit.in_flight(),
            send_pool: self.core().transmit.pooled(),
            posted: self.inbound.posted(),
            receive_pool: self.inbound.spare(),
            held: self.matching.held.len(),
            unexpected_bytes: self.matching.unexpected.bytes,
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    pub(crate) fn check_sends(&self) -> Result<(), StartError> {
        let limit = self.core.config.max_sends;
        if self.own_sends() >= limit { Err(StartError::Busy { limit }) } else { Ok(()) }
    }

    /// Checks that another send operation may start.
    pub(crate) fn check_new_send(&self) -> Result<(), StartError> {
        self.check_sends().and_then(|()| self.sends.check())
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Matching<Q, B> {
    /// Ends all receives that are posted, and drops the messages that matched one which the device holds.
    pub(crate) fn end_posted_receives(&mut self, error: OperationError) {
        for tagged in [true, false] {
            let Forgotten { receives, messages } = self.matcher(tagged).drain_receives();
            for waiting in receives {
                self.receive_failed(waiting, tagged, error);
            }
            for message in messages {
                self.forget_message(message);
                self.messages.try_remove(message);
            }
        }
    }

    pub(crate) fn check_receives(&self) -> Result<(), StartError> {
        if Q::IN_PLACE {
            return Err(StartError::InPlaceOnly);
        }
        self.check_reads()
    }

    pub(crate) fn check_reads(&self) -> Result<(), StartError> {
        let limit = self.limit;
        let busy = self.waiting + self.ops.own_receives() >= limit;
        if busy { Err(StartError::Busy { limit }) } else { Ok(()) }
    }
}

/// Features that an endpoint on such a device doesn't announce.
fn missing(rdma: Rdma) -> Extras {
    let mut missing = Extras::empty();
    missing.set(Extras::RDMA_READ, !rdma.read);
    missing.set(Extras::RDMA_WRITE, !rdma.write);
    missing.set(Extras::UNSOLICITED_WRITE_RECV, !rdma.unsolicited_write_receive);
    missing
}

/// Packet buffers of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketsHeld {
    /// Posted to the device for sending.
    pub sending: usize,
    /// Free, for sending.
    pub send_pool: usize,
    /// Posted to the device for receiving.
    pub posted: usize,
    /// Free, for receiving.
    pub receive_pool: usize,
    /// Copies of packets ahead of the expected message, and of unexpected messages.
    pub held: usize,
    /// Bytes that the unexpected ones take, as counted by [`Bounds`](crate::Bounds).
    pub unexpected_bytes: usize,
}

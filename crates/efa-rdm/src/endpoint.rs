//! The endpoint: its parts, its public calls, and the loop that moves it on.

use efa_device::{Destination, QueuePair, Rdma, Status, Time, WorkId};
use efa_handshake::Extras;
use efa_match::{Cancelled, Forgotten, Posted as Posting};
use efa_proto::{Connid, ExtraInfo, Handshake, OpId, PacketType, RawAddress, ReqOptions};

use crate::arrival::is_used_up;
use crate::completion::{
    Completion, Level, OperationError, ReceiveCompletion, ReceiveId, Refused, RmaCompletion,
    RmaKind, SendCompletion, StartError,
};
use crate::config::{Config, ConfigError, inject_limit};
use crate::core::Core;
use crate::eager::{Eager, options};
use crate::event::{DropReason, Event, Events};
use crate::in_place::InPlace;
use crate::inbound::Inbound;
use crate::matching::{Matching, Posted, Waiting, pattern};
use crate::memory::Memory;
use crate::operations::{Heard, Operations, Receive, ReceiveRole, Send, SendRole};
use crate::payload::Payload;
use crate::peer::{PeerId, Peers, Standing, gid};
use crate::peer_end::abandon;
use crate::progress::PROGRESS_BUDGET;
use crate::rnr::Retry;
use crate::schedule::Schedule;
use crate::select::Subprotocol;
use crate::statistics::Statistics;
use crate::taglist::tagged_matcher;
use crate::transmit::{Advance, InFlight, PostFailure, Purpose, Transmit, Unposted, Whole, Work};

/// A reliable datagram endpoint: ordered messages of any size over a [`QueuePair`].
///
/// It is a state machine: operations are started, [`poll`](Self::poll) moves them on and tells how
/// they ended. It has no threads, no clock
/// and no locks. `B` is the kind of buffer that operations take and completions give back.
#[derive(Debug)]
pub struct Endpoint<Q: QueuePair, B> {
    pub(crate) matching: Matching<Q, B>,
    /// `None`, unless the queue pair is an [`InPlaceQueue`](crate::InPlaceQueue).
    pub(crate) in_place: Option<Box<InPlace<Q>>>,
    pub(crate) inbound: Inbound<Q::Packet>,
    pub(crate) trim_at: Time,
    /// Device completions that may be handled before what is due besides has its turn.
    pub(crate) turn: u32,
}

/// A message to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<B> {
    /// The receiver.
    pub peer: PeerId,
    /// The tag of a tagged message.
    pub tag: Option<u64>,
    /// 64 bits for the receiver's completion.
    pub cq_data: Option<u64>,
    /// What the completion is to promise. Injected messages promise nothing.
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
        /// Bits of the tag that don't count.
        ignore: u64,
    },
}

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// An endpoint on a queue pair, whose key becomes the endpoint's connid.
    ///
    /// # Errors
    /// A setting that makes no sense, or doesn't suit the device.
    pub fn new(queue_pair: Q, config: Config) -> Result<Self, ConfigError> {
        Self::assemble(queue_pair, None, config)
    }

    /// An endpoint, with a queue pair for messages in place if there is to be one.
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
        let tagged = tagged_matcher(&mut queue_pair, config.hash_seed);
        let inbound = Inbound::new(config.min_receive_buffers, most);
        let trim_at = Time::ZERO + config.trim_interval;
        let user_recv_qp = in_place.as_ref().and_then(|in_place| in_place.user_recv_qp());
        let core = Core {
            local: queue_pair.address(),
            transmit: Transmit::new(queue_pair),
            peers: Peers::new(config.hash_seed),
            schedule: Schedule::new(),
            events: Events::default(),
            statistics: Statistics::default(),
            ended: Vec::new(),
            user_recv_qp,
            now: Time::ZERO,
            config,
        };
        let matching = Matching::new(Operations::new(core), tagged);
        let mut endpoint = Self { matching, in_place, inbound, trim_at, turn: PROGRESS_BUDGET };
        endpoint.refill();
        Ok(endpoint)
    }

    /// Where this endpoint can be reached (section 1.4).
    #[must_use]
    pub fn address(&self) -> RawAddress {
        RawAddress {
            gid: self.matching.ops.core.local.gid.0,
            qpn: self.matching.ops.core.local.qpn.0,
            connid: Connid(self.matching.ops.core.local.qkey.0),
        }
    }

    /// The peer with an address, made known if it was not.
    ///
    /// An address whose queue pair another peer holds takes it over: the other is gone. A peer
    /// that is gone begins a new life.
    ///
    /// # Errors
    /// The device can't address it: zero GID, or too many interfaces.
    pub fn insert_peer(&mut self, address: RawAddress) -> Result<PeerId, efa_device::DeviceError> {
        match self.find_peer(&address) {
            Some(known) => Ok(known),
            None => self.add_peer(address),
        }
    }

    /// Adds a peer whose address is not known, or gone.
    pub(crate) fn add_peer(
        &mut self,
        address: RawAddress,
    ) -> Result<PeerId, efa_device::DeviceError> {
        let handle = self.matching.ops.core.transmit.device.create_address_handle(gid(&address))?;
        let (peer, replaced) = self.matching.ops.core.peers.insert(address, handle);
        if let Some(old) = replaced {
            self.matching.ops.core.end_peer(old, OperationError::PeerRestarted);
            self.matching.ops.core.events.push(Event::PeerRestarted { old, new: peer });
            // Before anything of the new peer is handled.
            self.settle();
        }
        Ok(peer)
    }

    /// Forgets a peer: operations under way with it fail, and what it still sends is dropped. Receives
    /// that accept messages of this peer alone stay posted until they are cancelled, and take nothing
    /// any more, also if its address is inserted again: that is another peer.
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.matching.ops.core.end_peer(peer, OperationError::PeerRemoved);
        self.settle();
    }

    /// The address of a peer.
    #[must_use]
    pub fn peer_address(&self, peer: PeerId) -> Option<RawAddress> {
        self.matching.ops.core.peers.address(peer)
    }

    /// The peer with an address, if it is known and not gone.
    #[must_use]
    pub fn find_peer(&self, address: &RawAddress) -> Option<PeerId> {
        self.matching
            .ops
            .core
            .peers
            .by_address(address)
            .filter(|peer| self.matching.ops.core.peers.standing(*peer) == Standing::Live)
    }

    /// What a peer announced in its HANDSHAKE, if it came.
    #[must_use]
    pub fn peer_extras(&self, peer: PeerId) -> Option<Extras> {
        self.matching.ops.core.peers.active(peer)?.handshake.extras()
    }

    /// Starts to send a message.
    ///
    /// # Errors
    /// The buffer comes back if the peer is unknown or gone, or too many sends are under way.
    pub fn send(&mut self, message: Message<B>) -> Result<(), Refused<B>> {
        let length = message.buffer.length();
        // The receiver may read it, or is to tell something: that is an operation.
        if message.level == Level::Transmit
            && length < self.matching.ops.core.config.min_read
            && self.matching.ops.check_sends().is_ok()
            && let Ok(length) = usize::try_from(length)
        {
            let Message { peer, tag, cq_data, ref buffer, .. } = message;
            let eager = Eager { tag, cq_data, length };
            let written =
                self.matching.ops.core.write_at_once(peer, &eager, |bytes| buffer.read(0, bytes));
            if let Some((packet, end)) = written {
                self.post_whole(packet, end, message);
                return Ok(());
            }
        }
        self.send_later(message)
    }

    /// Starts a message that takes several packets, has to wait, or can't be sent.
    #[inline(never)]
    fn send_later(&mut self, message: Message<B>) -> Result<(), Refused<B>> {
        let Message { peer, tag, cq_data, level, buffer, context } = message;
        if let Err(error) = self
            .matching
            .ops
            .core
            .check_peer(peer)
            .and_then(|()| self.matching.ops.check_new_send())
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

    /// Sends a short message by copy: the bytes may be reused at once, and no completion tells of
    /// success.
    ///
    /// # Errors
    /// As [`send`](Self::send), or the message is longer than [`inject_limit`](Self::inject_limit).
    pub fn inject(&mut self, message: Message<&[u8]>) -> Result<(), StartError> {
        let Message { peer, tag, cq_data, buffer, .. } = message;
        let limit = self.inject_limit();
        if buffer.len() > limit {
            return Err(StartError::TooLongToInject { length: buffer.len(), limit });
        }
        self.inject_eager(peer, tag, cq_data, buffer)
    }

    /// Most bytes that can be injected.
    #[must_use]
    pub fn inject_limit(&self) -> usize {
        inject_limit(self.matching.ops.core.transmit.mtu())
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
            return Err(Refused { error, buffer });
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

    /// Inlined by force: each kind of receive goes to a matcher of its own.
    #[inline(always)]
    fn post(
        &mut self,
        tagged: bool,
        pattern: efa_match::Pattern,
        posted: Posted<B>,
    ) -> Result<ReceiveId, Refused<B>> {
        if let Some(place) = self.matching.vacancy(tagged, &pattern) {
            let post = place.fill(posted);
            return Ok(ReceiveId { post, tagged });
        }
        self.receive_otherwise(tagged, pattern, posted)
    }

    /// Posts a receive that may have its message already, or needs something to grow. It never fails:
    /// the result is its caller's, whose last call it is, so that nothing has to be kept across it.
    #[inline(never)]
    fn receive_otherwise(
        &mut self,
        tagged: bool,
        pattern: efa_match::Pattern,
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

    /// Posts a buffer for many untagged messages. Each message takes its part of the buffer, which
    /// comes back with the message's completion; when less than
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
        let pattern = pattern(source, 0, u64::MAX);
        if let Err(error) = self.matching.check_receives() {
            return Err(Refused { error, buffer });
        }
        while let Some(message) = self.matching.matcher(false).take(&pattern) {
            self.matching.receive_unexpected_part(&mut buffer, context, message);
            self.settle();
            if is_used_up(&buffer, self.matching.ops.core.config.min_multi_receive) {
                self.matching.ops.core.schedule.complete(Completion::Released { context, buffer });
                return Ok(ReceiveId::MATCHED);
            }
        }
        let waiting = self.matching.begin_wait(Posted { context, buffer, tag: 0 });
        let post = self.matching.matcher(false).post_lasting(pattern, waiting);
        Ok(ReceiveId { post, tagged: false })
    }

    /// Cancels a receive that no message has matched. Its completion says
    /// [`OperationError::Cancelled`]. Tells whether there was such a receive.
    pub fn cancel(&mut self, receive: ReceiveId) -> bool {
        let ReceiveId { post, tagged } = receive;
        match self.matching.matcher(tagged).cancel(post) {
            Cancelled::Now(waiting) => {
                self.matching.wait_failed(waiting, tagged, OperationError::Cancelled);
                true
            }
            // The device holds it: it ends when the device has let go of it, or matched it.
            Cancelled::Pending => true,
            Cancelled::NotPosted => false,
        }
    }

    /// Ends every operation with [`OperationError::Cancelled`], so that all buffers come back.
    ///
    /// Peers are not told, so this is for an endpoint that is about to be dropped. Until it is, the device
    /// may still read registered memory that comes back, or write into it.
    pub fn cancel_all(&mut self) {
        for tagged in [true, false] {
            let Forgotten { receives, messages } = self.matching.matcher(tagged).drain_receives();
            for waiting in receives {
                self.matching.wait_failed(waiting, tagged, OperationError::Cancelled);
            }
            for message in messages {
                self.matching.forget_message(message as usize);
                self.matching.messages.try_remove(message as usize);
            }
        }
        debug_assert_eq!(self.matching.waiting, 0);
        for id in self.matching.ops.receives.find(|_| true) {
            self.matching.ops.end_receive(id, Some(OperationError::Cancelled));
        }
        for id in self.matching.ops.sends.find(|_| true) {
            self.matching.ops.fail_send(id, OperationError::Cancelled);
        }
        if let Some(in_place) = self.in_place.as_deref_mut() {
            in_place.cancel_all();
        }
        let packets = self
            .matching
            .ops
            .core
            .transmit
            .records_mut()
            .chain(self.matching.ops.core.peers.queued_packets_mut());
        for (peer, message) in abandon(packets) {
            self.matching.ops.message_ended(peer, message, Err(OperationError::Cancelled));
        }
    }

    /// Whether there is one for [`poll_completion`](Self::poll_completion).
    #[inline]
    #[must_use]
    pub fn has_completions(&self) -> bool {
        self.matching.ops.core.schedule.has_completions()
    }

    /// Takes the next completion.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion<B>> {
        self.matching.ops.core.schedule.next_completion()
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.matching.ops.core.events.pop()
    }

    /// Counts since the endpoint was made.
    pub fn statistics(&mut self) -> &Statistics {
        self.matching.ops.core.statistics.events_lost = self.matching.ops.core.events.lost();
        &self.matching.ops.core.statistics
    }

    /// The queue pair under the endpoint.
    #[must_use]
    pub fn queue_pair(&self) -> &Q {
        &self.matching.ops.core.transmit.device
    }

    /// Whether nothing waits to be sent, no packet is under way, and no peer is in the middle of
    /// reading or writing memory of this side. An endpoint that is closed before may owe its peers
    /// packets that they wait for.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.matching.ops.core.transmit.in_flight() == 0
            && self.matching.ops.core.transmit.rdma_in_flight() == 0
            && self.matching.ops.waiting_transfers.is_empty()
            && !self.matching.ops.core.schedule.has_pausing()
            && self.matching.ops.core.peers.all_clear()
    }

    /// Packets in the hands of the endpoint: sending, receiving, and held for later.
    #[must_use]
    pub fn packets_held(&self) -> PacketsHeld {
        PacketsHeld {
            sending: self.matching.ops.core.transmit.in_flight(),
            send_pool: self.matching.ops.core.transmit.pooled(),
            posted: self.inbound.posted(),
            receive_pool: self.inbound.spare(),
            held: self.matching.held.len(),
            unexpected_bytes: self.matching.unexpected.bytes,
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Starts a send that has its turn among the messages to the peer.
    pub(crate) fn start_ordered(&mut self, mut send: Send<Memory<B, Q::Region>>) -> OpId {
        let peer = send.peer;
        let active = self.core.peers.converse(peer, &self.core.config);
        let pause = active.must_pause();
        let hold = pause || active.must_hold(send.level, &self.core.config);
        let clear = active.is_clear();
        let missing = active.missing(send.level);
        if !hold && missing.is_empty() {
            send.msg_id = active.take_ordered_id().0;
        }
        let id = self.add_send(send);
        if hold {
            self.core.hold(peer, id);
            if pause {
                self.core.await_pause(peer);
            }
        } else if !missing.is_empty() {
            self.fail_send(id, OperationError::PeerLacks { missing });
        } else if !clear || self.advance_send(id).goes_on() {
            self.core.enqueue(peer, Work::Send(id));
        }
        id
    }

    pub(crate) fn check_sends(&self) -> Result<(), StartError> {
        let limit = self.core.config.max_sends;
        if self.own_sends() >= limit { Err(StartError::Busy { limit }) } else { Ok(()) }
    }

    /// Whether there may be another send that is an operation.
    pub(crate) fn check_new_send(&self) -> Result<(), StartError> {
        self.check_sends().and_then(|()| self.sends.check())
    }

    /// Begins the sends that waited for the peer's HANDSHAKE; those that it can't take fail, and
    /// leave no gap among the message ids.
    pub(crate) fn release_held(&mut self, peer: PeerId) {
        while let Some(active) = self.core.peers.active_mut(peer)
            && let Some(id) = active.held.pop_front()
        {
            let Some(send) = self.sends.get_mut(id) else { continue };
            let pause = active.must_pause();
            if pause || active.awaits_handshake(send.level, &self.core.config) {
                active.held.push_front(id);
                if pause {
                    self.core.await_pause(peer);
                }
                return;
            }
            let missing = active.missing(send.level);
            if missing.is_empty() {
                send.msg_id = active.take_ordered_id().0;
                self.core.enqueue(peer, Work::Send(id));
            } else {
                self.fail_send(id, OperationError::PeerLacks { missing });
            }
        }
    }

    /// Sends a packet that came back, or was written while its peer could not be served.
    pub(crate) fn resend(
        &mut self,
        packet: Q::Packet,
        record: InFlight<B>,
    ) -> Result<(), Work<Q::Packet, B>> {
        if self.core.transmit.is_full() {
            return Err(Work::Packet { packet, record });
        }
        let sent = (record.packet_type, record.length);
        let retransmitted = record.retransmitted;
        match self.core.transmit.post(packet, self.core.destination(&record), record) {
            Ok(()) => {
                if retransmitted {
                    self.core.statistics.retransmitted += 1;
                } else {
                    self.core.count_sent(sent);
                }
                Ok(())
            }
            Err(Unposted { packet, record, failure: PostFailure::Blocked }) => {
                Err(Work::Packet { packet, record })
            }
            Err(Unposted { packet, record, failure: PostFailure::Refused(status) }) => {
                self.core.transmit.recycle(packet);
                self.packet_failed(record, status);
                Ok(())
            }
        }
    }

    /// Sends a packet that is written already, now or before all else.
    #[inline(always)]
    pub(crate) fn post_written(&mut self, packet: Q::Packet, record: InFlight<B>) {
        let sent = (record.packet_type, record.length);
        match self.core.transmit.post(packet, self.core.destination(&record), record) {
            Ok(()) => self.core.count_sent(sent),
            Err(unposted) => self.keep_written(unposted),
        }
    }

    #[cold]
    pub(crate) fn keep_written(&mut self, unposted: Unposted<Q::Packet, B>) {
        let Unposted { packet, record, failure } = unposted;
        match failure {
            PostFailure::Blocked => {
                self.core.enqueue_first(record.peer, Work::Packet { packet, record });
            }
            PostFailure::Refused(status) => {
                self.core.transmit.recycle(packet);
                self.packet_failed(record, status);
            }
        }
    }

    /// The device finished with a packet.
    #[inline(always)]
    pub(crate) fn packet_sent(
        &mut self,
        id: WorkId,
        packet: Q::Packet,
        result: Result<(), Status>,
    ) -> Option<Completion<B>> {
        // What failed goes a way of its own, so that nothing of the record has to be in memory here.
        if let Err(status) = result {
            self.packet_not_sent(id, packet, status);
            return None;
        }
        self.core.transmit.recycle(packet);
        self.packet_delivered(id)
    }

    /// A packet lies in its receiver's memory.
    #[inline(always)]
    pub(crate) fn packet_delivered(&mut self, id: WorkId) -> Option<Completion<B>> {
        let InFlight { peer, purpose, retransmitted, .. } = self.core.transmit.completed(id)?;
        if retransmitted && let Some(active) = self.core.peers.active_mut(peer) {
            active.backoff.delivered();
        }
        match purpose {
            Purpose::Message(message) => self.message_end(peer, message, Ok(())),
            // In one pattern with the first it costs every message fifteen instructions.
            Purpose::Plain { message, .. } => self.message_end(peer, message, Ok(())),
            Purpose::Send { id, msg_id } => {
                self.send_packet_delivered(peer, id, msg_id);
                None
            }
            Purpose::Control | Purpose::Handshake => None,
        }
    }

    /// The device gave a packet up.
    #[cold]
    fn packet_not_sent(&mut self, id: WorkId, packet: Q::Packet, status: Status) {
        let Some(record) = self.core.transmit.completed(id) else {
            return self.core.transmit.recycle(packet);
        };
        let live = self.core.peers.standing(record.peer) == Standing::Live;
        if status == Status::ReceiverNotReady && live {
            self.receiver_not_ready(packet, record);
        } else {
            let msg_id = self.core.whole_message_id(&packet, &record);
            self.core.transmit.recycle(packet);
            self.packet_or_message_failed(record, msg_id, status);
        }
    }

    /// Keeps a packet that the peer had no room for, to be sent again.
    fn receiver_not_ready(&mut self, packet: Q::Packet, mut record: InFlight<B>) {
        self.core.statistics.receiver_not_ready += 1;
        record.retransmitted = true;
        self.back_off(record.peer);
        self.core.enqueue_first(record.peer, Work::Packet { packet, record });
    }

    /// Leaves a peer that was not ready alone for a while.
    pub(crate) fn back_off(&mut self, peer: PeerId) {
        let active = self.core.peers.converse(peer, &self.core.config);
        let was_waiting = active.backoff.is_waiting();
        if let Retry::At(until) = active.backoff.not_ready(self.core.now, &self.core.config.backoff)
            && !was_waiting
        {
            self.core.schedule.leave_alone(peer, until);
            // It may have been the turn of one of its transfers.
            self.resume_transfer();
        }
    }

    /// A packet will never arrive, and with it a message id, a grant or a HANDSHAKE without which
    /// the conversation can't go on: the peer is lost.
    #[cold]
    pub(crate) fn packet_failed(&mut self, record: InFlight<B>, status: Status) {
        self.core.statistics.send_errors += 1;
        let error = OperationError::Device(status);
        let InFlight { peer, purpose, .. } = record;
        let is_handshake = matches!(purpose, Purpose::Handshake);
        // A whole message has no operation that could end with its peer.
        if let Some(message) = purpose.message() {
            self.message_ended(peer, message, Err(error));
        }
        if self.core.peers.standing(peer) != Standing::Live {
            return;
        }
        // A peer that wrote once and left is no error (section 2.3).
        if is_handshake && status.is_peer_gone() {
            self.core.end_peer(peer, error);
        } else {
            self.core.lose_peer(peer, status);
        }
    }

    /// A message of one packet has ended, besides what the device just told.
    pub(crate) fn message_ended(
        &mut self,
        peer: PeerId,
        message: Whole<B>,
        result: Result<(), OperationError>,
    ) {
        let completion = self.message_end(peer, message, result);
        self.core.complete(completion);
    }

    /// The end of a message of one packet. Of an injected one, only a failure is told.
    #[inline(always)]
    pub(crate) fn message_end(
        &mut self,
        peer: PeerId,
        message: Whole<B>,
        result: Result<(), OperationError>,
    ) -> Option<Completion<B>> {
        let Whole { tag, context, length, buffer } = message;
        if buffer.is_some() {
            self.whole -= 1;
        } else if result.is_ok() {
            self.core.statistics.injected += 1;
            return None;
        }
        Some(Completion::Send(SendCompletion {
            context,
            peer,
            tag,
            length: u64::from(length),
            subprotocol: Some(Subprotocol::Eager),
            buffer,
            result,
        }))
    }

    /// Moves a send on as far as the device allows.
    pub(crate) fn advance_send(&mut self, id: OpId) -> Advance {
        let Some(send) = self.sends.get(id) else { return Advance::Done };
        if send.given_up.is_some() {
            return Advance::Done;
        }
        match send.subprotocol {
            None => match send.role {
                SendRole::Message => self.begin_send(id),
                SendRole::Write { remote } => self.begin_write(id, remote),
                SendRole::ReadResponse => self.send_readrsp(id),
                SendRole::Atomic { atomic, .. } => self.send_rta(id, atomic),
                SendRole::AtomicResponse => self.send_atomrsp(id),
            },
            Some(Subprotocol::Medium) => self.send_medium(id),
            Some(Subprotocol::LongCts) => self.send_ctsdata(id),
            Some(Subprotocol::RuntRead) => self.send_runtread(id),
            Some(Subprotocol::Eager | Subprotocol::LongRead | Subprotocol::Direct) => Advance::Done,
        }
    }

    /// A packet of a send arrived at the target.
    fn send_packet_delivered(&mut self, peer: PeerId, id: OpId, msg_id: u32) {
        if let Some(send) = self.sends.get_mut(id)
            && send.is(peer, msg_id)
        {
            send.outstanding -= 1;
            if send.heard == Heard::Nothing {
                send.heard = Heard::Part;
            }
            self.end_send_if_done(id);
        }
    }

    pub(crate) fn end_send_if_done(&mut self, id: OpId) {
        let Some(send) = self.sends.get(id) else { return };
        if let Some(status) = send.given_up {
            self.give_up_if_drained(id, status);
        } else if send.is_done() {
            self.end_send(id, Ok(()));
        }
    }

    pub(crate) fn fail_send(&mut self, id: OpId, error: OperationError) {
        self.end_send(id, Err(error));
    }

    pub(crate) fn end_send(&mut self, id: OpId, result: Result<(), OperationError>) {
        let Some(mut send) = self.take_send(id) else { return };
        send.memory.deregister();
        tracing::trace!(peer = send.peer.0, ?send.role, send.msg_id, ?result, "send ended");
        let Send { context, peer, tag, length, subprotocol, .. } = send;
        match (send.role, send.memory) {
            (SendRole::Message, Memory::Buffer(buffer)) => {
                self.core.schedule.complete(Completion::Send(SendCompletion {
                    context,
                    peer,
                    tag,
                    length,
                    subprotocol,
                    buffer: Some(buffer),
                    result,
                }));
            }
            (SendRole::Write { .. }, Memory::Buffer(buffer)) => {
                let kind = RmaKind::Write;
                self.core.rma_ended(RmaCompletion {
                    kind,
                    context,
                    peer,
                    length,
                    subprotocol,
                    buffer,
                    result,
                });
            }
            (SendRole::Atomic { atomic, .. }, memory) => {
                self.atomic_ended((context, peer), atomic, memory, result);
            }
            (SendRole::AtomicResponse, Memory::Values(values)) => {
                self.recycle_values(values);
                self.core.request_ended(peer);
            }
            (SendRole::ReadResponse, _) => {
                self.core.statistics.remote_reads += u64::from(result.is_ok());
                self.core.request_ended(peer);
            }
            _ => {}
        }
    }

    /// Ends a receive operation.
    pub(crate) fn end_receive(&mut self, id: OpId, error: Option<OperationError>) {
        let Some(mut receive) = self.take_receive(id) else { return };
        receive.memory.deregister();
        if receive.is_assembled() {
            self.assembling.remove(&(receive.peer.0, receive.msg_id));
        }
        if receive.receipt && error.is_none() {
            let (send_id, msg_id) = (receive.send_id, receive.msg_id);
            self.core.owe(receive.peer, Work::Receipt { send_id, msg_id });
        }
        let capacity = receive.memory.length();
        let written = receive.coverage.prefix().min(capacity);
        let Receive { role, context, peer, length, cq_data, subprotocol, .. } = receive;
        self.recycle_coverage(receive.coverage);
        match (role, receive.memory) {
            (ReceiveRole::Message, Memory::Buffer(buffer)) => {
                let truncated = OperationError::Truncated { length, capacity };
                let error = error.or((length > capacity).then_some(truncated));
                self.core.received(ReceiveCompletion {
                    context,
                    peer: Some(peer),
                    tagged: receive.tagged,
                    tag: receive.tag,
                    length: written,
                    cq_data,
                    subprotocol,
                    buffer,
                    result: error.map_or(Ok(()), Err),
                });
            }
            (ReceiveRole::Read { .. }, Memory::Buffer(buffer)) => {
                self.core.rma_ended(RmaCompletion {
                    kind: RmaKind::Read,
                    context,
                    peer,
                    length: written,
                    subprotocol,
                    buffer,
                    result: error.map_or(Ok(()), Err),
                });
            }
            (ReceiveRole::Written, _) => {
                self.core.request_ended(peer);
                self.core.written(peer, length, cq_data, error);
            }
            _ => {}
        }
    }

    /// A send whose first packets were to be written: if any were, the way is chosen. A blocked one
    /// may be selected anew: its header may have shrunk, or what is known of the peer be other.
    pub(crate) fn began(&mut self, id: OpId, subprotocol: Subprotocol, outstanding_before: u32) {
        let Some(send) = self.sends.get_mut(id) else { return };
        if send.outstanding == outstanding_before {
            send.in_packets = send.length;
            return;
        }
        send.subprotocol = Some(subprotocol);
        if send.is_being_read()
            && let Some(active) = self.core.peers.active_mut(send.peer)
        {
            active.reads_under_way += 1;
        }
    }

    /// Sends our HANDSHAKE (section 2.1).
    pub(crate) fn send_handshake(&mut self, peer: PeerId) -> Advance {
        let profile = self.core.config.profile;
        let Ok(extra_info) = ExtraInfo::new(&[profile.extras.bits()]) else {
            return Advance::Done;
        };
        let handshake = Handshake {
            extra_info,
            connid: self.core.packet_connid(),
            host_id: (profile.host_id && self.core.config.host_id != 0)
                .then_some(self.core.config.host_id),
            device_version: profile
                .device_version
                .then(|| self.core.transmit.device.attributes().vendor_part_id),
            user_recv_qp: self.core.user_recv_qp,
        };
        let record = |length| InFlight {
            peer,
            purpose: Purpose::Handshake,
            packet_type: PacketType::Handshake,
            length,
            retransmitted: false,
        };
        let advance = self.post_control(record, |packet| handshake.emit(packet));
        if advance == Advance::Done
            && let Some(active) = self.core.peers.active_mut(peer)
        {
            active.handshake.handshake_posted();
        }
        advance
    }

    /// Writes and posts a packet without payload.
    pub(crate) fn post_control(
        &mut self,
        record: impl FnOnce(u32) -> InFlight<B>,
        emit: impl FnOnce(&mut [u8]) -> Result<usize, efa_proto::EmitError>,
    ) -> Advance {
        let Ok(mut packet) = self.core.transmit.packet() else { return Advance::Blocked };
        let Ok(length) = emit(packet.as_mut()) else {
            // Control packets are far shorter than the least MTU.
            self.core.transmit.recycle(packet);
            return Advance::Done;
        };
        let record = record(length as u32);
        match self.core.post_packet(packet, record) {
            Ok(()) => Advance::Done,
            Err((_, PostFailure::Blocked)) => Advance::Blocked,
            Err((record, PostFailure::Refused(status))) => {
                self.packet_failed(record, status);
                Advance::Stopped
            }
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Matching<Q, B> {
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

    /// A receive ends without a message.
    pub(crate) fn wait_failed(&mut self, waiting: Waiting<B>, tagged: bool, error: OperationError) {
        let posted = self.end_wait(waiting);
        self.ops.core.schedule.complete(Completion::Receive(ReceiveCompletion {
            context: posted.context,
            peer: None,
            tagged,
            tag: posted.tag,
            length: 0,
            cq_data: None,
            subprotocol: None,
            buffer: posted.buffer,
            result: Err(error),
        }));
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Keeps a send until the peer has told what it can do.
    fn hold(&mut self, peer: PeerId, id: OpId) {
        let Some(active) = self.peers.active_mut(peer) else { return };
        active.held.push_back(id);
        self.provoke(peer);
    }

    /// Sees to it that the peer's HANDSHAKE comes.
    pub(crate) fn provoke(&mut self, peer: PeerId) {
        let Some(active) = self.peers.active_mut(peer) else { return };
        if active.handshake.must_elicit_handshake() {
            active.handshake.request_posted();
            self.enqueue(peer, Work::Provoke);
        }
    }

    pub(crate) fn check_peer(&self, peer: PeerId) -> Result<(), StartError> {
        match self.peers.standing(peer) {
            Standing::Live => Ok(()),
            Standing::Gone => Err(StartError::PeerGone(peer)),
            Standing::Unknown => Err(StartError::UnknownPeer(peer)),
        }
    }

    /// Posts a fresh packet that can be written again.
    #[inline]
    pub(crate) fn post_packet(
        &mut self,
        packet: Q::Packet,
        record: InFlight<B>,
    ) -> Result<(), (InFlight<B>, PostFailure)> {
        let sent = (record.packet_type, record.length);
        match self.transmit.post(packet, self.destination(&record), record) {
            Ok(()) => {
                self.count_sent(sent);
                Ok(())
            }
            Err(Unposted { packet, record, failure }) => {
                self.transmit.recycle(packet);
                Err((record, failure))
            }
        }
    }

    #[inline]
    fn destination(&self, record: &InFlight<B>) -> Destination {
        match record.purpose {
            Purpose::Plain { .. } => self.peers.plain_destination(record.peer),
            _ => self.peers.destination(record.peer),
        }
    }

    #[inline]
    pub(crate) fn count_sent(&mut self, (packet_type, length): (PacketType, u32)) {
        self.statistics.sent.count(packet_type);
        self.statistics.sent_bytes += u64::from(length);
        tracing::trace!(packet = %packet_type, length, "sent");
    }

    /// Hands a finished receive to the application.
    pub(crate) fn received(&mut self, completion: ReceiveCompletion<B>) {
        let (tag, length, result) = (completion.tag, completion.length, completion.result);
        tracing::trace!(tag, length, ?result, "receive ended");
        self.statistics.delivered_bytes += completion.length;
        self.schedule.complete(Completion::Receive(completion));
    }

    /// How requests to a peer tell who sends them, and what they carry along.
    pub(crate) fn request_options(&self, peer: PeerId, cq_data: Option<u64>) -> ReqOptions {
        use efa_handshake::AddressHeader;
        let header = match self.peers.active(peer) {
            Some(active) => active.handshake.address_header(&self.config.profile),
            None => AddressHeader::Raw(self.config.profile.raw_address),
        };
        options(header, &self.local, cq_data)
    }

    pub(crate) fn connid(&self) -> Connid {
        Connid(self.local.qkey.0)
    }

    /// The connid for packets that always have a place for it.
    pub(crate) fn packet_connid(&self) -> Option<Connid> {
        self.config.profile.connid.then(|| self.connid())
    }

    /// Counts and reports a packet that is dropped.
    pub(crate) fn drop_packet(&mut self, peer: Option<PeerId>, reason: DropReason) {
        self.statistics.dropped += 1;
        match reason {
            DropReason::Malformed(_) => self.statistics.malformed += 1,
            DropReason::OldMessageId => self.statistics.old_message_ids += 1,
            DropReason::Stale => self.statistics.stale += 1,
            _ => {}
        }
        self.events.push(Event::PacketDropped { peer, reason });
    }
}

/// What an endpoint on such a device doesn't announce.
fn missing(rdma: Rdma) -> Extras {
    let mut missing = Extras::empty();
    missing.set(Extras::RDMA_READ, !rdma.read);
    missing.set(Extras::RDMA_WRITE, !rdma.write);
    missing.set(Extras::UNSOLICITED_WRITE_RECV, !rdma.unsolicited_write_receive);
    missing
}

/// Packet buffers in the hands of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketsHeld {
    /// Given to the device to be sent.
    pub sending: usize,
    /// Free, for sending.
    pub send_pool: usize,
    /// Posted to the device for receiving.
    pub posted: usize,
    /// Free, for receiving.
    pub receive_pool: usize,
    /// Copies of early and unexpected packets.
    pub held: usize,
    /// Bytes that keeping the unexpected ones takes: what [`Bounds`](crate::Bounds) count.
    pub unexpected_bytes: usize,
}

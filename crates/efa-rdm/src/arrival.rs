//! A packet on its way in: who sent it, and what is it for.
//!
//! ```text
//!   bytes ─ parse ─► sender ─► HANDSHAKE owed? ─► by type ─┬─► RTM ─ in msg_id order ─► match
//!                                                          ├─► CTS ─► send operation
//!                                                          ├─► CTSDATA ─► receive operation
//!                                                          └─► HANDSHAKE ─► peer
//! ```

use efa_device::{QueuePair, Source};
use efa_handshake::{AddressHeader, Extras, Learned, Reply};
use efa_match::{Admit, Cancelled, Handled, Match, PostId, Source as MatchSource};
use efa_proto::{
    EagerConnid, Handshake, Header, OpId, Packet, RawAddress, RmaIov, Rtm, RtmKind, Tag, UserRecvQp,
};

use crate::completion::{Completion, OperationError, ReceiveCompletion};
use crate::core::Core;
use crate::coverage::Coverage;
use crate::endpoint::Endpoint;
use crate::event::{DropReason, Event};
use crate::held::{self, Chain};
use crate::matching::{Assembly, Matching, Message, Posted, Target, Waiting};
use crate::memory::Memory;
use crate::operations::{Operations, Receive, ReceiveRole};
use crate::payload::Payload;
use crate::peer::{PeerId, Standing};
use crate::rdma;
use crate::select::Subprotocol;
use crate::taglist::{Verdict, Word};
use crate::transmit::Work;

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// The device put a datagram into a receive buffer.
    #[inline(always)]
    pub(crate) fn packet_arrived(
        &mut self,
        packet: Q::Packet,
        length: usize,
        source: Source,
    ) -> Option<Completion<B>> {
        self.matching.ops.core.statistics.received_bytes += length as u64;
        let bytes = packet.as_ref().get(..length).unwrap_or_default();
        // Most packets are the next message of a peer, whole.
        if let Some(eager) = EagerConnid::peek(bytes)
            && let Some((peer, active)) =
                self.matching.ops.core.peers.recognise(source, eager.connid)
            && active.handshake.is_answered()
            && active.window.pass(eager.msg_id.0)
        {
            self.matching.ops.core.statistics.received.count(eager.packet_type());
            let (tag, length) = (eager.tag, eager.payload.len() as u64);
            match self.matching.match_at_once(peer, tag) {
                Some(posted) if length <= posted.buffer.length() => {
                    let Posted { context, mut buffer, .. } = posted;
                    buffer.write(0, eager.payload);
                    self.matching.ops.core.statistics.delivered_bytes += length;
                    // Before the completion is written, which then needn't be moved.
                    self.consumed(packet);
                    return Some(Completion::Receive(ReceiveCompletion {
                        context,
                        peer: Some(peer),
                        tagged: tag.is_some(),
                        tag: tag.unwrap_or(0),
                        length,
                        cq_data: None,
                        subprotocol: Some(Subprotocol::Eager),
                        buffer,
                        result: Ok(()),
                    }));
                }
                Some(posted) => self.matching.ops.eager_too_long(posted, peer, bytes),
                None => self.matching.eager_arrived(peer, bytes),
            }
        } else {
            self.other_packet_arrived(bytes, source);
        }
        self.consumed(packet);
        None
    }

    /// A packet that is not the next message of a peer, whole, or that tells more of itself.
    #[inline(never)]
    fn other_packet_arrived(&mut self, bytes: &[u8], source: Source) {
        match Packet::parse(bytes) {
            Ok(parsed) => self.parsed_packet_arrived(&parsed, bytes, source),
            Err(error) => {
                let peer = source
                    .address_handle
                    .and_then(|h| self.matching.ops.core.peers.by_source(h, source.qpn));
                self.matching.ops.core.drop_packet(peer, DropReason::Malformed(error));
            }
        }
    }

    fn parsed_packet_arrived(&mut self, parsed: &Packet<'_>, bytes: &[u8], source: Source) {
        let Some(peer) = self.introduced(parsed, source) else { return };
        match &parsed.header {
            Header::Rtm(rtm) => self.matching.rtm_arrived(peer, rtm, parsed.payload, bytes),
            Header::Cts(cts) => self.matching.ops.cts_arrived(peer, cts),
            Header::CtsData(data) => self.matching.ops.ctsdata_arrived(peer, data, parsed.payload),
            Header::Eor(eor) => self.matching.ops.eor_arrived(peer, eor),
            Header::Receipt(receipt) => self.matching.ops.receipt_arrived(peer, receipt),
            Header::ReadNack(nack) => self.matching.ops.read_nack_arrived(peer, nack),
            Header::Handshake(handshake) => self.matching.ops.handshake_arrived(peer, handshake),
            Header::Rta(rta) => {
                self.matching.ordered_arrived(peer, rta.msg_id.0, bytes, |matching| {
                    matching.ops.rta_arrived(peer, rta, parsed.payload);
                })
            }
            Header::Rtw(rtw) => self.matching.ops.rtw_arrived(peer, rtw, parsed.payload),
            Header::Rtr(rtr) => self.matching.ops.rtr_arrived(peer, rtr),
            Header::ReadRsp(response) => {
                self.matching.ops.readrsp_arrived(peer, response, parsed.payload)
            }
            Header::AtomRsp(response) => {
                self.matching.ops.atomrsp_arrived(peer, response, parsed.payload)
            }
            Header::PeerError(error) => self.matching.peer_error_arrived(peer, error),
            _ => {
                let reason = DropReason::Unsupported(parsed.packet_type());
                self.matching.ops.core.drop_packet(Some(peer), reason);
            }
        }
    }

    /// The sender of a packet, which is owed a HANDSHAKE if it is new. Without one the packet is
    /// dropped.
    #[inline(always)]
    pub(crate) fn introduced(&mut self, parsed: &Packet<'_>, source: Source) -> Option<PeerId> {
        let peer = match self.sender(&parsed.header, source) {
            Ok(peer) => peer,
            Err((peer, reason)) => {
                self.matching.ops.core.drop_packet(peer, reason);
                return None;
            }
        };
        self.matching.ops.core.statistics.received.count(parsed.packet_type());
        tracing::trace!(peer = peer.0, packet = %parsed, "received");

        let active = self.matching.ops.core.peers.converse(peer, &self.matching.ops.core.config);
        // A packet without connid may be of the queue pair's former holder, whose successor doesn't
        // know us yet and would lose our HANDSHAKE. Who sends one himself answers us, so that his own
        // HANDSHAKE comes as well.
        let is_his =
            parsed.header.connid().is_some() || matches!(parsed.header, Header::Handshake(_));
        if is_his && active.handshake.packet_received() == Some(Reply::Handshake) {
            self.matching.ops.core.enqueue_first(peer, Work::Handshake);
        }
        Some(peer)
    }

    /// Finds the sender of a packet, or makes it known (sections 2.2 and 4.4).
    fn sender(
        &mut self,
        header: &Header<'_>,
        source: Source,
    ) -> Result<PeerId, (Option<PeerId>, DropReason)> {
        let current = source
            .address_handle
            .and_then(|h| self.matching.ops.core.peers.by_source(h, source.qpn));
        if let Some(peer) = current {
            let address = self.matching.ops.core.peers.address(peer);
            match (header.connid(), address) {
                (Some(connid), Some(address)) if connid != address.connid => {
                    return self.other_life(peer, address, header, connid);
                }
                (Some(_), _) => {}
                (None, _) => self.matching.ops.core.statistics.unverified += 1,
            }
            return Ok(peer);
        }
        if let Some(address) = header.raw_address() {
            let forged =
                address.qpn != source.qpn.0 || source.gid.is_some_and(|gid| gid.0 != address.gid);
            if forged {
                return Err((None, DropReason::ForgedAddress));
            }
            return self.discover(*address);
        }
        // The device tells the interface of a sender that it has no handle for.
        let (Some(gid), Some(connid)) = (source.gid, header.connid()) else {
            return Err((None, DropReason::UnknownSender));
        };
        let address = RawAddress { gid: gid.0, qpn: source.qpn.0, connid };
        match self.matching.ops.core.peers.by_address(&address) {
            Some(peer) => self.matching.ops.core.unless_gone(peer),
            None => Err((None, DropReason::UnknownSender)),
        }
    }

    /// A packet of another life of the endpoint on a known queue pair: of its successor, which
    /// introduces itself, or of a predecessor.
    fn other_life(
        &mut self,
        peer: PeerId,
        known: RawAddress,
        header: &Header<'_>,
        connid: efa_proto::Connid,
    ) -> Result<PeerId, (Option<PeerId>, DropReason)> {
        let address = RawAddress { connid, ..known };
        if let Some(predecessor) = self.matching.ops.core.peers.by_address(&address) {
            return Err((Some(predecessor), DropReason::Stale));
        }
        match header.raw_address() {
            Some(told) if *told == address => self.discover(address),
            Some(_) => Err((Some(peer), DropReason::ForgedAddress)),
            None => Err((Some(peer), DropReason::Stale)),
        }
    }

    fn discover(&mut self, address: RawAddress) -> Result<PeerId, (Option<PeerId>, DropReason)> {
        if let Some(known) = self.matching.ops.core.peers.by_address(&address) {
            return self.matching.ops.core.unless_gone(known);
        }
        if self.matching.ops.core.peers.discovered
            >= self.matching.ops.core.config.bounds.discovered
        {
            return Err((None, DropReason::PeerTableFull));
        }
        match self.add_peer(address) {
            Ok(peer) => {
                self.matching.ops.core.peers.discovered += 1;
                self.matching.ops.core.events.push(Event::PeerDiscovered(peer));
                Ok(peer)
            }
            Err(error) => {
                self.matching.ops.core.events.push(Event::DeviceRefused(error));
                Err((None, DropReason::PeerTableFull))
            }
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// A sender found by its address, which may be that of a peer that is gone.
    fn unless_gone(&self, peer: PeerId) -> Result<PeerId, (Option<PeerId>, DropReason)> {
        match self.peers.standing(peer) {
            Standing::Live => Ok(peer),
            _ => Err((Some(peer), DropReason::Stale)),
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    fn handshake_arrived(&mut self, peer: PeerId, handshake: &Handshake<'_>) {
        let Some(active) = self.core.peers.active_mut(peer) else { return };
        if active.handshake.handshake_received(handshake) == Learned::Changed {
            tracing::info!(peer = peer.0, "a second HANDSHAKE announces other features");
        }
        active.by_connid =
            active.handshake.address_header(&self.core.config.profile) == AddressHeader::Connid;
        active.user_queue = user_queue(active.handshake.extras(), handshake);
        let extras = active.handshake.extras().unwrap_or_default();
        active.pace.learn(extras, active.next_msg_id);
        active.keep_from_going_at_once();
        for work in core::mem::take(&mut active.awaiting_handshake) {
            self.core.enqueue(peer, work);
        }
        self.release_held(peer);
    }

    /// The message that a segment belongs to, if it has begun.
    fn assembly(&self, peer: PeerId, rtm: &Rtm<'_>) -> Option<Assembly> {
        self.assembling.get(&(peer.0, rtm.msg_id.0)).copied()
    }

    /// The one packet of a message has more bytes than its receive has room for.
    #[inline(never)]
    fn eager_too_long(&mut self, posted: Posted<B>, peer: PeerId, bytes: &[u8]) {
        let Some(eager) = EagerConnid::peek(bytes) else { return };
        let payload = eager.payload;
        let shape = Shape::eager(payload.len() as u64);
        let target = posted.target(eager.tag.is_some());
        self.begin_receive(target, peer, &eager.rtm(), &shape, payload);
    }

    /// The first packet of a message and the buffer it goes to have met.
    fn begin_receive(
        &mut self,
        target: Target<B>,
        peer: PeerId,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
    ) {
        if !shape.is_partial(payload) {
            return self.core.receive_whole(target, peer, rtm, shape, payload);
        }
        if self.receives.is_full() {
            self.core.drop_packet(Some(peer), DropReason::TooManyOperations);
            return self.core.received(ReceiveCompletion {
                context: target.context,
                peer: Some(peer),
                tagged: target.tagged,
                tag: rtm.tag.unwrap_or(0),
                length: 0,
                cq_data: rtm.options.cq_data,
                subprotocol: Some(shape.subprotocol),
                buffer: target.buffer,
                result: Err(OperationError::TooManyOperations),
            });
        }
        let (memory, coverage) = (Memory::Buffer(target.buffer), self.coverage());
        let id = self.add_receive(Receive {
            msg_id: rtm.msg_id.0,
            context: target.context,
            tagged: target.tagged,
            tag: rtm.tag.unwrap_or(0),
            cq_data: rtm.options.cq_data,
            subprotocol: Some(shape.subprotocol),
            granted: payload.len() as u64,
            send_id: shape.send_id,
            runt_length: shape.runt_length,
            receipt: shape.receipt,
            ..Receive::new(peer, ReceiveRole::Message, memory, shape.length, coverage)
        });
        match rtm.kind {
            RtmKind::LongRead { read_iov, .. } => self.begin_longread(peer, id, shape, read_iov),
            RtmKind::RuntRead { read_iov, .. } => {
                self.begin_medium((peer, rtm.msg_id), id, shape, payload);
                self.begin_longread(peer, id, shape, read_iov);
            }
            RtmKind::LongCts { .. } | RtmKind::DcLongCts { .. } => {
                self.begin_longcts(peer, id, payload);
            }
            _ => self.begin_medium((peer, rtm.msg_id), id, shape, payload),
        }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Matching<Q, B> {
    /// A request to send a message: in the order of message ids, unless its message has begun.
    fn rtm_arrived(&mut self, peer: PeerId, rtm: &Rtm<'_>, payload: &[u8], bytes: &[u8]) {
        let shape = Shape::of(rtm, payload);
        match shape {
            Ok(shape) if shape.read_nack => {
                return self.ops.nacked_message_arrived(peer, rtm, &shape);
            }
            Ok(shape) if shape.subprotocol.has_several_requests() => {
                if let Some(assembly) = self.ops.assembly(peer, rtm) {
                    return self.medium_segment(peer, assembly, rtm, &shape, payload, bytes);
                }
                if self.has_tag_list && self.ops.core.begins_unseen(peer, rtm, &shape) {
                    return self.ops.core.drop_packet(Some(peer), DropReason::OutOfOrder);
                }
            }
            Ok(_) => {}
            Err(reason) => return self.ops.core.drop_packet(Some(peer), reason),
        }
        self.ordered_arrived(peer, rtm.msg_id.0, bytes, |matching| match shape {
            Ok(shape) => matching.message_begins(peer, rtm, &shape, payload, bytes),
            Err(reason) => matching.ops.core.drop_packet(Some(peer), reason),
        });
    }

    /// A request that has its turn among others: handles it, or keeps it until then.
    fn ordered_arrived(
        &mut self,
        peer: PeerId,
        msg_id: u32,
        bytes: &[u8],
        handle: impl FnOnce(&mut Self),
    ) {
        let Some(active) = self.ops.core.peers.active_mut(peer) else { return };
        if active.window.expected() != msg_id {
            return self.request_early(peer, msg_id, bytes);
        }
        let Admit::InOrder(_) = active.window.admit(msg_id, Chain::NONE) else { return };
        handle(self);
        self.release_early(peer);
    }

    /// Keeps an early packet until its turn has come.
    fn request_early(&mut self, peer: PeerId, msg_id: u32, bytes: &[u8]) {
        if let Verdict::Receive(_) = self.verdict {
            return self.ops.core.drop_packet(Some(peer), DropReason::OutOfOrder);
        }
        let chain = self.held.hold(bytes);
        let Some(active) = self.ops.core.peers.active_mut(peer) else { return };
        let reason = match active.window.admit(msg_id, chain) {
            Admit::Kept | Admit::InOrder(_) => {
                self.ops.core.statistics.reordered += 1;
                self.defer_verdict();
                return self.ops.core.keeps_early(peer, bytes);
            }
            Admit::Occupied(chain) => match active.window.get_mut(msg_id) {
                Some(first) if *first != Chain::NONE => {
                    self.held.append(first, chain);
                    self.ops.core.statistics.reordered += 1;
                    return self.ops.core.keeps_early(peer, bytes);
                }
                // Its sender has given the message up.
                _ => DropReason::OldMessageId,
            },
            Admit::Old(_) => DropReason::OldMessageId,
            Admit::Beyond(_) => DropReason::MessageIdTooFar,
        };
        self.held.drop_chain(chain);
        self.ops.core.drop_packet(Some(peer), reason);
    }

    /// Handles the kept packets whose turn has come.
    #[inline]
    pub(crate) fn release_early(&mut self, peer: PeerId) {
        while let Some(active) = self.ops.core.peers.active_mut(peer)
            && let Some(chain) = active.window.pop_ready()
        {
            self.release(peer, chain);
        }
    }

    #[inline(never)]
    fn release(&mut self, peer: PeerId, chain: Chain) {
        if chain == Chain::NONE {
            return; // A message that will not come.
        }
        let cost = self.replay(chain, |matching, packet, bytes, first| match &packet.header {
            Header::Rta(rta) if first => matching.ops.rta_arrived(peer, rta, packet.payload),
            Header::Rtm(rtm) => match Shape::of(rtm, packet.payload) {
                Ok(shape) if first => {
                    matching.message_begins(peer, rtm, &shape, packet.payload, bytes);
                }
                Ok(shape) => matching.further_segment(peer, rtm, &shape, packet.payload, bytes),
                Err(reason) => matching.ops.core.drop_packet(Some(peer), reason),
            },
            _ => matching.ops.core.drop_packet(Some(peer), DropReason::OldMessageId),
        });
        self.ops.core.had_early(peer, cost);
    }

    /// Takes held packets out one by one and handles each; gives what they cost.
    fn replay(
        &mut self,
        chain: Chain,
        mut handle: impl FnMut(&mut Self, &Packet<'_>, &[u8], bool),
    ) -> usize {
        let (mut next, mut cost) = (Some(chain.first), 0);
        let mut first = true;
        while let Some(id) = next {
            let held = self.held.take(id);
            next = held.next;
            let bytes = held.bytes();
            cost += held::cost(bytes.len());
            if let Ok(packet) = Packet::parse(bytes) {
                handle(self, &packet, bytes, first);
            }
            first = false;
            self.held.release(held);
        }
        cost
    }

    /// A kept packet that is not the first of its message.
    fn further_segment(
        &mut self,
        peer: PeerId,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
        bytes: &[u8],
    ) {
        match self.ops.assembly(peer, rtm) {
            Some(assembly) => self.medium_segment(peer, assembly, rtm, shape, payload, bytes),
            None => self.ops.core.drop_packet(Some(peer), DropReason::OldMessageId),
        }
    }

    /// The first packet of a message whose turn it is: match it.
    fn message_begins(
        &mut self,
        peer: PeerId,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
        bytes: &[u8],
    ) {
        let handled = self.find_receive(peer, rtm.tag);
        self.handled(handled, peer, rtm, shape, payload, bytes);
    }

    /// The one packet of a message has another receive than one for it alone, or none.
    #[inline(never)]
    fn eager_arrived(&mut self, peer: PeerId, bytes: &[u8]) {
        let Some(eager) = EagerConnid::peek(bytes) else { return };
        let found = self.find_receive(peer, eager.tag);
        let payload = eager.payload;
        let shape = Shape::eager(payload.len() as u64);
        self.handled(found, peer, &eager.rtm(), &shape, payload, bytes);
    }

    /// Looks for the receive of a message. `None`: it has ended with all others.
    #[inline(always)]
    fn find_receive(&mut self, peer: PeerId, tag: Option<Tag>) -> Option<Handled<Waiting<B>>> {
        let tagged = tag.is_some();
        if self.verdict != Verdict::None {
            match self.by_verdict(tagged) {
                Word::LookUp => {}
                Word::Receive(waiting) => return Some(Handled::Matched(Match::Once(waiting))),
                Word::Ended => return None,
            }
        }
        let key = self.messages.vacant_key() as u32;
        Some(self.matcher(tagged).arrive(MatchSource(peer.0), tag.unwrap_or(0), key))
    }

    /// Gives a message to the receive that was found, or keeps it.
    #[inline(never)]
    fn handled(
        &mut self,
        handled: Option<Handled<Waiting<B>>>,
        peer: PeerId,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
        bytes: &[u8],
    ) {
        let tagged = rtm.tag.is_some();
        let entry = match handled {
            None => return self.ops.core.drop_packet(Some(peer), DropReason::UnknownOperation),
            Some(Handled::Matched(Match::Once(waiting))) => {
                let posted = self.end_wait(waiting);
                return self.ops.begin_receive(posted.target(tagged), peer, rtm, shape, payload);
            }
            Some(Handled::Matched(Match::Lasting(post))) => {
                if let Some(waiting) = self.matcher(tagged).receive_mut(post) {
                    let Posted { buffer, context, .. } = waiting.posted_mut();
                    let target = part_of(buffer, *context, shape.length);
                    self.ops.begin_receive(target, peer, rtm, shape, payload);
                }
                return self.release_if_used_up(post);
            }
            Some(Handled::Unexpected(entry)) => Some(entry),
            Some(Handled::Pending) => None,
        };
        let packets = self.held.hold(bytes);
        let msg_id = rtm.msg_id.0;
        let missing = shape.length - payload.len() as u64;
        let message = Message { peer, msg_id, tagged, entry, packets, missing };
        let key = self.messages.insert(message);
        if shape.is_partial(payload) && shape.subprotocol.has_several_requests() {
            let assembly = Assembly::Unexpected(key as u32);
            self.ops.assembling.insert((peer.0, msg_id), assembly);
        }
        self.ops.core.statistics.unexpected += 1;
        self.keeps_unexpected(peer, bytes);
    }

    /// A further segment of a message that has begun.
    fn medium_segment(
        &mut self,
        peer: PeerId,
        assembly: Assembly,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
        bytes: &[u8],
    ) {
        match assembly {
            Assembly::Receiving(id) => self.ops.medium_arrived(id, rtm, shape, payload),
            Assembly::Unexpected(key) => self.unexpected_segment(peer, key, payload, bytes),
        }
    }

    /// A further segment of an unexpected message: of a message that has come with all its bytes no
    /// more is kept.
    fn unexpected_segment(&mut self, peer: PeerId, key: u32, payload: &[u8], bytes: &[u8]) {
        let Some(message) = self.messages.get_mut(key as usize) else {
            return self.ops.core.drop_packet(Some(peer), DropReason::UnknownOperation);
        };
        let Some(missing) = message.missing.checked_sub(payload.len() as u64) else {
            return self.ops.core.drop_packet(Some(peer), DropReason::RepeatedSegment);
        };
        message.missing = missing;
        let chain = self.held.hold(bytes);
        self.held.append(&mut message.packets, chain);
        self.keeps_unexpected(peer, bytes);
    }

    /// Gives a multi-receive buffer back that takes no other message.
    fn release_if_used_up(&mut self, post: PostId) {
        let least = self.ops.core.config.min_multi_receive;
        let matcher = self.matcher(false);
        let waiting = matcher.receive_mut(post);
        if waiting.is_some_and(|waiting| is_used_up(&waiting.posted_mut().buffer, least))
            && let Cancelled::Now(waiting) = matcher.cancel(post)
        {
            let Posted { context, buffer, .. } = self.end_wait(waiting);
            self.ops.core.schedule.complete(Completion::Released { context, buffer });
        }
    }

    /// A multi-receive buffer is being posted and a message for it is here.
    pub(crate) fn receive_unexpected_part(&mut self, buffer: &mut B, context: u64, message: u32) {
        let first = self.messages[message as usize].packets.first;
        let length = shape_of(self.held.bytes(first)).map_or(0, |shape| shape.length);
        self.receive_unexpected(part_of(buffer, context, length), message);
    }

    /// A receive is being posted and its message is here.
    pub(crate) fn receive_unexpected(&mut self, target: Target<B>, message: u32) {
        let message = self.messages.remove(message as usize);
        let peer = message.peer;
        self.ops.assembling.remove(&(peer.0, message.msg_id));
        let mut target = Some(target);
        let cost = self.replay(message.packets, |matching, packet, bytes, _| {
            let (Header::Rtm(rtm), payload) = (&packet.header, packet.payload) else { return };
            match Shape::of(rtm, payload) {
                Ok(shape) => match target.take() {
                    Some(target) => matching.ops.begin_receive(target, peer, rtm, &shape, payload),
                    None => matching.further_segment(peer, rtm, &shape, payload, bytes),
                },
                Err(reason) => matching.ops.core.drop_packet(Some(peer), reason),
            }
        });
        self.had_unexpected(peer, cost);
    }
}

/// A message's part of a multi-receive buffer.
fn part_of<R, B: Payload<R>>(buffer: &mut B, context: u64, length: u64) -> Target<B> {
    let length = length.min(buffer.length());
    Target { context, buffer: buffer.split_to(length), tagged: false }
}

/// The queue pair of a peer that takes plain messages, if it does (feature 7).
fn user_queue(extras: Option<Extras>, handshake: &Handshake<'_>) -> Option<UserRecvQp> {
    let asks = extras.is_some_and(|extras| extras.contains(Extras::USER_RECV_QP));
    handshake.user_recv_qp.filter(|queue| asks && u16::try_from(queue.qpn).is_ok())
}

/// What a request says about its message, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) subprotocol: Subprotocol,
    /// Length of the message.
    pub(crate) length: u64,
    /// Where the payload belongs.
    pub(crate) offset: u64,
    /// The sender's name for the operation.
    pub(crate) send_id: OpId,
    /// Runting read: the leading part that comes in packets.
    pub(crate) runt_length: u64,
    /// It goes on with a message that was refused to be read.
    pub(crate) read_nack: bool,
    /// The sender wants to be told when the message is delivered.
    pub(crate) receipt: bool,
}

impl Shape {
    /// Of a request that is all of its message.
    pub(crate) const fn eager(length: u64) -> Self {
        Self {
            subprotocol: Subprotocol::Eager,
            length,
            offset: 0,
            send_id: OpId(0),
            runt_length: 0,
            read_nack: false,
            receipt: false,
        }
    }

    /// Refuses what this endpoint doesn't do, and segments that don't fit their message.
    pub(crate) fn of(rtm: &Rtm<'_>, payload: &[u8]) -> Result<Self, DropReason> {
        let bytes = payload.len() as u64;
        let mut shape = Self::eager(bytes);
        let readable = |iov: &[RmaIov], length| rdma::total(iov) == Some(length);
        let carries = match rtm.kind {
            RtmKind::Eager => true,
            RtmKind::DcEager { send_id } => {
                (shape.send_id, shape.receipt) = (send_id, true);
                true
            }
            // Every segment carries something, or the message would never be whole.
            RtmKind::Medium { msg_length, seg_offset } => {
                shape.subprotocol = Subprotocol::Medium;
                (shape.length, shape.offset) = (msg_length, seg_offset);
                bytes > 0
            }
            RtmKind::DcMedium { send_id, msg_length, seg_offset } => {
                shape.subprotocol = Subprotocol::Medium;
                (shape.length, shape.offset) = (msg_length, seg_offset);
                (shape.send_id, shape.receipt) = (send_id, true);
                bytes > 0
            }
            // libfabric 1.11 puts all of a message that just fits into the request: there is nothing
            // left to be granted then.
            RtmKind::LongCts { msg_length, send_id, read_nack, .. }
            | RtmKind::DcLongCts { msg_length, send_id, read_nack, .. } => {
                shape.receipt = matches!(rtm.kind, RtmKind::DcLongCts { .. });
                shape.subprotocol = Subprotocol::LongCts;
                (shape.length, shape.send_id) = (msg_length, send_id);
                shape.read_nack = read_nack;
                if read_nack { bytes == 0 } else { msg_length > 0 }
            }
            RtmKind::LongRead { msg_length, send_id, read_iov } => {
                shape.subprotocol = Subprotocol::LongRead;
                (shape.length, shape.send_id) = (msg_length, send_id);
                bytes == 0 && readable(read_iov, msg_length)
            }
            RtmKind::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov } => {
                shape.subprotocol = Subprotocol::RuntRead;
                (shape.length, shape.offset, shape.send_id) = (msg_length, seg_offset, send_id);
                shape.runt_length = runt_length;
                let in_runt = seg_offset.checked_add(bytes).is_some_and(|end| end <= runt_length);
                bytes > 0 && in_runt && runt_length <= msg_length && readable(read_iov, msg_length)
            }
            _ => return Err(DropReason::Unsupported(rtm.packet_type())),
        };
        let fits = shape.offset.checked_add(bytes).is_some_and(|end| end <= shape.length);
        if fits && carries { Ok(shape) } else { Err(DropReason::SegmentOutOfRange) }
    }

    /// Whether the message has more than this payload.
    fn is_partial(&self, payload: &[u8]) -> bool {
        // A message that is read is never here, be it empty: its sender wants to be told.
        self.length != payload.len() as u64 || self.subprotocol == Subprotocol::LongRead
    }
}

fn shape_of(bytes: &[u8]) -> Option<Shape> {
    match Packet::parse(bytes) {
        Ok(Packet { header: Header::Rtm(rtm), payload }) => Shape::of(&rtm, payload).ok(),
        _ => None,
    }
}

/// Whether a multi-receive buffer has too little room for another message.
pub(crate) fn is_used_up<R>(buffer: &impl Payload<R>, least: u64) -> bool {
    buffer.length() < least
}

/// Whether the packets of a message are all of it.
pub(crate) fn is_whole<'a>(packets: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut coverage = Coverage::default();
    let mut begun = None;
    for bytes in packets {
        let Ok(Packet { header: Header::Rtm(rtm), payload }) = Packet::parse(bytes) else {
            return false;
        };
        let Ok(shape) = Shape::of(&rtm, payload) else { return false };
        let message = (shape.length, shape.receipt, shape.runt_length, rtm.tag);
        if begun.is_none() && !shape.is_partial(payload) {
            return true;
        }
        // As it is received: the first packet tells what the message is, others that disagree are
        // dropped.
        if *begun.get_or_insert(message) == message {
            let _ = coverage.insert(shape.offset, shape.offset + payload.len() as u64);
        }
    }
    begun.is_some_and(|(length, ..)| length == coverage.bytes())
}

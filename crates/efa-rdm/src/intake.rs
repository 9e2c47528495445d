//! A packet on its way in: who sent it, and what is it for.
//!
//! ```text
//!   bytes ─ parse ─► sender ─► HANDSHAKE pending? ─► by type ─┬─► RTM ─ in msg_id order ─► match
//!                                                             ├─► CTS ─► send operation
//!                                                             ├─► CTSDATA ─► receive operation
//!                                                             └─► HANDSHAKE ─► peer
//! ```

use efa_device::{AddressHandle, DeviceError, QueuePair, Source};
use efa_handshake::Reply;
use efa_proto::{
    Connid, CtsData, EagerConnid, Eor, Header, LongReadConnid, MediumConnid, MsgId, Packet,
    PacketType, RawAddress,
};

use crate::complete::eager_received;
use crate::completion::{Completion, OperationError};
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::event::{DropReason, Event};
use crate::ids::PeerId;
use crate::matching::Posted;
use crate::payload::Payload;
use crate::peer::{PeerStatus, gid};
use crate::shape::Shape;
use crate::work::Work;

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// The device put a datagram into a receive buffer.
    #[inline(always)]
    pub(crate) fn packet_arrived(
        &mut self,
        packet: Q::Packet,
        length: usize,
        source: Source,
    ) -> Option<Completion<B>> {
        let core = &mut self.matching.ops.core;
        core.statistics.received_bytes += length as u64;
        let bytes = packet.as_ref().get(..length).unwrap_or_default();
        // Most packets are the next message of a peer, complete.
        if let Some((peer, eager)) = core.next_message(bytes, source) {
            let (tag, length) = (eager.tag, eager.payload.len() as u64);
            match self.matching.match_at_once(peer, tag) {
                Some(posted) if length <= posted.buffer.length() => {
                    let Posted { context, mut buffer, .. } = posted;
                    buffer.write(0, eager.payload);
                    self.matching.ops.core.statistics.delivered_bytes += length;
                    // Before the completion is written, which then needn't be moved.
                    self.consumed(packet);
                    return Some(eager_received(context, peer, tag, length, buffer));
                }
                Some(posted) => self.matching.ops.eager_too_long(posted, peer, bytes),
                None => self.matching.eager_arrived(peer, bytes),
            }
        } else {
            self.segment_or_other_arrived(bytes, source);
        }
        self.consumed(packet);
        None
    }

    /// Handles a packet that isn't the next message of a peer, complete. Most are further segments, or begin or end the
    /// reading of a message.
    #[inline(always)]
    pub(crate) fn segment_or_other_arrived(&mut self, bytes: &[u8], source: Source) {
        const CTSDATA: u8 = PacketType::CtsData.as_u8();
        const EOR: u8 = PacketType::Eor.as_u8();
        const MEDIUM: u8 = PacketType::MediumMsgRtm.as_u8();
        const MEDIUM_TAGGED: u8 = PacketType::MediumTagRtm.as_u8();
        const LONG_READ: u8 = PacketType::LongReadMsgRtm.as_u8();
        const LONG_READ_TAGGED: u8 = PacketType::LongReadTagRtm.as_u8();
        match bytes.first() {
            Some(&CTSDATA) => self.ctsdata_or_other_arrived(bytes, source),
            Some(&EOR) => self.eor_or_other_arrived(bytes, source),
            Some(&(MEDIUM | MEDIUM_TAGGED)) => self.medium_or_other_arrived(bytes, source),
            Some(&(LONG_READ | LONG_READ_TAGGED)) => self.longread_or_other_arrived(bytes, source),
            _ => self.other_packet_arrived(bytes, source),
        }
    }

    #[inline(never)]
    fn eor_or_other_arrived(&mut self, bytes: &[u8], source: Source) {
        let ops = &mut self.matching.ops;
        if let Some((eor, connid)) = Eor::peek(bytes)
            && let Some(peer) = ops.core.recognise(source, connid)
        {
            ops.core.statistics.received.count(PacketType::Eor);
            return ops.eor_arrived(peer, &eor);
        }
        self.other_packet_arrived(bytes, source);
    }

    #[inline(never)]
    fn ctsdata_or_other_arrived(&mut self, bytes: &[u8], source: Source) {
        let ops = &mut self.matching.ops;
        if let Some((data, connid, payload)) = CtsData::peek(bytes)
            && let Some(peer) = ops.core.recognise(source, connid)
        {
            ops.core.statistics.received.count(PacketType::CtsData);
            return ops.ctsdata_arrived(peer, &data, payload);
        }
        self.other_packet_arrived(bytes, source);
    }

    #[inline(never)]
    fn medium_or_other_arrived(&mut self, bytes: &[u8], source: Source) {
        if let Some(medium) = MediumConnid::peek(bytes)
            && self.matching.ops.further_medium_arrived(&medium, source, medium.payload)
        {
            return;
        }
        self.other_packet_arrived(bytes, source);
    }

    #[inline(never)]
    fn longread_or_other_arrived(&mut self, bytes: &[u8], source: Source) {
        if let Some(request) = LongReadConnid::peek(bytes)
            && let Some(shape) = Shape::long_read(&request)
            && let Some(peer) =
                self.matching.ops.core.next_sender(request.msg_id, request.connid, source)
        {
            self.matching.ops.core.statistics.received.count(request.packet_type());
            return self.matching.longread_arrived(peer, &request, &shape, bytes);
        }
        self.other_packet_arrived(bytes, source);
    }

    /// Handles any packet.
    #[inline(never)]
    fn other_packet_arrived(&mut self, bytes: &[u8], source: Source) {
        let core = &mut self.matching.ops.core;
        match &Packet::parse(bytes) {
            Ok(packet) => {
                let Some(peer) = core.identify_sender(packet, bytes, source) else { return };
                // The sender may have taken the place of another one: nothing of it is handled before that end is
                // settled.
                self.settle();
                self.handle_packet(peer, packet, bytes);
            }
            Err(error) => {
                let peer = core.peers.by_source(source);
                core.drop_packet_from(source, peer, DropReason::Malformed(*error));
            }
        }
    }

    fn handle_packet(&mut self, peer: PeerId, packet: &Packet<'_>, bytes: &[u8]) {
        let Packet { header, payload } = packet;
        let matching = &mut self.matching;
        match header {
            Header::Rtm(rtm) => matching.rtm_arrived(peer, rtm, payload, bytes),
            Header::Rta(rta) => matching.ordered_arrived(peer, rta.msg_id.0, bytes, |matching| {
                matching.ops.rta_arrived(peer, rta, payload);
            }),
            Header::PeerError(error) => matching.peer_error_arrived(peer, error),
            Header::Cts(cts) => matching.ops.cts_arrived(peer, cts),
            Header::CtsData(data) => matching.ops.ctsdata_arrived(peer, data, *payload),
            Header::Eor(eor) => matching.ops.eor_arrived(peer, eor),
            Header::Receipt(receipt) => matching.ops.receipt_arrived(peer, receipt),
            Header::ReadNack(nack) => matching.ops.read_nack_arrived(peer, nack),
            Header::Handshake(handshake) => matching.ops.handshake_arrived(peer, handshake),
            Header::Rtw(rtw) => matching.ops.rtw_arrived(peer, rtw, payload),
            Header::Rtr(rtr) => matching.ops.rtr_arrived(peer, rtr),
            Header::ReadRsp(response) => matching.ops.readrsp_arrived(peer, response, payload),
            Header::AtomRsp(response) => matching.ops.atomrsp_arrived(peer, response, payload),
            _ => {
                let reason = DropReason::Unsupported(packet.packet_type());
                matching.ops.core.drop_packet(peer, reason);
            }
        }
    }
}

/// Why the sender of a packet isn't found, and which peer it claims to be, if any.
type SenderError = (Option<PeerId>, DropReason);

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Returns the sender of a packet, and queues a HANDSHAKE for it if it is new. Without a sender the
    /// packet is dropped.
    ///
    /// The caller settles: the sender may take the place of a peer that ends by that.
    pub(crate) fn identify_sender(
        &mut self,
        packet: &Packet<'_>,
        bytes: &[u8],
        source: Source,
    ) -> Option<PeerId> {
        let known = packet.header.connid().and_then(|connid| self.recognise(source, connid));
        let peer = match known {
            Some(peer) => peer,
            None => self.identify_new_sender(packet, source)?,
        };
        self.statistics.received.count_type_of(bytes);
        tracing::trace!(peer = peer.0, packet = %packet, "received");
        Some(peer)
    }

    /// The next message of a peer and that peer, if this packet is one, complete.
    #[inline(always)]
    pub(crate) fn next_message<'a>(
        &mut self,
        bytes: &'a [u8],
        source: Source,
    ) -> Option<(PeerId, EagerConnid<'a>)> {
        let eager = EagerConnid::peek(bytes)?;
        let peer = self.next_sender(eager.msg_id, eager.connid, source)?;
        self.statistics.received.count(eager.packet_type());
        Some((peer, eager))
    }

    /// The sender of a message with this connid and ID, if it wrote lately, our HANDSHAKE was sent to it, and this is its
    /// next message.
    #[inline(always)]
    fn next_sender(&mut self, msg_id: MsgId, connid: Connid, source: Source) -> Option<PeerId> {
        let (peer, active) = self.peers.recognise(source, connid)?;
        (active.handshake.is_answered() && active.window.pass(msg_id.0)).then_some(peer)
    }

    /// The sender of a packet with this connid, if it wrote lately and our HANDSHAKE was sent to it.
    #[inline(always)]
    pub(crate) fn recognise(&mut self, source: Source, connid: Connid) -> Option<PeerId> {
        let (peer, active) = self.peers.recognise(source, connid)?;
        active.handshake.is_answered().then_some(peer)
    }

    #[inline(never)]
    fn identify_new_sender(&mut self, packet: &Packet<'_>, source: Source) -> Option<PeerId> {
        let peer = match self.sender(&packet.header, source) {
            Ok(peer) => peer,
            Err((peer, reason)) => {
                self.drop_packet_from(source, peer, reason);
                return None;
            }
        };
        let active = self.peers.activate(peer, &self.config);
        // A packet without connid may be from an earlier holder of the queue pair, whose successor
        // doesn't know us yet and would lose our HANDSHAKE. A sender of a HANDSHAKE answers ours.
        let is_from_peer =
            packet.header.connid().is_some() || matches!(packet.header, Header::Handshake(_));
        if is_from_peer && active.handshake.packet_received() == Some(Reply::Handshake) {
            self.enqueue_first(peer, Work::Handshake);
        }
        Some(peer)
    }

    /// Finds the sender of a packet, or adds it as a peer (sections 2.2 and 4.4).
    fn sender(&mut self, header: &Header<'_>, source: Source) -> Result<PeerId, SenderError> {
        if let Some(peer) = self.peers.by_source(source) {
            match (header.connid(), self.peers.address(peer)) {
                (Some(connid), Some(address)) if connid != address.connid => {
                    return self.other_incarnation(peer, address, header, connid);
                }
                (Some(_), _) => {}
                (None, _) => self.statistics.unverified += 1,
            }
            return Ok(peer);
        }
        if let Some(address) = header.raw_address() {
            if address.qpn != source.qpn.0 || self.is_elsewhere(address, source) {
                return Err((None, DropReason::ForgedAddress));
            }
            return self.introduced(*address, header);
        }
        // The device reports the interface of a sender that it has no handle for.
        let (Some(gid), Some(connid)) = (source.gid, header.connid()) else {
            return Err((None, DropReason::UnknownSender));
        };
        let address = RawAddress { gid: gid.0, qpn: source.qpn.0, connid };
        match self.peers.by_address(&address) {
            Some(peer) => self.unless_gone(peer),
            None => Err((None, DropReason::UnknownSender)),
        }
    }

    /// Whether the device knows that the sender is on another interface than this address.
    fn is_elsewhere(&self, address: &RawAddress, source: Source) -> bool {
        self.interface_of(source).is_some_and(|gid| gid.0 != address.gid)
    }

    /// A packet of another incarnation of a known queue pair: one that introduces itself with its address, or was
    /// introduced before.
    fn other_incarnation(
        &mut self,
        peer: PeerId,
        known: RawAddress,
        header: &Header<'_>,
        connid: Connid,
    ) -> Result<PeerId, SenderError> {
        let address = RawAddress { connid, ..known };
        if let Some(other) = self.peers.by_address(&address) {
            return self.unless_gone(other);
        }
        match header.raw_address() {
            Some(claimed) if *claimed == address => self.discover(address),
            Some(_) => Err((Some(peer), DropReason::ForgedAddress)),
            None => Err((Some(peer), DropReason::Stale)),
        }
    }

    /// A sender found by its address, which may be that of a peer that is gone.
    fn unless_gone(&self, peer: PeerId) -> Result<PeerId, SenderError> {
        match self.peers.status_of(peer) {
            PeerStatus::Live => Ok(peer),
            _ => Err((Some(peer), DropReason::Stale)),
        }
    }

    /// Whether only peers that the application inserted are known.
    pub(crate) fn refuses_strangers(&self) -> bool {
        self.config.bounds.discovered == 0
    }

    /// Whether a sender that was removed sends its first message: it has removed us too, or never sent one.
    fn begins_anew(&self, gone: PeerId, header: &Header<'_>) -> bool {
        let first = MsgId(self.config.first_msg_id);
        self.peers.may_return(gone) && matches!(header, Header::Rtm(rtm) if rtm.msg_id == first)
    }

    /// The sender of a packet that carries this address.
    fn introduced(
        &mut self,
        address: RawAddress,
        header: &Header<'_>,
    ) -> Result<PeerId, SenderError> {
        match self.peers.by_address(&address) {
            Some(known) if !self.begins_anew(known, header) => self.unless_gone(known),
            _ => self.discover(address),
        }
    }

    /// Adds a sender as a peer, within the bounds.
    fn discover(&mut self, address: RawAddress) -> Result<PeerId, SenderError> {
        if self.refuses_strangers() {
            return Err((None, DropReason::Stranger));
        }
        if self.peers.discovered >= self.config.bounds.discovered {
            return Err((None, DropReason::PeerTableFull));
        }
        if let Some((latest, count)) = self.peers.incarnations(&address)
            && count >= self.config.bounds.incarnations
        {
            return Err((Some(latest), DropReason::TooManyIncarnations));
        }
        match self.create_handle(&address) {
            Ok(handle) => {
                let (peer, former) = self.peers.discover(address, handle);
                self.events.push(Event::PeerDiscovered(peer));
                self.replaced(former, peer);
                Ok(peer)
            }
            Err(error) => {
                self.events.push(Event::DeviceRefused(error));
                Err((None, DropReason::PeerTableFull))
            }
        }
    }

    /// Adds a peer whose address is not known, or gone. The peer that held its queue pair ends; the
    /// caller settles that.
    pub(crate) fn add_peer(&mut self, address: RawAddress) -> Result<PeerId, DeviceError> {
        let handle = self.create_handle(&address)?;
        let (peer, replaced) = self.peers.insert(address, handle);
        self.replaced(replaced, peer);
        Ok(peer)
    }

    #[inline(always)]
    fn create_handle(&mut self, address: &RawAddress) -> Result<AddressHandle, DeviceError> {
        match self.peers.closed {
            Some(status) => Err(DeviceError::QueuePairFailed { status }),
            None => self.transmit.device.create_address_handle(gid(address)),
        }
    }

    /// The HANDSHAKE was delivered to a peer, so it has its queue pair, and the peer that had it ends.
    #[cold]
    pub(crate) fn handshake_delivered(&mut self, peer: PeerId) {
        let replaced = self.peers.holds_queue_pair(peer);
        self.replaced(replaced, peer);
    }

    #[inline]
    fn replaced(&mut self, old: Option<PeerId>, new: PeerId) {
        if let Some(old) = old {
            self.end_peer(old, OperationError::PeerRestarted);
            self.events.push(Event::PeerRestarted { old, new });
        }
    }
}

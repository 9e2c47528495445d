//! Long messages that the receiver reads from the sender's memory: long-read and runting read
//! (sections 4.1, 4.5 and 4.7).
//!
//! ```text
//!   sender                                           receiver
//!     │── LONGREAD_RTM (send_id, read_iov) ────────────►│ match
//!     │◄══════════════ RDMA read ══════════════════════ │
//!     │◄──────────────── EOR (send_id) ─────────────────│ complete
//!   complete when the EOR has arrived and the device has completed the request
//!
//!     │── RUNTREAD_RTM (read_iov, runt) ───────────────►│ ┐ the leading part, the runt, is sent in
//!     │── RUNTREAD_RTM (read_iov, runt) ───────────────►│ ┘ packets; the rest is read meanwhile
//!
//!     │◄───────────── READ_NACK (send_id, recv_id) ─────│ can't read
//!     │── LONGCTS_RTM (same msg_id, flag READ_NACK) ───►│ continues the same receive
//! ```

use std::num::NonZeroU64;

use efa_device::{Access, QueuePair, RemoteRange};
use efa_handshake::{EorLayout, Extras, PeerState, Support};
use efa_proto::{
    Eor, EorForm, LongReadConnid, MsgId, OpId, PacketType, ReadNack, ReqOptions, RmaIov, Rtm,
    RtmKind,
};

use crate::completion::{Completion, Level, OperationError};
use crate::core::Core;
use crate::endpoint::Message;
use crate::event::DropReason;
use crate::ids::PeerId;
use crate::memory::Memory;
use crate::operations::{Assembly, Operations, Reading, ReceiveRole, Send, SendOn, SendRole};
use crate::payload::Payload;
use crate::peer::Active;
use crate::remote::{NO_PIECES, Remote};
use crate::select::Subprotocol;
use crate::shape::Shape;
use crate::transfer::{Owner, Transfer};
use crate::work::{Advance, InFlight, Work};

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Whether a peer and this endpoint can read each other's memory.
    pub(crate) fn can_read(&self, peer: PeerId) -> bool {
        self.peers.active(peer).is_some_and(|active| active.reads_from.is_some())
    }

    /// Length in bytes of the shortest message that a peer reads, by its HANDSHAKE; `None` if a peer and this endpoint
    /// can't read each other's memory. The device's choice is for endpoints of this implementation: libfabric gives no
    /// answer for a message that is longer than its receive if it is to read it.
    pub(crate) fn reads_from(&self, known: &PeerState) -> Option<NonZeroU64> {
        let local = self.transmit.device.attributes();
        let can_read = self.config.profile.extras.contains(Extras::RDMA_READ)
            && known.supports(Extras::RDMA_READ) == Support::Yes
            && interoperable(local.vendor_part_id, known.device_version());
        let is_ours = known.supports(Extras::PEER_ERROR_20) == Support::Yes;
        self.min_read.by(is_ours).filter(|_| can_read)
    }

    /// Whether the peer can read, and the message is long enough for that.
    pub(crate) fn may_be_read(&self, send: &SendOn<Q, B>) -> bool {
        let reads_from = self.peers.active(send.peer).and_then(|active| active.reads_from);
        !self.min_read.excludes(send.length, || send.memory.is_mapped())
            && reads_from.is_some_and(|from| send.length >= from.get())
    }

    /// Whether messages to a peer may be sent by runting read. The runt uses the link until the peer's
    /// RDMA read starts; if the peer is reading another message, the link is in use already.
    pub(crate) fn may_runt(&self, peer: PeerId) -> bool {
        self.config.runt_size > 0
            && self.peers.active(peer).is_some_and(|active| active.reads_under_way == 0)
            && self.both_announce(peer, Extras::RUNTING_READ)
    }

    /// Counts a message that the peer has stopped reading.
    pub(crate) fn read_is_over(&mut self, peer: PeerId) {
        if let Some(active) = self.peers.active_mut(peer) {
            active.reads_under_way = active.reads_under_way.saturating_sub(1);
        }
    }

    fn can_nack(&self, peer: PeerId) -> bool {
        self.both_announce(peer, Extras::READ_NACK)
    }

    /// Whether the peer can read the buffer of a send; registers the buffer if it isn't registered.
    pub(crate) fn make_readable(&self, send: &mut SendOn<Q, B>) -> bool {
        if !self.can_read(send.peer) {
            return false;
        }
        match send.memory.exposed_from(0) {
            None => send.memory.register(&self.transmit.device, SOURCE),
            // Most buffers have one piece.
            Some(range) if range.length as u64 >= send.length => range.access.remote_read,
            Some(_) => send.memory.read_iov(send.length, &mut { NO_PIECES }).is_some(),
        }
    }

    /// Sends the LONGREAD_RTM, which carries no data.
    pub(crate) fn send_longread(
        &mut self,
        id: OpId,
        send: &mut SendOn<Q, B>,
        options: ReqOptions,
    ) -> Advance {
        let mut pieces = NO_PIECES;
        let readable = send.memory.read_iov(send.length, &mut pieces);
        let Some(read_iov) = readable else { return Advance::Done };
        send.in_packets = 0;
        let kind = RtmKind::LongRead { msg_length: send.length, send_id: id, read_iov };
        let rtm = Rtm { msg_id: MsgId(send.msg_id), tag: send.tag, kind, options };
        self.post_segment(id, send, rtm.packet_type(), 0, |packet| rtm.emit(packet))
    }

    /// Sends the RUNTREAD_RTM packets that carry the runt.
    pub(crate) fn send_runtread(
        &mut self,
        id: OpId,
        send: &mut SendOn<Q, B>,
        options: ReqOptions,
    ) -> Advance {
        let mut pieces = NO_PIECES;
        let readable = send.memory.read_iov(send.length, &mut pieces);
        let Some(read_iov) = readable else { return Advance::Done };
        let (msg_id, tag, msg_length) = (MsgId(send.msg_id), send.tag, send.length);
        let runt_length = self.config.runt_size.min(msg_length);
        send.in_packets = runt_length;
        let rtm = |seg_offset| {
            let kind =
                RtmKind::RuntRead { msg_length, send_id: id, seg_offset, runt_length, read_iov };
            Rtm { msg_id, tag, kind, options }
        };
        let parts = (rtm(0).len(), runt_length, usize::MAX);
        self.post_segments(id, send, rtm(0).packet_type(), parts, |packet, offset, _| {
            rtm(offset).emit(packet)
        })
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Starts a message that the peer is to read, if its request can go at once and names one piece of memory. Otherwise
    /// returns the message.
    pub(crate) fn send_longread_at_once(&mut self, message: Message<B>) -> Result<(), Message<B>> {
        let Message { peer, tag, cq_data, level, ref buffer, context } = message;
        let length = buffer.length();
        if self.core.min_read.excludes(length, || buffer.is_mapped())
            || level != Level::Transmit
            || cq_data.is_some()
            || self.check_new_send().is_err()
            || self.core.config.runt_size > 0
        {
            return Err(message);
        }
        let core = &mut self.core;
        let Some(active) = core.peers.active_mut(peer) else { return Err(message) };
        let goes = active.by_connid
            && !active.lacking
            && active.reads_from.is_some_and(|from| length >= from.get())
            && active.goes_at_once(&core.config);
        let readable =
            |of: &RemoteRange| goes && of.access.remote_read && of.length as u64 >= length;
        let Some(RemoteRange { memory, .. }) = buffer.exposed_from(0).filter(readable) else {
            return Err(message);
        };
        let msg_id = active.next_id();
        let buffer = Memory::Buffer(message.buffer);
        let send = Send::new(peer, SendRole::Message, buffer, length, context);
        let send_id = self.add_send(Send { tag, msg_id: msg_id.0, in_packets: 0, ..send });
        let Self { core, sends, .. } = self;
        let Some(send) = sends.get_mut(send_id) else { return Ok(()) };
        let memory = RmaIov::new(memory.address, length, memory.key.into());
        let (msg_length, connid) = (length, core.connid());
        let request = LongReadConnid { msg_id, tag, msg_length, send_id, memory, connid };
        let packet_type = request.packet_type();
        let advance =
            core.post_segment(send_id, send, packet_type, 0, |packet| request.emit(packet));
        core.note_subprotocol(send, Subprotocol::LongRead, 0);
        if advance.goes_on() {
            core.enqueue(peer, Work::Send(send_id));
        }
        Ok(())
    }

    /// Handles an EOR: the receiver has finished reading.
    pub(crate) fn eor_arrived(&mut self, peer: PeerId, eor: &Eor) {
        let send = self.sends.get_mut(eor.send_id);
        let Some(send) = send.filter(|send| send.peer == peer && send.is_being_read()) else {
            return self.core.drop_packet(peer, DropReason::UnknownOperation);
        };
        send.confirmed = true;
        self.core.read_is_over(peer);
        self.end_send_if_done(eor.send_id);
    }

    /// Handles a READ_NACK: the receiver can't read, so the rest of the message is sent by long-CTS.
    pub(crate) fn read_nack_arrived(&mut self, peer: PeerId, nack: &ReadNack) {
        let id = nack.send_id;
        let send = self.sends.get_mut(id);
        let Some(send) = send.filter(|send| send.peer == peer && send.is_being_read()) else {
            return self.core.drop_packet(peer, DropReason::UnknownOperation);
        };
        send.memory.deregister();
        send.subprotocol = None;
        send.read_nack = true;
        send.in_packets = send.length;
        self.core.read_is_over(peer);
        self.core.enqueue(peer, Work::Send(id));
    }

    /// Starts to read a matched message, or a write, behind its runt and up to the buffer's length.
    pub(crate) fn begin_longread(&mut self, peer: PeerId, id: OpId, shape: &Shape, iov: &[RmaIov]) {
        let Some(receive) = self.receives.get_mut(id) else { return };
        if receive.runt_length == receive.length
            && receive.subprotocol == Some(Subprotocol::RuntRead)
        {
            return;
        }
        let end = receive.length.min(receive.memory.length()).max(shape.runt_length);
        let start = shape.runt_length;
        if start < end && self.must_refuse(peer, id) {
            return self.refuse_reading(id, OperationError::NotReadable);
        }
        let transfer = Transfer::new(peer, Owner::Receive(id), Remote::named(iov), start, end);
        let transfer = self.begin_transfer(transfer);
        if let Some(receive) = self.receives.get_mut(id)
            && self.transfers.get(transfer).is_some()
        {
            receive.reading = Reading::UnderWay(transfer);
        }
    }

    /// Whether reading must be refused: the device has no RDMA read, or there is neither a registered
    /// buffer nor a bounce region and the peer understands READ_NACK.
    fn must_refuse(&mut self, peer: PeerId, id: OpId) -> bool {
        let device = &self.core.transmit.device;
        if !device.attributes().rdma.read {
            return true;
        }
        let Some(receive) = self.receives.get_mut(id) else { return true };
        let registered =
            receive.memory.is_registered() || receive.memory.register(device, Access::default());
        // Messages of peers without READ_NACK wait until there is a bounce region. Writes wait too:
        // releases before 2.0 answer a READ_NACK for a write with a message.
        let may_nack = receive.role == ReceiveRole::Message;
        !registered
            && may_nack
            && self.core.can_nack(peer)
            && !self.core.transmit.has_bounce(self.core.config.bounce_size)
    }

    /// Handles a message or write that can't be read: asks the sender by READ_NACK to send it in
    /// packets, or fails the receive if the sender doesn't support that.
    pub(crate) fn refuse_reading(&mut self, id: OpId, error: OperationError) {
        let Some(receive) = self.receives.get_mut(id) else { return };
        // The last segment of the runt may have come between the HANDSHAKE and this.
        if receive.reading == Reading::Nacked {
            return;
        }
        receive.reading = Reading::Refused;
        let (peer, role) = (receive.peer, receive.role);
        // Its request may overtake the HANDSHAKE, which says what the sender takes. Refusals of receives that
        // ended meanwhile wait too.
        let limit = self.core.config.bounds.responses;
        if let Some(active) = self.core.peers.active_mut(peer)
            && !active.handshake.is_known()
            && active.awaiting_handshake.len() < limit
        {
            return self.core.await_handshake(peer, Work::RefuseReading { id, error });
        }
        if role == ReceiveRole::Message && self.core.can_nack(peer) {
            self.nack_if_due(id);
        } else {
            self.give_up_reading(id, error);
            self.end_receive(id, Some(error));
        }
    }

    /// Queues a READ_NACK for a message that can't be read, if its whole runt has arrived: the sender
    /// continues behind the runt.
    pub(crate) fn nack_if_due(&mut self, id: OpId) {
        let Some(receive) = self.receives.get_mut(id) else { return };
        if !self.core.can_nack(receive.peer) {
            return;
        }
        if receive.reading == Reading::Refused && receive.coverage.bytes() >= receive.runt_length {
            receive.reading = Reading::Nacked;
            let peer = receive.peer;
            let key = (peer.0, receive.msg_id);
            self.assembling.insert(key, Assembly::Receiving(id));
            self.core.enqueue(peer, Work::ReadNack(id));
        }
    }

    /// Handles the LONGCTS_RTM that continues a message after a READ_NACK.
    pub(crate) fn nacked_message_arrived(&mut self, peer: PeerId, rtm: &Rtm<'_>, shape: &Shape) {
        let known = self.assembling.get(&(peer.0, rtm.msg_id.0)).copied();
        let Some(Assembly::Receiving(id)) = known else {
            return self.core.drop_packet(peer, DropReason::UnknownOperation);
        };
        let Some(receive) = self.receives.get_mut(id) else { return };
        if receive.reading != Reading::Nacked || receive.length != shape.length {
            return self.core.drop_packet(peer, DropReason::UnknownOperation);
        }
        receive.reading = Reading::No;
        receive.subprotocol = Some(Subprotocol::LongCts);
        receive.granted = receive.coverage.bytes();
        receive.send_id = shape.send_id;
        receive.receipt = shape.receipt;
        self.assembling.remove(&(peer.0, rtm.msg_id.0));
        self.core.enqueue(peer, Work::Cts(id));
    }

    /// Ends the transfer of a receive: the device has read everything from `start` on, or `failed`. Returns the completion
    /// of the receive if it ends.
    pub(crate) fn memory_read(
        &mut self,
        id: OpId,
        start: u64,
        failed: Option<OperationError>,
    ) -> Option<Completion<B>> {
        let receive = self.receives.get_mut(id)?;
        receive.reading = Reading::No;
        let (peer, length, role) = (receive.peer, receive.length, receive.role);
        if failed.is_none() {
            let _ = receive.coverage.insert(start, length);
        }
        match failed {
            _ if matches!(role, ReceiveRole::Read { .. }) => {}
            None => {
                let (send_id, recv_id) = (receive.send_id, id);
                let complete = receive.coverage.bytes() == length;
                self.confirm_reading(peer, send_id, recv_id);
                if !complete {
                    return None;
                }
            }
            Some(OperationError::GivenUp { .. }) => {}
            Some(OperationError::Device(status)) if status.is_peer_gone() => {}
            // The peer has ended; the receive was kept until the device finished reading into it.
            Some(_) if self.core.peers.active(peer).is_none() => {}
            Some(error) => {
                self.refuse_reading(id, error);
                return None;
            }
        }
        let completion = self.receive_end(id, failed);
        self.core.lose_if_gone(Some(peer), failed);
        completion
    }

    /// Tells a sender that its memory was read: at once, unless something waits to be sent to it.
    #[inline(always)]
    pub(crate) fn confirm_reading(&mut self, peer: PeerId, send_id: OpId, recv_id: OpId) {
        let clear = self.core.peers.active(peer).is_some_and(Active::is_clear);
        if !clear || self.send_eor(peer, send_id, recv_id).goes_on() {
            self.core.queue_response(peer, Work::Eor { send_id, recv_id });
        }
    }

    pub(crate) fn send_eor(&mut self, peer: PeerId, send_id: OpId, recv_id: OpId) -> Advance {
        let form = match self.core.config.profile.eor {
            EorLayout::Short => EorForm::Short,
            EorLayout::Full => EorForm::Full { connid: self.core.packet_connid() },
        };
        let eor = Eor { send_id, recv_id, form };
        let record = |length| InFlight::control(peer, PacketType::Eor, length);
        self.post_control(record, |packet| eor.emit(packet))
    }

    pub(crate) fn send_read_nack(&mut self, peer: PeerId, id: OpId) -> Advance {
        let Some(receive) = self.receives.get(id) else { return Advance::Done };
        let nack =
            ReadNack { send_id: receive.send_id, recv_id: id, connid: self.core.packet_connid() };
        let record = |length| InFlight::control(peer, PacketType::ReadNack, length);
        self.post_control(record, |packet| nack.emit(packet))
    }
}

/// Access of the peer to a send's buffer that it reads.
const SOURCE: Access = Access { remote_read: true, remote_write: false };

/// Whether two devices can read each other's memory: the first generation of EFA and later ones can't.
/// Releases before 1.20 don't announce their device; they are taken to be compatible.
fn interoperable(local: u32, peer: Option<u32>) -> bool {
    const FIRST: u32 = 0xefa0;
    peer.is_none_or(|peer| (local == FIRST) == (peer == FIRST))
}

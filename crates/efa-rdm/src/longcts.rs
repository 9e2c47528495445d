//! Long messages under flow control: long-CTS (section 3.2).
//!
//! ```text
//!   sender                                           receiver
//!     │── LONGCTS_RTM (send_id, first bytes) ──────────►│ match (no CTS before that)
//!     │◄───────── CTS (send_id, recv_id, recv_length) ──│ grant a window
//!     │── CTSDATA (recv_id, offset) ───────────────────►│ ┐ in any order
//!     │── CTSDATA (recv_id, offset) ───────────────────►│ ┘
//!     │◄───────── CTS (send_id, recv_id, recv_length) ──│ the window is used up: next one
//!     │── CTSDATA … ───────────────────────────────────►│ complete when all bytes have arrived
//!   complete when the device has completed all packets
//! ```

use efa_device::QueuePair;
use efa_proto::{Cts, CtsData, MsgId, OpId, PacketType, ReqOptions, Rtm, RtmKind};

use crate::completion::Level;
use crate::core::Core;
use crate::event::DropReason;
use crate::ids::PeerId;
use crate::operations::{Operations, Reached, ReceiveRole, SendOn, SendRole};
use crate::payload::Payload;
use crate::segment::{Arrived, Segment};
use crate::select::Subprotocol;
use crate::work::{Advance, InFlight, Work};

/// CTSDATA packets that one operation sends in a row before others get their turn.
const BURST: usize = 16;

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Sends the LONGCTS_RTM with the first bytes.
    pub(crate) fn send_longcts(
        &mut self,
        id: OpId,
        send: &mut SendOn<Q, B>,
        options: ReqOptions,
    ) -> Advance {
        let (msg_length, send_id, read_nack) = (send.length, id, send.read_nack);
        let credit_request = self.config.cts_window;
        let kind = match send.level {
            Level::Inject | Level::Transmit => {
                RtmKind::LongCts { msg_length, send_id, credit_request, read_nack }
            }
            Level::Delivery => {
                RtmKind::DcLongCts { msg_length, send_id, credit_request, read_nack }
            }
        };
        let rtm = Rtm { msg_id: MsgId(send.msg_id), tag: send.tag, kind, options };
        // At least one byte must be left for the receiver to grant. After a READ_NACK the request
        // carries no data (section 4.7).
        let first = self.longest_segment(rtm.len()).min(msg_length - 1);
        let first = if read_nack { 0 } else { first };
        let advance =
            self.post_segment(id, send, rtm.packet_type(), first, |packet| rtm.emit(packet));
        // No window has been granted: only the request's bytes may be sent.
        send.window_end = send.sent;
        advance
    }

    /// Sends CTSDATA up to the end of the window, at most [`BURST`] packets.
    pub(crate) fn send_ctsdata(&mut self, id: OpId, send: &mut SendOn<Q, B>) -> Advance {
        let active = self.peers.active(send.peer);
        let connid =
            active.is_some_and(|active| active.handshake.gets_connid(&self.config.profile));
        let connid = connid.then(|| self.connid());
        let recv_id = send.recv_id;
        let data = |seg_offset, seg_length| CtsData { connid, recv_id, seg_length, seg_offset };
        let parts = (data(0, 0).len(), send.window_end, BURST);
        let emit = |packet: &mut [u8], offset, length| data(offset, length).emit(packet);
        if self.copies_segments(send) {
            return self.post_copied_segments(id, send, PacketType::CtsData, parts, emit);
        }
        self.post_segments(id, send, PacketType::CtsData, parts, emit)
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Handles a CTS, which grants the next window.
    pub(crate) fn cts_arrived(&mut self, peer: PeerId, cts: &Cts) {
        let send = self.sends.get_mut(cts.send_id);
        let Some(send) = send.filter(|send| send.peer == peer) else {
            return self.core.drop_packet(peer, DropReason::UnknownOperation);
        };
        let expected = send.subprotocol == Some(Subprotocol::LongCts) && send.sent < send.length;
        let is_read = send.role == SendRole::ReadResponse;
        if !expected || cts.recv_length == 0 || cts.emulated_read != is_read {
            return self.core.drop_packet(peer, DropReason::BadCts);
        }
        let had_window = send.sent < send.window_end;
        send.window_end = send.sent.saturating_add(cts.recv_length).min(send.length);
        send.recv_id = cts.recv_id;
        send.reached = Reached::Granted;
        if had_window {
            return;
        }
        // Receivers since 1.14 can't identify the sender of CTSDATA before they have our connid. They
        // have it when their HANDSHAKE has arrived here: it answers ours, which carries the connid.
        // Older receivers write no connid in the CTS.
        let Some(active) = self.core.peers.active_mut(peer) else { return };
        let must_wait = self.core.config.profile.ctsdata_after_handshake
            && cts.connid.is_some()
            && !active.handshake.is_known();
        if must_wait {
            self.core.await_handshake(peer, Work::Send(cts.send_id));
        } else {
            self.core.enqueue(peer, Work::Send(cts.send_id));
        }
    }

    /// Starts a matched long-CTS message or a long-CTS write: copies the request's data and queues a
    /// CTS.
    pub(crate) fn begin_longcts(&mut self, peer: PeerId, id: OpId, payload: &[u8]) {
        if !payload.is_empty() {
            self.segment_arrived(id, 0, payload);
        }
        self.core.enqueue(peer, Work::Cts(id));
    }

    /// Sends a CTS for the next window: at least one packet's worth of bytes, or all that is left.
    pub(crate) fn send_cts(&mut self, peer: PeerId, id: OpId) -> Advance {
        let Some(receive) = self.receives.get(id) else { return Advance::Done };
        let largest = self.core.left_of_packet(CTSDATA_HEADER);
        let window = largest.saturating_mul(u64::from(self.core.config.cts_window));
        let recv_length = window.min(receive.length - receive.granted);
        let cts = Cts {
            connid: self.core.packet_connid(),
            send_id: receive.send_id,
            recv_id: id,
            recv_length,
            emulated_read: matches!(receive.role, ReceiveRole::Read { .. }),
        };
        let record = |length| InFlight::control(peer, PacketType::Cts, length);
        let advance = self.post_control(record, |packet| cts.emit(packet));
        if advance == Advance::Done
            && let Some(receive) = self.receives.get_mut(id)
        {
            receive.granted += recv_length;
        }
        advance
    }

    /// Handles a CTSDATA packet: queues a CTS if the granted window is used up, and completes the receive with the last
    /// one. Drops a packet that lies beyond the window.
    #[inline(always)]
    pub(crate) fn ctsdata_arrived(
        &mut self,
        peer: PeerId,
        data: &CtsData,
        payload: &(impl Arrived<Q, B> + ?Sized),
    ) {
        let Self { core, receives, .. } = self;
        let id = data.recv_id;
        let receive = receives.get_mut(id);
        let receive =
            receive.filter(|of| of.peer == peer && of.subprotocol == Some(Subprotocol::LongCts));
        let Some(receive) = receive else {
            return core.drop_packet(peer, DropReason::UnknownOperation);
        };
        let end = data.seg_offset.checked_add(payload.length() as u64);
        if payload.length() == 0 || end.is_none_or(|end| end > receive.granted) {
            return core.drop_packet(peer, DropReason::SegmentOutOfRange);
        }
        match core.take_segment(receive, data.seg_offset, payload) {
            Ok(Segment::Partial) if receive.coverage.bytes() == receive.granted => {
                self.core.enqueue(peer, Work::Cts(id));
            }
            Ok(Segment::Partial) => {}
            taken => self.last_or_bad_segment_taken(id, peer, taken),
        }
    }
}

/// Length in bytes of the CTSDATA header with connid, the longer form.
pub(crate) const CTSDATA_HEADER: usize = 32;

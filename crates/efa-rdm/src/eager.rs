//! Eager messages: one packet (section 3.2).
//!
//! ```text
//!   sender                         receiver
//!     │── EAGER_RTM (all data) ──────►│ match, copy, complete
//!     │◄─ (the device's completion) ──│
//!   complete
//! ```

use efa_device::QueuePair;
use efa_proto::{MsgId, OpId, PacketType, Rtm, RtmKind, Tag};

use crate::arrival::Shape;
use crate::completion::{Level, OperationError, ReceiveCompletion, StartError};
use crate::endpoint::Endpoint;
use crate::matching::Target;
use crate::payload::Payload;
use crate::peer::{Active, PeerId};
use crate::select::{self, Circumstances, Subprotocol};
use crate::transmit::{Advance, InFlight, PostFailure, Purpose, Work};

const fn packet_type(tag: Option<Tag>) -> PacketType {
    match tag {
        Some(_) => PacketType::EagerTagRtm,
        None => PacketType::EagerMsgRtm,
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// Selects the subprotocol of a send and writes its first packets.
    pub(crate) fn begin_send(&mut self, id: OpId) -> Advance {
        let Some(send) = self.operations.sends.get(id) else { return Advance::Done };
        if self.takes_plain(send.peer) {
            return self.send_plain(id);
        }
        let rtm = Rtm {
            msg_id: MsgId(send.msg_id),
            tag: send.tag,
            kind: match send.level {
                Level::Transmit => RtmKind::Eager,
                Level::Delivery => RtmKind::DcEager { send_id: id },
            },
            options: self.request_options(send.peer, send.cq_data),
        };
        let level = send.level;
        let (peer, length, before) = (send.peer, send.length, send.outstanding);
        let subprotocol = if send.read_nack {
            Subprotocol::LongCts
        } else {
            let fits = (self.transmit.mtu() - rtm.len()) as u64;
            let readable = length >= self.config.min_read && self.make_readable(id, peer);
            let runting = readable && level == Level::Transmit && self.may_runt(peer);
            let message = Circumstances { length, fits, readable, runting };
            select::subprotocol(message, &self.config)
        };
        let advance = match subprotocol {
            Subprotocol::Eager => self.send_eager(id, &rtm),
            Subprotocol::Medium => self.send_medium(id),
            Subprotocol::LongCts => self.send_longcts(id),
            Subprotocol::LongRead => self.send_longread(id),
            Subprotocol::RuntRead => self.send_runtread(id),
            // Messages are not written.
            Subprotocol::Direct => Advance::Done,
        };
        self.began(id, subprotocol, before);
        advance
    }

    fn send_eager(&mut self, id: OpId, rtm: &Rtm<'_>) -> Advance {
        let Some(send) = self.operations.sends.get(id) else { return Advance::Done };
        self.post_segment(id, rtm.packet_type(), 0, send.length, |packet| rtm.emit(packet))
    }

    /// Writes and posts a packet of a send: a header and `length` bytes from `offset` on.
    pub(crate) fn post_segment(
        &mut self,
        id: OpId,
        packet_type: PacketType,
        offset: u64,
        length: u64,
        emit: impl FnOnce(&mut [u8]) -> Result<usize, efa_proto::EmitError>,
    ) -> Advance {
        let Some(send) = self.operations.sends.get_mut(id) else { return Advance::Done };
        let Ok(mut packet) = self.transmit.packet() else { return Advance::Blocked };
        let bytes = packet.as_mut();
        // The caller made sure that header and segment fit the MTU.
        let written = emit(bytes).ok().and_then(|header| {
            let end = header.checked_add(usize::try_from(length).ok()?)?;
            send.memory.read(offset, bytes.get_mut(header..end)?);
            Some(end)
        });
        let Some(end) = written else {
            self.transmit.recycle(packet);
            self.fail_send(id, OperationError::Device(efa_device::Status::BadLength));
            return Advance::Done;
        };
        let record = InFlight {
            peer: send.peer,
            purpose: Purpose::Send { id, msg_id: send.msg_id },
            packet_type,
            length: end as u32,
            retransmitted: false,
        };
        self.post_part(id, packet, record, length)
    }

    /// Posts a packet with `length` bytes of a send.
    #[inline(always)]
    pub(crate) fn post_part(
        &mut self,
        id: OpId,
        packet: Q::Packet,
        record: InFlight,
        length: u64,
    ) -> Advance {
        match self.post_packet(packet, record) {
            Ok(()) => {
                if let Some(send) = self.operations.sends.get_mut(id) {
                    send.sent += length;
                    send.outstanding += 1;
                }
                if let Some(active) = self.peers.active_mut(record.peer) {
                    active.handshake.request_posted();
                }
                Advance::Done
            }
            Err(PostFailure::Blocked) => Advance::Blocked,
            Err(PostFailure::Refused(status)) => {
                self.packet_failed(record, status);
                Advance::Done
            }
        }
    }

    /// Sends a whole message without an operation.
    pub(crate) fn inject_eager(
        &mut self,
        peer: PeerId,
        tag: Option<Tag>,
        cq_data: Option<u64>,
        bytes: &[u8],
    ) -> Result<(), StartError> {
        let busy = StartError::Busy { limit: self.config.max_sends };
        // Without an operation it can't be held behind others.
        let waits = |active: &Active<_>| {
            active.backlog.len() >= self.config.max_sends
                || active.must_hold(Level::Transmit, &self.config)
        };
        if self.peers.active(peer).is_some_and(waits) {
            return Err(busy);
        }
        if self.takes_plain(peer) {
            return self.inject_plain(peer, tag, cq_data, bytes);
        }
        let Ok(mut packet) = self.transmit.packet() else { return Err(busy) };
        let options = self.request_options(peer, cq_data);
        let active = self.peers.converse(peer, &self.config);
        let msg_id = MsgId(active.next_msg_id);
        let rtm = Rtm { msg_id, tag, kind: RtmKind::Eager, options };
        let written = rtm.emit(packet.as_mut()).ok().and_then(|header| {
            let end = header + bytes.len();
            packet.as_mut().get_mut(header..end)?.copy_from_slice(bytes);
            Some(end)
        });
        let Some(end) = written else {
            self.transmit.recycle(packet);
            let limit = self.inject_limit();
            return Err(StartError::TooLongToInject { length: bytes.len(), limit });
        };
        active.take_msg_id();
        active.handshake.request_posted();
        let record = InFlight {
            peer,
            purpose: Purpose::Inject { tag, length: bytes.len() as u32 },
            packet_type: packet_type(tag),
            length: end as u32,
            retransmitted: false,
        };
        self.post_or_queue_up(packet, record);
        Ok(())
    }

    /// Posts a packet, or puts it behind what waits before it.
    pub(crate) fn post_or_queue_up(&mut self, packet: Q::Packet, record: InFlight) {
        if self.peers.active(record.peer).is_some_and(Active::is_clear) {
            self.post_or_enqueue(packet, record);
        } else {
            self.enqueue(record.peer, Work::Packet { packet, record });
        }
    }

    /// All bytes of a message are in one packet: copy what fits and complete.
    pub(crate) fn receive_whole(
        &mut self,
        target: Target<B>,
        peer: PeerId,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
    ) {
        let mut buffer = target.buffer;
        let capacity = buffer.length();
        let fitting = usize::try_from(capacity).map_or(payload.len(), |c| c.min(payload.len()));
        buffer.write(0, &payload[..fitting]);
        if shape.receipt {
            let (send_id, msg_id) = (shape.send_id, rtm.msg_id.0);
            self.enqueue(peer, Work::Receipt { send_id, msg_id });
        }
        let truncated = OperationError::Truncated { length: shape.length, capacity };
        self.received(ReceiveCompletion {
            context: target.context,
            peer: Some(peer),
            tagged: target.tagged,
            tag: rtm.tag.unwrap_or(0),
            length: fitting as u64,
            cq_data: rtm.options.cq_data,
            subprotocol: Some(shape.subprotocol),
            buffer,
            result: if shape.length > capacity { Err(truncated) } else { Ok(()) },
        });
    }
}

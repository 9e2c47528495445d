//! Medium messages: several packets at once, without flow control (section 3.2).
//!
//! ```text
//!   sender                                    receiver
//!     │── MEDIUM_RTM (offset 0) ────────────────►│ ┐
//!     │── MEDIUM_RTM (offset n) ────────────────►│ ├ in any order: the first to come matches,
//!     │── MEDIUM_RTM (offset 2n) ───────────────►│ ┘ the others find it by (peer, msg_id)
//!     │◄─ (the device's completions) ────────────│ complete when all bytes are in
//!   complete
//! ```
//!
//! When the device's queue fills in the middle, what was sent stands and the rest follows later.

use efa_device::QueuePair;
use efa_proto::{MsgId, OpId, Rtm, RtmKind};

use crate::arrival::Shape;
use crate::completion::Level;
use crate::coverage::Covered;
use crate::event::DropReason;
use crate::longread::Reading;
use crate::matching::Assembly;
use crate::operations::Operations;
use crate::payload::Payload;
use crate::peer::PeerId;
use crate::transmit::Advance;

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// It was copied and the message is not whole yet.
    Taken,
    /// It made the message whole.
    Last,
    /// It was dropped.
    Dropped,
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Sends the segments that are left.
    pub(crate) fn send_medium(&mut self, id: OpId) -> Advance {
        while let Some(send) = self.sends.get(id)
            && send.sent < send.length
        {
            let rtm = Rtm {
                msg_id: MsgId(send.msg_id),
                tag: send.tag,
                kind: match send.level {
                    Level::Transmit => {
                        RtmKind::Medium { msg_length: send.length, seg_offset: send.sent }
                    }
                    Level::Delivery => RtmKind::DcMedium {
                        send_id: id,
                        msg_length: send.length,
                        seg_offset: send.sent,
                    },
                },
                options: self.core.request_options(send.peer, send.cq_data),
            };
            let packet_type = rtm.packet_type();
            let room = (self.core.transmit.mtu() - rtm.len()) as u64;
            let (offset, length) = (send.sent, room.min(send.length - send.sent));
            let advance =
                self.post_segment(id, packet_type, offset, length, |packet| rtm.emit(packet));
            if advance != Advance::Done {
                return advance;
            }
        }
        Advance::Done
    }

    /// The first segment to come has been matched.
    pub(crate) fn begin_medium(
        &mut self,
        (peer, msg_id): (PeerId, MsgId),
        id: OpId,
        shape: &Shape,
        payload: &[u8],
    ) {
        self.assembling.insert((peer.0, msg_id.0), Assembly::Receiving(id));
        self.segment_arrived(id, shape.offset, payload);
    }

    /// Another segment came.
    pub(crate) fn medium_arrived(
        &mut self,
        id: OpId,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
    ) {
        let Some(receive) = self.receives.get_mut(id) else { return };
        // A message that is asked for by READ_NACK goes on by long-CTS. Segments with its number are of
        // another one: of a sender that has forgotten this endpoint since.
        if receive.subprotocol != Some(shape.subprotocol)
            || receive.length != shape.length
            || receive.receipt != shape.receipt
            || receive.runt_length != shape.runt_length
            || receive.tagged != rtm.tag.is_some()
            || receive.tag != rtm.tag.unwrap_or(0)
        {
            let peer = receive.peer;
            return self.core.drop_packet(Some(peer), DropReason::SegmentOutOfRange);
        }
        receive.cq_data = receive.cq_data.or(rtm.options.cq_data);
        self.segment_arrived(id, shape.offset, payload);
    }

    /// Copies a segment that lies within its message, once; completes the receive with the last.
    pub(crate) fn segment_arrived(&mut self, id: OpId, offset: u64, payload: &[u8]) -> Segment {
        let Some(receive) = self.receives.get_mut(id) else { return Segment::Dropped };
        let peer = receive.peer;
        let end = offset + payload.len() as u64;
        let reason = match receive.coverage.insert(offset, end) {
            Covered::New => None,
            Covered::Repeated => Some(DropReason::RepeatedSegment),
            Covered::TooScattered => Some(DropReason::TooScattered),
        };
        if let Some(reason) = reason {
            self.core.drop_packet(Some(peer), reason);
            return Segment::Dropped;
        }
        let capacity = receive.memory.length();
        if offset < capacity {
            let fitting = usize::try_from(end.min(capacity) - offset).unwrap_or(payload.len());
            receive.memory.write(offset, &payload[..fitting]);
        }
        if receive.coverage.bytes() == receive.length {
            self.end_receive(id, None);
            return Segment::Last;
        }
        if receive.reading == Reading::Refused {
            self.nack_if_due(id);
        }
        Segment::Taken
    }
}

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

use crate::completion::Level;
use crate::event::DropReason;
use crate::ids::PeerId;
use crate::operations::{Assembly, Operations};
use crate::payload::Payload;
use crate::shape::Shape;
use crate::work::Advance;

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Sends the segments that are left.
    pub(crate) fn send_medium(&mut self, id: OpId) -> Advance {
        let Self { core, sends, .. } = self;
        let Some(send) = sends.get_mut(id) else { return Advance::Done };
        let (msg_id, tag, msg_length) = (MsgId(send.msg_id), send.tag, send.length);
        let options = core.request_options(send.peer, send.cq_data);
        while send.sent < msg_length {
            let seg_offset = send.sent;
            let kind = match send.level {
                Level::Transmit => RtmKind::Medium { msg_length, seg_offset },
                Level::Delivery => RtmKind::DcMedium { send_id: id, msg_length, seg_offset },
            };
            let rtm = Rtm { msg_id, tag, kind, options };
            let length = core.left_of_packet(rtm.len()).min(msg_length - seg_offset);
            let advance =
                core.post_segment(id, send, rtm.packet_type(), length, |packet| rtm.emit(packet));
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
}

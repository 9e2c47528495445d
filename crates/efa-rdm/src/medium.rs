//! Medium messages: several packets, without flow control (section 3.2).
//!
//! ```text
//!   sender                                    receiver
//!     │── MEDIUM_RTM (offset 0) ────────────────►│ ┐
//!     │── MEDIUM_RTM (offset n) ────────────────►│ ├ in any order: the first to arrive is matched,
//!     │── MEDIUM_RTM (offset 2n) ───────────────►│ ┘ the others are found by (peer, msg_id)
//!     │◄─ (the device's completions) ────────────│ complete when all bytes have arrived
//!   complete
//! ```
//!
//! When the device's send queue is full, the remaining segments are sent later.

use efa_device::{QueuePair, Source};
use efa_proto::{Connid, MediumConnid, MsgId, OpId, ReqOptions, Rtm, RtmKind};

use crate::completion::Level;
use crate::core::Core;
use crate::event::DropReason;
use crate::ids::PeerId;
use crate::operations::{Assembly, Operations, Send, SendOn};
use crate::payload::Payload;
use crate::segment::{Arrived, Segment};
use crate::select::Subprotocol;
use crate::shape::Shape;
use crate::work::Advance;

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Starts a receive with the first segment to arrive, which was matched. Without payload that arrives as a
    /// [further](Self::further_medium_arrived) one.
    pub(crate) fn begin_medium(
        &mut self,
        (peer, msg_id): (PeerId, MsgId),
        id: OpId,
        shape: &Shape,
        payload: &[u8],
    ) {
        self.assembling.insert((peer.0, msg_id.0), Assembly::Receiving(id));
        self.last_medium = id;
        if !payload.is_empty() {
            self.segment_arrived(id, shape.offset, payload);
        }
    }

    /// Handles a further segment of the message that got the last one, if it agrees with the message and its sender wrote
    /// lately. Its payload may be elsewhere. Otherwise does nothing, and returns `false`.
    #[inline(always)]
    pub(crate) fn further_medium_arrived(
        &mut self,
        medium: &MediumConnid<'_>,
        source: Source,
        payload: &(impl Arrived<Q, B> + ?Sized),
    ) -> bool {
        let Self { core, receives, last_medium: id, .. } = self;
        let MediumConnid { msg_id, tag, msg_length, seg_offset, connid, .. } = *medium;
        let last = receives.get_mut(*id).filter(|receive| receive.msg_id == msg_id.0);
        let Some(receive) = last else { return false };
        let Some(peer) = core.recognise(source, connid) else { return false };
        let end = seg_offset.checked_add(payload.length() as u64);
        let agrees = receive.peer == peer
            && receive.subprotocol == Some(Subprotocol::Medium)
            && receive.length == msg_length
            && !receive.receipt
            && receive.tagged == tag.is_some()
            && receive.tag == tag.unwrap_or(0)
            && payload.length() > 0
            && end.is_some_and(|end| end <= msg_length);
        if agrees {
            core.statistics.received.count(medium.packet_type());
            let taken = core.take_segment(receive, seg_offset, payload);
            if taken != Ok(Segment::Partial) {
                let id = *id;
                self.last_or_bad_segment_taken(id, peer, taken);
            }
        }
        agrees
    }

    /// Handles another segment of a message. Drops it if its header disagrees with the first one's.
    pub(crate) fn medium_arrived(
        &mut self,
        id: OpId,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
    ) {
        let Some(receive) = self.receives.get_mut(id) else { return };
        // A message continued after a READ_NACK arrives by long-CTS. A medium or runting-read segment
        // with its ID is of another message: the sender has removed this endpoint since and reuses the ID.
        if receive.subprotocol != Some(shape.subprotocol)
            || receive.length != shape.length
            || receive.receipt != shape.receipt
            || receive.runt_length != shape.runt_length
            || receive.tagged != rtm.tag.is_some()
            || receive.tag != rtm.tag.unwrap_or(0)
        {
            let peer = receive.peer;
            return self.core.drop_packet(peer, DropReason::SegmentOutOfRange);
        }
        receive.cq_data = receive.cq_data.or(rtm.options.cq_data);
        self.last_medium = id;
        self.segment_arrived(id, shape.offset, payload);
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Sends the remaining segments, until the device's send queue is full.
    pub(crate) fn send_medium(
        &mut self,
        id: OpId,
        send: &mut SendOn<Q, B>,
        options: ReqOptions,
    ) -> Advance {
        let (msg_id, tag, msg_length) = (MsgId(send.msg_id), send.tag, send.length);
        if let (ReqOptions { raw_address: None, cq_data: None, connid: Some(connid) }, false) =
            (options, send.level == Level::Delivery)
        {
            return self.send_medium_by_connid(id, send, connid);
        }
        let level = send.level;
        let rtm = |seg_offset| {
            let kind = match level {
                Level::Inject | Level::Transmit => RtmKind::Medium { msg_length, seg_offset },
                Level::Delivery => RtmKind::DcMedium { send_id: id, msg_length, seg_offset },
            };
            Rtm { msg_id, tag, kind, options }
        };
        let parts = (rtm(0).len(), msg_length, usize::MAX);
        self.post_segments(id, send, rtm(0).packet_type(), parts, |packet, offset, _| {
            rtm(offset).emit(packet)
        })
    }

    /// Sends the remaining segments to a peer that gets the connid and nothing else in their headers.
    fn send_medium_by_connid(
        &mut self,
        id: OpId,
        send: &mut SendOn<Q, B>,
        connid: Connid,
    ) -> Advance {
        if self.copies_segments(send) {
            return self.send_copied_medium(id, send, connid);
        }
        let medium = medium(send, connid);
        let parts = (medium(0).rtm().len(), send.length, usize::MAX);
        self.post_segments(id, send, medium(0).packet_type(), parts, |packet, offset, _| {
            medium(offset).emit(packet)
        })
    }

    /// The same, if the device copies the data.
    #[inline(never)]
    fn send_copied_medium(&mut self, id: OpId, send: &mut SendOn<Q, B>, connid: Connid) -> Advance {
        let medium = medium(send, connid);
        let parts = (medium(0).rtm().len(), send.length, usize::MAX);
        self.post_copied_segments(id, send, medium(0).packet_type(), parts, |packet, offset, _| {
            medium(offset).emit(packet)
        })
    }
}

/// The segment of a message from an offset on, without its payload.
#[inline(always)]
fn medium<M>(send: &Send<M>, connid: Connid) -> impl Fn(u64) -> MediumConnid<'static> + use<M> {
    let (msg_id, tag, msg_length) = (MsgId(send.msg_id), send.tag, send.length);
    move |seg_offset| MediumConnid { msg_id, tag, msg_length, seg_offset, connid, payload: &[] }
}

//! Packets of which the device has [left](QueuePair::split_headers) bytes in its own memory. From there the payload goes to
//! the buffer of its receive at once.
//!
//! ```text
//!   front ─► the next message of a peer, complete ────────────────────────┐
//!         ─► a segment of the medium message that got the last one ───────┤
//!         ─► the first segment of the next message of a peer ─► begin it ─┼─► place the payload
//!         ─► CTSDATA ─────────────────────────────────────────────────────┘
//!         ─► another packet, or no receive waits ─► land it: as other packets
//! ```

use core::ops::Range;

use efa_device::{CopySource, QueuePair, Source};
use efa_proto::{CtsData, EagerConnid, MediumConnid, MsgId, PacketType};

use crate::complete::eager_received;
use crate::completion::Completion;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::longcts::CTSDATA_HEADER;
use crate::matching::Posted;
use crate::memory::Memory;
use crate::payload::Payload;
use crate::segment::Arrived;
use crate::shape::Shape;

/// Bytes that the device puts into the packet: the longest header of what is placed.
const FRONT: usize = MediumConnid::LONGEST_HEADER;

const _: () = assert!(FRONT >= EagerConnid::LONGEST_HEADER, "eager messages are placed");
const _: () = assert!(FRONT >= CTSDATA_HEADER, "CTSDATA is placed");

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// Lets the device leave what is behind the front, unless it looks into packets itself or they stay where they are.
    pub(crate) fn split_headers(&mut self) {
        if !Q::IN_PLACE && !self.matching.has_tag_list {
            self.device_mut().split_headers(FRONT);
        }
    }

    /// Handles a packet of `length` bytes of which the device has left what is behind the front.
    #[inline(never)]
    pub(crate) fn front_arrived(
        &mut self,
        mut packet: Q::Packet,
        length: usize,
        source: Source,
    ) -> Option<Completion<B>> {
        let core = &mut self.matching.ops.core;
        core.statistics.received_bytes += length as u64;
        let front = packet.as_ref().get(..length).unwrap_or_default();
        if let Some((peer, eager)) = core.next_message(front, source) {
            let (tag, payload) = (eager.tag, eager.payload.len());
            match self.matching.match_at_once(peer, tag) {
                Some(posted) if payload as u64 <= posted.buffer.length() => {
                    let Posted { context, mut buffer, .. } = posted;
                    let core = &mut self.matching.ops.core;
                    core.statistics.delivered_bytes += payload as u64;
                    core.place(&packet, length - payload..length, |bytes| {
                        buffer.copy_from(0, bytes)
                    });
                    self.consumed(packet);
                    return Some(eager_received(context, peer, tag, payload as u64, buffer));
                }
                other => {
                    let bytes = self.land(&mut packet, length);
                    match other {
                        Some(posted) => self.matching.ops.eager_too_long(posted, peer, bytes),
                        None => self.matching.eager_arrived(peer, bytes),
                    }
                }
            }
        } else if !self.segment_placed(&packet, length, source) {
            let bytes = self.land(&mut packet, length);
            self.segment_or_other_arrived(bytes, source);
        }
        self.consumed(packet);
        None
    }

    /// Handles a packet if it is a segment that goes to its buffer at once. `false`: nothing was done.
    fn segment_placed(&mut self, packet: &Q::Packet, length: usize, source: Source) -> bool {
        let front = packet.as_ref().get(..length).unwrap_or_default();
        if let Some(medium) = MediumConnid::peek(front) {
            let payload = Left { packet, part: length - medium.payload.len()..length };
            return self.matching.ops.further_medium_arrived(&medium, source, &payload)
                || self.medium_begins(&medium, source)
                    && self.matching.ops.further_medium_arrived(&medium, source, &payload);
        }
        let ops = &mut self.matching.ops;
        if let Some((data, connid, payload)) = CtsData::peek(front)
            && let Some(peer) = ops.core.recognise(source, connid)
        {
            ops.core.statistics.received.count(PacketType::CtsData);
            let payload = Left { packet, part: length - payload.len()..length };
            ops.ctsdata_arrived(peer, &data, &payload);
            return true;
        }
        false
    }

    /// Begins the message of its first segment to arrive, without the payload, if it is the next one of its peer and a
    /// receive waits for it. `false`: nothing was done.
    fn medium_begins(&mut self, medium: &MediumConnid<'_>, source: Source) -> bool {
        let MediumConnid { msg_id: MsgId(msg_id), tag, connid, payload, .. } = *medium;
        let Self { matching, .. } = self;
        let rtm = medium.rtm();
        let Ok(shape) = Shape::of(&rtm, payload) else { return false };
        let Some(peer) = matching.ops.core.recognise(source, connid) else { return false };
        let active = matching.ops.core.peers.active(peer);
        if !active.is_some_and(|active| active.window.passes(msg_id))
            || matching.ops.receives.is_full()
            || matching.ops.assembly(peer, msg_id).is_some()
        {
            return false;
        }
        let Some(posted) = matching.match_at_once(peer, tag) else { return false };
        if let Some(active) = matching.ops.core.peers.active_mut(peer) {
            active.window.pass(msg_id);
        }
        matching.ops.begin_receive(posted.target(tag.is_some()), peer, &rtm, &shape, &[]);
        true
    }

    /// Has all bytes of a datagram that arrived in its packet.
    fn land<'a>(&mut self, packet: &'a mut Q::Packet, length: usize) -> &'a [u8] {
        self.device_mut().land(packet, length);
        Q::Packet::as_ref(packet).get(..length).unwrap_or_default()
    }
}

/// In the device's memory: a part of the datagram whose front this packet has.
struct Left<'a, P> {
    packet: &'a P,
    part: Range<usize>,
}

impl<Q: QueuePair, B: Payload<Q::Region>> Arrived<Q, B> for Left<'_, Q::Packet> {
    fn length(&self) -> usize {
        self.part.len()
    }

    fn copy_to(
        &self,
        core: &mut Core<Q, B>,
        memory: &mut Memory<B, Q::Region>,
        offset: u64,
        count: usize,
    ) -> bool {
        let Range { start, .. } = self.part;
        let mut is_there = false;
        core.place(self.packet, start..start + count, |bytes| {
            is_there = memory.copy_from(offset, bytes);
        });
        is_there
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Has `copy` copy a part of a datagram out of the device's memory.
    #[inline(always)]
    fn place(&mut self, packet: &Q::Packet, part: Range<usize>, copy: impl FnOnce(CopySource<'_>)) {
        self.statistics.placed_bytes += part.len() as u64;
        let mut placed = false;
        self.transmit.device.take_rest(packet, part, |bytes| {
            copy(bytes);
            placed = true;
        });
        debug_assert!(placed, "the device has the bytes until the next poll");
    }
}

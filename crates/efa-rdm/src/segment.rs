//! Segments: the part of a message, write or read that one packet carries.
//!
//! ```text
//!   send ── the next bytes ──► header │ bytes ── device ──► coverage: new? ──► buffer of the receive
//! ```

use efa_device::{CopyTarget, Destination, QueuePair};
use efa_proto::{EmitError, OpId, PacketType};

use crate::core::Core;
use crate::coverage::Covered;
use crate::event::DropReason;
use crate::ids::PeerId;
use crate::memory::Memory;
use crate::operations::{Operations, Reading, ReceiveOn, Send, SendOn};
use crate::payload::Payload;
use crate::transmit::{Unposted, keep_record};
use crate::work::{Advance, InFlight, Purpose};

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Bytes of payload that fit a packet with a header of this length.
    pub(crate) fn left_of_packet(&self, header: usize) -> u64 {
        (self.transmit.mtu() - header) as u64
    }

    /// Bytes of payload that are sent in a packet with a header of this length. Where the device copies payloads those are
    /// whole cache lines, which are copied faster from and to memory that begins with one.
    pub(crate) fn longest_segment(&self, header: usize) -> u64 {
        const LINE: u64 = 64;
        let left = self.left_of_packet(header);
        if left < self.transmit.payloads_pay_from as u64 { left } else { left - left % LINE }
    }

    /// Writes and posts a packet of a send: a header, and the next `length` bytes of its data.
    pub(crate) fn post_segment(
        &mut self,
        id: OpId,
        send: &mut SendOn<Q, B>,
        packet_type: PacketType,
        length: u64,
        emit: impl FnOnce(&mut [u8]) -> Result<usize, EmitError>,
    ) -> Advance {
        let destination = self.peers.destination(send.peer);
        self.post_to(destination, id, send, packet_type, length, emit)
    }

    /// Writes and posts packets with the data of a send up to byte `end`, each with a header of `header` bytes that `emit`
    /// writes for an offset and a length. Returns `More` after `most` packets.
    #[inline(always)]
    pub(crate) fn post_segments(
        &mut self,
        id: OpId,
        send: &mut SendOn<Q, B>,
        packet_type: PacketType,
        (header, end, most): (usize, u64, usize),
        emit: impl Fn(&mut [u8], u64, u64) -> Result<usize, EmitError>,
    ) -> Advance {
        let destination = self.peers.destination(send.peer);
        let longest = self.left_of_packet(header);
        for _ in 0..most {
            let offset = send.sent;
            if offset >= end {
                return Advance::Done;
            }
            let length = longest.min(end - offset);
            let emit = |packet: &mut [u8]| emit(packet, offset, length);
            let advance = self.post_to(destination, id, send, packet_type, length, emit);
            if advance != Advance::Done {
                return advance;
            }
        }
        Advance::More
    }

    /// Whether the device is to [copy](QueuePair::post_send_with) the data of a send of several packets.
    #[inline(always)]
    pub(crate) fn copies_segments(&self, send: &SendOn<Q, B>) -> bool {
        let copies = self.transmit.mtu() >= self.transmit.payloads_pay_from;
        copies && matches!(send.memory, Memory::Buffer(_))
    }

    /// As [`post_segments`](Self::post_segments), with data that the device copies, and as long as packets don't wait in its
    /// queue: there they would be copied once more.
    #[inline(never)]
    pub(crate) fn post_copied_segments(
        &mut self,
        id: OpId,
        send: &mut SendOn<Q, B>,
        packet_type: PacketType,
        (header, end, most): (usize, u64, usize),
        emit: impl Fn(&mut [u8], u64, u64) -> Result<usize, EmitError>,
    ) -> Advance {
        let longest = self.longest_segment(header);
        let destination = self.peers.destination(send.peer);
        for _ in 0..most {
            let offset = send.sent;
            if offset >= end {
                return Advance::Done;
            }
            if !self.transmit.device.has_room(destination) {
                return Advance::Crowded;
            }
            let length = longest.min(end - offset);
            let emit = |packet: &mut [u8]| emit(packet, offset, length);
            let advance = self.post_copied(destination, id, send, packet_type, length, emit);
            if advance != Advance::Done {
                return advance;
            }
        }
        Advance::More
    }

    #[inline(always)]
    fn post_to(
        &mut self,
        destination: Destination,
        id: OpId,
        send: &mut SendOn<Q, B>,
        packet_type: PacketType,
        length: u64,
        emit: impl FnOnce(&mut [u8]) -> Result<usize, EmitError>,
    ) -> Advance {
        let Ok(mut packet) = self.transmit.packet() else { return Advance::Blocked };
        let bytes = packet.as_mut();
        let written = emit(bytes).ok().and_then(|header| {
            let end = header.saturating_add(length as usize);
            Some((end, send.memory.read(send.sent, bytes.get_mut(header..end)?)))
        });
        let Some((end, true)) = written else {
            self.transmit.recycle(packet);
            return if written.is_some() { Advance::Revoked } else { Advance::TooLong };
        };
        let record = segment_in_flight(id, send, packet_type, end);
        let posted = self.transmit.post(packet, destination, record);
        self.segment_posted(posted, send, packet_type, length, end)
    }

    /// As [`post_to`](Self::post_to), with data that the device copies from a buffer.
    fn post_copied(
        &mut self,
        destination: Destination,
        id: OpId,
        send: &mut SendOn<Q, B>,
        packet_type: PacketType,
        length: u64,
        emit: impl FnOnce(&mut [u8]) -> Result<usize, EmitError>,
    ) -> Advance {
        // The caller has looked.
        let Memory::Buffer(buffer) = &send.memory else { return Advance::Revoked };
        let Ok(mut packet) = self.transmit.packet() else { return Advance::Blocked };
        let Ok(header) = emit(packet.as_mut()) else {
            self.transmit.recycle(packet);
            return Advance::TooLong;
        };
        let (payload, offset) = (length as usize, send.sent);
        let end = header + payload;
        let record = segment_in_flight(id, send, packet_type, end);
        let copy = |into: CopyTarget<'_>| buffer.copy_to(offset, into);
        let posted = self.transmit.post_with(packet, (header, payload), destination, copy);
        let posted = keep_record(posted, record);
        self.segment_posted(posted, send, packet_type, length, end)
    }

    /// Counts a segment of `length` bytes in a packet of `end` bytes, or keeps the packet.
    #[inline(always)]
    fn segment_posted(
        &mut self,
        posted: Result<(), Unposted<Q::Packet, B>>,
        send: &mut SendOn<Q, B>,
        packet_type: PacketType,
        length: u64,
        end: usize,
    ) -> Advance {
        match posted {
            Ok(()) => {
                self.statistics.count_sent(packet_type, end as u32);
                send.sent += length;
                send.outstanding += 1;
                Advance::Done
            }
            Err(unposted) => self.not_posted(unposted),
        }
    }
}

/// The record of a segment in a packet of `end` bytes.
#[inline(always)]
fn segment_in_flight<M, B>(
    id: OpId,
    send: &Send<M>,
    packet_type: PacketType,
    end: usize,
) -> InFlight<B> {
    InFlight {
        peer: send.peer,
        purpose: Purpose::Send { id, msg_id: send.msg_id },
        packet_type,
        length: end as u32,
        retransmitted: false,
    }
}

/// The state of a message after a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Other segments are missing.
    Partial,
    /// All bytes have arrived.
    Last,
    /// The memory was revoked that it should be written to.
    Revoked,
}

/// The payload of a segment that arrived.
pub(crate) trait Arrived<Q: QueuePair, B> {
    /// Length in bytes.
    fn length(&self) -> usize;

    /// Copies the first `count` bytes to `offset` of the receive's memory. Returns whether the memory is still there.
    fn copy_to(
        &self,
        core: &mut Core<Q, B>,
        memory: &mut Memory<B, Q::Region>,
        offset: u64,
        count: usize,
    ) -> bool;
}

/// In a packet.
impl<Q: QueuePair, B: Payload<Q::Region>> Arrived<Q, B> for [u8] {
    #[inline(always)]
    fn length(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn copy_to(
        &self,
        _: &mut Core<Q, B>,
        memory: &mut Memory<B, Q::Region>,
        offset: u64,
        count: usize,
    ) -> bool {
        memory.write(offset, &self[..count])
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Copies a segment that the caller has checked to lie within the message. Bytes beyond the
    /// buffer's length count as arrived but aren't copied. Fails if the segment overlaps bytes that
    /// have arrived, or leaves too many holes.
    #[inline(always)]
    pub(crate) fn take_segment(
        &mut self,
        receive: &mut ReceiveOn<Q, B>,
        offset: u64,
        payload: &(impl Arrived<Q, B> + ?Sized),
    ) -> Result<Segment, DropReason> {
        let end = offset + payload.length() as u64;
        match receive.coverage.insert(offset, end) {
            Covered::New => {}
            Covered::Repeated => return Err(DropReason::RepeatedSegment),
            Covered::TooScattered => return Err(DropReason::TooScattered),
        }
        let capacity = receive.memory.length();
        if offset < capacity {
            let fitting = end.min(capacity) - offset;
            let fitting = usize::try_from(fitting).unwrap_or(payload.length());
            if !payload.copy_to(self, &mut receive.memory, offset, fitting) {
                return Ok(Segment::Revoked);
            }
        }
        let is_whole = receive.coverage.bytes() == receive.length;
        Ok(if is_whole { Segment::Last } else { Segment::Partial })
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Handles a segment of a receive without flow control; completes the receive with the last one.
    pub(crate) fn segment_arrived(&mut self, id: OpId, offset: u64, payload: &[u8]) {
        let Self { core, receives, .. } = self;
        let Some(receive) = receives.get_mut(id) else { return };
        let peer = receive.peer;
        match core.take_segment(receive, offset, payload) {
            Ok(Segment::Partial) if receive.reading == Reading::Refused => self.nack_if_due(id),
            Ok(Segment::Partial) => {}
            taken => self.last_or_bad_segment_taken(id, peer, taken),
        }
    }

    /// Completes a receive, or drops a segment.
    pub(crate) fn last_or_bad_segment_taken(
        &mut self,
        id: OpId,
        peer: PeerId,
        taken: Result<Segment, DropReason>,
    ) {
        match taken {
            Ok(Segment::Last) => self.end_receive(id, None),
            Ok(Segment::Partial) => {}
            Ok(Segment::Revoked) => self.give_up_writing(id),
            Err(reason) => self.core.drop_packet(peer, reason),
        }
    }
}

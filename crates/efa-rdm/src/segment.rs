//! Segments: the part of a message, write or read that one packet carries.
//!
//! ```text
//!   send ── the next bytes ──► header │ bytes ── device ──► coverage: new? ──► buffer of the receive
//! ```

use efa_device::{Destination, QueuePair, Region};
use efa_proto::{EmitError, OpId, PacketType};

use crate::core::Core;
use crate::coverage::Covered;
use crate::event::DropReason;
use crate::ids::PeerId;
use crate::memory::Memory;
use crate::operations::{Operations, Reading, Receive, SendOn};
use crate::payload::Payload;
use crate::work::{Advance, InFlight, Purpose};

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Bytes of payload that fit a packet with a header of this length.
    pub(crate) fn left_of_packet(&self, header: usize) -> u64 {
        (self.transmit.mtu() - header) as u64
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
            let end = header.checked_add(usize::try_from(length).ok()?)?;
            Some((end, send.memory.read(send.sent, bytes.get_mut(header..end)?)))
        });
        let Some((end, true)) = written else {
            self.transmit.recycle(packet);
            return if written.is_some() { Advance::Revoked } else { Advance::TooLong };
        };
        let record = InFlight {
            peer: send.peer,
            purpose: Purpose::Send { id, msg_id: send.msg_id },
            packet_type,
            length: end as u32,
            retransmitted: false,
        };
        match self.transmit.post(packet, destination, record) {
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

impl<B: Payload<R>, R: Region> Receive<Memory<B, R>> {
    /// Copies a segment that the caller has checked to lie within the message. Bytes beyond the
    /// buffer's length count as arrived but aren't copied. Fails if the segment overlaps bytes that
    /// have arrived, or leaves too many holes.
    #[inline(always)]
    pub(crate) fn take_segment(
        &mut self,
        offset: u64,
        payload: &[u8],
    ) -> Result<Segment, DropReason> {
        let end = offset + payload.len() as u64;
        match self.coverage.insert(offset, end) {
            Covered::New => {}
            Covered::Repeated => return Err(DropReason::RepeatedSegment),
            Covered::TooScattered => return Err(DropReason::TooScattered),
        }
        let capacity = self.memory.length();
        if offset < capacity {
            let fitting = usize::try_from(end.min(capacity) - offset).unwrap_or(payload.len());
            if !self.memory.write(offset, &payload[..fitting]) {
                return Ok(Segment::Revoked);
            }
        }
        if self.coverage.bytes() == self.length { Ok(Segment::Last) } else { Ok(Segment::Partial) }
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Handles a segment of a receive without flow control; completes the receive with the last one.
    pub(crate) fn segment_arrived(&mut self, id: OpId, offset: u64, payload: &[u8]) {
        let Some(receive) = self.receives.get_mut(id) else { return };
        let peer = receive.peer;
        match receive.take_segment(offset, payload) {
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

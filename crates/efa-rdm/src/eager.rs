//! Eager messages: each is a single packet (section 3.2).
//!
//! ```text
//!   sender                         receiver
//!     │── EAGER_RTM (all data) ──────►│ match, copy, complete
//!     │◄─ (the device's completion) ──│
//!   complete
//! ```

use efa_device::{CopyTarget, QueuePair, QueuePairAddress};
use efa_handshake::Profile;
use efa_proto::{Connid, EagerConnid, MsgId, OpId, PacketType, Rtm, RtmKind, Tag};

use crate::completion::{Level, OperationError, ReceiveCompletion, StartError};
use crate::core::{Core, options};
use crate::ids::PeerId;
use crate::matching::Target;
use crate::operations::{Operations, SendOn};
use crate::payload::Payload;
use crate::peer::Active;
use crate::shape::Shape;
use crate::transmit::{Transmit, Unposted, keep_record};
use crate::work::{Advance, InFlight, Purpose, SinglePacket, Work};

/// The header fields of a single-packet message.
#[derive(Debug)]
pub(crate) struct Eager {
    pub(crate) tag: Option<Tag>,
    pub(crate) cq_data: Option<u64>,
    pub(crate) length: usize,
}

/// Writes a single-packet message with the next message ID into a packet; returns the packet and its
/// length in bytes. `None` if no packet is free, or the message doesn't fit one.
#[inline(always)]
fn write_eager<Q: QueuePair, B>(
    active: &mut Active<Q::Packet, B>,
    transmit: &mut Transmit<Q, B>,
    (own, profile): (&QueuePairAddress, &Profile),
    message: &Eager,
    copy: impl FnOnce(&mut [u8]),
) -> Option<(Q::Packet, usize)> {
    let Eager { tag, cq_data, length } = *message;
    let mut packet = transmit.packet().ok()?;
    let msg_id = MsgId(active.next_msg_id);
    let bytes = packet.as_mut();
    let header = if active.by_connid && cq_data.is_none() {
        EagerConnid { msg_id, tag, connid: Connid(own.qkey.0), payload: &[] }.emit(bytes)
    } else {
        let options = options(active.handshake.address_header(profile), own, cq_data);
        Rtm { msg_id, tag, kind: RtmKind::Eager, options }.emit(bytes)
    };
    if let Ok(begin) = header
        && let Some(to) = bytes.get_mut(begin..).and_then(|rest| rest.get_mut(..length))
    {
        copy(to);
        active.next_id();
        active.handshake.request_posted();
        return Some((packet, begin + length));
    }
    transmit.recycle(packet);
    None
}

fn eager_type(tag: Option<Tag>) -> PacketType {
    match tag {
        Some(_) => PacketType::EagerTagRtm,
        None => PacketType::EagerMsgRtm,
    }
}

/// The in-flight record of a single-packet message; `length` is the packet's in bytes.
#[inline]
fn single_packet<B>(peer: PeerId, length: usize, message: SinglePacket<B>) -> InFlight<B> {
    InFlight {
        peer,
        packet_type: eager_type(message.tag),
        purpose: Purpose::Message(message),
        length: length as u32,
        retransmitted: false,
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Sends a message that was queued as a [`Send`](crate::operations::Send) as a single packet, and
    /// removes the `Send`.
    pub(crate) fn send_single_packet(&mut self, id: OpId, rtm: &Rtm<'_>) -> Advance {
        let Ok(mut packet) = self.core.transmit.packet() else { return Advance::Blocked };
        let Some((peer, message)) = self.take_single_packet(id) else {
            self.core.transmit.recycle(packet);
            return Advance::Done;
        };
        let end = rtm.emit(packet.as_mut()).ok().and_then(|header| {
            let end = header.checked_add(message.length as usize)?;
            let bytes = packet.as_mut().get_mut(header..end)?;
            message.buffer.iter().for_each(|buffer| buffer.read(0, bytes));
            Some(end)
        });
        let Some(end) = end else {
            self.core.transmit.recycle(packet);
            let error = OperationError::Device(efa_device::Status::BadLength);
            self.single_packet_ended(peer, message, Err(error));
            return Advance::Done;
        };
        if let Some(active) = self.core.peers.active_mut(peer) {
            active.handshake.request_posted();
        }
        self.post_written(packet, single_packet(peer, end, message));
        Advance::Done
    }

    /// Sends an injected message that [`write_at_once`](Core::write_at_once) couldn't write. Fails with
    /// `Busy` if it would have to wait for a HANDSHAKE, a pause, or space in the backlog.
    #[inline(never)]
    fn inject_later(
        &mut self,
        peer: PeerId,
        eager: &Eager,
        bytes: &[u8],
    ) -> Result<(), StartError> {
        self.core.check_peer(peer)?;
        let busy = StartError::Busy { limit: self.core.config.max_sends };
        let active = self.core.peers.activate(peer, &self.core.config);
        // An injected message has no `Send` that could wait for the HANDSHAKE.
        if active.must_hold(Level::Transmit, &self.core.config) {
            self.core.elicit_handshake(peer);
            return Err(busy);
        }
        if active.backlog.len() >= self.core.config.max_sends {
            return Err(busy);
        }
        if active.must_pause() {
            self.core.await_pause(peer);
            return Err(busy);
        }
        if self.core.takes_plain(peer) {
            return self.inject_plain(peer, eager.tag, eager.cq_data, bytes);
        }
        let copy = |to: &mut [u8]| to.copy_from_slice(bytes);
        let own = (&self.core.local, &self.core.config.profile);
        let active = self.core.peers.activate(peer, &self.core.config);
        let written = write_eager(active, &mut self.core.transmit, own, eager, copy);
        let Some((packet, end)) = written else { return Err(busy) };
        let length = bytes.len() as u32;
        let message = SinglePacket { tag: eager.tag, context: 0, length, buffer: None };
        self.post_or_queue_up(packet, single_packet(peer, end, message));
        Ok(())
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Core<Q, B> {
    /// Sends a message as a single packet whose [`Send`](crate::operations::Send) stays until it is
    /// delivered, or longer.
    pub(crate) fn send_eager(
        &mut self,
        id: OpId,
        send: &mut SendOn<Q, B>,
        rtm: &Rtm<'_>,
    ) -> Advance {
        self.post_segment(id, send, rtm.packet_type(), send.length, |packet| rtm.emit(packet))
    }

    /// Writes a single-packet message with the next message ID, if nothing has to be sent to the peer
    /// first; returns the packet and its length in bytes.
    #[inline(always)]
    pub(crate) fn write_at_once(
        &mut self,
        peer: PeerId,
        message: &Eager,
        copy: impl FnOnce(&mut [u8]),
    ) -> Option<(Q::Packet, usize)> {
        let active = self.peers.active_mut(peer)?;
        if !active.goes_at_once(&self.config) {
            return None;
        }
        let own = (&self.local, &self.config.profile);
        write_eager(active, &mut self.transmit, own, message, copy)
    }

    /// Copies a single-packet message to the buffer of its receive, up to the buffer's length, and
    /// completes the receive.
    pub(crate) fn receive_single_packet(
        &mut self,
        target: Target<B>,
        peer: PeerId,
        rtm: &Rtm<'_>,
        shape: &Shape,
        payload: &[u8],
    ) {
        let mut buffer = target.buffer;
        let (length, result) = fill(&mut buffer, payload);
        if shape.receipt {
            let (send_id, msg_id) = (shape.send_id, rtm.msg_id.0);
            self.queue_response(peer, Work::Receipt { send_id, msg_id });
        }
        self.received(ReceiveCompletion {
            context: target.context,
            peer: Some(peer),
            tagged: target.tagged,
            tag: rtm.tag.unwrap_or(0),
            length,
            cq_data: rtm.options.cq_data,
            subprotocol: Some(shape.subprotocol),
            buffer,
            result,
        });
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Posts a packet that [`write_at_once`](Core::write_at_once) wrote. Returns whether the device took
    /// it; if not, the packet is queued or failed, and the caller has to call `settle`.
    #[inline(always)]
    pub(crate) fn post_single_packet(
        &mut self,
        packet: (Q::Packet, usize),
        peer: PeerId,
        (tag, context, length, buffer): (Option<Tag>, u64, usize, B),
    ) -> bool {
        self.single_packets += 1;
        self.post_eager(packet, peer, (tag, context, length), || Some(buffer))
    }

    /// Posts the packet of a message that is counted, or of an injected one, which has no buffer.
    #[inline(always)]
    fn post_eager(
        &mut self,
        (packet, end): (Q::Packet, usize),
        peer: PeerId,
        (tag, context, length): (Option<Tag>, u64, usize),
        buffer: impl FnOnce() -> Option<B>,
    ) -> bool {
        let Core { transmit, peers, statistics, .. } = &mut self.core;
        let length = length as u32;
        // The record is made where it stays, once the packet was posted.
        match transmit.post_first(packet, end as u32, None, peers.destination(peer)) {
            Ok(slot) => {
                let message = SinglePacket { tag, context, length, buffer: buffer() };
                slot.fill(single_packet(peer, end, message));
                statistics.count_sent(eager_type(tag), end as u32);
                true
            }
            Err((packet, failure)) => {
                let message = SinglePacket { tag, context, length, buffer: buffer() };
                let record = single_packet(peer, end, message);
                self.keep_written(Unposted { packet, record, failure });
                false
            }
        }
    }

    /// As [`post_single_packet`](Self::post_single_packet), of a packet with the header alone, of a message whose bytes the
    /// device wants to have [copied](QueuePair::post_send_with).
    #[inline(never)]
    pub(crate) fn post_long_packet(
        &mut self,
        (packet, end): (Q::Packet, usize),
        peer: PeerId,
        (tag, context, length, buffer): (Option<Tag>, u64, usize, B),
    ) -> bool {
        self.single_packets += 1;
        let destination = self.core.peers.destination(peer);
        let copy = |into: CopyTarget<'_>| buffer.copy_to(0, into);
        let lengths = (end - length, length);
        let posted = self.core.transmit.post_with(packet, lengths, destination, copy);
        let message = SinglePacket { tag, context, length: length as u32, buffer: Some(buffer) };
        match keep_record(posted, single_packet(peer, end, message)) {
            Ok(()) => {
                self.core.statistics.count_sent(eager_type(tag), end as u32);
                true
            }
            Err(unposted) => {
                self.keep_written(unposted);
                false
            }
        }
    }

    /// Sends a single-packet message from `bytes`, which may be reused as soon as this returns
    /// (`fi_inject`). The caller has to call `settle`.
    pub(crate) fn inject_eager(
        &mut self,
        peer: PeerId,
        tag: Option<Tag>,
        cq_data: Option<u64>,
        bytes: &[u8],
    ) -> Result<(), StartError> {
        let eager = Eager { tag, cq_data, length: bytes.len() };
        let copy = |to: &mut [u8]| to.copy_from_slice(bytes);
        if let Some(written) = self.core.write_at_once(peer, &eager, copy) {
            self.post_eager(written, peer, (tag, 0, bytes.len()), || None);
            return Ok(());
        }
        self.inject_later(peer, &eager, bytes)
    }
}

/// Copies a message into a buffer, up to the buffer's length. Returns the number of bytes copied, and
/// `Truncated` if the message is longer.
#[inline(always)]
pub(crate) fn fill<R, B: Payload<R>>(
    buffer: &mut B,
    payload: &[u8],
) -> (u64, Result<(), OperationError>) {
    let (length, capacity) = (payload.len() as u64, buffer.length());
    if length <= capacity {
        buffer.write(0, payload);
        return (length, Ok(()));
    }
    // `capacity` is less than `payload.len()`, a `usize`: the cast keeps its value.
    buffer.write(0, &payload[..capacity as usize]);
    (capacity, Err(OperationError::Truncated { length, capacity }))
}

//! Eager messages: one packet (section 3.2).
//!
//! ```text
//!   sender                         receiver
//!     │── EAGER_RTM (all data) ──────►│ match, copy, complete
//!     │◄─ (the device's completion) ──│
//!   complete
//! ```

use efa_device::{QueuePair, QueuePairAddress};
use efa_handshake::Profile;
use efa_proto::{Connid, EagerConnid, MsgId, OpId, PacketType, Rtm, RtmKind, Tag};

use crate::completion::{Level, OperationError, ReceiveCompletion, StartError};
use crate::core::{Core, options};
use crate::ids::PeerId;
use crate::matching::Target;
use crate::operations::Operations;
use crate::payload::Payload;
use crate::peer::Active;
use crate::shape::Shape;
use crate::transmit::Transmit;
use crate::work::{Advance, InFlight, Purpose, SinglePacket, Work};

/// What a whole message says of itself.
#[derive(Debug)]
pub(crate) struct Eager {
    pub(crate) tag: Option<Tag>,
    pub(crate) cq_data: Option<u64>,
    pub(crate) length: usize,
}

/// Writes a whole message with the next message id into a packet; gives it and its length. `None` if
/// there is no packet, or the message doesn't fit.
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

/// The record of a packet that is all of a message.
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
    pub(crate) fn send_eager(&mut self, id: OpId, rtm: &Rtm<'_>) -> Advance {
        let Self { core, sends, .. } = self;
        let Some(send) = sends.get_mut(id) else { return Advance::Done };
        if send.level == Level::Transmit {
            return self.send_single_packet(id, rtm);
        }
        core.post_segment(id, send, rtm.packet_type(), send.length, |packet| rtm.emit(packet))
    }

    /// Sends a message that waited, and now goes in one packet and needs no operation any more.
    fn send_single_packet(&mut self, id: OpId, rtm: &Rtm<'_>) -> Advance {
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

    /// Sends one that doesn't go at once.
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
        // Without an operation it can't be held behind others.
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
    /// Writes a message that fits one packet with the next message id, if it may go at once; gives
    /// the packet and its length.
    #[inline(always)]
    pub(crate) fn write_at_once(
        &mut self,
        peer: PeerId,
        message: &Eager,
        copy: impl FnOnce(&mut [u8]),
    ) -> Option<(Q::Packet, usize)> {
        // A peer that is gone has no conversation.
        let active = self.peers.active_mut(peer)?;
        let at_once = active.next_msg_id != active.send_window.stop
            && active.is_clear()
            && !active.must_hold(Level::Transmit, &self.config);
        if !at_once {
            return None;
        }
        let own = (&self.local, &self.config.profile);
        write_eager(active, &mut self.transmit, own, message, copy)
    }

    /// All bytes of a message are in one packet: copies what fits and completes.
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
    /// Posts what [`write_at_once`](Core::write_at_once) wrote. Returns whether the device took it, or
    /// will: otherwise the caller settles.
    #[inline(always)]
    pub(crate) fn post_single_packet(
        &mut self,
        (packet, end): (Q::Packet, usize),
        peer: PeerId,
        (tag, context, buffer): (Option<Tag>, u64, B),
    ) -> bool {
        self.single_packets += 1;
        let destination = self.core.peers.destination(peer);
        let record = || {
            let length = buffer.length() as u32;
            single_packet(peer, end, SinglePacket { tag, context, length, buffer: Some(buffer) })
        };
        match self.core.transmit.post_for(packet, end as u32, None, destination, record) {
            Ok(()) => {
                self.core.count_sent((eager_type(tag), end as u32));
                true
            }
            Err(unposted) => {
                self.keep_written(unposted);
                false
            }
        }
    }

    /// Sends a message of one packet whose bytes may be reused at once. The caller settles.
    pub(crate) fn inject_eager(
        &mut self,
        peer: PeerId,
        tag: Option<Tag>,
        cq_data: Option<u64>,
        bytes: &[u8],
    ) -> Result<(), StartError> {
        let eager = Eager { tag, cq_data, length: bytes.len() };
        let copy = |to: &mut [u8]| to.copy_from_slice(bytes);
        if let Some((packet, end)) = self.core.write_at_once(peer, &eager, copy) {
            let message =
                SinglePacket { tag, context: 0, length: bytes.len() as u32, buffer: None };
            self.post_written(packet, single_packet(peer, end, message));
            return Ok(());
        }
        self.inject_later(peer, &eager, bytes)
    }
}

/// Copies what fits of a whole message; gives how much that is, and whether it is all.
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
    // Shorter than the payload, which is in memory.
    buffer.write(0, &payload[..capacity as usize]);
    (capacity, Err(OperationError::Truncated { length, capacity }))
}

//! The header of a message's or write's packet in one form for all subprotocols, checked once.

use efa_proto::{
    Header, LongReadConnid, OpId, Packet, RmaIov, RtaKind, Rtm, RtmKind, Rtw, RtwKind,
};

use crate::coverage::Coverage;
use crate::event::DropReason;
use crate::remote;
use crate::select::Subprotocol;

/// The checked contents of a message's or write's request. Lengths and offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) subprotocol: Subprotocol,
    /// Length of the message.
    pub(crate) length: u64,
    /// Offset of the payload in the message.
    pub(crate) offset: u64,
    /// The sender's identifier of the operation.
    pub(crate) send_id: OpId,
    /// Runting read: length of the leading part that is sent in packets.
    pub(crate) runt_length: u64,
    /// The request continues a message after a READ_NACK.
    pub(crate) read_nack: bool,
    /// The sender asks for a RECEIPT.
    pub(crate) receipt: bool,
}

impl Shape {
    /// The shape of a single-packet message.
    pub(crate) const fn eager(length: u64) -> Self {
        Self {
            subprotocol: Subprotocol::Eager,
            length,
            offset: 0,
            send_id: OpId(0),
            runt_length: 0,
            read_nack: false,
            receipt: false,
        }
    }

    /// The shape of a message that is to be read, if the request's lengths agree.
    #[inline(always)]
    pub(crate) fn long_read(request: &LongReadConnid) -> Option<Self> {
        let LongReadConnid { msg_length: length, send_id, memory, .. } = *request;
        let subprotocol = Subprotocol::LongRead;
        (memory.len() == length).then(|| Self { subprotocol, send_id, ..Self::eager(length) })
    }

    /// Fails with `Unsupported` for packet types that this endpoint doesn't handle, and with
    /// `SegmentOutOfRange` if lengths and offsets contradict each other.
    pub(crate) fn of(rtm: &Rtm<'_>, payload: &[u8]) -> Result<Self, DropReason> {
        let bytes = payload.len() as u64;
        let mut shape = Self::eager(bytes);
        let readable = |iov: &[RmaIov], length| remote::total(iov) == Some(length);
        let lengths_agree = match rtm.kind {
            RtmKind::Eager => true,
            RtmKind::DcEager { send_id } => {
                (shape.send_id, shape.receipt) = (send_id, true);
                true
            }
            // A segment without data would never complete a message.
            RtmKind::Medium { msg_length, seg_offset } => {
                shape.subprotocol = Subprotocol::Medium;
                (shape.length, shape.offset) = (msg_length, seg_offset);
                bytes > 0
            }
            RtmKind::DcMedium { send_id, msg_length, seg_offset } => {
                shape.subprotocol = Subprotocol::Medium;
                (shape.length, shape.offset) = (msg_length, seg_offset);
                (shape.send_id, shape.receipt) = (send_id, true);
                bytes > 0
            }
            // libfabric 1.11 sends a message that just fits the request completely in it; then no CTS
            // follows.
            RtmKind::LongCts { msg_length, send_id, read_nack, .. }
            | RtmKind::DcLongCts { msg_length, send_id, read_nack, .. } => {
                shape.receipt = matches!(rtm.kind, RtmKind::DcLongCts { .. });
                shape.subprotocol = Subprotocol::LongCts;
                (shape.length, shape.send_id) = (msg_length, send_id);
                shape.read_nack = read_nack;
                if read_nack { bytes == 0 } else { msg_length > 0 }
            }
            RtmKind::LongRead { msg_length, send_id, read_iov } => {
                shape.subprotocol = Subprotocol::LongRead;
                (shape.length, shape.send_id) = (msg_length, send_id);
                bytes == 0 && readable(read_iov, msg_length)
            }
            RtmKind::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov } => {
                shape.subprotocol = Subprotocol::RuntRead;
                (shape.length, shape.offset, shape.send_id) = (msg_length, seg_offset, send_id);
                shape.runt_length = runt_length;
                let in_runt = seg_offset.checked_add(bytes).is_some_and(|end| end <= runt_length);
                bytes > 0 && in_runt && runt_length <= msg_length && readable(read_iov, msg_length)
            }
            _ => return Err(DropReason::Unsupported(rtm.packet_type())),
        };
        let fits = shape.offset.checked_add(bytes).is_some_and(|end| end <= shape.length);
        if fits && lengths_agree { Ok(shape) } else { Err(DropReason::SegmentOutOfRange) }
    }

    /// The shape of a write, and why it is refused if it is: as by [`of`](Self::of), or because the target memory has
    /// another length.
    #[inline(always)]
    pub(crate) fn of_write(rtw: &Rtw<'_>, payload: &[u8]) -> (Self, Result<(), DropReason>) {
        let bytes = payload.len() as u64;
        let mut shape = Self::eager(bytes);
        let lengths_agree = match rtw.kind {
            RtwKind::Eager => true,
            RtwKind::DcEager { send_id } => {
                (shape.send_id, shape.receipt) = (send_id, true);
                true
            }
            // libfabric 1.11 may send the complete write in the request; then no CTS follows.
            RtwKind::LongCts { msg_length, send_id, .. }
            | RtwKind::DcLongCts { msg_length, send_id, .. } => {
                shape.receipt = matches!(rtw.kind, RtwKind::DcLongCts { .. });
                shape.subprotocol = Subprotocol::LongCts;
                (shape.length, shape.send_id) = (msg_length, send_id);
                bytes <= msg_length && msg_length > 0
            }
            RtwKind::LongRead { msg_length, send_id, read_iov } => {
                shape.subprotocol = Subprotocol::LongRead;
                (shape.length, shape.send_id) = (msg_length, send_id);
                bytes == 0 && remote::total(read_iov) == Some(msg_length)
            }
            _ => return (shape, Err(DropReason::Unsupported(rtw.packet_type()))),
        };
        let is_whole = lengths_agree && remote::total(rtw.rma_iov) == Some(shape.length);
        (shape, if is_whole { Ok(()) } else { Err(DropReason::SegmentOutOfRange) })
    }

    /// The sender's identifier of the operation, if it waits for an answer.
    pub(crate) fn asked(&self) -> Option<OpId> {
        let waits = match self.subprotocol {
            Subprotocol::LongCts | Subprotocol::LongRead => true,
            Subprotocol::RuntRead => self.runt_length < self.length,
            _ => self.receipt,
        };
        waits.then_some(self.send_id)
    }

    /// Whether the message needs more than this payload.
    pub(crate) fn is_partial(&self, payload: &[u8]) -> bool {
        // A long-read message needs an EOR, even if it is empty.
        self.length != payload.len() as u64 || self.subprotocol == Subprotocol::LongRead
    }
}

/// The sender's identifier of a message's or atomic's operation, if it waits for an answer.
#[cold]
pub(crate) fn asked(packet: &Packet<'_>) -> Option<OpId> {
    match &packet.header {
        Header::Rtm(rtm) => Shape::of(rtm, packet.payload).ok().and_then(|shape| shape.asked()),
        Header::Rta(rta) => asked_by_atomic(rta.kind),
        _ => None,
    }
}

/// The requester's identifier of its operation, if it waits for an answer.
pub(crate) fn asked_by_atomic(kind: RtaKind) -> Option<OpId> {
    match kind {
        RtaKind::DcWrite { send_id } => Some(send_id),
        RtaKind::Fetch { recv_id } | RtaKind::Compare { recv_id } => Some(recv_id),
        _ => None,
    }
}

/// Whether these packets carry a complete message.
pub(crate) fn is_complete<'a>(packets: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut coverage = Coverage::default();
    let mut first = None;
    for bytes in packets {
        let Ok(Packet { header: Header::Rtm(rtm), payload }) = Packet::parse(bytes) else {
            return false;
        };
        let Ok(shape) = Shape::of(&rtm, payload) else { return false };
        let message = (shape.length, shape.subprotocol, shape.receipt, shape.runt_length, rtm.tag);
        if first.is_none() && !shape.is_partial(payload) {
            return true;
        }
        // As in `medium_arrived`: packets that disagree with the first one don't count.
        if *first.get_or_insert(message) == message {
            let _ = coverage.insert(shape.offset, shape.offset + payload.len() as u64);
        }
    }
    first.is_some_and(|(length, ..)| length == coverage.bytes())
}

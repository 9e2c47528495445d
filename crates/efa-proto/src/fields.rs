//! The header fields that packets of several types have in common, whatever the type.

use crate::{
    AtomRsp, Cts, CtsData, Eor, Header, MsgId, OpId, PeerError, PeerErrorReport, ReadNack, ReadRsp,
    Receipt, ReqOptions, Rta, Rtm, RtmKind, Rtr, Rtw, RtwKind, Tag,
};

/// `ref_kind` of a PEER_ERROR whose `op_id` is an operation; the others are messages.
const OPERATION: u8 = 0;
/// `emitter` of a PEER_ERROR that the sender of the operation sent.
const EMITTER_SENDER: u32 = 1;
/// `emitter` of a PEER_ERROR that the receiver of the operation sent.
const EMITTER_RECEIVER: u32 = 2;

/// Fields by their names. Each returns `None` for the types that don't have the field.
impl Header<'_> {
    /// Position of the message, or of the atomic, among those of its sender to this peer.
    #[must_use]
    pub const fn msg_id(&self) -> Option<MsgId> {
        match *self {
            Self::Rtm(Rtm { msg_id, .. })
            | Self::Rta(Rta { msg_id, .. })
            | Self::Receipt(Receipt { msg_id, .. })
            | Self::PeerErrorReport(PeerErrorReport { msg_id, .. }) => Some(msg_id),
            Self::PeerError(PeerError { op_id, ref_kind, .. }) => match ref_kind {
                OPERATION => None,
                _ => Some(MsgId(op_id.0)),
            },
            Self::Rtw(_)
            | Self::Rtr(_)
            | Self::Cts(_)
            | Self::CtsData(_)
            | Self::ReadRsp(_)
            | Self::Eor(_)
            | Self::AtomRsp(_)
            | Self::Handshake(_)
            | Self::ReadNack(_)
            | Self::NeverSent(_) => None,
        }
    }

    /// The operation of the side that sends the data: in a request that of the requester, in an answer the one it
    /// answers. Only that side knows what it means; endpoints choose their numbers without regard to each other.
    #[must_use]
    pub const fn send_id(&self) -> Option<OpId> {
        match *self {
            Self::Rtm(Rtm { kind, .. }) => kind.send_id(),
            Self::Rtw(Rtw { kind, .. }) => kind.send_id(),
            Self::Rta(Rta { kind, .. }) => kind.send_id(),
            Self::Cts(Cts { send_id, .. })
            | Self::ReadRsp(ReadRsp { send_id, .. })
            | Self::Eor(Eor { send_id, .. })
            | Self::Receipt(Receipt { send_id, .. })
            | Self::ReadNack(ReadNack { send_id, .. }) => Some(send_id),
            Self::PeerErrorReport(PeerErrorReport { op_id, emitter: EMITTER_RECEIVER, .. }) => {
                op_id
            }
            Self::Rtr(_)
            | Self::CtsData(_)
            | Self::AtomRsp(_)
            | Self::Handshake(_)
            | Self::PeerError(_)
            | Self::PeerErrorReport(_)
            | Self::NeverSent(_) => None,
        }
    }

    /// The operation of the side that receives the data; the same holds for it as for [`Self::send_id`].
    #[must_use]
    pub const fn recv_id(&self) -> Option<OpId> {
        match *self {
            Self::Rta(Rta { kind, .. }) => kind.recv_id(),
            Self::Rtr(Rtr { recv_id, .. })
            | Self::Cts(Cts { recv_id, .. })
            | Self::CtsData(CtsData { recv_id, .. })
            | Self::ReadRsp(ReadRsp { recv_id, .. })
            | Self::Eor(Eor { recv_id, .. })
            | Self::AtomRsp(AtomRsp { recv_id, .. })
            | Self::ReadNack(ReadNack { recv_id, .. }) => Some(recv_id),
            Self::PeerErrorReport(PeerErrorReport { op_id, emitter: EMITTER_SENDER, .. }) => op_id,
            Self::Rtm(_)
            | Self::Rtw(_)
            | Self::Handshake(_)
            | Self::Receipt(_)
            | Self::PeerError(_)
            | Self::PeerErrorReport(_)
            | Self::NeverSent(_) => None,
        }
    }

    /// The operation that a PEER_ERROR names, one of the endpoint that receives the packet. Where the packet says on
    /// which side it is, [`Self::send_id`] or [`Self::recv_id`] return it, too.
    #[must_use]
    pub const fn failed_op_id(&self) -> Option<OpId> {
        match *self {
            Self::PeerError(PeerError { op_id, ref_kind: OPERATION, .. }) => Some(op_id),
            Self::PeerErrorReport(PeerErrorReport { op_id, .. }) => op_id,
            _ => None,
        }
    }

    /// Tag of the message.
    #[must_use]
    pub const fn tag(&self) -> Option<Tag> {
        match *self {
            Self::Rtm(Rtm { tag, .. }) => tag,
            _ => None,
        }
    }

    /// Length in bytes of the whole message, write or read. An eager one has no such field: it is as long as the
    /// payload.
    #[must_use]
    pub const fn msg_length(&self) -> Option<u64> {
        match *self {
            Self::Rtm(Rtm { kind, .. }) => kind.msg_length(),
            Self::Rtw(Rtw { kind, .. }) => kind.msg_length(),
            Self::Rtr(Rtr { msg_length, .. }) => Some(msg_length),
            _ => None,
        }
    }

    /// Where the payload belongs in the message, in bytes from its beginning, if the packet can be another than the
    /// first.
    #[must_use]
    pub const fn seg_offset(&self) -> Option<u64> {
        match *self {
            Self::Rtm(Rtm { kind, .. }) => kind.seg_offset(),
            Self::CtsData(CtsData { seg_offset, .. }) => Some(seg_offset),
            _ => None,
        }
    }

    /// Optional headers of a request.
    #[must_use]
    pub const fn options(&self) -> Option<&ReqOptions> {
        match self {
            Self::Rtm(Rtm { options, .. })
            | Self::Rtw(Rtw { options, .. })
            | Self::Rtr(Rtr { options, .. })
            | Self::Rta(Rta { options, .. }) => Some(options),
            _ => None,
        }
    }

    /// Data for the completion at the target of a request.
    #[must_use]
    pub const fn cq_data(&self) -> Option<u64> {
        match self.options() {
            Some(options) => options.cq_data,
            None => None,
        }
    }
}

impl RtmKind<'_> {
    /// Length of the whole message in bytes, if the packet has the field.
    #[must_use]
    pub const fn msg_length(&self) -> Option<u64> {
        match *self {
            Self::Medium { msg_length, .. }
            | Self::LongCts { msg_length, .. }
            | Self::LongRead { msg_length, .. }
            | Self::DcMedium { msg_length, .. }
            | Self::DcLongCts { msg_length, .. }
            | Self::RuntRead { msg_length, .. } => Some(msg_length),
            Self::Eager | Self::DcEager { .. } => None,
        }
    }

    /// Where the payload belongs in the message, in bytes from its beginning, if the packet has the field.
    #[must_use]
    pub const fn seg_offset(&self) -> Option<u64> {
        match *self {
            Self::Medium { seg_offset, .. }
            | Self::DcMedium { seg_offset, .. }
            | Self::RuntRead { seg_offset, .. } => Some(seg_offset),
            Self::Eager
            | Self::LongCts { .. }
            | Self::LongRead { .. }
            | Self::DcEager { .. }
            | Self::DcLongCts { .. } => None,
        }
    }
}

impl RtwKind<'_> {
    /// Length of all the data in bytes, if the packet has the field.
    #[must_use]
    pub const fn msg_length(&self) -> Option<u64> {
        match *self {
            Self::LongCts { msg_length, .. }
            | Self::DcLongCts { msg_length, .. }
            | Self::LongRead { msg_length, .. } => Some(msg_length),
            Self::Eager | Self::DcEager { .. } => None,
        }
    }
}

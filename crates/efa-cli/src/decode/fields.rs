//! The header fields that packets of different types have in common.

use efa_proto::{
    AtomRsp, Cts, CtsData, Eor, Header, MsgId, OpId, PeerError, PeerErrorReport, ReadNack, ReadRsp,
    Receipt, Rta, Rtm, RtmKind, Rtr, Rtw, RtwKind,
};

/// Header fields of one packet, as far as its type has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    /// Number of the message among those of its sender to this receiver.
    pub(super) msg_id: Option<MsgId>,
    /// Operation of the sender, or of the requester.
    pub(super) send_id: Option<OpId>,
    /// Operation of the receiver, or of the responder.
    pub(super) recv_id: Option<OpId>,
    pub(super) tag: Option<u64>,
    /// Length of the whole message in bytes.
    pub(super) msg_length: Option<u64>,
    /// Where the payload belongs in the message, in bytes from its beginning.
    pub(super) seg_offset: Option<u64>,
}

impl Fields {
    /// The fields of `header`. A PEER_ERROR's `op_id` may be of either side and counts as both.
    pub(super) fn of(header: &Header<'_>) -> Self {
        let none = Self::default();
        match *header {
            Header::Rtm(Rtm { msg_id, tag, kind, .. }) => {
                let (msg_length, seg_offset) = segment(kind);
                let (msg_id, send_id) = (Some(msg_id), kind.send_id());
                Self { msg_id, send_id, recv_id: None, tag, msg_length, seg_offset }
            }
            Header::Rtw(Rtw { kind, .. }) => {
                Self { send_id: kind.send_id(), msg_length: written(kind), ..none }
            }
            Header::Rtr(Rtr { recv_id, msg_length, .. }) => {
                Self { recv_id: Some(recv_id), msg_length: Some(msg_length), ..none }
            }
            Header::Rta(Rta { msg_id, kind, .. }) => {
                let (send_id, recv_id) = (kind.send_id(), kind.recv_id());
                Self { msg_id: Some(msg_id), send_id, recv_id, ..none }
            }
            Header::Receipt(Receipt { msg_id, send_id, .. }) => {
                Self { msg_id: Some(msg_id), send_id: Some(send_id), ..none }
            }
            Header::Cts(Cts { send_id, recv_id, .. })
            | Header::ReadRsp(ReadRsp { send_id, recv_id, .. })
            | Header::Eor(Eor { send_id, recv_id, .. })
            | Header::ReadNack(ReadNack { send_id, recv_id, .. }) => {
                Self { send_id: Some(send_id), recv_id: Some(recv_id), ..none }
            }
            Header::CtsData(CtsData { recv_id, seg_offset, .. }) => {
                Self { recv_id: Some(recv_id), seg_offset: Some(seg_offset), ..none }
            }
            Header::AtomRsp(AtomRsp { recv_id, .. }) => Self { recv_id: Some(recv_id), ..none },
            Header::PeerError(PeerError { op_id, .. }) => {
                Self { send_id: Some(op_id), recv_id: Some(op_id), ..none }
            }
            Header::PeerErrorReport(PeerErrorReport { msg_id, op_id, .. }) => {
                Self { msg_id: Some(msg_id), send_id: op_id, recv_id: op_id, ..none }
            }
            _ => none,
        }
    }
}

/// Length of the message, and offset of the segment in it.
fn segment(kind: RtmKind<'_>) -> (Option<u64>, Option<u64>) {
    match kind {
        RtmKind::Medium { msg_length, seg_offset }
        | RtmKind::DcMedium { msg_length, seg_offset, .. }
        | RtmKind::RuntRead { msg_length, seg_offset, .. } => (Some(msg_length), Some(seg_offset)),
        RtmKind::LongCts { msg_length, .. }
        | RtmKind::DcLongCts { msg_length, .. }
        | RtmKind::LongRead { msg_length, .. } => (Some(msg_length), None),
        _ => (None, None),
    }
}

/// Length of a write.
fn written(kind: RtwKind<'_>) -> Option<u64> {
    match kind {
        RtwKind::LongCts { msg_length, .. }
        | RtwKind::DcLongCts { msg_length, .. }
        | RtwKind::LongRead { msg_length, .. } => Some(msg_length),
        _ => None,
    }
}

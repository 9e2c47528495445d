//! The ids that a packet carries, whatever its type.

use efa_proto::{
    AtomRsp, Cts, CtsData, Eor, Header, MsgId, OpId, PeerError, ReadNack, ReadRsp, Receipt, Rta,
    RtaKind, Rtm, RtmKind, Rtr, Rtw, RtwKind,
};

/// Ids of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ids {
    /// Place of the message in the order of its sender.
    pub(crate) msg_id: Option<MsgId>,
    /// The sending side's operation.
    pub(crate) send_id: Option<OpId>,
    /// The receiving side's operation.
    pub(crate) recv_id: Option<OpId>,
}

impl Ids {
    /// The ids in `header`. A PEER_ERROR's `op_id` may be of either side and counts as both.
    pub(crate) fn of(header: &Header<'_>) -> Self {
        let none = Self::default();
        match *header {
            Header::Rtm(Rtm { msg_id, kind, .. }) => {
                Self { msg_id: Some(msg_id), send_id: of_rtm(kind), recv_id: None }
            }
            Header::Rtw(Rtw { kind, .. }) => Self { send_id: of_rtw(kind), ..none },
            Header::Rtr(Rtr { recv_id, .. }) => Self { recv_id: Some(recv_id), ..none },
            Header::Rta(Rta { msg_id, kind, .. }) => Self { msg_id: Some(msg_id), ..of_rta(kind) },
            Header::Receipt(Receipt { msg_id, send_id, .. }) => {
                Self { msg_id: Some(msg_id), send_id: Some(send_id), recv_id: None }
            }
            Header::Cts(Cts { send_id, recv_id, .. })
            | Header::ReadRsp(ReadRsp { send_id, recv_id, .. })
            | Header::Eor(Eor { send_id, recv_id, .. })
            | Header::ReadNack(ReadNack { send_id, recv_id, .. }) => {
                Self { send_id: Some(send_id), recv_id: Some(recv_id), ..none }
            }
            Header::CtsData(CtsData { recv_id, .. }) | Header::AtomRsp(AtomRsp { recv_id, .. }) => {
                Self { recv_id: Some(recv_id), ..none }
            }
            Header::PeerError(PeerError { op_id, .. }) => {
                Self { send_id: Some(op_id), recv_id: Some(op_id), ..none }
            }
            Header::Handshake(_) | Header::NeverSent(_) => none,
        }
    }
}

fn of_rtm(kind: RtmKind<'_>) -> Option<OpId> {
    match kind {
        RtmKind::Eager | RtmKind::Medium { .. } => None,
        RtmKind::LongCts { send_id, .. }
        | RtmKind::LongRead { send_id, .. }
        | RtmKind::DcEager { send_id }
        | RtmKind::DcMedium { send_id, .. }
        | RtmKind::DcLongCts { send_id, .. }
        | RtmKind::RuntRead { send_id, .. } => Some(send_id),
    }
}

fn of_rtw(kind: RtwKind<'_>) -> Option<OpId> {
    match kind {
        RtwKind::Eager => None,
        RtwKind::DcEager { send_id }
        | RtwKind::LongCts { send_id, .. }
        | RtwKind::DcLongCts { send_id, .. }
        | RtwKind::LongRead { send_id, .. } => Some(send_id),
    }
}

fn of_rta(kind: RtaKind) -> Ids {
    match kind {
        RtaKind::Write => Ids::default(),
        RtaKind::Fetch { recv_id } | RtaKind::Compare { recv_id } => {
            Ids { recv_id: Some(recv_id), ..Ids::default() }
        }
        RtaKind::DcWrite { send_id } => Ids { send_id: Some(send_id), ..Ids::default() },
    }
}

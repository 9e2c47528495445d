//! The ids that a packet carries, whatever its type.

use efa_proto::{
    AtomRsp, Cts, CtsData, Eor, Header, MsgId, OpId, PeerError, ReadNack, ReadRsp, Receipt, Rta,
    Rtm, Rtr, Rtw,
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
                Self { msg_id: Some(msg_id), send_id: kind.send_id(), recv_id: None }
            }
            Header::Rtw(Rtw { kind, .. }) => Self { send_id: kind.send_id(), ..none },
            Header::Rtr(Rtr { recv_id, .. }) => Self { recv_id: Some(recv_id), ..none },
            Header::Rta(Rta { msg_id, kind, .. }) => {
                Self { msg_id: Some(msg_id), send_id: kind.send_id(), recv_id: kind.recv_id() }
            }
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
            _ => none,
        }
    }
}

//! PEER_ERROR: an operation failed at the peer. No release up to 2.6 has it. libfabric's main branch of 2026 has had
//! several forms, with feature bit 9; their length tells them apart.
//!
//! ```text
//!   op_id@4   ref_kind u8@8  pad@9  prov_errno@12  connid@16                          20   July
//!   msg_id@4  op_id@8  op_id_valid@12  emitter@16  prov_errno@20  connid@24           28   August
//!   msg_id@4  op_id@8  emitter@12  prov_errno@16  connid@20                           24   expected in 2.7
//! ```
//!
//! The form of 20 bytes is [`PeerError`]; endpoints of this implementation send it to each other. The others are
//! [`PeerErrorReport`].

use core::fmt;

use zerocopy::little_endian::U32;

use crate::base::{Base, wire};
use crate::cursor::{Cursor, Read};
use crate::value::{FieldValue as Value, Fields, See, visit_connid};
use crate::{Connid, EmitError, Header, MsgId, OpId, PacketFlags, PacketType};

/// An operation failed at the sender of this packet, in the form of 20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerError {
    /// Identifies what failed; `ref_kind` gives its meaning.
    pub op_id: OpId,
    /// Meaning of `op_id`: 0 an operation's id, 1 a `msg_id`, 2 a `msg_id` to be skipped.
    pub ref_kind: u8,
    /// The provider's error number.
    pub prov_errno: u32,
    /// Incarnation of the sender.
    pub connid: Option<Connid>,
}

/// The layout of a [`PeerErrorReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerErrorForm {
    /// 24 bytes; the operation is absent if it is 0xFFFFFFFF.
    Marked,
    /// 28 bytes; a field of its own says whether there is an operation.
    Flagged,
}

/// An operation failed at the sender of this packet, in the forms that name the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerErrorReport {
    /// The message of the operation.
    pub msg_id: MsgId,
    /// The operation of the packet's receiver, if the packet's sender knew it.
    pub op_id: Option<OpId>,
    /// What the packet's sender was in the operation: 1 its sender, 2 its receiver.
    pub emitter: u32,
    /// The provider's error number.
    pub prov_errno: u32,
    /// Incarnation of the sender.
    pub connid: Option<Connid>,
    /// Layout of the packet.
    pub form: PeerErrorForm,
}

/// Stands for the absence of an operation.
const NO_OPERATION: u32 = u32::MAX;

wire!(MarkedHead: 24 { msg_id: U32, op_id: U32, emitter: U32, prov_errno: U32, connid: U32 });
wire!(FlaggedHead: 28 {
    msg_id: U32, op_id: U32, op_id_valid: U32, emitter: U32, prov_errno: U32, connid: U32
});
wire!(PeerErrorHead: 20 { op_id: U32, ref_kind: u8, pad: [u8; 3], prov_errno: U32, connid: U32 });

impl PeerError {
    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub const fn len(&self) -> usize {
        size_of::<PeerErrorHead>()
    }

    /// Writes the packet, for tests and tools; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let (flags, connid) = PacketFlags::with_connid(self.connid);
        let head = PeerErrorHead {
            base: Base::new(PacketType::PeerError, flags.bits()),
            op_id: U32::new(self.op_id.0),
            ref_kind: self.ref_kind,
            pad: [0; 3],
            prov_errno: U32::new(self.prov_errno),
            connid,
        };
        crate::writer::emit_head(PacketType::PeerError, &head, buf)
    }
}

impl PeerErrorReport {
    /// Bytes that [`Self::emit`] writes.
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.form {
            PeerErrorForm::Marked => size_of::<MarkedHead>(),
            PeerErrorForm::Flagged => size_of::<FlaggedHead>(),
        }
    }

    /// Writes the packet, for tests and tools; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let (flags, connid) = PacketFlags::with_connid(self.connid);
        let base = Base::new(PacketType::PeerError, flags.bits());
        let (msg_id, emitter) = (U32::new(self.msg_id.0), U32::new(self.emitter));
        let op_id = U32::new(self.op_id.map_or(NO_OPERATION, |id| id.0));
        let prov_errno = U32::new(self.prov_errno);
        match self.form {
            PeerErrorForm::Marked => {
                let head = MarkedHead { base, msg_id, op_id, emitter, prov_errno, connid };
                crate::writer::emit_head(PacketType::PeerError, &head, buf)
            }
            PeerErrorForm::Flagged => {
                let op_id_valid = U32::new(self.op_id.is_some().into());
                let head =
                    FlaggedHead { base, msg_id, op_id, op_id_valid, emitter, prov_errno, connid };
                crate::writer::emit_head(PacketType::PeerError, &head, buf)
            }
        }
    }
}

/// Reads a packet whose last `missing` bytes are not there.
#[inline(always)]
pub(crate) fn read<'a>(rest: &mut Cursor<'a>, flags: PacketFlags, missing: u64) -> Read<'a> {
    let length = rest.remaining() as u64 + missing;
    if length >= size_of::<FlaggedHead>() as u64 {
        let head = rest.take_head::<FlaggedHead>()?;
        return Ok(Header::PeerErrorReport(PeerErrorReport {
            msg_id: MsgId(head.msg_id.get()),
            op_id: (head.op_id_valid.get() != 0).then_some(OpId(head.op_id.get())),
            emitter: head.emitter.get(),
            prov_errno: head.prov_errno.get(),
            connid: flags.connid(head.connid),
            form: PeerErrorForm::Flagged,
        }));
    }
    if length >= size_of::<MarkedHead>() as u64 {
        let head = rest.take_head::<MarkedHead>()?;
        return Ok(Header::PeerErrorReport(PeerErrorReport {
            msg_id: MsgId(head.msg_id.get()),
            op_id: Some(head.op_id.get()).filter(|id| *id != NO_OPERATION).map(OpId),
            emitter: head.emitter.get(),
            prov_errno: head.prov_errno.get(),
            connid: flags.connid(head.connid),
            form: PeerErrorForm::Marked,
        }));
    }
    let head = rest.take_head::<PeerErrorHead>()?;
    Ok(Header::PeerError(PeerError {
        op_id: OpId(head.op_id.get()),
        ref_kind: head.ref_kind,
        prov_errno: head.prov_errno.get(),
        connid: flags.connid(head.connid),
    }))
}

/// `op_id=… ref_kind=… prov_errno=…`, without the type's name.
impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "")
    }
}

impl<'a> Fields<'a> for PeerError {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        see("op_id", Value::OpId(self.op_id))?;
        see("ref_kind", Value::Number(self.ref_kind.into()))?;
        see("prov_errno", Value::Number(self.prov_errno.into()))?;
        visit_connid(self.connid, see)
    }
}

/// `msg_id=… op_id=… emitter=… prov_errno=… form=24`, without the type's name.
impl fmt::Display for PeerErrorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "")
    }
}

impl<'a> Fields<'a> for PeerErrorReport {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        see("msg_id", Value::Number(self.msg_id.0.into()))?;
        if let Some(op_id) = self.op_id {
            see("op_id", Value::OpId(op_id))?;
        }
        let emitter = match self.emitter {
            1 => Value::Name("sender"),
            2 => Value::Name("receiver"),
            other => Value::Number(other.into()),
        };
        see("emitter", emitter)?;
        see("prov_errno", Value::Number(self.prov_errno.into()))?;
        see("form", Value::Number(self.len() as u64))?;
        visit_connid(self.connid, see)
    }
}

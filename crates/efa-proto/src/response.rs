//! Responses that end or redirect an operation: READRSP (section 3.3, table 3.11), EOR (4.1),
//! RECEIPT (4.2), READ_NACK (4.7).
//!
//! ```text
//!   READRSP     connid@4  recv_id@8  send_id@12  seg_length u64@16  payload     24
//!   EOR         send_id@4  recv_id@8  [connid@12]                               12 or 16
//!   RECEIPT     send_id@4  msg_id@8   connid@12                                 16
//!   READ_NACK   send_id@4  recv_id@8  connid@12                                 16
//! ```
//!
//! The specification has `send_id` first in READRSP; every release sends `recv_id` first.

use core::fmt;

use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

use crate::base::{Base, wire};
use crate::cursor::{Cursor, Read};
use crate::value::{FieldValue as Value, Fields, See, visit_connid};
use crate::{Connid, EmitError, Header, MsgId, OpId, PacketFlags, PacketType};

/// First data of an emulated read, as payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadRsp {
    /// Incarnation of the sender.
    pub connid: Option<Connid>,
    /// The requester's operation, out of the RTR.
    pub recv_id: OpId,
    /// The responder's operation, for CTS.
    pub send_id: OpId,
    /// Length of the payload in bytes.
    pub seg_length: u64,
}

/// End of read: the sender of this packet has read the source of a long read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Eor {
    /// The operation whose memory was read.
    pub send_id: OpId,
    /// The reader's operation.
    pub recv_id: OpId,
    /// Whether the packet has a connid field.
    pub form: EorForm,
}

/// The two lengths of an [`Eor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EorForm {
    /// 12 bytes: up to release 1.13.
    Short,
    /// 16 bytes: since release 1.14; older receivers ignore the additional field.
    Full {
        /// Incarnation of the sender.
        connid: Option<Connid>,
    },
}

/// The data of a delivery-complete operation is in the target's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// The requester's operation, out of the DC request.
    pub send_id: OpId,
    /// The message; not meaningful for writes and atomics of libfabric peers.
    pub msg_id: MsgId,
    /// Incarnation of the sender.
    pub connid: Option<Connid>,
}

/// The receiver of a long or runting read cannot read the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadNack {
    /// The sender's operation, out of the request.
    pub send_id: OpId,
    /// The receiver's operation.
    pub recv_id: OpId,
    /// Incarnation of the sender.
    pub connid: Option<Connid>,
}

wire!(ReadRspHead: 24 { connid: U32, recv_id: U32, send_id: U32, seg_length: U64 });
wire!(ShortEor: 12 { send_id: U32, recv_id: U32 });
wire!(FullEor: 16 { send_id: U32, recv_id: U32, connid: U32 });
wire!(ReceiptHead: 16 { send_id: U32, msg_id: U32, connid: U32 });
wire!(ReadNackHead: 16 { send_id: U32, recv_id: U32, connid: U32 });

impl ReadRsp {
    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub const fn len(&self) -> usize {
        size_of::<ReadRspHead>()
    }

    /// Writes the header, to be followed by the payload; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let (flags, connid) = PacketFlags::with_connid(self.connid);
        let head = ReadRspHead {
            base: Base::new(PacketType::ReadRsp, flags.bits()),
            connid,
            recv_id: U32::new(self.recv_id.0),
            send_id: U32::new(self.send_id.0),
            seg_length: U64::new(self.seg_length),
        };
        crate::writer::emit_head(PacketType::ReadRsp, &head, buf)
    }
}

/// Reads a packet whose last `missing` bytes are not there.
#[inline(always)]
pub(crate) fn read_readrsp<'a>(
    rest: &mut Cursor<'a>,
    flags: PacketFlags,
    missing: u64,
) -> Read<'a> {
    let head = rest.take_head::<ReadRspHead>()?;
    let seg_length = head.seg_length.get();
    rest.check_segment(seg_length, missing)?;
    Ok(Header::ReadRsp(ReadRsp {
        connid: flags.connid(head.connid),
        recv_id: OpId(head.recv_id.get()),
        send_id: OpId(head.send_id.get()),
        seg_length,
    }))
}

/// `recv_id=… send_id=… seg_length=…`, without the type's name.
impl fmt::Display for ReadRsp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "")
    }
}

impl<'a> Fields<'a> for ReadRsp {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        see("recv_id", Value::OpId(self.recv_id))?;
        see("send_id", Value::OpId(self.send_id))?;
        see("seg_length", Value::Number(self.seg_length))?;
        visit_connid(self.connid, see)
    }
}

impl Eor {
    /// Reads a packet if it is an EOR with connid, the form that all releases since 1.14 send, and nothing else; `bytes` is
    /// exactly one datagram. Returns the header and the connid.
    ///
    /// A fast path: [`Packet`](crate::Packet) parses it, too.
    #[must_use]
    #[inline(always)]
    pub fn peek(bytes: &[u8]) -> Option<(Self, Connid)> {
        let base = Base::read(bytes)?;
        let flags = PacketFlags::from_bits_retain(base.flags.get());
        if base.packet_type != PacketType::Eor.as_u8() || !flags.contains(PacketFlags::CONNID) {
            return None;
        }
        let head = FullEor::ref_from_bytes(bytes).ok()?;
        let (send_id, recv_id) = (OpId(head.send_id.get()), OpId(head.recv_id.get()));
        let connid = Connid(head.connid.get());
        Some((Self { send_id, recv_id, form: EorForm::Full { connid: Some(connid) } }, connid))
    }

    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.form {
            EorForm::Short => size_of::<ShortEor>(),
            EorForm::Full { .. } => size_of::<FullEor>(),
        }
    }

    /// Writes the packet; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let (send_id, recv_id) = (U32::new(self.send_id.0), U32::new(self.recv_id.0));
        match self.form {
            EorForm::Short => {
                let base = Base::new(PacketType::Eor, 0);
                crate::writer::emit_head(PacketType::Eor, &ShortEor { base, send_id, recv_id }, buf)
            }
            EorForm::Full { connid } => {
                let (flags, connid) = PacketFlags::with_connid(connid);
                let base = Base::new(PacketType::Eor, flags.bits());
                crate::writer::emit_head(
                    PacketType::Eor,
                    &FullEor { base, send_id, recv_id, connid },
                    buf,
                )
            }
        }
    }
}

/// Exactly 12 bytes without connid flag are the old form, everything else must be the new one.
/// Reads a packet whose last `missing` bytes are not there.
#[inline(always)]
pub(crate) fn read_eor<'a>(rest: &mut Cursor<'a>, flags: PacketFlags, missing: u64) -> Read<'a> {
    let short = rest.remaining() as u64 + missing == size_of::<ShortEor>() as u64;
    if short && !flags.contains(PacketFlags::CONNID) {
        let head = rest.take_head::<ShortEor>()?;
        let (send_id, recv_id) = (OpId(head.send_id.get()), OpId(head.recv_id.get()));
        return Ok(Header::Eor(Eor { send_id, recv_id, form: EorForm::Short }));
    }
    let head = rest.take_head::<FullEor>()?;
    let (send_id, recv_id) = (OpId(head.send_id.get()), OpId(head.recv_id.get()));
    let form = EorForm::Full { connid: flags.connid(head.connid) };
    Ok(Header::Eor(Eor { send_id, recv_id, form }))
}

/// `send_id=… recv_id=…`, without the type's name.
impl fmt::Display for Eor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "")
    }
}

impl<'a> Fields<'a> for Eor {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        see("send_id", Value::OpId(self.send_id))?;
        see("recv_id", Value::OpId(self.recv_id))?;
        match self.form {
            EorForm::Short => see("short", Value::Set),
            EorForm::Full { connid } => visit_connid(connid, see),
        }
    }
}

impl Receipt {
    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub const fn len(&self) -> usize {
        size_of::<ReceiptHead>()
    }

    /// Writes the packet; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let (flags, connid) = PacketFlags::with_connid(self.connid);
        let head = ReceiptHead {
            base: Base::new(PacketType::Receipt, flags.bits()),
            send_id: U32::new(self.send_id.0),
            msg_id: U32::new(self.msg_id.0),
            connid,
        };
        crate::writer::emit_head(PacketType::Receipt, &head, buf)
    }
}

#[inline]
pub(crate) fn read_receipt<'a>(rest: &mut Cursor<'a>, flags: PacketFlags) -> Read<'a> {
    let head = rest.take_head::<ReceiptHead>()?;
    Ok(Header::Receipt(Receipt {
        send_id: OpId(head.send_id.get()),
        msg_id: MsgId(head.msg_id.get()),
        connid: flags.connid(head.connid),
    }))
}

/// `send_id=… msg_id=…`, without the type's name.
impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "")
    }
}

impl<'a> Fields<'a> for Receipt {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        see("send_id", Value::OpId(self.send_id))?;
        see("msg_id", Value::Number(self.msg_id.0.into()))?;
        visit_connid(self.connid, see)
    }
}

impl ReadNack {
    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub const fn len(&self) -> usize {
        size_of::<ReadNackHead>()
    }

    /// Writes the packet; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let (flags, connid) = PacketFlags::with_connid(self.connid);
        let head = ReadNackHead {
            base: Base::new(PacketType::ReadNack, flags.bits()),
            send_id: U32::new(self.send_id.0),
            recv_id: U32::new(self.recv_id.0),
            connid,
        };
        crate::writer::emit_head(PacketType::ReadNack, &head, buf)
    }
}

#[inline]
pub(crate) fn read_read_nack<'a>(rest: &mut Cursor<'a>, flags: PacketFlags) -> Read<'a> {
    let head = rest.take_head::<ReadNackHead>()?;
    Ok(Header::ReadNack(ReadNack {
        send_id: OpId(head.send_id.get()),
        recv_id: OpId(head.recv_id.get()),
        connid: flags.connid(head.connid),
    }))
}

/// `send_id=… recv_id=…`, without the type's name.
impl fmt::Display for ReadNack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "")
    }
}

impl<'a> Fields<'a> for ReadNack {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        see("send_id", Value::OpId(self.send_id))?;
        see("recv_id", Value::OpId(self.recv_id))?;
        visit_connid(self.connid, see)
    }
}

//! RTA, requests for atomics, and ATOMRSP, their answer (sections 3.3, 4.2; tables 3.13 to 3.15).
//!
//! ```text
//!   WRITE, FETCH, COMPARE, DC_WRITE
//!             msg_id@4  rma_iov_count@8  datatype@12  op@16  u32@20  rma_iov[n]@24    24+24n
//!                                                            │ WRITE: padding
//!                                                            │ FETCH, COMPARE: recv_id
//!                                                            └ DC_WRITE: send_id
//!   ATOMRSP   connid@4  reserved@8  recv_id@12  seg_length u64@16                     24
//! ```
//!
//! The payload of an RTA is the operand, for COMPARE the operand and then the value to compare
//! with, each of full length; that of ATOMRSP the previous values. `msg_id` comes from the same
//! sequence as that of messages. Data types and operations are libfabric's numbers.

use core::fmt;

use zerocopy::little_endian::{U32, U64};

use crate::base::{Base, wire};
use crate::cursor::{Cursor, RMA_IOV, Read};
use crate::value::{FieldValue as Value, Fields, See, visit_connid};
use crate::writer::{self, Writer};
use crate::{
    Connid, EmitError, Header, MAX_IOV, MsgId, OpId, PacketFlags, PacketType, ReqFlags, ReqOptions,
    RmaIov,
};

/// A request for an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rta<'a> {
    /// Position among the messages and atomics to this peer.
    pub msg_id: MsgId,
    /// The peer's memory to operate on, at most [`MAX_IOV`] pieces.
    pub rma_iov: &'a [RmaIov],
    /// Data type, libfabric's `enum fi_datatype`; not checked here. See [`Self::datatype_name`].
    pub datatype: u32,
    /// Operation, libfabric's `enum fi_op`; not checked here. See [`Self::op_name`].
    pub op: u32,
    /// The response that is expected.
    pub kind: RtaKind,
    /// Optional headers.
    pub options: ReqOptions,
}

/// Subprotocol of an [`Rta`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RtaKind {
    /// None.
    Write,
    /// ATOMRSP with the previous values.
    Fetch {
        /// The requester's operation.
        recv_id: OpId,
    },
    /// ATOMRSP with the previous values, of a conditional operation.
    Compare {
        /// The requester's operation.
        recv_id: OpId,
    },
    /// A RECEIPT.
    DcWrite {
        /// The requester's operation.
        send_id: OpId,
    },
}

impl RtaKind {
    /// The requester's operation, if a RECEIPT ends it.
    #[must_use]
    pub const fn send_id(&self) -> Option<OpId> {
        match *self {
            Self::DcWrite { send_id } => Some(send_id),
            Self::Write | Self::Fetch { .. } | Self::Compare { .. } => None,
        }
    }

    /// The requester's operation, if an ATOMRSP ends it.
    #[must_use]
    pub const fn recv_id(&self) -> Option<OpId> {
        match *self {
            Self::Fetch { recv_id } | Self::Compare { recv_id } => Some(recv_id),
            Self::Write | Self::DcWrite { .. } => None,
        }
    }
}

/// Previous values of a fetch or compare atomic, as payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomRsp {
    /// Incarnation of the sender.
    pub connid: Option<Connid>,
    /// The requester's operation, out of the RTA.
    pub recv_id: OpId,
    /// Length of the payload in bytes.
    pub seg_length: u64,
}

wire!(RtaHead: 24 { msg_id: U32, rma_iov_count: U32, datatype: U32, op: U32, id: U32 });
wire!(AtomRspHead: 24 { connid: U32, reserved: U32, recv_id: U32, seg_length: U64 });

/// Names of the data types by their numbers.
const DATATYPES: [&str; 14] = [
    "INT8",
    "UINT8",
    "INT16",
    "UINT16",
    "INT32",
    "UINT32",
    "INT64",
    "UINT64",
    "FLOAT",
    "DOUBLE",
    "FLOAT_COMPLEX",
    "DOUBLE_COMPLEX",
    "LONG_DOUBLE",
    "LONG_DOUBLE_COMPLEX",
];
/// Names of the operations by their numbers.
const OPERATIONS: [&str; 19] = [
    "MIN",
    "MAX",
    "SUM",
    "PROD",
    "LOR",
    "LAND",
    "BOR",
    "BAND",
    "LXOR",
    "BXOR",
    "ATOMIC_READ",
    "ATOMIC_WRITE",
    "CSWAP",
    "CSWAP_NE",
    "CSWAP_LE",
    "CSWAP_LT",
    "CSWAP_GE",
    "CSWAP_GT",
    "MSWAP",
];

impl Rta<'_> {
    /// libfabric's name of the data type without its prefix, such as `UINT64`; `None` for a number that libfabric's
    /// EFA provider has no atomics for.
    #[must_use]
    pub fn datatype_name(&self) -> Option<&'static str> {
        DATATYPES.get(usize::try_from(self.datatype).ok()?).copied()
    }

    /// libfabric's name of the operation without its prefix, such as `SUM`; `None` for an unknown number.
    #[must_use]
    pub fn op_name(&self) -> Option<&'static str> {
        OPERATIONS.get(usize::try_from(self.op).ok()?).copied()
    }

    /// Type of the packet.
    #[inline]
    #[must_use]
    pub const fn packet_type(&self) -> PacketType {
        match self.kind {
            RtaKind::Write => PacketType::WriteRta,
            RtaKind::Fetch { .. } => PacketType::FetchRta,
            RtaKind::Compare { .. } => PacketType::CompareRta,
            RtaKind::DcWrite { .. } => PacketType::DcWriteRta,
        }
    }

    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub const fn len(&self) -> usize {
        size_of::<RtaHead>() + size_of_val::<[RmaIov]>(self.rma_iov) + self.options.len()
    }

    /// Writes the header, to be followed by the payload; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`]; [`EmitError::Count`] for more than [`MAX_IOV`] memory vectors.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let packet_type = self.packet_type();
        if self.rma_iov.len() > MAX_IOV {
            let found = self.rma_iov.len();
            return Err(EmitError::Count { packet_type, field: "rma_iov", found });
        }
        let available = buf.len();
        let mut out = Writer::new(buf);
        match self.put(&mut out) {
            Some(()) => Ok(available - out.remaining()),
            None => writer::too_small(packet_type, self.len(), available),
        }
    }

    #[inline(always)]
    fn put(&self, out: &mut Writer<'_>) -> Option<()> {
        let flags = self.options.flags() | ReqFlags::ATOMIC;
        let id = match self.kind {
            RtaKind::Write => 0,
            RtaKind::Fetch { recv_id: id }
            | RtaKind::Compare { recv_id: id }
            | RtaKind::DcWrite { send_id: id } => id.0,
        };
        out.put(&RtaHead {
            base: Base::new(self.packet_type(), flags.bits()),
            msg_id: U32::new(self.msg_id.0),
            rma_iov_count: U32::new(self.rma_iov.len() as u32),
            datatype: U32::new(self.datatype),
            op: U32::new(self.op),
            id: U32::new(id),
        })?;
        out.put(self.rma_iov)?;
        self.options.put(out)
    }
}

#[inline(always)]
pub(crate) fn read<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let head = rest.take_head::<RtaHead>()?;
    let rma_iov = rest.take_iov(RMA_IOV, head.rma_iov_count)?;
    let options = ReqOptions::take(rest, flags)?;
    let id = OpId(head.id.get());
    let kind = match rest.packet_type() {
        PacketType::FetchRta => RtaKind::Fetch { recv_id: id },
        PacketType::CompareRta => RtaKind::Compare { recv_id: id },
        PacketType::DcWriteRta => RtaKind::DcWrite { send_id: id },
        _ => RtaKind::Write,
    };
    Ok(Header::Rta(Rta {
        msg_id: MsgId(head.msg_id.get()),
        rma_iov,
        datatype: head.datatype.get(),
        op: head.op.get(),
        kind,
        options,
    }))
}

/// `msg_id=7 rma_iov=[…] datatype=UINT64 op=SUM …`, without the type's name; unknown numbers as such.
impl fmt::Display for Rta<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "")
    }
}

impl<'a> Fields<'a> for Rta<'a> {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        let named = |name: Option<&'static str>, number: u32| {
            name.map_or(Value::Number(number.into()), Value::Name)
        };
        see("msg_id", Value::Number(self.msg_id.0.into()))?;
        see("rma_iov", Value::Iov(self.rma_iov))?;
        see("datatype", named(self.datatype_name(), self.datatype))?;
        see("op", named(self.op_name(), self.op))?;
        match self.kind {
            RtaKind::Write => {}
            RtaKind::Fetch { recv_id } | RtaKind::Compare { recv_id } => {
                see("recv_id", Value::OpId(recv_id))?;
            }
            RtaKind::DcWrite { send_id } => see("send_id", Value::OpId(send_id))?,
        }
        self.options.visit(see)
    }
}

impl AtomRsp {
    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub const fn len(&self) -> usize {
        size_of::<AtomRspHead>()
    }

    /// Writes the header, to be followed by the payload; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let (flags, connid) = PacketFlags::with_connid(self.connid);
        let head = AtomRspHead {
            base: Base::new(PacketType::AtomRsp, flags.bits()),
            connid,
            reserved: U32::new(0),
            recv_id: U32::new(self.recv_id.0),
            seg_length: U64::new(self.seg_length),
        };
        writer::emit_head(PacketType::AtomRsp, &head, buf)
    }
}

/// Reads a packet whose last `missing` bytes are not there.
#[inline(always)]
pub(crate) fn read_atomrsp<'a>(
    rest: &mut Cursor<'a>,
    flags: PacketFlags,
    missing: u64,
) -> Read<'a> {
    let head = rest.take_head::<AtomRspHead>()?;
    let seg_length = head.seg_length.get();
    rest.check_segment(seg_length, missing)?;
    let (connid, recv_id) = (flags.connid(head.connid), OpId(head.recv_id.get()));
    Ok(Header::AtomRsp(AtomRsp { connid, recv_id, seg_length }))
}

/// `recv_id=… seg_length=…`, without the type's name.
impl fmt::Display for AtomRsp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "")
    }
}

impl<'a> Fields<'a> for AtomRsp {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        see("recv_id", Value::OpId(self.recv_id))?;
        see("seg_length", Value::Number(self.seg_length))?;
        visit_connid(self.connid, see)
    }
}

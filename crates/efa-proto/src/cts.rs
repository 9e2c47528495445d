//! CTS, the receiver's grant, and CTSDATA, what the sender sends under it (section 3.2, tables 3.6
//! and 3.7).
//!
//! ```text
//!   CTS       connid@4  send_id@8  recv_id@12  recv_length u64@16                        24
//!   CTSDATA   recv_id@4  seg_length u64@8  seg_offset u64@16  [connid@24  pad@28]        24 or 32
//! ```
//!
//! `seg_offset` counts from the start of the message. Both forms of CTSDATA occur: with
//! connid (flag 0x8000) since release 1.14, without before.

use core::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::base::{Base, wire};
use crate::cursor::{Cursor, Read};
use crate::value::{FieldValue as Value, Fields, See, visit_connid};
use crate::writer::{self, Writer};
use crate::{Connid, CtsFlags, EmitError, Header, OpId, PacketFlags, PacketType};

/// A grant: the receiver lets the sender send `recv_length` more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cts {
    /// Incarnation of the sender.
    pub connid: Option<Connid>,
    /// The data sender's operation, out of the request (or out of READRSP).
    pub send_id: OpId,
    /// The receiver's operation, to be used in CTSDATA.
    pub recv_id: OpId,
    /// Bytes granted; replaces the rest of an earlier grant.
    pub recv_length: u64,
    /// The data is the response to an emulated read; old releases look `send_id` up in another table then.
    pub emulated_read: bool,
}

/// A segment of a message, as payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CtsData {
    /// Incarnation of the sender; absent, the header is 8 bytes shorter.
    pub connid: Option<Connid>,
    /// The receiver's operation, out of the CTS.
    pub recv_id: OpId,
    /// Length of the payload in bytes.
    pub seg_length: u64,
    /// Offset of the payload in the message, in bytes.
    pub seg_offset: u64,
}

wire!(CtsHead: 24 { connid: U32, send_id: U32, recv_id: U32, recv_length: U64 });
wire!(CtsDataHead: 24 { recv_id: U32, seg_length: U64, seg_offset: U64 });

/// What follows the fixed header of CTSDATA when the connid flag is set.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CtsDataConnid {
    connid: U32,
    pad: U32,
}

const _: () = assert!(size_of::<CtsDataConnid>() == 8);

/// The header with connid.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CtsDataWithConnid {
    head: CtsDataHead,
    connid: CtsDataConnid,
}

impl Cts {
    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub const fn len(&self) -> usize {
        size_of::<CtsHead>()
    }

    /// Writes the packet; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let mut flags = CtsFlags::empty();
        flags.set(CtsFlags::EMULATED_READ, self.emulated_read);
        flags.set(CtsFlags::CONNID, self.connid.is_some());
        let head = CtsHead {
            base: Base::new(PacketType::Cts, flags.bits()),
            connid: U32::new(self.connid.unwrap_or_default().0),
            send_id: U32::new(self.send_id.0),
            recv_id: U32::new(self.recv_id.0),
            recv_length: U64::new(self.recv_length),
        };
        writer::emit_head(PacketType::Cts, &head, buf)
    }
}

#[inline]
pub(crate) fn read_cts<'a>(rest: &mut Cursor<'a>, flags: CtsFlags) -> Read<'a> {
    let head = rest.take_head::<CtsHead>()?;
    Ok(Header::Cts(Cts {
        connid: flags.contains(CtsFlags::CONNID).then_some(Connid(head.connid.get())),
        send_id: OpId(head.send_id.get()),
        recv_id: OpId(head.recv_id.get()),
        recv_length: head.recv_length.get(),
        emulated_read: flags.contains(CtsFlags::EMULATED_READ),
    }))
}

/// `send_id=… recv_id=… recv_length=…`, without the type's name.
impl fmt::Display for Cts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "")
    }
}

impl<'a> Fields<'a> for Cts {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        see("send_id", Value::OpId(self.send_id))?;
        see("recv_id", Value::OpId(self.recv_id))?;
        see("recv_length", Value::Number(self.recv_length))?;
        if self.emulated_read {
            see("emulated_read", Value::Set)?;
        }
        visit_connid(self.connid, see)
    }
}

impl CtsData {
    /// Reads a packet if it is a well-formed CTSDATA with connid, the form that all releases since 1.14 send; `bytes` is
    /// exactly one datagram. Returns the header, the connid and the payload.
    ///
    /// A fast path: [`Packet`](crate::Packet) parses it, too.
    #[must_use]
    #[inline(always)]
    pub fn peek(bytes: &[u8]) -> Option<(Self, Connid, &[u8])> {
        let base = Base::read(bytes)?;
        let flags = PacketFlags::from_bits_retain(base.flags.get());
        if base.packet_type != PacketType::CtsData.as_u8() || !flags.contains(PacketFlags::CONNID) {
            return None;
        }
        let (CtsDataWithConnid { head, connid }, payload) =
            CtsDataWithConnid::ref_from_prefix(bytes).ok()?;
        let (recv_id, connid) = (OpId(head.recv_id.get()), Connid(connid.connid.get()));
        let (seg_length, seg_offset) = (head.seg_length.get(), head.seg_offset.get());
        let data = Self { connid: Some(connid), recv_id, seg_length, seg_offset };
        (seg_length == payload.len() as u64).then_some((data, connid, payload))
    }

    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub const fn len(&self) -> usize {
        let connid = if self.connid.is_some() { size_of::<CtsDataConnid>() } else { 0 };
        size_of::<CtsDataHead>() + connid
    }

    /// Writes the header, to be followed by the payload; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let available = buf.len();
        let mut out = Writer::new(buf);
        match self.put(&mut out) {
            Some(()) => Ok(available - out.remaining()),
            None => writer::too_small(PacketType::CtsData, self.len(), available),
        }
    }

    #[inline(always)]
    fn put(&self, out: &mut Writer<'_>) -> Option<()> {
        let (flags, connid) = PacketFlags::with_connid(self.connid);
        out.put(&CtsDataHead {
            base: Base::new(PacketType::CtsData, flags.bits()),
            recv_id: U32::new(self.recv_id.0),
            seg_length: U64::new(self.seg_length),
            seg_offset: U64::new(self.seg_offset),
        })?;
        if self.connid.is_some() {
            out.put(&CtsDataConnid { connid, pad: U32::new(0) })?;
        }
        Some(())
    }
}

/// Reads a packet whose last `missing` bytes are not there.
#[inline(always)]
pub(crate) fn read_ctsdata<'a>(
    rest: &mut Cursor<'a>,
    flags: PacketFlags,
    missing: u64,
) -> Read<'a> {
    let head = rest.take_head::<CtsDataHead>()?;
    let mut connid = None;
    if flags.contains(PacketFlags::CONNID) {
        connid = Some(Connid(rest.take::<CtsDataConnid>("connid")?.connid.get()));
    }
    let seg_length = head.seg_length.get();
    rest.check_segment(seg_length, missing)?;
    let (recv_id, seg_offset) = (OpId(head.recv_id.get()), head.seg_offset.get());
    Ok(Header::CtsData(CtsData { connid, recv_id, seg_length, seg_offset }))
}

/// `recv_id=… seg_offset=… seg_length=…`, without the type's name.
impl fmt::Display for CtsData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "")
    }
}

impl<'a> Fields<'a> for CtsData {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        see("recv_id", Value::OpId(self.recv_id))?;
        see("seg_offset", Value::Number(self.seg_offset))?;
        see("seg_length", Value::Number(self.seg_length))?;
        visit_connid(self.connid, see)
    }
}

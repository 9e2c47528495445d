//! RTM, requests to send a message (sections 3.2, 4.1, 4.2, 4.5; tables 3.3 to 3.5, 4.1).
//!
//! Every kind exists untagged (MSGRTM) and tagged (TAGRTM); the tag is then the last field of the
//! mandatory header. Offsets in bytes, sizes without and with tag:
//!
//! ```text
//!   EAGER       msg_id@4                                                              8  16
//!   MEDIUM      msg_id@4  msg_length@8  seg_offset@16                                24  32
//!   LONGCTS     msg_id@4  msg_length@8  send_id@16  credit_request@20                24  32
//!   LONGREAD    msg_id@4  msg_length@8  send_id@16  read_iov_count@20                24  32
//!   DC_EAGER    msg_id@4  send_id@8  pad@12                                          16  24
//!   DC_MEDIUM   msg_id@4  send_id@8  pad@12  msg_length@16  seg_offset@24            32  40
//!   DC_LONGCTS  as LONGCTS
//!   RUNTREAD    as LONGREAD, then  seg_offset@24  runt_length@32                     40  48
//! ```
//!
//! `msg_length` is always the length of the complete message, also in MEDIUM, where the specification
//! calls it a segment's length; a segment is as long as the payload. The specification has no DC layouts.
//! `read_iov[]` follows the optional headers.

mod by_connid;

use core::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use self::by_connid::{EagerConnid, LongReadConnid, MediumConnid};
use crate::base::{Base, Wire, wire};
use crate::cursor::{Cursor, READ_IOV, Read};
use crate::value::{FieldValue as Value, Fields, See};
use crate::writer::{self, Writer};
use crate::{
    EmitError, Header, MAX_IOV, MsgId, OpId, PacketType, ParseError, ReqFlags, ReqOptions, RmaIov,
    Tag,
};

/// A request to send a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rtm<'a> {
    /// Position of the message among those to this peer; the same in all packets of a message.
    pub msg_id: MsgId,
    /// The tag; makes the request a TAGRTM.
    pub tag: Option<Tag>,
    /// The subprotocol and its fields.
    pub kind: RtmKind<'a>,
    /// Optional headers.
    pub options: ReqOptions,
}

/// Subprotocol of an [`Rtm`]. Lengths and offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RtmKind<'a> {
    /// The payload is the message.
    Eager,
    /// The payload is a segment of the message, sent without waiting for the receiver.
    Medium {
        /// Length of the message.
        msg_length: u64,
        /// Where the payload belongs in it.
        seg_offset: u64,
    },
    /// The payload is the beginning of the message, the rest comes in CTSDATA.
    LongCts {
        /// Length of the message.
        msg_length: u64,
        /// The sender's operation.
        send_id: OpId,
        /// Number of CTSDATA packets that the sender asks to be granted.
        credit_request: u32,
        /// The request repeats a message that the receiver answered with READ_NACK (section 4.7).
        read_nack: bool,
    },
    /// The receiver reads the message from the sender's memory.
    LongRead {
        /// Length of the message.
        msg_length: u64,
        /// The sender's operation.
        send_id: OpId,
        /// The sender's memory, at most [`MAX_IOV`] pieces.
        read_iov: &'a [RmaIov],
    },
    /// As `Eager`, completed by a RECEIPT.
    DcEager {
        /// The sender's operation.
        send_id: OpId,
    },
    /// As `Medium`, completed by a RECEIPT.
    DcMedium {
        /// The sender's operation.
        send_id: OpId,
        /// Length of the message.
        msg_length: u64,
        /// Where the payload belongs in it.
        seg_offset: u64,
    },
    /// As `LongCts`, completed by a RECEIPT.
    DcLongCts {
        /// Length of the message.
        msg_length: u64,
        /// The sender's operation.
        send_id: OpId,
        /// Number of CTSDATA packets that the sender asks to be granted.
        credit_request: u32,
        /// The request repeats a message that the receiver answered with READ_NACK (section 4.7).
        read_nack: bool,
    },
    /// The payload is a segment of the message's leading part, the receiver reads the rest.
    RuntRead {
        /// Length of the message.
        msg_length: u64,
        /// The sender's operation.
        send_id: OpId,
        /// Where the payload belongs in the message.
        seg_offset: u64,
        /// Length of the leading part; the same in all packets of the message.
        runt_length: u64,
        /// The sender's memory with the complete message, at most [`MAX_IOV`] pieces.
        read_iov: &'a [RmaIov],
    },
}

impl RtmKind<'_> {
    /// The sender's operation, if the packet names one.
    #[must_use]
    pub const fn send_id(&self) -> Option<OpId> {
        match *self {
            Self::Eager | Self::Medium { .. } => None,
            Self::LongCts { send_id, .. }
            | Self::LongRead { send_id, .. }
            | Self::DcEager { send_id }
            | Self::DcMedium { send_id, .. }
            | Self::DcLongCts { send_id, .. }
            | Self::RuntRead { send_id, .. } => Some(send_id),
        }
    }
}

wire!(EagerRtm: 8 { msg_id: U32 });
wire!(MediumRtm: 24 { msg_id: U32, msg_length: U64, seg_offset: U64 });
wire!(LongCtsRtm: 24 { msg_id: U32, msg_length: U64, send_id: U32, credit_request: U32 });
wire!(LongReadRtm: 24 { msg_id: U32, msg_length: U64, send_id: U32, read_iov_count: U32 });
wire!(DcEagerRtm: 16 { msg_id: U32, send_id: U32, pad: U32 });
wire!(DcMediumRtm: 32 { msg_id: U32, send_id: U32, pad: U32, msg_length: U64, seg_offset: U64 });
wire!(RuntReadRtm: 40 {
    msg_id: U32, msg_length: U64, send_id: U32, read_iov_count: U32, seg_offset: U64,
    runt_length: U64,
});

/// The header of a TAGRTM.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Tagged<H> {
    head: H,
    tag: U64,
}

impl<H: Wire> Wire for Tagged<H> {
    #[inline(always)]
    fn cut(available: usize) -> (&'static str, usize) {
        if available < size_of::<H>() { H::cut(available) } else { ("tag", size_of::<Self>()) }
    }
}

const NO_PAD: U32 = U32::new(0);

impl Rtm<'_> {
    /// Type of the packet.
    #[inline]
    #[must_use]
    pub const fn packet_type(&self) -> PacketType {
        use PacketType as T;
        let (msg, tagged) = match self.kind {
            RtmKind::Eager => (T::EagerMsgRtm, T::EagerTagRtm),
            RtmKind::Medium { .. } => (T::MediumMsgRtm, T::MediumTagRtm),
            RtmKind::LongCts { .. } => (T::LongCtsMsgRtm, T::LongCtsTagRtm),
            RtmKind::LongRead { .. } => (T::LongReadMsgRtm, T::LongReadTagRtm),
            RtmKind::DcEager { .. } => (T::DcEagerMsgRtm, T::DcEagerTagRtm),
            RtmKind::DcMedium { .. } => (T::DcMediumMsgRtm, T::DcMediumTagRtm),
            RtmKind::DcLongCts { .. } => (T::DcLongCtsMsgRtm, T::DcLongCtsTagRtm),
            RtmKind::RuntRead { .. } => (T::RuntReadMsgRtm, T::RuntReadTagRtm),
        };
        if self.tag.is_some() { tagged } else { msg }
    }

    /// Bytes that [`Self::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub const fn len(&self) -> usize {
        let fixed = match self.kind {
            RtmKind::Eager => size_of::<EagerRtm>(),
            RtmKind::Medium { .. } => size_of::<MediumRtm>(),
            RtmKind::LongCts { .. } | RtmKind::DcLongCts { .. } => size_of::<LongCtsRtm>(),
            RtmKind::LongRead { read_iov, .. } => {
                size_of::<LongReadRtm>() + size_of_val::<[RmaIov]>(read_iov)
            }
            RtmKind::DcEager { .. } => size_of::<DcEagerRtm>(),
            RtmKind::DcMedium { .. } => size_of::<DcMediumRtm>(),
            RtmKind::RuntRead { read_iov, .. } => {
                size_of::<RuntReadRtm>() + size_of_val::<[RmaIov]>(read_iov)
            }
        };
        let tag = if self.tag.is_some() { 8 } else { 0 };
        fixed + tag + self.options.len()
    }

    /// Writes the header, to be followed by the payload; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`]; [`EmitError::Count`] for more than [`MAX_IOV`] memory vectors.
    #[inline(always)]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        // Eager is inlined: where kind, tag or options are constant in the caller, a few stores remain.
        match self.kind {
            RtmKind::Eager => {
                let head = EagerRtm { base: self.base(), msg_id: U32::new(self.msg_id.0) };
                self.write(buf, head, &[])
            }
            _ => self.emit_long(buf),
        }
    }

    fn emit_long(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let base = self.base();
        let msg_id = U32::new(self.msg_id.0);
        match self.kind {
            RtmKind::Eager => self.write(buf, EagerRtm { base, msg_id }, &[]),
            RtmKind::Medium { msg_length, seg_offset } => {
                let (msg_length, seg_offset) = (U64::new(msg_length), U64::new(seg_offset));
                self.write(buf, MediumRtm { base, msg_id, msg_length, seg_offset }, &[])
            }
            RtmKind::LongCts { msg_length, send_id, credit_request, .. }
            | RtmKind::DcLongCts { msg_length, send_id, credit_request, .. } => {
                let head = LongCtsRtm {
                    base,
                    msg_id,
                    msg_length: U64::new(msg_length),
                    send_id: U32::new(send_id.0),
                    credit_request: U32::new(credit_request),
                };
                self.write(buf, head, &[])
            }
            RtmKind::LongRead { msg_length, send_id, read_iov } => {
                let head = LongReadRtm {
                    base,
                    msg_id,
                    msg_length: U64::new(msg_length),
                    send_id: U32::new(send_id.0),
                    read_iov_count: U32::new(read_iov.len() as u32),
                };
                self.write(buf, head, read_iov)
            }
            RtmKind::DcEager { send_id } => {
                let send_id = U32::new(send_id.0);
                self.write(buf, DcEagerRtm { base, msg_id, send_id, pad: NO_PAD }, &[])
            }
            RtmKind::DcMedium { send_id, msg_length, seg_offset } => {
                let head = DcMediumRtm {
                    base,
                    msg_id,
                    send_id: U32::new(send_id.0),
                    pad: NO_PAD,
                    msg_length: U64::new(msg_length),
                    seg_offset: U64::new(seg_offset),
                };
                self.write(buf, head, &[])
            }
            RtmKind::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov } => {
                let head = RuntReadRtm {
                    base,
                    msg_id,
                    msg_length: U64::new(msg_length),
                    send_id: U32::new(send_id.0),
                    read_iov_count: U32::new(read_iov.len() as u32),
                    seg_offset: U64::new(seg_offset),
                    runt_length: U64::new(runt_length),
                };
                self.write(buf, head, read_iov)
            }
        }
    }

    #[inline(always)]
    fn base(&self) -> Base {
        let mut flags = self.options.flags() | ReqFlags::MSG;
        flags.set(ReqFlags::TAGGED, self.tag.is_some());
        if let RtmKind::LongCts { read_nack: true, .. }
        | RtmKind::DcLongCts { read_nack: true, .. } = self.kind
        {
            flags |= ReqFlags::READ_NACK;
        }
        Base::new(self.packet_type(), flags.bits())
    }

    /// What all kinds have in common: tag, optional headers, read_iov.
    #[inline(always)]
    fn write<H>(&self, buf: &mut [u8], head: H, read_iov: &[RmaIov]) -> Result<usize, EmitError>
    where
        H: IntoBytes + Immutable + Unaligned,
    {
        if read_iov.len() > MAX_IOV {
            let packet_type = self.packet_type();
            return Err(EmitError::Count { packet_type, field: "read_iov", found: read_iov.len() });
        }
        let available = buf.len();
        let mut out = Writer::new(buf);
        match self.put(&mut out, head, read_iov) {
            Some(()) => Ok(available - out.remaining()),
            None => writer::too_small(self.packet_type(), self.len(), available),
        }
    }

    #[inline(always)]
    fn put<H>(&self, out: &mut Writer<'_>, head: H, read_iov: &[RmaIov]) -> Option<()>
    where
        H: IntoBytes + Immutable + Unaligned,
    {
        match self.tag {
            Some(tag) => out.put(&Tagged { head, tag: U64::new(tag) })?,
            None => out.put(&head)?,
        }
        self.options.put(out)?;
        out.put(read_iov)
    }
}

#[inline(always)]
pub(crate) fn read_eager<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let (head, tag) = take_head::<EagerRtm>(rest)?;
    let options = ReqOptions::take(rest, flags)?;
    Ok(header(head.msg_id, tag, RtmKind::Eager, options))
}

#[inline(always)]
pub(crate) fn read_medium<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let (head, tag) = take_head::<MediumRtm>(rest)?;
    let options = ReqOptions::take(rest, flags)?;
    let (msg_length, seg_offset) = (head.msg_length.get(), head.seg_offset.get());
    Ok(header(head.msg_id, tag, RtmKind::Medium { msg_length, seg_offset }, options))
}

#[inline(always)]
pub(crate) fn read_longcts<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let (head, tag) = take_head::<LongCtsRtm>(rest)?;
    let options = ReqOptions::take(rest, flags)?;
    let kind = RtmKind::LongCts {
        msg_length: head.msg_length.get(),
        send_id: OpId(head.send_id.get()),
        credit_request: head.credit_request.get(),
        read_nack: flags.contains(ReqFlags::READ_NACK),
    };
    Ok(header(head.msg_id, tag, kind, options))
}

#[inline(always)]
pub(crate) fn read_longread<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let (head, tag) = take_head::<LongReadRtm>(rest)?;
    let options = ReqOptions::take(rest, flags)?;
    let kind = RtmKind::LongRead {
        msg_length: head.msg_length.get(),
        send_id: OpId(head.send_id.get()),
        read_iov: rest.take_iov(READ_IOV, head.read_iov_count)?,
    };
    Ok(header(head.msg_id, tag, kind, options))
}

#[inline(always)]
pub(crate) fn read_dc_eager<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let (head, tag) = take_head::<DcEagerRtm>(rest)?;
    let options = ReqOptions::take(rest, flags)?;
    let send_id = OpId(head.send_id.get());
    Ok(header(head.msg_id, tag, RtmKind::DcEager { send_id }, options))
}

#[inline(always)]
pub(crate) fn read_dc_medium<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let (head, tag) = take_head::<DcMediumRtm>(rest)?;
    let options = ReqOptions::take(rest, flags)?;
    let kind = RtmKind::DcMedium {
        send_id: OpId(head.send_id.get()),
        msg_length: head.msg_length.get(),
        seg_offset: head.seg_offset.get(),
    };
    Ok(header(head.msg_id, tag, kind, options))
}

#[inline(always)]
pub(crate) fn read_dc_longcts<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let (head, tag) = take_head::<LongCtsRtm>(rest)?;
    let options = ReqOptions::take(rest, flags)?;
    let kind = RtmKind::DcLongCts {
        msg_length: head.msg_length.get(),
        send_id: OpId(head.send_id.get()),
        credit_request: head.credit_request.get(),
        read_nack: flags.contains(ReqFlags::READ_NACK),
    };
    Ok(header(head.msg_id, tag, kind, options))
}

#[inline(always)]
pub(crate) fn read_runtread<'a>(rest: &mut Cursor<'a>, flags: ReqFlags) -> Read<'a> {
    let (head, tag) = take_head::<RuntReadRtm>(rest)?;
    let options = ReqOptions::take(rest, flags)?;
    let kind = RtmKind::RuntRead {
        msg_length: head.msg_length.get(),
        send_id: OpId(head.send_id.get()),
        seg_offset: head.seg_offset.get(),
        runt_length: head.runt_length.get(),
        read_iov: rest.take_iov(READ_IOV, head.read_iov_count)?,
    };
    Ok(header(head.msg_id, tag, kind, options))
}

/// The mandatory header, with its tag if this is a TAGRTM.
#[inline(always)]
fn take_head<'a, H: Wire>(rest: &mut Cursor<'a>) -> Result<(&'a H, Option<Tag>), ParseError> {
    if rest.packet_type().is_tagged() {
        let tagged = rest.take_head::<Tagged<H>>()?;
        Ok((&tagged.head, Some(tagged.tag.get())))
    } else {
        Ok((rest.take_head()?, None))
    }
}

#[inline(always)]
fn header(msg_id: U32, tag: Option<Tag>, kind: RtmKind<'_>, options: ReqOptions) -> Header<'_> {
    Header::Rtm(Rtm { msg_id: MsgId(msg_id.get()), tag, kind, options })
}

/// `msg_id=7 tag=0x2a msg_length=9000 …`, without the type's name.
impl fmt::Display for Rtm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "")
    }
}

impl<'a> Fields<'a> for Rtm<'a> {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        see("msg_id", Value::Number(self.msg_id.0.into()))?;
        if let Some(tag) = self.tag {
            see("tag", Value::Bits(tag))?;
        }
        match self.kind {
            RtmKind::Eager => {}
            RtmKind::Medium { msg_length, seg_offset } => {
                see("msg_length", Value::Number(msg_length))?;
                see("seg_offset", Value::Number(seg_offset))?;
            }
            RtmKind::LongCts { msg_length, send_id, credit_request, read_nack }
            | RtmKind::DcLongCts { msg_length, send_id, credit_request, read_nack } => {
                see("msg_length", Value::Number(msg_length))?;
                see("send_id", Value::OpId(send_id))?;
                see("credit_request", Value::Number(credit_request.into()))?;
                if read_nack {
                    see("read_nack", Value::Set)?;
                }
            }
            RtmKind::LongRead { msg_length, send_id, read_iov } => {
                see("msg_length", Value::Number(msg_length))?;
                see("send_id", Value::OpId(send_id))?;
                see("read_iov", Value::Iov(read_iov))?;
            }
            RtmKind::DcEager { send_id } => see("send_id", Value::OpId(send_id))?,
            RtmKind::DcMedium { send_id, msg_length, seg_offset } => {
                see("send_id", Value::OpId(send_id))?;
                see("msg_length", Value::Number(msg_length))?;
                see("seg_offset", Value::Number(seg_offset))?;
            }
            RtmKind::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov } => {
                see("msg_length", Value::Number(msg_length))?;
                see("send_id", Value::OpId(send_id))?;
                see("seg_offset", Value::Number(seg_offset))?;
                see("runt_length", Value::Number(runt_length))?;
                see("read_iov", Value::Iov(read_iov))?;
            }
        }
        self.options.visit(see)
    }
}

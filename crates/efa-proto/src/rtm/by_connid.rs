//! The requests that peers exchange most, with the connid header and no other optional header.
//!
//! ```text
//!   mandatory header, with its tag │ connid │ payload, or memory to read (LONGREAD)
//! ```
//!
//! [`Packet`](crate::Packet) parses them, too, with some three times as many instructions.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{EagerRtm, LongReadRtm, MediumRtm, Rtm, RtmKind, Tagged};
use crate::base::{Base, Wire};
use crate::writer;
use crate::{Connid, EmitError, MsgId, OpId, PacketType, ReqFlags, ReqOptions, RmaIov, Tag};

/// An eager message request, the most common packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EagerConnid<'a> {
    /// Position of the message among those to this peer.
    pub msg_id: MsgId,
    /// The tag; makes the request a TAGRTM.
    pub tag: Option<Tag>,
    /// Incarnation of the sender.
    pub connid: Connid,
    /// The message.
    pub payload: &'a [u8],
}

/// A segment of a medium message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MediumConnid<'a> {
    /// Position of the message among those to this peer.
    pub msg_id: MsgId,
    /// The tag; makes the request a TAGRTM.
    pub tag: Option<Tag>,
    /// Length of the message in bytes.
    pub msg_length: u64,
    /// Offset of the payload in the message, in bytes.
    pub seg_offset: u64,
    /// Incarnation of the sender.
    pub connid: Connid,
    /// The segment.
    pub payload: &'a [u8],
}

/// A request to read a message out of one piece of the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LongReadConnid {
    /// Position of the message among those to this peer.
    pub msg_id: MsgId,
    /// The tag; makes the request a TAGRTM.
    pub tag: Option<Tag>,
    /// Length of the message in bytes.
    pub msg_length: u64,
    /// The sender's operation.
    pub send_id: OpId,
    /// The sender's memory.
    pub memory: RmaIov,
    /// Incarnation of the sender.
    pub connid: Connid,
}

/// The types of each kind of packet, without and with a tag.
const EAGER: (PacketType, PacketType) = (PacketType::EagerMsgRtm, PacketType::EagerTagRtm);
const MEDIUM: (PacketType, PacketType) = (PacketType::MediumMsgRtm, PacketType::MediumTagRtm);
const LONG_READ: (PacketType, PacketType) =
    (PacketType::LongReadMsgRtm, PacketType::LongReadTagRtm);

/// A header followed by the connid header.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WithConnid<H> {
    head: H,
    connid: U32,
}

/// The head of a packet, its tag and connid, and the bytes behind them, if the packet has one of these types and the
/// connid header alone.
#[inline(always)]
fn peek<H: Wire>(
    bytes: &[u8],
    (untagged, tagged): (PacketType, PacketType),
) -> Option<(&H, Option<Tag>, Connid, &[u8])> {
    let base = Base::read(bytes)?;
    let flags = ReqFlags::from_bits_retain(base.flags.get());
    if flags.intersection(ReqFlags::HEADERS) != ReqFlags::CONNID {
        return None;
    }
    if base.packet_type == tagged.as_u8() {
        let (form, rest) = WithConnid::<Tagged<H>>::ref_from_prefix(bytes).ok()?;
        let (head, tag) = (&form.head.head, Some(form.head.tag.get()));
        Some((head, tag, Connid(form.connid.get()), rest))
    } else if base.packet_type == untagged.as_u8() {
        let (form, rest) = WithConnid::<H>::ref_from_prefix(bytes).ok()?;
        Some((&form.head, None, Connid(form.connid.get()), rest))
    } else {
        None
    }
}

/// The base header of such a packet.
#[inline(always)]
fn base(packet_type: PacketType) -> Base {
    let flags = ReqFlags::kind_of(packet_type) | ReqFlags::CONNID;
    Base::new(packet_type, flags.bits())
}

/// Writes the head, which `head` makes, the tag and the connid of such a packet; returns their length in bytes. `None` if
/// they don't fit.
#[inline(always)]
fn write<H: Wire>(
    buf: &mut [u8],
    (untagged, tagged): (PacketType, PacketType),
    head: impl Fn(Base) -> H,
    tag: Option<Tag>,
    connid: Connid,
) -> Option<usize> {
    let connid = U32::new(connid.0);
    match tag {
        Some(tag) => {
            let head = Tagged { head: head(base(tagged)), tag: U64::new(tag) };
            write_form(buf, &WithConnid { head, connid })
        }
        None => write_form(buf, &WithConnid { head: head(base(untagged)), connid }),
    }
}

#[inline(always)]
fn write_form<F: IntoBytes + Immutable>(buf: &mut [u8], form: &F) -> Option<usize> {
    form.write_to_prefix(buf).ok().map(|()| size_of::<F>())
}

/// The header options of such a packet.
const fn options(connid: Connid) -> ReqOptions {
    ReqOptions { raw_address: None, cq_data: None, connid: Some(connid) }
}

impl<'a> EagerConnid<'a> {
    /// Length in bytes of the longest header of this form. [`peek`](Self::peek) reads no byte behind it.
    pub const LONGEST_HEADER: usize = size_of::<WithConnid<Tagged<EagerRtm>>>();

    /// Reads a packet if it is of this form and well-formed; `bytes` is exactly one datagram.
    #[must_use]
    #[inline(always)]
    pub fn peek(bytes: &'a [u8]) -> Option<Self> {
        let (head, tag, connid, payload) = peek::<EagerRtm>(bytes, EAGER)?;
        Some(Self { msg_id: MsgId(head.msg_id.get()), tag, connid, payload })
    }

    /// Writes the header, to be followed by the payload; returns its length in bytes.
    ///
    /// # Errors
    ///
    /// The buffer is too small.
    #[inline(always)]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let head = |base| EagerRtm { base, msg_id: U32::new(self.msg_id.0) };
        match write(buf, EAGER, head, self.tag, self.connid) {
            Some(length) => Ok(length),
            None => writer::too_small(self.packet_type(), self.rtm().len(), buf.len()),
        }
    }

    /// Type of the packet.
    #[must_use]
    #[inline]
    pub const fn packet_type(&self) -> PacketType {
        if self.tag.is_some() { EAGER.1 } else { EAGER.0 }
    }

    /// The same as an [`Rtm`].
    #[must_use]
    pub const fn rtm(&self) -> Rtm<'a> {
        let options = options(self.connid);
        Rtm { msg_id: self.msg_id, tag: self.tag, kind: RtmKind::Eager, options }
    }
}

impl<'a> MediumConnid<'a> {
    /// Length in bytes of the longest header of this form. [`peek`](Self::peek) reads no byte behind it.
    pub const LONGEST_HEADER: usize = size_of::<WithConnid<Tagged<MediumRtm>>>();

    /// Reads a packet if it is of this form and well-formed; `bytes` is exactly one datagram.
    #[must_use]
    #[inline(always)]
    pub fn peek(bytes: &'a [u8]) -> Option<Self> {
        let (head, tag, connid, payload) = peek::<MediumRtm>(bytes, MEDIUM)?;
        let (msg_length, seg_offset) = (head.msg_length.get(), head.seg_offset.get());
        let msg_id = MsgId(head.msg_id.get());
        Some(Self { msg_id, tag, msg_length, seg_offset, connid, payload })
    }

    /// Writes the header, to be followed by the payload; returns its length in bytes.
    ///
    /// # Errors
    ///
    /// The buffer is too small.
    #[inline(always)]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let head = |base| MediumRtm {
            base,
            msg_id: U32::new(self.msg_id.0),
            msg_length: U64::new(self.msg_length),
            seg_offset: U64::new(self.seg_offset),
        };
        match write(buf, MEDIUM, head, self.tag, self.connid) {
            Some(length) => Ok(length),
            None => writer::too_small(self.packet_type(), self.rtm().len(), buf.len()),
        }
    }

    /// Type of the packet.
    #[must_use]
    #[inline]
    pub const fn packet_type(&self) -> PacketType {
        if self.tag.is_some() { MEDIUM.1 } else { MEDIUM.0 }
    }

    /// The same as an [`Rtm`].
    #[must_use]
    pub const fn rtm(&self) -> Rtm<'a> {
        let options = options(self.connid);
        let kind = RtmKind::Medium { msg_length: self.msg_length, seg_offset: self.seg_offset };
        Rtm { msg_id: self.msg_id, tag: self.tag, kind, options }
    }
}

impl LongReadConnid {
    /// Reads a packet if it is of this form, well-formed and without payload; `bytes` is exactly one datagram.
    #[must_use]
    #[inline(always)]
    pub fn peek(bytes: &[u8]) -> Option<Self> {
        let (head, tag, connid, rest) = peek::<LongReadRtm>(bytes, LONG_READ)?;
        if head.read_iov_count.get() != 1 {
            return None;
        }
        let memory = *RmaIov::ref_from_bytes(rest).ok()?;
        let (msg_id, send_id) = (MsgId(head.msg_id.get()), OpId(head.send_id.get()));
        let msg_length = head.msg_length.get();
        Some(Self { msg_id, tag, msg_length, send_id, memory, connid })
    }

    /// Writes the packet; returns its length in bytes.
    ///
    /// # Errors
    ///
    /// The buffer is too small.
    #[inline(always)]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let head = |base| LongReadRtm {
            base,
            msg_id: U32::new(self.msg_id.0),
            msg_length: U64::new(self.msg_length),
            send_id: U32::new(self.send_id.0),
            read_iov_count: U32::new(1),
        };
        let written = write(buf, LONG_READ, head, self.tag, self.connid).and_then(|length| {
            let memory = write_form(buf.get_mut(length..)?, &self.memory)?;
            Some(length + memory)
        });
        match written {
            Some(length) => Ok(length),
            None => writer::too_small(self.packet_type(), self.rtm().len(), buf.len()),
        }
    }

    /// Type of the packet.
    #[must_use]
    #[inline]
    pub const fn packet_type(&self) -> PacketType {
        if self.tag.is_some() { LONG_READ.1 } else { LONG_READ.0 }
    }

    /// The same as an [`Rtm`].
    #[must_use]
    pub const fn rtm(&self) -> Rtm<'_> {
        let (msg_length, send_id) = (self.msg_length, self.send_id);
        let read_iov = core::slice::from_ref(&self.memory);
        let kind = RtmKind::LongRead { msg_length, send_id, read_iov };
        Rtm { msg_id: self.msg_id, tag: self.tag, kind, options: options(self.connid) }
    }
}

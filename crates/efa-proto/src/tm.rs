//! Headers of the tag-matching offload ("RDMA tag matching offload", sections "RDMA tag-matching
//! offload" and "Sending TM messages"): TMH and RVH, which travel in ordinary RDMA sends.
//!
//! ```text
//!   TMH   opcode u8@0   reserved[3]   app_ctx u32@4   tag u64@8        16 bytes
//!   RVH   va u64@0      rkey u32@8    len u32@12                       16 bytes
//!
//!   NO_TAG  opcode │ anything                       opaque to matching, at least one byte
//!   EAGER   TMH │ payload
//!   RNDV    TMH │ RVH │ meta-data for software      the payload is read from (va, rkey, len)
//!   FIN     TMH │ RVH                               as in the request, except for the opcode
//! ```
//!
//! All integers are big-endian, unlike in the EFA protocol: these messages are no part of it, and
//! [`Packet`](crate::Packet) does not parse them. The opcodes' numbers are rdma-core's, as the document
//! has names only. It shows a FIN with and without RVH; the long form is usual, both can be parsed and
//! emitted.
//!
//! ```
//! use efa_proto::tm::{Message, Tmh};
//!
//! let header = Tmh { app_ctx: 3, tag: 0x2a };
//! let mut message = [0; Tmh::SIZE + 5];
//! header.emit_eager(&mut message)?;
//! message[Tmh::SIZE..].copy_from_slice(b"hello");
//! assert_eq!(Message::parse(&message)?, Message::Eager { header, payload: b"hello" });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use core::fmt;

use thiserror::Error;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::writer::Writer;

/// What a message is: its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Opaque to tag matching.
    NoTag = 0,
    /// Request of a rendezvous: the payload stays with the sender, to be read from there.
    Rndv = 1,
    /// The payload of a rendezvous has been read.
    Fin = 2,
    /// A tag and the payload.
    Eager = 3,
}

impl Opcode {
    /// The opcode with this number.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::NoTag),
            1 => Some(Self::Rndv),
            2 => Some(Self::Fin),
            3 => Some(Self::Eager),
            _ => None,
        }
    }

    /// The name in the document, without its prefix.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoTag => "NO_TAG",
            Self::Rndv => "RNDV",
            Self::Fin => "FIN",
            Self::Eager => "EAGER",
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The tag-matching header without its opcode, which the variant of [`Message`] implies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tmh {
    /// The application's own, given to the receiver untouched.
    pub app_ctx: u32,
    /// The tag, compared under the mask of a receive.
    pub tag: u64,
}

/// The rendezvous header: where the payload is to be read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rvh {
    /// Virtual address at the sender.
    pub va: u64,
    /// The sender's memory key.
    pub rkey: u32,
    /// Bytes of the payload, so that a rendezvous moves at most 4 GiB - 1.
    pub len: u32,
}

/// A message of the offload. What isn't a header is borrowed from the bytes that were parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message<'a> {
    /// Opaque: all bytes of the message, the opcode included.
    NoTag(&'a [u8]),
    /// A tagged message.
    Eager {
        /// Tag and application context.
        header: Tmh,
        /// The user's bytes.
        payload: &'a [u8],
    },
    /// The request of a rendezvous.
    Rndv {
        /// Tag and application context.
        header: Tmh,
        /// Where the payload is.
        rendezvous: Rvh,
        /// For software, if the request is unexpected; matching hardware doesn't look at it.
        metadata: &'a [u8],
    },
    /// A rendezvous is over.
    Fin {
        /// As in the request.
        header: Tmh,
        /// As in the request, if the receiver sent it.
        rendezvous: Option<Rvh>,
    },
}

/// Why bytes are no message of the offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum TmParseError {
    /// No byte at all, so no opcode.
    #[error("the message is empty, at least an opcode is needed")]
    Empty,
    /// The opcode isn't one.
    #[error("opcode is {found}, at most 3 is known")]
    Opcode {
        /// The first byte.
        found: u8,
    },
    /// The message ends inside a header.
    #[error("{opcode}: {field} ends at byte {needed}, the message has {available}")]
    Truncated {
        /// What the message is.
        opcode: Opcode,
        /// `TMH` or `RVH`.
        field: &'static str,
        /// Bytes that a message needs to hold this header and the one before.
        needed: usize,
        /// Bytes that are there.
        available: usize,
    },
}

/// The headers don't fit in the buffer, whose content is unspecified then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("{opcode}: the headers take {needed} bytes, the buffer has {available}")]
pub struct TmEmitError {
    /// What was to be written.
    pub opcode: Opcode,
    /// Length of the headers in bytes.
    pub needed: usize,
    /// Length of the buffer in bytes.
    pub available: usize,
}

/// Wire form of the TMH.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct TmhWire {
    opcode: u8,
    reserved: [u8; 3],
    app_ctx: U32,
    tag: U64,
}

/// Wire form of the RVH.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RvhWire {
    va: U64,
    rkey: U32,
    len: U32,
}

const _: () = assert!(size_of::<TmhWire>() == Tmh::SIZE && size_of::<RvhWire>() == Rvh::SIZE);

impl Tmh {
    /// Length in bytes on the wire.
    pub const SIZE: usize = 16;

    /// Writes the header of an EAGER message, to be followed by its payload; returns its length in
    /// bytes.
    ///
    /// # Errors
    /// The buffer is too small.
    #[inline]
    pub fn emit_eager(&self, buf: &mut [u8]) -> Result<usize, TmEmitError> {
        self.emit(Opcode::Eager, None, buf)
    }

    /// Writes the headers of a RNDV request, to be followed by meta-data if there is some; returns
    /// their length in bytes.
    ///
    /// # Errors
    /// The buffer is too small.
    #[inline]
    pub fn emit_rndv(&self, rendezvous: &Rvh, buf: &mut [u8]) -> Result<usize, TmEmitError> {
        self.emit(Opcode::Rndv, Some(rendezvous), buf)
    }

    /// Writes a FIN with the headers of the request; returns its length in bytes.
    ///
    /// # Errors
    /// The buffer is too small.
    #[inline]
    pub fn emit_fin(&self, rendezvous: &Rvh, buf: &mut [u8]) -> Result<usize, TmEmitError> {
        self.emit(Opcode::Fin, Some(rendezvous), buf)
    }

    /// Writes a FIN without RVH, for a receiver that has lost it; returns its length in bytes. The
    /// sender cannot distinguish rendezvous with equal TMHs by it.
    ///
    /// # Errors
    /// The buffer is too small.
    #[inline]
    pub fn emit_short_fin(&self, buf: &mut [u8]) -> Result<usize, TmEmitError> {
        self.emit(Opcode::Fin, None, buf)
    }

    fn emit(
        &self,
        opcode: Opcode,
        rendezvous: Option<&Rvh>,
        buf: &mut [u8],
    ) -> Result<usize, TmEmitError> {
        let needed = Self::SIZE + rendezvous.map_or(0, |_| Rvh::SIZE);
        let available = buf.len();
        let mut out = Writer::new(buf);
        let tmh = TmhWire {
            opcode: opcode as u8,
            reserved: [0; 3],
            app_ctx: U32::new(self.app_ctx),
            tag: U64::new(self.tag),
        };
        let rvh = rendezvous.map(|rvh| RvhWire {
            va: U64::new(rvh.va),
            rkey: U32::new(rvh.rkey),
            len: U32::new(rvh.len),
        });
        out.put(&tmh)
            .and_then(|()| rvh.map_or(Some(()), |rvh| out.put(&rvh)))
            .map(|()| needed)
            .ok_or(TmEmitError { opcode, needed, available })
    }
}

impl Rvh {
    /// Length in bytes on the wire.
    pub const SIZE: usize = 16;
}

impl<'a> Message<'a> {
    /// Reads a message. The reserved bytes of the TMH aren't looked at.
    ///
    /// # Errors
    /// [`TmParseError`]: what is wrong, and with which value.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, TmParseError> {
        let &number = bytes.first().ok_or(TmParseError::Empty)?;
        let opcode = Opcode::from_u8(number).ok_or(TmParseError::Opcode { found: number })?;
        let truncated = |field, needed| TmParseError::Truncated {
            opcode,
            field,
            needed,
            available: bytes.len(),
        };
        if opcode == Opcode::NoTag {
            return Ok(Self::NoTag(bytes));
        }
        let (tmh, rest) =
            TmhWire::ref_from_prefix(bytes).map_err(|_| truncated("TMH", Tmh::SIZE))?;
        let header = Tmh { app_ctx: tmh.app_ctx.get(), tag: tmh.tag.get() };
        let rendezvous = RvhWire::ref_from_prefix(rest).map(|(rvh, rest)| {
            (Rvh { va: rvh.va.get(), rkey: rvh.rkey.get(), len: rvh.len.get() }, rest)
        });
        match opcode {
            Opcode::Eager => Ok(Self::Eager { header, payload: rest }),
            Opcode::Rndv => {
                let (rendezvous, metadata) =
                    rendezvous.map_err(|_| truncated("RVH", Tmh::SIZE + Rvh::SIZE))?;
                Ok(Self::Rndv { header, rendezvous, metadata })
            }
            _ => Ok(Self::Fin { header, rendezvous: rendezvous.ok().map(|(rvh, _)| rvh) }),
        }
    }

    /// What the message is.
    #[must_use]
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::NoTag(_) => Opcode::NoTag,
            Self::Eager { .. } => Opcode::Eager,
            Self::Rndv { .. } => Opcode::Rndv,
            Self::Fin { .. } => Opcode::Fin,
        }
    }
}

/// `tag=0x2a app_ctx=3`
impl fmt::Display for Tmh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tag={:#x} app_ctx={}", self.tag, self.app_ctx)
    }
}

/// `0x7f00+4096 key 0x11`
impl fmt::Display for Rvh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{} key {:#x}", self.va, self.len, self.rkey)
    }
}

/// `RNDV tag=0x2a app_ctx=3 payload at 0x7f00+4096 key 0x11 metadata=8`
impl fmt::Display for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.opcode().name())?;
        match self {
            Self::NoTag(bytes) => write!(f, " bytes={}", bytes.len()),
            Self::Eager { header, payload } => write!(f, " {header} payload={}", payload.len()),
            Self::Rndv { header, rendezvous, metadata } => {
                write!(f, " {header} payload at {rendezvous} metadata={}", metadata.len())
            }
            Self::Fin { header, rendezvous: Some(rendezvous) } => {
                write!(f, " {header} payload at {rendezvous}")
            }
            Self::Fin { header, rendezvous: None } => write!(f, " {header}"),
        }
    }
}

//! The base header (section 1.3, table 1.3), and how all fixed headers are declared.
//!
//! ```text
//!   type u8 @0   version u8 @1   flags u16 @2      4 bytes
//! ```

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{
    BASE_HEADER_SIZE, CtsFlags, HandshakeFlags, Packet, PacketFlags, PacketType, ParseError,
    ReqFlags, VERSION,
};

/// The first four bytes of a packet, for tools that need flags which [`crate::Packet`] ignores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BaseHeader {
    /// Type of the packet.
    pub packet_type: PacketType,
    /// All sixteen flag bits as found, known or not; their meaning depends on the type.
    pub flags: u16,
}

impl BaseHeader {
    /// Reads the base header of a packet and ignores everything behind it.
    ///
    /// # Errors
    /// [`ParseError::Truncated`], [`ParseError::Version`] or [`ParseError::PacketType`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match Base::read(bytes) {
            Some(base) => {
                Ok(Self { packet_type: base.packet_type.try_into()?, flags: base.flags.get() })
            }
            None => Err(base_error(bytes)),
        }
    }

    /// Kind flags (MSG, TAGGED, ATOMIC) that are set but should not be, or the reverse.
    ///
    /// This crate's parser ignores them, but peers of release 1.15 and older read them. RMA on an RTW or RTR
    /// is no mismatch: the specification requires it, although libfabric does not send it.
    #[must_use]
    pub fn kind_mismatch(&self) -> ReqFlags {
        if !self.packet_type.is_req() {
            return ReqFlags::empty();
        }
        let expected = ReqFlags::kind_of(self.packet_type);
        let found = ReqFlags::from_bits_retain(self.flags).intersection(ReqFlags::KIND);
        let mismatch = found.symmetric_difference(expected);
        if expected.is_empty() { mismatch.difference(ReqFlags::RMA) } else { mismatch }
    }

    /// Flag bits without a meaning in this category of packets.
    ///
    /// This crate's parser ignores them. A peer of a later release, or a damaged packet, may have them.
    #[must_use]
    pub const fn unknown_flags(&self) -> u16 {
        let known = match self.packet_type {
            PacketType::Handshake => HandshakeFlags::all().bits(),
            PacketType::Cts => CtsFlags::all().bits(),
            packet_type if packet_type.is_req() => ReqFlags::all().bits(),
            _ => PacketFlags::all().bits(),
        };
        self.flags & !known
    }
}

/// Wire form of the base header.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Base {
    pub(crate) packet_type: u8,
    pub(crate) version: u8,
    pub(crate) flags: U16,
}

const _: () = assert!(size_of::<Base>() == BASE_HEADER_SIZE);

impl Base {
    #[inline(always)]
    pub(crate) const fn new(packet_type: PacketType, flags: u16) -> Self {
        Self { packet_type: packet_type.as_u8(), version: VERSION, flags: U16::new(flags) }
    }

    /// The base header, unless it is cut or of another version, see [`base_error`]. The type is
    /// not checked.
    #[inline]
    pub(crate) fn read(bytes: &[u8]) -> Option<&Self> {
        let (base, _) = Self::ref_from_prefix(bytes).ok()?;
        (base.version == VERSION).then_some(base)
    }
}

/// Why [`Base::read`] gave nothing.
fn base_error(bytes: &[u8]) -> ParseError {
    let (field, needed) = match *bytes {
        [] => ("type", 1),
        [_] => ("version", 2),
        [_, _] | [_, _, _] => ("flags", 4),
        [_, found, ..] => return ParseError::Version { found },
    };
    let packet_type = bytes.first().and_then(|&value| PacketType::try_from(value).ok());
    ParseError::Truncated { packet_type, field, needed, available: bytes.len() as u64 }
}

/// [`base_error`] out of line, for [`crate::Packet::parse`].
#[cold]
#[inline(never)]
pub(crate) fn refuse_base(bytes: &[u8]) -> Result<Packet<'_>, ParseError> {
    Err(base_error(bytes))
}

/// A fixed header: a struct of little-endian fields with their names and ends.
pub(crate) trait Wire: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {
    /// The first field that a packet of `available` bytes does not hold, and where it ends.
    fn cut(available: usize) -> (&'static str, usize);
}

/// Declares the wire form of a fixed header: name, total size as the specification has it, fields
/// behind the base header.
macro_rules! wire {
    ($(#[$doc:meta])* $name:ident: $size:literal { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
            zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        struct $name {
            base: $crate::base::Base,
            $($field: $ty),*
        }

        const _: () = assert!(size_of::<$name>() == $size);

        impl $crate::base::Wire for $name {
            #[inline(always)]
            fn cut(available: usize) -> (&'static str, usize) {
                $(
                    let end = core::mem::offset_of!($name, $field) + size_of::<$ty>();
                    if available < end {
                        return (stringify!($field), end);
                    }
                )*
                ("header", size_of::<$name>())
            }
        }
    };
}
pub(crate) use wire;

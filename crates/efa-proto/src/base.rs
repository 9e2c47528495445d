//! The base header (section 1.3, table 1.3), and the two tools that all packet files use: a
//! [`Cursor`] that takes fields off a packet and a [`Writer`] that appends them.
//!
//! ```text
//!   type u8 @0   version u8 @1   flags u16 @2      4 bytes
//! ```

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{
    BASE_HEADER_SIZE, EmitError, MAX_IOV, PacketType, ParseError, ReqFlags, RmaIov, VERSION,
};

/// The first four bytes of a packet, for tools that look at flags [`crate::Packet`] hides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BaseHeader {
    /// Type of the packet.
    pub packet_type: PacketType,
    /// All sixteen flag bits as found, known or not; their meaning depends on the type.
    pub flags: u16,
}

impl BaseHeader {
    /// Reads the base header of a packet and looks at nothing behind it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let base = Base::read(bytes)?;
        Ok(Self { packet_type: base.packet_type.try_into()?, flags: base.flags.get() })
    }

    /// Kind flags (MSG, TAGGED, ATOMIC) that are set but should not be, or the reverse.
    ///
    /// Parsing does not depend on them, peers of release 1.15 and older do. RMA on an RTW or RTR
    /// is no mismatch: the specification asks for it although libfabric does not send it.
    pub fn kind_mismatch(&self) -> ReqFlags {
        if !self.packet_type.is_req() {
            return ReqFlags::empty();
        }
        let expected = ReqFlags::kind_of(self.packet_type);
        let found = ReqFlags::from_bits_retain(self.flags).intersection(ReqFlags::KIND);
        let mismatch = found.symmetric_difference(expected);
        if expected.is_empty() { mismatch.difference(ReqFlags::RMA) } else { mismatch }
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

    /// The base header, its version checked, its type not.
    #[inline(always)]
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let Ok((base, _)) = Self::read_from_prefix(bytes) else {
            return Err(truncated_base(bytes));
        };
        if base.version != VERSION {
            return Err(ParseError::Version { found: base.version });
        }
        Ok(base)
    }
}

#[cold]
fn truncated_base(bytes: &[u8]) -> ParseError {
    let (field, needed) = match bytes.len() {
        0 => ("type", 1),
        1 => ("version", 2),
        _ => ("flags", 4),
    };
    let packet_type = bytes.first().and_then(|&value| PacketType::try_from(value).ok());
    ParseError::Truncated { packet_type, field, needed, available: bytes.len() as u64 }
}

/// A fixed header: a struct of little-endian fields that knows their names and ends.
pub(crate) trait Wire: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {
    /// Each field behind the base header with the offset of its end.
    const FIELDS: &'static [(&'static str, u8)];
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
            const FIELDS: &'static [(&'static str, u8)] = &[
                $((
                    stringify!($field),
                    (core::mem::offset_of!($name, $field) + size_of::<$ty>()) as u8,
                )),*
            ];
        }
    };
}
pub(crate) use wire;

/// What is left of a packet while its headers are being taken off.
pub(crate) struct Cursor<'a> {
    packet_type: PacketType,
    total: usize,
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Takes the fixed header off.
    #[inline(always)]
    pub(crate) fn head<T: Wire>(
        packet_type: PacketType,
        bytes: &'a [u8],
    ) -> Result<(&'a T, Self), ParseError> {
        match T::ref_from_prefix(bytes) {
            Ok((head, rest)) => Ok((head, Self { packet_type, total: bytes.len(), rest })),
            Err(_) => Err(truncated_head(packet_type, T::FIELDS, bytes.len())),
        }
    }

    /// A packet of which nothing is taken off yet.
    pub(crate) fn whole(packet_type: PacketType, bytes: &'a [u8]) -> Self {
        Self { packet_type, total: bytes.len(), rest: bytes }
    }

    /// Takes one field or fixed group of fields.
    #[inline(always)]
    pub(crate) fn take<T>(&mut self, field: &'static str) -> Result<&'a T, ParseError>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        match T::ref_from_prefix(self.rest) {
            Ok((value, rest)) => {
                self.rest = rest;
                Ok(value)
            }
            Err(_) => Err(self.truncated(field, size_of::<T>() as u64)),
        }
    }

    /// Takes `count` elements; a count beyond the packet costs nothing but an error.
    #[inline(always)]
    pub(crate) fn take_slice<T>(
        &mut self,
        field: &'static str,
        count: u32,
    ) -> Result<&'a [T], ParseError>
    where
        T: FromBytes + Immutable + Unaligned,
    {
        match <[T]>::ref_from_prefix_with_elems(self.rest, count as usize) {
            Ok((values, rest)) => {
                self.rest = rest;
                Ok(values)
            }
            Err(_) => Err(self.truncated(field, u64::from(count) * size_of::<T>() as u64)),
        }
    }

    /// Takes `rma_iov[count]`.
    #[inline(always)]
    pub(crate) fn take_rma_iov(&mut self, count: u32) -> Result<&'a [RmaIov], ParseError> {
        self.check_count("rma_iov_count", count)?;
        self.take_slice("rma_iov", count)
    }

    /// Takes `read_iov[count]`.
    #[inline(always)]
    pub(crate) fn take_read_iov(&mut self, count: u32) -> Result<&'a [RmaIov], ParseError> {
        self.check_count("read_iov_count", count)?;
        self.take_slice("read_iov", count)
    }

    #[inline(always)]
    fn check_count(&self, field: &'static str, found: u32) -> Result<(), ParseError> {
        if found as usize > MAX_IOV {
            return Err(ParseError::Count { packet_type: self.packet_type, field, found });
        }
        Ok(())
    }

    /// The error for a field of `size` bytes that the rest does not hold.
    #[cold]
    pub(crate) fn truncated(&self, field: &'static str, size: u64) -> ParseError {
        ParseError::Truncated {
            packet_type: Some(self.packet_type),
            field,
            needed: (self.total - self.rest.len()) as u64 + size,
            available: self.total as u64,
        }
    }

    #[inline(always)]
    pub(crate) fn packet_type(&self) -> PacketType {
        self.packet_type
    }

    /// What is behind everything taken so far.
    #[inline(always)]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The rest, if it is as long as `seg_length` says.
    #[inline(always)]
    pub(crate) fn segment(&self, seg_length: u64) -> Result<&'a [u8], ParseError> {
        let payload = self.rest.len() as u64;
        if seg_length != payload {
            let packet_type = self.packet_type;
            return Err(ParseError::SegmentLength { packet_type, found: seg_length, payload });
        }
        Ok(self.rest)
    }
}

#[cold]
fn truncated_head(
    packet_type: PacketType,
    fields: &[(&'static str, u8)],
    available: usize,
) -> ParseError {
    let cut = fields.iter().find(|(_, end)| usize::from(*end) > available);
    let (field, needed) =
        cut.map_or(("flags", BASE_HEADER_SIZE as u64), |&(f, end)| (f, end.into()));
    let available = available as u64;
    ParseError::Truncated { packet_type: Some(packet_type), field, needed, available }
}

/// Appends fields to a buffer; `None` when it is full.
pub(crate) struct Writer<'b> {
    rest: &'b mut [u8],
}

impl<'b> Writer<'b> {
    #[inline(always)]
    pub(crate) fn new(buf: &'b mut [u8]) -> Self {
        Self { rest: buf }
    }

    /// Writes a packet header that is nothing but one struct.
    #[inline(always)]
    pub(crate) fn put_only<T: Wire>(
        packet_type: PacketType,
        head: &T,
        buf: &'b mut [u8],
    ) -> Result<usize, EmitError> {
        let needed = size_of::<T>();
        let available = buf.len();
        match Self::new(buf).put(head) {
            Some(()) => Ok(needed),
            None => Err(EmitError::BufferTooSmall { packet_type, needed, available }),
        }
    }

    #[inline(always)]
    pub(crate) fn put<T: IntoBytes + Immutable + ?Sized>(&mut self, value: &T) -> Option<()> {
        let bytes = value.as_bytes();
        let (to, rest) = core::mem::take(&mut self.rest).split_at_mut_checked(bytes.len())?;
        to.copy_from_slice(bytes);
        self.rest = rest;
        Some(())
    }

    #[inline(always)]
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }
}

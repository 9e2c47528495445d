//! Taking headers off a packet, field by field.
//!
//! All of it is inlined into one function for each packet type, where the type, the size of the fixed
//! header and the field names are constants: a well-formed packet costs comparisons, loads and stores.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::address::AddressBytes;
use crate::base::Wire;
use crate::{Header, MAX_IOV, Packet, PacketType, ParseError, RawAddress, RmaIov};

/// The rest of a packet while its headers are taken off.
pub(crate) struct Cursor<'a> {
    packet_type: PacketType,
    total: usize,
    rest: &'a [u8],
}

/// The result of reading a header.
pub(crate) type Read<'a> = Result<Header<'a>, ParseError>;

/// An array of memory vectors and the field that counts it.
pub(crate) struct IovField {
    array: &'static str,
    count: &'static str,
}

pub(crate) const RMA_IOV: IovField = IovField { array: "rma_iov", count: "rma_iov_count" };
pub(crate) const READ_IOV: IovField = IovField { array: "read_iov", count: "read_iov_count" };

impl<'a> Cursor<'a> {
    #[inline]
    pub(crate) fn new(packet_type: PacketType, bytes: &'a [u8]) -> Self {
        Self { packet_type, total: bytes.len(), rest: bytes }
    }

    /// The packet; the rest is its payload.
    #[inline]
    pub(crate) fn finish(self, header: Header<'a>) -> Packet<'a> {
        Packet { header, payload: self.rest }
    }

    #[inline]
    pub(crate) fn packet_type(&self) -> PacketType {
        self.packet_type
    }

    /// Number of bytes not taken yet.
    #[inline]
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Takes the fixed header off.
    #[inline(always)]
    pub(crate) fn take_head<T: Wire>(&mut self) -> Result<&'a T, ParseError> {
        let Ok((head, rest)) = T::ref_from_prefix(self.rest) else {
            let (field, end) = T::cut(self.total);
            return Err(self.truncated(field, end as u64));
        };
        self.rest = rest;
        Ok(head)
    }

    /// Takes one field or fixed group of fields.
    #[inline(always)]
    pub(crate) fn take<T>(&mut self, field: &'static str) -> Result<&'a T, ParseError>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let Ok((value, rest)) = T::ref_from_prefix(self.rest) else {
            return Err(self.truncated(field, self.taken() + size_of::<T>() as u64));
        };
        self.rest = rest;
        Ok(value)
    }

    /// Takes `count` elements; a count beyond the packet is an error.
    #[inline(always)]
    pub(crate) fn take_slice<T>(
        &mut self,
        field: &'static str,
        count: u32,
    ) -> Result<&'a [T], ParseError>
    where
        T: FromBytes + Immutable + Unaligned,
    {
        let Ok((values, rest)) = <[T]>::ref_from_prefix_with_elems(self.rest, count as usize)
        else {
            let size = u64::from(count) * size_of::<T>() as u64;
            return Err(self.truncated(field, self.taken() + size));
        };
        self.rest = rest;
        Ok(values)
    }

    /// Takes an array of at most [`MAX_IOV`] memory vectors.
    #[inline(always)]
    pub(crate) fn take_iov(
        &mut self,
        field: IovField,
        count: U32,
    ) -> Result<&'a [RmaIov], ParseError> {
        let found = count.get();
        if found as usize > MAX_IOV {
            let packet_type = self.packet_type;
            return Err(ParseError::Count { packet_type, field: field.count, found });
        }
        self.take_slice(field.array, found)
    }

    /// Takes a raw address of `size` bytes and reads the first 32.
    #[inline(always)]
    pub(crate) fn take_address(&mut self, size: u32) -> Result<&'a AddressBytes, ParseError> {
        let bytes = match size as usize {
            RawAddress::SIZE.. => self.take_slice::<u8>("raw_address", size)?,
            _ => &[],
        };
        match AddressBytes::ref_from_prefix(bytes) {
            Ok((address, _)) => Ok(address),
            Err(_) => Err(ParseError::AddressSize { packet_type: self.packet_type, found: size }),
        }
    }

    /// Takes the words of a HANDSHAKE.
    #[inline]
    pub(crate) fn take_extra_info(&mut self, nextra_p3: U32) -> Result<&'a [U64], ParseError> {
        let found = nextra_p3.get();
        match found.checked_sub(3) {
            Some(words) => self.take_slice("extra_info", words),
            None => Err(ParseError::ExtraInfo { found }),
        }
    }

    /// Checks that the rest, with `missing` bytes that were cut off, is as long as `seg_length` says.
    #[inline]
    pub(crate) fn check_segment(&self, seg_length: u64, missing: u64) -> Result<(), ParseError> {
        let payload = self.rest.len() as u64 + missing;
        if seg_length != payload {
            let packet_type = self.packet_type;
            return Err(ParseError::SegmentLength { packet_type, found: seg_length, payload });
        }
        Ok(())
    }

    /// Number of bytes taken so far.
    #[inline]
    fn taken(&self) -> u64 {
        (self.total - self.rest.len()) as u64
    }

    #[inline(always)]
    fn truncated(&self, field: &'static str, needed: u64) -> ParseError {
        let packet_type = Some(self.packet_type);
        ParseError::Truncated { packet_type, field, needed, available: self.total as u64 }
    }
}

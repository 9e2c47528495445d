//! The raw address of an endpoint (section 1.4, table 1.5).
//!
//! ```text
//!   gid [u8; 16] @0   qpn u16 @16   pad u16 @18   connid u32 @20   reserved u64 @24      32 bytes
//! ```

use core::fmt;
use core::net::Ipv6Addr;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Connid, ParseError};

/// Address of an endpoint: which network card, which queue pair on it, which incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RawAddress {
    /// The card, in the form of an IPv6 address.
    pub gid: [u8; 16],
    /// Queue pair number.
    pub qpn: u16,
    /// The incarnation; packets to the endpoint use it as queue key.
    pub connid: Connid,
}

/// The size field of a raw address header (table 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RawAddressForm {
    /// Size field 32, 36 bytes in all: libfabric up to 1.12.
    Short,
    /// Size field 36, of which the last four bytes are padding, 40 bytes in all: since 1.13. A
    /// parsed header of this form may have been longer still; what is unknown in it is dropped.
    #[default]
    Padded,
}

impl RawAddressForm {
    /// Length in bytes of the whole optional header.
    #[inline]
    #[must_use]
    pub const fn header_len(self) -> usize {
        match self {
            Self::Short => 36,
            Self::Padded => 40,
        }
    }
}

/// Wire form of [`RawAddress`].
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct AddressBytes {
    gid: [u8; 16],
    qpn: U16,
    pad: U16,
    connid: U32,
    reserved: U64,
}

const _: () = assert!(size_of::<AddressBytes>() == RawAddress::SIZE);

impl AddressBytes {
    #[inline]
    pub(crate) fn get(&self) -> RawAddress {
        RawAddress { gid: self.gid, qpn: self.qpn.get(), connid: Connid(self.connid.get()) }
    }

    #[inline(always)]
    pub(crate) fn new(address: &RawAddress) -> Self {
        Self {
            gid: address.gid,
            qpn: U16::new(address.qpn),
            pad: U16::new(0),
            connid: U32::new(address.connid.0),
            reserved: U64::new(0),
        }
    }
}

impl RawAddress {
    /// Length in bytes on the wire.
    pub const SIZE: usize = 32;

    /// The 32 bytes on the wire. Padding is zero, as release 1.10 compares all of them.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 32] {
        zerocopy::transmute!(AddressBytes::new(self))
    }

    /// Reads the first 32 bytes of an address; longer ones of later releases begin with the same
    /// fields.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] for fewer bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseError> {
        match AddressBytes::ref_from_prefix(bytes) {
            Ok((address, _)) => Ok(address.get()),
            Err(_) => Err(ParseError::Truncated {
                packet_type: None,
                field: "raw_address",
                needed: Self::SIZE as u64,
                available: bytes.len() as u64,
            }),
        }
    }
}

/// `[fe80::1]:12/0x0000002a`: card, queue pair, connid.
impl fmt::Display for RawAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]:{}/{}", Ipv6Addr::from(self.gid), self.qpn, self.connid)
    }
}

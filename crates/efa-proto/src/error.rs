//! Errors of parsing and writing packets.

use thiserror::Error;

use crate::{MAX_IOV, PacketType, PacketTypeError, VERSION};

/// Why bytes are not a packet. Carries the packet type as far as it is known, the field, the value
/// found and what would have been allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The bytes end inside a header.
    #[error("{}: {field} ends at byte {needed}, the packet has {available}", name(.packet_type))]
    Truncated {
        /// Type of the packet, `None` if the type itself is missing or unknown.
        packet_type: Option<PacketType>,
        /// First field that is not there as a whole.
        field: &'static str,
        /// Bytes a packet needs to hold this field and all before it.
        needed: u64,
        /// Bytes that are there.
        available: u64,
    },
    /// The protocol version is not [`VERSION`].
    #[error("protocol version {found}, only {VERSION} is known")]
    Version {
        /// Byte 1 of the packet.
        found: u8,
    },
    /// The number is no packet type.
    #[error(transparent)]
    PacketType(#[from] PacketTypeError),
    /// An array of memory vectors is longer than [`MAX_IOV`].
    #[error("{packet_type}: {field} is {found}, at most {MAX_IOV} are allowed")]
    Count {
        /// Type of the packet.
        packet_type: PacketType,
        /// `rma_iov_count` or `read_iov_count`.
        field: &'static str,
        /// Its value.
        found: u32,
    },
    /// The size in a raw address header is below the 32 bytes of an address.
    #[error("{packet_type}: raw address size is {found}, at least 32 is needed")]
    AddressSize {
        /// Type of the packet.
        packet_type: PacketType,
        /// The size field.
        found: u32,
    },
    /// `nextra_p3` of a HANDSHAKE is below 3, so that the number of words would be negative.
    #[error("HANDSHAKE: nextra_p3 is {found}, at least 3 is needed")]
    ExtraInfo {
        /// The field's value.
        found: u32,
    },
    /// `seg_length` is not the number of bytes behind the header.
    #[error("{packet_type}: seg_length is {found}, the packet carries {payload} bytes")]
    SegmentLength {
        /// Type of the packet.
        packet_type: PacketType,
        /// The field's value.
        found: u64,
        /// Bytes behind the header.
        payload: u64,
    },
}

impl ParseError {
    /// Type of the packet, if it was read before the error.
    #[must_use]
    pub const fn packet_type(&self) -> Option<PacketType> {
        match *self {
            Self::Truncated { packet_type, .. } => packet_type,
            Self::Count { packet_type, .. }
            | Self::AddressSize { packet_type, .. }
            | Self::SegmentLength { packet_type, .. } => Some(packet_type),
            Self::ExtraInfo { .. } => Some(PacketType::Handshake),
            Self::Version { .. } | Self::PacketType(_) => None,
        }
    }

    /// Name of the field at fault.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        match *self {
            Self::Truncated { field, .. } | Self::Count { field, .. } => field,
            Self::Version { .. } => "version",
            Self::PacketType(_) => "type",
            Self::AddressSize { .. } => "raw_address_size",
            Self::ExtraInfo { .. } => "nextra_p3",
            Self::SegmentLength { .. } => "seg_length",
        }
    }

    /// Bytes by which the packet is too short for the field; `None` for other errors.
    #[must_use]
    pub const fn missing(&self) -> Option<u64> {
        match *self {
            Self::Truncated { needed, available, .. } => Some(needed - available),
            _ => None,
        }
    }
}

fn name(packet_type: &Option<PacketType>) -> &'static str {
    packet_type.map_or("packet", PacketType::name)
}

/// Why a header was not written. The buffer's content is unspecified then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum EmitError {
    /// The header does not fit.
    #[error("{packet_type}: the header takes {needed} bytes, the buffer has {available}")]
    BufferTooSmall {
        /// Type of the packet.
        packet_type: PacketType,
        /// Length of the header in bytes.
        needed: usize,
        /// Length of the buffer in bytes.
        available: usize,
    },
    /// An array has more than [`MAX_IOV`] entries, which would make C peers write out of bounds.
    #[error("{packet_type}: {found} entries in {field}, at most {MAX_IOV} may be sent")]
    Count {
        /// Type of the packet.
        packet_type: PacketType,
        /// `rma_iov`, `read_iov` or `extra_info`.
        field: &'static str,
        /// Number of entries.
        found: usize,
    },
}

//! Types that are in libfabric's size table but that no release sends: RUNTCTS_MSGRTM (142, 40 bytes),
//! RUNTCTS_TAGRTM (143, 48), RUNTCTS_RTW (144, 40), RUNTREAD_RTW (147, 40).
//!
//! Only the size of the fixed header is known and checked. Receivers of all releases report and drop
//! these packets.

use core::fmt;

use crate::cursor::{Cursor, Read};
use crate::value::{FieldValue, Fields, See};
use crate::{EmitError, Header, PacketType, ReqFlags};

/// The fixed header of a type that no release sends, uninterpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NeverSent<'a> {
    packet_type: PacketType,
    header: &'a [u8],
}

impl<'a> NeverSent<'a> {
    /// Type of the packet.
    #[must_use]
    pub const fn packet_type(&self) -> PacketType {
        self.packet_type
    }

    /// The fixed header as found, from the base header on.
    #[must_use]
    pub const fn header(&self) -> &'a [u8] {
        self.header
    }

    /// Bytes that [`Self::emit`] writes.
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.header.len()
    }

    /// Writes the header as it was found, for tools that relay packets.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let (packet_type, needed, available) = (self.packet_type, self.len(), buf.len());
        let to = buf.get_mut(..needed).ok_or(EmitError::BufferTooSmall {
            packet_type,
            needed,
            available,
        })?;
        to.copy_from_slice(self.header);
        Ok(needed)
    }
}

pub(crate) fn read<'a>(rest: &mut Cursor<'a>, _: ReqFlags) -> Read<'a> {
    let packet_type = rest.packet_type();
    let header =
        rest.take_slice("header", if packet_type == PacketType::RuntCtsTagRtm { 48 } else { 40 })?;
    Ok(Header::NeverSent(NeverSent { packet_type, header }))
}

/// `never sent by any release, 40 bytes`, without the type's name.
impl fmt::Display for NeverSent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "(never sent by any release) ")
    }
}

impl<'a> Fields<'a> for NeverSent<'_> {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        see("header", FieldValue::Number(self.header.len() as u64))
    }
}

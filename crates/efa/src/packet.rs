//! Packets of a device, in which messages are received without a copy.
//!
//! ```text
//!   Endpoint::packet ─► Packet ─► Endpoint::receive_in_place
//!                         ▲                   │
//!              Buffer::into_packet            ▼
//!                         └──── Buffer ◄─ Completion        contains the message
//! ```

use std::fmt;

use crate::device::AnyPacket;

/// A packet of a device, for a [receive in place](crate::Endpoint::receive_in_place). It holds one
/// message at a time and can be posted again. Dropping it frees its memory.
pub struct Packet {
    memory: AnyPacket,
    /// Offset and length of the message in bytes. A datagram is far shorter than `u32::MAX`.
    begin: u32,
    length: u32,
}

impl Packet {
    /// A packet with a message of `length` bytes at offset `begin`.
    pub(crate) fn new(memory: AnyPacket, begin: usize, length: usize) -> Self {
        let [begin, length] = [begin, length].map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        Self { memory, begin, length }
    }

    /// Length in bytes of the longest message that fits.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory.as_ref().len().saturating_sub(self.begin as usize)
    }

    pub(crate) fn len(&self) -> usize {
        self.length as usize
    }

    /// The message.
    pub(crate) fn bytes(&self) -> &[u8] {
        let from = self.memory.as_ref().get(self.begin as usize..).unwrap_or_default();
        from.get(..self.len()).unwrap_or_default()
    }

    pub(crate) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(u32::try_from(length).unwrap_or(u32::MAX));
    }

    pub(crate) fn memory(&self) -> &AnyPacket {
        &self.memory
    }

    pub(crate) fn into_memory(self) -> AnyPacket {
        self.memory
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet")
            .field("length", &self.length)
            .field("capacity", &self.capacity())
            .finish()
    }
}

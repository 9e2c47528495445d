//! Buffers: memory that an operation takes and its completion returns.
//!
//! ```text
//!   Vec<u8>, Box<[u8]>, BytesMut, RegionSlice, LentBytesMut ─► ReceiveBuffer ─┐
//!                                     Bytes, &str, LentBytes ─────────────────┴► Buffer ─► operation
//!                                                                                             │
//!                                Vec<u8>, Bytes, RegionSlice, Packet ◄─ Buffer ◄─ completion ◄┘
//! ```

mod copy;
mod slot;

use std::fmt;

use bytes::{Bytes, BytesMut};
use efa_device::{ForeignMemory, LentBytes, LentBytesMut};

use crate::attributes::LocalRegistration;
use crate::packet::Packet;
use crate::pieces::Pieces;
use crate::region::RegionSlice;

pub(crate) use slot::{Parts, Role, Slot};

/// Memory of the application, which a send takes and a completion returns.
///
/// The endpoint itself drops the buffers of operations that complete silently and of those that are discarded, while it is
/// locked. Memory whose destructor is the program's, such as the owner of [`Bytes::from_owner`], must not call the endpoint
/// or its queues in it: that call would wait for ever.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Buffer(Memory);

enum Memory {
    Vec(Vec<u8>),
    Bytes(Bytes),
    BytesMut(BytesMut),
    Region(RegionSlice),
    Pieces(Pieces),
    Packet(Packet),
    Foreign(ForeignMemory),
    Lent(LentBytes),
    LentMut(LentBytesMut),
}

impl Memory {
    #[inline(always)]
    fn as_slice(&self) -> Option<&[u8]> {
        match self {
            Self::Vec(vec) => Some(vec),
            Self::Bytes(bytes) => Some(bytes),
            Self::BytesMut(bytes) => Some(bytes),
            Self::Packet(packet) => Some(packet.bytes()),
            Self::Lent(bytes) => Some(bytes),
            Self::LentMut(bytes) => Some(bytes),
            Self::Region(_) | Self::Pieces(_) | Self::Foreign(_) => None,
        }
    }
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        match self {
            Self::Vec(vec) => Self::Vec(vec.clone()),
            Self::Bytes(bytes) => Self::Bytes(bytes.clone()),
            Self::BytesMut(bytes) => Self::BytesMut(bytes.clone()),
            Self::Region(slice) => Self::Region(slice.clone()),
            // Only the device allocates packets.
            Self::Packet(packet) => Self::Vec(packet.bytes().to_vec()),
            Self::Pieces(pieces) => Self::Pieces(pieces.clone()),
            Self::Foreign(memory) => Self::Foreign(memory.clone()),
            // A clone may outlive the operation.
            Self::Lent(bytes) => Self::Vec(bytes.to_vec()),
            Self::LentMut(bytes) => Self::Vec(bytes.to_vec()),
        }
    }
}

impl PartialEq for Memory {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Vec(one), Self::Vec(other)) => one == other,
            (Self::Bytes(one), Self::Bytes(other)) => one == other,
            (Self::BytesMut(one), Self::BytesMut(other)) => one == other,
            (Self::Region(one), Self::Region(other)) => one == other,
            (Self::Pieces(one), Self::Pieces(other)) => one == other,
            (Self::Foreign(one), Self::Foreign(other)) => one.is(other),
            // They equal their clones, which are vectors.
            (one @ (Self::Packet(_) | Self::Lent(_) | Self::LentMut(_)), other)
            | (other, one @ (Self::Packet(_) | Self::Lent(_) | Self::LentMut(_))) => {
                one.as_slice() == other.as_slice()
            }
            _ => false,
        }
    }
}

impl Eq for Memory {}

impl Default for Memory {
    fn default() -> Self {
        Self::Vec(Vec::new())
    }
}

impl Buffer {
    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Memory::Region(slice) => slice.len(),
            _ => self.as_slice().map_or_else(|| self.len_elsewhere(), <[u8]>::len),
        }
    }

    #[inline(never)]
    fn len_elsewhere(&self) -> usize {
        match &self.0 {
            Memory::Pieces(pieces) => pieces.len(),
            Memory::Foreign(memory) => memory.len(),
            _ => 0,
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes; `None` for a memory region, which peers may change at any time, for memory
    /// that somebody else owns ([`ForeignMemory`]), and for several [pieces](Self::pieces).
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        self.0.as_slice()
    }

    /// The bytes as vector, without a copy if the memory was a vector or a boxed slice, or is not shared.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Memory::Vec(vec) => vec,
            Memory::Bytes(bytes) => bytes.into(),
            Memory::BytesMut(bytes) => bytes.into(),
            Memory::Region(slice) => slice.to_vec(),
            Memory::Packet(packet) => packet.bytes().to_vec(),
            Memory::Pieces(pieces) => pieces.to_bytes(),
            Memory::Foreign(memory) => foreign_bytes(&memory),
            Memory::Lent(bytes) => bytes.to_vec(),
            Memory::LentMut(bytes) => bytes.to_vec(),
        }
    }

    /// The bytes as [`Bytes`], copied only out of a memory region, a packet, several pieces or memory of others.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Memory::Bytes(bytes) => bytes,
            Memory::BytesMut(bytes) => bytes.freeze(),
            memory => Self(memory).into_vec().into(),
        }
    }

    /// The slice of a memory region.
    ///
    /// # Errors
    /// The buffer itself, if it is memory of another kind.
    pub fn into_region(self) -> Result<RegionSlice, Self> {
        match self.0 {
            Memory::Region(slice) => Ok(slice),
            memory => Err(Self(memory)),
        }
    }

    /// The memory that somebody else owns.
    ///
    /// # Errors
    /// The buffer itself, if it is memory of another kind.
    pub fn into_foreign(self) -> Result<ForeignMemory, Self> {
        match self.0 {
            Memory::Foreign(memory) => Ok(memory),
            memory => Err(Self(memory)),
        }
    }

    /// The packet that contains the message, for the next [receive in
    /// place](crate::Endpoint::receive_in_place).
    ///
    /// # Errors
    /// The buffer itself, if it is memory of another kind.
    pub fn into_packet(self) -> Result<Packet, Self> {
        match self.0 {
            Memory::Packet(packet) => Ok(packet),
            memory => Err(Self(memory)),
        }
    }

    /// The pieces of a buffer made by [`pieces`](Self::pieces), of which an empty one may have been left out;
    /// any other buffer is one piece.
    #[must_use]
    pub fn into_pieces(self) -> Vec<Self> {
        match self.0 {
            Memory::Pieces(pieces) => pieces.into_vec(),
            memory => vec![Self(memory)],
        }
    }

    pub(crate) fn of_pieces(pieces: Pieces) -> Self {
        Self(Memory::Pieces(pieces))
    }

    /// Whether it is memory that the program or the device has registered.
    fn is_registered(&self) -> bool {
        match &self.0 {
            Memory::Region(_) | Memory::Packet(_) => true,
            Memory::Pieces(pieces) => pieces.as_slice().iter().all(Self::is_registered),
            _ => false,
        }
    }

    /// Whether an operation of a domain that requires registered memory may use it.
    pub(crate) fn satisfies(&self, required: LocalRegistration) -> bool {
        required == LocalRegistration::NotNeeded || self.is_registered() || self.is_empty()
    }

    pub(crate) fn region(&self) -> Option<&RegionSlice> {
        match &self.0 {
            Memory::Region(slice) => Some(slice),
            _ => None,
        }
    }

    /// Whether a part of it may be a memory region.
    #[inline]
    pub(crate) fn has_regions(&self) -> bool {
        matches!(self.0, Memory::Region(_) | Memory::Pieces(_))
    }

    /// Applies `check` to each slice of a memory region that it consists of.
    pub(crate) fn check_regions<E>(
        &self,
        check: impl Fn(&RegionSlice) -> Result<(), E>,
    ) -> Result<(), E> {
        match &self.0 {
            Memory::Region(slice) => check(slice),
            Memory::Pieces(pieces) => {
                pieces.as_slice().iter().filter_map(Self::region).try_for_each(check)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn truncate(&mut self, length: usize) {
        match &mut self.0 {
            Memory::Vec(vec) => vec.truncate(length),
            Memory::Bytes(bytes) => bytes.truncate(length),
            Memory::BytesMut(bytes) => bytes.truncate(length),
            Memory::Region(slice) => slice.truncate(length),
            Memory::Packet(packet) => packet.truncate(length),
            Memory::Pieces(pieces) => pieces.truncate(length),
            Memory::Foreign(memory) => *memory = memory.slice(0..length),
            Memory::Lent(bytes) => bytes.truncate(length),
            Memory::LentMut(bytes) => bytes.truncate(length),
        }
    }

    pub(crate) fn split_to(&mut self, at: usize) -> Self {
        let at = at.min(self.len());
        Self(match &mut self.0 {
            Memory::Vec(vec) => {
                let mut bytes = BytesMut::from(Bytes::from(std::mem::take(vec)));
                let first = Memory::BytesMut(bytes.split_to(at));
                self.0 = Memory::BytesMut(bytes);
                first
            }
            // Not possible in a `ReceiveBuffer`.
            Memory::Packet(packet) => {
                let mut bytes = BytesMut::from(packet.bytes());
                let first = Memory::BytesMut(bytes.split_to(at));
                self.0 = Memory::BytesMut(bytes);
                first
            }
            Memory::Bytes(bytes) => Memory::Bytes(bytes.split_to(at)),
            Memory::BytesMut(bytes) => Memory::BytesMut(bytes.split_to(at)),
            Memory::Region(slice) => Memory::Region(slice.split_to(at)),
            Memory::Pieces(pieces) => Memory::Pieces(pieces.split_to(at)),
            Memory::Foreign(memory) => {
                let first = memory.slice(0..at);
                *memory = memory.slice(at..memory.len());
                Memory::Foreign(first)
            }
            Memory::Lent(bytes) => Memory::Lent(bytes.split_to(at)),
            Memory::LentMut(bytes) => Memory::LentMut(bytes.split_to(at)),
        })
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Memory::Vec(_) => "Vec",
            Memory::Bytes(_) => "Bytes",
            Memory::BytesMut(_) => "BytesMut",
            Memory::Region(_) => "RegionSlice",
            Memory::Packet(_) => "Packet",
            Memory::Pieces(_) => "Pieces",
            Memory::Foreign(_) => "ForeignMemory",
            Memory::Lent(_) => "LentBytes",
            Memory::LentMut(_) => "LentBytesMut",
        };
        write!(f, "Buffer({kind} of {} bytes)", self.len())
    }
}

impl PartialEq<[u8]> for Buffer {
    fn eq(&self, other: &[u8]) -> bool {
        match &self.0 {
            Memory::Region(slice) => slice.to_vec() == other,
            Memory::Pieces(pieces) => pieces.to_bytes() == other,
            Memory::Foreign(memory) => foreign_bytes(memory) == other,
            _ => self.as_slice() == Some(other),
        }
    }
}

impl<const N: usize> PartialEq<[u8; N]> for Buffer {
    fn eq(&self, other: &[u8; N]) -> bool {
        *self == other[..]
    }
}

impl PartialEq<Vec<u8>> for Buffer {
    fn eq(&self, other: &Vec<u8>) -> bool {
        *self == other[..]
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(vec: Vec<u8>) -> Self {
        Self(Memory::Vec(vec))
    }
}

impl From<Box<[u8]>> for Buffer {
    fn from(bytes: Box<[u8]>) -> Self {
        Self(Memory::Vec(bytes.into_vec()))
    }
}

impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Self {
        Self(Memory::Bytes(bytes))
    }
}

impl From<BytesMut> for Buffer {
    fn from(bytes: BytesMut) -> Self {
        Self(Memory::BytesMut(bytes))
    }
}

impl From<RegionSlice> for Buffer {
    fn from(slice: RegionSlice) -> Self {
        Self(Memory::Region(slice))
    }
}

impl From<Packet> for Buffer {
    fn from(packet: Packet) -> Self {
        Self(Memory::Packet(packet))
    }
}

impl From<ForeignMemory> for Buffer {
    /// Bytes that change while a message is sent may arrive as they were or as they are.
    fn from(memory: ForeignMemory) -> Self {
        Self(Memory::Foreign(memory))
    }
}

impl From<LentBytes> for Buffer {
    fn from(bytes: LentBytes) -> Self {
        Self(Memory::Lent(bytes))
    }
}

impl From<LentBytesMut> for Buffer {
    fn from(bytes: LentBytesMut) -> Self {
        Self(Memory::LentMut(bytes))
    }
}

impl From<&'static str> for Buffer {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<&'static [u8]> for Buffer {
    fn from(bytes: &'static [u8]) -> Self {
        Bytes::from_static(bytes).into()
    }
}

impl From<ReceiveBuffer> for Buffer {
    fn from(buffer: ReceiveBuffer) -> Self {
        buffer.0
    }
}

/// Memory that a message can be written into: up to its length, not its capacity, so fill a `Vec` or
/// `BytesMut` with zeros first.
///
/// Shared bytes can't be written into:
///
/// ```compile_fail,E0277
/// let buffer: efa::ReceiveBuffer = bytes::Bytes::from_static(b"read only").into();
/// ```
#[derive(Debug)]
pub struct ReceiveBuffer(pub(crate) Buffer);

impl ReceiveBuffer {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<u8>> for ReceiveBuffer {
    fn from(vec: Vec<u8>) -> Self {
        Self(vec.into())
    }
}

impl From<Box<[u8]>> for ReceiveBuffer {
    fn from(bytes: Box<[u8]>) -> Self {
        Self(bytes.into())
    }
}

impl From<BytesMut> for ReceiveBuffer {
    fn from(bytes: BytesMut) -> Self {
        Self(bytes.into())
    }
}

impl From<RegionSlice> for ReceiveBuffer {
    fn from(slice: RegionSlice) -> Self {
        Self(slice.into())
    }
}

impl From<ForeignMemory> for ReceiveBuffer {
    fn from(memory: ForeignMemory) -> Self {
        Self(memory.into())
    }
}

impl From<LentBytesMut> for ReceiveBuffer {
    fn from(bytes: LentBytesMut) -> Self {
        Self(bytes.into())
    }
}

/// A copy of the bytes.
fn foreign_bytes(memory: &ForeignMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds() -> [Buffer; 3] {
        let bytes: Vec<u8> = (0..10).collect();
        [
            bytes.clone().into(),
            bytes.clone().into_boxed_slice().into(),
            BytesMut::from(&bytes[..]).into(),
        ]
    }

    #[test]
    fn every_kind_of_buffer_is_read_written_and_split() {
        for mut buffer in kinds() {
            buffer.write(8, &[88, 99]);
            let mut bytes = [0; 3];
            buffer.read(7, &mut bytes);
            assert_eq!(bytes, [7, 88, 99]);
            let first = buffer.split_to(4);
            assert_eq!((first.len(), buffer.len()), (4, 6));
            assert_eq!(first.into_vec(), [0, 1, 2, 3]);
            assert_eq!(buffer, [4, 5, 6, 7, 88, 99]);
        }
    }

    #[test]
    fn splitting_a_vector_copies_nothing() {
        let mut buffer = Buffer::from(vec![7; 4096]);
        let begin = buffer.as_slice().unwrap().as_ptr();
        let first = buffer.split_to(1000);
        let rest = buffer.as_slice().unwrap().as_ptr();
        assert_eq!(first.as_slice().unwrap().as_ptr(), begin);
        assert_eq!(rest as usize, begin as usize + 1000);
    }

    #[test]
    fn vector_comes_back_as_the_same_memory() {
        let vec = vec![1; 100];
        let begin = vec.as_ptr();
        let back = Buffer::from(vec).into_vec();
        assert_eq!(back.as_ptr(), begin);
    }

    #[test]
    fn writes_past_the_end_or_into_shared_bytes_are_ignored() {
        for mut buffer in kinds() {
            buffer.write(9, &[1, 2, 3]);
            buffer.write(usize::MAX, &[1]);
            assert_eq!(buffer, [0, 1, 2, 3, 4, 5, 6, 7, 8, 1]);
        }
        let mut shared = Buffer::from("read only");
        shared.write(0, b"X");
        assert_eq!(shared, *b"read only");
    }
}

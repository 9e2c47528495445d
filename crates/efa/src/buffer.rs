//! Buffers: memory that an operation takes and its completion returns.
//!
//! ```text
//!   Vec<u8>, Box<[u8]>, BytesMut, RegionSlice, LentBytesMut ─► ReceiveBuffer ─┐
//!                                     Bytes, &str, LentBytes ─────────────────┴► Buffer ─► operation
//!                                                                                             │
//!                                Vec<u8>, Bytes, RegionSlice, Packet ◄─ Buffer ◄─ completion ◄┘
//! ```

mod copy;

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use efa_device::{
    Access, CopySource, CopyTarget, ForeignMemory, LentBytes, LentBytesMut, QueuePair, Region as _,
    RegionRange, RegisterError, RemoteRange,
};
use efa_rdm::Payload;

use crate::attributes::LocalRegistration;
use crate::device::{AnyRegion, ConcreteRegion};
use crate::packet::Packet;
use crate::pieces::Pieces;
use crate::region::RegionSlice;
use crate::shared_receive_queue::Taken;

/// Memory of the application, which a send takes and a completion returns.
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
            Memory::Vec(vec) => vec.into(),
            Memory::Bytes(bytes) => bytes,
            Memory::BytesMut(bytes) => bytes.freeze(),
            Memory::Region(slice) => slice.to_vec().into(),
            Memory::Packet(packet) => packet.bytes().to_vec().into(),
            Memory::Pieces(pieces) => pieces.to_bytes().into(),
            Memory::Foreign(memory) => foreign_bytes(&memory).into(),
            Memory::Lent(bytes) => bytes.to_vec().into(),
            Memory::LentMut(bytes) => bytes.to_vec().into(),
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
        match &mut self.0 {
            Memory::Vec(vec) => {
                self.0 = Memory::BytesMut(Bytes::from(std::mem::take(vec)).into());
            }
            // Not possible in a `ReceiveBuffer`.
            Memory::Packet(packet) => self.0 = Memory::BytesMut(packet.bytes().into()),
            _ => {}
        }
        Self(match &mut self.0 {
            Memory::Vec(vec) => Memory::Vec(vec.drain(..at).collect()),
            Memory::Packet(packet) => Memory::Vec(packet.bytes()[..at].to_vec()),
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

/// A buffer as the engine holds it. The buffer comes first: so it is loaded by the same words when it moves with its role
/// as when it moved alone. Loads that take parts of two stores wait until both have left the processor.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slot {
    pub(crate) buffer: Buffer,
    pub(crate) role: Role,
}

/// How an operation uses its buffer.
#[derive(Debug)]
pub(crate) enum Role {
    /// As a whole.
    Whole,
    /// As a whole, by an operation that completes only if it fails.
    Silent,
    /// As a whole: a vector, whose memory is in the region while the operation is under way, or lent memory, which is
    /// registered that long.
    Registered(AnyRegion),
    /// The unused rest of a multi-receive buffer.
    Rest(Parts),
    /// The part of a multi-receive buffer for one message, until the message completes.
    Part(Parts),
    /// As a whole, by a receive of a [shared queue](crate::SharedReceiveQueue).
    Taken(Taken),
}

const _: () = assert!(size_of::<Slot>() <= 56, "it is moved several times per operation");

/// Counts the parts of a multi-receive buffer whose messages have not completed: each holds a clone. `true` if messages
/// that are received are reported.
#[derive(Clone, Debug)]
pub(crate) struct Parts(Arc<bool>);

impl Parts {
    pub(crate) fn are_reported(&self) -> bool {
        *self.0
    }

    /// Whether no part is left: this is the only clone.
    pub(crate) fn are_complete(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Slot {
    pub(crate) fn whole(buffer: Buffer) -> Self {
        Self { buffer, role: Role::Whole }
    }

    /// A buffer of an operation that completes silently unless it is to be reported.
    #[inline(always)]
    pub(crate) fn reported(is_reported: bool, buffer: Buffer) -> Self {
        Self { buffer, role: if is_reported { Role::Whole } else { Role::Silent } }
    }

    pub(crate) fn for_many(is_reported: bool, buffer: Buffer) -> Self {
        Self { buffer, role: Role::Rest(Parts(Arc::new(is_reported))) }
    }

    /// Whether its operation completes only if it fails.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.role, Role::Silent)
    }

    #[inline]
    pub(crate) fn into_buffer(self) -> Buffer {
        match self.role {
            Role::Registered(region) => reclaim(region, self.buffer),
            _ => self.buffer,
        }
    }

    pub(crate) fn into_parts(self) -> (Buffer, Role) {
        match self.role {
            Role::Registered(region) => (reclaim(region, self.buffer), Role::Whole),
            role => (self.buffer, role),
        }
    }
}

impl Slot {
    /// Region, offset and length of the registered range from byte `offset` on.
    fn location_from(&self, offset: u64) -> Option<(&AnyRegion, usize, usize)> {
        let skip = index(offset);
        let (region, first, length) = match (&self.role, &self.buffer.0) {
            (Role::Registered(region), _) => (region, 0, region.length()),
            (_, Memory::Region(slice)) => slice.location(),
            (_, Memory::Pieces(pieces)) => return pieces.registered_from(skip),
            _ => return None,
        };
        let skip = skip.min(length);
        Some((region, first + skip, length - skip))
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// Ends the registration of a buffer and returns the memory.
fn reclaim(region: AnyRegion, buffer: Buffer) -> Buffer {
    if let Memory::Lent(_) | Memory::LentMut(_) = buffer.0 {
        if !region.revoke() {
            tracing::warn!(?region, "registered memory of the program may still be accessed");
        }
        return buffer;
    }
    match region.reclaim() {
        Ok(memory) => memory.into(),
        // The device still has a handle and may read on, so the application gets a copy.
        Err(region) => {
            let mut bytes = vec![0; region.length()];
            region.read(0, &mut bytes);
            bytes.into()
        }
    }
}

impl<R: ConcreteRegion> Payload<R> for Slot {
    #[inline]
    fn length(&self) -> u64 {
        let length = match &self.role {
            Role::Registered(region) => region.length(),
            _ => self.buffer.len(),
        };
        length as u64
    }

    #[inline]
    fn read(&self, offset: u64, into: &mut [u8]) {
        Payload::<R>::copy_to(self, offset, into.into());
    }

    #[inline(always)]
    fn write(&mut self, offset: u64, from: &[u8]) {
        Payload::<R>::copy_from(self, offset, from.into());
    }

    #[inline(always)]
    fn copy_to(&self, offset: u64, into: CopyTarget<'_>) {
        match &self.role {
            Role::Registered(region) => {
                region.copy_to(index(offset), into);
            }
            _ => self.buffer.copy_to(index(offset), into),
        }
    }

    #[inline(always)]
    fn copy_from(&mut self, offset: u64, from: CopySource<'_>) {
        match &self.role {
            Role::Registered(region) => {
                region.copy_from(index(offset), from);
            }
            _ => self.buffer.copy_from(index(offset), from),
        }
    }

    fn split_to(&mut self, at: u64) -> Self {
        let role = match &self.role {
            // The engine splits only multi-receive buffers.
            Role::Whole | Role::Silent | Role::Registered(_) | Role::Taken(_) => Role::Whole,
            Role::Rest(parts) | Role::Part(parts) => Role::Part(parts.clone()),
        };
        Self { buffer: self.buffer.split_to(index(at)), role }
    }

    fn registered(&self) -> Option<RegionRange<R>> {
        let (region, offset, length) = match &self.role {
            Role::Registered(region) => (region, 0, region.length()),
            _ => self.buffer.region()?.location(),
        };
        // An endpoint refuses memory of other domains, so this is a region of its own device.
        Some(RegionRange { region: R::from_any(region.clone())?, offset, length })
    }

    fn registered_from(&self, offset: u64) -> Option<RegionRange<R>> {
        let (region, offset, length) = self.location_from(offset)?;
        Some(RegionRange { region: R::from_any(region.clone())?, offset, length })
    }

    fn exposed_from(&self, offset: u64) -> Option<RemoteRange> {
        let (region, offset, length) = self.location_from(offset)?;
        Some(RemoteRange::of(region, offset, length))
    }

    fn is_mapped(&self) -> bool {
        matches!(&self.buffer.0, Memory::Region(slice) if slice.region().is_mapped())
    }

    fn register(&mut self, device: &impl QueuePair<Region = R>, access: Access) -> bool {
        // One that completes silently, or is of a shared queue, stays unregistered: its operation goes in packets.
        let Role::Whole = self.role else { return false };
        let registered = match &mut self.buffer.0 {
            Memory::Vec(vector) => {
                let registered = device.register(std::mem::take(vector).into(), access);
                registered.map_err(|RegisterError { memory, .. }| *vector = memory.into()).ok()
            }
            Memory::Lent(bytes) => device.register_lent(bytes.lending(), access).ok(),
            Memory::LentMut(bytes) => device.register_lent(bytes.lending(), access).ok(),
            _ => None,
        };
        let Some(region) = registered else { return false };
        self.role = Role::Registered(region.into_any());
        true
    }

    fn deregister(&mut self) {
        if let Role::Registered(_) = self.role {
            let registered = std::mem::replace(self, Self::whole(Buffer::default()));
            self.buffer = registered.into_buffer();
        }
    }
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

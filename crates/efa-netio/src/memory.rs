//! Registered memory, parts of it, and messages of parts.
//!
//! ```text
//!   Pool ─ part(range) ─► Part ─┬─► Message{parts, key, data | header} ─► send, publish
//!                               │                                             │
//!                               └──────────── the message comes back ◄────────┘
//! ```

use std::ops::Range;

use efa::{Buffer, MemoryRegion, OutOfRegion, RegionSlice};
use smallvec::SmallVec;

/// Most parts of a message, with its header.
pub const MAX_PARTS: usize = 28;

/// Registered memory that messages are sent from. Clones are handles to the same memory.
///
/// The program and its threads write it with [`write`](Self::write), also while messages are sent from other places of
/// it; what is overwritten while it is sent may arrive as it was or as it is.
#[derive(Clone, Debug)]
pub struct Pool(MemoryRegion);

impl From<MemoryRegion> for Pool {
    /// Memory that was registered with [`LocalAccess::SEND`](efa::LocalAccess::SEND), also such as others own
    /// ([`Domain::register_foreign`](efa::Domain::register_foreign)): a mapped file, the ring of a device. Long messages
    /// are copied into packets unless it was registered with [`Access::remote_read`](efa::Access).
    fn from(region: MemoryRegion) -> Self {
        Self(region)
    }
}

impl Pool {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A range of its bytes.
    ///
    /// # Errors
    /// The range is not within the pool.
    pub fn part(&self, range: Range<usize>) -> Result<Part, OutOfRegion> {
        Ok(Part(self.0.slice(range)?))
    }

    /// All of it.
    #[must_use]
    pub fn whole(&self) -> Part {
        #[allow(clippy::unwrap_used, reason = "a region contains all of itself")]
        self.part(0..self.len()).unwrap()
    }

    /// Overwrites bytes from `offset` on; returns their number, which is less than given at the end of the pool.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> usize {
        self.0.write(offset, bytes)
    }

    /// Copies bytes from `offset` on; returns their number, which is less than asked for at the end of the pool.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        self.0.read(offset, into)
    }

    pub(crate) fn has(&self, part: &Part) -> bool {
        self.0.is(part.0.region())
    }
}

/// A range of bytes of a [`Pool`], which it keeps registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part(RegionSlice);

impl Part {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where it is in its pool.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.0.range()
    }

    #[inline]
    pub(crate) fn buffer(&self) -> Buffer {
        self.0.clone().into()
    }

    /// A copy of its bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// The address of its first byte, as the device names it to peers: the key of a message that isn't given another.
    /// On EFA interfaces it is the address in the program's memory. It is unique among the parts of a device's pools.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.0.region().remote_address().wrapping_add(self.0.range().start as u64)
    }
}

/// Up to 8 bytes at the beginning of a published message, which need no registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; 8],
    length: u8,
}

/// A header of more than 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a header of {length} bytes, it can have at most 8")]
pub struct HeaderTooLong {
    /// Its length.
    pub length: usize,
}

impl Header {
    /// A header of 0 to 8 bytes.
    ///
    /// # Errors
    /// There are more.
    pub fn new(header: &[u8]) -> Result<Self, HeaderTooLong> {
        let mut bytes = [0; 8];
        let room = bytes.get_mut(..header.len()).ok_or(HeaderTooLong { length: header.len() })?;
        room.copy_from_slice(header);
        Ok(Self { bytes, length: header.len() as u8 })
    }

    /// Its bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// What is sent: parts of registered memory in order, as one message, and a key by which the program knows it. It goes
/// in with the call, and comes back with the event of its completion, or with the refusal.
///
/// ```
/// use efa::{Fabric, LocalOptions};
/// use efa_netio::{Message, Netio, Options};
/// let netio = Netio::new(&Fabric::local(LocalOptions::default()).domain()?, Options::default())?;
/// let pool = netio.allocate(4096)?;
/// let message = Message::of(pool.part(100..200)?).key(7);
/// assert_eq!((message.len(), message.key), (100, 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a message does nothing until it is sent"]
pub struct Message {
    pub(crate) parts: SmallVec<[Part; 2]>,
    /// Comes back with the completion. The address of the first byte unless it is set.
    pub key: u64,
    /// Reaches the receiver beside the bytes. Not of published messages, whose tag takes its place.
    pub data: Option<u64>,
    /// The first bytes of a published message.
    pub header: Header,
}

impl Message {
    /// A message of one part. Its key is the address of its first byte until [`key`](Self::key) sets another.
    pub fn of(part: Part) -> Self {
        let key = part.address();
        let parts = SmallVec::from_iter([part]);
        Self { parts, key, data: None, header: Header::default() }
    }

    /// A message of several parts. Its key is the address of the first one, or 0 without parts.
    pub fn gather(parts: impl IntoIterator<Item = Part>) -> Self {
        let parts = SmallVec::from_iter(parts);
        let key = parts.first().map_or(0, Part::address);
        Self { parts, key, data: None, header: Header::default() }
    }

    /// Sets the key.
    pub fn key(self, key: u64) -> Self {
        Self { key, ..self }
    }

    /// Sets the data that reaches the receiver beside the bytes.
    pub fn data(self, data: u64) -> Self {
        Self { data: Some(data), ..self }
    }

    /// Sets the first bytes of a published message.
    pub fn header(self, header: Header) -> Self {
        Self { header, ..self }
    }

    /// Its parts.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Length in bytes, without the header.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.iter().map(Part::len).sum()
    }

    /// Whether there are no bytes but a header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it has at least one part, and no more than a message can have.
    pub(crate) fn check(&self) -> Result<(), MessageError> {
        if self.parts.is_empty() {
            return Err(MessageError::NoParts);
        }
        let limit = MAX_PARTS - usize::from(!self.header.as_slice().is_empty());
        match self.parts.len() {
            count if count > limit => Err(MessageError::TooManyParts { count, limit }),
            _ => Ok(()),
        }
    }

    /// The part that is all of the message.
    #[inline]
    pub(crate) fn only(&self, header: &Option<Part>) -> Option<&Part> {
        match (&self.parts[..], header) {
            ([part], None) => Some(part),
            _ => None,
        }
    }

    /// The parts as a buffer, after the memory of a header.
    pub(crate) fn buffer(&self, header: Option<Part>) -> Buffer {
        match self.only(&header) {
            Some(part) => part.buffer(),
            None => gathered(header.into_iter().chain(self.parts.iter().cloned())),
        }
    }

    /// The message whose parts come back as a buffer.
    pub(crate) fn returned(buffer: Buffer, key: u64, data: Option<u64>) -> Self {
        let pieces = buffer.into_pieces().into_iter();
        let parts = pieces.filter_map(|piece| piece.into_region().ok()).map(Part).collect();
        Self { parts, key, data, header: Header::default() }
    }
}

#[inline(never)]
fn gathered(parts: impl Iterator<Item = Part>) -> Buffer {
    #[allow(clippy::unwrap_used, reason = "their number was checked")]
    Buffer::pieces(parts.map(|part| part.0)).unwrap()
}

/// A message that can't be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// It has no parts. A part may be empty.
    #[error("a message without parts")]
    NoParts,
    /// It has more parts than a message can have; a header counts as one.
    #[error("a message of {count} parts, it can have at most {limit}")]
    TooManyParts {
        /// How many.
        count: usize,
        /// Most parts of this message.
        limit: usize,
    },
    /// A part is of another pool than the publisher's.
    #[error("a part that is not of the publisher's pool")]
    OtherPool,
    /// Only published messages have a header.
    #[error("a header, which only published messages have")]
    HasHeader,
    /// A published message has no data: its tag takes the place.
    #[error("data, which published messages don't have")]
    HasData,
}

#[cfg(test)]
mod tests {
    use super::*;

    // conformance: D66
    #[test]
    fn header_of_nine_bytes_is_refused_and_one_of_eight_is_not() {
        for length in 0..=8 {
            let bytes = vec![7; length];
            assert_eq!(Header::new(&bytes).unwrap().as_slice(), bytes);
        }
        assert_eq!(Header::new(&[7; 9]), Err(HeaderTooLong { length: 9 }));
    }
}

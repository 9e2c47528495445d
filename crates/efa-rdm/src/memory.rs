//! The memory of an operation: a buffer of the application, or registered memory that a peer accesses.

use core::fmt;

use efa_device::{Access, CopySource, QueuePair, Region, RegionRange, RemoteRange};
use efa_proto::{MAX_IOV, RmaIov};
use smallvec::SmallVec;

use crate::atomic::LARGEST;
use crate::payload::Payload;

/// Where the bytes of an operation are. The rare variants are boxed to keep `Send` and `Receive` small.
#[derive(Debug)]
pub(crate) enum Memory<B, R> {
    /// A buffer of the application.
    Buffer(B),
    /// Operand and comparand of a compare atomic, in this order.
    Buffers(Box<(B, B)>),
    /// Local registered memory that a peer's request names.
    Exposed(Box<Exposed<R>>),
    /// Previous values of a fetching atomic, to be sent to the peer.
    Values(Vec<u8>),
}

/// Local registered memory that a peer's request names by address and key, checked: consecutive
/// ranges.
#[derive(Clone, Debug)]
pub(crate) struct Exposed<R> {
    ranges: SmallVec<[RegionRange<R>; 1]>,
}

/// The access to local memory that a peer's request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemoteUse {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Read and write it.
    ReadWrite,
}

/// Memory regions by keys of 64 bits that the application chose (`FI_MR_SCALABLE`).
pub trait KeyedRegions<R>: fmt::Debug + Send + Sync {
    /// The region with this key, and the address that peers give for its first byte. `None` if no region has
    /// the key, or none yet.
    fn find(&self, key: u64) -> Option<(R, u64)>;
}

/// A peer's access to local memory was refused: no registered region with this key covers the range
/// and grants the access (section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{wanted:?} access to {length} bytes at {address:#x} by key {key:#x} is refused")]
pub struct AccessError {
    /// The access that was requested.
    pub wanted: RemoteUse,
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// The remote key.
    pub key: u64,
}

impl<R: Region> Exposed<R> {
    /// Looks up the memory that a packet names. Fails if any piece is refused; pieces of length 0
    /// aren't checked, as a device wouldn't.
    pub(crate) fn find(
        iov: &[RmaIov],
        wanted: RemoteUse,
        region: impl Fn(u64) -> Option<(R, u64)>,
    ) -> Result<Self, AccessError> {
        let range = |piece: &RmaIov| {
            let (region, first) = region(piece.key())?;
            let granted = region.access();
            let allowed = match wanted {
                RemoteUse::Read => granted.remote_read,
                RemoteUse::Write => granted.remote_write,
                RemoteUse::ReadWrite => granted.remote_read && granted.remote_write,
            };
            let offset = piece.addr().checked_sub(first)?;
            let (offset, length) =
                (usize::try_from(offset).ok()?, usize::try_from(piece.len()).ok()?);
            let range = RegionRange { region, offset, length };
            (allowed && range.check().is_ok()).then_some(range)
        };
        let refused = |piece: &RmaIov| AccessError {
            wanted,
            address: piece.addr(),
            length: piece.len(),
            key: piece.key(),
        };
        let pieces = iov.iter().filter(|piece| piece.len() > 0);
        let ranges = pieces.map(|piece| range(piece).ok_or_else(|| refused(piece)));
        Ok(Self { ranges: ranges.collect::<Result<_, _>>()? })
    }

    /// Changes the elements of `size` bytes one by one: `change` gets the index of the element and its
    /// bytes, perhaps again if they change meanwhile. What it leaves as it is isn't written. Each change is atomic as
    /// [`Region::update`] is. Returns whether all elements were there.
    #[must_use]
    pub(crate) fn update(&self, size: usize, mut change: impl FnMut(usize, &mut [u8])) -> bool {
        let mut number = 0;
        let mut bytes = [0; LARGEST];
        for RegionRange { region, offset, length } in &self.ranges {
            for element in 0..length / size {
                let at = offset + element * size;
                let count = region.update(at, &mut bytes[..size], |bytes| {
                    let mut before = [0; LARGEST];
                    before[..size].copy_from_slice(bytes);
                    change(number, bytes);
                    before[..size] != *bytes
                });
                if count < size {
                    return false;
                }
                number += 1;
            }
        }
        true
    }

    /// The parts of the ranges that hold the `length` bytes from `offset` on, each with its position
    /// among those bytes.
    fn parts(&self, offset: u64, length: usize) -> impl Iterator<Item = (usize, RegionRange<R>)> {
        let (mut skip, mut done) = (offset, 0);
        self.ranges.iter().filter_map(move |range| {
            let before = usize::try_from(skip).unwrap_or(usize::MAX).min(range.length);
            skip -= before as u64;
            let count = (range.length - before).min(length - done);
            let part = RegionRange {
                region: range.region.clone(),
                offset: range.offset + before,
                length: count,
            };
            let at = done;
            done += count;
            (count > 0).then_some((at, part))
        })
    }
}

impl<R: Region, B: Payload<R>> Memory<B, R> {
    /// Length in bytes.
    #[inline(always)]
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Buffer(buffer) => buffer.length(),
            other => other.length_of_others(),
        }
    }

    /// Length in bytes of what isn't one buffer of the application.
    fn length_of_others(&self) -> u64 {
        match self {
            Self::Buffer(buffer) => buffer.length(),
            Self::Buffers(both) => both.0.length() + both.1.length(),
            Self::Values(values) => values.len() as u64,
            Self::Exposed(exposed) => exposed.ranges.iter().map(|range| range.length as u64).sum(),
        }
    }

    /// Copies `into.len()` bytes from `offset` on to `into`. Returns whether it did: registered memory may have been
    /// revoked.
    #[inline]
    #[must_use]
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        if let Self::Buffer(buffer) = self {
            buffer.read(offset, into);
            return true;
        }
        self.read_other(offset, into)
    }

    #[cold]
    fn read_other(&self, offset: u64, into: &mut [u8]) -> bool {
        match self {
            Self::Buffer(_) => {}
            Self::Buffers(both) => {
                let (first, second) = &**both;
                let left = first.length().saturating_sub(offset).min(into.len() as u64);
                let (front, back) = into.split_at_mut(left as usize);
                first.read(offset, front);
                second.read((offset + left).saturating_sub(first.length()), back);
            }
            Self::Values(values) => Payload::<R>::read(values, offset, into),
            Self::Exposed(exposed) => {
                return exposed.parts(offset, into.len()).all(|(at, part)| {
                    part.region.read(part.offset, &mut into[at..at + part.length]) == part.length
                });
            }
        }
        true
    }

    /// Copies `from` to `offset`. Returns whether it did: registered memory may have been revoked. Operands and
    /// previous values are only read.
    #[inline]
    #[must_use]
    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) -> bool {
        if let Self::Buffer(buffer) = self {
            buffer.write(offset, from);
            return true;
        }
        self.write_other(offset, from)
    }

    #[cold]
    fn write_other(&mut self, offset: u64, from: &[u8]) -> bool {
        let Self::Exposed(exposed) = self else { return true };
        exposed.parts(offset, from.len()).all(|(at, part)| {
            part.region.write(part.offset, &from[at..at + part.length]) == part.length
        })
    }

    /// As [`write`](Self::write), of bytes that others may access.
    #[must_use]
    pub(crate) fn copy_from(&mut self, offset: u64, from: CopySource<'_>) -> bool {
        if let Self::Buffer(buffer) = self {
            buffer.copy_from(offset, from);
            return true;
        }
        let write = |at: usize, bytes: &[u8]| {
            if self.write_other(offset + at as u64, bytes) { bytes.len() } else { 0 }
        };
        from.pass_to(write) == from.len()
    }

    /// Whether receivers may have the memory mapped.
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self, Self::Buffer(buffer) if buffer.is_mapped())
    }

    /// Whether all of the memory is registered.
    pub(crate) fn is_registered(&self) -> bool {
        self.exposed_from(0).is_some()
    }

    /// The registered range from byte `offset` on, to the end of the memory or of a piece of it. `None` if not all
    /// of the memory is registered.
    pub(crate) fn registered_from(&self, offset: u64) -> Option<RegionRange<R>> {
        match self {
            Self::Buffer(buffer) => buffer.registered_from(offset),
            Self::Exposed(exposed) => match &exposed.ranges[..] {
                [RegionRange { region, offset: start, length }] => {
                    let skip = usize::try_from(offset).unwrap_or(usize::MAX).min(*length);
                    let (region, offset) = (region.clone(), start + skip);
                    Some(RegionRange { region, offset, length: length - skip })
                }
                _ => None,
            },
            Self::Buffers(_) | Self::Values(_) => None,
        }
    }

    /// As [`registered_from`](Self::registered_from), in the terms of peers.
    #[inline]
    pub(crate) fn exposed_from(&self, offset: u64) -> Option<RemoteRange> {
        match self {
            Self::Buffer(buffer) => buffer.exposed_from(offset),
            _ => self.registered_from(offset).map(|range| range.remote()),
        }
    }

    /// Puts addresses, lengths and remote keys of the first `total` bytes into `pieces`, and returns those that it
    /// needs. `None` if they aren't registered for remote reads, or have more pieces than a packet can name.
    #[inline]
    pub(crate) fn read_iov<'a>(
        &self,
        total: u64,
        pieces: &'a mut [RmaIov; MAX_IOV],
    ) -> Option<&'a [RmaIov]> {
        let mut offset = 0;
        for count in 0..MAX_IOV {
            let RemoteRange { memory, length, access } = self.exposed_from(offset)?;
            if !access.remote_read {
                return None;
            }
            let length = (length as u64).min(total - offset);
            pieces[count] = RmaIov::new(memory.address, length, memory.key.into());
            offset += length;
            if offset == total {
                return Some(&pieces[..=count]);
            }
        }
        None
    }

    /// Registers a buffer until [`deregister`](Self::deregister). Returns whether that was done: not all buffers can
    /// be, and the device may refuse.
    pub(crate) fn register(&mut self, device: &impl QueuePair<Region = R>, access: Access) -> bool {
        match self {
            Self::Buffer(buffer) => buffer.register(device, access),
            Self::Buffers(_) | Self::Values(_) | Self::Exposed(_) => false,
        }
    }

    /// Undoes [`register`](Self::register).
    pub(crate) fn deregister(&mut self) {
        if let Self::Buffer(buffer) = self {
            buffer.deregister();
        }
    }
}

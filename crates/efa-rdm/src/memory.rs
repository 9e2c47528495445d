//! The memory of an operation: a buffer of the application, or memory that it offers to peers.

use efa_device::{Region, RegionRange, RegisterError};
use efa_proto::RmaIov;
use smallvec::SmallVec;

use crate::atomic::LARGEST;
use crate::payload::Payload;

/// Where the bytes of an operation are. What is rare is boxed, so that messages stay small.
#[derive(Debug)]
pub(crate) enum Memory<B, R> {
    /// A buffer that the application handed over.
    Buffer(B),
    /// Two of them, one behind the other: the operands of an atomic.
    Buffers(Box<(B, B)>),
    /// Memory of this side that a peer named.
    Exposed(Box<Exposed<R>>),
    /// Previous values of such memory.
    Values(Vec<u8>),
}

/// Registered memory that a peer named by address and key, checked: ranges one behind the other.
#[derive(Clone, Debug)]
pub(crate) struct Exposed<R> {
    ranges: SmallVec<[RegionRange<R>; 1]>,
}

/// What a peer wants to do with memory of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemoteUse {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Read and write it.
    ReadWrite,
}

/// Why a peer may not have memory (section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{wanted:?} access to {length} bytes at {address:#x} by key {key:#x} is refused")]
pub struct AccessError {
    /// What was wanted.
    pub wanted: RemoteUse,
    /// The first byte.
    pub address: u64,
    /// The number of bytes.
    pub length: u64,
    /// The key.
    pub key: u64,
}

impl<R: Region> Exposed<R> {
    /// Looks up the memory that a packet names: all of it, or nothing. As for a device, it doesn't
    /// matter where nothing is to be read or written.
    pub(crate) fn find(
        iov: &[RmaIov],
        wanted: RemoteUse,
        region: impl Fn(u32) -> Option<R>,
    ) -> Result<Self, AccessError> {
        let range = |piece: &RmaIov| {
            let region = region(u32::try_from(piece.key()).ok()?)?;
            let granted = region.access();
            let allowed = match wanted {
                RemoteUse::Read => granted.remote_read,
                RemoteUse::Write => granted.remote_write,
                RemoteUse::ReadWrite => granted.remote_read && granted.remote_write,
            };
            let offset = piece.addr().checked_sub(region.remote_address())?;
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

    /// Changes elements of `size` bytes one by one: `change` gets the number of the element and its
    /// bytes. No other atomic of this process comes in between.
    pub(crate) fn update(&self, size: usize, mut change: impl FnMut(usize, &mut [u8])) {
        let mut number = 0;
        let mut bytes = [0; LARGEST];
        for RegionRange { region, offset, length } in &self.ranges {
            for element in 0..length / size {
                region.update(offset + element * size, &mut bytes[..size], |bytes| {
                    if bytes.len() == size {
                        change(number, bytes);
                    }
                });
                number += 1;
            }
        }
    }

    /// The parts of the ranges that the `length` bytes from `offset` on lie in, with where they
    /// begin among those bytes.
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
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Buffer(buffer) => buffer.length(),
            Self::Buffers(both) => both.0.length() + both.1.length(),
            Self::Values(values) => values.len() as u64,
            Self::Exposed(exposed) => exposed.ranges.iter().map(|range| range.length as u64).sum(),
        }
    }

    /// Copies `into.len()` bytes out, from `offset` on.
    #[inline]
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        match self {
            Self::Buffer(buffer) => buffer.read(offset, into),
            _ => self.read_other(offset, into),
        }
    }

    #[cold]
    fn read_other(&self, offset: u64, into: &mut [u8]) {
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
                for (at, part) in exposed.parts(offset, into.len()) {
                    part.region.read(part.offset, &mut into[at..at + part.length]);
                }
            }
        }
    }

    /// Copies `from` in, at `offset`. Operands and previous values are only read.
    #[inline]
    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) {
        match self {
            Self::Buffer(buffer) => buffer.write(offset, from),
            Self::Exposed(exposed) => {
                for (at, part) in exposed.parts(offset, from.len()) {
                    part.region.write(part.offset, &from[at..at + part.length]);
                }
            }
            Self::Buffers(_) | Self::Values(_) => {}
        }
    }

    /// Where it lies in registered memory, if it does and is in one piece.
    pub(crate) fn registered(&self) -> Option<RegionRange<R>> {
        match self {
            Self::Buffer(buffer) => buffer.registered(),
            Self::Exposed(exposed) => match &exposed.ranges[..] {
                [range] => Some(range.clone()),
                _ => None,
            },
            Self::Buffers(_) | Self::Values(_) => None,
        }
    }

    /// Registers a buffer for the time of its operation.
    pub(crate) fn register(
        &mut self,
        register: impl FnOnce(Box<[u8]>) -> Result<R, RegisterError>,
    ) {
        if let Self::Buffer(buffer) = self {
            buffer.register(register);
        }
    }

    /// Takes back what [`register`](Self::register) did.
    pub(crate) fn deregister(&mut self) {
        if let Self::Buffer(buffer) = self {
            buffer.deregister();
        }
    }
}

//! The trait of the application's buffers.

use efa_device::{Access, CopySource, CopyTarget, QueuePair, Region, RegionRange, RemoteRange};

/// A buffer of the application. An operation takes ownership of it, and its completion returns it.
///
/// The endpoint never keeps a reference to the bytes; it copies segments from and to the buffer. So
/// vectors, scattered memory and device memory can all be payloads. `R` is the device's type of
/// registered memory.
pub trait Payload<R>: Sized {
    /// Length in bytes.
    fn length(&self) -> u64;

    /// Copies `into.len()` bytes from `offset` on to `into`. The endpoint stays within
    /// [`length`](Self::length).
    fn read(&self, offset: u64, into: &mut [u8]);

    /// Copies `from` to `offset`. The endpoint stays within [`length`](Self::length).
    fn write(&mut self, offset: u64, from: &[u8]);

    /// Copies `into.len()` bytes from `offset` on to memory that others may access. By default they go there through a chunk on
    /// the stack; a buffer that can copy them directly implements this method besides.
    #[inline(always)]
    fn copy_to(&self, offset: u64, mut into: CopyTarget<'_>) {
        into.fill_by(|at, slice| {
            self.read(offset + at as u64, slice);
            slice.len()
        });
    }

    /// Copies `from`, memory that others may access, to `offset`. As for [`copy_to`](Self::copy_to).
    #[inline(always)]
    fn copy_from(&mut self, offset: u64, from: CopySource<'_>) {
        from.pass_to(|at, slice| {
            self.write(offset + at as u64, slice);
            slice.len()
        });
    }

    /// Splits off the first `at` bytes as a buffer of their own; `self` keeps the rest. The endpoint
    /// stays within [`length`](Self::length).
    ///
    /// Each message to a multi-receive buffer gets such a part.
    #[must_use]
    fn split_to(&mut self, at: u64) -> Self;

    /// The registered range that holds the buffer, if there is a single one. The device then accesses
    /// the buffer in place. A buffer that isn't registered and can't be is sent in packets, or copied
    /// through the endpoint's bounce regions.
    fn registered(&self) -> Option<RegionRange<R>> {
        None
    }

    /// The registered range from byte `offset` on, to the end of the buffer, or of the piece of it that has this byte.
    /// `None` if not all of the buffer is registered. A buffer of several registered ranges implements this method
    /// besides.
    fn registered_from(&self, offset: u64) -> Option<RegionRange<R>> {
        let RegionRange { region, offset: start, length } = self.registered()?;
        let skip = usize::try_from(offset).unwrap_or(usize::MAX).min(length);
        Some(RegionRange { region, offset: start + skip, length: length - skip })
    }

    /// As [`registered_from`](Self::registered_from), in the terms of peers. A buffer that can say it without a handle of the
    /// region, whose count is shared by threads, implements this method besides.
    fn exposed_from(&self, offset: u64) -> Option<RemoteRange>
    where
        R: Region,
    {
        self.registered_from(offset).map(|range| range.remote())
    }

    /// Whether the whole buffer is in [mapped](efa_device::Region::is_mapped) memory.
    fn is_mapped(&self) -> bool {
        false
    }

    /// Registers the buffer until [`deregister`](Self::deregister), if its type allows that, and returns whether it did.
    /// Then [`registered`](Self::registered) returns its range. If the device refuses, the buffer stays unregistered.
    fn register(&mut self, device: &impl QueuePair<Region = R>, access: Access) -> bool {
        let _ = (device, access);
        false
    }

    /// Undoes [`register`](Self::register).
    fn deregister(&mut self) {}
}

/// The index range of a segment. It can't saturate: the endpoint stays within the buffer, which is
/// shorter than `usize::MAX`.
fn range(offset: u64, length: usize) -> core::ops::Range<usize> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    start..start.saturating_add(length)
}

impl<R> Payload<R> for Vec<u8> {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self[range(offset, into.len())]);
    }

    fn write(&mut self, offset: u64, from: &[u8]) {
        self[range(offset, from.len())].copy_from_slice(from);
    }

    #[inline]
    fn copy_to(&self, offset: u64, mut into: CopyTarget<'_>) {
        into.copy_from(0, &self[range(offset, into.len())]);
    }

    #[inline]
    fn copy_from(&mut self, offset: u64, from: CopySource<'_>) {
        from.copy_to(0, &mut self[range(offset, from.len())]);
    }

    fn split_to(&mut self, at: u64) -> Self {
        let rest = self.split_off(range(at, 0).start);
        core::mem::replace(self, rest)
    }
}

#[cfg(test)]
mod tests {
    use efa_device::NoRegion;

    use super::*;

    /// Names the region type, which a vector leaves open.
    fn of(buffer: &mut Vec<u8>) -> &mut impl Payload<NoRegion> {
        buffer
    }

    #[test]
    fn vec_payload_is_read_written_and_split() {
        let mut vector: Vec<u8> = (0..10).collect();
        let buffer = of(&mut vector);
        buffer.write(8, &[88, 99]);
        let mut bytes = [0; 3];
        buffer.read(7, &mut bytes);
        assert_eq!(bytes, [7, 88, 99]);
        let first = buffer.split_to(4);
        assert_eq!((first.length(), buffer.length()), (4, 6));
        drop(first);
        assert_eq!(vector, [4, 5, 6, 7, 88, 99]);
    }
}

//! The application's memory, as the engine sees it.

use efa_device::{RegionRange, RegisterError};

/// A buffer that is handed over with an operation and comes back with its completion.
///
/// The engine never keeps a reference to its bytes: it copies segments out and in. So vectors,
/// scattered memory and device memory can all be payloads. `R` is the device's kind of registered
/// memory.
pub trait Payload<R>: Sized {
    /// Length in bytes.
    fn length(&self) -> u64;

    /// Copies `into.len()` bytes out, from `offset` on. The engine stays within
    /// [`length`](Self::length).
    fn read(&self, offset: u64, into: &mut [u8]);

    /// Copies `from` in, at `offset`. The engine stays within [`length`](Self::length).
    fn write(&mut self, offset: u64, from: &[u8]);

    /// Takes the first `at` bytes off as a buffer of their own; `self` keeps the rest. The engine
    /// stays within [`length`](Self::length).
    ///
    /// This is how a multi-receive buffer gives each message its part.
    #[must_use]
    fn split_to(&mut self, at: u64) -> Self;

    /// Where the buffer lies in registered memory, if it does and is in one piece. The device then
    /// reads and writes it in place; buffers that can't be registered either are sent in packets, and
    /// received by way of memory of the engine's.
    fn registered(&self) -> Option<RegionRange<R>> {
        None
    }

    /// Registers the buffer for the time of its operation, if it is of a kind that can be; if the
    /// device refuses, it stays as it is. Then [`registered`](Self::registered) tells where it is.
    fn register(&mut self, register: impl FnOnce(Box<[u8]>) -> Result<R, RegisterError>) {
        let _ = register;
    }

    /// Takes back what [`register`](Self::register) did.
    fn deregister(&mut self) {}
}

/// Where a segment lies in memory. Buffers in memory are shorter than `usize::MAX`, and the engine
/// stays within them, so saturation is never reached.
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
    fn vectors_are_read_written_and_split() {
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

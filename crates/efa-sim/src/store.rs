//! How a copy stores bytes: through the processor's caches or past them.
//!
//! Through the caches, a processor reads each line of the target before it writes it. So bytes of a copy that is longer than
//! the caches cross the memory bus three times; past the caches they cross it twice.

#![allow(unsafe_code)]

use efa_device::copy_apart;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// How a copy stores bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// In the caches, where the next reader finds them.
    Cached,
    /// In memory, where the processor can; otherwise as `Cached`.
    Streamed,
}

/// From this length on the bytes of an operation are streamed. Half as many are often found in a cache of several cores;
/// docs/performance.md has what was measured.
const STREAMED_FROM: u64 = 16 << 20;

impl Store {
    /// The faster one for an operation of `length` bytes in all, which may be copied in several pieces.
    pub(crate) fn of_operation(length: u64) -> Self {
        if length < STREAMED_FROM { Self::Cached } else { Self::Streamed }
    }

    /// Copies `length` bytes, which may overlap.
    ///
    /// # Safety
    /// As for [`std::ptr::copy`].
    #[inline(never)]
    pub(crate) unsafe fn copy(self, from: *const u8, into: *mut u8, length: usize) {
        #[cfg(target_arch = "x86_64")]
        if self == Self::Streamed && are_apart(from, into, length) {
            // SAFETY: the caller's, and the two don't overlap.
            return unsafe { stream(from, into, length) };
        }
        if are_apart(from, into, length) {
            // SAFETY: the caller's, and the two don't overlap.
            return unsafe { copy_apart(from, into, length) };
        }
        // SAFETY: the caller's.
        unsafe { std::ptr::copy(from, into, length) };
    }
}

/// Whether the two don't overlap.
fn are_apart(from: *const u8, into: *const u8, length: usize) -> bool {
    from.addr().abs_diff(into.addr()) >= length
}

/// Copies bytes past the caches.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const u8, into: *mut u8, length: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    // A line that is streamed in part would be read.
    let front = into.align_offset(LINE).min(length);
    let lines = (length - front) / LINE;
    let back = front + lines * LINE;
    // SAFETY: all offsets are at most `length`. Targets of streamed stores are aligned to a line, and so to 16 bytes. Every
    // x86-64 processor has these instructions. The fence orders the stores before all later ones, such as those that
    // tell that the bytes are there.
    unsafe {
        std::ptr::copy_nonoverlapping(from, into, front);
        for at in (front..back).step_by(LINE) {
            let (from, into) = (from.add(at).cast::<__m128i>(), into.add(at).cast::<__m128i>());
            let line = [0, 1, 2, 3].map(|part| _mm_loadu_si128(from.add(part)));
            for (part, bytes) in line.into_iter().enumerate() {
                _mm_stream_si128(into.add(part), bytes);
            }
        }
        _mm_sfence();
        std::ptr::copy_nonoverlapping(from.add(back), into.add(back), length - back);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_copy_writes_its_bytes_and_no_others_at_any_alignment_and_length() {
        let from: Vec<u8> = (0..600_u32).map(|byte| (byte % 251) as u8).collect();
        for (at, to) in (0..70).flat_map(|at| [(at, 0), (0, at), (at, 3)]) {
            for length in [0, 1, 15, 63, 64, 65, 127, 128, 200, 448, 500] {
                let mut into = vec![255; 600];
                // SAFETY: both ranges are in their vectors, which are different.
                unsafe {
                    Store::Streamed.copy(from[at..].as_ptr(), into[to..].as_mut_ptr(), length);
                }
                let mut expected = vec![255; 600];
                expected[to..to + length].copy_from_slice(&from[at..at + length]);
                assert_eq!(into, expected, "{length} bytes from {at} to {to}");
            }
        }
    }

    /// Copies within 32 KiB, and compares with what a slice does.
    fn copy_within(store: Store, from: usize, into: usize, length: usize) {
        let mut bytes: Vec<u8> = (0..1_u32 << 15).map(|byte| (byte % 251) as u8).collect();
        let mut expected = bytes.clone();
        expected.copy_within(from..from + length, into);
        let base = bytes.as_mut_ptr();
        // SAFETY: both ranges are in the vector.
        unsafe { store.copy(base.add(from), base.add(into), length) };
        assert_eq!(bytes, expected, "{length} bytes from {from} to {into}, {store:?}");
    }

    #[test]
    fn copy_of_bytes_that_overlap_moves_them() {
        for (from, into) in [(0, 64), (64, 0), (0, 1), (5, 5), (0, 4112), (4112, 0)] {
            for length in [190, 5000, 10_000] {
                copy_within(Store::Streamed, from, into, length);
                copy_within(Store::Cached, from, into, length);
            }
        }
    }
}

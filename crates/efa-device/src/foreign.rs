//! Memory that somebody else owns: a mapping, a ring that a device fills, memory of a C program.
//!
//! ```text
//!   unsafe ForeignMemory::new(base, length, owner) ─► read, write, slice: safe
//!                                       │
//!                                       └─► dropped with the last handle: unmaps, frees, or counts
//! ```
//!
//! Rust's owner of bytes knows who else touches them; here nobody does. So there is never a reference to
//! these bytes: they are copied in and out by atomic accesses, which may race with others. A copy of bytes that
//! change meanwhile has some of the old and some of the new ones.

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// A range of memory that somebody else owns. Clones and [slices](Self::slice) are handles to the same bytes.
#[derive(Clone)]
pub struct ForeignMemory {
    whole: Arc<Whole>,
    range: Range<usize>,
}

struct Whole {
    base: NonNull<u8>,
    length: usize,
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the constructor's caller promises that the bytes are valid until the owner is dropped, in any thread;
// they are accessed by atomics only. The owner is `Send`.
unsafe impl Send for Whole {}

// SAFETY: as above. The owner is `Sync`, and is only dropped.
unsafe impl Sync for Whole {}

/// Bytes of a word that is copied at once.
const WORD: usize = size_of::<u64>();

impl ForeignMemory {
    /// The `length` bytes from `base` on. `owner` is dropped with the last handle, and then unmaps or frees them;
    /// `()` if they live as long as the process.
    ///
    /// # Safety
    /// The bytes are within one allocation or mapping, and `length` is at most `isize::MAX`. Until `owner` is dropped,
    /// the bytes are mapped, readable and writable, and no Rust reference to any of them exists. Other processes and
    /// devices may read and write them at any time; threads of this process, C code included, by atomic accesses, or
    /// ordered with those of the handles.
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, length: usize, owner: impl Any + Send + Sync) -> Self {
        let whole = Whole { base, length, _owner: Box::new(owner) };
        Self { whole: Arc::new(whole), range: 0..length }
    }

    /// The first byte, for devices that access the memory. It is valid as long as a handle exists.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: `range` is within the memory, whose bytes are within one allocation or mapping.
        unsafe { self.whole.base.add(self.range.start) }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The bytes `range` of these, cut off at their end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let begin = range.start.min(self.len());
        let end = range.end.clamp(begin, self.len());
        let first = self.range.start;
        Self { whole: self.whole.clone(), range: first + begin..first + end }
    }

    /// Whether both are the same bytes.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.whole.base == other.whole.base
            && self.whole.length == other.whole.length
            && self.range == other.range
    }

    /// Copies bytes from `offset` on; returns their number, which is less than asked for at the end.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let count = self.count(offset, into.len());
        let mut at = self.range.start + offset.min(self.len());
        let mut into = &mut into[..count];
        while !into.is_empty() {
            let (part, rest) = match self.word(at, into.len()) {
                Some(word) => {
                    let (part, rest) = into.split_at_mut(WORD);
                    part.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
                    (WORD, rest)
                }
                None => {
                    let (part, rest) = into.split_at_mut(1);
                    part[0] = self.byte(at).load(Ordering::Relaxed);
                    (1, rest)
                }
            };
            (at, into) = (at + part, rest);
        }
        count
    }

    /// Overwrites bytes from `offset` on; returns their number, which is less than given at the end.
    pub fn write(&self, offset: usize, from: &[u8]) -> usize {
        let count = self.count(offset, from.len());
        let mut at = self.range.start + offset.min(self.len());
        let mut from = &from[..count];
        while let [first, rest @ ..] = from {
            match (self.word(at, from.len()), from.first_chunk::<WORD>()) {
                (Some(word), Some(bytes)) => {
                    word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
                    (at, from) = (at + WORD, &from[WORD..]);
                }
                _ => {
                    self.byte(at).store(*first, Ordering::Relaxed);
                    (at, from) = (at + 1, rest);
                }
            }
        }
        count
    }

    /// Copies `bytes.len()` bytes out, from `offset` on, calls `change` with them, and copies them back if that returns
    /// true. Returns their number: 0, without a call, if there are fewer. An aligned integer of 1, 2, 4 or 8 bytes
    /// changes by one atomic operation; if somebody else changes it meanwhile, `change` is called again.
    pub fn update(
        &self,
        offset: usize,
        bytes: &mut [u8],
        mut change: impl FnMut(&mut [u8]) -> bool,
    ) -> usize {
        /// The loop for one type of integers.
        macro_rules! update_integer {
            ($Atomic:ty, $Integer:ty, $at:expr) => {{
                // SAFETY: as for `byte`: the bytes are within the memory, which was checked, and aligned, which was
                // checked too. Every bit pattern is a valid integer.
                let place: &$Atomic = unsafe { $at.cast().as_ref() };
                let mut found = place.load(Ordering::Acquire);
                loop {
                    bytes.copy_from_slice(&found.to_ne_bytes());
                    if !change(bytes) {
                        break;
                    }
                    let Some(new) = bytes.first_chunk() else { break };
                    let new = <$Integer>::from_ne_bytes(*new);
                    let (both, load) = (Ordering::AcqRel, Ordering::Acquire);
                    match place.compare_exchange_weak(found, new, both, load) {
                        Ok(_) => break,
                        Err(other) => found = other,
                    }
                }
            }};
        }
        let length = bytes.len();
        if length == 0 || self.count(offset, length) < length {
            return 0;
        }
        // SAFETY: the bytes from `offset` on are in the range, which is within the memory.
        let at = unsafe { self.whole.base.add(self.range.start + offset) };
        let is_aligned = at.addr().get().is_multiple_of(length);
        match length {
            1 => update_integer!(AtomicU8, u8, at),
            2 if is_aligned => update_integer!(AtomicU16, u16, at),
            4 if is_aligned => update_integer!(AtomicU32, u32, at),
            8 if is_aligned => update_integer!(AtomicU64, u64, at),
            _ => {
                self.read(offset, bytes);
                if change(bytes) {
                    self.write(offset, bytes);
                }
            }
        }
        length
    }

    fn count(&self, offset: usize, wanted: usize) -> usize {
        wanted.min(self.len().saturating_sub(offset))
    }

    /// The byte at an index of the whole.
    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.whole.length, "byte {at} of {}", self.whole.length);
        // SAFETY: the byte is within the memory (checked above), which is valid as long as `whole` exists, and so
        // as long as this borrow. All accesses of this process are atomic or ordered, by the constructor's
        // contract.
        unsafe { self.whole.base.add(at).cast().as_ref() }
    }

    /// The word at an index of the whole, if it is aligned and within the next `left` bytes.
    fn word(&self, at: usize, left: usize) -> Option<&AtomicU64> {
        let is_within = left >= WORD && at.checked_add(WORD)? <= self.whole.length;
        let address = self.whole.base.addr().get().checked_add(at)?;
        if !is_within || !address.is_multiple_of(WORD) {
            return None;
        }
        // SAFETY: as for `byte`: the eight bytes are within the memory, and aligned for a word. Every bit pattern
        // is a valid word.
        Some(unsafe { self.whole.base.add(at).cast().as_ref() })
    }
}

impl fmt::Debug for ForeignMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.whole.base.addr().get() + self.range.start;
        write!(f, "ForeignMemory({} bytes at {first:#x})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Frees the memory, and notes it.
    struct Owner(usize, usize, Arc<AtomicBool>);

    impl Drop for Owner {
        fn drop(&mut self) {
            let slice = std::ptr::slice_from_raw_parts_mut(self.0 as *mut u8, self.1);
            // SAFETY: `memory` leaked this box, and the handles are gone.
            drop(unsafe { Box::from_raw(slice) });
            self.2.store(true, Ordering::Relaxed);
        }
    }

    fn memory(bytes: Vec<u8>) -> (ForeignMemory, Arc<AtomicBool>) {
        let (length, freed) = (bytes.len(), Arc::new(AtomicBool::new(false)));
        let base = Box::into_raw(bytes.into_boxed_slice()).cast::<u8>();
        let owner = Owner(base.expose_provenance(), length, freed.clone());
        // SAFETY: the leaked box is valid until the owner frees it, and nobody else knows it.
        (unsafe { ForeignMemory::new(NonNull::new(base).unwrap(), length, owner) }, freed)
    }

    /// Others change the integers by atomics of their own meanwhile.
    #[test]
    fn aligned_integers_are_updated_atomically() {
        const TIMES: u64 = 20_000;
        fn add<const N: usize>(memory: &ForeignMemory, at: usize) {
            let mut bytes = [0; N];
            let increment = |bytes: &mut [u8]| {
                let (value, carry) = bytes[0].overflowing_add(1);
                bytes[0] = value;
                if carry && N > 1 {
                    bytes[1] = bytes[1].wrapping_add(1);
                }
                true
            };
            assert_eq!(memory.update(at, &mut bytes, increment), N);
        }
        let (memory, _) = memory(vec![0; 32]);
        let begin = memory.as_ptr().addr().get().next_multiple_of(8) - memory.as_ptr().addr().get();
        let (two, four, eight) = (begin, begin + 4, begin + 8);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..TIMES {
                        add::<2>(&memory, two);
                        add::<4>(&memory, four);
                        add::<8>(&memory, eight);
                    }
                });
            }
        });
        for at in [two, four, eight] {
            let mut value = [0; 2];
            memory.read(at, &mut value);
            assert_eq!(u64::from(u16::from_le_bytes(value)), 2 * TIMES, "at {at}");
        }
    }

    #[test]
    fn update_that_changes_nothing_or_reaches_beyond_the_end_writes_nothing() {
        let (memory, _) = memory(vec![7; 16]);
        let mut calls = 0;
        for length in [1, 2, 3, 4, 8, 16] {
            let keep = |bytes: &mut [u8]| {
                calls += 1;
                bytes.fill(9);
                false
            };
            assert_eq!(memory.update(0, &mut vec![0; length], keep), length);
        }
        assert_eq!(calls, 6);
        let never = |_: &mut [u8]| panic!("called");
        assert_eq!(memory.update(13, &mut [0; 4], never), 0);
        assert_eq!(memory.update(usize::MAX, &mut [0; 4], never), 0);
        let mut bytes = [0; 16];
        memory.read(0, &mut bytes);
        assert_eq!(bytes, [7; 16]);
        let change = |bytes: &mut [u8]| {
            bytes.fill(8);
            true
        };
        assert_eq!(memory.update(1, &mut [0; 3], change), 3);
        memory.read(0, &mut bytes);
        assert_eq!(bytes[..5], [7, 8, 8, 8, 7]);
    }

    #[test]
    fn foreign_bytes_are_read_and_written_at_every_offset() {
        let original: Vec<u8> = (0..40).collect();
        for begin in 0..=40 {
            for end in begin..=40 {
                let (memory, _) = memory(original.clone());
                let mut bytes = vec![0xff; end - begin];
                assert_eq!(memory.read(begin, &mut bytes), end - begin);
                assert_eq!(bytes, original[begin..end]);
                assert_eq!(memory.write(begin, &vec![0xaa; end - begin]), end - begin);
                let mut after = [0; 40];
                memory.read(0, &mut after);
                let mut expected = original.clone();
                expected[begin..end].fill(0xaa);
                assert_eq!(after[..], expected);
            }
        }
    }

    #[test]
    fn accesses_end_at_the_end_of_a_slice() {
        let (memory, _) = memory((0..40).collect());
        let slice = memory.slice(5..20);
        assert_eq!(
            (slice.len(), slice.slice(10..99).len(), slice.slice(99..100).len()),
            (15, 5, 0)
        );
        let mut bytes = [0; 30];
        assert_eq!(slice.read(10, &mut bytes), 5);
        assert_eq!(bytes[..6], [15, 16, 17, 18, 19, 0]);
        assert_eq!((slice.read(15, &mut bytes), slice.read(usize::MAX, &mut bytes)), (0, 0));
        assert_eq!(slice.write(14, &[7; 9]), 1);
        memory.read(19, &mut bytes[..2]);
        assert_eq!(bytes[..2], [7, 20]);
        assert!(slice.is(&memory.slice(5..20)) && !slice.is(&memory.slice(5..21)));
    }

    #[test]
    fn owner_is_dropped_with_the_last_handle() {
        let (memory, freed) = memory(vec![1; 10]);
        let slice = memory.slice(2..4);
        drop(memory);
        assert!(!freed.load(Ordering::Relaxed));
        assert_eq!(format!("{slice:?}").split(" at ").next(), Some("ForeignMemory(2 bytes"));
        drop(slice);
        assert!(freed.load(Ordering::Relaxed));
    }
}

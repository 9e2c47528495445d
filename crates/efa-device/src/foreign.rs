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
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

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
    /// Until `owner` is dropped, the bytes are mapped, readable and writable, and no Rust reference to any of
    /// them exists. Other processes and devices may read and write them at any time; threads of this process,
    /// C code included, by atomic accesses, or ordered with those of the handles.
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, length: usize, owner: impl Any + Send + Sync) -> Self {
        let whole = Whole { base, length, _owner: Box::new(owner) };
        Self { whole: Arc::new(whole), range: 0..length }
    }

    /// The first byte, for devices that access the memory. It is valid as long as a handle exists.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: `range` is within the memory, whose bytes are one allocation or mapping.
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

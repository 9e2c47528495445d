//! Memory that a C program lends for one operation.
//!
//! ```text
//!   unsafe LentBytes::new(base, length) ─► deref, split_to, a piece, a registration: safe
//!                                                │
//!   the operation's completion ◄── all of them are dropped, and nothing accesses the bytes any more
//! ```
//!
//! A handle is an address and a length: making, moving and dropping one costs nothing, and bytes are copied like
//! those of a slice. Nobody counts the handles, so whoever makes the first one answers for the last: see
//! [`LentBytes::new`]. Memory that has an owner who can wait for the last handle is
//! [`ForeignMemory`](crate::ForeignMemory).

#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes that a C program lends for sending: nobody writes them meanwhile.
#[derive(Clone)]
pub struct LentBytes(Range);

/// Bytes that a C program lends for receiving: nobody else reads or writes them meanwhile.
pub struct LentBytesMut(Range);

#[derive(Clone, Copy)]
struct Range {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the caller of `LentBytes::new` or `LentBytesMut::new` promises that the bytes are valid for this process, not
// for one thread, until the last handle is dropped.
unsafe impl Send for Range {}

// SAFETY: as above. By a shared reference the bytes are only read.
unsafe impl Sync for Range {}

impl Range {
    /// Splits off the first `at` bytes, of at most all.
    fn split_to(&mut self, at: usize) -> Self {
        let at = at.min(self.length);
        let first = Self { base: self.base, length: at };
        // SAFETY: `at` is at most the length, so the result is within the memory or directly behind it.
        self.base = unsafe { self.base.add(at) };
        self.length -= at;
        first
    }
}

impl LentBytes {
    /// The `length` bytes from `base` on.
    ///
    /// # Safety
    /// Until the last handle is dropped, the bytes are mapped and readable, and nobody writes them. Handles are this
    /// one, its clones, what is split from them, and [regions](crate::Region) that are registered of them. Operations
    /// of the crate `efa` drop theirs before their completion, or return them with it. `length` is at most
    /// `isize::MAX`.
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, length: usize) -> Self {
        Self(Range { base, length })
    }

    /// Splits off the first `at` bytes, of at most all; `self` keeps the rest.
    #[must_use]
    pub fn split_to(&mut self, at: usize) -> Self {
        Self(self.0.split_to(at))
    }

    /// Keeps the first `length` bytes, if there are more.
    pub fn truncate(&mut self, length: usize) {
        self.0.length = self.0.length.min(length);
    }

    /// What a device needs to register the bytes.
    #[must_use]
    pub fn lending(&self) -> Lending<'_> {
        Lending { range: self.0, may_write: false, _handle: PhantomData }
    }
}

impl LentBytesMut {
    /// The `length` bytes from `base` on.
    ///
    /// # Safety
    /// Until the last handle is dropped, the bytes are mapped, readable and writable, and nobody else reads or writes
    /// them. Handles are this one, what is split from it, and [regions](crate::Region) that are registered of them.
    /// Operations of the crate `efa` drop theirs before their completion, or return them with it. `length` is at most
    /// `isize::MAX`.
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, length: usize) -> Self {
        Self(Range { base, length })
    }

    /// Splits off the first `at` bytes, of at most all; `self` keeps the rest.
    #[must_use]
    pub fn split_to(&mut self, at: usize) -> Self {
        Self(self.0.split_to(at))
    }

    /// Keeps the first `length` bytes, if there are more.
    pub fn truncate(&mut self, length: usize) {
        self.0.length = self.0.length.min(length);
    }

    /// What a device needs to register the bytes.
    #[must_use]
    pub fn lending(&self) -> Lending<'_> {
        Lending { range: self.0, may_write: true, _handle: PhantomData }
    }
}

impl Deref for LentBytes {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: the caller of `new` promises that the bytes are readable and that nobody writes them as long as this
        // handle exists, and that they are at most `isize::MAX`.
        unsafe { std::slice::from_raw_parts(self.0.base.as_ptr(), self.0.length) }
    }
}

impl Deref for LentBytesMut {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: as for `LentBytes`: others neither read nor write the bytes, and this handle writes them by an
        // exclusive reference only.
        unsafe { std::slice::from_raw_parts(self.0.base.as_ptr(), self.0.length) }
    }
}

impl DerefMut for LentBytesMut {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the caller of `new` promises that the bytes are writable and that nobody else accesses them as long
        // as this handle exists. Handles that were split off have other bytes.
        unsafe { std::slice::from_raw_parts_mut(self.0.base.as_ptr(), self.0.length) }
    }
}

impl fmt::Debug for LentBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LentBytes({} bytes at {:p})", self.0.length, self.0.base)
    }
}

impl fmt::Debug for LentBytesMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LentBytesMut({} bytes at {:p})", self.0.length, self.0.base)
    }
}

/// Lent memory as a device registers it ([`QueuePair::register_lent`](crate::QueuePair::register_lent)).
///
/// A device that keeps the address keeps a handle: by the promise of [`LentBytes::new`] and [`LentBytesMut::new`] the
/// memory is valid until the region is dropped or [revoked](crate::Region::revoke), after which the device doesn't access
/// it any more.
#[derive(Clone, Copy)]
pub struct Lending<'a> {
    range: Range,
    may_write: bool,
    _handle: PhantomData<&'a [u8]>,
}

impl Lending<'_> {
    /// The first byte.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.range.base
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.length
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.length == 0
    }

    /// Whether the device may write the memory.
    #[must_use]
    pub fn may_write(&self) -> bool {
        self.may_write
    }
}

impl fmt::Debug for Lending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lending")
            .field("length", &self.len())
            .field("may_write", &self.may_write)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lent_bytes_are_read_where_they_are_and_split_at_every_position() {
        let bytes: [u8; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        for at in 0..=12 {
            // SAFETY: `bytes` outlives the handles, and nobody writes it.
            let mut rest = unsafe { LentBytes::new(NonNull::from(&bytes).cast(), 10) };
            assert_eq!(rest.as_ptr(), bytes.as_ptr());
            let middle = at.min(10);
            let first = rest.split_to(at);
            assert_eq!((&first[..], &rest[..]), (&bytes[..middle], &bytes[middle..]));
            let mut short = first.clone();
            short.truncate(3);
            assert_eq!(short[..], bytes[..middle.min(3)]);
            assert!(!first.lending().may_write() && first.lending().len() == middle);
        }
    }

    #[test]
    fn lent_bytes_are_written_where_they_are() {
        let mut bytes = [0_u8; 8];
        {
            // SAFETY: `bytes` outlives the handles and is accessed by nobody else meanwhile.
            let mut rest = unsafe { LentBytesMut::new(NonNull::from(&mut bytes).cast(), 8) };
            let mut first = rest.split_to(3);
            first.fill(1);
            rest[4] = 2;
            rest.truncate(4);
            rest.fill(3);
            assert!(rest.lending().may_write() && !rest.lending().is_empty());
            assert_eq!(rest.lending().as_ptr().as_ptr().cast_const(), rest.as_ptr());
        }
        assert_eq!(bytes, [1, 1, 1, 3, 3, 3, 3, 2]);
    }

    #[test]
    fn no_lent_bytes_need_no_memory() {
        // SAFETY: no byte is lent.
        let mut none = unsafe { LentBytesMut::new(NonNull::dangling(), 0) };
        assert!(none.is_empty() && none.split_to(1).is_empty());
        assert!(format!("{none:?}").starts_with("LentBytesMut(0 bytes at "));
    }
}

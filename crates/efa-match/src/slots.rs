//! A table whose entries keep their index, with a free list through unused entries.
//!
//! Not `slab`: the queues of `queues.rs` link entries of one slice, which a slab doesn't expose, and the
//! free list shares a field with their links. The limits on `post` and on matches in
//! `benches/instructions.rs` hold its cost.

use std::ops::{Deref, DerefMut};

use crate::queues::{MAX_ENTRIES, NIL};

/// An entry that holds the index of the next free entry while it is unused.
pub(crate) trait Reusable {
    fn next_free(&mut self) -> &mut u32;
}

/// All entries, unused ones included: the caller must know whether an index is in use.
#[derive(Debug, Clone)]
pub(crate) struct Slots<T> {
    all: Vec<T>,
    free: u32,
    in_use: usize,
}

impl<T: Reusable> Slots<T> {
    pub(crate) fn new() -> Self {
        Self { all: Vec::new(), free: NIL, in_use: 0 }
    }

    /// Reserves nothing if there is no memory for so many.
    pub(crate) fn reserve(&mut self, additional: usize) {
        let wanted = self.in_use.saturating_add(additional);
        // Entries that weren't reserved are allocated when they are needed.
        let _ = self.all.try_reserve(wanted.saturating_sub(self.all.len()));
    }

    /// Number of entries in use.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Whether [`take`](Self::take) may be called.
    #[inline]
    pub(crate) fn has_free(&self) -> bool {
        // NIL is never an index; the comparison also spares `take` its bounds check.
        (self.free as usize) < self.all.len()
    }

    /// Appends an unused entry.
    pub(crate) fn add_free(&mut self, entry: T) {
        assert!(self.all.len() < MAX_ENTRIES, "at most {MAX_ENTRIES} entries");
        let index = self.all.len() as u32;
        self.all.push(entry);
        *self.all[index as usize].next_free() = std::mem::replace(&mut self.free, index);
    }

    /// Takes an unused entry for use; there must be one ([`has_free`](Self::has_free)).
    #[inline]
    pub(crate) fn take(&mut self) -> u32 {
        self.in_use += 1;
        let index = self.free;
        self.free = *self.all[index as usize].next_free();
        index
    }

    /// Makes the entry unused.
    #[inline]
    pub(crate) fn free(&mut self, index: u32) {
        self.in_use -= 1;
        *self.all[index as usize].next_free() = std::mem::replace(&mut self.free, index);
    }
}

impl<T> Deref for Slots<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.all
    }
}

impl<T> DerefMut for Slots<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.all
    }
}

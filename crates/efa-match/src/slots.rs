//! Numbered places that are used again: entries keep their index for as long as they are wanted.

use std::ops::{Deref, DerefMut};

use crate::queues::{MAX_ENTRIES, NIL};

/// An entry that holds the number of the next free place while it isn't in use itself.
pub(crate) trait Reusable {
    fn next_free(&mut self) -> &mut u32;
}

/// The entries, free ones included: who looks at a place must know whether it is in use.
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

    pub(crate) fn reserve(&mut self, additional: usize) {
        let wanted = self.in_use + additional;
        self.all.reserve(wanted.saturating_sub(self.all.len()));
    }

    /// How many are in use.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Whether [`take`](Self::take) finds a place.
    #[inline]
    pub(crate) fn has_free(&self) -> bool {
        // NIL is never an index, and of any other the compiler learns that it is one.
        (self.free as usize) < self.all.len()
    }

    /// Makes a free place with something in it.
    pub(crate) fn add_free(&mut self, entry: T) {
        assert!(self.all.len() < MAX_ENTRIES, "no more than {MAX_ENTRIES} fit");
        let index = self.all.len() as u32;
        self.all.push(entry);
        *self.all[index as usize].next_free() = std::mem::replace(&mut self.free, index);
    }

    /// The index of a free place, no longer free, to write an entry in. There must be one.
    #[inline]
    pub(crate) fn take(&mut self) -> u32 {
        self.in_use += 1;
        let index = self.free;
        self.free = *self.all[index as usize].next_free();
        index
    }

    /// Lets the place be used again.
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

//! Numbered places that are used again: entries keep their index for as long as they are wanted.

use std::ops::{Deref, DerefMut};

use crate::queues::MAX_ENTRIES;

/// The entries, free ones included: whoever looks at a place knows whether it is in use.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    all: Vec<T>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Self {
        Self { all: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn reserve(&mut self, additional: usize) {
        self.all.reserve(additional);
        self.free.reserve(self.all.len() + additional);
    }

    /// How many are in use.
    pub(crate) fn in_use(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Puts an entry, made from what lies in its place now, and tells its index.
    #[inline]
    pub(crate) fn put(&mut self, make: impl FnOnce(Option<&T>) -> T) -> u32 {
        if let Some(index) = self.free.pop() {
            let place = &mut self.all[index as usize];
            *place = make(Some(place));
            return index;
        }
        assert!(self.all.len() < MAX_ENTRIES, "indexes are 32 bits wide");
        self.all.push(make(None));
        (self.all.len() - 1) as u32
    }

    /// Lets the place be used again.
    #[inline]
    pub(crate) fn free(&mut self, index: u32) {
        self.free.push(index);
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

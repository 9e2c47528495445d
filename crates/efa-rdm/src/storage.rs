//! Memory that is used again: a [`Table`], whose entries are found by index and whose free slots are taken
//! first, and a [`Pool`] of free buffers, which shrinks when they aren't used.

#[derive(Debug)]
enum Entry<T> {
    /// The index of the next free entry.
    Free(u32),
    Live(T),
}

/// A table that grows on demand.
#[derive(Debug)]
pub(crate) struct Table<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    live: usize,
}

const NONE: u32 = u32::MAX;

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), free: NONE, live: 0 }
    }

    /// Entries in use.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Adds an entry and returns its index. A table has fewer than 2³² - 1 entries.
    #[inline(always)]
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let vacancy = self.vacancy();
        let index = vacancy.index();
        vacancy.fill(value);
        index
    }

    /// The slot of the next entry, which knows its index before it is filled.
    #[inline(always)]
    pub(crate) fn vacancy(&mut self) -> Vacancy<'_, T> {
        if self.free == NONE {
            self.grow();
        }
        let Self { entries, free, live } = self;
        let index = *free;
        let entry = &mut entries[index as usize];
        let next = match *entry {
            Entry::Free(next) => next,
            // Can't occur: live entries aren't on the free list.
            Entry::Live(_) => NONE,
        };
        Vacancy { entry, free, live, index, next }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.entries.push(Entry::Free(NONE));
        self.free = self.entries.len() as u32 - 1;
    }

    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        match self.entries.get(index as usize)? {
            Entry::Live(value) => Some(value),
            Entry::Free(_) => None,
        }
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.entries.get_mut(index as usize)? {
            Entry::Live(value) => Some(value),
            Entry::Free(_) => None,
        }
    }

    #[inline(always)]
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?;
        if matches!(entry, Entry::Free(_)) {
            return None;
        }
        let entry = core::mem::replace(entry, Entry::Free(self.free));
        self.free = index;
        self.live -= 1;
        match entry {
            Entry::Live(value) => Some(value),
            Entry::Free(_) => None,
        }
    }

    /// Takes a value out of an entry by `wanted` and removes the entry, without a drop of what is left in it. If `wanted`
    /// returns `None`, the entry stays.
    #[inline(always)]
    pub(crate) fn take<U>(
        &mut self,
        index: usize,
        wanted: impl FnOnce(&mut T) -> Option<U>,
    ) -> Option<U> {
        let entry = self.entries.get_mut(index)?;
        let Entry::Live(value) = entry else { return None };
        let taken = wanted(value)?;
        core::mem::forget(core::mem::replace(entry, Entry::Free(self.free)));
        self.free = index as u32;
        self.live -= 1;
        Some(taken)
    }

    /// All entries with their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| match entry {
            Entry::Live(value) => Some((index as u32, value)),
            Entry::Free(_) => None,
        })
    }

    /// All entries.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|entry| match entry {
            Entry::Live(value) => Some(value),
            Entry::Free(_) => None,
        })
    }
}

/// A free slot.
#[derive(Debug)]
pub(crate) struct Vacancy<'a, T> {
    entry: &'a mut Entry<T>,
    free: &'a mut u32,
    live: &'a mut usize,
    index: u32,
    next: u32,
}

impl<T> Vacancy<'_, T> {
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    #[inline(always)]
    pub(crate) fn fill(self, value: T) {
        *self.free = self.next;
        *self.live += 1;
        // A free entry needs no drop; without `forget` the compiler adds one.
        core::mem::forget(core::mem::replace(self.entry, Entry::Live(value)));
    }
}

/// Free buffers. At the end of each period the pool drops as many as were never taken in it.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    /// The first `len` slots hold a buffer. (With a `Vec<T>` each `put` would contain a call to the
    /// allocator, and save registers for it.)
    slots: Vec<Option<T>>,
    len: usize,
    /// The smallest `len` of this period.
    low: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), len: 0, low: 0 }
    }
}

impl<T> Pool<T> {
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        self.low = self.low.min(self.len);
        self.slots.get_mut(self.len)?.take()
    }

    #[inline(always)]
    pub(crate) fn put(&mut self, buffer: T) {
        if let Err(buffer) = self.put_at_once(buffer) {
            self.grow(buffer);
        }
    }

    /// Puts a buffer back if there is a free slot; returns it if the pool would have to allocate.
    #[inline(always)]
    pub(crate) fn put_at_once(&mut self, buffer: T) -> Result<(), T> {
        let Some(slot) = self.slots.get_mut(self.len) else { return Err(buffer) };
        // The slot is empty, so no buffer is leaked; without `forget` the compiler adds a drop.
        core::mem::forget(slot.replace(buffer));
        self.len += 1;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, buffer: T) {
        self.slots.push(Some(buffer));
        self.len += 1;
    }

    /// Passes up to `count` buffers to `to`, until it refuses one, which stays in the pool. Returns the
    /// number of buffers passed, and the error of the one refused.
    #[inline(always)]
    pub(crate) fn give<E>(
        &mut self,
        count: usize,
        mut to: impl FnMut(T) -> Result<(), (T, E)>,
    ) -> (usize, Option<E>) {
        let mut given = 0;
        let mut refused = None;
        let first = self.len.saturating_sub(count);
        for slot in self.slots[first..self.len].iter_mut().rev() {
            let Some(buffer) = slot.take() else { break };
            if let Err((buffer, error)) = to(buffer) {
                *slot = Some(buffer);
                refused = Some(error);
                break;
            }
            given += 1;
        }
        self.len -= given;
        self.low = self.low.min(self.len);
        (given, refused)
    }

    /// Ends a period: drops the buffers that were never taken in it.
    pub(crate) fn trim(&mut self) {
        let keep = self.len - self.low;
        self.slots.truncate(keep);
        self.slots.shrink_to(keep);
        (self.len, self.low) = (keep, keep);
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_trim_drops_buffers_not_taken_in_the_period() {
        let mut pool = Pool::default();
        for i in 0..10 {
            pool.put(i);
        }
        pool.trim();
        assert_eq!(pool.len(), 10, "the first period began empty");
        for _ in 0..3 {
            let taken: Vec<_> = (0..4).filter_map(|_| pool.take()).collect();
            taken.into_iter().for_each(|buffer| pool.put(buffer));
        }
        pool.trim();
        assert_eq!(pool.len(), 4);
        pool.trim();
        assert_eq!(pool.len(), 0, "an idle period drops everything");
        assert_eq!(pool.take(), None);
    }
}

//! A table whose entries are found by index; the slots of removed entries are used again.

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

    /// Takes a value out of an entry by `wanted` and removes the entry. If `wanted` returns `None`, the
    /// entry stays.
    #[inline(always)]
    pub(crate) fn take<U>(
        &mut self,
        index: usize,
        wanted: impl FnOnce(&mut T) -> Option<U>,
    ) -> Option<U> {
        let entry = self.entries.get_mut(index)?;
        let Entry::Live(value) = entry else { return None };
        let taken = wanted(value)?;
        *entry = Entry::Free(self.free);
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

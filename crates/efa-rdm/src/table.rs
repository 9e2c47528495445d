//! Entries that are found by their index, whose places are used again.

#[derive(Debug)]
enum Entry<T> {
    /// The next free one.
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

    /// The index that the next entry will have.
    #[inline]
    pub(crate) fn next_index(&self) -> u32 {
        if self.free == NONE { self.entries.len() as u32 } else { self.free }
    }

    /// Adds an entry; gives its index. There are fewer than 2³² - 1.
    #[inline(always)]
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(vacancy) = self.vacancy() {
            return vacancy.insert(value);
        }
        self.live += 1;
        self.entries.push(Entry::Live(value));
        self.entries.len() as u32 - 1
    }

    /// The place of the next entry, if the table needn't grow for it.
    #[inline(always)]
    pub(crate) fn vacancy(&mut self) -> Option<Vacancy<'_, T>> {
        let index = self.free;
        match *self.entries.get(index as usize)? {
            Entry::Free(_) => Some(Vacancy { table: self, index }),
            Entry::Live(_) => None,
        }
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
        let value = self.take_out(index, self.free)?;
        self.free = index;
        Some(value)
    }

    /// Takes an entry out whose index somebody still holds: it is not used again.
    pub(crate) fn retire(&mut self, index: u32) -> Option<T> {
        self.take_out(index, NONE)
    }

    /// Takes an entry out, whose place then has `next` as the next free one.
    #[inline(always)]
    fn take_out(&mut self, index: u32, next: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?;
        if matches!(entry, Entry::Free(_)) {
            return None;
        }
        let entry = core::mem::replace(entry, Entry::Free(next));
        self.live -= 1;
        match entry {
            Entry::Live(value) => Some(value),
            Entry::Free(_) => None,
        }
    }

    /// Takes what is wanted out of an entry, if it has it, and the entry with it.
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

/// A place for an entry.
#[derive(Debug)]
pub(crate) struct Vacancy<'a, T> {
    table: &'a mut Table<T>,
    index: u32,
}

impl<T> Vacancy<'_, T> {
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    #[inline(always)]
    pub(crate) fn insert(self, value: T) -> u32 {
        let Table { entries, free, live } = self.table;
        let entry = &mut entries[self.index as usize];
        if let Entry::Free(next) = *entry {
            *free = next;
        }
        *live += 1;
        // A free entry has nothing to be dropped, which the compiler doesn't see.
        core::mem::forget(core::mem::replace(entry, Entry::Live(value)));
        self.index
    }
}

//! The reorder window of one peer: messages leave it in the order of their `msg_id` (protocol v4, section
//! 3.2, first implementation tip; ids wrap at 2^32).
//!
//! ```text
//!        old          expected          + size                  + limit
//!   ──────────────────────┬────────────────┬───────────────────────┬──────────────
//!    Old: returned      │ Kept in a ring │ Kept in an ordered map│ Beyond:
//!                      InOrder                                     │ returned
//! ```
//!
//! The ring and the map are allocated for the first message that arrives ahead of the expected one, so
//! that a peer whose messages arrive in order uses no heap.

use std::collections::BTreeMap;

/// Default number of ids ahead of the expected one that a window keeps.
const DEFAULT_LIMIT: u32 = 1 << 16;
/// Ids this far ahead or farther count as old ones.
const HALF: u32 = 1 << 31;
/// Slots of the ring at first; it grows up to the window's size.
const FIRST_SLOTS: u32 = 16;

/// Restores the order of one peer's messages, by their `msg_id`.
#[derive(Debug)]
pub struct Window<T> {
    expected: u32,
    size: u32,
    limit: u32,
    /// Number of items in `ahead`.
    len: u32,
    ahead: Option<Box<Ahead<T>>>,
}

const _: () = assert!(size_of::<Window<u64>>() <= 24);

/// The result of passing an item to a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an item that was not kept is returned"]
pub enum Admit<T> {
    /// It is the expected one. Process it, then everything that [`Window::pop_ready`] returns.
    InOrder(T),
    /// It is ahead of the expected one, and kept until those before it have arrived.
    Kept,
    /// It is ahead, and an item with this id is kept already (see [`Window::get_mut`]).
    Occupied(T),
    /// Its id is before the expected one.
    Old(T),
    /// Its id is the window's limit or more ahead.
    Beyond(T),
}

/// The items ahead of the expected one. Each is in one of the two stores.
#[derive(Debug)]
struct Ahead<T> {
    /// Items whose id was less than `slots.len()` ahead when they arrived, by the id's low bits. The
    /// length is zero or a power of two.
    slots: Vec<Option<T>>,
    /// Items that were the window's size or more ahead when they arrived.
    far: BTreeMap<u32, T>,
    /// The bits of an id that select its slot.
    mask: u32,
    /// An item less than this far ahead can only be in `slots`.
    near: u32,
}

impl<T> Ahead<T> {
    #[inline]
    fn slot(&mut self, msg_id: u32) -> Option<&mut Option<T>> {
        self.slots.get_mut((msg_id & self.mask) as usize)
    }

    fn get_mut(&mut self, msg_id: u32, ahead: u32) -> Option<&mut T> {
        if self.far.contains_key(&msg_id) {
            return self.far.get_mut(&msg_id);
        }
        if ahead as usize >= self.slots.len() {
            return None;
        }
        self.slot(msg_id)?.as_mut()
    }

    fn update_near(&mut self) {
        self.near = if self.far.is_empty() { self.slots.len() as u32 } else { 0 };
    }

    /// Grows the ring to hold an id `ahead` of `expected`; `ahead` is less than `size`. The ring never exceeds
    /// `size`, so that all its ids are below the limit.
    fn grow(&mut self, expected: u32, ahead: u32, size: u32) {
        let longer = (ahead + 1).next_power_of_two().max(FIRST_SLOTS).min(size);
        let mut old = std::mem::take(&mut self.slots);
        self.slots.resize_with(longer as usize, || None);
        let old_mask = std::mem::replace(&mut self.mask, longer - 1);
        for ahead in 0..old.len() as u32 {
            let msg_id = expected.wrapping_add(ahead);
            self.slots[(msg_id & self.mask) as usize] = old[(msg_id & old_mask) as usize].take();
        }
    }
}

impl<T> Window<T> {
    /// A window that keeps items less than `size` ids ahead in a ring (rounded down to a power of two), and
    /// those less than 65,536 ids ahead, or `size` if that is more, in a map.
    #[must_use]
    pub fn new(size: u32) -> Self {
        let size = size.clamp(1, HALF);
        let limit = size.max(DEFAULT_LIMIT);
        Self { expected: 0, size: 1 << size.ilog2(), limit, len: 0, ahead: None }
    }

    /// The same window with another limit on how many ids ahead items are kept, at least its ring and at
    /// most 2^31. This bounds the memory that a peer can make the window use.
    #[must_use]
    pub fn with_limit(self, limit: u32) -> Self {
        Self { limit: limit.clamp(self.size, HALF), ..self }
    }

    /// The same window, empty, expecting `msg_id` first.
    #[must_use]
    pub fn starting_at(self, msg_id: u32) -> Self {
        Self { expected: msg_id, len: 0, ahead: None, ..self }
    }

    /// The id of the next item in order.
    #[must_use]
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// Whether this id is before the expected one.
    #[inline]
    #[must_use]
    pub fn is_behind(&self, msg_id: u32) -> bool {
        msg_id.wrapping_sub(self.expected) >= HALF
    }

    /// Number of items that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether no item is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The fast path of [`admit`](Self::admit) and [`pop_ready`](Self::pop_ready) for items that arrive in
    /// order: accepts this id if it is the expected one and no item is kept.
    #[inline]
    pub fn pass(&mut self, msg_id: u32) -> bool {
        let passes = self.passes(msg_id);
        if passes {
            self.expected = msg_id.wrapping_add(1);
        }
        passes
    }

    /// Whether [`pass`](Self::pass) accepts this id.
    #[must_use]
    #[inline]
    pub fn passes(&self, msg_id: u32) -> bool {
        msg_id == self.expected && self.len == 0
    }

    /// An item with this id arrived.
    #[inline]
    pub fn admit(&mut self, msg_id: u32, item: T) -> Admit<T> {
        let ahead = msg_id.wrapping_sub(self.expected);
        if ahead == 0 {
            if self.len == 0 || self.free_slot(msg_id, 0).is_some() {
                self.expected = msg_id.wrapping_add(1);
                return Admit::InOrder(item);
            }
        } else if let Some(slot) = self.free_slot(msg_id, ahead) {
            *slot = Some(item);
            self.len += 1;
            return Admit::Kept;
        }
        self.admit_slow(msg_id, item)
    }

    /// The empty slot for this id, if the ring reaches that far and no item with this id can be in the map.
    #[inline]
    fn free_slot(&mut self, msg_id: u32, ahead: u32) -> Option<&mut Option<T>> {
        let store = self.ahead.as_mut()?;
        if ahead >= store.near {
            return None;
        }
        store.slot(msg_id).filter(|slot| slot.is_none())
    }

    /// The slow path of [`admit`](Self::admit).
    #[cold]
    #[inline(never)]
    fn admit_slow(&mut self, msg_id: u32, item: T) -> Admit<T> {
        let ahead = msg_id.wrapping_sub(self.expected);
        if ahead >= self.limit {
            return if self.is_behind(msg_id) { Admit::Old(item) } else { Admit::Beyond(item) };
        }
        if self.get_mut(msg_id).is_some() {
            return Admit::Occupied(item);
        }
        if ahead == 0 {
            self.expected = msg_id.wrapping_add(1);
            return Admit::InOrder(item);
        }
        let store = self.ahead.get_or_insert_with(|| {
            Box::new(Ahead { slots: Vec::new(), far: BTreeMap::new(), mask: 0, near: 0 })
        });
        if ahead >= self.size {
            store.far.insert(msg_id, item);
        } else {
            if ahead as usize >= store.slots.len() {
                store.grow(self.expected, ahead, self.size);
            }
            store.slots[(msg_id & store.mask) as usize] = Some(item);
        }
        store.update_near();
        self.len += 1;
        Admit::Kept
    }

    /// The item with this id, if it is kept.
    pub fn get_mut(&mut self, msg_id: u32) -> Option<&mut T> {
        let ahead = msg_id.wrapping_sub(self.expected);
        self.ahead.as_mut()?.get_mut(msg_id, ahead)
    }

    /// The next item in order, if it has arrived: call this after [`Admit::InOrder`] until it returns `None`.
    #[inline]
    pub fn pop_ready(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let store = self.ahead.as_mut()?;
        match store.slot(self.expected).and_then(Option::take) {
            Some(item) => {
                self.len -= 1;
                self.expected = self.expected.wrapping_add(1);
                Some(item)
            }
            None if store.near != 0 => None,
            None => self.pop_far(),
        }
    }

    #[cold]
    #[inline(never)]
    fn pop_far(&mut self) -> Option<T> {
        let store = self.ahead.as_mut()?;
        let item = store.far.remove(&self.expected)?;
        store.update_near();
        self.len -= 1;
        self.expected = self.expected.wrapping_add(1);
        Some(item)
    }

    /// Removes all items that are kept, with their ids and in the order of these, and frees the memory. The
    /// expected id stays.
    pub fn drain(&mut self) -> impl Iterator<Item = (u32, T)> + use<T> {
        let expected = self.expected;
        let mut items = Vec::with_capacity(self.len());
        self.len = 0;
        if let Some(store) = self.ahead.take() {
            let last = store.slots.len().wrapping_sub(1);
            let place = expected as usize & last;
            for (at, slot) in store.slots.into_iter().enumerate() {
                let ahead = at.wrapping_sub(place) & last;
                items.extend(slot.map(|item| (ahead as u32, item)));
            }
            let far = store.far.into_iter();
            items.extend(far.map(|(msg_id, item)| (msg_id.wrapping_sub(expected), item)));
        }
        items.sort_unstable_by_key(|&(ahead, _)| ahead);
        items.into_iter().map(move |(ahead, item)| (expected.wrapping_add(ahead), item))
    }
}

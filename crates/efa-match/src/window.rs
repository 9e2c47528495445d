//! The `msg_id` window of one peer: messages leave it in the order in which they were sent
//! (protocol v4, section 3.2, first implementation tip; the ids wrap at 2^32).
//!
//! ```text
//!        old          expected          + size                  + limit
//!   ──────────────────────┬────────────────┬───────────────────────┬──────────────
//!    Old: given back      │ Kept in a ring │ Kept in an ordered map│ Beyond: given
//!                      InOrder                                     │ back
//! ```
//!
//! The ring and the map are made when the first message comes early, so that a peer whose
//! messages come in order, or that sends none, costs no heap.

use std::collections::BTreeMap;

/// Ids ahead of the expected one that a window keeps unless told otherwise.
const DEFAULT_LIMIT: u32 = 1 << 16;
/// Ids that are this far ahead or farther are understood as old ones.
const HALF: u32 = 1 << 31;
/// Slots that the ring starts with; it grows to the window's size when it must.
const FIRST_SLOTS: u32 = 16;

/// Puts the messages of one peer in order, by their `msg_id`.
#[derive(Debug)]
pub struct Window<T> {
    expected: u32,
    size: u32,
    limit: u32,
    /// Items in `early`.
    len: u32,
    early: Option<Box<Early<T>>>,
}

const _: () = assert!(size_of::<Window<u64>>() <= 24);

/// What a window made of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an item that wasn't kept comes back in here"]
pub enum Admit<T> {
    /// It is the expected one. Process it, then what [`Window::pop_ready`] gives.
    InOrder(T),
    /// It came early and is kept until those before it have come.
    Kept,
    /// It came early, and an item with this id is kept already (see [`Window::get_mut`]).
    Occupied(T),
    /// Its id is before the expected one.
    Old(T),
    /// Its id is too far ahead, by the window's limit.
    Beyond(T),
}

/// The items that came early. Each is in one of the two stores.
#[derive(Debug)]
struct Early<T> {
    /// Items whose id was less than `slots.len()` ahead when they came, by the id's low bits. The
    /// length is zero or a power of two.
    slots: Vec<Option<T>>,
    /// Items that were farther ahead than the window's size when they came.
    far: BTreeMap<u32, T>,
    /// The bits of an id that choose its slot.
    mask: u32,
    /// An id that is ahead by less than this can only be in `slots`.
    near: u32,
}

impl<T> Early<T> {
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

    /// Makes the ring longer, so that it reaches `ahead` ids after `expected`, which is less than
    /// `size`. It never gets longer than `size`, so that what fits in it is below the limit.
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
    /// A window that keeps early items up to `size` ids ahead in a ring (rounded up to a power of
    /// two), those up to 65,536 ids ahead, or `size` if that's more, in a map.
    pub fn new(size: u32) -> Self {
        let size = size.clamp(1, HALF).next_power_of_two();
        Self { expected: 0, size, limit: size.max(DEFAULT_LIMIT), len: 0, early: None }
    }

    /// The same window with another bound on how many ids ahead items are kept, at least its size
    /// and at most 2^31. This bounds the memory that a peer can make the window use.
    pub fn with_limit(self, limit: u32) -> Self {
        Self { limit: limit.clamp(self.size, HALF), ..self }
    }

    /// The same window, empty, expecting `msg_id` first.
    pub fn starting_at(self, msg_id: u32) -> Self {
        Self { expected: msg_id, len: 0, early: None, ..self }
    }

    /// The id of the next item in order.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// How many early items are kept.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether no early item is kept.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lets an item with this id through, if it is the expected one and nothing is kept: the whole
    /// of [`admit`](Self::admit) and [`pop_ready`](Self::pop_ready) for items that come in order.
    #[inline]
    pub fn pass(&mut self, msg_id: u32) -> bool {
        let passes = msg_id == self.expected && self.len == 0;
        if passes {
            self.expected = msg_id.wrapping_add(1);
        }
        passes
    }

    /// An item with this id came.
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
        self.admit_otherwise(msg_id, item)
    }

    /// The slot for this id, if the ring reaches that far and it's clear that no item with this
    /// id is kept.
    #[inline]
    fn free_slot(&mut self, msg_id: u32, ahead: u32) -> Option<&mut Option<T>> {
        let early = self.early.as_mut()?;
        if ahead >= early.near {
            return None;
        }
        early.slot(msg_id).filter(|slot| slot.is_none())
    }

    /// All that the short ways of [`admit`](Self::admit) leave over.
    #[cold]
    #[inline(never)]
    fn admit_otherwise(&mut self, msg_id: u32, item: T) -> Admit<T> {
        let ahead = msg_id.wrapping_sub(self.expected);
        if ahead >= self.limit {
            return if ahead >= HALF { Admit::Old(item) } else { Admit::Beyond(item) };
        }
        if self.get_mut(msg_id).is_some() {
            return Admit::Occupied(item);
        }
        if ahead == 0 {
            self.expected = msg_id.wrapping_add(1);
            return Admit::InOrder(item);
        }
        let early = self.early.get_or_insert_with(|| {
            Box::new(Early { slots: Vec::new(), far: BTreeMap::new(), mask: 0, near: 0 })
        });
        if ahead >= self.size {
            early.far.insert(msg_id, item);
        } else {
            if ahead as usize >= early.slots.len() {
                early.grow(self.expected, ahead, self.size);
            }
            early.slots[(msg_id & early.mask) as usize] = Some(item);
        }
        early.update_near();
        self.len += 1;
        Admit::Kept
    }

    /// The early item with this id, if one is kept.
    pub fn get_mut(&mut self, msg_id: u32) -> Option<&mut T> {
        let ahead = msg_id.wrapping_sub(self.expected);
        self.early.as_mut()?.get_mut(msg_id, ahead)
    }

    /// The next item in order, if it has come: call this after [`Admit::InOrder`] until it gives
    /// none.
    #[inline]
    pub fn pop_ready(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let early = self.early.as_mut()?;
        match early.slot(self.expected).and_then(Option::take) {
            Some(item) => {
                self.len -= 1;
                self.expected = self.expected.wrapping_add(1);
                Some(item)
            }
            None if early.near != 0 => None,
            None => self.pop_far(),
        }
    }

    #[cold]
    #[inline(never)]
    fn pop_far(&mut self) -> Option<T> {
        let early = self.early.as_mut()?;
        let item = early.far.remove(&self.expected)?;
        early.update_near();
        self.len -= 1;
        self.expected = self.expected.wrapping_add(1);
        Some(item)
    }

    /// Takes out all early items with their ids, in the order of these, and gives back the memory.
    /// What is expected stays.
    pub fn drain(&mut self) -> impl Iterator<Item = (u32, T)> + use<T> {
        let expected = self.expected;
        let mut items = Vec::with_capacity(self.len());
        self.len = 0;
        if let Some(early) = self.early.take() {
            let last = early.slots.len().wrapping_sub(1);
            let place = expected as usize & last;
            for (at, slot) in early.slots.into_iter().enumerate() {
                let ahead = at.wrapping_sub(place) & last;
                items.extend(slot.map(|item| (ahead as u32, item)));
            }
            let far = early.far.into_iter();
            items.extend(far.map(|(msg_id, item)| (msg_id.wrapping_sub(expected), item)));
        }
        items.sort_unstable_by_key(|&(ahead, _)| ahead);
        items.into_iter().map(move |(ahead, item)| (expected.wrapping_add(ahead), item))
    }

    /// Gives back the memory for early items if none is kept.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            self.early = None;
        }
    }
}

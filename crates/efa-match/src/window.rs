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
const FIRST_SLOTS: usize = 16;

/// Puts the messages of one peer in order, by their `msg_id`.
#[derive(Debug)]
pub struct Window<T> {
    expected: u32,
    size: u32,
    limit: u32,
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
    /// Items whose id was less than `slots.len()` ahead when they came, by the id's low bits.
    slots: Vec<Option<T>>,
    /// Items that were farther ahead than the window's size when they came.
    far: BTreeMap<u32, T>,
    len: usize,
}

impl<T> Early<T> {
    fn slot(&mut self, msg_id: u32) -> &mut Option<T> {
        let mask = self.slots.len() - 1;
        &mut self.slots[msg_id as usize & mask]
    }

    /// The item with this id, which is `ahead` ids after the expected one.
    fn get_mut(&mut self, msg_id: u32, ahead: u32) -> Option<&mut T> {
        if (ahead as usize) < self.slots.len() && self.slot(msg_id).is_some() {
            return self.slot(msg_id).as_mut();
        }
        if self.far.is_empty() { None } else { self.far.get_mut(&msg_id) }
    }

    /// Makes the ring longer, so that it reaches `ahead` ids after `expected`.
    #[cold]
    fn grow(&mut self, expected: u32, ahead: u32) {
        let longer = (ahead as usize + 1).next_power_of_two().max(FIRST_SLOTS);
        let mut old = std::mem::take(&mut self.slots);
        self.slots.resize_with(longer, || None);
        let old_mask = old.len().wrapping_sub(1);
        for ahead in 0..old.len() as u32 {
            let msg_id = expected.wrapping_add(ahead);
            *self.slot(msg_id) = old[msg_id as usize & old_mask].take();
        }
    }
}

impl<T> Window<T> {
    /// A window that keeps early items up to `size` ids ahead in a ring (rounded up to a power of
    /// two), those up to 65,536 ids ahead, or `size` if that's more, in a map.
    pub fn new(size: u32) -> Self {
        let size = size.clamp(1, HALF).next_power_of_two();
        Self { expected: 0, size, limit: size.max(DEFAULT_LIMIT), early: None }
    }

    /// The same window with another bound on how many ids ahead items are kept, at least its size
    /// and at most 2^31. This bounds the memory that a peer can make the window use.
    pub fn with_limit(self, limit: u32) -> Self {
        Self { limit: limit.clamp(self.size, HALF), ..self }
    }

    /// The same, empty, window, expecting `msg_id` first.
    pub fn starting_at(self, msg_id: u32) -> Self {
        Self { expected: msg_id, early: None, ..self }
    }

    /// The id of the next item in order.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// How many early items are kept.
    pub fn len(&self) -> usize {
        self.early.as_ref().map_or(0, |early| early.len)
    }

    /// Whether no early item is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An item with this id came.
    #[inline]
    pub fn admit(&mut self, msg_id: u32, item: T) -> Admit<T> {
        if msg_id == self.expected && self.is_empty() {
            self.expected = msg_id.wrapping_add(1);
            return Admit::InOrder(item);
        }
        self.admit_out_of_order(msg_id, item)
    }

    fn admit_out_of_order(&mut self, msg_id: u32, item: T) -> Admit<T> {
        let ahead = msg_id.wrapping_sub(self.expected);
        if ahead >= self.limit {
            return if ahead >= HALF { Admit::Old(item) } else { Admit::Beyond(item) };
        }
        let early = self.early.get_or_insert_with(|| {
            Box::new(Early { slots: Vec::new(), far: BTreeMap::new(), len: 0 })
        });
        if early.get_mut(msg_id, ahead).is_some() {
            return Admit::Occupied(item);
        }
        if ahead == 0 {
            self.expected = msg_id.wrapping_add(1);
            return Admit::InOrder(item);
        }
        if ahead < self.size {
            if ahead as usize >= early.slots.len() {
                early.grow(self.expected, ahead);
            }
            *early.slot(msg_id) = Some(item);
        } else {
            early.far.insert(msg_id, item);
        }
        early.len += 1;
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
        let early = self.early.as_mut()?;
        if early.len == 0 {
            return None;
        }
        let msg_id = self.expected;
        let ready = match early.slots.is_empty() {
            true => None,
            false => early.slot(msg_id).take(),
        };
        let ready = match ready {
            None if early.far.is_empty() => return None,
            None => early.far.remove(&msg_id)?,
            Some(item) => item,
        };
        early.len -= 1;
        self.expected = msg_id.wrapping_add(1);
        Some(ready)
    }

    /// Takes out all early items with their ids, in the order of these, and gives back the memory.
    /// What is expected stays.
    pub fn drain(&mut self) -> impl Iterator<Item = (u32, T)> + use<T> {
        let expected = self.expected;
        let mut items = Vec::new();
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

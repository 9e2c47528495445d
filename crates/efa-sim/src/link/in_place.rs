//! A queue whose entries are made where they stay.
//!
//! `VecDeque::push_back` takes an entry that was made elsewhere, by small stores, and moves it by wide loads. Such a load
//! waits until all stores before it have left the processor, those to other processors' lines included.

use std::mem;

/// First in, first out. It grows on demand.
#[derive(Debug)]
pub(crate) struct InPlace<T> {
    /// A power of two of them, or none.
    slots: Vec<Option<T>>,
    /// Index of the oldest entry.
    first: usize,
    length: usize,
}

impl<T> InPlace<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), first: 0, length: 0 }
    }

    /// With room for at least so many.
    pub(crate) fn with_capacity(slots: usize) -> Self {
        Self { slots: (0..slots.next_power_of_two()).map(|_| None).collect(), ..Self::new() }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends what `entry` returns.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: impl FnOnce() -> T) {
        if self.length == self.slots.len() {
            self.grow();
        }
        let at = self.index(self.length);
        self.length += 1;
        // An unused slot has nothing to drop, which the compiler does not see.
        mem::forget(self.slots[at].replace(entry()));
    }

    /// The oldest entry.
    #[inline(always)]
    pub(crate) fn front_mut(&mut self) -> Option<&mut T> {
        match self.length {
            0 => None,
            _ => self.slots[self.first].as_mut(),
        }
    }

    /// Removes the oldest entry.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.length = self.length.checked_sub(1)?;
        let at = self.first;
        self.first = self.index(1);
        self.slots[at].take()
    }

    /// Removes the oldest entry, and doesn't drop it: what it owned was taken out of it.
    #[inline(always)]
    pub(crate) fn forget_front(&mut self) {
        mem::forget(self.pop());
    }

    #[inline(always)]
    fn index(&self, ahead: usize) -> usize {
        (self.first + ahead) & (self.slots.len() - 1)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.slots.rotate_left(self.first);
        self.first = 0;
        let slots = (2 * self.length).max(8);
        self.slots.resize_with(slots, || None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_leave_in_the_order_of_their_arrival_however_the_queue_grows() {
        let mut queue = InPlace::new();
        let (mut pushed, mut popped) = (0, 0);
        for round in 0..100 {
            for _ in 0..round % 23 {
                queue.push(|| Box::new(pushed));
                pushed += 1;
            }
            for _ in 0..round % 19 {
                assert_eq!(queue.is_empty(), popped == pushed);
                let Some(next) = queue.pop() else { break };
                assert_eq!(*next, popped);
                popped += 1;
            }
        }
        assert!(pushed - popped > 64, "it grew while it was wrapped");
        while let Some(next) = queue.pop() {
            assert_eq!(*next, popped);
            popped += 1;
        }
        assert_eq!((popped, queue.is_empty()), (pushed, true));
    }
}

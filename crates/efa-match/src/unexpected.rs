//! Unexpected messages: one list in the order of arrival, and an index of it for each class of
//! patterns that looks for messages.
//!
//! ```text
//!   oldest                                   newest
//!     m0 ⇄ m1 ⇄ m2 ⇄ m3 ⇄ m4 ⇄ m5 ⇄ m6 ⇄ m7
//!     └─── in the index of class A ──────┘            last lookup a while ago
//!     └── in that of B ─┘                              last lookup long ago
//! ```
//!
//! A class's index holds a prefix of the list and is extended on demand. So the cost of an arriving
//! message does not depend on the number of classes, an unused class costs nothing, and a message enters
//! an index at most once.

use crate::{
    MessageId,
    class::{Class, Key},
    queues::{Front, Link, NIL, Queues},
    slots::{Reusable, Slots},
};

/// A prefix of the arrival list, by the keys of one class.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index {
    /// By the message's index.
    links: Vec<Link>,
    queues: Queues,
    /// Total number of messages that had arrived when this index was last extended.
    seen: u64,
}

impl Index {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    #[inline]
    fn contains(&self, message: u32) -> bool {
        self.links.get(message as usize).is_some_and(|link| !link.is_loose())
    }

    #[inline]
    pub(crate) fn remove(&mut self, message: u32) {
        if self.contains(message) {
            self.queues.remove(&mut self.links, message);
            self.links[message as usize].loosen();
        }
    }
}

/// An unexpected message.
#[derive(Debug, Clone, Copy)]
struct Unexpected<M> {
    tag: u64,
    source: u32,
    /// Number of times that this entry was removed.
    generation: u32,
    older: u32,
    newer: u32,
    /// The caller's handle.
    message: M,
}

impl<M> Reusable for Unexpected<M> {
    fn next_free(&mut self) -> &mut u32 {
        &mut self.newer
    }
}

// With one class in use a message takes this, a link of 16 bytes and 8 to 16 bytes of buckets.
const _: () = assert!(size_of::<Unexpected<u32>>() <= 32);
const _: () = assert!(size_of::<Unexpected<u64>>() <= 32);

/// All unexpected messages.
#[derive(Debug, Clone)]
pub(crate) struct UnexpectedMessages<M> {
    messages: Slots<Unexpected<M>>,
    oldest: u32,
    newest: u32,
    /// Total number of messages that have arrived.
    arrived: u64,
}

impl<M: Copy> UnexpectedMessages<M> {
    pub(crate) fn new() -> Self {
        Self { messages: Slots::new(), oldest: NIL, newest: NIL, arrived: 0 }
    }

    pub(crate) fn reserve(&mut self, additional: usize) {
        self.messages.reserve(additional);
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.in_use()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.newest == NIL
    }

    pub(crate) fn get(&self, index: u32) -> M {
        self.messages[index as usize].message
    }

    /// The message's index, if it still waits.
    pub(crate) fn find(&self, id: MessageId) -> Option<u32> {
        let message = self.messages.get(id.index as usize)?;
        (message.generation == id.generation).then_some(id.index)
    }

    #[inline]
    pub(crate) fn push(&mut self, source: u32, tag: u64, message: M) -> MessageId {
        let older = self.newest;
        let newer = NIL;
        if !self.messages.has_free() {
            self.messages.add_free(Unexpected {
                tag,
                source,
                generation: 0,
                older,
                newer,
                message,
            });
        }
        let index = self.messages.take();
        let entry = &mut self.messages[index as usize];
        let generation = entry.generation;
        *entry = Unexpected { tag, source, generation, older, newer, message };
        match self.messages.get_mut(older as usize) {
            Some(older) => older.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
        self.arrived += 1;
        MessageId { index, generation }
    }

    /// Whether the class's index covers all messages.
    #[inline]
    pub(crate) fn is_indexed(&self, class: &Class) -> bool {
        class.index.seen == self.arrived
    }

    /// Extends the class's index by the messages that have arrived since.
    #[inline(never)]
    pub(crate) fn extend_index(&self, class: &mut Class) {
        class.index.seen = self.arrived;
        if class.index.links.len() < self.messages.len() {
            class.index.links.resize(self.messages.len(), Link::LOOSE);
        }
        let mut first_new = NIL;
        let mut at = self.newest;
        while at != NIL && !class.index.contains(at) {
            first_new = at;
            at = self.messages[at as usize].older;
        }
        let mut at = first_new;
        while at != NIL {
            let Unexpected { source, tag, newer, .. } = self.messages[at as usize];
            if !class.index.queues.has_space() {
                class.index.queues.make_space(&mut class.index.links);
            }
            let key = class.key(source, tag);
            let front = self.front(class, &key);
            let Index { queues, links, .. } = &mut class.index;
            links[at as usize] = queues.push(links, at, key.hash, front);
            at = newer;
        }
    }

    /// The oldest message with this key in the class's index. As the index is a prefix of the list, the
    /// list has no older one; `None` may mean that the index has to be extended.
    #[inline]
    pub(crate) fn front(&self, class: &Class, key: &Key) -> Option<Front> {
        let Index { queues, links, .. } = &class.index;
        let fits = |message: &Unexpected<M>| class.fits(key, message.source, message.tag);
        queues.front(&self.messages, key.hash, fits, |at, _| links[at as usize].chain)
    }

    /// Removes a message found by [`front`](Self::front), and removes it from the index of this class.
    #[inline]
    pub(crate) fn remove_front(&mut self, class: &mut Class, front: Front) -> M {
        let Index { queues, links, .. } = &mut class.index;
        queues.remove_front(links, front);
        links[front.at as usize].loosen();
        self.remove(front.at)
    }

    /// Removes a message; the caller updates the indexes.
    #[inline]
    pub(crate) fn remove(&mut self, index: u32) -> M {
        let gone = &mut self.messages[index as usize];
        gone.generation = gone.generation.wrapping_add(1);
        let Unexpected { older, newer, message, .. } = *gone;
        match self.messages.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.messages.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        self.messages.free(index);
        message
    }

    /// Indexes of the messages whose source `which` selects, in the order of arrival.
    pub(crate) fn select(&self, which: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut chosen = Vec::new();
        let mut at = self.oldest;
        while let Some(message) = self.messages.get(at as usize) {
            if which(message.source) {
                chosen.push(at);
            }
            at = message.newer;
        }
        chosen
    }
}

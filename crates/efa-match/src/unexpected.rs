//! Unexpected messages: one list in the order of arrival, and an index of it for each class of
//! patterns that asks.
//!
//! ```text
//!   oldest                                   newest
//!     m0 ⇄ m1 ⇄ m2 ⇄ m3 ⇄ m4 ⇄ m5 ⇄ m6 ⇄ m7
//!     └─── in the index of class A ──────┘            asked a while ago
//!     └── in that of B ─┘                              asked long ago
//! ```
//!
//! A class's index holds a beginning of the list. It's brought up to date when the class asks, so
//! that an arriving message costs the same whatever classes there are, a class that doesn't ask
//! any more costs nothing, and each message enters an index at most once.

use crate::{
    MessageId,
    class::{Class, Key},
    queues::{Front, Link, NIL, Queues},
    slots::{Reusable, Slots},
};

/// The messages of one class's keys: a beginning of the arrival list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index {
    /// By the message's place.
    links: Vec<Link>,
    queues: Queues,
    /// Messages that had arrived when this was brought up to date, since ever.
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

#[derive(Debug, Clone, Copy)]
struct Message<M> {
    tag: u64,
    source: u32,
    /// How often this place has been freed.
    generation: u32,
    older: u32,
    newer: u32,
    message: M,
}

impl<M> Reusable for Message<M> {
    fn next_free(&mut self) -> &mut u32 {
        &mut self.newer
    }
}

// With one class in use a message costs this, a link of 16 bytes and 8 to 16 of buckets.
const _: () = assert!(size_of::<Message<u32>>() <= 32);
const _: () = assert!(size_of::<Message<u64>>() <= 32);

/// All unexpected messages.
#[derive(Debug, Clone)]
pub(crate) struct UnexpectedMessages<M> {
    messages: Slots<Message<M>>,
    oldest: u32,
    newest: u32,
    /// Messages since ever.
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

    /// Where the message is, if it is still waiting.
    pub(crate) fn find(&self, id: MessageId) -> Option<u32> {
        let message = self.messages.get(id.index as usize)?;
        (message.generation == id.generation).then_some(id.index)
    }

    #[inline]
    pub(crate) fn push(&mut self, source: u32, tag: u64, message: M) -> MessageId {
        let older = self.newest;
        let newer = NIL;
        if !self.messages.has_free() {
            self.messages.add_free(Message { tag, source, generation: 0, older, newer, message });
        }
        let index = self.messages.take();
        let place = &mut self.messages[index as usize];
        let generation = place.generation;
        *place = Message { tag, source, generation, older, newer, message };
        match self.messages.get_mut(older as usize) {
            Some(older) => older.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
        self.arrived += 1;
        MessageId { index, generation }
    }

    /// Whether the class's index holds all messages.
    #[inline]
    pub(crate) fn is_indexed(&self, class: &Class) -> bool {
        class.index.seen == self.arrived
    }

    /// Adds the messages that have come since this class asked last to its index.
    #[inline(never)]
    pub(crate) fn bring_up_to_date(&self, class: &mut Class) {
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
            let Message { source, tag, newer, .. } = self.messages[at as usize];
            if !class.index.queues.has_room() {
                class.index.queues.make_room(&mut class.index.links);
            }
            let key = class.key(source, tag);
            let front = self.front(class, &key);
            let Index { queues, links, .. } = &mut class.index;
            links[at as usize] = queues.push(links, at, key.hash, front);
            at = newer;
        }
    }

    /// The oldest message with this key, among those in the class's index. As that holds a beginning
    /// of the list, none in the list is older; if there is none, the index may not be up to date.
    #[inline]
    pub(crate) fn front(&self, class: &Class, key: &Key) -> Option<Front> {
        let Index { queues, links, .. } = &class.index;
        let fits = |message: &Message<M>| class.fits(key, message.source, message.tag);
        queues.front(&self.messages, key.hash, fits, |at, _| links[at as usize].chain)
    }

    /// Takes out a message found by [`front`](Self::front), and out of the index of this class.
    #[inline]
    pub(crate) fn remove_front(&mut self, class: &mut Class, front: Front) -> M {
        let Index { queues, links, .. } = &mut class.index;
        queues.remove_front(links, front);
        links[front.at as usize].loosen();
        self.remove(front.at)
    }

    /// Takes out a message; the indexes are left to the caller.
    #[inline]
    pub(crate) fn remove(&mut self, index: u32) -> M {
        let gone = &mut self.messages[index as usize];
        gone.generation = gone.generation.wrapping_add(1);
        let Message { older, newer, message, .. } = *gone;
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

    /// The messages whose source `which` chooses, in the order of arrival.
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

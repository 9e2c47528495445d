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
    class::{Class, Probe},
    queues::{Link, NIL, Queues},
    slots::Slots,
};

/// The messages of one class's keys: a beginning of the arrival list.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// By the message's place.
    links: Vec<Link>,
    queues: Queues,
    len: usize,
}

impl Index {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn contains(&self, message: u32) -> bool {
        self.links.get(message as usize).is_some_and(|link| !link.is_loose())
    }

    #[inline]
    fn remove(&mut self, message: u32) {
        if self.contains(message) {
            self.queues.remove(&mut self.links, message);
            self.len -= 1;
        }
    }
}

#[derive(Debug)]
struct Message<M> {
    tag: u64,
    source: u32,
    /// How often this place has been freed.
    generation: u32,
    older: u32,
    newer: u32,
    message: M,
}

// With one class in use a message costs this, a link of 16 bytes and 8 to 16 of buckets.
const _: () = assert!(size_of::<Message<u32>>() <= 32);
const _: () = assert!(size_of::<Message<u64>>() <= 32);

/// All unexpected messages.
#[derive(Debug)]
pub(crate) struct UnexpectedMessages<M> {
    messages: Slots<Message<M>>,
    oldest: u32,
    newest: u32,
}

impl<M: Copy> UnexpectedMessages<M> {
    pub(crate) fn new() -> Self {
        Self { messages: Slots::new(), oldest: NIL, newest: NIL }
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
        let mut generation = 0;
        let index = self.messages.put(|place| {
            generation = place.map_or(0, |place| place.generation);
            Message { tag, source, generation, older, newer: NIL, message }
        });
        match self.messages.get_mut(older as usize) {
            Some(older) => older.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
        MessageId { index, generation }
    }

    /// The oldest message that fits the pattern with this probe, of this class.
    #[inline]
    pub(crate) fn front(&self, class: &mut Class, probe: &Probe) -> Option<u32> {
        if !class.index.contains(self.newest) {
            self.bring_up_to_date(class, probe.key.class as usize);
        }
        let index = &class.index;
        index.queues.front(&index.links, probe.hash, |at, _| {
            let message = &self.messages[at as usize];
            class.fits(&probe.key, message.source, message.tag)
        })
    }

    /// Adds the messages that have come since this class asked last.
    #[cold]
    fn bring_up_to_date(&self, class: &mut Class, class_at: usize) {
        class.index.links.resize(self.messages.len(), Link::LOOSE);
        let mut first_new = NIL;
        let mut at = self.newest;
        while at != NIL && !class.index.contains(at) {
            first_new = at;
            at = self.messages[at as usize].older;
        }
        let mut at = first_new;
        while at != NIL {
            let Message { source, tag, newer, .. } = self.messages[at as usize];
            let probe = class.probe(class_at, source, tag);
            let index = &class.index;
            let front = index.queues.front(&index.links, probe.hash, |other, _| {
                let other = &self.messages[other as usize];
                class.fits(&probe.key, other.source, other.tag)
            });
            let index = &mut class.index;
            index.queues.push(&mut index.links, at, probe.hash, front);
            index.len += 1;
            at = newer;
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, classes: &mut [Class], index: u32) -> M {
        for class in classes {
            class.index.remove(index);
        }
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

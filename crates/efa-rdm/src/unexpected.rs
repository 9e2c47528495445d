//! Unexpected messages by their senders: those of an incarnation, or those that former incarnations of a
//! queue pair left, oldest first.

use slab::Slab;

use crate::charges::Charged;
use crate::lists::Lists;

/// Unexpected messages.
#[derive(Debug)]
pub(crate) struct UnexpectedMessages<M> {
    messages: Slab<M>,
    of_sender: Lists,
}

impl<M> Default for UnexpectedMessages<M> {
    fn default() -> Self {
        Self { messages: Slab::new(), of_sender: Lists::default() }
    }
}

impl<M> UnexpectedMessages<M> {
    /// The key of the next message.
    #[inline]
    pub(crate) fn vacant_key(&self) -> u32 {
        self.messages.vacant_key() as u32
    }

    /// Keeps a message, of a sender unless that is unknown; returns its key.
    pub(crate) fn insert(&mut self, sender: Option<Charged>, message: M) -> u32 {
        let key = self.messages.insert(message) as u32;
        if let Some(sender) = sender {
            self.of_sender.push(sender.number(), key);
        }
        key
    }

    pub(crate) fn get(&self, key: u32) -> Option<&M> {
        self.messages.get(key as usize)
    }

    pub(crate) fn get_mut(&mut self, key: u32) -> Option<&mut M> {
        self.messages.get_mut(key as usize)
    }

    /// Removes a message, which is there.
    pub(crate) fn remove(&mut self, key: u32) -> M {
        self.of_sender.remove(key);
        self.messages.remove(key as usize)
    }

    /// Removes a message, if it is there.
    pub(crate) fn try_remove(&mut self, key: u32) -> Option<M> {
        self.of_sender.remove(key);
        self.messages.try_remove(key as usize)
    }

    /// Takes a message from its sender; it stays until it is [removed](Self::remove).
    pub(crate) fn disown(&mut self, key: u32) {
        self.of_sender.remove(key);
    }

    /// The oldest message of a sender.
    pub(crate) fn oldest(&self, sender: Charged) -> Option<u32> {
        self.of_sender.first(sender.number())
    }

    /// Passes the messages of an incarnation to what its queue pair's former incarnations left.
    pub(crate) fn leave(&mut self, slot: u32, left: u32) {
        self.of_sender.append(Charged::Living(slot).number(), Charged::Left(left).number());
    }

    /// The keys of all messages.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> Vec<u32> {
        self.messages.iter().map(|(key, _)| key as u32).collect()
    }

    /// The keys of a sender's messages, oldest first.
    pub(crate) fn of(&self, sender: Charged) -> Vec<u32> {
        self.of_sender.of(sender.number()).collect()
    }
}

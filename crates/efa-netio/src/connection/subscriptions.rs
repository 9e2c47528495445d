//! What a publisher keeps of one subscriber: its tags, the publications that it is owed, and whether it is slow.

use std::collections::VecDeque;
use std::time::Duration;

use efa::Time;
use hashbrown::HashSet;

use crate::event::Tag;
use crate::ids::PublicationKey;

#[derive(Default)]
pub(crate) struct Subscriptions {
    tags: HashSet<Tag>,
    /// Publications that the subscriber gets before any other, the oldest first.
    owed: VecDeque<PublicationKey>,
    /// Publications that were never sent to the subscriber, and won't be.
    lost: u64,
    /// A publication that nobody got found others before it that the subscriber is owed.
    is_awaited: bool,
    /// How many messages had completed when the publisher last looked whether the subscriber takes anything.
    completed_at_look: u64,
    /// The look since which the subscriber has taken nothing although something was there.
    slow_since: Option<Time>,
}

impl Subscriptions {
    pub(crate) fn has(&self, tag: Tag) -> bool {
        self.tags.contains(&tag)
    }

    pub(crate) fn len(&self) -> usize {
        self.tags.len()
    }

    pub(crate) fn insert(&mut self, tag: Tag) {
        self.tags.insert(tag);
    }

    /// Returns whether the subscriber had subscribed to it.
    pub(crate) fn remove(&mut self, tag: Tag) -> bool {
        self.tags.remove(&tag)
    }

    pub(crate) fn take_tags(&mut self) -> HashSet<Tag> {
        std::mem::take(&mut self.tags)
    }

    /// Whether the subscriber is owed a publication, so that it can't get others.
    #[inline]
    pub(crate) fn are_owed(&self) -> bool {
        !self.owed.is_empty()
    }

    /// How many publications the subscriber is owed.
    pub(crate) fn owed(&self) -> u64 {
        self.owed.len() as u64
    }

    /// A publication is never sent to the subscriber.
    #[cold]
    pub(crate) fn lose(&mut self) {
        self.lost += 1;
    }

    /// Publications that were never sent to the subscriber, and won't be.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// The publication that the subscriber gets next.
    pub(crate) fn next_owed(&self) -> Option<PublicationKey> {
        self.owed.front().copied()
    }

    pub(crate) fn owe(&mut self, publication: PublicationKey) {
        self.owed.push_back(publication);
    }

    /// The next publication that the subscriber was owed is served, or lost.
    pub(crate) fn next_is_done(&mut self) {
        self.owed.pop_front();
    }

    /// The subscriber isn't owed a publication any more.
    pub(crate) fn give_up(&mut self, publication: PublicationKey) {
        self.owed.retain(|owed| *owed != publication);
    }

    /// Takes those publications that the subscriber is owed.
    pub(crate) fn take_owed(
        &mut self,
        is_taken: impl FnMut(&PublicationKey) -> bool,
    ) -> VecDeque<PublicationKey> {
        let (taken, left) = std::mem::take(&mut self.owed).into_iter().partition(is_taken);
        self.owed = left;
        taken
    }

    /// A publication waits until the subscriber is owed nothing.
    pub(crate) fn be_awaited(&mut self) {
        self.is_awaited = true;
    }

    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// Whether a publication may go now that the subscriber is owed one less: the next one that it is owed, or the one that
    /// waited for the last of them.
    pub(crate) fn next_may_go(&mut self) -> bool {
        self.are_owed() || std::mem::take(&mut self.is_awaited)
    }

    /// Looks whether the subscriber takes something that waits for it. Of the time since the look before, `late` doesn't
    /// count. Returns for how long it has taken nothing, if it took nothing at this look and the one before.
    pub(crate) fn look(
        &mut self,
        waits: bool,
        completed: u64,
        (now, late): (Time, Duration),
    ) -> Option<Duration> {
        let takes = std::mem::replace(&mut self.completed_at_look, completed) != completed;
        match self.slow_since {
            Some(since) if waits && !takes => {
                let since = since + late;
                self.slow_since = Some(since);
                Some(now - since)
            }
            _ => {
                self.slow_since = waits.then_some(now);
                None
            }
        }
    }
}

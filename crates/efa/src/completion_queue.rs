//! The completion queue, which also moves its endpoints on.
//!
//! ```text
//!   read ─► an entry? ── yes ─► give it
//!             │ no
//!             └─► move the endpoints on that are bound, in turn ─► something ended? ─► give it
//!                                                                    │ for another queue
//!                                                                    └─► an entry there
//! ```
//!
//! An operation takes a place in its queue when it starts, and keeps it until its completion is
//! read. So a queue can't overrun: when all places are taken, the next operation doesn't start.
//! Completions that no operation foresees (of messages in a multi-receive buffer, and of injected
//! messages that failed) are taken while there is something less than a full queue to read; after
//! that their endpoint rests until somebody reads. What such an endpoint has for the queue when it is
//! dropped goes there all the same.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::completion::{Completion, CompletionError};
use crate::domain::Domain;
use crate::driven::Driven;
use crate::endpoint::Shared as EndpointShared;

/// How a completion queue is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionQueueOptions {
    /// Completions that it holds, with those of operations under way; messages of multi-receive
    /// buffers don't count. At least 1.
    pub capacity: usize,
}

impl Default for CompletionQueueOptions {
    fn default() -> Self {
        Self { capacity: 8192 }
    }
}

/// An entry of a completion queue.
pub type Entry = Result<Completion, CompletionError>;

/// Where operations end. Clones are handles to the same one.
///
/// It may serve any number of endpoints. Reading is what moves their operations on
/// (`FI_PROGRESS_MANUAL`): nothing happens between two reads.
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<Shared>);

/// Why a wait gave no completion.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// Nothing ended in time.
    #[error("nothing completed within {0:?}")]
    TimedOut(Duration),
    /// The operation that ended had failed.
    #[error(transparent)]
    Failed(#[from] CompletionError),
}

/// Whose place a completion has in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The one that its operation took when it started.
    Reserved,
    /// None: nobody could know that it would come.
    Spare,
}

/// Somebody who reads a queue, and where the next entry is to be put: it is made there, and not moved
/// from hand to hand.
pub(crate) struct Reader<'a> {
    /// `None` when nobody reads and operations are only to be moved on.
    pub(crate) queue: Option<&'a Shared>,
    pub(crate) entry: &'a mut Option<Entry>,
}

impl Reader<'_> {
    /// Whether it reads this queue.
    #[inline]
    pub(crate) fn is_of(&self, queue: &Shared) -> bool {
        self.queue.is_some_and(|read| std::ptr::eq(read, queue))
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) domain: Domain,
    capacity: usize,
    /// Places of operations under way, and of their completions.
    taken: AtomicUsize,
    entries: Mutex<VecDeque<(Place, Entry)>>,
    /// How many there are, to see without the lock that there are none.
    waiting: AtomicUsize,
    endpoints: Driven,
}

impl CompletionQueue {
    pub(crate) fn new(domain: &Domain, options: CompletionQueueOptions) -> Self {
        Self(Arc::new(Shared {
            domain: domain.clone(),
            capacity: options.capacity.max(1),
            taken: AtomicUsize::new(0),
            entries: Mutex::default(),
            waiting: AtomicUsize::new(0),
            endpoints: Driven::default(),
        }))
    }

    /// Completions that it holds.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// The next completion, if there is one (none is `FI_EAGAIN`). Failed operations come in their
    /// turn.
    #[inline]
    pub fn read(&self) -> Option<Entry> {
        let mut entry = None;
        self.0.read(&mut entry);
        entry
    }

    /// Appends up to `most` completions to `into`, and gives how many there were.
    pub fn read_many(&self, into: &mut Vec<Entry>, most: usize) -> usize {
        let count = self.0.pop_many(into, most);
        if count > 0 || most == 0 {
            return count;
        }
        self.0.endpoints.progress();
        self.0.pop_many(into, most)
    }

    /// The next completion, waited for by reading again and again, with the processor offered to
    /// others in between.
    ///
    /// A [`ManualClock`](crate::ManualClock) is moved on instead, to what is due next.
    ///
    /// # Errors
    /// Nothing completed in time, or what completed had failed.
    pub fn wait(&self, timeout: Duration) -> Result<Completion, WaitError> {
        let clock = self.0.domain.fabric().clock();
        let deadline = clock.now() + timeout;
        let mut looks = 0_u32;
        loop {
            if let Some(entry) = self.read() {
                return Ok(entry?);
            }
            if clock.now() >= deadline {
                return Err(WaitError::TimedOut(timeout));
            }
            looks = looks.wrapping_add(1);
            clock.pass(self.0.endpoints.next_timeout().map(|next| next.min(deadline)), looks);
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Shared {
    pub(crate) fn bind(&self, endpoint: Weak<EndpointShared>) {
        self.endpoints.bind(endpoint);
    }

    pub(crate) fn unbind(&self, endpoint: &Arc<EndpointShared>) {
        self.endpoints.unbind(endpoint);
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Takes a place for a completion to come. Tells whether there was one.
    #[must_use]
    pub(crate) fn take_place(&self) -> bool {
        let take = |taken| (taken < self.capacity).then_some(taken + 1);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
    }

    /// Gives places back whose completions will not come.
    pub(crate) fn give_places(&self, count: usize) {
        self.taken.fetch_sub(count, Ordering::AcqRel);
    }

    /// Makes the next entry, if there is one.
    fn read(&self, entry: &mut Option<Entry>) {
        if self.has_entries() {
            *entry = self.pop();
        }
        if entry.is_some() {
            return;
        }
        let given = |endpoint: &EndpointShared| {
            endpoint.poll(Reader { queue: Some(self), entry: &mut *entry })
        };
        if !self.endpoints.any(given) && self.has_entries() {
            *entry = self.pop();
        }
    }

    /// Whether there is an entry.
    #[inline]
    pub(crate) fn has_entries(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Appends a completion, or gives it back if it has no place and there is enough to read.
    #[must_use]
    pub(crate) fn push(&self, place: Place, entry: Entry) -> Option<Entry> {
        let mut entries = self.entries.lock();
        if place == Place::Spare && entries.len() >= self.capacity {
            return Some(entry);
        }
        entries.push_back((place, entry));
        self.waiting.store(entries.len(), Ordering::Release);
        None
    }

    /// Appends what an endpoint leaves that is gone, however much there is to read.
    pub(crate) fn append(&self, left: impl Iterator<Item = (Place, Entry)>) {
        let mut entries = self.entries.lock();
        entries.extend(left);
        self.waiting.store(entries.len(), Ordering::Release);
    }

    #[inline(always)]
    fn pop(&self) -> Option<Entry> {
        let mut entries = self.entries.lock();
        if let Some((Place::Reserved, _)) = entries.front() {
            self.give_places(1);
        }
        self.waiting.store(entries.len().saturating_sub(1), Ordering::Release);
        entries.pop_front().map(|(_, entry)| entry)
    }

    fn pop_many(&self, into: &mut Vec<Entry>, most: usize) -> usize {
        if !self.has_entries() {
            return 0;
        }
        let mut entries = self.entries.lock();
        let count = entries.len().min(most);
        let mut reserved = 0;
        for (place, entry) in entries.drain(..count) {
            reserved += usize::from(place == Place::Reserved);
            into.push(entry);
        }
        self.waiting.store(entries.len(), Ordering::Release);
        drop(entries);
        self.give_places(reserved);
        count
    }
}

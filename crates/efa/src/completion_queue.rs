//! Completion queues. Reading one progresses the endpoints that are bound to it.
//!
//! ```text
//!   read ─► an entry? ── yes ─► return it
//!             │ no
//!             └─► poll the bound endpoints in turn ─► a completion? ─► for this queue: return it
//!                                                                   └► for another: append it there
//! ```
//!
//! An operation takes a credit of its queue when it starts. The credit is returned when its completion
//! is read. So a queue can't overrun: without a credit left, the next operation doesn't start.
//!
//! Some completions have no operation that could have taken a credit: those of messages in a
//! multi-receive buffer, of remote writes with data, and of failed injected messages. The queue takes
//! them while it holds fewer entries than its capacity; after that their endpoint makes no progress
//! until entries are read. An endpoint that is dropped appends what it still has in any case.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::bound_endpoints::BoundEndpoints;
use crate::completion::{Completion, CompletionError};
use crate::domain::Domain;
use crate::endpoint::Shared as EndpointShared;
use crate::format::Format;

/// Options of a completion queue.
///
/// ```
/// use efa::CompletionQueueOptions;
/// let options = CompletionQueueOptions::new().capacity(1024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompletionQueueOptions {
    /// Most operations that may be under way or have unread completions; 8192 by default, at least 1.
    /// Messages in multi-receive buffers don't count.
    pub capacity: usize,
    /// The format in which [`CompletionQueue::read_as`] returns at most; [`Format::Tagged`] by default.
    /// [`CompletionQueue::read`] always returns everything, so that no buffer is lost.
    pub format: Format,
    /// A number of the program ([`Object::context`](crate::Object::context)).
    pub context: u64,
}

impl CompletionQueueOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`capacity`](Self#structfield.capacity).
    #[must_use]
    pub fn capacity(self, capacity: usize) -> Self {
        Self { capacity, ..self }
    }

    /// Sets [`format`](Self#structfield.format).
    #[must_use]
    pub fn format(self, format: Format) -> Self {
        Self { format, ..self }
    }

    /// Sets [`context`](Self#structfield.context).
    #[must_use]
    pub fn context(self, context: u64) -> Self {
        Self { context, ..self }
    }
}

impl Default for CompletionQueueOptions {
    fn default() -> Self {
        Self { capacity: 8192, format: Format::default(), context: 0 }
    }
}

/// An entry of a completion queue: an operation that completed, or one that failed.
pub type Entry = Result<Completion, CompletionError>;

/// A queue of completions (`fi_cq`). Clones are handles to the same queue.
///
/// Any number of endpoints may be bound to it. Reading it progresses their operations
/// (`FI_PROGRESS_MANUAL`): between two reads nothing happens.
///
/// This release has no descriptor or waker to wait on: programs poll with [`read`](Self::read) or
/// [`read_many`](Self::read_many), or block a thread in [`wait`](Self::wait), which polls too.
/// Descriptors come with a later release.
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<Shared>);

/// Why [`CompletionQueue::wait`] returned no completion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// Nothing completed in time.
    #[error("nothing completed within {0:?}")]
    TimedOut(Duration),
    /// The operation that completed had failed.
    #[error(transparent)]
    Failed(#[from] CompletionError),
}

/// Whether the operation of a completion holds a credit of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credit {
    /// The operation took one when it started.
    Held,
    /// No operation could have taken one: the completion was not foreseeable.
    None,
}

/// A reader of a queue, and the slot for its next entry, which is built in place.
pub(crate) struct Reader<'a> {
    /// `None` to progress operations without reading a queue.
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
    format: Format,
    context: u64,
    /// Credits taken: by operations under way and by unread completions.
    credits_taken: AtomicUsize,
    entries: Mutex<VecDeque<(Credit, Entry)>>,
    /// The number of entries, readable without the lock.
    waiting: AtomicUsize,
    endpoints: BoundEndpoints,
}

impl CompletionQueue {
    pub(crate) fn new(domain: &Domain, options: CompletionQueueOptions) -> Self {
        Self(Arc::new(Shared {
            domain: domain.clone(),
            capacity: options.capacity.max(1),
            format: options.format,
            context: options.context,
            credits_taken: AtomicUsize::new(0),
            entries: Mutex::default(),
            waiting: AtomicUsize::new(0),
            endpoints: BoundEndpoints::default(),
        }))
    }

    /// Most operations that may be under way or have unread completions.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// The format in which [`read_as`](Self::read_as) returns at most.
    #[must_use]
    pub fn format(&self) -> Format {
        self.0.format
    }

    /// Returns the next completion, if there is one (none is `FI_EAGAIN`). Completions of failed
    /// operations come in order with the others.
    #[inline]
    pub fn read(&self) -> Option<Entry> {
        let mut entry = None;
        self.0.read(&mut entry);
        entry
    }

    /// Appends up to `most` completions to `into` and returns their number.
    pub fn read_many(&self, into: &mut Vec<Entry>, most: usize) -> usize {
        let count = self.0.pop_many(into, most);
        if count > 0 || most == 0 {
            return count;
        }
        self.0.endpoints.progress();
        self.0.pop_many(into, most)
    }

    /// Waits for the next completion (`fi_cq_sread`).
    ///
    /// It polls, and blocks the thread, so don't call it in an async task: it reads the queue again and
    /// again, with a `yield` of the processor every 64 reads, and never sleeps. An idle wait takes
    /// as much of a core as the scheduler gives it. An alternative for idle times is a loop of
    /// [`read`](Self::read) with sleeps of its own.
    ///
    /// If the fabric has a [`ManualClock`](crate::ManualClock), the wait advances that clock to the next
    /// timeout instead.
    ///
    /// # Errors
    /// Nothing completed in time, or the operation that completed had failed.
    pub fn wait(&self, timeout: Duration) -> Result<Completion, WaitError> {
        let clock = self.0.domain.fabric().clock();
        let deadline = clock.now() + timeout;
        let mut polls = 0_u32;
        loop {
            if let Some(entry) = self.read() {
                return Ok(entry?);
            }
            if clock.now() >= deadline {
                return Err(WaitError::TimedOut(timeout));
            }
            polls = polls.wrapping_add(1);
            clock.pass(self.0.endpoints.next_timeout().map(|next| next.min(deadline)), polls);
        }
    }

    pub(crate) fn user_context(&self) -> u64 {
        self.0.context
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

    /// Takes a credit for a completion to come. Returns whether one was left.
    #[must_use]
    pub(crate) fn take_credit(&self) -> bool {
        let take = |taken| (taken < self.capacity).then_some(taken + 1);
        self.credits_taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
    }

    pub(crate) fn return_credits(&self, count: usize) {
        self.credits_taken.fetch_sub(count, Ordering::AcqRel);
    }

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

    #[inline]
    pub(crate) fn has_entries(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Appends a completion. Returns it if it holds no credit and the queue is full.
    #[must_use]
    pub(crate) fn push(&self, credit: Credit, entry: Entry) -> Option<Entry> {
        let mut entries = self.entries.lock();
        if credit == Credit::None && entries.len() >= self.capacity {
            return Some(entry);
        }
        entries.push_back((credit, entry));
        self.waiting.store(entries.len(), Ordering::Release);
        None
    }

    /// Appends the completions of an endpoint that is dropped, even to a full queue.
    pub(crate) fn append(&self, completions: impl Iterator<Item = (Credit, Entry)>) {
        let mut entries = self.entries.lock();
        entries.extend(completions);
        self.waiting.store(entries.len(), Ordering::Release);
    }

    #[inline(always)]
    fn pop(&self) -> Option<Entry> {
        let mut entries = self.entries.lock();
        if let Some((Credit::Held, _)) = entries.front() {
            self.return_credits(1);
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
        let mut credits = 0;
        for (credit, entry) in entries.drain(..count) {
            credits += usize::from(credit == Credit::Held);
            into.push(entry);
        }
        self.waiting.store(entries.len(), Ordering::Release);
        drop(entries);
        self.return_credits(credits);
        count
    }
}

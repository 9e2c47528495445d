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
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use efa_device::{DeviceError, Time};
use parking_lot::Mutex;

use crate::bound_endpoints::BoundEndpoints;
use crate::completion::{Completion, CompletionError};
use crate::domain::Domain;
use crate::endpoint::{Shared as EndpointShared, drive};
use crate::format::Format;
use crate::wait::{Membership, Source, TryWaitError, Wait, WaitObject, sealed};

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
/// Programs poll with [`read`](Self::read) or [`read_many`](Self::read_many), or block a thread in
/// [`wait`](Self::wait). A queue of [`Domain::waitable_completion_queue`] sleeps meanwhile, and has a
/// descriptor for poll, select and epoll; any other polls.
#[derive(Clone)]
pub struct CompletionQueue(
    Arc<Shared>,
    #[expect(dead_code, reason = "dropping the last one leaves the wait set")]
    Option<Arc<Membership>>,
);

/// Why [`CompletionQueue::wait`] returned no completion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// Nothing completed in time.
    #[error("nothing completed within {0:?}")]
    TimedOut(Duration),
    /// The operation that completed had failed.
    #[error(transparent)]
    Failed(#[from] CompletionError),
    /// The program itself [holds](CompletionQueue::hold) entries of the queue.
    #[error("the program holds entries of the queue")]
    Held,
    /// [`CompletionQueue::signal`] was called.
    #[error("the wait was interrupted by a signal of the queue")]
    Signalled,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Most completions that are taken of an endpoint before other threads may use it.
const MOST_AT_ONCE: usize = 64;

/// Whether the operation of a completion holds a credit of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credit {
    /// The operation took one when it started.
    Held,
    /// No operation could have taken one: the completion was not foreseeable.
    None,
}

/// A reader of a queue, and the room for its entries, which are built in place.
pub(crate) struct Reader<'a, R: Room + ?Sized> {
    /// `None` to progress operations without reading a queue.
    pub(crate) queue: Option<&'a Shared>,
    pub(crate) room: &'a mut R,
}

impl<R: Room + ?Sized> Reader<'_, R> {
    /// The reader for code that few entries take, which is compiled once for all kinds of room.
    pub(crate) fn any(&mut self) -> AnyReader<'_>
    where
        R: Sized,
    {
        Reader { queue: self.queue, room: self.room }
    }

    /// Whether it reads this queue.
    #[inline]
    pub(crate) fn is_of(&self, queue: &Shared) -> bool {
        self.queue.is_some_and(|read| std::ptr::eq(read, queue))
    }
}

/// A reader with any room.
pub(crate) type AnyReader<'a> = Reader<'a, dyn Room + 'a>;

/// Where the entries of a reader go.
pub(crate) trait Room {
    fn put(&mut self, entry: Entry);
}

/// Room for one.
impl Room for Option<Entry> {
    #[inline(always)]
    fn put(&mut self, entry: Entry) {
        *self = Some(entry);
    }
}

/// Room for many.
impl Room for Vec<Entry> {
    #[inline(always)]
    fn put(&mut self, entry: Entry) {
        self.push(entry);
    }
}

/// The room of who reads no queue.
impl Room for () {
    fn put(&mut self, _: Entry) {}
}

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
    /// Whether the program holds entries besides.
    is_held: AtomicBool,
    /// Of a queue that isn't waitable: whether a call that blocks is to return.
    is_signalled: AtomicBool,
    /// Nobody reads it, and it keeps nothing.
    is_unread: bool,
    endpoints: BoundEndpoints,
    /// What threads sleep on, if the queue is waitable.
    wait: Option<Arc<WaitObject>>,
    /// Waits in a row that slept after they had looked in vain.
    vain_looks: AtomicU32,
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("capacity", &self.capacity)
            .field("waiting", &self.waiting.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl CompletionQueue {
    pub(crate) fn new(domain: &Domain, options: CompletionQueueOptions) -> Self {
        Self(Arc::new(Shared::new(domain, options, None)), None)
    }

    pub(crate) fn unread(domain: &Domain) -> Self {
        let options = CompletionQueueOptions::default().capacity(usize::MAX);
        Self(Arc::new(Shared { is_unread: true, ..Shared::new(domain, options, None) }), None)
    }

    pub(crate) fn waitable(
        domain: &Domain,
        options: CompletionQueueOptions,
        wait: &Wait,
    ) -> Result<Self, DeviceError> {
        let object = Arc::new(WaitObject::for_wait(wait)?);
        let queue = Arc::new(Shared::new(domain, options, Some(Arc::clone(&object))));
        let member = wait.join(&queue, &object)?;
        Ok(Self(queue, member))
    }

    /// The handle of an endpoint, which is none of the program's.
    pub(crate) fn bound(&self) -> Self {
        Self(Arc::clone(&self.0), None)
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
        // Without a completion nothing is moved.
        match self.0.read_into(&mut entry) {
            true => entry,
            false => None,
        }
    }

    /// As [`read`](Self::read), into room of the caller, which saves a move. Returns whether there was a completion;
    /// without one the room is left as it is.
    #[inline(always)]
    pub fn read_into(&self, entry: &mut Option<Entry>) -> bool {
        self.0.read_into(entry)
    }

    /// Whether [`read`](Self::read) would find nothing, by a look that costs a fraction of a read. `false` says that a
    /// read is to be made: it may find something, or that isn't known, as with most devices and with several endpoints.
    /// Of many looks in a row, some are `false` in any case, so that reads do what is due at intervals.
    #[inline(always)]
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.0.has_entries() && self.0.endpoints.is_idle()
    }

    /// Whether the last [`read`](Self::read) found more than it returned. So a program that reads several completions at
    /// once makes no poll in vain after them. `true` if that isn't known, as with several endpoints, and with other
    /// devices than the links `shm` and `tcp`.
    #[must_use]
    pub fn may_have_more(&self) -> bool {
        self.0.has_entries() || self.0.endpoints.have_found()
    }

    /// Progresses the operations of its endpoints, and takes no completion.
    pub fn progress(&self) {
        self.0.endpoints.progress();
    }

    /// Appends up to `most` completions to `into` and returns their number, which is less if no more are there. It locks
    /// an endpoint once for up to 64 of them.
    pub fn read_many(&self, into: &mut Vec<Entry>, most: usize) -> usize {
        let begin = into.len();
        self.0.read_until(into, begin.saturating_add(most));
        into.len() - begin
    }

    /// Waits for the next completion (`fi_cq_sread`).
    ///
    /// It blocks the thread, so don't call it in an async task. A [waitable](Domain::waitable_completion_queue)
    /// queue is read for 20 µs, and then the thread sleeps; if that was in vain several times, it sleeps at once for a
    /// while. Any other is read again and again, with a `yield`
    /// of the processor every 64 reads, and takes as much of a core as the scheduler gives it.
    ///
    /// If the fabric has a [`ManualClock`](crate::ManualClock), the wait advances that clock to the next
    /// timeout instead of sleeping.
    ///
    /// # Errors
    /// Nothing completed in time, the operation that completed had failed, the program [holds](Self::hold) entries,
    /// or [`signal`](Self::signal) was called.
    pub fn wait(&self, timeout: Duration) -> Result<Completion, WaitError> {
        let mut pause = self.0.pause(timeout);
        loop {
            if let Some(entry) = self.read() {
                return Ok(entry?);
            }
            pause.pass()?;
        }
    }

    pub(crate) fn user_context(&self) -> u64 {
        self.0.context
    }

    /// Waits for `threshold` completions, at most `most`, and appends them to `into`
    /// (`fi_cq_sread` with `FI_CQ_COND_THRESHOLD`). Returns their number, which is less if the time is up
    /// or [`signal`](Self::signal) was called.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait), if there is no completion. Those of failed operations come with the
    /// others.
    pub fn wait_many(
        &self,
        into: &mut Vec<Entry>,
        most: usize,
        threshold: usize,
        timeout: Duration,
    ) -> Result<usize, WaitError> {
        let (mut count, mut pause) = (0, self.0.pause(timeout));
        loop {
            count += self.read_many(into, most - count);
            if count >= threshold.min(most) {
                return Ok(count);
            }
            match pause.pass() {
                Err(_) if count > 0 => return Ok(count),
                passed => passed?,
            }
        }
    }

    /// Makes one thread that blocks in [`wait`](Self::wait), or the next one that does, return
    /// [`WaitError::Signalled`] (`fi_cq_signal`). The descriptor of a waitable queue becomes readable.
    pub fn signal(&self) {
        match &self.0.wait {
            Some(wait) => wait.interrupt(),
            None => self.0.is_signalled.store(true, Ordering::Release),
        }
    }

    /// Says whether the program itself holds entries of this queue: some that it made, or that it has read and not
    /// used. While it does, the queue has something to be read for poll sets, wait sets and
    /// [`Fabric::try_wait`](crate::Fabric::try_wait), and [`wait`](Self::wait) returns [`WaitError::Held`] instead of
    /// sleeping. It wakes threads that sleep.
    ///
    /// Tasks that wait for the queue don't know of it: a program that holds entries waits by threads.
    pub fn hold(&self, holds: bool) {
        self.0.is_held.store(holds, Ordering::Release);
        if holds {
            self.0.notify();
        }
    }

    /// The descriptor of a [waitable](Domain::waitable_completion_queue) queue for poll, select and epoll,
    /// `None` of any other. Before sleeping on it, call
    /// [`Fabric::try_wait`](crate::Fabric::try_wait).
    #[must_use]
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.wait.as_deref().map(WaitObject::descriptor)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// Whether [`signal`](Self::signal) was called, and no call has returned because of it.
    #[cfg(feature = "tokio")]
    pub(crate) fn take_signal(&self) -> bool {
        self.0.take_signal()
    }
}

impl Shared {
    fn new(
        domain: &Domain,
        options: CompletionQueueOptions,
        wait: Option<Arc<WaitObject>>,
    ) -> Self {
        Self {
            domain: domain.clone(),
            capacity: options.capacity.max(1),
            format: options.format,
            context: options.context,
            credits_taken: AtomicUsize::new(0),
            entries: Mutex::default(),
            waiting: AtomicUsize::new(0),
            is_held: AtomicBool::new(false),
            is_signalled: AtomicBool::new(false),
            is_unread: false,
            endpoints: BoundEndpoints::default(),
            wait,
            vain_looks: AtomicU32::new(0),
        }
    }

    pub(crate) fn bind(&self, endpoint: Arc<EndpointShared>) {
        self.endpoints.bind(endpoint, |first, is_only| self.have_credits_kept(first, is_only));
        // Who sleeps has not armed it.
        self.notify();
    }

    /// What threads sleep on that wait for this queue.
    pub(crate) fn wait_object(&self) -> Option<&Arc<WaitObject>> {
        self.wait.as_ref()
    }

    fn pause(&self, timeout: Duration) -> Pause<'_> {
        let now = self.domain.fabric().clock().now();
        let vain = self.vain_looks.load(Ordering::Relaxed);
        let look = if vain < VAIN_LOOKS || vain.is_multiple_of(LOOK_AGAIN) {
            LOOK
        } else {
            Duration::ZERO
        };
        Pause {
            queue: self,
            timeout,
            deadline: now + timeout,
            sleep_at: now + look,
            polls: 0,
            slept: false,
        }
    }

    pub(crate) fn unbind(&self, endpoint: &Arc<EndpointShared>) {
        self.endpoints.unbind(endpoint, |first, is_only| self.have_credits_kept(first, is_only));
    }

    /// Has an endpoint keep credits or not.
    fn have_credits_kept(&self, by: &EndpointShared, keeps: bool) {
        drive!(by, driver => driver.keep_credits(self, keeps), _ => {});
    }

    /// Polls an endpoint in each read again.
    pub(crate) fn recall(&self, endpoint: &Arc<EndpointShared>) {
        self.endpoints.recall(endpoint);
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Takes up to `most` credits for completions to come. Returns how many, 0 if none was left.
    pub(crate) fn take_credits(&self, most: usize) -> usize {
        let available = |taken: usize| self.capacity.saturating_sub(taken).min(most);
        let take = |taken| Some(taken + available(taken)).filter(|&after| after > taken);
        let taken = self.credits_taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        taken.map_or(0, available)
    }

    /// How many credits are left.
    pub(crate) fn credits_left(&self) -> usize {
        self.capacity.saturating_sub(self.credits_taken.load(Ordering::Acquire))
    }

    pub(crate) fn return_credits(&self, count: usize) {
        self.credits_taken.fetch_sub(count, Ordering::AcqRel);
    }

    #[inline(always)]
    fn read_into(&self, entry: &mut Option<Entry>) -> bool {
        if self.has_entries() && self.pop_into(entry) {
            return true;
        }
        let poll = |endpoint: &EndpointShared| {
            endpoint.poll(Reader { queue: Some(self), room: &mut *entry })
        };
        self.endpoints.any(poll) || (self.has_entries() && self.pop_into(entry))
    }

    /// Appends completions until `into` has `end` of them, or no more are there.
    fn read_until(&self, into: &mut Vec<Entry>, end: usize) {
        while into.len() < end {
            if self.has_entries() {
                into.extend(self.pop());
                continue;
            }
            let (left, mut found) = ((end - into.len()).min(MOST_AT_ONCE), 0);
            let poll = |endpoint: &EndpointShared| {
                found = endpoint.poll_many(self, (into, left));
                found > 0
            };
            self.endpoints.any(poll);
            // The only endpoint has nothing more if it found less than was asked for.
            let is_done = found == 0 || (found < left && self.endpoints.has_one());
            if is_done && !self.has_entries() {
                break;
            }
        }
    }

    #[inline(never)]
    fn pop_into(&self, entry: &mut Option<Entry>) -> bool {
        let popped = self.pop();
        let found = popped.is_some();
        if found {
            *entry = popped;
        }
        found
    }

    #[inline]
    pub(crate) fn has_entries(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    /// Whether there is an entry, here or held by the program.
    fn has_something(&self) -> bool {
        self.has_entries() || self.is_held()
    }

    /// Appends a completion. Returns it if it holds no credit and the queue is full.
    #[must_use]
    pub(crate) fn push(&self, credit: Credit, entry: Entry) -> Option<Entry> {
        if self.is_unread {
            self.return_credits(usize::from(credit == Credit::Held));
            return None;
        }
        let mut entries = self.entries.lock();
        if credit == Credit::None && entries.len() >= self.capacity {
            return Some(entry);
        }
        entries.push_back((credit, entry));
        self.waiting.store(entries.len(), Ordering::Release);
        drop(entries);
        self.notify();
        None
    }

    #[inline]
    fn notify(&self) {
        if let Some(wait) = &self.wait {
            wait.notify();
        }
    }

    /// Appends the completions of an endpoint that is dropped, even to a full queue.
    pub(crate) fn append(&self, completions: impl Iterator<Item = (Credit, Entry)>) {
        if self.is_unread {
            return;
        }
        let mut entries = self.entries.lock();
        entries.extend(completions);
        self.waiting.store(entries.len(), Ordering::Release);
        drop(entries);
        self.notify();
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

    /// Whether a call that blocks is to return, once for each signal.
    fn take_signal(&self) -> bool {
        match &self.wait {
            Some(wait) => wait.take_interrupt(),
            None => {
                self.is_signalled.load(Ordering::Relaxed)
                    && self.is_signalled.swap(false, Ordering::AcqRel)
            }
        }
    }
}

impl Source for Shared {
    fn is_pending(&self) -> bool {
        if !self.has_entries() {
            self.endpoints.progress();
        }
        self.has_something()
    }

    fn prepare(&self) -> Result<(), TryWaitError> {
        let wait = self.wait.as_ref().ok_or(TryWaitError::NotWaitable)?;
        wait.reset();
        self.endpoints.prepare(wait, self.domain.fabric().clock(), || self.has_something())
    }

    fn wait_object(&self) -> Option<&WaitObject> {
        self.wait.as_deref()
    }

    #[cfg(feature = "tokio")]
    fn next_timeout(&self) -> Option<Time> {
        self.endpoints.next_timeout()
    }
}

impl sealed::Waitable for CompletionQueue {
    fn source(&self) -> Arc<dyn Source> {
        self.0.clone()
    }
}

/// How long a wait reads a waitable queue before the thread sleeps: about as long as falling asleep and
/// waking up take.
const LOOK: Duration = Duration::from_micros(20);
/// After so many waits that looked in vain, others sleep at once, but for each [`LOOK_AGAIN`]th: what comes later
/// than that is not found by looking, which only takes the processor from who sends it.
const VAIN_LOOKS: u32 = 4;
const LOOK_AGAIN: u32 = 32;

/// A thread that waits for a queue.
struct Pause<'a> {
    queue: &'a Shared,
    timeout: Duration,
    deadline: Time,
    sleep_at: Time,
    polls: u32,
    slept: bool,
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let vain = &self.queue.vain_looks;
        match (self.slept, self.polls) {
            (true, _) => drop(vain.fetch_add(1, Ordering::Relaxed)),
            // It looked, and found something.
            (false, 1..) => vain.store(0, Ordering::Relaxed),
            (false, 0) => {}
        }
    }
}

impl Pause<'_> {
    /// Lets time pass until the queue may have an entry.
    fn pass(&mut self) -> Result<(), WaitError> {
        let clock = self.queue.domain.fabric().clock();
        let now = clock.now();
        // Before a signal: it stays for the next wait.
        if self.queue.is_held() {
            return Err(WaitError::Held);
        }
        if self.queue.take_signal() {
            return Err(WaitError::Signalled);
        }
        if now >= self.deadline {
            return Err(WaitError::TimedOut(self.timeout));
        }
        self.polls = self.polls.wrapping_add(1);
        match &self.queue.wait {
            Some(_) if !clock.is_manual() && now < self.sleep_at => {}
            Some(wait) if !clock.is_manual() => {
                self.slept = true;
                wait.pass(|| self.queue.prepare(), self.deadline - now)?;
            }
            _ => {
                let next = self.queue.endpoints.next_timeout();
                clock.pass(next.map(|next| next.min(self.deadline)), self.polls);
            }
        }
        Ok(())
    }
}

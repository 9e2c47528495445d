//! Completion queues.
//!
//! ```text
//!  next ─► a completion is queued? ─► take it
//!                │ no
//!                └► a step of each queue pair that completes here ─► queued now?
//! ```
//!
//! Locks are held for the time of a step at most, and always taken in the order: queue pairs of the
//! completion queue, one queue pair, completions. Calls that destroy take one at a time, and don't wait
//! for one [without end](crate::process::Patience).
//!
//! With a [channel](crate::channel) the program can sleep: it arms the queue, which puts the links of the queue pairs to
//! [sleep](crate::queue_pair), and the next completion is announced on the channel. It arms it by a call, or by the
//! [doorbell](crate::direct::arming) of the ring.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::boundary::{BUSY, INVALID, Outcome, UNSUPPORTED, value};
use crate::channel::{Channel, Notifier, Unless};
use crate::completion::Completion;
use crate::direct::arming::{CompletionDoorbell, Request};
use crate::direct::ring::CompletionRing;
use crate::direct::trap::{self, Rung};
use crate::message::report;
use crate::process::{generation, lock, lock_in_time, process};
use crate::queue_pair::{QueuePair, Serial};
use crate::settings::DirectPath;

/// Polls without a completion after which the processor is yielded once: some 10 µs.
const IDLE_POLLS: u32 = 256;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    generation: u32,
    /// Most completions that the program hasn't polled.
    depth: usize,
    /// Whether it can have a ring, and who watches its doorbell.
    direct: DirectPath,
    completions: Mutex<Completions>,
    /// Of a queue with a channel.
    notifier: Option<Arc<Notifier>>,
    /// Of a queue with a channel and a ring.
    doorbell: OnceLock<CompletionDoorbell>,
    queue_pairs: Mutex<Vec<Arc<QueuePair>>>,
    /// Polls in a row without a completion.
    idle_polls: AtomicU32,
}

#[derive(Debug, Default)]
struct Completions {
    queued: VecDeque<Completion>,
    /// What was lost, by queue pair.
    lost: Vec<Lost>,
    /// Whether the next completion is announced.
    armed: Request,
    /// Where completions of queue pairs with rings are, if the program has asked for it.
    ring: Option<CompletionRing>,
}

/// Completions of a queue pair that were lost: the program never learns that these requests have ended, so their entries
/// of the send and the receive queue are never free again.
#[derive(Debug)]
struct Lost {
    serial: Serial,
    sends: usize,
    receives: usize,
}

impl Completions {
    /// Loses the oldest.
    fn lose(&mut self) {
        let Some(oldest) = self.queued.pop_front() else { return };
        let serial = oldest.serial;
        let known = self.lost.iter().position(|lost| lost.serial == serial);
        let at = known.unwrap_or_else(|| {
            self.lost.push(Lost { serial, sends: 0, receives: 0 });
            self.lost.len() - 1
        });
        let lost = &mut self.lost[at];
        lost.sends += usize::from(oldest.is_of_send_queue());
        lost.receives += usize::from(oldest.is_of_receive_queue());
    }

    fn forget(&mut self, serial: Serial) {
        self.queued.retain(|completion| completion.serial != serial);
        self.lost.retain(|lost| lost.serial != serial);
    }

    fn disarm(&mut self) -> Request {
        std::mem::take(&mut self.armed)
    }

    /// Announces the next completion, or tells that there are some which the program has not taken.
    fn arm(&mut self, request: Request, taken: Option<u16>) -> Request {
        let request = request.max(self.armed);
        let is_drained = |ring: &CompletionRing| taken.is_none_or(|taken| ring.is_drained(taken));
        if self.queued.is_empty() && self.ring.as_ref().is_none_or(is_drained) {
            self.armed = request;
            return Request::No;
        }
        self.armed = Request::No;
        request
    }
}

/// A ring of completions, as the program sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletionRingInfo {
    pub(crate) address: *mut u8,
    pub(crate) entries: u32,
    /// Null without a channel.
    pub(crate) doorbell: *mut u32,
}

impl CompletionQueue {
    /// With `ring`, completions of queue pairs with rings are there from the start.
    pub(crate) fn new(
        depth: usize,
        channel: Option<Arc<Channel>>,
        direct: DirectPath,
        ring: Option<CompletionRing>,
    ) -> Self {
        Self {
            generation: generation(),
            depth,
            direct,
            completions: Mutex::new(Completions { ring, ..Completions::default() }),
            notifier: channel.map(Notifier::new),
            doorbell: OnceLock::new(),
            queue_pairs: Mutex::default(),
            idle_polls: AtomicU32::new(0),
        }
    }

    /// Whether this process created it. In a forked child, threads that the child doesn't have may
    /// hold locks of the parent's queues.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.generation == generation()
    }

    /// Queues a completion. In a full queue it takes the place of the oldest: an interface doesn't know what the program
    /// has polled.
    #[inline]
    pub(crate) fn push(&self, completion: Completion) {
        let mut completions = lock(&self.completions);
        if completions.queued.len() >= self.depth {
            self.overrun(&mut completions);
        }
        completions.queued.push_back(completion);
        let armed = completions.disarm();
        if armed != Request::No {
            drop(completions);
            self.notify(armed);
        }
    }

    #[cold]
    fn overrun(&self, completions: &mut Completions) {
        let is_first = completions.lost.is_empty();
        completions.lose();
        if is_first {
            report(&format_args!(
                "a completion queue of {} entries is overrun, and completions are lost: it must have an entry for \
                 each request that is outstanding or not polled",
                self.depth
            ));
        }
    }

    /// Queues a completion of a queue pair with rings. Out of the way of those without.
    #[cold]
    #[inline(never)]
    pub(crate) fn push_to_ring(&self, completion: Completion) {
        let mut completions = lock(&self.completions);
        let Some(ring) = &mut completions.ring else {
            drop(completions);
            return self.push(completion);
        };
        ring.write(completion.to_descriptor().encode());
        if self.notifier.is_some() {
            let mut request = self.read_doorbell(&mut completions);
            request = request.max(completions.disarm());
            drop(completions);
            self.notify(request);
        }
    }

    /// The ring, made by the first call. Fails with `EOPNOTSUPP` for a queue with a channel if the program doesn't take
    /// the doorbell, as it couldn't wait for events.
    pub(crate) fn open_ring(
        self: &Arc<Self>,
        depth: u32,
        takes_doorbell: bool,
    ) -> Outcome<CompletionRingInfo> {
        if !self.is_ours() {
            return Err(INVALID);
        }
        let has_channel = self.notifier.is_some();
        if self.direct == DirectPath::Off || has_channel && !takes_doorbell {
            return Err(UNSUPPORTED);
        }
        let mut completions = lock(&self.completions);
        // First, as completions go to the ring as soon as there is one.
        let doorbell = if has_channel { self.open_doorbell()? } else { std::ptr::null_mut() };
        let ring = match completions.ring.take() {
            Some(ring) => ring,
            None => CompletionRing::new(depth)?,
        };
        let ring = completions.ring.insert(ring);
        let (address, entries) = (ring.address(), ring.entries());
        Ok(CompletionRingInfo { address, entries, doorbell })
    }

    // ---- the doorbell ------------------------------------------------------------------------

    /// The address of the doorbell, made by the first call. The lock of the completions must be held.
    fn open_doorbell(self: &Arc<Self>) -> Outcome<*mut u32> {
        if let Some(doorbell) = self.doorbell.get() {
            return Ok(doorbell.address());
        }
        let doorbell = CompletionDoorbell::new(self.direct)?;
        if doorbell.traps() {
            process().progress.run_promptly();
            let page = doorbell.page_address();
            trap::add(page, Rung::CompletionQueue(Arc::clone(self)))?;
        } else {
            process().watcher.watch_completions(self)?;
        }
        Ok(self.doorbell.get_or_init(|| doorbell).address())
    }

    /// Nobody looks at the doorbell any more.
    pub(crate) fn close_doorbell(&self) -> Outcome<()> {
        let Some(doorbell) = self.doorbell.get() else { return Ok(()) };
        process().watcher.forget_completions(self)?;
        trap::remove(doorbell.page_address());
        Ok(())
    }

    /// The program writes to its doorbell at `address`, which traps.
    pub(crate) fn ring(&self, address: usize, word: u32) {
        let Some(doorbell) = self.doorbell.get() else { return };
        doorbell.ring(address, word);
        // A signal handler of the program may be in the middle of a call: the next completion then finds the word.
        value((), || {
            self.serve_doorbell();
            if self.is_armed() {
                for queue_pair in &*lock(&self.queue_pairs) {
                    queue_pair.sleep();
                }
            }
        });
    }

    /// Ends that its doorbell traps.
    pub(crate) fn release_doorbell(&self) -> Outcome<()> {
        self.doorbell.get().map_or(Ok(()), CompletionDoorbell::release)
    }

    /// Reads what the program has written to the doorbell; returns whether there was anything.
    pub(crate) fn serve_doorbell(&self) -> bool {
        if !self.doorbell.get().is_some_and(CompletionDoorbell::is_rung) {
            return false;
        }
        let mut completions = lock(&self.completions);
        let request = self.read_doorbell(&mut completions);
        drop(completions);
        self.notify(request);
        true
    }

    /// Arms the queue if the doorbell asks for it. Returns what is to be announced at once.
    fn read_doorbell(&self, completions: &mut Completions) -> Request {
        match self.doorbell.get().and_then(CompletionDoorbell::take) {
            Some(word) if word.request != Request::No => {
                completions.arm(word.request, Some(word.taken))
            }
            _ => Request::No,
        }
    }

    // ---- notification ------------------------------------------------------------------------

    /// Queues an event on the channel, if it was asked for.
    #[cold]
    fn notify(&self, request: Request) {
        let unless = match request {
            Request::No => return,
            Request::Perhaps => Unless::Unread,
            Request::Yes => Unless::Never,
        };
        if let Some(notifier) = &self.notifier {
            notifier.notify(unless);
        }
    }

    /// `None` without a channel.
    pub(crate) fn notifier(&self) -> Option<&Arc<Notifier>> {
        self.notifier.as_ref()
    }

    /// Whether the program waits for the next completion.
    pub(crate) fn is_armed(&self) -> bool {
        self.notifier.is_some() && lock(&self.completions).armed != Request::No
    }

    /// Announces the next completion once, or those that were not polled at once: the interface compares
    /// what it has written with what the program has read.
    pub(crate) fn arm(&self) -> Outcome<()> {
        let notifier = self.notifier.as_ref().ok_or(INVALID)?;
        let at_once = lock(&self.completions).arm(Request::Yes, None);
        if at_once != Request::No {
            notifier.notify(Unless::Never);
            return Ok(());
        }
        for queue_pair in &*lock(&self.queue_pairs) {
            queue_pair.sleep();
        }
        Ok(())
    }

    // ---- completions -------------------------------------------------------------------------

    /// How many receives of a queue pair have completed that the program hasn't polled.
    pub(crate) fn unpolled_receives(&self, serial: Serial) -> usize {
        self.count(serial, Completion::is_of_receive_queue, |lost| lost.receives)
    }

    /// How many sends, reads and writes of a queue pair have completed that the program hasn't polled.
    pub(crate) fn unpolled_sends(&self, serial: Serial) -> usize {
        self.count(serial, Completion::is_of_send_queue, |lost| lost.sends)
    }

    fn count(
        &self,
        serial: Serial,
        matches: impl Fn(&Completion) -> bool,
        of_lost: impl Fn(&Lost) -> usize,
    ) -> usize {
        let completions = lock(&self.completions);
        let queued = completions.queued.iter().filter(|queued| queued.serial == serial);
        let lost = completions.lost.iter().filter(|lost| lost.serial == serial);
        queued.filter(|queued| matches(queued)).count() + lost.map(of_lost).sum::<usize>()
    }

    /// Takes the next completion, if one is queued or a step of the queue pairs produces one.
    #[inline]
    pub(crate) fn next(&self) -> Option<Completion> {
        let queued = lock(&self.completions).queued.pop_front();
        let next = queued.or_else(|| {
            for queue_pair in &*lock(&self.queue_pairs) {
                queue_pair.poll();
            }
            lock(&self.completions).queued.pop_front()
        });
        match next {
            Some(_) => self.idle_polls.store(0, Ordering::Relaxed),
            None => self.count_idle_poll(),
        }
        next
    }

    /// Yields the processor after every [`IDLE_POLLS`]: the peer that we wait for may need this one,
    /// and would wait for the end of our time slice.
    #[inline]
    fn count_idle_poll(&self) {
        let idle = self.idle_polls.load(Ordering::Relaxed) + 1;
        if idle < IDLE_POLLS {
            return self.idle_polls.store(idle, Ordering::Relaxed);
        }
        self.idle_polls.store(0, Ordering::Relaxed);
        std::thread::yield_now();
    }

    /// Adds a queue pair whose sends or receives, or both, complete here.
    pub(crate) fn add(&self, queue_pair: &Arc<QueuePair>) {
        let mut queue_pairs = lock(&self.queue_pairs);
        if !queue_pairs.iter().any(|other| Arc::ptr_eq(other, queue_pair)) {
            queue_pairs.push(Arc::clone(queue_pair));
        }
    }

    /// Removes a queue pair and its completions.
    pub(crate) fn remove(&self, queue_pair: &Arc<QueuePair>) -> Outcome<()> {
        lock_in_time(&self.queue_pairs)?.retain(|other| !Arc::ptr_eq(other, queue_pair));
        lock_in_time(&self.completions)?.forget(queue_pair.serial());
        Ok(())
    }

    /// Removes the completions of a queue pair.
    pub(crate) fn forget(&self, serial: Serial) {
        lock(&self.completions).forget(serial);
    }

    /// Fails with `EBUSY` while a queue pair completes here.
    pub(crate) fn check_unused(&self) -> Outcome<()> {
        if lock_in_time(&self.queue_pairs)?.is_empty() { Ok(()) } else { Err(BUSY) }
    }
}

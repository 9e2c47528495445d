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
//! With a [channel](crate::channel) the program can sleep: it arms the queue, which puts the links of the
//! queue pairs to [sleep](crate::queue_pair), and the next completion is announced on the channel.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::boundary::{BUSY, INVALID, Outcome, UNSUPPORTED};
use crate::channel::{Channel, Notifier};
use crate::completion::Completion;
use crate::direct::ring::CompletionRing;
use crate::message::report;
use crate::process::{generation, lock, lock_in_time};
use crate::queue_pair::{QueuePair, Serial};

/// Polls without a completion after which the processor is yielded once: some 10 µs.
const IDLE_POLLS: u32 = 256;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    generation: u32,
    /// Most completions that the program hasn't polled.
    depth: usize,
    /// Whether it can have a ring.
    direct: bool,
    completions: Mutex<Completions>,
    /// Of a queue with a channel.
    notifier: Option<Arc<Notifier>>,
    queue_pairs: Mutex<Vec<Arc<QueuePair>>>,
    /// Polls in a row without a completion.
    idle_polls: AtomicU32,
}

#[derive(Debug, Default)]
struct Completions {
    queued: VecDeque<Completion>,
    /// Whether completions were lost.
    is_overrun: bool,
    /// Whether the next completion is announced.
    armed: bool,
    /// Where completions of queue pairs with rings are, if the program has asked for it.
    ring: Option<CompletionRing>,
}

impl Completions {
    fn disarm(&mut self) -> bool {
        std::mem::take(&mut self.armed)
    }
}

impl CompletionQueue {
    /// With `ring`, completions of queue pairs with rings are there from the start.
    pub(crate) fn new(
        depth: usize,
        channel: Option<Arc<Channel>>,
        direct: bool,
        ring: Option<CompletionRing>,
    ) -> Self {
        Self {
            generation: generation(),
            depth,
            direct,
            completions: Mutex::new(Completions { ring, ..Completions::default() }),
            notifier: channel.map(Notifier::new),
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
        if completions.disarm() {
            drop(completions);
            self.notify();
        }
    }

    #[cold]
    fn overrun(&self, completions: &mut Completions) {
        completions.queued.pop_front();
        if !std::mem::replace(&mut completions.is_overrun, true) {
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
    }

    /// The address of the ring and how many entries it has; made by the first call. Fails with `EOPNOTSUPP` for a
    /// queue with a channel.
    pub(crate) fn open_ring(&self, depth: u32) -> Outcome<(*mut u8, u32)> {
        if !self.is_ours() {
            return Err(INVALID);
        }
        if self.notifier.is_some() || !self.direct {
            return Err(UNSUPPORTED);
        }
        let mut completions = lock(&self.completions);
        let ring = match completions.ring.take() {
            Some(ring) => ring,
            None => CompletionRing::new(depth)?,
        };
        let ring = completions.ring.insert(ring);
        Ok((ring.address(), ring.entries()))
    }

    // ---- notification ------------------------------------------------------------------------

    /// Queues an event on the channel.
    #[cold]
    fn notify(&self) {
        if let Some(notifier) = &self.notifier {
            notifier.notify();
        }
    }

    /// `None` without a channel.
    pub(crate) fn notifier(&self) -> Option<&Arc<Notifier>> {
        self.notifier.as_ref()
    }

    /// Whether the program waits for the next completion.
    pub(crate) fn is_armed(&self) -> bool {
        self.notifier.is_some() && lock(&self.completions).armed
    }

    /// Announces the next completion once, or those that were not polled at once: the interface compares
    /// what it has written with what the program has read.
    pub(crate) fn arm(&self) -> Outcome<()> {
        let notifier = self.notifier.as_ref().ok_or(INVALID)?;
        let mut completions = lock(&self.completions);
        if !completions.queued.is_empty() {
            completions.armed = false;
            drop(completions);
            notifier.notify();
            return Ok(());
        }
        completions.armed = true;
        drop(completions);
        for queue_pair in &*lock(&self.queue_pairs) {
            queue_pair.sleep();
        }
        Ok(())
    }

    // ---- completions -------------------------------------------------------------------------

    /// How many receives of a queue pair have completed that the program hasn't polled.
    pub(crate) fn unpolled_receives(&self, serial: Serial) -> usize {
        self.count(|completion| completion.serial == serial && completion.is_of_receive_queue())
    }

    /// How many sends, reads and writes of a queue pair have completed that the program hasn't polled.
    pub(crate) fn unpolled_sends(&self, serial: Serial) -> usize {
        self.count(|completion| completion.serial == serial && completion.is_of_send_queue())
    }

    fn count(&self, matches: impl Fn(&Completion) -> bool) -> usize {
        lock(&self.completions).queued.iter().filter(|completion| matches(completion)).count()
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
        let mut completions = lock_in_time(&self.completions)?;
        completions.queued.retain(|completion| completion.serial != queue_pair.serial());
        Ok(())
    }

    /// Removes the completions of a queue pair.
    pub(crate) fn forget(&self, serial: Serial) {
        lock(&self.completions).queued.retain(|completion| completion.serial != serial);
    }

    /// Fails with `EBUSY` while a queue pair completes here.
    pub(crate) fn check_unused(&self) -> Outcome<()> {
        if lock_in_time(&self.queue_pairs)?.is_empty() { Ok(()) } else { Err(BUSY) }
    }
}

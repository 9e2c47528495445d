//! The work that an endpoint has to do besides polling the device, and when it is due.
//!
//! ```text
//!   completions ──────────────────┐
//!   peers with a backlog ─────────┤
//!   peers in RNR backoff ─────────┼─► due ─► one comparison in a call that finds nothing to do
//!   peers that wait for a pause ──┤
//!   peers that wait for room ─────┤
//!   the next trim ────────────────┘
//! ```

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use efa_device::Time;

use crate::completion::Completion;
use crate::ids::PeerId;
use crate::peer::Active;

/// Completions and peers to be handled. Every method that adds one also updates the due time that
/// [`is_due`](Self::is_due) compares.
#[derive(Debug)]
pub(crate) struct Schedule<B> {
    due: Time,
    /// What is due without the completions.
    due_besides: Time,
    completions: VecDeque<Completion<B>>,
    ready: VecDeque<PeerId>,
    /// The device's queue was full when `ready` peers were last served.
    blocked: bool,
    /// Peers to which packets would wait in the device's queue.
    crowded: VecDeque<PeerId>,
    backing_off: BinaryHeap<Reverse<(Time, PeerId)>>,
    pausing: VecDeque<PeerId>,
}

impl<B> Schedule<B> {
    pub(crate) fn new() -> Self {
        Self {
            due: Time::ZERO,
            due_besides: Time::ZERO,
            completions: VecDeque::new(),
            ready: VecDeque::new(),
            blocked: false,
            crowded: VecDeque::new(),
            backing_off: BinaryHeap::new(),
            pausing: VecDeque::new(),
        }
    }

    /// Whether there is work other than the device's completions.
    #[inline(always)]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        now >= self.due
    }

    /// Makes the next call find work.
    #[inline(always)]
    pub(crate) fn at_once(&mut self) {
        self.due_besides = Time::ZERO;
        self.due = Time::ZERO;
    }

    /// Computes the due time after all work was done: at once if completions or peers wait, else the
    /// earlier of `next` and the end of the first backoff.
    pub(crate) fn update_due(&mut self, next: Time) {
        let waits = self.has_ready() || self.has_pausing_or_crowded();
        let backoff = self.next_backoff().unwrap_or(next);
        self.due_besides = if waits { Time::ZERO } else { next.min(backoff) };
        self.due = if self.completions.is_empty() { self.due_besides } else { Time::ZERO };
    }

    /// Queues a completion for the application.
    pub(crate) fn complete(&mut self, completion: Completion<B>) {
        self.completions.push_back(completion);
        self.due = Time::ZERO;
    }

    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    #[inline]
    pub(crate) fn next_completion(&mut self) -> Option<Completion<B>> {
        let completion = self.completions.pop_front();
        if self.completions.is_empty() {
            self.due = self.due_besides;
        }
        completion
    }

    /// Queues a peer to be served, if it has a backlog and is neither queued nor in backoff.
    #[inline]
    pub(crate) fn serve_if_due<P>(&mut self, peer: PeerId, active: &mut Active<P, B>) {
        if !active.scheduled && !active.backoff.is_waiting() && !active.backlog.is_empty() {
            active.scheduled = true;
            self.ready.push_back(peer);
            self.at_once();
        }
    }

    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn next_ready(&mut self) -> Option<PeerId> {
        self.blocked = false;
        self.ready.pop_front()
    }

    /// Puts a peer back to the front of the queue, because the device's queue is full.
    pub(crate) fn put_back(&mut self, peer: PeerId) {
        self.ready.push_front(peer);
        self.blocked = true;
        self.at_once();
    }

    /// Keeps a peer that was ready until one of the next calls: packets to it would wait in the device's queue. An application
    /// that sleeps until then is woken by the device, which completes those that wait.
    pub(crate) fn crowd<P>(&mut self, peer: PeerId, active: &mut Active<P, B>) {
        active.crowded = true;
        self.crowded.push_back(peer);
    }

    /// Removes and returns the one of those peers that has waited longest. The caller queues it to be served.
    pub(crate) fn take_crowded(&mut self) -> Option<PeerId> {
        self.crowded.pop_front()
    }

    /// Whether the device's queue was full when a peer was last served.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Starts a peer's RNR backoff, which ends at `until`.
    pub(crate) fn back_off_until(&mut self, peer: PeerId, until: Time) {
        self.backing_off.push(Reverse((until, peer)));
        self.due_besides = self.due_besides.min(until);
        self.due = self.due.min(until);
    }

    /// The end of the first backoff.
    pub(crate) fn next_backoff(&self) -> Option<Time> {
        self.backing_off.peek().map(|Reverse((until, _))| *until)
    }

    /// Removes and returns a peer whose backoff is over.
    pub(crate) fn end_backoff(&mut self, now: Time) -> Option<PeerId> {
        let over = self.next_backoff().is_some_and(|until| until <= now);
        over.then(|| self.backing_off.pop()).flatten().map(|Reverse((_, peer))| peer)
    }

    /// Adds a peer whose messages wait until no packet is in flight to it (see `send_window`).
    pub(crate) fn pause(&mut self, peer: PeerId) {
        self.pausing.push_back(peer);
        self.at_once();
    }

    pub(crate) fn has_pausing(&self) -> bool {
        !self.pausing.is_empty()
    }

    #[inline(always)]
    pub(crate) fn has_pausing_or_crowded(&self) -> bool {
        self.pausing.len() + self.crowded.len() > 0
    }

    /// Removes and returns the peer that waits longest for its look.
    pub(crate) fn take_pausing(&mut self) -> Option<PeerId> {
        self.pausing.pop_front()
    }
}

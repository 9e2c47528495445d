//! What waits besides the device, and when something is to be done for it.
//!
//! ```text
//!   completions ──────────────────┐
//!   peers with something to send ─┤
//!   peers left alone for a while ─┼─► due ─► one comparison in a call that finds nothing to do
//!   peers that wait for a pause ──┤
//!   the next trim ────────────────┘
//! ```

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use efa_device::Time;

use crate::completion::Completion;
use crate::ids::PeerId;
use crate::peer::Active;

/// What waits. Nothing can be added that [`is_due`](Self::is_due) doesn't tell of.
#[derive(Debug)]
pub(crate) struct Schedule<B> {
    due: Time,
    completions: VecDeque<Completion<B>>,
    ready: VecDeque<PeerId>,
    /// The device took no more when they were served last.
    blocked: bool,
    backing_off: BinaryHeap<Reverse<(Time, PeerId)>>,
    pausing: Vec<PeerId>,
}

impl<B> Schedule<B> {
    pub(crate) fn new() -> Self {
        Self {
            due: Time::ZERO,
            completions: VecDeque::new(),
            ready: VecDeque::new(),
            blocked: false,
            backing_off: BinaryHeap::new(),
            pausing: Vec::new(),
        }
    }

    /// Whether something is to be done whatever the device has to tell.
    #[inline(always)]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        now >= self.due
    }

    /// Something is to be done in the next call.
    #[inline(always)]
    pub(crate) fn at_once(&mut self) {
        self.due = Time::ZERO;
    }

    /// All that could be done is done; the next is due at this time, or before if something waits.
    pub(crate) fn settle(&mut self, next: Time) {
        let waits =
            !(self.completions.is_empty() && self.ready.is_empty() && self.pausing.is_empty());
        let backoff = self.next_backoff().unwrap_or(next);
        self.due = if waits { Time::ZERO } else { next.min(backoff) };
    }

    /// An operation has ended, besides what the device just told.
    pub(crate) fn complete(&mut self, completion: Completion<B>) {
        self.completions.push_back(completion);
        self.at_once();
    }

    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    #[inline]
    pub(crate) fn next_completion(&mut self) -> Option<Completion<B>> {
        self.completions.pop_front()
    }

    /// Queues a peer to be served, if something waits to be sent to it and it isn't queued or backing off.
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

    /// The device takes no more: a peer is the first to be served when it does.
    pub(crate) fn put_back(&mut self, peer: PeerId) {
        self.ready.push_front(peer);
        self.blocked = true;
        self.at_once();
    }

    /// Whether the device took no more.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// A peer is to be left alone until then.
    pub(crate) fn back_off_until(&mut self, peer: PeerId, until: Time) {
        self.backing_off.push(Reverse((until, peer)));
        self.due = self.due.min(until);
    }

    /// When the first peer has been left alone for long enough.
    pub(crate) fn next_backoff(&self) -> Option<Time> {
        self.backing_off.peek().map(|Reverse((until, _))| *until)
    }

    /// A peer that has been left alone for long enough.
    pub(crate) fn end_backoff(&mut self, now: Time) -> Option<PeerId> {
        let over = self.next_backoff().is_some_and(|until| until <= now);
        over.then(|| self.backing_off.pop()).flatten().map(|Reverse((_, peer))| peer)
    }

    /// A peer's messages wait until nothing is in flight to it.
    pub(crate) fn pause(&mut self, peer: PeerId) {
        self.pausing.push(peer);
        self.at_once();
    }

    pub(crate) fn has_pausing(&self) -> bool {
        !self.pausing.is_empty()
    }

    pub(crate) fn take_pausing(&mut self) -> Vec<PeerId> {
        core::mem::take(&mut self.pausing)
    }
}

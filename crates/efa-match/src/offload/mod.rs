//! The software half of the tag-matching offload ("RDMA tag matching offload"): posted receives are
//! split between a short list in the device and the matcher here, and MPI's order holds across both.
//!
//! ```text
//!   posted order   r1 r2 r3 r4 │ r5 r6 r7 …
//!                  ───────────   ──────────
//!                  device's list  software only      always a prefix of all receives
//!
//!   application ── post, cancel ──► Offload ── poll_command: ADD DEL SYNC ──► device
//!        ▲                           │   ▲                                      │
//!        └─── receive, message ──────┘   └── matched, unexpected, op_completed ─┘
//! ```
//!
//! # Reason the order holds
//!
//! A message that matches an entry of the device's list goes to the earliest one; all receives that only
//! software holds were posted later. A message that matches none is *unexpected* to the device: the
//! device counts it, and software looks for its receive here. Between the two there is a race: a receive
//! that is added to the device while an unexpected message for it is on the way to software would wrongly
//! get the next message. So every command carries the number of unexpected messages that software has
//! handled, and the device holds entries back until that equals its own count. Three rules follow:
//!
//! 1. A receive is added to the device only if it accepts no unexpected message here (posting checks).
//! 2. An unexpected message may match a receive that is on the device. That entry is held back for
//!    certain, so it is deleted there; message and receive are returned when that has completed.
//! 3. A command reports an unexpected message only after the deletes that the message caused have been
//!    posted, or if it is the last of them: reporting is what makes held-back entries live.

#[cfg(test)]
mod explore;
mod list;
mod types;

use std::collections::VecDeque;

pub use list::{Entry, MatchList, Synchronisation};
pub use types::{Cancelled, Change, Command, Handled, ListLimits, Location, Outcome, Violation};

use crate::{Forgotten, Match, Matcher, MessageId, Pattern, PostId, Posted, Source};

/// Who holds a posted receive, by the index of its [`PostId`].
#[derive(Debug, Clone, Copy)]
enum Holder {
    Software,
    /// Added to the device by this command, under this handle.
    Device {
        add: u64,
        handle: u32,
    },
}

/// A receive that waits to be added to the device, unless it is matched or cancelled before.
#[derive(Debug, Clone, Copy)]
struct Queued {
    post: PostId,
    /// Tag and mask, or `None` if the device cannot hold it.
    key: Option<(u64, u64)>,
}

/// A receive that is to be deleted from the device, and reason.
#[derive(Debug, Clone)]
struct Deletion<R, M> {
    post: PostId,
    handle: u32,
    reason: Reason<R, M>,
}

/// Why a receive is deleted from the device.
#[derive(Debug, Clone)]
enum Reason<R, M> {
    /// It gets this unexpected message.
    Matched(R, M),
    Cancelled(R),
    /// It was returned by [`Offload::drain_receives`] without waiting for the device.
    Drained,
    /// The device matched it before it could be deleted.
    AlreadyMatched,
}

/// A command that has not completed.
#[derive(Debug, Clone)]
enum Outstanding<R, M> {
    Add(PostId),
    Delete(Deletion<R, M>),
    Sync,
}

/// Posted receives on a device and in software, and unexpected messages.
///
/// The caller passes on what the device reports, *in the device's order*, and polls for commands.
/// Receives and handles of messages are the caller's, as with [`Matcher`]. Only software compares
/// sources; what the device has to compare must be in the tag ([`Envelope`](crate::Envelope)).
#[derive(Debug, Clone)]
pub struct Offload<R, M> {
    limits: ListLimits,
    /// All receives, whoever holds them, and the unexpected messages.
    matcher: Matcher<R, M>,
    holders: Vec<Holder>,
    /// Receives in software in the order of posting, and some that are no longer posted.
    queue: VecDeque<Queued>,
    /// Most entries that the device's list can have now.
    in_device: u32,
    /// Deletes that have not been posted.
    deletions: VecDeque<Deletion<R, M>>,
    /// Deletes that the device never completed, or completed in violation of the protocol.
    unanswered: Vec<Deletion<R, M>>,
    /// Commands that may not have completed.
    ops: VecDeque<Outstanding<R, M>>,
    /// The number of the next command; the device gets the low 32 bits.
    next_op: u64,
    /// Commands since the last one that asked for a completion.
    unsignalled: u32,
    /// Unexpected messages handled.
    handled: u32,
    /// The value of `handled` that the last command reported.
    reported: u32,
    /// The number of the last command that added an entry.
    last_add: u64,
    /// Entries added up to this command are known to be live.
    live_to: u64,
}

impl<R, M: Copy> Offload<R, M> {
    /// An empty matcher. The seed keys the hashes, see [`Matcher::with_seed`].
    ///
    /// # Panics
    ///
    /// If `max_ops` is zero.
    #[must_use]
    pub fn new(limits: ListLimits, seed: u64) -> Self {
        assert!(limits.max_ops > 0, "a device takes at least one command at a time");
        Self {
            limits,
            matcher: Matcher::with_seed(seed),
            holders: Vec::new(),
            queue: VecDeque::new(),
            in_device: 0,
            deletions: VecDeque::new(),
            unanswered: Vec::new(),
            ops: VecDeque::with_capacity(limits.max_ops as usize),
            next_op: 1,
            unsignalled: 0,
            handled: 0,
            reported: 0,
            last_add: 0,
            live_to: 0,
        }
    }

    /// The same for a device whose count of unexpected messages starts at `count`.
    #[must_use]
    pub fn counting_from(mut self, count: u32) -> Self {
        (self.handled, self.reported) = (count, count);
        self
    }

    /// Posts a receive: it gets the earliest unexpected message that it accepts, or waits, and is added to
    /// the device in turn. A receive with a source stays in software, and so do those posted after it as
    /// long as it waits.
    #[inline]
    pub fn post(&mut self, pattern: Pattern, receive: R) -> Posted<R, M> {
        let key = pattern.source.is_none().then_some((pattern.tag, !pattern.ignore));
        self.post_with(pattern, receive, key)
    }

    /// Posts a receive that the device cannot hold, such as one with too many buffers.
    pub fn post_in_software(&mut self, pattern: Pattern, receive: R) -> Posted<R, M> {
        self.post_with(pattern, receive, None)
    }

    #[inline]
    fn post_with(&mut self, pattern: Pattern, receive: R, key: Option<(u64, u64)>) -> Posted<R, M> {
        let posted = self.matcher.post(pattern, receive);
        if let Posted::Waiting(post) = posted {
            self.enqueue(post, key);
        }
        posted
    }

    /// Posts a receive that stays after a match, in software; see [`Matcher::post_lasting`].
    pub fn post_lasting(&mut self, pattern: Pattern, receive: R) -> PostId {
        let post = self.matcher.post_lasting(pattern, receive);
        self.enqueue(post, None);
        post
    }

    #[inline]
    fn enqueue(&mut self, post: PostId, key: Option<(u64, u64)>) {
        let index = post.index as usize;
        if self.holders.len() <= index {
            self.holders.resize(index + 1, Holder::Software);
        }
        self.holders[index] = Holder::Software;
        if self.queue.len() == self.queue.capacity() {
            self.drop_stale();
        }
        self.queue.push_back(Queued { post, key });
    }

    /// Removes receives that are no longer posted from the queue before it grows, if that frees half of it
    /// (else each post could cost a pass over the queue).
    #[cold]
    fn drop_stale(&mut self) {
        // Entries with a pending delete count as on the device but are no longer posted.
        let live = self.matcher.posted_len().saturating_sub(self.in_device as usize);
        if live <= self.queue.len() / 2 {
            self.queue.retain(|queued| self.matcher.is_posted(queued.post));
        }
    }

    /// The next command for the device, if there is one and fewer than `max_ops` are outstanding.
    ///
    /// Poll after passing on everything that the device has reported: polling earlier is correct, but may
    /// cause an unnecessary SYNC.
    #[inline]
    pub fn poll_command(&mut self) -> Option<Command> {
        if self.deletions.is_empty() && self.queue.is_empty() && self.handled == self.reported {
            return None;
        }
        self.next_command()
    }

    fn next_command(&mut self) -> Option<Command> {
        if self.ops.len() >= self.limits.max_ops as usize {
            return None;
        }
        let op = self.next_op;
        let (change, record, must_signal) = if let Some(deletion) = self.deletions.pop_front() {
            let Deletion { post, handle, .. } = deletion;
            // The device executes commands in order, so the next one finds the entry deleted.
            self.in_device -= 1;
            (Change::Delete { post, handle }, Outstanding::Delete(deletion), true)
        } else if let Some((post, (tag, mask))) = self.next_to_add() {
            self.queue.pop_front();
            self.holders[post.index as usize] = Holder::Device { add: op, handle: 0 };
            self.in_device += 1;
            self.last_add = op;
            (Change::Add { post, tag, mask }, Outstanding::Add(post), false)
        } else if self.handled != self.reported && self.may_be_held_back() {
            (Change::Sync, Outstanding::Sync, true)
        } else {
            return None;
        };
        // Rule 3: a message is not reported before its delete is posted.
        if self.deletions.is_empty() {
            self.reported = self.handled;
        }
        self.next_op = op + 1;
        self.unsignalled += 1;
        let signalled = must_signal || self.unsignalled * 2 >= self.limits.max_ops;
        if signalled {
            self.unsignalled = 0;
        }
        self.ops.push_back(record);
        Some(Command { op: op as u32, change, unexpected: self.reported, signalled })
    }

    /// The receive to be added to the device next.
    fn next_to_add(&mut self) -> Option<(PostId, (u64, u64))> {
        if self.in_device >= self.limits.max_tags {
            return None;
        }
        while let Some(&Queued { post, key }) = self.queue.front() {
            if self.matcher.is_posted(post) {
                return Some((post, key?));
            }
            self.queue.pop_front();
        }
        None
    }

    /// Records the device's handle of an added entry; due before the next poll.
    #[inline]
    pub fn added(&mut self, post: PostId, new: u32) {
        if let Some(Holder::Device { handle, .. }) = self.holders.get_mut(post.index as usize) {
            *handle = new;
        }
        if !self.deletions.is_empty() {
            self.set_deletion_handle(post, new);
        }
    }

    /// Records the handle of an entry whose receive has been matched or cancelled meanwhile.
    #[cold]
    fn set_deletion_handle(&mut self, post: PostId, handle: u32) {
        for deletion in self.deletions.iter_mut().filter(|deletion| deletion.post == post) {
            deletion.handle = handle;
        }
    }

    /// The device matched an entry of its list with a message; returns the receive, which is no longer
    /// posted. `None`: [`drain_receives`](Self::drain_receives) has returned it already.
    ///
    /// # Errors
    ///
    /// The device violated the tag-list protocol.
    #[inline]
    pub fn matched(&mut self, post: PostId) -> Result<Option<R>, Violation> {
        let Some(&Holder::Device { add, .. }) = self.holders.get(post.index as usize) else {
            return self.matched_during_deletion(post);
        };
        let Some(receive) = self.matcher.cancel(post) else {
            return self.matched_during_deletion(post);
        };
        self.in_device -= 1;
        self.note_live(add);
        Ok(Some(receive))
    }

    /// A match of an entry with a pending delete.
    #[cold]
    fn matched_during_deletion(&mut self, post: PostId) -> Result<Option<R>, Violation> {
        let Some(deletion) = self.all_deletions().find(|deletion| deletion.post == post) else {
            return Err(Violation::UnknownEntry { post });
        };
        match std::mem::replace(&mut deletion.reason, Reason::AlreadyMatched) {
            Reason::Cancelled(receive) => Ok(Some(receive)),
            Reason::Drained => Ok(None),
            reason @ Reason::Matched(..) => {
                deletion.reason = reason;
                Err(Violation::OutOfOrder { post })
            }
            Reason::AlreadyMatched => Err(Violation::UnknownEntry { post }),
        }
    }

    /// All deletes that have not completed, the oldest first.
    fn all_deletions(&mut self) -> impl Iterator<Item = &mut Deletion<R, M>> {
        let under_way = self.ops.iter_mut().filter_map(|op| match op {
            Outstanding::Delete(deletion) => Some(deletion),
            _ => None,
        });
        self.unanswered.iter_mut().chain(under_way).chain(&mut self.deletions)
    }

    /// Whether the device may be holding entries back.
    fn may_be_held_back(&self) -> bool {
        self.in_device > 0 && self.last_add > self.live_to
    }

    /// Entries added up to this command are live: all entries become live together.
    #[inline]
    fn note_live(&mut self, op: u64) {
        self.live_to = self.live_to.max(op);
    }

    /// The device reported an unexpected message.
    #[inline]
    pub fn unexpected(&mut self, source: Source, tag: u64, message: M) -> Handled<R> {
        self.handled = self.handled.wrapping_add(1);
        let (post, receive) = match self.matcher.match_identified(source, tag) {
            None => return Handled::Unexpected(self.matcher.keep_message(source, tag, message)),
            Some((_, Match::Lasting(post))) => return Handled::Matched(Match::Lasting(post)),
            Some((post, Match::Once(receive))) => (post, receive),
        };
        let Holder::Device { handle, .. } = self.holders[post.index as usize] else {
            return Handled::Matched(Match::Once(receive));
        };
        self.deletions.push_back(Deletion {
            post,
            handle,
            reason: Reason::Matched(receive, message),
        });
        Handled::Pending
    }

    /// The device reported as unexpected, and counted, something that needs no receive: the end of a
    /// rendezvous, or bytes that are not a message.
    pub fn unexpected_other(&mut self) {
        self.handled = self.handled.wrapping_add(1);
    }

    /// A command completed or failed, and so did those before it. `sync_required` is the completion's flag
    /// (`IBV_WC_TM_SYNC_REQ`).
    ///
    /// # Errors
    ///
    /// The device violated the tag-list protocol. A receive whose delete the device skipped or contradicted
    /// is not lost: [`drain_receives`](Self::drain_receives) returns it.
    pub fn op_completed(
        &mut self,
        op: u32,
        succeeded: bool,
        sync_required: bool,
    ) -> Result<Option<Outcome<R, M>>, Violation> {
        let outstanding = self.ops.len();
        let begin = self.next_op - outstanding as u64;
        let first = begin as u32;
        let before = op.wrapping_sub(first) as usize;
        if before >= outstanding {
            return Err(Violation::UnknownCommand { op, first, outstanding });
        }
        for _ in 0..before {
            if let Some(Outstanding::Delete(deletion)) = self.ops.pop_front() {
                self.unanswered.push(deletion);
            }
        }
        let done = self.ops.pop_front();
        if !sync_required {
            self.note_live(begin + before as u64);
        }
        match done {
            Some(Outstanding::Delete(Deletion { post, handle, reason })) => {
                match (reason, succeeded) {
                    (Reason::Matched(receive, message), true) => {
                        Ok(Some(Outcome::Matched(receive, message)))
                    }
                    (Reason::Cancelled(receive), true) => Ok(Some(Outcome::Cancelled(receive))),
                    (Reason::Drained, true) | (Reason::AlreadyMatched, false) => Ok(None),
                    (reason, _) => {
                        self.unanswered.push(Deletion { post, handle, reason });
                        Err(Violation::DeleteContradicted { post })
                    }
                }
            }
            Some(Outstanding::Add(post)) if !succeeded => Err(Violation::AddRefused { post }),
            _ => Ok(None),
        }
    }

    /// Cancels this receive, if it is still posted.
    pub fn cancel(&mut self, post: PostId) -> Cancelled<R> {
        let Some(receive) = self.matcher.cancel(post) else { return Cancelled::NotPosted };
        let Holder::Device { handle, .. } = self.holders[post.index as usize] else {
            return Cancelled::Now(receive);
        };
        self.deletions.push_back(Deletion { post, handle, reason: Reason::Cancelled(receive) });
        Cancelled::Pending
    }

    /// The earliest unexpected message that the pattern accepts; it stays. See [`Matcher::peek`].
    pub fn peek(&mut self, pattern: &Pattern) -> Option<M> {
        self.matcher.peek(pattern)
    }

    /// Removes the earliest unexpected message that the pattern accepts. See [`Matcher::take`].
    pub fn take(&mut self, pattern: &Pattern) -> Option<M> {
        self.matcher.take(pattern)
    }

    /// The receive that was posted first of those that `which` selects, whoever holds it. See
    /// [`Matcher::find_receive`].
    pub fn find_receive(&self, which: impl FnMut(&R) -> bool) -> Option<PostId> {
        self.matcher.find_receive(which)
    }

    /// Removes this unexpected message, if it still waits. See [`Matcher::withdraw`].
    pub fn withdraw(&mut self, message: MessageId) -> Option<M> {
        self.matcher.withdraw(message)
    }

    /// Removes everything of a source, whose receives are all in software. See
    /// [`Matcher::forget_source`].
    pub fn forget_source(&mut self, source: Source) -> Forgotten<R, M> {
        self.matcher.forget_source(source)
    }

    /// Removes all receives at once: first those with a pending delete, with the messages that waited for
    /// it, then the others in the order of posting. Other messages stay.
    ///
    /// Entries on the device are deleted there, without an [`Outcome`]. Until then the device may still match
    /// them: [`matched`](Self::matched) returns `None` then, and no receive gets the message.
    pub fn drain_receives(&mut self) -> Forgotten<R, M> {
        let (mut receives, mut messages) = (Vec::new(), Vec::new());
        for deletion in self.all_deletions() {
            match std::mem::replace(&mut deletion.reason, Reason::Drained) {
                Reason::Cancelled(receive) => receives.push(receive),
                Reason::Matched(receive, message) => {
                    receives.push(receive);
                    messages.push(message);
                }
                Reason::Drained => {}
                Reason::AlreadyMatched => deletion.reason = Reason::AlreadyMatched,
            }
        }
        self.unanswered.clear();
        for post in self.matcher.posts() {
            if let Holder::Device { handle, .. } = self.holders[post.index as usize] {
                self.deletions.push_back(Deletion { post, handle, reason: Reason::Drained });
            }
        }
        self.queue.clear();
        receives.extend(self.matcher.drain_receives());
        Forgotten { receives, messages }
    }

    /// This receive, if it is posted.
    #[must_use]
    pub fn receive(&self, post: PostId) -> Option<&R> {
        self.matcher.receive(post)
    }

    /// This receive, if it is posted.
    pub fn receive_mut(&mut self, post: PostId) -> Option<&mut R> {
        self.matcher.receive_mut(post)
    }

    /// Who holds a receive, if it is posted.
    #[must_use]
    pub fn location(&self, post: PostId) -> Option<Location> {
        self.matcher.is_posted(post).then(|| match self.holders[post.index as usize] {
            Holder::Software => Location::Software,
            Holder::Device { .. } => Location::Device,
        })
    }

    /// Most entries that the device's list can have now; those being added count.
    #[must_use]
    pub fn in_device(&self) -> u32 {
        self.in_device
    }

    /// Number of posted receives, in software and on the device.
    #[must_use]
    pub fn posted_len(&self) -> usize {
        self.matcher.posted_len()
    }

    /// Number of unexpected messages.
    #[must_use]
    pub fn unexpected_len(&self) -> usize {
        self.matcher.unexpected_len()
    }

    /// Number of unexpected messages handled, wrapping.
    #[must_use]
    pub fn handled(&self) -> u32 {
        self.handled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if so many more commands had been posted and completed.
    fn pass(offload: &mut Offload<u32, u32>, commands: u32) {
        offload.next_op += u64::from(commands);
        let last = offload.next_op - 1;
        (offload.last_add, offload.live_to) = (last, last);
    }

    #[test]
    fn match_of_old_entry_does_not_imply_that_later_entries_are_live() {
        for commands in [5, 1 << 31, u32::MAX] {
            let mut offload = Offload::new(ListLimits { max_tags: 8, max_ops: 8 }, 0);
            let add = |offload: &mut Offload<u32, u32>, tag, receive| {
                let Posted::Waiting(post) = offload.post(Pattern::any_source(tag), receive) else {
                    panic!("no message has arrived")
                };
                let command = offload.poll_command().unwrap();
                offload.added(post, receive);
                (post, command.op)
            };
            let (old, op) = add(&mut offload, 1, 1);
            assert_eq!(offload.op_completed(op, true, false), Ok(None));
            pass(&mut offload, commands);
            // An unexpected message arrives while another receive is added, which is held back.
            let (_, op) = add(&mut offload, 2, 2);
            assert!(matches!(offload.unexpected(Source(1), 3, 9), Handled::Unexpected(_)));
            assert_eq!(offload.matched(old), Ok(Some(1)));
            assert_eq!(offload.op_completed(op, true, true), Ok(None));
            let command = offload.poll_command().map(|command| command.change);
            assert_eq!(command, Some(Change::Sync), "after {commands}");
        }
    }

    #[test]
    fn handle_that_arrives_after_cancel_or_match_is_the_one_deleted() {
        let limits = ListLimits { max_tags: 8, max_ops: 8 };
        let add = |offload: &mut Offload<u32, u32>| {
            let Posted::Waiting(post) = offload.post(Pattern::any_source(1), 1) else {
                panic!("no message has arrived")
            };
            assert!(matches!(offload.poll_command().unwrap().change, Change::Add { .. }));
            post
        };
        let deletes = |offload: &mut Offload<u32, u32>, post| {
            offload.added(post, 77);
            let command = offload.poll_command().map(|command| command.change);
            assert_eq!(command, Some(Change::Delete { post, handle: 77 }));
        };
        let mut cancelled = Offload::new(limits, 0);
        let post = add(&mut cancelled);
        assert_eq!(cancelled.cancel(post), Cancelled::Pending);
        deletes(&mut cancelled, post);

        let mut matched = Offload::new(limits, 0);
        let post = add(&mut matched);
        assert_eq!(matched.unexpected(Source(1), 1, 9), Handled::Pending);
        // Another receive reuses its index.
        let Posted::Waiting(other) = matched.post(Pattern::any_source(2), 2) else { panic!() };
        assert_eq!(other.index, post.index);
        deletes(&mut matched, post);
    }

    #[test]
    fn cancelled_receives_behind_a_software_receive_do_not_grow_the_queue() {
        let mut offload = Offload::<u32, u32>::new(ListLimits { max_tags: 4, max_ops: 4 }, 0);
        let Posted::Waiting(stays) = offload.post(Pattern::exact(Source(1), 1), 0) else {
            panic!()
        };
        for n in 1..10_000 {
            let Posted::Waiting(post) = offload.post(Pattern::any_source(2), n) else { panic!() };
            assert_eq!(offload.poll_command(), None, "the one before it stays in software");
            assert_eq!(
                (offload.receive(post), offload.location(post)),
                (Some(&n), Some(Location::Software))
            );
            assert_eq!(offload.cancel(post), Cancelled::Now(n));
            assert_eq!((offload.receive(post), offload.location(post)), (None, None));
        }
        assert!(offload.queue.capacity() <= 64, "{}", offload.queue.capacity());
        assert_eq!((offload.posted_len(), offload.in_device(), offload.handled()), (1, 0, 0));
        // It kept the others off the device.
        assert_eq!(offload.cancel(stays), Cancelled::Now(0));
        let Posted::Waiting(post) = offload.post(Pattern::any_source(2), 1) else { panic!() };
        assert!(matches!(offload.poll_command().unwrap().change, Change::Add { .. }));
        assert_eq!((offload.in_device(), offload.location(post)), (1, Some(Location::Device)));
        offload.unexpected_other();
        assert_eq!(offload.handled(), 1);
    }

    /// Whatever state their entries are in.
    #[test]
    fn draining_returns_all_receives_and_deletes_them_on_the_device() {
        let mut offload = Offload::<u32, u32>::new(ListLimits { max_tags: 8, max_ops: 8 }, 0);
        let posts = [0, 1, 2, 3].map(|n| {
            let Posted::Waiting(post) = offload.post(Pattern::any_source(n.into()), n) else {
                panic!("no message has arrived")
            };
            assert!(matches!(offload.poll_command().unwrap().change, Change::Add { .. }));
            offload.added(post, n);
            post
        });
        let waiting = offload.post_in_software(Pattern::any_source(4), 4);
        assert!(matches!(waiting, Posted::Waiting(_)));
        assert!(matches!(offload.unexpected(Source(1), 9, 90), Handled::Unexpected(_)));
        // The first is being cancelled, the second has a message and a pending delete.
        assert_eq!(offload.cancel(posts[0]), Cancelled::Pending);
        let cancel = offload.poll_command().unwrap();
        assert!(matches!(cancel.change, Change::Delete { handle: 0, .. }));
        assert_eq!(offload.unexpected(Source(1), 1, 91), Handled::Pending);

        let all = Forgotten { receives: vec![0, 1, 2, 3, 4], messages: vec![91] };
        assert_eq!(offload.drain_receives(), all);
        assert_eq!((offload.posted_len(), offload.unexpected_len()), (0, 1));
        let nothing = Forgotten { receives: vec![], messages: vec![] };
        assert_eq!(offload.drain_receives(), nothing);

        // The device matches the third before its delete.
        assert_eq!(offload.matched(posts[2]), Ok(None));
        assert_eq!(offload.matched(posts[2]), Err(Violation::UnknownEntry { post: posts[2] }));
        assert_eq!(offload.op_completed(cancel.op, true, false), Ok(None));
        for (n, succeeded) in [(1, true), (2, false), (3, true)] {
            let command = offload.poll_command().unwrap();
            assert_eq!(command.change, Change::Delete { post: posts[n as usize], handle: n });
            assert_eq!(offload.op_completed(command.op, succeeded, false), Ok(None));
        }
        assert_eq!((offload.in_device(), offload.poll_command()), (0, None));
    }

    /// The device reports that it failed to delete one, and skips the other.
    #[test]
    fn receive_whose_delete_fails_or_is_skipped_is_not_lost() {
        let mut offload = Offload::<u32, u32>::new(ListLimits { max_tags: 8, max_ops: 8 }, 0);
        let posts = [0, 1, 2].map(|n| {
            let Posted::Waiting(post) = offload.post(Pattern::any_source(n.into()), n) else {
                panic!("no message has arrived")
            };
            let _ = offload.poll_command();
            offload.added(post, n);
            post
        });
        assert_eq!(offload.cancel(posts[0]), Cancelled::Pending);
        assert_eq!(offload.unexpected(Source(1), 1, 91), Handled::Pending);
        assert_eq!(offload.cancel(posts[2]), Cancelled::Pending);
        let ops = [0; 3].map(|_| offload.poll_command().unwrap().op);
        let contradicted = Err(Violation::DeleteContradicted { post: posts[0] });
        assert_eq!(offload.op_completed(ops[0], false, false), contradicted);
        assert_eq!(offload.op_completed(ops[2], true, false), Ok(Some(Outcome::Cancelled(2))));
        let all = Forgotten { receives: vec![0, 1], messages: vec![91] };
        assert_eq!(offload.drain_receives(), all);
    }

    #[test]
    fn impossible_device_report_is_a_violation() {
        let mut offload = Offload::<u32, u32>::new(ListLimits { max_tags: 8, max_ops: 8 }, 0);
        let unknown =
            |op, outstanding| Err(Violation::UnknownCommand { op, first: 1, outstanding });
        assert_eq!(offload.op_completed(1, true, false), unknown(1, 0));
        let Posted::Waiting(post) = offload.post(Pattern::any_source(1), 1) else { panic!() };
        assert_eq!(
            offload.matched(post),
            Err(Violation::UnknownEntry { post }),
            "it is not on the device yet"
        );
        assert_eq!(offload.poll_command().unwrap().op, 1);
        for op in [0, 2, u32::MAX] {
            assert_eq!(offload.op_completed(op, true, false), unknown(op, 1));
        }
        assert_eq!(offload.op_completed(1, false, false), Err(Violation::AddRefused { post }));
        let post = PostId::from_bits(u64::MAX);
        assert_eq!(offload.matched(post), Err(Violation::UnknownEntry { post }));
    }
}

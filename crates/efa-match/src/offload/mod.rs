//! The software half of the tag-matching offload ("RDMA tag matching offload"): posted receives
//! have two homes, a short list in the device and the matcher here, and MPI's order holds across
//! both.
//!
//! ```text
//!   posted order   r1 r2 r3 r4 │ r5 r6 r7 …
//!                  ───────────   ──────────
//!                  device's list  software only      the device holds a prefix, always
//!
//!   application ── post, cancel ──► Offload ── poll_command: ADD DEL SYNC ──► device
//!        ▲                           │   ▲                                      │
//!        └─── receive, message ──────┘   └── matched, unexpected, op_completed ─┘
//! ```
//!
//! # Reason the order holds
//!
//! A message that fits an entry of the device's list goes to the earliest one; all receives that
//! software alone holds were posted later. A message that fits none is *unexpected* to the device:
//! it counts it, and software looks for its receive here. Between the two lies a race: a receive
//! that goes to the device while an unexpected message for it is on its way up would wrongly get
//! the next message. So every command carries how many unexpected messages software has handled,
//! and the device holds entries back until that equals its own count. Three rules follow:
//!
//! 1. A receive goes to the device only if no unexpected message here fits it (posting looks).
//! 2. An unexpected message may fit a receive that is in the device: that entry is held back for
//!    certain, so it is deleted there, and message and receive are given out once it is.
//! 3. A command reports an unexpected message only when every delete that the message led to has
//!    been posted before it or is it: reporting is what lets held entries go.

#[cfg(test)]
mod explore;
mod list;
mod types;

use std::collections::VecDeque;

pub use list::{Entry, MatchList, Synchronisation};
pub use types::{Cancelled, Change, Command, Handled, ListLimits, Location, Outcome, Violation};

use crate::{Forgotten, Match, Matcher, MessageId, Pattern, PostId, Posted, Source};

/// The receive of a post, by the index of its [`PostId`].
#[derive(Debug, Clone, Copy)]
enum Holder {
    Software,
    /// In the device since this command, under this name.
    Device {
        add: u64,
        handle: u32,
    },
}

/// A receive whose turn to go to the device comes, unless it's matched or cancelled before.
#[derive(Debug, Clone, Copy)]
struct Queued {
    post: PostId,
    /// Tag and mask, or `None` for one that the device can't hold.
    key: Option<(u64, u64)>,
}

/// A receive that is to be deleted from the device, and reason.
#[derive(Debug, Clone)]
struct Deletion<R, M> {
    post: PostId,
    handle: u32,
    reason: Reason<R, M>,
}

#[derive(Debug, Clone)]
enum Reason<R, M> {
    /// An unexpected message fits it.
    Matched(R, M),
    Cancelled(R),
    /// It was given out without waiting for the device.
    Drained,
    /// It was to be cancelled, or given out, but the device matched it first.
    AlreadyMatched,
}

/// A command under way.
#[derive(Debug, Clone)]
enum UnderWay<R, M> {
    Add(PostId),
    Delete(Deletion<R, M>),
    Sync,
}

/// Posted receives in a device's list and in software, and unexpected messages.
///
/// Fed with what the device reports, *in the order in which it does*, and polled for commands.
/// Receives and handles of messages are the caller's, as with [`Matcher`]. Sources take part in
/// the matching of software only; what the device is to tell apart must be in the tag
/// ([`Envelope`](crate::Envelope)).
#[derive(Debug, Clone)]
pub struct Offload<R, M> {
    limits: ListLimits,
    /// All receives, wherever they are, and the unexpected messages.
    matcher: Matcher<R, M>,
    holders: Vec<Holder>,
    /// Receives in software, in the order of posting, and such as are no longer posted.
    queue: VecDeque<Queued>,
    /// Entries that the device's list can have at the most.
    in_device: u32,
    /// Deletes that haven't been posted.
    deletions: VecDeque<Deletion<R, M>>,
    /// Those whose delete the device never answered, or answered against the rules.
    unanswered: Vec<Deletion<R, M>>,
    /// Commands that may be under way.
    ops: VecDeque<UnderWay<R, M>>,
    /// The number of the next command, of which the device is told 32 bits.
    next_op: u64,
    /// Commands since the last one with a completion.
    unsignalled: u32,
    /// Unexpected messages handled.
    handled: u32,
    /// What of it the last command reported.
    reported: u32,
    /// The last command that added an entry.
    last_add: u64,
    /// Entries up to this command aren't held back for certain.
    live_to: u64,
}

impl<R, M: Copy> Offload<R, M> {
    /// Nothing posted, nothing in the device. The seed keys the hashes, see
    /// [`Matcher::with_seed`].
    ///
    /// # Panics
    ///
    /// If `max_ops` is zero: nothing could ever be posted.
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

    /// The same for a device whose count of unexpected messages starts elsewhere than at zero.
    pub fn counting_from(mut self, count: u32) -> Self {
        (self.handled, self.reported) = (count, count);
        self
    }

    /// Posts a receive: it gets the earliest unexpected message that fits, else it is kept, and
    /// goes to the device when its turn comes. One for a certain source stays in software, and so
    /// do those posted after it while it does.
    #[inline]
    pub fn post(&mut self, pattern: Pattern, receive: R) -> Posted<R, M> {
        let key = pattern.source.is_none().then_some((pattern.tag, !pattern.ignore));
        self.post_with(pattern, receive, key)
    }

    /// Posts a receive that the device can't hold, such as one with too many buffers.
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
            self.forget_stale();
        }
        self.queue.push_back(Queued { post, key });
    }

    /// Drops receives that are no longer posted from the queue, before it grows. It does so only
    /// if that frees half of it: else each receive would pay for all.
    #[cold]
    fn forget_stale(&mut self) {
        // Entries that are to be deleted count as in the device but are no longer posted.
        let live = self.matcher.posted_len().saturating_sub(self.in_device as usize);
        if live <= self.queue.len() / 2 {
            self.queue.retain(|queued| self.matcher.is_posted(queued.post));
        }
    }

    /// The next command for the device, if there is one and the device has room for it.
    ///
    /// Poll when everything that the device has reported was fed in: a command sent before it has
    /// seen all is in order, but may be followed by a SYNC that needn't be.
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
            // Commands are carried out in order: what follows finds the entry gone.
            self.in_device -= 1;
            (Change::Delete { post, handle }, UnderWay::Delete(deletion), true)
        } else if let Some((post, (tag, mask))) = self.next_to_add() {
            self.queue.pop_front();
            self.holders[post.index as usize] = Holder::Device { add: op, handle: 0 };
            self.in_device += 1;
            self.last_add = op;
            (Change::Add { post, tag, mask }, UnderWay::Add(post), false)
        } else if self.handled != self.reported && self.may_be_held_back() {
            (Change::Sync, UnderWay::Sync, true)
        } else {
            return None;
        };
        // Rule 3: as long as a delete isn't posted, its message isn't reported.
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

    /// The receive whose turn it is to go to the device.
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

    /// The device's name of an entry that it was told to add; due before the next poll.
    #[inline]
    pub fn added(&mut self, post: PostId, name: u32) {
        if let Some(Holder::Device { handle, .. }) = self.holders.get_mut(post.index as usize) {
            *handle = name;
        }
        if !self.deletions.is_empty() {
            self.name_deletion(post, name);
        }
    }

    /// The device's name of an entry whose receive may have been matched or cancelled meanwhile.
    #[cold]
    fn name_deletion(&mut self, post: PostId, name: u32) {
        for deletion in self.deletions.iter_mut().filter(|deletion| deletion.post == post) {
            deletion.handle = name;
        }
    }

    /// The device matched an entry of its list with a message: the receive is used up. `None`: it has
    /// been [given out](Self::drain_receives) already.
    ///
    /// # Errors
    ///
    /// If the device can't have done that by the rules.
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

    /// A match for a receive that is to be deleted.
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

    /// Receives that are to be deleted from the device, or should have been, in the order in which they are.
    fn all_deletions(&mut self) -> impl Iterator<Item = &mut Deletion<R, M>> {
        let under_way = self.ops.iter_mut().filter_map(|op| match op {
            UnderWay::Delete(deletion) => Some(deletion),
            _ => None,
        });
        self.unanswered.iter_mut().chain(under_way).chain(&mut self.deletions)
    }

    /// Whether the device may hold entries back, for all that is known here.
    fn may_be_held_back(&self) -> bool {
        self.in_device > 0 && self.last_add > self.live_to
    }

    /// Entries added up to this command are known not to be held back: they are let go together.
    #[inline]
    fn note_live(&mut self, op: u64) {
        self.live_to = self.live_to.max(op);
    }

    /// A message was unexpected to the device.
    #[inline]
    pub fn unexpected(&mut self, source: Source, tag: u64, message: M) -> Handled<R> {
        self.handled = self.handled.wrapping_add(1);
        let (post, receive) = match self.matcher.match_named(source, tag) {
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

    /// Something was unexpected to the device, and counted by it, that no receive is for: the end
    /// of a rendezvous, or bytes that are no message.
    pub fn unexpected_other(&mut self) {
        self.handled = self.handled.wrapping_add(1);
    }

    /// A command is complete, or failed with or without a completion being asked for; so are those
    /// before it. `sync_required` is the completion's flag (`IBV_WC_TM_SYNC_REQ`).
    ///
    /// # Errors
    ///
    /// If the device can't have done that by the rules. A receive of whose delete that is so, or which the
    /// device passes over, isn't lost: [`drain_receives`](Self::drain_receives) has it.
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
            if let Some(UnderWay::Delete(deletion)) = self.ops.pop_front() {
                self.unanswered.push(deletion);
            }
        }
        let done = self.ops.pop_front();
        if !sync_required {
            self.note_live(begin + before as u64);
        }
        match done {
            Some(UnderWay::Delete(Deletion { post, handle, reason })) => {
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
            Some(UnderWay::Add(post)) if !succeeded => Err(Violation::AddRefused { post }),
            _ => Ok(None),
        }
    }

    /// Takes this receive back, if it is still posted.
    pub fn cancel(&mut self, post: PostId) -> Cancelled<R> {
        let Some(receive) = self.matcher.cancel(post) else { return Cancelled::NotPosted };
        let Holder::Device { handle, .. } = self.holders[post.index as usize] else {
            return Cancelled::Now(receive);
        };
        self.deletions.push_back(Deletion { post, handle, reason: Reason::Cancelled(receive) });
        Cancelled::Pending
    }

    /// The earliest unexpected message that fits; it stays. See [`Matcher::peek`].
    pub fn peek(&mut self, pattern: &Pattern) -> Option<M> {
        self.matcher.peek(pattern)
    }

    /// Takes the earliest unexpected message that fits. See [`Matcher::take`].
    pub fn take(&mut self, pattern: &Pattern) -> Option<M> {
        self.matcher.take(pattern)
    }

    /// Takes this unexpected message out, if it is still there. See [`Matcher::withdraw`].
    pub fn withdraw(&mut self, message: MessageId) -> Option<M> {
        self.matcher.withdraw(message)
    }

    /// Takes out everything of a source. Its receives are all in software. See
    /// [`Matcher::forget_source`].
    pub fn forget_source(&mut self, source: Source) -> Forgotten<R, M> {
        self.matcher.forget_source(source)
    }

    /// Takes out all receives at once: those that the device was to let go of, with the messages that
    /// waited for that, then the others in the order of posting. Other messages stay.
    ///
    /// What the device holds is deleted there, without an [`Outcome`]. Until that is done it may still match
    /// such an entry, whatever the rules: [`matched`](Self::matched) says then that nobody is to get the
    /// message.
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
    pub fn receive(&self, post: PostId) -> Option<&R> {
        self.matcher.receive(post)
    }

    /// This receive, if it is posted.
    pub fn receive_mut(&mut self, post: PostId) -> Option<&mut R> {
        self.matcher.receive_mut(post)
    }

    /// Where a receive is, if it is posted.
    pub fn location(&self, post: PostId) -> Option<Location> {
        self.matcher.is_posted(post).then(|| match self.holders[post.index as usize] {
            Holder::Software => Location::Software,
            Holder::Device { .. } => Location::Device,
        })
    }

    /// Entries that the device's list can have at the most; those on their way there count.
    pub fn in_device(&self) -> u32 {
        self.in_device
    }

    /// How many receives are posted, at both homes together.
    pub fn posted_len(&self) -> usize {
        self.matcher.posted_len()
    }

    /// How many unexpected messages wait.
    pub fn unexpected_len(&self) -> usize {
        self.matcher.unexpected_len()
    }

    /// Unexpected messages handled, wrapping.
    pub fn handled(&self) -> u32 {
        self.handled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if so many commands had come and gone.
    fn pass(offload: &mut Offload<u32, u32>, commands: u32) {
        offload.next_op += u64::from(commands);
        let last = offload.next_op - 1;
        (offload.last_add, offload.live_to) = (last, last);
    }

    #[test]
    fn an_entry_of_long_ago_tells_nothing_of_those_added_since() {
        for commands in [5, 1 << 31, u32::MAX] {
            let mut offload = Offload::new(ListLimits { max_tags: 8, max_ops: 8 }, 0);
            let add = |offload: &mut Offload<u32, u32>, tag, receive| {
                let Posted::Waiting(post) = offload.post(Pattern::any_source(tag), receive) else {
                    panic!("nothing has come")
                };
                let command = offload.poll_command().unwrap();
                offload.added(post, receive);
                (post, command.op)
            };
            let (old, op) = add(&mut offload, 1, 1);
            assert_eq!(offload.op_completed(op, true, false), Ok(None));
            pass(&mut offload, commands);
            // A message comes that is unexpected, while another receive is added: that is held back.
            let (_, op) = add(&mut offload, 2, 2);
            assert!(matches!(offload.unexpected(Source(1), 3, 9), Handled::Unexpected(_)));
            assert_eq!(offload.matched(old), Ok(Some(1)));
            assert_eq!(offload.op_completed(op, true, true), Ok(None));
            let command = offload.poll_command().map(|command| command.change);
            assert_eq!(command, Some(Change::Sync), "after {commands}");
        }
    }

    #[test]
    fn a_name_told_when_its_receive_is_leaving_already_is_the_one_to_delete() {
        let limits = ListLimits { max_tags: 8, max_ops: 8 };
        let add = |offload: &mut Offload<u32, u32>| {
            let Posted::Waiting(post) = offload.post(Pattern::any_source(1), 1) else {
                panic!("nothing has come")
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
        // Another receive takes its place.
        let Posted::Waiting(other) = matched.post(Pattern::any_source(2), 2) else { panic!() };
        assert_eq!(other.index, post.index);
        deletes(&mut matched, post);
    }

    #[test]
    fn receives_that_come_and_go_behind_one_that_stays_leave_nothing_behind() {
        let mut offload = Offload::<u32, u32>::new(ListLimits { max_tags: 4, max_ops: 4 }, 0);
        let Posted::Waiting(stays) = offload.post(Pattern::exact(Source(1), 1), 0) else {
            panic!()
        };
        for n in 1..10_000 {
            let Posted::Waiting(post) = offload.post(Pattern::any_source(2), n) else { panic!() };
            assert_eq!(offload.poll_command(), None, "the one before it has to stay here");
            assert_eq!(
                (offload.receive(post), offload.location(post)),
                (Some(&n), Some(Location::Software))
            );
            assert_eq!(offload.cancel(post), Cancelled::Now(n));
            assert_eq!((offload.receive(post), offload.location(post)), (None, None));
        }
        assert!(offload.queue.capacity() <= 64, "{}", offload.queue.capacity());
        assert_eq!((offload.posted_len(), offload.in_device(), offload.handled()), (1, 0, 0));
        // It was what kept the others from the device.
        assert_eq!(offload.cancel(stays), Cancelled::Now(0));
        let Posted::Waiting(post) = offload.post(Pattern::any_source(2), 1) else { panic!() };
        assert!(matches!(offload.poll_command().unwrap().change, Change::Add { .. }));
        assert_eq!((offload.in_device(), offload.location(post)), (1, Some(Location::Device)));
        offload.unexpected_other();
        assert_eq!(offload.handled(), 1);
    }

    /// Whatever the device was about to do with them.
    #[test]
    fn all_receives_come_out_at_once_and_the_device_is_told() {
        let mut offload = Offload::<u32, u32>::new(ListLimits { max_tags: 8, max_ops: 8 }, 0);
        let posts = [0, 1, 2, 3].map(|n| {
            let Posted::Waiting(post) = offload.post(Pattern::any_source(n.into()), n) else {
                panic!("nothing has come")
            };
            assert!(matches!(offload.poll_command().unwrap().change, Change::Add { .. }));
            offload.added(post, n);
            post
        });
        let waiting = offload.post_in_software(Pattern::any_source(4), 4);
        assert!(matches!(waiting, Posted::Waiting(_)));
        assert!(matches!(offload.unexpected(Source(1), 9, 90), Handled::Unexpected(_)));
        // The first is being cancelled, the second has a message that waits for it.
        assert_eq!(offload.cancel(posts[0]), Cancelled::Pending);
        let cancel = offload.poll_command().unwrap();
        assert!(matches!(cancel.change, Change::Delete { handle: 0, .. }));
        assert_eq!(offload.unexpected(Source(1), 1, 91), Handled::Pending);

        let all = Forgotten { receives: vec![0, 1, 2, 3, 4], messages: vec![91] };
        assert_eq!(offload.drain_receives(), all);
        assert_eq!((offload.posted_len(), offload.unexpected_len()), (0, 1));
        let nothing = Forgotten { receives: vec![], messages: vec![] };
        assert_eq!(offload.drain_receives(), nothing);

        // The device matches the third before it is told.
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

    /// The device says that it didn't delete one, and passes over the other.
    #[test]
    fn a_receive_that_the_device_does_not_let_go_of_by_the_rules_is_not_lost() {
        let mut offload = Offload::<u32, u32>::new(ListLimits { max_tags: 8, max_ops: 8 }, 0);
        let posts = [0, 1, 2].map(|n| {
            let Posted::Waiting(post) = offload.post(Pattern::any_source(n.into()), n) else {
                panic!("nothing has come")
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
    fn what_the_device_cannot_have_done_is_a_breach() {
        let mut offload = Offload::<u32, u32>::new(ListLimits { max_tags: 8, max_ops: 8 }, 0);
        let unknown =
            |op, outstanding| Err(Violation::UnknownCommand { op, first: 1, outstanding });
        assert_eq!(offload.op_completed(1, true, false), unknown(1, 0));
        let Posted::Waiting(post) = offload.post(Pattern::any_source(1), 1) else { panic!() };
        assert_eq!(
            offload.matched(post),
            Err(Violation::UnknownEntry { post }),
            "it's not there yet"
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

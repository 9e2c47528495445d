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
//! # Why the order holds
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

use std::collections::VecDeque;

use thiserror::Error;

pub use list::{Entry, MatchList, Synchronisation};

use crate::{Forgotten, Match, Matcher, MessageId, Pattern, PostId, Posted, Source};

/// What a device's matching list can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListLimits {
    /// Entries (`max_num_tags`). With zero all receives stay in software.
    pub max_tags: u32,
    /// Commands under way at a time (`max_ops`), at least one.
    pub max_ops: u32,
}

/// A command for the device, to be posted before the next one is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the device must carry it out"]
pub struct Command {
    /// Numbers the commands, wrapping; the `wr_id` of its completion.
    pub op: u32,
    /// What to do.
    pub change: Change,
    /// Unexpected messages handled, wrapping (`unexpected_cnt`).
    pub unexpected: u32,
    /// Whether a completion is wanted if all goes well (`IBV_OPS_SIGNALED`).
    pub signalled: bool,
}

/// A change to the device's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Append an entry for this receive. The device's name of it is told with [`Offload::added`].
    Add {
        /// The receive; its `recv_wr_id`, see [`PostId::to_bits`].
        post: PostId,
        /// The tag.
        tag: u64,
        /// The tag bits compared: the complement of [`Pattern::ignore`].
        mask: u64,
    },
    /// Remove the entry.
    Delete {
        /// The receive.
        post: PostId,
        /// The device's name of the entry.
        handle: u32,
    },
    /// Only report the unexpected messages handled.
    Sync,
}

/// Where a receive is that waits for its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// Here alone.
    Software,
    /// In the device's list, or on its way there.
    Device,
}

/// What became of a message that was unexpected to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a matched receive may be no longer in the matcher"]
pub enum Handled<R> {
    /// It goes to the earliest posted receive that fits.
    Matched(Match<R>),
    /// It goes to a receive that the device still holds: both come as [`Outcome::Matched`] when
    /// the device has let go of it, or from [`Offload::drain_receives`].
    Leaving,
    /// It waits for a receive.
    Unexpected(MessageId),
}

/// What became of a receive that was to be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a cancelled receive is no longer in the matcher"]
pub enum Cancelled<R> {
    /// It is cancelled.
    Now(R),
    /// The device holds it: it comes as [`Outcome::Cancelled`], or its match comes instead, or it comes
    /// from [`Offload::drain_receives`].
    Leaving,
    /// It isn't posted any more.
    Gone,
}

/// What the completion of a command brought about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the receive is no longer in the matcher"]
pub enum Outcome<R, M> {
    /// This message goes to this receive.
    Matched(R, M),
    /// The receive is cancelled.
    Cancelled(R),
}

/// The device did what the proposal rules out. MPI's order isn't warranted from here on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Breach {
    /// A match for an entry that isn't in its list.
    #[error("the device matched {post:?}, which isn't in its list")]
    UnknownEntry {
        /// The entry.
        post: PostId,
    },
    /// A match for an entry that had to be held back: an earlier message fits it.
    #[error("the device matched {post:?}, which belongs to an earlier message")]
    OutOfOrder {
        /// The entry.
        post: PostId,
    },
    /// The completion of a command that isn't under way.
    #[error("completion of command {op}, {outstanding} commands from {first} on are under way")]
    UnknownCommand {
        /// Its number.
        op: u32,
        /// The first number that would do.
        first: u32,
        /// How many would do.
        outstanding: usize,
    },
    /// An entry wasn't added, though there had to be room.
    #[error("the device refused to add {post:?}")]
    AddRefused {
        /// The entry.
        post: PostId,
    },
    /// An entry was deleted although its match was reported, or wasn't although it was not.
    #[error("the device's answer to deleting {post:?} contradicts the matches it reported")]
    DeleteContradicted {
        /// The entry.
        post: PostId,
    },
}

/// The receive of a post, by the index of its [`PostId`].
#[derive(Debug, Clone, Copy)]
enum Place {
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

/// A receive that is to be deleted from the device, and why.
#[derive(Debug, Clone)]
struct Leaving<R, M> {
    post: PostId,
    handle: u32,
    why: Why<R, M>,
}

#[derive(Debug, Clone)]
enum Why<R, M> {
    /// An unexpected message fits it.
    Matched(R, M),
    Cancelled(R),
    /// It was given out without waiting for the device.
    Drained,
    /// It was to be cancelled, or given out, but the device matched it first.
    TooLate,
}

/// A command under way.
#[derive(Debug, Clone)]
enum Op<R, M> {
    Add(PostId),
    Delete(Leaving<R, M>),
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
    places: Vec<Place>,
    /// Receives in software, in the order of posting, and such as are no longer posted.
    queue: VecDeque<Queued>,
    /// Entries that the device's list can have at the most.
    in_device: u32,
    /// Deletes that haven't been posted.
    leaving: VecDeque<Leaving<R, M>>,
    /// Those whose delete the device never answered, or answered against the rules.
    stranded: Vec<Leaving<R, M>>,
    /// Commands that may be under way.
    ops: VecDeque<Op<R, M>>,
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
            places: Vec::new(),
            queue: VecDeque::new(),
            in_device: 0,
            leaving: VecDeque::new(),
            stranded: Vec::new(),
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
        if self.places.len() <= index {
            self.places.resize(index + 1, Place::Software);
        }
        self.places[index] = Place::Software;
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
        if self.leaving.is_empty() && self.queue.is_empty() && self.handled == self.reported {
            return None;
        }
        self.next_command()
    }

    fn next_command(&mut self) -> Option<Command> {
        if self.ops.len() >= self.limits.max_ops as usize {
            return None;
        }
        let op = self.next_op;
        let (change, record, must_signal) = if let Some(leaving) = self.leaving.pop_front() {
            let Leaving { post, handle, .. } = leaving;
            // Commands are carried out in order: what follows finds the entry gone.
            self.in_device -= 1;
            (Change::Delete { post, handle }, Op::Delete(leaving), true)
        } else if let Some((post, (tag, mask))) = self.next_to_add() {
            self.queue.pop_front();
            self.places[post.index as usize] = Place::Device { add: op, handle: 0 };
            self.in_device += 1;
            self.last_add = op;
            (Change::Add { post, tag, mask }, Op::Add(post), false)
        } else if self.handled != self.reported && self.may_be_held_back() {
            (Change::Sync, Op::Sync, true)
        } else {
            return None;
        };
        // Rule 3: as long as a delete isn't posted, its message isn't reported.
        if self.leaving.is_empty() {
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
        if let Some(Place::Device { handle, .. }) = self.places.get_mut(post.index as usize) {
            *handle = name;
        }
        if !self.leaving.is_empty() {
            self.leaving_added(post, name);
        }
    }

    /// The device's name of an entry whose receive may have been matched or cancelled meanwhile.
    #[cold]
    fn leaving_added(&mut self, post: PostId, name: u32) {
        for leaving in self.leaving.iter_mut().filter(|leaving| leaving.post == post) {
            leaving.handle = name;
        }
    }

    /// The device matched an entry of its list with a message: the receive is used up. `None`: it has
    /// been [given out](Self::drain_receives) already.
    ///
    /// # Errors
    ///
    /// If the device can't have done that by the rules.
    #[inline]
    pub fn matched(&mut self, post: PostId) -> Result<Option<R>, Breach> {
        let Some(&Place::Device { add, .. }) = self.places.get(post.index as usize) else {
            return self.matched_late(post);
        };
        let Some(receive) = self.matcher.cancel(post) else { return self.matched_late(post) };
        self.in_device -= 1;
        self.went_live(add);
        Ok(Some(receive))
    }

    /// A match for a receive that is to be deleted.
    #[cold]
    fn matched_late(&mut self, post: PostId) -> Result<Option<R>, Breach> {
        let Some(leaving) = self.all_leaving().find(|leaving| leaving.post == post) else {
            return Err(Breach::UnknownEntry { post });
        };
        match std::mem::replace(&mut leaving.why, Why::TooLate) {
            Why::Cancelled(receive) => Ok(Some(receive)),
            Why::Drained => Ok(None),
            why @ Why::Matched(..) => {
                leaving.why = why;
                Err(Breach::OutOfOrder { post })
            }
            Why::TooLate => Err(Breach::UnknownEntry { post }),
        }
    }

    /// Receives that are to be deleted from the device, or should have been, in the order in which they are.
    fn all_leaving(&mut self) -> impl Iterator<Item = &mut Leaving<R, M>> {
        let under_way = self.ops.iter_mut().filter_map(|op| match op {
            Op::Delete(leaving) => Some(leaving),
            _ => None,
        });
        self.stranded.iter_mut().chain(under_way).chain(&mut self.leaving)
    }

    /// Whether the device may hold entries back, for all that is known here.
    fn may_be_held_back(&self) -> bool {
        self.in_device > 0 && self.last_add > self.live_to
    }

    /// Entries added up to this command are known not to be held back: they are let go together.
    #[inline]
    fn went_live(&mut self, op: u64) {
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
        let Place::Device { handle, .. } = self.places[post.index as usize] else {
            return Handled::Matched(Match::Once(receive));
        };
        self.leaving.push_back(Leaving { post, handle, why: Why::Matched(receive, message) });
        Handled::Leaving
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
    ) -> Result<Option<Outcome<R, M>>, Breach> {
        let outstanding = self.ops.len();
        let begin = self.next_op - outstanding as u64;
        let first = begin as u32;
        let before = op.wrapping_sub(first) as usize;
        if before >= outstanding {
            return Err(Breach::UnknownCommand { op, first, outstanding });
        }
        for _ in 0..before {
            if let Some(Op::Delete(leaving)) = self.ops.pop_front() {
                self.stranded.push(leaving);
            }
        }
        let done = self.ops.pop_front();
        if !sync_required {
            self.went_live(begin + before as u64);
        }
        match done {
            Some(Op::Delete(Leaving { post, handle, why })) => match (why, succeeded) {
                (Why::Matched(receive, message), true) => {
                    Ok(Some(Outcome::Matched(receive, message)))
                }
                (Why::Cancelled(receive), true) => Ok(Some(Outcome::Cancelled(receive))),
                (Why::Drained, true) | (Why::TooLate, false) => Ok(None),
                (why, _) => {
                    self.stranded.push(Leaving { post, handle, why });
                    Err(Breach::DeleteContradicted { post })
                }
            },
            Some(Op::Add(post)) if !succeeded => Err(Breach::AddRefused { post }),
            _ => Ok(None),
        }
    }

    /// Takes this receive back, if it is still posted.
    pub fn cancel(&mut self, post: PostId) -> Cancelled<R> {
        let Some(receive) = self.matcher.cancel(post) else { return Cancelled::Gone };
        let Place::Device { handle, .. } = self.places[post.index as usize] else {
            return Cancelled::Now(receive);
        };
        self.leaving.push_back(Leaving { post, handle, why: Why::Cancelled(receive) });
        Cancelled::Leaving
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
        for leaving in self.all_leaving() {
            match std::mem::replace(&mut leaving.why, Why::Drained) {
                Why::Cancelled(receive) => receives.push(receive),
                Why::Matched(receive, message) => {
                    receives.push(receive);
                    messages.push(message);
                }
                Why::Drained => {}
                Why::TooLate => leaving.why = Why::TooLate,
            }
        }
        self.stranded.clear();
        for post in self.matcher.posts() {
            if let Place::Device { handle, .. } = self.places[post.index as usize] {
                self.leaving.push_back(Leaving { post, handle, why: Why::Drained });
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
    pub fn home(&self, post: PostId) -> Option<Home> {
        self.matcher.is_posted(post).then(|| match self.places[post.index as usize] {
            Place::Software => Home::Software,
            Place::Device { .. } => Home::Device,
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
        assert_eq!(cancelled.cancel(post), Cancelled::Leaving);
        deletes(&mut cancelled, post);

        let mut matched = Offload::new(limits, 0);
        let post = add(&mut matched);
        assert_eq!(matched.unexpected(Source(1), 1, 9), Handled::Leaving);
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
                (offload.receive(post), offload.home(post)),
                (Some(&n), Some(Home::Software))
            );
            assert_eq!(offload.cancel(post), Cancelled::Now(n));
            assert_eq!((offload.receive(post), offload.home(post)), (None, None));
        }
        assert!(offload.queue.capacity() <= 64, "{}", offload.queue.capacity());
        assert_eq!((offload.posted_len(), offload.in_device(), offload.handled()), (1, 0, 0));
        // It was what kept the others from the device.
        assert_eq!(offload.cancel(stays), Cancelled::Now(0));
        let Posted::Waiting(post) = offload.post(Pattern::any_source(2), 1) else { panic!() };
        assert!(matches!(offload.poll_command().unwrap().change, Change::Add { .. }));
        assert_eq!((offload.in_device(), offload.home(post)), (1, Some(Home::Device)));
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
        assert_eq!(offload.cancel(posts[0]), Cancelled::Leaving);
        let cancel = offload.poll_command().unwrap();
        assert!(matches!(cancel.change, Change::Delete { handle: 0, .. }));
        assert_eq!(offload.unexpected(Source(1), 1, 91), Handled::Leaving);

        let all = Forgotten { receives: vec![0, 1, 2, 3, 4], messages: vec![91] };
        assert_eq!(offload.drain_receives(), all);
        assert_eq!((offload.posted_len(), offload.unexpected_len()), (0, 1));
        let nothing = Forgotten { receives: vec![], messages: vec![] };
        assert_eq!(offload.drain_receives(), nothing);

        // The device matches the third before it is told.
        assert_eq!(offload.matched(posts[2]), Ok(None));
        assert_eq!(offload.matched(posts[2]), Err(Breach::UnknownEntry { post: posts[2] }));
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
        assert_eq!(offload.cancel(posts[0]), Cancelled::Leaving);
        assert_eq!(offload.unexpected(Source(1), 1, 91), Handled::Leaving);
        assert_eq!(offload.cancel(posts[2]), Cancelled::Leaving);
        let ops = [0; 3].map(|_| offload.poll_command().unwrap().op);
        let contradicted = Err(Breach::DeleteContradicted { post: posts[0] });
        assert_eq!(offload.op_completed(ops[0], false, false), contradicted);
        assert_eq!(offload.op_completed(ops[2], true, false), Ok(Some(Outcome::Cancelled(2))));
        let all = Forgotten { receives: vec![0, 1], messages: vec![91] };
        assert_eq!(offload.drain_receives(), all);
    }

    #[test]
    fn what_the_device_cannot_have_done_is_a_breach() {
        let mut offload = Offload::<u32, u32>::new(ListLimits { max_tags: 8, max_ops: 8 }, 0);
        let unknown = |op, outstanding| Err(Breach::UnknownCommand { op, first: 1, outstanding });
        assert_eq!(offload.op_completed(1, true, false), unknown(1, 0));
        let Posted::Waiting(post) = offload.post(Pattern::any_source(1), 1) else { panic!() };
        assert_eq!(offload.matched(post), Err(Breach::UnknownEntry { post }), "it's not there yet");
        assert_eq!(offload.poll_command().unwrap().op, 1);
        for op in [0, 2, u32::MAX] {
            assert_eq!(offload.op_completed(op, true, false), unknown(op, 1));
        }
        assert_eq!(offload.op_completed(1, false, false), Err(Breach::AddRefused { post }));
        let post = PostId::from_bits(u64::MAX);
        assert_eq!(offload.matched(post), Err(Breach::UnknownEntry { post }));
    }
}

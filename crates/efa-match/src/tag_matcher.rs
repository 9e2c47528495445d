//! One matcher for an engine, whatever its device: all in software, or shared with the device's
//! list.
//!
//! ```text
//!                     device offers a list of tags?
//!                  no │                        │ yes
//!                     ▼                        ▼
//!   TagMatcher::Software(Matcher)   TagMatcher::Offloaded(Offload)
//!                                      + poll_command → device
//!                                      + device → matched, op_completed
//! ```
//!
//! An engine calls the same methods in both cases. With a device it does two things more: it sends
//! the commands, and feeds in what the device reports, both through
//! [`offload`](TagMatcher::offload). EFA devices have no list.

use crate::{
    Arrived, Cancelled, Forgotten, Handled, ListLimits, Matcher, MessageId, Offload, Pattern,
    PostId, Posted, Source, Vacancy,
};

/// Posted receives and unexpected messages, at one home or at two.
#[derive(Debug, Clone)]
pub enum TagMatcher<R, M> {
    /// All in software.
    Software(Matcher<R, M>),
    /// A prefix of the receives in the device. Boxed: software alone is the rule.
    Offloaded(Box<Offload<R, M>>),
}

/// Calls the same method on whichever it is.
macro_rules! each {
    ($on:expr, $name:ident => $call:expr) => {
        match $on {
            TagMatcher::Software($name) => $call,
            TagMatcher::Offloaded($name) => $call,
        }
    };
}

impl<R, M: Copy> TagMatcher<R, M> {
    /// A matcher for a device that offers this, or nothing. See [`Matcher::with_seed`] for the
    /// seed.
    pub fn new(device: Option<ListLimits>, seed: u64) -> Self {
        match device {
            None => Self::Software(Matcher::with_seed(seed)),
            Some(limits) => Self::Offloaded(Box::new(Offload::new(limits, seed))),
        }
    }

    /// The part that talks with the device, if there is one.
    #[inline]
    pub fn offload(&mut self) -> Option<&mut Offload<R, M>> {
        match self {
            Self::Software(_) => None,
            Self::Offloaded(offload) => Some(offload),
        }
    }

    /// See [`Matcher::post`] and [`Offload::post`].
    #[inline]
    pub fn post(&mut self, pattern: Pattern, receive: R) -> Posted<R, M> {
        each!(self, matcher => matcher.post(pattern, receive))
    }

    /// See [`Matcher::vacancy`]. With a device posting never is short work.
    #[inline(always)]
    pub fn vacancy(&mut self, pattern: &Pattern) -> Option<Vacancy<'_, R>> {
        match self {
            Self::Software(matcher) => matcher.vacancy(pattern),
            Self::Offloaded(_) => None,
        }
    }

    /// See [`Matcher::post_lasting`].
    pub fn post_lasting(&mut self, pattern: Pattern, receive: R) -> PostId {
        each!(self, matcher => matcher.post_lasting(pattern, receive))
    }

    /// See [`Matcher::match_at_once`]. With a device it never is short work.
    #[inline(always)]
    pub fn match_at_once(&mut self, source: Source, tag: u64) -> Option<R> {
        match self {
            Self::Software(matcher) => matcher.match_at_once(source, tag),
            Self::Offloaded(_) => None,
        }
    }

    /// A message arrived that software is to match: with a device, one that was unexpected to it.
    /// Never [`Handled::Pending`] without one.
    #[inline(always)]
    pub fn arrive(&mut self, source: Source, tag: u64, message: M) -> Handled<R> {
        match self {
            Self::Software(matcher) => match matcher.arrive(source, tag, message) {
                Arrived::Matched(found) => Handled::Matched(found),
                Arrived::Unexpected(id) => Handled::Unexpected(id),
            },
            Self::Offloaded(offload) => offload.unexpected(source, tag, message),
        }
    }

    /// Takes this receive back, if it is still posted. Never [`Cancelled::Pending`] without a
    /// device.
    pub fn cancel(&mut self, post: PostId) -> Cancelled<R> {
        match self {
            Self::Software(matcher) => {
                matcher.cancel(post).map_or(Cancelled::NotPosted, Cancelled::Now)
            }
            Self::Offloaded(offload) => offload.cancel(post),
        }
    }

    /// See [`Matcher::peek`].
    pub fn peek(&mut self, pattern: &Pattern) -> Option<M> {
        each!(self, matcher => matcher.peek(pattern))
    }

    /// See [`Matcher::take`].
    #[inline]
    pub fn take(&mut self, pattern: &Pattern) -> Option<M> {
        each!(self, matcher => matcher.take(pattern))
    }

    /// See [`Matcher::withdraw`].
    pub fn withdraw(&mut self, message: MessageId) -> Option<M> {
        each!(self, matcher => matcher.withdraw(message))
    }

    /// See [`Matcher::receive_mut`].
    pub fn receive_mut(&mut self, post: PostId) -> Option<&mut R> {
        each!(self, matcher => matcher.receive_mut(post))
    }

    /// See [`Matcher::drain_receives`] and [`Offload::drain_receives`]. Without a device there are no messages.
    pub fn drain_receives(&mut self) -> Forgotten<R, M> {
        match self {
            Self::Software(matcher) => {
                Forgotten { receives: matcher.drain_receives(), messages: Vec::new() }
            }
            Self::Offloaded(offload) => offload.drain_receives(),
        }
    }

    /// See [`Matcher::forget_source`].
    pub fn forget_source(&mut self, source: Source) -> Forgotten<R, M> {
        each!(self, matcher => matcher.forget_source(source))
    }

    /// How many receives are posted, at both homes together.
    pub fn posted_len(&self) -> usize {
        each!(self, matcher => matcher.posted_len())
    }

    /// How many unexpected messages wait.
    pub fn unexpected_len(&self) -> usize {
        each!(self, matcher => matcher.unexpected_len())
    }
}

//! A matcher for any device: in software, or split with the device's tag list.
//!
//! ```text
//!                     device has a tag list?
//!                  no │                        │ yes
//!                     ▼                        ▼
//!   TagMatcher::Software(Matcher)   TagMatcher::Offloaded(Offload)
//!                                      + poll_command → device
//!                                      + device → matched, op_completed
//! ```
//!
//! An engine calls the same methods in both cases. With a tag list it also posts the commands and
//! passes on what the device reports, both through [`offload`](TagMatcher::offload). EFA devices have
//! no tag list.

use crate::{
    Arrived, Cancelled, Forgotten, Handled, ListLimits, Matcher, MessageId, Offload, Pattern,
    PostId, Posted, Source, Vacancy,
};

/// Posted receives and unexpected messages, in software or split with a device.
#[derive(Debug, Clone)]
pub enum TagMatcher<R, M> {
    /// Everything in software.
    Software(Matcher<R, M>),
    /// The first receives on the device. Boxed, as most matchers are in software.
    Offloaded(Box<Offload<R, M>>),
}

/// Calls the same method of either variant.
macro_rules! each {
    ($on:expr, $name:ident => $call:expr) => {
        match $on {
            TagMatcher::Software($name) => $call,
            TagMatcher::Offloaded($name) => $call,
        }
    };
}

impl<R, M: Copy> TagMatcher<R, M> {
    /// A matcher for a device with a tag list of these limits, or without one. See [`Matcher::with_seed`]
    /// for the seed.
    #[must_use]
    pub fn new(device: Option<ListLimits>, seed: u64) -> Self {
        match device {
            None => Self::Software(Matcher::with_seed(seed)),
            Some(limits) => Self::Offloaded(Box::new(Offload::new(limits, seed))),
        }
    }

    /// The part that talks with the device, if it has a tag list.
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

    /// See [`Matcher::vacancy`]. Always `None` with a tag list.
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

    /// See [`Matcher::match_at_once`]. Always `None` with a tag list.
    #[inline(always)]
    pub fn match_at_once(&mut self, source: Source, tag: u64) -> Option<R> {
        match self {
            Self::Software(matcher) => matcher.match_at_once(source, tag),
            Self::Offloaded(_) => None,
        }
    }

    /// A message arrived that software has to match; with a tag list, one that the device reported as
    /// unexpected. [`Handled::Pending`] only with a tag list.
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

    /// Cancels this receive, if it is still posted. [`Cancelled::Pending`] only with a tag list.
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

    /// See [`Matcher::find_receive`].
    pub fn find_receive(&self, which: impl FnMut(&R) -> bool) -> Option<PostId> {
        each!(self, matcher => matcher.find_receive(which))
    }

    /// See [`Matcher::receive_mut`].
    pub fn receive_mut(&mut self, post: PostId) -> Option<&mut R> {
        each!(self, matcher => matcher.receive_mut(post))
    }

    /// See [`Matcher::drain_receives`] and [`Offload::drain_receives`]. No messages without a tag list.
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

    /// Number of posted receives, in software and on the device.
    #[must_use]
    pub fn posted_len(&self) -> usize {
        each!(self, matcher => matcher.posted_len())
    }

    /// Number of unexpected messages.
    #[must_use]
    pub fn unexpected_len(&self) -> usize {
        each!(self, matcher => matcher.unexpected_len())
    }
}

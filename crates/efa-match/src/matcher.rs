//! The matcher: posted receives, and unexpected messages.
//!
//! ```text
//!   post(pattern, receive)                       arrive(source, tag, message)
//!        │                                              │
//!        ▼ earliest message that fits                   ▼ earliest receive that fits
//!   unexpected messages                            posted receives
//!        │ none                                         │ none
//!        ▼                                              ▼
//!   kept in posted receives                        kept in unexpected messages
//! ```

use std::hash::{BuildHasher, RandomState};

use crate::{
    class::{Class, Classes, Key},
    posted::{PostedReceives, Stay},
    queues::Front,
    unexpected::UnexpectedMessages,
};

/// The sender of a message: a dense index of peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source(pub u32);

/// Which messages a receive accepts: those whose tag equals `tag` in all bits that aren't set in
/// `ignore`, from `source` or, if that is `None`, from any source.
///
/// An untagged receive is a tagged one with `ignore` of all ones, or, if its matcher sees only
/// untagged messages, with tag 0 on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// The only source accepted, or any.
    pub source: Option<Source>,
    /// The tag.
    pub tag: u64,
    /// Tag bits that needn't agree.
    pub ignore: u64,
}

impl Pattern {
    /// Accepts this tag, all bits of it, from this source.
    #[must_use]
    pub fn exact(source: Source, tag: u64) -> Self {
        Self { source: Some(source), tag, ignore: 0 }
    }

    /// Accepts this tag, all bits of it, from any source.
    #[must_use]
    pub fn any_source(tag: u64) -> Self {
        Self { source: None, tag, ignore: 0 }
    }

    /// Whether a message with this source and tag is accepted. The [`Matcher`] looks messages up by hash
    /// and never calls this; tests compare the two.
    #[must_use]
    pub fn accepts(&self, source: Source, tag: u64) -> bool {
        (self.tag ^ tag) & !self.ignore == 0 && self.source.is_none_or(|only| only == source)
    }
}

/// Identifies a posted receive until it is matched or cancelled. A stale identifier refers to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PostId {
    pub(crate) index: u32,
    pub(crate) stamp: u32,
}

impl PostId {
    /// The identifier as a number, for the `wr_id` of a work request.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        u64::from(self.index) << 32 | u64::from(self.stamp)
    }

    /// The identifier from [`to_bits`](Self::to_bits). Any other number is a stale identifier.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: (bits >> 32) as u32, stamp: bits as u32 }
    }
}

/// Identifies an unexpected message until it is matched, taken or withdrawn. A stale identifier refers to
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The result of posting a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a matched message is no longer in the matcher"]
pub enum Posted<R, M> {
    /// The receive, returned, and the message that it gets: the earliest that it accepts.
    Matched(R, M),
    /// It waits for a message.
    Waiting(PostId),
}

/// The result of a message's arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a matched receive may be no longer in the matcher"]
pub enum Arrived<R> {
    /// It goes to the earliest posted receive that accepts it.
    Matched(Match<R>),
    /// It waits for a receive.
    Unexpected(MessageId),
}

/// The receive that a message goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match<R> {
    /// An ordinary receive, which is no longer posted.
    Once(R),
    /// One posted with [`Matcher::post_lasting`], which is still posted: [`Matcher::receive_mut`] has it.
    Lasting(PostId),
}

impl<R> Match<R> {
    /// The receive, if it is no longer posted.
    pub fn once(self) -> Option<R> {
        match self {
            Self::Once(receive) => Some(receive),
            Self::Lasting(_) => None,
        }
    }
}

/// Receives and messages that were removed together: those of one source, or all.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "they are no longer in the matcher"]
pub struct Forgotten<R, M> {
    /// Receives, in the order of posting; of a source those for it alone.
    pub receives: Vec<R>,
    /// Messages that got no receive, in the order of arrival.
    pub messages: Vec<M>,
}

/// Matches messages with receives by MPI's rules: a message goes to the receive that was posted first of
/// those that accept it; a receive gets the message that arrived first of those that it accepts.
///
/// `R` is the caller's receive, such as a buffer and a context; the matcher owns it until it is matched or
/// cancelled. `M` is the caller's handle of a message.
///
/// No cost grows with the number of receives or messages that wait. A message is looked up once in each
/// class of patterns in use (a class is an ignore mask, with or without a source). Nothing is allocated
/// once the tables have the size that they need.
#[derive(Debug, Clone)]
pub struct Matcher<R, M> {
    classes: Classes,
    posted: PostedReceives<R>,
    unexpected: UnexpectedMessages<M>,
}

impl<R, M: Copy> Default for Matcher<R, M> {
    fn default() -> Self {
        Self::new()
    }
}

// The fast paths of post and arrival are `inline(always)`: saving and restoring registers around a call
// would be a third of their cost. The slow paths are `inline(never)` and called last, so that the fast
// paths save no registers for them.
impl<R, M: Copy> Matcher<R, M> {
    /// An empty matcher whose hashes are keyed with a random secret.
    #[must_use]
    pub fn new() -> Self {
        Self::with_seed(RandomState::new().hash_one(0u64))
    }

    /// An empty matcher whose hashes are keyed with this secret. The seed does not change what matches; a
    /// fixed one makes instruction counts repeatable. Outside of tests it must be unknown to peers, or they
    /// could choose tags that collide.
    #[must_use]
    pub fn with_seed(seed: u64) -> Self {
        Self {
            classes: Classes::new(seed),
            posted: PostedReceives::new(),
            unexpected: UnexpectedMessages::new(),
        }
    }

    /// An empty matcher with capacity for this many posted receives and unexpected messages, as [`reserve`](Self::reserve)
    /// has it.
    #[must_use]
    pub fn with_capacity(posted: usize, unexpected: usize) -> Self {
        let mut matcher = Self::new();
        matcher.reserve(posted, unexpected);
        matcher
    }

    /// Reserves capacity for this many more posted receives and unexpected messages. It is a hint: where there is no
    /// memory for so many, nothing is reserved, and it is allocated as they come.
    pub fn reserve(&mut self, posted: usize, unexpected: usize) {
        self.posted.reserve(posted);
        self.unexpected.reserve(unexpected);
    }

    /// Number of posted receives, lasting ones included.
    #[must_use]
    pub fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// Number of unexpected messages.
    #[must_use]
    pub fn unexpected_len(&self) -> usize {
        self.unexpected.len()
    }

    /// Posts a receive: it gets the earliest unexpected message that it accepts, or waits.
    #[inline(always)]
    pub fn post(&mut self, pattern: Pattern, receive: R) -> Posted<R, M> {
        if let Some((class_at, key)) = self.classes.locate_again(&pattern) {
            let class = self.classes.get_mut(class_at);
            if self.unexpected.is_empty() {
                if self.posted.has_space(class) {
                    let post = self.posted.push(class, class_at, &key, receive, Stay::Once);
                    return Posted::Waiting(post);
                }
            } else if let Some(front) = self.unexpected.front(class, &key) {
                return Posted::Matched(receive, self.remove_front(class_at, front));
            }
        }
        self.post_slow(&pattern, receive)
    }

    /// The fast path of [`post`](Self::post) for a receive that waits: `Some` if no message is unexpected,
    /// the last pattern was of the same class, and no table has to grow.
    #[inline(always)]
    pub fn vacancy(&mut self, pattern: &Pattern) -> Option<Vacancy<'_, R>> {
        let (class_at, key) = self.classes.locate_again(pattern)?;
        let class = self.classes.get_mut(class_at);
        if !self.unexpected.is_empty() || !self.posted.has_space(class) {
            return None;
        }
        Some(Vacancy { posted: &mut self.posted, class, class_at, key })
    }

    /// The slow path of [`post`](Self::post).
    #[inline(never)]
    fn post_slow(&mut self, pattern: &Pattern, receive: R) -> Posted<R, M> {
        let (class_at, key) = self.classes.locate(pattern);
        match self.find_in(class_at, &key) {
            Some(front) => Posted::Matched(receive, self.remove_front(class_at, front)),
            None => Posted::Waiting(self.keep(class_at, key, receive, Stay::Once)),
        }
    }

    #[inline(never)]
    fn keep(&mut self, class_at: usize, key: Key, receive: R, stay: Stay) -> PostId {
        let class = self.classes.get_mut(class_at);
        if !self.posted.has_space(class) {
            self.posted.make_space(class);
        }
        self.posted.push(class, class_at, &key, receive, stay)
    }

    /// Posts a receive that stays after a match (a multi-receive buffer) and keeps its position in the
    /// order until it is [cancelled](Self::cancel).
    ///
    /// It is not matched with unexpected messages: [`take`](Self::take) those that it accepts first.
    pub fn post_lasting(&mut self, pattern: Pattern, receive: R) -> PostId {
        let (class_at, key) = self.classes.locate(&pattern);
        self.keep(class_at, key, receive, Stay::Lasting)
    }

    /// The fast path of matching a message: removes the earliest posted receive that accepts it, if all
    /// patterns are of one class and the receive does not stay. `None`: nothing was changed.
    #[inline(always)]
    pub fn match_at_once(&mut self, source: Source, tag: u64) -> Option<R> {
        let only = self.classes.only_mut()?;
        let front = self.posted.front(only, &only.key(source.0, tag))?;
        self.posted.consume_once(only, front)
    }

    /// A message arrived: it goes to the earliest posted receive that accepts it, or becomes unexpected.
    #[inline]
    pub fn arrive(&mut self, source: Source, tag: u64, message: M) -> Arrived<R> {
        match self.match_posted(source, tag) {
            Some(found) => Arrived::Matched(found),
            None => Arrived::Unexpected(self.unexpected.push(source.0, tag, message)),
        }
    }

    /// Like [`arrive`](Self::arrive), but a message without a receive is not kept.
    #[inline(always)]
    pub fn match_posted(&mut self, source: Source, tag: u64) -> Option<Match<R>> {
        // With one class there is nothing to compare.
        if let Some(only) = self.classes.only_mut() {
            let front = self.posted.front(only, &only.key(source.0, tag))?;
            return self.posted.consume_front(only, front);
        }
        self.match_among_classes(source, tag)
    }

    #[inline(never)]
    fn match_among_classes(&mut self, source: Source, tag: u64) -> Option<Match<R>> {
        let (class_at, front) = self.posted.earliest(self.classes.in_use(), source.0, tag)?;
        let found = self.posted.consume_front(self.classes.get_mut(class_at), front);
        self.classes.trim();
        found
    }

    /// Like [`match_posted`](Self::match_posted), also returning the receive's identifier.
    #[inline(always)]
    pub(crate) fn match_identified(
        &mut self,
        source: Source,
        tag: u64,
    ) -> Option<(PostId, Match<R>)> {
        let (class_at, front) = self.posted.earliest(self.classes.in_use(), source.0, tag)?;
        let post = self.posted.get(front.at).id(front.at);
        let found = self.posted.consume_front(self.classes.get_mut(class_at), front)?;
        self.classes.trim();
        Some((post, found))
    }

    /// Keeps an unexpected message, which no posted receive accepts.
    pub(crate) fn keep_message(&mut self, source: Source, tag: u64, message: M) -> MessageId {
        self.unexpected.push(source.0, tag, message)
    }

    /// This receive, lasting or not, if it is still posted.
    #[must_use]
    pub fn receive(&self, post: PostId) -> Option<&R> {
        self.posted.receive(post)
    }

    /// This receive, lasting or not, if it is still posted.
    pub fn receive_mut(&mut self, post: PostId) -> Option<&mut R> {
        self.posted.receive_mut(post)
    }

    /// The receive, lasting or not, that was posted first of those that `which` selects. The cost is linear
    /// in the number of all receives.
    pub fn find_receive(&self, which: impl FnMut(&R) -> bool) -> Option<PostId> {
        self.posted.first(which)
    }

    /// Whether this receive is posted.
    #[inline]
    pub(crate) fn is_posted(&self, post: PostId) -> bool {
        self.posted.find(post).is_some()
    }

    /// The earliest unexpected message that the pattern accepts; it stays.
    ///
    /// Takes `&mut self` since the index of the pattern's class is extended on demand.
    #[inline]
    pub fn peek(&mut self, pattern: &Pattern) -> Option<M> {
        let (_, front) = self.find(pattern)?;
        Some(self.unexpected.get(front.at))
    }

    /// Removes the earliest unexpected message that the pattern accepts: no receive will get it (claim,
    /// discard).
    #[inline(always)]
    pub fn take(&mut self, pattern: &Pattern) -> Option<M> {
        let (class_at, front) = self.find(pattern)?;
        Some(self.remove_front(class_at, front))
    }

    /// Removes this unexpected message, if it still waits.
    pub fn withdraw(&mut self, message: MessageId) -> Option<M> {
        let index = self.unexpected.find(message)?;
        Some(self.remove_message(index))
    }

    /// Removes this receive, lasting or not, if it is still posted.
    pub fn cancel(&mut self, post: PostId) -> Option<R> {
        let index = self.posted.find(post)?;
        self.remove_receive(index)
    }

    /// Removes everything of a source: its unexpected messages, and the receives that accept no other
    /// source. The cost is linear in the number of all receives and messages.
    pub fn forget_source(&mut self, source: Source) -> Forgotten<R, M> {
        let classes = self.classes.in_use();
        let receives = self.posted.select(|post| {
            let directed = classes[post.class_at()].is_directed();
            directed && post.source == source.0
        });
        let messages = self.unexpected.select(|from| from == source.0);
        self.remove_all(&receives, &messages)
    }

    /// Removes all receives and messages.
    pub fn drain(&mut self) -> Forgotten<R, M> {
        let receives = self.posted.select(|_| true);
        let messages = self.unexpected.select(|_| true);
        self.remove_all(&receives, &messages)
    }

    /// Removes all receives; messages stay.
    pub fn drain_receives(&mut self) -> Vec<R> {
        let receives = self.posted.select(|_| true);
        self.remove_all(&receives, &[]).receives
    }

    /// The identifiers of all receives, in the order of posting.
    pub(crate) fn posts(&self) -> Vec<PostId> {
        let posts = self.posted.select(|_| true).into_iter();
        posts.map(|index| self.posted.get(index).id(index)).collect()
    }

    fn remove_all(&mut self, receives: &[u32], messages: &[u32]) -> Forgotten<R, M> {
        let receives = receives.iter().filter_map(|&index| self.remove_receive(index)).collect();
        let messages = messages.iter().map(|&index| self.remove_message(index)).collect();
        Forgotten { receives, messages }
    }

    #[inline(always)]
    fn find(&mut self, pattern: &Pattern) -> Option<(usize, Front)> {
        if let Some((class_at, key)) = self.classes.locate_again(pattern)
            && let Some(front) = self.unexpected.front(self.classes.get_mut(class_at), &key)
        {
            return Some((class_at, front));
        }
        self.find_slow(pattern)
    }

    #[inline(never)]
    fn find_slow(&mut self, pattern: &Pattern) -> Option<(usize, Front)> {
        if self.unexpected.is_empty() {
            return None;
        }
        let (class_at, key) = self.classes.locate(pattern);
        Some((class_at, self.find_in(class_at, &key)?))
    }

    #[inline(always)]
    fn find_in(&mut self, class_at: usize, key: &Key) -> Option<Front> {
        if self.unexpected.is_empty() {
            return None;
        }
        let class = self.classes.get_mut(class_at);
        if !self.unexpected.is_indexed(class) {
            self.unexpected.extend_index(class);
        }
        self.unexpected.front(class, key)
    }

    #[inline(always)]
    fn remove_receive(&mut self, index: u32) -> Option<R> {
        let class_at = self.posted.get(index).class_at();
        let receive = self.posted.remove(self.classes.get_mut(class_at), index);
        self.classes.trim();
        receive
    }

    #[inline(always)]
    fn remove_front(&mut self, class_at: usize, front: Front) -> M {
        let message = self.unexpected.remove_front(self.classes.get_mut(class_at), front);
        self.classes.remove_from_other_indexes(front.at);
        message
    }

    fn remove_message(&mut self, index: u32) -> M {
        self.classes.remove_from_indexes(index);
        self.unexpected.remove(index)
    }
}

/// The fast path of posting a receive that waits; see [`Matcher::vacancy`].
#[derive(Debug)]
#[must_use = "nothing is posted until it is filled"]
pub struct Vacancy<'a, R> {
    posted: &'a mut PostedReceives<R>,
    class: &'a mut Class,
    class_at: usize,
    key: Key,
}

impl<R> Vacancy<'_, R> {
    /// Posts the receive.
    #[inline(always)]
    pub fn fill(self, receive: R) -> PostId {
        self.posted.push(self.class, self.class_at, &self.key, receive, Stay::Once)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASKS: u64 = 40;

    /// A receive for tag `n`, of a class of its own.
    fn of_class(n: u64) -> Pattern {
        Pattern { source: None, tag: n, ignore: n << 32 }
    }

    fn post(matcher: &mut Matcher<u64, u64>, n: u64) -> PostId {
        let Posted::Waiting(post) = matcher.post(of_class(n), n) else {
            panic!("{n} got a message")
        };
        post
    }

    #[test]
    fn matcher_with_capacity_beyond_all_memory_matches() {
        let mut matcher = Matcher::with_capacity(usize::MAX, usize::MAX);
        post(&mut matcher, 1);
        matcher.reserve(usize::MAX, usize::MAX);
        assert_eq!(matcher.match_posted(Source(0), 1), Some(Match::Once(1)));
    }

    fn assert_at_rest(matcher: &Matcher<u64, u64>) {
        let classes = matcher.classes.in_use().len();
        assert!(classes <= 4, "{classes} empty classes in use");
    }

    /// A message is looked up only in classes in use, however many masks a program has used before.
    #[test]
    fn empty_classes_are_dropped() {
        let mut matcher = Matcher::with_seed(1);
        for backwards in [false, true] {
            let order = |n: u64| if backwards { MASKS - 1 - n } else { n };
            for n in 0..MASKS {
                post(&mut matcher, n);
            }
            for n in (0..MASKS).map(order) {
                assert_eq!(matcher.match_posted(Source(0), n), Some(Match::Once(n)));
            }
            assert_at_rest(&matcher);

            let posts: Vec<_> = (0..MASKS).map(|n| post(&mut matcher, n)).collect();
            for n in (0..MASKS).map(order) {
                assert_eq!(matcher.cancel(posts[n as usize]), Some(n));
            }
            assert_at_rest(&matcher);

            let keep = |matcher: &mut Matcher<u64, u64>| {
                let messages = (0..MASKS).map(|n| matcher.keep_message(Source(0), n, n)).collect();
                assert!((0..MASKS).all(|n| matcher.peek(&of_class(n)) == Some(n)));
                messages
            };
            let _: Vec<_> = keep(&mut matcher);
            for n in (0..MASKS).map(order) {
                assert_eq!(matcher.take(&of_class(n)), Some(n));
            }
            assert_at_rest(&matcher);

            let messages: Vec<_> = keep(&mut matcher);
            for n in (0..MASKS).map(order) {
                assert_eq!(matcher.withdraw(messages[n as usize]), Some(n));
            }
            assert_at_rest(&matcher);
        }
    }

    /// The last class in use keeps those before it from being dropped, but they are reused.
    #[test]
    fn empty_classes_are_reused() {
        let mut matcher = Matcher::with_seed(1);
        for n in 0..8 {
            post(&mut matcher, n);
        }
        for n in 0..7 {
            assert_eq!(matcher.match_posted(Source(0), n), Some(Match::Once(n)));
        }
        for n in 8..1000 {
            post(&mut matcher, n);
            assert_eq!(matcher.match_posted(Source(0), n), Some(Match::Once(n)));
            assert_eq!(matcher.classes.in_use().len(), 8);
        }
        assert_eq!(matcher.match_posted(Source(0), 7), Some(Match::Once(7)));
        assert_at_rest(&matcher);
    }
}

//! Posted receives. Each is in one queue of one class, chosen by its key; a sequence number orders the
//! candidates of several classes.

use std::mem;

use crate::{
    Match, PostId,
    class::{Class, Key},
    queues::{Front, Link, Linked},
    slots::{Reusable, Slots},
};

/// What happens to a receive when it is matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stay {
    /// It is removed.
    Once,
    /// It keeps its position until it is cancelled.
    Lasting,
}

/// A posted receive.
#[derive(Debug, Clone)]
pub(crate) struct Post<R> {
    link: Link,
    tag: u64,
    pub(crate) source: u32,
    class: ClassAndStay,
    /// Order of posting, over all classes.
    sequence: u64,
    /// The caller's value. An entry without one is unused and in no queue.
    receive: Option<R>,
}

/// Index of the receive's class, and whether the receive stays after a match, in one word: no machine has
/// memory for so many classes that they need the last bit.
#[derive(Debug, Clone, Copy)]
struct ClassAndStay(u32);

impl ClassAndStay {
    const LASTING: u32 = 1 << 31;

    #[inline]
    fn new(class_at: usize, stay: Stay) -> Self {
        match stay {
            Stay::Once => Self(class_at as u32),
            Stay::Lasting => Self(class_at as u32 | Self::LASTING),
        }
    }

    #[inline]
    fn stay(self) -> Stay {
        if self.0 & Self::LASTING == 0 { Stay::Once } else { Stay::Lasting }
    }

    #[inline]
    fn class_at(self) -> usize {
        (self.0 & !Self::LASTING) as usize
    }
}

// Bytes of a posted receive besides the caller's value; the buckets add 8 to 16. The engine's total is limited
// to 96 bytes, which efa-rdm's `tests/footprint.rs` checks.
const _: () = assert!(size_of::<Post<u32>>() <= 48);
const _: () = assert!(size_of::<Post<u64>>() <= 56);

impl<R> Post<R> {
    #[inline]
    pub(crate) fn id(&self, index: u32) -> PostId {
        PostId { index, stamp: self.sequence as u32 }
    }

    /// Index of its class.
    #[inline]
    pub(crate) fn class_at(&self) -> usize {
        self.class.class_at()
    }
}

impl<R> Linked for Post<R> {
    fn link(&self) -> &Link {
        &self.link
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

impl<R> Reusable for Post<R> {
    fn next_free(&mut self) -> &mut u32 {
        &mut self.link.next
    }
}

/// All posted receives.
#[derive(Debug, Clone)]
pub(crate) struct PostedReceives<R> {
    posts: Slots<Post<R>>,
    next_sequence: u64,
}

impl<R> PostedReceives<R> {
    pub(crate) fn new() -> Self {
        Self { posts: Slots::new(), next_sequence: 0 }
    }

    pub(crate) fn reserve(&mut self, additional: usize) {
        self.posts.reserve(additional);
    }

    pub(crate) fn len(&self) -> usize {
        self.posts.in_use()
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> &Post<R> {
        &self.posts[index as usize]
    }

    /// The caller's value, if the receive is still posted.
    pub(crate) fn receive(&self, id: PostId) -> Option<&R> {
        self.get(self.find(id)?).receive.as_ref()
    }

    pub(crate) fn receive_mut(&mut self, id: PostId) -> Option<&mut R> {
        let index = self.find(id)?;
        self.posts[index as usize].receive.as_mut()
    }

    /// The receive's index, if it is still posted.
    pub(crate) fn find(&self, id: PostId) -> Option<u32> {
        let post = self.posts.get(id.index as usize)?;
        (post.receive.is_some() && post.sequence as u32 == id.stamp).then_some(id.index)
    }

    /// Whether there is space for one more receive of this class.
    #[inline]
    pub(crate) fn has_space(&self, class: &Class) -> bool {
        self.posts.has_free() && class.posted.has_space()
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn make_space(&mut self, class: &mut Class) {
        if !class.posted.has_space() {
            class.posted.make_space(&mut self.posts);
        }
        if !self.posts.has_free() {
            let class = ClassAndStay::new(0, Stay::Once);
            let link = Link::LOOSE;
            let receive = None;
            self.posts.add_free(Post { link, tag: 0, source: 0, class, sequence: 0, receive });
        }
    }

    /// Adds a receive, for which there must be space.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        class: &mut Class,
        class_at: usize,
        key: &Key,
        receive: R,
        stay: Stay,
    ) -> PostId {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let Key { tag, source, hash } = *key;
        let index = self.posts.take();
        // Before the queues are changed: until then it would be kept apart, and copied twice. An unused entry has nothing to
        // drop, which the compiler does not see.
        mem::forget(self.posts[index as usize].receive.replace(receive));
        let front = self.front(class, key);
        let link = class.posted.push(&mut self.posts, index, hash, front);
        let class = ClassAndStay::new(class_at, stay);
        // Field by field: a whole entry would be built apart and copied.
        let post = &mut self.posts[index as usize];
        post.link = link;
        (post.tag, post.source, post.class, post.sequence) = (tag, source, class, sequence);
        PostId { index, stamp: sequence as u32 }
    }

    /// The earliest receive with this key.
    #[inline]
    pub(crate) fn front(&self, class: &Class, key: &Key) -> Option<Front> {
        let is_it = |post: &Post<R>| post.tag == key.tag && post.source == key.source;
        class.posted.front(&self.posts, key.hash, is_it, |_, post| post.link.chain)
    }

    /// The earliest receive of all classes that accepts a message with this source and tag, and the index
    /// of its class.
    #[inline(always)]
    pub(crate) fn earliest(
        &self,
        classes: &[Class],
        source: u32,
        tag: u64,
    ) -> Option<(usize, Front)> {
        let mut candidates = classes.iter().enumerate().filter_map(|(class_at, class)| {
            if class.posted.is_empty() {
                return None;
            }
            Some((class_at, self.front(class, &class.key(source, tag))?))
        });
        let mut earliest = candidates.next()?;
        for candidate in candidates {
            if self.get(candidate.1.at).sequence < self.get(earliest.1.at).sequence {
                earliest = candidate;
            }
        }
        Some(earliest)
    }

    /// Matches the front of a queue of this class with a message.
    #[inline(always)]
    pub(crate) fn consume_front(&mut self, class: &mut Class, front: Front) -> Option<Match<R>> {
        let post = self.get(front.at);
        match post.class.stay() {
            Stay::Once => self.take_front(class, front).map(Match::Once),
            Stay::Lasting => Some(Match::Lasting(post.id(front.at))),
        }
    }

    /// Removes the front of a queue of this class, unless it stays after a match.
    #[inline(always)]
    pub(crate) fn consume_once(&mut self, class: &mut Class, front: Front) -> Option<R> {
        match self.get(front.at).class.stay() {
            Stay::Once => self.take_front(class, front),
            Stay::Lasting => None,
        }
    }

    /// Removes the front of a queue of this class. Every queued entry has a receive.
    #[inline(always)]
    fn take_front(&mut self, class: &mut Class, front: Front) -> Option<R> {
        class.posted.remove_front(&mut self.posts, front);
        self.take_out(front.at)
    }

    /// Removes a receive at any position.
    #[inline(always)]
    pub(crate) fn remove(&mut self, class: &mut Class, index: u32) -> Option<R> {
        debug_assert!(self.get(index).receive.is_some(), "receive {index} is not posted");
        class.posted.remove(&mut self.posts, index);
        self.take_out(index)
    }

    #[inline(always)]
    fn take_out(&mut self, index: u32) -> Option<R> {
        self.posts.free(index);
        self.posts[index as usize].receive.take()
    }

    /// The receive that was posted first of those that `which` selects.
    pub(crate) fn first(&self, mut which: impl FnMut(&R) -> bool) -> Option<PostId> {
        let selected = (0..).zip(self.posts.iter()).filter(|(_, post)| match &post.receive {
            Some(receive) => which(receive),
            None => false,
        });
        selected.min_by_key(|(_, post)| post.sequence).map(|(index, post)| post.id(index))
    }

    /// Indexes of the receives that `which` selects, in the order of posting.
    pub(crate) fn select(&self, which: impl Fn(&Post<R>) -> bool) -> Vec<u32> {
        let mut chosen: Vec<u32> = (0..)
            .zip(self.posts.iter())
            .filter(|(_, post)| post.receive.is_some() && which(post))
            .map(|(index, _)| index)
            .collect();
        chosen.sort_unstable_by_key(|&index| self.get(index).sequence);
        chosen
    }
}

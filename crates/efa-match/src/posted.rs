//! Posted receives, in queues by class and key.
//!
//! A receive belongs to exactly one class, so one table serves all classes. Which of the classes'
//! candidates was posted first is told by a sequence number.

use crate::{
    PostId,
    class::{Class, Key, Probe},
    queues::{Link, Linked, Queues},
    slots::Slots,
};

/// What becomes of a receive when it is matched.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stay<R> {
    /// It is used up.
    Once(R),
    /// It keeps its place until it's cancelled.
    Lasting(R),
}

impl<R> Stay<R> {
    pub(crate) fn receive(self) -> R {
        match self {
            Self::Once(receive) | Self::Lasting(receive) => receive,
        }
    }
}

/// A posted receive.
#[derive(Debug)]
pub(crate) struct Post<R> {
    link: Link,
    pub(crate) key: Key,
    /// Order of posting, over all classes.
    pub(crate) sequence: u64,
    pub(crate) receive: Stay<R>,
}

// A posted receive of the whole engine is to cost at most 96 bytes (goal 17 of the performance
// goals); the buckets add 8 to 16 to this, the list of free places 4.
const _: () = assert!(size_of::<Post<u32>>() <= 48);
const _: () = assert!(size_of::<Post<u64>>() <= 56);

impl<R> Linked for Post<R> {
    fn link(&self) -> &Link {
        &self.link
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// All posted receives.
#[derive(Debug)]
pub(crate) struct PostedReceives<R> {
    posts: Slots<Post<R>>,
    queues: Queues,
    next_sequence: u64,
}

impl<R: Copy> PostedReceives<R> {
    pub(crate) fn new() -> Self {
        Self { posts: Slots::new(), queues: Queues::default(), next_sequence: 0 }
    }

    pub(crate) fn reserve(&mut self, additional: usize) {
        self.queues.reserve(self.len() + additional, &mut self.posts);
        self.posts.reserve(additional);
    }

    pub(crate) fn len(&self) -> usize {
        self.posts.in_use()
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> &Post<R> {
        &self.posts[index as usize]
    }

    #[inline]
    pub(crate) fn id(&self, index: u32) -> PostId {
        PostId { index, stamp: self.get(index).sequence as u32 }
    }

    /// Where the receive is, if it is still posted.
    pub(crate) fn find(&self, id: PostId) -> Option<u32> {
        let post = self.posts.get(id.index as usize)?;
        (!post.link.is_loose() && post.sequence as u32 == id.stamp).then_some(id.index)
    }

    #[inline]
    pub(crate) fn push(&mut self, probe: &Probe, receive: Stay<R>) -> PostId {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let front = self.front(probe);
        let index =
            self.posts.put(|_| Post { link: Link::LOOSE, key: probe.key, sequence, receive });
        self.queues.push(&mut self.posts, index, probe.hash, front);
        PostId { index, stamp: sequence as u32 }
    }

    #[inline]
    fn front(&self, probe: &Probe) -> Option<u32> {
        self.queues.front(&self.posts, probe.hash, |_, post| post.key == probe.key)
    }

    /// The receive that a message with this source and tag goes to.
    #[inline]
    pub(crate) fn earliest(&self, classes: &[Class], source: u32, tag: u64) -> Option<u32> {
        let mut earliest = None;
        let mut sequence = u64::MAX;
        for (at, class) in classes.iter().enumerate() {
            if class.posted == 0 {
                continue;
            }
            if let Some(front) = self.front(&class.probe(at, source, tag)) {
                let posted = self.get(front).sequence;
                if posted < sequence {
                    sequence = posted;
                    earliest = Some(front);
                }
            }
        }
        earliest
    }

    #[inline]
    pub(crate) fn remove(&mut self, index: u32) {
        self.queues.remove(&mut self.posts, index);
        self.posts.free(index);
    }

    /// The receives that `which` chooses, in the order of posting.
    pub(crate) fn select(&self, which: impl Fn(&Post<R>) -> bool) -> Vec<u32> {
        let mut chosen: Vec<u32> = (0..)
            .zip(self.posts.iter())
            .filter(|(_, post)| !post.link.is_loose() && which(post))
            .map(|(index, _)| index)
            .collect();
        chosen.sort_unstable_by_key(|&index| self.get(index).sequence);
        chosen
    }
}

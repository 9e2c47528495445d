//! First-in-first-out queues found by hash: the structure of posted receives and of unexpected messages.
//!
//! ```text
//!   heads      [ . | 4 | . | 7 ]          one u32 per bucket, at most half of them used
//!                    │       │
//!                    ▼       ▼            chain: queues that share a bucket
//!   front of a queue 4 ────► 9 ──► NIL
//!                    ⇅       (alone)      next/prev: oldest first, but for
//!                    5                    front.prev, which is the youngest
//!                    ⇅
//!                    6 ──► NIL
//! ```
//!
//! All links are in the entries ([`Link`]), so that pushing and removing allocate nothing and leave no
//! tombstones.

/// "No entry" in a bucket or at the end of a chain.
pub(crate) const NIL: u32 = u32::MAX;
/// `chain` of an entry that waits behind the front of its queue.
const BEHIND: u32 = u32::MAX - 1;
/// `chain` of an entry that is in no queue.
const LOOSE: u32 = u32::MAX - 2;
/// Most entries: their indexes stay below the special values above, and the 32 bits of a hash that a link
/// keeps suffice for the buckets of all their queues.
pub(crate) const MAX_ENTRIES: usize = 1 << 31;

/// Number of buckets at first.
const FIRST_BUCKETS: usize = 32;

/// The links of an entry in a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    hash: u32,
    pub(crate) chain: u32,
    pub(crate) next: u32,
    prev: u32,
}

impl Link {
    /// In no queue.
    pub(crate) const LOOSE: Self = Self { hash: 0, chain: LOOSE, next: NIL, prev: NIL };

    /// Marks the entry as being in no queue.
    #[inline]
    pub(crate) fn loosen(&mut self) {
        self.chain = LOOSE;
    }

    #[inline]
    pub(crate) fn is_loose(&self) -> bool {
        self.chain == LOOSE
    }
}

/// An entry that can be in one queue at a time.
pub(crate) trait Linked {
    fn link(&self) -> &Link;
    fn link_mut(&mut self) -> &mut Link;
}

impl Linked for Link {
    fn link(&self) -> &Link {
        self
    }
    fn link_mut(&mut self) -> &mut Link {
        self
    }
}

/// The position of a queue's front; valid until the queues change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Front {
    pub(crate) at: u32,
    /// The front before it in the chain.
    before: u32,
    bucket: usize,
}

/// The buckets. The caller has the entries and passes the same slice each time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queues {
    /// Front of the first queue of each bucket; the length is zero or a power of two.
    heads: Vec<u32>,
    /// Number of queues, each with at least one entry.
    queues: usize,
}

impl Queues {
    /// Whether there is no queue.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues == 0
    }

    /// The oldest entry of the queue whose front `is_it` accepts. `entries` need not contain the links;
    /// `chain` returns the `chain` field of an entry's link.
    #[inline]
    pub(crate) fn front<T>(
        &self,
        entries: &[T],
        hash: u64,
        is_it: impl Fn(&T) -> bool,
        chain: impl Fn(u32, &T) -> u32,
    ) -> Option<Front> {
        // Without buckets the mask is all ones, and `get` returns `None`.
        let bucket = hash as usize & self.heads.len().wrapping_sub(1);
        let mut at = *self.heads.get(bucket)?;
        let mut before = NIL;
        // NIL is never an index.
        while let Some(entry) = entries.get(at as usize) {
            if is_it(entry) {
                return Some(Front { at, before, bucket });
            }
            before = at;
            at = chain(at, entry);
        }
        None
    }

    /// Whether there is a bucket for one more queue.
    #[inline]
    pub(crate) fn has_space(&self) -> bool {
        self.queues * 2 < self.heads.len()
    }

    /// Doubles the number of buckets.
    #[cold]
    #[inline(never)]
    pub(crate) fn make_space<E: Linked>(&mut self, entries: &mut [E]) {
        let buckets = (self.heads.len() * 2).max(FIRST_BUCKETS);
        let old = std::mem::replace(&mut self.heads, vec![NIL; buckets]);
        for mut at in old {
            while at != NIL {
                let link = entries[at as usize].link_mut();
                let bucket = &mut self.heads[link.hash as usize & (buckets - 1)];
                let rest = std::mem::replace(&mut link.chain, *bucket);
                *bucket = at;
                at = rest;
            }
        }
    }

    /// Appends `at` to the queue with this front, or makes a new queue of it, for which there must be
    /// space. The caller must store the returned link in the entry.
    #[inline(always)]
    #[must_use]
    pub(crate) fn push<E: Linked>(
        &mut self,
        entries: &mut [E],
        at: u32,
        hash: u64,
        front: Option<Front>,
    ) -> Link {
        if let Some(Front { at: front, .. }) = front {
            let last = std::mem::replace(&mut entries[front as usize].link_mut().prev, at);
            entries[last as usize].link_mut().next = at;
            return Link { hash: hash as u32, chain: BEHIND, next: NIL, prev: last };
        }
        self.queues += 1;
        let bucket = hash as usize & (self.heads.len() - 1);
        let chain = std::mem::replace(&mut self.heads[bucket], at);
        Link { hash: hash as u32, chain, next: NIL, prev: at }
    }

    /// Removes the front of a queue. The caller marks it as being in no queue.
    #[inline(always)]
    pub(crate) fn remove_front<E: Linked>(&mut self, entries: &mut [E], front: Front) {
        let Front { at, before, bucket } = front;
        let Link { chain, next, prev, .. } = *entries[at as usize].link();
        let mut successor = chain;
        if next == NIL {
            self.queues -= 1;
        } else {
            let next_link = entries[next as usize].link_mut();
            next_link.prev = prev;
            next_link.chain = chain;
            successor = next;
        }
        match entries.get_mut(before as usize) {
            None => self.heads[bucket] = successor,
            Some(before) => before.link_mut().chain = successor,
        }
    }

    /// Removes `at` from its queue, at any position. The caller marks it as being in no queue.
    #[inline(always)]
    pub(crate) fn remove<E: Linked>(&mut self, entries: &mut [E], at: u32) {
        let Link { hash, chain, next, prev } = *entries[at as usize].link();
        debug_assert_ne!(chain, LOOSE, "entry {at} is in no queue");
        let is_behind = chain == BEHIND;
        if is_behind {
            entries[prev as usize].link_mut().next = next;
            if next != NIL {
                entries[next as usize].link_mut().prev = prev;
                return;
            }
        }
        // Find the front of the queue: `at` itself, or the one whose last entry is `at`.
        let bucket = hash as usize & (self.heads.len() - 1);
        let mut before = NIL;
        let mut front = self.heads[bucket];
        while front != at && !(is_behind && entries[front as usize].link().prev == at) {
            before = front;
            front = entries[front as usize].link().chain;
        }
        if is_behind {
            entries[front as usize].link_mut().prev = prev;
        } else {
            self.remove_front(entries, Front { at, before, bucket });
        }
    }
}

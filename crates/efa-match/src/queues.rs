//! First-in-first-out queues found by a hash: the structure under both halves of the matcher.
//!
//! ```text
//!   heads      [ . | 4 | . | 7 ]          one u32 per bucket, at most half of them used
//!                    │       │
//!                    ▼       ▼            chain: queues that share a bucket
//!   front of a queue 4 ────► 9 ──► NIL
//!                    ⇅       ⇅            next/prev: a ring, oldest first, so that
//!                    5       (alone)      front.prev is the youngest
//!                    ⇅
//!                    6
//! ```
//!
//! Everything lives in the entries' own [`Link`], so that pushing and removing call no allocator,
//! and a removed entry leaves nothing behind: there are no tombstones to clean up, ever.

/// "No entry" in a bucket or at the end of a chain.
pub(crate) const NIL: u32 = u32::MAX;
/// `chain` of an entry that waits behind the front of its queue.
const BEHIND: u32 = u32::MAX - 1;
/// `chain` of an entry that is in no queue.
const LOOSE: u32 = u32::MAX - 2;
/// Indexes from here on have a meaning of their own, see above.
pub(crate) const MAX_ENTRIES: usize = LOOSE as usize;

/// The first time a bucket is needed, this many are made.
const FIRST_BUCKETS: usize = 32;

/// What an entry carries to be in a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    hash: u32,
    chain: u32,
    next: u32,
    prev: u32,
}

impl Link {
    /// In no queue.
    pub(crate) const LOOSE: Self = Self { hash: 0, chain: LOOSE, next: NIL, prev: NIL };

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

/// The buckets. The entries are the caller's, who passes the same slice each time.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// Front of the first queue of each bucket; the length is zero or a power of two.
    heads: Vec<u32>,
    /// Queues that have at least one entry.
    queues: usize,
}

impl Queues {
    /// Makes room for this many queues.
    pub(crate) fn reserve<E: Linked>(&mut self, queues: usize, entries: &mut [E]) {
        let buckets = (queues * 2).next_power_of_two();
        if buckets > self.heads.len() {
            self.rebuild(buckets, entries);
        }
    }

    /// The oldest entry of the queue that `is_it` recognises by any of its entries.
    #[inline]
    pub(crate) fn front<E: Linked>(
        &self,
        entries: &[E],
        hash: u32,
        is_it: impl Fn(u32, &E) -> bool,
    ) -> Option<u32> {
        // Without buckets the mask is all ones, and `get` finds none.
        let mask = self.heads.len().wrapping_sub(1);
        let mut at = *self.heads.get(hash as usize & mask)?;
        while at != NIL {
            let entry = &entries[at as usize];
            if is_it(at, entry) {
                return Some(at);
            }
            at = entry.link().chain;
        }
        None
    }

    /// Puts `at` behind the queue whose front was found, or makes a queue of it.
    #[inline]
    pub(crate) fn push<E: Linked>(
        &mut self,
        entries: &mut [E],
        at: u32,
        hash: u32,
        front: Option<u32>,
    ) {
        if let Some(front) = front {
            let front_link = entries[front as usize].link_mut();
            let last = std::mem::replace(&mut front_link.prev, at);
            entries[last as usize].link_mut().next = at;
            *entries[at as usize].link_mut() =
                Link { hash, chain: BEHIND, next: front, prev: last };
            return;
        }
        if self.queues * 2 >= self.heads.len() {
            self.rebuild((self.heads.len() * 2).max(FIRST_BUCKETS), entries);
        }
        self.queues += 1;
        let mask = self.heads.len() - 1;
        let bucket = &mut self.heads[hash as usize & mask];
        let chain = std::mem::replace(bucket, at);
        *entries[at as usize].link_mut() = Link { hash, chain, next: at, prev: at };
    }

    /// Takes `at` out of its queue, wherever it stands in it.
    #[inline]
    pub(crate) fn remove<E: Linked>(&mut self, entries: &mut [E], at: u32) {
        let link = entries[at as usize].link_mut();
        let Link { hash, chain, next, prev } = *link;
        link.chain = LOOSE;
        debug_assert_ne!(chain, LOOSE, "entry {at} is in no queue");
        if chain == BEHIND {
            entries[prev as usize].link_mut().next = next;
            entries[next as usize].link_mut().prev = prev;
        } else if next == at {
            self.queues -= 1;
            self.replace_front(entries, hash, at, chain);
        } else {
            entries[prev as usize].link_mut().next = next;
            let successor = entries[next as usize].link_mut();
            successor.prev = prev;
            successor.chain = chain;
            self.replace_front(entries, hash, at, next);
        }
    }

    /// Lets what points at front `old` point at `new`.
    #[inline]
    fn replace_front<E: Linked>(&mut self, entries: &mut [E], hash: u32, old: u32, new: u32) {
        let mask = self.heads.len() - 1;
        let bucket = &mut self.heads[hash as usize & mask];
        if *bucket == old {
            *bucket = new;
            return;
        }
        let mut at = *bucket;
        loop {
            let chain = &mut entries[at as usize].link_mut().chain;
            if *chain == old {
                *chain = new;
                return;
            }
            at = *chain;
        }
    }

    /// Spreads the queues over more buckets.
    #[cold]
    fn rebuild<E: Linked>(&mut self, buckets: usize, entries: &mut [E]) {
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
}

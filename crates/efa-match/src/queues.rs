//! First-in-first-out queues found by a hash: the structure under both halves of the matcher.
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
//! Everything lives in the entries' own [`Link`], so that pushing and removing call no allocator,
//! and a removed entry leaves nothing behind: there are no tombstones to clean up, ever.

/// "No entry" in a bucket or at the end of a chain.
pub(crate) const NIL: u32 = u32::MAX;
/// `chain` of an entry that waits behind the front of its queue.
const BEHIND: u32 = u32::MAX - 1;
/// `chain` of an entry that is in no queue.
const LOOSE: u32 = u32::MAX - 2;
/// So many entries at most: their indexes stay below those with a meaning of their own, and of a hash
/// no more than the 32 bits that a link keeps are needed to tell the buckets of all their queues.
pub(crate) const MAX_ENTRIES: usize = 1 << 31;

/// The first time a bucket is needed, this many are made.
const FIRST_BUCKETS: usize = 32;

/// What an entry carries to be in a queue.
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

    /// Marks that the entry has left its queue.
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

/// Where the front of a queue was found; good until the queues are changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Front {
    pub(crate) at: u32,
    /// The front before it in the chain.
    before: u32,
    bucket: usize,
}

/// The buckets. The entries are the caller's, who passes the same slice each time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queues {
    /// Front of the first queue of each bucket; the length is zero or a power of two.
    heads: Vec<u32>,
    /// Queues that have at least one entry.
    queues: usize,
}

impl Queues {
    /// Whether no entry is in any queue.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues == 0
    }

    /// The oldest entry of the queue that `is_it` recognises by any of its entries. What `entries`
    /// are recognised by needn't be where their links are; `chain` gives the link's.
    #[inline]
    pub(crate) fn front<T>(
        &self,
        entries: &[T],
        hash: u64,
        is_it: impl Fn(&T) -> bool,
        chain: impl Fn(u32, &T) -> u32,
    ) -> Option<Front> {
        // Without buckets the mask is all ones, and `get` finds none.
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

    /// Whether one more queue has room.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.queues * 2 < self.heads.len()
    }

    /// Makes room for one more queue and as many as there are.
    #[cold]
    #[inline(never)]
    pub(crate) fn make_room<E: Linked>(&mut self, entries: &mut [E]) {
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

    /// Puts `at` behind the queue whose front was found, or makes a queue of it, for which there
    /// must be room. The caller must store the link in the entry.
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

    /// Takes the front out of its queue. That it is in none is for the caller to mark.
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

    /// Takes `at` out of its queue, wherever it stands in it. That it is in none is for the caller to mark.
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
        // The front of the queue, that is `at` itself or has it as its last.
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

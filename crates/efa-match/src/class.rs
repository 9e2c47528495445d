//! Classes of patterns: the distinct (ignore mask, directed or any source) pairs in use.
//!
//! All patterns of a class compare the same bits, so matching within a class is equality, found by
//! hash. A message is looked up once in each class in use; programs use one to three.
//!
//! ```text
//!   ignore 0,        directed     hash(tag & !0,        source)
//!   ignore 0,        any source   hash(tag & !0,        0)
//!   ignore 0xffff…,  any source   hash(tag & !0xffff…,  0)
//! ```

use crate::{Pattern, queues::Queues, unexpected::Index};

/// Up to this many classes are kept while they are empty, so that a program that alternates between no
/// and one receive does not set up its class each time.
const KEPT: usize = 4;

/// What the patterns and messages of one queue share, and its hash.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    /// Bits that the class doesn't compare are zero.
    pub(crate) tag: u64,
    /// Zero where any source fits.
    pub(crate) source: u32,
    /// As wide as a bucket mask, which so needs no narrowing.
    pub(crate) hash: u64,
}

/// One class: the bits that it compares, its posted receives and its unexpected messages.
#[derive(Debug, Clone)]
pub(crate) struct Class {
    /// Tag bits compared, the inverse of the ignore mask.
    tag_bits: u64,
    /// Source bits compared: all or none.
    source_bits: u32,
    tag_secret: u64,
    source_secret: u64,
    /// The posted receives of this class.
    pub(crate) posted: Queues,
    /// The unexpected messages by this class's keys.
    pub(crate) index: Index,
}

impl Class {
    #[inline]
    fn compares(&self, tag_bits: u64, source_bits: u32) -> bool {
        self.tag_bits == tag_bits && self.source_bits == source_bits
    }

    /// Whether its patterns have a source.
    pub(crate) fn is_directed(&self) -> bool {
        self.source_bits != 0
    }

    fn is_idle(&self) -> bool {
        self.posted.is_empty() && self.index.is_empty()
    }

    /// Whether a message with this source and tag belongs to the queue of this key.
    #[inline]
    pub(crate) fn fits(&self, key: &Key, source: u32, tag: u64) -> bool {
        tag & self.tag_bits == key.tag && source & self.source_bits == key.source
    }

    /// The key of a pattern of this class.
    #[inline]
    fn key_of(&self, pattern: &Pattern) -> Key {
        let source = pattern.source.map_or(0, |source| source.0);
        self.hashed(source, pattern.tag & self.tag_bits)
    }

    /// The key of a message.
    #[inline]
    pub(crate) fn key(&self, source: u32, tag: u64) -> Key {
        self.hashed(source & self.source_bits, tag & self.tag_bits)
    }

    /// The secrets are unknown to peers, so that they cannot choose tags that collide.
    ///
    /// Tags or sources in equal steps give products in equal steps. With their halves added or xored, one
    /// secret in a hundred would put them in few buckets (multiples of a number near a simple fraction of
    /// the number of buckets). So the halves are multiplied.
    #[inline]
    fn hashed(&self, source: u32, tag: u64) -> Key {
        let product =
            u128::from(tag ^ self.tag_secret) * u128::from(u64::from(source) ^ self.source_secret);
        let halves = u128::from(product as u64) * (product >> 64);
        Key { tag, source, hash: (halves >> 64) as u64 }
    }
}

/// All classes; those from `used` on are empty.
#[derive(Debug, Clone)]
pub(crate) struct Classes {
    seed: u64,
    /// Classes from `used` on are kept for their storage.
    all: Vec<Class>,
    used: usize,
    /// The class that was looked up last. In use, if any class is.
    last: usize,
}

impl Classes {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, all: Vec::new(), used: 0, last: 0 }
    }

    #[inline]
    pub(crate) fn in_use(&self) -> &[Class] {
        &self.all[..self.used]
    }

    #[inline]
    pub(crate) fn in_use_mut(&mut self) -> &mut [Class] {
        &mut self.all[..self.used]
    }

    /// The class in use, if there is exactly one.
    #[inline]
    pub(crate) fn only_mut(&mut self) -> Option<&mut Class> {
        if self.used == 1 { self.all.first_mut() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut Class {
        &mut self.all[at]
    }

    /// Index of the pattern's class and the pattern's key, if the pattern is of the class that was looked
    /// up last.
    #[inline]
    pub(crate) fn locate_again(&self, pattern: &Pattern) -> Option<(usize, Key)> {
        let (tag_bits, source_bits) = compared_bits(pattern);
        let class = self.all.get(self.last)?;
        class.compares(tag_bits, source_bits).then(|| (self.last, class.key_of(pattern)))
    }

    /// Index of the pattern's class and the pattern's key; creates the class if needed.
    pub(crate) fn locate(&mut self, pattern: &Pattern) -> (usize, Key) {
        let (tag_bits, source_bits) = compared_bits(pattern);
        let in_use = self.in_use();
        let found = in_use.iter().position(|class| class.compares(tag_bits, source_bits));
        self.last = found.unwrap_or_else(|| self.make(tag_bits, source_bits));
        (self.last, self.all[self.last].key_of(pattern))
    }

    fn make(&mut self, tag_bits: u64, source_bits: u32) -> usize {
        let idle = match self.used < KEPT {
            true => None,
            false => self.in_use().iter().position(Class::is_idle),
        };
        let at = idle.unwrap_or(self.used);
        self.used = self.used.max(at + 1);
        let tag_secret = scramble(self.seed ^ scramble(tag_bits ^ u64::from(source_bits)));
        let source_secret = scramble(tag_secret);
        // An idle class is reused for its storage.
        let (posted, index) = match self.all.get_mut(at) {
            Some(idle) => (std::mem::take(&mut idle.posted), std::mem::take(&mut idle.index)),
            None => Default::default(),
        };
        let class = Class { tag_bits, source_bits, tag_secret, source_secret, posted, index };
        match self.all.get_mut(at) {
            Some(idle) => *idle = class,
            None => self.all.push(class),
        }
        at
    }

    /// Removes a message from the indexes, unless there is only one class, whose index the caller updates.
    #[inline]
    pub(crate) fn remove_from_other_indexes(&mut self, message: u32) {
        if self.used > 1 {
            self.remove_from_indexes(message);
        }
    }

    /// Removes a message from all indexes that hold it.
    #[inline(never)]
    pub(crate) fn remove_from_indexes(&mut self, message: u32) {
        for class in self.in_use_mut() {
            class.index.remove(message);
        }
        self.trim();
    }

    /// Drops idle classes at the end; to be called when one may have become idle.
    #[inline]
    pub(crate) fn trim(&mut self) {
        if self.used > KEPT {
            self.trim_end();
        }
    }

    #[inline(never)]
    fn trim_end(&mut self) {
        while self.used > KEPT && self.all[self.used - 1].is_idle() {
            self.used -= 1;
            self.last = 0;
        }
    }
}

/// The bits of tag and source that a pattern compares.
#[inline]
fn compared_bits(pattern: &Pattern) -> (u64, u32) {
    (!pattern.ignore, if pattern.source.is_some() { u32::MAX } else { 0 })
}

/// Spreads the bits of a number over a whole word (the finisher of splitmix64).
fn scramble(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::Source;

    /// Number of buckets, of 2,048, that 1,024 keys occupy with the second worst of 64 seeds. A random
    /// function occupies 806.
    fn filled(key: impl Fn(&Class, u32) -> Key) -> usize {
        const SEEDS: u64 = 64;
        let filled = |seed| {
            let mut classes = Classes::new(seed);
            let (at, _) = classes.locate(&Pattern::exact(Source(0), 0));
            let class = classes.get_mut(at);
            (0..1024).map(|n| key(class, n).hash % 2048).collect::<HashSet<_>>().len()
        };
        let mut all: Vec<usize> = (0..SEEDS).map(filled).collect();
        all.sort_unstable();
        all[1]
    }

    /// Programs count in any bits of tags and sources.
    #[test]
    fn keys_that_differ_in_few_bits_spread_over_buckets() {
        for shift in (0..=54).step_by(3) {
            let filled = filled(|class, n| class.key(3, u64::from(n) << shift));
            assert!(filled > 700, "tags from bit {shift} on: {filled}");
        }
        for shift in (0..=22).step_by(2) {
            let filled = filled(|class, n| class.key(n << shift, 7));
            assert!(filled > 700, "sources from bit {shift} on: {filled}");
        }
    }

    /// The hashes of one matcher reveal nothing about another's.
    #[test]
    fn different_seeds_give_different_hashes() {
        let hashes = |seed| {
            let mut classes = Classes::new(seed);
            [1, 2, 3].map(|tag| classes.locate(&Pattern::exact(Source(0), tag)).1.hash)
        };
        let all: HashSet<_> = (0..100).map(hashes).collect();
        assert_eq!(all.len(), 100);
    }
}

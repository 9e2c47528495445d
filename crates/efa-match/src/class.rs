//! Classes of patterns: the distinct (ignore mask, directed or any source) pairs in use.
//!
//! All patterns of a class compare the same bits, so within a class matching is equality and a
//! hash finds it. A message is looked for once in each class in use; programs use one to three.
//!
//! ```text
//!   ignore 0,        directed     hash(tag & !0,        source)
//!   ignore 0,        any source   hash(tag & !0,        0)
//!   ignore 0xffff…,  any source   hash(tag & !0xffff…,  0)
//! ```

use crate::{Pattern, queues::Queues, unexpected::Index};

/// Up to this many classes keep their place while nothing of theirs is waiting, so that a
/// program that goes between no and one receive doesn't set up its class each time.
const KEPT: usize = 4;

/// What the patterns and messages of one queue of a class have in common, and its hash.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    /// Bits that the class doesn't compare are zero.
    pub(crate) tag: u64,
    /// Zero where any source fits.
    pub(crate) source: u32,
    /// As wide as a mask of buckets, so that a look-up needn't narrow that.
    pub(crate) hash: u64,
}

/// One class: what it compares, and what of it is waiting.
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

    /// Whether its patterns name a source.
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

    /// The secrets are unknown to who chooses the tags, so that tags can't be chosen to collide.
    ///
    /// Tags, or sources, that go up in equal steps make products that do. Halves added or xored still
    /// nearly do, and such numbers crowd on few buckets with one secret in a hundred, as the
    /// multiples of a number near a simple fraction of the buckets' count. So the halves are multiplied.
    #[inline]
    fn hashed(&self, source: u32, tag: u64) -> Key {
        let product =
            u128::from(tag ^ self.tag_secret) * u128::from(u64::from(source) ^ self.source_secret);
        let halves = u128::from(product as u64) * (product >> 64);
        Key { tag, source, hash: (halves >> 64) as u64 }
    }
}

/// All classes; the first `used` can have something waiting.
#[derive(Debug, Clone)]
pub(crate) struct Classes {
    seed: u64,
    /// Those behind `used` are kept for their storage.
    all: Vec<Class>,
    used: usize,
    /// Where the last look-up ended, the likely place of the next. In use, if any is.
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

    /// The class in use, if there is just one.
    #[inline]
    pub(crate) fn only_mut(&mut self) -> Option<&mut Class> {
        if self.used == 1 { self.all.first_mut() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut Class {
        &mut self.all[at]
    }

    /// Where the class of a pattern is, and the pattern's key in it, if the pattern is of the same
    /// class as the one before.
    #[inline]
    pub(crate) fn locate_again(&self, pattern: &Pattern) -> Option<(usize, Key)> {
        let (tag_bits, source_bits) = compared_bits(pattern);
        let class = self.all.get(self.last)?;
        class.compares(tag_bits, source_bits).then(|| (self.last, class.key_of(pattern)))
    }

    /// Where the class of a pattern is, and the pattern's key in it; a new class is made.
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
        // An idle class is as good as new, and has its storage already.
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

    /// Takes a message out of the indexes, but for that of the only class.
    #[inline]
    pub(crate) fn forget_elsewhere(&mut self, message: u32) {
        if self.used > 1 {
            self.forget_message(message);
        }
    }

    /// Takes a message out of the indexes that hold it.
    #[inline(never)]
    pub(crate) fn forget_message(&mut self, message: u32) {
        for class in self.in_use_mut() {
            class.index.remove(message);
        }
        self.trim();
    }

    /// Gives up idle classes at the end, called when one may have become idle.
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

    /// Buckets that 1,024 keys fill, of 2,048, with the second worst of many seeds. A random function
    /// fills 806.
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

    /// Counters, in whatever bits of tag and source a program has them.
    #[test]
    fn keys_that_differ_in_few_bits_spread_over_the_buckets() {
        for shift in (0..=54).step_by(3) {
            let filled = filled(|class, n| class.key(3, u64::from(n) << shift));
            assert!(filled > 700, "tags from bit {shift} on: {filled}");
        }
        for shift in (0..=22).step_by(2) {
            let filled = filled(|class, n| class.key(n << shift, 7));
            assert!(filled > 700, "sources from bit {shift} on: {filled}");
        }
    }

    /// Who knows the hashes of one matcher knows nothing of another's.
    #[test]
    fn hashes_depend_on_the_seed() {
        let hashes = |seed| {
            let mut classes = Classes::new(seed);
            [1, 2, 3].map(|tag| classes.locate(&Pattern::exact(Source(0), tag)).1.hash)
        };
        let all: HashSet<_> = (0..100).map(hashes).collect();
        assert_eq!(all.len(), 100);
    }
}

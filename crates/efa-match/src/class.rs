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

use crate::{Pattern, Source, unexpected::Index};

/// Up to this many classes keep their place while nothing of theirs is waiting, so that a
/// program that goes between no and one receive doesn't set up its class each time.
const KEPT: usize = 4;

/// What two patterns of a class, or a pattern and a message, must have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    /// Bits that the class doesn't compare are zero.
    pub(crate) tag: u64,
    /// Zero where any source fits.
    pub(crate) source: u32,
    /// Position of the class.
    pub(crate) class: u32,
}

/// A key and its hash: hashed once, then used for posted receives and unexpected messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe {
    pub(crate) key: Key,
    pub(crate) hash: u32,
}

/// One class: what it compares and how much of it is waiting.
#[derive(Debug)]
pub(crate) struct Class {
    /// Tag bits compared, the inverse of the ignore mask.
    tag_bits: u64,
    tag_secret: u64,
    source_secret: u64,
    /// Source bits compared: all or none.
    source_bits: u32,
    /// Posted receives of this class.
    pub(crate) posted: u32,
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
        self.posted == 0 && self.index.is_empty()
    }

    #[inline]
    pub(crate) fn fits(&self, key: &Key, source: u32, tag: u64) -> bool {
        tag & self.tag_bits == key.tag && source & self.source_bits == key.source
    }

    /// The secrets are unknown to who chooses the tags, so that tags can't be chosen to collide.
    #[inline]
    pub(crate) fn probe(&self, class: usize, source: u32, tag: u64) -> Probe {
        let key = Key {
            tag: tag & self.tag_bits,
            source: source & self.source_bits,
            class: class as u32,
        };
        let tag = key.tag ^ self.tag_secret;
        let source = u64::from(key.source).wrapping_mul(SPREAD) ^ self.source_secret;
        let product = u128::from(tag) * u128::from(source);
        Probe { key, hash: (product as u64 ^ (product >> 64) as u64) as u32 }
    }
}

/// 2^64 divided by the golden ratio: an odd number with well spread bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// All classes; the first `used` can have something waiting.
#[derive(Debug)]
pub(crate) struct Classes {
    seed: u64,
    /// Those behind `used` are kept for their storage.
    all: Vec<Class>,
    used: usize,
    /// Where the last look-up ended, the likely place of the next.
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

    #[inline]
    pub(crate) fn get_mut(&mut self, class: u32) -> &mut Class {
        &mut self.all[class as usize]
    }

    /// The class and key of a pattern; the class is made if it's new.
    #[inline]
    pub(crate) fn probe(&mut self, pattern: &Pattern) -> Probe {
        let tag_bits = !pattern.ignore;
        let source_bits = if pattern.source.is_some() { u32::MAX } else { 0 };
        let at = match self.in_use().get(self.last) {
            Some(class) if class.compares(tag_bits, source_bits) => self.last,
            _ => self.find_or_make(tag_bits, source_bits),
        };
        let source = pattern.source.unwrap_or(Source(0));
        self.all[at].probe(at, source.0, pattern.tag)
    }

    #[cold]
    fn find_or_make(&mut self, tag_bits: u64, source_bits: u32) -> usize {
        let in_use = self.in_use();
        let found = in_use.iter().position(|class| class.compares(tag_bits, source_bits));
        self.last = found.unwrap_or_else(|| self.make(tag_bits, source_bits));
        self.last
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
        let index = match self.all.get_mut(at) {
            Some(idle) => std::mem::take(&mut idle.index),
            None => Index::default(),
        };
        let class = Class { tag_bits, tag_secret, source_secret, source_bits, posted: 0, index };
        if at == self.all.len() {
            self.all.push(class);
        } else {
            self.all[at] = class;
        }
        at
    }

    /// Gives up idle classes at the end, called when one may have become idle.
    #[inline]
    pub(crate) fn trim(&mut self) {
        while self.used > KEPT && self.all[self.used - 1].is_idle() {
            self.used -= 1;
        }
    }
}

/// Spreads the bits of a number over a whole word (the finisher of splitmix64).
fn scramble(x: u64) -> u64 {
    let x = x.wrapping_add(SPREAD);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

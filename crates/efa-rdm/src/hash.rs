//! A keyed hash of a few integers, for tables with keys from the network.

use std::hash::{BuildHasher, Hasher};

/// Hashes `a` and `b` with the secret `seed`, by one widening multiplication each.
#[inline]
pub(crate) fn mix(seed: u64, a: u64, b: u64) -> u64 {
    fold(fold(a ^ seed, 0x9e37_79b9_7f4a_7c15) ^ b, seed | 1)
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// Builds hashers with this secret seed, for keys made of integers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keyed(pub(crate) u64);

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;
    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher { seed: self.0, state: self.0 }
    }
}

pub(crate) struct KeyedHasher {
    seed: u64,
    state: u64,
}

impl Hasher for KeyedHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }
    fn write_u32(&mut self, word: u32) {
        self.state = mix(self.seed, self.state, u64::from(word));
    }
    fn finish(&self) -> u64 {
        self.state
    }
}

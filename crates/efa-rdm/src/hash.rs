//! A keyed hash of two words, for tables with keys from the network.

/// Mixes `a` and `b` with a secret by one widening multiplication each.
#[inline]
pub(crate) fn mix(seed: u64, a: u64, b: u64) -> u64 {
    fold(fold(a ^ seed, 0x9e37_79b9_7f4a_7c15) ^ b, seed | 1)
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

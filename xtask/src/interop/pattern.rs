//! The bytes that peers fill memory with, for what must be computed from them.

/// The first `length` bytes of the pattern of a seed: splitmix64, as in the peers.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let word = |index: u64| {
        let start = seed.wrapping_mul(0xd134_2543_de82_ef95);
        let mut x = start.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31).to_le_bytes()
    };
    (1..).flat_map(word).take(length).collect()
}

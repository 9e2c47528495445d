//! Buffers between guards, and their patterns.
//!
//! ```text
//!   | guard | size bytes: a seed's pattern, or untouched | guard |
//! ```

use std::fmt;

use bytes::BytesMut;

const GUARD: usize = 64;
const UNTOUCHED: u8 = 0xa5;

/// The guards around a buffer.
#[derive(Debug)]
pub(crate) struct Guards {
    before: BytesMut,
    behind: BytesMut,
}

/// An untouched buffer of `size` bytes, and its guards: all in one piece of memory.
pub(crate) fn guarded(size: usize) -> (BytesMut, Guards) {
    let mut before = BytesMut::zeroed(size + 2 * GUARD);
    before.fill(UNTOUCHED);
    let mut buffer = before.split_off(GUARD);
    let behind = buffer.split_off(size);
    (buffer, Guards { before, behind })
}

/// Untouched memory.
pub(crate) fn untouched(size: usize) -> Vec<u8> {
    vec![UNTOUCHED; size]
}

/// The pattern of a seed: splitmix64, so that no two parts of a pattern are equal.
pub(crate) fn pattern(seed: u64) -> impl Iterator<Item = u8> {
    (1_u64..).flat_map(move |index| {
        let start = seed.wrapping_mul(0xd134_2543_de82_ef95);
        let mut x = start.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31).to_le_bytes()
    })
}

/// The first wrong byte.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    place: &'static str,
    at: usize,
    expected: u8,
    found: u8,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, at, expected, found } = self;
        write!(f, "where={place} at={at} expected={expected:#04x} found={found:#04x}")
    }
}

fn compare(
    place: &'static str,
    found: &[u8],
    expected: impl Iterator<Item = u8>,
) -> Result<(), Damage> {
    match found.iter().zip(expected).enumerate().find(|(_, (found, expected))| *found != expected) {
        Some((at, (&found, expected))) => Err(Damage { place, at, expected, found }),
        None => Ok(()),
    }
}

/// The bytes must be the pattern of a seed from its beginning.
pub(crate) fn check_pattern(bytes: &[u8], seed: u64) -> Result<(), Damage> {
    compare("message", bytes, pattern(seed))
}

/// The bytes must be untouched.
pub(crate) fn check_untouched(bytes: &[u8]) -> Result<(), Damage> {
    compare("rest", bytes, std::iter::repeat(UNTOUCHED))
}

impl Guards {
    /// The guards must be untouched.
    pub(crate) fn check(&self) -> Result<(), Damage> {
        compare("guard-before", &self.before, std::iter::repeat(UNTOUCHED))?;
        compare("guard-behind", &self.behind, std::iter::repeat(UNTOUCHED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_lies_between_its_guards() {
        let (buffer, guards) = guarded(100);
        let place = |bytes: &BytesMut| bytes.as_ptr() as usize;
        assert_eq!(place(&buffer), place(&guards.before) + GUARD);
        assert_eq!(place(&guards.behind), place(&buffer) + 100);
        assert_eq!(guards.check(), Ok(()));
        assert_eq!(check_untouched(&buffer), Ok(()));
    }

    #[test]
    fn first_wrong_byte_is_reported() {
        let mut bytes: Vec<u8> = pattern(3).take(100).collect();
        assert_eq!(check_pattern(&bytes, 3), Ok(()));
        let expected = bytes[40];
        bytes[40] ^= 1;
        bytes[50] ^= 1;
        let found = bytes[40];
        let damage = Damage { place: "message", at: 40, expected, found };
        assert_eq!(check_pattern(&bytes, 3), Err(damage));
        assert!(check_pattern(&bytes, 4).is_err());
    }

    #[test]
    fn changed_guard_byte_is_reported_as_damage() {
        let (_, mut guards) = guarded(8);
        guards.behind[0] = 0;
        let damage = guards.check().unwrap_err();
        assert_eq!(damage.to_string(), "where=guard-behind at=0 expected=0xa5 found=0x00");
    }
}

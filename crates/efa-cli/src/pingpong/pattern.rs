//! The bytes of a message, so that each can be checked.
//!
//! The message is a sequence of little-endian 64-bit words that starts at a number made of size, iteration and
//! direction and grows by a constant. So a lost, repeated or misplaced byte, or one of another message, differs
//! from the expected byte.

use super::plan::Direction;

/// Increment of the words: 2^64 divided by the golden ratio, odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The bytes of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(u64);

/// The first byte of a message that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// Its offset.
    pub(crate) offset: usize,
    /// The expected value.
    pub(crate) expected: u8,
    /// The value found.
    pub(crate) found: u8,
}

impl Pattern {
    /// The pattern of a message of `size` bytes, the `iteration`th in its direction.
    pub(crate) fn new(size: u64, iteration: u64, direction: Direction) -> Self {
        let direction = match direction {
            Direction::ToServer => 1,
            Direction::ToClient => 2,
        };
        // Mixed after each number (splitmix64), so that no two messages of a run are equal.
        Self(mix(mix(mix(direction) ^ size) ^ iteration))
    }

    /// CQ data of the message.
    pub(crate) fn cq_data(self) -> u64 {
        mix(self.0)
    }

    /// Writes the message.
    pub(crate) fn fill(self, message: &mut [u8]) {
        let mut word = self.0;
        let (words, rest) = message.as_chunks_mut::<8>();
        for bytes in words {
            *bytes = word.to_le_bytes();
            word = word.wrapping_add(STEP);
        }
        rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
    }

    /// Compares all bytes of a message.
    pub(crate) fn check(self, message: &[u8]) -> Result<(), Mismatch> {
        let mut word = self.0;
        let (words, rest) = message.as_chunks::<8>();
        let mut differences = 0;
        for bytes in words {
            differences |= u64::from_le_bytes(*bytes) ^ word;
            word = word.wrapping_add(STEP);
        }
        if differences == 0 && rest == &word.to_le_bytes()[..rest.len()] {
            return Ok(());
        }
        self.first_mismatch(message).map_or(Ok(()), Err)
    }

    fn first_mismatch(self, message: &[u8]) -> Option<Mismatch> {
        let words = std::iter::successors(Some(self.0), |word| Some(word.wrapping_add(STEP)));
        let bytes = message.iter().zip(words.flat_map(u64::to_le_bytes)).enumerate();
        let mut mismatches = bytes.filter(|(_, (found, expected))| *found != expected);
        let (offset, (&found, expected)) = mismatches.next()?;
        Some(Mismatch { offset, expected, found })
    }
}

fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_changed_byte_is_found(
            size in 1_usize..300,
            iteration: u64,
            at: prop::sample::Index,
            change in 1_u8..,
        ) {
            let pattern = Pattern::new(size as u64, iteration, Direction::ToServer);
            let mut message = vec![0; size];
            pattern.fill(&mut message);
            prop_assert_eq!(pattern.check(&message), Ok(()));
            let offset = at.index(size);
            let expected = message[offset];
            message[offset] ^= change;
            let mismatch = Mismatch { offset, expected, found: message[offset] };
            prop_assert_eq!(pattern.check(&message), Err(mismatch));
        }

        #[test]
        fn messages_differ(iteration in 0_u64..1000) {
            let message = |size, iteration, direction| {
                let mut bytes = vec![0; 64];
                Pattern::new(size, iteration, direction).fill(&mut bytes);
                bytes
            };
            let one = message(64, iteration, Direction::ToServer);
            prop_assert_ne!(&one, &message(64, iteration, Direction::ToClient));
            prop_assert_ne!(&one, &message(64, iteration + 1, Direction::ToServer));
            prop_assert_ne!(&one, &message(65, iteration, Direction::ToServer));
        }
    }
}

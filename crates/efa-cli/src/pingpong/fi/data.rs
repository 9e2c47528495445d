//! The sizes and bytes of `fi_pingpong`'s messages.
//!
//! With `-c`, a message is part of the endless repetition of digits, lower-case and upper-case letters. The first
//! message of a run begins at `0`, each further one seven characters later than the one before:
//!
//! ```text
//!   message 0   0123456…        message 1   789abcd…        message 9   123456…  (63 is 1 of 62)
//! ```

use super::super::pattern::Mismatch;

/// The repeated text.
const ALPHABET: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Characters between the beginnings of two messages.
const STEP: u32 = 7;
/// Least size of a receive buffer.
pub(super) const LEAST_ROOM: u64 = 64;
/// The last message of both sides.
pub(super) const CLOSE_TIMEOUT: &[u8; 4] = b"fin\0";
/// The tag of all tagged messages.
pub(super) const TAG: u64 = 1234;
/// Default repetitions.
pub(in super::super) const ITERATIONS: u64 = 10;
/// Default sizes.
pub(in super::super) const DEFAULT_SIZES: [u64; 6] = [64, 256, 1024, 4096, 65536, 1 << 20];
/// Power of two of the largest default size but one.
const LARGEST: u32 = 22;

/// Sizes with `-S all`: powers of two, and one and a half times them.
pub(in super::super) fn all_sizes() -> Vec<u64> {
    let beyond = (1..=LARGEST).flat_map(|power| [1 << power, (1 << power) + (1 << (power - 1))]);
    [0, 1].into_iter().chain(beyond).collect()
}

/// The bytes of message `number` of a run in one direction.
fn text(number: u32) -> impl Iterator<Item = u8> {
    let begin = number.wrapping_mul(STEP) as usize % ALPHABET.len();
    ALPHABET.iter().copied().cycle().skip(begin)
}

/// Writes message `number`.
pub(super) fn fill(number: u32, message: &mut [u8]) {
    message.iter_mut().zip(text(number)).for_each(|(byte, wanted)| *byte = wanted);
}

/// Compares all bytes of message `number`.
pub(super) fn check(number: u32, message: &[u8]) -> Result<(), Mismatch> {
    let mut bytes = message.iter().copied().zip(text(number)).enumerate();
    match bytes.find(|(_, (found, expected))| found != expected) {
        Some((offset, (found, expected))) => Err(Mismatch { offset, expected, found }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_fi_pingpong() {
        let sizes = all_sizes();
        assert_eq!(sizes.len(), 46);
        assert_eq!(sizes[..8], [0, 1, 2, 3, 4, 6, 8, 12]);
        assert_eq!(sizes[44..], [4 << 20, 6 << 20]);
        assert!(sizes.is_sorted());
    }

    #[test]
    fn messages_have_the_bytes_of_fi_pingpong() {
        let message = |number, length| {
            let mut bytes = vec![0; length];
            fill(number, &mut bytes);
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(message(0, 4), "0123");
        assert_eq!(message(1, 4), "789a");
        assert_eq!(message(8, 10), "UVWXYZ0123");
        assert_eq!(message(9, 4), "1234");
        // 2^32 - 1 times 7, modulo 2^32, is 2^32 - 7.
        let begin = (u32::MAX - 6) as usize % 62;
        assert_eq!(message(u32::MAX, 1).as_bytes(), &ALPHABET[begin..=begin]);
    }

    #[test]
    fn changed_byte_is_found() {
        let mut message = vec![0; 1000];
        fill(5, &mut message);
        assert_eq!(check(5, &message), Ok(()));
        assert!(check(6, &message).is_err());
        let expected = message[777];
        message[777] = 0;
        assert_eq!(check(5, &message), Err(Mismatch { offset: 777, expected, found: 0 }));
    }
}

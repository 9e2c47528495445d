//! Lists of message sizes: `0,8,1k,64K,1M-6M`.
//!
//! ```text
//!   list   = part { "," part }
//!   part   = size | size "-" size        a range doubles from its first size; it has both ends
//!   size   = digits [ "k" | "K" | "m" | "M" | "g" | "G" ]         of 1024, 1024², 1024³ bytes
//! ```

use std::str::FromStr;

/// Longest message in bytes.
pub(crate) const MAX_SIZE: u64 = 1 << 30;
/// Most sizes of one run.
pub(crate) const MAX_SIZES: usize = 256;

/// Sizes in bytes, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<u64>);

/// An invalid list of sizes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SizeError {
    /// A part is not a size.
    #[error("`{text}` is not a size: a number, optionally with k, M or G")]
    Unknown {
        /// The text given.
        text: String,
    },
    /// A size above [`MAX_SIZE`].
    #[error("`{text}` is above the largest size, {MAX_SIZE} bytes")]
    TooLarge {
        /// The text given.
        text: String,
    },
    /// A range that ends before it begins.
    #[error("range `{text}` ends before it begins")]
    Backwards {
        /// The text given.
        text: String,
    },
    /// More than [`MAX_SIZES`].
    #[error("more than {MAX_SIZES} sizes")]
    TooMany,
}

impl FromStr for Sizes {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let mut sizes = Vec::new();
        for part in text.split(',').map(str::trim) {
            match part.split_once('-') {
                None => sizes.push(size(part)?),
                Some((from, to)) => {
                    let (from, to) = (size(from)?, size(to)?);
                    if from > to {
                        return Err(SizeError::Backwards { text: part.to_owned() });
                    }
                    sizes.extend(doubling(from, to));
                }
            }
            if sizes.len() > MAX_SIZES {
                return Err(SizeError::TooMany);
            }
        }
        Ok(Self(sizes))
    }
}

/// `from`, twice that, and so on below `to`, and `to`.
fn doubling(from: u64, to: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(from), |size| Some((size * 2).max(1)))
        .take_while(move |size| *size < to)
        .chain([to])
}

/// Parses one size.
pub(crate) fn size(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let unknown = || SizeError::Unknown { text: text.to_owned() };
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match &text[digits.len()..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return Err(unknown()),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(unknown());
    }
    // Only digits, so parsing fails only beyond 64 bits.
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    let in_range = bytes.filter(|bytes| *bytes <= MAX_SIZE);
    in_range.ok_or_else(|| SizeError::TooLarge { text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes(text: &str) -> Vec<u64> {
        text.parse::<Sizes>().unwrap().0
    }

    #[test]
    fn lists_and_ranges_parse_to_their_sizes() {
        assert_eq!(sizes("0,8,1k,64K"), [0, 8, 1024, 65536]);
        assert_eq!(sizes("1M-6M"), [1 << 20, 2 << 20, 4 << 20, 6 << 20]);
        assert_eq!(sizes("0-4"), [0, 1, 2, 4]);
        assert_eq!(sizes("3-3, 7"), [3, 7]);
        assert_eq!(sizes("1G"), [MAX_SIZE]);
        assert_eq!(sizes("5-1k").last(), Some(&1024));
    }

    #[test]
    fn invalid_lists_are_refused() {
        let error = |text: &str| text.parse::<Sizes>().unwrap_err();
        for text in ["", "1,", "k", "1kk", "1 2", "0x10", "1.5k", "+1", "-1", "1-", "1KB", "½"] {
            assert!(matches!(error(text), SizeError::Unknown { .. }), "{text}");
        }
        assert_eq!(error("2G"), SizeError::TooLarge { text: "2G".into() });
        assert_eq!(
            error("1,99999999999999999999"),
            SizeError::TooLarge { text: "99999999999999999999".into() }
        );
        assert_eq!(error("8-4"), SizeError::Backwards { text: "8-4".into() });
        assert_eq!(error(&["1"; 257].join(",")), SizeError::TooMany);
    }

    proptest! {
        #[test]
        fn any_text_gives_sizes_in_bounds_or_an_error(text in "[0-9kKmMgG, x-]{0,40}|.*") {
            if let Ok(Sizes(sizes)) = text.parse::<Sizes>() {
                prop_assert!(!sizes.is_empty() && sizes.len() <= MAX_SIZES);
                prop_assert!(sizes.iter().all(|size| *size <= MAX_SIZE));
            }
        }

        #[test]
        fn plain_numbers_stay_as_they_are(numbers in prop::collection::vec(0..=MAX_SIZE, 1..50)) {
            let text: Vec<_> = numbers.iter().map(u64::to_string).collect();
            prop_assert_eq!(sizes(&text.join(",")), numbers);
        }

        #[test]
        fn ranges_double_from_end_to_end(from in 0..=MAX_SIZE, to in 0..=MAX_SIZE) {
            prop_assume!(from <= to);
            let sizes = sizes(&format!("{from}-{to}"));
            prop_assert_eq!((sizes.first(), sizes.last()), (Some(&from), Some(&to)));
            for pair in sizes.windows(2) {
                prop_assert!(pair[0] < pair[1] && pair[1] <= (pair[0] * 2).max(1));
            }
        }
    }
}

//! Which bytes of a message have arrived, when its segments come in any order.

/// What a segment adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Covered {
    /// Bytes that were missing.
    New,
    /// It repeats bytes that are there: never written again.
    Repeated,
    /// More holes than the limit: a well-meaning sender doesn't leave that many.
    TooScattered,
}

/// Most separate ranges remembered for one message.
const MOST_ISLANDS: usize = 4096;

/// The bytes `[0, prefix)` and some islands beyond.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    prefix: u64,
    bytes: u64,
    /// Sorted, apart from each other and from the prefix.
    islands: Vec<(u64, u64)>,
}

impl Coverage {
    /// Bytes that have arrived.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes from the beginning on without a hole.
    pub(crate) fn prefix(&self) -> u64 {
        self.prefix
    }

    /// Adds `[start, end)`; the caller has checked `start < end`.
    pub(crate) fn insert(&mut self, start: u64, end: u64) -> Covered {
        if start < self.prefix {
            return Covered::Repeated;
        }
        if start == self.prefix && self.islands.is_empty() {
            self.prefix = end;
            self.bytes += end - start;
            return Covered::New;
        }
        let at = self.islands.partition_point(|island| island.1 < start);
        let next = self.islands.get(at).copied();
        let previous_touches = next.is_some_and(|island| island.1 == start);
        let follower = if previous_touches { self.islands.get(at + 1).copied() } else { next };
        if follower.is_some_and(|island| island.0 < end) {
            return Covered::Repeated;
        }
        let follower_touches = follower.is_some_and(|island| island.0 == end);
        if start == self.prefix {
            self.prefix = end;
            if follower_touches {
                self.prefix = self.islands.remove(at).1;
            }
        } else {
            match (previous_touches, follower_touches) {
                (true, true) => self.islands[at].1 = self.islands.remove(at + 1).1,
                (true, false) => self.islands[at].1 = end,
                (false, true) => self.islands[at].0 = start,
                (false, false) if self.islands.len() == MOST_ISLANDS => {
                    return Covered::TooScattered;
                }
                (false, false) => self.islands.insert(at, (start, end)),
            }
        }
        self.bytes += end - start;
        Covered::New
    }

    /// Forgets everything but keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.prefix = 0;
        self.bytes = 0;
        self.islands.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        // Every byte is remembered once, whatever the order, against a plain bit for each byte.
        #[test]
        fn agrees_with_a_bit_for_each_byte(
            segments in proptest::collection::vec((0_u64..200, 1_u64..30), 1..60)
        ) {
            let mut coverage = Coverage::default();
            let mut bits = [false; 256];
            for (start, length) in segments {
                let range = start as usize..(start + length) as usize;
                let expected = if bits[range.clone()].iter().any(|bit| *bit) {
                    Covered::Repeated
                } else {
                    bits[range].fill(true);
                    Covered::New
                };
                prop_assert_eq!(coverage.insert(start, start + length), expected);
                prop_assert_eq!(coverage.bytes(), bits.iter().filter(|bit| **bit).count() as u64);
            }
        }
    }

    #[test]
    fn a_full_message_is_one_prefix() {
        let mut coverage = Coverage::default();
        for start in [30, 10, 20, 0] {
            assert_eq!(coverage.insert(start, start + 10), Covered::New);
        }
        assert_eq!((coverage.prefix, coverage.islands.len()), (40, 0));
        assert_eq!(coverage.insert(0, 1), Covered::Repeated);
        coverage.clear();
        assert_eq!(coverage.bytes(), 0);
    }

    #[test]
    fn scatter_is_bounded() {
        let mut coverage = Coverage::default();
        for i in 0..MOST_ISLANDS as u64 {
            assert_eq!(coverage.insert(2 * i + 1, 2 * i + 2), Covered::New);
        }
        let far = 10 * MOST_ISLANDS as u64;
        assert_eq!(coverage.insert(far, far + 1), Covered::TooScattered);
        assert_eq!(coverage.insert(0, 1), Covered::New, "filling a hole needs no room");
    }
}

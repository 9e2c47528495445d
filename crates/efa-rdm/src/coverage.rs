//! The set of bytes of a message that have arrived. Segments arrive in any order.

/// The result of adding a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Covered {
    /// All of its bytes were missing; they count as arrived now.
    New,
    /// It overlaps bytes that have arrived; nothing was added.
    Repeated,
    /// It would make a range more than [`MOST_ISLANDS`]; nothing was added.
    TooScattered,
}

/// Most separate ranges beyond the prefix that are stored for one message: the limit on the memory
/// that a hostile sender can make this endpoint use.
const MOST_ISLANDS: usize = 4096;

/// The bytes that have arrived: `[0, prefix)`, and separate ranges beyond it.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    prefix: u64,
    bytes: u64,
    /// Ranges `[start, end)`, sorted; none touches another or the prefix.
    islands: Vec<(u64, u64)>,
}

impl Coverage {
    /// The number of bytes that have arrived.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of bytes before the first hole.
    pub(crate) fn prefix(&self) -> u64 {
        self.prefix
    }

    /// Adds the bytes `[start, end)`; the caller has checked `start < end`.
    #[inline]
    pub(crate) fn insert(&mut self, start: u64, end: u64) -> Covered {
        if start == self.prefix && self.islands.is_empty() {
            self.prefix = end;
            self.bytes += end - start;
            return Covered::New;
        }
        self.insert_among(start, end)
    }

    /// Adds bytes that don't just extend all those that have arrived.
    #[inline(never)]
    fn insert_among(&mut self, start: u64, end: u64) -> Covered {
        if start < self.prefix {
            return Covered::Repeated;
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

    /// Whether it has allocated memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.islands.capacity() > 0
    }

    /// Removes all bytes but keeps the allocated memory.
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
        // The model has one bit for each byte.
        #[test]
        fn coverage_of_segments_in_any_order_equals_a_bitmap(
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
    fn coverage_of_all_bytes_is_one_prefix() {
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
    fn coverage_refuses_more_ranges_than_its_limit() {
        let mut coverage = Coverage::default();
        for i in 0..MOST_ISLANDS as u64 {
            assert_eq!(coverage.insert(2 * i + 1, 2 * i + 2), Covered::New);
        }
        let far = 10 * MOST_ISLANDS as u64;
        assert_eq!(coverage.insert(far, far + 1), Covered::TooScattered);
        assert_eq!(
            coverage.insert(0, 1),
            Covered::New,
            "a segment that fills a hole adds no range"
        );
    }
}

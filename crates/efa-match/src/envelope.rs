//! MPI's communicator, rank and tag packed into one 64-bit tag, which a device matches by tag and mask
//! ("RDMA tag matching offload", introduction).
//!
//! ```text
//!   63        48 47                    24 23                     0
//!   ┌───────────┬────────────────────────┬────────────────────────┐
//!   │ communi-  │ rank of the source     │ user tag               │
//!   │ cator     │ or any                 │ or any                 │
//!   └───────────┴────────────────────────┴────────────────────────┘
//! ```
//!
//! The destination's rank needs no bits: a message is matched where it arrives.

use thiserror::Error;

use crate::Pattern;

/// Communicator, source and tag of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Envelope {
    communicator: u16,
    rank: u32,
    tag: u32,
}

/// A field of an envelope does not fit in its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{field} is {value}, at most {limit} fits in an envelope")]
pub struct EnvelopeError {
    /// `rank` or `tag`.
    pub field: &'static str,
    /// Its value.
    pub value: u32,
    /// The largest that fits.
    pub limit: u32,
}

impl Envelope {
    /// The largest rank.
    pub const MAX_RANK: u32 = (1 << 24) - 1;
    /// The largest user tag.
    pub const MAX_TAG: u32 = (1 << 24) - 1;

    /// # Errors
    ///
    /// If rank or tag is above its maximum.
    pub fn new(communicator: u16, rank: u32, tag: u32) -> Result<Self, EnvelopeError> {
        check("rank", rank, Self::MAX_RANK)?;
        check("tag", tag, Self::MAX_TAG)?;
        Ok(Self { communicator, rank, tag })
    }

    /// The tag of a message.
    #[must_use]
    pub fn to_tag(self) -> u64 {
        u64::from(self.communicator) << 48 | u64::from(self.rank) << 24 | u64::from(self.tag)
    }

    /// The envelope of a message with this tag.
    #[must_use]
    pub fn from_tag(tag: u64) -> Self {
        Self {
            communicator: (tag >> 48) as u16,
            rank: (tag >> 24) as u32 & Self::MAX_RANK,
            tag: tag as u32 & Self::MAX_TAG,
        }
    }

    /// The communicator.
    #[must_use]
    pub fn communicator(self) -> u16 {
        self.communicator
    }

    /// The rank of the source.
    #[must_use]
    pub fn rank(self) -> u32 {
        self.rank
    }

    /// The user tag.
    #[must_use]
    pub fn tag(self) -> u32 {
        self.tag
    }

    /// What a receive accepts; `None` is any rank (`MPI_ANY_SOURCE`) or any tag (`MPI_ANY_TAG`).
    ///
    /// # Errors
    ///
    /// If rank or tag is above its maximum.
    pub fn pattern(
        communicator: u16,
        rank: Option<u32>,
        tag: Option<u32>,
    ) -> Result<Pattern, EnvelopeError> {
        let envelope = Self::new(communicator, rank.unwrap_or(0), tag.unwrap_or(0))?;
        let any_rank = if rank.is_none() { u64::from(Self::MAX_RANK) << 24 } else { 0 };
        let any_tag = if tag.is_none() { u64::from(Self::MAX_TAG) } else { 0 };
        Ok(Pattern { source: None, tag: envelope.to_tag(), ignore: any_rank | any_tag })
    }
}

fn check(field: &'static str, value: u32, limit: u32) -> Result<(), EnvelopeError> {
    if value > limit { Err(EnvelopeError { field, value, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    // conformance: B1
    #[test]
    fn envelope_pattern_matches_communicator_rank_and_tag_with_wildcards() {
        let message = Envelope::new(7, 300, 0xabcdef).unwrap();
        assert_eq!(message.to_tag(), 0x0007_0001_2cab_cdef);
        assert_eq!(Envelope::from_tag(message.to_tag()), message);
        assert_eq!((message.communicator(), message.rank(), message.tag()), (7, 300, 0xabcdef));
        let accepts = |communicator, rank, tag| {
            let pattern = Envelope::pattern(communicator, rank, tag).unwrap();
            pattern.accepts(Source(0), message.to_tag())
        };
        for rank in [None, Some(300)] {
            for tag in [None, Some(0xabcdef)] {
                assert!(accepts(7, rank, tag), "{rank:?} {tag:?}");
                assert!(!accepts(8, rank, tag), "another communicator, {rank:?} {tag:?}");
            }
        }
        assert!(!accepts(7, Some(301), None));
        assert!(!accepts(7, None, Some(0xabcdee)));
    }

    #[test]
    fn rank_or_tag_above_its_maximum_is_an_error_with_the_value() {
        let most = Envelope::new(u16::MAX, Envelope::MAX_RANK, Envelope::MAX_TAG).unwrap();
        assert_eq!(most.to_tag(), u64::MAX);
        let error = Envelope::pattern(0, Some(1 << 24), None).unwrap_err();
        assert_eq!(error.to_string(), "rank is 16777216, at most 16777215 fits in an envelope");
        let error = Envelope::new(0, 0, 1 << 24).unwrap_err();
        assert_eq!(error, EnvelopeError { field: "tag", value: 1 << 24, limit: (1 << 24) - 1 });
    }
}

//! Identifiers of an endpoint's peers and posted receives.

use efa_match::PostId;

/// A peer of one endpoint (`fi_addr_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub(crate) u32);

impl PeerId {
    /// The peer's number: peers are numbered from 0 in the order in which they became known.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A posted receive, for [`Endpoint::cancel`](crate::Endpoint::cancel). Once the receive is matched,
/// the identifier is stale and cancelling it has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveId {
    pub(crate) post: PostId,
    pub(crate) tagged: bool,
}

impl ReceiveId {
    /// The identifier of a receive that was matched when it was posted.
    pub const MATCHED: Self = Self { post: PostId::from_bits(u64::MAX), tagged: false };

    /// Whether it is a tagged receive. `false` for [`MATCHED`](Self::MATCHED).
    #[must_use]
    pub const fn is_tagged(self) -> bool {
        self.tagged
    }
}

/// A message that [`Endpoint::claim`](crate::Endpoint::claim) took. Stale when it was received or discarded, or its sender ended
/// before all of it had arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClaimId {
    pub(crate) key: u32,
    pub(crate) number: u64,
}

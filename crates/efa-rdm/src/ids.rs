//! What an endpoint's peers and receives are named by.

use efa_match::PostId;

/// Names a peer of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub(crate) u32);

impl PeerId {
    /// Its number: peers are numbered from 0 in the order in which they became known.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Names a posted receive until it is matched, for [`Endpoint::cancel`](crate::Endpoint::cancel). From
/// then on the name is stale, and using it is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveId {
    pub(crate) post: PostId,
    pub(crate) tagged: bool,
}

impl ReceiveId {
    /// Of a receive that was matched as it was posted.
    pub(crate) const MATCHED: Self = Self { post: PostId::from_bits(u64::MAX), tagged: false };
}

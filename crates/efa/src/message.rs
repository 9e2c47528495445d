//! What a send is addressed to, and what a receive matches.

use efa_rdm::Level;

use crate::address_vector::FiAddr;
use crate::capabilities::OperationFlags;

/// Destination of a message, and what is sent along with its bytes.
///
/// ```
/// use efa::{FiAddr, Message};
/// let untagged = Message::to(FiAddr(0));
/// let tagged_with_data = Message::to(FiAddr(0)).tagged(7).with_data(0xdada);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Message {
    pub(crate) to: FiAddr,
    pub(crate) tag: Option<u64>,
    pub(crate) cq_data: Option<u64>,
    /// `None`: that of the endpoint's default flags.
    pub(crate) level: Option<Level>,
    /// Whether it is signaled; `None`: as the endpoint's default flags say.
    pub(crate) completion: Option<bool>,
}

impl Message {
    /// An untagged message to a peer.
    pub fn to(peer: FiAddr) -> Self {
        Self { to: peer, tag: None, cq_data: None, level: None, completion: None }
    }

    /// Makes it a tagged message, which only tagged receives match.
    pub fn tagged(self, tag: u64) -> Self {
        Self { tag: Some(tag), ..self }
    }

    /// Sends data to the receiver's completion (`FI_REMOTE_CQ_DATA`).
    pub fn with_data(self, data: u64) -> Self {
        Self { cq_data: Some(data), ..self }
    }

    /// When the send completes, in place of the level of the endpoint's [default
    /// flags](crate::ContextOptions#structfield.flags). No effect on
    /// [injected](crate::Endpoint::inject) messages, which have no completion.
    pub fn level(self, level: Level) -> Self {
        Self { level: Some(level), ..self }
    }

    /// The send completes on its queue also if that was bound [selectively](crate::EndpointBuilder::selective)
    /// (`FI_COMPLETION`).
    pub fn signaled(self) -> Self {
        Self { completion: Some(true), ..self }
    }

    /// [`Level::Delivery`]: the send completes only when the message is in the buffer of the receive that it matched
    /// (`FI_DELIVERY_COMPLETE`). To a libfabric release before 1.12, which lacks this, it fails with
    /// [`OperationError::PeerLacks`](crate::OperationError::PeerLacks).
    pub fn delivery_complete(self) -> Self {
        self.level(Level::Delivery)
    }

    /// Sets the flags of the send (those of `fi_sendmsg`), in place of the endpoint's [default
    /// flags](crate::ContextOptions#structfield.flags), of which none is used.
    pub fn flags(self, flags: OperationFlags) -> Self {
        let completion = flags.contains(OperationFlags::COMPLETION);
        Self { level: Some(flags.level()), completion: Some(completion), ..self }
    }
}

/// The messages that a receive matches.
///
/// ```
/// use efa::{FiAddr, Receive};
/// let untagged = Receive::untagged();
/// let one_tag = Receive::tagged(7);
/// let one_tag_of_one_peer = Receive::tagged(7).from(FiAddr(0));
/// let sixteen_tags = Receive::masked(0x70, 0x0f);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Receive {
    pub(crate) tag: Option<(u64, u64)>,
    pub(crate) source: Option<FiAddr>,
    pub(crate) completion: Option<bool>,
}

impl Receive {
    /// Untagged messages.
    pub fn untagged() -> Self {
        Self { tag: None, source: None, completion: None }
    }

    /// Messages with exactly this tag.
    pub fn tagged(tag: u64) -> Self {
        Self::masked(tag, 0)
    }

    /// Messages whose tag equals `tag` in all bits that are not set in `ignore`.
    pub fn masked(tag: u64, ignore: u64) -> Self {
        Self { tag: Some((tag, ignore)), source: None, completion: None }
    }

    /// Only messages of one peer (`FI_DIRECTED_RECV`).
    ///
    /// Such a receive does not fail when its peer is lost, restarts, is excluded or is removed from the
    /// address vector. It stays posted and matches nothing any more, not even messages of the same
    /// address inserted again: [cancel](crate::Endpoint::cancel) it. The events
    /// [`PeerLost`](crate::Event::PeerLost), [`PeerRestarted`](crate::Event::PeerRestarted) and
    /// [`PeerExcluded`](crate::Event::PeerExcluded) report the end of a peer.
    pub fn from(self, peer: FiAddr) -> Self {
        Self { source: Some(peer), ..self }
    }

    /// The receive completes on its queue also if that was bound
    /// [selectively](crate::EndpointBuilder::selective) (`FI_COMPLETION`).
    pub fn signaled(self) -> Self {
        Self { completion: Some(true), ..self }
    }

    /// Sets the flags of the receive (those of `fi_recvmsg`), in place of the endpoint's [default
    /// flags](crate::ContextOptions#structfield.flags). Only [`OperationFlags::COMPLETION`] means something.
    pub fn flags(self, flags: OperationFlags) -> Self {
        Self { completion: Some(flags.contains(OperationFlags::COMPLETION)), ..self }
    }
}

/// A posted receive, for [`Endpoint::cancel`](crate::Endpoint::cancel) of the endpoint that it was posted
/// to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveId(pub(crate) efa_rdm::ReceiveId);

impl ReceiveId {
    /// Whether the receive takes tagged messages. `false` for one that was matched when it was posted.
    #[must_use]
    pub const fn is_tagged(self) -> bool {
        self.0.is_tagged()
    }
}

//! What an application may want to know that is no completion.

use efa_device::{DeviceError, Status};
use efa_rdm::{AccessError, DropReason, Excess, OperationError, PeerId};

use crate::address::Address;

/// Something that happened outside the application's operations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An unknown endpoint wrote to us.
    PeerDiscovered(Address),
    /// Another endpoint took the queue pair of a peer. Operations with the old one failed.
    PeerRestarted {
        /// The peer that is no more.
        old: Address,
        /// Its successor.
        new: Address,
    },
    /// The device can't reach a peer any more. Operations with it failed.
    PeerLost {
        /// The peer.
        peer: Address,
        /// What the device said.
        status: Status,
    },
    /// A packet was dropped.
    PacketDropped {
        /// Who sent it, if that is known.
        peer: Option<Address>,
        /// Why.
        reason: DropReason,
    },
    /// A peer made this endpoint keep more than it may, and is gone: operations with it failed, and
    /// all that it sent is forgotten.
    PeerExcluded {
        /// The peer.
        peer: Address,
        /// What there was too much of.
        excess: Excess,
    },
    /// So many bytes of messages that no receive was posted for are kept that all senders wait until
    /// some are received.
    HoldingBack {
        /// How many bytes.
        bytes: usize,
        /// The bound.
        limit: usize,
        /// The peer that most of them are of.
        most: Option<Address>,
    },
    /// A peer asked for memory that it may not have. No byte of it was touched, and the peer is not
    /// told: the protocol has no answer for this.
    AccessRefused {
        /// The peer.
        peer: Address,
        /// What it asked for.
        error: AccessError,
    },
    /// A peer's write to memory here was begun and can't be finished: some of it may be there.
    WriteFailed {
        /// The peer.
        peer: Address,
        /// Why.
        error: OperationError,
    },
    /// A peer gave a message up that had met no receive here, or had not arrived (feature 9, which is
    /// not used by default).
    MessageAbandoned {
        /// The peer.
        peer: Address,
        /// Its place among the peer's messages.
        msg_id: u32,
        /// The peer's reason: a number of libfabric's provider.
        code: u32,
    },
    /// The device refused something that the endpoint needs; it will be tried again.
    DeviceRefused(DeviceError),
}

impl Event {
    /// The engine's event with addresses for its numbers; `None` for one that is not known here.
    pub(crate) fn translate(
        event: efa_rdm::Event,
        address: impl Fn(PeerId) -> Option<Address>,
    ) -> Option<Self> {
        use efa_rdm::Event as Inner;
        Some(match event {
            Inner::PeerDiscovered(peer) => Self::PeerDiscovered(address(peer)?),
            Inner::PeerRestarted { old, new } => {
                Self::PeerRestarted { old: address(old)?, new: address(new)? }
            }
            Inner::PeerLost { peer, status } => Self::PeerLost { peer: address(peer)?, status },
            Inner::PacketDropped { peer, reason } => {
                Self::PacketDropped { peer: peer.and_then(address), reason }
            }
            Inner::PeerExcluded { peer, excess } => {
                Self::PeerExcluded { peer: address(peer)?, excess }
            }
            Inner::HoldingBack { bytes, limit, most } => {
                Self::HoldingBack { bytes, limit, most: most.and_then(address) }
            }
            Inner::AccessRefused { peer, error } => {
                Self::AccessRefused { peer: address(peer)?, error }
            }
            Inner::WriteFailed { peer, error } => Self::WriteFailed { peer: address(peer)?, error },
            Inner::MessageAbandoned { peer, msg_id, code } => {
                Self::MessageAbandoned { peer: address(peer)?, msg_id, code }
            }
            Inner::DeviceRefused(error) => Self::DeviceRefused(error),
            _ => return None,
        })
    }
}

//! Asynchronous events of an endpoint: what happens apart from the completions of its operations.

use std::fmt;

use efa_device::{DeviceError, Status};
use efa_rdm::{AccessError, DropReason, Excess, OperationError, Origin, PeerId};

use crate::address::Address;

/// An asynchronous event ([`Endpoint::event`](crate::Endpoint::event)). `Display` prints a sentence.
///
/// When a peer ends (`PeerLost`, `PeerRestarted`, `PeerExcluded`), operations under way with it fail:
/// sends, writes, reads, atomics, and receives that have matched a message of it. A receive that can
/// match only its messages ([`Receive::from`](crate::Receive::from)) and has not matched one does not
/// fail: it stays posted until it is [cancelled](crate::Endpoint::cancel).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An endpoint that is not in the address vector sent a packet.
    PeerDiscovered(Address),
    /// Another endpoint uses the queue pair of a peer (a new incarnation). Operations with the old one
    /// failed; directed receives stay posted.
    PeerRestarted {
        /// The peer that ended.
        old: Address,
        /// Its successor.
        new: Address,
    },
    /// The device failed to deliver a packet to a peer. Operations with it failed; directed receives
    /// stay posted.
    PeerLost {
        /// The peer.
        peer: Address,
        /// The device's status.
        status: Status,
    },
    /// A packet was dropped.
    PacketDropped {
        /// Who sent it.
        origin: Origin<Address>,
        /// Why.
        reason: DropReason,
    },
    /// A peer exceeded a [bound](crate::Bounds) of what this endpoint keeps for it, and was excluded.
    /// Operations with it failed, and its unexpected messages are gone; directed receives stay posted.
    PeerExcluded {
        /// The peer.
        peer: Address,
        /// What it exceeded.
        excess: Excess,
    },
    /// Unexpected messages reached their limit: no receive buffers are posted, and senders get RNR,
    /// until the application receives some of them, or [claims](crate::Endpoint::claim) and discards them. A program that
    /// waits for other messages alone waits for ever: [`Bounds::unexpected`](crate::Bounds::unexpected).
    BackPressure {
        /// Bytes of unexpected messages.
        bytes: usize,
        /// The limit.
        limit: usize,
        /// The latest incarnation of the queue pair that sent most of them, to a factor of four.
        most: Option<Address>,
    },
    /// A message that a former incarnation left, and that was never received, was dropped: its queue pair
    /// sent others since, and together they exceeded
    /// [`Bounds::unexpected_per_peer`](crate::Bounds::unexpected_per_peer).
    LeftMessageDropped {
        /// The former incarnation.
        peer: Address,
        /// The message ID.
        msg_id: u32,
        /// The limit in bytes.
        limit: usize,
    },
    /// A peer requested access to memory that it has no right to. No byte was accessed. Its
    /// operation fails if it uses this implementation too; for others the protocol has no answer.
    AccessRefused {
        /// The peer.
        peer: Address,
        /// The access.
        error: AccessError,
    },
    /// A peer's write to memory of this endpoint failed after it had begun: some bytes may be written.
    WriteFailed {
        /// The peer.
        peer: Address,
        /// Why.
        error: OperationError,
    },
    /// A send or write failed after it had completed with [`Level::Inject`](crate::Level::Inject).
    InjectedFailed {
        /// The peer.
        peer: Address,
        /// The context of the operation.
        context: u64,
        /// Why.
        error: OperationError,
    },
    /// A peer aborted a message that had matched no receive here (PEER_ERROR).
    MessageAbandoned {
        /// The peer.
        peer: Address,
        /// The message ID.
        msg_id: u32,
        /// The peer's error, a number of libfabric's provider.
        code: u32,
    },
    /// The device failed to provide something that the endpoint needs. The endpoint retries.
    DeviceRefused(DeviceError),
    /// The endpoint's queue pair failed, and doesn't recover: close the endpoint and open another. All operations under way
    /// end with [`OperationError::Device`] and this status, and others don't start, with
    /// [`DeviceError::QueuePairFailed`]. Messages that have arrived can still be received.
    QueuePairFailed(Status),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerDiscovered(peer) => write!(f, "peer {peer} discovered"),
            Self::PeerRestarted { old, new } => write!(f, "peer {old} restarted as {new}"),
            Self::PeerLost { peer, status } => write!(f, "peer {peer} lost: {status}"),
            Self::PacketDropped { origin, reason } => {
                write!(f, "packet of {origin} dropped: {reason}")
            }
            Self::PeerExcluded { peer, excess } => write!(f, "peer {peer} excluded: {excess}"),
            Self::BackPressure { bytes, limit, most } => {
                write!(f, "{bytes} bytes of unexpected messages, limit {limit}: senders wait")?;
                most.map_or(Ok(()), |most| write!(f, "; most are of {most}"))
            }
            Self::LeftMessageDropped { peer, msg_id, limit } => write!(
                f,
                "message {msg_id} of {peer}, a former incarnation, dropped: unexpected messages of its \
                 queue pair exceed {limit} bytes"
            ),
            Self::AccessRefused { peer, error } => write!(f, "peer {peer}: {error}"),
            Self::WriteFailed { peer, error } => write!(f, "write of peer {peer} failed: {error}"),
            Self::InjectedFailed { peer, context, error } => {
                write!(
                    f,
                    "operation with context {context} to {peer} failed after its completion: {error}"
                )
            }
            Self::MessageAbandoned { peer, msg_id, code } => {
                write!(f, "peer {peer} aborted message {msg_id}: error {code}")
            }
            Self::DeviceRefused(error) => write!(f, "the device failed, to be retried: {error}"),
            Self::QueuePairFailed(status) => write!(f, "the queue pair failed, for good: {status}"),
        }
    }
}

impl Event {
    /// The engine's event, with addresses in place of its peer ids. `None` for a kind that no device of
    /// this crate causes.
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
            Inner::PacketDropped { origin, reason } => {
                let origin = match origin {
                    Origin::Peer(peer) => Origin::Peer(address(peer)?),
                    Origin::Unknown { gid, qpn } => Origin::Unknown { gid, qpn },
                };
                Self::PacketDropped { origin, reason }
            }
            Inner::PeerExcluded { peer, excess } => {
                Self::PeerExcluded { peer: address(peer)?, excess }
            }
            Inner::BackPressure { bytes, limit, most } => {
                Self::BackPressure { bytes, limit, most: most.and_then(address) }
            }
            Inner::LeftMessageDropped { peer, msg_id, limit } => {
                Self::LeftMessageDropped { peer: address(peer)?, msg_id, limit }
            }
            Inner::AccessRefused { peer, error } => {
                Self::AccessRefused { peer: address(peer)?, error }
            }
            Inner::WriteFailed { peer, error } => Self::WriteFailed { peer: address(peer)?, error },
            Inner::InjectedFailed { peer, context, error } => {
                Self::InjectedFailed { peer: address(peer)?, context, error }
            }
            Inner::MessageAbandoned { peer, msg_id, code } => {
                Self::MessageAbandoned { peer: address(peer)?, msg_id, code }
            }
            Inner::DeviceRefused(error) => Self::DeviceRefused(error),
            Inner::QueuePairFailed(status) => Self::QueuePairFailed(status),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_print_addresses_and_reasons_as_text() {
        let peer: Address = "[fe80::1]:12/0x0000002a".parse().unwrap();
        let lost = Event::PeerLost { peer, status: Status::UnresponsiveRemote };
        let text = format!("peer [fe80::1]:12/0x0000002a lost: {}", Status::UnresponsiveRemote);
        assert_eq!(lost.to_string(), text);
        let failed = Event::QueuePairFailed(Status::Flushed);
        assert_eq!(failed.to_string(), "the queue pair failed, for good: flushed");
        let back_pressure = Event::BackPressure { bytes: 10, limit: 8, most: Some(peer) };
        assert_eq!(
            back_pressure.to_string(),
            "10 bytes of unexpected messages, limit 8: senders wait; most are of \
             [fe80::1]:12/0x0000002a"
        );
        let reason = DropReason::Stale;
        let dropped = Event::PacketDropped { origin: Origin::Peer(peer), reason };
        let text = "packet of [fe80::1]:12/0x0000002a dropped: sent by an earlier incarnation";
        assert_eq!(dropped.to_string(), text);
        let origin = Origin::Unknown { gid: Some(peer.gid()), qpn: peer.qpn() };
        let dropped = Event::PacketDropped { origin, reason: DropReason::Stranger };
        let text = format!("packet of queue pair 12 of fe80::1 dropped: {}", DropReason::Stranger);
        assert_eq!(dropped.to_string(), text);
        assert!(format!("{lost:?}").contains("peer: [fe80::1]:12/0x0000002a"), "{lost:?}");
    }
}

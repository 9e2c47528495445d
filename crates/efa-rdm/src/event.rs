//! Asynchronous endpoint events: what happens apart from completions.

use std::collections::VecDeque;
use std::fmt;

use efa_device::{DeviceError, Gid, Qpn, Status};
use efa_proto::PacketType;

use crate::bounds::Excess;
use crate::completion::OperationError;
use crate::ids::PeerId;
use crate::memory::AccessError;

/// Who sent a packet that was dropped. `P` names a peer: here by its id, in the crate `efa` by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin<P = PeerId> {
    /// A peer.
    Peer(P),
    /// A queue pair that is no known peer, as the device reports it.
    Unknown {
        /// Its interface, if the device knows it.
        gid: Option<Gid>,
        /// Its number.
        qpn: Qpn,
    },
}

impl<P> Origin<P> {
    /// The peer, if it is one.
    pub fn peer(self) -> Option<P> {
        match self {
            Self::Peer(peer) => Some(peer),
            Self::Unknown { .. } => None,
        }
    }
}

impl<P: fmt::Display> fmt::Display for Origin<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer(peer) => peer.fmt(f),
            Self::Unknown { gid, qpn } => {
                write!(f, "queue pair {}", qpn.0)?;
                gid.map_or(Ok(()), |gid| write!(f, " of {gid}"))
            }
        }
    }
}

/// An asynchronous event of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A packet of an unknown sender arrived: it is a peer now.
    PeerDiscovered(PeerId),
    /// The queue pair of a peer has another connid: the peer restarted. The application inserted the new incarnation, or the
    /// HANDSHAKE was delivered to it. Operations with the old one failed. Receives
    /// from the old one alone stay posted until they are cancelled.
    PeerRestarted {
        /// The incarnation that is gone.
        old: PeerId,
        /// The new one.
        new: PeerId,
    },
    /// The device failed to deliver a packet to a peer. Operations with it failed. Receives from it alone
    /// stay posted until they are cancelled.
    PeerLost {
        /// The peer.
        peer: PeerId,
        /// The device's status.
        status: Status,
    },
    /// A peer exceeded one of the [`Bounds`](crate::Bounds) and is gone. Operations with it failed, and
    /// its messages that weren't received are dropped. Receives from it alone stay posted until they are
    /// cancelled.
    PeerExcluded {
        /// The peer.
        peer: PeerId,
        /// The bound that it exceeded.
        excess: Excess,
    },
    /// Back-pressure: unexpected messages exceed their bound, so no receive buffers are posted, and all
    /// senders wait until the application has received or discarded some of them. What it awaits until then may be behind
    /// the bound: [`Bounds::unexpected`](crate::Bounds::unexpected).
    BackPressure {
        /// Bytes of unexpected messages.
        bytes: usize,
        /// [`Bounds::unexpected`](crate::Bounds::unexpected).
        limit: usize,
        /// The latest incarnation of the queue pair that sent most of them, to a factor of four.
        most: Option<PeerId>,
    },
    /// A message that a former incarnation left, and that was never received, was dropped: the living
    /// incarnation of its queue pair sent others, and together they exceeded the bound.
    LeftMessageDropped {
        /// The former incarnation.
        peer: PeerId,
        /// The message's id.
        msg_id: u32,
        /// [`Bounds::unexpected_per_peer`](crate::Bounds::unexpected_per_peer).
        limit: usize,
    },
    /// A packet was dropped.
    PacketDropped {
        /// Who sent it.
        origin: Origin,
        /// Why.
        reason: DropReason,
    },
    /// A peer asked for memory of this endpoint that it has no access to. Nothing was read or written. The
    /// peer learns of it by PEER_ERROR, if both sides have that: the protocol has no other packet for it.
    AccessRefused {
        /// The peer.
        peer: PeerId,
        /// What it asked for.
        error: AccessError,
    },
    /// A peer's write to memory of this endpoint failed after it began: part of it may be written.
    WriteFailed {
        /// The peer.
        peer: PeerId,
        /// Why.
        error: OperationError,
    },
    /// An operation failed after it had completed with [`Level::Inject`](crate::Level::Inject).
    InjectedFailed {
        /// The peer.
        peer: PeerId,
        /// The context of the operation.
        context: u64,
        /// Why.
        error: OperationError,
    },
    /// A peer gave up a message that had matched no receive yet, or had not arrived.
    MessageAbandoned {
        /// The peer.
        peer: PeerId,
        /// The message's id.
        msg_id: u32,
        /// The peer's reason: an error number of libfabric's provider.
        code: u32,
    },
    /// The device refused something that the endpoint needs and will ask for again.
    DeviceRefused(DeviceError),
    /// The endpoint's queue pair failed, and doesn't recover. All operations under way end with
    /// [`OperationError::Device`] and this status, nothing can be started, and peers are gone. Messages that have arrived
    /// can still be received.
    QueuePairFailed(Status),
    /// The device violated the protocol of its tag list. From here on messages may match the wrong
    /// receives.
    TagListBroken(efa_match::Violation),
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum DropReason {
    /// It is not a packet of protocol version 4 (section 1.3).
    #[error("malformed: {0}")]
    Malformed(efa_proto::ParseError),
    /// Its sender is unknown, and it carries no address (section 2.2).
    #[error("unknown sender")]
    UnknownSender,
    /// Its raw address isn't that of the queue pair that sent it.
    #[error("raw address of another queue pair")]
    ForgedAddress,
    /// The memory that it names was revoked meanwhile.
    #[error("the memory was revoked")]
    Revoked,
    /// Its sender is none of the peers that the application inserted, and the endpoint takes packets of no
    /// others ([`Bounds::discovered`](crate::Bounds::discovered) is 0).
    #[error("sent by a stranger")]
    Stranger,
    /// [`Bounds::discovered`](crate::Bounds::discovered) is reached, or the device has no more address
    /// handles.
    #[error("no space for another peer")]
    PeerTableFull,
    /// Its queue pair has had [`Bounds::incarnations`](crate::Bounds::incarnations) that became known by
    /// a packet, and this would be another.
    #[error("its queue pair has had too many incarnations")]
    TooManyIncarnations,
    /// It was sent by an earlier incarnation (section 4.4).
    #[error("sent by an earlier incarnation")]
    Stale,
    /// This endpoint doesn't support packets of its type.
    #[error("{0} is not supported")]
    Unsupported(PacketType),
    /// The endpoint receives in place, which needs untagged messages of one packet without delivery
    /// complete (section 4.3).
    #[error("{0} can't be received in place")]
    NotInPlace(PacketType),
    /// Its message id was used before (section 3.2).
    #[error("msg_id was used before")]
    OldMessageId,
    /// Its message id is beyond the receive window.
    #[error("msg_id is beyond the receive window")]
    MessageIdTooFar,
    /// It is ahead of the expected message, but the device, which delivers in order for its tag list, has
    /// matched it or counted it.
    #[error("out of order, though the device delivers in order")]
    OutOfOrder,
    /// It names an operation that doesn't exist, has ended, or isn't one with its sender.
    #[error("unknown operation")]
    UnknownOperation,
    /// Its segment lies outside the message or the granted window, or contradicts earlier packets.
    #[error("segment is out of range")]
    SegmentOutOfRange,
    /// Its bytes have arrived before.
    #[error("segment has arrived before")]
    RepeatedSegment,
    /// The segments of its message leave too many holes.
    #[error("segments leave too many holes")]
    TooScattered,
    /// It is a CTS that grants nothing, or for another kind of operation (section 3.2).
    #[error("CTS grants nothing, or is for another kind of operation")]
    BadCts,
    /// No atomic has this type, operation and length (section 3.3).
    #[error("no atomic has this type, operation and length")]
    BadAtomic,
    /// The tables of operations, or the bound of its sender's requests, are full.
    #[error("too many operations")]
    TooManyOperations,
}

/// Events that the application hasn't taken. When 1,024 are kept, further ones are lost and counted.
#[derive(Debug, Default)]
pub(crate) struct Events {
    queue: VecDeque<Event>,
    /// All that there were, lost ones too.
    count: u64,
    lost: u64,
}

const MOST_EVENTS: usize = 1024;

impl Events {
    pub(crate) fn push(&mut self, event: Event) {
        tracing::debug!(?event);
        self.count += 1;
        if self.queue.len() < MOST_EVENTS {
            self.queue.push_back(event);
        } else {
            self.lost += 1;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}

//! What an application may want to know that is no completion.

use std::collections::VecDeque;

use efa_device::{DeviceError, Status};
use efa_proto::PacketType;

use crate::bounds::Excess;
use crate::completion::OperationError;
use crate::ids::PeerId;
use crate::memory::AccessError;

/// Something that happened outside the application's operations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An unknown endpoint wrote to us.
    PeerDiscovered(PeerId),
    /// An endpoint with another connid took the place of a peer on its queue pair. Operations with
    /// the old one failed.
    PeerRestarted {
        /// The peer that is no more.
        old: PeerId,
        /// Its successor.
        new: PeerId,
    },
    /// The device failed to deliver a packet to a peer, so that the conversation can't go on.
    /// Operations with it failed.
    PeerLost {
        /// The peer.
        peer: PeerId,
        /// What the device said.
        status: Status,
    },
    /// A peer made this endpoint keep more than it may, and is gone. Operations with it failed, and
    /// all that it sent is forgotten.
    PeerExcluded {
        /// The peer.
        peer: PeerId,
        /// What there was too much of.
        excess: Excess,
    },
    /// So many bytes of unexpected messages are kept that no more receive buffers are posted: all
    /// senders wait until the application has received some of them.
    HoldingBack {
        /// How many bytes.
        bytes: usize,
        /// [`Bounds::unexpected`](crate::Bounds::unexpected).
        limit: usize,
        /// The live peer that most of them are of.
        most: Option<PeerId>,
    },
    /// A packet was dropped.
    PacketDropped {
        /// Who sent it, if that is known.
        peer: Option<PeerId>,
        /// Why.
        reason: DropReason,
    },
    /// A peer asked for memory of this side that it may not have. No byte of it was touched. The
    /// protocol has no answer for this, so that the peer is not told.
    AccessRefused {
        /// The peer.
        peer: PeerId,
        /// What it asked for.
        error: AccessError,
    },
    /// A peer's write to memory of this side was begun and can't be finished: some of it may be
    /// there.
    WriteFailed {
        /// The peer.
        peer: PeerId,
        /// Why.
        error: OperationError,
    },
    /// A peer gave a message up, and there is no operation for it here that could say so: it had met
    /// no receive, or had not arrived.
    MessageAbandoned {
        /// The peer.
        peer: PeerId,
        /// Its place among the peer's messages.
        msg_id: u32,
        /// The peer's reason: a number of libfabric's provider.
        code: u32,
    },
    /// The device refused something that the endpoint needs; it will be tried again.
    DeviceRefused(DeviceError),
    /// The device, which matches tagged messages, did it against the rules. From here on messages
    /// may go to other receives than they should.
    TagListBroken(efa_match::Violation),
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// It is no packet of protocol version 4 (section 1.3).
    Malformed(efa_proto::ParseError),
    /// Nobody knows who sent it, and it doesn't tell (section 2.2).
    UnknownSender,
    /// The raw address in it isn't where it came from.
    ForgedAddress,
    /// There is no room for another peer.
    PeerTableFull,
    /// It is of an earlier life of its sender (section 4.4).
    Stale,
    /// This endpoint doesn't do what it asks for.
    Unsupported(PacketType),
    /// Messages are received in place here, and it is not of a message that can be: untagged, in one
    /// packet, without delivery complete (section 4.3).
    NotInPlace(PacketType),
    /// Its message id was used before (section 3.2).
    OldMessageId,
    /// Its message id is farther ahead than is kept.
    MessageIdTooFar,
    /// It came before its turn, and the device, which keeps the order of packets for its list of
    /// tags, has given it a receive, or would have to.
    OutOfOrder,
    /// It names an operation that doesn't exist, or is over, or isn't the sender's.
    UnknownOperation,
    /// Its segment lies outside the message or the granted window, or contradicts what came before.
    SegmentOutOfRange,
    /// Its bytes have come before.
    RepeatedSegment,
    /// The segments of its message are too scattered.
    TooScattered,
    /// It grants nothing, or belongs to another kind of operation (section 3.2).
    BadCts,
    /// No atomic has this type, operation and length (section 3.3).
    BadAtomic,
    /// There is no room for another operation.
    TooManyOperations,
}

/// Events that the application hasn't taken yet: the newest are lost when there are too many.
#[derive(Debug, Default)]
pub(crate) struct Events {
    queue: VecDeque<Event>,
    lost: u64,
}

const MOST_EVENTS: usize = 1024;

impl Events {
    pub(crate) fn push(&mut self, event: Event) {
        tracing::debug!(?event);
        if self.queue.len() < MOST_EVENTS {
            self.queue.push_back(event);
        } else {
            self.lost += 1;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}

//! How operations end.

use efa_device::Status;
use efa_handshake::Extras;

use crate::atomic::{AtomicKind, AtomicOp, Datatype};
use crate::bounds::Excess;
use crate::ids::PeerId;
use crate::select::Subprotocol;

/// What the completion of a send promises (table 1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Level {
    /// The message lies in the target's device; it may not have met a receive yet.
    #[default]
    Transmit,
    /// The message lies in the buffer of the receive that it matched. The peer must have the
    /// feature "delivery complete"; messages wait for its HANDSHAKE to tell.
    Delivery,
}

/// An operation that ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Completion<B> {
    /// A send.
    Send(SendCompletion<B>),
    /// A receive, or one message of a multi-receive buffer.
    Receive(ReceiveCompletion<B>),
    /// A multi-receive buffer takes no more messages; what is left of it comes back.
    Released {
        /// The context of the receive.
        context: u64,
        /// What no message used.
        buffer: B,
    },
    /// A write to memory of a peer, or a read of it.
    Rma(RmaCompletion<B>),
    /// An atomic on memory of a peer.
    Atomic(Box<AtomicCompletion<B>>),
    /// A peer wrote to memory of this side, and gave data along.
    RemoteWrite(RemoteWrite),
}

/// What a one-sided operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RmaKind {
    /// It wrote to memory of the peer.
    Write,
    /// It read memory of the peer.
    Read,
}

/// How a write or read ended.
#[derive(Debug, PartialEq, Eq)]
pub struct RmaCompletion<B> {
    /// Which of the two.
    pub kind: RmaKind,
    /// The context of the operation.
    pub context: u64,
    /// The peer.
    pub peer: PeerId,
    /// Its length in bytes.
    pub length: u64,
    /// How it travelled; `None` when nothing of it did.
    pub subprotocol: Option<Subprotocol>,
    /// The buffer.
    pub buffer: B,
    /// `Ok` when what the operation's [`Level`] promises has come true, or all is read.
    pub result: Result<(), OperationError>,
}

/// How an atomic ended.
#[derive(Debug, PartialEq, Eq)]
pub struct AtomicCompletion<B> {
    /// The context of the operation.
    pub context: u64,
    /// The peer.
    pub peer: PeerId,
    /// Bytes of the target.
    pub length: u64,
    /// The operand.
    pub operand: B,
    /// The comparand, of one that compares.
    pub comparand: Option<B>,
    /// The previous values, of one that fetches or compares.
    pub fetched: Option<B>,
    /// `Ok` when what the operation's [`Level`] promises has come true, or the previous values
    /// are here.
    pub result: Result<(), OperationError>,
}

/// A peer's write that was completed here by the data it gave along (section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteWrite {
    /// Who wrote, if the device knows.
    pub peer: Option<PeerId>,
    /// The data: 64 bits that came in a packet, or 32 by the device.
    pub cq_data: u64,
    /// Bytes that were written.
    pub length: u64,
}

/// How a send ended.
#[derive(Debug, PartialEq, Eq)]
pub struct SendCompletion<B> {
    /// The context of the operation.
    pub context: u64,
    /// The peer.
    pub peer: PeerId,
    /// The tag of a tagged message.
    pub tag: Option<u64>,
    /// Its length in bytes.
    pub length: u64,
    /// How it travelled; `None` when no packet of it was sent.
    pub subprotocol: Option<Subprotocol>,
    /// The buffer; `None` for injected messages.
    pub buffer: Option<B>,
    /// `Ok` when what the operation's [`Level`] promises has come true.
    pub result: Result<(), OperationError>,
}

/// How a receive ended.
#[derive(Debug, PartialEq, Eq)]
pub struct ReceiveCompletion<B> {
    /// The context of the operation.
    pub context: u64,
    /// Who sent the message; `None` for a cancelled receive.
    pub peer: Option<PeerId>,
    /// Whether it was a tagged receive.
    pub tagged: bool,
    /// The tag of the message; of the receive if it was cancelled; 0 if untagged.
    pub tag: u64,
    /// Bytes of the message in the buffer; of one that failed, those at its beginning.
    pub length: u64,
    /// The 64 bits that the sender gave along.
    pub cq_data: Option<u64>,
    /// How the message travelled.
    pub subprotocol: Option<Subprotocol>,
    /// The buffer. Of a multi-receive buffer, the part with this message.
    pub buffer: B,
    /// What came of it.
    pub result: Result<(), OperationError>,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The message was longer than the buffer, which holds its beginning.
    #[error("message of {length} bytes truncated to the {capacity} bytes of the buffer")]
    Truncated {
        /// Length of the message.
        length: u64,
        /// Length of the buffer.
        capacity: u64,
    },
    /// The application cancelled it.
    #[error("cancelled")]
    Cancelled,
    /// The device failed to deliver a packet.
    #[error("the device reports: {0}")]
    Device(Status),
    /// The peer made this endpoint keep more than it may.
    #[error("the peer was excluded: {0}")]
    PeerExcluded(Excess),
    /// The peer gave the message up, and told so (feature 9).
    #[error("the peer gave the message up: its error {code}")]
    GivenUp {
        /// The peer's reason: a number of libfabric's provider.
        code: u32,
    },
    /// The peer restarted while the operation was under way.
    #[error("the peer restarted")]
    PeerRestarted,
    /// The application removed the peer.
    #[error("the peer was removed")]
    PeerRemoved,
    /// The message was to be read from the sender's memory, which can't be done here, and the sender
    /// can't send it another way.
    #[error("the sender's memory can't be read, and the sender has no other way")]
    NotReadable,
    /// The peer has not the feature that the operation needs (section 2.1, case b).
    #[error("the peer doesn't support what the operation needs: {missing:?}")]
    PeerLacks {
        /// The features.
        missing: Extras,
    },
    /// The peer takes messages straight into its application's buffers (feature 7): untagged ones of
    /// one packet, without delivery complete, with at most 32 bits of CQ data.
    #[error("the peer takes plain messages only, of at most {limit} bytes")]
    PlainOnly {
        /// The longest.
        limit: usize,
    },
    /// The header of a message that is received in place has not the length that was asked for
    /// (section 4.3), and the message is not to be moved.
    #[error("a header of {found} bytes, {expected} were asked for")]
    UnexpectedHeader {
        /// Its length in bytes.
        found: usize,
        /// What was asked for.
        expected: usize,
    },
    /// There was no room for another operation.
    #[error("too many operations under way")]
    TooManyOperations,
    /// The device matched the receive with something that is no message.
    #[error("the device matched it with what is no message")]
    WronglyMatched,
}

/// Why an operation was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No such peer.
    #[error("no peer {0:?}")]
    UnknownPeer(PeerId),
    /// The peer is gone, because its device stopped answering, it restarted or it was removed.
    /// Inserting its address anew gives a fresh peer.
    #[error("peer {0:?} is gone")]
    PeerGone(PeerId),
    /// As many operations are under way as can be; progress will make room.
    #[error("busy: {limit} operations under way")]
    Busy {
        /// How many can be.
        limit: usize,
    },
    /// Buffer and remote memory differ in length.
    #[error("the buffer has {buffer} bytes and the remote memory {remote}")]
    LengthsDiffer {
        /// Bytes of the buffer.
        buffer: u64,
        /// Bytes of the remote memory.
        remote: u64,
    },
    /// The atomic doesn't fit a packet, and atomics are never divided.
    #[error("an atomic of {length} bytes, at most {limit} fit a packet")]
    AtomicTooLong {
        /// Bytes of the target.
        length: u64,
        /// The most.
        limit: usize,
    },
    /// There is no such atomic.
    #[error("no {kind:?} atomic does {op:?} on {datatype:?}")]
    NoSuchAtomic {
        /// What comes back.
        kind: AtomicKind,
        /// The operation.
        op: AtomicOp,
        /// The type of the elements.
        datatype: Datatype,
    },
    /// The memory doesn't hold whole elements.
    #[error("{length} bytes are not a number of elements of {size} bytes")]
    NotOfElements {
        /// What was given.
        length: u64,
        /// Bytes of an element.
        size: usize,
    },
    /// The peer takes plain messages only: untagged, with at most 32 bits of CQ data.
    #[error("the peer takes plain messages only, of at most {limit} bytes")]
    PlainOnly {
        /// The longest.
        limit: usize,
    },
    /// This endpoint doesn't match messages, nor copy them.
    #[error("the endpoint receives in place only")]
    InPlaceOnly,
    /// The message is too long to be injected.
    #[error("{length} bytes are too many to inject, at most {limit}")]
    TooLongToInject {
        /// What was asked for.
        length: usize,
        /// What can be.
        limit: usize,
    },
}

/// An operation that was not started; the buffer comes back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Refused<B> {
    /// Why.
    #[source]
    pub error: StartError,
    /// The buffer.
    pub buffer: B,
}

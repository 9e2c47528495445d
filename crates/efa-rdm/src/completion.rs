//! Completions and errors: what an endpoint returns when an operation ends.

use core::fmt;

use efa_device::{Shortage, Status};
use efa_handshake::Extras;

use crate::atomic::{AtomicKind, AtomicOp, Datatype};
use crate::bounds::Excess;
use crate::ids::PeerId;
use crate::select::Subprotocol;

/// What the completion of a send promises (table 1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Level {
    /// All bytes of the message were copied out of the buffer (`FI_INJECT_COMPLETE`): it may be reused, and
    /// nothing is known of the peer. A later failure is an
    /// [`Event::InjectedFailed`](crate::Event::InjectedFailed). What the device or the peer reads from the
    /// buffer itself, atomics, and plain messages complete as with [`Transmit`](Self::Transmit).
    Inject,
    /// The message lies in memory of the receiver's device; it may not have matched a receive yet
    /// (`FI_TRANSMIT_COMPLETE`).
    #[default]
    Transmit,
    /// The message lies in the buffer of the receive that it matched (`FI_DELIVERY_COMPLETE`). The peer
    /// must announce delivery complete; messages wait for its HANDSHAKE.
    Delivery,
}

/// An operation that ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Completion<B> {
    /// A send.
    Send(SendCompletion<B>),
    /// A receive, or one message of a multi-receive buffer.
    Receive(ReceiveCompletion<B>),
    /// A multi-receive buffer takes no more messages; the unused rest of it comes back.
    Released {
        /// The context of the receive.
        context: u64,
        /// The unused rest.
        buffer: B,
    },
    /// A write to memory of a peer, or a read of it.
    Rma(RmaCompletion<B>),
    /// An atomic on memory of a peer.
    Atomic(Box<AtomicCompletion<B>>),
    /// A peer wrote to memory of this endpoint, with CQ data.
    RemoteWrite(RemoteWrite),
}

/// The kind of a one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RmaKind {
    /// A write to memory of the peer.
    Write,
    /// A read of memory of the peer.
    Read,
}

/// How a write or read ended.
#[derive(Debug, PartialEq, Eq)]
pub struct RmaCompletion<B> {
    /// Write or read.
    pub kind: RmaKind,
    /// The context of the operation.
    pub context: u64,
    /// The peer.
    pub peer: PeerId,
    /// Its length in bytes; of a read that failed, the bytes that arrived from the beginning without a hole.
    pub length: u64,
    /// Its subprotocol; `None` if none was selected before it ended.
    pub subprotocol: Option<Subprotocol>,
    /// The buffer.
    pub buffer: B,
    /// `Ok` when the write reached its [`Level`], or all is read.
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
    /// The comparand of a compare atomic.
    pub comparand: Option<B>,
    /// The previous values, of a fetch or compare atomic.
    pub fetched: Option<B>,
    /// `Ok` when the atomic reached its [`Level`], or the previous values have arrived.
    pub result: Result<(), OperationError>,
}

/// A peer's write with CQ data, complete at this endpoint (section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteWrite {
    /// The writer, if the device reports it.
    pub peer: Option<PeerId>,
    /// The CQ data: 64 bits if the write came in packets, 32 if the device wrote.
    pub cq_data: u64,
    /// Bytes written.
    pub length: u64,
}

/// How a send ended.
// The buffer comes first, for the reason that `ReceiveCompletion` has.
#[derive(Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SendCompletion<B> {
    /// The buffer; `None` for injected messages.
    pub buffer: Option<B>,
    /// The context of the operation.
    pub context: u64,
    /// The tag of a tagged message.
    pub tag: Option<u64>,
    /// Its length in bytes.
    pub length: u64,
    /// `Ok` when the message reached its [`Level`].
    pub result: Result<(), OperationError>,
    /// The peer.
    pub peer: PeerId,
    /// Its subprotocol; `None` if no packet of it was sent.
    pub subprotocol: Option<Subprotocol>,
}

/// How a receive ended.
// The CQ data comes first: whether there is any tells the kinds of completions apart, too, so that these take no further
// word. The context is between it and the buffer, so that nothing unused is moved together with the first word of
// the buffer: a load that takes parts of two stores waits for both.
#[derive(Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ReceiveCompletion<B> {
    /// The sender's 64 bits of CQ data.
    pub cq_data: Option<u64>,
    /// The context of the operation.
    pub context: u64,
    /// The buffer. Of a multi-receive buffer, the part with this message.
    pub buffer: B,
    /// The tag of the message, or of the receive if it ended without one; 0 if untagged.
    pub tag: u64,
    /// Bytes of the message in the buffer; of a receive that failed, those from the beginning without a
    /// hole.
    pub length: u64,
    /// `Ok`, or why it failed.
    pub result: Result<(), OperationError>,
    /// The sender; `None` for a receive that ended without a message.
    pub peer: Option<PeerId>,
    /// Whether the receive is tagged.
    pub tagged: bool,
    /// The message's subprotocol.
    pub subprotocol: Option<Subprotocol>,
}

// A word for the kind would be moved with each.
const _: () = assert!(size_of::<Completion<Vec<u8>>>() == size_of::<ReceiveCompletion<Vec<u8>>>());

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The message is longer than the buffer, which holds its beginning (`FI_ETRUNC`).
    #[error("message of {length} bytes truncated to the {capacity} bytes of the buffer")]
    Truncated {
        /// Length of the message.
        length: u64,
        /// Length of the buffer.
        capacity: u64,
    },
    /// The application cancelled it (`FI_ECANCELED`).
    #[error("cancelled")]
    Cancelled,
    /// The connection of the endpoint ended, by either side.
    #[error("the connection has ended")]
    ConnectionEnded,
    /// The application closed or dropped the endpoint while the operation was under way.
    #[error("the endpoint was closed")]
    Closed,
    /// The device failed to deliver a packet, or the endpoint's queue pair failed.
    #[error("the device reports: {0}")]
    Device(Status),
    /// The peer exceeded one of the [`Bounds`](crate::Bounds).
    #[error("the peer was excluded: {0}")]
    PeerExcluded(Excess),
    /// The peer gave the operation up by a PEER_ERROR.
    #[error("the peer gave the operation up: {}", PeerReason(*code))]
    GivenUp {
        /// The peer's reason: an error number of libfabric's provider, whose numbers below 4,096 are the
        /// device's statuses.
        code: u32,
    },
    /// The peer restarted while the operation was under way.
    #[error("the peer restarted")]
    PeerRestarted,
    /// The application removed the peer.
    #[error("the peer was removed")]
    PeerRemoved,
    /// The sender's memory can't be read by this device, and the sender doesn't support READ_NACK.
    #[error("the sender's memory can't be read, and the sender doesn't support READ_NACK")]
    NotReadable,
    /// The peer lacks the features that the operation needs (section 2.1, case b).
    #[error("the peer doesn't support what the operation needs: {missing}")]
    PeerLacks {
        /// The missing features.
        missing: Extras,
    },
    /// The peer receives without headers (feature 7): untagged messages of one packet, without delivery
    /// complete, with at most 32 bits of CQ data.
    #[error("the peer takes plain messages only, of at most {limit} bytes")]
    PlainOnly {
        /// Most bytes of such a message.
        limit: usize,
    },
    /// The header of a message for a receive in place doesn't have the requested length (section 4.3), and
    /// [`UnexpectedHeader::Refuse`](crate::UnexpectedHeader::Refuse) is set.
    #[error("a header of {found} bytes, {expected} were requested")]
    UnexpectedHeader {
        /// Bytes of the header.
        found: usize,
        /// Bytes that were requested.
        expected: usize,
    },
    /// The table of operations is full.
    #[error("too many operations under way")]
    TooManyOperations,
    /// The device's tag list matched the receive with a packet that begins no message.
    #[error("the device matched it with a packet that begins no message")]
    WronglyMatched,
}

/// The reason in a PEER_ERROR.
struct PeerReason(u32);

impl fmt::Display for PeerReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(code) = *self;
        match u8::try_from(code).ok().and_then(Status::from_code) {
            Some(status) => write!(f, "{status} (its error {code})"),
            None => write!(f, "its error {code}"),
        }
    }
}

/// Why an operation was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No peer has this id.
    #[error("no peer {0:?}")]
    UnknownPeer(PeerId),
    /// The peer is gone: lost, restarted, excluded or removed. Inserting its address again makes a new
    /// peer, unless the endpoint's queue pair [failed](crate::Endpoint::failure), by which all peers are gone.
    #[error("peer {0:?} is gone")]
    PeerGone(PeerId),
    /// The limit of operations under way is reached. Poll, and try again.
    #[error("busy: {limit} operations under way")]
    Busy {
        /// Most operations.
        limit: usize,
    },
    /// The device lacks something of the operating system to send to the peer. Try again when there is some:
    /// the peer isn't lost. [`Endpoint::lack`](crate::Endpoint::lack) has the device's words.
    #[error("{0}: try again later")]
    Lacking(Shortage),
    /// Buffer and remote memory differ in length.
    #[error("the buffer has {buffer} bytes and the remote memory {remote}")]
    LengthsDiffer {
        /// Bytes of the buffer.
        buffer: u64,
        /// Bytes of the remote memory.
        remote: u64,
    },
    /// The atomic doesn't fit a packet; atomics aren't segmented.
    #[error("an atomic of {length} bytes, at most {limit} fit a packet")]
    AtomicTooLong {
        /// Bytes of the target.
        length: u64,
        /// Most bytes.
        limit: usize,
    },
    /// There is no such atomic.
    #[error("no atomic {kind} does {op:?} on {datatype:?}")]
    NoSuchAtomic {
        /// The kind.
        kind: AtomicKind,
        /// The operation.
        op: AtomicOp,
        /// The type of the elements.
        datatype: Datatype,
    },
    /// The length isn't a multiple of the element's size.
    #[error("{length} bytes are not a number of elements of {size} bytes")]
    NotOfElements {
        /// Bytes given.
        length: u64,
        /// Bytes of an element.
        size: usize,
    },
    /// The peer receives without headers: untagged messages with at most 32 bits of CQ data.
    #[error("the peer takes plain messages only, of at most {limit} bytes")]
    PlainOnly {
        /// Most bytes of such a message.
        limit: usize,
    },
    /// The claimed message is gone: its sender ended before all of it had arrived, or was excluded; or what
    /// the sender's former incarnations left was dropped.
    #[error("the claimed message is gone")]
    ClaimEnded,
    /// The endpoint receives in place: it doesn't match messages with buffers.
    #[error("the endpoint receives in place only")]
    InPlaceOnly,
    /// The message is too long to be injected.
    #[error("{length} bytes are too many to inject, at most {limit}")]
    TooLongToInject {
        /// Bytes given.
        length: usize,
        /// Most bytes.
        limit: usize,
    },
}

/// An operation that was not started; the buffer comes back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Refused<B> {
    /// Why.
    pub error: StartError,
    /// The buffer.
    pub buffer: B,
}

//! How operations end, and why they don't start.

use efa_device::DeviceError;
use efa_rdm::{OperationError, Subprotocol};

use crate::address::Address;
use crate::address_vector::FiAddr;
use crate::buffer::Buffer;
use crate::endpoint::EndpointId;
use crate::info::Capabilities;

/// What kind of operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A send.
    Send,
    /// A receive of one message.
    Receive,
    /// A message was put into a multi-receive buffer, which is still in use.
    MultiReceive,
    /// A multi-receive buffer takes no more messages (`FI_MULTI_RECV`), and all that it took have
    /// completed. The rest comes back.
    Released,
    /// A write to memory of a peer.
    Write,
    /// A read of memory of a peer.
    Read,
    /// An atomic on memory of a peer.
    Atomic,
    /// A peer wrote to memory here and passed data to this completion (`FI_REMOTE_WRITE`).
    RemoteWrite,
}

/// An operation that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// The endpoint that the operation was started on, or that was written to
    /// ([`Endpoint::id`](crate::Endpoint::id)).
    pub endpoint: EndpointId,
    /// The context that was given with the operation.
    pub context: u64,
    /// What kind of operation it was.
    pub kind: Kind,
    /// Length in bytes: of what was sent, written or read, or of what was received.
    pub length: u64,
    /// The buffer that was given with the operation. Of a multi-receive buffer, the part that the
    /// message lies in; of a receive in place, the message in its packet; of an atomic, the one for
    /// the previous values; an empty one if there was none.
    pub buffer: Buffer,
    /// The tag, if it is a tagged message.
    pub tag: Option<u64>,
    /// The data that the sender passed to this completion (`FI_REMOTE_CQ_DATA`).
    pub cq_data: Option<u64>,
    /// The peer in the address vector: who sent the message, or who was to get it. `None` if it
    /// isn't there, if there was nobody, or if the endpoint lacks [`Capabilities::SOURCE`]
    /// (`FI_ADDR_NOTAVAIL`).
    pub peer: Option<FiAddr>,
    /// The peer's address. It need not be in the address vector.
    pub peer_address: Option<Address>,
    /// How the message travelled.
    pub subprotocol: Option<Subprotocol>,
}

impl Completion {
    /// Whether it is of a message that was received.
    #[must_use]
    pub fn is_received(&self) -> bool {
        matches!(self.kind, Kind::Receive | Kind::MultiReceive)
    }

    /// The bytes of the message, without the rest of its buffer.
    #[must_use]
    pub fn into_message(self) -> Buffer {
        let mut buffer = self.buffer;
        buffer.truncate(usize::try_from(self.length).unwrap_or(usize::MAX));
        buffer
    }
}

/// An operation that failed. It completes like any other, in its turn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation with context {}: {error}", completion.context)]
pub struct CompletionError {
    /// Why.
    #[source]
    pub error: OperationError,
    /// The rest, as of any completion.
    pub completion: Box<Completion>,
}

/// Why an operation was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The endpoint is closed, or being closed.
    #[error("the endpoint is closed")]
    Closed,
    /// The address vector has no such address.
    #[error("no address {0} in the address vector")]
    UnknownAddress(FiAddr),
    /// The peer restarted, or the device lost it. Its address must be removed; if it comes back
    /// it can be inserted anew.
    #[error("the peer at {0} is gone")]
    PeerGone(FiAddr),
    /// As many operations are under way as can be; progress makes room (`FI_EAGAIN`).
    #[error("busy: {limit} operations under way")]
    Busy {
        /// How many can be.
        limit: usize,
    },
    /// The completion queue has no room for another completion; reading makes room (`FI_EAGAIN`).
    #[error("the completion queue of {capacity} entries is full")]
    QueueFull {
        /// How many it holds.
        capacity: usize,
    },
    /// The message is longer than the endpoint sends.
    #[error("message of {length} bytes, the endpoint sends at most {limit}")]
    TooLong {
        /// Its length in bytes.
        length: u64,
        /// The most.
        limit: u64,
    },
    /// The message is too long to be injected.
    #[error("{length} bytes are too many to inject, at most {limit}")]
    TooLongToInject {
        /// Its length in bytes.
        length: usize,
        /// The most.
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
    /// The endpoint was not made for this.
    #[error("the endpoint lacks {0}")]
    Disabled(Capabilities),
    /// The buffer is memory of another domain.
    #[error("the memory belongs to another domain")]
    OtherDomain,
    /// The endpoint matches messages with receives and copies them; see
    /// [`Receiving`](crate::Receiving).
    #[error("the endpoint receives no messages in place")]
    NotInPlace,
    /// The device can't address the peer.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The engine has another reason.
    #[error(transparent)]
    Engine(#[from] efa_rdm::StartError),
}

impl StartError {
    /// Whether it can be tried again after completions were read (`FI_EAGAIN`).
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::QueueFull { .. })
    }
}

/// An operation that was not started; the buffer comes back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// Why.
    #[source]
    pub error: StartError,
    /// The buffer.
    pub buffer: Buffer,
}

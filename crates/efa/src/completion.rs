//! Completions of operations, and errors of operations that don't start.

use efa_device::{DeviceError, Shortage};
use efa_rdm::{OperationError, Subprotocol};

use crate::address::Address;
use crate::address_vector::FiAddr;
use crate::buffer::Buffer;
use crate::capabilities::Capabilities;
use crate::endpoint::EndpointId;
use crate::region::LocalAccess;

/// Kind of an operation that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A send.
    Send,
    /// A receive of one message.
    Receive,
    /// A message in a multi-receive buffer, which takes more.
    MultiReceive,
    /// A multi-receive buffer takes no more messages (`FI_MULTI_RECV`), and all in it have completed. The
    /// unused rest of the buffer comes back.
    Released,
    /// A write to memory of a peer.
    Write,
    /// A read of memory of a peer.
    Read,
    /// An atomic on memory of a peer.
    Atomic,
    /// An atomic on memory of a peer that returned the previous values.
    FetchAtomic,
    /// A peer wrote to memory of this endpoint and sent data with it (`FI_REMOTE_WRITE`).
    RemoteWrite,
}

/// A completed operation (`fi_cq_tagged_entry` and more).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// The endpoint that the operation was started on, or that was written to
    /// ([`Endpoint::id`](crate::Endpoint::id)).
    pub endpoint: EndpointId,
    /// The context that the operation was started with; 0 for [`Kind::RemoteWrite`] and injected messages.
    pub context: u64,
    /// The kind of operation.
    pub kind: Kind,
    /// Bytes that were sent, received, written or read.
    pub length: u64,
    /// The buffer that the operation was started with. For a multi-receive buffer, the part with the
    /// message; for a receive in place, the message in its packet; for an atomic, the buffer of the
    /// previous values. Empty if there is none.
    pub buffer: Buffer,
    /// The tag of a tagged message.
    pub tag: Option<u64>,
    /// The data that the peer sent to this completion (`FI_REMOTE_CQ_DATA`).
    pub cq_data: Option<u64>,
    /// Index of the peer in the address vector: of the sender of a received message, or of the target.
    /// `None` (`FI_ADDR_NOTAVAIL`) if it is not in the address vector, if there is no peer, or for
    /// received messages if the endpoint lacks [`Capabilities::SOURCE`].
    pub peer: Option<FiAddr>,
    /// Address of the peer, which need not be in the address vector.
    pub peer_address: Option<Address>,
    /// The subprotocol that carried the data.
    pub subprotocol: Option<Subprotocol>,
}

impl Completion {
    /// Whether a message was received.
    #[must_use]
    pub fn is_received(&self) -> bool {
        matches!(self.kind, Kind::Receive | Kind::MultiReceive)
    }

    /// The message: the buffer, cut to [`length`](Self#structfield.length).
    #[must_use]
    pub fn into_message(self) -> Buffer {
        let mut buffer = self.buffer;
        buffer.truncate(usize::try_from(self.length).unwrap_or(usize::MAX));
        buffer
    }
}

/// A failed operation (`fi_cq_err_entry`). It completes in order with the others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation with context {}{}: {error}", completion.context, of_peer(completion.peer_address))]
#[non_exhaustive]
pub struct CompletionError {
    /// Why.
    pub error: OperationError,
    /// The other properties of the completion.
    pub completion: Box<Completion>,
}

/// Names the other side, if it is known.
fn of_peer(peer: Option<Address>) -> String {
    peer.map_or_else(String::new, |peer| format!(" (peer {peer})"))
}

/// Why an operation was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The endpoint is closed, or being closed.
    #[error("the endpoint is closed")]
    Closed,
    /// The endpoint has no connection yet, or it has ended ([`MsgEndpoint`](crate::MsgEndpoint)).
    #[error("the endpoint is not connected")]
    NotConnected,
    /// The address vector has no such address.
    #[error("no address {0} in the address vector")]
    UnknownAddress(FiAddr),
    /// The peer was lost, restarted or excluded; or another endpoint on its queue pair was heard since the address was
    /// inserted, and before it was first used. To send to an endpoint with its address again, remove it
    /// from the address vector and insert it anew. If it is the same endpoint and still runs, it has to remove this
    /// endpoint from its address vector as well; else it drops all messages as repeated ones
    /// ([`AddressVector::remove`](crate::AddressVector::remove)). Directed receives from the old peer
    /// ([`Receive::from`](crate::Receive::from)) stay posted until they are cancelled.
    #[error("the peer at {0} is gone")]
    PeerGone(FiAddr),
    /// The limit of operations under way is reached; read completions and try again (`FI_EAGAIN`).
    #[error("busy: {limit} operations under way")]
    Busy {
        /// The limit.
        limit: usize,
    },
    /// The completion queue has no credit for another operation; read completions and try again
    /// (`FI_EAGAIN`).
    #[error(
        "the completion queue has no credit: {capacity} operations are under way or have unread completions"
    )]
    QueueFull {
        /// Its capacity.
        capacity: usize,
    },
    /// The message is longer than [`max_message_size`](crate::EndpointOptions#structfield.max_message_size).
    #[error("message of {length} bytes, the endpoint sends at most {limit}")]
    TooLong {
        /// Its length in bytes.
        length: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The message is too long to be injected.
    #[error("{length} bytes are too many to inject, at most {limit}")]
    TooLongToInject {
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
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
    /// Capabilities that the operation needs are not enabled.
    #[error("the endpoint lacks {0}")]
    Disabled(Capabilities),
    /// The buffer is registered memory or a packet of another domain.
    #[error("the memory belongs to another domain")]
    OtherDomain,
    /// The buffer is memory registered for other operations ([`LocalAccess`]).
    #[error("memory registered for {granted} can't be used for {wanted}")]
    Access {
        /// What the operation needs.
        wanted: LocalAccess,
        /// What the memory is registered for.
        granted: LocalAccess,
    },
    /// The claimed message is gone: its sender ended before all of it had arrived, or was excluded, or it
    /// was received or discarded.
    #[error("the claimed message is gone")]
    ClaimEnded,
    /// The buffer is no registered memory, which the domain
    /// [requires](crate::LocalRegistration::Required).
    #[error("the buffer of {length} bytes is not registered memory")]
    NotRegistered {
        /// Its length in bytes.
        length: usize,
    },
    /// The [scalable endpoint](crate::ScalableEndpoint) has several contexts in this direction: the operation is
    /// started on one of them.
    #[error("the endpoint has {contexts} {direction} contexts, one of which is to be used")]
    SeveralContexts {
        /// `transmit` or `receive`.
        direction: &'static str,
        /// How many contexts it has.
        contexts: usize,
    },
    /// The endpoint takes its receives from a [shared queue](crate::SharedReceiveQueue): they are posted there.
    #[error("the endpoint takes its receives from a shared queue, to which they are posted")]
    ReceivesShared,
    /// A receive of a [shared queue](crate::SharedReceiveQueue) names a source.
    #[error("a receive of a shared queue can't name a source, and this one names {0}")]
    SharedSource(FiAddr),
    /// The endpoint does not receive in place ([`Receiving`](crate::Receiving)).
    #[error("the endpoint receives no messages in place")]
    NotInPlace,
    /// The device failed. With a [shortage](Self::shortage) the operation can be tried again: the peer isn't
    /// lost.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Another error of the protocol engine.
    #[error(transparent)]
    Engine(#[from] efa_rdm::StartError),
}

impl StartError {
    /// Whether the operation can be tried again after completions were read (`FI_EAGAIN`).
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::QueueFull { .. })
    }

    /// What the operating system has none of for now, if that is the reason: space of a file system, memory,
    /// or file descriptors. When there is some, the same operation can be tried again.
    #[must_use]
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            Self::Device(error) => error.shortage(),
            Self::Engine(efa_rdm::StartError::Lacking(shortage)) => Some(*shortage),
            _ => None,
        }
    }
}

/// An operation that was not started; the buffer comes back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// Why.
    pub error: StartError,
    /// The buffer.
    pub buffer: Buffer,
}

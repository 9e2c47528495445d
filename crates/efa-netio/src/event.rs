//! What a context reports, and why connections end.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use efa::{ConnectError, OperationError, StartConnectError, StartError};

use crate::counts::SubscriberCounts;
use crate::delivery::Delivery;
use crate::ids::{
    AnySocket, ListenSocket, PublishSocket, ReceiveSocket, SendSocket, SubscribeSocket, Timer,
};
use crate::memory::{Message, MessageError};
use crate::wire::Rejection;

/// A 64-bit name of a stream (felix identifier).
pub type Tag = u64;

/// What happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A send or subscribe socket is connected.
    Connected(AnySocket),
    /// A send or subscribe socket can't be connected. It may try again.
    Refused {
        /// The socket.
        socket: AnySocket,
        /// Why.
        reason: RefusedReason,
    },
    /// The connection of a send, receive or subscribe socket has ended; its completions and messages came before. A
    /// send or subscribe socket may be connected again, a receive socket is gone.
    Closed {
        /// The socket.
        socket: AnySocket,
        /// Why.
        reason: ClosedReason,
    },
    /// A listen or publish socket doesn't listen. It may try again.
    BindRefused {
        /// The socket.
        socket: AnySocket,
        /// Why. It has a [`NoThread`] inside if the host can't be looked up.
        error: io::Error,
    },
    /// A listen socket has a new connection.
    Accepted {
        /// The listen socket.
        listener: ListenSocket,
        /// The receiving side of the connection.
        socket: ReceiveSocket,
        /// Where the sender's TCP connection comes from.
        from: SocketAddr,
    },
    /// A listen or publish socket refused a caller, which has learned it. The others, and later ones, are not affected.
    CallerRefused {
        /// The socket.
        socket: AnySocket,
        /// Where the caller's TCP connection comes from.
        from: SocketAddr,
        /// Why: a [rejection](RefusedReason::Rejected), or that no connection can [begin](RefusedReason::Start).
        reason: RefusedReason,
    },
    /// A message has arrived at a receive socket.
    Received {
        /// The socket.
        socket: ReceiveSocket,
        /// The message, in its buffer.
        message: Delivery,
        /// What the sender sent beside the bytes.
        data: Option<u64>,
    },
    /// A message of a send socket is complete, or failed. It comes back.
    SendCompleted {
        /// The socket.
        socket: SendSocket,
        /// The message, with its key.
        message: Message,
        /// Why it failed.
        result: Result<(), OperationError>,
    },
    /// After an answer `Again` or `Partial`: trying again is worth it.
    Writable(AnySocket),
    /// A publisher has a new subscriber, which has no tags yet.
    SubscriberConnected {
        /// The publisher.
        socket: PublishSocket,
        /// Where the subscriber's TCP connection comes from.
        peer: SocketAddr,
    },
    /// A subscriber of a publisher is gone.
    SubscriberClosed {
        /// The publisher.
        socket: PublishSocket,
        /// Why.
        reason: ClosedReason,
        /// Where it was connected from, and what became of its messages, in the end: nothing is queued.
        counts: Box<SubscriberCounts>,
    },
    /// A subscriber has subscribed to a tag of a publisher.
    Subscriber {
        /// The publisher.
        socket: PublishSocket,
        /// The tag.
        tag: Tag,
        /// Where the subscriber's TCP connection comes from.
        peer: SocketAddr,
    },
    /// A subscriber has unsubscribed from a tag of a publisher.
    Unsubscriber {
        /// The publisher.
        socket: PublishSocket,
        /// The tag.
        tag: Tag,
        /// Where the subscriber's TCP connection comes from.
        peer: SocketAddr,
    },
    /// All who had subscribed to the tag of a publication when it began have been served, or are gone. The memory may be
    /// overwritten.
    Published {
        /// The publisher.
        socket: PublishSocket,
        /// The message, with its key.
        message: Message,
        /// How many subscribers were served.
        served: u32,
        /// How many didn't get it, or not for sure: they disconnected, died, or the program gave them up.
        lost: u32,
    },
    /// The publisher knows of a subscription.
    Subscribed {
        /// The subscribe socket.
        socket: SubscribeSocket,
        /// The tag.
        tag: Tag,
    },
    /// The publisher refused a subscription: the subscriber has as many tags as it may have.
    SubscriptionRefused {
        /// The subscribe socket.
        socket: SubscribeSocket,
        /// The tag.
        tag: Tag,
    },
    /// The publisher knows of the end of a subscription. What was published before has arrived.
    Unsubscribed {
        /// The subscribe socket.
        socket: SubscribeSocket,
        /// The tag.
        tag: Tag,
    },
    /// A published message has arrived.
    Message {
        /// The subscribe socket.
        socket: SubscribeSocket,
        /// Under which tag it was published.
        tag: Tag,
        /// The message, in its buffer, with its header at the beginning.
        message: Delivery,
    },
    /// A timer is due.
    Timer(Timer),
    /// A [`Signal`](crate::Signal) was raised, perhaps several times.
    Signal,
}

// Any number may wait for a program that doesn't poll: docs/security.md.
const _: () = assert!(size_of::<Event>() <= 128);

/// Why a socket can't be connected, or refused a caller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedReason {
    /// The host has no address, or none is found.
    #[error("host {host}: {reason}")]
    UnknownHost {
        /// The host.
        host: String,
        /// The system's words.
        reason: String,
    },
    /// Nobody listens there, no answer in time, and the like.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The listener rejected the request.
    #[error(transparent)]
    Rejected(Rejection),
    /// The connection can't begin: no descriptor or memory, or the device fails.
    #[error(transparent)]
    Start(#[from] StartConnectError),
    /// The host can't be looked up.
    #[error(transparent)]
    NoThread(#[from] NoThread),
}

/// The system starts no thread to look up the name of a host.
#[derive(Debug, thiserror::Error)]
#[error("cannot start a thread")]
pub struct NoThread(#[source] pub io::Error);

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClosedReason {
    /// This side disconnected it, or has no subscription left.
    #[error("disconnected by this side")]
    Disconnected,
    /// The other side disconnected it, after all that it sent.
    #[error("disconnected by the other side")]
    DisconnectedByPeer,
    /// The other side died, or closed its socket without a word. Of its messages that were under way, those that had
    /// arrived whole were received, in order, perhaps without some that were sent before them.
    #[error("the other side is gone")]
    PeerGone,
    /// A message was longer than the receiver's buffer.
    #[error("a message of {length} bytes for a buffer of {capacity} bytes")]
    TooLong {
        /// Length of the message.
        length: u64,
        /// Length of the receiver's buffer.
        capacity: u64,
        /// How many of the messages that this side sent on the connection were not received: that message, and those behind
        /// it, which may have completed. `None` at the receiver, and if the receiver is of a version that doesn't tell.
        lost: Option<u64>,
    },
    /// The other side took nothing for too long ([`Slow::Disconnect`](crate::Slow::Disconnect)).
    #[error("the other side took nothing for too long")]
    Slow,
    /// The other side didn't end the connection in time.
    #[error("the other side did not end the connection in time")]
    TimedOut,
    /// An operation of the connection failed, and not because the other side is gone.
    #[error("an operation failed: {0}")]
    Failed(OperationError),
}

/// Why a call on a socket did nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The socket was closed.
    #[error("the socket is closed")]
    Closed,
    /// The socket has no connection.
    #[error("the socket is not connected")]
    NotConnected,
    /// The socket is connected, connecting, or ending a connection.
    #[error("the socket is connected, connecting, or ending a connection")]
    Busy,
    /// The socket listens already.
    #[error("the socket listens already")]
    Listening,
    /// The socket makes its buffers itself.
    #[error("the socket makes its buffers itself")]
    OwnBuffers,
}

/// A buffer was not posted ([`Netio::post`](crate::Netio::post)); it comes back.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct PostRefused {
    /// Why.
    pub error: PostError,
    /// The buffer.
    pub buffer: Vec<u8>,
}

/// Prints the buffer's length, and none of its bytes.
impl fmt::Debug for PostRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostRefused")
            .field("error", &self.error)
            .field("length", &self.buffer.len())
            .finish()
    }
}

/// Why a buffer isn't posted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The socket is in no state for it.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The endpoint can't post it.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// The answer to [`Netio::send`](crate::Netio::send).
#[derive(Debug)]
#[must_use = "the message may not have been sent"]
pub enum Sent {
    /// It is under way. [`Event::SendCompleted`] brings it back, once.
    Accepted,
    /// As many messages are under way as can be. [`Event::Writable`] tells when to try again.
    Again(Message),
    /// It can't be sent.
    Refused(SendError, Message),
}

/// Why a message isn't sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The endpoint.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Why a context, or memory for it, can't be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library `efa`.
    #[error(transparent)]
    Efa(#[from] efa::Error),
    /// Registration of memory.
    #[error(transparent)]
    Register(#[from] efa::RegisterError),
    /// The device.
    #[error(transparent)]
    Device(#[from] efa::DeviceError),
    /// A range of memory.
    #[error(transparent)]
    Range(#[from] efa::OutOfRegion),
}

//! Sockets and publish/subscribe over EFA, without copies of the program's memory: the messaging of NetIO-next's
//! unbuffered mode, on the connections of [`efa`].
//!
//! A data-acquisition program has its messages in one large registered buffer that hardware fills. It gives each to
//! whoever asked for that stream, and learns when the memory may be overwritten.
//!
//! ```text
//!   point to point   SendSocket ── connect ──► ListenSocket ─► ReceiveSocket
//!                               ── send ────────────────────►  Event::Received
//!                    Event::SendCompleted: the memory is free
//!
//!   publish          SubscribeSocket ── subscribe(tag) ──► PublishSocket
//!                    Event::Message ◄── publish(tag, message) ── to all subscribers of the tag
//!                                       Event::Published: all have it, the memory is free
//! ```
//!
//! * [`Netio`] is the context. One thread drives it: by [`poll`](Netio::poll), by [`run`](Netio::run) with a
//!   [`Handler`], or in a loop of its own by a descriptor and a timeout ([`try_sleep`](Netio::try_sleep)).
//! * [`Pool`] is registered memory, [`Part`] a range of it, [`Message`] what is sent. A message moves into a call, and
//!   comes back with its completion or refusal.
//! * A [`Delivery`] is a received message in its buffer.
//! * Sockets are handles, which stay harmless when the socket is gone.
//!
//! # What "without copies" means
//!
//! This crate never copies bytes of a message. From [`Options::read_threshold`] on, the receiver's device reads a message
//! from the sender's memory into the receiver's buffer: each byte moves once. A shorter message goes in packets,
//! and is copied two to four times on `shm` (docs/netio.md).
//!
//! # Files
//!
//! | file | what |
//! |---|---|
//! | `context` | the context and its loop |
//! | `sockets`, `publish`, `subscribe` | the kinds of sockets |
//! | `connection`, `ends` | what they have in common: a connection, and its ends |
//! | `counts` | what became of the messages of each subscriber |
//! | `table` | who has subscribed to what |
//! | `wire` | what the two sides of a connection tell each other besides messages |
//! | `hosts` | looking up hosts, and the addresses that are tried in turn |
//! | `timers` | what is due at a time |
//! | `memory`, `delivery` | what is sent and received |
//! | `shelf` | the buffers that a receiving socket makes itself |

#![forbid(unsafe_code)]

mod connection;
mod context;
mod counts;
mod delivery;
mod ends;
mod event;
mod handler;
mod hosts;
mod ids;
mod memory;
mod options;
mod publish;
mod shelf;
mod sockets;
mod subscribe;
mod table;
mod timers;
mod wire;

pub use context::{Counts, Netio, Wait};
pub use counts::SubscriberCounts;
pub use delivery::{Delivery, Signal};
pub use event::{
    ClosedReason, Error, Event, NoThread, PostError, PostRefused, RefusedReason, SendError, Sent,
    SocketError, Tag,
};
pub use handler::Handler;
pub use ids::{
    AnySocket, ListenSocket, PublishSocket, ReceiveSocket, SendSocket, SubscribeSocket, Timer,
};
pub use memory::{Header, HeaderTooLong, MAX_PARTS, Message, MessageError, Part, Pool};
pub use options::{
    Buffers, Completion, ListenOptions, Options, PublishOptions, SendOptions, Slow,
    SubscribeOptions, WhenFull,
};
pub use publish::{Published, Reentry};
pub use subscribe::Subscription;
pub use table::Lookup;
pub use wire::Rejection;

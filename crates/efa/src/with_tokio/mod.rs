//! Completions and events as streams, operations and connections as futures, in programs of tokio (feature `tokio`).
//!
//! ```text
//!   tokio's reactor ─► descriptor readable ─► try_wait ─┬─► something is there: read it
//!                           ▲                           └─► nothing, and it is safe to sleep ─┐
//!                           └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! * [`CompletionQueue::stream`] and [`EventQueue::stream`] are for programs that start operations themselves,
//!   and read what comes. The task that polls the stream does the work of the endpoints, as a read of the queue
//!   does.
//! * An [`AsyncEndpoint`] has operations that are futures. A task of the runtime reads its completions.
//! * An [`AsyncListener`] has requests of callers that are futures. [`connect_async`](MsgEndpointBuilder::connect_async) and
//!   [`accept_async`](MsgEndpointBuilder::accept_async) complete with an [`AsyncMsgEndpoint`], which is an `AsyncEndpoint`
//!   with a connection. One task of the runtime, with one event queue of its own, watches all such connections of a fabric.
//!
//! All sleep on a descriptor that the runtime watches, also until a timer of an endpoint expires. The runtime
//! must have its I/O driver (`enable_io` or `enable_all`); its clock is not needed. Everything is `Send`, so
//! it works on runtimes of one thread and of several.
//!
//! With a [`ManualClock`](crate::ManualClock) nothing sleeps: a task that would advances that clock, to what it waits for. It
//! does so after as many polls as that is far in powers of two of a microsecond. So on a runtime of one thread a much
//! nearer timeout of another task, and what others can do at once, come first; of timeouts that differ by a factor of two or
//! less either may. On a runtime of several threads, a thread may run ahead of others.
//!
//! # Dropped futures
//!
//! The future of an operation has not begun before it is first polled: dropped before, it leaves nothing behind.
//! After that, its buffer belongs to the endpoint until the operation completes, whatever happens to the future.
//!
//! | dropped | what happens |
//! |---|---|
//! | a send, write, read or atomic | it goes on; its result and buffer are dropped when it completes |
//! | a receive that has matched no message | it is cancelled; messages go to other receives |
//! | a receive that has matched a message | the message is kept for another receive that matches it: one that waits, or the next |
//! | [`claim`](AsyncEndpoint::claim), [`next_event`](AsyncEndpoint::next_event) | nothing is taken |
//! | a [receive of many](MultiReceive) messages | it is cancelled; messages that weren't taken are kept in the same way |
//! | a receive of a [claim](AsyncClaim::receive) | it goes on; the message is dropped with the buffer |
//! | [`AsyncListener::accept`] | no request is taken |
//! | [`connect_async`](MsgEndpointBuilder::connect_async) | the attempt is given up; who accepts it gets an error, or a connection that has ended |
//! | [`accept_async`](MsgEndpointBuilder::accept_async) before its first poll | the request is rejected without data |
//! | `accept_async` later | the connection ends; the caller gets an error, or a connection that has ended |
//! | [`closed`](AsyncMsgEndpoint::closed) | nothing; the connection goes on |
//! | [`shutdown`](AsyncMsgEndpoint::shutdown), [`close`](AsyncEndpoint::close) | it goes on |
//!
//! So a receive can stand in `select!`, and no message is lost. A message that is kept comes in the buffer of the
//! receive that was dropped. It may come after messages of the same sender that were sent later. An error of such
//! a receive is kept in the same way, unless it is that the receive was cancelled, or that its connection or endpoint ended.
//!
//! A message that no receive takes can hold its sender up: one that doesn't go in a few packets (from 64 KiB on by default,
//! and from 12 KiB on over shm) is moved only once a receive has matched it, and its sender's future waits for that. A
//! program that drops the receive of an answer after a timeout either receives and drops the answer later
//! ([`claim`](AsyncEndpoint::claim), whose claim is dropped), or its peer bounds the time of its sends.
//!
//! When the runtime is shut down, futures that another runtime polls end with [`AsyncError::Ended`].

mod claims;
mod connections;
mod endpoint;
mod hub;
mod listener;
mod multi_receive;
mod reader;
mod sleeper;
mod slots;
mod streams;
mod ticket;

pub use claims::AsyncClaim;
pub use connections::{AsyncMsgEndpoint, ConnectAsyncError, NotAccepted};
pub use endpoint::{AsyncEndpoint, AsyncError, EnableAsyncError, Ended};
pub use hub::ClosedBy;
pub(crate) use hub::Hubs;
pub use listener::{AsyncListener, ListenAsyncError};
pub use multi_receive::MultiReceive;
pub use sleeper::StreamError;
pub use streams::{CompletionStream, EventStream};

#[cfg(doc)]
use crate::completion_queue::CompletionQueue;
#[cfg(doc)]
use crate::connection::{EventQueue, MsgEndpointBuilder};

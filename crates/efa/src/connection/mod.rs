//! Connections (`FI_EP_MSG`), and the event queue that reports them.
//!
//! ```text
//!   caller                                            callee
//!   MsgEndpointBuilder::connect ── TCP or a pipe ──► Listener ─► EventQueue: ConnectionRequest
//!                                                                    │ MsgEndpointBuilder::accept
//!   EventQueue: Connected ◄──────────────────────────────────────────┤
//!                                                    EventQueue: Connected
//!   MsgEndpoint ◄────────── packets of the EFA RDM protocol ────────► MsgEndpoint
//! ```
//!
//! Each connection has an endpoint of its own on the device, with one peer. The crate `efa-connect` says what
//! goes over TCP. Everything here happens while an event queue is read:
//!
//! | file | what |
//! |---|---|
//! | `event_queue` | the queue, and waiting for it |
//! | `sources` | what a queue reads: listeners, callers that have asked nothing yet, connections |
//! | `call` | one exchange and the stream that carries it |
//! | `stream`, `pipe` | TCP without blocking; the same in the process of a simulated network |
//! | `passive_endpoint`, `request` | listening, and what a caller asks |
//! | `msg_endpoint`, `state` | an endpoint with a connection, and the part of it that a queue knows |
//!
//! Locks are taken in the order of docs/architecture.md ("Locks of the crate `efa` have an order"): event queue, connection,
//! endpoints of the address vector, driver, and inside that the table of the address vector.

mod call;
mod event;
mod event_queue;
mod msg_endpoint;
mod passive_endpoint;
#[cfg(feature = "sim")]
pub(crate) mod pipe;
mod request;
mod sources;
mod state;
mod stream;
#[cfg(test)]
#[cfg(feature = "sim")]
mod tests;

pub use event::{ConnectError, ControlError, ControlEvent};
pub use event_queue::{EventQueue, EventQueueFull, EventQueueOptions, EventWaitError};
#[cfg(feature = "tokio")]
pub(crate) use msg_endpoint::Attachment;
pub use msg_endpoint::{MsgEndpoint, MsgEndpointBuilder, MsgEndpointOptions, StartConnectError};
pub use passive_endpoint::{Listener, PassiveEndpoint, PassiveEndpointOptions};
pub use request::{ConnectionRequest, NotAnswered};

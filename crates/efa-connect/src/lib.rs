//! What the two sides of a connection of the crate `efa` say to each other over TCP: the frames, and the
//! state of one side. No I/O: the caller of this crate moves the bytes and passes the time.
//!
//! ```text
//!   caller                                   callee
//!   CONNECT{address, data} ────────────────► a request: accept or reject it
//!                                            inserts the caller's address
//!                     ◄──────────────────── ACCEPT{address, data}
//!   inserts the callee's address
//!   connected; READY ──────────────────────► connected
//!                  … messages, by the EFA RDM protocol …
//!   SHUTDOWN ──────────────────────────────► shut down
//!
//!   CONNECT{address, data} ────────────────►
//!                     ◄──────────────────── REJECT{data}
//! ```
//!
//! Each side knows the other's address before the other may send to it, so no message of a connection ever
//! comes from an unknown sender. Once connected, the TCP connection carries nothing until it ends: its end
//! means that the other side is gone.
//!
//! ```
//! use efa_connect::{Data, Exchange, Happening};
//! use efa_device::Time;
//! use std::time::Duration;
//!
//! let now = Time::ZERO;
//! let deadline = now + Duration::from_secs(10);
//! let mut caller = Exchange::caller([1; 32], &Data::new(b"hello")?, deadline);
//! let mut callee = Exchange::callee(deadline);
//!
//! callee.received(caller.to_send());
//! caller.sent(caller.to_send().len());
//! let asked = Happening::Requested { address: [1; 32], data: Data::new(b"hello")? };
//! assert_eq!(callee.next(now), Some(asked));
//!
//! callee.accept([2; 32], &Data::default(), deadline);
//! caller.received(callee.to_send());
//! let accepted = Happening::Accepted { address: [2; 32], data: Data::default() };
//! assert_eq!(caller.next(now), Some(accepted));
//!
//! caller.ready();
//! callee.received(caller.to_send());
//! assert_eq!(callee.next(now), Some(Happening::Connected));
//! # Ok::<(), efa_connect::DataTooLong>(())
//! ```

#![forbid(unsafe_code)]

mod exchange;
mod frame;

pub use exchange::{Exchange, Failure, Happening, ProtocolError};
pub use frame::{
    Data, DataTooLong, Decoder, Frame, FrameError, FrameKind, HEADER, MAGIC, MAX_DATA, MAX_FRAME,
    VERSION,
};

/// The address of an endpoint: 32 bytes that this crate does not look into.
pub type Address = [u8; 32];

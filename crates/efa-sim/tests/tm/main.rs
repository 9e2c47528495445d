//! The device with tag matching, from outside.
//!
//! `srq` is about the device alone, `stories` about messages from a sender to a completion,
//! `random` holds long runs against two lists, and `hostile` brings bytes that nobody should send.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod hostile;
mod net;
mod random;
mod srq;
mod stories;

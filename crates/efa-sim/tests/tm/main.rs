//! The device with tag matching, from outside.
//!
//! `srq` is about the device alone, `messages` about messages from sender to completion,
//! `random` compares long runs with two lists, and `hostile` sends invalid bytes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod hostile;
mod messages;
mod net;
mod random;
mod srq;

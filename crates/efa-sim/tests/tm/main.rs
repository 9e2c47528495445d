//! Tests of the tag-matching device through its public interface.
//!
//! `srq` tests the TM-SRQ alone, `messages` complete transfers from sender to completion, `random` compares
//! long random runs with a reference of two lists, and `hostile` sends invalid bytes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod hostile;
mod messages;
mod net;
mod random;
mod srq;

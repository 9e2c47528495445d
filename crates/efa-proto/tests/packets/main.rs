//! Stories about whole packets, seen from outside.
//!
//! `samples` holds one hand-made packet of every type and form together with its layout as the
//! facts have it, written down independently of the crate. The other modules go over them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod corpus;
mod display;
mod golden;
mod hostile;
mod options;
mod round_trip;
mod rules;
mod samples;

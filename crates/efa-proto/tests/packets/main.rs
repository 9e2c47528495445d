//! Packets through the public API.
//!
//! `samples` has one hand-made packet of every type and form, with its layout, written down independently
//! of the crate. The other modules use them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod corpus;
mod display;
mod fields;
mod golden;
mod hostile;
mod options;
mod round_trip;
mod rules;
mod samples;

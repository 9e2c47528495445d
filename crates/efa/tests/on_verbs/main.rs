//! Integration tests on an interface of rdma-core, in real time: those of `integration` that need neither a
//! manual clock nor faults.
//!
//! `cargo xtask test --only verbs` runs them on the software device. On a machine with an EFA interface
//! `cargo test -p efa --test on_verbs -- --test-threads=1` runs them on that.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod connections;
#[path = "../integration/ends.rs"]
mod ends;
#[path = "../integration/in_place.rs"]
mod in_place;
#[path = "../integration/messages.rs"]
mod messages;
#[path = "../integration/peers.rs"]
mod peers;
#[path = "../integration/rma.rs"]
mod rma;
#[path = "../sleepers/mod.rs"]
mod sleepers;
#[path = "../spent/mod.rs"]
mod spent;
mod waiting;
mod world;

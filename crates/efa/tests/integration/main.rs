//! Integration tests of the API, most of them on the simulated network with a manual clock.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod buffers;
mod claims;
mod completions;
mod counters;
mod discovery;
mod ends;
mod in_place;
mod lifetimes;
mod links;
mod messages;
mod peers;
mod random;
mod registrations;
mod rma;
mod setup;
mod threads;
mod world;

//! Integration tests of the API, most of them on the simulated network with a manual clock.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod address_vectors;
mod buffers;
mod claims;
mod completions;
mod connections;
mod counters;
mod crowded;
mod discovery;
mod ends;
mod events;
mod foreign;
mod formats;
mod growth;
mod in_place;
mod injected;
mod keys;
mod lent;
mod levels;
mod lifetimes;
mod links;
mod looks;
mod messages;
mod objects;
mod peers;
mod pieces;
mod random;
mod registrations;
mod rma;
mod rotation;
mod scalable;
mod send_budget;
mod setup;
mod shared_receive_queue;
#[path = "../spent/mod.rs"]
mod spent;
mod threads;
mod world;

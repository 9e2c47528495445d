//! The protocol between endpoints on a simulated network: integration tests, a file for each subject.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod abandoned;
mod atomics;
mod buffer;
mod claim;
mod connection_end;
mod delivery;
mod eager;
mod faults;
mod giving_up;
mod handshake;
mod hazards;
mod hostile;
mod in_place;
mod lack;
mod leaving;
mod levels;
mod limits;
mod longcts;
mod longread;
mod matching;
mod matrix;
mod medium;
mod memory;
mod order;
mod peer_end;
mod peer_error;
mod peers;
mod placed;
mod plain;
mod random;
mod restarts;
mod rma;
mod send_window;
mod shared_receives;
mod subprotocols;
mod unfilled;
mod world;

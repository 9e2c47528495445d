//! RDMA reads, writes and immediate data: one suite for the three links (shm twice: copied by the kernel, and
//! requested from the target), and what differs.
//!
//! The tests of the suite run once for each link, as `local::…`, `shm::…`, `requests::…` and `tcp::…`. Two devices of
//! this process stand for two hosts; `shm_processes.rs` and `tcp_hosts.rs` have real ones.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

#[path = "../common/mod.rs"]
mod common;
mod differences;
mod pair;
mod suite;

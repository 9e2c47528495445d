//! The integration tests on the shm link: shared memory, with two devices.

#![allow(clippy::unwrap_used)]

mod common;
mod integration;

const LINK: &str = "shm";
const DEVICES: usize = 2;
/// Of `EFA_SOFT_COPIES`.
const COPIES: &str = "1";

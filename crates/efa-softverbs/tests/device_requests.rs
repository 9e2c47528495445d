//! The integration tests on the shm link without copies by the kernel, as between containers: reads and writes are
//! requested from the process with the memory.

#![allow(clippy::unwrap_used)]

mod common;
mod integration;

const LINK: &str = "shm";
const DEVICES: usize = 2;
/// Of `EFA_SOFT_COPIES`.
const COPIES: &str = "0";

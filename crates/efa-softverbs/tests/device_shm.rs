//! The stories of one process, over processes of one host, which can have several devices.

#![allow(clippy::unwrap_used)]

mod common;
mod stories;

const LINK: &str = "shm";
const DEVICES: usize = 2;

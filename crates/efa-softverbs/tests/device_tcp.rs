//! The stories of one process, over TCP, where a host has one address and so one device.

#![allow(clippy::unwrap_used)]

mod common;
mod stories;

const LINK: &str = "tcp";
const DEVICES: usize = 1;

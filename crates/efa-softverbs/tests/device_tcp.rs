//! The integration tests on the tcp link: TCP, where a host has one address and so one device.

#![allow(clippy::unwrap_used)]

mod common;
mod integration;

const LINK: &str = "tcp";
const DEVICES: usize = 1;
/// Of `EFA_SOFT_COPIES`.
const COPIES: &str = "1";

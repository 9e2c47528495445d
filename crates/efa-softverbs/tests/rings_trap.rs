//! The direct data path with doorbells that trap, on the shm link.

#![allow(clippy::unwrap_used)]

mod common;
mod rings;

const LINK: &str = "shm";
fn direct() -> &'static str {
    "trap"
}

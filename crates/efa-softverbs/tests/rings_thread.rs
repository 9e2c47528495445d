//! The direct data path, whose doorbells a thread watches, on the shm link.

#![allow(clippy::unwrap_used)]

mod common;
mod rings;

const LINK: &str = "shm";
fn direct() -> &'static str {
    "thread"
}

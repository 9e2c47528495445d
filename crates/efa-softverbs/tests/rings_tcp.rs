//! The direct data path, whose doorbells a thread watches, on the tcp link.

#![allow(clippy::unwrap_used)]

mod common;
mod rings;

const LINK: &str = "tcp";
fn direct() -> &'static str {
    "thread"
}

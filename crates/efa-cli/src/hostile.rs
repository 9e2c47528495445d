//! The parts that read untrusted input, as functions of bytes for `tests/hostile`. Not a public interface.

use std::path::Path;

pub use crate::decode::hostile::{Form, Selection, decode};
pub use crate::pingpong::hostile::{Side, run_control};

/// The output of `efa doctor` for the files of a machine, as text and as JSON.
#[must_use]
pub fn examine(root: &Path) -> (String, String) {
    crate::doctor::of_files(root)
}

//! What the command reads of others, as functions of bytes: the way in for `tests/hostile`. It is no
//! interface for anybody else, and changes as the command does.

use std::path::Path;

pub use crate::decode::hostile::{Form, decode};
pub use crate::pingpong::hostile::{Side, hear};

/// What `efa doctor` makes of the files of a machine, as text and as JSON.
#[must_use]
pub fn examine(root: &Path) -> (String, String) {
    crate::doctor::of_files(root)
}

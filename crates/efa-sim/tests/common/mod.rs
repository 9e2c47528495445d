//! What the tests of the shm link share.

use std::path::{Path, PathBuf};

/// A directory of its own for a test, below the one for temporary files; removed at the end.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        let name = format!("efa-sim-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        rustix::fs::mkdir(&path, rustix::fs::Mode::RWXU).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

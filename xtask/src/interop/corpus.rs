//! `--corpus`: the golden packets of `crates/efa-proto/tests/corpus`, out of the captures of a run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use super::build::Programs;
use crate::workspace::Workspace;

/// Where libfabric's packets go.
const DIRECTORY: &str = "crates/efa-proto/tests/corpus/libfabric-1.17";

/// A corpus in the making.
pub(crate) struct Corpus {
    program: PathBuf,
    /// One capture at a time.
    directory: Mutex<PathBuf>,
}

impl Corpus {
    /// An empty one.
    pub(crate) fn begin(workspace: &Workspace, programs: &Programs) -> Result<Self> {
        let directory = workspace.root().join(DIRECTORY);
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        for entry in std::fs::read_dir(&directory)? {
            let file = entry?.path();
            if file.extension() == Some(OsStr::new("bin")) {
                std::fs::remove_file(&file)
                    .with_context(|| format!("cannot remove {}", file.display()))?;
            }
        }
        Ok(Self { program: programs.corpus.clone(), directory: Mutex::new(directory) })
    }

    /// Adds the shapes of a capture.
    pub(crate) fn add(&self, capture: &Path) -> Result<()> {
        let directory = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
        let output = Command::new(&self.program).arg(&*directory).arg(capture).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "no corpus from {}: {said}", capture.display());
        Ok(())
    }
}

//! `--corpus`: the golden packets of `crates/efa-proto/tests/corpus`, out of the captures of a run.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use super::build::Built;
use crate::workspace::Workspace;

/// Where libfabric's packets go.
const FILE: &str = "crates/efa-proto/tests/corpus/libfabric-1.17.txt";

/// A corpus in the making.
pub(crate) struct Corpus {
    program: PathBuf,
    /// One capture at a time.
    file: Mutex<PathBuf>,
}

impl Corpus {
    /// An empty one.
    pub(crate) fn begin(workspace: &Workspace, built: &Built) -> Result<Self> {
        let file = workspace.root().join(FILE);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
        .with_context(|| format!("cannot remove {}", file.display()))?;
        Ok(Self { program: built.corpus.clone(), file: Mutex::new(file) })
    }

    /// Adds the shapes of a capture.
    pub(crate) fn add(&self, capture: &Path) -> Result<()> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let output = Command::new(&self.program).arg(&*file).arg(capture).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "no corpus from {}: {said}", capture.display());
        Ok(())
    }
}

//! The profiles of Cargo.toml, and where cargo puts what it builds by them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::process;
use crate::workspace::Workspace;

/// A profile of Cargo.toml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// As `cargo build` builds.
    Dev,
    /// For users, and for what is compared with other libraries.
    Release,
    /// For programs that tests run: optimized, with the checks of `Dev`.
    Checked,
    /// For the instruction benches of crates, whose limits were measured with it.
    Bench,
}

impl Profile {
    /// The argument of cargo.
    pub(crate) fn argument(self) -> &'static str {
        match self {
            Self::Dev => "--profile=dev",
            Self::Release => "--profile=release",
            Self::Checked => "--profile=checked",
            Self::Bench => "--profile=bench",
        }
    }

    /// Where programs and libraries are. What is built by `Release` replaces what was built by `Bench`, and the other
    /// way round.
    pub(crate) fn directory(self, workspace: &Workspace) -> Result<PathBuf> {
        Ok(workspace.metadata()?.target_directory.join(match self {
            Self::Dev => "debug",
            Self::Release | Self::Bench => "release",
            Self::Checked => "checked",
        }))
    }

    /// The command that builds the program that has the name of its package.
    pub(crate) fn build_of(self, workspace: &Workspace, name: &str) -> Command {
        let mut cargo = workspace.cargo();
        cargo.args(["build", "--quiet", self.argument(), "--package", name]);
        cargo
    }

    /// Builds the program that has the name of its package; returns its file.
    pub(crate) fn program(self, workspace: &Workspace, name: &str) -> Result<PathBuf> {
        process::run(&mut self.build_of(workspace, name))?;
        let program = self.directory(workspace)?.join(name);
        ensure!(program.exists(), "{} was not built", program.display());
        Ok(program)
    }
}

//! The programs of the matrix: the device, the tool and our peer by cargo, libfabric's peer by the
//! C compiler.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::matrix::{Device, Devices};
use crate::workspace::Workspace;
use crate::{checked, process, provider};

/// Where the programs are.
#[derive(Debug)]
pub(crate) struct Built {
    /// Puts a C program on the software device, and shows captures.
    pub(crate) efa: PathBuf,
    pub(crate) c_peer: PathBuf,
    pub(crate) rust_peer: PathBuf,
    /// Takes packets out of captures.
    pub(crate) corpus: PathBuf,
    /// What our peers are on.
    pub(crate) devices: Devices,
    /// The directory with our provider, if a peer is on it.
    pub(crate) provider: Option<PathBuf>,
    /// For what the cells leave.
    pub(crate) target: PathBuf,
    /// The release of libfabric in the library path.
    pub(crate) libfabric: Release,
}

/// A release of libfabric: its first two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Release(pub(crate) u32, pub(crate) u32);

impl Release {
    /// Before all that have this protocol.
    pub(crate) const FIRST: Self = Self(0, 0);
    /// One that isn't there yet.
    pub(crate) const NEVER: Self = Self(u32::MAX, 0);

    /// The one that programs find: Debian's, if not another is in the library path.
    fn found() -> Result<Self> {
        let output = Command::new("fi_info").arg("--version").output().context("fi_info")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Self::parse(&text).with_context(|| format!("`fi_info --version`: {text}"))
    }

    /// Out of what `fi_info --version` says: `libfabric: 1.17.0`.
    fn parse(text: &str) -> Option<Self> {
        let version = text.lines().find_map(|line| line.strip_prefix("libfabric: "))?;
        let mut numbers = version.split('.').map_while(|number| number.parse().ok());
        Some(Self(numbers.next()?, numbers.next()?))
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Built {
    pub(crate) fn build(workspace: &Workspace, devices: Devices) -> Result<Self> {
        let programs = ["efa", "efa-interop-peer", "efa-interop-corpus"];
        let built = checked::build(workspace, &programs)?;
        let interop = workspace.metadata()?.target_directory.join("interop");
        let provider = devices.has(Device::Provider).then(|| interop.join("provider"));
        if let Some(directory) = &provider {
            provider::copy(&built, directory)?;
        }
        Ok(Self {
            efa: built.join("efa"),
            c_peer: c_peer(workspace)?,
            rust_peer: built.join("efa-interop-peer"),
            corpus: built.join("efa-interop-corpus"),
            devices,
            provider,
            target: interop,
            libfabric: Release::found()?,
        })
    }
}

/// Builds the peer on libfabric.
pub(crate) fn c_peer(workspace: &Workspace) -> Result<PathBuf> {
    let interop = workspace.metadata()?.target_directory.join("interop");
    std::fs::create_dir_all(&interop)
        .with_context(|| format!("cannot make {}", interop.display()))?;
    let c_peer = interop.join("libfabric-peer");
    compile(&workspace.root().join("tests/interop/c"), &c_peer)?;
    Ok(c_peer)
}

/// All C files of a directory into one program.
fn compile(sources: &Path, program: &Path) -> Result<()> {
    let entries =
        std::fs::read_dir(sources).with_context(|| format!("cannot read {}", sources.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "c") {
            files.push(file);
        }
    }
    files.sort();
    process::compile("cc", files, &["-lfabric"], program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_is_parsed_from_fi_info() {
        let text = "fi_info: 1.21.0\nlibfabric: 1.21.0-impi\nlibfabric api: 1.21\n";
        assert_eq!(Release::parse(text), Some(Release(1, 21)));
        assert_eq!(Release::parse("fi_info: 1.21.0"), None);
        assert!(Release(1, 17) < Release(1, 20) && Release(1, 22) < Release(2, 0));
    }
}

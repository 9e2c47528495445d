//! The repository: its root, cargo's target directory, packages and their benches.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::process;

/// The repository that xtask works on.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
}

/// The output of `cargo metadata`, as far as needed.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    /// Cargo's target directory.
    pub(crate) target_directory: PathBuf,
    /// The members of the workspace.
    pub(crate) packages: Vec<Package>,
}

/// A member of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    /// Its name, as in `efa-proto`.
    pub(crate) name: String,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Workspace {
    /// Finds the repository from the directory of this package, which `cargo run` passes at run time: it is
    /// right even if the repository was moved after the build.
    pub(crate) fn locate() -> Result<Self> {
        let package = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = package.parent().context("the xtask package has no parent directory")?;
        Ok(Self { root: root.to_owned() })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A cargo command that runs in the root of the workspace.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root);
        command
    }

    pub(crate) fn metadata(&self) -> Result<Metadata> {
        let json = process::output_of(self.cargo().args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version=1",
        ]))?;
        serde_json::from_str(&json).context("cannot read the output of cargo metadata")
    }

    /// The version of a dependency in `Cargo.lock`.
    pub(crate) fn locked_version(&self, package: &str) -> Result<String> {
        let path = self.root.join("Cargo.lock");
        let lock = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        version_in_lock(&lock, package)
            .with_context(|| format!("{package} is not in {}", path.display()))
    }

    /// The manifest of the fuzz targets, which are a workspace of their own.
    pub(crate) fn fuzz_manifest(&self) -> Option<PathBuf> {
        Some(self.root.join("fuzz/Cargo.toml")).filter(|manifest| manifest.is_file())
    }
}

impl Metadata {
    /// The packages that have a bench of this name.
    pub(crate) fn packages_with_bench(&self, bench: &str) -> Vec<&Package> {
        self.packages.iter().filter(|package| package.has_bench(bench)).collect()
    }
}

impl Package {
    fn has_bench(&self, bench: &str) -> bool {
        self.targets
            .iter()
            .any(|target| target.name == bench && target.kind.iter().any(|kind| kind == "bench"))
    }
}

fn version_in_lock(lock: &str, package: &str) -> Option<String> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name).skip(1);
    let version = lines.next()?.strip_prefix("version = \"")?.strip_suffix('"')?;
    Some(version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_version_is_that_of_the_exact_package_name() {
        let lock = "[[package]]\nname = \"gungraun-common\"\nversion = \"0.1.0\"\n\n\
                    [[package]]\nname = \"gungraun\"\nversion = \"0.20.0\"\nsource = \"x\"\n";
        assert_eq!(version_in_lock(lock, "gungraun").as_deref(), Some("0.20.0"));
        assert_eq!(version_in_lock(lock, "gungraun-runner"), None);
    }

    #[test]
    fn benches_are_found_by_name_and_kind() {
        let json = r#"{"target_directory": "/t", "packages": [
            {"name": "efa-proto", "targets": [
                {"name": "instructions", "kind": ["bench"]}, {"name": "efa_proto", "kind": ["lib"]}]},
            {"name": "efa", "targets": [{"name": "instructions", "kind": ["example"]}]}]}"#;
        let metadata: Metadata = serde_json::from_str(json).unwrap();
        let names = |bench| -> Vec<&str> {
            metadata.packages_with_bench(bench).iter().map(|package| &*package.name).collect()
        };
        assert_eq!(names("instructions"), ["efa-proto"]);
        assert_eq!(names("wall"), [""; 0]);
    }
}

//! The step `package` of `cargo xtask test`: crates that others may use can be published, and build
//! where they say they build.
//!
//! 1. Their manifests have what a registry and docs.rs show.
//! 2. No dependency needs a newer Rust than `rust-version`, and libraries and programs compile with the
//!    toolchain of `rust-version` if rustup has it. If not, only clippy's `incompatible_msrv` (denied) refuses
//!    newer parts of the standard library, and newer syntax isn't found.
//! 3. `cargo package` builds each one from its package alone.
//! 4. `efa` builds without its default features, and so without `efa-sim`; the same with the feature `tokio`. So do
//!    those of its examples whose `required-features` allow it.
//! 5. [`NO_STD`] links without `std`.
//!
//! Crates with `publish = false` are left out: tests, tools, and `efa-cli` and `efa-softverbs`, which
//! `cargo install` would part from each other.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::process;
use crate::workspace::Workspace;

/// A static library of `efa-proto` and `efa-handshake`, a workspace of its own: it aborts on panics.
pub(crate) const NO_STD: &str = "tests/no-std/Cargo.toml";

/// What `cargo metadata` says of the workspace and all its dependencies.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    target_directory: PathBuf,
}

/// A package's manifest, as far as this step reads it.
#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    manifest_path: PathBuf,
    /// `None`: to any registry; empty: `publish = false`.
    publish: Option<Vec<String>>,
    description: Option<String>,
    license: Option<String>,
    readme: Option<String>,
    rust_version: Option<String>,
    #[serde(default)]
    keywords: Vec<String>,
    #[serde(default)]
    categories: Vec<String>,
    #[serde(default)]
    metadata: Option<serde_json::Value>,
}

/// Runs the step.
pub(crate) fn step(workspace: &Workspace) -> Result<()> {
    // Also what other systems than this one need: cargo wants it all to be there.
    process::run(workspace.cargo().args(["fetch", "--locked"]))?;
    let metadata = Metadata::read(workspace)?;
    let crates = metadata.published();
    ensure!(!crates.is_empty(), "no crate can be published");
    let mut problems = metadata.too_new();
    for package in &crates {
        problems.extend(package.problems());
        problems.extend(package.lints_of_its_own()?);
    }
    if !problems.is_empty() {
        bail!("{} problems in manifests:\n{}", problems.len(), problems.join("\n"));
    }
    metadata.check_with_oldest_rust(workspace)?;

    // Cargo takes a package of one version for immutable: it keeps what it unpacked and built of it, for each
    // target directory. Only a directory that never existed makes it take today's packages.
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let target = metadata.target_directory.join(format!("packages-{}", since_epoch.as_nanos()));
    // Uncommitted changes are packaged, too: the step checks the tree as it is.
    let mut cargo = workspace.cargo();
    // What this builds isn't run.
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    cargo.args(["package", "--offline", "--allow-dirty", "--no-metadata", "--target-dir"]);
    let names = crates.iter().map(|package| format!("--package={}", package.name));
    let packaged = process::run(cargo.arg(&target).args(names));
    if let Err(error) = fs::remove_dir_all(&target) {
        say!("cannot remove {}: {error}", target.display());
    }
    packaged?;

    let bare = ["--package=efa", "--no-default-features"];
    for features in ["--features=", "--features=tokio"] {
        let mut clippy = workspace.cargo();
        clippy.arg("clippy").args(bare).args([features, "--lib", "--examples"]);
        process::run(clippy.args(["--", "--deny=warnings"]))?;
    }
    let tree = ["--offline", "--edges=normal", "--prefix=none", "--format={p}"];
    let tree = process::output_of(workspace.cargo().arg("tree").args(bare).args(tree))?;
    ensure!(!depends_on(&tree, "efa-sim"), "efa needs efa-sim without its default features");
    ensure!(!depends_on(&tree, "tokio"), "efa needs tokio without its feature");

    let mut build = workspace.cargo();
    build.args(["build", "--offline", "--locked", "--manifest-path", NO_STD, "--target-dir"]);
    process::run(build.arg(metadata.target_directory.join("no-std")))
}

/// Whether a line of `cargo tree --prefix=none --format={p}` is this package.
fn depends_on(tree: &str, package: &str) -> bool {
    tree.lines().any(|line| line.split(' ').next() == Some(package))
}

impl Metadata {
    fn read(workspace: &Workspace) -> Result<Self> {
        let arguments = ["metadata", "--offline", "--format-version=1"];
        let json = process::output_of(workspace.cargo().args(arguments))?;
        serde_json::from_str(&json).context("cannot read the output of cargo metadata")
    }

    /// The members of the workspace that may be published.
    fn published(&self) -> Vec<&Package> {
        let member = |package: &&Package| self.workspace_members.contains(&package.id);
        let may_be = |package: &&Package| package.publish.is_none();
        self.packages.iter().filter(member).filter(may_be).collect()
    }

    /// The lowest `rust-version` of a crate that may be published, as (major, minor).
    fn oldest_rust(&self) -> Option<(u32, u32)> {
        self.published().into_iter().filter_map(Package::oldest_rust).min()
    }

    /// Compiles libraries and programs with the toolchain of `rust-version`, if rustup has it.
    fn check_with_oldest_rust(&self, workspace: &Workspace) -> Result<()> {
        let (major, minor) = self.oldest_rust().context("no crate has a rust-version")?;
        let toolchain = format!("{major}.{minor}");
        let cargo = |command| {
            let mut cargo = Command::new("rustup");
            cargo.current_dir(workspace.root()).args(["run", &toolchain, "cargo", command]);
            cargo
        };
        if !process::succeeds(&mut cargo("version")) {
            say!(
                "toolchain {toolchain} is not installed (rustup toolchain install {toolchain}): \
                 only lints and the dependencies' rust-version were checked"
            );
            return Ok(());
        }
        let mut check = cargo("check");
        check.args(["--workspace", "--lib", "--bins", "--offline", "--locked", "--target-dir"]);
        process::run(check.arg(self.target_directory.join(&toolchain)))
    }

    /// Packages that need a newer Rust than a crate that may be published.
    fn too_new(&self) -> Vec<String> {
        let Some(oldest) = self.oldest_rust() else { return Vec::new() };
        let needs_more = |package: &&Package| package.oldest_rust() > Some(oldest);
        let problem = |package: &Package| {
            let Package { name, version, rust_version, .. } = package;
            let needed = rust_version.as_deref().unwrap_or("?");
            format!("{name} {version} needs Rust {needed}; ours is 1.{}", oldest.1)
        };
        self.packages.iter().filter(needs_more).map(problem).collect()
    }
}

impl Package {
    /// `rust-version` as (major, minor).
    fn oldest_rust(&self) -> Option<(u32, u32)> {
        let mut parts = self.rust_version.as_ref()?.split('.').map(|part| part.parse().ok());
        Some((parts.next()??, parts.next()??))
    }

    /// What the manifest lacks for a registry, docs.rs, or users of older toolchains.
    fn problems(&self) -> Vec<String> {
        let all_features = "/docs/rs/all-features";
        let metadata = self.metadata.as_ref();
        let fields = [
            ("description", self.description.is_some()),
            ("license", self.license.is_some()),
            ("readme", self.readme.is_some()),
            ("keywords", !self.keywords.is_empty()),
            ("categories", !self.categories.is_empty()),
            ("rust-version", self.oldest_rust().is_some()),
            (
                "package.metadata.docs.rs.all-features = true",
                metadata.and_then(|value| value.pointer(all_features)) == Some(&true.into()),
            ),
        ];
        let missing = fields.into_iter().filter(|(_, present)| !present);
        missing.map(|(field, _)| format!("{}: no {field}", self.name)).collect()
    }

    /// Whether the manifest leaves the workspace's lints, `incompatible_msrv` among them.
    fn lints_of_its_own(&self) -> Result<Option<String>> {
        let path = &self.manifest_path;
        let manifest =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let inherits = manifest.contains("[lints]\nworkspace = true");
        Ok((!inherits).then(|| format!("{}: no `[lints] workspace = true`", self.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate to publish, a tool, and a dependency that needs Rust `rust`.
    fn metadata(rust: &str) -> Metadata {
        let json = r#"{"target_directory": "/t", "workspace_members": ["a", "b"], "packages": [
            {"id": "a", "name": "efa-proto", "version": "0.1.0", "manifest_path": "/a/Cargo.toml",
             "publish": null, "description": "Packets", "license": "MIT", "readme": "README.md",
             "rust_version": "1.88", "keywords": ["efa"], "categories": ["encoding"],
             "metadata": {"docs": {"rs": {"all-features": true}}}},
            {"id": "b", "name": "xtask", "version": "0.1.0", "manifest_path": "/b/Cargo.toml",
             "publish": [], "description": null, "license": null, "readme": null, "rust_version": "1.88"},
            {"id": "c", "name": "slab", "version": "0.4.12", "manifest_path": "/c/Cargo.toml",
             "publish": null, "description": null, "license": null, "readme": null,
             "rust_version": "RUST"}]}"#;
        serde_json::from_str(&json.replace("RUST", rust)).unwrap()
    }

    #[test]
    fn only_members_without_publish_false_are_packaged() {
        let metadata = metadata("1.60");
        let names: Vec<_> = metadata.published().iter().map(|package| &*package.name).collect();
        assert_eq!(names, ["efa-proto"]);
    }

    #[test]
    fn complete_manifest_has_no_problems_and_empty_one_lists_each_field() {
        let metadata = metadata("1.60");
        assert_eq!(metadata.packages[0].problems(), [""; 0]);
        let problems = metadata.packages[1].problems().join(", ");
        assert_eq!(
            problems,
            "xtask: no description, xtask: no license, xtask: no readme, xtask: no keywords, \
             xtask: no categories, xtask: no package.metadata.docs.rs.all-features = true"
        );
    }

    #[test]
    fn dependency_that_needs_newer_rust_is_reported_with_both_versions() {
        assert_eq!(metadata("1.88.3").oldest_rust(), Some((1, 88)));
        assert_eq!(metadata("1.88.3").too_new(), [""; 0]);
        assert_eq!(metadata("1.90").too_new(), ["slab 0.4.12 needs Rust 1.90; ours is 1.88"]);
    }

    #[test]
    fn package_in_dependency_tree_is_found_by_its_exact_name() {
        let tree = "efa v0.1.0 (/w/crates/efa)\nefa-sim-tools v0.1.0\nslab v0.4.12\n";
        assert!(depends_on(tree, "slab") && depends_on(tree, "efa"));
        assert!(!depends_on(tree, "efa-sim"));
    }

    #[test]
    fn manifest_without_workspace_lints_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let mut package = metadata("1.60").packages.remove(0);
        package.manifest_path = directory.path().join("Cargo.toml");
        fs::write(&package.manifest_path, "[package]\n\n[lints]\nworkspace = true\n").unwrap();
        assert_eq!(package.lints_of_its_own().unwrap(), None);
        fs::write(&package.manifest_path, "[package]\n").unwrap();
        let problem = package.lints_of_its_own().unwrap();
        assert_eq!(problem.as_deref(), Some("efa-proto: no `[lints] workspace = true`"));
    }
}

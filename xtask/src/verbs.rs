//! The step `verbs` of `cargo xtask test`: `efa-verbs` against the C headers and libraries of rdma-core, and our stack
//! on it: random runs, and instructions beside libfabric's. Its scenarios with libfabric are a part of the step
//! `provider`.
//!
//! Where this runs there is no EFA interface. Programs preload the software device instead:
//! our stack → efa-verbs → C functions → efa-softverbs.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::bench::vs_libfabric;
use crate::checked;
use crate::process;
use crate::setup::{self, Tool};
use crate::soak;
use crate::steps::OFF_BY_DEFAULT;
use crate::workspace::Workspace;

/// What the step needs.
pub(crate) const TOOLS: [Tool; 5] =
    [Tool::VerbsHeaders, Tool::CCompiler, Tool::LibfabricHeaders, Tool::FiInfo, Tool::Valgrind];

/// A comparison of the declarations of `efa-verbs` with rdma-sys. It is a workspace of its own, as
/// rdma-sys can't be built everywhere.
pub(crate) const RDMA_SYS: &str = "tests/rdma-sys/Cargo.toml";

/// What rdma-sys needs to be built.
const RDMA_SYS_TOOLS: [Tool; 4] =
    [Tool::VerbsHeaders, Tool::RdmaCmHeaders, Tool::PkgConfig, Tool::Libclang];

/// Debian's package of the libclang that rdma-sys needs, and that of the release's own one.
const LIBCLANG: [&str; 2] = ["libclang-14-dev", "libclang-dev"];

/// The software device as an EFA interface, for programs that get its environment.
pub(crate) struct SoftInterface {
    library: PathBuf,
    /// Removed at the end.
    directory: PathBuf,
}

/// Builds the library that is preloaded.
pub(crate) fn soft_library(workspace: &Workspace) -> Result<PathBuf> {
    let library = checked::build(workspace, &[])?.join("libefa_soft.so");
    ensure!(library.is_file(), "there is no {}", library.display());
    Ok(library)
}

impl SoftInterface {
    /// Builds the library, and creates a directory for what the programs share.
    pub(crate) fn new(workspace: &Workspace) -> Result<Self> {
        let library = soft_library(workspace)?;
        let directory = std::env::temp_dir().join(format!("efa-verbs-{}", std::process::id()));
        std::fs::create_dir(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Self { library, directory })
    }

    /// Variables that make a program find it.
    pub(crate) fn environment(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("LD_PRELOAD", self.library.clone()),
            ("EFA_SOFT_SYSFS", self.directory.clone()),
            ("EFA_SOFT_DIRECTORY", self.directory.join("hosts")),
        ]
    }

    /// The same for programs that cargo runs: the arguments before its command.
    fn runner(&self) -> [String; 2] {
        let variables =
            self.environment().map(|(name, value)| format!("{name}={}", value.display()));
        let runner: Vec<_> =
            std::iter::once("env").chain(variables.iter().map(String::as_str)).collect();
        ["--config".into(), format!("target.'cfg(unix)'.runner = {runner:?}")]
    }
}

impl Drop for SoftInterface {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Runs the step; `test` runs tests and counts them.
pub(crate) fn step(
    workspace: &Workspace,
    mut test: impl FnMut(&mut Command) -> Result<()>,
) -> Result<()> {
    // Says that rdma-core is installed, so that no test that needs it is skipped.
    let tests = ["test", "--package=efa-verbs", "--no-fail-fast", "--lib", "--tests"];
    test(workspace.cargo().args(tests).env("EFA_INTEROP", "1"))?;
    // Either build leaves a processor idle: crates of rdma-sys wait for one another, and a program is linked by one
    // thread. They have directories of their own.
    std::thread::scope(|scope| {
        let building = scope.spawn(move || checked::build(workspace, &[soak::ON_VERBS]));
        let compared = compare_with_rdma_sys(workspace, &mut test);
        let built = building.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        compared.and(built.map(drop))
    })?;
    let interface = SoftInterface::new(workspace)?;
    let tests =
        ["test", "--workspace", OFF_BY_DEFAULT, "--test=on_verbs", "--", "--test-threads=1"];
    test(workspace.cargo().args(interface.runner()).args(tests))?;
    drop(interface);
    soak::verbs_gate(workspace)?;
    vs_libfabric::gate(workspace)
}

/// Compares the declarations with rdma-sys where that can be built: Debian 12 has the libclang that it
/// needs, newer releases don't.
fn compare_with_rdma_sys(
    workspace: &Workspace,
    mut test: impl FnMut(&mut Command) -> Result<()>,
) -> Result<()> {
    if let Err(error) = setup::provide(workspace, RDMA_SYS_TOOLS) {
        // Without the release's own libclang, apt has no lists of packages.
        let [needed, any] = LIBCLANG.map(is_offered);
        if needed || !any {
            return Err(error);
        }
        say!("not compared with rdma-sys, only with the C headers: {error:#}");
        return Ok(());
    }
    let target = workspace.metadata()?.target_directory.join("rdma-sys");
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--locked", "--manifest-path", RDMA_SYS, "--target-dir"]);
    test(cargo.arg(target))
}

/// Whether apt can install a package.
fn is_offered(package: &str) -> bool {
    let mut policy = Command::new("apt-cache");
    policy.args(["policy", package]).env("LC_ALL", "C");
    process::output_of(&mut policy).is_ok_and(|policy| has_candidate(&policy))
}

fn has_candidate(policy: &str) -> bool {
    let mut candidates = policy.lines().filter_map(|line| line.trim().strip_prefix("Candidate: "));
    candidates.any(|version| version != "(none)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_that_is_unknown_or_only_named_by_others_has_no_candidate() {
        let policy =
            |candidate: &str| format!("name:\n  Installed: (none)\n  Candidate: {candidate}\n");
        assert!(has_candidate(&policy("1:14.0.6-12")));
        assert!(!has_candidate(&policy("(none)")));
        assert!(!has_candidate(""));
    }
}

//! The step `verbs` of `cargo xtask test`: the device of rdma-core, which needs C packages to build.
//!
//! There is no EFA interface where this runs; the tests preload the software device, so that the
//! way is our stack → efa-verbs → C interface → efa-softverbs.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::bench::vs_libfabric;
use crate::interop;
use crate::process;
use crate::setup::Tool;
use crate::soak;
use crate::workspace::Workspace;

/// What a build with rdma-core needs.
pub(crate) const BUILD_TOOLS: [Tool; 4] =
    [Tool::VerbsHeaders, Tool::RdmaCmHeaders, Tool::PkgConfig, Tool::Libclang];

/// What its tests, its matrix and its comparison with libfabric need.
pub(crate) const TOOLS: [Tool; 8] = [
    Tool::VerbsHeaders,
    Tool::RdmaCmHeaders,
    Tool::PkgConfig,
    Tool::Libclang,
    Tool::CCompiler,
    Tool::LibfabricHeaders,
    Tool::FiInfo,
    Tool::Valgrind,
];

/// The software device as an interface of rdma-core, for programs that are given its environment.
pub(crate) struct SoftInterface {
    library: PathBuf,
    /// Of its own, removed at the end.
    place: PathBuf,
}

impl SoftInterface {
    /// Builds the library, and makes a place for what the programs share.
    pub(crate) fn new(workspace: &Workspace) -> Result<Self> {
        let build = ["build", "--quiet", "--release", "--package=efa-softverbs", "--lib"];
        process::run(workspace.cargo().args(build))?;
        let library = workspace.metadata()?.target_directory.join("release/libefa_soft.so");
        ensure!(library.is_file(), "there is no {}", library.display());
        let place = std::env::temp_dir().join(format!("efa-verbs-{}", std::process::id()));
        std::fs::create_dir(&place).with_context(|| format!("cannot make {}", place.display()))?;
        Ok(Self { library, place })
    }

    /// Variables that make a program find it.
    pub(crate) fn environment(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("LD_PRELOAD", self.library.clone()),
            ("EFA_SOFT_SYSFS", self.place.clone()),
            ("EFA_SOFT_DIRECTORY", self.place.join("hosts")),
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
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

/// Runs the step; `test` runs tests and counts them.
pub(crate) fn step(
    workspace: &Workspace,
    mut test: impl FnMut(&mut Command) -> Result<()>,
) -> Result<()> {
    // What depends on the feature isn't seen by the step `clippy`.
    process::run(workspace.cargo().args([
        "clippy",
        "--package=efa",
        "--package=efa-cli",
        "--features=efa/verbs,efa-cli/verbs",
        "--all-targets",
        "--",
        "--deny=warnings",
    ]))?;
    test(workspace.cargo().args(["test", "--package=efa-verbs", "--no-fail-fast"]))?;
    // The object model, told apart at run time from what it is without the feature.
    let model = ["--package=efa", "--features=efa/verbs", "--lib", "--tests"];
    test(workspace.cargo().arg("test").args(model))?;
    let interface = SoftInterface::new(workspace)?;
    let stories = ["--package=efa", "--features=efa/verbs", "--test=on_verbs"];
    let mut command = workspace.cargo();
    test(
        command.args(interface.runner()).arg("test").args(stories).args(["--", "--test-threads=1"]),
    )?;
    drop(interface);
    let tool = ["--package=efa-cli", "--features=efa-cli/verbs", "--test=verbs"];
    test(workspace.cargo().arg("test").args(tool))?;
    interop::verbs_gate(workspace)?;
    soak::verbs_gate(workspace)?;
    vs_libfabric::gate(workspace)
}

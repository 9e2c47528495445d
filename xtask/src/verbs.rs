//! The step `verbs` of `cargo xtask test`: the device of rdma-core, which needs C packages to build.
//!
//! There is no EFA interface where this runs; the tests preload the software device, so that the
//! way is our stack → efa-verbs → C interface → efa-softverbs.

use std::process::Command;

use anyhow::Result;

use crate::interop;
use crate::process;
use crate::setup::Tool;
use crate::soak;
use crate::workspace::Workspace;

/// What a build with rdma-core needs.
pub(crate) const BUILD_TOOLS: [Tool; 4] =
    [Tool::VerbsHeaders, Tool::RdmaCmHeaders, Tool::PkgConfig, Tool::Libclang];

/// What its tests and its matrix with libfabric need.
pub(crate) const TOOLS: [Tool; 7] = [
    Tool::VerbsHeaders,
    Tool::RdmaCmHeaders,
    Tool::PkgConfig,
    Tool::Libclang,
    Tool::CCompiler,
    Tool::LibfabricHeaders,
    Tool::FiInfo,
];

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
    let tool = ["--package=efa-cli", "--features=efa-cli/verbs", "--test=verbs"];
    test(workspace.cargo().arg("test").args(tool))?;
    interop::verbs_gate(workspace)?;
    soak::verbs_gate(workspace)
}

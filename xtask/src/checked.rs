//! Programs and libraries as several steps of `cargo xtask test` run them: by the profile `checked`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::process;
use crate::profile::Profile;
use crate::workspace::Workspace;

/// The packages that have them. All are selected in each build, since features depend on the selection: so no step
/// compiles again what another has compiled.
const PACKAGES: [&str; 5] =
    ["efa-softverbs", "efa-provider", "efa-cli", "efa-interop-peer", "efa-soak"];

/// Builds these programs, the library of the software device and the provider for libfabric; returns their directory.
/// Programs are linked at the same time if they are built together; each keeps one processor busy.
pub(crate) fn build(workspace: &Workspace, programs: &[&str]) -> Result<PathBuf> {
    let mut cargo = build_of_libraries(workspace);
    process::run(cargo.args(programs.iter().map(|program| format!("--bin={program}"))))?;
    Profile::Checked.directory(workspace)
}

/// The command that builds all of them.
pub(crate) fn build_of_all(workspace: &Workspace) -> Command {
    let mut cargo = build_of_libraries(workspace);
    cargo.arg("--bins");
    cargo
}

fn build_of_libraries(workspace: &Workspace) -> Command {
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--quiet", Profile::Checked.argument(), "--lib"]);
    cargo.args(PACKAGES.map(|package| format!("--package={package}")));
    cargo
}

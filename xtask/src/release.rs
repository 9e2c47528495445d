//! Programs and the software device in release form, for several steps of `cargo xtask test`.

use std::path::PathBuf;

use anyhow::Result;

use crate::process;
use crate::workspace::Workspace;

/// The packages that have them. All are selected in each build, since features depend on the selection: so no step
/// compiles again what another has compiled.
const PACKAGES: [&str; 5] =
    ["efa-softverbs", "efa-cli", "efa-interop-peer", "efa-soak", "efa-bench-vs-libfabric"];

/// Builds these programs, and the library of the software device; returns their directory. Programs are linked at the
/// same time if they are built together; each keeps one processor busy.
pub(crate) fn build(workspace: &Workspace, programs: &[&str]) -> Result<PathBuf> {
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--quiet", "--release", "--lib"]);
    cargo.args(PACKAGES.map(|package| format!("--package={package}")));
    process::run(cargo.args(programs.iter().map(|program| format!("--bin={program}"))))?;
    Ok(workspace.metadata()?.target_directory.join("release"))
}

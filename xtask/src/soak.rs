//! `cargo xtask soak`: the random stories of the engine, for as long as one likes.

use std::ffi::OsString;

use anyhow::Result;

use crate::process;
use crate::workspace::Workspace;

/// Arguments of `cargo xtask soak`: those of the program `efa-soak`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

/// Minutes of the step of `cargo xtask test`.
const GATE: &str = "2";

/// `cargo xtask soak`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args(["run", "--quiet", "--release", "--package=efa-soak", "--"]);
    process::run(cargo.args(&args.arguments))
}

/// A step of `cargo xtask test`: other stories each day would find more, but a change must not
/// fail by what it didn't do.
pub(crate) fn gate(workspace: &Workspace) -> Result<()> {
    run(workspace, &Args { arguments: vec!["--minutes".into(), GATE.into()] })
}

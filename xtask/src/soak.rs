//! `cargo xtask soak`: random operations of engines for any time; with `--device verbs`, of endpoints on
//! `efa-verbs`; with `--hostile`, of attackers against an endpoint with honest peers.

use std::ffi::OsString;

use anyhow::Result;
use clap::ValueEnum;

use crate::setup::{self, Tool};
use crate::verbs::{self, SoftInterface};
use crate::workspace::Workspace;
use crate::{interop, process};

/// Arguments of `cargo xtask soak`: those of the program `efa-soak`.
#[derive(Debug, Default, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Must come first: run two endpoints on `efa-verbs`, in real time
    #[arg(long, value_name = "DEVICE")]
    device: Option<Device>,
    /// Must come first: run attackers on each link, and check that honest peers go on
    #[arg(long, conflicts_with = "device")]
    hostile: bool,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

/// What a victim on libfabric needs.
pub(crate) const LIBFABRIC: [Tool; 3] = [Tool::CCompiler, Tool::LibfabricHeaders, Tool::FiInfo];

/// Another device for the endpoints.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Device {
    /// `efa-verbs`, with the software device preloaded.
    Verbs,
}

/// Minutes of the step of `cargo xtask test`.
const GATE: &str = "2";

/// Settings of the preloaded device; each runs for the whole time.
const DEVICES: [&[(&str, &str)]; 4] = [
    &[("EFA_SOFT_REORDER", "1")],
    &[("EFA_SOFT_REORDER", "2"), ("EFA_SOFT_RNR", "0.02")],
    &[("EFA_SOFT_RDMA", "none"), ("EFA_SOFT_REORDER", "3")],
    &[("EFA_SOFT_UNSOLICITED", "1"), ("EFA_SOFT_RNR", "0.02")],
];

/// `cargo xtask soak`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if let Some(Device::Verbs) = args.device {
        return run_on_verbs(workspace, &args.arguments);
    }
    let program = if args.hostile { "--bin=efa-soak-hostile" } else { "--bin=efa-soak" };
    let mut cargo = workspace.cargo();
    cargo.args(["run", "--quiet", "--release", "--package=efa-soak", program, "--"]);
    // A victim on libfabric too, where that is installed.
    if args.hostile && setup::are_installed(&LIBFABRIC) {
        cargo.arg("--libfabric-peer").arg(interop::c_peer(workspace)?);
        cargo.arg("--soft-device").arg(verbs::soft_library(workspace)?);
    }
    process::run(cargo.args(&args.arguments))
}

fn run_on_verbs(workspace: &Workspace, arguments: &[OsString]) -> Result<()> {
    let interface = SoftInterface::new(workspace)?;
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--quiet", "--release", "--package=efa-soak"]);
    process::run(cargo.arg("--bin=efa-soak-verbs"))?;
    let program = workspace.metadata()?.target_directory.join("release/efa-soak-verbs");
    DEVICES.iter().try_for_each(|settings| {
        let mut program = std::process::Command::new(&program);
        program.args(arguments).envs(settings.iter().copied());
        process::run(program.envs(interface.environment()))
    })
}

/// The step of `cargo xtask test`, always with the same seeds: a change must not fail by what it didn't do.
pub(crate) fn gate(workspace: &Workspace) -> Result<()> {
    run(workspace, &Args { arguments: vec!["--minutes".into(), GATE.into()], ..Args::default() })?;
    run(workspace, &Args { hostile: true, ..Args::default() })
}

/// A part of the step `verbs`: ten seconds on each kind of device.
pub(crate) fn verbs_gate(workspace: &Workspace) -> Result<()> {
    run_on_verbs(workspace, &["--minutes".into(), "0.17".into()])
}

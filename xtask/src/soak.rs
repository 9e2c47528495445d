//! `cargo xtask soak`: random operations of engines for any time; with `--device verbs`, of endpoints on
//! `efa-verbs`; with `--hostile`, of attackers against an endpoint with honest peers; with `--wakeups`, of threads
//! that sleep until a message comes; with `--streams`, of processes that are stopped and killed.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;

use crate::profile::Profile;
use crate::setup::{self, Tool};
use crate::verbs::{self, SoftInterface};
use crate::workspace::Workspace;
use crate::{bench, checked, interop, process, steps};

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
    /// Must come first: send messages between threads that sleep, on each link, and count wake-ups that are lost
    #[arg(long, conflicts_with_all = ["device", "hostile"])]
    wakeups: bool,
    /// Must come first: run streams of messages between processes that are stopped and killed
    #[arg(long, conflicts_with_all = ["device", "hostile", "wakeups"])]
    streams: bool,
    /// With --wakeups: rounds of each test [default: 1000000]
    #[arg(long, value_name = "N", requires = "wakeups")]
    rounds: Option<u64>,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

/// The programs: random operations of engines, the same on `efa-verbs`, attackers, streams.
const RANDOM: &str = "efa-soak";
pub(crate) const ON_VERBS: &str = "efa-soak-verbs";
const HOSTILE: &str = "efa-soak-hostile";
const STREAMS: &str = "efa-soak-streams";

/// What a victim on libfabric needs.
pub(crate) const LIBFABRIC: [Tool; 3] = [Tool::CCompiler, Tool::LibfabricHeaders, Tool::FiInfo];

/// Another device for the endpoints.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Device {
    /// `efa-verbs`, with the software device preloaded.
    Verbs,
}

/// Minutes of the step of `cargo xtask test`.
const GATE: &str = "1";

/// Rounds of sleeping threads in the step of `cargo xtask test`.
const WAKEUPS: u64 = 10_000;

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
    if args.wakeups {
        return run_wakeups(workspace, args.rounds.unwrap_or(1_000_000));
    }
    let name = match (args.hostile, args.streams) {
        (true, _) => HOSTILE,
        (_, true) => STREAMS,
        _ => RANDOM,
    };
    let built = checked::build(workspace, &[name])?;
    let mut program = Command::new(built.join(name));
    program.current_dir(workspace.root());
    // A victim on libfabric too, where that is installed.
    if args.hostile && setup::are_installed(&LIBFABRIC) {
        program.arg("--libfabric-peer").arg(interop::c_peer(workspace)?);
        program.arg("--soft-device").arg(verbs::soft_library(workspace)?);
    }
    process::run(program.args(&args.arguments))
}

/// Runs the tests of sleeping threads with more rounds than `cargo test` does: two readers and a peer on each link,
/// with both kinds of progress, and a peer that is stopped now and then.
fn run_wakeups(workspace: &Workspace, rounds: u64) -> Result<()> {
    let mut cargo = wakeups(workspace)?;
    cargo.arg("--");
    // One after the other, so that a thread sleeps because there is nothing, and not for lack of a processor.
    cargo.args(["--test-threads=1", "always_woken", "stopped::"]);
    steps::run_long_tests(cargo.env("EFA_ROUNDS", rounds.to_string()))?;
    say!("soak: no wake-up was lost in {rounds} rounds of each test");
    Ok(())
}

fn wakeups(workspace: &Workspace) -> Result<Command> {
    let mut cargo = workspace.cargo();
    // Optimized, and compiled as the benches are, for which the step `bench` compiles the same crates.
    cargo.args(["test", "--quiet", Profile::Bench.argument()]).args(bench::selection(workspace)?);
    cargo.arg("--test=waiting");
    Ok(cargo)
}

/// The command that builds the tests of sleeping threads.
pub(crate) fn build_of_wakeups(workspace: &Workspace) -> Result<Command> {
    let mut cargo = wakeups(workspace)?;
    cargo.arg("--no-run");
    Ok(cargo)
}

fn run_on_verbs(workspace: &Workspace, arguments: &[OsString]) -> Result<()> {
    let interface = SoftInterface::new(workspace)?;
    let program = checked::build(workspace, &[ON_VERBS])?.join(ON_VERBS);
    DEVICES.iter().try_for_each(|settings| {
        let mut program = Command::new(&program);
        program.args(arguments).envs(settings.iter().copied());
        process::run(program.envs(interface.environment()))
    })
}

/// The step of `cargo xtask test`, always with the same seeds: a change must not fail by what it didn't do.
pub(crate) fn gate(workspace: &Workspace) -> Result<()> {
    checked::build(workspace, &[RANDOM, HOSTILE, STREAMS])?;
    run(workspace, &Args { arguments: vec!["--minutes".into(), GATE.into()], ..Args::default() })?;
    run(workspace, &Args { hostile: true, ..Args::default() })?;
    let few = ["--minutes", "0.2"].map(OsString::from).to_vec();
    run(workspace, &Args { streams: true, arguments: few, ..Args::default() })?;
    run_wakeups(workspace, WAKEUPS)
}

/// A part of the step `verbs`: ten seconds on each kind of device.
pub(crate) fn verbs_gate(workspace: &Workspace) -> Result<()> {
    run_on_verbs(workspace, &["--minutes".into(), "0.17".into()])
}

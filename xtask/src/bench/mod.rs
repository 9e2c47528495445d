//! Benchmarks. Each crate that has some declares the same two:
//!
//! - `instructions` (gungraun under valgrind): counts instructions, which come out the
//!   same on a busy machine, and holds hard limits inside, so that a breach fails the run;
//! - `wall` (criterion): wall clock, to look at, never a gate.
//!
//! [`soft`] compares the software device with libfabric's own providers, [`matching`] the cost of
//! matching with that of MPI libraries, [`vs_libfabric`] the instructions of a round with those of
//! libfabric's EFA provider, [`provider`] our provider for libfabric with libfabric's own, [`asleep`] the time of a
//! round between processes that sleep, [`netio`] publish/subscribe with that of others, [`peers`] messages between two
//! processes with other libraries. [`scale`] measures how memory and instructions grow.

mod added;
mod asleep;
pub(crate) mod counting;
mod matching;
mod netio;
pub(crate) mod peers;
pub(crate) mod provider;
mod scale;
mod soft;
pub(crate) mod vs_libfabric;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::setup::{self, Tool};
use crate::workspace::{Metadata, Workspace};

/// The programs that NetIO is compared with, a workspace of its own.
pub(crate) const NETIO_PEERS: &str = "tests/bench/netio/peers/Cargo.toml";
/// Name of the bench that counts instructions.
pub(crate) const INSTRUCTIONS: &str = "instructions";
/// Name of the bench that measures wall clock.
const WALL: &str = "wall";

/// Arguments of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Crates to measure, with or without `efa-` in front (efa-match, proto, rdm, …), or `all`
    #[arg(default_value = "all")]
    crates: Vec<String>,
    /// Measure wall clock with criterion instead of counting instructions
    #[arg(long, conflicts_with = "gate")]
    wall: bool,
    /// Judge by the limits in the benches alone and forget earlier runs, as `cargo xtask test` does
    #[arg(long)]
    gate: bool,
    /// Arguments for the bench programs themselves
    #[arg(last = true, value_name = "ARGS")]
    passed_on: Vec<String>,
}

#[derive(Debug, clap::Subcommand)]
#[command(
    subcommand_value_name = "WHAT",
    subcommand_help_heading = "Instead of the benches of crates"
)]
enum What {
    /// Compare libfabric on the software EFA device with libfabric's shm and tcp
    Soft(soft::Args),
    /// Compare the cost of a match at any depth with UCX, Open MPI, MPICH and libfabric
    Match(matching::Args),
    /// Compare the instructions of a ping-pong with those of libfabric's EFA provider
    VsLibfabric(vs_libfabric::Args),
    /// Compare our provider for libfabric with libfabric's own: instructions and times
    Provider(provider::Args),
    /// Compare a ping-pong of sleeping processes with libfabric's tcp provider
    Asleep(asleep::Args),
    /// Compare publish/subscribe of NetIO with ZeroMQ, zenoh, iceoryx2 and NNG
    Netio(netio::Args),
    /// Compare messages between two processes with libfabric's shm and tcp, UCX and Open MPI, and with what bounds them
    Peers(peers::Args),
    /// Memory and instructions with many endpoints, peers, addresses and processes
    Scale(scale::Args),
}

/// What instruction counts are judged by.
#[derive(Clone, Copy)]
enum Judge {
    /// The limits in the benches; what changed since the last run is shown.
    LimitsAndLastRun,
    /// The limits in the benches and nothing else, so that each run decides the same.
    LimitsAlone,
}

/// `cargo xtask bench`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    match &args.what {
        Some(What::Soft(args)) => return soft::run(workspace, args),
        Some(What::Match(args)) => return matching::run(workspace, args),
        Some(What::VsLibfabric(args)) => return vs_libfabric::run(workspace, args),
        Some(What::Provider(args)) => return provider::run(workspace, args),
        Some(What::Asleep(args)) => return asleep::run(workspace, args),
        Some(What::Netio(args)) => return netio::run(workspace, args),
        Some(What::Peers(args)) => return peers::run(workspace, args),
        Some(What::Scale(args)) => return scale::run(workspace, args),
        None => {}
    }
    let metadata = workspace.metadata()?;
    let bench = if args.wall { WALL } else { INSTRUCTIONS };
    let packages = select(&metadata, bench, &args.crates)?;
    if args.wall {
        return measure_wall_clock(workspace, &packages, &args.passed_on);
    }
    setup::provide(workspace, [Tool::Valgrind, Tool::GungraunRunner])?;
    let judge = if args.gate { Judge::LimitsAlone } else { Judge::LimitsAndLastRun };
    count_instructions(workspace, &metadata, &packages, judge, &args.passed_on)
}

/// The gate of `cargo xtask test`: the instruction benches of all crates, against their limits, and how counts grow.
pub(crate) fn gate(workspace: &Workspace) -> Result<()> {
    let metadata = workspace.metadata()?;
    let packages = select(&metadata, INSTRUCTIONS, &["all".to_owned()])?;
    count_instructions(workspace, &metadata, &packages, Judge::LimitsAlone, &[])?;
    scale::gate(workspace)
}

/// The commands that build what [`gate`] runs.
pub(crate) fn builds_of_gate(workspace: &Workspace) -> Result<[Command; 2]> {
    let mut benches = instructions(workspace)?;
    benches.args(selection(workspace)?).arg("--no-run");
    Ok([benches, scale::build_of_program(workspace)])
}

/// The command that builds and runs the instruction benches of packages to be named.
fn instructions(workspace: &Workspace) -> Result<Command> {
    let mut cargo = workspace.cargo();
    // Benches take in the path of the runner when they are compiled.
    cargo.env("GUNGRAUN_RUNNER", setup::gungraun_runner(workspace)?);
    cargo.args(["bench", "--no-fail-fast", "--bench", INSTRUCTIONS]);
    Ok(cargo)
}

fn count_instructions(
    workspace: &Workspace,
    metadata: &Metadata,
    packages: &[&str],
    judge: Judge,
    passed_on: &[String],
) -> Result<()> {
    let mut cargo = instructions(workspace)?;
    // A bench runs on one processor, and its count doesn't depend on what others do.
    cargo.env("GUNGRAUN_PARALLEL", "auto");
    let results = match judge {
        Judge::LimitsAndLastRun => metadata.target_directory.join("gungraun"),
        Judge::LimitsAlone => {
            let results = metadata.target_directory.join("gungraun-gate");
            empty(&results)?;
            // One line a bench, without cache figures.
            cargo.env("GUNGRAUN_CALLGRIND_METRICS", "ir");
            results
        }
    };
    cargo.env("GUNGRAUN_HOME", &results);
    process::run(cargo.args(named(packages)).arg("--").args(passed_on))
        .context("an instruction bench is over its limit, or could not run")?;
    // Whoever chooses benches may leave out some that the difference needs.
    match packages.contains(&added::PACKAGE) && passed_on.is_empty() {
        true => added::hold(&results),
        false => Ok(()),
    }
}

/// The packages of the gate, as arguments for cargo.
pub(crate) fn selection(workspace: &Workspace) -> Result<Vec<String>> {
    let metadata = workspace.metadata()?;
    Ok(named(&select(&metadata, INSTRUCTIONS, &["all".to_owned()])?).collect())
}

fn measure_wall_clock(
    workspace: &Workspace,
    packages: &[&str],
    passed_on: &[String],
) -> Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args(["bench", "--no-fail-fast", "--bench", WALL]).args(named(packages));
    process::run(cargo.arg("--").args(passed_on))
}

/// The packages as arguments for cargo.
fn named(packages: &[&str]) -> impl Iterator<Item = String> {
    packages.iter().map(|package| format!("--package={package}"))
}

/// Forgets the results of earlier runs.
fn empty(results: &Path) -> Result<()> {
    match std::fs::remove_dir_all(results) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot empty {}", results.display()))
        }
        _ => Ok(()),
    }
}

/// The packages that the names on the command line stand for.
fn select<'a>(metadata: &'a Metadata, bench: &str, names: &[String]) -> Result<Vec<&'a str>> {
    let available: Vec<&str> =
        metadata.packages_with_bench(bench).into_iter().map(|package| &*package.name).collect();
    if available.is_empty() {
        bail!("no crate has a bench `{bench}`");
    }
    let mut selected = Vec::new();
    for name in names {
        if name == "all" {
            return Ok(available);
        }
        let Some(package) = available
            .iter()
            .copied()
            .find(|package| package == name || package.strip_prefix("efa-") == Some(name))
        else {
            bail!("no crate `{name}` has a bench `{bench}`; these have: {}", available.join(", "));
        };
        if !selected.contains(&package) {
            selected.push(package);
        }
    }
    Ok(selected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Metadata {
        let package = |name, bench| {
            format!(
                r#"{{"name": "{name}", "targets": [{{"name": "{bench}", "kind": ["bench"]}}]}}"#
            )
        };
        let packages = [
            package("efa-proto", INSTRUCTIONS),
            package("efa-match", INSTRUCTIONS),
            package("efa", WALL),
        ];
        let json = format!(r#"{{"target_directory": "/t", "packages": [{}]}}"#, packages.join(","));
        serde_json::from_str(&json).unwrap()
    }

    fn selected(bench: &str, names: &[&str]) -> Result<Vec<String>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        select(&metadata(), bench, &names)
            .map(|packages| packages.into_iter().map(str::to_owned).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn crate_names_work_with_and_without_prefix() {
        assert_eq!(selected(INSTRUCTIONS, &["proto", "efa-proto"]).unwrap(), ["efa-proto"]);
        assert_eq!(selected(INSTRUCTIONS, &["all"]).unwrap(), ["efa-proto", "efa-match"]);
        assert_eq!(selected(WALL, &["efa"]).unwrap(), ["efa"]);
    }

    #[test]
    fn crate_without_bench_is_refused_and_the_others_listed() {
        assert_eq!(
            selected(INSTRUCTIONS, &["rdm"]).unwrap_err(),
            "no crate `rdm` has a bench `instructions`; these have: efa-proto, efa-match"
        );
    }
}

//! `cargo xtask bench asleep`: the time of a round of a ping-pong of 8 bytes between two processes that sleep until
//! a message comes, ours on the links shm and tcp, and libfabric's tcp provider with blocking reads.
//!
//! The programs run in turn, several times, and the median counts: what disturbs one disturbs the others.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};

use crate::process::{self, Running};
use crate::profile::Profile;
use crate::setup::{self, Tool};
use crate::workspace::Workspace;

/// What is compared with.
const LIBFABRIC: &str = "tcp;ofi_rxm";

/// Arguments of `cargo xtask bench asleep`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rounds of each run
    #[arg(long, value_name = "N", default_value = "50000", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Runs of each program
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Seconds that a run may take
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = process::seconds())]
    deadline: u64,
}

/// A program, and what its runs came to.
struct Contestant {
    name: String,
    program: PathBuf,
    arguments: Vec<&'static str>,
    runs: Vec<[f64; 3]>,
}

/// `cargo xtask bench asleep`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    setup::provide(workspace, [Tool::CCompiler, Tool::LibfabricHeaders])?;
    let mut contestants = build(workspace)?;
    let rounds = args.rounds.to_string();
    for _ in 0..args.runs {
        for contestant in &mut contestants {
            let mut command = Command::new(&contestant.program);
            command.args(&contestant.arguments).arg(&rounds).stdin(Stdio::null());
            let until = Instant::now() + Duration::from_secs(args.deadline);
            let said = Running::start(&mut command)?.finish(until);
            let said = said.with_context(|| contestant.name.clone())?;
            let numbers: Vec<f64> =
                said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let numbers: [f64; 3] = numbers.try_into().ok().context("no figures")?;
            print_error!("{}: {:.1} µs", contestant.name, numbers[0] / 1e3);
            contestant.runs.push(numbers);
        }
    }
    say!("{}", table(&mut contestants));
    Ok(())
}

fn build(workspace: &Workspace) -> Result<Vec<Contestant>> {
    let ours = Profile::Release.program(workspace, "efa-bench-asleep")?;
    let target = workspace.metadata()?.target_directory;
    let libfabric = target.join("asleep-libfabric");
    let source = workspace.root().join("tests/bench/asleep/libfabric.c");
    process::compile("cc", [source], &["-lfabric"], &libfabric)?;
    let of = |name: &str, program: &PathBuf, arguments: &[&'static str]| Contestant {
        name: name.to_owned(),
        program: program.clone(),
        arguments: arguments.to_vec(),
        runs: Vec::new(),
    };
    Ok(vec![
        of("libfabric tcp, fi_cq_sread", &libfabric, &[LIBFABRIC]),
        of("efa shm, CompletionQueue::wait", &ours, &["shm", "blocking"]),
        of("efa tcp, CompletionQueue::wait", &ours, &["tcp", "blocking"]),
        of("efa shm, try_wait and poll", &ours, &["shm", "asleep"]),
        of("efa tcp, try_wait and poll", &ours, &["tcp", "asleep"]),
    ])
}

fn table(contestants: &mut [Contestant]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY);
    table.set_header(["8 B, both sides", "round, median", "from", "to", "sleeps a round"]);
    for contestant in contestants {
        let runs = &mut contestant.runs;
        runs.sort_by(|one, other| one[0].total_cmp(&other[0]));
        let (Some(least), Some(most)) = (runs.first(), runs.last()) else { continue };
        let [median, mine, theirs] = runs[runs.len() / 2];
        table.add_row([
            contestant.name.clone(),
            format!("{:.1} µs", median / 1e3),
            format!("{:.1}", least[0] / 1e3),
            format!("{:.1}", most[0] / 1e3),
            format!("{mine:.2} + {theirs:.2}"),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

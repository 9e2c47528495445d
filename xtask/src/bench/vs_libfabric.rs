//! `cargo xtask bench vs-libfabric`: instructions that a round of a ping-pong costs the software of
//! one side, ours and libfabric's EFA provider, on the same software device.
//!
//! ```text
//!   server, native ◄═══ libefa_soft.so ═══► client under callgrind
//!                                             │ by object: our program, or libfabric.so,
//!                                             │ with what it calls in the C library
//!                                             ▼
//!   Y = start + round · N + poll · (C − 3 N)       for several N, by least squares
//! ```
//!
//! N is the number of rounds and C that of calls into the library: three a round (post a receive, inject, read)
//! without empty reads. The number of empty reads varies from run to run; the fit removes it. The client is the slow
//! side, so its replies are already there. The device is a separate object and not counted for either. Our program's
//! loop is in the same object as the library and counted; that of the C program is not.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};

use super::counting::{self, Fit, Place, Run, cost};
use super::soft::two_processors;
use crate::process::{self, Running};
use crate::setup::{self, Tool};
use crate::verbs;
use crate::workspace::Workspace;

/// Goal: most instructions of ours for one of libfabric's.
const GOAL: f64 = 0.4;

/// Arguments of `cargo xtask bench vs-libfabric`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Needs two processors. Instruction counts come out the same on a busy machine; only the deadline \
doesn't.")]
pub(crate) struct Args {
    /// Rounds of each run, at least three different numbers
    #[arg(
        long,
        value_name = "N,N,…",
        value_delimiter = ',',
        num_args = 1,
        default_value = "4000,8000,16000,24000,32000,40000"
    )]
    rounds: Vec<u32>,
    /// Seconds that a run may take
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = process::seconds())]
    deadline: u64,
    /// Fail unless ours costs at most 0.4 of libfabric's
    #[arg(long)]
    gate: bool,
}

/// The client on `efa-verbs`.
pub(super) const OURS: &str = "efa-bench-vs-libfabric";

/// Whose instructions are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contestant {
    Ours,
    Libfabric,
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "efa on efa-verbs",
            Self::Libfabric => "libfabric's EFA provider",
        })
    }
}

/// `cargo xtask bench vs-libfabric`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let different: BTreeSet<u32> = args.rounds.iter().copied().collect();
    ensure!(
        different.len() >= 3,
        "--rounds must have three different numbers at least, not {}",
        different.len()
    );
    setup::provide(workspace, [Tool::Valgrind, Tool::CCompiler, Tool::LibfabricHeaders])?;
    let range = Range::build(workspace, args)?;
    let mut fits = Vec::new();
    for contestant in [Contestant::Libfabric, Contestant::Ours] {
        let mut runs = Vec::new();
        for rounds in &args.rounds {
            let run = range.measure(contestant, *rounds)?;
            print_error!(
                "{contestant}: {rounds} rounds, {} calls, {} instructions",
                run.calls,
                run.instructions
            );
            runs.push(run);
        }
        fits.push((contestant, Fit::of(&runs).context("the runs don't differ enough")?));
    }
    say!("{}", table(&fits));
    let [(_, libfabric), (_, ours)] = fits.as_slice() else { return Ok(()) };
    let ratio = ours.round / libfabric.round;
    say!(
        "an 8 B tagged round costs {:.0} instructions here and {:.0} in {}: {ratio:.2} of it; the \
         goal is {GOAL}",
        ours.round,
        libfabric.round,
        version()?,
    );
    ensure!(!args.gate || ratio <= GOAL, "{ratio:.2} is over the goal of {GOAL}");
    Ok(())
}

/// A part of the step `verbs`: the goal holds.
pub(crate) fn gate(workspace: &Workspace) -> Result<()> {
    run(workspace, &Args { rounds: vec![4000, 14_000, 24_000, 34_000], deadline: 120, gate: true })
}

/// What `fi_info` calls libfabric, or just that.
fn version() -> Result<String> {
    let package = ["-W", "-f=libfabric ${Version}", "libfabric1"];
    let said = Command::new("dpkg-query").args(package).stderr(Stdio::null()).output();
    Ok(match said {
        Ok(said) if said.status.success() => String::from_utf8(said.stdout)?,
        _ => "libfabric".into(),
    })
}

fn table(fits: &[(Contestant, Fit)]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY);
    table.set_header(["client", "a round", "a read in vain", "the start", "fit off by"]);
    for (contestant, fit) in fits {
        table.add_row([
            contestant.to_string(),
            format!("{:.0}", fit.round),
            fit.poll.map_or("-".into(), |poll| format!("{poll:.0}")),
            format!("{:.0}", fit.start),
            format!("{:.2} %", fit.off * 100.0),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

// ---- running ------------------------------------------------------------------------------------

/// Where and how programs run.
struct Range {
    library: PathBuf,
    ours: PathBuf,
    libfabric: PathBuf,
    /// For addresses and counts.
    scratch: PathBuf,
    processors: [String; 2],
    deadline: Duration,
}

impl Range {
    fn build(workspace: &Workspace, args: &Args) -> Result<Self> {
        let processors = two_processors()?;
        let ours = counting::build(workspace)?.join(OURS);
        let target = workspace.metadata()?.target_directory;
        let scratch = target.join("vs-libfabric");
        std::fs::create_dir_all(&scratch)
            .with_context(|| format!("cannot make {}", scratch.display()))?;
        let libfabric = scratch.join("libfabric");
        let source = workspace.root().join("tests/bench/vs-libfabric/libfabric.c");
        process::compile("cc", [source], &["-lfabric"], &libfabric)?;
        Ok(Self {
            library: verbs::soft_library(workspace)?,
            ours,
            libfabric,
            scratch,
            processors,
            deadline: Duration::from_secs(args.deadline),
        })
    }

    fn program(&self, contestant: Contestant) -> &Path {
        match contestant {
            Contestant::Ours => &self.ours,
            Contestant::Libfabric => &self.libfabric,
        }
    }

    fn measure(&self, contestant: Contestant, rounds: u32) -> Result<Run> {
        let place = Place::make(&self.scratch)?;
        let counts = place.0.join("callgrind.out");
        let program = self.program(contestant);
        let side = |processor: &str, role: &str, under: &[&str]| {
            let mut command = Command::new("taskset");
            command.args(["--cpu-list", processor]).args(under).arg(program);
            command.arg(role).arg(&place.0).arg(rounds.to_string()).stdin(Stdio::null());
            command.env("LD_PRELOAD", &self.library).env("EFA_SOFT_NAME", "vs-libfabric");
            command.env("EFA_SOFT_DIRECTORY", place.0.join("hosts"));
            // What the loader does at a first call is no cost of a round.
            command.env("LD_BIND_NOW", "1").env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
            command
        };
        let until = Instant::now() + self.deadline;
        let failed = |role| format!("{contestant}, {rounds} rounds: the {role}");
        let mut server = Running::start(&mut side(&self.processors[0], "server", &[]))?;
        let file = format!("--callgrind-out-file={}", counts.display());
        let valgrind = ["valgrind", "--quiet", "--tool=callgrind", &file];
        let mut client = Running::start(&mut side(&self.processors[1], "client", &valgrind))?;
        let said = client.finish(until).with_context(|| failed("client"))?;
        server.finish(until).with_context(|| failed("server"))?;
        let calls = said.trim().strip_prefix("calls ").and_then(|calls| calls.parse().ok());
        let text = std::fs::read_to_string(&counts)?;
        let counted = match contestant {
            Contestant::Ours => cost(&text, |object| Path::new(object) == self.ours),
            Contestant::Libfabric => cost(&text, |object| object.contains("/libfabric.so")),
        };
        ensure!(counted > 0, "{contestant}: callgrind saw nothing of it");
        Ok(Run {
            rounds,
            calls: calls.with_context(|| format!("the client said `{}`", said.trim()))?,
            instructions: counted,
        })
    }
}

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

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};

use super::soft::two_processors;
use crate::process::{self, Running};
use crate::setup::{self, Tool};
use crate::workspace::Workspace;

/// Goal: most instructions of ours for one of libfabric's.
const GOAL: f64 = 0.5;
/// Calls that a round makes.
const CALLS: f64 = 3.0;

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
        default_value = "2000,3000,6000,12000,16000,20000"
    )]
    rounds: Vec<u32>,
    /// Seconds that a run may take
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = process::seconds())]
    deadline: u64,
    /// Fail unless ours costs at most half of libfabric's
    #[arg(long)]
    gate: bool,
}

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
    run(workspace, &Args { rounds: vec![1000, 3000, 6000], deadline: 120, gate: true })
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

/// What a run of the client came to.
#[derive(Clone, Copy, Debug)]
struct Run {
    rounds: u32,
    calls: u64,
    instructions: u64,
}

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
        let there = process::find_in_path("taskset").is_some();
        ensure!(there, "there is no taskset on PATH; Debian has it in util-linux");
        let mut cargo = workspace.cargo();
        cargo.args(["build", "--quiet", "--release", "--package=efa-softverbs"]);
        cargo.arg("--package=efa-bench-vs-libfabric");
        process::run(&mut cargo)?;
        let target = workspace.metadata()?.target_directory;
        let scratch = target.join("vs-libfabric");
        std::fs::create_dir_all(&scratch)
            .with_context(|| format!("cannot make {}", scratch.display()))?;
        let libfabric = scratch.join("libfabric");
        let source = workspace.root().join("tests/bench/vs-libfabric/libfabric.c");
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]);
        process::run(cc.arg(source).args(["-lfabric", "-o"]).arg(&libfabric))?;
        let status = std::fs::read_to_string("/proc/self/status")?;
        let built = target.join("release");
        Ok(Self {
            library: built.join("libefa_soft.so"),
            ours: built.join("efa-bench-vs-libfabric"),
            libfabric,
            scratch,
            processors: two_processors(&status).context("this needs two processors")?,
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

/// A directory for one run, removed at the end.
struct Place(PathBuf);

impl Place {
    fn make(scratch: &Path) -> Result<Self> {
        let place = scratch.join(format!("run-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir(&place).with_context(|| format!("cannot make {}", place.display()))?;
        Ok(Self(place))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

// ---- counting -----------------------------------------------------------------------------------

/// What calls `main`, in the C library.
const MAIN: [&str; 2] = ["__libc_start", "(below main)"];

/// Instructions that the objects of interest spent themselves, and inclusively in calls of the C
/// library, from a file of callgrind's.
fn cost(file: &str, is_ours: impl Fn(&str) -> bool) -> u64 {
    let (mut objects, mut functions) = (HashMap::new(), HashMap::new());
    let (mut object, mut callee, mut function, mut is_call) = ("", None, "", false);
    let mut sum = 0;
    for line in file.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = named(&mut objects, name);
        } else if let Some(name) = line.strip_prefix("cob=") {
            callee = Some(named(&mut objects, name));
        } else if let Some(name) = line.strip_prefix("fn=") {
            named(&mut functions, name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            function = named(&mut functions, name);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if let Some(instructions) = cost_of(line) {
            let callee = callee.take_if(|_| is_call);
            let counts = match std::mem::take(&mut is_call) {
                false => true,
                // `main` is called by way of the C library.
                true => {
                    callee.is_some_and(|callee| callee.contains("/libc.so"))
                        && !MAIN.iter().any(|way| function.starts_with(way))
                }
            };
            if counts && is_ours(object) {
                sum += instructions;
            }
        }
    }
    sum
}

/// `(7) name` says what 7 stands for, and `(7)` is it again.
fn named<'a>(names: &mut HashMap<&'a str, &'a str>, text: &'a str) -> &'a str {
    match text.split_once(' ') {
        Some((number, name)) => {
            names.insert(number, name);
            name
        }
        None => names.get(text).copied().unwrap_or_default(),
    }
}

/// The cost in a line of a position and a cost.
fn cost_of(line: &str) -> Option<u64> {
    let (position, cost) = line.split_once(' ')?;
    let position = position.trim_start_matches(['+', '-', '*']);
    let is_position = position.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'x');
    if is_position { cost.parse().ok() } else { None }
}

// ---- the fit ------------------------------------------------------------------------------------

/// Instructions, by least squares over runs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Fit {
    start: f64,
    round: f64,
    /// An empty read; `None` if there were none.
    poll: Option<f64>,
    /// The largest share that a run is off.
    off: f64,
}

impl Fit {
    fn of(runs: &[Run]) -> Option<Self> {
        let in_vain = |run: &Run| run.calls as f64 - CALLS * f64::from(run.rounds);
        let polled = runs.iter().any(|run| in_vain(run) != 0.0);
        let row = |run: &Run| [1.0, f64::from(run.rounds), in_vain(run)];
        let unknowns = if polled { 3 } else { 2 };
        let mut equations = [[0.0; 4]; 3];
        for run in runs {
            let row = row(run);
            for (equation, factor) in equations.iter_mut().zip(row).take(unknowns) {
                for (sum, term) in equation.iter_mut().zip(row).take(unknowns) {
                    *sum += factor * term;
                }
                equation[3] += factor * run.instructions as f64;
            }
        }
        let [start, round, poll] = solve(equations, unknowns)?;
        let off = runs.iter().map(|run| {
            let [one, rounds, in_vain] = row(run);
            let expected = start * one + round * rounds + poll * in_vain;
            (expected / run.instructions as f64 - 1.0).abs()
        });
        let off = off.fold(0.0, f64::max);
        Some(Self { start, round, poll: polled.then_some(poll), off })
    }
}

/// The unknowns of so many equations, by Gauss; the right side stands last.
fn solve(mut rows: [[f64; 4]; 3], unknowns: usize) -> Option<[f64; 3]> {
    for pivot in 0..unknowns {
        let size = |row: &usize| rows[*row][pivot].abs();
        let best = (pivot..unknowns).max_by(|a, b| size(a).total_cmp(&size(b)))?;
        rows.swap(pivot, best);
        let scale = rows[pivot][pivot];
        if scale.abs() < 1e-9 {
            return None;
        }
        rows[pivot].iter_mut().for_each(|value| *value /= scale);
        let pivot_row = rows[pivot];
        for (index, row) in rows.iter_mut().enumerate().take(unknowns) {
            if index != pivot {
                let factor = row[pivot];
                row.iter_mut().zip(pivot_row).for_each(|(value, by)| *value -= factor * by);
            }
        }
    }
    Some(rows.map(|row| row[3]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn self_cost_and_c_library_calls_count() {
        let file = "\
version: 1
events: Ir
ob=(1) /lib/libfabric.so.1
fl=(1) ???
fn=(1) fi_read
0 100
+3 20
cob=(2) /lib/libc.so.6
cfn=(2) memcpy
calls=1 0
0 7
cob=(2)
cfn=(5) __libc_start_main@@GLIBC_2.34
calls=1 0
0 70000
cob=(3) /t/libefa_soft.so
cfn=(3) start_poll
calls=1 0
0 5000
cfn=(4) another
calls=2 0
* 300
0 1

ob=(3)
fn=(3)
0 4000
cob=(1)
cfn=(1)
calls=1 0
0 9999
ob=(1)
fn=(4)
0 150
summary: 4278
";
        assert_eq!(cost(file, |object| object.contains("/libfabric.so")), 100 + 20 + 7 + 1 + 150);
        assert_eq!(cost(file, |object| object.contains("efa_soft")), 4000);
    }

    fn run(rounds: u32, in_vain: u64) -> Run {
        let calls = 3 * u64::from(rounds) + in_vain;
        let instructions = 1_000_000 + 2000 * u64::from(rounds) + 90 * in_vain;
        Run { rounds, calls, instructions }
    }

    #[test]
    fn fit_removes_empty_polls() {
        let runs = [run(2000, 17), run(3000, 900), run(6000, 40), run(9000, 12_000)];
        let fit = Fit::of(&runs).unwrap();
        assert!((fit.round - 2000.0).abs() < 1e-3, "{fit:?}");
        assert!((fit.start - 1e6).abs() < 1.0 && (fit.poll.unwrap() - 90.0).abs() < 1e-3);
        assert!(fit.off < 1e-6);
        let fit = Fit::of(&[run(2000, 0), run(3000, 0)]).unwrap();
        assert!((fit.round - 2000.0).abs() < 1e-6 && fit.poll.is_none(), "{fit:?}");
        assert_eq!(Fit::of(&[run(2000, 0), run(2000, 0)]), None);
    }
}

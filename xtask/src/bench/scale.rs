//! `cargo xtask bench scale`: how `efa` grows with endpoints, peers, addresses, processes and threads.
//!
//! ```text
//!   efa-bench-scale heap …  ──► bytes for each          ┐
//!   callgrind: efa-bench-scale count … ──► instructions ├─► table, limits
//!   efa-bench-scale threads, all-to-all ──► times       ┘ a report only
//! ```
//!
//! The program is in `tests/bench/scale`. Bytes and instructions come out the same on a busy machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};

use super::counting::total;
use crate::process::{self, Running};
use crate::profile::Profile;
use crate::setup::{self, Tool};
use crate::workspace::Workspace;

/// Most growth of instructions when there are ten times as many; the goal of issue 26.
const GROWTH: f64 = 1.1;
const PROGRAM: &str = "efa-bench-scale";
/// As the instruction benches are built, which have compiled what it needs.
const PROFILE: Profile = Profile::Bench;
/// What callgrind counts.
const COUNTED: &str = "--toggle-collect=efa_bench_scale::counted*";
/// Milliseconds that threads are measured.
const THREADS: &str = "2000";

/// Arguments of `cargo xtask bench scale`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Bytes and instructions have limits and don't depend on what else the machine does. Times are a report; the rate of two \
threads needs two processors without other work.")]
pub(crate) struct Args {
    /// Only what `cargo xtask test` holds: smaller numbers, and no times
    #[arg(long)]
    quick: bool,
    /// Processes that all send to all others
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u32).range(2..=256))]
    processes: u32,
    /// Seconds that a run of the program may take
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = process::seconds())]
    deadline: u64,
}

/// A measurement of memory, and the most bytes of each figure.
struct Memory {
    words: &'static [&'static str],
    limits: &'static [(&'static str, f64)],
}

/// Measured, and a margin of some 5 %.
const MEMORY: [Memory; 7] = [
    Memory { words: &["endpoints", "local", "100"], limits: &[("bytes", 612_000.0)] },
    Memory {
        words: &["endpoints", "shm", "100"],
        limits: &[("bytes", 612_000.0), ("shared", 24_576.0), ("descriptors", 1.0)],
    },
    Memory {
        words: &["endpoints", "tcp", "100"],
        limits: &[("bytes", 612_000.0), ("descriptors", 2.0)],
    },
    Memory { words: &["connections", "100"], limits: &[("bytes", 48_500.0), ("shared", 24_576.0)] },
    Memory { words: &["peers", "10000"], limits: &[("bytes", 1_250.0)] },
    Memory { words: &["addresses", "100000"], limits: &[("bytes", 46.0)] },
    Memory { words: &["rings", "64"], limits: &[("shared", 577_536.0)] },
];
/// In the long form, besides.
const MORE: [&[&str]; 5] = [
    &["endpoints", "shm", "1"],
    &["endpoints", "shm", "1000"],
    &["endpoints", "tcp", "1000"],
    &["peers", "100000"],
    &["addresses", "1000000"],
];

/// A work that is counted, and for how many there are of what it depends on.
struct Work {
    name: &'static str,
    what: &'static str,
    quick: &'static [u32],
    more: &'static [u32],
}

const WORK: [Work; 7] = [
    Work { name: "enable", what: "an endpoint enabled", quick: &[10, 100], more: &[1000] },
    Work { name: "idle", what: "a read that finds nothing", quick: &[10, 100], more: &[1000] },
    Work {
        name: "message",
        what: "a message among idle endpoints",
        quick: &[10, 100],
        more: &[1000],
    },
    Work { name: "speak", what: "a first message", quick: &[100, 1000], more: &[10_000] },
    Work { name: "known", what: "a message among peers", quick: &[100, 1000], more: &[10_000] },
    Work {
        name: "insert",
        what: "an address inserted",
        quick: &[10_000, 100_000],
        more: &[1_000_000],
    },
    Work {
        name: "among",
        what: "a message among addresses",
        quick: &[10_000, 100_000],
        more: &[1_000_000],
    },
];

/// A line of the program.
#[derive(Clone, Debug, PartialEq)]
struct Figure {
    what: String,
    items: u64,
    measure: String,
    value: f64,
}

impl Figure {
    fn of(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [what, items, measure, value] = *words else {
            anyhow::bail!("the program said `{line}`")
        };
        let bad = || format!("a number in `{line}`");
        let (items, value) =
            (items.parse().with_context(bad)?, value.parse::<f64>().with_context(bad)?);
        Ok(Self { what: what.into(), items, measure: measure.into(), value })
    }
}

/// The program, and how it runs.
struct Program {
    file: PathBuf,
    place: tempfile::TempDir,
    deadline: Duration,
}

impl Program {
    fn build(workspace: &Workspace, deadline: Duration) -> Result<Self> {
        setup::provide(workspace, [Tool::Valgrind])?;
        let file = PROFILE.program(workspace, PROGRAM)?;
        let place = tempfile::tempdir().context("cannot make a directory")?;
        Ok(Self { file, place, deadline })
    }

    fn finish(&self, command: &mut Command) -> Result<Vec<Figure>> {
        command.env("RUST_BACKTRACE", "0").stdin(Stdio::null());
        let said = Running::start(command)?.finish(Instant::now() + self.deadline);
        said.with_context(|| format!("{command:?}"))?.lines().map(Figure::of).collect()
    }

    fn run(&self, words: &[&str]) -> Result<Vec<Figure>> {
        self.finish(Command::new(&self.file).args(words))
    }

    /// Instructions of a work done once, where there are `items`.
    fn count(&self, name: &str, items: u32) -> Result<f64> {
        let out = self.place.path().join("callgrind.out");
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--tool=callgrind", COUNTED]);
        valgrind.arg(format!("--callgrind-out-file={}", out.display())).arg(&self.file);
        let figures = self.finish(valgrind.args(["count", name, &items.to_string()]))?;
        let times = figures.first().context("the program said nothing")?.value;
        let instructions = instructions(&out)?;
        // Callgrind found the function, and what it did.
        ensure!(instructions as f64 > 50.0 * times, "{name} {items}: {instructions} instructions");
        Ok(instructions as f64 / times)
    }
}

fn instructions(file: &Path) -> Result<u64> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    total(&text).with_context(|| format!("{} has no count", file.display()))
}

/// `cargo xtask bench scale`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let program = Program::build(workspace, Duration::from_secs(args.deadline))?;
    let mut broken = Vec::new();
    memory(&program, args.quick, &mut broken)?;
    work(&program, args.quick, &mut broken)?;
    if !args.quick {
        times(&program, args)?;
    }
    ensure!(broken.is_empty(), "over a limit: {}", broken.join("; "));
    Ok(())
}

/// The command that builds the program.
pub(super) fn build_of_program(workspace: &Workspace) -> Command {
    PROFILE.build_of(workspace, PROGRAM)
}

/// A part of the step `bench`.
pub(crate) fn gate(workspace: &Workspace) -> Result<()> {
    run(workspace, &Args { quick: true, processes: 2, deadline: 120 })
}

fn memory(program: &Program, quick: bool, broken: &mut Vec<String>) -> Result<()> {
    let mut table = table(["memory", "of how many", "each", "at most"]);
    let more = MORE.iter().map(|words| Memory { words, limits: &[] });
    for Memory { words, limits } in MEMORY.into_iter().chain(more.filter(|_| !quick)) {
        let figures = program.run(&[&["heap"], words].concat())?;
        for (measure, _) in limits {
            let there = figures.iter().any(|figure| figure.measure == *measure);
            ensure!(there, "{words:?}: no {measure}");
        }
        let mut judged: Vec<&str> = Vec::new();
        for Figure { what, items, measure, value } in &figures {
            let of = |limit: &&(&str, f64)| limit.0 == measure && !judged.contains(&limit.0);
            let limit = limits.iter().find(of);
            if let Some((name, limit)) = limit {
                judged.push(name);
                if value > limit {
                    broken.push(format!("{what} {items}: {value:.1} {measure} of {limit}"));
                }
            }
            table.add_row([
                format!("{what}, {measure}"),
                items.to_string(),
                format!("{value:.1}"),
                limit.map_or(String::new(), |(_, limit)| limit.to_string()),
            ]);
        }
    }
    say!("{table}");
    Ok(())
}

fn work(program: &Program, quick: bool, broken: &mut Vec<String>) -> Result<()> {
    let mut table = table(["instructions", "of how many", "each", "growth"]);
    for Work { name, what, quick: few, more } in WORK {
        let more = if quick { &[] } else { more };
        let mut before = None;
        for &items in few.iter().chain(more) {
            let count = program.count(name, items)?;
            let growth = before.map(|before: f64| count / before);
            if let Some(growth) = growth.filter(|growth| *growth > GROWTH) {
                broken.push(format!("{what}, {items}: grows by {growth:.3}, at most {GROWTH}"));
            }
            before = Some(count);
            table.add_row([
                what.to_owned(),
                items.to_string(),
                format!("{count:.0}"),
                growth.map_or(String::new(), |growth| format!("{growth:.3}")),
            ]);
        }
    }
    say!("{table}");
    Ok(())
}

fn times(program: &Program, args: &Args) -> Result<()> {
    let mut table = table(["times, a report", "of how many", "value", ""]);
    let threads = program.run(&["threads", THREADS])?;
    let rate = |threads: u64, all: &[Figure]| {
        let found = all.iter().find(|figure| figure.items == threads && figure.measure == "rate");
        found.map(|figure| figure.value)
    };
    let (one, two) = (rate(1, &threads), rate(2, &threads));
    let processes = args.processes.to_string();
    let seconds = (args.deadline.saturating_sub(5)).max(1).to_string();
    let all = program.run(&["all-to-all", &processes, &seconds])?;
    for Figure { what, items, measure, value } in threads.iter().chain(&all) {
        let row = [format!("{what}, {measure}"), items.to_string(), format!("{value:.6}")];
        table.add_row(row);
    }
    say!("{table}");
    if let (Some(one), Some(two)) = (one, two) {
        say!("two threads reach {:.2} times the rate of one (goal: 1.9)", two / one);
    }
    Ok(())
}

fn table(head: [&str; 4]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY);
    table.set_header(head);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_the_program_is_a_figure_and_others_are_refused() {
        let figure = Figure::of("peers 1000 bytes 312.5").unwrap();
        assert_eq!((figure.what.as_str(), figure.items, figure.value), ("peers", 1000, 312.5));
        for line in ["", "peers 1000 bytes", "peers x bytes 1", "peers 1 bytes y", "a 1 b 2 c"] {
            assert!(Figure::of(line).is_err(), "{line}");
        }
    }
}

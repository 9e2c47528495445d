//! `cargo xtask bench provider`: what a C program pays that libfabric gives our provider, beside libfabric's own.
//!
//! ```text
//!   tests/bench/provider/provider.c ─► libfabric ─► libefars-fi.so, or a provider of libfabric
//!
//!   instructions   client under callgrind, server native   by object: the provider, with what it calls in the
//!                                                          C library (see `counting`); by verbs the device is
//!                                                          another object, which isn't counted
//!   times          both native, providers in turn          the fastest messages in a row, as ratios
//! ```
//!
//! The client of a round reads when the server has told it that the message is there, so that it never reads in vain
//! and its count doesn't depend on how busy the machine is. A read that finds nothing is counted with all that it calls, between two processes that have exchanged a message.
//! The seven instructions of the caller's loop, four of which are libfabric's inline function, don't count.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};

use super::counting::{self, Place, cost, total};
use super::soft::two_processors;
use crate::process::{self, Running};
use crate::provider;
use crate::setup::{self, Tool};
use crate::verbs;
use crate::workspace::Workspace;

const OURS: &str = "efars";
/// What our provider is compared with.
const SHM: &str = "shm";
const EFA: &str = "efa";
/// Rounds of the two runs under callgrind.
const ROUNDS: [u32; 2] = [1000, 5000];
/// Runs of each number of rounds, of which the least count is taken: where an acknowledgement of the other side, which valgrind
/// doesn't slow down, is seen by a later poll, that poll counts too.
const RUNS: usize = 5;
/// Reads of the run under callgrind.
const READS: u32 = 20_000;
/// The function of the program that reads in vain.
const IN_VAIN: &str = "--toggle-collect=in_vain";
/// Instructions of a pass of the caller's loop.
const LOOP: u64 = 7;

/// Arguments of `cargo xtask bench provider`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Needs two processors. Instruction counts come out the same on a busy machine, and the step `provider` of \
`cargo xtask test` holds their limits. Times do not: they are a report, and only their ratios within one run \
say something, best on a quiet machine.")]
pub(crate) struct Args {
    /// Measure only this
    #[arg(long, value_name = "WHAT")]
    only: Option<Part>,
    /// Runs of each provider, in turn; the best time of any counts
    #[arg(long, value_name = "N", default_value = "7", value_parser = clap::value_parser!(u32).range(1..1000))]
    runs: u32,
    /// Rounds of 8 B in a timed run; twice as many messages in a row, a hundredth of 1 MiB
    #[arg(long, value_name = "N", default_value = "200000",
          value_parser = clap::value_parser!(u32).range(1000..100_000_000))]
    rounds: u32,
    /// Seconds that a run may take
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = process::seconds())]
    deadline: u64,
    /// Fail if an instruction count is over its limit
    #[arg(long)]
    gate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Instructions of a round and of a read that finds nothing
    Instructions,
    /// Times of a round, of messages in a row, of 1 MiB
    Times,
}

/// What the program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Round,
    /// A round whose client doesn't read before the message is there.
    Told,
    Rate,
    Large,
    Reads,
}

impl Test {
    fn name(self) -> &'static str {
        match self {
            Self::Round => "round",
            Self::Told => "told",
            Self::Rate => "rate",
            Self::Large => "large",
            Self::Reads => "reads",
        }
    }
}

/// What our provider sends over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    /// The software EFA device, another object of the process.
    Verbs,
    Shm,
}

/// A count, and the most that it may be.
struct Counted {
    what: &'static str,
    provider: &'static str,
    instructions: f64,
    limit: Option<f64>,
}

/// `cargo xtask bench provider`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    setup::provide(workspace, [Tool::Valgrind, Tool::CCompiler, Tool::LibfabricHeaders])?;
    let range = Range::build(workspace, args)?;
    if args.only != Some(Part::Times) {
        let counted = range.count(args.gate)?;
        say!("{}", counts(&counted));
        if args.gate {
            hold(&counted)?;
        }
    }
    if args.only != Some(Part::Instructions) && !args.gate {
        say!("{}", range.times(args)?);
    }
    Ok(())
}

/// A part of the step `provider`: the limits hold.
pub(crate) fn gate(workspace: &Workspace) -> Result<()> {
    let only = Some(Part::Instructions);
    run(workspace, &Args { only, runs: 1, rounds: 1000, deadline: 120, gate: true })
}

fn hold(counted: &[Counted]) -> Result<()> {
    for Counted { what, provider, instructions, limit } in counted {
        let limit = limit.unwrap_or(f64::INFINITY);
        ensure!(
            *instructions <= limit,
            "{what}, {provider}: {instructions:.0} instructions, over the limit of {limit}"
        );
    }
    Ok(())
}

fn counts(counted: &[Counted]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY);
    table.set_header(["instructions", "provider", "", "limit"]);
    for Counted { what, provider, instructions, limit } in counted {
        let limit = limit.map_or(String::new(), |limit| limit.to_string());
        table.add_row([
            (*what).into(),
            (*provider).to_owned(),
            format!("{instructions:.0}"),
            limit,
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// What a side said of a run.
#[derive(Clone, Copy, Debug)]
struct Said {
    /// Messages in a row that took the shortest time, and that time.
    messages: u64,
    nanoseconds: u64,
}

impl Said {
    fn of(said: &str) -> Result<Self> {
        match *said.split_whitespace().collect::<Vec<_>>() {
            ["messages", messages, "ns", nanoseconds] => {
                Ok(Self { messages: messages.parse()?, nanoseconds: nanoseconds.parse()? })
            }
            _ => Err(anyhow::anyhow!("a side said `{}`", said.trim())),
        }
    }
}

/// Where and how programs run.
struct Range {
    /// The software device.
    soft_efa: PathBuf,
    /// Of `FI_PROVIDER_PATH`.
    directory: PathBuf,
    program: PathBuf,
    /// For addresses and counts.
    scratch: PathBuf,
    processors: [String; 2],
    deadline: Duration,
}

impl Range {
    fn build(workspace: &Workspace, args: &Args) -> Result<Self> {
        let processors = two_processors()?;
        let target = workspace.metadata()?.target_directory;
        let scratch = target.join("bench-provider");
        std::fs::create_dir_all(&scratch)
            .with_context(|| format!("cannot make {}", scratch.display()))?;
        let directory = scratch.join("built");
        provider::copy(&counting::build(workspace)?, &directory)?;
        let program = scratch.join("provider");
        let source = workspace.root().join("tests/bench/provider/provider.c");
        process::compile("cc", [source], &["-lfabric"], &program)?;
        Ok(Self {
            soft_efa: verbs::soft_library(workspace)?,
            directory,
            program,
            scratch,
            processors,
            deadline: Duration::from_secs(args.deadline),
        })
    }

    /// Runs both sides of a test, the client `under` another program; returns what the client said, or the server of
    /// the messages in a row that it received.
    fn run(
        &self,
        place: &Place,
        (provider, device): (&str, Device),
        (test, count): (Test, u32),
        under: &[&str],
    ) -> Result<Said> {
        let side = |processor: &str, role: &str, under: &[&str]| {
            let mut command = Command::new("taskset");
            command.args(["--cpu-list", processor]).args(under).arg(&self.program);
            command.arg(role).arg(&place.0).args([provider, test.name()]).arg(count.to_string());
            command.stdin(Stdio::null()).env("FI_PROVIDER_PATH", &self.directory);
            // What the loader does at a first call is no cost of a round.
            command.env("LD_BIND_NOW", "1").env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
            match device {
                Device::Verbs => {
                    command.env("LD_PRELOAD", &self.soft_efa).env("EFA_SOFT_NAME", "provider");
                    command.env("EFA_SOFT_DIRECTORY", place.0.join("hosts"));
                    command.env("FI_EFARS_DEVICE", "verbs");
                }
                Device::Shm => {
                    command.env("FI_EFARS_SHM_DIRECTORY", place.0.join("hosts"));
                    command.env("FI_EFARS_DEVICE", "shm");
                }
            }
            command
        };
        let until = Instant::now() + self.deadline;
        let failed = |role| format!("{provider}, {} {count}: the {role}", test.name());
        let mut server = Running::start(&mut side(&self.processors[0], "server", &[]))?;
        let mut client = Running::start(&mut side(&self.processors[1], "client", under))?;
        let of_client = client.finish(until).with_context(|| failed("client"))?;
        let of_server = server.finish(until).with_context(|| failed("server"))?;
        Said::of(if test == Test::Rate { &of_server } else { &of_client })
    }

    /// Runs the client under callgrind; returns what it said and what was counted.
    fn trace(
        &self,
        whose: (&str, Device),
        test: Test,
        count: u32,
        counted: impl Fn(&str) -> Option<u64>,
    ) -> Result<(Said, u64)> {
        let place = Place::make(&self.scratch)?;
        let counts = place.0.join("callgrind.out");
        let file = format!("--callgrind-out-file={}", counts.display());
        let mut valgrind = vec!["valgrind", "--quiet", "--tool=callgrind", &file];
        if test == Test::Reads {
            valgrind.push(IN_VAIN);
        }
        let said = self.run(&place, whose, (test, count), &valgrind)?;
        let text = std::fs::read_to_string(&counts)?;
        let counted = counted(&text).filter(|counted| *counted > 0);
        Ok((said, counted.context("callgrind saw nothing of it")?))
    }

    /// Instructions of a round.
    fn round(&self, provider: &'static str, device: Device) -> Result<f64> {
        let object = if provider == OURS { "/libefars-fi.so" } else { "/libfabric.so" };
        let counted = |text: &str| Some(cost(text, |found| found.contains(object)));
        let least = |rounds| {
            (0..RUNS).try_fold(u64::MAX, |least, _| -> Result<u64> {
                let (_, count) = self.trace((provider, device), Test::Told, rounds, counted)?;
                Ok(least.min(count))
            })
        };
        let [few, many] = ROUNDS;
        let (of_few, of_many) = (least(few)?, least(many)?);
        // What both did before the first round cancels out.
        let rounds = of_many.checked_sub(of_few).context("more rounds took fewer instructions")?;
        Ok(rounds as f64 / f64::from(many - few))
    }

    /// Instructions of a read that finds nothing.
    fn read(&self, provider: &'static str, device: Device) -> Result<f64> {
        let all = |text: &str| total(text)?.checked_sub(LOOP * u64::from(READS));
        let (_, counted) = self.trace((provider, device), Test::Reads, READS, all)?;
        Ok(counted as f64 / f64::from(READS))
    }

    /// Counts all instructions, or those of our provider alone.
    fn count(&self, ours: bool) -> Result<Vec<Counted>> {
        const VERBS_ROUND: &str = "round of 8 B, device by verbs";
        const SHM_ROUND: &str = "round of 8 B, shared memory";
        const READ: &str = "read that finds nothing, shared memory";
        let mut all = Vec::new();
        for (provider, device, what, limit) in [
            (OURS, Device::Verbs, VERBS_ROUND, Some(2090.0)),
            (EFA, Device::Verbs, VERBS_ROUND, None),
            (OURS, Device::Shm, SHM_ROUND, Some(2480.0)),
            (SHM, Device::Shm, SHM_ROUND, None),
        ] {
            if ours && provider != OURS {
                continue;
            }
            let instructions = self.round(provider, device)?;
            print_error!("{what}, {provider}: {instructions:.0} instructions");
            all.push(Counted { what, provider, instructions, limit });
        }
        for (provider, limit) in [(OURS, Some(100.0)), (SHM, None)] {
            if ours && provider != OURS {
                continue;
            }
            let instructions = self.read(provider, Device::Shm)?;
            print_error!("{READ}, {provider}: {instructions:.0} instructions");
            all.push(Counted { what: READ, provider, instructions, limit });
        }
        Ok(all)
    }

    /// The best times, and their ratios.
    fn times(&self, args: &Args) -> Result<Table> {
        let place = Place::make(&self.scratch)?;
        let mut table = Table::new();
        table.load_preset(UTF8_HORIZONTAL_ONLY);
        table.set_header(["best of the runs", OURS, SHM, "ratio of the times"]);
        for (test, what, count) in [
            (Test::Round, "8 B, one way", args.rounds),
            (Test::Rate, "8 B in a row, a message", args.rounds * 2),
            (Test::Large, "1 MiB, one way", args.rounds / 100),
        ] {
            let mut best = [f64::INFINITY; 2];
            for _ in 0..args.runs {
                for (provider, best) in [OURS, SHM].into_iter().zip(&mut best) {
                    for name in ["client", "server"] {
                        let _ = std::fs::remove_file(place.0.join(name));
                    }
                    let said = self.run(&place, (provider, Device::Shm), (test, count), &[])?;
                    let message = said.nanoseconds as f64 / 1e3 / said.messages as f64;
                    print_error!("{what}, {provider}: {message:.3} µs");
                    *best = best.min(message);
                }
            }
            let shown = |time: f64| match test {
                Test::Rate => format!("{time:.3} µs, {:.1} million/s", 1.0 / time),
                _ => format!("{time:.2} µs"),
            };
            let ratio = format!("{:.2}", best[0] / best[1]);
            table.add_row([what.into(), shown(best[0]), shown(best[1]), ratio]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        Ok(table)
    }
}

//! `cargo xtask bench netio`: publish/subscribe of NetIO beside that of ZeroMQ, zenoh, iceoryx2 and NNG, in one run.
//!
//! ```text
//!   round 1: each size and number of subscribers: NetIO, ZeroMQ, zenoh, iceoryx2, NNG, processes that copy
//!            each: publisher ═══► subscribers, all processes: at full speed, then at a pace, for the latency
//!   round 2: the same …
//!   a subscriber that is stopped, one that is killed, idle contexts
//! ```
//!
//! What is compared is measured within seconds; ratios are those of medians over the rounds. The programs are in
//! `tests/bench/netio`; those of the peers are a workspace of their own, which nothing else builds.

mod programs;
mod results;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::setpriority_process;

use self::programs::{Contestant, Range, Run};
use self::results::Results;
use super::soft::{BUSY, Usage, load};
use crate::output;
use crate::process;
use crate::workspace::Workspace;

/// The size at which every byte is read, and processes copy.
const LARGE: usize = 1 << 20;
/// Messages in a second at which latency is measured, and the most bytes that all subscribers get in one.
const PACE: usize = 500;
const PACE_BYTES: usize = 1 << 30;
/// The niceness of `--priority`.
const PRIORITY: i32 = -15;
/// Share of the processors that others may take.
const QUIET: f64 = 0.1;

/// Arguments of `cargo xtask bench netio`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A report, never a gate: wall clock. All programs compete for the same processors, and the figures are ratios within this \
run. Peers that can't be built are left out, with a word. Debian has ZeroMQ in libzmq3-dev, NNG in libnng-dev.

The benches of instructions of the crate are `cargo xtask bench efa-netio`.")]
pub(crate) struct Args {
    /// Bytes of a message
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_value = "64,4096,65536,1048576",
          value_parser = clap::value_parser!(u32).range(24..1 << 30))]
    sizes: Vec<u32>,
    /// Numbers of subscribers, each a process
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_value = "1,8,64",
          value_parser = clap::value_parser!(u32).range(1..=256))]
    subscribers: Vec<u32>,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..100))]
    rounds: u32,
    /// How long a run publishes
    #[arg(long, value_name = "MILLISECONDS", default_value = "1000",
          value_parser = clap::value_parser!(u32).range(20..60_000))]
    time: u32,
    /// Measure only these: ours,efa,zeromq,zenoh,iceoryx2,nng,copy
    #[arg(long, value_name = "WHO", value_delimiter = ',')]
    only: Vec<Contestant>,
    /// Neither latency, nor subscribers that are stopped or killed
    #[arg(long)]
    rates_alone: bool,
    /// Seconds that a run may take beside its messages
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = process::seconds())]
    deadline: u64,
    /// Directory for the plots
    #[arg(long, value_name = "DIRECTORY")]
    plots: Option<PathBuf>,
    /// Run with a priority above that of other programs (niceness -15, needs root)
    #[arg(long)]
    priority: bool,
    /// Measure on a busy machine, too
    #[arg(long)]
    anyway: bool,
}

impl Args {
    fn who(&self) -> Vec<Contestant> {
        match self.only.is_empty() {
            true => Contestant::ALL.to_vec(),
            false => self.only.clone(),
        }
    }
}

/// `cargo xtask bench netio`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let target = workspace.metadata()?.target_directory;
    let range = Range::build(workspace, &target, &args.who(), args.deadline)?;
    let busy = load()?;
    ensure!(
        args.anyway || args.priority || busy <= BUSY,
        "no run: the machine is too busy (load {busy}, at most {BUSY}); come back later, or use --priority or --anyway"
    );
    if args.priority {
        // The programs inherit it. Not a real-time policy: its processes starve the system where they are more than the
        // processors.
        setpriority_process(None, PRIORITY).context("cannot raise the priority")?;
    }
    let before = Usage::now()?;
    let mut results = Results::new(range.missing.clone());
    for round in 1..=args.rounds {
        print_error!("round {round} of {}", args.rounds);
        measure(&range, args, &mut results)?;
    }
    if !args.rates_alone && range.has(Contestant::Ours) {
        print_error!("subscribers that are stopped, killed, idle");
        results.stopped = Some(range.stopped()?);
        results.killed = Some(range.killed()?);
        results.idle = Some(range.idle()?);
    }
    let others = Usage::now()?.others_since(before);
    let plots = args.plots.clone().unwrap_or_else(|| target.join("bench/netio"));
    std::fs::create_dir_all(&plots).with_context(|| format!("cannot make {}", plots.display()))?;
    for &subscribers in &args.subscribers {
        let file = plots.join(format!("rate-{subscribers}.svg"));
        let svg = results.plot(subscribers as usize).to_svg()?;
        std::fs::write(&file, svg).with_context(|| format!("cannot write {}", file.display()))?;
    }
    say!("{}", results.table());
    output::write(format_args!("{}", results.goals()));
    let left = if args.priority { ", of what these programs left" } else { "" };
    say!("Load {busy} before; others took {:.0} % of the processors{left}.", others * 100.0);
    if others > QUIET && !args.priority {
        say!("Void: of a quiet machine others take at most {:.0} %.", QUIET * 100.0);
    }
    say!("plots: {}", plots.join("rate-*.svg").display());
    Ok(())
}

fn measure(range: &Range, args: &Args, results: &mut Results) -> Result<()> {
    let time = Duration::from_millis(args.time.into());
    for &size in &args.sizes {
        for &subscribers in &args.subscribers {
            let (size, subscribers) = (size as usize, subscribers as usize);
            let run = Run { size, subscribers, time, pace: 0, reads: false };
            print_error!("{size} B to {subscribers}");
            for who in range.programs() {
                results.rate(who, run, range.publish(who, run))?;
            }
            if size == LARGE && range.has(Contestant::Copy) {
                results.rate(Contestant::Copy, run, range.copy(run))?;
            }
            let pace = (PACE_BYTES / size / subscribers).clamp(10, PACE) as u32;
            let paced = Run { pace, ..run };
            for who in range.programs().filter(|_| !args.rates_alone) {
                results.latency(who, paced, range.publish(who, paced))?;
            }
            if size == LARGE {
                let read = Run { reads: true, ..run };
                for who in range.programs() {
                    results.rate(who, read, range.publish(who, read))?;
                }
            }
        }
    }
    Ok(())
}

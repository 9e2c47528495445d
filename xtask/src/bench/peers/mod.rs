//! `cargo xtask bench peers`: messages between two processes of a host by `efa`, beside libfabric's shm and tcp providers,
//! UCX, Open MPI's own shared memory, and what bounds them all, in one run.
//!
//! ```text
//!   round 1: sizes 0 B to 2 B: efa, libfabric shm, libfabric tcp, UCX, Open MPI, bare ring, memcpy, …
//!            sizes 4 B to 16 B: the same …
//!   round 2: the same …
//! ```
//!
//! Both processes of a program are pinned, one to each of two processors, and poll. Ratios are of figures of one round, and
//! the median of the rounds counts. The programs are in `tests/bench/peers`; docs/performance.md says what is measured.

mod document;
#[path = "../../../../crates/efa-sim/tests/common/namespaces.rs"]
mod namespaces;
mod point;
mod programs;
mod results;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use self::document::Style;
use self::point::Point;
use self::programs::{Contestant, Range};
use self::results::{QUIET, Results, Round};
use super::soft::Usage;
use crate::output;
use crate::process;
use crate::profile::Profile;
use crate::setup::{self, Tool};
use crate::workspace::Workspace;

/// Tools of the peers.
pub(crate) const TOOLS: [Tool; 5] = [
    Tool::CCompiler,
    Tool::LibfabricHeaders,
    Tool::UcxPerftest,
    Tool::OpenMpi,
    Tool::OpenMpiHeaders,
];
/// Sizes measured by one run of a program: few, as the speed of a virtual machine may change within seconds, and ratios are
/// of programs that ran one after the other.
const SIZES_A_RUN: usize = 3;
const QUICK: [u64; 8] = [0, 8, 64, 4096, 16384, 65536, 1 << 20, 16 << 20];
const LONGEST: u64 = 64 << 20;

/// Arguments of `cargo xtask bench peers`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
A report, never a gate: wall clock, and ratios within a round. Needs two processors and, for most sizes, 1 GiB of memory. \
A run takes some seven minutes, with --quick some two. A round in which others took more than 5 % of the processors is \
left out; if that is half of them or more, the run is void, and nothing is shown without --allow-busy.

Missing peers are installed (Debian's libfabric-dev, ucx-utils, openmpi-bin, libopenmpi-dev) by root, else left out, with a \
word.")]
pub(crate) struct Args {
    /// Bytes of a message [default: 0 and the powers of two to 64 MiB]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(0..=LONGEST))]
    sizes: Vec<u64>,
    /// Few sizes, and short measurements
    #[arg(long, conflicts_with = "sizes")]
    quick: bool,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..100))]
    runs: u32,
    /// How long a measurement takes at least [default: 20, with --quick 5]
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u32).range(1..=300))]
    time: Option<u32>,
    /// Measure only these
    #[arg(long, value_name = "WHO", value_delimiter = ',')]
    only: Vec<Contestant>,
    /// Write all figures into this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the section `Figures` of docs/performance.md into this file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Directory for the plots
    #[arg(long, value_name = "DIRECTORY")]
    plots: Option<PathBuf>,
    /// Measure on a busy machine, too; the figures are marked as void
    #[arg(long)]
    allow_busy: bool,
    /// Seconds that a run of a program may take
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = process::seconds())]
    deadline: u64,
}

impl Args {
    fn sizes(&self) -> Vec<u64> {
        let mut sizes = match (self.quick, self.sizes.is_empty()) {
            (true, _) => QUICK.to_vec(),
            (false, false) => self.sizes.clone(),
            (false, true) => std::iter::once(0).chain((0..=26).map(|power| 1 << power)).collect(),
        };
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    fn who(&self) -> Vec<Contestant> {
        let named = |who: &Contestant| self.only.is_empty() || self.only.contains(who);
        Contestant::ALL.into_iter().filter(named).collect()
    }

    fn least(&self) -> Duration {
        let default = if self.quick { 5 } else { 20 };
        Duration::from_millis(self.time.unwrap_or(default).into())
    }

    /// The command, for those who repeat it.
    fn command(&self) -> String {
        let mut command = format!("cargo xtask bench peers --runs {}", self.runs);
        if self.quick {
            command += " --quick";
        }
        if !self.sizes.is_empty() {
            let sizes: Vec<String> = self.sizes.iter().map(u64::to_string).collect();
            command += &format!(" --sizes {}", sizes.join(","));
        }
        if let Some(time) = self.time {
            command += &format!(" --time {time}");
        }
        if !self.only.is_empty() {
            let only: Vec<&str> = self.only.iter().map(|who| who.name()).collect();
            command += &format!(" --only {}", only.join(","));
        }
        command
    }
}

/// `cargo xtask bench peers`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    run_built(workspace, args, Profile::Release)
}

fn run_built(workspace: &Workspace, args: &Args, profile: Profile) -> Result<()> {
    if !setup::are_installed(&TOOLS)
        && let Err(error) = setup::provide(workspace, TOOLS)
    {
        print_error!("peers are left out: {error:#}");
    }
    let deadline = Duration::from_secs(args.deadline);
    let range = Range::build(workspace, profile, &args.who(), args.least(), deadline)?;
    let busy = others_for(Duration::from_secs(1))?;
    ensure!(
        args.allow_busy || busy <= QUIET,
        "no run: the machine is too busy (others take {:.0} % of the processors, at most {:.0} %); come back later, or use \
         --allow-busy",
        busy * 100.0,
        QUIET * 100.0
    );
    let mut results = Results { notes: range.missing.clone(), ..Results::default() };
    results.tcp_place = range.tcp_place();
    let chunks: Vec<Vec<Point>> = (args.sizes().chunks(SIZES_A_RUN))
        .map(|sizes| sizes.iter().copied().flat_map(Point::all_of).collect())
        .collect();
    let bar = progress_bar(args.runs as usize * chunks.len() * range.there.len());
    for number in 1..=args.runs {
        let round = measure(&range, &chunks, &bar, number, &mut results.notes)?;
        results.rounds.push(round);
    }
    bar.finish_and_clear();
    let void = results.judge();
    let void = void.as_deref();
    if let (Some(why), false) = (void, args.allow_busy) {
        anyhow::bail!("void: {why}; come back later, or use --allow-busy");
    }
    show(workspace, args, &results, void)
}

/// Measures everything once.
fn measure(
    range: &Range,
    chunks: &[Vec<Point>],
    bar: &ProgressBar,
    number: u32,
    notes: &mut Vec<String>,
) -> Result<Round> {
    let before = Usage::now()?;
    let mut round = Round::default();
    for points in chunks {
        for &who in &range.there {
            bar.set_message(format!("round {number}: {who}"));
            let mut measured = range.measure(who, points);
            if who.is_peer() && measured.is_err() {
                // libfabric's shm doesn't start where a dead process of the same number left a file in /dev/shm.
                measured = range.measure(who, points);
            }
            match measured {
                Ok(said) => round.add(who, said),
                Err(error) if who.is_peer() => {
                    notes.push(format!("{who}, round {number}: {error:#}"))
                }
                Err(error) => return Err(error.context(who.to_string())),
            }
            bar.inc(1);
        }
    }
    round.others = Usage::now()?.others_since(before);
    Ok(round)
}

/// Prints and writes what came of it.
fn show(workspace: &Workspace, args: &Args, results: &Results, void: Option<&str>) -> Result<()> {
    let (date, machine) = (process::output_of(Command::new("date").arg("+%F"))?, machine()?);
    let date = date.trim();
    output::write(format_args!("{}", results.tables(Style::Terminal)));
    let default = || Ok(workspace.metadata()?.target_directory.join("bench/peers/plots"));
    let plots = args.plots.clone().map_or_else(default, Ok::<_, anyhow::Error>)?;
    std::fs::create_dir_all(&plots).with_context(|| format!("cannot make {}", plots.display()))?;
    for (name, plot) in results.plots() {
        // Where one size was measured, or none, there may be no point.
        if let Ok(svg) = plot.to_svg() {
            write(&plots.join(name), &svg)?;
        }
    }
    if let Some(file) = &args.json {
        let json = results.json(date, &machine, void);
        write(file, &format!("{}\n", serde_json::to_string_pretty(&json)?))?;
    }
    if let Some(file) = &args.markdown {
        write(file, &results.markdown(date, &machine, &args.command(), void))?;
    }
    say!(
        "{date}, {machine}; medians of {} rounds; plots: {}",
        results.rounds.len(),
        plots.display()
    );
    if let Some(why) = void {
        say!("VOID: {why}.");
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// The share of the processors that others take now.
fn others_for(time: Duration) -> Result<f64> {
    let before = Usage::now()?;
    std::thread::sleep(time);
    Ok(Usage::now()?.others_since(before))
}

/// Processor, their number, memory, kernel.
fn machine() -> Result<String> {
    let read = |file: &str| std::fs::read_to_string(file).with_context(|| file.to_owned());
    let processors = read("/proc/cpuinfo")?;
    let models = || {
        let fields = processors.lines().filter_map(|line| line.split_once(':'));
        fields.filter(|(name, _)| name.trim() == "model name").map(|(_, model)| model.trim())
    };
    let count = std::thread::available_parallelism()?;
    let kernel = read("/proc/sys/kernel/osrelease")?;
    let model = models().next().unwrap_or(std::env::consts::ARCH);
    Ok(format!("{model}, {count} processors, Linux {}", kernel.trim()))
}

/// A progress bar on standard error, if that is a terminal.
fn progress_bar(runs: usize) -> ProgressBar {
    let bar = ProgressBar::new(runs as u64);
    match ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// A part of the step `provider`: all programs run, and what they say is read. Nothing is judged by time.
pub(crate) fn smoke(workspace: &Workspace) -> Result<()> {
    let place = tempfile::tempdir().context("cannot make a directory")?;
    let [json, markdown] = ["peers.json", "peers.md"].map(|name| place.path().join(name));
    let args = Args {
        sizes: vec![0, 8, 4096, 1 << 20],
        quick: false,
        runs: 1,
        time: Some(1),
        only: Vec::new(),
        json: Some(json.clone()),
        markdown: Some(markdown.clone()),
        plots: Some(place.path().join("plots")),
        allow_busy: true,
        deadline: 120,
    };
    run_built(workspace, &args, Profile::Dev)?;
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json)?)?;
    let notes = json["notes"].as_array().context("no notes")?;
    ensure!(notes.is_empty(), "not all was measured: {notes:?}");
    let expected: usize = (args.sizes().into_iter().flat_map(Point::all_of))
        .map(|point| Contestant::ALL.into_iter().filter(|who| who.can(point)).count())
        .sum();
    let figures = json["figures"].as_array().map_or(0, Vec::len);
    ensure!(figures == expected, "{figures} figures instead of {expected}");
    let section = std::fs::read_to_string(markdown)?;
    ensure!(section.starts_with("## Figures\n"), "no section of figures");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Args {
        Line::try_parse_from([&["peers"], words].concat()).unwrap().args
    }

    #[test]
    fn sizes_are_nothing_and_the_powers_of_two_to_64_mib_unless_others_are_given() {
        let sizes = args(&[]).sizes();
        assert_eq!((sizes.len(), sizes[0], sizes[1], sizes[27]), (28, 0, 1, LONGEST));
        assert_eq!(args(&["--sizes", "64,8,8"]).sizes(), [8, 64]);
        assert_eq!(args(&["--quick"]).sizes(), QUICK);
        assert!(Line::try_parse_from(["peers", "--sizes", "67108865"]).is_err());
    }

    #[test]
    fn command_of_the_section_repeats_what_was_measured() {
        let words = ["--runs", "3", "--sizes", "8,64", "--only", "ours,baretcp", "--time", "7"];
        let line = "cargo xtask bench peers --runs 3 --sizes 8,64 --time 7 --only ours,baretcp";
        assert_eq!(args(&words).command(), line);
        assert_eq!(args(&[]).command(), "cargo xtask bench peers --runs 3");
    }
}

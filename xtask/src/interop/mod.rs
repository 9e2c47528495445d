//! `cargo xtask interop`: scenarios between Debian's libfabric, unmodified, on the software EFA device, and this
//! stack.
//!
//! ```text
//!   scenario × pair × device RDMA (× seed, if it is random) = cell
//!
//!            ┌── Stage ──┐  commands  ┌───────────────────────────┐
//!   cell ───►│ scenario  │───────────►│ peer: libfabric or efa    │──┐ packets,
//!            │           │◄───────────│ (a process)               │  │ captured
//!            └───────────┘  results   └───────────────────────────┘◄─┘
//!      │
//!      └──► table, and a block for each cell that failed
//! ```
//!
//! The peers and their language: `tests/interop/README.md`.

mod build;
mod cell;
mod corpus;
mod matrix;
mod packets;
mod pattern;
mod peer;
mod programs;
mod record;
mod report;
mod scenarios;
mod stage;

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};

use self::build::Built;
pub(crate) use self::build::c_peer;
use self::cell::{CellResult, Place};
use self::corpus::Corpus;
use self::matrix::{Cell, Device, Devices, Pair, Rdma};
use crate::process;
use crate::setup::{self, Tool};
use crate::workspace::Workspace;

/// What the peers need besides cargo.
pub(crate) const TOOLS: [Tool; 4] =
    [Tool::CCompiler, Tool::LibfabricHeaders, Tool::FiInfo, Tool::VerbsHeaders];

/// Seconds that a cell may take: most take less than one.
const DEADLINE: u64 = 60;

/// The first seed, unless it is given.
const SEED: u64 = 1;

/// Arguments of `cargo xtask interop`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A cell is a scenario, run by a pair of peers, with or without device RDMA. The first of a pair sends. \
Of the scenarios `random…` there is a cell for each seed, by which it is run again. \
Each failed cell gets a block below the table: the command that runs it alone, what was expected and \
what was seen, the last lines of both peers, and the last packets.")]
pub(crate) struct Args {
    /// List the scenarios, and run nothing
    #[arg(long)]
    list: bool,
    /// Only the scenario of this name, or those with this in their names; several, separated by
    /// commas
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    only: Vec<String>,
    /// Only these pairs: the sender and the receiver
    #[arg(long, value_name = "PAIR", value_delimiter = ',')]
    pair: Vec<Pair>,
    /// Only with device RDMA, or only without
    #[arg(long, value_name = "WHICH")]
    rdma: Option<Rdma>,
    /// Device of our own peers, or of the one that sends and the others: soft, verbs, or provider, with which they
    /// are C programs on our provider for libfabric
    #[arg(long, value_name = "DEVICE[,DEVICE]", default_value = "soft")]
    device: Devices,
    /// The first seed of the random scenarios
    #[arg(long, value_name = "N", default_value_t = SEED)]
    seed: u64,
    /// How many seeds, from the first on
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// Cells that run at the same time [default: twice the number of processors: peers often wait]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// Seconds that a cell may take
    #[arg(long, value_name = "SECONDS", default_value_t = DEADLINE, value_parser = process::seconds())]
    deadline: u64,
    /// Keep captures and output of cells that passed, too
    #[arg(long)]
    keep: bool,
    /// Print every command and result of the peers
    #[arg(long)]
    trace: bool,
    /// Record the golden corpus: one packet of each shape that libfabric sends in any cell
    #[arg(long, conflicts_with_all = ["only", "pair", "rdma"])]
    corpus: bool,
}

/// The whole matrix, as a step of `cargo xtask test`.
pub(crate) fn gate(workspace: &Workspace) -> Result<()> {
    run(workspace, &Args::default())
}

/// The cells of our provider for libfabric, as a part of the step `provider`: with libfabric's own, then with itself and
/// with our peers in Rust, each on rdma-core's interfaces. The latter with RDMA only: what packets do in its place is the
/// engine's, which the step `interop` shows, and the first cells show it in C programs' memory.
pub(crate) fn provider_gate(workspace: &Workspace) -> Result<()> {
    let (provider, verbs) = (Device::Provider, Device::Verbs);
    let itself = Devices::all(provider);
    let sends = Devices { sender: provider, receiver: verbs };
    let receives = Devices { sender: verbs, receiver: provider };
    let pair = vec![Pair::CRust, Pair::RustC];
    run(workspace, &Args { device: itself, pair, ..Args::default() })?;
    for device in [itself, sends, receives] {
        let (pair, rdma) = (vec![Pair::RustRust], Some(Rdma::On));
        run(workspace, &Args { device, pair, rdma, ..Args::default() })?;
    }
    Ok(())
}

/// `cargo xtask interop`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if args.list {
        return Ok(report::list(&mut std::io::stdout())?);
    }
    let cells = args.cells()?;
    setup::provide(workspace, TOOLS)?;
    let built = Built::build(workspace, args.device)?;
    say!("with libfabric {}; our peers on the device {}", built.libfabric, args.device);
    let mut place = Place::new(&built, Duration::from_secs(args.deadline), args.keep, args.trace)?;
    if args.corpus {
        place.collect_corpus(Corpus::begin(workspace, &built)?);
    }
    let results = run_cells(&place, &cells, args.jobs());
    report::print(&results, args.device);
    let failed = results.iter().filter(|result| result.failed()).count();
    if failed > 0 {
        bail!("{failed} of {} cells failed", results.len());
    }
    Ok(())
}

impl Default for Args {
    fn default() -> Self {
        let (list, keep, trace, corpus) = (false, false, false, false);
        let (only, pair, rdma, device, jobs) = Default::default();
        let (seed, seeds, deadline) = (SEED, 1, DEADLINE);
        Self { list, only, pair, rdma, device, seed, seeds, jobs, deadline, keep, trace, corpus }
    }
}

impl Args {
    fn cells(&self) -> Result<Vec<Cell>> {
        let Some(end) = self.seed.checked_add(self.seeds.into()) else {
            bail!("there are no {} seeds from {} on", self.seeds, self.seed);
        };
        let mut cells = matrix::cells(self.seed..end);
        let names: Vec<_> = scenarios::all().map(|scenario| scenario.name).collect();
        // A whole name means that scenario alone.
        let is_meant = |name: &str, pattern: &String| match names.contains(&pattern.as_str()) {
            true => name == pattern,
            false => name.contains(pattern),
        };
        let wanted = |cell: &Cell| {
            let name = cell.scenario.name;
            (self.only.is_empty() || self.only.iter().any(|pattern| is_meant(name, pattern)))
                && (self.pair.is_empty() || self.pair.contains(&cell.pair))
                && self.rdma.is_none_or(|rdma| rdma == cell.rdma)
        };
        cells.retain(wanted);
        if cells.is_empty() {
            bail!("no cell matches; `--list` prints the scenarios");
        }
        Ok(cells)
    }

    fn jobs(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, NonZero::get);
        self.jobs.map_or_else(|| 2 * processors(), NonZero::get)
    }
}

/// Runs the cells on `jobs` threads; the results are in the order of the cells.
fn run_cells(place: &Place, cells: &[Cell], jobs: usize) -> Vec<CellResult> {
    let bar = report::progress(cells.len());
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(cells.len()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&cell) = cells.get(index) else { break };
                    bar.set_message(cell.to_string());
                    let result = cell::run(place, index, cell);
                    report::ended(&bar, &result);
                    if let Ok(mut results) = results.lock() {
                        results.push((index, result));
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &[&str], pair: &[Pair], rdma: Option<Rdma>) -> Vec<String> {
        let only = only.iter().map(|&pattern| pattern.to_owned()).collect();
        let args = Args { only, pair: pair.to_vec(), rdma, ..Args::default() };
        args.cells().unwrap().iter().map(Cell::to_string).collect()
    }

    #[test]
    fn list_to_a_closed_pipe_succeeds() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        drop(reader);
        report::list(&mut writer).unwrap();
        let mut all = Vec::new();
        report::list(&mut all).unwrap();
        assert_eq!(String::from_utf8(all).unwrap().lines().count(), scenarios::all().count());
    }

    #[test]
    fn cell_names_are_unique() {
        let mut all = names(&[], &[], None);
        let count = all.len();
        assert_eq!(count, scenarios::all().count() * Pair::ALL.len() * Rdma::ALL.len());
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn random_scenarios_have_a_cell_for_each_seed_and_others_one() {
        let pair = vec![Pair::CRust];
        let only = vec!["random".to_owned(), "cancel".to_owned()];
        let args = Args { only, pair, rdma: Some(Rdma::On), seed: 7, seeds: 2, ..Args::default() };
        let cells: Vec<_> = args.cells().unwrap().iter().map(Cell::to_string).collect();
        let random = ["random.c-rust.rdma-on.seed-7", "random.c-rust.rdma-on.seed-8"];
        assert_eq!(cells, ["cancel.c-rust.rdma-on", random[0], random[1]]);
        let last = Args { seed: u64::MAX, ..Args::default() };
        assert!(last.cells().is_err());
    }

    #[test]
    fn only_takes_a_whole_name_or_a_part_of_names() {
        let one = names(&["truncated"], &[Pair::CRust], Some(Rdma::On));
        assert_eq!(one, ["truncated.c-rust.rdma-on"]);
        let several = names(&["truncate"], &[Pair::RustC], Some(Rdma::Off));
        assert_eq!(several.len(), 4, "{several:?}");
        assert_eq!(names(&["cancel", "classes"], &[], None).len(), 16);
        let nothing = Args { only: vec!["nothing".into()], ..Args::default() };
        assert!(nothing.cells().is_err());
    }
}

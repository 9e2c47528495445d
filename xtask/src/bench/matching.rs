//! `cargo xtask bench match`: the cost of a match with many posted receives or unexpected messages, in this
//! project's code and in Debian's libraries.
//!
//! ```text
//!   tests/bench/match: a program each, all doing the same
//!                     │
//!   for each depth:   ├── alone, in turn, three times ──► nanoseconds
//!                     └── under callgrind, once ────────► instructions
//!                                    │
//!                     tables, and plots as SVG
//! ```
//!
//! A round is a whole message of 8 bytes to the own process: send, match, completions, next
//! receive. It is the same for all but the matcher alone, which has no peer: the part of the
//! engine's round that depth can change.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use efa_plot::{Corner, Plot, Series};

use super::soft::{BUSY, load, median};
use crate::output;
use crate::process::{self, Running};
use crate::profile::Profile;
use crate::setup::{self, Tool};
use crate::workspace::Workspace;

/// How often nanoseconds are taken.
const TURNS: usize = 3;
/// Parts of a run that the programs take the median of.
const WINDOWS: u32 = 8;
/// Receives that libfabric 1.17 is configured for; with more, its endpoint crashes when it is created.
const SHM_RECEIVES: u32 = 32_768;

/// Arguments of `cargo xtask bench match`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A report, never a gate: the limits on instructions are in the benches of efa-match. Peers that aren't \
installed are named as missing.")]
pub(crate) struct Args {
    /// How many receives or messages wait
    #[arg(long, value_name = "N", value_delimiter = ',',
          default_values_t = [1, 16, 256, 4096, 65_536],
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    depths: Vec<u32>,
    /// Where the plots go [default: bench/match in cargo's target directory]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// Seconds that a program may take
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = process::seconds())]
    deadline: u64,
}

/// A program that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Contestant {
    Matcher,
    Engine,
    OpenMpiUcx,
    OpenMpiOb1,
    Mpich,
    Shm,
}

impl Contestant {
    const ALL: [Self; 6] =
        [Self::Matcher, Self::Engine, Self::OpenMpiUcx, Self::OpenMpiOb1, Self::Mpich, Self::Shm];

    /// Most that can wait.
    fn most(self) -> u32 {
        match self {
            Self::Shm => SHM_RECEIVES - 1,
            _ => u32::MAX,
        }
    }

    /// What it takes to build a peer's program, and where Debian has it.
    fn build(self) -> Option<Build> {
        let mpi = |compiler, packages| Build { compiler, header: None, library: None, packages };
        match self {
            Self::Matcher | Self::Engine => None,
            Self::OpenMpiUcx | Self::OpenMpiOb1 => {
                Some(mpi("mpicc.openmpi", "openmpi-bin libopenmpi-dev"))
            }
            Self::Mpich => Some(mpi("mpicc.mpich", "mpich libmpich-dev")),
            Self::Shm => Some(Build {
                compiler: "cc",
                header: Some("/usr/include/rdma/fabric.h"),
                library: Some("-lfabric"),
                packages: "libfabric-dev",
            }),
        }
    }

    /// The source of a peer's program.
    fn source(self) -> &'static str {
        if self == Self::Shm { "fi.c" } else { "mpi.c" }
    }

    /// Chooses the peer's way of matching, and transports within a process.
    fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Matcher | Self::Engine => &[],
            Self::OpenMpiUcx => &[
                ("OMPI_MCA_pml", "ucx"),
                // Without these Open MPI refuses UCX on machines without InfiniBand.
                ("OMPI_MCA_pml_ucx_tls", "any"),
                ("OMPI_MCA_pml_ucx_devices", "any"),
                ("UCX_TLS", "self"),
                ("OMPI_MCA_ess_singleton_isolated", "1"),
            ],
            Self::OpenMpiOb1 => &[
                ("OMPI_MCA_pml", "ob1"),
                ("OMPI_MCA_btl", "self"),
                ("OMPI_MCA_ess_singleton_isolated", "1"),
            ],
            Self::Mpich => &[("UCX_TLS", "self")],
            Self::Shm => &[("FI_SHM_RX_SIZE", "32768")],
        }
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Matcher => "efa-match alone",
            Self::Engine => "efa, shm link",
            Self::OpenMpiUcx => "Open MPI, UCX",
            Self::OpenMpiOb1 => "Open MPI, ob1",
            Self::Mpich => "MPICH, UCX",
            Self::Shm => "libfabric shm",
        })
    }
}

/// How a peer's program is built.
struct Build {
    compiler: &'static str,
    header: Option<&'static str>,
    library: Option<&'static str>,
    packages: &'static str,
}

impl Build {
    fn is_possible(&self) -> bool {
        process::find_in_path(self.compiler).is_some()
            && self.header.is_none_or(|header| Path::new(header).is_file())
    }
}

/// What waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Waiting {
    Receives,
    Messages,
}

impl Waiting {
    const ALL: [Self; 2] = [Self::Receives, Self::Messages];

    fn word(self) -> &'static str {
        match self {
            Self::Receives => "posted",
            Self::Messages => "unexpected",
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Receives => "posted receives",
            Self::Messages => "unexpected messages",
        })
    }
}

/// What a round is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unit {
    Instructions,
    Nanoseconds,
}

impl Unit {
    const ALL: [Self; 2] = [Self::Instructions, Self::Nanoseconds];

    fn word(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Nanoseconds => "nanoseconds",
        }
    }
}

/// `cargo xtask bench match`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    setup::provide(workspace, [Tool::Valgrind])?;
    let target = workspace.metadata()?.target_directory;
    let output = args.output.clone().unwrap_or_else(|| target.join("bench/match"));
    std::fs::create_dir_all(&output)
        .with_context(|| format!("cannot make {}", output.display()))?;
    let range = Range::build(workspace, &target, args)?;
    let load = load()?;
    if load > BUSY {
        say!("note: the load of this machine is {load}; nanoseconds say little");
    }
    let results = range.measure_all(&args.depths)?;
    for waiting in Waiting::ALL {
        for unit in Unit::ALL {
            say!("{waiting}: {} a round, a random one hit", unit.word());
            say!("{}", results.table(waiting, unit, &args.depths));
            let file = output.join(format!("{}-{}.svg", waiting.word(), unit.word()));
            let svg = results.plot(waiting, unit).to_svg()?;
            std::fs::write(&file, svg)
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    output::write(format_args!("{}", results.notes()));
    say!("plots: {}", output.join("*.svg").display());
    Ok(())
}

// ---- running ------------------------------------------------------------------------------------

/// The programs, and how they run.
struct Range {
    programs: Vec<(Contestant, PathBuf)>,
    missing: Vec<String>,
    /// For what programs leave behind.
    scratch: PathBuf,
    deadline: Duration,
}

impl Range {
    fn build(workspace: &Workspace, target: &Path, args: &Args) -> Result<Self> {
        let ours = Profile::Release.program(workspace, "efa-bench-match")?;
        let built = target.join("bench/match/programs");
        let scratch = target.join(format!("bench/match/scratch-{}", std::process::id()));
        for directory in [&built, &scratch] {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let (mut programs, mut missing) = (Vec::new(), Vec::new());
        for contestant in Contestant::ALL {
            let Some(build) = contestant.build() else {
                programs.push((contestant, ours.clone()));
                continue;
            };
            if !build.is_possible() {
                missing.push(format!("{contestant}: missing; Debian has it in {}", build.packages));
                continue;
            }
            let program = built.join(format!("{contestant:?}").to_lowercase());
            let source = workspace.root().join("tests/bench/match").join(contestant.source());
            let mut compiler = Command::new(build.compiler);
            compiler.args(["-O2", "-Wall", "-Wextra", "-o"]).arg(&program).arg(source);
            process::run(compiler.args(build.library))?;
            programs.push((contestant, program));
        }
        let deadline = Duration::from_secs(args.deadline);
        Ok(Self { programs, missing, scratch, deadline })
    }

    fn measure_all(&self, depths: &[u32]) -> Result<Results> {
        let mut results = Results { notes: self.missing.clone(), ..Results::default() };
        for waiting in Waiting::ALL {
            for &depth in depths {
                print_error!("{depth} {waiting}");
                self.measure(waiting, depth, &mut results)?;
            }
        }
        Ok(results)
    }

    /// Runs all programs that support the depth, in turn.
    fn measure(&self, waiting: Waiting, depth: u32, results: &mut Results) -> Result<()> {
        let mut times: BTreeMap<Contestant, Vec<f64>> = BTreeMap::new();
        let mut failed = Vec::new();
        for turn in 0..=TURNS {
            for (contestant, program) in &self.programs {
                if depth > contestant.most() || failed.contains(contestant) {
                    continue;
                }
                let measured = match turn {
                    0 => self.instructions(*contestant, program, waiting, depth),
                    _ => self.nanoseconds(*contestant, program, waiting, depth),
                };
                match measured {
                    Ok(figure) if turn == 0 => {
                        results.add(waiting, Unit::Instructions, *contestant, depth, figure);
                    }
                    Ok(figure) => times.entry(*contestant).or_default().push(figure),
                    // A failure of another library is noted; ours is an error.
                    Err(error) if contestant.build().is_some() => {
                        results.notes.push(format!("{contestant}, {depth} {waiting}: {error:#}"));
                        failed.push(*contestant);
                    }
                    Err(error) => {
                        return Err(error.context(format!("{contestant}, {depth} {waiting}")));
                    }
                }
            }
        }
        for (contestant, times) in times {
            if let Some(time) = median(times.into_iter()) {
                results.add(waiting, Unit::Nanoseconds, contestant, depth, time);
            }
        }
        Ok(())
    }

    fn nanoseconds(
        &self,
        contestant: Contestant,
        program: &Path,
        waiting: Waiting,
        depth: u32,
    ) -> Result<f64> {
        let rounds = (1 << 24) / depth;
        let mut command = Command::new(program);
        let said =
            self.finish(contestant, waiting, depth, rounds.clamp(256, 1 << 15), &mut command)?;
        said.trim().parse().with_context(|| format!("no figure in `{}`", said.trim()))
    }

    fn instructions(
        &self,
        contestant: Contestant,
        program: &Path,
        waiting: Waiting,
        depth: u32,
    ) -> Result<f64> {
        let rounds = ((1 << 18) / depth).clamp(32, 512);
        let counts = self.scratch.join("callgrind.out");
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--quiet", "--toggle-collect=*measured_rounds"]);
        let mut counts_to = std::ffi::OsString::from("--callgrind-out-file=");
        counts_to.push(&counts);
        command.arg(counts_to).arg(program);
        self.finish(contestant, waiting, depth, rounds, &mut command)?;
        let text = std::fs::read_to_string(&counts)
            .with_context(|| format!("cannot read {}", counts.display()))?;
        let total = total(&text).context("callgrind wrote no total")?;
        ensure!(total > 0.0, "callgrind counted nothing");
        Ok(total / f64::from(rounds / WINDOWS * WINDOWS))
    }

    /// What the program prints.
    fn finish(
        &self,
        contestant: Contestant,
        waiting: Waiting,
        depth: u32,
        rounds: u32,
        command: &mut Command,
    ) -> Result<String> {
        match contestant {
            Contestant::Matcher => command.arg("matcher"),
            Contestant::Engine => command.arg("engine"),
            _ => command,
        };
        command.args([waiting.word(), &depth.to_string(), &rounds.to_string()]);
        command.envs(contestant.environment().iter().copied());
        let errors = self.scratch.join("stderr");
        let log = std::fs::File::create(&errors)
            .with_context(|| format!("cannot make {}", errors.display()))?;
        command.env("TMPDIR", &self.scratch).stdin(Stdio::null()).stderr(log);
        let mut running = Running::start(command)?;
        let ended = running.finish(Instant::now() + self.deadline);
        if let Err(error) = ended {
            forget_shared_memory(running.id());
            let said = std::fs::read_to_string(&errors).unwrap_or_default();
            match said.lines().rfind(|line| !line.trim().is_empty()) {
                Some(line) => bail!("{error:#}: {}", line.trim()),
                None => return Err(error),
            }
        }
        ended
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

/// libfabric's shm leaves files of its process when that is killed.
fn forget_shared_memory(id: u32) {
    for file in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        if file.file_name().to_string_lossy().starts_with(&format!("{id}:")) {
            let _ = std::fs::remove_file(file.path());
        }
    }
}

/// What callgrind counted in all.
fn total(counts: &str) -> Option<f64> {
    let line = |name| counts.lines().find_map(move |line| line.strip_prefix(name));
    let figures = line("totals:").or_else(|| line("summary:"))?;
    figures.split_whitespace().next()?.parse().ok()
}

// ---- reporting ------------------------------------------------------------------------------------

/// All figures, by what they are of.
#[derive(Debug, Default)]
struct Results {
    figures: BTreeMap<(Waiting, Unit, Contestant), BTreeMap<u32, f64>>,
    /// Peers without figures, and why.
    notes: Vec<String>,
}

impl Results {
    fn add(&mut self, waiting: Waiting, unit: Unit, who: Contestant, depth: u32, figure: f64) {
        self.figures.entry((waiting, unit, who)).or_default().insert(depth, figure);
    }

    fn of(
        &self,
        waiting: Waiting,
        unit: Unit,
    ) -> impl Iterator<Item = (Contestant, &BTreeMap<u32, f64>)> {
        let which = move |key: &(Waiting, Unit, Contestant)| (key.0, key.1) == (waiting, unit);
        self.figures.iter().filter(move |(key, _)| which(key)).map(|(key, row)| (key.2, row))
    }

    fn table(&self, waiting: Waiting, unit: Unit, depths: &[u32]) -> Table {
        let mut table = Table::new();
        table.load_preset(UTF8_HORIZONTAL_ONLY);
        let heads = depths.iter().map(u32::to_string);
        table.set_header(std::iter::once("waiting".to_owned()).chain(heads));
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for (contestant, row) in self.of(waiting, unit) {
            let cells =
                depths.iter().map(|depth| row.get(depth).map_or("–".to_owned(), |f| shown(*f)));
            table.add_row(std::iter::once(contestant.to_string()).chain(cells));
        }
        table
    }

    fn plot(&self, waiting: Waiting, unit: Unit) -> Plot {
        let series = self.of(waiting, unit).map(|(contestant, row)| {
            let points = row.iter().map(|(&depth, &figure)| (f64::from(depth), figure));
            Series::new(contestant.to_string(), points)
        });
        Plot {
            title: format!(
                "A message of 8 B to the own process, a random one of the {waiting} hit"
            ),
            x: waiting.to_string(),
            y: format!("{} a round", unit.word()),
            legend: Corner::UpperLeft,
            series: series.collect(),
        }
    }

    /// Notes below the tables.
    fn notes(&self) -> String {
        let mut text = format!(
            "A round is send, match, completions and next receive of a message to the own process; of \
             efa-match alone it is match and next receive. Nanoseconds are the median of {TURNS} \
             turns. libfabric's shm takes less than {SHM_RECEIVES}.\n"
        );
        for note in &self.notes {
            text += &format!("{note}\n");
        }
        text
    }
}

fn shown(figure: f64) -> String {
    if figure < 100.0 { format!("{figure:.1}") } else { format!("{figure:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_is_parsed_from_callgrind_output() {
        assert_eq!(total("events: Ir\nfn=(1)\n1 5\ntotals: 4711\n"), Some(4711.0));
        assert_eq!(total("summary: 12 3\nevents: Ir Dr\n"), Some(12.0));
        assert_eq!(total("events: Ir\n"), None);
    }

    #[test]
    fn table_has_a_row_for_each_program_and_a_dash_for_missing_depths() {
        let mut results = Results::default();
        let unit = Unit::Instructions;
        results.add(Waiting::Receives, unit, Contestant::Shm, 16, 99.96);
        results.add(Waiting::Receives, unit, Contestant::Matcher, 16, 181.5);
        results.add(Waiting::Receives, unit, Contestant::Matcher, 65_536, 182.0);
        results.add(Waiting::Messages, unit, Contestant::Engine, 16, 1.0);
        let table = results.table(Waiting::Receives, unit, &[16, 65_536]).to_string();
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .filter(|words: &Vec<&str>| words.len() > 1)
            .collect();
        assert_eq!(
            rows,
            [
                vec!["waiting", "16", "65536"],
                vec!["efa-match", "alone", "182", "182"],
                vec!["libfabric", "shm", "100.0", "–"],
            ]
        );
        let plot = results.plot(Waiting::Receives, unit);
        assert_eq!(plot.series.len(), 2);
        assert!(plot.to_svg().unwrap().contains("libfabric shm"));
    }
}

//! `cargo xtask bench soft`: the time that the software EFA device costs an unmodified libfabric.
//!
//! ```text
//!  round 1: efa, shm, tcp at 8 B │ the device alone │ efa, shm, tcp at 1 MiB
//!  round 2: the same             │ …
//! ```
//!
//! efa is libfabric's EFA provider on our device; the device alone is the example `latency` of
//! efa-softverbs, which makes the same verbs calls without libfabric. All of a round runs within
//! seconds, so a disturbance affects all, and ratios are taken within rounds.
//!
//! The first message of `fi_pingpong` waits for the setup of its provider, inside the measured time. So each
//! measurement is two runs, a long one and one of a tenth: the difference gives the time of a message, and the rest
//! of the short run is the start.
//!
//! Other processes only make a round slower. So the verdict is by the best of the rounds in which they took next to
//! nothing; with too few of those there is no verdict.

use std::collections::BTreeMap;
use std::fmt;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};

use crate::output;
use crate::process::{self, Running};
use crate::profile::Profile;
use crate::setup::{self, Tool};
use crate::workspace::Workspace;

/// Microseconds one way that the device may add to libfabric at 8 B.
const DEVICE_GOAL: f64 = 1.5;
/// Load above which figures say little.
pub(super) const BUSY: f64 = 1.5;
/// Share of the processors that others may take in a round that counts.
const QUIET: f64 = 0.03;
/// Rounds that must count for a verdict.
const ENOUGH: usize = 3;
/// How much longer the long run is than the short one.
const LONG_BY_SHORT: u32 = 10;

/// Arguments of `cargo xtask bench soft`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A report, never a gate: wall clock. Needs two processors; both sides of a pair poll all the time, each \
on its own. Quiet machines give good figures, and --real-time helps on others.")]
pub(crate) struct Args {
    /// Messages of 8 B each way in a long run; 1 MiB gets a twentieth
    #[arg(long, value_name = "N", default_value = "60000",
          value_parser = clap::value_parser!(u32).range(1000..10_000_000))]
    iterations: u32,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value = "7",
          value_parser = clap::value_parser!(u32).range(1..1000))]
    rounds: u32,
    /// Seconds that a run may take
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = process::seconds())]
    deadline: u64,
    /// Run before all other programs of the machine (chrt, needs root)
    #[arg(long)]
    real_time: bool,
}

/// A program that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Contestant {
    Efa,
    Shm,
    Tcp,
    /// The device without libfabric.
    Device,
}

impl Contestant {
    const PROVIDERS: [Self; 3] = [Self::Efa, Self::Shm, Self::Tcp];

    /// The name of the provider, for those that are.
    fn provider(self) -> &'static str {
        match self {
            Self::Efa => "efa",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Device => "-",
        }
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Efa => "efa on the software device",
            Self::Shm => "libfabric's shm",
            Self::Tcp => "libfabric's tcp",
            Self::Device => "the device alone",
        })
    }
}

/// A size of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Size {
    Small,
    Large,
}

impl Size {
    const ALL: [Self; 2] = [Self::Small, Self::Large];

    fn bytes(self) -> u32 {
        match self {
            Self::Small => 8,
            Self::Large => 1 << 20,
        }
    }

    /// Messages each way in a long run.
    fn count(self, iterations: u32) -> u32 {
        match self {
            Self::Small => iterations,
            Self::Large => iterations / 20,
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Small => "8 B",
            Self::Large => "1 MiB",
        })
    }
}

/// `cargo xtask bench soft`
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    setup::provide(workspace, [Tool::FiInfo])?;
    let range = Range::build(workspace, args)?;
    let mut results = Results { real_time: args.real_time, ..Results::default() };
    for round in 1..=args.rounds {
        print_error!("round {round} of {}", args.rounds);
        let before = Usage::now()?;
        for size in Size::ALL {
            for contestant in Contestant::PROVIDERS {
                results.add(contestant, size, range.measure(contestant, size)?);
            }
            if size == Size::Small {
                let alone = Sample { message: range.device_alone()?, start: None };
                results.add(Contestant::Device, size, alone);
            }
        }
        results.others.push(Usage::now()?.others_since(before));
    }
    say!("{}", results.table());
    output::write(format_args!("{}", results.verdict()));
    Ok(())
}

// ---- running ------------------------------------------------------------------------------------

/// A measurement, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    /// A message, one way.
    message: f64,
    /// Time before the first message, if measured.
    start: Option<f64>,
}

impl Sample {
    /// From what `count` messages each way took in all, and a tenth of them.
    fn from_runs(count: u32, long: f64, short: f64) -> Self {
        let few = count / LONG_BY_SHORT;
        let message = (long - short) / f64::from(2 * (count - few));
        Self { message, start: Some(short - message * f64::from(2 * few)) }
    }
}

/// Where and how programs run.
struct Range {
    library: PathBuf,
    latency: PathBuf,
    processors: [String; 2],
    iterations: u32,
    deadline: Duration,
    real_time: bool,
}

impl Range {
    fn build(workspace: &Workspace, args: &Args) -> Result<Self> {
        let processors = two_processors()?;
        let mut cargo = workspace.cargo();
        cargo.args(["build", "--quiet", Profile::Release.argument(), "--package=efa-softverbs"]);
        process::run(cargo.args(["--lib", "--example=latency"]))?;
        let built = Profile::Release.directory(workspace)?;
        Ok(Self {
            library: built.join("libefa_soft.so"),
            latency: built.join("examples/latency"),
            processors,
            iterations: args.iterations,
            deadline: Duration::from_secs(args.deadline),
            real_time: args.real_time,
        })
    }

    /// A program on one of the two processors.
    fn command(&self, side: usize, program: &Path) -> Command {
        let mut words: Vec<&str> = Vec::new();
        if self.real_time {
            words.extend(["chrt", "--fifo", "1"]);
        }
        words.extend(["taskset", "--cpu-list", &self.processors[side]]);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(program);
        command.env("EFA_SOFT_NAME", "bench").stdin(Stdio::null());
        command
    }

    /// A pair of `fi_pingpong`, twice.
    fn measure(&self, contestant: Contestant, size: Size) -> Result<Sample> {
        let count = size.count(self.iterations);
        let long = self.pingpong(contestant, size, count)?;
        let short = self.pingpong(contestant, size, count / LONG_BY_SHORT)?;
        Ok(Sample::from_runs(count, long, short))
    }

    /// Microseconds that `count` messages each way take, with the start.
    fn pingpong(&self, contestant: Contestant, size: Size, count: u32) -> Result<f64> {
        // A port that is free now; if another process takes it meanwhile, the run fails.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let side = |side, port_is: &str| {
            let mut command = self.command(side, Path::new("fi_pingpong"));
            command.args([port_is, &port.to_string(), "-p", contestant.provider(), "-e", "rdm"]);
            command.args(["-S", &size.bytes().to_string(), "-I", &count.to_string()]);
            if contestant == Contestant::Efa {
                command.env("LD_PRELOAD", &self.library).env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
            }
            command
        };
        let until = Instant::now() + self.deadline;
        let mut server = Running::start(&mut side(0, "-B"))?;
        // Its one client must be the first to connect, so the port is only looked for.
        while !listens(port) {
            ensure!(server.is_running()?, "{contestant}: the server has ended");
            ensure!(Instant::now() < until, "{contestant}: the server doesn't listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut client = Running::start(side(1, "-P").arg("127.0.0.1"))?;
        let said = client.finish(until).with_context(|| format!("{contestant}, client"))?;
        server.finish(until).with_context(|| format!("{contestant}, server"))?;
        let message = usec_per_transfer(&said)
            .with_context(|| format!("{contestant}: no figure in `{}`", said.trim()))?;
        Ok(message * f64::from(count) * 2.0)
    }

    /// Microseconds of a message by the device alone.
    fn device_alone(&self) -> Result<f64> {
        let mut command = self.command(0, &self.latency);
        command.args([&self.iterations.to_string(), &self.processors[1]]);
        let mut running = Running::start(&mut command)?;
        let said = running.finish(Instant::now() + self.deadline).context("latency")?;
        said.trim().parse().with_context(|| format!("no figure in `{}`", said.trim()))
    }
}

/// The last but one column of the line below the heading.
fn usec_per_transfer(said: &str) -> Option<f64> {
    let mut lines = said.lines().skip_while(|line| !line.starts_with("bytes"));
    let column = lines.next()?.split_whitespace().position(|name| name == "usec/xfer")?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

/// The first two processors that we may run on, for `taskset`.
pub(super) fn two_processors() -> Result<[String; 2]> {
    let there = process::find_in_path("taskset").is_some();
    ensure!(there, "there is no taskset on PATH; Debian has it in util-linux");
    let status = std::fs::read_to_string("/proc/self/status")?;
    first_two(&status).context("this needs two processors")
}

fn first_two(status: &str) -> Option<[String; 2]> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    });
    let mut all = ranges.flatten().map(|processor| processor.to_string());
    Some([all.next()?, all.next()?])
}

/// Whether a socket of this machine listens at `port`.
pub(super) fn listens(port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    tables.into_iter().flatten().any(|table| {
        table.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let (local, state) = (fields.next().unwrap_or_default(), fields.nth(1));
            local.ends_with(&format!(":{port:04X}")) && state == Some("0A")
        })
    })
}

/// Processes that ran or wanted to in the last minute.
pub(super) fn load() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    Ok(text.split_whitespace().next().context("an empty /proc/loadavg")?.parse()?)
}

/// What was used of the processors since the start of the machine, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    /// By programs, and by other machines on the same hardware. What interrupts took is left out, as
    /// ours cause most.
    busy: u64,
    all: u64,
    /// By us and the programs that we ran.
    ours: u64,
}

impl Usage {
    pub(super) fn now() -> Result<Self> {
        let all = std::fs::read_to_string("/proc/stat")?;
        let ours = std::fs::read_to_string("/proc/self/stat")?;
        Self::of(&all, &ours).context("/proc/stat is not what it should be")
    }

    fn of(all: &str, ours: &str) -> Option<Self> {
        let numbers = |text: &str| -> Option<Vec<u64>> {
            text.split_whitespace().map(|number| number.parse().ok()).collect()
        };
        // user nice system idle iowait irq softirq steal guest guest_nice, of which user has guest.
        let ticks = numbers(all.lines().next()?.strip_prefix("cpu ")?)?;
        let [user, nice, system, .., steal] = ticks.get(..8)? else { return None };
        // Behind the name in brackets: state, then numbers; utime stime cutime cstime from the 12th on.
        let (_, behind) = ours.rsplit_once(')')?;
        let words: Vec<_> = behind.split_whitespace().skip(11).take(4).collect();
        Some(Self {
            busy: user + nice + system + steal,
            all: ticks[..8].iter().sum(),
            ours: numbers(&words.join(" "))?.iter().sum(),
        })
    }

    /// The share of the processors that others took.
    pub(super) fn others_since(self, before: Self) -> f64 {
        let others = (self.busy - before.busy).saturating_sub(self.ours - before.ours);
        others as f64 / (self.all - before.all).max(1) as f64
    }
}

// ---- reporting ------------------------------------------------------------------------------------

/// The samples, round by round.
#[derive(Debug, Default)]
struct Results {
    samples: BTreeMap<(Size, Contestant), Vec<Sample>>,
    /// The share of the processors that others took in each round.
    others: Vec<f64>,
    /// Then other processes only used idle time.
    real_time: bool,
}

impl Results {
    fn add(&mut self, contestant: Contestant, size: Size, sample: Sample) {
        self.samples.entry((size, contestant)).or_default().push(sample);
    }

    fn messages(&self, size: Size, contestant: Contestant) -> impl Iterator<Item = f64> {
        self.samples.get(&(size, contestant)).into_iter().flatten().map(|sample| sample.message)
    }

    fn median(&self, size: Size, contestant: Contestant) -> Option<f64> {
        median(self.messages(size, contestant))
    }

    /// The median of the ratios within rounds.
    fn ratio(&self, size: Size, one: Contestant, other: Contestant) -> Option<f64> {
        let pairs = self.messages(size, one).zip(self.messages(size, other));
        median(pairs.map(|(one, other)| one / other))
    }

    /// Which rounds count.
    fn counting(&self) -> impl Iterator<Item = bool> {
        self.others.iter().map(|&others| self.real_time || others <= QUIET)
    }

    /// The best of the rounds that count.
    fn best(&self, size: Size, contestant: Contestant) -> Option<f64> {
        let rounds = self.messages(size, contestant).zip(self.counting());
        rounds.filter_map(|(message, counts)| counts.then_some(message)).reduce(f64::min)
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(UTF8_HORIZONTAL_ONLY);
        table.set_header(["size", "by", "min µs", "median µs", "of shm", "start ms"]);
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for (&(size, contestant), samples) in &self.samples {
            let least = self.messages(size, contestant).reduce(f64::min);
            let start = median(samples.iter().filter_map(|sample| sample.start));
            table.add_row([
                size.to_string(),
                contestant.to_string(),
                shown(least),
                shown(self.median(size, contestant)),
                shown(self.ratio(size, contestant, Contestant::Shm)),
                start.map_or_else(String::new, |start| format!("{:.1}", start / 1000.0)),
            ]);
        }
        table
    }

    /// The verdict about the goals.
    fn verdict(&self) -> String {
        let rounds = self.others.len();
        let counting = self.counting().filter(|&counts| counts).count();
        let most = self.others.iter().copied().reduce(f64::max).unwrap_or_default() * 100.0;
        let mut text = String::from(
            "One way, both sides polling. Of shm: the median of the ratios within rounds.\n",
        );
        text += &format!("Others took up to {most:.0} % of the processors in a round");
        if counting < ENOUGH.min(rounds) {
            text += &format!(
                ": too busy a machine to judge ({counting} of {rounds} rounds were quiet, and \
                 {ENOUGH} are needed). Come back later, or try --real-time.\n"
            );
            return text;
        }
        text += &match self.real_time {
            true => ", of what these programs left.\n".to_owned(),
            false => format!("; {counting} of {rounds} rounds were quiet.\n"),
        };
        let small = |contestant| self.best(Size::Small, contestant);
        if let (Some(all), Some(device)) = (small(Contestant::Efa), small(Contestant::Device)) {
            text += &format!(
                "8 B, at best: of {all:.2} µs the device is {device:.2}, libfabric's own software \
                 the other {:.2}; goal for the device: at most {DEVICE_GOAL} µs: {}\n",
                all - device,
                met(device <= DEVICE_GOAL)
            );
        }
        let large = |contestant| self.best(Size::Large, contestant);
        if let (Some(efa), Some(shm)) = (large(Contestant::Efa), large(Contestant::Shm)) {
            text += &format!(
                "1 MiB, at best: {efa:.1} µs, {:.2} of the time of libfabric's shm; goal: at most \
                 1: {}\n",
                efa / shm,
                met(efa <= shm)
            );
        }
        text
    }
}

fn met(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}

fn shown(figure: Option<f64>) -> String {
    figure.map_or_else(String::new, |figure| format!("{figure:.2}"))
}

/// The middle one, or the mean of the two in the middle.
pub(super) fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let last = figures.len().checked_sub(1)?;
    Some(f64::midpoint(figures[last / 2], figures[last.div_ceil(2)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_is_found_by_its_heading() {
        let said = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    1m      2k      =2k      3.9g        0.40s  10553.67      99.36       0.01\n";
        assert_eq!(usec_per_transfer(said), Some(99.36));
        assert_eq!(usec_per_transfer("fi_getinfo: -61 (No data available)\n"), None);
    }

    #[test]
    fn processors_are_those_of_the_affinity_mask() {
        let two = |list: &str| first_two(&format!("Name:\tx\nCpus_allowed_list:\t{list}\n"));
        assert_eq!(two("0-3").unwrap(), ["0", "1"]);
        assert_eq!(two("2,5-6").unwrap(), ["2", "5"]);
        assert_eq!(two("7"), None);
    }

    #[test]
    fn start_time_is_not_counted_as_message_time() {
        // 1000 each way at 3 µs, and 5000 µs before the first.
        let sample = Sample::from_runs(1000, 5000.0 + 6000.0, 5000.0 + 600.0);
        assert_eq!(sample, Sample { message: 3.0, start: Some(5000.0) });
    }

    #[test]
    fn time_of_other_processes_is_separated_from_ours() {
        let usage = |all: &str, ours: &str| Usage::of(&format!("cpu  {all}\ncpu0 1\n"), ours);
        let before = usage("10 0 10 80 0 5 5 0 0 0", "7 (a) b) R 1 1 1 0 0 0 0 0 0 0 5 1 2 2 20");
        let before = before.unwrap();
        assert_eq!(before, Usage { busy: 20, all: 110, ours: 10 });
        let after = usage("90 0 20 90 0 9 9 2 0 0", "7 (a) b) R 1 1 1 0 0 0 0 0 0 0 5 1 52 22 20");
        let after = after.unwrap();
        // 92 ticks of 110 were busy, 70 of them ours.
        assert_eq!(after.others_since(before), 22.0 / 110.0);
        assert_eq!(usage("1 2", ""), None);
    }

    #[test]
    fn best_quiet_round_decides() {
        let mut results = Results::default();
        for (efa, shm, device) in [(60.0, 75.0, 0.5), (200.0, 100.0, 0.7), (81.0, 90.0, 0.4)] {
            let sample = |message| Sample { message, start: None };
            results.add(Contestant::Efa, Size::Large, sample(efa));
            results.add(Contestant::Shm, Size::Large, sample(shm));
            results.add(Contestant::Efa, Size::Small, sample(2.0));
            results.add(Contestant::Device, Size::Small, sample(device));
        }
        assert_eq!(results.ratio(Size::Large, Contestant::Efa, Contestant::Shm), Some(0.9));
        // By the best of all rounds.
        results.others = vec![0.0, 0.01, 0.03];
        let verdict = results.verdict();
        assert!(verdict.contains("of 2.00 µs the device is 0.40"), "{verdict}");
        assert!(verdict.contains("60.0 µs, 0.80 of the time"), "{verdict}");
        assert_eq!(verdict.matches(": met\n").count(), 2, "{verdict}");
        // A busy machine gives no verdict, unless ours come first.
        results.others = vec![0.0, 0.4, 0.01];
        let verdict = results.verdict();
        assert!(verdict.contains("up to 40 % of the processors"), "{verdict}");
        assert!(verdict.contains("too busy a machine to judge (2 of 3"), "{verdict}");
        assert!(!verdict.contains("met"), "{verdict}");
        results.real_time = true;
        assert!(results.verdict().contains("0.80 of the time"));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }
}

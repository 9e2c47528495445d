//! The programs of `cargo xtask bench peers`, and how they run: pinned to two processors, with a deadline.

use std::fmt;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use tempfile::TempDir;

use super::namespaces::Namespaces;
use super::point::{Form, Kind, Point};
use crate::bench::soft::{listens, two_processors};
use crate::process::{self, Running};
use crate::profile::Profile;
use crate::workspace::Workspace;

/// The C programs.
const LIBFABRIC: &str = "libfabric";
const MPI: &str = "mpi";
/// The addresses of the two namespaces.
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
/// A file system in memory.
const MEMORY: &str = "/dev/shm";

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "lower")]
pub(super) enum Contestant {
    /// `efa` with messages from registered memory of the program.
    Ours,
    /// `efa` with messages from memory that the device allocated.
    Mapped,
    /// `efa` on the link tcp, with messages from registered memory of the program.
    OverTcp,
    /// libfabric's provider shm.
    Shm,
    /// libfabric's provider tcp.
    Tcp,
    Ucx,
    /// Open MPI with its own shared memory.
    Mpi,
    /// The engine of `Ours` on its device, without the facade.
    Engine,
    /// Packets of the device that `Ours` uses, without a protocol.
    Device,
    Ring,
    Memcpy,
    Readv,
    #[value(name = "baretcp")]
    BareTcp,
}

impl Contestant {
    pub(super) const ALL: [Self; 13] = [
        Self::Ours,
        Self::Mapped,
        Self::OverTcp,
        Self::Shm,
        Self::Tcp,
        Self::Ucx,
        Self::Mpi,
        Self::Engine,
        Self::Device,
        Self::Ring,
        Self::Memcpy,
        Self::Readv,
        Self::BareTcp,
    ];

    /// Whether it is `efa` in shared memory, and compared with the best peer.
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Self::Ours | Self::Mapped)
    }

    /// Whether it runs between two network namespaces, where these can be made.
    fn is_between_hosts(self) -> bool {
        matches!(self, Self::OverTcp | Self::Tcp | Self::BareTcp)
    }

    pub(super) fn is_peer(self) -> bool {
        matches!(self, Self::Shm | Self::Tcp | Self::Ucx | Self::Mpi)
    }

    /// The name on the command line and in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Mapped => "mapped",
            Self::OverTcp => "overtcp",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Ucx => "ucx",
            Self::Mpi => "mpi",
            Self::Engine => "engine",
            Self::Device => "device",
            Self::Ring => "ring",
            Self::Memcpy => "memcpy",
            Self::Readv => "readv",
            Self::BareTcp => "baretcp",
        }
    }

    /// A program that must be installed, and its Debian packages.
    fn needs(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Shm | Self::Tcp => Some(("/usr/include/rdma/fabric.h", "libfabric-dev")),
            Self::Ucx => Some(("ucx_perftest", "ucx-utils")),
            Self::Mpi => Some(("mpicc.openmpi", "openmpi-bin and libopenmpi-dev")),
            _ => None,
        }
    }

    /// Whether the point can be measured.
    pub(super) fn can(self, point: Point) -> bool {
        match self {
            // It sends from one buffer and receives into one, whatever is under way.
            Self::Ucx => point.form == Form::One,
            // A packet, which is in a buffer of its own.
            Self::Engine => point.size <= 8192 && (point.form == Form::Each || point.window == 1),
            // A packet.
            Self::Device => point.size <= 8192,
            // A line.
            Self::Ring => point.size <= 56,
            // Nothing would be sent.
            Self::BareTcp => point.size > 0,
            _ => true,
        }
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ours => "efa",
            Self::Mapped => "efa, mapped",
            Self::OverTcp => "efa, tcp",
            Self::Shm => "libfabric shm",
            Self::Tcp => "libfabric tcp",
            Self::Ucx => "UCX",
            Self::Mpi => "Open MPI",
            Self::Engine => "efa-rdm alone",
            Self::Device => "bare device",
            Self::Ring => "bare ring",
            Self::Memcpy => "memcpy",
            Self::Readv => "process_vm_readv",
            Self::BareTcp => "bare TCP",
        })
    }
}

/// What a line of a program says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Said {
    /// Seconds of a message.
    Time(Point, f64),
    /// How bytes came, for each byte delivered: in packets, of these from the ring to their buffer at once, and by reads of
    /// the device.
    Moved(Point, [f64; 3]),
}

impl Said {
    fn of(line: &str) -> Result<Self> {
        let number = |text: &str| -> Result<f64> {
            let number: f64 = text.parse().with_context(|| format!("`{text}` in `{line}`"))?;
            ensure!(number.is_finite() && number >= 0.0, "`{text}` in `{line}` can't be");
            Ok(number)
        };
        if let Some(moved) = line.strip_prefix("moved ") {
            let mut words = moved.rsplitn(4, ' ');
            let shares = [(); 3].map(|()| words.next());
            let (Some(point), [Some(read), Some(placed), Some(packets)]) = (words.next(), shares)
            else {
                bail!("a program said `{line}`")
            };
            let shares = [number(packets)?, number(placed)?, number(read)?];
            return Ok(Self::Moved(point.parse()?, shares));
        }
        let (point, seconds) = line.rsplit_once(' ').context("a line of one word")?;
        Ok(Self::Time(point.parse()?, number(seconds)?))
    }
}

/// Seconds of a message in what `ucx_perftest -f -v` says.
fn of_perftest(said: &str) -> Option<f64> {
    let mut lines = said.lines().skip_while(|line| !line.starts_with("iterations,"));
    let column = lines.next()?.split(',').position(|name| name == "overall_lat")?;
    let microseconds: f64 = lines.next()?.split(',').nth(column)?.trim().parse().ok()?;
    Some(microseconds / 1e6)
}

/// The programs.
pub(super) struct Range {
    /// Who was built.
    pub(super) there: Vec<Contestant>,
    /// Who is missing, and why.
    pub(super) missing: Vec<String>,
    ours: PathBuf,
    /// Of the C programs.
    built: PathBuf,
    processors: [String; 2],
    /// Where what uses TCP runs; `None` for the loopback interface.
    hosts: Option<Namespaces>,
    least: Duration,
    deadline: Duration,
}

impl Range {
    /// Where what uses TCP runs.
    pub(super) fn tcp_place(&self) -> &'static str {
        match self.hosts {
            Some(_) => "TCP: between two network namespaces, joined by a veth pair",
            None => "TCP: over the loopback interface, as network namespaces can't be made here",
        }
    }

    pub(super) fn build(
        workspace: &Workspace,
        profile: Profile,
        who: &[Contestant],
        least: Duration,
        deadline: Duration,
    ) -> Result<Self> {
        let target = workspace.metadata()?.target_directory;
        let ours = profile.program(workspace, "efa-bench-peers")?;
        let built = target.join("bench/peers");
        std::fs::create_dir_all(&built)
            .with_context(|| format!("cannot make {}", built.display()))?;
        let mut range = Self {
            there: Vec::new(),
            missing: Vec::new(),
            ours,
            built,
            processors: two_processors()?,
            hosts: Namespaces::new(),
            least,
            deadline,
        };
        let sources = workspace.root().join("tests/bench/peers");
        for &who in who {
            match range.build_one(who, &sources) {
                Ok(()) => range.there.push(who),
                Err(error) => range.missing.push(format!("{who}: missing; {error:#}")),
            }
        }
        Ok(range)
    }

    fn build_one(&self, who: Contestant, sources: &Path) -> Result<()> {
        if let Some((sign, package)) = who.needs() {
            let there = Path::new(sign).is_file() || process::find_in_path(sign).is_some();
            ensure!(there, "Debian has it in {package}");
        }
        let (compiler, program, libraries) = match who {
            Contestant::Shm | Contestant::Tcp => ("cc", LIBFABRIC, &["-lfabric"][..]),
            Contestant::Mpi => ("mpicc.openmpi", MPI, &[][..]),
            _ => return Ok(()),
        };
        let source = sources.join(program).with_extension("c");
        process::compile(compiler, [source], libraries, &self.built.join(program))
    }

    /// Measures points, one after the other.
    pub(super) fn measure(&self, who: Contestant, points: &[Point]) -> Result<Vec<Said>> {
        let points: Vec<Point> = points.iter().copied().filter(|point| who.can(*point)).collect();
        if points.is_empty() {
            return Ok(Vec::new());
        }
        let words: Vec<String> = points.iter().map(|point| point.argument()).collect();
        let said = match who {
            Contestant::Shm | Contestant::Tcp => self.pair(who, &[], &[who.name()], &words)?,
            Contestant::BareTcp => self.pair(who, &["tcp"], &[], &words)?,
            Contestant::Mpi => self.mpi(&words)?,
            Contestant::Ucx => {
                let times = points.iter().map(|point| Ok(Said::Time(*point, self.ucx(*point)?)));
                return times.collect();
            }
            ours => self.pair(ours, &[ours.name()], &[], &words)?,
        };
        let said = said.lines().map(Said::of).collect::<Result<Vec<_>>>()?;
        let timed = said.iter().filter(|said| matches!(said, Said::Time(..))).count();
        ensure!(timed == points.len(), "{timed} of {} points were measured", points.len());
        Ok(said)
    }

    /// Both sides of a program; returns what they say.
    fn pair(
        &self,
        who: Contestant,
        before: &[&str],
        after: &[&str],
        points: &[String],
    ) -> Result<String> {
        let place = place()?;
        let errors = |role: &str| place.path().join(format!("{role}.errors"));
        let program = match who {
            Contestant::Shm | Contestant::Tcp => self.built.join(LIBFABRIC),
            _ => self.ours.clone(),
        };
        let start = |side: usize, role: &str| {
            let mut command = self.pinned(side, &program);
            if let Some(hosts) = self.hosts.as_ref().filter(|_| who.is_between_hosts()) {
                command = within(&hosts.names()[side], &command);
                command.env("EFA_PEERS_ADDRESS", ADDRESSES[side]);
            }
            command.args(before).arg(role).arg(place.path()).args(self.limits());
            command.args(after).args(points).stderr(File::create(errors(role))?);
            Running::start(&mut command)
        };
        let until = self.until();
        let finish = |side: &mut Running, role: &str| {
            side.finish(until).with_context(|| {
                let reason = std::fs::read_to_string(errors(role)).unwrap_or_default();
                format!("the {role}: {}", reason.trim())
            })
        };
        let (mut server, mut client) = (start(1, "server")?, start(0, "client")?);
        // A side whose other one failed would wait until its deadline.
        while server.is_running()? && client.is_running()? && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        if server.is_running()? {
            let said = finish(&mut client, "client")?;
            return Ok(said + &finish(&mut server, "server")?);
        }
        let said = finish(&mut server, "server")?;
        Ok(said + &finish(&mut client, "client")?)
    }

    fn mpi(&self, points: &[String]) -> Result<String> {
        let mut command = Command::new("mpirun.openmpi");
        command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
        command.args(["--mca", "pml", "ob1", "--mca", "btl", "self,vader"]);
        command.args(["--mca", "mpi_yield_when_idle", "0"]);
        for (number, processor) in self.processors.iter().enumerate() {
            command.args((number > 0).then_some(":"));
            command.args(["-np", "1", "taskset", "--cpu-list", processor]);
            command.arg(self.built.join(MPI)).args(self.limits()).args(points);
        }
        Running::start(command.stdin(Stdio::null()))?.finish(self.until())
    }

    /// Seconds of a message by UCX's own program, which counts its messages instead of the time.
    fn ucx(&self, point: Point) -> Result<f64> {
        // A port that is free now; if another process takes it meanwhile, the run fails.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let perftest = |processor: usize| {
            let mut command = self.pinned(processor, Path::new("ucx_perftest"));
            command.env("UCX_TLS", "posix,sysv,cma,self").env("UCX_LOG_LEVEL", "error");
            command.args(["-p", &port.to_string()]);
            command
        };
        let (until, count) = (self.until(), messages(point, self.least));
        let mut server = Running::start(&mut perftest(1))?;
        while !listens(port) {
            ensure!(server.is_running()? && Instant::now() < until, "the server doesn't listen");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut client = perftest(0);
        let test = if point.kind == Kind::Latency { "tag_lat" } else { "tag_bw" };
        client.args(["127.0.0.1", "-f", "-v", "-t", test, "-s", &point.size.to_string()]);
        client.args(["-O", &point.window.to_string(), "-n", &count.to_string()]);
        client.args(["-w", &(count / 10).max(point.window.into()).to_string()]);
        let said = Running::start(&mut client)?.finish(until).with_context(|| point.to_string())?;
        server.finish(until).with_context(|| format!("{point}: the server"))?;
        of_perftest(&said).with_context(|| format!("ucx_perftest said `{}`", said.trim()))
    }

    fn pinned(&self, processor: usize, program: &Path) -> Command {
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &self.processors[processor]]).arg(program);
        command.stdin(Stdio::null());
        command
    }

    /// Of a program: the seconds that it lives, the milliseconds of a measurement.
    fn limits(&self) -> [String; 2] {
        [self.deadline.as_secs().to_string(), self.least.as_millis().to_string()]
    }

    /// The programs end by themselves before.
    fn until(&self) -> Instant {
        Instant::now() + self.deadline + Duration::from_secs(5)
    }
}

/// The command in a network namespace.
fn within(namespace: &str, command: &Command) -> Command {
    let mut ip = Command::new("ip");
    ip.args(["netns", "exec", namespace]).arg(command.get_program()).args(command.get_args());
    ip.stdin(Stdio::null());
    ip
}

/// How many messages take about this time.
fn messages(point: Point, least: Duration) -> u64 {
    let message = 0.2e-6 + point.size as f64 / 10e9;
    let count = (least.as_secs_f64() * 1.3 / message) as u64;
    count.clamp(2 * u64::from(point.window), 1 << 24)
}

/// A directory where two sides meet, removed at the end. Rings are files in it, so it is in memory where there is such a
/// place.
fn place() -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("efa-peers-");
    let made = builder.tempdir_in(MEMORY).or_else(|_| builder.tempdir());
    made.context("cannot make a directory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_programs_are_points_with_numbers() {
        let point = Point::stream(4096, 16, Form::Each);
        assert_eq!(Said::of("stream 4096 16 each 4.1e-7").unwrap(), Said::Time(point, 4.1e-7));
        let moved = Said::of("moved stream 4096 16 each 1.5 1 0").unwrap();
        assert_eq!(moved, Said::Moved(point, [1.5, 1.0, 0.0]));
        let cut = "moved stream 1 1 one 2 1";
        for line in ["", "x", "stream 4096 16 each", "stream 1 1 one NaN", cut] {
            assert!(Said::of(line).is_err(), "{line}");
        }
    }

    #[test]
    fn time_of_ucx_is_found_by_its_heading() {
        let said =
            "+---+\niterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw\n100,0.3,1.5,2.5,9\n";
        assert_eq!(of_perftest(said), Some(2.5e-6));
        assert_eq!(of_perftest("iterations,avg_lat\n1,2\n"), None);
    }

    #[test]
    fn number_of_messages_of_ucx_follows_the_time_and_is_at_least_two_windows() {
        let least = Duration::from_millis(20);
        let small = messages(Point::stream(8, 64, Form::One), least);
        assert!((100_000..200_000).contains(&small), "{small}");
        assert_eq!(messages(Point::stream(4 << 20, 64, Form::One), least), 128);
        assert_eq!(messages(Point::latency(64 << 20), least), 3);
    }
}

//! One cell: its directory, the run, and its result.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::build::{Built, Release};
use super::corpus::Corpus;
use super::matrix::{Cell, Device, Rdma, Stack};
use super::packets::Packets;
use super::peer::Traces;
use super::programs::Programs;
use super::scenarios::Script;
use super::stage::{Side, Stage};

/// The directory of hosts, before the number of the process that it belongs to.
const HOSTS: &str = "efa-interop-";

/// The first release with `efa-direct`, which `fi_pingpong` would choose: endpoints without this protocol.
const EFA_DIRECT: Release = Release(2, 1);

/// Where cells run.
pub(crate) struct Place<'a> {
    built: &'a Built,
    /// The hosts of the software device, in memory.
    hosts: PathBuf,
    deadline: Duration,
    keep: bool,
    pub(super) trace: bool,
    corpus: Option<Corpus>,
}

impl<'a> Place<'a> {
    pub(crate) fn new(
        built: &'a Built,
        deadline: Duration,
        keep: bool,
        trace: bool,
    ) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        remove_of_the_dead(&parent)?;
        let hosts = parent.join(format!("{HOSTS}{}", std::process::id()));
        Ok(Self { built, hosts, deadline, keep, trace, corpus: None })
    }

    /// Has the captures of libfabric added to a corpus.
    pub(super) fn collect_corpus(&mut self, corpus: Corpus) {
        self.corpus = Some(corpus);
    }

    fn add_to_corpus(&self, traces: &[Traces]) -> Result<()> {
        let Some(corpus) = &self.corpus else { return Ok(()) };
        let of_c = traces.iter().filter(|traces| traces.stack == Stack::C && !traces.killed);
        of_c.filter(|traces| traces.capture.exists()).try_for_each(|t| corpus.add(&t.capture))
    }

    /// The libfabric that the C peers are linked with.
    pub(super) fn libfabric(&self) -> Release {
        self.built.libfabric
    }

    pub(super) fn hosts(&self) -> &Path {
        &self.hosts
    }

    /// The command that starts a peer in a host of the software device.
    pub(super) fn peer(&self, host: &str, cell: &Cell, traces: &Traces) -> Command {
        let faults = cell.scenario.faults;
        match traces.stack {
            Stack::C => {
                let mut command = self.soft_efa(host, cell, traces);
                command.arg(&self.built.c_peer);
                command
            }
            Stack::Rust if self.device(traces) == Device::Verbs => {
                let mut command = self.soft_efa(host, cell, traces);
                command.arg(&self.built.rust_peer).env("EFA_PEER_DEVICE", "verbs");
                command
            }
            Stack::Rust if self.device(traces) == Device::Provider => {
                let mut command = self.on_provider(host, cell, traces);
                command.arg(&self.built.c_peer).env("EFA_PEER_PROVIDER", "efars");
                command
            }
            Stack::Rust => {
                let mut command = Command::new(&self.built.rust_peer);
                // Scenarios know what goes in packets of which type.
                command.env("FI_EFA_INTER_MIN_READ_MESSAGE_SIZE", (1 << 20).to_string());
                command.env("EFA_SOFT_NAME", host).env("EFA_SOFT_DIRECTORY", &self.hosts);
                command.env("EFA_SOFT_RDMA", cell.rdma.setting());
                command.env("EFA_SOFT_CAPTURE", &traces.capture);
                if let Some(seed) = faults.reorder {
                    command.env("EFA_SOFT_REORDER", seed.to_string());
                }
                if let Some(rate) = faults.receiver_not_ready {
                    command.env("EFA_SOFT_RNR", rate);
                }
                at_home(&mut command, traces);
                command
            }
        }
    }

    /// The device of a peer of ours.
    pub(super) fn device(&self, traces: &Traces) -> Device {
        match traces.name.starts_with(Side::Sender.name()) || traces.name == "client" {
            true => self.built.devices.sender,
            false => self.built.devices.receiver,
        }
    }

    /// The command that runs a program of libfabric on our provider; the program is to be added.
    fn on_provider(&self, host: &str, cell: &Cell, traces: &Traces) -> Command {
        let mut command = self.soft_efa(host, cell, traces);
        command.env("FI_EFARS_DEVICE", "verbs");
        if let Some(directory) = &self.built.provider {
            command.env("FI_PROVIDER_PATH", directory);
        }
        command
    }

    /// The command that runs a program of libfabric; the program is to be added.
    pub(super) fn soft_efa(&self, host: &str, cell: &Cell, traces: &Traces) -> Command {
        let mut command = Command::new(&self.built.efa);
        command.args(["soft-efa", "run"]);
        self.tell_device(&mut command, host, cell, traces);
        if cell.rdma == Rdma::On {
            // Old releases use it only with this variable.
            command.env("FI_EFA_USE_DEVICE_RDMA", "1");
        }
        command.arg("--");
        command
    }

    /// The command `fi_pingpong`, on libfabric's provider or on ours; its arguments are to be added. `None` for a peer
    /// that isn't on libfabric.
    pub(super) fn fi_pingpong(&self, host: &str, cell: &Cell, traces: &Traces) -> Option<Command> {
        let (mut command, provider) = match (traces.stack, self.device(traces)) {
            (Stack::C, _) => (self.soft_efa(host, cell, traces), "efa"),
            (Stack::Rust, Device::Provider) => (self.on_provider(host, cell, traces), "efars"),
            (Stack::Rust, _) => return None,
        };
        command.args(["fi_pingpong", "-p", provider]);
        if traces.stack == Stack::C && self.libfabric() >= EFA_DIRECT {
            command.args(["-f", "efa"]);
        }
        Some(command)
    }

    /// The command `efa pingpong`; its arguments are to be added.
    pub(super) fn efa_pingpong(&self, host: &str, cell: &Cell, traces: &Traces) -> Command {
        if self.device(traces) == Device::Verbs {
            let mut command = self.soft_efa(host, cell, traces);
            command.arg(&self.built.efa).args(["pingpong", "--device", "verbs"]);
            return command;
        }
        let mut command = Command::new(&self.built.efa);
        command.args(["pingpong", "--device", "soft"]);
        self.tell_device(&mut command, host, cell, traces);
        command
    }

    /// Options of `efa` for the device.
    fn tell_device(&self, command: &mut Command, host: &str, cell: &Cell, traces: &Traces) {
        let faults = cell.scenario.faults;
        command.args(["--device-name", host, "--directory"]).arg(&self.hosts);
        command.args(["--device-rdma", cell.rdma.setting()]);
        command.arg("--capture").arg(&traces.capture);
        if let Some(seed) = faults.reorder {
            command.args(["--reorder", &seed.to_string()]);
        }
        if let Some(rate) = faults.receiver_not_ready {
            command.args(["--rnr", rate]);
        }
        at_home(command, traces);
    }

    /// All packets of a capture, as text.
    pub(super) fn packets(&self, capture: &Path) -> Result<String> {
        let output = Command::new(&self.built.efa).arg("decode").arg(capture).output()?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        Ok(text)
    }

    /// How many packets of each type are in a capture: an object of JSON a line.
    pub(super) fn packet_types(&self, capture: &Path) -> Result<String> {
        let mut command = Command::new(&self.built.efa);
        let output = command.args(["decode", "--summary", "--json"]).arg(capture).output()?;
        ensure!(output.status.success(), "cannot decode {}", capture.display());
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The last packets of a capture, as text.
    pub(super) fn last_packets(&self, capture: &Path, count: usize) -> Result<String> {
        let text = self.packets(capture)?;
        let lines: Vec<_> = text.lines().collect();
        Ok(lines[lines.len().saturating_sub(count)..].join("\n"))
    }
}

/// Removes hosts of runs that were killed.
fn remove_of_the_dead(parent: &Path) -> Result<()> {
    for entry in std::fs::read_dir(parent)? {
        let entry = entry?;
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(HOSTS));
        let process = process.filter(|process| process.parse::<u32>().is_ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // It may be another user's, or another run may be removing it.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// Libraries of libfabric leave files where they crash.
fn at_home(command: &mut Command, traces: &Traces) {
    if let Some(directory) = traces.capture.parent() {
        command.current_dir(directory);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // Nothing is there if no peer was started.
        let _ = std::fs::remove_dir_all(&self.hosts);
    }
}

/// The result of a cell.
pub(crate) struct CellResult {
    pub(crate) cell: Cell,
    pub(crate) took: Duration,
    /// Notes for the report.
    pub(crate) notes: Vec<String>,
    /// The failure.
    pub(crate) failure: Option<Failure>,
    /// Why the failure is known to be libfabric's.
    pub(crate) known: Option<&'static str>,
}

/// A failure.
pub(crate) struct Failure {
    pub(crate) error: anyhow::Error,
    /// The files of each peer, with the ends of what is in them.
    pub(crate) peers: Vec<LastWords>,
    /// Where the files are.
    pub(crate) directory: PathBuf,
}

/// The last lines and packets of a peer.
pub(crate) struct LastWords {
    pub(crate) name: String,
    pub(crate) stderr: String,
    pub(crate) packets: String,
}

impl CellResult {
    /// Whether it counts as failure.
    pub(crate) fn failed(&self) -> bool {
        self.failure.is_some() && self.known.is_none()
    }
}

const SHORT_DEADLINE: Duration = Duration::from_secs(3);
/// Last lines of standard error shown.
const LAST_LINES: usize = 12;
/// Packets before a failure.
const LAST_PACKETS: usize = 24;

/// Runs a cell.
pub(crate) fn run(place: &Place<'_>, index: usize, cell: Cell) -> CellResult {
    let started = Instant::now();
    let directory = place.built.target.join(cell.to_string());
    let host = format!("cell-{index}");
    let mut traces = Vec::new();
    // A shorter deadline where libfabric is known to hang.
    let known = cell.known(place.libfabric());
    let deadline = if known.is_some() { SHORT_DEADLINE } else { place.deadline };
    let outcome = play(place, &host, &cell, &directory, started + deadline, &mut traces);
    let outcome = outcome.and_then(|notes| place.add_to_corpus(&traces).map(|()| notes));
    let took = started.elapsed();
    let _ = std::fs::remove_dir_all(place.hosts.join(&host));
    let (notes, failure) = match outcome {
        Ok(notes) => (notes, None),
        Err(error) => {
            let peers = traces.iter().map(|traces| last_words(place, traces)).collect();
            (Vec::new(), Some(Failure { error, peers, directory: directory.clone() }))
        }
    };
    if failure.is_none() && !place.keep {
        let _ = std::fs::remove_dir_all(&directory);
    }
    CellResult { cell, took, notes, failure, known }
}

fn play(
    place: &Place<'_>,
    host: &str,
    cell: &Cell,
    directory: &Path,
    deadline: Instant,
    traces: &mut Vec<Traces>,
) -> Result<Vec<String>> {
    // Files of an earlier run.
    let _ = std::fs::remove_dir_all(directory);
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let mut on_stage = |script: &dyn Fn(&mut Stage<'_>) -> Result<()>| {
        let mut stage = Stage::new(place, host, *cell, directory, deadline);
        let outcome = stage.open().and_then(|()| script(&mut stage));
        let outcome = outcome.and_then(|()| stage.close());
        *traces = stage.end();
        outcome.and_then(|()| {
            let packets = Packets::read(place, *cell, traces)?;
            (cell.scenario.packets)(&packets)
        })
    };
    match cell.scenario.script {
        Script::Peers(run) => on_stage(&run),
        Script::Random(run) => on_stage(&|stage| run(stage, cell.seed)),
        Script::Programs(run) => {
            let mut programs = Programs::new(place, host, *cell, directory, deadline);
            let outcome = run(&mut programs);
            *traces = programs.end();
            outcome.map(|()| Vec::new())
        }
    }
}

fn last_words(place: &Place<'_>, traces: &Traces) -> LastWords {
    let text = std::fs::read_to_string(&traces.stderr).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    let packets = match traces.capture.exists() {
        true => place.last_packets(&traces.capture, LAST_PACKETS),
        false => Ok("no packet was captured".to_owned()),
    };
    LastWords {
        name: traces.name.clone(),
        stderr: lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"),
        packets: packets.unwrap_or_else(|error| format!("{error:#}")),
    }
}

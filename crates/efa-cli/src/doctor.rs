//! `efa doctor`: what a machine needs for the device, each a line, with what to do where it is missing.
//!
//! ```text
//!   Machine (files of /sys, /proc, /dev, limits) ─► checks ─► lines, exit code
//!   the device itself: opened, and an endpoint on it ─┘
//! ```
//!
//! The order is that in which trouble is looked for: a line explains those below it. What is of the
//! device that isn't used is told, and doesn't count. docs/hardware.md says more of each.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use efa::{DeviceError, Domain};
use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use crate::device::{DeviceArgs, Kind, Objects, PropertyArgs};
use crate::output;

/// Version of the JSON form.
const VERSION: u32 = 1;
/// Amazon, in PCI configuration.
const VENDOR: &str = "0x1d0f";
/// What device ids of EFA interfaces begin with.
const INTERFACE: &str = "0xefa";
/// Locked memory with which an endpoint can begin: its first packets and queues.
const LEAST_LOCKED: u64 = 16 << 20;
/// Memory that hosts of the software device can begin with.
const LEAST_SHARED: u64 = 64 << 20;
/// The right to reach the memory of any process, among the capabilities of Linux.
const CAP_SYS_PTRACE: u64 = 1 << 19;
/// What the place of the software device's files is called.
const DEVICE_MEMORY: &str = "memory of the device";
/// The first kernel that copies pinned pages when a process forks.
const COPIES_AT_FORK: (u32, u32) = (5, 12);
/// Where libraries are.
const LIBRARIES: [&str; 6] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "opt/amazon/efa/lib64",
    "opt/amazon/efa/lib",
];

/// Arguments of `efa doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line is `ok`, `note` (works, could be better), or `BAD` with what to do. The exit code is 1 if \
something is bad that the device needs: with --device auto, that of an EFA interface if the machine \
has one, and else of the software device.")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Why there is no good news.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DoctorError {
    /// The lines say what.
    #[error("{bad} of {checks} checks failed")]
    Bad {
        /// How many.
        bad: usize,
        /// Of how many.
        checks: usize,
    },
    /// What there is can't be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), DoctorError> {
    let machine = Machine { root: "/".into(), directory: args.device.soft.directory.clone() };
    let wanted = args.wanted(&machine);
    let mut lines = machine.lines();
    lines.push(args.endpoint(wanted));
    lines.iter_mut().for_each(|line| line.counts &= line.of.is_none_or(|of| of == wanted));
    let text = if args.json { json(&lines) } else { table(&lines) };
    output::tolerate_closed(writeln!(io::stdout(), "{text}"))?;
    let bad = lines.iter().filter(|line| line.fails()).count();
    match bad {
        0 => Ok(()),
        bad => Err(DoctorError::Bad { bad, checks: lines.len() }),
    }
}

/// What is told of a machine with these files, as text and as JSON.
pub(crate) fn of_files(root: &Path) -> (String, String) {
    let lines = Machine { root: root.to_owned(), directory: None }.lines();
    (table(&lines), json(&lines))
}

impl Args {
    pub(crate) fn conflict(&self) -> Option<String> {
        self.device.conflict(&PropertyArgs::default(), None)
    }

    /// The device that is to work.
    fn wanted(&self, machine: &Machine) -> Of {
        match self.device.device {
            Kind::Verbs => Of::Verbs,
            Kind::Soft => Of::Soft,
            Kind::Auto if self.device.interface.is_some() => Of::Verbs,
            Kind::Auto if machine.interfaces().is_empty() && efa::interfaces().is_err() => Of::Soft,
            Kind::Auto => Of::Verbs,
        }
    }

    /// The device itself.
    fn endpoint(&self, wanted: Of) -> Line {
        let properties = PropertyArgs::default();
        let (what, domain) = match wanted {
            Of::Verbs => ("endpoint on the interface", self.device.open_interface()),
            Of::Soft => {
                ("endpoint on the software device", self.device.soft.open(&properties, None))
            }
        };
        let made = |domain: Domain| {
            let name = domain.attributes().name;
            let address = |objects: Objects| objects.endpoint.address();
            let endpoint = Objects::new(&domain, 1).map(address);
            endpoint.map(|address| format!("{name}, {address}")).map_err(|error| error.to_string())
        };
        let line = |state, found, remedy: &str| Line::new(what, None, state, found, remedy);
        match domain.map_err(|error| remedied(&error)).and_then(made) {
            Ok(found) => line(State::Good, found, ""),
            Err(error) => line(State::Bad, error, "see the lines above"),
        }
    }
}

/// The reason alone, where that says all.
fn remedied(error: &efa::Error) -> String {
    match error {
        efa::Error::Device(DeviceError::Absent { reason }) => reason.clone(),
        error => error.to_string(),
    }
}

/// Whose need something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Of {
    Verbs,
    Soft,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Good,
    Note,
    Bad,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Good => "ok",
            Self::Note => "note",
            Self::Bad => "BAD",
        })
    }
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Line {
    what: &'static str,
    /// Whose need it is; `None` for both.
    of: Option<Of>,
    state: State,
    /// Whether it is a need of the device that is to work.
    counts: bool,
    found: String,
    /// What to do, if something.
    remedy: String,
}

impl Line {
    fn new(
        what: &'static str,
        of: impl Into<Option<Of>>,
        state: State,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (of, found, remedy) = (of.into(), found.into(), remedy.into());
        let remedy = if state == State::Good { String::new() } else { remedy };
        Self { what, of, state, counts: true, found, remedy }
    }

    fn fails(&self) -> bool {
        self.counts && self.state == State::Bad
    }
}

fn table(lines: &[Line]) -> String {
    let line = |line: &Line| {
        let state = match (line.counts, line.state) {
            (false, State::Bad) => "-".to_owned(),
            (_, state) => state.to_string(),
        };
        let arrow = if line.remedy.is_empty() { "" } else { ": " };
        format!("{state:<5} {:<32} {}{arrow}{}", line.what, line.found, line.remedy)
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn json(lines: &[Line]) -> String {
    let value = serde_json::json!({
        "version": VERSION,
        "ok": !lines.iter().any(Line::fails),
        "checks": lines,
    });
    value.to_string()
}

/// A machine, by the files that tell of it.
struct Machine {
    root: PathBuf,
    /// Where the files of the software device are to be, if that was said.
    directory: Option<PathBuf>,
}

impl Machine {
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    /// The names in a directory, sorted; none if it isn't there.
    fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn lines(&self) -> Vec<Line> {
        vec![
            self.interface(),
            self.driver(),
            self.rdma_class(),
            self.nodes(),
            self.library("libibverbs", "libibverbs.so.1", "apt install libibverbs1"),
            self.library("libefa", "libefa.so.1", "apt install ibverbs-providers"),
            self.provider(),
            build(),
            locked_memory(),
            self.huge_pages(),
            self.forks(),
            self.shared_memory(),
            self.ptrace(),
        ]
    }

    /// PCI addresses of EFA interfaces.
    fn interfaces(&self) -> Vec<String> {
        let devices = "sys/bus/pci/devices";
        let is = |device: &String, file: &str, value: &str| {
            self.read(&format!("{devices}/{device}/{file}"))
                .is_some_and(|text| text.starts_with(value))
        };
        let mut devices = self.names(devices);
        devices.retain(|device| is(device, "vendor", VENDOR) && is(device, "device", INTERFACE));
        devices
    }

    fn interface(&self) -> Line {
        let found = self.interfaces();
        let (state, found) = match found.is_empty() {
            true => (State::Bad, "none on the PCI bus".to_owned()),
            false => (State::Good, found.join(", ")),
        };
        let remedy = "run on an instance type with EFA, and attach an interface of type efa to it";
        Line::new("EFA interface", Of::Verbs, state, found, remedy)
    }

    fn driver(&self) -> Line {
        let there = self.path("sys/module/efa").is_dir();
        let (state, found) = match self.read("sys/module/efa/version") {
            Some(version) => (State::Good, format!("version {version}")),
            None if there => (State::Good, "loaded".into()),
            None => (State::Bad, "not loaded".into()),
        };
        let remedy = "modprobe efa; if there is none, install the EFA installer's or the kernel's";
        Line::new("driver module efa", Of::Verbs, state, found, remedy)
    }

    fn rdma_class(&self) -> Line {
        let found = self.names("sys/class/infiniband");
        let (state, found) = match found.is_empty() {
            true => (State::Bad, "no device in /sys/class/infiniband".to_owned()),
            false => (State::Good, found.join(", ")),
        };
        Line::new("RDMA devices of the kernel", Of::Verbs, state, found, "modprobe ib_uverbs efa")
    }

    fn nodes(&self) -> Line {
        let directory = "dev/infiniband";
        let mut nodes = self.names(directory);
        nodes.retain(|name| name.starts_with("uverbs"));
        let usable = |name: &&String| {
            let node = self.path(&format!("{directory}/{name}"));
            access(node, Access::READ_OK | Access::WRITE_OK).is_ok()
        };
        let usable = nodes.iter().filter(usable).count();
        let (state, found, remedy) = match (nodes.len(), usable) {
            (0, _) => (
                State::Bad,
                "no /dev/infiniband/uverbs*".to_owned(),
                "modprobe ib_uverbs; in a container, pass the devices (--device /dev/infiniband)",
            ),
            (all, usable) if all == usable => (State::Good, nodes.join(", "), ""),
            (all, usable) => (
                State::Bad,
                format!("{usable} of {all} can be read and written by this user"),
                "chmod 666 /dev/infiniband/uverbs*, as the udev rules of rdma-core do",
            ),
        };
        Line::new("device nodes", Of::Verbs, state, found, remedy)
    }

    fn library(&self, what: &'static str, file: &str, remedy: &str) -> Line {
        let places = LIBRARIES.iter().map(|place| format!("{place}/{file}"));
        let found = places.map(|place| self.path(&place)).find(|path| path.exists());
        let (state, found) = match found {
            Some(path) => (State::Good, path.display().to_string()),
            None => (State::Bad, format!("{file} is in none of the usual places")),
        };
        Line::new(what, Of::Verbs, state, found, remedy)
    }

    /// What tells libibverbs of libefa.
    fn provider(&self) -> Line {
        let places = ["etc/libibverbs.d/efa.driver", "usr/etc/libibverbs.d/efa.driver"];
        let found = places.into_iter().map(|place| self.path(place)).find(|path| path.exists());
        let (state, found) = match found {
            Some(path) => (State::Good, path.display().to_string()),
            None => (State::Bad, "no efa.driver in /etc/libibverbs.d".into()),
        };
        let remedy = "apt install ibverbs-providers";
        Line::new("libefa known to libibverbs", Of::Verbs, state, found, remedy)
    }

    fn huge_pages(&self) -> Line {
        let what = "huge pages";
        let meminfo = self.read("proc/meminfo").unwrap_or_default();
        let value = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let remedy =
            "not needed here; libfabric takes them if there are some (sysctl vm.nr_hugepages)";
        match (value("HugePages_Total:"), value("HugePages_Free:")) {
            (Some(total), Some(free)) if total > 0 => {
                Line::new(what, Of::Verbs, State::Good, format!("{free} of {total} free"), "")
            }
            _ => Line::new(what, Of::Verbs, State::Note, "none are set aside", remedy),
        }
    }

    fn forks(&self) -> Line {
        let release = self.read("proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let good = version >= COPIES_AT_FORK;
        let remedy = "set RDMAV_FORK_SAFE=1 for programs that fork, or take a kernel from 5.12 on";
        let (state, found) = match good {
            true => (State::Good, format!("kernel {release} copies pinned pages")),
            false => (State::Note, format!("kernel {release} takes pinned pages from the parent")),
        };
        Line::new("fork", Of::Verbs, state, found, remedy)
    }

    /// The place of the software device's files: its directory, which the device makes if need be.
    fn shared_memory(&self) -> Line {
        let what = DEVICE_MEMORY;
        let (place, name) = match &self.directory {
            Some(directory) if directory.is_dir() => (directory.clone(), directory.clone()),
            Some(directory) => (parent(directory), parent(directory)),
            None if self.path("dev/shm").is_dir() => (self.path("dev/shm"), "/dev/shm".into()),
            None => {
                let found = "no /dev/shm, so its files are in the directory for temporary files";
                return Line::new(what, Of::Soft, State::Note, found, "mount a tmpfs at /dev/shm");
            }
        };
        let name = name.display();
        let remedy = "mount a tmpfs there (in a container: --shm-size), or use --directory";
        let line = |state, found: String| Line::new(what, Of::Soft, state, found, remedy);
        if access(&place, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_err() {
            return line(State::Bad, format!("this user can't write in {name}"));
        }
        match statvfs(&place) {
            Ok(status) => {
                let free = status.f_bavail.saturating_mul(status.f_frsize);
                let state = if free < LEAST_SHARED { State::Bad } else { State::Good };
                line(state, format!("{} MiB free in {name}", free >> 20))
            }
            Err(error) => line(State::Bad, format!("{name}: {error}")),
        }
    }

    /// Under Yama's scope 1 a process can let others reach its memory, and those of the device do.
    fn ptrace(&self) -> Line {
        let scope = self.read("proc/sys/kernel/yama/ptrace_scope");
        let (state, found) = match scope.as_deref() {
            None => (State::Good, "no Yama: processes of a user reach each other's memory".into()),
            Some(scope @ ("0" | "1")) => (State::Good, format!("ptrace_scope {scope}")),
            Some("2") if self.may_trace() => {
                (State::Good, "ptrace_scope 2, and this user has CAP_SYS_PTRACE".to_owned())
            }
            Some(scope) => {
                (State::Bad, format!("ptrace_scope {scope}: RDMA between processes fails"))
            }
        };
        let remedy = "sysctl kernel.yama.ptrace_scope=1 (from 3, not before the next boot), or do \
                      without: --device-rdma none";
        Line::new("memory of other processes", Of::Soft, state, found, remedy)
    }

    /// Whether this process has CAP_SYS_PTRACE.
    fn may_trace(&self) -> bool {
        let status = self.read("proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask & CAP_SYS_PTRACE != 0)
    }
}

/// Where something is.
fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => ".".into(),
    }
}

/// Whether this program knows rdma-core.
fn build() -> Line {
    let what = "rdma-core in this build";
    match efa::interfaces() {
        Ok(names) => Line::new(what, Of::Verbs, State::Good, names.join(", "), ""),
        Err(error) => {
            let error = remedied(&error.into());
            let remedy = "build by `cargo build --release --features verbs`; see docs/hardware.md";
            match cfg!(feature = "verbs") {
                true => Line::new(what, Of::Verbs, State::Bad, error, "see the lines above"),
                false => Line::new(what, Of::Verbs, State::Bad, "none", remedy),
            }
        }
    }
}

/// What a process may pin.
fn locked_memory() -> Line {
    let limit = getrlimit(Resource::Memlock).current;
    let remedy = "ulimit -l unlimited; for all: `* - memlock unlimited` in \
                  /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit";
    let (state, found) = match limit {
        None => (State::Good, "unlimited".to_owned()),
        Some(bytes) if bytes < LEAST_LOCKED => (State::Bad, format!("{} KiB", bytes >> 10)),
        Some(bytes) => (State::Note, format!("{} MiB", bytes >> 20)),
    };
    Line::new("locked memory (ulimit -l)", Of::Verbs, state, found, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root directory of its own, removed at the end.
    struct Root(PathBuf);

    impl Root {
        fn new(files: &[(&str, &str)]) -> Self {
            let name = format!("efa-doctor-{}-{:016x}", std::process::id(), fastrand::u64(..));
            let root = std::env::temp_dir().join(name);
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            fs::create_dir_all(&root).unwrap();
            Self(root)
        }

        fn machine(&self) -> Machine {
            Machine { root: self.0.clone(), directory: None }
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn state(lines: &[Line], what: &str) -> State {
        lines.iter().find(|line| line.what == what).unwrap().state
    }

    #[test]
    fn a_machine_with_everything_is_good() {
        let root = Root::new(&[
            ("sys/bus/pci/devices/0000:00:06.0/vendor", "0x1d0f\n"),
            ("sys/bus/pci/devices/0000:00:06.0/device", "0xefa2\n"),
            ("sys/bus/pci/devices/0000:00:05.0/vendor", "0x1d0f\n"),
            ("sys/bus/pci/devices/0000:00:05.0/device", "0xec20\n"),
            ("sys/module/efa/version", "2.13.0\n"),
            ("sys/class/infiniband/rdmap0s6/node_type", "4: unspecified\n"),
            ("dev/infiniband/uverbs0", ""),
            ("usr/lib64/libibverbs.so.1", ""),
            ("opt/amazon/efa/lib64/libefa.so.1", ""),
            ("etc/libibverbs.d/efa.driver", "driver efa\n"),
            ("proc/meminfo", "MemTotal: 1 kB\nHugePages_Total:    64\nHugePages_Free:     60\n"),
            ("proc/sys/kernel/osrelease", "6.1.0-28-cloud-amd64\n"),
            ("proc/sys/kernel/yama/ptrace_scope", "0\n"),
            ("dev/shm/.keep", ""),
        ]);
        let machine = root.machine();
        assert_eq!(machine.interfaces(), ["0000:00:06.0"]);
        let lines = machine.lines();
        let of_this_process =
            ["rdma-core in this build", "locked memory (ulimit -l)", DEVICE_MEMORY];
        for line in lines.iter().filter(|line| !of_this_process.contains(&line.what)) {
            assert_eq!((line.state, line.remedy.as_str()), (State::Good, ""), "{line:?}");
        }
        assert!(lines.iter().any(|line| line.found == "version 2.13.0"));
        assert!(lines.iter().any(|line| line.found == "60 of 64 free"));
    }

    #[test]
    fn what_is_missing_has_a_remedy() {
        let root = Root::new(&[
            ("proc/sys/kernel/osrelease", "5.4.0-1"),
            ("proc/sys/kernel/yama/ptrace_scope", "3"),
        ]);
        let lines = root.machine().lines();
        for line in lines.iter().filter(|line| line.state != State::Good) {
            assert!(!line.remedy.is_empty(), "{line:?}");
        }
        for what in ["EFA interface", "driver module efa", "device nodes", "libibverbs", "libefa"] {
            assert_eq!(state(&lines, what), State::Bad, "{what}");
        }
        for (what, expected) in [
            ("memory of other processes", State::Bad),
            (DEVICE_MEMORY, State::Note),
            ("fork", State::Note),
            ("huge pages", State::Note),
        ] {
            assert_eq!(state(&lines, what), expected, "{what}");
        }
    }

    #[test]
    fn processes_of_the_device_admit_each_other_where_they_may() {
        let scope = |scope, capabilities| {
            let status = format!("Name:\tefa\nCapEff:\t{capabilities}\n");
            let root = Root::new(&[
                ("proc/sys/kernel/yama/ptrace_scope", scope),
                ("proc/self/status", &status),
            ]);
            root.machine().ptrace().state
        };
        assert_eq!(scope("1\n", "0000000000000000"), State::Good);
        assert_eq!(scope("2\n", "0000000000000000"), State::Bad);
        assert_eq!(scope("2\n", "0000000000080000"), State::Good);
        assert_eq!(scope("3\n", "000001ffffffffff"), State::Bad);
    }

    #[test]
    fn the_directory_that_is_named_is_looked_at() {
        let root = Root::new(&[("dev/shm", "not a directory"), ("devices/.keep", "")]);
        let memory = |directory: &str| {
            let directory = Some(root.0.join(directory));
            let line = Machine { directory, ..root.machine() }.shared_memory();
            (line.state, line.found)
        };
        // Free space is what the machine has.
        let found = |(_, found): (State, String)| found;
        let devices = format!("in {}", root.0.join("devices").display());
        assert!(found(memory("devices")).ends_with(&devices));
        assert!(found(memory("devices/to-be-made")).ends_with(&devices));
        let (state, found) = memory("absent/to-be-made");
        assert_eq!((state, found.contains("can't write in")), (State::Bad, true), "{found}");
    }

    #[test]
    fn what_the_device_does_not_need_is_told_and_does_not_count() {
        let mut line = Line::new("x", Of::Verbs, State::Bad, "missing", "get it");
        assert!(line.fails());
        assert_eq!(table(&[line]), format!("BAD   {:<32} missing: get it", "x"));
        line = Line::new("x", Of::Verbs, State::Bad, "missing", "get it");
        line.counts = false;
        assert!(!line.fails());
        assert!(table(&[line]).starts_with("-     x "));
    }
}

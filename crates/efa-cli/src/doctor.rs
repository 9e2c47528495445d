//! `efa doctor`: checks what a machine needs for a device, a line each, with what to do where something is
//! missing.
//!
//! ```text
//!   Machine: files of /sys, /proc, /dev ──────────┐
//!   this process: rdma-core, limits ──────────────┼─► lines, exit code
//!   provider: libfabric, FI_PROVIDER_PATH ────────┤
//!   the device, opened, with an endpoint on it ───┘
//! ```
//!
//! A line explains failures of the lines below it. Checks for the device that isn't used are shown and
//! don't count. docs/hardware.md says more about each.

mod provider;

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use efa::{DeviceError, Domain};
use efa_verbs::{LibraryReport, LoadError};
use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use crate::device::{DeviceArgs, Kind, Objects, PropertyArgs};
use crate::output;

/// Version of the JSON form.
const VERSION: u32 = 1;
/// PCI vendor id of Amazon.
const VENDOR: &str = "0x1d0f";
/// Prefix of the PCI device ids of EFA interfaces.
const INTERFACE: &str = "0xefa";
/// Bytes of locked memory for the first packets and queues of an endpoint.
const LEAST_LOCKED: u64 = 16 << 20;
/// Bytes of shared memory for the first hosts of the software device.
const LEAST_SHARED: u64 = 64 << 20;
/// Bit of the Linux capability to access the memory of any process.
const CAP_SYS_PTRACE: u64 = 1 << 19;
/// Name of the check of the file system that holds the software device's files.
const DEVICE_MEMORY: &str = "memory of the device";
/// The first kernel that copies pinned pages when a process forks.
const COPIES_AT_FORK: (u32, u32) = (5, 12);
/// Arguments of `efa doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line is `ok`, `note` (works, could be better), `BAD` with what to do, or `-`: missing, and not needed by \
the device that is used. The exit code is 1 if \
something is BAD that the device needs, or in the provider for libfabric, which may only be missing if FI_PROVIDER \
doesn't name it. With --device auto the device is the software device if --device-name or --directory is given or the \
machine has no EFA interface, and otherwise the interface.")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DoctorError {
    /// Checks failed; the printed lines say which.
    #[error("{bad} of {checks} checks failed")]
    Bad {
        /// How many failed.
        bad: usize,
        /// How many were made.
        checks: usize,
    },
    /// Standard output can't be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), DoctorError> {
    let machine = Machine { root: "/".into(), directory: args.device.soft.directory() };
    let wanted = args.wanted(&machine);
    let mut lines = machine.hardware();
    lines.extend(efa_verbs::library_reports().iter().map(library));
    lines.extend([machine.provider(), interfaces(), locked_memory()]);
    lines.extend(machine.system());
    lines.extend(provider::lines());
    let mut endpoint = args.endpoint(wanted);
    if lines.iter().any(|line| line.state == State::Bad && line.found == endpoint.found) {
        endpoint.found = "not opened: no interface".to_owned();
    }
    lines.push(endpoint);
    lines.iter_mut().for_each(|line| line.counts &= line.device.is_none_or(|of| of == wanted));
    let text = if args.json { json(&lines) } else { table(&lines) };
    output::tolerate_closed(writeln!(io::stdout(), "{text}"))?;
    let bad = lines.iter().filter(|line| line.fails()).count();
    match bad {
        0 => Ok(()),
        bad => Err(DoctorError::Bad { bad, checks: lines.len() }),
    }
}

/// The checks of a machine that has these files below `root`, as text and as JSON.
pub(crate) fn of_files(root: &Path) -> (String, String) {
    let machine = Machine { root: root.to_owned(), directory: None };
    let lines = [machine.hardware(), vec![machine.provider()], machine.system()].concat();
    (table(&lines), json(&lines))
}

impl Args {
    pub(crate) fn conflict(&self) -> Option<String> {
        self.device.conflict(&PropertyArgs::default(), None)
    }

    /// The device whose checks count.
    fn wanted(&self, machine: &Machine) -> Needs {
        match self.device.device {
            Kind::Verbs => Needs::Verbs,
            Kind::Soft => Needs::Soft,
            Kind::Auto if self.device.interface.is_some() => Needs::Verbs,
            Kind::Auto if self.device.of_soft(&PropertyArgs::default(), None).is_some() => {
                Needs::Soft
            }
            Kind::Auto if machine.interfaces().is_empty() && efa::interfaces().is_err() => {
                Needs::Soft
            }
            Kind::Auto => Needs::Verbs,
        }
    }

    /// Opens the device and makes an endpoint on it.
    fn endpoint(&self, wanted: Needs) -> Line {
        let properties = PropertyArgs::default();
        let (what, domain) = match wanted {
            Needs::Verbs => ("endpoint on the interface", self.device.open_interface()),
            Needs::Soft => {
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
        match domain.map_err(|error| reason(&error)).and_then(made) {
            Ok(found) => line(State::Good, found, ""),
            Err(error) => line(State::Bad, error, ""),
        }
    }
}

/// The reason for an absent device, which says what to do; any other error as it is.
fn reason(error: &efa::Error) -> String {
    match error {
        efa::Error::Device(DeviceError::Absent { reason }) => reason.clone(),
        error => error.to_string(),
    }
}

/// The device that needs something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Needs {
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

/// The result of a check.
#[derive(Clone, Debug, Serialize)]
struct Line {
    what: &'static str,
    /// The device that needs it; `None` for both.
    #[serde(rename = "of")]
    device: Option<Needs>,
    state: State,
    /// Whether it is a check of the device that is used.
    counts: bool,
    found: String,
    /// What to do; empty where nothing is to be done.
    remedy: String,
}

impl Line {
    fn new(
        what: &'static str,
        device: impl Into<Option<Needs>>,
        state: State,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (device, found, remedy) = (device.into(), found.into(), remedy.into());
        let remedy = if state == State::Good { String::new() } else { remedy };
        Self { what, device, state, counts: true, found, remedy }
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

/// The files that describe a machine.
struct Machine {
    root: PathBuf,
    /// The directory of the software device, if one was given.
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

    /// Interface, driver and device nodes.
    fn hardware(&self) -> Vec<Line> {
        vec![self.interface(), self.driver(), self.rdma_class(), self.nodes()]
    }

    /// Settings of the system.
    fn system(&self) -> Vec<Line> {
        vec![self.huge_pages(), self.forks(), self.shared_memory(), self.ptrace()]
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
        Line::new("EFA interface", Needs::Verbs, state, found, remedy)
    }

    fn driver(&self) -> Line {
        let there = self.path("sys/module/efa").is_dir();
        let (state, found) = match self.read("sys/module/efa/version") {
            Some(version) => (State::Good, format!("version {version}")),
            None if there => (State::Good, "loaded".into()),
            None => (State::Bad, "not loaded".into()),
        };
        let remedy = "modprobe efa; if there is no such module, run the EFA installer of AWS";
        Line::new("driver module efa", Needs::Verbs, state, found, remedy)
    }

    fn rdma_class(&self) -> Line {
        let found = self.names("sys/class/infiniband");
        let (state, found) = match found.is_empty() {
            true => (State::Bad, "no device in /sys/class/infiniband".to_owned()),
            false => (State::Good, found.join(", ")),
        };
        Line::new(
            "RDMA devices of the kernel",
            Needs::Verbs,
            state,
            found,
            "modprobe ib_uverbs efa",
        )
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
        Line::new("device nodes", Needs::Verbs, state, found, remedy)
    }

    /// The file by which libibverbs finds libefa as a driver.
    fn provider(&self) -> Line {
        let places = ["etc/libibverbs.d/efa.driver", "usr/etc/libibverbs.d/efa.driver"];
        let found = places.into_iter().map(|place| self.path(place)).find(|path| path.exists());
        let (state, found) = match found {
            Some(path) => (State::Good, path.display().to_string()),
            None => (State::Bad, "no efa.driver in /etc/libibverbs.d".into()),
        };
        let remedy = "apt install ibverbs-providers";
        Line::new("libefa is a driver of libibverbs", Needs::Verbs, state, found, remedy)
    }

    fn huge_pages(&self) -> Line {
        let what = "huge pages";
        let meminfo = self.read("proc/meminfo").unwrap_or_default();
        let value = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let remedy = "not needed by this program; libfabric uses them (sysctl vm.nr_hugepages)";
        match (value("HugePages_Total:"), value("HugePages_Free:")) {
            (Some(total), Some(free)) if total > 0 => {
                Line::new(what, Needs::Verbs, State::Good, format!("{free} of {total} free"), "")
            }
            _ => Line::new(what, Needs::Verbs, State::Note, "none are reserved", remedy),
        }
    }

    fn forks(&self) -> Line {
        let release = self.read("proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let good = version >= COPIES_AT_FORK;
        let remedy = "set RDMAV_FORK_SAFE=1 for programs that fork, or use kernel 5.12 or newer";
        let (state, found) = match good {
            true => (State::Good, format!("kernel {release} copies pinned pages at fork")),
            false => (State::Note, format!("kernel {release} doesn't copy pinned pages at fork")),
        };
        Line::new("fork", Needs::Verbs, state, found, remedy)
    }

    /// Free space for the software device's files: in its directory, or where it would create that.
    fn shared_memory(&self) -> Line {
        let what = DEVICE_MEMORY;
        let (place, name) = match &self.directory {
            Some(directory) if directory.is_dir() => (directory.clone(), directory.clone()),
            Some(directory) => (parent(directory), parent(directory)),
            None if self.path("dev/shm").is_dir() => (self.path("dev/shm"), "/dev/shm".into()),
            None => {
                let found = "no /dev/shm, so its files are in the directory for temporary files";
                return Line::new(
                    what,
                    Needs::Soft,
                    State::Note,
                    found,
                    "mount a tmpfs at /dev/shm",
                );
            }
        };
        let name = name.display();
        let remedy = "mount a tmpfs there (in a container: --shm-size), or use --directory";
        let line = |state, found: String| Line::new(what, Needs::Soft, state, found, remedy);
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

    /// Under scope 1 of Yama a process can let others access its memory, and the device does that.
    fn ptrace(&self) -> Line {
        let scope = self.read("proc/sys/kernel/yama/ptrace_scope");
        let (state, found) = match scope.as_deref() {
            None => (State::Good, "no Yama: processes of a user access each other's memory".into()),
            Some(scope @ ("0" | "1")) => (State::Good, format!("ptrace_scope {scope}")),
            Some("2") if self.may_trace() => {
                (State::Good, "ptrace_scope 2, and this user has CAP_SYS_PTRACE".to_owned())
            }
            Some(scope) => {
                let found = "RDMA between processes is slower, and needs polling targets";
                (State::Note, format!("ptrace_scope {scope}: {found}"))
            }
        };
        let remedy = "sysctl kernel.yama.ptrace_scope=1 (from 3 this needs a reboot)";
        Line::new("memory of other processes", Needs::Soft, state, found, remedy)
    }

    /// Whether this process has CAP_SYS_PTRACE.
    fn may_trace(&self) -> bool {
        let status = self.read("proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask & CAP_SYS_PTRACE != 0)
    }
}

/// The directory that a path is in.
fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => ".".into(),
    }
}

/// The EFA interfaces that libibverbs lists.
fn interfaces() -> Line {
    let what = "EFA interfaces of libibverbs";
    match efa::interfaces() {
        Ok(names) => Line::new(what, Needs::Verbs, State::Good, names.join(", "), ""),
        Err(error) => Line::new(what, Needs::Verbs, State::Bad, reason(&error.into()), ""),
    }
}

/// A library of rdma-core: its file, the symbol versions that it has, and what it lacks.
fn library(report: &LibraryReport) -> Line {
    let line =
        |state, found: String, remedy| Line::new(report.name, Needs::Verbs, state, found, remedy);
    let install = |package| format!("apt install {package}, or run the EFA installer of AWS");
    let path = report.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let versions = match report.versions.as_slice() {
        [] => "no symbol versions".to_owned(),
        versions => versions.join(", "),
    };
    match &report.error {
        Some(LoadError::Missing { reason, package, .. }) => {
            line(State::Bad, reason.clone(), install(*package))
        }
        Some(LoadError::TooOld { path, missing, package }) => {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            let found = format!("{} ({versions}) lacks {}", path.display(), missing.join(", "));
            let remedy = format!("{}; rdma-core 43 or newer is needed", install(*package));
            line(State::Bad, found, remedy)
        }
        Some(error) => line(State::Bad, error.to_string(), String::new()),
        None if report.without.is_empty() => {
            line(State::Good, format!("{path} ({versions})"), String::new())
        }
        None => {
            let found = format!("{path} ({versions}), without {}", report.without.join(", "));
            line(State::Good, found, String::new())
        }
    }
}

/// How much memory this process may lock.
fn locked_memory() -> Line {
    let limit = getrlimit(Resource::Memlock).current;
    let remedy = "ulimit -l unlimited; for all: `* - memlock unlimited` in \
                  /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit";
    let (state, found) = match limit {
        None => (State::Good, "unlimited".to_owned()),
        Some(bytes) if bytes < LEAST_LOCKED => (State::Bad, format!("{} KiB", bytes >> 10)),
        Some(bytes) => (State::Note, format!("{} MiB", bytes >> 20)),
    };
    Line::new("locked memory (ulimit -l)", Needs::Verbs, state, found, remedy)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A root directory.
    struct Root(TempDir);

    impl Root {
        fn new(files: &[(&str, &str)]) -> Self {
            let root = TempDir::new().unwrap();
            for (path, text) in files {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }

        fn machine(&self) -> Machine {
            Machine { root: self.0.path().into(), directory: None }
        }

        fn lines(&self) -> Vec<Line> {
            let machine = self.machine();
            [machine.hardware(), vec![machine.provider()], machine.system()].concat()
        }
    }

    fn state(lines: &[Line], what: &str) -> State {
        lines.iter().find(|line| line.what == what).unwrap().state
    }

    #[test]
    fn machine_with_everything_passes_every_check() {
        let root = Root::new(&[
            ("sys/bus/pci/devices/0000:00:06.0/vendor", "0x1d0f\n"),
            ("sys/bus/pci/devices/0000:00:06.0/device", "0xefa2\n"),
            ("sys/bus/pci/devices/0000:00:05.0/vendor", "0x1d0f\n"),
            ("sys/bus/pci/devices/0000:00:05.0/device", "0xec20\n"),
            ("sys/module/efa/version", "2.13.0\n"),
            ("sys/class/infiniband/rdmap0s6/node_type", "4: unspecified\n"),
            ("dev/infiniband/uverbs0", ""),
            ("etc/libibverbs.d/efa.driver", "driver efa\n"),
            ("proc/meminfo", "MemTotal: 1 kB\nHugePages_Total:    64\nHugePages_Free:     60\n"),
            ("proc/sys/kernel/osrelease", "6.1.0-28-cloud-amd64\n"),
            ("proc/sys/kernel/yama/ptrace_scope", "0\n"),
            ("dev/shm/.keep", ""),
        ]);
        assert_eq!(root.machine().interfaces(), ["0000:00:06.0"]);
        let lines = root.lines();
        // How much space is free depends on the machine of the test.
        for line in lines.iter().filter(|line| line.what != DEVICE_MEMORY) {
            assert_eq!((line.state, line.remedy.as_str()), (State::Good, ""), "{line:?}");
        }
        assert!(lines.iter().any(|line| line.found == "version 2.13.0"));
        assert!(lines.iter().any(|line| line.found == "60 of 64 free"));
    }

    #[test]
    fn each_failed_check_has_a_remedy() {
        let root = Root::new(&[
            ("proc/sys/kernel/osrelease", "5.4.0-1"),
            ("proc/sys/kernel/yama/ptrace_scope", "3"),
        ]);
        let lines = root.lines();
        for line in lines.iter().filter(|line| line.state != State::Good) {
            assert!(!line.remedy.is_empty(), "{line:?}");
        }
        for what in ["EFA interface", "driver module efa", "device nodes"] {
            assert_eq!(state(&lines, what), State::Bad, "{what}");
        }
        for (what, expected) in [
            ("memory of other processes", State::Note),
            (DEVICE_MEMORY, State::Note),
            ("fork", State::Note),
            ("huge pages", State::Note),
        ] {
            assert_eq!(state(&lines, what), expected, "{what}");
        }
    }

    #[test]
    fn ptrace_scope_is_good_where_processes_access_each_other() {
        let scope = |scope, capabilities| {
            let status = format!("Name:\tefa\nCapEff:\t{capabilities}\n");
            let root = Root::new(&[
                ("proc/sys/kernel/yama/ptrace_scope", scope),
                ("proc/self/status", &status),
            ]);
            root.machine().ptrace().state
        };
        assert_eq!(scope("1\n", "0000000000000000"), State::Good);
        assert_eq!(scope("2\n", "0000000000000000"), State::Note);
        assert_eq!(scope("2\n", "0000000000080000"), State::Good);
        assert_eq!(scope("3\n", "000001ffffffffff"), State::Note);
    }

    #[test]
    fn free_space_is_that_of_the_given_directory() {
        let root = Root::new(&[("dev/shm", "not a directory"), ("devices/.keep", "")]);
        let memory = |directory: &str| {
            let directory = Some(root.0.path().join(directory));
            let line = Machine { directory, ..root.machine() }.shared_memory();
            (line.state, line.found)
        };
        // How much is free depends on the machine of the test.
        let found = |(_, found): (State, String)| found;
        let devices = format!("in {}", root.0.path().join("devices").display());
        assert!(found(memory("devices")).ends_with(&devices));
        assert!(found(memory("devices/to-be-made")).ends_with(&devices));
        let (state, found) = memory("absent/to-be-made");
        assert_eq!((state, found.contains("can't write in")), (State::Bad, true), "{found}");
    }

    #[test]
    fn checks_of_the_software_device_count_if_one_of_its_options_is_given() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        let device = "sys/bus/pci/devices/0000:00:06.0/";
        let [vendor, kind] = ["vendor", "device"].map(|file| format!("{device}{file}"));
        let root = Root::new(&[(vendor.as_str(), VENDOR), (kind.as_str(), "0xefa2")]);
        let machine = root.machine();
        assert_eq!(machine.interfaces().len(), 1);
        let wanted = |options: &str| {
            let line = ["doctor"].into_iter().chain(options.split_whitespace());
            <Cli as clap::Parser>::parse_from(line).args.wanted(&machine)
        };
        assert_eq!(wanted(""), Needs::Verbs);
        assert_eq!(wanted("--directory /d"), Needs::Soft);
        assert_eq!(wanted("--device-name a"), Needs::Soft);
        assert_eq!(wanted("--device verbs"), Needs::Verbs);
        assert_eq!(wanted("--interface a"), Needs::Verbs);
    }

    #[test]
    fn check_of_the_other_device_is_shown_and_does_not_count() {
        let mut line = Line::new("x", Needs::Verbs, State::Bad, "missing", "get it");
        assert!(line.fails());
        assert_eq!(table(&[line]), format!("BAD   {:<32} missing: get it", "x"));
        line = Line::new("x", Needs::Verbs, State::Bad, "missing", "get it");
        line.counts = false;
        assert!(!line.fails());
        assert!(table(&[line]).starts_with("-     x "));
    }

    #[test]
    fn library_line_names_file_symbol_versions_and_what_is_missing() {
        let [_, mut report] = efa_verbs::library_reports();
        report.path = Some("/usr/lib/libefa.so.1.2.44.0".into());
        report.versions = vec!["EFA_1.1", "EFA_1.2"];
        report.without = vec!["efadv_get_max_sq_depth"];
        report.error = None;
        let line = library(&report);
        assert_eq!((line.what, line.state, line.remedy.as_str()), ("libefa", State::Good, ""));
        assert_eq!(
            line.found,
            "/usr/lib/libefa.so.1.2.44.0 (EFA_1.1, EFA_1.2), without efadv_get_max_sq_depth"
        );
        let missing = vec![efa_verbs::Symbol { name: "efadv_create_cq", version: "EFA_1.2" }];
        let (path, package) = ("/usr/lib/libefa.so.1.1.39.0".into(), "ibverbs-providers");
        report.versions = vec!["EFA_1.1"];
        report.error = Some(LoadError::TooOld { path, package, missing });
        let line = library(&report);
        assert_eq!(line.state, State::Bad);
        let found = "/usr/lib/libefa.so.1.1.39.0 (EFA_1.1) lacks efadv_create_cq@EFA_1.2";
        assert_eq!(line.found, found);
        assert!(line.remedy.starts_with("apt install ibverbs-providers, or run"), "{line:?}");
        let (library_file, reason) = ("libefa.so.1", "libefa.so.1: no such file".to_owned());
        report.error = Some(LoadError::Missing { library: library_file, package, reason });
        let line = library(&report);
        assert_eq!((line.state, line.found.as_str()), (State::Bad, "libefa.so.1: no such file"));
        assert!(line.remedy.contains("ibverbs-providers"), "{line:?}");
    }
}

//! `efa soft-efa run`: runs another program on the software EFA device.
//!
//! ```text
//!   soft-efa run OPTIONS -- PROGRAM ─── becomes ──► PROGRAM
//!                   │                                  ▲ preloaded
//!                   ├── environment: EFA_SOFT_… ──► libefa_soft.so (crate efa-softverbs)
//!                   │                                  ▲
//!                   ├── libraries: libibverbs.so.1, libefa.so.1 for programs that open these
//!                   └── place: private directory with them and the sysfs tree, removed when the program has ended
//! ```
//!
//! This process becomes the program (`exec`), so exit code and signals are the program's.

mod counters;
mod libraries;
mod place;

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::builder::RangedU64ValueParser;
use clap::{Subcommand, ValueEnum};
use efa_soft_names::{HOST_NAME, is_host_name};
use rustix::fs::{Access, access};

use crate::device::{PropertyArgs, SoftArgs, SoftLink, TcpHost, host_address};
use crate::output;

/// File name of the library.
const LIBRARY: &str = efa_soft_names::libraries::DEVICE_LIBRARY;
/// How it begins.
const ELF: &[u8] = b"\x7fELF";
/// Where it may be, relative to this program's directory: in cargo's target directory, for either profile, and
/// where `cargo xtask install` puts it.
const PLACES: [&str; 5] = ["deps", ".", "../release", "../debug", "../lib"];
/// Variable of the dynamic loader.
const PRELOAD: &str = "LD_PRELOAD";
/// Variable with the name of the device on the shm link.
const NAME: &str = "EFA_SOFT_NAME";
/// Variable with the directory of the devices on the shm link.
const DIRECTORY: &str = "EFA_SOFT_DIRECTORY";
/// Variable with the address of this host on the tcp link.
const ADDRESS: &str = "EFA_SOFT_ADDRESS";
/// Warning for a device on the tcp link without an address.
const NO_ADDRESS: &str = "--link tcp without --address: the device has the address 127.0.0.1, which \
    no other host reaches";
/// Warning if there are no libraries to open.
const NOT_OPENED: &str = "a program that opens libibverbs.so.1 itself won't find the device";
/// Whether libfabric's EFA provider bypasses the device for peers on the same host.
const SHM_TRANSFER: &str = "FI_EFA_ENABLE_SHM_TRANSFER";

/// Arguments of `efa soft-efa`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: SoftEfa,
}

#[derive(Debug, Subcommand)]
enum SoftEfa {
    /// Run a program that finds the software device as an EFA device through libibverbs and libefa
    Run(Run),
    /// Write libraries for running programs on the device without `efa`, and print the variables to set
    Libraries(Libraries),
    /// Start `attend` and return
    #[command(hide = true)]
    Detach(Place),
    /// Write the counters into a private directory, and remove it when its last process has ended
    #[command(hide = true)]
    Attend(Place),
}

/// The private directory of a run.
#[derive(Debug, clap::Args)]
struct Place {
    #[arg(value_name = "DIR")]
    place: PathBuf,
}

/// Arguments of `efa soft-efa libraries`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Writes libibverbs.so.1, libefa.so.1 and a copy of libefa_soft.so. The directory can be moved, and mounted into \
containers with the same C library or a newer one: set LD_LIBRARY_PATH to the directory and LD_PRELOAD to its \
libefa_soft.so there.")]
struct Libraries {
    /// The device library [default: libefa_soft.so beside this program]
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// The directory; created if it doesn't exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Arguments of `efa soft-efa run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, with Debian's libfabric-bin:
  efa soft-efa run -- fi_info -p efa
  efa soft-efa run -- fi_pingpong -p efa -e rdm -c &
  sleep 1
  efa soft-efa run -- fi_pingpong -p efa -e rdm -c 127.0.0.1
Between the hosts 10.0.0.1 and 10.0.0.2, the second a second later:
  efa soft-efa run --link tcp --address 10.0.0.1 -- fi_pingpong -p efa -e rdm -c
  efa soft-efa run --link tcp --address 10.0.0.2 -- fi_pingpong -p efa -e rdm -c 10.0.0.1

The program replaces this process: its exit code is that of the command, and signals reach it. \
On the shm link programs of one user with the same --device-name and --directory reach each other, \
`efa pingpong` among them. Programs that open libibverbs.so.1 or libefa.so.1 at run time find the device too, \
as LD_LIBRARY_PATH names a directory with libraries of these names. Containers that share the directory reach each other. The tcp link has neither \
authentication nor encryption: it is for tests and trusted networks.")]
struct Run {
    /// The link under the device: shared memory of this host, or TCP between hosts [default: shm]
    #[arg(long)]
    link: Option<SoftLink>,
    /// On the tcp link, the IP address at which other hosts reach this one [default: 127.0.0.1, which
    /// only this host reaches]
    #[arg(long, value_name = "IP", requires = "link", value_parser = host_address)]
    address: Option<IpAddr>,
    /// Generation of EFA interfaces that the device is like: 1 (p4d), 2 (p5), 3 (p5en) or 4 (the newest). It
    /// decides the operations and attributes that no other option names [default: 4]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=4))]
    generation: Option<u64>,
    /// Whether programs may ask that immediate data of a peer's write uses no receive buffer [default: on from
    /// generation 3 on, if the device writes]
    #[arg(long, value_name = "SWITCH")]
    unsolicited: Option<Switch>,
    /// Largest datagram in bytes [default: 8928]
    #[arg(long, value_name = "BYTES",
        value_parser = RangedU64ValueParser::<u64>::new().range(1024..=32768))]
    mtu: Option<u64>,
    /// Number of devices, each on a host of its own [default: 1]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=16))]
    devices: Option<u64>,
    /// Write all packets to a file for `efa decode`; `%p` is replaced by the process ID
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Write only the first N bytes of each packet: 128 hold nearly every header [default: all]
    #[arg(long, value_name = "N", requires = "capture")]
    capture_bytes: Option<u32>,
    /// Let programs post by rings in memory, without calls, as libfabric does by default since 2.3; who
    /// watches the doorbells [default: off, so that programs use calls]
    #[arg(long, value_name = "WHO")]
    direct: Option<Direct>,
    /// Print the counters of each used device to standard error when it is closed or the program exits.
    /// `background progress` counts how often the library moved data because the program didn't poll
    #[arg(long)]
    statistics: bool,
    /// Let libfabric bypass the device between peers on this host, by its own shared memory
    #[arg(long)]
    shm_transfer: bool,
    /// The library to preload [default: libefa_soft.so beside this program]
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    #[command(flatten)]
    device: SoftArgs,
    #[command(flatten)]
    properties: PropertyArgs,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, last = true)]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl Switch {
    /// The value of the variable.
    const fn setting(self) -> &'static str {
        match self {
            Self::On => "1",
            Self::Off => "0",
        }
    }
}

/// Who watches the doorbells of the direct data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Direct {
    Thread,
    Trap,
    Off,
}

impl Direct {
    /// The value of the variable.
    const fn setting(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Trap => "trap",
            Self::Off => "off",
        }
    }
}

/// Why the program doesn't run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SoftEfaError {
    /// The library is in none of the usual places.
    #[error(
        "no {LIBRARY} in {}: in a checkout of the repository, `cargo xtask install` installs both \
         this tool and the library; or name the library by --library",
        list(.looked)
    )]
    NoLibrary {
        /// The places.
        looked: Vec<PathBuf>,
    },
    /// The library named by `--library` can't be read.
    #[error("cannot read the library {}", file.display())]
    Library {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The loader would split the path.
    #[error("the loader can't preload {}: the path contains a blank or a colon", file.display())]
    Separator {
        /// The file.
        file: PathBuf,
    },
    /// The private directory can't be created.
    #[error("cannot make a private directory in {}", base.display())]
    Place {
        /// Its parent.
        base: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Standard output can't be written.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
    /// The libraries can't be written.
    #[error(transparent)]
    Libraries(#[from] libraries::LibraryError),
    /// The private directory can't be removed.
    #[error("cannot remove {}", place.display())]
    Remove {
        /// The directory.
        place: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A path can't be made absolute.
    #[error("cannot resolve the path {}", file.display())]
    Path {
        /// The path.
        file: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The capture can't be written.
    #[error("cannot write the capture {}", file.display())]
    Capture {
        /// The file, with `%p`.
        file: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The program doesn't start.
    #[error("cannot run {}", program.display())]
    Program {
        /// The program.
        program: OsString,
        /// The reason.
        source: io::Error,
    },
}

fn list(places: &[PathBuf]) -> String {
    let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
    places.join(", ")
}

/// Runs the command.
pub(crate) fn run(Args { command }: &Args) -> Result<(), SoftEfaError> {
    let done = |place: &Path, done: io::Result<()>| {
        done.map_err(|source| SoftEfaError::Remove { place: place.to_owned(), source })
    };
    match command {
        SoftEfa::Run(args) => match become_program(args)? {},
        SoftEfa::Libraries(args) => write_libraries(args),
        SoftEfa::Detach(Place { place }) => done(place, place::detach(place).map(drop)),
        SoftEfa::Attend(Place { place }) => done(place, place::attend(place)),
    }
}

/// Writes the libraries, and prints the variables that let programs find them.
fn write_libraries(args: &Libraries) -> Result<(), SoftEfaError> {
    let library = device_library(args.library.as_deref())?;
    let directory = absolute(&args.directory)?;
    let preloaded = preload(&directory.join(LIBRARY), None)?;
    libraries::export(&directory, &library)?;
    let (path, directory, preloaded) =
        (libraries::LIBRARY_PATH, directory.display(), preloaded.display());
    let written = writeln!(io::stdout(), "{path}={directory}\n{PRELOAD}={preloaded}");
    output::tolerate_closed(written).map_err(SoftEfaError::Output)
}

/// The device library: the one named by the user, or the one beside this program.
fn device_library(named_file: Option<&Path>) -> Result<PathBuf, SoftEfaError> {
    match named_file {
        Some(file) => named(file),
        None => beside(
            &env::current_exe()
                .map_err(|source| SoftEfaError::Path { file: "this program".into(), source })?,
        ),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, SoftEfaError> {
    std::path::absolute(path).map_err(|source| SoftEfaError::Path { file: path.to_owned(), source })
}

/// Replaces this process by the program; returns only if that fails.
fn become_program(args: &Run) -> Result<Infallible, SoftEfaError> {
    let library = device_library(args.library.as_deref())?;
    if let Some(file) = &args.capture {
        check_capture(file)
            .map_err(|source| SoftEfaError::Capture { file: file.clone(), source })?;
    }
    let mut words = args.program.iter();
    // clap requires a program; an empty name fails below.
    let program = words.next().cloned().unwrap_or_default();
    let mut command = Command::new(&program);
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    command.args(words).envs(args.settings(is_set)?);
    if args.lacks_address(env::var_os(ADDRESS).as_deref()) {
        output::print_error(format_args!("warning: {NO_ADDRESS}"));
        // Named, so that the library doesn't warn again in each process of the program.
        command.env(ADDRESS, TcpHost::LOOPBACK.address.to_string());
    }
    command.env(PRELOAD, preload(&library, env::var_os(PRELOAD).as_deref())?);
    // The program, and the process that removes the directory, may work in other directories.
    let base = absolute(&temporary())?;
    let devices = args.devices.and_then(|devices| devices.try_into().ok()).unwrap_or(1);
    let place = place::make(&base, devices);
    let place = place.map_err(|source| SoftEfaError::Place { base, source })?;
    let search = env::var_os(libraries::LIBRARY_PATH);
    match libraries::offer(&place.join("lib"), &library, search.as_deref()) {
        Ok(path) => command.env(libraries::LIBRARY_PATH, path),
        // Most programs are linked with the libraries, and for them the preloaded one is enough.
        Err(error) => {
            let error = anyhow::Error::new(error);
            output::print_error(format_args!("warning: {NOT_OPENED}: {error:#}"));
            &mut command
        }
    };
    command.env("EFA_SOFT_SYSFS", place);
    tracing::info!(library = %library.display(), ?command, "becomes the program");
    Err(SoftEfaError::Program { program, source: command.exec() })
}

/// The library named by the user. The loader would leave out what is none, and the program run without the device.
fn named(file: &Path) -> Result<PathBuf, SoftEfaError> {
    let find = || {
        let found = file.canonicalize()?;
        let mut magic = Vec::new();
        File::open(&found)?.take(ELF.len() as u64).read_to_end(&mut magic)?;
        let is_elf = (magic == ELF).then_some(found);
        is_elf.ok_or_else(|| io::Error::other("it is not an ELF file"))
    };
    find().map_err(|source| SoftEfaError::Library { file: file.to_owned(), source })
}

/// The directory for temporary files. An empty variable names none.
fn temporary() -> PathBuf {
    let named = Some(env::temp_dir()).filter(|named| !named.as_os_str().is_empty());
    named.unwrap_or_else(|| "/tmp".into())
}

/// Checks whether this process can write its capture, before the program runs: the library would report the
/// error with the first packet only, in the middle of the program's output.
fn check_capture(file: &Path) -> io::Result<()> {
    // The process ID of this process remains that of the program.
    let number = std::process::id().to_string();
    let file = file.to_str().ok_or_else(|| io::Error::other("its name is not valid UTF-8"))?;
    let file = PathBuf::from(file.replace("%p", &number));
    match file.metadata() {
        Ok(data) if data.is_file() => Ok(access(&file, Access::WRITE_OK)?),
        Ok(_) => Err(io::Error::other("it is not a regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let directory = std::path::absolute(file)?;
            let directory = directory.parent().unwrap_or(Path::new("/"));
            Ok(access(directory, Access::WRITE_OK | Access::EXEC_OK)?)
        }
        Err(error) => Err(error),
    }
}

/// Finds the library relative to this program.
fn beside(program: &Path) -> Result<PathBuf, SoftEfaError> {
    let directory = program.parent().unwrap_or(program);
    let looked: Vec<_> = PLACES.iter().map(|place| directory.join(place)).collect();
    let found = looked.iter().find_map(|place| place.join(LIBRARY).canonicalize().ok());
    found.ok_or(SoftEfaError::NoLibrary { looked })
}

/// `LD_PRELOAD` with the library before those that it already has.
fn preload(library: &Path, others: Option<&OsStr>) -> Result<OsString, SoftEfaError> {
    if library.as_os_str().as_bytes().iter().any(|byte| b": \t\n".contains(byte)) {
        return Err(SoftEfaError::Separator { file: library.to_owned() });
    }
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    Ok(all)
}

impl Args {
    /// A message about options that exclude each other.
    pub(crate) fn conflict(&self) -> Option<String> {
        let SoftEfa::Run(Run { link, address, devices, device, .. }) = &self.command else {
            return None;
        };
        let name = device.device_name.as_deref();
        if let Some(name) = name.filter(|name| !is_host_name(name)) {
            return Some(format!("--device-name {name:?} is not {HOST_NAME}"));
        }
        match link {
            Some(SoftLink::Shm) if address.is_some() => {
                Some("--address needs --link tcp".to_owned())
            }
            Some(SoftLink::Tcp) if devices.is_some_and(|devices| devices > 1) => Some(
                "--devices above 1 needs --link shm: on the tcp link a host has one address"
                    .to_owned(),
            ),
            Some(SoftLink::Tcp) => {
                device.given().map(|option| format!("{option} needs --link shm"))
            }
            _ => None,
        }
    }
}

impl Run {
    /// Whether the device is on the tcp link without an address; `variable` is the value of [`ADDRESS`].
    fn lacks_address(&self, variable: Option<&OsStr>) -> bool {
        self.link == Some(SoftLink::Tcp)
            && self.address.is_none()
            && variable.is_none_or(OsStr::is_empty)
    }

    /// The environment variables for the library. Options that are not given leave theirs unchanged, but for
    /// [`SHM_TRANSFER`], which `--shm-transfer` alone decides. A name and a directory that neither option nor environment
    /// gives (`is_set` tells) are those that other commands use.
    fn settings(
        &self,
        is_set: impl Fn(&str) -> bool,
    ) -> Result<Vec<(&'static str, OsString)>, SoftEfaError> {
        let mut settings: Vec<(_, OsString)> = Vec::new();
        if self.device.device_name.is_some() || !is_set(NAME) {
            settings.push((NAME, self.device.name().into()));
        }
        let directory = match is_set(DIRECTORY) {
            true => self.device.directory.clone(),
            false => self.device.directory(),
        };
        let PropertyArgs { device_rdma, reorder, rnr } = &self.properties;
        let properties = [
            ("EFA_SOFT_LINK", self.link.map(|link| link.setting().to_owned())),
            (ADDRESS, self.address.map(|address| address.to_string())),
            ("EFA_SOFT_GENERATION", self.generation.map(|number| number.to_string())),
            ("EFA_SOFT_UNSOLICITED", self.unsolicited.map(|switch| switch.setting().to_owned())),
            ("EFA_SOFT_RDMA", device_rdma.map(|which| which.setting().to_owned())),
            ("EFA_SOFT_MTU", self.mtu.map(|number| number.to_string())),
            ("EFA_SOFT_REORDER", reorder.map(|number| number.to_string())),
            ("EFA_SOFT_RNR", rnr.map(|number| number.to_string())),
            ("EFA_SOFT_DEVICES", self.devices.map(|number| number.to_string())),
            ("EFA_SOFT_DIRECT", self.direct.map(|who| who.setting().to_owned())),
            ("EFA_SOFT_CAPTURE_BYTES", self.capture_bytes.map(|number| number.to_string())),
        ];
        let given = properties.into_iter().filter_map(|(name, value)| Some((name, value?.into())));
        settings.extend(given);
        // The program may change its directory.
        for (name, path) in [(DIRECTORY, &directory), ("EFA_SOFT_CAPTURE", &self.capture)] {
            if let Some(file) = path {
                let absolute = std::path::absolute(file);
                let failed = |source| SoftEfaError::Path { file: file.clone(), source };
                settings.push((name, absolute.map_err(failed)?.into()));
            }
        }
        if self.statistics {
            settings.push(("EFA_SOFT_STATISTICS", "1".into()));
        }
        settings.push((SHM_TRANSFER, if self.shm_transfer { "1" } else { "0" }.into()));
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn settings(options: &str) -> Vec<(&'static str, String)> {
        let line = ["efa", "run"].into_iter().chain(options.split_whitespace()).chain(["--", "x"]);
        let SoftEfa::Run(run) = Cli::parse_from(line).args.command else { panic!() };
        let settings = run.settings(|_| false).unwrap().into_iter();
        settings.map(|(name, value)| (name, value.into_string().unwrap())).collect()
    }

    #[test]
    fn options_not_given_set_no_variables() {
        let expected = [("EFA_SOFT_NAME", "efa"), ("FI_EFA_ENABLE_SHM_TRANSFER", "0")];
        assert_eq!(settings(""), expected.map(|(name, value)| (name, value.to_owned())));
    }

    #[test]
    fn options_become_their_variables() {
        let options = "--device-name a --directory /d --device-rdma none --mtu 4096 --reorder 7 \
            --rnr 0.25 --devices 2 --direct trap --capture /c/%p.pcapng --capture-bytes 128 \
            --statistics --shm-transfer \
            --link shm --generation 2 --unsolicited off";
        let expected = [
            ("EFA_SOFT_NAME", "a"),
            ("EFA_SOFT_LINK", "shm"),
            ("EFA_SOFT_GENERATION", "2"),
            ("EFA_SOFT_UNSOLICITED", "0"),
            ("EFA_SOFT_RDMA", "none"),
            ("EFA_SOFT_MTU", "4096"),
            ("EFA_SOFT_REORDER", "7"),
            ("EFA_SOFT_RNR", "0.25"),
            ("EFA_SOFT_DEVICES", "2"),
            ("EFA_SOFT_DIRECT", "trap"),
            ("EFA_SOFT_CAPTURE_BYTES", "128"),
            ("EFA_SOFT_DIRECTORY", "/d"),
            ("EFA_SOFT_CAPTURE", "/c/%p.pcapng"),
            ("EFA_SOFT_STATISTICS", "1"),
            ("FI_EFA_ENABLE_SHM_TRANSFER", "1"),
        ];
        assert_eq!(settings(options), expected.map(|(name, value)| (name, value.to_owned())));
        let tcp = settings("--link tcp --address fd00::7");
        for expected in [("EFA_SOFT_LINK", "tcp"), ("EFA_SOFT_ADDRESS", "fd00::7")] {
            assert!(tcp.iter().any(|(name, value)| (*name, &**value) == expected), "{tcp:?}");
        }
    }

    #[test]
    fn relative_paths_become_absolute() {
        let settings = settings("--directory d --capture c");
        for name in ["EFA_SOFT_DIRECTORY", "EFA_SOFT_CAPTURE"] {
            let (_, value) = settings.iter().find(|(variable, _)| *variable == name).unwrap();
            assert!(Path::new(value).is_absolute(), "{value}");
        }
    }

    #[test]
    fn library_is_preloaded_before_existing_entries() {
        let preload = |library: &str, others: Option<&str>| {
            preload(Path::new(library), others.map(OsStr::new)).ok()
        };
        assert_eq!(preload("/l.so", None), Some("/l.so".into()));
        assert_eq!(preload("/l.so", Some("")), Some("/l.so".into()));
        assert_eq!(preload("/l.so", Some("/a:/b")), Some("/l.so:/a:/b".into()));
        assert_eq!(preload("/my dir/l.so", None), None);
        assert_eq!(preload("/a:b/l.so", None), None);
    }
}

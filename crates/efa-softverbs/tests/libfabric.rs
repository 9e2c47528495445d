//! Debian's unmodified libfabric on this device.
//!
//! Needs the packages libfabric1 and libfabric-bin, and is skipped without `EFA_INTEROP=1`, which
//! `cargo xtask test` sets.
//!
//! `EFA_SOFT_STARTS=200 EFA_INTEROP=1 cargo test -p efa-softverbs --test libfabric starts` repeats the
//! test of starts 200 times instead of 20; `EFA_SOFT_SIGNALS=200` sends so many signals on each link.

#![allow(clippy::unwrap_used)]

mod common;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{hang, is_missing, library, loopback, with_c_packages};
use tempfile::TempDir;

/// Arguments of `timeout`: SIGTERM after 120 s, SIGKILL 5 s later. Programs take far less.
const TIMEOUT: [&str; 3] = ["-k", "5", "120"];

fn is_installed(program: &str) -> bool {
    if !with_c_packages() {
        eprintln!("skipped: EFA_INTEROP=1 is not set");
        return false;
    }
    let found =
        Command::new(program).arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        is_missing("libfabric-bin");
    }
    found.is_ok()
}

/// A program with the library preloaded.
fn command(host: &Path, program: &str, arguments: &[&str], settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new("timeout");
    command.args(TIMEOUT).arg(program).args(arguments);
    command.env("LD_PRELOAD", library()).env("EFA_SOFT_DIRECTORY", host.join("hosts"));
    command.env("FI_EFA_ENABLE_SHM_TRANSFER", "0").env("EFA_SOFT_STATISTICS", "1");
    command.envs(settings.iter().copied());
    command
}

fn text_of(output: &Output) -> String {
    let all = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

/// Programs start, find the device and exit: two that exchange messages, and one that lists devices.
#[test]
fn repeated_starts_do_not_hang() {
    if !is_installed("fi_pingpong") {
        return;
    }
    let starts = std::env::var("EFA_SOFT_STARTS").map_or(20, |count| count.parse().unwrap());
    let directory = TempDir::new().unwrap();
    for start in 0..starts {
        let text = pingpong_of("1", "64", &["-e", "rdm"], &[]);
        assert!(text.contains("=1"), "start {start}: {text}");
        let output = command(directory.path(), "fi_info", &["-p", "efa"], &[]).output().unwrap();
        let text = text_of(&output);
        // 124 and 137 mean that `timeout` ended it.
        assert!(output.status.success(), "start {start}: {:?} {text}", output.status);
        assert!(text.contains("type: FI_EP_RDM"), "start {start}: {text}");
    }
}

#[test]
fn fi_info_lists_both_endpoint_types() {
    if !is_installed("fi_info") {
        return;
    }
    let directory = TempDir::new().unwrap();
    let settings = [("EFA_SOFT_DEVICES", "2")];
    let output = command(directory.path(), "fi_info", &["-p", "efa"], &settings).output().unwrap();
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    for device in ["efa_soft0", "efa_soft1"] {
        assert!(text.contains(&format!("domain: {device}-rdm")), "{text}");
        assert!(text.contains(&format!("domain: {device}-dgrm")), "{text}");
    }
}

/// Debian's libfabric loads libinfinipath, whose handlers call `exit`, perhaps in the middle of a call of the
/// library; then libfabric's destructor closes the devices.
#[test]
fn provider_ended_by_a_signal_under_traffic_never_waits_in_the_library() {
    if !is_installed("fi_pingpong") {
        return;
    }
    let signals = std::env::var("EFA_SOFT_SIGNALS").map_or(8, |count| count.parse().unwrap());
    std::thread::scope(|scope| {
        for link in ["shm", "tcp"] {
            scope.spawn(move || {
                let ended = (0..signals).filter(|&n| ends_by_signal(link, n)).count();
                eprintln!("{link}: {ended} of {signals} ended, others waited elsewhere");
                // A fifth waits, mostly for malloc's lock: half of 8 would now and then.
                assert!(ended >= signals / 4, "{link}: {ended} of {signals} ended");
            });
        }
    });
}

/// Sends a signal to a client under traffic. Returns whether it ends; panics if it waits in the library.
fn ends_by_signal(link: &str, number: usize) -> bool {
    let directory = TempDir::new().unwrap();
    let hosts = directory.path().join("hosts");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let host = if link == "tcp" { [2, 3] } else { [1, 1] };
    let start = |host: u8, arguments: &[&str]| {
        let mut command = Command::new("fi_pingpong");
        command.args(["-p", "efa", "-e", "rdm", "-I", "10000000", "-S", "64"]).args(arguments);
        command.env("LD_PRELOAD", library()).env("EFA_SOFT_DIRECTORY", &hosts);
        command.env("EFA_SOFT_LINK", link).env("EFA_SOFT_ADDRESS", loopback(host).to_string());
        command.env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        // libinfinipath's handlers write a file there.
        command.current_dir(directory.path());
        Started::new(&mut command)
    };
    let mut server = start(host[0], &["-B", &port]);
    while !listens(port.parse().unwrap()) {
        assert_eq!(server.child.try_wait().unwrap(), None, "{link}: the server has ended");
        std::thread::yield_now();
    }
    let mut client = start(host[1], &["-P", &port, "127.0.0.1"]);
    // Some signals come before the first message, most after it.
    std::thread::sleep(Duration::from_millis(fastrand::u64(50..500)));
    assert_eq!(client.child.try_wait().unwrap(), None, "without a signal");
    for process in [&mut server, &mut client] {
        process.note_files();
    }
    let signal = [libc::SIGTERM, libc::SIGINT][number % 2];
    let process = libc::pid_t::try_from(client.child.id()).unwrap();
    // SAFETY: the process is a child that was not waited for, so the number is its own.
    assert_eq!(unsafe { libc::kill(process, signal) }, 0);
    match hang::wait(&mut client.child, process) {
        Ok(_) => true,
        Err(waiting) if waiting.is_in("libefa_soft") => panic!("{link}: {waiting:?}"),
        Err(waiting) => {
            eprintln!("{link}: it waits elsewhere: {waiting:?}");
            false
        }
    }
}

/// A process, killed when dropped.
struct Started {
    child: Child,
    /// What libfabric leaves in shared memory if the process doesn't close its endpoints: 16 MiB for each.
    files: Vec<PathBuf>,
}

impl Started {
    fn new(command: &mut Command) -> Self {
        Self { child: command.spawn().unwrap(), files: Vec::new() }
    }

    /// Remembers the files in shared memory that the process has mapped. Those of the device are elsewhere.
    fn note_files(&mut self) {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id()));
        let maps = maps.unwrap_or_default();
        let files = maps.lines().filter_map(|line| line.find("/dev/shm/").map(|at| &line[at..]));
        self.files.extend(files.map(PathBuf::from));
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.note_files();
        let _ = self.child.kill();
        let _ = self.child.wait();
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Runs `fi_pingpong` between two processes, 10 times each size; returns what the client printed.
fn pingpong(arguments: &[&str], settings: &[(&str, &str)]) -> String {
    pingpong_of("10", "all", arguments, settings)
}

fn pingpong_of(times: &str, size: &str, arguments: &[&str], settings: &[(&str, &str)]) -> String {
    let directory = TempDir::new().unwrap();
    // A free port. If another process takes it meanwhile, the test fails.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let number = port.to_string();
    let mut common = vec!["-p", "efa", "-c", "-I", times, "-S", size];
    common.extend(arguments);
    let there = [&["-B", &number], common.as_slice()].concat();
    let mut server = command(directory.path(), "fi_pingpong", &there, settings);
    let mut server = Started::new(server.stdout(Stdio::null()).stderr(Stdio::null()));
    let here = [&["-P", &number], common.as_slice(), &["127.0.0.1"]].concat();
    // The server accepts one connection, which must be the client's; so this reads the table of sockets
    // instead of connecting.
    while !listens(port) {
        assert_eq!(server.child.try_wait().unwrap(), None, "the server has exited");
        std::thread::yield_now();
    }
    let output = command(directory.path(), "fi_pingpong", &here, settings).output().unwrap();
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    assert!(server.child.wait().unwrap().success());
    text
}

/// Whether a socket of this machine listens at `port`.
fn listens(port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    tables.into_iter().flatten().any(|table| {
        table.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let (local, state) = (fields.next().unwrap_or_default(), fields.nth(1));
            local.ends_with(&format!(":{port:04X}")) && state == Some("0A")
        })
    })
}

/// Number of message sizes in the table that the client printed, with 10 exchanges each.
fn rows(text: &str) -> usize {
    text.lines().filter(|line| line.split_whitespace().nth(2) == Some("=10")).count()
}

fn counter(text: &str, name: &str) -> u64 {
    let (_, rest) = text.rsplit_once(&format!("{name} ")).unwrap_or_else(|| panic!("{text}"));
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// Number of sizes that `fi_pingpong -S all` runs: up to 6 MiB, and up to the MTU.
const SIZES: usize = 46;
const DATAGRAM_SIZES: usize = 27;

#[test]
fn provider_delivers_messages_of_all_sizes() {
    if !is_installed("fi_pingpong") {
        return;
    }
    let text = pingpong(&["-e", "rdm"], &[]);
    assert_eq!(rows(&text), SIZES, "{text}");
    // Messages from 1 MiB on are read: six sizes, ten times.
    assert_eq!(counter(&text, "reads"), 60, "{text}");
    let text = pingpong(&["-e", "rdm"], &[("EFA_SOFT_RDMA", "none")]);
    assert_eq!((rows(&text), counter(&text, "reads")), (SIZES, 0), "{text}");
}

#[test]
fn provider_delivers_messages_of_all_sizes_when_reordered() {
    if !is_installed("fi_pingpong") {
        return;
    }
    for rdma in ["read", "none"] {
        let text = pingpong(&["-e", "rdm"], &[("EFA_SOFT_REORDER", "1"), ("EFA_SOFT_RDMA", rdma)]);
        assert_eq!(rows(&text), SIZES, "{text}");
    }
}

#[test]
fn provider_delivers_datagrams_of_all_sizes() {
    if !is_installed("fi_pingpong") {
        return;
    }
    let text = pingpong(&["-e", "dgram"], &[]);
    assert_eq!(rows(&text), DATAGRAM_SIZES, "{text}");
}

//! Debian's libfabric, unmodified, on this device.
//!
//! Needs the packages libfabric1 and libfabric-bin, and runs only with `EFA_INTEROP=1`, which says
//! that they are there: without, the tests say so and pass. `cargo xtask test` sets it.
//!
//! The first device of this kind, an experiment, sometimes hung at its start, and nobody knew why.
//! `EFA_SOFT_STARTS=200 EFA_INTEROP=1 cargo test -p efa-softverbs --test libfabric starts` starts
//! this one 200 times; without the variable the test does so 20 times.

#![allow(clippy::unwrap_used)]

mod common;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use common::{Directory, is_missing, library, with_c_packages};

/// Seconds that a program may take before it is ended, and how long it is waited for then: some
/// don't end by SIGTERM. Far more than they need.
const LIMIT: [&str; 3] = ["-k", "5", "120"];

fn is_there(program: &str) -> bool {
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

/// A program with the device preloaded, in a host of its own.
fn command(host: &Path, program: &str, arguments: &[&str], settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new("timeout");
    command.args(LIMIT).arg(program).args(arguments);
    command.env("LD_PRELOAD", library()).env("EFA_SOFT_DIRECTORY", host.join("hosts"));
    command.env("FI_EFA_ENABLE_SHM_TRANSFER", "0").env("EFA_SOFT_STATISTICS", "1");
    command.envs(settings.iter().copied());
    command
}

fn text_of(output: &Output) -> String {
    let all = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

/// Programs start, find the device and end: two that talk, and one that looks.
#[test]
fn many_starts_are_clean() {
    if !is_there("fi_pingpong") {
        return;
    }
    let starts = std::env::var("EFA_SOFT_STARTS").map_or(20, |count| count.parse().unwrap());
    let directory = Directory::new();
    for start in 0..starts {
        let text = pingpong_of("1", "64", &["-e", "rdm"], &[]);
        assert!(text.contains("=1"), "start {start}: {text}");
        let output = command(directory.path(), "fi_info", &["-p", "efa"], &[]).output().unwrap();
        let text = text_of(&output);
        // 124 and 137 are those of a program that was ended after its time.
        assert!(output.status.success(), "start {start}: {:?} {text}", output.status);
        assert!(text.contains("type: FI_EP_RDM"), "start {start}: {text}");
    }
}

#[test]
fn fi_info_lists_both_endpoint_types() {
    if !is_there("fi_info") {
        return;
    }
    let directory = Directory::new();
    let settings = [("EFA_SOFT_DEVICES", "2")];
    let output = command(directory.path(), "fi_info", &["-p", "efa"], &settings).output().unwrap();
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    for device in ["efa_soft0", "efa_soft1"] {
        assert!(text.contains(&format!("domain: {device}-rdm")), "{text}");
        assert!(text.contains(&format!("domain: {device}-dgrm")), "{text}");
    }
}

/// A server that is killed if it is still there at the end.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `fi_pingpong` between two processes, 10 times each size; gives what the client printed.
fn pingpong(arguments: &[&str], settings: &[(&str, &str)]) -> String {
    pingpong_of("10", "all", arguments, settings)
}

fn pingpong_of(times: &str, size: &str, arguments: &[&str], settings: &[(&str, &str)]) -> String {
    let directory = Directory::new();
    // A port that is free now; whoever takes it meanwhile makes the test fail and not lie.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let number = port.to_string();
    let mut common = vec!["-p", "efa", "-c", "-I", times, "-S", size];
    common.extend(arguments);
    let there = [&["-B", &number], common.as_slice()].concat();
    let mut server = command(directory.path(), "fi_pingpong", &there, settings);
    let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut server = Server(server);
    let here = [&["-P", &number], common.as_slice(), &["127.0.0.1"]].concat();
    // The server shows only by its port that it is there; asking takes nothing from it but a
    // connection, so its own client must be the first to connect: look at the table instead.
    while !listens(port) {
        assert_eq!(server.0.try_wait().unwrap(), None, "the server has ended");
        std::thread::yield_now();
    }
    let output = command(directory.path(), "fi_pingpong", &here, settings).output().unwrap();
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    assert!(server.0.wait().unwrap().success());
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

/// The sizes in the table that the client printed, each with its 10 answers.
fn rows(text: &str) -> usize {
    text.lines().filter(|line| line.split_whitespace().nth(2) == Some("=10")).count()
}

fn counter(text: &str, name: &str) -> u64 {
    // The last line: libfabric opens and closes the device once before it uses it.
    let (_, rest) = text.rsplit_once(&format!("{name} ")).unwrap_or_else(|| panic!("{text}"));
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// Sizes that `fi_pingpong -S all` runs: up to 6 MiB, and up to the MTU.
const SIZES: usize = 46;
const DATAGRAM_SIZES: usize = 27;

#[test]
fn messages_of_every_size_go_by_the_real_provider() {
    if !is_there("fi_pingpong") {
        return;
    }
    let text = pingpong(&["-e", "rdm"], &[]);
    assert_eq!(rows(&text), SIZES, "{text}");
    // From 1 MiB on: six sizes, ten times.
    assert_eq!(counter(&text, "reads"), 60, "{text}");
    let text = pingpong(&["-e", "rdm"], &[("EFA_SOFT_RDMA", "none")]);
    assert_eq!((rows(&text), counter(&text, "reads")), (SIZES, 0), "{text}");
}

#[test]
fn messages_of_every_size_go_out_of_order() {
    if !is_there("fi_pingpong") {
        return;
    }
    for rdma in ["read", "none"] {
        let text = pingpong(&["-e", "rdm"], &[("EFA_SOFT_REORDER", "1"), ("EFA_SOFT_RDMA", rdma)]);
        assert_eq!(rows(&text), SIZES, "{text}");
    }
}

#[test]
fn datagrams_go_by_the_real_provider() {
    if !is_there("fi_pingpong") {
        return;
    }
    let text = pingpong(&["-e", "dgram"], &[]);
    assert_eq!(rows(&text), DATAGRAM_SIZES, "{text}");
}

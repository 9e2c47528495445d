//! Tests with several processes, most on each link.
//!
//! The other processes are this test program again, each running one ignored test `child_…` with an
//! environment of its own. It reads commands from standard input and prints results, marked with
//! [`MARK`], to standard output.

#![allow(clippy::unwrap_used)]

mod channels;
#[path = "../common/mod.rs"]
mod common;
mod counters;
mod faults;
mod forks;
mod loading;
mod scarce;
mod settings;
mod signals;
#[path = "../../../efa/tests/spent/mod.rs"]
mod spent;
mod traffic;

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use common::loopback;
use efa_soft::abi::*;
use tempfile::TempDir;

/// Marks the lines that a child prints, among those of the test harness.
const MARK: &str = "child prints ";

/// Seconds after which a child is ended; far more than any needs.
const DEADLINE: u32 = 120;

/// The links under the devices.
const LINKS: [&str; 2] = ["shm", "tcp"];

/// A host that no other test has.
struct Host {
    link: &'static str,
    directory: TempDir,
    /// On the tcp link; each host has another loopback address.
    address: String,
}

impl Host {
    fn new(link: &'static str) -> Self {
        static NUMBER: AtomicU8 = AtomicU8::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let address = loopback(number).to_string();
        let directory = TempDir::new().unwrap();
        std::fs::create_dir(directory.path().join("sysfs")).unwrap();
        Self { link, directory, address }
    }

    /// The directory of the sysfs trees.
    fn sysfs(&self) -> PathBuf {
        self.directory.path().join("sysfs")
    }

    fn command(&self, name: &str, settings: &[(&str, &str)]) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]);
        command.env("EFA_SOFT_LINK", self.link).env("EFA_SOFT_ADDRESS", &self.address);
        command.env("EFA_SOFT_DIRECTORY", self.directory.path().join("hosts"));
        command.env("EFA_SOFT_SYSFS", self.sysfs()).envs(settings.iter().copied());
        command
    }

    fn start(&self, name: &str) -> Process {
        self.start_with(name, &[])
    }

    fn start_with(&self, name: &str, settings: &[(&str, &str)]) -> Process {
        let mut command = self.command(name, settings);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Process { child, input, output: BufReader::new(output) }
    }

    /// Runs a child until it exits with success.
    fn run(&self, name: &str, settings: &[(&str, &str)]) -> Output {
        let output = self.command(name, settings).stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{} {settings:?}: {printed}{errors}", self.link);
        output
    }
}

/// A running child, killed when dropped.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn send(&mut self, line: impl Display) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The next line that the child prints.
    fn receive(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child has exited");
            if let Some((_, printed)) = line.trim_end().split_once(MARK) {
                return printed.to_owned();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints a line to the parent.
fn print(line: impl Display) {
    println!("{MARK}{line}");
}

/// Reads a line from the parent; empty at the end of input.
fn read() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn rkey(region: *mut ibv_mr) -> u32 {
    // SAFETY: the region is not deregistered yet.
    unsafe { (*region).rkey }
}

/// Each child calls this first.
fn begin() {
    // SAFETY: `alarm` has no preconditions.
    unsafe { libc::alarm(DEADLINE) };
}

/// Waits for a child that was forked, which must have succeeded.
#[track_caller]
fn reap(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// The lines that a child printed.
fn printed(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| Some(line.split_once(MARK)?.1.to_owned())).collect()
}

//! The shm link where the system forbids a process to read the memory of another: not dumpable, a seccomp
//! filter, another PID namespace.
//!
//! The other processes are this test program, running `child_…`, as an ordinary user: root reads anything. Each
//! exits after [`DEADLINE`], and is killed and reaped when its test ends.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::Directory;
use efa_device::*;
use efa_sim::shm::{ShmDevice, ShmOptions};

/// Limit for a hanging test; a passing test takes a small fraction of it.
const DEADLINE: Duration = Duration::from_secs(60);
/// The user of the children if the test is run by root: `nobody`.
const USER: u32 = 65534;
const LENGTH: usize = 1 << 20;
const ALL: Access = Access { remote_read: true, remote_write: true };

/// Whether root can have the children, which are another user's, run this program and use the directory; if not,
/// says so.
fn is_possible(directory: &Path) -> bool {
    if !rustix::process::geteuid().is_root() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("test");
    command.arg("-x").arg(program).arg("-a").arg("-w").arg(directory).uid(USER).gid(USER);
    let output = command.output();
    let possible = output.as_ref().is_ok_and(|output| output.status.success());
    if !possible {
        eprintln!(
            "skipped: user {USER} can't run this program in {}: {output:?}",
            directory.display()
        );
    }
    possible
}

/// A directory of the children; `None` if they [can't be](is_possible).
fn directory() -> Option<Directory> {
    let directory = Directory::new();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(directory.path(), Some(USER), Some(USER)).unwrap();
    }
    is_possible(directory.path()).then_some(directory)
}

/// Another process, which answers commands line by line; killed and reaped when dropped.
struct Child {
    process: std::process::Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Child {
    fn start(directory: &Directory) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if rustix::process::geteuid().is_root() {
            command.uid(USER).gid(USER);
        }
        Self::run(command, directory)
    }

    fn run(mut command: Command, directory: &Directory) -> Self {
        let mut process = command
            .args(["child_device", "--exact", "--ignored", "--nocapture"])
            .env("EFA_SIM_DIRECTORY", directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// Has the child carry out a command, and returns its answer.
    fn ask(&mut self, command: &str) -> String {
        writeln!(self.process.stdin.as_mut().unwrap(), "{command}").unwrap();
        let answer = self.lines.find_map(|line| {
            // The test harness may already have printed the start of this line.
            Some(line.unwrap().split_once("answer: ")?.1.to_owned())
        });
        answer.unwrap_or_else(|| panic!("no answer to `{command}`"))
    }

    /// Restricts the child, unless the kernel can't: then says so, and returns false.
    fn restrict(&mut self, how: &str) -> bool {
        let answer = self.ask(how);
        if answer != "done" {
            eprintln!("skipped: {how}: {answer}");
        }
        answer == "done"
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Opens the device, restricts itself, offers memory, and reads that of others, as it is told.
#[test]
#[ignore = "child process started by other tests"]
fn child_device() {
    let Some(directory) = std::env::var_os("EFA_SIM_DIRECTORY") else { return };
    // SAFETY: it takes no pointer; the signal ends the process.
    unsafe { libc::alarm(DEADLINE.as_secs() as u32) };
    let mut device = None;
    let mut kept = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["not-dumpable"] => done(not_dumpable()),
            ["seccomp"] => done(deny_copies()),
            ["open"] => {
                let options = ShmOptions::new("host")
                    .with(|options| options.directory = Some(directory.clone().into()));
                let opened = device.insert(ShmDevice::open(options).unwrap());
                let rdma = opened.attributes().rdma;
                format!("{} {:?}", rdma.read || rdma.write, opened.rdma_obstacle())
            }
            ["offer"] => {
                let device: &ShmDevice = device.as_ref().unwrap();
                let queue_pair = device.create_queue_pair(QueuePairOptions::default()).unwrap();
                let region = queue_pair.register(vec![7; LENGTH].into(), ALL).unwrap();
                let qpn = queue_pair.address().qpn.0;
                let offer = format!("{qpn} {} {}", region.remote_address(), region.remote_key());
                kept.push((queue_pair, region));
                offer
            }
            [kind @ ("read" | "write"), qpn, address, key] => {
                let to = Qpn(qpn.parse().unwrap());
                let remote =
                    RemoteMemory { address: address.parse().unwrap(), key: key.parse().unwrap() };
                format!("{:?}", access(device.as_ref().unwrap(), kind == "read", to, remote))
            }
            _ => panic!("{line}"),
        };
        println!("answer: {answer}");
    }
}

fn done(result: std::io::Result<()>) -> String {
    result.map_or_else(|error| error.to_string(), |()| "done".into())
}

/// Reads from memory of another process, or writes to it.
fn access(
    device: &ShmDevice,
    read: bool,
    qpn: Qpn,
    remote: RemoteMemory,
) -> (Result<(), Status>, u8) {
    let mut queue_pair = device.create_queue_pair(QueuePairOptions::default()).unwrap();
    let address_handle = queue_pair.create_address_handle(device.gid()).unwrap();
    let region = queue_pair.register(vec![0; LENGTH].into(), ALL).unwrap();
    let request = RdmaRequest {
        id: WorkId(1),
        local: RegionRange { region: region.clone(), offset: 0, length: LENGTH },
        remote,
        destination: Destination { address_handle, qpn, qkey: Qkey(0) },
    };
    let posted =
        if read { queue_pair.post_read(request) } else { queue_pair.post_write(request, None) };
    posted.unwrap();
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < DEADLINE, "no progress within the deadline");
        if let Some(completion) = queue_pair.poll(Time::ZERO + start.elapsed()) {
            let Completion::Rdma { result, .. } = completion else { panic!("{completion:?}") };
            let mut last = [0];
            region.read(LENGTH - 1, &mut last);
            return (result, last[0]);
        }
    }
}

fn not_dumpable() -> std::io::Result<()> {
    // SAFETY: it takes no pointer.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) })
}

/// Denies the calling thread `process_vm_readv` and `process_vm_writev`, as container runtimes do.
fn deny_copies() -> std::io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let is = |number: libc::c_long, over: u8| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: over,
        jf: 0,
        k: number as u32,
    };
    let verdict = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        // The number of the call.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        is(libc::SYS_process_vm_readv, 2),
        is(libc::SYS_process_vm_writev, 1),
        statement(verdict, libc::SECCOMP_RET_ALLOW),
        statement(verdict, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the second call reads `program` and the filter behind it, which live until it returns.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        check(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program))
    }
}

fn check(result: libc::c_int) -> std::io::Result<()> {
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn device_of_a_process_that_others_cannot_read_offers_no_rdma() {
    for (how, reason) in [
        ("not-dumpable", "the process is not dumpable"),
        (
            "seccomp",
            "the system calls fail, perhaps by seccomp: Operation not permitted (os error 1)",
        ),
    ] {
        let Some(directory) = directory() else { return };
        let mut child = Child::start(&directory);
        assert_eq!(child.ask("open"), "true None");
        if child.restrict(how) {
            let reason = format!("others can't access the memory of this process: {reason}");
            assert_eq!(child.ask("open"), format!("false Some({reason:?})"));
        }
    }
}

#[test]
fn device_that_cannot_read_a_process_of_the_host_offers_no_rdma() {
    let Some(directory) = directory() else { return };
    let (mut first, mut second) = (Child::start(&directory), Child::start(&directory));
    if first.restrict("not-dumpable") {
        assert!(first.ask("open").starts_with("false"));
        let process = first.process.id();
        let reason =
            format!("not permitted to access the memory of process {process} of this host");
        assert_eq!(second.ask("open"), format!("false Some({reason:?})"));
        drop(first);
        assert_eq!(second.ask("open"), "true None", "the process has ended");
    }
}

#[test]
fn memory_that_becomes_unreadable_later_is_refused_and_not_lost() {
    // Restricted is the process with the memory, or the one that reads it.
    for (how, restricted) in [("not-dumpable", 0), ("seccomp", 1)] {
        let Some(directory) = directory() else { return };
        let mut children = [Child::start(&directory), Child::start(&directory)];
        for child in &mut children {
            assert_eq!(child.ask("open"), "true None");
        }
        let offer = children[0].ask("offer");
        assert_eq!(children[1].ask(&format!("read {offer}")), "(Ok(()), 7)");
        assert_eq!(children[1].ask(&format!("write {offer}")), "(Ok(()), 0)");
        if children[restricted].restrict(how) {
            for kind in ["read", "write", "read"] {
                let answer = children[1].ask(&format!("{kind} {offer}"));
                assert_eq!(answer, "(Err(NotPermitted), 0)", "{how}, {kind}");
            }
        }
    }
}

#[test]
fn device_of_a_process_in_another_pid_namespace_offers_no_rdma() {
    let possible = Command::new("unshare").args(["--pid", "--fork", "true"]).output();
    if !possible.as_ref().is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: no PID namespace can be made here: {possible:?}");
    }
    let directory = Directory::new();
    let mut here = Child::run(Command::new(std::env::current_exe().unwrap()), &directory);
    assert_eq!(here.ask("open"), "true None");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().unwrap());
    let mut there = Child::run(command, &directory);
    let reason = "is in another PID namespace\")";
    let answer = there.ask("open");
    assert!(answer.starts_with("false Some") && answer.ends_with(reason), "{answer}");
    let answer = here.ask("open");
    assert!(answer.starts_with("false Some") && answer.ends_with(reason), "{answer}");
}

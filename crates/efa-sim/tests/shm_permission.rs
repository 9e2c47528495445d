//! The shm link where the system forbids a process to read the memory of another: not dumpable, a seccomp
//! filter, other PID, user and mount namespaces. The targets carry out reads and writes there.
//!
//! The other processes are this test program, running `child_…`, as an ordinary user: root reads anything. They poll
//! while they wait for commands. Each exits after [`DEADLINE`], and is killed and reaped when its test ends.

#![allow(clippy::unwrap_used)]

mod common;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use common::Directory;
use efa_device::*;
use efa_sim::SoftRegion;
use efa_sim::region::RawMemory;
use efa_sim::shm::{ShmDevice, ShmOptions, ShmQueuePair};

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

/// A command of the children's user.
fn as_user(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    if rustix::process::geteuid().is_root() {
        command.uid(USER).gid(USER);
    }
    command
}

impl Child {
    fn start(directory: &Directory) -> Self {
        Self::run(as_user(std::env::current_exe().unwrap()), directory)
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
    let mut kept: Vec<(ShmQueuePair, SoftRegion)> = Vec::new();
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        std::io::stdin().lines().for_each(|line| sender.send(line.unwrap()).unwrap());
    });
    let start = Instant::now();
    loop {
        for (queue_pair, _) in &mut kept {
            let completion = queue_pair.poll(Time::ZERO + start.elapsed());
            assert!(completion.is_none(), "{completion:?}");
        }
        let line = match lines.recv_timeout(Duration::from_micros(100)) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["not-dumpable"] => done(not_dumpable()),
            ["seccomp"] => done(deny_copies()),
            ["open"] => {
                let options = ShmOptions::new("host")
                    .with(|options| options.directory = Some(directory.clone().into()));
                let opened = device.insert(ShmDevice::open(options).unwrap());
                let rdma = opened.attributes().rdma;
                format!("{} {:?}", rdma.read && rdma.write, opened.copy_obstacle())
            }
            ["last"] => {
                let mut last = [0];
                kept.last().unwrap().1.read(LENGTH - 1, &mut last);
                last[0].to_string()
            }
            ["offer", kind] => {
                let device: &ShmDevice = device.as_ref().unwrap();
                let mut queue_pair = device.create_queue_pair(QueuePairOptions::default()).unwrap();
                // Without it reads and writes are refused.
                queue_pair.create_address_handle(device.gid()).unwrap();
                let memory: Box<[u8]> = vec![7; LENGTH].into();
                let region = match kind {
                    "own" => queue_pair.register(memory, ALL).unwrap(),
                    _ => register_raw(device, memory),
                };
                let qpn = queue_pair.address().qpn.0;
                let Gid(gid) = device.gid();
                assert_eq!(gid[..2], [0xfe, 0x80]);
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

/// Registers memory as that of a C program is, which the kernel copies as it may be unmapped.
fn register_raw(device: &ShmDevice, memory: Box<[u8]>) -> SoftRegion {
    let base = std::ptr::NonNull::from(Box::leak(memory)).cast::<u8>();
    let address = base.as_ptr().expose_provenance() as u64;
    let raw = RawMemory { base, length: LENGTH, address, local_write: true, access: ALL };
    // SAFETY: the memory is leaked, and nobody else uses it.
    unsafe { device.keys().register_raw(raw) }.unwrap()
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
    let region = queue_pair.register(vec![9; LENGTH].into(), ALL).unwrap();
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

/// Reads and writes memory of another process, and asks for what the region doesn't allow.
fn read_and_write(owner: &mut Child, user: &mut Child, how: &str) {
    for kind in ["own", "raw"] {
        read_and_write_of(owner, user, kind, &format!("{how}, {kind} memory"));
    }
}

fn read_and_write_of(owner: &mut Child, user: &mut Child, kind: &str, how: &str) {
    let offer = owner.ask(&format!("offer {kind}"));
    assert_eq!(user.ask(&format!("read {offer}")), "(Ok(()), 7)", "{how}");
    assert_eq!(user.ask(&format!("write {offer}")), "(Ok(()), 9)", "{how}");
    assert_eq!(owner.ask("last"), "9", "{how}: the written data are there");
    assert_eq!(user.ask(&format!("read {offer}")), "(Ok(()), 9)", "{how}");
    let words: Vec<u64> = offer.split(' ').map(|word| word.parse().unwrap()).collect();
    let [qpn, address, key] = words[..] else { panic!("{offer}") };
    for (address, key) in
        [(address + 1, key), (address - 1, key), (u64::MAX, key), (address, key ^ 1)]
    {
        for kind in ["read", "write"] {
            let answer = user.ask(&format!("{kind} {qpn} {address} {key}"));
            assert!(answer.starts_with("(Err(RemoteBadAddress)"), "{how} {kind}: {answer}");
        }
    }
    assert_eq!(user.ask(&format!("read {offer}")), "(Ok(()), 9)", "{how}");
}

#[test]
fn process_that_others_cannot_read_reads_and_writes_by_requests() {
    for (how, reason) in [
        ("not-dumpable", "the process is not dumpable"),
        (
            "seccomp",
            "the system calls fail, perhaps by seccomp: Operation not permitted (os error 1)",
        ),
    ] {
        let Some(directory) = directory() else { return };
        let (mut child, mut other) = (Child::start(&directory), Child::start(&directory));
        assert_eq!(child.ask("open"), "true None");
        if child.restrict(how) {
            let reason = format!("others can't access the memory of this process: {reason}");
            assert_eq!(child.ask("open"), format!("true Some({reason:?})"));
            assert!(other.ask("open").starts_with("true "));
            read_and_write(&mut child, &mut other, how);
            read_and_write(&mut other, &mut child, how);
        }
    }
}

#[test]
fn device_says_when_it_cannot_read_a_process_of_the_host() {
    let Some(directory) = directory() else { return };
    let (mut first, mut second) = (Child::start(&directory), Child::start(&directory));
    if first.restrict("not-dumpable") {
        assert!(first.ask("open").starts_with("true Some"));
        let process = first.process.id();
        let reason =
            format!("not permitted to access the memory of process {process} of this host");
        assert_eq!(second.ask("open"), format!("true Some({reason:?})"));
        drop(first);
        assert_eq!(second.ask("open"), "true None", "the process has ended");
    }
}

#[test]
fn memory_that_becomes_unreadable_later_is_requested_from_then_on() {
    // Restricted is the process with the memory, or the one that reads it.
    for (how, restricted) in [("not-dumpable", 0), ("seccomp", 1)] {
        let Some(directory) = directory() else { return };
        let [mut owner, mut user] = [Child::start(&directory), Child::start(&directory)];
        for child in [&mut owner, &mut user] {
            assert_eq!(child.ask("open"), "true None");
        }
        read_and_write(&mut owner, &mut user, how);
        let offer = owner.ask("offer own");
        if [&mut owner, &mut user][restricted].restrict(how) {
            assert_eq!(user.ask(&format!("read {offer}")), "(Ok(()), 7)", "{how}");
            assert_eq!(user.ask(&format!("write {offer}")), "(Ok(()), 9)", "{how}");
            assert_eq!(user.ask(&format!("read {offer}")), "(Ok(()), 9)", "{how}");
        }
    }
}

/// Within one PID namespace the kernel may let a process read the other's memory and not the reverse.
#[test]
fn processes_of_other_user_and_mount_namespaces_read_and_write_each_other() {
    let inside = ["--user", "--map-root-user", "--mount", "--fork", "--kill-child"];
    let possible = as_user("unshare").args(inside).arg("true").output();
    if !possible.as_ref().is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: no namespaces {inside:?} can be made here: {possible:?}");
    }
    let Some(directory) = directory() else { return };
    let mut here = Child::start(&directory);
    let mut command = as_user("unshare");
    command.args(inside).arg(std::env::current_exe().unwrap());
    let mut there = Child::run(command, &directory);
    for child in [&mut here, &mut there] {
        assert!(child.ask("open").starts_with("true "));
    }
    read_and_write(&mut there, &mut here, "from outside");
    read_and_write(&mut here, &mut there, "from inside");
}

#[test]
fn processes_of_other_namespaces_read_and_write_each_other() {
    let program = std::env::current_exe().unwrap();
    for namespaces in [
        &["--pid"][..],
        &["--user", "--map-root-user", "--pid"],
        &["--user", "--map-root-user", "--pid", "--mount", "--mount-proc"],
    ] {
        // A user that has another number in the namespace, as it becomes root there.
        let new_user = namespaces.contains(&"--user");
        let inside = || {
            let mut command = if new_user { as_user("unshare") } else { Command::new("unshare") };
            command.args(namespaces).args(["--fork", "--kill-child"]);
            command
        };
        let possible = inside().arg("true").output();
        if !possible.as_ref().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: no namespaces {namespaces:?} can be made here: {possible:?}");
            continue;
        }
        let (directory, mut here) = if new_user {
            let Some(directory) = directory() else { return };
            let here = Child::start(&directory);
            (directory, here)
        } else {
            let directory = Directory::new();
            let here = Child::run(Command::new(&program), &directory);
            (directory, here)
        };
        assert_eq!(here.ask("open"), "true None");
        let start = || {
            let mut command = inside();
            command.arg(&program);
            Child::run(command, &directory)
        };
        let (mut there, mut elsewhere) = (start(), start());
        let reason = "true Some(\"a process of this host is in another PID namespace\")";
        for child in [&mut there, &mut elsewhere, &mut here] {
            assert_eq!(child.ask("open"), reason, "{namespaces:?}");
        }
        let how = format!("{namespaces:?}");
        read_and_write(&mut there, &mut here, &how);
        read_and_write(&mut here, &mut there, &how);
        // Both have the process number 1.
        read_and_write(&mut there, &mut elsewhere, &how);
        // Death is noticed across namespaces.
        let offer = there.ask("offer own");
        assert_eq!(here.ask(&format!("read {offer}")), "(Ok(()), 7)", "{how}");
        drop(there);
        let answer = here.ask(&format!("read {offer}"));
        let gone = ["(Err(UnresponsiveRemote), 9)", "(Err(BadDestinationQpn), 9)"];
        assert!(gone.contains(&answer.as_str()), "{how}: {answer}");
    }
}

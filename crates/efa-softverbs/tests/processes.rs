//! Stories of several processes: strangers, the killed, children, settings.
//!
//! The other processes are this test program again, running one of the `child_…` functions with an
//! environment of its own; what it has to say it prints, and what it is to do it reads.

#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};

use common::Directory;
use common::verbs::*;
use efa_sim::capture::CaptureReader;
use efa_sim::record::PacketEvent;
use efa_soft::abi::*;

/// Before everything that a child tells, so that it is told from what the test harness prints.
const MARK: &str = "child says ";

/// A child that runs `name`; it is killed when this is dropped.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

fn command(name: &str, host: &Path, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("EFA_SOFT_DIRECTORY", host).envs(settings.iter().copied());
    command
}

impl Peer {
    fn start(name: &str, host: &Path, settings: &[(&str, &str)]) -> Self {
        let mut command = command(name, host, settings);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    fn tell(&mut self, what: impl Display) {
        writeln!(self.input, "{what}").unwrap();
    }

    /// What the child says next.
    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child has ended");
            if let Some((_, said)) = line.trim_end().split_once(MARK) {
                return said.to_owned();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a child to its end.
fn run(name: &str, host: &Path, settings: &[(&str, &str)]) -> Output {
    let output = command(name, host, settings).stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}{errors}", String::from_utf8_lossy(&output.stdout));
    output
}

fn say(what: impl Display) {
    println!("{MARK}{what}");
}

fn asked() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn rkey(region: *mut ibv_mr) -> u32 {
    // SAFETY: the region is alive.
    unsafe { (*region).rkey }
}

fn host(directory: &Directory) -> std::path::PathBuf {
    directory.path().join("hosts")
}

// ---- between processes --------------------------------------------------------------------------

/// Receives one message from whoever comes, and tells about its sender.
#[test]
#[ignore = "a child"]
fn child_receives_from_a_stranger() {
    let end = End::new(Wish::default());
    let buffer = Memory::of(&[0; 64]);
    let region = end.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(end.post_receive(1, part(region, 0, 64)), 0);
    say(end.number());
    let seen = end.wait();
    say(format!("{} {:#x} {:?}", seen.source, seen.handle, seen.gid == Some(end.gid())));
    // Known from now on.
    let handle = end.handle(seen.gid.unwrap());
    assert_eq!(end.post_receive(2, part(region, 0, 64)), 0);
    say("ready");
    let seen = end.wait();
    say(format!("{} {:?}", seen.handle != 0xffff, seen.gid));
    // SAFETY: both are ours and not used afterwards.
    unsafe {
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
        assert_eq!((verbs().ibv_dereg_mr)(region), 0);
    }
}

/// Talks to the child of a test; the address handle is of use to it alone.
#[test]
#[ignore = "a child"]
fn child_sends_as_told() {
    let end = End::new(Wish::default());
    let handle = end.handle(end.gid());
    say(end.number());
    while let Ok(number) = asked().parse::<u32>() {
        let to = (handle, number, end.qkey);
        assert_eq!(end.post_send(1, to, &[inline(b"hi")], IBV_SEND_INLINE), 0);
        say(end.wait().vendor);
    }
    // SAFETY: it is ours and not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_ah)(handle) }, 0);
}

#[test]
fn strangers_are_told_by_their_gid() {
    let directory = Directory::new();
    let mut receiver = Peer::start("child_receives_from_a_stranger", &host(&directory), &[]);
    let mut sender = Peer::start("child_sends_as_told", &host(&directory), &[]);
    let (to, from) = (receiver.hear(), sender.hear());
    sender.tell(&to);
    assert_eq!(receiver.hear(), format!("{from} 0xffff true"));
    assert_eq!(sender.hear(), "0");
    assert_eq!(receiver.hear(), "ready");
    sender.tell(&to);
    assert_eq!(receiver.hear(), "true None");
}

/// Offers memory, and does nothing more.
#[test]
#[ignore = "a child"]
fn child_offers_memory() {
    let end = End::new(Wish::default());
    let memory = Memory::of(b"a secret of another process");
    let region = end.register(&memory, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    say(end.number());
    say(memory.address() as u64);
    say(rkey(region));
    asked();
    say(String::from_utf8_lossy(&memory.bytes()));
    asked();
}

/// Reads and writes as told: number, address, key, then `read` or `write`; tells the outcome.
#[test]
#[ignore = "a child"]
fn child_reaches_for_memory() {
    let end = End::new(Wish::default());
    let memory = Memory::of(&[b'x'; 8]);
    let region = end.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    let handle = end.handle(end.gid());
    let number = || asked().parse::<u64>().unwrap();
    let to = (handle, number() as u32, end.qkey);
    let remote = (number(), number() as u32);
    loop {
        let write = match asked().as_str() {
            "write" => true,
            "read" => false,
            _ => return,
        };
        assert_eq!(end.post_remote(1, to, write, remote, &[part(region, 0, 8)]), 0);
        let seen = end.wait();
        say(format!("{} {}", seen.vendor, String::from_utf8_lossy(&memory.bytes())));
    }
}

#[test]
fn memory_of_another_process_is_reached_until_it_dies() {
    let directory = Directory::new();
    let mut owner = Peer::start("child_offers_memory", &host(&directory), &[]);
    let mut user = Peer::start("child_reaches_for_memory", &host(&directory), &[]);
    for _ in 0..3 {
        let number = owner.hear();
        user.tell(number);
    }
    user.tell("write");
    assert_eq!(user.hear(), "0 xxxxxxxx");
    owner.tell("go on");
    assert_eq!(owner.hear(), "xxxxxxxx of another process");
    user.tell("read");
    assert_eq!(user.hear(), "0 xxxxxxxx");
    owner.kill();
    for operation in ["read", "write"] {
        user.tell(operation);
        assert_eq!(user.hear(), "13 xxxxxxxx", "unresponsive");
    }
}

#[test]
fn a_killed_process_harms_nobody() {
    let directory = Directory::new();
    let mut sender = Peer::start("child_sends_as_told", &host(&directory), &[]);
    sender.hear();
    for _ in 0..3 {
        let mut victim = Peer::start("child_receives_from_a_stranger", &host(&directory), &[]);
        let number = victim.hear();
        sender.tell(&number);
        assert_eq!(sender.hear(), "0");
        victim.kill();
        // Its buffers and its process are gone.
        sender.tell(&number);
        let answer = sender.hear();
        assert!(["9", "13"].contains(&answer.as_str()), "{answer}");
    }
    // Leftovers are swept by the next to come: then there is the sender's and nothing else.
    run("child_looks_for_devices", &host(&directory), &[]);
    let place = host(&directory).join("default");
    let names: Vec<_> =
        std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let queue_pairs = names.iter().filter(|name| name.to_string_lossy().starts_with("qp-"));
    let tables = names.iter().filter(|name| name.to_string_lossy().starts_with("mem-"));
    assert_eq!((queue_pairs.count(), tables.count()), (1, 2), "{names:?}");
}

// ---- forks --------------------------------------------------------------------------------------

/// A queue pair of the parent, and a device of the child's own.
#[test]
#[ignore = "a child"]
fn child_forks() {
    let end = End::new(Wish::default());
    let buffer = Memory::of(&[0; 64]);
    let region = end.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(end.post_receive(1, part(region, 0, 64)), 0);
    let v = verbs();
    // SAFETY: the child does what a program may do whose only other thread is the library's, and
    // ends without running what belongs to the parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let passed = std::panic::catch_unwind(|| {
            assert_eq!(end.post_receive(2, part(region, 0, 64)), libc::EINVAL);
            assert_eq!(end.poll(), None);
            // SAFETY: refused, since the handles are the parent's.
            unsafe {
                assert_eq!((v.ibv_destroy_qp)(end.qp), libc::EINVAL);
                assert_eq!((v.ibv_dealloc_pd)(end.pd), libc::EINVAL);
                assert_eq!((v.ibv_close_device)(end.context), libc::EINVAL);
            }
            let own = End::new(Wish::default());
            assert_ne!(own.number(), end.number());
            let handle = own.handle(own.gid());
            let to = (handle, end.number(), end.qkey);
            assert_eq!(own.post_send(3, to, &[inline(b"from the child")], IBV_SEND_INLINE), 0);
            assert_eq!(own.wait().status, IBV_WC_SUCCESS);
            // SAFETY: it is ours and not used afterwards.
            assert_eq!(unsafe { (v.ibv_destroy_ah)(handle) }, 0);
        });
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(passed.is_err())) };
    }
    assert_eq!(end.wait().wr_id, 1);
    assert_eq!(&buffer.bytes()[..14], b"from the child");
    let mut status = 0;
    // SAFETY: the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    // SAFETY: it is ours and not used afterwards.
    assert_eq!(unsafe { (v.ibv_dereg_mr)(region) }, 0);
}

#[test]
fn a_forked_child_has_a_device_of_its_own() {
    let directory = Directory::new();
    run("child_forks", &host(&directory), &[]);
}

// ---- settings -----------------------------------------------------------------------------------

/// Tells how many devices there are, and what the first can do.
#[test]
#[ignore = "a child"]
fn child_looks_for_devices() {
    let v = verbs();
    let mut count = -1;
    // SAFETY: all arguments are valid, and the list is freed after its last use.
    unsafe {
        let list = (v.ibv_get_device_list)(&raw mut count);
        assert!(!list.is_null());
        assert_eq!((*list).is_null(), count == 0);
        (v.ibv_free_device_list)(list);
    }
    if count == 0 {
        return say(count);
    }
    let context = open();
    let mut port: ibv_port_attr = zeroed();
    let mut efa = efadv_device_attr::default();
    // SAFETY: all arguments are valid, and the context is not used afterwards.
    unsafe {
        assert_eq!((v.ibv_query_port)(context, 1, &raw mut port), 0);
        assert_eq!((v.efadv_query_device)(context, &raw mut efa, 40), 0);
        assert_eq!((v.ibv_close_device)(context), 0);
    }
    say(format!("{count} {} {:#x} {}", port.max_msg_sz, efa.device_caps, efa.max_rdma_size));
    say(std::env::var("SYSFS_PATH").unwrap());
}

fn said(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| Some(line.split_once(MARK)?.1.to_owned())).collect()
}

#[test]
fn settings_shape_the_device() {
    let directory = Directory::new();
    let look = |settings: &[(&str, &str)]| {
        said(&run("child_looks_for_devices", &host(&directory), settings))
    };
    let said = look(&[]);
    assert_eq!(said[0], "1 8928 0xf 1073741824");
    assert!(!Path::new(&said[1]).exists(), "{} was not removed", said[1]);
    let several = [("EFA_SOFT_DEVICES", "3"), ("EFA_SOFT_MTU", "4096")];
    assert_eq!(look(&several)[0], "3 4096 0xf 1073741824");
    assert_eq!(look(&[("EFA_SOFT_RDMA", "read")])[0], "1 8928 0x7 1073741824");
    assert_eq!(look(&[("EFA_SOFT_RDMA", "none")])[0], "1 8928 0x6 0");
}

#[test]
fn a_bad_setting_is_told_and_there_is_no_device() {
    let directory = Directory::new();
    let bad = [("EFA_SOFT_MTU", "many")];
    let output = run("child_looks_for_devices", &host(&directory), &bad);
    assert_eq!(said(&output), ["0"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "efa-soft: EFA_SOFT_MTU=\"many\" is not a number from 1024 to 32768";
    assert!(errors.contains(expected), "{errors}");
}

/// Sends 100 messages from one end to another; tells in which order they came, and what failed.
#[test]
#[ignore = "a child"]
fn child_counts() {
    const COUNT: usize = 100;
    let wish = Wish { sends: 128, receives: 128, rnr_retry: 3, ..Wish::default() };
    let (a, b) = (End::new(wish), End::new(wish));
    let buffer = Memory::of(&[0; 8 * COUNT]);
    let region = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    for number in 0..COUNT {
        assert_eq!(b.post_receive(number as u64, part(region, 8 * number, 8)), 0);
        let to = (handle, b.number(), b.qkey);
        let bytes = [inline(&[number as u8])];
        assert_eq!(a.post_send(number as u64, to, &bytes, IBV_SEND_INLINE), 0);
    }
    let failed = (0..COUNT).filter(|_| a.wait().vendor == 10).count();
    let mut order = Vec::new();
    while order.len() < COUNT - failed {
        let seen = b.wait();
        order.push(buffer.bytes()[8 * seen.wr_id as usize]);
    }
    assert_eq!(b.poll(), None);
    let in_order = order.is_sorted();
    order.sort_unstable();
    order.dedup();
    say(format!("{failed} failed, {} came, in order: {in_order}", order.len()));
    // SAFETY: both are ours and not used afterwards.
    unsafe {
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
        assert_eq!((verbs().ibv_dereg_mr)(region), 0);
    }
}

#[test]
fn misfortune_can_be_ordered() {
    let directory = Directory::new();
    let count = |settings: &[(&str, &str)]| {
        said(&run("child_counts", &host(&directory), settings)).remove(0)
    };
    assert_eq!(count(&[]), "0 failed, 100 came, in order: true");
    assert_eq!(count(&[("EFA_SOFT_REORDER", "7")]), "0 failed, 100 came, in order: false");
    assert_eq!(count(&[("EFA_SOFT_RNR", "1")]), "100 failed, 0 came, in order: true");
    let some = count(&[("EFA_SOFT_RNR", "0.5")]);
    assert!(!some.starts_with("0 failed") && !some.starts_with("100 failed"), "{some}");
}

#[test]
fn a_capture_is_complete_when_the_process_ends() {
    let directory = Directory::new();
    let file = directory.path().join("%p.pcapng");
    let settings = [("EFA_SOFT_CAPTURE", file.to_str().unwrap())];
    run("child_looks_for_devices", &host(&directory), &settings);
    let captures = || {
        let entries = std::fs::read_dir(directory.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|e| e == "pcapng")).collect::<Vec<_>>()
    };
    assert!(captures().is_empty(), "nothing passed, so there is no file");
    run("child_counts", &host(&directory), &settings);
    let [path] = &captures()[..] else { panic!("{:?}", captures()) };
    let records: Vec<_> = CaptureReader::open(path).unwrap().collect::<Result<_, _>>().unwrap();
    let count = |event| records.iter().filter(|record| record.event == event).count();
    assert_eq!((count(PacketEvent::Sent), count(PacketEvent::Received)), (100, 100));
}

#[test]
fn counters_are_printed_on_request() {
    let directory = Directory::new();
    let settings = [("EFA_SOFT_STATISTICS", "1")];
    let output = run("child_counts", &host(&directory), &settings);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = errors.lines().find(|line| line.starts_with("efa-soft: efa_soft0")).unwrap();
    assert!(line.contains(": sends 100 of 100 B, receives 100 of 100 B, reads 0"), "{line}");
}

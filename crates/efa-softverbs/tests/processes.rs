//! Stories of several processes: strangers, the killed, children, settings. Most are told on each
//! link.
//!
//! The other processes are this test program again, running one of the `child_…` functions with an
//! environment of its own; what it has to say it prints, and what it is to do it reads.

#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use common::verbs::*;
use common::{Directory, loopback};
use efa_sim::capture::CaptureReader;
use efa_sim::record::PacketEvent;
use efa_soft::abi::*;

/// Before everything that a child tells, so that it is told from what the test harness prints.
const MARK: &str = "child says ";

/// Seconds after which a child ends itself: far more than any takes.
const DEADLINE: u32 = 120;

/// What is under the devices.
const LINKS: [&str; 2] = ["shm", "tcp"];

/// A host of a test's own.
struct Host {
    link: &'static str,
    directory: Directory,
    /// On the tcp link, where a host is one of the many addresses of this machine.
    address: String,
}

impl Host {
    fn new(link: &'static str) -> Self {
        static NUMBER: AtomicU8 = AtomicU8::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let address = loopback(number).to_string();
        let directory = Directory::new();
        std::fs::create_dir(directory.path().join("sysfs")).unwrap();
        Self { link, directory, address }
    }

    /// Where processes have their sysfs trees.
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

    fn start(&self, name: &str) -> Peer {
        let mut command = self.command(name, &[]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Peer { child, input, output: BufReader::new(output) }
    }

    /// Runs a child to its end.
    fn run(&self, name: &str, settings: &[(&str, &str)]) -> Output {
        let output = self.command(name, settings).stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{} {settings:?}: {printed}{errors}", self.link);
        output
    }
}

/// A child at work; it is killed when this is dropped.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Peer {
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

/// The beginning of every child.
fn begin() {
    // SAFETY: the signal ends this process, which is what it is for.
    unsafe { libc::alarm(DEADLINE) };
}

// ---- between processes --------------------------------------------------------------------------

/// Receives one message from whoever comes, and tells about its sender.
#[test]
#[ignore = "a child"]
fn child_receives_from_a_stranger() {
    begin();
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
    begin();
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
    for link in LINKS {
        let host = Host::new(link);
        let mut receiver = host.start("child_receives_from_a_stranger");
        let mut sender = host.start("child_sends_as_told");
        let (to, from) = (receiver.hear(), sender.hear());
        sender.tell(&to);
        assert_eq!(receiver.hear(), format!("{from} 0xffff true"));
        assert_eq!(sender.hear(), "0");
        assert_eq!(receiver.hear(), "ready");
        sender.tell(&to);
        assert_eq!(receiver.hear(), "true None");
    }
}

/// Offers memory, and does nothing more.
#[test]
#[ignore = "a child"]
fn child_offers_memory() {
    begin();
    let end = End::new(Wish::default());
    let memory = Memory::of(b"a secret of another process");
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    let region = end.register(&memory, access);
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
    begin();
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
    for link in LINKS {
        let host = Host::new(link);
        let mut owner = host.start("child_offers_memory");
        let mut user = host.start("child_reaches_for_memory");
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
            // Unresponsive, or where that can be told nobody's number.
            let answer = user.hear();
            assert!(["13 xxxxxxxx", "9 xxxxxxxx"].contains(&answer.as_str()), "{link}: {answer}");
        }
    }
}

/// Leftovers of the killed are swept by the next to come: then there is one process's and nothing
/// else.
fn check_leftovers(host: &Host) {
    host.run("child_looks_for_devices", &[]);
    assert_eq!(std::fs::read_dir(host.sysfs()).unwrap().count(), 1, "the sysfs tree of one");
    if host.link == "shm" {
        let place = host.directory.path().join("hosts/default");
        let names: Vec<_> =
            std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let count =
            |prefix| names.iter().filter(|name| name.to_string_lossy().starts_with(prefix)).count();
        assert_eq!((count("qp-"), count("mem-")), (1, 2), "{names:?}");
    }
}

#[test]
fn a_killed_process_harms_nobody() {
    for link in LINKS {
        let host = Host::new(link);
        let mut sender = host.start("child_sends_as_told");
        sender.hear();
        for _ in 0..3 {
            let mut victim = host.start("child_receives_from_a_stranger");
            let number = victim.hear();
            sender.tell(&number);
            assert_eq!(sender.hear(), "0");
            victim.kill();
            // Its buffers and its process are gone.
            sender.tell(&number);
            let answer = sender.hear();
            assert!(["9", "13"].contains(&answer.as_str()), "{link}: {answer}");
        }
        check_leftovers(&host);
    }
}

/// An end with its memory: it takes what comes, and sends to a peer and reads its memory, as much as
/// can be under way.
struct Busy {
    end: End,
    handle: *mut ibv_ah,
    region: *mut ibv_mr,
    memory: Memory,
    /// Posted and not ended.
    under_way: usize,
}

impl Busy {
    const BUFFERS: usize = 32;
    const UNDER_WAY: usize = 16;
    const READ: usize = 100_000;

    fn new() -> Self {
        let end = End::new(Wish::default());
        let memory = Memory::of(&vec![1; 64 * Self::BUFFERS + Self::READ]);
        let region = end.register(&memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
        let busy = Self { handle: end.handle(end.gid()), end, region, memory, under_way: 0 };
        (0..Self::BUFFERS as u64).for_each(|buffer| busy.post(buffer));
        busy
    }

    fn post(&self, buffer: u64) {
        let part = part(self.region, 64 * buffer as usize, 64);
        assert_eq!(self.end.post_receive(buffer, part), 0);
    }

    /// What a peer must know.
    fn introduce(&self) -> String {
        let (number, address) = (self.end.number(), self.memory.address() as u64);
        format!("{number} {address} {}", rkey(self.region))
    }

    fn start(&mut self, (number, address, key): (u32, u64, u32)) {
        let to = (self.handle, number, self.end.qkey);
        while self.under_way < Self::UNDER_WAY {
            let result = match self.under_way % 2 {
                0 => self.end.post_send(0, to, &[inline(b"as much as can be")], IBV_SEND_INLINE),
                _ => {
                    let into = part(self.region, 64 * Self::BUFFERS, Self::READ);
                    let from = (address + 64 * Self::BUFFERS as u64, key);
                    self.end.post_remote(0, to, false, from, &[into])
                }
            };
            assert_eq!(result, 0);
            self.under_way += 1;
        }
    }

    /// Takes what there is; gives how something that was posted ended.
    fn take(&mut self) -> Option<u32> {
        let seen = self.end.poll()?;
        if seen.opcode == IBV_WC_RECV {
            assert_eq!(seen.status, IBV_WC_SUCCESS);
            self.post(seen.wr_id);
            return None;
        }
        self.under_way -= 1;
        Some(seen.vendor)
    }

    fn destroy(self) {
        // SAFETY: both are ours and not used afterwards; nobody is left who sends into the memory.
        unsafe {
            assert_eq!((verbs().ibv_destroy_ah)(self.handle), 0);
            assert_eq!((verbs().ibv_dereg_mr)(self.region), 0);
        }
    }
}

fn introduced(text: &str) -> (u32, u64, u32) {
    let mut words = text.split(' ');
    let mut next = || words.next().unwrap();
    (next().parse().unwrap(), next().parse().unwrap(), next().parse().unwrap())
}

/// Is busy with a peer until it is killed.
#[test]
#[ignore = "a child"]
fn child_is_busy() {
    begin();
    let mut busy = Busy::new();
    say(busy.introduce());
    let peer = introduced(&asked());
    for ended in 0_u64.. {
        busy.start(peer);
        while busy.under_way == Busy::UNDER_WAY {
            assert!(busy.take().is_none_or(|vendor| vendor == 0));
        }
        if ended == 200 {
            say("in the midst of it");
        }
    }
}

/// Is busy with one peer after the other; each is killed. Everything that was posted ends.
#[test]
#[ignore = "a child"]
fn child_outlives() {
    begin();
    let mut busy = Busy::new();
    say(busy.introduce());
    loop {
        let line = asked();
        if line.is_empty() {
            break;
        }
        let (peer, mut lives) = (introduced(&line), true);
        while lives || busy.under_way > 0 {
            if lives {
                busy.start(peer);
            }
            match busy.take() {
                None | Some(0) => {}
                Some(9 | 13) => lives = false,
                Some(other) => panic!("{other}"),
            }
        }
        say("outlived");
    }
    busy.destroy();
    say("ended");
}

#[test]
fn a_process_killed_in_the_midst_of_traffic_harms_nobody() {
    for link in LINKS {
        let host = Host::new(link);
        let mut survivor = host.start("child_outlives");
        let introduction = survivor.hear();
        for _ in 0..5 {
            let mut victim = host.start("child_is_busy");
            survivor.tell(victim.hear());
            victim.tell(&introduction);
            assert_eq!(victim.hear(), "in the midst of it");
            victim.kill();
            assert_eq!(survivor.hear(), "outlived", "{link}");
        }
        check_leftovers(&host);
        survivor.tell("");
        assert_eq!(survivor.hear(), "ended");
        assert!(survivor.child.wait().unwrap().success());
    }
}

// ---- forks --------------------------------------------------------------------------------------

/// A queue pair of the parent, and a device of the child's own.
#[test]
#[ignore = "a child"]
fn child_forks() {
    begin();
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
    for link in LINKS {
        Host::new(link).run("child_forks", &[]);
    }
}

/// Forks again and again while another thread sends and polls; each child makes devices, sends and
/// polls itself, whatever locks were held in the parent.
#[test]
#[ignore = "a child"]
fn child_forks_at_work() {
    const FORKS: usize = 20;
    begin();
    // The library is loaded, and nothing else is done.
    verbs();
    let exchange = |a: &End, b: &End, handle, region, buffer| {
        assert_eq!(b.post_receive(1, part(region, buffer, 8)), 0);
        let to = (handle, b.number(), b.qkey);
        assert_eq!(a.post_send(2, to, &[inline(b"12345678")], IBV_SEND_INLINE), 0);
        assert_eq!((b.wait().wr_id, a.wait().status), (1, IBV_WC_SUCCESS));
    };
    let work = |more: &dyn Fn() -> bool| {
        let (a, b) = (End::new(Wish::default()), End::new(Wish::default()));
        let memory = Memory::of(&[0; 8]);
        let region = b.register(&memory, IBV_ACCESS_LOCAL_WRITE);
        let handle = a.handle(b.gid());
        while more() {
            exchange(&a, &b, handle, region, 0);
        }
        assert_eq!(memory.bytes(), b"12345678");
        // SAFETY: both are ours and not used afterwards.
        unsafe {
            assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
            assert_eq!((verbs().ibv_dereg_mr)(region), 0);
        }
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&|| !stop.load(Ordering::Relaxed)));
        for _ in 0..FORKS {
            // SAFETY: what the child does after the fork are calls of the library, which is made for
            // this, and of the allocator, which the C library sees to; it ends without running what
            // belongs to the parent.
            let child = unsafe { libc::fork() };
            if child == 0 {
                begin();
                let rounds = AtomicUsize::new(0);
                let passed = std::panic::catch_unwind(|| {
                    work(&|| rounds.fetch_add(1, Ordering::Relaxed) < 100);
                });
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(passed.is_err())) };
            }
            let mut status = 0;
            // SAFETY: the child is ours.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap();
    });
}

#[test]
fn forks_in_the_midst_of_work_harm_neither_side() {
    for link in LINKS {
        Host::new(link).run("child_forks_at_work", &[]);
    }
}

/// Forks while other threads are in the middle of polling and of building requests, for which they
/// hold locks; the child finds that nothing of that is its own.
#[test]
#[ignore = "a child"]
fn child_forks_within_calls() {
    begin();
    let end = End::new(Wish::default());
    let handle = end.handle(end.gid());
    let to = (handle, nobody(), end.qkey);
    assert_eq!(end.post_send(1, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    // SAFETY: as C does it: through the functions in the queues, between start and end.
    unsafe {
        let (cq, qp) = (end.cq, (verbs().ibv_qp_to_qp_ex)(end.qp));
        let mut attributes = ibv_poll_cq_attr { comp_mask: 0 };
        while ((*cq).start_poll.unwrap())(cq, &raw mut attributes) != 0 {}
        ((*qp).wr_start.unwrap())(qp);
        let child = libc::fork();
        if child == 0 {
            begin();
            let passed = std::panic::catch_unwind(|| {
                assert_eq!(end.poll(), None);
                ((*qp).wr_start.unwrap())(qp);
                ((*qp).wr_send.unwrap())(qp);
                ((*qp).wr_set_ud_addr.unwrap())(qp, handle, nobody(), end.qkey);
                assert_eq!(((*qp).wr_complete.unwrap())(qp), libc::EINVAL);
            });
            libc::_exit(i32::from(passed.is_err()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0);
        ((*qp).wr_abort.unwrap())(qp);
        ((*cq).end_poll.unwrap())(cq);
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
    }
}

#[test]
fn a_child_waits_for_nobody_who_is_in_the_parent_only() {
    Host::new("shm").run("child_forks_within_calls", &[]);
}

type GetAsyncEvent =
    unsafe extern "C-unwind" fn(*mut ibv_context, *mut libc::c_void) -> libc::c_int;

/// Waits for an event on a context that is no more than a number here.
extern "C-unwind" fn wait_for_event(context: *mut libc::c_void) -> *mut libc::c_void {
    let mut event = [0_u64; 2];
    // SAFETY: the context is alive, and there is room for an event. Nothing here is to be dropped, so
    // the thread can be cancelled.
    unsafe {
        let wait = libc::dlsym(libc::RTLD_DEFAULT, c"ibv_get_async_event".as_ptr());
        let wait = std::mem::transmute::<*mut libc::c_void, GetAsyncEvent>(wait);
        wait(context.cast(), event.as_mut_ptr().cast());
    }
    std::ptr::null_mut()
}

/// Programs wait in a thread for events of the device, and cancel it when they have done.
#[test]
#[ignore = "a child"]
fn child_waits_for_events() {
    begin();
    let path = std::ffi::CString::new(common::library().into_os_string().into_encoded_bytes());
    // SAFETY: loading runs no code of ours that has preconditions.
    unsafe { libc::dlopen(path.unwrap().as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    let context = open();
    // SAFETY: the context is alive until it is closed; the thread ends before.
    unsafe {
        let start = std::mem::transmute::<
            extern "C-unwind" fn(*mut libc::c_void) -> *mut libc::c_void,
            extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
        >(wait_for_event);
        let mut thread = std::mem::zeroed();
        assert_eq!(
            libc::pthread_create(&raw mut thread, std::ptr::null(), start, context.cast()),
            0
        );
        assert_eq!(libc::pthread_cancel(thread), 0);
        let mut end = std::ptr::null_mut();
        assert_eq!(libc::pthread_join(thread, &raw mut end), 0);
        assert_eq!(end as usize, usize::MAX, "it waited until it was cancelled");
        // Who doesn't want to wait says so as for any file.
        let file = (*context).async_fd;
        let flags = libc::fcntl(file, libc::F_GETFL);
        assert_eq!(libc::fcntl(file, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        assert!(wait_for_event(context.cast()).is_null());
        assert_eq!(errno(), libc::EAGAIN);
        assert_eq!((verbs().ibv_close_device)(context), 0);
    }
}

#[test]
fn events_are_waited_for() {
    Host::new("shm").run("child_waits_for_events", &[]);
}

/// Loads the library, and has done with it.
#[test]
#[ignore = "a child"]
fn child_unloads() {
    begin();
    let path = std::ffi::CString::new(common::library().into_os_string().into_encoded_bytes());
    let path = path.unwrap();
    // SAFETY: loading runs no code of ours that has preconditions.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null());
        assert_eq!(libc::dlclose(handle), 0);
        let still = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(!still.is_null(), "its thread would run in memory that is gone");
    }
}

/// The helping thread runs its code.
#[test]
fn the_library_stays_when_it_is_unloaded() {
    Host::new("shm").run("child_unloads", &[]);
}

// ---- settings -----------------------------------------------------------------------------------

/// Tells how many devices there are, and what the first can do.
#[test]
#[ignore = "a child"]
fn child_looks_for_devices() {
    begin();
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
    let host = Host::new("shm");
    let look = |settings: &[(&str, &str)]| said(&host.run("child_looks_for_devices", settings));
    let said = look(&[]);
    assert_eq!(said[0], "1 8928 0xf 1073741824");
    assert!(!Path::new(&said[1]).exists(), "{} was not removed", said[1]);
    let several = [("EFA_SOFT_DEVICES", "3"), ("EFA_SOFT_MTU", "4096")];
    assert_eq!(look(&several)[0], "3 4096 0xf 1073741824");
    assert_eq!(look(&[("EFA_SOFT_RDMA", "read")])[0], "1 8928 0x7 1073741824");
    assert_eq!(look(&[("EFA_SOFT_RDMA", "none")])[0], "1 8928 0x6 0");
}

/// Tries what the device says that it can do, and what it says that it can't.
#[test]
#[ignore = "a child"]
fn child_tries_everything() {
    begin();
    let v = verbs();
    let context = open();
    let mut efa = efadv_device_attr::default();
    // SAFETY: all arguments are valid.
    unsafe { assert_eq!((v.efadv_query_device)(context, &raw mut efa, 40), 0) };
    let (read, write) = (EFADV_DEVICE_ATTR_CAPS_RDMA_READ, EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE);
    let others = EFADV_DEVICE_ATTR_CAPS_RNR_RETRY | EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID;
    // The others are used by each `End`: a completion queue that tells the GID, and retries.
    assert_eq!(efa.device_caps & !(read | write), others);
    assert_eq!(efa.max_rdma_size > 0, efa.device_caps & (read | write) != 0);
    let sends = Wish { operations: IBV_QP_EX_WITH_SEND, ..Wish::default() };
    let (plain, b) = (End::new(sends), End::new(sends));
    let (theirs, ours) = (Memory::of(b"theirs"), Memory::of(b"ours??"));
    let local = plain.register(&ours, IBV_ACCESS_LOCAL_WRITE);
    let handle = plain.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    for (bit, access, operations, is_write) in [
        (read, IBV_ACCESS_REMOTE_READ, IBV_QP_EX_WITH_RDMA_READ, false),
        (write, IBV_ACCESS_REMOTE_WRITE, IBV_QP_EX_WITH_RDMA_WRITE, true),
        (write, IBV_ACCESS_REMOTE_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, true),
    ] {
        let has = efa.device_caps & bit != 0;
        let (address, length) = (theirs.address(), theirs.len());
        let access = (access | IBV_ACCESS_LOCAL_WRITE).cast_signed();
        // SAFETY: the memory lives to the end of this function.
        let region = unsafe { (v.ibv_reg_mr)(b.pd, address, length, access) };
        assert_eq!(region.is_null(), !has, "registration");
        let qp = create(plain.context, plain.pd, plain.cq, Wish { operations, ..sends });
        assert_eq!(qp.is_null(), !has, "a queue pair for it");
        let remote = (address as u64, if has { rkey(region) } else { 1 });
        let posted = plain.post_remote(1, to, is_write, remote, &[part(local, 0, 6)]);
        assert_eq!(posted, if has { 0 } else { libc::EOPNOTSUPP });
        if has {
            assert_eq!(plain.wait().status, IBV_WC_SUCCESS);
            assert_eq!(ours.bytes(), theirs.bytes());
            // SAFETY: both are ours and not used afterwards.
            unsafe {
                assert_eq!((v.ibv_destroy_qp)(qp), 0);
                assert_eq!((v.ibv_dereg_mr)(region), 0);
            }
        }
    }
    say(efa.device_caps);
    // SAFETY: all are ours and not used afterwards.
    unsafe {
        assert_eq!((v.ibv_destroy_ah)(handle), 0);
        assert_eq!((v.ibv_dereg_mr)(local), 0);
        assert_eq!((v.ibv_close_device)(context), 0);
    }
}

#[test]
fn the_device_does_what_it_says_and_nothing_else() {
    for link in LINKS {
        let host = Host::new(link);
        for (which, caps) in [("read,write", 15), ("read", 7), ("write", 14), ("none", 6)] {
            let output = host.run("child_tries_everything", &[("EFA_SOFT_RDMA", which)]);
            assert_eq!(said(&output), [caps.to_string()], "{link} {which}");
        }
    }
}

#[test]
fn a_bad_setting_is_told_and_there_is_no_device() {
    let bad = [("EFA_SOFT_MTU", "many")];
    let output = Host::new("shm").run("child_looks_for_devices", &bad);
    assert_eq!(said(&output), ["0"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "efa-soft: EFA_SOFT_MTU=\"many\" is not a number from 1024 to 32768";
    assert!(errors.contains(expected), "{errors}");
}

#[test]
fn a_place_that_programs_can_not_find_is_told_and_there_is_no_device() {
    let host = Host::new("shm");
    let deep = host.sysfs().join("d".repeat(200));
    std::fs::create_dir(&deep).unwrap();
    let settings = [("EFA_SOFT_SYSFS", deep.to_str().unwrap())];
    let output = host.run("child_looks_for_devices", &settings);
    assert_eq!(said(&output), ["0"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("is longer than 255 bytes"), "{errors}");
    assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 0, "what was begun is removed");
}

/// A program may change its directory before it looks for sysfs.
#[test]
fn the_place_of_sysfs_is_absolute() {
    let host = Host::new("shm");
    let mut command = host.command("child_looks_for_devices", &[("TMPDIR", ".")]);
    command.env_remove("EFA_SOFT_SYSFS").current_dir(host.sysfs());
    let output = command.output().unwrap();
    let told = said(&output).remove(1);
    assert!(told.starts_with(host.sysfs().to_str().unwrap()), "{told}");
}

/// Sends 100 messages from one end to another; tells in which order they came, and what failed.
#[test]
#[ignore = "a child"]
fn child_counts() {
    begin();
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
#[ignore = "a child"]
fn child_registers() {
    begin();
    let end = End::new(Wish::default());
    let buffer = Memory::of(&[0; 800]);
    for _ in 0..3 {
        // SAFETY: the memory lives as long as its region.
        let region = unsafe { (verbs().ibv_reg_mr)(end.pd, buffer.address(), buffer.len(), 0) };
        if region.is_null() {
            say(format!("errno {}", errno()));
            continue;
        }
        say("registered");
        // SAFETY: it is ours and not used afterwards.
        assert_eq!(unsafe { (verbs().ibv_dereg_mr)(region) }, 0);
    }
}

#[test]
fn registrations_fail_as_asked_for() {
    for link in LINKS {
        let host = Host::new(link);
        let outcome = |setting| said(&host.run("child_registers", &[("EFA_SOFT_REFUSE", setting)]));
        let refused = format!("errno {}", libc::ENOMEM);
        assert_eq!(outcome("800-900:2"), [&refused, &refused, "registered"]);
        assert_eq!(outcome("0-799:2"), ["registered"; 3]);
    }
}

/// A queue pair that asked for it is told of writes without a receive buffer, and another one not.
#[test]
#[ignore = "a child"]
fn child_is_written_to() {
    begin();
    let (a, b) = (End::new(Wish::default()), End::new(Wish::default()));
    let unasked = End::new(Wish { unsolicited: true, ..Wish::default() });
    for (number, end, takes) in [(1, &unasked, false), (2, &b, true), (3, &unasked, false)] {
        let memory = Memory::of(&[0; 64]);
        let region = end.register(&memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        let handle = a.handle(end.gid());
        if takes {
            assert_eq!(end.post_receive(10, part(region, 0, 64)), 0);
        }
        let to = (handle, end.number(), end.qkey);
        let remote = (memory.address() as u64, rkey(region));
        assert_eq!(a.post_write_immediate(number.into(), to, remote, &[], number), 0);
        let told = end.wait();
        assert_eq!((told.opcode, told.status), (IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS));
        assert_eq!((told.immediate, told.wr_id == 10), (Some(number), takes));
        assert_eq!(a.wait().status, IBV_WC_SUCCESS);
        // SAFETY: both are ours and not used afterwards.
        unsafe {
            assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
            assert_eq!((verbs().ibv_dereg_mr)(region), 0);
        }
    }
}

#[test]
fn queue_pairs_choose_whether_writes_take_a_buffer() {
    for link in LINKS {
        Host::new(link).run("child_is_written_to", &[("EFA_SOFT_UNSOLICITED", "1")]);
    }
}

#[test]
fn misfortune_can_be_ordered() {
    for link in LINKS {
        let host = Host::new(link);
        let count = |settings: &[(&str, &str)]| said(&host.run("child_counts", settings)).remove(0);
        assert_eq!(count(&[]), "0 failed, 100 came, in order: true");
        assert_eq!(count(&[("EFA_SOFT_REORDER", "7")]), "0 failed, 100 came, in order: false");
        assert_eq!(count(&[("EFA_SOFT_RNR", "1")]), "100 failed, 0 came, in order: true");
        let some = count(&[("EFA_SOFT_RNR", "0.5")]);
        assert!(!some.starts_with("0 failed") && !some.starts_with("100 failed"), "{some}");
        // No two of the messages begin alike.
        assert_eq!(count(&[("EFA_SOFT_RNR_EACH", "1")]), "100 failed, 0 came, in order: true");
    }
}

/// Posts sends, which wait if datagrams are to overtake each other, and destroys their handle.
#[test]
#[ignore = "a child"]
fn child_destroys_a_handle_early() {
    begin();
    let (a, b) = (End::new(Wish::default()), End::new(Wish::default()));
    let buffer = Memory::of(&[0; 64]);
    let region = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    for wr_id in 0..64 {
        assert_eq!(b.post_receive(wr_id, part(region, 0, 64)), 0);
        let to = (handle, b.number(), b.qkey);
        assert_eq!(a.post_send(wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    }
    // SAFETY: both are ours and not used afterwards.
    unsafe {
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
        for _ in 0..64 {
            a.wait();
        }
        assert_eq!((verbs().ibv_dereg_mr)(region), 0);
    }
}

#[test]
fn sends_that_wait_end_though_their_address_handle_is_destroyed() {
    for link in LINKS {
        let host = Host::new(link);
        host.run("child_destroys_a_handle_early", &[("EFA_SOFT_REORDER", "3")]);
    }
}

/// Posts sends and destroys its queue pair without a look at how they end.
#[test]
#[ignore = "a child"]
fn child_leaves_early() {
    const COUNT: u64 = 32;
    begin();
    let (a, b) = (End::new(Wish::default()), End::new(Wish::default()));
    let buffer = Memory::of(&[0; 64]);
    let region = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    // The first, so that over tcp they are connected.
    assert_eq!(b.post_receive(0, part(region, 0, 64)), 0);
    assert_eq!(a.post_send(0, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    assert_eq!((a.wait().status, b.wait().wr_id), (IBV_WC_SUCCESS, 0));
    for wr_id in 1..=COUNT {
        assert_eq!(b.post_receive(wr_id, part(region, 0, 64)), 0);
        assert_eq!(a.post_send(wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    }
    // SAFETY: nothing of it is used afterwards.
    assert_eq!(unsafe { (verbs().ibv_close_device)(a.context) }, 0);
    std::mem::forget(a);
    for _ in 0..COUNT {
        assert_eq!(b.wait().status, IBV_WC_SUCCESS);
    }
    // SAFETY: as above.
    assert_eq!(unsafe { (verbs().ibv_dereg_mr)(region) }, 0);
}

/// MPICH ends so: its last messages are on their way when libfabric 2.5 destroys the queue pair.
#[test]
fn what_overtakes_or_is_overtaken_arrives_though_its_sender_leaves() {
    for link in LINKS {
        let host = Host::new(link);
        host.run("child_leaves_early", &[]);
        host.run("child_leaves_early", &[("EFA_SOFT_REORDER", "3")]);
    }
}

#[test]
fn a_capture_is_complete_when_the_process_ends() {
    let host = Host::new("shm");
    let file = host.directory.path().join("%p.pcapng");
    let settings = [("EFA_SOFT_CAPTURE", file.to_str().unwrap())];
    host.run("child_looks_for_devices", &settings);
    let captures = || {
        let entries = std::fs::read_dir(host.directory.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|e| e == "pcapng")).collect::<Vec<_>>()
    };
    assert!(captures().is_empty(), "nothing passed, so there is no file");
    host.run("child_counts", &settings);
    let [path] = &captures()[..] else { panic!("{:?}", captures()) };
    let records: Vec<_> = CaptureReader::open(path).unwrap().collect::<Result<_, _>>().unwrap();
    let count = |event| records.iter().filter(|record| record.event == event).count();
    assert_eq!((count(PacketEvent::Sent), count(PacketEvent::Received)), (100, 100));
}

#[test]
fn counters_are_printed_on_request() {
    let settings = [("EFA_SOFT_STATISTICS", "1")];
    let output = Host::new("shm").run("child_counts", &settings);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = errors.lines().find(|line| line.starts_with("efa-soft: efa_soft0")).unwrap();
    assert!(line.contains(": sends 100 of 100 B, receives 100 of 100 B, reads 0"), "{line}");
}

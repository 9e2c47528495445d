//! The shm link between processes: traffic, and processes that are killed or stopped.
//!
//! The other processes are this test program, running one of the `child_…` functions. Each exits after
//! [`DEADLINE`], and is killed and reaped when its test ends.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::Directory;
use efa_device::*;
use efa_sim::SoftRegion;
use efa_sim::shm::{ShmDevice, ShmOptions, ShmQueuePair};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Limit for a hanging test; a passing test takes a small fraction of it.
const DEADLINE: Duration = Duration::from_secs(60);
const KEY: Qkey = Qkey(0x77);
const MTU: usize = 256;

fn options(directory: impl Into<PathBuf>) -> ShmOptions {
    let mut options = ShmOptions::new("host");
    options.directory = Some(directory.into());
    options.mtu = MTU;
    options.ring_slots = 8;
    options
}

/// A queue pair with blocking helpers, driven by the wall clock.
struct Side {
    qp: ShmQueuePair,
    handle: AddressHandle,
    start: Instant,
    /// Added to the wall clock to simulate elapsed time.
    skipped: Duration,
}

impl Side {
    fn new(device: &ShmDevice, receives: usize) -> Self {
        Self::with_key(device, receives, KEY)
    }

    fn with_key(device: &ShmDevice, receives: usize, qkey: Qkey) -> Self {
        // Infinite RNR retries: a slow machine must not fail the test.
        let options = QueuePairOptions::default().with(|options| {
            options.qkey = qkey;
            options.rnr_retry = 7;
        });
        let mut qp = device.create_queue_pair(options).unwrap();
        for _ in 0..receives {
            let packet = qp.allocate_packet().unwrap();
            qp.post_receive(packet).unwrap();
        }
        let handle = qp.create_address_handle(device.gid()).unwrap();
        Self { qp, handle, start: Instant::now(), skipped: Duration::ZERO }
    }

    fn send(&mut self, to: Qpn, id: u64, bytes: &[u8]) {
        self.send_with(to, KEY, id, bytes, 0);
    }

    /// With so many bytes of payload more, which the device copies.
    fn send_with(&mut self, to: Qpn, qkey: Qkey, id: u64, bytes: &[u8], payload: usize) {
        let mut packet = self.qp.allocate_packet().unwrap();
        packet[..bytes.len()].copy_from_slice(bytes);
        let destination = Destination { address_handle: self.handle, qpn: to, qkey };
        let request = SendRequest {
            id: WorkId(id),
            packet,
            length: bytes.len(),
            destination,
            immediate: None,
        };
        let fill = |mut into: CopyTarget<'_>| into.copy_from(0, &vec![7; payload]);
        match payload {
            0 => self.qp.post_send(request).unwrap(),
            _ => self.qp.post_send_with(request, payload, fill).unwrap(),
        }
    }

    fn poll(&mut self) -> Option<Completion<Box<[u8]>>> {
        let elapsed = self.start.elapsed();
        assert!(elapsed < DEADLINE, "no progress within the deadline");
        self.qp.poll(Time::ZERO + elapsed + self.skipped)
    }

    fn wait(&mut self) -> Completion<Box<[u8]>> {
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            // Let the other process run if both share a processor.
            std::thread::yield_now();
        }
    }

    /// Waits for `count` sends to complete; other completions fail the test.
    fn ended(&mut self, count: usize) -> Vec<Result<(), Status>> {
        let ended = (0..count).map(|_| match self.wait() {
            Completion::Send { result, .. } => result,
            other => panic!("{other:?}"),
        });
        ended.collect()
    }

    /// Waits for a packet and reposts its buffer.
    fn received(&mut self) -> (Vec<u8>, Qpn) {
        loop {
            if let Completion::Receive { packet, length, source, .. } = self.wait() {
                let bytes = packet[..length].to_vec();
                self.qp.post_receive(packet).unwrap();
                return (bytes, source.qpn);
            }
        }
    }
}

/// The packet number, repeated, so that a receiver can check that the packet is complete.
fn pattern(number: u64) -> Vec<u8> {
    let length = 8 + (number as usize * 8) % (MTU - 8);
    number.to_le_bytes().repeat(length / 8)
}

fn check_pattern(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, pattern(number));
    number
}

/// Another process, killed and reaped when dropped.
struct Child {
    process: std::process::Child,
    qpn: Qpn,
}

impl Child {
    /// Runs `child_<role>`; roles that send use `target` as destination.
    fn start(role: &str, directory: &Directory, target: Qpn) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([&format!("child_{role}"), "--exact", "--ignored", "--nocapture"])
            .env("EFA_SIM_DIRECTORY", directory.path())
            .env("EFA_SIM_TARGET", target.0.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let qpn = lines.find_map(|line| {
            // The test harness may already have printed the start of this line.
            let (_, number) = line.ok()?.split_once("efa queue pair ").map(own)?;
            number.parse().ok()
        });
        let mut child = Self { process, qpn: Qpn(0) };
        child.qpn = Qpn(qpn.expect("the child prints its number"));
        // Keep reading: a closed pipe would fail the child's later output.
        std::thread::spawn(move || lines.for_each(drop));
        child
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn finish(mut self) {
        assert!(self.process.wait().unwrap().success());
    }
}

fn own((a, b): (&str, &str)) -> (String, String) {
    (a.to_owned(), b.trim().to_owned())
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The child's queue pair and its destination; `None` outside of a child process.
fn child(receives: usize) -> Option<(Side, Qpn)> {
    let directory = std::env::var_os("EFA_SIM_DIRECTORY")?;
    let target = std::env::var("EFA_SIM_TARGET").unwrap().parse().unwrap();
    let side = Side::new(&ShmDevice::open(options(directory)).unwrap(), receives);
    println!("efa queue pair {}", side.qp.address().qpn.0);
    Some((side, Qpn(target)))
}

/// Echoes packets until an empty one arrives.
#[test]
#[ignore = "child process started by other tests"]
fn child_echo() {
    let Some((mut side, _)) = child(16) else { return };
    let mut pending_sends = 0;
    loop {
        match side.wait() {
            Completion::Send { result, .. } => {
                assert_eq!(result, Ok(()));
                pending_sends -= 1;
            }
            Completion::Receive { length: 0, .. } => break,
            Completion::Receive { packet, length, source, .. } => {
                side.send(source.qpn, 0, &packet[..length]);
                side.qp.post_receive(packet).unwrap();
                pending_sends += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    side.ended(pending_sends);
}

/// Polls, and never posts a buffer.
#[test]
#[ignore = "child process started by other tests"]
fn child_idle() {
    let Some((mut side, _)) = child(0) else { return };
    let completion = side.wait();
    panic!("{completion:?}");
}

/// Sends 1000 packets.
#[test]
#[ignore = "child process started by other tests"]
fn child_send() {
    let Some((mut side, target)) = child(0) else { return };
    for number in 0..1000 {
        side.send(target, number, &pattern(number));
    }
    assert_eq!(side.ended(1000), [Ok(()); 1000]);
}

const SHARED: usize = 3 << 20;

/// A region open to remote reads and writes, filled with a pattern that starts at `first`.
fn register_pattern(qp: &ShmQueuePair, first: usize) -> SoftRegion {
    let memory = (first..first + SHARED).map(|i| (i % 251) as u8).collect();
    qp.register(memory, Access { remote_read: true, remote_write: true }).unwrap()
}

/// A request for all of `local` at the memory that the other side announced.
fn request(side: &Side, to: Qpn, announced: &[u8], local: &SoftRegion) -> RdmaRequest<SoftRegion> {
    let address = u64::from_le_bytes(announced[..8].try_into().unwrap());
    let key = u32::from_le_bytes(announced[8..].try_into().unwrap());
    RdmaRequest {
        id: WorkId(9),
        local: RegionRange { region: local.clone(), offset: 0, length: local.length() },
        remote: RemoteMemory { address, key },
        destination: Destination { address_handle: side.handle, qpn: to, qkey: KEY },
    }
}

/// The remote address and key of a region, as sent to the other process.
fn announcement(region: &SoftRegion) -> Vec<u8> {
    [&region.remote_address().to_le_bytes()[..], &region.remote_key().to_le_bytes()].concat()
}

fn bytes(region: &SoftRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.length()];
    region.read(0, &mut bytes);
    bytes
}

/// Exchanges region addresses with the target, reads its region and writes back the inverted bytes.
#[test]
#[ignore = "child process started by other tests"]
fn child_share() {
    let Some((mut side, target)) = child(16) else { return };
    let (offered, own) = (register_pattern(&side.qp, 7), register_pattern(&side.qp, 0));
    side.send(target, 0, &announcement(&offered));
    assert_eq!(side.ended(1), [Ok(())]);
    let (announced, _) = side.received();
    let request = request(&side, target, &announced, &own);
    side.qp.post_read(request.clone()).unwrap();
    assert!(matches!(side.wait(), Completion::Rdma { result: Ok(()), .. }));
    let changed: Vec<u8> = bytes(&own).iter().map(|byte| !byte).collect();
    own.write(0, &changed);
    side.qp.post_write(request, Some(5)).unwrap();
    assert!(matches!(side.wait(), Completion::Rdma { result: Ok(()), .. }));
    let completion = side.wait();
    panic!("{completion:?}");
}

/// Sends packets without end.
#[test]
#[ignore = "child process started by other tests"]
fn child_stream() {
    let Some((mut side, target)) = child(0) else { return };
    for number in 0.. {
        if number >= 16 {
            assert_eq!(side.ended(1), [Ok(())]);
        }
        side.send(target, number, &pattern(number));
    }
}

/// Opens the host and creates queue pairs repeatedly.
#[test]
#[ignore = "child process started by other tests"]
fn child_churn() {
    let Some((side, _)) = child(0) else { return };
    let directory = std::env::var_os("EFA_SIM_DIRECTORY").unwrap();
    for _ in 0..100 {
        let device = ShmDevice::open(options(&directory)).unwrap();
        let mut one = Side::new(&device, 1);
        let two = Side::new(&device, 1);
        // These queue pairs must stay usable while other processes create and remove theirs.
        one.send(two.qp.address().qpn, 1, b"");
        let mut two = two;
        assert_eq!(two.received().1, one.qp.address().qpn);
        assert_eq!(one.ended(1), [Ok(())]);
    }
    drop(side);
}

#[test]
fn packets_are_echoed_by_another_process() {
    let directory = Directory::new();
    let mut side = Side::new(&ShmDevice::open(options(directory.path())).unwrap(), 16);
    let child = Child::start("echo", &directory, Qpn(0));
    for number in 0..2000 {
        side.send(child.qpn, number, &pattern(number));
        let (bytes, from) = side.received();
        assert_eq!((check_pattern(&bytes), from), (number, child.qpn));
    }
    side.send(child.qpn, 2000, b"");
    child.finish();
}

#[test]
fn rdma_between_processes_fails_after_the_target_is_killed() {
    let directory = Directory::new();
    let mut side = Side::new(&ShmDevice::open(options(directory.path())).unwrap(), 4);
    let mut child = Child::start("share", &directory, side.qp.address().qpn);
    let (announced, _) = side.received();
    let (offered, own) = (register_pattern(&side.qp, 3), register_pattern(&side.qp, 0));
    let request = request(&side, child.qpn, &announced, &own);
    // RDMA needs no poll by the child.
    side.qp.post_read(request.clone()).unwrap();
    assert!(matches!(side.wait(), Completion::Rdma { result: Ok(()), .. }));
    let expected: Vec<u8> = (7..7 + SHARED).map(|i| (i % 251) as u8).collect();
    assert_eq!(bytes(&own), expected);
    side.send(child.qpn, 1, &announcement(&offered));
    assert_eq!(side.ended(1), [Ok(())]);
    let Completion::Written { immediate: 5, length, .. } = side.wait() else { panic!() };
    assert_eq!(length, SHARED as u64);
    let expected: Vec<u8> = (3..3 + SHARED).map(|i| !((i % 251) as u8)).collect();
    assert_eq!(bytes(&offered), expected);
    child.kill();
    for _ in 0..2 {
        side.qp.post_read(request.clone()).unwrap();
        let completion = side.wait();
        let gone = Err(Status::UnresponsiveRemote);
        assert!(
            matches!(completion, Completion::Rdma { result, .. } if result == gone),
            "{completion:?}"
        );
    }
    drop(ShmDevice::open(options(directory.path())).unwrap());
    side.qp.post_read(request).unwrap();
    let gone = Err(Status::BadDestinationQpn);
    assert!(matches!(side.wait(), Completion::Rdma { result, .. } if result == gone));
}

#[test]
fn processes_sending_to_one_receiver_lose_no_packets() {
    let directory = Directory::new();
    let mut side = Side::new(&ShmDevice::open(options(directory.path())).unwrap(), 4);
    let me = side.qp.address().qpn;
    let children = [(); 3].map(|()| Child::start("send", &directory, me));
    let mut numbers = children.iter().map(|child| (child.qpn, Vec::new())).collect::<Vec<_>>();
    for _ in 0..3000 {
        let (bytes, from) = side.received();
        let of_sender = numbers.iter_mut().find(|(qpn, _)| *qpn == from).unwrap();
        of_sender.1.push(check_pattern(&bytes));
    }
    for (_, mut numbers) in numbers {
        numbers.sort_unstable();
        assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
    }
    // The children need no further poll here: all their packets were received.
    children.into_iter().for_each(Child::finish);
}

#[test]
fn killed_receiver_is_unresponsive_and_its_file_removed() {
    let directory = Directory::new();
    let device = ShmDevice::open(options(directory.path())).unwrap();
    let mut side = Side::new(&device, 0);
    let mut child = Child::start("idle", &directory, Qpn(0));
    for id in 0..20 {
        side.send(child.qpn, id, b"never read");
    }
    child.kill();
    let gone = Err(Status::UnresponsiveRemote);
    assert_eq!(side.ended(20), [gone; 20], "8 in the ring, 12 queued at the sender");
    let file = directory.path().join(format!("host/qp-{}", child.qpn.0));
    // The next look for such files.
    side.skipped += Duration::from_secs(1);
    assert!(side.poll().is_none());
    assert!(!file.exists(), "files of a process go when a peer has found that it is dead");
    side.send(child.qpn, 20, b"");
    assert_eq!(side.ended(1), [Err(Status::BadDestinationQpn)]);
    drop((side, device));
    let left: Vec<_> = std::fs::read_dir(directory.path().join("host")).unwrap().collect();
    assert_eq!(left.len(), 2, "only the files `gid` and `next` are left: {left:?}");
}

/// Packets for the new queue pair must not go to the killed one's ring, which stays attached until the
/// sender detects the death.
#[test]
fn successor_of_a_killed_receiver_is_reachable_at_once() {
    // The device copies the payload of a datagram, or has it in the packet.
    for payload in [0, 40] {
        let directory = Directory::new();
        let device = ShmDevice::open(options(directory.path())).unwrap();
        let mut side = Side::new(&device, 0);
        let mut child = Child::start("idle", &directory, Qpn(0));
        side.send(child.qpn, 0, b"never read");
        child.kill();
        std::fs::write(directory.path().join("host/next"), child.qpn.0.to_le_bytes()).unwrap();
        let other_key = Qkey(KEY.0 + 1);
        // Opening the host removes the killed process's file, which frees its number.
        let device = ShmDevice::open(options(directory.path())).unwrap();
        let mut successor = Side::with_key(&device, 1, other_key);
        assert_eq!(successor.qp.address().qpn, child.qpn);
        side.send_with(child.qpn, other_key, 1, b"hello", payload);
        assert_eq!(
            side.ended(1),
            [Err(Status::BadDestinationQpn)],
            "the receiver of the first packet is dead"
        );
        let (received, _) = successor.received();
        assert_eq!((&received[..5], received.len()), (&b"hello"[..], 5 + payload));
        assert_eq!(side.ended(1), [Ok(())]);
    }
}

#[test]
fn killed_sender_leaves_complete_packets_and_a_free_entry() {
    let directory = Directory::new();
    let mut one_sender = options(directory.path());
    one_sender.max_peers = 1;
    let device = ShmDevice::open(one_sender).unwrap();
    let mut side = Side::new(&device, 16);
    let me = side.qp.address().qpn;
    let mut child = Child::start("stream", &directory, me);
    for expected in 0..500 {
        assert_eq!(check_pattern(&side.received().0), expected);
    }
    child.kill();
    let mut expected = 500;
    let mut other = Side::new(&device, 0);
    other.send(me, 1, b"the next");
    loop {
        // Skips the interval between the receiver's checks for dead senders.
        side.skipped += Duration::from_secs(1);
        let sent = other.poll();
        assert!(matches!(sent, None | Some(Completion::Send { result: Ok(()), .. })), "{sent:?}");
        let Some(Completion::Receive { packet, length, source, .. }) = side.poll() else {
            continue;
        };
        if source.qpn == other.qp.address().qpn {
            assert_eq!(&packet[..length], b"the next");
            break;
        }
        assert_eq!(check_pattern(&packet[..length]), expected);
        expected += 1;
        side.qp.post_receive(packet).unwrap();
    }
}

#[test]
fn sends_wait_for_a_stopped_receiver() {
    let directory = Directory::new();
    let mut side = Side::new(&ShmDevice::open(options(directory.path())).unwrap(), 16);
    let child = Child::start("echo", &directory, Qpn(0));
    side.send(child.qpn, 0, b"attached");
    side.received();
    kill_process(child.pid(), Signal::STOP).unwrap();
    waitpid(Some(child.pid()), WaitOptions::UNTRACED).unwrap();
    while side.poll().is_some() {}
    for id in 1..=12 {
        side.send(child.qpn, id, &pattern(id));
    }
    for _ in 0..1000 {
        side.skipped += Duration::from_secs(60);
        if let Some(completion) = side.poll() {
            assert!(matches!(completion, Completion::Send { id: WorkId(0), .. }), "{completion:?}");
        }
    }
    kill_process(child.pid(), Signal::CONT).unwrap();
    for id in 1..=12 {
        assert_eq!(check_pattern(&side.received().0), id);
    }
    side.send(child.qpn, 13, b"");
    child.finish();
}

#[test]
fn processes_starting_and_ending_do_not_disturb_others() {
    let directory = Directory::new();
    let children = [(); 4].map(|()| Child::start("churn", &directory, Qpn(0)));
    let mut killed = Child::start("churn", &directory, Qpn(0));
    killed.kill();
    children.into_iter().for_each(Child::finish);
    drop(ShmDevice::open(options(directory.path())).unwrap());
    let left: Vec<_> = std::fs::read_dir(directory.path().join("host"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["gid", "next"]);
}

//! Two processes on the shm link, of which the sender's memory can't be read by the other any more: the device requests
//! it from the sender, for long messages and direct reads. (Of devices that don't, `protocol::giving_up` has the end.)
//!
//! The processes are this test program, running `child_endpoint`, as an ordinary user: root reads anything. Each
//! ends after [`DEADLINE`], and is killed and reaped when its test ends.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use efa_device::{Access, Device, QueuePair, QueuePairOptions, Region, RegionRange, Time};
use efa_proto::{Connid, PacketType, RawAddress, RmaIov};
use efa_rdm::{
    Accept, Completion, Config, Endpoint, Level, Message, Payload, PeerId, Read, Remote,
};
use efa_sim::SoftRegion;
use efa_sim::shm::{ShmDevice, ShmOptions, ShmQueuePair};
use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};
use tempfile::TempDir;

/// Limit for a hanging test; a passing test takes a small fraction of it.
const DEADLINE: Duration = Duration::from_secs(60);
/// The user of the children if the test is run by root: `nobody`.
const USER: u32 = 65534;
const LONG: usize = 2 << 20;

/// Registered memory.
#[derive(Debug)]
struct Buffer(RegionRange<SoftRegion>);

impl Buffer {
    fn new(queue_pair: &ShmQueuePair, length: usize, byte: u8) -> Self {
        let access = Access { remote_read: true, remote_write: true };
        let region = queue_pair.register(vec![byte; length].into(), access).unwrap();
        Self(RegionRange { region, offset: 0, length })
    }

    /// Whether all bytes are this one.
    fn is_all(&self, byte: u8) -> bool {
        let mut bytes = vec![0; self.0.length];
        self.0.region.read(0, &mut bytes);
        bytes.iter().all(|&of| of == byte)
    }
}

impl Payload<SoftRegion> for Buffer {
    fn length(&self) -> u64 {
        self.0.length as u64
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        assert_eq!(self.0.region.read(offset as usize, into), into.len());
    }
    fn write(&mut self, offset: u64, from: &[u8]) {
        assert_eq!(self.0.region.write(offset as usize, from), from.len());
    }
    fn split_to(&mut self, _: u64) -> Self {
        unreachable!("no multi-receive buffers")
    }
    fn registered(&self) -> Option<RegionRange<SoftRegion>> {
        Some(self.0.clone())
    }
}

/// An endpoint that does what it is told, line by line, and answers.
struct Told {
    endpoint: Endpoint<ShmQueuePair, Buffer>,
    peer: Option<PeerId>,
    /// What peers may read.
    offered: Vec<Buffer>,
}

impl Told {
    fn follow(&mut self, line: &str) -> Option<String> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "peer" => {
                let address = RawAddress {
                    qpn: number(1) as u16,
                    connid: Connid(number(2) as u32),
                    ..self.endpoint.address()
                };
                self.peer = Some(self.endpoint.insert_peer(address).unwrap());
                Some("done".into())
            }
            "not-dumpable" => {
                set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap();
                Some("done".into())
            }
            "receive" => {
                let buffer = Buffer::new(self.endpoint.queue_pair(), number(1) as usize, 0);
                let accept = Accept::Untagged { source: None };
                self.endpoint.receive(accept, buffer, 0).unwrap();
                Some("done".into())
            }
            "send" => {
                let buffer = Buffer::new(self.endpoint.queue_pair(), number(1) as usize, 7);
                let (peer, level) = (self.peer.unwrap(), Level::Transmit);
                let (tag, cq_data, context) = (None, None, 0);
                self.endpoint.send(Message { peer, tag, cq_data, level, buffer, context }).unwrap();
                None
            }
            "offer" => {
                let buffer = Buffer::new(self.endpoint.queue_pair(), LONG, 7);
                let region = &buffer.0.region;
                let offer = format!("{} {}", region.remote_address(), region.remote_key());
                self.offered.push(buffer);
                Some(offer)
            }
            "read" => {
                let buffer = Buffer::new(self.endpoint.queue_pair(), LONG, 0);
                let remote = Remote::from(RmaIov::new(number(1), LONG as u64, number(2)));
                let peer = self.peer.unwrap();
                self.endpoint.read(Read { peer, remote, buffer, context: 0 }).unwrap();
                None
            }
            _ => panic!("{line}"),
        }
    }

    fn answer(&mut self, completion: Completion<Buffer>) -> String {
        let nacks = self.endpoint.statistics().sent.of(PacketType::ReadNack);
        match completion {
            Completion::Send(done) => format!("sent {:?}", done.result),
            Completion::Receive(done) => {
                let all = done.buffer.is_all(7);
                format!("received {:?}, all bytes: {all}, READ_NACKs: {nacks}", done.result)
            }
            Completion::Rma(done) => format!("read {:?}", done.result.map_err(|e| e.to_string())),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
#[ignore = "child process started by other tests"]
fn child_endpoint() {
    let Some(directory) = std::env::var_os("EFA_RDM_DIRECTORY") else { return };
    let options =
        ShmOptions::new("host").with(|options| options.directory = Some(directory.into()));
    let device = ShmDevice::open(options).unwrap();
    let options = QueuePairOptions::default()
        .with(|options| options.qkey = efa_device::Qkey(std::process::id()));
    let queue_pair = device.create_queue_pair(options).unwrap();
    let endpoint = Endpoint::new(queue_pair, Config::default()).unwrap();
    let address = endpoint.address();
    println!("answer: {} {}", address.qpn, address.connid.0);
    let mut told = Told { endpoint, peer: None, offered: Vec::new() };
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            sender.send(line.unwrap()).unwrap();
        }
    });
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < DEADLINE, "no end within the deadline");
        told.endpoint.progress(Time::ZERO + start.elapsed());
        while let Some(completion) = told.endpoint.poll_completion() {
            println!("answer: {}", told.answer(completion));
        }
        match lines.try_recv() {
            Ok(line) => {
                if let Some(answer) = told.follow(&line) {
                    println!("answer: {answer}");
                }
            }
            Err(mpsc::TryRecvError::Empty) => std::thread::yield_now(),
            Err(mpsc::TryRecvError::Disconnected) => return,
        }
    }
}

/// Whether root can have the children, which are another user's, run this program and use the directory; if not,
/// says so.
fn is_possible(directory: &Path) -> bool {
    if !geteuid().is_root() {
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

/// A process with an endpoint; killed and reaped when dropped.
struct Child {
    process: std::process::Child,
    lines: Lines<BufReader<ChildStdout>>,
    address: String,
}

impl Child {
    fn start(directory: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if geteuid().is_root() {
            command.uid(USER).gid(USER);
        }
        let mut process = command
            .args(["child_endpoint", "--exact", "--ignored", "--nocapture"])
            .env("EFA_RDM_DIRECTORY", directory.join("hosts"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut child = Self { process, lines, address: String::new() };
        child.address = child.answer();
        child
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{command}").unwrap();
    }

    fn answer(&mut self) -> String {
        let answer = self.lines.find_map(|line| {
            // The test harness may already have printed the start of this line.
            Some(line.unwrap().split_once("answer: ")?.1.to_owned())
        });
        answer.expect("the child answers")
    }

    fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A directory that the children may use.
fn directory_of_children() -> TempDir {
    let directory = TempDir::new().unwrap();
    if geteuid().is_root() {
        chown(directory.path(), Some(USER), Some(USER)).unwrap();
    }
    directory
}

#[test]
fn message_whose_memory_the_system_forbids_to_read_is_requested_from_its_sender() {
    let directory = directory_of_children();
    if !is_possible(directory.path()) {
        return;
    }
    let (mut sender, mut receiver) =
        (Child::start(directory.path()), Child::start(directory.path()));
    let [from, to] = [&sender, &receiver].map(|child| format!("peer {}", child.address));
    assert_eq!([sender.ask(&to), receiver.ask(&from)], ["done", "done"]);
    exchange(&mut sender, &mut receiver, 8, 0);
    exchange(&mut sender, &mut receiver, LONG, 0);
    let offer = sender.ask("offer");
    assert_eq!(receiver.ask(&format!("read {offer}")), "read Ok(())");
    assert_eq!(sender.ask("not-dumpable"), "done");
    exchange(&mut sender, &mut receiver, LONG, 0);
    exchange(&mut sender, &mut receiver, 8, 0);
    assert_eq!(receiver.ask(&format!("read {offer}")), "read Ok(())");
    exchange(&mut receiver, &mut sender, LONG, 0);
    exchange(&mut sender, &mut receiver, LONG, 0);
}

/// Sends a message; the receiver has refused to read so many in all.
fn exchange(sender: &mut Child, receiver: &mut Child, length: usize, refused: u64) {
    assert_eq!(receiver.ask(&format!("receive {length}")), "done");
    assert_eq!(sender.ask(&format!("send {length}")), "sent Ok(())");
    let expected = format!("received Ok(()), all bytes: true, READ_NACKs: {refused}");
    assert_eq!(receiver.answer(), expected);
}

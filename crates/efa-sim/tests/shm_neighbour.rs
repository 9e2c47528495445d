//! The shm link beside a process of the same user that writes to the files of others.
//!
//! Two queue pairs of two devices exchange datagrams and read and write each other's memory. The neighbour is
//! this test program, running `child_neighbour`; it is killed and reaped when its test ends.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::Directory;
use efa_device::*;
use efa_sim::SoftRegion;
use efa_sim::shm::{ShmDevice, ShmOptions, ShmQueuePair};
use rustix::param::page_size;

/// Limit for a hanging test; a passing test takes a small fraction of it.
const DEADLINE: Duration = Duration::from_secs(60);
/// How long a neighbour writes, at least.
const ATTACK: Duration = Duration::from_millis(600);
/// Exchanges beside it, at least.
const ROUNDS: u64 = 20;
/// Limit for a deregistration. One that waits for a pin takes a second.
const PROMPT: Duration = Duration::from_millis(800);
const ALL: Access = Access { remote_read: true, remote_write: true };
const LENGTH: usize = 5000;

// The layout of the files; see `keys.rs`, `pins.rs` and `shm/mailbox.rs`.
const NUMBERS: u64 = 4096;
const SLOTS: u64 = 12288;
const SLOT: u64 = 48;
const SLOTS_IN_USE: u64 = 16;
const PINS: u64 = 851_968;
const STATE: u64 = 128;

fn options(directory: impl Into<PathBuf>) -> ShmOptions {
    ShmOptions::new("host").with(|options| {
        options.directory = Some(directory.into());
        options.mtu = 256;
        options.ring_slots = 8;
        options.max_peers = 8;
        options.max_regions = SLOTS_IN_USE as usize;
    })
}

/// One of two queue pairs that exchange bytes.
struct End {
    device: ShmDevice,
    qp: ShmQueuePair,
    handle: AddressHandle,
    start: Instant,
    /// Open to all, for as long as the end lives.
    offered: SoftRegion,
}

impl End {
    fn new(directory: &Path) -> Self {
        let device = ShmDevice::open(options(directory)).unwrap();
        let options = QueuePairOptions::default().with(|options| options.rnr_retry = 7);
        let mut qp = device.create_queue_pair(options).unwrap();
        for _ in 0..8 {
            let packet = qp.allocate_packet().unwrap();
            qp.post_receive(packet).unwrap();
        }
        let handle = qp.create_address_handle(device.gid()).unwrap();
        let offered = device.register(vec![0; LENGTH].into(), ALL).unwrap();
        Self { device, qp, handle, start: Instant::now(), offered }
    }

    fn destination(&self, qpn: Qpn) -> Destination {
        Destination { address_handle: self.handle, qpn, qkey: Qkey(0) }
    }

    fn send(&mut self, to: Qpn, bytes: &[u8]) {
        let mut packet = self.qp.allocate_packet().unwrap();
        packet[..bytes.len()].copy_from_slice(bytes);
        let (id, length, destination) = (WorkId(1), bytes.len(), self.destination(to));
        let request = SendRequest { id, packet, length, destination, immediate: None };
        self.qp.post_send(request).unwrap();
    }

    /// The next completion, but for what others than `peer` sent.
    fn poll(&mut self, peer: Qpn) -> Option<Completion<Box<[u8]>>> {
        assert!(self.start.elapsed() < DEADLINE, "no progress within the deadline");
        match self.qp.poll(Time::ZERO + self.start.elapsed())? {
            Completion::Receive { packet, source, .. } if source.qpn != peer => {
                self.qp.post_receive(packet).unwrap();
                None
            }
            other => Some(other),
        }
    }

    fn register(&self, seed: u64) -> (SoftRegion, Vec<u8>) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(LENGTH).collect();
        (self.device.register(bytes.clone().into(), ALL).unwrap(), bytes)
    }

    /// Reads or writes all of `local` at `remote` of the other end.
    fn access(&mut self, to: Qpn, local: &SoftRegion, remote: RemoteMemory, write: bool) {
        let request = RdmaRequest {
            id: WorkId(2),
            local: RegionRange { region: local.clone(), offset: 0, length: LENGTH },
            remote,
            destination: self.destination(to),
        };
        match write {
            true => self.qp.post_write(request, None).unwrap(),
            false => self.qp.post_read(request).unwrap(),
        }
        loop {
            match self.poll(to) {
                Some(Completion::Rdma { result, .. }) => return assert_eq!(result, Ok(())),
                other => assert!(other.is_none(), "{other:?}"),
            }
        }
    }
}

fn remote(region: &SoftRegion) -> RemoteMemory {
    RemoteMemory { address: region.remote_address(), key: region.remote_key() }
}

fn bytes(region: &SoftRegion) -> Vec<u8> {
    let mut bytes = vec![0; LENGTH];
    assert_eq!(region.read(0, &mut bytes), LENGTH);
    bytes
}

/// Two ends, and what they have found.
struct Pair {
    ends: [End; 2],
    rounds: u64,
    slow_deregistrations: u64,
}

impl Pair {
    fn new(directory: &Directory) -> Self {
        let ends = [(); 2].map(|()| End::new(directory.path()));
        let mut pair = Self { ends, rounds: 0, slow_deregistrations: 0 };
        pair.exchange();
        pair
    }

    fn numbers(&self) -> [Qpn; 2] {
        self.ends.each_ref().map(|end| end.qp.address().qpn)
    }

    /// A datagram each way, a write, a read, and the regions' registration and deregistration.
    fn exchange(&mut self) {
        self.rounds += 1;
        let numbers = self.numbers();
        let message = |from: usize| format!("message {} of {from}", self.rounds).into_bytes();
        let messages = [message(0), message(1)];
        for (from, end) in self.ends.iter_mut().enumerate() {
            end.send(numbers[1 - from], &messages[from]);
        }
        let mut missing = 4;
        while missing > 0 {
            // Many polls of one end alone: a sender that waits looks whether its peer is there.
            for at in [0; 64].into_iter().chain([1; 64]) {
                match self.ends[at].poll(numbers[1 - at]) {
                    Some(Completion::Send { result, .. }) => assert_eq!(result, Ok(())),
                    Some(Completion::Receive { packet, length, .. }) => {
                        assert_eq!(packet[..length], messages[1 - at]);
                        self.ends[at].qp.post_receive(packet).unwrap();
                    }
                    Some(other) => panic!("{other:?}"),
                    None => continue,
                }
                missing -= 1;
            }
        }
        let [a, b] = &mut self.ends;
        let (target, _) = b.register(3 * self.rounds);
        let (untouched, rest) = b.register(3 * self.rounds + 1);
        let (source, expected) = a.register(3 * self.rounds + 2);
        a.access(numbers[1], &source, remote(&target), true);
        assert_eq!(bytes(&target), expected, "written in round {}", self.rounds);
        let (back, _) = a.register(0);
        a.access(numbers[1], &back, remote(&target), false);
        assert_eq!(bytes(&back), expected, "read in round {}", self.rounds);
        assert_eq!(bytes(&untouched), rest, "nobody wrote here, round {}", self.rounds);
        for region in [target, untouched, source, back] {
            let begun = Instant::now();
            assert_eq!(region.reclaim().unwrap().len(), LENGTH);
            self.slow_deregistrations += u64::from(begun.elapsed() >= PROMPT);
        }
    }
}

/// The neighbour, killed and reaped when dropped.
struct Neighbour(std::process::Child);

impl Neighbour {
    /// Starts it, and returns when it writes.
    fn start(kind: &str, directory: &Directory, pair: &Pair) -> Self {
        let targets = pair.ends.each_ref().map(|end| {
            let RemoteMemory { address, key } = remote(&end.offered);
            format!("{} {address} {key}", end.qp.address().qpn.0)
        });
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["child_neighbour", "--exact", "--ignored", "--nocapture"])
            .env("EFA_SIM_DIRECTORY", directory.path())
            .env("EFA_SIM_KIND", kind)
            .env("EFA_SIM_TARGETS", targets.join(","))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let neighbour = Self(process);
        // The test harness may already have printed the start of this line.
        assert!(lines.any(|line| line.unwrap().ends_with("neighbour writes")));
        std::thread::spawn(move || lines.for_each(drop));
        neighbour
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes to the files of others until it is killed.
#[test]
#[ignore = "child process started by other tests"]
fn child_neighbour() {
    let Some(directory) = std::env::var_os("EFA_SIM_DIRECTORY") else { return };
    let (kind, targets) =
        (std::env::var("EFA_SIM_KIND").unwrap(), std::env::var("EFA_SIM_TARGETS").unwrap());
    let targets: Vec<_> = targets.split(',').map(target).collect();
    let numbers: Vec<_> = targets.iter().map(|(qpn, _)| qpn.0).collect();
    let host = PathBuf::from(&directory).join("host");
    let begun = Instant::now();
    if kind == "participant" {
        let mut participant = Participant::new(&PathBuf::from(directory), &targets);
        println!("neighbour writes");
        while begun.elapsed() < DEADLINE {
            participant.scribble();
        }
        return;
    }
    let open = |kind: &str| -> Vec<File> {
        let paths = numbers.iter().map(|number| host.join(format!("{kind}-{number}")));
        paths.map(|path| OpenOptions::new().read(true).write(true).open(path).unwrap()).collect()
    };
    let (mailboxes, tables) = (open("qp"), open("mem"));
    let mut rng = fastrand::Rng::with_seed(7);
    println!("neighbour writes");
    while begun.elapsed() < DEADLINE {
        let which = rng.usize(..2);
        let (mailbox, table) = (&mailboxes[which], &tables[which]);
        let slot = SLOTS + SLOT * rng.u64(..SLOTS_IN_USE);
        let word = |rng: &mut fastrand::Rng, below: u64| 8 * rng.u64(..below / 8);
        let random = if rng.bool() { rng.u64(..) } else { rng.u64(..8) };
        let board = page_size() as u64;
        match kind.as_str() {
            "addresses" => {
                let other = SLOTS + SLOT * rng.u64(..SLOTS_IN_USE);
                write(table, slot + 8, read(table, other + 8));
            }
            "keys" => write(table, slot + word(&mut rng, SLOT), random),
            "table" => write(table, word(&mut rng, SLOTS + SLOT * SLOTS_IN_USE), random),
            "numbers" => {
                let at = NUMBERS + u64::from(numbers[which]) / 64 * 8;
                write(table, at, rng.u64(..));
            }
            "pins" => {
                // Each key stays pinned once it is.
                let (at, key) = (rng.u64(..128), read(table, slot + 40));
                let (pin, own) = (PINS + 32 * at, std::process::id().into());
                // Whoever writes takes over the pins of ended processes. If living ones had all, writes would fail.
                let processes = [0x3fff_ffff, own, read(table, 8)];
                let process = if at < 96 { rng.choice(processes).unwrap() } else { processes[0] };
                if key != 0 && read(table, pin + 16) == 0 {
                    write(table, pin, process);
                    write(table, pin + 8, rng.choice([read(table, slot + 8), 8, random]).unwrap());
                    write(table, pin + 16, key);
                }
            }
            "state" => write(mailbox, STATE, 2),
            "header" => write(mailbox, word(&mut rng, 256), random),
            "board" => write(mailbox, board + word(&mut rng, 640 + 64 * 8), random),
            "entries" => {
                let at = board + 640 + 64 * rng.u64(..8);
                let sender = u64::from(numbers[which]) << 16 | rng.u64(..5);
                write(mailbox, at, rng.choice([0, sender, random]).unwrap());
            }
            "unlink" => {
                for entry in std::fs::read_dir(&host).unwrap() {
                    let _ = std::fs::remove_file(entry.unwrap().path());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            other => panic!("{other}"),
        }
    }
}

/// The queue pair and the memory that the parent names.
fn target(words: &str) -> (Qpn, RemoteMemory) {
    let words: Vec<u64> = words.split(' ').map(|word| word.parse().unwrap()).collect();
    let [qpn, address, key] = words[..] else { panic!("{words:?}") };
    (Qpn(qpn as u16), RemoteMemory { address, key: key as u32 })
}

fn read(file: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).unwrap();
    u64::from_ne_bytes(bytes)
}

fn write(file: &File, at: u64, value: u64) {
    file.write_all_at(&value.to_ne_bytes(), at).unwrap();
}

/// A mapping of a file of the host that can be written to.
struct Writable {
    name: String,
    start: usize,
    length: usize,
}

/// The mappings of the host's files in this process, those that can be written to; `None` for the others.
fn shared_mappings(host: &Path) -> Vec<(String, Option<Writable>)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_host = maps.lines().filter_map(|line| {
        let (_, path) = line.split_once(host.to_str().unwrap())?;
        let name = path.trim_start_matches('/').to_owned();
        let mut fields = line.split(' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let length = usize::from_str_radix(end, 16).ok()? - start;
        let writable = fields.next()?.contains('w');
        let mapping = Writable { name: name.clone(), start, length };
        Some((name, writable.then_some(mapping)))
    });
    of_host.collect()
}

/// A process that uses the link as it should, and then writes wherever its mappings allow it.
struct Participant {
    _end: End,
    writable: Vec<Writable>,
    rng: fastrand::Rng,
}

impl Participant {
    fn new(directory: &Path, targets: &[(Qpn, RemoteMemory)]) -> Self {
        let mut end = End::new(directory);
        let (local, _) = end.register(1);
        for &(qpn, remote) in targets {
            end.send(qpn, b"from the neighbour");
            end.access(qpn, &local, remote, false);
            end.access(qpn, &local, remote, true);
        }
        let own = end.qp.address().qpn.0;
        let of_others = |name: &str| {
            let number = name.rsplit('-').next().unwrap();
            name.starts_with("ring")
                || targets.iter().any(|(other, _)| number == other.0.to_string())
        };
        let mappings = shared_mappings(&directory.join("host"));
        let others: Vec<_> = mappings.into_iter().filter(|(name, _)| of_others(name)).collect();
        let writable: Vec<_> = others.into_iter().filter_map(|(_, mapping)| mapping).collect();
        assert!(writable.iter().all(|mapping| !mapping.name.ends_with(&format!("-{own}"))));
        assert_eq!(writable.len(), 3 * targets.len(), "a board, pins, and a ring to each");
        for Writable { name, length, .. } in &writable {
            assert!(name.starts_with("ring") || *length == page_size(), "{length} bytes of {name}");
        }
        Self { _end: end, writable, rng: fastrand::Rng::with_seed(8) }
    }

    fn scribble(&mut self) {
        let mapping = &self.writable[self.rng.usize(..self.writable.len())];
        let at = mapping.start + 8 * self.rng.usize(..mapping.length / 8);
        let value = if self.rng.bool() { self.rng.u64(..) } else { self.rng.u64(..8) };
        // SAFETY: the range is mapped and can be written to, and stays so while `_end` has it. This process
        // doesn't use the link any more, and others expect that any word changes.
        unsafe { std::ptr::with_exposed_provenance_mut::<u64>(at).write_volatile(value) };
    }
}

/// Lets two ends exchange bytes beside a neighbour that writes, and then without it.
fn beside(kind: &str) {
    let directory = Directory::new();
    let mut pair = Pair::new(&directory);
    let neighbour = Neighbour::start(kind, &directory, &pair);
    let begun = Instant::now();
    while begun.elapsed() < ATTACK || pair.rounds < ROUNDS {
        pair.exchange();
    }
    drop(neighbour);
    pair.exchange();
    // One may have lost the processor for so long on a busy machine; those that wait for false pins are many.
    let slow = pair.slow_deregistrations;
    assert!(slow <= 1, "{slow} of {} deregistrations took {PROMPT:?}", 4 * pair.rounds);
}

#[test]
fn established_peers_exchange_right_bytes_while_key_tables_are_overwritten() {
    for kind in ["addresses", "keys", "numbers", "table"] {
        beside(kind);
    }
}

#[test]
fn false_pins_delay_no_deregistration_and_change_no_bytes() {
    beside("pins");
}

#[test]
fn established_peers_exchange_right_bytes_while_mailboxes_are_overwritten() {
    for kind in ["state", "header", "board", "entries"] {
        beside(kind);
    }
}

#[test]
fn established_peers_exchange_right_bytes_after_all_files_are_unlinked() {
    beside("unlink");
}

#[test]
fn participant_that_writes_to_all_its_writable_mappings_disturbs_no_others() {
    beside("participant");
}

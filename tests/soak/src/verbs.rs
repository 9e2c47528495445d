//! Random runs of two endpoints on an EFA interface, in real time: `cargo xtask soak --device verbs`.
//!
//! ```text
//!   seed, seed + 1, … ─► Run: Alice ◄══ messages, writes, reads, atomics ══► Bob
//!                                 └─ model: every byte, every order, every count ─┘
//! ```
//!
//! The interface is that of the machine, or the software device if its library is preloaded. The
//! environment selects its faults (`EFA_SOFT_REORDER`, `EFA_SOFT_RNR`).

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a run that cannot continue fails")]

mod minutes;

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use efa::{
    Access, AddressVector, AtomicOp, Completion, CompletionQueue, CompletionQueueOptions,
    Direction, Domain, Endpoint, EndpointOptions, Fabric, FiAddr, Kind, MemoryRegion, Message,
    Operation, Receive, Rma,
};
use fastrand::Rng;

/// Steps of a run.
const STEPS: usize = 300;
/// Bytes that a side exposes; the first eight are a counter.
const MEMORY: usize = 300_000;
const COUNTER: usize = 8;
/// Tags of messages; 0 stands for untagged ones.
const TAGS: u64 = 4;
/// Longest time without a completion.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Run random operations between two endpoints on an EFA interface. A model checks bytes, order and counts.
#[derive(Parser)]
#[command(name = "efa-soak-verbs", bin_name = "cargo xtask soak --device verbs", version)]
struct Arguments {
    /// First seed; later runs use the seeds that follow
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How long to run
    #[arg(long, default_value = "2", value_parser = minutes::parse)]
    minutes: Duration,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let end = Instant::now() + arguments.minutes;
    let fabric = Fabric::verbs(None);
    let domains = match (fabric.domain(), fabric.domain()) {
        (Ok(alice), Ok(bob)) => [alice, bob],
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut seed = arguments.seed;
    let mut totals = Totals::default();
    loop {
        let failure = PrintSeed(seed);
        Run::new(seed, &domains).run(&mut totals);
        std::mem::forget(failure);
        seed += 1;
        if Instant::now() >= end {
            break;
        }
    }
    println!("soak: {} runs passed; {totals:?}", seed - arguments.seed);
    ExitCode::SUCCESS
}

/// Prints the seed if the run panics.
struct PrintSeed(u64);

impl Drop for PrintSeed {
    fn drop(&mut self) {
        eprintln!("soak: seed {0} fails: --seed {0} --minutes 0", self.0);
    }
}

#[derive(Debug, Default)]
struct Totals {
    messages: u64,
    bytes: u64,
    writes: u64,
    reads: u64,
    atomics: u64,
}

/// Bytes that depend on their offset and message.
fn pattern(length: usize, salt: u64) -> Vec<u8> {
    let mut random = Rng::with_seed(salt);
    let words = std::iter::repeat_with(|| random.u64(..).to_le_bytes()).flatten();
    words.take(length).collect()
}

/// A message that was posted.
#[derive(Clone, Copy)]
struct Sent {
    length: usize,
    salt: u64,
}

/// Expected effect of an operation on remote memory.
enum Remote {
    Write { offset: usize, bytes: Vec<u8>, has_data: bool },
    Read { offset: usize },
    Add { addend: u64 },
}

/// One endpoint and its part of the model.
struct Side {
    endpoint: Endpoint,
    queue: CompletionQueue,
    addresses: AddressVector,
    memory: MemoryRegion,
    /// Expected content of the memory after the other side's operations.
    model: Vec<u8>,
    /// Messages to this side by tag, in the order of sending.
    coming: HashMap<u64, Vec<Sent>>,
    /// Receives that were posted, and those that have completed, by tag.
    posted: HashMap<u64, usize>,
    received: HashMap<u64, usize>,
    sends_under_way: usize,
    /// The pending operation on the other side's memory; one at a time.
    remote: Option<Remote>,
    /// Completions of writes with immediate data, expected and received.
    data_due: usize,
    data_seen: usize,
}

impl Side {
    fn new(domain: &Domain) -> Self {
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()
            .unwrap();
        let access = Access { remote_read: true, remote_write: true };
        Self {
            endpoint,
            queue,
            addresses,
            memory: domain.register(vec![0; MEMORY], access).unwrap(),
            model: vec![0; MEMORY],
            coming: HashMap::new(),
            posted: HashMap::new(),
            received: HashMap::new(),
            sends_under_way: 0,
            remote: None,
            data_due: 0,
            data_seen: 0,
        }
    }

    /// Posts a receive for a message of `tag`; it receives the next message of that tag.
    fn post(&mut self, tag: u64, capacity: usize) {
        let place = self.posted.entry(tag).or_default();
        let receive = if tag == 0 { Receive::untagged() } else { Receive::tagged(tag) };
        let context = tag << 32 | *place as u64;
        *place += 1;
        self.endpoint.receive(receive, vec![0; capacity], context).unwrap();
    }

    /// Messages to this side without a posted receive.
    fn unposted(&self) -> Vec<(u64, usize)> {
        let missing = |(tag, sent): (&u64, &Vec<Sent>)| {
            let posted = self.posted.get(tag).copied().unwrap_or(0);
            sent.get(posted).map(|sent| (*tag, sent.length))
        };
        let mut unposted: Vec<_> = self.coming.iter().filter_map(missing).collect();
        unposted.sort_unstable();
        unposted
    }

    fn is_done(&self) -> bool {
        let received = |tag| self.received.get(tag).copied().unwrap_or(0);
        self.sends_under_way == 0
            && self.remote.is_none()
            && self.data_due == self.data_seen
            && self.coming.iter().all(|(tag, sent)| received(tag) == sent.len())
    }
}

struct Run {
    random: Rng,
    sides: [Side; 2],
    /// The peer id of the other side, for each side.
    peers: [FiAddr; 2],
    last: Instant,
}

impl Run {
    fn new(seed: u64, domains: &[Domain; 2]) -> Self {
        let sides = [Side::new(&domains[0]), Side::new(&domains[1])];
        let peers = [
            sides[0].addresses.insert(sides[1].endpoint.address()).unwrap(),
            sides[1].addresses.insert(sides[0].endpoint.address()).unwrap(),
        ];
        Self { random: Rng::with_seed(seed), sides, peers, last: Instant::now() }
    }

    fn run(mut self, totals: &mut Totals) {
        for _ in 0..STEPS {
            let who = self.random.usize(..2);
            match self.random.u32(..10) {
                0..4 => self.send(who, totals),
                4..6 => self.post_missing(who),
                6..8 => self.start_remote(who, totals),
                _ => {}
            }
            for _ in 0..self.random.usize(..20) {
                self.poll();
            }
        }
        while !self.sides.iter().all(Side::is_done) {
            self.post_missing(0);
            self.post_missing(1);
            self.poll();
        }
        for side in self.sides {
            let mut memory = vec![0; MEMORY];
            side.memory.read(0, &mut memory);
            assert!(memory == side.model, "the memory differs from the model");
            side.endpoint.close(TIMEOUT).unwrap();
        }
    }

    fn length(&mut self) -> usize {
        match self.random.u32(..10) {
            0 => 0,
            1..5 => self.random.usize(1..200),
            5..7 => self.random.usize(8000..9500),
            7..9 => self.random.usize(10_000..80_000),
            _ => self.random.usize(100_000..1_500_000),
        }
    }

    fn send(&mut self, who: usize, totals: &mut Totals) {
        let (tag, salt, length) = (self.random.u64(..TAGS), self.random.u64(..), self.length());
        let message = Message::to(self.peers[who]);
        let message = if tag == 0 { message } else { message.tagged(tag) };
        let bytes = pattern(length, salt);
        let side = &mut self.sides[who];
        let injected = length <= 100 && self.random.bool();
        let started = match injected {
            true => side.endpoint.inject(message, &bytes),
            false => side.endpoint.send(message, bytes, 0).map_err(|refused| refused.error),
        };
        match started {
            Ok(()) => side.sends_under_way += usize::from(!injected),
            Err(error) if error.is_busy() => return,
            Err(error) => panic!("{error}"),
        }
        let coming = self.sides[1 - who].coming.entry(tag).or_default();
        coming.push(Sent { length, salt });
        totals.messages += 1;
        totals.bytes += length as u64;
    }

    fn post_missing(&mut self, who: usize) {
        let unposted = self.sides[who].unposted();
        if unposted.is_empty() {
            return;
        }
        let (tag, length) = unposted[self.random.usize(..unposted.len())];
        let capacity = length + self.random.usize(..64);
        self.sides[who].post(tag, capacity);
    }

    fn start_remote(&mut self, who: usize, totals: &mut Totals) {
        if self.sides[who].remote.is_some() {
            return;
        }
        let length = self.length().clamp(1, MEMORY - COUNTER - 1);
        let offset = self.random.usize(COUNTER..=MEMORY - length);
        let memory = self.sides[1 - who].memory.remote();
        let part = |offset: usize, length: usize| {
            let (start, length) = (offset as u64, length as u64);
            memory.slice(start..start + length).expect("within the memory")
        };
        let at = Rma::at(self.peers[who], part(offset, length)).delivery_complete();
        let endpoint = &self.sides[who].endpoint;
        let (remote, started) = match self.random.u32(..3) {
            0 => {
                let (bytes, has_data) = (pattern(length, self.random.u64(..)), self.random.bool());
                let at = if has_data { at.with_data(self.random.u64(..1 << 32)) } else { at };
                let started = endpoint.write(at, bytes.clone(), 1);
                totals.writes += 1;
                (
                    Remote::Write { offset, bytes, has_data },
                    started.map_err(|refused| refused.error),
                )
            }
            1 => {
                totals.reads += 1;
                let started = endpoint.read(at, vec![0; length], 1);
                (Remote::Read { offset }, started.map_err(|refused| refused.error))
            }
            _ => {
                let addend = self.random.u64(..);
                let counter = Rma::at(self.peers[who], part(0, COUNTER)).delivery_complete();
                let operation = Operation::new(AtomicOp::Sum, &[addend]);
                totals.atomics += 1;
                let started = endpoint.fetch_atomic(counter, operation, vec![0; COUNTER], 1);
                (Remote::Add { addend }, started.map_err(|refused| refused.error))
            }
        };
        match started {
            Ok(()) => self.sides[who].remote = Some(remote),
            Err(error) if error.is_busy() => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn poll(&mut self) {
        for who in 0..2 {
            while let Some(entry) = self.sides[who].queue.read() {
                self.last = Instant::now();
                let completion = entry.unwrap();
                self.ended(who, completion);
            }
        }
        assert!(self.last.elapsed() < TIMEOUT, "no completion within the timeout");
    }

    fn ended(&mut self, who: usize, completion: Completion) {
        match completion.kind {
            Kind::Send => self.sides[who].sends_under_way -= 1,
            Kind::Receive => self.sides[who].check(completion),
            Kind::RemoteWrite => self.sides[who].data_seen += 1,
            Kind::Write | Kind::Read | Kind::Atomic | Kind::FetchAtomic => {
                self.remote_ended(who, completion)
            }
            other => panic!("{other:?}"),
        }
    }

    fn remote_ended(&mut self, who: usize, completion: Completion) {
        let remote = self.sides[who].remote.take().unwrap();
        let there = &mut self.sides[1 - who];
        match remote {
            Remote::Write { offset, bytes, has_data } => {
                there.data_due += usize::from(has_data);
                there.model[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            Remote::Read { offset } => {
                let bytes = completion.buffer.into_vec();
                assert!(
                    there.model[offset..offset + bytes.len()] == bytes,
                    "the read returned wrong bytes"
                );
            }
            Remote::Add { addend } => {
                let counter = there.model.first_chunk_mut::<COUNTER>().unwrap();
                let before = u64::from_le_bytes(*counter);
                assert_eq!(completion.buffer.into_vec(), before.to_le_bytes());
                *counter = before.wrapping_add(addend).to_le_bytes();
            }
        }
    }
}

impl Side {
    /// A receive completes with the message at its position in the order of its tag.
    fn check(&mut self, completion: Completion) {
        let (tag, place) = (completion.context >> 32, completion.context as u32 as usize);
        *self.received.entry(tag).or_default() += 1;
        let Sent { length, salt } = self.coming[&tag][place];
        assert_eq!(completion.length as usize, length, "message {place} of tag {tag}");
        let expected = pattern(length, salt);
        assert!(completion.into_message() == expected, "bytes of message {place} of tag {tag}");
    }
}

//! `efa decode --messages` of what two endpoints really exchanged.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{Scratch, run};
use efa::{
    Access, AddressVector, AtomicOp, CompletionQueue, CompletionQueueOptions, Direction, Endpoint,
    EndpointOptions, Fabric, FiAddr, LocalOptions, ManualClock, MemoryRegion, Message, Operation,
    Receive, Rma,
};
use efa_device::Rdma;
use efa_sim::capture::Capture;
use serde_json::Value;

/// Bytes of a message that is read where the device can.
const LONG: usize = 2_000_000;

/// Two endpoints on a network in virtual time that reorders packets and refuses some.
struct Pair {
    fabric: Fabric,
    queue: CompletionQueue,
    alice: Endpoint,
    bob: Endpoint,
    to_bob: FiAddr,
    memory: MemoryRegion,
    _addresses: AddressVector,
}

impl Pair {
    fn new(rdma: Rdma) -> Self {
        let options = LocalOptions::default().with(|options| {
            options.rdma = rdma;
            options.faults.receiver_not_ready = 0.05;
        });
        let fabric = Fabric::local(options).with_clock(&ManualClock::new());
        let domain = fabric.domain().unwrap();
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = || {
            domain
                .endpoint(EndpointOptions::default())
                .bind_address_vector(&addresses)
                .bind_completion_queue(&queue, Direction::Both)
                .enable()
                .unwrap()
        };
        let (alice, bob) = (endpoint(), endpoint());
        let to_bob = addresses.insert(bob.address()).unwrap();
        let access = Access { remote_read: true, remote_write: true };
        let memory = domain.register(vec![7; LONG], access).unwrap();
        let pair = Self { fabric, queue, alice, bob, to_bob, memory, _addresses: addresses };
        // Alice learns what Bob can do.
        for _ in 0..3 {
            pair.send(10, Message::to(to_bob));
        }
        pair
    }

    fn wait(&self, completions: usize) {
        for _ in 0..completions {
            self.queue.wait(Duration::from_secs(60)).unwrap();
        }
    }

    fn send(&self, length: usize, message: Message) {
        self.bob.receive(Receive::untagged(), vec![0; length], 0).unwrap();
        self.alice.send(message, vec![1; length], 0).unwrap();
        self.wait(2);
    }

    fn rma(&self, length: u64) -> Rma {
        Rma::at(self.to_bob, self.memory.remote().slice(0..length).unwrap())
    }
}

/// The lines of `--messages --json`.
fn messages(capture: &Scratch, options: &[&str]) -> Vec<Value> {
    let command = ["decode", capture.as_str(), "--messages", "--json"];
    let lines = run(command.iter().chain(options)).success();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// How many of each type and state, such as `EAGER_MSGRTM complete`.
fn kinds(messages: &[Value]) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for message in messages {
        let of = |name: &str| message[name].as_str().unwrap();
        *kinds.entry(format!("{} {}", of("type"), of("state"))).or_default() += 1;
    }
    kinds
}

/// Starts a capture of what follows.
fn capture(pair: &Pair, name: &str) -> Scratch {
    let path = Scratch::new(name);
    pair.fabric.as_local().unwrap().capture(Capture::create(&path, "test").unwrap());
    path
}

fn expected<const N: usize>(kinds: [(&str, usize); N]) -> BTreeMap<String, usize> {
    kinds.into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect()
}

#[test]
fn messages_of_all_subprotocols_are_listed_once_and_complete() {
    let pair = Pair::new(Rdma::NONE);
    let path = capture(&pair, "subprotocols.pcapng");
    for _ in 0..5 {
        for length in [0, 100, 40_000, 200_000] {
            pair.send(length, Message::to(pair.to_bob));
            pair.send(length, Message::to(pair.to_bob).delivery_complete());
        }
    }
    pair.fabric.as_local().unwrap().stop_capture();
    let found = messages(&path, &[]);
    let types = [
        ("DC_EAGER_MSGRTM complete", 10),
        ("DC_LONGCTS_MSGRTM complete", 5),
        ("DC_MEDIUM_MSGRTM complete", 5),
        ("EAGER_MSGRTM complete", 10),
        ("LONGCTS_MSGRTM complete", 5),
        ("MEDIUM_MSGRTM complete", 5),
    ];
    assert_eq!(kinds(&found), expected(types));
    assert!(found.iter().any(|message| message["not_ready"] != 0), "the network refuses packets");
    let bytes: u64 = found.iter().map(|message| message["length"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 10 * (100 + 40_000 + 200_000));
    let count = run(["decode", path.as_str(), "--messages", "--count"]).success();
    assert_eq!(count, "40\n");
    assert_eq!(messages(&path, &["--unfinished"]), [Value::Null; 0]);
    let long = messages(&path, &["--type", "receipt", "--msg-id", "10"]);
    assert!(long.len() == 1 && long[0]["type"] == "DC_LONGCTS_MSGRTM", "{long:?}");
}

#[test]
fn emulated_writes_reads_and_atomics_are_listed_once_and_complete() {
    let pair = Pair::new(Rdma::NONE);
    let path = capture(&pair, "one-sided.pcapng");
    for _ in 0..5 {
        for length in [8, 200_000] {
            pair.alice.write(pair.rma(length), vec![2; length as usize], 0).unwrap();
            pair.alice.read(pair.rma(length), vec![0; length as usize], 0).unwrap();
        }
        let add = Operation::new(AtomicOp::Sum, &[1_u64]);
        pair.alice.atomic(pair.rma(8), add.clone(), 0).unwrap();
        pair.alice.fetch_atomic(pair.rma(8), add, vec![0; 8], 0).unwrap();
        pair.wait(6);
    }
    pair.fabric.as_local().unwrap().stop_capture();
    let types = [
        ("EAGER_RTW complete", 5),
        ("FETCH_RTA complete", 5),
        ("LONGCTS_RTR complete", 5),
        ("LONGCTS_RTW complete", 5),
        ("SHORT_RTR complete", 5),
        ("WRITE_RTA complete", 5),
    ];
    assert_eq!(kinds(&messages(&path, &[])), expected(types));
}

#[test]
fn message_without_a_receive_waits_for_cts_or_the_end_of_its_read() {
    for (rdma, state) in [(Rdma::NONE, "CTS"), (Rdma::READ_WRITE, "EOR")] {
        let pair = Pair::new(rdma);
        let path = capture(&pair, &format!("waits-for-{state}.pcapng"));
        let slice = pair.memory.slice(0..LONG).unwrap();
        pair.alice.send(Message::to(pair.to_bob).tagged(9), slice, 0).unwrap();
        pair.send(10, Message::to(pair.to_bob));
        pair.fabric.as_local().unwrap().stop_capture();
        let [message] = &messages(&path, &["--unfinished"])[..] else { panic!("one is expected") };
        assert_eq!(message["waits_for"], state, "{message}");
        assert_eq!((&message["tag"], &message["length"]), (&"0x9".into(), &LONG.into()));
        assert_eq!(message["text"], format!("waits for {state}"));
    }
}

#[test]
fn messages_take_no_bytes_and_no_summary() {
    for option in ["--hex", "--summary"] {
        assert!(run(["decode", "x", "--messages", option]).usage().contains("--messages"));
    }
    assert!(run(["decode", "x", "--unfinished"]).usage().contains("--messages"));
}

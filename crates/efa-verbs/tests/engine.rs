//! Two protocol engines on this device exchange messages of every subprotocol that needs no registered
//! memory, both ways at once, with reordered datagrams and RNR errors.
//!
//! `cargo xtask soak --device verbs` tests subprotocols that need registered memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::time::{Duration, Instant};

use common::on_soft_device;
use efa_device::{Device, Qkey, QueuePairOptions, Time};
use efa_rdm::{
    Accept, Completion, Config, Endpoint, Level, Message, PeerId, ReceiveCompletion, Subprotocol,
};
use efa_verbs::{VerbsDevice, VerbsQueuePair};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Messages of each length, each way.
const ROUNDS: usize = 12;
const LENGTHS: [(usize, Subprotocol); 5] = [
    (0, Subprotocol::Eager),
    (8, Subprotocol::Eager),
    (8000, Subprotocol::Eager),
    (50_000, Subprotocol::Medium),
    (300_000, Subprotocol::LongCts),
];

type End = Endpoint<VerbsQueuePair, Vec<u8>>;

fn end(device: &VerbsDevice, qkey: u32) -> End {
    let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(qkey));
    Endpoint::new(device.create_queue_pair(options).unwrap(), Config::default()).unwrap()
}

/// Bytes that differ by message and sender.
fn bytes(who: usize, tag: usize) -> Vec<u8> {
    let (length, _) = LENGTHS[tag % LENGTHS.len()];
    (0..length).map(|place| (place * 7 + tag * 31 + who) as u8).collect()
}

fn start(end: &mut End, peer: PeerId, who: usize) {
    for number in 0..ROUNDS * LENGTHS.len() {
        let buffer = vec![0; bytes(who, number).len()];
        let accept = Accept::Tagged { source: Some(peer), tag: number as u64, ignore: 0 };
        end.receive(accept, buffer, 0).unwrap();
        let (tag, level) = (Some(number as u64), Level::Transmit);
        let buffer = bytes(who, number);
        let message = Message { peer, tag, cq_data: None, level, buffer, context: 0 };
        end.send(message).unwrap();
    }
}

fn check(of: usize, received: ReceiveCompletion<Vec<u8>>) {
    let tag = received.tag as usize;
    assert_eq!(received.result, Ok(()), "message {tag}");
    assert!(received.buffer == bytes(of, tag), "bytes of message {tag}");
    let (_, expected) = LENGTHS[tag % LENGTHS.len()];
    assert_eq!(received.subprotocol, Some(expected), "message {tag}");
}

fn exchange() {
    let device = VerbsDevice::open(None).unwrap();
    let mut ends = [end(&device, 1), end(&device, 2)];
    let addresses = [ends[0].address(), ends[1].address()];
    let peers =
        [ends[0].insert_peer(addresses[1]).unwrap(), ends[1].insert_peer(addresses[0]).unwrap()];
    for (who, end) in ends.iter_mut().enumerate() {
        start(end, peers[who], who);
    }
    let (begin, mut left) = (Instant::now(), 4 * ROUNDS * LENGTHS.len());
    while left > 0 {
        let now = Time::ZERO + begin.elapsed();
        for (who, end) in ends.iter_mut().enumerate() {
            end.progress(now);
            while let Some(completion) = end.poll_completion() {
                left -= 1;
                match completion {
                    Completion::Send(sent) => assert_eq!(sent.result, Ok(())),
                    Completion::Receive(received) => check(1 - who, received),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(begin.elapsed() < TIMEOUT, "{left} completions are missing");
    }
    let counters = ends[0].queue_pair().counters();
    assert!(counters.send_doorbells < counters.posts, "no doorbell was shared: {counters:?}");
    assert!(counters.receive_doorbells < counters.receives, "no doorbell was shared: {counters:?}");
}

#[test]
fn engines_exchange_messages_of_all_lengths() {
    on_soft_device("engines_exchange_messages_of_all_lengths", &[], exchange);
}

#[test]
fn engines_deliver_reordered_datagrams_in_order() {
    let settings = [("EFA_SOFT_REORDER", "5")];
    on_soft_device("engines_deliver_reordered_datagrams_in_order", &settings, exchange);
}

#[test]
fn engines_send_again_after_rnr_errors() {
    let settings = [("EFA_SOFT_RNR", "0.02"), ("EFA_SOFT_REORDER", "6")];
    on_soft_device("engines_send_again_after_rnr_errors", &settings, exchange);
}

#[test]
fn engines_exchange_messages_without_rdma() {
    let settings = [("EFA_SOFT_RDMA", "none")];
    on_soft_device("engines_exchange_messages_without_rdma", &settings, exchange);
}

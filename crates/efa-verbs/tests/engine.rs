//! Two protocol engines on this device: messages of every subprotocol that needs no registered memory,
//! both ways at once, while datagrams overtake each other and receivers are not ready.
//!
//! What goes over registered memory is played by `cargo xtask soak --device verbs`.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::time::{Duration, Instant};

use common::on_soft_device;
use efa_device::{Device, Qkey, QueuePairOptions, Time};
use efa_rdm::{
    Accept, Completion, Config, Endpoint, Level, Message, PeerId, ReceiveCompletion, Subprotocol,
};
use efa_verbs::{VerbsDevice, VerbsQueuePair};

const PATIENCE: Duration = Duration::from_secs(30);
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
    let options = QueuePairOptions { qkey: Qkey(qkey), ..QueuePairOptions::default() };
    Endpoint::new(device.create_queue_pair(options).unwrap(), Config::default()).unwrap()
}

/// Bytes that tell their message and who sent it.
fn bytes(who: usize, tag: usize) -> Vec<u8> {
    let (length, _) = LENGTHS[tag % LENGTHS.len()];
    (0..length).map(|place| (place * 7 + tag * 31 + who) as u8).collect()
}

fn start(end: &mut End, peer: PeerId, who: usize) {
    for tag in 0..ROUNDS * LENGTHS.len() {
        let room = vec![0; bytes(who, tag).len()];
        let accept = Accept::Tagged { source: Some(peer), tag: tag as u64, ignore: 0 };
        end.receive(accept, room, 0).unwrap();
        let (tag_of_it, level) = (Some(tag as u64), Level::Transmit);
        let buffer = bytes(who, tag);
        let message = Message { peer, tag: tag_of_it, cq_data: None, level, buffer, context: 0 };
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

fn play() {
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
        assert!(begin.elapsed() < PATIENCE, "{left} completions are missing");
    }
    let counters = ends[0].queue_pair().counters();
    assert!(counters.send_doorbells < counters.posts, "nothing was batched: {counters:?}");
    assert!(counters.receive_doorbells < counters.receives, "nothing was batched: {counters:?}");
}

#[test]
fn engines_exchange_messages_of_all_lengths() {
    on_soft_device("engines_exchange_messages_of_all_lengths", &[], play);
}

#[test]
fn engines_put_in_order_what_overtakes() {
    let settings = [("EFA_SOFT_REORDER", "5")];
    on_soft_device("engines_put_in_order_what_overtakes", &settings, play);
}

#[test]
fn engines_send_again_what_found_no_buffer() {
    let settings = [("EFA_SOFT_RNR", "0.02"), ("EFA_SOFT_REORDER", "6")];
    on_soft_device("engines_send_again_what_found_no_buffer", &settings, play);
}

#[test]
fn engines_need_no_rdma() {
    let settings = [("EFA_SOFT_RDMA", "none")];
    on_soft_device("engines_need_no_rdma", &settings, play);
}

//! Instructions of an 8-byte tagged message through the engine, with hard limits: in all, and of
//! each of the four calls that it takes.
//!
//! The device is a pair of queues in memory; what it costs is counted with the engine's. So are
//! the loops around the calls.

// The macros of gungraun expand to such.
#![allow(missing_docs, unused_qualifications)]
#![allow(clippy::unwrap_used, reason = "a bench that can't go on fails")]

#[path = "../tests/null/mod.rs"]
mod null;

use std::hint::black_box;

use efa_device::{Completion as Done, Destination, QueuePair, SendRequest, Time, WorkId};
use efa_proto::{Connid, RawAddress};
use efa_rdm::{Accept, Completion, Config, Endpoint, Level, Message, PeerId};
use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, prelude::*};

use crate::null::{Direct, Order, Silent};

/// Messages of a run.
const MESSAGES: u64 = 1024;
/// Messages under way at a time, where all four calls are counted.
const WINDOW: u64 = 16;

fn at_most(each: u64) -> LibraryBenchmarkConfig {
    in_all(each * MESSAGES)
}

fn in_all(limit: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, limit)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

struct Pair {
    a: Endpoint<Direct, Vec<u8>>,
    b: Endpoint<Direct, Vec<u8>>,
    peer: PeerId,
    buffers: Vec<Vec<u8>>,
}

impl Pair {
    /// Two endpoints that have talked.
    fn new() -> Box<Self> {
        let [mut a, b] = null::pair(Order::Sent)
            .map(|queue_pair| Endpoint::new(queue_pair, Config::default()).unwrap());
        let peer = a.insert_peer(b.address()).unwrap();
        let buffers = (0..4 * MESSAGES).map(|_| vec![7; 8]).collect();
        let mut pair = Box::new(Self { a, b, peer, buffers });
        for _ in 0..4 {
            pair.post(MESSAGES);
            pair.send(MESSAGES);
            pair.receive();
            pair.complete();
        }
        pair
    }

    fn posted() -> Box<Self> {
        let mut pair = Self::new();
        pair.post(MESSAGES);
        pair
    }

    fn sent() -> Box<Self> {
        let mut pair = Self::posted();
        pair.send(MESSAGES);
        pair
    }

    fn received() -> Box<Self> {
        let mut pair = Self::sent();
        pair.receive();
        pair
    }

    fn post(&mut self, count: u64) {
        for tag in 0..count {
            let buffer = self.buffers.pop().unwrap();
            self.b.receive(Accept::Tagged { source: None, tag, ignore: 0 }, buffer, 0).unwrap();
        }
    }

    fn send(&mut self, count: u64) {
        for tag in 0..count {
            let buffer = self.buffers.pop().unwrap();
            let peer = self.peer;
            let message = Message {
                peer,
                tag: Some(tag),
                cq_data: None,
                level: Level::Transmit,
                buffer,
                context: 0,
            };
            self.a.send(message).unwrap();
        }
    }

    fn receive(&mut self) {
        while let Some(completion) = self.b.poll(Time::ZERO) {
            let Completion::Receive(received) = completion else { panic!() };
            assert!(received.result.is_ok());
            self.buffers.push(received.buffer);
        }
    }

    fn complete(&mut self) {
        while let Some(completion) = self.a.poll(Time::ZERO) {
            let Completion::Send(sent) = completion else { panic!() };
            self.buffers.extend(sent.buffer);
        }
    }
}

#[library_benchmark(setup = Pair::new, config = at_most(TOTAL))]
fn message(mut pair: Box<Pair>) -> Box<Pair> {
    for _ in 0..MESSAGES / WINDOW {
        pair.post(WINDOW);
        pair.send(WINDOW);
        pair.receive();
        pair.complete();
    }
    pair
}

#[library_benchmark(setup = Pair::new, config = at_most(POST))]
fn post(mut pair: Box<Pair>) -> Box<Pair> {
    pair.post(MESSAGES);
    pair
}

#[library_benchmark(setup = Pair::posted, config = at_most(SEND))]
fn send(mut pair: Box<Pair>) -> Box<Pair> {
    pair.send(MESSAGES);
    pair
}

#[library_benchmark(setup = Pair::sent, config = at_most(RECEIVE))]
fn receive(mut pair: Box<Pair>) -> Box<Pair> {
    pair.receive();
    pair
}

#[library_benchmark(setup = Pair::received, config = at_most(COMPLETE))]
fn complete(mut pair: Box<Pair>) -> Box<Pair> {
    pair.complete();
    pair
}

// What the device takes of a message, and its two loops, without the engine.
#[library_benchmark(setup = Devices::new, config = at_most(DEVICE))]
fn device_alone(mut devices: Box<Devices>) -> Box<Devices> {
    for _ in 0..MESSAGES {
        devices.message();
    }
    devices
}

struct Devices {
    ends: [Direct; 2],
    packets: Vec<Box<[u8]>>,
}

impl Devices {
    fn new() -> Box<Self> {
        let mut ends = null::pair(Order::Sent);
        let packets = (0..2).map(|_| ends[0].allocate_packet().unwrap()).collect();
        Box::new(Self { ends, packets })
    }

    fn message(&mut self) {
        let [a, b] = &mut self.ends;
        b.post_receive(self.packets.pop().unwrap()).unwrap();
        let packet = self.packets.pop().unwrap();
        let destination = Destination::default();
        a.post_send(SendRequest { id: WorkId(0), packet, length: 8, destination, immediate: None })
            .unwrap();
        let Some(Done::Receive { packet, .. }) = b.poll(Time::ZERO) else { panic!() };
        self.packets.push(packet);
        let Some(Done::Send { packet, .. }) = a.poll(Time::ZERO) else { panic!() };
        self.packets.push(packet);
    }
}

/// An end without the other: its device never has anything to tell.
struct Alone {
    endpoint: Endpoint<Silent, Vec<u8>>,
}

impl Alone {
    fn knowing(peers: u64) -> Box<Self> {
        let mut endpoint = Endpoint::new(Silent::default(), Config::default()).unwrap();
        for number in 0..peers {
            endpoint.insert_peer(address(number)).unwrap();
        }
        Box::new(Self { endpoint })
    }
}

#[library_benchmark]
#[bench::peers_10(args = (10), setup = Alone::knowing, config = at_most(IDLE))]
#[bench::peers_100k(args = (100_000), setup = Alone::knowing, config = at_most(IDLE))]
fn idle(mut alone: Box<Alone>) -> Box<Alone> {
    for _ in 0..MESSAGES {
        poll(black_box(&mut alone.endpoint));
    }
    alone
}

/// A call as of somebody who knows nothing of the endpoint.
#[inline(never)]
fn poll(endpoint: &mut Endpoint<Silent, Vec<u8>>) {
    assert!(endpoint.poll(Time::ZERO).is_none());
}

fn address(number: u64) -> RawAddress {
    let mut gid = [1; 16];
    gid[..8].copy_from_slice(&number.to_le_bytes());
    RawAddress { gid, qpn: number as u16, connid: Connid(number as u32) }
}

struct Known {
    endpoint: Endpoint<Direct, Vec<u8>>,
    count: u64,
}

impl Known {
    fn none(count: u64) -> Box<Self> {
        let [queue_pair, _] = null::pair(Order::Sent);
        Box::new(Self { endpoint: Endpoint::new(queue_pair, Config::default()).unwrap(), count })
    }
}

// Of each peer the same, however many.
#[library_benchmark]
#[bench::hundred_thousand(args = (100_000), setup = Known::none, config = in_all(PEER * 100_000))]
#[bench::million(args = (1_000_000), setup = Known::none, config = in_all(PEER * 1_000_000))]
fn insert_peers(mut known: Box<Known>) -> Box<Known> {
    for number in 0..known.count {
        known.endpoint.insert_peer(address(number)).unwrap();
    }
    known
}

library_benchmark_group!(
    name = engine,
    benchmarks = [message, post, send, receive, complete, device_alone, idle, insert_peers]
);
main!(library_benchmark_groups = engine);

/// Ratchets: what is measured and a little. The goals are 500, 70, 150, 250, 30 and 30.
const TOTAL: u64 = 1070;
const POST: u64 = 168;
const SEND: u64 = 247;
const RECEIVE: u64 = 490;
const COMPLETE: u64 = 164;
/// Not of the engine's making, but counted in all of the above.
const DEVICE: u64 = 170;
/// Some 45 of them the engine's.
const IDLE: u64 = 58;
const PEER: u64 = 370;

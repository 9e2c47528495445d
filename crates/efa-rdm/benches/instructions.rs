//! Instructions of an 8-byte tagged message through the engine, with hard limits.
//!
//! The device is a pair of queues in memory; what it costs is counted with the engine's. So are
//! the loops around the calls.

// The macros of gungraun expand to such.
#![allow(missing_docs, unused_qualifications)]
#![allow(clippy::unwrap_used, reason = "a bench that can't go on fails")]

#[path = "../tests/null/mod.rs"]
mod null;

use std::hint::black_box;

use efa_device::Time;
use efa_rdm::{Accept, Completion, Config, Endpoint, Level, Message, PeerId};
use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, prelude::*};

use crate::null::{Direct, Order};

/// Messages of a run.
const MESSAGES: u64 = 1024;
/// Messages under way at a time.
const WINDOW: u64 = 16;

fn at_most(each: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, each * MESSAGES)]);
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
    fn new() -> Self {
        let [mut a, b] = null::pair(Order::Sent)
            .map(|queue_pair| Endpoint::new(queue_pair, Config::default()).unwrap());
        let peer = a.insert_peer(b.address()).unwrap();
        let buffers = (0..4 * WINDOW).map(|_| vec![7; 8]).collect();
        let mut pair = Self { a, b, peer, buffers };
        for _ in 0..100 {
            pair.post();
            pair.send();
            pair.receive();
            pair.complete();
        }
        pair
    }

    fn post(&mut self) {
        for tag in 0..WINDOW {
            let buffer = self.buffers.pop().unwrap();
            self.b.receive(Accept::Tagged { source: None, tag, ignore: 0 }, buffer, 0).unwrap();
        }
    }

    fn send(&mut self) {
        for tag in 0..WINDOW {
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
        self.b.progress(Time::ZERO);
        while let Some(completion) = self.b.poll_completion() {
            let Completion::Receive(received) = completion else { panic!() };
            assert!(received.result.is_ok());
            self.buffers.push(received.buffer);
        }
    }

    fn complete(&mut self) {
        self.a.progress(Time::ZERO);
        while let Some(completion) = self.a.poll_completion() {
            let Completion::Send(sent) = completion else { panic!() };
            self.buffers.extend(sent.buffer);
        }
    }
}

#[library_benchmark(setup = Pair::new, config = at_most(TOTAL))]
fn message(mut pair: Pair) -> Pair {
    for _ in 0..MESSAGES / WINDOW {
        pair.post();
        pair.send();
        pair.receive();
        pair.complete();
    }
    pair
}

#[library_benchmark(setup = Pair::new, config = at_most(IDLE))]
fn idle_progress(mut pair: Pair) -> Pair {
    for _ in 0..MESSAGES {
        black_box(&mut pair.a).progress(black_box(Time::ZERO));
    }
    pair
}

library_benchmark_group!(name = engine, benchmarks = [message, idle_progress]);
main!(library_benchmark_groups = engine);

/// Ratchets: what is measured and a little. The goals are 500 and 30.
const TOTAL: u64 = 1660;
const IDLE: u64 = 100;

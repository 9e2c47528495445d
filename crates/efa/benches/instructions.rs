//! Instructions of this crate, with hard limits: address vectors with many peers, operations without the
//! device, and a message with all layers below.

// The macros of gungraun expand to items without documentation.
#![allow(missing_docs, unused_qualifications)]
#![allow(clippy::unwrap_used, reason = "a bench that can't go on fails")]

use std::hint::black_box;
use std::ptr::NonNull;
use std::time::Duration;

use efa::{
    Address, AddressVector, CompletionQueue, CompletionQueueOptions, ControlEvent, Direction,
    Domain, Endpoint, EndpointOptions, EventQueue, EventQueueOptions, Fabric, FiAddr, LentBytes,
    LentBytesMut, LocalOptions, ManualClock, Message, MsgEndpoint, MsgEndpointOptions,
    PassiveEndpointOptions, Receive,
};
use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, prelude::*};

/// Operations of a run.
const OPERATIONS: u64 = 1024;
/// Messages of [`transfer_many_tagged`] under way at the same time.
const AT_ONCE: usize = 16;

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

struct Setting {
    domain: Domain,
    queue: CompletionQueue,
    addresses: AddressVector,
    peers: Vec<Address>,
}

/// An address vector with `known` peers, and the addresses of `more` others.
fn setting(known: u32, more: u32) -> Setting {
    setting_in(&Fabric::local(LocalOptions::default()).with_clock(&ManualClock::new()), known, more)
}

fn setting_in(fabric: &Fabric, known: u32, more: u32) -> Setting {
    let domain = fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let mut peers = (0..known + more).map(|number| {
        let mut bytes = [1; 32];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        Address::from_bytes(bytes)
    });
    for peer in peers.by_ref().take(known as usize) {
        addresses.insert(peer).unwrap();
    }
    let peers = peers.collect();
    Setting { domain, queue, addresses, peers }
}

fn enable(setting: &Setting) -> Endpoint {
    let options = EndpointOptions::new().connid(1).hash_seed(1);
    setting
        .domain
        .endpoint(options)
        .bind_completion_queue(&setting.queue, Direction::Both)
        .bind_address_vector(&setting.addresses)
        .enable()
        .unwrap()
}

/// An endpoint whose tables have grown to their final size.
fn with_endpoint() -> (Setting, Endpoint, Vec<Vec<u8>>) {
    endpoint_in(setting(10, 0))
}

/// The same with the host's clock: where it is manual, reads in vain don't only look.
fn with_host_clock() -> (Setting, Endpoint, Vec<Vec<u8>>) {
    endpoint_in(setting_in(&Fabric::local(LocalOptions::default()), 10, 0))
}

fn endpoint_in(setting: Setting) -> (Setting, Endpoint, Vec<Vec<u8>>) {
    let endpoint = enable(&setting);
    let post = |tag| endpoint.receive(Receive::tagged(tag), vec![0; 8], 0).unwrap();
    let posted: Vec<_> = (0..OPERATIONS).map(post).collect();
    assert!(posted.into_iter().all(|receive| endpoint.cancel(receive)));
    while setting.queue.read().is_some() {}
    let buffers = (0..OPERATIONS).map(|_| vec![0; 8]).collect();
    (setting, endpoint, buffers)
}

#[library_benchmark(config = at_most(INSERT_100K * 100_000))]
#[bench::hundred_thousand(args = (0, 100_000), setup = setting)]
fn insert_100k(setting: Setting) -> Setting {
    for peer in &setting.peers {
        black_box(setting.addresses.insert(*peer)).unwrap();
    }
    setting
}

#[library_benchmark(config = at_most(INSERT_1M * 1_000_000))]
#[bench::million(args = (0, 1_000_000), setup = setting)]
fn insert_1m(setting: Setting) -> Setting {
    for peer in &setting.peers {
        black_box(setting.addresses.insert(*peer)).unwrap();
    }
    setting
}

#[library_benchmark(config = at_most(ENABLE))]
#[bench::ten(args = (10, 0), setup = setting)]
#[bench::hundred_thousand(args = (100_000, 0), setup = setting)]
fn enable_among_peers(setting: Setting) -> (Setting, Endpoint) {
    let endpoint = enable(&setting);
    (setting, endpoint)
}

#[library_benchmark(setup = with_endpoint, config = at_most(POST * OPERATIONS))]
fn post_tagged(
    (setting, endpoint, buffers): (Setting, Endpoint, Vec<Vec<u8>>),
) -> (Setting, Endpoint) {
    for (tag, buffer) in buffers.into_iter().enumerate() {
        endpoint.receive(Receive::tagged(tag as u64), buffer, 0).unwrap();
    }
    (setting, endpoint)
}

#[library_benchmark(setup = with_endpoint, config = at_most(POST * OPERATIONS))]
fn post_tagged_lent(
    (setting, endpoint, mut buffers): (Setting, Endpoint, Vec<Vec<u8>>),
) -> (Setting, Endpoint, Vec<Vec<u8>>) {
    for (tag, buffer) in buffers.iter_mut().enumerate() {
        endpoint.receive(Receive::tagged(tag as u64), lent_mut(buffer), 0).unwrap();
    }
    (setting, endpoint, buffers)
}

/// A C program's buffer. The benches keep the vector longer than the endpoint, and don't use it.
fn lent_mut(buffer: &mut Vec<u8>) -> LentBytesMut {
    // SAFETY: as the comment above says.
    unsafe { LentBytesMut::new(NonNull::from(buffer.as_mut_slice()).cast(), buffer.len()) }
}

#[library_benchmark(setup = with_host_clock, config = at_most(IDLE * OPERATIONS))]
fn read_nothing(all: (Setting, Endpoint, Vec<Vec<u8>>)) -> (Setting, Endpoint, Vec<Vec<u8>>) {
    for _ in 0..OPERATIONS {
        assert!(black_box(&all.0.queue).read().is_none());
    }
    all
}

/// Two endpoints with a queue each, after a first message.
struct Pair {
    clock: ManualClock,
    to_bob: FiAddr,
    alice: (Endpoint, CompletionQueue),
    bob: (Endpoint, CompletionQueue),
}

impl Pair {
    fn new() -> Self {
        let clock = ManualClock::new();
        let fabric = Fabric::local(LocalOptions::default()).with_clock(&clock);
        let domain = fabric.domain().unwrap();
        let addresses = domain.address_vector();
        let [alice, bob] = [1, 2].map(|connid| {
            let queue = domain.completion_queue(CompletionQueueOptions::default());
            let endpoint = domain
                .endpoint(EndpointOptions::new().connid(connid).hash_seed(1))
                .bind_completion_queue(&queue, Direction::Both)
                .bind_address_vector(&addresses)
                .enable()
                .unwrap();
            (endpoint, queue)
        });
        let to_bob = addresses.insert(bob.0.address()).unwrap();
        let pair = Self { clock, to_bob, alice, bob };
        pair.transfer(vec![0; 8]);
        pair
    }

    /// Sends one tagged message and reads both completions.
    fn transfer(&self, buffer: Vec<u8>) {
        self.bob.0.receive(Receive::tagged(1), buffer, 2).unwrap();
        self.alice.0.send(Message::to(self.to_bob).tagged(1), "8 bytes.", 3).unwrap();
        self.complete();
    }

    fn complete(&self) {
        for (_, queue) in [&self.bob, &self.alice] {
            while black_box(queue.read()).is_none() {
                self.clock.advance(Duration::from_micros(10));
            }
        }
    }
}

fn pair() -> (Pair, Vec<Vec<u8>>) {
    (Pair::new(), (0..OPERATIONS).map(|_| vec![0; 8]).collect())
}

#[library_benchmark(setup = pair, config = at_most(TRANSFER * OPERATIONS))]
fn transfer_tagged((pair, buffers): (Pair, Vec<Vec<u8>>)) -> Pair {
    for buffer in buffers {
        pair.transfer(buffer);
    }
    pair
}

#[library_benchmark(setup = pair, config = at_most(TRANSFER * OPERATIONS))]
fn transfer_tagged_lent((pair, mut buffers): (Pair, Vec<Vec<u8>>)) -> (Pair, Vec<Vec<u8>>) {
    let (alice, bob) = (&pair.alice, &pair.bob);
    for buffer in &mut buffers {
        bob.0.receive(Receive::tagged(1), lent_mut(buffer), 2).unwrap();
        // SAFETY: the bytes live as long as the program, and nobody writes them.
        let bytes = unsafe { LentBytes::new(NonNull::from(b"8 bytes.").cast(), 8) };
        alice.0.send(Message::to(pair.to_bob).tagged(1), bytes, 3).unwrap();
        pair.complete();
    }
    (pair, buffers)
}

// As `transfer_tagged`, with several messages under way, whose completions are read together.
#[library_benchmark(setup = pair, config = at_most(TRANSFER_MANY * OPERATIONS))]
fn transfer_many_tagged((pair, mut buffers): (Pair, Vec<Vec<u8>>)) -> Pair {
    let mut entries = Vec::with_capacity(AT_ONCE);
    while !buffers.is_empty() {
        for buffer in buffers.drain(..AT_ONCE) {
            pair.bob.0.receive(Receive::tagged(1), buffer, 2).unwrap();
            pair.alice.0.send(Message::to(pair.to_bob).tagged(1), "8 bytes.", 3).unwrap();
        }
        for (_, queue) in [&pair.bob, &pair.alice] {
            while entries.len() < AT_ONCE {
                if black_box(queue).read_many(&mut entries, AT_ONCE) == 0 {
                    pair.clock.advance(Duration::from_micros(10));
                }
            }
            assert!(entries.drain(..).all(|entry| entry.is_ok()));
        }
    }
    pair
}

/// Two programs with some connections between them, of which all but the first are idle.
struct Connections {
    clock: ManualClock,
    /// Completion queue and endpoints.
    callers: (CompletionQueue, Vec<MsgEndpoint>),
    callees: (CompletionQueue, Vec<MsgEndpoint>),
}

impl Connections {
    fn new(count: usize) -> Self {
        let clock = ManualClock::new();
        let fabric = Fabric::local(LocalOptions::default()).with_clock(&clock);
        let sides = [0, 1].map(|_| {
            let domain = fabric.domain().unwrap();
            let queue = domain.completion_queue(CompletionQueueOptions::default());
            let events = fabric.event_queue(EventQueueOptions::default()).unwrap();
            (domain, queue, events)
        });
        let [caller, callee] = &sides;
        let passive = fabric.passive_endpoint(&callee.2, PassiveEndpointOptions::default());
        let listener = passive.listen(([127, 0, 0, 1], 0).into()).unwrap();
        let endpoint = |(domain, queue, events): &(Domain, CompletionQueue, EventQueue)| {
            let mut options = MsgEndpointOptions::default();
            options.endpoint = options.endpoint.hash_seed(1);
            let endpoint = domain.msg_endpoint(options);
            endpoint.bind_completion_queue(queue, Direction::Both).bind_event_queue(events)
        };
        let (mut callers, mut callees) = (Vec::new(), Vec::new());
        let (mut first, mut connected) = (None, 0);
        for _ in 0..count {
            callers.push(endpoint(caller).connect(listener.local_address(), b"").unwrap());
        }
        while connected < 2 * count {
            for side in &sides {
                match side.2.read() {
                    Some(Ok(ControlEvent::ConnectionRequest(request))) => {
                        first.get_or_insert(request.address());
                        callees.push(endpoint(callee).accept(request, b"").unwrap());
                    }
                    Some(event) => {
                        assert!(matches!(event, Ok(ControlEvent::Connected { .. })));
                        connected += 1;
                    }
                    None => clock.advance(Duration::from_micros(1)),
                }
            }
        }
        // Requests may have overtaken each other.
        let is_first = |caller: &MsgEndpoint| Some(caller.address()) == first;
        let active = callers.iter().position(is_first).unwrap();
        callers.swap(0, active);
        let [caller, callee] = sides.map(|(_, queue, _)| queue);
        Self { clock, callers: (caller, callers), callees: (callee, callees) }
    }

    fn transfer(&self, buffer: Vec<u8>) {
        self.callees.1[0].receive(Receive::tagged(1), buffer, 2).unwrap();
        self.callers.1[0].send(Message::to(MsgEndpoint::PEER).tagged(1), "8 bytes.", 3).unwrap();
        for queue in [&self.callees.0, &self.callers.0] {
            while black_box(queue.read()).is_none() {
                self.clock.advance(Duration::from_micros(10));
            }
        }
    }
}

fn connections(count: usize) -> (Connections, Vec<Vec<u8>>) {
    let connections = Connections::new(count);
    // Until those that are idle have left the rotation.
    (0..OPERATIONS).for_each(|_| connections.transfer(vec![0; 8]));
    (connections, (0..OPERATIONS).map(|_| vec![0; 8]).collect())
}

#[library_benchmark(setup = connections, config = at_most(ONE_OF_ONE * OPERATIONS))]
#[bench::connection(args = (1))]
fn transfer_over_one((connections, buffers): (Connections, Vec<Vec<u8>>)) -> Connections {
    for buffer in buffers {
        connections.transfer(buffer);
    }
    connections
}

#[library_benchmark(setup = connections, config = at_most(ONE_OF_64 * OPERATIONS))]
#[bench::connections(args = (64))]
fn transfer_over_one_of_64((connections, buffers): (Connections, Vec<Vec<u8>>)) -> Connections {
    for buffer in buffers {
        connections.transfer(buffer);
    }
    connections
}

library_benchmark_group!(
    name = facade,
    benchmarks = [
        insert_100k,
        insert_1m,
        enable_among_peers,
        post_tagged,
        post_tagged_lent,
        read_nothing,
        transfer_tagged,
        transfer_tagged_lent,
        transfer_many_tagged,
        transfer_over_one,
        transfer_over_one_of_64
    ]
);
main!(library_benchmark_groups = facade);

/// Ratchets: the measured counts and a margin, as hash seeds are random. An insertion among a million
/// peers may cost 1.3 times one among a hundred thousand, and enabling does no work for peers. An endpoint's
/// mutex takes some 8 instructions more than one of `parking_lot`, and less time, as none of them is an atomic
/// read-modify-write.
const INSERT_100K: u64 = 370;
const INSERT_1M: u64 = 420;
const ENABLE: u64 = 640_000;
const POST: u64 = 233;
const IDLE: u64 = 97;
const TRANSFER: u64 = 5_310;
/// A message of several under way.
const TRANSFER_MANY: u64 = 7_310;
/// A message over a connection, and over one of 64 on the same queues, which may cost 1.3 times as much.
const ONE_OF_ONE: u64 = 5_260;
const ONE_OF_64: u64 = 6_830;
const _: () = assert!(ONE_OF_64 * 10 <= ONE_OF_ONE * 13);

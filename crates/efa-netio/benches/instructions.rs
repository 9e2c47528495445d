//! What this crate adds to a send of `efa`: a publication under a cached tag to n subscribers, and as many sends of the
//! same registered memory by `efa` alone.
//!
//! ```text
//!   publish   publish_by, then poll until nothing is left     n sends and completions, and what this crate does
//!   send      n × send, then read until nothing is left   n sends and completions
//! ```
//!
//! Only these two functions are counted: not the other side, and no waiting. `cargo xtask bench` subtracts the one from
//! the other, and holds the limit of what is added for a subscriber.

// The macros of gungraun expand to items without documentation.
#![allow(missing_docs, unused_qualifications)]
#![allow(clippy::unwrap_used, reason = "a bench that can't go on fails")]

use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use efa::{
    Access, CompletionQueue, CompletionQueueOptions, ControlEvent, Direction, Domain, Entry,
    EventQueue, EventQueueOptions, Fabric, Kind, Level, LocalAccess, LocalOptions, ManualClock,
    MsgEndpoint, MsgEndpointBuilder, MsgEndpointOptions, PassiveEndpointOptions, Receive,
    RegionSlice,
};
use efa_netio::{
    Event, Lookup, Message, Netio, Options, PublishOptions, PublishSocket, Published, Wait,
};
use gungraun::{Callgrind, EntryPoint, EventKind, LibraryBenchmarkConfig, prelude::*};

/// Publications that are counted, and such before them, in which tables grow to their size.
const ROUNDS: u64 = 64;
const BEFORE: u64 = 320;
/// Bytes of a message.
const LENGTH: usize = 64;
const TAG: u64 = 0x17;
/// The tag of control messages.
const CONTROL: u64 = 0x6e65_7469_6f00_0001;
const HOST: &str = "10.0.0.1";
/// In virtual time: the other side goes on so often, after such a time, until a message has arrived.
const STEPS: u32 = 4;
const STEP: Duration = Duration::from_micros(10);

/// Counts in the functions `counted_…` alone.
fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.entry_point(EntryPoint::Custom("*::counted_*".to_owned()));
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

// ---- the other side -----------------------------------------------------------------------------

/// A domain with its queues.
struct Side {
    domain: Domain,
    queue: CompletionQueue,
    events: EventQueue,
}

impl Side {
    fn new(fabric: &Fabric) -> Self {
        let domain = fabric.domain().unwrap();
        let set = fabric.wait_set().unwrap();
        let wait = || efa::Wait::Set(set.clone());
        let options = CompletionQueueOptions::default();
        let queue = domain.waitable_completion_queue(options, wait()).unwrap();
        let events = fabric.waitable_event_queue(EventQueueOptions::default(), wait()).unwrap();
        Self { domain, queue, events }
    }

    fn endpoint(&self) -> MsgEndpointBuilder {
        let mut options = MsgEndpointOptions::default();
        options.endpoint.protocol.messages_after_handshake = true;
        self.domain
            .msg_endpoint(options)
            .bind_completion_queue(&self.queue, Direction::Both)
            .bind_event_queue(&self.events)
    }

    /// The next event, if there is one.
    fn event(&self) -> Option<ControlEvent> {
        self.events.read().map(|event| event.unwrap())
    }
}

/// Programs that receive, the same on both sides of the comparison: they speak to a publisher as docs/netio.md says.
struct Others {
    clock: ManualClock,
    side: Side,
    endpoints: Vec<MsgEndpoint>,
}

impl Others {
    fn connect(fabric: &Fabric, clock: &ManualClock, to: SocketAddr, count: usize) -> Self {
        let side = Side::new(fabric);
        let connect = |_| side.endpoint().connect(to, b"nio1\x01\0\x02\0").unwrap();
        let endpoints: Vec<_> = (0..count).map(connect).collect();
        for (context, endpoint) in endpoints.iter().enumerate() {
            (0..16).for_each(|_| post(endpoint, context as u64));
        }
        Self { clock: clock.clone(), side, endpoints }
    }

    /// They go on, until a message has arrived.
    fn go_on(&self) {
        for _ in 0..STEPS {
            self.clock.advance(STEP);
            while let Some(entry) = self.side.queue.read() {
                let completion = entry.unwrap();
                if completion.kind == Kind::Receive {
                    post(&self.endpoints[completion.context as usize], completion.context);
                }
            }
        }
    }

    /// Subscribes those that have not, once they know the other side.
    fn subscribe(&self, subscribed: &mut usize) {
        let mut subscription = [0; 24];
        (subscription[0], subscription[2]) = (1, 1);
        subscription[8..16].copy_from_slice(&TAG.to_le_bytes());
        let message = efa::Message::to(MsgEndpoint::PEER).tagged(CONTROL);
        for endpoint in &self.endpoints[*subscribed..] {
            match endpoint.inject(message, &subscription) {
                Ok(()) => *subscribed += 1,
                Err(error) => return assert!(error.is_busy(), "{error}"),
            }
        }
    }
}

fn post(endpoint: &MsgEndpoint, context: u64) {
    endpoint.receive(Receive::untagged(), vec![0; LENGTH], context).unwrap();
}

// ---- ours ---------------------------------------------------------------------------------------

/// A context that publishes.
struct Ours {
    netio: Netio,
    socket: PublishSocket,
    lookup: Lookup,
    message: Option<Message>,
    others: Others,
}

impl Ours {
    fn new(count: usize) -> Self {
        let clock = ManualClock::new();
        let fabric = Fabric::local(LocalOptions::default()).with_clock(&clock);
        let mut netio = Netio::new(&fabric.domain().unwrap(), Options::default()).unwrap();
        let pool = netio.allocate(LENGTH).unwrap();
        let socket = netio.publish_socket(&pool, PublishOptions::default()).unwrap();
        netio.publish_at(socket, HOST, 0).unwrap();
        let at = netio.local_address(socket).unwrap();
        let others = Others::connect(&fabric, &clock, at, count);
        let (mut connected, mut subscribed) = (0, 0);
        while netio.subscriber_count(socket, TAG) < count {
            while netio.poll(Wait::No).unwrap().is_some() {}
            while let Some(ControlEvent::Connected { .. }) = others.side.event() {
                connected += 1;
            }
            if connected == count {
                others.subscribe(&mut subscribed);
            }
            others.go_on();
        }
        let message = Some(Message::of(pool.whole()));
        let lookup = Lookup::new(TAG);
        let mut ours = Self { netio, socket, lookup, message, others };
        (0..BEFORE).for_each(|_| ours.round(publish, drain));
        ours
    }

    fn round(&mut self, publish: fn(&mut Self), drain: fn(&mut Self)) {
        publish(self);
        self.others.go_on();
        drain(self);
    }
}

#[inline(never)]
fn counted_publish(ours: &mut Ours) {
    publish(ours);
}

#[inline(never)]
fn counted_drain(ours: &mut Ours) {
    drain(ours);
}

#[inline(always)]
fn publish(ours: &mut Ours) {
    let message = ours.message.take().unwrap();
    let published = black_box(ours.netio.publish_by(ours.socket, &mut ours.lookup, message));
    assert!(matches!(published, Published::UnderWay));
}

#[inline(always)]
fn drain(ours: &mut Ours) {
    while let Some(event) = ours.netio.poll(Wait::No).unwrap() {
        if let Event::Published { message, lost: 0, .. } = event {
            ours.message = Some(message);
        }
    }
}

// ---- efa alone ----------------------------------------------------------------------------------

/// The same connections.
struct Bare {
    side: Side,
    endpoints: Vec<MsgEndpoint>,
    slice: RegionSlice,
    others: Others,
}

impl Bare {
    fn new(count: usize) -> Self {
        let clock = ManualClock::new();
        let fabric = Fabric::local(LocalOptions::default()).with_clock(&clock);
        let side = Side::new(&fabric);
        let passive = fabric.passive_endpoint(&side.events, PassiveEndpointOptions::default());
        let listener = passive.listen((HOST.parse::<IpAddr>().unwrap(), 0).into()).unwrap();
        let others = Others::connect(&fabric, &clock, listener.local_address(), count);
        let (mut endpoints, mut connected) = (Vec::new(), 0);
        while connected < 2 * count {
            for side in [&side, &others.side] {
                while let Some(event) = side.event() {
                    match event {
                        ControlEvent::ConnectionRequest(request) => {
                            endpoints.push(side.endpoint().accept(request, b"").unwrap());
                        }
                        ControlEvent::Connected { .. } => connected += 1,
                        other => panic!("{other:?}"),
                    }
                }
            }
            while side.queue.read().is_some() {}
            others.go_on();
        }
        let access = Access { remote_read: true, remote_write: false };
        let region = side.domain.register_for(vec![0; LENGTH], access, LocalAccess::SEND).unwrap();
        let slice = region.slice(0..LENGTH).unwrap();
        let mut bare = Self { side, endpoints, slice, others };
        // The first messages wait for a handshake.
        send(&mut bare);
        let mut sent = 0;
        while sent < count {
            bare.others.go_on();
            sent += read(&mut bare);
        }
        (0..BEFORE).for_each(|_| bare.round(send, read));
        bare
    }

    fn round(&mut self, send: fn(&mut Self), read: fn(&mut Self) -> usize) {
        send(self);
        self.others.go_on();
        assert_eq!(read(self), self.endpoints.len(), "a send that takes longer");
    }
}

#[inline(never)]
fn counted_send(bare: &mut Bare) {
    send(bare);
}

#[inline(never)]
fn counted_read(bare: &mut Bare) -> usize {
    read(bare)
}

#[inline(always)]
fn send(bare: &mut Bare) {
    for (number, endpoint) in bare.endpoints.iter().enumerate() {
        let what = efa::Message::to(MsgEndpoint::PEER).with_data(TAG).level(Level::Inject);
        black_box(endpoint.send(what, bare.slice.clone(), number as u64 + 1)).unwrap();
    }
}

#[inline(always)]
fn read(bare: &mut Bare) -> usize {
    let mut entry: Option<Entry> = None;
    let mut found = 0;
    while bare.side.queue.read_into(&mut entry) {
        drop(black_box(entry.take()).unwrap().unwrap());
        found += 1;
    }
    found
}

// ---- the benches --------------------------------------------------------------------------------

#[library_benchmark(setup = Ours::new)]
#[bench::to_1(args = (1), config = at_most(PUBLISH_1 * ROUNDS))]
#[bench::to_8(args = (8), config = at_most(PUBLISH_8 * ROUNDS))]
#[bench::to_64(args = (64), config = at_most(PUBLISH_64 * ROUNDS))]
fn publications(mut ours: Ours) -> Ours {
    (0..ROUNDS).for_each(|_| ours.round(counted_publish, counted_drain));
    ours
}

#[library_benchmark(setup = Bare::new)]
#[bench::to_1(args = (1), config = at_most(PUBLISH_1 * ROUNDS))]
#[bench::to_8(args = (8), config = at_most(PUBLISH_8 * ROUNDS))]
#[bench::to_64(args = (64), config = at_most(PUBLISH_64 * ROUNDS))]
fn sends(mut bare: Bare) -> Bare {
    (0..ROUNDS).for_each(|_| bare.round(counted_send, counted_read));
    bare
}

library_benchmark_group!(name = added, benchmarks = [publications, sends]);
main!(library_benchmark_groups = added);

/// Ratchets: the measured counts of a publication and a margin of 3 %. Sends are cheaper, and what is between is held by
/// `cargo xtask bench`.
const PUBLISH_1: u64 = 4_880;
const PUBLISH_8: u64 = 8 * 4_800;
const PUBLISH_64: u64 = 64 * 5_390;

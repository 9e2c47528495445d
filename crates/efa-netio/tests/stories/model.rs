//! Random publications and subscriptions, deaths and stops, against a simple model.
//!
//! ```text
//!   publish ─► the model notes who had subscribed ─► Published: served + lost == their number, once
//!   Message ─► the model checks the bytes, and that numbers only grow on a connection
//!   the end ─► whoever stayed connected has all that it was owed; objects, publications, connections are back
//! ```
//!
//! `EFA_NETIO_SEEDS` sets the number of seeds, and `EFA_NETIO_FIRST_SEED` the first one, to replay a seed that failed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use efa_netio::{
    Buffers, ClosedReason, Completion, Counts, Event, Lookup, Message, Options, Pool,
    PublishOptions, PublishSocket, Published, Reentry, SubscribeOptions, SubscribeSocket, Tag,
    WhenFull,
};

use crate::hard::{hard, refuse};
use crate::world::{HOST, World, pattern};

const TAGS: u64 = 4;
const POOL: usize = 1 << 20;
/// Objects of the publisher.
const OBJECTS: usize = 6;

/// A publication, as the model knows it.
struct Expected {
    tag: Tag,
    bytes: Vec<u8>,
    /// How many had subscribed.
    targets: u32,
    served_and_lost: Option<(u32, u32)>,
}

/// A subscriber, as the model knows it.
struct Node {
    socket: SubscribeSocket,
    is_dead: bool,
    /// It died, or closed a socket, perhaps with messages in buffers that nobody looked at.
    is_torn: bool,
    is_stopped: bool,
    /// Messages that arrived on this connection, and on former ones.
    arrived: Vec<u64>,
    before: BTreeSet<u64>,
}

struct Model {
    rng: fastrand::Rng,
    world: World,
    pool: Pool,
    publisher: PublishSocket,
    resumes: bool,
    /// Whether subscribers die and close sockets, and whether they leave and tokens are dropped.
    tears: bool,
    leaves: bool,
    /// Who has subscribed, as the publisher has reported it.
    table: BTreeMap<SocketAddr, BTreeSet<Tag>>,
    lookups: Vec<Lookup>,
    nodes: BTreeMap<usize, Node>,
    tokens: Vec<(u64, Reentry)>,
    publications: BTreeMap<u64, Expected>,
    /// Messages, of all subscribers that are gone.
    delivered_and_lost: (u64, u64),
    next: u64,
    port: u16,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let sends = rng.usize(1..4);
        let mut world = hard(seed, 1, Options::default().with(|options| options.sends = sends));
        let pool = world.netio(0).register(pattern(POOL)).unwrap();
        let resumes = rng.u8(..3) == 0;
        let when_full = if resumes { WhenFull::Resume } else { WhenFull::Return };
        // Served means that it is in the subscriber's buffer.
        let options = PublishOptions::default().completion(Completion::Delivered);
        let options = options.outstanding(OBJECTS).when_full(when_full);
        let (publisher, port) = world.publisher(0, &pool, options);
        let (nodes, tokens, publications) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let lookups = (0..TAGS).map(Lookup::new).collect();
        Self {
            tears: !seed.is_multiple_of(3),
            leaves: !seed.is_multiple_of(5),
            table: BTreeMap::new(),
            delivered_and_lost: (0, 0),
            rng,
            world,
            pool,
            publisher,
            resumes,
            lookups,
            nodes,
            tokens,
            publications,
            next: 0,
            port,
        }
    }

    /// A subscriber that is not dead.
    fn any(&mut self) -> Option<usize> {
        let alive: Vec<_> =
            self.nodes.iter().filter(|(_, it)| !it.is_dead).map(|(node, _)| *node).collect();
        self.rng.choice(alive)
    }

    fn step(&mut self) {
        match self.rng.u8(..32) {
            0..=9 => self.publish(),
            10..=13 => self.resume(),
            14 if self.leaves => self.drop_token(),
            15 if self.nodes.len() < 8 => self.come(),
            15..=18 => self.subscribe(),
            19..=20 if self.leaves => self.unsubscribe(),
            21..=22 => self.stop(),
            23 if self.tears && self.rng.u8(..4) == 0 => self.kill(),
            24 if self.tears && self.rng.u8(..6) == 0 => self.close(),
            25 => (0..300).for_each(|_| self.turn()),
            _ => (0..self.rng.u32(..30)).for_each(|_| self.turn()),
        }
    }

    fn come(&mut self) {
        let node = self.world.add(Options::default());
        let buffers = Buffers { count: self.rng.usize(1..6), size: 64 << 10 };
        let options = SubscribeOptions::default().buffers(buffers);
        let socket = self.world.netio(node).subscribe_socket(HOST, self.port, options);
        let (arrived, before) = (Vec::new(), BTreeSet::new());
        let new =
            Node { socket, is_dead: false, is_torn: false, is_stopped: false, arrived, before };
        self.nodes.insert(node, new);
    }

    fn publish(&mut self) {
        let (tag, number) = (self.rng.u64(..TAGS), self.next);
        let mut bytes = Vec::new();
        let mut parts = Vec::new();
        let lengths = [0, 1, 100, 5_000, 20_000, 31_000];
        for _ in 0..self.rng.usize(1..3) {
            let from = self.rng.usize(..POOL - 100_000);
            let length = self.rng.choice(lengths).unwrap();
            bytes.extend_from_slice(&pattern_at(from, length));
            parts.push(self.pool.part(from..from + length).unwrap());
        }
        let header = efa_netio::Header::new(&number.to_le_bytes()).unwrap();
        let message = Message::gather(parts).key(number).header(header);
        let count = self.world.netio(0).subscriber_count(self.publisher, tag) as u32;
        let known = self.table.values().filter(|tags| tags.contains(&tag)).count();
        // The end of a connection is reported when nothing is under way on it any more.
        assert!(count <= known as u32);
        let published = match self.rng.bool() {
            true => self.world.netio(0).publish(self.publisher, tag, message),
            false => {
                let lookup = &mut self.lookups[tag as usize];
                self.world.nodes[0].netio.as_mut().unwrap().publish_by(
                    self.publisher,
                    lookup,
                    message,
                )
            }
        };
        match published {
            Published::UnderWay => {}
            Published::Partial(token) if !self.resumes => self.tokens.push((number, token)),
            Published::NoSubscribers(_) => return assert_eq!(count, 0),
            Published::Again(_) => return assert!(count > 0),
            other => panic!("{other:?}"),
        }
        assert!(count > 0);
        self.next += 1;
        let expected = Expected { tag, bytes, targets: count, served_and_lost: None };
        self.publications.insert(number, expected);
    }

    fn resume(&mut self) {
        if self.tokens.is_empty() {
            return;
        }
        let (number, token) = self.tokens.swap_remove(self.rng.usize(..self.tokens.len()));
        match self.world.netio(0).resume(token) {
            Published::UnderWay => {}
            Published::Partial(token) => self.tokens.push((number, token)),
            other => panic!("{other:?}"),
        }
    }

    fn drop_token(&mut self) {
        if !self.tokens.is_empty() {
            drop(self.tokens.swap_remove(self.rng.usize(..self.tokens.len())));
        }
    }

    fn subscribe(&mut self) {
        let Some(node) = self.any() else { return };
        let (socket, tag) = (self.nodes[&node].socket, self.rng.u64(..TAGS));
        let _ = self.world.netio(node).subscribe(socket, tag).unwrap();
    }

    fn unsubscribe(&mut self) {
        let Some(node) = self.any() else { return };
        let (socket, tag) = (self.nodes[&node].socket, self.rng.u64(..TAGS));
        let _ = self.world.netio(node).unsubscribe(socket, tag).unwrap();
    }

    fn stop(&mut self) {
        let Some(node) = self.any() else { return };
        let stopped = &mut self.nodes.get_mut(&node).unwrap().is_stopped;
        *stopped = !*stopped;
    }

    fn kill(&mut self) {
        let Some(node) = self.any() else { return };
        self.world.kill(node);
        let state = self.nodes.get_mut(&node).unwrap();
        (state.is_dead, state.is_torn) = (true, true);
    }

    /// The program of a node closes its socket, and makes another.
    fn close(&mut self) {
        let Some(node) = self.any() else { return };
        let netio = self.world.netio(node);
        netio.close(self.nodes[&node].socket);
        let options = SubscribeOptions::default().buffers(Buffers { count: 3, size: 64 << 10 });
        let socket = netio.subscribe_socket(HOST, self.port, options);
        let state = self.nodes.get_mut(&node).unwrap();
        (state.socket, state.is_torn) = (socket, true);
        state.before.extend(state.arrived.drain(..));
    }

    fn turn(&mut self) {
        let is_stopped = |(node, it): (&usize, &Node)| it.is_stopped.then_some(*node);
        let stopped: Vec<_> = self.nodes.iter().filter_map(is_stopped).collect();
        self.world.turn_without(&stopped);
        for node in 0..self.world.nodes.len() {
            for event in std::mem::take(&mut self.world.nodes[node].events) {
                self.happened(node, event);
            }
        }
    }

    fn happened(&mut self, node: usize, event: Event) {
        match event {
            Event::Published { message, served, lost, .. } => {
                let expected = self.publications.get_mut(&message.key).unwrap();
                assert_eq!(served + lost, expected.targets);
                assert_eq!(expected.served_and_lost.replace((served, lost)), None, "once");
            }
            Event::Message { socket, tag, message } => {
                let Some(state) = self.nodes.get_mut(&node) else { return };
                // One of a socket that was closed may still come.
                if socket != state.socket {
                    return;
                }
                let number = u64::from_le_bytes(message[..8].try_into().unwrap());
                let expected = &self.publications[&number];
                assert_eq!(tag, expected.tag);
                assert!(message[8..] == expected.bytes[..], "message {number} differs");
                assert!(state.arrived.last().is_none_or(|last| *last < number), "order, once");
                assert!(!state.before.contains(&number), "twice");
                state.arrived.push(number);
            }
            Event::Closed { socket, reason } => {
                let Some(state) = self.nodes.get_mut(&node) else { return };
                if socket == state.socket.into() {
                    assert_eq!(reason, ClosedReason::Disconnected);
                    state.before.extend(state.arrived.drain(..));
                }
            }
            Event::Subscriber { tag, peer, .. } => {
                assert!(self.table.entry(peer).or_default().insert(tag));
            }
            Event::Unsubscriber { tag, peer, .. } => {
                assert!(self.table.get_mut(&peer).is_some_and(|tags| tags.remove(&tag)));
            }
            Event::SubscriberClosed { reason, counts, .. } => {
                self.table.remove(&counts.peer);
                assert_eq!(counts.queued, 0);
                self.delivered_and_lost.0 += counts.delivered;
                self.delivered_and_lost.1 += counts.lost;
                use ClosedReason::{Disconnected, DisconnectedByPeer, PeerGone};
                let known = matches!(reason, Disconnected | DisconnectedByPeer | PeerGone);
                assert!(known, "{reason}");
            }
            Event::Refused { reason, .. } => panic!("{reason}"),
            _ => {}
        }
    }

    /// All go on, and what is under way ends.
    fn end(mut self) {
        self.nodes.values_mut().for_each(|node| node.is_stopped = false);
        for _ in 0..100_000 {
            self.resume();
            self.turn();
            let is_over = self.world.netio(0).counts().publications == 0;
            if is_over && self.tokens.is_empty() {
                break;
            }
        }
        (0..500).for_each(|_| self.turn());
        assert_eq!(self.world.netio(0).counts().publications, 0, "a publication hangs");
        let mut arrived: BTreeMap<u64, u32> = BTreeMap::new();
        for node in self.nodes.values() {
            for number in node.arrived.iter().chain(&node.before) {
                *arrived.entry(*number).or_default() += 1;
            }
        }
        let torn = self.nodes.values().filter(|node| node.is_torn).count() as u32;
        for (number, expected) in &self.publications {
            let (served, lost) = expected.served_and_lost.expect("each is reported");
            let arrived = arrived.get(number).copied().unwrap_or_default();
            assert!(arrived <= expected.targets, "{number} reached more than had subscribed");
            let surely = served.saturating_sub(torn)..=served + torn;
            assert!(surely.contains(&arrived), "{number}: {served} served, {arrived} arrived");
            assert!(lost == 0 || self.leaves || torn > 0, "{number} is lost for no reason");
        }
        self.objects_are_back();
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            if let Some(netio) = &mut self.world.nodes[node].netio {
                netio.close(self.nodes[&node].socket);
            }
        }
        self.world.netio(0).close(self.publisher);
        (0..2_000).for_each(|_| self.turn());
        // Those of the test for the objects, and all others.
        let mut expected = (3 * OBJECTS as u64, 0);
        for (served, lost) in self.publications.values().filter_map(|it| it.served_and_lost) {
            expected.0 += u64::from(served);
            expected.1 += u64::from(lost);
        }
        assert_eq!(self.delivered_and_lost, expected, "of all subscribers, of all publications");
        for node in &self.world.nodes {
            let counts = node.netio.as_ref().map(|netio| netio.counts());
            assert!(counts.is_none_or(|counts| counts == Counts::default()), "{counts:?}");
        }
    }

    /// As many publications are taken as there are objects, or connections have room for.
    fn objects_are_back(&mut self) {
        let node = self.world.add(Options::default());
        let options = SubscribeOptions::default();
        let socket = self.world.subscriber(node, self.port, &[99], options);
        for _ in 0..3 * OBJECTS {
            let message = Message::of(self.pool.part(0..1).unwrap()).key(u64::MAX);
            let published = self.world.netio(0).publish(self.publisher, 99, message);
            assert!(matches!(published, Published::UnderWay), "{published:?}");
            assert_eq!(self.world.published(0), (u64::MAX, 1, 0));
        }
        self.world.netio(node).close(socket);
        self.world.nodes[node].events.clear();
    }
}

fn pattern_at(begin: usize, length: usize) -> Vec<u8> {
    (begin..begin + length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

fn run(seed: u64) {
    let mut model = Model::new(seed);
    (0..3).for_each(|_| model.come());
    (0..4).for_each(|_| model.subscribe());
    (0..200).for_each(|_| model.turn());
    if seed.is_multiple_of(2) {
        refuse(&model.world);
    }
    for _ in 0..150 {
        model.step();
    }
    model.end();
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

// conformance: D37 D38 D45 D46 D52 D53 D57 D58 D59 D60 D61 D62 D65 D68 D69 D70 D72 D73
#[test]
fn random_publications_reach_all_who_had_subscribed_once_in_order_or_are_counted_as_lost() {
    let first = number("EFA_NETIO_FIRST_SEED").unwrap_or(1);
    for seed in first..first + number("EFA_NETIO_SEEDS").unwrap_or(60) {
        if std::panic::catch_unwind(|| run(seed)).is_err() {
            panic!("see above: EFA_NETIO_FIRST_SEED={seed} EFA_NETIO_SEEDS=1");
        }
    }
}

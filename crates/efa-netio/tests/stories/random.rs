//! Random programs of senders and receivers, checked by what was accepted, completed and received.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use efa_netio::{
    ClosedReason, Event, Options, Pool, ReceiveSocket, SendOptions, SendSocket, Sent, SocketError,
};

use crate::pairs::{buffers, pool, rough};
use crate::world::{HOST, World, part};

const LISTENER: usize = 2;
const LENGTHS: [usize; 7] = [0, 1, 100, 9_000, 32_767, 40_000, 100_000];

/// One connection of a send socket, from `connect` to `Closed` or `Refused`.
#[derive(Default)]
struct Session {
    number: u64,
    accepted: u64,
    /// Messages under way.
    owed: BTreeSet<u64>,
    all_sent: bool,
    disconnects: bool,
}

#[derive(Default)]
struct Received {
    session: Option<u64>,
    count: u64,
}

struct Model {
    world: World,
    random: fastrand::Rng,
    pools: Vec<Pool>,
    port: u16,
    sessions: u64,
    /// Open connections of each socket of each node.
    senders: BTreeMap<(usize, SendSocket), Option<Session>>,
    receivers: BTreeMap<ReceiveSocket, Received>,
    /// How many messages a session had when it was disconnected in order.
    totals: BTreeMap<u64, u64>,
    delivered: u64,
    /// Callers that the listener refused.
    refused: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let options = Options::default().with(|options| options.sends = 4 + seed as usize % 20);
        let mut world = World::with(3, options, rough(seed));
        let (_, port) = world.listener(LISTENER, buffers(3, 100_000).connections(3));
        let pools = (0..2).map(|node| pool(&mut world, node, 100_100)).collect();
        let mut senders = BTreeMap::new();
        for node in [0, 1] {
            for _ in 0..2 {
                let socket = world.netio(node).send_socket(SendOptions::default());
                senders.insert((node, socket), None);
            }
        }
        Self {
            world,
            random: fastrand::Rng::with_seed(seed),
            pools,
            port,
            sessions: 0,
            senders,
            receivers: BTreeMap::new(),
            totals: BTreeMap::new(),
            delivered: 0,
            refused: 0,
        }
    }

    fn step(&mut self) {
        let keys: Vec<_> = self.senders.keys().copied().collect();
        let (node, socket) = keys[self.random.usize(..keys.len())];
        match self.random.u32(..20) {
            0..3 => self.connect(node, socket),
            3..12 => self.send(node, socket),
            12 => self.disconnect(node, socket),
            13 => {
                if let Some(receive) = self.receivers.keys().next().copied()
                    && self.random.u32(..4) == 0
                {
                    self.world.netio(LISTENER).close(receive);
                }
            }
            _ => {
                for _ in 0..self.random.u32(..200) {
                    self.world.turn();
                    self.look();
                }
            }
        }
        self.look();
    }

    fn connect(&mut self, node: usize, socket: SendSocket) {
        let answer = self.world.netio(node).connect(socket, HOST, self.port);
        let session = self.senders.get_mut(&(node, socket)).unwrap();
        match answer {
            Ok(()) => {
                assert!(session.is_none());
                self.sessions += 1;
                *session = Some(Session { number: self.sessions, ..Session::default() });
            }
            Err(error) => assert!(error == SocketError::Busy && session.is_some()),
        }
    }

    fn send(&mut self, node: usize, socket: SendSocket) {
        let length = LENGTHS[self.random.usize(..LENGTHS.len())];
        let session = self.senders.get_mut(&(node, socket)).unwrap();
        let begin = session.as_ref().map_or(0, |session| session.accepted as usize % 100);
        let data = session.as_ref().map_or(0, |it| it.number << 32 | it.accepted);
        let message = part(&self.pools[node], begin, length).key(data).data(data);
        match self.world.netio(node).send(socket, message.clone()) {
            Sent::Accepted => {
                let session = session.as_mut().unwrap();
                assert!(!session.disconnects);
                session.owed.insert(data);
                session.accepted += 1;
            }
            Sent::Again(back) | Sent::Refused(_, back) => assert_eq!(back, message),
        }
    }

    fn disconnect(&mut self, node: usize, socket: SendSocket) {
        let answer = self.world.netio(node).disconnect(socket);
        if let (Ok(()), Some(session)) = (answer, self.senders.get_mut(&(node, socket)).unwrap()) {
            session.disconnects = true;
            session.all_sent = true;
        }
    }

    /// Takes what has happened.
    fn look(&mut self) {
        for node in 0..3 {
            for event in std::mem::take(&mut self.world.nodes[node].events) {
                self.happened(node, event);
            }
        }
    }

    fn happened(&mut self, node: usize, event: Event) {
        match event {
            Event::SendCompleted { socket, message, result } => {
                let session = self.senders.get_mut(&(node, socket)).unwrap().as_mut().unwrap();
                assert!(session.owed.remove(&message.key), "each once");
                session.all_sent &= result.is_ok();
            }
            Event::Closed { socket: efa_netio::AnySocket::Send(socket), reason } => {
                let session = self.senders.get_mut(&(node, socket)).unwrap().take().unwrap();
                assert!(session.owed.is_empty(), "completions come first");
                if reason == ClosedReason::Disconnected && session.all_sent {
                    self.totals.insert(session.number, session.accepted);
                } else {
                    assert!(
                        matches!(reason, ClosedReason::PeerGone | ClosedReason::Disconnected),
                        "{reason:?}"
                    );
                }
            }
            Event::Refused { socket: efa_netio::AnySocket::Send(socket), .. } => {
                let session = self.senders.get_mut(&(node, socket)).unwrap().take().unwrap();
                assert_eq!(session.accepted, 0);
            }
            Event::Accepted { socket, .. } => {
                self.receivers.insert(socket, Received::default());
            }
            Event::Received { socket, message, data } => {
                let received = self.receivers.get_mut(&socket).unwrap();
                let (session, number) = (data.unwrap() >> 32, data.unwrap() & 0xffff_ffff);
                assert_eq!(*received.session.get_or_insert(session), session);
                assert_eq!(received.count, number, "in order, without gaps");
                received.count += 1;
                self.delivered += 1;
                let begin = number as usize % 100;
                let is_same = |(at, found): (usize, &u8)| {
                    let at = at + begin;
                    *found == (at ^ (at >> 8) ^ (at >> 16)) as u8
                };
                assert!(message.iter().enumerate().all(is_same));
            }
            Event::Closed { socket: efa_netio::AnySocket::Receive(socket), reason } => {
                let received = self.receivers.remove(&socket).unwrap();
                if let (ClosedReason::DisconnectedByPeer, Some(session)) =
                    (reason, received.session)
                {
                    // The sender may learn it later.
                    let total = self.totals.entry(session).or_insert(received.count);
                    assert_eq!(*total, received.count, "all that was sent");
                }
            }
            Event::CallerRefused { .. } => self.refused += 1,
            Event::Connected(_) | Event::Writable(_) => {}
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self) {
        let keys: Vec<_> = self.senders.keys().copied().collect();
        for (node, socket) in keys {
            if self.senders[&(node, socket)].as_ref().is_some_and(|it| !it.disconnects) {
                self.disconnect(node, socket);
            }
        }
        // A device that refused a registration is asked again a second later.
        for turn in 0..200_000 {
            self.world.turn();
            self.look();
            if self.senders.values().all(Option::is_none) && self.receivers.is_empty() {
                break;
            }
            if turn % 20_000 == 19_999 {
                self.world.pass(Duration::from_millis(400));
            }
        }
        self.world.rest();
        for node in 0..3 {
            let netio = self.world.netio(node);
            let counts = netio.counts();
            assert_eq!((counts.connections, counts.operations, counts.ignored), (0, 0, 0));
            assert_eq!(netio.next_timeout(), None);
        }
        assert_eq!(self.world.netio(LISTENER).counts().rejected, self.refused);
        assert!(self.receivers.is_empty());
    }
}

// conformance: D15 D17 D34 D37
#[test]
fn random_connections_deliver_what_was_accepted_once_and_in_order_and_end() {
    let seeds = std::env::var("EFA_NETIO_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let mut delivered = 0;
    for seed in 0..seeds.unwrap_or(40) {
        eprintln!("seed {seed}");
        let mut model = Model::new(seed);
        for _ in 0..120 {
            model.step();
        }
        model.end();
        delivered += model.delivered;
    }
    assert!(delivered > 400, "{delivered}");
}

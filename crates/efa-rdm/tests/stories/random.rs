//! Endpoints that do everything at random under faults, held against a model.
//!
//! The model knows each message by the 64 bits that travel with it and holds the endpoints to this:
//! every operation ends exactly once and gives its buffer back; between endpoints that live, every
//! message arrives once with all its bytes, and messages and receives meet in the order of sending
//! and of posting.
//!
//! A failing run prints its seed; `EFA_RDM_SEED=<seed>` runs that one alone.

use std::collections::BTreeSet;
use std::time::Duration;

use efa_device::QueuePairOptions;
use efa_handshake::{Extras, Profile, Release};
use efa_rdm::{
    Accept, Config, Level, Message, OperationError, PeerId, ReceiveCompletion, ReceiveId,
    SendCompletion,
};
use efa_sim::local::{Faults, LocalOptions};
use fastrand::Rng;

use crate::world::{World, pattern, place};

const SEEDS: u64 = 150;
const OPERATIONS: usize = 120;

/// An endpoint between two restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Life {
    end: usize,
    number: u32,
}

/// What happens to the endpoints besides messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disaster {
    None,
    Restart,
    Kill,
    Removal,
}

#[derive(Debug)]
struct Sent {
    from: Life,
    to: Life,
    tag: Option<u64>,
    size: usize,
    injected: bool,
    ended: bool,
    /// The receive that it went to, and who the receiver took for the sender.
    went_to: Option<usize>,
    came_from: Option<PeerId>,
}

#[derive(Debug)]
struct Posted {
    at: Life,
    id: ReceiveId,
    source: Option<PeerId>,
    /// Tag and ignored bits.
    tag: Option<(u64, u64)>,
    capacity: usize,
    many: bool,
    /// Bytes of a multi-receive buffer that messages took.
    taken: usize,
    /// Bytes of it that came back unused.
    rest: usize,
    cancelled: bool,
    ended: bool,
}

impl Posted {
    /// Whether it accepts a message that has arrived.
    fn accepts(&self, message: &Sent) -> bool {
        let tag = match (self.tag, message.tag) {
            (None, None) => true,
            (Some((tag, ignore)), Some(sent)) => (tag ^ sent) & !ignore == 0,
            _ => false,
        };
        let source = self.source.is_none_or(|source| message.came_from == Some(source));
        tag && source && self.at == message.to
    }
}

struct Story {
    world: World,
    random: Rng,
    seed: u64,
    disaster: Disaster,
    lives: Vec<Life>,
    dead: BTreeSet<Life>,
    /// Pairs of which one forgot the other.
    broken: BTreeSet<(Life, Life)>,
    sent: Vec<Sent>,
    posted: Vec<Posted>,
    sizes: Vec<usize>,
}

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to see this again: EFA_RDM_SEED={}", self.seed);
        }
    }
}

impl Story {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let disaster = [Disaster::None, Disaster::Restart, Disaster::Kill, Disaster::Removal]
            [seed as usize % 4];
        let mtu = [256, 1_000, 8_928][random.usize(0..3)];
        let mut rarely = |most: f64| if random.bool() { random.f64() * most } else { 0.0 };
        let faults = Faults {
            late: rarely(0.1),
            late_by: Duration::from_millis(1),
            receiver_not_ready: rarely(0.1),
            send_refused: rarely(0.2),
            allocation_refused: rarely(0.1),
            ..Faults::default()
        };
        let mut world = World::new(LocalOptions { seed, mtu, faults, ..LocalOptions::default() });
        let ends = random.usize(2..5);
        for _ in 0..ends {
            let options = QueuePairOptions {
                send_depth: [3, 64, 1024][random.usize(0..3)],
                receive_depth: [4, 64, 1024][random.usize(0..3)],
                rnr_retry: [0, 1, 7][random.usize(0..3)],
                ..QueuePairOptions::default()
            };
            let config = Self::config(&mut random, disaster, mtu);
            world.add_with(config, options);
        }
        let mut sizes = vec![0, 1, mtu / 2, 3 * mtu, 12 * mtu, 30 * mtu];
        sizes.extend((mtu - 80..=mtu).step_by(4));
        Self {
            world,
            random,
            seed,
            disaster,
            lives: (0..ends).map(|end| Life { end, number: 0 }).collect(),
            dead: BTreeSet::new(),
            broken: BTreeSet::new(),
            sent: Vec::new(),
            posted: Vec::new(),
            sizes,
        }
    }

    fn config(random: &mut Rng, disaster: Disaster, mtu: usize) -> Config {
        // Releases up to 1.13 can't tell the packets of two lives apart.
        let first = if disaster == Disaster::Restart { 3 } else { 0 };
        let release = Release::ALL[random.usize(first..Release::ALL.len())];
        Config {
            profile: Profile::of(release).announcing_only(Extras::CONNID_HEADER),
            max_medium: [0, 4 * mtu as u64, 65_536][random.usize(0..3)],
            cts_window: [1, 3, 32][random.usize(0..3)],
            min_multi_receive: random.u64(1..300),
            min_receive_buffers: [1, 4, 64][random.usize(0..3)],
            hash_seed: random.u64(..),
            first_msg_id: u32::MAX - 20,
            ..Config::default()
        }
    }

    fn pair(a: Life, b: Life) -> (Life, Life) {
        (a.min(b), a.max(b))
    }

    /// Nothing has happened that could lose messages between the two.
    fn sound(&self, a: Life, b: Life) -> bool {
        let lives = |life: Life| self.lives[life.end] == life && !self.dead.contains(&life);
        lives(a) && lives(b) && !self.broken.contains(&Self::pair(a, b))
    }

    fn life_of(&mut self, at: usize, peer: PeerId) -> Option<Life> {
        let address = self.world.endpoint(at).peer_address(peer).unwrap();
        self.lives
            .iter()
            .copied()
            .find(|life| self.world.ends[life.end].endpoint.address() == address)
    }

    fn tag(&mut self) -> Option<u64> {
        self.random.bool().then(|| self.random.u64(0..4) | 0xabcd << 32)
    }

    fn size(&mut self) -> usize {
        self.sizes[self.random.usize(0..self.sizes.len())]
    }

    fn send(&mut self) {
        let ends = self.lives.len();
        let (from, to) = (self.random.usize(0..ends), self.random.usize(0..ends));
        let (tag, context) = (self.tag(), self.sent.len() as u64);
        let injected = self.random.u8(..) < 50;
        let limit = self.world.endpoint(from).inject_limit();
        let size = if injected { self.random.usize(0..=limit) } else { self.size() };
        let peer = self.world.peer(from, to);
        let bytes = pattern(size, context);
        let cq_data = Some(context);
        let endpoint = self.world.endpoint(from);
        if injected {
            // The bytes may be reused at once; a queue or memory that is short refuses it.
            let message =
                Message { peer, tag, cq_data, level: Level::Transmit, buffer: &bytes[..], context };
            if endpoint.inject(message).is_err() {
                return;
            }
        } else {
            endpoint
                .send(Message {
                    peer,
                    tag,
                    cq_data,
                    level: Level::Transmit,
                    buffer: bytes,
                    context,
                })
                .unwrap();
        }
        let (from, to) = (self.lives[from], self.lives[to]);
        self.sent.push(Sent {
            from,
            to,
            tag,
            size,
            injected,
            ended: injected,
            went_to: None,
            came_from: None,
        });
    }

    fn receive(&mut self) {
        let ends = self.lives.len();
        let at = self.random.usize(0..ends);
        let from = self.random.usize(0..ends);
        let source = self.random.bool().then(|| self.world.peer(at, from));
        let ignore = [0, 1, u64::MAX][self.random.usize(0..3)];
        let tag = self.tag().map(|tag| (tag, ignore));
        let many = tag.is_none() && self.random.u8(..) < 60;
        let capacity = self.size() * if many { 4 } else { 1 };
        self.post(at, source, tag, capacity, many);
    }

    fn post(
        &mut self,
        at: usize,
        source: Option<PeerId>,
        tag: Option<(u64, u64)>,
        capacity: usize,
        many: bool,
    ) {
        let context = self.posted.len() as u64;
        let endpoint = self.world.endpoint(at);
        let buffer = vec![0; capacity];
        let id = match tag {
            _ if many => endpoint.receive_many(source, buffer, context),
            None => endpoint.receive(Accept::Untagged { source }, buffer, context),
            Some((tag, ignore)) => {
                endpoint.receive(Accept::Tagged { source, tag, ignore }, buffer, context)
            }
        };
        self.posted.push(Posted {
            at: self.lives[at],
            id: id.unwrap(),
            source,
            tag,
            capacity,
            many,
            taken: 0,
            rest: 0,
            cancelled: false,
            ended: false,
        });
    }

    /// Tells whether the receive still waited.
    fn cancel(&mut self, index: usize) -> bool {
        let Posted { at, id, ended, .. } = self.posted[index];
        let waited = !ended && self.lives[at.end] == at && self.world.endpoint(at.end).cancel(id);
        self.posted[index].cancelled |= waited;
        waited
    }

    fn cancel_one(&mut self) {
        if !self.posted.is_empty() {
            let index = self.random.usize(0..self.posted.len());
            self.cancel(index);
        }
    }

    /// Gives those that still waited.
    fn cancel_all(&mut self) -> BTreeSet<usize> {
        let waited = (0..self.posted.len()).filter(|index| self.cancel(*index)).collect();
        self.collect();
        waited
    }

    fn strike(&mut self) {
        let end = self.random.usize(0..self.lives.len());
        let life = self.lives[end];
        match self.disaster {
            Disaster::None => {}
            Disaster::Restart => {
                self.collect();
                let mtu = self.sizes[2] * 2;
                let config = Self::config(&mut self.random, self.disaster, mtu);
                self.world.restart(end, 0x2000_0000 + self.sent.len() as u32, config);
                self.lives[end].number += 1;
            }
            Disaster::Kill => {
                let target = place(&self.world.ends[end]);
                self.world.network.kill(target).unwrap();
                self.dead.insert(life);
            }
            Disaster::Removal => {
                let other = self.lives[self.random.usize(0..self.lives.len())];
                self.broken.insert(Self::pair(life, other));
                let peer = self.world.peer(end, other.end);
                self.world.endpoint(end).remove_peer(peer);
            }
        }
    }

    fn collect(&mut self) {
        for end in 0..self.lives.len() {
            let sends: Vec<_> = self.world.take_sends(end);
            sends.into_iter().for_each(|sent| self.send_ended(end, sent));
            let receives: Vec<_> = self.world.take_receives(end);
            receives.into_iter().for_each(|received| self.receive_ended(end, received));
            for (context, buffer) in self.world.ends[end].released.drain(..) {
                let posted = &mut self.posted[context as usize];
                assert!(posted.many && !posted.ended, "{context} released: {posted:?}");
                (posted.ended, posted.rest) = (true, buffer.len());
            }
        }
    }

    fn send_ended(&mut self, end: usize, completion: SendCompletion<Vec<u8>>) {
        let SendCompletion { context, peer, tag, length, buffer, result, .. } = completion;
        let Some(buffer) = buffer else {
            // Injected messages tell of failures alone.
            assert!(result.is_err());
            let to = self.life_of(end, peer);
            assert!(to.is_none_or(|to| !self.sound(self.lives[end], to)), "{result:?}");
            return;
        };
        let sent = &mut self.sent[context as usize];
        assert!(!sent.ended && !sent.injected, "send {context} ended twice");
        sent.ended = true;
        let Sent { from, to, size, .. } = *sent;
        assert_eq!((from, tag, length), (self.lives[end], sent.tag, size as u64));
        assert!(buffer == pattern(size, context), "send {context} changed its buffer");
        assert!(result == Ok(()) || !self.sound(from, to), "send {context}: {result:?}");
    }

    fn receive_ended(&mut self, end: usize, completion: ReceiveCompletion<Vec<u8>>) {
        let ReceiveCompletion { context, peer, length, cq_data, buffer, result, tag, .. } =
            completion;
        let index = context as usize;
        let posted = &mut self.posted[index];
        assert_eq!(posted.at, self.lives[end]);
        if posted.many && result != Err(OperationError::Cancelled) {
            posted.taken += buffer.len();
        } else {
            assert!(!posted.ended, "receive {context} ended twice");
            posted.ended = true;
        }
        if result == Err(OperationError::Cancelled) {
            assert!(posted.cancelled && peer.is_none() && buffer.iter().all(|byte| *byte == 0));
            posted.rest = buffer.len();
            return;
        }
        assert!(posted.many || buffer.len() == posted.capacity);
        let message = cq_data.unwrap() as usize;
        let sent = &mut self.sent[message];
        sent.came_from = peer;
        assert!(posted.accepts(sent), "receive {context} {posted:?} got {message} {sent:?}");
        assert_eq!((tag, sent.went_to), (sent.tag.unwrap_or(0), None), "message {message}");
        sent.went_to = Some(index);
        let Sent { from, to, size, .. } = *sent;
        let fitting = size.min(buffer.len());
        let expected = match size > fitting {
            true => Err(OperationError::Truncated {
                length: size as u64,
                capacity: buffer.len() as u64,
            }),
            false => Ok(()),
        };
        if result == expected {
            assert_eq!(length, fitting as u64);
            assert!(buffer[..fitting] == pattern(size, message as u64)[..fitting], "{message}");
        } else {
            assert!(!self.sound(from, to), "receive {context} of {message}: {result:?}");
        }
        assert!(buffer[fitting..].iter().all(|byte| *byte == 0), "written beyond the message");
    }

    fn run(mut self) {
        let strike_at = self.random.usize(0..OPERATIONS);
        for operation in 0..OPERATIONS {
            match self.random.u8(0..20) {
                0..10 => self.send(),
                10..19 => self.receive(),
                _ => self.cancel_one(),
            }
            if operation == strike_at {
                self.strike();
            }
            for _ in 0..self.random.usize(0..12) {
                self.world.step();
            }
            self.collect();
        }
        self.world.drive();
        self.collect();
        let waited = self.cancel_all();
        self.assert_posted_order(&waited);
        self.receive_the_rest();
        self.part();
        self.assert_all_ended();
        self.assert_sending_order();
    }

    /// Receives take whatever is unexpected still.
    fn receive_the_rest(&mut self) {
        let (first, longest) = (self.posted.len(), self.sizes[5]);
        for message in 0..self.sent.len() {
            let Sent { to, tag, went_to: None, .. } = self.sent[message] else { continue };
            if self.lives[to.end] == to {
                self.post(to.end, None, tag.map(|tag| (tag, u64::MAX)), longest, false);
            }
        }
        self.world.drive();
        self.collect();
        for (id, message) in self.sent.iter().enumerate() {
            let arrived = message.went_to.is_some() || !self.sound(message.from, message.to);
            assert!(arrived, "message {id} was lost: {message:?}");
        }
        assert!(self.posted[first..].iter().all(|posted| !posted.many));
        self.cancel_all();
    }

    /// Who lost somebody forgets him, so that what waits for him ends.
    fn part(&mut self) {
        for at in self.lives.clone() {
            for of in self.lives.clone() {
                if !self.sound(at, of) {
                    let peer = self.world.peer(at.end, of.end);
                    self.world.endpoint(at.end).remove_peer(peer);
                }
            }
        }
        // Endpoints that know a peer's former life hear of the new one.
        if self.disaster == Disaster::Restart {
            for at in self.lives.clone() {
                for of in self.lives.clone() {
                    self.world.peer(at.end, of.end);
                }
            }
        }
        self.world.drive();
        self.collect();
    }

    fn assert_all_ended(&mut self) {
        for (id, sent) in self.sent.iter().enumerate() {
            assert!(sent.ended || self.lives[sent.from.end] != sent.from, "send {id}: {sent:?}");
        }
        for (id, posted) in self.posted.iter().enumerate() {
            if self.lives[posted.at.end] == posted.at {
                assert!(posted.ended, "receive {id}: {posted:?}");
                let parts = posted.taken + posted.rest;
                assert!(!posted.many || parts == posted.capacity, "receive {id}: {posted:?}");
            }
        }
        for end in 0..self.lives.len() {
            let held = self.world.endpoint(end).packets_held();
            assert!(self.world.endpoint(end).is_quiet() && held.sending == 0, "{held:?}");
            if self.disaster == Disaster::None {
                assert_eq!(held.held, 0, "end {end}");
                assert_eq!(self.world.endpoint(end).statistics().dropped, 0, "end {end}");
            }
        }
    }

    /// No message passed by a receive that waited to the end to one posted later.
    fn assert_posted_order(&self, waited: &BTreeSet<usize>) {
        for message in &self.sent {
            let Some(later) = message.went_to else { continue };
            for (id, earlier) in self.posted[..later].iter().enumerate() {
                let passed = waited.contains(&id) && earlier.accepts(message);
                assert!(!passed, "{message:?} passed by {id}: {earlier:?}");
            }
        }
    }

    /// Of two messages of one sender and two receives that take both, the first went to the first.
    fn assert_sending_order(&self) {
        for (second, b) in self.sent.iter().enumerate() {
            let Some(receive_b) = b.went_to else { continue };
            if self.broken.contains(&Self::pair(b.from, b.to)) {
                continue;
            }
            for (first, a) in self.sent[..second].iter().enumerate() {
                let Some(receive_a) = a.went_to else { continue };
                let comparable = a.from == b.from
                    && self.posted[receive_a].accepts(b)
                    && self.posted[receive_b].accepts(a);
                assert!(
                    !comparable || receive_a <= receive_b,
                    "messages {first} and {second} went to {receive_a} and {receive_b}"
                );
            }
        }
    }
}

// conformance: A7 A9 A129
#[test]
fn whatever_happens_every_operation_ends_once_and_no_byte_is_lost() {
    let chosen = std::env::var("EFA_RDM_SEED").ok().and_then(|seed| seed.parse().ok());
    match chosen {
        Some(seed) => Story::new(seed).run(),
        None => (0..SEEDS).for_each(|seed| Story::new(seed).run()),
    }
}

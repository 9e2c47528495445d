//! Random operations between endpoints under faults, checked against a model.
//!
//! The model identifies each message by the 64 bits of CQ data that travel with it, and requires: every
//! operation ends exactly once and returns its buffer; between endpoints that stay alive, every message
//! arrives once with all its bytes; messages and receives match in the order of sending and of posting.
//! The memory of each write and read is compared, and atomics add to a counter of the target.
//!
//! Each operation is drawn from the seed and its number alone, so a failing run still fails when other
//! operations are left out: `cargo xtask soak` does that to find the few that matter. A failing run
//! prints its seed; `EFA_RDM_SEED=<seed>` runs that one alone.

#[path = "random/checks.rs"]
mod checks;
#[path = "random/claims.rs"]
mod claims;
#[path = "random/failures.rs"]
mod failures;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use efa_device::{QueuePairOptions, Rdma, Region};
use efa_handshake::{Extras, Release};
use efa_rdm::{
    Accept, Atomic, AtomicCompletion, AtomicOp, ClaimId, Config, Datatype, Level, Message,
    Operands, OperationError, PeerId, Read, ReceiveCompletion, ReceiveId, Remote, RemoteWrite,
    RmaCompletion, RmaIov, RmaKind, SendCompletion, Write,
};
use efa_sim::SoftRegion;
use efa_sim::local::{Faults, LocalOptions};
use fastrand::Rng;

use self::failures::is_given_up;
use crate::buffer::{Buffer, expose};
use crate::world::{Driving, Net, QUIET, pattern, place};

const SEEDS: u64 = 150;
/// Operations of a run.
pub(crate) const OPERATIONS: usize = 120;

type World = Net<Buffer>;

/// An endpoint between two restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Incarnation {
    end: usize,
    number: u32,
}

/// A fault of an endpoint in the middle of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disaster {
    None,
    Restart,
    Kill,
    Removal,
}

#[derive(Debug)]
struct Sent {
    from: Incarnation,
    to: Incarnation,
    tag: Option<u64>,
    size: usize,
    injected: bool,
    ended: bool,
    /// It failed alone: the peer lacks a feature that it needs, or its packet failed.
    lacking: bool,
    /// It was claimed, so that receives posted later may get messages before it; or discarded after that.
    claimed: bool,
    discarded: bool,
    /// The receive that it matched, and the peer that the receiver reported as its sender.
    went_to: Option<usize>,
    came_from: Option<PeerId>,
}

#[derive(Debug)]
struct Posted {
    at: Incarnation,
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

/// A write, read or atomic.
#[derive(Debug)]
struct OneSided {
    from: Incarnation,
    to: Incarnation,
    what: What,
    size: usize,
    /// Whether the write has CQ data, which its target reports.
    cq_data: bool,
    /// The target's memory.
    memory: SoftRegion,
    ended: Option<Result<(), OperationError>>,
    reported: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Write,
    Read,
    /// It adds one to the counter of the target.
    Count,
}

/// A run of random operations.
pub(crate) struct Run {
    world: World,
    random: Rng,
    seed: u64,
    disaster: Disaster,
    incarnations: Vec<Incarnation>,
    dead: BTreeSet<Incarnation>,
    /// Pairs of which one forgot the other.
    broken: BTreeSet<(Incarnation, Incarnation)>,
    sent: Vec<Sent>,
    posted: Vec<Posted>,
    one_sided: Vec<OneSided>,
    /// A counter of each end.
    counters: Vec<SoftRegion>,
    sizes: Vec<usize>,
    /// Whether the device fails packets of it for good.
    failing: bool,
    /// Claims that were not received yet, and the messages.
    claims: Vec<(Incarnation, ClaimId, usize)>,
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() && !QUIET.load(Ordering::Relaxed) {
            eprintln!("to reproduce: EFA_RDM_SEED={}", self.seed);
        }
    }
}

impl Run {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let disaster = [Disaster::None, Disaster::Restart, Disaster::Kill, Disaster::Removal]
            [seed as usize % 4];
        let failing = seed % 3 == 2;
        let mtu = [256, 1_000, 8_928][random.usize(0..3)];
        let mut rarely = |most: f64| if random.bool() { random.f64() * most } else { 0.0 };
        let faults = Faults::default().with(|faults| {
            faults.late = rarely(0.1);
            faults.late_by = Duration::from_millis(1);
            faults.receiver_not_ready = rarely(0.1);
            faults.send_refused = rarely(0.2);
            faults.allocation_refused = rarely(0.1);
            faults.registration_refused = rarely(0.5);
        });
        let rdma = Rdma {
            read: random.u8(..) < 200,
            write: random.u8(..) < 150,
            unsolicited_write_receive: random.bool(),
        };
        let max_rdma_size = [700, 5_000, 1 << 20][random.usize(0..3)];
        let options = LocalOptions::default().with(|options| {
            options.seed = seed;
            options.mtu = mtu;
            options.faults = faults;
            options.rdma = rdma;
            options.max_rdma_size = max_rdma_size;
        });
        let mut world = World::new(options);
        let ends = random.usize(2..5);
        for _ in 0..ends {
            let options = QueuePairOptions::default().with(|options| {
                options.send_depth = [3, 64, 1024][random.usize(0..3)];
                options.receive_depth = [4, 64, 1024][random.usize(0..3)];
                options.rnr_retry = [0, 1, 7][random.usize(0..3)];
            });
            let config = Self::config(&mut random, (disaster, failing), mtu);
            let end = world.add_with(config, options);
            world.ends[end].driving =
                [Driving::Progress, Driving::Poll, Driving::Both, Driving::Sparing]
                    [random.usize(0..4)];
        }
        let counters = (0..ends).map(|end| expose(&world, end, vec![0; 8])).collect();
        let mut sizes = vec![0, 1, mtu / 2, 3 * mtu, 12 * mtu, 30 * mtu];
        sizes.extend((mtu - 80..=mtu).step_by(4));
        Self {
            world,
            random,
            seed,
            disaster,
            incarnations: (0..ends).map(|end| Incarnation { end, number: 0 }).collect(),
            dead: BTreeSet::new(),
            broken: BTreeSet::new(),
            sent: Vec::new(),
            posted: Vec::new(),
            one_sided: Vec::new(),
            counters,
            sizes,
            claims: Vec::new(),
            failing,
        }
    }

    fn config(random: &mut Rng, (disaster, failing): (Disaster, bool), mtu: usize) -> Config {
        // Releases up to 1.13 cannot distinguish the packets of two incarnations.
        let first = if disaster == Disaster::Restart { 3 } else { 0 };
        // Operations that the other side gives up end by READ_NACK or PEER_ERROR.
        let first = if failing { 6 } else { first };
        let release = Release::ALL[random.usize(first..Release::ALL.len())];
        Config::as_release(release).with(|config| {
            config.min_read =
                Some([0, 1, 2 * mtu as u64, 20 * mtu as u64, u64::MAX][random.usize(0..5)]);
            config.min_read_write = [0, 2 * mtu as u64, u64::MAX][random.usize(0..3)];
            let ours = failing || (release >= Release::V1_14 && random.bool());
            config.profile.extras.set(Extras::PEER_ERROR_20, ours);
            config.runt_size = [0, 1, 3 * mtu as u64][random.usize(0..3)];
            config.rdma_segment = [333, 1 << 30][random.usize(0..2)];
            config.old_peer_window = [1, 2, 8192][random.usize(0..3)];
            config.bounce_size = [100, 1 << 16][random.usize(0..2)];
            config.max_rdma = [1, 3, 64][random.usize(0..3)];
            config.max_medium = [0, 4 * mtu as u64, 65_536][random.usize(0..3)];
            config.cts_window = [1, 3, 32][random.usize(0..3)];
            config.min_multi_receive = random.u64(1..300);
            config.min_receive_buffers = [1, 4, 64][random.usize(0..3)];
            config.hash_seed = random.u64(..).into();
            config.first_msg_id = u32::MAX - 20;
        })
    }

    fn pair(a: Incarnation, b: Incarnation) -> (Incarnation, Incarnation) {
        (a.min(b), a.max(b))
    }

    /// Nothing has happened that could lose messages between the two.
    fn sound(&self, a: Incarnation, b: Incarnation) -> bool {
        let alive = |of: Incarnation| self.incarnations[of.end] == of && !self.dead.contains(&of);
        alive(a) && alive(b) && !self.broken.contains(&Self::pair(a, b))
    }

    /// Whether `got` mixes bytes of messages that are indistinguishable from `message`: of the same tag and
    /// size, between endpoints of which one removed the other, so that late segments are taken for new ones.
    fn is_mixed(&self, message: usize, got: &[u8]) -> bool {
        let Sent { from, to, tag, size, .. } = self.sent[message];
        let alike = |other: &(usize, &Sent)| {
            let sent = other.1;
            (sent.from, sent.to, sent.tag, sent.size) == (from, to, tag, size)
        };
        let sent = self.sent.iter().enumerate().filter(alike);
        let all: Vec<_> = sent.map(|(number, _)| pattern(size, number as u64)).collect();
        self.broken.contains(&Self::pair(from, to))
            && (0..got.len()).all(|at| all.iter().any(|pattern| pattern[at] == got[at]))
    }

    fn incarnation_of(&mut self, at: usize, peer: PeerId) -> Option<Incarnation> {
        let address = self.world.endpoint(at).peer_address(peer).unwrap();
        self.incarnations
            .iter()
            .copied()
            .find(|incarnation| self.world.ends[incarnation.end].endpoint.address() == address)
    }

    fn tag(&mut self) -> Option<u64> {
        self.random.bool().then(|| self.random.u64(0..4) | 0xabcd << 32)
    }

    fn level(&mut self) -> Level {
        match self.random.u8(..) {
            0..60 => Level::Delivery,
            60..120 => Level::Inject,
            _ => Level::Transmit,
        }
    }

    fn size(&mut self) -> usize {
        self.sizes[self.random.usize(0..self.sizes.len())]
    }

    fn send(&mut self) {
        let ends = self.incarnations.len();
        let (from, to) = (self.random.usize(0..ends), self.random.usize(0..ends));
        let (tag, context) = (self.tag(), self.sent.len() as u64);
        let injected = self.random.u8(..) < 50;
        let limit = self.world.endpoint(from).inject_limit();
        let size = if injected { self.random.usize(0..=limit) } else { self.size() };
        let peer = self.world.peer(from, to);
        let bytes = pattern(size, context);
        let level = self.level();
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
                .send(Message { peer, tag, cq_data, level, buffer: bytes.into(), context })
                .unwrap();
        }
        let (from, to) = (self.incarnations[from], self.incarnations[to]);
        self.sent.push(Sent {
            from,
            to,
            tag,
            size,
            injected,
            ended: injected,
            lacking: false,
            claimed: false,
            discarded: false,
            went_to: None,
            came_from: None,
        });
    }

    fn receive(&mut self) {
        let ends = self.incarnations.len();
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
        let buffer = vec![0; capacity].into();
        let id = match tag {
            _ if many => endpoint.receive_many(source, buffer, context),
            None => endpoint.receive(Accept::Untagged { source }, buffer, context),
            Some((tag, ignore)) => {
                endpoint.receive(Accept::Tagged { source, tag, ignore }, buffer, context)
            }
        };
        self.posted.push(Posted {
            at: self.incarnations[at],
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

    fn write_or_read(&mut self) {
        let ends = self.incarnations.len();
        let (from, to) = (self.random.usize(0..ends), self.random.usize(0..ends));
        let (context, size) = (self.one_sided.len() as u64, self.size());
        let what = if self.random.bool() { What::Write } else { What::Read };
        let bytes = match what {
            What::Write => vec![0; size],
            _ => pattern(size, context),
        };
        let memory = expose(&self.world, to, bytes);
        let remote = self.pieces(&memory);
        let (peer, cq_data) = (self.world.peer(from, to), self.random.bool());
        let level = self.level();
        let endpoint = self.world.endpoint(from);
        match what {
            What::Write => {
                let buffer = pattern(size, context).into();
                let cq_data = cq_data.then_some(context);
                endpoint.write(Write { peer, remote, buffer, cq_data, level, context }).unwrap();
            }
            _ => {
                let buffer = vec![0; size].into();
                endpoint.read(Read { peer, remote, buffer, context }).unwrap();
            }
        }
        self.started((from, to), what, size, cq_data && what == What::Write, memory);
    }

    /// Memory of a peer in one to four pieces.
    fn pieces(&mut self, memory: &SoftRegion) -> Remote {
        let (address, key) = (memory.remote_address(), memory.remote_key().into());
        let length = memory.length() as u64;
        let mut cuts = vec![0, length];
        for _ in 0..self.random.usize(0..4) {
            cuts.push(self.random.u64(0..=length));
        }
        cuts.sort_unstable();
        let pieces: Vec<_> =
            cuts.windows(2).map(|w| RmaIov::new(address + w[0], w[1] - w[0], key)).collect();
        Remote::new(&pieces).unwrap()
    }

    fn count(&mut self) {
        let ends = self.incarnations.len();
        let (from, to) = (self.random.usize(0..ends), self.random.usize(0..ends));
        let (peer, context) = (self.world.peer(from, to), self.one_sided.len() as u64);
        let memory = self.counters[to].clone();
        let (address, key) = (memory.remote_address(), memory.remote_key().into());
        let one = 1_u64.to_ne_bytes().to_vec();
        let operands = if self.random.bool() {
            Operands::Write { operand: one.into() }
        } else {
            Operands::Fetch { operand: one.into(), fetched: vec![0; 8].into() }
        };
        let level = if self.random.bool() { Level::Delivery } else { Level::Transmit };
        let remote = RmaIov::new(address, 8, key).into();
        let (op, datatype) = (AtomicOp::Sum, Datatype::Uint64);
        let atomic = Atomic { peer, remote, datatype, op, operands, level, context };
        self.world.endpoint(from).atomic(atomic).unwrap();
        self.started((from, to), What::Count, 8, false, memory);
    }

    fn started(
        &mut self,
        (from, to): (usize, usize),
        what: What,
        size: usize,
        cq_data: bool,
        memory: SoftRegion,
    ) {
        let (from, to) = (self.incarnations[from], self.incarnations[to]);
        let (ended, reported) = (None, false);
        self.one_sided.push(OneSided { from, to, what, size, cq_data, memory, ended, reported });
    }

    /// Cancels a receive, and returns whether it was still posted.
    fn cancel(&mut self, index: usize) -> bool {
        let Posted { at, id, ended, .. } = self.posted[index];
        let waited =
            !ended && self.incarnations[at.end] == at && self.world.endpoint(at.end).cancel(id);
        self.posted[index].cancelled |= waited;
        waited
    }

    fn cancel_one(&mut self) {
        if !self.posted.is_empty() {
            let index = self.random.usize(0..self.posted.len());
            self.cancel(index);
        }
    }

    /// Cancels all receives, and returns those that were still posted.
    fn cancel_all(&mut self) -> BTreeSet<usize> {
        let waited = (0..self.posted.len()).filter(|index| self.cancel(*index)).collect();
        self.collect();
        waited
    }

    fn strike(&mut self) {
        let end = self.random.usize(0..self.incarnations.len());
        let incarnation = self.incarnations[end];
        match self.disaster {
            Disaster::None => {}
            Disaster::Restart => {
                self.world.ends[end].collect();
                self.collect();
                let mtu = self.sizes[2] * 2;
                let config = Self::config(&mut self.random, (self.disaster, self.failing), mtu);
                self.world.restart(end, 0x2000_0000 + self.sent.len() as u32, config);
                self.incarnations[end].number += 1;
                self.mark_confusable(incarnation, self.incarnations[end]);
            }
            Disaster::Kill => {
                let target = place(&self.world.ends[end]);
                self.world.network.kill(target).unwrap();
                self.dead.insert(incarnation);
            }
            Disaster::Removal => {
                let other = self.incarnations[self.random.usize(0..self.incarnations.len())];
                self.broken.insert(Self::pair(incarnation, other));
                let peer = self.world.peer(end, other.end);
                self.world.endpoint(end).remove_peer(peer);
            }
        }
    }

    /// Excludes pairs that a late request of the old incarnation may confuse: a peer that never knew the old
    /// incarnation takes it for a successor of the new one.
    fn mark_confusable(&mut self, old: Incarnation, new: Incarnation) {
        let messages = self.sent.iter().filter(|of| of.from == old && (of.injected || !of.ended));
        let others = self.one_sided.iter().filter(|of| of.from == old && of.ended.is_none());
        let targets = messages.map(|of| of.to).chain(others.map(|of| of.to));
        let confusable: Vec<Incarnation> = targets.collect();
        for target in confusable {
            let now = self.incarnations[target.end];
            self.broken.insert(Self::pair(new, now));
        }
    }

    fn collect(&mut self) {
        self.note_failures();
        for end in 0..self.incarnations.len() {
            let sends: Vec<_> = self.world.ends[end].sends.drain(..).collect();
            sends.into_iter().for_each(|sent| self.send_ended(end, sent));
            let receives: Vec<_> = self.world.ends[end].receives.drain(..).collect();
            receives.into_iter().for_each(|received| self.receive_ended(end, received));
            for (context, buffer) in self.world.ends[end].released.drain(..) {
                let posted = &mut self.posted[context as usize];
                assert!(posted.many && !posted.ended, "{context} released: {posted:?}");
                (posted.ended, posted.rest) = (true, buffer.bytes.len());
            }
            let ended: Vec<_> = self.world.ends[end].rma.drain(..).collect();
            ended.into_iter().for_each(|rma| self.rma_ended(end, rma));
            let ended: Vec<_> = self.world.ends[end].atomics.drain(..).collect();
            ended.into_iter().for_each(|atomic| self.atomic_ended(end, atomic));
            let writes: Vec<_> = self.world.ends[end].remote_writes.drain(..).collect();
            writes.into_iter().for_each(|write| self.was_written(end, write));
        }
    }

    fn one_sided_ended(&mut self, end: usize, context: u64, result: Result<(), OperationError>) {
        let operation = &mut self.one_sided[context as usize];
        assert_eq!(operation.ended, None, "{context} ended twice: {operation:?}");
        assert_eq!(operation.from, self.incarnations[end]);
        operation.ended = Some(result);
        let OneSided { from, to, .. } = *operation;
        let fine =
            result.is_ok() || is_lacking(result) || is_given_up(result) || !self.sound(from, to);
        assert!(fine, "{context}: {result:?}");
    }

    fn rma_ended(&mut self, end: usize, completion: RmaCompletion<Buffer>) {
        let RmaCompletion { kind, context, length, buffer, result, .. } = completion;
        self.one_sided_ended(end, context, result);
        let OneSided { what, size, .. } = self.one_sided[context as usize];
        let kind_of = if what == What::Write { RmaKind::Write } else { RmaKind::Read };
        assert_eq!((kind, buffer.bytes.len()), (kind_of, size));
        if result.is_ok() {
            assert_eq!(length, size as u64);
            assert!(buffer.bytes == pattern(size, context), "{context} has other bytes");
        }
    }

    fn atomic_ended(&mut self, end: usize, completion: AtomicCompletion<Buffer>) {
        let AtomicCompletion { context, length, operand, result, .. } = completion;
        self.one_sided_ended(end, context, result);
        assert_eq!((length, operand.bytes), (8, 1_u64.to_ne_bytes().to_vec()));
    }

    fn was_written(&mut self, end: usize, write: RemoteWrite) {
        let context = write.cq_data as usize;
        let operation = &mut self.one_sided[context];
        assert!(
            operation.cq_data && !operation.reported,
            "{context} reported twice: {operation:?}"
        );
        operation.reported = true;
        assert_eq!((operation.to.end, operation.size as u64), (end, write.length));
        let mut bytes = vec![0; operation.size];
        operation.memory.read(0, &mut bytes);
        assert!(
            bytes == pattern(operation.size, write.cq_data),
            "{context} was reported too early"
        );
    }

    fn send_ended(&mut self, end: usize, completion: SendCompletion<Buffer>) {
        let SendCompletion { context, peer, tag, length, buffer, result, .. } = completion;
        let Some(buffer) = buffer else {
            // Injected messages report failures only.
            assert!(result.is_err());
            let to = self.incarnation_of(end, peer);
            assert!(
                is_given_up(result) || to.is_none_or(|to| !self.sound(self.incarnations[end], to)),
                "{result:?}"
            );
            return;
        };
        let sent = &mut self.sent[context as usize];
        assert!(!sent.ended && !sent.injected, "send {context} ended twice");
        sent.ended = true;
        let Sent { from, to, size, .. } = *sent;
        assert_eq!((from, tag, length), (self.incarnations[end], sent.tag, size as u64));
        assert!(buffer.bytes == pattern(size, context), "send {context} changed its buffer");
        sent.lacking |= is_lacking(result) || is_given_up(result);
        let fine =
            result.is_ok() || is_lacking(result) || is_given_up(result) || !self.sound(from, to);
        assert!(fine, "send {context}: {result:?}");
    }

    fn receive_ended(&mut self, end: usize, completion: ReceiveCompletion<Buffer>) {
        let ReceiveCompletion { context, peer, length, cq_data, buffer, result, tag, .. } =
            completion;
        let buffer = buffer.bytes;
        let index = context as usize;
        let posted = &mut self.posted[index];
        assert_eq!(posted.at, self.incarnations[end]);
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
        let again = sent.went_to.is_some();
        assert_eq!(tag, sent.tag.unwrap_or(0), "message {message}");
        sent.went_to = Some(index);
        let Sent { from, to, size, .. } = *sent;
        // A peer that was removed and returns starts at the first message id again, so late segments of
        // before cannot be distinguished from new ones.
        assert!(!again || self.broken.contains(&Self::pair(from, to)), "message {message} twice");
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
            let got = &buffer[..fitting];
            assert!(
                *got == pattern(size, message as u64)[..fitting] || self.is_mixed(message, got),
                "{message}"
            );
        } else {
            assert!(
                is_given_up(result) || !self.sound(from, to),
                "receive {context} of {message}: {result:?}"
            );
        }
        assert!(buffer[fitting..].iter().all(|byte| *byte == 0), "written beyond the message");
    }

    /// Runs the operations for which `wanted` returns true.
    pub(crate) fn run(mut self, wanted: impl Fn(usize) -> bool) {
        let strike_at = self.random.usize(0..OPERATIONS);
        for operation in 0..OPERATIONS {
            if !wanted(operation) {
                continue;
            }
            let own = (operation as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.random = Rng::with_seed(self.seed ^ own);
            match self.random.u8(0..36) {
                0..10 => self.send(),
                10..19 => self.receive(),
                19..24 => self.write_or_read(),
                24..27 => self.count(),
                27..29 => self.claim(),
                29..31 => self.end_claim(),
                31..34 => self.fail_packets(),
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
        while !self.claims.is_empty() {
            self.end_claim();
        }
        self.world.drive();
        self.collect();
        let waited = self.cancel_all();
        self.assert_posted_order(&waited);
        self.receive_the_rest();
        self.remove_lost_peers();
        self.assert_all_ended();
        self.assert_sending_order();
    }

    /// Posts receives for all messages that are still unexpected.
    fn receive_the_rest(&mut self) {
        let (first, longest) = (self.posted.len(), self.sizes[5]);
        for message in 0..self.sent.len() {
            let Sent { from, to, tag, went_to, .. } = self.sent[message];
            // The rest of a message whose sender was removed half-way may use a receive as well.
            let may_come = (went_to.is_none() && !self.sent[message].discarded)
                || self.broken.contains(&Self::pair(from, to));
            if may_come && self.incarnations[to.end] == to {
                self.post(to.end, None, tag.map(|tag| (tag, u64::MAX)), longest, false);
            }
        }
        self.world.drive();
        self.collect();
        for (id, message) in self.sent.iter().enumerate() {
            let arrived = message.went_to.is_some()
                || message.discarded
                || (message.injected && self.failing)
                || message.lacking
                || !self.sound(message.from, message.to);
            assert!(arrived, "message {id} was lost: {message:?}");
        }
        assert!(self.posted[first..].iter().all(|posted| !posted.many));
        self.cancel_all();
    }

    /// Removes lost peers, so that operations that wait for them end.
    fn remove_lost_peers(&mut self) {
        for at in self.incarnations.clone() {
            for of in self.incarnations.clone() {
                if !self.sound(at, of) {
                    let peer = self.world.peer(at.end, of.end);
                    self.world.endpoint(at.end).remove_peer(peer);
                }
            }
        }
        // Endpoints that know the former incarnation of a peer insert the new one.
        if self.disaster == Disaster::Restart {
            for at in self.incarnations.clone() {
                for of in self.incarnations.clone() {
                    self.world.peer(at.end, of.end);
                }
            }
        }
        self.world.drive();
        self.collect();
    }
}

// conformance: A7 A9 A129 A218
#[test]
fn random_operations_end_once_with_their_bytes() {
    let chosen = std::env::var("EFA_RDM_SEED").ok().and_then(|seed| seed.parse().ok());
    match chosen {
        Some(seed) => Run::new(seed).run(|_| true),
        None => (0..SEEDS).for_each(|seed| Run::new(seed).run(|_| true)),
    }
}

/// Whether the operation failed because the peer lacks a feature.
fn is_lacking(result: Result<(), OperationError>) -> bool {
    matches!(result, Err(OperationError::PeerLacks { .. }))
}

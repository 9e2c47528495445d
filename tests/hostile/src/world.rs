//! An endpoint (the subject), an honest peer and the invariants that hold for any action of a hostile peer.
//!
//! The context of each operation is its index in a table, which records its kind and that it completed
//! once. For operations between the subject and the honest peer it also records the bytes; all of these
//! must succeed.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;

use efa_device::{
    Access, Gid, Qpn, QueuePair, Rdma, Region, RegionRange, RegisterError, TagListLimits, Time,
};
use efa_handshake::{Extras, Release};
use efa_rdm::{
    Accept, Atomic, AtomicOp, Bounds, Completion, Config, Datatype, DropReason, Endpoint, Event,
    Level, Message, Operands, OperationError, Payload, PeerId, Read, ReceiveId, Remote, RmaIov,
    Write,
};

use crate::device::{self, Mem, Port, Shared, Wire};
use crate::input::Input;

/// A vector that is registered during its operation if the device accepts that.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    registered_memory: Option<Mem>,
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, registered_memory: None }
    }
}

impl Payload<Mem> for Buffer {
    fn length(&self) -> u64 {
        self.registered_memory.as_ref().map_or(self.bytes.len(), Region::length) as u64
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        match &self.registered_memory {
            Some(region) => assert_eq!(region.read(offset as usize, into), into.len()),
            None => Payload::<Mem>::read(&self.bytes, offset, into),
        }
    }
    fn write(&mut self, offset: u64, from: &[u8]) {
        match &self.registered_memory {
            Some(region) => assert_eq!(region.write(offset as usize, from), from.len()),
            None => Payload::<Mem>::write(&mut self.bytes, offset, from),
        }
    }
    fn split_to(&mut self, at: u64) -> Self {
        Payload::<Mem>::split_to(&mut self.bytes, at).into()
    }
    fn registered(&self) -> Option<RegionRange<Mem>> {
        let region = self.registered_memory.clone()?;
        let length = region.length();
        Some(RegionRange { region, offset: 0, length })
    }
    fn register(&mut self, device: &impl QueuePair<Region = Mem>, access: Access) -> bool {
        match device.register(std::mem::take(&mut self.bytes).into(), access) {
            Ok(region) => self.registered_memory = Some(region),
            Err(RegisterError { memory, .. }) => self.bytes = memory.into(),
        }
        self.registered_memory.is_some()
    }
    fn deregister(&mut self) {
        let Some(region) = self.registered_memory.take() else { return };
        self.bytes = region.reclaim().map_or_else(|region| region.bytes(), Into::into);
    }
}

/// Bytes that depend on their offset and on the operation; none of them is [`SECRET`]. At most 9000.
pub(crate) fn pattern(length: usize, salt: u64) -> &'static [u8] {
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut random = fastrand::Rng::with_seed(7);
        std::iter::repeat_with(|| random.u8(..64)).take(1 << 16).collect()
    });
    &BYTES[(salt * 97 % 50_000) as usize..][..length]
}

/// Content of memory that no peer may read.
pub(crate) const SECRET: u8 = 0xa5;

/// Limit of the bytes that the subject stores for peers, by its configured bounds.
const KEPT: usize = 8 << 20;

/// Index of an endpoint in [`World::ends`].
pub(crate) const SUBJECT: usize = 0;
pub(crate) const HONEST: usize = 1;

/// Kinds of operations, by what is checked.
#[derive(Clone, Debug)]
enum Kind {
    /// A message, write, read or atomic with the hostile peer: it completes once, with any result.
    WithHostile,
    /// A receive that messages of the hostile peer may match.
    Open(ReceiveId),
    /// A multi-receive buffer, which completes when it is released.
    Many(ReceiveId),
    /// A send between the subject and the honest peer.
    Sent,
    /// The receive for the message with this salt and length.
    Received {
        salt: u64,
        length: usize,
    },
    /// A write, after which the memory is compared, or a read, after which the buffer is.
    Written {
        memory: Mem,
        salt: u64,
    },
    Read {
        salt: u64,
    },
}

#[derive(Debug)]
struct Operation {
    at: usize,
    kind: Kind,
    length: usize,
    ended: bool,
}

/// Memory of the subject, by what peers may do with it.
#[derive(Debug)]
pub(crate) struct Offered {
    pub(crate) open: Mem,
    pub(crate) readable: Mem,
    pub(crate) writable: Mem,
    pub(crate) closed: Mem,
}

/// A tag that no peer sends.
const UNUSED: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// Length of each of them.
pub(crate) const OFFERED: usize = 1500;

/// Both endpoints, the network and the table of operations.
pub(crate) struct World {
    pub(crate) net: Shared,
    pub(crate) ends: [Endpoint<Port, Buffer>; 2],
    /// The ids of the two endpoints at each other.
    names: [PeerId; 2],
    pub(crate) offered: Offered,
    now: Time,
    operations: Vec<Operation>,
    /// Incarnations of the hostile peer that are peers of the subject.
    pub(crate) hostile_peers: Vec<PeerId>,
    /// The queue pairs that they are or were.
    pub(crate) hostile_queue_pairs: BTreeSet<(Gid, Qpn)>,
    /// The subject's bound of unexpected bytes for each of them.
    share: usize,
    dropped: u64,
    /// Memory that is the target of reads; it stays registered to the end.
    read_memory: Vec<Mem>,
    /// Highest completion level between the two endpoints: old releases have no receipts.
    most: Level,
    /// The log of the run, if it is to be printed.
    log: Option<String>,
}

impl World {
    /// The configuration and the device attributes come from the input.
    pub(crate) fn new(input: &mut Input<'_>, log: bool) -> Self {
        Self::with_devices(input, log, |wires, _| wires.map(Port::Plain))
    }

    /// On devices that match tagged messages themselves.
    pub(crate) fn with_tag_lists(input: &mut Input<'_>, log: bool) -> Self {
        Self::with_devices(input, log, |wires, input| {
            let (max_tags, max_ops) = (input.pick(&[4, 1, 2, 16]), input.pick(&[8, 1, 2]));
            let limits = TagListLimits { max_tags, max_ops };
            let seed = input.byte().into();
            wires.map(|wire| Port::listed(wire, limits, seed))
        })
    }

    fn with_devices(
        input: &mut Input<'_>,
        log: bool,
        devices: impl FnOnce([Wire; 2], &mut Input<'_>) -> [Port; 2],
    ) -> Self {
        let kinds = input.byte();
        let rdma = [Rdma::READ_WRITE, Rdma::NONE][usize::from(kinds & 1)];
        let (net, wires) = device::network(rdma, kinds & 2 == 0);
        let config = Self::settings(input);
        let honest = Config::default().with(|it| it.backoff = config.backoff);
        let share = config.bounds.unexpected_per_peer;
        let log = log.then(|| format!("settings: {config:?}\n"));
        let receipts = config.profile.extras.contains(Extras::DELIVERY_COMPLETE);
        let most = if receipts { Level::Delivery } else { Level::Transmit };
        let [subject, other] = devices(wires, input);
        let made = |port, config| Endpoint::new(port, config).expect("the configuration is valid");
        let mut ends = [made(subject, config), made(other, honest)];
        let addresses = [ends[0].address(), ends[1].address()];
        let names = [
            ends[0].insert_peer(addresses[1]).expect("within the limits"),
            ends[1].insert_peer(addresses[0]).expect("within the limits"),
        ];
        let offer = |fill: Vec<u8>, remote_read, remote_write| {
            let access = Access { remote_read, remote_write };
            let region = ends[0].queue_pair().register(fill.into(), access);
            region.expect("the device registers memory")
        };
        let offered = Offered {
            open: offer(pattern(OFFERED, 1).to_vec(), true, true),
            readable: offer(pattern(OFFERED, 2).to_vec(), true, false),
            writable: offer(vec![SECRET; OFFERED], false, true),
            closed: offer(vec![SECRET; OFFERED], false, false),
        };
        Self {
            net,
            ends,
            names,
            offered,
            now: Time::ZERO,
            operations: Vec::new(),
            hostile_peers: Vec::new(),
            hostile_queue_pairs: BTreeSet::new(),
            share,
            dropped: 0,
            read_memory: Vec::new(),
            most,
            log,
        }
    }

    fn settings(input: &mut Input<'_>) -> Config {
        let release = input.pick(&Release::ALL);
        let choice = input.byte();
        let mut base =
            if choice & 1 == 0 { Config::default() } else { Config::as_release(release) };
        base.profile.extras.set(Extras::PEER_ERROR_20, choice & 2 != 0);
        base.with(|config| {
            config.max_medium = input.pick(&[2048, 0, 1 << 16]);
            config.min_read = Some(input.pick(&[4096, 1, 1 << 20]));
            config.min_read_write = input.pick(&[2048, 1, 1 << 20]);
            config.runt_size = input.pick(&[0, 100, 1000]);
            config.rdma_segment = 1000;
            config.bounce_size = 700;
            config.max_rdma = input.pick(&[4, 1]);
            config.cts_window = input.pick(&[4, 1, 32]);
            config.messages_after_handshake = input.one_in(4);
            config.bounds = Bounds::default().with(|bounds| {
                bounds.ahead = input.pick(&[1 << 16, 1 << 20]);
                bounds.unexpected = 1 << 20;
                bounds.unexpected_per_peer = input.pick(&[1 << 16, 1 << 19, 1 << 15, 1 << 19]);
                bounds.requests = input.pick(&[64, 8]);
                bounds.responses = input.pick(&[64, 1000]);
                bounds.discovered = input.pick(&[64, 4]);
            });
            config.max_sends = 1024;
            config.max_receives = 1024;
            config.min_receive_buffers = input.pick(&[8, 1]);
            config.max_receive_buffers = 32;
            config.max_reorder = input.pick(&[256, 16]);
            config.min_multi_receive = 64;
        })
    }

    /// Appends a line to the log, if there is one.
    pub(crate) fn log_line(&mut self, what: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push_str(&what());
            log.push('\n');
        }
    }

    pub(crate) fn log(&self) -> &str {
        self.log.as_deref().unwrap_or_default()
    }

    fn begin(&mut self, at: usize, kind: Kind, length: usize) -> u64 {
        self.operations.push(Operation { at, kind, length, ended: false });
        self.operations.len() as u64 - 1
    }

    /// Removes the last operation from the table if it was refused.
    fn forget_if_refused<E>(&mut self, started: Result<(), E>) {
        if started.is_err() {
            self.operations.pop();
        }
    }

    /// Runs each endpoint once.
    pub(crate) fn step(&mut self) {
        self.now += Duration::from_micros(1);
        for at in [SUBJECT, HONEST] {
            self.ends[at].progress(self.now);
            self.collect(at);
            let kept = self.ends[at].packets_held();
            assert!(kept.unexpected_bytes <= KEPT && kept.held <= KEPT / 256, "{kept:?}");
            assert!(kept.held > 0 || kept.unexpected_bytes == 0, "counted, not kept: {kept:?}");
        }
        let kept = self.ends[SUBJECT].packets_held().unexpected_bytes;
        let most = self.most_unexpected();
        assert!(kept <= most, "{kept} bytes of unexpected messages, {most} are allowed");
    }

    /// The bytes of unexpected messages that the subject may keep: the share of each hostile queue pair,
    /// whatever its incarnations, with the packet that exceeds it; and the messages of the honest peer.
    fn most_unexpected(&self) -> usize {
        let packet = device::MTU + 512;
        let honest = |of: &&Operation| match of.kind {
            Kind::Sent => of.at == HONEST && !of.ended,
            Kind::Received { .. } => of.at == SUBJECT && !of.ended,
            _ => false,
        };
        let under_way = self.operations.iter().filter(honest).map(|of| of.length);
        // The longest message, whose receive is about to be posted, besides those under way.
        let honest: usize = under_way.chain([9000]).map(|length| 2 * length + packet).sum();
        self.hostile_queue_pairs.len() * (self.share + packet) + honest
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.step();
    }

    fn collect(&mut self, at: usize) {
        while let Some(completion) = self.ends[at].poll_completion() {
            self.log_line(|| format!("    {} completes {completion:?}", NAMES[at]));
            self.completed(at, completion);
        }
        while let Some(event) = self.ends[at].poll_event() {
            self.log_line(|| format!("    {} reports {event:?}", NAMES[at]));
            self.check_event(at, &event);
        }
    }

    fn completed(&mut self, at: usize, completion: Completion<Buffer>) {
        match completion {
            Completion::Send(done) => {
                // An injected message reports only failures.
                let Some(buffer) = done.buffer else { return assert!(done.result.is_err()) };
                self.check_result(at, done.context, &done.result, buffer, done.length);
            }
            Completion::Rma(done) => {
                self.check_result(at, done.context, &done.result, done.buffer, done.length);
            }
            Completion::Atomic(done) => {
                let length = done.length;
                self.check_result(at, done.context, &done.result, done.operand, length);
            }
            Completion::Receive(done) => {
                let operation = &mut self.operations[done.context as usize];
                if let Kind::Many(_) = operation.kind {
                    let part = done.buffer.bytes.len();
                    let left = operation.length.checked_sub(part);
                    operation.length = left.expect("the parts fit in the buffer");
                    assert!(done.length <= part as u64);
                    // Parts may complete after the rest was released.
                    let cancelled = done.result == Err(OperationError::Cancelled);
                    assert!(!(cancelled && operation.ended && done.peer.is_none()));
                    operation.ended |= cancelled && done.peer.is_none();
                    return;
                }
                assert!(done.length <= done.buffer.length());
                self.check_result(at, done.context, &done.result, done.buffer, done.length);
            }
            Completion::Released { context, buffer } => {
                let operation = &mut self.operations[context as usize];
                assert!(matches!(operation.kind, Kind::Many(_)) && !operation.ended);
                assert!(buffer.bytes.len() <= operation.length);
                operation.ended = true;
            }
            Completion::RemoteWrite(_) => {}
        }
    }

    fn check_result(
        &mut self,
        at: usize,
        context: u64,
        result: &Result<(), OperationError>,
        buffer: Buffer,
        length: u64,
    ) {
        let operation = &mut self.operations[context as usize];
        assert!(!operation.ended, "operation {context} completed twice: {operation:?}");
        operation.ended = true;
        assert_eq!(operation.at, at);
        assert_eq!(buffer.bytes.len(), operation.length, "the buffer is returned with its length");
        match &operation.kind {
            Kind::WithHostile | Kind::Open(_) | Kind::Many(_) => return,
            Kind::Sent => {}
            Kind::Received { salt, length: sent } => {
                assert_eq!(length, *sent as u64);
                assert!(buffer.bytes == pattern(*sent, *salt), "{operation:?}: wrong bytes");
            }
            Kind::Written { memory, salt } => {
                assert!(memory.bytes() == pattern(operation.length, *salt), "{operation:?}");
            }
            Kind::Read { salt } => {
                assert!(buffer.bytes == pattern(operation.length, *salt), "{operation:?}");
            }
        }
        assert_eq!(*result, Ok(()), "operation with the honest peer failed: {operation:?}");
    }

    fn check_event(&mut self, at: usize, event: &Event) {
        let honest = self.names[at];
        let about = match event {
            Event::PeerDiscovered(peer) => {
                self.hostile_peers.push(*peer);
                Some(*peer)
            }
            Event::PeerRestarted { old, new } => {
                self.hostile_peers.push(*new);
                Some(*old)
            }
            Event::PacketDropped { origin, reason } => {
                self.dropped += u64::from(at == SUBJECT);
                let unknown = matches!(
                    reason,
                    DropReason::Malformed(_)
                        | DropReason::UnknownSender
                        | DropReason::ForgedAddress
                        | DropReason::PeerTableFull
                );
                let peer = origin.peer();
                assert!(peer.is_some() || unknown, "no peer named for {reason:?}");
                peer
            }
            Event::BackPressure { .. } => panic!("unexpected messages reached their limit"),
            Event::TagListBroken(breach) => panic!("a peer disabled the tag list: {breach}"),
            Event::PeerLost { peer, .. }
            | Event::PeerExcluded { peer, .. }
            | Event::AccessRefused { peer, .. }
            | Event::WriteFailed { peer, .. } => Some(*peer),
            _ => None,
        };
        assert_ne!(
            about,
            Some(honest),
            "{} reports a fault of the honest peer: {event:?}",
            NAMES[at]
        );
        let fine = at == SUBJECT || about.is_none();
        assert!(fine, "unexpected event at the honest peer: {event:?}");
    }

    // Actions of the two endpoints.

    /// Waits until the operations between the two endpoints are within the configured limits.
    fn make_room(&mut self) {
        for _ in 0..1000 {
            let honest =
                |kind: &Kind| !matches!(kind, Kind::WithHostile | Kind::Open(_) | Kind::Many(_));
            let mine = self.operations.iter().filter(|of| !of.ended && honest(&of.kind));
            if mine.count() < 8 {
                return;
            }
            self.step();
            let next = self.ends.iter().filter_map(Endpoint::next_timeout).min();
            self.now = next.map_or(self.now, |next| next.max(self.now));
        }
        panic!("operations with the honest peer make no progress");
    }

    /// Sends a message between the subject and the honest peer, in either direction; its receive is posted before or after.
    pub(crate) fn honest_message(&mut self, input: &mut Input<'_>) {
        self.make_room();
        let from = input.below(2);
        let at = 1 - from;
        let length = input.pick(&[8, 0, 300, 700, 1500, 3000, 9000]);
        let level = if input.one_in(3) { self.most } else { Level::Transmit };
        let late = input.one_in(2);
        let salt = self.operations.len() as u64;
        if !late {
            self.honest_receive(at, salt, length);
        }
        let context = self.begin(from, Kind::Sent, length);
        let buffer = pattern(length, salt).to_vec().into();
        let (peer, tag, cq_data) = (self.names[from], Some(salt), Some(salt));
        self.log_line(|| format!("{} sends {length} bytes, tag {salt}, {level:?}", NAMES[from]));
        let message = Message { peer, tag, cq_data, level, buffer, context };
        self.ends[from].send(message).expect("within the limits");
        if late {
            self.step();
            self.honest_receive(at, salt, length);
        }
    }

    fn honest_receive(&mut self, at: usize, salt: u64, length: usize) {
        let context = self.begin(at, Kind::Received { salt, length }, length);
        let accept = Accept::Tagged { source: Some(self.names[at]), tag: salt, ignore: 0 };
        let buffer = vec![0; length].into();
        self.ends[at].receive(accept, buffer, context).expect("within the limits");
    }

    /// Starts a write or read between the subject and the honest peer, in either direction.
    pub(crate) fn honest_access(&mut self, input: &mut Input<'_>) {
        self.make_room();
        let from = input.below(2);
        let length = input.pick(&[8, 300, 700, 1500, 3000]);
        let writes = input.one_in(2);
        let salt = self.operations.len() as u64;
        let access = Access { remote_read: true, remote_write: true };
        let bytes = if writes { vec![0; length] } else { pattern(length, salt).to_vec() };
        let memory = self.ends[1 - from].queue_pair().register(bytes.into(), access);
        let memory = memory.expect("the device registers memory");
        let key = memory.remote_key().into();
        let remote = Remote::from(RmaIov::new(memory.remote_address(), length as u64, key));
        let peer = self.names[from];
        self.log_line(|| format!("{} writes: {writes}, {length} bytes", NAMES[from]));
        if writes {
            let context = self.begin(from, Kind::Written { memory, salt }, length);
            let (buffer, level) = (pattern(length, salt).to_vec().into(), self.most);
            let write = Write { peer, remote, buffer, cq_data: None, level, context };
            self.ends[from].write(write).expect("within the limits");
        } else {
            let context = self.begin(from, Kind::Read { salt }, length);
            let buffer = vec![0; length].into();
            self.ends[from]
                .read(Read { peer, remote, buffer, context })
                .expect("within the limits");
            self.read_memory.push(memory);
        }
    }

    /// An incarnation of the hostile peer to send to.
    fn hostile_peer(&self, input: &mut Input<'_>) -> Option<PeerId> {
        if self.hostile_peers.is_empty() { None } else { Some(input.pick(&self.hostile_peers)) }
    }

    /// The subject starts an operation with the hostile peer.
    pub(crate) fn start_with_hostile(&mut self, input: &mut Input<'_>) {
        let Some(peer) = self.hostile_peer(input) else { return };
        let length = input.pick(&[8, 0, 300, 700, 1500, 3000, 9000]);
        let level = if input.one_in(2) { Level::Delivery } else { Level::Transmit };
        let salt = self.operations.len() as u64;
        let cq_data = input.one_in(2).then_some(salt);
        let remote = Remote::from(RmaIov::new(0x1_0000, length as u64, input.pick(&[7, 1 << 33])));
        let choice = input.below(6);
        self.log_line(|| {
            format!("subject begins {choice} with {peer:?}, {length} bytes, {level:?}")
        });
        let context = self.begin(SUBJECT, Kind::WithHostile, length);
        let subject = &mut self.ends[SUBJECT];
        let buffer = Buffer::from(pattern(length, salt).to_vec());
        let started = match choice {
            0 | 1 => {
                let tag = (choice == 1).then_some(salt);
                let message = Message { peer, tag, cq_data, level, buffer, context };
                subject.send(message).map(|_| ()).is_ok()
            }
            2 => subject.write(Write { peer, remote, buffer, cq_data, level, context }).is_ok(),
            3 => subject.read(Read { peer, remote, buffer, context }).is_ok(),
            4 => {
                let bytes = pattern(20, salt);
                let message = Message { peer, tag: None, cq_data, level, buffer: bytes, context };
                // It has no completion if it succeeds.
                let _ = subject.inject(message);
                false
            }
            _ => {
                let remote = RmaIov::new(0x1_0000, 8, 7).into();
                let operand = Buffer::from(vec![1; 8]);
                let operands = match input.below(3) {
                    0 => Operands::Write { operand },
                    1 => Operands::Fetch { operand, fetched: vec![0; 8].into() },
                    _ => Operands::Compare {
                        operand,
                        comparand: vec![0; 8].into(),
                        fetched: vec![0; 8].into(),
                    },
                };
                let (datatype, op) = (Datatype::Uint64, AtomicOp::CompareSwap);
                let op = if let Operands::Compare { .. } = operands { op } else { AtomicOp::Sum };
                let atomic = Atomic { peer, remote, datatype, op, operands, level, context };
                let started = subject.atomic(atomic).is_ok();
                self.operations[context as usize].length = 8;
                started
            }
        };
        self.forget_if_refused(if started { Ok(()) } else { Err(()) });
    }

    /// The subject posts a receive that messages of the hostile peer may match.
    pub(crate) fn open_receive(&mut self, input: &mut Input<'_>) {
        let length = input.pick(&[300, 0, 8, 1500, 9000]);
        let source = if input.one_in(3) { self.hostile_peer(input) } else { None };
        // The honest peer's tags are small.
        let (tag, ignore) = (1 << 63, u64::MAX >> 1);
        let choice = input.below(3);
        let context = self.operations.len() as u64;
        self.log_line(|| format!("subject posts receive {choice} of {length} bytes, {source:?}"));
        let subject = &mut self.ends[SUBJECT];
        let buffer = vec![0; length].into();
        let placeholder = Operation { at: SUBJECT, kind: Kind::WithHostile, length, ended: false };
        self.operations.push(placeholder);
        // The honest peer sends no untagged messages.
        let posted = match choice {
            0 => subject.receive(Accept::Tagged { source, tag, ignore }, buffer, context),
            1 => subject.receive(Accept::Untagged { source }, buffer, context),
            _ => subject.receive_many(source, buffer, context),
        };
        match posted {
            Ok(id) if choice == 2 => self.operations[context as usize].kind = Kind::Many(id),
            Ok(id) => self.operations[context as usize].kind = Kind::Open(id),
            Err(refused) => self.forget_if_refused(Err::<(), _>(refused)),
        }
    }

    /// The subject cancels a receive that messages of the hostile peer may match.
    pub(crate) fn cancel(&mut self, input: &mut Input<'_>) {
        if self.operations.is_empty() {
            return;
        }
        let index = input.below(self.operations.len());
        self.cancel_one(index);
    }

    fn cancel_one(&mut self, index: usize) {
        let operation = &self.operations[index];
        if let (Kind::Open(id) | Kind::Many(id), false) = (&operation.kind, operation.ended) {
            let id = *id;
            self.log_line(|| format!("subject cancels receive {index}"));
            self.ends[SUBJECT].cancel(id);
        }
    }

    /// The subject removes an incarnation of the hostile peer.
    pub(crate) fn remove(&mut self, input: &mut Input<'_>) {
        if let Some(peer) = self.hostile_peer(input) {
            self.log_line(|| format!("subject removes {peer:?}"));
            self.ends[SUBJECT].remove_peer(peer);
        }
    }

    // End of a run.

    fn wait_until_idle(&mut self) {
        let mut still = 0;
        for _ in 0..20_000 {
            self.step();
            // Not until it is quiet: operations of the hostile peer may never complete.
            // It may be asked for its HANDSHAKE for ever, at last twice a minute.
            let soon = self.now + Duration::from_secs(12);
            let quiet = |end: &Endpoint<_, _>| {
                end.packets_held().sending == 0 && end.next_timeout().is_none_or(|at| at > soon)
            };
            let idle = self.net.borrow().is_idle() && self.ends.iter().all(quiet);
            still = if idle { still + 1 } else { 0 };
            if still == 2 {
                return;
            }
            let next = self.ends.iter().filter_map(Endpoint::next_timeout).min();
            let next = next.filter(|at| *at <= soon);
            self.now = next.map_or(self.now, |next| next.max(self.now));
        }
        let left = self.ends.iter().map(|end| (end.packets_held().sending, end.next_timeout()));
        let left: Vec<_> = left.collect();
        panic!("the endpoints do not become idle at {:?}: {left:?}", self.now);
    }

    /// Receives all complete messages that the hostile peer left; nothing is kept or counted then.
    fn receive_leftovers(&mut self) {
        let (tag, ignore) = (0, u64::MAX);
        for accept in
            [Accept::Untagged { source: None }, Accept::Tagged { source: None, tag, ignore }]
        {
            loop {
                let context = self.begin(SUBJECT, Kind::WithHostile, 8);
                let posted = self.ends[SUBJECT].receive(accept, vec![0; 8].into(), context);
                let id = posted.expect("within the limits");
                self.operations[context as usize].kind = Kind::Open(id);
                self.wait_until_idle();
                if !self.operations[context as usize].ended {
                    self.cancel_one(context as usize);
                    self.wait_until_idle();
                    break;
                }
            }
        }
        let kept = self.ends[SUBJECT].packets_held();
        assert_eq!((kept.held, kept.unexpected_bytes), (0, 0), "nothing is left: {kept:?}");
    }

    /// Checks the invariants at the end of a run.
    pub(crate) fn conclude(&mut self) {
        self.log_line(|| "the hostile peer stops sending".to_owned());
        {
            // Its device acknowledges from now on, so that each send completes.
            let mut net = self.net.borrow_mut();
            if net.answer == Err(efa_device::Status::ReceiverNotReady) {
                net.answer = Ok(());
            }
        }
        self.wait_until_idle();
        for (number, operation) in self.operations.iter().enumerate() {
            let honest =
                !matches!(operation.kind, Kind::WithHostile | Kind::Open(_) | Kind::Many(_));
            assert!(
                operation.ended || !honest,
                "operation {number} does not complete: {operation:?}"
            );
        }
        self.log_line(|| "the hostile peer is removed".to_owned());
        for peer in self.hostile_peers.clone() {
            self.ends[SUBJECT].remove_peer(peer);
        }
        for index in 0..self.operations.len() {
            self.cancel_one(index);
        }
        self.wait_until_idle();
        for (number, operation) in self.operations.iter().enumerate() {
            assert!(operation.ended, "operation {number} has no completion: {operation:?}");
        }
        // All messages that the device counted are handled; otherwise it would hold this receive back.
        let context = self.begin(SUBJECT, Kind::WithHostile, 8);
        let accept = Accept::Tagged { source: None, tag: UNUSED, ignore: 0 };
        let posted = self.ends[SUBJECT].receive(accept, vec![0; 8].into(), context);
        self.operations[context as usize].kind = Kind::Open(posted.expect("within the limits"));
        self.wait_until_idle();
        assert!(self.ends[SUBJECT].queue_pair().is_live(), "messages were not handled");
        self.cancel_one(context as usize);
        self.wait_until_idle();
        self.receive_leftovers();
        // The subject still works.
        self.honest_message(&mut Input::new(&[0, 2]));
        self.honest_message(&mut Input::new(&[1, 4]));
        self.wait_until_idle();
        let all = self.operations.iter().all(|operation| operation.ended);
        assert!(all, "messages with the honest peer do not complete");
        assert!(
            self.ends.iter().all(Endpoint::is_quiet),
            "operations of the hostile peer are pending"
        );

        assert!(
            self.offered.readable.bytes() == pattern(OFFERED, 2),
            "memory without write access was written"
        );
        assert!(
            self.offered.closed.bytes() == [SECRET; OFFERED],
            "memory without write access was written"
        );
        let statistics = self.ends[SUBJECT].statistics();
        assert_eq!((statistics.dropped, statistics.events_lost), (self.dropped, 0));
        assert_eq!(self.ends[HONEST].statistics().dropped, 0, "the honest peer dropped packets");
    }
}

const NAMES: [&str; 2] = ["subject", "honest"];

/// Whether a payload contains bytes of memory without read access.
pub(crate) fn contains_secret(payload: &[u8]) -> bool {
    payload.windows(4).any(|window| window == [SECRET; 4])
}

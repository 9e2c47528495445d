//! An endpoint under attack, an honest peer at its side, and what must hold whatever a liar does.
//!
//! Every operation has a number, its context. The ledger knows of each what it is, and that it
//! ended once. Of those between the two honest ends it knows the bytes, too: these all end well.

use std::sync::LazyLock;
use std::time::Duration;

use efa_device::{
    Access, QueuePair, Rdma, Region, RegionRange, RegisterError, TagListLimits, Time,
};
use efa_handshake::{Extras, Release};
use efa_rdm::{
    Accept, Atomic, AtomicOp, Bounds, Completion, Config, Datatype, DropReason, Endpoint, Event,
    Level, Message, Operands, OperationError, Payload, PeerId, Read, ReceiveId, Remote, RmaIov,
    Write,
};

use crate::device::{self, Mem, Port, Shared, Wire};
use crate::input::Input;

/// A vector that is registered for its operation if the device lets it.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    lent: Option<Mem>,
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, lent: None }
    }
}

impl Payload<Mem> for Buffer {
    fn length(&self) -> u64 {
        self.lent.as_ref().map_or(self.bytes.len(), Region::length) as u64
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        match &self.lent {
            Some(region) => assert_eq!(region.read(offset as usize, into), into.len()),
            None => Payload::<Mem>::read(&self.bytes, offset, into),
        }
    }
    fn write(&mut self, offset: u64, from: &[u8]) {
        match &self.lent {
            Some(region) => assert_eq!(region.write(offset as usize, from), from.len()),
            None => Payload::<Mem>::write(&mut self.bytes, offset, from),
        }
    }
    fn split_to(&mut self, at: u64) -> Self {
        Payload::<Mem>::split_to(&mut self.bytes, at).into()
    }
    fn registered(&self) -> Option<RegionRange<Mem>> {
        let region = self.lent.clone()?;
        let length = region.length();
        Some(RegionRange { region, offset: 0, length })
    }
    fn register(&mut self, register: impl FnOnce(Box<[u8]>) -> Result<Mem, RegisterError>) {
        match register(std::mem::take(&mut self.bytes).into()) {
            Ok(region) => self.lent = Some(region),
            Err(RegisterError { memory, .. }) => self.bytes = memory.into(),
        }
    }
    fn deregister(&mut self) {
        let Some(region) = self.lent.take() else { return };
        self.bytes = region.reclaim().map_or_else(|region| region.bytes(), Into::into);
    }
}

/// Bytes that tell their place and operation, none of which is [`SECRET`]. At most 9000.
pub(crate) fn pattern(length: usize, salt: u64) -> &'static [u8] {
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut random = fastrand::Rng::with_seed(7);
        std::iter::repeat_with(|| random.u8(..64)).take(1 << 16).collect()
    });
    &BYTES[(salt * 97 % 50_000) as usize..][..length]
}

/// What memory is full of that no peer may read.
pub(crate) const SECRET: u8 = 0xa5;

/// Most bytes that peers make the subject keep, by the bounds that it has.
const KEPT: usize = 8 << 20;

/// Where an endpoint is in [`World::ends`].
pub(crate) const SUBJECT: usize = 0;
pub(crate) const HONEST: usize = 1;

/// What an operation is.
#[derive(Clone, Debug)]
enum Kind {
    /// A message, write, read or atomic with the liar: it may end as it likes, once.
    WithLiar,
    /// A receive that the liar's messages may take.
    Open(ReceiveId),
    /// A buffer for many messages, which ends when it is released.
    Many(ReceiveId),
    /// Sent between the honest two.
    Sent,
    /// The receive for the message of this number and length.
    Received {
        salt: u64,
        length: usize,
    },
    /// A write whose memory is then compared, and a read whose buffer is.
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

/// A tag that nobody sends.
const UNUSED: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// Length of each of them.
pub(crate) const OFFERED: usize = 1500;

/// Everything.
pub(crate) struct World {
    pub(crate) net: Shared,
    pub(crate) ends: [Endpoint<Port, Buffer>; 2],
    /// What the two call each other.
    names: [PeerId; 2],
    pub(crate) offered: Offered,
    now: Time,
    operations: Vec<Operation>,
    /// Incarnations of the liar that the subject knows.
    pub(crate) liars: Vec<PeerId>,
    dropped: u64,
    /// Memory that is read: it is offered to the end.
    kept: Vec<Mem>,
    /// What the honest two may ask for: old releases have no receipts.
    most: Level,
    /// What happened so far, if it is to be printed.
    log: Option<String>,
}

impl World {
    /// Settings and abilities come from the input.
    pub(crate) fn new(input: &mut Input<'_>, tell: bool) -> Self {
        Self::with_devices(input, tell, |wires, _| wires.map(Port::Plain))
    }

    /// On devices that match tagged messages themselves.
    pub(crate) fn with_tag_lists(input: &mut Input<'_>, tell: bool) -> Self {
        Self::with_devices(input, tell, |wires, input| {
            let (max_tags, max_ops) = (input.pick(&[4, 1, 2, 16]), input.pick(&[8, 1, 2]));
            let limits = TagListLimits { max_tags, max_ops };
            let seed = input.byte().into();
            wires.map(|wire| Port::listed(wire, limits, seed))
        })
    }

    fn with_devices(
        input: &mut Input<'_>,
        tell: bool,
        devices: impl FnOnce([Wire; 2], &mut Input<'_>) -> [Port; 2],
    ) -> Self {
        let kinds = input.byte();
        let rdma = [Rdma::READ_WRITE, Rdma::NONE][usize::from(kinds & 1)];
        let (net, wires) = device::network(rdma, kinds & 2 == 0);
        let config = Self::settings(input);
        let honest = Config::default().with(|it| it.backoff = config.backoff);
        let log = tell.then(|| format!("settings: {config:?}\n"));
        let receipts = config.profile.extras.contains(Extras::DELIVERY_COMPLETE);
        let most = if receipts { Level::Delivery } else { Level::Transmit };
        let [subject, other] = devices(wires, input);
        let made = |port, config| Endpoint::new(port, config).expect("the settings are sensible");
        let mut ends = [made(subject, config), made(other, honest)];
        let addresses = [ends[0].address(), ends[1].address()];
        let names = [
            ends[0].insert_peer(addresses[1]).expect("there is room"),
            ends[1].insert_peer(addresses[0]).expect("there is room"),
        ];
        let offer = |fill: Vec<u8>, remote_read, remote_write| {
            let access = Access { remote_read, remote_write };
            let region = ends[0].queue_pair().register(fill.into(), access);
            region.expect("the device registers")
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
            liars: Vec::new(),
            dropped: 0,
            kept: Vec::new(),
            most,
            log,
        }
    }

    fn settings(input: &mut Input<'_>) -> Config {
        let release = input.pick(&Release::ALL);
        let choice = input.byte();
        let mut base =
            if choice & 1 == 0 { Config::default() } else { Config::as_release(release) };
        if choice & 2 != 0 {
            base.profile.extras |= Extras::PEER_ERROR;
        }
        base.with(|config| {
            config.max_medium = input.pick(&[2048, 0, 1 << 16]);
            config.min_read = input.pick(&[4096, 1, 1 << 20]);
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
                bounds.unexpected_per_peer = input.pick(&[1 << 16, 1 << 19]);
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

    /// Tells what happens, if anybody listens.
    pub(crate) fn tell(&mut self, what: impl FnOnce() -> String) {
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

    /// An operation that was refused takes its place in the ledger back.
    fn unless_refused<E>(&mut self, started: Result<(), E>) {
        if started.is_err() {
            self.operations.pop();
        }
    }

    /// Everybody makes progress once.
    pub(crate) fn step(&mut self) {
        self.now += Duration::from_micros(1);
        for at in [SUBJECT, HONEST] {
            self.ends[at].progress(self.now);
            self.collect(at);
            let kept = self.ends[at].packets_held();
            assert!(kept.unexpected_bytes <= KEPT && kept.held <= KEPT / 256, "{kept:?}");
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.step();
    }

    fn collect(&mut self, at: usize) {
        while let Some(completion) = self.ends[at].poll_completion() {
            self.tell(|| format!("    {} completes {completion:?}", NAMES[at]));
            self.completed(at, completion);
        }
        while let Some(event) = self.ends[at].poll_event() {
            self.tell(|| format!("    {} is told {event:?}", NAMES[at]));
            self.happened(at, &event);
        }
    }

    fn completed(&mut self, at: usize, completion: Completion<Buffer>) {
        match completion {
            Completion::Send(done) => {
                // Of an injected message only failures are told.
                let Some(buffer) = done.buffer else { return assert!(done.result.is_err()) };
                self.ended(at, done.context, &done.result, buffer, done.length);
            }
            Completion::Rma(done) => {
                self.ended(at, done.context, &done.result, done.buffer, done.length);
            }
            Completion::Atomic(done) => {
                let length = done.length;
                self.ended(at, done.context, &done.result, done.operand, length);
            }
            Completion::Receive(done) => {
                let operation = &mut self.operations[done.context as usize];
                if let Kind::Many(_) = operation.kind {
                    let part = done.buffer.bytes.len();
                    let left = operation.length.checked_sub(part);
                    operation.length = left.expect("the parts of a buffer are not more than it");
                    assert!(done.length <= part as u64);
                    // Parts may end after the rest was given back.
                    let cancelled = done.result == Err(OperationError::Cancelled);
                    assert!(!(cancelled && operation.ended && done.peer.is_none()));
                    operation.ended |= cancelled && done.peer.is_none();
                    return;
                }
                assert!(done.length <= done.buffer.length());
                self.ended(at, done.context, &done.result, done.buffer, done.length);
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

    fn ended(
        &mut self,
        at: usize,
        context: u64,
        result: &Result<(), OperationError>,
        buffer: Buffer,
        length: u64,
    ) {
        let operation = &mut self.operations[context as usize];
        assert!(!operation.ended, "operation {context} ended twice: {operation:?}");
        operation.ended = true;
        assert_eq!(operation.at, at);
        assert_eq!(buffer.bytes.len(), operation.length, "the buffer comes back as it was");
        match &operation.kind {
            Kind::WithLiar | Kind::Open(_) | Kind::Many(_) => return,
            Kind::Sent => {}
            Kind::Received { salt, length: sent } => {
                assert_eq!(length, *sent as u64);
                assert!(buffer.bytes == pattern(*sent, *salt), "{operation:?}: other bytes");
            }
            Kind::Written { memory, salt } => {
                assert!(memory.bytes() == pattern(operation.length, *salt), "{operation:?}");
            }
            Kind::Read { salt } => {
                assert!(buffer.bytes == pattern(operation.length, *salt), "{operation:?}");
            }
        }
        assert_eq!(*result, Ok(()), "between the honest two all ends well: {operation:?}");
    }

    fn happened(&mut self, at: usize, event: &Event) {
        let honest = self.names[at];
        let about = match event {
            Event::PeerDiscovered(peer) => {
                self.liars.push(*peer);
                Some(*peer)
            }
            Event::PeerRestarted { old, new } => {
                self.liars.push(*new);
                Some(*old)
            }
            Event::PacketDropped { peer, reason } => {
                self.dropped += u64::from(at == SUBJECT);
                let unknown = matches!(
                    reason,
                    DropReason::Malformed(_)
                        | DropReason::UnknownSender
                        | DropReason::ForgedAddress
                        | DropReason::PeerTableFull
                );
                assert!(peer.is_some() || unknown, "nobody is blamed for {reason:?}");
                *peer
            }
            Event::BackPressure { .. } => panic!("all peers wait, for no message is that honest"),
            Event::TagListBroken(breach) => panic!("a peer breaks the list of tags: {breach}"),
            Event::PeerLost { peer, .. }
            | Event::PeerExcluded { peer, .. }
            | Event::AccessRefused { peer, .. }
            | Event::WriteFailed { peer, .. } => Some(*peer),
            _ => None,
        };
        assert_ne!(about, Some(honest), "{} blames the honest peer: {event:?}", NAMES[at]);
        let fine = at == SUBJECT || about.is_none();
        assert!(fine, "the honest peer is bothered: {event:?}");
    }

    // What the two do.

    /// The honest two keep to the bounds that they are given.
    fn make_room(&mut self) {
        for _ in 0..1000 {
            let honest =
                |kind: &Kind| !matches!(kind, Kind::WithLiar | Kind::Open(_) | Kind::Many(_));
            let mine = self.operations.iter().filter(|of| !of.ended && honest(&of.kind));
            if mine.count() < 8 {
                return;
            }
            self.step();
            let next = self.ends.iter().filter_map(Endpoint::next_timeout).min();
            self.now = next.map_or(self.now, |next| next.max(self.now));
        }
        panic!("the honest two do not get on");
    }

    /// A message between the honest two, either way, whose receive is posted first or last.
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
        self.tell(|| format!("{} sends {length} bytes, tag {salt}, {level:?}", NAMES[from]));
        let message = Message { peer, tag, cq_data, level, buffer, context };
        self.ends[from].send(message).expect("there is room");
        if late {
            self.step();
            self.honest_receive(at, salt, length);
        }
    }

    fn honest_receive(&mut self, at: usize, salt: u64, length: usize) {
        let context = self.begin(at, Kind::Received { salt, length }, length);
        let accept = Accept::Tagged { source: Some(self.names[at]), tag: salt, ignore: 0 };
        let buffer = vec![0; length].into();
        self.ends[at].receive(accept, buffer, context).expect("there is room");
    }

    /// A write or read between the honest two, either way.
    pub(crate) fn honest_access(&mut self, input: &mut Input<'_>) {
        self.make_room();
        let from = input.below(2);
        let length = input.pick(&[8, 300, 700, 1500, 3000]);
        let writes = input.one_in(2);
        let salt = self.operations.len() as u64;
        let access = Access { remote_read: true, remote_write: true };
        let bytes = if writes { vec![0; length] } else { pattern(length, salt).to_vec() };
        let memory = self.ends[1 - from].queue_pair().register(bytes.into(), access);
        let memory = memory.expect("the device registers");
        let key = memory.remote_key().into();
        let remote = Remote::from(RmaIov::new(memory.remote_address(), length as u64, key));
        let peer = self.names[from];
        self.tell(|| format!("{} writes: {writes}, {length} bytes", NAMES[from]));
        if writes {
            let context = self.begin(from, Kind::Written { memory, salt }, length);
            let (buffer, level) = (pattern(length, salt).to_vec().into(), self.most);
            let write = Write { peer, remote, buffer, cq_data: None, level, context };
            self.ends[from].write(write).expect("there is room");
        } else {
            let context = self.begin(from, Kind::Read { salt }, length);
            let buffer = vec![0; length].into();
            self.ends[from].read(Read { peer, remote, buffer, context }).expect("there is room");
            self.kept.push(memory);
        }
    }

    /// An incarnation of the liar to send to.
    fn liar(&self, input: &mut Input<'_>) -> Option<PeerId> {
        if self.liars.is_empty() { None } else { Some(input.pick(&self.liars)) }
    }

    /// The subject starts something with the liar.
    pub(crate) fn approach(&mut self, input: &mut Input<'_>) {
        let Some(peer) = self.liar(input) else { return };
        let length = input.pick(&[8, 0, 300, 700, 1500, 3000, 9000]);
        let level = if input.one_in(2) { Level::Delivery } else { Level::Transmit };
        let salt = self.operations.len() as u64;
        let cq_data = input.one_in(2).then_some(salt);
        let remote = Remote::from(RmaIov::new(0x1_0000, length as u64, input.pick(&[7, 1 << 33])));
        let choice = input.below(6);
        self.tell(|| format!("subject begins {choice} with {peer:?}, {length} bytes, {level:?}"));
        let context = self.begin(SUBJECT, Kind::WithLiar, length);
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
                // It has no completion if all goes well.
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
        self.unless_refused(if started { Ok(()) } else { Err(()) });
    }

    /// The subject posts a receive that messages of the liar may take.
    pub(crate) fn open_receive(&mut self, input: &mut Input<'_>) {
        let length = input.pick(&[300, 0, 8, 1500, 9000]);
        let source = if input.one_in(3) { self.liar(input) } else { None };
        // The honest peer's tags are small.
        let (tag, ignore) = (1 << 63, u64::MAX >> 1);
        let choice = input.below(3);
        let context = self.operations.len() as u64;
        self.tell(|| format!("subject posts receive {choice} of {length} bytes, {source:?}"));
        let subject = &mut self.ends[SUBJECT];
        let buffer = vec![0; length].into();
        let placeholder = Operation { at: SUBJECT, kind: Kind::WithLiar, length, ended: false };
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
            Err(refused) => self.unless_refused(Err::<(), _>(refused)),
        }
    }

    /// The subject cancels a receive that the liar might have taken.
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
            self.tell(|| format!("subject cancels receive {index}"));
            self.ends[SUBJECT].cancel(id);
        }
    }

    /// The subject excluded an incarnation of the liar.
    pub(crate) fn remove(&mut self, input: &mut Input<'_>) {
        if let Some(peer) = self.liar(input) {
            self.tell(|| format!("subject removes {peer:?}"));
            self.ends[SUBJECT].remove_peer(peer);
        }
    }

    // The end.

    fn rest(&mut self) {
        let mut still = 0;
        for _ in 0..20_000 {
            self.step();
            // Not that it is quiet: what the liar has begun may never end.
            let quiet = |end: &Endpoint<_, _>| {
                end.packets_held().sending == 0 && end.next_timeout().is_none()
            };
            let idle = self.net.borrow().is_idle() && self.ends.iter().all(quiet);
            still = if idle { still + 1 } else { 0 };
            if still == 2 {
                return;
            }
            let next = self.ends.iter().filter_map(Endpoint::next_timeout).min();
            self.now = next.map_or(self.now, |next| next.max(self.now));
        }
        panic!("the endpoints do not come to rest");
    }

    /// What must hold at the end.
    pub(crate) fn conclude(&mut self) {
        self.tell(|| "the liar falls silent".to_owned());
        {
            // Its device answers from now on, so that nothing is on its way for ever.
            let mut net = self.net.borrow_mut();
            if net.answer == Err(efa_device::Status::ReceiverNotReady) {
                net.answer = Ok(());
            }
        }
        self.rest();
        for (number, operation) in self.operations.iter().enumerate() {
            let honest = !matches!(operation.kind, Kind::WithLiar | Kind::Open(_) | Kind::Many(_));
            assert!(operation.ended || !honest, "{number} hangs: {operation:?}");
        }
        self.tell(|| "the liar is removed".to_owned());
        for peer in self.liars.clone() {
            self.ends[SUBJECT].remove_peer(peer);
        }
        for index in 0..self.operations.len() {
            self.cancel_one(index);
        }
        self.rest();
        for (number, operation) in self.operations.iter().enumerate() {
            assert!(operation.ended, "operation {number} never ends: {operation:?}");
        }
        // What the device has counted is handled, or it would hold this receive back for ever.
        let context = self.begin(SUBJECT, Kind::WithLiar, 8);
        let accept = Accept::Tagged { source: None, tag: UNUSED, ignore: 0 };
        let posted = self.ends[SUBJECT].receive(accept, vec![0; 8].into(), context);
        self.operations[context as usize].kind = Kind::Open(posted.expect("there is room"));
        self.rest();
        assert!(self.ends[SUBJECT].queue_pair().is_live(), "messages that nobody handled");
        self.cancel_one(context as usize);
        self.rest();
        // It is alive.
        self.honest_message(&mut Input::new(&[0, 2]));
        self.honest_message(&mut Input::new(&[1, 4]));
        self.rest();
        let all = self.operations.iter().all(|operation| operation.ended);
        assert!(all, "the honest peer is not served any more");
        assert!(self.ends.iter().all(Endpoint::is_quiet), "something of the liar is under way");

        assert!(self.offered.readable.bytes() == pattern(OFFERED, 2), "written without leave");
        assert!(self.offered.closed.bytes() == [SECRET; OFFERED], "written without leave");
        let statistics = self.ends[SUBJECT].statistics();
        assert_eq!((statistics.dropped, statistics.events_lost), (self.dropped, 0));
        assert_eq!(self.ends[HONEST].statistics().dropped, 0, "the honest peer was lied to");
    }
}

const NAMES: [&str; 2] = ["subject", "honest"];

/// What memory may have been read without leave shows in.
pub(crate) fn tells_secret(payload: &[u8]) -> bool {
    payload.windows(4).any(|window| window == [SECRET; 4])
}

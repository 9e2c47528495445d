//! A simulated network with endpoints, a virtual clock, and a record of all packets.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use efa_device::{Device, Qkey, Qpn, QueuePair, QueuePairOptions, Time};
use efa_proto::{Header, Packet, PacketType};
use efa_rdm::{
    Accept, AtomicCompletion, Completion, Config, DropReason, Endpoint, Event, Level, Message,
    Payload, PeerId, ReceiveCompletion, ReceiveId, RemoteWrite, RmaCompletion, SendCompletion,
};
use efa_sim::SoftRegion;
use efa_sim::local::{LocalDevice, LocalFabric, LocalOptions};
use efa_sim::record::{PacketEvent, QueuePairId, Record, Trace};

use crate::leaving::Leaving;

/// Bytes that depend on their offset and on the message.
pub(crate) fn pattern(length: usize, salt: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(salt).fill(&mut bytes);
    bytes
}

/// How an application makes progress and takes completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Driving {
    /// By `progress`; takes all completions.
    #[default]
    Progress,
    /// By `poll`, until it returns none.
    Poll,
    /// By both.
    Both,
    /// By `poll`; takes at most two completions.
    Sparing,
}

/// One endpoint and the completions of its operations.
pub(crate) struct End<B = Vec<u8>> {
    pub(crate) driving: Driving,
    pub(crate) device: LocalDevice,
    pub(crate) endpoint: Endpoint<Leaving, B>,
    pub(crate) sends: VecDeque<SendCompletion<B>>,
    pub(crate) receives: VecDeque<ReceiveCompletion<B>>,
    pub(crate) released: VecDeque<(u64, B)>,
    pub(crate) rma: VecDeque<RmaCompletion<B>>,
    pub(crate) atomics: VecDeque<AtomicCompletion<B>>,
    pub(crate) remote_writes: VecDeque<RemoteWrite>,
    pub(crate) events: VecDeque<Event>,
}

impl<B: Payload<SoftRegion> + std::fmt::Debug> End<B> {
    /// Makes progress as the application of this endpoint does.
    fn advance(&mut self, now: Time) {
        let polls = match self.driving {
            Driving::Progress => 0,
            Driving::Both => 1,
            Driving::Sparing => 2,
            Driving::Poll => usize::MAX,
        };
        for _ in 0..polls {
            let Some(completion) = self.endpoint.poll(now) else { break };
            self.keep(completion);
        }
        if matches!(self.driving, Driving::Progress | Driving::Both) {
            self.endpoint.progress(now);
            self.collect();
        }
        self.collect_events();
    }

    /// Takes all pending completions and events.
    pub(crate) fn collect(&mut self) {
        while let Some(completion) = self.endpoint.poll_completion() {
            self.keep(completion);
        }
        self.collect_events();
    }

    fn keep(&mut self, completion: Completion<B>) {
        match completion {
            Completion::Send(send) => self.sends.push_back(send),
            Completion::Receive(receive) => self.receives.push_back(receive),
            Completion::Released { context, buffer } => {
                self.released.push_back((context, buffer));
            }
            Completion::Rma(rma) => self.rma.push_back(rma),
            Completion::Atomic(atomic) => self.atomics.push_back(*atomic),
            Completion::RemoteWrite(write) => self.remote_writes.push_back(write),
        }
    }

    fn collect_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            self.events.push_back(event);
        }
    }
}

/// A network whose endpoints' buffers are vectors.
pub(crate) type World = Net<Vec<u8>>;

/// The network. Prints its decoded packets when a test fails.
pub(crate) struct Net<B: Payload<SoftRegion> + std::fmt::Debug> {
    pub(crate) network: LocalFabric,
    pub(crate) now: Time,
    pub(crate) ends: Vec<End<B>>,
    /// Whether queue pairs leave payloads in their own memory: those of every second seed.
    leaves: bool,
    trace: Trace,
    records: Vec<Record<'static>>,
}

/// Where a queue pair is.
pub(crate) fn place<B: Payload<SoftRegion> + std::fmt::Debug>(end: &End<B>) -> QueuePairId {
    end.endpoint.queue_pair().address().into()
}

impl<B: Payload<SoftRegion> + std::fmt::Debug> Net<B> {
    pub(crate) fn new(options: LocalOptions) -> Self {
        let leaves = options.seed.is_multiple_of(2);
        let network = LocalFabric::new(options);
        let trace = Trace::new();
        network.capture(trace.clone());
        Self { network, now: Time::ZERO, ends: Vec::new(), leaves, trace, records: Vec::new() }
    }

    /// Two endpoints with default settings on a network that reorders.
    pub(crate) fn pair(seed: u64) -> Self {
        Self::pair_with(seed, Config::default(), Config::default())
    }

    pub(crate) fn pair_with(seed: u64, a: Config, b: Config) -> Self {
        let mut world = Self::new(LocalOptions::default().with(|options| options.seed = seed));
        world.add(a);
        world.add(b);
        world
    }

    /// Adds an endpoint on a host of its own.
    pub(crate) fn add(&mut self, config: Config) -> usize {
        self.add_with(config, QueuePairOptions::default())
    }

    pub(crate) fn add_with(&mut self, config: Config, options: QueuePairOptions) -> usize {
        self.add_on(self.network.open(), config, options)
    }

    /// Adds an endpoint on the host of another.
    pub(crate) fn add_beside(&mut self, end: usize, config: Config) -> usize {
        self.add_on(self.ends[end].device.clone(), config, QueuePairOptions::default())
    }

    fn add_on(&mut self, device: LocalDevice, config: Config, options: QueuePairOptions) -> usize {
        let qkey = Qkey(0x1000_0000 + self.ends.len() as u32);
        let queue_pair = device.create_queue_pair(options.with(|options| options.qkey = qkey));
        let queue_pair = Leaving::new(queue_pair.unwrap(), self.leaves);
        let endpoint = Endpoint::new(queue_pair, config).unwrap();
        self.ends.push(End {
            driving: Driving::default(),
            device,
            endpoint,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            released: VecDeque::new(),
            rma: VecDeque::new(),
            atomics: VecDeque::new(),
            remote_writes: VecDeque::new(),
            events: VecDeque::new(),
        });
        self.ends.len() - 1
    }

    /// Replaces an endpoint by a new one on the same queue pair number.
    pub(crate) fn restart(&mut self, end: usize, qkey: u32, config: Config) {
        let qpn = self.ends[end].endpoint.queue_pair().address().qpn;
        // The old queue pair must be gone before its number can be used again.
        let other = self.ends[end].device.create_queue_pair(QueuePairOptions::default()).unwrap();
        drop(std::mem::replace(
            &mut self.ends[end].endpoint,
            Endpoint::new(Leaving::new(other, self.leaves), Config::default()).unwrap(),
        ));
        self.restart_at(end, qpn, qkey, config);
    }

    fn restart_at(&mut self, end: usize, qpn: Qpn, qkey: u32, config: Config) {
        let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(qkey));
        let queue_pair = self.ends[end].device.create_queue_pair_at(qpn, options).unwrap();
        let queue_pair = Leaving::new(queue_pair, self.leaves);
        self.ends[end].endpoint = Endpoint::new(queue_pair, config).unwrap();
    }

    pub(crate) fn endpoint(&mut self, end: usize) -> &mut Endpoint<Leaving, B> {
        &mut self.ends[end].endpoint
    }

    /// The peer id of `to` at `from`, which is inserted if necessary.
    pub(crate) fn peer(&mut self, from: usize, to: usize) -> PeerId {
        let address = self.ends[to].endpoint.address();
        self.ends[from].endpoint.insert_peer(address).unwrap()
    }

    /// Inserts endpoints 0 and 1 as peers of each other.
    pub(crate) fn acquaint(&mut self) {
        self.peer(0, 1);
        self.peer(1, 0);
    }

    pub(crate) fn send(&mut self, from: usize, to: usize, buffer: B, context: u64) {
        let peer = self.peer(from, to);
        let message =
            Message { peer, tag: None, cq_data: None, level: Level::Transmit, buffer, context };
        self.ends[from].endpoint.send(message).unwrap();
    }

    pub(crate) fn tagged_send(&mut self, from: usize, to: usize, tag: u64, buffer: B) {
        let peer = self.peer(from, to);
        let message = Message {
            peer,
            tag: Some(tag),
            cq_data: None,
            level: Level::Transmit,
            buffer,
            context: tag,
        };
        self.ends[from].endpoint.send(message).unwrap();
    }

    pub(crate) fn receive_into(&mut self, at: usize, buffer: B, context: u64) -> ReceiveId {
        let accept = Accept::Untagged { source: None };
        self.ends[at].endpoint.receive(accept, buffer, context).unwrap()
    }

    /// Lets every endpoint make progress once, then advances the clock to the next event.
    pub(crate) fn step(&mut self) {
        for end in &mut self.ends {
            end.advance(self.now);
        }
        self.records.append(&mut self.trace.take());
        let timers = self.ends.iter().filter_map(|end| end.endpoint.next_timeout());
        let next = timers.chain(self.network.next_event()).min();
        let soon = self.now + Duration::from_nanos(100);
        // An application that left completions polls again.
        let left = self.ends.iter().any(|end| end.endpoint.has_completions());
        self.now = next.filter(|_| !left).map_or(soon, |next| next.max(soon));
    }

    /// Steps until no event is left. A peer that lives and doesn't answer is asked for its HANDSHAKE without
    /// end, ever more seldom: nothing is left then either.
    pub(crate) fn drive(&mut self) {
        let mut still = 0;
        for _ in 0..2_000_000 {
            let before = self.now;
            self.step();
            let rests = |End { endpoint, .. }: &End<B>| {
                // Quietness is not required: a closed peer may leave a read incomplete.
                let waits = endpoint.next_timeout().is_some() || endpoint.has_completions();
                endpoint.packets_held().sending == 0 && !waits
            };
            let is_quiet = self.network.next_event().is_none();
            if is_quiet && self.now > before + Duration::from_secs(12) {
                self.now = before;
                return;
            }
            let idle = is_quiet && self.ends.iter().all(rests);
            still = if idle { still + 1 } else { 0 };
            if still == 3 {
                return;
            }
        }
        panic!("the network does not come to rest");
    }

    /// Polls all endpoints for `span`.
    pub(crate) fn idle(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.now = (self.now + Duration::from_millis(50)).min(end);
            let now = self.now;
            self.step();
            self.now = now;
        }
    }

    /// The packets that an endpoint has sent, in order.
    pub(crate) fn packets_from(&mut self, end: usize) -> Vec<Vec<u8>> {
        let source = place(&self.ends[end]);
        self.records.append(&mut self.trace.take());
        let sent = self
            .records
            .iter()
            .filter(|record| record.event == PacketEvent::Sent && record.source == source);
        sent.map(|record| record.bytes.to_vec()).collect()
    }

    /// The types of the packets that an endpoint has sent.
    pub(crate) fn types_from(&mut self, end: usize) -> Vec<PacketType> {
        let packets = self.packets_from(end);
        packets.iter().map(|bytes| Packet::parse(bytes).unwrap().packet_type()).collect()
    }

    /// Every packet on the network so far.
    pub(crate) fn all_packets(&mut self) -> Vec<Vec<u8>> {
        self.records.append(&mut self.trace.take());
        let sent = self.records.iter().filter(|record| record.event == PacketEvent::Sent);
        sent.map(|record| record.bytes.to_vec()).collect()
    }

    pub(crate) fn forget_packets(&mut self) {
        let _ = self.trace.take();
        self.records.clear();
    }

    /// Injects a packet, as if sent by an endpoint.
    pub(crate) fn inject(&mut self, from: usize, to: usize, header: Header<'_>, payload: &[u8]) {
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes).unwrap();
        bytes.extend_from_slice(payload);
        self.inject_bytes(from, to, &bytes);
    }

    pub(crate) fn inject_bytes(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let (source, destination) = (place(&self.ends[from]), place(&self.ends[to]));
        self.network.inject(source, destination, bytes);
    }

    pub(crate) fn receive_done(&mut self, at: usize) -> ReceiveCompletion<B> {
        self.ends[at].collect();
        self.ends[at].receives.pop_front().expect("a receive has ended")
    }

    pub(crate) fn send_done(&mut self, at: usize) -> SendCompletion<B> {
        self.ends[at].collect();
        self.ends[at].sends.pop_front().expect("a send has ended")
    }

    /// The sends that have ended at an endpoint.
    pub(crate) fn take_sends(&mut self, at: usize) -> Vec<SendCompletion<B>> {
        self.ends[at].collect();
        self.ends[at].sends.drain(..).collect()
    }

    /// The receives that have ended at an endpoint.
    pub(crate) fn take_receives(&mut self, at: usize) -> Vec<ReceiveCompletion<B>> {
        self.ends[at].collect();
        self.ends[at].receives.drain(..).collect()
    }

    /// Why packets were dropped at an endpoint, since the last call.
    pub(crate) fn drop_reasons(&mut self, at: usize) -> Vec<DropReason> {
        let events = self.ends[at].events.drain(..);
        let reasons = events.filter_map(|event| match event {
            Event::PacketDropped { reason, .. } => Some(reason),
            _ => None,
        });
        reasons.collect()
    }

    /// No completion is left, and nothing was dropped anywhere.
    pub(crate) fn assert_clean(&mut self) {
        for (i, end) in self.ends.iter_mut().enumerate() {
            assert!(end.sends.is_empty() && end.receives.is_empty(), "end {i} has completions");
            let one_sided = (end.rma.len(), end.atomics.len(), end.remote_writes.len());
            assert_eq!(one_sided, (0, 0, 0), "end {i} has completions");
            let statistics = end.endpoint.statistics();
            assert_eq!(statistics.dropped, 0, "end {i}: {statistics:?} {:?}", end.events);
            assert_eq!(end.endpoint.packets_held().held, 0, "end {i} holds packets");
        }
    }
}

impl World {
    pub(crate) fn receive(&mut self, at: usize, length: usize, context: u64) -> ReceiveId {
        self.receive_into(at, vec![0; length], context)
    }

    pub(crate) fn tagged_receive(&mut self, at: usize, tag: u64, length: usize) -> ReceiveId {
        let accept = Accept::Tagged { source: None, tag, ignore: 0 };
        self.ends[at].endpoint.receive(accept, vec![0; length], tag).unwrap()
    }
}

/// Suppresses the packet log of failing tests.
pub(crate) static QUIET: AtomicBool = AtomicBool::new(false);

impl<B: Payload<SoftRegion> + std::fmt::Debug> Drop for Net<B> {
    fn drop(&mut self) {
        if std::thread::panicking() && !QUIET.load(Ordering::Relaxed) {
            self.records.append(&mut self.trace.take());
            let tail = self.records.len().saturating_sub(200);
            for record in &self.records[tail..] {
                let Record { time, event, source, destination, bytes } = record;
                let text = match Packet::parse(bytes) {
                    Ok(packet) => packet.to_string(),
                    Err(error) => format!("malformed: {error}"),
                };
                eprintln!("{:>10} ns {source} → {destination} {event:?}: {text}", time.as_nanos());
            }
        }
    }
}

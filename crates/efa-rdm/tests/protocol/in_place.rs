//! Messages received in place: headers of one length (request 2), and a queue pair of the application
//! (request 7).

mod user_queue;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use efa_device::{Access, Device, Qkey, QueuePair, QueuePairOptions, Region};
use efa_handshake::{Extras, Release};
use efa_proto::{Packet, PacketType, RmaIov};
use efa_rdm::{
    Accept, Completion, Config, ConfigError, DropReason, Endpoint, Event, InPlaceCompletion,
    InPlaceQueue, Level, Message, OperationError, PeerId, ReceiveNeeds, Receiver, Refused, Remote,
    StartError, UnexpectedHeader, Write,
};
use efa_sim::local::{Faults, LocalOptions, LocalQueuePair};

use crate::world::{World, pattern};

const MTU: usize = 8928;
/// An eager message's own header and the raw address.
const HEADER: usize = 8 + 40;

type InPlace = Endpoint<InPlaceQueue<LocalQueuePair>, Vec<u8>>;
type Received = InPlaceCompletion<Box<[u8]>>;

/// Releases that request headers of constant length, and those with a queue pair for plain messages.
const CONSTANT_HEADER: [Release; 5] =
    [Release::V1_13, Release::V1_14, Release::V1_16, Release::V1_18, Release::V1_20];
const USER_QUEUE: [Release; 3] = [Release::V1_22, Release::V2_0, Release::V2_1];

/// Senders, which are the endpoints of `world`, and one receiver that receives in place.
struct Setup {
    world: World,
    receiver: InPlace,
    peers: Vec<PeerId>,
    received: Vec<Received>,
    events: Vec<Event>,
}

fn queue_pair(world: &World, qkey: u32) -> InPlaceQueue<LocalQueuePair> {
    let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(qkey));
    InPlaceQueue(world.network.open().create_queue_pair(options).unwrap())
}

fn receiver(world: &World, config: Config) -> Result<InPlace, ConfigError> {
    let device = world.network.open();
    let queue_pair = |qkey| {
        let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(qkey));
        InPlaceQueue(device.create_queue_pair(options).unwrap())
    };
    if USER_QUEUE.contains(&config.profile.release) {
        Endpoint::with_user_queue(queue_pair(1), queue_pair(2), config)
    } else {
        Endpoint::new(queue_pair(1), config)
    }
}

fn at(release: Release, unexpected_header: UnexpectedHeader) -> Config {
    Config::as_release(release).with(|config| config.unexpected_header = unexpected_header)
}

impl Setup {
    fn new(options: LocalOptions, senders: &[Config], config: Config) -> Self {
        let mut world = World::new(options);
        let receiver = receiver(&world, config).unwrap();
        let address = receiver.address();
        let insert = |sender: &Config| {
            let end = world.add(sender.clone());
            world.endpoint(end).insert_peer(address).unwrap()
        };
        let peers = senders.iter().map(insert).collect();
        Self { world, receiver, peers, received: Vec::new(), events: Vec::new() }
    }

    /// One sender, a network that reorders.
    fn of(sender: Config, config: Config) -> Self {
        Self::new(LocalOptions::default().with(|options| options.seed = 5), &[sender], config)
    }

    /// Posts receives, with contexts from `first` on.
    fn post(&mut self, contexts: std::ops::Range<u64>) {
        for context in contexts {
            let packet = self.receiver.allocate_packet().unwrap();
            self.receiver.receive_in_place(packet, context).unwrap();
        }
    }

    fn message(&self, from: usize, buffer: Vec<u8>) -> Message<Vec<u8>> {
        let (peer, level) = (self.peers[from], Level::Transmit);
        Message { peer, tag: None, cq_data: None, level, buffer, context: 0 }
    }

    fn send(&mut self, from: usize, buffer: Vec<u8>) {
        let message = self.message(from, buffer);
        self.world.endpoint(from).send(message).unwrap();
    }

    fn step(&mut self) {
        self.receiver.progress(self.world.now);
        self.received.extend(std::iter::from_fn(|| self.receiver.poll_in_place()));
        self.events.extend(std::iter::from_fn(|| self.receiver.poll_event()));
        self.world.step();
    }

    /// Steps until the network and all endpoints are quiet.
    fn drive(&mut self) {
        let mut still = 0;
        while still < 20 {
            self.step();
            let quiet = self.world.network.next_event().is_none() && self.receiver.is_quiet();
            let senders = self.world.ends.iter().all(|end| end.endpoint.is_quiet());
            still = if quiet && senders { still + 1 } else { 0 };
        }
    }

    /// Steps for `span`.
    fn idle(&mut self, span: Duration) {
        let end = self.world.now + span;
        while self.world.now < end {
            self.step();
        }
    }

    fn drops(&mut self) -> Vec<DropReason> {
        let reasons = self.events.drain(..).filter_map(|event| match event {
            Event::PacketDropped { reason, .. } => Some(reason),
            _ => None,
        });
        reasons.collect()
    }

    fn messages(&mut self) -> Vec<Vec<u8>> {
        let received = self.received.drain(..);
        received.map(|done| done.result.unwrap().bytes().to_vec()).collect()
    }

    fn errors(&mut self) -> Vec<OperationError> {
        self.received.drain(..).filter_map(|done| done.result.err()).collect()
    }
}

/// The lengths of the headers of the untagged eager messages that an end sent.
fn headers(world: &mut World, end: usize) -> Vec<usize> {
    let packets = world.packets_from(end);
    let lengths = packets.iter().filter_map(|bytes| {
        let packet = Packet::parse(bytes).unwrap();
        let eager = packet.packet_type() == PacketType::EagerMsgRtm;
        eager.then(|| bytes.len() - packet.payload.len())
    });
    lengths.collect()
}

/// The features that the sender knows of the receiver.
fn announced(setup: &mut Setup) -> Extras {
    let peer = setup.peers[0];
    setup.world.endpoint(0).peer_extras(peer).unwrap()
}

// conformance: A184
#[test]
fn handshake_requests_constant_headers_or_user_queue_by_release() {
    let ask = |release| {
        let mut setup = Setup::of(Config::default(), at(release, UnexpectedHeader::Move));
        setup.post(0..1);
        setup.send(0, pattern(8, 1));
        setup.drive();
        let requests = Extras::CONSTANT_HEADER_LENGTH | Extras::USER_RECV_QP;
        announced(&mut setup).intersection(requests)
    };
    for release in CONSTANT_HEADER {
        assert_eq!(ask(release), Extras::CONSTANT_HEADER_LENGTH, "{release}");
    }
    for release in USER_QUEUE {
        assert_eq!(ask(release), Extras::USER_RECV_QP, "{release}");
    }
}

#[test]
fn in_place_is_refused_for_other_releases_and_queue_pairs() {
    let world = World::new(LocalOptions::default());
    for release in [Release::V1_10, Release::V1_12, Release::V2_6] {
        let refused = receiver(&world, Config::as_release(release)).map(|_| ());
        assert_eq!(refused, Err(ConfigError::NotInPlace { release }));
    }
    let release = Release::V1_22;
    let refused = InPlace::new(queue_pair(&world, 1), Config::as_release(release)).map(|_| ());
    assert_eq!(refused, Err(ConfigError::UserQueue { release }));
    let release = Release::V1_20;
    let (main, user) = (queue_pair(&world, 1), queue_pair(&world, 2));
    let config = Config::as_release(release);
    let refused = InPlace::with_user_queue(main, user, config).map(|_| ());
    assert_eq!(refused, Err(ConfigError::UserQueue { release }));
}

// conformance: A183
#[test]
fn in_place_is_possible_in_one_of_16_combinations() {
    for release in Release::ALL {
        let begin = match release {
            _ if CONSTANT_HEADER.contains(&release) => Some(HEADER),
            _ if USER_QUEUE.contains(&release) => Some(0),
            _ => None,
        };
        let room = (MTU - begin.unwrap_or(0)) as u64;
        for row in 0..16 {
            let asked = |bit: u32| row >> bit & 1 == 1;
            let needs = ReceiveNeeds {
                ordered: asked(0),
                tagged: asked(1),
                directed: asked(2),
                longest: room + u64::from(asked(3)),
            };
            let expected = begin.filter(|_| row == 0);
            assert_eq!(needs.in_place(release, MTU), expected, "{release}: {needs:?}");
        }
    }
}

// conformance: A107
#[test]
fn endpoint_that_needs_matching_copies_and_reports_it() {
    let none = ReceiveNeeds { ordered: false, tagged: false, directed: false, longest: 1000 };
    for release in [Release::V1_14, Release::V1_22] {
        for (needs, in_place) in [
            (none, true),
            (ReceiveNeeds { ordered: true, ..none }, false),
            (ReceiveNeeds { tagged: true, ..none }, false),
            (ReceiveNeeds { directed: true, ..none }, false),
            (ReceiveNeeds { longest: 1 << 20, ..none }, false),
        ] {
            let mut world = World::new(LocalOptions::default().with(|options| options.seed = 4));
            let end =
                world.add(Config::default().with(|config| config.messages_after_handshake = true));
            let device = world.network.open();
            let queue_pair = |qkey| {
                let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(qkey));
                Ok::<_, ConfigError>(device.create_queue_pair(options).unwrap())
            };
            let config = Config::as_release(release);
            let receiver = Receiver::<_, Vec<u8>>::new(
                queue_pair(1).unwrap(),
                || queue_pair(2),
                &needs,
                config,
            );
            let mut receiver = receiver.unwrap();
            let begin = if release == Release::V1_14 { HEADER } else { 0 };
            assert_eq!(
                receiver.in_place_offset(),
                in_place.then_some(begin),
                "in_place_offset of {release}"
            );
            match &mut receiver {
                Receiver::InPlace(endpoint) => {
                    let packet = endpoint.allocate_packet().unwrap();
                    endpoint.receive_in_place(packet, 1).unwrap();
                }
                Receiver::Copies(endpoint) => {
                    let accept = Accept::Untagged { source: None };
                    endpoint.receive(accept, vec![0; 1000], 1).unwrap();
                }
            }
            let address = match &receiver {
                Receiver::InPlace(endpoint) => endpoint.address(),
                Receiver::Copies(endpoint) => endpoint.address(),
            };
            let peer = world.endpoint(end).insert_peer(address).unwrap();
            let (level, buffer) = (Level::Transmit, pattern(1000, 1));
            let message = Message { peer, tag: None, cq_data: None, level, buffer, context: 0 };
            world.endpoint(end).send(message).unwrap();
            let received = std::iter::repeat_with(|| {
                world.step();
                match &mut receiver {
                    Receiver::InPlace(endpoint) => {
                        endpoint.progress(world.now);
                        let done = endpoint.poll_in_place()?;
                        Some(done.result.unwrap().bytes().to_vec())
                    }
                    Receiver::Copies(endpoint) => {
                        endpoint.progress(world.now);
                        match endpoint.poll_completion()? {
                            Completion::Receive(done) => Some(done.buffer),
                            other => panic!("{other:?}"),
                        }
                    }
                }
            });
            assert_eq!(received.take(10_000).flatten().next(), Some(pattern(1000, 1)));
        }
    }
}

#[test]
fn in_place_endpoint_refuses_matched_receives() {
    let world = World::new(LocalOptions::default());
    let mut receiver = receiver(&world, Config::as_release(Release::V1_16)).unwrap();
    let error = StartError::InPlaceOnly;
    let tagged = Accept::Tagged { source: None, tag: 1, ignore: 0 };
    for accept in [tagged, Accept::Untagged { source: None }] {
        let refused = receiver.receive(accept, vec![1], 0);
        assert_eq!(refused, Err(Refused { error, buffer: vec![1] }));
    }
    let refused = receiver.receive_many(None, vec![2], 0);
    assert_eq!(refused, Err(Refused { error, buffer: vec![2] }));
}

// conformance: A185 A187
#[test]
fn in_place_message_begins_at_the_announced_offset() {
    for release in CONSTANT_HEADER {
        for sender in [Release::V1_13, Release::V1_22, Release::V2_6] {
            let mut setup =
                Setup::of(Config::as_release(sender), at(release, UnexpectedHeader::Refuse));
            assert_eq!(setup.receiver.in_place_offset(), HEADER, "computed in advance");
            setup.post(0..100);
            let mut expected = BTreeSet::new();
            for round in 0..10 {
                for i in 0..10 {
                    let bytes = pattern((round * 979 + i) as usize, round * 10 + i);
                    expected.insert(bytes.clone());
                    setup.send(0, bytes);
                }
                // The HANDSHAKE comes in the first round.
                setup.drive();
            }
            assert!(announced(&mut setup).contains(Extras::CONSTANT_HEADER_LENGTH));
            assert_eq!(headers(&mut setup.world, 0), [HEADER; 100], "{sender} to {release}");
            for done in &setup.received {
                let message = done.result.as_ref().unwrap();
                let peer = done.peer.unwrap();
                assert_eq!(
                    setup.receiver.peer_address(peer).unwrap(),
                    setup.world.endpoint(0).address()
                );
                assert!(expected.remove(message.bytes()), "each once");
            }
            assert!(expected.is_empty());
            assert_eq!(setup.receiver.statistics().unexpected, 0);
            assert_eq!(
                setup.receiver.statistics().reordered,
                0,
                "no packet is held for reordering"
            );
        }
    }
}

#[test]
fn in_place_completion_returns_the_received_packet() {
    let mut setup = Setup::of(Config::default(), at(Release::V1_20, UnexpectedHeader::Refuse));
    setup.post(7..8);
    setup.send(0, pattern(1000, 1));
    setup.drive();
    let sent = setup.world.packets_from(0).into_iter().find(|bytes| bytes.len() > 1000).unwrap();
    let done = setup.received.pop().unwrap();
    assert_eq!(done.context, 7);
    let packet = done.result.unwrap().into_packet();
    assert_eq!(packet[..sent.len()], sent, "with its header in front");
    // The same packet can be posted again.
    setup.receiver.receive_in_place(packet, 8).unwrap();
    setup.send(0, pattern(2000, 2));
    setup.drive();
    assert_eq!(setup.messages(), [pattern(2000, 2)]);
}

// conformance: A44 A188
#[test]
fn unexpected_header_length_fails_the_receive() {
    // 1.10 has shorter raw addresses, and drops them when the HANDSHAKE has come.
    for (sender, first, later) in [(Release::V1_10, 44, 8), (Release::V1_12, 44, 8)] {
        let mut setup =
            Setup::of(Config::as_release(sender), at(Release::V1_13, UnexpectedHeader::Refuse));
        setup.post(0..2);
        let expected = HEADER;
        for found in [first, later] {
            setup.send(0, pattern(100, 1));
            setup.drive();
            assert_eq!(setup.errors(), [OperationError::UnexpectedHeader { found, expected }]);
        }
    }
}

// conformance: A43 A45 A189
#[test]
fn message_after_unexpected_header_length_is_moved_if_configured() {
    let mut setup =
        Setup::of(Config::as_release(Release::V1_10), at(Release::V1_13, UnexpectedHeader::Move));
    for (round, header) in [44, 8, 8].into_iter().enumerate() {
        setup.post(0..1);
        let bytes = pattern(5000, round as u64);
        setup.send(0, bytes.clone());
        setup.drive();
        assert_eq!(headers(&mut setup.world, 0), [header]);
        setup.world.forget_packets();
        let message = setup.received.pop().unwrap().result.unwrap();
        assert_eq!(message.bytes(), bytes);
        assert_eq!(message.into_packet()[HEADER..][..5000], bytes);
    }
    // With a short header, a message may be longer than the space behind the expected header.
    setup.post(1..2);
    setup.send(0, pattern(MTU - 8, 9));
    setup.drive();
    let (length, capacity) = (MTU as u64 - 8, (MTU - HEADER) as u64);
    assert_eq!(setup.errors(), [OperationError::Truncated { length, capacity }]);
}

// conformance: A186
#[test]
fn connid_keeps_the_header_length_and_cq_data_does_not() {
    for unexpected_header in [UnexpectedHeader::Refuse, UnexpectedHeader::Move] {
        let mut setup = Setup::of(Config::default(), at(Release::V1_20, unexpected_header));
        setup.post(0..40);
        for i in 0..40_u64 {
            let cq_data = (i % 4 == 3).then_some(i << 40);
            let message = Message { cq_data, ..setup.message(0, pattern(64, i)) };
            setup.world.endpoint(0).send(message).unwrap();
            setup.drive();
            let done = setup.received.pop().unwrap();
            let found = HEADER + 8;
            match (cq_data, unexpected_header) {
                (Some(_), UnexpectedHeader::Refuse) => {
                    let error = OperationError::UnexpectedHeader { found, expected: HEADER };
                    assert_eq!(done.result, Err(error));
                }
                _ => assert_eq!(done.result.unwrap().bytes(), pattern(64, i)),
            }
            assert_eq!(done.cq_data, cq_data);
        }
        assert!(announced(&mut setup).contains(Extras::CONNID_HEADER), "and it asks for connids");
    }
}

// conformance: A190
#[test]
fn unsuitable_packet_leaves_in_place_receives_posted() {
    let mut setup = Setup::of(Config::default(), at(Release::V1_20, UnexpectedHeader::Move));
    setup.post(0..3);
    // Before the HANDSHAKE, a peer may send messages that cannot be received in place.
    let tagged = Message { tag: Some(5), ..setup.message(0, pattern(10, 1)) };
    setup.world.endpoint(0).send(tagged).unwrap();
    for size in [20_000, 200_000] {
        let message = setup.message(0, pattern(size, 2));
        setup.world.endpoint(0).send(message).unwrap();
    }
    setup.idle(Duration::from_millis(1));
    let drops = setup.drops();
    for packet_type in
        [PacketType::EagerTagRtm, PacketType::MediumMsgRtm, PacketType::LongCtsMsgRtm]
    {
        assert!(drops.contains(&DropReason::NotInPlace(packet_type)), "{packet_type}: {drops:?}");
    }
    assert!(setup.received.is_empty());

    // Writes still work; their packets are posted again.
    let access = Access { remote_read: false, remote_write: true };
    let memory = vec![0; 3000].into_boxed_slice();
    let region = setup.receiver.queue_pair().register(memory, access).unwrap();
    let iov = RmaIov::new(region.remote_address(), 3000, region.remote_key().into());
    for _ in 0..200 {
        let write = Write {
            peer: setup.peers[0],
            remote: Remote::from(iov),
            buffer: pattern(3000, 4),
            cq_data: None,
            level: Level::Transmit,
            context: 0,
        };
        setup.world.endpoint(0).write(write).unwrap();
        setup.idle(Duration::from_micros(100));
    }
    let mut written = vec![0; 3000];
    region.read(0, &mut written);
    assert_eq!(written, pattern(3000, 4));

    let context = |done: &Received| done.context;
    for i in 0..3 {
        setup.send(0, pattern(50, i));
        setup.idle(Duration::from_millis(1));
    }
    assert_eq!(setup.received.iter().map(context).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(setup.messages(), [pattern(50, 0), pattern(50, 1), pattern(50, 2)]);
}

#[test]
fn message_too_long_for_a_receive_in_place_ends_at_its_sender_by_peer_error() {
    let with_peer_error = |mut config: Config| {
        config.profile.extras.insert(Extras::PEER_ERROR_20);
        config
    };
    let receiver = with_peer_error(at(Release::V1_20, UnexpectedHeader::Refuse));
    let mut setup = Setup::of(with_peer_error(Config::default()), receiver);
    setup.post(0..1);
    setup.send(0, vec![1; 100_000]);
    setup.drive();
    let code = efa_device::Status::UnsupportedOperation.code().into();
    let sent = setup.world.send_done(0);
    assert_eq!(sent.result, Err(OperationError::GivenUp { code }));
    assert_eq!(setup.drops(), [DropReason::NotInPlace(PacketType::LongCtsMsgRtm)]);
}

#[test]
fn delivery_complete_send_to_in_place_receiver_fails() {
    for release in [Release::V1_14, Release::V1_22] {
        let mut setup = Setup::of(Config::default(), at(release, UnexpectedHeader::Move));
        setup.post(0..1);
        let message = Message { level: Level::Delivery, ..setup.message(0, pattern(8, 1)) };
        setup.world.endpoint(0).send(message).unwrap();
        setup.drive();
        let missing = Extras::DELIVERY_COMPLETE;
        let sent = setup.world.send_done(0);
        assert_eq!(sent.result, Err(OperationError::PeerLacks { missing }), "{release}");
        assert!(setup.received.is_empty());
    }
}

#[test]
fn unexpected_message_is_received_in_place_later() {
    for unexpected_header in [UnexpectedHeader::Refuse, UnexpectedHeader::Move] {
        let sender = Config::as_release(Release::V1_12);
        let mut setup = Setup::of(sender, at(Release::V1_16, unexpected_header));
        setup.send(0, pattern(700, 1));
        setup.drive();
        assert!(setup.received.is_empty());
        assert_eq!(setup.receiver.statistics().unexpected, 1);
        setup.post(4..5);
        setup.drive();
        assert_eq!(setup.received[0].context, 4);
        match unexpected_header {
            UnexpectedHeader::Refuse => {
                let error = OperationError::UnexpectedHeader { found: 44, expected: HEADER };
                assert_eq!(setup.errors(), [error]);
            }
            UnexpectedHeader::Move => assert_eq!(setup.messages(), [pattern(700, 1)]),
        }
        assert_eq!(setup.receiver.packets_held().held, 0);
    }
}

#[test]
fn unexpected_messages_beyond_the_bound_cause_back_pressure() {
    let mut config = at(Release::V1_20, UnexpectedHeader::Move);
    config.bounds.unexpected = 8192;
    let mut setup = Setup::of(Config::default(), config);
    let expected: BTreeSet<_> = (0..200).map(|i| pattern(500, i)).collect();
    for bytes in &expected {
        setup.send(0, bytes.clone());
    }
    setup.idle(Duration::from_millis(2));
    assert_eq!(setup.receiver.statistics().back_pressure, 1);
    assert!(setup.receiver.statistics().unexpected < 200);
    setup.post(0..200);
    setup.idle(Duration::from_millis(500));
    assert_eq!(BTreeSet::from_iter(setup.messages()), expected);
    assert_eq!(setup.receiver.packets_held().held, 0);
}

#[test]
fn in_place_receives_end_as_closed_with_all_operations() {
    for release in [Release::V1_20, Release::V2_0] {
        let mut setup = Setup::of(Config::default(), at(release, UnexpectedHeader::Move));
        setup.post(3..5);
        setup.receiver.end_operations();
        setup.step();
        assert_eq!(setup.received.iter().map(|done| done.context).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(setup.errors(), [OperationError::Closed; 2]);
    }
}

/// Sends 600 messages from three senders over a network that reorders packets and reports RNR. Each packet
/// received is posted again; each message must arrive once.
fn storm(release: Release, seed: u64) {
    let options = LocalOptions::default().with(|options| {
        options.seed = seed;
        options.faults = Faults::default().with(|faults| {
            faults.receiver_not_ready = 0.02;
            faults.send_refused = 0.02;
        });
    });
    let sender = Config::default().with(|config| config.messages_after_handshake = true);
    let mut setup = Setup::new(
        options,
        &[sender.clone(), sender.clone(), sender],
        at(release, UnexpectedHeader::Move),
    );
    let mut draw = fastrand::Rng::with_seed(seed);
    let mut expected: BTreeMap<Vec<u8>, Option<u64>> = BTreeMap::new();
    let mut contexts = BTreeSet::new();
    setup.post(0..8);
    contexts.extend(0..8_u64);
    let (mut sent, mut next) = (0, 8);
    while sent < 600 || !expected.is_empty() {
        if sent < 600 && draw.bool() {
            let mut bytes = pattern(draw.usize(0..8000), sent);
            bytes.extend(sent.to_le_bytes());
            let cq_data = draw.bool().then(|| draw.u32(..).into());
            let from = draw.usize(0..3);
            let message = Message { cq_data, ..setup.message(from, bytes.clone()) };
            setup.world.endpoint(from).send(message).unwrap();
            expected.insert(bytes, cq_data);
            sent += 1;
        }
        setup.step();
        for done in setup.received.drain(..) {
            assert!(contexts.remove(&done.context), "each context once");
            let message = done.result.unwrap();
            let cq_data = expected.remove(message.bytes());
            assert_eq!(cq_data, Some(done.cq_data), "each message once");
            setup.receiver.receive_in_place(message.into_packet(), next).unwrap();
            contexts.insert(next);
            next += 1;
        }
    }
    assert_eq!(contexts.len(), 8);
    assert_eq!(setup.drops(), []);
}

#[test]
fn in_place_messages_arrive_once_under_faults() {
    for (seed, release) in CONSTANT_HEADER.into_iter().chain(USER_QUEUE).enumerate() {
        storm(release, seed as u64);
    }
}

#[test]
fn unsuitable_unexpected_messages_are_bounded() {
    let mut config = at(Release::V1_20, UnexpectedHeader::Refuse);
    config.bounds.unexpected = 8192;
    let mut setup = Setup::of(Config::default(), config);
    for i in 0..200 {
        // CQ data makes the header longer than expected.
        let message = Message { cq_data: Some(i), ..setup.message(0, pattern(5, i)) };
        setup.world.endpoint(0).send(message).unwrap();
    }
    setup.idle(Duration::from_millis(2));
    assert_eq!(setup.receiver.statistics().back_pressure, 1);
    setup.post(0..200);
    while setup.received.len() < 200 {
        setup.step();
    }
    assert_eq!(setup.errors().len(), 200);
    assert_eq!(setup.receiver.packets_held().unexpected_bytes, 0);
}

#[test]
fn in_place_receives_and_lengths_reach_their_limits() {
    let config =
        at(Release::V1_20, UnexpectedHeader::Refuse).with(|config| config.max_receives = 2);
    let mut setup = Setup::of(Config::default(), config);
    setup.post(0..2);
    let packet = setup.receiver.allocate_packet().unwrap();
    let refused = setup.receiver.receive_in_place(packet, 2).unwrap_err();
    assert_eq!((refused.error, refused.buffer.len()), (StartError::Busy { limit: 2 }, MTU));
    let longest = MTU - HEADER;
    setup.send(0, pattern(longest, 1));
    setup.send(0, pattern(longest, 2));
    setup.drive();
    let expected = BTreeSet::from([pattern(longest, 1), pattern(longest, 2)]);
    assert_eq!(BTreeSet::from_iter(setup.messages()), expected);
}

#[test]
fn unexpected_messages_of_excluded_peer_are_discarded_others_stay() {
    let mut config = at(Release::V1_20, UnexpectedHeader::Move);
    config.bounds.unexpected_per_peer = 5000;
    let options = LocalOptions::default().with(|options| options.seed = 5);
    let mut setup = Setup::new(options, &[Config::default(), Config::default()], config);
    setup.send(1, pattern(900, 7));
    setup.idle(Duration::from_millis(1));
    for salt in 0..10 {
        setup.send(0, pattern(900, salt));
    }
    setup.idle(Duration::from_millis(1));
    assert_eq!(setup.receiver.statistics().excluded, 1);
    setup.post(0..2);
    setup.idle(Duration::from_millis(1));
    assert_eq!(setup.messages(), [pattern(900, 7)]);
    let held = setup.receiver.packets_held();
    assert_eq!((held.held, held.unexpected_bytes), (0, 0));
}

#[test]
fn message_in_place_of_a_reinserted_peer_is_counted_back_when_received() {
    let knows = Config::default().with(|config| config.messages_after_handshake = true);
    let senders = [knows, Config::default()];
    let config = at(Release::V1_22, UnexpectedHeader::Move);
    let options = LocalOptions::default().with(|options| options.seed = 5);
    let mut setup = Setup::new(options, &senders, config);
    setup.post(0..1);
    setup.send(0, pattern(9, 1));
    setup.drive();
    assert_eq!(setup.messages(), [pattern(9, 1)]);

    // The receiver forgets the sender, which goes on to send to the second queue pair.
    let address = setup.world.endpoint(0).address();
    let old = setup.receiver.find_peer(&address).unwrap();
    setup.receiver.remove_peer(old);
    let new = setup.receiver.insert_peer(address).unwrap();
    assert_ne!(old, new);

    // A message with a header takes the receive; the next finds a packet, and no receive.
    setup.post(1..2);
    setup.send(1, pattern(9, 2));
    setup.drive();
    assert_eq!(setup.messages(), [pattern(9, 2)]);
    setup.send(0, pattern(9, 3));
    setup.drive();
    assert!(setup.messages().is_empty());
    assert!(setup.receiver.packets_held().unexpected_bytes > 0);

    let (buffer, level) = (pattern(9, 4), Level::Transmit);
    let message = Message { peer: new, tag: None, cq_data: None, level, buffer, context: 0 };
    setup.receiver.send(message).unwrap();
    setup.drive();
    setup.post(2..3);
    setup.drive();
    assert_eq!(setup.messages(), [pattern(9, 3)]);
    assert_eq!(setup.receiver.packets_held().unexpected_bytes, 0);
}

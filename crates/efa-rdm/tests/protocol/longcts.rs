//! Section 3.2, long-CTS message.

use efa_device::Status;
use efa_handshake::{Profile, Release};
use efa_proto::{
    Connid, Cts, CtsData, Header, MsgId, OpId, Packet, PacketType, ReqOptions, Rtm, RtmKind,
};
use efa_rdm::{Config, DropReason, Level, Message, OperationError, Payload, Subprotocol};
use efa_sim::local::{LocalOptions, Reorder};

use crate::world::{World, pattern, place};

fn ctsdata(packets: &[Vec<u8>]) -> Vec<CtsData> {
    let parsed = packets.iter().filter_map(|bytes| match Packet::parse(bytes).unwrap().header {
        Header::CtsData(data) => Some(data),
        _ => None,
    });
    parsed.collect()
}

fn grants(packets: &[Vec<u8>]) -> Vec<Cts> {
    let parsed = packets.iter().filter_map(|bytes| match Packet::parse(bytes).unwrap().header {
        Header::Cts(cts) => Some(cts),
        _ => None,
    });
    parsed.collect()
}

// Neither side announces RDMA read, so the baseline carries even the longest message.
// conformance: A116 A117 A118 A119 A123 A130 A7 A40
#[test]
fn long_cts_message_is_granted_windows_until_complete() {
    for (seed, length) in [(0, 65_537), (1, 300_000), (2, 1_000_000), (3, 6 << 20)] {
        let mut world = World::pair(seed);
        world.receive(1, length, 1);
        world.send(0, 1, pattern(length, seed), 2);
        world.drive();
        let received = world.receive_done(1);
        assert_eq!(received.subprotocol, Some(Subprotocol::LongCts));
        assert_eq!((received.length, received.result), (length as u64, Ok(())));
        assert!(received.buffer == pattern(length, seed));
        let sent = world.send_done(0);
        assert_eq!((sent.context, sent.result), (2, Ok(())));

        let packets = world.packets_from(0);
        let request = Packet::parse(&packets[0]).unwrap();
        let Header::Rtm(Rtm { kind: RtmKind::LongCts { msg_length, .. }, .. }) = request.header
        else {
            panic!("the request comes first: {request}");
        };
        assert_eq!(msg_length, length as u64);
        assert_eq!(request.payload, &pattern(length, seed)[..request.payload.len()]);
        let data = ctsdata(&packets);
        let grants = grants(&world.packets_from(1));
        let first = request.payload.len() as u64;
        let window = 32 * (8928 - 32);
        assert_eq!(grants.len() as u64, (length as u64 - first).div_ceil(window));
        // Each grant is used up to the byte, by the operation it names, before the next one.
        let mut offset = first;
        let mut data = data.into_iter();
        for grant in &grants {
            let end = offset + grant.recv_length;
            while offset < end {
                let segment = data.next().unwrap();
                assert_eq!((segment.recv_id, segment.seg_offset), (grant.recv_id, offset));
                offset += segment.seg_length;
            }
            assert_eq!(offset, end);
        }
        assert_eq!((offset, data.next()), (length as u64, None));
        world.assert_clean();
    }
}

// conformance: A118
#[test]
fn unexpected_long_cts_message_gets_no_cts_before_it_matches() {
    let mut world = World::pair(1);
    world.tagged_send(0, 1, 7, pattern(100_000, 1));
    world.drive();
    assert!(!world.types_from(1).contains(&PacketType::Cts));
    assert!(world.ends[0].sends.is_empty());
    world.tagged_receive(1, 7, 100_000);
    world.drive();
    assert!(world.types_from(1).contains(&PacketType::Cts));
    assert_eq!(world.receive_done(1).buffer, pattern(100_000, 1));
    world.send_done(0);
    world.assert_clean();
}

// conformance: A129
#[test]
fn concurrent_long_cts_messages_between_many_endpoints_arrive() {
    let mut world = World::pair(2);
    world.add(Config::default());
    let length = |i: u64| 70_000 + 1_000 * i as usize;
    let links = [(0, 1), (1, 0), (0, 2), (2, 1)];
    for i in 0..64 {
        for (from, to) in links {
            let tag = i << 8 | (from as u64) << 4 | to as u64;
            if i % 3 > 0 {
                world.tagged_receive(to, tag, length(i));
            }
            world.tagged_send(from, to, tag, pattern(length(i), tag));
        }
    }
    for _ in 0..50 {
        world.step();
    }
    for i in (0..64).step_by(3) {
        for (from, to) in links {
            world.tagged_receive(to, i << 8 | (from as u64) << 4 | to as u64, length(i));
        }
    }
    world.drive();
    let mut ended = 0;
    for end in &mut world.ends {
        for received in end.receives.drain(..) {
            assert_eq!(received.result, Ok(()));
            assert!(received.buffer == pattern(length(received.tag >> 8), received.tag));
            ended += 1;
        }
        assert!(end.sends.drain(..).all(|sent| sent.result == Ok(())));
    }
    assert_eq!(ended, 64 * links.len());
    world.assert_clean();
}

/// A sender whose long message is under way, and its request.
fn sender_waiting() -> (World, OpId) {
    let mut world = World::pair(3);
    world.acquaint();
    world.send(0, 1, pattern(100_000, 1), 0);
    world.drive();
    let packets = world.packets_from(0);
    let send_id = packets.iter().find_map(|bytes| match Packet::parse(bytes).unwrap().header {
        Header::Rtm(Rtm { kind: RtmKind::LongCts { send_id, .. }, .. }) => Some(send_id),
        _ => None,
    });
    (world, send_id.unwrap())
}

fn cts(send_id: OpId, recv_length: u64) -> Cts {
    Cts { connid: None, send_id, recv_id: OpId(5), recv_length, emulated_read: false }
}

// conformance: A120 A122
#[test]
fn empty_or_unknown_cts_is_dropped() {
    let (mut world, send_id) = sender_waiting();
    let inject = |world: &mut World, cts: Cts| {
        world.inject(1, 0, Header::Cts(cts), &[]);
        world.drive();
        world.drop_reasons(0)
    };
    assert_eq!(inject(&mut world, cts(send_id, 0)), [DropReason::BadCts]);
    let reading = Cts { emulated_read: true, ..cts(send_id, 5) };
    assert_eq!(inject(&mut world, reading), [DropReason::BadCts]);
    for made_up in [send_id.0 + 1, send_id.0 ^ 1 << 22, u32::MAX] {
        let reasons = inject(&mut world, cts(OpId(made_up), 5));
        assert_eq!(reasons, [DropReason::UnknownOperation]);
    }
    // A CTS from another peer.
    let third = world.add(Config::default());
    world.peer(0, third);
    world.inject(third, 0, Header::Cts(cts(send_id, 5)), &[]);
    world.drive();
    assert_eq!(world.drop_reasons(0), [DropReason::UnknownOperation]);

    world.receive(1, 100_000, 0);
    world.drive();
    assert!(world.receive_done(1).buffer == pattern(100_000, 1));
    assert_eq!(world.send_done(0).result, Ok(()));
    assert_eq!(inject(&mut world, cts(send_id, 5)), [DropReason::UnknownOperation], "it is over");
}

// conformance: A117 A122
#[test]
fn sender_sends_exactly_the_granted_bytes() {
    let (mut world, send_id) = sender_waiting();
    let mut sent = 0;
    for recv_length in [1, 7, 10_000, 20_000] {
        world.forget_packets();
        world.inject(1, 0, Header::Cts(cts(send_id, recv_length)), &[]);
        world.drive();
        let data = ctsdata(&world.packets_from(0));
        assert_eq!(data.iter().map(|data| data.seg_length).sum::<u64>(), recv_length);
        assert!(data.iter().all(|data| data.recv_id == OpId(5)));
        sent += recv_length;
    }
    // A grant beyond the remainder sends the remainder.
    world.forget_packets();
    world.inject(1, 0, Header::Cts(cts(send_id, u64::MAX)), &[]);
    world.drive();
    let data = ctsdata(&world.packets_from(0));
    let first = 8928 - 24 - 40;
    assert_eq!(data.iter().map(|data| data.seg_length).sum::<u64>(), 100_000 - first - sent);
}

/// A receiver that has granted a window for a message of which `first` bytes came.
fn receiver_waiting(length: u64, first: usize, credit_request: u32) -> (World, Cts) {
    let mut world = World::pair(4);
    world.acquaint();
    world.tagged_receive(1, 7, length as usize);
    let kind =
        RtmKind::LongCts { msg_length: length, send_id: OpId(9), credit_request, read_nack: false };
    let options = ReqOptions::NONE;
    let request = Rtm { msg_id: MsgId(0), tag: Some(7), kind, options };
    world.inject(0, 1, Header::Rtm(request), &pattern(length as usize, 1)[..first]);
    world.drive();
    let grants = grants(&world.packets_from(1));
    assert_eq!(grants.len(), 1);
    world.ends[0].events.clear();
    (world, grants[0])
}

// conformance: A121 A120
#[test]
fn cts_grants_at_least_a_packet_or_the_remainder() {
    for credit_request in [0, 1, u32::MAX] {
        for (length, cts_window) in [(1, 32), (2, 1), (8_000, 1), (100_000, 1), (100_000, 32)] {
            let config = Config::default().with(|config| config.cts_window = cts_window);
            let mut world = World::pair_with(5, Config::default(), config);
            world.acquaint();
            world.tagged_receive(1, 7, length as usize);
            let kind = RtmKind::LongCts {
                msg_length: length,
                send_id: OpId(9),
                credit_request,
                read_nack: false,
            };
            let request = Rtm { msg_id: MsgId(0), tag: Some(7), kind, options: ReqOptions::NONE };
            world.inject(0, 1, Header::Rtm(request), &[]);
            world.drive();
            let grant = grants(&world.packets_from(1))[0];
            assert_eq!(grant.send_id, OpId(9));
            assert_eq!(grant.recv_length, length.min(u64::from(cts_window) * (8928 - 32)));
        }
    }
}

// conformance: A128 A124 A122
#[test]
fn ctsdata_beyond_grant_message_or_buffer_is_dropped() {
    let (mut world, grant) = receiver_waiting(1000, 100, 1);
    assert_eq!(grant.recv_length, 900);
    let message = pattern(1000, 1);
    let data = |recv_id, seg_offset, payload: &[u8]| CtsData {
        connid: None,
        recv_id,
        seg_length: payload.len() as u64,
        seg_offset,
    };
    let junk = [0xff; 50];
    let id = grant.recv_id;
    for (header, expected) in [
        (data(id, 951, &junk), DropReason::SegmentOutOfRange),
        (data(id, u64::MAX - 10, &junk), DropReason::SegmentOutOfRange),
        (data(id, 1 << 40, &junk), DropReason::SegmentOutOfRange),
        (data(id, 0, &junk), DropReason::RepeatedSegment),
        (data(id, 99, &junk), DropReason::RepeatedSegment),
        (data(OpId(id.0 ^ 1), 100, &junk), DropReason::UnknownOperation),
        (data(OpId(id.0 ^ 1 << 25), 100, &junk), DropReason::UnknownOperation),
    ] {
        world.inject(0, 1, Header::CtsData(header), &junk);
        world.drive();
        assert_eq!(world.drop_reasons(1), [expected]);
    }
    // A length that contradicts the packet.
    for seg_length in [49, 51, u64::MAX] {
        let header = CtsData { seg_length, ..data(id, 100, &junk) };
        world.inject(0, 1, Header::CtsData(header), &junk);
        world.drive();
        assert!(matches!(world.drop_reasons(1)[..], [DropReason::Malformed(_)]));
    }
    // Data from another peer.
    let third = world.add(Config::default());
    world.peer(1, third);
    world.inject(third, 1, Header::CtsData(data(id, 100, &junk)), &junk);
    world.drive();
    assert!(world.drop_reasons(1).contains(&DropReason::UnknownOperation));

    assert!(world.ends[1].receives.is_empty());
    for offset in (100..1000).step_by(100).rev() {
        let payload = &message[offset..offset + 100];
        world.inject(0, 1, Header::CtsData(data(id, offset as u64, payload)), payload);
    }
    world.drive();
    let received = world.receive_done(1);
    assert_eq!((received.buffer, received.result), (message, Ok(())));
}

// conformance: A125
#[test]
fn ctsdata_with_and_without_connid_is_accepted() {
    let (mut world, grant) = receiver_waiting(1000, 0, 1);
    let message = pattern(1000, 1);
    let sender = world.endpoint(0).address().connid;
    for (i, connid) in [(0, None), (1, Some(sender)), (2, None), (3, Some(sender))] {
        let payload = &message[250 * i..250 * (i + 1)];
        let header =
            CtsData { connid, recv_id: grant.recv_id, seg_length: 250, seg_offset: 250 * i as u64 };
        world.inject(0, 1, Header::CtsData(header), payload);
    }
    world.drive();
    assert_eq!(world.receive_done(1).buffer, message);
}

// conformance: A126
#[test]
fn ctsdata_carries_the_connid_by_release() {
    for (release, expected) in [(Release::V1_13, false), (Release::V1_14, true)] {
        let profile = Profile::of(release).announcing_only(efa_handshake::Extras::CONNID_HEADER);
        let config = Config::default().with(|config| config.profile = profile);
        let mut world = World::pair_with(6, config.clone(), config);
        world.receive(1, 200_000, 0);
        world.send(0, 1, pattern(200_000, 1), 0);
        world.drive();
        assert!(world.receive_done(1).buffer == pattern(200_000, 1));
        let receiver = world.endpoint(1).address().connid;
        let sender = world.endpoint(0).address().connid;
        let connid = |connid: Connid| expected.then_some(connid);
        assert!(grants(&world.packets_from(1)).iter().all(|cts| cts.connid == connid(receiver)));
        let data = ctsdata(&world.packets_from(0));
        assert!(data.iter().all(|data| data.connid == connid(sender)) && !data.is_empty());
    }
}

/// A virtual buffer: each byte is computed from its offset, and checked when written.
#[derive(Debug)]
struct Virtual {
    length: u64,
    wrong: u64,
    /// Bytes at the ends of the message that were written.
    edges: u64,
}

impl<R> Payload<R> for Virtual {
    fn length(&self) -> u64 {
        self.length
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        into.fill(0);
        if let Some(first) = into.first_chunk_mut() {
            *first = offset.to_le_bytes();
        }
    }
    fn write(&mut self, offset: u64, from: &[u8]) {
        if from.first_chunk().is_some_and(|first| u64::from_le_bytes(*first) != offset) {
            self.wrong += 1;
        }
        self.edges += u64::from(offset == 0) + u64::from(offset + from.len() as u64 == self.length);
    }
    fn split_to(&mut self, at: u64) -> Self {
        self.length -= at;
        Self { length: at, wrong: 0, edges: 0 }
    }
}

// conformance: A127 A8
#[test]
fn long_cts_message_above_4_gib_arrives() {
    use efa_device::{Device, QueuePairOptions, Time};
    let length = (4 << 30) + 12_345;
    let network = efa_sim::local::LocalFabric::new(LocalOptions::default().with(|options| {
        options.reorder = Reorder::Shuffle;
        options.mtu = 1 << 22;
    }));
    let config = Config::default().with(|config| {
        config.cts_window = 4;
        config.min_receive_buffers = 8;
    });
    let endpoint = || {
        let options = QueuePairOptions::default().with(|options| options.receive_depth = 16);
        let queue_pair = network.open().create_queue_pair(options).unwrap();
        efa_rdm::Endpoint::new(queue_pair, config.clone()).unwrap()
    };
    let (mut a, mut b) = (endpoint(), endpoint());
    let message = || Virtual { length, wrong: 0, edges: 0 };
    let peer = a.insert_peer(b.address()).unwrap();
    b.receive(efa_rdm::Accept::Untagged { source: None }, message(), 0).unwrap();
    let buffer = message();
    a.send(Message { peer, tag: None, cq_data: None, level: Level::Transmit, buffer, context: 0 })
        .unwrap();
    let mut now = Time::ZERO;
    let received = loop {
        a.progress(now);
        b.progress(now);
        if let Some(efa_rdm::Completion::Receive(received)) = b.poll_completion() {
            break received;
        }
        now = network.next_event().expect("the message is under way").max(now);
    };
    assert_eq!((received.length, received.result), (length, Ok(())));
    assert_eq!((received.buffer.wrong, received.buffer.edges), (0, 2));
}

#[test]
fn receive_whose_cts_fails_completes_with_an_error() {
    let mut world = World::pair(9);
    world.acquaint();
    world.send(0, 1, pattern(10, 1), 0);
    world.receive(1, 10, 0);
    world.drive();
    world.receive_done(1);
    let receiver = place(&world.ends[1]);
    world.network.fail_sends(receiver, 1, Status::BadStatus).unwrap();
    world.receive(1, 200_000, 1);
    world.send(0, 1, pattern(200_000, 1), 1);
    world.drive();
    let failed = world.receive_done(1);
    assert_eq!(failed.result, Err(OperationError::Device(Status::BadStatus)));
    assert_eq!(failed.buffer.len(), 200_000);
}

#[test]
fn rest_of_a_message_arrives_behind_unexpected_ones_that_exceed_their_bound_if_there_is_one_for_that()
 {
    const SHORT: usize = 2_000;
    for (behind, arrives) in [(0, false), (64 << 20, true)] {
        let receiver = Config::default().with(|config| {
            config.bounds.unexpected = 10_000;
            config.bounds.behind = behind;
        });
        let mut world = World::pair_with(1, Config::default(), receiver);
        world.receive(1, 300_000, 1);
        world.send(0, 1, pattern(300_000, 0), 2);
        for context in 0..SHORT {
            world.send(0, 1, pattern(1_000, 1), context as u64);
        }
        (0..20_000).for_each(|_| world.step());
        assert_eq!(world.take_receives(1).len(), usize::from(arrives), "{behind}");
        // What waited goes on with receives for it.
        for _ in 0..SHORT {
            world.receive(1, 1_000, 3);
        }
        world.drive();
        assert_eq!(world.take_receives(1).len(), SHORT + usize::from(!arrives), "{behind}");
    }
}

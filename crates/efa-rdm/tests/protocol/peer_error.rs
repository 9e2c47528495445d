//! PEER_ERROR: one side abandons a message and reports that to the other.

use efa_device::{Access, QueuePair, Rdma, Region, RegionRange, Status};
use efa_handshake::Extras;
use efa_proto::{
    Header, MsgId, OpId, Packet, PacketType, PeerError, Receipt, ReqOptions, RmaIov, Rtm, RtmKind,
};
use efa_rdm::{Bounds, Config, DropReason, Event, Level, OperationError, Read, Remote, Write};
use efa_sim::SoftRegion;
use efa_sim::local::LocalOptions;

use crate::longread::Memory;
use crate::rma::bytes_of;
use crate::world::{Net, pattern};

type World = Net<Memory>;

const CODE: u32 = 4099;
const GIVEN_UP: OperationError = OperationError::GivenUp { code: CODE };

/// With PEER_ERROR. Messages of at least 100,000 bytes are read.
pub(crate) fn config() -> Config {
    Config::default().with(|config| config.min_read = Some(100_000))
}

/// Two endpoints that have exchanged HANDSHAKEs.
pub(crate) fn pair(a: Config, b: Config) -> World {
    let mut world = World::pair_with(3, a, b);
    world.acquaint();
    for (from, to) in [(0, 1), (1, 0)] {
        world.receive_into(to, heap(1), 0);
        world.send(from, to, heap(1), 0);
        world.drive();
        world.receive_done(to);
        world.send_done(from);
    }
    world.forget_packets();
    world
}

fn heap(length: usize) -> Memory {
    Memory::Heap(vec![7; length])
}

/// Injects a packet of a message from end 0, and runs until all is quiet.
fn inject(world: &mut World, msg_id: u32, kind: RtmKind<'_>, payload: &[u8]) {
    begin(world, msg_id, kind, payload);
    world.drive();
}

/// Like [`inject`], without running.
fn begin(world: &mut World, msg_id: u32, kind: RtmKind<'_>, payload: &[u8]) {
    let connid = Some(world.ends[0].endpoint.address().connid);
    let options = ReqOptions { raw_address: None, cq_data: None, connid };
    let rtm = Rtm { msg_id: MsgId(msg_id), tag: None, kind, options };
    world.inject(0, 1, Header::Rtm(rtm), payload);
}

/// Injects the first 1,000 bytes of message 1, a runting read of 300,000 bytes.
fn begin_runt(world: &mut World, runt_length: u64, read_iov: &[RmaIov]) {
    let (msg_length, send_id, seg_offset) = (300_000, OpId(5), 0);
    let kind = RtmKind::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov };
    begin(world, 1, kind, &pattern(1000, 1));
}

fn peer_error(world: &mut World, ref_kind: u8, op_id: u32) {
    begin_peer_error(world, ref_kind, op_id);
    world.drive();
}

/// Like [`peer_error`], without running.
fn begin_peer_error(world: &mut World, ref_kind: u8, op_id: u32) {
    inject_error(world, 0, ref_kind, OpId(op_id));
}

/// Injects a PEER_ERROR from one end to the other.
fn inject_error(world: &mut World, from: usize, ref_kind: u8, op_id: OpId) {
    let connid = Some(world.ends[from].endpoint.address().connid);
    let error = PeerError { op_id, ref_kind, prov_errno: CODE, connid };
    world.inject(from, 1 - from, Header::PeerError(error), &[]);
}

/// Memory of an endpoint that its peers may read.
fn readable(world: &World, end: usize, length: usize) -> SoftRegion {
    let access = Access { remote_read: true, remote_write: false };
    let queue_pair = world.ends[end].endpoint.queue_pair();
    queue_pair.register(vec![1; length].into(), access).unwrap()
}

/// The first half of a medium message.
fn half(world: &mut World, msg_id: u32) {
    let kind = RtmKind::Medium { msg_length: 2000, seg_offset: 0 };
    inject(world, msg_id, kind, &pattern(1000, 1));
}

fn eager(world: &mut World, msg_id: u32) {
    inject(world, msg_id, RtmKind::Eager, &pattern(30, msg_id.into()));
}

/// Asserts that the next receive got this [`eager`] message.
fn expect_eager(world: &mut World, msg_id: u32) {
    let received = world.receive_done(1);
    assert_eq!(received.result, Ok(()));
    assert_eq!(received.buffer.bytes()[..30], pattern(30, msg_id.into()), "message {msg_id}");
}

fn abandoned(world: &mut World) -> Vec<u32> {
    let events = world.ends[1].events.drain(..);
    let ids = events.filter_map(|event| match event {
        Event::MessageAbandoned { msg_id, code: CODE, .. } => Some(msg_id),
        _ => None,
    });
    ids.collect()
}

/// Sends a message whose memory cannot be read: its key belongs to another device.
fn send_unreadable(world: &mut World) {
    world.add(Config::default());
    let region = readable(world, 2, 200_000);
    let memory = Memory::Region(RegionRange { region, offset: 0, length: 200_000 });
    world.receive_into(1, heap(200_000), 5);
    world.send(0, 1, memory, 6);
    world.drive();
}

#[test]
fn sender_of_unreadable_message_gets_peer_error() {
    let mut reader = config();
    reader.profile.extras.remove(Extras::READ_NACK);
    let mut world = pair(config(), reader);
    send_unreadable(&mut world);
    assert_eq!(world.types_from(1), [PacketType::PeerError]);
    let status = Status::RemoteBadAddress;
    assert_eq!(world.receive_done(1).result, Err(OperationError::Device(status)));
    let code = status.code().into();
    assert_eq!(world.send_done(0).result, Err(OperationError::GivenUp { code }));
    // Later messages still arrive.
    world.receive_into(1, heap(30), 7);
    world.send(0, 1, Memory::Heap(pattern(30, 1)), 8);
    world.drive();
    expect_eager(&mut world, 1);
    world.send_done(0);
    world.assert_clean();
}

#[test]
fn sender_with_read_nack_support_gets_read_nack() {
    let mut world = pair(config(), config());
    send_unreadable(&mut world);
    assert!(world.types_from(1).starts_with(&[PacketType::ReadNack]));
    assert_eq!(world.receive_done(1).result, Ok(()));
    assert_eq!(world.send_done(0).result, Ok(()));
}

#[test]
fn peer_without_the_feature_gets_no_peer_error() {
    for without in [0, 1] {
        let mut configs = [config(), config()];
        configs[without].profile.extras.remove(Extras::PEER_ERROR_20);
        configs[1].profile.extras.remove(Extras::READ_NACK);
        let [a, b] = configs;
        let mut world = pair(a, b);
        send_unreadable(&mut world);
        assert_eq!(world.types_from(1), []);
        assert!(world.receive_done(1).result.is_err());
        assert!(world.take_sends(0).is_empty(), "the send waits, as in libfabric");
    }
}

#[test]
fn peer_error_without_the_feature_is_dropped() {
    let without = config().with(|config| config.profile.extras.remove(Extras::PEER_ERROR_20));
    let mut world = pair(config(), without);
    world.receive_into(1, heap(2000), 1);
    half(&mut world, 1);
    peer_error(&mut world, 1, 1);
    assert_eq!(world.drop_reasons(1), [DropReason::Unsupported(PacketType::PeerError)]);
    assert!(world.take_receives(1).is_empty());
}

#[test]
fn peer_error_fails_a_long_cts_receive() {
    let mut world = pair(config(), config());
    world.receive_into(1, heap(80_000), 1);
    let (msg_length, send_id) = (80_000, OpId(9));
    let kind = RtmKind::LongCts { msg_length, send_id, credit_request: 1, read_nack: false };
    inject(&mut world, 1, kind, &pattern(100, 1));
    let packets = world.packets_from(1);
    let Header::Cts(cts) = Packet::parse(&packets[0]).unwrap().header else { panic!("a CTS") };
    // No send has the same operation id.
    assert_ne!(cts.recv_id, OpId(0));
    peer_error(&mut world, 0, cts.recv_id.0);
    let received = world.receive_done(1);
    assert_eq!((received.context, received.length, received.result), (1, 100, Err(GIVEN_UP)));
    peer_error(&mut world, 0, cts.recv_id.0);
    peer_error(&mut world, 0, 12345);
    peer_error(&mut world, 3, 0);
    assert_eq!(world.drop_reasons(1), [DropReason::UnknownOperation; 3]);
}

#[test]
fn peer_error_ends_medium_message_before_and_after_it_matches() {
    let mut world = pair(config(), config());
    world.receive_into(1, heap(2000), 1);
    half(&mut world, 1);
    peer_error(&mut world, 1, 1);
    let received = world.receive_done(1);
    assert_eq!((received.context, received.length, received.result), (1, 1000, Err(GIVEN_UP)));

    half(&mut world, 2);
    peer_error(&mut world, 1, 2);
    assert_eq!(abandoned(&mut world), [2]);
    assert_eq!(world.endpoint(1).packets_held().held, 0);
    half(&mut world, 3);
    half(&mut world, 2);
    assert_eq!(
        world.drop_reasons(1),
        [DropReason::OldMessageId],
        "the segment belongs to an abandoned message"
    );
    peer_error(&mut world, 1, 3);
    world.receive_into(1, heap(2000), 2);
    eager(&mut world, 4);
    expect_eager(&mut world, 4);
}

#[test]
fn peer_error_lets_later_messages_be_delivered() {
    // The PEER_ERROR arrives after later messages, before them, and in the middle of an out-of-order message.
    for order in 0..3 {
        let mut world = pair(config(), config());
        for context in 0..3 {
            world.receive_into(1, heap(2000), context);
        }
        match order {
            0 => {
                eager(&mut world, 2);
                assert!(world.take_receives(1).is_empty());
                peer_error(&mut world, 2, 1);
            }
            1 => {
                peer_error(&mut world, 2, 2);
                peer_error(&mut world, 2, 2);
                assert_eq!(
                    world.endpoint(1).statistics().dropped,
                    1,
                    "the repeated PEER_ERROR is dropped"
                );
                eager(&mut world, 1);
            }
            _ => {
                half(&mut world, 2);
                peer_error(&mut world, 1, 2);
                half(&mut world, 2);
                assert_eq!(world.endpoint(1).packets_held().held, 0);
                eager(&mut world, 1);
            }
        }
        eager(&mut world, 3);
        let expected = if order == 0 { [2, 3] } else { [1, 3] };
        for msg_id in expected {
            expect_eager(&mut world, msg_id);
        }
        assert!(world.take_receives(1).is_empty());
        assert_eq!(abandoned(&mut world), [3 - expected[0]]);
        peer_error(&mut world, 2, 1);
        assert_eq!(world.drop_reasons(1), [DropReason::OldMessageId], "the message id is old");
    }
}

#[test]
fn peer_error_ends_runting_receive_after_its_read() {
    let mut world = pair(config(), config());
    let region = readable(&world, 0, 300_000);
    let key = region.remote_key().into();
    let iov = [RmaIov::new(region.remote_address(), 300_000, key)];
    world.receive_into(1, heap(300_000), 1);
    begin_runt(&mut world, 2000, &iov);
    while world.endpoint(1).statistics().rdma_reads == 0 {
        world.step();
    }
    peer_error(&mut world, 1, 1);
    let received = world.receive_done(1);
    assert_eq!((received.context, received.result), (1, Err(GIVEN_UP)));
    assert_eq!(received.buffer.bytes().len(), 300_000);
    let types = world.types_from(1);
    assert!(!types.contains(&PacketType::ReadNack), "{types:?}");
}

/// A sender that abandoned a message does not send it again, so no READ_NACK is sent.
#[test]
fn unreadable_runting_message_ends_by_peer_error() {
    for steps in 0..40 {
        let mut world = pair(config(), config());
        // Only the second half of its memory can be read.
        let region = readable(&world, 0, 150_000);
        let (address, key) = (region.remote_address(), region.remote_key().into());
        let iov = [0, key].map(|key| RmaIov::new(address, 150_000, key));
        world.receive_into(1, heap(300_000), 1);
        begin_runt(&mut world, 1000, &iov);
        for _ in 0..steps {
            world.step();
        }
        peer_error(&mut world, 1, 1);
        let received = world.take_receives(1);
        let ends: Vec<_> = received.iter().map(|of| (of.context, of.result)).collect();
        assert_eq!(ends, [(1, Err(GIVEN_UP))], "after {steps} steps");
    }
}

#[test]
fn peer_error_returns_receive_buffer_after_the_last_read() {
    let mut world = pair(
        config(),
        config().with(|config| {
            config.max_rdma = 1;
            config.rdma_segment = 4096;
        }),
    );
    let region = readable(&world, 0, 300_000);
    let key = region.remote_key().into();
    let iov = [RmaIov::new(region.remote_address(), 300_000, key)];
    world.receive_into(1, heap(300_000), 1);
    begin_runt(&mut world, 2000, &iov);
    while world.endpoint(1).statistics().rdma_reads < 3 {
        world.step();
    }
    begin_peer_error(&mut world, 1, 1);
    while world.endpoint(1).statistics().received.of(PacketType::PeerError) == 0 {
        world.step();
    }
    assert!(world.take_receives(1).is_empty(), "the device still reads");
    let reads = world.endpoint(1).statistics().rdma_reads;
    world.drive();
    assert_eq!(world.receive_done(1).result, Err(GIVEN_UP));
    assert_eq!(world.endpoint(1).statistics().rdma_reads, reads, "nothing more is read");
}

#[test]
fn message_that_could_not_be_read_does_not_count_as_being_read() {
    for nack in [false, true] {
        let mut reader = config();
        reader.profile.extras.set(Extras::READ_NACK, nack);
        let mut world = pair(config().with(|config| config.runt_size = 20_000), reader);
        send_unreadable(&mut world);
        assert_eq!(world.receive_done(1).result.is_ok(), nack);
        assert_eq!(world.send_done(0).result.is_ok(), nack);
        world.forget_packets();
        // No other read is counted as in progress, so the next message uses a runt.
        let region = readable(&world, 0, 200_000);
        let memory = Memory::Region(RegionRange { region, offset: 0, length: 200_000 });
        world.send(0, 1, memory, 6);
        world.drive();
        assert_eq!(world.types_from(0)[0], PacketType::RuntReadMsgRtm);
    }
}

#[test]
fn out_of_order_packets_count_until_delivered_or_abandoned() {
    let bounds = Bounds::default().with(|bounds| bounds.ahead = 5000);
    let mut world = pair(config(), config().with(|config| config.bounds = bounds));
    for round in 0..20 {
        let first = 4 * round + 1;
        for _ in 0..3 {
            world.receive_into(1, heap(2000), 1);
        }
        half(&mut world, first + 1);
        peer_error(&mut world, 1, first + 1);
        eager(&mut world, first);
        expect_eager(&mut world, first);
        eager(&mut world, first + 3);
        eager(&mut world, first + 2);
        expect_eager(&mut world, first + 2);
        expect_eager(&mut world, first + 3);
    }
    assert_eq!(world.endpoint(1).statistics().excluded, 0);
}

/// Steps until the first packet of an endpoint has the id, and returns it.
fn first_id(world: &mut World, end: usize, id: fn(&Header<'_>) -> Option<OpId>) -> OpId {
    loop {
        world.step();
        let packets = world.packets_from(end);
        let first = packets.first().map(|packet| Packet::parse(packet).unwrap());
        if let Some(id) = first.and_then(|packet| id(&packet.header)) {
            return id;
        }
    }
}

/// A target can abandon the reads of its peer; a writer can't abandon the receives of its target.
#[test]
fn peer_error_ends_a_read_and_is_dropped_for_a_write_of_its_sender() {
    let mut world = World::new(LocalOptions::default().with(|options| options.rdma = Rdma::NONE));
    world.add(config());
    world.add(config());
    world.acquaint();
    world.receive_into(1, heap(1), 0);
    world.send(0, 1, heap(1), 0);
    world.drive();
    world.receive_done(1);
    world.send_done(0);
    let access = Access { remote_read: true, remote_write: true };
    let queue_pair = world.ends[0].endpoint.queue_pair();
    let region = queue_pair.register(pattern(1_000_000, 1).into(), access).unwrap();
    let iov = RmaIov::new(region.remote_address(), 1_000_000, region.remote_key().into());
    let (peer, remote) = (world.peer(1, 0), Remote::from(iov));
    // A read by end 1, identified by the operation id that end 0 knows.
    world.forget_packets();
    let (buffer, level) = (heap(1_000_000), Level::Transmit);
    world.endpoint(1).read(Read { peer, remote, buffer, context: 1 }).unwrap();
    let recv_id = first_id(&mut world, 1, |header| match header {
        Header::Rtr(rtr) => Some(rtr.recv_id),
        _ => None,
    });
    peer_error(&mut world, 0, recv_id.0);
    let done = world.ends[1].rma.pop_front().unwrap();
    assert_eq!((done.context, done.result), (1, Err(GIVEN_UP)));
    let late = world.drop_reasons(1);
    assert!(late.iter().all(|reason| *reason == DropReason::UnknownOperation), "{late:?}");
    // A write of end 1 to end 0, which end 1 tries to abandon by the operation id in the CTS.
    world.forget_packets();
    let buffer = Memory::Heap(pattern(1_000_000, 2));
    let write = Write { peer, remote, buffer, cq_data: None, level, context: 2 };
    world.endpoint(1).write(write).unwrap();
    let recv_id = first_id(&mut world, 0, |header| match header {
        Header::Cts(cts) => Some(cts.recv_id),
        _ => None,
    });
    inject_error(&mut world, 1, 0, recv_id);
    world.drive();
    assert_eq!(world.drop_reasons(0), [DropReason::UnknownOperation]);
    let done = world.ends[1].rma.pop_front().unwrap();
    assert_eq!((done.context, done.result), (2, Ok(())));
    let mut bytes = vec![0; 1_000_000];
    region.read(0, &mut bytes);
    assert!(bytes == pattern(1_000_000, 2));
}

/// The device alone carries it out, and may still read the buffer.
#[test]
fn peer_error_or_receipt_for_a_direct_write_is_dropped() {
    let mut world = pair(config(), config());
    let access = Access { remote_read: false, remote_write: true };
    let queue_pair = world.ends[1].endpoint.queue_pair();
    let target = queue_pair.register(vec![0; 1_000_000].into(), access).unwrap();
    let key = target.remote_key().into();
    let remote = Remote::from(RmaIov::new(target.remote_address(), 1_000_000, key));
    let (peer, buffer) = (world.peer(0, 1), Memory::Heap(pattern(1_000_000, 1)));
    let (cq_data, level, context) = (None, Level::Delivery, 1);
    world.endpoint(0).write(Write { peer, remote, buffer, cq_data, level, context }).unwrap();
    while world.endpoint(0).statistics().rdma_writes == 0 {
        world.step();
    }
    // The first identifiers of operations of the endpoint, of which one is the write's.
    let ids = (0..8).map(|generation| OpId(generation << 10));
    for id in ids {
        inject_error(&mut world, 1, 0, id);
        let connid = Some(world.ends[1].endpoint.address().connid);
        let receipt = Receipt { send_id: id, msg_id: MsgId(0), connid };
        world.inject(1, 0, Header::Receipt(receipt), &[]);
    }
    world.drive();
    assert_eq!(world.drop_reasons(0), [DropReason::UnknownOperation; 16]);
    let done = world.ends[0].rma.pop_front().unwrap();
    assert_eq!((done.context, done.result), (1, Ok(())));
    assert!(bytes_of(&target) == pattern(1_000_000, 1));
}

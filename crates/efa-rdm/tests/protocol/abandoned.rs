//! Feature 9 (PEER_ERROR) at the sender: a packet of a message fails, so the sender abandons the message and
//! reports that to the receiver.

use efa_device::{Access, QueuePair, Region, RegionRange, Status};
use efa_handshake::Extras;
use efa_proto::{Header, Packet, PacketType, PeerError, RmaIov};
use efa_rdm::{
    Atomic, AtomicOp, Config, Datatype, DropReason, Event, Level, Message, Operands,
    OperationError, Remote, Write,
};

use crate::longread::Memory;
use crate::peer_error::{config, pair};
use crate::world::{Net, pattern, place};

type World = Net<Memory>;

/// A failure caused by the packet, not by the peer.
const STATUS: Status = Status::BadLocalKey;
const FAILED: OperationError = OperationError::Device(STATUS);

/// `ref_kind`: how a PEER_ERROR identifies the message.
const OPERATION: u8 = 0;
const MSG_ID: u8 = 1;
const MSG_ID_SKIP: u8 = 2;

fn abandoned_error() -> OperationError {
    OperationError::GivenUp { code: STATUS.code().into() }
}

fn heap(length: usize) -> Memory {
    Memory::Heap(pattern(length, length as u64))
}

/// Memory of end 0 that its peers can read.
fn region(world: &World, length: usize) -> Memory {
    let access = Access { remote_read: true, remote_write: false };
    let device = world.ends[0].endpoint.queue_pair();
    let region = device.register(pattern(length, length as u64).into(), access).unwrap();
    Memory::Region(RegionRange { region, offset: 0, length })
}

/// Lets the next `count` packets of end 0 fail.
fn fail_sends(world: &World, count: u32, status: Status) {
    world.network.fail_sends(place(&world.ends[0]), count, status).unwrap();
}

/// The kinds and ids of the PEER_ERROR packets that end 0 sent.
fn peer_errors(world: &mut World) -> Vec<(u8, u32)> {
    let packets = world.packets_from(0);
    let errors = packets.iter().filter_map(|bytes| match Packet::parse(bytes).unwrap().header {
        Header::PeerError(PeerError { op_id, ref_kind, prov_errno, .. }) => {
            assert_eq!(prov_errno, u32::from(STATUS.code()));
            Some((ref_kind, op_id.0))
        }
        _ => None,
    });
    errors.collect()
}

/// The message ids that end 1 reported as abandoned.
fn abandoned(world: &mut World) -> Vec<u32> {
    let events = world.ends[1].events.drain(..).map(|event| match event {
        Event::MessageAbandoned { msg_id, .. } => msg_id,
        other => panic!("{other:?}"),
    });
    events.collect()
}

/// Asserts that messages arrive in both directions and that no peer is lost.
fn assert_usable(world: &mut World) {
    exchange_messages(world);
    assert!(world.ends[0].events.is_empty(), "{:?}", world.ends[0].events);
    world.assert_clean();
}

fn exchange_messages(world: &mut World) {
    for (from, to) in [(0, 1), (1, 0)] {
        for length in [300, 20_000, 70_000] {
            world.receive_into(to, heap(length), 1);
            world.send(from, to, heap(length), 2);
            world.drive();
            let received = world.receive_done(to);
            assert_eq!((received.context, received.result), (1, Ok(())));
            assert_eq!(received.buffer.bytes(), heap(length).bytes());
            assert_eq!(world.send_done(from).result, Ok(()));
        }
    }
    assert_eq!(abandoned(world), [], "no further message is abandoned");
}

#[test]
fn abandoned_message_with_no_packet_received_is_skipped() {
    // Eager; delivery complete; injected; all segments of a medium message; long-CTS; long read.
    for kind in 0..6 {
        let mut world = pair(config(), config());
        // This receive matches the next message.
        world.receive_into(1, heap(40), 7);
        fail_sends(&world, if kind == 3 { 3 } else { 1 }, STATUS);
        let peer = world.peer(0, 1);
        let mut send = |level, buffer| {
            let message = Message { peer, tag: None, cq_data: None, level, buffer, context: 5 };
            world.endpoint(0).send(message).unwrap();
        };
        match kind {
            0 => send(Level::Transmit, heap(30)),
            1 => send(Level::Delivery, heap(30)),
            2 => {
                let (level, buffer) = (Level::Transmit, &[1, 2, 3][..]);
                let message = Message { peer, tag: None, cq_data: None, level, buffer, context: 0 };
                world.endpoint(0).inject(message).unwrap();
            }
            3 => send(Level::Transmit, heap(20_000)),
            4 => send(Level::Transmit, heap(80_000)),
            _ => {
                let memory = region(&world, 200_000);
                world.send(0, 1, memory, 5);
            }
        }
        world.send(0, 1, heap(40), 6);
        world.drive();
        let mut sent = world.take_sends(0);
        sent.sort_by_key(|sent| sent.context);
        let context = if kind == 2 { 0 } else { 5 };
        let ends: Vec<_> = sent.iter().map(|sent| (sent.context, sent.result)).collect();
        assert_eq!(ends, [(context, Err(FAILED)), (6, Ok(()))], "kind {kind}");
        assert_eq!(peer_errors(&mut world), [(MSG_ID_SKIP, 1)], "kind {kind}");
        assert_eq!(abandoned(&mut world), [1], "kind {kind}");
        let received = world.receive_done(1);
        assert_eq!((received.context, received.result), (7, Ok(())));
        assert_eq!(received.buffer.bytes(), heap(40).bytes());
        assert_usable(&mut world);
    }
}

#[test]
fn abandoned_atomic_with_no_packet_received_is_skipped() {
    let mut world = pair(config(), config());
    let access = Access { remote_read: false, remote_write: true };
    let device = world.ends[1].endpoint.queue_pair();
    let target = device.register(vec![0; 8].into(), access).unwrap();
    let iov = RmaIov::new(target.remote_address(), 8, target.remote_key().into());
    let peer = world.peer(0, 1);
    for _ in 0..2 {
        fail_sends(&world, 1, STATUS);
        for _ in 0..3 {
            let operand = Memory::Heap(1_u64.to_le_bytes().to_vec());
            let atomic = Atomic {
                peer,
                remote: Remote::new(&[iov]).unwrap(),
                datatype: Datatype::Uint64,
                op: AtomicOp::Sum,
                operands: Operands::Write { operand },
                level: Level::Transmit,
                context: 1,
            };
            world.endpoint(0).atomic(atomic).map_err(|refused| refused.error).unwrap();
        }
        world.drive();
        let ended = world.ends[0].atomics.drain(..);
        assert_eq!(ended.filter(|done| done.result == Err(FAILED)).count(), 1);
    }
    assert_eq!(peer_errors(&mut world), [(MSG_ID_SKIP, 1), (MSG_ID_SKIP, 4)]);
    assert_eq!(abandoned(&mut world), [1, 4]);
    let mut sum = [0; 8];
    target.read(0, &mut sum);
    assert_eq!(u64::from_le_bytes(sum), 4, "the atomics that arrived are applied");
    assert_usable(&mut world);
}

#[test]
fn abandoned_message_partly_received_fails_its_receive() {
    for posted_first in [true, false] {
        let mut world = pair(config(), config());
        if posted_first {
            world.receive_into(1, heap(20_000), 7);
        }
        fail_sends(&world, 1, STATUS);
        world.send(0, 1, heap(20_000), 5);
        world.drive();
        assert_eq!(world.send_done(0).result, Err(FAILED));
        assert_eq!(peer_errors(&mut world), [(MSG_ID, 1)]);
        if posted_first {
            let received = world.receive_done(1);
            assert_eq!((received.context, received.result), (7, Err(abandoned_error())));
        } else {
            assert_eq!(abandoned(&mut world), [1]);
            assert_eq!(world.endpoint(1).packets_held().held, 0, "nothing of it is kept");
        }
        assert_usable(&mut world);
    }
}

#[test]
fn runting_message_abandoned_during_the_read_fails_its_receive() {
    for failures in 1..=2 {
        let mut world = pair(config().with(|config| config.runt_size = 25_000), config());
        world.receive_into(1, heap(300_000), 7);
        let memory = region(&world, 300_000);
        fail_sends(&world, failures, STATUS);
        world.send(0, 1, memory, 5);
        world.drive();
        assert!(world.types_from(0).starts_with(&[PacketType::RuntReadMsgRtm; 3]));
        assert_eq!(world.send_done(0).result, Err(FAILED));
        let received = world.receive_done(1);
        assert_eq!((received.context, received.result), (7, Err(abandoned_error())));
        assert_eq!(peer_errors(&mut world), [(MSG_ID, 1)]);
        exchange_messages(&mut world);
        // The EOR may arrive after the sender abandoned the message.
        let drops = world.drop_reasons(0);
        assert!(drops.iter().all(|reason| *reason == DropReason::UnknownOperation), "{drops:?}");
        // The next message uses a runt again, as no read is counted as in progress.
        world.forget_packets();
        world.receive_into(1, heap(300_000), 8);
        let memory = region(&world, 300_000);
        world.send(0, 1, memory, 6);
        world.drive();
        assert_eq!(world.types_from(0), [PacketType::RuntReadMsgRtm; 3]);
        assert_eq!(world.receive_done(1).buffer.bytes(), heap(300_000).bytes());
        assert_eq!(world.send_done(0).result, Ok(()));
    }
}

#[test]
fn abandoned_long_cts_message_is_reported_by_receiver_operation_id() {
    for failures in [1, 2, 100] {
        let mut world = pair(config(), config());
        world.receive_into(1, heap(90_000), 7);
        world.send(0, 1, heap(90_000), 5);
        while world.endpoint(1).statistics().sent.of(PacketType::Cts) == 0 {
            world.step();
        }
        let packets = world.packets_from(1);
        let Header::Cts(cts) = Packet::parse(&packets[0]).unwrap().header else { panic!("a CTS") };
        fail_sends(&world, failures, STATUS);
        while world.ends[0].sends.is_empty() {
            world.step();
        }
        assert_eq!(world.send_done(0).result, Err(FAILED));
        fail_sends(&world, 0, STATUS);
        world.drive();
        if failures < 100 {
            assert_eq!(peer_errors(&mut world), [(OPERATION, cts.recv_id.0)]);
            let received = world.receive_done(1);
            assert_eq!((received.context, received.result), (7, Err(abandoned_error())));
            assert_usable(&mut world);
        }
    }
}

#[test]
fn abandoned_message_after_read_nack_is_reported_by_message_id() {
    let mut world = pair(config(), config());
    // Memory that cannot be read: its key belongs to another device.
    world.add(Config::default());
    let access = Access { remote_read: true, remote_write: false };
    let other = world.ends[2].endpoint.queue_pair();
    let memory = other.register(vec![1; 200_000].into(), access).unwrap();
    let memory = Memory::Region(RegionRange { region: memory, offset: 0, length: 200_000 });
    world.receive_into(1, heap(200_000), 7);
    world.send(0, 1, memory, 5);
    while world.endpoint(1).statistics().sent.of(PacketType::ReadNack) == 0 {
        world.step();
    }
    fail_sends(&world, 1, STATUS);
    world.drive();
    assert_eq!(world.send_done(0).result, Err(FAILED));
    assert_eq!(peer_errors(&mut world), [(MSG_ID, 1)]);
    let received = world.receive_done(1);
    assert_eq!((received.context, received.result), (7, Err(abandoned_error())));
    assert_usable(&mut world);
}

#[test]
fn peer_without_peer_error_is_lost_when_a_message_fails() {
    let without = |config: Config| {
        let mut config = config;
        config.profile.extras.remove(Extras::PEER_ERROR_20);
        config
    };
    for (a, b, status) in [
        (without(config()), config(), STATUS),
        (config(), without(config()), STATUS),
        // A failure that is not caused by the packet.
        (config(), config(), Status::QueuePairInternal),
    ] {
        for length in [30, 20_000] {
            let mut world = pair(a.clone(), b.clone());
            fail_sends(&world, 1, status);
            world.send(0, 1, heap(length), 5);
            world.drive();
            assert_eq!(world.send_done(0).result, Err(OperationError::Device(status)));
            let peer = world.ends[0].events.pop_front();
            assert!(matches!(peer, Some(Event::PeerLost { .. })), "{peer:?}");
            assert_eq!(peer_errors(&mut world), []);
        }
    }
}

#[test]
fn each_message_arrives_or_fails_on_both_sides() {
    for seed in 0..20 {
        let mut world = pair(config().with(|config| config.runt_size = 20_000), config());
        let mut draw = fastrand::Rng::with_seed(seed);
        const MESSAGES: usize = 60;
        for i in 0..MESSAGES {
            let length = *draw.choice(&[10, 3000, 20_000, 90_000, 150_000]).unwrap() + i;
            let buffer = if draw.bool() { region(&world, length) } else { heap(length) };
            let level = if draw.u8(..4) == 0 { Level::Delivery } else { Level::Transmit };
            world.receive_into(1, Memory::Heap(vec![0; 200_000]), i as u64);
            let (peer, context) = (world.peer(0, 1), i as u64);
            let message = Message { peer, tag: None, cq_data: None, level, buffer, context };
            // Only packets sent at once fail, never the PEER_ERROR.
            if draw.u8(..3) == 0 {
                fail_sends(&world, draw.u32(1..4), *draw.choice(&OWN).unwrap());
            }
            world.endpoint(0).send(message).unwrap();
            fail_sends(&world, 0, STATUS);
            for _ in 0..draw.u32(..20) {
                world.step();
            }
        }
        world.drive();
        let mut sent: Vec<_> = world.take_sends(0);
        sent.sort_by_key(|sent| sent.context);
        assert_eq!(sent.len(), MESSAGES, "seed {seed}");
        let events = world.ends[1].events.drain(..).filter_map(|event| match event {
            // The first message id was used to exchange the HANDSHAKEs.
            Event::MessageAbandoned { msg_id, .. } => Some(u64::from(msg_id) - 1),
            _ => None,
        });
        let skipped: Vec<u64> = events.collect();
        let mut received = world.take_receives(1);
        received.sort_by_key(|received| received.context);
        assert_eq!(received.len() + skipped.len(), MESSAGES, "seed {seed}");
        let mut received = received.into_iter();
        for sent in sent {
            if skipped.contains(&sent.context) {
                assert!(sent.result.is_err(), "seed {seed}");
                continue;
            }
            let received = received.next().unwrap();
            assert_eq!(received.result.is_ok(), sent.result.is_ok(), "seed {seed}");
            if received.result.is_ok() {
                let bytes = received.buffer.bytes();
                assert_eq!(bytes[..received.length as usize], sent.buffer.unwrap().bytes());
            }
        }
        assert!(!skipped.is_empty(), "seed {seed}");
        assert_eq!(world.drop_reasons(1), [], "seed {seed}");
    }
}

/// Failures caused by packets.
const OWN: [Status; 3] = [Status::BadLocalKey, Status::BadLength, Status::RemoteBadLength];

/// PEER_ERROR can identify messages only, not writes.
#[test]
fn failed_packet_of_a_write_loses_the_peer() {
    let mut world = pair(config(), config());
    fail_sends(&world, 1, STATUS);
    let peer = world.peer(0, 1);
    // The key exceeds 32 bits, so the write is sent in a packet.
    let remote = Remote::from(RmaIov::new(0, 30, 1 << 40));
    let (buffer, level) = (heap(30), Level::Transmit);
    let write = Write { peer, remote, buffer, cq_data: None, level, context: 5 };
    world.endpoint(0).write(write).map_err(|refused| refused.error).unwrap();
    world.drive();
    assert_eq!(world.ends[0].rma.pop_front().unwrap().result, Err(FAILED));
    let lost = world.ends[0].events.pop_front();
    assert!(matches!(lost, Some(Event::PeerLost { .. })), "{lost:?}");
    assert_eq!(world.types_from(0), [PacketType::EagerRtw]);
}

#[test]
fn abandoned_message_does_not_count_as_being_read() {
    let mut world = pair(config().with(|config| config.runt_size = 25_000), config());
    let memory = region(&world, 300_000);
    world.send(0, 1, memory, 5);
    world.drive();
    fail_sends(&world, 1, STATUS);
    world.send(0, 1, heap(20_000), 6);
    world.drive();
    assert_eq!(world.send_done(0).result, Err(FAILED));
    world.forget_packets();
    let memory = region(&world, 300_000);
    world.send(0, 1, memory, 7);
    world.drive();
    assert_eq!(world.types_from(0), [PacketType::LongReadMsgRtm], "the first is not read yet");
}

//! Packets that no correct peer sends.

use efa_device::{Access, QueuePair, Rdma, RegionRange};
use efa_handshake::Release;
use efa_proto::{
    AtomRsp, Cts, CtsData, Eor, EorForm, Header, MsgId, OpId, Packet, PacketType, PeerError,
    PeerErrorForm, PeerErrorReport, ReadNack, ReadRsp, Receipt, ReqOptions, Rta, RtaKind, Rtm,
    RtmKind,
};
use efa_rdm::{
    Accept, Atomic, AtomicOp, Bounds, Config, Datatype, DropReason, Level, Message, Operands, Read,
};
use efa_sim::local::LocalOptions;

use crate::longread::Memory;
use crate::peer_error;
use crate::rma::expose;
use crate::world::{World, pattern, place};

/// Set in identifiers of receives.
const OF_RECEIVE: u32 = 1 << 21;

/// The peer's messages still arrive.
fn assert_alive(world: &mut World) {
    world.ends[1].receives.clear();
    world.receive(1, 100, 1);
    world.send(0, 1, pattern(100, 9), 0);
    world.drive();
    assert_eq!(world.receive_done(1).buffer, pattern(100, 9));
}

// conformance: A3
#[test]
fn packet_of_another_version_is_dropped_and_reported() {
    let mut world = World::pair(1);
    world.acquaint();
    for version in [0, 3, 5, 255] {
        world.inject_bytes(0, 1, &[64, version, 4, 0, 0, 0, 0, 0]);
        world.drive();
        let reasons = world.drop_reasons(1);
        let [DropReason::Malformed(error)] = reasons[..] else { panic!("{reasons:?}") };
        assert_eq!(error, efa_proto::ParseError::Version { found: version });
    }
    assert_eq!(world.endpoint(1).statistics().malformed, 4);
    assert!(world.types_from(1).is_empty(), "no state changes: not even a HANDSHAKE");
    assert_alive(&mut world);
}

// conformance: A11 A16
#[test]
fn packets_of_all_type_numbers_do_not_panic() {
    let mut world = World::pair(2);
    world.acquaint();
    for packet_type in 0..=255 {
        for length in [4, 8, 16, 24, 48, 200] {
            let mut bytes = vec![0; length];
            bytes[0] = packet_type;
            bytes[1] = 4;
            world.inject_bytes(0, 1, &bytes);
        }
        world.drive();
    }
    let dropped = world.endpoint(1).statistics().dropped;
    assert!(dropped > 1000, "{dropped}");
    // A zero message id of a zero-filled EAGER packet was used up by this.
    assert_eq!(world.endpoint(1).statistics().received.of(PacketType::EagerMsgRtm), 5);
}

#[test]
fn random_bytes_after_a_valid_base_header_do_not_panic() {
    let mut world = World::pair(3);
    world.acquaint();
    let mut random = fastrand::Rng::with_seed(3);
    let types: Vec<u8> = PacketType::ALL.iter().map(|t| t.as_u8()).collect();
    for round in 0..20_000 {
        let mut bytes: Vec<u8> = (0..random.usize(4..120)).map(|_| random.u8(..)).collect();
        bytes[0] = types[random.usize(0..types.len())];
        bytes[1] = 4;
        if random.bool() {
            // Small numbers hit live ids and offsets.
            bytes[2..]
                .iter_mut()
                .for_each(|byte| *byte = if random.u8(..) < 200 { 0 } else { *byte & 3 });
        }
        world.inject_bytes(0, 1, &bytes);
        if round % 50 == 0 {
            world.receive(1, 1000, 0);
            world.tagged_receive(1, 0, 1000);
            world.drive();
        }
    }
    world.drive();
    let third = world.add(Default::default());
    world.tagged_receive(1, u64::MAX, 100_000);
    world.tagged_send(third, 1, u64::MAX, pattern(100_000, 4));
    world.drive();
    let received = world.ends[1].receives.iter().find(|r| r.tag == u64::MAX);
    assert!(received.is_some_and(|r| r.buffer == pattern(100_000, 4)), "others are served");
}

// conformance: A22
#[test]
fn truncated_packet_is_dropped_at_every_length() {
    let mut world = World::pair(4);
    for (i, size) in [10, 20_000, 100_000].into_iter().enumerate() {
        world.receive(1, size, i as u64);
        world.send(0, 1, pattern(size, 1), 0);
    }
    world.drive();
    let packets: Vec<_> = world.packets_from(0).into_iter().chain(world.packets_from(1)).collect();
    let mut cut = 0;
    for bytes in packets {
        let header = Packet::parse(&bytes).unwrap().header.len();
        let length = bytes.len() - Packet::parse(&bytes).unwrap().payload.len();
        assert_eq!(header, length);
        for end in 0..header {
            world.inject_bytes(0, 1, &bytes[..end]);
            cut += 1;
        }
        world.drive();
    }
    assert_eq!(world.endpoint(1).statistics().malformed, cut);
    assert_alive(&mut world);
}

#[test]
fn unsupported_packet_is_reported_with_its_type() {
    // No release up to 2.6 has PEER_ERROR.
    let config = Config::as_release(Release::V2_6);
    let mut world = World::pair_with(5, Config::default(), config);
    world.acquaint();
    let error = PeerError { op_id: OpId(1), ref_kind: 0, prov_errno: 4100, connid: None };
    world.inject(0, 1, Header::PeerError(error), &[]);
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::Unsupported(PacketType::PeerError)]);
    assert_alive(&mut world);
}

/// Endpoints announce the form of 20 bytes to each other; libfabric's later forms are read, and change nothing.
#[test]
fn later_forms_of_peer_error_are_dropped_as_unsupported() {
    for form in [PeerErrorForm::Marked, PeerErrorForm::Flagged] {
        let mut world = World::pair(5);
        world.acquaint();
        world.receive(1, 100_000, 0);
        world.send(0, 1, pattern(100_000, 1), 0);
        for op_id in [None, Some(OpId(0)), Some(OpId(OF_RECEIVE))] {
            let (msg_id, emitter, prov_errno, connid) = (MsgId(1), 1, 4100, None);
            let report = PeerErrorReport { msg_id, op_id, emitter, prov_errno, connid, form };
            world.inject(0, 1, Header::PeerErrorReport(report), &[]);
        }
        world.drive();
        assert_eq!(world.drop_reasons(1), [DropReason::Unsupported(PacketType::PeerError); 3]);
        assert_eq!(world.receive_done(1).length, 100_000);
        assert_alive(&mut world);
    }
}

/// An incomplete message is discarded with its sender, even if other packets have the same message id. Found
/// by fuzz target `lying_peer`.
#[test]
fn removal_of_sender_discards_incomplete_message_despite_equal_ids() {
    let mut world = World::pair(6);
    world.acquaint();
    let message = |msg_id, kind| {
        let options = ReqOptions::NONE;
        Header::Rtm(Rtm { msg_id: MsgId(msg_id), tag: None, kind, options })
    };
    let first = RtmKind::Medium { msg_length: 600, seg_offset: 0 };
    for (msg_id, kind) in [(1, first), (1, RtmKind::Eager), (0, RtmKind::Eager)] {
        world.inject(0, 1, message(msg_id, kind), &[7; 200]);
        world.drive();
    }
    let sender = world.peer(1, 0);
    world.endpoint(1).remove_peer(sender);
    world.receive(1, 600, 0);
    assert_eq!(world.receive_done(1).length, 200, "the complete message stays");
    let other = world.receive(1, 600, 1);
    assert!(world.endpoint(1).cancel(other), "no message matched it");
}

/// Operation ids are predictable. Only packets of the operation's peer, of a type that fits, may affect it.
#[test]
fn packet_of_another_peer_for_an_operation_is_dropped() {
    let config = peer_error::config().with(|it| it.cts_window = 1);
    let mut world = peer_error::pair(config.clone(), config.clone());
    let forger = world.add(config);
    let peer = world.peer(0, 1);
    world.peer(0, forger);
    world.peer(1, forger);
    // Two messages for which there is no receive yet: one to be read, one to be granted.
    let access = Access { remote_read: true, remote_write: false };
    let device = world.endpoint(0).queue_pair();
    let region = device.register(pattern(200_000, 1).into(), access).unwrap();
    world.send(0, 1, Memory::Region(RegionRange { region, offset: 0, length: 200_000 }), 1);
    let (level, buffer) = (Level::Delivery, Memory::Heap(pattern(80_000, 2)));
    let message = Message { peer, tag: None, cq_data: None, level, buffer, context: 2 };
    world.endpoint(0).send(message).unwrap();
    world.drive();
    let packets = world.packets_from(0);
    let names = packets.iter().filter_map(|bytes| match Packet::parse(bytes).unwrap().header {
        Header::Rtm(Rtm {
            kind: RtmKind::LongRead { send_id, .. } | RtmKind::DcLongCts { send_id, .. },
            ..
        }) => Some(send_id),
        _ => None,
    });
    let [read, granted] = names.collect::<Vec<_>>()[..] else { panic!("{packets:?}") };
    let (recv_id, msg_id) = (OpId(0), MsgId(2));
    let error = |op_id, connid| PeerError { op_id, ref_kind: 0, prov_errno: 1, connid };
    let connid = Some(world.endpoint(forger).address().connid);
    for header in [
        Header::Eor(Eor { send_id: read, recv_id, form: EorForm::Full { connid } }),
        Header::ReadNack(ReadNack { send_id: read, recv_id, connid }),
        Header::PeerError(error(read, connid)),
        Header::PeerError(error(granted, connid)),
        Header::Cts(Cts {
            connid,
            send_id: granted,
            recv_id,
            recv_length: 9,
            emulated_read: false,
        }),
        Header::Receipt(Receipt { send_id: granted, msg_id, connid }),
    ] {
        world.inject(forger, 0, header, &[]);
    }
    world.drive();
    assert_eq!(world.drop_reasons(0), [DropReason::UnknownOperation; 6]);
    let connid = Some(world.endpoint(1).address().connid);
    let values = AtomRsp { connid, recv_id: granted, seg_length: 8 };
    world.inject(1, 0, Header::AtomRsp(values), &[0; 8]);
    world.drive();
    assert_eq!(world.drop_reasons(0), [DropReason::UnknownOperation]);
    let cts = Cts { connid, send_id: read, recv_id, recv_length: 9, emulated_read: false };
    world.inject(1, 0, Header::Cts(cts), &[]);
    world.drive();
    assert_eq!(world.drop_reasons(0), [DropReason::BadCts]);
    assert!(world.take_sends(0).is_empty());

    for (length, context) in [(200_000, 1), (80_000, 2)] {
        world.receive_into(1, Memory::Heap(vec![0; length]), context);
    }
    while world.endpoint(1).statistics().sent.of(PacketType::Cts) == 0 {
        world.step();
    }
    let packets = world.packets_from(1);
    let name = packets.iter().find_map(|bytes| match Packet::parse(bytes).unwrap().header {
        Header::Cts(cts) => Some(cts.recv_id),
        _ => None,
    });
    let recv_id = name.unwrap();
    let connid = Some(world.endpoint(forger).address().connid);
    let data = CtsData { connid, recv_id, seg_length: 9, seg_offset: 9000 };
    world.inject(forger, 1, Header::CtsData(data), &[9; 9]);
    world.inject(forger, 1, Header::PeerError(error(recv_id, connid)), &[]);
    let connid = Some(world.endpoint(0).address().connid);
    let answer = ReadRsp { connid, recv_id, send_id: granted, seg_length: 9 };
    world.inject(0, 1, Header::ReadRsp(answer), &[9; 9]);
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::UnknownOperation; 3]);
    let mut received = world.take_receives(1);
    received.sort_by_key(|received| received.context);
    let [first, second] = &received[..] else { panic!("{} receives", received.len()) };
    assert_eq!((first.result, second.result), (Ok(()), Ok(())));
    assert!(first.buffer.bytes() == pattern(200_000, 1));
    assert!(second.buffer.bytes() == pattern(80_000, 2));
    let sent = world.take_sends(0);
    assert_eq!(sent.iter().map(|sent| sent.result).collect::<Vec<_>>(), [Ok(()); 2]);
}

#[test]
fn response_of_another_peer_to_read_or_atomic_is_dropped() {
    let mut world = World::new(LocalOptions::default().with(|options| options.rdma = Rdma::NONE));
    for _ in 0..3 {
        world.add(Config::default());
    }
    world.acquaint();
    let (peer, forger) = (world.peer(0, 1), 2);
    world.peer(0, forger);
    world.receive(1, 1, 0);
    world.send(0, 1, vec![1], 0);
    world.drive();
    world.forget_packets();
    let access = Access { remote_read: true, remote_write: true };
    let (_memory, of_read) = expose(&world, 1, pattern(16, 1), access);
    let (_counter, of_atomic) = expose(&world, 1, 7_u64.to_ne_bytes().to_vec(), access);
    // The requests are delayed for a while.
    let target = place(&world.ends[1]);
    world.network.not_ready(target, u32::MAX).unwrap();
    let read = Read { peer, remote: of_read.into(), buffer: vec![0; 16], context: 1 };
    world.endpoint(0).read(read).unwrap();
    let operands = Operands::Fetch { operand: 1_u64.to_ne_bytes().to_vec(), fetched: vec![0; 8] };
    let (op, datatype, level) = (AtomicOp::Sum, Datatype::Uint64, Level::Transmit);
    let remote = of_atomic.into();
    let atomic = Atomic { peer, remote, datatype, op, operands, level, context: 2 };
    world.endpoint(0).atomic(atomic).map_err(|refused| refused.error).unwrap();
    world.step();
    let (mut read, mut atomic) = (None, None);
    for bytes in world.packets_from(0) {
        match Packet::parse(&bytes).unwrap().header {
            Header::Rtr(rtr) => read = Some(rtr.recv_id),
            Header::Rta(Rta { kind: RtaKind::Fetch { recv_id }, .. }) => atomic = Some(recv_id),
            _ => {}
        }
    }
    let (read, atomic) = (read.unwrap(), atomic.unwrap());
    let answer = |world: &mut World, from, bytes: &[u8]| {
        let connid = Some(world.endpoint(from).address().connid);
        let seg_length = bytes.len() as u64;
        let response = ReadRsp { connid, recv_id: read, send_id: OpId(0), seg_length };
        world.inject(from, 0, Header::ReadRsp(response), bytes);
        let response = AtomRsp { connid, recv_id: atomic, seg_length };
        world.inject(from, 0, Header::AtomRsp(response), bytes);
        let dropped = world.endpoint(0).statistics().dropped + 2;
        while world.endpoint(0).statistics().dropped < dropped {
            world.step();
        }
        world.drop_reasons(0)
    };
    assert_eq!(answer(&mut world, forger, &[9; 8]), [DropReason::UnknownOperation; 2]);
    assert_eq!(answer(&mut world, 1, &[9; 4]), [DropReason::SegmentOutOfRange; 2]);
    world.network.not_ready(target, 0).unwrap();
    world.drive();
    let done = world.ends[0].rma.pop_front().unwrap();
    assert_eq!((done.result, done.buffer), (Ok(()), pattern(16, 1)));
    let done = world.ends[0].atomics.pop_front().unwrap();
    assert_eq!((done.result, done.fetched), (Ok(()), Some(7_u64.to_ne_bytes().to_vec())));
}

#[test]
fn excluding_a_peer_keeps_messages_of_other_peers() {
    let bounds = Bounds::default().with(|bounds| bounds.unexpected_per_peer = 5000);
    let config = Config::default().with(|config| config.bounds = bounds);
    let mut world = World::pair_with(6, Config::default(), config);
    let other = world.add(Config::default());
    world.send(other, 1, pattern(1000, 7), 0);
    world.drive();
    let source = Some(world.peer(1, 0));
    for round in 0..20 {
        world.send(0, 1, pattern(1000, round), 0);
        world.drive();
        let accept = Accept::Untagged { source };
        world.endpoint(1).receive(accept, vec![0; 1000], round).unwrap();
        assert_eq!(world.receive_done(1).buffer, pattern(1000, round));
    }
    assert_eq!(world.endpoint(1).statistics().excluded, 0, "what was received counts no more");
    for round in 0..4 {
        world.send(0, 1, pattern(1000, round), 0);
        world.drive();
    }
    assert_eq!(world.endpoint(1).statistics().excluded, 1);
    world.receive(1, 1000, 1);
    assert_eq!(world.receive_done(1).buffer, pattern(1000, 7));
    let held = world.endpoint(1).packets_held();
    assert_eq!((held.held, held.unexpected_bytes), (0, 0));
}

//! Packets that no honest peer sends.

use efa_proto::{Header, MsgId, OpId, Packet, PacketType, PeerError, ReqOptions, Rtm, RtmKind};
use efa_rdm::DropReason;

use crate::world::{World, pattern};

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
fn other_versions_are_dropped_counted_and_reported() {
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
fn all_type_numbers_are_survived() {
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
fn random_bytes_after_a_good_base_header_are_survived() {
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
fn a_packet_cut_anywhere_is_dropped() {
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
fn what_this_endpoint_does_not_do_is_reported_with_its_type() {
    let mut world = World::pair(5);
    world.acquaint();
    let error = PeerError { op_id: OpId(1), ref_kind: 0, prov_errno: 4100, connid: None };
    world.inject(0, 1, Header::PeerError(error), &[]);
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::Unsupported(PacketType::PeerError)]);
    assert_alive(&mut world);
}

/// Of a message that isn't whole nothing is left when its sender goes, whatever other packets bear
/// its number. Found by `lying_peer`.
#[test]
fn an_unfinished_message_goes_with_its_sender_though_others_bear_its_number() {
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
    assert_eq!(world.receive_done(1).length, 200, "the message that is whole stays");
    let other = world.receive(1, 600, 1);
    assert!(world.endpoint(1).cancel(other), "no message took it");
}

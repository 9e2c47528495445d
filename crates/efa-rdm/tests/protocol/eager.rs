//! Section 3.2, eager message.

use efa_proto::{Header, Packet, PacketType, RtmKind};
use efa_rdm::{Accept, Level, Message, OperationError, PeerId, StartError, Subprotocol};

use efa_sim::local::{Faults, LocalOptions};

use crate::world::{World, pattern};

// conformance: A103 A104
#[test]
fn eager_message_completes_on_both_sides() {
    for length in [0, 1, 8, 4096] {
        let mut world = World::pair(1);
        world.receive(1, length, 11);
        world.send(0, 1, pattern(length, 5), 22);
        world.drive();
        let received = world.receive_done(1);
        assert_eq!(received.result, Ok(()));
        assert_eq!((received.context, received.length), (11, length as u64));
        assert_eq!(received.buffer, pattern(length, 5));
        assert_eq!((received.tagged, received.cq_data), (false, None));
        assert_eq!(received.peer, Some(world.peer(1, 0)));
        let sent = world.send_done(0);
        assert_eq!((sent.context, sent.result), (22, Ok(())));
        assert_eq!(sent.buffer, Some(pattern(length, 5)), "the buffer comes back");
        assert_eq!(sent.subprotocol, Some(Subprotocol::Eager));
        assert_eq!(
            world.types_from(0).iter().filter(|t| **t == PacketType::EagerMsgRtm).count(),
            1
        );
        world.assert_clean();
    }
}

// conformance: A106 A104
#[test]
fn eager_message_matches_a_receive_posted_before_or_after() {
    let mut world = World::pair(2);
    world.tagged_send(0, 1, 7, pattern(100, 1));
    world.drive();
    assert_eq!(world.endpoint(1).statistics().unexpected, 1);
    world.tagged_receive(1, 7, 100);
    world.drive();
    world.tagged_receive(1, 8, 100);
    world.tagged_send(0, 1, 8, pattern(100, 2));
    world.drive();
    for (tag, salt) in [(7, 1), (8, 2)] {
        let received = world.receive_done(1);
        assert_eq!((received.tag, received.context, received.length), (tag, tag, 100));
        assert_eq!(received.buffer, pattern(100, salt));
        assert_eq!(received.result, Ok(()));
    }
}

// conformance: A102
#[test]
fn eager_messages_reach_up_to_the_packet_size() {
    // (tag, CQ data, handshake done) and the header that goes with it.
    let cases = [
        (None, None, false, 8 + 40),
        (Some(1), None, false, 16 + 40),
        (Some(1), Some(9), false, 16 + 40 + 8),
        (None, None, true, 8 + 4),
        (Some(1), None, true, 16 + 4),
        (Some(1), Some(9), true, 16 + 8 + 4),
    ];
    for (tag, cq_data, after_handshake, header) in cases {
        for (extra, expected) in [(0, Subprotocol::Eager), (1, Subprotocol::Medium)] {
            let mut world = World::pair(3);
            let peer = world.peer(0, 1);
            if after_handshake {
                world.receive(1, 0, 0);
                world.send(0, 1, Vec::new(), 0);
                world.drive();
                world.send_done(0);
                world.receive_done(1);
            }
            let length = 8928 - header + extra;
            let accept = match tag {
                Some(tag) => Accept::Tagged { source: None, tag, ignore: 0 },
                None => Accept::Untagged { source: None },
            };
            world.endpoint(1).receive(accept, vec![0; length], 0).unwrap();
            let buffer = pattern(length, 4);
            world
                .endpoint(0)
                .send(Message { peer, tag, cq_data, level: Level::Transmit, buffer, context: 0 })
                .unwrap();
            world.drive();
            let received = world.receive_done(1);
            assert_eq!(received.subprotocol, Some(expected), "{tag:?} {cq_data:?} {extra}");
            assert_eq!((received.cq_data, received.result), (cq_data, Ok(())));
            assert_eq!(received.buffer, pattern(length, 4));
            world.send_done(0);
            world.assert_clean();
        }
    }
}

// conformance: A67
#[test]
fn cq_data_arrives_with_tagged_and_untagged_messages_of_every_subprotocol() {
    for tag in [None, Some(3)] {
        for length in [0, 50, 20_000, 200_000] {
            let mut world = World::pair(4);
            let peer = world.peer(0, 1);
            let accept = match tag {
                Some(tag) => Accept::Tagged { source: None, tag, ignore: 0 },
                None => Accept::Untagged { source: None },
            };
            let cq_data = Some(0xdead_beef_0123_4567);
            let buffer = pattern(length, 4);
            let message =
                Message { peer, tag, cq_data, level: Level::Transmit, buffer, context: 0 };
            world.endpoint(1).receive(accept, vec![0; length], 0).unwrap();
            world.endpoint(0).send(message).unwrap();
            world.drive();
            assert_eq!(world.receive_done(1).cq_data, cq_data);
        }
    }
}

// conformance: A108
#[test]
fn truncated_message_reports_its_full_length() {
    for length in [100_usize, 20_000, 200_000] {
        let mut world = World::pair(5);
        world.receive(1, 64, 0);
        world.receive(1, 10, 1);
        world.send(0, 1, pattern(length, 6), 0);
        world.send(0, 1, pattern(10, 7), 0);
        world.drive();
        let received: Vec<_> = world.ends[1].receives.drain(..).collect();
        let truncated = received.iter().find(|r| r.context == 0).unwrap();
        let error = OperationError::Truncated { length: length as u64, capacity: 64 };
        assert_eq!(truncated.result, Err(error));
        assert_eq!((truncated.length, truncated.buffer.len()), (64, 64));
        assert_eq!(truncated.buffer, pattern(length, 6)[..64]);
        let next = received.iter().find(|r| r.context == 1).unwrap();
        assert_eq!((next.result, &next.buffer), (Ok(()), &pattern(10, 7)), "nothing else suffers");
        assert_eq!(world.send_done(0).result, Ok(()), "the sender does not notice");
    }
}

// conformance: A98
#[test]
fn message_ids_start_at_zero_for_each_peer() {
    let mut world = World::pair(6);
    world.add(Default::default());
    for i in 0..10 {
        world.send(0, 1, vec![], i);
        world.tagged_send(0, 2, i, vec![]);
    }
    world.drive();
    for msg_type in [PacketType::EagerMsgRtm, PacketType::EagerTagRtm] {
        let packets = world.packets_from(0);
        let ids = packets.iter().filter_map(|bytes| match Packet::parse(bytes).unwrap().header {
            Header::Rtm(rtm) if rtm.packet_type() == msg_type => {
                assert_eq!(rtm.kind, RtmKind::Eager);
                Some(rtm.msg_id.0)
            }
            _ => None,
        });
        assert_eq!(ids.collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    }
}

#[test]
fn injected_message_copies_its_buffer_and_has_no_completion() {
    let mut world = World::pair(7);
    let peer = world.peer(0, 1);
    let mut bytes = pattern(64, 8);
    fn message(peer: PeerId, buffer: &[u8]) -> Message<&[u8]> {
        Message { peer, tag: Some(5), cq_data: Some(6), level: Level::Transmit, buffer, context: 0 }
    }
    world.ends[0].endpoint.inject(message(peer, &bytes)).unwrap();
    bytes.fill(0);
    world.tagged_receive(1, 5, 64);
    world.drive();
    let received = world.receive_done(1);
    assert_eq!((received.buffer, received.cq_data), (pattern(64, 8), Some(6)));
    assert!(world.ends[0].sends.is_empty(), "no completion tells of success");

    let limit = world.endpoint(0).inject_limit();
    let long = vec![1; limit + 1];
    let error = world.ends[0].endpoint.inject(message(peer, &long)).unwrap_err();
    assert_eq!(error, StartError::TooLongToInject { length: limit + 1, limit });
    world.ends[0].endpoint.inject(message(peer, &long[1..])).unwrap();
    world.tagged_receive(1, 5, limit);
    world.drive();
    assert_eq!(world.receive_done(1).length, limit as u64);
    world.assert_clean();
}

// conformance: A2 A5
#[test]
fn every_packet_has_version_4_and_fits_the_mtu() {
    for mtu in [256, 300, 1408, 4096, 8928] {
        let options = LocalOptions::default().with(|options| options.mtu = mtu);
        let mut world = World::new(options);
        world.add(Default::default());
        world.add(Default::default());
        for length in [0, 1, mtu - 200, mtu - 56, mtu - 48, mtu, 3 * mtu, 65536, 65537, 300_000] {
            world.receive(1, length, 0);
            world.send(0, 1, pattern(length, length as u64), 0);
            world.drive();
            let received = world.receive_done(1);
            assert_eq!(received.result, Ok(()));
            assert_eq!(received.buffer, pattern(length, length as u64));
            world.send_done(0);
        }
        for bytes in world.all_packets() {
            assert_eq!(bytes[1], 4);
            assert!(bytes.len() <= mtu);
            Packet::parse(&bytes).unwrap();
        }
        world.assert_clean();
    }
}

#[test]
fn sent_and_received_packets_are_counted() {
    let mut world = World::pair(8);
    world.acquaint();
    // Packets that the device has no room for at first are counted once.
    let faults = Faults::default().with(|faults| faults.send_refused = 0.3);
    world.network.set_faults(faults);
    let peer = world.peer(0, 1);
    for i in 0..50 {
        world.receive(1, 20_000, i);
        world.send(0, 1, pattern(if i % 2 == 0 { 20_000 } else { 10 }, i), i);
    }
    world.drive();
    world.network.set_faults(Faults::default());
    for _ in 0..3 {
        let (cq_data, level, buffer) = (None, Level::Transmit, &[5; 9][..]);
        let message = Message { peer, tag: None, cq_data, level, buffer, context: 0 };
        world.ends[0].endpoint.inject(message).unwrap();
        world.receive(1, 9, 0);
    }
    world.drive();
    assert_eq!(world.take_receives(1).len(), 53);
    for (from, to) in [(0, 1), (1, 0)] {
        let packets = world.packets_from(from);
        let bytes: usize = packets.iter().map(Vec::len).sum();
        let types = world.types_from(from);
        let statistics = world.endpoint(from).statistics();
        assert!(statistics.sent.iter().all(|(of, count)| {
            types.iter().filter(|packet_type| **packet_type == of).count() as u64 == count
        }));
        assert_eq!(
            (statistics.sent.total(), statistics.sent_bytes),
            (packets.len() as u64, bytes as u64)
        );
        assert_eq!(statistics.injected, if from == 0 { 3 } else { 0 });
        assert_eq!(world.endpoint(to).statistics().received_bytes, bytes as u64);
    }
    // One that comes again.
    let again = world.packets_from(0).pop().unwrap();
    world.inject_bytes(0, 1, &again);
    world.drive();
    let statistics = world.endpoint(1).statistics();
    assert_eq!((statistics.dropped, statistics.old_message_ids), (1, 1));
}

#[test]
fn debug_output_of_an_endpoint_has_nothing_of_what_is_under_way() {
    let mut world = World::pair(1);
    world.tagged_send(0, 1, 7, pattern(100, 7));
    let text = format!("{:?}", world.endpoint(0));
    assert!(text.starts_with("Endpoint { address: ") && text.len() < 256, "{text}");
    world.drive();
}

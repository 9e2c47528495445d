//! Sections 1.4, 2.2 and 4.4: addresses, unknown senders, endpoints that restart.

use efa_device::{Gid, Qpn, Status};
use efa_proto::{
    Connid, Header, MsgId, OpId, PacketType, RawAddress, RawAddressForm, ReqOptions, Rtm, RtmKind,
    Rtw, RtwKind,
};
use efa_rdm::{Config, DropReason, Event, Level, Message, OperationError, StartError};
use efa_sim::local::{Faults, LocalOptions};
use efa_sim::record::QueuePairId;

use crate::world::{World, pattern, place};

fn eager(msg_id: u32, options: ReqOptions) -> Header<'static> {
    Header::Rtm(Rtm { msg_id: MsgId(msg_id), tag: None, kind: RtmKind::Eager, options })
}

fn introduced_by(address: RawAddress) -> ReqOptions {
    ReqOptions { raw_address: Some((address, RawAddressForm::Padded)), cq_data: None, connid: None }
}

// conformance: A28 A30
#[test]
fn unknown_sender_is_discovered_once() {
    for report_unknown_gid in [true, false] {
        let mut world = World::new(
            LocalOptions::default().with(|options| options.report_unknown_gid = report_unknown_gid),
        );
        world.add(Config::default());
        world.add(Config::default());
        for i in 0..50 {
            world.receive(1, 10, i);
            world.send(0, 1, pattern(10, i), i);
        }
        world.drive();
        assert_eq!(world.ends[1].receives.len(), 50);
        let discovered = world.ends[1].events.iter();
        let discovered = discovered.filter(|event| matches!(event, Event::PeerDiscovered(_)));
        assert_eq!(discovered.count(), 1);
        let sender = world.endpoint(0).address();
        let peer = world.endpoint(1).find_peer(&sender).unwrap();
        assert_eq!(peer.index(), 0);
        assert_eq!(world.ends[1].receives[0].peer, Some(peer));
        assert_eq!(world.endpoint(1).peer_address(peer), Some(sender));
    }
}

// conformance: A31
#[test]
fn packet_of_unknown_sender_without_raw_address_is_dropped() {
    let mut world = World::pair(1);
    for options in [ReqOptions::NONE, ReqOptions { connid: Some(Connid(7)), ..ReqOptions::NONE }] {
        world.inject(0, 1, eager(0, options), b"x");
        world.drive();
        assert_eq!(world.drop_reasons(1), [DropReason::UnknownSender]);
    }
    assert!(world.types_from(1).is_empty(), "no HANDSHAKE");
}

#[test]
fn packet_with_raw_address_of_another_sender_is_dropped() {
    let mut world = World::pair(2);
    let own = world.endpoint(0).address();
    let forged = [
        RawAddress { qpn: own.qpn + 1, ..own },
        RawAddress { gid: world.endpoint(1).address().gid, ..own },
    ];
    for address in forged {
        world.inject(0, 1, eager(0, introduced_by(address)), b"x");
        world.drive();
        assert_eq!(world.drop_reasons(1), [DropReason::ForgedAddress]);
    }
    // A known sender may not introduce another address.
    world.acquaint();
    let address = RawAddress { connid: Connid(1), qpn: own.qpn + 1, ..own };
    world.inject(0, 1, eager(0, introduced_by(address)), b"x");
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::ForgedAddress]);
}

/// The device reports a handle for an interface that is known, and no GID. A sender there with the number of a queue pair
/// of another interface claims to be that queue pair.
#[test]
fn packet_from_a_known_interface_with_the_address_of_a_peer_of_another_one_is_dropped() {
    let mut world = World::pair(2);
    world.add(Config::default());
    let (attacker, victim) = (world.endpoint(0).address(), world.endpoint(2).address());
    for (sender, context) in [(0, 0), (2, 1)] {
        world.receive(1, 10, context);
        world.send(sender, 1, pattern(10, context), context);
    }
    world.drive();
    assert_eq!(world.take_receives(1).len(), 2);
    let from = QueuePairId { gid: Gid(attacker.gid), qpn: Qpn(victim.qpn) };
    let places = [victim, RawAddress { connid: Connid(victim.connid.0 ^ 1), ..victim }];
    for claimed in places {
        let header = eager(1, introduced_by(claimed));
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes).unwrap();
        world.network.inject(from, place(&world.ends[1]), &bytes);
        world.drive();
        assert_eq!(world.drop_reasons(1), [DropReason::ForgedAddress], "{claimed}");
    }
    world.receive(1, 10, 2);
    world.send(2, 1, pattern(10, 7), 2);
    world.drive();
    let received = world.receive_done(1);
    assert_eq!((received.result, received.peer), (Ok(()), world.endpoint(1).find_peer(&victim)));
}

// conformance: A32 A56
#[test]
fn packet_of_new_sender_is_dropped_if_the_peer_table_is_full() {
    let mut world =
        World::new(LocalOptions::default().with(|options| options.max_address_handles = 1));
    for _ in 0..3 {
        world.add(Config::default());
    }
    world.receive(1, 10, 0);
    world.receive(1, 10, 1);
    world.send(0, 1, pattern(10, 1), 0);
    world.drive();
    world.send(2, 1, pattern(10, 2), 0);
    world.drive();
    assert_eq!(world.ends[1].receives.len(), 1);
    assert_eq!(world.drop_reasons(1), [DropReason::PeerTableFull]);
    let unknown = world.endpoint(2).address();
    assert_eq!(world.endpoint(1).find_peer(&unknown), None);
    let handshakes = world.types_from(1);
    assert_eq!(handshakes, [PacketType::Handshake], "only the peer in the table gets one");
    world.receive(1, 10, 2);
    world.send(0, 1, pattern(10, 3), 0);
    world.drive();
    assert_eq!(world.ends[1].receives.len(), 2, "the known sender is served");
}

#[test]
fn peer_with_zero_address_is_refused() {
    let mut world = World::pair(3);
    let nowhere = RawAddress { gid: [0; 16], qpn: 1, connid: Connid(1) };
    let error = world.endpoint(0).insert_peer(nowhere).unwrap_err();
    assert!(matches!(error, efa_device::DeviceError::BadAddress { .. }), "{error}");
}

// conformance: A97 A194 A195 A198
#[test]
fn packets_of_the_old_incarnation_of_a_restarted_peer_are_stale() {
    let faults = Faults::default().with(|faults| faults.keep_stale = 100);
    let mut world = World::new(LocalOptions::default().with(|options| options.faults = faults));
    world.add(Config::default());
    world.add(Config::default());
    for i in 0..5 {
        world.receive(1, 10, i);
        world.send(0, 1, pattern(10, i), i);
    }
    world.drive();
    assert_eq!(world.ends[1].receives.drain(..).count(), 5);
    let old = world.peer(1, 0);
    let old_address = world.endpoint(0).address();
    // The receiver waits for the rest of a long message when its sender is restarted.
    world.receive(1, 1 << 20, 50);
    world.send(0, 1, pattern(1 << 20, 1), 5);
    for _ in 0..6 {
        world.step();
    }
    world.restart(0, 0x7777, Config::default());
    world.drive();
    world.ends[0].sends.clear();

    // The successor uses the same message ids and introduces itself.
    world.receive(1, 10, 60);
    world.send(0, 1, pattern(10, 9), 0);
    world.drive();
    let received: Vec<_> = world.ends[1].receives.drain(..).collect();
    let broken = received.iter().find(|r| r.context == 50).expect("the long one fails");
    assert!(
        matches!(
            broken.result,
            Err(OperationError::PeerRestarted | OperationError::Device(Status::BadDestinationQpn))
        ),
        "{:?}",
        broken.result
    );
    let fresh = received.iter().find(|r| r.context == 60).expect("the new message arrives");
    assert_eq!((&fresh.buffer, fresh.result), (&pattern(10, 9), Ok(())));
    let new = world.peer(1, 0);
    assert_ne!(new, old);
    assert_eq!(fresh.peer, Some(new));

    // Late packets of the old incarnation: with the old connid, and with the old raw address.
    world.ends[1].events.clear();
    let late = ReqOptions { connid: Some(old_address.connid), ..ReqOptions::NONE };
    world.inject(0, 1, eager(5, late), b"late");
    world.inject(0, 1, eager(6, introduced_by(old_address)), b"late");
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::Stale, DropReason::Stale]);
    assert_eq!(world.endpoint(1).statistics().stale, 2);
    let buffer = vec![1];
    let message =
        Message { peer: old, tag: None, cq_data: None, level: Level::Transmit, buffer, context: 0 };
    let refused = world.endpoint(1).send(message).unwrap_err();
    assert_eq!(refused.error, StartError::PeerGone(old));
}

#[test]
fn peer_restart_is_detected_while_the_old_incarnation_is_silent() {
    let mut world = World::pair(4);
    world.receive(1, 10, 0);
    world.send(0, 1, pattern(10, 1), 0);
    world.drive();
    let old = world.peer(1, 0);
    world.restart(0, 0x7777, Config::default());
    world.receive(1, 10, 1);
    world.send(0, 1, pattern(10, 2), 0);
    world.drive();
    let new = world.peer(1, 0);
    assert!(world.ends[1].events.contains(&Event::PeerRestarted { old, new }));
    assert_eq!(world.receive_done(1).peer, Some(old));
    let second = world.receive_done(1);
    assert_eq!((second.peer, second.buffer), (Some(new), pattern(10, 2)));
}

// conformance: A194
#[test]
fn late_packet_of_an_unknown_earlier_incarnation_does_not_end_its_successor() {
    // The successor was heard before, has a long message under way, or was inserted only.
    for (is_heard, length) in [(true, 10), (true, 1 << 20), (false, 10)] {
        let mut world = World::pair(4);
        if is_heard {
            world.receive(1, 10, 0);
            world.send(0, 1, pattern(10, 1), 0);
            world.drive();
            assert_eq!(world.receive_done(1).result, Ok(()));
        }
        let successor = world.peer(1, 0);
        world.receive(1, length, 1);
        world.send(0, 1, pattern(length, 2), 1);
        (0..6).for_each(|_| world.step());
        let address = world.endpoint(0).address();
        let earlier = RawAddress { connid: Connid(address.connid.0 ^ 1), ..address };
        for msg_id in [0, 1] {
            world.inject(0, 1, eager(msg_id, introduced_by(earlier)), b"late");
            world.drive();
        }
        let received = world.receive_done(1);
        assert_eq!((received.peer, received.result), (Some(successor), Ok(())));
        assert_eq!(received.buffer, pattern(length, 2));
        assert_eq!(world.drop_reasons(1), [DropReason::Stale], "the second late packet");
        assert!(world.endpoint(1).is_gone(&earlier));
        // What arrived of the earlier one can be received.
        world.receive(1, 4, 2);
        assert_eq!(world.receive_done(1).buffer, b"late");
        // The successor goes on, and is answered.
        for (from, to) in [(0, 1), (1, 0), (0, 1)] {
            world.receive(to, 100_000, 3);
            world.send(from, to, pattern(100_000, 3), 3);
            world.drive();
            let received = world.receive_done(to);
            assert_eq!((received.buffer, received.result), (pattern(100_000, 3), Ok(())));
        }
        assert_eq!(world.peer(1, 0), successor);
        let is_end =
            |event: &Event| matches!(event, Event::PeerRestarted { .. } | Event::PeerLost { .. });
        assert!(!world.ends[1].events.iter().any(is_end));
    }
}

#[test]
fn queue_pair_passes_to_the_incarnation_that_was_heard_when_its_holder_is_removed() {
    let mut world = World::pair(4);
    world.receive(1, 10, 0);
    world.send(0, 1, pattern(10, 1), 0);
    world.drive();
    let old = world.peer(1, 0);
    world.restart(0, 0x7777, Config::default());
    world.receive(1, 10, 1);
    world.send(0, 1, pattern(10, 2), 0);
    let address = world.endpoint(0).address();
    while world.endpoint(1).find_peer(&address).is_none() {
        world.step();
    }
    world.endpoint(1).remove_peer(old);
    world.drive();
    let new = world.peer(1, 0);
    assert_eq!(world.endpoint(1).find_peer(&address), Some(new));
    world.ends[1].receives.clear();
    for _ in 0..2 {
        world.receive(1, 100_000, 2);
        world.send(0, 1, pattern(100_000, 3), 0);
        world.drive();
        let received = world.receive_done(1);
        assert_eq!((received.peer, received.buffer), (Some(new), pattern(100_000, 3)));
    }
    let restarted = |event: &Event| matches!(event, Event::PeerRestarted { .. });
    assert!(!world.ends[1].events.iter().any(restarted), "the old one had ended");
}

#[test]
fn stale_packets_of_a_reused_queue_pair_number_are_dropped() {
    let faults = Faults::default().with(|faults| faults.keep_stale = 1000);
    let mut world = World::new(LocalOptions::default().with(|options| options.faults = faults));
    world.add(Config::default());
    world.add(Config::default());
    for i in 0..10 {
        world.receive(1, 30_000, i);
        world.send(0, 1, pattern(30_000, i), i);
    }
    world.drive();
    world.ends[1].receives.clear();
    world.restart(1, 0x7777, Config::default());
    world.receive(1, 30_000, 99);
    let to = place(&world.ends[1]);
    assert!(world.network.deliver_stale(to) > 20);
    world.drive();
    // The old packets are good requests of a live peer with ids from 0 on; what must not happen is
    // that a message is taken twice or mixed up.
    let received: Vec<_> = world.ends[1].receives.drain(..).collect();
    assert!(received.len() <= 1);
    assert!(received.iter().all(|r| (0..10).any(|i| r.buffer == pattern(30_000, i))));
}

#[test]
fn lost_peer_fails_only_its_own_operations() {
    let mut world = World::pair(5);
    world.add(Config::default());
    world.receive(1, 10, 0);
    world.send(0, 1, pattern(10, 0), 0);
    world.drive();
    world.ends[0].sends.clear();
    world.ends[1].receives.clear();
    let (lost, fine) = (world.peer(0, 1), world.peer(0, 2));
    let target = place(&world.ends[1]);
    world.network.kill(target).unwrap();
    for i in 0..10 {
        world.send(0, 1, pattern(if i % 2 == 0 { 10 } else { 100_000 }, i), i);
    }
    world.receive(2, 10, 1);
    world.send(0, 2, pattern(10, 77), 77);
    world.drive();
    let mut failed = 0;
    for sent in world.ends[0].sends.drain(..) {
        if sent.peer == fine {
            assert_eq!((sent.context, sent.result), (77, Ok(())));
            continue;
        }
        assert_eq!(sent.result, Err(OperationError::Device(Status::UnresponsiveRemote)));
        assert!(sent.buffer.is_some());
        failed += 1;
    }
    assert_eq!(failed, 10);
    assert_eq!(world.receive_done(2).buffer, pattern(10, 77));
    let status = Status::UnresponsiveRemote;
    assert!(world.ends[0].events.contains(&Event::PeerLost { peer: lost, status }));
    let message = Message {
        peer: lost,
        tag: None,
        cq_data: None,
        level: Level::Transmit,
        buffer: vec![],
        context: 0,
    };
    let refused = world.endpoint(0).send(message).unwrap_err();
    assert_eq!(refused.error, StartError::PeerGone(lost));
    assert_ne!(world.peer(0, 1), lost, "inserting the address again gives a fresh peer");
}

#[test]
fn complete_unexpected_messages_survive_their_sender() {
    let mut world = World::pair(6);
    world.send(0, 1, pattern(10, 1), 0);
    world.send(0, 1, pattern(100_000, 2), 1);
    world.send(0, 1, pattern(10, 3), 2);
    world.drive();
    let peer = world.peer(1, 0);
    world.endpoint(1).remove_peer(peer);
    for i in 0..3 {
        world.receive(1, 100_000, i);
    }
    let first = world.receive_done(1);
    assert_eq!((first.length, first.peer), (10, Some(peer)));
    assert_eq!(first.buffer[..10], pattern(10, 1));
    let second = world.receive_done(1);
    assert_eq!(second.buffer[..10], pattern(10, 3), "the incomplete message is discarded");
    assert!(world.ends[1].receives.is_empty());
    assert_eq!(world.endpoint(1).packets_held().held, 0);
}

// conformance: A59
#[test]
fn empty_write_elicits_a_handshake() {
    let mut world = World::pair(7);
    let options = introduced_by(world.endpoint(0).address());
    let trigger = Rtw { rma_iov: &[], kind: RtwKind::Eager, options };
    world.peer(0, 1);
    world.inject(0, 1, Header::Rtw(trigger), &[]);
    world.drive();
    let peer = world.peer(0, 1);
    assert!(world.endpoint(0).peer_extras(peer).is_some());
    let statistics = world.endpoint(1).statistics();
    assert_eq!((statistics.dropped, statistics.remote_writes), (0, 0));
    world.receive(1, 10, 0);
    world.send(0, 1, pattern(10, 1), 0);
    world.drive();
    assert_eq!(world.receive_done(1).buffer, pattern(10, 1), "it took no message id");
    // An empty target with a payload is an error.
    let write = Rtw { rma_iov: &[], kind: RtwKind::Eager, options };
    world.inject(0, 1, Header::Rtw(write), &[1]);
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::SegmentOutOfRange]);
}

#[test]
fn complete_medium_message_survives_removal_of_its_sender() {
    let mut world = World::pair(6);
    world.send(0, 1, pattern(30_000, 1), 0);
    world.drive();
    assert_eq!(world.send_done(0).result, Ok(()));
    let peer = world.peer(1, 0);
    world.endpoint(1).remove_peer(peer);
    world.receive(1, 30_000, 0);
    let received = world.receive_done(1);
    assert!(received.buffer == pattern(30_000, 1));
    assert_eq!(world.endpoint(1).packets_held().held, 0);
}

/// Its packets of two subprotocols contradict each other, so no receive could be completed by them.
#[test]
fn contradictory_message_does_not_survive_removal_of_its_sender() {
    let mut world = World::pair(5);
    world.acquaint();
    let options = introduced_by(world.endpoint(0).address());
    let packet =
        |msg_id, kind| Header::Rtm(Rtm { msg_id: MsgId(msg_id), tag: None, kind, options });
    // Both are ahead of the expected message, and kept until it has arrived.
    let (msg_length, send_id, credit_request) = (2000, OpId(1), 1);
    let medium = RtmKind::Medium { msg_length, seg_offset: 1000 };
    world.inject(0, 1, packet(1, medium), &[1; 1000]);
    world.drive();
    let long = RtmKind::LongCts { msg_length, send_id, credit_request, read_nack: false };
    world.inject(0, 1, packet(1, long), &[1; 1000]);
    world.drive();
    world.inject(0, 1, packet(0, RtmKind::Eager), &[1; 10]);
    world.drive();
    assert_eq!(world.endpoint(1).statistics().unexpected, 2);
    let sender = world.peer(1, 0);
    world.endpoint(1).remove_peer(sender);
    for context in 0..2 {
        world.receive(1, 2000, context);
    }
    world.drive();
    assert_eq!(world.receive_done(1).length, 10);
    // The second receive is for another sender.
    world.add(Config::default());
    world.send(2, 1, pattern(5, 1), 0);
    world.drive();
    let received = world.receive_done(1);
    assert_eq!((received.context, received.length, received.result), (1, 5, Ok(())));
}

#[test]
fn injected_message_to_lost_peer_is_reported_once() {
    let mut world = World::pair(7);
    let peer = world.peer(0, 1);
    let target = place(&world.ends[1]);
    world.network.kill(target).unwrap();
    for _ in 0..5 {
        let message = Message {
            peer,
            tag: None,
            cq_data: None,
            level: Level::Transmit,
            buffer: &[1][..],
            context: 0,
        };
        world.endpoint(0).inject(message).unwrap();
    }
    world.drive();
    assert_eq!(world.ends[0].sends.len(), 5);
    for sent in world.ends[0].sends.drain(..) {
        assert_eq!(sent.result, Err(OperationError::Device(Status::UnresponsiveRemote)));
    }
}

#[test]
fn address_handle_number_of_closed_interface_may_be_reused() {
    let options = LocalOptions::default().with(|options| options.max_address_handles = 1);
    let mut world = World::new(options);
    for _ in 0..3 {
        world.add(Config::default());
    }
    // Ends 0 and 2 have the same queue pair number on hosts of their own.
    assert_eq!(world.endpoint(0).address().qpn, world.endpoint(2).address().qpn);
    let first = world.peer(1, 0);
    let handle = |world: &World, end: usize| {
        world.ends[1].device.address_handle(Gid(world.ends[end].endpoint.address().gid))
    };
    let number = handle(&world, 0).unwrap();
    world.endpoint(1).remove_peer(first);
    // Address handle numbers are reused after all have been used.
    for n in 1..u32::from(u16::MAX) {
        let mut gid = [0xfd; 16];
        gid[..4].copy_from_slice(&n.to_le_bytes());
        let address = RawAddress { gid, qpn: 1, connid: Connid(1) };
        let peer = world.endpoint(1).insert_peer(address).unwrap();
        world.endpoint(1).remove_peer(peer);
    }
    // Another queue pair of that host is inserted, so that the device reports the number.
    let other = RawAddress { qpn: 77, ..world.endpoint(2).address() };
    world.endpoint(1).insert_peer(other).unwrap();
    assert_eq!(handle(&world, 2), Some(number));
    world.receive(1, 10, 0);
    world.send(2, 1, pattern(10, 1), 0);
    world.drive();
    assert_eq!(world.receive_done(1).buffer, pattern(10, 1));
}

#[test]
fn endpoint_can_send_to_itself() {
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 12));
    world.add(Config::default());
    for round in 0..2 {
        for (i, size) in [0, 10, 8_900, 30_000, 200_000].into_iter().enumerate() {
            let tag = i as u64;
            if round == 0 {
                world.tagged_receive(0, tag, size);
            }
            world.tagged_send(0, 0, tag, pattern(size, tag));
            if round == 1 {
                world.drive();
                world.tagged_receive(0, tag, size);
            }
        }
        world.drive();
        let received: Vec<_> = world.ends[0].receives.drain(..).collect();
        assert_eq!(received.len(), 5);
        assert!(received.iter().all(|r| r.buffer == pattern(r.buffer.len(), r.tag)));
        assert!(world.ends[0].sends.drain(..).filter(|sent| sent.result == Ok(())).count() == 5);
    }
    world.assert_clean();
}

// Such a packet is attributed to the current incarnation of the queue pair, and counted as unverified.
// conformance: A196
#[test]
fn packet_without_connid_belongs_to_the_current_incarnation() {
    let mut world = World::pair(8);
    world.acquaint();
    let peer = world.peer(1, 0);
    for id in 0..3 {
        world.receive(1, 4, u64::from(id));
        world.inject(0, 1, eager(id, ReqOptions::NONE), &id.to_le_bytes());
    }
    world.drive();
    for received in world.take_receives(1) {
        assert_eq!((received.peer, received.result), (Some(peer), Ok(())));
    }
    let statistics = world.endpoint(1).statistics();
    assert_eq!((statistics.unverified, statistics.dropped), (3, 0));
    // A wrong connid is different from none.
    let connid = Some(Connid(0x5555));
    world.inject(0, 1, eager(3, ReqOptions { connid, ..ReqOptions::NONE }), b"x");
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::Stale]);
    // With a new incarnation, the packets belong to that one.
    let own = world.endpoint(0).address();
    let successor = RawAddress { connid: Connid(0x7777), ..own };
    let new = world.endpoint(1).insert_peer(successor).unwrap();
    world.receive(1, 4, 4);
    world.inject(0, 1, eager(0, ReqOptions::NONE), b"new!");
    world.drive();
    let received = world.receive_done(1);
    assert_eq!((received.peer, received.buffer), (Some(new), b"new!".to_vec()));
    assert_eq!(world.endpoint(1).statistics().unverified, 4);
}

// conformance: A197
#[test]
fn peer_is_identified_by_gid_queue_pair_and_connid() {
    let mut world = World::pair(9);
    let elsewhere = world.add(Config::default());
    let beside = world.add_beside(0, Config::default());
    let qpn = |world: &World, end: usize| world.ends[end].endpoint.address().qpn;
    assert_eq!(qpn(&world, 0), qpn(&world, elsewhere), "the same number on another host");
    assert_ne!(qpn(&world, 0), qpn(&world, beside));
    let mut seen = Vec::new();
    for (sender, again) in [(0, false), (elsewhere, false), (beside, false), (0, true)] {
        if again {
            world.restart(sender, 0x7777, Config::default());
        }
        let (source, address) = (place(&world.ends[sender]), world.endpoint(sender).address());
        world.receive(1, 1, 0);
        let header = eager(0, introduced_by(address));
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes).unwrap();
        bytes.push(1);
        let to = place(&world.ends[1]);
        world.network.inject(source, to, &bytes);
        world.drive();
        // First with the raw address, then with the connid alone.
        let peer = world.receive_done(1).peer.unwrap();
        assert_eq!(world.endpoint(1).peer_address(peer), Some(address));
        world.receive(1, 1, 0);
        let known = ReqOptions { connid: Some(address.connid), ..ReqOptions::NONE };
        let header = eager(1, known);
        bytes = vec![0; header.len()];
        header.emit(&mut bytes).unwrap();
        bytes.push(2);
        world.network.inject(source, to, &bytes);
        world.drive();
        assert_eq!(world.receive_done(1).peer, Some(peer));
        assert!(!seen.contains(&peer));
        seen.push(peer);
    }
}

#[test]
fn unknown_connid_on_a_known_queue_pair_is_another_peer() {
    let mut world = World::pair(8);
    world.acquaint();
    for _ in 0..3 {
        for (from, to) in [(0, 1), (1, 0)] {
            world.receive(to, 1, 0);
            world.send(from, to, vec![1], 0);
        }
        world.drive();
    }
    world.ends[1].receives.clear();
    world.receive(1, 4, 1);
    let connid = Some(Connid(0x5555));
    world.inject(0, 1, eager(3, ReqOptions { connid, ..ReqOptions::NONE }), b"mine");
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::Stale]);
    world.send(0, 1, b"his ".to_vec(), 0);
    world.drive();
    assert_eq!(world.receive_done(1).buffer, b"his ");
}

#[test]
fn packets_of_removed_peer_are_dropped_beside_another_of_its_interface() {
    let mut world = World::pair(9);
    let other = world.add_beside(0, Config::default());
    for from in [0, other] {
        world.peer(1, from);
        world.receive(1, 1, 0);
        world.send(from, 1, vec![1], 0);
    }
    world.drive();
    assert_eq!(world.take_receives(1).len(), 2);
    let gone = world.peer(1, 0);
    world.endpoint(1).remove_peer(gone);
    world.receive(1, 4, 1);
    world.send(0, 1, b"gone".to_vec(), 0);
    world.drive();
    assert_eq!(world.drop_reasons(1).len(), 1);
    assert!(world.take_receives(1).is_empty());
    world.send(other, 1, b"here".to_vec(), 0);
    world.drive();
    assert_eq!(world.receive_done(1).buffer, b"here");
}

// The application may insert the new incarnation before a packet of it arrives.
#[test]
fn new_incarnation_fails_operations_of_the_previous_one() {
    let mut world = World::pair(11);
    world.acquaint();
    let old = world.peer(0, 1);
    // No receive is posted, so no CTS is sent.
    world.send(0, 1, pattern(100_000, 1), 5);
    world.drive();
    assert!(world.take_sends(0).is_empty());
    let address = world.endpoint(1).address();
    let successor = RawAddress { connid: Connid(address.connid.0 ^ 1), ..address };
    let new = world.endpoint(0).insert_peer(successor).unwrap();
    let ended = world.send_done(0);
    assert_eq!((ended.context, ended.result), (5, Err(OperationError::PeerRestarted)));
    assert!(world.ends[0].events.contains(&Event::PeerRestarted { old, new }));
    assert_eq!(world.endpoint(0).find_peer(&address), None);
    assert_eq!(world.endpoint(0).find_peer(&successor), Some(new));
}

#[test]
fn removing_a_peer_keeps_messages_of_other_peers() {
    let mut world = World::pair(12);
    let other = world.add(Config::default());
    world.acquaint();
    for from in [0, other] {
        world.receive(1, 1, 0);
        world.send(from, 1, vec![1], 0);
        world.drive();
        world.receive_done(1);
    }
    let segment = |world: &mut World, from: usize, seg_offset: u64| {
        let connid = Some(world.endpoint(from).address().connid);
        let kind = RtmKind::Medium { msg_length: 2000, seg_offset };
        let options = ReqOptions { connid, ..ReqOptions::NONE };
        let rtm = Rtm { msg_id: MsgId(1), tag: None, kind, options };
        let bytes = pattern(2000, from as u64);
        let at = seg_offset as usize;
        world.inject(from, 1, Header::Rtm(rtm), &bytes[at..at + 1000]);
        world.drive();
    };
    // Half of an unexpected message of each sender.
    segment(&mut world, 0, 0);
    segment(&mut world, other, 0);
    let gone = world.peer(1, 0);
    world.endpoint(1).remove_peer(gone);
    segment(&mut world, other, 1000);
    world.receive(1, 2000, 1);
    assert_eq!(world.receive_done(1).buffer, pattern(2000, other as u64));
}

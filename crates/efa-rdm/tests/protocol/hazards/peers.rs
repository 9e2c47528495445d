//! Hazards of peers and endpoints: addresses, HANDSHAKE, RNR, full queues and closing.

use std::time::Duration;

use efa_device::{QueuePairOptions, Status};
use efa_handshake::Extras;
use efa_proto::{Connid, ExtraInfo, Handshake, Header, Packet, PacketType, RawAddress};
use efa_rdm::{Config, DropReason, Event, Level, Message, OperationError};
use efa_sim::local::LocalOptions;

use super::{SECOND, SOON, acquainted, assert_backoff, count, pair, pass, registered, send_at};
use crate::longread::Memory;
use crate::world::{World, pattern, place};

#[test]
fn hazard_08_removing_an_old_address_keeps_the_new_one() {
    let mut world = World::pair(8);
    let own = world.endpoint(0).address();
    let old = RawAddress { connid: Connid(0x5555), ..own };
    let before = world.endpoint(1).insert_peer(old).unwrap();
    let now = world.endpoint(1).insert_peer(own).unwrap();
    assert_ne!(before, now);
    for round in 0..2 {
        for _ in 0..2 {
            world.receive(1, 10, 0);
            world.send(0, 1, pattern(10, round), 0);
            world.receive(0, 10, 0);
            let message = Message {
                peer: now,
                tag: None,
                cq_data: None,
                level: Level::Transmit,
                buffer: pattern(10, round),
                context: 0,
            };
            world.endpoint(1).send(message).unwrap();
            world.drive();
            assert_eq!(world.receive_done(1).peer, Some(now));
            assert_eq!(world.receive_done(0).buffer, pattern(10, round));
            world.send_done(0);
            world.send_done(1);
        }
        world.endpoint(1).remove_peer(before);
        assert_eq!(world.endpoint(1).find_peer(&own), Some(now));
        assert_eq!(world.endpoint(1).find_peer(&old), None);
    }
    world.assert_clean();
}

#[test]
fn hazard_09_completions_of_a_closed_queue_pair_are_ignored() {
    let mut world = pair(9);
    let me = place(&world.ends[0]);
    world.network.delay_completions(me, 10, SECOND).unwrap();
    for i in 0..10 {
        world.receive(1, 10, i);
        world.send(0, 1, pattern(10, i), i);
    }
    pass(&mut world, SOON);
    world.restart(0, 0x7777, Config::default());
    // The new endpoint uses the same work request ids; its completions come later still.
    world.network.delay_completions(me, 10, 3 * SECOND).unwrap();
    for i in 0..10 {
        world.receive(1, 10, 20 + i);
        world.send(0, 1, pattern(10, i), 20 + i);
    }
    pass(&mut world, SOON);
    world.idle(2 * SECOND);
    assert!(world.take_sends(0).is_empty(), "the old completions are not used for these sends");
    world.drive();
    assert_eq!(world.take_sends(0).iter().filter(|send| send.context >= 20).count(), 10);
    let statistics = world.endpoint(0).statistics();
    assert_eq!((statistics.send_errors, statistics.dropped), (0, 0));
    assert!(world.ends[0].events.iter().all(|of| matches!(of, Event::PeerDiscovered(_))));
    assert_eq!(world.take_receives(1).len(), 20);
}

#[test]
fn hazard_11_peer_is_removed_while_packets_await_retransmission() {
    // While the packets are in backoff, and while they are in flight again.
    for (seed, in_flight) in [(11, false), (12, true)] {
        let mut world = World::pair(seed);
        let target = place(&world.ends[1]);
        world.network.not_ready(target, u32::MAX).unwrap();
        // Another peer of that interface keeps its address handle.
        let sibling = RawAddress { qpn: 77, ..world.endpoint(1).address() };
        world.endpoint(0).insert_peer(sibling).unwrap();
        world.send(0, 1, pattern(10, 1), 1);
        world.send(0, 1, pattern(30_000, 2), 2);
        let peer = world.peer(0, 1);
        let (tag, cq_data, level) = (None, None, Level::Transmit);
        let injected = Message { peer, tag, cq_data, level, buffer: &[3; 10][..], context: 0 };
        world.endpoint(0).inject(injected).unwrap();
        let wanted = |world: &mut World| {
            let statistics = world.endpoint(0).statistics();
            match in_flight {
                true => statistics.retransmitted > 0,
                false => statistics.receiver_not_ready == 6 + statistics.retransmitted,
            }
        };
        while !wanted(&mut world) {
            world.step();
        }
        assert_eq!(world.endpoint(0).packets_held().sending > 0, in_flight);
        world.endpoint(0).remove_peer(peer);
        world.drive();
        let mut ended: Vec<_> =
            world.take_sends(0).iter().map(|of| (of.context, of.result.is_err())).collect();
        ended.sort_unstable();
        assert_eq!(ended, [(0, true), (1, true), (2, true)], "each once");
        assert!(world.endpoint(0).is_quiet());
        assert_eq!(world.endpoint(0).packets_held().sending, 0);
        // No packet arrived, so both start at the first message id again.
        world.network.not_ready(target, 0).unwrap();
        world.receive(1, 10, 4);
        world.send(0, 1, pattern(10, 4), 4);
        world.drive();
        assert_eq!(world.receive_done(1).buffer, pattern(10, 4));
        world.send_done(0);
        world.assert_clean();
    }
}

/// The peer was removed because it stands still: it takes none of the packets, and the device goes on trying.
#[test]
fn packets_of_failed_messages_to_a_removed_peer_keep_no_endpoint_from_being_quiet() {
    let long = Duration::from_secs(1_000);
    for is_injected in [false, true] {
        let mut world = World::pair(1);
        let me = place(&world.ends[0]);
        world.network.delay_completions(me, 100, long).unwrap();
        world.send(0, 1, pattern(10, 1), 1);
        world.send(0, 1, pattern(30_000, 2), 2);
        let peer = world.peer(0, 1);
        if is_injected {
            let (tag, cq_data, level) = (None, None, Level::Transmit);
            let message = Message { peer, tag, cq_data, level, buffer: &[3; 10][..], context: 0 };
            world.endpoint(0).inject(message).unwrap();
        }
        pass(&mut world, SOON);
        assert!(!world.endpoint(0).is_quiet());
        world.endpoint(0).remove_peer(peer);
        assert!(world.endpoint(0).packets_held().sending > 1);
        let is_quiet = world.endpoint(0).is_quiet();
        assert_eq!(is_quiet, !is_injected, "what was injected is not known to have failed");
        pass(&mut world, SOON);
        let sends = world.take_sends(0);
        let failed = sends.iter().all(|send| send.result == Err(OperationError::PeerRemoved));
        assert!(failed && sends.len() == 2, "{sends:?}");
    }
}

/// The ids of the messages that an endpoint has sent.
fn message_ids(world: &mut World, from: usize) -> Vec<u32> {
    let packets = world.packets_from(from);
    let ids = packets.iter().filter_map(|packet| match Packet::parse(packet).unwrap().header {
        Header::Rtm(rtm) => Some(rtm.msg_id.0),
        _ => None,
    });
    ids.collect()
}

#[test]
fn hazard_12_peer_has_one_state_however_it_becomes_known() {
    for seed in 0..20 {
        // Each endpoint inserts the other while packets of the other also discover it.
        let mut world = World::pair(seed);
        for i in 0..10 {
            for (from, to) in [(0, 1), (1, 0)] {
                world.receive(to, 10, i);
                let address = world.endpoint(to).address();
                let first = world.endpoint(from).insert_peer(address).unwrap();
                assert_eq!(world.endpoint(from).insert_peer(address), Ok(first));
                assert_eq!(first.index(), 0);
                world.send(from, to, pattern(10, i), i);
            }
            world.step();
        }
        world.drive();
        for end in 0..2 {
            let mut ids = message_ids(&mut world, end);
            ids.sort_unstable();
            assert_eq!(ids, (0..10).collect::<Vec<_>>(), "each id once");
            for i in 0..10 {
                assert_eq!(world.receive_done(end).buffer, pattern(10, i));
            }
            world.take_sends(end);
        }
        world.assert_clean();
    }
}

#[test]
fn hazard_13_packets_of_a_removed_peer_do_not_discover_it_again() {
    for knows_us in [true, false] {
        let mut world = World::pair(13);
        let sender = place(&world.ends[0]);
        if !knows_us {
            // It gets no HANDSHAKE, so its requests keep carrying the raw address.
            world.network.not_ready(sender, u32::MAX).unwrap();
        }
        for i in 0..3 {
            world.receive(1, 10, i);
            world.send(0, 1, pattern(10, i), i);
        }
        pass(&mut world, SOON);
        let address = world.endpoint(0).address();
        let peer = world.endpoint(1).find_peer(&address).unwrap();
        assert_eq!(world.take_receives(1).len(), 3);
        world.endpoint(1).remove_peer(peer);
        world.ends[1].events.clear();
        world.forget_packets();
        for i in 0..3 {
            world.receive(1, 10, i);
            world.send(0, 1, pattern(10, i), i);
        }
        pass(&mut world, SOON);
        assert_eq!(world.drop_reasons(1), [DropReason::Stale; 3]);
        assert_eq!(world.endpoint(1).find_peer(&address), None);
        assert!(world.take_receives(1).is_empty());
        assert!(world.packets_from(1).is_empty(), "not even a HANDSHAKE");
        let introduced = world.packets_from(0).iter().all(|packet| {
            Packet::parse(packet).unwrap().header.raw_address().is_some() != knows_us
        });
        assert!(introduced);
    }
}

/// Both remove each other, and one inserts the other again and sends before that does the same.
#[test]
fn hazard_13_removed_peer_that_starts_anew_is_discovered_unless_its_message_was_arriving() {
    for (length, is_arriving) in [(10, false), (30_000, true)] {
        let mut world = World::pair(13);
        world.receive(1, length, 0);
        world.send(0, 1, pattern(length, 0), 0);
        let address = world.endpoint(0).address();
        while world.endpoint(1).find_peer(&address).is_none() {
            world.step();
        }
        if !is_arriving {
            pass(&mut world, SOON);
            assert_eq!(world.receive_done(1).buffer, pattern(length, 0));
        }
        let removed = world.endpoint(1).find_peer(&address).unwrap();
        world.endpoint(1).remove_peer(removed);
        let other = world.peer(0, 1);
        world.endpoint(0).remove_peer(other);
        pass(&mut world, SOON);
        world.ends[1].events.clear();
        world.take_receives(1);

        for i in 1..3 {
            world.receive(1, 10, i);
            world.send(0, 1, pattern(10, i), i);
        }
        pass(&mut world, SOON);
        let found = world.endpoint(1).find_peer(&address);
        if is_arriving {
            assert_eq!(world.drop_reasons(1), [DropReason::Stale; 2]);
            assert_eq!(found, None);
            continue;
        }
        let found = found.unwrap();
        assert_ne!(found, removed);
        for i in 1..3 {
            let received = world.receive_done(1);
            assert_eq!((received.buffer, received.peer), (pattern(10, i), Some(found)));
        }
        assert_eq!(world.endpoint(1).insert_peer(address), Ok(found));
    }
}

#[test]
fn hazard_14_address_handle_is_kept_while_a_peer_uses_it() {
    let options = LocalOptions::default().with(|options| {
        options.seed = 14;
        options.max_address_handles = 1;
    });
    let configs = [Config::default(), Config::default()];
    let mut world: World = acquainted(options, configs, || vec![1]);
    world.add(Config::default());
    // A queue pair of the same interface that does not exist: sends to it fail.
    let other = RawAddress { qpn: 77, ..world.endpoint(1).address() };
    for round in 0..3_u64 {
        let sibling = world.endpoint(0).insert_peer(other).unwrap();
        let (tag, cq_data, level) = (None, None, Level::Transmit);
        let message =
            Message { peer: sibling, tag, cq_data, level, buffer: pattern(10, 9), context: 9 };
        if round > 0 {
            world.endpoint(0).send(message).unwrap();
        }
        world.send(0, 1, pattern(30_000, round), round);
        // Removed by the application; removed while a packet to it is in flight; lost since it does not exist.
        if round < 2 {
            world.endpoint(0).remove_peer(sibling);
        }
        world.receive(1, 30_000, round);
        world.drive();
        assert_eq!(world.receive_done(1).buffer, pattern(30_000, round));
        let sends = world.take_sends(0);
        assert_eq!(sends.iter().filter(|of| of.result == Ok(())).count(), 1);
        assert_eq!(sends.len(), if round > 0 { 2 } else { 1 });
    }
    // Once no peer uses the handle, there is space for the third host.
    let third = world.endpoint(2).address();
    assert!(world.endpoint(0).insert_peer(third).is_err());
    let last = world.peer(0, 1);
    world.endpoint(0).remove_peer(last);
    world.receive(2, 10, 5);
    world.send(0, 2, pattern(10, 5), 5);
    world.drive();
    assert_eq!(world.receive_done(2).buffer, pattern(10, 5));
}

#[test]
fn hazard_18_endpoint_with_a_queued_response_is_not_quiet() {
    for packet in [PacketType::Receipt, PacketType::Eor] {
        let config = Config::default().with(|config| config.min_read = Some(100_000));
        let configs = [config.clone(), config];
        let mut world = acquainted(LocalOptions::default(), configs, || Memory::Heap(vec![1]));
        let length = if packet == PacketType::Eor { 100_000 } else { 10 };
        world.receive_into(1, Memory::Heap(vec![0; length]), 1);
        let message = registered(&world, 0, pattern(length, 18), true);
        send_at(&mut world, Level::Delivery, message, 1);
        // The receiver has the message, but its device refuses packets.
        let target = place(&world.ends[1]);
        while packet == PacketType::Eor && world.endpoint(1).statistics().rdma_reads == 0 {
            world.step();
        }
        world.network.refuse_sends(target, u32::MAX).unwrap();
        while world.ends[1].receives.is_empty() {
            world.step();
        }
        pass(&mut world, SOON);
        assert_eq!(world.receive_done(1).result, Ok(()), "{packet}");
        assert_eq!(count(&mut world, 1, packet), 0);
        assert!(!world.endpoint(1).is_quiet(), "{packet} is queued");
        world.network.refuse_sends(target, 0).unwrap();
        while !world.endpoint(1).is_quiet() {
            let now = world.now;
            world.endpoint(1).progress(now);
            world.now = now + Duration::from_micros(1);
        }
        world.network.kill(target).unwrap();
        world.drive();
        assert_eq!(
            world.send_done(0).result,
            Ok(()),
            "{packet} was sent before the endpoint was quiet"
        );
    }
}

#[test]
fn hazard_19_endpoint_with_full_send_queue_delays_no_other() {
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 19));
    for _ in 0..3 {
        world.add(Config::default());
    }
    let blocked = place(&world.ends[0]);
    world.network.refuse_sends(blocked, u32::MAX).unwrap();
    for i in 0..100 {
        world.send(0, 1, pattern(10, i), i);
        world.receive(1, 200_000, i);
        world.send(2, 1, pattern(200_000, i), i);
    }
    pass(&mut world, 20 * SOON);
    assert_eq!(world.take_receives(1).len(), 100);
    assert_eq!(world.take_sends(2).len(), 100);
    assert!(world.take_sends(0).is_empty());
    // The blocked endpoint can still receive, and sends as soon as there is space.
    world.receive(0, 10, 1);
    world.send(2, 0, pattern(10, 1), 1);
    pass(&mut world, SOON);
    assert_eq!(world.receive_done(0).buffer, pattern(10, 1));
    world.network.refuse_sends(blocked, 0).unwrap();
    for i in 0..100 {
        world.receive(1, 10, i);
    }
    world.drive();
    assert_eq!(world.take_receives(1).len(), 100);
}

#[test]
fn hazard_20_rnr_backoff_is_reset_when_a_packet_arrives() {
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 20));
    let options = QueuePairOptions::default().with(|options| options.rnr_retry = 0);
    for _ in 0..2 {
        world.add_with(Config::default(), options);
    }
    let target = place(&world.ends[1]);
    let took = |times: u32| {
        world.network.not_ready(target, times).unwrap();
        let start = world.now;
        world.receive(1, 10, 1);
        world.send(0, 1, pattern(10, 1), 1);
        while world.ends[1].receives.is_empty() {
            world.step();
        }
        world.drive();
        world.receive_done(1);
        world.now - start
    };
    assert_backoff(took);
}

fn handshake(extras: Extras) -> Header<'static> {
    let words: &'static [u64] = vec![extras.bits()].leak();
    Header::Handshake(Handshake {
        extra_info: ExtraInfo::new(words).unwrap(),
        connid: None,
        host_id: None,
        device_version: None,
        user_recv_qp: None,
        hmem_p2p: None,
    })
}

#[test]
fn hazard_22_second_handshake_is_accepted_and_not_answered() {
    let mut world = pair(22);
    let peer = world.peer(0, 1);
    world.send(0, 1, pattern(300_000, 1), 1);
    send_at(&mut world, Level::Delivery, pattern(30_000, 2), 2);
    // The same HANDSHAKE again, and one that withdraws a feature, while messages are in progress.
    let known = world.endpoint(0).peer_extras(peer).unwrap();
    let without = known - Extras::DELIVERY_COMPLETE;
    for extras in [known, known, without] {
        world.inject(1, 0, handshake(extras), &[]);
        pass(&mut world, Duration::from_micros(40));
        assert_eq!(world.endpoint(0).peer_extras(peer), Some(extras));
    }
    world.receive(1, 300_000, 1);
    world.receive(1, 30_000, 2);
    world.drive();
    let received = world.take_receives(1);
    for received in &received {
        assert!(received.buffer == pattern(received.buffer.len(), received.context));
    }
    assert_eq!(
        (received.len(), world.take_sends(0).len()),
        (2, 2),
        "messages in progress complete"
    );
    send_at(&mut world, Level::Delivery, pattern(10, 3), 3);
    world.drive();
    let missing = Extras::DELIVERY_COMPLETE;
    assert_eq!(world.send_done(0).result, Err(OperationError::PeerLacks { missing }));
    assert_eq!(count(&mut world, 0, PacketType::Handshake), 0);
    assert_eq!(world.drop_reasons(0), []);
    world.assert_clean();
}

#[test]
fn hazard_23_handshake_is_resent_after_rnr_and_precedes_ctsdata() {
    for seed in 0..10 {
        let mut world = World::new(LocalOptions::default().with(|options| options.seed = seed));
        let options = QueuePairOptions::default().with(|options| options.rnr_retry = 0);
        for _ in 0..2 {
            world.add_with(Config::default(), options);
        }
        let [sender, receiver] = [0, 1].map(|end| place(&world.ends[end]));
        world.receive(1, 200_000, 1);
        // The receiver's HANDSHAKE meets RNR five times and is then delayed, so that its CTS overtakes it.
        world.network.not_ready(sender, 5).unwrap();
        world.network.delay_sends(receiver, 1, 10 * SOON).unwrap();
        world.send(0, 1, pattern(200_000, seed), 1);
        let peer = world.peer(0, 1);
        while world.ends[1].receives.is_empty() {
            let known = world.endpoint(0).peer_extras(peer).is_some();
            let sent = count(&mut world, 0, PacketType::CtsData);
            assert!(known || sent == 0, "seed {seed}");
            world.step();
        }
        assert_eq!(world.network.statistics().receiver_not_ready, 5);
        assert!(world.receive_done(1).buffer == pattern(200_000, seed));
        assert_eq!(world.endpoint(0).statistics().received.of(PacketType::Handshake), 1);
    }
}

#[test]
fn hazard_27_undeliverable_handshake_is_no_error() {
    let gone = [
        Status::RemoteAbort,
        Status::BadDestinationQpn,
        Status::UnresponsiveRemote,
        Status::UnreachableRemote,
    ];
    for status in gone {
        let mut world = World::pair(27);
        let receiver = place(&world.ends[1]);
        world.network.fail_sends(receiver, 1, status).unwrap();
        world.receive(1, 10, 1);
        world.send(0, 1, pattern(10, 1), 1);
        world.drive();
        assert_eq!(world.receive_done(1).result, Ok(()));
        assert_eq!(world.types_from(1), [PacketType::Handshake]);
        let events: Vec<_> = world.ends[1].events.drain(..).collect();
        assert!(matches!(events[..], [Event::PeerDiscovered(_)]), "{status}: {events:?}");
        assert!(world.take_sends(1).is_empty());
        assert_eq!(world.endpoint(1).statistics().send_errors, 1, "the error is counted");
    }
}

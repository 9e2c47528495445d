//! Sections 4.2 and 2.1: delivery complete, RECEIPT, and features that must be known first.

use std::collections::BTreeSet;
use std::time::Duration;

use efa_device::{QueuePairOptions, Time};
use efa_handshake::{Extras, Profile, Release};
use efa_proto::{
    Header, MsgId, OpId, Packet, PacketType, Receipt, ReqOptions, RmaIov, Rtm, RtmKind,
};
use efa_rdm::{
    Completion, Config, DropReason, Level, Message, OperationError, Read, Remote, StartError,
    Subprotocol, Write,
};
use efa_sim::local::{Faults, LocalOptions};

use crate::world::{World, pattern};

impl World {
    /// Starts a send that completes when it is delivered.
    fn deliver(&mut self, from: usize, to: usize, buffer: Vec<u8>, context: u64) {
        let peer = self.peer(from, to);
        let level = Level::Delivery;
        let message = Message { peer, tag: None, cq_data: None, level, buffer, context };
        self.endpoint(from).send(message).unwrap();
    }

    fn count(&mut self, from: usize, wanted: PacketType) -> usize {
        self.types_from(from).into_iter().filter(|sent| *sent == wanted).count()
    }
}

const LENGTHS: [(usize, PacketType, Subprotocol); 4] = [
    (0, PacketType::DcEagerMsgRtm, Subprotocol::Eager),
    (5000, PacketType::DcEagerMsgRtm, Subprotocol::Eager),
    (60_000, PacketType::DcMediumMsgRtm, Subprotocol::Medium),
    (700_000, PacketType::DcLongCtsMsgRtm, Subprotocol::LongCts),
];

// conformance: A174 A175 A176 A177 A178
#[test]
fn delivery_complete_send_completes_after_the_receive() {
    for (length, packet_type, subprotocol) in LENGTHS {
        for seed in 0..30 {
            let mut world = World::pair(seed);
            world.deliver(0, 1, pattern(length, seed), 1);
            world.send(0, 1, pattern(10, seed), 2);
            world.drive();
            // The next message has arrived at the target's device; this one has not been received.
            assert_eq!(world.take_sends(0).len(), 1);
            assert_eq!(world.count(1, PacketType::Receipt), 0);
            world.receive(1, length, 3);
            world.receive(1, 10, 4);
            world.drive();
            let received = world.take_receives(1);
            assert!(received.iter().any(|receive| receive.buffer == pattern(length, seed)));
            let sent = world.send_done(0);
            assert_eq!((sent.context, sent.result), (1, Ok(())));
            assert_eq!(sent.subprotocol, Some(subprotocol));
            assert!(world.count(0, packet_type) > 0);
            assert_eq!(world.count(1, PacketType::Receipt), 1, "one, however many packets");
            world.assert_clean();
        }
    }
}

// With a posted receive, the RECEIPT may arrive before or after the device completions.
// conformance: A178
#[test]
fn receipt_before_or_after_device_completions_completes_the_send() {
    let (mut last, mut overtaking) = (0, 0);
    for seed in 0..40 {
        let mut world = World::pair(seed);
        world.acquaint();
        world.receive(1, 60_000, 1);
        world.deliver(0, 1, pattern(60_000, seed), 2);
        while world.endpoint(0).statistics().received.of(PacketType::Receipt) == 0 {
            assert!(world.take_sends(0).is_empty(), "not before the RECEIPT");
            world.step();
        }
        last += world.take_sends(0).len();
        world.drive();
        overtaking += world.take_sends(0).len();
        assert_eq!(world.take_receives(1).len(), 1);
        world.assert_clean();
    }
    // Whichever comes last completes the send, once.
    assert_eq!(last + overtaking, 40);
    assert!(last > 0 && overtaking > 0, "{last} {overtaking}");
}

// An application may not poll again for long after a completion.
#[test]
fn receipt_is_sent_before_the_receive_completion_is_returned() {
    let mut world = World::pair(1);
    world.acquaint();
    world.receive(1, 100, 1);
    world.deliver(0, 1, pattern(100, 1), 2);
    let now = world.now + Duration::from_millis(1);
    world.endpoint(0).poll(now);
    let (mut now, mut ended) = (now, None);
    while ended.is_none() {
        now += Duration::from_micros(1);
        world.endpoint(0).poll(now);
        ended = world.endpoint(1).poll(now);
    }
    assert!(matches!(ended, Some(Completion::Receive(_))), "{ended:?}");
    assert_eq!(world.endpoint(1).statistics().sent.of(PacketType::Receipt), 1);
}

// Each call finds another message, so the device always has a completion.
#[test]
fn backlog_is_sent_when_completions_are_read_singly() {
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 3));
    let few = QueuePairOptions::default().with(|options| options.send_depth = 4);
    world.add(Config::default());
    world.add_with(Config::default(), few);
    world.acquaint();
    for number in 0..150 {
        world.receive(1, 10, number);
        world.receive(0, 10, number);
    }
    let before = world.endpoint(1).statistics().sent.total();
    for number in 0..60 {
        world.send(1, 0, pattern(10, number), number);
    }
    let mut now = world.now;
    for number in 0..150 {
        now += Duration::from_micros(20);
        world.endpoint(0).poll(now);
        world.send(0, 1, pattern(10, number), number);
        let ended = world.endpoint(1).poll(now);
        assert!(number < 5 || ended.is_some(), "the device has no completion");
    }
    let sent = world.endpoint(1).statistics().sent.total() - before;
    assert!(sent > 20, "{sent} were sent meanwhile, of which the device takes four at a time");
}

// conformance: A41 A180
#[test]
fn delivery_complete_send_fails_at_a_peer_without_the_feature() {
    for release in [Release::V1_10, Release::V1_12] {
        let old = Config::default().with(|config| config.profile = Profile::of(release));
        let mut world = World::pair_with(1, Config::default(), old);
        for (i, length) in [100, 100_000, 100].into_iter().enumerate() {
            world.receive(1, 100_000, 10 + i as u64);
            match i {
                1 => world.deliver(0, 1, pattern(length, 1), 1),
                _ => world.send(0, 1, pattern(length, i as u64), i as u64),
            }
        }
        world.drive();
        let mut sends = world.take_sends(0);
        sends.sort_by_key(|send| send.context);
        let knows = release == Release::V1_12;
        let missing = Extras::DELIVERY_COMPLETE;
        let expected = if knows { Ok(()) } else { Err(OperationError::PeerLacks { missing }) };
        assert_eq!(sends[1].result, expected);
        assert_eq!(sends[1].buffer.as_deref(), Some(&pattern(100_000, 1)[..]));
        assert!(sends[0].result.is_ok() && sends[2].result.is_ok());
        assert_eq!(world.take_receives(1).len(), if knows { 3 } else { 2 }, "no gap is left");
    }
}

// conformance: A35
#[test]
fn delivery_complete_sends_elicit_one_handshake_and_keep_order() {
    let mut world = World::pair(3);
    for i in 0..20_u64 {
        world.receive(1, 20_000, i);
        match i % 3 {
            0 => world.deliver(0, 1, pattern(15_000, i), i),
            _ => world.send(0, 1, pattern(10, i), i),
        }
    }
    let peer = world.peer(0, 1);
    let inject = Message {
        peer,
        tag: None,
        cq_data: None,
        level: Level::Transmit,
        buffer: &[1][..],
        context: 0,
    };
    // An injected message has no operation that could wait.
    assert!(matches!(world.endpoint(0).inject(inject), Err(StartError::Busy { .. })));
    world.drive();
    let packets = world.packets_from(0);
    let first = Packet::parse(&packets[0]).unwrap();
    assert_eq!((first.packet_type(), packets[0].len()), (PacketType::EagerRtw, 48));
    assert_eq!(world.count(0, PacketType::EagerRtw), 1);
    for received in world.take_receives(1) {
        let length = if received.context % 3 == 0 { 15_000 } else { 10 };
        assert!(received.buffer[..length] == pattern(length, received.context));
    }
    assert_eq!(world.take_sends(0).len(), 20);
    world.assert_clean();

    // After a message was sent, the HANDSHAKE needs no empty write.
    let mut world = World::pair(4);
    world.receive(1, 10, 0);
    world.receive(1, 10, 1);
    world.send(0, 1, vec![1; 10], 0);
    world.deliver(0, 1, vec![2; 10], 1);
    world.drive();
    assert_eq!(world.count(0, PacketType::EagerRtw), 0);
    assert_eq!(world.take_sends(0).len(), 2);
}

#[test]
fn absent_peer_fails_sends_that_wait_for_its_handshake() {
    let mut world = World::pair(5);
    let peer = world.peer(0, 1);
    let gone = world.ends.pop().unwrap();
    drop(gone);
    let level = Level::Delivery;
    for context in 0..3 {
        let buffer = vec![1; 10];
        let message = Message { peer, tag: None, cq_data: None, level, buffer, context };
        world.endpoint(0).send(message).unwrap();
    }
    world.drive();
    let sends = world.take_sends(0);
    assert_eq!(sends.len(), 3);
    assert!(sends.iter().all(|s| matches!(s.result, Err(OperationError::Device(_)))));
}

/// A pair whose end 0 has sent a message that lies in a buffer of end 1, which hasn't polled since.
fn delivered_and_not_answered(seed: u64) -> World {
    let mut world = World::pair(seed);
    world.acquaint();
    world.drive();
    world.send(0, 1, pattern(10, seed), 0);
    let mut now = world.now;
    while world.ends[0].sends.is_empty() {
        now += Duration::from_micros(1);
        world.endpoint(0).progress(now);
        world.ends[0].collect();
    }
    world.now = now;
    assert_eq!(world.send_done(0).result, Ok(()));
    world
}

// No request that it could still be asked by is in flight, and only another packet tells that it is gone.
#[test]
fn operations_that_wait_for_the_handshake_of_a_peer_that_died_end_with_a_status_of_the_device() {
    for first in 0..4 {
        let mut world = delivered_and_not_answered(first);
        let peer = world.peer(0, 1);
        drop(world.ends.pop());
        for context in (0..4).map(|step| (first + step) % 4) {
            let remote = Remote::from(RmaIov::new(0, 10, 0));
            let (buffer, level, cq_data) = (vec![1; 10], Level::Transmit, None);
            let end = world.endpoint(0);
            match context {
                0 => {
                    let level = Level::Delivery;
                    end.send(Message { peer, tag: None, cq_data, level, buffer, context }).unwrap();
                }
                // Alone it would be delivered.
                1 if first == 1 => {}
                1 => {
                    end.send(Message { peer, tag: None, cq_data, level, buffer, context }).unwrap();
                }
                2 => end.read(Read { peer, remote, buffer, context }).unwrap(),
                _ => {
                    let write = Write { peer, remote, buffer, cq_data, level, context };
                    end.write(write).unwrap();
                }
            }
        }
        world.drive();
        let end = &mut world.ends[0];
        let sends = end.sends.drain(..).map(|done| done.result);
        let results: Vec<_> = sends.chain(end.rma.drain(..).map(|done| done.result)).collect();
        assert_eq!(results.len(), if first == 1 { 3 } else { 4 });
        let is_status = |result| matches!(result, Err(OperationError::Device(_)));
        assert!(results.into_iter().all(is_status));
        assert!(world.now < Time::ZERO + Duration::from_secs(5), "{:?}", world.now);
    }
}

#[test]
fn injected_message_that_waits_for_the_handshake_of_a_peer_that_died_is_refused_for_good() {
    let after = Config::default().with(|config| config.messages_after_handshake = true);
    let mut world = World::pair_with(1, after, Config::default());
    let peer = world.peer(0, 1);
    world.drive();
    let message = |buffer| {
        let (tag, cq_data, level) = (None, None, Level::Inject);
        Message { peer, tag, cq_data, level, buffer, context: 0 }
    };
    let busy = world.endpoint(0).inject(message(&[1][..]));
    assert!(matches!(busy, Err(StartError::Busy { .. })));
    // The request that asks for the HANDSHAKE is delivered.
    for _ in 0..100 {
        world.now += Duration::from_micros(1);
        let now = world.now;
        world.endpoint(0).progress(now);
    }
    assert_eq!(world.endpoint(0).packets_held().sending, 0);
    drop(world.ends.pop());
    for _ in 0..100 {
        world.now += Duration::from_millis(50);
        let now = world.now;
        world.endpoint(0).progress(now);
        let refused = world.endpoint(0).inject(message(&[1][..])).unwrap_err();
        if matches!(refused, StartError::PeerGone(_)) {
            return;
        }
        assert!(matches!(refused, StartError::Busy { .. }));
    }
    panic!("it is told to try again for ever");
}

#[test]
fn peer_that_does_not_poll_for_long_is_asked_a_few_times_for_its_handshake_and_answers_once() {
    let mut world = delivered_and_not_answered(7);
    for context in 0..2 {
        world.receive(1, 10, context);
    }
    world.deliver(0, 1, pattern(10, 8), 8);
    for _ in 0..1_200 {
        world.now += Duration::from_millis(50);
        let now = world.now;
        world.endpoint(0).progress(now);
    }
    let asked = world.count(0, PacketType::EagerRtw);
    assert!((2..=6).contains(&asked), "{asked} times in a minute");
    assert!(world.take_sends(0).is_empty());
    world.drive();
    assert_eq!(world.send_done(0).result, Ok(()));
    assert_eq!(world.count(1, PacketType::Handshake), 1);
    assert_eq!(world.count(0, PacketType::EagerRtw), asked, "not after its HANDSHAKE");
    assert_eq!(world.endpoint(0).next_timeout(), None);
    assert_eq!(world.take_receives(1).len(), 2);
    world.assert_clean();
}

// conformance: A177 A181
#[test]
fn receipt_waits_for_space_in_the_send_queue() {
    let mut world = World::pair(6);
    world.acquaint();
    world.receive(1, 10, 0);
    world.send(0, 1, vec![1; 10], 0);
    world.drive();
    world.receive_done(1);
    world.send_done(0);
    let tight = Faults::default().with(|faults| {
        faults.send_limit = Some(1);
        faults.send_refused = 0.5;
    });
    world.network.set_faults(tight);
    for i in 0..30 {
        world.receive(1, 20_000, i);
        world.deliver(0, 1, pattern(if i % 2 == 0 { 20_000 } else { 20 }, i), i);
    }
    world.drive();
    assert!(world.take_sends(0).iter().all(|send| send.result.is_ok()));
    assert_eq!(world.take_receives(1).len(), 30);
    let receipts = world.packets_from(1).into_iter().filter_map(|packet| {
        match Packet::parse(&packet).unwrap().header {
            Header::Receipt(receipt) => Some(receipt.msg_id.0),
            _ => None,
        }
    });
    let ids: BTreeSet<u32> = receipts.clone().collect();
    assert_eq!((receipts.count(), ids), (30, (1..=30).collect()), "one for each message");
}

// conformance: A182
#[test]
fn receipt_is_matched_by_operation_id_alone() {
    let mut world = World::pair(7);
    world.acquaint();
    world.deliver(0, 1, pattern(10, 7), 1);
    world.drive();
    let requests = world.packets_from(0);
    let send_id = requests.iter().find_map(|bytes| match Packet::parse(bytes).unwrap().header {
        Header::Rtm(Rtm { kind: RtmKind::DcEager { send_id }, .. }) => Some(send_id),
        _ => None,
    });
    let send_id = send_id.unwrap();
    let connid = Some(world.ends[1].endpoint.address().connid);
    let mut receipt = |send_id, msg_id| {
        let receipt = Receipt { send_id, msg_id: MsgId(msg_id), connid };
        world.inject(1, 0, Header::Receipt(receipt), &[]);
        world.drive();
        (world.take_sends(0).len(), world.drop_reasons(0))
    };
    let unknown = [DropReason::UnknownOperation];
    assert_eq!(receipt(OpId(send_id.0 ^ 1), 0), (0, unknown.to_vec()));
    assert_eq!(receipt(send_id, 0xdead_beef), (1, vec![]));
    assert_eq!(receipt(send_id, 0), (0, unknown.to_vec()), "once");
}

// libfabric 2.6 sends delivery-complete messages before it has our HANDSHAKE.
#[test]
fn delivery_complete_message_before_the_handshake_gets_a_receipt() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut world = World::pair(6);
        world.acquaint();
        for i in 0..3 {
            world.receive(1, 4, i);
        }
        for id in order {
            let kind = match id {
                1 => RtmKind::DcEager { send_id: OpId(3) },
                _ => RtmKind::Eager,
            };
            let rtm = Rtm { msg_id: MsgId(id), tag: None, kind, options: ReqOptions::NONE };
            world.inject(0, 1, Header::Rtm(rtm), &id.to_le_bytes());
            world.drive();
        }
        for id in 0..3_u32 {
            assert_eq!(world.receive_done(1).buffer, id.to_le_bytes());
        }
        assert_eq!(world.count(1, PacketType::Receipt), 1);
    }
}

#[test]
fn receipt_for_a_transmit_complete_message_is_dropped() {
    let mut world = World::pair(8);
    world.send(0, 1, pattern(700_000, 1), 1);
    world.drive();
    let connid = Some(world.ends[1].endpoint.address().connid);
    for id in 0..4 {
        let receipt = Receipt { send_id: OpId(id), msg_id: MsgId(0), connid };
        world.inject(1, 0, Header::Receipt(receipt), &[]);
    }
    world.drive();
    assert_eq!(world.drop_reasons(0), [DropReason::UnknownOperation; 4]);
    assert!(world.take_sends(0).is_empty());
}

#[test]
fn truncated_delivery_complete_message_gets_a_receipt() {
    let mut world = World::pair(9);
    for (length, ..) in LENGTHS.into_iter().skip(1) {
        world.receive(1, 100, 1);
        world.deliver(0, 1, pattern(length, 1), 2);
        world.drive();
        let received = world.receive_done(1);
        assert!(matches!(received.result, Err(OperationError::Truncated { .. })));
        assert_eq!(world.send_done(0).result, Ok(()));
    }
    world.assert_clean();
}

#[test]
fn delivery_complete_sends_complete_once_under_faults() {
    for seed in 0..20 {
        let faults = Faults::default().with(|faults| {
            faults.receiver_not_ready = 0.1;
            faults.send_refused = 0.2;
            faults.late = 0.2;
        });
        let mut world = World::new(LocalOptions::default().with(|options| {
            options.seed = seed;
            options.faults = faults;
        }));
        world.add(Config::default());
        world.add(Config::default());
        for i in 0..12_u64 {
            let (length, ..) = LENGTHS[i as usize % 4];
            let (from, to) = if i % 2 == 0 { (0, 1) } else { (1, 0) };
            world.receive(to, length, i);
            world.deliver(from, to, pattern(length, i), i);
        }
        world.drive();
        for end in [0, 1] {
            for received in world.take_receives(end) {
                let (length, ..) = LENGTHS[received.context as usize % 4];
                assert!(received.buffer == pattern(length, received.context));
            }
            let sends = world.take_sends(end);
            assert_eq!(sends.iter().filter(|send| send.result.is_ok()).count(), 6);
        }
    }
}

// conformance: A44 A180
#[test]
fn refused_delivery_complete_send_uses_no_message_id() {
    let mut old = Config::default();
    old.profile.extras.remove(Extras::DELIVERY_COMPLETE);
    let mut world = World::pair_with(8, Config::default(), old);
    world.acquaint();
    for round in 0..3 {
        world.receive(1, 10, round);
        world.send(0, 1, pattern(10, round), round);
        world.drive();
        assert_eq!(world.receive_done(1).buffer, pattern(10, round));
        assert_eq!(world.send_done(0).result, Ok(()));
        world.deliver(0, 1, pattern(10, 9), 9);
        world.drive();
        let missing = Extras::DELIVERY_COMPLETE;
        assert_eq!(world.send_done(0).result, Err(OperationError::PeerLacks { missing }));
    }
    assert_eq!(world.count(0, PacketType::DcEagerMsgRtm), 0);
    world.assert_clean();
}

// A round of device completions ends in a call that returns one, while a response is ready.
#[test]
fn messages_that_arrived_while_nobody_polled_complete_one_by_one_and_are_confirmed() {
    const COUNT: usize = 100;
    for length in [10, 10_000, 20_000] {
        // More than a round handles.
        let config = Config::default().with(|config| config.min_receive_buffers = 512);
        let mut world = World::pair_with(length, config.clone(), config);
        for (from, to) in [(0, 1), (1, 0)] {
            world.receive(to, 10, 0);
            world.send(from, to, pattern(10, 0), 0);
            world.drive();
            assert_eq!(
                (world.send_done(from).result, world.receive_done(to).result),
                (Ok(()), Ok(()))
            );
        }
        for number in 0..COUNT as u64 {
            world.receive(1, length as usize, number);
            world.deliver(0, 1, pattern(length as usize, number), number);
        }
        for _ in 0..2000 {
            let now = world.now;
            world.endpoint(0).progress(now);
            world.now = now + Duration::from_micros(1);
        }
        let mut received = 0;
        for _ in 0..100_000 {
            let now = world.now;
            while let Some(completion) = world.endpoint(1).poll(now) {
                let Completion::Receive(receive) = completion else { panic!("{completion:?}") };
                assert_eq!(receive.result, Ok(()));
                received += 1;
            }
            // What met no buffer is sent again.
            world.endpoint(0).progress(now);
            world.now = now + Duration::from_micros(1);
        }
        assert_eq!(received, COUNT, "{length}");
        world.drive();
        assert_eq!(world.take_sends(0).len(), COUNT, "{length}");
    }
}

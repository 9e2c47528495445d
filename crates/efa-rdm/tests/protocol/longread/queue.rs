//! Reads in progress: their number and size, and peers that fail meanwhile.

use std::time::Duration;

use efa_device::{QueuePairOptions, Status};
use efa_proto::{Header, MsgId, OpId, PacketType, ReqOptions, RmaIov, Rtm, RtmKind};
use efa_rdm::{BackoffLimits, Event, OperationError, Subprotocol};
use efa_sim::local::LocalOptions;

use super::{Memory, World, config, is_untouched_around, pair};
use crate::world::{Driving, pattern, place};

// The device reads at most 4 KiB at a time, and at most three reads are in progress.
// conformance: A6 A168
#[test]
fn reads_keep_to_device_size_and_concurrency_limits() {
    let options = LocalOptions::default().with(|options| {
        options.max_rdma_size = 4096;
        options.seed = 5;
    });
    let mut world = World::new(options);
    world.add(config());
    world.add(config().with(|config| config.max_rdma = 3));
    world.shake_hands();
    for salt in 0..3 {
        let target = world.region(1, &[0; 150_000]);
        world.receive_into(1, target, salt);
        let message = world.region(0, &pattern(150_000, salt));
        world.send(0, 1, message, salt);
    }
    while world.endpoint(1).statistics().rdma_reads == 0 {
        world.step();
    }
    assert_eq!(world.endpoint(1).statistics().rdma_reads, 3, "the other reads wait");
    world.drive();
    for salt in 0..3 {
        let received = world.receive_done(1);
        assert_eq!(received.result, Ok(()));
        assert!(received.buffer.bytes() == pattern(150_000, received.context));
        assert!(is_untouched_around(&received.buffer));
        assert!(world.send_done(0).context < 3, "{salt}");
    }
    let statistics = world.endpoint(1).statistics();
    assert_eq!(statistics.rdma_reads, 3 * 150_000_u64.div_ceil(4096));
    assert_eq!(world.types_from(1), [PacketType::Eor; 3], "one per message");
    world.assert_clean();
}

#[test]
fn sender_killed_during_the_read_fails_the_receive() {
    let options = LocalOptions::default().with(|options| {
        options.max_rdma_size = 4096;
        options.seed = 5;
    });
    let mut world = World::new(options);
    world.add(config());
    world.add(config());
    world.shake_hands();
    world.receive_into(1, Memory::Heap(vec![0; 300_000]), 1);
    let message = world.region(0, &pattern(300_000, 4));
    world.send(0, 1, message, 2);
    while world.endpoint(1).statistics().rdma_bytes < 50_000 {
        world.step();
    }
    let dead = place(&world.ends[0]);
    world.network.kill(dead).unwrap();
    world.drive();
    let received = world.receive_done(1);
    assert_eq!(received.result, Err(OperationError::Device(Status::UnresponsiveRemote)));
    assert_eq!(received.buffer.bytes().len(), 300_000);
    assert!(world.ends[1].events.iter().any(|event| matches!(event, Event::PeerLost { .. })));
    world.ends[0].endpoint.end_operations();
    assert_eq!(world.send_done(0).result, Err(OperationError::Closed));
}

/// With `poll`, the failed read is the only thing that the call handles.
#[test]
fn sender_killed_during_a_read_in_one_piece_fails_all_operations_with_it() {
    for driving in [Driving::Progress, Driving::Poll, Driving::Sparing] {
        let mut world = World::new(LocalOptions::default().with(|options| options.seed = 5));
        world.add(config());
        world.add(config());
        world.shake_hands();
        world.send_byte(1, 0);
        world.ends[1].driving = driving;
        // It waits for a receive, and its request has been delivered.
        let message = world.region(1, &pattern(300_000, 5));
        world.send(1, 0, message, 3);
        world.drive();
        begin_only_read(&mut world, 1);
        let dead = place(&world.ends[0]);
        world.network.kill(dead).unwrap();
        world.drive();
        let lost = Err(OperationError::Device(Status::UnresponsiveRemote));
        assert_eq!(world.receive_done(1).result, lost, "{driving:?}");
        assert_eq!(world.send_done(1).result, lost, "{driving:?}");
        assert!(world.endpoint(1).is_quiet());
        world.ends[0].endpoint.end_operations();
        world.take_sends(0);
    }
}

#[test]
fn receive_of_removed_peer_completes_after_its_last_read() {
    // In many pieces, of which some have been read, and in one.
    for (max_rdma_size, read_before) in [(4096, 50_000), (1 << 20, 0)] {
        let options = LocalOptions::default().with(|options| {
            options.max_rdma_size = max_rdma_size;
            options.seed = 5;
        });
        let mut world = World::new(options);
        world.add(config());
        world.add(config().with(|config| config.max_rdma = 4));
        world.shake_hands();
        let target = world.region(1, &[0; 300_000]);
        world.receive_into(1, target, 1);
        let message = world.region(0, &pattern(300_000, 4));
        world.send(0, 1, message, 2);
        while world.endpoint(1).statistics().rdma_reads == 0
            || world.endpoint(1).statistics().rdma_bytes < read_before
        {
            world.step();
        }
        let peer = world.peer(1, 0);
        world.endpoint(1).remove_peer(peer);
        assert!(world.take_receives(1).is_empty(), "the device still writes to it");
        world.drive();
        let received = world.receive_done(1);
        assert_eq!(received.result, Err(OperationError::PeerRemoved));
        assert!(world.endpoint(1).is_quiet());
    }
}

/// End 1 receives a message of end 0, by a single read that its device hasn't done.
fn begin_only_read(world: &mut World, context: u64) {
    let target = world.region(1, &[0; 300_000]);
    world.receive_into(1, target, context);
    let message = world.region(0, &pattern(300_000, 4));
    world.send(0, 1, message, 2);
    while world.endpoint(1).statistics().rdma_reads == 0 {
        world.step();
    }
}

/// The read ends after the peer, however it ends.
#[test]
fn message_of_removed_peer_fails_by_the_removal_though_its_only_read_fails_too() {
    let mut world = pair(5, config(), config());
    begin_only_read(&mut world, 1);
    let (removed, sender) = (world.peer(1, 0), place(&world.ends[0]));
    world.endpoint(1).remove_peer(removed);
    world.network.kill(sender).unwrap();
    world.drive();
    assert_eq!(world.receive_done(1).result, Err(OperationError::PeerRemoved));
    assert!(world.endpoint(1).is_quiet());
    world.ends[0].endpoint.end_operations();
    world.take_sends(0);
}

/// A message was arriving from it, so its next ones aren't taken for those of a new peer (hazard 13).
#[test]
fn removed_peer_whose_message_was_being_read_does_not_begin_anew() {
    for is_arriving in [false, true] {
        let mut world = pair(5, config(), config());
        let address = world.endpoint(0).address();
        if is_arriving {
            begin_only_read(&mut world, 1);
        }
        let (removed, other) = (world.peer(1, 0), world.peer(0, 1));
        world.endpoint(1).remove_peer(removed);
        world.endpoint(0).remove_peer(other);
        world.drive();
        world.take_receives(1);
        world.take_sends(0);
        world.receive_into(1, Memory::Heap(vec![0]), 0);
        world.send(0, 1, Memory::Heap(vec![1]), 0);
        for _ in 0..10_000 {
            world.step();
        }
        assert_eq!(world.endpoint(1).find_peer(&address).is_none(), is_arriving);
    }
}

/// The device may still write to the buffer, as `end_operations` says; nothing else is to come of the read.
#[test]
fn message_ended_during_its_only_read_completes_once_and_sends_no_eor() {
    let mut world = pair(5, config(), config());
    begin_only_read(&mut world, 7);
    world.endpoint(1).end_operations();
    let received = world.receive_done(1);
    assert_eq!((received.context, received.length), (7, 0));
    assert_eq!(received.result, Err(OperationError::Closed));
    assert_eq!(received.buffer.bytes().len(), 300_000);
    assert!(!world.endpoint(1).is_quiet(), "the device has not done the read");
    world.drive();
    assert!(world.endpoint(1).is_quiet());
    assert!(world.take_receives(1).is_empty());
    assert_eq!(world.types_from(1), []);
    world.ends[0].endpoint.end_operations();
    world.take_sends(0);
}

/// Queued reads are posted in order; one that cannot be posted must not block the next.
#[test]
fn failed_read_does_not_delay_queued_reads() {
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 7));
    world.add(config());
    world.add(config().with(|config| config.max_rdma = 1));
    world.add(config());
    world.shake_hands();
    // A message of end 2 introduces it to end 1.
    world.send_byte(2, 1);
    for context in 1..4 {
        world.receive_into(1, Memory::Heap(vec![0; 200_000]), context);
    }
    let start = world.now;
    let message = world.region(0, &pattern(200_000, 1));
    world.send(0, 1, message, 2);
    while world.endpoint(1).statistics().rdma_reads == 0 {
        world.step();
    }
    // The key exceeds 32 bits, so no device has it.
    let (msg_length, send_id) = (200_000, OpId(0));
    let read_iov = [RmaIov::new(0, msg_length, 1 << 40)];
    let kind = RtmKind::LongRead { msg_length, send_id, read_iov: &read_iov };
    let connid = Some(world.endpoint(2).address().connid);
    let options = ReqOptions { raw_address: None, cq_data: None, connid };
    let rtm = Rtm { msg_id: MsgId(1), tag: None, kind, options };
    world.inject(2, 1, Header::Rtm(rtm), &[]);
    let message = world.region(0, &pattern(200_000, 3));
    world.send(0, 1, message, 4);
    while world.ends[1].receives.iter().filter(|of| of.result.is_ok()).count() < 2 {
        world.step();
    }
    // Queued reads are checked once per trim interval (1 s): faster means that nothing blocked them.
    let took = world.now - start;
    assert!(took < Duration::from_millis(100), "{took:?}");
}

/// Reads from a peer in backoff are skipped.
#[test]
fn read_from_peer_in_backoff_does_not_delay_others() {
    // With a send queue of one entry, the backoff starts while a read of that peer is next.
    for send_depth in [1024, 1] {
        reads_beside_a_peer_in_backoff(send_depth);
    }
}

fn reads_beside_a_peer_in_backoff(send_depth: usize) {
    const LONG: usize = 8 << 20;
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 7));
    let once = QueuePairOptions::default().with(|options| {
        options.rnr_retry = 0;
        options.send_depth = send_depth;
    });
    let second = Duration::from_secs(1);
    let backoff = BackoffLimits::default().with(|backoff| {
        backoff.first = second;
        backoff.longest = second;
    });
    world.add(config());
    world.add_with(
        config().with(|config| {
            config.max_rdma = 1;
            config.backoff = backoff;
            config.trim_interval = second;
        }),
        once,
    );
    world.add(config());
    world.acquaint();
    for (from, context) in [(0, 0), (2, 0)] {
        world.receive_into(1, Memory::Heap(vec![0]), context);
        world.send(from, 1, Memory::Heap(vec![1]), context);
        world.drive();
        world.receive_done(1);
    }
    let start = world.now;
    for from in [2, 0, 2] {
        world.receive_into(1, Memory::Heap(vec![0; LONG]), 1);
        let message = world.region(from, &pattern(LONG, 1));
        world.send(from, 1, message, 1);
    }
    while world.endpoint(1).statistics().rdma_reads < 3 {
        world.step();
    }
    // End 1 has a packet for end 0 that meets RNR every time.
    let target = place(&world.ends[0]);
    world.network.not_ready(target, u32::MAX).unwrap();
    world.send(1, 0, Memory::Heap(vec![1]), 0);
    while world.endpoint(1).statistics().receiver_not_ready < 2 {
        world.step();
    }
    assert!(world.ends[1].receives.is_empty());
    while world.ends[1].receives.len() < 2 {
        world.step();
    }
    let took = world.now - start;
    assert!(took < Duration::from_millis(100), "{took:?}");
    world.network.not_ready(target, 0).unwrap();
    world.receive_into(0, Memory::Heap(vec![0]), 0);
    world.drive();
    assert_eq!(world.ends[1].receives.len(), 3);
    for end in 0..3 {
        world.take_sends(end);
        world.take_receives(end);
    }
    world.assert_clean();
}

/// The send queues have a place for one packet or RDMA operation. Both ends send, so that requests, reads and confirmations
/// find the place taken.
#[test]
fn requests_and_reads_wait_for_a_place_in_a_full_send_queue() {
    const MESSAGES: u64 = 4;
    let single = QueuePairOptions::default().with(|options| options.send_depth = 1);
    for seed in 0..20 {
        let mut world = World::new(LocalOptions::default().with(|options| options.seed = seed));
        world.add_with(config(), single);
        world.add_with(config(), single);
        world.shake_hands();
        world.send_byte(1, 0);
        world.forget_packets();
        for salt in 0..MESSAGES {
            for (from, to) in [(0, 1), (1, 0)] {
                let target = world.region(to, &[0; 100_000]);
                world.receive_into(to, target, salt);
                let message = world.region(from, &pattern(100_000, salt));
                world.send(from, to, message, salt);
            }
        }
        world.drive();
        for end in 0..2 {
            for salt in 0..MESSAGES {
                let received = world.receive_done(end);
                assert_eq!((received.context, received.result), (salt, Ok(())), "seed {seed}");
                assert_eq!(received.subprotocol, Some(Subprotocol::LongRead));
                assert!(received.buffer.bytes() == pattern(100_000, salt));
                assert!(is_untouched_around(&received.buffer));
            }
            let sent = world.take_sends(end);
            assert!(sent.len() == MESSAGES as usize && sent.iter().all(|of| of.result.is_ok()));
            assert_eq!(world.endpoint(end).statistics().rdma_reads, MESSAGES);
            let types = world.types_from(end);
            let confirmations = types.iter().filter(|of| **of == PacketType::Eor).count();
            assert_eq!((types.len(), confirmations), (2 * MESSAGES as usize, MESSAGES as usize));
        }
        world.assert_clean();
    }
}

/// The send queue has a place for one packet or RDMA operation, and a packet is on its way when the request arrives.
#[test]
fn read_waits_for_the_packet_that_fills_the_send_queue() {
    let single = QueuePairOptions::default().with(|options| options.send_depth = 1);
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 3));
    world.add(config());
    world.add_with(config(), single);
    world.shake_hands();
    let target = world.region(1, &[0; 100_000]);
    world.receive_into(1, target, 1);
    world.receive_into(0, Memory::Heap(vec![0]), 2);
    let message = world.region(0, &pattern(100_000, 1));
    world.send(0, 1, message, 1);
    world.send(1, 0, Memory::Heap(vec![1]), 2);
    while world.endpoint(1).statistics().received.of(PacketType::LongReadMsgRtm) == 0 {
        world.step();
    }
    assert_eq!(world.endpoint(1).statistics().rdma_reads, 0, "the packet is not delivered yet");
    world.drive();
    let received = world.receive_done(1);
    assert_eq!(received.result, Ok(()));
    assert!(received.buffer.bytes() == pattern(100_000, 1));
    assert_eq!(world.endpoint(1).statistics().rdma_reads, 1);
    for end in 0..2 {
        assert_eq!(world.send_done(end).result, Ok(()));
    }
    assert_eq!(world.receive_done(0).result, Ok(()));
    world.assert_clean();
}

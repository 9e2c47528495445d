//! Completion queues: reading, waiting, order of errors, and back-pressure when they are full.

use std::time::Duration;

use efa::{
    CompletionQueue, CompletionQueueOptions, Direction, Endpoint, EndpointOptions, Fabric, Kind,
    LocalOptions, Message, OperationError, Receive, StartError, Status, WaitError,
};

use crate::world::{ALICE, BOB, World, options, pattern, with};

// conformance: C72 C73
#[test]
fn queue_reads_return_none_one_or_many_completions() {
    let world = World::pair(1);
    let to_bob = world.introduce(ALICE, BOB);
    let queue = world.ends[BOB].queue.clone();
    assert!(queue.read().is_none());
    let mut entries = Vec::new();
    assert_eq!(queue.read_many(&mut entries, 16), 0);
    for i in 0..20 {
        world.end(BOB).receive(Receive::untagged(), vec![0; 8], i).unwrap();
        world.end(ALICE).send(Message::to(to_bob), vec![i as u8], i).unwrap();
    }
    // Progresses both hosts without taking Bob's entries.
    for _ in 0..100 {
        world.tick();
        while world.ends[ALICE].queue.read().is_some() {}
        queue.read_many(&mut entries, 0);
        let most = 16 - entries.len();
        assert!(queue.read_many(&mut entries, most) <= most);
    }
    assert_eq!(entries.len(), 16);
    assert_eq!(queue.read_many(&mut entries, 16), 4);
    let contexts: Vec<u64> = entries.into_iter().map(|entry| entry.unwrap().context).collect();
    assert_eq!(contexts, (0..20).collect::<Vec<_>>());
    assert!(queue.read().is_none());
}

// conformance: C73
#[test]
fn queue_wait_ends_at_its_timeout_or_with_a_completion() {
    let world = World::new(LocalOptions::default());
    let domain = world.fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let endpoint = |connid| {
        domain
            .endpoint(options(connid))
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()
            .unwrap()
    };
    let (alice, bob) = (endpoint(1), endpoint(2));
    let second = Duration::from_secs(1);
    let Err(WaitError::TimedOut(timeout)) = queue.wait(second) else { panic!() };
    assert_eq!(timeout, second);
    assert!(world.clock.now() >= efa::Time::ZERO + second);

    let to_bob = addresses.insert(bob.address()).unwrap();
    bob.receive(Receive::untagged(), vec![0; 100_000], 1).unwrap();
    alice.send(Message::to(to_bob), pattern(100_000, 1), 2).unwrap();
    let mut contexts = [queue.wait(second).unwrap().context, queue.wait(second).unwrap().context];
    contexts.sort_unstable();
    assert_eq!(contexts, [1, 2]);

    let receive = bob.receive(Receive::untagged(), vec![0; 8], 3).unwrap();
    assert!(bob.cancel(receive));
    let Err(WaitError::Failed(failed)) = queue.wait(second) else { panic!() };
    assert_eq!(failed.to_string(), "operation with context 3: cancelled");
}

#[test]
fn endpoints_of_one_queue_are_polled_in_turn() {
    let world = World::new(LocalOptions::default());
    let domain = world.fabric.domain().unwrap();
    let queue = || domain.completion_queue(CompletionQueueOptions::default());
    let (outbox, inbox) = (queue(), queue());
    let addresses = domain.address_vector();
    let endpoint = |connid, queue: &_| {
        domain
            .endpoint(options(connid))
            .bind_completion_queue(queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()
            .unwrap()
    };
    let alice = endpoint(1, &outbox);
    let (bob, carol) = (endpoint(2, &inbox), endpoint(3, &inbox));
    let to = |whom: &Endpoint| Message::to(addresses.insert(whom.address()).unwrap());
    for message in 0..32 {
        bob.receive(Receive::untagged(), vec![0; 8], message).unwrap();
        alice.inject(to(&bob), b"for Bob").unwrap();
    }
    carol.receive(Receive::untagged(), vec![0; 9], 99).unwrap();
    alice.inject(to(&carol), b"for Carol").unwrap();
    for _ in 0..200 {
        world.tick();
        assert!(outbox.read().is_none());
    }
    // Bob could fill every read; Carol gets her turn.
    assert_ne!(bob.id(), carol.id());
    let received = std::iter::from_fn(|| inbox.read()).map(|entry| {
        let completion = entry.unwrap();
        let receiver = if completion.context == 99 { &carol } else { &bob };
        assert_eq!(completion.endpoint, receiver.id());
        completion.context
    });
    let contexts: Vec<u64> = received.collect();
    assert_eq!(contexts.len(), 33);
    let position = contexts.iter().position(|context| *context == 99).unwrap();
    assert!(position < 2, "{contexts:?}");
    let bobs = contexts.iter().filter(|context| **context != 99);
    assert!(bobs.copied().eq(0..32), "each endpoint's completions are in order: {contexts:?}");
}

// conformance: C25
#[test]
fn only_reading_queues_progresses_the_protocol() {
    let mut world = World::pair(2);
    let to_bob = world.introduce(ALICE, BOB);
    // A long message: request, HANDSHAKEs both ways, several grants.
    world.end(BOB).receive(Receive::untagged(), vec![0; 3_000_000], 1).unwrap();
    world.end(ALICE).send(Message::to(to_bob), pattern(3_000_000, 1), 2).unwrap();
    for _ in 0..1000 {
        world.tick();
    }
    assert_eq!(
        world.end(BOB).statistics().received.total(),
        0,
        "nothing happens before the queues are read"
    );
    assert_eq!(world.done(BOB).buffer, pattern(3_000_000, 1));
    let statistics = world.end(ALICE).statistics();
    assert!(statistics.received.of(efa::PacketType::Cts) > 3);
    assert_eq!(statistics.received.of(efa::PacketType::Handshake), 1);
}

// conformance: C75
#[test]
fn failed_operation_completes_in_order_with_the_others() {
    let mut world = World::pair(3);
    let to_bob = world.introduce(ALICE, BOB);
    for (context, capacity) in [(1, 100), (2, 10), (3, 100)] {
        world.end(BOB).receive(Receive::untagged(), vec![0; capacity], context).unwrap();
        world.end(ALICE).send(Message::to(to_bob), pattern(50, context), context).unwrap();
    }
    assert_eq!(world.done(BOB).context, 1);
    let failed = world.failed(BOB);
    assert_eq!(failed.completion.context, 2);
    assert_eq!(failed.error, OperationError::Truncated { length: 50, capacity: 10 });
    assert_eq!(world.done(BOB).context, 3);
}

// conformance: C76 C121
#[test]
fn failed_completion_has_context_tag_peer_and_buffer() {
    let mut world = World::pair(4);
    let (to_bob, to_alice) = (world.introduce(ALICE, BOB), world.introduce(BOB, ALICE));

    // Truncated.
    world.end(BOB).receive(Receive::masked(0x70, 0x0f), vec![0; 10], 1).unwrap();
    let message = Message::to(to_bob).tagged(0x77).with_data(5);
    world.end(ALICE).send(message, pattern(50, 1), 2).unwrap();
    let failed = world.failed(BOB);
    assert_eq!(failed.error, OperationError::Truncated { length: 50, capacity: 10 });
    let completion = *failed.completion;
    assert_eq!((completion.context, completion.kind, completion.length), (1, Kind::Receive, 10));
    assert_eq!((completion.tag, completion.cq_data), (Some(0x77), Some(5)));
    assert_eq!(completion.peer, Some(to_alice));
    assert_eq!(completion.peer_address, Some(world.end(ALICE).address()));
    assert_eq!(completion.buffer, pattern(50, 1)[..10]);
    assert_eq!(world.done(ALICE).context, 2);

    // Cancelled.
    let receive = world.end(BOB).receive(Receive::tagged(9), vec![3; 10], 3).unwrap();
    assert!(world.end(BOB).cancel(receive));
    assert!(!world.end(BOB).cancel(receive), "only once");
    let failed = world.failed(BOB);
    assert_eq!(failed.error, OperationError::Cancelled);
    let completion = *failed.completion;
    assert_eq!((completion.context, completion.kind, completion.length), (3, Kind::Receive, 0));
    assert_eq!((completion.tag, completion.peer), (Some(9), None));
    assert_eq!(completion.buffer, [3; 10], "the buffer is unchanged");

    // Peer killed.
    let bob = world.end(BOB).address();
    let queue_pair = efa::sim::QueuePairId { gid: bob.gid(), qpn: bob.qpn() };
    world.fabric.as_local().unwrap().kill(queue_pair).unwrap();
    world.end(ALICE).send(Message::to(to_bob).tagged(4), pattern(20, 2), 4).unwrap();
    let failed = world.failed(ALICE);
    let OperationError::Device(status) = failed.error else { panic!("{failed}") };
    assert_eq!((status, status.code()), (Status::UnresponsiveRemote, 13));
    let text = format!("operation with context 4 (peer {bob}): the device reports: {status}");
    assert_eq!(failed.to_string(), text);
    let completion = *failed.completion;
    assert_eq!((completion.context, completion.kind, completion.length), (4, Kind::Send, 20));
    assert_eq!((completion.tag, completion.peer), (Some(4), Some(to_bob)));
    assert_eq!(completion.buffer, pattern(20, 2));
}

// conformance: C27 C77 C117
#[test]
fn full_queue_refuses_operations_and_loses_no_completion() {
    const CAPACITY: usize = 10;
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 5));
    for connid in [1, 2] {
        world.add_with(options(connid), CompletionQueueOptions::new().capacity(CAPACITY));
    }
    let to_bob = world.introduce(ALICE, BOB);
    let full = StartError::QueueFull { capacity: CAPACITY };
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    let (mut post_refused, mut send_refused) = (0, 0);
    while received < 200 {
        while posted < 200 {
            match world.end(BOB).receive(Receive::untagged(), vec![0; 100], posted) {
                Ok(_) => posted += 1,
                Err(refused) => {
                    assert!(refused.error == full && refused.error.is_busy());
                    assert_eq!(refused.buffer, [0; 100]);
                    post_refused += 1;
                    break;
                }
            }
        }
        let unread = posted - received - world.ends[BOB].entries.len() as u64;
        assert!(unread <= CAPACITY as u64);
        while sent < 200 {
            match world.end(ALICE).send(Message::to(to_bob), pattern(100, sent), sent) {
                Ok(()) => sent += 1,
                Err(refused) => {
                    assert_eq!(refused.error, full);
                    assert_eq!(refused.buffer, pattern(100, sent));
                    send_refused += 1;
                    break;
                }
            }
        }
        let completion = world.done(BOB);
        assert_eq!(completion.context, received);
        assert_eq!(completion.buffer, pattern(100, received));
        received += 1;
    }
    assert!(post_refused > 0 && send_refused > 0);
    assert!(world.is_silent(BOB));
}

// conformance: C27 C117
#[test]
fn credits_of_ended_operations_serve_the_other_side_and_endpoints_bound_later() {
    const CAPACITY: usize = 4;
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let addresses = domain.address_vector();
    let queue =
        |capacity| domain.completion_queue(CompletionQueueOptions::new().capacity(capacity));
    let bound_to = |queue: &CompletionQueue| {
        let builder = domain.endpoint(EndpointOptions::default());
        let builder = builder.bind_completion_queue(queue, Direction::Both);
        builder.bind_address_vector(&addresses).enable().unwrap()
    };
    let (small, large) = (queue(CAPACITY), queue(100));
    let (alice, bob) = (bound_to(&small), bound_to(&large));
    let [to_alice, to_bob] = [&alice, &bob].map(|end| addresses.insert(end.address()).unwrap());
    let full = StartError::QueueFull { capacity: CAPACITY };
    let take = |from: &CompletionQueue| from.wait(Duration::from_secs(10)).unwrap();
    let post = |end: &Endpoint| end.receive(Receive::untagged(), vec![0; 8], 0).map(|_| ());
    let refused = |posted: Result<(), efa::Refused>| posted.unwrap_err().error;

    for _ in 0..CAPACITY {
        post(&alice).unwrap();
        bob.send(Message::to(to_alice), "x", 0).unwrap();
    }
    assert_eq!(refused(post(&alice)), full);
    (0..CAPACITY).for_each(|_| drop((take(&large), take(&small))));

    // What the receives returned, sends take.
    assert_eq!((alice.transmits_left(), alice.receives_left()), (CAPACITY, CAPACITY));
    for i in 0..CAPACITY {
        assert_eq!(alice.transmits_left(), CAPACITY - i);
        alice.send(Message::to(to_bob), "y", 0).unwrap();
    }
    assert_eq!(refused(alice.send(Message::to(to_bob), "y", 0)), full);
    (0..CAPACITY).for_each(|_| drop(take(&small)));

    // Another endpoint gets all of them, and afterwards the first one again.
    let carol = bound_to(&small);
    (0..CAPACITY).for_each(|_| post(&carol).unwrap());
    assert_eq!((refused(post(&carol)), refused(post(&alice))), (full.clone(), full.clone()));
    assert_eq!(alice.receives_left(), 0);
    drop(carol);
    while small.read().is_some() {}
    (0..CAPACITY).for_each(|_| post(&alice).unwrap());
    assert_eq!(refused(post(&alice)), full);
}

// conformance: C27
#[test]
fn operations_beyond_transmit_and_receive_size_are_busy() {
    let small = with(1, |c| (c.max_sends, c.max_receives) = (3, 5));
    let mut world = World::pair_with(6, small, options(2));
    let to_bob = world.introduce(ALICE, BOB);
    let alice = world.end(ALICE);
    assert_eq!((alice.transmit_attributes().size, alice.receive_attributes().size), (3, 5));
    for i in 0..3 {
        alice.send(Message::to(to_bob), "x", i).unwrap();
    }
    let refused = alice.send(Message::to(to_bob), "x", 3).unwrap_err();
    assert_eq!(refused.error, StartError::Busy { limit: 3 });
    for i in 0..5 {
        alice.receive(Receive::untagged(), vec![0; 1], i).unwrap();
    }
    let refused = alice.receive(Receive::untagged(), vec![0; 1], 5).unwrap_err();
    assert_eq!(refused.error, StartError::Busy { limit: 5 });
    for _ in 0..3 {
        world.done(ALICE);
    }
    world.end(ALICE).send(Message::to(to_bob), "x", 3).unwrap();
    assert_eq!(world.done(ALICE).context, 3);
}

// conformance: C49 C78
#[test]
fn queue_serves_one_direction_of_many_endpoints() {
    let mut world = World::pair(7);
    let domain = world.fabric.domain().unwrap();
    let queue = || domain.completion_queue(CompletionQueueOptions::default());
    let (sends, receives) = (queue(), queue());
    let addresses = domain.address_vector();
    let endpoints = [3, 4].map(|connid| {
        domain
            .endpoint(options(connid))
            .bind_completion_queue(&sends, Direction::Transmit)
            .bind_completion_queue(&receives, Direction::Receive)
            .bind_address_vector(&addresses)
            .enable()
            .unwrap()
    });
    for (i, endpoint) in endpoints.iter().enumerate() {
        let to_endpoint = world.ends[ALICE].addresses.insert(endpoint.address()).unwrap();
        let to_alice = addresses.insert(world.end(ALICE).address()).unwrap();
        world.end(ALICE).receive(Receive::untagged(), vec![0; 8], 0).unwrap();
        endpoint.receive(Receive::untagged(), vec![0; 8], i as u64).unwrap();
        endpoint.send(Message::to(to_alice), "x", 10 + i as u64).unwrap();
        world.end(ALICE).send(Message::to(to_endpoint), "y", 0).unwrap();
    }
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        sends.read_many(&mut sent, 9);
        receives.read_many(&mut received, 9);
        while world.ends[ALICE].queue.read().is_some() {}
        world.tick();
    }
    let contexts = |entries: Vec<efa::Entry>, kind| {
        let mut contexts: Vec<u64> = entries
            .into_iter()
            .map(|entry| {
                let completion = entry.unwrap();
                assert_eq!(completion.kind, kind);
                completion.context
            })
            .collect();
        contexts.sort_unstable();
        contexts
    };
    assert_eq!(contexts(sent, Kind::Send), [10, 11]);
    assert_eq!(contexts(received, Kind::Receive), [0, 1]);
    assert!(world.is_silent(BOB));
}

#[test]
fn completions_for_another_queue_wait_there_in_order() {
    let mut world = World::pair(12);
    let domain = world.fabric.domain().unwrap();
    let queue = || domain.completion_queue(CompletionQueueOptions::default());
    let (sends, receives) = (queue(), queue());
    let addresses = domain.address_vector();
    let endpoint = domain
        .endpoint(options(3))
        .bind_completion_queue(&sends, Direction::Transmit)
        .bind_completion_queue(&receives, Direction::Receive)
        .bind_address_vector(&addresses)
        .enable()
        .unwrap();
    let to_endpoint = world.ends[ALICE].addresses.insert(endpoint.address()).unwrap();
    let to_alice = addresses.insert(world.end(ALICE).address()).unwrap();
    for message in 0..20 {
        endpoint.receive(Receive::untagged(), vec![0; 8], message).unwrap();
        world.end(ALICE).send(Message::to(to_endpoint), "there", 0).unwrap();
        world.end(ALICE).receive(Receive::untagged(), vec![0; 8], 0).unwrap();
        endpoint.send(Message::to(to_alice), "back", 100 + message).unwrap();
    }
    let mut sent = Vec::new();
    for _ in 0..500 {
        sent.extend(sends.read().map(|entry| entry.unwrap().context));
        while world.ends[ALICE].queue.read().is_some() {}
        world.tick();
    }
    sent.sort_unstable();
    assert_eq!(sent, (100..120).collect::<Vec<_>>());
    // The receives completed meanwhile, and are in their queue.
    drop(endpoint);
    let received = std::iter::from_fn(|| receives.read());
    let contexts: Vec<u64> = received.map(|entry| entry.unwrap().context).collect();
    assert_eq!(contexts, (0..20).collect::<Vec<_>>());
    assert!(world.is_silent(BOB));
}

// conformance: C123
#[test]
fn send_to_a_destroyed_endpoint_fails() {
    let mut world = World::pair(8);
    let to_bob = world.introduce(ALICE, BOB);
    world.end(BOB).receive(Receive::untagged(), vec![0; 1_000_000], 1).unwrap();
    world.end(ALICE).send(Message::to(to_bob), pattern(1_000_000, 1), 2).unwrap();
    drop(world.ends.pop());
    assert!(matches!(world.failed(ALICE).error, OperationError::Device(Status::BadDestinationQpn)));
    assert!(world.is_silent(ALICE));
}

// conformance: C50
#[test]
fn failed_injected_message_completes_with_its_error() {
    let mut world = World::pair(9);
    let to_bob = world.introduce(ALICE, BOB);
    drop(world.ends.pop());
    world.end(ALICE).inject(Message::to(to_bob).tagged(3), b"lost").unwrap();
    let failed = world.failed(ALICE);
    assert!(matches!(failed.error, OperationError::Device(_)));
    let completion = *failed.completion;
    assert_eq!((completion.kind, completion.tag, completion.length), (Kind::Send, Some(3), 4));
    assert!(completion.buffer.is_empty());
}

// Hazard 19 of the C provider's history, within one domain.
#[test]
fn hazard_19_endpoint_with_full_send_queue_delays_no_other() {
    let mut world = World::pair(19);
    let domain = &world.ends[ALICE].domain;
    let other = domain
        .endpoint(options(3))
        .bind_completion_queue(&world.ends[ALICE].queue, Direction::Both)
        .bind_address_vector(&world.ends[ALICE].addresses)
        .enable()
        .unwrap();
    let to_bob = world.introduce(ALICE, BOB);
    let alice = world.end(ALICE).address();
    let queue_pair = efa::sim::QueuePairId { gid: alice.gid(), qpn: alice.qpn() };
    world.fabric.as_local().unwrap().refuse_sends(queue_pair, u32::MAX).unwrap();
    for i in 0..20 {
        world.end(BOB).receive(Receive::tagged(i), vec![0; 200_000], i).unwrap();
        world.end(ALICE).send(Message::to(to_bob).tagged(100 + i), vec![1; 10], 100 + i).unwrap();
        other.send(Message::to(to_bob).tagged(i), pattern(200_000, i), i).unwrap();
    }
    for _ in 0..20 {
        let received = world.done(BOB);
        assert_eq!(received.buffer, pattern(200_000, received.context));
        assert!(world.done(ALICE).context < 20, "of the other endpoint");
    }
    world.fabric.as_local().unwrap().refuse_sends(queue_pair, 0).unwrap();
    for _ in 0..20 {
        assert!(world.done(ALICE).context >= 100);
    }
}

/// A full `/dev/shm` is one reason: the shm link makes a file for each peer.
#[test]
fn send_without_space_is_refused_in_words_and_works_when_there_is_some() {
    let mut world = World::pair(20);
    let to_bob = world.introduce(ALICE, BOB);
    let alice = world.end(ALICE).address();
    let queue_pair = efa::sim::QueuePairId { gid: alice.gid(), qpn: alice.qpn() };
    let operation = "allocating 573952 bytes in /dev/shm/efa-0/default".to_owned();
    let reason = std::io::Error::from_raw_os_error(28).to_string();
    let full = efa::DeviceError::System { operation, errno: 28, reason };
    world.fabric.as_local().unwrap().lack(queue_pair, Some(full.clone())).unwrap();
    for _ in 0..3 {
        let refused = world.end(ALICE).send(Message::to(to_bob), vec![1; 10], 0).unwrap_err();
        assert_eq!(refused.error, StartError::Device(full.clone()));
        assert_eq!(refused.error.shortage(), Some(efa::Shortage::Space));
        assert_eq!(refused.buffer.into_vec(), [1; 10]);
        let words = "allocating 573952 bytes in /dev/shm/efa-0/default failed: No space left on \
                     device (os error 28)";
        assert_eq!(refused.error.to_string(), words);
        let injected = world.end(ALICE).inject(Message::to(to_bob), &[1]).unwrap_err();
        assert_eq!(injected.to_string(), words);
    }
    world.fabric.as_local().unwrap().lack(queue_pair, None).unwrap();
    world.end(BOB).receive(Receive::untagged(), vec![0; 10], 1).unwrap();
    world.end(ALICE).send(Message::to(to_bob), vec![1; 10], 0).unwrap();
    assert_eq!(world.done(BOB).buffer, vec![1; 10]);
    assert_eq!(world.done(ALICE).context, 0);
}

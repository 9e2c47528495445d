//! Receive buffers that the device returns without a datagram.

use efa_device::{DeviceError, Status};
use efa_rdm::{Accept, Event, Level, Message, OperationError, StartError};

use crate::world::{World, pattern, place};

#[test]
fn buffers_that_the_device_could_not_use_are_posted_again() {
    let mut world = World::pair(1);
    world.acquaint();
    let receiver = place(&world.ends[1]);
    for context in 0..3 {
        let posted = world.endpoint(1).packets_held().posted;
        let failed = world.network.fail_receives(receiver, usize::MAX, Status::BadLength);
        assert_eq!(failed, Ok(posted), "all that the endpoint counts are posted");
        world.drive();
        world.receive(1, 50_000, context);
        world.send(0, 1, pattern(50_000, context), context);
        world.drive();
        assert!(world.receive_done(1).buffer == pattern(50_000, context));
        assert_eq!(world.send_done(0).result, Ok(()));
    }
    world.assert_clean();
}

/// A queue pair that fails: its sends and receives are flushed.
fn fail(world: &World, end: usize) {
    let at = place(&world.ends[end]);
    world.network.kill(at).unwrap();
    world.network.fail_receives(at, usize::MAX, Status::Flushed).unwrap();
}

#[test]
fn failure_of_the_queue_pair_ends_every_operation_with_its_status() {
    let mut world = World::pair(2);
    world.acquaint();
    // One waits for a CTS, one is in flight; the others for messages.
    for (context, length) in [(1, 400_000), (2, 100)] {
        world.send(0, 1, pattern(length, context), context);
    }
    world.send(1, 0, pattern(400_000, 5), 0);
    world.receive(0, 400_000, 3);
    for (tag, source) in [(4, None), (5, Some(world.peer(0, 1)))] {
        let accept = Accept::Tagged { source, tag, ignore: 0 };
        world.endpoint(0).receive(accept, vec![0; 10], tag).unwrap();
    }
    world.step();
    fail(&world, 0);
    world.drive();
    let flushed = Err(OperationError::Device(Status::Flushed));
    let mut ended: Vec<_> = world.take_sends(0).iter().map(|of| (of.context, of.result)).collect();
    ended.extend(world.take_receives(0).iter().map(|of| (of.context, of.result)));
    ended.sort_by_key(|(context, _)| *context);
    assert_eq!(ended, [1, 2, 3, 4, 5].map(|context| (context, flushed)));
    let failures = std::mem::take(&mut world.ends[0].events);
    let failures = failures.iter().filter(|event| matches!(event, Event::QueuePairFailed(_)));
    assert_eq!(failures.collect::<Vec<_>>(), [&Event::QueuePairFailed(Status::Flushed)]);
    assert_eq!(world.endpoint(0).next_timeout(), None, "nothing is tried again");
    assert_eq!(world.endpoint(0).packets_held().posted, 0);
}

#[test]
fn nothing_starts_after_the_queue_pair_failed_and_complete_messages_are_received() {
    let mut world = World::pair(3);
    world.acquaint();
    world.send(1, 0, pattern(100, 1), 0);
    world.drive();
    let peer = world.peer(0, 1);
    let address = world.endpoint(1).address();
    fail(&world, 0);
    world.drive();
    let (tag, cq_data, level, buffer) = (None, None, Level::Transmit, vec![7; 10]);
    let message = Message { peer, tag, cq_data, level, buffer, context: 0 };
    let refused = world.endpoint(0).send(message).unwrap_err();
    assert_eq!(refused.error, StartError::PeerGone(peer));
    let status = Status::Flushed;
    assert_eq!(world.endpoint(0).failure(), Some(status));
    let inserted = world.endpoint(0).insert_peer(address);
    assert_eq!(inserted, Err(DeviceError::QueuePairFailed { status }));
    world.receive(0, 100, 1);
    world.receive(0, 100, 2);
    assert!(world.receive_done(0).buffer == pattern(100, 1));
    let ended = world.receive_done(0);
    assert_eq!((ended.context, ended.result), (2, Err(OperationError::Device(status))));
}

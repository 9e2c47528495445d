//! Buffers of every kind, memory regions, multi-receive and inject.

use bytes::{Bytes, BytesMut};
use efa::{
    Access, CompletionQueueOptions, DeviceError, Direction, FiAddr, Kind, LocalOptions, Message,
    OutOfRegion, Receive, StartError, Subprotocol,
};

use crate::world::{ALICE, BOB, World, options, pattern, with};

// conformance: C116
#[test]
fn every_kind_of_buffer_is_sent_received_and_returned() {
    let mut world = World::pair(1);
    let to_bob = world.introduce(ALICE, BOB);
    let data = pattern(20_000, 1);
    let shared = Bytes::from(data.clone());
    let region = world.ends[ALICE].domain.register(data.clone(), Access::default()).unwrap();
    let sources: [efa::Buffer; 5] = [
        data.clone().into(),
        data.clone().into_boxed_slice().into(),
        shared.clone().into(),
        BytesMut::from(&data[..]).into(),
        region.slice(0..20_000).unwrap().into(),
    ];
    let target = world.ends[BOB].domain.register(vec![0; 30_000], Access::default()).unwrap();
    for source in sources {
        let targets: [efa::ReceiveBuffer; 4] = [
            vec![0; 20_000].into(),
            vec![0; 20_000].into_boxed_slice().into(),
            BytesMut::zeroed(20_000).into(),
            target.slice(5_000..25_000).unwrap().into(),
        ];
        for buffer in targets {
            world.end(BOB).receive(Receive::untagged(), buffer, 1).unwrap();
            world.end(ALICE).send(Message::to(to_bob), source.clone(), 2).unwrap();
            assert_eq!(world.done(ALICE).buffer, source);
            assert_eq!(world.done(BOB).buffer, data);
        }
    }
    drop(world);
    assert!(shared.is_unique(), "no clone of the bytes remains");
}

// conformance: C118
#[test]
fn multi_receive_buffer_takes_messages_and_is_released_once() {
    // The example of libfabric's programmer's guide: 16 messages of 256 bytes in a buffer of 4 KB.
    let mut world = World::pair_with(2, options(1), with(2, |c| c.min_multi_receive = 256));
    let to_bob = world.introduce(ALICE, BOB);
    world.end(BOB).receive_many(None, vec![0; 4096], 7).unwrap();
    for i in 0..17 {
        world.end(ALICE).send(Message::to(to_bob), pattern(256, i), i).unwrap();
    }
    for i in 0..16 {
        let received = world.done(BOB);
        assert_eq!((received.context, received.kind), (7, Kind::MultiReceive));
        assert_eq!(received.length, 256);
        assert_eq!(received.buffer, pattern(256, i), "exactly the part with this message");
    }
    let released = world.done(BOB);
    assert_eq!((released.context, released.kind), (7, Kind::Released));
    assert!(released.buffer.is_empty());
    assert!(world.is_silent(BOB), "the 17th message has no buffer");
}

#[test]
fn released_multi_receive_buffer_is_its_unused_rest() {
    let mut world = World::pair_with(3, options(1), with(2, |c| c.min_multi_receive = 1000));
    let to_bob = world.introduce(ALICE, BOB);
    let region = world.ends[BOB].domain.register(vec![0; 5000], Access::default()).unwrap();
    world
        .end(BOB)
        .receive_many(Some(world.introduce(BOB, ALICE)), region.slice(0..5000).unwrap(), 1)
        .unwrap();
    for (i, length) in [3000, 0, 1500].into_iter().enumerate() {
        world.end(ALICE).send(Message::to(to_bob), pattern(length, i as u64), 0).unwrap();
    }
    let mut parts = Vec::new();
    for (i, length) in [3000, 0, 1500].into_iter().enumerate() {
        let part = world.done(BOB).buffer.into_region().unwrap();
        assert_eq!(part.to_vec(), pattern(length, i as u64));
        parts.push(part.range());
    }
    let released = world.done(BOB);
    assert_eq!(released.kind, Kind::Released);
    parts.push(released.buffer.into_region().unwrap().range());
    assert_eq!(parts, [0..3000, 3000..3000, 3000..4500, 4500..5000]);
}

#[test]
fn multi_receive_buffer_is_released_after_its_last_message_completes() {
    let mut world = World::pair_with(10, options(1), with(2, |c| c.min_multi_receive = 500));
    let to_bob = world.introduce(ALICE, BOB);
    // The long message leaves too little space for another, and arrives in many packets.
    world.end(BOB).receive_many(None, vec![0; 300_100], 1).unwrap();
    world.end(ALICE).send(Message::to(to_bob), pattern(300_000, 1), 0).unwrap();
    let received = world.done(BOB);
    assert_eq!((received.kind, received.length), (Kind::MultiReceive, 300_000));
    let released = world.done(BOB);
    assert_eq!((released.kind, released.buffer.len()), (Kind::Released, 100));

    // The same for a cancelled buffer.
    let posted = world.end(BOB).receive_many(None, vec![0; 400_000], 2).unwrap();
    world.end(ALICE).send(Message::to(to_bob), pattern(300_000, 2), 0).unwrap();
    while world.end(BOB).statistics().received.of(efa::PacketType::LongCtsMsgRtm) < 2 {
        assert!(world.ends[BOB].queue.read().is_none());
        assert!(world.ends[ALICE].queue.read().is_none_or(|sent| sent.is_ok()));
        world.tick();
    }
    assert!(world.end(BOB).cancel(posted));
    assert_eq!(world.done(BOB).buffer, pattern(300_000, 2));
    let cancelled = world.failed(BOB);
    assert_eq!(cancelled.error, efa::OperationError::Cancelled);
    assert_eq!(cancelled.completion.kind, Kind::Released);
    assert_eq!(cancelled.completion.buffer.len(), 100_000);
}

#[test]
fn multi_receive_buffer_takes_unexpected_messages() {
    let mut world = World::pair_with(4, options(1), with(2, |c| c.min_multi_receive = 64));
    let to_bob = world.introduce(ALICE, BOB);
    for i in 0..10 {
        world.end(ALICE).send(Message::to(to_bob), pattern(12_000, i), 0).unwrap();
    }
    world.drive();
    world.end(BOB).receive_many(None, BytesMut::zeroed(120_000), 1).unwrap();
    for i in 0..10 {
        assert_eq!(world.done(BOB).buffer, pattern(12_000, i));
    }
    assert_eq!(world.done(BOB).kind, Kind::Released);
}

#[test]
fn full_queue_stops_multi_receive_endpoint_without_loss() {
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 5));
    world.add(options(1));
    world.add_with(with(2, |c| c.min_multi_receive = 1), CompletionQueueOptions::new().capacity(4));
    let to_bob = world.introduce(ALICE, BOB);
    world.end(BOB).receive_many(None, vec![0; 1 << 20], 1).unwrap();
    for i in 0..1000 {
        world.end(ALICE).send(Message::to(to_bob), pattern(100, i), i).unwrap();
    }
    for i in 0..1000 {
        assert_eq!(world.done(BOB).buffer, pattern(100, i), "nothing is lost");
    }
}

// conformance: C115
#[test]
fn injected_bytes_are_copied_before_inject_returns() {
    let mut world = World::pair(6);
    let to_bob = world.introduce(ALICE, BOB);
    let limit = world.end(ALICE).transmit_attributes().inject_size;
    let mut bytes = pattern(limit, 1);
    for _ in 0..3 {
        world.end(BOB).receive(Receive::tagged(4), vec![0; limit], 1).unwrap();
    }
    let message = Message::to(to_bob).tagged(4).with_data(99);
    world.end(ALICE).inject(message, &bytes).unwrap();
    bytes.fill(0);
    world.end(ALICE).inject(message, &bytes[..0]).unwrap();
    let longer = vec![0; limit + 1];
    assert_eq!(
        world.end(ALICE).inject(message, &longer),
        Err(StartError::TooLongToInject { length: limit + 1, limit })
    );
    let received = world.done(BOB);
    assert_eq!((received.tag, received.cq_data), (Some(4), Some(99)));
    assert_eq!(received.into_message(), pattern(limit, 1));
    assert_eq!(world.done(BOB).length, 0);
    assert!(world.is_silent(ALICE), "injected messages have no completion");
    assert!(world.is_silent(BOB), "the refused message was not sent");
}

// conformance: C99
#[test]
fn memory_region_serves_all_endpoints_of_its_domain() {
    let mut world = World::pair(7);
    let to_bob = world.introduce(ALICE, BOB);
    let domain = world.ends[BOB].domain.clone();
    let second = domain
        .endpoint(options(3))
        .bind_completion_queue(&world.ends[BOB].queue, Direction::Both)
        .bind_address_vector(&world.ends[BOB].addresses)
        .enable()
        .unwrap();
    let to_second = world.ends[ALICE].addresses.insert(second.address()).unwrap();
    let region = domain.register(vec![0; 200], Access::default()).unwrap();
    world.end(BOB).receive(Receive::untagged(), region.slice(0..100).unwrap(), 1).unwrap();
    second.receive(Receive::untagged(), region.slice(100..200).unwrap(), 2).unwrap();
    world.end(ALICE).send(Message::to(to_bob), pattern(100, 1), 0).unwrap();
    world.end(ALICE).send(Message::to(to_second), pattern(100, 2), 0).unwrap();
    let mut contexts = [world.done(BOB).context, world.done(BOB).context];
    contexts.sort_unstable();
    assert_eq!(contexts, [1, 2]);
    let mut bytes = [0; 200];
    region.read(0, &mut bytes);
    assert_eq!(bytes[..100], pattern(100, 1));
    assert_eq!(bytes[100..], pattern(100, 2));
}

// conformance: C104
#[test]
fn memory_regions_have_keys_and_obey_device_limits() {
    let options = LocalOptions::default().with(|options| {
        options.max_regions = 2;
        options.max_region_size = 100;
    });
    let world = World::new(options);
    let domain = world.fabric.domain().unwrap();
    let attributes = domain.attributes();
    assert_eq!((attributes.max_regions, attributes.max_region_size), (2, 100));
    let access = Access { remote_read: true, remote_write: false };
    let region = domain.register(vec![1; 100], access).unwrap();
    let other = domain.register(vec![2; 1], Access::default()).unwrap();
    assert_eq!((region.len(), region.access()), (100, access));
    assert_ne!((region.key(), region.remote_address()), (other.key(), other.remote_address()));
    let key_limit = 1_u128 << (8 * attributes.mr_key_size);
    assert!(u128::from(region.key()) < key_limit && u128::from(other.key()) < key_limit);
    let OutOfRegion { range, length, .. } = region.slice(50..101).unwrap_err();
    assert_eq!((range, length), (50..101, 100));
    let full = domain.register(vec![3; 5], Access::default()).unwrap_err();
    assert_eq!(full.error, DeviceError::LimitReached { object: "memory region", limit: 2 });
    assert_eq!(full.memory[..], [3; 5]);
    drop(other);
    let long = domain.register(vec![0; 101], Access::default()).unwrap_err();
    assert_eq!(long.error, DeviceError::TooLong { length: 101, limit: 100 });
    domain.register(full.memory, Access::default()).unwrap();
}

// conformance: A165 A166
#[test]
fn long_vectors_are_registered_only_while_their_operation_runs() {
    let length = 2 << 20;
    for (regions, expected) in [(1, Subprotocol::LongRead), (0, Subprotocol::LongCts)] {
        let options = LocalOptions::default().with(|options| options.max_regions = regions);
        let mut world = World::new(options);
        world.add(with(1, |_| ()));
        world.add(with(2, |_| ()));
        let to_bob = world.introduce(ALICE, BOB);
        // The first message brings the HANDSHAKEs with the peers' features.
        for (i, length) in [10, length].into_iter().enumerate() {
            world.end(BOB).receive(Receive::untagged(), vec![0; length], 1).unwrap();
            world.end(ALICE).send(Message::to(to_bob), pattern(length, i as u64), 2).unwrap();
            let (sent, received) = (world.done(ALICE), world.done(BOB));
            assert_eq!(sent.buffer, pattern(length, i as u64), "the vector comes back");
            assert_eq!(received.buffer, pattern(length, i as u64));
            if i == 1 {
                assert_eq!(received.subprotocol, Some(expected));
            }
            world.drive();
        }
        // The regions were deregistered.
        for end in [ALICE, BOB] {
            let domain = world.ends[end].domain.clone();
            assert_eq!(domain.register(vec![0; 1], Access::default()).is_ok(), regions == 1);
        }
    }
}

// conformance: C107
#[test]
fn dropped_region_stays_registered_while_an_operation_uses_it() {
    let mut world = World::new(LocalOptions::default().with(|options| options.max_regions = 1));
    world.add(options(1));
    world.add(options(2));
    let to_bob = world.introduce(ALICE, BOB);
    let domain = world.ends[BOB].domain.clone();
    let region = domain.register(vec![0; 50_000], Access::default()).unwrap();
    world.end(BOB).receive(Receive::untagged(), region.slice(0..50_000).unwrap(), 1).unwrap();
    drop(region);
    assert!(domain.register(vec![0; 1], Access::default()).is_err(), "it is still registered");
    world.end(ALICE).send(Message::to(to_bob), pattern(50_000, 1), 2).unwrap();
    let received = world.done(BOB);
    assert_eq!(received.buffer, pattern(50_000, 1));
    drop(received);
    assert!(domain.register(vec![0; 1], Access::default()).is_ok(), "it was deregistered");
}

#[test]
fn memory_of_another_domain_is_refused_as_buffer() {
    let world = World::pair(8);
    let to_bob = world.introduce(ALICE, BOB);
    let foreign = world.ends[BOB].domain.register(vec![0; 10], Access::default()).unwrap();
    let slice = || foreign.slice(0..10).unwrap();
    let alice = world.end(ALICE);
    let refused = alice.send(Message::to(to_bob), slice(), 1).unwrap_err();
    assert_eq!(refused.error, StartError::OtherDomain);
    assert_eq!(refused.buffer.into_region(), Ok(slice()));
    let refused = alice.receive(Receive::untagged(), slice(), 1).unwrap_err();
    assert_eq!(refused.error, StartError::OtherDomain);
    let refused = alice.receive_many(None, slice(), 1).unwrap_err();
    assert_eq!(refused.error, StartError::OtherDomain);
}

// conformance: C52
#[test]
fn message_longer_than_max_message_size_is_refused() {
    let limited = options(1).max_message_size(10_000);
    let mut world = World::pair_with(9, limited, options(2));
    let to_bob = world.introduce(ALICE, BOB);
    assert_eq!(world.end(ALICE).attributes().max_message_size, 10_000);
    assert_eq!(world.end(BOB).attributes().max_message_size, u64::MAX);
    let refused = world.end(ALICE).send(Message::to(to_bob), vec![5; 10_001], 1).unwrap_err();
    assert_eq!(refused.error, StartError::TooLong { length: 10_001, limit: 10_000 });
    assert_eq!(refused.buffer, vec![5; 10_001]);
    let (_, received) =
        world.transfer(Message::to(to_bob), vec![5; 10_000], Receive::untagged(), 20_000);
    assert_eq!(received.length, 10_000);
    assert!(world.is_silent(BOB));
    assert_eq!(
        world.end(ALICE).inject(Message::to(FiAddr(9)), &[0; 10]).unwrap_err(),
        StartError::UnknownAddress(FiAddr(9))
    );
}

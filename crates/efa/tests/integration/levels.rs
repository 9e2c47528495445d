//! When operations complete, and which of them tell.

use efa::{
    Access, AtomicOp, Capabilities, CompletionQueueOptions, ContextOptions, Counted,
    CounterOptions, Direction, EndpointOptions, Event, Kind, Level, LocalOptions, Message,
    Operation, OperationError, OperationFlags, Receive, Rma,
};
use efa_device::Rdma;

use crate::ends::End;
use crate::world::{ALICE, BOB, World, options, pattern};

/// Alice's options, with this level in the default flags.
fn with_level(level: Level) -> EndpointOptions {
    let flag = match level {
        Level::Inject => OperationFlags::INJECT_COMPLETE,
        Level::Delivery => OperationFlags::DELIVERY_COMPLETE,
        _ => OperationFlags::TRANSMIT_COMPLETE,
    };
    options(1).transmit(ContextOptions::new().flags(flag))
}

const BOTH: Access = Access { remote_read: true, remote_write: true };

// conformance: C122 C125
#[test]
fn level_of_the_endpoint_holds_unless_the_operation_has_its_own() {
    let all = [Level::Inject, Level::Transmit, Level::Delivery];
    for default in all {
        for own in [None, Some(Level::Inject), Some(Level::Transmit), Some(Level::Delivery)] {
            let mut world = World::pair_with(1, with_level(default), options(2));
            let to_bob = world.introduce(ALICE, BOB);
            let message = Message::to(to_bob);
            let message = own.map_or(message, |level| message.level(level));
            world.end(ALICE).send(message, "hello", 1).unwrap();
            let at_once = world.ends[ALICE].queue.read();
            let expected = own.unwrap_or(default);
            assert_eq!(at_once.is_some(), expected == Level::Inject, "{default:?} {own:?}");
            world.ends[ALICE].entries.extend(at_once);
            world.drive();
            let delivered = world.ends[ALICE].entries.is_empty();
            assert_eq!(delivered, expected == Level::Delivery, "{default:?} {own:?}");
            world.end(BOB).receive(Receive::untagged(), vec![0; 5], 2).unwrap();
            assert_eq!(world.done(ALICE).context, 1);
            assert_eq!(world.done(BOB).into_message(), *b"hello");
        }
    }
}

// conformance: C124
#[test]
fn result_is_in_memory_of_the_target_when_a_delivery_complete_operation_completes() {
    for rdma in [Rdma::NONE, Rdma::READ_WRITE] {
        for length in [1, 100, 20_000, 200_000] {
            let mut world = World::pair_with_rdma(3, rdma);
            let to_bob = world.introduce(ALICE, BOB);
            let data = pattern(length, 1);
            let target = world.ends[BOB].domain.register(vec![0; length], BOTH).unwrap();
            let slice = target.slice(0..length).unwrap();
            world.end(BOB).receive(Receive::untagged(), slice, 2).unwrap();
            let message = Message::to(to_bob).delivery_complete();
            world.end(ALICE).send(message, data.clone(), 1).unwrap();
            world.done(ALICE);
            let mut bytes = vec![0; length];
            target.read(0, &mut bytes);
            assert!(bytes == data, "message of {length} bytes, {rdma:?}");
            let target = world.ends[BOB].domain.register(vec![0; length], BOTH).unwrap();
            let rma = Rma::at(to_bob, target.remote()).delivery_complete();
            world.end(ALICE).write(rma, data.clone(), 3).unwrap();
            assert_eq!(world.done(ALICE).kind, Kind::Write);
            target.read(0, &mut bytes);
            assert!(bytes == data, "write of {length} bytes, {rdma:?}");
        }
    }
}

#[test]
fn write_uses_the_level_of_the_endpoint_or_its_own() {
    for (default, own) in [(Level::Inject, None), (Level::Delivery, Some(Level::Inject))] {
        let mut world = World::new(LocalOptions::default().with(|o| o.rdma = Rdma::NONE));
        world.add(with_level(default));
        world.add(options(2));
        let to_bob = world.introduce(ALICE, BOB);
        let message = Message::to(to_bob).delivery_complete();
        world.transfer(message, vec![1], Receive::untagged(), 1);
        let target = world.ends[BOB].domain.register(vec![0; 100], BOTH).unwrap();
        let rma = Rma::at(to_bob, target.remote());
        let rma = own.map_or(rma, |level| rma.level(level));
        world.end(ALICE).write(rma, vec![7; 100], 3).unwrap();
        // It is posted by a read; nothing arrives before time passes.
        let queue = &world.ends[ALICE].queue;
        let entry = (0..3).find_map(|_| queue.read()).expect("it is in a packet").unwrap();
        assert_eq!((entry.kind, entry.context), (Kind::Write, 3));
        let mut byte = [0];
        target.read(99, &mut byte);
        assert_eq!(byte, [0], "nothing has arrived");
        world.drive();
        target.read(99, &mut byte);
        assert_eq!(byte, [7]);
    }
}

#[test]
fn failure_after_the_injected_completion_is_an_event_with_the_context() {
    let mut world = World::pair(5);
    let to_bob = world.introduce(ALICE, BOB);
    world.ends.truncate(1);
    world.end(ALICE).send(Message::to(to_bob).level(Level::Inject), "lost", 9).unwrap();
    assert_eq!(world.done(ALICE).context, 9);
    assert!(world.is_silent(ALICE), "it completes once");
    let mut events = std::iter::from_fn(|| world.end(ALICE).event());
    let failed = events.find_map(|event| match event {
        Event::InjectedFailed { context, error, .. } => Some((context, error)),
        _ => None,
    });
    assert!(matches!(failed, Some((9, OperationError::Device(_)))), "{failed:?}");
}

/// Alice and Bob, both with selective bindings of this direction, and a counter each.
fn selective(direction: Direction) -> (World, [efa::Counter; 2]) {
    let mut world = World::empty();
    let counters = [1, 2].map(|connid| {
        let domain = world.fabric.domain().unwrap();
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let counter = domain.counter(CounterOptions::default()).unwrap();
        let endpoint = domain
            .endpoint(options(connid))
            .bind_completion_queue(&queue, Direction::Both)
            .selective(direction)
            .bind_address_vector(&addresses)
            .bind_counter(&counter, Counted::all())
            .enable()
            .unwrap();
        let entries = Default::default();
        world.ends.push(End { domain, queue, addresses, endpoint, entries });
        counter
    });
    (world, counters)
}

// conformance: C80
#[test]
fn operation_on_a_selective_binding_tells_its_success_only_if_it_is_signaled() {
    for (direction, sides) in [
        (Direction::Transmit, [true, false]),
        (Direction::Receive, [false, true]),
        (Direction::Both, [true, true]),
    ] {
        for signaled in [false, true] {
            for length in [0, 100, 20_000, 200_000] {
                let (mut world, [alice, bob]) = selective(direction);
                let to_bob = world.introduce(ALICE, BOB);
                let (message, receive) = (Message::to(to_bob), Receive::untagged());
                let (message, receive) = match signaled {
                    true => (message.signaled(), receive.signaled()),
                    false => (message, receive),
                };
                world.end(BOB).receive(receive, vec![0; length], 2).unwrap();
                world.end(ALICE).send(message, pattern(length, 1), 1).unwrap();
                world.drive();
                let told = sides.map(|selective| usize::from(signaled || !selective));
                let entries = [ALICE, BOB].map(|end| world.ends[end].entries.len());
                assert_eq!(entries, told, "{direction:?} {length}");
                assert_eq!((alice.value(), bob.value()), (1, 1), "both are counted");
                assert_eq!(world.end(BOB).statistics().delivered_bytes, length as u64);
            }
        }
    }
}

#[test]
fn one_sided_operations_on_a_selective_binding_tell_only_if_they_are_signaled() {
    for signaled in [false, true] {
        let (mut world, [counter, _]) = selective(Direction::Transmit);
        let to_bob = world.introduce(ALICE, BOB);
        let memory = world.ends[BOB].domain.register(vec![1; 64], BOTH).unwrap();
        let rma = Rma::at(to_bob, memory.remote());
        let rma = if signaled { rma.signaled() } else { rma };
        let into = world.ends[ALICE].domain.register(vec![0; 64], BOTH).unwrap();
        let alice = world.end(ALICE);
        alice.write(rma.delivery_complete(), vec![2; 64], 1).unwrap();
        world.drive();
        let alice = world.end(ALICE);
        alice.read(rma, into.slice(0..64).unwrap(), 2).unwrap();
        let add = Operation::new(AtomicOp::Sum, &[0x0101_0101_0101_0101_u64; 8]);
        alice.atomic(rma, add.clone(), 3).unwrap();
        alice.fetch_atomic(rma, add, vec![0; 64], 4).unwrap();
        world.drive();
        let mut contexts: Vec<_> =
            world.ends[ALICE].entries.iter().map(|entry| entry.as_ref().unwrap().context).collect();
        contexts.sort_unstable();
        assert_eq!(contexts, if signaled { vec![1, 2, 3, 4] } else { vec![] });
        assert_eq!(counter.value(), 4);
        let mut bytes = [0; 64];
        into.read(0, &mut bytes);
        assert_eq!(bytes, [2; 64], "the read has its bytes");
        memory.read(0, &mut bytes);
        assert_eq!(bytes, [4; 64]);
    }
}

#[test]
fn operation_on_a_selective_binding_always_tells_its_failure() {
    let (mut world, _) = selective(Direction::Both);
    let to_bob = world.introduce(ALICE, BOB);
    world.end(BOB).receive(Receive::untagged(), vec![0; 10], 2).unwrap();
    world.end(ALICE).send(Message::to(to_bob), pattern(100, 1), 1).unwrap();
    world.drive();
    let truncated = OperationError::Truncated { length: 100, capacity: 10 };
    assert_eq!(world.failed(BOB).error, truncated);
    let cancelled = world.end(BOB).receive(Receive::tagged(1), vec![0; 10], 3).unwrap();
    assert!(world.end(BOB).cancel(cancelled));
    let failed = world.failed(BOB);
    assert_eq!((failed.error, failed.completion.context), (OperationError::Cancelled, 3));
    assert_eq!(failed.completion.buffer.len(), 10, "the buffer comes back");
    world.end(ALICE).send(Message::to(to_bob), pattern(200_000, 1), 4).unwrap();
    world.drive();
    world.ends.truncate(1);
    world.ends[ALICE].addresses.remove(to_bob);
    let failed = world.failed(ALICE);
    assert_eq!((failed.error, failed.completion.context), (OperationError::PeerRemoved, 4));
    assert!(world.is_silent(ALICE));
}

#[test]
fn messages_in_a_multi_receive_buffer_tell_on_a_selective_binding_if_it_is_signaled() {
    for signaled in [false, true] {
        let (mut world, [_, counter]) = selective(Direction::Both);
        let to_bob = world.introduce(ALICE, BOB);
        let memory = world.ends[BOB].domain.register(vec![0; 8], BOTH).unwrap();
        let flags = if signaled { OperationFlags::COMPLETION } else { OperationFlags::empty() };
        let bob = world.end(BOB);
        if signaled {
            bob.receive_many_flags(None, flags, vec![0; 9000], 2).unwrap();
        } else {
            bob.receive_many(None, vec![0; 9000], 2).unwrap();
        }
        for i in 0..3 {
            world.end(ALICE).send(Message::to(to_bob), pattern(400, i), i).unwrap();
        }
        let write = Rma::at(to_bob, memory.remote()).with_data(5);
        world.end(ALICE).write(write, vec![1; 8], 1).unwrap();
        world.drive();
        let mut kinds: Vec<_> = world.ends[BOB]
            .entries
            .drain(..)
            .map(|entry| format!("{:?}", entry.unwrap().kind))
            .collect();
        kinds.sort_unstable();
        let expected = ["MultiReceive", "MultiReceive", "MultiReceive", "Released", "RemoteWrite"];
        assert_eq!(kinds, expected[if signaled { 0 } else { 3 }..]);
        // The write too.
        assert_eq!(counter.value(), 4);
        assert!(world.is_silent(ALICE));
    }
}

#[test]
fn silent_operations_take_and_return_credits_of_their_queue() {
    let mut world = World::empty();
    let domain = world.fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::new().capacity(2));
    let addresses = domain.address_vector();
    let endpoint = domain
        .endpoint(options(1).capabilities(Capabilities::MSG))
        .bind_completion_queue(&queue, Direction::Both)
        .selective(Direction::Both)
        .bind_address_vector(&addresses)
        .enable()
        .unwrap();
    world.ends.push(End { domain, queue, addresses, endpoint, entries: Default::default() });
    world.add(options(2));
    let to_bob = world.introduce(ALICE, BOB);
    for i in 0..20 {
        world.end(BOB).receive(Receive::untagged(), vec![0; 10], i).unwrap();
        let sent = world.end(ALICE).send(Message::to(to_bob), pattern(10, i), i);
        assert!(!sent.is_err_and(|refused| !refused.error.is_busy()));
        if i % 2 == 1 {
            world.drive();
        }
    }
    assert!(world.ends[ALICE].entries.is_empty());
    assert_eq!(world.ends[BOB].entries.len(), 20);
}

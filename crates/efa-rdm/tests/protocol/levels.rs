//! Operations that complete as soon as their bytes are in packets (`Level::Inject`).

use efa_device::{Access, QueuePairOptions};
use efa_proto::PacketType;
use efa_rdm::{Config, Event, Level, Message, OperationError, Remote, Subprotocol, Write};
use efa_sim::local::LocalOptions;

use crate::buffer::Buffer;
use crate::longread::Memory;
use crate::peer_end::operations::{EAGER, Kind, LONG, MEDIUM, Operation, operations, registered};
use crate::rma::{bytes_of, expose};
use crate::world::{Net, World, pattern, place};

const LEVELS: [Level; 2] = [Level::Inject, Level::Transmit];

fn config() -> Config {
    Config::default().with(|config| {
        config.max_medium = 40_000;
        config.cts_window = 4;
    })
}

fn send(world: &mut World, level: Level, length: usize, context: u64) {
    let peer = world.peer(0, 1);
    let (buffer, cq_data) = (pattern(length, context), None);
    let message = Message { peer, tag: Some(7), cq_data, level, buffer, context };
    world.endpoint(0).send(message).unwrap();
}

// conformance: C122
#[test]
fn injected_level_completes_when_the_bytes_are_in_packets_and_nothing_has_arrived() {
    for (length, subprotocol) in
        [(0, Subprotocol::Eager), (EAGER, Subprotocol::Eager), (MEDIUM, Subprotocol::Medium)]
    {
        for level in LEVELS {
            let mut world = World::pair_with(1, config(), config());
            send(&mut world, level, length, 5);
            let sends = world.take_sends(0);
            assert_eq!(sends.len(), usize::from(level == Level::Inject), "{length} at {level:?}");
            assert!(world.endpoint(0).packets_held().sending > 0, "nothing was delivered");
            if let Some(sent) = sends.into_iter().next() {
                assert_eq!((sent.context, sent.length, sent.result), (5, length as u64, Ok(())));
                assert_eq!((sent.tag, sent.subprotocol), (Some(7), Some(subprotocol)));
                assert_eq!(sent.buffer, Some(pattern(length, 5)), "it may be reused");
            }
            world.tagged_receive(1, 7, length);
            world.drive();
            assert_eq!(world.receive_done(1).buffer, pattern(length, 5));
            assert_eq!(world.take_sends(0).len(), usize::from(level == Level::Transmit));
            assert!(world.endpoint(0).is_quiet());
            world.assert_clean();
        }
    }
}

#[test]
fn long_message_completes_at_the_injected_level_with_its_last_packet_on_the_way() {
    let mut in_flight = [0; 2];
    for (at, level) in LEVELS.into_iter().enumerate() {
        let mut world = World::pair_with(2, config(), config());
        world.tagged_receive(1, 7, LONG);
        send(&mut world, level, LONG, 5);
        for _ in 0..100_000 {
            if !world.ends[0].sends.is_empty() {
                break;
            }
            assert!(world.take_receives(1).is_empty() || level == Level::Transmit);
            world.step();
        }
        in_flight[at] = world.endpoint(0).packets_held().sending;
        assert_eq!(world.send_done(0).result, Ok(()));
        world.drive();
        assert!(world.take_sends(0).is_empty(), "it completes once");
        if let Some(received) = world.take_receives(1).pop() {
            assert_eq!(received.buffer, pattern(LONG, 5));
        }
    }
    assert!(in_flight[0] > in_flight[1], "{in_flight:?} packets on the way");
}

#[test]
fn injected_message_whose_receiver_is_not_ready_is_sent_again_from_its_packets() {
    let options = QueuePairOptions::default().with(|options| options.rnr_retry = 0);
    let mut world = World::new(LocalOptions::default());
    world.add_with(config(), options);
    world.add_with(config(), options);
    let target = place(&world.ends[1]);
    world.network.not_ready(target, 20).unwrap();
    for (context, length) in [(1, EAGER), (2, MEDIUM)] {
        world.tagged_receive(1, 7, length);
        send(&mut world, Level::Inject, length, context);
    }
    // The second waits behind the first.
    drop(world.take_sends(0));
    world.drive();
    assert!(world.endpoint(0).statistics().receiver_not_ready > 0);
    for (context, length) in [(1, EAGER), (2, MEDIUM)] {
        assert_eq!(world.receive_done(1).buffer, pattern(length, context));
    }
    assert!(world.take_sends(0).len() <= 1);
}

#[test]
fn send_that_has_to_wait_completes_at_the_injected_level_when_it_is_sent() {
    let options = QueuePairOptions::default().with(|options| options.send_depth = 2);
    let mut world = World::new(LocalOptions::default());
    world.add_with(config(), options);
    world.add(config());
    world.tagged_receive(1, 7, MEDIUM);
    send(&mut world, Level::Inject, MEDIUM, 5);
    assert!(world.take_sends(0).is_empty(), "the device takes two of its four packets");
    world.drive();
    assert_eq!(world.send_done(0).result, Ok(()));
    assert_eq!(world.receive_done(1).buffer, pattern(MEDIUM, 5));
}

#[test]
fn failure_after_the_injected_completion_is_an_event_and_no_second_completion() {
    for length in [EAGER, MEDIUM] {
        let mut world = World::pair_with(4, config(), config());
        let target = place(&world.ends[1]);
        let peer = world.peer(0, 1);
        world.network.kill(target).unwrap();
        send(&mut world, Level::Inject, length, 5);
        assert_eq!(world.send_done(0).result, Ok(()));
        world.drive();
        assert!(world.take_sends(0).is_empty());
        let failed: Vec<_> = world.ends[0]
            .events
            .iter()
            .filter(|event| matches!(event, Event::InjectedFailed { .. }))
            .collect();
        let [Event::InjectedFailed { peer: of, context: 5, error: OperationError::Device(_) }] =
            failed[..]
        else {
            panic!("{failed:?}")
        };
        assert_eq!(*of, peer);
        assert_eq!(world.endpoint(0).packets_held().sending, 0);
    }
}

#[test]
fn write_in_packets_completes_at_the_injected_level_one_by_the_device_when_it_is_done() {
    let writes = operations().into_iter().filter(|of| of.kind == Kind::Write(Level::Transmit));
    for operation in writes {
        let mut world = operation.world(efa_rdm::Bounds::default());
        let access = Access { remote_read: true, remote_write: true };
        let (memory, iov) = expose(&world, 1, vec![0; operation.length], access);
        // HANDSHAKEs, for what the device can do.
        world.receive_into(1, Memory::Heap(vec![0]), 0);
        world.send(0, 1, Memory::Heap(vec![0]), 0);
        world.drive();
        drop((world.take_sends(0), world.take_receives(1)));
        let peer = world.peer(0, 1);
        let buffer = Memory::Heap(pattern(operation.length, 3));
        let (remote, level, cq_data) = (Remote::from(iov), Level::Inject, None);
        let write = Write { peer, remote, buffer, cq_data, level, context: 9 };
        world.endpoint(0).write(write).unwrap();
        // It is posted by the next poll; nothing arrives before time passes.
        let now = world.now;
        world.endpoint(0).progress(now);
        world.ends[0].collect();
        let at_once = !world.ends[0].rma.is_empty();
        assert_eq!(at_once, operation.request == Some(PacketType::EagerRtw), "{operation:?}");
        world.drive();
        let done = world.ends[0].rma.pop_front().unwrap();
        assert_eq!((done.result, done.context), (Ok(()), 9));
        assert!(done.buffer.bytes() == pattern(operation.length, 3));
        assert!(world.ends[0].rma.is_empty(), "it completes once");
        assert!(bytes_of(&memory) == pattern(operation.length, 3), "{operation:?}");
    }
}

#[test]
fn message_that_the_peer_reads_keeps_its_buffer_until_it_is_read() {
    let is_read = |of: &Operation| of.kind == Kind::Send(Level::Transmit) && of.rdma.read;
    for operation in operations().into_iter().filter(is_read) {
        let mut world = operation.world(efa_rdm::Bounds::default());
        world.receive_into(1, Memory::Heap(vec![0]), 0);
        world.send(0, 1, Memory::Heap(vec![0]), 0);
        world.drive();
        drop((world.take_sends(0), world.take_receives(1)));
        let peer = world.peer(0, 1);
        let buffer = registered(&world, pattern(operation.length, 3));
        let level = Level::Inject;
        let message = Message { peer, tag: None, cq_data: None, level, buffer, context: 9 };
        world.endpoint(0).send(message).unwrap();
        world.drive();
        assert!(world.take_sends(0).is_empty(), "{operation:?}");
        world.receive_into(1, Memory::Heap(vec![0; operation.length]), 1);
        world.drive();
        assert_eq!(world.send_done(0).result, Ok(()));
        assert!(world.receive_done(1).buffer.bytes() == pattern(operation.length, 3));
    }
}

#[test]
fn buffer_registered_for_a_runt_of_the_whole_message_is_deregistered_at_the_injected_level() {
    let config = config().with(|config| (config.min_read, config.runt_size) = (Some(1), 1000));
    let mut world = Net::<Buffer>::pair_with(5, config.clone(), config);
    for (context, subprotocol) in [(0, Subprotocol::Eager), (1, Subprotocol::RuntRead)] {
        world.receive_into(1, vec![0; 100].into(), context);
        let (peer, level, tag) = (world.peer(0, 1), Level::Inject, None);
        let buffer = pattern(100, context).into();
        let message = Message { peer, tag, cq_data: None, level, buffer, context };
        world.endpoint(0).send(message).unwrap();
        world.drive();
        let sent = world.send_done(0);
        assert_eq!((sent.result, sent.subprotocol), (Ok(()), Some(subprotocol)));
        assert_eq!(sent.buffer.unwrap().bytes, pattern(100, context));
        assert_eq!(world.receive_done(1).buffer.bytes, pattern(100, context));
    }
}

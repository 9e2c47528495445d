//! The send window: receivers of old releases drop messages beyond their reorder window, so senders wait.

use std::time::Duration;

use efa_device::Rdma;
use efa_handshake::Release;
use efa_proto::RmaIov;
use efa_rdm::{Config, DropReason, Level, Message, Remote, StartError, Write};
use efa_sim::local::{Faults, LocalOptions};

use crate::world::{World, pattern};

/// Reorder window of the receiver, in message ids.
const WINDOW: u32 = 64;

/// A receiver of `receiver`'s release, on a network where 2 % of the packets are late by 1 ms.
fn pair(seed: u64, old_peer_window: u32, receiver: Release) -> World {
    let faults = Faults::default().with(|faults| {
        faults.late = 0.02;
        faults.late_by = Duration::from_millis(1);
    });
    let rdma = Rdma { unsolicited_write_receive: true, ..Rdma::READ_WRITE };
    let mut world = World::new(LocalOptions::default().with(|options| {
        options.seed = seed;
        options.faults = faults;
        options.rdma = rdma;
    }));
    world.add(Config::default().with(|config| config.old_peer_window = old_peer_window));
    let mut config = Config::as_release(receiver);
    let window = &mut config.profile.receive_window;
    *window = window.map(|_| WINDOW);
    world.add(config);
    world
}

const MESSAGES: u64 = 1000;

/// Posts receives and sends messages, with a step after every fifth message.
fn send_all(world: &mut World) {
    for context in 0..MESSAGES {
        world.receive(1, 100, context);
        world.send(0, 1, pattern(100, context), context);
        if context % 5 == 0 {
            world.step();
        }
    }
}

#[test]
fn old_receiver_drops_messages_without_a_send_window() {
    let mut world = pair(1, 0, Release::V1_20);
    send_all(&mut world);
    world.idle(Duration::from_secs(1));
    assert!(world.drop_reasons(1).contains(&DropReason::MessageIdTooFar));
    assert!((world.take_receives(1).len() as u64) < MESSAGES);
}

#[test]
fn send_window_lets_all_messages_arrive_in_order() {
    for seed in 0..10 {
        let mut world = pair(seed, WINDOW, Release::V1_20);
        send_all(&mut world);
        world.drive();
        let received = world.take_receives(1);
        assert_eq!(received.len() as u64, MESSAGES);
        for (i, done) in received.into_iter().enumerate() {
            assert_eq!((done.context, done.result), (i as u64, Ok(())));
            assert_eq!(done.buffer, pattern(100, i as u64));
        }
        assert_eq!(world.take_sends(0).len() as u64, MESSAGES);
        let pauses = world.endpoint(0).statistics().pauses;
        assert!(pauses >= MESSAGES / u64::from(WINDOW), "{pauses}");
        world.assert_clean();
    }
}

#[test]
fn send_window_opens_again_though_writes_are_always_on_their_way() {
    let mut world = pair(5, 4, Release::V1_20);
    for context in 0..40 {
        world.receive(1, 100, context);
        world.send(0, 1, pattern(100, context), context);
    }
    let peer = world.peer(0, 1);
    // The key exceeds 32 bits, so a write is sent in a packet. The receiver refuses it.
    let remote = Remote::from(RmaIov::new(0, 30, 1 << 40));
    let (mut under_way, mut written, mut received) = (0, 0, 0);
    for _ in 0..10_000 {
        // One after the other, so that they don't end together.
        if under_way < 64 {
            let (buffer, level) = (pattern(30, 1), Level::Transmit);
            let write = Write { peer, remote, buffer, cq_data: None, level, context: 1000 };
            world.endpoint(0).write(write).map_err(|refused| refused.error).unwrap();
            under_way += 1;
        }
        world.step();
        let ended = world.ends[0].rma.drain(..).count();
        (under_way, written) = (under_way - ended, written + ended);
        received += world.take_receives(1).len();
    }
    assert_eq!(received, 40);
    assert!(written > 1000, "{written}");
    assert!(world.endpoint(0).statistics().pauses >= 9);
}

#[test]
fn send_window_opens_again_though_data_of_long_messages_is_always_on_its_way() {
    let mut world = pair(6, 4, Release::V1_20);
    world.network.set_faults(Faults::default().with(|faults| faults.send_limit = Some(4)));
    const LONG: usize = 20 << 20;
    for context in 0..3 {
        world.receive(1, LONG, context);
        world.send(0, 1, vec![1; LONG], context);
    }
    for context in 3..40 {
        world.receive(1, 100, context);
        world.send(0, 1, pattern(100, context), context);
    }
    let mut received = Vec::new();
    while received.len() < 40 {
        world.step();
        received.extend(world.take_receives(1));
    }
    let first: Vec<_> = received.iter().map(|done| done.context).take(37).collect();
    assert_eq!(first, (3..40).collect::<Vec<_>>(), "none waits for the end of a long one");
    assert!(received.iter().all(|done| done.result == Ok(())));
}

#[test]
fn send_window_holds_for_all_subprotocols_across_id_wrap() {
    for seed in 0..4 {
        let mut world = pair(seed, 16, Release::V1_20);
        for end in 0..2 {
            let first_msg_id = u32::MAX - 100;
            let config = if end == 0 {
                Config::default().with(|config| {
                    config.old_peer_window = 16;
                    config.first_msg_id = first_msg_id;
                })
            } else {
                let old = Config::as_release(Release::V1_20);
                old.with(|config| {
                    config.max_reorder = 16;
                    config.first_msg_id = first_msg_id;
                })
            };
            world.restart(end, 77 + end as u32, config);
        }
        for context in 0..300_u64 {
            let length = [10, 20_000, 100_000][context as usize % 3];
            let level = if context % 4 == 0 { Level::Delivery } else { Level::Transmit };
            world.receive(1, length, context);
            let (peer, buffer) = (world.peer(0, 1), pattern(length, context));
            let message = Message { peer, tag: None, cq_data: None, level, buffer, context };
            world.endpoint(0).send(message).unwrap();
            if context % 7 == 0 {
                world.step();
            }
        }
        world.drive();
        let mut received = world.take_receives(1);
        assert_eq!(received.len(), 300);
        // Messages match in order; long ones complete later.
        received.sort_by_key(|done| done.context);
        for (i, done) in received.into_iter().enumerate() {
            assert_eq!((done.context, done.result), (i as u64, Ok(())));
            assert_eq!(done.buffer, pattern(done.buffer.len(), i as u64));
        }
        assert_eq!(world.drop_reasons(1), []);
    }
}

#[test]
fn send_window_does_not_apply_to_peers_since_2_1() {
    let mut world = pair(2, WINDOW, Release::V2_6);
    world.restart(1, 78, Config::default());
    world.receive(1, 1, 0);
    world.send(0, 1, vec![1], 0);
    world.drive();
    world.receive_done(1);
    world.send_done(0);
    send_all(&mut world);
    world.drive();
    assert_eq!(world.take_receives(1).len() as u64, MESSAGES);
    assert_eq!(world.endpoint(0).statistics().pauses, 0);
}

#[test]
fn injected_message_is_busy_while_the_send_window_is_closed() {
    let mut world = pair(3, 8, Release::V1_20);
    let peer = world.peer(0, 1);
    let level = Level::Transmit;
    let message = Message { peer, tag: None, cq_data: None, level, buffer: &b"x"[..], context: 0 };
    for context in 0..9 {
        world.receive(1, 1, context);
    }
    for _ in 0..8 {
        world.endpoint(0).inject(message).unwrap();
    }
    let refused = world.endpoint(0).inject(message);
    assert!(matches!(refused, Err(StartError::Busy { .. })), "{refused:?}");
    world.drive();
    world.endpoint(0).inject(message).unwrap();
    world.drive();
    assert_eq!(world.take_receives(1).len(), 9);
}

//! Packet pools grow on demand, are bounded, and shrink again.

use std::time::Duration;

use efa_rdm::{Config, PacketsHeld};

use crate::world::{World, pattern};

#[test]
fn idle_endpoint_holds_less_than_a_megabyte() {
    let mut world = World::pair(1);
    world.drive();
    let PacketsHeld { posted, send_pool, receive_pool, held, sending, .. } =
        world.endpoint(0).packets_held();
    assert_eq!((send_pool, receive_pool, held, sending), (0, 0, 0, 0));
    assert!(posted * 8928 <= 1 << 20, "{posted} buffers posted");
}

#[test]
fn packet_pools_grow_under_load_and_shrink_after_it() {
    let mut world = World::pair(2);
    for i in 0..2000 {
        world.receive(1, 9_000, i);
        world.send(0, 1, pattern(9_000, i), i);
    }
    // The receiver pauses now and then, so that all its buffers are used.
    while world.ends[1].receives.len() < 2000 {
        for _ in 0..200 {
            let now = world.now;
            world.endpoint(0).progress(now);
            world.now = now + Duration::from_micros(1);
        }
        world.step();
    }
    world.drive();
    world.ends[1].receives.clear();
    let (busy_sender, busy_receiver) =
        (world.endpoint(0).packets_held(), world.endpoint(1).packets_held());
    assert!(busy_sender.send_pool > 500, "{busy_sender:?}");
    assert!(busy_receiver.posted > 64, "{busy_receiver:?}");
    world.idle(Duration::from_secs(20));
    assert_eq!(world.endpoint(0).packets_held().send_pool, 0);
    // Posted buffers cannot be withdrawn from a device; they are freed as they are used.
    for i in 0..2000 {
        world.receive(1, 10, i);
        world.send(0, 1, pattern(10, i), i);
        world.drive();
    }
    world.idle(Duration::from_secs(20));
    let idle = world.endpoint(1).packets_held();
    assert!(idle.posted <= 64 && idle.receive_pool == 0, "{idle:?}");
}

#[test]
fn memory_of_many_unexpected_messages_is_bounded_and_released() {
    let mut world = World::pair_with(
        3,
        Config::default().with(|config| config.max_sends = 1 << 20),
        Config::default(),
    );
    for round in 0..200 {
        for i in 0..100 {
            world.send(0, 1, pattern(8, i), i);
        }
        world.drive();
        world.forget_packets();
        world.ends[0].sends.clear();
        assert_eq!(world.endpoint(1).packets_held().held, (round + 1) * 100);
    }
    for i in 0..20_000 {
        world.receive(1, 8, i);
        let received = world.receive_done(1);
        assert_eq!(received.buffer, pattern(8, i % 100));
    }
    assert_eq!(world.endpoint(1).packets_held().held, 0);
}

#[test]
fn receive_buffers_grow_with_bursts() {
    let mut world = World::pair(10);
    world.receive(1, 10, 0);
    world.send(0, 1, pattern(10, 0), 0);
    world.drive();
    for _ in 0..12 {
        for i in 0..1000 {
            world.receive(1, 10, i);
            world.send(0, 1, pattern(10, i), i);
        }
        // The receiver pauses until all messages have arrived.
        for _ in 0..60 {
            let now = world.now;
            world.endpoint(0).progress(now);
            world.now = now + Duration::from_micros(1);
        }
        world.drive();
    }
    let held = world.endpoint(1).packets_held();
    assert!(held.posted >= 1000, "{held:?}");
}

//! Payloads that go from the device's own memory to their buffer at once.

use efa_device::Rdma;
use efa_rdm::{Config, OperationError, Subprotocol};
use efa_sim::local::{LocalOptions, Reorder};

use crate::world::{World, pattern};

/// Two endpoints whose devices leave payloads in their own memory, and have no RDMA.
fn pair(reorder: Reorder, max_medium: u64) -> World {
    let options = LocalOptions::default().with(|options| {
        (options.seed, options.rdma, options.reorder) = (2, Rdma::NONE, reorder);
    });
    let mut world = World::new(options);
    for _ in 0..2 {
        world.add(Config::default().with(|config| config.max_medium = max_medium));
    }
    world.acquaint();
    // HANDSHAKEs, without which headers are longer.
    world.receive(1, 1, 0);
    world.send(0, 1, vec![0], 0);
    world.drive();
    world.receive_done(1);
    world.send_done(0);
    world
}

/// Sends a message; returns by what it came and how many of its bytes were placed.
fn sent(world: &mut World, length: usize, capacity: usize) -> (Subprotocol, u64) {
    let before = world.endpoint(1).statistics().placed_bytes;
    world.receive(1, capacity, 0);
    world.send(0, 1, pattern(length, 3), 0);
    world.drive();
    let received = world.receive_done(1);
    let kept = length.min(capacity);
    assert_eq!(received.buffer[..kept], pattern(length, 3)[..kept]);
    assert!(received.buffer[kept..].iter().all(|byte| *byte == 0));
    let truncated = matches!(received.result, Err(OperationError::Truncated { .. }));
    assert_eq!(truncated, length > capacity, "{:?}", received.result);
    world.send_done(0);
    world.assert_clean();
    (received.subprotocol.unwrap(), world.endpoint(1).statistics().placed_bytes - before)
}

#[test]
fn all_segments_of_a_medium_message_are_placed_in_any_order() {
    for reorder in [Reorder::None, Reorder::Shuffle] {
        let mut world = pair(reorder, 65536);
        for length in [8929, 30_000, 65536] {
            let placed = sent(&mut world, length, length);
            assert_eq!(placed, (Subprotocol::Medium, length as u64), "{reorder:?}");
        }
    }
}

#[test]
fn all_of_a_long_cts_message_is_placed_but_what_its_request_brings() {
    let mut world = pair(Reorder::Shuffle, 0);
    let length = 300_000;
    let (subprotocol, placed) = sent(&mut world, length, length);
    assert_eq!(subprotocol, Subprotocol::LongCts);
    let landed = length as u64 - placed;
    assert!((1..9_000).contains(&landed), "{landed} bytes of the request's packet");
}

#[test]
fn segments_are_placed_as_far_as_a_shorter_receive_has_room_for_them() {
    let mut world = pair(Reorder::Shuffle, 65536);
    for capacity in [20_000, 1, 0] {
        let placed = sent(&mut world, 65536, capacity);
        assert_eq!(placed, (Subprotocol::Medium, capacity as u64));
    }
}

#[test]
fn segments_of_an_unexpected_message_land_and_further_ones_are_placed_once_it_is_received() {
    let mut world = pair(Reorder::None, 65536);
    let bytes = pattern(65536, 4);
    world.send(0, 1, bytes.clone(), 0);
    while world.endpoint(1).packets_held().unexpected_bytes < 30_000 {
        world.step();
    }
    assert_eq!(world.endpoint(1).statistics().placed_bytes, 0);
    world.receive(1, 65536, 0);
    world.drive();
    let received = world.receive_done(1);
    assert_eq!((received.result, received.buffer == bytes), (Ok(()), true));
    let placed = world.endpoint(1).statistics().placed_bytes;
    assert!((1..65_536 - 8_000).contains(&placed), "{placed}");
    world.send_done(0);
    world.assert_clean();
}

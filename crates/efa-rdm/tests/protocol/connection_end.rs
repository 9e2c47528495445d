//! Endpoints of connections: strangers, and the end of the only peer.

use efa_device::Status;
use efa_rdm::{Accept, Bounds, Config, DropReason, OperationError, StartError};
use efa_sim::local::LocalOptions;

use crate::world::{World, pattern, place};

/// An endpoint that takes packets only of peers that were inserted.
fn refusing() -> Config {
    Config::default().with(|config| {
        config.bounds = Bounds::default().with(|bounds| bounds.discovered = 0);
    })
}

/// Two endpoints that know each other, and a third that knows the second.
fn world() -> World {
    let mut world = World::new(LocalOptions::default());
    for _ in 0..3 {
        world.add(refusing());
    }
    world.peer(0, 1);
    world.peer(1, 0);
    world
}

#[test]
fn packets_of_strangers_are_dropped_and_counted_when_none_may_be_discovered() {
    let mut world = world();
    world.receive(1, 100, 7);
    world.send(2, 1, pattern(100, 2), 0);
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::Stranger]);
    assert!(world.types_from(1).is_empty(), "a stranger gets no HANDSHAKE");
    world.send(0, 1, pattern(100, 1), 0);
    world.drive();
    let received = world.receive_done(1);
    assert_eq!((received.context, received.buffer), (7, pattern(100, 1)));
    assert_eq!(received.peer, Some(world.peer(1, 0)));
}

#[test]
fn new_incarnation_of_the_only_peer_is_a_stranger() {
    let mut world = world();
    world.acquaint();
    world.restart(0, 77, refusing());
    world.receive(1, 100, 7);
    world.send(0, 1, pattern(100, 1), 0);
    world.drive();
    assert_eq!(world.drop_reasons(1), [DropReason::Stranger]);
    assert!(world.ends[1].receives.is_empty());
}

#[test]
fn end_of_a_connection_ends_what_is_under_way_and_keeps_complete_messages() {
    let mut world = world();
    // Complete: one packet, several packets. Incomplete: the sender waits for a CTS.
    for (context, length) in [(1, 100), (2, 50_000), (3, 400_000)] {
        world.send(0, 1, pattern(length, context), context);
    }
    world.drive();
    let source = world.peer(1, 0);
    // Those that wait, untagged and tagged, with a source and without. Nothing matches them.
    let posts = [
        Accept::Tagged { source: None, tag: 5, ignore: 0 },
        Accept::Tagged { source: Some(source), tag: 6, ignore: 0 },
    ];
    for (context, accept) in (10..).zip(posts) {
        world.endpoint(1).receive(accept, vec![0; 100], context).unwrap();
    }
    world.send(1, 0, pattern(400_000, 9), 20);
    world.endpoint(1).end_connection(Some(source));
    world.drive();
    let mut ended: Vec<_> =
        world.take_receives(1).iter().map(|ended| (ended.context, ended.result)).collect();
    ended.sort_by_key(|(context, _)| *context);
    let as_ended = Err(OperationError::ConnectionEnded);
    assert_eq!(ended, [(10, as_ended), (11, as_ended)]);
    assert_eq!(world.send_done(1).result, as_ended);

    // Later receives: two find a message, the others nothing, and so does one for tags.
    for context in 30..33 {
        world.receive(1, 400_000, context);
    }
    world.endpoint(1).receive(posts[0], vec![0; 100], 33).unwrap();
    let leftover = world.endpoint(1).receive_many(None, vec![0; 9000], 34).unwrap();
    assert!(!world.endpoint(1).cancel(leftover));
    world.drive();
    let ended: Vec<_> = world
        .take_receives(1)
        .into_iter()
        .map(|ended| (ended.context, ended.result, ended.length, ended.peer))
        .collect();
    let expected = [
        (30, Ok(()), 100, Some(source)),
        (31, Ok(()), 50_000, Some(source)),
        (32, as_ended, 0, None),
        (33, as_ended, 0, None),
        (34, as_ended, 0, None),
    ];
    assert_eq!(ended, expected);
    assert_eq!(world.endpoint(1).packets_held().unexpected_bytes, 0);
}

#[test]
fn claimed_message_that_is_complete_is_received_after_the_connection_has_ended() {
    let mut world = world();
    // Complete: one packet, several packets, one packet. Incomplete: the sender waits for a CTS.
    let lengths = [100, 50_000, 400_000, 200];
    for (context, length) in (1..).zip(lengths) {
        world.send(0, 1, pattern(length, context), context);
    }
    world.drive();
    let source = world.peer(1, 0);
    let any = Accept::Untagged { source: None };
    let claim = |world: &mut World| world.endpoint(1).claim(any).unwrap();
    let before = [(); 3].map(|()| claim(&mut world).unwrap().0);
    world.endpoint(1).end_connection(Some(source));
    let (after, _) = claim(&mut world).unwrap();
    assert_eq!(claim(&mut world), None);
    for (index, claimed) in before.into_iter().chain([after]).enumerate() {
        let buffer = vec![0; lengths[index]];
        let started = world.endpoint(1).receive_claimed(claimed, buffer, index as u64);
        let error = started.err().map(|refused| refused.error);
        assert_eq!(error, (index == 2).then_some(StartError::ClaimEnded), "{index}");
    }
    world.drive();
    let received =
        world.take_receives(1).into_iter().map(|ended| (ended.context, ended.result, ended.buffer));
    let expected = [0, 1, 3].map(|index| {
        let context = index as u64;
        (context, Ok(()), pattern(lengths[index], context + 1))
    });
    assert!(received.eq(expected));
    assert_eq!(world.endpoint(1).packets_held().unexpected_bytes, 0);
}

#[test]
fn message_after_one_that_the_end_of_the_connection_cut_off_is_not_received_in_its_place() {
    let mut world = world();
    // The sender of the second waits for a CTS.
    for (context, length) in [(1, 100), (2, 400_000), (3, 200), (4, 50_000)] {
        world.send(0, 1, pattern(length, context), context);
    }
    world.drive();
    let source = world.peer(1, 0);
    world.endpoint(1).end_connection(Some(source));
    for context in 10..13 {
        world.receive(1, 400_000, context);
    }
    world.drive();
    let ended = world.take_receives(1);
    let ended: Vec<_> = ended.iter().map(|it| (it.context, it.result, it.length)).collect();
    let cut_off = Err(OperationError::ConnectionEnded);
    assert_eq!(ended, [(10, Ok(()), 100), (11, cut_off, 0), (12, cut_off, 0)]);
    assert_eq!(world.endpoint(1).packets_held().unexpected_bytes, 0);
}

#[test]
fn message_after_one_that_the_loss_of_the_only_peer_cut_off_is_not_received_in_its_place() {
    let mut world = world();
    for (context, length) in [(1, 100), (2, 400_000), (3, 200)] {
        world.send(0, 1, pattern(length, context), context);
    }
    world.drive();
    world.network.fail_sends(place(&world.ends[1]), 1, Status::UnreachableRemote).unwrap();
    world.send(1, 0, pattern(100, 9), 20);
    world.drive();
    assert!(world.send_done(1).result.is_err(), "the peer is lost");
    for context in 10..12 {
        world.receive(1, 400_000, context);
    }
    world.drive();
    let ended = world.take_receives(1);
    let ended: Vec<_> = ended.iter().map(|it| (it.context, it.result, it.length)).collect();
    assert_eq!(ended, [(10, Ok(()), 100)]);
}

#[test]
fn connection_that_ends_before_it_has_a_peer_ends_its_receives() {
    let mut world = world();
    world.receive(2, 100, 1);
    world.endpoint(2).end_connection(None);
    world.receive(2, 100, 2);
    world.drive();
    let ended = world.take_receives(2);
    assert_eq!(ended.iter().map(|ended| ended.context).collect::<Vec<_>>(), [1, 2]);
    assert!(ended.iter().all(|ended| ended.result == Err(OperationError::ConnectionEnded)));
}

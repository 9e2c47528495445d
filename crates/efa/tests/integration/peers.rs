//! Address vectors, unknown peers, and peers that end.

use efa::{
    Address, Capabilities, DeviceError, Event, FiAddr, Gid, Message, OperationError, Receive,
    StartError,
};

use crate::world::{ALICE, BOB, World, options, pattern};

// conformance: A27 C88
#[test]
fn send_to_a_peer_that_is_not_inserted_is_refused() {
    let mut world = World::pair(1);
    let refused = world.end(ALICE).send(Message::to(FiAddr(0)), "early", 1).unwrap_err();
    assert_eq!(refused.error, StartError::UnknownAddress(FiAddr(0)));
    assert_eq!(refused.buffer, *b"early");
    let to_bob = world.introduce(ALICE, BOB);
    assert_eq!(to_bob, FiAddr(0));
    let (_, received) = world.transfer(Message::to(to_bob), "now", Receive::untagged(), 8);
    assert_eq!(received.into_message(), *b"now");
    let directed = world.end(BOB).receive(Receive::untagged().from(FiAddr(5)), vec![0; 1], 1);
    assert_eq!(directed.unwrap_err().error, StartError::UnknownAddress(FiAddr(5)));
}

// conformance: A28 C74
#[test]
fn message_of_unknown_peer_arrives_with_its_address() {
    let mut world = World::pair(2);
    let to_bob = world.introduce(ALICE, BOB);
    let (_, received) = world.transfer(Message::to(to_bob), "who?", Receive::untagged(), 8);
    assert_eq!(received.peer, None);
    assert_eq!(received.peer_address, Some(world.end(ALICE).address()));
    assert_eq!(world.end(BOB).event(), Some(Event::PeerDiscovered(world.end(ALICE).address())));
    assert_eq!(world.end(BOB).event(), None);

    // Bob can answer to the address in the completion.
    let to_alice = world.ends[BOB].addresses.insert(received.peer_address.unwrap()).unwrap();
    world.end(ALICE).receive(Receive::untagged(), vec![0; 8], 1).unwrap();
    world.end(BOB).send(Message::to(to_alice), "me", 2).unwrap();
    let sent_before = world.done(ALICE);
    assert_eq!((sent_before.context, sent_before.peer), (1, Some(to_bob)));
    // From now on completions have her index.
    let (_, received) = world.transfer(Message::to(to_bob), "again", Receive::untagged(), 8);
    assert_eq!(received.context, 2, "his own send");
    assert_eq!(world.done(BOB).peer, Some(to_alice));
}

#[test]
fn completions_omit_the_sender_without_the_source_capability() {
    let silent = Capabilities::OFFERED - Capabilities::SOURCE;
    let bob = options(2).capabilities(silent);
    let mut world = World::pair_with(3, options(1), bob);
    let to_bob = world.introduce(ALICE, BOB);
    world.introduce(BOB, ALICE);
    let (_, received) = world.transfer(Message::to(to_bob), "who?", Receive::untagged(), 8);
    assert_eq!((received.peer, received.peer_address), (None, None));
}

#[test]
fn directed_receive_of_a_removed_peer_stays_posted_and_matches_nothing() {
    let mut world = World::pair(4);
    let to_bob = world.introduce(ALICE, BOB);
    let to_alice = world.introduce(BOB, ALICE);
    let from_alice = Receive::untagged().from(to_alice);
    let orphan = world.end(BOB).receive(from_alice, vec![0; 8], 1).unwrap();
    for (end, peer) in [(BOB, to_alice), (ALICE, to_bob)] {
        let address = world.ends[end].addresses.remove(peer).unwrap();
        assert_eq!(world.ends[end].addresses.insert(address), Ok(peer));
    }
    let (_, received) = world.transfer(Message::to(to_bob), "new peer", from_alice, 8);
    assert_eq!(received.into_message(), *b"new peer");
    assert!(world.end(BOB).cancel(orphan));
    let ended = world.failed(BOB);
    assert_eq!((ended.error, ended.completion.context), (OperationError::Cancelled, 1));
}

#[test]
fn directed_receive_matches_messages_of_its_peer_only() {
    let mut world = World::pair(4);
    let carol = world.add(options(3));
    let from_carol = world.introduce(BOB, carol);
    for who in [ALICE, carol] {
        world.introduce(who, BOB);
    }
    for (receive, context) in [
        (Receive::tagged(1).from(from_carol), 10),
        (Receive::tagged(1), 11),
        (Receive::untagged().from(from_carol), 20),
        (Receive::untagged(), 21),
    ] {
        world.end(BOB).receive(receive, vec![0; 16], context).unwrap();
    }
    world.end(ALICE).send(Message::to(FiAddr(0)).tagged(1), "alice", 0).unwrap();
    world.end(ALICE).send(Message::to(FiAddr(0)), "alice", 0).unwrap();
    world.drive();
    world.end(carol).send(Message::to(FiAddr(0)).tagged(1), "carol", 0).unwrap();
    world.end(carol).send(Message::to(FiAddr(0)), "carol", 0).unwrap();
    for _ in 0..4 {
        let received = world.done(BOB);
        let (name, peer) = match received.context {
            10 | 20 => ("carol", Some(from_carol)),
            _ => ("alice", None),
        };
        assert_eq!(received.peer, peer);
        assert_eq!(received.into_message(), *name.as_bytes());
    }
}

// conformance: C92
#[test]
fn address_vector_assigns_the_lowest_free_index() {
    assert_eq!(size_of::<FiAddr>(), 8);
    let world = World::pair(5);
    let addresses = &world.ends[ALICE].addresses;
    let address =
        |connid: u32| -> Address { format!("[fe80::9]:{connid}/{connid:#x}").parse().unwrap() };
    for i in 0..5 {
        assert_eq!(addresses.insert(address(i)), Ok(FiAddr(u64::from(i))));
    }
    assert_eq!(addresses.insert(address(2)), Ok(FiAddr(2)), "a known address keeps its index");
    assert_eq!(addresses.len(), 5);
    assert_eq!(addresses.remove(FiAddr(3)), Some(address(3)));
    assert_eq!(addresses.remove(FiAddr(1)), Some(address(1)));
    assert_eq!(addresses.remove(FiAddr(1)), None);
    assert_eq!(addresses.remove(FiAddr(u64::MAX)), None);
    assert_eq!((addresses.address(FiAddr(1)), addresses.find(&address(1))), (None, None));
    assert_eq!(addresses.insert(address(10)), Ok(FiAddr(1)), "the lowest free one");
    assert_eq!(addresses.insert(address(11)), Ok(FiAddr(3)));
    assert_eq!(addresses.insert(address(12)), Ok(FiAddr(5)));
    assert_eq!(addresses.address(FiAddr(1)), Some(address(10)));
}

// conformance: C90
#[test]
fn insert_many_inserts_valid_addresses_beside_invalid_ones() {
    let world = World::pair(6);
    let addresses = &world.ends[ALICE].addresses;
    let good = world.end(BOB).address();
    let bad = Address::from_bytes([0; 32]);
    let results = addresses.insert_many(&[bad, good, bad, world.end(ALICE).address()]);
    let refused = Err(DeviceError::BadAddress { gid: Gid::ZERO });
    assert_eq!(results, [refused.clone(), Ok(FiAddr(0)), refused, Ok(FiAddr(1))]);
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), addresses.len());
    world.end(ALICE).send(Message::to(FiAddr(0)), "at once", 1).unwrap();
}

// conformance: C98
#[test]
fn removed_peer_is_unknown_and_a_reinserted_one_is_new() {
    let mut world = World::pair(7);
    let (to_bob, to_alice) = (world.introduce(ALICE, BOB), world.introduce(BOB, ALICE));
    let (_, received) = world.transfer(Message::to(to_bob), "one", Receive::untagged(), 8);
    assert_eq!(received.peer, Some(to_alice));
    world.drive();

    // Operations under way with the peer fail, and new ones are refused.
    world.end(ALICE).send(Message::to(to_bob), pattern(500_000, 1), 5).unwrap();
    assert_eq!(world.ends[ALICE].addresses.remove(to_bob), Some(world.end(BOB).address()));
    let failed = world.failed(ALICE);
    assert_eq!((failed.error, failed.completion.context), (OperationError::PeerRemoved, 5));
    assert_eq!(failed.completion.buffer, pattern(500_000, 1));
    let refused = world.end(ALICE).send(Message::to(to_bob), "two", 6).unwrap_err();
    assert_eq!(refused.error, StartError::UnknownAddress(to_bob));

    // Bob removes her too; both start anew from message ID 0.
    world.ends[BOB].addresses.remove(to_alice);
    world.drive();
    let (to_bob, to_alice) = (world.introduce(ALICE, BOB), world.introduce(BOB, ALICE));
    assert_eq!((to_bob, to_alice), (FiAddr(0), FiAddr(0)));
    for i in 0..20 {
        let data = pattern(1000 * i, i as u64);
        let (sent, received) =
            world.transfer(Message::to(to_bob), data.clone(), Receive::untagged(), 20_000);
        assert_eq!(sent.peer, Some(to_bob));
        assert_eq!(received.peer, Some(to_alice));
        assert_eq!(received.into_message(), data);
    }
}

#[test]
fn sender_that_nothing_was_sent_to_is_named_by_its_present_address() {
    let mut world = World::pair(10);
    let to_bob = world.introduce(ALICE, BOB);
    let mut names = Vec::new();
    for other in [None, Some(FiAddr(0))] {
        if let Some(old) = other {
            world.drive();
            world.ends[BOB].addresses.remove(old).unwrap();
            world.ends[ALICE].addresses.remove(to_bob).unwrap();
            world.drive();
            // Another takes the place that Alice had.
            let carol: Address = "[fe80::9]:9/0x9".parse().unwrap();
            assert_eq!(world.ends[BOB].addresses.insert(carol).unwrap(), old);
            assert_eq!(world.introduce(ALICE, BOB), to_bob);
        }
        let before = world.transfer(Message::to(to_bob), "x", Receive::untagged(), 1).1.peer;
        let to_alice = world.introduce(BOB, ALICE);
        for _ in 0..2 {
            let (_, received) = world.transfer(Message::to(to_bob), "x", Receive::untagged(), 1);
            assert_eq!(received.peer, Some(to_alice));
        }
        names.push((before, to_alice));
    }
    assert_eq!(names, [(None, FiAddr(0)), (None, FiAddr(1))]);
}

#[test]
fn message_that_a_removed_peer_left_names_the_one_inserted_anew_and_leaves_it_usable() {
    let mut world = World::pair(12);
    let (to_bob, to_alice) = (world.introduce(ALICE, BOB), world.introduce(BOB, ALICE));
    world.end(BOB).send(Message::to(to_alice), "left", 1).unwrap();
    world.done(BOB);
    world.drive();
    world.ends[ALICE].addresses.remove(to_bob).unwrap();
    world.ends[BOB].addresses.remove(to_alice).unwrap();
    world.drive();
    let (to_bob, to_alice) = (world.introduce(ALICE, BOB), world.introduce(BOB, ALICE));
    world.end(ALICE).receive(Receive::untagged(), vec![0; 8], 2).unwrap();
    let left = world.done(ALICE);
    assert_eq!((left.peer, left.into_message().into_vec()), (Some(to_bob), b"left".to_vec()));
    let (sent, received) = world.transfer(Message::to(to_bob), "new", Receive::untagged(), 8);
    assert_eq!((sent.peer, received.peer), (Some(to_bob), Some(to_alice)));
    assert_eq!(received.into_message(), *b"new");
}

#[test]
fn address_vector_serves_many_endpoints() {
    let mut world = World::pair(8);
    let end = &world.ends[ALICE];
    let second = end
        .domain
        .endpoint(options(3))
        .bind_completion_queue(&end.queue, efa::Direction::Both)
        .bind_address_vector(&end.addresses)
        .enable()
        .unwrap();
    let to_bob = world.introduce(ALICE, BOB);
    for context in [1, 2] {
        world.end(BOB).receive(Receive::untagged(), vec![0; 8], context).unwrap();
    }
    world.end(ALICE).send(Message::to(to_bob), "first", 1).unwrap();
    second.send(Message::to(to_bob), "second", 2).unwrap();
    let mut senders = [world.done(BOB), world.done(BOB)].map(|done| done.peer_address.unwrap());
    senders.sort_unstable();
    let mut expected = [world.end(ALICE).address(), second.address()];
    expected.sort_unstable();
    assert_eq!(senders, expected);
    // Removal ends the peer on both endpoints.
    world.ends[ALICE].addresses.remove(to_bob);
    for endpoint in [world.end(ALICE), &second] {
        let refused = endpoint.send(Message::to(to_bob), "x", 1).unwrap_err();
        assert_eq!(refused.error, StartError::UnknownAddress(to_bob));
    }
}

#[test]
fn lost_peer_is_an_event_and_refused_until_it_is_replaced() {
    let mut world = World::pair(9);
    let to_bob = world.introduce(ALICE, BOB);
    world.transfer(Message::to(to_bob), "hello", Receive::untagged(), 8);
    world.drive();
    let old = world.ends.pop().unwrap();
    let bob = old.endpoint.address();
    drop(old);
    world.end(ALICE).send(Message::to(to_bob), "anyone?", 1).unwrap();
    assert!(matches!(world.failed(ALICE).error, OperationError::Device(_)));
    let event = world.end(ALICE).event();
    assert!(matches!(event, Some(Event::PeerLost { peer, .. }) if peer == bob), "{event:?}");
    let refused = world.end(ALICE).send(Message::to(to_bob), "still?", 1).unwrap_err();
    assert_eq!(refused.error, StartError::PeerGone(to_bob));

    world.add(options(22));
    world.ends[ALICE].addresses.remove(to_bob);
    let to_bob = world.introduce(ALICE, BOB);
    let (_, received) = world.transfer(Message::to(to_bob), "welcome", Receive::untagged(), 8);
    assert_eq!(received.into_message(), *b"welcome");
}

/// An address as another incarnation of the queue pair had it, or will have it.
fn with_connid(address: Address, connid: u32) -> Address {
    let mut bytes = address.to_bytes();
    bytes[20..24].copy_from_slice(&connid.to_le_bytes());
    let other = Address::from_bytes(bytes);
    assert_eq!((other.gid(), other.qpn(), other.connid()), (address.gid(), address.qpn(), connid));
    other
}

#[test]
fn first_use_of_an_address_of_an_earlier_incarnation_leaves_the_peer_that_was_heard_since() {
    let mut world = World::pair(10);
    let bob = world.end(BOB).address();
    let to_earlier = world.ends[ALICE].addresses.insert(with_connid(bob, 77)).unwrap();
    let to_alice = world.introduce(BOB, ALICE);
    for message in ["first", "second"] {
        world.end(ALICE).receive(Receive::untagged(), vec![0; 8], 1).unwrap();
        world.end(BOB).send(Message::to(to_alice), message, 2).unwrap();
        assert_eq!(world.done(ALICE).into_message(), *message.as_bytes());
        world.done(BOB);
        let refused = world.end(ALICE).send(Message::to(to_earlier), "late", 3).unwrap_err();
        assert_eq!(refused.error, StartError::PeerGone(to_earlier));
    }
    let directed = Receive::untagged().from(to_earlier);
    let refused = world.end(ALICE).receive(directed, vec![0; 8], 4).unwrap_err();
    assert_eq!(refused.error, StartError::PeerGone(to_earlier));
}

#[test]
fn address_inserted_after_its_queue_pair_was_heard_is_that_of_a_later_incarnation() {
    let mut world = World::pair(11);
    let bob = world.end(BOB).address();
    let (to_bob, to_alice) = (world.introduce(ALICE, BOB), world.introduce(BOB, ALICE));
    world.end(ALICE).receive(Receive::untagged(), vec![0; 8], 1).unwrap();
    world.end(BOB).send(Message::to(to_alice), "hello", 2).unwrap();
    assert_eq!(world.done(ALICE).peer, Some(to_bob));
    let to_later = world.ends[ALICE].addresses.insert(with_connid(bob, 78)).unwrap();
    world.end(ALICE).send(Message::to(to_later), "welcome", 3).unwrap();
    let refused = world.end(ALICE).send(Message::to(to_bob), "still?", 4).unwrap_err();
    assert_eq!(refused.error, StartError::PeerGone(to_bob));
}

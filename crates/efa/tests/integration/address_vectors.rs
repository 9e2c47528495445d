//! Address vectors of each kind, and receive contexts of peers.

use efa::{
    Address, AddressVector, AddressVectorKind, AddressVectorOptions, CompletionQueueOptions,
    ContextError, ControlEvent, DeviceError, Direction, Domain, Error, EventQueueOptions, FiAddr,
    InsertionError, Message, OperationError, Receive, StartError, Wanted,
};

use crate::ends::End;
use crate::world::{ALICE, BOB, World, options, pattern};

/// Alice with an address vector of these options, and Bob.
fn world(vector: AddressVectorOptions) -> World {
    let mut world = World::empty();
    world_end(&mut world, 1, vector);
    world.add(options(2));
    world
}

fn address(number: u16) -> Address {
    format!("[fe80::1]:{number}/0x0000002a").parse().unwrap()
}

// conformance: C89
#[test]
fn table_returns_computable_indices_and_map_values_that_are_never_used_again() {
    for kind in [AddressVectorKind::Table, AddressVectorKind::Map] {
        let mut world = world(AddressVectorOptions::new().kind(kind));
        let vector = world.ends[ALICE].addresses.clone();
        let peers: Vec<_> = (1..5).map(|number| vector.insert(address(number)).unwrap()).collect();
        let indices = (0..4).map(FiAddr).collect::<Vec<_>>();
        assert_eq!(peers == indices, kind == AddressVectorKind::Table);
        assert_eq!(vector.insert(address(2)), Ok(peers[1]), "a known address keeps its value");
        assert_eq!(vector.remove(peers[1]), Some(address(2)));
        let new = vector.insert(address(7)).unwrap();
        assert_eq!(new == peers[1], kind == AddressVectorKind::Table, "the free index");
        assert_eq!(vector.address(new), Some(address(7)));
        assert_eq!(vector.find(&address(7)), Some(new));
        assert_eq!(vector.len(), 4);
        if kind == AddressVectorKind::Map {
            for stale in [peers[1], FiAddr(0), FiAddr(1), FiAddr(u64::MAX)] {
                assert_eq!((vector.address(stale), vector.remove(stale)), (None, None), "{stale}");
                let sent = world.end(ALICE).send(Message::to(stale), "x", 1);
                assert_eq!(sent.unwrap_err().error, StartError::UnknownAddress(stale));
            }
        }
        // A value is the same in transfers and completions.
        let to_bob = world.introduce(ALICE, BOB);
        for length in [100, 200_000] {
            let data = pattern(length, 1);
            let (sent, received) =
                world.transfer(Message::to(to_bob), data.clone(), Receive::untagged(), length);
            assert_eq!(sent.peer, Some(to_bob));
            assert!(received.into_message() == data);
            let to_alice = world.introduce(BOB, ALICE);
            world.end(ALICE).receive(Receive::untagged().from(to_bob), vec![0; 1], 3).unwrap();
            world.end(BOB).send(Message::to(to_alice), "y", 4).unwrap();
            assert_eq!(world.done(ALICE).peer, Some(to_bob));
            world.done(BOB);
        }
    }
}

#[test]
fn value_of_a_removed_peer_is_unknown_when_its_address_is_inserted_again() {
    let mut world = world(AddressVectorOptions::new().kind(AddressVectorKind::Map));
    let old = world.introduce(ALICE, BOB);
    world.transfer(Message::to(old), "x", Receive::untagged(), 1);
    world.end(ALICE).send(Message::to(old), pattern(200_000, 1), 7).unwrap();
    world.drive();
    world.ends[ALICE].addresses.remove(old).unwrap();
    assert_eq!(world.failed(ALICE).error, OperationError::PeerRemoved);
    // Both sides start anew.
    let bob = world.end(BOB).address();
    world.ends.truncate(1);
    let new = world.ends[ALICE].addresses.insert(bob).unwrap();
    assert_ne!(new, old);
    let sent = world.end(ALICE).send(Message::to(old), "x", 1);
    assert_eq!(sent.unwrap_err().error, StartError::UnknownAddress(old));
    assert!(world.end(ALICE).send(Message::to(new), "x", 1).is_ok());
}

// conformance: C94
#[test]
fn options_of_an_address_vector_are_kept_and_its_count_is_no_limit() {
    let options = AddressVectorOptions::new()
        .kind(AddressVectorKind::Map)
        .count(2)
        .endpoints_per_node(3)
        .receive_context_bits(16);
    let world = world(options.clone());
    let vector = &world.ends[ALICE].addresses;
    assert_eq!(*vector.options(), options);
    let peers: Vec<_> = (1..10).map(|number| vector.insert(address(number)).unwrap()).collect();
    assert_eq!(vector.len(), peers.len());
    let domain = &world.ends[ALICE].domain;
    let refused = domain.address_vector_with(options.receive_context_bits(17)).unwrap_err();
    assert_eq!(refused, Error::NoData { wanted: Wanted::ReceiveContextBits(17) });
    let plain = domain.address_vector();
    assert_eq!(*plain.options(), AddressVectorOptions::default());
    assert_eq!(plain.options().kind, AddressVectorKind::Table);
}

#[test]
fn address_vector_is_not_made_with_a_name_that_cannot_be_one_or_to_be_read_without_one() {
    let world = World::pair(1);
    let domain = &world.ends[ALICE].domain;
    let open = |options| domain.address_vector_with(options);
    let error = open(AddressVectorOptions::new().read_only()).unwrap_err();
    assert_eq!(error, Error::NoData { wanted: Wanted::ReadOnlyWithoutName });
    let words = "nothing offers the requested read-only address vector: it has no name";
    assert_eq!(error.to_string(), words);

    // 64 bytes with the number of this process, which no other test has.
    let longest = format!("{:A>64}", format!("-_.z{}", std::process::id()));
    let vector = open(AddressVectorOptions::new().name(&longest)).unwrap();
    let reader = open(AddressVectorOptions::new().name(&longest).read_only()).unwrap();
    let peer = vector.insert(address(1)).unwrap();
    assert_eq!((reader.remove(peer), reader.address(peer)), (None, Some(address(1))));
    for name in ["", "a/b", "a b", "ä", "a\0", &(longest + "a")] {
        for options in [AddressVectorOptions::new(), AddressVectorOptions::new().read_only()] {
            let error = open(options.name(name)).unwrap_err();
            let Error::Device(DeviceError::Inconsistent { object, .. }) = &error else {
                panic!("{name:?}: {error}")
            };
            assert_eq!(*object, format!("name {name:?} of an address vector"));
        }
    }
    let limit = 1 << 24;
    let error = open(named("many").count(limit + 1)).unwrap_err();
    assert_eq!(error, DeviceError::LimitReached { object: "named peer", limit }.into());
    let missing = open(named("missing").read_only()).unwrap_err();
    assert!(matches!(missing, Error::Device(DeviceError::System { .. })), "{missing}");
}

// conformance: C95
#[test]
fn two_context_bits_steer_sends_to_four_receive_contexts_of_a_peer() {
    for kind in [AddressVectorKind::Table, AddressVectorKind::Map] {
        let mut world = world(AddressVectorOptions::new().kind(kind).receive_context_bits(2));
        (3..6).for_each(|connid| drop(world.add(options(connid)).to_string()));
        let addresses: Vec<_> = (1..5).map(|end| world.end(end).address()).collect();
        let vector = world.ends[ALICE].addresses.clone();
        vector.insert(address(9)).unwrap();
        let peer = vector.insert_contexts(&addresses).unwrap();
        assert_eq!(vector.insert_contexts(&addresses), Ok(peer), "only once");
        assert_eq!(vector.len(), 2);
        for round in 0..2 {
            for (context, address) in addresses.iter().enumerate() {
                let to = vector.receive_context(peer, context).unwrap();
                assert_eq!(to, of_context(peer, context));
                assert_eq!(to.0, peer.0 | (context as u64) << 62);
                assert_eq!(vector.address(to), Some(*address));
                let end = context + 1;
                world.end(end).receive(Receive::tagged(1), vec![0; 4], 5).unwrap();
                let data = [context as u8, round, 7, 7];
                world.end(ALICE).send(Message::to(to).tagged(1), data.to_vec(), 6).unwrap();
                assert_eq!(world.done(end).into_message(), data);
                assert_eq!(world.done(ALICE).peer, Some(peer), "the peer, not its context");
            }
        }
        let error = ContextError::TooGreat { context: 4, contexts: 4 };
        assert_eq!(vector.receive_context(peer, 4), Err(error));
        assert_eq!(vector.insert_contexts(&[address(1); 5]).unwrap_err().to_string(), {
            let limit = 4;
            DeviceError::LimitReached {
                object: "receive context of a peer (AddressVectorOptions::receive_context_bits)",
                limit,
            }
            .to_string()
        });
        assert!(vector.insert_contexts(&[]).is_err());
        // A peer of one context has no other.
        let one = vector.find(&address(9)).unwrap();
        let other = vector.receive_context(one, 1).unwrap();
        let sent = world.end(ALICE).send(Message::to(other), "x", 1);
        assert_eq!(sent.unwrap_err().error, StartError::UnknownAddress(other));
        // All contexts are removed with their peer.
        assert_eq!(vector.remove(of_context(peer, 1)), None);
        assert_eq!(vector.remove(peer), Some(addresses[0]));
        for context in 0..4 {
            let gone = of_context(peer, context);
            let sent = world.end(ALICE).send(Message::to(gone), "x", 1);
            assert_eq!(sent.unwrap_err().error, StartError::UnknownAddress(gone));
        }
        let error = ContextError::UnknownAddress(peer);
        assert_eq!(vector.receive_context(peer, 0), Err(error));
    }
}

/// A name of this process, for one test.
#[test]
fn queue_pair_of_two_peers_goes_on_when_one_of_them_is_removed() {
    let mut world = world(AddressVectorOptions::new().receive_context_bits(2));
    let carol = world.add(options(3));
    let [bob, carol_address] = [BOB, carol].map(|end| world.end(end).address());
    let vector = world.ends[ALICE].addresses.clone();
    // Carol is a peer of her own, and a context of two others.
    let mut insert = |number: usize| match number {
        0 => vector.insert(carol_address).unwrap(),
        1 => vector.insert_contexts(&[bob, carol_address]).unwrap(),
        _ => vector.insert_contexts(&[address(9), carol_address]).unwrap(),
    };
    let to_carol = |number: usize, peer| if number == 0 { peer } else { of_context(peer, 1) };
    let mut peers = [0, 1, 2].map(&mut insert);
    for removed in [0, 1, 2, 1] {
        for other in (0..3).filter(|other| *other != removed) {
            world.end(carol).receive(Receive::untagged(), vec![0; 4], 1).unwrap();
            world.end(ALICE).send(Message::to(to_carol(other, peers[other])), "one", 2).unwrap();
            assert_eq!(world.done(carol).into_message(), *b"one");
            world.done(ALICE);
        }
        vector.remove(peers[removed]).unwrap();
        let gone = to_carol(removed, peers[removed]);
        let refused = world.end(ALICE).send(Message::to(gone), "x", 3).unwrap_err();
        assert_eq!(refused.error, StartError::UnknownAddress(gone));
        for other in (0..3).filter(|other| *other != removed) {
            world.end(carol).receive(Receive::untagged(), vec![0; 4], 1).unwrap();
            world.end(ALICE).send(Message::to(to_carol(other, peers[other])), "two", 2).unwrap();
            assert_eq!(world.done(carol).into_message(), *b"two");
            let named = world.done(ALICE).peer.unwrap();
            assert!(named != peers[removed] && peers.contains(&named), "{named} is none of hers");
        }
        peers[removed] = insert(removed);
    }
    // With the last of them she is removed.
    for peer in peers {
        vector.remove(peer).unwrap();
    }
    assert_eq!((vector.len(), vector.find(&carol_address)), (0, None));
}

fn named(of: &str) -> AddressVectorOptions {
    AddressVectorOptions::new().name(format!("{}-{of}", std::process::id()))
}

// conformance: C96
#[test]
fn readers_of_a_named_address_vector_use_the_values_of_its_writer() {
    for kind in [AddressVectorKind::Table, AddressVectorKind::Map] {
        let options = named("values").kind(kind).count(3);
        let world = world(options.clone());
        let writer = world.ends[ALICE].addresses.clone();
        let domain = &world.ends[BOB].domain;
        let first = writer.insert(address(1)).unwrap();
        let reader = domain.address_vector_with(options.clone().read_only()).unwrap();
        let second = writer.insert(address(2)).unwrap();
        for (peer, of) in [(first, address(1)), (second, address(2))] {
            assert_eq!((reader.address(peer), reader.find(&of)), (Some(of), Some(peer)));
        }
        writer.remove(first).unwrap();
        assert_eq!((reader.address(first), reader.len()), (None, 1));
        let third = writer.insert(address(3)).unwrap();
        assert_eq!(
            (reader.address(third), reader.find(&address(3))),
            (Some(address(3)), Some(third))
        );
        assert_eq!(third == first, kind == AddressVectorKind::Table);
        assert!(reader.insert(address(4)).is_err() && reader.remove(second).is_none());
        assert!(reader.insert_many(&[address(4)])[0].is_err());
        writer.insert(address(4)).unwrap();
        let full = writer.insert(address(5)).unwrap_err();
        assert_eq!(full, DeviceError::LimitReached { object: "peer", limit: 3 });
        let again = domain.address_vector_with(options.clone()).unwrap_err();
        assert!(again.to_string().contains("another process writes it"), "{again}");
        drop((writer, world.ends));
        assert_eq!(reader.address(second), Some(address(2)), "a reader keeps what it has");
    }
    let world = World::pair(1);
    let none = world.ends[ALICE].domain.address_vector_with(named("none").read_only());
    assert!(none.is_err());
}

// conformance: C96
#[test]
fn endpoint_of_a_reader_sends_to_peers_that_the_writer_inserts_and_drops_those_it_removes() {
    let options = named("sends");
    let mut world = world(options.clone());
    let reading = world_end(&mut world, 3, options.read_only());
    let peer = world.introduce(ALICE, BOB);
    world.end(BOB).receive(Receive::untagged(), vec![0; 5], 2).unwrap();
    world.end(reading).send(Message::to(peer), "hello", 1).unwrap();
    assert_eq!(world.done(BOB).into_message(), *b"hello");
    assert_eq!(world.done(reading).peer, Some(peer));
    world.end(reading).send(Message::to(peer), pattern(200_000, 1), 7).unwrap();
    world.drive();
    world.ends[ALICE].addresses.remove(peer).unwrap();
    world.ends[reading].addresses.refresh();
    assert_eq!(world.failed(reading).error, OperationError::PeerRemoved);
    let sent = world.end(reading).send(Message::to(peer), "x", 1);
    assert_eq!(sent.unwrap_err().error, StartError::UnknownAddress(peer));
}

// conformance: C96
#[test]
fn reader_that_asks_for_a_table_has_the_values_of_a_writer_of_a_map() {
    let options = named("kinds").kind(AddressVectorKind::Map);
    let mut world = world(options.clone());
    let asked = options.kind(AddressVectorKind::Table).read_only();
    let reading = world_end(&mut world, 3, asked);
    let peer = world.introduce(ALICE, BOB);
    let of = world.ends[BOB].endpoint.address();
    let reader = world.ends[reading].addresses.clone();
    assert_eq!((reader.address(peer), reader.find(&of)), (Some(of), Some(peer)));
    world.end(reading).send(Message::to(peer), pattern(200_000, 1), 7).unwrap();
    reader.refresh();
    world.end(BOB).receive(Receive::untagged(), vec![0; 200_000], 2).unwrap();
    assert_eq!(world.done(BOB).length, 200_000);
    assert_eq!(world.done(reading).peer, Some(peer));
}

// conformance: C96
#[test]
fn send_after_the_removal_of_its_peer_by_another_process_is_refused_or_goes_to_the_next_one() {
    for kind in [AddressVectorKind::Table, AddressVectorKind::Map] {
        let options = named("removed").kind(kind);
        let mut world = world(options.clone());
        let reading = world_end(&mut world, 3, options.read_only());
        let carol = world.add(crate::world::options(4));
        let to_bob = world.introduce(ALICE, BOB);
        let receive = |world: &World, end: usize| {
            world.end(end).receive(Receive::untagged(), vec![0; 5], 2).unwrap();
        };
        receive(&world, BOB);
        receive(&world, BOB);
        world.end(reading).send(Message::to(to_bob), "hello", 1).unwrap();
        assert_eq!(world.done(BOB).into_message(), *b"hello");
        world.done(reading);
        world.end(reading).send(Message::to(to_bob).tagged(1), pattern(200_000, 1), 7).unwrap();
        world.drive();
        // Nobody calls `refresh`.
        world.ends[ALICE].addresses.remove(to_bob).unwrap();
        let unknown = StartError::UnknownAddress(to_bob);
        let message = Message::to(to_bob);
        assert_eq!(world.end(reading).send(message, "x", 1).unwrap_err().error, unknown);
        assert_eq!(world.end(reading).inject(message, b"x"), Err(unknown.clone()));
        assert_eq!(world.failed(reading).error, OperationError::PeerRemoved);
        let to_carol = world.introduce(ALICE, carol);
        assert_eq!(to_carol == to_bob, kind == AddressVectorKind::Table);
        receive(&world, carol);
        world.end(reading).send(Message::to(to_carol), "carol", 3).unwrap();
        assert_eq!(world.done(carol).into_message(), *b"carol");
        assert_eq!(world.done(reading).peer, Some(to_carol));
        // The same after this process has learnt of the change.
        world.ends[reading].addresses.refresh();
        receive(&world, carol);
        world.end(reading).send(Message::to(to_carol), "again", 3).unwrap();
        assert_eq!(world.done(carol).into_message(), *b"again");
        world.done(reading);
        world.ends[ALICE].addresses.remove(to_carol).unwrap();
        let sent = world.end(reading).send(Message::to(to_carol), "x", 1);
        assert_eq!(sent.unwrap_err().error, StartError::UnknownAddress(to_carol));
        assert!(world.is_silent(BOB), "nothing went to Bob");
    }
}

/// How a writer inserts a peer again: kind of address vector, and whether another peer has taken its slot before.
const AGAIN: [(AddressVectorKind, bool); 3] = [
    (AddressVectorKind::Table, false),
    (AddressVectorKind::Table, true),
    (AddressVectorKind::Map, false),
];

/// Removes a peer of Alice's address vector and inserts it again. Returns its new value.
fn inserted_again(
    world: &World,
    peer: FiAddr,
    (kind, is_taken): (AddressVectorKind, bool),
) -> FiAddr {
    let addresses = &world.ends[ALICE].addresses;
    let of = addresses.remove(peer).unwrap();
    if is_taken {
        addresses.insert(address(9)).unwrap();
    }
    let again = addresses.insert(of).unwrap();
    assert_eq!(again == peer, kind == AddressVectorKind::Table && !is_taken);
    again
}

// conformance: C96
#[test]
fn peer_that_its_writer_removes_and_inserts_at_once_is_another_one_for_a_reader() {
    for (way, refreshes) in AGAIN.into_iter().flat_map(|way| [(way, true), (way, false)]) {
        let options = named("again").kind(way.0);
        let mut world = world(options.clone());
        let reading = world_end(&mut world, 3, options.read_only());
        let peer = world.introduce(ALICE, BOB);
        let begin = |world: &World, peer, context| {
            world.end(reading).send(Message::to(peer), pattern(200_000, 1), context).unwrap();
        };
        begin(&world, peer, 7);
        world.drive();
        let again = inserted_again(&world, peer, way);
        if refreshes {
            world.ends[reading].addresses.refresh();
        } else {
            begin(&world, again, 8);
        }
        let failed = world.failed(reading);
        assert_eq!((failed.error, failed.completion.context), (OperationError::PeerRemoved, 7));
        if !refreshes {
            // The endpoint has noticed: what is under way with the new peer goes on.
            world.ends[reading].addresses.refresh();
            world.drive();
            assert!(world.is_silent(reading), "{way:?}: the second message waits for its receiver");
        }
    }
}

// conformance: C96
#[test]
fn peer_of_a_slot_that_was_used_twice_since_is_ended_by_the_refresh_of_a_reader() {
    let options = named("twice").kind(AddressVectorKind::Map);
    let mut world = world(options.clone());
    let reading = world_end(&mut world, 3, options.read_only());
    let carol = world.add(crate::world::options(4));
    let addresses = world.ends[ALICE].addresses.clone();
    let first = world.introduce(ALICE, BOB);
    world.ends[reading].addresses.refresh();
    addresses.remove(first).unwrap();
    let second = world.introduce(ALICE, carol);
    world.end(reading).send(Message::to(second), pattern(200_000, 1), 7).unwrap();
    world.drive();
    addresses.remove(second).unwrap();
    addresses.insert(address(9)).unwrap();
    world.ends[reading].addresses.refresh();
    assert_eq!(world.failed(reading).error, OperationError::PeerRemoved);
}

// conformance: C96
#[test]
fn peer_inserted_again_is_known_to_all_endpoints_of_a_reader_though_one_used_it_before() {
    for way in AGAIN {
        let options = named("both").kind(way.0);
        let mut world = world(options.clone());
        let reading = world_end(&mut world, 3, options.read_only());
        let domain = world.ends[reading].domain.clone();
        let addresses = world.ends[reading].addresses.clone();
        let other = end_with(&mut world, 4, domain, addresses.clone());
        let peer = world.introduce(ALICE, BOB);
        let to_other = world.introduce(BOB, other);
        let hear = |world: &mut World, text: &'static str| {
            let to = world.ends[BOB].addresses.find(&world.ends[other].endpoint.address()).unwrap();
            world.end(other).receive(Receive::untagged(), vec![0; 5], 2).unwrap();
            world.end(BOB).send(Message::to(to), text, 1).unwrap();
            let received = world.done(other);
            world.done(BOB);
            (received.peer, received.into_message().into_vec())
        };
        addresses.refresh();
        assert_eq!(hear(&mut world, "hello"), (Some(peer), b"hello".to_vec()));
        world.ends[ALICE].addresses.remove(peer).unwrap();
        world.ends[BOB].addresses.remove(to_other).unwrap();
        addresses.refresh();
        let of = world.ends[BOB].endpoint.address();
        if way.1 {
            world.ends[ALICE].addresses.insert(address(9)).unwrap();
        }
        let again = world.ends[ALICE].addresses.insert(of).unwrap();
        world.introduce(BOB, other);
        world.end(BOB).receive(Receive::untagged(), vec![0; 5], 2).unwrap();
        world.end(reading).send(Message::to(again), "first", 1).unwrap();
        assert_eq!(world.done(BOB).into_message(), *b"first");
        world.done(reading);
        addresses.refresh();
        assert_eq!(hear(&mut world, "again"), (Some(again), b"again".to_vec()), "{way:?}");
    }
}

// conformance: C96
#[test]
fn peer_that_its_writer_inserts_while_it_is_there_stays_the_same_one_for_a_reader() {
    for refreshes in [true, false] {
        let options = named("known");
        let mut world = world(options.clone());
        let reading = world_end(&mut world, 3, options.read_only());
        let to_bob = world.introduce(ALICE, BOB);
        for context in [1, 2] {
            world.end(BOB).receive(Receive::untagged(), vec![0; 200_000], context).unwrap();
        }
        world.end(reading).send(Message::to(to_bob), pattern(200_000, 1), 7).unwrap();
        let of = world.ends[BOB].endpoint.address();
        let again = world.ends[ALICE].addresses.insert_many(&[of]);
        assert_eq!((again, world.introduce(ALICE, BOB)), (vec![Ok(to_bob)], to_bob));
        if refreshes {
            world.ends[reading].addresses.refresh();
        }
        world.end(reading).send(Message::to(to_bob), "second", 8).unwrap();
        for end in [BOB, reading] {
            let mut lengths = [world.done(end).length, world.done(end).length];
            lengths.sort_unstable();
            assert_eq!(lengths, [6, 200_000]);
        }
    }
}

// conformance: C96
#[test]
fn sender_whose_slot_has_another_peer_since_is_not_named_by_it_at_a_reader() {
    let options = named("slot").kind(AddressVectorKind::Table);
    let mut world = world(options.clone());
    let reading = world_end(&mut world, 3, options.read_only());
    let carol = world.add(crate::world::options(4));
    let (to_bob, to_reading) = (world.introduce(ALICE, BOB), world.introduce(BOB, reading));
    let hear = |world: &mut World, text: &'static str| {
        world.end(reading).receive(Receive::untagged(), vec![0; 8], 1).unwrap();
        world.end(BOB).send(Message::to(to_reading), text, 2).unwrap();
        let received = world.done(reading);
        assert_eq!(received.peer_address, Some(world.end(BOB).address()));
        received.peer
    };
    world.ends[reading].addresses.refresh();
    assert_eq!(hear(&mut world, "first"), Some(to_bob));
    world.ends[ALICE].addresses.remove(to_bob).unwrap();
    assert_eq!(hear(&mut world, "removed"), None);
    assert_eq!(world.introduce(ALICE, carol), to_bob);
    assert_eq!(hear(&mut world, "replaced"), None);
}

/// An end with an address vector of its own.
fn world_end(world: &mut World, connid: u32, vector: AddressVectorOptions) -> usize {
    let domain = world.fabric.domain().unwrap();
    let addresses = domain.address_vector_with(vector).unwrap();
    end_with(world, connid, domain, addresses)
}

fn end_with(world: &mut World, connid: u32, domain: Domain, addresses: AddressVector) -> usize {
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let endpoint = domain
        .endpoint(options(connid))
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(&addresses)
        .enable()
        .unwrap();
    world.ends.push(End { domain, queue, addresses, endpoint, entries: Default::default() });
    world.ends.len() - 1
}

/// The child of the next test: prints what it reads.
#[test]
#[ignore = "run by another test"]
fn child_reads_an_address_vector() {
    let name = std::env::var("EFA_TEST_VECTOR").unwrap();
    let world = World::pair(1);
    let options = AddressVectorOptions::new().name(name).read_only();
    let vector = world.ends[ALICE].domain.address_vector_with(options).unwrap();
    println!("read {} {:?}", vector.len(), vector.address(FiAddr(1)));
}

// conformance: C96
#[test]
fn another_process_reads_the_same_table() {
    let options = named("process");
    let name = options.name.clone().unwrap();
    let world = world(options);
    let writer = &world.ends[ALICE].addresses;
    (1..4).for_each(|number| assert!(writer.insert(address(number)).is_ok()));
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "address_vectors::child_reads_an_address_vector", "--ignored"])
        .args(["--nocapture"])
        .env("EFA_TEST_VECTOR", name)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while child.try_wait().unwrap().is_none() {
        if std::time::Instant::now() > deadline {
            child.kill().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = format!("read 3 {:?}", Some(address(2)));
    assert!(text.contains(&expected), "{text}");
}

// conformance: C91
#[test]
fn asynchronous_insertion_returns_at_once_and_is_one_event_with_a_result_for_each_address() {
    let mut world = World::pair(1);
    let vector = world.ends[ALICE].addresses.clone();
    let (alice, bob) = (world.end(ALICE).address(), world.end(BOB).address());
    assert_eq!(vector.insert_async(&[bob], 1), Err(InsertionError::NoEventQueue));
    let events = world.fabric.event_queue(EventQueueOptions::new().capacity(1)).unwrap();
    let elsewhere = World::pair(2).fabric.event_queue(EventQueueOptions::new()).unwrap();
    assert_eq!(vector.bind_event_queue(&elsewhere), Err(InsertionError::OtherFabric));
    vector.bind_event_queue(&events).unwrap();
    assert_eq!(vector.bind_event_queue(&events), Err(InsertionError::Twice));

    let zero = Address::from_bytes([0; 32]);
    vector.insert_async(&[bob, zero, bob, alice], 11).unwrap();
    vector.insert_async(&[], 12).unwrap();
    vector.insert_async(&[address(9)], 13).unwrap();
    assert!(vector.is_empty(), "nothing is inserted before the queue is read");
    let refused = world.end(ALICE).send(Message::to(FiAddr(0)), "x", 1).unwrap_err();
    assert_eq!(refused.error, StartError::UnknownAddress(FiAddr(0)));
    let bad = DeviceError::BadAddress { gid: zero.gid() };
    let expected: [(u64, Vec<Result<FiAddr, DeviceError>>); 3] = [
        (11, vec![Ok(FiAddr(0)), Err(bad), Ok(FiAddr(0)), Ok(FiAddr(1))]),
        (12, vec![]),
        (13, vec![Ok(FiAddr(2))]),
    ];
    for expected in expected {
        match events.read() {
            Some(Ok(ControlEvent::AddressesInserted { vector: 0, context, results })) => {
                assert_eq!((context, results), expected);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(events.read().is_none());
    world.end(BOB).receive(Receive::untagged(), vec![0; 5], 2).unwrap();
    world.end(ALICE).send(Message::to(FiAddr(0)), "hello", 1).unwrap();
    assert_eq!(world.done(BOB).into_message(), *b"hello");
}

// conformance: C91
#[test]
fn long_asynchronous_insertion_is_done_in_parts_and_none_of_a_dropped_vector_is_reported() {
    const COUNT: u32 = 10_000;
    let world = World::pair(1);
    let events = world.fabric.event_queue(EventQueueOptions::new()).unwrap();
    let vector = || {
        let options = AddressVectorOptions::new().context(77);
        let vector = world.ends[ALICE].domain.address_vector_with(options).unwrap();
        vector.bind_event_queue(&events).unwrap();
        vector
    };
    let numbered = |number: u32| {
        let mut bytes = [1; 32];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        Address::from_bytes(bytes)
    };
    let (dropped, vector) = (vector(), vector());
    let addresses: Vec<_> = (1..=COUNT).map(numbered).collect();
    dropped.insert_async(&addresses, 1).unwrap();
    vector.insert_async(&addresses, 2).unwrap();
    drop(dropped);
    let mut reads = 0;
    let event = loop {
        reads += 1;
        assert!(reads < 100);
        if let Some(event) = events.read() {
            break event.unwrap();
        }
    };
    assert!(reads > 5, "a read inserts some of them: {reads}");
    let ControlEvent::AddressesInserted { vector: 77, context: 2, results } = event else {
        panic!("{event:?}");
    };
    assert_eq!(results.len(), COUNT as usize);
    assert!(results.iter().zip(0..).all(|(result, index)| *result == Ok(FiAddr(index))));
    // A thread that waits is woken, and the descriptor is readable meanwhile.
    vector.insert_async(&addresses, 3).unwrap();
    let mut descriptor = [rustix::event::PollFd::new(&events, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut descriptor, Some(&Default::default())), Ok(1));
    let event = events.wait(std::time::Duration::from_secs(10)).unwrap();
    assert!(matches!(event, ControlEvent::AddressesInserted { context: 3, .. }), "{event:?}");
    assert!(events.read().is_none());
}

/// A receive context of a peer of a vector with 2 bits for them.
fn of_context(peer: FiAddr, context: usize) -> FiAddr {
    FiAddr(peer.0 | (context as u64) << 62)
}

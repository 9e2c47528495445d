//! Address vectors of each kind, and receive contexts of peers.

use efa::{
    Address, AddressVectorKind, AddressVectorOptions, CompletionQueueOptions, ContextError,
    DeviceError, Direction, Error, FiAddr, Message, OperationError, Receive, StartError, Wanted,
};

use crate::ends::End;
use crate::world::{ALICE, BOB, World, options, pattern};

/// Alice with an address vector of these options, and Bob.
fn world(vector: AddressVectorOptions) -> World {
    let mut world = World::empty();
    let domain = world.fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector_with(vector).unwrap();
    let endpoint = domain
        .endpoint(options(1))
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(&addresses)
        .enable()
        .unwrap();
    world.ends.push(End { domain, queue, addresses, endpoint, entries: Default::default() });
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
            for context in 0..4 {
                let to = vector.receive_context(peer, context).unwrap();
                assert_eq!(to, peer.receive_context(context, 2));
                assert_eq!(to.0, peer.0 | u64::from(context) << 62);
                assert_eq!(vector.address(to), Some(addresses[context as usize]));
                let end = context as usize + 1;
                world.end(end).receive(Receive::tagged(1), vec![0; 4], 5).unwrap();
                let data = [context as u8, round, 7, 7];
                world.end(ALICE).send(Message::to(to).tagged(1), data.to_vec(), 6).unwrap();
                assert_eq!(world.done(end).into_message(), data);
                assert_eq!(world.done(ALICE).peer, Some(to));
            }
        }
        let error = ContextError::TooGreat { context: 4, contexts: 4 };
        assert_eq!(vector.receive_context(peer, 4), Err(error));
        assert_eq!(vector.insert_contexts(&[address(1); 5]).unwrap_err().to_string(), {
            let limit = 4;
            DeviceError::LimitReached { object: "receive context", limit }.to_string()
        });
        assert!(vector.insert_contexts(&[]).is_err());
        // A peer of one context has no other.
        let one = vector.find(&address(9)).unwrap();
        let other = vector.receive_context(one, 1).unwrap();
        let sent = world.end(ALICE).send(Message::to(other), "x", 1);
        assert_eq!(sent.unwrap_err().error, StartError::UnknownAddress(other));
        // All contexts are removed with their peer.
        assert_eq!(vector.remove(peer.receive_context(1, 2)), None);
        assert_eq!(vector.remove(peer), Some(addresses[0]));
        for context in 0..4 {
            let gone = peer.receive_context(context, 2);
            let sent = world.end(ALICE).send(Message::to(gone), "x", 1);
            assert_eq!(sent.unwrap_err().error, StartError::UnknownAddress(gone));
        }
        let error = ContextError::UnknownAddress(peer);
        assert_eq!(vector.receive_context(peer, 0), Err(error));
    }
}

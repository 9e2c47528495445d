//! Unexpected messages that the application looks at, claims, receives and discards; cancelling by context.

use efa::{Bounds, Buffer, Capabilities, Kind, Message, OperationError, Receive, StartError};

use crate::world::{ALICE, BOB, World, options, pattern, with};

/// Lengths of every subprotocol: eager, medium, long-CTS.
const LENGTHS: [usize; 4] = [0, 100, 20_000, 200_000];

#[test]
fn peek_names_peer_tag_length_and_data_of_the_message_that_a_receive_gets() {
    let mut world = World::pair(1);
    let (to_bob, alice) = (world.introduce(ALICE, BOB), world.introduce(BOB, ALICE));
    for (tag, length) in (0..).zip(LENGTHS) {
        let message = Message::to(to_bob).tagged(tag).with_data(tag + 50);
        world.end(ALICE).send(message, pattern(length, tag), 1).unwrap();
    }
    world.end(ALICE).send(Message::to(to_bob), "untagged", 1).unwrap();
    world.drive();
    let bob = world.end(BOB);
    for (tag, length) in (0..).zip(LENGTHS) {
        for receive in [Receive::tagged(tag), Receive::tagged(tag).from(alice)] {
            let seen = bob.peek(receive).unwrap().unwrap();
            assert_eq!((seen.tag, seen.length), (Some(tag), length as u64));
            assert_eq!((seen.peer, seen.cq_data), (Some(alice), Some(tag + 50)));
            assert_eq!(seen.peer_address, Some(world.end(ALICE).address()));
        }
    }
    let untagged = bob.peek(Receive::untagged()).unwrap().unwrap();
    assert_eq!((untagged.tag, untagged.length, untagged.cq_data), (None, 8, None));
    assert_eq!(bob.peek(Receive::tagged(9)), Ok(None));
    for (tag, length) in (0..).zip(LENGTHS) {
        world.end(BOB).receive(Receive::tagged(tag), vec![0; length], tag).unwrap();
        world.drive();
        let received = world.done(BOB);
        assert_eq!((received.context, received.cq_data), (tag, Some(tag + 50)));
        assert_eq!(received.into_message(), pattern(length, tag));
    }
}

#[test]
fn claimed_message_is_received_into_its_buffer_and_by_no_other_receive() {
    let mut world = World::pair(2);
    let to_bob = world.introduce(ALICE, BOB);
    for length in LENGTHS {
        world.end(ALICE).send(Message::to(to_bob).tagged(7), pattern(length, 1), 1).unwrap();
        world.drive();
        let claim = world.end(BOB).claim(Receive::tagged(7)).unwrap().unwrap();
        assert_eq!(claim.message().length, length as u64);
        assert!(world.end(BOB).claim(Receive::tagged(7)).unwrap().is_none());
        world.end(BOB).receive(Receive::tagged(7), vec![0; 9], 99).unwrap();
        claim.receive(vec![0; length], 5).unwrap();
        let received = world.done(BOB);
        assert_eq!((received.context, received.kind, received.tag), (5, Kind::Receive, Some(7)));
        assert_eq!(received.into_message(), pattern(length, 1));
        assert_eq!(world.done(ALICE).context, 1);
        assert!(world.is_silent(BOB));
        assert!(world.end(BOB).cancel_context(99));
        assert_eq!(world.failed(BOB).error, OperationError::Cancelled);
    }
}

#[test]
fn message_is_discarded_when_its_claim_is_and_its_send_completes() {
    let mut world = World::pair(3);
    let to_bob = world.introduce(ALICE, BOB);
    for length in LENGTHS {
        for explicit in [true, false] {
            let message = Message::to(to_bob).delivery_complete();
            world.end(ALICE).send(message, pattern(length, 1), 1).unwrap();
            world.drive();
            let claim = world.end(BOB).claim(Receive::untagged()).unwrap().unwrap();
            if explicit {
                claim.discard();
            } else {
                drop(claim);
            }
            assert_eq!(world.done(ALICE).context, 1, "the sender is told that it is delivered");
            assert!(world.is_silent(BOB));
            assert_eq!(world.end(BOB).peek(Receive::untagged()), Ok(None));
        }
    }
    assert_eq!(world.end(BOB).statistics().delivered_bytes, 0);
}

#[test]
fn refused_claim_comes_back_with_its_buffer_and_can_be_received_later() {
    let mut world = World::pair(4);
    let to_bob = world.introduce(ALICE, BOB);
    let other = world.add(options(3));
    world.end(ALICE).send(Message::to(to_bob), "hello", 1).unwrap();
    world.drive();
    let claim = world.end(BOB).claim(Receive::untagged()).unwrap().unwrap();
    let foreign = world.ends[other].domain.register(vec![0; 5], efa::Access::default()).unwrap();
    let refused = claim.receive(foreign.slice(0..5).unwrap(), 2).unwrap_err();
    assert_eq!(refused.error, StartError::OtherDomain);
    assert!(refused.buffer.into_region().is_ok());
    refused.claim.receive(vec![0; 5], 3).unwrap();
    assert_eq!(world.done(BOB).into_message(), *b"hello");
}

#[test]
fn claim_ends_with_its_sender_or_its_endpoint() {
    let mut world = World::pair(5);
    let (to_bob, alice) = (world.introduce(ALICE, BOB), world.introduce(BOB, ALICE));
    for tag in 0..2 {
        world.end(ALICE).send(Message::to(to_bob).tagged(tag), pattern(200_000, 1), 1).unwrap();
    }
    world.end(ALICE).send(Message::to(to_bob).tagged(2), "complete", 1).unwrap();
    world.drive();
    let claim = |tag| world.end(BOB).claim(Receive::tagged(tag)).unwrap().unwrap();
    let (one, two, complete) = (claim(0), claim(1), claim(2));
    world.ends[BOB].addresses.remove(alice);
    let refused = one.receive(vec![0; 10], 3).unwrap_err();
    assert_eq!(
        (refused.error, refused.buffer),
        (StartError::ClaimEnded, Buffer::from(vec![0; 10]))
    );
    complete.receive(vec![0; 10], 4).unwrap();
    assert_eq!(world.done(BOB).into_message(), *b"complete");
    world.ends.truncate(1);
    let refused = two.receive(vec![0; 10], 3).unwrap_err();
    assert_eq!(refused.error, StartError::Closed);
}

#[test]
fn claimed_messages_count_as_unexpected_ones_of_their_sender() {
    let few = |config: &mut efa::Config| {
        config.bounds = Bounds::default().with(|bounds| bounds.unexpected = 30_000);
        (config.min_receive_buffers, config.max_receive_buffers) = (4, 4);
    };
    let mut world = World::pair_with(6, options(1), with(2, few));
    let to_bob = world.introduce(ALICE, BOB);
    let mut claims = Vec::new();
    for i in 0..20 {
        world.end(ALICE).send(Message::to(to_bob), pattern(8000, i), i).unwrap();
        world.drive_for(std::time::Duration::from_millis(2));
        claims.extend(world.end(BOB).claim(Receive::untagged()).unwrap());
    }
    assert!((1..12).contains(&claims.len()), "{} claims of 8,000 bytes", claims.len());
    drop(claims);
    while world.ends[ALICE].entries.len() < 20 {
        world.drive_for(std::time::Duration::from_millis(2));
        drop(world.end(BOB).claim(Receive::untagged()).unwrap());
    }
    assert!(world.ends[ALICE].entries.iter().all(Result::is_ok), "back-pressure ended");
}

#[test]
fn peek_needs_what_the_receive_needs() {
    let capabilities = Capabilities::MSG | Capabilities::RECV;
    let mut world = World::pair_with(7, options(1), options(2).capabilities(capabilities));
    let (to_bob, alice) = (world.introduce(ALICE, BOB), world.introduce(BOB, ALICE));
    let bob = world.end(BOB);
    let disabled = |wanted| Err(StartError::Disabled(wanted));
    assert_eq!(bob.peek(Receive::tagged(1)), disabled(Capabilities::TAGGED));
    assert_eq!(bob.peek(Receive::untagged().from(alice)), disabled(Capabilities::DIRECTED_RECV));
    world.end(ALICE).send(Message::to(to_bob), "x", 1).unwrap();
    world.drive();
    let seen = world.end(BOB).peek(Receive::untagged()).unwrap().unwrap();
    assert_eq!((seen.peer, seen.peer_address), (None, None), "the endpoint lacks SOURCE");
    let bob = world.end(BOB);
    bob.close(std::time::Duration::ZERO).ok();
    assert_eq!(bob.peek(Receive::untagged()), Err(StartError::Closed));
    assert_eq!(bob.claim(Receive::untagged()).unwrap_err(), StartError::Closed);
    assert!(!bob.cancel_context(0));
}

#[test]
fn receive_is_cancelled_by_context_tagged_before_untagged_and_in_the_order_of_posting() {
    let mut world = World::pair(8);
    for (receive, length) in
        [(Receive::untagged(), 1), (Receive::tagged(1), 2), (Receive::tagged(0), 3)]
    {
        world.end(BOB).receive(receive, vec![0; length], 5).unwrap();
    }
    world.end(BOB).receive(Receive::tagged(3), vec![0; 4], 6).unwrap();
    for length in [2, 3, 1] {
        assert!(world.end(BOB).cancel_context(5));
        let failed = world.failed(BOB);
        assert_eq!((failed.error, failed.completion.context), (OperationError::Cancelled, 5));
        assert_eq!(failed.completion.buffer.len(), length);
    }
    assert!(!world.end(BOB).cancel_context(5));
    assert!(world.is_silent(BOB));
}

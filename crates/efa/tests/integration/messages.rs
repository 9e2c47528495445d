//! Messages: tagged and not, short and long, and which receive gets which.

use efa::{Kind, Message, OperationError, Receive, Subprotocol};

use crate::world::{ALICE, BOB, World, options, pattern, with};

/// Lengths around every boundary between subprotocols.
const LENGTHS: [usize; 12] =
    [0, 1, 64, 4096, 8760, 8928, 8929, 17_000, 65_535, 65_536, 65_537, 1_000_000];

// conformance: C71 C119
#[test]
fn messages_of_every_length_arrive_whole() {
    let mut world = World::pair(1);
    let to_bob = world.introduce(ALICE, BOB);
    for (salt, length) in LENGTHS.into_iter().enumerate() {
        let data = pattern(length, salt as u64);
        let (message, receive) = match salt % 2 {
            0 => (Message::to(to_bob), Receive::untagged()),
            _ => (Message::to(to_bob).tagged(7), Receive::tagged(7)),
        };
        let (sent, received) = world.transfer(message, data.clone(), receive, length + 10);
        assert_eq!((sent.context, sent.kind, sent.length), (11, Kind::Send, length as u64));
        assert_eq!(sent.buffer, data);
        assert_eq!(sent.peer, Some(to_bob));
        assert_eq!(
            (received.context, received.kind, received.length),
            (22, Kind::Receive, length as u64)
        );
        assert_eq!(received.tag, (salt % 2 == 1).then_some(7));
        assert_eq!(received.cq_data, None);
        assert_eq!(received.subprotocol, sent.subprotocol);
        assert_eq!(received.buffer.len(), length + 10, "the whole buffer comes back");
        assert_eq!(received.into_message(), data);
    }
}

#[test]
fn length_decides_how_a_message_travels() {
    let mut world = World::pair_with(2, with(1, |c| c.max_medium = 20_000), options(2));
    let to_bob = world.introduce(ALICE, BOB);
    for (length, subprotocol) in
        [(100, Subprotocol::Eager), (20_000, Subprotocol::Medium), (20_001, Subprotocol::LongCts)]
    {
        let (sent, received) =
            world.transfer(Message::to(to_bob), pattern(length, 1), Receive::untagged(), length);
        assert_eq!(sent.subprotocol, Some(subprotocol));
        assert_eq!(received.subprotocol, Some(subprotocol));
    }
}

#[test]
fn data_for_the_completion_comes_with_tagged_and_untagged_messages_of_any_length() {
    let mut world = World::pair(3);
    let to_bob = world.introduce(ALICE, BOB);
    for length in [0, 100, 40_000, 200_000] {
        for (message, receive) in [
            (Message::to(to_bob), Receive::untagged()),
            (Message::to(to_bob).tagged(9), Receive::tagged(9)),
        ] {
            let data = 0xdada_0000_0000_0000 | length as u64;
            let (sent, received) =
                world.transfer(message.with_data(data), pattern(length, 5), receive, length);
            assert_eq!(received.cq_data, Some(data));
            assert_eq!(sent.cq_data, None, "it is for the receiver");
            assert_eq!(received.into_message(), pattern(length, 5));
        }
    }
}

// conformance: C110
#[test]
fn tags_match_but_for_the_bits_to_ignore() {
    let cases = [
        (0, 0, 0, true),
        (7, 7, 0, true),
        (7, 6, 0, false),
        (7, 6, 1, true),
        (0x71, 0x7f, 0x0f, true),
        (0x81, 0x7f, 0x0f, false),
        (1 << 63, 0, 0, false),
        (1 << 63, 0, 1 << 63, true),
        (0xdead_beef, 0, u64::MAX, true),
        (u64::MAX, u64::MAX, 0, true),
    ];
    for (sent, posted, ignore, expected) in cases {
        assert_eq!(sent | ignore == posted | ignore, expected, "the guide's own words");
        let mut world = World::pair(4);
        let to_bob = world.introduce(ALICE, BOB);
        world.end(BOB).receive(Receive::masked(posted, ignore), vec![0; 8], 1).unwrap();
        world.end(ALICE).send(Message::to(to_bob).tagged(sent), "x", 2).unwrap();
        world.drive();
        match expected {
            true => {
                let received = world.done(BOB);
                assert_eq!(received.tag, Some(sent), "the sender's tag, all of it");
            }
            false => assert!(world.is_silent(BOB), "{sent:x} | {ignore:x} took {posted:x}"),
        }
    }
}

#[test]
fn the_same_tag_may_be_posted_and_sent_many_times() {
    let mut world = World::pair(5);
    let to_bob = world.introduce(ALICE, BOB);
    for i in 0..50 {
        world.end(BOB).receive(Receive::tagged(3), vec![0; 8], i).unwrap();
        world.end(ALICE).send(Message::to(to_bob).tagged(3), vec![i as u8], i).unwrap();
    }
    for i in 0..50 {
        let received = world.done(BOB);
        assert_eq!(received.context, i);
        assert_eq!(received.into_message(), [i as u8]);
    }
}

#[test]
fn tagged_and_untagged_messages_never_meet() {
    let mut world = World::pair(6);
    let to_bob = world.introduce(ALICE, BOB);
    world.end(BOB).receive(Receive::masked(0, u64::MAX), vec![0; 8], 1).unwrap();
    world.end(ALICE).send(Message::to(to_bob), "untagged", 2).unwrap();
    assert!(world.is_silent(BOB));
    world.end(BOB).receive(Receive::untagged(), vec![0; 8], 3).unwrap();
    assert_eq!(world.done(BOB).context, 3);
    world.end(BOB).receive(Receive::untagged(), vec![0; 8], 4).unwrap();
    world.end(ALICE).send(Message::to(to_bob).tagged(0), "tagged", 5).unwrap();
    assert_eq!(world.done(BOB).context, 1);
    assert!(world.is_silent(BOB));
}

// The guide's example: a buffer of 4 KB and one of 64 KB, for a short message and a long one.
// conformance: C109
#[test]
fn messages_are_matched_in_the_order_of_sending() {
    for seed in 0..20 {
        let mut world = World::pair(seed);
        let to_bob = world.introduce(ALICE, BOB);
        for (context, room) in [(1, 4096), (2, 65_536), (3, 4096), (4, 65_536)] {
            world.end(BOB).receive(Receive::untagged(), vec![0; room], context).unwrap();
        }
        for (context, length) in [(1, 4096), (2, 65_536), (3, 4000), (4, 65_000)] {
            let data = pattern(length, context);
            world.end(ALICE).send(Message::to(to_bob), data, context).unwrap();
        }
        let mut received: Vec<_> = (0..4).map(|_| world.done(BOB)).collect();
        received.sort_by_key(|completion| completion.context);
        for (completion, length) in received.into_iter().zip([4096, 65_536, 4000, 65_000]) {
            let salt = completion.context;
            assert_eq!(completion.into_message(), pattern(length, salt));
        }
    }
}

#[test]
fn messages_that_come_before_their_receive_wait_for_it() {
    let mut world = World::pair(7);
    let to_bob = world.introduce(ALICE, BOB);
    for (i, length) in LENGTHS.into_iter().enumerate() {
        let data = pattern(length, i as u64);
        world.end(ALICE).send(Message::to(to_bob).tagged(i as u64), data, 0).unwrap();
    }
    world.drive();
    // In another order than they came in.
    for (i, length) in LENGTHS.into_iter().enumerate().rev() {
        world.end(BOB).receive(Receive::tagged(i as u64), vec![0; length], 0).unwrap();
        let received = world.done(BOB);
        assert_eq!(received.tag, Some(i as u64));
        assert_eq!(received.into_message(), pattern(length, i as u64));
    }
}

// conformance: C126
#[test]
fn a_short_message_may_complete_before_a_long_one_sent_earlier() {
    let mut world = World::pair(8);
    let to_bob = world.introduce(ALICE, BOB);
    world.end(BOB).receive(Receive::tagged(1), vec![0; 1_000_000], 1).unwrap();
    world.end(BOB).receive(Receive::tagged(2), vec![0; 8], 2).unwrap();
    world.end(ALICE).send(Message::to(to_bob).tagged(1), pattern(1_000_000, 1), 1).unwrap();
    world.end(ALICE).send(Message::to(to_bob).tagged(2), "short", 2).unwrap();
    let order = [world.done(BOB).context, world.done(BOB).context];
    assert_eq!(order, [2, 1]);
    let order = [world.done(ALICE).context, world.done(ALICE).context];
    assert_eq!(order, [2, 1]);
}

// conformance: A108
#[test]
fn a_message_longer_than_its_buffer_is_cut_there_and_nowhere_else() {
    let mut world = World::pair(9);
    let to_bob = world.introduce(ALICE, BOB);
    for (length, room) in [(100, 64), (40_000, 100), (200_000, 70_000), (9, 0)] {
        let around = vec![0xcc; room + 64];
        let region = world.ends[BOB].domain.register(around, efa::Access::default()).unwrap();
        let buffer = region.slice(32..32 + room).unwrap();
        world.end(BOB).receive(Receive::untagged(), buffer, 1).unwrap();
        let data = pattern(length, 3);
        world.end(ALICE).send(Message::to(to_bob).with_data(5), data.clone(), 2).unwrap();
        let failed = world.failed(BOB);
        let (length, capacity) = (length as u64, room as u64);
        assert_eq!(failed.error, OperationError::Truncated { length, capacity });
        assert_eq!(failed.completion.length, capacity);
        assert_eq!(failed.completion.cq_data, Some(5));
        assert_eq!(failed.completion.into_message(), data[..room]);
        let mut bytes = vec![0; room + 64];
        region.read(0, &mut bytes);
        assert!(bytes[..32].iter().chain(&bytes[32 + room..]).all(|canary| *canary == 0xcc));
        assert_eq!(world.done(ALICE).length, length, "the sender can't know");
    }
}

// conformance: C120
#[test]
fn kinds_of_transfer_may_be_mixed_with_one_peer() {
    let mut world = World::pair_with(10, options(1), with(2, |c| c.min_multi_receive = 1));
    let to_bob = world.introduce(ALICE, BOB);
    let (alice, bob) = (world.end(ALICE), world.end(BOB));
    bob.receive_many(None, vec![0; 64_000], 100).unwrap();
    for i in 0..20_u64 {
        bob.receive(Receive::tagged(i), vec![0; 100_000], i).unwrap();
        let length = [10, 30_000, 100_000][i as usize % 3];
        alice.send(Message::to(to_bob).tagged(i), pattern(length, i), i).unwrap();
        alice.inject(Message::to(to_bob).with_data(i), &pattern(50, 1000 + i)).unwrap();
        alice.send(Message::to(to_bob), pattern(3000, 2000 + i), i).unwrap();
    }
    let (mut tagged, mut untagged) = (0, 0);
    for _ in 0..60 {
        let received = world.done(BOB);
        match (received.kind, received.cq_data) {
            (Kind::Receive, None) => {
                let i = received.context;
                assert_eq!(
                    received.into_message(),
                    pattern([10, 30_000, 100_000][i as usize % 3], i)
                );
                tagged += 1;
            }
            (Kind::MultiReceive, Some(i)) => {
                assert_eq!(i, untagged / 2, "in order");
                assert_eq!(received.into_message(), pattern(50, 1000 + i));
                untagged += 1;
            }
            (Kind::MultiReceive, None) => {
                assert_eq!(received.into_message(), pattern(3000, 2000 + untagged / 2));
                untagged += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((tagged, untagged), (20, 40));
}

//! Messages: tagged and untagged, of all lengths, and which receive they match.

use efa::{Kind, Message, OperationError, Receive, Subprotocol};

use crate::world::{ALICE, BOB, World, options, pattern, with};

/// Lengths around every boundary between subprotocols.
const LENGTHS: [usize; 12] =
    [0, 1, 64, 4096, 8760, 8928, 8929, 17_000, 65_535, 65_536, 65_537, 1_000_000];

// conformance: C71 C119
#[test]
fn messages_of_every_length_arrive_complete() {
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
        assert_eq!(received.buffer.len(), length + 10, "the complete buffer comes back");
        assert_eq!(received.into_message(), data);
    }
}

#[test]
fn message_length_selects_the_subprotocol() {
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
fn cq_data_arrives_with_messages_of_any_length() {
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
            assert_eq!(sent.cq_data, None, "only the receiver gets it");
            assert_eq!(received.into_message(), pattern(length, 5));
        }
    }
}

// conformance: C110
#[test]
fn tags_match_in_all_bits_that_are_not_ignored() {
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
        assert_eq!(sent | ignore == posted | ignore, expected, "as libfabric's guide defines it");
        let mut world = World::pair(4);
        let to_bob = world.introduce(ALICE, BOB);
        world.end(BOB).receive(Receive::masked(posted, ignore), vec![0; 8], 1).unwrap();
        world.end(ALICE).send(Message::to(to_bob).tagged(sent), "x", 2).unwrap();
        world.drive();
        match expected {
            true => {
                let received = world.done(BOB);
                assert_eq!(received.tag, Some(sent), "the full tag of the sender");
            }
            false => {
                assert!(world.is_silent(BOB), "tag {sent:x} matched {posted:x} ignoring {ignore:x}")
            }
        }
    }
}

#[test]
fn messages_with_equal_tags_match_receives_in_order() {
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
fn tagged_and_untagged_messages_never_match_each_other() {
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

// The example of libfabric's programmer's guide: buffers of 4 KB and 64 KB, for a short and a long message.
// conformance: C109
#[test]
fn messages_match_receives_in_the_order_of_sending() {
    for seed in 0..20 {
        let mut world = World::pair(seed);
        let to_bob = world.introduce(ALICE, BOB);
        for (context, capacity) in [(1, 4096), (2, 65_536), (3, 4096), (4, 65_536)] {
            world.end(BOB).receive(Receive::untagged(), vec![0; capacity], context).unwrap();
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
fn unexpected_messages_match_receives_posted_later() {
    let mut world = World::pair(7);
    let to_bob = world.introduce(ALICE, BOB);
    for (i, length) in LENGTHS.into_iter().enumerate() {
        let data = pattern(length, i as u64);
        world.end(ALICE).send(Message::to(to_bob).tagged(i as u64), data, 0).unwrap();
    }
    world.drive();
    // Receives are posted in reverse order.
    for (i, length) in LENGTHS.into_iter().enumerate().rev() {
        world.end(BOB).receive(Receive::tagged(i as u64), vec![0; length], 0).unwrap();
        let received = world.done(BOB);
        assert_eq!(received.tag, Some(i as u64));
        assert_eq!(received.into_message(), pattern(length, i as u64));
    }
}

// conformance: C126
#[test]
fn short_message_may_complete_before_an_earlier_long_one() {
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
fn truncated_message_fills_its_buffer_and_writes_nothing_outside() {
    let mut world = World::pair(9);
    let to_bob = world.introduce(ALICE, BOB);
    for (length, capacity) in [(100, 64), (40_000, 100), (200_000, 70_000), (9, 0)] {
        let around = vec![0xcc; capacity + 64];
        let region = world.ends[BOB].domain.register(around, efa::Access::default()).unwrap();
        let buffer = region.slice(32..32 + capacity).unwrap();
        world.end(BOB).receive(Receive::untagged(), buffer, 1).unwrap();
        let data = pattern(length, 3);
        world.end(ALICE).send(Message::to(to_bob).with_data(5), data.clone(), 2).unwrap();
        let failed = world.failed(BOB);
        let (whole, part) = (length as u64, capacity as u64);
        assert_eq!(failed.error, OperationError::Truncated { length: whole, capacity: part });
        assert_eq!(failed.completion.length, part);
        assert_eq!(failed.completion.cq_data, Some(5));
        assert_eq!(failed.completion.into_message(), data[..capacity]);
        let mut bytes = vec![0; capacity + 64];
        region.read(0, &mut bytes);
        assert!(bytes[..32].iter().chain(&bytes[32 + capacity..]).all(|canary| *canary == 0xcc));
        assert_eq!(world.done(ALICE).length, whole, "the send completes without error");
    }
}

// conformance: C120
#[test]
fn tagged_untagged_injected_and_multi_receive_messages_can_be_mixed() {
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

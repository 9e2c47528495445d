//! Unexpected messages that the application looks at, claims, receives and discards.

use efa_proto::PacketType;
use efa_rdm::{
    Accept, Bounds, ClaimId, Config, Event, Level, Message, OperationError, PeerId, StartError,
    UnexpectedMessage,
};

use crate::longread::Memory;
use crate::peer_end::operations::{
    Kind, LONG, MEDIUM, Operation, RECEIVE, Receive, SOURCE, TAG, operations,
};
use crate::world::{Net, World, pattern};

const TAGGED: Accept = Accept::Tagged { source: None, tag: TAG, ignore: 0 };
const UNTAGGED: Accept = Accept::Untagged { source: None };

fn messages() -> impl Iterator<Item = Operation> {
    operations().into_iter().filter(Operation::is_message)
}

impl Operation {
    /// Sends it, and claims it as soon as it can be, but not before `moment` steps.
    fn claimed(&self, moment: usize) -> (Net<Memory>, ClaimId) {
        let mut world = self.world(Bounds::default());
        for (from, to) in [(0, 1), (1, 0)] {
            world.receive_into(to, Memory::Heap(vec![0]), 0);
            world.send(from, to, Memory::Heap(vec![1]), 0);
            world.drive();
            let (received, sent) = (world.receive_done(to), world.send_done(from));
            assert_eq!((received.result, sent.result), (Ok(()), Ok(())));
        }
        let _memory = self.start(&mut world, Receive::None);
        (0..moment).for_each(|_| world.step());
        for _ in 0..10_000 {
            let peeked = world.endpoint(1).peek(TAGGED).unwrap();
            let claimed = world.endpoint(1).claim(TAGGED).unwrap();
            assert_eq!(peeked, claimed.map(|(_, message)| message));
            if let Some((claim, message)) = claimed {
                let (tag, length) = (Some(TAG), self.length as u64);
                let peer = world.peer(1, 0);
                assert_eq!(message, UnexpectedMessage { peer, tag, length, cq_data: None });
                assert_eq!(world.endpoint(1).claim(TAGGED), Ok(None), "only once");
                return (world, claim);
            }
            world.step();
        }
        panic!("{self:?} doesn't arrive");
    }

    /// Steps until nothing moves any more.
    fn moments(&self) -> impl Iterator<Item = usize> {
        let (mut world, _) = self.claimed(0);
        let mut steps = 0;
        while world.network.next_event().is_some() && steps < 2000 {
            world.step();
            steps += 1;
        }
        (0..steps + 10).step_by((steps / 8).max(1))
    }
}

/// The sender's operation is complete, and both sides have nothing left of it.
fn check_sender(operation: &Operation, world: &mut Net<Memory>) {
    if operation.kind != Kind::Inject {
        assert_eq!(world.send_done(0).result, Ok(()), "{operation:?}");
    }
    world.assert_clean();
    for end in 0..2 {
        assert!(world.endpoint(end).is_quiet(), "{operation:?}");
        let held = world.endpoint(end).packets_held();
        assert_eq!((held.sending, held.held, held.unexpected_bytes), (0, 0, 0), "{operation:?}");
    }
}

#[test]
fn discarded_message_ends_well_at_its_sender_whenever_it_is_discarded() {
    for operation in messages() {
        for moment in operation.moments() {
            let (mut world, claim) = operation.claimed(0);
            (0..moment).for_each(|_| world.step());
            assert!(world.endpoint(1).discard(claim));
            assert!(!world.endpoint(1).discard(claim), "only once");
            world.drive();
            check_sender(&operation, &mut world);
            operation.carry_out(&mut world);
        }
    }
}

#[test]
fn claimed_message_is_received_complete_whenever_its_buffer_comes() {
    for operation in messages() {
        for moment in operation.moments() {
            let (mut world, claim) = operation.claimed(0);
            // It matches neither a receive that is posted now nor another claim.
            world.endpoint(1).receive(TAGGED, Memory::Heap(vec![0]), 99).unwrap();
            (0..moment).for_each(|_| world.step());
            let buffer = Memory::Heap(vec![0; operation.length]);
            world.endpoint(1).receive_claimed(claim, buffer, RECEIVE).unwrap();
            let again = world.endpoint(1).receive_claimed(claim, Memory::Heap(vec![7]), 0);
            let refused = again.unwrap_err();
            assert_eq!(refused.error, StartError::ClaimEnded);
            assert_eq!(refused.buffer.bytes(), [7]);
            world.drive();
            let received = world.receive_done(1);
            assert_eq!((received.result, received.context), (Ok(()), RECEIVE), "{operation:?}");
            assert_eq!((received.tag, received.tagged), (TAG, true));
            assert!(received.buffer.bytes() == pattern(operation.length, SOURCE), "other bytes");
            check_sender(&operation, &mut world);
        }
    }
}

#[test]
fn claimed_message_truncates_to_a_short_buffer() {
    for operation in messages().filter(|operation| operation.length > 50) {
        let (mut world, claim) = operation.claimed(0);
        world.endpoint(1).receive_claimed(claim, Memory::Heap(vec![0; 50]), RECEIVE).unwrap();
        world.drive();
        let received = world.receive_done(1);
        let (length, capacity) = (operation.length as u64, 50);
        assert_eq!(received.result, Err(OperationError::Truncated { length, capacity }));
        assert!(received.buffer.bytes() == pattern(operation.length, SOURCE)[..50]);
        check_sender(&operation, &mut world);
    }
}

/// Whether `end_peer` leaves the claimed message of `length` bytes to be received.
fn survives(length: usize, end_peer: impl Fn(&mut World, PeerId)) -> bool {
    let config = Config::default().with(|config| {
        config.max_medium = 40_000;
        config.bounds = Bounds::default().with(|bounds| bounds.unexpected_per_peer = 200_000);
    });
    let mut world = World::pair_with(3, Config::default(), config);
    let peer = world.peer(1, 0);
    world.tagged_send(0, 1, TAG, pattern(length, 1));
    world.drive();
    let (claim, _) = world.endpoint(1).claim(TAGGED).unwrap().unwrap();
    assert!(world.endpoint(1).packets_held().unexpected_bytes > 0);
    end_peer(&mut world, peer);
    let received = world.endpoint(1).receive_claimed(claim, vec![0; length], RECEIVE);
    assert_eq!(world.endpoint(1).packets_held().unexpected_bytes, 0);
    assert_eq!(world.endpoint(1).packets_held().held, 0);
    assert!(!world.endpoint(1).discard(claim));
    match received {
        Ok(()) => {
            assert_eq!(world.receive_done(1).buffer, pattern(length, 1));
            true
        }
        Err(refused) => {
            assert_eq!(refused.error, StartError::ClaimEnded);
            false
        }
    }
}

#[test]
fn claimed_message_ends_with_its_sender_unless_it_is_complete() {
    let remove = |world: &mut World, peer| world.endpoint(1).remove_peer(peer);
    assert!(survives(100, remove));
    assert!(survives(MEDIUM, remove));
    assert!(!survives(LONG, remove), "most of it was never sent");
}

#[test]
fn claimed_messages_are_charged_to_their_sender_which_is_excluded_beyond_the_bound() {
    let exceed = |world: &mut World, _| {
        for salt in 0..40 {
            world.send(0, 1, pattern(8000, salt), salt);
        }
        world.drive();
        let excluded = |event: &Event| matches!(event, Event::PeerExcluded { .. });
        assert!(world.ends[1].events.iter().any(excluded));
    };
    assert!(!survives(100, exceed));
    // Claims alone exceed it too.
    let config = Config::default().with(|config| {
        config.bounds = Bounds::default().with(|bounds| bounds.unexpected_per_peer = 50_000);
    });
    let mut world = World::pair_with(4, Config::default(), config);
    let mut claims = 0;
    for salt in 0..20 {
        world.send(0, 1, pattern(8000, salt), salt);
        world.drive();
        claims += usize::from(world.endpoint(1).claim(UNTAGGED).unwrap().is_some());
    }
    assert!((2..6).contains(&claims), "{claims} of 8,000 bytes fit");
    assert_eq!(world.endpoint(1).packets_held().unexpected_bytes, 0);
}

#[test]
fn peek_finds_the_message_that_a_receive_would_get() {
    let mut world = World::new(efa_sim::local::LocalOptions::default());
    for _ in 0..3 {
        world.add(Config::default());
    }
    let (one, two) = (world.peer(0, 1), world.peer(0, 2));
    let mut send = |from: usize, tag, cq_data, length| {
        let peer = world.peer(from, 0);
        let buffer = pattern(length, 1);
        let message = Message { peer, tag, cq_data, level: Level::Transmit, buffer, context: 0 };
        world.endpoint(from).send(message).unwrap();
        world.drive();
    };
    send(1, Some(0x11), None, 10);
    send(2, Some(0x11), Some(u64::MAX), 20);
    send(1, None, Some(5), 30);
    send(2, Some(0x12), None, 200_000);
    let tagged = |source, tag, ignore| Accept::Tagged { source, tag, ignore };
    let found = |peer, tag, cq_data, length| Some(UnexpectedMessage { peer, tag, length, cq_data });
    let cases = [
        (tagged(None, 0x11, 0), found(one, Some(0x11), None, 10)),
        (tagged(Some(two), 0x11, 0), found(two, Some(0x11), Some(u64::MAX), 20)),
        (tagged(None, 0x12, 0), found(two, Some(0x12), None, 200_000)),
        (tagged(None, 0, u64::MAX), found(one, Some(0x11), None, 10)),
        (tagged(Some(two), 0, u64::MAX), found(two, Some(0x11), Some(u64::MAX), 20)),
        (tagged(None, 0x13, 0), None),
        (tagged(Some(one), 0x12, 0), None),
        (UNTAGGED, found(one, None, Some(5), 30)),
        (Accept::Untagged { source: Some(two) }, None),
    ];
    for _ in 0..2 {
        for (accept, expected) in cases {
            assert_eq!(world.endpoint(0).peek(accept), Ok(expected), "{accept:?}");
        }
    }
    for (accept, expected) in cases {
        let Some(expected) = expected else { continue };
        if world.endpoint(0).peek(accept) != Ok(Some(expected)) {
            continue;
        }
        let length = expected.length as usize;
        world.endpoint(0).receive(accept, vec![0; length], 7).unwrap();
        world.drive();
        let received = world.receive_done(0);
        let (peer, tag) = (Some(expected.peer), expected.tag.unwrap_or(0));
        assert_eq!((received.peer, received.tag), (peer, tag));
        assert_eq!((received.length, received.cq_data), (expected.length, expected.cq_data));
    }
    assert_eq!(world.endpoint(0).peek(tagged(None, 0, u64::MAX)), Ok(None));
}

#[test]
fn discarded_long_message_is_not_kept_while_it_arrives() {
    let mut world = World::pair(9);
    world.tagged_send(0, 1, TAG, pattern(4 << 20, 1));
    world.drive();
    let (claim, message) = world.endpoint(1).claim(TAGGED).unwrap().unwrap();
    assert_eq!(message.length, 4 << 20);
    assert!(world.endpoint(1).discard(claim));
    for _ in 0..100_000 {
        world.step();
        assert_eq!(world.endpoint(1).packets_held().unexpected_bytes, 0);
        if !world.ends[0].sends.is_empty() {
            break;
        }
    }
    assert_eq!(world.send_done(0).result, Ok(()));
    assert!(world.endpoint(0).statistics().sent.of(PacketType::CtsData) > 100);
    assert!(world.take_receives(1).is_empty());
    assert_eq!(world.endpoint(1).statistics().delivered_bytes, 0);
}

#[test]
fn receive_is_cancelled_by_its_context_the_first_tagged_one_first() {
    let mut world = World::pair(5);
    world.receive(1, 8, 5);
    for (tag, context) in [(1, 4), (2, 5), (3, 5), (4, 6)] {
        let accept = Accept::Tagged { source: None, tag, ignore: 0 };
        world.endpoint(1).receive(accept, vec![0; 8], context).unwrap();
    }
    world.endpoint(1).receive_many(None, vec![0; 10_000], 6).unwrap();
    let mut cancelled = Vec::new();
    for context in [5, 5, 5, 5, 7, 6, 6, 6, 4] {
        let found = world.endpoint(1).cancel_context(context);
        let ended = world.take_receives(1).pop();
        assert_eq!(found, ended.is_some());
        if let Some(ended) = ended {
            assert_eq!(ended.result, Err(OperationError::Cancelled));
            assert_eq!(ended.context, context);
            cancelled.push((context, ended.tag, ended.buffer.len()));
        }
    }
    let expected = [(5, 2, 8), (5, 3, 8), (5, 0, 8), (6, 4, 8), (6, 0, 10_000), (4, 1, 8)];
    assert_eq!(cancelled, expected);
}

//! Message order (section 3.2): ids, reordering, wraparound.

use efa_device::Status;
use efa_handshake::Release;
use efa_proto::{Header, MsgId, ReqOptions, Rtm, RtmKind};
use efa_rdm::{Config, DropReason, Event, Level, Message, StartError};

use crate::world::{World, pattern};

// conformance: A9 A100 A7
#[test]
fn messages_of_all_sizes_match_in_the_order_of_sending() {
    for seed in 0..30 {
        let mut world = World::pair(seed);
        let sizes = [0, 20_000, 10, 100_000, 8_900, 65_536, 1, 66_000, 30, 9_000];
        let size = |i: u64| sizes[i as usize % sizes.len()];
        for i in 0..60 {
            world.send(0, 1, pattern(size(i), i), i);
        }
        for i in 0..60 {
            if i == 20 {
                world.drive();
            }
            world.receive(1, 100_000, i);
        }
        world.drive();
        let mut received: Vec<_> = world.ends[1].receives.drain(..).collect();
        assert_eq!(received.len(), 60);
        received.sort_by_key(|received| received.context);
        for received in received {
            let i = received.context;
            assert_eq!(received.length, size(i) as u64, "seed {seed}, message {i}");
            assert!(received.buffer[..size(i)] == pattern(size(i), i));
        }
        assert!(world.endpoint(1).statistics().reordered > 0, "seed {seed} must reorder");
        assert_eq!(world.ends[0].sends.drain(..).count(), 60);
        world.assert_clean();
    }
}

// conformance: A99
#[test]
fn order_is_kept_across_the_wrap_of_message_ids() {
    for seed in 0..30 {
        let config = Config::default().with(|config| config.first_msg_id = u32::MAX - 3);
        let mut world = World::pair_with(seed, config.clone(), config);
        for i in 0..16 {
            world.receive(1, 20_000, i);
            world.send(0, 1, pattern(if i % 2 == 0 { 100 } else { 20_000 }, i), i);
        }
        world.drive();
        let mut contexts = Vec::new();
        for received in world.ends[1].receives.drain(..) {
            let expected = pattern(received.length as usize, received.context);
            assert!(received.buffer[..received.length as usize] == expected);
            contexts.push(received.context);
        }
        contexts.sort_unstable();
        assert_eq!(contexts, (0..16).collect::<Vec<_>>());
        world.ends[0].sends.clear();
        world.assert_clean();
    }
}

fn eager(msg_id: u32) -> Header<'static> {
    let kind = RtmKind::Eager;
    Header::Rtm(Rtm { msg_id: MsgId(msg_id), tag: None, kind, options: ReqOptions::NONE })
}

// conformance: A100
#[test]
fn old_out_of_order_and_far_message_ids_are_classified() {
    let config = Config::default().with(|config| config.max_reorder = 1000);
    let mut world = World::pair_with(1, Config::default(), config);
    world.acquaint();
    for i in 0..1100 {
        world.receive(1, 4, i);
    }
    let inject = |world: &mut World, id: u32| {
        world.inject(0, 1, eager(id), &id.to_le_bytes());
        world.drive();
        world.drop_reasons(1)
    };
    assert_eq!(inject(&mut world, 0), []);
    assert_eq!(inject(&mut world, 0), [DropReason::OldMessageId]);
    assert_eq!(inject(&mut world, u32::MAX), [DropReason::OldMessageId]);
    assert_eq!(inject(&mut world, 1001), [DropReason::MessageIdTooFar]);
    assert_eq!(inject(&mut world, 1 << 31), [DropReason::MessageIdTooFar]);
    assert_eq!(world.ends[1].receives.len(), 1, "an early message waits");
    for id in (1..=1000).rev() {
        assert_eq!(inject(&mut world, id), [], "id {id} is kept");
    }
    let received: Vec<_> = world.ends[1].receives.drain(..).collect();
    assert_eq!(received.len(), 1001);
    for (i, received) in received.into_iter().enumerate() {
        assert_eq!(received.context, i as u64);
        assert_eq!(received.buffer, (i as u32).to_le_bytes());
    }
    assert_eq!(world.endpoint(1).packets_held().held, 0);
}

/// The ring of a window has a power of two of slots.
#[test]
fn any_number_of_messages_ahead_may_be_the_most_that_are_kept() {
    for most in [1, 2, 3, 100, 255, 256, 257] {
        let config = Config::default().with(|config| config.max_reorder = most);
        let mut world = World::pair_with(1, Config::default(), config);
        world.acquaint();
        for id in (0..=most).rev() {
            world.receive(1, 4, 0);
            world.inject(0, 1, eager(id), &[]);
            world.drive();
            let expected = if id == most { vec![DropReason::MessageIdTooFar] } else { Vec::new() };
            assert_eq!(world.drop_reasons(1), expected, "{id} of {most}");
        }
        assert_eq!(world.take_receives(1).len(), most as usize);
    }
}

#[test]
fn releases_before_2_0_drop_ids_beyond_their_window() {
    const WINDOW: u32 = 16384;
    for release in Release::ALL {
        let mut world = World::pair_with(1, Config::default(), Config::as_release(release));
        world.acquaint();
        for (id, too_far) in [(WINDOW - 1, false), (WINDOW, release < Release::V2_0)] {
            world.inject(0, 1, eager(id), &[]);
            world.drive();
            let reasons = world.drop_reasons(1);
            let lost = reasons == [DropReason::MessageIdTooFar];
            assert!(
                lost == too_far && (lost || reasons.is_empty()),
                "{release}, {id}: {reasons:?}"
            );
        }
    }
}

// conformance: A100
#[test]
fn repeated_out_of_order_message_is_delivered_once() {
    let mut world = World::pair(2);
    world.acquaint();
    for i in 0..3 {
        world.receive(1, 4, i);
    }
    for id in [1, 1, 0] {
        world.inject(0, 1, eager(id), &id.to_le_bytes());
        world.drive();
    }
    assert_eq!(world.ends[1].receives.len(), 2);
    assert_eq!(world.drop_reasons(1), [DropReason::OldMessageId]);
}

#[test]
fn failed_message_does_not_delay_other_peers() {
    let mut world = World::pair(3);
    world.add(Config::default());
    let place = crate::world::place(&world.ends[0]);
    world.network.fail_sends(place, 1, Status::BadLength).unwrap();
    world.send(0, 1, pattern(10, 1), 1);
    world.receive(2, 10, 0);
    world.send(0, 2, pattern(10, 2), 2);
    world.drive();
    assert_eq!(world.receive_done(2).buffer, pattern(10, 2));
    let results: Vec<_> =
        world.ends[0].sends.drain(..).map(|sent| (sent.context, sent.result.is_ok())).collect();
    assert!(results.contains(&(1, false)) && results.contains(&(2, true)), "{results:?}");
    // With a message missing, no later one could be delivered, so the peer is reported as lost.
    let peer = world.ends[0].events.iter().find_map(|event| match event {
        Event::PeerLost { peer, status: Status::BadLength } => Some(*peer),
        _ => None,
    });
    let peer = peer.expect("the loss is an event");
    let message = Message {
        peer,
        tag: None,
        cq_data: None,
        level: Level::Transmit,
        buffer: vec![],
        context: 0,
    };
    let refused = world.endpoint(0).send(message).unwrap_err();
    assert_eq!(refused.error, StartError::PeerGone(peer));
}

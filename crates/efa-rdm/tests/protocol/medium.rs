//! Section 3.2, medium message.

use std::collections::BTreeMap;

use efa_device::QueuePairOptions;
use efa_proto::{Header, MsgId, OpId, Packet, PacketType, ReqOptions, Rtm, RtmKind};
use efa_rdm::{Config, DropReason, Event, OperationError, Subprotocol};
use efa_sim::local::LocalOptions;

use crate::world::{World, pattern};

/// Offset and length of each medium segment that an endpoint sent.
fn segments(world: &mut World, from: usize) -> Vec<(u32, u64, u64)> {
    let packets = world.packets_from(from);
    let parsed = packets.iter().map(|bytes| Packet::parse(bytes).unwrap());
    let medium = parsed.filter_map(|packet| match packet.header {
        Header::Rtm(Rtm { msg_id, kind: RtmKind::Medium { seg_offset, .. }, .. }) => {
            Some((msg_id.0, seg_offset, packet.payload.len() as u64))
        }
        _ => None,
    });
    medium.collect()
}

fn assert_tiles(mut segments: Vec<(u32, u64, u64)>, length: u64) {
    segments.sort_unstable();
    let mut end = 0;
    for (_, offset, bytes) in segments {
        assert_eq!(offset, end);
        end += bytes;
    }
    assert_eq!(end, length);
}

// conformance: A109 A113
#[test]
fn medium_segments_tile_the_message_and_share_its_id() {
    for (length, max_medium) in [(8929, 65536), (30_000, 65536), (65536, 65536), (90_000, 100_000)]
    {
        let config = Config::default().with(|config| config.max_medium = max_medium);
        let mut world = World::pair_with(1, config.clone(), config);
        world.receive(1, length, 0);
        world.send(0, 1, pattern(length, 1), 0);
        world.drive();
        let received = world.receive_done(1);
        assert_eq!(received.subprotocol, Some(Subprotocol::Medium));
        assert_eq!(received.buffer, pattern(length, 1));
        let segments = segments(&mut world, 0);
        assert!(segments.iter().all(|(id, ..)| *id == 0));
        assert_tiles(segments, length as u64);
        world.send_done(0);
        world.assert_clean();
    }
}

/// The packets of a medium message of four segments.
fn four_segments(length: usize) -> Vec<(u64, Vec<u8>)> {
    let message = pattern(length, 9);
    let part = length / 4;
    (0..4).map(|i| ((i * part) as u64, message[i * part..(i + 1) * part].to_vec())).collect()
}

fn segment(msg_length: u64, seg_offset: u64) -> Header<'static> {
    Header::Rtm(Rtm {
        msg_id: MsgId(0),
        tag: Some(7),
        kind: RtmKind::Medium { msg_length, seg_offset },
        options: ReqOptions::NONE,
    })
}

fn permutations(items: &[usize]) -> Vec<Vec<usize>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (i, first) in items.iter().enumerate() {
        let mut rest = items.to_vec();
        rest.remove(i);
        for mut tail in permutations(&rest) {
            tail.insert(0, *first);
            all.push(tail);
        }
    }
    all
}

// conformance: A110 A111
#[test]
fn medium_message_is_reassembled_from_every_segment_order() {
    let parts = four_segments(400);
    for order in permutations(&[0, 1, 2, 3]) {
        for posted_before in 0..=4 {
            let mut world = World::pair(2);
            world.acquaint();
            for (i, index) in order.iter().enumerate() {
                if i == posted_before {
                    world.tagged_receive(1, 7, 400);
                }
                let (offset, payload) = &parts[*index];
                world.inject(0, 1, segment(400, *offset), payload);
                world.drive();
                let ended = world.ends[1].receives.len();
                assert_eq!(ended, usize::from(i == 3 && posted_before < 4));
            }
            if posted_before == 4 {
                world.tagged_receive(1, 7, 400);
            }
            world.drive();
            let received = world.receive_done(1);
            assert_eq!((received.length, received.result), (400, Ok(())));
            assert_eq!(received.buffer, pattern(400, 9));
            world.assert_clean();
        }
    }
}

// conformance: A110 A115
#[test]
fn repeated_or_contradicting_medium_segments_are_dropped() {
    let parts = four_segments(400);
    let mut world = World::pair(3);
    world.acquaint();
    world.tagged_receive(1, 7, 400);
    let junk = vec![0xff; 100];
    world.inject(0, 1, segment(400, 0), &parts[0].1);
    world.drive();
    // A repetition, an overlap, beyond the end, an overflow, another total, and nothing.
    world.inject(0, 1, segment(400, 0), &junk);
    world.inject(0, 1, segment(400, 50), &junk);
    world.inject(0, 1, segment(400, 301), &junk);
    world.inject(0, 1, segment(400, u64::MAX), &junk);
    world.inject(0, 1, segment(500, 200), &junk);
    world.inject(0, 1, segment(400, 200), &[]);
    world.drive();
    assert!(world.ends[1].receives.is_empty());
    let reasons: BTreeMap<String, usize> =
        world.ends[1].events.iter().fold(BTreeMap::new(), |mut counts, event| {
            if let Event::PacketDropped { reason, .. } = event {
                *counts.entry(format!("{reason:?}")).or_default() += 1;
            }
            counts
        });
    assert_eq!(reasons.get("RepeatedSegment"), Some(&2), "{reasons:?}");
    assert_eq!(reasons.get("SegmentOutOfRange"), Some(&4), "{reasons:?}");
    for (offset, payload) in &parts[1..] {
        world.inject(0, 1, segment(400, *offset), payload);
    }
    world.drive();
    assert_eq!(world.receive_done(1).buffer, pattern(400, 9));
    assert_eq!(world.endpoint(1).statistics().dropped, 6);
}

// conformance: A114
#[test]
fn medium_message_of_1_or_1000_segments_is_received() {
    for segments in [1, 1000] {
        let mut world = World::pair(4);
        world.acquaint();
        let message = pattern(segments * 10, 3);
        world.tagged_receive(1, 7, message.len());
        for i in 0..segments {
            let header = segment(message.len() as u64, 10 * i as u64);
            world.inject(0, 1, header, &message[10 * i..10 * (i + 1)]);
            world.drive();
        }
        assert_eq!(world.receive_done(1).buffer, message);
        world.assert_clean();
    }
}

// conformance: A112 A72
#[test]
fn full_send_queue_within_medium_message_sends_each_segment_once() {
    for seed in 0..20 {
        let mut world = World::new(LocalOptions::default().with(|options| options.seed = seed));
        let narrow = QueuePairOptions::default().with(|options| options.send_depth = 2);
        world.add_with(Config::default(), narrow);
        world.add(Config::default());
        world.receive(1, 50_000, 0);
        world.send(0, 1, pattern(50_000, seed), 0);
        assert_eq!(segments(&mut world, 0).len(), 2, "as many as the queue takes");
        world.drive();
        let received = world.receive_done(1);
        assert_eq!((received.buffer, received.result), (pattern(50_000, seed), Ok(())));
        assert_tiles(segments(&mut world, 0), 50_000);
        world.send_done(0);
        world.assert_clean();
    }
}

// conformance: A72
#[test]
fn message_is_sent_once_after_a_refused_post() {
    let mut world = World::pair(5);
    let place = crate::world::place(&world.ends[0]);
    world.network.refuse_sends(place, 3).unwrap();
    world.receive(1, 100, 0);
    world.send(0, 1, pattern(100, 1), 0);
    assert!(world.types_from(0).is_empty());
    world.drive();
    assert_eq!(world.receive_done(1).buffer, pattern(100, 1));
    let count =
        |types: Vec<PacketType>| types.iter().filter(|t| **t == PacketType::EagerMsgRtm).count();
    assert_eq!(count(world.types_from(0)), 1);
    world.send_done(0);
    world.assert_clean();
}

#[test]
fn repeated_segment_of_complete_message_is_an_old_id() {
    let mut world = World::pair(6);
    world.acquaint();
    world.tagged_receive(1, 7, 100);
    world.inject(0, 1, segment(100, 0), &pattern(100, 1));
    world.drive();
    world.inject(0, 1, segment(100, 0), &pattern(100, 1));
    world.drive();
    world.receive_done(1);
    assert!(matches!(
        world.ends[1].events.back(),
        Some(Event::PacketDropped { reason: DropReason::OldMessageId, .. })
    ));
}

#[test]
fn incomplete_medium_message_reports_its_contiguous_prefix() {
    for (first, counted) in [(0, 100), (100, 0)] {
        let mut world = World::pair(7);
        world.acquaint();
        world.tagged_receive(1, 7, 400);
        for offset in [first, 200] {
            world.inject(0, 1, segment(400, offset), &[1; 100]);
        }
        world.drive();
        let peer = world.peer(1, 0);
        world.endpoint(1).remove_peer(peer);
        let received = world.receive_done(1);
        assert_eq!(received.result, Err(OperationError::PeerRemoved));
        assert_eq!(received.length, counted);
    }
}

#[test]
fn medium_segments_that_disagree_with_the_first_are_dropped() {
    let mut world = World::pair(3);
    world.acquaint();
    world.receive(1, 2000, 1);
    let message = pattern(2000, 3);
    let segment = |world: &mut World, tag, offset: usize, kind| {
        let rtm = Rtm { msg_id: MsgId(0), tag, kind, options: ReqOptions::NONE };
        world.inject(0, 1, Header::Rtm(rtm), &message[offset..offset + 1000]);
        world.drive();
    };
    let medium = |msg_length, seg_offset| RtmKind::Medium { msg_length, seg_offset };
    segment(&mut world, None, 0, medium(2000, 0));
    segment(&mut world, Some(0), 1000, medium(2000, 1000));
    segment(&mut world, None, 1000, medium(2001, 1000));
    let dc = RtmKind::DcMedium { send_id: OpId(1), msg_length: 2000, seg_offset: 1000 };
    segment(&mut world, None, 1000, dc);
    assert_eq!(world.drop_reasons(1), [DropReason::SegmentOutOfRange; 3]);
    assert!(world.take_receives(1).is_empty());
    segment(&mut world, None, 1000, medium(2000, 1000));
    assert_eq!(world.receive_done(1).buffer, message);
}

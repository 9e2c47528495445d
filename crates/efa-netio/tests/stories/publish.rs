//! Publications: what they are made of, their answers and completions, and the memory that they free.

use efa_netio::{
    ClosedReason, Completion, Counts, Event, Header, Lookup, Message, MessageError, Options,
    PublishOptions, Published, SendError, SocketError, SubscribeOptions, WhenFull,
};

use crate::hard::writable;
use crate::hard::{Stage, closed, hard, messages, publications, refuse, seeds, subscriber_closed};
use crate::world::{HOST, World, part, pattern};

// conformance: D38 D43 D55 D57 D58 D59
#[test]
fn message_reaches_those_who_subscribed_to_its_tag_and_comes_back_once() {
    let mut world = World::new(1, 4);
    let pool = world.pool(0, 100_000);
    let (publisher, port) = world.publisher(0, &pool, PublishOptions::default());
    for (node, tags) in [(1, &[7, 8][..]), (2, &[8]), (3, &[8, 9])] {
        world.subscriber(node, port, tags, SubscribeOptions::default());
    }
    let nobody = world.netio(0).publish(publisher, 6, part(&pool, 0, 10));
    assert!(matches!(nobody, Published::NoSubscribers(message) if message.len() == 10));
    for (key, (tag, served)) in [(7, 1), (8, 3), (9, 1)].into_iter().enumerate() {
        for (begin, length) in [(0, 0), (3, 10), (7, 9_000), (1, 60_000)] {
            let message = part(&pool, begin, length).key(key as u64);
            let published = world.netio(0).publish(publisher, tag, message);
            assert!(matches!(published, Published::UnderWay));
            assert_eq!(world.published(0), (key as u64, served, 0));
            let expected = &pattern(100_000)[begin..begin + length];
            let nodes: &[usize] = match tag {
                7 => &[1],
                8 => &[1, 2, 3],
                _ => &[3],
            };
            for node in nodes {
                assert_eq!(world.message(*node), (tag, expected.to_vec()));
            }
        }
    }
    world.rest();
    let messages = |events: &[Event]| {
        events.iter().filter(|event| matches!(event, Event::Message { .. })).count()
    };
    assert!(world.nodes.iter().all(|node| messages(&node.events) == 0));
    assert_eq!(world.netio(0).counts().publications, 0);
}

// conformance: D40 D55 D63 D66
#[test]
fn header_of_0_to_8_bytes_comes_in_front_of_1_to_28_parts() {
    for seed in seeds() {
        let mut stage =
            Stage::new(hard(seed, 3, Options::default()), PublishOptions::default(), &[7]);
        refuse(&stage.world);
        let all = pattern(200_000);
        let mut rng = fastrand::Rng::with_seed(seed);
        for length in 0..=8 {
            for count in [1, 2, 5, 27, 28] {
                if count == 28 && length > 0 {
                    continue;
                }
                let header = [0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7];
                let mut expected = header[..length].to_vec();
                let mut parts = Vec::new();
                for _ in 0..count {
                    let begin = rng.usize(..190_000);
                    let length = rng.usize(..2_000);
                    expected.extend_from_slice(&all[begin..begin + length]);
                    parts.push(stage.pool.part(begin..begin + length).unwrap());
                }
                let header = Header::new(&header[..length]).unwrap();
                let message = Message::gather(parts).key(count as u64).header(header);
                let published = stage.world.netio(0).publish(stage.publisher, 7, message.clone());
                assert!(matches!(published, Published::UnderWay), "{published:?}");
                for node in [1, 2] {
                    assert!(stage.world.message(node) == (7, expected.clone()), "{length} {count}");
                }
                let back = stage.world.event(0, "Published", |event| match event {
                    Event::Published { message, .. } => Some(message.clone()),
                    _ => None,
                });
                assert_eq!(back, message, "the message comes back as it was");
            }
        }
    }
}

// conformance: D63 D66 D67
#[test]
fn message_of_too_many_parts_or_of_another_pool_is_refused_and_comes_back() {
    let mut stage = Stage::new(World::new(1, 2), PublishOptions::default(), &[7]);
    let other = stage.world.pool(0, 100);
    let parts = |count| (0..count).map(|_| stage.pool.part(0..1).unwrap());
    let header = Header::new(b"h").unwrap();
    let cases = [
        (Message::gather(parts(29)), MessageError::TooManyParts { count: 29, limit: 28 }),
        (
            Message::gather(parts(28)).header(header),
            MessageError::TooManyParts { count: 28, limit: 27 },
        ),
        (Message::gather([]), MessageError::NoParts),
        (Message::of(other.part(0..1).unwrap()), MessageError::OtherPool),
        (Message::gather([stage.pool.part(0..1).unwrap(), other.whole()]), MessageError::OtherPool),
        (part(&stage.pool, 0, 1).data(1), MessageError::HasData),
    ];
    for (message, error) in cases {
        // The message is looked at first, whoever has subscribed.
        for tag in [7, 8] {
            match stage.world.netio(0).publish(stage.publisher, tag, message.clone()) {
                Published::Refused(SendError::Message(found), back) => {
                    assert_eq!((found, &back), (error.clone(), &message));
                }
                answer => panic!("{answer:?}"),
            }
        }
    }
    stage.world.nodes.iter_mut().for_each(|node| node.events.clear());
    stage.world.quiet(0);
    stage.world.quiet(1);
    // An empty part is a message like any other.
    let published = stage.world.netio(0).publish(stage.publisher, 7, part(&stage.pool, 5, 0));
    assert!(matches!(published, Published::UnderWay));
    assert_eq!(stage.world.message(1), (7, Vec::new()));
    assert!(stage.pool.part(0..200_001).is_err());
}

// conformance: D60 D69 D70 D71 D72
#[test]
fn as_many_publications_as_objects_are_under_way_and_the_next_is_tried_again() {
    for seed in seeds() {
        for objects in [1, 2, 7] {
            let options =
                PublishOptions::default().outstanding(objects).completion(Completion::Delivered);
            let mut stage = Stage::new(hard(seed, 3, Options::default()), options, &[7]);
            refuse(&stage.world);
            for round in 0..5 {
                stage.world.nodes[0].events.clear();
                let publish = |stage: &mut Stage, key| {
                    let message = part(&stage.pool, 0, 10).key(key);
                    stage.world.netio(0).publish(stage.publisher, 7, message)
                };
                for key in 0..objects {
                    assert!(matches!(publish(&mut stage, key as u64), Published::UnderWay));
                }
                assert_eq!(stage.world.netio(0).counts().publications, objects);
                match publish(&mut stage, 100) {
                    Published::Again(message) => assert_eq!(message.key, 100),
                    answer => panic!("{answer:?}"),
                }
                writable(&mut stage.world, stage.publisher);
                assert!(matches!(publish(&mut stage, 100), Published::UnderWay), "it has room");
                stage.world.rest();
                let mut done = publications(&mut stage.world);
                done.sort_unstable();
                let keys = (0..objects as u64).chain([100]);
                assert_eq!(done, keys.map(|key| (key, 2, 0)).collect::<Vec<_>>(), "round {round}");
                for node in [1, 2] {
                    assert_eq!(stage.messages(node).len(), objects + 1);
                }
            }
            stage.is_idle_with(2);
        }
    }
}

// conformance: D57
#[test]
fn publication_to_a_stopped_subscriber_completes_only_at_the_level_that_needs_it() {
    let levels = [Completion::MemoryFree, Completion::Sent, Completion::Delivered];
    for completion in levels {
        for length in [10, 60_000] {
            let options = PublishOptions::default().completion(completion);
            let mut stage = Stage::new(World::new(3, 3), options, &[7]);
            stage.world.rest();
            let message = part(&stage.pool, 0, length).key(1);
            let published = stage.world.netio(0).publish(stage.publisher, 7, message);
            assert!(matches!(published, Published::UnderWay));
            stage.turns_without(5_000, &[2]);
            assert_eq!(stage.messages(1).len(), 1);
            let early = publications(&mut stage.world);
            // What the receiver's device reads is needed until then.
            let needs = completion == Completion::Delivered || length == 60_000;
            assert_eq!(early.is_empty(), needs, "{completion:?} of {length} bytes");
            stage.world.rest();
            assert_eq!([early, publications(&mut stage.world)].concat(), [(1, 2, 0)]);
            assert_eq!(stage.messages(2).len(), 1);
        }
    }
}

// conformance: D56 D57 D72 D74
#[test]
fn no_byte_is_overwritten_before_its_publication_is_complete_though_some_complete_out_of_order() {
    const SLOT: usize = 50_000;
    let mut overtaken = 0;
    for seed in seeds() {
        let options = PublishOptions::default().when_full(WhenFull::Resume).outstanding(16);
        let mut stage = Stage::new(hard(seed, 4, Options::default()), options, &[7]);
        refuse(&stage.world);
        let mut rng = fastrand::Rng::with_seed(seed);
        // Four slots of the pool, each for one publication at a time.
        let mut slots = [None; 4];
        let (mut next, mut arrived) = (0_u64, [0; 4]);
        let mut last = None;
        while next < 120 || slots.iter().any(Option::is_some) {
            for (slot, used) in slots.iter_mut().enumerate() {
                if used.is_some() || next >= 120 {
                    continue;
                }
                // All bytes of it are its number.
                let length = [1, 3_000, 49_000][rng.usize(..3)];
                stage.pool.write(slot * SLOT, &vec![next as u8; length]);
                let message = part(&stage.pool, slot * SLOT, length).key(next);
                let published = stage.world.netio(0).publish(stage.publisher, 7, message);
                assert!(matches!(published, Published::UnderWay), "{published:?}");
                *used = Some(next);
                next += 1;
            }
            stage.world.turn();
            for (key, served, lost) in publications(&mut stage.world) {
                assert_eq!((served, lost), (3, 0));
                let slot = slots.iter().position(|slot| *slot == Some(key)).expect("once");
                slots[slot] = None;
                // The memory is the program's again.
                stage.pool.write(slot * SLOT, &[0xff; SLOT]);
                overtaken += u32::from(last.is_some_and(|last| last > key));
                last = Some(key);
            }
            for (node, arrived) in arrived.iter_mut().enumerate().skip(1) {
                for (_, bytes) in stage.messages(node) {
                    assert!(bytes.iter().all(|byte| u64::from(*byte) == *arrived));
                    *arrived += 1;
                }
            }
        }
        stage.world.rest();
        for (node, arrived) in arrived.iter_mut().enumerate().skip(1) {
            for (_, bytes) in stage.messages(node) {
                assert!(bytes.iter().all(|byte| u64::from(*byte) == *arrived));
                *arrived += 1;
            }
        }
        assert_eq!(arrived[1..], [120; 3]);
    }
    assert!(overtaken > 0, "none was complete before an earlier one");
}

// conformance: D65
#[test]
fn lookup_kept_over_changes_finds_who_has_subscribed_now() {
    for seed in seeds() {
        let mut stage =
            Stage::new(hard(seed, 4, Options::default()), PublishOptions::default(), &[7]);
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut seven, mut eight) = (Lookup::new(7), Lookup::new(8));
        let mut subscribed = [[false, true, true, true], [false; 4]];
        for _ in 0..60 {
            let (which, node) = (rng.usize(..2), rng.usize(1..4));
            let tag = 7 + which as u64;
            let (socket, world) = (stage.subscribers[node], &mut stage.world);
            let wanted = !subscribed[which][node];
            match wanted {
                true => drop(world.netio(node).subscribe(socket, tag).unwrap()),
                false => drop(world.netio(node).unsubscribe(socket, tag).unwrap()),
            }
            subscribed[which][node] = wanted;
            world.rest();
            for (which, lookup) in [&mut seven, &mut eight].into_iter().enumerate() {
                assert_eq!(lookup.tag(), 7 + which as u64);
                let count = subscribed[which].iter().filter(|it| **it).count();
                let message = part(&stage.pool, 0, 10);
                let netio = stage.world.netio(0);
                match netio.publish_by(stage.publisher, lookup, message) {
                    Published::UnderWay => assert!(count > 0),
                    Published::NoSubscribers(_) => assert_eq!(count, 0),
                    answer => panic!("{answer:?}"),
                }
                stage.world.rest();
                for (node, expected) in subscribed[which].into_iter().enumerate().skip(1) {
                    assert_eq!(stage.messages(node).len(), usize::from(expected));
                }
            }
        }
    }
}

// conformance: D39 D65
#[test]
fn lookup_of_another_publisher_finds_this_ones_subscribers() {
    let mut stage = Stage::new(World::new(1, 3), PublishOptions::default(), &[7, 8]);
    let netio = stage.world.netio(0);
    let second = netio.publish_socket(&stage.pool, PublishOptions::default()).unwrap();
    netio.publish_at(second, HOST, 0).unwrap();
    let port = netio.local_address(second).unwrap().port();
    stage.world.subscriber(1, port, &[8], SubscribeOptions::default());
    let mut lookup = Lookup::new(8);
    for (publisher, expected) in
        [(stage.publisher, 2), (second, 1), (stage.publisher, 2), (second, 1)]
    {
        assert_eq!(stage.world.netio(0).subscriber_count(publisher, 8), expected);
        let message = part(&stage.pool, 0, 1).key(3);
        let published = stage.world.netio(0).publish_by(publisher, &mut lookup, message);
        assert!(matches!(published, Published::UnderWay));
        assert_eq!(stage.world.published(0), (3, expected as u32, 0));
    }
}

// conformance: D42 D73
#[test]
fn closed_publisher_sends_what_is_under_way_and_takes_nothing_more() {
    for seed in seeds() {
        for owed in [false, true] {
            let sends = Options::default().with(|options| options.sends = if owed { 1 } else { 9 });
            let options = PublishOptions::default().when_full(WhenFull::Resume);
            let mut stage = Stage::new(hard(seed, 3, sends), options, &[7]);
            refuse(&stage.world);
            for key in 0..6 {
                let message = part(&stage.pool, 0, 40_000).key(key);
                let published = stage.world.netio(0).publish(stage.publisher, 7, message);
                assert!(matches!(published, Published::UnderWay));
            }
            let (publisher, world) = (stage.publisher, &mut stage.world);
            world.netio(0).close(publisher);
            world.netio(0).close(publisher);
            let refused = world.netio(0).publish(publisher, 7, part(&stage.pool, 0, 1));
            assert!(matches!(
                refused,
                Published::Refused(SendError::Socket(SocketError::Closed), _)
            ));
            assert_eq!(world.netio(0).publish_at(publisher, HOST, 0), Err(SocketError::Closed));
            for node in [1, 2] {
                let reason = closed(world, node, stage.subscribers[node]);
                assert_eq!(reason, ClosedReason::DisconnectedByPeer);
                assert_eq!(messages(world, node).len(), 6);
                assert_eq!(subscriber_closed(world, 0), ClosedReason::Disconnected);
            }
            let mut done = publications(world);
            done.sort_unstable();
            assert_eq!(done, (0..6).map(|key| (key, 2, 0)).collect::<Vec<_>>());
            for node in 0..3 {
                assert_eq!(world.netio(node).counts(), Counts::default());
            }
        }
    }
}

#[test]
fn publisher_closed_while_a_token_is_out_gives_each_subscriber_all_messages_and_ends() {
    for is_dropped in [false, true] {
        let options = PublishOptions::default().completion(Completion::Delivered);
        let narrow = Options::default().with(|options| options.sends = 1);
        let mut stage = Stage::new(hard(1, 3, narrow), options, &[7]);
        let token = loop {
            let message = part(&stage.pool, 0, 10).key(1);
            match stage.world.netio(0).publish(stage.publisher, 7, message) {
                Published::Partial(token) => break token,
                _ => stage.turns_without(50, &[2]),
            }
        };
        let (publisher, world) = (stage.publisher, &mut stage.world);
        world.netio(0).close(publisher);
        match is_dropped {
            true => drop(token),
            false => crate::hard::resumed(world, publisher, token),
        }
        for node in [1, 2] {
            let reason = closed(world, node, stage.subscribers[node]);
            assert_eq!(reason, ClosedReason::DisconnectedByPeer);
        }
        world.rest();
        assert_eq!(messages(world, 1).len(), messages(world, 2).len());
        assert_eq!(world.netio(0).counts(), Counts::default());
    }
}

// conformance: D1
#[test]
fn each_byte_of_a_message_from_the_threshold_on_is_read_once_and_none_goes_in_packets() {
    let threshold = Options::default().read_threshold;
    for (length, header, is_read) in [
        (threshold - 9, 0, false),
        (threshold, 0, true),
        (threshold - 8, 8, true),
        (64 << 10, 0, true),
    ] {
        let mut stage = Stage::new(World::new(1, 3), PublishOptions::default(), &[7]);
        // Before both sides know each other's device, messages go in packets.
        stage.world.rest();
        let header = Header::new(&[1; 8][..header]).unwrap();
        let message = part(&stage.pool, 0, length as usize).header(header);
        let published = stage.world.netio(0).publish(stage.publisher, 7, message);
        assert!(matches!(published, Published::UnderWay));
        for node in [1, 2] {
            stage.world.message(node);
            let of_socket = stage.world.nodes[node].netio.as_ref().unwrap();
            let statistics = of_socket.statistics(stage.subscribers[node]);
            let read: u64 = statistics.iter().map(|it| it.rdma_bytes).sum();
            let whole = length + header.as_slice().len() as u64;
            assert_eq!(read, if is_read { whole } else { 0 }, "{length} bytes");
        }
    }
}

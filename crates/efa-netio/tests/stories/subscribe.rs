//! Subscriptions: how they begin and end, and what becomes of them when either side dies or talks nonsense.

use std::time::Duration;

use efa::{
    CompletionQueue, CompletionQueueOptions, ControlEvent, Direction, EventQueue,
    EventQueueOptions, MsgEndpoint, MsgEndpointOptions,
};
use efa_netio::{
    AnySocket, Buffers, ClosedReason, Counts, Event, Options, PublishOptions, Published,
    RefusedReason, Rejection, SocketError, SubscribeOptions, Subscription, WhenFull,
};

use crate::hard::{Stage, closed, hard, messages, publications, refuse, seeds, subscriber_closed};
use crate::world::{HOST, World, part};

fn unsubscribed(world: &mut World, node: usize) -> u64 {
    world.event(node, "Unsubscribed", |event| match event {
        Event::Unsubscribed { tag, .. } => Some(*tag),
        _ => None,
    })
}

/// How many events of a node are like this.
fn count(world: &World, node: usize, is: impl Fn(&Event) -> bool) -> usize {
    world.nodes[node].events.iter().filter(|event| is(event)).count()
}

// conformance: D39 D44 D48 D49
#[test]
fn tags_subscribed_before_the_connection_is_up_are_all_known_over_one_connection() {
    for seed in seeds() {
        let mut world = hard(seed, 2, Options::default());
        let pool = world.pool(0, 100);
        let (publisher, port) = world.publisher(0, &pool, PublishOptions::default());
        let netio = world.netio(1);
        let socket = netio.subscribe_socket(HOST, port, SubscribeOptions::default());
        for tag in 0..3_000 {
            assert_eq!(netio.subscribe(socket, tag), Ok(Subscription::Requested));
        }
        world.until("all subscriptions", |world| {
            let known = |event: &Event| matches!(event, Event::Subscribed { .. });
            (count(world, 1, known) == 3_000).then_some(())
        });
        let Counts { connections, tags, .. } = world.netio(0).counts();
        assert_eq!((connections, tags), (1, 3_000));
        assert_eq!(world.netio(0).subscriber_count(publisher, 2_999), 1);
        let is_new = |event: &Event| matches!(event, Event::Subscriber { .. });
        assert_eq!(count(&world, 0, is_new), 3_000);
    }
}

// conformance: D45
#[test]
fn tag_subscribed_twice_is_delivered_once() {
    for seed in seeds() {
        let world = hard(seed, 2, Options::default());
        let mut stage = Stage::new(world, PublishOptions::default(), &[7]);
        let (socket, world) = (stage.subscribers[1], &mut stage.world);
        assert_eq!(world.netio(1).subscribe(socket, 7), Ok(Subscription::Already));
        world.rest();
        let message = part(&stage.pool, 0, 10).key(1);
        assert!(matches!(world.netio(0).publish(stage.publisher, 7, message), Published::UnderWay));
        assert_eq!(world.published(0), (1, 1, 0));
        world.rest();
        assert_eq!(messages(world, 1).len(), 1);
    }
}

// conformance: D46
#[test]
fn unsubscribed_comes_after_all_messages_of_the_tag_and_other_tags_go_on() {
    for seed in seeds() {
        let world = hard(seed, 2, Options::default());
        let mut stage = Stage::new(world, PublishOptions::default(), &[7, 8]);
        refuse(&stage.world);
        for round in 0..20 {
            let (socket, world) = (stage.subscribers[1], &mut stage.world);
            world.netio(1).subscribe(socket, 7).unwrap();
            if round > 0 {
                world.subscribed(1, socket, 7);
            }
            let before = 5;
            for key in 0..before {
                let length = if key % 2 == 0 { 40_000 } else { 10 };
                let message = part(&stage.pool, 0, length).key(key);
                let published = world.netio(0).publish(stage.publisher, 7, message);
                assert!(matches!(published, Published::UnderWay));
            }
            assert_eq!(world.netio(1).unsubscribe(socket, 7), Ok(Subscription::Requested));
            assert_eq!(world.netio(1).unsubscribe(socket, 7), Ok(Subscription::Already));
            assert_eq!(unsubscribed(world, 1), 7);
            assert_eq!(messages(world, 1).len() as u64, before, "seed {seed}, round {round}");
            let message = part(&stage.pool, 0, 10);
            let published = world.netio(0).publish(stage.publisher, 7, message.clone());
            assert!(matches!(published, Published::NoSubscribers(_)));
            let published = world.netio(0).publish(stage.publisher, 8, message);
            assert!(matches!(published, Published::UnderWay));
            assert_eq!(world.message(1).0, 8);
        }
    }
}

// conformance: D46
#[test]
fn unsubscription_of_what_was_never_subscribed_is_harmless() {
    let mut stage = Stage::new(World::new(1, 2), PublishOptions::default(), &[7]);
    let (socket, world) = (stage.subscribers[1], &mut stage.world);
    world.nodes[1].events.clear();
    assert_eq!(world.netio(1).unsubscribe(socket, 6), Ok(Subscription::Already));
    world.quiet(1);
    let idle = world.netio(1).subscribe_socket(HOST, stage.port, SubscribeOptions::default());
    assert_eq!(world.netio(1).unsubscribe(idle, 7), Ok(Subscription::Already));
    world.netio(1).close(idle);
    assert_eq!(world.netio(1).unsubscribe(idle, 7), Err(SocketError::Closed));
    assert_eq!(world.netio(1).subscribe(idle, 7), Err(SocketError::Closed));
    world.quiet(1);
    assert_eq!(world.netio(0).subscriber_count(stage.publisher, 7), 1);
}

// conformance: D42 D50 D51
#[test]
fn last_unsubscription_closes_the_connection_on_both_sides_after_its_messages() {
    for seed in seeds() {
        let world = hard(seed, 2, Options::default());
        let mut stage = Stage::new(world, PublishOptions::default(), &[7, 8]);
        let (socket, world) = (stage.subscribers[1], &mut stage.world);
        for node in [0, 1] {
            world.nodes[node].events.clear();
        }
        for (key, length) in [(1, 40_000), (2, 10)] {
            let message = part(&stage.pool, 0, length).key(key);
            let published = world.netio(0).publish(stage.publisher, 8, message);
            assert!(matches!(published, Published::UnderWay));
        }
        world.netio(1).unsubscribe(socket, 7).unwrap();
        world.netio(1).unsubscribe(socket, 8).unwrap();
        let over =
            |event: &Event| matches!(event, Event::Closed { .. } | Event::SubscriberClosed { .. });
        world.until("both ends", |world| {
            (count(world, 0, over) + count(world, 1, over) == 2).then_some(())
        });
        let names = |events: &[Event]| -> Vec<String> {
            let name = |event: &Event| match event {
                Event::Message { tag, .. } => format!("message {tag}"),
                Event::Unsubscribed { tag, .. } => format!("unsubscribed {tag}"),
                Event::Unsubscriber { tag, .. } => format!("unsubscriber {tag}"),
                Event::Closed { reason, .. } => format!("closed: {reason}"),
                Event::SubscriberClosed { reason, .. } => format!("closed: {reason}"),
                other => format!("{other:?}"),
            };
            let of = |event: &&Event| !matches!(event, Event::Published { .. });
            events.iter().filter(of).map(name).collect()
        };
        let at_publisher =
            ["unsubscriber 7", "unsubscriber 8", "closed: disconnected by the other side"];
        assert_eq!(names(&world.nodes[0].events), at_publisher);
        let mut at_subscriber = names(&world.nodes[1].events);
        // Unsubscribed 7 may come before or after the messages of tag 8.
        at_subscriber.retain(|name| name != "unsubscribed 7");
        assert_eq!(
            at_subscriber,
            ["message 8", "message 8", "unsubscribed 8", "closed: disconnected by this side"]
        );
        assert_eq!(world.netio(0).counts(), Counts::default());
        assert_eq!(world.netio(1).counts(), Counts::default());
    }
}

// conformance: D52
#[test]
fn tag_subscribed_again_while_the_connection_is_ending_is_delivered_again() {
    for seed in seeds() {
        for pause in [0, 5, 20, 40, 60, 100, 200, 1_000] {
            let world = hard(seed, 2, Options::default());
            let mut stage = Stage::new(world, PublishOptions::default(), &[7]);
            let (socket, world) = (stage.subscribers[1], &mut stage.world);
            world.netio(1).unsubscribe(socket, 7).unwrap();
            (0..pause).for_each(|_| world.turn());
            assert_eq!(world.netio(1).subscribe(socket, 7), Ok(Subscription::Requested));
            world.subscribed(1, socket, 7);
            let message = part(&stage.pool, 0, 10);
            let published = world.netio(0).publish(stage.publisher, 7, message);
            assert!(matches!(published, Published::UnderWay), "{published:?}");
            assert_eq!(world.message(1).0, 7);
            world.rest();
            assert_eq!(world.netio(0).counts().connections, 1);
        }
    }
}

// conformance: D44 D52
#[test]
fn tag_given_up_and_subscribed_again_while_connecting_is_delivered() {
    for pause in [0, 1, 2, 5, 20, 100] {
        let mut world = World::new(3, 2);
        let pool = world.pool(0, 100);
        let (publisher, port) = world.publisher(0, &pool, PublishOptions::default());
        let socket = world.netio(1).subscribe_socket(HOST, port, SubscribeOptions::default());
        world.netio(1).subscribe(socket, 7).unwrap();
        (0..pause).for_each(|_| world.turn());
        world.netio(1).unsubscribe(socket, 7).unwrap();
        world.netio(1).subscribe(socket, 8).unwrap();
        world.subscribed(1, socket, 8);
        assert_eq!(world.netio(0).subscriber_count(publisher, 8), 1);
        world.rest();
        assert_eq!(world.netio(0).counts().connections, 1);
    }
}

#[test]
fn tag_given_up_while_the_host_is_looked_up_makes_no_connection() {
    let mut world = World::new(3, 1);
    let socket = world.netio(0).subscribe_socket("localhost", 1, SubscribeOptions::default());
    world.netio(0).subscribe(socket, 7).unwrap();
    world.netio(0).unsubscribe(socket, 7).unwrap();
    // The name is found by a thread, or is not in time.
    for _ in 0..100 {
        std::thread::yield_now();
        world.pass(Duration::from_millis(100));
        world.turn();
    }
    assert!(world.nodes[0].events.is_empty(), "{:?}", world.nodes[0].events);
    assert_eq!(world.netio(0).counts(), Counts::default());
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

// conformance: D51 D52
#[test]
fn thousand_cycles_leave_counts_and_descriptors_as_before() {
    let mut world = hard(5, 2, Options::default());
    let pool = world.pool(0, 100);
    let (publisher, port) = world.publisher(0, &pool, PublishOptions::default());
    let socket = world.netio(1).subscribe_socket(HOST, port, SubscribeOptions::default());
    let cycle = |world: &mut World| {
        world.netio(1).subscribe(socket, 7).unwrap();
        world.subscribed(1, socket, 7);
        let published = world.netio(0).publish(publisher, 7, part(&pool, 0, 100).key(1));
        assert!(matches!(published, Published::UnderWay));
        world.netio(1).unsubscribe(socket, 7).unwrap();
        assert_eq!(closed(world, 1, socket), ClosedReason::Disconnected);
        assert_eq!(messages(world, 1).len(), 1);
        assert_eq!(subscriber_closed(world, 0), ClosedReason::DisconnectedByPeer);
        assert_eq!(publications(world), [(1, 1, 0)]);
        assert_eq!(world.netio(0).counts(), Counts::default());
        assert_eq!(world.netio(1).counts(), Counts::default());
        world.nodes.iter_mut().for_each(|node| node.events.clear());
    };
    cycle(&mut world);
    let before = descriptors();
    (0..1_000).for_each(|_| cycle(&mut world));
    // Other tests of this process open some meanwhile.
    assert!(descriptors() < before + 500, "{before} before, {} now", descriptors());
}

// conformance: D43 D53
#[test]
fn killed_publisher_closes_its_subscribers_which_keep_their_tags_for_another_one() {
    for seed in seeds() {
        let world = hard(seed, 2, Options::default());
        let mut stage = Stage::new(world, PublishOptions::default(), &[7, 8]);
        let (socket, port, world) = (stage.subscribers[1], stage.port, &mut stage.world);
        let published = world.netio(0).publish(stage.publisher, 7, part(&stage.pool, 0, 50_000));
        assert!(matches!(published, Published::UnderWay));
        world.turn();
        world.kill(0);
        assert_eq!(closed(world, 1, socket), ClosedReason::PeerGone);
        assert_eq!(world.netio(1).counts(), Counts::default());
        // Nobody is there yet.
        world.netio(1).reconnect(socket).unwrap();
        world.event(1, "Refused", |event| match event {
            Event::Refused { reason: RefusedReason::Connect(_), .. } => Some(()),
            _ => None,
        });
        let next = world.add(Options::default());
        let pool = world.pool(next, 100);
        let publisher = world.netio(next).publish_socket(&pool, PublishOptions::default()).unwrap();
        world.netio(next).publish_at(publisher, HOST, port).unwrap();
        assert_eq!(world.netio(1).subscribe(socket, 7), Ok(Subscription::Already));
        world.subscribed(1, socket, 7);
        world.subscribed(1, socket, 8);
        let published = world.netio(next).publish(publisher, 8, part(&pool, 0, 10));
        assert!(matches!(published, Published::UnderWay));
        world.nodes[1].events.retain(|event| !matches!(event, Event::Message { tag: 7, .. }));
        assert_eq!(world.message(1).0, 8);
    }
}

// conformance: D53 D73
#[test]
fn killed_subscriber_is_out_of_the_table_and_no_publication_waits_for_it() {
    for seed in seeds() {
        let world = hard(seed, 4, Options::default().with(|options| options.sends = 2));
        let options = PublishOptions::default().outstanding(4).when_full(WhenFull::Resume);
        let mut stage = Stage::new(world, options, &[7]);
        let (publisher, world) = (stage.publisher, &mut stage.world);
        for key in 0..4 {
            let message = part(&stage.pool, 0, 50_000).key(key);
            let published = world.netio(0).publish(publisher, 7, message);
            assert!(matches!(published, Published::UnderWay));
        }
        (0..seed * 7).for_each(|_| world.turn_without(&[2]));
        world.kill(2);
        assert_eq!(subscriber_closed(world, 0), ClosedReason::PeerGone);
        assert_eq!(world.netio(0).subscriber_count(publisher, 7), 2);
        let mut keys = Vec::new();
        for _ in 0..4 {
            let (key, served, lost) = world.published(0);
            assert!(served + lost == 3 && lost <= 1);
            keys.push(key);
        }
        keys.sort_unstable();
        assert_eq!(keys, [0, 1, 2, 3]);
        world.rest();
        for node in [1, 3] {
            assert_eq!(messages(world, node).len(), 4);
        }
        for key in 10..14 {
            let published = world.netio(0).publish(publisher, 7, part(&stage.pool, 0, 1).key(key));
            assert!(matches!(published, Published::UnderWay), "all objects are back");
            assert_eq!(world.published(0), (key, 2, 0));
        }
        stage.is_idle_with(2);
    }
}

// conformance: D42
#[test]
fn subscriber_beyond_the_limit_is_refused_with_the_reason_until_another_leaves() {
    let world = World::new(1, 3);
    let mut stage = Stage::new(world, PublishOptions::default().subscribers(2), &[7]);
    let world = &mut stage.world;
    let third = world.add(Options::default());
    let socket = world.netio(third).subscribe_socket(HOST, stage.port, SubscribeOptions::default());
    world.netio(third).subscribe(socket, 7).unwrap();
    world.event(third, "Refused", |event| match event {
        Event::Refused { reason: RefusedReason::Rejected(Rejection::Full), .. } => Some(()),
        _ => None,
    });
    assert_eq!(world.netio(0).counts().rejected, 1);
    world.netio(1).unsubscribe(stage.subscribers[1], 7).unwrap();
    subscriber_closed(world, 0);
    world.netio(third).reconnect(socket).unwrap();
    world.subscribed(third, socket, 7);
}

#[test]
fn tag_beyond_the_limit_is_refused_and_a_socket_without_any_other_is_closed() {
    for seed in seeds() {
        let mut world = hard(seed, 3, Options::default());
        let pool = world.pool(0, 100);
        let (publisher, port) = world.publisher(0, &pool, PublishOptions::default().tags(2));
        let socket = world.subscriber(1, port, &[1, 2], SubscribeOptions::default());
        let refused = |world: &mut World, node| {
            world.event(node, "SubscriptionRefused", |event| match event {
                Event::SubscriptionRefused { tag, .. } => Some(*tag),
                _ => None,
            })
        };
        world.netio(1).subscribe(socket, 3).unwrap();
        assert_eq!(refused(&mut world, 1), 3);
        world.netio(1).unsubscribe(socket, 1).unwrap();
        world.netio(1).subscribe(socket, 3).unwrap();
        world.subscribed(1, socket, 3);
        assert_eq!(world.netio(0).subscriber_count(publisher, 3), 1);

        let pool = world.pool(0, 100);
        let (_, none) = world.publisher(0, &pool, PublishOptions::default().tags(0));
        let socket = world.netio(2).subscribe_socket(HOST, none, SubscribeOptions::default());
        world.netio(2).subscribe(socket, 9).unwrap();
        assert_eq!(refused(&mut world, 2), 9);
        assert_eq!(closed(&mut world, 2, socket), ClosedReason::Disconnected);
        // The same if it is given up before the refusal has come.
        world.netio(2).subscribe(socket, 9).unwrap();
        world.event(2, "Connected", |event| matches!(event, Event::Connected(_)).then_some(()));
        world.netio(2).unsubscribe(socket, 9).unwrap();
        assert_eq!(closed(&mut world, 2, socket), ClosedReason::Disconnected);
    }
}

// conformance: D50 D52
#[test]
fn tag_asked_for_behind_one_that_is_refused_and_the_end_of_the_last_one_is_asked_for_again() {
    for seed in seeds() {
        let mut world = hard(seed, 2, Options::default());
        let pool = world.pool(0, 100);
        let (publisher, port) = world.publisher(0, &pool, PublishOptions::default().tags(1));
        let socket = world.subscriber(1, port, &[1], SubscribeOptions::default());
        // The publisher refuses the second one, and so has no tag left after the first one.
        world.netio(1).subscribe(socket, 2).unwrap();
        world.netio(1).unsubscribe(socket, 1).unwrap();
        world.netio(1).subscribe(socket, 3).unwrap();
        assert_eq!(closed(&mut world, 1, socket), ClosedReason::Disconnected);
        world.subscribed(1, socket, 3);
        assert_eq!(world.netio(0).subscriber_count(publisher, 3), 1);
    }
}

#[test]
fn subscriber_closed_in_any_state_leaves_nothing_at_either_side() {
    for seed in seeds() {
        for pause in [0, 1, 10, 30, 60, 100, 300] {
            let mut world = hard(seed, 2, Options::default());
            let pool = world.pool(0, 50_000);
            let (publisher, port) = world.publisher(0, &pool, PublishOptions::default());
            let socket = world.netio(1).subscribe_socket(HOST, port, SubscribeOptions::default());
            world.netio(1).subscribe(socket, 7).unwrap();
            (0..pause).for_each(|_| world.turn());
            let _ = world.netio(0).publish(publisher, 7, part(&pool, 0, 50_000));
            world.netio(1).close(socket);
            world.netio(1).close(socket);
            world.rest();
            assert_eq!(world.netio(0).counts(), Counts::default(), "seed {seed}, {pause}");
            assert_eq!(world.netio(1).counts(), Counts::default());
        }
    }
}

/// A peer that knows the connection's hello, and then says anything.
struct Raw {
    endpoint: Option<MsgEndpoint>,
    queue: CompletionQueue,
    events: EventQueue,
}

/// The tag of control messages.
const CONTROL: u64 = 0x6e65_7469_6f00_0001;

impl Raw {
    fn connected(world: &mut World, port: u16) -> Self {
        let domain = world.fabric.domain().unwrap();
        let queue = domain.completion_queue(CompletionQueueOptions::default().capacity(1 << 20));
        let events = world.fabric.event_queue(EventQueueOptions::default()).unwrap();
        let mut options = MsgEndpointOptions::default();
        options.endpoint.protocol.bounds.unexpected = 4096;
        let endpoint = domain
            .msg_endpoint(options)
            .bind_completion_queue(&queue, Direction::Both)
            .bind_event_queue(&events)
            .connect((HOST.parse::<std::net::IpAddr>().unwrap(), port).into(), b"nio1\x01\0\x02\0")
            .unwrap();
        let mut raw = Self { endpoint: Some(endpoint), queue, events };
        world.until("a raw connection", |_| raw.poll());
        raw
    }

    /// Does what is due. Returns whether an event of its connection has come.
    fn poll(&mut self) -> Option<()> {
        while self.queue.read().is_some() {}
        match self.events.read() {
            Some(Ok(ControlEvent::Connected { .. } | ControlEvent::Shutdown { .. })) => Some(()),
            Some(other) => panic!("{other:?}"),
            None => None,
        }
    }

    /// Whether there was room for it.
    fn say(&self, message: efa::Message, bytes: &[u8]) -> bool {
        let Some(endpoint) = &self.endpoint else { return false };
        endpoint.send(message, bytes.to_vec(), 1).is_ok()
    }

    fn control(&self, bytes: &[u8]) -> bool {
        self.say(efa::Message::to(MsgEndpoint::PEER).tagged(CONTROL), bytes)
    }

    fn subscribe(&self, kind: u8, tag: u64) -> bool {
        let mut bytes = [0; 24];
        (bytes[0], bytes[2]) = (1, kind);
        bytes[8..16].copy_from_slice(&tag.to_le_bytes());
        self.control(&bytes)
    }
}

// conformance: D47 D54
#[test]
fn control_messages_of_any_bytes_are_ignored_and_counted_and_others_go_on() {
    for seed in seeds() {
        let world = hard(seed, 2, Options::default());
        let mut stage = Stage::new(world, PublishOptions::default(), &[7]);
        let world = &mut stage.world;
        let mut raw = Raw::connected(world, stage.port);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut ignored = 0;
        for round in 0..200 {
            let length = [0, 1, 23, 24, 25, 100, 9_000, 40_000][rng.usize(..8)];
            let mut bytes = vec![0; length];
            rng.fill(&mut bytes);
            // No version of this protocol.
            bytes.iter_mut().take(1).for_each(|version| *version = 9);
            while !raw.control(&bytes) {
                raw.poll();
                world.turn();
            }
            ignored += 1;
            if round % 20 == 0 {
                let published = world.netio(0).publish(stage.publisher, 7, part(&stage.pool, 0, 9));
                assert!(matches!(published, Published::UnderWay));
                assert_eq!(world.message(1).0, 7);
            }
        }
        world.until("all of them", |world| {
            raw.poll();
            (world.netio(0).counts().ignored == ignored).then_some(())
        });
        // Control messages of the other side are not for it either.
        for kind in [3, 4] {
            raw.subscribe(kind, 1);
        }
        // What is well said works all the same.
        raw.subscribe(1, 5);
        world.until("a subscription", |world| {
            raw.poll();
            (world.netio(0).subscriber_count(stage.publisher, 5) == 1).then_some(())
        });
        assert_eq!(world.netio(0).counts().ignored, ignored + 2);
        drop(raw);
        subscriber_closed(world, 0);
        assert_eq!(world.netio(0).subscriber_count(stage.publisher, 5), 0);
    }
}

// conformance: D24 D41
#[test]
fn message_longer_than_the_subscribers_buffers_ends_its_connection_only() {
    for seed in seeds() {
        for length in [1_001, 9_000, 40_000] {
            let mut world = hard(seed, 3, Options::default());
            let pool = world.pool(0, 100_000);
            let (publisher, port) = world.publisher(0, &pool, PublishOptions::default());
            let buffers = Buffers { count: 8, size: 1_000 };
            let short = SubscribeOptions::default().buffers(buffers);
            let socket = world.subscriber(1, port, &[7], short);
            world.subscriber(2, port, &[7], SubscribeOptions::default());
            // Two of them, one behind the other.
            for (key, length) in [(1, 1_000), (2, length), (3, length), (4, 1)] {
                let message = part(&pool, 0, length).key(key);
                let published = world.netio(0).publish(publisher, 7, message);
                assert!(matches!(published, Published::UnderWay));
            }
            let reason =
                |lost| ClosedReason::TooLong { length: length as u64, capacity: 1_000, lost };
            assert_eq!(closed(&mut world, 1, socket), reason(None), "seed {seed}, {length} bytes");
            assert_eq!(subscriber_closed(&mut world, 0), reason(Some(3)));
            let short: Vec<_> = messages(&mut world, 1).iter().map(|found| found.1.len()).collect();
            assert_eq!(short, [1_000], "nothing behind the one that is missing");
            world.rest();
            assert_eq!(messages(&mut world, 2).len(), 4);
            assert_eq!(publications(&mut world).len(), 4);
            // The socket can be used again.
            world.netio(1).reconnect(socket).unwrap();
            world.subscribed(1, socket, 7);
            let _ = world.netio(0).publish(publisher, 7, part(&pool, 0, 5));
            assert_eq!(world.message(1).1.len(), 5);
        }
    }
}

// conformance: D24
#[test]
fn too_long_message_to_a_subscriber_that_leaves_is_told_without_a_timeout() {
    for seed in seeds() {
        let mut world = hard(seed, 2, Options::default());
        let pool = world.pool(0, 100_000);
        let (publisher, port) = world.publisher(0, &pool, PublishOptions::default());
        let short = SubscribeOptions::default().buffers(Buffers { count: 8, size: 1_000 });
        let socket = world.subscriber(1, port, &[7], short);
        let published = world.netio(0).publish(publisher, 7, part(&pool, 0, 2_000));
        assert!(matches!(published, Published::UnderWay));
        world.netio(1).unsubscribe(socket, 7).unwrap();
        let reason = |lost| ClosedReason::TooLong { length: 2_000, capacity: 1_000, lost };
        assert_eq!(closed(&mut world, 1, socket), reason(None));
        assert_eq!(subscriber_closed(&mut world, 0), reason(Some(1)));
    }
}

#[test]
fn connected_socket_is_of_the_subscriber() {
    let mut world = World::new(1, 2);
    let pool = world.pool(0, 100);
    let (_, port) = world.publisher(0, &pool, PublishOptions::default());
    let socket = world.netio(1).subscribe_socket(HOST, port, SubscribeOptions::default());
    world.netio(1).subscribe(socket, 7).unwrap();
    let connected = world.event(1, "Connected", |event| match event {
        Event::Connected(socket) => Some(*socket),
        _ => None,
    });
    assert_eq!(connected, AnySocket::from(socket));
}

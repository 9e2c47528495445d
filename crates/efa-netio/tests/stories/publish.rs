//! Publish and subscribe.

use efa_netio::{Event, PublishOptions, Published, SubscribeOptions};

use crate::world::{World, part, pattern};

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

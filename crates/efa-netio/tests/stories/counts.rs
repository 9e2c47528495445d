//! What a publisher counts of each subscriber.

use std::time::Duration;

use efa_netio::{
    Buffers, ClosedReason, Completion, Event, Message, Options, PublishOptions, Published, Slow,
    SubscribeOptions, SubscriberCounts, Wait, WhenFull,
};

use crate::hard::{Stage, hard, messages, seeds};
use crate::world::{World, part};

/// A publisher, and so many subscribers of tag 7; connections have room for two messages.
fn stage(seed: u64, subscribers: usize, options: PublishOptions) -> Stage {
    let narrow = Options::default().with(|options| options.sends = 2);
    let options = options.completion(Completion::Delivered);
    Stage::new(hard(seed, 1 + subscribers, narrow), options, &[7])
}

/// Those of the subscribers of the moment, by the number of messages that they got.
fn counts(stage: &mut Stage) -> Vec<SubscriberCounts> {
    let publisher = stage.publisher;
    let mut found: Vec<_> = stage.world.netio(0).subscribers(publisher).collect();
    found.sort_by_key(|counts| counts.delivered);
    found
}

/// The last ones of the next subscriber that is gone.
fn last_counts(world: &mut World) -> (ClosedReason, SubscriberCounts) {
    world.event(0, "SubscriberClosed", |event| match event {
        Event::SubscriberClosed { reason, counts, .. } => Some((reason.clone(), **counts)),
        _ => None,
    })
}

/// Publishes the next message, if there is room.
fn publish(stage: &mut Stage, published: &mut u64) {
    let message: Message = part(&stage.pool, 0, 100);
    match stage.world.netio(0).publish(stage.publisher, 7, message) {
        Published::UnderWay => *published += 1,
        Published::Again(_) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn counts_of_a_subscriber_that_stops_have_what_is_queued_for_it_and_lost_with_it() {
    for seed in seeds() {
        let options = PublishOptions::default().when_full(WhenFull::Resume).outstanding(8);
        let mut stage = stage(seed, 3, options);
        assert!(counts(&mut stage).iter().all(|counts| counts.tags == 1 && counts.queued == 0));
        let mut published = 0;
        for _ in 0..3 {
            publish(&mut stage, &mut published);
            stage.world.rest();
        }
        for _ in 0..3_000 {
            publish(&mut stage, &mut published);
            stage.world.turn_without(&[2]);
        }
        let found = counts(&mut stage);
        assert_eq!(found.len(), 3);
        for counts in &found {
            assert_eq!(counts.delivered + counts.lost + counts.queued, published, "{counts:?}");
            assert_eq!(counts.lost, 0);
        }
        let stopped = found[0];
        assert_eq!((stopped.delivered, stopped.queued), (3, 8), "all objects: {stopped:?}");
        assert_eq!(stopped.sent, 3 + 2, "there is room for two: {stopped:?}");
        assert!(found[1..].iter().all(|counts| counts.delivered > 3), "{found:?}");
        stage.world.kill(2);
        let (reason, last) = last_counts(&mut stage.world);
        assert_eq!(reason, ClosedReason::PeerGone);
        assert_eq!((last.peer, last.sent, last.tags), (stopped.peer, stopped.sent, 0));
        assert_eq!((last.delivered, last.lost, last.queued), (3, published - 3, 0));
        stage.world.rest();
        let left = counts(&mut stage);
        assert!(left.iter().all(|it| (it.delivered, it.lost, it.queued) == (published, 0, 0)));
        assert_eq!(left.len(), 2);
    }
}

#[test]
fn subscriber_disconnected_as_slow_is_counted_as_without_what_it_was_owed() {
    let mut stage = stage(
        1,
        2,
        PublishOptions::default()
            .when_full(WhenFull::Resume)
            .slow(Slow::Disconnect(Duration::from_millis(2))),
    );
    let mut published = 0;
    for _ in 0..5 {
        publish(&mut stage, &mut published);
    }
    let (reason, last) = loop {
        stage.world.turn_without(&[1]);
        let found = stage.world.take(0, |event| match event {
            Event::SubscriberClosed { reason, counts, .. } => Some((reason.clone(), **counts)),
            _ => None,
        });
        if let Some((_, found)) = found {
            break found;
        }
    };
    assert_eq!(reason, ClosedReason::Slow);
    assert_eq!((last.sent, last.delivered, last.lost, last.queued), (2, 0, 5, 0));
}

#[test]
fn publication_given_up_with_its_token_is_lost_at_those_it_was_owed() {
    let mut stage = stage(1, 2, PublishOptions::default());
    let mut under_way = 0;
    let token = loop {
        let message = part(&stage.pool, 0, 100);
        match stage.world.netio(0).publish(stage.publisher, 7, message) {
            Published::UnderWay => under_way += 1,
            Published::Partial(token) => break token,
            Published::Again(_) => {}
            other => panic!("{other:?}"),
        }
        (0..300).for_each(|_| stage.world.turn_without(&[1]));
    };
    drop(token);
    stage.world.rest();
    let found = counts(&mut stage);
    let numbers = found.iter().map(|it| (it.sent, it.delivered, it.lost, it.queued));
    let (all, most) = (under_way + 1, under_way);
    assert_eq!(numbers.collect::<Vec<_>>(), [(most, most, 1, 0), (all, all, 0, 0)]);
}

#[test]
fn messages_from_a_too_long_one_on_are_lost_in_the_counts_though_they_were_complete() {
    for seed in seeds() {
        let mut world = hard(seed, 2, Options::default());
        let pool = world.pool(0, 100_000);
        let (publisher, port) = world.publisher(0, &pool, PublishOptions::default());
        let short = SubscribeOptions::default().buffers(Buffers { count: 8, size: 1_000 });
        world.subscriber(1, port, &[7], short);
        for length in [1_000, 2_000, 3, 4] {
            let published = world.netio(0).publish(publisher, 7, part(&pool, 0, length));
            assert!(matches!(published, Published::UnderWay));
        }
        let (reason, last) = last_counts(&mut world);
        assert!(matches!(reason, ClosedReason::TooLong { lost: Some(3), .. }), "{reason}");
        assert_eq!((last.sent, last.delivered, last.lost, last.queued), (4, 1, 3, 0));
    }
}

#[test]
fn what_arrived_before_a_too_long_message_stays_delivered_while_the_connection_ends() {
    for seed in seeds() {
        let mut world = hard(seed, 2, Options::default());
        let pool = world.pool(0, 100_000);
        let options = PublishOptions::default().completion(Completion::Delivered);
        let (publisher, port) = world.publisher(0, &pool, options);
        let short = SubscribeOptions::default().buffers(Buffers { count: 8, size: 1_000 });
        world.subscriber(1, port, &[7], short);
        let (mut published, mut delivered) = (0, vec![0]);
        for turn in 0.. {
            assert!(turn < 100_000, "the subscriber is still there");
            let counts = world.netio(0).subscribers(publisher).next();
            let Some(counts) = counts else { break };
            assert_eq!(counts.delivered + counts.lost + counts.queued, published, "{counts:?}");
            delivered.push(counts.delivered);
            let length = if published == 20 { 2_000 } else { 10 };
            match world.netio(0).publish(publisher, 7, part(&pool, 0, length)) {
                Published::UnderWay => published += 1,
                Published::Again(_) | Published::NoSubscribers(_) => {}
                other => panic!("{other:?}"),
            }
            // A poll returns one event, and the end of the connection takes several.
            while let Some(event) = world.netio(0).poll(Wait::No).unwrap() {
                world.nodes[0].events.push(event);
                let counts = world.netio(0).subscribers(publisher).next();
                delivered.extend(counts.map(|counts| counts.delivered));
            }
            world.turn_without(&[0]);
            messages(&mut world, 1);
        }
        let (_, last) = last_counts(&mut world);
        assert!(0 < last.delivered && last.delivered <= 20, "{last:?}");
        assert_eq!((last.delivered + last.lost, last.queued), (published, 0));
        let goes_back = |two: &[u64]| two[1] < two[0].min(last.delivered);
        assert!(!delivered.windows(2).any(goes_back), "{delivered:?}");
    }
}

#[test]
fn counts_of_a_publisher_that_is_gone_or_has_no_subscribers_are_none() {
    let mut world = World::new(1, 1);
    let pool = world.pool(0, 100);
    let (publisher, _) = world.publisher(0, &pool, PublishOptions::default());
    assert_eq!(world.netio(0).subscribers(publisher).count(), 0);
    world.netio(0).close(publisher);
    assert_eq!(world.netio(0).subscribers(publisher).count(), 0);
}

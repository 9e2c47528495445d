//! Publications that not all subscribers can take at once.

use std::time::Duration;

use efa_netio::{
    ClosedReason, Completion, Event, Options, PublishOptions, Published, Reentry, Slow,
    SubscribeOptions, WhenFull,
};

use crate::hard::{
    Stage, hard, messages, publications, refuse, resumed, seeds, subscriber_closed, writable,
};
use crate::world::{World, part};

/// Two messages under way at most on each connection.
fn narrow() -> Options {
    Options::default().with(|options| options.sends = 2)
}

fn delivered() -> PublishOptions {
    PublishOptions::default().completion(Completion::Delivered)
}

/// A publisher and so many subscribers of tag 7; connections have room for two messages.
fn stage(seed: u64, subscribers: usize, options: PublishOptions) -> Stage {
    let stage = Stage::new(hard(seed, 1 + subscribers, narrow()), options, &[7]);
    refuse(&stage.world);
    stage
}

impl Stage {
    /// Publishes under tag 7 a message that is of this number.
    fn number(&mut self, number: u64) -> Published {
        let message = part(&self.pool, number as usize, 10 + number as usize).key(number);
        self.world.netio(0).publish(self.publisher, 7, message)
    }

    /// The numbers of the messages that a node has reported.
    fn numbers(&mut self, node: usize) -> Vec<u64> {
        let found = self.messages(node);
        found.iter().map(|(_, bytes)| bytes.len() as u64 - 10).collect()
    }

    /// Stops nodes, and publishes from this number on until they have no room. Returns the token of the first one that
    /// not all can take, and its number.
    fn filled(&mut self, stopped: &[usize], mut number: u64) -> (Reentry, u64) {
        for _ in 0..100 {
            match self.number(number) {
                Published::UnderWay => number += 1,
                Published::Partial(token) => return (token, number),
                // One that is not stopped is full as well.
                Published::Again(_) => {}
                other => panic!("{other:?}"),
            }
            self.turns_without(300, stopped);
        }
        panic!("they take all");
    }
}

// conformance: D57 D61 D62
#[test]
fn publication_reaches_five_subscribers_once_though_two_of_them_stop_again_and_again() {
    for seed in seeds() {
        let mut stage = stage(seed, 5, delivered());
        let mut next = 0;
        for round in 0..6 {
            let stopped = [1 + round % 5, 1 + (round + 2) % 5];
            let (mut token, number) = stage.filled(&stopped, next);
            // Repeated, it goes to nobody who has it.
            for _ in 0..5 {
                assert_eq!(token.tag(), 7);
                match stage.world.netio(0).resume(token) {
                    Published::Partial(same) => token = same,
                    other => panic!("{other:?}"),
                }
                stage.turns_without(100, &stopped);
            }
            let done = publications(&mut stage.world);
            assert!(done.iter().all(|(key, ..)| *key < next), "two have not got any");
            resumed(&mut stage.world, stage.publisher, token);
            next = number + 1;
            stage.world.rest();
            stage.world.rest();
        }
        let expected: Vec<_> = (0..next).collect();
        for node in 1..=5 {
            assert_eq!(stage.numbers(node), expected, "seed {seed}, node {node}");
        }
        stage.is_idle_with(5);
    }
}

// conformance: D37 D61
#[test]
fn later_publication_never_overtakes_one_that_is_owed() {
    for seed in seeds() {
        let mut stage = stage(seed, 3, delivered());
        let (token, owed) = stage.filled(&[2], 0);
        // There is room again, and the token is not used yet.
        stage.world.rest();
        let mut tokens = vec![token];
        for number in owed + 1..owed + 4 {
            match stage.number(number) {
                Published::Partial(token) => tokens.push(token),
                other => panic!("{other:?}"),
            }
            stage.world.rest();
        }
        // In the wrong order.
        for token in tokens.drain(..).rev().collect::<Vec<_>>() {
            match stage.world.netio(0).resume(token) {
                Published::Partial(token) => tokens.push(token),
                Published::UnderWay => {}
                other => panic!("{other:?}"),
            }
        }
        for token in tokens.into_iter().rev() {
            resumed(&mut stage.world, stage.publisher, token);
        }
        stage.world.rest();
        for node in 1..=3 {
            assert_eq!(stage.numbers(node), (0..owed + 4).collect::<Vec<_>>());
        }
        stage.is_idle_with(3);
    }
}

// conformance: D60
#[test]
fn again_gave_nobody_anything_and_the_retry_gives_each_one_copy() {
    for seed in seeds() {
        let mut stage = stage(seed, 3, delivered());
        let mut next = 0;
        for _ in 0..8 {
            // All stop.
            let message = loop {
                match stage.number(next) {
                    Published::UnderWay => next += 1,
                    Published::Again(message) => break message,
                    // Refused sends of the device.
                    Published::Partial(token) => {
                        resumed(&mut stage.world, stage.publisher, token);
                        next += 1;
                    }
                    other => panic!("{other:?}"),
                }
            };
            let mut message = Some(message);
            while let Some(again) = message.take() {
                writable(&mut stage.world, stage.publisher);
                match stage.world.netio(0).publish(stage.publisher, 7, again) {
                    Published::UnderWay => {}
                    Published::Again(again) => message = Some(again),
                    Published::Partial(token) => {
                        resumed(&mut stage.world, stage.publisher, token);
                    }
                    other => panic!("{other:?}"),
                }
            }
            next += 1;
        }
        stage.world.rest();
        for node in 1..=3 {
            assert_eq!(stage.numbers(node), (0..next).collect::<Vec<_>>());
        }
        stage.is_idle_with(3);
    }
}

// conformance: D60
#[test]
fn publication_refused_behind_a_token_is_writable_once_the_token_is_done() {
    for when in ["resumed", "dropped", "killed"] {
        let mut stage = stage(1, 2, delivered());
        stage.world.netio(1).subscribe(stage.subscribers[1], 8).unwrap();
        let socket = stage.subscribers[1];
        stage.world.subscribed(1, socket, 8);
        let (token, _) = stage.filled(&[1], 0);
        stage.world.rest();
        stage.world.nodes[0].events.clear();
        // There is room, but the token comes first.
        let message = part(&stage.pool, 0, 5).key(99);
        let published = stage.world.netio(0).publish(stage.publisher, 8, message.clone());
        assert!(matches!(published, Published::Again(_)), "{published:?}");
        stage.world.quiet(0);
        match when {
            "resumed" => resumed(&mut stage.world, stage.publisher, token),
            "dropped" => drop(token),
            _ => stage.world.kill(1),
        }
        writable(&mut stage.world, stage.publisher);
        let published = stage.world.netio(0).publish(stage.publisher, 8, message);
        match when {
            "killed" => assert!(matches!(published, Published::NoSubscribers(_))),
            _ => assert!(matches!(published, Published::UnderWay), "{published:?}"),
        }
    }
}

// conformance: D60
#[test]
fn short_messages_that_need_no_memory_become_writable_again_though_none_is_under_way() {
    for seed in seeds() {
        for length in [1, 1_000, 8_000] {
            let mut stage = stage(seed, 1, PublishOptions::default());
            let mut sent = 0;
            let mut refused = None;
            for _ in 0..200_000 {
                let message = part(&stage.pool, 0, length).key(sent);
                match stage.world.netio(0).publish(stage.publisher, 7, message) {
                    Published::UnderWay => sent += 1,
                    Published::Again(message) => {
                        refused = Some(message);
                        break;
                    }
                    other => panic!("{other:?}"),
                }
                stage.turns_without(1, &[1]);
            }
            let message = refused.expect("a connection with bounds");
            stage.turns_without(20_000, &[1]);
            stage.world.nodes[0].events.retain(|event| !matches!(event, Event::Writable(_)));
            let mut message = Some(message);
            while let Some(again) = message.take() {
                match stage.world.netio(0).publish(stage.publisher, 7, again) {
                    Published::UnderWay => sent += 1,
                    Published::Again(again) => {
                        message = Some(again);
                        writable(&mut stage.world, stage.publisher);
                    }
                    other => panic!("{other:?}"),
                }
            }
            let mut arrived = 0;
            stage.world.until("all of them", |world| {
                arrived += messages(world, 1).len() as u64;
                (arrived == sent).then_some(())
            });
        }
    }
}

// conformance: D57 D61
#[test]
fn dropped_token_ends_its_publication_once_and_those_owed_are_lost() {
    for seed in seeds() {
        let mut stage = stage(seed, 4, delivered());
        let (token, number) = stage.filled(&[1, 2], 0);
        drop(token);
        stage.world.rest();
        let (last, before) = {
            let mut done = publications(&mut stage.world);
            done.sort_unstable();
            (done.pop().unwrap(), done)
        };
        assert!(before.iter().all(|(_, served, lost)| (*served, *lost) == (4, 0)));
        assert_eq!((last.0, last.1 + last.2), (number, 4));
        assert!((1..=2).contains(&last.2));
        let next = number + 1;
        match stage.number(next) {
            Published::UnderWay => {}
            Published::Partial(token) => resumed(&mut stage.world, stage.publisher, token),
            other => panic!("{other:?}"),
        }
        stage.world.rest();
        assert_eq!(publications(&mut stage.world), [(next, 4, 0)]);
        let mut missing = 0;
        for node in 1..=4 {
            let numbers = stage.numbers(node);
            let whole: Vec<_> = (0..=next).collect();
            let short: Vec<_> = (0..=next).filter(|found| *found != number).collect();
            assert!(numbers == whole || numbers == short, "{numbers:?}");
            missing += u32::from(numbers == short);
        }
        assert_eq!(missing, last.2);
        stage.is_idle_with(4);
    }
}

#[test]
fn closed_publisher_gives_what_a_token_is_out_for_by_itself() {
    for seed in seeds() {
        for resumes in [false, true] {
            let mut stage = stage(seed, 2, delivered());
            let (token, number) = stage.filled(&[2], 0);
            let publisher = stage.publisher;
            stage.world.netio(0).close(publisher);
            // A hundredth of the time after which the connections would be given up.
            (0..15).for_each(|_| stage.world.rest());
            for _ in 0..2 {
                let reason = subscriber_closed(&mut stage.world, 0);
                assert_eq!(reason, ClosedReason::Disconnected);
            }
            let mut done = publications(&mut stage.world);
            done.sort_unstable();
            let expected: Vec<_> = (0..=number).map(|number| (number, 2, 0)).collect();
            assert_eq!(done, expected, "seed {seed}");
            for node in [1, 2] {
                assert_eq!(stage.numbers(node), (0..=number).collect::<Vec<_>>());
            }
            match resumes {
                true => {
                    let resumed = stage.world.netio(0).resume(token);
                    assert!(matches!(resumed, Published::UnderWay), "{resumed:?}");
                }
                false => drop(token),
            }
            stage.world.rest();
            assert_eq!(publications(&mut stage.world), []);
            stage.is_idle_with(0);
        }
    }
}

#[test]
fn token_dropped_after_its_publisher_was_closed_loses_nothing() {
    for seed in seeds() {
        let mut stage = stage(seed, 2, delivered());
        let (token, number) = stage.filled(&[2], 0);
        let publisher = stage.publisher;
        stage.world.netio(0).close(publisher);
        drop(token);
        (0..15).for_each(|_| stage.world.rest());
        let mut done = publications(&mut stage.world);
        done.sort_unstable();
        assert!(done.iter().all(|(_, served, lost)| (*served, *lost) == (2, 0)), "seed {seed}");
        assert_eq!(done.len() as u64, number + 1);
        for _ in 0..2 {
            assert_eq!(subscriber_closed(&mut stage.world, 0), ClosedReason::Disconnected);
        }
        assert_eq!(stage.numbers(2), (0..=number).collect::<Vec<_>>());
        stage.is_idle_with(0);
    }
}

// conformance: D64
#[test]
fn token_of_another_context_comes_back_as_it_is() {
    let mut stage = stage(1, 2, delivered());
    let (token, number) = stage.filled(&[1], 0);
    let other = stage.world.add(Options::default());
    let Published::Partial(token) = stage.world.netio(other).resume(token) else {
        panic!("it is not of this context");
    };
    resumed(&mut stage.world, stage.publisher, token);
    stage.world.rest();
    assert_eq!(stage.numbers(1), (0..=number).collect::<Vec<_>>());
}

// conformance: D68 D73
#[test]
fn token_whose_subscribers_have_all_died_is_under_way_and_was_reported_once() {
    for seed in seeds() {
        let mut stage = stage(seed, 3, delivered().outstanding(8));
        let (token, number) = stage.filled(&[1, 2], 0);
        (1..=3).for_each(|node| stage.world.kill(node));
        for _ in 1..=3 {
            assert_eq!(subscriber_closed(&mut stage.world, 0), ClosedReason::PeerGone);
        }
        stage.world.rest();
        let done = publications(&mut stage.world);
        assert_eq!(done.len() as u64, number + 1);
        assert!(done.iter().all(|(_, served, lost)| served + lost == 3));
        assert!(matches!(stage.world.netio(0).resume(token), Published::UnderWay));
        stage.world.rest();
        assert_eq!(publications(&mut stage.world), []);
        stage.is_idle_with(0);
        assert!(matches!(stage.number(0), Published::NoSubscribers(_)));
    }
}

// conformance: D68
#[test]
fn subscriber_that_comes_during_a_partial_publication_gets_only_later_ones() {
    for seed in seeds() {
        let mut stage = stage(seed, 3, delivered());
        let (token, number) = stage.filled(&[2], 0);
        let node = stage.world.add(narrow());
        stage.world.subscriber(node, stage.port, &[7], SubscribeOptions::default());
        resumed(&mut stage.world, stage.publisher, token);
        stage.world.rest();
        let published = stage.number(number + 1);
        assert!(matches!(published, Published::UnderWay), "{published:?}");
        stage.world.rest();
        assert_eq!(stage.numbers(node), [number + 1]);
        let mut done = publications(&mut stage.world);
        done.sort_unstable();
        assert_eq!(done[number as usize..], [(number, 3, 0), (number + 1, 4, 0)]);
    }
}

// conformance: D46 D68
#[test]
fn subscriber_that_leaves_during_a_partial_publication_gets_nothing_after_its_end() {
    for seed in seeds() {
        for keeps_another in [false, true] {
            let mut stage = stage(seed, 3, delivered());
            let socket = stage.subscribers[2];
            if keeps_another {
                stage.world.netio(2).subscribe(socket, 8).unwrap();
                stage.world.subscribed(2, socket, 8);
            }
            let (token, number) = stage.filled(&[2], 0);
            stage.world.netio(2).unsubscribe(socket, 7).unwrap();
            stage.world.event(2, "Unsubscribed", |event| {
                matches!(event, Event::Unsubscribed { tag: 7, .. }).then_some(())
            });
            let before = stage.numbers(2);
            assert_eq!(before, (0..number).collect::<Vec<_>>());
            assert!(matches!(stage.world.netio(0).resume(token), Published::UnderWay));
            stage.world.rest();
            assert_eq!(stage.numbers(2), []);
            let mut done = publications(&mut stage.world);
            done.sort_unstable();
            assert_eq!(done.last(), Some(&(number, 2, 1)));
            stage.is_idle_with(2 + usize::from(keeps_another));
        }
    }
}

// conformance: D53 D73
#[test]
fn subscriber_killed_during_a_partial_publication_gives_all_objects_back() {
    for seed in seeds() {
        let mut stage = stage(seed, 3, delivered().outstanding(3));
        let (token, number) = stage.filled(&[2], 0);
        stage.world.kill(2);
        subscriber_closed(&mut stage.world, 0);
        stage.world.rest();
        let published = stage.world.netio(0).resume(token);
        assert!(matches!(published, Published::UnderWay));
        stage.world.rest();
        let mut done = publications(&mut stage.world);
        done.sort_unstable();
        assert_eq!(done.last(), Some(&(number, 2, 1)));
        stage.is_idle_with(2);
        // Three at a time, all objects that there are.
        for number in 0..2 {
            assert!(matches!(stage.number(number), Published::UnderWay));
        }
    }
}

// conformance: D37 D61
#[test]
fn context_that_resumes_by_itself_never_answers_partial_and_all_arrive_in_order() {
    for seed in seeds() {
        let mut stage = stage(seed, 5, delivered().when_full(WhenFull::Resume).outstanding(16));
        let (mut next, mut arrived) = (0, vec![Vec::new(); 6]);
        for turn in 0..6_000_usize {
            match stage.number(next) {
                Published::UnderWay => next += 1,
                Published::Again(_) => {}
                other => panic!("{other:?}"),
            }
            let (one, other) = (1 + turn / 700 % 5, 1 + turn / 900 % 5);
            stage.world.turn_without(&[one, other]);
            (1..=5).for_each(|node| arrived[node].extend(stage.numbers(node)));
        }
        assert!(next > 30, "{next}");
        stage.world.until("all objects", |world| {
            (world.netio(0).counts().publications == 0).then_some(())
        });
        stage.world.rest();
        let mut done = publications(&mut stage.world);
        done.sort_unstable();
        assert_eq!(done, (0..next).map(|number| (number, 5, 0)).collect::<Vec<_>>());
        for (node, arrived) in arrived.iter_mut().enumerate().skip(1) {
            arrived.extend(stage.numbers(node));
            assert_eq!(*arrived, (0..next).collect::<Vec<_>>());
        }
        stage.is_idle_with(5);
    }
}

#[test]
fn stopped_subscriber_is_disconnected_after_its_time_and_an_active_one_is_not() {
    let after = Duration::from_millis(2);
    for seed in seeds() {
        for idle in [0, 1_700] {
            let options = delivered().when_full(WhenFull::Resume).slow(Slow::Disconnect(after));
            let mut stage = stage(seed, 3, options.outstanding(8));
            // Whoever is owed nothing is not slow.
            stage.turns_without(idle, &[1]);
            let begin = stage.world.fabric.now();
            let (mut next, mut arrived) = (0, vec![Vec::new(); 4]);
            let end = loop {
                match stage.number(next) {
                    Published::UnderWay => next += 1,
                    Published::Again(_) => {}
                    other => panic!("{other:?}"),
                }
                stage.world.turn_without(&[1]);
                let is = |event: &Event| match event {
                    Event::SubscriberClosed { reason, .. } => Some(reason.clone()),
                    _ => None,
                };
                if let Some((_, reason)) = stage.world.take(0, is) {
                    assert_eq!(reason, ClosedReason::Slow);
                    break stage.world.fabric.now() - begin;
                }
                assert!(stage.world.fabric.now() - begin < after * 3, "it stays");
            };
            assert!((after..after * 2).contains(&end), "after {end:?}");
            let before = next;
            for _ in 0..2_000 {
                match stage.number(next) {
                    Published::UnderWay => next += 1,
                    Published::Again(_) => {}
                    other => panic!("{other:?}"),
                }
                stage.world.turn_without(&[1]);
                (2..=3).for_each(|node| arrived[node].extend(stage.numbers(node)));
            }
            stage.world.rest();
            assert!(next > before + 20, "the others go on: {next}");
            for node in [2, 3] {
                arrived[node].extend(stage.numbers(node));
                assert_eq!(arrived[node], (0..next).collect::<Vec<_>>());
            }
            stage.is_idle_with(2);
        }
    }
}

#[test]
fn stopped_subscriber_is_disconnected_also_if_the_publisher_always_looks_late() {
    let after = Duration::from_millis(2);
    let options = delivered().when_full(WhenFull::Resume).slow(Slow::Disconnect(after));
    let mut stage = stage(1, 2, options.outstanding(8));
    assert!(matches!(stage.number(0), Published::UnderWay));
    let is_closed = |event: &Event| match event {
        Event::SubscriberClosed { reason, .. } => Some(reason.clone()),
        _ => None,
    };
    for look in 1.. {
        assert!(look < 12, "it stays");
        // In one of 64 turns it looks at the time.
        stage.turns_without(65, &[1]);
        if let Some((_, reason)) = stage.world.take(0, is_closed) {
            assert_eq!(reason, ClosedReason::Slow);
            break;
        }
        stage.world.pass(after);
    }
}

#[test]
fn subscriber_stays_after_a_time_in_which_the_publisher_stood_still() {
    let after = Duration::from_millis(2);
    // A context looks at the time in one of 64 turns.
    for turns in 1_000..1_064 {
        let options = delivered().when_full(WhenFull::Resume).slow(Slow::Disconnect(after));
        let mut stage = stage(1, 2, options.outstanding(8));
        assert!(matches!(stage.number(0), Published::UnderWay));
        // The publisher has seen for a while that one takes nothing.
        stage.turns_without(turns, &[1]);
        stage.world.pass(after * 2);
        stage.turns_without(1_000, &[]);
        let is_closed =
            |event: &Event| matches!(event, Event::SubscriberClosed { .. }).then_some(());
        assert!(stage.world.take(0, is_closed).is_none(), "after {turns} turns");
        assert_eq!(publications(&mut stage.world), [(0, 2, 0)]);
        stage.is_idle_with(2);
    }
}

#[test]
fn subscriber_with_room_stays_however_long_the_program_keeps_the_token_of_what_it_is_owed() {
    let after = Duration::from_millis(2);
    for seed in seeds() {
        let mut stage = stage(seed, 2, delivered().slow(Slow::Disconnect(after)));
        let (token, number) = stage.filled(&[2], 0);
        stage.turns_without(12_000, &[]);
        resumed(&mut stage.world, stage.publisher, token);
        stage.world.rest();
        for node in [1, 2] {
            assert_eq!(stage.numbers(node), (0..=number).collect::<Vec<_>>(), "node {node}");
        }
        stage.is_idle_with(2);
    }
}

// conformance: D36 D57
#[test]
fn stopped_subscriber_affects_no_other_until_the_objects_are_used_up() {
    for seed in seeds() {
        let options = delivered().when_full(WhenFull::Resume).outstanding(8);
        let mut world = hard(seed, 4, narrow());
        let pool = world.pool(0, 200_000);
        let (publisher, port) = world.publisher(0, &pool, options);
        world.subscriber(1, port, &[7], SubscribeOptions::default());
        world.subscriber(2, port, &[7, 8], SubscribeOptions::default());
        world.subscriber(3, port, &[8], SubscribeOptions::default());
        let publish = |world: &mut World, tag| {
            world.netio(0).publish(publisher, tag, part(&pool, 0, 10).key(tag))
        };
        let rest = |world: &mut World| (0..2_000).for_each(|_| world.turn_without(&[1]));
        for used in 1..=7 {
            assert!(matches!(publish(&mut world, 7), Published::UnderWay));
            rest(&mut world);
            assert_eq!(world.netio(0).counts().publications, used);
            for _ in 0..3 {
                assert!(matches!(publish(&mut world, 8), Published::UnderWay));
                rest(&mut world);
                assert_eq!(publications(&mut world), [(8, 2, 0)]);
            }
            assert_eq!(messages(&mut world, 2).len(), 4);
            assert_eq!(messages(&mut world, 3).len(), 3);
        }
        assert!(matches!(publish(&mut world, 7), Published::UnderWay));
        rest(&mut world);
        assert!(matches!(publish(&mut world, 8), Published::Again(_)));
        // It goes on, and all are back.
        world.rest();
        assert_eq!(publications(&mut world), [(7, 2, 0); 8]);
        assert_eq!(messages(&mut world, 1).len(), 8);
        assert_eq!(world.netio(0).counts().publications, 0);
    }
}

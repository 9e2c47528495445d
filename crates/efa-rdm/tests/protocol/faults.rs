//! RNR, full queues and refused allocations: no message is lost or duplicated.

use std::time::Duration;

use efa_device::{QueuePairOptions, Rdma, Status, Time};
use efa_rdm::{Completion, Config, Level, Message};
use efa_sim::local::{Faults, LocalOptions, Reorder};

use crate::world::{World, pattern, place};

/// Messages of all sizes between three endpoints under faults.
fn exchange(seed: u64, faults: Faults, options: QueuePairOptions) -> World {
    let mut world = World::new(LocalOptions::default().with(|options| {
        options.seed = seed;
        options.faults = faults;
    }));
    for _ in 0..3 {
        let config = Config::default().with(|config| config.hash_seed = seed.into());
        world.add_with(config, options);
    }
    let sizes = [0, 5, 9_000, 30_000, 100_000, 700, 66_000];
    let mut random = fastrand::Rng::with_seed(seed);
    let mut expected = [0; 3];
    for i in 0..60 {
        let (from, hop) = (random.usize(0..3), random.usize(1..3));
        let to = (from + hop) % 3;
        let tag = i << 8 | (from as u64) << 4 | to as u64;
        let size = sizes[random.usize(0..sizes.len())];
        let early = random.bool();
        if early {
            world.tagged_receive(to, tag, size);
        }
        world.tagged_send(from, to, tag, pattern(size, tag));
        for _ in 0..random.usize(0..20) {
            world.step();
        }
        if !early {
            world.tagged_receive(to, tag, size);
        }
        expected[to] += 1;
    }
    world.drive();
    for (end, count) in expected.into_iter().enumerate() {
        let received: Vec<_> = world.ends[end].receives.drain(..).collect();
        assert_eq!(received.len(), count, "seed {seed}");
        for received in received {
            assert_eq!(received.result, Ok(()), "seed {seed}");
            assert!(received.buffer == pattern(received.buffer.len(), received.tag));
        }
        assert!(world.ends[end].sends.drain(..).all(|sent| sent.result == Ok(())));
    }
    world.assert_clean();
    world
}

#[test]
fn messages_arrive_once_if_receivers_are_often_not_ready() {
    for seed in 0..20 {
        let faults = Faults::default().with(|faults| faults.receiver_not_ready = 0.2);
        let options = QueuePairOptions::default().with(|options| options.rnr_retry = 0);
        let mut world = exchange(seed, faults, options);
        let returned: u64 =
            world.ends.iter_mut().map(|end| end.endpoint.statistics().receiver_not_ready).sum();
        let again: u64 =
            world.ends.iter_mut().map(|end| end.endpoint.statistics().retransmitted).sum();
        assert!(returned > 0 && returned == again, "{returned} came back, {again} went again");
    }
}

#[test]
fn messages_arrive_once_under_refused_posts_and_late_packets() {
    for seed in 0..20 {
        let faults = Faults::default().with(|faults| {
            faults.late = 0.1;
            faults.late_by = Duration::from_millis(2);
            faults.send_refused = 0.2;
            faults.send_limit = Some(4);
            faults.allocation_refused = 0.1;
        });
        exchange(100 + seed, faults, QueuePairOptions::default());
    }
}

#[test]
fn messages_arrive_once_under_all_faults_with_tiny_queues() {
    for seed in 0..20 {
        let faults = Faults::default().with(|faults| {
            faults.late = 0.05;
            faults.late_by = Duration::from_millis(1);
            faults.receiver_not_ready = 0.1;
            faults.send_refused = 0.1;
        });
        let options = QueuePairOptions::default().with(|options| {
            options.send_depth = 3;
            options.receive_depth = 4;
            options.rnr_retry = 1;
        });
        exchange(200 + seed, faults, options);
    }
}

#[test]
fn peer_in_rnr_backoff_does_not_delay_others() {
    let mut world = World::pair(1);
    let slow = world.add_with(
        Config::default(),
        QueuePairOptions::default().with(|options| options.rnr_retry = 0),
    );
    let target = place(&world.ends[slow]);
    world.network.not_ready(target, 8).unwrap();
    let start = world.now;
    world.receive(slow, 10, 0);
    world.send(0, slow, pattern(10, 1), 0);
    for i in 0..20 {
        world.receive(1, 10, i);
        world.send(0, 1, pattern(10, i), 1 + i);
    }
    while world.ends[1].receives.len() < 20 {
        world.step();
    }
    assert!(world.now - start < Duration::from_micros(400), "{:?}", world.now - start);
    world.drive();
    assert_eq!(world.receive_done(slow).buffer, pattern(10, 1));
}

/// Two endpoints that have talked, on a network that keeps the order, and whose devices don't send packets again.
fn ordered_pair_that_reports_rnr_at_once() -> World {
    let options = LocalOptions::default().with(|options| options.reorder = Reorder::None);
    let mut world = World::new(options);
    for _ in 0..2 {
        let at_once = QueuePairOptions::default().with(|options| options.rnr_retry = 0);
        world.add_with(Config::default(), at_once);
    }
    world.receive(1, 10, 0);
    world.send(0, 1, pattern(10, 0), 0);
    world.drive();
    world
}

#[test]
fn packets_that_failed_with_rnr_are_sent_again_in_the_order_of_sending() {
    let mut world = ordered_pair_that_reports_rnr_at_once();
    // Each fails three times, so also after a backoff.
    let target = place(&world.ends[1]);
    world.network.not_ready(target, 30).unwrap();
    for i in 1..11 {
        world.receive(1, 10, i);
        world.send(0, 1, pattern(10, i), i);
    }
    world.drive();
    assert_eq!(world.endpoint(0).statistics().receiver_not_ready, 30);
    assert_eq!(world.endpoint(1).statistics().reordered, 0);
}

#[test]
fn packets_that_failed_with_rnr_are_sent_again_before_injected_messages_that_wait() {
    let mut world = ordered_pair_that_reports_rnr_at_once();
    let target = place(&world.ends[1]);
    // Each of the first ten fails, then each of all.
    world.network.not_ready(target, 40).unwrap();
    for i in 1..=30 {
        world.receive(1, 10, i);
    }
    for i in 1..=10 {
        world.send(0, 1, pattern(10, i), i);
    }
    // From the second on, others wait, while those under way come back.
    while world.endpoint(0).statistics().receiver_not_ready < 2 {
        world.step();
    }
    let peer = world.peer(0, 1);
    for i in 11..=30 {
        match i % 2 {
            0 => world.send(0, 1, pattern(10, i), i),
            _ => {
                let (level, buffer) = (Level::Transmit, &pattern(10, i)[..]);
                let message = Message { peer, tag: None, cq_data: None, level, buffer, context: 0 };
                world.endpoint(0).inject(message).unwrap();
            }
        }
    }
    world.drive();
    assert_eq!(world.endpoint(0).statistics().receiver_not_ready, 40);
    assert_eq!(world.endpoint(1).statistics().reordered, 0);
}

/// Steps, and advances the clock by one microsecond.
fn creep(world: &mut World) {
    let now = world.now;
    world.step();
    world.now = now + Duration::from_micros(1);
}

#[test]
fn late_completion_of_a_failed_send_affects_no_later_send() {
    let mut world = World::pair(8);
    let me = place(&world.ends[0]);
    world.receive(1, 10, 0);
    world.send(0, 1, pattern(10, 0), 0);
    world.drive();
    // The first packet fails at once, the second completes late.
    world.network.fail_sends(me, 1, Status::BadLength).unwrap();
    world.network.delay_sends(me, 1, Duration::from_secs(1)).unwrap();
    world.send(0, 1, pattern(12_000, 1), 1);
    while world.ends[0].sends.len() < 2 {
        creep(&mut world);
    }
    assert_eq!(world.endpoint(0).packets_held().sending, 1);
    // As many sends as it takes for the identifier to be reused; the last one completes late.
    for i in 0..1023 {
        world.send(0, 1, vec![1], i);
        while world.ends[0].sends.len() < 3 + i as usize {
            creep(&mut world);
        }
    }
    world.network.delay_sends(me, 1, Duration::from_secs(2)).unwrap();
    world.send(0, 1, pattern(5, 2), 5000);
    world.idle(Duration::from_millis(1500));
    assert!(world.ends[0].sends.iter().all(|sent| sent.context != 5000), "it is under way");
    world.drive();
    assert_eq!(world.ends[0].sends.back().map(|sent| sent.context), Some(5000));
}

/// Makes progress only at the timeouts of the endpoints.
fn drive_by_timeouts(world: &mut World) {
    for _ in 0..100_000 {
        let timers = world.ends.iter().filter_map(|end| end.endpoint.next_timeout()).min();
        let Some(next) = timers else { return };
        world.now = world.now.max(next);
        let now = world.now;
        world.step();
        world.now = now;
    }
    panic!("no end");
}

#[test]
fn progress_only_at_next_timeout_completes_all_operations() {
    for refused in ["sends", "packets"] {
        let mut world = World::pair(11);
        world.receive(1, 10, 0);
        let me = place(&world.ends[0]);
        if refused == "sends" {
            world.network.refuse_sends(me, 3).unwrap();
        } else {
            let faults = Faults::default().with(|faults| faults.allocation_refused = 1.0);
            world.network.set_faults(faults);
        }
        world.send(0, 1, pattern(10, 1), 0);
        world.network.set_faults(Faults::default());
        drive_by_timeouts(&mut world);
        assert_eq!(world.receive_done(1).buffer, pattern(10, 1), "{refused}");
        world.send_done(0);
    }
}

#[test]
fn refused_receive_buffers_are_allocated_later() {
    let faults = Faults::default().with(|faults| faults.allocation_refused = 1.0);
    let mut world = World::new(LocalOptions::default().with(|options| options.faults = faults));
    let patient = QueuePairOptions::default().with(|options| options.rnr_retry = 7);
    world.add_with(Config::default(), patient);
    world.add_with(Config::default(), patient);
    world.network.set_faults(Faults::default());
    assert_eq!(world.endpoint(1).packets_held().posted, 0);
    assert!(world.endpoint(1).next_timeout().is_some());
    world.receive(1, 10, 0);
    world.send(0, 1, pattern(10, 1), 0);
    drive_by_timeouts(&mut world);
    assert_eq!(world.receive_done(1).buffer, pattern(10, 1));
    assert_ne!(world.now, Time::ZERO);
    world.send_done(0);
}

#[test]
fn receive_for_unexpected_long_message_sets_a_timeout() {
    let mut world = World::pair(13);
    world.send(0, 1, pattern(200_000, 1), 0);
    world.drive();
    assert_eq!(world.endpoint(1).next_timeout(), None);
    world.receive(1, 200_000, 0);
    drive_by_timeouts(&mut world);
    assert!(world.receive_done(1).buffer == pattern(200_000, 1));
}

/// A receiver that is called seldom takes no more calls than its buffers make it take, however often the sender's packets
/// come back meanwhile.
#[test]
fn long_cts_to_a_receiver_that_is_seldom_called_goes_on_with_each_call() {
    const BUFFERS: usize = 16;
    let (length, messages, every) = (300_000, 4, Duration::from_millis(10));
    let config = Config::default().with(|config| {
        (config.min_receive_buffers, config.max_receive_buffers) = (BUFFERS, BUFFERS);
    });
    let options = LocalOptions::default().with(|options| options.rdma = Rdma::NONE);
    let mut world = World::new(options);
    let options = QueuePairOptions::default().with(|options| options.rnr_retry = 0);
    world.add_with(config.clone(), options);
    world.add_with(config, options);
    world.acquaint();
    for i in 0..messages {
        world.receive(1, length, i);
        world.send(0, 1, pattern(length, i), i);
    }
    let (mut calls, mut next) = (0, world.now);
    while world.ends[1].receives.len() < messages as usize {
        let now = world.now;
        while world.ends[0].endpoint.poll(now).is_some() {}
        if now >= next {
            calls += 1;
            assert!(calls < 1000, "{:?}", world.endpoint(0).statistics());
            next = now + every;
            while let Some(completion) = world.ends[1].endpoint.poll(now) {
                let Completion::Receive(done) = completion else { panic!("{completion:?}") };
                world.ends[1].receives.push_back(done);
            }
        }
        let timer = world.endpoint(0).next_timeout();
        let event = [timer, world.network.next_event(), Some(next)].into_iter().flatten().min();
        world.now = event.unwrap().max(now + Duration::from_nanos(100));
    }
    assert!(world.endpoint(0).statistics().receiver_not_ready > 100, "its buffers were used up");
    let payload = length.div_ceil(8192) * messages as usize;
    assert!(calls <= payload.div_ceil(BUFFERS) + 10, "{calls} calls");
    for i in 0..messages {
        let received = world.receive_done(1);
        assert!(received.buffer == pattern(length, received.context), "{i}");
    }
}

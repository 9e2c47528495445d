//! Devices that reach few peers at a time.

use super::*;

fn with_max_peers(host: u8, max_peers: usize) -> TcpDevice {
    TcpDevice::open(options(host).with(|options| options.max_peers = max_peers)).unwrap()
}

#[test]
fn sender_without_room_waits_until_a_peer_has_been_idle_for_a_second() {
    let mut world = World::new(3);
    let target = world.add(&with_max_peers(4, 2), infinite_retry_options());
    world.post_receives(target, 10);
    let to = [0, 1, 2].map(|sender| world.destination(sender, target));
    for (sender, &to) in to[..2].iter().enumerate() {
        world.send(sender, to, 1, b"x");
        assert_eq!(world.ended(sender, 1), [(1, Ok(()))]);
    }
    world.send(2, to[2], 2, b"x");
    for millis in 0..1000 {
        world.now = at(millis);
        world.step();
        assert!(world.sides[2].sends.is_empty(), "at {millis} ms");
    }
    let tries = world.qp(2).statistics().turned_away;
    assert!((4..=20).contains(&tries), "{tries} tries in a second");
    assert_eq!(world.qp(target).statistics().rejected, tries);
    let mut millis = 1000;
    world.until(|world| {
        millis += 1;
        world.now = at(millis);
        !world.sides[2].sends.is_empty()
    });
    assert_eq!(world.ended(2, 1), [(2, Ok(()))]);
    assert!(millis <= 1600, "it came in after {millis} ms");
    assert_eq!(world.qp(target).statistics().evicted, 1);
    // Who made room comes back in the same way.
    world.now = at(millis + 1000);
    for (sender, &to) in to[..2].iter().enumerate() {
        world.send(sender, to, 3, b"x");
        assert_eq!(world.ended(sender, 1), [(3, Ok(()))]);
    }
}

#[test]
fn sender_without_room_meets_rnr_after_its_retries_and_can_send_later() {
    for (rnr_retry, most) in [(0, 1), (3, 200)] {
        let mut world = World::new(1);
        let target = world.add(&with_max_peers(4, 1), infinite_retry_options());
        world.post_receives(target, 10);
        let to = world.destination(0, target);
        world.send(0, to, 1, b"x");
        assert_eq!(world.ended(0, 1), [(1, Ok(()))]);
        let limited =
            world.add(&device(2), infinite_retry_options().with(|o| o.rnr_retry = rnr_retry));
        let to = world.destination(limited, target);
        world.send(limited, to, 2, b"x");
        world.send(limited, to, 3, b"x");
        let mut millis = 0;
        world.until(|world| {
            millis += 1;
            world.now = Time::ZERO + Duration::from_micros(100 * millis);
            world.sides[limited].sends.len() == 2
        });
        let not_ready = Err(Status::ReceiverNotReady);
        assert_eq!(world.ended(limited, 2), [(2, not_ready), (3, not_ready)]);
        let waited = world.now - Time::ZERO;
        assert!(waited >= Duration::from_millis(5) * rnr_retry.into(), "{waited:?}");
        assert!(world.qp(limited).statistics().turned_away <= most);
        world.drop(0);
        world.until(|world| world.qp(target).statistics().incoming == 0);
        world.send(limited, to, 4, b"x");
        world.until(|world| {
            world.now += Duration::from_micros(100);
            !world.sides[limited].sends.is_empty()
        });
        assert_eq!(world.ended(limited, 1), [(4, Ok(()))]);
    }
}

/// Eight senders, two of them of another address, and four connections: busy ones are closed, too.
#[test]
fn senders_that_take_turns_lose_and_repeat_no_packet() {
    const COUNT: u64 = 1500;
    let mut world = World::default();
    let target = world.add(&with_max_peers(1, 4), infinite_retry_options());
    for sender in 1..=8 {
        world.add(&device(if sender > 6 { 3 } else { 2 }), infinite_retry_options());
    }
    let to = (1..=8).map(|sender| world.destination(sender, target)).collect::<Vec<_>>();
    world.post_receives(target, 64);
    let (mut sent, mut next) = ([0; 8], [0; 8]);
    world.until(|world| {
        world.now += Duration::from_micros(500);
        for sender in 0..8 {
            // The last two start when the table is full of busy senders.
            let may_start = sender < 6 || next[0] > 50;
            while may_start && sent[sender] < COUNT && sent[sender] < next[sender] + 100 {
                let bytes = (sender as u64 * COUNT + sent[sender]).to_le_bytes();
                world.send(sender + 1, to[sender], sent[sender], &bytes);
                sent[sender] += 1;
            }
        }
        while let Some((bytes, _)) = world.sides[target].receives.pop_front() {
            let number = u64::from_le_bytes(bytes.try_into().unwrap());
            let sender = (number / COUNT) as usize;
            assert_eq!(number % COUNT, next[sender], "of sender {sender}");
            next[sender] += 1;
            world.post_receives(target, 1);
        }
        next == [COUNT; 8]
    });
    for sender in 1..=8 {
        let ended = world.ended(sender, COUNT as usize);
        assert_eq!(ended, (0..COUNT).map(|id| (id, Ok(()))).collect::<Vec<_>>());
    }
    let statistics = world.qp(target).statistics();
    assert!(statistics.evicted >= 4 && statistics.rejected >= 4, "{statistics:?}");
    assert_eq!(statistics.violations.total(), 0);
}

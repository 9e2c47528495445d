//! Receivers and hosts that stand still.

use std::net::{TcpListener, TcpStream};

use super::*;

/// Longer than the system's longest interval of probes, four times.
#[test]
fn hosts_may_be_silent_for_days() {
    let mut world = World::default();
    for (host, limit) in [(1, Duration::from_secs(200_000)), (2, Duration::MAX)] {
        let patient = options(host).with(|options| options.dead_after = Some(limit));
        world.add(&TcpDevice::open(patient).unwrap(), infinite_retry_options());
    }
    for (from, to) in [(0, 1), (1, 0)] {
        let destination = world.destination(from, to);
        world.post_receives(to, 1);
        world.send(from, destination, 1, b"x");
        assert_eq!(world.received(to, 1)[0].0, b"x");
        assert_eq!(world.ended(from, 1), [(1, Ok(()))]);
    }
}

/// In real time, which the system counts. The receiver's system answers that it has no room.
#[test]
fn receiver_that_does_not_poll_for_longer_than_dead_after_is_not_given_up() {
    const COUNT: u64 = 1000;
    let dead_after = Duration::from_secs(1);
    let mut world = World::default();
    let new = |host| {
        options(host).with(|options| {
            options.mtu = 8928;
            options.dead_after = Some(dead_after);
        })
    };
    world.add(&TcpDevice::open(new(1)).unwrap(), infinite_retry_options());
    world.add(&TcpDevice::open(new(2)).unwrap(), infinite_retry_options());
    let to = world.destination(0, 1);
    world.post_receives(1, COUNT as usize + 1);
    world.send(0, to, 0, b"first");
    world.received(1, 1);
    world.ended(0, 1);
    let b = world.sides.pop().unwrap();
    for id in 1..=COUNT {
        world.send(0, to, id, &[id as u8; 8928]);
    }
    let start = Instant::now();
    while start.elapsed() < 3 * dead_after {
        world.now = Time::ZERO + start.elapsed();
        world.step();
        std::thread::sleep(Duration::from_micros(100));
    }
    assert_eq!(world.sides[0].sends.front(), None);
    world.sides.push(b);
    for id in 1..=COUNT {
        assert_eq!(world.received(1, 1)[0].0, [id as u8; 8928]);
        assert_eq!(world.ended(0, 1), [(id, Ok(()))]);
    }
}

#[test]
fn receiver_that_does_not_respond_leaves_the_full_send_queue_to_others() {
    const DEPTH: u64 = 256;
    let large = |host| options(host).with(|options| options.mtu = 8928);
    for rnr_retry in [3, 7] {
        let mut world = World::default();
        let options = infinite_retry_options().with(|options| {
            options.send_depth = DEPTH as usize;
            options.rnr_retry = rnr_retry;
        });
        for host in 1..=3 {
            world.add(&TcpDevice::open(large(host)).unwrap(), options);
        }
        let (to_healthy, to_stopped) = (world.destination(0, 1), world.destination(0, 2));
        world.post_receives(1, 1);
        world.post_receives(2, DEPTH as usize);
        let stopped = world.sides.pop().unwrap();
        for id in 0..DEPTH {
            world.send(0, to_stopped, id, &[id as u8; 8928]);
        }
        let full = Err(DeviceError::QueueFull { depth: DEPTH as usize });
        assert_eq!(world.try_send(0, to_healthy, DEPTH, b"healthy"), full);
        world.assert_idle();
        world.now = at(999);
        world.assert_idle();
        world.now = at(2000);
        if rnr_retry == 7 {
            world.assert_idle();
            continue;
        }
        let (first, result) = world.ended(0, 1)[0];
        assert_eq!(result, Err(Status::ReceiverNotReady));
        // Those that were written, or begun, wait on.
        assert!((8..64).contains(&first), "{first} were written");
        let taken_back = world.ended(0, (DEPTH - first - 1) as usize);
        assert!(taken_back.into_iter().eq((first + 1..DEPTH).map(|id| (id, result))));
        world.send(0, to_healthy, DEPTH, b"healthy");
        assert_eq!(world.received(1, 1)[0].0, b"healthy");
        assert_eq!(world.ended(0, 1), [(DEPTH, Ok(()))]);
        world.now = at(10_000);
        world.assert_idle();
        world.sides.push(stopped);
        world.send(0, to_stopped, DEPTH + 1, b"again");
        for id in 0..first {
            assert_eq!(world.received(2, 1)[0].0, [id as u8; 8928]);
            assert_eq!(world.ended(0, 1), [(id, Ok(()))]);
        }
        assert_eq!(world.received(2, 1)[0].0, b"again");
        assert_eq!(world.qp(2).statistics().violations.total(), 0);
    }
}

/// The listener drops requests to connect, as its queue is full. The system counts its own time: no second of it passes here.
#[test]
fn host_is_not_given_up_while_only_the_time_of_polls_passes() {
    let listener = TcpListener::bind(("127.0.0.2", 0)).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = listener.local_addr().unwrap();
    let _waits = TcpStream::connect(address).unwrap();
    let mut world = World::new(2);
    let to = Destination { qpn: Qpn(address.port()), ..world.destination(0, 1) };
    world.send(0, to, 1, b"x");
    for second in 1..100 {
        world.now = at(1000 * second);
        world.assert_idle();
    }
}

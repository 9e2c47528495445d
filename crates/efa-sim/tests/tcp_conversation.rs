//! Two queue pairs of the tcp link that send to each other over one connection.
//!
//! One side of some tests is a fake peer, which writes and reads the bytes of the link itself.

#![allow(clippy::unwrap_used)]

#[path = "common/queue_pairs.rs"]
mod queue_pairs;
#[path = "common/tcp_bytes.rs"]
mod tcp_bytes;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use efa_device::*;
use efa_sim::tcp::{TcpDevice, TcpOptions, TcpQueuePair};
use tcp_bytes::HELLO;

/// Limit for a hanging test; a passing test takes a small fraction of it.
const DEADLINE: Duration = Duration::from_secs(60);
const MTU: usize = 256;
const TRY_AGAIN: &[u8; 8] = b"\x09\0\0\0\0\0\0\0";
/// Most bytes of frames without response, of which each counts 64 bytes and its length.
const WINDOW: usize = 1 << 18;

fn queue_pair_with(change: impl FnOnce(&mut TcpOptions)) -> TcpQueuePair {
    let options = TcpOptions::new(Ipv4Addr::LOCALHOST).with(|options| options.mtu = MTU);
    let device = TcpDevice::open(options.with(change)).unwrap();
    let endless = QueuePairOptions::default().with(|options| {
        options.rnr_retry = 7;
        (options.send_depth, options.receive_depth) = (4096, 4096);
    });
    device.create_queue_pair(endless).unwrap()
}

fn queue_pair() -> TcpQueuePair {
    queue_pair_with(|_| {})
}

/// The queue pair with this number; all have one GID and one key.
fn destination(qp: &mut TcpQueuePair, qpn: Qpn) -> Destination {
    let to = QueuePairAddress { qpn, ..qp.address() };
    queue_pairs::destination(qp, to)
}

fn send(qp: &mut TcpQueuePair, to: Qpn, id: u64) {
    let destination = destination(qp, to);
    queue_pairs::send(qp, destination, id, &[7; 4]).unwrap();
}

fn number(qp: &TcpQueuePair) -> Qpn {
    qp.address().qpn
}

/// Calls `step` until it returns something.
fn until<T>(mut step: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < DEADLINE, "no progress within the deadline");
        if let Some(done) = step() {
            break done;
        }
    }
}

/// The sends that complete in some polls.
fn completed(qp: &mut TcpQueuePair) -> Vec<(u64, Result<(), Status>)> {
    let polled = (0..40).filter_map(|_| qp.poll(Time::ZERO));
    polled
        .map(|completion| match completion {
            Completion::Send { id, result, .. } => (id.0, result),
            Completion::Rdma { id, result } => (id.0, result),
            other => panic!("{other:?}"),
        })
        .collect()
}

/// The sends that complete in the first polls in which any does.
fn next_completed(qp: &mut TcpQueuePair) -> Vec<(u64, Result<(), Status>)> {
    until(|| Some(completed(qp)).filter(|ended| !ended.is_empty()))
}

/// Connections that this queue pair has begun, and accepted.
fn connections(qp: &TcpQueuePair) -> (u64, u64) {
    let statistics = qp.statistics();
    assert_eq!(statistics.violations.total(), 0);
    (statistics.connects, statistics.accepts)
}

/// Polls both until `from` has sent and `to` has received so many packets.
fn exchange(from: &mut TcpQueuePair, to: &mut TcpQueuePair, mut sends: usize, mut receives: usize) {
    until(|| {
        for completion in [from.poll(Time::ZERO), to.poll(Time::ZERO)].into_iter().flatten() {
            match completion {
                Completion::Send { result: Ok(()), .. } => sends -= 1,
                Completion::Receive { .. } => receives -= 1,
                other => panic!("{other:?}"),
            }
        }
        (sends + receives == 0).then_some(())
    });
}

/// A peer that is no queue pair, to which one connects.
struct FakePeer {
    listener: TcpListener,
}

impl FakePeer {
    fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener }
    }

    fn qpn(&self) -> Qpn {
        Qpn(self.listener.local_addr().unwrap().port())
    }

    /// Accepts the connection of a queue pair, and reads its hello and `length` more bytes, which it returns.
    fn accept(&self, qp: &mut TcpQueuePair, now: Time, length: usize) -> (TcpStream, Vec<u8>) {
        let mut stream = until(|| {
            assert!(qp.poll(now).is_none());
            match self.listener.accept() {
                Ok((stream, _)) => Some(stream),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    None
                }
            }
        });
        stream.set_nonblocking(true).unwrap();
        let mut bytes = read(qp, &mut stream, now, HELLO.len() + length);
        assert_eq!(bytes[6..8], number(qp).0.to_le_bytes());
        (stream, bytes.split_off(HELLO.len()))
    }
}

/// Polls a queue pair until so many bytes have come from it.
fn read(qp: &mut TcpQueuePair, stream: &mut TcpStream, now: Time, length: usize) -> Vec<u8> {
    let (mut bytes, mut filled) = (vec![0; length], 0);
    until(|| {
        assert!(qp.poll(now).is_none());
        filled += stream.read(&mut bytes[filled..]).unwrap_or(0);
        (filled == bytes.len()).then_some(bytes.clone())
    })
}

/// The frame of a packet of [`send`], with its number.
fn frame(number: u8) -> Vec<u8> {
    [&[1, 7, 0, 0, 4, 0, 0, 0, number, 0, 0, 0, 0, 0, 0, 0][..], &[7; 4]].concat()
}

fn acknowledgement(first: u8, count: u8) -> [u8; 8] {
    [6, 0, count, 0, first, 0, 0, 0]
}

#[test]
fn packets_of_a_ping_pong_take_the_acknowledgements_along_on_one_connection() {
    let mut sides = [queue_pair(), queue_pair()];
    let rounds = 200;
    let mut sent = 0;
    for n in 0..2 * rounds {
        let (from, to) = (n % 2, 1 - n % 2);
        queue_pairs::post_receives(&mut sides[to], 1);
        let target = number(&sides[to]);
        send(&mut sides[from], target, n as u64);
        until(|| {
            // Only the first packet needs this, for its connection.
            sent += if n == 0 { completed(&mut sides[from]).len() } else { 0 };
            match sides[to].poll(Time::ZERO)? {
                Completion::Receive { length: 4, .. } => Some(()),
                Completion::Send { result: Ok(()), .. } => {
                    sent += 1;
                    None
                }
                other => panic!("{other:?}"),
            }
        });
    }
    until(|| {
        sent += sides.iter_mut().map(|side| completed(side).len()).sum::<usize>();
        (sent == 2 * rounds).then_some(())
    });
    assert_eq!(connections(&sides[0]), (1, 0));
    assert_eq!(connections(&sides[1]), (0, 1));
    for side in &sides {
        // One for each packet. With acknowledgements of their own there would be twice as many.
        let receives = side.statistics().receives as usize;
        assert!(receives < rounds * 11 / 10, "{receives} receives for {rounds} packets");
    }
}

#[test]
fn queue_pairs_that_send_to_each_other_before_they_poll_share_one_connection() {
    let mut sides = [queue_pair(), queue_pair()];
    let numbers = sides.each_ref().map(number);
    sides.iter_mut().for_each(|side| queue_pairs::post_receives(side, 1));
    send(&mut sides[0], numbers[1], 1);
    send(&mut sides[1], numbers[0], 2);
    let [one, other] = &mut sides;
    exchange(one, other, 2, 2);
    assert_eq!((connections(one), connections(other)), ((1, 0), (0, 1)));
}

/// Somebody else at the address of the peer, who connects from another port.
#[test]
fn packets_to_a_queue_pair_do_not_go_to_a_connection_that_only_claims_to_be_from_it() {
    let (mut qp, peer) = (queue_pair(), FakePeer::new());
    let mut other = TcpStream::connect((Ipv4Addr::LOCALHOST, number(&qp).0)).unwrap();
    let mut hello = *HELLO;
    hello[6..8].copy_from_slice(&peer.qpn().0.to_le_bytes());
    other.write_all(&[&hello[..], &frame(0)].concat()).unwrap();
    queue_pairs::post_receives(&mut qp, 1);
    let received = until(|| qp.poll(Time::ZERO));
    assert!(matches!(received, Completion::Receive { length: 4, .. }));
    send(&mut qp, peer.qpn(), 1);
    let (_stream, sent) = peer.accept(&mut qp, Time::ZERO, 20);
    assert_eq!(sent, frame(0));
    other.set_nonblocking(true).unwrap();
    let mut to_other = [0; 64];
    let length = other.read(&mut to_other).unwrap();
    assert_eq!(to_other[HELLO.len()..length], acknowledgement(0, 1));
}

#[test]
fn acknowledgements_are_not_held_up_by_packets_without_buffers() {
    let mut sides = [queue_pair(), queue_pair()];
    let [one, other] = &mut sides;
    let (to_one, to_other) = (number(one), number(other));
    // More than may be on the way.
    for id in 0..4096 {
        send(other, to_one, id);
    }
    for _ in 0..200 {
        assert!(one.poll(Time::ZERO).is_none() && other.poll(Time::ZERO).is_none());
    }
    queue_pairs::post_receives(other, 100);
    for id in 0..100 {
        send(one, to_other, id);
        exchange(one, other, 1, 1);
    }
    queue_pairs::post_receives(one, 4096);
    exchange(other, one, 4096, 4096);
    assert_eq!((connections(one), connections(other)), ((0, 1), (1, 0)));
}

#[test]
fn sender_has_at_most_a_window_of_packets_without_response_on_the_way() {
    let (mut qp, peer) = (queue_pair(), FakePeer::new());
    for id in 0..4096 {
        send(&mut qp, peer.qpn(), id);
    }
    let most = WINDOW / (64 + 4);
    let (mut stream, sent) = peer.accept(&mut qp, Time::ZERO, most * 20);
    assert_eq!(sent[..20], frame(0));
    for _ in 0..200 {
        assert!(qp.poll(Time::ZERO).is_none());
    }
    let nothing = stream.read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    stream.write_all(&[&HELLO[..], &acknowledgement(0, 3)].concat()).unwrap();
    assert_eq!(next_completed(&mut qp).len(), 3);
    let more = read(&mut qp, &mut stream, Time::ZERO, 3 * 20);
    assert_eq!(more[8..12], u32::try_from(most).unwrap().to_le_bytes());
}

#[test]
fn packets_without_response_are_sent_again_when_the_receiver_has_no_room() {
    let (mut qp, peer) = (queue_pair(), FakePeer::new());
    for id in 0..3 {
        send(&mut qp, peer.qpn(), id);
    }
    let (mut stream, _) = peer.accept(&mut qp, Time::ZERO, 3 * 20);
    let acknowledged = acknowledgement(1, 1);
    stream.write_all(&[&HELLO[..], &acknowledged, TRY_AGAIN].concat()).unwrap();
    assert_eq!(next_completed(&mut qp), [(1, Ok(()))]);
    until(|| {
        assert!(qp.poll(Time::ZERO).is_none());
        (qp.statistics().turned_away == 1).then_some(())
    });
    let later = Time::ZERO + Duration::from_secs(1);
    let (mut stream, sent) = peer.accept(&mut qp, later, 2 * 20);
    assert_eq!(sent, [frame(0), frame(1)].concat());
    stream.write_all(&[&HELLO[..], &acknowledgement(0, 2)].concat()).unwrap();
    assert_eq!(next_completed(&mut qp), [(0, Ok(())), (2, Ok(()))]);
}

/// There is room for one. The connection of the first peer is idle as far as its own packets go.
#[test]
fn connection_on_which_packets_are_on_the_way_back_makes_no_room_for_another() {
    let mut qp = queue_pair_with(|options| options.max_peers = 1);
    let (mut first, mut second) = (queue_pair(), queue_pair());
    let (to_qp, to_first) = (number(&qp), number(&first));
    queue_pairs::post_receives(&mut qp, 2);
    send(&mut first, to_qp, 1);
    exchange(&mut first, &mut qp, 1, 1);
    send(&mut qp, to_first, 2);
    send(&mut second, to_qp, 3);
    let late = Time::ZERO + Duration::from_secs(5);
    until(|| {
        for side in [&mut qp, &mut first, &mut second] {
            assert!(side.poll(late).is_none());
        }
        (qp.statistics().rejected > 0).then_some(())
    });
    assert_eq!(qp.statistics().evicted, 0);
    queue_pairs::post_receives(&mut first, 1);
    exchange(&mut qp, &mut first, 1, 1);
    assert_eq!(connections(&first), (1, 0));
}

#[test]
fn packet_that_comes_with_the_end_of_a_connection_is_received() {
    let mut sides = [queue_pair(), queue_pair()];
    let [one, other] = &mut sides;
    let (to_one, to_other) = (number(one), number(other));
    queue_pairs::post_receives(one, 1);
    send(other, to_one, 1);
    exchange(other, one, 1, 1);
    // No buffer is posted for this one, and the other direction has a packet under way as well.
    send(other, to_one, 2);
    send(one, to_other, 3);
    let [mut one, other] = sides;
    drop(other);
    assert_eq!(next_completed(&mut one), [(3, Err(Status::BadDestinationQpn))]);
    queue_pairs::post_receives(&mut one, 1);
    let received = until(|| one.poll(Time::ZERO));
    assert!(matches!(received, Completion::Receive { length: 4, .. }), "{received:?}");
    until(|| {
        assert!(one.poll(Time::ZERO).is_none());
        (one.statistics().incoming == 0).then_some(())
    });
}

/// From the port of that number, where nobody listens.
#[test]
fn packets_for_a_number_do_not_go_to_a_connection_whose_hello_has_another_number_or_key() {
    for (wrong, place) in [("number", 6), ("key", 12)] {
        let mut qp = queue_pair();
        let mut other = TcpStream::connect((Ipv4Addr::LOCALHOST, number(&qp).0)).unwrap();
        let port = other.local_addr().unwrap().port();
        let mut hello = *HELLO;
        hello[6..8].copy_from_slice(&port.to_le_bytes());
        hello[place] ^= 1;
        // It waits for the hello.
        send(&mut qp, Qpn(port), 1);
        assert_eq!(completed(&mut qp), []);
        other.write_all(&hello).unwrap();
        assert_eq!(next_completed(&mut qp), [(1, Err(Status::BadDestinationQpn))], "{wrong}");
        send(&mut qp, Qpn(port), 2);
        assert_eq!(next_completed(&mut qp), [(2, Err(Status::BadDestinationQpn))], "{wrong}");
        other.set_nonblocking(true).unwrap();
        let mut got = [0; 64];
        assert_eq!(other.read(&mut got).unwrap(), HELLO.len(), "{wrong}");
    }
}

#[test]
fn packets_that_wait_for_a_hello_go_on_another_connection_when_it_does_not_come() {
    let mut qp = queue_pair();
    let other = TcpStream::connect((Ipv4Addr::LOCALHOST, number(&qp).0)).unwrap();
    let port = other.local_addr().unwrap().port();
    send(&mut qp, Qpn(port), 1);
    assert_eq!(completed(&mut qp), []);
    let mut now = Time::ZERO;
    let ended = until(|| {
        now += Duration::from_millis(100);
        qp.poll(now)
    });
    let expected = Err(Status::BadDestinationQpn);
    assert!(matches!(ended, Completion::Send { result, .. } if result == expected), "{ended:?}");
    assert!((10..12).contains(&(now - Time::ZERO).as_secs()), "at {now:?}");
    assert_eq!(qp.statistics().violations.slow, 1);
}

#[test]
fn packet_for_a_queue_pair_that_was_restarted_does_not_go_to_the_connection_of_the_old_one() {
    let (mut qp, mut old) = (queue_pair(), queue_pair());
    let (to_qp, to_old) = (number(&qp), number(&old));
    send(&mut old, to_qp, 1);
    assert_eq!(completed(&mut old), []);
    drop(old);
    let mut new = queue_pair_with(|options| options.ports = Some(to_old.0..=to_old.0));
    queue_pairs::post_receives(&mut new, 1);
    send(&mut qp, to_old, 2);
    exchange(&mut qp, &mut new, 1, 1);
    // What the old one had sent is still received.
    queue_pairs::post_receives(&mut qp, 1);
    let received = until(|| qp.poll(Time::ZERO));
    assert!(matches!(received, Completion::Receive { length: 4, .. }), "{received:?}");
}

#[test]
fn reads_of_nothing_complete() {
    let (mut qp, mut target) = (queue_pair(), queue_pair());
    let access = Access { remote_read: true, remote_write: false };
    let offered = target.register(vec![1; 4].into(), access).unwrap();
    let region = qp.register(vec![0; 4].into(), Access::default()).unwrap();
    let remote = RemoteMemory { address: offered.remote_address(), key: offered.remote_key() };
    let to_target = number(&target);
    let to_qp = number(&qp);
    destination(&mut target, to_qp);
    let destination = destination(&mut qp, to_target);
    for id in 0..4 {
        let local = RegionRange { region: region.clone(), offset: 0, length: 0 };
        qp.post_read(RdmaRequest { id: WorkId(id), local, remote, destination }).unwrap();
    }
    let mut ended = Vec::new();
    until(|| {
        assert!(target.poll(Time::ZERO).is_none());
        ended.extend(completed(&mut qp));
        (ended.len() == 4).then_some(())
    });
    assert!(ended.iter().all(|&(_, result)| result.is_ok()), "{ended:?}");
}

/// The receiver has no room, and sleeps until it is time to try again.
#[test]
fn queue_pair_that_waits_to_connect_again_sleeps_though_more_is_posted() {
    let device = TcpDevice::open(TcpOptions::new(Ipv4Addr::LOCALHOST)).unwrap();
    let options = QueuePairOptions::default().with(|options| options.waitable = true);
    let (mut qp, peer) = (device.create_queue_pair(options).unwrap(), FakePeer::new());
    queue_pairs::post_receives(&mut qp, 1);
    send(&mut qp, peer.qpn(), 1);
    let (mut stream, _) = peer.accept(&mut qp, Time::ZERO, 20);
    stream.write_all(&[&HELLO[..], TRY_AGAIN].concat()).unwrap();
    until(|| {
        assert!(qp.poll(Time::ZERO).is_none());
        (qp.statistics().turned_away == 1).then_some(())
    });
    send(&mut qp, peer.qpn(), 2);
    assert_eq!(completed(&mut qp), []);
    let armed = qp.arm(Time::ZERO).unwrap();
    assert!(
        matches!(armed, Armed::Quiet { until: Some(until) } if until > Time::ZERO),
        "{armed:?}"
    );
}

/// On threads, so that both may connect at once.
#[test]
fn packets_both_ways_from_two_threads_arrive_in_order() {
    const PACKETS: u32 = 300;
    for _ in 0..20 {
        let sides = [queue_pair(), queue_pair()];
        let [to_one, to_other] = sides.each_ref().map(number);
        let (start, done) = (Barrier::new(2), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for (mut qp, peer) in sides.into_iter().zip([to_other, to_one]) {
                let (start, done) = (&start, &done);
                scope.spawn(move || {
                    queue_pairs::post_receives(&mut qp, PACKETS as usize);
                    let destination = destination(&mut qp, peer);
                    start.wait();
                    for n in 0..PACKETS {
                        let bytes = n.to_le_bytes();
                        queue_pairs::send(&mut qp, destination, 1, &bytes).unwrap();
                    }
                    let (mut sent, mut received) = (0, 0);
                    until(|| {
                        match qp.poll(Time::ZERO) {
                            Some(Completion::Send { result: Ok(()), .. }) => sent += 1,
                            Some(Completion::Receive { packet, .. }) => {
                                assert_eq!(packet[..4], u32::to_le_bytes(received));
                                received += 1;
                            }
                            Some(other) => panic!("{other:?}"),
                            None => {}
                        }
                        (sent == PACKETS && received == PACKETS).then_some(())
                    });
                    done.fetch_add(1, Relaxed);
                    // The other side may wait for acknowledgements.
                    until(|| {
                        assert!(qp.poll(Time::ZERO).is_none());
                        (done.load(Relaxed) == 2).then_some(())
                    });
                    assert_eq!(qp.statistics().violations.total(), 0);
                });
            }
        });
    }
}

/// Queue pairs that all send to all, with room for fewer connections than there are and buffers now and then. Connections
/// are closed for others, also when packets for the closed side are posted, and are opened from both sides at once.
#[test]
fn random_packets_between_queue_pairs_that_take_turns_arrive_once_and_in_order() {
    const SIDES: usize = 5;
    const PACKETS: usize = 600;
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let peers = random.usize(1..SIDES);
        let mut sides = [(); SIDES].map(|()| queue_pair_with(|options| options.max_peers = peers));
        let numbers = sides.each_ref().map(number);
        let (mut sent, mut received) = ([[0_u32; SIDES]; SIDES], [[0_u32; SIDES]; SIDES]);
        let (mut now, mut posted, mut completed, mut arrived) = (Time::ZERO, 0, 0, 0);
        let start = Instant::now();
        while arrived < PACKETS || completed < PACKETS {
            assert!(
                start.elapsed() < DEADLINE,
                "seed {seed}: {arrived} and {completed} of {posted}"
            );
            let most = if random.u8(..) == 0 { 2000 } else { 20 };
            now += Duration::from_millis(random.u64(..most));
            for _ in 0..random.usize(..4).min(PACKETS - posted) {
                let (from, to) = (random.usize(..SIDES), random.usize(..SIDES));
                let destination = destination(&mut sides[from], numbers[to]);
                let bytes = [from as u32, sent[from][to]].map(u32::to_le_bytes).concat();
                queue_pairs::send(&mut sides[from], destination, 1, &bytes).unwrap();
                sent[from][to] += 1;
                posted += 1;
            }
            let at = random.usize(..SIDES);
            if random.bool() {
                queue_pairs::post_receives(&mut sides[at], 2);
            }
            for _ in 0..random.usize(..10) {
                match sides[at].poll(now) {
                    Some(Completion::Send { result, .. }) => {
                        assert_eq!(result, Ok(()), "seed {seed}");
                        completed += 1;
                    }
                    Some(Completion::Receive { packet, source, .. }) => {
                        let from = u32::from_le_bytes(packet[..4].try_into().unwrap()) as usize;
                        let count = u32::from_le_bytes(packet[4..8].try_into().unwrap());
                        assert_eq!(
                            (source.qpn, count),
                            (numbers[from], received[from][at]),
                            "seed {seed}"
                        );
                        received[from][at] += 1;
                        arrived += 1;
                    }
                    Some(other) => panic!("{other:?}"),
                    None => {}
                }
            }
        }
        assert_eq!(sent, received);
        let violations = sides.each_ref().map(|side| side.statistics().violations.total());
        assert_eq!(violations, [0; SIDES], "seed {seed}");
    }
}

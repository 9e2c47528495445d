//! Acknowledgements in a conversation on the tcp link: an answer names the packets that it answers, in front of itself.
//!
//! One side of most tests is a fake peer, which writes and reads the bytes of the link itself.

#![allow(clippy::unwrap_used)]

#[path = "common/queue_pairs.rs"]
mod queue_pairs;
#[path = "common/tcp_bytes.rs"]
mod tcp_bytes;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use efa_device::*;
use efa_sim::tcp::{TcpDevice, TcpOptions, TcpQueuePair, TcpStatistics};
use tcp_bytes::HELLO;

/// Limit for a hanging test; a passing test takes a small fraction of it.
const DEADLINE: Duration = Duration::from_secs(60);
const MTU: usize = 256;
const WELCOME: &[u8; 8] = b"EfaR\x04\0\0\0";
const TRY_AGAIN: &[u8; 8] = b"\x04\0\0\0\0\0\0\0";

fn queue_pair() -> TcpQueuePair {
    let options = TcpOptions::new(Ipv4Addr::LOCALHOST).with(|options| options.mtu = MTU);
    let device = TcpDevice::open(options).unwrap();
    let endless = QueuePairOptions::default().with(|options| options.rnr_retry = 7);
    device.create_queue_pair(endless).unwrap()
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

/// A peer that is no queue pair: the one connection comes to it, the other it makes.
struct FakePeer {
    listener: TcpListener,
    back: TcpStream,
}

impl FakePeer {
    fn new(qp: &TcpQueuePair) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut back = TcpStream::connect((Ipv4Addr::LOCALHOST, qp.address().qpn.0)).unwrap();
        back.set_nodelay(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut hello = *HELLO;
        hello[6..8].copy_from_slice(&port.to_le_bytes());
        back.write_all(&hello).unwrap();
        Self { listener, back }
    }

    fn qpn(&self) -> Qpn {
        Qpn(self.listener.local_addr().unwrap().port())
    }

    /// Accepts the connection of the queue pair, and reads its hello and `length` more bytes. Returns the token of the hello.
    fn accept(&self, qp: &mut TcpQueuePair, now: Time, length: usize) -> (TcpStream, [u8; 8]) {
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
        let (mut bytes, mut filled) = (vec![0; HELLO.len() + length], 0);
        until(|| {
            assert!(qp.poll(now).is_none());
            filled += stream.read(&mut bytes[filled..]).unwrap_or(0);
            (filled == bytes.len()).then_some(())
        });
        (stream, bytes[16..HELLO.len()].try_into().unwrap())
    }

    /// Says early that frames ended well.
    fn acknowledge_early(&mut self, token: [u8; 8], first: u32, count: u16) {
        let (count, first) = (count.to_le_bytes(), first.to_le_bytes());
        self.back.write_all(&[&[6, 0][..], &count, &first, &token].concat()).unwrap();
    }
}

/// An acknowledgement on the connection of the frames.
fn acknowledgement(first: u8, count: u8) -> [u8; 8] {
    [1, 0, count, 0, first, 0, 0, 0]
}

#[test]
fn packets_of_a_ping_pong_are_acknowledged_by_the_answers() {
    let mut sides = [queue_pair(), queue_pair()];
    let rounds = 200;
    let mut sent = 0;
    for n in 0..2 * rounds {
        let (from, to) = (n % 2, 1 - n % 2);
        queue_pairs::post_receives(&mut sides[to], 1);
        let target = sides[to].address().qpn;
        send(&mut sides[from], target, n as u64);
        until(|| {
            // Only the first packets need this, for their connections.
            sent += if n < 2 { completed(&mut sides[from]).len() } else { 0 };
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
        for side in &mut sides {
            let ended = completed(side);
            assert!(ended.iter().all(|&(_, result)| result.is_ok()));
            sent += ended.len();
        }
        (sent >= 2 * rounds).then_some(())
    });
    assert_eq!(sent, 2 * rounds);
    for side in &mut sides {
        // Acknowledgements that came once more, after the early ones, complete nothing.
        assert_eq!(completed(side), []);
        let TcpStatistics { acknowledged_early, violations, .. } = side.statistics();
        assert_eq!(violations.total(), 0);
        assert!(acknowledged_early as usize > rounds * 9 / 10, "{acknowledged_early} of {rounds}");
    }
}

#[test]
fn early_acknowledgement_completes_a_send_once() {
    let mut qp = queue_pair();
    let mut peer = FakePeer::new(&qp);
    send(&mut qp, peer.qpn(), 1);
    send(&mut qp, peer.qpn(), 2);
    let (mut stream, token) = peer.accept(&mut qp, Time::ZERO, 2 * 20);
    peer.acknowledge_early(token, 1, 1);
    let ended = until(|| qp.poll(Time::ZERO));
    assert!(matches!(ended, Completion::Send { id: WorkId(2), result: Ok(()), .. }));
    // Once more, with frames that were never sent; and the acknowledgement on the other connection.
    peer.acknowledge_early(token, 1, 3);
    stream.write_all(&[&WELCOME[..], &acknowledgement(0, 2)].concat()).unwrap();
    assert_eq!(next_completed(&mut qp), [(1, Ok(()))]);
    assert_eq!(qp.statistics().violations.total(), 0);
    // There is nothing left that this could acknowledge.
    send(&mut qp, peer.qpn(), 3);
    stream.write_all(&acknowledgement(1, 1)).unwrap();
    let ended = next_completed(&mut qp);
    assert_eq!(ended, [(3, Err(Status::BadStatus))]);
    assert_eq!(qp.statistics().violations.response, 1);
}

/// As if somebody at the address of the peer pretended to be it.
#[test]
fn early_acknowledgement_with_a_wrong_token_completes_nothing() {
    let mut qp = queue_pair();
    let mut peer = FakePeer::new(&qp);
    send(&mut qp, peer.qpn(), 1);
    let (_stream, token) = peer.accept(&mut qp, Time::ZERO, 20);
    for place in 0..8 {
        let mut wrong = token;
        wrong[place] ^= 1;
        peer.acknowledge_early(wrong, 0, 1);
    }
    peer.acknowledge_early([0; 8], 0, 64);
    assert_eq!(completed(&mut qp), []);
    peer.acknowledge_early(token, 0, 64);
    assert_eq!(next_completed(&mut qp), [(1, Ok(()))]);
    assert_eq!(qp.statistics().violations.total(), 0);
}

/// The numbers of frames begin again on each connection.
#[test]
fn early_acknowledgement_for_a_connection_that_was_turned_away_completes_nothing_on_the_next() {
    let mut qp = queue_pair();
    let mut peer = FakePeer::new(&qp);
    send(&mut qp, peer.qpn(), 1);
    let (mut stream, old) = peer.accept(&mut qp, Time::ZERO, 20);
    stream.write_all(&[&WELCOME[..], TRY_AGAIN].concat()).unwrap();
    until(|| {
        assert!(qp.poll(Time::ZERO).is_none());
        (qp.statistics().turned_away == 1).then_some(())
    });
    peer.acknowledge_early(old, 0, 1);
    assert_eq!(completed(&mut qp), [], "while it waits to try again");
    let later = Time::ZERO + Duration::from_secs(1);
    let (_stream, new) = peer.accept(&mut qp, later, 20);
    assert_ne!(old, new);
    peer.acknowledge_early(old, 0, 1);
    assert_eq!(completed(&mut qp), []);
    peer.acknowledge_early(new, 0, 1);
    assert_eq!(next_completed(&mut qp), [(1, Ok(()))]);
}

/// Its data comes on the connection of the request.
#[test]
fn early_acknowledgement_of_a_read_does_not_complete_it() {
    let mut qp = queue_pair();
    let mut peer = FakePeer::new(&qp);
    let region = qp.register(vec![0; 4].into(), Access::default()).unwrap();
    let local = RegionRange { region: region.clone(), offset: 0, length: 4 };
    let destination = destination(&mut qp, peer.qpn());
    let remote = RemoteMemory { address: 8, key: 9 };
    qp.post_read(RdmaRequest { id: WorkId(1), local, remote, destination }).unwrap();
    let (mut stream, token) = peer.accept(&mut qp, Time::ZERO, 28);
    peer.acknowledge_early(token, 0, 1);
    assert_eq!(completed(&mut qp), []);
    stream.write_all(&[&WELCOME[..], &[3, 0, 4, 0, 0, 0, 0, 0], b"data"].concat()).unwrap();
    assert_eq!(next_completed(&mut qp), [(1, Ok(()))]);
    let mut got = [0; 4];
    region.read(0, &mut got);
    assert_eq!(&got, b"data");
}

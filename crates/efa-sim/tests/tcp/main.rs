//! The tcp link within one process, over the loopback addresses of two hosts.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use efa_device::*;
use efa_sim::record::{PacketEvent, SharedSink, Trace};
use efa_sim::tcp::{TcpDevice, TcpOptions, TcpQueuePair};

mod room;
mod stalled;

/// Limit for a hanging test; a passing test takes a small fraction of it.
const DEADLINE: Duration = Duration::from_secs(60);
const KEY: Qkey = Qkey(0x77);
const MTU: usize = 256;

fn infinite_retry_options() -> QueuePairOptions {
    QueuePairOptions::default().with(|options| {
        options.qkey = KEY;
        options.send_depth = 4096;
        options.receive_depth = 8192;
        options.rnr_retry = 7;
    })
}

fn options(host: u8) -> TcpOptions {
    TcpOptions::new([127, 0, 0, host]).with(|options| options.mtu = MTU)
}

fn device(host: u8) -> TcpDevice {
    TcpDevice::open(options(host)).unwrap()
}

/// Queue pairs, their completions, and the virtual time of their polls.
#[derive(Default)]
struct World {
    now: Time,
    sides: Vec<Side>,
}

struct Side {
    qp: Option<TcpQueuePair>,
    sends: VecDeque<(u64, Result<(), Status>)>,
    receives: VecDeque<(Vec<u8>, Source)>,
}

impl World {
    /// One queue pair with infinite RNR retries on each of the hosts 1 to `hosts`.
    fn new(hosts: u8) -> Self {
        let mut world = Self::default();
        for host in 1..=hosts {
            world.add(&device(host), infinite_retry_options());
        }
        world
    }

    fn add(&mut self, device: &TcpDevice, options: QueuePairOptions) -> usize {
        let qp = Some(device.create_queue_pair(options).unwrap());
        self.sides.push(Side { qp, sends: VecDeque::new(), receives: VecDeque::new() });
        self.sides.len() - 1
    }

    fn qp(&mut self, side: usize) -> &mut TcpQueuePair {
        self.sides[side].qp.as_mut().unwrap()
    }

    fn drop(&mut self, side: usize) {
        self.sides[side].qp = None;
    }

    fn destination(&mut self, from: usize, to: usize) -> Destination {
        let QueuePairAddress { gid, qpn, qkey } = self.qp(to).address();
        let address_handle = self.qp(from).create_address_handle(gid).unwrap();
        Destination { address_handle, qpn, qkey }
    }

    fn send(&mut self, from: usize, to: Destination, id: u64, bytes: &[u8]) {
        self.try_send(from, to, id, bytes).unwrap();
    }

    fn try_send(
        &mut self,
        from: usize,
        destination: Destination,
        id: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let request = SendRequest {
            id: WorkId(id),
            packet: bytes.into(),
            length: bytes.len(),
            destination,
            immediate: None,
        };
        self.qp(from).post_send(request).map_err(|refused| refused.error)
    }

    fn post_receives(&mut self, side: usize, count: usize) {
        for _ in 0..count {
            let packet = self.qp(side).allocate_packet().unwrap();
            self.qp(side).post_receive(packet).unwrap();
        }
    }

    /// Polls each queue pair once.
    fn step(&mut self) {
        for Side { qp, sends, receives } in &mut self.sides {
            match qp.as_mut().and_then(|qp| qp.poll(self.now)) {
                Some(Completion::Send { id, result, .. }) => sends.push_back((id.0, result)),
                Some(Completion::Receive { packet, length, source, .. }) => {
                    receives.push_back((packet[..length].to_vec(), source));
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }

    /// Polls all queue pairs until `done` returns `true`.
    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < DEADLINE, "no progress within the deadline");
            self.step();
        }
    }

    /// Waits for `count` sends to complete.
    fn ended(&mut self, side: usize, count: usize) -> Vec<(u64, Result<(), Status>)> {
        self.until(|world| world.sides[side].sends.len() >= count);
        self.sides[side].sends.drain(..count).collect()
    }

    /// Waits for `count` packets.
    fn received(&mut self, side: usize, count: usize) -> Vec<(Vec<u8>, Source)> {
        self.until(|world| world.sides[side].receives.len() >= count);
        self.sides[side].receives.drain(..count).collect()
    }

    /// Polls all queue pairs 200 times and asserts that nothing completes.
    fn assert_idle(&mut self) {
        for _ in 0..200 {
            self.step();
        }
        for side in &self.sides {
            assert_eq!((side.sends.len(), side.receives.len()), (0, 0));
        }
    }
}

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

#[test]
fn packets_of_every_length_are_delivered_both_ways() {
    let mut world = World::new(2);
    let (to_b, to_a) = (world.destination(0, 1), world.destination(1, 0));
    assert_eq!(world.qp(0).address().gid.to_string(), "::ffff:127.0.0.1");
    for length in 0..=MTU {
        let bytes = (0..length).map(|n| (n + length) as u8).collect::<Vec<_>>();
        world.post_receives(0, 1);
        world.post_receives(1, 1);
        world.send(0, to_b, 1, &bytes);
        assert_eq!(world.received(1, 1)[0].0, bytes);
        world.send(1, to_a, 2, &bytes);
        assert_eq!(world.received(0, 1)[0].0, bytes);
        assert_eq!((world.ended(0, 1), world.ended(1, 1)), (vec![(1, Ok(()))], vec![(2, Ok(()))]));
    }
    let statistics = [0, 1].map(|side| world.qp(side).statistics());
    let connections = statistics.map(|statistics| (statistics.connects, statistics.accepts));
    assert_eq!(connections, [(1, 0), (0, 1)], "one for both ways");
}

#[test]
fn send_completes_only_when_it_is_in_a_receive_buffer() {
    let mut world = World::new(2);
    let to = world.destination(0, 1);
    world.send(0, to, 1, b"x");
    world.now = at(1_000_000);
    world.assert_idle();
    world.post_receives(1, 1);
    assert_eq!(world.received(1, 1)[0].0, b"x");
    assert_eq!(world.ended(0, 1), [(1, Ok(()))]);
}

/// In a conversation the system keeps the acknowledgement of a packet until the answer was written, but not for long.
#[test]
fn send_in_a_conversation_completes_although_the_receiver_polls_no_more() {
    let mut world = World::new(2);
    let (to_b, to_a) = (world.destination(0, 1), world.destination(1, 0));
    for (id, (side, to)) in (0..20).zip([(0, to_b), (1, to_a)].into_iter().cycle()) {
        world.post_receives(1 - side, 1);
        world.send(side, to, id, b"talk");
        world.received(1 - side, 1);
        world.ended(side, 1);
    }
    // Polls this queue pair alone until it has a completion.
    let poll = |world: &mut World, side| {
        let start = Instant::now();
        loop {
            match world.qp(side).poll(Time::ZERO) {
                Some(completion) => break completion,
                None => assert!(start.elapsed() < DEADLINE, "no completion within the deadline"),
            }
        }
    };
    world.post_receives(1, 1);
    world.send(0, to_b, 9, b"question");
    assert!(matches!(poll(&mut world, 1), Completion::Receive { .. }));
    let completion = poll(&mut world, 0);
    assert!(matches!(completion, Completion::Send { id: WorkId(9), result: Ok(()), .. }));
}

#[test]
fn queue_pair_sends_to_itself() {
    let mut world = World::new(1);
    let to = world.destination(0, 0);
    world.post_receives(0, 1);
    world.send(0, to, 1, b"me");
    assert_eq!(world.received(0, 1)[0].0, b"me");
    assert_eq!(world.ended(0, 1), [(1, Ok(()))]);
}

#[test]
fn completed_operations_free_queue_space() {
    let mut world = World::default();
    for host in 1..=2 {
        let depths = infinite_retry_options().with(|options| {
            options.send_depth = 3;
            options.receive_depth = 2;
        });
        world.add(&device(host), depths);
    }
    let attributes = world.qp(0).attributes();
    assert_eq!((attributes.max_send, attributes.max_receive), (3, 2));
    let to = world.destination(0, 1);
    for round in 0..5 {
        world.post_receives(1, 2);
        let packet = world.qp(1).allocate_packet().unwrap();
        let refused = world.qp(1).post_receive(packet).unwrap_err();
        assert_eq!(refused.error, DeviceError::QueueFull { depth: 2 }, "round {round}");
        for id in 0..3 {
            world.send(0, to, id, b"x");
        }
        assert_eq!(world.try_send(0, to, 3, b"x"), Err(DeviceError::QueueFull { depth: 3 }));
        world.received(1, 2);
        world.post_receives(1, 1);
        world.received(1, 1);
        world.ended(0, 3);
    }
}

#[test]
fn many_senders_to_few_buffers_lose_no_packets() {
    let mut world = World::new(5);
    for sender in 1..5 {
        let to = world.destination(sender, 0);
        for n in 0..500 {
            world.send(sender, to, n, &[sender as u8, n as u8, (n >> 8) as u8]);
        }
    }
    let numbers = (1..5).map(|sender| (0, world.qp(sender).address().qpn)).collect::<Vec<_>>();
    let mut next = numbers;
    world.post_receives(0, 3);
    for _ in 0..2000 {
        let (bytes, source) = world.received(0, 1).remove(0);
        world.post_receives(0, 1);
        let (n, qpn) = &mut next[usize::from(bytes[0]) - 1];
        assert_eq!((u16::from_le_bytes([bytes[1], bytes[2]]), source.qpn), (*n, *qpn));
        *n += 1;
    }
    for sender in 1..5 {
        let ended = world.ended(sender, 500);
        assert_eq!(ended, (0..500).map(|n| (n, Ok(()))).collect::<Vec<_>>());
    }
}

/// Packets that exceed the socket buffers wait at the sender and arrive complete and in order.
#[test]
fn receiver_that_does_not_poll_stalls_its_sender_without_loss() {
    let large = |host| options(host).with(|options| options.mtu = 8928);
    let mut world = World::default();
    world.add(&TcpDevice::open(large(1)).unwrap(), infinite_retry_options());
    let b = TcpDevice::open(large(2)).unwrap().create_queue_pair(infinite_retry_options()).unwrap();
    let QueuePairAddress { gid, qpn, qkey } = b.address();
    let address_handle = world.qp(0).create_address_handle(gid).unwrap();
    let to = Destination { address_handle, qpn, qkey };
    let packet = |id: u64| [id as u8, (id >> 8) as u8].repeat(4464);
    for id in 0..4096 {
        world.send(0, to, id, &packet(id));
    }
    let full = Err(DeviceError::QueueFull { depth: 4096 });
    assert_eq!(world.try_send(0, to, 4096, b""), full);
    world.assert_idle();
    assert!(
        world.qp(0).statistics().sends < 4096,
        "the sender stops writing when the sockets are full"
    );
    world.sides.push(Side { qp: Some(b), sends: VecDeque::new(), receives: VecDeque::new() });
    world.post_receives(1, 4096);
    for id in 0..4096 {
        assert!(world.received(1, 1)[0].0 == packet(id), "packet {id}");
    }
    assert_eq!(world.ended(0, 4096).pop(), Some((4095, Ok(()))));
}

#[test]
fn send_without_posted_buffer_waits_then_fails_with_rnr() {
    let mut world = World::new(2);
    let retries = infinite_retry_options().with(|options| options.rnr_retry = 3);
    let limited = world.add(&device(3), retries);
    let (to_with_infinite_retry, to) = (world.destination(0, 1), world.destination(limited, 1));
    for id in 0..3 {
        world.send(limited, to, id, b"lost");
    }
    world.until(|world| world.qp(1).statistics().accepts == 1);
    world.assert_idle();
    world.now = at(14);
    world.assert_idle();
    // Packets that the receiver read later fail later.
    world.until(|world| {
        world.now += Duration::from_millis(1);
        world.sides[limited].sends.len() == 3
    });
    let not_ready = |id| (id, Err(Status::ReceiverNotReady));
    assert_eq!(world.ended(limited, 3), [not_ready(0), not_ready(1), not_ready(2)]);
    world.send(0, to_with_infinite_retry, 9, b"kept");
    world.now = at(60_000);
    world.assert_idle();
    world.post_receives(1, 2);
    assert_eq!(world.received(1, 1)[0].0, b"kept");
    assert_eq!(world.ended(0, 1), [(9, Ok(()))]);
    world.assert_idle();
}

/// More packets arrive together than buffers are posted; reposting each buffer avoids RNR.
#[test]
fn receiver_that_reposts_each_buffer_causes_no_rnr() {
    const COUNT: u64 = 40;
    let mut world = World::new(2);
    let limited =
        world.add(&device(3), infinite_retry_options().with(|options| options.rnr_retry = 0));
    let to = world.destination(limited, 1);
    world.post_receives(1, 4);
    // The receiver has heard from the sender not long ago, so that it looks at this connection again and again.
    world.send(limited, to, COUNT, b"first");
    assert_eq!(world.received(1, 1)[0].0, b"first");
    assert_eq!(world.ended(limited, 1), [(COUNT, Ok(()))]);
    world.post_receives(1, 1);
    for id in 0..COUNT {
        world.send(limited, to, id, &id.to_le_bytes());
    }
    // All packets are written before the receiver polls.
    for _ in 0..100 {
        let now = world.now;
        assert!(world.qp(limited).poll(now).is_none());
    }
    for id in 0..COUNT {
        assert_eq!(world.received(1, 1)[0].0, id.to_le_bytes());
        world.post_receives(1, 1);
    }
    let ended = world.ended(limited, COUNT as usize);
    assert_eq!(ended, (0..COUNT).map(|id| (id, Ok(()))).collect::<Vec<_>>());
}

#[test]
fn send_to_unsuitable_target_fails_with_its_status() {
    let mut world = World::new(2);
    let to = world.destination(0, 1);
    world.post_receives(1, 1);
    let wrong_key = Destination { qkey: Qkey(1), ..to };
    world.send(0, wrong_key, 1, b"x");
    assert_eq!(world.ended(0, 1), [(1, Err(Status::BadDestinationQpn))]);
    world.qp(1).set_qkey(Qkey(1));
    world.send(0, wrong_key, 2, b"now");
    assert_eq!(world.received(1, 1)[0].0, b"now");
    assert_eq!(world.ended(0, 1), [(2, Ok(()))]);

    world.qp(1).post_receive(vec![0; 3].into()).unwrap();
    world.send(0, wrong_key, 3, b"four");
    assert_eq!(world.ended(0, 1), [(3, Err(Status::RemoteBadLength))]);
    world.send(0, wrong_key, 4, b"abc");
    assert_eq!(world.received(1, 1)[0].0, b"abc", "the buffer stayed posted");
    assert_eq!(world.ended(0, 1), [(4, Ok(()))]);

    let missing = {
        let dropped = world.add(&device(2), infinite_retry_options());
        let missing = world.destination(0, dropped);
        world.drop(dropped);
        missing
    };
    for (id, qpn) in [(5, missing.qpn), (6, Qpn(0))] {
        world.send(0, Destination { qpn, ..missing }, id, b"x");
        assert_eq!(world.ended(0, 1), [(id, Err(Status::BadDestinationQpn))]);
    }
    let mut six = Gid::ZERO;
    six.0[15] = 1;
    let address_handle = world.qp(0).create_address_handle(six).unwrap();
    world.send(0, Destination { address_handle, ..to }, 7, b"x");
    assert_eq!(world.ended(0, 1), [(7, Err(Status::UnreachableRemote))], "::1 from 127.0.0.1");
}

#[test]
fn sends_to_a_dropped_queue_pair_fail_with_bad_destination_qpn() {
    let mut world = World::new(2);
    let to = world.destination(0, 1);
    world.post_receives(1, 1);
    world.send(0, to, 0, b"taken");
    assert_eq!(world.received(1, 1).len(), 1);
    for id in 1..50 {
        world.send(0, to, id, b"not taken");
    }
    // Some arrive before it is dropped, some after.
    world.step();
    world.send(0, to, 50, b"not taken");
    world.drop(1);
    let ended = world.ended(0, 51);
    let expected = |id| (id, if id == 0 { Ok(()) } else { Err(Status::BadDestinationQpn) });
    assert_eq!(ended, (0..=50).map(expected).collect::<Vec<_>>());
}

#[test]
fn retired_queue_pair_is_unreachable_and_its_number_reserved() {
    let mut world = World::new(2);
    let to = world.destination(0, 1);
    world.post_receives(1, 1);
    world.send(0, to, 1, b"taken");
    assert_eq!(world.received(1, 1).len(), 1);
    world.send(0, to, 2, b"not taken");
    let number = world.sides[1].qp.take().unwrap().retire().unwrap();
    world.send(0, to, 3, b"not taken");
    let bad_qpn = Err(Status::BadDestinationQpn);
    assert_eq!(world.ended(0, 3), [(1, Ok(())), (2, bad_qpn), (3, bad_qpn)]);

    let ports = Some(to.qpn.0..=to.qpn.0);
    let same = TcpDevice::open(options(2).with(|options| options.ports = ports)).unwrap();
    let refused = same.create_queue_pair(infinite_retry_options()).unwrap_err();
    assert!(matches!(refused, DeviceError::System { errno: libc::EADDRINUSE, .. }), "{refused}");
    world.send(0, to, 4, b"still retired");
    assert_eq!(world.ended(0, 1), [(4, bad_qpn)]);
    drop(number);
    assert_eq!(same.create_queue_pair(infinite_retry_options()).unwrap().address().qpn, to.qpn);
}

#[test]
fn sends_to_a_queue_pair_dropped_before_accept_fail() {
    let mut world = World::new(2);
    let to = world.destination(0, 1);
    world.send(0, to, 1, b"x");
    world.drop(1);
    assert_eq!(world.ended(0, 1), [(1, Err(Status::BadDestinationQpn))]);
}

#[test]
fn packets_of_a_dropped_sender_are_delivered() {
    let mut world = World::new(3);
    let (to, other) = (world.destination(0, 1), world.destination(2, 1));
    for id in 0..100 {
        world.send(0, to, id, &[id as u8]);
    }
    world.post_receives(1, 101);
    assert_eq!(world.received(1, 1)[0].0, [0]);
    world.drop(0);
    for id in 1..100 {
        assert_eq!(world.received(1, 1)[0].0, [id]);
    }
    world.send(2, other, 1, b"others too");
    assert_eq!(world.received(1, 1)[0].0, b"others too");
    assert_eq!(world.qp(1).statistics().violations.total(), 0);
}

#[test]
fn reused_number_gets_no_packets_for_its_predecessor() {
    let mut world = World::new(2);
    let to = world.destination(0, 1);
    let again = options(2).with(|options| options.ports = Some(to.qpn.0..=to.qpn.0));
    let again = TcpDevice::open(again).unwrap();
    let mut b = 1;
    for incarnation in 0..5 {
        world.post_receives(b, 1);
        world.send(0, to, incarnation, &[incarnation as u8]);
        assert_eq!(world.received(b, 1)[0].0, [incarnation as u8]);
        assert_eq!(world.ended(0, 1), [(incarnation, Ok(()))]);
        if incarnation % 2 == 0 {
            world.send(0, to, 77, b"for an earlier incarnation");
            world.drop(b);
            b = world.add(&again, infinite_retry_options());
            assert_eq!(world.ended(0, 1), [(77, Err(Status::BadDestinationQpn))]);
        } else {
            // With no packet in flight, dropping the queue pair fails no send.
            world.drop(b);
            world.until(|world| world.qp(0).statistics().outgoing == 0);
            b = world.add(&again, infinite_retry_options());
        }
        assert_eq!(world.qp(b).address().qpn, to.qpn);
    }
    let taken = again.create_queue_pair(infinite_retry_options()).unwrap_err();
    assert!(matches!(taken, DeviceError::System { .. }), "{taken}");
}

#[test]
fn packet_for_the_successor_of_a_queue_pair_arrives_though_others_are_under_way_to_that() {
    let long = |host| options(host).with(|options| options.mtu = 60_000);
    for sent_back in [0, 8] {
        let mut world = World::default();
        for host in [1, 2] {
            let device = TcpDevice::open(long(host)).unwrap();
            world.add(&device, infinite_retry_options());
        }
        let (old, back) = (world.destination(0, 1), world.destination(1, 0));
        let again = long(2).with(|options| options.ports = Some(old.qpn.0..=old.qpn.0));
        let again = TcpDevice::open(again).unwrap();
        world.send(0, old, 1, b"for the predecessor");
        // Behind these, 0 doesn't see the end of the connection.
        for id in 0..sent_back {
            world.send(1, back, id, &[7; 60_000]);
        }
        world.drop(1);
        let options = infinite_retry_options().with(|options| options.qkey = Qkey(0x78));
        let b = world.add(&again, options);
        world.post_receives(b, 1);
        let new = world.destination(0, b);
        assert_eq!((new.qpn, new.qkey), (old.qpn, Qkey(0x78)));
        world.send(0, new, 2, b"for the successor");
        assert_eq!(world.received(b, 1)[0].0, b"for the successor");
        let mut ended = world.ended(0, 2);
        ended.sort_unstable_by_key(|(id, _)| *id);
        assert_eq!(ended, [(1, Err(Status::BadDestinationQpn)), (2, Ok(()))], "{sent_back}");
    }
}

// conformance: A29
#[test]
fn receive_reports_address_handle_of_known_sender_only() {
    let mut world = World::new(2);
    let to = world.destination(0, 1);
    let QueuePairAddress { gid, qpn, .. } = world.qp(0).address();
    world.post_receives(1, 2);
    world.send(0, to, 1, b"");
    let unknown = Source { address_handle: None, qpn, gid: Some(gid) };
    assert_eq!(world.received(1, 1)[0].1, unknown);
    let handle = world.qp(1).create_address_handle(gid).unwrap();
    world.send(0, to, 1, b"");
    let known = Source { address_handle: Some(handle), qpn, gid: None };
    assert_eq!(world.received(1, 1)[0].1, known);
}

/// The orders in which 200 packets arrive at a receiver that polls after all were sent.
fn arrivals(reorder: Option<u64>) -> Vec<u8> {
    let mut world = World::new(1);
    let receiver = TcpDevice::open(options(2).with(|options| options.reorder = reorder)).unwrap();
    let b = world.add(&receiver, infinite_retry_options());
    let to = world.destination(0, b);
    for n in 0..200 {
        world.send(0, to, n.into(), &[n]);
    }
    world.post_receives(b, 200);
    let order = world.received(b, 200).into_iter().map(|(bytes, _)| bytes[0]).collect();
    let mut ended = world.ended(0, 200);
    ended.sort_unstable_by_key(|&(id, _)| id);
    assert_eq!(ended, (0..200).map(|id| (id, Ok(()))).collect::<Vec<_>>());
    order
}

#[test]
fn packets_arrive_once_in_order_or_reordered_by_seed() {
    let in_order = (0..200).collect::<Vec<u8>>();
    assert_eq!(arrivals(None), in_order);
    let mut shuffled = arrivals(Some(7));
    assert_ne!(shuffled, in_order);
    shuffled.sort_unstable();
    assert_eq!(shuffled, in_order);
}

#[test]
fn sink_records_sent_received_and_failed_packets() {
    let trace = Trace::new();
    let mut world = World::default();
    for host in 1..3 {
        let capture = Some(SharedSink::new(trace.clone()));
        world.add(
            &TcpDevice::open(options(host).with(|options| options.capture = capture)).unwrap(),
            infinite_retry_options(),
        );
    }
    let to = world.destination(0, 1);
    world.post_receives(1, 1);
    world.send(0, to, 1, b"seen");
    world.received(1, 1);
    world.send(0, Destination { qkey: Qkey(0), ..to }, 2, b"lost");
    world.ended(0, 2);
    let seen = trace.take().into_iter().map(|record| (record.event, record.bytes.into_owned()));
    let expected = [
        (PacketEvent::Sent, b"seen".to_vec()),
        (PacketEvent::Received, b"seen".to_vec()),
        (PacketEvent::Sent, b"lost".to_vec()),
        (PacketEvent::Failed(Status::BadDestinationQpn), b"lost".to_vec()),
    ];
    assert_eq!(seen.collect::<Vec<_>>(), expected);
}

/// The receiver's program doesn't read its completion queue any more.
#[test]
fn packets_are_acknowledged_by_the_poll_that_receives_them() {
    let mut world = World::new(1);
    let mut b = device(2).create_queue_pair(infinite_retry_options()).unwrap();
    for _ in 0..3 {
        let packet = b.allocate_packet().unwrap();
        b.post_receive(packet).unwrap();
    }
    let QueuePairAddress { gid, qpn, qkey } = b.address();
    let address_handle = world.qp(0).create_address_handle(gid).unwrap();
    for id in 0..3 {
        world.send(0, Destination { address_handle, qpn, qkey }, id, b"x");
    }
    world.assert_idle();
    let start = Instant::now();
    while b.poll(Time::ZERO).is_none() {
        assert!(start.elapsed() < DEADLINE, "no progress within the deadline");
    }
    assert_eq!(world.ended(0, 3), [(0, Ok(())), (1, Ok(())), (2, Ok(()))]);
}

#[test]
fn packet_is_received_by_the_next_poll_of_a_program_that_sleeps_between_its_polls() {
    let mut world = World::new(3);
    let to = [0, 1].map(|sender| world.destination(sender, 2));
    world.post_receives(2, 8);
    // By turns, as one that sent last is looked at in each poll.
    for (id, sender) in [0, 1, 0, 1, 0, 1].into_iter().enumerate() {
        world.assert_idle();
        world.send(sender, to[sender], id as u64, b"found");
        let now = world.now;
        let early = world.qp(sender).poll(now);
        assert!(early.is_none(), "{early:?}");
        if id < 2 {
            // It connects.
            world.received(2, 1);
        } else {
            // Longer than the 20 µs after which a poll asks in any case; by their number it would be eight polls.
            std::thread::sleep(Duration::from_millis(1));
            let found = world.qp(2).poll(now);
            assert!(matches!(found, Some(Completion::Receive { .. })), "{id}: {found:?}");
        }
        assert_eq!(world.ended(sender, 1), [(id as u64, Ok(()))]);
    }
}

#[test]
fn device_address_and_port_range_are_checked() {
    let error = |address: [u8; 4]| TcpDevice::open(TcpOptions::new(address)).unwrap_err();
    assert!(matches!(error([0, 0, 0, 0]), DeviceError::BadAddress { .. }));
    assert!(matches!(error([224, 0, 0, 1]), DeviceError::BadAddress { .. }));
    // Reserved for documentation, so no interface has this address.
    assert!(matches!(error([192, 0, 2, 1]), DeviceError::Absent { .. }));
    let long = TcpDevice::open(options(1).with(|options| options.mtu = 65537)).unwrap_err();
    assert_eq!(long, DeviceError::TooLong { length: 65537, limit: 65536 });

    #[allow(clippy::reversed_empty_ranges, reason = "the subject")]
    let none = options(1).with(|options| options.ports = Some(9..=3));
    let none = TcpDevice::open(none).unwrap();
    let error = none.create_queue_pair(infinite_retry_options()).unwrap_err();
    assert_eq!(
        error,
        DeviceError::LimitReached { object: "queue pair (TcpOptions::ports is empty)", limit: 0 }
    );

    let deep = infinite_retry_options().with(|options| options.send_depth = 5000);
    let error = device(1).create_queue_pair(deep).unwrap_err();
    assert_eq!(error, DeviceError::TooLong { length: 5000, limit: 4096 });

    let some = device(9).create_queue_pair(infinite_retry_options()).unwrap().address().qpn.0;
    let ports = some - 9..=some;
    let range = options(9).with(|options| options.ports = Some(ports.clone()));
    let range = TcpDevice::open(range).unwrap();
    let [first, second] =
        [(); 2].map(|()| range.create_queue_pair(infinite_retry_options()).unwrap());
    let (first, second) = (first.address().qpn.0, second.address().qpn.0);
    assert!(ports.contains(&first) && first < second && ports.contains(&second));
}

#[test]
fn address_handle_of_the_device_serves_all_its_queue_pairs() {
    let mut world = World::new(0);
    let (first, second) = (device(1), device(2));
    for device in [&first, &first, &second] {
        world.add(device, infinite_retry_options());
    }
    let QueuePairAddress { gid, qpn, qkey } = world.qp(2).address();
    let address_handle = first.create_address_handle(gid).unwrap();
    let to = Destination { address_handle, qpn, qkey };
    world.post_receives(2, 2);
    for sender in 0..2 {
        world.send(sender, to, 1, b"x");
        assert_eq!(world.ended(sender, 1), [(1, Ok(()))]);
    }
    first.destroy_address_handle(address_handle);
    let unknown = Err(DeviceError::BadAddressHandle { handle: address_handle });
    assert_eq!(world.try_send(0, to, 1, b"x"), unknown);
}

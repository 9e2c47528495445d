//! The in-process simulated link with virtual time: delivery, faults, RNR and limits.

#![allow(clippy::unwrap_used)]

#[path = "common/queue_pairs.rs"]
mod queue_pairs;

use std::time::Duration;

use efa_device::*;
use efa_sim::local::{Faults, LocalDevice, LocalFabric, LocalOptions, LocalQueuePair, Reorder};
use efa_sim::record::{PacketEvent, Record, Trace};
use queue_pairs::{destination, post_receives, send as try_send};

const KEY: Qkey = Qkey(0x1234);

fn fabric(seed: u64) -> LocalFabric {
    LocalFabric::new(LocalOptions::default().with(|options| {
        options.seed = seed;
        options.mtu = 256;
    }))
}

fn queue_pair(device: &LocalDevice) -> LocalQueuePair {
    device
        .create_queue_pair(QueuePairOptions::default().with(|options| options.qkey = KEY))
        .unwrap()
}

/// Two hosts with a queue pair each.
fn pair(fabric: &LocalFabric) -> (LocalQueuePair, LocalQueuePair) {
    (queue_pair(&fabric.open()), queue_pair(&fabric.open()))
}

fn send(from: &mut LocalQueuePair, destination: Destination, id: u64) {
    try_send(from, destination, id, &id.to_le_bytes()).unwrap();
}

/// Completions of a queue pair: send results by id, and received packet numbers with their source.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    sends: Vec<(u64, Result<(), Status>)>,
    receives: Vec<(u64, Source)>,
}

impl Seen {
    fn take(&mut self, qp: &mut LocalQueuePair, now: Time) {
        while let Some(completion) = qp.poll(now) {
            match completion {
                Completion::Send { id, result, .. } => self.sends.push((id.0, result)),
                Completion::Receive { packet, length, source, .. } => {
                    assert_eq!(length, 8);
                    let number = u64::from_le_bytes(packet[..8].try_into().unwrap());
                    self.receives.push((number, source));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn numbers(&self) -> Vec<u64> {
        self.receives.iter().map(|(number, _)| *number).collect()
    }
}

/// Polls at each event time until no event is pending.
fn settle<const N: usize>(fabric: &LocalFabric, qps: [&mut LocalQueuePair; N]) -> [Seen; N] {
    let mut seen = std::array::from_fn(|_| Seen::default());
    let mut qps = qps;
    while let Some(now) = fabric.next_event() {
        for (qp, seen) in qps.iter_mut().zip(&mut seen) {
            seen.take(qp, now);
        }
    }
    seen
}

/// Results of one run of 50 packets.
#[derive(Debug, PartialEq)]
struct Run {
    arrived: Vec<u64>,
    ended: Vec<u64>,
    end: Time,
    trace: Vec<Record<'static>>,
}

fn run(seed: u64, reorder: Reorder) -> Run {
    let fabric = LocalFabric::new(LocalOptions::default().with(|options| {
        options.seed = seed;
        options.reorder = reorder;
        options.mtu = 64;
    }));
    let trace = Trace::new();
    fabric.capture(trace.clone());
    let (mut a, mut b) = pair(&fabric);
    post_receives(&mut b, 50);
    let to = destination(&mut a, b.address());
    for id in 0..50 {
        send(&mut a, to, id);
    }
    let [a, b] = settle(&fabric, [&mut a, &mut b]);
    assert!(a.sends.iter().all(|(_, result)| result.is_ok()));
    Run {
        arrived: b.numbers(),
        ended: a.sends.iter().map(|(id, _)| *id).collect(),
        end: fabric.now(),
        trace: trace.take(),
    }
}

#[test]
fn same_seed_gives_the_same_run() {
    for seed in [0, 1, 99] {
        assert_eq!(run(seed, Reorder::Shuffle), run(seed, Reorder::Shuffle));
    }
    let one = run(1, Reorder::Shuffle);
    assert_ne!(one.arrived, run(2, Reorder::Shuffle).arrived);
    let count = |event| one.trace.iter().filter(|record| record.event == event).count();
    assert_eq!((count(PacketEvent::Sent), count(PacketEvent::Received)), (50, 50));
    assert_eq!(one.trace.len(), 100);
}

#[test]
fn packets_arrive_once_and_out_of_order_by_default() {
    let Run { mut arrived, mut ended, .. } = run(3, Reorder::Shuffle);
    let in_order: Vec<u64> = (0..50).collect();
    assert_ne!(arrived, in_order);
    assert_ne!(ended, in_order);
    arrived.sort_unstable();
    ended.sort_unstable();
    assert_eq!((arrived, ended), (in_order.clone(), in_order));
}

#[test]
fn packets_arrive_in_order_without_reorder() {
    let in_order: Vec<u64> = (0..50).collect();
    let Run { arrived, ended, .. } = run(3, Reorder::None);
    assert_eq!((arrived, ended), (in_order.clone(), in_order));
}

#[test]
fn packets_due_at_the_same_time_are_shuffled() {
    let fabric = LocalFabric::new(LocalOptions::default().with(|options| {
        options.delay = Duration::ZERO..Duration::ZERO;
        options.mtu = 64;
    }));
    let (mut a, mut b) = pair(&fabric);
    post_receives(&mut b, 20);
    let to = destination(&mut a, b.address());
    for id in 0..20 {
        send(&mut a, to, id);
    }
    let [_, b] = settle(&fabric, [&mut a, &mut b]);
    assert_eq!(b.receives.len(), 20);
    assert_ne!(b.numbers(), (0..20).collect::<Vec<_>>());
    assert!(fabric.statistics().overtaken > 0);
    assert_eq!(fabric.now(), Time::ZERO);
}

#[test]
fn poll_frequency_does_not_change_the_events() {
    let run = |step: Option<Duration>| {
        let fabric = fabric(5);
        let trace = Trace::new();
        fabric.capture(trace.clone());
        let (mut a, mut b) = pair(&fabric);
        post_receives(&mut b, 30);
        let to = destination(&mut a, b.address());
        for id in 0..30 {
            send(&mut a, to, id);
        }
        let mut seen = Seen::default();
        while let Some(next) = fabric.next_event() {
            let now = step.map_or(next, |step| fabric.now() + step);
            seen.take(&mut a, now);
            seen.take(&mut b, now);
        }
        (seen.numbers(), trace.take())
    };
    let finest = run(None);
    assert_eq!(finest, run(Some(Duration::from_nanos(300))));
    assert_eq!(finest, run(Some(Duration::from_secs(1))));
}

#[test]
fn invalid_posts_are_refused_and_return_the_packet() {
    let fabric = fabric(0);
    let device = fabric.open();
    let options = QueuePairOptions::default().with(|options| {
        options.send_depth = 2;
        options.receive_depth = 1;
    });
    let mut a = device.create_queue_pair(options).unwrap();
    let me = a.address();
    let to = destination(&mut a, me);
    assert_eq!(
        try_send(&mut a, Destination { address_handle: AddressHandle(9), ..to }, 0, b""),
        Err(DeviceError::BadAddressHandle { handle: AddressHandle(9) })
    );
    for (packet, length, limit) in [(vec![0; 500], 257, 256), (vec![0; 100], 101, 100)] {
        let request = SendRequest {
            id: WorkId(0),
            packet: packet.into(),
            length,
            destination: to,
            immediate: None,
        };
        let refused = a.post_send(request).unwrap_err();
        assert_eq!(refused.error, DeviceError::TooLong { length: length as u64, limit });
    }
    try_send(&mut a, to, 0, &[1; 256]).unwrap();
    try_send(&mut a, to, 1, b"").unwrap();
    assert_eq!(try_send(&mut a, to, 2, b""), Err(DeviceError::QueueFull { depth: 2 }));
    post_receives(&mut a, 1);
    let refused = a.post_receive(vec![7; 3].into()).unwrap_err();
    assert_eq!(refused.error, DeviceError::QueueFull { depth: 1 });
    assert_eq!(&*refused.packet, [7; 3]);
    // Polling the completion of a send frees its queue entry.
    let now = Time::ZERO + Duration::from_secs(1);
    while let Some(completion) = a.poll(now) {
        if matches!(completion, Completion::Receive { .. }) {
            post_receives(&mut a, 1);
        }
    }
    try_send(&mut a, to, 3, b"").unwrap();
}

#[test]
fn limits_on_queue_pairs_handles_and_regions_are_enforced() {
    let fabric = LocalFabric::new(LocalOptions::default().with(|options| {
        options.max_queue_pairs = 1;
        options.max_regions = 1;
        options.max_region_size = 10;
        options.max_address_handles = 1;
        options.max_send = 8;
    }));
    let device = fabric.open();
    let deep = QueuePairOptions::default().with(|options| options.send_depth = 9);
    let error = device.create_queue_pair(deep).unwrap_err();
    assert_eq!(error, DeviceError::TooLong { length: 9, limit: 8 });
    let options = QueuePairOptions::default().with(|options| options.send_depth = 8);
    let mut qp = device.create_queue_pair(options).unwrap();
    let error = device.create_queue_pair(options).unwrap_err();
    assert_eq!(error, DeviceError::LimitReached { object: "queue pair", limit: 1 });
    let error = device.create_queue_pair_at(qp.address().qpn, options).unwrap_err();
    assert!(matches!(error, DeviceError::Inconsistent { .. }));
    qp.create_address_handle(Gid([1; 16])).unwrap();
    let error = qp.create_address_handle(Gid([2; 16])).unwrap_err();
    assert_eq!(error, DeviceError::LimitReached { object: "address handle", limit: 1 });
    drop(qp);
    device.create_queue_pair(options).unwrap().create_address_handle(Gid([2; 16])).unwrap();
    device.register(vec![0; 11].into(), Access::default()).unwrap_err();
    let region = device.register(vec![0; 10].into(), Access::default()).unwrap();
    device.register(vec![0; 10].into(), Access::default()).unwrap_err();
    assert!(device.region(region.remote_key()).is_some());
}

// conformance: A29
#[test]
fn receive_reports_address_handle_of_known_sender_only() {
    for report_unknown_gid in [true, false] {
        let fabric = LocalFabric::new(
            LocalOptions::default().with(|options| options.report_unknown_gid = report_unknown_gid),
        );
        let (mut a, mut b) = pair(&fabric);
        let to = destination(&mut a, b.address());
        post_receives(&mut b, 3);
        let source = |a: &mut LocalQueuePair, b: &mut LocalQueuePair| {
            send(a, to, 0);
            let [_, b] = settle(&fabric, [a, b]);
            b.receives[0].1
        };
        let QueuePairAddress { gid, qpn, .. } = a.address();
        let unknown = Source { address_handle: None, qpn, gid: report_unknown_gid.then_some(gid) };
        assert_eq!(source(&mut a, &mut b), unknown);
        let handle = b.create_address_handle(gid).unwrap();
        let known = Source { address_handle: Some(handle), qpn, gid: None };
        assert_eq!(source(&mut a, &mut b), known);
        b.destroy_address_handle(handle);
        assert_eq!(source(&mut a, &mut b), unknown);
    }
}

#[test]
fn send_without_posted_buffer_waits_then_fails_with_rnr() {
    let fabric = LocalFabric::new(LocalOptions::default().with(|options| {
        options.delay = Duration::ZERO..Duration::ZERO;
        options.rnr_delay = Duration::from_micros(100);
    }));
    let (mut a, mut b) = pair(&fabric);
    let to = destination(&mut a, b.address());
    send(&mut a, to, 1);
    let [seen, _] = settle(&fabric, [&mut a, &mut b]);
    assert_eq!(seen.sends, [(1, Err(Status::ReceiverNotReady))]);
    assert_eq!(fabric.now(), Time::ZERO + Duration::from_micros(300), "three retries");

    send(&mut a, to, 2);
    assert!(a.poll(fabric.now() + Duration::from_micros(250)).is_none());
    post_receives(&mut b, 1);
    let [seen, received] = settle(&fabric, [&mut a, &mut b]);
    assert_eq!((seen.sends, received.numbers()), (vec![(2, Ok(()))], vec![2]));
    assert_eq!(fabric.statistics().receiver_not_ready, 1);
}

#[test]
fn dropped_receive_buffers_make_sends_fail_with_rnr() {
    let fabric = fabric(0);
    let (mut a, mut b) = pair(&fabric);
    post_receives(&mut b, 3);
    assert_eq!(fabric.drop_receive_buffers(b.address(), 2), Ok(2));
    let to = destination(&mut a, b.address());
    send(&mut a, to, 1);
    send(&mut a, to, 2);
    let [mut seen, received] = settle(&fabric, [&mut a, &mut b]);
    seen.sends.sort_unstable_by_key(|(_, result)| result.is_err());
    assert_eq!(seen.sends[0].1, Ok(()));
    assert_eq!(seen.sends[1].1, Err(Status::ReceiverNotReady));
    assert_eq!(received.receives.len(), 1);
    assert_eq!(fabric.drop_receive_buffers(b.address(), 2), Ok(0));
}

#[test]
fn send_with_infinite_rnr_retry_waits_for_a_buffer() {
    let fabric = fabric(0);
    let options = QueuePairOptions::default().with(|options| {
        options.qkey = KEY;
        options.rnr_retry = 7;
    });
    let mut a = fabric.open().create_queue_pair(options).unwrap();
    let mut b = queue_pair(&fabric.open());
    let to = destination(&mut a, b.address());
    fabric.not_ready(b.address(), 2).unwrap();
    send(&mut a, to, 1);
    let [seen, _] = settle(&fabric, [&mut a, &mut b]);
    assert_eq!(seen, Seen::default());
    let year = fabric.now() + Duration::from_secs(31_536_000);
    assert!(a.poll(year).is_none());
    post_receives(&mut b, 1);
    let [seen, received] = settle(&fabric, [&mut a, &mut b]);
    assert_eq!((seen.sends, received.numbers()), (vec![(1, Ok(()))], vec![1]));
}

#[test]
fn send_to_a_short_buffer_fails_and_buffer_stays_posted() {
    let fabric = fabric(0);
    let (mut a, mut b) = pair(&fabric);
    b.post_receive(vec![0; 8].into()).unwrap();
    let to = destination(&mut a, b.address());
    try_send(&mut a, to, 1, &[0; 9]).unwrap();
    let [seen, _] = settle(&fabric, [&mut a, &mut b]);
    assert_eq!(seen.sends, [(1, Err(Status::RemoteBadLength))]);
    send(&mut a, to, 2);
    let [seen, _] = settle(&fabric, [&mut a, &mut b]);
    assert_eq!(seen.sends, [(2, Ok(()))]);
}

#[test]
fn packet_waiting_behind_one_that_is_too_long_takes_the_buffer() {
    let fabric = fabric(1);
    let options = QueuePairOptions::default().with(|options| options.rnr_retry = 7);
    let [mut a, mut b] = [(); 2].map(|()| fabric.open().create_queue_pair(options).unwrap());
    let to = destination(&mut a, b.address());
    try_send(&mut a, to, 1, &[1; 100]).unwrap();
    settle(&fabric, [&mut a, &mut b]);
    send(&mut a, to, 2);
    settle(&fabric, [&mut a, &mut b]);
    b.post_receive(vec![0; 8].into()).unwrap();
    let [mut sent, received] = settle(&fabric, [&mut a, &mut b]);
    sent.sends.sort_unstable_by_key(|&(id, _)| id);
    assert_eq!(sent.sends, [(1, Err(Status::RemoteBadLength)), (2, Ok(()))]);
    assert_eq!(received.receives.len(), 1);
}

#[test]
fn send_to_missing_queue_pair_or_with_wrong_qkey_fails() {
    let fabric = fabric(0);
    let (mut a, mut b) = pair(&fabric);
    post_receives(&mut b, 2);
    let to = destination(&mut a, b.address());
    send(&mut a, Destination { qpn: Qpn(999), ..to }, 1);
    let nowhere = a.create_address_handle(Gid([3; 16])).unwrap();
    send(&mut a, Destination { address_handle: nowhere, ..to }, 2);
    send(&mut a, Destination { qkey: Qkey(1), ..to }, 3);
    let [mut seen, received] = settle(&fabric, [&mut a, &mut b]);
    seen.sends.sort_unstable_by_key(|(id, _)| *id);
    let failed = Err(Status::BadDestinationQpn);
    assert_eq!(seen.sends, [(1, failed), (2, failed), (3, failed)]);
    assert_eq!(received, Seen::default());
    let statistics = fabric.statistics();
    assert_eq!((statistics.bad_destination, statistics.bad_key), (2, 1));
}

#[test]
fn sends_to_a_dropped_queue_pair_fail_with_bad_destination_qpn() {
    let fabric = fabric(0);
    let (mut a, b) = pair(&fabric);
    let to = destination(&mut a, b.address());
    send(&mut a, to, 1);
    let mut seen = Seen::default();
    // The first packet waits for a buffer, the second is in flight.
    seen.take(&mut a, Time::ZERO + Duration::from_micros(30));
    send(&mut a, to, 2);
    drop(b);
    let [mut seen] = settle(&fabric, [&mut a]);
    seen.sends.sort_unstable_by_key(|(id, _)| *id);
    let failed = Err(Status::BadDestinationQpn);
    assert_eq!(seen.sends, [(1, failed), (2, failed)]);
}

#[test]
fn packets_of_a_dropped_sender_are_delivered() {
    let fabric = fabric(0);
    let (mut a, mut b) = pair(&fabric);
    post_receives(&mut b, 1);
    let to = destination(&mut a, b.address());
    send(&mut a, to, 1);
    drop(a);
    let [seen] = settle(&fabric, [&mut b]);
    assert_eq!(seen.numbers(), [1]);
}

#[test]
fn killed_peer_flushes_its_sends_and_is_unresponsive() {
    let fabric = LocalFabric::new(
        LocalOptions::default()
            .with(|options| options.unresponsive_after = Duration::from_millis(5)),
    );
    let (mut a, mut b) = pair(&fabric);
    post_receives(&mut a, 4);
    post_receives(&mut b, 4);
    let (to_b, to_a) = (destination(&mut a, b.address()), destination(&mut b, a.address()));
    send(&mut a, to_b, 1);
    send(&mut b, to_a, 2);
    fabric.kill(b.address()).unwrap();
    send(&mut b, to_a, 3);
    let [seen_a, mut seen_b] = settle(&fabric, [&mut a, &mut b]);
    seen_b.sends.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(seen_a.sends, [(1, Err(Status::UnresponsiveRemote))]);
    assert!(fabric.now() >= Time::ZERO + Duration::from_millis(5));
    assert_eq!(seen_b.sends, [(2, Err(Status::Flushed)), (3, Err(Status::Flushed))]);
    assert_eq!((seen_a.receives, seen_b.receives), (vec![], vec![]));
}

#[test]
fn waiting_packets_fail_when_either_side_is_killed() {
    let fabric = fabric(0);
    let (mut a, mut b) = pair(&fabric);
    let mut c = queue_pair(&fabric.open());
    let (to_b, to_c) = (destination(&mut a, b.address()), destination(&mut b, c.address()));
    // One packet to b, which is killed below, one from b, and one between a and c.
    send(&mut a, to_b, 1);
    send(&mut b, to_c, 2);
    let to_c = destination(&mut a, c.address());
    send(&mut a, to_c, 3);
    while fabric.statistics().waited < 3 {
        let now = fabric.next_event().unwrap();
        assert!([a.poll(now), b.poll(now), c.poll(now)].iter().all(Option::is_none));
    }
    let killed = fabric.now();
    fabric.kill(b.address()).unwrap();
    post_receives(&mut b, 1);
    post_receives(&mut c, 2);
    let [mut seen_a, seen_b, seen_c] = settle(&fabric, [&mut a, &mut b, &mut c]);
    seen_a.sends.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(seen_a.sends, [(1, Err(Status::UnresponsiveRemote)), (3, Ok(()))]);
    assert!(fabric.now() - killed >= Duration::from_millis(5));
    assert_eq!((seen_b.sends, seen_b.receives), (vec![(2, Err(Status::Flushed))], vec![]));
    assert_eq!(seen_c.numbers(), [3]);
    assert_eq!(fabric.statistics().receiver_not_ready, 0, "no send ran out of RNR retries");
}

#[test]
fn stale_packets_reach_a_reused_number_only_if_injected() {
    let fabric = fabric(0);
    fabric.set_faults(Faults::default().with(|faults| faults.keep_stale = 8));
    let device = fabric.open();
    let (mut a, mut b) = (queue_pair(&fabric.open()), queue_pair(&device));
    post_receives(&mut b, 1);
    let old = b.address();
    let to = destination(&mut a, old);
    send(&mut a, to, 1);
    settle(&fabric, [&mut a, &mut b]);
    send(&mut a, to, 2);
    drop(b);
    let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(77));
    let mut b = device.create_queue_pair_at(old.qpn, options).unwrap();
    assert_eq!(b.address().qpn, old.qpn);
    post_receives(&mut b, 4);
    let [seen, received] = settle(&fabric, [&mut a, &mut b]);
    assert_eq!(seen.sends, [(2, Err(Status::BadDestinationQpn))]);
    assert_eq!(received, Seen::default());
    assert_eq!(fabric.deliver_stale(b.address()), 2);
    let [seen, received] = settle(&fabric, [&mut a, &mut b]);
    assert_eq!(seen, Seen::default(), "the sends completed before the replay");
    let mut numbers = received.numbers();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
    assert_eq!(received.receives[0].1.qpn, a.address().qpn);
    assert_eq!(fabric.deliver_stale(b.address()), 0);
}

#[test]
fn injected_bytes_arrive_without_qkey_check() {
    let fabric = fabric(0);
    let (a, mut b) = pair(&fabric);
    post_receives(&mut b, 1);
    fabric.inject(a.address(), b.address(), &9u64.to_le_bytes());
    fabric.inject(a.address(), b.address(), &9u64.to_le_bytes());
    let [seen] = settle(&fabric, [&mut b]);
    assert_eq!(seen.numbers(), [9], "the packet that finds no buffer is dropped");
}

#[test]
fn injected_faults_end_after_their_count() {
    let fabric =
        LocalFabric::new(LocalOptions::default().with(|options| options.reorder = Reorder::None));
    let device = fabric.open();
    let (mut a, mut b) = (queue_pair(&device), queue_pair(&fabric.open()));
    post_receives(&mut b, 10);
    let to = destination(&mut a, b.address());

    fabric.refuse_sends(a.address(), 1).unwrap();
    assert!(matches!(try_send(&mut a, to, 0, b""), Err(DeviceError::QueueFull { .. })));
    fabric.not_ready(b.address(), 1).unwrap();
    fabric.fail_sends(a.address(), 1, Status::UnreachableRemote).unwrap();
    for id in 0..3 {
        send(&mut a, to, id);
    }
    let [mut seen, received] = settle(&fabric, [&mut a, &mut b]);
    seen.sends.sort_unstable_by_key(|(id, _)| *id);
    let unreachable = (0, Err(Status::UnreachableRemote));
    assert_eq!(seen.sends, [unreachable, (1, Err(Status::ReceiverNotReady)), (2, Ok(()))]);
    assert_eq!(received.numbers(), [2]);

    let before = fabric.now();
    fabric.delay_sends(a.address(), 1, Duration::from_secs(1)).unwrap();
    send(&mut a, to, 3);
    settle(&fabric, [&mut a, &mut b]);
    assert!(fabric.now() - before >= Duration::from_secs(1));

    fabric.delay_completions(a.address(), 1, Duration::from_secs(1)).unwrap();
    send(&mut a, to, 4);
    let soon = fabric.now() + Duration::from_millis(1);
    let (mut sender, mut receiver) = (Seen::default(), Seen::default());
    sender.take(&mut a, soon);
    receiver.take(&mut b, soon);
    assert_eq!(
        (sender.sends.len(), receiver.numbers()),
        (0, vec![4]),
        "packet 4 arrives before its send completes"
    );
    let [seen, _] = settle(&fabric, [&mut a, &mut b]);
    assert_eq!(seen.sends, [(4, Ok(()))]);
    assert!(fabric.now() > soon + Duration::from_millis(900));

    device.refuse_registrations(1);
    let refused = device.register(vec![5; 3].into(), Access::default()).unwrap_err();
    assert!(matches!(refused.error, DeviceError::LimitReached { .. }));
    assert_eq!(&*refused.memory, [5; 3]);
    device.register(refused.memory, Access::default()).unwrap();

    let missing = QueuePairAddress { qpn: Qpn(4000), ..b.address() };
    assert!(matches!(fabric.kill(missing), Err(DeviceError::Absent { .. })));
}

#[test]
fn faults_with_probability_one_always_occur() {
    let fabric = fabric(0);
    let device = fabric.open();
    let (mut a, mut b) = (queue_pair(&device), queue_pair(&fabric.open()));
    post_receives(&mut b, 4);
    let to = destination(&mut a, b.address());
    fabric.set_faults(Faults::default().with(|faults| faults.receiver_not_ready = 1.0));
    send(&mut a, to, 1);
    let [seen, _] = settle(&fabric, [&mut a, &mut b]);
    assert_eq!(seen.sends, [(1, Err(Status::ReceiverNotReady))]);

    let late_by = Duration::from_secs(2);
    fabric.set_faults(Faults::default().with(|faults| {
        faults.late = 1.0;
        faults.late_by = late_by;
    }));
    let before = fabric.now();
    send(&mut a, to, 2);
    settle(&fabric, [&mut a, &mut b]);
    assert!(fabric.now() - before >= late_by);

    fabric.set_faults(Faults::default().with(|faults| faults.send_refused = 1.0));
    assert!(matches!(try_send(&mut a, to, 3, b""), Err(DeviceError::QueueFull { depth: 1024 })));
    fabric.set_faults(Faults::default().with(|faults| faults.send_limit = Some(0)));
    assert_eq!(try_send(&mut a, to, 3, b""), Err(DeviceError::QueueFull { depth: 0 }));

    fabric.set_faults(Faults::default().with(|faults| {
        faults.registration_refused = 1.0;
        faults.allocation_refused = 1.0;
    }));
    assert!(device.register(vec![0; 1].into(), Access::default()).is_err());
    assert!(a.allocate_packet().is_err());
}

#[test]
fn next_event_is_the_time_of_the_next_completion() {
    let fabric = fabric(0);
    let (mut a, mut b) = pair(&fabric);
    let mut c = queue_pair(&fabric.open());
    post_receives(&mut b, 1);
    let to = destination(&mut a, b.address());
    assert_eq!(b.next_event(), None);
    send(&mut a, to, 1);
    assert_eq!(c.next_event(), None, "c has no pending event");
    let arrival = b.next_event().unwrap();
    assert!(b.poll(Time::from_nanos(arrival.as_nanos() - 1)).is_none());
    assert!(b.poll(arrival).is_some());
    let answer = a.next_event().unwrap();
    assert!(c.poll(answer).is_none(), "polling any queue pair advances the whole fabric");
    assert_eq!(a.next_event(), Some(answer));
    assert!(a.poll(arrival).is_some());
    assert_eq!(fabric.next_event(), None);
}

#[test]
fn look_finds_nothing_until_an_event_is_scheduled() {
    let fabric = fabric(1);
    let (mut a, mut b) = pair(&fabric);
    post_receives(&mut b, 1);
    let to_b = destination(&mut a, b.address());
    assert!(!b.has_no_arrivals(), "nothing was prepared");
    assert!(a.await_arrivals() && b.await_arrivals());
    assert!(a.has_no_arrivals() && b.has_no_arrivals());
    send(&mut a, to_b, 7);
    assert!(!a.has_no_arrivals() && !b.has_no_arrivals());
    assert!(!b.await_arrivals(), "a packet is on its way");
    let [sent, received] = settle(&fabric, [&mut a, &mut b]);
    assert_eq!((sent.sends, received.numbers()), (vec![(7, Ok(()))], vec![7]));
    assert!(!b.has_no_arrivals());
    assert!(b.await_arrivals() && b.has_no_arrivals());
}

#[test]
fn queue_pair_for_whose_packets_there_is_no_memory_is_refused() {
    let options = LocalOptions::default().with(|options| options.mtu = usize::MAX);
    let device = LocalFabric::new(options).open();
    let created = device.create_queue_pair(QueuePairOptions::default()).map(drop);
    let at_number = device.create_queue_pair_at(Qpn(1), QueuePairOptions::default()).map(drop);
    for error in [created.unwrap_err(), at_number.unwrap_err()] {
        assert_eq!(error.shortage(), Some(Shortage::Memory), "{error}");
    }
}

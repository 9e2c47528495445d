//! The shm link within one process; the tests choose the time.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::VecDeque;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use common::Directory;
use efa_device::*;
use efa_sim::faults::FaultOptions;
use efa_sim::record::{PacketEvent, SharedSink, Trace};
use efa_sim::shm::{ShmDevice, ShmOptions, ShmQueuePair};

const KEY: Qkey = Qkey(0x1234);
const MTU: usize = 300;

fn options(directory: &Directory) -> ShmOptions {
    let mut options = ShmOptions::new("host");
    options.directory = Some(directory.path().to_path_buf());
    options.mtu = MTU;
    options.ring_slots = 8;
    options
}

fn queue_pair(device: &ShmDevice) -> ShmQueuePair {
    device
        .create_queue_pair(QueuePairOptions::default().with(|options| options.qkey = KEY))
        .unwrap()
}

/// One queue pair on each of two devices, opened on the same host as two processes would.
fn pair(directory: &Directory) -> (ShmQueuePair, ShmQueuePair) {
    let open = || ShmDevice::open(options(directory)).unwrap();
    (queue_pair(&open()), queue_pair(&open()))
}

fn destination(from: &mut ShmQueuePair, to: QueuePairAddress) -> Destination {
    let address_handle = from.create_address_handle(to.gid).unwrap();
    Destination { address_handle, qpn: to.qpn, qkey: to.qkey }
}

fn send(
    from: &mut ShmQueuePair,
    destination: Destination,
    id: u64,
    bytes: &[u8],
) -> Result<(), DeviceError> {
    let mut packet = from.allocate_packet().unwrap();
    packet[..bytes.len()].copy_from_slice(bytes);
    let request =
        SendRequest { id: WorkId(id), packet, length: bytes.len(), destination, immediate: None };
    from.post_send(request).map_err(|refused| refused.error)
}

fn post_receives(qp: &mut ShmQueuePair, count: usize) {
    for _ in 0..count {
        let packet = qp.allocate_packet().unwrap();
        qp.post_receive(packet).unwrap();
    }
}

/// Completions of a queue pair, by kind.
#[derive(Debug, Default)]
struct Seen {
    sends: VecDeque<(u64, Result<(), Status>)>,
    receives: VecDeque<(Vec<u8>, Source)>,
}

/// Polls at `now` until no further progress is possible.
fn poll(qp: &mut ShmQueuePair, now: Time) -> Seen {
    let mut seen = Seen::default();
    for _ in 0..100 {
        match qp.poll(now) {
            Some(Completion::Send { id, result, .. }) => seen.sends.push_back((id.0, result)),
            Some(Completion::Receive { packet, length, source, .. }) => {
                seen.receives.push_back((packet[..length].to_vec(), source));
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    seen
}

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

fn files(directory: &Directory) -> Vec<String> {
    let entries = std::fs::read_dir(directory.path().join("host")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn packets_of_every_length_are_delivered_both_ways() {
    let directory = Directory::new();
    let (mut a, mut b) = pair(&directory);
    assert_eq!(a.address().gid, b.address().gid, "one host");
    let (to_b, to_a) = (destination(&mut a, b.address()), destination(&mut b, a.address()));
    for length in 0..=MTU {
        let bytes = vec![length as u8; length];
        post_receives(&mut a, 1);
        post_receives(&mut b, 1);
        send(&mut a, to_b, 1, &bytes).unwrap();
        let mut seen = poll(&mut b, at(0));
        assert_eq!(seen.receives.pop_front().unwrap().0, bytes);
        send(&mut b, to_a, 2, &bytes).unwrap();
        let mut seen = poll(&mut a, at(0));
        assert_eq!(seen.receives.pop_front().unwrap().0, bytes);
        assert_eq!(seen.sends, [(1, Ok(()))]);
        assert_eq!(poll(&mut b, at(0)).sends, [(2, Ok(()))]);
    }
}

#[test]
fn send_completes_only_when_it_is_in_a_receive_buffer() {
    let directory = Directory::new();
    let (mut a, mut b) = pair(&directory);
    let to = destination(&mut a, b.address());
    send(&mut a, to, 1, b"x").unwrap();
    assert!(poll(&mut a, at(0)).sends.is_empty(), "b has not polled");
    poll(&mut b, at(0));
    assert!(poll(&mut a, at(0)).sends.is_empty(), "b has no buffer");
    post_receives(&mut b, 1);
    assert!(poll(&mut a, at(0)).sends.is_empty());
    assert_eq!(poll(&mut b, at(0)).receives.len(), 1);
    assert_eq!(poll(&mut a, at(0)).sends, [(1, Ok(()))]);
}

#[test]
fn look_shows_packets_of_the_only_sender_and_new_senders() {
    let directory = Directory::new();
    let (mut a, mut b) = pair(&directory);
    assert!(!b.await_arrivals() && !b.has_no_arrivals(), "there is no ring to look at");
    post_receives(&mut b, 4);
    let to_b = destination(&mut a, b.address());
    send(&mut a, to_b, 1, b"one").unwrap();
    assert!(!a.await_arrivals(), "its send isn't complete");
    for round in 0..20 {
        assert_eq!(poll(&mut b, at(0)).receives.len(), 1, "{round}");
        assert!(b.await_arrivals() && b.has_no_arrivals(), "{round}");
        poll(&mut a, at(0));
        post_receives(&mut b, 1);
        send(&mut a, to_b, 1, b"next").unwrap();
        assert!(!b.has_no_arrivals() && !b.await_arrivals(), "{round}");
    }
    poll(&mut b, at(0));
    assert!(b.await_arrivals());
    let mut c = queue_pair(&ShmDevice::open(options(&directory)).unwrap());
    let to_b = destination(&mut c, b.address());
    send(&mut c, to_b, 1, b"two").unwrap();
    assert!(!b.has_no_arrivals(), "somebody else has sent");
    assert_eq!(poll(&mut b, at(0)).receives.len(), 1);
    assert!(!b.await_arrivals(), "two rings are watched");
    drop((a, c));
    poll(&mut b, at(5000));
    assert!(!b.await_arrivals() && !b.has_no_arrivals());
}

#[test]
fn queue_pair_sends_to_itself() {
    let directory = Directory::new();
    let (mut a, _) = pair(&directory);
    let me = a.address();
    let to = destination(&mut a, me);
    post_receives(&mut a, 1);
    send(&mut a, to, 1, b"me").unwrap();
    let seen = poll(&mut a, at(0));
    assert_eq!((seen.receives[0].0.as_slice(), seen.sends[0]), (&b"me"[..], (1, Ok(()))));
}

#[test]
fn sends_beyond_a_full_ring_wait_in_order_up_to_the_depth() {
    let directory = Directory::new();
    let device = ShmDevice::open(options(&directory)).unwrap();
    let depth = QueuePairOptions::default().with(|options| {
        options.qkey = KEY;
        options.send_depth = 30;
    });
    let mut a = device.create_queue_pair(depth).unwrap();
    let mut b = queue_pair(&device);
    let to = destination(&mut a, b.address());
    for id in 0..30 {
        send(&mut a, to, id, &[id as u8]).unwrap();
    }
    let full = Err(DeviceError::QueueFull { depth: 30 });
    assert_eq!(send(&mut a, to, 30, b""), full, "8 in the ring, 22 waiting");
    assert!(poll(&mut a, at(0)).sends.is_empty());
    assert_eq!(send(&mut a, to, 30, b""), full);
    post_receives(&mut b, 40);
    let mut ended = Vec::new();
    let mut received = Vec::new();
    while received.len() < 30 {
        received.extend(poll(&mut b, at(0)).receives.into_iter().map(|(bytes, _)| bytes[0]));
        ended.extend(poll(&mut a, at(0)).sends);
    }
    assert_eq!(received, (0..30).collect::<Vec<u8>>());
    assert_eq!(ended, (0..30).map(|id| (id, Ok(()))).collect::<Vec<_>>());
    send(&mut a, to, 30, b"").unwrap();
}

#[test]
fn invalid_posts_are_refused_and_return_the_packet() {
    let directory = Directory::new();
    let (mut a, b) = pair(&directory);
    let to = destination(&mut a, b.address());
    let unknown = AddressHandle(77);
    assert_eq!(
        send(&mut a, Destination { address_handle: unknown, ..to }, 0, b""),
        Err(DeviceError::BadAddressHandle { handle: unknown })
    );
    for (packet, length, limit) in [(vec![0; 500], MTU + 1, MTU), (vec![0; 100], 101, 100)] {
        let request = SendRequest {
            id: WorkId(0),
            packet: packet.into(),
            length,
            destination: to,
            immediate: None,
        };
        let refused = a.post_send(request).unwrap_err();
        let expected = DeviceError::TooLong { length: length as u64, limit: limit as u64 };
        assert_eq!(refused.error, expected);
    }
    let device = ShmDevice::open(options(&directory)).unwrap();
    let shallow = QueuePairOptions::default().with(|options| options.receive_depth = 1);
    let mut c = device.create_queue_pair(shallow).unwrap();
    post_receives(&mut c, 1);
    let refused = c.post_receive(vec![7; 3].into()).unwrap_err();
    assert_eq!(refused.error, DeviceError::QueueFull { depth: 1 });
    assert_eq!(&*refused.packet, [7; 3]);
    let deep = QueuePairOptions::default().with(|options| options.send_depth = 5000);
    let error = device.create_queue_pair(deep).unwrap_err();
    assert_eq!(error, DeviceError::TooLong { length: 5000, limit: 4096 });
}

#[test]
fn completed_operations_free_queue_space() {
    let directory = Directory::new();
    let device = ShmDevice::open(options(&directory)).unwrap();
    let depths = QueuePairOptions::default().with(|options| {
        options.qkey = KEY;
        options.send_depth = 3;
        options.receive_depth = 2;
    });
    let (mut a, mut b) =
        (device.create_queue_pair(depths).unwrap(), device.create_queue_pair(depths).unwrap());
    assert_eq!((a.attributes().max_send, a.attributes().max_receive), (3, 2));
    let to = destination(&mut a, b.address());
    for round in 0..5 {
        post_receives(&mut b, 2);
        let packet = b.allocate_packet().unwrap();
        let refused = b.post_receive(packet).unwrap_err();
        assert_eq!(refused.error, DeviceError::QueueFull { depth: 2 }, "round {round}");
        for id in 0..3 {
            send(&mut a, to, id, b"x").unwrap();
        }
        assert_eq!(send(&mut a, to, 3, b"x"), Err(DeviceError::QueueFull { depth: 3 }));
        assert_eq!(poll(&mut b, at(0)).receives.len(), 2);
        post_receives(&mut b, 1);
        assert_eq!(poll(&mut b, at(0)).receives.len(), 1);
        assert_eq!(poll(&mut a, at(0)).sends.len(), 3);
    }
}

#[test]
fn send_to_missing_queue_pair_or_interface_or_with_wrong_qkey_fails() {
    let directory = Directory::new();
    let (mut a, mut b) = pair(&directory);
    post_receives(&mut b, 1);
    let to = destination(&mut a, b.address());
    let elsewhere = a.create_address_handle(Gid([9; 16])).unwrap();
    send(&mut a, Destination { qpn: Qpn(0), ..to }, 1, b"").unwrap();
    send(&mut a, Destination { qpn: Qpn(b.address().qpn.0 ^ 0x8000), ..to }, 2, b"").unwrap();
    send(&mut a, Destination { address_handle: elsewhere, ..to }, 3, b"").unwrap();
    send(&mut a, Destination { qkey: Qkey(1), ..to }, 4, b"").unwrap();
    assert!(poll(&mut b, at(0)).receives.is_empty());
    let bad_qpn = Err(Status::BadDestinationQpn);
    let unreachable = Err(Status::UnreachableRemote);
    let sends = poll(&mut a, at(0)).sends;
    assert_eq!(sends, [(1, bad_qpn), (2, bad_qpn), (3, unreachable), (4, bad_qpn)]);
}

#[test]
fn send_without_posted_buffer_waits_then_fails_with_rnr() {
    let directory = Directory::new();
    let device = ShmDevice::open(options(&directory)).unwrap();
    let (mut a, mut b) = (queue_pair(&device), queue_pair(&device));
    let to = destination(&mut a, b.address());
    send(&mut a, to, 1, b"1").unwrap();
    poll(&mut b, at(100));
    send(&mut a, to, 2, b"2").unwrap();
    poll(&mut b, at(110));
    assert!(poll(&mut a, at(110)).sends.is_empty());
    // Three retries of 5 ms, counted from the poll that found the packet.
    poll(&mut b, at(115));
    let not_ready = Err(Status::ReceiverNotReady);
    assert_eq!(poll(&mut a, at(115)).sends, [(1, not_ready)]);
    post_receives(&mut b, 1);
    assert_eq!(poll(&mut b, at(124)).receives[0].0, b"2");
    assert_eq!(poll(&mut a, at(124)).sends, [(2, Ok(()))]);
    // The retry time of each packet starts at its own arrival.
    send(&mut a, to, 3, b"3").unwrap();
    poll(&mut b, at(130));
    assert!(poll(&mut a, at(130)).sends.is_empty());
    poll(&mut b, at(145));
    assert_eq!(poll(&mut a, at(145)).sends, [(3, not_ready)]);
}

/// A pair whose first queue pair sends with faults.
fn pair_with(directory: &Directory, faults: FaultOptions, rnr_retry: u8) -> [ShmQueuePair; 2] {
    let device =
        ShmDevice::open(options(directory).with(|options| options.faults = faults)).unwrap();
    let queue_pair = QueuePairOptions::default().with(|options| {
        options.qkey = KEY;
        options.rnr_retry = rnr_retry;
    });
    [device.create_queue_pair(queue_pair).unwrap(), device.create_queue_pair(queue_pair).unwrap()]
}

#[test]
fn reorder_fault_reorders_packets_and_loses_none() {
    let directory = Directory::new();
    let faults = FaultOptions::NONE.with(|faults| faults.reorder = Some(1));
    let [mut a, mut b] = pair_with(&directory, faults, 0);
    let to = destination(&mut a, b.address());
    post_receives(&mut b, 100);
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for id in 0..100 {
        send(&mut a, to, id, &[id as u8]).unwrap();
    }
    // The ring has eight slots.
    for _ in 0..20 {
        sent.extend(poll(&mut a, at(0)).sends);
        received.extend(poll(&mut b, at(0)).receives.into_iter().map(|(bytes, _)| bytes[0]));
    }
    let in_order: Vec<_> = (0..100).collect();
    assert_ne!(received, in_order);
    received.sort_unstable();
    assert_eq!(received, in_order);
    assert!(sent.iter().all(|(_, result)| result.is_ok()));
    let mut ids: Vec<_> = sent.into_iter().map(|(id, _)| id as u8).collect();
    ids.sort_unstable();
    assert_eq!(ids, in_order);
}

#[test]
fn reorder_fault_reorders_reads_and_writes_which_end_in_the_order_of_posting_without() {
    for reorder in [None, Some(1)] {
        let directory = Directory::new();
        let faults = FaultOptions::NONE.with(|faults| faults.reorder = reorder);
        let [mut a, b] = pair_with(&directory, faults, 0);
        let destination = destination(&mut a, b.address());
        let access = Access { remote_read: true, remote_write: true };
        let region = a.register(vec![7; 100].into(), access).unwrap();
        let target = b.register(vec![0; 100].into(), access).unwrap();
        for id in 0..100 {
            let request = RdmaRequest {
                id: WorkId(id),
                local: RegionRange { region: region.clone(), offset: id as usize, length: 1 },
                remote: RemoteMemory {
                    address: target.remote_address() + id,
                    key: target.remote_key(),
                },
                destination,
            };
            match id % 2 {
                0 => a.post_write(request, None).unwrap(),
                _ => a.post_read(request).unwrap(),
            }
        }
        let mut ended = Vec::new();
        for _ in 0..200 {
            if let Some(completion) = a.poll(at(0)) {
                let Completion::Rdma { id, result: Ok(()) } = completion else { panic!() };
                ended.push(id.0);
            }
        }
        assert_eq!(ended.is_sorted(), reorder.is_none(), "{ended:?}");
        ended.sort_unstable();
        assert_eq!(ended, (0..100).collect::<Vec<_>>());
        let mut written = [0; 100];
        target.read(0, &mut written);
        assert_eq!(written, std::array::from_fn(|at| if at % 2 == 0 { 7 } else { 0 }));
    }
}

#[test]
fn rnr_fault_fails_sends_unless_rnr_retry_is_infinite() {
    let directory = Directory::new();
    let faults = FaultOptions::NONE.with(|faults| faults.receiver_not_ready = 1.0);
    for (rnr_retry, result) in [(0, Err(Status::ReceiverNotReady)), (7, Ok(()))] {
        let [mut a, mut b] = pair_with(&directory, faults, rnr_retry);
        let to = destination(&mut a, b.address());
        post_receives(&mut b, 1);
        send(&mut a, to, 5, b"hello").unwrap();
        // The first poll detects the sender, the second reads its packet.
        let seen = [poll(&mut b, at(0)), poll(&mut b, at(0))];
        assert_eq!(seen.iter().map(|seen| seen.receives.len()).sum::<usize>(), result.iter().len());
        assert_eq!(poll(&mut a, at(0)).sends, [(5, result)]);
    }
}

#[test]
fn rnr_fault_by_first_byte_fails_first_packets_and_is_captured() {
    let directory = Directory::new();
    let faults = FaultOptions::NONE.with(|faults| faults.not_ready_of_each = 1);
    let trace = Trace::new();
    let capture = Some(SharedSink::new(trace.clone()));
    let device = ShmDevice::open(options(&directory).with(|options| {
        options.faults = faults;
        options.capture = capture;
    }))
    .unwrap();
    let [mut a, mut b] = [queue_pair(&device), queue_pair(&device)];
    let to = destination(&mut a, b.address());
    post_receives(&mut b, 6);
    let mut received = Vec::new();
    for (id, bytes) in (0..).zip([b"x1", b"y1", b"x2", b"x3", b"y2"]) {
        send(&mut a, to, id, bytes).unwrap();
    }
    for _ in 0..3 {
        received.extend(poll(&mut b, at(0)).receives.into_iter().map(|(bytes, _)| bytes));
    }
    assert_eq!(received, [b"x2", b"x3", b"y2"]);
    let failed = PacketEvent::Failed(Status::ReceiverNotReady);
    let records = trace.take().into_iter().filter(|record| record.event == failed);
    assert_eq!(records.map(|record| record.bytes.to_vec()).collect::<Vec<_>>(), [b"x1", b"y1"]);
}

#[test]
fn registration_fault_fails_by_length_and_count() {
    let directory = Directory::new();
    let refusals = Some("100-200:2".parse().unwrap());
    let faults = FaultOptions::NONE.with(|faults| faults.refusals = refusals);
    let device =
        ShmDevice::open(options(&directory).with(|options| options.faults = faults)).unwrap();
    let queue_pair = queue_pair(&device);
    let register = |length| queue_pair.register(vec![0; length].into(), Access::default());
    register(99).unwrap();
    for length in [100, 200] {
        let refused = register(length).unwrap_err();
        assert!(matches!(refused.error, DeviceError::LimitReached { .. }));
        assert_eq!(refused.memory.len(), length, "the memory is returned");
        register(201).unwrap();
    }
    register(150).unwrap();
    device.register(vec![0; 150].into(), Access::default()).unwrap();
}

#[test]
fn send_with_infinite_rnr_retry_waits_for_a_buffer() {
    let directory = Directory::new();
    let device = ShmDevice::open(options(&directory)).unwrap();
    let options = QueuePairOptions::default().with(|options| {
        options.qkey = KEY;
        options.rnr_retry = 7;
    });
    let mut a = device.create_queue_pair(options).unwrap();
    let mut b = queue_pair(&device);
    let to = destination(&mut a, b.address());
    send(&mut a, to, 1, b"1").unwrap();
    for year in 0..5 {
        let now = at(year * 31_536_000_000);
        poll(&mut b, now);
        assert!(poll(&mut a, now).sends.is_empty());
    }
    post_receives(&mut b, 1);
    assert_eq!(poll(&mut b, at(31_536_000_000 * 5)).receives.len(), 1);
}

#[test]
fn send_to_a_short_buffer_fails_and_buffer_stays_posted() {
    let directory = Directory::new();
    let (mut a, mut b) = pair(&directory);
    b.post_receive(vec![0; 8].into()).unwrap();
    let to = destination(&mut a, b.address());
    send(&mut a, to, 1, &[1; 9]).unwrap();
    send(&mut a, to, 2, &[2; 8]).unwrap();
    assert_eq!(poll(&mut b, at(0)).receives[0].0, [2; 8]);
    let sends = poll(&mut a, at(0)).sends;
    assert_eq!(sends, [(1, Err(Status::RemoteBadLength)), (2, Ok(()))]);
}

#[test]
fn sends_to_a_dropped_queue_pair_fail_with_bad_destination_qpn() {
    let directory = Directory::new();
    let (mut a, mut b) = pair(&directory);
    let to = destination(&mut a, b.address());
    // b is attached to the ring, and a sends more packets than the ring holds.
    poll(&mut b, at(0));
    for id in 0..12 {
        send(&mut a, to, id, b"").unwrap();
    }
    poll(&mut b, at(0));
    drop(b);
    let failed = Err(Status::BadDestinationQpn);
    assert_eq!(poll(&mut a, at(0)).sends, (0..12).map(|id| (id, failed)).collect::<Vec<_>>());
    send(&mut a, to, 12, b"").unwrap();
    assert_eq!(poll(&mut a, at(0)).sends, [(12, failed)]);
}

#[test]
fn retired_queue_pair_is_unreachable_and_its_number_reserved() {
    let directory = Directory::new();
    let device = ShmDevice::open(options(&directory)).unwrap();
    let (mut a, mut b) = (queue_pair(&device), queue_pair(&device));
    let to = destination(&mut a, b.address());
    post_receives(&mut b, 1);
    send(&mut a, to, 1, b"taken").unwrap();
    send(&mut a, to, 2, b"not taken").unwrap();
    assert_eq!(poll(&mut b, at(0)).receives.len(), 1);
    let number = b.retire();
    let bad_qpn = Err(Status::BadDestinationQpn);
    assert_eq!(poll(&mut a, at(0)).sends, [(1, Ok(())), (2, bad_qpn)]);
    let next = || {
        std::fs::write(directory.path().join("host/next"), to.qpn.0.to_le_bytes()).unwrap();
        queue_pair(&device)
    };
    assert_ne!(next().address().qpn, to.qpn);
    // Opening the host removes files of dead processes; the retired number stays reserved.
    drop(ShmDevice::open(options(&directory)).unwrap());
    assert_ne!(next().address().qpn, to.qpn);
    send(&mut a, to, 3, b"still retired").unwrap();
    assert_eq!(poll(&mut a, at(0)).sends, [(3, bad_qpn)]);
    drop(number);
    assert_eq!(next().address().qpn, to.qpn);
}

#[test]
fn sends_to_a_queue_pair_dropped_before_its_first_poll_fail() {
    let directory = Directory::new();
    let (mut a, b) = pair(&directory);
    let to = destination(&mut a, b.address());
    send(&mut a, to, 1, b"").unwrap();
    drop(b);
    assert_eq!(poll(&mut a, at(0)).sends, [(1, Err(Status::BadDestinationQpn))]);
    drop(a);
    assert_eq!(files(&directory), ["gid", "next"]);
}

#[test]
fn packets_of_a_dropped_sender_are_delivered() {
    let directory = Directory::new();
    for attached in [true, false] {
        let (mut a, mut b) = pair(&directory);
        let to = destination(&mut a, b.address());
        if attached {
            post_receives(&mut b, 1);
            send(&mut a, to, 0, b"first").unwrap();
            assert_eq!(poll(&mut b, at(0)).receives.len(), 1);
        }
        send(&mut a, to, 1, b"last").unwrap();
        drop(a);
        post_receives(&mut b, 1);
        assert_eq!(poll(&mut b, at(0)).receives[0].0, b"last");
    }
}

#[test]
fn senders_beyond_max_peers_wait_for_a_free_entry() {
    let directory = Directory::new();
    let mut one = options(&directory);
    one.max_peers = 1;
    let device = ShmDevice::open(one).unwrap();
    let mut target = queue_pair(&device);
    post_receives(&mut target, 10);
    let to = |from: &mut ShmQueuePair, target: &ShmQueuePair| destination(from, target.address());
    let mut a = queue_pair(&device);
    let to_target = to(&mut a, &target);
    send(&mut a, to_target, 1, b"a").unwrap();
    assert_eq!(poll(&mut target, at(0)).receives.len(), 1);

    let mut b = queue_pair(&device);
    send(&mut b, to_target, 2, b"b").unwrap();
    assert!(poll(&mut target, at(0)).receives.is_empty());
    assert!(poll(&mut b, at(0)).sends.is_empty());
    assert!(poll(&mut b, at(999)).sends.is_empty());
    assert_eq!(poll(&mut b, at(1000)).sends, [(2, Err(Status::UnreachableRemote))]);

    send(&mut b, to_target, 3, b"b").unwrap();
    assert!(poll(&mut b, at(1001)).sends.is_empty());
    drop(a);
    poll(&mut target, at(1002));
    assert!(poll(&mut b, at(1002)).sends.is_empty(), "b claims the free entry only now");
    assert_eq!(poll(&mut target, at(1003)).receives[0].0, b"b");
    assert_eq!(poll(&mut b, at(1003)).sends, [(3, Ok(()))]);
}

// conformance: A29
#[test]
fn receive_reports_address_handle_of_known_sender_only() {
    let directory = Directory::new();
    for report_unknown_gid in [true, false] {
        let mut settings = options(&directory);
        settings.report_unknown_gid = report_unknown_gid;
        let open = || ShmDevice::open(settings.clone()).unwrap();
        let (mut a, mut b) = (queue_pair(&open()), queue_pair(&open()));
        let to = destination(&mut a, b.address());
        post_receives(&mut b, 3);
        let source = |a: &mut ShmQueuePair, b: &mut ShmQueuePair| {
            send(a, to, 0, b"").unwrap();
            poll(b, at(0)).receives[0].1
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
fn dropped_queue_pairs_leave_no_files() {
    let directory = Directory::new();
    let (mut a, mut b) = pair(&directory);
    let (to_b, to_a) = (destination(&mut a, b.address()), destination(&mut b, a.address()));
    for _ in 0..3 {
        send(&mut a, to_b, 1, b"").unwrap();
        send(&mut b, to_a, 1, b"").unwrap();
    }
    poll(&mut b, at(0));
    drop(a);
    drop(b);
    assert_eq!(files(&directory), ["gid", "next"]);
}

#[test]
fn queue_pair_numbers_are_not_reused_soon() {
    let directory = Directory::new();
    let device = ShmDevice::open(options(&directory)).unwrap();
    let numbers: Vec<Qpn> = (0..50).map(|_| queue_pair(&device).address().qpn).collect();
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), numbers.len());
    assert!(!numbers.contains(&Qpn(0)));
    // After the last number of the range, numbering continues with the first free one.
    std::fs::write(directory.path().join("host/next"), 65535u16.to_le_bytes()).unwrap();
    let qps: Vec<_> = (0..2).map(|_| queue_pair(&device)).collect();
    assert_eq!(qps[0].address().qpn, Qpn(65535));
    assert_eq!(qps[1].address().qpn, Qpn(1));
    std::fs::write(directory.path().join("host/next"), 65535u16.to_le_bytes()).unwrap();
    assert_eq!(queue_pair(&device).address().qpn, Qpn(2));
}

#[test]
fn open_removes_files_of_dead_processes_only() {
    let directory = Directory::new();
    let (mut a, b) = pair(&directory);
    let to = destination(&mut a, b.address());
    send(&mut a, to, 1, b"").unwrap();
    let mut living = files(&directory);
    for name in ["qp-77", "qp-78", "ring-77-5-00000000000000ff", "new-0000000000000001"] {
        std::fs::write(directory.path().join("host").join(name), [0; 100]).unwrap();
    }
    std::fs::write(directory.path().join("host/unrelated"), "").unwrap();
    drop(ShmDevice::open(options(&directory)).unwrap());
    let mut left = files(&directory);
    living.push("unrelated".into());
    living.sort_unstable();
    left.sort_unstable();
    assert_eq!(left, living);
}

#[test]
fn error_names_a_file_that_is_not_a_queue_pair() {
    let directory = Directory::new();
    let (mut a, _) = pair(&directory);
    let me = a.address();
    let to = destination(&mut a, me);
    let path = directory.path().join("host/qp-77");
    for length in [0, 1000, 2000, 1_000_000] {
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(length).unwrap();
        // Locked, as if its process were alive.
        file.lock().unwrap();
        let error = send(&mut a, Destination { qpn: Qpn(77), ..to }, 1, b"").unwrap_err();
        let DeviceError::Inconsistent { object, .. } = error else { panic!("{error}") };
        assert_eq!(object, "qp-77");
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(send(&mut a, Destination { qpn: Qpn(77), ..to }, 1, b"").is_err());
    std::fs::remove_dir(&path).unwrap();
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    assert!(send(&mut a, Destination { qpn: Qpn(77), ..to }, 1, b"").is_err());
}

#[test]
fn queue_pair_of_another_layout_is_refused_with_both_versions() {
    let directory = Directory::new();
    let (mut a, _) = pair(&directory);
    let me = a.address();
    let to = destination(&mut a, me);
    let mut file = vec![0; 100_000];
    file[..8].copy_from_slice(b"efa-qp\r\n");
    file[8] = 1;
    let path = directory.path().join("host/qp-77");
    std::fs::write(&path, file).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    file.lock().unwrap();
    let error = send(&mut a, Destination { qpn: Qpn(77), ..to }, 1, b"").unwrap_err();
    let expected = "made by another version of efa: its layout has version 1, not 3";
    assert!(error.to_string().contains(expected), "{error}");
}

fn inconsistent(result: Result<ShmDevice, DeviceError>) -> (String, String) {
    match result {
        Err(DeviceError::Inconsistent { object, reason }) => (object, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn directory_with_other_mode_than_700_is_refused() {
    let directory = Directory::new();
    drop(ShmDevice::open(options(&directory)).unwrap());
    for path in [directory.path().to_path_buf(), directory.path().join("host")] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let (object, reason) = inconsistent(ShmDevice::open(options(&directory)));
        assert_eq!((Path::new(&object), &*reason), (&*path, "has mode 755, not 700"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    }
    ShmDevice::open(options(&directory)).unwrap();
}

#[test]
fn directory_of_another_user_is_refused() {
    let directory = Directory::new();
    let mut settings = options(&directory);
    let me = std::fs::metadata(directory.path()).unwrap().uid();
    let (other, path) = if me == 0 {
        std::os::unix::fs::chown(directory.path(), Some(12345), None).unwrap();
        (12345, directory.path().to_path_buf())
    } else {
        (0, "/".into())
    };
    settings.directory = Some(path.clone());
    let (object, reason) = inconsistent(ShmDevice::open(settings));
    assert_eq!(Path::new(&object), path);
    let owner = format!("belongs to user {other}, not to user {me}; choose another directory ");
    assert!(reason.starts_with(&owner), "{reason}");
}

#[test]
fn missing_parent_file_or_symlink_as_directory_is_refused() {
    let directory = Directory::new();
    let mut settings = options(&directory);
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    settings.directory = Some(file.clone());
    assert_eq!(inconsistent(ShmDevice::open(settings.clone())).1, "not a directory");
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path(), &link).unwrap();
    settings.directory = Some(link);
    assert_eq!(inconsistent(ShmDevice::open(settings.clone())).1, "not a directory");
    settings.directory = Some(directory.path().join("no/such"));
    assert!(matches!(ShmDevice::open(settings), Err(DeviceError::System { errno: 2, .. })));
}

#[test]
fn options_out_of_range_are_refused() {
    let directory = Directory::new();
    let open = |change: &dyn Fn(&mut ShmOptions)| {
        let mut options = options(&directory);
        change(&mut options);
        ShmDevice::open(options).unwrap_err()
    };
    let too_long = |length, limit| DeviceError::TooLong { length, limit };
    assert_eq!(open(&|o| o.mtu = (1 << 20) + 1), too_long((1 << 20) + 1, 1 << 20));
    assert_eq!(open(&|o| o.ring_slots = 1 << 17), too_long(1 << 17, 1 << 16));
    assert_eq!(open(&|o| o.max_peers = 5000), too_long(5000, 4096));
    assert!(matches!(open(&|o| o.ring_slots = 3), DeviceError::Inconsistent { .. }));
}

#[test]
fn hosts_with_different_names_are_separate() {
    let directory = Directory::new();
    let mut settings = options(&directory);
    let a = ShmDevice::open(settings.clone()).unwrap();
    settings.name = "other".into();
    let b = ShmDevice::open(settings).unwrap();
    assert_ne!(a.gid(), b.gid());
    assert_eq!(
        (a.attributes().name.as_str(), a.attributes().vendor_part_id),
        ("efa-shm-host", 0xefa2)
    );
}

#[test]
fn sink_records_sent_received_and_failed_packets() {
    let directory = Directory::new();
    let trace = Trace::new();
    let mut settings = options(&directory);
    settings.capture = Some(SharedSink::new(trace.clone()));
    let device = ShmDevice::open(settings).unwrap();
    let (mut a, mut b) = (queue_pair(&device), queue_pair(&device));
    post_receives(&mut b, 1);
    let to = destination(&mut a, b.address());
    send(&mut a, to, 1, b"yes").unwrap();
    poll(&mut b, at(1));
    send(&mut a, Destination { qkey: Qkey(0), ..to }, 2, b"no").unwrap();
    poll(&mut b, at(2));
    poll(&mut a, at(3));
    let records = trace.take();
    assert!(records.iter().all(|r| r.source == a.address().into()));
    assert!(records.iter().all(|r| r.destination == b.address().into()));
    let recorded: Vec<_> = records.iter().map(|r| (r.time, r.event, &*r.bytes)).collect();
    let failed = PacketEvent::Failed(Status::BadDestinationQpn);
    assert_eq!(
        recorded,
        [
            (at(0), PacketEvent::Sent, &b"yes"[..]),
            (at(1), PacketEvent::Received, b"yes"),
            (at(0), PacketEvent::Sent, b"no"),
            (at(3), failed, b"no"),
        ]
    );
}

#[test]
fn qkey_and_rnr_retry_can_be_set_after_creation() {
    let directory = Directory::new();
    let (mut a, mut b) = pair(&directory);
    let mut to = destination(&mut a, b.address());
    b.set_qkey(Qkey(9));
    post_receives(&mut b, 1);
    send(&mut a, to, 1, b"old key").unwrap();
    assert!(poll(&mut b, at(0)).receives.is_empty());
    to.qkey = b.address().qkey;
    assert_eq!(to.qkey, Qkey(9));
    send(&mut a, to, 2, b"new key").unwrap();
    assert_eq!(poll(&mut b, at(0)).receives[0].0, b"new key");
    assert_eq!(poll(&mut a, at(0)).sends, [(1, Err(Status::BadDestinationQpn)), (2, Ok(()))]);
    // With rnr_retry 0, the send fails at the receiver's first poll without a buffer.
    let mut c = queue_pair(&ShmDevice::open(options(&directory)).unwrap());
    c.set_rnr_retry(0);
    let to = destination(&mut c, b.address());
    send(&mut c, to, 3, b"x").unwrap();
    assert!(poll(&mut b, at(0)).receives.is_empty());
    assert_eq!(poll(&mut c, at(0)).sends, [(3, Err(Status::ReceiverNotReady))]);
}

#[test]
fn address_handle_of_the_device_serves_all_its_queue_pairs() {
    let directory = Directory::new();
    let device = ShmDevice::open(options(&directory)).unwrap();
    assert_eq!(device.path(), directory.path().join("host"));
    let (mut a, mut b) = (queue_pair(&device), queue_pair(&device));
    let QueuePairAddress { gid, qpn, qkey } = b.address();
    let address_handle = device.create_address_handle(gid).unwrap();
    let to = Destination { address_handle, qpn, qkey };
    post_receives(&mut b, 1);
    send(&mut a, to, 1, b"x").unwrap();
    assert_eq!(poll(&mut b, at(0)).receives[0].1.address_handle, Some(address_handle));
    device.destroy_address_handle(address_handle);
    let gone = DeviceError::BadAddressHandle { handle: address_handle };
    assert_eq!(send(&mut a, to, 2, b"x"), Err(gone));
}

//! Sends that fail, wait, or meet faults.

use super::*;

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

/// One of two senders fills all buffers; the packets of the other, whose sends have no retries, wait until the program
/// has posted more.
#[test]
fn receiver_that_reposts_each_buffer_causes_no_rnr() {
    let directory = Directory::new();
    let device = ShmDevice::open(options(&directory)).unwrap();
    let mut senders = [(); 2].map(|()| queue_pair_with(&device, 0));
    let mut receiver = queue_pair(&device);
    post_receives(&mut receiver, 2);
    for (number, sender) in senders.iter_mut().enumerate() {
        let to = destination(sender, receiver.address());
        for id in 0..8 {
            send(sender, to, id, &[number as u8, id as u8]).unwrap();
        }
    }
    let mut received = [Vec::new(), Vec::new()];
    for _ in 0..100 {
        if let Some(Completion::Receive { packet, length, .. }) = receiver.poll(at(0)) {
            received[usize::from(packet[0])].extend_from_slice(&packet[1..length]);
            post_receives(&mut receiver, 1);
        }
    }
    let all = (0..8).map(|id| (id, Ok(()))).collect::<Vec<_>>();
    for (sender, received) in senders.iter_mut().zip(received) {
        assert_eq!(poll(sender, at(0)).sends, all);
        assert_eq!(received, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

/// A receiver that doesn't poll, as one that is stopped, must not hold up sends to others.
#[test]
fn packets_beyond_the_ring_of_a_stalled_receiver_fail_with_rnr_once_the_send_queue_is_full() {
    let directory = Directory::new();
    let device = ShmDevice::open(options(&directory)).unwrap();
    for (rnr_retry, count, returned) in [(3, 20, 12), (3, 19, 0), (7, 20, 0)] {
        let options = QueuePairOptions::default().with(|options| {
            options.qkey = KEY;
            options.send_depth = 20;
            options.rnr_retry = rnr_retry;
        });
        let mut a = device.create_queue_pair(options).unwrap();
        let mut stalled = queue_pair(&device);
        let to = destination(&mut a, stalled.address());
        for id in 0..count {
            send(&mut a, to, id, &[id as u8]).unwrap();
        }
        assert!(poll(&mut a, at(0)).sends.is_empty());
        assert!(poll(&mut a, at(999)).sends.is_empty());
        let failed: Vec<_> = poll(&mut a, at(1000)).sends.into();
        let expected: Vec<_> =
            (8..8 + returned).map(|id| (id, Err(Status::ReceiverNotReady))).collect();
        assert_eq!(failed, expected, "{count} sends with {rnr_retry} retries");
        // What is in its ring is delivered once it polls, and what waits goes on.
        post_receives(&mut stalled, 20);
        let (mut sent, mut received) = (0, 0);
        for _ in 0..3 {
            received += poll(&mut stalled, at(2000)).receives.len();
            sent += poll(&mut a, at(2000)).sends.len();
        }
        assert_eq!([sent, received], [(count - returned) as usize; 2]);
    }
}

fn queue_pair_with(device: &ShmDevice, rnr_retry: u8) -> ShmQueuePair {
    let options = QueuePairOptions::default().with(|options| {
        options.qkey = KEY;
        options.rnr_retry = rnr_retry;
    });
    device.create_queue_pair(options).unwrap()
}

/// A pair whose first queue pair sends with faults.
fn pair_with(directory: &Directory, faults: FaultOptions, rnr_retry: u8) -> [ShmQueuePair; 2] {
    let device =
        ShmDevice::open(options(directory).with(|options| options.faults = faults)).unwrap();
    [(); 2].map(|()| queue_pair_with(&device, rnr_retry))
}

/// The order in which 100 packets arrive that are sent by the first of two queue pairs of a device, or by the second.
fn reordered(seed: u64, by_second: bool) -> Vec<u8> {
    let directory = Directory::new();
    let faults = FaultOptions::NONE.with(|faults| faults.reorder = Some(seed));
    let [mut a, mut b] = pair_with(&directory, faults, 0);
    if by_second {
        std::mem::swap(&mut a, &mut b);
    }
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
    assert!(sent.iter().all(|(_, result)| result.is_ok()));
    let mut ids: Vec<_> = sent.into_iter().map(|(id, _)| id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..100).collect::<Vec<_>>());
    received
}

#[test]
fn reorder_fault_reorders_packets_and_loses_none() {
    let mut received = reordered(1, false);
    let in_order: Vec<_> = (0..100).collect();
    assert_ne!(received, in_order);
    received.sort_unstable();
    assert_eq!(received, in_order);
}

#[test]
fn reorder_fault_repeats_by_seed_and_differs_between_seeds_and_queue_pairs() {
    assert_eq!(reordered(1, false), reordered(1, false));
    assert_ne!(reordered(1, false), reordered(2, false));
    assert_ne!(reordered(1, false), reordered(1, true));
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

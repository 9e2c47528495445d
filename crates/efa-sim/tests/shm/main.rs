//! The shm link within one process; the tests choose the time.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod directory;
mod long;
#[path = "../common/queue_pairs.rs"]
mod queue_pairs;
mod refused;

use std::collections::VecDeque;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use common::Directory;
use efa_device::*;
use efa_sim::faults::FaultOptions;
use efa_sim::record::{PacketEvent, SharedSink, Trace};
use efa_sim::shm::{ShmDevice, ShmOptions, ShmQueuePair};
use queue_pairs::{destination, post_receives, send};

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
fn sends_to_a_full_ring_leave_without_a_poll_once_its_receiver_has_made_room() {
    let directory = Directory::new();
    let (mut a, mut b) = pair(&directory);
    let to = destination(&mut a, b.address());
    post_receives(&mut b, 40);
    for batch in 0..5 {
        // The ring has 8 slots.
        for id in 8 * batch..8 * (batch + 1) {
            send(&mut a, to, id, &[id as u8]).unwrap();
        }
        let received = poll(&mut b, at(0)).receives.into_iter().map(|(bytes, _)| bytes[0]);
        assert!(received.map(u64::from).eq(8 * batch..8 * (batch + 1)), "batch {batch}");
    }
    assert!(poll(&mut a, at(0)).sends.into_iter().eq((0..40).map(|id| (id, Ok(())))));
    assert!(poll(&mut a, at(0)).sends.is_empty());
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

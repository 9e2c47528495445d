//! What `efa_device` requires of devices and queue pairs, on the software device through its C functions.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]
#![allow(unsafe_code, reason = "the constructor of foreign memory is unsafe")]

mod common;

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::on_soft_device;
use efa_device::{
    Access, Completion, Destination, Device, DeviceError, ForeignMemory, Gid, Qkey, Qpn, QueuePair,
    QueuePairAddress, QueuePairOptions, RdmaRequest, Region, RegionRange, RemoteMemory,
    SendRequest, Source, Status, Time, WorkId,
};
use efa_verbs::{Packet, VerbsDevice, VerbsQueuePair, VerbsRegion};

type Done = Completion<Packet>;

const TIMEOUT: Duration = Duration::from_secs(20);

fn device() -> VerbsDevice {
    VerbsDevice::open(None).unwrap()
}

fn options(qkey: u32) -> QueuePairOptions {
    QueuePairOptions::default().with(|options| {
        options.qkey = Qkey(qkey);
        options.send_depth = 64;
        options.receive_depth = 64;
        options.rnr_retry = 3;
    })
}

fn pair(device: &VerbsDevice) -> (VerbsQueuePair, VerbsQueuePair) {
    let make = |qkey| device.create_queue_pair(options(qkey)).unwrap();
    (make(11), make(22))
}

fn destination(from: &mut VerbsQueuePair, to: QueuePairAddress) -> Destination {
    let address_handle = from.create_address_handle(to.gid).unwrap();
    Destination { address_handle, qpn: to.qpn, qkey: to.qkey }
}

fn packet(of: &mut VerbsQueuePair, text: &[u8]) -> Packet {
    let mut packet = of.allocate_packet().unwrap();
    packet.as_mut()[..text.len()].copy_from_slice(text);
    packet
}

fn send(from: &mut VerbsQueuePair, to: Destination, id: u64, text: &[u8]) {
    let packet = packet(from, text);
    let length = text.len();
    let request = SendRequest { id: WorkId(id), packet, length, destination: to, immediate: None };
    from.post_send(request).unwrap();
}

fn post(to: &mut VerbsQueuePair, count: usize) {
    for _ in 0..count {
        let packet = to.allocate_packet().unwrap();
        to.post_receive(packet).unwrap();
    }
}

/// Polls all in turn until one has a completion; returns the index of the queue pair too.
fn next(pairs: &mut [&mut VerbsQueuePair]) -> (usize, Done) {
    let begin = Instant::now();
    loop {
        for (index, pair) in pairs.iter_mut().enumerate() {
            if let Some(done) = pair.poll(Time::ZERO) {
                return (index, done);
            }
        }
        assert!(begin.elapsed() < TIMEOUT, "no completion");
    }
}

/// Polls all until `found` returns a value.
fn until<T>(
    pairs: &mut [&mut VerbsQueuePair],
    mut found: impl FnMut(usize, Done) -> Option<T>,
) -> T {
    loop {
        let (index, done) = next(pairs);
        if let Some(value) = found(index, done) {
            return value;
        }
    }
}

#[test]
fn machine_without_interface_is_an_error_with_a_remedy() {
    if std::path::Path::new("/sys/class/infiniband").exists() {
        return eprintln!("skipped: this machine has RDMA");
    }
    let Err(DeviceError::Absent { reason }) = VerbsDevice::open(None).map(drop) else { panic!() };
    // What is missing, without interfaces: the libraries, or else the driver.
    assert!(reason.contains("modprobe") || reason.contains("install lib"), "{reason}");
    assert_eq!(efa_verbs::interfaces(), Err(DeviceError::Absent { reason }));
}

#[test]
fn interfaces_are_listed_and_opened_by_name() {
    on_soft_device(
        "interfaces_are_listed_and_opened_by_name",
        &[("EFA_SOFT_DEVICES", "2")],
        || {
            let names = efa_verbs::interfaces().unwrap();
            assert_eq!(names, ["efa_soft0", "efa_soft1"]);
            let second = VerbsDevice::open(Some("efa_soft1")).unwrap();
            let attributes = second.attributes();
            assert_eq!((attributes.name.as_str(), attributes.mtu), ("efa_soft1", 8928));
            assert!(attributes.rdma.read && attributes.rdma.write && attributes.max_regions > 1000);
            assert_ne!(second.gid(), device().gid());
            let Err(error) = VerbsDevice::open(Some("efa_soft7")) else { panic!() };
            assert_eq!(
                error.to_string(),
                "no device: no interface efa_soft7, but efa_soft0, efa_soft1"
            );
        },
    );
}

// conformance: A29
#[test]
fn datagrams_arrive_with_source_and_immediate_data() {
    on_soft_device("datagrams_arrive_with_source_and_immediate_data", &[], || {
        let device = device();
        let (mut a, mut b) = pair(&device);
        post(&mut b, 4);
        let to = destination(&mut a, b.address());
        send(&mut a, to, 7, b"hello");
        let big = vec![0xa5; device.attributes().mtu];
        let packet = packet(&mut a, &big);
        let request = SendRequest {
            id: WorkId(8),
            packet,
            length: big.len(),
            destination: to,
            immediate: Some(0x1234_5678),
        };
        a.post_send(request).unwrap();
        let (mut arrived, mut sent) = (Vec::new(), Vec::new());
        until(&mut [&mut a, &mut b], |who, done| {
            match done {
                Completion::Receive { packet, length, source, immediate } => {
                    assert_eq!(who, 1);
                    arrived.push((packet.as_ref()[..length].to_vec(), source, immediate));
                }
                Completion::Send { id, result, .. } => sent.push((id, result)),
                other => panic!("{other:?}"),
            }
            (arrived.len() == 2 && sent.len() == 2).then_some(())
        });
        arrived.sort_by_key(|(bytes, ..)| bytes.len());
        sent.sort_by_key(|(id, _)| *id);
        let source = arrived[0].1;
        assert_eq!((arrived[0].0.as_slice(), arrived[0].2), (&b"hello"[..], None));
        assert_eq!((&arrived[1].0, arrived[1].2), (&big, Some(0x1234_5678)));
        assert_eq!(sent, [(WorkId(7), Ok(())), (WorkId(8), Ok(()))]);
        assert_eq!(source.qpn, a.address().qpn);
        // There is one address handle per interface, and both queue pairs are on this one.
        assert_eq!(source.address_handle, Some(to.address_handle));
        let counters = a.counters();
        assert_eq!((counters.posts, counters.inline_sends, counters.send_doorbells), (2, 1, 2));
    });
}

// conformance: A29
#[test]
fn unknown_sender_is_reported_by_gid() {
    on_soft_device("unknown_sender_is_reported_by_gid", &[], || {
        let device = device();
        let (mut a, mut b) = pair(&device);
        let to = destination(&mut a, b.address());
        send(&mut a, to, 1, b"x");
        // The datagram arrives once there is a buffer, after the last handle is destroyed.
        a.destroy_address_handle(to.address_handle);
        post(&mut b, 1);
        let source: Source = until(&mut [&mut a, &mut b], |_, done| match done {
            Completion::Receive { source, .. } => Some(source),
            _ => None,
        });
        let expected =
            Source { address_handle: None, qpn: a.address().qpn, gid: Some(device.gid()) };
        assert_eq!(source, expected);
    });
}

#[test]
fn refused_sends_return_the_reason() {
    on_soft_device("refused_sends_return_the_reason", &[], || {
        let device = device();
        let deep = options(1).with(|options| options.send_depth = 1 << 20);
        let Err(DeviceError::TooLong { length, limit }) = device.create_queue_pair(deep) else {
            panic!()
        };
        assert_eq!((length, limit), (1 << 20, device.attributes().max_send as u64));
        let (mut a, b) = pair(&device);
        let to = destination(&mut a, b.address());
        let refuse = |a: &mut VerbsQueuePair, length, destination| {
            let packet = a.allocate_packet().unwrap();
            let request =
                SendRequest { id: WorkId(1), packet, length, destination, immediate: None };
            a.post_send(request).unwrap_err().error
        };
        let mtu = device.attributes().mtu;
        let too_long = DeviceError::TooLong { length: mtu as u64 + 1, limit: mtu as u64 };
        assert_eq!(refuse(&mut a, mtu + 1, to), too_long);
        let handle = efa_device::AddressHandle(999);
        let nowhere = Destination { address_handle: handle, ..to };
        assert_eq!(refuse(&mut a, 1, nowhere), DeviceError::BadAddressHandle { handle });
        for id in 0..64 {
            send(&mut a, to, id, b"x");
        }
        assert_eq!(refuse(&mut a, 1, to), DeviceError::QueueFull { depth: 64 });
        assert_eq!(
            a.create_address_handle(Gid::ZERO),
            Err(DeviceError::BadAddress { gid: Gid::ZERO })
        );
    });
}

#[test]
fn address_handle_is_usable_until_its_last_release() {
    on_soft_device("address_handle_is_usable_until_its_last_release", &[], || {
        let device = device();
        let (mut a, mut b) = pair(&device);
        let gid = Gid([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        let first = a.create_address_handle(gid).unwrap();
        assert_eq!(a.create_address_handle(gid), Ok(first));
        assert_eq!(b.create_address_handle(gid), Ok(first), "one handle per interface");
        let usable = |a: &mut VerbsQueuePair| {
            let packet = a.allocate_packet().unwrap();
            let destination = Destination { address_handle: first, qpn: Qpn(1), qkey: Qkey(1) };
            let request =
                SendRequest { id: WorkId(0), packet, length: 1, destination, immediate: None };
            a.post_send(request).is_ok()
        };
        assert!(usable(&mut a));
        a.destroy_address_handle(first);
        assert!(usable(&mut a), "one count is left");
        a.destroy_address_handle(first);
        a.destroy_address_handle(first);
        assert!(!usable(&mut a), "no count is left");
        assert!(usable(&mut b), "the other queue pair has its own counts");
        b.destroy_address_handle(first);
    });
}

#[test]
fn send_to_absent_queue_pair_fails_with_bad_destination() {
    on_soft_device("send_to_absent_queue_pair_fails_with_bad_destination", &[], || {
        let device = device();
        let (mut a, b) = pair(&device);
        let to = destination(&mut a, b.address());
        drop(b);
        send(&mut a, to, 5, b"nobody");
        let (_, done) = next(&mut [&mut a]);
        let Completion::Send { id: WorkId(5), result, packet } = done else { panic!("{done:?}") };
        assert_eq!(result, Err(Status::BadDestinationQpn));
        assert_eq!(&packet.as_ref()[..6], b"nobody");
    });
}

#[test]
fn send_to_receiver_without_buffers_fails_after_rnr_retries() {
    on_soft_device("send_to_receiver_without_buffers_fails_after_rnr_retries", &[], || {
        let device = device();
        let (mut a, mut b) = pair(&device);
        let to = destination(&mut a, b.address());
        // Retries count only after the queue pair's first buffer.
        post(&mut b, 1);
        send(&mut a, to, 1, b"taken");
        send(&mut a, to, 2, b"refused");
        let result = until(&mut [&mut a, &mut b], |_, done| match done {
            Completion::Send { id: WorkId(2), result, .. } => Some(result),
            _ => None,
        });
        assert_eq!(result, Err(Status::ReceiverNotReady));
    });
}

fn region(device: &VerbsDevice, bytes: &[u8], access: Access) -> VerbsRegion {
    device.register(bytes.into(), access).unwrap()
}

const ALL: Access = Access { remote_read: true, remote_write: true };

#[test]
fn remote_memory_is_read_and_written() {
    let settings = [("EFA_SOFT_UNSOLICITED", "0")];
    on_soft_device("remote_memory_is_read_and_written", &settings, || {
        let device = device();
        let (mut a, mut b) = pair(&device);
        let to = destination(&mut a, b.address());
        let local = region(&device, b"0123456789", Access::default());
        let remote = region(&device, b"abcdefghij", ALL);
        let request = |id, offset, length, start| RdmaRequest {
            id: WorkId(id),
            local: RegionRange { region: local.clone(), offset, length },
            remote: RemoteMemory {
                address: remote.remote_address() + start,
                key: remote.remote_key(),
            },
            destination: to,
        };
        let bytes = |region: &VerbsRegion| {
            let mut bytes = [0; 10];
            assert_eq!(region.read(0, &mut bytes), 10);
            bytes
        };
        a.post_read(request(1, 0, 4, 3)).unwrap();
        let (_, done) = next(&mut [&mut a]);
        assert!(matches!(done, Completion::Rdma { id: WorkId(1), result: Ok(()) }), "{done:?}");
        assert_eq!(&bytes(&local), b"defg456789");
        a.post_write(request(2, 8, 2, 0), None).unwrap();
        let (_, done) = next(&mut [&mut a]);
        assert!(matches!(done, Completion::Rdma { id: WorkId(2), result: Ok(()) }), "{done:?}");
        assert_eq!(&bytes(&remote), b"89cdefghij");
        // Beyond the end of the remote region, which the remote side detects.
        a.post_read(request(3, 0, 4, 8)).unwrap();
        let (_, done) = next(&mut [&mut a]);
        let failed = Err(Status::RemoteBadAddress);
        assert!(matches!(done, Completion::Rdma { id: WorkId(3), result } if result == failed));
        let outside = DeviceError::OutOfRegion { offset: 8, length: 4, region: 10 };
        assert_eq!(a.post_read(request(4, 8, 4, 0)), Err(outside));
        // A write with immediate data completes at the target and takes a buffer.
        post(&mut b, 1);
        a.post_write(request(5, 0, 1, 9), Some(77)).unwrap();
        let written = until(&mut [&mut a, &mut b], |_, done| match done {
            Completion::Written { immediate, length, source, packet } => {
                Some((immediate, length, source.qpn, packet.is_some()))
            }
            _ => None,
        });
        assert_eq!(written, (77, 1, a.address().qpn, true));
        assert_eq!(&bytes(&remote), b"89cdefghid");
    });
}

#[test]
fn rdma_without_device_capability_is_refused() {
    let settings = [("EFA_SOFT_RDMA", "none")];
    on_soft_device("rdma_without_device_capability_is_refused", &settings, || {
        let device = device();
        let rdma = device.attributes().rdma;
        assert!(!rdma.read && !rdma.write && !rdma.unsolicited_write_receive);
        let (mut a, b) = pair(&device);
        let to = destination(&mut a, b.address());
        // Memory is still registered, as the protocol emulates reads and writes.
        let memory = region(&device, b"bytes", ALL);
        assert_eq!(memory.access(), ALL);
        let request = RdmaRequest {
            id: WorkId(1),
            local: RegionRange { region: memory, offset: 0, length: 1 },
            remote: RemoteMemory::default(),
            destination: to,
        };
        let refused = a.post_read(request.clone());
        assert_eq!(refused, Err(DeviceError::Unsupported { operation: "RDMA read" }));
        let refused = a.post_write(request, None);
        assert_eq!(refused, Err(DeviceError::Unsupported { operation: "RDMA write" }));
    });
}

#[test]
fn regions_are_found_by_key_and_reclaimed() {
    on_soft_device("regions_are_found_by_key_and_reclaimed", &[], || {
        let device = device();
        let (a, _) = pair(&device);
        let region = region(&device, b"some bytes", ALL);
        let key = region.remote_key();
        let found = a.region(key).unwrap();
        assert_eq!((found.length(), a.region(key ^ 1).is_none()), (10, true));
        let upper = |bytes: &mut [u8]| {
            bytes.make_ascii_uppercase();
            true
        };
        assert_eq!(found.update(8, &mut [0; 2], upper), 2);
        let beyond_the_end = |_: &mut [u8]| panic!("called");
        assert_eq!(found.update(8, &mut [0; 4], beyond_the_end), 0);
        assert_eq!(found.update(0, &mut [0; 4], |_| false), 4);
        let region = region.reclaim().unwrap_err();
        drop(found);
        assert_eq!(*region.reclaim().unwrap(), *b"some bytES");
        assert!(a.region(key).is_none());
        let again = device.register(vec![0; 3].into(), ALL).unwrap();
        assert_eq!(a.region(again.remote_key()).map(|region| region.length()), Some(3));
        drop(again);
        let empty = device.register(Box::default(), ALL).unwrap();
        assert_eq!((empty.length(), empty.write(0, b"x"), empty.read(0, &mut [0])), (0, 0, 0));
        assert_eq!(*empty.reclaim().unwrap(), []);
    });
}

#[test]
fn foreign_memory_is_read_and_written_where_it_is() {
    on_soft_device("foreign_memory_is_read_and_written_where_it_is", &[], || {
        let device = device();
        let (mut a, b) = pair(&device);
        let to = destination(&mut a, b.address());
        let owner = Arc::new(());
        let base = NonNull::from(Box::leak(Box::new(*b"0123456789"))).cast();
        // SAFETY: the bytes are never freed, and nobody else knows them.
        let memory = unsafe { ForeignMemory::new(base, 10, Arc::clone(&owner)) };
        let local = device.register_foreign(&memory.slice(2..8), ALL).unwrap();
        let remote = region(&device, b"abcdefghij", ALL);
        let request = RdmaRequest {
            id: WorkId(1),
            local: RegionRange { region: local.clone(), offset: 1, length: 3 },
            remote: RemoteMemory { address: remote.remote_address(), key: remote.remote_key() },
            destination: to,
        };
        a.post_read(request.clone()).unwrap();
        next(&mut [&mut a]);
        let mut bytes = [0; 10];
        memory.read(0, &mut bytes);
        assert_eq!(&bytes, b"012abc6789");
        memory.write(3, b"xyz");
        a.post_write(request, None).unwrap();
        next(&mut [&mut a]);
        remote.read(0, &mut bytes);
        assert_eq!(&bytes, b"xyzdefghij");
        assert_eq!((local.length(), local.write(5, b"!!"), local.read(0, &mut bytes)), (6, 1, 6));
        assert_eq!(&bytes[..6], b"2xyz6!");
        let local = local.reclaim().unwrap_err();
        drop(memory);
        assert_eq!(Arc::strong_count(&owner), 2, "the region holds it");
        drop(local);
        assert_eq!(Arc::strong_count(&owner), 1);
    });
}

#[test]
fn refused_registration_of_empty_memory_returns_it_empty() {
    let name = "refused_registration_of_empty_memory_returns_it_empty";
    on_soft_device(name, &[("EFA_SOFT_REFUSE", "1-1:1")], || {
        let refused = device().register(Box::default(), ALL).unwrap_err();
        assert!(matches!(refused.error, DeviceError::System { .. }), "{:?}", refused.error);
        assert_eq!(*refused.memory, []);
    });
}

#[test]
fn sends_ring_at_once_and_receives_are_batched() {
    on_soft_device("sends_ring_at_once_and_receives_are_batched", &[], || {
        let device = device();
        let (mut a, mut b) = pair(&device);
        post(&mut b, 32);
        post(&mut a, 32);
        let (to_b, to_a) = (destination(&mut a, b.address()), destination(&mut b, a.address()));
        for id in 0..8 {
            send(&mut a, to_b, id, b"question");
        }
        assert_eq!(a.counters().send_doorbells, 8, "sends are not batched");
        let mut answers = 0;
        let begin = Instant::now();
        while answers < 8 {
            if let Some(Completion::Receive { packet, .. }) = b.poll(Time::ZERO) {
                let (id, destination) = (WorkId(9), to_a);
                let answer = SendRequest { id, packet, length: 8, destination, immediate: None };
                b.post_send(answer).unwrap();
            }
            // Only after all are answered: then `b` finds them all in one poll.
            if b.counters().posts == 8
                && let Some(Completion::Receive { .. }) = a.poll(Time::ZERO)
            {
                answers += 1;
            }
            assert!(begin.elapsed() < TIMEOUT, "{:?}", b.counters());
        }
        let counters = b.counters();
        assert_eq!((counters.posts, counters.send_doorbells), (8, 8), "sends are not batched");
        assert!(counters.receive_doorbells < counters.receives, "{counters:?}");
    });
}

#[test]
fn sends_of_held_queue_pair_share_a_doorbell() {
    on_soft_device("sends_of_held_queue_pair_share_a_doorbell", &[], || {
        let device = device();
        let (mut a, mut b) = pair(&device);
        post(&mut b, 32);
        let to = destination(&mut a, b.address());
        a.hold();
        for id in 0..20 {
            send(&mut a, to, id, b"one of many");
        }
        // Sixteen is the largest batch.
        assert_eq!((a.counters().posts, a.counters().send_doorbells), (20, 1));
        a.release();
        assert_eq!(a.counters().send_doorbells, 2);
        a.release();
        send(&mut a, to, 20, b"at once");
        assert_eq!(a.counters().send_doorbells, 3);
        let mut arrived = 0;
        until(&mut [&mut a, &mut b], |_, done| {
            arrived += usize::from(matches!(done, Completion::Receive { .. }));
            (arrived == 21).then_some(())
        });
    });
}

#[test]
fn immediate_write_takes_no_buffer_on_capable_interface() {
    let name = "immediate_write_takes_no_buffer_on_capable_interface";
    on_soft_device(name, &[("EFA_SOFT_UNSOLICITED", "1")], || {
        let device = device();
        assert!(device.attributes().rdma.unsolicited_write_receive);
        let (mut a, mut b) = pair(&device);
        let to = destination(&mut a, b.address());
        let local = region(&device, b"0123", Access::default());
        let remote = region(&device, b"....", ALL);
        // Nothing is posted at `b`.
        let request = RdmaRequest {
            id: WorkId(1),
            local: RegionRange { region: local, offset: 1, length: 2 },
            remote: RemoteMemory { address: remote.remote_address(), key: remote.remote_key() },
            destination: to,
        };
        a.post_write(request, Some(0xabcd)).unwrap();
        let written = until(&mut [&mut a, &mut b], |_, done| match done {
            Completion::Written { immediate, length, source, packet } => {
                Some((immediate, length, source.qpn, packet.is_none()))
            }
            _ => None,
        });
        assert_eq!(written, (0xabcd, 2, a.address().qpn, true));
        let mut bytes = [0; 4];
        remote.read(0, &mut bytes);
        assert_eq!(&bytes, b"12..");
    });
}

#[test]
fn immediate_write_takes_a_buffer_of_queue_pair_that_wants_it() {
    let name = "immediate_write_takes_a_buffer_of_queue_pair_that_wants_it";
    on_soft_device(name, &[("EFA_SOFT_UNSOLICITED", "1")], || {
        let device = device();
        let mut a = device.create_queue_pair(options(11)).unwrap();
        let options = options(22).with(|options| options.unsolicited_write_receive = false);
        let mut b = device.create_queue_pair(options).unwrap();
        assert!(a.attributes().rdma.unsolicited_write_receive);
        assert!(!b.attributes().rdma.unsolicited_write_receive);
        post(&mut b, 1);
        let to = destination(&mut a, b.address());
        let local = region(&device, b"0123", Access::default());
        let remote = region(&device, b"....", ALL);
        let request = RdmaRequest {
            id: WorkId(1),
            local: RegionRange { region: local, offset: 0, length: 4 },
            remote: RemoteMemory { address: remote.remote_address(), key: remote.remote_key() },
            destination: to,
        };
        a.post_write(request, Some(1)).unwrap();
        let has_packet = until(&mut [&mut a, &mut b], |_, done| match done {
            Completion::Written { packet, .. } => Some(packet.is_some()),
            _ => None,
        });
        assert!(has_packet);
    });
}

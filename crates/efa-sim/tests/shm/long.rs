//! Long datagrams: written into the ring by the sender, and left there until the receiver knows where they go.

use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::*;

const LONG: usize = 8000;
const FRONT: usize = 24;

/// A queue pair that leaves bytes behind, with `buffers` posted, and one that sends to it.
fn long_pair(directory: &Directory, buffers: usize) -> (ShmQueuePair, ShmQueuePair, Destination) {
    let mut options = options(directory);
    options.mtu = 8928;
    let open = || ShmDevice::open(options.clone()).unwrap();
    let (mut a, mut b) = (queue_pair(&open()), queue_pair(&open()));
    b.split_headers(FRONT);
    post_receives(&mut b, buffers);
    let to = destination(&mut a, b.address());
    (a, b, to)
}

/// Bytes that differ from datagram to datagram.
fn content(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + number * 31) as u8).collect()
}

/// Posts a datagram of which the packet has the front alone. Returns whether the rest was written into a slice.
fn send_long(a: &mut ShmQueuePair, to: Destination, id: usize, bytes: &[u8]) -> bool {
    let mut packet = a.allocate_packet().unwrap();
    packet[..FRONT].copy_from_slice(&bytes[..FRONT]);
    let request = SendRequest {
        id: WorkId(id as u64),
        packet,
        length: FRONT,
        destination: to,
        immediate: None,
    };
    let mut slice = None;
    a.post_send_with(request, bytes.len() - FRONT, |mut into| {
        assert_eq!(into.len(), bytes.len() - FRONT);
        slice = Some(into.as_mut_slice().is_some());
        into.copy_from(0, &bytes[FRONT..]);
    })
    .unwrap();
    slice.expect("the payload was asked for")
}

/// The next completion, which is a front.
fn front(qp: &mut ShmQueuePair) -> (Box<[u8]>, usize) {
    let completion = (0..100).find_map(|_| qp.poll(at(0)));
    let Some(Completion::Front { packet, length, .. }) = completion else {
        panic!("{completion:?}")
    };
    (packet, length)
}

/// ID, result and packet of a send.
type Sent = (u64, Result<(), Status>, Box<[u8]>);

/// The next completion, which is that of a send.
fn sent(qp: &mut ShmQueuePair) -> Option<Sent> {
    match (0..100).find_map(|_| qp.poll(at(0)))? {
        Completion::Send { id, packet, result } => Some((id.0, result, packet)),
        other => panic!("{other:?}"),
    }
}

/// Takes all of a datagram but its front from the device.
#[allow(clippy::borrowed_box, reason = "the method takes a packet, which is a box")]
fn rest(qp: &mut ShmQueuePair, packet: &Box<[u8]>, length: usize) -> Vec<u8> {
    let mut rest = vec![0; length - FRONT];
    let mut taken = false;
    qp.take_rest(packet, FRONT..length, |bytes| {
        assert!(bytes.as_slice().is_none(), "it comes from the ring");
        bytes.copy_to(0, &mut rest);
        taken = true;
    });
    assert!(taken);
    rest
}

/// As [`long_pair`], after a first datagram, which took the only buffer.
fn attached_pair(directory: &Directory) -> (ShmQueuePair, ShmQueuePair, Destination) {
    let (mut a, mut b, to) = long_pair(directory, 1);
    send_long(&mut a, to, 0, &content(0, LONG));
    let (packet, length) = front(&mut b);
    rest(&mut b, &packet, length);
    assert_eq!(sent(&mut a).unwrap().1, Ok(()));
    (a, b, to)
}

#[test]
fn long_datagram_goes_through_the_ring_alone_and_is_acknowledged_once_it_was_taken() {
    let directory = Directory::new();
    let (mut a, mut b, to) = long_pair(&directory, 1);
    // The first send attaches the ring.
    for number in 0..20 {
        let bytes = content(number, LONG);
        let in_packet = send_long(&mut a, to, number, &bytes);
        assert_eq!(in_packet, number == 0, "datagram {number}: a path is opened by the first");
        let (packet, length) = front(&mut b);
        assert_eq!((&packet[..FRONT], length), (&bytes[..FRONT], LONG));
        assert_ne!(packet[FRONT..LONG], bytes[FRONT..], "the rest wasn't copied");
        assert!(sent(&mut a).is_none(), "the rest is still in the ring");
        assert_eq!(rest(&mut b, &packet, length), bytes[FRONT..]);
        let (id, result, _) = sent(&mut a).unwrap();
        assert_eq!((id, result), (number as u64, Ok(())));
        b.post_receive(packet).unwrap();
    }
}

#[test]
fn long_datagram_to_a_full_ring_is_written_into_it_once_its_receiver_has_made_room() {
    let directory = Directory::new();
    let (mut a, mut b, to) = attached_pair(&directory);
    post_receives(&mut b, 20);
    let receive = |b: &mut ShmQueuePair, numbers: Range<usize>| {
        for number in numbers {
            let (packet, length) = front(b);
            assert!(rest(b, &packet, length) == content(number, LONG)[FRONT..], "{number}");
        }
        assert!(b.poll(at(0)).is_none());
    };
    // The last one waits in its packet.
    let count = (1..).find(|&id| send_long(&mut a, to, id, &content(id, LONG))).unwrap();
    assert!(count > 1);
    receive(&mut b, 1..count);
    // With the room that is made it leaves before the next.
    assert!(!send_long(&mut a, to, count + 1, &content(count + 1, LONG)));
    receive(&mut b, count..count + 2);
    assert!(!send_long(&mut a, to, count + 2, &content(count + 2, LONG)));
    receive(&mut b, count + 2..count + 3);
    let ids = (1..count + 3).map(|_| sent(&mut a).map(|(id, result, _)| (id, result)));
    assert!(ids.eq((1..count + 3).map(|id| Some((id as u64, Ok(()))))));
}

#[test]
fn long_datagrams_of_a_batch_are_taken_one_after_the_other_and_acknowledged_together() {
    let directory = Directory::new();
    let (mut a, mut b, to) = long_pair(&directory, 8);
    let all: Vec<_> = (0..5).map(|number| content(number, LONG - 100 * number)).collect();
    for (number, bytes) in all.iter().enumerate() {
        send_long(&mut a, to, number, bytes);
    }
    for (number, bytes) in all.iter().enumerate() {
        assert!(sent(&mut a).is_none(), "before datagram {number}");
        let (mut packet, length) = front(&mut b);
        if number % 2 == 0 {
            assert_eq!(rest(&mut b, &packet, length), bytes[FRONT..]);
        } else {
            b.land(&mut packet, length);
            assert_eq!(packet[..length], bytes[..]);
        }
    }
    let results: Vec<_> = (0..5).filter_map(|_| sent(&mut a)).collect();
    let results: Vec<_> = results.iter().map(|(id, result, _)| (*id, *result)).collect();
    assert_eq!(results, [0, 1, 2, 3, 4].map(|id| (id, Ok(()))));
}

#[test]
fn bytes_that_nobody_took_are_given_up_by_the_next_poll() {
    let directory = Directory::new();
    let (mut a, mut b, to) = long_pair(&directory, 4);
    let all: Vec<_> = (0..2).map(|number| content(number, LONG)).collect();
    for (number, bytes) in all.iter().enumerate() {
        send_long(&mut a, to, number, bytes);
    }
    let (first, _) = front(&mut b);
    let (second, length) = front(&mut b);
    assert_eq!(rest(&mut b, &second, length), all[1][FRONT..], "that of the first is passed over");
    b.take_rest(&first, FRONT..LONG, |_| panic!("it isn't there any more"));
    assert_eq!([(); 2].map(|()| sent(&mut a).unwrap().1), [Ok(()); 2]);
    send_long(&mut a, to, 2, &all[0]);
    let (third, length) = front(&mut b);
    assert!(b.poll(at(0)).is_none());
    b.take_rest(&third, FRONT..length, |_| panic!("it isn't there any more"));
    assert_eq!(sent(&mut a).unwrap().1, Ok(()));
}

#[test]
fn long_datagram_that_was_not_delivered_comes_back_whole() {
    let directory = Directory::new();
    let (mut a, mut b, to) = attached_pair(&directory);
    // No buffer is posted, so these wait: in the ring, or for one of its eight slots.
    let all: Vec<_> = (1..12).map(|number| content(number, LONG)).collect();
    for (number, bytes) in all.iter().enumerate() {
        let in_packet = send_long(&mut a, to, number, bytes);
        assert_eq!(in_packet, number >= 8);
    }
    b.poll(at(1));
    for (number, bytes) in all.iter().enumerate() {
        if number % 8 == 0 {
            assert!(sent(&mut a).is_none());
            b.poll(at(1000 * (1 + number as u64)));
            b.poll(at(1000 * (2 + number as u64)));
        }
        let (id, result, packet) = sent(&mut a).unwrap();
        assert_eq!((id, result), (number as u64, Err(Status::ReceiverNotReady)));
        assert_eq!(packet[..LONG], bytes[..], "datagram {number}");
    }
}

#[test]
fn sender_whose_receiver_is_gone_gets_long_datagrams_back_whole() {
    let directory = Directory::new();
    let (mut a, b, to) = attached_pair(&directory);
    let all: Vec<_> = (1..4).map(|number| content(number, LONG)).collect();
    for (number, bytes) in all.iter().enumerate() {
        assert!(!send_long(&mut a, to, number, bytes), "it is in the ring");
    }
    drop(b);
    for bytes in &all {
        let (_, result, packet) = sent(&mut a).unwrap();
        assert_eq!(result, Err(Status::BadDestinationQpn));
        assert_eq!(packet[..LONG], bytes[..]);
    }
}

#[test]
fn refused_long_datagram_comes_back_whole() {
    let directory = Directory::new();
    let (mut a, _b, to) = long_pair(&directory, 1);
    let bytes = content(0, 9000);
    let refuse = |a: &mut ShmQueuePair, destination, length: usize| {
        let mut packet = a.allocate_packet().unwrap();
        packet[..FRONT].copy_from_slice(&bytes[..FRONT]);
        let (id, immediate) = (WorkId(0), None);
        let request = SendRequest { id, packet, length: FRONT, destination, immediate };
        let fill = |mut into: CopyTarget<'_>| into.copy_from(0, &bytes[FRONT..length]);
        a.post_send_with(request, length - FRONT, fill).unwrap_err()
    };
    let nowhere = Destination { address_handle: AddressHandle(77), ..to };
    let refused = refuse(&mut a, nowhere, LONG);
    assert_eq!(refused.error, DeviceError::BadAddressHandle { handle: AddressHandle(77) });
    assert_eq!(refused.packet[..LONG], bytes[..LONG]);
    let refused = refuse(&mut a, to, 9000);
    assert_eq!(refused.error, DeviceError::TooLong { length: 9000, limit: 8928 });
}

#[test]
fn captured_long_datagrams_are_in_their_packets_and_recorded_whole() {
    let directory = Directory::new();
    let trace = Trace::default();
    let mut options = options(&directory);
    options.mtu = 8928;
    options.capture = Some(SharedSink::new(trace.clone()));
    let device = ShmDevice::open(options).unwrap();
    let (mut a, mut b) = (queue_pair(&device), queue_pair(&device));
    b.split_headers(FRONT);
    post_receives(&mut b, 2);
    let to = destination(&mut a, b.address());
    let bytes = content(3, LONG);
    for id in 0..2 {
        assert!(send_long(&mut a, to, id, &bytes));
        assert_eq!(poll(&mut b, at(0)).receives[0].0, bytes);
        assert_eq!(poll(&mut a, at(0)).sends, [(id as u64, Ok(()))]);
    }
    let records = trace.take();
    assert_eq!(records.len(), 4);
    assert!(records.iter().all(|record| record.bytes[..] == bytes[..]));
}

#[test]
fn short_datagrams_and_those_with_immediate_data_are_not_split() {
    let directory = Directory::new();
    let (mut a, mut b, to) = long_pair(&directory, 4);
    for (length, immediate) in [(100, None), (LONG, Some(5))] {
        let bytes = content(1, length);
        let mut packet = a.allocate_packet().unwrap();
        packet[..length].copy_from_slice(&bytes);
        let request = SendRequest { id: WorkId(0), packet, length, destination: to, immediate };
        a.post_send(request).unwrap();
        assert_eq!(poll(&mut b, at(0)).receives[0].0, bytes);
    }
}

/// The file of the only ring, which its receiver hasn't attached yet.
fn ring_file(directory: &Directory) -> std::fs::File {
    let name = files(directory).into_iter().find(|name| name.starts_with("ring")).unwrap();
    let path = directory.path().join("host").join(name);
    std::fs::OpenOptions::new().write(true).open(path).unwrap()
}

// Where things are in a ring; see `shm/ring.rs`.
const SLOTS: u64 = 512;
const SLOT_HEADER: u64 = 24;
/// Where the bytes of a long datagram begin in its slot.
const BEGIN: u64 = 64;
const STRIDE: u64 = (SLOT_HEADER + 8928).next_multiple_of(64);
const KIND: u64 = 8 + 3;

#[test]
fn long_datagram_of_a_sender_that_has_ended_is_taken() {
    for before in 0..4 {
        let directory = Directory::new();
        let (mut a, mut b, to) = long_pair(&directory, 5);
        let all: Vec<_> = (0..=before).map(|number| content(number, LONG)).collect();
        for (number, bytes) in all[..before].iter().enumerate() {
            send_long(&mut a, to, number, bytes);
            let (packet, length) = front(&mut b);
            assert_eq!(rest(&mut b, &packet, length), bytes[FRONT..]);
        }
        send_long(&mut a, to, before, &all[before]);
        drop(a);
        let (packet, length) = front(&mut b);
        assert_eq!(rest(&mut b, &packet, length), all[before][FRONT..], "after {before}");
        assert!(b.poll(at(0)).is_none());
    }
}

#[test]
fn front_that_was_looked_at_stays_whatever_the_sender_writes_later() {
    let directory = Directory::new();
    let (mut a, mut b, to) = long_pair(&directory, 4);
    let bytes = content(0, LONG);
    send_long(&mut a, to, 0, &bytes);
    let ring = ring_file(&directory);
    let (mut packet, length) = front(&mut b);
    ring.write_all_at(&[0xee; FRONT + 1], SLOTS + BEGIN).unwrap();
    b.land(&mut packet, length);
    assert_eq!(packet[..FRONT], bytes[..FRONT]);
    assert_eq!((packet[FRONT], &packet[FRONT + 1..LONG]), (0xee, &bytes[FRONT + 1..]));
}

#[test]
fn ring_that_breaks_behind_a_long_datagram_is_left_once_that_was_taken() {
    let directory = Directory::new();
    let (mut a, mut b, to) = long_pair(&directory, 4);
    let all: Vec<_> = (0..2).map(|number| content(number, LONG)).collect();
    for (number, bytes) in all.iter().enumerate() {
        send_long(&mut a, to, number, bytes);
    }
    let ring = ring_file(&directory);
    ring.write_all_at(&[77], SLOTS + STRIDE + KIND).unwrap();
    let (packet, length) = front(&mut b);
    assert_eq!(rest(&mut b, &packet, length), all[0][FRONT..]);
    assert_eq!(sent(&mut a).unwrap().1, Ok(()));
    assert!(b.poll(at(0)).is_none());
    let (_, result, packet) = sent(&mut a).unwrap();
    assert_eq!((result, &packet[..LONG]), (Err(Status::BadDestinationQpn), &all[1][..]));
}

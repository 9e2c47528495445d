//! Both ends of a ring in one process.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;

const KEY: Qkey = Qkey(0xdead_beef);

fn file(slots: usize, mtu: usize) -> OwnedFd {
    let file = memfd_create("efa-ring", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, RingSender::file_length(slots, mtu).unwrap() as u64).unwrap();
    file
}

fn ring(slots: usize, mtu: usize) -> (RingSender, RingReceiver, OwnedFd) {
    let file = file(slots, mtu);
    let sender = RingSender::create(&file, slots, mtu, Qpn(5), 3, false).unwrap();
    let receiver = RingReceiver::open(&file).unwrap().unwrap();
    (sender, receiver, file)
}

fn take(receiver: &mut RingReceiver) -> Option<Vec<u8>> {
    let arrived = receiver.peek().unwrap()?;
    assert_eq!(arrived.qkey, KEY);
    let mut bytes = vec![0; arrived.length];
    receiver.accept(arrived, &mut bytes);
    Some(bytes)
}

#[test]
fn packets_wrap_around_and_are_acknowledged_in_order() {
    let (mut sender, mut receiver, _) = ring(4, 100);
    assert_eq!((receiver.from(), receiver.rnr_retry()), (Qpn(5), 3));
    let mut sent = 0u8;
    for round in 0..20usize {
        let count = 1 + round % 4;
        for _ in 0..count {
            sender.publish(Kind::Plain, 0, &vec![sent; usize::from(sent % 101)], KEY);
            sent += 1;
        }
        assert_eq!(sender.has_space(), count < 4);
        assert_eq!(sender.acknowledgements(), Ok(0));
        for i in 0..count {
            let expected = sent - (count - i) as u8;
            if expected.is_multiple_of(7) {
                receiver.reject(Status::ReceiverNotReady);
            } else {
                let bytes = vec![expected; usize::from(expected % 101)];
                assert_eq!(take(&mut receiver), Some(bytes));
            }
        }
        assert_eq!(take(&mut receiver), None);
        receiver.acknowledge();
        assert_eq!(sender.acknowledgements(), Ok(count as u64));
        for i in 0..count {
            let rejected = (sent - (count - i) as u8).is_multiple_of(7);
            let expected = if rejected { Err(Status::ReceiverNotReady) } else { Ok(()) };
            assert_eq!(sender.take_acknowledgement(), expected);
        }
    }
}

#[test]
fn rejections_counted_before_their_packets_are_acknowledged_fail_these_alone() {
    let (mut sender, mut receiver, _) = ring(8, 100);
    (0..4).for_each(|_| sender.publish(Kind::Plain, 0, b"a", KEY));
    (0..2).for_each(|_| assert_eq!(take(&mut receiver), Some(b"a".to_vec())));
    receiver.acknowledge();
    receiver.reject(Status::ReceiverNotReady);
    assert_eq!(sender.acknowledgements(), Ok(2));
    assert_eq!([(); 2].map(|()| sender.take_acknowledgement()), [Ok(()); 2]);
    assert_eq!(take(&mut receiver), Some(b"a".to_vec()));
    receiver.acknowledge();
    assert_eq!(sender.acknowledgements(), Ok(2));
    let results = [(); 2].map(|()| sender.take_acknowledgement());
    assert_eq!(results, [Err(Status::ReceiverNotReady), Ok(())]);
}

#[test]
fn immediate_data_is_carried_by_both_kinds_of_slots() {
    let (mut sender, mut receiver, _) = ring(4, 100);
    sender.publish(Kind::Immediate, u32::MAX, b"ab", KEY);
    sender.publish(Kind::Written, 7, &[0; WRITTEN], KEY);
    let arrived = |kind, immediate, length| {
        let gap = 0;
        Arrived { length, qkey: KEY, kind, immediate, gap }
    };
    let immediate = arrived(Kind::Immediate, u32::MAX, 2);
    assert_eq!(receiver.peek(), Ok(Some(immediate)));
    receiver.accept(immediate, &mut [0; 2]);
    assert_eq!(receiver.peek(), Ok(Some(arrived(Kind::Written, 7, WRITTEN))));
    receiver.reject(Status::ReceiverNotReady);
    receiver.acknowledge();
    assert_eq!(sender.acknowledgements(), Ok(2));
    assert_eq!(sender.take_acknowledgement(), Ok(()));
    assert_eq!(sender.take_acknowledgement(), Err(Status::ReceiverNotReady));
}

#[test]
fn long_part_of_a_packet_begins_with_a_line_and_all_of_it_arrives() {
    let (mut sender, mut receiver, _) = ring(4, 9000);
    let bytes: Vec<u8> = (0..9000_u32).map(|byte| byte as u8).collect();
    for (front, rest) in [(20, 3000), (20, 4096), (24, 8900), (ALIGNED, 0), (20, 8980), (9000, 0)] {
        let length = front + rest;
        let fill = |mut into: CopyTarget<'_>| into.copy_from(0, &bytes[front..length]);
        sender.publish_with(Kind::Plain, 0, KEY, &bytes[..front], rest, fill);
        let mut back = vec![0; rest];
        sender.copy_rest(sender.published() - 1, front, &mut back);
        assert_eq!(back, bytes[front..length]);
        let arrived = receiver.peek().unwrap().unwrap();
        assert_eq!((arrived.length, arrived.kind), (length, Kind::Plain));
        let place = receiver.place(arrived);
        let long = place.start + if rest > 0 { front } else { 0 };
        let fits = (ALIGNED..8980).contains(&length);
        assert_eq!(long % LINE == 0, fits, "{front} and {rest}");
        let mut passed = Vec::new();
        receiver.pass(&place, front..length, |part| {
            part.pass_to(|_, chunk| {
                passed.extend_from_slice(chunk);
                chunk.len()
            });
        });
        assert_eq!(passed, bytes[front..length]);
        assert_eq!(take(&mut receiver).unwrap(), bytes[..length]);
        receiver.acknowledge();
        assert_eq!(sender.acknowledgements(), Ok(1));
        assert_eq!(sender.take_acknowledgement(), Ok(()));
    }
}

#[test]
fn packet_behind_a_gap_that_its_slot_has_no_room_for_breaks_the_ring() {
    for (mtu, length) in [(9000, 9000), (9000, 8950), (100, 100), (1, 1)] {
        let (mut sender, receiver, _) = ring(1, mtu);
        sender.publish(Kind::Plain, 0, &vec![7; length], KEY);
        let [_, what, _] = slot_words(&sender.map, SLOTS);
        what.fetch_or(0xf0 << 24, Ordering::Relaxed);
        assert_eq!(receiver.peek(), Err(Broken), "{length} of {mtu}");
    }
}

#[test]
fn detaching_is_visible_to_the_other_end() {
    let (mut sender, mut receiver, _) = ring(4, 8);
    assert!(!sender.is_detached() && !receiver.is_detached() && !sender.is_watched());
    assert_eq!(sender.attached_entry(), None);
    receiver.set_watched(7, false, false);
    assert!(!sender.is_watched() && sender.attached_entry() == Some(7));
    receiver.set_watched(7, true, false);
    assert!(sender.is_watched() && sender.attached_entry() == Some(7));
    sender.publish(Kind::Plain, 0, b"a", KEY);
    sender.publish(Kind::Plain, 0, b"b", KEY);
    receiver.detach(Status::BadDestinationQpn);
    assert!(sender.is_detached());
    assert_eq!(sender.acknowledgements(), Ok(2));
    assert_eq!(sender.take_acknowledgement(), Err(Status::BadDestinationQpn));
    assert_eq!(sender.take_acknowledgement(), Err(Status::BadDestinationQpn));
    sender.detach();
    assert!(receiver.is_detached());
}

#[test]
fn requests_carry_address_and_key_and_are_answered_in_their_slot() {
    let (mut sender, mut receiver, _) = ring(4, 100);
    sender.publish_request(Kind::Read, (0x1234, 77), 100, &[]);
    sender.publish_request(Kind::Write, (0x5678, 78), 0, b"data");
    sender.publish_request(Kind::Read, (0, 79), 5, &[]);
    let arrived = receiver.peek().unwrap().unwrap();
    assert_eq!((arrived.kind, arrived.qkey, arrived.immediate), (Kind::Read, Qkey(77), 100));
    assert_eq!(receiver.requested_address(), 0x1234);
    receiver.answer(&[9; 100]);
    let arrived = receiver.peek().unwrap().unwrap();
    assert_eq!((arrived.kind, arrived.qkey, arrived.length), (Kind::Write, Qkey(78), 12));
    assert_eq!(receiver.requested_address(), 0x5678);
    let mut data = [0; 4];
    receiver.requested_bytes(&mut data);
    assert_eq!(&data, b"data");
    receiver.answer(&[]);
    receiver.reject(Status::RemoteBadAddress);
    receiver.acknowledge();
    assert_eq!(sender.acknowledgements(), Ok(3));
    let mut answer = [0; 100];
    sender.copy_answer(0, &mut answer);
    assert_eq!((sender.take_acknowledgement(), answer), (Ok(()), [9; 100]));
    assert_eq!(sender.take_acknowledgement(), Ok(()));
    assert_eq!(sender.take_acknowledgement(), Err(Status::RemoteBadAddress));
}

#[test]
fn push_is_taken_or_withdrawn_by_whoever_is_first() {
    let (mut sender, mut receiver, _) = ring(4, 100);
    let push = |address: u64| Push {
        from: RemoteMemory { address, key: 77 },
        into: RemoteMemory { address: !address, key: u32::MAX },
        count: 1 << 20,
    };
    // The slots were used before.
    for round in 0..3 {
        let numbers = [5, u64::MAX, 6].map(|address| sender.publish_push(push(address)));
        let arrived = receiver.peek().unwrap().unwrap();
        assert_eq!((arrived.kind, arrived.qkey), (Kind::Push, Qkey(77)));
        assert_eq!(receiver.push(arrived), push(5));
        assert!(receiver.take_push() && receiver.take_push(), "round {round}");
        assert!(!sender.withdraw(numbers[0]), "it was taken");
        receiver.answer(&[]);
        assert_eq!(receiver.push(receiver.peek().unwrap().unwrap()), push(u64::MAX));
        assert!(sender.withdraw(numbers[1]) && sender.withdraw(numbers[1]));
        assert!(!receiver.take_push(), "it was withdrawn");
        receiver.answer(&[]);
        receiver.reject(Status::RemoteBadAddress);
        receiver.acknowledge();
        assert_eq!(sender.acknowledgements(), Ok(3));
        let results = [(); 3].map(|()| sender.take_acknowledgement());
        assert_eq!(results, [Ok(()), Ok(()), Err(Status::RemoteBadAddress)]);
    }
    assert!(!ring(4, 31).0.holds_push() && ring(4, 32).0.holds_push());
}

#[test]
fn file_with_invalid_header_or_length_is_not_a_ring() {
    assert_eq!(RingSender::file_length(3, 8), None);
    assert_eq!(RingSender::file_length(MAX_SLOTS * 2, 8), None);
    assert_eq!(RingSender::file_length(1, MAX_MTU + 1), None);
    assert!(RingReceiver::open(&file(4, 100)).unwrap().is_none(), "all zero");
    let empty = memfd_create("efa-ring", MemfdFlags::CLOEXEC).unwrap();
    assert!(RingReceiver::open(&empty).unwrap().is_none());
    // Each byte of the header, inverted in turn.
    for at in 0..32 {
        let file = file(4, 100);
        let _ = RingSender::create(&file, 4, 100, Qpn(5), 3, false).unwrap();
        let map = Map::new(&file, 64).unwrap();
        let mut byte = [0];
        map.copy_out(at, &mut byte);
        map.copy_in(at, &[byte[0] ^ 0xff]);
        let opened = RingReceiver::open(&file).unwrap();
        // The sender's number and its retries may have any value.
        let harmless = [12, 24, 25].contains(&at);
        assert_eq!(opened.is_some(), harmless, "byte {at}");
    }
    // A layout that doesn't fit the file.
    let file = file(4, 100);
    let _ = RingSender::create(&file, 4, 100, Qpn(5), 3, false).unwrap();
    let length = fstat(&file).unwrap().st_size as u64;
    ftruncate(&file, length - 1).unwrap();
    assert!(RingReceiver::open(&file).unwrap().is_none());
}

#[test]
fn inconsistent_words_of_the_other_side_are_detected() {
    let (mut sender, receiver, file) = ring(4, 100);
    let other = Map::new(&file, RingSender::file_length(4, 100).unwrap()).unwrap();
    sender.publish(Kind::Plain, 0, b"a", KEY);
    for head in [2, u64::MAX] {
        other.words::<1>(HEAD)[0].store(head, Ordering::Relaxed);
        assert_eq!(sender.acknowledgements(), Err(Broken));
    }
    other.words::<1>(HEAD)[0].store(1, Ordering::Relaxed);
    other.words::<3>(SLOTS)[2].store(77, Ordering::Relaxed);
    other.words::<2>(HEAD)[1].store(1, Ordering::Relaxed);
    assert_eq!(sender.acknowledgements(), Ok(1));
    assert_eq!(sender.take_acknowledgement(), Err(Status::BadStatus));
    // Too long, an unknown kind, a `Push` of 0 and of 32 bytes, a `Written` slot of one byte, a `Read` of 9 and a `Write` of
    // 7 and 101 bytes.
    for length in [
        101,
        u64::from(u32::MAX),
        6 << 24,
        5 << 24,
        5 << 24 | 32,
        2 << 24 | 1,
        3 << 24 | 9,
        4 << 24 | 7,
        4 << 24 | 101,
    ] {
        other.words::<3>(SLOTS)[1].store(length, Ordering::Relaxed);
        assert_eq!(receiver.peek(), Err(Broken));
    }
    // A read of more bytes than the slot has.
    other.words::<3>(SLOTS)[1].store(3 << 24 | 8, Ordering::Relaxed);
    for (count, good) in [(0, true), (100, true), (101, false), (u64::from(u32::MAX), false)] {
        other.words::<3>(SLOTS)[2].store(count << 32, Ordering::Relaxed);
        assert_eq!(receiver.peek().is_ok(), good, "{count}");
    }
    for number in [0, 2, u64::MAX] {
        other.words::<3>(SLOTS)[0].store(number, Ordering::Relaxed);
        assert_eq!(receiver.peek(), Ok(None));
    }
}

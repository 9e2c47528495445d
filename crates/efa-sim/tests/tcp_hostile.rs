//! The tcp link with peers that violate its protocol.
//!
//! No call panics or blocks, the memory that a peer can make a queue pair use is bounded, each violation
//! closes the violating connection and is counted, and other peers are still served.

#![allow(clippy::unwrap_used)]

#[path = "common/tcp_bytes.rs"]
mod tcp_bytes;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use efa_device::*;
use efa_sim::SoftRegion;
use efa_sim::tcp::{TcpDevice, TcpOptions, TcpQueuePair, TcpStatistics, Violations};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use tcp_bytes::HELLO;

/// Limit for a hanging test; a passing test takes a small fraction of it.
const DEADLINE: Duration = Duration::from_secs(60);
const MTU: usize = 256;
const TRY_AGAIN: &[u8; 8] = b"\x09\0\0\0\0\0\0\0";

fn queue_pair(max_peers: usize) -> TcpQueuePair {
    let options = TcpOptions::new(Ipv4Addr::LOCALHOST).with(|options| {
        options.mtu = MTU;
        options.max_peers = max_peers;
    });
    let device = TcpDevice::open(options).unwrap();
    device
        .create_queue_pair(QueuePairOptions::default().with(|options| options.rnr_retry = 7))
        .unwrap()
}

fn connect(qp: &TcpQueuePair) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, qp.address().qpn.0)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_nonblocking(true).unwrap();
    stream
}

/// What the queue pair says first, with its number.
fn hello_of(qp: &TcpQueuePair) -> [u8; 16] {
    let mut hello = *HELLO;
    hello[6..8].copy_from_slice(&qp.address().qpn.0.to_le_bytes());
    hello
}

/// A frame of `length` bytes with key 0, to be tried again without end.
fn frame(sequence: u32, length: u32) -> Vec<u8> {
    let mut bytes = vec![1, 7, 0, 0];
    bytes.extend(length.to_le_bytes());
    bytes.extend(sequence.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.resize(16 + length as usize, 0x5a);
    bytes
}

/// Polls until `done` returns `true`.
fn until(qp: &mut TcpQueuePair, now: Time, mut done: impl FnMut(&mut TcpQueuePair) -> bool) {
    let start = Instant::now();
    while !done(qp) {
        assert!(start.elapsed() < DEADLINE, "no progress within the deadline");
        qp.poll(now);
    }
}

/// The next completion.
fn completion(qp: &mut TcpQueuePair) -> Completion<Box<[u8]>> {
    let start = Instant::now();
    loop {
        if let Some(completion) = qp.poll(Time::ZERO) {
            return completion;
        }
        assert!(start.elapsed() < DEADLINE, "no completion within the deadline");
    }
}

/// Asserts that the queue pair still works: it sends a packet to itself.
fn assert_works(qp: &mut TcpQueuePair, now: Time) {
    let QueuePairAddress { gid, qpn, qkey } = qp.address();
    let address_handle = qp.create_address_handle(gid).unwrap();
    let destination = Destination { address_handle, qpn, qkey };
    let buffer = qp.allocate_packet().unwrap();
    qp.post_receive(buffer).unwrap();
    let request = SendRequest {
        id: WorkId(1),
        packet: b"alive".as_slice().into(),
        length: 5,
        destination,
        immediate: None,
    };
    qp.post_send(request).unwrap();
    let start = Instant::now();
    let mut completions = 0;
    while completions < 2 {
        assert!(start.elapsed() < DEADLINE, "no progress within the deadline");
        match qp.poll(now) {
            Some(Completion::Send { result, .. }) => {
                assert_eq!(result, Ok(()));
                completions += 1;
            }
            Some(Completion::Receive { length: 5, .. }) => completions += 1,
            _ => {}
        }
    }
}

#[test]
fn violation_by_a_sender_closes_its_connection_and_is_counted() {
    let mut unknown_kind = frame(0, 4);
    unknown_kind[0] = 10;
    let long = frame(0, MTU as u32 + 1);
    let mut huge = frame(0, 0);
    huge[4..8].fill(0xff);
    let mut oversized_mtu = *HELLO;
    oversized_mtu[10] = 2;
    let mut other_version = *HELLO;
    other_version[4] = 9;
    let rdma = |kind: u8, bytes: &[u8]| {
        let mut frame = frame(0, bytes.len() as u32);
        frame[0] = kind;
        frame[16..].copy_from_slice(bytes);
        frame
    };
    let oversized_read = [0, 0, 0, 0, 0, 0, 0, 0, 1, 0x80, 0, 0];
    let one = |pick: fn(&mut Violations) -> &mut u64| {
        let mut expected = Violations::default();
        *pick(&mut expected) = 1;
        expected
    };
    let cases = [
        (b"GET / HTTP/1.1\r\nHost: efa\r\n\r\n".to_vec(), one(|v| &mut v.magic)),
        (other_version.to_vec(), one(|v| &mut v.version)),
        (oversized_mtu.to_vec(), one(|v| &mut v.length)),
        ([&HELLO[..], &unknown_kind].concat(), one(|v| &mut v.kind)),
        ([&HELLO[..], &[0; 8]].concat(), one(|v| &mut v.kind)),
        ([&HELLO[..], &rdma(2, &[0; 3])].concat(), one(|v| &mut v.short)),
        ([&HELLO[..], &rdma(2, &[0; 5 + MTU])].concat(), one(|v| &mut v.length)),
        ([&HELLO[..], &rdma(3, &[0; 11])].concat(), one(|v| &mut v.short)),
        ([&HELLO[..], &rdma(3, &[0; 13])].concat(), one(|v| &mut v.length)),
        ([&HELLO[..], &rdma(3, &oversized_read)].concat(), one(|v| &mut v.length)),
        ([&HELLO[..], &rdma(4, &[0; 7])].concat(), one(|v| &mut v.short)),
        ([&HELLO[..], &rdma(4, &[0; 9 + (1 << 15)])].concat(), one(|v| &mut v.length)),
        ([&HELLO[..], &rdma(5, &[0; 11])].concat(), one(|v| &mut v.short)),
        ([&HELLO[..], &long].concat(), one(|v| &mut v.length)),
        ([&HELLO[..], &huge].concat(), one(|v| &mut v.length)),
        ([&HELLO[..], &[6, 0, 1, 0, 0, 0, 0, 0]].concat(), one(|v| &mut v.response)),
        ([&HELLO[..], &[7, 99, 0, 0, 0, 0, 0, 0]].concat(), one(|v| &mut v.status)),
        ([&HELLO[..], &[8, 0, 0, 0, 0, 0, 0, 0]].concat(), one(|v| &mut v.response)),
        ([&HELLO[..], &frame(1, 0)].concat(), one(|v| &mut v.sequence)),
        ([&HELLO[..], &frame(0, 4), &frame(0, 4)].concat(), one(|v| &mut v.sequence)),
    ];
    for (bytes, expected) in cases {
        let mut qp = queue_pair(8);
        let mut stream = connect(&qp);
        stream.write_all(&bytes).unwrap();
        let what = format!("{:?}", &bytes[..bytes.len().min(60)]);
        until(&mut qp, Time::ZERO, |qp| qp.statistics().violations.total() > 0);
        let TcpStatistics { violations, incoming, .. } = qp.statistics();
        assert_eq!((violations, incoming), (expected, 0), "{what}");
        stream.set_nonblocking(false).unwrap();
        let mut received = Vec::new();
        // The connection may also have been reset, which fails the read.
        let _ = stream.read_to_end(&mut received);
        assert!(
            received.starts_with(&hello_of(&qp)) && received.ends_with(&[7, 12, 0, 0, 0, 0, 0, 0])
        );
        assert_works(&mut qp, Time::ZERO);
    }
}

#[test]
fn connection_ending_within_a_frame_is_counted_as_truncated() {
    for bytes in [&HELLO[..7], &[&HELLO[..], &frame(0, 9)[..20]].concat()] {
        let mut qp = queue_pair(8);
        connect(&qp).write_all(bytes).unwrap();
        until(&mut qp, Time::ZERO, |qp| qp.statistics().violations.truncated == 1);
        assert_works(&mut qp, Time::ZERO);
        assert_eq!(qp.statistics().violations.total(), 1);
    }
}

/// As when its process is killed while it writes.
#[test]
fn packet_before_a_truncated_one_is_received_when_a_buffer_is_posted() {
    let mut qp = queue_pair(8);
    connect(&qp).write_all(&[&HELLO[..], &frame(0, 9), &frame(1, 9)[..20]].concat()).unwrap();
    until(&mut qp, Time::ZERO, |qp| qp.statistics().violations.truncated == 1);
    for _ in 0..100 {
        assert!(qp.poll(Time::ZERO).is_none());
    }
    let buffer = qp.allocate_packet().unwrap();
    qp.post_receive(buffer).unwrap();
    let received = completion(&mut qp);
    assert!(matches!(received, Completion::Receive { length: 9, .. }), "{received:?}");
    until(&mut qp, Time::ZERO, |qp| qp.statistics().incoming == 0);
    assert_eq!(qp.statistics().violations.total(), 1);
}

#[test]
fn late_hello_or_frame_closes_the_connection_and_a_pause_between_frames_does_not() {
    let mut qp = queue_pair(8);
    let mut streams = [(); 4].map(|()| connect(&qp));
    streams[1].write_all(&HELLO[..6]).unwrap();
    streams[2].write_all(HELLO).unwrap();
    streams[3].write_all(&[&HELLO[..], &frame(0, 90)[..20]].concat()).unwrap();
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    until(&mut qp, at(0), |qp| qp.statistics().incoming == 4);
    // Single bytes of a hello or frame do not extend its timeout.
    for second in 0..9 {
        streams[1].write_all(&HELLO[6 + second as usize..][..1]).unwrap();
        streams[3].write_all(&[0]).unwrap();
        assert_works(&mut qp, at(second));
    }
    assert_eq!(qp.statistics().violations.total(), 0);
    let mut now = at(9);
    let start = Instant::now();
    let mut until_slow = |qp: &mut TcpQueuePair, count| {
        while qp.statistics().violations.slow < count {
            assert!(start.elapsed() < DEADLINE, "no progress within the deadline");
            now += Duration::from_millis(100);
            qp.poll(now);
        }
        now
    };
    assert!((at(10)..at(12)).contains(&until_slow(&mut qp, 2)), "the hellos");
    assert!((at(30)..at(32)).contains(&until_slow(&mut qp, 3)), "the frame");
    let mut received = Vec::new();
    streams[3].set_nonblocking(false).unwrap();
    streams[3].read_to_end(&mut received).unwrap();
    assert_eq!(received, [&hello_of(&qp)[..], TRY_AGAIN].concat());
    assert_works(&mut qp, at(10_000));
    let TcpStatistics { violations, incoming, .. } = qp.statistics();
    assert_eq!(
        (violations.total(), incoming),
        (3, 2),
        "the one with only a hello, and the connection of the queue pair to itself"
    );
}

/// The receiver did not poll while the rest arrived, or had no buffer for an earlier frame.
#[test]
fn frame_is_not_late_while_the_receiver_does_not_take_it() {
    let mut qp = queue_pair(8);
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    let mut stream = connect(&qp);
    let [first, second] = [frame(0, 9), frame(1, 9)];
    stream.write_all(&[&HELLO[..], &first[..20]].concat()).unwrap();
    until(&mut qp, at(0), |qp| qp.statistics().receives >= 1);
    for _ in 0..100 {
        assert!(qp.poll(at(2)).is_none());
    }
    stream.write_all(&[&first[20..], &second[..20]].concat()).unwrap();
    for seconds in 60..120 {
        assert!(qp.poll(at(seconds)).is_none());
    }
    assert_eq!(qp.statistics().violations.total(), 0, "the first waits for a buffer");
    let buffer = qp.allocate_packet().unwrap();
    qp.post_receive(buffer).unwrap();
    let received = qp.poll(at(120));
    assert!(matches!(received, Some(Completion::Receive { length: 9, .. })), "{received:?}");
    // Only from now on the second is what is waited for.
    for seconds in 120..150 {
        assert!(qp.poll(at(seconds)).is_none());
    }
    assert_eq!(qp.statistics().violations.total(), 0);
    for seconds in 150..155 {
        assert!(qp.poll(at(seconds)).is_none());
    }
    assert_eq!(qp.statistics().violations.slow, 1);
}

/// The receiver may not have polled for long, so the age of a connection is unknown when a sweep first
/// sees it.
#[test]
fn hello_timeout_starts_when_a_sweep_sees_the_connection() {
    let mut qp = queue_pair(8);
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    assert_works(&mut qp, at(0));
    let mut stream = connect(&qp);
    stream.write_all(&HELLO[..8]).unwrap();
    until(&mut qp, at(0), |qp| qp.statistics().incoming == 2);
    assert_works(&mut qp, at(60));
    assert_works(&mut qp, at(69));
    assert_eq!(qp.statistics().violations.total(), 0);
    // The timeout started at the first sweep after the connection was accepted.
    until(&mut qp, at(71), |qp| qp.statistics().violations.slow == 1);
}

#[test]
fn connections_that_deliver_nothing_make_room_for_others() {
    let mut qp = queue_pair(5);
    assert_works(&mut qp, Time::ZERO);
    let mut streams = Vec::new();
    for n in 1..=100 {
        streams.push(connect(&qp));
        until(&mut qp, Time::ZERO, |qp| qp.statistics().accepts == 1 + n);
    }
    let TcpStatistics { evicted, rejected, incoming, .. } = qp.statistics();
    assert_eq!((evicted, rejected, incoming), (96, 0, 5));
    let mut received = Vec::new();
    streams[95].set_nonblocking(false).unwrap();
    streams[95].read_to_end(&mut received).unwrap();
    assert_eq!(received, [&hello_of(&qp)[..], TRY_AGAIN].concat());
    assert_works(&mut qp, Time::ZERO);
    assert_eq!(qp.statistics().connects, 1, "the connection to itself stayed");
    streams.clear();
    until(&mut qp, Time::ZERO, |qp| qp.statistics().incoming == 1);
}

/// Writes frames without reading responses, more than a sender may have on the way, until the connection is closed. Returns
/// how many bytes were taken until then.
fn write_until_closed(
    qp: &mut TcpQueuePair,
    stream: &mut TcpStream,
    mut next: impl FnMut(u32) -> Vec<u8>,
) -> usize {
    let mut bytes = HELLO.to_vec();
    let (mut sequence, mut total) = (0, 0);
    let start = Instant::now();
    while qp.statistics().violations.window == 0 {
        assert!(start.elapsed() < DEADLINE, "not closed after {total} bytes");
        while bytes.len() < 1 << 16 {
            bytes.extend(next(sequence));
            sequence += 1;
        }
        match stream.write(&bytes) {
            Ok(count) => {
                bytes.drain(..count);
                total += count;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        for _ in 0..100 {
            qp.poll(Time::ZERO);
        }
    }
    assert_eq!(qp.statistics().violations.total(), 1);
    total
}

/// No buffer is posted for them.
#[test]
fn sender_of_more_frames_than_may_wait_is_closed() {
    let mut qp = queue_pair(8);
    let mut stream = connect(&qp);
    write_until_closed(&mut qp, &mut stream, |sequence| frame(sequence, 200));
    assert_works(&mut qp, Time::ZERO);
}

/// Responses to consecutive frames differ, so they can't be merged into one.
#[test]
fn sender_of_many_frames_that_reads_no_responses_is_closed() {
    let mut qp = queue_pair(8);
    let mut stream = connect(&qp);
    // Every other frame is too long for this buffer; the rest have a wrong key.
    qp.post_receive(vec![0; 5].into()).unwrap();
    let taken = write_until_closed(&mut qp, &mut stream, |sequence| {
        let mut refused = frame(sequence, 6);
        refused[12] = (sequence % 2) as u8;
        refused
    });
    assert!(taken < 1 << 28, "{taken} bytes");
    assert_works(&mut qp, Time::ZERO);
}

/// 32 KiB that peers of this address may read.
fn offer(qp: &mut TcpQueuePair) -> SoftRegion {
    qp.create_address_handle(qp.address().gid).unwrap();
    let access = Access { remote_read: true, remote_write: false };
    qp.register(vec![7; 1 << 15].into(), access).unwrap()
}

/// A read of the whole region.
fn read_frame(sequence: u32, region: &SoftRegion) -> Vec<u8> {
    let mut read = frame(sequence, 12);
    read[0] = 3;
    read[12..16].copy_from_slice(&region.remote_key().to_le_bytes());
    read[16..24].copy_from_slice(&region.remote_address().to_le_bytes());
    read[24..].copy_from_slice(&(1_u32 << 15).to_le_bytes());
    read
}

/// The peer repeats RDMA reads of a region and never reads the returned bytes.
#[test]
fn requester_of_many_reads_that_reads_no_data_is_closed() {
    let mut qp = queue_pair(8);
    let region = offer(&mut qp);
    let mut stream = connect(&qp);
    let taken = write_until_closed(&mut qp, &mut stream, |sequence| read_frame(sequence, &region));
    assert!(taken < 1 << 24, "{taken} bytes");
    assert_works(&mut qp, Time::ZERO);
}

/// Waits until one of these is readable.
fn wait_for_any(fds: &[BorrowedFd<'_>]) {
    let limit = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
    let mut fds: Vec<_> =
        fds.iter().map(|&fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    assert!(poll(&mut fds, Some(&limit)).unwrap() > 0, "nothing became readable");
}

/// With a buffer posted, and frames of the requester waiting.
#[test]
fn queue_pair_can_sleep_while_a_requester_reads_no_data() {
    const READS: u32 = 400;
    let options = TcpOptions::new(Ipv4Addr::LOCALHOST).with(|options| options.mtu = MTU);
    let options_of_pair = QueuePairOptions::default().with(|options| options.waitable = true);
    let mut qp = TcpDevice::open(options).unwrap().create_queue_pair(options_of_pair).unwrap();
    let buffer = qp.allocate_packet().unwrap();
    qp.post_receive(buffer).unwrap();
    let region = offer(&mut qp);
    let mut stream = connect(&qp);
    // The system could keep all data for it otherwise.
    set_socket_recv_buffer_size(&stream, 1 << 16).unwrap();
    stream.write_all(HELLO).unwrap();
    let reads = (0..READS).flat_map(|sequence| read_frame(sequence, &region));
    stream.write_all(&reads.collect::<Vec<_>>()).unwrap();
    // Until all have arrived, and as much data is written as the system takes.
    let mut quiet = 0;
    for _ in 0..100_000 {
        assert!(qp.poll(Time::ZERO).is_none());
        let armed = qp.arm(Time::ZERO).unwrap();
        quiet = if matches!(armed, Armed::Quiet { .. }) { quiet + 1 } else { 0 };
        if quiet == 100 {
            break;
        }
    }
    assert_eq!(quiet, 100, "still awake: {:?}", qp.statistics());
    // It goes on when the requester reads, without a poll at a time of its own.
    let (mut received, mut bytes) = (0, vec![0; 1 << 16]);
    let total = HELLO.len() + READS as usize * (8 + (1 << 15));
    let mut waits = 0;
    loop {
        match stream.read(&mut bytes) {
            Ok(count) => received += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                if received == total {
                    break;
                }
                wait_for_any(&[stream.as_fd(), qp.wait_fd().unwrap()]);
                waits += 1;
                while qp.poll(Time::ZERO).is_none()
                    && matches!(qp.arm(Time::ZERO).unwrap(), Armed::Pending)
                {}
            }
        }
    }
    assert!(waits > 1, "the system took all data at once");
    assert_eq!(qp.statistics().violations.total(), 0);
}

/// Its data can't be written, and nobody waits for it.
#[test]
fn requester_that_closes_with_many_reads_under_way_is_forgotten() {
    let mut qp = queue_pair(8);
    let region = offer(&mut qp);
    let mut stream = connect(&qp);
    stream.write_all(HELLO).unwrap();
    until(&mut qp, Time::ZERO, |qp| qp.statistics().receives > 0);
    // Until the system has nothing more to report of the socket.
    for _ in 0..100 {
        assert!(qp.poll(Time::ZERO).is_none());
    }
    let reads = (0..200).flat_map(|sequence| read_frame(sequence, &region));
    stream.write_all(&reads.collect::<Vec<_>>()).unwrap();
    // Unread bytes make it a reset.
    drop(stream);
    until(&mut qp, Time::ZERO, |qp| qp.statistics().incoming == 0);
    assert_eq!(qp.statistics().violations.total(), 0);
}

#[test]
fn random_bytes_of_a_sender_do_not_disturb_others() {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut qp = queue_pair(64);
    for _ in 0..300 {
        let mut bytes = HELLO.to_vec();
        for sequence in 0..rng.u32(..20) {
            let start = bytes.len();
            bytes.extend(frame(sequence, rng.u32(..=MTU as u32)));
            bytes[start] = 1 + rng.u8(..5);
        }
        // At most two bytes are changed, so that most frames before them are valid.
        for _ in 0..rng.usize(..3) {
            let at = rng.usize(..bytes.len());
            bytes[at] = if rng.bool() { rng.u8(..) } else { bytes[at] ^ 1 << rng.u8(..8) };
        }
        bytes.truncate(rng.usize(..=bytes.len()));
        let mut stream = connect(&qp);
        for part in bytes.chunks(1 + rng.usize(..200)) {
            // The connection may be closed already.
            let _ = stream.write_all(part);
            if rng.bool() {
                let buffer = qp.allocate_packet().unwrap();
                let _ = qp.post_receive(buffer);
            }
            qp.poll(Time::ZERO);
        }
    }
    until(&mut qp, Time::ZERO, |qp| {
        // Packets of closed connections still wait for buffers.
        let buffer = qp.allocate_packet().unwrap();
        let _ = qp.post_receive(buffer);
        qp.statistics().incoming == 0
    });
    assert!(qp.statistics().violations.total() > 50);
}

/// Neither a datagram nor the immediate data of a write takes a buffer without the key of the queue pair.
#[test]
fn frames_with_a_wrong_key_take_no_receive_buffer() {
    let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(7));
    let device = TcpDevice::open(TcpOptions::new(Ipv4Addr::LOCALHOST)).unwrap();
    let mut qp = device.create_queue_pair(options).unwrap();
    let buffer = qp.allocate_packet().unwrap();
    qp.post_receive(buffer).unwrap();
    let mut stream = connect(&qp);
    let of_kind = |kind, sequence| {
        let mut frame = frame(sequence, 12);
        frame[0] = kind;
        frame
    };
    let frames = [of_kind(1, 0), of_kind(2, 1), of_kind(5, 2)].concat();
    stream.write_all(&[&HELLO[..], &frames].concat()).unwrap();
    let mut received = Vec::new();
    until(&mut qp, Time::ZERO, |qp| {
        assert!(qp.poll(Time::ZERO).is_none());
        let _ = stream.read_to_end(&mut received);
        received.len() >= 24
    });
    assert_eq!(received[16..], [6, 9, 3, 0, 0, 0, 0, 0]);
}

/// Sends two packets to a fake receiver that answers with `bytes`; returns the results of the sends and
/// the violations counted by the sender.
fn send_to_fake_receiver(bytes: &[u8]) -> (Vec<Result<(), Status>>, Violations) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else { panic!() };
    let mut qp = queue_pair(8);
    let address_handle = qp.create_address_handle(qp.address().gid).unwrap();
    let destination =
        Destination { address_handle, qpn: Qpn(address.port()), qkey: qp.address().qkey };
    for id in 0..2 {
        let request = SendRequest {
            id: WorkId(id),
            packet: [0; 4].into(),
            length: 4,
            destination,
            immediate: None,
        };
        qp.post_send(request).unwrap();
    }
    let mut stream = None;
    let mut read = Vec::new();
    listener.set_nonblocking(true).unwrap();
    let mut ended = Vec::new();
    let start = Instant::now();
    while ended.len() < 2 {
        assert!(start.elapsed() < DEADLINE, "no progress within the deadline");
        if let Some(Completion::Send { result, .. }) = qp.poll(Time::ZERO) {
            ended.push(result);
        }
        if stream.is_none() {
            stream = listener.accept().ok().map(|(stream, _)| stream);
            continue;
        }
        let Some(stream) = &mut stream else { continue };
        if read.len() < HELLO.len() + 2 * 20 {
            // A response is valid only for packets that were written before it.
            stream.set_nonblocking(true).unwrap();
            let _ = stream.read_to_end(&mut read);
            if read.len() == HELLO.len() + 2 * 20 {
                stream.write_all(bytes).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
            }
        }
    }
    (ended, qp.statistics().violations)
}

#[test]
fn violation_by_a_receiver_fails_the_sends_to_it() {
    let bad = Err(Status::BadStatus);
    let answer = |bytes: [u8; 8]| [&HELLO[..], &bytes].concat();
    let ok = [6, 0, 2, 0, 0, 0, 0, 0];
    let (ended, violations) = send_to_fake_receiver(&answer(ok));
    assert_eq!((ended, violations.total()), (vec![Ok(()), Ok(())], 0), "valid response");

    let (ended, violations) = send_to_fake_receiver(b"220 mail.example.org ESMTP\r\n");
    assert_eq!((ended, violations.magic), (vec![bad, bad], 1));
    let (ended, violations) = send_to_fake_receiver(b"EfaS\x01\0\x34\x12\0\x01\0\0\0\0\0\0");
    assert_eq!((ended, violations.version), (vec![bad, bad], 1));
    let (ended, violations) = send_to_fake_receiver(&answer([10, 0, 2, 0, 0, 0, 0, 0]));
    assert_eq!((ended, violations.kind), (vec![bad, bad], 1));
    let (ended, violations) = send_to_fake_receiver(&answer([6, 99, 2, 0, 0, 0, 0, 0]));
    assert_eq!((ended, violations.status), (vec![bad, bad], 1));
    let data_for_a_datagram = [8, 0, 4, 0, 0, 0, 0, 0];
    for wrong in [
        [6, 0, 3, 0, 0, 0, 0, 0],
        [6, 0, 0, 0, 0, 0, 0, 0],
        [6, 0, 1, 0, 255, 0, 0, 0],
        data_for_a_datagram,
    ] {
        let (ended, violations) = send_to_fake_receiver(&answer(wrong));
        assert_eq!((ended, violations.response), (vec![bad, bad], 1));
    }
    let twice = [&answer([6, 0, 1, 0, 1, 0, 0, 0])[..], &[6, 0, 1, 0, 1, 0, 0, 0]].concat();
    let (ended, violations) = send_to_fake_receiver(&twice);
    assert_eq!((ended, violations.response), (vec![Ok(()), bad], 1));

    let gone = Err(Status::UnresponsiveRemote);
    let (ended, violations) = send_to_fake_receiver(&answer([6, 0, 1, 0, 0, 0, 0, 0]));
    assert_eq!(
        (ended, violations.total()),
        (vec![Ok(()), gone], 0),
        "closing a connection is not a violation"
    );
    let (ended, _) = send_to_fake_receiver(b"");
    assert_eq!(ended, [gone, gone]);
}

/// Posts an RDMA read of four bytes to a fake target that answers with `bytes`; returns the result, the
/// local region and the violations counted by the requester.
fn read_from_fake_target(bytes: &[u8]) -> (Result<(), Status>, [u8; 6], Violations) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut qp = queue_pair(8);
    let address_handle = qp.create_address_handle(qp.address().gid).unwrap();
    let destination = Destination { address_handle, qpn: Qpn(port), qkey: Qkey(0) };
    let region = qp.register(vec![0; 6].into(), Access::default()).unwrap();
    let local = RegionRange { region: region.clone(), offset: 1, length: 4 };
    let remote = RemoteMemory { address: 0x0102_0304_0506_0708, key: 0x1122_3344 };
    qp.post_read(RdmaRequest { id: WorkId(1), local, remote, destination }).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut requested = [0; HELLO.len() + 28];
    stream.set_nonblocking(true).unwrap();
    let mut length = 0;
    // The request is written during polls.
    until(&mut qp, Time::ZERO, |_| {
        length += stream.read(&mut requested[length..]).unwrap_or(0);
        length == requested.len()
    });
    stream.set_nonblocking(false).unwrap();
    let requested = &requested[HELLO.len()..];
    assert_eq!(requested[..4], [3, 7, 0, 0]);
    assert_eq!(requested[12..], [0x44, 0x33, 0x22, 0x11, 8, 7, 6, 5, 4, 3, 2, 1, 4, 0, 0, 0]);
    // The response arrives in two parts, then the connection closes.
    let (first, second) = bytes.split_at(bytes.len() / 2);
    stream.write_all(first).unwrap();
    for _ in 0..20 {
        assert!(qp.poll(Time::ZERO).is_none());
    }
    stream.write_all(second).unwrap();
    drop(stream);
    let end = completion(&mut qp);
    let Completion::Rdma { id: WorkId(1), result } = end else { panic!("{end:?}") };
    let mut got = [0; 6];
    region.read(0, &mut got);
    (result, got, qp.statistics().violations)
}

#[test]
fn wrong_response_to_a_read_fails_it() {
    let bad = Err(Status::BadStatus);
    let answer = |answer: [u8; 8], data: &[u8]| [&HELLO[..], &answer, data].concat();
    let (result, got, violations) =
        read_from_fake_target(&answer([8, 0, 4, 0, 0, 0, 0, 0], b"abcd"));
    assert_eq!((result, &got), (Ok(()), b"\0abcd\0"), "valid response");
    assert_eq!(violations.total(), 0);
    let (result, got, _) = read_from_fake_target(&answer([6, 7, 1, 0, 0, 0, 0, 0], b""));
    assert_eq!((result, got), (Err(Status::RemoteBadAddress), [0; 6]));
    // Too many bytes, too few, another frame's response, and a response without data.
    for wrong in [
        [8, 0, 5, 0, 0, 0, 0, 0],
        [8, 0, 3, 0, 0, 0, 0, 0],
        [8, 0, 4, 0, 1, 0, 0, 0],
        [6, 0, 1, 0, 0, 0, 0, 0],
    ] {
        let (result, got, violations) = read_from_fake_target(&answer(wrong, b"abcde"));
        assert_eq!((result, got, violations.response), (bad, [0; 6], 1), "{wrong:?}");
    }
    let (result, _, violations) = read_from_fake_target(&answer([8, 0, 4, 0, 0, 0, 0, 0], b"ab"));
    assert_eq!((result, violations.total()), (Err(Status::UnresponsiveRemote), 0));
}

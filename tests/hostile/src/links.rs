//! Hostile peers on the links of the software device.
//!
//! `shm`: three queue pairs in one process. The fuzzer overwrites the ring files between two of them at any
//! offset while they send; what the third one sends and receives must stay correct.
//!
//! `tcp`: a queue pair that accepts a connection, or connects, and receives any bytes over it; or it has room for
//! four senders, strangers open more connections and leave them in any state while time passes, and what another
//! queue pair sends to it must arrive, once and in order.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use efa_device::{
    Access, Completion, Destination, Device, Qkey, Qpn, QueuePair, QueuePairAddress,
    QueuePairOptions, RdmaRequest, Region, RegionRange, RemoteMemory, SendRequest, Time, WorkId,
};
use efa_sim::SoftRegion;
use efa_sim::shm::{ShmDevice, ShmOptions, ShmQueuePair};
use efa_sim::tcp::{TcpDevice, TcpOptions, TcpQueuePair};
use tempfile::TempDir;

use crate::input::Input;
use crate::memory;

const MTU: usize = 256;
const KEY: u32 = 0x77;

/// A queue pair and its pending operations.
struct End<Q: QueuePair> {
    qp: Q,
    address: QueuePairAddress,
    next: u64,
    pending: Vec<u64>,
}

impl<Q: QueuePair> End<Q> {
    fn new(mut qp: Q, buffers: usize) -> Self {
        for _ in 0..buffers {
            let packet = qp.allocate_packet().expect("memory is available");
            assert!(qp.post_receive(packet).is_ok(), "within the limits");
        }
        Self { address: qp.address(), qp, next: 0, pending: Vec::new() }
    }

    fn destination(&mut self, to: QueuePairAddress) -> Destination {
        let address_handle = self.qp.create_address_handle(to.gid).expect("within the limits");
        Destination { address_handle, qpn: to.qpn, qkey: to.qkey }
    }

    fn send(&mut self, to: QueuePairAddress, bytes: &[u8]) {
        let destination = self.destination(to);
        let mut packet = self.qp.allocate_packet().expect("memory is available");
        packet.as_mut()[..bytes.len()].copy_from_slice(bytes);
        let (id, length) = (WorkId(self.next), bytes.len());
        let request = SendRequest { id, packet, length, destination, immediate: None };
        if self.qp.post_send(request).is_ok() {
            self.pending.push(self.next);
            self.next += 1;
        }
    }

    /// Reads from or writes to memory at the other queue pair.
    fn access(&mut self, to: QueuePairAddress, local: &Q::Region, write: bool, key: u32) {
        let (id, destination) = (WorkId(self.next), self.destination(to));
        let local = RegionRange { region: local.clone(), offset: 0, length: local.length() };
        let remote = RemoteMemory { address: 0x1000, key };
        let request = RdmaRequest { id, local, remote, destination };
        let posted =
            if write { self.qp.post_write(request, None) } else { self.qp.post_read(request) };
        if posted.is_ok() {
            self.pending.push(self.next);
            self.next += 1;
        }
    }

    /// Returns the received packets. Panics if an operation completes twice.
    fn poll(&mut self, now: Time) -> Vec<Vec<u8>> {
        let mut came = Vec::new();
        for _ in 0..64 {
            match self.qp.poll(now) {
                Some(Completion::Send { id, .. } | Completion::Rdma { id, .. }) => {
                    let place = self.pending.iter().position(|pending| *pending == id.0);
                    self.pending.remove(place.expect("each operation completes once"));
                }
                Some(Completion::Receive { packet, length, .. }) => {
                    came.push(packet.as_ref()[..length].to_vec());
                    let _ = self.qp.post_receive(packet);
                }
                Some(Completion::Written { packet: Some(packet), .. }) => {
                    let _ = self.qp.post_receive(packet);
                }
                Some(_) => {}
                None => break,
            }
        }
        came
    }
}

/// Files between two queue pairs, as another process of the same user can open them.
fn files_of(device: &ShmDevice, ends: [Qpn; 2]) -> Vec<(PathBuf, File, u64)> {
    let entries = device.path().read_dir().expect("the directory of the host exists");
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.expect("the directory of the host exists").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        // Digits within a nonce are not queue pair numbers.
        let numbers: Vec<u16> = name.split('-').filter_map(|part| part.parse().ok()).collect();
        let between =
            numbers.len() >= 2 && numbers[..2].iter().all(|qpn| ends.contains(&Qpn(*qpn)));
        if between
            && let Ok(file) = OpenOptions::new().write(true).open(&path)
            && let Ok(metadata) = file.metadata()
        {
            files.push((path, file, metadata.len()));
        }
    }
    files.sort_by(|one, other| one.0.cmp(&other.0));
    files
}

pub(crate) fn shm(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let place = TempDir::new_in(memory()).expect("shared memory is available");
    let options = ShmOptions::new("hostile").with(|options| {
        options.directory = Some(place.path().join("hosts"));
        options.mtu = MTU;
        options.ring_slots = 4;
        options.rnr_delay = Duration::from_micros(1);
    });
    let device = ShmDevice::open(options).expect("shared memory is available");
    let end = || -> End<ShmQueuePair> {
        let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(KEY));
        End::new(device.create_queue_pair(options).expect("within the limits"), 8)
    };
    let (mut subject, mut hostile, mut honest) = (end(), end(), end());
    let mut now = Time::ZERO;
    // Creates the rings.
    let addresses = [subject.address, hostile.address, honest.address];
    subject.send(addresses[1], b"first");
    hostile.send(addresses[0], b"first");
    // The files are unlinked when both sides have opened them.
    let files = files_of(&device, [addresses[0].qpn, addresses[1].qpn]);
    assert_eq!(files.len(), 2, "one ring in each direction");
    for _ in 0..4 {
        subject.poll(now);
        hostile.poll(now);
    }
    let mut number = 0_u32;
    for _ in 0..60 {
        if input.is_empty() {
            break;
        }
        match input.below(6) {
            0 | 1 => {
                let (_, file, length) = &files[input.below(files.len())];
                let near = input.pick(&[128, 256, 384, 512, 520, 528, 536, 0, 8, 16, 24, 832]);
                let offset = if input.one_in(4) { input.number(2) } else { near };
                let value = input.about(input.clone().number(1));
                if offset + 8 <= *length {
                    let _ = file.write_all_at(&value.to_le_bytes(), offset);
                }
            }
            2 => subject.send(addresses[1], &[1; MTU][..input.below(MTU + 1)]),
            3 => hostile.send(addresses[0], &[2; MTU][..input.below(MTU + 1)]),
            4 => {
                // Both directions with the honest queue pair, at once.
                number += 1;
                let payload = number.to_le_bytes();
                honest.send(addresses[0], &payload);
                subject.send(addresses[2], &payload);
                now += Duration::from_micros(1);
                let mut received = [false; 2];
                for _ in 0..20 {
                    received[0] |= subject.poll(now).iter().any(|bytes| *bytes == payload);
                    received[1] |= honest.poll(now).iter().any(|bytes| *bytes == payload);
                }
                assert_eq!(received, [true; 2], "packets with the honest queue pair do not arrive");
            }
            _ => {
                now += Duration::from_millis(input.byte().into());
                subject.poll(now);
                hostile.poll(now);
            }
        }
    }
    for _ in 0..10 {
        now += Duration::from_secs(1);
        subject.poll(now);
        honest.poll(now);
    }
    assert!(
        honest.pending.is_empty(),
        "{:?} of the honest queue pair do not complete",
        honest.pending
    );
}

/// Reads and discards the available bytes.
fn drain(stream: &mut TcpStream) {
    let mut bytes = [0; 4096];
    while matches!(stream.read(&mut bytes), Ok(1..)) {}
}

/// Bytes in the format of the link: a greeting of this queue pair with the key of all, then frames and responses, most of them correct, and
/// mostly responses if it `answers`.
fn frames(input: &mut Input<'_>, number: u16, answers: bool) -> Vec<u8> {
    let mut bytes = GREETING.to_vec();
    bytes[6..8].copy_from_slice(&number.to_le_bytes());
    bytes[12..].copy_from_slice(&KEY.to_le_bytes());
    if input.one_in(8) {
        let place = input.below(bytes.len());
        bytes[place] ^= input.byte();
    }
    let (mut sequence, mut answered) = (0, 0);
    for _ in 0..20 {
        if input.is_empty() {
            break;
        }
        if input.one_in(8) {
            bytes.extend_from_slice(input.take(20));
            continue;
        }
        if answers != input.one_in(8) {
            let kind = input.pick(&[6, 6, 8, 7, 9, 0, 10]);
            let count = input.about(1) as u16;
            bytes.extend([kind, input.byte() % 20]);
            bytes.extend(count.to_le_bytes());
            bytes.extend(input.about32(answered).to_le_bytes());
            answered += u32::from(count);
            if kind == 8 {
                bytes.resize(bytes.len() + usize::from(count % 512), 7);
            }
            continue;
        }
        let kind = input.pick(&[1, 2, 3, 4, 5, 0, 11]);
        let length = input.pick(&[8_u32, 4, 12, 0, 40, MTU as u32, 100]);
        bytes.extend([kind, input.byte() % 8, 0, 0]);
        bytes.extend(input.about32(length).to_le_bytes());
        bytes.extend(input.about32(sequence).to_le_bytes());
        bytes.extend(input.about32(KEY).to_le_bytes());
        bytes.resize(bytes.len() + length as usize, input.byte());
        sequence += 1;
    }
    bytes
}

const GREETING: &[u8; 16] = b"EfaS\x05\0\x34\x12\0\x01\0\0\0\0\0\0";

/// A loopback address that was not used recently. The system keeps a closed connection for a minute;
/// on a single address these use up all ports, and the search for a free port becomes slow.
fn next_host() -> Ipv4Addr {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    // Concurrent processes start at different addresses.
    let place = std::process::id().wrapping_mul(0x9e37_79b1) >> 8;
    let place = place.wrapping_add(RUNS.fetch_add(1, Ordering::Relaxed)) % 0x00ff_fffe;
    Ipv4Addr::from_bits(0x7f00_0001 + place)
}

pub(crate) fn tcp(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let host = next_host();
    let options = TcpOptions::new(host).with(|options| {
        options.mtu = MTU;
        options.max_peers = 4;
        options.rnr_delay = Duration::from_micros(1);
    });
    let device = TcpDevice::open(options).expect("the loopback interface exists");
    let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(KEY));
    let queue_pair = device.create_queue_pair(options).expect("a port is free");
    let access = Access { remote_read: true, remote_write: true };
    let memory = device.register(vec![3; 64].into(), access).expect("within the limits");
    let mut subject = End::new(queue_pair, 8);
    let mut now = Time::ZERO;
    match input.below(3) {
        0 => connect_to_stranger(input, &mut subject, &memory, host, &mut now),
        1 => accept_stranger(input, &mut subject, &memory, host, &mut now),
        _ => accept_crowd(input, &mut subject, host, &mut now),
    }
    // The queue pair still works, and all its operations complete.
    let own = subject.address;
    subject.send(own, b"alive");
    let mut alive = false;
    for _ in 0..200 {
        now += Duration::from_millis(500);
        alive |= subject.poll(now).iter().any(|bytes| bytes == b"alive");
        if alive && subject.pending.is_empty() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("queue pair works: {alive}, pending: {:?}", subject.pending);
}

/// The subject begins a send, read or write.
fn begin_any(
    input: &mut Input<'_>,
    subject: &mut End<TcpQueuePair>,
    to: QueuePairAddress,
    memory: &SoftRegion,
) {
    match input.below(3) {
        0 => subject.send(to, &[1; 60]),
        1 => subject.access(to, memory, false, input.byte().into()),
        _ => subject.access(to, memory, true, input.byte().into()),
    }
}

/// The subject connects to the other end, also again and again when it is turned away.
fn connect_to_stranger(
    input: &mut Input<'_>,
    subject: &mut End<TcpQueuePair>,
    memory: &SoftRegion,
    host: Ipv4Addr,
    now: &mut Time,
) {
    let listener = TcpListener::bind((host, 0)).expect("a port is free");
    listener.set_nonblocking(true).expect("the socket becomes nonblocking");
    let port = listener.local_addr().expect("it has an address").port();
    let to = QueuePairAddress { qpn: Qpn(port), ..subject.address };
    for _ in 0..1 + input.below(4) {
        begin_any(input, subject, to, memory);
    }
    let mut streams = Vec::new();
    for attempt in 0..4 {
        // A first try is made at once; another one is after 5 ms or later.
        let polls = if attempt == 0 { 1000 } else { 40 };
        for _ in 0..polls {
            subject.poll(*now);
            if attempt > 0 {
                *now += Duration::from_millis(20);
            }
            match listener.accept() {
                Ok((accepted, _)) => {
                    streams.push(accepted);
                    break;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        if streams.len() <= attempt {
            break;
        }
        let stream = &mut streams[attempt];
        stream.set_nonblocking(true).expect("the socket becomes nonblocking");
        // The hello is written in polls.
        for _ in 0..4 {
            subject.poll(*now);
        }
        let _ = stream.write_all(&frames(input, port, true));
        for _ in 0..10 {
            subject.poll(*now);
            drain(stream);
        }
    }
}

/// The other end connects to the subject, which may send to it on this connection.
fn accept_stranger(
    input: &mut Input<'_>,
    subject: &mut End<TcpQueuePair>,
    memory: &SoftRegion,
    host: Ipv4Addr,
    now: &mut Time,
) {
    let to = (host, subject.address.qpn.0);
    let mut stream = TcpStream::connect(to).expect("the queue pair listens");
    stream.set_nonblocking(true).expect("the socket becomes nonblocking");
    let is_peer = input.one_in(2);
    let port = stream.local_addr().expect("it has an address").port();
    let number = if is_peer { port } else { 0x1234 };
    let answers = is_peer && input.one_in(2);
    let bytes = frames(input, number, answers);
    let (first, rest) = bytes.split_at(if is_peer { GREETING.len() } else { bytes.len() });
    let _ = stream.write_all(first);
    if is_peer {
        let to = QueuePairAddress { qpn: Qpn(port), ..subject.address };
        for _ in 0..1 + input.below(4) {
            begin_any(input, subject, to, memory);
            subject.poll(*now);
        }
    }
    let _ = stream.write_all(rest);
    for _ in 0..10 {
        *now += Duration::from_micros(1);
        for came in subject.poll(*now) {
            assert!(came.len() <= MTU);
        }
        drain(&mut stream);
    }
}

/// Strangers connect to the subject and stop anywhere, while an honest queue pair of their address or of
/// another one sends to it.
fn accept_crowd(
    input: &mut Input<'_>,
    subject: &mut End<TcpQueuePair>,
    host: Ipv4Addr,
    now: &mut Time,
) {
    let own = if input.one_in(2) { host } else { next_host() };
    let options = TcpOptions::new(own).with(|options| options.mtu = MTU);
    let device = TcpDevice::open(options).expect("the loopback interface exists");
    let endless = QueuePairOptions::default().with(|options| options.rnr_retry = 7);
    let queue_pair = device.create_queue_pair(endless).expect("a port is free");
    let mut honest = End::new(queue_pair, 8);
    let target = subject.address;
    let (mut sent, mut received) = (0_u32, 0_u32);
    let mut strangers = Vec::new();
    let mut take = |came: Vec<Vec<u8>>| {
        for bytes in came {
            if let Some(number) = bytes.strip_prefix(b"honest") {
                assert_eq!(number, received.to_le_bytes(), "in order, and once");
                received += 1;
            }
        }
        received
    };
    for _ in 0..40 {
        if input.is_empty() {
            break;
        }
        match input.below(6) {
            0 | 1 if strangers.len() < 12 => {
                let to = (host, target.qpn.0);
                let mut stream = TcpStream::connect(to).expect("the queue pair listens");
                stream.set_nonblocking(true).expect("the socket becomes nonblocking");
                let bytes = frames(input, 0x1234, false);
                let length = input.below(bytes.len() + 1);
                let _ = stream.write_all(&bytes[..length]);
                strangers.push((stream, bytes[length..].to_vec()));
            }
            2 if !strangers.is_empty() => {
                let place = input.below(strangers.len());
                let (stream, rest) = &mut strangers[place];
                let more = input.below(rest.len() + 1);
                let _ = stream.write_all(&rest[..more]);
                rest.drain(..more);
                drain(stream);
                if input.one_in(4) {
                    strangers.swap_remove(place);
                }
            }
            3 => {
                honest.send(target, &[&b"honest"[..], &sent.to_le_bytes()].concat());
                sent += 1;
            }
            4 => *now += Duration::from_millis(u64::from(input.byte()) * 50),
            _ => *now += Duration::from_micros(100),
        }
        take(subject.poll(*now));
        honest.poll(*now);
    }
    for _ in 0..1000 {
        *now += Duration::from_millis(10);
        let received = take(subject.poll(*now));
        honest.poll(*now);
        if received == sent && honest.pending.is_empty() {
            return;
        }
        std::thread::yield_now();
    }
    let received = take(Vec::new());
    panic!("{received} of {sent} arrived, pending: {:?}", honest.pending);
}

//! The links `shm` and `tcp`.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use efa::sim::{SharedSink, Trace};
use efa::{
    Access, Address, AddressVector, Buffer, Capabilities, Clock, CompletionQueue,
    CompletionQueueOptions, Config, Direction, Domain, Endpoint, EndpointOptions, Fabric, Link,
    LocalAccess, Message, OperationError, Receive, ReceiveBuffer, Receiving, Release, ShmOptions,
    TcpOptions, WaitError,
};
use efa_device::Time;
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use crate::world::pattern;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A directory for the shm network of one test.
struct Host(TempDir);

impl Host {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn fabric(&self) -> Fabric {
        let directory = Some(self.0.path().join("hosts"));
        Fabric::shm(ShmOptions::new("test").with(|options| options.directory = directory))
    }
}

/// An endpoint with default options.
fn endpoint(domain: &Domain, queue: &CompletionQueue, addresses: &AddressVector) -> Endpoint {
    let builder = domain.endpoint(EndpointOptions::default());
    let builder = builder.bind_completion_queue(queue, Direction::Both);
    builder.bind_address_vector(addresses).enable().unwrap()
}

// conformance: C139
#[test]
fn two_fabrics_exchange_messages_over_shm() {
    let host = Host::new();
    exchange_messages(|| host.fabric(), Link::Shm);
}

#[test]
fn two_fabrics_exchange_messages_over_tcp() {
    exchange_messages(|| Fabric::tcp(TcpOptions::new([127, 0, 0, 1])), Link::Tcp);
}

fn exchange_messages(open: impl Fn() -> Fabric + Sync, link: Link) {
    const ROUNDS: u64 = 50;
    let length = |i: u64| [0, 10, 9_000, 70_000, 300_000][i as usize % 5];
    let (to_alice, from_bob) = std::sync::mpsc::channel::<Address>();
    let (to_bob, from_alice) = std::sync::mpsc::channel::<Address>();
    // Each side has a fabric of its own, as two processes would.
    let exchange = |serves: bool,
                    own_address: std::sync::mpsc::Sender<Address>,
                    peer_address: std::sync::mpsc::Receiver<Address>| {
        let fabric = open();
        assert_eq!(fabric.link(), link);
        let domain = fabric.domain().unwrap();
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = endpoint(&domain, &queue, &addresses);
        own_address.send(endpoint.address()).unwrap();
        let peer = addresses.insert(peer_address.recv().unwrap()).unwrap();
        for i in 0..ROUNDS {
            endpoint.receive(Receive::tagged(i).from(peer), vec![0; 300_000], i).unwrap();
        }
        let serve =
            |i| endpoint.send(Message::to(peer).tagged(i), pattern(length(i), i), i).unwrap();
        if serves {
            serve(0);
        }
        let mut received = 0;
        while received < ROUNDS {
            let completion = queue.wait(TIMEOUT).unwrap();
            if completion.is_received() {
                assert_eq!((completion.context, completion.peer), (received, Some(peer)));
                assert_eq!(completion.into_message(), pattern(length(received), received));
                // The server sends the next message, the other side answers.
                match serves {
                    true if received + 1 < ROUNDS => serve(received + 1),
                    true => {}
                    false => serve(received),
                }
                received += 1;
            }
        }
        endpoint.close(TIMEOUT).unwrap();
    };
    thread::scope(|scope| {
        scope.spawn(|| exchange(true, to_bob, from_bob));
        scope.spawn(|| exchange(false, to_alice, from_alice));
    });
}

#[test]
fn in_place_messages_arrive_over_shm_and_tcp() {
    let host = Host::new();
    for fabric in [host.fabric(), Fabric::tcp(TcpOptions::new([127, 0, 0, 1]))] {
        let domain = fabric.domain().unwrap();
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let enable = |options| {
            let builder = domain.endpoint(options).bind_completion_queue(&queue, Direction::Both);
            builder.bind_address_vector(&addresses).enable().unwrap()
        };
        for release in [Release::V1_20, Release::V2_0] {
            let mut options = EndpointOptions::default();
            options.protocol.messages_after_handshake = true;
            let alice = enable(options);
            let bob = enable(
                EndpointOptions::new()
                    .capabilities(Capabilities::MSG)
                    .receiving(Receiving::InPlace)
                    .protocol(Config::as_release(release)),
            );
            let to_bob = addresses.insert(bob.address()).unwrap();
            let mut packet = bob.packet().unwrap();
            for length in [8, packet.capacity(), 0] {
                bob.receive_in_place(packet, 1).unwrap();
                let data = pattern(length, length as u64);
                alice.send(Message::to(to_bob), data.clone(), 2).unwrap();
                let ended = [(); 2].map(|()| queue.wait(TIMEOUT).unwrap());
                let received = ended.into_iter().find(|ended| ended.is_received()).unwrap();
                assert_eq!(received.buffer.as_slice(), Some(&data[..]), "{release}");
                packet = received.buffer.into_packet().unwrap();
            }
            assert_eq!(bob.statistics().unexpected, 0, "{release}");
            alice.close(TIMEOUT).unwrap();
        }
    }
}

#[test]
fn address_sent_as_text_reaches_the_endpoint() {
    let host = Host::new();
    let domain = host.fabric().domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let endpoint = || endpoint(&domain, &queue, &addresses);
    let (alice, bob) = (endpoint(), endpoint());
    let parsed: Address = bob.address().to_string().parse().unwrap();
    let to_bob = addresses.insert(parsed).unwrap();
    bob.receive(Receive::untagged(), vec![0; 100_000], 1).unwrap();
    alice.send(Message::to(to_bob), pattern(100_000, 1), 2).unwrap();
    let mut contexts = [queue.wait(TIMEOUT).unwrap(), queue.wait(TIMEOUT).unwrap()].map(|done| {
        assert_eq!(done.buffer, pattern(100_000, 1));
        done.context
    });
    contexts.sort_unstable();
    assert_eq!(contexts, [1, 2]);
}

#[test]
fn new_connection_on_an_old_fabric_does_not_time_out() {
    let origin = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
    let fabric = Fabric::tcp(TcpOptions::new(Ipv4Addr::LOCALHOST)).with_clock(Clock::Host(origin));
    let domain = fabric.domain().unwrap();
    let addresses = domain.address_vector();
    let queues = [(); 2].map(|()| domain.completion_queue(CompletionQueueOptions::default()));
    let [alice, bob] = queues.each_ref().map(|queue| endpoint(&domain, queue, &addresses));
    // While an operation is under way every read polls the sockets. Bob is not polled.
    let to_bob = addresses.insert(bob.address()).unwrap();
    alice.send(Message::to(to_bob), "hello", 1).unwrap();
    let mut carol = TcpStream::connect((Ipv4Addr::LOCALHOST, alice.address().qpn().0)).unwrap();
    let hello = *b"EfaS\x05\0\x34\x12\0\x01\0\0\0\0\0\0";
    carol.write_all(&hello[..8]).unwrap();
    for _ in 0..100 {
        assert!(queues[0].read().is_none());
    }
    carol.set_nonblocking(true).unwrap();
    let mut answer = Vec::new();
    let end = carol.read_to_end(&mut answer).map_err(|error| error.kind());
    // Alice has said hello, and not that she closes the connection.
    assert_eq!((&answer[..6], answer.len()), (&hello[..6], hello.len()));
    assert_eq!(end, Err(ErrorKind::WouldBlock));
}

#[test]
fn captured_packets_bear_the_hosts_monotonic_time_also_before_the_first_poll() {
    let now = || {
        let time = clock_gettime(ClockId::Monotonic);
        Time::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    };
    let directory = TempDir::new().unwrap();
    let trace = Trace::new();
    let capture = Some(SharedSink::new(trace.clone()));
    let shm = Fabric::shm(ShmOptions::new("test").with(|options| {
        options.directory = Some(directory.path().join("hosts"));
        options.capture = capture.clone();
    }));
    let tcp = TcpOptions::new(Ipv4Addr::LOCALHOST).with(|options| options.capture = capture);
    for fabric in [shm, Fabric::tcp(tcp)] {
        let begin = now();
        let domain = fabric.domain().unwrap();
        let addresses = domain.address_vector();
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let alice = endpoint(&domain, &queue, &addresses);
        let to_self = addresses.insert(alice.address()).unwrap();
        alice.send(Message::to(to_self), "hello", 1).unwrap();
        alice.receive(Receive::untagged(), vec![0; 5], 2).unwrap();
        for _ in 0..2 {
            queue.wait(TIMEOUT).unwrap();
        }
        let (records, end) = (trace.take(), now());
        assert!(records.len() >= 2, "{records:?}");
        let inexact = Duration::from_millis(1);
        for record in records {
            let is_between = record.time + inexact >= begin && record.time <= end + inexact;
            assert!(is_between, "{record:?} not from {begin:?} to {end:?}");
        }
    }
}

/// The link of three endpoints on one host, of which each takes packets from `max_peers` others.
fn tcp(max_peers: usize) -> Fabric {
    let options = TcpOptions::new(Ipv4Addr::LOCALHOST);
    Fabric::tcp(options.with(|options| options.max_peers = max_peers))
}

#[test]
fn close_succeeds_when_the_peer_stops_reading_after_its_last_message_over_tcp() {
    let domain = tcp(256).domain().unwrap();
    let addresses = domain.address_vector();
    let queues = [(); 2].map(|()| domain.completion_queue(CompletionQueueOptions::default()));
    let [alice, bob] = queues.each_ref().map(|queue| endpoint(&domain, queue, &addresses));
    let to_bob = addresses.insert(bob.address()).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    for round in 0..3 {
        bob.receive(Receive::untagged(), vec![0; 5], round).unwrap();
        alice.send(Message::to(to_bob), "hello", round).unwrap();
        // Bob reads until he has the message, and no further.
        while queues[1].read().is_none() {
            assert!(Instant::now() < deadline, "the message doesn't arrive");
            let _ = queues[0].read();
        }
        if round == 0 {
            // Each has the other's HANDSHAKE.
            for _ in 0..500 {
                queues.iter().for_each(|queue| drop(queue.read()));
            }
        }
    }
    alice.close(Duration::from_secs(5)).unwrap();
    drop(bob);
}

/// With connections for one sender only, the second waits for the first to be idle, and a third for both.
#[test]
fn peers_without_room_over_tcp_wait_and_are_not_lost() {
    let domain = tcp(1).domain().unwrap();
    let addresses = domain.address_vector();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let endpoints = [(); 4].map(|()| endpoint(&domain, &queue, &addresses));
    let [target, senders @ ..] = &endpoints;
    let to = addresses.insert(target.address()).unwrap();
    let mut received = [0; 3];
    for round in 0..2 {
        for (context, sender) in (0..).zip(senders) {
            target.receive(Receive::tagged(context), vec![0; 40_000], context).unwrap();
            let message = pattern(40_000, context + round);
            sender.send(Message::to(to).tagged(context), message, context).unwrap();
        }
        for _ in 0..6 {
            let completion = queue.wait(TIMEOUT).unwrap();
            if completion.is_received() {
                received[completion.context as usize] += 1;
                let context = completion.context;
                assert_eq!(completion.into_message(), pattern(40_000, context + round));
            }
        }
    }
    assert_eq!(received, [2; 3]);
}

/// Packets of 2 KiB and more are copied from the program's memory into the ring of the link, and from there into the memory
/// of their receive, unless they come before it.
#[test]
fn long_packets_reach_every_kind_of_buffer_over_shm_before_and_after_their_receive() {
    let host = Host::new();
    let domain = host.fabric().domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let [alice, bob] = [(); 2].map(|()| endpoint(&domain, &queue, &addresses));
    let to_bob = addresses.insert(bob.address()).unwrap();
    let exchange = |source: Buffer, target: ReceiveBuffer, is_late: bool| {
        let send = || alice.send(Message::to(to_bob).tagged(7), source, 1).unwrap();
        let receive = || bob.receive(Receive::tagged(7), target, 2).unwrap();
        if is_late {
            send();
            assert_eq!(queue.wait(TIMEOUT).unwrap().context, 1, "the message is kept");
            receive();
            return queue.wait(TIMEOUT).unwrap();
        }
        receive();
        send();
        let ended = [(); 2].map(|()| queue.wait(TIMEOUT).unwrap());
        ended.into_iter().find(|ended| ended.is_received()).unwrap()
    };
    for length in [2_000, 2_048, 3_000, 4_096, 8_000, 8_192, 8_850] {
        let data = pattern(length, length as u64);
        let registered = domain.register(data.clone(), Access::default()).unwrap();
        let allocated = domain.allocate(length, Access::default(), LocalAccess::all()).unwrap();
        allocated.write(0, &data);
        let (front, back) = data.split_at(1_000);
        let sources: [Buffer; 5] = [
            data.clone().into(),
            Bytes::from(data.clone()).into(),
            registered.slice(0..length).unwrap().into(),
            allocated.slice(0..length).unwrap().into(),
            Buffer::pieces([front.to_vec(), back.to_vec()]).unwrap(),
        ];
        for (number, source) in sources.into_iter().enumerate() {
            for is_late in [false, true] {
                let region = domain.register(vec![0; length + 50], Access::default()).unwrap();
                let pieces = [vec![0; 50], vec![0; length]];
                let targets: [ReceiveBuffer; 4] = [
                    vec![0; length].into(),
                    BytesMut::zeroed(length + 9).into(),
                    region.slice(50..length + 50).unwrap().into(),
                    ReceiveBuffer::pieces(pieces).unwrap(),
                ];
                for target in targets {
                    let received = exchange(source.clone(), target, is_late);
                    assert_eq!(received.into_message(), data, "{length}, {number}, {is_late}");
                }
            }
        }
        bob.receive(Receive::tagged(7), vec![0; length - 100], 2).unwrap();
        alice.send(Message::to(to_bob).tagged(7), data.clone(), 1).unwrap();
        let ended = [(); 2].map(|()| queue.wait(TIMEOUT));
        let failed = ended.into_iter().find_map(Result::err);
        let Some(WaitError::Failed(failed)) = failed else { panic!("{failed:?}") };
        let (length, capacity) = (length as u64, length as u64 - 100);
        assert_eq!(failed.error, OperationError::Truncated { length, capacity });
        assert_eq!(failed.completion.buffer, data[..capacity as usize]);
    }
    assert_eq!(bob.statistics().unexpected, 7 * 5 * 4);
}

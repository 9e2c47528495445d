//! The same program over every link that leaves the process.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use efa::{
    Address, Capabilities, Clock, CompletionQueueOptions, Config, Direction, EndpointOptions,
    Fabric, Link, Message, Receive, Receiving, Release, ShmOptions, TcpOptions,
};
use tempfile::TempDir;

use crate::world::pattern;

const PATIENCE: Duration = Duration::from_secs(30);

/// A host of one test.
struct Host(TempDir);

impl Host {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn fabric(&self) -> Fabric {
        let directory = Some(self.0.path().join("hosts"));
        Fabric::shm(ShmOptions { directory, ..ShmOptions::new("test") })
    }
}

#[test]
fn two_threads_play_ping_pong_over_shared_memory() {
    let host = Host::new();
    play_ping_pong(|| host.fabric(), Link::Shm);
}

#[test]
fn two_threads_play_ping_pong_over_tcp() {
    play_ping_pong(|| Fabric::tcp(TcpOptions::new([127, 0, 0, 1])), Link::Tcp);
}

fn play_ping_pong(open: impl Fn() -> Fabric + Sync, link: Link) {
    const ROUNDS: u64 = 50;
    let length = |i: u64| [0, 10, 9_000, 70_000, 300_000][i as usize % 5];
    let (tell_alice, addresses_of_bob) = std::sync::mpsc::channel::<Address>();
    let (tell_bob, addresses_of_alice) = std::sync::mpsc::channel::<Address>();
    // Each side has a fabric of its own, as two processes would.
    let play = |serves: bool,
                tell: std::sync::mpsc::Sender<Address>,
                told: std::sync::mpsc::Receiver<Address>| {
        let fabric = open();
        assert_eq!(fabric.link(), link);
        let domain = fabric.domain().unwrap();
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()
            .unwrap();
        tell.send(endpoint.address()).unwrap();
        let peer = addresses.insert(told.recv().unwrap()).unwrap();
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
            let completion = queue.wait(PATIENCE).unwrap();
            if completion.is_received() {
                assert_eq!((completion.context, completion.peer), (received, Some(peer)));
                assert_eq!(completion.into_message(), pattern(length(received), received));
                // The server's next ball, or the other's return.
                match serves {
                    true if received + 1 < ROUNDS => serve(received + 1),
                    true => {}
                    false => serve(received),
                }
                received += 1;
            }
        }
        endpoint.close(PATIENCE).unwrap();
    };
    thread::scope(|scope| {
        scope.spawn(|| play(true, tell_bob, addresses_of_bob));
        scope.spawn(|| play(false, tell_alice, addresses_of_alice));
    });
}

#[test]
fn messages_are_received_in_place_over_every_link() {
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
                let ended = [(); 2].map(|()| queue.wait(PATIENCE).unwrap());
                let received = ended.into_iter().find(|ended| ended.is_received()).unwrap();
                assert_eq!(received.buffer.as_slice(), Some(&data[..]), "{release}");
                packet = received.buffer.into_packet().unwrap();
            }
            assert_eq!(bob.statistics().unexpected, 0, "{release}");
            alice.close(PATIENCE).unwrap();
        }
    }
}

#[test]
fn an_address_survives_being_told_as_text() {
    let host = Host::new();
    let domain = host.fabric().domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let endpoint = || {
        domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()
            .unwrap()
    };
    let (alice, bob) = (endpoint(), endpoint());
    let told: Address = bob.address().to_string().parse().unwrap();
    let to_bob = addresses.insert(told).unwrap();
    bob.receive(Receive::untagged(), vec![0; 100_000], 1).unwrap();
    alice.send(Message::to(to_bob), pattern(100_000, 1), 2).unwrap();
    let mut contexts = [queue.wait(PATIENCE).unwrap(), queue.wait(PATIENCE).unwrap()].map(|done| {
        assert_eq!(done.buffer, pattern(100_000, 1));
        done.context
    });
    contexts.sort_unstable();
    assert_eq!(contexts, [1, 2]);
}

/// A connection that is young is not late, however old the fabric.
#[test]
fn an_endpoint_of_an_old_fabric_knows_the_time() {
    let origin = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
    let fabric = Fabric::tcp(TcpOptions::new(Ipv4Addr::LOCALHOST)).with_clock(Clock::Host(origin));
    let domain = fabric.domain().unwrap();
    let addresses = domain.address_vector();
    let queues = [(); 2].map(|()| domain.completion_queue(CompletionQueueOptions::default()));
    let [alice, bob] = queues.each_ref().map(|queue| {
        domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()
            .unwrap()
    });
    // While something is under way the sockets are looked at in each read. Bob never answers.
    let to_bob = addresses.insert(bob.address()).unwrap();
    alice.send(Message::to(to_bob), "hello", 1).unwrap();
    let mut carol = TcpStream::connect((Ipv4Addr::LOCALHOST, alice.address().qpn().0)).unwrap();
    let hello = *b"EfaS\x02\0\x34\x12\0\x01\0\0\x07\0\0\0";
    carol.write_all(&hello[..8]).unwrap();
    for _ in 0..100 {
        assert!(queues[0].read().is_none());
    }
    carol.set_nonblocking(true).unwrap();
    let mut told = Vec::new();
    let end = carol.read_to_end(&mut told).map_err(|error| error.kind());
    assert_eq!((told.as_slice(), end), (&b"EfaR\x02\0\0\0"[..], Err(ErrorKind::WouldBlock)));
}

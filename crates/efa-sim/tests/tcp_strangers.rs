//! The tcp link while strangers hold or storm the connections of a queue pair.
//!
//! A victim has a peer that was connected before. The attack stays for a while and then leaves. New peers come
//! in during it and after it, within [`SOON`], and nobody's send fails. All polls are by the wall clock, and
//! the strangers have the address of the peers, unless a test says otherwise.

#![allow(clippy::unwrap_used)]

#[path = "common/tcp_bytes.rs"]
mod tcp_bytes;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use efa_device::*;
use efa_sim::tcp::{TcpDevice, TcpOptions, TcpQueuePair, TcpStatistics};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tcp_bytes::HELLO;

/// Limit for a hanging test.
const DEADLINE: Duration = Duration::from_secs(60);
/// How long a new peer may take for its first message.
const SOON: Duration = Duration::from_secs(3);
const KEY: Qkey = Qkey(0x77);
const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Descriptors that all tests of this program have open at a time, at most.
const DESCRIPTORS: u64 = 10_000;

/// Whether this process may have so many descriptors, and the system has the address; if not, says so.
fn is_possible(host: IpAddr) -> bool {
    let limit = getrlimit(Resource::Nofile);
    let may_have = |limit: Option<u64>| limit.is_none_or(|limit| limit >= DESCRIPTORS);
    if !may_have(limit.current) {
        let maximum = if may_have(limit.maximum) { limit.maximum } else { Some(DESCRIPTORS) };
        if let Err(error) =
            setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum })
        {
            eprintln!("skipped: not {DESCRIPTORS} descriptors, {limit:?}: {error}");
            return false;
        }
    }
    let listener = TcpListener::bind((host, 0));
    if let Err(error) = &listener {
        eprintln!("skipped: no address {host} here: {error}");
    }
    listener.is_ok()
}

fn queue_pair(host: IpAddr) -> TcpQueuePair {
    let options = TcpOptions::new(host).with(|options| options.mtu = 256);
    let options_of_pair = QueuePairOptions::default().with(|options| options.qkey = KEY);
    let mut qp = TcpDevice::open(options).unwrap().create_queue_pair(options_of_pair).unwrap();
    for _ in 0..64 {
        let packet = qp.allocate_packet().unwrap();
        qp.post_receive(packet).unwrap();
    }
    qp
}

/// A queue pair that sends one packet at a time to the victim.
struct Peer {
    qp: TcpQueuePair,
    to: Destination,
    delivered: u64,
}

impl Peer {
    fn new(host: IpAddr, victim: &TcpQueuePair) -> Self {
        let mut qp = queue_pair(host);
        let QueuePairAddress { gid, qpn, qkey } = victim.address();
        let address_handle = qp.create_address_handle(gid).unwrap();
        let mut peer = Self { qp, to: Destination { address_handle, qpn, qkey }, delivered: 0 };
        peer.send();
        peer
    }

    fn send(&mut self) {
        let packet = self.delivered.to_le_bytes();
        let request = SendRequest {
            id: WorkId(self.delivered),
            packet: packet.into(),
            length: 8,
            destination: self.to,
            immediate: None,
        };
        self.qp.post_send(request).unwrap();
    }

    /// Polls, and sends the next packet when one is delivered, as an engine does when it meets RNR.
    fn poll(&mut self, now: Time) {
        match self.qp.poll(now) {
            Some(Completion::Send { id, result: Ok(()), .. }) => {
                assert_eq!(id.0, self.delivered);
                self.delivered += 1;
                self.send();
            }
            Some(Completion::Send { result: Err(Status::ReceiverNotReady), .. }) => self.send(),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
}

/// A victim and its peers.
struct Scene {
    host: IpAddr,
    clock: Instant,
    victim: TcpQueuePair,
    /// Packets that the victim has received.
    received: u64,
    peers: Vec<Peer>,
}

impl Scene {
    /// With one peer that is connected.
    fn new(host: IpAddr) -> Self {
        let victim = queue_pair(host);
        let peer = Peer::new(host, &victim);
        let clock = Instant::now();
        let mut scene = Self { host, clock, victim, received: 0, peers: vec![peer] };
        scene.until(|scene| scene.peers[0].delivered > 10);
        scene
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.victim.address().qpn.0)
    }

    fn statistics(&self) -> TcpStatistics {
        self.victim.statistics()
    }

    fn step(&mut self) {
        let now = Time::ZERO + self.clock.elapsed();
        assert!(self.clock.elapsed() < DEADLINE, "no progress within the deadline");
        for _ in 0..8 {
            if let Some(completion) = self.victim.poll(now) {
                let Completion::Receive { packet, .. } = completion else {
                    panic!("{completion:?}")
                };
                self.received += 1;
                self.victim.post_receive(packet).unwrap();
            }
        }
        for peer in &mut self.peers {
            peer.poll(now);
        }
    }

    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        while !done(self) {
            self.step();
        }
    }

    /// New peers come one after the other, and each delivers ten packets. Returns the longest that one took
    /// for its first.
    fn new_peers_come_in(&mut self, count: usize) -> Duration {
        let mut longest = Duration::ZERO;
        for _ in 0..count {
            let start = Instant::now();
            let peer = Peer::new(self.host, &self.victim);
            self.peers.push(peer);
            self.until(|scene| scene.peers.last().is_some_and(|peer| peer.delivered > 0));
            longest = longest.max(start.elapsed());
            self.until(|scene| scene.peers.last().is_some_and(|peer| peer.delivered >= 10));
        }
        assert!(longest < SOON, "the first packet of a new peer took {longest:?}");
        longest
    }

    /// What holds whatever the strangers did: nobody's send failed, nothing came twice, and who was connected
    /// before is still, or again.
    fn check(mut self, what: &str) {
        let before: Vec<_> = self.peers.iter().map(|peer| peer.delivered).collect();
        self.until(|scene| {
            scene.peers.iter().zip(&before).all(|(peer, before)| peer.delivered >= before + 10)
        });
        let delivered = self.peers.iter().map(|peer| peer.delivered).sum::<u64>();
        let under_way = self.received - delivered;
        assert!(under_way <= self.peers.len() as u64, "{under_way} more arrived than were sent");
        eprintln!("{what}: {:?}", self.statistics());
    }
}

/// Connects without waiting for the victim to accept.
fn stranger(to: SocketAddr) -> TcpStream {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None).unwrap();
    let _ = connect(&socket, &to);
    TcpStream::from(socket)
}

/// Attacks with connections that write `bytes`, and stay open, then leave.
fn connections_are_held(host: IpAddr, count: usize, bytes: &[u8]) {
    if !is_possible(host) {
        return;
    }
    let mut scene = Scene::new(host);
    let mut strangers = Vec::new();
    for n in 0..count {
        let mut stranger = stranger(scene.address());
        // Over loopback it is connected at once unless the backlog is full.
        let _ = stranger.write_all(bytes);
        strangers.push(stranger);
        if n % 16 == 0 {
            scene.step();
        }
    }
    scene.until(|scene| {
        let TcpStatistics { accepts, rejected, .. } = scene.statistics();
        accepts + rejected >= count as u64
    });
    let held = scene.statistics().incoming;
    assert!(held >= count.min(250), "{held} are held");
    let during = scene.new_peers_come_in(10);
    drop(strangers);
    let after = scene.new_peers_come_in(5);
    let what = format!("{count} × {} bytes at {host}", bytes.len());
    scene.check(&format!("{what}: a new peer took up to {during:?}, afterwards {after:?}"));
}

fn half_frame() -> Vec<u8> {
    let mut frame = vec![1, 0, 0, 0, 90, 0, 0, 0, 0, 0, 0, 0, 0x77, 0, 0, 0];
    frame.resize(40, 0);
    [&HELLO[..], &frame].concat()
}

#[test]
fn new_peers_come_in_while_300_connections_have_said_hello() {
    connections_are_held(V4, 300, HELLO);
}

#[test]
fn new_peers_come_in_while_256_connections_hold_half_a_frame() {
    connections_are_held(V4, 256, &half_frame());
}

#[test]
fn new_peers_come_in_while_connections_of_ipv6_strangers_are_held() {
    connections_are_held(V6, 300, HELLO);
    connections_are_held(V6, 256, &half_frame());
}

#[test]
fn new_peers_come_in_while_5000_silent_connections_come_and_stay() {
    for host in [V4, V6].into_iter().filter(|host| is_possible(*host)) {
        let mut scene = Scene::new(host);
        let mut strangers = Vec::new();
        let mut during = Duration::ZERO;
        for n in 1..=5000 {
            strangers.push(stranger(scene.address()));
            if n % 32 == 0 {
                scene.step();
            }
            if n % 1000 == 0 {
                during = during.max(scene.new_peers_come_in(1));
            }
        }
        during = during.max(scene.new_peers_come_in(5));
        drop(strangers);
        let after = scene.new_peers_come_in(5);
        let what = format!("5000 silent connections at {host}");
        scene.check(&format!("{what}: a new peer took up to {during:?}, afterwards {after:?}"));
    }
}

/// Peers that know the key hold all connections, idle, and share the address with the new peers.
#[test]
fn new_peers_come_in_while_all_connections_are_of_idle_peers() {
    if !is_possible(V4) {
        return;
    }
    let mut scene = Scene::new(V4);
    let mut datagram = half_frame();
    datagram.resize(HELLO.len() + 16 + 90, 0);
    let mut strangers = Vec::new();
    for _ in 0..300 {
        let mut stranger = stranger(scene.address());
        let _ = stranger.write_all(&datagram);
        strangers.push(stranger);
        scene.step();
    }
    let later = scene.clock.elapsed() + Duration::from_secs(1);
    scene.until(|scene| scene.clock.elapsed() > later);
    let received = scene.received;
    scene.received = scene.peers[0].delivered;
    assert!(received - scene.received >= 250, "{received}");
    assert!(scene.statistics().incoming >= 250);
    scene.new_peers_come_in(10);
    drop(strangers);
    scene.new_peers_come_in(5);
    scene.check("300 idle peers");
}

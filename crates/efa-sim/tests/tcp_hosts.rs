//! The tcp link between two hosts, with a process on each: traffic, and a peer that is killed, stopped,
//! restarted or disconnected.
//!
//! The hosts are two loopback addresses, or two network namespaces joined by a veth pair, which needs root
//! and `ip` of iproute2. A process of this test program plays the first host: it runs the test
//! `hosts_exchange_messages_over_tcp`, which starts processes on the second host that run one of the
//! `child_…` functions. All exit after [`DEADLINE`], and are killed and reaped when their parent exits.

#![allow(clippy::unwrap_used)]

#[path = "common/namespaces.rs"]
mod namespaces;

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use efa_device::*;
use efa_sim::tcp::{TcpDevice, TcpOptions, TcpQueuePair, TcpStatistics};
use namespaces::Namespaces;
use rustix::process::{Pid, Signal, kill_process};

/// A guard against hanging; nothing is expected to take a noticeable part of it.
const DEADLINE: Duration = Duration::from_secs(60);
const KEY: Qkey = Qkey(0x77);
const MTU: usize = 8928;

/// Retries without end.
struct Side {
    qp: TcpQueuePair,
    start: Instant,
}

impl Side {
    fn new(options: TcpOptions, receives: usize) -> Self {
        let patient = QueuePairOptions::default().with(|options| {
            options.qkey = KEY;
            options.rnr_retry = 7;
            options.send_depth = 4096;
        });
        let mut qp = TcpDevice::open(options).unwrap().create_queue_pair(patient).unwrap();
        for _ in 0..receives {
            let packet = qp.allocate_packet().unwrap();
            qp.post_receive(packet).unwrap();
        }
        Self { qp, start: Instant::now() }
    }

    fn destination(&mut self, gid: Gid, qpn: Qpn) -> Destination {
        let address_handle = self.qp.create_address_handle(gid).unwrap();
        Destination { address_handle, qpn, qkey: KEY }
    }

    fn send(&mut self, destination: Destination, id: u64, bytes: &[u8]) {
        let request = SendRequest {
            id: WorkId(id),
            packet: bytes.into(),
            length: bytes.len(),
            destination,
            immediate: None,
        };
        self.qp.post_send(request).map_err(|refused| refused.error).unwrap();
    }

    fn poll(&mut self) -> Option<Completion<Box<[u8]>>> {
        let elapsed = self.start.elapsed();
        assert!(elapsed < DEADLINE, "nothing happens");
        let completion = self.qp.poll(Time::ZERO + elapsed);
        if completion.is_none() {
            // The other side may need this processor.
            std::thread::yield_now();
        }
        completion
    }

    fn wait(&mut self) -> Completion<Box<[u8]>> {
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
        }
    }

    fn until(&mut self, done: impl Fn(TcpStatistics) -> bool) {
        while !done(self.qp.statistics()) {
            assert!(self.poll().is_none(), "nothing was to come");
        }
    }

    /// Waits for `count` sends to complete; other completions fail the test.
    fn ended(&mut self, count: usize) -> Vec<Result<(), Status>> {
        let ended = (0..count).map(|_| match self.wait() {
            Completion::Send { result, .. } => result,
            other => panic!("{other:?}"),
        });
        ended.collect()
    }

    /// Waits for a packet and reposts its buffer; sends may complete before.
    fn received(&mut self) -> (Vec<u8>, Source) {
        loop {
            match self.wait() {
                Completion::Receive { packet, length, source, .. } => {
                    let bytes = packet[..length].to_vec();
                    self.qp.post_receive(packet).unwrap();
                    return (bytes, source);
                }
                Completion::Send { result, .. } => assert_eq!(result, Ok(())),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A packet of its number, repeated, so that a receiver can check it.
fn pattern(number: u64) -> Vec<u8> {
    let length = 8 + (number as usize * 104) % (MTU - 8);
    number.to_le_bytes().repeat(length / 8)
}

fn check_pattern(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == pattern(number), "packet {number}");
    number
}

/// Two hosts, and how to run a program on the second.
struct Hosts {
    first: IpAddr,
    second: IpAddr,
    /// The namespace of the second.
    namespace: Option<String>,
}

impl Hosts {
    fn options(&self) -> TcpOptions {
        TcpOptions::new(self.first)
    }
}

/// This program, to run the ignored test `name`, in a network namespace perhaps.
fn this_program(namespace: Option<&str>, name: &str) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = match namespace {
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace]).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args([name, "--exact", "--ignored", "--nocapture"]);
    command
}

/// A process on the second host, killed and reaped when dropped.
struct Child {
    process: std::process::Child,
    gid: Gid,
    qpn: Qpn,
}

impl Child {
    /// Runs `child_<role>`, on this number if it is not 0.
    fn start(hosts: &Hosts, role: &str, number: Qpn) -> Self {
        let mut process = this_program(hosts.namespace.as_deref(), &format!("child_{role}"))
            .env("EFA_SIM_ADDRESS", hosts.second.to_string())
            .env("EFA_SIM_NUMBER", number.0.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            // The test harness may have begun the line.
            let line = line.ok()?;
            let (gid, qpn) = line.split_once("efa queue pair ")?.1.split_once(' ')?;
            let gid = gid.parse::<std::net::Ipv6Addr>().ok()?;
            Some((Gid(gid.octets()), Qpn(qpn.trim().parse().ok()?)))
        });
        let mut child = Self { process, gid: Gid::ZERO, qpn: Qpn(0) };
        (child.gid, child.qpn) = address.expect("the child prints its address");
        // Kept open: the child writes more.
        std::thread::spawn(move || lines.for_each(drop));
        child
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Waits for its end, while `side` answers what it still has sent.
    fn finish(mut self, side: &mut Side) {
        let ended = loop {
            match self.process.try_wait().unwrap() {
                Some(ended) => break ended,
                None => drop(side.poll()),
            }
        };
        assert!(ended.success());
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The child's side; `None` if this is no child.
fn child(receives: usize) -> Option<Side> {
    let address = std::env::var("EFA_SIM_ADDRESS").ok()?.parse::<IpAddr>().unwrap();
    let number = std::env::var("EFA_SIM_NUMBER").unwrap().parse().unwrap();
    let ports = (number > 0).then_some(number..=number);
    let side = Side::new(TcpOptions::new(address).with(|options| options.ports = ports), receives);
    let QueuePairAddress { gid, qpn, .. } = side.qp.address();
    println!("efa queue pair {gid} {}", qpn.0);
    Some(side)
}

/// Echoes packets until an empty one arrives.
#[test]
#[ignore = "a process of other tests"]
fn child_echo() {
    let Some(mut side) = child(16) else { return };
    let mut owed = 0;
    loop {
        match side.wait() {
            Completion::Send { result, .. } => {
                assert_eq!(result, Ok(()));
                owed -= 1;
            }
            Completion::Receive { length: 0, .. } => break,
            Completion::Receive { packet, length, source, .. } => {
                let back = match source.gid {
                    Some(gid) => side.destination(gid, source.qpn),
                    None => Destination {
                        address_handle: source.address_handle.unwrap(),
                        qpn: source.qpn,
                        qkey: KEY,
                    },
                };
                side.send(back, 0, &packet[..length]);
                side.qp.post_receive(packet).unwrap();
                owed += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    side.ended(owed);
}

/// Polls, and never posts a buffer.
#[test]
#[ignore = "a process of other tests"]
fn child_idle() {
    let Some(mut side) = child(0) else { return };
    let completion = side.wait();
    panic!("{completion:?}");
}

/// Sends packets without end to the sender of its first packet.
#[test]
#[ignore = "a process of other tests"]
fn child_stream() {
    let Some(mut side) = child(1) else { return };
    let (_, source) = side.received();
    let to = side.destination(source.gid.unwrap(), source.qpn);
    for number in 0.. {
        if number >= 64 {
            assert_eq!(side.ended(1), [Ok(())]);
        }
        side.send(to, number, &pattern(number));
    }
}

// ---- scenarios -------------------------------------------------------------------------------

fn packets_go_there_and_back(hosts: &Hosts) {
    let mut side = Side::new(hosts.options(), 16);
    let child = Child::start(hosts, "echo", Qpn(0));
    assert_ne!(child.gid, side.qp.address().gid);
    let to = side.destination(child.gid, child.qpn);
    for number in 0..1000 {
        side.send(to, number, &pattern(number));
        let (bytes, source) = side.received();
        assert_eq!((check_pattern(&bytes), source.qpn), (number, child.qpn));
        assert_eq!(source.address_handle, Some(to.address_handle));
    }
    side.send(to, 1000, b"");
    child.finish(&mut side);
}

fn many_are_under_way_both_ways(hosts: &Hosts) {
    let mut side = Side::new(hosts.options(), 16);
    let child = Child::start(hosts, "echo", Qpn(0));
    let to = side.destination(child.gid, child.qpn);
    for number in 0..2000 {
        side.send(to, number, &pattern(number));
    }
    for number in 0..2000 {
        assert_eq!(check_pattern(&side.received().0), number);
    }
    side.send(to, 2000, b"");
    child.finish(&mut side);
}

fn a_killed_receiver_is_noticed(hosts: &Hosts) {
    let mut side = Side::new(hosts.options(), 0);
    let mut child = Child::start(hosts, "idle", Qpn(0));
    let to = side.destination(child.gid, child.qpn);
    // More than the sockets hold, so that some are half written.
    for id in 0..4000 {
        side.send(to, id, &[7; MTU]);
    }
    for _ in 0..100 {
        assert!(side.poll().is_none());
    }
    child.kill();
    assert_eq!(side.ended(4000), vec![Err(Status::UnresponsiveRemote); 4000]);
    side.send(to, 4000, b"nobody listens");
    assert_eq!(side.ended(1), [Err(Status::BadDestinationQpn)]);
    assert_eq!(side.qp.statistics().outgoing, 0);
}

fn a_killed_sender_leaves_nothing_and_harms_nobody(hosts: &Hosts) {
    let mut side = Side::new(hosts.options(), 8);
    let mut child = Child::start(hosts, "stream", Qpn(0));
    let to = side.destination(child.gid, child.qpn);
    side.send(to, 1, b"go");
    for number in 0..500 {
        assert_eq!(check_pattern(&side.received().0), number);
    }
    child.kill();
    // The packets that it has sent still arrive, complete and in order.
    let mut number = 500;
    while side.qp.statistics().incoming > 0 {
        match side.poll() {
            Some(Completion::Receive { packet, length, .. }) => {
                assert_eq!(check_pattern(&packet[..length]), number);
                number += 1;
                side.qp.post_receive(packet).unwrap();
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    drop(child);
    side.until(|statistics| statistics.outgoing == 0);
}

fn a_process_started_again_on_the_same_number_is_reached(hosts: &Hosts) {
    let mut side = Side::new(hosts.options(), 16);
    let mut number = Qpn(0);
    for life in 0..4 {
        let mut child = Child::start(hosts, "echo", number);
        number = child.qpn;
        let to = side.destination(child.gid, child.qpn);
        for n in 0..10 {
            side.send(to, n, &pattern(life * 10 + n));
            assert_eq!(check_pattern(&side.received().0), life * 10 + n);
        }
        child.kill();
        // Sends whose responses were in flight may complete either way.
        while side.qp.statistics().outgoing > 0 {
            if let Some(completion) = side.poll() {
                assert!(matches!(completion, Completion::Send { .. }));
            }
        }
        while side.qp.next_event().is_some() {
            side.wait();
        }
    }
}

fn a_stopped_receiver_delays_and_loses_nothing(hosts: &Hosts) {
    let mut side = Side::new(hosts.options(), 16);
    let child = Child::start(hosts, "echo", Qpn(0));
    let to = side.destination(child.gid, child.qpn);
    side.send(to, 0, &pattern(0));
    side.received();
    child.signal(Signal::STOP);
    for number in 1..1000 {
        side.send(to, number, &pattern(number));
    }
    // Whether it stops at once is not known, but it doesn't end.
    let mut back = 1;
    for _ in 0..1000 {
        match side.poll() {
            Some(Completion::Receive { packet, length, .. }) => {
                assert_eq!(check_pattern(&packet[..length]), back);
                back += 1;
                side.qp.post_receive(packet).unwrap();
            }
            Some(Completion::Send { result, .. }) => assert_eq!(result, Ok(())),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    child.signal(Signal::CONT);
    for number in back..1000 {
        assert_eq!(check_pattern(&side.received().0), number);
    }
    side.send(to, 1000, b"");
    child.finish(&mut side);
}

/// Only between namespaces, where the interface can be taken down.
fn a_host_that_is_cut_off_is_noticed(hosts: &Hosts) {
    let Some(namespace) = &hosts.namespace else { return };
    let dead_after = Some(Duration::from_secs(1));
    let mut side = Side::new(hosts.options().with(|options| options.dead_after = dead_after), 16);
    let child = Child::start(hosts, "idle", Qpn(0));
    let to = side.destination(child.gid, child.qpn);
    side.send(to, 1, b"arrives, and is not answered");
    side.until(|statistics| statistics.outgoing == 1 && statistics.sends > 0);
    let down = ["-n", namespace, "link", "set", "efa", "down"];
    assert!(Command::new("ip").args(down).status().unwrap().success());
    side.send(to, 2, b"does not arrive");
    assert_eq!(side.ended(2), [Err(Status::UnresponsiveRemote); 2]);
    side.send(to, 3, b"is not even sent");
    assert_eq!(side.ended(1), [Err(Status::UnreachableRemote)]);
    let up = ["-n", namespace, "link", "set", "efa", "up"];
    assert!(Command::new("ip").args(up).status().unwrap().success());
}

/// Runs all scenarios between the hosts named by the environment.
#[test]
#[ignore = "a process of other tests"]
fn hosts_exchange_messages_over_tcp() {
    let Ok(first) = std::env::var("EFA_SIM_FIRST") else { return };
    let second = std::env::var("EFA_SIM_SECOND").unwrap();
    let namespace = std::env::var("EFA_SIM_NAMESPACE").ok();
    let hosts = Hosts { first: first.parse().unwrap(), second: second.parse().unwrap(), namespace };
    let scenarios: [fn(&Hosts); 7] = [
        packets_go_there_and_back,
        many_are_under_way_both_ways,
        a_killed_receiver_is_noticed,
        a_killed_sender_leaves_nothing_and_harms_nobody,
        a_process_started_again_on_the_same_number_is_reached,
        a_stopped_receiver_delays_and_loses_nothing,
        a_host_that_is_cut_off_is_noticed,
    ];
    scenarios.into_iter().for_each(|scenario| scenario(&hosts));
}

/// The process on the first host, killed and reaped when dropped.
struct Teller(std::process::Child);

impl Drop for Teller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run_scenarios(mut command: Command, first: &str, second: &str) {
    command.env("EFA_SIM_FIRST", first).env("EFA_SIM_SECOND", second);
    let mut teller = Teller(command.spawn().unwrap());
    assert!(teller.0.wait().unwrap().success(), "between {first} and {second}");
}

#[test]
fn two_loopback_addresses_act_as_two_hosts() {
    run_scenarios(this_program(None, "hosts_exchange_messages_over_tcp"), "127.0.0.1", "127.0.0.2");
}

#[test]
fn two_network_namespaces_act_as_two_hosts() {
    let Some(namespaces) = Namespaces::new() else { return };
    let [a, b] = namespaces.names();
    // In this order, as the addresses of IPv6 go when the cable is pulled.
    for (first, second) in [("fd77::1", "fd77::2"), ("10.77.0.1", "10.77.0.2")] {
        let mut command = this_program(Some(a), "hosts_exchange_messages_over_tcp");
        command.env("EFA_SIM_NAMESPACE", b);
        run_scenarios(command, first, second);
    }
}

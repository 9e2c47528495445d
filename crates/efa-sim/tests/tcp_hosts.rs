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
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Limit for a hanging test; a passing test takes a small fraction of it.
const DEADLINE: Duration = Duration::from_secs(60);
const KEY: Qkey = Qkey(0x77);
const MTU: usize = 8928;

/// A queue pair with infinite RNR retries and blocking helpers, driven by the wall clock.
struct Side {
    qp: TcpQueuePair,
    start: Instant,
}

impl Side {
    fn new(options: TcpOptions, receives: usize) -> Self {
        let infinite_retry = QueuePairOptions::default().with(|options| {
            options.qkey = KEY;
            options.rnr_retry = 7;
            options.send_depth = 4096;
        });
        let mut qp = TcpDevice::open(options).unwrap().create_queue_pair(infinite_retry).unwrap();
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
        assert!(elapsed < DEADLINE, "no progress within the deadline");
        let completion = self.qp.poll(Time::ZERO + elapsed);
        if completion.is_none() {
            // Let the other process run if both share a processor.
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
            assert!(self.poll().is_none(), "unexpected completion");
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

/// The packet number, repeated, so that a receiver can check that the packet is complete.
fn pattern(number: u64) -> Vec<u8> {
    let length = 8 + (number as usize * 104) % (MTU - 8);
    number.to_le_bytes().repeat(length / 8)
}

fn check_pattern(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == pattern(number), "packet {number}");
    number
}

/// The addresses of two hosts, and the network namespace of the second.
struct Hosts {
    first: IpAddr,
    second: IpAddr,
    /// `None` for two loopback addresses.
    namespace: Option<String>,
}

impl Hosts {
    fn options(&self) -> TcpOptions {
        TcpOptions::new(self.first)
    }
}

/// A command that runs the ignored test `name` of this program, in `namespace` if given.
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
    /// Runs `child_<role>`, with `number` as its queue pair number unless that is 0.
    fn start(hosts: &Hosts, role: &str, number: Qpn) -> Self {
        let mut process = this_program(hosts.namespace.as_deref(), &format!("child_{role}"))
            .env("EFA_SIM_ADDRESS", hosts.second.to_string())
            .env("EFA_SIM_NUMBER", number.0.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            // The test harness may already have printed the start of this line.
            let line = line.ok()?;
            let (gid, qpn) = line.split_once("efa queue pair ")?.1.split_once(' ')?;
            let gid = gid.parse::<std::net::Ipv6Addr>().ok()?;
            Some((Gid(gid.octets()), Qpn(qpn.trim().parse().ok()?)))
        });
        let mut child = Self { process, gid: Gid::ZERO, qpn: Qpn(0) };
        (child.gid, child.qpn) = address.expect("the child prints its address");
        // Keep reading: a closed pipe would fail the child's later output.
        std::thread::spawn(move || lines.for_each(drop));
        child
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Stops the process, and waits until all its threads have stopped.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.process);
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Waits for the process to exit, polling `side` so that the child's last sends complete.
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

/// The child's queue pair; `None` outside of a child process.
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
#[ignore = "child process started by other tests"]
fn child_echo() {
    let Some(mut side) = child(16) else { return };
    let mut pending_sends = 0;
    loop {
        match side.wait() {
            Completion::Send { result, .. } => {
                assert_eq!(result, Ok(()));
                pending_sends -= 1;
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
                pending_sends += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    side.ended(pending_sends);
}

/// Polls, and never posts a buffer.
#[test]
#[ignore = "child process started by other tests"]
fn child_idle() {
    let Some(mut side) = child(0) else { return };
    let completion = side.wait();
    panic!("{completion:?}");
}

/// Sends packets without end to the sender of its first packet.
#[test]
#[ignore = "child process started by other tests"]
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

/// Sends more than the sockets hold to the sender of its first packet, and drops its queue pair.
#[test]
#[ignore = "child process started by other tests"]
fn child_leave() {
    let Some(mut side) = child(1) else { return };
    let (_, source) = side.received();
    let to = side.destination(source.gid.unwrap(), source.qpn);
    for number in 0..60 {
        side.send(to, number, &[2; MTU]);
    }
    for _ in 0..100 {
        side.poll();
    }
}

// ---- scenarios -------------------------------------------------------------------------------

fn packets_are_echoed(hosts: &Hosts) {
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

fn packets_in_flight_both_ways_arrive_in_order(hosts: &Hosts) {
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

fn sends_to_a_killed_receiver_fail(hosts: &Hosts) {
    let mut side = Side::new(hosts.options(), 0);
    let mut child = Child::start(hosts, "idle", Qpn(0));
    let to = side.destination(child.gid, child.qpn);
    // More bytes than the sockets hold, so that a packet is partly written.
    for id in 0..4000 {
        side.send(to, id, &[7; MTU]);
    }
    for _ in 0..100 {
        assert!(side.poll().is_none());
    }
    child.kill();
    assert_eq!(side.ended(4000), vec![Err(Status::UnresponsiveRemote); 4000]);
    side.send(to, 4000, b"not listening");
    assert_eq!(side.ended(1), [Err(Status::BadDestinationQpn)]);
    assert_eq!(side.qp.statistics().outgoing, 0);
}

fn packets_of_a_killed_sender_arrive_complete(hosts: &Hosts) {
    let mut side = Side::new(hosts.options(), 8);
    let mut child = Child::start(hosts, "stream", Qpn(0));
    let to = side.destination(child.gid, child.qpn);
    side.send(to, 1, b"go");
    for number in 0..500 {
        assert_eq!(check_pattern(&side.received().0), number);
    }
    child.kill();
    // Packets that the killed process had written still arrive, complete and in order.
    let mut number = 500;
    while side.qp.statistics().outgoing > 0 {
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
    assert_eq!(side.qp.statistics().incoming, 0, "both ways had one connection");
}

fn restarted_process_on_the_same_number_is_reachable(hosts: &Hosts) {
    let mut side = Side::new(hosts.options(), 16);
    let mut number = Qpn(0);
    for incarnation in 0..4 {
        let mut child = Child::start(hosts, "echo", number);
        number = child.qpn;
        let to = side.destination(child.gid, child.qpn);
        for n in 0..10 {
            side.send(to, n, &pattern(incarnation * 10 + n));
            assert_eq!(check_pattern(&side.received().0), incarnation * 10 + n);
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

fn stopped_receiver_delays_packets_without_loss(hosts: &Hosts) {
    let mut side = Side::new(hosts.options(), 16);
    let child = Child::start(hosts, "echo", Qpn(0));
    let to = side.destination(child.gid, child.qpn);
    side.send(to, 0, &pattern(0));
    side.received();
    child.stop();
    for number in 1..1000 {
        side.send(to, number, &pattern(number));
    }
    for _ in 0..1000 {
        match side.poll() {
            // What it had acknowledged before it stopped.
            None | Some(Completion::Send { id: WorkId(0), result: Ok(()), .. }) => {}
            Some(other) => panic!("{other:?}"),
        }
    }
    child.signal(Signal::CONT);
    for number in 1..1000 {
        assert_eq!(check_pattern(&side.received().0), number);
    }
    side.send(to, 1000, b"");
    child.finish(&mut side);
}

/// It leaves in the middle of a packet, as the sockets are full, and says so nevertheless.
fn sends_to_a_receiver_that_leaves_fail_as_to_nobody(hosts: &Hosts) {
    if let Some(namespace) = &hosts.namespace {
        let limit = "echo 4096 16384 65536 > /proc/sys/net/ipv4/tcp_wmem";
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, "sh", "-c", limit]);
        assert!(command.status().unwrap().success());
    }
    let mut side = Side::new(hosts.options(), 0);
    let mut child = Child::start(hosts, "leave", Qpn(0));
    let to = side.destination(child.gid, child.qpn);
    for id in 0..4 {
        side.send(to, id, b"go");
    }
    // The first ones may have arrived before all are written. From then on this side isn't polled.
    let mut ended = Vec::new();
    while side.qp.statistics().sends < 2 {
        match side.poll() {
            Some(Completion::Send { result, .. }) => ended.push(result),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    assert!(child.process.wait().unwrap().success());
    ended.extend(side.ended(4 - ended.len()));
    let (received, failed) = ended.split_at(ended.iter().take_while(|end| end.is_ok()).count());
    assert!(!failed.is_empty() && failed.iter().all(|&end| end == Err(Status::BadDestinationQpn)));
    assert!(received.len() <= 2, "for two there were buffers");
    assert_eq!(side.qp.statistics().violations.total(), 0);
}

/// Runs only between namespaces, where the interface can be taken down.
fn sends_to_a_disconnected_host_fail(hosts: &Hosts) {
    const DEAD_AFTER: Duration = Duration::from_secs(2);
    let Some(namespace) = &hosts.namespace else { return };
    let options = hosts.options().with(|options| options.dead_after = Some(DEAD_AFTER));
    // With nothing under way, a packet that has arrived, one that doesn't arrive, and more than the host has room for.
    let mut sides = [(); 4].map(|()| Side::new(options.clone(), 16));
    let children = ["echo", "idle", "idle", "echo"].map(|role| Child::start(hosts, role, Qpn(0)));
    let to =
        std::array::from_fn::<_, 4, _>(|n| sides[n].destination(children[n].gid, children[n].qpn));
    for n in [0, 3] {
        sides[n].send(to[n], 0, &pattern(7));
        assert_eq!(check_pattern(&sides[n].received().0), 7);
    }
    for n in [1, 2] {
        sides[n].send(to[n], 1, b"arrives, and is not answered");
        sides[n].until(|statistics| statistics.outgoing == 1 && statistics.sends > 0);
    }
    children[3].stop();
    for id in 0..100 {
        sides[3].send(to[3], id, &[3; MTU]);
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        for side in &mut sides {
            // What was acknowledged with the answer.
            let completion = side.poll();
            let is_ok = |c: &_| matches!(c, Completion::Send { id: WorkId(0), result: Ok(()), .. });
            assert!(completion.as_ref().is_none_or(is_ok), "{completion:?}");
        }
    }
    let down = ["-n", namespace, "link", "set", "efa", "down"];
    assert!(Command::new("ip").args(down).status().unwrap().success());
    let start = Instant::now();
    sides[2].send(to[2], 2, b"does not arrive");
    let mut failed = [0; 4];
    let mut ended = [None; 4];
    while ended.contains(&None) {
        let statistics = || sides.each_ref().map(|side| side.qp.statistics());
        let is_late = start.elapsed() > 10 * DEAD_AFTER;
        assert!(!is_late, "{ended:?}, failed {failed:?}, {:#?}", statistics());
        for (n, side) in sides.iter_mut().enumerate() {
            match side.poll() {
                Some(Completion::Send { result, .. }) => {
                    assert_eq!(result, Err(Status::UnresponsiveRemote), "of {n}");
                    failed[n] += 1;
                }
                Some(other) => panic!("{other:?}"),
                None if side.qp.statistics().outgoing == 0 => {
                    ended[n].get_or_insert(start.elapsed());
                }
                None => {}
            }
        }
    }
    println!("silent hosts were given up after {ended:?}");
    assert_eq!(failed, [0, 1, 2, 100]);
    // Twice the limit, and as long again for slow machines.
    assert!(ended.iter().all(|&after| after.unwrap() < 4 * DEAD_AFTER), "{ended:?}");
    sides[1].send(to[1], 3, b"is not even sent");
    assert_eq!(sides[1].ended(1), [Err(Status::UnreachableRemote)]);
    let up = ["-n", namespace, "link", "set", "efa", "up"];
    assert!(Command::new("ip").args(up).status().unwrap().success());
}

/// Runs all scenarios between the hosts named by the environment.
#[test]
#[ignore = "child process started by other tests"]
fn hosts_exchange_messages_over_tcp() {
    let Ok(first) = std::env::var("EFA_SIM_FIRST") else { return };
    let second = std::env::var("EFA_SIM_SECOND").unwrap();
    let namespace = std::env::var("EFA_SIM_NAMESPACE").ok();
    let hosts = Hosts { first: first.parse().unwrap(), second: second.parse().unwrap(), namespace };
    let scenarios: [fn(&Hosts); 8] = [
        packets_are_echoed,
        packets_in_flight_both_ways_arrive_in_order,
        sends_to_a_killed_receiver_fail,
        packets_of_a_killed_sender_arrive_complete,
        restarted_process_on_the_same_number_is_reachable,
        stopped_receiver_delays_packets_without_loss,
        sends_to_a_receiver_that_leaves_fail_as_to_nobody,
        sends_to_a_disconnected_host_fail,
    ];
    scenarios.into_iter().for_each(|scenario| scenario(&hosts));
}

/// The process on the first host, killed and reaped when dropped.
struct ScenarioProcess(std::process::Child);

impl Drop for ScenarioProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run_scenarios(mut command: Command, first: &str, second: &str) {
    command.env("EFA_SIM_FIRST", first).env("EFA_SIM_SECOND", second);
    let mut process = ScenarioProcess(command.spawn().unwrap());
    assert!(process.0.wait().unwrap().success(), "between {first} and {second}");
}

#[test]
fn two_loopback_addresses_act_as_two_hosts() {
    run_scenarios(this_program(None, "hosts_exchange_messages_over_tcp"), "127.0.0.1", "127.0.0.2");
}

#[test]
fn two_network_namespaces_act_as_two_hosts() {
    let Some(namespaces) = Namespaces::new() else { return };
    let [a, b] = namespaces.names();
    // IPv6 first: taking the interface down removes its IPv6 addresses.
    for (first, second) in [("fd77::1", "fd77::2"), ("10.77.0.1", "10.77.0.2")] {
        let mut command = this_program(Some(a), "hosts_exchange_messages_over_tcp");
        command.env("EFA_SIM_NAMESPACE", b);
        run_scenarios(command, first, second);
    }
}

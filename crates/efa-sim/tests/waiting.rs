//! Threads that sleep on a queue pair's descriptor, on every link: no wake-up is lost, and none is needed while
//! nothing happens.
//!
//! `EFA_ROUNDS` sets the number of rounds; `cargo xtask soak` runs a million.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use efa_device::{
    Access, Armed, Completion, Destination, Device, DeviceError, QueuePair, QueuePairAddress,
    QueuePairOptions, RdmaRequest, Region, RegionRange, RemoteMemory, SendRequest, Status, Time,
    WorkId,
};
use efa_sim::local::{LocalFabric, LocalOptions};
use efa_sim::shm::{ShmDevice, ShmOptions};
use efa_sim::tcp::{TcpDevice, TcpOptions};
use efa_sim::{SoftDevice, SoftQueuePair};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

/// Longer than any wake-up takes, on a busy machine too. The links look by themselves once a second; these
/// tests don't.
const LOST: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

fn rounds() -> u64 {
    std::env::var("EFA_ROUNDS").map_or(10_000, |rounds| rounds.parse().unwrap())
}

/// A pair of devices that reach each other, and what they need.
struct Pair {
    devices: [SoftDevice; 2],
    _directory: Option<TempDir>,
}

fn shm() -> Pair {
    let directory = TempDir::new().unwrap();
    let open = || {
        let mut options = ShmOptions::new("host");
        options.directory = Some(directory.path().join("hosts"));
        ShmDevice::open(options).unwrap().into()
    };
    Pair { devices: [open(), open()], _directory: Some(directory) }
}

fn tcp() -> Pair {
    let open = || TcpDevice::open(TcpOptions::new(std::net::Ipv4Addr::LOCALHOST)).unwrap().into();
    Pair { devices: [open(), open()], _directory: None }
}

fn local() -> Pair {
    let fabric = LocalFabric::new(LocalOptions::default());
    Pair { devices: [fabric.open().into(), fabric.open().into()], _directory: None }
}

/// A queue pair, driven by one thread.
struct Driven {
    qp: SoftQueuePair,
    begin: Instant,
    sleeps: u64,
    acknowledged: u64,
    received: u64,
}

impl Driven {
    fn new(device: &SoftDevice, begin: Instant) -> Self {
        let options = QueuePairOptions::default().with(|options| options.waitable = true);
        let mut qp = device.create_queue_pair(options).unwrap();
        for _ in 0..64 {
            let packet = qp.allocate_packet().unwrap();
            qp.post_receive(packet).unwrap();
        }
        Self { qp, begin, sleeps: 0, acknowledged: 0, received: 0 }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.begin.elapsed()
    }

    fn to(&mut self, address: QueuePairAddress) -> Destination {
        let address_handle = self.qp.create_address_handle(address.gid).unwrap();
        Destination { address_handle, qpn: address.qpn, qkey: address.qkey }
    }

    fn send(&mut self, to: Destination, number: u64) {
        let mut packet = self.qp.allocate_packet().unwrap();
        packet[..8].copy_from_slice(&number.to_le_bytes());
        let (id, destination) = (WorkId(number), to);
        let request = SendRequest { id, packet, length: 8, destination, immediate: None };
        self.qp.post_send(request).unwrap();
    }

    /// The next completion, asleep until it comes.
    fn next(&mut self) -> Completion<Box<[u8]>> {
        loop {
            let now = self.now();
            if let Some(completion) = self.qp.poll(now) {
                return completion;
            }
            let Armed::Quiet { until } = self.qp.arm(self.now()).unwrap() else { continue };
            // The local link has no clock of its own, so its times count.
            let timeout = match (&self.qp, until) {
                (SoftQueuePair::Local(_), Some(until)) => (until - self.now()).try_into().unwrap(),
                _ => LOST,
            };
            self.sleeps += 1;
            let woken = self.sleep(timeout);
            assert!(woken || timeout != LOST, "nobody woke this side in sleep {}", self.sleeps);
        }
    }

    fn sleep(&self, timeout: Timespec) -> bool {
        let descriptor = self.qp.wait_fd().unwrap();
        poll(&mut [PollFd::new(&descriptor.as_fd(), PollFlags::IN)], Some(&timeout)).unwrap() > 0
    }

    /// Messages of these links come in order.
    fn repost(&mut self, packet: Box<[u8]>) {
        let number = u64::from_le_bytes(packet[..8].try_into().unwrap());
        assert_eq!(number, self.received);
        self.qp.post_receive(packet).unwrap();
    }
}

/// A pause that differs from round to round, so that every order of the two sides happens.
fn pause(rng: &mut fastrand::Rng) {
    let spins = rng.u32(..2000) >> rng.u32(..10);
    (0..spins).for_each(|_| std::hint::spin_loop());
}

impl Driven {
    /// Handles completions, asleep in between, until as many sends were acknowledged and messages received.
    fn until(&mut self, acknowledged: u64, received: u64) {
        while self.acknowledged < acknowledged || self.received < received {
            match self.next() {
                Completion::Send { result, .. } => {
                    assert_eq!(result, Ok(()));
                    self.acknowledged += 1;
                }
                Completion::Receive { packet, .. } => {
                    self.received += 1;
                    self.repost(packet);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Runs `first` and `second` in threads, each with a queue pair and the address of the other's.
fn two_threads<T: Send + 'static>(
    pair: &Pair,
    first: impl FnOnce(Driven, Destination) -> T + Send + 'static,
    second: impl FnOnce(Driven, Destination) -> T + Send + 'static,
) -> [T; 2] {
    let begin = Instant::now();
    let [mut a, mut b] = pair.devices.each_ref().map(|device| Driven::new(device, begin));
    let (to_a, to_b) = (a.qp.address(), b.qp.address());
    let (to_b, to_a) = (a.to(to_b), b.to(to_a));
    let first = thread::spawn(move || first(a, to_b));
    let second = thread::spawn(move || second(b, to_a));
    [first.join().unwrap(), second.join().unwrap()]
}

/// Messages go to and fro; each side sleeps until the other's message, and until its own is acknowledged.
/// Returns how often each side slept.
fn ping_pong(pair: &Pair, rounds: u64) -> [u64; 2] {
    two_threads(
        pair,
        move |mut driven, to| {
            let mut rng = fastrand::Rng::with_seed(1);
            for number in 1..=rounds {
                pause(&mut rng);
                driven.send(to, number);
                driven.until(number, number);
            }
            driven.sleeps
        },
        move |mut driven, to| {
            let mut rng = fastrand::Rng::with_seed(2);
            for number in 1..=rounds {
                driven.until(number - 1, number);
                pause(&mut rng);
                driven.send(to, number);
            }
            driven.until(rounds, rounds);
            driven.sleeps
        },
    )
}

/// One side sends, and polls for room; the other sleeps whenever it finds nothing. Returns how often.
fn stream(pair: &Pair, messages: u64) -> u64 {
    let [_, sleeps] = two_threads(
        pair,
        move |mut driven, to| {
            let mut rng = fastrand::Rng::with_seed(3);
            for number in 1..=messages {
                pause(&mut rng);
                driven.send(to, number);
                while number - driven.acknowledged > 32 {
                    driven.poll();
                }
            }
            driven.until(messages, 0);
            0
        },
        move |mut driven, _| {
            driven.until(0, messages);
            driven.sleeps
        },
    );
    sleeps
}

impl Driven {
    fn poll(&mut self) {
        let now = self.now();
        if let Some(Completion::Send { result, .. }) = self.qp.poll(now) {
            assert_eq!(result, Ok(()));
            self.acknowledged += 1;
        }
    }
}

#[test]
fn shm_sides_that_sleep_in_turn_are_always_woken() {
    let sleeps = ping_pong(&shm(), rounds());
    assert!(sleeps.iter().all(|&sleeps| sleeps > rounds() / 4), "{sleeps:?}");
}

#[test]
fn tcp_sides_that_sleep_in_turn_are_always_woken() {
    let sleeps = ping_pong(&tcp(), rounds());
    assert!(sleeps.iter().all(|&sleeps| sleeps > rounds() / 4), "{sleeps:?}");
}

#[test]
fn local_sides_that_sleep_in_turn_are_always_woken() {
    let sleeps = ping_pong(&local(), rounds());
    assert!(sleeps.iter().all(|&sleeps| sleeps > rounds() / 4), "{sleeps:?}");
}

#[test]
fn shm_receiver_that_sleeps_under_a_stream_of_packets_is_always_woken() {
    assert!(stream(&shm(), 2 * rounds()) > 0);
}

#[test]
fn tcp_receiver_that_sleeps_under_a_stream_of_packets_is_always_woken() {
    assert!(stream(&tcp(), 2 * rounds()) > 0);
}

#[test]
fn sender_asleep_is_woken_when_its_receiver_goes() {
    for pair in [shm(), tcp()] {
        let [mut a, mut b] =
            pair.devices.each_ref().map(|device| Driven::new(device, Instant::now()));
        let (at_a, at_b) = (a.qp.address(), b.qp.address());
        let (to_b, to_a) = (a.to(at_b), b.to(at_a));
        a.send(to_b, 1);
        b.send(to_a, 1);
        // Both are connected, and one more is under way to the one that goes.
        let both = |driven: &mut Driven| driven.acknowledged == 1 && driven.received == 1;
        while !(both(&mut a) & both(&mut b)) {
            for driven in [&mut a, &mut b] {
                let now = driven.now();
                match driven.qp.poll(now) {
                    Some(Completion::Send { .. }) => driven.acknowledged += 1,
                    Some(Completion::Receive { .. }) => driven.received += 1,
                    _ => {}
                }
            }
        }
        a.send(to_b, 2);
        let sender = thread::spawn(move || match a.next() {
            Completion::Send { result, .. } => result,
            other => panic!("{other:?}"),
        });
        thread::sleep(Duration::from_millis(20));
        drop(b);
        assert_eq!(sender.join().unwrap(), Err(Status::BadDestinationQpn));
    }
}

#[test]
fn post_of_another_thread_that_completes_at_once_is_due() {
    let pair = local();
    let mut driven = Driven::new(&shm().devices[0], Instant::now());
    let other = Driven::new(&pair.devices[0], Instant::now());
    let mut nowhere = other.qp.address();
    nowhere.gid.0[15] ^= 1;
    let to = driven.to(nowhere);
    while driven.qp.arm(driven.now()).unwrap() == Armed::Pending {}
    assert_eq!(driven.qp.next_event(), None);
    driven.send(to, 1);
    assert!(driven.qp.next_event().is_some());
}

#[test]
fn descriptor_is_readable_only_while_something_is_there() {
    for pair in [shm(), tcp()] {
        let [mut a, mut b] =
            pair.devices.each_ref().map(|device| Driven::new(device, Instant::now()));
        let at_a = a.qp.address();
        let to_a = b.to(at_a);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        while !matches!(a.qp.arm(a.now()).unwrap(), Armed::Quiet { .. }) {}
        assert!(!a.sleep(at_once));
        b.send(to_a, 1);
        // On the tcp link the packet follows the connection.
        let readable = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert!(
            a.sleep(readable) && a.sleep(at_once),
            "readable until the queue pair is armed again"
        );
        while a.received == 0 {
            b.poll();
            a.until(0, 1);
        }
        while b.acknowledged == 0 {
            b.poll();
        }
        while !matches!(a.qp.arm(a.now()).unwrap(), Armed::Quiet { .. }) {
            assert!(a.qp.poll(a.now()).is_none());
        }
        assert!(!a.sleep(at_once));
    }
}

#[test]
fn queue_pair_that_is_not_waitable_has_no_descriptor_and_is_not_armed() {
    for pair in [shm(), tcp(), local()] {
        let mut qp = pair.devices[0].create_queue_pair(QueuePairOptions::default()).unwrap();
        assert!(qp.wait_fd().is_none());
        let refused = qp.arm(Time::ZERO).unwrap_err();
        assert_eq!(refused, DeviceError::Unsupported { operation: "waiting" });
    }
}

/// Sets the flag when dropped, so that a test that fails doesn't wait for a thread without end.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The side with the memory sleeps, without a receive buffer, and so does the side that waits for its operation.
#[test]
fn requests_wake_the_process_with_the_memory_and_its_answers_the_requester() {
    const LENGTH: usize = 3 << 20;
    let directory = TempDir::new().unwrap();
    let open = || -> SoftDevice {
        let mut options = ShmOptions::new("host");
        options.directory = Some(directory.path().join("hosts"));
        options.kernel_copies = false;
        ShmDevice::open(options).unwrap().into()
    };
    let pair = Pair { devices: [open(), open()], _directory: Some(directory) };
    let begin = Instant::now();
    let mut requester = Driven::new(&pair.devices[0], begin);
    let options = QueuePairOptions::default().with(|options| options.waitable = true);
    let mut target = pair.devices[1].create_queue_pair(options).unwrap();
    let access = Access { remote_read: true, remote_write: true };
    let remote = target.register(vec![7; LENGTH].into(), access).unwrap();
    let local = requester.qp.register(vec![0; LENGTH].into(), Access::default()).unwrap();
    let destination = requester.to(target.address());
    // Without it the target refuses the requester.
    target.create_address_handle(requester.qp.address().gid).unwrap();
    let ended = AtomicBool::new(false);
    let served = thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut sleeps = 0_u64;
            while !ended.load(Ordering::Relaxed) {
                let now = Time::ZERO + begin.elapsed();
                assert!(target.poll(now).is_none());
                if let Armed::Quiet { .. } = target.arm(now).unwrap() {
                    let mut fds =
                        [PollFd::from_borrowed_fd(target.wait_fd().unwrap(), PollFlags::IN)];
                    // The end wakes nobody.
                    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })).unwrap();
                    sleeps += 1;
                }
            }
            sleeps
        });
        let end = SetOnDrop(&ended);
        for round in 0..20 {
            let request = RdmaRequest {
                id: WorkId(round),
                local: RegionRange { region: local.clone(), offset: 0, length: LENGTH },
                remote: RemoteMemory { address: remote.remote_address(), key: remote.remote_key() },
                destination,
            };
            let posted = match round % 2 {
                0 => requester.qp.post_read(request),
                _ => requester.qp.post_write(request, None),
            };
            posted.unwrap();
            let completion = requester.next();
            let Completion::Rdma { id, result } = completion else { panic!("{completion:?}") };
            assert_eq!((id, result), (WorkId(round), Ok(())));
        }
        drop(end);
        serving.join().unwrap()
    });
    let mut last = [0];
    local.read(LENGTH - 1, &mut last);
    assert_eq!(last, [7]);
    assert!(served > 0 && requester.sleeps > 0, "{served} and {} sleeps", requester.sleeps);
    assert!(begin.elapsed() < Duration::from_secs(10), "no side waits for its own look");
}

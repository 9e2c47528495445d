//! Contexts on the links `shm` and `tcp`, in real time.

#![allow(clippy::unwrap_used)]

#[path = "../../efa/tests/spent/mod.rs"]
mod spent;

use std::io::Write;
use std::net::Ipv4Addr;
use std::ptr::NonNull;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use efa::{
    Access, Fabric, ForeignMemory, LocalAccess, LocalOptions, ShmOptions, StartConnectError,
    TcpOptions, TryWaitError,
};
use efa_netio::{
    Buffers, ClosedReason, Completion, Delivery, Event, ListenOptions, Message, Netio, Options,
    Pool, PublishOptions, PublishSocket, Published, RefusedReason, Rejection, SendOptions, Sent,
    SubscribeOptions, Wait,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spent::Spent;
use tempfile::TempDir;

const HOST: &str = "127.0.0.1";
/// Longer than any test takes on a machine under load.
const LONG: Duration = Duration::from_secs(60);

struct Host(TempDir);

impl Host {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn shm(&self) -> Fabric {
        self.named("test")
    }

    fn named(&self, name: &str) -> Fabric {
        let directory = Some(self.0.path().join("hosts"));
        Fabric::shm(ShmOptions::new(name).with(|options| options.directory = directory))
    }
}

fn tcp() -> Fabric {
    Fabric::tcp(TcpOptions::new(Ipv4Addr::LOCALHOST))
}

fn context(fabric: &Fabric) -> Netio {
    Netio::new(&fabric.domain().unwrap(), Options::default()).unwrap()
}

/// The next event.
fn event(netio: &mut Netio) -> Event {
    netio.poll(Wait::For(LONG)).unwrap().expect("an event in time")
}

fn byte(at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

const MOST: usize = 4 << 20;

/// From one context to another, each on a device of its own as in two processes. Returns the bytes that the receiver's
/// device read from the sender's memory.
fn exchange(open: impl Fn() -> Fabric + Sync, level: Completion, lengths: &[usize]) -> u64 {
    let (tell, told) = mpsc::channel();
    let open = &open;
    let mut netio = context(&open());
    let has_all = netio.signal();
    thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let mut netio = context(&open());
            let buffers = Buffers { count: 3, size: MOST };
            let listener = netio.listen_socket(ListenOptions::default().buffers(Some(buffers)));
            netio.listen(listener, HOST, 0).unwrap();
            tell.send(netio.local_address(listener).unwrap().port()).unwrap();
            let mut lengths = lengths.iter();
            let mut moved = (0, 0);
            loop {
                match event(&mut netio) {
                    Event::Accepted { .. } => {}
                    Event::Received { socket, message, data } => {
                        let length = *lengths.next().unwrap();
                        assert_eq!((message.len(), data), (length, Some(length as u64)));
                        let same = message.iter().enumerate().all(|(at, found)| *found == byte(at));
                        assert!(same, "a message of {length} bytes");
                        for it in netio.statistics(socket) {
                            moved = (it.rdma_bytes, it.delivered_bytes);
                        }
                        if lengths.len() == 0 {
                            has_all.raise();
                        }
                    }
                    Event::Closed { reason, .. } => {
                        assert_eq!(reason, ClosedReason::DisconnectedByPeer);
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(lengths.len(), 0);
            moved
        });
        let pool = netio.register((0..MOST).map(byte).collect::<Vec<_>>()).unwrap();
        let send = netio.send_socket(SendOptions::default().completion(level));
        netio.connect(send, HOST, told.recv_timeout(LONG).unwrap()).unwrap();
        assert!(matches!(event(&mut netio), Event::Connected(_)));
        for length in lengths {
            let message = Message::of(pool.part(0..*length).unwrap()).data(*length as u64);
            assert!(matches!(netio.send(send, message), Sent::Accepted));
        }
        // The receiver's statistics go with the connection.
        let (mut completed, mut all_arrived) = (0, false);
        while completed < lengths.len() || !all_arrived {
            match event(&mut netio) {
                Event::SendCompleted { result: Ok(()), .. } => completed += 1,
                Event::Signal => all_arrived = true,
                other => panic!("{other:?}"),
            }
        }
        netio.disconnect(send).unwrap();
        let closed = event(&mut netio);
        assert!(matches!(closed, Event::Closed { reason: ClosedReason::Disconnected, .. }));
        let (rdma, delivered) = receiver.join().unwrap();
        assert_eq!(delivered, lengths.iter().sum::<usize>() as u64);
        rdma
    })
}

const LEVELS: [Completion; 3] = [Completion::MemoryFree, Completion::Sent, Completion::Delivered];
const LENGTHS: [usize; 9] = [0, 1, 8_000, 31_000, 100_000, MOST, 7, 1_000_000, 32_768];

// conformance: D1 D5 D13 D37
#[test]
fn messages_of_0_bytes_to_4_mib_arrive_over_shm_and_tcp() {
    let host = Host::new();
    for level in LEVELS {
        exchange(|| host.shm(), level, &LENGTHS);
        exchange(tcp, level, &LENGTHS);
    }
}

// conformance: D1
#[test]
fn each_byte_from_the_read_threshold_on_moves_once_over_shm() {
    let host = Host::new();
    let threshold = Options::default().read_threshold as usize;
    let long = [threshold, threshold + 1, MOST, 100_000, threshold, 1_000_000];
    for level in LEVELS {
        let moved = exchange(|| host.shm(), level, &long);
        assert_eq!(moved, long.iter().sum::<usize>() as u64, "{level:?}");
        assert_eq!(exchange(|| host.shm(), level, &[0, 1, threshold - 1, 9_000]), 0);
    }
}

#[test]
fn signal_of_another_thread_wakes_a_context_that_sleeps() {
    let host = Host::new();
    for fabric in [Fabric::local(LocalOptions::default()), host.shm(), tcp()] {
        let mut netio = context(&fabric);
        let signal = netio.signal();
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                for () in told {
                    // Long enough for the context to fall asleep.
                    thread::sleep(Duration::from_millis(5));
                    signal.raise();
                }
            });
            for _ in 0..5 {
                tell.send(()).unwrap();
                assert!(matches!(event(&mut netio), Event::Signal));
            }
            drop(tell);
        });
    }
}

/// The next event of a context in a loop of the program, which sleeps on its descriptor.
fn event_of_loop(netio: &mut Netio) -> Event {
    loop {
        if let Some(event) = netio.poll(Wait::No).unwrap() {
            return event;
        }
        if !netio.try_sleep().unwrap() {
            continue;
        }
        let timeout = netio.next_timeout().unwrap_or(LONG).min(LONG);
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos().into() };
        let descriptor = netio.as_fd().unwrap();
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)).unwrap();
    }
}

#[test]
fn loop_of_the_program_sleeps_on_the_descriptor_and_misses_nothing() {
    let host = Host::new();
    for fabric in [Fabric::local(LocalOptions::default()), host.shm(), tcp()] {
        const COUNT: u64 = 200;
        let (tell, told) = mpsc::channel();
        let fabric = &fabric;
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut netio = context(fabric);
                let listener = netio.listen_socket(ListenOptions::default());
                netio.listen(listener, HOST, 0).unwrap();
                tell.send(netio.local_address(listener).unwrap().port()).unwrap();
                let mut next = 0;
                loop {
                    match event_of_loop(&mut netio) {
                        Event::Received { data, .. } => {
                            assert_eq!(data, Some(next));
                            next += 1;
                        }
                        Event::Closed { .. } => break,
                        _ => {}
                    }
                }
                assert_eq!(next, COUNT);
            });
            let mut netio = context(fabric);
            let pool = netio.allocate(40_000).unwrap();
            let send = netio.send_socket(SendOptions::default());
            netio.connect(send, HOST, told.recv_timeout(LONG).unwrap()).unwrap();
            assert!(matches!(event_of_loop(&mut netio), Event::Connected(_)));
            for number in 0..COUNT {
                // Now and then the other side has time to fall asleep.
                if number % 50 == 0 {
                    netio.timer(Duration::from_millis(2), None);
                    while !matches!(event_of_loop(&mut netio), Event::Timer(_)) {}
                }
                let length = if number % 3 == 0 { 40_000 } else { 10 };
                let message = Message::of(pool.part(0..length).unwrap()).data(number);
                assert!(matches!(netio.send(send, message), Sent::Accepted));
            }
            netio.disconnect(send).unwrap();
            while !matches!(event_of_loop(&mut netio), Event::Closed { .. }) {}
        });
    }
}

#[test]
fn context_that_does_not_sleep_has_no_descriptor_and_refuses_to_prepare_for_sleep() {
    let options = Options::default().with(|options| options.sleeps = false);
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let mut netio = Netio::new(&domain, options).unwrap();
    assert!(netio.as_fd().is_none());
    assert_eq!(netio.try_sleep(), Err(TryWaitError::NotWaitable));
}

#[test]
fn idle_context_with_a_connection_sleeps() {
    let host = Host::new();
    for fabric in [host.shm(), tcp()] {
        let mut netio = context(&fabric);
        let listener = netio.listen_socket(ListenOptions::default());
        netio.listen(listener, HOST, 0).unwrap();
        let port = netio.local_address(listener).unwrap().port();
        let send = netio.send_socket(SendOptions::default());
        netio.connect(send, HOST, port).unwrap();
        let pool = netio.allocate(10).unwrap();
        let mut left = 2;
        while left > 0 {
            match event(&mut netio) {
                Event::Connected(_) => {
                    assert!(matches!(netio.send_buffer(send, pool.whole()), Sent::Accepted));
                }
                Event::Received { .. } | Event::SendCompleted { .. } => left -= 1,
                _ => {}
            }
        }
        // The rest of what they tell each other.
        assert!(netio.poll(Wait::For(Duration::from_millis(200))).unwrap().is_none());
        let before = Spent::by_this_thread();
        assert!(netio.poll(Wait::For(Duration::from_secs(1))).unwrap().is_none());
        Spent::by_this_thread().check_idle(before, 8);
    }
}

/// A mapped file.
struct Mapping {
    address: usize,
    length: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` mapped it, and the handles are gone.
        unsafe { rustix::mm::munmap(self.address as *mut _, self.length) }.unwrap();
    }
}

fn map(file: &std::fs::File, length: usize) -> ForeignMemory {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses an unused range.
    let base = unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, file, 0) };
    let base = NonNull::new(base.unwrap()).unwrap();
    let owner = Mapping { address: base.as_ptr().expose_provenance(), length };
    // SAFETY: the mapping lasts until the owner is dropped, and only the kernel accesses its bytes besides.
    unsafe { ForeignMemory::new(base.cast(), length, owner) }
}

// conformance: D19
#[test]
fn messages_are_sent_from_memory_of_a_vector_of_an_array_and_of_a_mapped_file() {
    let host = Host::new();
    let domain = host.shm().domain().unwrap();
    let mut netio = Netio::new(&domain, Options::default()).unwrap();
    let bytes: Vec<u8> = (0..200_000).map(byte).collect();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    let access = Access { remote_read: true, remote_write: false };
    let of_file =
        domain.register_foreign(&map(&file, bytes.len()), access, LocalAccess::SEND).unwrap();
    let array: [u8; 1000] = std::array::from_fn(byte);
    let pools = [
        netio.register(bytes.clone()).unwrap(),
        netio.register(bytes.into_boxed_slice()).unwrap(),
        netio.register(array).unwrap(),
        Pool::from(of_file),
    ];
    let buffers = Buffers { count: 8, size: 200_000 };
    let listener = netio.listen_socket(ListenOptions::default().buffers(Some(buffers)));
    netio.listen(listener, HOST, 0).unwrap();
    let port = netio.local_address(listener).unwrap().port();
    let send = netio.send_socket(SendOptions::default());
    netio.connect(send, HOST, port).unwrap();
    while !matches!(event(&mut netio), Event::Connected(_)) {}
    for pool in &pools {
        assert!(matches!(netio.send_buffer(send, pool.whole()), Sent::Accepted));
    }
    let mut left = pools.iter();
    while let Some(pool) = left.clone().next() {
        if let Event::Received { message, .. } = event(&mut netio) {
            assert_eq!(message.len(), pool.len());
            assert!(message.iter().enumerate().all(|(at, found)| *found == byte(at)));
            left.next();
        }
    }
}

/// A publisher and a subscriber with `count` buffers of 1 MiB on one host, subscribed to tag 1.
fn published_to(host: &Host, count: usize) -> (Netio, PublishSocket, Pool, Netio) {
    let mut publisher = context(&host.shm());
    let pool = publisher.register(vec![7; 1 << 20]).unwrap();
    let socket = publisher.publish_socket(&pool, PublishOptions::default()).unwrap();
    publisher.publish_at(socket, HOST, 0).unwrap();
    let port = publisher.local_address(socket).unwrap().port();
    let mut subscriber = context(&host.shm());
    let options = SubscribeOptions::default().buffers(Buffers { count, size: 1 << 20 });
    let of = subscriber.subscribe_socket(HOST, port, options);
    subscriber.subscribe(of, 1).unwrap();
    while !matches!(publisher.poll(Wait::No).unwrap(), Some(Event::Subscriber { tag: 1, .. })) {
        subscriber.poll(Wait::No).unwrap();
    }
    (publisher, socket, pool, subscriber)
}

/// Publishes all of the pool, and returns it as the subscriber got it.
fn deliver(
    (publisher, socket, pool): (&mut Netio, PublishSocket, &Pool),
    subscriber: &mut Netio,
) -> Delivery {
    let published = publisher.publish(socket, 1, Message::of(pool.whole()));
    assert!(matches!(published, Published::UnderWay));
    let begin = std::time::Instant::now();
    loop {
        assert!(begin.elapsed() < LONG);
        let _ = publisher.poll(Wait::No).unwrap();
        if let Some(Event::Message { message, .. }) = subscriber.poll(Wait::No).unwrap() {
            assert!(message.len() == 1 << 20 && message.iter().all(|byte| *byte == 7));
            return message;
        }
    }
}

#[test]
fn caller_that_the_device_of_the_listener_does_not_reach_is_rejected_with_that_reason() {
    let (host, other) = (Host::new(), Host::new());
    let pairs = [
        (host.named("one"), host.named("other")),
        (host.shm(), other.shm()),
        (host.shm(), tcp()),
        (tcp(), host.shm()),
    ];
    for (listening, calling) in pairs {
        let mut listener = context(&listening);
        let socket = listener.listen_socket(ListenOptions::default());
        listener.listen(socket, HOST, 0).unwrap();
        let port = listener.local_address(socket).unwrap().port();
        let mut caller = context(&calling);
        let send = caller.send_socket(SendOptions::default());
        caller.connect(send, HOST, port).unwrap();
        let begin = std::time::Instant::now();
        let (mut there, mut here) = (None, None);
        let (refused, told) = loop {
            assert!(begin.elapsed() < LONG);
            there = there.or_else(|| caller.poll(Wait::No).unwrap());
            here = here.or_else(|| listener.poll(Wait::No).unwrap());
            match (there, here) {
                (Some(refused), Some(told)) => break (refused, told),
                not_yet => (there, here) = not_yet,
            }
        };
        let Event::CallerRefused { reason: RefusedReason::Start(told), .. } = told else {
            panic!("{told:?}");
        };
        assert!(matches!(told, StartConnectError::Device(_)), "{told}");
        let Event::Refused { reason: RefusedReason::Rejected(reason), .. } = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(reason, Rejection::Unreachable);
    }
}

/// Both reach each other by TCP, and not by their devices, which can't tell: as behind a firewall.
#[test]
fn subscriber_whose_device_does_not_reach_the_publishers_is_closed_on_both_sides() {
    let (one, other) = (Host::new(), Host::new());
    let gids = [&one, &other].map(|host| {
        drop(host.shm().domain().unwrap());
        host.0.path().join("hosts/test/gid")
    });
    std::fs::copy(&gids[0], &gids[1]).unwrap();
    let options = Options::default().with(|options| options.timeout = Duration::from_millis(200));
    let context = |of: &Host| Netio::new(&of.shm().domain().unwrap(), options).unwrap();
    let mut publisher = context(&one);
    let pool = publisher.register(vec![7; 100]).unwrap();
    let socket = publisher.publish_socket(&pool, PublishOptions::default()).unwrap();
    publisher.publish_at(socket, HOST, 0).unwrap();
    let port = publisher.local_address(socket).unwrap().port();
    let mut subscriber = context(&other);
    let of = subscriber.subscribe_socket(HOST, port, SubscribeOptions::default());
    subscriber.subscribe(of, 1).unwrap();
    let (mut here, mut there) = (None, None);
    let begin = std::time::Instant::now();
    while here.is_none() || there.is_none() {
        assert!(begin.elapsed() < LONG, "{here:?} {there:?}");
        if let Some(Event::SubscriberClosed { reason, .. }) = publisher.poll(Wait::No).unwrap() {
            there = Some(reason);
        }
        if let Some(Event::Closed { reason, .. }) = subscriber.poll(Wait::No).unwrap() {
            here = Some(reason);
        }
    }
    assert_eq!(here, Some(ClosedReason::PeerGone));
    assert_eq!(there, Some(ClosedReason::PeerGone));
}

#[test]
fn long_messages_on_shm_are_received_in_the_buffer_that_came_back_last() {
    const COUNT: usize = 6;
    let host = Host::new();
    let (mut publisher, socket, pool, mut subscriber) = published_to(&host, COUNT);
    let mut places = Vec::new();
    for _ in 0..COUNT + 4 {
        let message = deliver((&mut publisher, socket, &pool), &mut subscriber);
        places.push(message.as_ptr());
    }
    // All were posted before the first message told that messages are long.
    let [.., one, two, three] = places[..] else { unreachable!() };
    assert!(one == two && two == three, "{places:?}");
}

#[test]
fn long_messages_on_shm_go_on_while_the_program_keeps_all_buffers_but_one() {
    const COUNT: usize = 4;
    let host = Host::new();
    let (mut publisher, socket, pool, mut subscriber) = published_to(&host, COUNT);
    let mut kept = Vec::new();
    for _ in 0..3 * COUNT {
        let message = deliver((&mut publisher, socket, &pool), &mut subscriber);
        kept.push(message);
        kept.truncate(COUNT - 1);
    }
    assert_eq!(kept.len(), COUNT - 1);
}

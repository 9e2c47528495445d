//! Threads that sleep until a completion queue or counter has something, on each link.
//!
//! `EFA_ROUNDS` sets the number of rounds; a soak runs a million.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use efa::{
    Address, CompletionQueue, CompletionQueueOptions, Counted, Counter, CounterOptions, Direction,
    Domain, DomainOptions, Endpoint, EndpointOptions, Fabric, FiAddr, Kind, LocalOptions,
    ManualClock, Message, PollSet, Progress, Receive, ShmOptions, TcpOptions, TryWaitError, Wait,
    WaitError,
};
use rustix::event::{FdSetElement, PollFd, PollFlags, Timespec, epoll, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

/// Longer than anything takes here.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The links look by themselves once a second. Whoever sleeps almost as long was not woken.
const LOST: Duration = Duration::from_millis(950);

fn rounds() -> u64 {
    std::env::var("EFA_ROUNDS").map_or(3_000, |rounds| rounds.parse().unwrap())
}

/// Two fabrics of a network, as two processes have, or one that both sides share.
struct Network {
    fabrics: [Fabric; 2],
    _directory: Option<TempDir>,
    progress: Progress,
}

impl Network {
    /// The same, with a thread in each domain that progresses.
    fn automatic(self) -> Self {
        Self { progress: Progress::Automatic, ..self }
    }

    fn domains(&self) -> [Domain; 2] {
        let options = DomainOptions::new().progress(self.progress);
        self.fabrics.each_ref().map(|fabric| fabric.domain_with(options.clone()).unwrap())
    }
}

fn shm_fabric(directory: &std::path::Path) -> Fabric {
    let directory = Some(directory.join("hosts"));
    Fabric::shm(ShmOptions::new("test").with(|options| options.directory = directory))
}

fn shm() -> Network {
    let directory = TempDir::new().unwrap();
    let fabrics = [0, 1].map(|_| shm_fabric(directory.path()));
    Network { fabrics, _directory: Some(directory), progress: Progress::Manual }
}

fn tcp() -> Network {
    let fabrics = [0, 1].map(|_| Fabric::tcp(TcpOptions::new([127, 0, 0, 1])));
    Network { fabrics, _directory: None, progress: Progress::Manual }
}

fn local() -> Network {
    let fabric = Fabric::local(LocalOptions::default());
    one(fabric)
}

fn one(fabric: Fabric) -> Network {
    let fabrics = [fabric.clone(), fabric];
    Network { fabrics, _directory: None, progress: Progress::Manual }
}

/// An endpoint whose queues can be waited on.
struct End {
    domain: Domain,
    transmit: CompletionQueue,
    receive: CompletionQueue,
    counter: Counter,
    endpoint: Endpoint,
    addresses: efa::AddressVector,
}

impl End {
    /// With one queue for both directions.
    fn new(domain: Domain) -> Self {
        Self::with(domain, |transmit, _| transmit)
    }

    /// With a queue for each direction.
    fn with_two_queues(domain: Domain) -> Self {
        Self::with(domain, |_, receive| receive)
    }

    fn with(
        domain: Domain,
        choose: fn(CompletionQueue, CompletionQueue) -> CompletionQueue,
    ) -> Self {
        let queue = || {
            let options = CompletionQueueOptions::default();
            domain.waitable_completion_queue(options, Wait::Fd).unwrap()
        };
        let transmit = queue();
        let receive = choose(transmit.clone(), queue());
        let counter = domain.waitable_counter(CounterOptions::default(), Wait::Fd).unwrap();
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&transmit, Direction::Transmit)
            .bind_completion_queue(&receive, Direction::Receive)
            .bind_address_vector(&addresses)
            .bind_counter(&counter, Counted::RECEIVE)
            .enable()
            .unwrap();
        Self { domain, transmit, receive, counter, endpoint, addresses }
    }

    fn insert(&self, address: Address) -> FiAddr {
        self.addresses.insert(address).unwrap()
    }

    fn post(&self) {
        self.endpoint.receive(Receive::untagged(), vec![0; 8], 0).unwrap();
    }

    fn send(&self, to: FiAddr, number: u64) {
        self.endpoint.send(Message::to(to), number.to_le_bytes().to_vec(), number).unwrap();
    }

    fn fabric(&self) -> &Fabric {
        self.domain.fabric()
    }
}

fn pair(network: &Network) -> ([End; 2], [FiAddr; 2]) {
    introduced(network.domains().map(End::new))
}

/// The ends, and the address of the other that each has.
fn introduced(ends: [End; 2]) -> ([End; 2], [FiAddr; 2]) {
    let [a, b] = &ends;
    let peers = [a.insert(b.endpoint.address()), b.insert(a.endpoint.address())];
    (ends, peers)
}

/// Sleeps that ended by a look of the link at itself, among all.
#[derive(Default)]
struct Sleeps {
    lost: AtomicU64,
}

impl Sleeps {
    fn note(&self, in_time: bool) {
        self.lost.fetch_add(u64::from(!in_time), Ordering::Relaxed);
    }

    /// The next completion.
    fn wait(&self, queue: &CompletionQueue) -> efa::Completion {
        let begin = Instant::now();
        let completion = queue.wait(TIMEOUT).unwrap();
        self.note(begin.elapsed() <= LOST);
        completion
    }

    /// Sleeps at once, without looking for a while first.
    fn wait_asleep(&self, fabric: &Fabric, queue: &CompletionQueue) -> efa::Completion {
        let begin = Instant::now();
        let completion = loop {
            match fabric.try_wait(&[queue]) {
                Ok(()) => assert!(readable(queue, TIMEOUT), "nothing for {TIMEOUT:?}"),
                Err(TryWaitError::Pending) => {}
                Err(other) => panic!("{other}"),
            }
            if let Some(entry) = queue.read() {
                break entry.unwrap();
            }
        };
        self.note(begin.elapsed() <= LOST);
        completion
    }

    fn check(&self) {
        assert_eq!(self.lost.load(Ordering::Relaxed), 0, "sleeps that nobody ended in time");
    }
}

fn readable(queue: &CompletionQueue, timeout: Duration) -> bool {
    let descriptor = queue.as_fd().unwrap();
    let timeout = Timespec::try_from(timeout).unwrap();
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

/// Messages go to and fro, and all threads sleep until theirs: of the first end, one at the queue of its sends and
/// one at that of its receives.
fn two_readers_and_a_peer_sleep(network: &Network) {
    let rounds = rounds();
    let [first, second] = network.domains();
    let ends = [End::with_two_queues(first), End::new(second)];
    let ([a, b], [to_b, to_a]) = introduced(ends);
    let sleeps = Sleeps::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                assert_eq!(sleeps.wait_asleep(a.fabric(), &a.transmit).context, round);
            }
        });
        scope.spawn(|| {
            for round in 0..rounds {
                a.post();
                a.send(to_b, round);
                let reply = sleeps.wait_asleep(a.fabric(), &a.receive);
                assert_eq!(reply.into_message(), round.to_le_bytes());
            }
        });
        scope.spawn(|| {
            let mut sent = 0;
            b.post();
            while sent < 2 * rounds {
                let completion = sleeps.wait_asleep(b.fabric(), &b.receive);
                sent += 1;
                if completion.kind == Kind::Receive {
                    let number = completion.into_message();
                    b.post();
                    b.send(
                        to_a,
                        u64::from_le_bytes(number.as_slice().unwrap().try_into().unwrap()),
                    );
                }
            }
        });
    });
    sleeps.check();
}

#[test]
fn two_readers_asleep_on_the_queues_of_an_endpoint_are_always_woken_over_shm() {
    two_readers_and_a_peer_sleep(&shm());
}

#[test]
fn two_readers_asleep_on_the_queues_of_an_endpoint_are_always_woken_over_tcp() {
    two_readers_and_a_peer_sleep(&tcp());
}

#[test]
fn two_readers_asleep_on_the_queues_of_an_endpoint_are_always_woken_in_a_process() {
    two_readers_and_a_peer_sleep(&local());
}

#[test]
fn two_readers_are_always_woken_under_automatic_progress_over_shm() {
    two_readers_and_a_peer_sleep(&shm().automatic());
}

#[test]
fn two_readers_are_always_woken_under_automatic_progress_over_tcp() {
    two_readers_and_a_peer_sleep(&tcp().automatic());
}

// conformance: C24
#[test]
fn operations_complete_under_automatic_progress_while_the_program_makes_no_calls() {
    for network in [shm(), tcp(), local()] {
        for progress in [Progress::Manual, Progress::Automatic] {
            let network = Network { fabrics: network.fabrics.clone(), _directory: None, progress };
            let ([a, b], [to_b, _]) = pair(&network);
            assert_eq!(b.domain.attributes().progress, progress);
            // Its packets are answered by the receiver, and so is the confirmation of the delivery.
            b.endpoint.receive(Receive::untagged(), vec![0; 1 << 20], 1).unwrap();
            let message = Message::to(to_b).delivery_complete();
            a.endpoint.send(message, vec![7; 1 << 20], 2).unwrap();
            let waited = match progress {
                Progress::Manual => a.transmit.wait(Duration::from_millis(200)),
                _ => a.transmit.wait(TIMEOUT),
            };
            assert_eq!(waited.is_ok(), progress == Progress::Automatic, "{waited:?}");
        }
    }
}

#[test]
fn automatic_progress_is_refused_with_a_manual_clock() {
    let fabric = Fabric::local(LocalOptions::default()).with_clock(&ManualClock::new());
    let refused = fabric.domain_with(DomainOptions::new().progress(Progress::Automatic));
    let words = refused.unwrap_err().to_string();
    assert!(words.ends_with("domain.progress: Automatic"), "{words}");
}

/// Each side waits in calls that block.
#[test]
fn blocking_reads_of_both_sides_return_each_message() {
    for network in [shm(), tcp(), local()] {
        let ([a, b], [to_b, to_a]) = pair(&network);
        let sleeps = Sleeps::default();
        let side = |end: &End, to, begins: bool| {
            let mut left = rounds() / 5;
            end.post();
            if begins {
                end.send(to, 0);
            }
            let all = 2 * left;
            for _ in 0..all {
                if sleeps.wait(&end.receive).kind != Kind::Receive {
                    continue;
                }
                left -= 1;
                end.post();
                if left > 0 || !begins {
                    end.send(to, 0);
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| side(&a, to_b, true));
            scope.spawn(|| side(&b, to_a, false));
        });
        sleeps.check();
    }
}

// conformance: C79 C135
#[test]
fn descriptor_works_in_poll_epoll_and_select() {
    for network in [shm(), tcp(), local()] {
        let ([a, b], [to_b, _]) = pair(&network);
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let data = epoll::EventData::new_u64(7);
        let descriptor = b.receive.as_fd().unwrap();
        epoll::add(&poller, descriptor, data, epoll::EventFlags::IN).unwrap();
        let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
        for way in 0..3 {
            b.post();
            // Asleep before the message is sent.
            while b.fabric().try_wait(&[&b.receive]).is_err() {
                assert!(b.receive.read().is_none());
            }
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(5));
                    a.send(to_b, way);
                    // The packet is also acknowledged only if both sides go on.
                    a.transmit.wait(TIMEOUT).unwrap();
                });
                let received = loop {
                    if let Some(entry) = b.receive.read() {
                        break entry.unwrap();
                    }
                    if b.fabric().try_wait(&[&b.receive]).is_err() {
                        continue;
                    }
                    match way {
                        0 => assert!(readable(&b.receive, TIMEOUT)),
                        1 => {
                            let mut events = [std::mem::MaybeUninit::uninit(); 4];
                            let (ready, _) =
                                epoll::wait(&poller, &mut events, Some(&timeout)).unwrap();
                            assert!(ready.iter().all(|event| { event.data }.u64() == 7));
                            assert!(!ready.is_empty());
                        }
                        _ => assert_eq!(select(&b.receive, &timeout), 1),
                    }
                };
                assert_eq!(received.into_message(), way.to_le_bytes());
            });
        }
    }
}

fn select(queue: &CompletionQueue, timeout: &Timespec) -> i32 {
    use std::os::fd::AsRawFd;
    let descriptor = queue.as_fd().unwrap().as_raw_fd();
    let count = rustix::event::fd_set_num_elements(1, descriptor + 1);
    let mut set = vec![FdSetElement::default(); count];
    rustix::event::fd_set_insert(&mut set, descriptor);
    // SAFETY: the descriptor is open as long as the queue lives, which the caller holds.
    unsafe { rustix::event::select(descriptor + 1, Some(&mut set), None, None, Some(timeout)) }
        .unwrap()
}

// conformance: C134
#[test]
fn try_wait_says_that_something_is_pending_as_long_as_it_is_unread() {
    let network = shm();
    let ([a, b], [to_b, _]) = pair(&network);
    b.post();
    a.send(to_b, 1);
    while b.fabric().try_wait(&[&b.receive]) != Err(TryWaitError::Pending) {
        a.transmit.read();
    }
    for _ in 0..3 {
        let both: [&dyn efa::Waitable; 2] = [&b.counter, &b.receive];
        assert_eq!(b.fabric().try_wait(&both), Err(TryWaitError::Pending));
    }
    assert!(b.receive.read().unwrap().is_ok());
    assert_eq!(b.fabric().try_wait(&[&b.receive]), Ok(()));
    assert_eq!(b.fabric().try_wait(&[&b.counter]), Err(TryWaitError::Pending));
    assert_eq!(b.counter.value(), 1);
    assert_eq!(b.fabric().try_wait(&[&b.counter]), Ok(()));
    let polled = b.domain.completion_queue(CompletionQueueOptions::default());
    assert!(polled.as_fd().is_none());
    assert_eq!(b.fabric().try_wait(&[&polled]), Err(TryWaitError::NotWaitable));
}

#[test]
fn idle_sleeper_takes_no_processor_time() {
    for network in [shm(), tcp(), local()] {
        let ([_a, b], _) = pair(&network);
        let spent = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
        let (before, begin) = (spent(), Instant::now());
        let timeout = Duration::from_millis(1200);
        assert!(matches!(b.receive.wait(timeout), Err(WaitError::TimedOut(_))));
        let taken = spent() - before;
        assert!(begin.elapsed() >= timeout);
        // It looks for 20 µs first, and once while it sleeps.
        assert!(taken < Duration::from_millis(20), "{taken:?}");
    }
}

// conformance: C69 C81 C133
#[test]
fn blocking_read_returns_at_the_threshold_the_timeout_or_a_signal() {
    let network = shm();
    let ([a, b], [to_b, _]) = pair(&network);
    let mut entries = Vec::new();
    let short = Duration::from_millis(30);
    let begin = Instant::now();
    let timed_out = b.receive.wait_many(&mut entries, 4, 2, short);
    assert!(matches!(timed_out, Err(WaitError::TimedOut(_))) && begin.elapsed() >= short);
    for number in 0..3 {
        b.post();
        a.send(to_b, number);
    }
    thread::scope(|scope| {
        scope.spawn(|| (0..3).for_each(|_| drop(a.transmit.wait(TIMEOUT).unwrap())));
        let count = b.receive.wait_many(&mut entries, 4, 2, TIMEOUT).unwrap();
        assert!(count >= 2);
        while entries.len() < 3 {
            b.receive.wait_many(&mut entries, 4, 1, TIMEOUT).unwrap();
        }
    });
    // Fewer than the threshold, and then the time is up.
    b.post();
    a.send(to_b, 3);
    let sender = thread::spawn(move || {
        a.transmit.wait(TIMEOUT).unwrap();
        a
    });
    entries.clear();
    assert_eq!(b.receive.wait_many(&mut entries, 4, 2, Duration::from_secs(2)).unwrap(), 1);
    drop(sender.join().unwrap());
    // A signal before the wait, and one while the thread sleeps.
    b.receive.signal();
    assert!(matches!(b.receive.wait(TIMEOUT), Err(WaitError::Signalled)));
    let queue = b.receive.clone();
    let asleep = thread::spawn(move || {
        let begin = Instant::now();
        (queue.wait(TIMEOUT), begin.elapsed())
    });
    thread::sleep(Duration::from_millis(50));
    b.receive.signal();
    let (result, after) = asleep.join().unwrap();
    assert!(matches!(result, Err(WaitError::Signalled)) && after < TIMEOUT / 2, "{after:?}");
}

#[test]
fn signal_at_any_moment_wakes_a_blocking_read() {
    let network = local();
    let queue = pair(&network).0[0].receive.clone();
    let (sleeps, begun) = (Sleeps::default(), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds() {
                begun.wait();
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_nanos(round % 64 * 1_000) {}
                queue.signal();
            }
        });
        for _ in 0..rounds() {
            begun.wait();
            sleeps.note(matches!(queue.wait(LOST), Err(WaitError::Signalled)));
        }
    });
    sleeps.check();
}

#[test]
fn readers_asleep_on_one_queue_are_all_woken_when_it_has_something_for_each() {
    const READERS: u64 = 3;
    let network = shm();
    let ([a, b], [to_b, _]) = pair(&network);
    let (sleeps, round) = (Sleeps::default(), Barrier::new(READERS as usize + 1));
    thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                for _ in 0..rounds() {
                    round.wait();
                    sleeps.wait(&b.receive);
                }
            });
        }
        for number in 0..rounds() {
            (0..READERS).for_each(|_| b.post());
            round.wait();
            (0..READERS).for_each(|_| a.send(to_b, number));
            (0..READERS).for_each(|_| drop(sleeps.wait(&a.transmit)));
        }
    });
    sleeps.check();
}

#[test]
fn waits_for_one_counter_at_several_thresholds_all_end() {
    let network = local();
    let counter = pair(&network).0[0].counter.clone();
    let (sleeps, round) = (Sleeps::default(), Barrier::new(3));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for number in 0..rounds() {
                    round.wait();
                    sleeps.note(counter.wait(2 * number + 2, LOST).is_ok());
                    round.wait();
                }
            });
        }
        for _ in 0..rounds() {
            round.wait();
            (0..2).for_each(|_| counter.add(1));
            round.wait();
        }
    });
    sleeps.check();
}

// conformance: C86
#[test]
fn counter_wakes_a_thread_at_its_threshold() {
    for network in [shm(), tcp(), local()] {
        let ([a, b], [to_b, _]) = pair(&network);
        (0..20).for_each(|_| b.post());
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..20 {
                    a.send(to_b, number);
                    thread::sleep(Duration::from_millis(1));
                    a.transmit.wait(TIMEOUT).unwrap();
                }
            });
            for threshold in [1, 2, 3, 5, 8, 12, 16, 20] {
                let begin = Instant::now();
                b.counter.wait(threshold, TIMEOUT).unwrap();
                assert!(begin.elapsed() < LOST, "{threshold}: {:?}", begin.elapsed());
            }
        });
        // `add` of another thread wakes too.
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                b.counter.add(1);
            });
            let begin = Instant::now();
            b.counter.wait(21, TIMEOUT).unwrap();
            assert!(begin.elapsed() < LOST, "{:?}", begin.elapsed());
        });
    }
}

// conformance: C26 C131 C132
#[test]
fn wait_set_wakes_for_each_of_its_objects() {
    let network = shm();
    let [first, second] = &network.fabrics;
    let set = second.wait_set().unwrap();
    let domain = second.domain().unwrap();
    let in_set = || Wait::Set(set.clone());
    let options = CompletionQueueOptions::default;
    let queue = domain.waitable_completion_queue(options(), in_set()).unwrap();
    let other = domain.waitable_completion_queue(options(), in_set()).unwrap();
    let counter = domain.waitable_counter(CounterOptions::default(), in_set()).unwrap();
    let addresses = domain.address_vector();
    let endpoint = domain
        .endpoint(EndpointOptions::default())
        .bind_completion_queue(&other, Direction::Transmit)
        .bind_completion_queue(&queue, Direction::Receive)
        .bind_address_vector(&addresses)
        .enable()
        .unwrap();
    let a = End::new(first.domain().unwrap());
    let to = a.insert(endpoint.address());
    assert!(!set.wait(Duration::from_millis(20)).unwrap());
    endpoint.receive(Receive::untagged(), vec![0; 8], 5).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            a.send(to, 9);
            a.transmit.wait(TIMEOUT).unwrap();
        });
        let begin = Instant::now();
        while queue.read().is_none() {
            assert!(set.wait(TIMEOUT).unwrap());
        }
        assert!(begin.elapsed() < LOST, "{:?}", begin.elapsed());
    });
    assert!(!set.wait(Duration::from_millis(20)).unwrap());
    counter.add(1);
    assert!(set.wait(TIMEOUT).unwrap());
    assert_eq!(counter.value(), 1);
    assert_eq!(set.try_wait(), Ok(()));
    assert!(set.as_fd().try_clone_to_owned().is_ok());
    drop(counter);
    assert_eq!(set.try_wait(), Ok(()));
}

// conformance: C26 C128 C129 C130
#[test]
fn poll_set_returns_the_contexts_of_what_can_be_read() {
    let network = shm();
    let ([a, b], [to_b, _]) = pair(&network);
    let polled = b.domain.counter(CounterOptions::default()).unwrap();
    let mut set = PollSet::new();
    set.add(&b.receive, 1);
    set.add(&b.counter, 2);
    set.add(&polled, 3);
    set.add(&b.receive, 10);
    let mut contexts = [0; 4];
    assert_eq!(set.poll(&mut contexts), 0);
    b.post();
    a.send(to_b, 1);
    // Polling the set alone progresses the endpoint.
    while set.poll(&mut contexts) < 2 {
        a.transmit.read();
    }
    assert_eq!(contexts[..2], [2, 10]);
    assert_eq!(set.poll(&mut contexts[..1]), 1);
    polled.add(1);
    assert_eq!(set.poll(&mut contexts), 3);
    assert_eq!(contexts[..3], [2, 3, 10]);
    assert!(b.receive.read().unwrap().is_ok());
    assert_eq!((b.counter.value(), polled.value()), (1, 1));
    assert_eq!(set.poll(&mut contexts), 0);
    // One that another reader empties meanwhile was reported all the same.
    b.post();
    a.send(to_b, 2);
    while set.poll(&mut contexts) == 0 {
        a.transmit.read();
    }
    assert!(b.receive.read().is_some() && b.receive.read().is_none());
    assert_eq!(b.counter.value(), 2);
    polled.add(1);
    assert!(set.remove(&polled) && !set.remove(&polled));
    assert_eq!(set.poll(&mut contexts), 0);
}

/// A receive that matches an unexpected message completes as it is posted. The thread that sleeps is another.
#[test]
fn receive_of_another_thread_that_completes_at_once_wakes_the_reader() {
    for network in [shm(), tcp(), local()] {
        let ([a, b], [to_b, _]) = pair(&network);
        a.send(to_b, 1);
        let begin = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                a.transmit.wait(TIMEOUT).unwrap();
                begin.wait();
                thread::sleep(Duration::from_millis(50));
                b.post();
            });
            // Takes the message, which nothing matches.
            let unexpected = b.receive.wait(Duration::from_millis(100));
            assert!(matches!(unexpected, Err(WaitError::TimedOut(_))));
            begin.wait();
            let asleep = Instant::now();
            b.receive.wait(TIMEOUT).unwrap();
            assert!(asleep.elapsed() < LOST, "{:?}", asleep.elapsed());
        });
    }
}

#[test]
fn manual_clock_is_moved_and_never_slept_on() {
    let clock = ManualClock::new();
    let options = LocalOptions::default()
        .with(|options| options.delay = Duration::from_secs(500)..Duration::from_secs(1000));
    let fabric = Fabric::local(options).with_clock(&clock);
    let ([a, b], [to_b, _]) = pair(&one(fabric));
    let begin = Instant::now();
    b.post();
    a.send(to_b, 1);
    let timeout = Duration::from_secs(10_000);
    b.receive.wait(timeout).unwrap();
    a.transmit.wait(timeout).unwrap();
    assert!(clock.now() - efa::Time::ZERO >= Duration::from_secs(500));
    assert!(begin.elapsed() < TIMEOUT);
}

// ---- a peer that is stopped ---------------------------------------------------------------------

const DIRECTORY: &str = "EFA_TEST_DIRECTORY";
const PEER: &str = "EFA_TEST_PEER";

/// A child process, killed and reaped at the end.
struct Process(Child);

impl Process {
    /// Stops it, and waits until it has stopped.
    fn stop(&self) {
        let process = Pid::from_child(&self.0);
        kill_process(process, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(process), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    fn go_on(&self) {
        kill_process(Pid::from_child(&self.0), Signal::CONT).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn sleeper_outlasts_a_stopped_peer_and_is_woken_when_that_goes_on() {
    let directory = TempDir::new().unwrap();
    let fabric = shm_fabric(directory.path());
    let a = End::new(fabric.domain().unwrap());
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_echoes", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory.path())
        .env(PEER, a.endpoint.address().to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let child = Process(child);
    a.post();
    let hello = a.receive.wait(TIMEOUT).unwrap();
    let to = hello.peer_address.map(|address| a.insert(address)).unwrap();
    for round in 0..5 {
        let exchange = |a: &End| {
            let mut received = 0;
            while received < 2 {
                let begin = Instant::now();
                a.receive.wait(TIMEOUT).unwrap();
                assert!(begin.elapsed() < LOST || round == 0, "{:?}", begin.elapsed());
                received += 1;
            }
        };
        a.post();
        a.send(to, round);
        exchange(&a);
        child.stop();
        a.post();
        a.send(to, round);
        let spent = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
        let before = spent();
        let stopped = a.receive.wait(Duration::from_millis(300));
        assert!(matches!(stopped, Err(WaitError::TimedOut(_))), "{stopped:?}");
        assert!(spent() - before < Duration::from_millis(20), "{:?}", spent() - before);
        child.go_on();
        exchange(&a);
    }
}

/// Not a test of its own: the peer of the one above.
#[test]
#[ignore = "the child process of another test"]
fn child_that_echoes() {
    let (Ok(directory), Ok(peer)) = (std::env::var(DIRECTORY), std::env::var(PEER)) else { return };
    let fabric = shm_fabric(directory.as_ref());
    let end = End::new(fabric.domain().unwrap());
    let to = end.insert(peer.parse().unwrap());
    end.post();
    end.send(to, 99);
    loop {
        // The parent kills this process; if that is gone, it ends by itself.
        match end.receive.wait(Duration::from_secs(60)) {
            Ok(completion) if completion.kind == Kind::Receive => {
                end.post();
                end.send(to, 0);
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

/// Handles can go to other threads.
#[test]
fn queues_and_sets_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<CompletionQueue>();
    shared::<efa::WaitSet>();
    shared::<PollSet>();
    let _: Arc<Wait> = Arc::new(Wait::Unspecified);
}

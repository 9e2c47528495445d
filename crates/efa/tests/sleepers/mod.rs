//! Threads that sleep until a completion queue or counter has something: what holds on every device.
//!
//! `EFA_ROUNDS` sets the number of rounds; a soak runs a million.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use efa::{
    Address, AddressVector, CompletionQueue, CompletionQueueOptions, Counted, Counter,
    CounterOptions, Direction, Domain, DomainOptions, Endpoint, EndpointOptions, Fabric, FiAddr,
    Kind, Message, Progress, Receive, TryWaitError, Wait, WaitError,
};
use rustix::event::{FdSetElement, PollFd, PollFlags, Timespec, epoll, poll};
use tempfile::TempDir;

use crate::spent::Spent;

/// Longer than anything takes here.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// The links look by themselves once a second. Whoever sleeps almost as long was not woken.
pub(crate) const LOST: Duration = Duration::from_millis(950);

pub(crate) fn rounds() -> u64 {
    std::env::var("EFA_ROUNDS").map_or(3_000, |rounds| rounds.parse().unwrap())
}

/// Two fabrics of a network, as two processes have, or one that both sides share.
pub(crate) struct Network {
    pub(crate) fabrics: [Fabric; 2],
    pub(crate) _directory: Option<TempDir>,
    pub(crate) progress: Progress,
}

impl Network {
    /// The same, with a thread in each domain that progresses.
    pub(crate) fn automatic(self) -> Self {
        Self { progress: Progress::Automatic, ..self }
    }

    pub(crate) fn domains(&self) -> [Domain; 2] {
        let options = DomainOptions::new().progress(self.progress);
        self.fabrics.each_ref().map(|fabric| fabric.domain_with(options.clone()).unwrap())
    }
}

/// An endpoint whose queues can be waited on.
pub(crate) struct End {
    pub(crate) domain: Domain,
    pub(crate) transmit: CompletionQueue,
    pub(crate) receive: CompletionQueue,
    pub(crate) counter: Counter,
    pub(crate) endpoint: Endpoint,
    addresses: AddressVector,
}

impl End {
    /// With one queue for both directions.
    pub(crate) fn new(domain: Domain) -> Self {
        Self::with(domain, |transmit, _| transmit)
    }

    /// With a queue for each direction.
    pub(crate) fn with_two_queues(domain: Domain) -> Self {
        Self::with(domain, |_, receive| receive)
    }

    pub(crate) fn with(
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

    pub(crate) fn insert(&self, address: Address) -> FiAddr {
        self.addresses.insert(address).unwrap()
    }

    pub(crate) fn post(&self) {
        self.endpoint.receive(Receive::untagged(), vec![0; 8], 0).unwrap();
    }

    pub(crate) fn send(&self, to: FiAddr, number: u64) {
        self.endpoint.send(Message::to(to), number.to_le_bytes().to_vec(), number).unwrap();
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        self.domain.fabric()
    }
}

pub(crate) fn pair(network: &Network) -> ([End; 2], [FiAddr; 2]) {
    introduced(network.domains().map(End::new))
}

/// The ends, and the address of the other that each has.
pub(crate) fn introduced(ends: [End; 2]) -> ([End; 2], [FiAddr; 2]) {
    let [a, b] = &ends;
    let peers = [a.insert(b.endpoint.address()), b.insert(a.endpoint.address())];
    (ends, peers)
}

/// Sleeps that ended by a look of the link at itself, among all.
#[derive(Default)]
pub(crate) struct Sleeps {
    lost: AtomicU64,
}

impl Sleeps {
    pub(crate) fn note(&self, in_time: bool) {
        self.lost.fetch_add(u64::from(!in_time), Ordering::Relaxed);
    }

    /// The next completion.
    pub(crate) fn wait(&self, queue: &CompletionQueue) -> efa::Completion {
        let begin = Instant::now();
        let completion = queue.wait(TIMEOUT).unwrap();
        self.note(begin.elapsed() <= LOST);
        completion
    }

    /// Sleeps at once, without looking for a while first.
    pub(crate) fn wait_asleep(&self, fabric: &Fabric, queue: &CompletionQueue) -> efa::Completion {
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

    pub(crate) fn check(&self) {
        assert_eq!(self.lost.load(Ordering::Relaxed), 0, "sleeps that nobody ended in time");
    }
}

pub(crate) fn readable(queue: &CompletionQueue, timeout: Duration) -> bool {
    let descriptor = queue.as_fd().unwrap();
    let timeout = Timespec::try_from(timeout).unwrap();
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

/// Messages go to and fro, and all threads sleep until theirs: of the first end, one at the queue of its sends and
/// one at that of its receives.
pub(crate) fn two_readers_and_a_peer_sleep(network: &Network) {
    let rounds = rounds();
    let [first, second] = network.domains();
    let ends = [End::with_two_queues(first), End::new(second)];
    let ([a, b], [to_b, to_a]) = introduced(ends);
    let sleeps = Sleeps::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            // The send after a reply may complete before the one that the reply was for.
            let mut unsent: HashSet<u64> = (0..rounds).collect();
            while !unsent.is_empty() {
                let sent = sleeps.wait_asleep(a.fabric(), &a.transmit).context;
                assert!(unsent.remove(&sent), "{sent} completed twice");
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

/// Under automatic progress, and not under manual one, operations complete though the program makes no calls.
pub(crate) fn operations_complete_without_calls_if_automatic(network: &Network) {
    for progress in [Progress::Manual, Progress::Automatic] {
        let network = &Network { fabrics: network.fabrics.clone(), _directory: None, progress };
        let ([a, b], [to_b, _]) = pair(network);
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

/// Each side waits in calls that block.
pub(crate) fn blocking_reads_return_each_message(network: &Network) {
    let ([a, b], [to_b, to_a]) = pair(network);
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

pub(crate) fn descriptor_works_in_poll_epoll_and_select(network: &Network) {
    let ([a, b], [to_b, _]) = pair(network);
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
                        let (ready, _) = epoll::wait(&poller, &mut events, Some(&timeout)).unwrap();
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

pub(crate) fn idle_sleeper_takes_no_processor_time(network: &Network, spent: fn() -> Spent) {
    let ([_a, b], _) = pair(network);
    let (before, begin) = (spent(), Instant::now());
    let timeout = Duration::from_millis(1200);
    assert!(matches!(b.receive.wait(timeout), Err(WaitError::TimedOut(_))));
    // It looks for 20 µs first, and once while it sleeps.
    spent().check_idle(before, 12);
    assert!(begin.elapsed() >= timeout);
}

pub(crate) fn counter_wakes_a_thread_at_its_threshold(network: &Network) {
    let ([a, b], [to_b, _]) = pair(network);
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

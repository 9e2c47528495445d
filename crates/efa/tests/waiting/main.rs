//! Threads that sleep until a completion queue or counter has something, on each link.
//!
//! `EFA_ROUNDS` sets the number of rounds; a soak runs a million.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod idle;
mod long;
#[path = "../sleepers/mod.rs"]
mod sleepers;
#[path = "../spent/mod.rs"]
mod spent;
mod stopped;

use std::os::fd::AsFd;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use efa::{
    CompletionQueue, CompletionQueueOptions, ControlEvent, Counted, CounterOptions, Direction,
    DomainOptions, EndpointOptions, EventQueueOptions, Fabric, LocalOptions, ManualClock, PollSet,
    Progress, Receive, ShmOptions, TcpOptions, TryWaitError, Wait, WaitError,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sleepers::{End, LOST, Network, Sleeps, TIMEOUT, pair, rounds, two_readers_and_a_peer_sleep};
use spent::Spent;
use tempfile::TempDir;

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

fn networks() -> [Network; 3] {
    [shm(), tcp(), local()]
}

fn one(fabric: Fabric) -> Network {
    let fabrics = [fabric.clone(), fabric];
    Network { fabrics, _directory: None, progress: Progress::Manual }
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
    networks().iter().for_each(sleepers::operations_complete_without_calls_if_automatic);
}

#[test]
fn automatic_progress_is_refused_with_a_manual_clock() {
    let fabric = Fabric::local(LocalOptions::default()).with_clock(&ManualClock::new());
    let refused = fabric.domain_with(DomainOptions::new().progress(Progress::Automatic));
    let words = refused.unwrap_err().to_string();
    assert!(words.ends_with("domain.progress: Automatic"), "{words}");
}

#[test]
fn blocking_reads_of_both_sides_return_each_message() {
    networks().iter().for_each(sleepers::blocking_reads_return_each_message);
}

// conformance: C79 C135
#[test]
fn descriptor_works_in_poll_epoll_and_select() {
    networks().iter().for_each(sleepers::descriptor_works_in_poll_epoll_and_select);
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
    for network in networks() {
        sleepers::idle_sleeper_takes_no_processor_time(&network, Spent::by_this_thread);
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
fn signal_ends_a_wait_at_a_queue_that_is_not_waitable() {
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    queue.signal();
    assert!(matches!(queue.wait(TIMEOUT), Err(WaitError::Signalled)));
    let short = Duration::from_millis(5);
    assert!(matches!(queue.wait(short), Err(WaitError::TimedOut(_))), "once for each signal");
    let waiting = queue.clone();
    let waiter = thread::spawn(move || waiting.wait(TIMEOUT));
    thread::sleep(Duration::from_millis(20));
    queue.signal();
    assert!(matches!(waiter.join().unwrap(), Err(WaitError::Signalled)));
}

#[test]
fn queue_whose_entries_the_program_holds_is_pending_and_ends_waits_before_a_signal() {
    let fabric = Fabric::local(LocalOptions::default());
    let domain = fabric.domain().unwrap();
    let set = fabric.wait_set().unwrap();
    let wait = Wait::Set(set.clone());
    let options = CompletionQueueOptions::default();
    let queue = domain.waitable_completion_queue(options, wait.clone()).unwrap();
    let events = fabric.waitable_event_queue(EventQueueOptions::default(), wait).unwrap();
    let mut polled = PollSet::new();
    polled.add(&queue, 0);
    polled.add(&events, 1);
    let check = |of: &dyn efa::Waitable, is_held: bool| {
        let pending = Err(TryWaitError::Pending);
        let expected = if is_held { pending } else { Ok(()) };
        for _ in 0..2 {
            assert_eq!(fabric.try_wait(&[of]), expected);
            assert_eq!(set.try_wait(), expected);
            assert_eq!(set.wait(Duration::from_millis(5)).unwrap(), is_held);
            assert_eq!(polled.poll(&mut [0]), usize::from(is_held));
        }
    };
    check(&queue, false);
    queue.hold(true);
    check(&queue, true);
    queue.signal();
    for _ in 0..2 {
        assert!(matches!(queue.wait(TIMEOUT), Err(WaitError::Held)));
    }
    queue.hold(false);
    assert!(matches!(queue.wait(TIMEOUT), Err(WaitError::Signalled)));
    check(&queue, false);
    events.hold(true);
    check(&events, true);
    assert!(events.wait_pending(TIMEOUT).unwrap());
    events.hold(false);
    check(&events, false);
    assert!(!events.wait_pending(Duration::from_millis(5)).unwrap());
    // An event that is there stays.
    events.write(7).unwrap();
    assert!(events.wait_pending(TIMEOUT).unwrap());
    assert!(matches!(events.read(), Some(Ok(ControlEvent::User(7)))));

    let asleep = thread::scope(|scope| {
        let completions = scope.spawn(|| queue.wait(TIMEOUT));
        let control = scope.spawn(|| events.wait_pending(TIMEOUT));
        thread::sleep(Duration::from_millis(50));
        let begin = Instant::now();
        queue.hold(true);
        events.hold(true);
        assert!(matches!(completions.join().unwrap(), Err(WaitError::Held)));
        assert!(control.join().unwrap().unwrap());
        begin.elapsed()
    });
    assert!(asleep < TIMEOUT / 2, "{asleep:?}");
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
fn wait_for_the_lower_threshold_ends_though_a_thread_with_a_higher_one_wakes_up_first() {
    let network = local();
    let counter = pair(&network).0[0].counter.clone();
    let (sleeps, round) = (Sleeps::default(), Barrier::new(3));
    thread::scope(|scope| {
        for threshold in [1, 2] {
            let (counter, sleeps, round) = (&counter, &sleeps, &round);
            scope.spawn(move || {
                for number in 0..rounds() {
                    round.wait();
                    sleeps.note(counter.wait(2 * number + threshold, LOST).is_ok());
                    if threshold == 1 {
                        counter.add(1);
                    }
                    round.wait();
                }
            });
        }
        for number in 0..rounds() {
            round.wait();
            // In every other round both threads have time to fall asleep.
            if number % 2 == 0 {
                thread::sleep(Duration::from_micros(100));
            }
            counter.add(1);
            round.wait();
        }
    });
    sleeps.check();
}

// conformance: C86
#[test]
fn counter_wakes_a_thread_at_its_threshold() {
    networks().iter().for_each(sleepers::counter_wakes_a_thread_at_its_threshold);
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
    assert!(set.wait(Duration::MAX).unwrap());
    assert_eq!(counter.value(), 1);
    assert_eq!(set.try_wait(), Ok(()));
    assert!(set.as_fd().try_clone_to_owned().is_ok());
    drop(counter);
    assert_eq!(set.try_wait(), Ok(()));
}

#[test]
fn wait_set_reports_no_object_that_the_program_has_dropped_though_an_endpoint_has_it() {
    let fabric = Fabric::local(LocalOptions::default());
    let domain = fabric.domain().unwrap();
    let (set, addresses) = (fabric.wait_set().unwrap(), domain.address_vector());
    let wait = Wait::Set(set.clone());
    let options = CompletionQueueOptions::default();
    let queue = domain.waitable_completion_queue(options, wait.clone()).unwrap();
    let counter = domain.waitable_counter(CounterOptions::default(), wait.clone()).unwrap();
    let events = fabric.waitable_event_queue(EventQueueOptions::default(), wait).unwrap();
    let endpoint = domain
        .endpoint(EndpointOptions::default())
        .bind_completion_queue(&queue, Direction::Both)
        .bind_counter(&counter, Counted::RECEIVE)
        .bind_event_queue(&events)
        .bind_address_vector(&addresses)
        .enable()
        .unwrap();
    let receive = endpoint.receive(Receive::untagged(), vec![0; 1], 1).unwrap();
    assert!(endpoint.cancel(receive));
    counter.add(1);
    events.hold(true);
    let (other_handle, pending) = (queue.clone(), Err(TryWaitError::Pending));
    drop(queue);
    assert_eq!(set.try_wait(), pending);
    assert_eq!(other_handle.read().unwrap().unwrap_err().completion.context, 1);
    other_handle.hold(true);
    drop(other_handle);
    assert_eq!(set.try_wait(), pending, "the counter and the event queue");
    drop(counter);
    assert_eq!(set.try_wait(), pending, "the event queue");
    drop(events);
    assert_eq!(set.try_wait(), Ok(()));
    let receive = endpoint.receive(Receive::untagged(), vec![0; 1], 1).unwrap();
    assert!(endpoint.cancel(receive));
    let descriptor = set.as_fd();
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(poll(&mut polled, Some(&now)), Ok(0));
    assert_eq!(set.wait(Duration::from_millis(5)), Ok(false));
}

#[test]
fn error_counted_between_two_reads_of_a_counter_is_news_for_the_next_wait() {
    let domain = local().fabrics[0].domain().unwrap();
    let set = domain.fabric().wait_set().unwrap();
    let counter = domain.waitable_counter(CounterOptions::default(), Wait::Set(set.clone()));
    let counter = counter.unwrap();
    for errors in 1..4 {
        assert_eq!((counter.errors(), set.try_wait()), (errors - 1, Ok(())));
        counter.add_errors(1);
        assert_eq!((counter.value(), set.try_wait()), (0, Err(TryWaitError::Pending)));
    }
    assert_eq!((counter.errors(), set.try_wait()), (3, Ok(())));
    counter.add(1);
    assert_eq!((counter.errors(), set.try_wait()), (3, Err(TryWaitError::Pending)));
    assert_eq!((counter.value(), set.try_wait()), (1, Ok(())));
}

#[test]
fn counter_that_is_set_and_counts_up_to_what_it_was_is_reported_again() {
    let counter = local().fabrics[0].domain().unwrap().counter(CounterOptions::default()).unwrap();
    let (mut polled, mut contexts) = (PollSet::new(), [0]);
    polled.add(&counter, 7);
    for _ in 0..3 {
        counter.set(0);
        counter.add(1);
        assert_eq!((polled.poll(&mut contexts), contexts), (1, [7]));
        assert_eq!(polled.poll(&mut contexts), 0);
    }
}

/// Who looks first empties the eventfd for both.
#[test]
fn thread_asleep_in_a_wait_set_is_woken_although_another_one_looks_first() {
    let fabric = &local().fabrics[0];
    let domain = fabric.domain().unwrap();
    let set = fabric.wait_set().unwrap();
    let counter = domain.waitable_counter(CounterOptions::default(), Wait::Set(set.clone()));
    let (counter, sleeps, barrier) = (counter.unwrap(), Sleeps::default(), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..rounds() {
                barrier.wait();
                let begin = Instant::now();
                assert_eq!(set.wait(LOST), Ok(true), "it looks again at the end");
                sleeps.note(begin.elapsed() < LOST);
                assert!(counter.value() > 0);
                barrier.wait();
            }
        });
        for round in 0..rounds() {
            barrier.wait();
            // The other one is about to sleep, or asleep.
            for _ in 0..round % 64 * 100 {
                std::hint::spin_loop();
            }
            counter.add(1);
            set.wait(Duration::ZERO).unwrap();
            barrier.wait();
        }
    });
    sleeps.check();
}

/// Nobody who looked before has entered it.
#[test]
fn thread_asleep_in_a_wait_set_is_woken_for_an_object_that_joined_later_although_another_looks_first()
 {
    let fabric = &local().fabrics[0];
    let domain = fabric.domain().unwrap();
    let set = fabric.wait_set().unwrap();
    let (sleeps, barrier) = (Sleeps::default(), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..rounds() {
                barrier.wait();
                let begin = Instant::now();
                set.wait(LOST).unwrap();
                sleeps.note(begin.elapsed() < LOST);
                barrier.wait();
            }
        });
        for round in 0..rounds() {
            barrier.wait();
            for _ in 0..round % 64 * 100 {
                std::hint::spin_loop();
            }
            let counter =
                domain.waitable_counter(CounterOptions::default(), Wait::Set(set.clone()));
            let counter = counter.unwrap();
            counter.add(1);
            set.wait(Duration::ZERO).unwrap();
            barrier.wait();
            assert_eq!(counter.value(), 1);
        }
    });
    sleeps.check();
}

/// Only who prepares for sleep arms an endpoint.
#[test]
fn thread_asleep_is_woken_by_what_arrives_at_an_endpoint_that_was_enabled_meanwhile() {
    for network in networks() {
        let [first, second] = network.domains();
        let sender = End::new(first);
        let sleeps = Sleeps::default();
        let set = second.fabric().wait_set().unwrap();
        let options = CompletionQueueOptions::default;
        let alone = second.waitable_completion_queue(options(), Wait::Fd).unwrap();
        let in_set = second.waitable_completion_queue(options(), Wait::Set(set.clone())).unwrap();
        let counter = second.waitable_counter(CounterOptions::default(), Wait::Fd).unwrap();
        let unread = second.unread_completion_queue();
        let addresses = second.address_vector();
        let wait_alone = || drop(alone.wait(TIMEOUT).unwrap());
        let wait_in_set = || {
            while in_set.read().is_none() {
                assert!(set.wait(TIMEOUT).unwrap());
            }
        };
        let wait_counting = || counter.wait(1, TIMEOUT).unwrap();
        let waits: [(_, &(dyn Fn() + Sync)); 3] =
            [(&alone, &wait_alone), (&in_set, &wait_in_set), (&unread, &wait_counting)];
        for (queue, wait) in waits {
            thread::scope(|scope| {
                let sleeper = scope.spawn(|| {
                    let begin = Instant::now();
                    wait();
                    sleeps.note(begin.elapsed() < LOST);
                });
                thread::sleep(Duration::from_millis(20));
                let endpoint = second
                    .endpoint(EndpointOptions::default())
                    .bind_completion_queue(queue, Direction::Both)
                    .bind_address_vector(&addresses)
                    .bind_counter(&counter, Counted::RECEIVE)
                    .enable()
                    .unwrap();
                // The thread that was woken by it sleeps again.
                thread::sleep(Duration::from_millis(20));
                endpoint.receive(Receive::untagged(), vec![0; 8], 1).unwrap();
                sender.send(sender.insert(endpoint.address()), 9);
                sender.transmit.wait(TIMEOUT).unwrap();
                sleeper.join().unwrap();
            });
            counter.set(0);
        }
        sleeps.check();
    }
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
    // A queue is reported as long as it has something, a counter once for each change, also if it was read elsewhere.
    assert_eq!((set.poll(&mut contexts), contexts[0]), (1, 10));
    polled.add(1);
    assert_eq!(polled.value(), 1);
    assert_eq!(set.poll(&mut []), 0);
    assert_eq!(set.poll(&mut contexts), 2);
    assert_eq!(contexts[..2], [3, 10]);
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

/// Handles can go to other threads.
#[test]
fn queues_and_sets_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<CompletionQueue>();
    shared::<efa::WaitSet>();
    shared::<PollSet>();
    let _: Arc<Wait> = Arc::new(Wait::Unspecified);
}

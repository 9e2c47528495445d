//! Threads that sleep until an event queue has something, on each link.

use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use efa::{
    ConnectError, ControlError, ControlEvent, EventQueue, EventQueueOptions, EventWaitError,
    Fabric, LocalOptions, MsgEndpointOptions, PollSet, TcpOptions, TryWaitError, Wait,
};
use rustix::event::{FdSetElement, PollFd, PollFlags, Timespec, epoll, poll};
use tempfile::TempDir;

use super::net::shm;
use super::{Side, TIMEOUT};
use crate::spent::Spent;

const AT_ONCE: Duration = Duration::ZERO;

/// Runs `test` on each link with two fabrics of one network, in real time.
fn on_each_link(test: impl Fn(Fabric, Fabric)) {
    let directory = TempDir::new().unwrap();
    test(shm(&directory), shm(&directory));
    let tcp = || Fabric::tcp(TcpOptions::new([127, 0, 0, 1]));
    test(tcp(), tcp());
    let delay = Duration::from_millis(5);
    let local = LocalOptions::default().with(|options| options.delay = delay..2 * delay);
    let local = Fabric::local(local);
    test(local.clone(), local);
}

fn timespec(timeout: Duration) -> Timespec {
    Timespec::try_from(timeout).unwrap()
}

fn by_poll(descriptor: BorrowedFd<'_>, timeout: Duration) -> bool {
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timespec(timeout))).unwrap() > 0
}

fn by_epoll(descriptor: BorrowedFd<'_>, timeout: Duration) -> bool {
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let data = epoll::EventData::new_u64(0);
    epoll::add(&poller, descriptor, data, epoll::EventFlags::IN).unwrap();
    let mut events = [MaybeUninit::uninit(); 4];
    !epoll::wait(&poller, &mut events, Some(&timespec(timeout))).unwrap().0.is_empty()
}

fn by_select(descriptor: BorrowedFd<'_>, timeout: Duration) -> bool {
    let number = descriptor.as_raw_fd();
    let count = rustix::event::fd_set_num_elements(1, number + 1);
    let mut set = vec![FdSetElement::default(); count];
    rustix::event::fd_set_insert(&mut set, number);
    let timeout = timespec(timeout);
    // SAFETY: the descriptor is borrowed, so it is open.
    let ready = unsafe {
        rustix::event::select(number + 1, Some(&mut set), None, None, Some(&timeout)).unwrap()
    };
    ready == 1
}

/// The next event, by `try_wait` and a sleep on the descriptor.
fn sleep_for_event(
    fabric: &Fabric,
    events: &EventQueue,
    sleep: fn(BorrowedFd<'_>, Duration) -> bool,
) -> Result<ControlEvent, ControlError> {
    loop {
        match fabric.try_wait(&[events]) {
            Ok(()) => assert!(sleep(events.as_fd(), TIMEOUT), "nothing for {TIMEOUT:?}"),
            Err(TryWaitError::Pending) => {}
            Err(other) => panic!("{other}"),
        }
        if let Some(event) = events.read() {
            return event;
        }
    }
}

/// A request, both ends of a connect, a shutdown and an event of the program, each of which wakes a thread.
// conformance: C68
#[test]
fn descriptor_of_an_event_queue_wakes_in_poll_epoll_and_select_for_each_kind_of_event() {
    on_each_link(|caller, callee| {
        let (caller, callee) = (Side::on(caller), Side::on(callee));
        for sleep in [by_poll, by_epoll, by_select] {
            let listener = callee.listen("127.0.0.1:0");
            let next = |side: &Side| sleep_for_event(&side.fabric, &side.events, sleep).unwrap();
            assert_eq!(callee.fabric.try_wait(&[&callee.events]), Ok(()));
            assert!(!sleep(callee.events.as_fd(), Duration::from_millis(20)), "idle");
            thread::scope(|scope| {
                scope.spawn(|| {
                    let begin = Instant::now();
                    let ControlEvent::ConnectionRequest(request) = next(&callee) else { panic!() };
                    let accepted = callee.builder(0).accept(request, b"").unwrap();
                    assert!(matches!(next(&callee), ControlEvent::Connected { .. }));
                    assert!(matches!(next(&callee), ControlEvent::Shutdown { .. }));
                    assert!(matches!(next(&callee), ControlEvent::User(5)));
                    assert!(begin.elapsed() < TIMEOUT / 10, "{:?}", begin.elapsed());
                    drop(accepted);
                });
                thread::sleep(Duration::from_millis(30));
                let endpoint = caller.builder(0).connect(listener.local_address(), b"").unwrap();
                assert!(matches!(next(&caller), ControlEvent::Connected { .. }));
                thread::sleep(Duration::from_millis(30));
                endpoint.shutdown(TIMEOUT).unwrap();
                thread::sleep(Duration::from_millis(60));
                callee.events.write(5).unwrap();
            });
        }
    });
}

/// Nobody answers, and nothing is reported but by time.
// conformance: C68
#[test]
fn attempt_to_connect_that_times_out_makes_the_descriptor_readable() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let side = Side::on(Fabric::tcp(TcpOptions::new([127, 0, 0, 1])));
    let options = MsgEndpointOptions::new().connect_timeout(Duration::from_millis(300));
    let begin = Instant::now();
    let _endpoint = side.builder_with(options).connect(silent.local_addr().unwrap(), b"").unwrap();
    let error = sleep_for_event(&side.fabric, &side.events, by_poll).unwrap_err();
    assert!(matches!(error.error, ConnectError::TimedOut { .. }), "{error}");
    let after = begin.elapsed();
    assert!(after >= Duration::from_millis(300) && after < TIMEOUT / 10, "{after:?}");
}

/// The other thread takes the wake-up, begins the attempt, and looks no more.
#[test]
fn attempt_to_connect_that_times_out_wakes_a_thread_that_slept_while_another_one_began_it() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let side = Side::on(Fabric::tcp(TcpOptions::new([127, 0, 0, 1])));
    let options = MsgEndpointOptions::new().connect_timeout(Duration::from_millis(100));
    thread::scope(|scope| {
        for _ in 0..5 {
            let sleeper = scope.spawn(|| side.events.wait(TIMEOUT / 10));
            thread::sleep(Duration::from_millis(10));
            let endpoint = side.builder_with(options.clone());
            let _endpoint = endpoint.connect(silent.local_addr().unwrap(), b"").unwrap();
            assert!(side.events.read().is_none());
            let begin = Instant::now();
            let error = sleeper.join().unwrap().unwrap_err();
            let EventWaitError::Failed(error) = error else { panic!("{error}") };
            assert!(matches!(error.error, ConnectError::TimedOut { .. }), "{error}");
            assert!(begin.elapsed() < TIMEOUT / 20, "it looks again at the end");
        }
    });
}

/// Its poll takes the wake-up, and leaves the event.
#[test]
fn thread_asleep_at_an_event_queue_is_woken_although_a_poll_set_looks_first() {
    const ROUNDS: u32 = 500;
    let fabric = Fabric::local(LocalOptions::default());
    let events = fabric.event_queue(EventQueueOptions::default()).unwrap();
    let (mut polled, barrier) = (PollSet::new(), Barrier::new(2));
    polled.add(&events, 9);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut woken = 0;
            for _ in 0..ROUNDS {
                barrier.wait();
                let begin = Instant::now();
                assert_eq!(
                    events.wait_pending(TIMEOUT / 10),
                    Ok(true),
                    "it looks again at the end"
                );
                woken += u32::from(begin.elapsed() < TIMEOUT / 20);
                barrier.wait();
            }
            woken
        });
        for round in 0..ROUNDS {
            barrier.wait();
            // The other one is about to sleep, or asleep.
            for _ in 0..round % 64 * 100 {
                std::hint::spin_loop();
            }
            events.write(1).unwrap();
            assert_eq!(polled.poll(&mut [0]), 1);
            barrier.wait();
            assert!(events.read().is_some());
        }
        assert_eq!(sleeper.join().unwrap(), ROUNDS);
    });
}

// conformance: C68
#[test]
fn event_queue_in_a_wait_set_and_a_poll_set_is_reported_while_it_has_an_event() {
    on_each_link(|_, fabric| {
        let set = fabric.wait_set().unwrap();
        let in_set = Wait::Set(set.clone());
        let events = fabric.waitable_event_queue(EventQueueOptions::default(), in_set).unwrap();
        let mut polled = PollSet::new();
        polled.add(&events, 9);
        let mut contexts = [0; 2];
        assert_eq!(polled.poll(&mut contexts), 0);
        assert!(!set.wait(Duration::from_millis(20)).unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(30));
                events.write(1).unwrap();
                events.write(2).unwrap();
            });
            let begin = Instant::now();
            assert!(set.wait(TIMEOUT).unwrap());
            assert!(begin.elapsed() < TIMEOUT / 10, "{:?}", begin.elapsed());
        });
        for number in [1, 2] {
            assert_eq!(fabric.try_wait(&[&events]), Err(TryWaitError::Pending));
            assert_eq!((polled.poll(&mut contexts), contexts[0]), (1, 9));
            assert!(set.wait(AT_ONCE).unwrap());
            let event = events.read();
            assert!(matches!(event, Some(Ok(ControlEvent::User(read))) if read == number));
        }
        assert_eq!(fabric.try_wait(&[&events]), Ok(()));
        assert_eq!(polled.poll(&mut contexts), 0);
        assert!(!set.wait(Duration::from_millis(20)).unwrap());
        drop(events);
        assert_eq!(set.try_wait(), Ok(()));
    });
}

// conformance: C68
#[test]
fn blocking_read_of_an_idle_event_queue_takes_no_processor_time() {
    on_each_link(|_, fabric| {
        let side = Side::on(fabric);
        let _listener = side.listen("127.0.0.1:0");
        let before = Spent::by_this_thread();
        let nothing = side.events.wait(Duration::from_millis(500));
        assert!(matches!(nothing, Err(EventWaitError::TimedOut(_))));
        Spent::by_this_thread().check_idle(before, 8);
    });
}

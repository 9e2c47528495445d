//! Endpoints that report their events to an event queue.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use efa::{
    CompletionQueue, CompletionQueueOptions, ControlEvent, Direction, Domain, EnableError,
    Endpoint, EndpointOptions, Event, EventQueue, EventQueueOptions, Fabric, LocalOptions, Message,
    ScalableOptions, TryWaitError, Wait,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const TIMEOUT: Duration = Duration::from_secs(30);

/// An endpoint that knows no peer, and reports to `events`.
fn reporting(domain: &Domain, queue: &CompletionQueue, events: &EventQueue) -> Endpoint {
    domain
        .endpoint(EndpointOptions::default().context(7))
        .bind_completion_queue(queue, Direction::Both)
        .bind_address_vector(&domain.address_vector())
        .bind_event_queue(events)
        .enable()
        .unwrap()
}

/// Another endpoint, which sends a message to `to`.
fn stranger(domain: &Domain, queue: &CompletionQueue, to: &Endpoint) -> Endpoint {
    let addresses = domain.address_vector();
    let endpoint = domain
        .endpoint(EndpointOptions::default())
        .bind_completion_queue(queue, Direction::Both)
        .bind_address_vector(&addresses)
        .enable()
        .unwrap();
    let to = addresses.insert(to.address()).unwrap();
    endpoint.inject(Message::to(to), b"nobody has posted a receive").unwrap();
    endpoint
}

/// Progresses the endpoints of a queue, with nothing to complete, until something is so.
fn progress_until(queue: &CompletionQueue, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < TIMEOUT, "no event in time");
        assert!(queue.read().is_none());
    }
}

fn is_discovery_of(entry: &ControlEvent, by: &Endpoint, of: &Endpoint) -> bool {
    matches!(
        entry,
        ControlEvent::Endpoint { endpoint, context: 7, event: Event::PeerDiscovered(found) }
            if *endpoint == by.id() && *found == of.address()
    )
}

#[test]
fn event_of_an_endpoint_wakes_a_thread_asleep_on_its_event_queue() {
    let fabric = Fabric::local(LocalOptions::default());
    let domain = fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let events = fabric.event_queue(EventQueueOptions::default()).unwrap();
    let bob = reporting(&domain, &queue, &events);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| events.wait(TIMEOUT));
        let alice = stranger(&domain, &queue, &bob);
        // This thread alone progresses the endpoints.
        progress_until(&queue, || sleeper.is_finished());
        let event = sleeper.join().unwrap().unwrap();
        assert!(is_discovery_of(&event, &bob, &alice), "{event:?}");
    });
    assert!(events.read().is_none());
    assert_eq!(bob.event(), None);
}

#[test]
fn wait_set_of_completion_queue_and_event_queue_wakes_its_only_thread_for_an_event() {
    let fabric = Fabric::local(LocalOptions::default());
    let domain = fabric.domain().unwrap();
    let set = fabric.wait_set().unwrap();
    let wait = || Wait::Set(set.clone());
    let queue =
        domain.waitable_completion_queue(CompletionQueueOptions::default(), wait()).unwrap();
    let events = fabric.waitable_event_queue(EventQueueOptions::default(), wait()).unwrap();
    let bob = reporting(&domain, &queue, &events);
    assert!(!set.wait(Duration::from_millis(1)).unwrap(), "nothing has happened");
    let alice = stranger(&domain, &queue, &bob);
    assert!(set.wait(TIMEOUT).unwrap());
    assert!(queue.read().is_none(), "no operation has completed");
    let event = events.read().unwrap().unwrap();
    assert!(is_discovery_of(&event, &bob, &alice), "{event:?}");
    assert!(!set.wait(Duration::from_millis(1)).unwrap(), "all was read");
}

#[test]
fn descriptor_of_an_event_queue_is_readable_while_an_endpoint_has_an_event_that_was_not_read() {
    let fabric = Fabric::local(LocalOptions::default());
    let domain = fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let events = fabric.event_queue(EventQueueOptions::default()).unwrap();
    let bob = reporting(&domain, &queue, &events);
    let is_readable = || {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&events.as_fd(), PollFlags::IN)], Some(&now)).unwrap() > 0
    };
    assert_eq!(fabric.try_wait(&[&events]), Ok(()));
    assert!(!is_readable());
    let _alice = stranger(&domain, &queue, &bob);
    progress_until(&queue, is_readable);
    for _ in 0..3 {
        assert_eq!(fabric.try_wait(&[&events]), Err(TryWaitError::Pending));
    }
    assert!(events.read().unwrap().is_ok());
    assert_eq!(fabric.try_wait(&[&events]), Ok(()));
    assert!(!is_readable());
}

#[test]
fn events_beyond_the_capacity_of_their_queue_wait_at_the_endpoint() {
    const STRANGERS: usize = 5;
    let fabric = Fabric::local(LocalOptions::default());
    let domain = fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let events = fabric.event_queue(EventQueueOptions::default().capacity(1)).unwrap();
    let bob = reporting(&domain, &queue, &events);
    let strangers = [(); STRANGERS].map(|()| stranger(&domain, &queue, &bob));
    while bob.statistics().unexpected < STRANGERS as u64 {
        assert!(queue.read().is_none());
    }
    let mut discovered = [(); STRANGERS].map(|()| match events.wait(TIMEOUT).unwrap() {
        ControlEvent::Endpoint { event: Event::PeerDiscovered(peer), .. } => peer,
        other => panic!("{other:?}"),
    });
    let mut sent = strangers.each_ref().map(Endpoint::address);
    discovered.sort_unstable();
    sent.sort_unstable();
    assert_eq!(discovered, sent);
    assert!(events.read().is_none());
}

#[test]
fn events_of_all_queue_pairs_of_a_scalable_endpoint_come_to_one_queue() {
    let fabric = Fabric::local(LocalOptions::default());
    let domain = fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let events = fabric.event_queue(EventQueueOptions::default()).unwrap();
    let server = domain
        .scalable_endpoint(ScalableOptions::new().receive_contexts(2))
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(&domain.address_vector())
        .bind_event_queue(&events)
        .enable()
        .unwrap();
    let addresses = domain.address_vector();
    let client = domain
        .endpoint(EndpointOptions::default())
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(&addresses)
        .enable()
        .unwrap();
    for address in server.address().queue_pairs() {
        let to = addresses.insert(*address).unwrap();
        client.inject(Message::to(to), b"hello").unwrap();
    }
    let mut discovered_by = Vec::new();
    while discovered_by.len() < 2 {
        assert!(queue.read().is_none());
        if let Some(ControlEvent::Endpoint { endpoint, event, .. }) =
            events.read().map(Result::unwrap)
        {
            assert_eq!(event, Event::PeerDiscovered(client.address()));
            discovered_by.push(endpoint);
        }
    }
    assert_ne!(discovered_by[0], discovered_by[1]);
}

#[test]
fn endpoint_refuses_a_second_event_queue_and_that_of_another_fabric() {
    let [fabric, other] = [(); 2].map(|()| Fabric::local(LocalOptions::default()));
    let domain = fabric.domain().unwrap();
    let events = |fabric: &Fabric| fabric.event_queue(EventQueueOptions::default()).unwrap();
    let builder = || domain.endpoint(EndpointOptions::default());
    let second = builder().bind_event_queue(&events(&fabric)).bind_event_queue(&events(&fabric));
    let bound = efa::Bound::EventQueue;
    assert_eq!(second.enable().unwrap_err(), EnableError::Twice(bound));
    let foreign = builder().bind_event_queue(&events(&other)).enable().unwrap_err();
    assert_eq!(foreign, EnableError::OtherFabric(bound));
    assert_eq!(foreign.to_string(), "the event queue belongs to another fabric");
}

//! Looks at a queue before it is read, and queues whose first endpoint is gone.

use std::path::Path;
use std::time::{Duration, Instant};

use efa::{
    Address, AddressVector, CompletionQueue, CompletionQueueOptions, Direction, Domain, Endpoint,
    EndpointOptions, Fabric, LocalOptions, ManualClock, Message, Receive, ShmOptions,
};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(30);

/// An endpoint on shared memory with a fabric of its own.
struct Side {
    endpoint: Endpoint,
    queue: CompletionQueue,
    addresses: AddressVector,
    domain: Domain,
}

impl Side {
    fn new(directory: &Path) -> Self {
        let directory = Some(directory.join("hosts"));
        let options = ShmOptions::new("test").with(|options| options.directory = directory);
        let domain = Fabric::shm(options).domain().unwrap();
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = enable(&domain, &queue, &addresses);
        Self { endpoint, queue, addresses, domain }
    }

    fn send(&self, to: Address) {
        let to = self.addresses.insert(to).unwrap();
        self.endpoint.inject(Message::to(to), b"hello").unwrap();
    }

    fn post(&self) {
        self.endpoint.receive(Receive::untagged(), vec![0; 5], 7).unwrap();
    }
}

fn enable(domain: &Domain, queue: &CompletionQueue, addresses: &AddressVector) -> Endpoint {
    let endpoint = domain.endpoint(EndpointOptions::default());
    let endpoint = endpoint.bind_completion_queue(queue, Direction::Both);
    endpoint.bind_address_vector(addresses).enable().unwrap()
}

/// Reads both until the message of one is at the other.
fn await_message(from: &Side, to: &Side) {
    let until = Instant::now() + TIMEOUT;
    loop {
        assert!(from.queue.read().is_none());
        if let Some(received) = to.queue.read() {
            assert_eq!(received.unwrap().into_message(), *b"hello");
            return;
        }
        assert!(Instant::now() < until);
    }
}

/// Reads both until neither has anything to do.
fn settle(sides: [&Side; 2]) {
    let until = Instant::now() + TIMEOUT;
    while !sides.iter().all(|side| side.queue.is_idle()) {
        for side in sides {
            assert!(side.queue.read().is_none());
        }
        assert!(Instant::now() < until);
    }
}

/// Two that have sent each other a message.
fn acquainted(directory: &Path) -> (Side, Side) {
    let (alice, bob) = (Side::new(directory), Side::new(directory));
    for (from, to) in [(&alice, &bob), (&bob, &alice)] {
        to.post();
        from.send(to.endpoint.address());
        await_message(from, to);
    }
    (alice, bob)
}

#[test]
fn look_at_a_queue_shows_a_message_or_an_operation_and_ends_after_some() {
    let directory = TempDir::new().unwrap();
    let (alice, bob) = acquainted(directory.path());
    settle([&alice, &bob]);
    alice.send(bob.endpoint.address());
    assert!(!bob.queue.is_idle(), "a message has arrived");
    bob.post();
    await_message(&alice, &bob);
    settle([&alice, &bob]);
    bob.post();
    assert!(!bob.queue.is_idle(), "an operation was started");
    settle([&alice, &bob]);
    assert!((0..1000).any(|_| !bob.queue.is_idle()), "reads are made now and then");
    assert!(bob.queue.read().is_none());
    assert!(bob.queue.is_idle(), "and allow looks again");
    bob.endpoint.close(TIMEOUT).unwrap();
    assert!(!bob.queue.is_idle(), "the receive was cancelled");
}

#[test]
fn queue_may_have_more_until_all_that_arrived_together_is_read() {
    let directory = TempDir::new().unwrap();
    let (alice, bob) = acquainted(directory.path());
    settle([&alice, &bob]);
    for _ in 0..3 {
        bob.post();
        alice.send(bob.endpoint.address());
    }
    for left in [2, 1, 0] {
        assert!(bob.queue.read().is_some_and(|read| read.is_ok()));
        assert_eq!(bob.queue.may_have_more(), left > 0, "{left}");
    }
    drop(bob.endpoint);
    assert!(bob.queue.may_have_more(), "nothing is known of a queue without endpoints");
}

#[test]
fn dropped_endpoint_leaves_its_queue_to_others_and_the_host() {
    let directory = TempDir::new().unwrap();
    let queue_pairs = || {
        let files = std::fs::read_dir(directory.path().join("hosts/test")).unwrap();
        files
            .filter(|file| {
                file.as_ref().unwrap().file_name().as_encoded_bytes().starts_with(b"qp-")
            })
            .count()
    };
    let (alice, mut bob) = acquainted(directory.path());
    assert_eq!(queue_pairs(), 2);
    let next = enable(&bob.domain, &bob.queue, &bob.addresses);
    assert_eq!(queue_pairs(), 3);
    drop(std::mem::replace(&mut bob.endpoint, next));
    assert_eq!(queue_pairs(), 2);
    bob.post();
    alice.send(bob.endpoint.address());
    await_message(&alice, &bob);
    drop(bob.endpoint);
    assert_eq!(queue_pairs(), 1);
    assert!(bob.queue.read().is_none());
}

#[test]
fn read_with_a_manual_clock_does_what_is_due_and_never_only_looks() {
    let clock = ManualClock::new();
    let domain = Fabric::local(LocalOptions::default()).with_clock(&clock).domain().unwrap();
    let addresses = domain.address_vector();
    let [alice, bob] = [(); 2].map(|()| {
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let (addresses, domain) = (addresses.clone(), domain.clone());
        Side { endpoint: enable(&domain, &queue, &addresses), queue, addresses, domain }
    });
    for _ in 0..1000 {
        assert!(bob.queue.read().is_none());
    }
    assert!(!bob.queue.is_idle(), "the clock may be advanced");
    bob.post();
    alice.send(bob.endpoint.address());
    let mut reads = 0;
    let received = loop {
        assert!(alice.queue.read().is_none());
        match bob.queue.read() {
            Some(received) => break received,
            None => clock.advance(Duration::from_micros(1)),
        }
        reads += 1;
        assert!(reads < 1000, "a packet takes 20 µs at most");
    };
    assert_eq!(received.unwrap().into_message(), *b"hello");
}

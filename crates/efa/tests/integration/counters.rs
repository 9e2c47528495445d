//! Counters, and the completion levels at which they count.

use std::time::Duration;

use efa::{
    Access, AtomicOp, CompletionQueueOptions, Counted, Counter, CounterError, CounterEvents,
    CounterOptions, Datatype, Direction, EnableError, EndpointOptions, Error, Fabric, LocalOptions,
    Message, Operation, Receive, Rma, Wanted,
};
use efa_device::Rdma;

use crate::world::{ALICE, BOB, End, World, options, pattern};

const BOTH: Access = Access { remote_read: true, remote_write: true };
const SHORT: Duration = Duration::from_millis(5);
const LONG: Duration = Duration::from_secs(60);

/// A counter for each kind of operation.
struct Counts(Vec<(Counted, Counter)>);

impl Counts {
    /// Values and errors of the kinds that have any.
    fn all(&self) -> Vec<(Counted, u64, u64)> {
        let read =
            |(kind, counter): &(Counted, Counter)| (*kind, counter.value(), counter.errors());
        let values = self.0.iter().map(read);
        values.filter(|(_, value, errors)| value + errors > 0).collect()
    }

    fn of(&self, kind: Counted) -> &Counter {
        &self.0.iter().find(|(of, _)| *of == kind).unwrap().1
    }
}

/// Adds a host with a counter for each kind of operation.
fn add(world: &mut World, options: EndpointOptions) -> Counts {
    let domain = world.fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let mut builder = domain
        .endpoint(options)
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(&addresses);
    let mut counts = Vec::new();
    for kind in Counted::all().iter() {
        let counter = domain.counter(CounterOptions::default()).unwrap();
        builder = builder.bind_counter(&counter, kind);
        counts.push((kind, counter));
    }
    let endpoint = builder.enable().unwrap();
    world.ends.push(End { domain, queue, addresses, endpoint, entries: Default::default() });
    Counts(counts)
}

/// Alice and Bob on a network that reorders, with devices without RDMA.
fn pair(seed: u64) -> (World, Counts, Counts) {
    let mut world = World::new(LocalOptions::default().with(|options| {
        options.seed = seed;
        options.rdma = Rdma::NONE;
    }));
    let (alice, bob) = (add(&mut world, options(1)), add(&mut world, options(2)));
    (world, alice, bob)
}

// conformance: C82 C83
#[test]
fn counters_count_each_kind_of_operation_and_its_failures() {
    let (mut world, alice, bob) = pair(1);
    let to_bob = world.introduce(ALICE, BOB);
    for (context, capacity) in [(1, 100), (2, 10), (3, 100), (4, 100)] {
        world.end(BOB).receive(Receive::untagged(), vec![0; capacity], context).unwrap();
    }
    for context in 1..4 {
        world.end(ALICE).send(Message::to(to_bob), pattern(50, context), context).unwrap();
    }
    world.end(ALICE).inject(Message::to(to_bob), b"short").unwrap();
    world.drive();
    assert_eq!(alice.all(), [(Counted::SEND, 4, 0)], "with the injected one");
    assert_eq!(bob.all(), [(Counted::RECEIVE, 3, 1)], "one was truncated");

    let memory = world.ends[BOB].domain.register(vec![0; 64], BOTH).unwrap();
    let at = Rma::at(to_bob, memory.remote());
    let eight = Rma::at(to_bob, memory.remote().slice(0..8).unwrap());
    world.end(ALICE).write(at, vec![1; 64], 5).unwrap();
    world.end(ALICE).write(at.with_data(7), vec![2; 64], 6).unwrap();
    world.end(ALICE).read(at, vec![0; 64], 7).unwrap();
    world.end(ALICE).atomic(eight, Operation::new(AtomicOp::Sum, &[1_u64]), 8).unwrap();
    let read = Operation::read(Datatype::Uint64);
    world.end(ALICE).fetch_atomic(eight, read, vec![0; 8], 9).unwrap();
    world.drive();
    let expected = [(Counted::SEND, 4, 0), (Counted::READ, 2, 0), (Counted::WRITE, 3, 0)];
    assert_eq!(alice.all(), expected);
    let expected =
        [(Counted::RECEIVE, 3, 1), (Counted::REMOTE_READ, 2, 0), (Counted::REMOTE_WRITE, 3, 0)];
    assert_eq!(bob.all(), expected);

    // A cancelled receive counts as failed.
    let receive = world.end(BOB).receive(Receive::untagged(), vec![0; 8], 10).unwrap();
    assert!(world.end(BOB).cancel(receive));
    assert_eq!((bob.of(Counted::RECEIVE).value(), bob.of(Counted::RECEIVE).errors()), (3, 2));
}

// conformance: C87
#[test]
fn packets_of_the_protocol_alone_are_not_counted() {
    let (mut world, alice, bob) = pair(2);
    let to_bob = world.introduce(ALICE, BOB);
    // An elicited HANDSHAKE, then RTM, CTS, CTSDATA and RECEIPT packets.
    let message = Message::to(to_bob).delivery_complete();
    world.transfer(message, pattern(3_000_000, 1), Receive::untagged(), 3_000_000);
    world.drive();
    assert!(world.end(BOB).statistics().sent.total() > 3);
    assert_eq!(alice.all(), [(Counted::SEND, 1, 0)]);
    assert_eq!(bob.all(), [(Counted::RECEIVE, 1, 0)]);
}

// conformance: C84
#[test]
fn counter_of_bytes_is_not_offered() {
    let world = World::pair(3);
    let refused = world.ends[ALICE].domain.counter(CounterOptions::of(CounterEvents::Bytes));
    let wanted = Wanted::CounterEvents(CounterEvents::Bytes);
    assert_eq!(refused.unwrap_err(), Error::NoData { wanted });
}

// conformance: C85
#[test]
fn counters_count_at_the_completion_level() {
    let (mut world, alice, bob) = pair(4);
    let to_bob = world.introduce(ALICE, BOB);
    let sent = alice.of(Counted::SEND);

    // Injected: no completion; counted when the peer's device has the message.
    let mut bytes = *b"bytes";
    world.end(ALICE).inject(Message::to(to_bob).tagged(1), &bytes).unwrap();
    bytes.fill(0);
    assert_eq!(sent.value(), 0, "it is under way");
    assert!(world.is_silent(ALICE));
    assert_eq!(sent.value(), 1);

    // Transmit complete: counted when the peer's device has the message, without a receive.
    world.end(ALICE).send(Message::to(to_bob).tagged(2), vec![2; 100], 2).unwrap();
    world.drive();
    assert_eq!(sent.value(), 2);
    assert_eq!(world.done(ALICE).context, 2);

    // Delivery complete: counted when the message is in the buffer of a receive.
    let message = Message::to(to_bob).tagged(3).delivery_complete();
    world.end(ALICE).send(message, vec![3; 100], 3).unwrap();
    world.drive();
    assert_eq!(sent.value(), 2, "it waits for a receive");
    assert!(world.is_silent(ALICE));
    world.end(BOB).receive(Receive::tagged(3), vec![0; 100], 33).unwrap();
    world.drive();
    assert_eq!(sent.value(), 3);
    assert_eq!(world.done(ALICE).context, 3);
    assert_eq!(world.done(BOB).into_message(), vec![3; 100]);

    // The first two messages are unexpected and match later receives.
    for (tag, expected) in [(1, b"bytes".to_vec()), (2, vec![2; 100])] {
        world.end(BOB).receive(Receive::tagged(tag), vec![0; 100], tag).unwrap();
        assert_eq!(world.done(BOB).into_message(), expected);
    }
    assert_eq!(bob.all(), [(Counted::RECEIVE, 3, 0)]);
}

#[test]
fn counter_can_be_added_to_set_and_waited_for() {
    let (world, alice, bob) = pair(5);
    let to_bob = world.introduce(ALICE, BOB);
    let counter = bob.of(Counted::RECEIVE);
    counter.add(5);
    counter.add_errors(2);
    assert_eq!((counter.value(), counter.errors()), (5, 2));
    counter.set(40);
    counter.set_errors(0);
    assert_eq!((counter.value(), counter.errors()), (40, 0));
    assert_eq!(counter.wait(40, Duration::ZERO), Ok(()), "reached");
    let timed_out = CounterError::TimedOut { value: 40, threshold: 41, timeout: SHORT, errors: 0 };
    assert_eq!(counter.wait(41, SHORT), Err(timed_out));

    for context in 0..3 {
        world.end(BOB).receive(Receive::untagged(), vec![0; 10], context).unwrap();
    }
    world.end(ALICE).send(Message::to(to_bob), vec![1; 10], 1).unwrap();
    alice.of(Counted::SEND).wait(1, LONG).unwrap();
    assert_eq!(counter.wait(41, LONG), Ok(()));
    // A failed operation ends the wait. The next wait ignores it.
    world.end(ALICE).send(Message::to(to_bob), vec![1; 11], 1).unwrap();
    alice.of(Counted::SEND).wait(2, LONG).unwrap();
    assert_eq!(counter.wait(42, LONG), Err(CounterError::Failed { errors: 1 }));
    world.end(ALICE).send(Message::to(to_bob), vec![1; 10], 1).unwrap();
    alice.of(Counted::SEND).wait(3, LONG).unwrap();
    assert_eq!(counter.wait(42, LONG), Ok(()));
}

#[test]
fn counter_serves_kinds_and_endpoints_but_each_kind_has_one() {
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 6));
    let domain = world.fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let all = domain.counter(CounterOptions::default()).unwrap();
    let builder = |connid| {
        domain
            .endpoint(options(connid))
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
    };
    let kinds = Counted::SEND | Counted::RECEIVE;
    let [alice, bob] =
        [1, 2].map(|connid| builder(connid).bind_counter(&all, kinds).enable().unwrap());
    let to_bob = addresses.insert(bob.address()).unwrap();
    bob.receive(Receive::untagged(), vec![0; 8], 1).unwrap();
    alice.send(Message::to(to_bob), vec![0; 8], 2).unwrap();
    assert_eq!(all.wait(2, LONG), Ok(()), "reading it progresses both");

    let twice = builder(3).bind_counter(&all, kinds).bind_counter(&all, Counted::all()).enable();
    let twice = twice.unwrap_err();
    assert_eq!(twice, EnableError::CountedTwice(Counted::all()));
    assert!(twice.to_string().contains("SEND, RECEIVE"), "{twice}");
    world.add(options(9));
    let other = world.ends[0].domain.counter(CounterOptions::default()).unwrap();
    let error = builder(4).bind_counter(&other, Counted::SEND).enable().unwrap_err();
    assert_eq!(error, EnableError::OtherDomain(efa::Bound::Counter));
}

#[test]
fn threads_wait_for_counters_of_two_endpoints() {
    const MESSAGES: u64 = 200;
    let fabric = Fabric::local(LocalOptions::default().with(|options| options.seed = 7));
    let end = |kind| {
        let domain = fabric.domain().unwrap();
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let counter = domain.counter(CounterOptions::default()).unwrap();
        let endpoint = domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .bind_counter(&counter, kind)
            .enable()
            .unwrap();
        (endpoint, addresses, counter)
    };
    let (alice, addresses, sent) = end(Counted::SEND);
    let (bob, _, received) = end(Counted::RECEIVE);
    let to_bob = addresses.insert(bob.address()).unwrap();
    for context in 0..MESSAGES {
        bob.receive(Receive::untagged(), vec![0; 100], context).unwrap();
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| received.wait(MESSAGES, LONG));
        for context in 0..MESSAGES {
            alice.send(Message::to(to_bob), pattern(100, context), context).unwrap();
        }
        assert_eq!(sent.wait(MESSAGES, LONG), Ok(()));
        assert_eq!(waiting.join().unwrap(), Ok(()));
    });
    assert_eq!((received.value(), received.errors()), (MESSAGES, 0));
}

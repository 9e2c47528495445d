//! Budgets of sends that endpoints share.

use efa::{
    Access, AtomicOp, Bound, CompletionQueueOptions, Counted, CounterOptions, Direction, Domain,
    EnableError, EndpointOptions, FiAddr, Kind, Message, Object, Operation, OperationError,
    Receive, Rma, ScalableOptions, SendBudget, SendBudgetOptions, StartError,
};

use crate::ends::{BOB, End, pattern, with};
use crate::world::{World, options};

const BOTH: Access = Access { remote_read: true, remote_write: true };

/// Two endpoints that share a budget, beside Alice and Bob.
const LEFT: usize = 2;
const RIGHT: usize = 3;

const TO_BOB: FiAddr = FiAddr(0);

fn budget(domain: &Domain, limit: usize) -> SendBudget {
    domain.send_budget(SendBudgetOptions::new().limit(limit).context(78))
}

fn add(world: &mut World, domain: &Domain, options: EndpointOptions, budget: &SendBudget) {
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let endpoint = domain
        .endpoint(options)
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(&addresses)
        .bind_send_budget(budget)
        .enable()
        .unwrap();
    let domain = domain.clone();
    world.ends.push(End { domain, queue, addresses, endpoint, entries: Default::default() });
    let added = world.ends.len() - 1;
    assert_eq!(world.introduce(added, BOB), TO_BOB);
}

fn world(limit: usize) -> (World, SendBudget) {
    let mut world = World::pair(1);
    let domain = world.fabric.domain().unwrap();
    let budget = budget(&domain, limit);
    add(&mut world, &domain, options(3), &budget);
    add(&mut world, &domain, options(4), &budget);
    (world, budget)
}

// conformance: C58
#[test]
fn endpoints_share_a_budget_of_sends_and_complete_on_their_own_queues() {
    let (mut world, budget) = world(3);
    let send = |world: &World, end: usize, context| {
        world.end(end).send(Message::to(TO_BOB), vec![7; 5], context)
    };
    for round in 0..3 {
        send(&world, LEFT, 1).unwrap();
        send(&world, RIGHT, 2).unwrap();
        send(&world, LEFT, 3).unwrap();
        assert_eq!(budget.under_way(), 3);
        for end in [LEFT, RIGHT] {
            let refused = send(&world, end, 9).unwrap_err();
            assert_eq!(refused.error, StartError::Busy { limit: 3 }, "round {round}");
            assert!(refused.error.is_busy());
            assert_eq!(refused.buffer, vec![7; 5]);
        }
        for context in [1, 3] {
            let done = world.done(LEFT);
            assert_eq!((done.endpoint, done.context), (world.end(LEFT).id(), context));
        }
        let done = world.done(RIGHT);
        assert_eq!((done.endpoint, done.context), (world.end(RIGHT).id(), 2));
        assert_eq!(budget.under_way(), 0);
    }
    assert!(world.is_silent(LEFT) && world.is_silent(RIGHT));
    // Whoever has no budget is not bound by it.
    let to_bob = world.introduce(0, BOB);
    for _ in 0..4 {
        world.end(0).send(Message::to(to_bob), "x", 1).unwrap();
    }
}

// conformance: C58
#[test]
fn sends_writes_reads_and_atomics_take_a_share_until_they_complete_and_injected_messages_none() {
    let (mut world, budget) = world(1);
    let memory = world.ends[BOB].domain.register(vec![0; 8], BOTH).unwrap();
    let rma = Rma::at(TO_BOB, memory.remote());
    let sum = || Operation::new(AtomicOp::Sum, &[1_u64]);
    type Start<'a> = Box<dyn Fn(&World) -> Result<(), StartError> + 'a>;
    let operations: [(Kind, Start<'_>); 5] = [
        (
            Kind::Send,
            Box::new(|world| {
                world.end(LEFT).send(Message::to(TO_BOB), "x", 1).map_err(|refused| refused.error)
            }),
        ),
        (
            Kind::Write,
            Box::new(|world| {
                world.end(LEFT).write(rma, vec![0; 8], 1).map_err(|refused| refused.error)
            }),
        ),
        (
            Kind::Read,
            Box::new(|world| {
                world.end(LEFT).read(rma, vec![0; 8], 1).map_err(|refused| refused.error)
            }),
        ),
        (
            Kind::Atomic,
            Box::new(|world| {
                world.end(LEFT).atomic(rma, sum(), 1).map_err(|refused| refused.error)
            }),
        ),
        (
            Kind::FetchAtomic,
            Box::new(|world| {
                let fetched = world.end(LEFT).fetch_atomic(rma, sum(), vec![0; 8], 1);
                fetched.map_err(|refused| refused.error)
            }),
        ),
    ];
    for (kind, start) in &operations {
        start(&world).unwrap();
        assert_eq!(budget.under_way(), 1, "{kind:?}");
        for (_, other) in &operations {
            assert_eq!(other(&world), Err(StartError::Busy { limit: 1 }), "{kind:?}");
        }
        world.end(LEFT).inject(Message::to(TO_BOB), b"x").unwrap();
        world.end(LEFT).receive(Receive::untagged(), vec![0; 1], 2).unwrap();
        assert_eq!(world.done(LEFT).kind, *kind);
        assert_eq!(budget.under_way(), 0, "{kind:?}");
    }
}

#[test]
fn operation_that_does_not_start_or_fails_or_completes_silently_returns_its_share() {
    let mut world = World::pair(1);
    let domain = world.fabric.domain().unwrap();
    let budget = budget(&domain, 2);
    add(&mut world, &domain, with(3, |config| config.max_sends = 1), &budget);
    add(&mut world, &domain, options(4), &budget);
    // Refused by the address vector, and by the engine.
    let unknown = world.end(LEFT).send(Message::to(FiAddr(9)), "x", 1).unwrap_err();
    assert_eq!(unknown.error, StartError::UnknownAddress(FiAddr(9)));
    let memory = world.ends[BOB].domain.register(vec![0; 8], BOTH).unwrap();
    let rma = Rma::at(TO_BOB, memory.remote());
    let refused = world.end(LEFT).write(rma, vec![0; 9], 1).unwrap_err();
    assert_eq!(refused.error, StartError::LengthsDiffer { buffer: 9, remote: 8 });
    assert_eq!(budget.under_way(), 0);
    world.end(LEFT).send(Message::to(TO_BOB), "x", 1).unwrap();
    let refused = world.end(LEFT).send(Message::to(TO_BOB), "x", 1).unwrap_err();
    assert_eq!(refused.error, StartError::Busy { limit: 1 }, "the endpoint's own");
    assert_eq!(budget.under_way(), 1);
    world.done(LEFT);

    // Ended with their peer, and with their endpoint.
    world.end(LEFT).send(Message::to(TO_BOB), pattern(1_000_000, 1), 1).unwrap();
    world.end(RIGHT).send(Message::to(TO_BOB), pattern(1_000_000, 1), 1).unwrap();
    assert_eq!(budget.under_way(), 2);
    world.ends[LEFT].addresses.remove(TO_BOB).unwrap();
    assert_eq!(world.failed(LEFT).error, OperationError::PeerRemoved);
    assert_eq!(budget.under_way(), 1);
    drop(world.ends.pop().unwrap().endpoint);
    assert_eq!(budget.under_way(), 0);

    // Silently, and counted.
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let counter = domain.counter(CounterOptions::default()).unwrap();
    let addresses = domain.address_vector();
    let silent = domain
        .endpoint(options(5))
        .bind_completion_queue(&queue, Direction::Both)
        .selective(Direction::Both)
        .bind_counter(&counter, Counted::SEND)
        .bind_address_vector(&addresses)
        .bind_send_budget(&budget)
        .enable()
        .unwrap();
    let to_bob = addresses.insert(world.end(BOB).address()).unwrap();
    silent.send(Message::to(to_bob), "x", 1).unwrap();
    silent.send(Message::to(to_bob), "x", 1).unwrap();
    assert_eq!(budget.under_way(), 2);
    while counter.value() < 2 {
        world.read();
        world.tick();
    }
    assert_eq!((budget.under_way(), queue.read()), (0, None));
}

#[test]
fn budget_of_another_domain_or_a_second_one_is_refused_and_attributes_say_the_limit() {
    let (world, budget) = world(3);
    let enable = |domain: &Domain, twice| {
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let builder = domain
            .endpoint(options(5))
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&domain.address_vector())
            .bind_send_budget(&budget);
        if twice { builder.bind_send_budget(&budget) } else { builder }.enable().map(|_| ())
    };
    let domain = &world.ends[LEFT].domain;
    assert_eq!(enable(domain, true), Err(EnableError::Twice(Bound::SendBudget)));
    let other = world.fabric.domain().unwrap();
    assert_eq!(enable(&other, false), Err(EnableError::OtherDomain(Bound::SendBudget)));
    assert_eq!(world.end(LEFT).transmit_attributes().size, 3);
    assert_eq!((budget.limit(), budget.context()), (3, 78));
    assert_eq!(budget.class(), efa::Class::SendBudget);
}

#[test]
fn transmit_contexts_of_a_scalable_endpoint_share_a_budget() {
    let (world, budget) = world(2);
    let End { domain, addresses, queue, .. } = &world.ends[LEFT];
    let endpoint = domain
        .scalable_endpoint(ScalableOptions::new().transmit_contexts(3).endpoint(options(9)))
        .bind_completion_queue(queue, Direction::Both)
        .bind_address_vector(addresses)
        .bind_send_budget(&budget)
        .enable()
        .unwrap();
    let sent = [0, 1, 2].map(|context| {
        let context = endpoint.transmit_context(context).unwrap();
        context.send(Message::to(TO_BOB), "x", 1).map_err(|refused| refused.error)
    });
    assert_eq!(sent, [Ok(()), Ok(()), Err(StartError::Busy { limit: 2 })]);
}

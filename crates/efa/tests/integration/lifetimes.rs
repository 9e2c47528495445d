//! Objects dropped, leaked, closed or cancelled in any order: every buffer comes back once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use efa::{
    Access, AddressVector, AtomicOp, AtomicRefused, CloseError, CompletionQueue,
    CompletionQueueOptions, Direction, Domain, Endpoint, Fabric, Kind, LocalOptions, ManualClock,
    MemoryRegion, Message, Operation, OperationError, Receive, RemoteMemory, Rma, StartError,
};

use crate::world::{ALICE, BOB, World, options, pattern, with};

/// Memory that counts its live instances.
struct Counted {
    bytes: Vec<u8>,
    live: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

fn counted(live: &Arc<AtomicUsize>, length: usize) -> Bytes {
    live.fetch_add(1, Ordering::Relaxed);
    Bytes::from_owner(Counted { bytes: vec![7; length], live: live.clone() })
}

/// One object of each type, with operations under way.
struct Everything {
    live: Arc<AtomicUsize>,
    objects: Vec<Option<Object>>,
}

#[allow(dead_code, reason = "objects are there to be dropped")]
#[allow(clippy::large_enum_variant, reason = "there are six of them")]
enum Object {
    Fabric(Fabric),
    Domain(Domain),
    Queue(CompletionQueue),
    Addresses(AddressVector),
    Alice(Endpoint),
    Bob(Endpoint),
    Region(MemoryRegion),
}

const OBJECTS: usize = 7;

impl Everything {
    /// `steps`: how often the queue was read.
    fn under_way(steps: usize) -> Self {
        let clock = ManualClock::new();
        let options_of_fabric = LocalOptions::default().with(|options| options.max_regions = 1);
        let fabric = Fabric::local(options_of_fabric).with_clock(&clock);
        let domain = fabric.domain().unwrap();
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = |connid| {
            domain
                .endpoint(with(connid, |c| c.min_multi_receive = 64))
                .bind_completion_queue(&queue, Direction::Both)
                .bind_address_vector(&addresses)
                .enable()
                .unwrap()
        };
        let (alice, bob) = (endpoint(1), endpoint(2));
        let to_bob = addresses.insert(bob.address()).unwrap();
        let region = domain.register(vec![0; 100_000], Access::default()).unwrap();
        let live = Arc::new(AtomicUsize::new(0));
        for tag in 0..5 {
            let length = [100, 30_000, 500_000][tag as usize % 3];
            let message = Message::to(to_bob).tagged(tag);
            alice.send(message, counted(&live, length), tag).unwrap();
        }
        for tag in 1..4 {
            let buffer = region.slice(0..90_000).unwrap();
            bob.receive(Receive::tagged(tag), buffer, tag).unwrap();
        }
        bob.receive_many(None, region.slice(90_000..100_000).unwrap(), 9).unwrap();
        for _ in 0..10 {
            alice.send(Message::to(to_bob), counted(&live, 200), 0).unwrap();
            alice.inject(Message::to(to_bob), b"injected").unwrap();
        }
        for _ in 0..steps {
            // One entry at a time, so that some stay in the queue.
            drop(queue.read());
            clock.advance(Duration::from_micros(3));
        }
        let objects = vec![
            Some(Object::Fabric(fabric)),
            Some(Object::Domain(domain)),
            Some(Object::Queue(queue)),
            Some(Object::Addresses(addresses)),
            Some(Object::Alice(alice)),
            Some(Object::Bob(bob)),
            Some(Object::Region(region)),
        ];
        Self { live, objects }
    }

    fn domain(&self) -> Domain {
        match &self.objects[1] {
            Some(Object::Domain(domain)) => domain.clone(),
            _ => panic!("dropped"),
        }
    }

    /// Calls a method of every object that is left.
    fn use_all(&self) {
        for object in self.objects.iter().flatten() {
            match object {
                Object::Fabric(fabric) => drop(fabric.domain().unwrap()),
                Object::Domain(domain) => drop(domain.address_vector()),
                Object::Queue(queue) => drop(queue.read()),
                Object::Addresses(addresses) => {
                    assert_eq!(addresses.len(), 1)
                }
                Object::Alice(endpoint) | Object::Bob(endpoint) => {
                    let _ = endpoint.receive(Receive::tagged(77), vec![0; 10], 77);
                    let _ = endpoint.event();
                }
                Object::Region(region) => drop(region.write(0, b"still here")),
            }
        }
    }
}

/// All orders of `n` things.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(n - 1);
    let put = |order: &Vec<usize>, at: usize| {
        let mut order = order.clone();
        order.insert(at, n - 1);
        order
    };
    shorter.iter().flat_map(|order| (0..n).map(move |at| put(order, at))).collect()
}

// conformance: C18 C30
#[test]
fn objects_can_be_dropped_in_any_order() {
    let orders = permutations(OBJECTS);
    assert_eq!(orders.len(), 5040);
    for (i, order) in orders.into_iter().enumerate() {
        let mut everything = Everything::under_way(i % 40);
        let live = everything.live.clone();
        // Every other time a handle of the domain is kept, to see that the region is deregistered.
        let kept = (i % 2 == 0).then(|| everything.domain());
        for object in order {
            everything.objects[object] = None;
            everything.use_all();
        }
        assert_eq!(live.load(Ordering::Relaxed), 0, "every sent buffer is freed");
        if let Some(domain) = kept {
            domain.register(vec![0; 1], Access::default()).unwrap();
        }
    }
}

#[test]
fn leaked_object_does_not_prevent_the_others_from_working() {
    for leaked in 0..OBJECTS {
        for steps in [0, 10, 30] {
            let mut everything = Everything::under_way(steps);
            std::mem::forget(everything.objects[leaked].take());
            while let Some(object) = everything.objects.iter().position(Option::is_some) {
                everything.use_all();
                everything.objects[object] = None;
            }
        }
    }
}

// conformance: A223
#[test]
fn dropped_endpoint_returns_every_buffer_once() {
    for steps in 0..60 {
        let mut world = World::pair(steps);
        let (to_bob, to_alice) = (world.introduce(ALICE, BOB), world.introduce(BOB, ALICE));
        let mut expected = Vec::new();
        for i in 0..6 {
            let length = [10, 40_000, 150_000][i as usize % 3];
            world.end(ALICE).send(Message::to(to_bob).tagged(i), pattern(length, i), i).unwrap();
            world.end(BOB).send(Message::to(to_alice).tagged(i), pattern(length, i), i).unwrap();
            expected.push((Kind::Send, i));
        }
        for i in 3..9 {
            for end in [ALICE, BOB] {
                world.end(end).receive(Receive::tagged(i), vec![0; 150_000], i).unwrap();
            }
            expected.push((Kind::Receive, i));
        }
        world.end(ALICE).receive_many(None, vec![0; 20_000], 100).unwrap();
        expected.push((Kind::Released, 100));
        for _ in 0..steps * 2 {
            for end in [ALICE, BOB] {
                while let Some(entry) = world.ends[end].queue.read() {
                    world.ends[end].entries.push_back(entry);
                }
            }
            world.tick();
        }
        let alice = world.ends.swap_remove(ALICE);
        drop(alice.endpoint);
        let mut entries = Vec::from(alice.entries);
        while alice.queue.read_many(&mut entries, 7) > 0 {}
        let mut ended: Vec<(Kind, u64)> = Vec::new();
        for entry in entries {
            let completion = match entry {
                Ok(completion) => completion,
                Err(failed) => {
                    assert_eq!(failed.error, OperationError::Closed);
                    *failed.completion
                }
            };
            assert!(!completion.buffer.is_empty());
            ended.push((completion.kind, completion.context));
        }
        ended.sort_by_key(|(kind, context)| (*kind as u8, *context));
        assert_eq!(ended, expected, "each operation completes once");
    }
}

// conformance: A58
#[test]
fn endpoint_can_be_closed_right_after_its_handshake() {
    let mut world = World::pair(1);
    let to_bob = world.introduce(ALICE, BOB);
    world.end(BOB).receive(Receive::untagged(), vec![0; 8], 1).unwrap();
    world.end(ALICE).send(Message::to(to_bob), "hello", 2).unwrap();
    while world.end(BOB).statistics().sent.total() == 0 {
        world.tick();
        let queue = world.ends[BOB].queue.clone();
        world.ends[BOB].entries.extend(queue.read());
    }
    // His HANDSHAKE is on its way when he closes.
    let bob = world.ends.remove(BOB);
    bob.endpoint.close(Duration::from_secs(1)).unwrap();
    assert_eq!(bob.entries.front().unwrap().as_ref().unwrap().context, 1);
    assert_eq!(world.done(ALICE).context, 2);
    assert!(world.is_silent(ALICE));
}

#[test]
fn close_delivers_injected_messages() {
    let mut world = World::pair(2);
    let to_bob = world.introduce(ALICE, BOB);
    // Fewer than Bob's receive buffers, as Bob is not polled.
    for i in 0..60 {
        world.end(ALICE).inject(Message::to(to_bob).tagged(i), &pattern(1000, i)).unwrap();
    }
    let alice = world.ends.remove(ALICE);
    alice.endpoint.close(Duration::from_secs(1)).unwrap();
    for i in 0..60 {
        let bob = &world.ends[0].endpoint;
        bob.receive(Receive::tagged(i), vec![0; 1000], i).unwrap();
        assert_eq!(world.done(0).buffer, pattern(1000, i));
    }
}

#[test]
fn close_times_out_when_the_peer_is_not_polled() {
    // Bob has one receive buffer and is not polled.
    let mut world = World::pair_with(3, options(1), with(2, |c| c.min_receive_buffers = 1));
    let to_bob = world.introduce(ALICE, BOB);
    for i in 0..10 {
        world.end(ALICE).send(Message::to(to_bob), pattern(100, i), i).unwrap();
    }
    let alice = world.ends.remove(ALICE);
    let timeout = Duration::from_millis(50);
    let before = world.clock.now();
    assert_eq!(alice.endpoint.close(timeout), Err(CloseError { timeout }));
    assert!(world.clock.now() - before >= timeout);
    let mut contexts = Vec::new();
    while let Some(entry) = alice.queue.read() {
        contexts.push(entry.map_or_else(|failed| failed.completion.context, |done| done.context));
    }
    contexts.sort_unstable();
    assert_eq!(contexts, (0..10).collect::<Vec<_>>(), "every buffer comes back");
}

#[test]
fn discarded_operations_complete_nowhere_and_give_back_the_credits_of_their_queue() {
    let mut world = World::empty();
    world.add_with(options(1), CompletionQueueOptions::default().capacity(8));
    world.add(options(2));
    let to_bob = world.introduce(ALICE, BOB);
    let alice = &world.ends[ALICE];
    for context in 0..8 {
        alice.endpoint.receive(Receive::untagged(), vec![0; 8], context).unwrap();
    }
    let refused = alice.endpoint.send(Message::to(to_bob), "x", 9).unwrap_err();
    assert_eq!(refused.error, StartError::QueueFull { capacity: 8 });
    alice.endpoint.discard_completions();
    alice.endpoint.send(Message::to(to_bob), "x", 9).unwrap();
    world.end(ALICE).close(Duration::from_secs(1)).unwrap();
    world.drive();
    assert_eq!(world.ends[ALICE].entries.len(), 0);
    // Another endpoint has all of the queue.
    let alice = &world.ends[ALICE];
    let builder = alice.domain.endpoint(options(3)).bind_address_vector(&alice.addresses);
    let other = builder.bind_completion_queue(&alice.queue, Direction::Both).enable().unwrap();
    for context in 0..8 {
        other.receive(Receive::untagged(), vec![0; 8], context).unwrap();
    }
}

#[test]
fn closed_endpoint_starts_nothing_and_keeps_its_statistics() {
    let mut world = World::pair(4);
    let to_bob = world.introduce(ALICE, BOB);
    world.end(ALICE).receive(Receive::untagged(), vec![3; 8], 1).unwrap();
    world.transfer(Message::to(to_bob), "hello", Receive::untagged(), 8);
    let second = Duration::from_secs(1);
    world.end(ALICE).close(second).unwrap();
    let ended = world.failed(ALICE);
    assert_eq!((ended.error, ended.completion.context), (OperationError::Closed, 1));
    assert_eq!(ended.completion.buffer, [3; 8]);

    let alice = world.end(ALICE);
    let memory = RemoteMemory { address: 0, length: 8, key: 0 };
    let (rma, add) = (Rma::at(to_bob, memory), Operation::new(AtomicOp::Sum, &[1_u64]));
    let refused = [
        alice.send(Message::to(to_bob), vec![7; 8], 2),
        alice.receive(Receive::tagged(1), vec![7; 8], 2).map(drop),
        alice.receive_many(None, vec![7; 8], 2).map(drop),
        alice.write(rma, vec![7; 8], 2),
        alice.read(rma, vec![7; 8], 2),
    ];
    for refused in refused.map(Result::unwrap_err) {
        assert_eq!((refused.error, refused.buffer), (StartError::Closed, vec![7; 8].into()));
    }
    assert_eq!(alice.inject(Message::to(to_bob), b"x"), Err(StartError::Closed));
    let (error, operation) = (StartError::Closed, Box::new(add.clone()));
    let refused = AtomicRefused { error, operation, fetched: vec![7; 8].into() };
    assert_eq!(alice.fetch_atomic(rma, add.clone(), vec![7; 8], 2), Err(refused));
    assert_eq!(alice.atomic(rma, add, 2).unwrap_err().error, StartError::Closed);
    assert_eq!(alice.packet().map(drop), Err(StartError::Closed));
    assert_eq!(alice.event(), None);
    assert!(alice.statistics().sent.total() > 0);
    assert_eq!(alice.close(second), Ok(()), "a second call does nothing");
    assert!(world.is_silent(ALICE));
}

#[test]
fn dropped_endpoint_returns_its_credits_when_read() {
    let mut world = World::new(LocalOptions::default());
    world.add_with(options(1), CompletionQueueOptions::new().capacity(3));
    let end = world.ends.remove(0);
    for i in 0..3 {
        end.endpoint.receive(Receive::untagged(), vec![0; 1], i).unwrap();
    }
    drop(end.endpoint);
    let second = end
        .domain
        .endpoint(options(2))
        .bind_completion_queue(&end.queue, Direction::Both)
        .bind_address_vector(&end.addresses)
        .enable()
        .unwrap();
    assert!(
        second.receive(Receive::untagged(), vec![0; 1], 9).is_err(),
        "three completions are unread"
    );
    for _ in 0..3 {
        assert!(end.queue.read().unwrap().is_err());
    }
    for i in 0..3 {
        second.receive(Receive::untagged(), vec![0; 1], i).unwrap();
    }
}

#[test]
fn dropped_endpoint_appends_its_completions_to_a_full_queue() {
    let mut world = World::new(LocalOptions::default().with(|options| options.seed = 9));
    world.add(options(1));
    let domain = world.fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::new().capacity(2));
    let sends = domain.completion_queue(CompletionQueueOptions::default());
    let bob = domain
        .endpoint(with(2, |c| c.min_multi_receive = 64))
        .bind_completion_queue(&sends, Direction::Transmit)
        .bind_completion_queue(&queue, Direction::Receive)
        .bind_address_vector(&domain.address_vector())
        .enable()
        .unwrap();
    bob.receive_many(None, vec![0; 1000], 1).unwrap();
    bob.receive(Receive::tagged(7), vec![5; 10], 2).unwrap();
    let to_bob = world.ends[ALICE].addresses.insert(bob.address()).unwrap();
    for i in 0..5 {
        world.end(ALICE).send(Message::to(to_bob), pattern(10, i), i).unwrap();
    }
    // Reading the queue for sends progresses Bob; his receives are not read.
    for _ in 0..1000 {
        world.read();
        assert!(sends.read().is_none());
        world.tick();
    }
    drop(bob);

    let (mut messages, mut closed) = (Vec::new(), Vec::new());
    while let Some(entry) = queue.read() {
        match entry {
            Ok(completion) => messages.push(completion.into_message()),
            Err(failed) => {
                assert_eq!(failed.error, OperationError::Closed);
                closed.push((failed.completion.context, failed.completion.buffer.len()));
            }
        }
    }
    assert_eq!(messages, [0, 1, 2, 3, 4].map(|i| pattern(10, i)));
    closed.sort_unstable();
    assert_eq!(closed, [(1, 950), (2, 10)]);
}

//! Receives that several endpoints share.

use efa::{
    Bound, Completion, CompletionQueueOptions, ConfigError, Direction, EnableError,
    EndpointOptions, FiAddr, Kind, Message, OperationError, Receive, Receiving, Release,
    SharedReceiveQueue, SharedReceiveQueueOptions, StartError,
};

use crate::ends::{End, pattern, with};
use crate::world::{ALICE, BOB, World, options};

/// Two endpoints of one domain that share receives, beside the senders Alice and Bob.
const LEFT: usize = 2;
const RIGHT: usize = 3;

/// The four hosts; Alice and Bob know the left and the right endpoint under the indices 0 and 1.
fn world_with(
    seed: u64,
    capacity: usize,
    change: impl Fn(EndpointOptions) -> EndpointOptions,
) -> (World, SharedReceiveQueue) {
    let mut world = World::pair(seed);
    let domain = world.fabric.domain().unwrap();
    let shared = SharedReceiveQueueOptions::new().capacity(capacity).context(77);
    let shared = domain.shared_receive_queue(shared);
    for connid in [3, 4] {
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(change(options(connid)))
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .bind_shared_receive_queue(&shared)
            .enable()
            .unwrap();
        let domain = domain.clone();
        world.ends.push(End { domain, queue, addresses, endpoint, entries: Default::default() });
    }
    for sender in [ALICE, BOB] {
        assert_eq!(world.introduce(sender, LEFT), FiAddr(0));
        assert_eq!(world.introduce(sender, RIGHT), FiAddr(1));
    }
    (world, shared)
}

fn world(seed: u64) -> (World, SharedReceiveQueue) {
    world_with(seed, 64, |options| options)
}

/// The index of a receiver in the senders' address vectors.
fn at(receiver: usize) -> FiAddr {
    FiAddr((receiver - LEFT) as u64)
}

fn send(world: &mut World, sender: usize, receiver: usize, tag: Option<u64>, bytes: Vec<u8>) {
    let message = Message::to(at(receiver));
    let message = tag.map_or(message, |tag| message.tagged(tag));
    world.end(sender).send(message, bytes, 9).unwrap();
    world.drive();
}

/// What the next entry of a receiver's queue says: context, and message.
fn received(world: &mut World, receiver: usize) -> (u64, Vec<u8>) {
    let completion = world.done(receiver);
    assert_eq!((completion.kind, completion.endpoint), (Kind::Receive, world.end(receiver).id()));
    (completion.context, completion.into_message().into_vec())
}

fn contexts(completions: impl IntoIterator<Item = Completion>) -> Vec<u64> {
    completions.into_iter().map(|completion| completion.context).collect()
}

// conformance: C59
#[test]
fn endpoints_take_receives_of_one_queue_in_the_order_of_posting() {
    for length in [5, 20_000, 300_000] {
        let (mut world, shared) = world(1);
        for context in 1..=4 {
            shared.receive(Receive::untagged(), vec![0; length], context).unwrap();
        }
        shared.receive(Receive::tagged(7), vec![0; length], 5).unwrap();
        shared.receive(Receive::masked(0x70, 0x0f), vec![0; length], 6).unwrap();
        shared.receive(Receive::tagged(0x71), vec![0; length], 7).unwrap();
        assert_eq!(shared.len(), 7);
        let messages = [
            (ALICE, RIGHT, None, 1),
            (BOB, LEFT, None, 2),
            (BOB, RIGHT, None, 3),
            (ALICE, LEFT, Some(0x71), 6),
            (BOB, RIGHT, Some(0x71), 7),
            (ALICE, RIGHT, Some(7), 5),
            (ALICE, RIGHT, None, 4),
        ];
        for (sender, receiver, tag, expected) in messages {
            let bytes = pattern(length, expected);
            send(&mut world, sender, receiver, tag, bytes.clone());
            assert_eq!(received(&mut world, receiver), (expected, bytes));
        }
        assert!(shared.is_empty());
        assert!(world.is_silent(LEFT) && world.is_silent(RIGHT));
    }
}

// conformance: C59
#[test]
fn unexpected_messages_of_all_endpoints_get_the_posted_receives_in_the_order_of_arrival() {
    for length in [5, 20_000, 300_000] {
        let (mut world, shared) = world(2);
        let messages = [
            (ALICE, RIGHT, None),
            (BOB, LEFT, None),
            (ALICE, LEFT, Some(7)),
            (BOB, RIGHT, Some(7)),
            (ALICE, RIGHT, None),
            (BOB, RIGHT, Some(8)),
        ];
        for (salt, (sender, receiver, tag)) in (0..).zip(messages) {
            send(&mut world, sender, receiver, tag, pattern(length, salt));
        }
        let receives = [
            (Receive::tagged(8), 5),
            (Receive::untagged(), 0),
            (Receive::masked(0, u64::MAX), 2),
            (Receive::untagged(), 1),
            (Receive::tagged(7), 3),
            (Receive::untagged(), 4),
        ];
        for (receive, salt) in receives {
            shared.receive(receive, vec![0; length], salt).unwrap();
            let receiver = messages[salt as usize].1;
            let found = received(&mut world, receiver);
            assert_eq!(found, (salt, pattern(length, salt)));
        }
        assert!(shared.is_empty());
    }
}

// conformance: C59
#[test]
fn receive_of_a_shared_queue_is_cancelled_by_identifier_and_by_context_and_its_buffer_returns() {
    let (mut world, shared) = world(3);
    let post = |context: u64| {
        let bytes = vec![context as u8; 8];
        shared.receive(Receive::untagged(), bytes, context).unwrap()
    };
    let ids = [1, 2, 3].map(post);
    let tagged = shared.receive(Receive::tagged(5), vec![4; 8], 4).unwrap();
    assert_eq!(shared.cancel(ids[0]), Some(vec![1; 8].into()));
    assert_eq!(shared.cancel(ids[0]), None);
    assert_eq!(shared.cancel_context(3), Some((ids[2], vec![3; 8].into())));
    assert_eq!(shared.cancel_context(4), Some((tagged, vec![4; 8].into())));
    assert!(tagged.is_tagged() && !ids[2].is_tagged());
    assert_eq!(shared.cancel_context(3), None);
    assert_eq!(shared.len(), 1);
    send(&mut world, ALICE, LEFT, None, b"hello".to_vec());
    assert_eq!(received(&mut world, LEFT), (2, b"hello".to_vec()));
    assert_eq!((shared.cancel(ids[1]), shared.cancel_context(2)), (None, None));
    assert!(shared.is_empty() && world.is_silent(LEFT) && world.is_silent(RIGHT));
}

#[test]
fn closed_queue_returns_its_buffers_and_refuses_receives_and_messages_stay_unexpected() {
    let (mut world, shared) = world(4);
    shared.receive(Receive::untagged(), vec![1; 8], 1).unwrap();
    shared.receive(Receive::tagged(7), vec![2; 8], 2).unwrap();
    let (first, second) = ((vec![2; 8].into(), 2), (vec![1; 8].into(), 1));
    assert_eq!(shared.close(), [first, second]);
    assert!(shared.is_empty());
    let refused = shared.receive(Receive::untagged(), vec![3; 8], 3).unwrap_err();
    assert_eq!((refused.error, refused.buffer), (StartError::Closed, vec![3; 8].into()));
    assert!(shared.is_empty() && shared.close().is_empty());
    send(&mut world, ALICE, LEFT, None, b"late".to_vec());
    assert_eq!(world.done(ALICE).kind, Kind::Send);
    assert!(world.is_silent(LEFT));
}

/// The other endpoint gets neither its messages nor its order mixed up, and posted receives stay.
#[test]
fn closing_an_endpoint_ends_its_unexpected_messages_only() {
    let (mut world, shared) = world(5);
    send(&mut world, ALICE, LEFT, None, b"left".to_vec());
    send(&mut world, BOB, RIGHT, None, b"right".to_vec());
    drop(world.ends.remove(LEFT).endpoint);
    let right = RIGHT - 1;
    shared.receive(Receive::untagged(), vec![0; 8], 1).unwrap();
    assert_eq!(received(&mut world, right), (1, b"right".to_vec()));
    shared.receive(Receive::untagged(), vec![0; 8], 2).unwrap();
    assert!(world.is_silent(right));
    send(&mut world, BOB, RIGHT, None, b"more".to_vec());
    assert_eq!(received(&mut world, right), (2, b"more".to_vec()));
}

#[test]
fn receive_under_way_at_a_closed_endpoint_is_cancelled_on_its_queue() {
    let (mut world, shared) = world(6);
    shared.receive(Receive::untagged(), vec![0; 1_000_000], 1).unwrap();
    shared.receive(Receive::untagged(), vec![0; 8], 2).unwrap();
    world.end(ALICE).send(Message::to(at(LEFT)), pattern(1_000_000, 1), 9).unwrap();
    while world.end(LEFT).statistics().received_bytes == 0 {
        world.read();
        world.tick();
    }
    assert_eq!(shared.len(), 2, "one posted and one under way");
    let End { queue, endpoint, .. } = world.ends.remove(LEFT);
    drop(endpoint);
    let failed = queue.read().unwrap().unwrap_err();
    assert_eq!((failed.error, failed.completion.context), (OperationError::Closed, 1));
    assert_eq!(failed.completion.buffer.len(), 1_000_000);
    assert_eq!(shared.len(), 1);
}

#[test]
fn incomplete_message_of_a_peer_that_ends_leaves_the_shared_queue() {
    let (mut world, shared) = world(7);
    let alice = world.introduce(LEFT, ALICE);
    world.end(ALICE).send(Message::to(at(LEFT)), pattern(1_000_000, 1), 9).unwrap();
    world.drive();
    world.ends[LEFT].addresses.remove(alice).unwrap();
    shared.receive(Receive::untagged(), vec![0; 8], 1).unwrap();
    assert!(world.is_silent(LEFT));
    assert_eq!(shared.len(), 1);
    send(&mut world, BOB, LEFT, None, b"next".to_vec());
    assert_eq!(received(&mut world, LEFT), (1, b"next".to_vec()));
}

// conformance: C59
#[test]
fn receives_on_the_wrong_object_or_with_a_source_are_refused_by_name() {
    let (world, shared) = world(8);
    let left = world.end(LEFT);
    let refused = left.receive(Receive::untagged(), vec![0; 8], 1).unwrap_err();
    assert_eq!((refused.error, refused.buffer.len()), (StartError::ReceivesShared, 8));
    let refused = left.receive_many(None, vec![0; 8], 1).unwrap_err();
    assert_eq!(refused.error, StartError::ReceivesShared);
    assert_eq!(left.peek(Receive::untagged()), Err(StartError::ReceivesShared));
    assert_eq!(left.claim(Receive::untagged()).unwrap_err(), StartError::ReceivesShared);
    let directed = Receive::untagged().from(FiAddr(3));
    let refused = shared.receive(directed, vec![0; 8], 1).unwrap_err();
    assert_eq!(refused.error, StartError::SharedSource(FiAddr(3)));
    assert!(shared.is_empty());
    world.end(LEFT).close(std::time::Duration::from_secs(1)).unwrap();
    let refused = world.end(LEFT).receive(Receive::untagged(), vec![0; 8], 1).unwrap_err();
    assert_eq!(refused.error, StartError::Closed);
}

#[test]
fn shared_queue_takes_as_many_receives_as_its_capacity_posted_and_under_way() {
    let (mut world, shared) = world_with(9, 3, |options| options);
    for context in 0..3 {
        shared.receive(Receive::untagged(), vec![0; 1_000_000], context).unwrap();
    }
    let busy = |shared: &SharedReceiveQueue| {
        let refused = shared.receive(Receive::untagged(), vec![0; 8], 9).unwrap_err();
        assert_eq!(refused.error, StartError::Busy { limit: 3 });
        assert!(refused.error.is_busy());
    };
    busy(&shared);
    world.end(ALICE).send(Message::to(at(LEFT)), pattern(1_000_000, 1), 9).unwrap();
    world.drive_for(std::time::Duration::from_micros(30));
    if world.ends[LEFT].entries.is_empty() {
        busy(&shared);
    }
    assert_eq!(received(&mut world, LEFT).0, 0);
    shared.receive(Receive::untagged(), vec![0; 8], 3).unwrap();
    busy(&shared);
}

#[test]
fn endpoint_is_not_enabled_with_a_shared_queue_that_it_cannot_take_from() {
    let (world, shared) = world(10);
    let domain = &world.ends[LEFT].domain;
    let enable = |domain: &efa::Domain, options, twice: bool| {
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let builder = domain
            .endpoint(options)
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&domain.address_vector())
            .bind_shared_receive_queue(&shared);
        let builder = if twice { builder.bind_shared_receive_queue(&shared) } else { builder };
        builder.enable().map(|_| ())
    };
    let bound = Bound::SharedReceiveQueue;
    assert_eq!(enable(domain, options(5), true), Err(EnableError::Twice(bound)));
    let other = world.fabric.domain().unwrap();
    assert_eq!(enable(&other, options(5), false), Err(EnableError::OtherDomain(bound)));
    let in_place = options(5)
        .capabilities(efa::Capabilities::MSG)
        .receiving(Receiving::InPlace)
        .protocol(efa::Config::as_release(Release::V1_20));
    assert_eq!(enable(domain, in_place, false), Err(EnableError::SharedInPlace));
    // A queue of 64 receives.
    let most = |max_receives| with(5, |config| config.max_receives = max_receives);
    let error = ConfigError::TooManyShared { receives: 64, limit: 63 };
    assert_eq!(enable(domain, most(64), false), Err(EnableError::Config(error)));
    assert_eq!(enable(domain, most(65), false), Ok(()));
}

#[test]
fn attributes_of_an_endpoint_with_a_shared_queue_say_what_its_receives_can_do() {
    let (world, shared) = world(11);
    let receive = world.end(LEFT).receive_attributes();
    assert_eq!(receive.size, shared.capacity());
    let lacking = efa::Capabilities::MULTI_RECV | efa::Capabilities::DIRECTED_RECV;
    assert!(!receive.capabilities.intersects(lacking));
    assert!(receive.capabilities.contains(efa::Capabilities::TAGGED | efa::Capabilities::RECV));
    let limits = world.ends[LEFT].domain.limits();
    assert_eq!(limits.shared_receive_contexts, usize::MAX);
    assert_eq!(efa::Object::context(&shared), 77);
    assert_eq!(efa::Object::class(&shared), efa::Class::SharedReceiveQueue);
}

/// Completions without a credit stop their endpoint when its queue is full, and none is lost.
#[test]
fn full_completion_queue_of_one_endpoint_loses_nothing_and_does_not_stop_the_other() {
    let (mut world, shared) = world(12);
    let small = CompletionQueueOptions::new().capacity(2);
    let End { domain, addresses, .. } = &world.ends[LEFT];
    let queue = domain.completion_queue(small);
    let third = domain
        .endpoint(options(5))
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(addresses)
        .bind_shared_receive_queue(&shared)
        .enable()
        .unwrap();
    let to_third = world.ends[ALICE].addresses.insert(third.address()).unwrap();
    for context in 0..20 {
        shared.receive(Receive::untagged(), vec![0; 8], context).unwrap();
        world.end(ALICE).send(Message::to(to_third), vec![context as u8], 9).unwrap();
    }
    world.drive_for(std::time::Duration::from_micros(100));
    shared.receive(Receive::tagged(1), vec![0; 8], 99).unwrap();
    world.end(BOB).send(Message::to(at(RIGHT)).tagged(1), "passes", 9).unwrap();
    world.drive_for(std::time::Duration::from_micros(100));
    assert_eq!(received(&mut world, RIGHT), (99, b"passes".to_vec()));
    let mut seen = Vec::new();
    while seen.len() < 20 {
        world.read();
        while let Some(entry) = queue.read() {
            seen.push(entry.unwrap());
        }
        world.tick();
    }
    assert_eq!(contexts(seen), (0..20).collect::<Vec<_>>());
}

#[test]
fn selectively_bound_endpoint_reports_only_signaled_receives_of_the_shared_queue() {
    let (mut world, shared) = world(13);
    let End { domain, addresses, queue, .. } = &world.ends[LEFT];
    let third = domain
        .endpoint(options(5))
        .bind_completion_queue(queue, Direction::Both)
        .selective(Direction::Receive)
        .bind_address_vector(addresses)
        .bind_shared_receive_queue(&shared)
        .enable()
        .unwrap();
    let to_third = world.ends[ALICE].addresses.insert(third.address()).unwrap();
    shared.receive(Receive::untagged(), vec![0; 8], 1).unwrap();
    shared.receive(Receive::untagged().signaled(), vec![0; 8], 2).unwrap();
    for _ in 0..2 {
        world.end(ALICE).send(Message::to(to_third), "x", 9).unwrap();
    }
    let completion = world.done(LEFT);
    assert_eq!((completion.context, completion.endpoint), (2, third.id()));
    assert!(world.is_silent(LEFT) && shared.is_empty());
}

/// Messages of one sender to one endpoint with one tag get receives of that tag in the order of sending, and no
/// message is lost or doubled, whichever of receives and messages come first.
// conformance: C59
#[test]
fn random_messages_to_shared_receives_keep_the_order_of_each_sender() {
    const MESSAGES: usize = 300;
    for seed in 0..20 {
        let (mut world, shared) = world_with(seed, MESSAGES, |options| options);
        let mut random = fastrand::Rng::with_seed(seed);
        let lengths = [0, 8, 5000, 40_000, 200_000];
        let mut unposted: Vec<u64> = (0..MESSAGES as u64).map(|n| n % 3).collect();
        random.shuffle(&mut unposted);
        let mut unsent = unposted.clone();
        random.shuffle(&mut unsent);
        let mut number = 0;
        while !(unposted.is_empty() && unsent.is_empty()) {
            if random.bool() {
                if let Some(tag) = unposted.pop() {
                    let context = (MESSAGES - unposted.len()) as u64;
                    shared.receive(Receive::tagged(tag), vec![0; 200_000], context).unwrap();
                }
            } else if let Some(tag) = unsent.pop() {
                let (sender, receiver) = (random.usize(0..2), random.usize(2..4));
                let length = random.choice(lengths).unwrap();
                number += 1;
                let message = Message::to(at(receiver)).tagged(tag).with_data(number);
                world.end(sender).send(message, pattern(length, number), number).unwrap();
            }
            if random.u8(..) < 50 {
                world.read();
                world.tick();
            }
        }
        world.drive();
        assert!(shared.is_empty(), "seed {seed}: {} receives are left", shared.len());
        let mut seen = Vec::new();
        for receiver in [LEFT, RIGHT] {
            let mut order = Vec::new();
            for entry in std::mem::take(&mut world.ends[receiver].entries) {
                let completion = entry.unwrap();
                let number = completion.cq_data.unwrap();
                let (tag, from) = (completion.tag.unwrap(), completion.peer_address.unwrap());
                order.push((tag, from, number, completion.context));
                seen.push(number);
                let length = completion.length as usize;
                assert_eq!(completion.into_message(), pattern(length, number), "seed {seed}");
            }
            order.sort_by_key(|(.., number, _)| *number);
            for (place, (tag, from, number, context)) in order.iter().enumerate() {
                let earlier =
                    order[..place].iter().filter(|other| (other.0, other.1) == (*tag, *from));
                for other in earlier {
                    assert!(other.3 < *context, "seed {seed}: {number} overtook {}", other.2);
                }
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=MESSAGES as u64).collect::<Vec<_>>(), "seed {seed}");
    }
}

/// Threads post, send, and read the queues of both receivers at the same time; peers come and go meanwhile.
#[test]
fn threads_share_a_receive_queue_and_no_message_is_lost_or_doubled() {
    const EACH: u64 = 500;
    let domain = efa::Fabric::local(efa::LocalOptions::default()).domain().unwrap();
    let shared = domain.shared_receive_queue(SharedReceiveQueueOptions::new());
    let endpoint = |shared: Option<&SharedReceiveQueue>| {
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let builder = domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses);
        let builder = match shared {
            Some(shared) => builder.bind_shared_receive_queue(shared),
            None => builder,
        };
        (builder.enable().unwrap(), queue, addresses)
    };
    let receivers = [endpoint(Some(&shared)), endpoint(Some(&shared))];
    let seen = std::sync::Mutex::new(Vec::new());
    let length = |number: u64| (number * 7919 % 20_000) as usize;
    std::thread::scope(|scope| {
        for (_, queue, _) in &receivers {
            scope.spawn(|| {
                while seen.lock().unwrap().len() < 2 * EACH as usize {
                    let Some(entry) = queue.read() else { continue };
                    let received = entry.unwrap();
                    let (number, context) = (received.cq_data.unwrap(), received.context);
                    assert_eq!(received.into_message(), pattern(length(number), number));
                    seen.lock().unwrap().push((number, context));
                }
            });
        }
        scope.spawn(|| {
            for context in 0..2 * EACH {
                shared.receive(Receive::untagged(), vec![0; 20_000], context).unwrap();
                // Endpoints that are closed at once, and receives that are taken back.
                if context % 50 == 0 {
                    drop(endpoint(Some(&shared)));
                    let id = shared.receive(Receive::tagged(1), vec![0; 1], 0).unwrap();
                    assert!(shared.cancel(id).is_some());
                }
            }
        });
        for (index, (receiver, ..)) in (0..).zip(&receivers) {
            let endpoint = &endpoint;
            scope.spawn(move || {
                let (sender, queue, addresses) = endpoint(None);
                let to = addresses.insert(receiver.address()).unwrap();
                for number in index * EACH..(index + 1) * EACH {
                    let message = Message::to(to).with_data(number);
                    sender.send(message, pattern(length(number), number), number).unwrap();
                    queue.wait(std::time::Duration::from_secs(30)).unwrap();
                }
            });
        }
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    assert!(seen.iter().map(|(number, _)| *number).eq(0..2 * EACH));
    let mut contexts: Vec<_> = seen.iter().map(|(_, context)| *context).collect();
    contexts.sort_unstable();
    assert!(contexts.into_iter().eq(0..2 * EACH));
    assert!(shared.is_empty());
}

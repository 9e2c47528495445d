//! Scalable endpoints: several contexts behind one address.

use std::collections::VecDeque;
use std::time::Duration;

use efa::{
    Access, AddressVector, AddressVectorOptions, AtomicOp, AtomicRefused, Bound, Capabilities,
    Completion, CompletionQueue, CompletionQueueOptions, ContextOptions, DeviceError, Direction,
    Domain, EnableError, EndpointOptions, Entry, FiAddr, Kind, LocalOptions, MemoryRegion, Message,
    NoSuchContext, Object, Operation, OperationFlags, Receive, Receiving, Rma, ScalableAddress,
    ScalableEndpoint, ScalableOptions, SharedReceiveQueueOptions, StartError,
};

use crate::ends::pattern;
use crate::world::{World, options};

const BOTH: Access = Access { remote_read: true, remote_write: true };

/// A host with a scalable endpoint, and a completion queue for each of its contexts.
struct Host {
    domain: Domain,
    addresses: AddressVector,
    transmit: Vec<CompletionQueue>,
    receive: Vec<CompletionQueue>,
    endpoint: ScalableEndpoint,
}

fn queues(domain: &Domain, count: usize) -> Vec<CompletionQueue> {
    let queue = |_| domain.completion_queue(CompletionQueueOptions::default());
    (0..count).map(queue).collect()
}

fn context_bits(bits: u8) -> AddressVectorOptions {
    AddressVectorOptions::new().receive_context_bits(bits)
}

impl Host {
    fn new(world: &World, connid: u32, transmit: usize, receive: usize) -> Self {
        let domain = world.fabric.domain().unwrap();
        let addresses = domain.address_vector_with(context_bits(2)).unwrap();
        let (transmit, receive) = (queues(&domain, transmit), queues(&domain, receive));
        let endpoint = ScalableOptions::new()
            .transmit_contexts(transmit.len())
            .receive_contexts(receive.len())
            .endpoint(options(connid).context(5));
        let mut builder = domain.scalable_endpoint(endpoint).bind_address_vector(&addresses);
        for (index, queue) in transmit.iter().enumerate() {
            builder = builder.bind_transmit_queue(index, queue);
        }
        for (index, queue) in receive.iter().enumerate() {
            builder = builder.bind_receive_queue(index, queue);
        }
        let endpoint = builder.enable().unwrap();
        Self { domain, addresses, transmit, receive, endpoint }
    }
}

/// Reads all queues of the hosts until nothing happens any more; returns the entries of each queue: those of the
/// first host's transmit contexts, of its receive contexts, and so on.
fn drive(world: &World, hosts: &[&Host]) -> Vec<VecDeque<Entry>> {
    let queues: Vec<_> =
        hosts.iter().flat_map(|host| host.transmit.iter().chain(&host.receive)).collect();
    let mut entries = vec![VecDeque::new(); queues.len()];
    let mut idle = 0;
    while idle < 100 {
        idle += 1;
        for (queue, entries) in queues.iter().zip(&mut entries) {
            while let Some(entry) = queue.read() {
                entries.push_back(entry);
                idle = 0;
            }
        }
        if world.fabric.as_local().unwrap().next_event().is_some() {
            idle = 0;
        } else {
            world.clock.advance(Duration::from_micros(20));
        }
        world.tick();
    }
    entries
}

/// The only entry of these queues, and the index of its queue.
fn only(entries: Vec<VecDeque<Entry>>) -> (usize, Completion) {
    let mut all =
        entries.into_iter().enumerate().flat_map(|(at, of)| of.into_iter().map(move |e| (at, e)));
    let (at, entry) = all.next().unwrap();
    let rest: Vec<_> = all.collect();
    assert!(rest.is_empty(), "{rest:?}");
    (at, entry.unwrap())
}

// conformance: C60 C61 C64 C65
#[test]
fn every_transmit_context_reaches_every_receive_context_of_one_address_and_completes_on_its_queue()
{
    let world = World::empty();
    let (alice, bob) = (Host::new(&world, 1, 4, 1), Host::new(&world, 11, 1, 3));
    let to_bob = alice.addresses.insert_scalable(bob.endpoint.address()).unwrap();
    let from_alice = bob.addresses.insert_scalable(alice.endpoint.address()).unwrap();
    for length in [5, 300_000] {
        for (sender, receiver) in (0..4).flat_map(|s| (0..3).map(move |r| (s, r))) {
            let salt = (sender * 3 + receiver) as u64;
            // All bits of tags are the program's.
            let tag = u64::MAX - salt;
            let context = bob.endpoint.receive_context(receiver).unwrap();
            context.receive(Receive::tagged(tag), vec![0; length], salt).unwrap();
            let to = alice.addresses.receive_context(to_bob, receiver).unwrap();
            let transmit = alice.endpoint.transmit_context(sender).unwrap();
            transmit.send(Message::to(to).tagged(tag), pattern(length, salt), 100 + salt).unwrap();

            let mut entries = drive(&world, &[&alice, &bob]);
            let received = only(entries.split_off(5));
            let (at, sent) = only(entries);
            assert_eq!((at, sent.kind, sent.context), (sender, Kind::Send, 100 + salt));
            assert_eq!((sent.endpoint, sent.peer), (transmit.id(), Some(to_bob)));
            let (at, received) = received;
            assert_eq!((at - 1, received.context), (receiver, salt));
            assert_eq!((received.endpoint, received.tag), (context.id(), Some(tag)));
            assert_eq!(received.peer, Some(from_alice), "one address for all contexts");
            assert_eq!(received.into_message(), pattern(length, salt));
        }
    }
}

// conformance: C61
#[test]
fn direction_with_one_context_is_used_on_the_endpoint_itself() {
    let world = World::empty();
    let (alice, bob) = (Host::new(&world, 1, 1, 2), Host::new(&world, 11, 2, 1));
    let to_bob = alice.addresses.insert_scalable(bob.endpoint.address()).unwrap();
    bob.endpoint.receive(Receive::untagged(), vec![0; 5], 1).unwrap();
    alice.endpoint.send(Message::to(to_bob), "hello", 2).unwrap();
    let entries = drive(&world, &[&alice, &bob]);
    let at: Vec<_> = entries.iter().map(VecDeque::len).collect();
    assert_eq!(at, [1, 0, 0, 0, 0, 1]);

    alice.endpoint.inject(Message::to(to_bob), b"x").unwrap();
    let cancelled = bob.endpoint.receive(Receive::tagged(9), vec![0; 1], 3).unwrap();
    assert!(bob.endpoint.cancel(cancelled));
    bob.endpoint.receive(Receive::tagged(9), vec![0; 1], 4).unwrap();
    assert!(bob.endpoint.cancel_context(4));
    bob.endpoint.receive_many(None, vec![0; 10_000], 5).unwrap();
    let memory = bob.domain.register(vec![0; 8], BOTH).unwrap();
    let rma = Rma::at(to_bob, memory.remote());
    alice.endpoint.write(rma, 5_u64.to_ne_bytes().to_vec(), 6).unwrap();
    drive(&world, &[&alice, &bob]);
    alice.endpoint.atomic(rma, Operation::new(AtomicOp::Sum, &[2_u64]), 7).unwrap();
    drive(&world, &[&alice, &bob]);
    let sum = Operation::new(AtomicOp::Sum, &[1_u64]);
    alice.endpoint.fetch_atomic(rma, sum, vec![0; 8], 8).unwrap();
    drive(&world, &[&alice, &bob]);
    alice.endpoint.read(rma, vec![0; 8], 9).unwrap();
    let (_, read) = only(drive(&world, &[&alice, &bob]));
    assert_eq!(read.buffer, 8_u64.to_ne_bytes().to_vec());

    let copy = alice.endpoint.copy_injected(&9_u64.to_ne_bytes().to_vec().into()).unwrap();
    alice.endpoint.inject_write(rma, copy.as_slice().unwrap()).unwrap();
    drive(&world, &[&alice, &bob]);
    alice.endpoint.inject_atomic(rma, Operation::new(AtomicOp::Sum, &[1_u64])).unwrap();
    drive(&world, &[&alice, &bob]);
    assert_eq!(contents(&memory), 10);

    alice.endpoint.send(Message::to(to_bob).tagged(1), "peeked at", 10).unwrap();
    drive(&world, &[&alice, &bob]);
    assert_eq!(bob.endpoint.peek(Receive::tagged(1)).unwrap().unwrap().length, 9);
    bob.endpoint.claim(Receive::tagged(1)).unwrap().unwrap().discard();
    assert_eq!(bob.endpoint.peek(Receive::tagged(1)), Ok(None));
}

/// The number in 8 bytes of registered memory.
fn contents(memory: &MemoryRegion) -> u64 {
    let mut bytes = [0; 8];
    memory.read(0, &mut bytes);
    u64::from_ne_bytes(bytes)
}

#[test]
fn transmit_context_injects_and_knows_how_many_operations_it_may_start() {
    let world = World::empty();
    let (alice, bob) = (Host::new(&world, 1, 2, 1), Host::new(&world, 11, 1, 1));
    let to_bob = alice.addresses.insert_scalable(bob.endpoint.address()).unwrap();
    let [first, second] = [0, 1].map(|index| alice.endpoint.transmit_context(index).unwrap());
    let memory = bob.domain.register(vec![0; 8], BOTH).unwrap();
    let rma = Rma::at(to_bob, memory.remote());
    second.inject_write(rma, &5_u64.to_ne_bytes()).unwrap();
    drive(&world, &[&alice, &bob]);
    second.inject_atomic(rma, Operation::new(AtomicOp::Sum, &[2_u64])).unwrap();
    let entries = drive(&world, &[&alice, &bob]);
    assert!(entries.iter().all(VecDeque::is_empty), "{entries:?}");
    assert_eq!(contents(&memory), 7);

    let limit = second.attributes().inject_size;
    let copy = second.copy_injected(&vec![7; limit].into()).unwrap();
    assert_eq!(copy, vec![7; limit]);
    let length = limit + 1;
    let too_long = StartError::TooLongToInject { length, limit };
    assert_eq!(second.copy_injected(&vec![7; length].into()), Err(too_long));

    let most = second.transmits_left();
    bob.endpoint.receive(Receive::untagged(), copy.into_vec(), 1).unwrap();
    second.send(Message::to(to_bob), "x", 2).unwrap();
    assert_eq!((first.transmits_left(), second.transmits_left()), (most, most - 1));
    drive(&world, &[&alice, &bob]);
    assert_eq!(second.transmits_left(), most);
}

#[test]
fn receive_context_has_a_least_rest_of_multi_receive_buffers_of_its_own() {
    let world = World::empty();
    let (alice, bob) = (Host::new(&world, 1, 1, 1), Host::new(&world, 11, 1, 2));
    let to_bob = alice.addresses.insert_scalable(bob.endpoint.address()).unwrap();
    let kinds_of = |contexts: [usize; 2]| {
        contexts.map(|index| {
            let context = bob.endpoint.receive_context(index).unwrap();
            let most = context.receives_left();
            let flags = OperationFlags::COMPLETION;
            let posted = context.receive_many_flags(None, flags, vec![0; 10_000], 1).unwrap();
            assert_eq!(context.receives_left(), most - 1);
            let to = alice.addresses.receive_context(to_bob, index).unwrap();
            alice.endpoint.send(Message::to(to), pattern(100, 1), 2).unwrap();
            let entries = drive(&world, &[&alice, &bob]).split_off(3 + index).remove(0);
            context.cancel(posted);
            drive(&world, &[&alice, &bob]);
            entries.into_iter().map(|entry| entry.unwrap().kind).collect::<Vec<_>>()
        })
    };
    let [stays, released] = [vec![Kind::MultiReceive], vec![Kind::MultiReceive, Kind::Released]];
    bob.endpoint.receive_context(1).unwrap().set_min_multi_receive(9_901);
    assert_eq!(kinds_of([0, 1]), [stays, released.clone()]);
    bob.endpoint.set_min_multi_receive(9_901);
    assert_eq!(kinds_of([0, 1]), [released.clone(), released]);
}

#[test]
fn scalable_endpoint_has_the_capabilities_and_the_domain_that_it_was_opened_with() {
    let world = World::empty();
    let host = Host::new(&world, 1, 2, 1);
    assert!(host.endpoint.domain().is(&host.domain));
    assert_eq!(host.endpoint.capabilities(), Capabilities::OFFERED);
    let queue = host.domain.completion_queue(CompletionQueueOptions::default());
    let options = options(9).capabilities(Capabilities::MSG);
    let endpoint = host
        .domain
        .scalable_endpoint(ScalableOptions::new().endpoint(options))
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(&host.addresses)
        .enable()
        .unwrap();
    let enabled = Capabilities::MSG | Capabilities::SEND | Capabilities::RECV;
    assert_eq!(endpoint.capabilities(), enabled);
}

#[test]
fn operations_of_all_contexts_complete_nowhere_once_their_completions_are_discarded() {
    let world = World::empty();
    let (alice, bob) = (Host::new(&world, 1, 2, 1), Host::new(&world, 11, 1, 1));
    let to_bob = alice.addresses.insert_scalable(bob.endpoint.address()).unwrap();
    for index in 0..2 {
        let context = alice.endpoint.transmit_context(index).unwrap();
        context.send(Message::to(to_bob), "x", 1).unwrap();
        bob.endpoint.receive(Receive::untagged(), vec![0; 1], 2).unwrap();
    }
    alice.endpoint.discard_completions();
    let entries = drive(&world, &[&alice, &bob]);
    let counts: Vec<_> = entries.iter().map(VecDeque::len).collect();
    assert_eq!(counts, [0, 0, 0, 0, 2]);
}

// conformance: C61 C62
#[test]
fn index_out_of_range_and_use_of_the_endpoint_in_place_of_a_context_are_named() {
    let world = World::empty();
    let host = Host::new(&world, 1, 2, 3);
    let endpoint = &host.endpoint;
    for (direction, contexts, found) in [
        ("transmit", 2, endpoint.transmit_context(2).map(|_| ()).unwrap_err()),
        ("receive", 3, endpoint.receive_context(3).map(|_| ()).unwrap_err()),
    ] {
        assert_eq!(found, NoSuchContext { direction, index: contexts, contexts });
    }
    assert_eq!(
        endpoint.transmit_context(2).unwrap_err().to_string(),
        "no transmit context 2, the endpoint has 2"
    );
    for index in 0..3 {
        assert_eq!(endpoint.receive_context(index).unwrap().index(), index);
    }
    let several = |direction, contexts| StartError::SeveralContexts { direction, contexts };
    let message = Message::to(FiAddr(0));
    let memory = host.domain.register(vec![0; 8], BOTH).unwrap();
    let rma = Rma::at(FiAddr(0), memory.remote());
    let sum = || Operation::new(AtomicOp::Sum, &[1_u64]);
    let refused = [
        endpoint.send(message, vec![7; 8], 1).unwrap_err(),
        endpoint.write(rma, vec![7; 8], 1).unwrap_err(),
        endpoint.read(rma, vec![7; 8], 1).unwrap_err(),
    ];
    for refused in refused {
        assert_eq!((refused.error, refused.buffer), (several("transmit", 2), vec![7; 8].into()));
    }
    for (refused, fetched) in [
        (endpoint.atomic(rma, sum(), 1), vec![]),
        (endpoint.fetch_atomic(rma, sum(), vec![7; 8], 1), vec![7; 8]),
    ] {
        let AtomicRefused { error, operation, fetched: back } = refused.unwrap_err();
        assert_eq!((error, *operation, back), (several("transmit", 2), sum(), fetched.into()));
    }
    assert_eq!(endpoint.inject(message, b"x"), Err(several("transmit", 2)));
    assert_eq!(endpoint.inject_write(rma, &[7; 8]), Err(several("transmit", 2)));
    assert_eq!(endpoint.inject_atomic(rma, sum()), Err(several("transmit", 2)));
    assert_eq!(endpoint.copy_injected(&"x".into()), Err(several("transmit", 2)));
    assert_eq!(endpoint.peek(Receive::untagged()), Err(several("receive", 3)));
    assert_eq!(endpoint.claim(Receive::untagged()).unwrap_err(), several("receive", 3));
    let flags = OperationFlags::empty();
    let refused = [
        endpoint.receive(Receive::untagged(), vec![7; 8], 1).unwrap_err(),
        endpoint.receive_many(None, vec![7; 8], 1).unwrap_err(),
        endpoint.receive_many_flags(None, flags, vec![7; 8], 1).unwrap_err(),
    ];
    for refused in refused {
        assert_eq!((refused.error, refused.buffer), (several("receive", 3), vec![7; 8].into()));
    }
    let posted = endpoint.receive_context(1).unwrap();
    let receive = posted.receive(Receive::untagged(), vec![0; 8], 4).unwrap();
    assert!(!endpoint.cancel(receive) && !endpoint.cancel_context(4));
    assert!(posted.cancel(receive));
    assert_eq!((endpoint.class(), endpoint.context()), (efa::Class::ScalableEndpoint, 5));
}

// conformance: C63
#[test]
fn context_has_the_capabilities_that_were_asked_for_it_and_no_others() {
    let world = World::empty();
    let domain = world.fabric.domain().unwrap();
    let addresses = domain.address_vector();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let only = |capabilities| ContextOptions::new().capabilities(capabilities);
    let builder = |endpoint: EndpointOptions| {
        let options = ScalableOptions::new().transmit_contexts(3).receive_contexts(2);
        domain
            .scalable_endpoint(options.endpoint(endpoint))
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
    };
    let endpoint = builder(options(1))
        .transmit_context(0, only(Capabilities::TAGGED))
        .transmit_context(1, only(Capabilities::RMA))
        .receive_context(1, only(Capabilities::MSG))
        .enable()
        .unwrap();
    let own = addresses.insert(endpoint.address().queue_pairs()[0]).unwrap();
    let memory = domain.register(vec![0; 8], BOTH).unwrap();
    let rma = Rma::at(own, memory.remote());
    let transmit = [0, 1, 2].map(|index| endpoint.transmit_context(index).unwrap());
    let tagged = transmit.each_ref().map(|context| {
        let sent = context.send(Message::to(own).tagged(1), "x", 1);
        sent.map_err(|refused| refused.error)
    });
    let lacking = |capabilities| Err(StartError::Disabled(capabilities));
    assert_eq!(tagged, [Ok(()), lacking(Capabilities::TAGGED), Ok(())]);
    let written = transmit
        .each_ref()
        .map(|context| context.write(rma, vec![0; 8], 1).map_err(|refused| refused.error));
    assert_eq!(written, [lacking(Capabilities::RMA), Ok(()), Ok(())]);
    assert!(transmit[0].attributes().capabilities.contains(Capabilities::TAGGED));
    assert!(!transmit[0].attributes().capabilities.contains(Capabilities::RMA));
    let receive = [0, 1].map(|index| endpoint.receive_context(index).unwrap());
    let posted = receive.each_ref().map(|context| {
        let posted = context.receive(Receive::tagged(2), vec![0; 1], 1);
        posted.map(|_| ()).map_err(|refused| refused.error)
    });
    assert_eq!(posted, [Ok(()), lacking(Capabilities::TAGGED)]);
    drop((endpoint, transmit, receive));

    let limited = options(1).capabilities(Capabilities::MSG);
    let beyond = builder(limited).transmit_context(1, only(Capabilities::RMA)).enable();
    let (side, capabilities) = ("transmit", Capabilities::RMA);
    assert_eq!(beyond.unwrap_err(), EnableError::BeyondEndpoint { side, capabilities });
}

// conformance: C65 C95
#[test]
fn address_vector_names_the_receive_contexts_of_a_scalable_endpoint_and_no_others() {
    let world = World::empty();
    let (alice, bob) = (Host::new(&world, 1, 1, 1), Host::new(&world, 11, 4, 3));
    let address = bob.endpoint.address();
    let bytes = address.to_bytes();
    assert_eq!(bytes.len(), bob.endpoint.attributes().address_size);
    let address = &ScalableAddress::from_bytes(&bytes).unwrap();
    assert_eq!((address.receive_contexts(), address.queue_pairs().len()), (3, 4));

    let peer = alice.addresses.insert_scalable(address).unwrap();
    assert_eq!(alice.addresses.insert_scalable(address), Ok(peer), "only once");
    assert_eq!(alice.addresses.len(), 1);
    for (index, queue_pair) in address.queue_pairs().iter().enumerate() {
        let context = alice.addresses.receive_context(peer, index).unwrap();
        assert_eq!(alice.addresses.find(queue_pair), Some(peer));
        let known = alice.addresses.address(context);
        assert_eq!(known, (index < 3).then_some(*queue_pair), "the last only sends");
        let sent = alice.endpoint.send(Message::to(context), "x", 1);
        let error = sent.map_err(|refused| refused.error);
        let unknown = Err(StartError::UnknownAddress(context));
        assert_eq!(error, if index < 3 { Ok(()) } else { unknown });
    }
    assert_eq!(alice.addresses.remove(peer), Some(address.queue_pairs()[0]));
    assert!(address.queue_pairs().iter().all(|pair| alice.addresses.find(pair).is_none()));
    let one_bit = alice.domain.address_vector_with(context_bits(1)).unwrap();
    let limit = DeviceError::LimitReached {
        object: "receive context of a peer (AddressVectorOptions::receive_context_bits)",
        limit: 2,
    };
    assert_eq!(one_bit.insert_scalable(address), Err(limit));
}

/// Also of the queue pair that only sends: its packets are dropped while its peer is removed.
#[test]
fn removed_scalable_peer_is_dropped_in_all_its_contexts_and_heard_again_when_inserted_anew() {
    let world = World::empty();
    let (alice, bob) = (Host::new(&world, 1, 3, 1), Host::new(&world, 11, 1, 1));
    let from_alice = bob.addresses.insert_scalable(alice.endpoint.address()).unwrap();
    let to_bob = alice.addresses.insert_scalable(bob.endpoint.address()).unwrap();
    let send = |context, to| {
        let context = alice.endpoint.transmit_context(context).unwrap();
        context.send(Message::to(to), "x", 1).unwrap();
    };
    let post = || bob.endpoint.receive(Receive::untagged(), vec![0; 1], 2).unwrap();
    let all_arrive = |to, from| {
        for context in 0..3 {
            post();
            send(context, to);
            let entries = drive(&world, &[&alice, &bob]);
            let received = entries[5].front().unwrap().clone().unwrap();
            assert_eq!(received.peer, Some(from));
        }
    };
    all_arrive(to_bob, from_alice);
    bob.addresses.remove(from_alice).unwrap();
    let receive = post();
    for context in 0..3 {
        send(context, to_bob);
        assert!(drive(&world, &[&alice, &bob])[5].is_empty(), "context {context}");
    }
    assert!(bob.endpoint.cancel(receive));
    // Both sides start anew.
    alice.addresses.remove(to_bob).unwrap();
    drive(&world, &[&alice, &bob]);
    let from_alice = bob.addresses.insert_scalable(alice.endpoint.address()).unwrap();
    let to_bob = alice.addresses.insert_scalable(bob.endpoint.address()).unwrap();
    all_arrive(to_bob, from_alice);
}

/// Of the queue pair that only sends.
#[test]
fn message_that_a_removed_scalable_peer_left_is_not_named_by_the_next_peer_with_its_index() {
    let world = World::empty();
    let (alice, bob) = (Host::new(&world, 1, 2, 1), Host::new(&world, 11, 1, 1));
    let introduce = || {
        let to_bob = alice.addresses.insert_scalable(bob.endpoint.address()).unwrap();
        (to_bob, bob.addresses.insert_scalable(alice.endpoint.address()).unwrap())
    };
    let send = |to| {
        alice.endpoint.transmit_context(1).unwrap().send(Message::to(to), "x", 1).unwrap();
        drive(&world, &[&alice, &bob])
    };
    let receive = || bob.endpoint.receive(Receive::untagged(), vec![0; 1], 2).unwrap();
    let (to_bob, from_alice) = introduce();
    receive();
    send(to_bob);
    bob.addresses.remove(from_alice).unwrap();
    alice.addresses.remove(to_bob).unwrap();
    drive(&world, &[&alice, &bob]);
    let (to_bob, from_alice) = introduce();
    send(to_bob);
    bob.addresses.remove(from_alice).unwrap();
    let next = bob.addresses.insert("[fe80::9]:9/0x9".parse().unwrap()).unwrap();
    assert_eq!(next, from_alice);
    receive();
    let entries = drive(&world, &[&alice, &bob]);
    let received = entries.iter().flatten().map(|entry| entry.as_ref().unwrap());
    let left: Vec<_> = received.filter(|entry| entry.is_received()).collect();
    assert_eq!((left.len(), left[0].peer), (1, None), "{left:?}");
    let alices_second = alice.endpoint.address().queue_pairs()[1];
    assert_eq!(left[0].peer_address, Some(alices_second));
}

#[test]
fn directed_receive_takes_messages_of_the_transmit_context_that_it_names() {
    let world = World::empty();
    let (alice, bob) = (Host::new(&world, 1, 2, 2), Host::new(&world, 11, 1, 1));
    let to_bob = alice.addresses.insert_scalable(bob.endpoint.address()).unwrap();
    let from_alice = bob.addresses.insert_scalable(alice.endpoint.address()).unwrap();
    for context in [1, 0] {
        let source = bob.addresses.receive_context(from_alice, context).unwrap();
        let receive = Receive::untagged().from(source);
        bob.endpoint.receive(receive, vec![0; 1], context as u64).unwrap();
    }
    for context in [0, 1] {
        let transmit = alice.endpoint.transmit_context(context).unwrap();
        transmit.send(Message::to(to_bob), "x", 9).unwrap();
        let entries = drive(&world, &[&alice, &bob]);
        let received = entries[5].front().unwrap().clone().unwrap();
        assert_eq!((received.context, received.peer), (context as u64, Some(from_alice)));
    }
}

// conformance: C60
#[test]
fn scalable_endpoint_is_not_enabled_with_what_it_cannot_have() {
    let world = World::new(LocalOptions::default().with(|options| options.max_queue_pairs = 6));
    let domain = world.fabric.domain().unwrap();
    let addresses = domain.address_vector();
    let queue = &domain.completion_queue(CompletionQueueOptions::default());
    let builder = |endpoint| {
        let options = ScalableOptions::new().transmit_contexts(2).receive_contexts(4);
        domain.scalable_endpoint(options.endpoint(endpoint)).bind_address_vector(&addresses)
    };
    let bound = |endpoint| builder(endpoint).bind_completion_queue(queue, Direction::Both);
    let error = |builder: efa::ScalableEndpointBuilder| builder.enable().unwrap_err();
    let sends = builder(options(1)).bind_completion_queue(queue, Direction::Transmit);
    assert_eq!(error(sends), EnableError::Missing(Bound::ReceiveQueue));
    let receives = builder(options(1)).bind_completion_queue(queue, Direction::Receive);
    assert_eq!(error(receives), EnableError::Missing(Bound::TransmitQueue));
    let twice = bound(options(1)).bind_completion_queue(queue, Direction::Receive);
    assert_eq!(error(twice), EnableError::Twice(Bound::ReceiveQueue));
    let twice = bound(options(1)).bind_transmit_queue(1, queue).bind_transmit_queue(1, queue);
    assert_eq!(error(twice), EnableError::Twice(Bound::TransmitQueue));
    let twice = bound(options(1)).bind_address_vector(&addresses);
    assert_eq!(error(twice), EnableError::Twice(Bound::AddressVector));
    let none = |direction, index, contexts| {
        EnableError::NoSuchContext(NoSuchContext { direction, index, contexts })
    };
    assert_eq!(error(bound(options(1)).bind_transmit_queue(2, queue)), none("transmit", 2, 2));
    assert_eq!(error(bound(options(1)).bind_receive_queue(4, queue)), none("receive", 4, 4));
    let context = bound(options(1)).transmit_context(2, ContextOptions::new());
    assert_eq!(error(context), none("transmit", 2, 2));
    let in_place = options(1).receiving(Receiving::InPlace);
    assert_eq!(error(bound(in_place)), EnableError::ScalableInPlace);

    // Four queue pairs of six; then two are left, which a failed attempt gives back.
    let first = bound(options(1)).enable().unwrap();
    for _ in 0..2 {
        let limit = DeviceError::LimitReached { object: "queue pair", limit: 6 };
        assert_eq!(error(bound(options(11))), EnableError::Device(limit));
    }
    first.close(Duration::from_secs(1)).unwrap();
    let context = first.receive_context(0).unwrap();
    let refused = context.receive(Receive::untagged(), vec![0; 1], 1).unwrap_err();
    assert_eq!(refused.error, StartError::Closed);
    assert!(bound(options(11)).enable().is_ok());
}

/// The contexts outlive the endpoint that they were taken from.
#[test]
fn contexts_work_until_the_last_handle_is_dropped() {
    let world = World::new(LocalOptions::default().with(|options| options.max_queue_pairs = 2));
    let host = Host::new(&world, 1, 2, 2);
    let own = host.addresses.insert_scalable(host.endpoint.address()).unwrap();
    let to_second = host.addresses.receive_context(own, 1).unwrap();
    let (sender, receiver) =
        (host.endpoint.transmit_context(0).unwrap(), host.endpoint.receive_context(1).unwrap());
    let Host { endpoint, receive, transmit, domain, .. } = host;
    drop(endpoint);
    receiver.receive(Receive::untagged(), vec![0; 5], 1).unwrap();
    sender.send(Message::to(to_second), "hello", 2).unwrap();
    let received = receive[1].wait(Duration::from_secs(1)).unwrap();
    assert_eq!(received.into_message(), *b"hello");
    drop((sender, receiver));
    let again = domain
        .scalable_endpoint(ScalableOptions::new().receive_contexts(2))
        .bind_completion_queue(&transmit[0], Direction::Both)
        .bind_address_vector(&domain.address_vector());
    assert!(again.enable().is_ok(), "the queue pairs are free");
}

// conformance: C59
#[test]
fn receive_contexts_of_a_scalable_endpoint_take_receives_of_one_queue() {
    let world = World::empty();
    let alice = Host::new(&world, 1, 1, 1);
    let domain = world.fabric.domain().unwrap();
    let (addresses, receive) = (domain.address_vector(), queues(&domain, 2));
    let shared = domain.shared_receive_queue(SharedReceiveQueueOptions::new());
    let endpoint = domain
        .scalable_endpoint(ScalableOptions::new().receive_contexts(2).endpoint(options(11)))
        .bind_address_vector(&addresses)
        .bind_completion_queue(&receive[0], Direction::Both)
        .bind_receive_queue(1, &receive[1])
        .bind_shared_receive_queue(&shared)
        .enable()
        .unwrap();
    let bob = Host { domain, addresses, transmit: Vec::new(), receive, endpoint };
    let to_bob = alice.addresses.insert_scalable(bob.endpoint.address()).unwrap();
    for context in 0..2 {
        shared.receive(Receive::untagged(), vec![0; 1], context).unwrap();
    }
    for (order, context) in [1, 0].into_iter().enumerate() {
        let to = alice.addresses.receive_context(to_bob, context).unwrap();
        alice.endpoint.send(Message::to(to), "x", 9).unwrap();
        let entries = drive(&world, &[&alice, &bob]);
        let received = entries[2 + context].front().unwrap().clone().unwrap();
        assert_eq!(received.context, order as u64);
    }
    let direct = bob.endpoint.receive_context(0).unwrap();
    let refused = direct.receive(Receive::untagged(), vec![0; 1], 1).unwrap_err();
    assert_eq!(refused.error, StartError::ReceivesShared);
}

//! Endpoints that receive in place: they hand over the packets that messages arrived in.

use std::time::Duration;

use efa::{
    Capabilities, CompletionQueueOptions, Config, ConfigError, Counted, CounterOptions, Direction,
    DropReason, EnableError, EndpointOptions, Event, Fabric, LocalOptions, Message, MessageOrder,
    OperationError, Packet, PacketType, Receive, Receiving, Release, StartError, Subprotocol,
    UnexpectedHeader,
};

use crate::world::{ALICE, BOB, World, options, pattern, with};

/// A release that requests headers of constant length, and one with a second queue pair.
const RELEASES: [Release; 2] = [Release::V1_20, Release::V2_0];

/// Bob's options, compatible with a release.
fn in_place(release: Release, unexpected_header: UnexpectedHeader) -> EndpointOptions {
    let mut protocol = Config::as_release(release);
    protocol.unexpected_header = unexpected_header;
    options(2)
        .capabilities(Capabilities::MSG | Capabilities::RMA | Capabilities::SOURCE)
        .receiving(Receiving::InPlace)
        .protocol(protocol)
}

/// Bob receives in place, and Alice sends messages only after his HANDSHAKE.
fn pair(release: Release) -> World {
    let alice = with(1, |config| config.messages_after_handshake = true);
    World::pair_with(7, alice, in_place(release, UnexpectedHeader::Refuse))
}

fn post(world: &World, context: u64) {
    let packet = world.end(BOB).packet().unwrap();
    world.end(BOB).receive_in_place(packet, context).unwrap();
}

/// Reasons of Bob's `PacketDropped` events.
fn drops(world: &World) -> Vec<DropReason> {
    let events = std::iter::from_fn(|| world.end(BOB).event());
    let reasons = events.filter_map(|event| match event {
        Event::PacketDropped { reason, .. } => Some(reason),
        _ => None,
    });
    reasons.collect()
}

// conformance: C57 A184 A185
#[test]
fn in_place_messages_arrive_in_packets_that_can_be_reposted() {
    for release in RELEASES {
        let mut world = pair(release);
        // Order is what both sides have: the sender's attribute alone promises none.
        let order = world.end(ALICE).transmit_attributes().message_order;
        assert_eq!(order, MessageOrder::SendAfterSend);
        assert_eq!(world.end(BOB).receive_attributes().message_order, MessageOrder::Unordered);
        let to_bob = world.introduce(ALICE, BOB);
        let alice = world.introduce(BOB, ALICE);
        let mut packet: Packet = world.end(BOB).packet().unwrap();
        let most = packet.capacity();
        assert!(most > 8000, "{most}");
        for (i, size) in [0, 1, 1000, most, 8].into_iter().enumerate() {
            let context = i as u64;
            let data = pattern(size, context);
            world.end(BOB).receive_in_place(packet, context).unwrap();
            world.end(ALICE).send(Message::to(to_bob), data.clone(), 9).unwrap();
            assert_eq!(world.done(ALICE).context, 9);
            let received = world.done(BOB);
            assert!(received.is_received());
            assert_eq!((received.context, received.length), (context, size as u64));
            assert_eq!((received.peer, received.tag), (Some(alice), None));
            assert_eq!(received.subprotocol, Some(Subprotocol::Eager));
            assert_eq!(received.buffer.as_slice(), Some(&data[..]));
            packet = received.buffer.into_packet().unwrap();
            assert_eq!(packet.capacity(), most);
        }
        assert_eq!(world.end(BOB).statistics().unexpected, 0, "{release}: nothing was copied");
    }
}

#[test]
fn in_place_message_can_be_sent_from_its_packet() {
    for release in RELEASES {
        let mut world = pair(release);
        let carol = world.add(options(3));
        let to_bob = world.introduce(ALICE, BOB);
        let to_carol = world.introduce(BOB, carol);
        post(&world, 1);
        world.end(carol).receive(Receive::untagged(), vec![0; 3000], 2).unwrap();
        world.end(ALICE).send(Message::to(to_bob), pattern(3000, 1), 3).unwrap();
        let received = world.done(BOB);
        assert_eq!(received.buffer.clone(), pattern(3000, 1), "a clone is a copy of the bytes");
        world.end(BOB).send(Message::to(to_carol), received.into_message(), 4).unwrap();
        assert_eq!(world.done(carol).into_message(), pattern(3000, 1));
        let sent = world.done(BOB);
        assert_eq!((sent.context, &sent.buffer), (4, &pattern(3000, 1).into()));
        // The packet comes back with the completion of the send and can be posted again.
        world.end(BOB).receive_in_place(sent.buffer.into_packet().unwrap(), 5).unwrap();
    }
}

#[test]
fn in_place_endpoint_sends_messages_of_any_length() {
    for release in RELEASES {
        let mut world = pair(release);
        let to_alice = world.introduce(BOB, ALICE);
        for size in [8, 50_000, 300_000] {
            world.end(ALICE).receive(Receive::untagged(), vec![0; size], 1).unwrap();
            world.end(BOB).send(Message::to(to_alice), pattern(size, 3), 2).unwrap();
            assert_eq!(world.done(ALICE).into_message(), pattern(size, 3));
            assert_eq!(world.done(BOB).context, 2);
        }
    }
}

// conformance: A44 A188
#[test]
fn in_place_message_with_unexpected_header_fails_its_receive() {
    // 1.12 has shorter addresses, and omits them after the HANDSHAKE.
    let old = options(1).protocol(Config::as_release(Release::V1_12));
    // A current release knows the request, but sends before it has received it.
    for (alice, release) in [(old, Release::V1_20), (options(1), Release::V2_0)] {
        let mut world = World::pair_with(7, alice, in_place(release, UnexpectedHeader::Refuse));
        let to_bob = world.introduce(ALICE, BOB);
        post(&world, 1);
        world.end(ALICE).send(Message::to(to_bob), pattern(100, 1), 2).unwrap();
        let failed = world.failed(BOB);
        assert!(matches!(failed.error, OperationError::UnexpectedHeader { .. }), "{failed}");
        assert_eq!(failed.completion.context, 1);
        assert!(failed.completion.buffer.is_empty(), "the endpoint keeps the packet");
        assert_eq!(world.done(ALICE).context, 2, "the send completes without error");
    }
}

// conformance: A43 A45 A189
#[test]
fn in_place_message_with_unexpected_header_is_moved_if_configured() {
    let old = options(1).protocol(Config::as_release(Release::V1_12));
    for (alice, release) in [(old, Release::V1_20), (options(1), Release::V2_0)] {
        let mut world = World::pair_with(7, alice, in_place(release, UnexpectedHeader::Move));
        let to_bob = world.introduce(ALICE, BOB);
        for context in 0..3 {
            post(&world, context);
            world.end(ALICE).send(Message::to(to_bob), pattern(100, context), 9).unwrap();
            let received = world.done(BOB);
            assert_eq!(received.context, context);
            assert_eq!(received.buffer.as_slice(), Some(&pattern(100, context)[..]));
            assert!(received.buffer.into_packet().is_ok());
        }
    }
}

// conformance: A190
#[test]
fn in_place_endpoint_drops_unsuitable_messages_with_an_event() {
    let mut world = pair(Release::V1_20);
    let to_bob = world.introduce(ALICE, BOB);
    post(&world, 1);
    // The first attempt elicits his HANDSHAKE, which messages wait for.
    let inject = |world: &World| world.end(ALICE).inject(Message::to(to_bob).tagged(5), b"tagged");
    assert!(inject(&world).unwrap_err().is_busy());
    world.drive();
    inject(&world).unwrap();
    world.end(ALICE).send(Message::to(to_bob), pattern(20_000, 1), 2).unwrap();
    world.drive();
    let drops = drops(&world);
    for packet_type in [PacketType::EagerTagRtm, PacketType::MediumMsgRtm] {
        assert!(drops.contains(&DropReason::NotInPlace(packet_type)), "{packet_type}: {drops:?}");
    }
    assert!(world.ends[BOB].entries.is_empty());
    world.end(ALICE).send(Message::to(to_bob), pattern(20, 2), 3).unwrap();
    let received = world.done(BOB);
    assert_eq!((received.context, received.buffer), (1, pattern(20, 2).into()));
}

#[test]
fn in_place_receives_are_counted_and_may_omit_the_source() {
    let mut world = World::empty();
    world.add(options(1));
    let domain = world.ends[ALICE].domain.clone();
    let queue = domain.completion_queue(CompletionQueueOptions::new().capacity(2));
    let counter = domain.counter(CounterOptions::default()).unwrap();
    let mut sourceless = in_place(Release::V1_20, UnexpectedHeader::Move);
    sourceless.capabilities = Capabilities::MSG;
    let bob = domain
        .endpoint(sourceless)
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(&world.ends[ALICE].addresses)
        .bind_counter(&counter, Counted::RECEIVE)
        .enable()
        .unwrap();
    for context in 0..2 {
        bob.receive_in_place(bob.packet().unwrap(), context).unwrap();
    }
    let refused = bob.receive_in_place(bob.packet().unwrap(), 2).unwrap_err();
    assert_eq!(refused.error, StartError::QueueFull { capacity: 2 });
    assert!(refused.buffer.into_packet().is_ok(), "the packet comes back");

    let to_bob = world.ends[ALICE].addresses.insert(bob.address()).unwrap();
    world.end(ALICE).inject(Message::to(to_bob), b"hello").unwrap();
    let received = queue.wait(Duration::from_secs(60)).unwrap();
    assert_eq!((received.context, received.peer), (0, None));
    assert_eq!(received.into_message(), *b"hello");
    assert_eq!(counter.value(), 1);

    // The other receive ends.
    drop(bob);
    let ended = queue.read().unwrap().unwrap_err();
    assert_eq!((ended.completion.context, ended.error), (1, OperationError::Closed));
    assert!(queue.read().is_none());
}

#[test]
fn queue_serves_matching_and_in_place_endpoints_in_turn() {
    let mut world = pair(Release::V1_20);
    let domain = world.ends[BOB].domain.clone();
    let carol = domain
        .endpoint(options(3))
        .bind_completion_queue(&world.ends[BOB].queue, Direction::Both)
        .bind_address_vector(&world.ends[BOB].addresses)
        .enable()
        .unwrap();
    let to_bob = world.introduce(ALICE, BOB);
    let to_carol = world.ends[ALICE].addresses.insert(carol.address()).unwrap();
    for i in 0..20 {
        post(&world, i);
        carol.receive(Receive::tagged(i), vec![0; 100], 100 + i).unwrap();
        world.end(ALICE).send(Message::to(to_bob), pattern(60, i), 0).unwrap();
        world.end(ALICE).send(Message::to(to_carol).tagged(i), pattern(60, 100 + i), 0).unwrap();
    }
    let mut contexts: Vec<u64> = (0..40)
        .map(|_| {
            let received = world.done(BOB);
            if received.context >= 100 {
                let salt = received.context;
                assert_eq!(received.into_message(), pattern(60, salt));
                return salt;
            }
            assert!(received.buffer.as_slice().is_some());
            received.context
        })
        .collect();
    contexts.sort_unstable();
    assert_eq!(contexts, (0..20).chain(100..120).collect::<Vec<_>>());
}

// conformance: A183
#[test]
fn in_place_endpoint_refuses_unsuitable_options_and_operations() {
    let world = pair(Release::V2_0);
    let domain = &world.ends[BOB].domain;
    let enable = |options| {
        let end = &world.ends[BOB];
        let builder = domain.endpoint(options).bind_completion_queue(&end.queue, Direction::Both);
        builder.bind_address_vector(&end.addresses).enable().map(drop)
    };
    let bob = || in_place(Release::V2_0, UnexpectedHeader::Refuse);
    let matched = Capabilities::TAGGED
        | Capabilities::ATOMIC
        | Capabilities::MULTI_RECV
        | Capabilities::DIRECTED_RECV;
    let everything = bob().capabilities(Capabilities::OFFERED);
    assert_eq!(enable(everything), Err(EnableError::NotInPlace(matched)));
    for capability in matched.iter() {
        let one = bob().capabilities(Capabilities::MSG | capability);
        assert_eq!(enable(one), Err(EnableError::NotInPlace(capability)));
    }
    for release in [Release::V1_12, Release::V2_6] {
        let refused = enable(in_place(release, UnexpectedHeader::Refuse));
        assert_eq!(refused, Err(ConfigError::NotInPlace { release }.into()));
    }

    // It takes no other receives, and other endpoints take none in place.
    let refused = world.end(BOB).receive(Receive::untagged(), vec![7], 1).unwrap_err();
    assert_eq!(refused.error, StartError::Engine(efa_rdm::StartError::InPlaceOnly));
    assert_eq!(refused.buffer, [7]);
    assert_eq!(world.end(ALICE).packet().map(drop), Err(StartError::NotInPlace));
    let packet = world.end(BOB).packet().unwrap();
    let refused = world.end(ALICE).receive_in_place(packet, 1).unwrap_err();
    assert!(matches!(refused.error, StartError::NotInPlace | StartError::OtherDomain));
    let mut send_only = bob();
    send_only.capabilities = Capabilities::MSG | Capabilities::SEND;
    let mut world = World::empty();
    world.add(send_only);
    let packet = world.end(ALICE).packet().unwrap();
    let refused = world.end(ALICE).receive_in_place(packet, 1).unwrap_err();
    assert_eq!(refused.error, StartError::Disabled(Capabilities::RECV));
    assert!(refused.buffer.into_packet().is_ok());
}

#[test]
fn in_place_receive_refuses_packets_of_another_device() {
    let other = Fabric::local(LocalOptions::default().with(|options| options.mtu = 4096));
    let domain = other.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let other_endpoint = domain
        .endpoint(in_place(Release::V1_20, UnexpectedHeader::Refuse))
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(&domain.address_vector())
        .enable()
        .unwrap();
    let world = pair(Release::V1_20);
    let refused = world.end(BOB).receive_in_place(other_endpoint.packet().unwrap(), 1).unwrap_err();
    assert_eq!(refused.error, StartError::OtherDomain);
    let packet = refused.buffer.into_packet().unwrap();
    other_endpoint.receive_in_place(packet, 2).unwrap();
    other_endpoint.close(Duration::from_secs(1)).unwrap();
}

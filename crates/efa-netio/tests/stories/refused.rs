//! What is refused: connections, ports, calls and messages. The socket can be used again.

use std::io::ErrorKind;
use std::time::Duration;

use efa::{ConnectError, LocalAccess, StartError};
use efa_netio::{
    AnySocket, Event, Header, ListenOptions, Message, MessageError, Netio, Options, Pool,
    PublishOptions, RefusedReason, Rejection, SendError, SendOptions, SendSocket, Sent,
    SocketError, SubscribeOptions, Wait,
};

use crate::pairs::{Pair, RECEIVER, SENDER, buffers, pool, rough};
use crate::world::{HOST, World, pattern};

fn rough_world(seed: u64, nodes: usize) -> World {
    World::with(nodes, Options::default(), rough(seed))
}

/// Why a socket is not connected.
fn refused(world: &mut World, node: usize, of: impl Into<AnySocket>) -> RefusedReason {
    let of = of.into();
    let is = |event: &Event| matches!(event, Event::Refused { socket, .. } if *socket == of);
    world.until("Refused", |world| match world.take(node, |event| is(event).then_some(())) {
        Some((Event::Refused { reason, .. }, ())) => Some(reason),
        _ => None,
    })
}

/// Why a socket refused the next caller.
fn caller_refused(world: &mut World, node: usize, of: impl Into<AnySocket>) -> RefusedReason {
    let of = of.into();
    let is = |event: &Event| match event {
        Event::CallerRefused { socket, from, .. } if *socket == of => Some(*from),
        _ => None,
    };
    world.until("CallerRefused", |world| match world.take(node, is)? {
        (Event::CallerRefused { reason, .. }, from) => {
            assert!(from.port() != 0);
            Some(reason)
        }
        _ => None,
    })
}

fn connects(world: &mut World, node: usize, socket: SendSocket, port: u16) {
    world.netio(node).connect(socket, HOST, port).unwrap();
    world.event(node, "Connected", |event| {
        matches!(event, Event::Connected(found) if *found == socket.into()).then_some(())
    });
}

// conformance: D8 D13 D14
#[test]
fn socket_without_a_listener_is_refused_and_connects_later() {
    for seed in 0..4 {
        let mut world = rough_world(seed, 2);
        let socket = world.netio(SENDER).send_socket(SendOptions::default());
        for _ in 0..3 {
            world.netio(SENDER).connect(socket, HOST, 7).unwrap();
            assert_eq!(world.netio(SENDER).connect(socket, HOST, 7), Err(SocketError::Busy));
            let reason = refused(&mut world, SENDER, socket);
            assert!(matches!(reason, RefusedReason::Connect(ConnectError::Refused)), "{reason:?}");
        }
        let netio = world.netio(RECEIVER);
        let listener = netio.listen_socket(ListenOptions::default());
        netio.listen(listener, HOST, 7).unwrap();
        connects(&mut world, SENDER, socket, 7);
        assert_eq!(world.netio(SENDER).connect(socket, HOST, 7), Err(SocketError::Busy));
        assert_eq!(world.netio(SENDER).counts().connections, 1);
    }
}

// conformance: D13 D14
#[test]
fn listener_that_never_answers_is_given_up_in_time() {
    let mut world = rough_world(1, 2);
    let (_, port) = world.listener(RECEIVER, ListenOptions::default());
    let socket = world.netio(SENDER).send_socket(SendOptions::default());
    world.netio(SENDER).connect(socket, HOST, port).unwrap();
    for _ in 0..1000 {
        world.turn_without(&[RECEIVER]);
    }
    assert!(world.nodes[SENDER].events.is_empty());
    world.pass(Duration::from_secs(5));
    for _ in 0..200 {
        world.turn_without(&[RECEIVER]);
    }
    let reason = refused(&mut world, SENDER, socket);
    let after = Duration::from_secs(5);
    let expected = ConnectError::TimedOut { after };
    assert!(matches!(reason, RefusedReason::Connect(error) if error == expected));
    // The listener may have accepted meanwhile, and has nothing of it left.
    world.rest();
    world.pass(Duration::from_secs(5));
    world.rest();
    assert_eq!(world.netio(RECEIVER).counts().connections, 0);
    connects(&mut world, SENDER, socket, port);
}

// conformance: D14
#[test]
fn unknown_host_is_refused_and_its_late_answer_ignored() {
    let mut world = rough_world(1, 2);
    let (_, port) = world.listener(RECEIVER, ListenOptions::default());
    let netio = world.netio(SENDER);
    let socket = netio.send_socket(SendOptions::default());
    netio.connect(socket, "nosuch.invalid", port).unwrap();
    assert_eq!(netio.connect(socket, HOST, port), Err(SocketError::Busy));
    // A resolver that doesn't answer is given up.
    world.pass(Duration::from_secs(5));
    match refused(&mut world, SENDER, socket) {
        RefusedReason::UnknownHost { host, reason } => {
            assert_eq!(host, "nosuch.invalid");
            assert!(!reason.is_empty());
        }
        other => panic!("{other:?}"),
    }
    connects(&mut world, SENDER, socket, port);
    world.quiet(SENDER);
    let netio = world.netio(SENDER);
    for host in ["", "a b", "\0", "host.with.port:80", &"x".repeat(100_000)] {
        let socket = netio.send_socket(SendOptions::default());
        netio.connect(socket, host, port).unwrap();
    }
    world.pass(Duration::from_secs(5));
    for _ in 0..5 {
        world.event(SENDER, "UnknownHost", |event| match event {
            Event::Refused { reason: RefusedReason::UnknownHost { .. }, .. } => Some(()),
            _ => None,
        });
    }
}

#[test]
fn socket_whose_host_is_looked_up_can_be_disconnected_and_closed() {
    let mut world = rough_world(1, 2);
    let (_, port) = world.listener(RECEIVER, ListenOptions::default());
    let netio = world.netio(SENDER);
    let [socket, closed] = [(); 2].map(|()| netio.send_socket(SendOptions::default()));
    for socket in [socket, closed] {
        netio.connect(socket, "nosuch.invalid", port).unwrap();
    }
    netio.close(closed);
    assert_eq!(netio.connect(closed, HOST, port), Err(SocketError::Closed));
    netio.disconnect(socket).unwrap();
    assert_eq!(netio.disconnect(socket), Err(SocketError::NotConnected));
    let (_, reason) = crate::pairs::closed(&mut world, SENDER, socket.into());
    assert_eq!(reason, efa_netio::ClosedReason::Disconnected);
    connects(&mut world, SENDER, socket, port);
    world.pass(Duration::from_secs(6));
    world.quiet(SENDER);
}

#[test]
fn socket_of_another_kind_than_the_listener_is_refused() {
    let mut world = rough_world(1, 2);
    let (listener, listens) = world.listener(RECEIVER, buffers(2, 1000));
    let of_publisher = pool(&mut world, RECEIVER, 10);
    let (publisher, publishes) = world.until("memory", |world| {
        let netio = world.netio(RECEIVER);
        let socket = netio.publish_socket(&of_publisher, PublishOptions::default()).ok()?;
        netio.publish_at(socket, HOST, 0).unwrap();
        Some((socket, netio.local_address(socket).unwrap().port()))
    });
    let netio = world.netio(SENDER);
    let send = netio.send_socket(SendOptions::default());
    let subscribe = netio.subscribe_socket(HOST, listens, SubscribeOptions::default());
    netio.connect(send, HOST, publishes).unwrap();
    netio.subscribe(subscribe, 1).unwrap();
    for socket in [AnySocket::from(send), subscribe.into()] {
        let reason = refused(&mut world, SENDER, socket);
        let is_expected = matches!(reason, RefusedReason::Rejected(Rejection::WrongRole));
        assert!(is_expected, "{reason:?}");
    }
    assert_eq!(world.netio(RECEIVER).counts().rejected, 2);
    for socket in [AnySocket::from(listener), publisher.into()] {
        let reason = caller_refused(&mut world, RECEIVER, socket);
        let is_expected = matches!(reason, RefusedReason::Rejected(Rejection::WrongRole));
        assert!(is_expected, "{reason:?}");
    }
    connects(&mut world, SENDER, send, listens);
}

#[test]
fn full_listener_refuses_until_a_connection_ends() {
    for seed in 0..4 {
        let mut world = rough_world(seed, 3);
        let (listener, port) = world.listener(RECEIVER, buffers(2, 1000).connections(1));
        let first = world.netio(SENDER).send_socket(SendOptions::default());
        connects(&mut world, SENDER, first, port);
        let second = world.netio(2).send_socket(SendOptions::default());
        world.netio(2).connect(second, HOST, port).unwrap();
        let reason = refused(&mut world, 2, second);
        assert!(matches!(reason, RefusedReason::Rejected(Rejection::Full)), "{reason:?}");
        let reason = caller_refused(&mut world, RECEIVER, listener);
        assert!(matches!(reason, RefusedReason::Rejected(Rejection::Full)), "{reason:?}");
        world.netio(SENDER).disconnect(first).unwrap();
        crate::pairs::closed(&mut world, SENDER, first.into());
        world.rest();
        connects(&mut world, 2, second, port);
    }
}

/// Why a socket doesn't listen.
fn bind_refused(world: &mut World, node: usize, of: impl Into<AnySocket>) -> ErrorKind {
    let of = of.into();
    world.event(node, "BindRefused", |event| match event {
        Event::BindRefused { socket, error } if *socket == of => Some(error.kind()),
        _ => None,
    })
}

// conformance: D10 D12
#[test]
fn port_in_use_and_unknown_host_are_refused_and_the_socket_listens_elsewhere() {
    let mut world = rough_world(1, 2);
    let (_, port) = world.listener(RECEIVER, ListenOptions::default());
    let netio = world.netio(SENDER);
    let socket = netio.listen_socket(ListenOptions::default());
    netio.listen(socket, HOST, port).unwrap();
    assert_eq!(bind_refused(&mut world, SENDER, socket), ErrorKind::AddrInUse);
    let netio = world.netio(SENDER);
    assert_eq!(netio.local_address(socket), None);
    netio.listen(socket, "nosuch.invalid", 0).unwrap();
    assert_eq!(netio.listen(socket, HOST, 0), Err(SocketError::Listening));
    world.pass(Duration::from_secs(5));
    assert_eq!(bind_refused(&mut world, SENDER, socket), ErrorKind::AddrNotAvailable);
    let netio = world.netio(SENDER);
    netio.listen(socket, HOST, 0).unwrap();
    assert_eq!(netio.listen(socket, HOST, 0), Err(SocketError::Listening));
    let port = netio.local_address(socket).unwrap().port();
    let send = world.netio(RECEIVER).send_socket(SendOptions::default());
    connects(&mut world, RECEIVER, send, port);
}

// conformance: D16
#[test]
fn calls_on_unconnected_and_closed_sockets_are_refused_and_do_nothing() {
    let mut world = rough_world(1, 1);
    let pool = pool(&mut world, 0, 10);
    let netio = world.netio(0);
    let message = Message::of(pool.whole()).key(3);
    let [fresh, closed] = [(); 2].map(|()| netio.send_socket(SendOptions::default()));
    netio.close(closed);
    for (socket, expected) in [(fresh, SocketError::NotConnected), (closed, SocketError::Closed)] {
        assert_eq!(netio.disconnect(socket), Err(expected.clone()));
        match netio.send(socket, message.clone()) {
            Sent::Refused(SendError::Socket(error), back) => {
                assert_eq!((error, back), (expected, message.clone()));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(netio.connect(closed, HOST, 1), Err(SocketError::Closed));
    let listener = netio.listen_socket(ListenOptions::default());
    netio.close(listener);
    netio.close(listener);
    assert_eq!(netio.listen(listener, HOST, 0), Err(SocketError::Closed));
    assert!(netio.statistics(closed).is_empty());
    world.quiet(0);
    assert_eq!(world.netio(0).counts().operations, 0);
}

// conformance: D27 D30 D32 D33
#[test]
fn message_that_cannot_be_sent_comes_back_and_nothing_is_sent() {
    let mut pair = Pair::new(1, buffers(2, 1000));
    let small = pool(&mut pair.world, SENDER, 100);
    #[allow(clippy::reversed_empty_ranges, reason = "bad input")]
    for range in [0..101, 100..101, 101..101, 1..usize::MAX, 7..6, usize::MAX..usize::MAX] {
        let refused = small.part(range.clone()).unwrap_err();
        assert_eq!((refused.range, refused.length), (range, 100));
    }
    let other_device = pool(&mut pair.world, RECEIVER, 100);
    let parts = |count| Message::gather((0..count).map(|_| small.whole())).key(5);
    let with_header = parts(1).header(Header::new(b"x").unwrap());
    let of_message = SendError::Message;
    for (message, expected) in [
        (parts(0), of_message(MessageError::NoParts)),
        (parts(29), of_message(MessageError::TooManyParts { count: 29, limit: 28 })),
        (parts(1000), of_message(MessageError::TooManyParts { count: 1000, limit: 28 })),
        (with_header, of_message(MessageError::HasHeader)),
        (Message::of(other_device.whole()), SendError::Start(StartError::OtherDomain)),
        (
            Message::gather([small.whole(), other_device.whole()]),
            SendError::Start(StartError::OtherDomain),
        ),
    ] {
        match pair.world.netio(SENDER).send(pair.send, message.clone()) {
            Sent::Refused(error, back) => assert_eq!((error, back), (expected, message)),
            other => panic!("{other:?}"),
        }
    }
    pair.world.quiet(SENDER);
    pair.world.quiet(RECEIVER);
    let message = pair.message(1, 9);
    pair.send(message);
    assert_eq!(pair.world.received(RECEIVER).0, pattern(10)[1..]);
}

// conformance: D18
#[test]
fn memory_that_is_registered_for_other_use_is_refused() {
    let domain = efa::Fabric::local(efa::LocalOptions::default()).domain().unwrap();
    let mut netio = Netio::new(&domain, Options::default()).unwrap();
    let listener = netio.listen_socket(ListenOptions::default());
    netio.listen(listener, HOST, 0).unwrap();
    let port = netio.local_address(listener).unwrap().port();
    let send = netio.send_socket(SendOptions::default());
    netio.connect(send, HOST, port).unwrap();
    while !matches!(netio.poll(Wait::Forever).unwrap(), Some(Event::Connected(_))) {}
    let only = |local| domain.register_for(vec![0; 10], efa::Access::default(), local).unwrap();
    let message = Message::of(Pool::from(only(LocalAccess::RECV)).whole());
    match netio.send(send, message.clone()) {
        Sent::Refused(SendError::Start(StartError::Access { wanted, .. }), back) => {
            assert_eq!((wanted, back), (LocalAccess::SEND, message));
        }
        other => panic!("{other:?}"),
    }
    let message = Message::of(Pool::from(only(LocalAccess::SEND)).whole());
    assert!(matches!(netio.send(send, message), Sent::Accepted));
}

#[test]
fn options_out_of_range_refuse_a_connection_or_work() {
    let with = |change: fn(&mut Options)| Options::default().with(change);
    for (number, options) in [
        with(|options| options.sends = 0),
        with(|options| options.sends = usize::MAX),
        with(|options| options.read_threshold = 0),
        with(|options| options.read_threshold = u64::MAX),
        with(|options| options.unexpected = 0),
        with(|options| options.unexpected = usize::MAX),
        with(|options| options.timeout = Duration::ZERO),
        with(|options| options.timeout = Duration::MAX),
        with(|options| options.look = Duration::MAX),
    ]
    .into_iter()
    .enumerate()
    {
        let mut world = World::with(2, options, |options| options.seed = 1);
        let (_, port) = world.listener(RECEIVER, buffers(2, 50_000));
        let socket = world.netio(SENDER).send_socket(SendOptions::default());
        world.netio(SENDER).connect(socket, HOST, port).unwrap();
        let is_connected = world.event(SENDER, "an outcome", |event| match event {
            Event::Connected(_) => Some(true),
            Event::Refused { .. } => Some(false),
            _ => None,
        });
        // A connection needs room for one message, and some time.
        assert_eq!(is_connected, ![0, 6].contains(&number), "options {number}");
        if is_connected {
            let pool = pool(&mut world, SENDER, 50_000);
            let sent = world.netio(SENDER).send_buffer(socket, pool.whole());
            assert!(matches!(sent, Sent::Accepted), "options {number}: {sent:?}");
            assert!(world.received(RECEIVER).0 == pattern(50_000), "options {number}");
        }
    }
}

#[test]
fn buffers_that_cannot_be_made_are_fewer_and_0_are_taken_as_1() {
    for (count, size) in [(0, 10), (1, usize::MAX), (2, isize::MAX as usize), (3, 0)] {
        let mut world = World::new(1, 2);
        let (_, port) = world.listener(RECEIVER, buffers(count, size));
        let (send, _) = world.connection(SENDER, RECEIVER, port, SendOptions::default());
        let pool = pool(&mut world, SENDER, 10);
        let sent = world.netio(SENDER).send(send, Message::of(pool.part(0..0).unwrap()));
        assert!(matches!(sent, Sent::Accepted));
        world.rest();
        let arrived = |event: &Event| matches!(event, Event::Received { .. });
        let arrived = world.nodes[RECEIVER].events.iter().filter(|event| arrived(event)).count();
        assert_eq!(arrived, usize::from(size <= 10), "{count} buffers of {size} bytes");
    }
}

#[test]
fn device_without_room_for_another_connection_refuses_it_and_takes_it_later() {
    let mut world = World::with(3, Options::default(), |options| {
        options.seed = 1;
        options.max_queue_pairs = 1;
    });
    let (listener, port) = world.listener(RECEIVER, buffers(2, 100));
    let netio = world.netio(SENDER);
    let [first, second] = [(); 2].map(|()| netio.send_socket(SendOptions::default()));
    connects(&mut world, SENDER, first, port);
    // The caller's device.
    world.netio(SENDER).connect(second, HOST, port).unwrap();
    let reason = refused(&mut world, SENDER, second);
    assert!(matches!(reason, RefusedReason::Start(_)), "{reason:?}");
    // The listener's device.
    let third = world.netio(2).send_socket(SendOptions::default());
    world.netio(2).connect(third, HOST, port).unwrap();
    let reason = refused(&mut world, 2, third);
    assert!(matches!(reason, RefusedReason::Rejected(Rejection::Lacking)), "{reason:?}");
    let reason = caller_refused(&mut world, RECEIVER, listener);
    assert!(reason.to_string().contains("queue pair"), "{reason:?}");
    assert!(matches!(reason, RefusedReason::Start(_)), "{reason:?}");
    assert_eq!(world.netio(RECEIVER).counts().connections, 1);
    world.netio(SENDER).disconnect(first).unwrap();
    crate::pairs::closed(&mut world, SENDER, first.into());
    world.rest();
    connects(&mut world, SENDER, second, port);
}

#[test]
fn publisher_whose_device_has_no_room_for_a_subscriber_learns_that_and_takes_it_later() {
    let mut world = World::with(3, Options::default(), |options| {
        options.seed = 1;
        options.max_queue_pairs = 1;
    });
    let of_publisher = pool(&mut world, 0, 10);
    let (publisher, port) = world.publisher(0, &of_publisher, PublishOptions::default());
    let first = world.subscriber(1, port, &[7], SubscribeOptions::default());
    let netio = world.netio(2);
    let second = netio.subscribe_socket(HOST, port, SubscribeOptions::default());
    netio.subscribe(second, 7).unwrap();
    let reason = refused(&mut world, 2, second);
    assert!(matches!(reason, RefusedReason::Rejected(Rejection::Lacking)), "{reason:?}");
    let reason = caller_refused(&mut world, 0, publisher);
    assert!(matches!(reason, RefusedReason::Start(_)), "{reason:?}");
    let counts = world.netio(0).counts();
    assert_eq!((counts.rejected, counts.connections), (1, 1));
    world.netio(1).unsubscribe(first, 7).unwrap();
    world.rest();
    world.netio(2).reconnect(second).unwrap();
    world.subscribed(2, second, 7);
}

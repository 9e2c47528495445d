//! Connections from their beginning to their end.

use std::time::Duration;

use efa_device::Status;
use efa_netio::{
    ClosedReason, Event, ListenOptions, Options, PostRefused, PublishOptions, Published, SendError,
    SendOptions, Sent, SocketError, SubscribeOptions,
};
use efa_sim::record::Trace;

use crate::hard::subscriber_closed;
use crate::pairs::{
    Pair, RECEIVER, SENDER, buffers, closed, completions, messages, pool, posted, rough,
};
use crate::world::{HOST, World, part, pattern};

// conformance: D3 D7 D8 D10 D13 D17
#[test]
fn listener_serves_four_senders_each_with_a_receive_socket_of_its_own() {
    for seed in 0..4 {
        let mut world = World::with(5, Options::default(), rough(seed));
        let (listener, port) = world.listener(4, buffers(4, 1000));
        let mut pairs = Vec::new();
        for node in 0..4 {
            let netio = world.netio(node);
            let socket = netio.send_socket(SendOptions::default());
            netio.connect(socket, HOST, port).unwrap();
            let pool = pool(&mut world, node, 1000);
            pairs.push((socket, pool));
        }
        for (node, (socket, pool)) in pairs.iter().enumerate() {
            world.event(node, "Connected", |event| {
                matches!(event, Event::Connected(found) if *found == (*socket).into()).then_some(())
            });
            for _ in 0..3 {
                let sent = world.netio(node).send(*socket, part(pool, node, 100 + node));
                assert!(matches!(sent, Sent::Accepted));
            }
        }
        let mut accepted = Vec::new();
        for _ in 0..4 {
            accepted.push(world.event(4, "Accepted", |event| match event {
                Event::Accepted { listener: of, socket, .. } if *of == listener => Some(*socket),
                _ => None,
            }));
        }
        let mut lengths = Vec::new();
        for receive in accepted {
            let of_socket: Vec<usize> = (0..3)
                .map(|_| {
                    world.event(4, "Received", |event| match event {
                        Event::Received { socket, message, .. } if *socket == receive => {
                            Some(message.len())
                        }
                        _ => None,
                    })
                })
                .collect();
            assert_eq!(of_socket, [of_socket[0]; 3], "seed {seed}");
            lengths.push(of_socket[0]);
        }
        lengths.sort_unstable();
        assert_eq!(lengths, [100, 101, 102, 103], "seed {seed}");
    }
}

// conformance: D8 D10 D15
#[test]
fn disconnected_socket_sends_what_is_under_way_and_both_sides_close_after_that() {
    for seed in 0..10 {
        let mut pair = Pair::new(seed, buffers(2, 300_000));
        // Without messages under way as well.
        let lengths = &[300_000, 10, 0, 70_000, 9_000, 1][..if seed < 2 { 0 } else { 6 }];
        for (key, length) in lengths.iter().enumerate() {
            let message = pair.message(key, *length).key(key as u64);
            pair.send(message);
        }
        pair.world.netio(SENDER).disconnect(pair.send).unwrap();
        let again = pair.world.netio(SENDER).disconnect(pair.send);
        assert_eq!(again, Err(SocketError::Busy));
        let message = pair.message(0, 1);
        let refused = pair.world.netio(SENDER).send(pair.send, message);
        let expected = SendError::Socket(SocketError::NotConnected);
        assert!(matches!(refused, Sent::Refused(error, _) if error == expected));

        let mut received = Vec::new();
        while received.len() < lengths.len() {
            received.push(pair.world.received(RECEIVER).0);
        }
        for (key, length) in lengths.iter().enumerate() {
            assert!(received[key] == pattern(400_000)[key..key + length], "seed {seed}");
        }
        let (events, reason) = pair.closed(RECEIVER, pair.receive);
        assert_eq!((messages(&events), reason), (vec![], ClosedReason::DisconnectedByPeer));
        let (events, reason) = pair.closed(SENDER, pair.send);
        let mut keys = completions(&events);
        keys.sort_unstable();
        let expected: Vec<_> = (0..lengths.len() as u64).map(|key| (key, true)).collect();
        assert_eq!((keys, reason), (expected, ClosedReason::Disconnected), "seed {seed}");
        pair.nothing_is_left();

        // It can be connected again.
        pair.world.netio(SENDER).connect(pair.send, HOST, pair.port).unwrap();
        pair.world
            .event(SENDER, "Connected", |event| matches!(event, Event::Connected(_)).then_some(()));
        let message = pair.message(3, 100);
        pair.send(message);
        assert_eq!(pair.world.received(RECEIVER).0, pattern(200)[3..103]);
    }
}

// conformance: D15
#[test]
fn slow_receiver_gets_everything_after_a_disconnection_while_it_goes_on() {
    let options = Options::default().with(|options| options.timeout = Duration::from_millis(1));
    let mut pair = Pair::with(1, options, posted(), SendOptions::default());
    for key in 0..10 {
        let message = pair.message(key, 100_000);
        pair.send(message);
    }
    pair.world.netio(SENDER).disconnect(pair.send).unwrap();
    for key in 0..10 {
        pair.world.pass(Duration::from_micros(300));
        pair.world.netio(RECEIVER).post(pair.receive, vec![0; 100_000]).unwrap();
        assert!(pair.world.received(RECEIVER).0 == pattern(200_000)[key..key + 100_000]);
    }
    assert_eq!(pair.closed(SENDER, pair.send).1, ClosedReason::Disconnected);
    assert_eq!(pair.closed(RECEIVER, pair.receive).1, ClosedReason::DisconnectedByPeer);
}

// conformance: D15
#[test]
fn receiver_that_takes_nothing_does_not_hold_a_disconnected_socket_for_ever() {
    let mut pair = Pair::new(1, posted());
    let message = pair.message(0, 200_000).key(1);
    pair.send(message);
    pair.world.netio(SENDER).disconnect(pair.send).unwrap();
    pair.world.rest();
    pair.world.pass(Duration::from_secs(6));
    let (events, reason) = pair.closed(SENDER, pair.send);
    assert_eq!((completions(&events), reason), (vec![(1, false)], ClosedReason::TimedOut));
    assert_eq!(pair.closed(RECEIVER, pair.receive).1, ClosedReason::PeerGone);
    pair.nothing_is_left();
}

// conformance: D15
#[test]
fn messages_that_were_complete_are_received_after_their_sender_was_killed() {
    for seed in 0..8 {
        for posts_late in [false, true] {
            let listens = if posts_late { posted() } else { buffers(8, 100_000) };
            let mut pair = Pair::new(seed, listens);
            for key in 0..4 {
                let message = pair.message(key, 1000);
                pair.send(message);
            }
            for _ in 0..4 {
                assert_eq!(pair.world.send_completed(SENDER).1, Ok(()));
            }
            pair.world.rest();
            let message = pair.message(4, 200_000);
            pair.send(message);
            pair.world.kill(SENDER);
            if posts_late {
                pair.world.rest();
                for _ in 0..6 {
                    // The socket may be closed by then.
                    let _ = pair.world.netio(RECEIVER).post(pair.receive, vec![0; 1000]);
                }
            }
            let (events, reason) = pair.closed(RECEIVER, pair.receive);
            let expected: Vec<_> =
                (0..4).map(|key| (pattern(2000)[key..key + 1000].to_vec(), None)).collect();
            assert!(messages(&events) == expected, "seed {seed}: {events:?}");
            assert_eq!(reason, ClosedReason::PeerGone, "seed {seed}");
            drop(events);
            pair.nothing_is_left();
            let counts = pair.world.netio(RECEIVER).counts();
            assert_eq!((counts.connections, counts.ignored), (0, 0));
        }
    }
}

// conformance: D8 D15
#[test]
fn sends_to_a_killed_receiver_come_back_as_failed_before_the_socket_closes() {
    for seed in 0..8 {
        let mut pair = Pair::new(seed, posted());
        for key in 0..5 {
            let message = pair.message(0, 200_000).key(key);
            pair.send(message);
        }
        for _ in 0..seed * 10 {
            pair.world.turn();
        }
        pair.world.kill(RECEIVER);
        let (events, reason) = pair.closed(SENDER, pair.send);
        let mut keys = completions(&events);
        keys.sort_unstable();
        assert_eq!(keys, [0, 1, 2, 3, 4].map(|key| (key, false)), "seed {seed}");
        assert_eq!(reason, ClosedReason::PeerGone, "seed {seed}");
        pair.nothing_is_left();
        let message = pair.message(0, 1);
        let refused = pair.world.netio(SENDER).send(pair.send, message);
        assert!(matches!(refused, Sent::Refused(..)), "{refused:?}");
    }
}

// conformance: D15
#[test]
fn subscriber_whose_read_finds_the_publisher_gone_closes_on_both_sides_without_a_timeout() {
    // The first long message, and one behind others.
    for before in [&[][..], &[10, 60_000, 20]] {
        for status in [Status::UnresponsiveRemote, Status::RemoteAbort, Status::BadDestinationQpn] {
            let mut world = World::new(1, 2);
            let trace = Trace::new();
            let network = world.fabric.as_local().unwrap().clone();
            network.capture(trace.clone());
            let pool = pool(&mut world, SENDER, 60_000);
            let (publisher, port) = world.publisher(SENDER, &pool, PublishOptions::default());
            let socket = world.subscriber(RECEIVER, port, &[7], SubscribeOptions::default());
            let publish = |world: &mut World, length| {
                let published = world.netio(SENDER).publish(publisher, 7, part(&pool, 0, length));
                assert!(matches!(published, Published::UnderWay));
            };
            for length in before {
                publish(&mut world, *length);
            }
            world.rest();
            // The subscriber speaks first. What it sends next is the read.
            let subscriber = trace.take()[0].source;
            network.fail_sends(subscriber, 1, status).unwrap();
            publish(&mut world, 60_000);
            let (events, reason) = closed(&mut world, RECEIVER, socket.into());
            assert_eq!(reason, ClosedReason::PeerGone, "{status}");
            let arrived = events.iter().filter_map(|event| match event {
                Event::Message { message, .. } => Some(message.len()),
                _ => None,
            });
            assert_eq!(arrived.collect::<Vec<_>>(), before, "{status}");
            assert_eq!(subscriber_closed(&mut world, SENDER), ClosedReason::PeerGone, "{status}");
            // It may come again.
            world.netio(RECEIVER).reconnect(socket).unwrap();
            world.subscribed(RECEIVER, socket, 7);
        }
    }
}

// conformance: D9 D15
#[test]
fn closed_receive_socket_ends_its_connection_and_the_sender_learns_it() {
    let mut pair = Pair::new(2, posted());
    let message = pair.message(0, 200_000).key(9);
    pair.send(message);
    pair.world.rest();
    pair.world.netio(RECEIVER).close(pair.receive);
    assert_eq!(pair.closed(RECEIVER, pair.receive).1, ClosedReason::Disconnected);
    let (events, reason) = pair.closed(SENDER, pair.send);
    assert_eq!((completions(&events), reason), (vec![(9, false)], ClosedReason::PeerGone));
    pair.nothing_is_left();
    // Handles of what is gone stay harmless.
    let netio = pair.world.netio(RECEIVER);
    netio.close(pair.receive);
    assert_eq!(
        netio.post(pair.receive, vec![1]),
        Err(PostRefused { error: SocketError::Closed.into(), buffer: vec![1] })
    );
    assert!(netio.statistics(pair.receive).is_empty());
    assert_eq!(netio.local_address(pair.receive), None);
}

// conformance: D9 D15 D16
#[test]
fn closed_send_socket_sends_what_is_under_way_and_is_gone() {
    for seed in 0..4 {
        let mut pair = Pair::new(seed, buffers(2, 200_000));
        let message = pair.message(0, 200_000).key(9);
        pair.send(message);
        let send = pair.send;
        pair.world.netio(SENDER).close(send);
        let netio = pair.world.netio(SENDER);
        assert_eq!(netio.connect(send, HOST, 1), Err(SocketError::Closed));
        assert_eq!(netio.disconnect(send), Err(SocketError::Closed));
        let (events, reason) = pair.closed(SENDER, send);
        assert_eq!((completions(&events), reason), (vec![(9, true)], ClosedReason::Disconnected));
        let (events, reason) = pair.closed(RECEIVER, pair.receive);
        assert_eq!((messages(&events).len(), reason), (1, ClosedReason::DisconnectedByPeer));
        drop(events);
        pair.nothing_is_left();
        let netio = pair.world.netio(SENDER);
        netio.close(send);
        assert_eq!(netio.connect(send, HOST, 1), Err(SocketError::Closed));
        let message = pair.message(0, 1);
        let refused = pair.world.netio(SENDER).send(send, message);
        let expected = SendError::Socket(SocketError::Closed);
        assert!(matches!(refused, Sent::Refused(error, _) if error == expected));
        // The handle of a new socket is another one.
        assert_ne!(pair.world.netio(SENDER).send_socket(SendOptions::default()), send);
    }
}

// conformance: D7 D12
#[test]
fn closed_listen_socket_keeps_its_connections_and_frees_its_port() {
    let mut pair = Pair::new(3, buffers(2, 1000));
    pair.world.netio(RECEIVER).close(pair.listener);
    let netio = pair.world.netio(RECEIVER);
    assert_eq!(netio.local_address(pair.listener), None);
    assert_eq!(netio.listen(pair.listener, HOST, 0), Err(SocketError::Closed));
    let message = pair.message(1, 100);
    pair.send(message);
    assert_eq!(pair.world.received(RECEIVER).0, pattern(200)[1..101]);
    let port = pair.port;
    let netio = pair.world.netio(RECEIVER);
    let next = netio.listen_socket(ListenOptions::default());
    netio.listen(next, HOST, port).unwrap();
    assert_eq!(netio.local_address(next).unwrap().port(), port);
    pair.world.connection(SENDER, RECEIVER, port, SendOptions::default());
}

#[test]
fn socket_that_is_connecting_can_be_disconnected_and_connected_again() {
    for seed in 0..20 {
        let mut world = World::with(2, Options::default(), rough(seed));
        let (_, port) = world.listener(RECEIVER, buffers(2, 1000));
        let netio = world.netio(SENDER);
        let send = netio.send_socket(SendOptions::default());
        netio.connect(send, HOST, port).unwrap();
        // In all states of the exchange.
        for _ in 0..seed * 6 {
            world.turn();
        }
        world.netio(SENDER).disconnect(send).unwrap();
        let (_, reason) = closed(&mut world, SENDER, send.into());
        assert_eq!(reason, ClosedReason::Disconnected, "seed {seed}");
        world.rest();
        world.pass(Duration::from_secs(10));
        world.rest();
        // Whoever was accepted meanwhile is gone.
        let accepted = world.nodes[RECEIVER].events.iter().filter_map(|event| match event {
            Event::Accepted { socket, .. } => Some(*socket),
            _ => None,
        });
        for receive in accepted.collect::<Vec<_>>() {
            let (_, reason) = closed(&mut world, RECEIVER, receive.into());
            let is_known =
                matches!(reason, ClosedReason::PeerGone | ClosedReason::DisconnectedByPeer);
            assert!(is_known, "seed {seed}: {reason:?}");
        }
        for node in [SENDER, RECEIVER] {
            let counts = world.netio(node).counts();
            assert_eq!((counts.connections, counts.operations), (0, 0), "seed {seed}");
        }
        world.netio(SENDER).connect(send, HOST, port).unwrap();
        world
            .event(SENDER, "Connected", |event| matches!(event, Event::Connected(_)).then_some(()));
    }
}

#[test]
fn caller_that_dies_while_it_is_accepted_leaves_nothing_behind() {
    for turns in (0..120).step_by(5) {
        let mut world = World::with(2, Options::default(), rough(turns));
        let (_, port) = world.listener(RECEIVER, buffers(2, 1000).connections(1));
        let netio = world.netio(SENDER);
        let send = netio.send_socket(SendOptions::default());
        netio.connect(send, HOST, port).unwrap();
        for _ in 0..turns {
            world.turn();
        }
        world.kill(SENDER);
        world.rest();
        world.pass(Duration::from_secs(10));
        world.rest();
        let counts = world.netio(RECEIVER).counts();
        assert_eq!((counts.connections, counts.operations), (0, 0), "after {turns} turns");
        // Its place is free.
        let next = world.add(Options::default());
        world.nodes[RECEIVER].events.clear();
        world.connection(next, RECEIVER, port, SendOptions::default());
    }
}

// conformance: D5
#[test]
fn contexts_are_independent_and_one_may_be_dropped_while_another_goes_on() {
    let mut pair = Pair::new(1, buffers(4, 1000));
    let third = pair.world.add(Options::default());
    let (send, _) = pair.world.connection(third, RECEIVER, pair.port, SendOptions::default());
    let of_third = pool(&mut pair.world, third, 100);
    // A handle of one context means nothing to another.
    let netio = pair.world.netio(RECEIVER);
    let refused = netio.send(send, part(&of_third, 0, 100));
    let expected = SendError::Socket(SocketError::Closed);
    assert!(matches!(refused, Sent::Refused(error, _) if error == expected));
    pair.world.kill(third);
    let message = pair.message(1, 100);
    pair.send(message);
    assert_eq!(pair.world.received(RECEIVER).0, pattern(200)[1..101]);
    assert!(pair.world.nodes[third].events.is_empty());
}

#[test]
fn context_connects_to_itself() {
    let mut world = World::with(1, Options::default(), rough(1));
    let (_, port) = world.listener(0, buffers(2, 1000));
    let (send, receive) = world.connection(0, 0, port, SendOptions::default());
    let pool = pool(&mut world, 0, 1000);
    assert!(matches!(world.netio(0).send(send, part(&pool, 2, 500)), Sent::Accepted));
    assert_eq!(world.received(0).0, pattern(1000)[2..502]);
    world.netio(0).disconnect(send).unwrap();
    assert_eq!(closed(&mut world, 0, receive.into()).1, ClosedReason::DisconnectedByPeer);
    assert_eq!(closed(&mut world, 0, send.into()).1, ClosedReason::Disconnected);
}

#[test]
fn messages_and_deliveries_outlive_their_contexts() {
    let mut pair = Pair::new(1, buffers(4, 100_000));
    let message = pair.message(1, 50_000);
    pair.send(message);
    let unsent = pair.message(7, 10);
    let kept = pair.world.until("Received", |world| {
        let is = |event: &Event| matches!(event, Event::Received { .. }).then_some(());
        world.take(RECEIVER, is)
    });
    pair.world.kill(SENDER);
    pair.world.kill(RECEIVER);
    let Pair { world, pool, .. } = pair;
    drop(world);
    let Event::Received { message, .. } = kept.0 else { panic!("{kept:?}") };
    assert!(message[..] == pattern(60_000)[1..50_001]);
    drop(message);
    assert_eq!(unsent.parts()[0].to_vec(), pattern(20)[7..17]);
    assert_eq!(pool.write(0, &[1; 4]), 4);
}

// conformance: D15
#[test]
fn thousand_cycles_of_connect_send_and_disconnect_leave_nothing_behind() {
    let mut pair = Pair::new(1, buffers(2, 100));
    for cycle in 0..1000 {
        let message = pair.message(cycle, 50).key(cycle as u64);
        pair.send(message);
        pair.world.netio(SENDER).disconnect(pair.send).unwrap();
        let (events, _) = pair.closed(SENDER, pair.send);
        assert_eq!(completions(&events), [(cycle as u64, true)]);
        let (events, _) = pair.closed(RECEIVER, pair.receive);
        assert_eq!(messages(&events).len(), 1);
        drop(events);
        for node in [SENDER, RECEIVER] {
            let counts = pair.world.netio(node).counts();
            assert_eq!((counts.connections, counts.operations), (0, 0), "cycle {cycle}");
        }
        pair.world.netio(SENDER).connect(pair.send, HOST, pair.port).unwrap();
        pair.receive = pair.world.event(RECEIVER, "Accepted", |event| match event {
            Event::Accepted { socket, .. } => Some(*socket),
            _ => None,
        });
        pair.world
            .event(SENDER, "Connected", |event| matches!(event, Event::Connected(_)).then_some(()));
    }
}

#[test]
fn control_messages_beyond_the_room_of_a_connection_are_said_later() {
    for seed in 0..3 {
        let options = Options::default().with(|options| options.sends = 8);
        let mut world = World::with(2, options, |options| options.seed = seed);
        let pool = pool(&mut world, SENDER, 10);
        let (publisher, port) = world.publisher(SENDER, &pool, PublishOptions::default());
        let tags: Vec<_> = (0..2000).collect();
        world.subscriber(RECEIVER, port, &tags, SubscribeOptions::default());
        assert_eq!(world.netio(SENDER).counts().tags, tags.len());
        world.netio(SENDER).close(publisher);
        world.rest();
        for node in [SENDER, RECEIVER] {
            let counts = world.netio(node).counts();
            assert_eq!((counts.connections, counts.operations, counts.ignored), (0, 0, 0));
        }
    }
}

#[test]
fn end_that_is_said_before_the_other_side_is_connected_is_heard() {
    for turns in 0..150 {
        let mut world = World::with(2, Options::default(), rough(turns));
        let pool = pool(&mut world, SENDER, 10);
        let (publisher, port) = world.until("memory", |world| {
            let netio = world.netio(SENDER);
            let socket = netio.publish_socket(&pool, PublishOptions::default()).ok()?;
            netio.publish_at(socket, HOST, 0).unwrap();
            Some((socket, netio.local_address(socket).unwrap().port()))
        });
        let netio = world.netio(RECEIVER);
        let subscriber = netio.subscribe_socket(HOST, port, SubscribeOptions::default());
        netio.subscribe(subscriber, 1).unwrap();
        for _ in 0..turns {
            world.turn();
        }
        world.netio(SENDER).close(publisher);
        world.rest();
        for node in [SENDER, RECEIVER] {
            let counts = world.netio(node).counts();
            assert_eq!((counts.connections, counts.operations), (0, 0), "after {turns} turns");
        }
    }
}

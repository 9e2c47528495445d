//! Over every link: the same program, with what must happen.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::{Duration, Instant};

use efa::{
    AddressFormat, Bound, CloseError, CompletionQueueOptions, ConnectError, ControlEvent,
    DataTooLong, Direction, EnableError, Endpoint, EndpointKind, EndpointOptions,
    EventQueueOptions, EventWaitError, Fabric, Hints, Link, LocalOptions, ManualClock, Message,
    MsgEndpoint, MsgEndpointOptions, OperationError, PassiveEndpointOptions, Query, Receive,
    ShmOptions, StartConnectError, StartError, TcpOptions, Version, discover, sim::Faults,
};
use tempfile::TempDir;

use super::{PEER, Pair, Side, TIMEOUT, connected, shut_down};
use crate::world::pattern;

/// Where a listener on this host gets a port from the system.
const ANY_PORT: &str = "127.0.0.1:0";

pub(crate) fn shm(directory: &TempDir) -> Fabric {
    let directory = Some(directory.path().join("hosts"));
    Fabric::shm(ShmOptions::new("test").with(|options| options.directory = directory))
}

/// Runs `test` on the links shm, tcp and local.
fn on_each_link(test: impl Fn(&mut Pair)) {
    let directory = TempDir::new().unwrap();
    test(&mut Pair::on(shm(&directory), shm(&directory), None));
    let tcp = || Fabric::tcp(TcpOptions::new([127, 0, 0, 1]));
    test(&mut Pair::on(tcp(), tcp(), None));
    let clock = ManualClock::new();
    let local = Fabric::local(LocalOptions::default()).with_clock(&clock);
    test(&mut Pair::on(local.clone(), local, Some(clock)));
}

// conformance: C40 C41 C43 C48
#[test]
fn connected_endpoints_exchange_messages_until_one_shuts_down() {
    on_each_link(|pair| {
        let listener = pair.callee.listen(ANY_PORT);
        let (caller, callee) = pair.connect(listener.local_address());
        for length in [0, 10, 9_000, 70_000, 2_000_000] {
            callee.receive(Receive::untagged(), vec![0; length], 10).unwrap();
            caller.receive(Receive::tagged(7).from(PEER), vec![0; length], 11).unwrap();
            caller.send(Message::to(PEER), pattern(length, 1), 12).unwrap();
            callee.send(Message::to(PEER).tagged(7), pattern(length, 2), 13).unwrap();
            let mut done = vec![];
            for _ in 0..2 {
                done.push(pair.caller_entry().unwrap());
                done.push(pair.callee_entry().unwrap());
            }
            done.sort_by_key(|done| done.context);
            assert_eq!(done.iter().map(|done| done.context).collect::<Vec<_>>(), [10, 11, 12, 13]);
            assert!(done.iter().all(|done| done.peer == Some(PEER)));
            assert_eq!(done.swap_remove(0).into_message(), pattern(length, 1));
            done.sort_by_key(|done| done.context);
            assert_eq!(done.swap_remove(0).into_message(), pattern(length, 2));
        }

        // What is sent before the shutdown is at the other side when that learns of it.
        caller.receive(Receive::untagged(), vec![0; 10], 20).unwrap();
        callee.receive(Receive::tagged(1), vec![0; 10], 30).unwrap();
        for context in 21..24 {
            caller.send(Message::to(PEER), pattern(10, context), context).unwrap();
        }
        std::thread::scope(|scope| {
            let shutdown = scope.spawn(|| caller.shutdown(TIMEOUT));
            assert_eq!(shut_down(pair.callee_event()), (callee.id(), 2));
            shutdown.join().unwrap().unwrap();
        });
        pair.rest();
        assert!(pair.caller.happened.is_empty() && pair.callee.happened.is_empty());
        assert_eq!(
            caller.send(Message::to(PEER), "x", 0).unwrap_err().error,
            StartError::NotConnected
        );
        assert_eq!(
            callee.send(Message::to(PEER), "x", 0).unwrap_err().error,
            StartError::NotConnected
        );
        let ended = pair.callee_entry().unwrap_err();
        assert_eq!((ended.error, ended.completion.context), (OperationError::ConnectionEnded, 30));
        for context in 21..24 {
            callee.receive(Receive::untagged(), vec![0; 10], context).unwrap();
            let received = pair.callee_entry().unwrap();
            assert_eq!((received.context, received.peer), (context, Some(PEER)));
            assert_eq!(received.into_message(), pattern(10, context));
        }
        callee.receive(Receive::untagged(), vec![0; 10], 31).unwrap();
        let ended = pair.callee_entry().unwrap_err();
        assert_eq!((ended.error, ended.completion.context), (OperationError::ConnectionEnded, 31));
        let contexts = std::iter::from_fn(|| pair.caller.entries.pop_front())
            .map(|entry| entry.map_or_else(|error| error.completion.context, |done| done.context));
        let mut contexts: Vec<_> = contexts.collect();
        contexts.sort_unstable();
        assert_eq!(contexts, [20, 21, 22, 23]);
    });
}

/// Connects an endpoint that failed to connect, and sends a message each way.
fn connects(pair: &mut Pair, caller: &MsgEndpoint) {
    let listener = pair.callee.listen(ANY_PORT);
    caller.connect(listener.local_address(), b"again").unwrap();
    let request = pair.request();
    assert_eq!(request.data(), b"again");
    let callee = pair.callee.builder(0).accept(request, b"").unwrap();
    connected(pair.caller_event());
    connected(pair.callee_event());
    callee.receive(Receive::untagged(), vec![0; 10], 1).unwrap();
    caller.receive(Receive::untagged(), vec![0; 10], 1).unwrap();
    callee.inject(Message::to(PEER), &pattern(10, 1)).unwrap();
    caller.inject(Message::to(PEER), &pattern(10, 2)).unwrap();
    assert_eq!(pair.caller_entry().unwrap().into_message(), pattern(10, 1));
    assert_eq!(pair.callee_entry().unwrap().into_message(), pattern(10, 2));
}

// conformance: C42
#[test]
fn connect_without_a_listener_is_refused_and_succeeds_later() {
    on_each_link(|pair| {
        let nowhere = pair.callee.listen(ANY_PORT).local_address();
        let caller = pair.caller.builder(7).connect(nowhere, b"").unwrap();
        let error = pair.caller_event().unwrap_err();
        assert_eq!((error.endpoint, error.context), (caller.id(), 7));
        assert_eq!(error.error, ConnectError::Refused);
        connects(pair, &caller);
    });
}

// conformance: C42
#[test]
fn rejected_connect_brings_the_data_and_succeeds_later() {
    on_each_link(|pair| {
        let listener = pair.callee.listen(ANY_PORT);
        let caller = pair.caller.builder(7).connect(listener.local_address(), b"").unwrap();
        let request = pair.request();
        let refused = request.reject(&[0; 257]).unwrap_err();
        let too_long = DataTooLong { length: 257 };
        assert!(
            matches!(refused.error, StartConnectError::DataTooLong(error) if error == too_long)
        );
        refused.request.reject(&[9; 256]).unwrap();
        let error = pair.caller_event().unwrap_err();
        assert_eq!(error.error, ConnectError::Rejected { data: vec![9; 256] });
        // A request that is dropped is rejected.
        caller.connect(listener.local_address(), b"").unwrap();
        drop(pair.request());
        let error = pair.caller_event().unwrap_err();
        assert_eq!(error.error, ConnectError::Rejected { data: Vec::new() });
        connects(pair, &caller);
    });
}

/// What the system says of an answer that finds nobody isn't the reason.
#[test]
fn request_of_a_caller_that_has_gone_is_accepted_and_fails_as_ended() {
    on_each_link(|pair| {
        let listener = pair.callee.listen(ANY_PORT);
        for _ in 0..10 {
            let caller = pair.caller.builder(1).connect(listener.local_address(), b"").unwrap();
            let request = pair.request();
            drop(caller);
            pair.rest();
            let callee = pair.callee.builder(2).accept(request, b"").unwrap();
            let error = pair.callee_event().unwrap_err();
            assert_eq!((error.endpoint, error.error), (callee.id(), ConnectError::Ended));
        }
    });
}

// conformance: C42
#[test]
fn connect_to_a_listener_that_is_silent_times_out_and_succeeds_later() {
    on_each_link(|pair| {
        let silent = Side::on(pair.callee.fabric.clone());
        let listener = silent.listen(ANY_PORT);
        let after = Duration::from_millis(50);
        let options = MsgEndpointOptions::new().connect_timeout(after);
        let caller = pair.caller.builder_with(options).enable().unwrap();
        let begin = Instant::now();
        caller.connect(listener.local_address(), b"").unwrap();
        assert!(matches!(
            caller.connect(listener.local_address(), b""),
            Err(StartConnectError::NotIdle)
        ));
        let error = pair.caller_event().unwrap_err();
        assert_eq!(error.error, ConnectError::TimedOut { after });
        assert!(pair.is_virtual() || begin.elapsed() >= after);
        connects(pair, &caller);
    });
}

// conformance: C38
#[test]
fn listener_serves_clients_on_several_domains_that_do_not_disturb_each_other() {
    on_each_link(|pair| {
        let listener = pair.callee.listen(ANY_PORT);
        let other = Side::on(pair.callee.fabric.clone());
        let (mut callers, mut callees) = (Vec::new(), Vec::new());
        for n in 0..12_u8 {
            let data = vec![n; 256];
            let caller = pair.caller.builder(n.into()).connect(listener.local_address(), &data);
            callers.push(Some(caller.unwrap()));
            let request = pair.request();
            assert_eq!((request.data(), request.caller().ip()), (&data[..], [127, 0, 0, 1].into()));
            // Every other one in another domain, with another completion queue and event queue.
            let side = if n % 2 == 0 { &pair.callee } else { &other };
            callees.push(side.builder(n.into()).accept(request, &[n; 256]).unwrap());
            let (_, context, data) = connected(pair.caller_event());
            assert_eq!((context, data), (n.into(), vec![n; 256]));
            if n % 2 == 0 {
                connected(pair.callee_event());
            } else {
                let event = pair.until("Connected in the other domain", |_| other.events.read());
                connected(event);
            }
        }
        // A third of them goes away, and an unread message fills nobody else's room.
        for n in [0, 3, 6, 9] {
            callers[n].as_ref().unwrap().inject(Message::to(PEER), b"unread").unwrap();
            callers[n] = None;
        }
        for (n, callee) in callees.iter().enumerate().filter(|(n, _)| n % 3 != 0) {
            callee.receive(Receive::untagged(), vec![0; 10], n as u64).unwrap();
            let caller = callers[n].as_ref().unwrap();
            caller.inject(Message::to(PEER), &pattern(10, n as u64)).unwrap();
            let entry = pair.until("a message", |pair| match n % 2 {
                0 => pair.callee.entries.pop_front(),
                _ => other.queue.read(),
            });
            let received = entry.unwrap();
            assert_eq!((received.endpoint, received.context), (callee.id(), n as u64));
            assert_eq!(received.into_message(), pattern(10, n as u64));
        }
        let mut ended = Vec::new();
        pair.until("the ends of four", |pair| {
            let events = [pair.callee.happened.pop_front(), other.events.read()];
            ended.extend(events.into_iter().flatten().map(|event| shut_down(event).1));
            (ended.len() == 4).then_some(())
        });
        ended.sort_unstable();
        assert_eq!(ended, [0, 3, 6, 9]);
    });
}

// conformance: C39
#[test]
fn request_has_an_entry_that_opens_the_accepting_endpoint_on_any_domain() {
    on_each_link(|pair| {
        let listener = pair.callee.listen(ANY_PORT);
        let other = pair.callee.fabric.domain().unwrap();
        let queue = other.completion_queue(CompletionQueueOptions::default());
        let caller = pair.caller.builder(0).connect(listener.local_address(), b"").unwrap();
        let request = pair.request();
        let info = request.info().unwrap();
        assert_eq!(
            (info.link, info.endpoint.kind),
            (other.fabric().link(), EndpointKind::Connected)
        );
        assert_eq!((info.address_format, info.provider), (AddressFormat::Socket, "efa"));
        assert_eq!(info.source, Some(listener.local_address()));
        assert_eq!(info.destination, Some(request.caller()));
        assert_eq!(info.limits, other.limits());
        let endpoint = other.msg_endpoint(MsgEndpointOptions::from(&info));
        let endpoint = endpoint.bind_completion_queue(&queue, Direction::Both);
        let callee = endpoint.bind_event_queue(&pair.callee.events).accept(request, b"").unwrap();
        // What the entry says is what the endpoint has.
        assert_eq!(*callee.attributes(), info.endpoint);
        assert_eq!(*callee.transmit_attributes(), info.transmit);
        assert_eq!(*callee.receive_attributes(), info.receive);
        assert_eq!(callee.capabilities(), info.capabilities);
        connected(pair.caller_event());
        connected(pair.callee_event());
        callee.receive(Receive::untagged(), vec![0; 10], 4).unwrap();
        caller.inject(Message::to(PEER), &pattern(10, 3)).unwrap();
        let received = pair.until("a message", |_| queue.read()).unwrap();
        assert_eq!(received.context, 4);
        assert_eq!(received.into_message(), pattern(10, 3));
    });
}

/// Reliability comes from the protocol: the device loses nothing, but has no buffer now and then.
// conformance: C45
#[test]
fn endpoints_of_both_types_that_discovery_has_are_reliable() {
    let hints = Hints::new().link(Link::Local);
    let entries = discover(&Query::new(Version::NEWEST).hints(hints)).unwrap();
    let kinds: Vec<_> = entries.iter().map(|entry| entry.endpoint.kind).collect();
    assert_eq!(kinds, [EndpointKind::ReliableDatagram, EndpointKind::Connected]);
    for entry in entries {
        let clock = ManualClock::new();
        let faults = Faults::default().with(|faults| faults.receiver_not_ready = 0.2);
        let options = LocalOptions::default().with(|options| options.faults = faults);
        let fabric = Fabric::local(options).with_clock(&clock);
        let mut pair = Pair::on(fabric.clone(), fabric, Some(clock));
        let ends: [Box<dyn Deref<Target = Endpoint>>; 2] = match entry.endpoint.kind {
            EndpointKind::Connected => {
                let listener = pair.callee.listen(ANY_PORT);
                let (caller, callee) = pair.connect(listener.local_address());
                [Box::new(caller), Box::new(callee)]
            }
            _ => {
                let vectors = [&pair.caller, &pair.callee].map(|side| side.domain.address_vector());
                let enable = |side: &Side, vector| {
                    let endpoint = side.domain.endpoint(EndpointOptions::from(&entry));
                    let endpoint = endpoint.bind_completion_queue(&side.queue, Direction::Both);
                    endpoint.bind_address_vector(vector).enable().unwrap()
                };
                let caller = enable(&pair.caller, &vectors[0]);
                let callee = enable(&pair.callee, &vectors[1]);
                // The index that stands for the peer of a connection, too.
                assert_eq!(vectors[0].insert(callee.address()).unwrap(), PEER);
                [Box::new(Box::new(caller)), Box::new(Box::new(callee))]
            }
        };
        assert_eq!(ends[0].attributes().kind, entry.endpoint.kind);
        for n in 0..50 {
            ends[1].receive(Receive::untagged(), vec![0; 20_000], n).unwrap();
            ends[0].send(Message::to(PEER), pattern(20_000, n), n).unwrap();
        }
        // They are matched in order, and complete as their packets arrive.
        let mut missing: BTreeSet<_> = (0..50).collect();
        while !missing.is_empty() {
            let received = pair.callee_entry().unwrap();
            assert!(missing.remove(&received.context));
            let sent = pattern(20_000, received.context);
            assert_eq!(received.into_message(), sent);
        }
    }
}

#[test]
fn closed_endpoint_ends_its_connection_and_can_not_connect_again() {
    on_each_link(|pair| {
        let listener = pair.callee.listen(ANY_PORT);
        let (caller, callee) = pair.connect(listener.local_address());
        caller.inject(Message::to(PEER), b"last words").unwrap();
        std::thread::scope(|scope| {
            let closed = scope.spawn(|| caller.close(TIMEOUT));
            // The endpoint itself is still there.
            assert_eq!(shut_down(pair.callee_event()), (callee.id(), 2));
            closed.join().unwrap().unwrap();
        });
        callee.receive(Receive::untagged(), vec![0; 10], 1).unwrap();
        assert_eq!(pair.callee_entry().unwrap().into_message(), *b"last words");
        let again = caller.connect(listener.local_address(), b"").unwrap_err();
        assert!(matches!(again, StartConnectError::NotIdle), "{again}");
        let refused = caller.receive(Receive::untagged(), vec![0; 1], 0).unwrap_err();
        assert_eq!(refused.error, StartError::Closed);
        let idle = pair.caller.builder(0).enable().unwrap();
        idle.close(TIMEOUT).unwrap();
        let never = idle.connect(listener.local_address(), b"").unwrap_err();
        assert!(matches!(never, StartConnectError::NotIdle), "{never}");
    });
}

#[test]
fn close_takes_no_longer_than_its_timeout_if_the_other_side_is_not_polled() {
    let (directory, clock) = (TempDir::new().unwrap(), ManualClock::new());
    let fabric = || shm(&directory).with_clock(&clock);
    let mut pair = Pair::on(fabric(), fabric(), Some(clock.clone()));
    let listener = pair.callee.listen(ANY_PORT);
    let (caller, callee) = pair.connect(listener.local_address());
    callee.send(Message::to(PEER), pattern(400_000, 1), 1).unwrap();
    pair.rest();
    // Its answer, a CTS, and a message are sent and not taken.
    caller.receive(Receive::untagged(), vec![0; 400_000], 2).unwrap();
    caller.send(Message::to(PEER), pattern(100, 1), 3).unwrap();
    let (timeout, begin) = (Duration::from_millis(200), clock.now());
    assert_eq!(caller.close(timeout), Err(CloseError { timeout }));
    let took = clock.now() - begin;
    assert!((timeout..timeout + timeout / 2).contains(&took), "{took:?}");
}

// What a passive endpoint can't do doesn't compile: see its documentation.
// conformance: C36 C37
#[test]
fn passive_endpoint_listens_on_a_fabric_without_domain_and_reports_to_the_queue_it_was_made_with() {
    on_each_link(|pair| {
        // The caller reaches it through the same network, which is the fabric on the local link.
        let fabric = pair.callee.fabric.clone();
        let events = fabric.event_queue(EventQueueOptions::default()).unwrap();
        let passive = fabric.passive_endpoint(&events, PassiveEndpointOptions::new().context(7));
        let listener = passive.listen(ANY_PORT.parse().unwrap()).unwrap();
        let _caller = pair.caller.builder(1).connect(listener.local_address(), b"x").unwrap();
        let event = pair.until("a request", |_| events.read()).unwrap();
        let ControlEvent::ConnectionRequest(request) = event else { panic!("{event:?}") };
        assert_eq!((request.listener_context(), request.data()), (7, &b"x"[..]));
        request.reject(b"not here").unwrap();
        let error = pair.caller_event().unwrap_err();
        assert_eq!(error.error, ConnectError::Rejected { data: b"not here".to_vec() });
        pair.rest();
        assert!(pair.callee.happened.is_empty(), "{:?}", pair.callee.happened);
    });
}

// conformance: C47
#[test]
fn endpoint_with_a_connection_is_not_enabled_without_its_queues() {
    let side = Side::on(Fabric::local(LocalOptions::default()));
    let queue = side.domain.completion_queue(CompletionQueueOptions::default());
    let begin = || side.domain.msg_endpoint(MsgEndpointOptions::new());
    let missing = |error| EnableError::Missing(error);
    let error = begin().bind_completion_queue(&queue, Direction::Both).enable().unwrap_err();
    assert_eq!(error, missing(Bound::EventQueue));
    let error = begin().bind_event_queue(&side.events).enable().unwrap_err();
    assert_eq!(error, missing(Bound::TransmitQueue));
    let twice = begin().bind_event_queue(&side.events).bind_event_queue(&side.events);
    let error = twice.bind_completion_queue(&queue, Direction::Both).enable().unwrap_err();
    assert_eq!(error, EnableError::Twice(Bound::EventQueue));
}

#[test]
fn data_beyond_256_bytes_is_refused_where_it_is_given() {
    on_each_link(|pair| {
        let listener = pair.callee.listen(ANY_PORT);
        let to = listener.local_address();
        let error = pair.caller.builder(0).connect(to, &[0; 257]).unwrap_err();
        assert!(matches!(error, StartConnectError::DataTooLong(DataTooLong { length: 257 })));
        let caller = pair.caller.builder(0).connect(to, &[1; 256]).unwrap();
        let request = pair.request();
        let refused = pair.callee.builder(0).accept(request, &[0; 300]).unwrap_err();
        assert!(matches!(
            refused.error,
            StartConnectError::DataTooLong(DataTooLong { length: 300 })
        ));
        let callee = pair.callee.builder(0).accept(*refused.request, b"").unwrap();
        connected(pair.caller_event());
        connected(pair.callee_event());
        drop((caller, callee));
    });
}

/// The thread sleeps: it is woken by a caller, by another thread and by a timeout.
// conformance: C67
#[test]
fn wait_for_events_ends_by_a_caller_a_user_event_and_a_timeout() {
    let tcp = || Fabric::tcp(TcpOptions::new([127, 0, 0, 1]));
    let (callee, caller) = (Side::on(tcp()), Side::on(tcp()));
    let listener = callee.listen(ANY_PORT);
    let begin = Instant::now();
    let nothing = callee.events.wait(Duration::from_millis(30)).unwrap_err();
    assert!(matches!(nothing, EventWaitError::TimedOut(_)));
    assert!(begin.elapsed() >= Duration::from_millis(30));
    std::thread::scope(|scope| {
        let waiter = scope
            .spawn(|| (0..2).map(|_| callee.events.wait(TIMEOUT).unwrap()).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(20));
        callee.events.write(77).unwrap();
        let _endpoint = caller.builder(0).connect(listener.local_address(), b"").unwrap();
        while !waiter.is_finished() {
            assert!(caller.events.read().is_none());
        }
        let [first, second] = &waiter.join().unwrap()[..] else { panic!("two events") };
        assert!(matches!(first, ControlEvent::User(77)), "{first:?}");
        assert!(matches!(second, ControlEvent::ConnectionRequest(_)), "{second:?}");
    });
}

//! On the simulated network, in virtual time.

use std::time::Duration;

use efa::{
    ConnectError, ControlEvent, EventQueueOptions, EventWaitError, Fabric, LocalOptions,
    ManualClock, Message, MsgEndpointOptions, PassiveEndpointOptions, Receive, StartError,
};

use super::{PEER, Pair, Side, connected, shut_down};
use crate::world::pattern;

const SERVER: &str = "10.0.0.1:5000";

fn fabric(seed: u64) -> (Fabric, ManualClock) {
    let clock = ManualClock::new();
    let options = LocalOptions::default().with(|options| options.seed = seed);
    (Fabric::local(options).with_clock(&clock), clock)
}

fn pair(seed: u64) -> Pair {
    let (fabric, clock) = fabric(seed);
    Pair::on(fabric.clone(), fabric, Some(clock))
}

fn server() -> std::net::SocketAddr {
    SERVER.parse().unwrap()
}

// conformance: C44 C46
#[test]
fn message_of_the_caller_arrives_before_the_callee_learns_that_it_is_connected() {
    let mut pair = pair(1);
    let _listener = pair.callee.listen(SERVER);
    let caller = pair.caller.builder(1).connect(server(), b"").unwrap();
    let request = pair.request();
    // Enabled, a receive posted, and then accepted.
    let callee = pair.callee.builder(2).enable().unwrap();
    callee.receive(Receive::untagged(), vec![0; 100], 10).unwrap();
    let early = callee.send(Message::to(PEER), "x", 0).unwrap_err();
    assert_eq!((early.error, early.buffer), (StartError::NotConnected, "x".into()));
    callee.accept(request, b"").unwrap();

    // The callee reads its completion queue only.
    let waits = |pair: &mut Pair| {
        pair.caller.read();
        pair.callee.entries.extend(pair.callee.queue.read());
        pair.advance(Duration::from_micros(1));
    };
    while pair.caller.happened.is_empty() {
        let early = caller.send(Message::to(PEER), "x", 0).unwrap_err();
        assert_eq!(early.error, StartError::NotConnected);
        waits(&mut pair);
    }
    connected(pair.caller_event());
    caller.send(Message::to(PEER), pattern(100, 1), 11).unwrap();
    while pair.callee.entries.is_empty() {
        waits(&mut pair);
    }
    let received = pair.callee_entry().unwrap();
    assert_eq!((received.context, received.peer), (10, Some(PEER)));
    assert_eq!(received.into_message(), pattern(100, 1));
    // It can be answered at once.
    callee.send(Message::to(PEER), "x", 0).unwrap();
    connected(pair.callee_event());
    callee.send(Message::to(PEER), "x", 0).unwrap();
}

/// What happened at both sides, each with its time in nanoseconds.
fn transcript(seed: u64) -> Vec<(u64, String)> {
    let mut pair = pair(seed);
    let listener = pair.callee.listen("10.0.0.1:0");
    let (mut callers, mut callees, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    for context in 0..20_u8 {
        let builder = pair.caller.builder(context.into());
        callers.push(builder.connect(listener.local_address(), &[context]).unwrap());
    }
    for _ in 0..3000 {
        pair.turn();
        let now = pair.now().as_nanos();
        while let Some(event) = pair.callee.happened.pop_front() {
            lines.push((now, format!("callee {event:?}")));
            match event {
                Ok(ControlEvent::ConnectionRequest(request)) if request.data()[0] % 3 == 0 => {
                    request.reject(b"no").unwrap();
                }
                Ok(ControlEvent::ConnectionRequest(request)) => {
                    let context = request.data()[0].into();
                    callees.push(pair.callee.builder(context).accept(request, b"yes").unwrap());
                }
                _ => {}
            }
        }
        while let Some(event) = pair.caller.happened.pop_front() {
            lines.push((now, format!("caller {event:?}")));
            if let Ok(ControlEvent::Connected { context, .. }) = event {
                let caller = &callers[context as usize];
                caller.send(Message::to(PEER), pattern(100, context), context).unwrap();
                if context % 4 == 0 {
                    caller.shutdown(Duration::ZERO).unwrap_or_default();
                }
            }
        }
    }
    // Addresses have a random part, the connid.
    let without_address = |line: String| line.split("address: ").next().unwrap().to_owned();
    lines.into_iter().map(|(at, line)| (at, without_address(line))).collect()
}

#[test]
fn connections_of_one_seed_happen_at_the_same_times_and_in_the_same_order() {
    let first = transcript(1);
    assert!(first.len() >= 20 * 2 + 6, "{first:#?}");
    assert_eq!(first, transcript(1));
    assert_ne!(first, transcript(2));
}

// conformance: C66 C67
#[test]
fn full_event_queue_loses_nothing_and_errors_come_in_their_turn() {
    let (fabric, clock) = fabric(1);
    let mut pair = Pair::on(fabric.clone(), fabric.clone(), Some(clock));
    pair.caller = Side::with_events(fabric.clone(), EventQueueOptions::new().capacity(2));
    pair.callee = Side::with_events(fabric, EventQueueOptions::new().capacity(3));
    let listener = pair.callee.listen(SERVER);
    let events = &pair.caller.events;
    // No listener: each attempt makes an error, which waits for room.
    events.write(70).unwrap();
    events.write(71).unwrap();
    assert_eq!(events.write(72).unwrap_err().to_string(), "the event queue of 2 events is full");
    let nowhere = "10.0.0.9:1".parse().unwrap();
    let lost: Vec<_> =
        (0..10).map(|n| pair.caller.builder(n).connect(nowhere, b"").unwrap()).collect();
    let callers: Vec<_> = (10..30)
        .map(|n| pair.caller.builder(n).connect(listener.local_address(), b"").unwrap())
        .collect();
    pair.rest();
    let mut seen = Vec::new();
    let mut callees = Vec::new();
    for _ in 0..3000 {
        pair.turn();
        while let Some(event) = pair.callee.happened.pop_front() {
            if let Ok(ControlEvent::ConnectionRequest(request)) = event {
                callees.push(pair.callee.builder(0).accept(request, b"").unwrap());
            }
        }
        while let Some(event) = pair.caller.happened.pop_front() {
            seen.push(match event {
                Ok(ControlEvent::User(event)) => ("user", event),
                Ok(ControlEvent::Connected { context, .. }) => ("connected", context),
                Err(error) if error.error == ConnectError::Refused => ("refused", error.context),
                other => panic!("{other:?}"),
            });
        }
    }
    assert_eq!(seen[..2], [("user", 70), ("user", 71)]);
    seen.sort_unstable();
    let expected = (10..30).map(|n| ("connected", n)).chain((0..10).map(|n| ("refused", n)));
    let expected: Vec<_> = expected.chain([("user", 70), ("user", 71)]).collect();
    assert_eq!(seen, expected);
    assert_eq!((lost.len(), callers.len(), callees.len()), (10, 20, 20));
}

#[test]
fn requests_beyond_the_backlog_wait_until_one_is_answered() {
    let mut pair = pair(1);
    let options = PassiveEndpointOptions::new().backlog(2);
    let _listener = pair.callee.listen_with(SERVER, options);
    let connect = |pair: &Pair, n| pair.caller.builder(n).connect(server(), b"").unwrap();
    let mut callers = vec![connect(&pair, 0), connect(&pair, 1)];
    pair.rest();
    // These wait in the network, as in the kernel.
    callers.extend([connect(&pair, 2), connect(&pair, 3)]);
    pair.rest();
    let mut requests: Vec<_> = pair.callee.happened.drain(..).collect();
    assert_eq!(requests.len(), 2, "{requests:?}");
    drop(requests.remove(0));
    pair.rest();
    assert_eq!(pair.callee.happened.len(), 1);
    let error = pair.caller_event().unwrap_err();
    assert_eq!(error.error, ConnectError::Rejected { data: Vec::new() });
    drop((requests, callers));
}

#[test]
fn shutdown_is_reported_after_a_full_completion_queue_took_the_last_message() {
    let mut pair = pair(1);
    let _listener = pair.callee.listen(SERVER);
    let (caller, callee) = pair.connect(server());
    // Messages in a multi-receive buffer have no credit: this queue takes two.
    let small = efa::CompletionQueueOptions::new().capacity(2);
    drop(callee);
    pair.rest();
    shut_down(pair.caller_event());
    drop(caller);
    pair.callee.queue = pair.callee.domain.completion_queue(small);
    let (caller, callee) = pair.connect(server());
    callee.receive_many(None, vec![0; 100_000], 9).unwrap();
    // As many as an idle endpoint has receive buffers: they arrive though nobody reads.
    for context in 0..4 {
        caller.send(Message::to(PEER), pattern(10, context), context).unwrap();
    }
    for _ in 0..300 {
        pair.caller.read();
        pair.callee.happened.extend(pair.callee.events.read());
        pair.advance(Duration::from_micros(1));
    }
    drop(caller);
    let mut messages = 0;
    while pair.callee.happened.is_empty() {
        for _ in 0..300 {
            pair.caller.read();
            pair.callee.happened.extend(pair.callee.events.read());
            pair.advance(Duration::from_micros(1));
        }
        // The queue takes two.
        assert!(messages >= 2 || pair.callee.happened.is_empty(), "after {messages} messages");
        if let Some(entry) = pair.callee.queue.read() {
            assert_eq!(entry.unwrap().into_message(), pattern(10, messages));
            messages += 1;
        }
    }
    // Those that fit the queue may be there still.
    shut_down(pair.callee_event());
    while let Some(Ok(done)) = pair.callee.queue.read() {
        assert_eq!(done.into_message(), pattern(10, messages));
        messages += 1;
    }
    assert_eq!(messages, 4);
}

#[test]
fn callee_whose_caller_goes_away_gets_an_error_and_accepts_another() {
    let mut pair = pair(1);
    let _listener = pair.callee.listen(SERVER);
    let gone = pair.caller.builder(1).connect(server(), b"").unwrap();
    let request = pair.request();
    drop(gone);
    pair.rest();
    let callee = pair.callee.builder(2).accept(request, b"").unwrap();
    let error = pair.callee_event().unwrap_err();
    assert_eq!((error.endpoint, error.error), (callee.id(), ConnectError::Ended));
    let caller = pair.caller.builder(3).connect(server(), b"").unwrap();
    let request = pair.request();
    callee.accept(request, b"").unwrap();
    connected(pair.caller_event());
    connected(pair.callee_event());
    callee.receive(Receive::untagged(), vec![0; 10], 1).unwrap();
    caller.send(Message::to(PEER), pattern(10, 1), 2).unwrap();
    assert_eq!(pair.callee_entry().unwrap().into_message(), pattern(10, 1));
}

#[test]
fn operations_under_way_end_at_both_sides_when_an_endpoint_is_dropped() {
    let mut pair = pair(1);
    let _listener = pair.callee.listen(SERVER);
    let (caller, callee) = pair.connect(server());
    // Nothing matches them: the sends wait for a grant.
    callee.send(Message::to(PEER), pattern(300_000, 1), 1).unwrap();
    caller.send(Message::to(PEER), pattern(300_000, 2), 2).unwrap();
    callee.receive(Receive::tagged(3), vec![0; 10], 3).unwrap();
    pair.rest();
    drop(caller);
    assert_eq!(shut_down(pair.callee_event()), (callee.id(), 2));
    let mut ended: Vec<_> = (0..2).map(|_| pair.callee_entry().unwrap_err()).collect();
    ended.push(pair.caller_entry().unwrap_err());
    let told = ended.iter().map(|ended| (ended.completion.context, ended.error.to_string()));
    let mut told: Vec<_> = told.collect();
    told.sort_unstable();
    let texts = ["the connection has ended", "the endpoint was closed", "the connection has ended"];
    assert!(told.into_iter().eq((1..).zip(texts.map(str::to_owned))));
    // The buffers come back.
    assert!(ended.iter().any(|ended| ended.completion.buffer == pattern(300_000, 1)));
    pair.rest();
    assert!(pair.callee.happened.is_empty() && pair.caller.happened.is_empty());
}

#[test]
fn wait_for_an_event_advances_a_manual_clock_to_the_timeout() {
    let (fabric, clock) = fabric(1);
    let side = Side::on(fabric);
    let silent = Side::on(side.fabric.clone());
    let _listener = silent.listen(SERVER);
    let options = MsgEndpointOptions::new().connect_timeout(Duration::from_secs(3600));
    let _caller = side.builder_with(options).connect(server(), b"").unwrap();
    let nothing = side.events.wait(Duration::from_secs(60)).unwrap_err();
    assert!(matches!(nothing, EventWaitError::TimedOut(_)), "{nothing}");
    let begin = clock.now();
    let error = side.events.wait(Duration::from_secs(7200)).unwrap_err();
    let EventWaitError::Failed(error) = error else { panic!("{error}") };
    assert_eq!(error.error, ConnectError::TimedOut { after: Duration::from_secs(3600) });
    assert_eq!(clock.now() - begin, Duration::from_secs(3540));
}

//! Connections on an interface of rdma-core.

use std::time::{Duration, Instant};

use efa::{
    CompletionQueueOptions, ControlEvent, Direction, EventQueueOptions, Fabric, Kind, Message,
    MsgEndpoint, MsgEndpointOptions, PassiveEndpointOptions, Receive,
};

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn connection_carries_messages_both_ways_and_reports_its_shutdown_after_them() {
    let fabric = Fabric::verbs(None);
    let domain = fabric.domain().unwrap();
    let sides = [0, 1].map(|_| {
        let events = fabric.event_queue(EventQueueOptions::default()).unwrap();
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let options = MsgEndpointOptions::default();
        let builder = domain.msg_endpoint(options).bind_completion_queue(&queue, Direction::Both);
        (builder.bind_event_queue(&events), queue, events)
    });
    let [(caller, calls, caller_events), (callee, answers, callee_events)] = sides;
    let passive = fabric.passive_endpoint(&callee_events, PassiveEndpointOptions::default());
    let listener = passive.listen(([127, 0, 0, 1], 0).into()).unwrap();

    let caller = caller.connect(listener.local_address(), b"let me in").unwrap();
    let begin = Instant::now();
    let request = loop {
        // The caller asks while its own queue is read.
        assert!(caller_events.read().is_none() && begin.elapsed() < TIMEOUT);
        match callee_events.read() {
            Some(Ok(ControlEvent::ConnectionRequest(request))) => break request,
            other => assert!(other.is_none(), "{other:?}"),
        }
    };
    assert_eq!(request.data(), b"let me in");
    let callee = callee.accept(request, b"welcome").unwrap();
    // The callee is connected once the caller has answered.
    for events in [&caller_events, &callee_events] {
        assert!(matches!(events.wait(TIMEOUT), Ok(ControlEvent::Connected { .. })));
    }
    for (length, context) in [(8, 1), (100_000, 2)] {
        for (from, to, of_from, of_to) in
            [(&caller, &callee, &calls, &answers), (&callee, &caller, &answers, &calls)]
        {
            to.receive(Receive::tagged(u64::MAX), vec![0; length], context).unwrap();
            let message = Message::to(MsgEndpoint::PEER).tagged(u64::MAX);
            from.send(message, vec![7; length], context).unwrap();
            let (mut sent, mut received) = (false, None);
            while !sent || received.is_none() {
                sent |= of_from.read().is_some_and(|entry| entry.unwrap().kind == Kind::Send);
                received = received.or_else(|| of_to.read().map(Result::unwrap));
            }
            assert_eq!(received.unwrap().into_message(), vec![7; length]);
        }
    }
    drop(caller);
    assert!(matches!(callee_events.wait(TIMEOUT), Ok(ControlEvent::Shutdown { .. })));
}

//! Connections whose beginning and end are futures.

use std::future::ready;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;

use efa::with_tokio::{
    AsyncListener, AsyncMsgEndpoint, ClosedBy, ConnectAsyncError, ListenAsyncError, NotAccepted,
};
use efa::{
    Bound, ConnectError, ConnectionRequest, EnableError, Event, MsgEndpointBuilder,
    StartConnectError,
};

use super::*;

const PEER: FiAddr = AsyncMsgEndpoint::PEER;

/// A caller's domain, and a callee's with a listener.
struct Sides {
    caller: Domain,
    callee: Domain,
    listener: AsyncListener,
}

impl Sides {
    fn on(fabrics: &[Fabric; 2]) -> Self {
        let [caller, callee] = fabrics.each_ref().map(|fabric| fabric.domain().unwrap());
        let at = "127.0.0.1:0".parse().unwrap();
        let listener = fabrics[1].listen_async(at, PassiveEndpointOptions::default()).unwrap();
        Self { caller, callee, listener }
    }

    fn at(&self) -> SocketAddr {
        self.listener.local_address()
    }

    fn caller(&self) -> MsgEndpointBuilder {
        self.caller.msg_endpoint(MsgEndpointOptions::default())
    }

    fn callee(&self) -> MsgEndpointBuilder {
        self.callee.msg_endpoint(MsgEndpointOptions::default())
    }

    /// A caller and a callee that are connected.
    async fn connect(&self) -> [AsyncMsgEndpoint; 2] {
        let accept = async {
            let request = self.listener.accept().await.unwrap();
            self.callee().accept_async(request, b"welcome").await
        };
        let both = async { tokio::join!(self.caller().connect_async(self.at(), b"hi"), accept) };
        let (caller, callee) = timeout(TIMEOUT, both).await.expect("they connect");
        [caller.unwrap(), callee.unwrap()]
    }

    /// An attempt to connect that was begun, and the request that came of it.
    async fn ask(&self) -> (Attempt, ConnectionRequest) {
        let mut attempt: Attempt = Box::pin(self.caller().connect_async(self.at(), b"hi"));
        assert!(poll_once(attempt.as_mut()).await.is_pending());
        (attempt, self.listener.accept().await.unwrap())
    }
}

type Attempt = Pin<Box<dyn Future<Output = Result<AsyncMsgEndpoint, ConnectAsyncError>> + Send>>;

/// Runs `test` in both kinds of runtime on each link.
fn on_each<F: Future<Output = ()>>(test: impl Fn(Sides) -> F) {
    let directory = TempDir::new().unwrap();
    for runtime in [one_thread(), several_threads()] {
        for fabrics in networks(&directory) {
            runtime.block_on(async {
                let sides = Sides::on(&fabrics);
                timeout(TIMEOUT, test(sides)).await.expect("it ends in time");
            });
        }
    }
}

fn failed<T>(attempt: Result<T, ConnectAsyncError>) -> ConnectError {
    match attempt {
        Err(ConnectAsyncError::Failed(error)) => error,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("connected"),
    }
}

async fn text(endpoint: &AsyncEndpoint) -> Vec<u8> {
    let received = endpoint.receive(Receive::untagged(), vec![0; 64]).await;
    received.unwrap().into_message().into_vec()
}

// ---- beginnings ---------------------------------------------------------------------------------

#[test]
fn accepted_request_connects_both_sides_until_the_caller_shuts_down() {
    on_each(|sides| async move {
        let serve = async {
            let request = sides.listener.accept().await.unwrap();
            assert_eq!(request.data(), b"may I?");
            assert_eq!(request.listener_address(), sides.at());
            let callee = sides.callee().accept_async(request, b"please").await.unwrap();
            assert_eq!(callee.data(), b"");
            for length in [8, LONG] {
                let received = callee.receive(Receive::tagged(5), vec![0; length]).await.unwrap();
                callee.send(Message::to(PEER).tagged(6), received.into_message()).await.unwrap();
            }
            assert_eq!(callee.closed().await, Ok(ClosedBy::Peer));
        };
        let call = async {
            let caller = sides.caller().connect_async(sides.at(), b"may I?").await.unwrap();
            assert_eq!(caller.data(), b"please");
            for length in [8, LONG] {
                caller.send(Message::to(PEER).tagged(5), pattern(length)).await.unwrap();
                let echo = caller.receive(Receive::tagged(6).from(PEER), vec![0; length]).await;
                assert_eq!(echo.unwrap().into_message(), pattern(length));
            }
            caller.shutdown(TIMEOUT).await.unwrap();
            assert_eq!(caller.closed().await, Ok(ClosedBy::Local));
            let late = caller.send(Message::to(PEER), "late").await.unwrap_err();
            assert!(matches!(late, AsyncError::Refused(r) if r.error == StartError::NotConnected));
        };
        tokio::join!(serve, call);
    });
}

#[test]
fn rejected_request_fails_the_attempt_with_the_data_of_the_rejection() {
    on_each(|sides| async move {
        let (attempt, request) = sides.ask().await;
        request.reject(b"not you").unwrap();
        assert_eq!(failed(attempt.await), ConnectError::Rejected { data: b"not you".into() });
    });
}

#[test]
fn attempt_at_an_address_where_nobody_listens_is_refused() {
    on_each(|sides| async move {
        let (builder, at) = (sides.caller(), sides.at());
        drop(sides.listener);
        assert_eq!(failed(builder.connect_async(at, b"").await), ConnectError::Refused);
    });
}

#[test]
fn attempt_that_nobody_answers_ends_at_its_timeout() {
    let clock = ManualClock::new();
    let fabric = Fabric::local(LocalOptions::default()).with_clock(&clock);
    one_thread().block_on(async {
        let sides = Sides::on(&[fabric.clone(), fabric]);
        let after = Duration::from_secs(3600);
        let options = MsgEndpointOptions::default().connect_timeout(after);
        let attempt = sides.caller.msg_endpoint(options).connect_async(sides.at(), b"");
        let error = failed(timeout(TIMEOUT, attempt).await.expect("in virtual time"));
        assert_eq!(error, ConnectError::TimedOut { after });
        assert!(clock.now() - efa::Time::ZERO >= after);
    });
}

#[test]
fn attempt_that_nobody_answers_ends_at_its_timeout_though_no_packet_wakes_the_task() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let fabric = Fabric::tcp(TcpOptions::new([127, 0, 0, 1]));
    one_thread().block_on(async {
        let after = Duration::from_millis(50);
        let options = MsgEndpointOptions::default().connect_timeout(after);
        let builder = fabric.domain().unwrap().msg_endpoint(options);
        let attempt = builder.connect_async(silent.local_addr().unwrap(), b"");
        let error = failed(timeout(TIMEOUT, attempt).await.expect("it ends"));
        assert_eq!(error, ConnectError::TimedOut { after });
    });
}

#[test]
fn connection_in_virtual_time_begins_carries_a_message_and_ends() {
    let clock = ManualClock::new();
    // A listener hears nobody for longer than 5 s.
    let delay = Duration::from_millis(500)..Duration::from_millis(1000);
    let options = LocalOptions::default().with(|options| options.delay = delay);
    let fabric = Fabric::local(options).with_clock(&clock);
    let begin = Instant::now();
    one_thread().block_on(async {
        let sides = Sides::on(&[fabric.clone(), fabric]);
        let patient =
            || MsgEndpointOptions::default().connect_timeout(Duration::from_secs(1 << 30));
        let accept = async {
            let request = sides.listener.accept().await.unwrap();
            sides.callee.msg_endpoint(patient()).accept_async(request, b"").await.unwrap()
        };
        let connect = sides.caller.msg_endpoint(patient()).connect_async(sides.at(), b"");
        let (caller, callee) = tokio::join!(connect, accept);
        let caller = caller.unwrap();
        let (sent, received) = tokio::join!(caller.send(Message::to(PEER), "text"), text(&callee));
        sent.unwrap();
        assert_eq!(received, b"text");
        caller.shutdown(Duration::from_secs(1 << 30)).await.unwrap();
        assert_eq!(callee.closed().await, Ok(ClosedBy::Peer));
    });
    assert!(clock.now() - efa::Time::ZERO >= Duration::from_millis(3 * 500));
    assert!(begin.elapsed() < TIMEOUT);
}

#[test]
fn request_that_was_not_answered_for_an_error_comes_back_and_can_be_accepted() {
    on_each(|sides| async move {
        let (attempt, request) = sides.ask().await;
        let refused = sides.callee().accept_async(request, &[0; 257]).await.unwrap_err();
        let NotAccepted { error, request } = refused;
        let is_too_long =
            |error| matches!(error, ConnectAsyncError::Start(StartConnectError::DataTooLong(_)));
        assert!(is_too_long(error));
        let events = sides.callee.fabric().event_queue(EventQueueOptions::default()).unwrap();
        let bound = sides.callee().bind_event_queue(&events);
        let refused = bound.accept_async(*request.unwrap(), b"").await.unwrap_err();
        let twice = |error| {
            use ConnectAsyncError::Enable;
            use EnableAsyncError::Enable as Endpoint;
            matches!(error, Enable(Endpoint(EnableError::Twice(Bound::EventQueue))))
        };
        assert!(twice(refused.error));
        let accept = sides.callee().accept_async(*refused.request.unwrap(), b"");
        let (connected, accepted) = tokio::join!(attempt, accept);
        connected.unwrap();
        accepted.unwrap();
        let too_much = sides.caller().connect_async(sides.at(), &[0; 257]).await.unwrap_err();
        assert!(is_too_long(too_much));
        let bound = sides.caller().bind_event_queue(&events);
        assert!(twice(bound.connect_async(sides.at(), b"").await.unwrap_err()));
    });
}

#[test]
fn connections_of_a_shared_receive_queue_have_no_futures() {
    one_thread().block_on(async {
        let fabric = Fabric::local(LocalOptions::default());
        let sides = Sides::on(&[fabric.clone(), fabric]);
        let queue = sides.caller.shared_receive_queue(SharedReceiveQueueOptions::default());
        let builder = sides.caller().bind_shared_receive_queue(&queue);
        let refused = builder.connect_async(sides.at(), b"").await.unwrap_err();
        let expected = ConnectAsyncError::Enable(EnableAsyncError::SharedReceives);
        assert_eq!(format!("{refused:?}"), format!("{expected:?}"));
    });
}

#[test]
fn listening_and_connecting_outside_of_a_runtime_is_refused() {
    let fabric = Fabric::local(LocalOptions::default());
    let at = "127.0.0.1:0".parse().unwrap();
    let refused = fabric.listen_async(at, PassiveEndpointOptions::default()).unwrap_err();
    assert!(matches!(refused, ListenAsyncError::Stream(StreamError::NoRuntime)));
    let builder = fabric.domain().unwrap().msg_endpoint(MsgEndpointOptions::default());
    let mut attempt = pin!(builder.connect_async(at, b""));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let Poll::Ready(Err(refused)) = attempt.as_mut().poll(&mut context) else { panic!() };
    let expected = EnableAsyncError::Stream(StreamError::NoRuntime);
    assert_eq!(format!("{refused:?}"), format!("{:?}", ConnectAsyncError::Enable(expected)));
}

#[test]
fn listener_at_an_address_that_is_taken_is_refused_with_that_address() {
    on_each(|sides| {
        let (at, fabric) = (sides.at(), sides.callee.fabric().clone());
        let refused = fabric.listen_async(at, PassiveEndpointOptions::default()).unwrap_err();
        let ListenAsyncError::Listen { at: there, error } = refused else { panic!("{refused}") };
        assert_eq!((there, error.kind()), (at, std::io::ErrorKind::AddrInUse));
        ready(())
    });
}

/// More than one connection on each event queue.
#[test]
fn connections_of_one_fabric_each_get_their_own_answers_and_ends() {
    const COUNT: u8 = 12;
    on_each(|sides| async move {
        let serve = async {
            let mut tasks = Vec::new();
            for _ in 0..COUNT {
                let request = sides.listener.accept().await.unwrap();
                let (builder, data) = (sides.callee(), request.data().to_vec());
                tasks.push(tokio::spawn(async move {
                    if data[0] % 3 == 0 {
                        return request.reject(&data).unwrap();
                    }
                    let callee = builder.accept_async(request, &data).await.unwrap();
                    match data[0] % 3 {
                        1 => callee.shutdown(TIMEOUT).await.unwrap(),
                        _ => assert_eq!(callee.closed().await, Ok(ClosedBy::Peer)),
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
        };
        let tasks = (0..COUNT).map(|number| {
            let attempt = sides.caller().connect_async(sides.at(), &[number]);
            tokio::spawn(async move {
                match attempt.await {
                    Ok(caller) => {
                        assert_eq!(caller.data(), [number]);
                        if number % 3 == 1 {
                            assert_eq!(caller.closed().await, Ok(ClosedBy::Peer));
                        }
                    }
                    Err(error) => {
                        let data = vec![number];
                        assert_eq!(failed::<()>(Err(error)), ConnectError::Rejected { data });
                        assert_eq!(number % 3, 0);
                    }
                }
            })
        });
        let tasks: Vec<_> = tasks.collect();
        serve.await;
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn connections_of_two_runtimes_go_on_without_each_other() {
    let directory = TempDir::new().unwrap();
    for fabrics in networks(&directory) {
        let (first, second) = (one_thread(), one_thread());
        let connect = || async {
            let sides = Sides::on(&fabrics);
            let ends = sides.connect().await;
            (sides, ends)
        };
        let (_sides, first_ends) = first.block_on(connect());
        // Nobody runs the first runtime.
        let (_others, [caller, callee]) = second.block_on(connect());
        drop(first);
        second.block_on(async {
            assert_eq!(first_ends[0].closed().await, Err(Ended::Runtime));
            assert!(poll_once(pin!(caller.closed())).await.is_pending());
            callee.shutdown(TIMEOUT).await.unwrap();
            let closed = timeout(TIMEOUT, caller.closed()).await.expect("it is watched");
            assert_eq!(closed, Ok(ClosedBy::Peer));
        });
    }
}

// ---- ends ---------------------------------------------------------------------------------------

#[test]
fn tasks_that_wait_for_the_end_are_woken_when_the_peer_is_dropped() {
    on_each(|sides| async move {
        let [caller, callee] = sides.connect().await;
        let waits = [(); 3].map(|()| {
            let callee = callee.clone();
            tokio::spawn(async move { callee.closed().await })
        });
        let mut receive = pin!(callee.receive(Receive::untagged(), vec![0; 8]));
        assert!(poll_once(receive.as_mut()).await.is_pending());
        assert!(poll_once(pin!(callee.closed())).await.is_pending());
        drop(caller);
        for wait in waits {
            assert_eq!(wait.await.unwrap(), Ok(ClosedBy::Peer));
        }
        let ended = receive.await.unwrap_err();
        assert!(
            matches!(ended, AsyncError::Failed(f) if f.error == OperationError::ConnectionEnded)
        );
        assert_eq!(callee.closed().await, Ok(ClosedBy::Peer));
        // There is nothing left to shut down.
        callee.shutdown(TIMEOUT).await.unwrap();
        assert_eq!(callee.closed().await, Ok(ClosedBy::Peer));
    });
}

#[test]
fn claim_after_the_end_of_a_connection_takes_what_has_arrived_and_then_ends() {
    on_each(|sides| async move {
        for by_caller in [true, false] {
            let [caller, callee] = sides.connect().await;
            caller.send(Message::to(PEER).tagged(1), "before").await.unwrap();
            caller.send(Message::to(PEER).tagged(2), "after").await.unwrap();
            let mut before = callee.claim(Receive::tagged(1)).await.unwrap();
            let waits = {
                let callee = callee.clone();
                tokio::spawn(async move { callee.claim(Receive::tagged(3)).await.map(drop) })
            };
            tokio::task::yield_now().await;
            if by_caller {
                drop(caller);
                assert_eq!(callee.closed().await, Ok(ClosedBy::Peer));
            } else {
                while callee.peek(Receive::tagged(2)).unwrap().is_none() {
                    tokio::task::yield_now().await;
                }
                callee.shutdown(TIMEOUT).await.unwrap();
            }
            let mut after = callee.claim(Receive::tagged(2)).await.unwrap();
            for (claim, text) in [(&mut before, "before"), (&mut after, "after")] {
                let received = claim.receive(vec![0; 8]).await.unwrap();
                assert_eq!(received.into_message(), *text.as_bytes());
            }
            for ended in [waits.await.unwrap(), callee.claim(Receive::untagged()).await.map(drop)] {
                let error = ended.unwrap_err();
                assert!(
                    matches!(&error, AsyncError::Refused(r) if r.error == StartError::NotConnected),
                    "{error:?}"
                );
            }
        }
    });
}

#[test]
fn endpoint_that_is_closed_ends_its_connection_for_both_sides() {
    on_each(|sides| async move {
        let [caller, callee] = sides.connect().await;
        let waiter = caller.clone();
        let waits = tokio::spawn(async move { waiter.closed().await });
        caller.send(Message::to(PEER), "last").await.unwrap();
        caller.close(TIMEOUT).await.unwrap();
        assert_eq!(waits.await.unwrap(), Ok(ClosedBy::Local));
        assert_eq!(callee.closed().await, Ok(ClosedBy::Peer));
        assert_eq!(text(&callee).await, b"last");
    });
}

#[test]
fn connection_lives_as_long_as_a_handle_to_its_operations() {
    on_each(|sides| async move {
        let [caller, callee] = sides.connect().await;
        let operations: AsyncEndpoint = AsyncEndpoint::clone(&caller);
        drop(caller);
        operations.send(Message::to(PEER), "still here").await.unwrap();
        assert_eq!(text(&callee).await, b"still here");
        assert!(poll_once(pin!(callee.closed())).await.is_pending());
        drop(operations);
        assert_eq!(callee.closed().await, Ok(ClosedBy::Peer));
    });
}

#[test]
fn connection_that_ended_before_its_attempt_was_polled_again_is_made_and_has_its_messages() {
    on_each(|sides| async move {
        let (attempt, request) = sides.ask().await;
        let callee = sides.callee().accept_async(request, b"briefly").await.unwrap();
        callee.send(Message::to(PEER), "all there is").await.unwrap();
        callee.shutdown(TIMEOUT).await.unwrap();
        // The end arrives meanwhile, or after the attempt.
        sleep(Duration::from_millis(50)).await;
        let caller = attempt.await.unwrap();
        assert_eq!(caller.data(), b"briefly");
        assert_eq!(caller.closed().await, Ok(ClosedBy::Peer));
        assert_eq!(text(&caller).await, b"all there is");
    });
}

#[test]
fn futures_of_connections_end_when_their_runtime_is_shut_down() {
    let directory = TempDir::new().unwrap();
    for fabrics in networks(&directory) {
        let (runtime, other) = (several_threads(), several_threads());
        let (sides, caller, attempt, callee) = runtime.block_on(async {
            let sides = Sides::on(&fabrics);
            let [caller, callee] = sides.connect().await;
            let (attempt, _) = sides.ask().await;
            (Arc::new(sides), caller, attempt, callee)
        });
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = |waiting: &Arc<AtomicUsize>| {
            let waiting = Arc::clone(waiting);
            move || {
                waiting.fetch_add(1, Ordering::SeqCst);
            }
        };
        let (accepts, is_waiting) = (Arc::clone(&sides), counted(&waiting));
        let accept = other.spawn(async move {
            let mut accept = pin!(accepts.listener.accept());
            assert!(poll_once(accept.as_mut()).await.is_pending());
            is_waiting();
            accept.await.unwrap_err()
        });
        let (closes, is_waiting) = (caller.clone(), counted(&waiting));
        let closed = other.spawn(async move {
            let mut closed = pin!(closes.closed());
            assert!(poll_once(closed.as_mut()).await.is_pending());
            is_waiting();
            closed.await.unwrap_err()
        });
        while waiting.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
        drop(runtime);
        other.block_on(async {
            let ends = async { (accept.await.unwrap(), closed.await.unwrap()) };
            let ends = timeout(TIMEOUT, ends).await.expect("they are woken");
            assert_eq!(ends, (Ended::Runtime, Ended::Runtime));
            assert_eq!(sides.listener.accept().await.unwrap_err(), Ended::Runtime);
            assert_eq!(callee.closed().await, Err(Ended::Runtime));
            // The request was dropped, which nobody has read.
            let ended = timeout(TIMEOUT, attempt).await.expect("it ends").unwrap_err();
            match ended {
                ConnectAsyncError::Ended(Ended::Runtime) => {}
                // Or somebody had.
                ConnectAsyncError::Failed(ConnectError::Rejected { .. }) => {}
                other => panic!("{other:?}"),
            }
            // It is ended without a thread of the runtime.
            callee.shutdown(TIMEOUT).await.unwrap();
            let refused = callee.inject(Message::to(PEER), b"late");
            assert_eq!(refused, Err(StartError::NotConnected));
        });
    }
}

// ---- dropped futures ----------------------------------------------------------------------------

#[test]
fn request_that_comes_after_an_accept_was_dropped_goes_to_the_next_one() {
    on_each(|sides| async move {
        assert!(poll_once(pin!(sides.listener.accept())).await.is_pending());
        let mut attempt = Box::pin(sides.caller().connect_async(sides.at(), b"hi"));
        assert!(poll_once(attempt.as_mut()).await.is_pending());
        // Each may come at any step of the request.
        for _ in 0..20 {
            let mut accept = pin!(sides.listener.accept());
            if let Poll::Ready(request) = poll_once(accept.as_mut()).await {
                return assert_eq!(request.unwrap().data(), b"hi");
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(sides.listener.accept().await.unwrap().data(), b"hi");
    });
}

#[test]
fn attempt_that_is_dropped_is_given_up_and_its_request_leads_to_no_connection() {
    on_each(|sides| async move {
        let (attempt, request) = sides.ask().await;
        drop(attempt);
        let accepted = sides.callee().accept_async(request, b"").await.unwrap_err();
        assert!(matches!(accepted.error, ConnectAsyncError::Failed(_)), "{accepted:?}");
        assert!(accepted.request.is_none());
        // The listener goes on.
        sides.connect().await;
    });
}

#[test]
fn attempt_that_is_dropped_before_its_first_poll_asks_nobody() {
    on_each(|sides| async move {
        drop(sides.caller().connect_async(sides.at(), b"never"));
        let (_attempt, request) = sides.ask().await;
        assert_eq!(request.data(), b"hi");
    });
}

#[test]
fn accept_that_is_dropped_before_its_first_poll_rejects_the_request() {
    on_each(|sides| async move {
        let (attempt, request) = sides.ask().await;
        drop(sides.callee().accept_async(request, b"welcome"));
        assert_eq!(failed(attempt.await), ConnectError::Rejected { data: Vec::new() });
    });
}

#[test]
fn accept_that_is_dropped_under_way_ends_what_the_caller_has() {
    on_each(|sides| async move {
        let (attempt, request) = sides.ask().await;
        let mut accept = Box::pin(sides.callee().accept_async(request, b"welcome"));
        // The caller's task may be as fast.
        drop(poll_once(accept.as_mut()).await);
        drop(accept);
        match attempt.await {
            Ok(caller) => assert_eq!(caller.closed().await, Ok(ClosedBy::Peer)),
            Err(ConnectAsyncError::Failed(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
    });
}

#[test]
fn shutdown_that_is_dropped_under_way_ends_the_connection_all_the_same() {
    on_each(|sides| async move {
        let [caller, callee] = sides.connect().await;
        caller.send(Message::to(PEER), "last").await.unwrap();
        {
            let mut shutdown = pin!(caller.shutdown(TIMEOUT));
            let _ = poll_once(shutdown.as_mut()).await;
        }
        assert_eq!(callee.closed().await, Ok(ClosedBy::Peer));
        assert_eq!(text(&callee).await, b"last");
        assert_eq!(caller.closed().await, Ok(ClosedBy::Local));
    });
}

#[test]
fn listener_that_is_dropped_rejects_or_refuses_who_was_not_taken() {
    on_each(|sides| async move {
        let mut attempt = Box::pin(sides.caller().connect_async(sides.at(), b"hi"));
        assert!(poll_once(attempt.as_mut()).await.is_pending());
        // At any step of the request.
        drop(poll_once(pin!(sides.listener.accept())).await);
        drop(sides.listener);
        let error = failed(timeout(TIMEOUT / 6, attempt).await.expect("before its own timeout"));
        assert!(!matches!(error, ConnectError::TimedOut { .. }), "{error}");
    });
}

// ---- a program's event queue --------------------------------------------------------------------

#[test]
fn event_queue_bound_for_events_of_the_endpoint_gets_these_and_none_of_the_connection() {
    on_each(|sides| async move {
        let events = sides.callee.fabric().event_queue(EventQueueOptions::default()).unwrap();
        let mut stream = events.stream().unwrap();
        let options = MsgEndpointOptions::default().context(7);
        let builder = sides.callee.msg_endpoint(options);
        let builder = builder.bind_with(|endpoint| endpoint.bind_event_queue(&events));
        let (attempt, request) = sides.ask().await;
        let (caller, callee) = tokio::join!(attempt, builder.accept_async(request, b""));
        let (caller, callee) = (caller.unwrap(), callee.unwrap());
        // Nobody has a connection to it.
        let addresses = sides.caller.address_vector();
        let endpoint = sides.caller.endpoint(EndpointOptions::default());
        let stranger = endpoint.bind_address_vector(&addresses).enable_async().unwrap();
        let to = addresses.insert(callee.address()).unwrap();
        let mut send = pin!(stranger.send(Message::to(to), "who am I?"));
        let _ = poll_once(send.as_mut()).await;
        match stream.next().await.unwrap() {
            ControlEvent::Endpoint { endpoint, context: 7, event } => {
                assert_eq!(endpoint, callee.id());
                assert!(matches!(event, Event::PacketDropped { .. }), "{event:?}");
            }
            other => panic!("{other:?}"),
        }
        drop(caller);
        assert_eq!(callee.closed().await, Ok(ClosedBy::Peer));
        while let Some(entry) = events.read() {
            assert!(matches!(entry, Ok(ControlEvent::Endpoint { .. })), "{entry:?}");
        }
    });
}

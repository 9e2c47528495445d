//! What no program can bring about by the calls that it has.

use std::time::{Duration, Instant};

use super::msg_endpoint::{MsgEndpoint, MsgEndpointBuilder, MsgEndpointOptions};
use super::{ControlEvent, EventQueue, EventQueueOptions, PassiveEndpointOptions};
use crate::TcpOptions;
use crate::completion::StartError;
use crate::completion_queue::CompletionQueueOptions;
use crate::domain::Domain;
use crate::endpoint_builder::Direction;
use crate::fabric::Fabric;
use crate::message::Message;

/// An event queue, and a domain for endpoints that are bound to it.
struct Side {
    domain: Domain,
    events: EventQueue,
}

impl Side {
    fn new() -> (Fabric, Self) {
        let fabric = Fabric::tcp(TcpOptions::new([127, 0, 0, 1]));
        let domain = fabric.domain().unwrap();
        let events = fabric.event_queue(EventQueueOptions::default()).unwrap();
        (fabric, Self { domain, events })
    }

    fn builder(&self) -> MsgEndpointBuilder {
        let queue = self.domain.completion_queue(CompletionQueueOptions::default());
        let builder = self.domain.msg_endpoint(MsgEndpointOptions::new());
        builder.bind_completion_queue(&queue, Direction::Both).bind_event_queue(&self.events)
    }

    fn event(&self) -> ControlEvent {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(event) = self.events.read() {
                return event.unwrap();
            }
            assert!(Instant::now() < deadline, "nothing happens");
        }
    }
}

#[test]
fn request_whose_socket_cannot_be_registered_leaves_no_peer_and_can_be_accepted_again() {
    let (fabric, side) = Side::new();
    let passive = fabric.passive_endpoint(&side.events, PassiveEndpointOptions::default());
    let listener = passive.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let ask = || {
        let caller = side.builder().connect(listener.local_address(), b"").unwrap();
        let ControlEvent::ConnectionRequest(request) = side.event() else { panic!("no request") };
        (caller, request)
    };
    let (first, request) = ask();
    let (second, other_request) = ask();
    let [callee, other] = [(); 2].map(|()| side.builder().enable().unwrap());

    // A socket can't be registered twice.
    let watch = side.events.shared().watch();
    request.call().unwrap().register(watch, 1000).unwrap();
    let refused = callee.accept(request, b"").unwrap_err();
    assert!(refused.to_string().contains("exists"), "{refused}");
    let call = refused.request.call().unwrap();
    assert!(call.exchange.is_requested() && call.exchange.to_send().is_empty());
    call.stream.as_ref().unwrap().unregister(watch);

    // The endpoint has no peer of that request.
    callee.accept(other_request, b"").unwrap();
    other.accept(*refused.request, b"").unwrap();
    let mut connected = [(); 4].map(|()| match side.event() {
        ControlEvent::Connected { endpoint, .. } => endpoint,
        other => panic!("{other:?}"),
    });
    connected.sort_unstable();
    assert_eq!(connected, [first.id(), second.id(), callee.id(), other.id()]);
}

#[test]
fn caller_that_becomes_ready_during_a_shutdown_allows_no_sends() {
    let (_, side) = Side::new();
    let endpoint = side.builder().enable().unwrap();
    let sends = || endpoint.send(Message::to(MsgEndpoint::PEER), "x", 0).unwrap_err().error;
    endpoint.state().admit(endpoint.address().to_bytes()).unwrap();
    assert_eq!(sends(), StartError::NotConnected);
    endpoint.state().stop_sending();
    endpoint.state().connected(Vec::new());
    assert_eq!(sends(), StartError::NotConnected);
}

//! Connections: requests, answers, messages and ends, over each link.

mod hostile;
mod local;
mod net;
mod processes;
mod races;
mod waiting;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use efa::{
    CompletionQueue, CompletionQueueOptions, ConnectionRequest, ControlError, ControlEvent,
    Direction, Domain, EndpointId, Entry, EventQueue, EventQueueOptions, Fabric, Listener,
    ManualClock, MsgEndpoint, MsgEndpointBuilder, MsgEndpointOptions, PassiveEndpointOptions,
};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const PEER: efa::FiAddr = MsgEndpoint::PEER;

/// One side: a domain, its queues, and what was read from them.
pub(crate) struct Side {
    pub(crate) fabric: Fabric,
    pub(crate) domain: Domain,
    pub(crate) queue: CompletionQueue,
    pub(crate) events: EventQueue,
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) happened: VecDeque<Result<ControlEvent, ControlError>>,
}

impl Side {
    pub(crate) fn on(fabric: Fabric) -> Self {
        Self::with_events(fabric, EventQueueOptions::default())
    }

    pub(crate) fn with_events(fabric: Fabric, events: EventQueueOptions) -> Self {
        let domain = fabric.domain().unwrap();
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let events = fabric.event_queue(events).unwrap();
        let (entries, happened) = (VecDeque::new(), VecDeque::new());
        Self { fabric, domain, queue, events, entries, happened }
    }

    pub(crate) fn listen(&self, at: &str) -> Listener {
        self.listen_with(at, PassiveEndpointOptions::default())
    }

    pub(crate) fn listen_with(&self, at: &str, options: PassiveEndpointOptions) -> Listener {
        let passive = self.fabric.passive_endpoint(&self.events, options);
        passive.listen(at.parse().unwrap()).unwrap()
    }

    pub(crate) fn builder(&self, context: u64) -> MsgEndpointBuilder {
        self.builder_with(MsgEndpointOptions::new().context(context))
    }

    pub(crate) fn builder_with(&self, options: MsgEndpointOptions) -> MsgEndpointBuilder {
        self.domain
            .msg_endpoint(options)
            .bind_completion_queue(&self.queue, Direction::Both)
            .bind_event_queue(&self.events)
    }

    /// Reads both queues once.
    pub(crate) fn read(&mut self) {
        self.happened.extend(self.events.read());
        self.entries.extend(self.queue.read());
    }
}

/// Two sides, and the clock if it is a manual one.
pub(crate) struct Pair {
    pub(crate) caller: Side,
    pub(crate) callee: Side,
    clock: Option<ManualClock>,
}

impl Pair {
    pub(crate) fn on(caller: Fabric, callee: Fabric, clock: Option<ManualClock>) -> Self {
        Self { caller: Side::on(caller), callee: Side::on(callee), clock }
    }

    /// Reads all queues, then lets time pass.
    pub(crate) fn turn(&mut self) {
        self.caller.read();
        self.callee.read();
        self.advance(Duration::from_micros(1));
    }

    pub(crate) fn is_virtual(&self) -> bool {
        self.clock.is_some()
    }

    /// The time of the manual clock.
    pub(crate) fn now(&self) -> efa::Time {
        self.clock.as_ref().unwrap().now()
    }

    /// Lets time pass, if the clock is a manual one.
    pub(crate) fn advance(&self, by: Duration) {
        if let Some(clock) = &self.clock {
            clock.advance(by);
        }
    }

    /// Reads until `found` returns something.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut found: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            assert!(Instant::now() < deadline, "{what} doesn't come");
            self.turn();
        }
    }

    /// Reads some hundred times.
    pub(crate) fn rest(&mut self) {
        (0..300).for_each(|_| self.turn());
    }

    pub(crate) fn request(&mut self) -> ConnectionRequest {
        match self.until("a request", |pair| pair.callee.happened.pop_front()) {
            Ok(ControlEvent::ConnectionRequest(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn caller_event(&mut self) -> Result<ControlEvent, ControlError> {
        self.until("an event at the caller", |pair| pair.caller.happened.pop_front())
    }

    pub(crate) fn callee_event(&mut self) -> Result<ControlEvent, ControlError> {
        self.until("an event at the callee", |pair| pair.callee.happened.pop_front())
    }

    pub(crate) fn caller_entry(&mut self) -> Entry {
        self.until("a completion at the caller", |pair| pair.caller.entries.pop_front())
    }

    pub(crate) fn callee_entry(&mut self) -> Entry {
        self.until("a completion at the callee", |pair| pair.callee.entries.pop_front())
    }

    /// A caller and a callee that are connected.
    pub(crate) fn connect(&mut self, to: SocketAddr) -> (MsgEndpoint, MsgEndpoint) {
        let caller = self.caller.builder(1).connect(to, b"hello").unwrap();
        let request = self.request();
        assert_eq!(request.data(), b"hello");
        assert_eq!(request.address(), caller.address());
        let callee = self.callee.builder(2).accept(request, b"welcome").unwrap();
        assert_eq!(connected(self.caller_event()), (caller.id(), 1, b"welcome".to_vec()));
        assert_eq!(connected(self.callee_event()), (callee.id(), 2, Vec::new()));
        (caller, callee)
    }
}

pub(crate) fn connected(event: Result<ControlEvent, ControlError>) -> (EndpointId, u64, Vec<u8>) {
    match event {
        Ok(ControlEvent::Connected { endpoint, context, data }) => (endpoint, context, data),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn shut_down(event: Result<ControlEvent, ControlError>) -> (EndpointId, u64) {
    match event {
        Ok(ControlEvent::Shutdown { endpoint, context }) => (endpoint, context),
        other => panic!("{other:?}"),
    }
}

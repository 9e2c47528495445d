//! Passive endpoints and listeners.

use std::io;
use std::net::SocketAddr;

use super::event_queue::{EventQueue, EventQueueOptions};
use super::request::Waiters;
use super::sources::{Removed, Source};
use super::stream::Acceptor;
use crate::error::Error;
use crate::fabric::Fabric;
use crate::wait::Wait;

/// Options of a passive endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PassiveEndpointOptions {
    /// Most requests without an answer; at least 1. While there are so many, no connection is taken from the
    /// system, in which as many can wait.
    pub backlog: usize,
    /// A number of the program ([`Object::context`](crate::Object::context)).
    pub context: u64,
}

impl Default for PassiveEndpointOptions {
    /// 128 requests.
    fn default() -> Self {
        Self { backlog: 128, context: 0 }
    }
}

impl PassiveEndpointOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`backlog`](Self#structfield.backlog).
    #[must_use]
    pub fn backlog(self, backlog: usize) -> Self {
        Self { backlog, ..self }
    }

    /// Sets [`context`](Self#structfield.context).
    #[must_use]
    pub fn context(self, context: u64) -> Self {
        Self { context, ..self }
    }
}

/// An endpoint that only listens (`fi_pep`). It belongs to a fabric and no domain, and transfers no data:
///
/// ```compile_fail,E0599
/// # use efa::{EventQueueOptions, Fabric, LocalOptions, PassiveEndpointOptions, Receive};
/// let fabric = Fabric::local(LocalOptions::default());
/// let events = fabric.event_queue(EventQueueOptions::default())?;
/// let passive = fabric.passive_endpoint(&events, PassiveEndpointOptions::default());
/// passive.receive(Receive::untagged(), vec![0; 64], 1)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It has an event queue from the beginning, so it can't listen without one.
#[derive(Debug)]
#[must_use = "a passive endpoint does nothing before it listens"]
pub struct PassiveEndpoint {
    events: EventQueue,
    options: PassiveEndpointOptions,
}

impl Fabric {
    /// Creates an event queue (`fi_eq_open`).
    ///
    /// # Errors
    /// The system has no more file descriptors.
    pub fn event_queue(&self, options: EventQueueOptions) -> Result<EventQueue, Error> {
        EventQueue::new(self, options, &Wait::Unspecified)
    }

    /// Creates an event queue with a wait object (`fi_eq_open` with a `wait_obj`): with
    /// [`Wait::Set`](crate::Wait::Set) it joins that set. Any other is waited on as one of
    /// [`event_queue`](Self::event_queue).
    ///
    /// # Errors
    /// The system has no more file descriptors.
    pub fn waitable_event_queue(
        &self,
        options: EventQueueOptions,
        wait: Wait,
    ) -> Result<EventQueue, Error> {
        EventQueue::new(self, options, &wait)
    }

    /// Creates a passive endpoint, whose requests come to `events`, a queue of this fabric (`fi_passive_ep`).
    pub fn passive_endpoint(
        &self,
        events: &EventQueue,
        options: PassiveEndpointOptions,
    ) -> PassiveEndpoint {
        PassiveEndpoint { events: events.bound(), options }
    }
}

impl PassiveEndpoint {
    pub(crate) fn user_context(&self) -> u64 {
        self.options.context
    }

    /// Listens at a TCP address of this host (`fi_listen`); with port 0 the system chooses one. On a
    /// simulated network any address will do.
    ///
    /// Each request is an event. Accept it on a new endpoint of any domain of the fabric.
    ///
    /// # Errors
    /// The system can't listen there.
    pub fn listen(self, at: SocketAddr) -> io::Result<Listener> {
        let Self { events, options } = self;
        let shared = events.shared();
        let backlog = options.backlog.max(1);
        let acceptor = Acceptor::listen(shared.fabric(), at, backlog)?;
        let local_address = acceptor.local_address()?;
        let waiters = Waiters::new(backlog, (local_address, options.context), shared);
        let key = shared.add(|key, watch| {
            acceptor.register(watch, key)?;
            Ok::<_, io::Error>(Source::listener(acceptor, waiters))
        })?;
        Ok(Listener { events, key, local_address, context: options.context })
    }
}

/// A listening passive endpoint. When it is dropped, nobody listens any more; requests that were reported
/// can still be answered.
#[derive(Debug)]
pub struct Listener {
    events: EventQueue,
    key: usize,
    local_address: SocketAddr,
    context: u64,
}

impl Listener {
    pub(crate) fn user_context(&self) -> u64 {
        self.context
    }

    /// Where it listens.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _: Option<Removed> = self.events.shared().remove(self.key);
    }
}

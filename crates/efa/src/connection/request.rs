//! What a caller asks of a listener.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use efa_connect::Data;

use super::call::Call;
use super::event_queue::Shared as EventQueue;
use super::msg_endpoint::StartConnectError;
use crate::address::Address;
use crate::error::Error;
use crate::fabric::Fabric;
use crate::info::Info;

/// A request to be connected ([`ControlEvent::ConnectionRequest`](crate::ControlEvent::ConnectionRequest)).
/// [Accept](crate::MsgEndpointBuilder::accept) it on a new endpoint, or [reject](Self::reject) it; a dropped
/// one is rejected without data.
pub struct ConnectionRequest {
    /// `None` once it is answered.
    call: Option<Box<Call>>,
    address: Address,
    data: Data,
    caller: SocketAddr,
    unanswered: Unanswered,
}

/// A request was not answered; it comes back.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotAnswered {
    /// Why.
    pub error: StartConnectError,
    /// The request.
    pub request: Box<ConnectionRequest>,
}

impl ConnectionRequest {
    pub(super) fn new(
        call: Call,
        address: efa_connect::Address,
        data: Data,
        caller: SocketAddr,
        unanswered: Unanswered,
    ) -> Self {
        let address = Address::from_bytes(address);
        Self { call: Some(Box::new(call)), address, data, caller, unanswered }
    }

    /// The data that the caller gave to `connect`: up to 256 bytes.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        self.data.as_slice()
    }

    /// The [context](crate::PassiveEndpointOptions#structfield.context) of the listener that was asked.
    #[must_use]
    pub fn listener_context(&self) -> u64 {
        self.unanswered.0.context
    }

    /// Where the listener listens.
    #[must_use]
    pub fn listener_address(&self) -> SocketAddr {
        self.unanswered.0.at
    }

    /// Where the caller's TCP connection comes from.
    #[must_use]
    pub fn caller(&self) -> SocketAddr {
        self.caller
    }

    /// The address of the caller's endpoint, as the caller says.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// An entry of which the endpoint that accepts can be opened ([`MsgEndpointOptions`](crate::MsgEndpointOptions)
    /// from it), on any domain of the listener's fabric: `fi_eq_cm_entry.info`. Its source is where the listener
    /// listens, its destination where the caller's TCP connection comes from.
    ///
    /// # Errors
    /// The fabric has no open domain, and none can be opened.
    pub fn info(&self) -> Result<Info, Error> {
        let Waiters { fabric, at, .. } = &*self.unanswered.0;
        let open = fabric.open_domains().into_iter().next();
        let domain = open.map_or_else(|| fabric.domain(), Ok)?;
        let ends = (*at, self.caller);
        Ok(Info::of_request(fabric.link(), &domain, ends))
    }

    /// Rejects the request, with up to 256 bytes of data (`fi_reject`).
    ///
    /// # Errors
    /// There is too much data; the request comes back.
    pub fn reject(mut self, data: &[u8]) -> Result<(), NotAnswered> {
        match Data::new(data) {
            Ok(data) => {
                self.answer_no(&data);
                Ok(())
            }
            Err(error) => Err(NotAnswered { error: error.into(), request: Box::new(self) }),
        }
    }

    fn answer_no(&mut self, data: &Data) {
        if let Some(mut call) = self.call.take() {
            call.exchange.reject(data);
            call.pump();
        }
    }

    /// The exchange, to be accepted.
    pub(super) fn take_call(&mut self) -> Option<Call> {
        self.call.take().map(|call| *call)
    }

    /// The exchange, which was not accepted.
    pub(super) fn put_back(&mut self, call: Call) {
        self.call = Some(Box::new(call));
    }

    #[cfg(all(test, feature = "sim"))]
    pub(super) fn call(&self) -> Option<&Call> {
        self.call.as_deref()
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        self.answer_no(&Data::default());
    }
}

impl fmt::Debug for ConnectionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, data, caller, .. } = self;
        let mut debug = f.debug_struct("ConnectionRequest");
        debug.field("caller", caller).field("address", address).field("data", data).finish()
    }
}

/// How many requests of a listener have no answer yet.
#[derive(Debug)]
pub(super) struct Waiters {
    unanswered: AtomicUsize,
    backlog: usize,
    /// Where it listens.
    at: SocketAddr,
    /// Its number of the program.
    context: u64,
    fabric: Fabric,
    queue: Weak<EventQueue>,
}

impl Waiters {
    pub(super) fn new(
        backlog: usize,
        (at, context): (SocketAddr, u64),
        queue: &Arc<EventQueue>,
    ) -> Arc<Self> {
        let (fabric, queue) = (queue.fabric().clone(), Arc::downgrade(queue));
        Arc::new(Self { unanswered: AtomicUsize::new(0), backlog, at, context, fabric, queue })
    }

    /// Whether no further request is taken until one is answered.
    pub(super) fn is_full(&self) -> bool {
        self.unanswered.load(Ordering::Acquire) >= self.backlog
    }

    pub(super) fn add(self: &Arc<Self>) -> Unanswered {
        self.unanswered.fetch_add(1, Ordering::AcqRel);
        Unanswered(self.clone())
    }
}

/// One request without an answer.
#[derive(Debug)]
pub(super) struct Unanswered(Arc<Waiters>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        let before = self.0.unanswered.fetch_sub(1, Ordering::AcqRel);
        if before >= self.0.backlog
            && let Some(queue) = self.0.queue.upgrade()
        {
            queue.room_again();
        }
    }
}

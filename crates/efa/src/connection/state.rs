//! What an event queue knows of an endpoint with a connection.

use std::sync::{Arc, Weak};
use std::time::Duration;

use efa_connect::Failure;
use efa_device::DeviceError;
use parking_lot::Mutex;

use super::event::{ConnectError, ControlError, ControlEvent};
use crate::address::Address;
use crate::address_vector::{AddressVector, FiAddr};
use crate::endpoint::{EndpointId, Shared as Endpoint};

/// The connected peer: the only entry of the endpoint's address vector.
pub(super) const PEER: FiAddr = FiAddr(0);

/// How far an endpoint has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It may connect or accept.
    Idle,
    /// It does, or is connected. The key is that of its source in the event queue.
    Busy(usize),
    /// Its connection has ended.
    Over,
}

/// The connection of an endpoint.
#[derive(Debug)]
pub(super) struct ConnectionState {
    endpoint: Weak<Endpoint>,
    id: EndpointId,
    context: u64,
    addresses: AddressVector,
    /// How long the other side may take to answer.
    pub(super) timeout: Duration,
    pub(super) phase: Mutex<Phase>,
}

impl ConnectionState {
    pub(super) fn new(
        endpoint: &Arc<Endpoint>,
        addresses: AddressVector,
        context: u64,
        timeout: Duration,
    ) -> Self {
        let (id, endpoint) = (endpoint.id, Arc::downgrade(endpoint));
        Self { endpoint, id, context, addresses, timeout, phase: Mutex::new(Phase::Idle) }
    }

    /// Takes packets of the peer from now on.
    pub(super) fn admit(&self, address: efa_connect::Address) -> Result<(), DeviceError> {
        let address = Address::from_bytes(address);
        self.addresses.domain().check_reach(address)?;
        let peer = self.addresses.insert(address)?;
        debug_assert_eq!(peer, PEER, "an address vector of one entry");
        let admitted = self.endpoint.upgrade().map_or(Ok(()), |endpoint| endpoint.admit_peer(peer));
        if admitted.is_err() {
            self.addresses.remove(peer);
        }
        admitted
    }

    /// The program may send, unless it is shutting the connection down.
    pub(super) fn connected(&self, data: Vec<u8>) -> ControlEvent {
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.connection_made();
        }
        ControlEvent::Connected { endpoint: self.id, context: self.context, data }
    }

    pub(super) fn forget_peer(&self) {
        self.addresses.remove(PEER);
    }

    /// The attempt failed: the endpoint may try again.
    pub(super) fn failed(&self, error: ConnectError) -> ControlError {
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.await_connection();
        }
        self.forget_peer();
        *self.phase.lock() = Phase::Idle;
        ControlError { endpoint: self.id, context: self.context, error }
    }

    /// Takes all that has arrived from the device; of what arrives meanwhile something may be left. Returns `false` while a
    /// completion queue is full, as it takes nothing then, and `None` if the endpoint is closed.
    pub(super) fn drain(&self) -> Option<bool> {
        Some(self.endpoint.upgrade()?.drain())
    }

    /// Ends the connection, after the last message was taken.
    pub(super) fn end(&self) -> ControlEvent {
        *self.phase.lock() = Phase::Over;
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.end_connection(PEER);
        }
        ControlEvent::Shutdown { endpoint: self.id, context: self.context }
    }

    /// From now on no operation starts.
    pub(super) fn stop_sending(&self) {
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.forbid_transmits();
        }
    }

    /// The words of this crate for a failure of the exchange, over a stream with this error.
    pub(super) fn error(&self, failure: Failure, stream: Option<&std::io::Error>) -> ConnectError {
        match (failure, stream) {
            (Failure::Rejected(data), _) => ConnectError::Rejected { data: data.into_vec() },
            (Failure::TimedOut, _) => ConnectError::TimedOut { after: self.timeout },
            (Failure::Protocol(error), _) => ConnectError::Protocol(error),
            (_, Some(error)) => match error.kind() {
                std::io::ErrorKind::ConnectionRefused => ConnectError::Refused,
                kind => ConnectError::System { kind, reason: error.to_string() },
            },
            (_, None) => ConnectError::Ended,
        }
    }
}

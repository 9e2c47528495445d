//! What an event queue reports.

use std::time::Duration;

use efa_connect::ProtocolError;
use efa_device::DeviceError;

use super::request::ConnectionRequest;
use crate::address_vector::FiAddr;
use crate::endpoint::EndpointId;
use crate::event::Event;

/// An event of an [`EventQueue`](crate::EventQueue) (`fi_eq_entry`, `fi_eq_cm_entry`).
#[derive(Debug)]
#[non_exhaustive]
pub enum ControlEvent {
    /// Somebody asks a listener to be connected (`FI_CONNREQ`).
    ConnectionRequest(ConnectionRequest),
    /// An endpoint is connected (`FI_CONNECTED`).
    Connected {
        /// The endpoint, in its domain.
        endpoint: EndpointId,
        /// Its [context](crate::EndpointOptions#structfield.context).
        context: u64,
        /// What the other side gave to `accept`; nothing at the side that accepted.
        data: Vec<u8>,
    },
    /// The other side of a connection shut it down, dropped its endpoint, or is gone (`FI_SHUTDOWN`). All
    /// that has arrived is in its completion queues, or can be received.
    Shutdown {
        /// The endpoint, in its domain.
        endpoint: EndpointId,
        /// Its [context](crate::EndpointOptions#structfield.context).
        context: u64,
    },
    /// What happened to an endpoint apart from its operations and its connection, if the queue was
    /// [bound](crate::EndpointBuilder::bind_event_queue) to report that.
    Endpoint {
        /// The endpoint, in its domain.
        endpoint: EndpointId,
        /// Its [context](crate::EndpointOptions#structfield.context).
        context: u64,
        /// What happened.
        event: Event,
    },
    /// All addresses of a call of [`insert_async`](crate::AddressVector::insert_async) were inserted, or refused
    /// (`FI_AV_COMPLETE`).
    AddressesInserted {
        /// The [context](crate::AddressVectorOptions::context) of the address vector.
        vector: u64,
        /// That of the call.
        context: u64,
        /// For each address what [`insert`](crate::AddressVector::insert) would have returned.
        results: Vec<Result<FiAddr, DeviceError>>,
    },
    /// The program wrote it ([`EventQueue::write`](crate::EventQueue::write)).
    User(u64),
}

/// An attempt to connect that failed (`fi_eq_err_entry`). The endpoint is not connected, and may try again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("endpoint {endpoint}: {error}")]
#[non_exhaustive]
pub struct ControlError {
    /// The endpoint, in its domain.
    pub endpoint: EndpointId,
    /// Its [context](crate::EndpointOptions#structfield.context).
    pub context: u64,
    /// Why.
    pub error: ConnectError,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody listens at that address (`FI_ECONNREFUSED`).
    #[error("refused: nobody listens there")]
    Refused,
    /// The listener's program rejected the request.
    #[error("rejected, with {} bytes of data", data.len())]
    Rejected {
        /// What it gave to [`reject`](ConnectionRequest::reject).
        data: Vec<u8>,
    },
    /// The other side said nothing in time (`FI_ETIMEDOUT`).
    #[error("no answer within {after:?}")]
    TimedOut {
        /// The endpoint's [timeout](crate::MsgEndpointOptions::connect_timeout).
        after: Duration,
    },
    /// The other side closed the TCP connection without an answer.
    #[error("the other side closed the TCP connection without an answer")]
    Ended,
    /// The other side answered in another protocol, or another version of it.
    #[error(transparent)]
    Protocol(ProtocolError),
    /// The system can't make the TCP connection, or lost it.
    #[error("TCP connection: {reason}")]
    System {
        /// The kind of error.
        kind: std::io::ErrorKind,
        /// The system's words.
        reason: String,
    },
    /// The device can't address the other side's endpoint.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

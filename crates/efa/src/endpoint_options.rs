//! Options of an endpoint.

use efa_device::QueuePairOptions;
use efa_rdm::Config;

use crate::info::Capabilities;

/// Options of an endpoint.
///
/// ```
/// use efa::{Capabilities, EndpointOptions};
/// let options = EndpointOptions::new()
///     .capabilities(Capabilities::TAGGED | Capabilities::SOURCE)
///     .send_depth(256);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointOptions {
    /// Services to enable; all by default. Operations of other services fail with
    /// [`StartError::Disabled`](crate::StartError::Disabled).
    pub capabilities: Capabilities,
    /// Whether messages are matched and copied, or received in place.
    pub receiving: Receiving,
    /// Longest message in bytes that may be sent; unlimited by default, as in the protocol.
    pub max_message_size: u64,
    /// Connection ID (connid), a part of the endpoint's address; random if `None`.
    pub connid: Option<u32>,
    /// Seed of the hash tables that tags of peers go into; random if `None`. A peer that knows it can
    /// make the tables slow.
    pub hash_seed: Option<u64>,
    /// Most sends posted to the device.
    pub send_depth: usize,
    /// Most receive buffers posted to the device.
    pub receive_depth: usize,
    /// How often the device retries after RNR; 7: without limit.
    pub rnr_retry: u8,
    /// Settings of the protocol engine. Its `hash_seed` is ignored.
    pub protocol: Config,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        let queue_pair = QueuePairOptions::default();
        Self {
            capabilities: Capabilities::OFFERED,
            receiving: Receiving::default(),
            max_message_size: u64::MAX,
            connid: None,
            hash_seed: None,
            send_depth: queue_pair.send_depth,
            receive_depth: queue_pair.receive_depth,
            rnr_retry: queue_pair.rnr_retry,
            protocol: Config::default(),
        }
    }
}

impl EndpointOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`capabilities`](Self#structfield.capabilities).
    #[must_use]
    pub fn capabilities(self, capabilities: Capabilities) -> Self {
        Self { capabilities, ..self }
    }

    /// Sets [`receiving`](Self#structfield.receiving).
    #[must_use]
    pub fn receiving(self, receiving: Receiving) -> Self {
        Self { receiving, ..self }
    }

    /// Sets [`max_message_size`](Self#structfield.max_message_size).
    #[must_use]
    pub fn max_message_size(self, max_message_size: u64) -> Self {
        Self { max_message_size, ..self }
    }

    /// Sets [`connid`](Self#structfield.connid).
    #[must_use]
    pub fn connid(self, connid: u32) -> Self {
        Self { connid: Some(connid), ..self }
    }

    /// Sets [`hash_seed`](Self#structfield.hash_seed).
    #[must_use]
    pub fn hash_seed(self, hash_seed: u64) -> Self {
        Self { hash_seed: Some(hash_seed), ..self }
    }

    /// Sets [`send_depth`](Self#structfield.send_depth).
    #[must_use]
    pub fn send_depth(self, send_depth: usize) -> Self {
        Self { send_depth, ..self }
    }

    /// Sets [`receive_depth`](Self#structfield.receive_depth).
    #[must_use]
    pub fn receive_depth(self, receive_depth: usize) -> Self {
        Self { receive_depth, ..self }
    }

    /// Sets [`rnr_retry`](Self#structfield.rnr_retry).
    #[must_use]
    pub fn rnr_retry(self, rnr_retry: u8) -> Self {
        Self { rnr_retry, ..self }
    }

    /// Sets [`protocol`](Self#structfield.protocol).
    #[must_use]
    pub fn protocol(self, protocol: Config) -> Self {
        Self { protocol, ..self }
    }
}

/// How an endpoint receives messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Receiving {
    /// Messages of any length are matched with posted receives in the order in which they were sent,
    /// and copied into their buffers.
    #[default]
    Matched,
    /// Messages are handed over in the packets that they arrived in, without a copy
    /// ([`Endpoint::receive_in_place`](crate::Endpoint::receive_in_place)). Each message goes to the
    /// next receive, in the order of arrival.
    ///
    /// So messages have no order and no tags, and fit one packet. Longer and tagged messages and
    /// atomics are dropped with an [event](crate::Event::PacketDropped). [`Capabilities::TAGGED`],
    /// `ATOMIC`, `MULTI_RECV` and `DIRECTED_RECV` can't be enabled.
    ///
    /// The endpoint must follow a libfabric release that can receive so
    /// ([`Config::as_release`](crate::Config::as_release)): 1.13 to 1.21 ask peers for headers of a
    /// constant length; 1.22 to 2.5 have peers send without headers, to a second queue pair. The first
    /// messages of a peer, sent before it got the request, and all of old releases, have other headers;
    /// [`Config::unexpected_header`](crate::Config::unexpected_header) says what happens to those.
    InPlace,
}

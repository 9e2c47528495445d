//! Options of an endpoint.

use efa_device::QueuePairOptions;
use efa_rdm::{Config, HashSeed};

use crate::capabilities::{Capabilities, OperationFlags};
use crate::error::EnableError;
use crate::info::Info;

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
    /// Capabilities to enable; all by default. Operations of other capabilities fail with
    /// [`StartError::Disabled`](crate::StartError::Disabled).
    pub capabilities: Capabilities,
    /// The transmit side: capabilities and default flags of sends, writes, reads and atomics.
    pub transmit: ContextOptions,
    /// The receive side: capabilities and default flags of receives.
    pub receive: ContextOptions,
    /// Whether messages are matched and copied, or received in place.
    pub receiving: Receiving,
    /// Longest message in bytes that may be sent; unlimited by default, as in the protocol.
    pub max_message_size: u64,
    /// Connection ID (connid), a part of the endpoint's address, of up to 31 bits; random if `None`.
    pub connid: Option<u32>,
    /// Seed of the hash tables that tags of peers go into; random if `None`. A peer that knows it can
    /// make the tables slow.
    pub hash_seed: Option<HashSeed>,
    /// Most sends posted to the device; 1,024 by default.
    pub send_depth: usize,
    /// Most receive buffers posted to the device; 1,024 by default.
    pub receive_depth: usize,
    /// How often the device retries after RNR, 3 times by default; 7: without limit.
    pub rnr_retry: u8,
    /// Settings of the protocol engine. Its `hash_seed` is ignored.
    pub protocol: Config,
    /// A number of the program ([`Object::context`](crate::Object::context)).
    pub context: u64,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        let queue_pair = QueuePairOptions::default();
        Self {
            capabilities: Capabilities::OFFERED,
            transmit: ContextOptions::default(),
            receive: ContextOptions::default(),
            receiving: Receiving::default(),
            max_message_size: u64::MAX,
            connid: None,
            hash_seed: None,
            send_depth: queue_pair.send_depth,
            receive_depth: queue_pair.receive_depth,
            rnr_retry: queue_pair.rnr_retry,
            protocol: Config::default(),
            context: 0,
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

    /// Sets [`transmit`](Self#structfield.transmit).
    #[must_use]
    pub fn transmit(self, transmit: ContextOptions) -> Self {
        Self { transmit, ..self }
    }

    /// Sets [`receive`](Self#structfield.receive).
    #[must_use]
    pub fn receive(self, receive: ContextOptions) -> Self {
        Self { receive, ..self }
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
        Self { hash_seed: Some(hash_seed.into()), ..self }
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

    /// Sets [`context`](Self#structfield.context).
    #[must_use]
    pub fn context(self, context: u64) -> Self {
        Self { context, ..self }
    }
}

impl From<&Info> for EndpointOptions {
    /// Capabilities and default flags of an entry (`fi_endpoint`).
    fn from(info: &Info) -> Self {
        let (transmit, receive) = (&info.transmit, &info.receive);
        Self::new()
            .capabilities(info.capabilities)
            .transmit(
                ContextOptions::new().capabilities(transmit.capabilities).flags(transmit.flags),
            )
            .receive(ContextOptions::new().capabilities(receive.capabilities).flags(receive.flags))
    }
}

/// Options of the transmit or the receive side of an endpoint.
///
/// ```
/// use efa::{ContextOptions, EndpointOptions, OperationFlags};
///
/// let flags = OperationFlags::COMPLETION | OperationFlags::DELIVERY_COMPLETE;
/// let options = EndpointOptions::new().transmit(ContextOptions::new().flags(flags));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContextOptions {
    /// Capabilities of this side, which must be among those of the endpoint; `None`: all of them.
    pub capabilities: Option<Capabilities>,
    /// Flags of operations that are started without flags (`op_flags`); `None`: `COMPLETION`, on the
    /// transmit side also `TRANSMIT_COMPLETE`.
    pub flags: Option<OperationFlags>,
}

impl ContextOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`capabilities`](Self#structfield.capabilities).
    #[must_use]
    pub fn capabilities(self, capabilities: Capabilities) -> Self {
        Self { capabilities: Some(capabilities), ..self }
    }

    /// Sets [`flags`](Self#structfield.flags).
    #[must_use]
    pub fn flags(self, flags: OperationFlags) -> Self {
        Self { flags: Some(flags), ..self }
    }

    /// What one side of an endpoint with these capabilities has.
    ///
    /// # Errors
    /// The side can't have what was requested.
    pub(crate) fn resolve(
        &self,
        side: Side,
        capabilities: Capabilities,
    ) -> Result<SideProperties, EnableError> {
        let (side, offered, allowed, usual) = match side {
            Side::Transmit => (
                "transmit",
                capabilities.transmitting(),
                OperationFlags::TRANSMIT,
                OperationFlags::USUAL_TRANSMIT,
            ),
            Side::Receive => (
                "receive",
                capabilities.receiving(),
                OperationFlags::RECEIVE,
                OperationFlags::USUAL_RECEIVE,
            ),
        };
        let capabilities = self.capabilities.unwrap_or(offered);
        let beyond = capabilities - offered;
        if !beyond.is_empty() {
            return Err(EnableError::BeyondEndpoint { side, capabilities: beyond });
        }
        let flags = self.flags.unwrap_or(usual);
        if !allowed.contains(flags) {
            return Err(EnableError::NoSuchFlags { side, flags: flags - allowed });
        }
        Ok(SideProperties { capabilities: capabilities.enabled_of(offered), flags })
    }
}

/// A side of an endpoint, which has a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Transmit,
    Receive,
}

/// Capabilities and default flags of one side of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SideProperties {
    pub(crate) capabilities: Capabilities,
    pub(crate) flags: OperationFlags,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_of_options_hides_the_hash_seeds() {
        let mut options = EndpointOptions::new().hash_seed(4_711_471_147_114_711);
        options.protocol.hash_seed = 4_711_471_147_114_711.into();
        let text = format!("{options:?}");
        assert!(!text.contains("4711"), "{text}");
        assert_eq!(text.matches("hash_seed: ").count(), 2, "{text}");
    }
}

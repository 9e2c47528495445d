//! Errors other than those of operations.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use efa_device::DeviceError;
use efa_rdm::ConfigError;

use crate::capabilities::{Capabilities, Mode, OperationFlags};
use crate::counter::{Counted, CounterEvents};
use crate::discovery::Version;
use crate::name_filter::NameFilter;
use crate::scalable::NoSuchContext;

/// Why an object could not be opened or created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No provider, device or object has the requested attributes (`FI_ENODATA`).
    #[error("nothing offers the requested {wanted}")]
    NoData {
        /// The first attribute that is not offered.
        wanted: Wanted,
    },
    /// The program is written for a newer version (`FI_ENOSYS`).
    #[error("version {asked} was asked for, {newest} is the newest known")]
    Version {
        /// The program's version.
        asked: Version,
        /// The newest one that this crate knows.
        newest: Version,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl From<Wanted> for Error {
    fn from(wanted: Wanted) -> Self {
        Self::NoData { wanted }
    }
}

/// A requested attribute that is not offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wanted {
    /// Capabilities.
    #[error("capabilities {0}")]
    Capabilities(Capabilities),
    /// A provider with another name.
    #[error("provider {0}")]
    Provider(String),
    /// An interface that this machine or this link doesn't have.
    #[error("interface {0}")]
    Interface(String),
    /// A counter of events other than completions.
    #[error("counter events: {0:?}")]
    CounterEvents(CounterEvents),
    /// A named address vector, which needs the feature `sim`.
    #[error("address vector named {0}")]
    AddressVectorName(String),
    /// An address vector that is read-only, and has no name by which another process writes it.
    #[error("read-only address vector: it has no name")]
    ReadOnlyWithoutName,
    /// More bits of an address for the receive context than 16.
    #[error("receive contexts of {0} bits")]
    ReceiveContextBits(u8),
    /// Providers, by the names that are to be offered.
    #[error("providers {0}")]
    Providers(NameFilter),
    /// A fabric with another name.
    #[error("fabric {0}")]
    Fabric(String),
    /// Every entry requires mode bits that the hints don't have. These are the bits of the hints.
    #[error("mode {0:?}: every entry requires more mode bits")]
    NoMode(Mode),
    /// A service that is no port number.
    #[error("service {0}: a port number is expected")]
    Service(String),
    /// A node whose address is unknown.
    #[error("node {node}: {reason}")]
    Node {
        /// The node.
        node: String,
        /// Why.
        reason: String,
    },
    /// An address that this host doesn't have.
    #[error("address {0} of this host")]
    Source(SocketAddr),
    /// An address that can't be reached.
    #[error("way to {0}")]
    Destination(SocketAddr),
    /// Another attribute.
    #[error("{name}: {value}")]
    Attribute {
        /// Its name: that of the field of [`Hints`](crate::Hints).
        name: &'static str,
        /// The requested value.
        value: String,
    },
}

impl Wanted {
    pub(crate) fn attribute(name: &'static str, value: &impl Debug) -> Self {
        Self::Attribute { name, value: format!("{value:?}") }
    }
}

/// Why an endpoint was not enabled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnableError {
    /// Something is not bound.
    #[error("no {0} is bound")]
    Missing(Bound),
    /// Something is bound twice.
    #[error("a second {0} was bound")]
    Twice(Bound),
    /// Two counters are bound for the same operations.
    #[error("a second counter of {} was bound", names(.0))]
    CountedTwice(Counted),
    /// Something belongs to another domain.
    #[error("the {0} belongs to another domain")]
    OtherDomain(Bound),
    /// Something belongs to another fabric.
    #[error("the {0} belongs to another fabric")]
    OtherFabric(Bound),
    /// Capabilities are not offered.
    #[error("capabilities not offered: {0}")]
    NotOffered(Capabilities),
    /// Capabilities of one side that the endpoint lacks or that are of the other side.
    #[error("the {side} side of the endpoint can't have {capabilities}")]
    BeyondEndpoint {
        /// `transmit` or `receive`.
        side: &'static str,
        /// The capabilities.
        capabilities: Capabilities,
    },
    /// Default flags that operations of one side can't have.
    #[error("operations of the {side} side have no flags {flags}")]
    NoSuchFlags {
        /// `transmit` or `receive`.
        side: &'static str,
        /// The flags.
        flags: OperationFlags,
    },
    /// These capabilities can't be enabled if messages are received in place.
    #[error("messages can't be received in place by an endpoint with {0}")]
    NotInPlace(Capabilities),
    /// A context with an index that the scalable endpoint doesn't have.
    #[error(transparent)]
    NoSuchContext(#[from] NoSuchContext),
    /// A scalable endpoint with no context in a direction, or more than there can be
    /// ([`DomainLimits`](crate::DomainLimits)).
    #[error("{asked} {direction} contexts of one endpoint, there can be 1 to {limit}")]
    ContextCount {
        /// `transmit` or `receive`.
        direction: &'static str,
        /// How many contexts it was to have.
        asked: usize,
        /// How many it can have.
        limit: usize,
    },
    /// A scalable endpoint can't receive in place.
    #[error("a scalable endpoint can't receive in place")]
    ScalableInPlace,
    /// An endpoint that receives in place can't share receives.
    #[error("an endpoint that receives in place can't take receives from a shared queue")]
    SharedInPlace,
    /// An endpoint with a connection can't receive in place.
    #[error("an endpoint with a connection can't receive in place")]
    ConnectedInPlace,
    /// A number among the [options](crate::EndpointOptions) that the device can't have.
    #[error("{option} is {value}, {}", range(*most))]
    OutOfRange {
        /// The option's name.
        option: &'static str,
        /// Its value.
        value: usize,
        /// The largest value that the device allows.
        most: usize,
    },
    /// A [connid](crate::EndpointOptions::connid) of more than 31 bits. The kernel lets privileged programs alone set
    /// such a key of an EFA queue pair.
    #[error("the connid is {connid:#x}, it can be up to 0x7fffffff")]
    ConnidOutOfRange {
        /// The connid.
        connid: u32,
    },
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn range(most: usize) -> String {
    match most {
        0 => "and the device allows none".into(),
        _ => format!("it can be 1 to {most}"),
    }
}

fn names(kinds: &Counted) -> String {
    kinds.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

/// An object that is bound to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Bound {
    /// The completion queue for sends.
    #[error("completion queue for sends")]
    TransmitQueue,
    /// The completion queue for receives.
    #[error("completion queue for receives")]
    ReceiveQueue,
    /// The address vector.
    #[error("address vector")]
    AddressVector,
    /// A counter.
    #[error("counter")]
    Counter,
    /// A shared receive queue.
    #[error("shared receive queue")]
    SharedReceiveQueue,
    /// A budget of sends.
    #[error("budget of sends")]
    SendBudget,
    /// The event queue.
    #[error("event queue")]
    EventQueue,
}

/// An endpoint was closed before all that it had sent was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operations were still under way after {timeout:?}")]
pub struct CloseError {
    /// The timeout of the call.
    pub timeout: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_out_of_range_is_told_the_range_or_that_the_device_allows_none() {
        let text =
            |most| EnableError::OutOfRange { option: "send_depth", value: 8, most }.to_string();
        assert_eq!(text(4), "send_depth is 8, it can be 1 to 4");
        assert_eq!(text(0), "send_depth is 8, and the device allows none");
    }
}

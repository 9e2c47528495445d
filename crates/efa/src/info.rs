//! What can be opened (`fi_info`).

use std::fmt;
use std::net::SocketAddr;

use crate::attributes::{
    AddressFormat, DomainAttributes, DomainLimits, EndpointAttributes, ReceiveAttributes,
    TransmitAttributes,
};
use crate::capabilities::{Capabilities, Mode};

/// How packets travel between endpoints; faster links first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Link {
    /// An EFA interface of this machine, through rdma-core.
    Verbs,
    /// The software device over shared memory, between processes of one host.
    #[cfg(feature = "sim")]
    Shm,
    /// The software device over TCP, between hosts.
    #[cfg(feature = "sim")]
    Tcp,
    /// The software device on a simulated network in this process.
    #[cfg(feature = "sim")]
    Local,
}

impl Link {
    /// All links of this build.
    pub const ALL: &'static [Self] = &[
        Self::Verbs,
        #[cfg(feature = "sim")]
        Self::Shm,
        #[cfg(feature = "sim")]
        Self::Tcp,
        #[cfg(feature = "sim")]
        Self::Local,
    ];
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Verbs => "verbs",
            #[cfg(feature = "sim")]
            Self::Shm => "shm",
            #[cfg(feature = "sim")]
            Self::Tcp => "tcp",
            #[cfg(feature = "sim")]
            Self::Local => "local",
        })
    }
}

/// A fabric that can be opened ([`Fabric::open`](crate::Fabric::open)), a domain and an endpoint on it, and
/// their attributes (`fi_info`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Name of the provider: `efa`.
    pub provider: &'static str,
    /// Its version.
    pub provider_version: &'static str,
    /// Name of the fabric.
    pub fabric: String,
    /// How packets travel.
    pub link: Link,
    /// Capabilities: those requested, or all if none were.
    pub capabilities: Capabilities,
    /// Demands on the program, which it has offered to meet.
    pub mode: Mode,
    /// Format of endpoint addresses.
    pub address_format: AddressFormat,
    /// Address of this host: the requested one, or the one from which the destination is reached. `None` if
    /// the query has neither.
    pub source: Option<SocketAddr>,
    /// Address of the host and service to reach, if the query has one.
    pub destination: Option<SocketAddr>,
    /// Attributes of the transmit side of endpoints.
    pub transmit: TransmitAttributes,
    /// Attributes of the receive side of endpoints.
    pub receive: ReceiveAttributes,
    /// Attributes of endpoints.
    pub endpoint: EndpointAttributes,
    /// Attributes of domains.
    pub domain: DomainAttributes,
    /// Numbers of objects of a domain.
    pub limits: DomainLimits,
}

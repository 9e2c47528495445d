//! Fabrics: the network that devices are on.

#[cfg(feature = "sim")]
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use efa_device::DeviceError;
#[cfg(feature = "sim")]
use efa_sim::{
    local::{LocalFabric, LocalOptions},
    shm::{ShmDevice, ShmOptions},
    tcp::{TcpDevice, TcpOptions},
};

use crate::clock::Clock;
use crate::device::{Device, open_interface};
use crate::domain::Domain;
use crate::error::Error;
use crate::info::{Info, Link};
#[cfg(feature = "sim")]
use crate::resolve;

/// The name of the shm network that [`Fabric::open`] opens.
#[cfg(feature = "sim")]
const SHM_NAME: &str = "efa";

/// A network (`fi_fabric`). Clones are handles to the same network.
///
/// Objects hold what they depend on, so they may be dropped in any order: a fabric is closed with the last
/// object on it.
#[derive(Clone, Debug)]
pub struct Fabric {
    network: Network,
    clock: Clock,
}

#[derive(Clone, Debug)]
enum Network {
    /// The interface with this name, or the first.
    Verbs(Option<String>),
    #[cfg(feature = "sim")]
    Shm(ShmOptions),
    #[cfg(feature = "sim")]
    Tcp(TcpOptions),
    #[cfg(feature = "sim")]
    Local(LocalFabric),
}

impl Fabric {
    /// A network that [`discover`](crate::discover) returned, with default options: `verbs` with the
    /// interface found, `shm` with the name `efa`, `tcp` with the [source](Info::source) address (127.0.0.1 if
    /// there is none; if it stands for all addresses, the one from which other networks are reached),
    /// `local` with a network of its own.
    #[must_use]
    pub fn open(info: &Info) -> Self {
        match info.link {
            Link::Verbs => Self::verbs(Some(&info.domain.name)),
            #[cfg(feature = "sim")]
            Link::Shm => Self::shm(ShmOptions::new(SHM_NAME)),
            #[cfg(feature = "sim")]
            Link::Tcp => Self::tcp(TcpOptions::new(address_of_this_host(info.source))),
            #[cfg(feature = "sim")]
            Link::Local => Self::local(LocalOptions::default()),
        }
    }

    /// The network of the EFA interface with this name, or of the first one. Opening a domain loads libibverbs
    /// and libefa, and fails with [`DeviceError::Absent`] if they or the interface are missing.
    #[must_use]
    pub fn verbs(interface: Option<&str>) -> Self {
        let network = Network::Verbs(interface.map(str::to_owned));
        Self { network, clock: Clock::default() }
    }

    /// A network of processes on this host, over shared memory: those that use the same name. Files are
    /// created when a domain is opened.
    ///
    /// RDMA works only between processes of one PID namespace. Otherwise (containers that share
    /// `/dev/shm`) set [`rdma`](ShmOptions::rdma) to [`Rdma::NONE`](crate::sim::Rdma::NONE) on both sides.
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn shm(options: ShmOptions) -> Self {
        Self { network: Network::Shm(options), clock: Clock::default() }
    }

    /// A network over TCP, on which this host has the address in `options`; other hosts must be able to
    /// connect to it. Nothing is opened before the first domain is.
    ///
    /// A packet is acknowledged by the read of the completion queue that receives it, so a program may stop
    /// reading after its last message. What needs answers (a long message, delivery complete, remote memory)
    /// or arrives after the last read, such as the HANDSHAKE of a new peer, stays under way at the peer until
    /// this program reads again, closes the endpoint or ends; a `close` of the peer meanwhile may time out.
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn tcp(options: TcpOptions) -> Self {
        Self { network: Network::Tcp(options), clock: Clock::default() }
    }

    /// A new simulated network in this process. Each domain is a host on it.
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn local(options: LocalOptions) -> Self {
        Self { network: Network::Local(LocalFabric::new(options)), clock: Clock::default() }
    }

    /// The same network with another clock for domains opened from now on; for tests, a
    /// [`ManualClock`](crate::ManualClock).
    #[must_use]
    pub fn with_clock(self, clock: impl Into<Clock>) -> Self {
        Self { clock: clock.into(), ..self }
    }

    /// The link: how packets travel.
    #[must_use]
    pub fn link(&self) -> Link {
        match self.network {
            Network::Verbs(_) => Link::Verbs,
            #[cfg(feature = "sim")]
            Network::Shm(_) => Link::Shm,
            #[cfg(feature = "sim")]
            Network::Tcp(_) => Link::Tcp,
            #[cfg(feature = "sim")]
            Network::Local(_) => Link::Local,
        }
    }

    /// The simulated network, if it is one: for faults and statistics.
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn as_local(&self) -> Option<&LocalFabric> {
        match &self.network {
            Network::Local(network) => Some(network),
            _ => None,
        }
    }

    /// Opens a device on the network (`fi_domain`).
    ///
    /// # Errors
    /// The host lacks what the device needs, or an option is invalid.
    pub fn domain(&self) -> Result<Domain, Error> {
        let device = self.open_device()?;
        Ok(Domain::new(self.clone(), device))
    }

    fn open_device(&self) -> Result<Device, DeviceError> {
        match &self.network {
            Network::Verbs(interface) => open_interface(interface.as_deref()),
            #[cfg(feature = "sim")]
            Network::Shm(options) => Ok(ShmDevice::open(options.clone())?.into()),
            #[cfg(feature = "sim")]
            Network::Tcp(options) => Ok(TcpDevice::open(options.clone())?.into()),
            #[cfg(feature = "sim")]
            Network::Local(network) => Ok(network.open().into()),
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }
}

/// The address that other hosts connect to.
#[cfg(feature = "sim")]
fn address_of_this_host(source: Option<SocketAddr>) -> IpAddr {
    /// An address outside this host's network, for documentation.
    const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    let address = match source.map(|source| source.ip()) {
        Some(all) if all.is_unspecified() => resolve::address_towards((ELSEWHERE, 0).into()),
        one => one,
    };
    address.unwrap_or(Ipv4Addr::LOCALHOST.into())
}

//! Fabrics: the network that devices are on.

#[cfg(feature = "sim")]
use std::net::Ipv4Addr;

#[cfg(feature = "sim")]
use efa_device::Rdma;
use efa_device::{DeviceAttributes, DeviceError};
use efa_rdm::Config;
#[cfg(feature = "sim")]
use efa_sim::{
    local::{LocalFabric, LocalOptions},
    shm::{ShmDevice, ShmOptions},
    tcp::{TcpDevice, TcpOptions},
};

use crate::clock::Clock;
use crate::device::{Device, find_interfaces, open_interface};
use crate::domain::Domain;
use crate::error::{Error, Wanted};
use crate::info::{
    Capabilities, DomainAttributes, EndpointAttributes, Hints, Info, Link, Progress,
};

const PROVIDER: &str = "efa";

/// The name of the shm network that [`Fabric::open`] opens.
#[cfg(feature = "sim")]
const SHM_NAME: &str = "efa";

/// Returns matching providers, best first (`fi_getinfo`). With default hints, all.
///
/// # Errors
/// [`Error::NoData`] with the first requested attribute that is not offered.
///
/// ```
/// use efa::{Capabilities, Hints, info};
///
/// let found = info(&Hints::new().capabilities(Capabilities::TAGGED))?;
/// assert_eq!(found[0].provider, "efa");
/// assert!(found[0].endpoint.max_message_size >= 1 << 40);
/// # Ok::<(), efa::Error>(())
/// ```
pub fn info(hints: &Hints) -> Result<Vec<Info>, Error> {
    let missing = hints.capabilities - Capabilities::OFFERED;
    if !missing.is_empty() {
        return Err(Error::NoData { wanted: Wanted::Capabilities(missing) });
    }
    if let Some(provider) = hints.provider.as_ref().filter(|name| *name != PROVIDER) {
        return Err(Error::NoData { wanted: Wanted::Provider(provider.clone()) });
    }
    if let Some(progress) = hints.progress.filter(|progress| *progress != Progress::Manual) {
        return Err(Error::NoData { wanted: Wanted::Progress(progress) });
    }
    let capabilities = match hints.capabilities {
        none if none.is_empty() => Capabilities::OFFERED,
        some => some.enabled(),
    };
    let mut found = Vec::new();
    let requested = |link: &Link| hints.link.is_none_or(|requested| requested == *link);
    for link in Link::ALL.iter().copied().filter(requested) {
        let devices = match link {
            Link::Verbs => matching_interfaces(hints)?,
            // The software device has no interfaces with names. Its defaults are the same on every link.
            #[cfg(feature = "sim")]
            _ if hints.interface.is_some() => Vec::new(),
            #[cfg(feature = "sim")]
            _ => vec![DeviceAttributes {
                name: format!("{PROVIDER}-{link}"),
                rdma: Rdma::READ_WRITE,
                ..DeviceAttributes::default()
            }],
        };
        found.extend(devices.iter().map(|device| describe(link, device, capabilities)));
    }
    match (&hints.interface, found.is_empty()) {
        (Some(name), true) => Err(Error::NoData { wanted: Wanted::Interface(name.clone()) }),
        _ => Ok(found),
    }
}

/// The interfaces of this machine. None is an error only if the hints request the link `verbs`.
fn matching_interfaces(hints: &Hints) -> Result<Vec<DeviceAttributes>, Error> {
    match find_interfaces(hints.interface.as_deref()) {
        Err(error) if hints.link == Some(Link::Verbs) => Err(Error::Device(error)),
        found => Ok(found.unwrap_or_default()),
    }
}

/// Names of the EFA interfaces of this machine, as rdma-core finds them.
///
/// # Errors
/// [`DeviceError::Absent`] if there are none, with the reason and a remedy in one line.
pub fn interfaces() -> Result<Vec<String>, DeviceError> {
    Ok(find_interfaces(None)?.into_iter().map(|interface| interface.name).collect())
}

fn describe(link: Link, device: &DeviceAttributes, capabilities: Capabilities) -> Info {
    let config = Config::default();
    Info {
        provider: PROVIDER,
        provider_version: env!("CARGO_PKG_VERSION"),
        fabric: format!("{PROVIDER}-{link}"),
        link,
        capabilities,
        endpoint: EndpointAttributes::of(&config, efa_rdm::inject_limit(device.mtu), u64::MAX),
        domain: DomainAttributes::of(device),
    }
}

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
    /// A network that [`info`] returned, with default options: `verbs` with the interface found, `shm` with
    /// the name `efa`, `tcp` with the address 127.0.0.1, `local` with a network of its own.
    #[must_use]
    pub fn open(info: &Info) -> Self {
        match info.link {
            Link::Verbs => Self::verbs(Some(&info.domain.name)),
            #[cfg(feature = "sim")]
            Link::Shm => Self::shm(ShmOptions::new(SHM_NAME)),
            #[cfg(feature = "sim")]
            Link::Tcp => Self::tcp(TcpOptions::new(Ipv4Addr::LOCALHOST)),
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

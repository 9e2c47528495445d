//! Fabrics: a network with everything on it.

use std::net::Ipv4Addr;

use efa_device::{DeviceAttributes, DeviceError, Rdma};
use efa_rdm::Config;
use efa_sim::local::{LocalFabric, LocalOptions};
use efa_sim::shm::{ShmDevice, ShmOptions};
use efa_sim::tcp::{TcpDevice, TcpOptions};

use crate::clock::Clock;
use crate::device::{Device, find_interfaces, open_interface};
use crate::domain::Domain;
use crate::error::{Error, Wanted};
use crate::info::{
    Capabilities, DomainAttributes, EndpointAttributes, Hints, Info, Link, Progress,
};

const PROVIDER: &str = "efa";

/// The host that [`Fabric::open`] opens.
const SHM_NAME: &str = "efa";

/// What there is that meets the hints, the best first. Without hints, everything.
///
/// # Errors
/// [`Error::NoData`] tells which wish can't be met.
///
/// ```
/// use efa::{Capabilities, Hints, info};
///
/// let messages = Hints { capabilities: Capabilities::TAGGED, ..Hints::default() };
/// let found = info(&messages)?;
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
    for link in Link::ALL.into_iter().filter(|link| hints.link.is_none_or(|wanted| wanted == *link))
    {
        let devices = match link {
            Link::Verbs => wanted_interfaces(hints)?,
            // They have no names, and the defaults are those of every link.
            _ if hints.interface.is_some() => Vec::new(),
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

/// The interfaces of this machine. None is an error only if one was asked for.
fn wanted_interfaces(hints: &Hints) -> Result<Vec<DeviceAttributes>, Error> {
    match find_interfaces(hints.interface.as_deref()) {
        Err(error) if hints.link == Some(Link::Verbs) => Err(Error::Device(error)),
        found => Ok(found.unwrap_or_default()),
    }
}

/// The names of the EFA interfaces of this machine, those that rdma-core finds.
///
/// # Errors
/// [`DeviceError::Absent`] says in one line why there are none, and what to do.
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

/// A network. Clones are handles to the same one.
///
/// Objects hold what they depend on: a fabric lives until the last object on it is dropped, so no
/// order of drops is wrong.
#[derive(Clone, Debug)]
pub struct Fabric {
    network: Network,
    clock: Clock,
}

#[derive(Clone, Debug)]
enum Network {
    /// The interface of this name, or the first.
    Verbs(Option<String>),
    Shm(ShmOptions),
    Tcp(TcpOptions),
    Local(LocalFabric),
}

impl Fabric {
    /// One of the networks that [`info`] found, as it is by default: `verbs` by the interface that
    /// was found, `shm` with the processes that open it the same way, `tcp` by the address
    /// 127.0.0.1, `local` alone.
    #[must_use]
    pub fn open(info: &Info) -> Self {
        match info.link {
            Link::Verbs => Self::verbs(Some(&info.domain.name)),
            Link::Shm => Self::shm(ShmOptions::new(SHM_NAME)),
            Link::Tcp => Self::tcp(TcpOptions::new(Ipv4Addr::LOCALHOST)),
            Link::Local => Self::local(LocalOptions::default()),
        }
    }

    /// What can be reached by the interface of this name, or by the first EFA interface, of this
    /// machine. Nothing is opened before a domain is. That loads libibverbs and libefa, and fails with
    /// [`DeviceError::Absent`] where they or the interface are missing.
    #[must_use]
    pub fn verbs(interface: Option<&str>) -> Self {
        let network = Network::Verbs(interface.map(str::to_owned));
        Self { network, clock: Clock::default() }
    }

    /// The processes of this host that give the same name. Nothing is touched before a domain is
    /// opened.
    #[must_use]
    pub fn shm(options: ShmOptions) -> Self {
        Self { network: Network::Shm(options), clock: Clock::default() }
    }

    /// The hosts that can be reached over TCP, with this one among them by the address given.
    /// Nothing is touched before a domain is opened.
    #[must_use]
    pub fn tcp(options: TcpOptions) -> Self {
        Self { network: Network::Tcp(options), clock: Clock::default() }
    }

    /// A new network in this process, on which every domain is a host of its own.
    #[must_use]
    pub fn local(options: LocalOptions) -> Self {
        Self { network: Network::Local(LocalFabric::new(options)), clock: Clock::default() }
    }

    /// The same network, for domains that live in another time: for tests, with a
    /// [`ManualClock`](crate::ManualClock).
    #[must_use]
    pub fn with_clock(self, clock: impl Into<Clock>) -> Self {
        Self { clock: clock.into(), ..self }
    }

    /// How packets travel.
    #[must_use]
    pub fn link(&self) -> Link {
        match self.network {
            Network::Verbs(_) => Link::Verbs,
            Network::Shm(_) => Link::Shm,
            Network::Tcp(_) => Link::Tcp,
            Network::Local(_) => Link::Local,
        }
    }

    /// The network in this process, for its faults and statistics, if it is one.
    #[must_use]
    pub fn as_local(&self) -> Option<&LocalFabric> {
        match &self.network {
            Network::Local(network) => Some(network),
            _ => None,
        }
    }

    /// Opens a domain: a device on the network.
    ///
    /// # Errors
    /// The host refuses what the device needs, or an option makes no sense.
    pub fn domain(&self) -> Result<Domain, Error> {
        let device = self.open_device()?;
        Ok(Domain::new(self.clone(), device))
    }

    fn open_device(&self) -> Result<Device, DeviceError> {
        match &self.network {
            Network::Verbs(interface) => open_interface(interface.as_deref()),
            Network::Shm(options) => Ok(ShmDevice::open(options.clone())?.into()),
            Network::Tcp(options) => Ok(TcpDevice::open(options.clone())?.into()),
            Network::Local(network) => Ok(network.open().into()),
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }
}

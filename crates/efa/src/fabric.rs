//! Fabrics: a network with everything on it.

use std::net::Ipv4Addr;

use efa_device::{DeviceAttributes, DeviceError};
use efa_rdm::Config;
use efa_sim::local::{LocalFabric, LocalOptions};
use efa_sim::shm::{ShmDevice, ShmOptions};
use efa_sim::tcp::{TcpDevice, TcpOptions};

use crate::clock::Clock;
use crate::device::Device;
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
    let links = Link::ALL.into_iter();
    let found = links.filter(|link| hints.link.is_none_or(|wanted| wanted == *link));
    Ok(found.map(|link| describe(link, capabilities)).collect())
}

fn describe(link: Link, capabilities: Capabilities) -> Info {
    // The defaults of every link.
    let device = DeviceAttributes { name: format!("efa-{link}"), ..DeviceAttributes::default() };
    let config = Config::default();
    Info {
        provider: PROVIDER,
        provider_version: env!("CARGO_PKG_VERSION"),
        fabric: format!("{PROVIDER}-{link}"),
        link,
        capabilities,
        endpoint: EndpointAttributes::of(&config, efa_rdm::inject_limit(device.mtu), u64::MAX),
        domain: DomainAttributes::of(&device),
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
    Shm(ShmOptions),
    Tcp(TcpOptions),
    Local(LocalFabric),
}

impl Fabric {
    /// One of the networks that [`info`] found, as it is by default: `shm` with the processes that
    /// open it the same way, `tcp` by the address 127.0.0.1, `local` alone.
    #[must_use]
    pub fn open(info: &Info) -> Self {
        match info.link {
            Link::Shm => Self::shm(ShmOptions::new(SHM_NAME)),
            Link::Tcp => Self::tcp(TcpOptions::new(Ipv4Addr::LOCALHOST)),
            Link::Local => Self::local(LocalOptions::default()),
        }
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
            Network::Shm(_) => Link::Shm,
            Network::Tcp(_) => Link::Tcp,
            Network::Local(_) => Link::Local,
        }
    }

    /// The network in this process, for its faults and statistics, if it is one.
    #[must_use]
    pub fn as_local(&self) -> Option<&LocalFabric> {
        match &self.network {
            Network::Shm(_) | Network::Tcp(_) => None,
            Network::Local(network) => Some(network),
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
            Network::Shm(options) => Ok(ShmDevice::open(options.clone())?.into()),
            Network::Tcp(options) => Ok(TcpDevice::open(options.clone())?.into()),
            Network::Local(network) => Ok(network.open().into()),
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }
}

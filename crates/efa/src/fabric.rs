//! Fabrics: the network that devices are on.

#[cfg(feature = "sim")]
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use std::fmt;
use std::sync::{Arc, Weak};
#[cfg(feature = "sim")]
use std::time::Instant;

use efa_device::{DeviceError, Time};
#[cfg(feature = "sim")]
use efa_sim::{
    local::{LocalFabric, LocalOptions},
    shm::{ShmDevice, ShmOptions},
    tcp::{TcpDevice, TcpOptions},
};
use parking_lot::Mutex;

use crate::clock::Clock;
#[cfg(feature = "sim")]
use crate::connection::pipe::Switchboard;
use crate::device::{Device, open_interface};
use crate::domain::{Domain, DomainOptions, WeakDomain};
use crate::error::Error;
use crate::info::{Info, Link};
#[cfg(feature = "sim")]
use crate::link_options::{LinkOptions, SHM_NAME};
#[cfg(feature = "sim")]
use crate::resolve;
use crate::wait::{self, TryWaitError, WaitSet, Waitable};
#[cfg(feature = "tokio")]
use crate::with_tokio::Hubs;

/// A network (`fi_fabric`). Clones are handles to the same network.
///
/// Objects hold what they depend on, so they may be dropped in any order: a fabric is closed with the last
/// object on it.
#[derive(Clone)]
pub struct Fabric(Arc<Shared>);

struct Shared {
    network: Network,
    clock: Clock,
    context: u64,
    domains: Mutex<Vec<WeakDomain>>,
    /// Of its connections in programs of tokio.
    #[cfg(feature = "tokio")]
    hubs: Hubs,
}

/// All fabrics of this process, also some that are closed.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

#[derive(Clone, Debug)]
enum Network {
    /// The interface with this name, or the first.
    Verbs(Option<String>),
    #[cfg(feature = "sim")]
    Shm(ShmOptions),
    #[cfg(feature = "sim")]
    Tcp(TcpOptions),
    #[cfg(feature = "sim")]
    Local(LocalFabric, Arc<Switchboard>),
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
            _ => Self::open_with(info, LinkOptions::default()),
        }
    }

    /// The same with options of the links `shm` and `tcp`. Attributes of the entry that they change are then not those
    /// of the domain.
    ///
    /// ```
    /// use efa::{Environment, Fabric, Hints, Link, info};
    ///
    /// let environment = Environment::of([("FI_EFARS_SHM_MTU", "4096")]);
    /// let entry = &info(&Hints::new().link(Link::Shm))?[0];
    /// let domain = Fabric::open_with(entry, environment.links).domain_with(entry.into())?;
    /// assert_eq!(domain.attributes().mtu, 4096);
    /// # Ok::<(), efa::Error>(())
    /// ```
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn open_with(info: &Info, options: LinkOptions) -> Self {
        let LinkOptions { shm, mut tcp } = options;
        match info.link {
            Link::Verbs => Self::verbs(Some(&info.domain.name)),
            Link::Shm => Self::shm(shm),
            Link::Tcp => {
                tcp.address = address_of_this_host(info.source);
                Self::tcp(tcp)
            }
            Link::Local => Self::local(LocalOptions::default()),
        }
    }

    /// The network of the EFA interface with this name, or of the first one. Opening a domain loads libibverbs
    /// and libefa, and fails with [`DeviceError::Absent`] if they or the interface are missing.
    #[must_use]
    pub fn verbs(interface: Option<&str>) -> Self {
        let network = Network::Verbs(interface.map(str::to_owned));
        Self::new(network, Clock::default(), 0)
    }

    /// A network of processes on this host, over shared memory: those that use the same name. Files are
    /// created when a domain is opened.
    ///
    /// The kernel copies RDMA between processes of one PID namespace. Otherwise, as between containers that share the
    /// directory, or without [`kernel_copies`](ShmOptions::kernel_copies), the target carries it out when it
    /// progresses.
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn shm(options: ShmOptions) -> Self {
        Self::new(Network::Shm(options), Clock::default(), 0)
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
        Self::new(Network::Tcp(options), Clock::default(), 0)
    }

    /// A new simulated network in this process. Each domain is a host on it.
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn local(options: LocalOptions) -> Self {
        // Streams get random numbers of their own: connections don't change the fate of packets.
        let switchboard = Switchboard::new(options.seed, options.delay.end);
        let network = Network::Local(LocalFabric::new(options), switchboard);
        Self::new(network, Clock::Host(Instant::now()), 0)
    }

    /// The same network with another clock for domains opened from now on; for tests, a
    /// [`ManualClock`](crate::ManualClock).
    #[must_use]
    pub fn with_clock(self, clock: impl Into<Clock>) -> Self {
        Self::new(self.0.network.clone(), clock.into(), self.0.context)
    }

    /// The same network with a number of the program, which [`Object::context`](crate::Object::context)
    /// returns.
    #[must_use]
    pub fn with_context(self, context: u64) -> Self {
        Self::new(self.0.network.clone(), self.0.clock.clone(), context)
    }

    /// The link: how packets travel.
    #[must_use]
    pub fn link(&self) -> Link {
        match self.0.network {
            Network::Verbs(_) => Link::Verbs,
            #[cfg(feature = "sim")]
            Network::Shm(_) => Link::Shm,
            #[cfg(feature = "sim")]
            Network::Tcp(_) => Link::Tcp,
            #[cfg(feature = "sim")]
            Network::Local(..) => Link::Local,
        }
    }

    /// The simulated network, if it is one: for faults and statistics.
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn as_local(&self) -> Option<&LocalFabric> {
        match &self.0.network {
            Network::Local(network, _) => Some(network),
            _ => None,
        }
    }

    /// Whether a thread may sleep on the descriptors of these objects (`fi_trywait`). After `Ok` each
    /// descriptor becomes readable when its object has something to be read. It may also become readable for
    /// nothing. Call it before each sleep.
    ///
    /// With a [`ManualClock`](crate::ManualClock) nobody wakes a thread because time has passed: advance the clock
    /// instead, as the calls that block do.
    ///
    /// # Errors
    /// [`TryWaitError::Pending`]: an object has something to be read now.
    /// [`TryWaitError::NotWaitable`], [`TryWaitError::Device`].
    pub fn try_wait(&self, objects: &[&dyn Waitable]) -> Result<(), TryWaitError> {
        objects.iter().try_for_each(|object| wait::prepare(object.source().as_ref()))
    }

    /// A set of objects to be waited on together (`fi_wait_open`); they join it by
    /// [`Wait::Set`](crate::Wait::Set).
    ///
    /// # Errors
    /// The system has no file descriptors left.
    pub fn wait_set(&self) -> Result<WaitSet, Error> {
        Ok(WaitSet::new()?)
    }

    /// Opens a device on the network with default options (`fi_domain`). What an entry of discovery says of its domain,
    /// such as its progress, is in [`DomainOptions::from`] the entry, for [`domain_with`](Self::domain_with).
    ///
    /// # Errors
    /// The host lacks what the device needs, or an option is invalid.
    pub fn domain(&self) -> Result<Domain, Error> {
        self.domain_with(DomainOptions::default())
    }

    /// Opens a device on the network, with options (`fi_domain`).
    ///
    /// # Errors
    /// As for [`domain`](Self::domain). With automatic progress also
    /// [`DeviceError::Unsupported`](crate::DeviceError::Unsupported) if the device can't notify, and
    /// [`Error::NoData`] with a manual clock.
    pub fn domain_with(&self, options: DomainOptions) -> Result<Domain, Error> {
        let device = self.open_device(options.interface.as_deref())?;
        let domain = Domain::new(self.clone(), device, options)?;
        self.add(&domain);
        Ok(domain)
    }

    /// Adds a domain to the open ones.
    pub(crate) fn add(&self, domain: &Domain) {
        let mut domains = self.0.domains.lock();
        domains.retain(WeakDomain::is_open);
        domains.push(domain.downgrade());
    }

    fn new(network: Network, clock: Clock, context: u64) -> Self {
        let fabric = Self(Arc::new(Shared {
            network,
            clock,
            context,
            domains: Mutex::default(),
            #[cfg(feature = "tokio")]
            hubs: Hubs::default(),
        }));
        let mut open = OPEN.lock();
        open.retain(|fabric| fabric.strong_count() > 0);
        open.push(Arc::downgrade(&fabric.0));
        drop(open);
        fabric
    }

    /// The open fabrics that [`open`](Self::open) would open again for this entry, the oldest first.
    pub(crate) fn open_ones(info: &Info) -> Vec<Self> {
        let open: Vec<_> = OPEN.lock().iter().filter_map(Weak::upgrade).map(Self).collect();
        // Not under the lock: the last handle may be dropped here.
        open.into_iter().filter(|fabric| fabric.fits(info)).collect()
    }

    fn fits(&self, info: &Info) -> bool {
        match (&self.0.network, info.link) {
            (Network::Verbs(interface), Link::Verbs) => {
                interface.as_ref() == Some(&info.domain.name)
            }
            #[cfg(feature = "sim")]
            (Network::Shm(options), Link::Shm) => {
                options.name == SHM_NAME && options.directory.is_none()
            }
            #[cfg(feature = "sim")]
            (Network::Tcp(options), Link::Tcp) => {
                options.address == address_of_this_host(info.source)
            }
            #[cfg(feature = "sim")]
            (Network::Local(..), Link::Local) => true,
            #[cfg(feature = "sim")]
            _ => false,
        }
    }

    /// Its open domains, the oldest first.
    pub(crate) fn open_domains(&self) -> Vec<Domain> {
        self.0.domains.lock().iter().filter_map(WeakDomain::upgrade).collect()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn hubs(&self) -> &Hubs {
        &self.0.hubs
    }

    pub(crate) fn user_context(&self) -> u64 {
        self.0.context
    }

    /// Whether both are handles to the same fabric.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn open_device(&self, wanted: Option<&str>) -> Result<Device, DeviceError> {
        // For the driver of each endpoint and the memory of each region. Without it they are slower.
        efa_lock::allow_bias();
        match &self.0.network {
            Network::Verbs(interface) => open_interface(wanted.or(interface.as_deref())),
            #[cfg(feature = "sim")]
            Network::Shm(options) => Ok(ShmDevice::open(options.clone())?.into()),
            #[cfg(feature = "sim")]
            Network::Tcp(options) => Ok(TcpDevice::open(options.clone())?.into()),
            #[cfg(feature = "sim")]
            Network::Local(network, _) => Ok(network.open().into()),
        }
    }

    /// What joins the connections of a simulated network. Those of other networks are TCP connections.
    #[cfg(feature = "sim")]
    pub(crate) fn switchboard(&self) -> Option<&Arc<Switchboard>> {
        match &self.0.network {
            Network::Local(_, switchboard) => Some(switchboard),
            _ => None,
        }
    }

    /// The time of its clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.0.clock.now()
    }

    /// The clock that its endpoints take the time from.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { network, clock, context, .. } = &*self.0;
        f.debug_struct("Fabric")
            .field("network", network)
            .field("clock", clock)
            .field("context", context)
            .finish()
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

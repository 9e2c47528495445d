//! Discovery: what this machine offers that a program can use.
//!
//! ```text
//!   Query ─► version ─► capabilities, provider ─► an Info for each link, device and endpoint type
//!                                                       │
//!            node, service ─► addresses ────────────────┤ leave those that meet each wish in turn;
//!            hints, attribute by attribute ─────────────┤ none left: NoData with that wish
//!                                                       ▼
//!                                            entries, filled in, the best first
//! ```

use std::fmt;
use std::net::SocketAddr;

#[cfg(feature = "sim")]
use efa_device::Rdma;
use efa_device::{DeviceAttributes, DeviceError};
use efa_rdm::Config;

use crate::attributes::{
    DomainAttributes, DomainLimits, EndpointAttributes, EndpointHints, EndpointKind,
    LocalRegistration, ReceiveAttributes, TransmitAttributes,
};
use crate::capabilities::{Capabilities, Mode, OperationFlags};
use crate::device::{Found, find_interfaces};
use crate::domain::{Domain, DomainOptions};
use crate::endpoint_options::EndpointOptions;
use crate::error::{Error, Wanted};
use crate::fabric::Fabric;
use crate::hints::{Hints, Narrow};
use crate::info::{Info, Link};
use crate::name_filter::NameFilter;
use crate::resolve::{self, AddressFamily};

const PROVIDER: &str = "efa";

/// A version of libfabric's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Before the point.
    pub major: u16,
    /// After the point.
    pub minor: u16,
}

impl Version {
    /// The newest one that this crate knows.
    pub const NEWEST: Self = Self::new(2, 6);

    /// The version `major.minor`.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }
}

/// Prints `1.4`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What the node and service of a query name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Named {
    /// A peer that the program wants to reach.
    #[default]
    Destination,
    /// This host, where the program waits for others (`FI_SOURCE`).
    Source,
}

/// A question to [`discover`] (the arguments of `fi_getinfo`).
///
/// ```
/// use efa::{Hints, Link, Query, Version};
///
/// let hints = Hints::new().with(|hints| hints.endpoint.max_message_size = Some(1 << 30));
/// let client = Query::new(Version::new(1, 4)).node("localhost").service("7471").hints(hints);
/// let server = Query::new(Version::new(1, 4)).service("7471").source();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Query {
    /// The version that the program is written for.
    pub version: Version,
    /// Name or IP address of a host.
    pub node: Option<String>,
    /// A TCP port number. Names of services aren't looked up: they are [`Wanted::Service`].
    pub service: Option<String>,
    /// What node and service name.
    pub named: Named,
    /// The family of the addresses that node and service stand for. By default the first that the system names, and
    /// IPv4 without a node.
    pub family: Option<AddressFamily>,
    /// Names of providers and fabrics that are offered (`FI_PROVIDER`); all by default.
    pub providers: NameFilter,
    /// Requested attributes.
    pub hints: Hints,
    /// Options that the program opens its endpoints with: entries have the limits that follow from them.
    pub options: EndpointOptions,
}

impl Query {
    /// All that there is, for a program written for this version.
    #[must_use]
    pub fn new(version: Version) -> Self {
        Self {
            version,
            node: None,
            service: None,
            named: Named::default(),
            family: None,
            providers: NameFilter::default(),
            hints: Hints::default(),
            options: EndpointOptions::default(),
        }
    }

    /// Sets [`node`](Self#structfield.node).
    #[must_use]
    pub fn node(self, node: impl Into<String>) -> Self {
        Self { node: Some(node.into()), ..self }
    }

    /// Sets [`service`](Self#structfield.service).
    #[must_use]
    pub fn service(self, service: impl Into<String>) -> Self {
        Self { service: Some(service.into()), ..self }
    }

    /// Lets node and service name this host (`FI_SOURCE`). Without a node, all its addresses.
    #[must_use]
    pub fn source(self) -> Self {
        Self { named: Named::Source, ..self }
    }

    /// Sets [`family`](Self#structfield.family).
    #[must_use]
    pub fn family(self, family: AddressFamily) -> Self {
        Self { family: Some(family), ..self }
    }

    /// Sets [`providers`](Self#structfield.providers), usually to
    /// [`Environment::providers`](crate::Environment#structfield.providers).
    #[must_use]
    pub fn providers(self, providers: NameFilter) -> Self {
        Self { providers, ..self }
    }

    /// Sets [`hints`](Self#structfield.hints).
    #[must_use]
    pub fn hints(self, hints: Hints) -> Self {
        Self { hints, ..self }
    }

    /// Sets [`options`](Self#structfield.options), usually to
    /// [`Environment::endpoint`](crate::Environment#structfield.endpoint).
    #[must_use]
    pub fn options(self, options: EndpointOptions) -> Self {
        Self { options, ..self }
    }

    /// Source and destination: those of the hints, or of node and service if these are given.
    fn addresses(&self) -> Result<(Option<SocketAddr>, Option<SocketAddr>), Wanted> {
        let (source, destination) = (self.hints.source, self.hints.destination);
        if self.node.is_none() && self.service.is_none() {
            return Ok((source, destination));
        }
        let port = self.service.as_deref().map_or(Ok(0), resolve::port)?;
        let family = self.family.unwrap_or(AddressFamily::Ipv4);
        let named = match (&self.node, self.named) {
            (Some(node), _) => resolve::node(node, port, self.family)?,
            (None, Named::Destination) => SocketAddr::new(family.loopback(), port),
            (None, Named::Source) => SocketAddr::new(family.unspecified(), port),
        };
        Ok(match self.named {
            Named::Destination => (source, Some(named)),
            Named::Source => (Some(named), destination),
        })
    }
}

/// Returns what meets the query (`fi_getinfo`): an entry for each endpoint type and each link, the best
/// first. Each meets every hint, and what was left open is filled in.
///
/// Entries with a destination have the address of this host from which it is reached. The links `shm` and
/// `local` have entries only for destinations on this host. A node that is no IP address is looked up by
/// the system, for at most 5 seconds.
///
/// # Errors
/// [`Error::Version`] if the version is newer than [`Version::NEWEST`]; [`Error::NoData`] with the first wish
/// that can't be met; [`Error::Device`] if the hints request the link `verbs` and this machine has no
/// interface.
///
/// ```
/// use efa::{Hints, Query, Version, discover};
///
/// let hints = Hints::new().with(|hints| hints.transmit.inject_size = Some(64));
/// let found = discover(&Query::new(Version::new(1, 4)).hints(hints))?;
/// assert!(found.iter().all(|info| info.transmit.inject_size >= 64));
///
/// let newer = Version::new(9, 0);
/// let error = discover(&Query::new(newer)).unwrap_err();
/// assert_eq!(error.to_string(), "version 9.0 was asked for, 2.6 is the newest known");
/// # Ok::<(), efa::Error>(())
/// ```
pub fn discover(query: &Query) -> Result<Vec<Info>, Error> {
    let Query { version, hints, .. } = query;
    if *version > Version::NEWEST {
        return Err(Error::Version { asked: *version, newest: Version::NEWEST });
    }
    let missing = hints.capabilities - Capabilities::OFFERED;
    if !missing.is_empty() {
        return Err(Wanted::Capabilities(missing).into());
    }
    if let Some(provider) = hints.provider.as_ref().filter(|name| *name != PROVIDER) {
        return Err(Wanted::Provider(provider.clone()).into());
    }
    let (source, destination) = query.addresses()?;
    let mut entries = entries(hints, &query.options)?;
    entries.narrow(
        |info| query.providers.allows(&[info.provider, &info.fabric]),
        || Wanted::Providers(query.providers.clone()),
    )?;
    if let Some(source) = source {
        entries.narrow(|info| info.listen_at(source), || Wanted::Source(source))?;
    }
    if let Some(destination) = destination {
        entries.narrow(|info| info.reach(destination), || Wanted::Destination(destination))?;
    }
    entries.iter_mut().for_each(|info| info.offer_contexts(&hints.endpoint));
    hints.narrow(&mut entries)?;
    for entry in &mut entries {
        entry.complete(
            hints.transmit.flags.unwrap_or(OperationFlags::USUAL_TRANSMIT),
            hints.receive.flags.unwrap_or(OperationFlags::USUAL_RECEIVE),
        );
    }
    Ok(entries)
}

/// Returns what meets the hints, the best first: [`discover`] without addresses, for the newest version.
///
/// # Errors
/// As [`discover`].
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
    discover(&Query::new(Version::NEWEST).hints(hints.clone()))
}

/// Names of the EFA interfaces of this machine, as rdma-core finds them.
///
/// # Errors
/// [`DeviceError::Absent`] if there are none, with the reason and a remedy in one line.
pub fn interfaces() -> Result<Vec<String>, DeviceError> {
    Ok(find_interfaces(None)?.into_iter().map(|interface| interface.attributes.name).collect())
}

/// An entry for each link, device and endpoint type; at least one.
fn entries(hints: &Hints, endpoint: &EndpointOptions) -> Result<Vec<Info>, Error> {
    let mut entries = Vec::new();
    let requested = |link: &Link| hints.link.is_none_or(|requested| requested == *link);
    for link in Link::ALL.iter().copied().filter(requested) {
        let devices = match link {
            Link::Verbs => matching_interfaces(hints)?,
            // The software device has no interfaces with names. Its defaults are the same on every link.
            #[cfg(feature = "sim")]
            _ if hints.interface.is_some() => Vec::new(),
            #[cfg(feature = "sim")]
            _ => vec![Found { attributes: soft_device(link), notifies: true }],
        };
        let capabilities = match hints.capabilities {
            none if none.is_empty() => Capabilities::OFFERED,
            some => some.enabled(),
        };
        for Found { attributes, notifies } in &devices {
            let options = DomainOptions::wanted(&hints.domain, *notifies);
            let kinds = EndpointKind::OFFERED.iter();
            entries.extend(kinds.map(|kind| {
                let info = describe(link, attributes, *kind, &options, capabilities);
                info.with_limits_of(endpoint, capabilities)
            }));
        }
    }
    match &hints.interface {
        Some(name) if entries.is_empty() => Err(Wanted::Interface(name.clone()).into()),
        _ => Ok(entries),
    }
}

/// The interfaces of this machine. None is an error if no other link is left.
fn matching_interfaces(hints: &Hints) -> Result<Vec<Found>, Error> {
    match find_interfaces(hints.interface.as_deref()) {
        Err(error) if hints.link == Some(Link::Verbs) || Link::ALL == [Link::Verbs] => {
            Err(Error::Device(error))
        }
        found => Ok(found.unwrap_or_default()),
    }
}

/// The software device as [`Fabric::open`](crate::Fabric::open) opens it.
#[cfg(feature = "sim")]
fn soft_device(link: Link) -> DeviceAttributes {
    let hardware = DeviceAttributes::default();
    DeviceAttributes {
        name: format!("{PROVIDER}-{link}"),
        rdma: Rdma::READ_WRITE,
        max_queue_pairs: match link {
            Link::Local => efa_sim::local::LocalOptions::default().max_queue_pairs,
            _ => usize::from(u16::MAX),
        },
        reads_pay_from: match link {
            Link::Shm => efa_sim::shm::reads_pay_from(),
            _ => hardware.reads_pay_from,
        },
        mapped_reads_pay_from: match link {
            Link::Shm => efa_sim::shm::MAPPED_READS_PAY_FROM,
            _ => hardware.mapped_reads_pay_from,
        },
        ..hardware
    }
}

fn describe(
    link: Link,
    device: &DeviceAttributes,
    kind: EndpointKind,
    options: &DomainOptions,
    capabilities: Capabilities,
) -> Info {
    let config = Config::default();
    let inject_size = efa_rdm::inject_limit(device.mtu);
    let mode = match options.local_registration {
        LocalRegistration::NotNeeded => Mode::empty(),
        LocalRegistration::Required => Mode::LOCAL_MR,
    };
    Info {
        provider: PROVIDER,
        provider_version: env!("CARGO_PKG_VERSION"),
        fabric: format!("{PROVIDER}-{link}"),
        link,
        capabilities,
        mode,
        address_format: kind.address_format(),
        source: None,
        destination: None,
        transmit: TransmitAttributes {
            mode,
            ..TransmitAttributes::of(capabilities, &config, inject_size)
        },
        receive: ReceiveAttributes { mode, ..ReceiveAttributes::of(capabilities, &config) },
        endpoint: EndpointAttributes::of(kind, &config, u64::MAX),
        domain: DomainAttributes::of(device, options),
        limits: DomainLimits::of(device),
    }
}

impl Info {
    /// The entry with the limits of an endpoint that is opened with these options.
    fn with_limits_of(mut self, options: &EndpointOptions, capabilities: Capabilities) -> Self {
        let (config, mode) = (&options.protocol, self.mode);
        let inject_size = self.transmit.inject_size;
        self.transmit = TransmitAttributes {
            mode,
            ..TransmitAttributes::of(capabilities, config, inject_size)
        };
        self.receive = ReceiveAttributes { mode, ..ReceiveAttributes::of(capabilities, config) };
        self.endpoint =
            EndpointAttributes::of(self.endpoint.kind, config, options.max_message_size);
        self
    }

    /// An entry for an endpoint that accepts a request, with the addresses of the listener and the caller.
    pub(crate) fn of_request(
        link: Link,
        domain: &Domain,
        (listener, caller): (SocketAddr, SocketAddr),
    ) -> Self {
        let (device, options) = (domain.device().attributes(), DomainOptions::default());
        let mut info =
            describe(link, device, EndpointKind::Connected, &options, Capabilities::OFFERED);
        info.complete(OperationFlags::USUAL_TRANSMIT, OperationFlags::USUAL_RECEIVE);
        Self { source: Some(listener), destination: Some(caller), ..info }
    }

    /// Fills in default flags, and the capabilities of each side.
    fn complete(&mut self, transmit: OperationFlags, receive: OperationFlags) {
        let capabilities = self.capabilities;
        let sides = (&mut self.transmit, &mut self.receive);
        sides.0.flags = transmit;
        sides.0.capabilities = sides.0.capabilities.enabled_of(capabilities.transmitting());
        sides.1.flags = receive;
        sides.1.capabilities = sides.1.capabilities.enabled_of(capabilities.receiving());
    }

    /// An open fabric of this process that fits the entry (`fi_fabric_attr.fabric`): the oldest on the same
    /// network.
    #[must_use]
    pub fn open_fabric(&self) -> Option<Fabric> {
        Fabric::open_ones(self).into_iter().next()
    }

    /// An open domain of this process that fits the entry (`fi_domain_attr.domain`): the oldest with these
    /// attributes, registration mode and progress included, on an open fabric that fits.
    ///
    /// ```
    /// use efa::{Fabric, Hints, Link, LocalOptions, info};
    ///
    /// let domain = Fabric::local(LocalOptions::default()).domain()?;
    /// let entry = &info(&Hints::new().link(Link::Local))?[0];
    /// let found = entry.open_domain().ok_or("none is open")?;
    /// assert!(found.is(&domain) && found.fabric().is(domain.fabric()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn open_domain(&self) -> Option<Domain> {
        let fits = |domain: &Domain| {
            // Any domain has address vectors of both types. The name of an interface is that of the fabric.
            let DomainAttributes { name, address_vector, .. } = self.domain.clone();
            DomainAttributes { name, address_vector, ..domain.attributes() } == self.domain
                && domain.limits() == self.limits
        };
        let fabrics = Fabric::open_ones(self).into_iter();
        fabrics.flat_map(|fabric| fabric.open_domains()).find(fits)
    }

    /// Fills in the requested numbers of contexts, if a scalable endpoint can have as many.
    fn offer_contexts(&mut self, hints: &EndpointHints) {
        let Self { endpoint, limits, .. } = self;
        if endpoint.kind == EndpointKind::ReliableDatagram {
            let possible =
                |wanted: Option<usize>, limit| wanted.filter(|n| (1..=limit).contains(n));
            let transmit = possible(hints.transmit_contexts, limits.endpoint_transmit_contexts);
            let receive = possible(hints.receive_contexts, limits.endpoint_receive_contexts);
            endpoint.transmit_contexts = transmit.unwrap_or(1);
            endpoint.receive_contexts = receive.unwrap_or(1);
        }
    }

    /// Fills in the address at which the program waits for others; returns whether this host has it.
    fn listen_at(&mut self, source: SocketAddr) -> bool {
        self.source = Some(source);
        resolve::is_of_this_host(source)
    }

    /// Fills in the address to reach, and that of this host towards it; returns whether it can be
    /// reached over this link, from the source.
    fn reach(&mut self, destination: SocketAddr) -> bool {
        self.destination = Some(destination);
        let is_other = |source: SocketAddr| source.is_ipv4() != destination.is_ipv4();
        if self.endpoint.kind == EndpointKind::Connected && self.source.is_some_and(is_other) {
            return false;
        }
        let from = resolve::address_towards(destination);
        if self.source.is_none() {
            self.source = from.map(|address| SocketAddr::new(address, 0));
        }
        match self.link {
            #[cfg(feature = "sim")]
            Link::Shm | Link::Local => resolve::is_of_this_host(destination),
            _ => from.is_some(),
        }
    }
}

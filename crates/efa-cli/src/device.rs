//! The device that a command works with, and an endpoint on it.
//!
//! ```text
//!   --device verbs   an interface of this machine, by rdma-core
//!            soft    the software device of this host
//!            auto    verbs, unless there is no interface or an option of the software device is given
//! ```

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::ValueEnum;
use efa::{
    AddressVector, CompletionQueue, CompletionQueueOptions, Direction, Domain, EnableError,
    Endpoint, Environment, Fabric, Link, LinkOptions,
};
use efa_device::Rdma;
use efa_sim::faults::FaultOptions;
use efa_sim::record::SharedSink;

use crate::capture::CaptureFile;
use crate::child::option;

/// Options that choose a device.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DeviceArgs {
    /// `verbs`: an EFA interface of this machine; `soft`: the software device; `auto`: verbs if the machine
    /// has an interface and no option of the software device is given, else soft
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub(crate) device: Kind,
    /// Name of the interface [default: the first EFA interface]
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,
    #[command(flatten)]
    pub(crate) soft: SoftArgs,
}

/// Options that choose a software device.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct SoftArgs {
    /// Name of the software device on the shm link; programs that give the same one reach each other
    /// [default: efa]
    #[arg(long, alias = "name", value_name = "NAME")]
    pub(crate) device_name: Option<String>,
    /// Directory of the software device on the shm link [default: /dev/shm/efa-<UID>]
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
}

impl SoftArgs {
    /// The first option given; both need the shm link.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let options = [
            ("--device-name", self.device_name.is_some()),
            ("--directory", self.directory.is_some()),
        ];
        options.into_iter().find_map(|(option, given)| given.then_some(option))
    }

    /// The name given, or that of the environment.
    pub(crate) fn name(&self) -> String {
        self.device_name.clone().unwrap_or_else(|| link_options().shm.name)
    }

    /// The directory given, or that of the environment.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        self.directory.clone().or_else(|| link_options().shm.directory)
    }
}

/// Options of links as the environment sets them. Its mistakes are reported where an endpoint is made.
fn link_options() -> LinkOptions {
    Environment::of(std::env::vars_os()).links
}

/// What connects endpoints of the software device in different processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SoftLink {
    Shm,
    Tcp,
}

impl SoftLink {
    /// The name on the command line.
    pub(crate) const fn setting(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

/// Parses the IP address of one host.
pub(crate) fn host_address(text: &str) -> Result<IpAddr, String> {
    let address = text.parse().ok().filter(|address: &IpAddr| !address.is_unspecified());
    address.ok_or_else(|| "the IP address of one host is expected".to_owned())
}

/// An address of this host on the tcp link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpHost {
    pub(crate) address: IpAddr,
    /// Index of the network interface of a link-local IPv6 address, else 0.
    scope_id: u32,
}

impl TcpHost {
    /// Reached by processes of this host only.
    pub(crate) const LOOPBACK: Self =
        Self { address: IpAddr::V4(Ipv4Addr::LOCALHOST), scope_id: 0 };

    /// Opens the software device at this address.
    pub(crate) fn open(
        self,
        properties: &PropertyArgs,
        capture: Option<&CaptureFile>,
    ) -> Result<Domain, efa::Error> {
        let options = link_options().tcp.with(|options| {
            options.address = self.address;
            options.scope_id = self.scope_id;
            options.rdma = properties.device_rdma.map_or(options.rdma, RdmaArg::rdma);
            options.reorder = properties.reorder;
            options.capture = capture.cloned().map(SharedSink::new);
        });
        Fabric::tcp(options).domain()
    }
}

impl From<IpAddr> for TcpHost {
    fn from(address: IpAddr) -> Self {
        Self { address, scope_id: 0 }
    }
}

impl From<SocketAddr> for TcpHost {
    fn from(address: SocketAddr) -> Self {
        let scope_id = match address {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(address) => address.scope_id(),
        };
        Self { address: address.ip().to_canonical(), scope_id }
    }
}

/// Kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Auto,
    Verbs,
    Soft,
}

impl Kind {
    /// The name on the command line.
    pub(crate) const fn setting(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Verbs => "verbs",
            Self::Soft => "soft",
        }
    }
}

/// Options for properties of the software device.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct PropertyArgs {
    /// RDMA operations that the device offers [default: read,write; of soft-efa run: those of the generation]
    #[arg(long, value_name = "WHICH")]
    pub(crate) device_rdma: Option<RdmaArg>,
    /// Let sends, reads and writes overtake each other, by this seed; outside soft-efa run, datagrams alone on tcp
    #[arg(long, value_name = "SEED")]
    pub(crate) reorder: Option<u64>,
    /// Probability, 0 to 1, that a datagram meets a receiver that is not ready (RNR)
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) rnr: Option<f64>,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.0..=1.0).contains(rate));
    rate.ok_or_else(|| "a number from 0 to 1 is expected".to_owned())
}

/// RDMA operations of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RdmaArg {
    #[value(name = "read,write")]
    ReadWrite,
    Read,
    Write,
    None,
}

impl RdmaArg {
    /// The name on the command line.
    pub(crate) const fn setting(self) -> &'static str {
        match self {
            Self::ReadWrite => "read,write",
            Self::Read => "read",
            Self::Write => "write",
            Self::None => "none",
        }
    }

    const fn rdma(self) -> Rdma {
        let (read, write) = match self {
            Self::ReadWrite => (true, true),
            Self::Read => (true, false),
            Self::Write => (false, true),
            Self::None => (false, false),
        };
        Rdma { read, write, ..Rdma::NONE }
    }
}

impl PropertyArgs {
    /// The first option given; all need the software device.
    fn given(&self) -> Option<&'static str> {
        let options = [
            ("--device-rdma", self.device_rdma.is_some()),
            ("--reorder", self.reorder.is_some()),
            ("--rnr", self.rnr.is_some()),
        ];
        options.into_iter().find_map(|(option, given)| given.then_some(option))
    }
}

impl DeviceArgs {
    /// The first option given that needs the software device, among these and `others`.
    pub(crate) fn of_soft(
        &self,
        properties: &PropertyArgs,
        others: Option<&'static str>,
    ) -> Option<&str> {
        self.soft.given().or_else(|| properties.given()).or(others)
    }

    /// A message about options of one link beside another one.
    pub(crate) fn conflict_of_link(
        &self,
        link: Option<SoftLink>,
        address: Option<IpAddr>,
        properties: &PropertyArgs,
    ) -> Option<String> {
        let rnr = properties.rnr.map(|_| "--rnr");
        match link {
            Some(SoftLink::Tcp) => {
                rnr.or_else(|| self.soft.given()).map(|option| format!("{option} needs --link shm"))
            }
            None | Some(SoftLink::Shm) => address.map(|_| "--address needs --link tcp".to_owned()),
        }
    }

    /// A message about options that exclude each other; `others` is another option that needs the software
    /// device.
    pub(crate) fn conflict(
        &self,
        properties: &PropertyArgs,
        others: Option<&'static str>,
    ) -> Option<String> {
        let soft = self.of_soft(properties, others);
        match (self.device, soft) {
            (Kind::Verbs, Some(option)) => {
                Some(format!("{option} is an option of the software device, not of --device verbs"))
            }
            (Kind::Soft, _) if self.interface.is_some() => {
                Some("--interface is not an option of --device soft".into())
            }
            (Kind::Auto, Some(option)) if self.interface.is_some() => Some(format!(
                "{option} is an option of the software device, --interface of --device verbs"
            )),
            _ => None,
        }
    }

    /// The kind of device; `others` is another option that needs the software device.
    pub(crate) fn kind(&self, properties: &PropertyArgs, others: Option<&'static str>) -> Kind {
        let soft = || self.of_soft(properties, others).is_some();
        match self.device {
            Kind::Auto if self.interface.is_some() => Kind::Verbs,
            Kind::Auto if soft() || efa::interfaces().is_err() => Kind::Soft,
            Kind::Auto => Kind::Verbs,
            kind => kind,
        }
    }

    /// The options for a process that uses the same device.
    pub(crate) fn for_child(
        &self,
        kind: Kind,
        link: Option<SoftLink>,
        address: Option<IpAddr>,
        properties: &PropertyArgs,
    ) -> Vec<OsString> {
        let is_named = kind != Kind::Verbs && link != Some(SoftLink::Tcp);
        let PropertyArgs { device_rdma, reorder, rnr } = properties;
        let options: [(_, Option<OsString>); 9] = [
            ("--device", Some(kind.setting().into())),
            ("--interface", self.interface.as_ref().map(Into::into)),
            ("--device-name", is_named.then(|| self.soft.name().into())),
            ("--directory", self.soft.directory.as_ref().map(Into::into)),
            ("--link", link.map(|link| link.setting().into())),
            ("--address", address.map(|address| address.to_string().into())),
            ("--device-rdma", device_rdma.map(|which| which.setting().into())),
            ("--reorder", reorder.map(|seed| seed.to_string().into())),
            ("--rnr", rnr.map(|rate| rate.to_string().into())),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some(option(name, value?)));
        given.collect()
    }

    /// Opens an interface of this machine.
    pub(crate) fn open_interface(&self) -> Result<Domain, efa::Error> {
        Fabric::verbs(self.interface.as_deref()).domain()
    }
}

impl SoftArgs {
    /// Opens the software device on the shm link; if there is a capture file, all its packets go into
    /// that.
    pub(crate) fn open(
        &self,
        properties: &PropertyArgs,
        capture: Option<&CaptureFile>,
    ) -> Result<Domain, efa::Error> {
        let options = link_options().shm.with(|options| {
            options.name = self.name();
            options.directory = self.directory();
            options.rdma = properties.device_rdma.map_or(options.rdma, RdmaArg::rdma);
            options.faults = FaultOptions::NONE.with(|faults| {
                faults.reorder = properties.reorder;
                faults.receiver_not_ready = properties.rnr.unwrap_or(0.0);
            });
            options.capture = capture.cloned().map(SharedSink::new);
        });
        Fabric::shm(options).domain()
    }
}

/// An enabled endpoint with what is bound to it.
pub(crate) struct Objects {
    pub(crate) endpoint: Endpoint,
    /// For sends and receives.
    pub(crate) queue: CompletionQueue,
    pub(crate) addresses: AddressVector,
    /// The link of the device.
    pub(crate) link: Link,
}

impl Objects {
    /// Creates and binds them, for `capacity` operations under way.
    pub(crate) fn new(domain: &Domain, capacity: usize) -> Result<Self, EnableError> {
        let queue = domain.completion_queue(CompletionQueueOptions::new().capacity(capacity));
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(Environment::read().endpoint)
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()?;
        Ok(Self { endpoint, queue, addresses, link: domain.fabric().link() })
    }
}

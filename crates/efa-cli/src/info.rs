//! `efa info`: properties of a device and of its endpoints.
//!
//! `--providers`, `--capabilities` and `--parameters` list these instead, without a device.
//!
//! The command opens the device and creates an endpoint on it, so it is also a test of the installation.

use std::fmt::Display;
use std::io::{self, Write};
use std::net::IpAddr;

use clap::ValueEnum;
use comfy_table::{Table, presets};
use efa::{DomainAttributes, Endpoint, Fabric, Hints, Link};
use serde::Serialize;

use crate::device::{DeviceArgs, Kind, Objects, PropertyArgs, TcpHost, host_address};
use crate::environment::Variables;
use crate::listing::{CapabilityList, Providers};
use crate::output;

/// Options of the device, which lists don't open.
const OF_DEVICE: [&str; 5] = ["link", "device", "interface", "device_name", "directory"];
/// Version of the JSON form.
const VERSION: u32 = 1;

/// Arguments of `efa info`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Link of the software device [default: shm]
    #[arg(long, value_name = "LINK")]
    link: Option<LinkName>,
    /// With --link tcp, the address of this host [default: 127.0.0.1]
    #[arg(long, value_name = "IP", requires = "link", value_parser = host_address)]
    address: Option<IpAddr>,
    /// List what discovery finds: providers, fabrics and domains, the best first. FI_PROVIDER selects
    #[arg(long, conflicts_with_all = ["capabilities", "parameters"], conflicts_with_all = OF_DEVICE)]
    providers: bool,
    /// List the capabilities of endpoints
    #[arg(long, conflicts_with = "parameters", conflicts_with_all = OF_DEVICE)]
    capabilities: bool,
    /// List the environment variables that `efa::Environment` reads, as this tool does, with their values
    #[arg(long, visible_alias = "env", conflicts_with_all = OF_DEVICE)]
    parameters: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Link of the software device.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LinkName {
    /// Shared memory between the processes of this host
    Shm,
    /// TCP between hosts
    Tcp,
    /// A simulated network in one process
    Local,
}

/// Why there is no information.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InfoError {
    /// The link has no device.
    #[error("no device on the link {link}")]
    Absent {
        /// The link.
        link: Link,
    },
    /// There is no interface; the error says what to do.
    #[error("{}{error}", unless_named(name.as_deref(), error))]
    NoInterface {
        /// The one that was asked for.
        name: Option<String>,
        /// The reason. It is no `source`, as its text is in the text of this.
        error: efa::Error,
    },
    /// Discovery finds nothing.
    #[error(transparent)]
    NothingFound(efa::Error),
    /// The device can't be opened.
    #[error("cannot open the device")]
    Device(#[from] efa::Error),
    /// No endpoint can be created.
    #[error("cannot create an endpoint on the device")]
    Endpoint(#[from] efa::EnableError),
    /// The output can't be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

/// The name of an interface, before an error that doesn't have it.
fn unless_named(name: Option<&str>, error: &efa::Error) -> String {
    let name = name.filter(|name| !error.to_string().contains(name));
    name.map_or_else(String::new, |name| format!("interface {name}: "))
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), InfoError> {
    let text = match args {
        Args { parameters: true, json: true, .. } => json(&Variables::read()),
        Args { parameters: true, .. } => Variables::read().table(),
        Args { providers: true, json: true, .. } => {
            json(&Providers::find().map_err(InfoError::NothingFound)?)
        }
        Args { providers: true, .. } => Providers::find().map_err(InfoError::NothingFound)?.table(),
        Args { capabilities: true, json: true, .. } => json(&CapabilityList::list()),
        Args { capabilities: true, .. } => CapabilityList::list().table(),
        Args { json: true, .. } => json(&Facts::gather(args)?),
        _ => Facts::gather(args)?.table(),
    };
    Ok(output::tolerate_closed(writeln!(io::stdout(), "{text}"))?)
}

/// The output.
#[derive(Serialize)]
struct Facts {
    version: u32,
    provider: &'static str,
    link: String,
    /// EFA interfaces that rdma-core finds.
    interfaces: Vec<String>,
    /// Why there are none, and what to do.
    no_interfaces: Option<String>,
    device: DeviceFacts,
    endpoint: EndpointFacts,
}

/// Lengths are in bytes.
#[derive(Serialize)]
struct DeviceFacts {
    name: String,
    mtu: usize,
    max_regions: usize,
    max_region_size: u64,
    reads_pay_from: u64,
    mapped_reads_pay_from: u64,
    mr_key_size: usize,
    cq_data_size: usize,
    threading: String,
    progress: String,
}

/// Lengths are in bytes.
#[derive(Serialize)]
struct EndpointFacts {
    address: String,
    protocol_version: u8,
    capabilities: Vec<&'static str>,
    max_message_size: u64,
    max_medium: u64,
    inject_size: usize,
    transmit_size: usize,
    receive_size: usize,
    min_multi_receive: u64,
    message_order: String,
    mem_tag_format: String,
    iov_limit: usize,
    address_size: usize,
}

impl Args {
    pub(crate) fn conflict(&self) -> Option<String> {
        if self.address.is_some() && !matches!(self.link, Some(LinkName::Tcp)) {
            return Some("--address needs --link tcp".into());
        }
        if let (Some(LinkName::Tcp | LinkName::Local), Some(option)) =
            (self.link, self.device.soft.given())
        {
            return Some(format!("{option} needs --link shm"));
        }
        self.device.conflict(&PropertyArgs::default(), self.link.map(|_| "--link"))
    }

    fn link(&self) -> Link {
        let soft = self.link.map(|_| "--link");
        match (self.device.kind(&PropertyArgs::default(), soft), self.link) {
            (Kind::Verbs, _) => Link::Verbs,
            (_, None | Some(LinkName::Shm)) => Link::Shm,
            (_, Some(LinkName::Tcp)) => Link::Tcp,
            (_, Some(LinkName::Local)) => Link::Local,
        }
    }
}

impl Facts {
    fn gather(args: &Args) -> Result<Self, InfoError> {
        let link = args.link();
        let interface = args.device.interface.clone();
        let mut hints = Hints::new().link(link);
        hints.interface = interface;
        let found = efa::info(&hints).map_err(|error| match error {
            error @ efa::Error::Device(_) if link == Link::Verbs => {
                InfoError::NoInterface { name: args.device.interface.clone(), error }
            }
            error => error.into(),
        })?;
        let info = found.first().ok_or(InfoError::Absent { link })?;
        let domain = match link {
            Link::Shm => args.device.soft.open(&PropertyArgs::default(), None)?,
            Link::Tcp => {
                let host = args.address.map_or(TcpHost::LOOPBACK, TcpHost::from);
                host.open(&PropertyArgs::default(), None)?
            }
            _ => Fabric::open(info).domain()?,
        };
        let (interfaces, no_interfaces) = match efa::interfaces() {
            Ok(names) => (names, None),
            Err(efa::DeviceError::Absent { reason }) => (Vec::new(), Some(reason)),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let Objects { endpoint, .. } = Objects::new(&domain, 1)?;
        Ok(Self {
            version: VERSION,
            provider: info.provider,
            link: link.to_string(),
            interfaces,
            no_interfaces,
            device: DeviceFacts::of(domain.attributes()),
            endpoint: EndpointFacts::of(&endpoint),
        })
    }

    /// Two columns: properties of the device, then of an endpoint.
    fn table(&self) -> String {
        let Self { provider, link, device, endpoint, .. } = self;
        let device = rows(&[
            ("name", &device.name),
            ("provider", provider),
            ("link", link),
            ("largest packet", &Bytes(device.mtu as u64)),
            ("memory regions", &device.max_regions),
            ("longest memory region", &Bytes(device.max_region_size)),
            ("messages are read from", &Bytes(device.reads_pay_from)),
            ("from mapped memory from", &Bytes(device.mapped_reads_pay_from)),
            ("memory key", &Bytes(device.mr_key_size as u64)),
            ("completion data", &Bytes(device.cq_data_size as u64)),
            ("threading", &device.threading),
            ("progress", &device.progress),
        ]);
        let endpoint = rows(&[
            ("protocol", &format_args!("EFA RDM version {}", endpoint.protocol_version)),
            ("capabilities", &endpoint.capabilities.join(", ")),
            ("example address", &endpoint.address),
            ("length of an address", &Bytes(endpoint.address_size as u64)),
            ("longest message", &Bytes(endpoint.max_message_size)),
            ("longest medium message", &Bytes(endpoint.max_medium)),
            ("longest injected", &Bytes(endpoint.inject_size as u64)),
            ("sends under way", &endpoint.transmit_size),
            ("receives posted", &endpoint.receive_size),
            ("multi-receive released below", &Bytes(endpoint.min_multi_receive)),
            ("message order", &endpoint.message_order),
            ("tag format", &endpoint.mem_tag_format),
            ("segments of a buffer", &endpoint.iov_limit),
        ]);
        let interfaces = match &self.no_interfaces {
            Some(reason) => format!("none; {reason}"),
            None => self.interfaces.join(", "),
        };
        format!("interfaces of this machine: {interfaces}\ndevice\n{device}\nendpoint\n{endpoint}")
    }
}

fn json(facts: &impl Serialize) -> String {
    serde_json::to_value(facts).map(|value| value.to_string()).unwrap_or_default()
}

fn rows(rows: &[(&str, &dyn Display)]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for (name, value) in rows {
        table.add_row([format!(" {name}"), value.to_string()]);
    }
    table.trim_fmt()
}

/// A length; the largest number means no limit.
struct Bytes(u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            u64::MAX => f.write_str("no limit"),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

impl DeviceFacts {
    fn of(domain: DomainAttributes) -> Self {
        Self {
            name: domain.name,
            mtu: domain.mtu,
            max_regions: domain.max_regions,
            max_region_size: domain.max_region_size,
            reads_pay_from: domain.reads_pay_from,
            mapped_reads_pay_from: domain.mapped_reads_pay_from,
            mr_key_size: domain.mr_key_size,
            cq_data_size: domain.cq_data_size,
            threading: format!("{:?}", domain.threading),
            progress: format!("{:?}", domain.progress),
        }
    }
}

impl EndpointFacts {
    fn of(endpoint: &Endpoint) -> Self {
        let attributes = endpoint.attributes();
        let (transmit, receive) = (endpoint.transmit_attributes(), endpoint.receive_attributes());
        Self {
            address: endpoint.address().to_string(),
            protocol_version: attributes.protocol_version,
            capabilities: endpoint.capabilities().iter_names().map(|(name, _)| name).collect(),
            max_message_size: attributes.max_message_size,
            max_medium: attributes.max_medium,
            inject_size: transmit.inject_size,
            transmit_size: transmit.size,
            receive_size: receive.size,
            min_multi_receive: attributes.min_multi_receive,
            message_order: format!("{:?}", receive.message_order),
            mem_tag_format: format!("{:#018x}", attributes.mem_tag_format),
            iov_limit: transmit.iov_limit,
            address_size: attributes.address_size,
        }
    }
}

#[cfg(test)]
mod tests {
    use efa::DeviceError;

    use super::*;

    #[test]
    fn absent_interface_is_told_once_in_the_chain_of_errors() {
        let absent = || DeviceError::Absent { reason: "no driver".to_owned() };
        for (name, text) in
            [(None, "no device: no driver"), (Some("efa9"), "interface efa9: no device: no driver")]
        {
            let (name, error) = (name.map(str::to_owned), absent().into());
            let error = anyhow::Error::from(InfoError::NoInterface { name, error });
            assert_eq!(format!("{error:#}"), text);
        }
    }
}

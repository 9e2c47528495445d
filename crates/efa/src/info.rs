//! Hints, and the attributes of what is found (`fi_info`).

use std::fmt;

use bitflags::bitflags;
use efa_device::DeviceAttributes;
use efa_rdm::Config;

use crate::Address;

bitflags! {
    /// Services of an endpoint. The names are libfabric's without `FI_`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Capabilities: u32 {
        /// Untagged messages.
        const MSG = 1;
        /// Tagged messages.
        const TAGGED = 1 << 1;
        /// Reads and writes of remote memory.
        const RMA = 1 << 2;
        /// Atomic operations on remote memory.
        const ATOMIC = 1 << 3;
        /// Sending. Without `SEND` and `RECV`, both are enabled.
        const SEND = 1 << 8;
        /// Receiving.
        const RECV = 1 << 9;
        /// Multi-receive buffers.
        const MULTI_RECV = 1 << 16;
        /// Completions of receives name the sender.
        const SOURCE = 1 << 17;
        /// Receives that match messages of one sender only.
        const DIRECTED_RECV = 1 << 18;
        /// Events at the target of a remote write. Never offered.
        const RMA_EVENT = 1 << 19;
        /// Operations that start when a counter reaches a value. Never offered.
        const TRIGGER = 1 << 20;
    }
}

impl Capabilities {
    /// All that this crate implements.
    pub const OFFERED: Self = Self::MSG
        .union(Self::TAGGED)
        .union(Self::RMA)
        .union(Self::ATOMIC)
        .union(Self::SEND)
        .union(Self::RECV)
        .union(Self::MULTI_RECV)
        .union(Self::SOURCE)
        .union(Self::DIRECTED_RECV);

    /// What is enabled when this is requested: without a direction, both.
    #[must_use]
    pub fn enabled(self) -> Self {
        let directions = Self::SEND | Self::RECV;
        if self.intersects(directions) { self } else { self | directions }
    }
}

/// Prints names: `MSG | SEND`.
impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

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

/// Requested attributes, for [`info`](crate::info()). By default, none is requested.
///
/// ```
/// use efa::{Capabilities, Hints, Link};
/// let hints = Hints::new().capabilities(Capabilities::TAGGED).link(Link::Shm);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hints {
    /// Services.
    pub capabilities: Capabilities,
    /// Name of the provider. The only one is `efa`.
    pub provider: Option<String>,
    /// Link.
    pub link: Option<Link>,
    /// Name of an EFA interface of this machine.
    pub interface: Option<String>,
    /// Progress model.
    pub progress: Option<Progress>,
}

impl Hints {
    /// No attribute is requested.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests services.
    #[must_use]
    pub fn capabilities(self, capabilities: Capabilities) -> Self {
        Self { capabilities, ..self }
    }

    /// Requests a provider.
    #[must_use]
    pub fn provider(self, provider: impl Into<String>) -> Self {
        Self { provider: Some(provider.into()), ..self }
    }

    /// Requests a link.
    #[must_use]
    pub fn link(self, link: Link) -> Self {
        Self { link: Some(link), ..self }
    }

    /// Requests an EFA interface of this machine.
    #[must_use]
    pub fn interface(self, interface: impl Into<String>) -> Self {
        Self { interface: Some(interface.into()), ..self }
    }

    /// Requests a progress model.
    #[must_use]
    pub fn progress(self, progress: Progress) -> Self {
        Self { progress: Some(progress), ..self }
    }
}

impl Default for Capabilities {
    /// No service.
    fn default() -> Self {
        Self::empty()
    }
}

/// A fabric that can be opened ([`Fabric::open`](crate::Fabric::open)), and its attributes.
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
    /// Services: those requested, or all if none were.
    pub capabilities: Capabilities,
    /// Attributes of domains.
    pub domain: DomainAttributes,
    /// Attributes of endpoints with default options.
    pub endpoint: EndpointAttributes,
}

/// Threading model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Threading {
    /// Any thread may use any object at any time (`FI_THREAD_SAFE`).
    Safe,
}

/// Progress model: what progresses operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Progress {
    /// Reading completion queues and counters, and nothing else (`FI_PROGRESS_MANUAL`).
    Manual,
    /// A thread of the library (`FI_PROGRESS_AUTO`). Never offered.
    Automatic,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Manual => "manual",
            Self::Automatic => "automatic",
        })
    }
}

/// Resource management: what happens when a queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResourceManagement {
    /// The next operation fails to start, and nothing is lost (`FI_RM_ENABLED`).
    Enabled,
}

/// What an address vector returns for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddressVectorKind {
    /// An index, from 0 on (`FI_AV_TABLE`).
    Table,
}

/// Attributes of a domain (`fi_domain_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DomainAttributes {
    /// Name of the device.
    pub name: String,
    /// Threading model.
    pub threading: Threading,
    /// Progress model.
    pub progress: Progress,
    /// Resource management.
    pub resource_management: ResourceManagement,
    /// Type of address vectors.
    pub address_vector: AddressVectorKind,
    /// Largest packet of the device in bytes.
    pub mtu: usize,
    /// Bytes of completion queue data that a sender can send with a message or write.
    pub cq_data_size: usize,
    /// Bytes of such data that an RDMA write of the device carries; a write with longer data goes in
    /// packets. 0 if the device has no RDMA writes.
    pub direct_write_data_size: usize,
    /// Bytes of the key of a memory region.
    pub mr_key_size: usize,
    /// Most memory regions.
    pub max_regions: usize,
    /// Longest memory region in bytes.
    pub max_region_size: u64,
}

/// What one atomic can change (`fi_atomic_attr`); see [`Domain::atomic`](crate::Domain::atomic).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AtomicAttributes {
    /// Bytes of an element.
    pub size: usize,
    /// Most elements.
    pub count: usize,
}

/// In which order messages of one sender are matched with receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MessageOrder {
    /// In the order in which they were sent (`FI_ORDER_SAS`).
    SendAfterSend,
    /// In no order: messages are received in place ([`Receiving::InPlace`](crate::Receiving::InPlace)).
    Unordered,
}

/// Endpoint type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndpointKind {
    /// Reliable datagrams: many peers, no connections (`FI_EP_RDM`).
    ReliableDatagram,
}

/// Attributes of an endpoint (`fi_ep_attr`, `fi_tx_attr`, `fi_rx_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointAttributes {
    /// Endpoint type.
    pub kind: EndpointKind,
    /// Version of the EFA RDM protocol.
    pub protocol_version: u8,
    /// Length of an address in bytes.
    pub address_size: usize,
    /// Longest message in bytes.
    pub max_message_size: u64,
    /// Longest message in bytes that can be injected.
    pub inject_size: usize,
    /// Longest message in bytes that is sent without flow control.
    pub max_medium: u64,
    /// Most sends under way.
    pub transmit_size: usize,
    /// Most receives posted.
    pub receive_size: usize,
    /// A multi-receive buffer with less space left than this many bytes is released.
    pub min_multi_receive: u64,
    /// Bytes that a buffer needs before the message (`FI_MSG_PREFIX`): none.
    pub message_prefix_size: usize,
    /// Longest read in bytes that sees earlier writes; 0: no order is guaranteed.
    pub max_read_after_write_size: u64,
    /// Longest write in bytes that waits for earlier reads; 0: no order is guaranteed.
    pub max_write_after_read_size: u64,
    /// Longest write in bytes that follows earlier writes; 0: no order is guaranteed.
    pub max_write_after_write_size: u64,
    /// Transmit contexts.
    pub transmit_contexts: usize,
    /// Receive contexts.
    pub receive_contexts: usize,
    /// Order of messages.
    pub message_order: MessageOrder,
    /// Format of tags: each bit that differs from the next higher one begins a field. All 64 bits are
    /// matched.
    pub mem_tag_format: u64,
    /// Most pieces of the buffer of an operation.
    pub iov_limit: usize,
}

impl DomainAttributes {
    pub(crate) fn of(device: &DeviceAttributes) -> Self {
        Self {
            name: device.name.clone(),
            threading: Threading::Safe,
            progress: Progress::Manual,
            resource_management: ResourceManagement::Enabled,
            address_vector: AddressVectorKind::Table,
            mtu: device.mtu,
            cq_data_size: size_of::<u64>(),
            direct_write_data_size: if device.rdma.write { size_of::<u32>() } else { 0 },
            mr_key_size: size_of::<u32>(),
            max_regions: device.max_regions,
            max_region_size: device.max_region_size,
        }
    }
}

impl EndpointAttributes {
    /// `inject_size` comes from the engine, which knows the length of its headers.
    pub(crate) fn of(config: &Config, inject_size: usize, max_message_size: u64) -> Self {
        Self {
            kind: EndpointKind::ReliableDatagram,
            protocol_version: efa_proto::VERSION,
            address_size: Address::SIZE,
            max_message_size,
            inject_size,
            max_medium: config.max_medium,
            transmit_size: config.max_sends,
            receive_size: config.max_receives,
            min_multi_receive: config.min_multi_receive,
            message_prefix_size: 0,
            max_read_after_write_size: 0,
            max_write_after_read_size: 0,
            max_write_after_write_size: 0,
            transmit_contexts: 1,
            receive_contexts: 1,
            message_order: MessageOrder::SendAfterSend,
            mem_tag_format: 0xaaaa_aaaa_aaaa_aaaa,
            iov_limit: 1,
        }
    }
}

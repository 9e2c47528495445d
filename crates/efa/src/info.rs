//! What there is: the services that can be asked for, and what they are like.

use std::fmt;

use bitflags::bitflags;
use efa_device::DeviceAttributes;
use efa_rdm::Config;

use crate::Address;

bitflags! {
    /// Services of an endpoint. The names are those of the OFI programmer's guide without `FI_`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Capabilities: u32 {
        /// Untagged messages.
        const MSG = 1;
        /// Tagged messages.
        const TAGGED = 1 << 1;
        /// Reading and writing of remote memory.
        const RMA = 1 << 2;
        /// Atomic operations on remote memory.
        const ATOMIC = 1 << 3;
        /// Messages can be sent. With neither `SEND` nor `RECV` both are meant.
        const SEND = 1 << 8;
        /// Messages can be received.
        const RECV = 1 << 9;
        /// A buffer can take many messages.
        const MULTI_RECV = 1 << 16;
        /// Completions tell who sent a message.
        const SOURCE = 1 << 17;
        /// Receives can be for one sender only.
        const DIRECTED_RECV = 1 << 18;
        /// Events at the target of a remote write. Never offered.
        const RMA_EVENT = 1 << 19;
        /// Operations that start when a counter reaches a value. Never offered.
        const TRIGGER = 1 << 20;
    }
}

impl Capabilities {
    /// All that this crate offers.
    pub const OFFERED: Self = Self::MSG
        .union(Self::TAGGED)
        .union(Self::RMA)
        .union(Self::ATOMIC)
        .union(Self::SEND)
        .union(Self::RECV)
        .union(Self::MULTI_RECV)
        .union(Self::SOURCE)
        .union(Self::DIRECTED_RECV);

    /// What is enabled when this is asked for: without a direction, both.
    #[must_use]
    pub fn enabled(self) -> Self {
        let directions = Self::SEND | Self::RECV;
        if self.intersects(directions) { self } else { self | directions }
    }
}

/// Capabilities as one reads them: `MSG | SEND`.
impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// How packets get from one endpoint to another; the faster link first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Link {
    /// An EFA interface of this machine, through rdma-core.
    Verbs,
    /// Shared memory between the processes of this host.
    Shm,
    /// TCP between processes of this host or others.
    Tcp,
    /// A simulated network in this process.
    Local,
}

impl Link {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Verbs, Self::Shm, Self::Tcp, Self::Local];
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Verbs => "verbs",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Local => "local",
        })
    }
}

/// What is wanted. The default wants nothing in particular.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Services that are needed.
    pub capabilities: Capabilities,
    /// The provider's name; there is `efa`.
    pub provider: Option<String>,
    /// The link.
    pub link: Option<Link>,
    /// Name of the interface; only those of rdma-core have names that one can ask for.
    pub interface: Option<String>,
    /// What is to move operations on.
    pub progress: Option<Progress>,
}

impl Default for Capabilities {
    /// None.
    fn default() -> Self {
        Self::empty()
    }
}

/// Something that a [`Fabric`](crate::Fabric) can be opened on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Name of the provider.
    pub provider: &'static str,
    /// Its version.
    pub provider_version: &'static str,
    /// Name of the fabric.
    pub fabric: String,
    /// How packets travel.
    pub link: Link,
    /// Services: those asked for, or all if none were.
    pub capabilities: Capabilities,
    /// What domains are like.
    pub domain: DomainAttributes,
    /// What endpoints are like.
    pub endpoint: EndpointAttributes,
}

/// Who may call what at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Threading {
    /// Any thread may use any object at any time (`FI_THREAD_SAFE`).
    Safe,
}

/// What moves operations on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Progress {
    /// Reading completion queues, and nothing else (`FI_PROGRESS_MANUAL`).
    Manual,
    /// Operations complete by themselves. Never offered: there are no threads behind one's back.
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

/// What happens when a queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResourceManagement {
    /// The next operation is not started, and nothing is lost (`FI_RM_ENABLED`).
    Enabled,
}

/// How an address vector names peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddressVectorKind {
    /// By indices from 0 on (`FI_AV_TABLE`).
    Table,
}

/// What a domain is like.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DomainAttributes {
    /// Name of the device.
    pub name: String,
    /// Who may call what at the same time.
    pub threading: Threading,
    /// What moves operations on.
    pub progress: Progress,
    /// What happens when a queue is full.
    pub resource_management: ResourceManagement,
    /// How address vectors name peers.
    pub address_vector: AddressVectorKind,
    /// Largest packet of the device in bytes.
    pub mtu: usize,
    /// Length in bytes of the data that a sender can pass to the receiver's completion.
    pub cq_data_size: usize,
    /// Length in bytes of such data that the device carries with a write of its own; a write with
    /// longer data goes in packets. 0 if the device doesn't write.
    pub direct_write_data_size: usize,
    /// Bytes that the key of a memory region takes.
    pub mr_key_size: usize,
    /// Most memory regions.
    pub max_regions: usize,
    /// Longest memory region in bytes.
    pub max_region_size: u64,
}

/// In which order messages of one sender are matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MessageOrder {
    /// As they were sent (`FI_ORDER_SAS`).
    SendAfterSend,
    /// In none: messages are received in place ([`Receiving::InPlace`](crate::Receiving::InPlace)).
    Unordered,
}

/// How endpoints talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndpointKind {
    /// Reliable datagrams: one endpoint, many peers, no connections (`FI_EP_RDM`).
    ReliableDatagram,
}

/// What an endpoint is like.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointAttributes {
    /// How it talks.
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
    /// A multi-receive buffer with less room than this is given back.
    pub min_multi_receive: u64,
    /// Bytes that a message's buffer must have in front of the message.
    pub message_prefix_size: usize,
    /// Up to how many bytes a read sees what was written before it: none are promised.
    pub max_read_after_write_size: u64,
    /// Up to how many bytes a write leaves to a read before it: none are promised.
    pub max_write_after_read_size: u64,
    /// Up to how many bytes a write comes behind one before it: none are promised.
    pub max_write_after_write_size: u64,
    /// Contexts for sending.
    pub transmit_contexts: usize,
    /// Contexts for receiving.
    pub receive_contexts: usize,
    /// The order of messages.
    pub message_order: MessageOrder,
    /// How tags are divided: a bit that differs from its upper neighbour begins a field. All 64
    /// bits are matched.
    pub mem_tag_format: u64,
    /// Most pieces that the buffer of an operation can have.
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
    /// `inject_size` is the engine's, which alone knows its headers.
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

//! Attributes of domains, endpoints and contexts, and the hints for them.
//!
//! Each group is written once. Each field has a rule, which says when a hint meets it:
//!
//! | rule | a hint is met if |
//! |---|---|
//! | `same` | the attribute equals it |
//! | `at_least` | the attribute is the same or more |
//! | `at_most` | the attribute is the same or less |
//! | `part` | the attribute contains it; the entry then has what was requested |
//! | `demand` | it contains the attribute: the program offers what is demanded |
//! | `free` | always; the entry then has what was requested |

#[cfg(test)]
#[cfg(feature = "sim")]
mod tests;

use std::fmt;

use efa_device::DeviceAttributes;
use efa_rdm::Config;

use crate::Address;
use crate::capabilities::{Capabilities, Mode, OperationFlags};
use crate::domain::DomainOptions;
use crate::error::Wanted;
use crate::hints::Narrow;
use crate::pieces::MOST_PIECES;

/// Threading model: what the program promises not to use from two threads at a time. Each level is also
/// met by those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Threading {
    /// Objects of one domain (`FI_THREAD_DOMAIN`).
    Domain,
    /// A completion queue or counter, and the endpoints bound to it (`FI_THREAD_COMPLETION`).
    Completion,
    /// An endpoint, with its completion queues (`FI_THREAD_ENDPOINT`).
    Endpoint,
    /// An object (`FI_THREAD_FID`).
    Object,
    /// Nothing: any thread may use any object at any time (`FI_THREAD_SAFE`). The one that is offered.
    Safe,
}

/// Progress model: what progresses operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Progress {
    /// Reading completion queues and counters, and nothing else (`FI_PROGRESS_MANUAL`).
    #[default]
    Manual,
    /// Also a thread of the domain (`FI_PROGRESS_AUTO`): see [`DomainOptions`](crate::DomainOptions).
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ResourceManagement {
    /// The program takes care not to exceed a queue's size (`FI_RM_DISABLED`).
    Disabled,
    /// The next operation fails to start, and nothing is lost (`FI_RM_ENABLED`). The one that is offered.
    Enabled,
}

/// What an address vector returns for a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddressVectorKind {
    /// An index, from 0 on (`FI_AV_TABLE`).
    #[default]
    Table,
    /// A value that the program can't compute, and that stands for no other peer when this one has been removed
    /// (`FI_AV_MAP`).
    Map,
}

/// How peers name memory regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegistrationMode {
    /// By a key that the device chooses and an address that the owner tells (`FI_MR_BASIC`).
    #[default]
    Basic,
    /// By a key of 64 bits that the application chooses, and the offset of a byte in the region
    /// (`FI_MR_SCALABLE`). The memory may come later than the key. Endpoints of such a domain announce no RDMA:
    /// what peers write and read goes in packets.
    Scalable,
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

/// Whether buffers of operations must be registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LocalRegistration {
    /// Any memory will do: the library copies or registers it if the device needs that.
    #[default]
    NotNeeded,
    /// Every buffer is a [`RegionSlice`](crate::RegionSlice), which is its descriptor (`fi_mr_desc`); others
    /// are refused with [`StartError::NotRegistered`](crate::StartError::NotRegistered). For programs that
    /// want to be sure that nothing is copied or registered for them. An entry with it demands
    /// [`Mode::LOCAL_MR`].
    ///
    /// Injected bytes and operands of atomics are copied into packets in any case, and need no
    /// registration.
    Required,
}

/// In which order messages of one sender are matched with receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum MessageOrder {
    /// In no order: messages are received in place ([`Receiving::InPlace`](crate::Receiving::InPlace)).
    Unordered,
    /// In the order in which they were sent (`FI_ORDER_SAS`).
    SendAfterSend,
}

/// In which order operations of one endpoint complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CompletionOrder {
    /// In any (`FI_ORDER_NONE`). The one that is offered.
    Unordered,
    /// In the order in which they were started (`FI_ORDER_STRICT`). Never offered.
    Strict,
}

/// Endpoint type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndpointKind {
    /// Reliable datagrams: many peers, no connections (`FI_EP_RDM`).
    ReliableDatagram,
    /// Connections: one peer, found by host and port (`FI_EP_MSG`); see [`MsgEndpoint`](crate::MsgEndpoint).
    Connected,
    /// Unreliable datagrams (`FI_EP_DGRAM`). Never offered.
    Datagram,
}

impl EndpointKind {
    /// Those that are offered, the best first: an [entry](crate::Info) for each and for each link.
    pub const OFFERED: &'static [Self] = &[Self::ReliableDatagram, Self::Connected];

    pub(crate) fn address_format(self) -> AddressFormat {
        match self {
            Self::Connected => AddressFormat::Socket,
            Self::ReliableDatagram | Self::Datagram => AddressFormat::Efa,
        }
    }
}

/// Protocol of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// The EFA RDM protocol (`FI_PROTO_EFA`).
    EfaRdm,
}

/// How a program names the endpoints that it wants to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddressFormat {
    /// GID, queue pair number and connid, as [`Endpoint::address`](crate::Endpoint::address) returns them
    /// (`FI_ADDR_EFA`).
    Efa,
    /// IP address and port of a listener (`FI_SOCKADDR`): of endpoints with a connection.
    Socket,
}

/// Whether a hint meets an attribute by a rule; fills in the attribute if the rule says so.
macro_rules! meets {
    (same, $wanted:expr, $attribute:expr) => {
        *$wanted == *$attribute
    };
    (at_least, $wanted:expr, $attribute:expr) => {
        *$wanted <= *$attribute
    };
    (at_most, $wanted:expr, $attribute:expr) => {
        *$wanted >= *$attribute
    };
    (part, $wanted:expr, $attribute:expr) => {{
        let met = $attribute.contains(*$wanted);
        *$attribute = *$wanted;
        met
    }};
    (demand, $wanted:expr, $attribute:expr) => {
        $wanted.contains(*$attribute)
    };
    (free, $wanted:expr, $attribute:expr) => {{
        *$attribute = *$wanted;
        true
    }};
}

/// A group of attributes, and the hints for it.
macro_rules! attributes {
    (
        $group:literal;
        $(#[$doc:meta])*
        $Attributes:ident, $Hints:ident {
            $( $(#[$field_doc:meta])* $rule:ident $field:ident: $type:ty, )*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $Attributes {
            $( $(#[$field_doc])* pub $field: $type, )*
        }

        #[doc = concat!("Hints for [`", stringify!($Attributes), "`]. What is `None` is left open.")]
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $Hints {
            $(
                #[doc = concat!("[`", stringify!($Attributes), "::", stringify!($field), "`]")]
                pub $field: Option<$type>,
            )*
        }

        impl From<&$Attributes> for $Hints {
            /// Requests each of these attributes.
            fn from(attributes: &$Attributes) -> Self {
                Self { $( $field: Some(attributes.$field.clone()), )* }
            }
        }

        impl $Hints {
            /// Leaves the entries that meet these hints, and fills in what was requested.
            ///
            /// # Errors
            /// The first hint that no entry meets.
            pub(crate) fn narrow<T>(
                &self,
                entries: &mut Vec<T>,
                part: impl Fn(&mut T) -> &mut $Attributes,
            ) -> Result<(), Wanted> {
                $(
                    if let Some(wanted) = &self.$field {
                        entries.narrow(
                            |entry| meets!($rule, wanted, &mut part(entry).$field),
                            || Wanted::attribute(concat!($group, ".", stringify!($field)), wanted),
                        )?;
                    }
                )*
                Ok(())
            }
        }
    };
}

attributes! {
    "transmit";
    /// Attributes of the transmit side of an endpoint (`fi_tx_attr`).
    TransmitAttributes, TransmitHints {
        /// Capabilities of this side.
        part capabilities: Capabilities,
        /// What it demands of the program.
        demand mode: Mode,
        /// Flags of operations that are started without flags.
        part flags: OperationFlags,
        /// Order of messages. Writes, reads and atomics have none, except as
        /// [`Endpoint::atomic`](crate::Endpoint::atomic) says.
        at_least message_order: MessageOrder,
        /// Order of completions.
        at_least completion_order: CompletionOrder,
        /// Longest message in bytes that can be injected.
        at_least inject_size: usize,
        /// Most sends under way.
        at_least size: usize,
        /// Most pieces of the buffer of an operation ([`Buffer::pieces`](crate::Buffer::pieces)).
        at_least iov_limit: usize,
        /// Most pieces of the remote memory of an operation ([`Rma::pieces`](crate::Rma::pieces)).
        at_least rma_iov_limit: usize,
    }
}

attributes! {
    "receive";
    /// Attributes of the receive side of an endpoint (`fi_rx_attr`).
    ReceiveAttributes, ReceiveHints {
        /// Capabilities of this side.
        part capabilities: Capabilities,
        /// What it demands of the program.
        demand mode: Mode,
        /// Flags of operations that are started without flags.
        part flags: OperationFlags,
        /// Order in which messages of one peer are matched. It should be that of the peer's transmit
        /// side: messages to an endpoint that receives in place have no order, whatever the sender's
        /// attribute is.
        at_least message_order: MessageOrder,
        /// Order of completions.
        at_least completion_order: CompletionOrder,
        /// Bytes of unexpected messages that are kept; then senders wait
        /// ([`Bounds::unexpected`](crate::Bounds)).
        at_least total_buffered: usize,
        /// Most receives posted.
        at_least size: usize,
        /// Most pieces of the buffer of a receive ([`ReceiveBuffer::pieces`](crate::ReceiveBuffer::pieces)).
        at_least iov_limit: usize,
    }
}

attributes! {
    "endpoint";
    /// Attributes of an endpoint (`fi_ep_attr`).
    EndpointAttributes, EndpointHints {
        /// Endpoint type.
        same kind: EndpointKind,
        /// Protocol.
        same protocol: Protocol,
        /// Version of the protocol.
        same protocol_version: u8,
        /// Length of an address in bytes. A hint is the room that the program has for one.
        at_most address_size: usize,
        /// Longest message in bytes.
        at_least max_message_size: u64,
        /// Longest message in bytes that is sent without flow control.
        at_least max_medium: u64,
        /// A multi-receive buffer with less space left than this many bytes is released. A hint is the
        /// most that may be left unused.
        at_most min_multi_receive: u64,
        /// Bytes that a buffer needs before the message (`FI_MSG_PREFIX`): none. A hint is the room that
        /// the program leaves.
        at_most message_prefix_size: usize,
        /// Longest read in bytes that sees earlier writes; 0: no order is guaranteed.
        at_least max_read_after_write_size: u64,
        /// Longest write in bytes that waits for earlier reads; 0: no order is guaranteed.
        at_least max_write_after_read_size: u64,
        /// Longest write in bytes that follows earlier writes; 0: no order is guaranteed. So a program
        /// can't conclude from the last byte that the others have arrived.
        at_least max_write_after_write_size: u64,
        /// Transmit contexts. An entry has what was requested, if a [scalable
        /// endpoint](crate::ScalableEndpoint) can have as many, or 1.
        at_least transmit_contexts: usize,
        /// Receive contexts. An entry has what was requested, if a [scalable
        /// endpoint](crate::ScalableEndpoint) can have as many, or 1.
        at_least receive_contexts: usize,
        /// Format of tags: each bit that differs from the next higher one begins a field. All 64 bits are
        /// matched, whatever the format is.
        free mem_tag_format: u64,
    }
}

attributes! {
    "domain";
    /// Attributes of a domain (`fi_domain_attr`).
    DomainAttributes, DomainHints {
        /// Name of the device.
        same name: String,
        /// Threading model.
        at_least threading: Threading,
        /// Progress model, of data and of everything else. An entry is automatic only if that was asked for, and
        /// the device can wake a thread.
        at_least progress: Progress,
        /// Resource management.
        at_least resource_management: ResourceManagement,
        /// Type of address vectors.
        free address_vector: AddressVectorKind,
        /// How peers name memory regions. An entry is scalable only if that was asked for.
        same registration_mode: RegistrationMode,
        /// Whether buffers of operations must be registered memory.
        free local_registration: LocalRegistration,
        /// Largest packet of the device in bytes.
        at_least mtu: usize,
        /// Bytes of completion queue data that a sender can send with a message or write.
        at_least cq_data_size: usize,
        /// Bytes of such data that an RDMA write of the device carries; a write with longer data goes in
        /// packets. 0 if the device has no RDMA writes.
        at_least direct_write_data_size: usize,
        /// Bytes of the key of a memory region. A hint is the room that the program has for one.
        at_most mr_key_size: usize,
        /// Most memory regions.
        at_least max_regions: usize,
        /// Longest memory region in bytes.
        at_least max_region_size: u64,
        /// Shortest message in bytes that a receiver of this implementation reads by RDMA, unless
        /// [`Config::min_read`](crate::Config::min_read) says otherwise. libfabric reads from 1 MiB on.
        free reads_pay_from: u64,
        /// The same for messages from [mapped](crate::MemoryRegion::is_mapped) memory.
        free mapped_reads_pay_from: u64,
    }
}

attributes! {
    "domain.limits";
    /// How many objects a domain can have: the rest of `fi_domain_attr`.
    DomainLimits, DomainLimitHints {
        /// Completion queues; `usize::MAX`: as many as there is memory for.
        at_least completion_queues: usize,
        /// Endpoints. One that receives in place may take the place of two.
        at_least endpoints: usize,
        /// Transmit contexts of all endpoints.
        at_least transmit_contexts: usize,
        /// Receive contexts of all endpoints.
        at_least receive_contexts: usize,
        /// Transmit contexts of one [scalable endpoint](crate::ScalableEndpoint).
        at_least endpoint_transmit_contexts: usize,
        /// Receive contexts of one [scalable endpoint](crate::ScalableEndpoint).
        at_least endpoint_receive_contexts: usize,
        /// Transmit contexts that endpoints can share, which are budgets of operations under way
        /// ([`SendBudget`](crate::SendBudget)); `usize::MAX`: as many as there is memory for.
        at_least shared_transmit_contexts: usize,
        /// Receive contexts that endpoints can share ([`SharedReceiveQueue`](crate::SharedReceiveQueue)); `usize::MAX`:
        /// as many as there is memory for.
        at_least shared_receive_contexts: usize,
    }
}

impl DomainAttributes {
    pub(crate) fn of(device: &DeviceAttributes, options: &DomainOptions) -> Self {
        let (direct_write_data_size, mr_key_size) = match options.registration {
            RegistrationMode::Basic if device.rdma.write => (size_of::<u32>(), size_of::<u32>()),
            RegistrationMode::Basic => (0, size_of::<u32>()),
            RegistrationMode::Scalable => (0, size_of::<u64>()),
        };
        Self {
            name: device.name.clone(),
            threading: Threading::Safe,
            progress: options.progress,
            resource_management: ResourceManagement::Enabled,
            address_vector: AddressVectorKind::Table,
            registration_mode: options.registration,
            local_registration: options.local_registration,
            mtu: device.mtu,
            cq_data_size: size_of::<u64>(),
            direct_write_data_size,
            mr_key_size,
            max_regions: device.max_regions,
            max_region_size: device.max_region_size,
            reads_pay_from: device.reads_pay_from,
            mapped_reads_pay_from: device.mapped_reads_pay_from,
        }
    }
}

/// Most contexts of a scalable endpoint in one direction. Each has a queue pair with buffers of its own.
const MOST_CONTEXTS: usize = 64;

impl DomainLimits {
    pub(crate) fn of(device: &DeviceAttributes) -> Self {
        let contexts = device.max_queue_pairs.min(MOST_CONTEXTS);
        Self {
            completion_queues: usize::MAX,
            endpoints: device.max_queue_pairs,
            transmit_contexts: device.max_queue_pairs,
            receive_contexts: device.max_queue_pairs,
            endpoint_transmit_contexts: contexts,
            endpoint_receive_contexts: contexts,
            shared_transmit_contexts: usize::MAX,
            shared_receive_contexts: usize::MAX,
        }
    }
}

impl EndpointAttributes {
    pub(crate) fn of(kind: EndpointKind, config: &Config, max_message_size: u64) -> Self {
        Self {
            kind,
            protocol: Protocol::EfaRdm,
            protocol_version: efa_proto::VERSION,
            address_size: Address::SIZE,
            max_message_size,
            max_medium: config.max_medium,
            min_multi_receive: config.min_multi_receive,
            message_prefix_size: 0,
            max_read_after_write_size: 0,
            max_write_after_read_size: 0,
            max_write_after_write_size: 0,
            transmit_contexts: 1,
            receive_contexts: 1,
            mem_tag_format: 0xaaaa_aaaa_aaaa_aaaa,
        }
    }
}

impl TransmitAttributes {
    /// `inject_size` comes from the engine, which knows the length of its headers.
    pub(crate) fn of(capabilities: Capabilities, config: &Config, inject_size: usize) -> Self {
        Self {
            capabilities: capabilities.transmitting(),
            mode: Mode::empty(),
            flags: OperationFlags::TRANSMIT,
            message_order: MessageOrder::SendAfterSend,
            completion_order: CompletionOrder::Unordered,
            inject_size,
            size: config.max_sends,
            iov_limit: MOST_PIECES,
            rma_iov_limit: efa_proto::MAX_IOV,
        }
    }
}

impl ReceiveAttributes {
    pub(crate) fn of(capabilities: Capabilities, config: &Config) -> Self {
        Self {
            capabilities: capabilities.receiving(),
            mode: Mode::empty(),
            flags: OperationFlags::RECEIVE,
            message_order: MessageOrder::SendAfterSend,
            completion_order: CompletionOrder::Unordered,
            total_buffered: config.bounds.unexpected,
            size: config.max_receives,
            iov_limit: MOST_PIECES,
        }
    }
}

//! Reliable, ordered, tagged messages and remote memory access over EFA, with libfabric's objects, in safe
//! Rust.
//!
//! It speaks the [EFA RDM protocol v4][specification].
//!
//! [specification]: https://github.com/ofiwg/libfabric/blob/main/prov/efa/docs/efa_rdm_protocol_v4.md
//!
//! ```text
//!   Fabric ──► Domain ──► AddressVector ────┐
//!              (device)   CompletionQueue ──┼─► EndpointBuilder ──enable──► Endpoint
//!                         Counter ──────────┤                                │
//!                         MemoryRegion      │                                │
//!                              │            │                     send, receive, write, …
//!                              ▼            │                                │
//!                            Buffer ────────┼──── moves into the operation ──┘
//!                              ▲            ▼
//!                              └─── CompletionQueue::read ─► Completion
//! ```
//!
//! * **Buffers are owned.** An operation takes its buffer and the completion returns it. So dropping,
//!   leaking or cancelling never lets a device write into memory that is used for something else.
//! * **Objects hold what they depend on** and may be dropped in any order.
//! * **Progress is manual** by default (`FI_PROGRESS_MANUAL`): reading a completion queue or counter
//!   progresses its endpoints, and no thread of the library does. With
//!   [`DomainOptions::progress`](DomainOptions#structfield.progress) a domain has one thread, which does that
//!   and sleeps while nothing happens. ([`discover`] has a thread look up a node that is no IP address, for as long as
//!   the system's resolver takes.)
//! * **Waiting polls or sleeps.** [`CompletionQueue::wait`] and [`Counter::wait`] block the thread, so don't
//!   call them in an async task (those have the module `with_tokio`). They poll, unless the object was made by
//!   [`Domain::waitable_completion_queue`] or [`Domain::waitable_counter`]: then they sleep, and the object
//!   has a descriptor for poll, select and epoll. On an EFA interface they take completion channels of rdma-core;
//!   where an interface doesn't notify, making one fails.
//! * **Logs go to `tracing`**, and appear if the program installs a subscriber.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use efa::{
//!     CompletionQueueOptions, Direction, EndpointOptions, Fabric, LocalOptions, Message, Receive,
//! };
//!
//! let domain = Fabric::local(LocalOptions::default()).domain()?;
//! let queue = domain.completion_queue(CompletionQueueOptions::default());
//! let addresses = domain.address_vector();
//! let endpoint = || {
//!     domain
//!         .endpoint(EndpointOptions::default())
//!         .bind_completion_queue(&queue, Direction::Both)
//!         .bind_address_vector(&addresses)
//!         .enable()
//! };
//! let (alice, bob) = (endpoint()?, endpoint()?);
//!
//! bob.receive(Receive::tagged(7), vec![0; 64], 1)?;
//! let to_bob = addresses.insert(bob.address())?;
//! alice.send(Message::to(to_bob).tagged(7), "hello", 2)?;
//!
//! let received = loop {
//!     let completion = queue.wait(Duration::from_secs(10))?;
//!     if completion.is_received() {
//!         break completion;
//!     }
//! };
//! assert_eq!((received.endpoint, received.context), (bob.id(), 1));
//! assert_eq!(received.into_message(), *b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`guide`] walks through the objects, in the order of libfabric's programmer's guide, and has tables of what each of
//! its calls is here.
//!
//! # More examples
//!
//! In the directory `examples` of this crate; each shows its output in its first comment:
//!
//! | example | shows |
//! |---|---|
//! | `hello` | two endpoints, one tagged message |
//! | `two_processes` | two processes of one host, over shared memory ([`Fabric::shm`]) |
//! | `two_hosts` | two hosts that exchange addresses, over TCP ([`Fabric::tcp`]) |
//! | `multi_receive` | one buffer for many messages ([`Endpoint::receive_many`]) |
//! | `counters` | waiting for a number of operations ([`Counter`]) |
//! | `errors` | errors of operations, a lost peer, and how to go on |
//! | `in_place` | messages received without a copy ([`Endpoint::receive_in_place`]) |
//! | `msg_pingpong` | two processes with a connection: listen, connect, accept, shut down ([`MsgEndpoint`]) |
//! | `scalable` | one address for several receive contexts, a transmit context a thread ([`ScalableEndpoint`]) |
//! | `event_loop` | one thread that sleeps in epoll for a completion queue, an event queue and a socket ([`Fabric::try_wait`]) |
//! | `tokio_pingpong` | two processes of tokio, whose operations are futures (feature `tokio`) |
//! | `tokio_connections` | a server of tokio with a task for each connection (feature `tokio`) |
//! | `remote_memory` | writes, reads and atomics on memory of a peer ([`Rma`]) |
//!
//! # Links
//!
//! [`Fabric::verbs`] opens an EFA interface. The software device needs no hardware: [`Fabric::shm`] connects
//! processes of one host, [`Fabric::tcp`] hosts, and [`Fabric::local`] is a simulated network in one
//! process, with faults, for tests.
//!
//! [`discover`] lists what this machine offers to a program that has wishes: an [`Info`] for each link, with all
//! attributes, from which fabric ([`Fabric::open`]), domain and endpoint are opened. [`Environment`] reads the
//! variables of libfabric, for programs that want their users to have them.
//!
//! # Features
//!
//! * `sim` (default): the software device. Without it, none of its types is in the API, and a fabric is an
//!   EFA interface.
//! * `capture`: `sim::Capture` writes the packets of the software device into pcapng files.
//! * `tokio`: completions and events as streams, operations and connections as futures (module `with_tokio`). It adds the
//!   dependencies tokio and futures-core.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "sim"),
    allow(rustdoc::broken_intra_doc_links, reason = "they lead to the software device")
)]

mod address;
mod address_vector;
mod any_driver;
mod attributes;
mod background;
mod bound_endpoints;
mod buffer;
mod capabilities;
mod claim;
mod clock;
mod completion;
mod completion_queue;
mod connection;
mod counter;
mod cq_binding;
mod device;
mod discovery;
mod domain;
mod driver;
mod endpoint;
mod endpoint_builder;
mod endpoint_options;
mod environment;
mod error;
mod event;
mod fabric;
mod format;
pub mod guide;
mod hints;
mod info;
mod injected;
mod insertion;
mod keys;
#[cfg(feature = "sim")]
mod link_options;
mod log_filter;
mod message;
mod name_filter;
mod named;
mod object;
mod packet;
mod peer_map;
mod pieces;
mod region;
mod registrations;
mod reporters;
mod resolve;
mod rma;
mod room;
mod scalable;
mod scalable_address;
mod send_budget;
mod shared_receive_queue;
mod usable;
mod wait;
#[cfg(feature = "tokio")]
pub mod with_tokio;

/// The software device: options of its links, faults of the simulated network, and captures (feature `capture`). The rest
/// of it is in the crate `efa-sim`.
///
/// ```no_run
/// # #[cfg(feature = "capture")] {
/// use efa::Fabric;
/// use efa::sim::{Capture, SharedSink, ShmOptions};
///
/// let capture = SharedSink::new(Capture::create("run.pcapng", "alice")?);
/// let options = ShmOptions::new("host").with(|options| options.capture = Some(capture.clone()));
/// let domain = Fabric::shm(options).domain()?;
/// // … and when a reader shall find all packets so far, and at the end; an error if some are missing:
/// capture.flush()?;
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reading it, with the crate `efa-proto` for the packets:
///
/// ```no_run
/// # #[cfg(feature = "capture")] {
/// use efa::sim::CaptureReader;
/// use efa_proto::Packet;
///
/// let mut reader = CaptureReader::open("run.pcapng")?;
/// while let Some(captured) = reader.next_captured().transpose()? {
///     let record = &captured.record;
///     let nanoseconds = record.time.as_nanos();
///     // For whole packets and for cut ones.
///     match Packet::parse_cut(&record.bytes, captured.length) {
///         Ok(packet) => println!("{nanoseconds} {:?} {} {packet:?}", record.event, record.source),
///         Err(error) => println!("{nanoseconds} {:?} {} {error}", record.event, record.source),
///     }
/// }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "sim")]
pub mod sim {
    pub use efa_device::Rdma;
    #[cfg(feature = "capture")]
    pub use efa_sim::capture::{Capture, CaptureError, CaptureReader, Captured};
    pub use efa_sim::faults::{FaultOptions, Refusals};
    pub use efa_sim::local::{Faults, LocalFabric, LocalOptions, Reorder, Statistics};
    pub use efa_sim::record::{
        PacketEvent, QueuePairId, Record, SharedSink, Sink, SinkError, Trace,
    };
    pub use efa_sim::shm::ShmOptions;
    pub use efa_sim::tcp::TcpOptions;
}

pub use address::{Address, AddressError};
pub use address_vector::{AddressVector, AddressVectorOptions, ContextError, FiAddr};
pub use attributes::{
    AddressFormat, AddressVectorKind, AtomicAttributes, CompletionOrder, DomainAttributes,
    DomainHints, DomainLimitHints, DomainLimits, EndpointAttributes, EndpointHints, EndpointKind,
    LocalRegistration, MessageOrder, Progress, Protocol, ReceiveAttributes, ReceiveHints,
    RegistrationMode, ResourceManagement, Threading, TransmitAttributes, TransmitHints,
};
pub use buffer::{Buffer, ReceiveBuffer};
pub use capabilities::{Capabilities, Mode, OperationFlags};
pub use claim::{Claim, ClaimRefused, UnexpectedMessage};
pub use clock::{Clock, ManualClock};
pub use completion::{Completion, CompletionError, Kind, Refused, StartError};
pub use completion_queue::{CompletionQueue, CompletionQueueOptions, Entry, WaitError};
pub use connection::{
    ConnectError, ConnectionRequest, ControlError, ControlEvent, EventQueue, EventQueueFull,
    EventQueueOptions, EventWaitError, Listener, MsgEndpoint, MsgEndpointBuilder,
    MsgEndpointOptions, NotAnswered, PassiveEndpoint, PassiveEndpointOptions, StartConnectError,
};
pub use counter::{Counted, Counter, CounterError, CounterEvents, CounterOptions};
pub use discovery::{Named, Query, Version, discover, info, interfaces};
pub use domain::{Domain, DomainOptions};
pub use efa_connect::{DataTooLong, FrameError, FrameKind, ProtocolError};
pub use efa_device::{
    Access, DeviceError, ForeignMemory, Gid, LentBytes, LentBytesMut, Qpn, RegisterError, Shortage,
    Status, Time,
};
pub use efa_handshake::Release;
pub use efa_proto::PacketType;
pub use efa_rdm::{
    AccessError, AtomicKind, AtomicOp, BackoffLimits, Bounds, Config, ConfigError, Datatype,
    DropReason, Excess, HashSeed, Level, OperationError, Origin, RemoteUse,
    StartError as EngineStartError, Statistics, Subprotocol, TooManyPieces, UnexpectedHeader,
};
pub use endpoint::{Endpoint, EndpointId};
pub use endpoint_builder::{Direction, EndpointBuilder};
pub use endpoint_options::{ContextOptions, EndpointOptions, Receiving};
pub use environment::{Environment, Mistake, Parameter, ParameterKind, Value};
pub use error::{Bound, CloseError, EnableError, Error, Wanted};
pub use event::Event;
pub use fabric::Fabric;
pub use format::{
    ContextEntry, DataEntry, Format, FormatError, FormattedEntry, MessageEntry, TaggedEntry,
};
pub use hints::Hints;
pub use info::{Info, Link};
pub use insertion::InsertionError;
pub use keys::{KeyError, KeyedRegisterError, Reservation};
#[cfg(feature = "sim")]
pub use link_options::LinkOptions;
pub use log_filter::{LogFilter, LogLevel};
pub use message::{Message, Receive, ReceiveId};
pub use name_filter::{NameFilter, NameFilterError};
pub use object::{Class, Object};
pub use packet::Packet;
pub use pieces::TooManyBuffers;
pub use region::{LocalAccess, MemoryRegion, OutOfRegion, RegionSlice};
pub use registrations::{RegistrationCounts, RegistrationLimits};
pub use resolve::AddressFamily;
pub use rma::{AtomicRefused, Element, Operation, RemoteMemory, RemoteMemoryError, Rma};
pub use scalable::{
    NoSuchContext, ReceiveContext, ScalableEndpoint, ScalableEndpointBuilder, ScalableOptions,
    TransmitContext,
};
pub use scalable_address::{ScalableAddress, ScalableAddressError};
pub use send_budget::{SendBudget, SendBudgetOptions};
pub use shared_receive_queue::{SharedReceiveQueue, SharedReceiveQueueOptions};
#[cfg(feature = "sim")]
pub use sim::{LocalOptions, ShmOptions, TcpOptions};
pub use wait::{PollSet, TryWaitError, Wait, WaitSet, Waitable};

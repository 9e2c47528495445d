//! Reliable datagram messaging over EFA, with the objects of OFI, in safe Rust.
//!
//! ```text
//!   Fabric ──► Domain ──► AddressVector ────┐
//!              (device)   CompletionQueue ──┼─► EndpointBuilder ──enable──► Endpoint
//!                         Counter ──────────┤                                │
//!                         MemoryRegion      │                                │
//!                              │            │                     send, receive, write, …
//!                              ▼            │                                │
//!                            Buffer ────────┼── goes in with the operation ──┘
//!                              ▲            ▼
//!                              └─── CompletionQueue::read ─► Completion
//! ```
//!
//! An operation takes its buffer along and its completion brings it back, so no drop, leak or
//! cancel can let memory be written that is used for something else. Objects hold what they
//! depend on; they may be dropped in any order. Reading a completion queue is what moves the
//! operations of its endpoints on: there are no threads behind one's back.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use efa::*;
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
//! assert_eq!(received.context, 1);
//! assert_eq!(received.into_message(), *b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod address;
mod address_vector;
mod any_driver;
mod bound_endpoints;
mod buffer;
mod clock;
mod completion;
mod completion_queue;
mod counter;
mod cq_binding;
mod device;
mod domain;
mod driver;
mod endpoint;
mod endpoint_builder;
mod endpoint_options;
mod environment;
mod error;
mod event;
mod fabric;
mod info;
mod message;
mod packet;
mod peer_map;
mod region;
mod registrations;
mod rma;

pub use address::{Address, AddressError};
pub use address_vector::{AddressVector, FiAddr};
pub use buffer::{Buffer, ReceiveBuffer};
pub use clock::{Clock, ManualClock};
pub use completion::{Completion, CompletionError, Kind, Refused, StartError};
pub use completion_queue::{CompletionQueue, CompletionQueueOptions, Entry, WaitError};
pub use counter::{Counted, Counter, CounterError, CounterEvents, CounterOptions};
pub use domain::Domain;
pub use efa_device::{Access, DeviceError, Gid, Qpn, Status, Time};
pub use efa_handshake::Release;
pub use efa_proto::PacketType;
pub use efa_rdm::{
    AccessError, AtomicKind, AtomicOp, BackoffLimits, Bounds, Config, ConfigError, Datatype,
    DropReason, Excess, Level, OperationError, RemoteUse, Statistics, Subprotocol, TooManyPieces,
    UnexpectedHeader,
};
pub use efa_sim as sim;
pub use efa_sim::local::LocalOptions;
pub use efa_sim::shm::ShmOptions;
pub use efa_sim::tcp::TcpOptions;
pub use endpoint::{Endpoint, EndpointId};
pub use endpoint_builder::{Direction, EndpointBuilder};
pub use endpoint_options::{EndpointOptions, Receiving};
pub use environment::{Environment, Mistake, Parameter, ParameterKind, Value};
pub use error::{Bound, CloseError, EnableError, Error, Wanted};
pub use event::Event;
pub use fabric::{Fabric, info, interfaces};
pub use info::{
    AddressVectorKind, Capabilities, DomainAttributes, EndpointAttributes, EndpointKind, Hints,
    Info, Link, MessageOrder, Progress, ResourceManagement, Threading,
};
pub use message::{Message, Receive, ReceiveId};
pub use packet::Packet;
pub use region::{MemoryRegion, OutOfRegion, RegionSlice, RegisterError};
pub use registrations::{RegistrationCounts, RegistrationLimits};
pub use rma::{Element, Operation, RemoteMemory, Rma};

//! An EFA interface through rdma-core: libibverbs, and libefa for what is specific to EFA.
//!
//! It implements the traits of [`efa_device`]. Both libraries are loaded at run time, so a program needs
//! neither them nor their headers to be built, and runs on machines without them. Where there is no
//! interface, the same code runs on the software device: preload `libefa_soft.so` of `efa-softverbs`, as
//! the tests here do.
//!
//! ```text
//!   VerbsDevice ── attributes, gid ─────────────────┐  one opened interface
//!    │  ├─ Context            ibv_open_device       │
//!    │  ├─ ProtectionDomain   ibv_alloc_pd          │  each owner destroys what it created,
//!    │  │   └─ HandleCache    ibv_create_ah         │  after everything that depends on it
//!    │  └─ RegionTable        ibv_reg_mr            │
//!    └► VerbsQueuePair ── post_send, poll, … ───────┘
//!        ├─ QueuePair         efadv_create_qp_ex (SRD), ibv_wr_… with one doorbell per batch
//!        ├─ CompletionQueue   efadv_create_cq, several completions per poll
//!        ├─ Outstanding       packets and regions of posted work requests
//!        └─ PacketPool        slabs of registered packets
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `library` | loads libibverbs and libefa: function pointers by name and symbol version |
//! | `abi` | their C structures and constants |
//! | `context` | the device list, an opened interface, its attributes |
//! | `domain`, `handles`, `memory` | protection domain, address handles, memory regions |
//! | `packet` | packets in registered slabs |
//! | `channel` | completion channels, for threads that sleep |
//! | `completion_queue`, `queue_pair` | the hot path |
//! | `fork` | what a forked child leaves to its parent |
//! | `device` | [`efa_device::Device`] and [`efa_device::QueuePair`] on top of these |
//!
//! # Guarantees
//!
//! * A [waitable](efa_device::QueuePairOptions::waitable) queue pair has a completion channel, where the
//!   interface notifies ([`VerbsDevice::check_notifies`]). Others don't, and pay nothing for it.
//! * Posts and polls take no lock, allocate nothing and make no system call; libefa takes a spin lock
//!   per batch. They call the libraries through function pointers that were read when the queue pair was
//!   created. Registered memory of applications is copied under a lock of its region.
//! * The interface never accesses freed memory: the queue pair owns a buffer from its post to its
//!   completion, and is destroyed before its buffers are freed.
//! * A child of `fork` that drops what it inherits destroys nothing of its parent's. It must not use it otherwise.
//! * Errors name the call, the interface and the error number:
//!   `efadv_create_qp_ex on rdmap0s6 failed: Cannot allocate memory (os error 12)`.
//! * rdma-core 43 is enough. A missing or older library is an error that says what to install
//!   ([`LoadError`]). Functions of newer releases are used where the loaded library has them.
//!
//! # Example
//!
//! ```
//! use efa_device::{Device, DeviceError};
//! use efa_verbs::VerbsDevice;
//!
//! match VerbsDevice::open(None) {
//!     Ok(device) => println!("{} at {}", device.attributes().name, device.gid()),
//!     Err(DeviceError::Absent { reason }) => println!("{reason}"),
//!     Err(error) => return Err(error),
//! }
//! # Ok::<(), DeviceError>(())
//! ```

#![allow(unsafe_code, reason = "calls of C libraries, and memory that an interface accesses")]

#[doc(hidden)]
pub mod abi;
mod channel;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
mod completion_queue;
mod context;
mod device;
mod domain;
mod failure;
mod fork;
mod handles;
mod library;
mod memory;
mod packet;
mod queue_pair;

pub use context::{Presence, interfaces, presence};
pub use device::{Counters, VerbsDevice, VerbsQueuePair};
pub use library::{LibraryReport, LoadError, Symbol, library_reports};
pub use memory::VerbsRegion;
pub use packet::Packet;

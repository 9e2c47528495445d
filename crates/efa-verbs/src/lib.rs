//! An EFA device through rdma-core: libibverbs, and libefa for what is EFA's own.
//!
//! It is one of the devices under [`efa_device`]'s seam. Whoever has a network interface of the
//! Elastic Fabric Adapter runs the protocol on it with this crate, and whoever has none runs the
//! very same code on the software device: preload `libefa_soft.so` of `efa-softverbs`, as the tests
//! here do.
//!
//! ```text
//!   VerbsDevice ── attributes, gid ─────────────────┐  one interface, opened
//!    │  ├─ Context            ibv_open_device       │
//!    │  ├─ ProtectionDomain   ibv_alloc_pd          │  each owner ends what it made,
//!    │  │   └─ HandleCache    ibv_create_ah         │  after all that depend on it
//!    │  └─ RegionTable        ibv_reg_mr            │
//!    └► VerbsQueuePair ── post_send, poll, … ───────┘
//!        ├─ QueuePair         efadv_create_qp_ex (SRD), ibv_wr_… with one doorbell a batch
//!        ├─ CompletionQueue   efadv_create_cq, several completions a poll
//!        ├─ Slots             who owns the buffers that the device has
//!        └─ PacketPool        slabs of packets, registered
//! ```
//!
//! | file | what |
//! |---|---|
//! | [`efadv`] | libefa's direct verbs, by hand: rdma-sys has none |
//! | `context` | the list of devices, an opened one, what it is and can do |
//! | `domain`, `handles`, `memory` | protection domain, address handles, memory regions |
//! | `packet` | packets in registered slabs |
//! | `completion_queue`, `queue_pair` | the hot path |
//! | `device` | all of that as [`efa_device::Device`] and [`efa_device::QueuePair`] |
//!
//! # Promises
//!
//! * Nothing on the way of a packet (post, poll) takes a lock, allocates, or makes a system call;
//!   libefa takes a spin lock a batch. Registered memory of applications is copied under a lock of
//!   its region.
//! * The device never has memory that can be freed: a buffer is owned by the queue pair from its
//!   post to its completion, and the queue pair is destroyed before its buffers are.
//! * Errors name the call, the interface and the error number:
//!   `efadv_create_qp_ex on rdmap0s6 failed: errno 12`.
//! * What newer releases of rdma-core brought is used where it is found at run time. Version 44
//!   (Debian 12) is enough.
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

// Every block says why it holds.
#![allow(unsafe_code)]

mod completion_queue;
mod context;
mod device;
mod domain;
pub mod efadv;
mod failure;
mod handles;
mod memory;
mod packet;
mod queue_pair;
mod slots;

pub use context::{Presence, interfaces, presence};
pub use device::{Counters, VerbsDevice, VerbsQueuePair};
pub use memory::VerbsRegion;
pub use packet::Packet;

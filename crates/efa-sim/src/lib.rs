//! A software EFA device.
//!
//! For hosts without EFA hardware: a device that implements the traits of [`efa_device`] and behaves like
//! one. It delivers reliable datagrams up to an MTU, once each and in any order (section 1.1 of the EFA RDM
//! protocol), to queue pairs with a GID, a number and a queue key.
//!
//! Sections are those of the [EFA RDM protocol v4][specification].
//!
//! [specification]: https://github.com/ofiwg/libfabric/blob/main/prov/efa/docs/efa_rdm_protocol_v4.md
//!
//! ```text
//!               efa_device::{Device, QueuePair, Region}
//!                                  ▲
//!                  SoftDevice, SoftQueuePair, SoftRegion
//!             ▲                    ▲                     ▲
//!           local                 shm                   tcp
//!    one process, seeded,  processes of one host,  several hosts,
//!    virtual time, faults  rings in shared memory  TCP connections
//!             └──────────────► record ◄──────────────────┘
//!                                 ▼
//!                              capture
//! ```
//!
//! * [`local`]: hosts and network in one process. A seed reproduces a run; tests can inject delays, full
//!   queues, lost peers and other faults.
//! * [`shm`]: processes of one host, over shared memory. Linux.
//! * [`tcp`]: queue pairs of several hosts, over TCP. Linux.
//! * [`tm`]: models of devices with tag matching, which EFA devices don't have.
//! * [`record`]: records of the packets on a link, in memory; [`capture`]: in pcapng files.
//! * [`region`]: registered memory and its keys; [`faults`]: faults of the shm link.
//!
//! # Forks
//!
//! A child forked without `exec` has no use of the shm and tcp devices of its parent: rings, files and sockets
//! stay the parent's alone, and whatever the child does with its copies, or when it ends, changes nothing there. In the
//! child, posts and new queue pairs fail with [`Inconsistent`](efa_device::DeviceError::Inconsistent) ("forked
//! child"); on connected queue pairs the first post may be accepted and complete with an error. Nothing is received, and
//! what was under way at the fork may not complete. The child can open devices of its own.
//!
//! # Example
//!
//! Two hosts; one sends, the other receives.
//!
//! ```
//! use efa_device::{
//!     Completion, Destination, Device, DeviceError, Qkey, QueuePair, QueuePairAddress, QueuePairOptions,
//!     SendRequest, WorkId,
//! };
//! use efa_sim::local::{LocalFabric, LocalOptions};
//!
//! let fabric = LocalFabric::new(LocalOptions::default().with(|options| options.seed = 1));
//! let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(0x11));
//! let mut alice = fabric.open().create_queue_pair(options)?;
//! let mut bob = fabric.open().create_queue_pair(options)?;
//!
//! let buffer = bob.allocate_packet()?;
//! bob.post_receive(buffer).map_err(|refused| refused.error)?;
//!
//! let QueuePairAddress { gid, qpn, qkey } = bob.address();
//! let address_handle = alice.create_address_handle(gid)?;
//! let mut packet = alice.allocate_packet()?;
//! packet[..5].copy_from_slice(b"hello");
//! let destination = Destination { address_handle, qpn, qkey };
//! alice
//!     .post_send(SendRequest { id: WorkId(7), packet, length: 5, destination, immediate: None })
//!     .map_err(|refused| refused.error)?;
//!
//! // Time is virtual: advance it to the next event.
//! let arrival = bob.next_event().expect("a packet is in flight");
//! let Some(Completion::Receive { packet, length, source, .. }) = bob.poll(arrival) else { panic!() };
//! assert_eq!(&packet[..length], b"hello");
//! assert_eq!(source.gid, Some(alice.address().gid));
//! assert_eq!(source.address_handle, None, "bob has no address handle for her");
//!
//! let completed = alice.next_event().expect("the completion is in flight");
//! let Some(Completion::Send { id, result, .. }) = alice.poll(completed) else { panic!() };
//! assert_eq!((id, result), (WorkId(7), Ok(())));
//! # Ok::<(), DeviceError>(())
//! ```

#![deny(unsafe_code)]
#![cfg_attr(
    not(feature = "capture"),
    allow(rustdoc::broken_intra_doc_links, reason = "they lead to captures")
)]

pub mod address_table;
mod book;
#[cfg(feature = "capture")]
pub mod capture;
pub mod faults;
mod fork;
mod keys;
mod link;
pub mod local;
mod lock;
mod map;
mod memory;
mod pins;
pub mod record;
pub mod region;
pub mod shm;
mod soft;
mod store;
pub mod tcp;
pub mod tm;

pub use self::link::{KeptNumber, LinkQueuePair};
pub use self::region::SoftRegion;
pub use self::soft::{SoftDevice, SoftQueuePair};

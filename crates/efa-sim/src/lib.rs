//! A software EFA device.
//!
//! It gives everyone who has no EFA hardware a device with the same behaviour at the same seam
//! ([`efa_device`]): datagrams up to an MTU, reliable, delivered once, in no order (section 1.1 of
//! the EFA RDM protocol), to queue pairs that are reached by GID, number and key.
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
//! * [`local`]: hosts and network in one process. Every run can be replayed from its seed, and
//!   delays, full queues, lost peers and more can be brought about at will.
//! * [`shm`]: the processes of one host, over shared memory, as fast as that goes. Linux.
//! * [`tcp`]: queue pairs of several hosts, over TCP. Linux.
//! * [`tm`]: a device of another kind, with the tag matching that EFA devices don't have.
//! * [`record`]: what passes on a link, kept in memory; [`capture`]: the same as a pcapng file.
//!
//! * [`region`]: registered memory and its keys; [`faults`]: what goes wrong on links that are in
//!   order by themselves.
//!
//! # Example
//!
//! Two hosts; one sends, the other receives.
//!
//! ```
//! use efa_device::*;
//! use efa_sim::local::{LocalFabric, LocalOptions};
//!
//! let fabric = LocalFabric::new(LocalOptions::default().with(|options| options.seed = 1));
//! let options = QueuePairOptions { qkey: Qkey(0x11), ..QueuePairOptions::default() };
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
//! // No clock runs: go to the moment at which something happens.
//! let arrival = bob.next_event().expect("a packet is on its way");
//! let Some(Completion::Receive { packet, length, source, .. }) = bob.poll(arrival) else { panic!() };
//! assert_eq!(&packet[..length], b"hello");
//! assert_eq!(source.gid, Some(alice.address().gid));
//! assert_eq!(source.address_handle, None, "bob has no address handle for her");
//!
//! let answered = alice.next_event().expect("the answer is on its way");
//! let Some(Completion::Send { id, result, .. }) = alice.poll(answered) else { panic!() };
//! assert_eq!((id, result), (WorkId(7), Ok(())));
//! # Ok::<(), DeviceError>(())
//! ```

#![deny(unsafe_code)]

mod book;
pub mod capture;
pub mod faults;
mod keys;
mod link;
pub mod local;
mod map;
mod memory;
pub mod record;
pub mod region;
pub mod shm;
mod soft;
pub mod tcp;
pub mod tm;

pub use self::link::{KeptNumber, LinkQueuePair};
pub use self::region::SoftRegion;
pub use self::soft::{SoftDevice, SoftQueuePair};

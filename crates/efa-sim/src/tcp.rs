//! The tcp link: queue pairs of several hosts, over TCP.
//!
//! Section 1.1 of the EFA RDM protocol: datagrams up to the MTU, reliable. Between two queue pairs
//! they arrive in order unless [`reorder`](TcpOptions::reorder) is set.
//!
//! ```text
//!      host 10.0.0.1                                          host 10.0.0.2
//!  ┌──────────────────┐                                   ┌──────────────────┐
//!  │ TcpQueuePair 4001│── packets ─► connection ─────────►│ TcpQueuePair 4002│
//!  │  listens on 4001 │◄──────────────────────  answers ──│  listens on 4002 │
//!  │                  │◄──────────── connection ◄ packets─│                  │
//!  │                  │── answers  ──────────────────────►│                  │
//!  └──────────────────┘                                   └──────────────────┘
//! ```
//!
//! * A host is an IP address; its GID is that address, as IPv6 or mapped into it. A queue pair's
//!   number is the TCP port it listens on. So GID and number tell where to connect, and nothing else
//!   is needed to find a peer.
//! * There is a connection for each direction between two queue pairs. It is made by the first send
//!   and stays until one of the two is dropped.
//! * Nothing runs by itself, and no call waits. The first packet that is posted to a peer between two
//!   polls leaves at once, the others leave together with the next poll; packets are received by a
//!   poll, and answered by the first poll that finds no completion to give. So who is about to wait
//!   for something else polls until there is none.
//! * Whoever can connect can send: it is a link for tests and for trusted networks. What comes over a
//!   connection is checked, what is wrong closes it and is [counted](TcpQueuePair::statistics), and
//!   what one connection can make this side keep is bounded.
//!
//! # What a send meets
//!
//! | at the target | the send completes with |
//! |---|---|
//! | a posted buffer | `Ok` |
//! | no buffer within `rnr_retry` × [`rnr_delay`](TcpOptions::rnr_delay) of its polling | [`Status::ReceiverNotReady`]; never for `rnr_retry` 7 |
//! | a shorter buffer | [`Status::RemoteBadLength`]; the buffer stays posted |
//! | nobody who listens, a queue pair that is dropped or retired meanwhile, or another queue key | [`Status::BadDestinationQpn`] |
//! | a process that died | [`Status::UnresponsiveRemote`] |
//! | a host that fell silent, for [`dead_after`](TcpOptions::dead_after) | [`Status::UnresponsiveRemote`] |
//! | a process that lives and doesn't poll | nothing until it does |
//! | no way there, or [`max_peers`](TcpOptions::max_peers) other senders | [`Status::UnreachableRemote`] |
//! | something that listens and is no queue pair | [`Status::BadStatus`] |
//!
//! # RDMA
//!
//! A read or write is a dialogue of the two queue pairs, 32 KiB at a time, with a few such pieces
//! under way. So unlike that of a real device it goes on only while *both* poll. Keys, bounds and
//! access are checked by the target for each piece: [`Status::RemoteBadAddress`]. Immediate data of
//! a write follows when all is written; it takes a posted buffer, and without one it meets what a
//! send meets, and the bytes were written nevertheless. Reads and writes don't wait behind datagrams
//! for which the target has no buffer, unless those are more than about 100 KiB.
//!
//! # Example
//!
//! ```
//! use efa_device::*;
//! use efa_sim::tcp::{TcpDevice, TcpOptions};
//!
//! let device = TcpDevice::open(TcpOptions::new([127, 0, 0, 1]))?;
//! let mut qp = device.create_queue_pair(QueuePairOptions::default())?;
//! let buffer = qp.allocate_packet()?;
//! qp.post_receive(buffer).map_err(|refused| refused.error)?;
//! let QueuePairAddress { gid, qpn, qkey } = qp.address();
//! let destination = Destination { address_handle: qp.create_address_handle(gid)?, qpn, qkey };
//! let packet = qp.allocate_packet()?;
//! qp.post_send(SendRequest { id: WorkId(1), packet, length: 9, destination, immediate: None })
//!     .map_err(|refused| refused.error)?;
//! let clock = std::time::Instant::now();
//! let length = loop {
//!     let now = Time::ZERO + clock.elapsed();
//!     if let Some(Completion::Receive { length, .. }) = qp.poll(now) {
//!         break length;
//!     }
//! };
//! assert_eq!(length, 9);
//! # Ok::<(), DeviceError>(())
//! ```
//!
//! [`Status::ReceiverNotReady`]: efa_device::Status::ReceiverNotReady
//! [`Status::RemoteBadLength`]: efa_device::Status::RemoteBadLength
//! [`Status::BadDestinationQpn`]: efa_device::Status::BadDestinationQpn
//! [`Status::UnresponsiveRemote`]: efa_device::Status::UnresponsiveRemote
//! [`Status::UnreachableRemote`]: efa_device::Status::UnreachableRemote
//! [`Status::RemoteBadAddress`]: efa_device::Status::RemoteBadAddress
//! [`Status::BadStatus`]: efa_device::Status::BadStatus

mod incoming;
mod link;
mod operation;
mod outgoing;
mod socket;
mod statistics;
mod wire;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use efa_device::{
    Access, AddressHandle, Device, DeviceAttributes, DeviceError, Gid, QueuePairOptions, Rdma,
    RegisterError,
};
use fastrand::Rng;
use rustix::io::Errno;

pub use self::link::{TcpLink, TcpQueuePair};
use self::socket::{Listener, endpoint, gid_of};
pub use self::statistics::{TcpStatistics, Violations};
pub use self::wire::Violation;
use crate::book::Book;
use crate::keys::{self, Slots};
use crate::link::vendor_part_id;
use crate::map::Map;
use crate::record::SharedSink;
use crate::region::{KeyTable, MAX_REGIONS, SoftRegion};

/// Most connections to one queue pair.
const MAX_PEERS: usize = 4096;

fn system(operation: impl Into<String>, errno: Errno) -> DeviceError {
    let reason = std::io::Error::from(errno).to_string();
    DeviceError::System { operation: operation.into(), errno: errno.raw_os_error(), reason }
}

/// How to open a host.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TcpOptions {
    /// The address of this host by which the others reach it. Its GID is made of it.
    pub address: IpAddr,
    /// Index of the network interface, if the address is a link-local one of IPv6.
    pub scope_id: u32,
    /// From which numbers, that is ports, queue pairs take the first that is free; any that the
    /// system gives if `None`.
    pub ports: Option<RangeInclusive<u16>>,
    /// Largest datagram in bytes, at most 64 KiB.
    pub mtu: usize,
    /// Most connections to one queue pair at a time, up to 4,096. Each can take about half a MiB.
    pub max_peers: usize,
    /// In which order packets arrive: as they were sent, or by lot, from this seed, among those of a
    /// sender that wait to be taken. Even then what arrives together depends on the system.
    pub reorder: Option<u64>,
    /// Pause between two tries at a receiver without buffers, as this device's queue pairs count
    /// for what is sent to them.
    pub rnr_delay: Duration,
    /// Whether that is counted before a queue pair has posted its first buffer. If not, what is sent
    /// to it waits until then, as a program may take its time to start.
    pub rnr_at_start: bool,
    /// How long a connection may take to say who it is, since a poll noticed it. After that its sender
    /// may take any time, also in the middle of a packet, as it may be busy with something else.
    pub patience: Duration,
    /// When to give up a host that doesn't answer at all, in steps of some seconds; a process that
    /// is only stopped does, by its system. Never if `None`, except that bytes which are not
    /// acknowledged end a connection after a time that the system sets.
    pub dead_after: Option<Duration>,
    /// Whether a receive tells the GID while the device has no address handle for it.
    pub tell_unknown_gid: bool,
    /// Most sends outstanding on a queue pair.
    pub max_send: usize,
    /// Most receive buffers posted on a queue pair.
    pub max_receive: usize,
    /// Most address handles on a device.
    pub max_address_handles: usize,
    /// Most memory regions on a device, at most [`MAX_REGIONS`].
    pub max_regions: usize,
    /// Longest memory region in bytes.
    pub max_region_size: u64,
    /// What the device does to memory of others.
    pub rdma: Rdma,
    /// Most bytes of one RDMA operation.
    pub max_rdma_size: u64,
    /// Who is told of every packet that this device's queue pairs send and receive.
    pub capture: Option<SharedSink>,
}

impl TcpOptions {
    /// These options with some changed:
    ///
    /// ```
    /// let options = efa_sim::tcp::TcpOptions::new([127, 0, 0, 1]).with(|options| options.mtu = 4096);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The host with this address, everything else as usual.
    #[must_use]
    pub fn new(address: impl Into<IpAddr>) -> Self {
        let device = DeviceAttributes::default();
        Self {
            address: address.into(),
            scope_id: 0,
            ports: None,
            mtu: device.mtu,
            max_peers: 256,
            reorder: None,
            // Long, as a receiver may first have to be given the processor.
            rnr_delay: Duration::from_millis(5),
            rnr_at_start: true,
            patience: Duration::from_secs(10),
            dead_after: Some(Duration::from_secs(30)),
            tell_unknown_gid: true,
            max_send: device.max_send,
            max_receive: device.max_receive,
            max_address_handles: device.max_address_handles,
            max_regions: MAX_REGIONS,
            max_region_size: device.max_region_size,
            rdma: Rdma::READ_WRITE,
            max_rdma_size: device.max_rdma_size,
            capture: None,
        }
    }
}

/// A host whose queue pairs are reached over TCP, opened. Clones are the same device.
#[derive(Clone, Debug)]
pub struct TcpDevice {
    attributes: DeviceAttributes,
    book: Arc<Book>,
    keys: KeyTable,
    options: Arc<TcpOptions>,
}

impl TcpDevice {
    /// Opens a host.
    ///
    /// # Errors
    /// [`DeviceError::BadAddress`] for an address that is no host's, as `0.0.0.0`;
    /// [`DeviceError::Absent`] for one that isn't this host's; [`DeviceError::TooLong`] for an MTU
    /// or a number of peers out of range; [`DeviceError::System`].
    pub fn open(mut options: TcpOptions) -> Result<Self, DeviceError> {
        options.address = options.address.to_canonical();
        for (length, limit) in [(options.mtu, wire::MAX_MTU), (options.max_peers, MAX_PEERS)] {
            if length > limit {
                return Err(DeviceError::TooLong { length: length as u64, limit: limit as u64 });
            }
        }
        let address = options.address;
        if address.is_unspecified() || address.is_multicast() {
            return Err(DeviceError::BadAddress { gid: gid_of(address) });
        }
        match Listener::bind(endpoint(address, 0, options.scope_id), 0) {
            Ok(_) => {}
            Err(Errno::ADDRNOTAVAIL | Errno::NODEV | Errno::INVAL) => {
                let reason = format!("{address} is not an address of this host");
                return Err(DeviceError::Absent { reason });
            }
            Err(errno) => return Err(system(format!("listening on {address}"), errno)),
        }
        let attributes = DeviceAttributes {
            name: format!("efa-tcp-{address}"),
            vendor_part_id: vendor_part_id(options.rdma),
            mtu: options.mtu,
            max_send: options.max_send,
            max_receive: options.max_receive,
            max_address_handles: options.max_address_handles,
            max_regions: options.max_regions.min(MAX_REGIONS),
            max_region_size: options.max_region_size,
            rdma: options.rdma,
            max_rdma_size: options.max_rdma_size,
        };
        let (limit, max_size) = (options.max_regions, options.max_region_size);
        let map = Map::anonymous(keys::LENGTH).map_err(|errno| system("mmap", errno))?;
        Ok(Self {
            attributes,
            book: Arc::new(Book::new(gid_of(address), options.max_address_handles)),
            keys: KeyTable::with_slots(limit, max_size, Rng::new(), Some(Slots::new(map))),
            options: Arc::new(options),
        })
    }

    /// The region of this device that `key` names.
    #[must_use]
    pub fn region(&self, key: u32) -> Option<SoftRegion> {
        self.keys.find(key)
    }

    /// The keys of this device's regions.
    #[must_use]
    pub fn keys(&self) -> &KeyTable {
        &self.keys
    }

    /// The handle for an interface, held by the device and not by a queue pair: all its queue pairs
    /// can send to it, until it is [given back](Self::destroy_address_handle).
    ///
    /// # Errors
    /// [`DeviceError::BadAddress`] for the zero GID, [`DeviceError::LimitReached`].
    pub fn create_address_handle(&self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        self.book.acquire(gid)
    }

    /// Gives one count of a handle of [`create_address_handle`](Self::create_address_handle) back.
    pub fn destroy_address_handle(&self, handle: AddressHandle) {
        self.book.release(handle, 1);
    }
}

impl Device for TcpDevice {
    type QueuePair = TcpQueuePair;
    type Region = SoftRegion;

    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn gid(&self) -> Gid {
        gid_of(self.options.address)
    }

    fn create_queue_pair(&self, options: QueuePairOptions) -> Result<TcpQueuePair, DeviceError> {
        link::create(self, options)
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<SoftRegion, RegisterError> {
        self.keys.register(memory, access)
    }
}

//! The tcp link: queue pairs of several hosts, over TCP.
//!
//! Section 1.1 of the EFA RDM protocol: reliable datagrams up to the MTU. Between two queue pairs they
//! arrive in order unless [`reorder`](TcpOptions::reorder) is set.
//!
//! ```text
//!      host 10.0.0.1                                          host 10.0.0.2
//!  ┌──────────────────┐                                   ┌──────────────────┐
//!  │ TcpQueuePair 4001│         one connection            │ TcpQueuePair 4002│
//!  │  listens on 4001 │── packets, acknowledgements ─────►│  listens on 4002 │
//!  │                  │◄───── packets, acknowledgements ──│                  │
//!  └──────────────────┘                                   └──────────────────┘
//! ```
//!
//! * A host is an IP address; its GID is that IPv6 address, or the IPv4-mapped one. A queue pair's number
//!   is the TCP port on which it listens. So GID and number are enough to connect to a peer.
//! * Two queue pairs have one connection for both directions. The first send of either opens it, from the port of its
//!   queue pair, and says the queue key first; so the other side knows whose it is and sends on it too. (If the system
//!   refuses that port, as it does for a minute after a connection between the same two was closed, it chooses another one,
//!   and the other side opens a connection of its own.) It stays until one of the two queue pairs is dropped, or the process
//!   has no more file descriptors: then the oldest on which nothing is under way is closed, and opened again by the next send.
//! * There are no threads, and no call blocks. The first packet posted to a peer between two polls is
//!   written at once, the others together by the next poll. A poll receives packets, and acknowledges them
//!   before it returns the first. What arrives after a program's last poll is not acknowledged.
//! * At most 256 KiB of packets without acknowledgement are on the way to a peer. A packet counts 64 bytes beside its own.
//!   So a peer can keep those for which it has no buffer, and acknowledgements never wait behind packets.
//! * In a conversation the system holds the acknowledgement of a packet back until the answer, so that one packet of TCP goes
//!   each way: for a few polls, or for some 200 ms if the program doesn't poll.
//! * Anyone who can connect can send: the link is for tests and trusted networks. Received bytes are
//!   checked; a violation closes the connection and is [counted](TcpQueuePair::statistics). The memory that
//!   one connection can make this side use is bounded.
//!
//! # Room for senders
//!
//! At most [`max_peers`](TcpOptions::max_peers) others have connected to a queue pair. When one more comes,
//! another connection is closed for it, but none on which packets are under way: first the oldest through which
//! nothing with a valid key has come, then one that has been idle for a second. Of several it is one of the
//! address that has the most, where the addresses of an IPv6 network (/64) count together at first. A busy
//! connection is closed only if its address would still have as many as the new one's.
//!
//! A sender whose connection is closed in this way loses nothing: what was not acknowledged was not received,
//! and it sends that again over a new connection when it has something to send. If there is no room, it tries
//! again, at first after 5 ms and then twice as long each time up to half a second. This takes as long as for
//! a receiver that is not ready: `rnr_retry` × [`rnr_delay`](TcpOptions::rnr_delay), then the sends complete
//! with [`Status::ReceiverNotReady`] and can be posted again.
//!
//! # How sends complete
//!
//! | at the target | the send completes with |
//! |---|---|
//! | a posted buffer | `Ok` |
//! | no buffer within `rnr_retry` × [`rnr_delay`](TcpOptions::rnr_delay) of its polling | [`Status::ReceiverNotReady`]; never for `rnr_retry` 7 |
//! | a shorter buffer | [`Status::RemoteBadLength`]; the buffer stays posted |
//! | no listener, a queue pair dropped or retired meanwhile, or another queue key | [`Status::BadDestinationQpn`] |
//! | a process that died | [`Status::UnresponsiveRemote`] |
//! | a host that doesn't respond for [`dead_after`](TcpOptions::dead_after) | [`Status::UnresponsiveRemote`] |
//! | a live process that doesn't poll | no completion until it polls, except for the next line |
//! | no response for a second, while the send queue of this queue pair is full | [`Status::ReceiverNotReady`] for datagrams of which nothing was written yet; never for `rnr_retry` 7 |
//! | no room for one more sender for `rnr_retry` × [`rnr_delay`](TcpOptions::rnr_delay) | [`Status::ReceiverNotReady`]; never for `rnr_retry` 7 |
//! | no route | [`Status::UnreachableRemote`] |
//! | a listener that is not a queue pair | [`Status::BadStatus`] |
//!
//! # RDMA
//!
//! The two queue pairs exchange a read or write in pieces of 32 KiB, up to 16 in flight. Unlike on a real
//! device it makes progress only while *both* poll. The target checks key, bounds and access for each piece;
//! a failed check completes with [`Status::RemoteBadAddress`]. Immediate data of a write follows when all
//! data is written and takes a posted buffer. Without a buffer it completes as a send does, though the data
//! was written. Reads and writes don't wait behind datagrams for which the target has no buffer, unless
//! those are all that may be on the way.
//!
//! # Example
//!
//! ```
//! use efa_device::{
//!     Completion, Destination, Device, DeviceError, QueuePair, QueuePairAddress, QueuePairOptions,
//!     SendRequest, Time, WorkId,
//! };
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

mod admission;
mod attention;
mod connection;
mod incoming;
mod info;
mod link;
mod outgoing;
mod schedule;
mod silence;
mod socket;
mod statistics;
mod wire;

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use efa_device::{
    Access, AddressHandle, Device, DeviceAttributes, DeviceError, ForeignMemory, Gid,
    QueuePairOptions, Rdma, RegisterError,
};
use fastrand::Rng;
use rustix::io::Errno;

pub use self::link::{TcpLink, TcpQueuePair};
use self::socket::{Listener, address_of, endpoint, gid_of};
pub use self::statistics::{TcpStatistics, Violations};
pub use self::wire::{VERSION, Violation};
use crate::book::Book;
use crate::faults::Draws;
use crate::fork::Opener;
use crate::keys::Slots;
use crate::link::{KeptNumber, system, vendor_part_id};
use crate::record::SharedSink;
use crate::region::{KeyTable, MAX_REGIONS, SoftRegion};

/// Most connections to one queue pair.
const MAX_PEERS: usize = 4096;

/// Options of [`TcpDevice::open`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TcpOptions {
    /// The address of this host that the others connect to. It is the host's GID.
    pub address: IpAddr,
    /// Index of the network interface, for a link-local IPv6 address.
    pub scope_id: u32,
    /// Ports, and so queue pair numbers: each queue pair takes the first free one. `None`: any free port
    /// that the system chooses.
    pub ports: Option<RangeInclusive<u16>>,
    /// Largest datagram in bytes, at most 64 KiB; 8,928 by default.
    pub mtu: usize,
    /// Most connections that one queue pair accepts, up to 4,096. Each takes up to about a MiB. More senders take
    /// turns, as the [module](self#room-for-senders) says. 256 by default.
    pub max_peers: usize,
    /// Seed to reorder packets: the next one is drawn from those of a sender that have arrived. Which ones
    /// have arrived depends on the system, so runs are not reproducible. `None`: in order.
    pub reorder: Option<u64>,
    /// RNR delay of this device's queue pairs as receivers: a send to one without a posted buffer fails
    /// after the sender's `rnr_retry` times this. 5 ms by default.
    pub rnr_delay: Duration,
    /// Whether that time runs before a queue pair has posted its first buffer. If not, sends to it wait
    /// until then, as a program may need time to start. `true` by default.
    pub rnr_at_start: bool,
    /// How long an accepted connection may take to identify its sender, by the clock of the polls. Then it is
    /// closed; a sender that was busy with other work connects again. 10 s by default.
    pub hello_timeout: Duration,
    /// How long a packet whose first bytes have arrived may take, by the clock of the polls. Then the
    /// connection is closed; a sender that was busy with other work connects again and sends the packet
    /// again. Between packets there is no limit. 30 s by default.
    pub frame_timeout: Duration,
    /// After how long a host that doesn't respond is given up, rounded to some seconds. The system of a
    /// stopped process responds for it, however much is under way to it. While the process has no room for what is
    /// under way, the system asks the host more and more rarely: every two minutes in the end, or (since Linux 6.15) after
    /// half of this. A program that polls more rarely than this notices nothing. `None`, or more than some 15 minutes: when
    /// the system's own limit for unacknowledged bytes is reached. 30 s by default.
    pub dead_after: Option<Duration>,
    /// Whether a receive reports the sender's GID if the device has no address handle for it.
    pub report_unknown_gid: bool,
    /// Most sends outstanding on a queue pair; 4,096 by default.
    pub max_send: usize,
    /// Most receive buffers posted on a queue pair; 8,192 by default.
    pub max_receive: usize,
    /// Most address handles on a device; 65,535 by default.
    pub max_address_handles: usize,
    /// Most memory regions on a device, at most [`MAX_REGIONS`], the default.
    pub max_regions: usize,
    /// Longest memory region in bytes; 1 TiB by default.
    pub max_region_size: u64,
    /// The RDMA operations of the device.
    pub rdma: Rdma,
    /// Most bytes of one RDMA operation; 1 GiB by default.
    pub max_rdma_size: u64,
    /// Receives a record of every packet that this device's queue pairs send and receive.
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

    /// The host with this address, with default options.
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
            // Long, as the receiver's process may have to be scheduled first.
            rnr_delay: Duration::from_millis(5),
            rnr_at_start: true,
            hello_timeout: Duration::from_secs(10),
            frame_timeout: Duration::from_secs(30),
            dead_after: Some(Duration::from_secs(30)),
            report_unknown_gid: true,
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

/// An opened host of the tcp link. Clones are the same device.
#[derive(Clone)]
pub struct TcpDevice {
    opener: Opener,
    attributes: DeviceAttributes,
    book: Arc<Book>,
    keys: KeyTable,
    options: Arc<TcpOptions>,
    draws: Draws,
}

impl fmt::Debug for TcpDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpDevice").field("attributes", &self.attributes).finish_non_exhaustive()
    }
}

impl TcpDevice {
    /// Creates a queue pair with the number of one of this device that was
    /// [retired](TcpQueuePair::retire).
    ///
    /// # Errors
    /// As [`create_queue_pair`](efa_device::Device::create_queue_pair), and for a number of another link. After an
    /// error of the system the number may be free.
    pub fn create_queue_pair_again(
        &self,
        number: &KeptNumber,
        options: QueuePairOptions,
    ) -> Result<TcpQueuePair, DeviceError> {
        link::create(self, options, Some(number))
    }

    /// Opens a host.
    ///
    /// # Errors
    /// [`DeviceError::BadAddress`] for an unspecified or multicast address, [`DeviceError::Absent`] for one
    /// that isn't this host's, [`DeviceError::TooLong`] for an MTU or number of peers above its limit,
    /// [`DeviceError::System`].
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
            max_queue_pairs: options
                .ports
                .as_ref()
                .map_or(usize::from(u16::MAX), |ports| ports.len()),
            max_send: options.max_send,
            max_receive: options.max_receive,
            max_address_handles: options.max_address_handles,
            max_regions: options.max_regions.min(MAX_REGIONS),
            max_region_size: options.max_region_size,
            rdma: options.rdma,
            max_rdma_size: options.max_rdma_size,
            ..DeviceAttributes::default()
        };
        let (limit, max_size) = (options.max_regions, options.max_region_size);
        let slots = Slots::new().map_err(|errno| system("mmap", errno))?;
        Ok(Self {
            opener: Opener::this(),
            attributes,
            book: Arc::new(Book::new(gid_of(address), options.max_address_handles)),
            keys: KeyTable::with_slots(limit, max_size, Rng::new(), Some(slots)),
            options: Arc::new(options),
            draws: Draws::default(),
        })
    }

    /// The region of this device with this key.
    #[must_use]
    pub fn region(&self, key: u32) -> Option<SoftRegion> {
        self.keys.find(key)
    }

    /// The keys of this device's regions.
    #[must_use]
    pub fn keys(&self) -> &KeyTable {
        &self.keys
    }

    /// A protection domain: the same device, with address handles of its own. Its queue pairs send to these alone, and
    /// know the senders by these alone.
    #[must_use]
    pub fn domain(&self) -> Self {
        Self { book: Arc::new(self.book.of_another_domain()), ..self.clone() }
    }

    /// An address handle that the device holds, not a queue pair: all its queue pairs can send to it, until
    /// it is [destroyed](Self::destroy_address_handle).
    ///
    /// # Errors
    /// [`DeviceError::BadAddress`] for the zero GID, [`DeviceError::LimitReached`].
    pub fn create_address_handle(&self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        self.book.acquire(gid)
    }

    /// Releases one count of a handle from [`create_address_handle`](Self::create_address_handle).
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

    /// From an address of IPv4 none of IPv6 is reached, nor the other way round; from a loopback address its own host alone,
    /// at any of its addresses.
    fn reaches(&self, gid: Gid) -> bool {
        let (ours, theirs) = (self.options.address.to_canonical(), address_of(gid));
        let is_of_family = ours.is_ipv4() == theirs.is_ipv4();
        let is_of_this_host =
            || theirs.is_loopback() || std::net::UdpSocket::bind((theirs, 0)).is_ok();
        is_of_family && (!ours.is_loopback() || is_of_this_host())
    }

    fn create_queue_pair(&self, options: QueuePairOptions) -> Result<TcpQueuePair, DeviceError> {
        link::create(self, options, None)
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<SoftRegion, RegisterError> {
        self.keys.register(memory, access)
    }

    fn register_foreign(
        &self,
        memory: &ForeignMemory,
        access: Access,
    ) -> Result<SoftRegion, DeviceError> {
        self.keys.register_foreign(memory, access)
    }
}

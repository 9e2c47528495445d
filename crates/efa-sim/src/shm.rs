//! The shm link: processes of one host, over shared memory.
//!
//! Section 1.1 of the EFA RDM protocol: reliable datagrams up to the MTU. Between two queue pairs they
//! arrive in order. The EFA device doesn't promise that, so also test with [faults](ShmOptions::faults) or
//! with the [local link](crate::local).
//!
//! ```text
//!      process A                    /dev/shm/efa-<uid>/<name>                 process B
//!  ┌───────────────┐         ┌──────────────────────────────────┐         ┌───────────────┐
//!  │ ShmQueuePair 7│ sends ─►│ ring 7→9:   slots ► ► ► head     │─► polls │ ShmQueuePair 9│
//!  │               │ polls ◄─│ ring 9→7:   head ◄ ◄ ◄ slots     │◄─ sends │               │
//!  └───────┬───────┘         │ qp-7, qp-9: state, doorbell, …   │         └───────┬───────┘
//!          └── holds the lock of qp-7                 holds the lock of qp-9 ──────┘
//! ```
//!
//! * All processes of a user that open the same *name* in the same directory, by whatever path, are one host and share its
//!   GID, which no other host has.
//! * Each direction between two queue pairs has its own ring, with one writer for each word. Once the
//!   receiver has attached it, no other process can open it by name.
//! * What is a process's own, its queue pair's state and its memory keys, others map for reading only. They
//!   write to the rest of these files, the doorbells and the pins; see [below](self#other-processes).
//! * There are no threads: packets move when their receiver polls. The data path has no system call and
//!   no lock. `now` is used for timeouts and, when a peer has not acknowledged anything for
//!   [`probe_after`](ShmOptions::probe_after), to ask the kernel whether its process is alive.
//!
//! # Sleep
//!
//! A [waitable](QueuePairOptions::waitable) queue pair has a FIFO in the directory, which is readable when
//! somebody has a packet or an acknowledgement for it. Its peers look whether it may sleep after each, which
//! costs them a memory fence, and they write a byte once each time it sleeps. Where the receiver isn't
//! waitable, a sender does nothing more. A queue pair that sleeps looks by itself once a second, as the
//! death of a peer wakes nobody.
//!
//! # How sends complete
//!
//! | at the target | the send completes with |
//! |---|---|
//! | a posted buffer | `Ok` |
//! | no buffer within `rnr_retry` × [`rnr_delay`](ShmOptions::rnr_delay) of its polling | [`Status::ReceiverNotReady`]; never for `rnr_retry` 7 |
//! | a shorter buffer | [`Status::RemoteBadLength`]; the buffer stays posted |
//! | no such queue pair, or one that is dropped or retired, or another queue key | [`Status::BadDestinationQpn`] |
//! | a process that died | [`Status::UnresponsiveRemote`] |
//! | a live process that doesn't poll | no completion until it polls, but for the next line |
//! | the same for a second, while the send queue is full | [`Status::ReceiverNotReady`], if the ring had no room for the packet; never for `rnr_retry` 7 |
//! | [`max_peers`](ShmOptions::max_peers) other senders for [`attach_timeout`](ShmOptions::attach_timeout) | [`Status::UnreachableRemote`] |
//! | another GID | [`Status::UnreachableRemote`] |
//!
//! # RDMA
//!
//! The kernel copies a read or write at once, up to 1 MiB with each poll of the requester; the target need
//! not poll. If it does, its process writes a part of a read of 64 KiB or more, up to half a MiB in a poll, so that two
//! processors copy at a time. Key, bounds and access are checked against the table of the target's process; a failed check
//! completes with [`Status::RemoteBadAddress`]. A target whose device has no address handle for the host fails it with
//! [`Status::UnknownPeer`], as hardware does. Immediate data of a write follows the data through the ring
//! and takes a posted buffer. Without a buffer it completes as a send does, though the data was written.
//!
//! A process needs permission to read the memory of the others (`process_vm_readv(2)`), which processes of
//! one user and one PID namespace have unless the system restricts it: a process that is not dumpable, a seccomp
//! filter, Yama's `ptrace_scope` 2 or 3. Where it has none, for example between containers that share the directory,
//! a read or write is requested from the target's process in pieces of 64 KiB, through a ring of its own: the target
//! makes the same checks, and must poll. [`ShmDevice::copy_obstacle`] has the reason, as far as it is seen when the
//! device is opened; what is forbidden later is requested from then on.
//!
//! Memory that the device itself [allocates](Device::allocate) is shared: the requester maps it once, looks key, bounds and
//! access up in the same table, and copies, in whatever namespace it is. It takes no permission and no system call. At
//! intervals the requester looks whether the target's process still lives.
//!
//! Processes of earlier versions of this link don't answer requests. If there is one when a device is opened, it
//! offers no RDMA ([`ShmDevice::rdma_obstacle`]), and messages of any length go in packets.
//!
//! # Other processes
//!
//! A process of another user can't open the files. One of the same user that follows the link, or writes
//! by mistake wherever its mappings allow it, damages only its own traffic:
//!
//! | it writes to | effect on others |
//! |---|---|
//! | rings of its own | what it sends; its ring is detached when its words break the protocol |
//! | doorbells, entries of senders | delays of up to a second, until the sender or the owner repairs them |
//! | FIFOs | wakes those that sleep; if it reads from them too, a sleep that lasts up to a second longer |
//! | pins | none: the owner has each confirmed from the memory of the process that it names |
//! | regions that devices allocated and it has mapped | their content, whatever their keys allow |
//!
//! One that opens the files of others for writing on purpose, which the system allows to the same user, can
//! do no more to queue pairs that are connected and in use, and to reads and writes between processes that have
//! accessed each other: they check what the files say of a key, and whether a queue pair is there, with the
//! owner's memory or the ring. But it can stop others, as it can by a signal: by truncating a file that they have
//! mapped (SIGBUS), by removing files, or by marking a queue pair as closed before a peer connects. And it can put
//! its own queue pair in the place of another that a peer has not yet connected to. Sealed memory in place of files
//! would prevent that, but not that a process of the same user writes to the memory of another directly, with the
//! very permission that RDMA needs.
//!
//! # Errors of opening
//!
//! [`DeviceError::Inconsistent`] names a directory that belongs to another user or doesn't have mode 0700,
//! a file with unexpected content, or a host name with characters other than letters, digits, `.`, `_` and
//! `-`.
//!
//! # Example
//!
//! ```
//! use efa_device::{
//!     Completion, Destination, Device, DeviceError, QueuePair, QueuePairAddress, QueuePairOptions,
//!     SendRequest, Time, WorkId,
//! };
//! use efa_sim::shm::{ShmDevice, ShmOptions};
//!
//! let device = ShmDevice::open(ShmOptions::new("example"))?;
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
//! [`Status::UnknownPeer`]: efa_device::Status::UnknownPeer

/// What [`handover`] is compiled against, other than in its model.
mod atomic {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
}
mod directory;
mod handover;
mod incoming;
mod link;
mod mailbox;
mod memory;
mod operation;
mod outgoing;
mod pays;
mod permission;
mod requests;
mod ring;
mod sharing;
mod wake;
mod windows;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use self::directory::HostDirectory;
pub use self::link::{ShmLink, ShmQueuePair};
use self::memory::HostMemory;
use self::ring::{MAX_MTU, MAX_SLOTS};
use crate::book::Book;
use crate::faults::{Draws, FaultOptions};
use crate::link::{KeptNumber, vendor_part_id};
use crate::record::SharedSink;
use crate::region::{KeyTable, MAX_REGIONS, SoftRegion};
use efa_device::{
    Access, AddressHandle, Device, DeviceAttributes, DeviceError, ForeignMemory, Gid,
    QueuePairOptions, Rdma, RegisterError,
};

/// Options of [`ShmDevice::open`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ShmOptions {
    /// Name of the host: processes with the same name in the same directory reach each other. 1 to 64 letters,
    /// digits, `.`, `_` and `-`, not starting with `.`. The directory of the name stays when nobody uses it any more, with 8
    /// KiB: take the same name in every run, or remove it at the end.
    pub name: String,
    /// Directory of the hosts; by default `/dev/shm/efa-<uid>`, or `efa-<uid>` in the directory for
    /// temporary files if there is no `/dev/shm`. It is created, with mode 0700, if it doesn't exist; its
    /// parent must exist.
    pub directory: Option<PathBuf>,
    /// Largest datagram in bytes, at most 1 MiB; 8,928 by default. Devices of a host should have the same: a longer datagram than the
    /// receiver's fails with [`Status::RemoteBadLength`](efa_device::Status::RemoteBadLength).
    pub mtu: usize,
    /// Slots of each ring, a power of two up to 65,536; more packets wait in the send queue. A ring takes
    /// this many times the MTU of memory. 64 by default.
    pub ring_slots: usize,
    /// Most queue pairs that can send to one queue pair at a time, up to 4,096. One that requests reads or writes
    /// from it counts twice. 256 by default.
    pub max_peers: usize,
    /// RNR delay of this device's queue pairs as receivers: a send to one without a posted buffer fails
    /// after the sender's `rnr_retry` times this. 5 ms by default.
    pub rnr_delay: Duration,
    /// Whether that time runs before a queue pair has posted its first buffer. If not, sends to it wait
    /// until then, as a program may need time to start. `true` by default.
    pub rnr_at_start: bool,
    /// After how long without acknowledgement to check that the peer's process is alive; 10 ms by default.
    pub probe_after: Duration,
    /// How long to wait for a peer that has `max_peers` other senders; 1 s by default.
    pub attach_timeout: Duration,
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
    /// The RDMA operations of the device; none [where they can't work](self#rdma).
    pub rdma: Rdma,
    /// Most bytes of one RDMA operation; 1 GiB by default.
    pub max_rdma_size: u64,
    /// Whether the kernel copies reads and writes of this device where it can. If not, all are [requested](self#rdma)
    /// from their targets, as between containers.
    pub kernel_copies: bool,
    /// Bytes from which on a message is read and not sent in datagrams
    /// ([`reads_pay_from`](efa_device::DeviceAttributes::reads_pay_from)). `None`: as this machine's copies are
    /// [measured](reads_pay_from).
    pub reads_pay_from: Option<u64>,
    /// Faults of datagrams that this device's queue pairs send.
    pub faults: FaultOptions,
    /// Receives a record of every packet that this device's queue pairs send and receive.
    pub capture: Option<SharedSink>,
}

impl ShmOptions {
    /// These options with some changed:
    ///
    /// ```
    /// let options = efa_sim::shm::ShmOptions::new("host").with(|options| options.mtu = 4096);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The host `name`, with default options.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let device = DeviceAttributes::default();
        Self {
            name: name.into(),
            directory: None,
            mtu: device.mtu,
            ring_slots: 64,
            max_peers: 256,
            // Long, as the receiver's process may have to be scheduled first.
            rnr_delay: Duration::from_millis(5),
            rnr_at_start: true,
            probe_after: Duration::from_millis(10),
            attach_timeout: Duration::from_secs(1),
            report_unknown_gid: true,
            max_send: device.max_send,
            max_receive: device.max_receive,
            max_address_handles: device.max_address_handles,
            max_regions: MAX_REGIONS,
            max_region_size: device.max_region_size,
            rdma: Rdma::READ_WRITE,
            max_rdma_size: device.max_rdma_size,
            kernel_copies: true,
            reads_pay_from: None,
            faults: FaultOptions::NONE,
            capture: None,
        }
    }
}

/// An opened host of the shm link. Clones are the same device.
#[derive(Clone)]
pub struct ShmDevice {
    directory: Arc<HostDirectory>,
    attributes: DeviceAttributes,
    book: Arc<Book>,
    memory: Arc<HostMemory>,
    settings: Arc<ShmOptions>,
    draws: Draws,
    /// Why the device offers no RDMA although the options ask for it.
    obstacle: Option<Arc<str>>,
    /// Why the kernel doesn't copy.
    copy_obstacle: Option<Arc<str>>,
}

/// Bytes from which on reads pay on this link, 12 KiB to 1 MiB: the kernel copies a read once, and a message in datagrams
/// is copied twice. How fast it copies differs between machines, so this is measured, once in a process and in some 100
/// µs. Reads are [requested](self#rdma) where the kernel refuses, which took no longer than datagrams at 1 MiB.
#[must_use]
pub fn reads_pay_from() -> u64 {
    pays::reads_pay_from()
}

/// The same for memory that the device allocated, which the reader has mapped: what doesn't fit one datagram is read.
pub const MAPPED_READS_PAY_FROM: u64 = 9 << 10;

impl fmt::Debug for ShmDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmDevice").field("attributes", &self.attributes).finish_non_exhaustive()
    }
}

impl ShmDevice {
    /// Creates a queue pair with the number of one of this device that was
    /// [retired](ShmQueuePair::retire). What peers have sent to that one doesn't reach it.
    ///
    /// # Errors
    /// As [`create_queue_pair`](efa_device::Device::create_queue_pair), and for a number of another link. After an
    /// error of the system the number may be free.
    pub fn create_queue_pair_again(
        &self,
        number: &KeptNumber,
        options: QueuePairOptions,
    ) -> Result<ShmQueuePair, DeviceError> {
        link::create(self, &self.settings, options, Some(number))
    }

    /// Opens a host, and removes files of dead processes.
    ///
    /// # Errors
    /// [`DeviceError::Inconsistent`] as described [above](self#errors-of-opening) and for a number of ring
    /// slots that is not a power of two, [`DeviceError::TooLong`] for an MTU or a number of slots or peers
    /// above its limit, [`DeviceError::System`].
    pub fn open(options: ShmOptions) -> Result<Self, DeviceError> {
        for (length, limit) in [
            (options.mtu, MAX_MTU),
            (options.ring_slots, MAX_SLOTS),
            (options.max_peers, mailbox::MAX_PEERS),
        ] {
            if length > limit {
                return Err(DeviceError::TooLong { length: length as u64, limit: limit as u64 });
            }
        }
        if !options.ring_slots.is_power_of_two() {
            return Err(DeviceError::Inconsistent {
                object: format!("{} ring slots", options.ring_slots),
                reason: "not a power of two".into(),
            });
        }
        let directory = HostDirectory::open(options.directory.as_deref(), &options.name)?;
        let directory = Arc::new(directory);
        let (limit, max_size) = (options.max_regions, options.max_region_size);
        let memory = HostMemory::new(&directory, limit, max_size, options.kernel_copies)?;
        memory.keys().refuse(options.faults.refusals);
        let wanted = options.rdma.read || options.rdma.write;
        let obstacle = if wanted { memory.obstacle() } else { None };
        let requested = if wanted { memory.copy_obstacle() } else { None };
        if let Some(reason) = &obstacle {
            tracing::warn!("no RDMA on host {}: {reason}", options.name);
        } else if let Some(reason) = &requested {
            tracing::info!("reads and writes on host {} are requested: {reason}", options.name);
        }
        let rdma = if obstacle.is_none() { options.rdma } else { Rdma::NONE };
        let reads_pay_from = options.reads_pay_from.unwrap_or_else(reads_pay_from);
        let attributes = DeviceAttributes {
            name: format!("efa-shm-{}", options.name),
            vendor_part_id: vendor_part_id(rdma),
            mtu: options.mtu,
            max_queue_pairs: usize::from(u16::MAX),
            max_send: options.max_send,
            max_receive: options.max_receive,
            max_address_handles: options.max_address_handles,
            max_regions: options.max_regions.min(MAX_REGIONS),
            max_region_size: options.max_region_size,
            rdma,
            max_rdma_size: options.max_rdma_size,
            reads_pay_from,
            mapped_reads_pay_from: MAPPED_READS_PAY_FROM.min(reads_pay_from),
        };
        let (keys, gid) = (memory.keys().clone(), directory.gid());
        let book = Book::noted_in(keys, gid, options.max_address_handles);
        Ok(Self {
            book: Arc::new(book),
            memory: Arc::new(memory),
            directory,
            attributes,
            settings: Arc::new(options),
            draws: Draws::default(),
            obstacle: obstacle.map(Arc::from),
            copy_obstacle: requested.map(Arc::from),
        })
    }

    /// Why the device offers no RDMA although its options ask for it: a process of the host can't be asked for it.
    #[must_use]
    pub fn rdma_obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref()
    }

    /// Why the kernel doesn't copy between processes of the host, so that reads and writes [are
    /// requested](self#rdma) from their targets: what was seen when the device was opened.
    #[must_use]
    pub fn copy_obstacle(&self) -> Option<&str> {
        self.copy_obstacle.as_deref()
    }

    /// The region of this device with this key.
    #[must_use]
    pub fn region(&self, key: u32) -> Option<SoftRegion> {
        self.keys().find(key)
    }

    /// The keys of this device's regions.
    #[must_use]
    pub fn keys(&self) -> &KeyTable {
        self.memory.keys()
    }

    /// The directory of the host.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
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

impl Device for ShmDevice {
    type QueuePair = ShmQueuePair;
    type Region = SoftRegion;

    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn gid(&self) -> Gid {
        self.directory.gid()
    }

    /// The processes of a host have one interface.
    fn reaches(&self, gid: Gid) -> bool {
        gid == self.gid()
    }

    fn create_queue_pair(&self, options: QueuePairOptions) -> Result<ShmQueuePair, DeviceError> {
        link::create(self, &self.settings, options, None)
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<SoftRegion, RegisterError> {
        self.keys().register(memory, access)
    }

    fn allocate(&self, length: usize, access: Access) -> Result<SoftRegion, DeviceError> {
        self.memory.allocate(length, access)
    }

    fn register_foreign(
        &self,
        memory: &ForeignMemory,
        access: Access,
    ) -> Result<SoftRegion, DeviceError> {
        self.keys().register_foreign(memory, access)
    }
}

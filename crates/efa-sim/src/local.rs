//! The local link: hosts, network and virtual clock in one process, reproducible from a seed.
//!
//! Section 1.1 of the EFA RDM protocol: reliable datagrams up to the MTU, in any order.
//!
//! ```text
//!              LocalFabric (seed, virtual time, faults, sink)
//!             /            |             \
//!     LocalDevice     LocalDevice     LocalDevice      one GID each: three hosts
//!       |     |            |               |
//!   LocalQueuePair …      …               …
//! ```
//!
//! A run depends only on the seed, the order of calls, and the `now` given to
//! [`poll`](efa_device::QueuePair::poll): the fabric reads no clock and no addresses of memory. Its time is
//! the latest `now` that any of its queue pairs was polled with. A poll of one queue pair advances all
//! others to that time.
//!
//! # How sends complete
//!
//! | at the target | the send completes with |
//! |---|---|
//! | a posted buffer | `Ok` |
//! | no buffer within `rnr_retry` × [`rnr_delay`](LocalOptions::rnr_delay) | [`Status::ReceiverNotReady`]; never for `rnr_retry` 7 |
//! | a shorter buffer | [`Status::RemoteBadLength`]; the buffer stays posted |
//! | no such queue pair, or one dropped meanwhile | [`Status::BadDestinationQpn`] |
//! | another queue key | [`Status::BadDestinationQpn`], as for a missing queue pair |
//! | a queue pair that was [killed](LocalFabric::kill) | [`Status::UnresponsiveRemote`] after [`unresponsive_after`](LocalOptions::unresponsive_after) |
//!
//! Packets in flight when their *sender* is dropped are still delivered. RDMA operations are not: their
//! memory belongs to the application again.

mod endpoints;
mod faults;
mod flight;
mod injection;
mod network;
mod shared;
mod sleep;

use std::fmt;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use efa_device::{
    Access, AddressHandle, Armed, Completion, Destination, Device, DeviceAttributes, DeviceError,
    ForeignMemory, Gid, Lending, NoTagList, PostError, Qkey, Qpn, QueuePair, QueuePairAddress,
    QueuePairOptions, Rdma, RdmaRequest, RegisterError, SendRequest, Status, Time,
};

use self::endpoints::EndpointId;
pub use self::faults::{Faults, Statistics};
use self::network::{HostId, Network};
use self::shared::Shared;
use crate::book::{DomainId, HeldHandles};
use crate::link::granted;
use crate::record::{QueuePairId, Sink};
use crate::region::{KeyTable, MAX_REGIONS, SoftRegion};

/// The order in which packets arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reorder {
    /// By random delays; packets due at the same time in random order. The real device promises no more.
    #[default]
    Shuffle,
    /// In the order of sending between any two queue pairs; sends complete in order, too.
    None,
}

/// Options of a fabric.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LocalOptions {
    /// Seed of all random numbers.
    pub seed: u64,
    /// The order in which packets arrive.
    pub reorder: Reorder,
    /// Largest datagram in bytes.
    pub mtu: usize,
    /// Latency of a packet, and of its completion, drawn uniformly, without the range's end. An empty range
    /// means its start.
    pub delay: Range<Duration>,
    /// RNR delay: a send to a queue pair without a posted buffer fails after `rnr_retry` times this.
    pub rnr_delay: Duration,
    /// After how long sends to a killed queue pair fail.
    pub unresponsive_after: Duration,
    /// Whether a receive reports the sender's GID if the device has no address handle for it.
    pub report_unknown_gid: bool,
    /// Vendor part id of the devices.
    pub vendor_part_id: u32,
    /// Most sends outstanding on a queue pair.
    pub max_send: usize,
    /// Most receive buffers posted on a queue pair.
    pub max_receive: usize,
    /// Most queue pairs on a device.
    pub max_queue_pairs: usize,
    /// Most address handles on a device.
    pub max_address_handles: usize,
    /// Most memory regions on a device, at most [`MAX_REGIONS`].
    pub max_regions: usize,
    /// Longest memory region in bytes.
    pub max_region_size: u64,
    /// The RDMA operations of the devices.
    pub rdma: Rdma,
    /// Most bytes of one RDMA operation.
    pub max_rdma_size: u64,
    /// Initial faults.
    pub faults: Faults,
}

impl LocalOptions {
    /// These options with some changed:
    ///
    /// ```
    /// let options = efa_sim::local::LocalOptions::default().with(|options| options.mtu = 4096);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for LocalOptions {
    fn default() -> Self {
        let device = DeviceAttributes::default();
        Self {
            seed: 0,
            reorder: Reorder::default(),
            mtu: device.mtu,
            delay: Duration::from_micros(1)..Duration::from_micros(20),
            rnr_delay: Duration::from_micros(100),
            unresponsive_after: Duration::from_millis(10),
            report_unknown_gid: true,
            vendor_part_id: 0xefa2,
            max_send: device.max_send,
            max_receive: device.max_receive,
            max_queue_pairs: 512,
            max_address_handles: device.max_address_handles,
            max_regions: MAX_REGIONS,
            max_region_size: device.max_region_size,
            rdma: Rdma::READ_WRITE,
            max_rdma_size: device.max_rdma_size,
            faults: Faults::default(),
        }
    }
}

/// A network in this process. Clones are handles of the same network.
#[derive(Clone, Debug)]
pub struct LocalFabric {
    shared: Shared,
}

impl LocalFabric {
    /// A network without hosts, at time zero.
    #[must_use]
    pub fn new(options: LocalOptions) -> Self {
        Self { shared: Shared::new(Network::new(options)) }
    }

    /// A new host: a device with a GID of its own, `fe80::1`, `fe80::2` and so on.
    #[must_use]
    pub fn open(&self) -> LocalDevice {
        let mut network = self.shared.lock();
        let (host, gid, keys) = network.open();
        let options = network.options();
        let attributes = DeviceAttributes {
            name: format!("efa-local-{}", gid.0[15]),
            vendor_part_id: options.vendor_part_id,
            mtu: options.mtu,
            max_queue_pairs: options.max_queue_pairs,
            max_send: options.max_send,
            max_receive: options.max_receive,
            max_address_handles: options.max_address_handles,
            max_regions: options.max_regions.min(MAX_REGIONS),
            max_region_size: options.max_region_size,
            rdma: options.rdma,
            max_rdma_size: options.max_rdma_size,
            ..DeviceAttributes::default()
        };
        drop(network);
        LocalDevice {
            shared: self.shared.clone(),
            host,
            gid,
            attributes: Arc::new(attributes),
            keys,
        }
    }

    /// The latest time that a queue pair was polled with.
    #[must_use]
    pub fn now(&self) -> Time {
        self.shared.lock().now()
    }

    /// The time of the next event of any queue pair; `None` if there is none.
    #[must_use]
    pub fn next_event(&self) -> Option<Time> {
        self.shared.lock().next_event()
    }

    /// Counters since the fabric was created.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.shared.lock().statistics
    }

    /// Passes records of all packets from now on to `sink`, which replaces an earlier sink.
    pub fn capture(&self, sink: impl Sink + 'static) {
        self.shared.lock().sink = Some(Box::new(sink));
    }

    /// Drops the sink, which flushes a capture file.
    pub fn stop_capture(&self) {
        let sink = self.shared.lock().sink.take();
        drop(sink);
    }

    /// Replaces the [`Faults`].
    pub fn set_faults(&self, faults: Faults) {
        self.shared.lock().faults = faults;
    }

    /// Makes the next `count` packets to `at` find the receiver not ready, as
    /// [`Faults::receiver_not_ready`] does.
    ///
    /// # Errors
    /// [`DeviceError::Absent`] if there is no such queue pair.
    pub fn not_ready(&self, at: impl Into<QueuePairId>, count: u32) -> Result<(), DeviceError> {
        self.shared.lock().not_ready(at.into(), count)
    }

    /// Removes up to `count` posted buffers of `at`, as if they had never been posted. Returns their number.
    ///
    /// # Errors
    /// [`DeviceError::Absent`].
    pub fn drop_receive_buffers(
        &self,
        at: impl Into<QueuePairId>,
        count: usize,
    ) -> Result<usize, DeviceError> {
        self.shared.lock().drop_receive_buffers(at.into(), count)
    }

    /// Completes the `count` oldest posted buffers of `at` without a datagram, with this status; those of a queue pair
    /// that fails, with [`Status::Flushed`]. Returns their number.
    ///
    /// # Errors
    /// [`DeviceError::Absent`].
    pub fn fail_receives(
        &self,
        at: impl Into<QueuePairId>,
        count: usize,
        status: Status,
    ) -> Result<usize, DeviceError> {
        self.shared.lock().fail_receives(at.into(), count, status)
    }

    /// Refuses the next `count` sends of `at` as if its queue were full.
    ///
    /// # Errors
    /// [`DeviceError::Absent`].
    pub fn refuse_sends(&self, at: impl Into<QueuePairId>, count: u32) -> Result<(), DeviceError> {
        self.shared.lock().refuse_sends(at.into(), count)
    }

    /// Refuses all sends of `at`, reads and writes included, with this error, as if the system had no more
    /// memory or file descriptors; until this is called again with `None`.
    ///
    /// # Errors
    /// [`DeviceError::Absent`].
    pub fn lack(
        &self,
        at: impl Into<QueuePairId>,
        error: Option<DeviceError>,
    ) -> Result<(), DeviceError> {
        self.shared.lock().lack(at.into(), error)
    }

    /// Delays the next `count` sends of `at` by `by`.
    ///
    /// # Errors
    /// [`DeviceError::Absent`].
    pub fn delay_sends(
        &self,
        at: impl Into<QueuePairId>,
        count: u32,
        by: Duration,
    ) -> Result<(), DeviceError> {
        self.shared.lock().delay_sends(at.into(), count, by)
    }

    /// Delays the completions of the next `count` sends of `at` by `by`; the packets arrive in time.
    ///
    /// # Errors
    /// [`DeviceError::Absent`].
    pub fn delay_completions(
        &self,
        at: impl Into<QueuePairId>,
        count: u32,
        by: Duration,
    ) -> Result<(), DeviceError> {
        self.shared.lock().delay_completions(at.into(), count, by)
    }

    /// Fails the next `count` sends of `at` with `status`; they are not delivered.
    ///
    /// # Errors
    /// [`DeviceError::Absent`].
    pub fn fail_sends(
        &self,
        at: impl Into<QueuePairId>,
        count: u32,
        status: Status,
    ) -> Result<(), DeviceError> {
        self.shared.lock().fail_sends(at.into(), count, status)
    }

    /// Forbids RDMA operations on memory behind `at`, or allows them again: those that arrive meanwhile
    /// fail with [`Status::NotPermitted`].
    ///
    /// # Errors
    /// [`DeviceError::Absent`].
    pub fn forbid_access(
        &self,
        at: impl Into<QueuePairId>,
        forbidden: bool,
    ) -> Result<(), DeviceError> {
        self.shared.lock().forbid_access(at.into(), forbidden)
    }

    /// Kills a queue pair: its sends are flushed, and sends to it fail with
    /// [`Status::UnresponsiveRemote`]. Its number stays in use until the queue pair is dropped.
    ///
    /// # Errors
    /// [`DeviceError::Absent`].
    pub fn kill(&self, at: impl Into<QueuePairId>) -> Result<(), DeviceError> {
        self.shared.lock().kill(at.into())
    }

    /// Sends `bytes` to `destination` as if from `source`, without a check of the queue key. There is no
    /// completion; without a posted buffer the packet is dropped.
    pub fn inject(
        &self,
        source: impl Into<QueuePairId>,
        destination: impl Into<QueuePairId>,
        bytes: &[u8],
    ) {
        self.shared.lock().inject(source.into(), destination.into(), bytes);
    }

    /// Delivers packets for an earlier queue pair with this number to the current one, without a check of
    /// the queue key. Returns their number: at most [`Faults::keep_stale`], which must have been set before
    /// they arrived.
    pub fn deliver_stale(&self, to: impl Into<QueuePairId>) -> usize {
        self.shared.lock().deliver_stale(to.into())
    }
}

/// A host of a [`LocalFabric`].
#[derive(Clone)]
pub struct LocalDevice {
    shared: Shared,
    host: HostId,
    gid: Gid,
    attributes: Arc<DeviceAttributes>,
    keys: KeyTable,
}

impl fmt::Debug for LocalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalDevice").field("attributes", &self.attributes).finish_non_exhaustive()
    }
}

impl LocalDevice {
    /// Creates a queue pair with a given number, for example one used before.
    ///
    /// # Errors
    /// As [`create_queue_pair`](Device::create_queue_pair), and [`DeviceError::Inconsistent`] if the number
    /// is in use.
    pub fn create_queue_pair_at(
        &self,
        qpn: Qpn,
        options: QueuePairOptions,
    ) -> Result<LocalQueuePair, DeviceError> {
        let attributes = granted(&self.attributes, &options)?;
        let endpoint = self.shared.lock().create(self.host, qpn, options)?;
        Ok(self.queue_pair(endpoint, qpn, options.qkey, attributes))
    }

    /// Fails if a fault refuses the next registration.
    fn check_registration(&self) -> Result<(), DeviceError> {
        match self.shared.lock().refuses_registration(self.host) {
            true => {
                let limit = self.attributes.max_regions;
                Err(DeviceError::LimitReached { object: "memory region", limit })
            }
            false => Ok(()),
        }
    }

    /// Refuses the next `count` registrations of this device.
    pub fn refuse_registrations(&self, count: u32) {
        self.shared.lock().refuse_registrations(self.host, count);
    }

    /// This device's address handle for `gid`, if there is one.
    #[must_use]
    pub fn address_handle(&self, gid: Gid) -> Option<AddressHandle> {
        self.shared.lock().address_handle(self.host, gid)
    }

    /// The region of this device with this key.
    #[must_use]
    pub fn region(&self, key: u32) -> Option<SoftRegion> {
        self.keys.find(key)
    }

    fn queue_pair(
        &self,
        endpoint: EndpointId,
        qpn: Qpn,
        qkey: Qkey,
        attributes: DeviceAttributes,
    ) -> LocalQueuePair {
        let network = self.shared.lock();
        let (bell, scheduled) = (network.bell(endpoint), network.scheduled());
        drop(network);
        LocalQueuePair {
            device: self.clone(),
            endpoint,
            address: QueuePairAddress { gid: self.gid, qpn, qkey },
            attributes: Box::new(attributes),
            held: Box::default(),
            bell,
            scheduled,
            awaited: UNKNOWN,
        }
    }
}

impl Device for LocalDevice {
    type QueuePair = LocalQueuePair;
    type Region = SoftRegion;

    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn gid(&self) -> Gid {
        self.gid
    }

    fn create_queue_pair(&self, options: QueuePairOptions) -> Result<LocalQueuePair, DeviceError> {
        let attributes = granted(&self.attributes, &options)?;
        let mut network = self.shared.lock();
        let qpn = network.free_qpn(self.host)?;
        let endpoint = network.create(self.host, qpn, options)?;
        drop(network);
        Ok(self.queue_pair(endpoint, qpn, options.qkey, attributes))
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<SoftRegion, RegisterError> {
        match self.check_registration() {
            Ok(()) => self.keys.register(memory, access),
            Err(error) => Err(RegisterError { error, memory }),
        }
    }

    fn register_foreign(
        &self,
        memory: &ForeignMemory,
        access: Access,
    ) -> Result<SoftRegion, DeviceError> {
        self.check_registration()?;
        self.keys.register_foreign(memory, access)
    }
}

/// A queue pair of a [`LocalDevice`].
///
/// Dropping it drops its buffers; sends that wait for it fail.
pub struct LocalQueuePair {
    device: LocalDevice,
    endpoint: EndpointId,
    address: QueuePairAddress,
    attributes: Box<DeviceAttributes>,
    /// Boxed, as it is rarely used.
    held: Box<HeldHandles>,
    /// The eventfd of a waitable queue pair.
    bell: Option<Arc<OwnedFd>>,
    /// Serial number of the network's last event.
    scheduled: Arc<AtomicU64>,
    /// That number when nothing was to come to this queue pair without another event, or [`UNKNOWN`].
    awaited: u64,
}

/// The number of no event.
const UNKNOWN: u64 = u64::MAX;

impl QueuePair for LocalQueuePair {
    type Packet = Box<[u8]>;
    type Region = SoftRegion;
    type TagList = NoTagList;

    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn address(&self) -> QueuePairAddress {
        self.address
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        let handle =
            self.device.shared.lock().book(self.device.host).acquire(DomainId::default(), gid)?;
        self.held.add(handle);
        Ok(handle)
    }

    fn destroy_address_handle(&mut self, handle: AddressHandle) {
        if self.held.take(handle) {
            self.device.shared.lock().book(self.device.host).release(handle, 1);
        }
    }

    fn gid_of(&self, handle: AddressHandle) -> Option<Gid> {
        self.device.shared.lock().book(self.device.host).gid(DomainId::default(), handle)
    }

    fn allocate_packet(&mut self) -> Result<Box<[u8]>, DeviceError> {
        self.device.shared.lock().allocate_packet()
    }

    fn prepare(&mut self, _: Destination) -> Result<(), DeviceError> {
        self.device.shared.lock().prepare(self.endpoint)
    }

    fn post_send(&mut self, request: SendRequest<Box<[u8]>>) -> Result<(), PostError<Box<[u8]>>> {
        self.device.shared.lock().post_send(self.endpoint, request)
    }

    // Not where the links' queue pairs are told apart: the others would save registers for it.
    #[inline(never)]
    fn post_receive(&mut self, packet: Box<[u8]>) -> Result<(), PostError<Box<[u8]>>> {
        self.device.shared.lock().post_receive(self.endpoint, packet)
    }

    fn withdraw_receive(&mut self) -> Option<Box<[u8]>> {
        self.device.shared.lock().withdraw_receive(self.endpoint)
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<SoftRegion, RegisterError> {
        self.device.register(memory, access)
    }

    fn register_lent(
        &self,
        memory: Lending<'_>,
        access: Access,
    ) -> Result<SoftRegion, DeviceError> {
        self.device.check_registration()?;
        self.device.keys.register_lent(memory, access)
    }

    fn region(&self, key: u32) -> Option<SoftRegion> {
        self.device.region(key)
    }

    fn post_read(&mut self, request: RdmaRequest<SoftRegion>) -> Result<(), DeviceError> {
        self.device.shared.lock().post_read(self.endpoint, request)
    }

    fn post_write(
        &mut self,
        request: RdmaRequest<SoftRegion>,
        immediate: Option<u32>,
    ) -> Result<(), DeviceError> {
        self.device.shared.lock().post_write(self.endpoint, request, immediate)
    }

    fn await_arrivals(&mut self) -> bool {
        let awaited = self.device.shared.lock().await_event(self.endpoint);
        self.awaited = awaited.unwrap_or(UNKNOWN);
        awaited.is_some()
    }

    #[inline(always)]
    fn has_no_arrivals(&self) -> bool {
        self.awaited == self.scheduled.load(Ordering::Acquire)
    }

    fn poll(&mut self, now: Time) -> Option<Completion<Box<[u8]>>> {
        self.device.shared.lock().poll(self.endpoint, now)
    }

    fn next_event(&self) -> Option<Time> {
        self.device.shared.lock().next_event_of(self.endpoint)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        sleep::descriptor(&self.bell)
    }

    fn arm(&mut self, now: Time) -> Result<Armed, DeviceError> {
        self.device.shared.lock().arm(self.endpoint)?;
        Ok(match self.next_event() {
            Some(until) if until <= now => Armed::Pending,
            until => Armed::Quiet { until },
        })
    }
}

impl fmt::Debug for LocalQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalQueuePair")
            .field("device", &self.attributes.name)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Drop for LocalQueuePair {
    fn drop(&mut self) {
        let mut network = self.device.shared.lock();
        for (handle, count) in self.held.drain() {
            network.book(self.device.host).release(handle, count);
        }
        network.destroy(self.endpoint);
    }
}

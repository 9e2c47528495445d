//! The local link: hosts, network and clock in one process, replayed from a seed.
//!
//! Section 1.1 of the EFA RDM protocol: datagrams up to the MTU, reliable, in no order.
//!
//! ```text
//!              LocalFabric (seed, virtual time, faults, sink)
//!             /            |             \
//!     LocalDevice     LocalDevice     LocalDevice      one GID each: three hosts
//!       |     |            |               |
//!   LocalQueuePair …      …               …
//! ```
//!
//! What happens is a function of the seed, of the order of calls, and of the `now` given to
//! [`poll`](efa_device::QueuePair::poll): nothing reads a clock or an address. The fabric's time
//! is the latest `now` that any of its queue pairs was polled with, and a poll of one queue pair
//! moves all of them on to it.
//!
//! # What a send meets
//!
//! | at the target | the send completes with |
//! |---|---|
//! | a posted buffer | `Ok` |
//! | no buffer within `rnr_retry` × [`rnr_delay`](LocalOptions::rnr_delay) | [`Status::ReceiverNotReady`]; never for `rnr_retry` 7 |
//! | a shorter buffer | [`Status::RemoteBadLength`]; the buffer stays posted |
//! | no such queue pair, or one dropped meanwhile | [`Status::BadDestinationQpn`] |
//! | another queue key | [`Status::BadDestinationQpn`]: the device doesn't tell the two apart |
//! | a queue pair that was [killed](LocalFabric::kill) | [`Status::UnresponsiveRemote`] after [`unresponsive_after`](LocalOptions::unresponsive_after) |
//!
//! Packets under way when their *sender* is dropped still arrive, as on a network. RDMA operations
//! don't: their memory is the application's again.

mod faults;
mod flight;
mod injection;
mod network;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use efa_device::{
    Access, AddressHandle, Completion, Device, DeviceAttributes, DeviceError, Gid, NoTagList,
    PostError, Qkey, Qpn, QueuePair, QueuePairAddress, QueuePairOptions, Rdma, RdmaRequest,
    RegisterError, SendRequest, Status, Time,
};

pub use self::faults::{Faults, Statistics};
use self::network::{EndpointId, HostId, Network, Shared};
use crate::book::HeldHandles;
use crate::link::granted;
use crate::record::{QueuePairId, Sink};
use crate::region::{KeyTable, MAX_REGIONS, SoftRegion};

/// In which order packets arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reorder {
    /// As their delays fall, and packets of one moment by lot. The real device promises no more.
    #[default]
    Shuffle,
    /// In the order of sending between any two queue pairs; sends complete in order too.
    None,
}

/// How a fabric behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LocalOptions {
    /// What all draws come from.
    pub seed: u64,
    /// In which order packets arrive.
    pub reorder: Reorder,
    /// Largest datagram in bytes.
    pub mtu: usize,
    /// How long a packet takes, and an answer; drawn evenly, the end excluded. An empty range
    /// means its start.
    pub delay: Range<Duration>,
    /// Pause between two tries at a receiver without buffers.
    pub rnr_delay: Duration,
    /// When a sender notices that its target was killed.
    pub unresponsive_after: Duration,
    /// Whether a receive from a GID without address handle tells the GID.
    pub tell_unknown_gid: bool,
    /// Part id of the devices.
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
    /// What the devices do to memory of remote interfaces.
    pub rdma: Rdma,
    /// Most bytes of one RDMA operation.
    pub max_rdma_size: u64,
    /// Faults from the start on.
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
            tell_unknown_gid: true,
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

/// A network in this process. Clones are handles to the same one.
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
            max_send: options.max_send,
            max_receive: options.max_receive,
            max_address_handles: options.max_address_handles,
            max_regions: options.max_regions.min(MAX_REGIONS),
            max_region_size: options.max_region_size,
            rdma: options.rdma,
            max_rdma_size: options.max_rdma_size,
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

    /// When something happens next on any queue pair; `None` if nothing will.
    #[must_use]
    pub fn next_event(&self) -> Option<Time> {
        self.shared.lock().next_event()
    }

    /// What happened so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.shared.lock().statistics
    }

    /// Tells `sink` of every packet from now on, in place of the sink before.
    pub fn capture(&self, sink: impl Sink + 'static) {
        self.shared.lock().sink = Some(Box::new(sink));
    }

    /// Drops the sink, which flushes a file.
    pub fn stop_capture(&self) {
        let sink = self.shared.lock().sink.take();
        drop(sink);
    }

    /// Replaces the standing faults.
    pub fn set_faults(&self, faults: Faults) {
        self.shared.lock().faults = faults;
    }

    /// The next `count` packets to `at` find its receiver not ready, as with
    /// [`Faults::receiver_not_ready`].
    ///
    /// # Errors
    /// [`DeviceError::Absent`] if there is no such queue pair; likewise below.
    pub fn not_ready(&self, at: impl Into<QueuePairId>, count: u32) -> Result<(), DeviceError> {
        self.shared.lock().not_ready(at.into(), count)
    }

    /// Takes up to `count` posted buffers away from `at`, as if they had never been posted; gives
    /// how many there were.
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

    /// The next `count` sends posted at `at` are refused as if its queue were full.
    ///
    /// # Errors
    /// [`DeviceError::Absent`].
    pub fn refuse_sends(&self, at: impl Into<QueuePairId>, count: u32) -> Result<(), DeviceError> {
        self.shared.lock().refuse_sends(at.into(), count)
    }

    /// The next `count` sends posted at `at` take `by` longer.
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

    /// The next `count` sends posted at `at` arrive in time, but their completions come `by` later
    /// than they would.
    ///
    /// # Errors
    /// [`DeviceError::Absent`].
    pub fn delay_answers(
        &self,
        at: impl Into<QueuePairId>,
        count: u32,
        by: Duration,
    ) -> Result<(), DeviceError> {
        self.shared.lock().delay_answers(at.into(), count, by)
    }

    /// The next `count` sends posted at `at` fail with `status` and are not delivered.
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

    /// Loses a peer: its sends are flushed, nothing reaches it any more, and sends to it fail
    /// with [`Status::UnresponsiveRemote`]. The number stays taken until the queue pair is dropped.
    ///
    /// # Errors
    /// [`DeviceError::Absent`].
    pub fn kill(&self, at: impl Into<QueuePairId>) -> Result<(), DeviceError> {
        self.shared.lock().kill(at.into())
    }

    /// Sends `bytes` to `destination` as if from `source`, past the check of the queue key. Nobody
    /// hears how it ends; without a buffer posted it is dropped.
    pub fn inject(
        &self,
        source: impl Into<QueuePairId>,
        destination: impl Into<QueuePairId>,
        bytes: &[u8],
    ) {
        self.shared.lock().inject(source.into(), destination.into(), bytes);
    }

    /// Delivers packets that were addressed to an earlier queue pair of this number to the one
    /// that has it now, past the check of the queue key. Gives how many there were: at most
    /// [`Faults::keep_stale`], which must have been set before they arrived.
    pub fn deliver_stale(&self, to: impl Into<QueuePairId>) -> usize {
        self.shared.lock().deliver_stale(to.into())
    }
}

/// A host of a [`LocalFabric`].
#[derive(Clone, Debug)]
pub struct LocalDevice {
    shared: Shared,
    host: HostId,
    gid: Gid,
    attributes: Arc<DeviceAttributes>,
    keys: KeyTable,
}

impl LocalDevice {
    /// Makes a queue pair with a number of the caller's choice, for example one used before.
    ///
    /// # Errors
    /// As [`create_queue_pair`](Device::create_queue_pair), and [`DeviceError::Inconsistent`] if
    /// the number is taken.
    pub fn create_queue_pair_at(
        &self,
        qpn: Qpn,
        options: QueuePairOptions,
    ) -> Result<LocalQueuePair, DeviceError> {
        let attributes = granted(&self.attributes, &options)?;
        let endpoint = self.shared.lock().create(self.host, qpn, options)?;
        Ok(self.queue_pair(endpoint, qpn, options.qkey, attributes))
    }

    /// The next `count` registrations on this device are refused.
    pub fn refuse_registrations(&self, count: u32) {
        self.shared.lock().refuse_registrations(self.host, count);
    }

    /// The handle under which this device knows `gid`, if it does.
    #[must_use]
    pub fn address_handle(&self, gid: Gid) -> Option<AddressHandle> {
        self.shared.lock().address_handle(self.host, gid)
    }

    /// The region of this device that `key` names.
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
        LocalQueuePair {
            device: self.clone(),
            endpoint,
            address: QueuePairAddress { gid: self.gid, qpn, qkey },
            attributes,
            held: HeldHandles::default(),
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
        if self.shared.lock().refuses_registration(self.host) {
            let limit = self.attributes.max_regions;
            let error = DeviceError::LimitReached { object: "memory region", limit };
            return Err(RegisterError { error, memory });
        }
        self.keys.register(memory, access)
    }
}

/// A queue pair of a [`LocalDevice`].
///
/// Dropping it drops its buffers; packets waiting for it fail at their senders.
#[derive(Debug)]
pub struct LocalQueuePair {
    device: LocalDevice,
    endpoint: EndpointId,
    address: QueuePairAddress,
    attributes: DeviceAttributes,
    held: HeldHandles,
}

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
        let handle = self.device.shared.lock().book(self.device.host).acquire(gid)?;
        self.held.add(handle);
        Ok(handle)
    }

    fn destroy_address_handle(&mut self, handle: AddressHandle) {
        if self.held.take(handle) {
            self.device.shared.lock().book(self.device.host).release(handle, 1);
        }
    }

    fn allocate_packet(&mut self) -> Result<Box<[u8]>, DeviceError> {
        self.device.shared.lock().allocate_packet()
    }

    fn post_send(&mut self, request: SendRequest<Box<[u8]>>) -> Result<(), PostError<Box<[u8]>>> {
        self.device.shared.lock().post_send(self.endpoint, request)
    }

    fn post_receive(&mut self, packet: Box<[u8]>) -> Result<(), PostError<Box<[u8]>>> {
        self.device.shared.lock().post_receive(self.endpoint, packet)
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<SoftRegion, RegisterError> {
        self.device.register(memory, access)
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

    fn poll(&mut self, now: Time) -> Option<Completion<Box<[u8]>>> {
        self.device.shared.lock().poll(self.endpoint, now)
    }

    fn next_event(&self) -> Option<Time> {
        self.device.shared.lock().next_event_of(self.endpoint)
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

//! An EFA interface as the engine's device.
//!
//! ```text
//!   post_send ─► QueuePair::send, sends[key] = packet ─► doorbell, or part of a batch
//!                                                              │
//!   poll ◄─ Completion ◄─ sends[key] ◄─ Batch ◄─ CompletionQueue ◄┘
//! ```
//!
//! # When the doorbell rings
//!
//! At once, except while the caller [holds](efa_device::QueuePair::hold) the queue pair. Work that is
//! posted then shares a doorbell: at the release, at the next poll of the interface, or when [`SENDS`]
//! are batched. Receives are posted when a poll finds nothing, or when [`RECEIVES`] are waiting; at most
//! a quarter of the posted ones wait.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use efa_device::{
    Access, AddressHandle, Armed, Completion, Destination, Device, DeviceAttributes, DeviceError,
    ForeignMemory, Gid, Lending, NoTagList, PostError, QueuePairAddress, QueuePairOptions, Rdma,
    RdmaRequest, RegionRange, RegisterError, SendRequest, Status, Time, WorkId,
};
use slab::Slab;

use crate::completion_queue::{Batch, CompletionQueue, Outcome, WorkCompletion};
use crate::context::{Context, Limits};
use crate::domain::ProtectionDomain;
use crate::handles::{HandleCache, HandleTable};
use crate::memory::{RegionTable, VerbsRegion};
use crate::packet::{Packet, PacketPool};
use crate::queue_pair::{LocalBuffer, QueuePair, RECEIVES, Remote, Target};

/// Most sends of one doorbell.
const SENDS: usize = 16;
/// Fewest entries of a completion queue that has room for writes which take no receive buffer, so that the
/// depths of the queues don't bound its completions. An interface loses those that find it full.
const UNSOLICITED: usize = 12_288;
/// The bit in the `wr_id` of a receive; the bits below it are a key of `Outstanding::receives`.
const RECEIVE: u64 = 1 << 32;
/// The bit in the `wr_id` of a send; the bits below [`RECEIVE`] are a key of `Outstanding::sends`. So no
/// work request has the number 0, which the library reports for completions without one.
const SEND: u64 = 1 << 33;

/// An opened EFA interface. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct VerbsDevice(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    attributes: DeviceAttributes,
    limits: Limits,
    gid: Gid,
    regions: Arc<RegionTable>,
    handles: Arc<HandleCache>,
    domain: Arc<ProtectionDomain>,
    context: Arc<Context>,
}

impl VerbsDevice {
    /// Whether this device registered the memory of a packet. Its queue pairs take no others.
    #[must_use]
    pub fn owns(&self, packet: &Packet) -> bool {
        packet.belongs_to(&self.0.domain)
    }

    /// Fails if threads can't sleep until this interface has something: it, its driver or the kernel lacks
    /// completion channels. Then [waitable](QueuePairOptions::waitable) queue pairs fail in the same way.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`]; [`DeviceError::System`] for a call that failed.
    pub fn check_notifies(&self) -> Result<(), DeviceError> {
        let Opened { context, limits, .. } = &*self.0;
        CompletionQueue::new(Arc::clone(context), limits, &Rdma::NONE, 1, true).map(drop)
    }

    /// Opens the interface of this name, or the first EFA interface.
    ///
    /// # Errors
    /// [`DeviceError::Absent`] where there is none, with a line that says why and what to do;
    /// [`DeviceError::System`] for a call that failed.
    pub fn open(name: Option<&str>) -> Result<Self, DeviceError> {
        let context = Arc::new(Context::open(name)?);
        let limits = context.limits()?;
        let gid = context.gid()?;
        let domain = Arc::new(ProtectionDomain::new(Arc::clone(&context))?);
        let rdma = limits.rdma();
        let attributes = DeviceAttributes {
            name: context.name().to_owned(),
            vendor_part_id: limits.vendor_part_id,
            mtu: limits.mtu,
            max_queue_pairs: limits.max_queue_pairs,
            max_send: limits.max_send,
            max_receive: limits.max_receive,
            max_address_handles: limits.max_address_handles,
            max_regions: limits.max_regions,
            max_region_size: limits.max_region_size,
            rdma,
            max_rdma_size: limits.efa.max_rdma_size.into(),
            ..DeviceAttributes::default()
        };
        let regions =
            RegionTable::new(Arc::clone(&domain), limits.max_regions, limits.max_region_size, rdma);
        let handles = HandleCache::new(Arc::clone(&domain), limits.max_address_handles);
        Ok(Self(Arc::new(Opened {
            attributes,
            limits,
            gid,
            regions: Arc::new(regions),
            handles: Arc::new(handles),
            domain,
            context,
        })))
    }
}

impl Device for VerbsDevice {
    type QueuePair = VerbsQueuePair;
    type Region = VerbsRegion;

    fn attributes(&self) -> &DeviceAttributes {
        &self.0.attributes
    }

    fn gid(&self) -> Gid {
        self.0.gid
    }

    fn create_queue_pair(&self, options: QueuePairOptions) -> Result<VerbsQueuePair, DeviceError> {
        let Opened { attributes, limits, .. } = &*self.0;
        let QueuePairOptions { send_depth, receive_depth, waitable, .. } = options;
        let mut rdma = attributes.rdma;
        rdma.unsolicited_write_receive &= options.unsolicited_write_receive;
        let completions = send_depth + receive_depth;
        for (length, limit) in [
            (send_depth, attributes.max_send),
            (receive_depth, attributes.max_receive),
            (completions, limits.max_completions),
        ] {
            if length > limit {
                return Err(DeviceError::TooLong { length: length as u64, limit: limit as u64 });
            }
        }
        let context = Arc::clone(&self.0.context);
        let completions = match rdma.unsolicited_write_receive {
            true => completions.max(UNSOLICITED).min(limits.max_completions),
            false => completions,
        };
        let queue = CompletionQueue::new(context, limits, &rdma, completions, waitable)?;
        let pair = QueuePair::new(Arc::clone(&self.0.domain), queue, limits, &rdma, &options)?;
        let attributes = DeviceAttributes {
            max_send: pair.send_depth,
            max_receive: pair.receive_depth,
            rdma,
            ..attributes.clone()
        };
        let address = QueuePairAddress { gid: self.0.gid, qpn: pair.number(), qkey: options.qkey };
        Ok(VerbsQueuePair {
            address,
            outstanding: ManuallyDrop::new(Outstanding {
                sends: Slab::with_capacity(pair.send_depth),
                receives: Slab::with_capacity(pair.receive_depth),
            }),
            batched: Vec::with_capacity(SENDS),
            is_held: false,
            batch: Batch::EMPTY,
            failed: VecDeque::with_capacity(SENDS + RECEIVES),
            counters: Counters::default(),
            pair,
            handles: HandleTable::new(Arc::clone(&self.0.handles)),
            packets: PacketPool::new(Arc::clone(&self.0.domain), attributes.mtu),
            attributes,
            device: self.clone(),
        })
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<VerbsRegion, RegisterError> {
        self.0.regions.register(memory, access)
    }

    fn register_foreign(
        &self,
        memory: &ForeignMemory,
        access: Access,
    ) -> Result<VerbsRegion, DeviceError> {
        self.0.regions.register_foreign(memory, access)
    }
}

/// Counts of what a queue pair did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sends, reads and writes posted.
    pub posts: u64,
    /// Sends among them whose data was copied into the send queue.
    pub inline_sends: u64,
    /// Doorbells rung for `posts`.
    pub send_doorbells: u64,
    /// Receive buffers posted.
    pub receives: u64,
    /// Doorbells rung for `receives`.
    pub receive_doorbells: u64,
    /// Polls that found completions.
    pub polls: u64,
    /// Completions found.
    pub completions: u64,
    /// Receive buffers that the interface refused after they were accepted, or returned without a datagram.
    pub receives_failed: u64,
    /// Writes of remote sides, with immediate data, that failed and had no receive buffer.
    pub writes_failed: u64,
}

/// A queue pair of an EFA interface.
#[derive(Debug)]
pub struct VerbsQueuePair {
    pair: QueuePair,
    /// Leaked if the queue pair can't be destroyed, as the interface may still access it.
    outstanding: ManuallyDrop<Outstanding>,
    /// Keys of the sends that wait for a doorbell.
    batched: Vec<usize>,
    /// Whether the caller announced more posts.
    is_held: bool,
    batch: Batch,
    /// Completions of sends and receives that were accepted and then refused with their batch.
    failed: VecDeque<Completion<Packet>>,
    counters: Counters,
    address: QueuePairAddress,
    attributes: DeviceAttributes,
    handles: HandleTable,
    packets: PacketPool,
    device: VerbsDevice,
}

/// Work requests that have not completed. Neither table grows beyond its capacity.
#[derive(Debug)]
struct Outstanding {
    sends: Slab<OutstandingSend>,
    receives: Slab<Packet>,
}

/// A send, read or write that has not completed.
#[derive(Debug)]
struct OutstandingSend {
    id: WorkId,
    /// Owned here while the interface accesses it.
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Packet(Packet),
    Region { _range: RegionRange<VerbsRegion> },
}

impl OutstandingSend {
    fn complete(self, result: Result<(), Status>) -> Completion<Packet> {
        match self.memory {
            Memory::Packet(packet) => Completion::Send { id: self.id, packet, result },
            Memory::Region { .. } => Completion::Rdma { id: self.id, result },
        }
    }
}

impl VerbsQueuePair {
    /// Counts since it was created.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn full(&self) -> DeviceError {
        DeviceError::QueueFull { depth: self.pair.send_depth }
    }

    /// The key that the next send gets, if the queue has room.
    #[inline]
    fn next_send(&self) -> Option<usize> {
        let sends = &self.outstanding.sends;
        (sends.len() < self.pair.send_depth).then(|| sends.vacant_key())
    }

    #[inline]
    fn target(&self, to: Destination) -> Result<Target, DeviceError> {
        let handle = self.handles.get(to.address_handle);
        let handle = handle.ok_or(DeviceError::BadAddressHandle { handle: to.address_handle })?;
        Ok(Target { handle, qpn: to.qpn, qkey: to.qkey })
    }

    /// Rings the doorbell for a send that was added to the batch, unless more may follow. Returns the
    /// send if it was refused and was the only one.
    #[inline]
    fn posted(&mut self, key: usize) -> Result<(), (DeviceError, OutstandingSend)> {
        self.counters.posts += 1;
        if self.is_held && self.batched.len() + 1 < SENDS {
            self.batched.push(key);
            return Ok(());
        }
        self.ring_doorbell().or_else(|error| self.refused(key, error))
    }

    /// The batch whose last send has this key was refused.
    #[cold]
    fn refused(
        &mut self,
        key: usize,
        error: DeviceError,
    ) -> Result<(), (DeviceError, OutstandingSend)> {
        if self.batched.is_empty()
            && let Some(send) = self.outstanding.sends.try_remove(key)
        {
            return Err((error, send));
        }
        self.batched.push(key);
        self.fail_batch();
        Ok(())
    }

    #[inline]
    fn ring_doorbell(&mut self) -> Result<(), DeviceError> {
        self.counters.send_doorbells += 1;
        self.pair.ring_doorbell()?;
        self.batched.clear();
        Ok(())
    }

    /// Rings the doorbell if sends wait for it. They were accepted, so they complete with an error if
    /// they are refused now.
    #[inline]
    fn flush(&mut self) {
        if self.pair.has_batched() {
            self.flush_batch();
        }
    }

    #[inline(never)]
    fn flush_batch(&mut self) {
        if let Err(error) = self.ring_doorbell() {
            tracing::warn!(%error, sends = self.batched.len(), "batch of sends refused");
            self.fail_batch();
        }
    }

    #[cold]
    fn fail_batch(&mut self) {
        for key in self.batched.drain(..) {
            if let Some(send) = self.outstanding.sends.try_remove(key) {
                self.failed.push_back(send.complete(Err(Status::QueuePairInternal)));
            }
        }
    }

    /// Posts the waiting receives, if there are any. Those that are refused were accepted, so they complete
    /// without a datagram.
    fn post_waiting(&mut self) {
        if self.pair.waiting_receives() > 0
            && let Err(PostError { error, packet }) = self.post_receives()
        {
            tracing::warn!(%error, "waiting receives refused");
            self.fail_receive(packet);
        }
    }

    /// Posts the waiting receives. Returns the last one if it was refused; others that were refused were
    /// accepted before, so they complete without a datagram.
    #[inline]
    fn post_receives(&mut self) -> Result<(), PostError<Packet>> {
        let waiting = self.pair.waiting_receives();
        self.counters.receive_doorbells += 1;
        match self.pair.post_receives() {
            Ok(()) => Ok(()),
            Err((count, error)) => self.receives_refused(waiting, count, error),
        }
    }

    /// The last `count` of the `waiting` receives were refused.
    #[cold]
    fn receives_refused(
        &mut self,
        waiting: usize,
        count: usize,
        error: DeviceError,
    ) -> Result<(), PostError<Packet>> {
        let mut last = None;
        for place in waiting - count..waiting {
            let packet = self.outstanding.receives.try_remove(key_of(self.pair.added(place)));
            if let Some(accepted) = std::mem::replace(&mut last, packet) {
                self.fail_receive(accepted);
            }
        }
        last.map_or(Ok(()), |packet| Err(PostError { error, packet }))
    }

    fn fail_receive(&mut self, packet: Packet) {
        self.counters.receives_failed += 1;
        let status = Status::QueuePairInternal;
        self.failed.push_back(Completion::Unfilled { packet, status });
    }

    /// The completion of a completion queue entry that [isn't that](Outstanding::complete) of a success or of a
    /// send; `None` if it is for nobody, which is counted and logged.
    #[cold]
    fn complete_other(&mut self, entry: &WorkCompletion) -> Option<Completion<Packet>> {
        match entry.outcome {
            Outcome::FailedUnsolicited(status) => {
                self.counters.writes_failed += 1;
                tracing::warn!(%status, "write of a remote side failed");
            }
            _ if entry.wr_id & (SEND | RECEIVE) == 0 => {
                tracing::warn!(?entry, "completion without work request");
            }
            Outcome::Failed(status) if entry.wr_id & RECEIVE != 0 => {
                let packet = self.outstanding.take_received(entry)?;
                self.counters.receives_failed += 1;
                // All that are posted are flushed.
                if status != Status::Flushed {
                    tracing::warn!(%status, qpn = self.address.qpn.0, "receive failed");
                }
                return Some(Completion::Unfilled { packet, status });
            }
            _ => {}
        }
        None
    }

    /// Counts a poll that found completions.
    #[inline]
    fn count_poll(&mut self) {
        self.counters.polls += 1;
        self.counters.completions += self.batch.len() as u64;
    }

    fn start_remote(
        &mut self,
        operation: Remote,
        request: RdmaRequest<VerbsRegion>,
    ) -> Result<(), DeviceError> {
        let RdmaRequest { id, local, remote, destination } = request;
        let key = self.next_send().ok_or_else(|| self.full())?;
        local.check()?;
        let limit = self.attributes.max_rdma_size;
        let length = u32::try_from(local.length).ok().filter(|length| u64::from(*length) <= limit);
        let length = length.ok_or(DeviceError::TooLong { length: local.length as u64, limit })?;
        let target = self.target(destination)?;
        let buffer = LocalBuffer {
            address: local.region.address(local.offset),
            length,
            local_key: local.region.local_key(),
        };
        let remote = (remote.key, remote.address);
        // SAFETY: `outstanding` owns the region until the operation completes. Address handles are
        // destroyed only after a flush, and the library copies what it needs of them at the post.
        unsafe { self.pair.remote(SEND | key as u64, operation, buffer, remote, target) }?;
        let memory = Memory::Region { _range: local };
        self.outstanding.sends.insert(OutstandingSend { id, memory });
        self.posted(key).map_err(|(error, _)| error)
    }
}

impl Outstanding {
    /// The completion that a completion queue entry means, if it is of a send, or of something that succeeded.
    #[inline]
    fn complete(&mut self, entry: &WorkCompletion) -> Option<Completion<Packet>> {
        let key = key_of(entry.wr_id);
        if entry.wr_id & SEND != 0 {
            let result =
                if let Outcome::Failed(status) = entry.outcome { Err(status) } else { Ok(()) };
            return self.sends.try_remove(key).map(|send| send.complete(result));
        }
        match entry.outcome {
            Outcome::Received => {
                let packet = self.take_received(entry)?;
                let &WorkCompletion { length, immediate, source, .. } = entry;
                Some(Completion::Receive { packet, length: length as usize, source, immediate })
            }
            Outcome::WrittenUnsolicited => Some(written(entry, None)),
            Outcome::Written => Some(written(entry, Some(self.take_received(entry)?))),
            Outcome::Done | Outcome::Failed(_) | Outcome::FailedUnsolicited(_) => None,
        }
    }

    #[inline]
    fn take_received(&mut self, entry: &WorkCompletion) -> Option<Packet> {
        if entry.wr_id & RECEIVE == 0 {
            return None;
        }
        self.receives.try_remove(key_of(entry.wr_id))
    }
}

/// The key in the number of a work request.
fn key_of(wr_id: u64) -> usize {
    (wr_id & (RECEIVE - 1)) as usize
}

/// All bytes of a packet.
#[inline]
fn whole(packet: &Packet) -> LocalBuffer {
    LocalBuffer {
        address: packet.address(),
        length: packet.as_ref().len() as u32,
        local_key: packet.local_key(),
    }
}

fn written(entry: &WorkCompletion, packet: Option<Packet>) -> Completion<Packet> {
    let &WorkCompletion { length, immediate, source, .. } = entry;
    let (immediate, length) = (immediate.unwrap_or(0), length.into());
    Completion::Written { immediate, length, source, packet }
}

impl efa_device::QueuePair for VerbsQueuePair {
    type Packet = Packet;
    type Region = VerbsRegion;
    type TagList = NoTagList;

    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn address(&self) -> QueuePairAddress {
        self.address
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<AddressHandle, DeviceError> {
        self.handles.add(gid)
    }

    fn destroy_address_handle(&mut self, handle: AddressHandle) {
        // Sends that wait for a doorbell may use the handle.
        self.flush();
        self.handles.remove(handle);
    }

    fn gid_of(&self, handle: AddressHandle) -> Option<Gid> {
        self.handles.gid_of(handle)
    }

    fn allocate_packet(&mut self) -> Result<Packet, DeviceError> {
        self.packets.allocate()
    }

    #[inline]
    fn post_send(&mut self, request: SendRequest<Packet>) -> Result<(), PostError<Packet>> {
        let SendRequest { id, mut packet, length, destination, immediate } = request;
        let Some(key) = self.next_send() else {
            return Err(PostError { error: self.full(), packet });
        };
        if length > packet.as_ref().len() {
            let (length, limit) = (length as u64, packet.as_ref().len() as u64);
            return Err(PostError { error: DeviceError::TooLong { length, limit }, packet });
        }
        let target = match self.target(destination) {
            Ok(target) => target,
            Err(error) => return Err(PostError { error, packet }),
        };
        let from = LocalBuffer {
            address: packet.address(),
            length: length as u32,
            local_key: packet.local_key(),
        };
        self.counters.inline_sends += u64::from(length <= self.pair.max_inline);
        // SAFETY: address, pointer and key are those of the packet, which is registered and at least
        // `length` bytes long. `outstanding` owns it until the send completes. Address handles are
        // destroyed only after a flush, and the library copies what it needs of them at the post.
        unsafe { self.pair.send(SEND | key as u64, from, packet.as_mut_ptr(), target, immediate) };
        self.outstanding.sends.insert(OutstandingSend { id, memory: Memory::Packet(packet) });
        match self.posted(key) {
            Err((error, OutstandingSend { memory: Memory::Packet(packet), .. })) => {
                Err(PostError { error, packet })
            }
            _ => Ok(()),
        }
    }

    // Inlined into the engine's loop that posts several.
    #[inline(always)]
    fn post_receive(&mut self, packet: Packet) -> Result<(), PostError<Packet>> {
        let receives = &mut self.outstanding.receives;
        if receives.len() >= self.pair.receive_depth {
            let error = DeviceError::QueueFull { depth: self.pair.receive_depth };
            return Err(PostError { error, packet });
        }
        let into = whole(&packet);
        let key = receives.insert(packet);
        let outstanding = receives.len();
        // SAFETY: the memory is that of the packet, which is registered. `outstanding` owns it until the
        // receive completes or is refused, and doesn't access it.
        unsafe { self.pair.add_receive(RECEIVE | key as u64, into) };
        self.counters.receives += 1;
        let waiting = self.pair.waiting_receives();
        let posted = outstanding - waiting;
        if waiting < RECEIVES && waiting * 4 <= posted {
            return Ok(());
        }
        self.post_receives()
    }

    #[inline]
    fn hold(&mut self) {
        self.is_held = true;
    }

    #[inline]
    fn release(&mut self) {
        self.is_held = false;
        self.flush();
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<VerbsRegion, RegisterError> {
        self.device.register(memory, access)
    }

    fn register_lent(
        &self,
        memory: Lending<'_>,
        access: Access,
    ) -> Result<VerbsRegion, DeviceError> {
        self.device.0.regions.register_lent(memory, access)
    }

    fn region(&self, key: u32) -> Option<VerbsRegion> {
        self.device.0.regions.find(key)
    }

    fn post_read(&mut self, request: RdmaRequest<VerbsRegion>) -> Result<(), DeviceError> {
        if !self.attributes.rdma.read {
            return Err(DeviceError::Unsupported { operation: "RDMA read" });
        }
        self.start_remote(Remote::Read, request)
    }

    fn post_write(
        &mut self,
        request: RdmaRequest<VerbsRegion>,
        immediate: Option<u32>,
    ) -> Result<(), DeviceError> {
        if !self.attributes.rdma.write {
            return Err(DeviceError::Unsupported { operation: "RDMA write" });
        }
        let operation = immediate.map_or(Remote::Write, Remote::WriteWithImmediate);
        self.start_remote(operation, request)
    }

    #[inline]
    fn poll(&mut self, _: Time) -> Option<Completion<Packet>> {
        loop {
            while let Some(entry) = self.batch.pop() {
                let completion = self.outstanding.complete(entry);
                if completion.is_some() {
                    return completion;
                }
                let entry = *entry;
                let completion = self.complete_other(&entry);
                if completion.is_some() {
                    return completion;
                }
            }
            self.flush();
            if let Some(failed) = self.failed.pop_front() {
                return Some(failed);
            }
            self.pair.completions.poll(&mut self.batch);
            if self.batch.is_empty() {
                self.post_waiting();
                return None;
            }
            self.count_poll();
        }
    }

    /// The interface doesn't run on the caller's clock. Refused sends of a batch are due at once.
    fn next_event(&self) -> Option<Time> {
        (!self.failed.is_empty()).then_some(Time::ZERO)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.pair.completions.descriptor()
    }

    fn arm(&mut self, _: Time) -> Result<Armed, DeviceError> {
        // What waits for a doorbell would wait as long as the thread sleeps.
        self.flush();
        self.post_waiting();
        if self.batch.is_empty() && self.failed.is_empty() {
            self.pair.completions.request_event()?;
            // What has completed before the request may have no event.
            self.pair.completions.poll(&mut self.batch);
            if self.batch.is_empty() {
                return Ok(Armed::Quiet { until: None });
            }
            self.count_poll();
        }
        Ok(Armed::Pending)
    }
}

impl Drop for VerbsQueuePair {
    fn drop(&mut self) {
        // SAFETY: nothing is called on `pair` afterwards but its drop.
        if unsafe { self.pair.destroy() } {
            // SAFETY: the interface has no queue pair that accesses the packets and regions in it any
            // more, and it is dropped here alone.
            unsafe { ManuallyDrop::drop(&mut self.outstanding) };
        }
    }
}

#[cfg(test)]
mod tests;

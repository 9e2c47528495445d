//! An EFA interface as the engine's device.
//!
//! ```text
//!   post_send ─► sends[place] = packet ─► QueuePair::send ─► ring, or with those that follow
//!                                                                  │
//!   poll ◄─ Completion ◄─ sends[place] ◄─ Batch ◄─ CompletionQueue ◄┘
//! ```
//!
//! # When the doorbell rings
//!
//! At once, except while the caller [holds](efa_device::QueuePair::hold) the queue pair: what is
//! posted then goes with one doorbell, at the release, at the next poll of the interface or when
//! [`SENDS`] have come together. Receives wait until the interface has nothing to tell, or
//! [`RECEIVES`] have come together; never more than a quarter of those that are posted.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use efa_device::{
    Access, AddressHandle, Completion, Destination, Device, DeviceAttributes, DeviceError, Gid,
    NoTagList, PostError, QueuePairAddress, QueuePairOptions, RdmaRequest, RegionRange,
    RegisterError, SendRequest, Status, Time, WorkId,
};

use crate::completion_queue::{Batch, CompletionQueue, End, Finished};
use crate::context::{Context, Limits};
use crate::domain::ProtectionDomain;
use crate::handles::{HandleCache, HandleTable};
use crate::memory::{RegionTable, VerbsRegion};
use crate::packet::{Packet, PacketPool};
use crate::queue_pair::{Place, QueuePair, RECEIVES, Remote, Target};
use crate::slots::Slots;

/// Most sends with one doorbell.
const SENDS: usize = 16;
/// In the number of a work request: it is a receive.
const RECEIVE: u64 = 1 << 32;

/// An EFA interface, opened. Clones are the same device.
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
    /// Whether a packet is memory that this device registered: its queue pairs take no others.
    #[must_use]
    pub fn owns(&self, packet: &Packet) -> bool {
        packet.is_of(&self.0.domain)
    }

    /// Opens the interface of this name, or the first EFA interface.
    ///
    /// # Errors
    /// [`DeviceError::Absent`] where there is none, with what to do; [`DeviceError::System`] for a
    /// call that failed.
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
            max_send: limits.efa.max_sq_wr as usize,
            max_receive: limits.efa.max_rq_wr as usize,
            max_address_handles: limits.max_address_handles,
            max_regions: limits.max_regions,
            max_region_size: limits.max_region_size,
            rdma,
            max_rdma_size: limits.efa.max_rdma_size.into(),
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
        let QueuePairOptions { send_depth, receive_depth, .. } = options;
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
        let queue = CompletionQueue::new(context, limits, completions)?;
        let pair = QueuePair::new(Arc::clone(&self.0.domain), queue, limits, &options)?;
        let attributes = DeviceAttributes {
            max_send: pair.send_depth,
            max_receive: pair.receive_depth,
            ..attributes.clone()
        };
        let address = QueuePairAddress { gid: self.0.gid, qpn: pair.number(), qkey: options.qkey };
        Ok(VerbsQueuePair {
            address,
            held: ManuallyDrop::new(Held {
                sends: Slots::new(pair.send_depth),
                receives: Slots::new(pair.receive_depth),
            }),
            unrung: Vec::with_capacity(SENDS),
            is_held: false,
            batch: Batch::EMPTY,
            failed: VecDeque::with_capacity(SENDS),
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
}

/// What a queue pair did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sends, reads and writes that were posted.
    pub posts: u64,
    /// Sends among them that were put into the queue itself.
    pub inline_sends: u64,
    /// Doorbells for them.
    pub send_doorbells: u64,
    /// Receive buffers that were posted.
    pub receives: u64,
    /// Doorbells for them.
    pub receive_doorbells: u64,
    /// Polls that found something.
    pub polls: u64,
    /// What they found.
    pub completions: u64,
    /// Receive buffers that the interface gave back without a datagram, or didn't take.
    pub receives_lost: u64,
}

/// A queue pair of an EFA interface.
#[derive(Debug)]
pub struct VerbsQueuePair {
    pair: QueuePair,
    /// Dropped by hand, as an interface that doesn't end the queue pair keeps it.
    held: ManuallyDrop<Held>,
    /// Places of the sends of the open batch.
    unrung: Vec<u32>,
    /// Whether the caller posts more.
    is_held: bool,
    batch: Batch,
    /// Sends that were accepted, and refused with their batch.
    failed: VecDeque<Completion<Packet>>,
    counters: Counters,
    address: QueuePairAddress,
    attributes: DeviceAttributes,
    handles: HandleTable,
    packets: PacketPool,
    device: VerbsDevice,
}

/// What the interface has.
#[derive(Debug)]
struct Held {
    sends: Slots<Sent>,
    receives: Slots<Packet>,
}

/// A send, read or write under way.
#[derive(Debug)]
struct Sent {
    id: WorkId,
    /// Held for the interface.
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Packet(Packet),
    Region { _range: RegionRange<VerbsRegion> },
}

impl Sent {
    fn complete(self, result: Result<(), Status>) -> Completion<Packet> {
        match self.memory {
            Memory::Packet(packet) => Completion::Send { id: self.id, packet, result },
            Memory::Region { .. } => Completion::Rdma { id: self.id, result },
        }
    }
}

impl VerbsQueuePair {
    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn full(&self) -> DeviceError {
        DeviceError::QueueFull { depth: self.pair.send_depth }
    }

    #[inline]
    fn target(&self, to: Destination) -> Result<Target, DeviceError> {
        let handle = self.handles.get(to.address_handle);
        let handle = handle.ok_or(DeviceError::BadAddressHandle { handle: to.address_handle })?;
        Ok(Target { handle, qpn: to.qpn, qkey: to.qkey })
    }

    /// A send was put into the open batch. Rings, unless more may come; gives the send back if it
    /// was refused alone.
    #[inline]
    fn posted(&mut self, place: u32) -> Result<(), (DeviceError, Sent)> {
        self.counters.posts += 1;
        if self.is_held && self.unrung.len() + 1 < SENDS {
            self.unrung.push(place);
            return Ok(());
        }
        self.ring().or_else(|error| self.refused(place, error))
    }

    /// The batch that this send was put into last was refused.
    #[cold]
    fn refused(&mut self, place: u32, error: DeviceError) -> Result<(), (DeviceError, Sent)> {
        if self.unrung.is_empty()
            && let Some(sent) = self.held.sends.take(place)
        {
            return Err((error, sent));
        }
        self.unrung.push(place);
        self.fail();
        Ok(())
    }

    #[inline]
    fn ring(&mut self) -> Result<(), DeviceError> {
        self.counters.send_doorbells += 1;
        self.pair.ring()?;
        self.unrung.clear();
        Ok(())
    }

    /// Rings for what waits; what is refused now had been accepted and so completes.
    #[inline]
    fn ring_for_all(&mut self) {
        if self.pair.is_open() {
            self.ring_for_these();
        }
    }

    #[inline(never)]
    fn ring_for_these(&mut self) {
        if let Err(error) = self.ring() {
            tracing::warn!(%error, sends = self.unrung.len(), "refused");
            self.fail();
        }
    }

    #[cold]
    fn fail(&mut self) {
        for place in self.unrung.drain(..) {
            if let Some(sent) = self.held.sends.take(place) {
                self.failed.push_back(sent.complete(Err(Status::QueuePairInternal)));
            }
        }
    }

    /// Posts the receives that wait; gives the last one back if it was refused.
    #[inline]
    fn post_receives(&mut self) -> Result<(), PostError<Packet>> {
        let waiting = self.pair.waiting_receives();
        self.counters.receive_doorbells += 1;
        let Err((refused, error)) = self.pair.post_receives() else { return Ok(()) };
        let mut last = None;
        for work in self.pair.refused(waiting, refused) {
            last = self.held.receives.take((work & !RECEIVE) as u32);
            self.counters.receives_lost += 1;
        }
        match last {
            Some(packet) => {
                self.counters.receives_lost -= 1;
                Err(PostError { error, packet })
            }
            None => Ok(()),
        }
    }

    fn start_remote(
        &mut self,
        operation: Remote,
        request: RdmaRequest<VerbsRegion>,
    ) -> Result<(), DeviceError> {
        let RdmaRequest { id, local, remote, destination } = request;
        let place = self.held.sends.next().ok_or_else(|| self.full())?;
        local.check()?;
        let limit = self.attributes.max_rdma_size;
        let length = u32::try_from(local.length).ok().filter(|length| u64::from(*length) <= limit);
        let length = length.ok_or(DeviceError::TooLong { length: local.length as u64, limit })?;
        let target = self.target(destination)?;
        let from = Place {
            address: local.region.address(local.offset),
            length,
            local_key: local.region.local_key(),
        };
        let remote = (remote.key, remote.address);
        self.pair.remote(place.into(), operation, from, remote, target);
        self.held.sends.put(Sent { id, memory: Memory::Region { _range: local } });
        self.posted(place).map_err(|(error, _)| error)
    }
}

impl Held {
    /// What a completion of the interface means; `None` if it means nothing to anybody.
    #[inline]
    fn complete(
        &mut self,
        finished: &Finished,
        counters: &mut Counters,
    ) -> Option<Completion<Packet>> {
        if let End::WrittenUnsolicited = finished.end {
            return Some(written(finished, None));
        }
        let place = finished.work as u32;
        if finished.work & RECEIVE == 0 {
            let result = if let End::Failed(status) = finished.end { Err(status) } else { Ok(()) };
            return self.sends.take(place).map(|sent| sent.complete(result));
        }
        let packet = self.receives.take(place)?;
        match finished.end {
            End::Arrived => {
                let &Finished { length, immediate, source, .. } = finished;
                Some(Completion::Receive { packet, length: length as usize, source, immediate })
            }
            End::Written | End::WrittenUnsolicited => Some(written(finished, Some(packet))),
            End::Done | End::Failed(_) => {
                counters.receives_lost += 1;
                None
            }
        }
    }
}

fn written(finished: &Finished, packet: Option<Packet>) -> Completion<Packet> {
    let &Finished { length, immediate, source, .. } = finished;
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
        // A send that waits for its doorbell has the handle still.
        self.ring_for_all();
        self.handles.remove(handle);
    }

    fn allocate_packet(&mut self) -> Result<Packet, DeviceError> {
        self.packets.allocate()
    }

    #[inline]
    fn post_send(&mut self, request: SendRequest<Packet>) -> Result<(), PostError<Packet>> {
        let SendRequest { id, mut packet, length, destination, immediate } = request;
        let Some(place) = self.held.sends.next() else {
            return Err(PostError { error: self.full(), packet });
        };
        if length > self.attributes.mtu {
            let (length, limit) = (length as u64, self.attributes.mtu as u64);
            return Err(PostError { error: DeviceError::TooLong { length, limit }, packet });
        }
        let target = match self.target(destination) {
            Ok(target) => target,
            Err(error) => return Err(PostError { error, packet }),
        };
        let from = Place {
            address: packet.address(),
            length: length as u32,
            local_key: packet.local_key(),
        };
        self.counters.inline_sends += u64::from(length <= self.pair.max_inline);
        self.pair.send(place.into(), from, packet.as_mut_ptr(), target, immediate);
        self.held.sends.put(Sent { id, memory: Memory::Packet(packet) });
        match self.posted(place) {
            Err((error, Sent { memory: Memory::Packet(packet), .. })) => {
                Err(PostError { error, packet })
            }
            _ => Ok(()),
        }
    }

    // Into each engine's way of posting several at a time.
    #[inline(always)]
    fn post_receive(&mut self, packet: Packet) -> Result<(), PostError<Packet>> {
        let Some(place) = self.held.receives.next() else {
            let error = DeviceError::QueueFull { depth: self.pair.receive_depth };
            return Err(PostError { error, packet });
        };
        let into = Place {
            address: packet.address(),
            length: packet.as_ref().len() as u32,
            local_key: packet.local_key(),
        };
        self.pair.add_receive(RECEIVE | u64::from(place), into);
        self.held.receives.put(packet);
        self.counters.receives += 1;
        let waiting = self.pair.waiting_receives();
        let posted = self.held.receives.len() - waiting;
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
        self.ring_for_all();
    }

    fn register(&self, memory: Box<[u8]>, access: Access) -> Result<VerbsRegion, RegisterError> {
        self.device.register(memory, access)
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
            while let Some(finished) = self.batch.pop() {
                let completion = self.held.complete(finished, &mut self.counters);
                if completion.is_some() {
                    return completion;
                }
            }
            self.ring_for_all();
            if let Some(failed) = self.failed.pop_front() {
                return Some(failed);
            }
            self.pair.completions.poll(&mut self.batch);
            if self.batch.is_empty() {
                if self.pair.waiting_receives() > 0
                    && let Err(PostError { error, .. }) = self.post_receives()
                {
                    tracing::warn!(%error, "receives refused");
                }
                return None;
            }
            self.counters.polls += 1;
            self.counters.completions += self.batch.len() as u64;
        }
    }

    fn next_event(&self) -> Option<Time> {
        // The interface has a clock of its own.
        None
    }
}

impl Drop for VerbsQueuePair {
    fn drop(&mut self) {
        if self.pair.destroy() {
            // SAFETY: the interface has no queue pair any more, so nothing of this; it is dropped
            // here alone.
            unsafe { ManuallyDrop::drop(&mut self.held) };
        }
    }
}

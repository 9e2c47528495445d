//! Transmission: send buffers, and the records of packets and RDMA operations in flight.

use efa_device::{
    Access, CopyTarget, Destination, DeviceError, PostError, QueuePair, RdmaRequest, RegionRange,
    RemoteMemory, SendRequest, Status, WorkId,
};
use efa_proto::OpId;

use crate::ids::PeerId;
use crate::storage::{Pool, Table, Vacancy};
use crate::work::{InFlight, Purpose, RdmaFlight, SinglePacket, SingleRead, TransferPart};

/// Why a packet was not posted.
#[derive(Debug)]
pub(crate) enum PostFailure {
    /// The device's queue is full, or no buffer could be allocated: to be retried later.
    Blocked,
    /// The device lacks something for this peer: to be retried after a pause.
    Lacking(Box<DeviceError>),
    /// The device refuses the packet; a retry would fail too.
    Refused(Status),
}

/// A packet that was not posted.
#[derive(Debug)]
pub(crate) struct Unposted<P, B> {
    pub(crate) packet: P,
    pub(crate) record: InFlight<B>,
    pub(crate) failure: PostFailure,
}

/// Where the record of a packet goes that was posted, or the packet and why it wasn't.
pub(crate) type Posted<'a, P, B> = Result<Vacancy<'a, InFlight<B>>, (P, PostFailure)>;

/// Keeps the record of a packet that was posted; otherwise returns both.
#[inline(always)]
pub(crate) fn keep_record<P, B>(
    posted: Posted<'_, P, B>,
    record: InFlight<B>,
) -> Result<(), Unposted<P, B>> {
    match posted {
        Ok(slot) => {
            slot.fill(record);
            Ok(())
        }
        Err((packet, failure)) => Err(Unposted { packet, record, failure }),
    }
}

/// The sending half of the device.
#[derive(Debug)]
pub(crate) struct Transmit<Q: QueuePair, B> {
    pub(crate) device: Q,
    pool: Pool<Q::Packet>,
    in_flight: Table<InFlight<B>>,
    rdma: Table<RdmaFlight<Q::Region, B>>,
    bounces: Pool<Q::Region>,
    depth: usize,
    /// As [`QueuePair::payloads_pay_from`].
    pub(crate) payloads_pay_from: usize,
}

impl<Q: QueuePair, B> Transmit<Q, B> {
    pub(crate) fn new(device: Q) -> Self {
        let depth = device.attributes().max_send;
        let (pool, bounces) = (Pool::default(), Pool::default());
        let in_flight = Table::new();
        let payloads_pay_from = device.payloads_pay_from();
        Self { device, pool, in_flight, rdma: Table::new(), bounces, depth, payloads_pay_from }
    }

    pub(crate) fn mtu(&self) -> usize {
        self.device.attributes().mtu
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether no RDMA operation is in flight, and no packet but HANDSHAKEs and those of messages that have failed, as
    /// sends to peers that are gone have.
    pub(crate) fn is_quiet(&self, is_gone: impl Fn(PeerId) -> bool) -> bool {
        let counts = |record: &InFlight<B>| match record.purpose {
            Purpose::Handshake | Purpose::Abandoned => false,
            Purpose::Send { .. } => !is_gone(record.peer),
            Purpose::Message(_) | Purpose::Plain { .. } | Purpose::Control => true,
        };
        self.rdma.len() == 0 && !self.in_flight.iter().any(|(_, record)| counts(record))
    }

    /// Whether a packet to a peer is in flight. The search is as long as the device's send queue.
    #[cold]
    pub(crate) fn is_in_flight_to(&self, peer: PeerId) -> bool {
        self.in_flight.iter().any(|(_, record)| record.peer == peer)
    }

    /// The same of packets in the order of messages.
    #[cold]
    pub(crate) fn is_msg_id_in_flight_to(&self, peer: PeerId) -> bool {
        self.in_flight.iter().any(|(_, record)| record.peer == peer && record.has_msg_id())
    }

    pub(crate) fn rdma_in_flight(&self) -> usize {
        self.rdma.len()
    }

    /// Whether the device's queue is full of packets and RDMA operations.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.in_flight.len() + self.rdma.len() >= self.depth
    }

    pub(crate) fn pooled(&self) -> usize {
        self.pool.len()
    }

    /// A buffer for a packet. Fails with `Blocked` if the device's queue is full.
    #[inline(always)]
    pub(crate) fn packet(&mut self) -> Result<Q::Packet, PostFailure> {
        if self.is_full() {
            return Err(PostFailure::Blocked);
        }
        match self.pool.take() {
            Some(packet) => Ok(packet),
            None => self.device.allocate_packet().map_err(|_| PostFailure::Blocked),
        }
    }

    /// Returns a buffer to the pool if the pool needn't grow; else returns it to the caller.
    #[inline(always)]
    pub(crate) fn recycle_at_once(&mut self, packet: Q::Packet) -> Result<(), Q::Packet> {
        self.pool.put_at_once(packet)
    }

    /// Returns a buffer to the pool.
    pub(crate) fn recycle(&mut self, packet: Q::Packet) {
        self.pool.put(packet);
    }

    /// Posts the first `record.length` bytes of a [packet](Self::packet).
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        packet: Q::Packet,
        destination: Destination,
        record: InFlight<B>,
    ) -> Result<(), Unposted<Q::Packet, B>> {
        let immediate = match record.purpose {
            Purpose::Plain { immediate, .. } => immediate,
            _ => None,
        };
        keep_record(self.post_first(packet, record.length, immediate, destination), record)
    }

    /// Posts the first `length` bytes of a packet. Returns where its record goes, which the caller makes there: one made before
    /// would be moved.
    #[inline(always)]
    pub(crate) fn post_first(
        &mut self,
        packet: Q::Packet,
        length: u32,
        immediate: Option<u32>,
        destination: Destination,
    ) -> Posted<'_, Q::Packet, B> {
        let slot = self.in_flight.vacancy();
        let id = WorkId(slot.index().into());
        let request = SendRequest { id, packet, length: length as usize, destination, immediate };
        match self.device.post_send(request) {
            Ok(()) => Ok(slot),
            Err(PostError { error, packet }) => Err((packet, failure(error))),
        }
    }

    /// As [`post_first`](Self::post_first), with a payload: `payload` bytes behind the first `header` ones, which `copy` copies.
    pub(crate) fn post_with(
        &mut self,
        packet: Q::Packet,
        (header, payload): (usize, usize),
        destination: Destination,
        copy: impl FnOnce(CopyTarget<'_>),
    ) -> Posted<'_, Q::Packet, B> {
        let slot = self.in_flight.vacancy();
        let id = WorkId(slot.index().into());
        let request = SendRequest { id, packet, length: header, destination, immediate: None };
        match self.device.post_send_with(request, payload, copy) {
            Ok(()) => Ok(slot),
            Err(PostError { error, packet }) => Err((packet, failure(error))),
        }
    }

    /// Removes and returns the record of a completed packet.
    #[inline(always)]
    pub(crate) fn completed(&mut self, id: WorkId) -> Option<InFlight<B>> {
        self.in_flight.remove(u32::try_from(id.0).ok()?)
    }

    /// Removes and returns the single-packet message of a completed packet, if it is one and wasn't retransmitted.
    /// Otherwise the record stays.
    #[inline(always)]
    pub(crate) fn completed_message(&mut self, id: WorkId) -> Option<(PeerId, SinglePacket<B>)> {
        self.in_flight.take(usize::try_from(id.0).ok()?, |record| match &mut record.purpose {
            Purpose::Message(SinglePacket { tag, context, length, buffer })
                if !record.retransmitted =>
            {
                let (tag, context, length) = (*tag, *context, *length);
                Some((record.peer, SinglePacket { tag, context, length, buffer: buffer.take() }))
            }
            _ => None,
        })
    }

    /// Removes the record of a completed packet of a send, if it wasn't retransmitted, and returns the peer, the send
    /// and its message ID. Otherwise the record stays.
    #[inline(always)]
    pub(crate) fn completed_segment(&mut self, id: WorkId) -> Option<(PeerId, OpId, u32)> {
        self.in_flight.take(usize::try_from(id.0).ok()?, |record| match record.purpose {
            Purpose::Send { id, msg_id } if !record.retransmitted => {
                Some((record.peer, id, msg_id))
            }
            _ => None,
        })
    }

    /// The records of all packets in flight.
    pub(crate) fn records_mut(&mut self) -> impl Iterator<Item = &mut InFlight<B>> {
        self.in_flight.iter_mut()
    }

    /// Posts an RDMA read of remote memory into `local`.
    pub(crate) fn post_read(
        &mut self,
        destination: Destination,
        local: RegionRange<Q::Region>,
        remote: RemoteMemory,
        part: TransferPart<Q::Region>,
    ) -> Result<(), PostFailure> {
        self.post_part(part, |device, id| {
            device.post_read(RdmaRequest { id, local, remote, destination })
        })
    }

    /// Posts an RDMA write of `local` to remote memory.
    pub(crate) fn post_write(
        &mut self,
        destination: Destination,
        local: RegionRange<Q::Region>,
        remote: RemoteMemory,
        immediate: Option<u32>,
        part: TransferPart<Q::Region>,
    ) -> Result<(), PostFailure> {
        self.post_part(part, |device, id| {
            device.post_write(RdmaRequest { id, local, remote, destination }, immediate)
        })
    }

    fn post_part(
        &mut self,
        part: TransferPart<Q::Region>,
        post: impl FnOnce(&mut Q, WorkId) -> Result<(), DeviceError>,
    ) -> Result<(), PostFailure> {
        let posted = if self.is_full() {
            Err(PostFailure::Blocked)
        } else {
            let slot = self.rdma.vacancy();
            post(&mut self.device, WorkId(slot.index().into())).map(|()| slot).map_err(failure)
        };
        match posted {
            Ok(slot) => {
                slot.fill(RdmaFlight::Part(part));
                Ok(())
            }
            Err(failure) => {
                if let Some(region) = part.bounce {
                    self.bounces.put(region);
                }
                Err(failure)
            }
        }
    }

    /// Posts the RDMA operation that reads a whole message; returns the message if that can't be posted now.
    #[inline(always)]
    pub(crate) fn post_single_read(
        &mut self,
        destination: Destination,
        local: RegionRange<Q::Region>,
        remote: RemoteMemory,
        read: SingleRead<B>,
    ) -> Result<(), SingleRead<B>> {
        if self.is_full() {
            return Err(read);
        }
        let slot = self.rdma.vacancy();
        let id = WorkId(slot.index().into());
        match self.device.post_read(RdmaRequest { id, local, remote, destination }) {
            Ok(()) => {
                slot.fill(RdmaFlight::Message(read));
                Ok(())
            }
            Err(_) => Err(read),
        }
    }

    /// The messages in flight that single RDMA operations read.
    pub(crate) fn single_reads_mut(&mut self) -> impl Iterator<Item = &mut SingleRead<B>> {
        self.rdma.iter_mut().filter_map(|flight| match flight {
            RdmaFlight::Message(read) => Some(read),
            RdmaFlight::Part(_) => None,
        })
    }

    /// Removes and returns the record of a completed RDMA operation.
    #[inline(always)]
    pub(crate) fn rdma_ended(&mut self, id: WorkId) -> Option<RdmaFlight<Q::Region, B>> {
        self.rdma.remove(u32::try_from(id.0).ok()?)
    }

    /// A bounce region of `size` bytes; registers one if none is free.
    pub(crate) fn bounce(&mut self, size: usize) -> Result<Q::Region, DeviceError> {
        match self.bounces.take() {
            Some(region) => Ok(region),
            None => {
                let memory = vec![0; size].into();
                self.device.register(memory, Access::default()).map_err(|refused| refused.error)
            }
        }
    }

    /// Whether a bounce region is free or can be registered.
    pub(crate) fn has_bounce(&mut self, size: usize) -> bool {
        let region = self.bounce(size);
        region.map(|region| self.bounces.put(region)).is_ok()
    }

    pub(crate) fn recycle_bounce(&mut self, region: Q::Region) {
        self.bounces.put(region);
    }

    pub(crate) fn trim(&mut self) {
        self.pool.trim();
        self.bounces.trim();
    }
}

#[cold]
fn failure(error: DeviceError) -> PostFailure {
    match error {
        error if error.shortage().is_some() => PostFailure::Lacking(Box::new(error)),
        DeviceError::QueueFull { .. } => PostFailure::Blocked,
        DeviceError::TooLong { .. } => PostFailure::Refused(Status::BadLength),
        DeviceError::BadAddressHandle { .. } => PostFailure::Refused(Status::BadAddressHandle),
        _ => PostFailure::Refused(Status::QueuePairInternal),
    }
}

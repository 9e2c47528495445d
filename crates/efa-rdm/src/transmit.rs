//! Packets on their way out: buffers, what is in flight, and what waits.

use efa_device::{
    Access, Destination, DeviceError, PostError, QueuePair, RdmaRequest, RegionRange, RemoteMemory,
    SendRequest, Status, WorkId,
};
use efa_proto::OpId;
use slab::Slab;

use crate::ids::PeerId;
use crate::pool::Pool;
use crate::table::Table;
use crate::work::{InFlight, Purpose, SinglePacket};

/// Why a packet was not posted.
#[derive(Debug)]
pub(crate) enum PostFailure {
    /// The device takes no more at present.
    Blocked,
    /// It will never take this one.
    Refused(Status),
}

/// A packet that was not posted.
#[derive(Debug)]
pub(crate) struct Unposted<P, B> {
    pub(crate) packet: P,
    pub(crate) record: InFlight<B>,
    pub(crate) failure: PostFailure,
}

/// The sending half of the device.
#[derive(Debug)]
pub(crate) struct Transmit<Q: QueuePair, B> {
    pub(crate) device: Q,
    pool: Pool<Q::Packet>,
    in_flight: Table<InFlight<B>>,
    rdma: Slab<RdmaFlight<Q::Region>>,
    bounces: Pool<Q::Region>,
    depth: usize,
}

/// An RDMA operation that the device has.
#[derive(Debug)]
pub(crate) struct RdmaFlight<R> {
    pub(crate) transfer: OpId,
    /// Where in the operation's buffer.
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// The memory between the device and a buffer that isn't registered.
    pub(crate) bounce: Option<R>,
}

impl<Q: QueuePair, B> Transmit<Q, B> {
    pub(crate) fn new(device: Q) -> Self {
        let depth = device.attributes().max_send;
        let (pool, bounces) = (Pool::default(), Pool::default());
        let in_flight = Table::new();
        Self { device, pool, in_flight, rdma: Slab::new(), bounces, depth }
    }

    pub(crate) fn mtu(&self) -> usize {
        self.device.attributes().mtu
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub(crate) fn rdma_in_flight(&self) -> usize {
        self.rdma.len()
    }

    /// Whether the device has as many packets and operations as it takes.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.in_flight.len() + self.rdma.len() >= self.depth
    }

    pub(crate) fn pooled(&self) -> usize {
        self.pool.len()
    }

    /// A buffer to write a packet into, if the device would take it.
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

    /// Gives a buffer back, if that is short work.
    #[inline(always)]
    pub(crate) fn recycle_at_once(&mut self, packet: Q::Packet) -> Result<(), Q::Packet> {
        self.pool.put_at_once(packet)
    }

    /// Gives a buffer back.
    pub(crate) fn recycle(&mut self, packet: Q::Packet) {
        self.pool.put(packet);
    }

    /// Posts the first `record.length` bytes of a packet. The caller has seen that there is
    /// [room](Self::is_full), by which it got the [packet](Self::packet).
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
        self.post_for(packet, record.length, immediate, destination, || record)
    }

    /// [Posts](Self::post) the first `length` bytes of a packet; its record is made when the device has it.
    #[inline(always)]
    pub(crate) fn post_for(
        &mut self,
        packet: Q::Packet,
        length: u32,
        immediate: Option<u32>,
        destination: Destination,
        record: impl FnOnce() -> InFlight<B>,
    ) -> Result<(), Unposted<Q::Packet, B>> {
        let place = self.in_flight.vacancy();
        let id = WorkId(place.index().into());
        let request = SendRequest { id, packet, length: length as usize, destination, immediate };
        match self.device.post_send(request) {
            Ok(()) => {
                place.fill(record());
                Ok(())
            }
            Err(PostError { error, packet }) => {
                Err(Unposted { packet, record: record(), failure: failure(&error) })
            }
        }
    }

    /// What a completion was about.
    #[inline(always)]
    pub(crate) fn completed(&mut self, id: WorkId) -> Option<InFlight<B>> {
        self.in_flight.remove(u32::try_from(id.0).ok()?)
    }

    /// The message that a completion was about, if it has a buffer and went at the first try.
    /// Otherwise nothing is taken.
    #[inline(always)]
    pub(crate) fn completed_message(&mut self, id: WorkId) -> Option<(PeerId, SinglePacket<B>)> {
        self.in_flight.take(usize::try_from(id.0).ok()?, |record| match &mut record.purpose {
            Purpose::Message(SinglePacket { tag, context, length, buffer })
                if !record.retransmitted =>
            {
                let buffer = Some(buffer.take()?);
                Some((
                    record.peer,
                    SinglePacket { tag: *tag, context: *context, length: *length, buffer },
                ))
            }
            _ => None,
        })
    }

    /// The packets that the device has.
    pub(crate) fn records_mut(&mut self) -> impl Iterator<Item = &mut InFlight<B>> {
        self.in_flight.iter_mut()
    }

    /// Posts a read of remote memory into `local`.
    pub(crate) fn post_read(
        &mut self,
        destination: Destination,
        local: RegionRange<Q::Region>,
        remote: RemoteMemory,
        flight: RdmaFlight<Q::Region>,
    ) -> Result<(), PostFailure> {
        self.post_rdma(flight, |device, id| {
            device.post_read(RdmaRequest { id, local, remote, destination })
        })
    }

    /// Posts a write of `local` to remote memory.
    pub(crate) fn post_write(
        &mut self,
        destination: Destination,
        local: RegionRange<Q::Region>,
        remote: RemoteMemory,
        immediate: Option<u32>,
        flight: RdmaFlight<Q::Region>,
    ) -> Result<(), PostFailure> {
        self.post_rdma(flight, |device, id| {
            device.post_write(RdmaRequest { id, local, remote, destination }, immediate)
        })
    }

    fn post_rdma(
        &mut self,
        flight: RdmaFlight<Q::Region>,
        post: impl FnOnce(&mut Q, WorkId) -> Result<(), DeviceError>,
    ) -> Result<(), PostFailure> {
        let posted = if self.is_full() {
            Err(PostFailure::Blocked)
        } else {
            let id = WorkId(self.rdma.vacant_key() as u64);
            post(&mut self.device, id).map_err(|error| failure(&error))
        };
        match posted {
            Ok(()) => {
                self.rdma.insert(flight);
                Ok(())
            }
            Err(failure) => {
                if let Some(region) = flight.bounce {
                    self.bounces.put(region);
                }
                Err(failure)
            }
        }
    }

    /// What an RDMA completion was about.
    pub(crate) fn rdma_ended(&mut self, id: WorkId) -> Option<RdmaFlight<Q::Region>> {
        self.rdma.try_remove(usize::try_from(id.0).ok()?)
    }

    /// Memory for the device to read into.
    pub(crate) fn bounce(&mut self, size: usize) -> Result<Q::Region, DeviceError> {
        match self.bounces.take() {
            Some(region) => Ok(region),
            None => {
                let memory = vec![0; size].into();
                self.device.register(memory, Access::default()).map_err(|refused| refused.error)
            }
        }
    }

    /// Whether there is such memory.
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

fn failure(error: &DeviceError) -> PostFailure {
    match error {
        DeviceError::QueueFull { .. } => PostFailure::Blocked,
        DeviceError::TooLong { .. } => PostFailure::Refused(Status::BadLength),
        DeviceError::BadAddressHandle { .. } => PostFailure::Refused(Status::BadAddressHandle),
        _ => PostFailure::Refused(Status::QueuePairInternal),
    }
}

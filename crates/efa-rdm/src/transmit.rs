//! Packets on their way out: buffers, what is in flight, and what waits.

use efa_device::{
    Access, Destination, DeviceError, PostError, QueuePair, RdmaRequest, RegionRange, RemoteMemory,
    SendRequest, Status, WorkId,
};
use efa_proto::{OpId, PacketType};
use slab::Slab;

use crate::peer::PeerId;
use crate::pool::Pool;

/// What a packet was sent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A part of a send operation. The message id tells whether the operation of this name is still
    /// the same: a packet may be in flight for long after its operation failed, and names come
    /// again.
    Send { id: OpId, msg_id: u32 },
    /// A whole injected message.
    Inject { tag: Option<u64>, length: u32 },
    /// A whole message for the peer's application, of a send operation or injected, with data
    /// beside it.
    Plain { send: Option<(OpId, u32)>, length: u32, immediate: Option<u32> },
    /// An answer that ends or moves on an operation.
    Control,
    /// Our HANDSHAKE.
    Handshake,
}

impl Purpose {
    /// The send operation, and its message id.
    #[inline]
    pub(crate) fn send(self) -> Option<(OpId, u32)> {
        match self {
            Self::Send { id, msg_id } => Some((id, msg_id)),
            Self::Plain { send, .. } => send,
            _ => None,
        }
    }

    /// The tag and length of an injected message.
    pub(crate) fn injected(self) -> Option<(Option<u64>, u32)> {
        match self {
            Self::Inject { tag, length } => Some((tag, length)),
            Self::Plain { send: None, length, .. } => Some((None, length)),
            _ => None,
        }
    }
}

/// A packet that the device has, or had and gave back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    pub(crate) peer: PeerId,
    pub(crate) purpose: Purpose,
    pub(crate) packet_type: PacketType,
    pub(crate) length: u32,
    pub(crate) retransmitted: bool,
}

/// Something to be sent to a peer.
#[derive(Debug)]
pub(crate) enum Work<P> {
    /// The next packets of a send operation.
    Send(OpId),
    /// The beginning of a read of the peer's memory.
    Read(OpId),
    /// A grant for a receive operation.
    Cts(OpId),
    /// The next operations of a transfer.
    Transfer(OpId),
    /// A message lies in the buffer that it is for.
    Receipt { send_id: OpId, msg_id: u32 },
    /// A request that does nothing but bring the peer's HANDSHAKE.
    Provoke,
    /// The end of a read.
    Eor { send_id: OpId, recv_id: OpId },
    /// The sender of a message is asked not to have it read.
    ReadNack(OpId),
    /// Our HANDSHAKE.
    Handshake,
    /// A packet that is written already.
    Packet { packet: P, record: InFlight },
}

/// What became of something to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Advance {
    /// The device has all there is for now.
    Done,
    /// There is more, which goes on later to be fair to others.
    More,
    /// The device takes no more at present.
    Blocked,
}

/// Why a packet was not posted.
#[derive(Debug)]
pub(crate) enum PostFailure {
    /// The device takes no more at present.
    Blocked,
    /// It will never take this one.
    Refused(Status),
}

/// The sending half of the device.
#[derive(Debug)]
pub(crate) struct Transmit<Q: QueuePair> {
    pub(crate) device: Q,
    pool: Pool<Q::Packet>,
    in_flight: Slab<InFlight>,
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

impl<Q: QueuePair> Transmit<Q> {
    pub(crate) fn new(device: Q) -> Self {
        let depth = device.attributes().max_send;
        let (pool, bounces) = (Pool::default(), Pool::default());
        Self { device, pool, in_flight: Slab::new(), rdma: Slab::new(), bounces, depth }
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

    fn is_full(&self) -> bool {
        self.in_flight.len() + self.rdma.len() >= self.depth
    }

    pub(crate) fn pooled(&self) -> usize {
        self.pool.len()
    }

    /// A buffer to write a packet into, if the device would take it.
    pub(crate) fn packet(&mut self) -> Result<Q::Packet, PostFailure> {
        if self.is_full() {
            return Err(PostFailure::Blocked);
        }
        match self.pool.take() {
            Some(packet) => Ok(packet),
            None => self.device.allocate_packet().map_err(|_| PostFailure::Blocked),
        }
    }

    /// Gives a buffer back.
    pub(crate) fn recycle(&mut self, packet: Q::Packet) {
        self.pool.put(packet);
    }

    /// Posts the first `record.length` bytes of a packet.
    pub(crate) fn post(
        &mut self,
        packet: Q::Packet,
        destination: Destination,
        record: InFlight,
    ) -> Result<(), (Q::Packet, PostFailure)> {
        if self.is_full() {
            return Err((packet, PostFailure::Blocked));
        }
        let entry = self.in_flight.vacant_entry();
        let request = SendRequest {
            id: WorkId(entry.key() as u64),
            packet,
            length: record.length as usize,
            destination,
            immediate: match record.purpose {
                Purpose::Plain { immediate, .. } => immediate,
                _ => None,
            },
        };
        match self.device.post_send(request) {
            Ok(()) => {
                entry.insert(record);
                Ok(())
            }
            Err(PostError { error, packet }) => Err((packet, failure(&error))),
        }
    }

    /// What a completion was about.
    pub(crate) fn completed(&mut self, id: WorkId) -> Option<InFlight> {
        self.in_flight.try_remove(usize::try_from(id.0).ok()?)
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

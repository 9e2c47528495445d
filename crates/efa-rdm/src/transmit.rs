//! Packets on their way out: buffers, what is in flight, and what waits.

use efa_device::{Destination, DeviceError, PostError, QueuePair, SendRequest, Status, WorkId};
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
    /// A grant for a receive operation.
    Cts,
    /// Our HANDSHAKE.
    Handshake,
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
    /// A grant for a receive operation.
    Cts(OpId),
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
    depth: usize,
}

impl<Q: QueuePair> Transmit<Q> {
    pub(crate) fn new(device: Q) -> Self {
        let depth = device.attributes().max_send;
        Self { device, pool: Pool::default(), in_flight: Slab::new(), depth }
    }

    pub(crate) fn mtu(&self) -> usize {
        self.device.attributes().mtu
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub(crate) fn pooled(&self) -> usize {
        self.pool.len()
    }

    /// A buffer to write a packet into, if the device would take it.
    pub(crate) fn packet(&mut self) -> Result<Q::Packet, PostFailure> {
        if self.in_flight.len() >= self.depth {
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
        if self.in_flight.len() >= self.depth {
            return Err((packet, PostFailure::Blocked));
        }
        let entry = self.in_flight.vacant_entry();
        let request = SendRequest {
            id: WorkId(entry.key() as u64),
            packet,
            length: record.length as usize,
            destination,
            immediate: None,
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

    pub(crate) fn trim(&mut self) {
        self.pool.trim();
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

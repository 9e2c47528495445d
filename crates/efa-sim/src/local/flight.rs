//! What is in flight on a local fabric.

use std::time::Duration;

use efa_device::{Completion, Qkey, Rdma, Region as _, RegionRange, RemoteMemory, Status, WorkId};

use super::endpoints::EndpointId;
use crate::link::Packet;
use crate::record::QueuePairId;
use crate::region::{KeyTable, SoftRegion};

/// A packet or RDMA operation in flight.
pub(super) struct Flight {
    pub(super) serial: u64,
    pub(super) source: QueuePairId,
    pub(super) destination: QueuePairId,
    /// `None` is not checked: injected packets and RDMA operations have no key.
    pub(super) qkey: Option<Qkey>,
    pub(super) content: Content,
    pub(super) rnr_retry: u8,
    /// Extra delay of the sender's completion.
    pub(super) completes_late: Duration,
    /// Where the completion goes; `None` for injected packets.
    pub(super) sender: Option<(EndpointId, WorkId)>,
}

/// What is in flight.
pub(super) enum Content {
    Packet { packet: Packet, length: usize, immediate: Option<u32> },
    Read { local: RegionRange<SoftRegion>, remote: RemoteMemory },
    Write { local: RegionRange<SoftRegion>, remote: RemoteMemory, immediate: Option<u32> },
}

impl Content {
    /// Whether it takes a receive buffer at the target.
    pub(super) fn takes_buffer(&self, rdma: Rdma) -> bool {
        match self {
            Self::Packet { .. } => true,
            Self::Read { .. } => false,
            Self::Write { immediate, .. } => immediate.is_some() && !rdma.unsolicited_write_receive,
        }
    }

    /// The bytes of a packet.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Packet { packet, length, .. } => &packet[..*length],
            Self::Read { .. } | Self::Write { .. } => &[],
        }
    }

    pub(super) fn completion(self, id: WorkId, result: Result<(), Status>) -> Completion<Packet> {
        match self {
            Self::Packet { packet, .. } => Completion::Send { id, packet, result },
            Self::Read { .. } | Self::Write { .. } => Completion::Rdma { id, result },
        }
    }
}

/// The memory that an RDMA operation names at its target, if it exists and allows that.
pub(super) fn rdma_target(keys: &KeyTable, content: &Content) -> Option<RegionRange<SoftRegion>> {
    let (remote, length) = match content {
        Content::Packet { .. } => return None,
        Content::Read { local, remote } | Content::Write { local, remote, .. } => {
            (*remote, local.length)
        }
    };
    let region = keys.find(remote.key)?;
    let access = region.access();
    let allowed = match content {
        Content::Read { .. } => access.remote_read,
        _ => access.remote_write,
    };
    region.part(remote, length).filter(|_| allowed)
}

/// A copy of a packet, to be delivered again as a stale one.
pub(super) struct Stale {
    pub(super) source: QueuePairId,
    pub(super) bytes: Packet,
}

impl Stale {
    pub(super) fn of(flight: &Flight) -> Self {
        Self { source: flight.source, bytes: flight.content.bytes().into() }
    }
}

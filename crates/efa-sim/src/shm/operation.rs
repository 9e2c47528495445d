//! An RDMA operation in flight: copied in pieces, one per poll, so that a long one doesn't delay other
//! work.

use efa_device::{Destination, Qpn, RdmaRequest, RegionRange, RemoteMemory, Status, WorkId};

use super::memory::HostMemory;
use crate::link::Direction;
use crate::region::SoftRegion;

/// Most bytes copied in one poll.
const PIECE: usize = 1 << 20;

/// An operation that was accepted.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) id: WorkId,
    pub(super) direction: Direction,
    destination: Destination,
    local: RegionRange<SoftRegion>,
    remote: RemoteMemory,
    done: usize,
}

impl Operation {
    pub(super) fn new(request: RdmaRequest<SoftRegion>, direction: Direction) -> Self {
        let RdmaRequest { id, local, remote, destination } = request;
        Self { id, direction, destination, local, remote, done: 0 }
    }

    /// The request that it was made of.
    pub(super) fn into_request(self) -> RdmaRequest<SoftRegion> {
        let Self { id, local, remote, destination, .. } = self;
        RdmaRequest { id, local, remote, destination }
    }

    pub(super) fn peer(&self) -> Qpn {
        self.destination.qpn
    }

    pub(super) fn length(&self) -> u64 {
        self.local.length as u64
    }

    /// Copies the next piece. Returns whether more follow.
    pub(super) fn step(&mut self, memory: &HostMemory) -> Result<bool, Status> {
        let RegionRange { region, offset, length } = &self.local;
        let count = PIECE.min(length - self.done);
        // No region extends beyond the last address.
        let address = self.remote.address.checked_add(self.done as u64);
        let address = address.ok_or(Status::RemoteBadAddress)?;
        let remote = RemoteMemory { address, ..self.remote };
        if self.direction == Direction::Read && !region.allows_local_write() {
            return Err(Status::BadLocalKey);
        }
        region.with_part(offset + self.done, count, |local| match self.direction {
            Direction::Read => memory.read(self.destination.qpn, remote, local),
            Direction::Write(_) => memory.write(self.destination.qpn, local, remote),
        })?;
        self.done += count;
        Ok(self.done < *length)
    }
}

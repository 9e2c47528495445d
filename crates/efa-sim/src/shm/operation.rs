//! An RDMA operation in flight: copied in pieces, one per poll, so that a long one doesn't delay other
//! work.

use efa_device::{
    Destination, Qpn, RdmaRequest, Region as _, RegionRange, RemoteMemory, Status, WorkId,
};

use super::memory::HostMemory;
use super::ring::Push;
use super::sharing::{Shared, back_part};
use crate::link::Direction;
use crate::region::SoftRegion;
use crate::store::Store;

/// Most bytes copied in one poll.
pub(super) const PIECE: usize = 1 << 20;

/// An operation that was accepted.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) id: WorkId,
    pub(super) direction: Direction,
    destination: Destination,
    local: RegionRange<SoftRegion>,
    remote: RemoteMemory,
    done: usize,
    /// The back part of the piece that begins after what is done, if its target was asked for it.
    pub(super) shared: Option<Shared>,
}

impl Operation {
    pub(super) fn new(request: RdmaRequest<SoftRegion>, direction: Direction) -> Self {
        let RdmaRequest { id, local, remote, destination } = request;
        Self { id, direction, destination, local, remote, done: 0, shared: None }
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

    pub(super) fn is_done(&self) -> bool {
        self.done == self.local.length
    }

    /// Bytes of the next piece, if nobody else copies a part of it.
    pub(super) fn piece(&self) -> usize {
        PIECE.min(self.local.length - self.done)
    }

    /// The request for the back part of the next piece; `None` if it isn't worth one.
    pub(super) fn back_part(&self) -> Option<Push> {
        let RegionRange { region, offset, .. } = &self.local;
        if self.direction != Direction::Read || !region.allows_local_write() || region.is_mapped() {
            return None;
        }
        let from = self.remote.address.checked_add(self.done as u64)?;
        let back = back_part(from, self.piece());
        let count = u32::try_from(back.len()).ok().filter(|&count| count > 0)?;
        let from = from.checked_add(back.start as u64)?;
        let into = region.remote_address().checked_add((offset + self.done + back.start) as u64)?;
        Some(Push {
            from: RemoteMemory { address: from, ..self.remote },
            into: RemoteMemory { address: into, key: region.remote_key() },
            count,
        })
    }

    /// Lets a peer that is asked write the region.
    pub(super) fn allow_pushes(&self) {
        self.local.region.allow_pushes();
    }

    /// Copies the next `count` bytes.
    pub(super) fn copy(&mut self, memory: &HostMemory, count: usize) -> Result<(), Status> {
        let RegionRange { region, offset, .. } = &self.local;
        // No region extends beyond the last address.
        let address = self.remote.address.checked_add(self.done as u64);
        let address = address.ok_or(Status::RemoteBadAddress)?;
        let remote = RemoteMemory { address, ..self.remote };
        if self.direction == Direction::Read && !region.allows_local_write() {
            return Err(Status::BadLocalKey);
        }
        let store = Store::of_operation(self.length());
        region.with_part(offset + self.done, count, |local| match self.direction {
            Direction::Read => memory.read(self.destination.qpn, remote, local, store),
            Direction::Write(_) => memory.write(self.destination.qpn, local, remote, store),
        })?;
        self.done += count;
        Ok(())
    }

    /// Notes that the target has written the next `count` bytes.
    pub(super) fn skip(&mut self, count: usize) {
        self.done += count;
    }
}

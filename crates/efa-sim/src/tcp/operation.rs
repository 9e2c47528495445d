//! An RDMA operation in flight: one frame for each piece, some of them at a time.
//!
//! ```text
//!   0        next            length
//!   ├──────────┼────────────────┤
//!   │ sent     │ to be sent     then, for a write: the immediate data
//! ```

use efa_device::{Qkey, RdmaRequest, Region as _, RegionRange, RemoteMemory, Status, WorkId};

use super::wire::{CHUNK, Prefix};
use crate::link::Direction;
use crate::region::SoftRegion;

/// Most frames of operations in flight on a connection.
pub(super) const WINDOW: usize = 16;

/// An operation that was accepted.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) id: WorkId,
    direction: Direction,
    local: RegionRange<SoftRegion>,
    remote: RemoteMemory,
    qkey: Qkey,
    /// Offset of the next piece, if there is one.
    next: Option<usize>,
    /// Frames without response.
    awaited: usize,
    /// Immediate data to be sent.
    immediate: Option<u32>,
    /// The first failure.
    failed: Option<Status>,
}

/// A frame of an operation.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) prefix: Prefix,
    pub(super) key: u32,
    /// Of a read: offset and length of the requested bytes.
    pub(super) wanted: Option<(usize, usize)>,
    /// Of a write: the data.
    pub(super) bytes: Box<[u8]>,
}

impl Operation {
    pub(super) fn new(request: RdmaRequest<SoftRegion>, direction: Direction) -> Self {
        let RdmaRequest { id, local, remote, destination } = request;
        let qkey = destination.qkey;
        let immediate = match direction {
            Direction::Read => None,
            Direction::Write(immediate) => immediate,
        };
        Self {
            id,
            direction,
            local,
            remote,
            qkey,
            next: Some(0),
            awaited: 0,
            immediate,
            failed: None,
        }
    }

    /// The next frame to be sent.
    pub(super) fn begin(&mut self) -> Option<Piece> {
        let Some(offset) = self.next else { return self.announce() };
        let count = CHUNK.min(self.local.length - offset);
        let end = offset + count;
        self.next = (end < self.local.length).then_some(end);
        // No region extends beyond the last address.
        let Some(address) = self.remote.address.checked_add(offset as u64) else {
            self.fail(Status::RemoteBadAddress);
            return None;
        };
        let key = self.remote.key;
        let piece = match self.direction {
            Direction::Read => {
                let prefix = Prefix::Read { address, count: count as u32 };
                Piece { prefix, key, wanted: Some((offset, count)), bytes: Box::default() }
            }
            Direction::Write(_) => {
                let mut bytes: Box<[u8]> = vec![0; count].into();
                if self.local.region.read(self.local.offset + offset, &mut bytes) < count {
                    self.fail(Status::BadLocalKey);
                    return None;
                }
                Piece { prefix: Prefix::Write { address }, key, wanted: None, bytes }
            }
        };
        self.awaited += 1;
        Some(piece)
    }

    /// The immediate data, after all data was written.
    fn announce(&mut self) -> Option<Piece> {
        if self.awaited > 0 || self.failed.is_some() {
            return None;
        }
        let immediate = self.immediate.take()?;
        self.awaited += 1;
        let prefix = Prefix::Written { immediate, length: self.local.length as u64 };
        Some(Piece { prefix, key: self.qkey.0, wanted: None, bytes: Box::default() })
    }

    /// Stores data of a read at `offset`.
    pub(super) fn take(&mut self, offset: usize, bytes: &[u8]) {
        if self.local.region.write(self.local.offset + offset, bytes) < bytes.len() {
            self.fail(Status::BadLocalKey);
        }
    }

    /// Handles the response to a frame.
    pub(super) fn end(&mut self, result: Result<(), Status>) {
        self.awaited -= 1;
        if let Err(status) = result {
            self.fail(status);
        }
    }

    fn fail(&mut self, status: Status) {
        self.failed.get_or_insert(status);
        self.next = None;
    }

    /// The result, if the operation has completed.
    pub(super) fn result(&self) -> Option<Result<(), Status>> {
        let over = self.next.is_none() && self.awaited == 0;
        match self.failed {
            Some(status) if over => Some(Err(status)),
            None if over && self.immediate.is_none() => Some(Ok(())),
            _ => None,
        }
    }
}

//! An RDMA operation that the target's process carries out: a request for each piece, some of them at a time.
//!
//! ```text
//!   0        next            length
//!   ├──────────┼────────────────┤
//!   │ sent     │ to be sent     then, for a write: the immediate data
//! ```

use efa_device::{Qkey, RdmaRequest, Region as _, RegionRange, RemoteMemory, Status, WorkId};

use super::Direction;
use crate::region::SoftRegion;

/// An operation that was accepted.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) id: WorkId,
    direction: Direction,
    local: RegionRange<SoftRegion>,
    remote: RemoteMemory,
    qkey: Qkey,
    /// Most bytes of a piece.
    chunk: usize,
    /// Offset of the next piece, if there is one.
    next: Option<usize>,
    /// Requests without response.
    awaited: usize,
    /// Immediate data to be sent.
    immediate: Option<u32>,
    /// The first failure.
    failed: Option<Status>,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// `count` bytes from `address` on.
    Read { address: u64, count: u32 },
    /// To store the bytes of the piece from `address` on.
    Write { address: u64 },
    /// To deliver the immediate data of a write of `length` bytes.
    Written { immediate: u32, length: u64 },
}

/// A request of an operation.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) step: Step,
    pub(crate) key: u32,
    /// Of a read: offset and length of the requested bytes.
    pub(crate) wanted: Option<(usize, usize)>,
    /// Of a write: the data.
    pub(crate) bytes: Box<[u8]>,
}

impl Operation {
    /// An operation in pieces of at most `chunk` bytes.
    pub(crate) fn new(
        request: RdmaRequest<SoftRegion>,
        direction: Direction,
        chunk: usize,
    ) -> Self {
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
            chunk,
            next: Some(0),
            awaited: 0,
            immediate,
            failed: None,
        }
    }

    /// The next request to be sent.
    pub(crate) fn begin(&mut self) -> Option<Piece> {
        let Some(offset) = self.next else { return self.announce() };
        let count = self.chunk.min(self.local.length - offset);
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
                let step = Step::Read { address, count: count as u32 };
                Piece { step, key, wanted: Some((offset, count)), bytes: Box::default() }
            }
            Direction::Write(_) => {
                let mut bytes: Box<[u8]> = vec![0; count].into();
                if self.local.region.read(self.local.offset + offset, &mut bytes) < count {
                    self.fail(Status::BadLocalKey);
                    return None;
                }
                Piece { step: Step::Write { address }, key, wanted: None, bytes }
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
        let step = Step::Written { immediate, length: self.local.length as u64 };
        Some(Piece { step, key: self.qkey.0, wanted: None, bytes: Box::default() })
    }

    /// Stores data of a read at `offset`.
    pub(crate) fn take(&mut self, offset: usize, bytes: &[u8]) {
        if self.local.region.write(self.local.offset + offset, bytes) < bytes.len() {
            self.fail(Status::BadLocalKey);
        }
    }

    /// Handles the response to a request.
    pub(crate) fn end(&mut self, result: Result<(), Status>) {
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
    pub(crate) fn result(&self) -> Option<Result<(), Status>> {
        let over = self.next.is_none() && self.awaited == 0;
        match self.failed {
            Some(status) if over => Some(Err(status)),
            None if over && self.immediate.is_none() => Some(Ok(())),
            _ => None,
        }
    }
}

//! The table of sends, reads and writes that were posted and have not completed.

use std::ffi::c_int;

use efa_device::WorkId;
use slab::Slab;

/// What the completion of a work request repeats of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutstandingWork {
    pub(super) wr_id: u64,
    /// Of the completion.
    pub(super) opcode: c_int,
}

/// Work requests by the id that the link has for them.
#[derive(Debug, Default)]
pub(super) struct Outstanding(Slab<OutstandingWork>);

impl Outstanding {
    #[inline]
    pub(super) fn insert(&mut self, wr_id: u64, opcode: c_int) -> WorkId {
        WorkId(self.0.insert(OutstandingWork { wr_id, opcode }) as u64)
    }

    #[inline]
    pub(super) fn remove(&mut self, id: WorkId) -> Option<OutstandingWork> {
        self.0.try_remove(usize::try_from(id.0).ok()?)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = OutstandingWork> + '_ {
        self.0.drain()
    }
}

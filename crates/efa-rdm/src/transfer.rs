//! An RDMA transfer: the bytes that the device reads or writes for one operation.

use efa_proto::OpId;

use crate::completion::OperationError;
use crate::ids::PeerId;
use crate::remote::Remote;

/// The operation that a transfer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A receive: RDMA reads into its memory.
    Receive(OpId),
    /// A write: RDMA writes from its memory; with immediate data it is a single RDMA operation.
    Write { send: OpId, immediate: Option<u32> },
}

/// The RDMA operations between the memory of an operation and a peer's. Offsets are in bytes, in the
/// operation's memory.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) peer: PeerId,
    pub(crate) owner: Owner,
    pub(crate) remote: Remote,
    /// The first byte of the transfer.
    pub(crate) start: u64,
    /// The next byte to post.
    pub(crate) next: u64,
    /// The end of the transfer.
    pub(crate) end: u64,
    /// RDMA operations that the device has not completed.
    pub(crate) outstanding: u32,
    /// A write with immediate data failed with RNR and was posted again.
    pub(crate) retried: bool,
    pub(crate) failed: Option<OperationError>,
}

impl Transfer {
    pub(crate) fn new(peer: PeerId, owner: Owner, remote: Remote, start: u64, end: u64) -> Self {
        let (next, outstanding) = (start, 0);
        Self { peer, owner, remote, start, next, end, outstanding, retried: false, failed: None }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.outstanding == 0 && (self.next == self.end || self.failed.is_some())
    }
}

//! An RDMA transfer: what the device reads or writes for an operation.

use efa_proto::OpId;

use crate::completion::OperationError;
use crate::ids::PeerId;
use crate::remote::Remote;

/// Whose transfer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A receive, whose memory is filled.
    Receive(OpId),
    /// A write, whose memory goes out, with immediate data if it is one device operation.
    Write { send: OpId, immediate: Option<u32> },
}

/// RDMA operations between the memory of an operation and a peer's.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) peer: PeerId,
    pub(crate) owner: Owner,
    pub(crate) remote: Remote,
    /// Where the part that is moved begins.
    pub(crate) start: u64,
    /// The next byte to ask for.
    pub(crate) next: u64,
    /// The end of what is to be moved.
    pub(crate) end: u64,
    /// Operations that the device has.
    pub(crate) outstanding: u32,
    /// The receiver of immediate data was not ready before.
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

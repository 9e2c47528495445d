//! Types of the tag matching verbs (`ibv_create_srq_ex`, `ibv_post_srq_ops`, `ibv_wc`).

use std::collections::VecDeque;

use thiserror::Error;

use super::wire::Packet;

/// Limits of a device (`ibv_query_device`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmCaps {
    /// Longest rendezvous request in bytes, headers and meta-data together.
    pub max_rndv_hdr_size: u32,
    /// Most entries of a matching list.
    pub max_num_tags: u32,
    /// Most commands outstanding.
    pub max_ops: u32,
    /// Most pieces of a tagged buffer.
    pub max_sge: u32,
    /// Whether tag matching works on reliable connections (`IBV_TM_CAP_RC`).
    pub rc: bool,
}

/// The kind of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrqType {
    /// No tag matching.
    Basic,
    /// A TM-SRQ.
    TagMatching,
}

/// The transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// EFA's reliable datagrams.
    Srd,
}

/// Limits of a TM-SRQ (`ibv_tm_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmLimits {
    /// Most entries of the matching list.
    pub max_num_tags: u32,
    /// Most commands outstanding.
    pub max_ops: u32,
}

/// Attributes of a new shared receive queue (`ibv_create_srq_ex`).
#[derive(Debug)]
pub struct SrqInit {
    /// Its kind.
    pub srq_type: SrqType,
    /// Given for a TM-SRQ (`IBV_SRQ_INIT_ATTR_TM`).
    pub tm_cap: Option<TmLimits>,
    /// The queue for all completions.
    pub cq: Option<CompletionQueue>,
}

/// A completion queue that no SRQ uses yet.
#[derive(Clone, Debug, Default)]
pub struct CompletionQueue(pub(super) VecDeque<Completion>);

/// Why a TM-SRQ was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CreateError {
    /// The device has no tag matching on the transport.
    #[error("the device has no tag matching on {transport:?}")]
    Transport {
        /// The transport.
        transport: Transport,
    },
    /// Not the kind with tag matching.
    #[error("a {found:?} queue has no tag matching")]
    Type {
        /// The kind.
        found: SrqType,
    },
    /// A required attribute is missing.
    #[error("{field} is missing")]
    Missing {
        /// `tm_cap` or `cq`.
        field: &'static str,
    },
    /// An attribute is zero or above the device's limit.
    #[error("{field} is {value}, the device has 1 to {limit}")]
    Limit {
        /// `max_num_tags` or `max_ops`.
        field: &'static str,
        /// The requested value.
        value: u32,
        /// The device's limit.
        limit: u32,
    },
}

/// The memory of a receive: a scatter/gather list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SgeList(pub Vec<Box<[u8]>>);

impl SgeList {
    /// One element of `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self(vec![vec![0; len].into()])
    }

    /// Total length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|piece| piece.len()).sum()
    }

    /// Whether the total length is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes `bytes` from `offset` on; what doesn't fit is dropped.
    pub fn scatter(&mut self, mut offset: usize, mut bytes: &[u8]) {
        for piece in &mut self.0 {
            let start = offset.min(piece.len());
            let space = &mut piece[start..];
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            offset -= start;
        }
    }

    /// A copy of the first `len` bytes.
    #[must_use]
    pub fn gather(&self, len: usize) -> Vec<u8> {
        self.0.iter().flat_map(|piece| piece.iter().copied()).take(len).collect()
    }
}

/// A command for the matching list (`ibv_ops_wr`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpsWr {
    /// Returned in the command's completion.
    pub wr_id: u64,
    /// The change to the list.
    pub opcode: OpsOpcode,
    /// Whether success is reported, too (`IBV_OPS_SIGNALED`). Failure always is.
    pub signalled: bool,
    /// Unexpected messages that software has handled, wrapping.
    pub unexpected_cnt: u32,
}

/// What a command does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpsOpcode {
    /// `IBV_WR_TAG_ADD`
    Add(TaggedReceive),
    /// `IBV_WR_TAG_DEL` of the entry with this handle, which the ADD returned. The completion returns
    /// the buffer; without `signalled` the buffer is dropped.
    Delete(u32),
    /// `IBV_WR_TAG_SYNC`
    Sync,
}

/// An entry with its buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedReceive {
    /// Returned in receive completions.
    pub recv_wr_id: u64,
    /// The buffer.
    pub sg_list: SgeList,
    /// The tag.
    pub tag: u64,
    /// The bits of the tag that are compared.
    pub mask: u64,
}

/// Why a command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostOpsError {
    /// `max_ops` commands are outstanding.
    #[error("{limit} commands are outstanding, which is max_ops")]
    TooManyOps {
        /// The limit.
        limit: u32,
    },
    /// The scatter/gather list is too long.
    #[error("num_sge is {value}, at most {limit} are allowed")]
    TooManySges {
        /// Its length.
        value: usize,
        /// The limit.
        limit: u32,
    },
}

/// The first command of a chain that was refused (`bad_wr`). Those before it were queued.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("command {} of the chain: {error}", .handles.len())]
pub struct BadWr {
    /// Results of the commands before it.
    pub handles: Vec<Option<u32>>,
    /// Why it was refused.
    pub error: PostOpsError,
    /// The refused command and those after it.
    pub rest: Vec<OpsWr>,
}

/// Number of a connection of the TM-SRQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection(pub u32);

/// Why a command or receive failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Status {
    /// A command failed (`IBV_WC_TM_ERR`): no such entry, or the list is full.
    #[error("the matching list refused the command")]
    TmError,
    /// The buffer is too short for the payload of a rendezvous: it holds the headers, and software
    /// has to receive the payload (`IBV_WC_TM_RNDV_INCOMPLETE`).
    #[error("the buffer is too short for the rendezvous")]
    RndvIncomplete,
    /// The buffer is too short for the message (`IBV_WC_LOC_LEN_ERR`).
    #[error("the buffer is too short for the message")]
    Length,
    /// The sender's memory couldn't be read (`IBV_WC_REM_ACCESS_ERR`).
    #[error("the sender's memory could not be read")]
    RemoteAccess,
    /// The connection ended (`IBV_WC_WR_FLUSH_ERR`).
    #[error("the connection ended")]
    Flushed,
}

/// Tag and context of a matched message (`ibv_wc_tm_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmInfo {
    /// The message's tag.
    pub tag: u64,
    /// Its application context, `priv` in the document.
    pub app_ctx: u32,
}

/// Which of the two events of a matched message a completion reports: both if the message was
/// complete when it was matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmFlags {
    /// The match (`IBV_WC_TM_MATCH`).
    pub matched: bool,
    /// The receive ended: all data is in memory (`IBV_WC_TM_DATA_VALID`), or it failed.
    pub data_valid: bool,
}

/// A completion of the TM-SRQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The device has counted unexpected messages that software has not reported as handled
    /// (`IBV_WC_TM_SYNC_REQ`).
    pub sync_req: bool,
    /// What completed.
    pub report: Report,
}

/// What completed. The last report about a buffer returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// `IBV_WC_TM_ADD`
    Added {
        /// [`OpsWr::wr_id`].
        wr_id: u64,
        /// The outcome.
        result: Result<(), Status>,
        /// The receive, if it wasn't added.
        receive: Option<TaggedReceive>,
    },
    /// `IBV_WC_TM_DEL`
    Deleted {
        /// [`OpsWr::wr_id`].
        wr_id: u64,
        /// The outcome.
        result: Result<(), Status>,
        /// The receive, if it was deleted.
        receive: Option<TaggedReceive>,
    },
    /// `IBV_WC_TM_SYNC`
    Synced {
        /// [`OpsWr::wr_id`].
        wr_id: u64,
    },
    /// `IBV_WC_RECV`: a complete unexpected message in an SRQ buffer.
    Received {
        /// Given when the buffer was posted.
        wr_id: u64,
        /// The sender's connection.
        connection: Connection,
        /// The buffer.
        buffer: SgeList,
        /// Length of the message.
        byte_len: usize,
        /// The outcome.
        result: Result<(), Status>,
    },
    /// `IBV_WC_TM_NO_TAG`: a complete message without a tag in an SRQ buffer.
    NoTag {
        /// Given when the buffer was posted.
        wr_id: u64,
        /// The sender's connection.
        connection: Connection,
        /// The buffer.
        buffer: SgeList,
        /// Length of the message.
        byte_len: usize,
        /// The outcome.
        result: Result<(), Status>,
    },
    /// `IBV_WC_TM_RECV`: a message matched an entry.
    TmReceived {
        /// [`TaggedReceive::recv_wr_id`] of the entry.
        recv_wr_id: u64,
        /// The sender's connection.
        connection: Connection,
        /// Which events.
        flags: TmFlags,
        /// The message's tag and context.
        info: TmInfo,
        /// Bytes received so far: of the payload, or of the headers with
        /// [`Status::RndvIncomplete`].
        byte_len: usize,
        /// The buffer, with [`TmFlags::data_valid`].
        buffer: Option<SgeList>,
        /// The outcome.
        result: Result<(), Status>,
    },
}

/// No SRQ buffer is posted for an unexpected message: the sender must send the packet again (RNR).
#[derive(Debug, PartialEq, Eq)]
pub struct NotReady(pub Packet);

//! What goes between [`Offload`](super::Offload), the application and the device: commands, results and
//! errors.

use thiserror::Error;

use crate::{Match, MessageId, PostId};

/// What a device's matching list can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListLimits {
    /// Most entries (`max_num_tags`). With zero all receives stay in software.
    pub max_tags: u32,
    /// Most outstanding commands (`max_ops`), at least one.
    pub max_ops: u32,
}

/// A command for the device, to be posted before the next one is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the device must execute it"]
pub struct Command {
    /// Number of the command, wrapping; the `wr_id` of its completion.
    pub op: u32,
    /// The change.
    pub change: Change,
    /// Number of unexpected messages handled, wrapping (`unexpected_cnt`).
    pub unexpected: u32,
    /// Whether the command asks for a completion on success, too (`IBV_OPS_SIGNALED`).
    pub signalled: bool,
}

/// A change to the device's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Append an entry for this receive. Pass the device's handle to
    /// [`Offload::added`](super::Offload::added).
    Add {
        /// The receive; its `recv_wr_id`, see [`PostId::to_bits`].
        post: PostId,
        /// The tag.
        tag: u64,
        /// The tag bits compared: the complement of [`Pattern::ignore`](crate::Pattern::ignore).
        mask: u64,
    },
    /// Delete the entry.
    Delete {
        /// The receive.
        post: PostId,
        /// The device's handle of the entry.
        handle: u32,
    },
    /// Report the unexpected messages handled, and nothing else.
    Sync,
}

/// Who holds a receive that waits for its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// Software only.
    Software,
    /// The device's list, or a command that adds it there.
    Device,
}

/// The result of handling a message that was unexpected to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a matched receive may be no longer in the matcher"]
pub enum Handled<R> {
    /// It goes to the earliest posted receive that accepts it.
    Matched(Match<R>),
    /// It goes to a receive that has to be deleted from the device first: [`Outcome::Matched`] or
    /// [`Offload::drain_receives`](super::Offload::drain_receives) returns both.
    Pending,
    /// It waits for a receive.
    Unexpected(MessageId),
}

/// The result of cancelling a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a cancelled receive is no longer in the matcher"]
pub enum Cancelled<R> {
    /// It is cancelled.
    Now(R),
    /// It has to be deleted from the device first: [`Outcome::Cancelled`] returns it, or
    /// [`Offload::matched`](super::Offload::matched) if the device matches it before, or
    /// [`Offload::drain_receives`](super::Offload::drain_receives).
    Pending,
    /// It is not posted any more.
    NotPosted,
}

/// The result of a command's completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the receive is no longer in the matcher"]
pub enum Outcome<R, M> {
    /// This message goes to this receive.
    Matched(R, M),
    /// The receive is cancelled.
    Cancelled(R),
}

/// The device violated the tag-list protocol. MPI's order is not guaranteed from here on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// A match of an entry that is not in its list.
    #[error("the device matched {post:?}, which is not in its list")]
    UnknownEntry {
        /// The entry.
        post: PostId,
    },
    /// A match of an entry that had to be held back, as it belongs to an earlier message.
    #[error("the device matched {post:?}, which belongs to an earlier message")]
    OutOfOrder {
        /// The entry.
        post: PostId,
    },
    /// The completion of a command that is not outstanding.
    #[error("completion of command {op}; outstanding are {outstanding} commands from {first} on")]
    UnknownCommand {
        /// Number of the command.
        op: u32,
        /// Number of the first outstanding command.
        first: u32,
        /// Number of outstanding commands.
        outstanding: usize,
    },
    /// An entry was not added, although the list had space.
    #[error("the device refused to add {post:?}")]
    AddRefused {
        /// The entry.
        post: PostId,
    },
    /// An entry was deleted although its match was reported, or not deleted although it was not.
    #[error("the device's answer to deleting {post:?} contradicts the matches it reported")]
    DeleteContradicted {
        /// The entry.
        post: PostId,
    },
}

//! What goes between [`Offload`](super::Offload), the application and the device: commands, results and
//! errors.

use thiserror::Error;

use crate::{Match, MessageId, PostId};

/// What a device's matching list can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListLimits {
    /// Entries (`max_num_tags`). With zero all receives stay in software.
    pub max_tags: u32,
    /// Commands under way at a time (`max_ops`), at least one.
    pub max_ops: u32,
}

/// A command for the device, to be posted before the next one is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the device must carry it out"]
pub struct Command {
    /// Numbers the commands, wrapping; the `wr_id` of its completion.
    pub op: u32,
    /// What to do.
    pub change: Change,
    /// Unexpected messages handled, wrapping (`unexpected_cnt`).
    pub unexpected: u32,
    /// Whether a completion is wanted if all goes well (`IBV_OPS_SIGNALED`).
    pub signalled: bool,
}

/// A change to the device's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Append an entry for this receive. The device's name of it is told with [`Offload::added`].
    Add {
        /// The receive; its `recv_wr_id`, see [`PostId::to_bits`].
        post: PostId,
        /// The tag.
        tag: u64,
        /// The tag bits compared: the complement of [`Pattern::ignore`].
        mask: u64,
    },
    /// Remove the entry.
    Delete {
        /// The receive.
        post: PostId,
        /// The device's name of the entry.
        handle: u32,
    },
    /// Only report the unexpected messages handled.
    Sync,
}

/// Where a receive is that waits for its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// Here alone.
    Software,
    /// In the device's list, or on its way there.
    Device,
}

/// What became of a message that was unexpected to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a matched receive may be no longer in the matcher"]
pub enum Handled<R> {
    /// It goes to the earliest posted receive that fits.
    Matched(Match<R>),
    /// It goes to a receive that the device still holds: both come as [`Outcome::Matched`] when
    /// the device has let go of it, or from [`Offload::drain_receives`].
    Pending,
    /// It waits for a receive.
    Unexpected(MessageId),
}

/// What became of a receive that was to be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a cancelled receive is no longer in the matcher"]
pub enum Cancelled<R> {
    /// It is cancelled.
    Now(R),
    /// The device holds it: it comes as [`Outcome::Cancelled`], or its match comes instead, or it comes
    /// from [`Offload::drain_receives`].
    Pending,
    /// It isn't posted any more.
    NotPosted,
}

/// What the completion of a command brought about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the receive is no longer in the matcher"]
pub enum Outcome<R, M> {
    /// This message goes to this receive.
    Matched(R, M),
    /// The receive is cancelled.
    Cancelled(R),
}

/// The device did what the proposal rules out. MPI's order isn't warranted from here on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// A match for an entry that isn't in its list.
    #[error("the device matched {post:?}, which isn't in its list")]
    UnknownEntry {
        /// The entry.
        post: PostId,
    },
    /// A match for an entry that had to be held back: an earlier message fits it.
    #[error("the device matched {post:?}, which belongs to an earlier message")]
    OutOfOrder {
        /// The entry.
        post: PostId,
    },
    /// The completion of a command that isn't under way.
    #[error("completion of command {op}, {outstanding} commands from {first} on are under way")]
    UnknownCommand {
        /// Its number.
        op: u32,
        /// The first number that would do.
        first: u32,
        /// How many would do.
        outstanding: usize,
    },
    /// An entry wasn't added, though there had to be room.
    #[error("the device refused to add {post:?}")]
    AddRefused {
        /// The entry.
        post: PostId,
    },
    /// An entry was deleted although its match was reported, or wasn't although it was not.
    #[error("the device's answer to deleting {post:?} contradicts the matches it reported")]
    DeleteContradicted {
        /// The entry.
        post: PostId,
    },
}

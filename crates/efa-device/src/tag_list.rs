//! The extension of [`QueuePair`](crate::QueuePair) for devices that match tagged messages
//! themselves, as the RFC "RDMA tag matching offload" (linux-rdma mailing list; [tag_matching.md] of
//! rdma-core) describes. EFA devices don't.
//!
//! [tag_matching.md]: https://github.com/linux-rdma/rdma-core/blob/master/Documentation/tag_matching.md
//!
//! Such a device searches its tag list, oldest entry first, for the tag of each datagram that begins
//! a tagged message. It delivers the datagrams of one sender in order.

use crate::DeviceError;

/// The tag list of a queue pair ([`QueuePair::tag_list`](crate::QueuePair::tag_list)).
pub trait TagList {
    /// What it can hold.
    fn limits(&self) -> TagListLimits;

    /// Queues a command. Returns the device's handle of the entry if the command adds one.
    ///
    /// # Errors
    /// [`DeviceError::QueueFull`] when [`TagListLimits::max_ops`] commands are outstanding.
    fn post(&mut self, command: TagCommand) -> Result<u32, DeviceError>;

    /// Takes the oldest report, in the order in which the device worked.
    ///
    /// The report of a datagram is the newest one when
    /// [`QueuePair::poll`](crate::QueuePair::poll) returns the datagram. The caller takes all
    /// reports before it handles the datagram.
    fn poll(&mut self) -> Option<TagReport>;
}

/// The tag list of a device without one: it has no values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTagList {}

impl TagList for NoTagList {
    fn limits(&self) -> TagListLimits {
        match *self {}
    }
    fn post(&mut self, _: TagCommand) -> Result<u32, DeviceError> {
        match *self {}
    }
    fn poll(&mut self) -> Option<TagReport> {
        match *self {}
    }
}

/// What a tag list can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagListLimits {
    /// Most entries (`max_num_tags`).
    pub max_tags: u32,
    /// Most commands outstanding (`max_ops`), at least one.
    pub max_ops: u32,
}

/// A command for a tag list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagCommand {
    /// Chosen by the caller, returned in [`TagReport::CommandDone`].
    pub id: u32,
    /// The change to the list.
    pub change: TagChange,
    /// Number of unexpected messages that the caller has handled, wrapping. While it differs from
    /// the device's count, the device doesn't make added entries visible to arriving messages.
    pub unexpected: u32,
    /// Whether success is reported, too. Failure always is.
    pub signalled: bool,
}

/// What a command does to the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagChange {
    /// Appends an entry.
    Add {
        /// Chosen by the caller, returned in [`TagReport::Matched`].
        receive: u64,
        /// The tag.
        tag: u64,
        /// The bits of the tag that are compared.
        mask: u64,
    },
    /// Removes an entry.
    Delete {
        /// What [`TagList::post`] returned for its [`Add`](Self::Add).
        handle: u32,
    },
    /// Only announces [`TagCommand::unexpected`].
    Sync,
}

/// What a tag list did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagReport {
    /// The datagram that begins a tagged message matched an entry, which is no longer in the list.
    Matched {
        /// [`TagChange::Add::receive`] of the entry.
        receive: u64,
    },
    /// The datagram that begins a tagged message matched no entry; the device has counted it as
    /// unexpected.
    Unexpected,
    /// A command completed, and with it those posted before it.
    CommandDone {
        /// [`TagCommand::id`].
        id: u32,
        /// Whether the list is as the command wanted it.
        succeeded: bool,
        /// Whether the device's count of unexpected messages is ahead of the caller's.
        sync_required: bool,
    },
}

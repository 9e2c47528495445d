//! Completions in the formats of libfabric's completion queues: entries with more and more content.
//!
//! ```text
//!   ContextEntry ⊂ MessageEntry ⊂ DataEntry ⊂ TaggedEntry ⊂ Completion
//! ```

use crate::buffer::Buffer;
use crate::completion::{Completion, CompletionError, Kind};
use crate::completion_queue::CompletionQueue;

/// How much of a completion a queue tells (`fi_cq_attr::format`); each format has what those before it have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Format {
    /// [`ContextEntry`] (`FI_CQ_FORMAT_CONTEXT`).
    Context,
    /// [`MessageEntry`] (`FI_CQ_FORMAT_MSG`).
    Message,
    /// [`DataEntry`] (`FI_CQ_FORMAT_DATA`).
    Data,
    /// [`TaggedEntry`] (`FI_CQ_FORMAT_TAGGED`).
    #[default]
    Tagged,
}

/// The context of an operation (`fi_cq_entry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextEntry {
    /// The context that the operation was started with.
    pub context: u64,
}

/// What was done, and its length (`fi_cq_msg_entry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageEntry {
    /// The context that the operation was started with.
    pub context: u64,
    /// The kind of operation; libfabric has flags.
    pub kind: Kind,
    /// Bytes that were sent, received, written or read.
    pub length: u64,
}

/// The same with buffer and CQ data (`fi_cq_data_entry`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataEntry {
    /// The context that the operation was started with.
    pub context: u64,
    /// The kind of operation; libfabric has flags.
    pub kind: Kind,
    /// Bytes that were sent, received, written or read.
    pub length: u64,
    /// The buffer.
    pub buffer: Buffer,
    /// The data that the peer sent to this completion.
    pub data: Option<u64>,
}

/// The same with the tag (`fi_cq_tagged_entry`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedEntry {
    /// The context that the operation was started with.
    pub context: u64,
    /// The kind of operation; libfabric has flags.
    pub kind: Kind,
    /// Bytes that were sent, received, written or read.
    pub length: u64,
    /// The buffer.
    pub buffer: Buffer,
    /// The data that the peer sent to this completion.
    pub data: Option<u64>,
    /// The tag of a tagged message.
    pub tag: Option<u64>,
}

impl From<&Completion> for ContextEntry {
    fn from(completion: &Completion) -> Self {
        Self { context: completion.context }
    }
}

impl From<&Completion> for MessageEntry {
    fn from(&Completion { context, kind, length, .. }: &Completion) -> Self {
        Self { context, kind, length }
    }
}

impl From<Completion> for ContextEntry {
    fn from(completion: Completion) -> Self {
        (&completion).into()
    }
}

impl From<Completion> for MessageEntry {
    fn from(completion: Completion) -> Self {
        (&completion).into()
    }
}

impl From<Completion> for DataEntry {
    fn from(completion: Completion) -> Self {
        TaggedEntry::from(completion).into()
    }
}

impl From<Completion> for TaggedEntry {
    fn from(completion: Completion) -> Self {
        let Completion { context, kind, length, buffer, tag, cq_data: data, .. } = completion;
        Self { context, kind, length, buffer, data, tag }
    }
}

impl From<TaggedEntry> for DataEntry {
    fn from(entry: TaggedEntry) -> Self {
        let TaggedEntry { context, kind, length, buffer, data, tag: _ } = entry;
        Self { context, kind, length, buffer, data }
    }
}

impl From<DataEntry> for MessageEntry {
    fn from(DataEntry { context, kind, length, .. }: DataEntry) -> Self {
        Self { context, kind, length }
    }
}

impl From<MessageEntry> for ContextEntry {
    fn from(MessageEntry { context, .. }: MessageEntry) -> Self {
        Self { context }
    }
}

/// An entry that [`CompletionQueue::read_as`] returns.
pub trait FormattedEntry: From<Completion> + sealed::Sealed {
    /// Its format.
    const FORMAT: Format;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! formats {
    ($($entry:ty: $format:ident)*) => { $(
        impl sealed::Sealed for $entry {}

        impl FormattedEntry for $entry {
            const FORMAT: Format = Format::$format;
        }
    )* };
}

formats! { ContextEntry: Context MessageEntry: Message DataEntry: Data TaggedEntry: Tagged }

/// A queue was read in a format that tells more than the queue's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a completion queue of format {format:?} has no entries of format {asked:?}")]
pub struct FormatError {
    /// The format that was asked for.
    pub asked: Format,
    /// The queue's.
    pub format: Format,
}

impl CompletionQueue {
    /// Returns the next completion, if there is one, as entry of a format: the queue's
    /// ([`CompletionQueueOptions::format`](crate::CompletionQueueOptions)) or one that tells less. What the
    /// entry has no field for is dropped, its buffer too.
    ///
    /// ```
    /// use efa::{CompletionQueueOptions, ContextEntry, Fabric, Format, LocalOptions, TaggedEntry};
    /// # let domain = Fabric::local(LocalOptions::default()).domain()?;
    /// let options = CompletionQueueOptions::new().format(Format::Message);
    /// let queue = domain.completion_queue(options);
    /// assert!(queue.read_as::<ContextEntry>()?.is_none());
    /// assert!(queue.read_as::<TaggedEntry>().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The format tells more than the queue's. Nothing was read.
    pub fn read_as<E: FormattedEntry>(
        &self,
    ) -> Result<Option<Result<E, CompletionError>>, FormatError> {
        let (asked, format) = (E::FORMAT, self.format());
        if asked > format {
            return Err(FormatError { asked, format });
        }
        Ok(self.read().map(|entry| entry.map(E::from)))
    }
}

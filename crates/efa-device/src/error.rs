//! How calls of a device fail.

use crate::{AddressHandle, Gid, Status};

/// Why a call of the device failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The queue is full; try again after completions.
    #[error("queue full: {depth} outstanding")]
    QueueFull {
        /// Its depth.
        depth: usize,
    },
    /// A length is out of range.
    #[error("{length} bytes given, at most {limit} allowed")]
    TooLong {
        /// The given length.
        length: u64,
        /// The device's limit.
        limit: u64,
    },
    /// The address names no interface.
    #[error("not an address of an interface: {gid}")]
    BadAddress {
        /// The address.
        gid: Gid,
    },
    /// The device doesn't reach another interface.
    #[error("the device at {ours} does not reach {theirs}")]
    Unreachable {
        /// The device's interface.
        ours: Gid,
        /// The other one.
        theirs: Gid,
    },
    /// No such address handle.
    #[error("no address handle {handle:?}")]
    BadAddressHandle {
        /// The handle.
        handle: AddressHandle,
    },
    /// A range exceeds its memory region.
    #[error("{length} bytes at offset {offset} exceed a region of {region} bytes")]
    OutOfRegion {
        /// Where the range begins.
        offset: usize,
        /// Its length.
        length: usize,
        /// Length of the region.
        region: usize,
    },
    /// The device doesn't support the operation.
    #[error("the device has no {operation}")]
    Unsupported {
        /// The operation.
        operation: &'static str,
    },
    /// The queue pair failed, and doesn't recover.
    #[error("the queue pair failed: {status}")]
    QueuePairFailed {
        /// How its operations end.
        status: Status,
    },
    /// A table of the device is full.
    #[error("no space for another {object}: the limit is {limit}")]
    LimitReached {
        /// The kind of object.
        object: &'static str,
        /// The most that the device allows.
        limit: usize,
    },
    /// The device doesn't exist.
    #[error("no device: {reason}")]
    Absent {
        /// What was not found.
        reason: String,
    },
    /// A call of the operating system failed.
    #[error("{operation} failed: {reason}")]
    System {
        /// The call and its object.
        operation: String,
        /// The error number of the operating system.
        errno: i32,
        /// The operating system's words for it, with the number.
        reason: String,
    },
    /// A file or object has an unexpected state.
    #[error("{object}: {reason}")]
    Inconsistent {
        /// The file or object.
        object: String,
        /// What is wrong.
        reason: String,
    },
}

/// What the operating system has none of for now. A call that failed for want of it can be tried again when
/// there is some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Shortage {
    /// Space of a file system, or a quota of it (`ENOSPC`, `EDQUOT`).
    #[error("no space left on device")]
    Space,
    /// Memory, or address space (`ENOMEM`, `ENOBUFS`).
    #[error("out of memory")]
    Memory,
    /// File descriptors, of the process or of the system (`EMFILE`, `ENFILE`).
    #[error("too many open files")]
    OpenFiles,
}

impl Shortage {
    /// The one that an error number of the operating system says, if it says one.
    #[must_use]
    pub fn of_errno(errno: i32) -> Option<Self> {
        // The numbers of Linux; this crate has no C library.
        match errno {
            28 | 122 => Some(Self::Space),
            12 | 105 => Some(Self::Memory),
            23 | 24 => Some(Self::OpenFiles),
            _ => None,
        }
    }
}

impl DeviceError {
    /// What the operating system had none of, if that is why the call failed.
    #[must_use]
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            Self::System { errno, .. } => Shortage::of_errno(*errno),
            _ => None,
        }
    }
}

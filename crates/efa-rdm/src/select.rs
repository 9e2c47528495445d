//! Which subprotocol a message travels by.

use core::fmt;

use crate::config::Config;

/// A way to send a message (specification table 1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subprotocol {
    /// One packet.
    Eager,
    /// Several packets at once, without flow control.
    Medium,
    /// Windows that the receiver grants by CTS packets.
    LongCts,
    /// The receiver reads it from the sender's memory.
    LongRead,
    /// The receiver reads it, except for a leading part that comes in packets.
    RuntRead,
    /// The device alone writes or reads the memory of the peer.
    Direct,
}

impl Subprotocol {
    /// Its name, for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Medium => "medium",
            Self::LongCts => "long-CTS",
            Self::LongRead => "long-read",
            Self::RuntRead => "runting read",
            Self::Direct => "direct",
        }
    }
}

impl Subprotocol {
    /// Whether the receiver reads the message, or most of it.
    pub(crate) const fn is_read(self) -> bool {
        matches!(self, Self::LongRead | Self::RuntRead)
    }

    /// Whether several packets, each a request, carry the message.
    pub(crate) const fn has_several_requests(self) -> bool {
        matches!(self, Self::Medium | Self::RuntRead)
    }
}

impl fmt::Display for Subprotocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What the choice depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    /// Length of the message in bytes.
    pub(crate) length: u64,
    /// Bytes that fit one packet beside its header.
    pub(crate) fits: u64,
    /// The receiver can read the buffer.
    pub(crate) readable: bool,
    /// A leading part may go in packets.
    pub(crate) runting: bool,
}

/// The selection, the first line that applies (facts 4.2):
///
/// | message                                                | subprotocol  |
/// |--------------------------------------------------------|--------------|
/// | at least `min_read`, readable, and runting makes sense | runting read |
/// | at least `min_read`, readable                          | long-read    |
/// | fits one packet with its header                        | eager        |
/// | at most `max_medium`                                   | medium       |
/// | any                                                    | long-CTS     |
pub(crate) fn subprotocol(message: Circumstances, config: &Config) -> Subprotocol {
    let Circumstances { length, fits, readable, runting } = message;
    if readable {
        if runting { Subprotocol::RuntRead } else { Subprotocol::LongRead }
    } else if length <= fits {
        Subprotocol::Eager
    } else if length <= config.max_medium {
        Subprotocol::Medium
    } else {
        Subprotocol::LongCts
    }
}

/// What the choice for a write depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteCircumstances {
    /// Its length in bytes.
    pub(crate) length: u64,
    /// Bytes that fit one packet beside its header.
    pub(crate) fits: u64,
    /// The device can write.
    pub(crate) direct: bool,
    /// The target can read the buffer.
    pub(crate) readable: bool,
}

/// The selection for a write, the first line that applies (facts 4.3):
///
/// | write                                     | subprotocol |
/// |-------------------------------------------|-------------|
/// | the device can                            | direct      |
/// | at least `min_read_write`, readable       | long-read   |
/// | fits one packet with its header           | eager       |
/// | any                                       | long-CTS    |
pub(crate) fn write_subprotocol(write: WriteCircumstances) -> Subprotocol {
    let WriteCircumstances { length, fits, direct, readable } = write;
    if direct {
        Subprotocol::Direct
    } else if readable {
        Subprotocol::LongRead
    } else if length <= fits {
        Subprotocol::Eager
    } else {
        Subprotocol::LongCts
    }
}

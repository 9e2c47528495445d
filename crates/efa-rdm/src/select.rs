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
}

impl Subprotocol {
    /// Its name, for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Medium => "medium",
            Self::LongCts => "long-CTS",
        }
    }
}

impl fmt::Display for Subprotocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The selection, from top to bottom:
///
/// | message                         | subprotocol |
/// |---------------------------------|-------------|
/// | fits one packet with its header | eager       |
/// | at most `max_medium`            | medium      |
/// | longer                          | long-CTS    |
pub(crate) fn subprotocol(length: u64, fits: u64, config: &Config) -> Subprotocol {
    if length <= fits {
        Subprotocol::Eager
    } else if length <= config.max_medium {
        Subprotocol::Medium
    } else {
        Subprotocol::LongCts
    }
}

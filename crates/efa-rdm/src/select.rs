//! Which subprotocol a message, write or read travels by: one table.

use core::fmt;

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

/// What is to travel. Atomics have no choice: they are one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Message,
    Write,
    Read,
}

/// What the choice depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inputs {
    /// The devices of both sides do it without packets.
    pub(crate) direct: bool,
    /// It has at least `min_read` bytes, or a write `min_read_write`, and the peer can read the
    /// buffer.
    pub(crate) readable: bool,
    /// That, and a leading part may go in packets: `runt_size` is not 0, delivery complete isn't
    /// wanted, and the peer reads nothing else.
    pub(crate) runting: bool,
    /// It fits one packet with its header.
    pub(crate) fits: bool,
    /// It has at most `max_medium` bytes.
    pub(crate) medium: bool,
}

/// The table of subprotocols: the first line that applies.
#[inline]
pub(crate) fn subprotocol(operation: Operation, is: Inputs) -> Subprotocol {
    use Operation::{Message, Read, Write};
    match operation {
        Write | Read if is.direct => Subprotocol::Direct,
        Message if is.runting => Subprotocol::RuntRead,
        Message | Write if is.readable => Subprotocol::LongRead,
        Message | Write | Read if is.fits => Subprotocol::Eager,
        Message if is.medium => Subprotocol::Medium,
        Message | Write | Read => Subprotocol::LongCts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_applies_decides() {
        use Operation::{Message, Read, Write};
        use Subprotocol::{Direct, Eager, LongCts, LongRead, Medium, RuntRead};
        // As the table is walked down, what it asks for is taken away.
        let all = Inputs { direct: true, readable: true, runting: true, fits: true, medium: true };
        let steps = [
            (all, [RuntRead, Direct, Direct]),
            (Inputs { direct: false, ..all }, [RuntRead, LongRead, Eager]),
            (Inputs { direct: false, runting: false, ..all }, [LongRead, LongRead, Eager]),
            (Inputs { fits: true, medium: true, ..Default::default() }, [Eager; 3]),
            (Inputs { medium: true, ..Default::default() }, [Medium, LongCts, LongCts]),
            (Inputs::default(), [LongCts; 3]),
        ];
        for (inputs, expected) in steps {
            let chosen = [Message, Write, Read].map(|what| subprotocol(what, inputs));
            assert_eq!(chosen, expected, "{inputs:?}");
        }
    }
}

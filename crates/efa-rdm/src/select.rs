//! Selection of the subprotocol of a message, write or read: one table.

use core::fmt;

/// A way to transfer a message, write or read (specification table 1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Subprotocol {
    /// One packet.
    Eager,
    /// Several packets, without flow control.
    Medium,
    /// Packets in windows that the receiver grants by CTS packets.
    LongCts,
    /// The receiver reads the sender's memory by RDMA.
    LongRead,
    /// The receiver reads the sender's memory by RDMA, except a leading part that is sent in packets.
    RuntRead,
    /// The device writes or reads the peer's memory by RDMA, without packets of the protocol.
    Direct,
}

impl Subprotocol {
    /// The name of the subprotocol, for reports.
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

    /// Whether the receiver reads the message, or a part of it, by RDMA.
    pub(crate) const fn is_read(self) -> bool {
        matches!(self, Self::LongRead | Self::RuntRead)
    }

    /// Whether several request packets (RTM) can carry the message.
    pub(crate) const fn has_several_requests(self) -> bool {
        matches!(self, Self::Medium | Self::RuntRead)
    }
}

impl fmt::Display for Subprotocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The operation to select for. Atomics have no choice: they are a single packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Message,
    Write,
    Read,
}

/// The conditions that the selection depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inputs {
    /// The devices of both sides can do it by RDMA.
    pub(crate) direct: bool,
    /// A message of at least `min_read` bytes, or a write of at least `min_read_write`, whose buffer
    /// the peer can read.
    pub(crate) readable: bool,
    /// `readable`, and `runt_size` isn't 0, delivery complete isn't requested, and the peer is reading
    /// no other message.
    pub(crate) runting: bool,
    /// The data fits one packet with its header.
    pub(crate) fits: bool,
    /// The message has at most `max_medium` bytes.
    pub(crate) medium: bool,
}

/// Selects the subprotocol: the first line of the table that applies.
#[inline]
pub(crate) fn subprotocol(operation: Operation, inputs: Inputs) -> Subprotocol {
    use Operation::{Message, Read, Write};
    match operation {
        Write | Read if inputs.direct => Subprotocol::Direct,
        Message if inputs.runting => Subprotocol::RuntRead,
        Message | Write if inputs.readable => Subprotocol::LongRead,
        Message | Write | Read if inputs.fits => Subprotocol::Eager,
        Message if inputs.medium => Subprotocol::Medium,
        Message | Write | Read => Subprotocol::LongCts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subprotocol_is_the_first_line_that_applies() {
        use Operation::{Message, Read, Write};
        use Subprotocol::{Direct, Eager, LongCts, LongRead, Medium, RuntRead};
        // Each step takes away the condition of the line that applied before.
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
            let chosen = [Message, Write, Read].map(|operation| subprotocol(operation, inputs));
            assert_eq!(chosen, expected, "{inputs:?}");
        }
    }
}

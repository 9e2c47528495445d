//! Numbers that must not be mixed up: message ids, operation ids, connection ids.

use core::fmt;

/// A 64-bit message tag (section 3.1).
pub type Tag = u64;

/// Position of a message among all messages and atomics to one peer; wraps at 2^32 (section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MsgId(pub u32);

/// Identifies an operation of one endpoint: `send_id` or `recv_id` on the wire.
///
/// Only the endpoint that chose it interprets it; the peer returns it unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u32);

/// Random number of an endpoint's incarnation, also its queue key (section 4.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connid(pub u32);

impl fmt::Display for MsgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for Connid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

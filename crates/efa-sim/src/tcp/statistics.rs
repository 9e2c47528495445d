//! What a queue pair counts.

use super::wire::Violation;

/// What happened to a queue pair's connections so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpStatistics {
    /// Connections to send over that there are now.
    pub outgoing: usize,
    /// Connections of senders that there are now.
    pub incoming: usize,
    /// Connections that were begun, to send.
    pub connects: u64,
    /// Connections that were taken.
    pub accepts: u64,
    /// Connections that were turned away since there were as many as allowed.
    pub turned_away: u64,
    /// Connections that could not be taken as the system refused, for want of descriptors perhaps.
    pub failed_accepts: u64,
    /// Connections that were closed for what came over them.
    pub violations: Violations,
    /// System calls that ask which sockets something can be done with.
    pub looks: u64,
    /// System calls that receive.
    pub receives: u64,
    /// System calls that send.
    pub sends: u64,
}

/// How often each [`Violation`] was met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violations {
    /// [`Violation::Magic`].
    pub magic: u64,
    /// [`Violation::Version`].
    pub version: u64,
    /// [`Violation::Length`].
    pub length: u64,
    /// [`Violation::Short`].
    pub short: u64,
    /// [`Violation::Kind`].
    pub kind: u64,
    /// [`Violation::Sequence`].
    pub sequence: u64,
    /// [`Violation::Status`].
    pub status: u64,
    /// [`Violation::Answer`].
    pub answer: u64,
    /// [`Violation::Truncated`].
    pub truncated: u64,
    /// [`Violation::Slow`].
    pub slow: u64,
}

impl Violations {
    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        let Self { magic, version, length, short, kind, sequence, .. } = *self;
        let Self { status, answer, truncated, slow, .. } = *self;
        magic + version + length + short + kind + sequence + status + answer + truncated + slow
    }

    pub(super) fn count(&mut self, violation: Violation) {
        *match violation {
            Violation::Magic { .. } => &mut self.magic,
            Violation::Version { .. } => &mut self.version,
            Violation::Length { .. } => &mut self.length,
            Violation::Short { .. } => &mut self.short,
            Violation::Kind { .. } => &mut self.kind,
            Violation::Sequence { .. } => &mut self.sequence,
            Violation::Status { .. } => &mut self.status,
            Violation::Answer { .. } => &mut self.answer,
            Violation::Truncated { .. } => &mut self.truncated,
            Violation::Slow { .. } => &mut self.slow,
        } += 1;
    }
}

//! Counters of a queue pair.

use super::wire::Violation;

/// Counters of a queue pair's connections since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpStatistics {
    /// Open connections that this side has opened, and those that it will open again.
    pub outgoing: usize,
    /// Open connections that were accepted.
    pub incoming: usize,
    /// Connections begun by this side.
    pub connects: u64,
    /// Connections accepted.
    pub accepts: u64,
    /// Connections turned away because `max_peers` were open and none of them made room.
    pub rejected: u64,
    /// Accepted connections closed to make room for another one.
    pub evicted: u64,
    /// Connections that the other side closed for want of room or for slowness, so that this side tries again.
    pub turned_away: u64,
    /// Connections that the system failed to accept or to watch, for example for lack of file descriptors.
    pub failed_accepts: u64,
    /// Connections closed for a protocol violation.
    pub violations: Violations,
    /// System calls that ask which sockets are ready.
    pub epoll_waits: u64,
    /// System calls that received bytes.
    pub receives: u64,
    /// System calls that send bytes.
    pub sends: u64,
}

/// The number of each [`Violation`].
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
    /// [`Violation::Response`].
    pub response: u64,
    /// [`Violation::Window`].
    pub window: u64,
    /// [`Violation::Truncated`].
    pub truncated: u64,
    /// [`Violation::Slow`].
    pub slow: u64,
}

impl Violations {
    /// The sum.
    #[must_use]
    pub const fn total(&self) -> u64 {
        let Self { magic, version, length, short, kind, sequence, .. } = *self;
        let Self { status, response, window, truncated, slow, .. } = *self;
        let of_frames = magic + version + length + short + kind + sequence;
        of_frames + status + response + window + truncated + slow
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
            Violation::Response { .. } => &mut self.response,
            Violation::Window { .. } => &mut self.window,
            Violation::Truncated { .. } => &mut self.truncated,
            Violation::Slow { .. } => &mut self.slow,
        } += 1;
    }
}

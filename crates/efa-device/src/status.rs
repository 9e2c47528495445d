//! How sends and RDMA operations fail.

use std::fmt;

/// Why a posted operation failed, with the status numbers of the EFA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// 1: the queue pair was destroyed or failed with the operation outstanding.
    Flushed,
    /// 2: internal error of the local queue pair.
    QueuePairInternal,
    /// 3: operation not supported.
    UnsupportedOperation,
    /// 4: no such address handle.
    BadAddressHandle,
    /// 5: local memory key not valid.
    BadLocalKey,
    /// 6: local length out of range.
    BadLength,
    /// 7: remote address, key or access not valid.
    RemoteBadAddress,
    /// 8: the remote side was reset.
    RemoteAbort,
    /// 9: no such queue pair at the remote interface.
    BadDestinationQpn,
    /// 10: the receiver had no buffer posted.
    ReceiverNotReady,
    /// 11: the datagram did not fit the receiver's buffer.
    RemoteBadLength,
    /// 12: unexpected response of the remote side.
    BadStatus,
    /// 13: the remote side stopped responding.
    UnresponsiveRemote,
    /// 14: the remote side does not know the sender.
    UnknownPeer,
    /// 15: the remote side was never reachable.
    UnreachableRemote,
    /// 18: the remote side lacks a feature that the operation needs.
    FeatureMismatch,
    /// 7, as [`RemoteBadAddress`](Self::RemoteBadAddress), of which the EFA device has no finer one: the
    /// system doesn't permit the software device to access the memory of the remote process.
    NotPermitted,
}

impl Status {
    /// The device's number of the status.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Flushed => 1,
            Self::QueuePairInternal => 2,
            Self::UnsupportedOperation => 3,
            Self::BadAddressHandle => 4,
            Self::BadLocalKey => 5,
            Self::BadLength => 6,
            Self::RemoteBadAddress | Self::NotPermitted => 7,
            Self::RemoteAbort => 8,
            Self::BadDestinationQpn => 9,
            Self::ReceiverNotReady => 10,
            Self::RemoteBadLength => 11,
            Self::BadStatus => 12,
            Self::UnresponsiveRemote => 13,
            Self::UnknownPeer => 14,
            Self::UnreachableRemote => 15,
            Self::FeatureMismatch => 18,
        }
    }

    /// The status with this number of the device; `None` for 0, which is success, and for unknown numbers.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Flushed,
            2 => Self::QueuePairInternal,
            3 => Self::UnsupportedOperation,
            4 => Self::BadAddressHandle,
            5 => Self::BadLocalKey,
            6 => Self::BadLength,
            7 => Self::RemoteBadAddress,
            8 => Self::RemoteAbort,
            9 => Self::BadDestinationQpn,
            10 => Self::ReceiverNotReady,
            11 => Self::RemoteBadLength,
            12 => Self::BadStatus,
            13 => Self::UnresponsiveRemote,
            14 => Self::UnknownPeer,
            15 => Self::UnreachableRemote,
            18 => Self::FeatureMismatch,
            _ => return None,
        })
    }

    /// Whether the peer is gone: reset, destroyed, unresponsive or unreachable.
    #[must_use]
    pub const fn is_peer_gone(self) -> bool {
        matches!(
            self,
            Self::RemoteAbort
                | Self::BadDestinationQpn
                | Self::UnresponsiveRemote
                | Self::UnreachableRemote
        )
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flushed => "flushed",
            Self::QueuePairInternal => "internal error of the queue pair",
            Self::UnsupportedOperation => "operation not supported",
            Self::BadAddressHandle => "no such address handle",
            Self::BadLocalKey => "local memory key not valid",
            Self::BadLength => "local length out of range",
            Self::RemoteBadAddress => "remote address, key or access not valid",
            Self::RemoteAbort => "the remote side was reset",
            Self::BadDestinationQpn => "no such queue pair at the remote side",
            Self::ReceiverNotReady => "receiver not ready",
            Self::RemoteBadLength => "the datagram did not fit the receiver's buffer",
            Self::BadStatus => "unexpected response of the remote side",
            Self::UnresponsiveRemote => "the remote side stopped responding",
            Self::UnknownPeer => "the remote side does not know the sender",
            Self::UnreachableRemote => "the remote side was never reachable (is it running, and on the same link and network?)",
            Self::FeatureMismatch => "the remote side lacks a feature that the operation needs",
            Self::NotPermitted => {
                "not permitted to access the memory of the remote process (not dumpable, seccomp, \
                 ptrace_scope, PID namespace)"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_numbers_convert_both_ways() {
        for code in (1..=15).chain([18]) {
            assert_eq!(Status::from_code(code).map(Status::code), Some(code));
        }
        assert_eq!((Status::from_code(0), Status::from_code(16)), (None, None));
    }

    #[test]
    fn text_of_a_peer_that_was_never_reachable_says_what_to_look_at() {
        let text = "the remote side was never reachable (is it running, and on the same link and network?)";
        assert_eq!(Status::UnreachableRemote.to_string(), text);
    }

    #[test]
    fn peer_gone_statuses_exclude_rnr() {
        assert!(Status::BadDestinationQpn.is_peer_gone());
        assert!(!Status::ReceiverNotReady.is_peer_gone());
        assert!(!Status::NotPermitted.is_peer_gone());
    }
}

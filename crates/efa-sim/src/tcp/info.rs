//! What TCP says of a socket, and an option of it: calls for which `rustix` has no functions.

// They read and write memory of this process.
#![allow(unsafe_code)]

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::silence::Traffic;

/// States of a socket that is not connected yet: SYN-SENT and SYN-RECEIVED.
const CONNECTING: [u8; 2] = [2, 3];
/// `TCP_RTO_MAX_MS`, since Linux 6.15.
const RTO_MAX_MS: libc::c_int = 44;

/// What TCP says of this socket; `None` if it says nothing.
pub(super) fn traffic(socket: BorrowedFd<'_>) -> Option<Traffic> {
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the type is of integers, which may all be 0. What an older system doesn't know stays so.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    // SAFETY: the call writes at most `length` bytes to `info`, and then `length`; both live until it returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    let millis = |count: u32| Duration::from_millis(count.into());
    (result == 0).then(|| Traffic {
        is_connecting: CONNECTING.contains(&info.tcpi_state),
        has_unacknowledged: info.tcpi_unacked > 0,
        has_unsent: info.tcpi_notsent_bytes > 0,
        has_unanswered_probes: info.tcpi_probes > 0,
        sent: millis(info.tcpi_last_data_sent),
        // The system notes acknowledgements and data separately, if data acknowledge nothing new.
        heard: millis(info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv)),
    })
}

/// Has the system wait no longer than this until it sends or probes again, if it can.
pub(super) fn limit_waits(socket: BorrowedFd<'_>, longest: Duration) {
    let millis = longest.as_millis().clamp(1000, 120_000) as libc::c_int;
    // SAFETY: the call reads `millis`, which lives until it returns. An older system fails.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            RTO_MAX_MS,
            (&raw const millis).cast(),
            size_of_val(&millis) as libc::socklen_t,
        )
    };
}

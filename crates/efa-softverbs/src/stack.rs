//! The stack of the thread that calls.

use std::hint::black_box;

/// How much of the stack is cleared: more than the depth at which the bytes in question lie, 28.5 KB.
const CLEARED: usize = 48 << 10;

/// Fills the stack below the caller with zeros.
///
/// The datagram endpoints of libfabric (1.12 to 1.20 at least) copy completions from an array on the stack of which they
/// have written only a part if the program's queue has the format `FI_CQ_FORMAT_CONTEXT`. The flags are what was on the
/// stack before, and one bit of them makes `fi_cq_read` follow a null pointer. So a program crashes or doesn't by what ran
/// that deep while it started, which is more with this library than with a driver.
#[inline(never)]
pub(crate) fn clear_below() {
    black_box([0_u8; CLEARED]);
}

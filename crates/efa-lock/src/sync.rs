//! Atomic types, and fences of which one side pays nothing.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::atomic::{compiler_fence, fence};
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};

/// Whether this process is registered for fences in all its threads.
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);

/// Registers this process for fences in all its threads. Returns whether the system has them.
#[cold]
pub(crate) fn register() -> bool {
    if !is_registered() && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok() {
        IS_REGISTERED.store(true, Ordering::Release);
    }
    is_registered()
}

pub(crate) fn is_registered() -> bool {
    IS_REGISTERED.load(Ordering::Acquire)
}

/// The cheap side: orders this thread's accesses for those who call [`fence_everywhere`].
#[inline(always)]
pub(crate) fn fence_here() {
    compiler_fence(Ordering::SeqCst);
}

/// The other side: each thread of the process has passed a full fence when this returns.
#[cold]
pub(crate) fn fence_everywhere() {
    fence(Ordering::SeqCst);
    if membarrier(MembarrierCommand::PrivateExpedited).is_err() {
        // A sandbox that came after `register` forbids it. No processor keeps a store to itself for so long.
        std::thread::sleep(Duration::from_millis(10));
    }
}

//! Waiting for others that may never go on: threads of this process with a lock, and other processes.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Far longer than any thread holds a lock while it runs.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// Takes a lock, unless another thread holds it for a second. That happens where a signal handler of the
/// holder never returns, as it calls `exit`, which waits for the `exit` that is closing the device.
pub(crate) fn lock_within<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    within(TIMEOUT, || match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    })
}

/// Calls `look` until it returns something, for as long as `timeout`; at least once.
pub(crate) fn within<T>(timeout: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let mut begun = None;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if begun.get_or_insert_with(Instant::now).elapsed() >= timeout {
            return None;
        }
        std::thread::yield_now();
    }
}

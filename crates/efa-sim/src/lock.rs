//! Locks whose holder may never release them.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Far longer than any thread holds a lock while it runs.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Takes a lock, unless another thread holds it for a second. That happens where a signal handler of the
/// holder never returns, as it calls `exit`, which waits for the `exit` that is closing the device.
pub(crate) fn lock_within<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let mut begun = None;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
        if begun.get_or_insert_with(Instant::now).elapsed() >= TIMEOUT {
            return None;
        }
        std::thread::yield_now();
    }
}

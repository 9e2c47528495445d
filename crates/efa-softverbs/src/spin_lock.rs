//! A lock without a guard, for C code that holds it from one call to another: from `ibv_start_poll`
//! to `ibv_end_poll`, from `ibv_wr_start` to `ibv_wr_complete`, from before a fork to after it.

use std::sync::atomic::{AtomicBool, Ordering};

/// The lock. A thread that waits for it yields the processor.
#[derive(Debug, Default)]
pub(crate) struct SpinLock(AtomicBool);

/// Releases the lock when dropped.
#[derive(Debug)]
pub(crate) struct SpinGuard<'a>(&'a SpinLock);

impl SpinLock {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Waits until the lock is free, and takes it.
    #[inline]
    pub(crate) fn acquire(&self) {
        while self.0.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Frees the lock. Only the thread that acquired it may do so, or its copy in a forked child.
    #[inline]
    pub(crate) fn release(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Acquires the lock for a scope.
    pub(crate) fn lock(&self) -> SpinGuard<'_> {
        self.acquire();
        SpinGuard(self)
    }
}

impl Drop for SpinGuard<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Each thread loads and stores separately, so updates are lost unless the lock excludes others.
    #[test]
    fn spin_lock_admits_one_thread_at_a_time() {
        let (lock, count) = (SpinLock::new(), AtomicU64::new(0));
        let increment = || count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    lock.acquire();
                    increment();
                    lock.release();
                }
            });
            scope.spawn(|| {
                for _ in 0..10_000 {
                    let _guard = lock.lock();
                    increment();
                }
            });
        });
        assert_eq!(count.into_inner(), 20_000);
    }
}

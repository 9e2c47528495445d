//! A lock without a guard, for C code that holds it from one call to another: from `ibv_start_poll`
//! to `ibv_end_poll`, from `ibv_wr_start` to `ibv_wr_complete`, from before a fork to after it.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::boundary::thread;
use crate::process::Patience;

/// The lock: the [number](thread) of the thread that holds it, or 0. A thread that waits yields the
/// processor.
#[derive(Debug, Default)]
pub(crate) struct SpinLock(AtomicUsize);

/// Releases the lock when dropped.
#[derive(Debug)]
pub(crate) struct SpinGuard<'a>(&'a SpinLock);

impl SpinLock {
    pub(crate) const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        self.0.compare_exchange(0, thread(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Waits until the lock is free, and takes it. Returns false if this thread holds it already: a signal
    /// handler has interrupted the holder.
    #[inline]
    pub(crate) fn acquire(&self) -> bool {
        self.try_acquire() || self.wait(|| true)
    }

    /// As [`acquire`](Self::acquire), but also returns false if another thread holds it for
    /// [long](Patience).
    #[inline]
    pub(crate) fn acquire_in_time(&self) -> bool {
        if self.try_acquire() {
            return true;
        }
        let mut patience = Patience::new();
        self.wait(|| patience.lasts())
    }

    #[cold]
    fn wait(&self, mut goes_on: impl FnMut() -> bool) -> bool {
        while self.0.load(Ordering::Relaxed) != thread() && goes_on() {
            if self.try_acquire() {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    /// Frees the lock. Only the thread that acquired it may do so, or its copy in a forked child.
    #[inline]
    pub(crate) fn release(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Acquires the lock for a scope; `None` as [`acquire_in_time`](Self::acquire_in_time).
    #[inline]
    pub(crate) fn lock_in_time(&self) -> Option<SpinGuard<'_>> {
        self.acquire_in_time().then_some(SpinGuard(self))
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
                    assert!(lock.acquire());
                    increment();
                    lock.release();
                }
            });
            scope.spawn(|| {
                for _ in 0..10_000 {
                    let _guard = lock.lock_in_time().unwrap();
                    increment();
                }
            });
        });
        assert_eq!(count.into_inner(), 20_000);
    }

    #[test]
    fn spin_lock_refuses_the_thread_that_holds_it() {
        let lock = SpinLock::new();
        assert!(lock.acquire());
        assert!(!lock.acquire());
        assert!(lock.lock_in_time().is_none());
        lock.release();
        assert!(lock.lock_in_time().is_some());
    }
}

//! A lock without a guard, for C code that holds it from one call to another: from `ibv_start_poll`
//! to `ibv_end_poll`, from `ibv_wr_start` to `ibv_wr_complete`, from before a fork to after it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::boundary::thread;
use crate::process::Patience;

/// The lock. A thread that waits yields the processor.
#[derive(Debug, Default)]
pub(crate) struct SpinLock {
    /// The [number](thread) of the thread that holds it, or 0.
    holder: AtomicUsize,
    /// Whether the last wait in time was in vain. Of this lock alone: a program may hold it for as long as it likes.
    stopped: AtomicBool,
}

/// Releases the lock when dropped.
#[derive(Debug)]
pub(crate) struct SpinGuard<'a>(&'a SpinLock);

impl SpinLock {
    pub(crate) const fn new() -> Self {
        Self { holder: AtomicUsize::new(0), stopped: AtomicBool::new(false) }
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        self.holder.compare_exchange(0, thread(), Ordering::Acquire, Ordering::Relaxed).is_ok()
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
        self.try_acquire() || self.wait_in_time()
    }

    #[cold]
    fn wait_in_time(&self) -> bool {
        let mut patience = Patience::new(&self.stopped);
        let acquired = self.wait(|| patience.lasts());
        if acquired {
            patience.succeed();
        }
        acquired
    }

    #[cold]
    fn wait(&self, mut goes_on: impl FnMut() -> bool) -> bool {
        while self.holder.load(Ordering::Relaxed) != thread() {
            if self.try_acquire() {
                return true;
            }
            if !goes_on() {
                return false;
            }
            std::thread::yield_now();
        }
        false
    }

    /// Frees the lock. Only the thread that acquired it may do so, or its copy in a forked child.
    #[inline]
    pub(crate) fn release(&self) {
        self.holder.store(0, Ordering::Release);
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
    fn wait_in_vain_shortens_the_next_waits_for_the_same_lock_until_one_succeeds() {
        let (lock, other) = (SpinLock::new(), SpinLock::new());
        // The first wait in vain takes seconds.
        lock.stopped.store(true, Ordering::Relaxed);
        assert!(lock.acquire());
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(lock.lock_in_time().is_none()));
        });
        let are_stopped = || [&lock, &other].map(|lock| lock.stopped.load(Ordering::Relaxed));
        assert_eq!(are_stopped(), [true, false]);
        lock.release();
        assert!(lock.wait_in_time());
        assert_eq!(are_stopped(), [false, false]);
    }

    #[test]
    fn wait_that_is_over_in_its_last_turn_has_the_lock() {
        let lock = SpinLock::new();
        assert!(lock.wait(|| false));
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

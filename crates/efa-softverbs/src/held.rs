//! A lock that C code holds from one call to another, as from `ibv_start_poll` to `ibv_end_poll`.

use std::sync::atomic::{AtomicBool, Ordering};

/// The lock. Who waits for it gives the processor away.
#[derive(Debug, Default)]
pub(crate) struct HeldLock(AtomicBool);

impl HeldLock {
    /// Waits until it is free, and takes it.
    #[inline]
    pub(crate) fn take(&self) {
        while self.0.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Gives it back.
    #[inline]
    pub(crate) fn give(&self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;
    use std::sync::Arc;

    use super::*;

    struct Guarded(HeldLock, UnsafeCell<u64>);

    // SAFETY: the number is touched only while the lock is held.
    unsafe impl Sync for Guarded {}

    #[test]
    fn one_at_a_time() {
        let guarded = Arc::new(Guarded(HeldLock::default(), UnsafeCell::new(0)));
        let count = || {
            let guarded = Arc::clone(&guarded);
            std::thread::spawn(move || {
                for _ in 0..10_000 {
                    guarded.0.take();
                    // SAFETY: the lock is held.
                    unsafe { *guarded.1.get() += 1 };
                    guarded.0.give();
                }
            })
        };
        for thread in [count(), count()] {
            thread.join().unwrap();
        }
        guarded.0.take();
        // SAFETY: the lock is held.
        assert_eq!(unsafe { *guarded.1.get() }, 20_000);
    }
}

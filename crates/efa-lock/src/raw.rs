//! The mutex of `lock_api`.

#![allow(unsafe_code, reason = "`lock_api::RawMutex` is an unsafe trait")]

use std::fmt;
use std::time::Duration;

use lock_api::{GuardNoSend, RawMutex as _};

use crate::bias::Bias;
use crate::sync::{self, AtomicBool, AtomicU32, AtomicUsize};
use crate::thread::this_thread;

/// A mutex that is biased to the thread that takes it most: its owner takes and releases it without an atomic
/// read-modify-write.
pub struct RawBiased {
    bias: Bias,
    raw: parking_lot::RawMutex,
}

impl fmt::Debug for RawBiased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawBiased").field("bias", &self.bias).finish_non_exhaustive()
    }
}

/// So many looks that yield, before those that sleep.
const YIELDS: u32 = 100;

// SAFETY: one thread at a time is inside. Others than the owner hold `raw`, and have ended the bias and seen the owner
// outside; after that the owner enters as the others do (`bias` says why it finds that the bias has ended).
unsafe impl lock_api::RawMutex for RawBiased {
    #[allow(clippy::declare_interior_mutable_const, reason = "as `lock_api` has it")]
    const INIT: Self = Self {
        bias: Bias {
            owner: AtomicUsize::new(0),
            taken: [const { AtomicBool::new(false) }; 2],
            entered: AtomicUsize::new(0),
            seats: [const { AtomicUsize::new(0) }; 2],
            last: AtomicUsize::new(0),
            streak: AtomicU32::new(0),
            ended: AtomicU32::new(0),
        },
        raw: parking_lot::RawMutex::INIT,
    };

    /// The owner's number is that of the thread that released it.
    type GuardMarker = GuardNoSend;

    #[inline(always)]
    fn lock(&self) {
        if !self.bias.enter(this_thread()) {
            self.lock_with_raw();
        }
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        self.bias.enter(this_thread()) || self.try_lock_with_raw()
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        if self.bias.leave() {
            // SAFETY: this thread has entered with it.
            unsafe { self.raw.unlock() };
        }
    }

    fn is_locked(&self) -> bool {
        self.raw.is_locked() || self.bias.is_taken()
    }
}

impl RawBiased {
    #[inline(never)]
    fn lock_with_raw(&self) {
        self.raw.lock();
        let mut looks = 0_u32;
        self.bias.enter_with_raw(this_thread(), || {
            looks = looks.saturating_add(1);
            match looks {
                0..YIELDS => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
            true
        });
        self.settle();
    }

    #[inline(never)]
    fn try_lock_with_raw(&self) -> bool {
        if !self.raw.try_lock() {
            return false;
        }
        let has_entered = self.bias.enter_with_raw(this_thread(), || false);
        match has_entered {
            true => self.settle(),
            // SAFETY: this thread has locked it above.
            false => unsafe { self.raw.unlock() },
        }
        has_entered
    }

    /// Makes this thread the owner if it is time and biases are allowed, after it has entered with the raw mutex.
    fn settle(&self) {
        if self.bias.is_due() && sync::is_registered() && self.bias.settle(this_thread()) {
            // SAFETY: this thread has locked it. It is inside as the owner from now on.
            unsafe { self.raw.unlock() };
        }
    }
}

//! Who may enter a section: the thread that it is biased to, by plain loads and stores, or who holds the raw mutex.
//!
//! ```text
//!   the owner                                 another thread, which holds the raw mutex
//!   ─────────                                 ─────────────────────────────────────────
//!   is it biased to me?                       biased to nobody from now on
//!   my seat is taken                          fence in all threads
//!   (fence of the compiler)                   wait until no seat is taken
//!   is it still biased to me?                 it is mine
//!   yes: it is mine       no: my seat is free, and by the raw mutex
//! ```
//!
//! The fence in all threads makes the owner pass one. It does so before it looks for the second time, and then finds
//! that the bias has ended; or after that, and then the other thread finds its seat taken.
//!
//! A thread that was stopped between its first look and the next step still takes its seat when it goes on, and frees it
//! again, perhaps when the section is biased to somebody else. So seats belong to one thread for ever, and the third
//! thread has none.
//!
//! `tests/bias.rs` compiles this file against the types of loom, where both fences are those of a thread, and tries
//! the interleavings of two threads.

use super::sync::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence_everywhere, fence_here};

/// The number of no thread. Those of threads are even.
const NOBODY: usize = 0;
/// A thread becomes the owner when it has entered so many times in a row through the raw mutex.
const FIRST_STREAK: u32 = 16;
/// Each bias that was ended doubles that, at most so many times: ending one costs a system call.
const MOST_DOUBLINGS: u32 = 16;
/// `entered` of who holds the raw mutex. Others have the number of their seat.
const BY_RAW: usize = 2;

/// The thread that a section is biased to, if there is one, and who is in it.
#[derive(Debug, Default)]
pub(super) struct Bias {
    /// The number of the thread, and that of its seat in the lowest bit.
    pub(super) owner: AtomicUsize,
    /// Whether the threads of the seats are in the section or try to enter.
    pub(super) taken: [AtomicBool; 2],
    /// How whoever is in the section has entered.
    pub(super) entered: AtomicUsize,
    /// For who is in the section: whose seats these are, who entered last through the raw mutex, how many times in a row,
    /// and how many biases were ended.
    pub(super) seats: [AtomicUsize; 2],
    pub(super) last: AtomicUsize,
    pub(super) streak: AtomicU32,
    pub(super) ended: AtomicU32,
}

impl Bias {
    /// Enters as the owner. Returns whether this thread is that, and was not inside.
    #[inline(always)]
    pub(super) fn enter(&self, me: usize) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        // No seat unless they are the same thread.
        let Some(seat) = self.taken.get(owner ^ me) else { return false };
        if seat.load(Ordering::Relaxed) {
            return false;
        }
        seat.store(true, Ordering::Relaxed);
        fence_here();
        if self.owner.load(Ordering::Relaxed) == owner {
            return true;
        }
        seat.store(false, Ordering::Release);
        false
    }

    /// Enters with the raw mutex, which this thread holds. `wait` is called until the owner is out; if it returns false,
    /// this thread doesn't enter.
    pub(super) fn enter_with_raw(&self, me: usize, mut wait: impl FnMut() -> bool) -> bool {
        if self.owner.load(Ordering::Relaxed) != NOBODY {
            self.owner.store(NOBODY, Ordering::Relaxed);
            let ended = self.ended.load(Ordering::Relaxed);
            self.ended.store((ended + 1).min(MOST_DOUBLINGS), Ordering::Relaxed);
            fence_everywhere();
        }
        while self.taken.iter().any(|taken| taken.load(Ordering::Acquire)) {
            if !wait() {
                return false;
            }
        }
        self.entered.store(BY_RAW, Ordering::Relaxed);
        let streak = match self.last.load(Ordering::Relaxed) == me {
            true => self.streak.load(Ordering::Relaxed).saturating_add(1),
            false => 1,
        };
        self.last.store(me, Ordering::Relaxed);
        self.streak.store(streak, Ordering::Relaxed);
        true
    }

    /// Whether the thread that has entered with the raw mutex has done so often enough to become the owner.
    pub(super) fn is_due(&self) -> bool {
        let needed = FIRST_STREAK << self.ended.load(Ordering::Relaxed);
        self.streak.load(Ordering::Relaxed) >= needed
    }

    /// Makes this thread the owner if it has a seat or there is a free one, after it has entered with the raw mutex.
    /// Returns whether it is the owner: then it unlocks the raw mutex, and is inside nevertheless.
    pub(super) fn settle(&self, me: usize) -> bool {
        let seats = self.seats.iter().map(|seat| seat.load(Ordering::Relaxed));
        let Some(seat) = seats.clone().position(|seat| seat == me || seat == NOBODY) else {
            return false;
        };
        self.seats[seat].store(me, Ordering::Relaxed);
        self.streak.store(0, Ordering::Relaxed);
        self.taken[seat].store(true, Ordering::Relaxed);
        self.entered.store(seat, Ordering::Relaxed);
        self.owner.store(me | seat, Ordering::Relaxed);
        true
    }

    /// Leaves. Returns whether the raw mutex is to be unlocked.
    #[inline(always)]
    pub(super) fn leave(&self) -> bool {
        match self.taken.get(self.entered.load(Ordering::Relaxed)) {
            Some(seat) => {
                seat.store(false, Ordering::Release);
                false
            }
            None => true,
        }
    }

    /// Whether the thread of a seat is in the section or tries to enter.
    pub(super) fn is_taken(&self) -> bool {
        self.taken.iter().any(|taken| taken.load(Ordering::Relaxed))
    }
}

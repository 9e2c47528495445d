//! The hand-over between a queue pair that may sleep and those that wake it, by one word in shared memory
//! that the sleeper alone writes.
//!
//! ```text
//!   sleeper                              who has something for it
//!   ───────                              ────────────────────────
//!   word = odd                           publish a packet or an acknowledgement
//!   fence                                fence
//!   look for anything published          word odd, and another than last time? ─► write to the descriptor
//!   nothing? sleep on the descriptor
//! ```
//!
//! Of two fences one comes first in the order of all. If the sleeper's does, the other side reads the odd
//! word and writes to the descriptor; if the other's does, the sleeper finds what was published. Each
//! announcement has another odd number, so each side that wakes writes once for an announcement: what it
//! wrote stays readable until the sleeper empties the descriptor, which it does before the next announcement.
//!
//! `tests/handover.rs` compiles this file against the types of loom and tries all interleavings of one packet, and
//! of a packet and its acknowledgement; of two packets or two senders those with a few preemptions.

use super::atomic::{AtomicU64, Ordering, fence};

/// The side that sleeps. The word is 0 at the beginning.
#[derive(Debug, Default)]
pub(super) struct Sleeper {
    /// What the word has: odd from an announcement on, even after it was withdrawn.
    word: u64,
}

impl Sleeper {
    /// Announces that this side may sleep. It sleeps only if it then finds nothing published. The
    /// descriptor was emptied after the last announcement was [withdrawn](Self::withdraw).
    pub(super) fn announce(&mut self, word: &AtomicU64) {
        self.word |= 1;
        word.store(self.word, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Withdraws an announcement, if there is one.
    pub(super) fn withdraw(&mut self, word: &AtomicU64) {
        if self.is_announced() {
            self.word += 1;
            word.store(self.word, Ordering::Relaxed);
        }
    }

    pub(super) fn is_announced(&self) -> bool {
        self.word & 1 == 1
    }
}

/// A side that wakes one sleeper.
#[derive(Debug, Default)]
pub(super) struct Waker {
    /// The last announcement for which the descriptor was written.
    woken: u64,
}

impl Waker {
    /// Whether to write to the sleeper's descriptor now, after something was published. `word` loads the
    /// sleeper's word.
    pub(super) fn must_wake(&mut self, word: impl FnOnce() -> u64) -> bool {
        fence(Ordering::SeqCst);
        let announced = word();
        let must_wake = announced & 1 == 1 && announced != self.woken;
        if must_wake {
            self.woken = announced;
        }
        must_wake
    }
}

//! Polls in vain: when a thread yields the processor.

use std::sync::atomic::{AtomicU32, Ordering};

/// Polls in vain, one after the other, after which the thread yields the processor. On the links `shm` and `tcp` a send
/// completes when the peer has polled. A program that polls for that, without a yield of its own (Open MPI's blocking
/// sends), keeps a peer on the same processor from it until the time slice ends.
const POLLS_PER_YIELD: u32 = 64;

/// Polls in vain since one found something, or since the processor was yielded. Threads that poll at once may miss some of
/// each other's.
#[derive(Debug, Default)]
pub(crate) struct VainPolls(AtomicU32);

impl VainPolls {
    /// A poll found something.
    #[inline(always)]
    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// A poll found nothing. With `looks`, many of them follow before the next poll, and take as long as
    /// [`POLLS_PER_YIELD`].
    #[inline(never)]
    pub(crate) fn add(&self, looks: bool) {
        let mut polls = self.0.load(Ordering::Relaxed);
        if polls >= POLLS_PER_YIELD {
            std::thread::yield_now();
            polls = 0;
        }
        polls += if looks { POLLS_PER_YIELD } else { 1 };
        self.0.store(polls, Ordering::Relaxed);
    }
}

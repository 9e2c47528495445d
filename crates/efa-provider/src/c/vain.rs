//! Polls in vain: when a thread yields the processor.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::Device;

/// Polls in vain, one after the other, after which the thread yields the processor: some 10 µs. On the links `shm` and `tcp`
/// a send completes when the peer has polled. A program that polls for that, without a yield of its own (Open MPI's blocking
/// sends), keeps a peer on the same processor from it until the time slice ends.
const POLLS_PER_YIELD: u32 = 256;
/// A poll of the link `tcp` asks the system, and takes as long as so many others.
const OF_TCP: u32 = 4;

/// Polls in vain since one found something, or since the processor was yielded. Threads that poll at once may miss some of
/// each other's.
#[derive(Debug)]
pub(crate) struct VainPolls {
    polls: AtomicU32,
    /// What a poll counts for.
    each: u32,
}

impl VainPolls {
    /// None yet, of this device.
    pub(crate) fn of(device: &Device) -> Self {
        let each = if matches!(device, Device::Tcp(_)) { OF_TCP } else { 1 };
        Self { polls: AtomicU32::new(0), each }
    }

    /// A poll found something.
    #[inline(always)]
    pub(crate) fn end(&self) {
        self.polls.store(0, Ordering::Relaxed);
    }

    /// A poll found nothing. With `looks`, some [`POLLS_PER_YIELD`] of them follow before the next poll, which aren't
    /// counted.
    #[inline]
    pub(crate) fn add(&self, looks: bool) {
        let mut polls = self.polls.load(Ordering::Relaxed);
        if polls >= POLLS_PER_YIELD {
            std::thread::yield_now();
            polls = 0;
        }
        polls += if looks { POLLS_PER_YIELD } else { self.each };
        self.polls.store(polls, Ordering::Relaxed);
    }
}

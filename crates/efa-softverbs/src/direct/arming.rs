//! The doorbell of a completion queue with a channel, by which the program asks for an event.
//!
//! ```text
//!   bits 0–15    completions that the program has taken
//!        29–30   events that it has read
//!        31      it asks for the next event
//! ```
//!
//! The program writes it after each look at the ring that found something, and with bit 31 before it sleeps. The device
//! then announces the next completion, or at once those that the program has not taken.
//!
//! A doorbell that doesn't trap keeps the last word only. If a program asks and then takes a completion before the thread
//! looks, the request is lost. So a word without the bit counts as one that *may* ask: its event is queued unless the
//! program has one to read.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::memory::{Doorbell, Doorbells};
use crate::boundary::Outcome;
use crate::settings::DirectPath;

/// The program asks for an event.
const ASKS: u32 = 1 << 31;

/// The doorbell of a completion queue.
#[derive(Debug)]
pub(crate) struct CompletionDoorbell {
    page: Doorbells,
    /// The last word that was taken.
    seen: AtomicU32,
    /// Whether each of the program's writes is seen.
    exact: AtomicBool,
}

/// What a doorbell says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    /// How many completions the program has taken, in 16 bits.
    pub(crate) taken: u16,
    pub(crate) request: Request,
}

/// Whether the program asks for an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Request {
    #[default]
    No,
    /// It may have, in a word that was overwritten.
    Perhaps,
    Yes,
}

impl CompletionDoorbell {
    pub(crate) fn new(direct: DirectPath) -> Outcome<Self> {
        let page = Doorbells::of(direct)?;
        let exact = AtomicBool::new(page.trap());
        Ok(Self { page, seen: AtomicU32::new(0), exact })
    }

    /// For the program.
    pub(crate) fn address(&self) -> *mut u32 {
        self.page.address(Doorbell::Completions)
    }

    /// Address of its page.
    pub(crate) fn page_address(&self) -> usize {
        self.page.page_address()
    }

    /// Whether the program's writes fault.
    pub(crate) fn traps(&self) -> bool {
        self.exact.load(Ordering::Relaxed)
    }

    /// Ends that.
    pub(crate) fn release(&self) -> Outcome<()> {
        self.exact.store(false, Ordering::Relaxed);
        self.page.release()
    }

    /// Does a write of the program that has faulted. A request that was not taken stays.
    pub(crate) fn ring(&self, address: usize, word: u32) {
        if address == self.address().addr() {
            self.page.replace(Doorbell::Completions, word, ASKS);
        }
    }

    /// Whether there is a word that was not taken.
    #[inline]
    pub(crate) fn is_rung(&self) -> bool {
        self.page.rung(Doorbell::Completions) != self.seen.load(Ordering::Relaxed)
    }

    /// Takes what the program has written since, if anything.
    pub(crate) fn take(&self) -> Option<Word> {
        let word = self.page.take(Doorbell::Completions, ASKS);
        let before = self.seen.swap(word & !ASKS, Ordering::Relaxed);
        let request = match word & ASKS {
            0 if word == before => return None,
            0 if self.traps() => Request::No,
            0 => Request::Perhaps,
            _ => Request::Yes,
        };
        Some(Word { taken: word as u16, request })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(doorbell: &CompletionDoorbell, word: u32) -> Option<Word> {
        doorbell.ring(doorbell.address().addr(), word);
        assert_eq!(doorbell.is_rung(), doorbell.seen.load(Ordering::Relaxed) != word);
        let taken = doorbell.take();
        assert!(!doorbell.is_rung());
        assert_eq!(doorbell.take(), None, "taken twice");
        taken
    }

    #[test]
    fn word_with_bit_31_asks_also_if_it_is_the_same_again() {
        for direct in [DirectPath::Thread, DirectPath::Trap] {
            let doorbell = CompletionDoorbell::new(direct).unwrap();
            assert_eq!(doorbell.take(), None);
            for _ in 0..2 {
                let asks = Some(Word { taken: 0x1234, request: Request::Yes });
                assert_eq!(written(&doorbell, 0xa000_1234), asks);
            }
        }
    }

    #[test]
    fn request_of_a_write_that_traps_stays_until_it_is_taken() {
        let doorbell = CompletionDoorbell::new(DirectPath::Trap).unwrap();
        for word in [0x8000_0001, 2] {
            doorbell.ring(doorbell.address().addr(), word);
        }
        assert_eq!(doorbell.take(), Some(Word { taken: 2, request: Request::Yes }));
    }

    #[test]
    fn word_without_bit_31_may_ask_where_writes_can_be_overwritten() {
        let requests = [DirectPath::Thread, DirectPath::Trap].map(|direct| {
            let doorbell = CompletionDoorbell::new(direct).unwrap();
            written(&doorbell, 1).map(|word| word.request)
        });
        assert_eq!(requests, [Some(Request::Perhaps), Some(Request::No)]);
        let released = CompletionDoorbell::new(DirectPath::Trap).unwrap();
        released.release().unwrap();
        let request = written(&released, 1).map(|word| word.request);
        assert_eq!((request, released.traps()), (Some(Request::Perhaps), false));
    }
}

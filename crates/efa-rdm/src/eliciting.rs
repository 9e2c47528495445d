//! When peers are asked again for the HANDSHAKE that operations wait for.
//!
//! ```text
//!   an operation waits ─► pause ─► pause ─► elicit ─► pause ─► elicit ─► pause ─► elicit ─► …
//!                          1 s      1 s                2 s                4 s         up to 32 s
//! ```
//!
//! It ends when the HANDSHAKE arrives, no operation waits any more, or the peer ends.

use efa_device::Time;

use crate::lists::Lists;

/// Nanoseconds of the first pause, doubled from the second one on.
const FIRST_PAUSE: u64 = 1_000_000_000;
/// How many lengths of pauses there are. The last one is repeated.
const LENGTHS: u8 = 6;

/// A timer for each peer whose HANDSHAKE is elicited, by the slot of its state.
#[derive(Debug, Default)]
pub(crate) struct Eliciting {
    /// The slots with a timer: a list for each length of pauses, so that each is in the order of time.
    by_length: Lists,
    /// By slot.
    timers: Vec<Timer>,
    /// How many timers are set.
    set: usize,
}

/// The timer of one peer.
#[derive(Clone, Copy, Debug)]
struct Timer {
    due: Time,
    /// Pauses that are over; `None`: the timer isn't set.
    pauses: Option<u8>,
}

impl Eliciting {
    /// Whether no timer is set.
    pub(crate) fn is_empty(&self) -> bool {
        self.set == 0
    }

    /// Sets the timer of a peer for its first pause, unless it is set.
    #[inline]
    pub(crate) fn begin(&mut self, slot: u32, now: Time) {
        if !self.is_set(slot) {
            self.pause(slot, 0, now);
        }
    }

    /// Sets the timer of a peer, which isn't set, for the pause after so many others.
    #[cold]
    #[inline(never)]
    pub(crate) fn pause(&mut self, slot: u32, pauses: u8, now: Time) {
        let length = pauses.saturating_sub(1).min(LENGTHS - 1);
        let due = Time::from_nanos(now.as_nanos().saturating_add(FIRST_PAUSE << length));
        let index = slot as usize;
        if self.timers.len() <= index {
            self.timers.resize(index + 1, Timer { due: Time::ZERO, pauses: None });
        }
        self.timers[index] = Timer { due, pauses: Some(pauses) };
        self.by_length.push(length.into(), slot);
        self.set += 1;
    }

    /// Clears the timer of a peer, if it is set.
    #[inline]
    pub(crate) fn stop(&mut self, slot: u32) {
        if self.is_set(slot) {
            self.clear(slot);
        }
    }

    #[cold]
    #[inline(never)]
    fn clear(&mut self, slot: u32) {
        self.timers[slot as usize].pauses = None;
        self.by_length.remove(slot);
        self.set -= 1;
    }

    #[inline]
    fn is_set(&self, slot: u32) -> bool {
        self.timers.get(slot as usize).is_some_and(|timer| timer.pauses.is_some())
    }

    /// When the first timer is due.
    pub(crate) fn next(&self) -> Option<Time> {
        self.first_of_each().map(|slot| self.timers[slot as usize].due).min()
    }

    /// Clears a timer that is due; returns the slot of its peer, and how many pauses were over before.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<(u32, u8)> {
        let slot = self.first_of_each().find(|slot| self.timers[*slot as usize].due <= now)?;
        let pauses = self.timers[slot as usize].pauses?;
        self.clear(slot);
        Some((slot, pauses))
    }

    /// The slot whose timer is due first after each length of pauses.
    fn first_of_each(&self) -> impl Iterator<Item = u32> {
        (0..LENGTHS).filter_map(|length| self.by_length.first(length.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_end_when_stopped() {
        let (mut eliciting, mut now) = (Eliciting::default(), Time::ZERO);
        eliciting.begin(3, now);
        eliciting.begin(3, now + Duration::from_secs(1));
        for (over, seconds) in (0..).zip([1, 1, 2, 4, 8, 16, 32, 32]) {
            let due = now + Duration::from_secs(seconds);
            assert_eq!(eliciting.next(), Some(due));
            assert_eq!(eliciting.take_due(now), None);
            assert_eq!(eliciting.take_due(due), Some((3, over)));
            assert!(eliciting.is_empty() && eliciting.next().is_none());
            eliciting.pause(3, over + 1, due);
            now = due;
        }
        // Its pause is shorter than that of the other one, which began before.
        eliciting.begin(0, now);
        assert_eq!(eliciting.next(), Some(now + Duration::from_secs(1)));
        eliciting.stop(0);
        eliciting.stop(0);
        eliciting.stop(7);
        assert!(!eliciting.is_empty());
        eliciting.stop(3);
        assert!(eliciting.is_empty() && eliciting.next().is_none());
    }
}

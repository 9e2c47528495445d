//! Deliberate misfortune: datagrams that overtake each other, receivers that are not ready, memory
//! that can't be registered.
//!
//! The real device keeps no order; the shm and tcp links do. So sends wait here for a drawn number
//! of polls, each for itself, before they go on their way. All draws of a queue pair come from the
//! seed and its number. (The [local link](crate::local) has faults of its own.)

use std::str::FromStr;

use efa_device::Qpn;
use fastrand::Rng;

/// Polls that a send waits at most, the end excluded.
const LONGEST_WAIT: u64 = 32;
/// Seed for receivers that are not ready if none is given.
const SEED: u64 = 0xefa;

/// What is to go wrong; nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultOptions {
    /// Datagrams overtake each other, as this seed says.
    pub reorder: Option<u64>,
    /// Chance, 0 to 1, that a datagram finds the receiver not ready. It matters where the retries
    /// of the queue pair come to an end.
    pub receiver_not_ready: f64,
    /// Of the datagrams of a queue pair that begin with the same byte, so many find the receiver not
    /// ready before the first gets through. Protocols begin their datagrams with the kind.
    pub not_ready_of_each: u32,
    /// Registrations that fail.
    pub refusals: Option<Refusals>,
}

/// Registrations of memory that fail as if there were too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusals {
    /// The least length in bytes of those that fail.
    pub least: usize,
    /// The greatest length.
    pub most: usize,
    /// How many of them fail; later ones succeed.
    pub count: u32,
}

/// Not of the form `LEAST-MOST:COUNT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected LEAST-MOST:COUNT, two lengths in bytes and a number of registrations")]
pub struct NoRefusals;

impl FromStr for Refusals {
    type Err = NoRefusals;

    fn from_str(text: &str) -> Result<Self, NoRefusals> {
        let (lengths, count) = text.split_once(':').ok_or(NoRefusals)?;
        let (least, most) = lengths.split_once('-').ok_or(NoRefusals)?;
        let length = |text: &str| text.parse().map_err(|_| NoRefusals);
        let (least, most) = (length(least)?, length(most)?);
        let count = count.parse().map_err(|_| NoRefusals)?;
        if least > most { Err(NoRefusals) } else { Ok(Self { least, most, count }) }
    }
}

impl Refusals {
    /// Whether the next registration, of so many bytes, fails.
    pub(crate) fn strike(&mut self, length: usize) -> bool {
        let strikes = self.count > 0 && (self.least..=self.most).contains(&length);
        self.count -= u32::from(strikes);
        strikes
    }
}

impl FaultOptions {
    /// Nothing goes wrong.
    pub const NONE: Self =
        Self { reorder: None, receiver_not_ready: 0.0, not_ready_of_each: 0, refusals: None };
}

/// The misfortune of one queue pair; `T` is a send.
#[derive(Debug)]
pub struct Faults<T> {
    rng: Rng,
    options: FaultOptions,
    polls: u64,
    waiting: Vec<(u64, T)>,
    /// By the first byte, how many more are to be refused; empty if none are.
    of_each: Vec<u32>,
}

impl<T> Faults<T> {
    /// What the options ask for.
    pub fn new(options: FaultOptions, qpn: Qpn) -> Self {
        let seed = options.reorder.unwrap_or(SEED) ^ u64::from(qpn.0) << 48;
        let kinds = if options.not_ready_of_each > 0 { 1 << u8::BITS } else { 0 };
        let of_each = vec![options.not_ready_of_each; kinds];
        Self { rng: Rng::with_seed(seed), options, polls: 0, waiting: Vec::new(), of_each }
    }

    /// Keeps `send` for a while; gives it back if it should go at once.
    #[inline]
    pub fn hold(&mut self, send: T) -> Option<T> {
        if self.options.reorder.is_none() {
            return Some(send);
        }
        let due = self.polls + self.rng.u64(..LONGEST_WAIT);
        self.waiting.push((due, send));
        None
    }

    /// One poll later.
    #[inline]
    pub fn poll(&mut self) {
        self.polls += 1;
    }

    /// A send that has waited long enough.
    #[inline]
    pub fn due(&mut self) -> Option<T> {
        if self.waiting.is_empty() {
            return None;
        }
        let at = self.waiting.iter().position(|&(due, _)| due <= self.polls)?;
        Some(self.waiting.swap_remove(at).1)
    }

    /// Takes all sends that still wait.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, send)| send)
    }

    /// Whether the next datagram, which is this one, finds the receiver not ready.
    #[inline]
    pub fn draw_not_ready(&mut self, datagram: &[u8]) -> bool {
        let drawn = self.options.receiver_not_ready > 0.0
            && self.rng.f64() < self.options.receiver_not_ready;
        drawn || (!self.of_each.is_empty() && self.is_refused_of_its_kind(datagram))
    }

    #[cold]
    fn is_refused_of_its_kind(&mut self, datagram: &[u8]) -> bool {
        let kind = datagram.first().copied().unwrap_or_default();
        let left = self.of_each.get_mut(usize::from(kind));
        let refused = left.as_ref().is_some_and(|left| **left > 0);
        if let Some(left) = left {
            *left = left.saturating_sub(1);
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u64) -> Vec<u32> {
        let options = FaultOptions { reorder: Some(seed), ..FaultOptions::NONE };
        let mut faults = Faults::new(options, Qpn(1));
        let mut order = Vec::new();
        for send in 0..100 {
            assert_eq!(faults.hold(send), None);
            faults.poll();
            order.extend(std::iter::from_fn(|| faults.due()));
        }
        for _ in 0..LONGEST_WAIT {
            faults.poll();
            order.extend(std::iter::from_fn(|| faults.due()));
        }
        assert_eq!(faults.take_all().count(), 0);
        order
    }

    #[test]
    fn order_is_lost_and_nothing_else() {
        let mut order = run(1);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        assert_eq!(order, run(1), "the same seed gives the same order");
        assert_ne!(order, run(2));
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn without_options_nothing_happens() {
        let mut faults = Faults::new(FaultOptions::NONE, Qpn(1));
        assert_eq!(faults.hold(7), Some(7));
        assert!((0..1000).all(|_| !faults.draw_not_ready(b"x")));
        let always = FaultOptions { receiver_not_ready: 1.0, ..FaultOptions::NONE };
        assert!(Faults::<()>::new(always, Qpn(1)).draw_not_ready(b"x"));
    }

    #[test]
    fn the_first_of_each_kind_are_refused() {
        let options = FaultOptions { not_ready_of_each: 2, ..FaultOptions::NONE };
        let mut faults = Faults::<()>::new(options, Qpn(1));
        let draws = [&b"a1"[..], b"b", b"a2", b"a3", b"b", b"b", b""];
        let refused = draws.map(|datagram| faults.draw_not_ready(datagram));
        assert_eq!(refused, [true, true, true, false, true, false, true]);
    }

    #[test]
    fn refusals_are_of_some_lengths_and_come_to_an_end() {
        let mut refusals: Refusals = "10-20:2".parse().unwrap();
        assert_eq!(refusals, Refusals { least: 10, most: 20, count: 2 });
        let struck = [9, 10, 21, 20, 15].map(|length| refusals.strike(length));
        assert_eq!(struck, [false, true, false, true, false]);
        for bad in ["", "10-20", "10:2", "20-10:1", "-1-2:3", "1-2:-3", "1-2:x"] {
            assert_eq!(bad.parse::<Refusals>(), Err(NoRefusals), "{bad}");
        }
    }
}

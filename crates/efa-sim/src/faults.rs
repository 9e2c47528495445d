//! Faults of the shm link: reordered datagrams, reads and writes, receivers that are not ready (RNR), memory registrations
//! that fail.
//!
//! The real device doesn't keep order; the shm and tcp links do. To reorder, each send, read and write is delayed by a
//! random number of polls, so that each may overtake each other. The random numbers of a queue pair depend on the seed and
//! on how many queue pairs its device had before, so a program that makes them in the same order gets them again.
//! (The [local link](crate::local) has faults of its own.)

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;

/// Upper bound (exclusive) of a request's delay in polls.
const LONGEST_WAIT: u64 = 32;
/// Seed for random RNR faults if `reorder` gives none.
const SEED: u64 = 0xefa;

/// Faults to inject; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct FaultOptions {
    /// Reorders datagrams, reads and writes. The same seed gives the queue pairs of a device the same delays, in polls, in the
    /// order of their creation.
    pub reorder: Option<u64>,
    /// Probability, 0 to 1, that a datagram fails with RNR. No effect with endless retries
    /// (`rnr_retry` 7).
    pub receiver_not_ready: f64,
    /// This many datagrams of each queue pair fail with RNR for each value of their first byte, before
    /// the first one is delivered. In the EFA RDM protocol the first byte is the packet type.
    pub not_ready_of_each: u32,
    /// Memory registrations that fail.
    pub refusals: Option<Refusals>,
}

impl FaultOptions {
    /// These options with some changed:
    ///
    /// ```
    /// let options = efa_sim::faults::FaultOptions::NONE.with(|options| options.reorder = Some(1));
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// Memory registrations that fail as if the limit were reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusals {
    /// Shortest region that fails, in bytes.
    pub least: usize,
    /// Longest region that fails, in bytes.
    pub most: usize,
    /// How many fail; later ones succeed.
    pub count: u32,
}

/// Not of the form `LEAST-MOST:COUNT`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not LEAST-MOST:COUNT, two lengths in bytes and a number of registrations")]
pub struct NoRefusals(String);

impl FromStr for Refusals {
    type Err = NoRefusals;

    fn from_str(text: &str) -> Result<Self, NoRefusals> {
        let parse = || {
            let (lengths, count) = text.split_once(':')?;
            let (least, most) = lengths.split_once('-')?;
            let (least, most) = (least.parse().ok()?, most.parse().ok()?);
            let count = count.parse().ok()?;
            (least <= most).then_some(Self { least, most, count })
        };
        parse().ok_or_else(|| NoRefusals(text.to_owned()))
    }
}

impl Refusals {
    /// Whether the next registration, of `length` bytes, fails.
    pub(crate) fn strike(&mut self, length: usize) -> bool {
        let strikes = self.count > 0 && (self.least..=self.most).contains(&length);
        self.count -= u32::from(strikes);
        strikes
    }
}

impl FaultOptions {
    /// No faults.
    pub const NONE: Self =
        Self { reorder: None, receiver_not_ready: 0.0, not_ready_of_each: 0, refusals: None };
}

/// The random numbers of a device's queue pairs. Clones are the same device's.
#[derive(Clone, Debug, Default)]
pub struct Draws {
    /// Queue pairs so far.
    count: Arc<AtomicU64>,
}

impl Draws {
    /// Those of the next queue pair.
    pub(crate) fn next(&self, seed: u64) -> Rng {
        Rng::with_seed(seed ^ self.count.fetch_add(1, Ordering::Relaxed) << 48)
    }
}

/// The faults of one queue pair; `T` is a send, or another request.
#[derive(Debug)]
pub struct Faults<T> {
    rng: Rng,
    options: FaultOptions,
    polls: u64,
    waiting: Vec<(u64, T)>,
    /// RNR failures left, by the first byte; empty if there are none.
    of_each: Vec<u32>,
}

impl<T> Faults<T> {
    /// The faults that the options ask for, of the next queue pair of a device.
    #[must_use]
    pub fn new(options: FaultOptions, draws: &Draws) -> Self {
        let rng = draws.next(options.reorder.unwrap_or(SEED));
        let kinds = if options.not_ready_of_each > 0 { 1 << u8::BITS } else { 0 };
        let of_each = vec![options.not_ready_of_each; kinds];
        Self { rng, options, polls: 0, waiting: Vec::new(), of_each }
    }

    /// Whether requests are to be [delayed](Self::delay).
    #[inline]
    #[must_use]
    pub fn reorders(&self) -> bool {
        self.options.reorder.is_some()
    }

    /// Delays `request`.
    pub fn delay(&mut self, request: T) {
        let due = self.polls + self.rng.u64(..LONGEST_WAIT);
        self.waiting.push((due, request));
    }

    /// Counts a poll.
    #[inline]
    pub fn poll(&mut self) {
        self.polls += 1;
    }

    /// Takes a request whose delay is over.
    #[inline]
    pub fn due(&mut self) -> Option<T> {
        if self.waiting.is_empty() {
            return None;
        }
        let at = self.waiting.iter().position(|&(due, _)| due <= self.polls)?;
        Some(self.waiting.swap_remove(at).1)
    }

    /// Whether no request is delayed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes all delayed requests.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, send)| send)
    }

    /// Whether this datagram, the next one to be sent, fails with RNR.
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
        let mut faults = Faults::new(options, &Draws::default());
        let mut order = Vec::new();
        for send in 0..100 {
            faults.delay(send);
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
    fn reordering_keeps_all_sends_and_depends_on_the_seed() {
        let mut order = run(1);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        assert_eq!(order, run(1), "the same seed gives the same order");
        assert_ne!(order, run(2));
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn default_options_inject_no_faults() {
        let mut faults = Faults::<()>::new(FaultOptions::NONE, &Draws::default());
        assert!(!faults.reorders());
        assert!((0..1000).all(|_| !faults.draw_not_ready(b"x")));
        let always = FaultOptions { receiver_not_ready: 1.0, ..FaultOptions::NONE };
        assert!(Faults::<()>::new(always, &Draws::default()).draw_not_ready(b"x"));
    }

    #[test]
    fn first_datagrams_of_each_kind_fail_with_rnr() {
        let options = FaultOptions { not_ready_of_each: 2, ..FaultOptions::NONE };
        let mut faults = Faults::<()>::new(options, &Draws::default());
        let draws = [&b"a1"[..], b"b", b"a2", b"a3", b"b", b"b", b""];
        let refused = draws.map(|datagram| faults.draw_not_ready(datagram));
        assert_eq!(refused, [true, true, true, false, true, false, true]);
    }

    #[test]
    fn registrations_fail_by_length_and_count() {
        let mut refusals: Refusals = "10-20:2".parse().unwrap();
        assert_eq!(refusals, Refusals { least: 10, most: 20, count: 2 });
        let struck = [9, 10, 21, 20, 15].map(|length| refusals.strike(length));
        assert_eq!(struck, [false, true, false, true, false]);
    }

    #[test]
    fn text_that_names_no_refusals_is_an_error_with_the_text() {
        for bad in ["", "10-20", "10:2", "20-10:1", "-1-2:3", "1-2:-3", "1-2:x"] {
            let error = bad.parse::<Refusals>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{bad}` is not LEAST-MOST:COUNT")), "{error}");
        }
    }
}

//! Deliberate misfortune: datagrams that overtake each other and receivers that are not ready.
//!
//! The real device keeps no order; the shm and tcp links do. So sends wait here for a drawn number
//! of polls, each for itself, before they go on their way. All draws of a queue pair come from the
//! seed and its number. (The [local link](crate::local) has faults of its own.)

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
}

impl FaultOptions {
    /// Nothing goes wrong.
    pub const NONE: Self = Self { reorder: None, receiver_not_ready: 0.0 };
}

/// The misfortune of one queue pair; `T` is a send.
#[derive(Debug)]
pub struct Faults<T> {
    rng: Rng,
    options: FaultOptions,
    polls: u64,
    waiting: Vec<(u64, T)>,
}

impl<T> Faults<T> {
    /// What the options ask for.
    pub fn new(options: FaultOptions, qpn: Qpn) -> Self {
        let seed = options.reorder.unwrap_or(SEED) ^ u64::from(qpn.0) << 48;
        Self { rng: Rng::with_seed(seed), options, polls: 0, waiting: Vec::new() }
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

    /// Whether the next datagram finds the receiver not ready.
    #[inline]
    pub fn draw_not_ready(&mut self) -> bool {
        self.options.receiver_not_ready > 0.0 && self.rng.f64() < self.options.receiver_not_ready
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
        assert!((0..1000).all(|_| !faults.draw_not_ready()));
        let always = FaultOptions { receiver_not_ready: 1.0, ..FaultOptions::NONE };
        assert!(Faults::<()>::new(always, Qpn(1)).draw_not_ready());
    }
}

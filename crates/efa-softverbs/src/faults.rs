//! Deliberate misfortune: datagrams that overtake each other and receivers that are not ready.
//!
//! The real device keeps no order; the shm link does. So sends wait here for a drawn number of
//! polls, each for itself. All draws of a queue pair come from the seed and its number.

use efa_device::Qpn;
use fastrand::Rng;

use crate::settings::Settings;

/// Polls that a send waits at most, the end excluded.
const LONGEST_WAIT: u64 = 32;
/// Seed for receivers that are not ready if none is given.
const SEED: u64 = 0xefa;

/// The misfortune of one queue pair; `T` is a send.
#[derive(Debug)]
pub(crate) struct Faults<T> {
    rng: Rng,
    reorder: bool,
    receiver_not_ready: f64,
    polls: u64,
    waiting: Vec<(u64, T)>,
}

impl<T> Faults<T> {
    /// What the settings ask for.
    pub(crate) fn new(settings: &Settings, qpn: Qpn) -> Self {
        let seed = settings.reorder.unwrap_or(SEED) ^ u64::from(qpn.0) << 48;
        Self {
            rng: Rng::with_seed(seed),
            reorder: settings.reorder.is_some(),
            receiver_not_ready: settings.receiver_not_ready,
            polls: 0,
            waiting: Vec::new(),
        }
    }

    /// Keeps `send` for a while; gives it back if it should go at once.
    #[inline]
    pub(crate) fn hold(&mut self, send: T) -> Option<T> {
        if !self.reorder {
            return Some(send);
        }
        let due = self.polls + self.rng.u64(..LONGEST_WAIT);
        self.waiting.push((due, send));
        None
    }

    /// One poll later.
    #[inline]
    pub(crate) fn poll(&mut self) {
        self.polls += 1;
    }

    /// A send that has waited long enough.
    #[inline]
    pub(crate) fn due(&mut self) -> Option<T> {
        if self.waiting.is_empty() {
            return None;
        }
        let at = self.waiting.iter().position(|&(due, _)| due <= self.polls)?;
        Some(self.waiting.swap_remove(at).1)
    }

    /// Takes all sends that still wait.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = T> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, send)| send)
    }

    /// Whether the next datagram finds the receiver not ready.
    #[inline]
    pub(crate) fn draw_not_ready(&mut self) -> bool {
        self.receiver_not_ready > 0.0 && self.rng.f64() < self.receiver_not_ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u64) -> Vec<u32> {
        let settings = Settings { reorder: Some(seed), ..Settings::default() };
        let mut faults = Faults::new(&settings, Qpn(1));
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
    fn without_settings_nothing_happens() {
        let mut faults = Faults::new(&Settings::default(), Qpn(1));
        assert_eq!(faults.hold(7), Some(7));
        assert!((0..1000).all(|_| !faults.draw_not_ready()));
        let always = Settings { receiver_not_ready: 1.0, ..Settings::default() };
        assert!(Faults::<()>::new(&always, Qpn(1)).draw_not_ready());
    }
}

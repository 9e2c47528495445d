//! What happens when a receiver is not ready.
//!
//! The device tries a few times on its own. Then the packet comes back and is kept: the first
//! time it is sent again at once, from the second time on its peer is left alone for an interval
//! that doubles each time, up to a limit. A retransmitted packet that arrives ends this.

use std::time::Duration;

use efa_device::Time;

/// How long peers that are not ready are left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffLimits {
    /// The first interval.
    pub first: Duration,
    /// The longest interval.
    pub longest: Duration,
}

impl Default for BackoffLimits {
    /// 80 µs, then doubling up to a second.
    fn default() -> Self {
        Self { first: Duration::from_micros(80), longest: Duration::from_secs(1) }
    }
}

/// The patience with one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    until: Option<Time>,
}

/// What to do with a packet that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    Now,
    At(Time),
}

impl Backoff {
    /// A packet came back.
    pub(crate) fn not_ready(&mut self, now: Time, limits: &BackoffLimits) -> Retry {
        if let Some(until) = self.until {
            // One of several packets that were under way together: the interval has begun.
            return Retry::At(until);
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            return Retry::Now;
        }
        let doublings = (self.failures - 2).min(31);
        let interval = limits.first.saturating_mul(1 << doublings).min(limits.longest);
        let until = now + interval;
        self.until = Some(until);
        Retry::At(until)
    }

    /// The interval is over.
    pub(crate) fn expired(&mut self, now: Time) -> bool {
        match self.until {
            Some(until) if until <= now => {
                self.until = None;
                true
            }
            _ => false,
        }
    }

    /// A retransmitted packet arrived.
    pub(crate) fn delivered(&mut self) {
        self.failures = 0;
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_double_up_to_the_limit_and_start_anew_after_a_delivery() {
        let limits =
            BackoffLimits { first: Duration::from_micros(10), longest: Duration::from_micros(50) };
        let mut backoff = Backoff::default();
        let mut now = Time::ZERO;
        assert_eq!(backoff.not_ready(now, &limits), Retry::Now);
        for micros in [10, 20, 40, 50, 50] {
            let until = now + Duration::from_micros(micros);
            assert_eq!(backoff.not_ready(now, &limits), Retry::At(until));
            assert_eq!(backoff.not_ready(now, &limits), Retry::At(until), "one interval for all");
            assert!(backoff.is_waiting() && !backoff.expired(now));
            assert!(backoff.expired(until) && !backoff.is_waiting());
            now = until;
        }
        backoff.delivered();
        assert_eq!(backoff.not_ready(now, &limits), Retry::Now);
    }
}

//! RNR (receiver not ready): retransmission and backoff.
//!
//! The device retries a few times on its own, then completes the packet with RNR. After the first RNR
//! the packet is posted again at once. After each further one nothing is sent to the peer for a
//! backoff interval, which doubles each time up to a limit. When a retransmitted packet is delivered,
//! this starts anew.

use std::time::Duration;

use efa_device::Time;

/// RNR backoff limits: for how long nothing is sent to a peer after an RNR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackoffLimits {
    /// The first backoff interval.
    pub first: Duration,
    /// The longest backoff interval.
    pub longest: Duration,
}

impl BackoffLimits {
    /// These limits with some changed:
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let limits = efa_rdm::BackoffLimits::default();
    /// let limits = limits.with(|limits| limits.longest = Duration::from_millis(100));
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for BackoffLimits {
    /// 80 µs, doubling up to one second.
    fn default() -> Self {
        Self { first: Duration::from_micros(80), longest: Duration::from_secs(1) }
    }
}

/// The RNR backoff of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    /// RNRs since the last delivered retransmission; those within one interval count once.
    failures: u32,
    /// The end of the interval, while one is running.
    until: Option<Time>,
}

impl Backoff {
    /// Handles an RNR. From the second one on an interval begins, unless one is running, as several packets were in
    /// flight; returns the end of an interval that begins.
    pub(crate) fn not_ready(&mut self, now: Time, limits: &BackoffLimits) -> Option<Time> {
        if self.is_waiting() {
            return None;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            return None;
        }
        let doublings = (self.failures - 2).min(31);
        let interval = limits.first.saturating_mul(1 << doublings).min(limits.longest);
        let until = now + interval;
        self.until = Some(until);
        self.until
    }

    /// Starts an interval for another reason than an RNR; returns its end.
    pub(crate) fn pause(&mut self, now: Time, interval: Duration) -> Time {
        *self.until.get_or_insert(now + interval)
    }

    /// Ends the interval if its time is over; returns whether it was.
    pub(crate) fn expired(&mut self, now: Time) -> bool {
        match self.until {
            Some(until) if until <= now => {
                self.until = None;
                true
            }
            _ => false,
        }
    }

    /// Resets the backoff: a retransmitted packet was delivered.
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
    fn rnr_backoff_doubles_up_to_the_limit_and_resets_after_delivery() {
        let limits =
            BackoffLimits { first: Duration::from_micros(10), longest: Duration::from_micros(50) };
        let mut backoff = Backoff::default();
        let mut now = Time::ZERO;
        assert_eq!(backoff.not_ready(now, &limits), None);
        for micros in [10, 20, 40, 50, 50] {
            let until = now + Duration::from_micros(micros);
            assert_eq!(backoff.not_ready(now, &limits), Some(until));
            assert_eq!(backoff.not_ready(now, &limits), None, "one interval for all");
            assert!(backoff.is_waiting() && !backoff.expired(now));
            assert!(backoff.expired(until) && !backoff.is_waiting());
            now = until;
        }
        backoff.delivered();
        assert_eq!(backoff.not_ready(now, &limits), None);
    }
}

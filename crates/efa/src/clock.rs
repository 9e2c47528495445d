//! The time that endpoints live in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use efa_device::Time;

/// Where a fabric takes the time from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The clock of the host, counted from this instant.
    Host(Instant),
    /// A clock that only moves when told to, so that runs can be repeated.
    Manual(ManualClock),
}

impl Default for Clock {
    /// The clock of the host.
    fn default() -> Self {
        Self::Host(Instant::now())
    }
}

impl From<&ManualClock> for Clock {
    fn from(clock: &ManualClock) -> Self {
        Self::Manual(clock.clone())
    }
}

impl Clock {
    pub(crate) fn now(&self) -> Time {
        match self {
            Self::Host(origin) => Time::ZERO + origin.elapsed(),
            Self::Manual(clock) => clock.now(),
        }
    }

    /// Whether its owner moves it.
    pub(crate) fn is_manual(&self) -> bool {
        matches!(self, Self::Manual(_))
    }

    /// Lets time pass until `next` or a little, before a look again: a manual clock moves on; on
    /// the host's the processor is offered to others, now and then. `looks` counts the looks.
    pub(crate) fn pass(&self, next: Option<Time>, looks: u32) {
        match self {
            Self::Host(_) if looks.is_multiple_of(LOOKS_IN_A_ROW) => std::thread::yield_now(),
            // No `spin_loop`: on a virtual processor it can take longer than the message.
            Self::Host(_) => {}
            Self::Manual(clock) => clock.advance_to(next),
        }
    }
}

/// Looks for something new between two offers of the processor: an offer takes longer than a
/// message does to arrive.
const LOOKS_IN_A_ROW: u32 = 64;

/// A clock that its owner moves. It starts at zero; clones show the same time.
///
/// [`CompletionQueue::wait`](crate::CompletionQueue::wait) moves it on to the next moment at which
/// something is due, so that a program without sleeps runs the same way every time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

/// How far a wait moves a clock when nothing is known to be due.
const STEP: Duration = Duration::from_micros(1);

impl ManualClock {
    /// A clock at time zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What it shows.
    #[must_use]
    pub fn now(&self) -> Time {
        Time::from_nanos(self.0.load(Ordering::Acquire))
    }

    /// Moves it on.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_max((self.now() + by).as_nanos(), Ordering::AcqRel);
    }

    fn advance_to(&self, next: Option<Time>) {
        let now = self.now();
        let to = next.filter(|next| *next > now).unwrap_or(now + STEP);
        self.0.fetch_max(to.as_nanos(), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_when_told_to() {
        let manual = ManualClock::new();
        let clock = Clock::from(&manual);
        assert_eq!(clock.now(), Time::ZERO);
        manual.advance(Duration::from_nanos(7));
        assert_eq!(clock.now(), Time::from_nanos(7));
        clock.pass(Some(Time::from_nanos(50)), 1);
        assert_eq!(manual.now(), Time::from_nanos(50));
        clock.pass(Some(Time::from_nanos(20)), 2);
        assert_eq!(manual.now(), Time::from_nanos(1050), "never back, and never still");
    }
}

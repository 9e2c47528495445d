//! What a queue pair does at a time of its own: sweeps, other tries to connect, and closing sockets for good.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use efa_device::Time;

use super::socket::Socket;

/// How often connections whose senders are slow, or whose hosts don't answer, are looked for; and how often at most, if hosts
/// are given up early.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const MOST_OFTEN: Duration = Duration::from_millis(100);
/// How long the socket of a connection that was closed stays open, and how many such sockets there are at most.
const LEAVES_AFTER: Duration = Duration::from_secs(1);
const MOST_LEAVING: usize = 64;

/// When to sweep, and when to connect again to receivers that had no room.
#[derive(Debug)]
pub(super) struct Schedule {
    sweep_every: Duration,
    next_sweep: Time,
    /// Keys of connections.
    retries: BTreeSet<(Time, usize)>,
    /// The earlier of the next sweep and the first retry.
    next: Time,
}

impl Schedule {
    /// That of a queue pair that gives hosts up after so long.
    pub(super) fn new(dead_after: Option<Duration>) -> Self {
        let often = |limit: Duration| (limit / 4).clamp(MOST_OFTEN, SWEEP_EVERY);
        Self {
            sweep_every: dead_after.map_or(SWEEP_EVERY, often),
            next_sweep: Time::ZERO,
            retries: BTreeSet::new(),
            next: Time::ZERO,
        }
    }

    /// When something is due next.
    #[inline]
    pub(super) fn next(&self) -> Time {
        self.next
    }

    /// Whether a sweep is due, which is then planned anew.
    pub(super) fn take_sweep(&mut self, now: Time) -> bool {
        let is_due = now >= self.next_sweep;
        if is_due {
            self.next_sweep = now + self.sweep_every;
            self.note_next();
        }
        is_due
    }

    /// The connection that is to be tried again, if one is due.
    pub(super) fn take_retry(&mut self, now: Time) -> Option<usize> {
        let &(_, key) = self.retries.first().filter(|&&(at, _)| at <= now)?;
        self.retries.pop_first();
        self.note_next();
        Some(key)
    }

    pub(super) fn retry_at(&mut self, at: Time, key: usize) {
        self.retries.insert((at, key));
        self.note_next();
    }

    fn note_next(&mut self) {
        let retry = self.retries.first().map(|&(at, _)| at);
        self.next = retry.map_or(self.next_sweep, |at| at.min(self.next_sweep));
    }
}

/// Sockets whose last words are on their way, and when to close them, oldest first.
#[derive(Debug, Default)]
pub(super) struct Leaving(VecDeque<(Time, Socket)>);

impl Leaving {
    /// Keeps a socket for a while. Of too many the oldest is closed before.
    pub(super) fn add(&mut self, socket: Socket, now: Time) {
        if self.0.len() >= MOST_LEAVING {
            self.0.pop_front();
        }
        self.0.push_back((now + LEAVES_AFTER, socket));
    }

    /// Closes those that were kept long enough.
    pub(super) fn close(&mut self, now: Time) {
        while self.0.front().is_some_and(|&(until, _)| until <= now) {
            self.0.pop_front();
        }
    }

    /// Closes the oldest before its time. Returns whether there was one.
    pub(super) fn close_oldest(&mut self) -> bool {
        self.0.pop_front().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn next_is_the_earlier_of_the_sweep_and_the_first_retry() {
        let mut schedule = Schedule::new(None);
        assert!(schedule.next() <= Time::ZERO && schedule.take_sweep(at(0)));
        assert_eq!((schedule.next(), schedule.take_sweep(at(999))), (at(1000), false));
        schedule.retry_at(at(700), 1);
        schedule.retry_at(at(300), 2);
        assert_eq!((schedule.next(), schedule.take_retry(at(299))), (at(300), None));
        assert_eq!([schedule.take_retry(at(300)), schedule.take_retry(at(300))], [Some(2), None]);
        assert_eq!(schedule.next(), at(700));
        assert_eq!(schedule.take_retry(at(5000)), Some(1));
        assert_eq!(schedule.next(), at(1000));
        assert!(schedule.take_sweep(at(5000)));
        assert_eq!(schedule.next(), at(6000), "a sweep that was missed is not made up for");
        let mut impatient = Schedule::new(Some(Duration::from_secs(2)));
        assert!(impatient.take_sweep(at(0)));
        assert_eq!(impatient.next(), at(500));
    }
}

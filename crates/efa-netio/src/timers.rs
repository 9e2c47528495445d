//! What is due at a time: timers of the program, and the context's own deadlines.

use std::collections::BTreeMap;
use std::time::Duration;

use efa::Time;
use slotmap::SlotMap;

use crate::ids::{AnySocket, ConnectionKey, PublishSocket, Timer};

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Timer(Timer),
    /// The other side had to end the connection by now.
    End(ConnectionKey),
    /// Look for subscribers who take nothing.
    Slow(PublishSocket),
    /// A host had to be found by now. The number is that of the attempt.
    Lookup(AnySocket, u32),
}

/// Names what is due.
pub(crate) type Deadline = (Time, u64);

#[derive(Default)]
pub(crate) struct Timers {
    queue: BTreeMap<Deadline, Due>,
    next: u64,
    timers: SlotMap<Timer, Entry>,
}

struct Entry {
    at: Deadline,
    every: Option<Duration>,
}

impl Timers {
    pub(crate) fn add(&mut self, at: Time, due: Due) -> Deadline {
        self.next += 1;
        self.queue.insert((at, self.next), due);
        (at, self.next)
    }

    /// Ends what [`add`](Self::add) has begun, if it isn't over.
    pub(crate) fn remove(&mut self, deadline: Option<Deadline>) {
        if let Some(at) = deadline {
            self.queue.remove(&at);
        }
    }

    /// A timer of the program.
    pub(crate) fn timer(&mut self, at: Time, every: Option<Duration>) -> Timer {
        let timer = self.timers.insert(Entry { at: (at, 0), every });
        self.timers[timer].at = self.add(at, Due::Timer(timer));
        timer
    }

    pub(crate) fn cancel(&mut self, timer: Timer) -> bool {
        self.timers.remove(timer).is_some_and(|entry| self.queue.remove(&entry.at).is_some())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.queue.keys().next().map(|(at, _)| *at)
    }

    /// Takes what is due. A timer that repeats is due again later, once for all the times that were missed; at the end of time
    /// it is due for the last time.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<Due> {
        let entry = self.queue.first_entry().filter(|entry| entry.key().0 <= now)?;
        let ((at, _), due) = entry.remove_entry();
        if let Due::Timer(timer) = due {
            let every = self.timers.get(timer).and_then(|entry| entry.every);
            let next = every.map(|every| (at + every).max(now + Duration::from_nanos(1)));
            match next.filter(|&next| next > now) {
                Some(next) => self.timers[timer].at = self.add(next, due),
                None => drop(self.timers.remove(timer)),
            }
        }
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn timers_are_due_in_the_order_of_their_times_and_repeat_until_they_are_cancelled() {
        let mut timers = Timers::default();
        let late = timers.timer(at(30), None);
        let often = timers.timer(at(10), Some(Duration::from_nanos(15)));
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.take_due(at(9)), None);
        assert_eq!(timers.take_due(at(30)), Some(Due::Timer(often)));
        assert_eq!(timers.take_due(at(30)), Some(Due::Timer(late)));
        assert_eq!(timers.take_due(at(30)), None);
        assert_eq!(timers.take_due(at(31)), Some(Due::Timer(often)));
        assert!(!timers.cancel(late));
        assert!(timers.cancel(often));
        assert!(timers.is_empty());
    }

    #[test]
    fn repeating_timer_is_due_once_at_the_end_of_time() {
        let mut timers = Timers::default();
        let often = timers.timer(at(10), Some(Duration::from_nanos(15)));
        assert_eq!(timers.take_due(at(u64::MAX)), Some(Due::Timer(often)));
        assert_eq!(timers.take_due(at(u64::MAX)), None);
        assert!(timers.is_empty());
    }
}

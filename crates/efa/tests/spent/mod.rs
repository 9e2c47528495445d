//! What a thread that sleeps takes: how long it ran, and how often it fell asleep.
//!
//! The first alone is no measure in a virtual machine: what the host takes away while a thread runs is counted as time
//! of the thread, some milliseconds at once. The second doesn't rise by that, nor by other threads that want the
//! processor meanwhile.

#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::path::Path;
use std::time::Duration;

/// How long a thread may run in half a second or more, which one that polls would run for.
const LITTLE: Duration = Duration::from_millis(50);

/// How long threads have run, and how often they fell asleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    ran: Duration,
    times: u64,
}

impl Spent {
    /// Of the calling thread so far.
    pub(crate) fn by_this_thread() -> Self {
        Self::by("/proc/thread-self")
    }

    /// Of the threads that this process has.
    pub(crate) fn by_this_process() -> Self {
        let threads = fs::read_dir("/proc/self/task").unwrap();
        let nothing = Self { ran: Duration::ZERO, times: 0 };
        // One that has ended meanwhile is left out.
        threads.filter_map(|thread| Self::read(&thread.ok()?.path())).fold(
            nothing,
            |sum, thread| Self { ran: sum.ran + thread.ran, times: sum.times + thread.times },
        )
    }

    /// Of a thread, by its directory in `/proc`.
    pub(crate) fn by(thread: impl AsRef<Path>) -> Self {
        Self::read(thread.as_ref()).unwrap()
    }

    fn read(thread: &Path) -> Option<Self> {
        let statistics = fs::read_to_string(thread.join("schedstat")).ok()?;
        let nanos = statistics.split_whitespace().next().unwrap().parse().unwrap();
        let status = fs::read_to_string(thread.join("status")).ok()?;
        let switches =
            status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let times = switches.unwrap().trim().parse().unwrap();
        Some(Self { ran: Duration::from_nanos(nanos), times })
    }

    /// Fails if they have run for longer than looking now and then takes since `before`.
    #[track_caller]
    pub(crate) fn check_ran_little(self, before: Self) {
        let ran = self.ran.saturating_sub(before.ran);
        assert!(ran < LITTLE, "{ran:?}");
    }

    /// The same, and if they fell asleep more than `most` times.
    #[track_caller]
    pub(crate) fn check_idle(self, before: Self, most: u64) {
        // What a thread had spent that has ended since isn't counted any more.
        let ran = self.ran.saturating_sub(before.ran);
        let times = self.times.saturating_sub(before.times);
        assert!(ran < LITTLE && times <= most, "{ran:?}, asleep {times} times");
    }
}

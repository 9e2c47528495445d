//! A thread that sleeps takes no processor time while nothing happens.

use std::time::{Duration, Instant};

use efa::{Progress, WaitError};

use super::{TIMEOUT, networks, pair};

/// How long the thread sleeps.
const SPAN: Duration = Duration::from_secs(1);

/// How long a thread may run in that time: a twentieth of what one that polls would. A host that takes the
/// processor of a virtual machine away for some milliseconds is counted as time of the thread, too.
const LITTLE: Duration = Duration::from_millis(50);

/// How long a thread has run, and how often it was given a processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    ran: Duration,
    times: u64,
}

impl Spent {
    /// Of the calling thread so far.
    pub(super) fn by_this_thread() -> Self {
        Self::by("/proc/thread-self")
    }

    fn by(thread: &str) -> Self {
        let statistics = std::fs::read_to_string(format!("{thread}/schedstat")).unwrap();
        let numbers: Vec<u64> =
            statistics.split_whitespace().map(|number| number.parse().unwrap()).collect();
        Self { ran: Duration::from_nanos(numbers[0]), times: numbers[2] }
    }

    /// Fails if the thread has run for longer than looking now and then takes since `before`.
    pub(super) fn check_ran_little(self, before: Self) {
        let ran = self.ran - before.ran;
        assert!(ran < LITTLE, "{ran:?}");
    }

    /// The same, and if it was given a processor more than a few times.
    pub(super) fn check_idle(self, before: Self) {
        let (ran, times) = (self.ran - before.ran, self.times - before.times);
        assert!(ran < LITTLE && times <= 8, "{ran:?}, given a processor {times} times");
    }
}

// conformance: C79
#[test]
fn blocked_reader_takes_no_processor_time() {
    for network in networks() {
        let ([_a, b], _) = pair(&network);
        let (before, begin) = (Spent::by_this_thread(), Instant::now());
        assert!(matches!(b.receive.wait(SPAN), Err(WaitError::TimedOut(_))));
        Spent::by_this_thread().check_idle(before);
        assert!(begin.elapsed() >= SPAN);
    }
}

/// With a peer that it knows, and of which the link finds out whether it is alive.
#[test]
fn blocked_reader_that_has_a_peer_takes_no_processor_time() {
    for network in networks() {
        let ([a, b], [to_b, _]) = pair(&network);
        b.post();
        a.send(to_b, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| b.receive.wait(TIMEOUT).unwrap());
            a.transmit.wait(TIMEOUT).unwrap();
        });
        // What the first exchange left to do.
        assert!(a.transmit.wait(SPAN / 10).is_err() && b.receive.wait(SPAN / 10).is_err());
        for queue in [&a.transmit, &b.receive] {
            let before = Spent::by_this_thread();
            assert!(matches!(queue.wait(SPAN), Err(WaitError::TimedOut(_))));
            Spent::by_this_thread().check_idle(before);
        }
    }
}

#[test]
fn thread_of_automatic_progress_takes_no_processor_time_while_nothing_happens() {
    for network in networks() {
        let network = network.automatic();
        assert_eq!(network.progress, Progress::Automatic);
        let ([_a, _b], _) = pair(&network);
        std::thread::sleep(SPAN / 10);
        // Those of other tests of this process come and go.
        let threads = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let tasks = tasks.map(|task| task.unwrap().path().to_str().unwrap().to_owned());
            let is_ours = |task: &String| {
                let name = std::fs::read_to_string(format!("{task}/comm"));
                name.is_ok_and(|name| name == "efa-progress\n")
            };
            tasks.filter(is_ours).collect::<Vec<_>>()
        };
        let before: Vec<_> = threads().into_iter().map(|task| (Spent::by(&task), task)).collect();
        assert!(before.len() >= 2);
        std::thread::sleep(SPAN);
        let mut idle = 0;
        for (before, task) in before {
            // One of another test may have ended, or work.
            if std::fs::exists(&task).unwrap()
                && std::panic::catch_unwind(|| Spent::by(&task).check_idle(before)).is_ok()
            {
                idle += 1;
            }
        }
        assert!(idle >= 2, "{idle} threads were idle");
    }
}

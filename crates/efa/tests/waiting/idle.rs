//! A thread that sleeps takes no processor time while nothing happens.

use std::time::{Duration, Instant};

use efa::{Progress, WaitError};

use super::{TIMEOUT, networks, pair};
use crate::spent::Spent;

/// How long the thread sleeps.
const SPAN: Duration = Duration::from_secs(1);

/// How often a thread may be given a processor in that time.
const TIMES: u64 = 8;

// conformance: C79
#[test]
fn blocked_reader_takes_no_processor_time() {
    for network in networks() {
        let ([_a, b], _) = pair(&network);
        let (before, begin) = (Spent::by_this_thread(), Instant::now());
        assert!(matches!(b.receive.wait(SPAN), Err(WaitError::TimedOut(_))));
        Spent::by_this_thread().check_idle(before, TIMES);
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
            Spent::by_this_thread().check_idle(before, TIMES);
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
        // A thread names itself when it first runs, which takes a while on a busy machine.
        let begun = Instant::now();
        while threads().len() < 2 {
            assert!(begun.elapsed() < Duration::from_secs(30), "{} threads", threads().len());
            std::thread::sleep(SPAN / 10);
        }
        let before: Vec<_> = threads().into_iter().map(|task| (Spent::by(&task), task)).collect();
        std::thread::sleep(SPAN);
        let mut idle = 0;
        for (before, task) in before {
            // One of another test may have ended, or work.
            if std::fs::exists(&task).unwrap()
                && std::panic::catch_unwind(|| Spent::by(&task).check_idle(before, TIMES)).is_ok()
            {
                idle += 1;
            }
        }
        assert!(idle >= 2, "{idle} threads were idle");
    }
}

//! The thread that makes progress for queue pairs that the program doesn't poll.
//!
//! A real device takes datagrams into posted buffers by itself. Here that happens when the program
//! polls. While it does something else its peers would wait, so every few milliseconds a thread
//! takes steps for each queue pair that was not polled since.
//!
//! The thread exists while there are queue pairs that can receive.

use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use crate::boundary::Outcome;
use crate::message::report;
use crate::process::{lock, lock_in_time, process};
use crate::queue_pair::QueuePair;

/// Pause between two rounds while there is something to do.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// Pause when there has been nothing to do for long.
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// The queue pairs for which the thread makes progress.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<Watched>);

#[derive(Debug, Default)]
struct Watched {
    queue_pairs: Vec<Weak<QueuePair>>,
    thread_runs: bool,
}

impl Progress {
    /// Makes progress for `queue_pair` until it is dropped.
    pub(crate) fn watch(&self, queue_pair: &Arc<QueuePair>) {
        let mut watched = lock(&self.0);
        watched.queue_pairs.push(Arc::downgrade(queue_pair));
        if !watched.thread_runs {
            watched.thread_runs = start();
        }
    }

    /// Returns when every step that was running has ended; fails with `EBUSY` if one doesn't end.
    pub(crate) fn wait_for_steps(&self) -> Outcome<()> {
        let queue_pairs: Vec<_> =
            lock_in_time(&self.0)?.queue_pairs.iter().filter_map(Weak::upgrade).collect();
        queue_pairs.iter().try_for_each(|queue_pair| queue_pair.wait_for_step())
    }

    /// The queue pairs that exist. If there are none, the thread must end.
    fn queue_pairs(&self) -> Vec<Arc<QueuePair>> {
        let mut watched = lock(&self.0);
        watched.queue_pairs.retain(|queue_pair| queue_pair.strong_count() > 0);
        let queue_pairs: Vec<_> = watched.queue_pairs.iter().filter_map(Weak::upgrade).collect();
        watched.thread_runs = !queue_pairs.is_empty();
        queue_pairs
    }
}

/// Starts the thread, with all signals blocked: they are the program's.
fn start() -> bool {
    let thread = with_signals_blocked(|| thread::Builder::new().name("efa-soft".into()).spawn(run));
    if let Err(error) = &thread {
        report(&format_args!(
            "cannot start the progress thread, so only polling makes progress: {error}"
        ));
    }
    thread.is_ok()
}

/// Runs `f` with all signals blocked in this thread and in those that `f` starts.
#[allow(unsafe_code)]
fn with_signals_blocked<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: `sigset_t` is an array of integers, so zeros are a value. `sigfillset` writes `all`; the
    // first `pthread_sigmask` reads `all` and writes `before`, the second reads `before`.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

fn run() {
    let progress = &process().progress;
    let mut pause = SHORTEST_PAUSE;
    loop {
        thread::sleep(pause);
        let queue_pairs = progress.queue_pairs();
        if queue_pairs.is_empty() {
            return;
        }
        let mut progressed = false;
        for queue_pair in &queue_pairs {
            progressed |= queue_pair.progress_unpolled();
        }
        pause = if progressed { SHORTEST_PAUSE } else { LONGEST_PAUSE.min(pause * 2) };
    }
}

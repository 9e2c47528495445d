//! The thread that goes on with the work of the device while the program doesn't poll.
//!
//! A real device takes datagrams into posted buffers by itself. Here that happens when the program
//! polls. If it waits for something else instead, its peers would wait with it; so a thread looks
//! now and then, and takes a step for every queue pair that was not polled since.
//!
//! The thread exists while there are queue pairs that can receive.

use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use crate::device::complain;
use crate::process::{lock, process};
use crate::queue_pair::QueuePair;

/// Pause between two looks while there is something to do.
const SHORTEST: Duration = Duration::from_millis(1);
/// And when there was nothing for long.
const LONGEST: Duration = Duration::from_millis(16);

/// What the thread cares for.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<Cared>);

#[derive(Debug, Default)]
struct Cared {
    queue_pairs: Vec<Weak<QueuePair>>,
    running: bool,
}

impl Progress {
    /// Cares for `queue_pair` from now on, until it is gone.
    pub(crate) fn care(&self, queue_pair: &Arc<QueuePair>) {
        let mut cared = lock(&self.0);
        cared.queue_pairs.push(Arc::downgrade(queue_pair));
        if !cared.running {
            cared.running = start();
        }
    }

    /// Returns when no queue pair is in a step any more that began before.
    pub(crate) fn wait_for_steps(&self) {
        let queue_pairs: Vec<_> =
            lock(&self.0).queue_pairs.iter().filter_map(Weak::upgrade).collect();
        queue_pairs.iter().for_each(|queue_pair| queue_pair.wait_for_step());
    }

    /// All queue pairs that are left; without any the thread is to end.
    fn queue_pairs(&self) -> Vec<Arc<QueuePair>> {
        let mut cared = lock(&self.0);
        cared.queue_pairs.retain(|queue_pair| queue_pair.strong_count() > 0);
        let queue_pairs: Vec<_> = cared.queue_pairs.iter().filter_map(Weak::upgrade).collect();
        cared.running = !queue_pairs.is_empty();
        queue_pairs
    }
}

/// Starts the thread, without signals: those are the program's.
fn start() -> bool {
    let thread = without_signals(|| thread::Builder::new().name("efa-soft".into()).spawn(run));
    if let Err(error) = &thread {
        complain(&format_args!("no thread, so nothing moves unless the program polls: {error}"));
    }
    thread.is_ok()
}

/// Runs `f` with all signals blocked, so that a thread that it starts gets none.
fn without_signals<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are initialised by the first two calls; the calls change this thread alone,
    // and what they changed is put back.
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
    let mut pause = SHORTEST;
    loop {
        thread::sleep(pause);
        let queue_pairs = progress.queue_pairs();
        if queue_pairs.is_empty() {
            return;
        }
        let mut moved = false;
        for queue_pair in &queue_pairs {
            moved |= queue_pair.help();
        }
        pause = if moved { SHORTEST } else { LONGEST.min(pause * 2) };
    }
}

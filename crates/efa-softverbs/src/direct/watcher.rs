//! The thread that watches doorbells, and the links of queue pairs with rings.
//!
//! A program that writes to a ring calls nothing, so somebody has to look: this thread, as long as there are
//! queue pairs with rings. While there is something to do it looks all the time; then it pauses, at first for
//! microseconds.

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::boundary::{BUSY, Outcome};
use crate::message::report;
use crate::process::{lock, lock_in_time, process};
use crate::progress::with_signals_blocked;
use crate::queue_pair::QueuePair;
use crate::scheduling::run_promptly;

/// The queue pairs with rings.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    watched: Mutex<Watched>,
    /// Changes with the list of queue pairs.
    version: AtomicU64,
}

#[derive(Debug, Default)]
struct Watched {
    queue_pairs: Vec<Arc<QueuePair>>,
    thread_runs: bool,
}

impl Watcher {
    /// Watches the doorbells of `queue_pair`. Fails with `EBUSY` if the thread can't be started.
    pub(crate) fn watch(&self, queue_pair: &Arc<QueuePair>) -> Outcome<()> {
        let mut watched = lock(&self.watched);
        if !watched.thread_runs {
            watched.thread_runs = start();
        }
        if !watched.thread_runs {
            return Err(BUSY);
        }
        watched.queue_pairs.push(Arc::clone(queue_pair));
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Ends that.
    pub(crate) fn forget(&self, queue_pair: &QueuePair) -> Outcome<()> {
        let mut watched = lock_in_time(&self.watched)?;
        watched.queue_pairs.retain(|other| other.serial() != queue_pair.serial());
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The queue pairs. If there are none, the thread must end.
    fn queue_pairs(&self) -> (u64, Vec<Arc<QueuePair>>) {
        let mut watched = lock(&self.watched);
        watched.thread_runs = !watched.queue_pairs.is_empty();
        (self.version.load(Ordering::Acquire), watched.queue_pairs.clone())
    }
}

/// Starts the thread, with all signals blocked: they are the program's.
fn start() -> bool {
    let thread =
        with_signals_blocked(|| thread::Builder::new().name("efa-soft-rings".into()).spawn(run));
    if let Err(error) = &thread {
        report(&format_args!("cannot start the thread that watches doorbells: {error}"));
    }
    thread.is_ok()
}

fn run() {
    run_promptly();
    let watcher = &process().watcher;
    let mut pace = Pace::new();
    let (mut version, mut queue_pairs) = watcher.queue_pairs();
    while !queue_pairs.is_empty() {
        let mut found = false;
        for queue_pair in &queue_pairs {
            found |= queue_pair.serve_rings();
        }
        pace.pause(found);
        if watcher.version.load(Ordering::Acquire) != version {
            queue_pairs.clear();
            (version, queue_pairs) = watcher.queue_pairs();
        }
    }
}

/// How the thread pauses between two looks.
#[derive(Debug)]
struct Pace {
    /// Looks without a pause, before the first one.
    spins: u32,
    /// Looks in a row that have found nothing.
    idle: u32,
}

impl Pace {
    /// Where the program, its peer and the threads of both have a processor each: some milliseconds.
    const MANY_SPINS: u32 = 50_000;
    /// Where they haven't, a look takes the processor from somebody, and a thread that takes its whole share has
    /// to wait for the end of the program's time slice, milliseconds.
    const FEW_SPINS: u32 = 2;
    const PROCESSORS: usize = 4;
    /// Looks with short pauses, some 20 ms.
    const SHORT_PAUSES: u32 = 500;
    const SHORT: Duration = Duration::from_micros(30);
    const LONG: Duration = Duration::from_micros(200);

    fn new() -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let spins = if processors < Self::PROCESSORS { Self::FEW_SPINS } else { Self::MANY_SPINS };
        Self { spins, idle: 0 }
    }

    fn pause(&mut self, found: bool) {
        self.idle = if found { 0 } else { self.idle.saturating_add(1) };
        if self.idle <= self.spins {
            std::hint::spin_loop();
        } else if self.idle <= self.spins + Self::SHORT_PAUSES {
            thread::sleep(Self::SHORT);
        } else {
            thread::sleep(Self::LONG);
        }
    }
}

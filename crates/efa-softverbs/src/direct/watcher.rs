//! The thread that watches doorbells, and the links of queue pairs with rings.
//!
//! A program that writes to a ring calls nothing, so somebody has to look: this thread, as long as there are
//! queue pairs with rings, or completion queues with a doorbell. While there is something to do it looks all the time;
//! then it pauses, at first for microseconds.

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::boundary::{BUSY, Outcome};
use crate::completion_queue::CompletionQueue;
use crate::message::report;
use crate::process::{lock, lock_in_time, process};
use crate::progress::with_signals_blocked;
use crate::queue_pair::QueuePair;
use crate::scheduling::{forced_switches, run_promptly};

/// What the thread looks at.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    state: Mutex<State>,
    /// Changes with the lists.
    version: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    watched: Watched,
    thread_runs: bool,
}

/// Queue pairs with rings, and completion queues with a doorbell.
#[derive(Clone, Debug, Default)]
struct Watched {
    queue_pairs: Vec<Arc<QueuePair>>,
    completion_queues: Vec<Arc<CompletionQueue>>,
}

impl Watched {
    fn is_empty(&self) -> bool {
        self.queue_pairs.is_empty() && self.completion_queues.is_empty()
    }

    /// Looks once; returns whether there was anything to do.
    fn look(&self) -> bool {
        let mut found = false;
        for queue_pair in &self.queue_pairs {
            found |= queue_pair.serve_rings();
        }
        for queue in &self.completion_queues {
            found |= queue.serve_doorbell();
        }
        found
    }
}

impl Watcher {
    /// Watches the doorbells of `queue_pair`. Fails with `EBUSY` if the thread can't be started.
    pub(crate) fn watch(&self, queue_pair: &Arc<QueuePair>) -> Outcome<()> {
        self.add(|watched| watched.queue_pairs.push(Arc::clone(queue_pair)))
    }

    /// Ends that.
    pub(crate) fn forget(&self, queue_pair: &QueuePair) -> Outcome<()> {
        self.remove(|watched| {
            watched.queue_pairs.retain(|other| other.serial() != queue_pair.serial());
        })
    }

    /// Watches the doorbell of `queue`. Fails with `EBUSY` if the thread can't be started.
    pub(crate) fn watch_completions(&self, queue: &Arc<CompletionQueue>) -> Outcome<()> {
        self.add(|watched| watched.completion_queues.push(Arc::clone(queue)))
    }

    /// Ends that.
    pub(crate) fn forget_completions(&self, queue: &CompletionQueue) -> Outcome<()> {
        self.remove(|watched| {
            watched.completion_queues.retain(|other| !std::ptr::eq(Arc::as_ptr(other), queue));
        })
    }

    fn add(&self, add: impl FnOnce(&mut Watched)) -> Outcome<()> {
        let mut state = lock(&self.state);
        if !state.thread_runs {
            state.thread_runs = start();
        }
        if !state.thread_runs {
            return Err(BUSY);
        }
        add(&mut state.watched);
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn remove(&self, remove: impl FnOnce(&mut Watched)) -> Outcome<()> {
        remove(&mut lock_in_time(&self.state)?.watched);
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// What is watched. If there is nothing, the thread must end.
    fn watched(&self) -> (u64, Watched) {
        let mut state = lock(&self.state);
        state.thread_runs = !state.watched.is_empty();
        (self.version.load(Ordering::Acquire), state.watched.clone())
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
    let (mut version, mut watched) = watcher.watched();
    while !watched.is_empty() {
        pace.pause(watched.look());
        if watcher.version.load(Ordering::Acquire) != version {
            // What was destroyed meanwhile is freed before the lists are read again.
            drop(std::mem::take(&mut watched));
            (version, watched) = watcher.watched();
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
    /// Looks until the next check for other threads that want the processor.
    until_check: u32,
    /// How often the kernel has taken the processor from this thread.
    switches: libc::c_long,
    /// Until when the thread leaves the processor to others.
    crowded_until: Option<Instant>,
}

impl Pace {
    /// Where the program, its peer and the threads of both have a processor each: some milliseconds.
    const MANY_SPINS: u32 = 50_000;
    /// Where they haven't, a look takes the processor from somebody, and a thread that takes its whole share has
    /// to wait for the end of the program's time slice, milliseconds.
    const FEW_SPINS: u32 = 2;
    const PROCESSORS: usize = 4;
    /// Looks between two checks, some 100 µs of spinning.
    const CHECK: u32 = 1000;
    /// How long the thread leaves the processor to others.
    const CROWDED: Duration = Duration::from_secs(1);
    /// Looks with short pauses, some 20 ms, and with long ones, some 200 ms.
    const SHORT_PAUSES: u32 = 500;
    const LONG_PAUSES: u32 = 1000;
    const SHORT: Duration = Duration::from_micros(30);
    const LONG: Duration = Duration::from_micros(200);
    const LONGEST: Duration = Duration::from_millis(1);

    fn new() -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let spins = if processors < Self::PROCESSORS { Self::FEW_SPINS } else { Self::MANY_SPINS };
        let (until_check, switches) = (Self::CHECK, forced_switches());
        Self { spins, idle: 0, until_check, switches, crowded_until: None }
    }

    fn pause(&mut self, found: bool) {
        self.idle = if found { 0 } else { self.idle.saturating_add(1) };
        self.until_check -= 1;
        if self.until_check == 0 {
            self.check();
        }
        let spins = if self.crowded_until.is_some() { Self::FEW_SPINS } else { self.spins };
        if self.idle <= spins {
            return std::hint::spin_loop();
        }
        let pauses = [(Self::SHORT_PAUSES, Self::SHORT), (Self::LONG_PAUSES, Self::LONG)];
        let pause = pauses.iter().find(|(looks, _)| self.idle - spins <= *looks);
        thread::sleep(pause.map_or(Self::LONGEST, |(_, pause)| *pause));
    }

    /// Notices that other threads want the processor.
    #[cold]
    fn check(&mut self) {
        self.until_check = Self::CHECK;
        let before = std::mem::replace(&mut self.switches, forced_switches());
        if self.switches > before {
            self.crowded_until = Some(Instant::now() + Self::CROWDED);
        } else if self.crowded_until.is_some_and(|until| until < Instant::now()) {
            self.crowded_until = None;
        }
    }
}

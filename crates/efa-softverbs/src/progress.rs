//! The thread that makes progress for queue pairs that the program doesn't poll.
//!
//! A real device takes datagrams into posted buffers by itself. Here that happens when the program
//! polls. While it does something else its peers would wait, so every few milliseconds a thread
//! takes steps for each queue pair that was not polled since.
//!
//! [Queue pairs that sleep](crate::queue_pair) wake it instead, so while all sleep it takes no processor
//! time: those of the tcp link, and those with a completion channel.
//!
//! The thread exists while there are queue pairs that can receive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use efa_device::Time;

use crate::boundary::Outcome;
use crate::capture::CaptureFile;
use crate::clock::now;
use crate::message::report;
use crate::process::{lock, lock_in_time, process};
use crate::queue_pair::{Look, QueuePair, Serial};
use crate::scheduling::run_promptly;
use crate::sleepers::Sleepers;

/// Pause between two rounds while there is something to do.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// Pause when there has been nothing to do for long.
const LONGEST_PAUSE: Duration = Duration::from_millis(16);
/// The same while a queue pair is awake that alone serves the reads and writes of its peers: one whose program stops
/// polling sleeps soon.
const LONGEST_PAUSE_OF_SERVED: Duration = Duration::from_millis(2);

/// The queue pairs for which the thread makes progress.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    watched: Mutex<Watched>,
    /// What the thread sleeps on; `None` before the first completion channel.
    sleepers: OnceLock<Sleepers>,
    /// Whether the thread must run as soon as it is woken.
    is_prompt: AtomicBool,
}

#[derive(Debug, Default)]
struct Watched {
    queue_pairs: Vec<Weak<QueuePair>>,
    thread_runs: bool,
}

impl Progress {
    /// Makes progress for `queue_pair` until it is dropped.
    pub(crate) fn watch(&self, queue_pair: &Arc<QueuePair>) {
        let mut watched = lock(&self.watched);
        // One that was reset is known already.
        if !watched.queue_pairs.iter().any(|known| known.as_ptr() == Arc::as_ptr(queue_pair)) {
            watched.queue_pairs.push(Arc::downgrade(queue_pair));
        }
        if !watched.thread_runs {
            watched.thread_runs = start();
        }
        drop(watched);
        self.look_at(now());
    }

    /// Creates what the thread sleeps on, so that queue pairs can sleep.
    pub(crate) fn provide_sleepers(&self) -> Outcome<()> {
        if self.sleepers.get().is_none() {
            let sleepers = Sleepers::new()?;
            // If another thread was faster, its own are as good.
            let _ = self.sleepers.set(sleepers);
        }
        Ok(())
    }

    /// Has the thread run as soon as it is woken.
    pub(crate) fn run_promptly(&self) {
        self.is_prompt.store(true, Ordering::Relaxed);
    }

    pub(crate) fn sleepers(&self) -> Option<&Sleepers> {
        self.sleepers.get()
    }

    /// Makes the thread look at the queue pairs at this time at the latest.
    pub(crate) fn look_at(&self, at: Time) {
        if let Some(sleepers) = self.sleepers.get() {
            sleepers.wake_at(at);
        }
    }

    /// Sleeps until `until` at most. Returns the queue pairs whose link has something in `woken`.
    fn sleep(&self, until: Option<Time>, woken: &mut Vec<Serial>) {
        match self.sleepers.get() {
            Some(sleepers) => sleepers.sleep(until, woken),
            None => thread::sleep(until.map_or(LONGEST_PAUSE, |until| until - now())),
        }
    }

    /// Returns when every step that was running has ended; fails with `EBUSY` if one doesn't end.
    pub(crate) fn wait_for_steps(&self) -> Outcome<()> {
        let queue_pairs: Vec<_> =
            lock_in_time(&self.watched)?.queue_pairs.iter().filter_map(Weak::upgrade).collect();
        queue_pairs.iter().try_for_each(|queue_pair| queue_pair.wait_for_step())
    }

    /// The queue pairs that exist. If there are none, the thread must end.
    fn queue_pairs(&self) -> Vec<Arc<QueuePair>> {
        let mut watched = lock(&self.watched);
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
pub(crate) fn with_signals_blocked<T>(f: impl FnOnce() -> T) -> T {
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
    let mut round_at = now() + pause;
    let mut woken = Vec::new();
    let mut until = Some(round_at);
    let mut is_prompt = false;
    loop {
        if !is_prompt && progress.is_prompt.load(Ordering::Relaxed) {
            is_prompt = true;
            run_promptly();
        }
        progress.sleep(until, &mut woken);
        // Not held while the thread sleeps, so that the program can destroy them.
        let queue_pairs = progress.queue_pairs();
        let capture = process().capture.get();
        if queue_pairs.is_empty() {
            return capture.map_or((), CaptureFile::flush);
        }
        let time = now();
        let is_round = time >= round_at;
        let mut progressed = false;
        for queue_pair in &queue_pairs {
            match queue_pair.next_look() {
                _ if woken.contains(&queue_pair.serial()) => {
                    queue_pair.wake();
                    pause = SHORTEST_PAUSE;
                }
                Look::Asleep(Some(at)) if at <= time => queue_pair.wake(),
                Look::NextRound if is_round => progressed |= queue_pair.progress_unpolled(),
                _ => {}
            }
        }
        if is_round {
            let serves = queue_pairs.iter().any(|queue_pair| queue_pair.is_served());
            let longest = if serves { LONGEST_PAUSE_OF_SERVED } else { LONGEST_PAUSE };
            pause = if progressed { SHORTEST_PAUSE } else { longest.min(pause * 2) };
            round_at = now() + pause;
        } else {
            round_at = round_at.min(now() + pause);
        }
        let next = queue_pairs.iter().filter_map(|queue_pair| match queue_pair.next_look() {
            Look::NextRound => Some(round_at),
            Look::Asleep(at) => at,
        });
        until = next.chain(capture.and_then(CaptureFile::flush_if_due)).min();
    }
}

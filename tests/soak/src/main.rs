//! Random runs of the tests of `efa-rdm`, for a given time: `cargo xtask soak`.
//!
//! ```text
//!   seed, seed + 1, … ─► Run (threads) ─► passed
//!                              └─ panicked ─► leave operations out while it still fails
//!                                                  └─► seed, operations, the packets of the last run
//! ```

#![allow(dead_code, reason = "the shared test network has more than the runs need")]
#![allow(clippy::unwrap_used, reason = "a run that cannot continue fails")]

#[path = "../../../crates/efa-rdm/tests/protocol/buffer.rs"]
mod buffer;
#[path = "../../../crates/efa-rdm/tests/protocol/leaving.rs"]
mod leaving;
mod minutes;
#[path = "../../../crates/efa-rdm/tests/protocol/random.rs"]
mod random;
#[path = "../../../crates/efa-rdm/tests/protocol/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

use crate::random::{OPERATIONS, Run};

/// Prints a line; a closed standard output is no error.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

/// Run random operations on a simulated network under faults: messages, one-sided operations,
/// atomics, restarts, killed endpoints. A model checks every byte, completion and order.
#[derive(Parser)]
#[command(name = "efa-soak", bin_name = "cargo xtask soak", version)]
struct Arguments {
    /// First seed; later runs use the seeds that follow
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// How long to run
    #[arg(long, default_value = "2", value_parser = minutes::parse)]
    minutes: Duration,

    /// Concurrent runs [default: the number of processors]
    #[arg(long)]
    jobs: Option<NonZeroUsize>,

    /// Run the first seed once, with only these operations (as a failure prints them)
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS", value_parser = operation)]
    only: Option<Vec<usize>>,
}

/// Parses the number of an operation.
fn operation(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number < OPERATIONS);
    number.ok_or_else(|| format!("a number from 0 to {} is expected", OPERATIONS - 1))
}

/// Whether the run of `seed` fails with these operations.
fn fails(seed: u64, wanted: &BTreeSet<usize>) -> bool {
    let run = || Run::new(seed).run(|operation| wanted.contains(&operation));
    panic::catch_unwind(AssertUnwindSafe(run)).is_err()
}

/// Leaves out operations that the failure does not need: halves first, then smaller parts.
fn minimised(seed: u64) -> BTreeSet<usize> {
    let mut needed: BTreeSet<usize> = (0..OPERATIONS).collect();
    let mut part = OPERATIONS / 2;
    while part > 0 {
        let all: Vec<usize> = needed.iter().copied().collect();
        for piece in all.chunks(part) {
            let fewer: BTreeSet<usize> =
                needed.iter().copied().filter(|operation| !piece.contains(operation)).collect();
            if fails(seed, &fewer) {
                needed = fewer;
            }
        }
        part /= 2;
    }
    needed
}

/// Runs one seed, and prints the packets if it fails.
fn reproduce(seed: u64, needed: &BTreeSet<usize>) -> ExitCode {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|failure| eprintln!("{failure}")));
    world::QUIET.store(false, Ordering::Relaxed);
    let failed = fails(seed, needed);
    panic::set_hook(hook);
    if !failed {
        say!("soak: seed {seed} passed");
        return ExitCode::SUCCESS;
    }
    let numbers: Vec<String> = needed.iter().map(usize::to_string).collect();
    say!("soak: seed {seed} fails with {} of its operations:", needed.len());
    say!("    cargo xtask soak --seed {seed} --only {}", numbers.join(","));
    ExitCode::FAILURE
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(only) = arguments.only {
        return reproduce(arguments.seed, &only.into_iter().collect());
    }
    let span = arguments.minutes;
    let end = Instant::now() + span;
    let jobs = arguments.jobs.or_else(|| thread::available_parallelism().ok());
    let (next, failed) = (AtomicU64::new(arguments.seed), Mutex::new(None::<u64>));
    let (passed, over) = (AtomicU64::new(0), AtomicBool::new(false));

    let style = ProgressStyle::with_template("{elapsed_precise} {bar:40} {msg}");
    let progress = ProgressBar::new(span.as_secs().max(1));
    progress.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    panic::set_hook(Box::new(|_| {}));
    world::QUIET.store(true, Ordering::Relaxed);
    thread::scope(|scope| {
        for _ in 0..jobs.map_or(1, NonZeroUsize::get) {
            scope.spawn(|| {
                while Instant::now() < end && !over.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if fails(seed, &(0..OPERATIONS).collect()) {
                        over.store(true, Ordering::Relaxed);
                        if let Ok(mut failed) = failed.lock() {
                            failed.get_or_insert(seed);
                        }
                        return;
                    }
                    let runs = passed.fetch_add(1, Ordering::Relaxed) + 1;
                    progress.set_position(span.saturating_sub(end - Instant::now()).as_secs());
                    progress.set_message(format!("{runs} runs"));
                }
            });
        }
    });
    progress.finish_and_clear();
    let runs = passed.into_inner();
    let operations = runs * OPERATIONS as u64;
    say!("soak: {runs} runs of {OPERATIONS} operations passed, {operations} operations");
    match failed.into_inner() {
        Ok(Some(seed)) => {
            say!("soak: seed {seed} fails; looking for the operations that matter");
            reproduce(seed, &minimised(seed))
        }
        _ => ExitCode::SUCCESS,
    }
}

//! Ctrl-C (SIGINT) and SIGTERM, as something that a run takes notice of, so that it ends by itself and says what it has done.
//!
//! ```text
//!   signal ─► a thread ── number ──► Interrupt::take
//!                       ── wake ───► what the run sleeps in returns
//! ```

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::{fs, io};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

/// A signal has ended a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted by {}", low_level::signal_name(*signal).unwrap_or("a signal"))]
pub(crate) struct Interrupted {
    /// Its number.
    pub(crate) signal: c_int,
}

impl Interrupted {
    /// The exit code of the process, as a shell has it.
    pub(crate) fn code(self) -> u8 {
        u8::try_from(128 + self.signal).unwrap_or(u8::MAX)
    }
}

/// Why signals can't be caught.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CatchError {
    /// The system refuses.
    #[error("cannot catch signals")]
    Signals(#[source] io::Error),
    /// There is no thread for it.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// The signal that came since the last [`take`](Interrupt::take), or 0. By default none comes.
#[derive(Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicI32>);

impl Interrupt {
    /// From now on signals call `wake`, on a thread of their own. A second signal that comes before [`take`](Self::take) has
    /// seen the first ends the process at once: the run is stuck. A signal that is ignored remains so: a shell without job
    /// control starts background jobs with SIGINT ignored.
    pub(crate) fn catch(wake: impl Fn() + Send + 'static) -> Result<Self, CatchError> {
        let ignored = ignored();
        let caught = [SIGINT, SIGTERM].into_iter().filter(|signal| !ignored(*signal));
        let mut signals = Signals::new(caught).map_err(CatchError::Signals)?;
        let last = Arc::new(AtomicI32::new(0));
        let theirs = last.clone();
        let watch = move || {
            for number in signals.forever() {
                if theirs.swap(number, Ordering::Relaxed) != 0 {
                    // It fails for no signal that has a default.
                    let _ = low_level::emulate_default_handler(number);
                }
                wake();
            }
        };
        thread::Builder::new().spawn(watch).map_err(CatchError::Thread)?;
        Ok(Self(last))
    }

    /// Fails if a signal has come since the last call.
    pub(crate) fn take(&self) -> Result<(), Interrupted> {
        // A read alone is cheaper, and this is called for each message.
        if self.0.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        Err(Interrupted { signal: self.0.swap(0, Ordering::Relaxed) })
    }
}

/// Tells which signals this process ignores; none if the kernel doesn't say.
fn ignored() -> impl Fn(c_int) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    move |signal| (mask >> (signal - 1)) & 1 == 1
}

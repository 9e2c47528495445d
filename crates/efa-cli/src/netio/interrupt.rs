//! Ctrl-C (SIGINT) and SIGTERM, as something that a run takes notice of, so that it ends by itself and says what it has done.
//!
//! ```text
//!   signal ─► a thread ── number ──► Interrupt::take
//!                       ── Signal ─► Netio::poll returns
//! ```

use std::ffi::c_int;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

use efa_netio::Netio;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use super::NetioError;

/// The signal that came since the last [`take`](Interrupt::take), or 0.
pub(super) struct Interrupt(Arc<AtomicI32>);

impl Interrupt {
    /// From now on signals wake the context. A second signal that comes before [`take`](Self::take) has seen the first ends the
    /// process at once: the run is stuck. A signal that is ignored remains so: a shell without job control starts background
    /// jobs with SIGINT ignored.
    pub(super) fn new(netio: &Netio) -> Result<Self, NetioError> {
        let ignored = ignored();
        let caught = [SIGINT, SIGTERM].into_iter().filter(|signal| !ignored(*signal));
        let mut signals = Signals::new(caught).map_err(NetioError::Signals)?;
        let last = Arc::new(AtomicI32::new(0));
        let (theirs, waker) = (last.clone(), netio.signal());
        let watch = move || {
            for number in signals.forever() {
                if theirs.swap(number, Ordering::Relaxed) != 0 {
                    // It fails for no signal that has a default.
                    let _ = low_level::emulate_default_handler(number);
                }
                waker.raise();
            }
        };
        thread::Builder::new().spawn(watch).map_err(NetioError::Thread)?;
        Ok(Self(last))
    }

    /// Fails if a signal has come since the last call.
    pub(super) fn take(&self) -> Result<(), NetioError> {
        // A read alone is cheaper, and this is called for each message.
        if self.0.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        Err(NetioError::Interrupted { signal: self.0.swap(0, Ordering::Relaxed) })
    }
}

/// Tells which signals this process ignores; none if the kernel doesn't say.
fn ignored() -> impl Fn(c_int) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    move |signal| (mask >> (signal - 1)) & 1 == 1
}

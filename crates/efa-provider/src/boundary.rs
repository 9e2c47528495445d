//! Calls from C: errors become negative error numbers, and panics never reach C.
//!
//! A signal handler may interrupt a call and call the library again, mostly by `exit`, whose handlers close what is
//! open. The interrupted call can't go on before the handler returns, so it keeps its locks. Each call made
//! meanwhile in this thread fails with [`INTERRUPTED`] before it touches anything; when the process has ended, the
//! kernel frees all.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::{FI_EBADF, FI_EINVAL, FI_EOTHER};
use crate::cancel::NotNow;
use crate::log;
use crate::threads::InCall;

/// A positive error number of libfabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// A null pointer, an object of another class or another domain, or a value out of range.
pub(crate) const INVALID: Errno = Errno(FI_EINVAL);
/// A call from a signal handler that interrupted another call in the same thread.
const INTERRUPTED: Errno = Errno(libc::EDEADLK);

pub(crate) type Outcome<T> = Result<T, Errno>;

/// Locks, also after a panic in another call.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leaves a call that uses an object which another thread has closed.
#[cold]
pub(crate) fn leave_closed() -> ! {
    // Not a mistake of this library, so the panic hook isn't called.
    std::panic::resume_unwind(Box::new(Closed))
}

struct Closed;

#[cold]
fn of_panic(panic: &(dyn Any + Send)) -> Errno {
    if panic.is::<Closed>() {
        return Errno(FI_EBADF);
    }
    let reason = reason(panic);
    // Another panic, of who writes the log, must not reach C either.
    let _ = catch_unwind(|| {
        log::warn(format_args!("a mistake of this library, the call fails: {reason}"));
    });
    Errno(FI_EOTHER)
}

/// What a panic says.
fn reason(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(reason), _) => reason,
        (None, Some(reason)) => reason,
        (None, None) => "no reason was given",
    }
}

/// Runs a call. A panic, which is a mistake of this library, becomes `FI_EOTHER`.
#[inline(always)]
fn run<T>(call: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let _call = InCall::begin().ok_or(INTERRUPTED)?;
    // The locks don't poison: later calls may return wrong results but don't hang.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(of_panic(&*panic)))
}

/// As [`run`], of a call that may reach a point where threads are cancelled.
#[inline(always)]
fn run_through<T>(call: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let _not_now = NotNow::begin();
    run(call)
}

/// 0 or the negative error number.
#[inline(always)]
pub(crate) fn status(call: impl FnOnce() -> Outcome<()>) -> c_int {
    match run_through(call) {
        Ok(()) => 0,
        Err(Errno(errno)) => -errno,
    }
}

/// The number or the negative error number, as `int`.
pub(crate) fn number(call: impl FnOnce() -> Outcome<usize>) -> c_int {
    match run_through(call) {
        Ok(number) => c_int::try_from(number).unwrap_or(c_int::MAX),
        Err(Errno(errno)) => -errno,
    }
}

/// 0 or the negative error number, as `ssize_t`, of a call of the data path.
#[inline(always)]
pub(crate) fn started(call: impl FnOnce() -> Outcome<()>) -> isize {
    match run(call) {
        Ok(()) => 0,
        Err(Errno(errno)) => -(errno as isize),
    }
}

/// The number or the negative error number, as `ssize_t`.
pub(crate) fn count(call: impl FnOnce() -> Outcome<usize>) -> isize {
    size(run_through(call))
}

/// As [`count`], of a call of the data path.
#[inline(always)]
pub(crate) fn found(call: impl FnOnce() -> Outcome<usize>) -> isize {
    size(run(call))
}

#[inline(always)]
fn size(outcome: Outcome<usize>) -> isize {
    match outcome {
        Ok(number) => isize::try_from(number).unwrap_or(isize::MAX),
        Err(Errno(errno)) => -(errno as isize),
    }
}

/// The value, or `otherwise` if the call panics or this thread is in a call.
#[inline]
pub(crate) fn value<T>(otherwise: T, call: impl FnOnce() -> T) -> T {
    run(|| Ok(call())).unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::{Event, Subscriber};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

    use super::*;

    /// Keeps the messages of events, and panics at those with a text.
    struct Log {
        lines: Arc<Mutex<Vec<String>>>,
        panics_at: &'static str,
    }

    impl<S: Subscriber> Layer<S> for Log {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            struct Text(String);
            impl Visit for Text {
                fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
                    self.0 += &format!("{value:?}");
                }
            }
            let mut text = Text(String::new());
            event.record(&mut text);
            assert!(!text.0.contains(self.panics_at), "a second panic");
            lock(&self.lines).push(text.0);
        }
    }

    /// No other test may make a call panic: `tracing` remembers whether somebody listened when a place logged first.
    #[test]
    fn panic_becomes_an_error_number_is_logged_and_the_next_call_works_even_if_logging_panics() {
        let lines = Arc::default();
        let log = Log { lines: Arc::clone(&lines), panics_at: "unspeakable" };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(log), || {
            assert_eq!(status(|| panic!("a plain mistake")), -FI_EOTHER);
            assert_eq!(status(|| panic!("mistake {}", 7)), -FI_EOTHER);
            assert_eq!(status(|| panic!("an unspeakable mistake")), -FI_EOTHER);
            assert_eq!(status(|| std::panic::resume_unwind(Box::new(7))), -FI_EOTHER);
            assert_eq!(count(|| Ok(7)), 7);
            assert_eq!(status(|| leave_closed()), -FI_EBADF);
        });
        let text = "a mistake of this library, the call fails: ";
        let expected = ["a plain mistake", "mistake 7", "no reason was given"];
        assert_eq!(*lock(&lines), expected.map(|reason| format!("{text}{reason}")));
    }

    #[test]
    fn call_on_a_closed_object_fails_without_a_panic_message() {
        assert_eq!(status(|| leave_closed()), -FI_EBADF);
    }

    #[test]
    fn call_from_within_a_call_of_the_same_thread_is_refused() {
        let inner = Cell::new(0);
        assert_eq!(
            status(|| {
                inner.set(started(|| Ok(())));
                Ok(())
            }),
            0
        );
        assert_eq!(inner.get(), -(libc::EDEADLK as isize));
    }
}

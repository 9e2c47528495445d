//! Functions that run without a call of the program: when the library is loaded, around a fork, and
//! when the process exits.

use std::cell::Cell;

use crate::boundary;
use crate::message::report;
use crate::process::{DEVICE_LISTING, forget_parent, process};

thread_local! {
    /// Whether this thread forks and holds [`DEVICE_LISTING`] for that.
    static HOLDS_LISTING: Cell<bool> = const { Cell::new(false) };
}

/// Runs before a fork, in the thread that forks, perhaps in a signal handler that interrupted a call.
extern "C" fn before_fork() {
    HOLDS_LISTING.set(DEVICE_LISTING.acquire_in_time());
}

/// Runs after a fork in the parent, in the thread that forked.
extern "C" fn after_fork_in_parent() {
    if HOLDS_LISTING.take() {
        DEVICE_LISTING.release();
    }
}

/// Runs after a fork in the child, whose only thread is the copy of the one that forked.
extern "C" fn after_fork_in_child() {
    forget_parent();
    DEVICE_LISTING.release();
}

/// Runs when the library is loaded. Later would be too late: another thread might be forking.
extern "C" fn register_fork_handlers() {
    // SAFETY: the handlers are functions of this library, which is linked with `nodelete` and so
    // stays loaded. They do what POSIX allows in a child of a program with threads: atomic stores.
    let refused = unsafe {
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_in_parent),
            Some(after_fork_in_child),
        )
    };
    if refused != 0 {
        let reason = std::io::Error::from_raw_os_error(refused);
        report(&format_args!("forked children must not use the device: {reason}"));
    }
}

/// Runs when the process exits: removes the sysfs tree, completes the capture, prints counters.
extern "C" fn at_exit() {
    boundary::at_exit(|| {
        // A thread that holds the lock may have been interrupted by what ends the process.
        if let Ok(devices) = process().devices.try_lock()
            && let Some(devices) = &*devices
        {
            devices.at_exit();
        }
    });
}

// SAFETY: the loader calls each pointer in this section once, after relocation. It passes arguments,
// which a function without parameters ignores in the C calling convention of Linux.
#[unsafe(link_section = ".init_array")]
#[used]
static AT_LOAD: extern "C" fn() = register_fork_handlers;

// SAFETY: the loader calls each pointer in this section once, without arguments, when the process
// exits. `at_exit` needs no thread-local state, which may be gone by then.
#[unsafe(link_section = ".fini_array")]
#[used]
static AT_EXIT: extern "C" fn() = at_exit;

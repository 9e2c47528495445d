//! Forked children, for which the objects that they inherit are closed.
//!
//! ```text
//!   first object of a class ─► list of classes ◄── child: closes the objects of each
//! ```
//!
//! The handler in the child waits for no lock, since a thread that holds it may not exist there. A fabric that the child
//! opens itself works, unless another thread of the parent was opening one at the fork, or was in `fi_getinfo`: then the
//! child waits for what that thread, or libfabric in it, held (docs/provider.md).

#![allow(unsafe_code)]

use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What is done in a child. It calls only what POSIX allows there.
struct Entry {
    close: fn(),
    next: *const Self,
}

static LIST: AtomicPtr<Entry> = AtomicPtr::new(null_mut());

/// Calls this function in each forked child from now on. It may do so twice.
#[cold]
pub(crate) fn closes(close: fn()) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if refused != 0 {
            crate::log::warn(format_args!("forked children must not use what they inherit"));
        }
    });
    let entry = Box::leak(Box::new(Entry { close, next: LIST.load(Ordering::Acquire) }));
    while let Err(first) =
        LIST.compare_exchange(entry.next.cast_mut(), entry, Ordering::AcqRel, Ordering::Acquire)
    {
        entry.next = first;
    }
}

/// Runs in a forked child, in its only thread.
extern "C" fn in_child() {
    let mut next = LIST.load(Ordering::Acquire).cast_const();
    // SAFETY: entries in the list were leaked, and `next` of one is set before it is published.
    while let Some(entry) = unsafe { next.as_ref() } {
        (entry.close)();
        next = entry.next;
    }
}

//! What a forked child must not destroy.
//!
//! A child of `fork` has the parent's descriptor of the interface, and the kernel lets it destroy the parent's objects by
//! it. So a child that drops what it inherits, as it does when it returns from `main`, makes no calls for that: the
//! objects are the parent's alone. Nothing keeps a child from posting to a queue pair of its parent; it must not.

#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between the first call of [`generation`] and this process.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Differs between a parent and its children.
pub(crate) fn generation() -> u32 {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the handler may run in a forked child, as it only counts.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if refused != 0 {
            tracing::warn!(errno = refused, "forked children must not drop what they inherit");
        }
    });
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

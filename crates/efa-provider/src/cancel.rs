//! Cancellation of threads (`pthread_cancel`).
//!
//! The C library cancels a thread at the next call of its own that may wait, by unwinding the stack. That must not meet
//! frames of this library, which have something to drop and catch panics. So a thread isn't cancelled within calls that
//! control or sleep; it is at the program's next call that may wait. Calls of the data path do nothing for this: they wait
//! for nothing.

#![allow(unsafe_code)]

use std::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// This thread isn't cancelled until this is dropped.
pub(crate) struct NotNow {
    before: c_int,
}

impl NotNow {
    pub(crate) fn begin() -> Self {
        let mut before = 0;
        // SAFETY: it writes the state.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for NotNow {
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: as above. This is no point where threads are cancelled, unless they may be at any instruction, for which
        // this library isn't made.
        unsafe { pthread_setcancelstate(self.before, &raw mut disabled) };
    }
}

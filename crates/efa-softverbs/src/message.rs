//! Messages to the user: lines `efa-soft: …` on standard error, each text once per process.
//!
//! A library has no log of its own. What prevents it from working, and what the caller learns only as
//! an error number, is written here in words.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::Mutex;

use efa_device::DeviceError;

use crate::boundary::Errno;
use crate::process::process;

/// The texts that a process has written.
#[derive(Debug, Default)]
pub(crate) struct Written(Mutex<HashSet<String>>);

impl Written {
    /// Whether `text` is new. If another thread is asking, or was when this process crashed in the
    /// middle of that, the answer is yes: a message twice is better than a thread that waits.
    fn is_new(&self, text: &str) -> bool {
        self.0.try_lock().map_or(true, |mut written| written.insert(text.to_owned()))
    }
}

/// Writes a message, unless this process has written the same one before. Programs try again what
/// fails: libfabric opens each device at least twice.
pub(crate) fn report(message: &dyn Display) {
    let text = message.to_string();
    if process().written.is_new(&text) {
        print(&text);
    }
}

/// Writes a message.
pub(crate) fn print(message: &dyn Display) {
    let line = format!("efa-soft: {message}\n");
    // Without the lock of std's `Stderr`, which a thread of the parent may have held when this process
    // was forked. The write fails if the program has closed the descriptor.
    let _ = rustix::io::write(std::io::stderr(), line.as_bytes());
}

/// The error number for `error`. If that alone doesn't show the cause, the message does.
pub(crate) fn reported(error: DeviceError) -> Errno {
    use DeviceError::{Absent, Inconsistent, LimitReached, System};
    if let Absent { .. } | Inconsistent { .. } | LimitReached { .. } | System { .. } = &error {
        report(&error);
    }
    error.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_with_same_text_is_new_only_once() {
        let written = Written::default();
        assert!(written.is_new("a"));
        assert!(!written.is_new("a"));
        assert!(written.is_new("b"));
        let _asking = written.0.lock();
        assert!(written.is_new("a"), "without waiting for the lock");
    }
}

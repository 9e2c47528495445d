//! The capture file of a process, made with its first packet and complete at its end.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use efa_sim::capture::{Capture, CaptureError};
use efa_sim::record::{Record, Sink};
use rustix::fs::{FlockOperation, flock};

use crate::device::complain;
use crate::process::lock;

/// A capture file, in the hands of all devices of the process.
#[derive(Clone)]
pub(crate) struct CaptureFile(Arc<Mutex<State>>);

enum State {
    /// Nothing passed yet.
    Waiting {
        path: String,
    },
    Open(Box<Capture<File>>),
    /// At the end, or because the file can't be written.
    Closed,
}

impl CaptureFile {
    /// A file at `path`, in which `%p` stands for the process.
    pub(crate) fn new(path: &str) -> Self {
        let path = path.replace("%p", &std::process::id().to_string());
        Self(Arc::new(Mutex::new(State::Waiting { path })))
    }

    /// Writes what is still in memory, unless a packet is being written and that takes too long: the
    /// program may be ended by a handler of a signal that came just then, in the same thread.
    pub(crate) fn finish(&self, patience: Duration) {
        let start = Instant::now();
        let mut state = loop {
            match self.0.try_lock() {
                Ok(state) => break state,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if start.elapsed() > patience => {
                    return complain(&"the capture is not complete");
                }
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        };
        let state = std::mem::replace(&mut *state, State::Closed);
        if let State::Open(capture) = state
            && let Err(error) = capture.finish()
        {
            complain(&error);
        }
    }
}

impl Sink for CaptureFile {
    fn record(&mut self, record: &Record<'_>) {
        let mut state = lock(&self.0);
        if let State::Waiting { path } = &*state {
            *state = match open(path) {
                Ok(capture) => State::Open(Box::new(capture)),
                Err(error) => {
                    complain(&format_args!("no capture in {path}: {error}"));
                    State::Closed
                }
            };
        }
        if let State::Open(capture) = &mut *state {
            capture.record(record);
        }
    }
}

/// A new file, in place of one that is there unless another process writes to it.
fn open(path: &str) -> Result<Capture<File>, CaptureError> {
    let file = File::options().create(true).write(true).truncate(false).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        let advice = "another process writes to it; give each its own with %p in the name";
        io::Error::other(advice)
    })?;
    file.set_len(0)?;
    Capture::new(file, "efa_soft")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some programs end in the handler of a signal, as those with libinfinipath do.
    #[test]
    fn a_process_ends_though_it_was_about_to_write_a_packet() {
        let file = CaptureFile::new("/nowhere");
        let writing = lock(&file.0);
        file.finish(Duration::ZERO);
        assert!(matches!(*writing, State::Waiting { .. }));
        drop(writing);
        file.finish(Duration::ZERO);
        assert!(matches!(*lock(&file.0), State::Closed));
    }
}

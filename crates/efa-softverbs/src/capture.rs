//! The capture file of a process, created with its first packet and completed when it exits. What it has in memory is
//! written out soon after, so that of a program that hangs nothing is missing.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use efa_device::Time;
use efa_sim::capture::{Capture, CaptureError};
use efa_sim::record::{Record, Sink};
use rustix::fs::{FlockOperation, flock};

use crate::clock::now;
use crate::message::report;
use crate::process::{lock, process};
use crate::settings::CaptureSettings;

/// How long a packet is in memory alone.
const IN_MEMORY: Duration = Duration::from_millis(20);

impl fmt::Debug for CaptureFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CaptureFile")
    }
}

/// A capture file, shared by all devices of the process.
#[derive(Clone)]
pub(crate) struct CaptureFile {
    path: Arc<str>,
    /// Most bytes of a packet.
    bytes: usize,
    state: Arc<Mutex<State>>,
}

enum State {
    /// No packet was sent or received yet.
    NotCreated,
    Open {
        capture: Box<Capture<File>>,
        /// When the packets in memory are to be written out; `None` if there are none.
        flush_at: Option<Time>,
    },
    /// The process exits, or the file can't be written.
    Closed,
}

impl CaptureFile {
    pub(crate) fn new(settings: &CaptureSettings) -> Self {
        let CaptureSettings { file, bytes } = settings;
        let path = file.replace("%p", &std::process::id().to_string());
        Self { path: path.into(), bytes: *bytes, state: Arc::new(Mutex::new(State::NotCreated)) }
    }

    /// Writes out what is in memory if its time has come. Returns when this is to be called again, if it must be.
    pub(crate) fn flush_if_due(&self) -> Option<Time> {
        let time = now();
        let mut state = lock(&self.state);
        let State::Open { capture, flush_at } = &mut *state else { return None };
        if flush_at.is_some_and(|at| at <= time) {
            // `finish` reports the error.
            let _ = capture.flush();
            *flush_at = None;
        }
        *flush_at
    }

    /// Writes out what is in memory.
    pub(crate) fn flush(&self) {
        if let State::Open { capture, flush_at } = &mut *lock(&self.state) {
            // `finish` reports the error.
            let _ = capture.flush();
            *flush_at = None;
        }
    }

    /// Writes what is still in memory and closes the file. Waits at most `timeout` for a packet that is
    /// being written: a signal handler that exits may have interrupted that very thread.
    pub(crate) fn finish(&self, timeout: Duration) {
        let start = Instant::now();
        let mut state = loop {
            match self.state.try_lock() {
                Ok(state) => break state,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if start.elapsed() > timeout => {
                    let Self { path, .. } = self;
                    return report(&format_args!(
                        "the capture {path} is incomplete: it is being written"
                    ));
                }
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        };
        let state = std::mem::replace(&mut *state, State::Closed);
        if let State::Open { capture, .. } = state
            && let Err(error) = capture.finish()
        {
            report(&format_args!("the capture {} is incomplete: {error}", self.path));
        }
    }
}

impl Sink for CaptureFile {
    fn record(&mut self, record: &Record<'_>) {
        let mut state = lock(&self.state);
        if let State::NotCreated = *state {
            *state = match open(&self.path, self.bytes) {
                Ok(capture) => State::Open { capture: Box::new(capture), flush_at: None },
                Err(error) => {
                    report(&format_args!("cannot write the capture {}: {error}", self.path));
                    State::Closed
                }
            };
        }
        let State::Open { capture, flush_at } = &mut *state else { return };
        capture.record(record);
        if flush_at.is_none() {
            let at = now() + IN_MEMORY;
            *flush_at = Some(at);
            drop(state);
            process().progress.look_at(at);
        }
    }
}

/// Creates the file, or replaces one that no other process writes to.
fn open(path: &str, bytes: usize) -> Result<Capture<File>, CaptureError> {
    let file = File::options().create(true).write(true).truncate(false).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        let advice = "another process writes to it; `%p` in the name gives each process its own";
        io::Error::other(advice)
    })?;
    file.set_len(0)?;
    Capture::bounded(file, "efa_soft", bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some programs exit in a signal handler, those with libinfinipath among them.
    #[test]
    fn process_exits_although_a_packet_is_being_written() {
        let file =
            CaptureFile::new(&CaptureSettings { file: "/nowhere".into(), bytes: usize::MAX });
        let writing = lock(&file.state);
        file.finish(Duration::ZERO);
        assert!(matches!(*writing, State::NotCreated));
        drop(writing);
        file.finish(Duration::ZERO);
        assert!(matches!(*lock(&file.state), State::Closed));
    }
}

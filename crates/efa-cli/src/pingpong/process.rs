//! The server as a child process.
//!
//! ```text
//!   parent (client) ◄── socket pair: the control channel ──► standard input of the child (server)
//! ```
//!
//! The child is of a process group of its own, so that Ctrl-C ends the parent alone; the child
//! notices that the channel is closed, cleans up for both and ends. The parent kills it when it isn't needed
//! any more, however that comes, and always reaps it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::control::Stream;

/// Pause between two looks at whether the child has ended.
const PAUSE: Duration = Duration::from_millis(1);

/// What can go wrong with the child itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    /// It doesn't start.
    #[error("cannot start the server process")]
    Start(#[source] io::Error),
    /// It doesn't end, or nothing can be learned about it.
    #[error("cannot wait for the server process")]
    Wait(#[source] io::Error),
    /// It ended before the run did.
    #[error("the server process ended early: {status}")]
    EndedEarly {
        /// How.
        status: ExitStatus,
    },
    /// The server's exit status is a failure.
    #[error("the server process failed: {status}")]
    Failed {
        /// How it ended.
        status: ExitStatus,
    },
    /// The run is over, and it hasn't ended.
    #[error("the server process did not end within {waited:?}")]
    Lingers {
        /// The time waited.
        waited: Duration,
    },
    /// Standard input is not what the parent passes.
    #[error("standard input is not a control channel")]
    Inherited(#[source] io::Error),
}

/// A running server; killed and reaped when dropped.
#[derive(Debug)]
pub(crate) struct ServerProcess(Child);

impl ServerProcess {
    /// Runs this program with `arguments`. The stream is the control channel to it.
    pub(crate) fn start(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<(Self, Stream), ProcessError> {
        let start = || {
            let (ours, theirs) = UnixStream::pair()?;
            let mut command = Command::new(std::env::current_exe()?);
            command.args(arguments).process_group(0);
            command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
            let child = command.spawn()?;
            tracing::info!(pid = child.id(), "the server process started");
            Ok((Self(child), Stream::Unix(ours)))
        };
        start().map_err(ProcessError::Start)
    }

    /// Waits for its end, for at most this time.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<ExitStatus, ProcessError> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().map_err(ProcessError::Wait)? {
                return Ok(status);
            }
            if begin.elapsed() >= timeout {
                return Err(ProcessError::Lingers { waited: timeout });
            }
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Both fail only if the child is reaped already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process that started this one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parent(u32);

impl Parent {
    /// The current parent.
    pub(crate) fn this() -> Self {
        Self(parent_id())
    }

    /// Waits for its end, for at most this time; all its files are closed then.
    pub(crate) fn ends_within(self, timeout: Duration) -> bool {
        let begin = Instant::now();
        while parent_id() == self.0 {
            if begin.elapsed() >= timeout {
                return false;
            }
            thread::sleep(PAUSE);
        }
        true
    }
}

/// The control channel that the parent passed as standard input.
pub(crate) fn inherited() -> Result<Stream, ProcessError> {
    let descriptor = io::stdin().as_fd().try_clone_to_owned().map_err(ProcessError::Inherited)?;
    Ok(Stream::Unix(UnixStream::from(descriptor)))
}

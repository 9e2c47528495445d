//! The built program, run with a deadline.
#![allow(dead_code, reason = "each test file uses a part")]

use std::ffi::OsStr;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A bound on every run: far beyond what any takes, so that only a hang reaches it.
const DEADLINE: Duration = Duration::from_secs(120);

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Standard output of a run that must have worked.
    #[track_caller]
    pub(crate) fn success(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Standard error of a run that must have failed.
    #[track_caller]
    pub(crate) fn failure(self) -> String {
        assert_eq!(self.code, Some(1), "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        self.stderr
    }

    /// Standard error of a run that must have been refused for its command line.
    #[track_caller]
    pub(crate) fn usage(self) -> String {
        assert_eq!(self.code, Some(2), "{self:?}");
        assert_eq!(self.stdout, "");
        self.stderr
    }
}

/// A running program; killed and reaped when dropped.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program with arguments, its output piped.
pub(crate) fn efa<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_efa"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("EFA_LOG").env_remove("RUST_LOG");
    command
}

/// Runs it to its end.
#[track_caller]
pub(crate) fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Outcome {
    finish(Running(efa(arguments).spawn().unwrap()))
}

/// Waits for the end.
#[track_caller]
pub(crate) fn finish(mut running: Running) -> Outcome {
    let stdout = drain(running.0.stdout.take());
    let stderr = drain(running.0.stderr.take());
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = running.0.try_wait().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < DEADLINE, "still running after {DEADLINE:?}");
        thread::sleep(Duration::from_millis(5));
    };
    Outcome { code: status.code(), stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Reads a pipe to its end in the background, so that the writer never waits.
fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// A path for a file of one test, where no file is.
pub(crate) fn fresh(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    path
}

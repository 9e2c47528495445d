//! The built program, run with a deadline.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod unreadable;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// A bound on every wait: far beyond what any takes, so that only a hang reaches it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// Waits until `done`, for no longer than [`DEADLINE`].
#[track_caller]
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < DEADLINE, "not yet {what} after {DEADLINE:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether Debian's packages that the test is about are there, by the word of who runs it.
pub(crate) fn with_c_packages() -> bool {
    let wanted = std::env::var_os("EFA_INTEROP").is_some_and(|value| value == "1");
    if !wanted {
        eprintln!("skipped: EFA_INTEROP=1 is not set");
    }
    wanted
}

/// A counter of the device; 0 if the device was not used, as it prints no counters then.
pub(crate) fn counter(text: &str, name: &str) -> u64 {
    if !text.contains("efa-soft: efa_soft0 of process") {
        return 0;
    }
    let (_, rest) = text.rsplit_once(&format!("{name} ")).unwrap_or_else(|| panic!("{text}"));
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

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
    Running::start(&mut efa(arguments)).finish()
}

/// A running program; killed and reaped when dropped.
pub(crate) struct Running {
    child: Child,
    stdout: Pipe,
    stderr: Pipe,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stdout = Pipe::new(child.stdout.take());
        let stderr = Pipe::new(child.stderr.take());
        Self { child, stdout, stderr }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended yet.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for a line of standard output that contains `text`.
    #[track_caller]
    pub(crate) fn stdout_line(&mut self, text: &str) -> String {
        self.stdout.line(text)
    }

    /// Waits for a line of standard error that contains `text`.
    #[track_caller]
    pub(crate) fn stderr_line(&mut self, text: &str) -> String {
        self.stderr.line(text)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits for the end of it, and of all that write to its output.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Outcome {
        let mut status = None;
        until("at its end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let (stdout, stderr) = (self.stdout.rest(), self.stderr.rest());
        Outcome { code: status.unwrap().code(), stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of a pipe, read in the background so that the writer never waits.
struct Pipe {
    lines: Receiver<String>,
    seen: String,
}

impl Pipe {
    fn new(pipe: Option<impl Read + Send + 'static>) -> Self {
        let (sender, lines) = channel();
        thread::spawn(move || {
            let mut pipe = BufReader::new(pipe.unwrap());
            let mut line = Vec::new();
            while pipe.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
                line.clear();
            }
        });
        Self { lines, seen: String::new() }
    }

    #[track_caller]
    fn line(&mut self, text: &str) -> String {
        loop {
            let Ok(line) = self.lines.recv_timeout(DEADLINE) else {
                panic!("no `{text}` in `{}`", self.seen);
            };
            self.seen.push_str(&line);
            if line.contains(text) {
                return line.trim_end().to_owned();
            }
        }
    }

    /// Everything, up to its end.
    #[track_caller]
    fn rest(&mut self) -> String {
        use std::sync::mpsc::RecvTimeoutError;
        loop {
            match self.lines.recv_timeout(DEADLINE) {
                Ok(line) => self.seen.push_str(&line),
                Err(RecvTimeoutError::Disconnected) => return std::mem::take(&mut self.seen),
                Err(RecvTimeoutError::Timeout) => panic!("the output is still open"),
            }
        }
    }
}

/// A path of its own for a file or directory, where nothing is; what comes there is removed when this
/// is dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        // Neither tests side by side nor runs that share a target directory meet.
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}-{name}", std::process::id());
        Self(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name))
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.0.is_dir() {
            let _ = std::fs::remove_dir_all(&self.0);
        } else {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

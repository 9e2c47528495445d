//! A peer: a process that takes commands, one a line.
//!
//! ```text
//!   command ──► stdin │ process │ stdout ──► thread ──► results, completions
//!                               │ stderr ──► file
//! ```

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::matrix::Stack;
use super::record::{Completion, Record};
use crate::process::lines_of;

/// How long a peer may take to end when its input has ended. It takes milliseconds, unless the machine does
/// much else.
const GRACE: Duration = Duration::from_secs(20);

/// The same for a peer of a scenario that failed, or is known to: it may wait for ever.
const SHORT_GRACE: Duration = Duration::from_secs(2);

/// A peer process. It is ended and reaped when this is dropped.
pub(crate) struct Peer {
    name: String,
    stack: Stack,
    child: Child,
    /// `None` after its end.
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Commands that were given and whose answers were not looked at yet.
    unanswered: VecDeque<String>,
    /// Completions that no scenario has asked for yet.
    completions: VecDeque<Completion>,
    /// Whether errors that belong to no operation are allowed.
    events_allowed: bool,
    deadline: Instant,
    trace: bool,
}

/// Files with a peer's standard error and packets.
#[derive(Clone, Debug)]
pub(crate) struct Traces {
    pub(crate) name: String,
    pub(crate) stack: Stack,
    /// Whether the process was killed, so that its capture may end anywhere.
    pub(crate) killed: bool,
    pub(crate) stderr: PathBuf,
    pub(crate) capture: PathBuf,
}

impl Traces {
    pub(crate) fn new(directory: &Path, name: &str, stack: Stack) -> Self {
        Self {
            name: name.to_owned(),
            stack,
            killed: false,
            stderr: directory.join(format!("{name}.stderr")),
            capture: directory.join(format!("{name}.pcapng")),
        }
    }
}

impl Peer {
    pub(crate) fn start(
        command: &mut Command,
        traces: &Traces,
        deadline: Instant,
        trace: bool,
    ) -> Result<Self> {
        let stderr = File::create(&traces.stderr)
            .with_context(|| format!("cannot write {}", traces.stderr.display()))?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("the peer has no standard output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines_of(output) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let name = traces.name.clone();
        Ok(Self {
            name,
            stack: traces.stack,
            child,
            input,
            lines,
            unanswered: VecDeque::new(),
            completions: VecDeque::new(),
            events_allowed: false,
            deadline,
            trace,
        })
    }

    /// Runs a command; returns its result.
    pub(crate) fn run(&mut self, command: &str) -> Result<Record> {
        self.await_answers()?;
        self.write(command)?;
        self.answer_to(command)
    }

    fn answer_to(&mut self, command: &str) -> Result<Record> {
        self.result().with_context(|| format!("{}: `{command}`", self.name))
    }

    /// Runs a command that must succeed.
    pub(crate) fn run_ok(&mut self, command: &str) -> Result<Record> {
        let record = self.run(command)?;
        self.expect_ok(command, &record)?;
        Ok(record)
    }

    fn expect_ok(&self, command: &str, record: &Record) -> Result<()> {
        ensure!(record.word == "ok", "{}: `{command}`: seen `{record}`", self.name);
        Ok(())
    }

    /// Gives a command that must succeed, and that may have to wait for another peer. The next [`run`](Self::run), or
    /// whoever asks for a completion, waits for its answer.
    pub(crate) fn give(&mut self, command: String) -> Result<()> {
        self.write(&command)?;
        self.unanswered.push_back(command);
        Ok(())
    }

    fn await_answers(&mut self) -> Result<()> {
        while let Some(command) = self.unanswered.pop_front() {
            let record = self.answer_to(&command)?;
            self.expect_ok(&command, &record)?;
        }
        Ok(())
    }

    fn write(&mut self, command: &str) -> Result<()> {
        if self.trace {
            print_error!("{} < {command}", self.name);
        }
        let input = self.input.as_mut().context("the peer's input has ended")?;
        writeln!(input, "{command}").with_context(|| format!("{} has ended", self.name))
    }

    fn result(&mut self) -> Result<Record> {
        loop {
            let record = self.record()?;
            if !record.is_completion() {
                return Ok(record);
            }
            self.completions.push_back(Completion::parse(record, self.stack)?);
        }
    }

    /// The completion of a certain operation, whatever else completes meanwhile.
    pub(crate) fn completion_of(&mut self, id: u64) -> Result<Completion> {
        self.completion(Some(id))
    }

    /// The next completion without context: of what a peer did to our memory.
    pub(crate) fn completion_without_context(&mut self) -> Result<Completion> {
        self.completion(None)
    }

    fn completion(&mut self, id: Option<u64>) -> Result<Completion> {
        self.await_answers()?;
        let is_it = |completion: &Completion| completion.id == id;
        if let Some(at) = self.completions.iter().position(is_it) {
            return self.completions.remove(at).context("a completion");
        }
        loop {
            let record =
                self.record().with_context(|| format!("{}: completion {id:?}", self.name))?;
            ensure!(record.is_completion(), "{}: unexpected `{record}`", self.name);
            let completion = Completion::parse(record, self.stack)?;
            if is_it(&completion) {
                return Ok(completion);
            }
            self.completions.push_back(completion);
        }
    }

    /// Allows errors that belong to no operation from now on.
    pub(crate) fn allow_events(&mut self) {
        self.events_allowed = true;
    }

    fn record(&mut self) -> Result<Record> {
        loop {
            let record = self.line()?;
            if !record.is_event() {
                return Ok(record);
            }
            ensure!(self.events_allowed, "{}: unexpected `{record}`", self.name);
        }
    }

    fn line(&mut self) -> Result<Record> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => {
                if self.trace {
                    print_error!("{} > {line}", self.name);
                }
                Ok(Record::parse(&line))
            }
            Err(RecvTimeoutError::Timeout) => bail!("no answer until the deadline"),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.end(GRACE)?;
                bail!("the peer has ended with {status}")
            }
        }
    }

    /// Closes the endpoint, which must have no unexpected completions. Another can be opened then.
    pub(crate) fn close_endpoint(&mut self) -> Result<()> {
        let record = self.run("close")?;
        ensure!(record.word == "closed", "{}: `close`: seen `{record}`", self.name);
        self.expect_no_completion()
    }

    /// Fails if there is a completion that no scenario asked for.
    pub(crate) fn expect_no_completion(&self) -> Result<()> {
        match self.completions.front() {
            Some(completion) => bail!("{}: unexpected `{}`", self.name, completion.record),
            None => Ok(()),
        }
    }

    /// Closes the endpoint and ends the process, which must succeed.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.close_endpoint()?;
        self.write("quit")?;
        let status = self.end(GRACE)?;
        ensure!(status.success(), "{} has ended with {status}", self.name);
        Ok(())
    }

    /// Ends the process at once, as a crash does.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for the end, and kills the process if that takes too long, which is an error.
    fn end(&mut self, grace: Duration) -> Result<ExitStatus> {
        drop(self.input.take());
        let deadline = Instant::now() + grace;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let waits = waits_of(self.child.id());
        self.child.kill()?;
        self.child.wait()?;
        bail!("{} has not ended {grace:?} after its input; its threads wait in: {waits}", self.name)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // With its input at the end it ends by itself, and its capture is complete.
        if let Err(error) = self.end(SHORT_GRACE) {
            print_error!("cannot end {}: {error}", self.name);
        }
    }
}

/// Where the threads of a process wait in the kernel, by name: `peer in futex_wait_queue, ...`.
fn waits_of(process: u32) -> String {
    let read = |thread: &Path, file| {
        let text = std::fs::read_to_string(thread.join(file)).unwrap_or_default();
        text.trim().to_owned()
    };
    let threads =
        std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let threads = threads.map(|thread| {
        let thread = thread.path();
        format!("{} in {}", read(&thread, "comm"), read(&thread, "wchan"))
    });
    threads.collect::<Vec<_>>().join(", ")
}

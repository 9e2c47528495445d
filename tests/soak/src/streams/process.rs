//! A side in a process of its own: this program, started again. It is killed when this is dropped.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Said;
use crate::sides::Place;

/// How long a side may take to finish what is under way.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Process {
    what: &'static str,
    child: Child,
    output: Option<ChildStdout>,
}

impl Process {
    pub(crate) fn start(what: &'static str, place: &Place) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.arg(what).arg(&place.directory).arg(place.seed.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn();
        let mut child = child.map_err(|error| format!("a side doesn't start: {error}"))?;
        let output = child.stdout.take();
        Ok(Self { what, child, output })
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        let failed = |error: &dyn std::fmt::Display| format!("can't signal a side: {error}");
        let number = i32::try_from(self.child.id()).map_err(|error| failed(&error))?;
        let Some(pid) = Pid::from_raw(number) else { return Err(failed(&"its number is 0")) };
        kill_process(pid, signal).map_err(|error| failed(&error))
    }

    /// Stops it for a while.
    pub(crate) fn pause(&self, time: Duration) -> Result<(), String> {
        self.signal(Signal::STOP)?;
        thread::sleep(time);
        self.signal(Signal::CONT)
    }

    /// Whether it still runs, as it does until it is asked to end.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                Err(format!("a side that was to {} ended with {status}", self.what))
            }
            Err(error) => Err(format!("a side is lost: {error}")),
        }
    }

    pub(crate) fn ask_to_end(&self) {
        // It ends when its input does, so what keeps it from getting this line also ends it.
        use std::io::Write as _;
        let _ = self.child.stdin.as_ref().map(|mut input| input.write_all(b"end\n"));
    }

    /// The streams that it tells of when it ends.
    pub(crate) fn end(mut self, word: &str) -> Result<Said, String> {
        let output = self.output.take().ok_or("a side has no output")?;
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        let (mut said, until) = (Said::new(), Instant::now() + PATIENCE);
        loop {
            match told.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let numbers = line.strip_prefix(word).map(str::split_whitespace);
                    let mut numbers = numbers.ok_or_else(|| format!("a side said {line:?}"))?;
                    let mut number = || numbers.next()?.parse::<u64>().ok();
                    match (number(), number()) {
                        (Some(stream), Some(count)) => said.insert(stream, count),
                        _ => return Err(format!("a side said {line:?}")),
                    };
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    return Err(format!("a side doesn't {} to the end in {PATIENCE:?}", self.what));
                }
            }
        }
        match self.child.wait() {
            Ok(status) if status.success() => Ok(said),
            Ok(status) => Err(format!("a side that was to {} ended with {status}", self.what)),
            Err(error) => Err(format!("a side is lost: {error}")),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it is reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

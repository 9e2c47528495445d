//! Child processes: commands are printed, and failures are errors.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::builder::RangedU64ValueParser;

use crate::{output, watchdog};

/// Runs the command with this process's output; fails unless it exits with 0.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    announce(command);
    let status = command.status().with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed with {status}", shown(command));
    }
    Ok(())
}

/// How long what a child has started may keep its standard output open when the child has ended.
const GRACE: Duration = Duration::from_secs(2);

/// Runs the command like [`run`], handing each line of its standard output to `inspect`,
/// which says whether it is printed. What the command has started is killed when it prints nothing for as long as `patience`.
pub(crate) fn run_inspecting(
    command: &mut Command,
    patience: Duration,
    mut inspect: impl FnMut(&str) -> bool,
) -> Result<()> {
    announce(command);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    let output = child.stdout.take().context("the child has no standard output")?;
    let pid = child.id();
    let (printed, heard) = mpsc::channel();
    let watchdog = std::thread::spawn(move || watchdog::watch(pid, patience, &heard));
    let lines = read_aside(output);
    let mut ended: Option<Instant> = None;
    loop {
        match lines.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => {
                let _ = printed.send(());
                let text = String::from_utf8_lossy(&line);
                if inspect(text.trim_end()) {
                    output::write(format_args!("{text}"));
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if child.try_wait()?.is_none() => {}
            Err(RecvTimeoutError::Timeout) => {
                if ended.get_or_insert_with(Instant::now).elapsed() >= GRACE {
                    say!("a process that it has started keeps its standard output open");
                    break;
                }
            }
        }
    }
    let status = child.wait()?;
    drop(printed);
    let _ = watchdog.join();
    if !status.success() {
        bail!("`{}` failed with {status}", shown(command));
    }
    Ok(())
}

/// Reads lines, with their ends, in a thread of its own, which ends with the output.
fn read_aside(output: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (to, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(output);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|count| count != 0) {
            if to.send(std::mem::take(&mut line)).is_err() {
                break;
            }
        }
    });
    lines
}

/// The lines that a child prints, which may be any bytes.
pub(crate) fn lines_of(output: impl Read) -> impl Iterator<Item = String> {
    let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
    lines.map(|line| String::from_utf8_lossy(&line).into_owned())
}

/// Runs the command quietly and returns its standard output.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !output.status.success() {
        bail!("`{}` failed with {}", shown(command), output.status);
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("`{}` printed something else than UTF-8", shown(command)))
}

/// Compiles files of C.
pub(crate) fn compile(
    compiler: &str,
    sources: impl IntoIterator<Item = PathBuf>,
    libraries: &[&str],
    program: &Path,
) -> Result<()> {
    let mut cc = Command::new(compiler);
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]);
    run(cc.args(sources).args(libraries).arg("-o").arg(program))
}

/// Parses a deadline of the command line: 1 second to a day.
pub(crate) fn seconds() -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(1..=86_400)
}

/// A process that is killed when this is dropped.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdout(Stdio::piped()).spawn();
        Ok(Self(child.with_context(|| format!("cannot start {command:?}"))?))
    }

    /// Waits for success; returns its (short) output.
    pub(crate) fn finish(&mut self, until: Instant) -> Result<String> {
        let status = self.wait(until)?;
        let mut said = String::new();
        if let Some(mut output) = self.0.stdout.take() {
            output.read_to_string(&mut said)?;
        }
        ensure!(status.success(), "failed with {status} and the output `{}`", said.trim());
        Ok(said)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn is_running(&mut self) -> Result<bool> {
        Ok(self.0.try_wait()?.is_none())
    }

    fn wait(&mut self, until: Instant) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= until {
                bail!("killed: it ran beyond its deadline");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether the command can be started and exits with 0; its output is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The file that `program` names in the directories of `PATH`.
pub(crate) fn find_in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// The command as typed in a shell.
fn shown(command: &Command) -> String {
    let variables = command
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}={}", name.to_string_lossy(), quoted(value?))));
    // The name without the directory, to keep the line short.
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args()).map(quoted);
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    if word.is_empty() || word.contains([' ', '*', '$', '\'', '"']) {
        format!("'{}'", word.replace('\'', r"'\''"))
    } else {
        word.into_owned()
    }
}

fn announce(command: &Command) {
    say!("$ {}", shown(command));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_shown_as_typed_in_a_shell() {
        let mut command = Command::new("/usr/lib/rust/bin/cargo");
        command.env("RUSTDOCFLAGS", "-D warnings").args(["doc", "it's"]);
        assert_eq!(shown(&command), r"RUSTDOCFLAGS='-D warnings' cargo doc 'it'\''s'");
    }

    #[test]
    fn failing_child_is_an_error_with_command_and_status() {
        let error = run(Command::new("sh").args(["-c", "exit 7"])).unwrap_err().to_string();
        assert_eq!(error, "`sh -c 'exit 7'` failed with exit status: 7");
    }

    /// Keeps each line, and has it printed.
    fn keep(lines: &mut Vec<String>) -> impl FnMut(&str) -> bool {
        |line| {
            lines.push(line.to_owned());
            true
        }
    }

    #[test]
    fn inspected_child_reports_every_line_and_its_failure() {
        let mut lines = Vec::new();
        let mut child = Command::new("sh");
        child.args(["-c", "echo one; printf two; exit 3"]);
        let error = run_inspecting(&mut child, Duration::MAX, keep(&mut lines)).unwrap_err();
        assert_eq!(lines, ["one", "two"]);
        assert!(error.to_string().ends_with("exit status: 3"), "{error}");
    }

    #[test]
    fn child_of_an_inspected_child_that_prints_nothing_is_killed() {
        let mut lines = Vec::new();
        let mut child = Command::new("sh");
        child.args(["-c", "echo one; sleep 3600; echo ended with $?"]);
        let patience = Duration::from_millis(50);
        run_inspecting(&mut child, patience, keep(&mut lines)).unwrap();
        assert_eq!(lines, ["one", "ended with 137"]);
    }

    #[test]
    fn inspected_child_ends_although_its_own_child_keeps_the_output() {
        let mut lines = Vec::new();
        let mut child = Command::new("sh");
        child.args(["-c", "sleep 3600 & echo $!"]);
        let begin = Instant::now();
        run_inspecting(&mut child, Duration::MAX, keep(&mut lines)).unwrap();
        assert!(succeeds(Command::new("kill").args(&lines)), "{lines:?}");
        assert!(begin.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn absent_program_is_named_in_the_error() {
        let error = run(&mut Command::new("no-such-program-efa")).unwrap_err().to_string();
        assert_eq!(error, "cannot start `no-such-program-efa`");
        assert_eq!(find_in_path("no-such-program-efa"), None);
        assert!(find_in_path("sh").is_some());
    }
}

//! The interface for scenarios of complete programs: a server and its client.
//!
//! ```text
//!   server ──► listens ──► client ──► both have ended ──► standard output, captures
//! ```

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::cell::Place;
use super::matrix::{Cell, Stack};
use super::peer::Traces;

/// Pause between two looks at a process.
const PAUSE: Duration = Duration::from_millis(2);

/// The programs of a cell. Those that run are killed and reaped when this is dropped.
pub(crate) struct Programs<'a> {
    pub(crate) place: &'a Place<'a>,
    pub(crate) host: &'a str,
    pub(crate) cell: Cell,
    directory: &'a Path,
    deadline: Instant,
    running: Vec<Program>,
    traces: Vec<Traces>,
}

/// A process.
struct Program {
    name: &'static str,
    child: Child,
}

impl<'a> Programs<'a> {
    pub(crate) fn new(
        place: &'a Place<'a>,
        host: &'a str,
        cell: Cell,
        directory: &'a Path,
        deadline: Instant,
    ) -> Self {
        let (running, traces) = Default::default();
        Self { place, host, cell, directory, deadline, running, traces }
    }

    /// The files of a program that is about to start.
    pub(crate) fn traces(&self, name: &'static str, stack: Stack) -> Traces {
        Traces::new(self.directory, name, stack)
    }

    /// Starts a program. `name` is that of its files.
    pub(crate) fn start(
        &mut self,
        name: &'static str,
        mut command: Command,
        traces: Traces,
    ) -> Result<()> {
        let create = |file: &Path| {
            File::create(file).with_context(|| format!("cannot write {}", file.display()))
        };
        command.stdin(Stdio::null()).stdout(create(&self.output(name))?);
        command.stderr(create(&traces.stderr)?);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        self.running.push(Program { name, child });
        self.traces.push(traces);
        Ok(())
    }

    fn output(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.stdout"))
    }

    fn program(&mut self, name: &str) -> Result<&mut Program> {
        let found = self.running.iter_mut().find(|program| program.name == name);
        found.with_context(|| format!("there is no {name}"))
    }

    /// Waits until a program listens at a port of TCP.
    pub(crate) fn await_port(&mut self, name: &str, port: u16) -> Result<()> {
        // A connection would count as its client.
        while !listens(port) {
            if let Some(status) = self.program(name)?.child.try_wait()? {
                bail!("the {name} has ended with {status}");
            }
            self.pause().with_context(|| format!("the {name} doesn't listen"))?;
        }
        Ok(())
    }

    /// Waits for the success of a program; returns its output.
    pub(crate) fn finish(&mut self, name: &str) -> Result<String> {
        let status = loop {
            if let Some(status) = self.program(name)?.child.try_wait()? {
                break status;
            }
            self.pause().with_context(|| format!("the {name} goes on"))?;
        };
        ensure!(ExitStatus::success(&status), "the {name} has ended with {status}");
        let file = self.output(name);
        std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    }

    fn pause(&self) -> Result<()> {
        ensure!(Instant::now() < self.deadline, "deadline exceeded");
        std::thread::sleep(PAUSE);
        Ok(())
    }

    /// How many packets of a kind a program has sent, by its name in the decoder.
    pub(crate) fn sent(&self, name: &str, kind: &str) -> Result<usize> {
        let traces = self.traces.iter().find(|traces| traces.name == name);
        let capture = &traces.with_context(|| format!("there was no {name}"))?.capture;
        let is_it = |line: &&str| line.contains(" sent ") && line.contains(kind);
        Ok(self.place.packets(capture)?.lines().filter(is_it).count())
    }

    /// Ends all processes; returns their files.
    pub(crate) fn end(mut self) -> Vec<Traces> {
        let mut traces = std::mem::take(&mut self.traces);
        for traces in &mut traces {
            let ended = self.program(&traces.name).map(|program| program.child.try_wait());
            traces.killed = !matches!(ended, Ok(Ok(Some(_))));
        }
        traces
    }
}

impl Drop for Programs<'_> {
    fn drop(&mut self) {
        for Program { name, child } in &mut self.running {
            // It fails for one that has ended.
            let _ = child.kill();
            if let Err(error) = child.wait() {
                print_error!("cannot end the {name}: {error}");
            }
        }
    }
}

/// A port that is free now; if another process takes it meanwhile, the cell fails.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Whether a socket of this machine listens at `port`.
fn listens(port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    tables.into_iter().flatten().any(|table| is_listener(&table, port))
}

fn is_listener(table: &str, port: u16) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next().unwrap_or_default(), fields.nth(1));
        local.ends_with(&format!(":{port:04X}")) && state == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listening_sockets_count_as_listeners() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
            0: 0100007F:B9E8 00000000:0000 0A 00000000:00000000\n\
            1: 0100007F:B9E9 0100007F:1234 01 00000000:00000000\n";
        assert!(is_listener(table, 0xb9e8));
        assert!(!is_listener(table, 0xb9e9), "connected");
        assert!(!is_listener(table, 0x1234), "the other end");
    }
}

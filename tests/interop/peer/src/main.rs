//! A peer on the crate `efa`: reads commands, writes results, and polls in between.
//!
//! ```text
//!   stdin ──► command ──► peer ──► efa
//!                           ▲       │
//!   stdout ◄── report ◄─────┴── progress
//! ```
//!
//! The commands are in `tests/interop/README.md`; the libfabric peer has the same.

#![forbid(unsafe_code)]

mod command;
mod endpoint;
mod memory;
mod peer;
mod remote;
mod report;

use std::io::BufRead;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvError, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::Command;
use crate::endpoint::CaptureFile;
use crate::peer::{Next, Peer};

/// Empty polls after which the process yields the processor.
const EMPTY_POLLS: u32 = 200;
const NAP: Duration = Duration::from_millis(1);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peer: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let capture = CaptureFile::from_environment()?;
    let played = play(Peer::new(capture.clone()));
    // The packets before a failure are captured too.
    capture.map_or(Ok(()), |capture| capture.finish())?;
    played
}

fn play(mut peer: Peer) -> Result<()> {
    let lines = lines();
    let mut quiet = 0;
    loop {
        if peer.is_working() {
            quiet = if peer.progress()? { 0 } else { quiet + 1 };
        }
        let line = match (peer.is_working(), quiet < EMPTY_POLLS) {
            (true, true) => lines.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
            (true, false) => lines.recv_timeout(NAP),
            (false, _) => lines.recv().map_err(|RecvError| RecvTimeoutError::Disconnected),
        };
        match line {
            Ok(line) => {
                quiet = 0;
                let next = Command::parse(&line).and_then(|command| peer.run(command));
                if next.with_context(|| line.clone())? == Next::Quit {
                    return Ok(());
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// The lines of standard input, read by a thread of their own, as reading blocks.
fn lines() -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

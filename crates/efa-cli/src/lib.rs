//! The `efa` command: try the software device, look at what it can do, read its captures.
//!
//! `src/main.rs` is a call of [`main`]; what is here is a library so that `tests/hostile` gets at what
//! the command reads of others ([`hostile`]).
//!
//! ```text
//!  main ──► pingpong   two processes, every size and subprotocol, a table of what was measured
//!       ──► info       what the device and its endpoints can do; environment variables
//!       ──► doctor     what the machine needs for a device, and what to do where it is missing
//!       ──► decode     the packets of a capture, one line each
//!       ──► soft_efa   other programs on the software device
//!            all on top of: device (an interface or the software device), output (that may be closed)
//! ```
//!
//! Exit codes: 0 it worked, 1 it did not, 2 the command line makes no sense.

#![forbid(unsafe_code)]

mod decode;
mod device;
mod doctor;
mod environment;
#[doc(hidden)]
pub mod hostile;
mod info;
mod output;
mod pingpong;
mod soft_efa;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Reliable datagram messaging over EFA: measure it, inspect it, read its packets
#[derive(Debug, Parser)]
#[command(
    name = "efa",
    version,
    disable_help_subcommand = true,
    after_help = "Environment:\n  \
        EFA_LOG   what to log to standard error, such as `debug` or `efa_rdm=trace` (else RUST_LOG; \
        default: warn)\n  \
        FI_EFA_*  thresholds and sizes as libfabric names them; `efa info --env` lists them\n\n\
        Exit codes: 0 it worked, 1 it did not, 2 the command line makes no sense."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Exchange messages of all sizes between two processes, and measure how long it takes
    Pingpong(pingpong::Args),
    /// Print what the device and its endpoints can do
    Info(info::Args),
    /// Check what this machine needs for a device, and tell what to do where it is missing
    Doctor(doctor::Args),
    /// Print the packets of a capture, one line each
    Decode(decode::Args),
    /// Run other programs on the software device
    SoftEfa(soft_efa::Args),
}

impl Command {
    /// Why its options make no sense together.
    fn conflict(&self) -> Option<String> {
        match self {
            Self::Pingpong(args) => args.conflict(),
            Self::SoftEfa(args) => args.conflict().map(str::to_owned),
            Self::Info(args) => args.conflict(),
            Self::Doctor(args) => args.conflict(),
            Self::Decode(_) => None,
        }
    }
}

/// The command.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(said) => return answer(&said),
    };
    if let Some(conflict) = cli.command.conflict() {
        return answer(&Cli::command().error(ErrorKind::ArgumentConflict, conflict));
    }
    log_to_stderr();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::tell(format_args!("error: {}", in_words(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Says what there is to say instead of running a command: help, or that the command line makes no sense.
fn answer(said: &clap::Error) -> ExitCode {
    match output::tolerate_closed(said.print()) {
        Err(error) if !said.use_stderr() => {
            output::tell(format_args!("error: cannot write the output: {error}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(u8::MAX)),
    }
}

/// An error with its causes in one line. Part of it may be what somebody else said: it is safe to be
/// shown on a terminal.
fn in_words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for character in format!("{error:#}").chars() {
        if character.is_control() {
            words.extend(character.escape_debug());
        } else {
            words.push(character);
        }
    }
    words
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Pingpong(args) => Ok(pingpong::run(&args)?),
        Command::Info(args) => Ok(info::run(&args)?),
        Command::Doctor(args) => Ok(doctor::run(&args)?),
        Command::Decode(args) => Ok(decode::run(&args)?),
        Command::SoftEfa(args) => Ok(soft_efa::run(&args)?),
    }
}

/// `EFA_LOG`, else `RUST_LOG`, else warnings; a filter that makes no sense is reported.
fn log_to_stderr() {
    let variable = if std::env::var_os("EFA_LOG").is_some() { "EFA_LOG" } else { "RUST_LOG" };
    let filter = std::env::var(variable).unwrap_or_default();
    let filter = if filter.is_empty() { "warn".to_owned() } else { filter };
    let filter = EnvFilter::try_new(&filter).unwrap_or_else(|error| {
        output::tell(format_args!("warning: {variable}: {error}"));
        EnvFilter::new("warn")
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // Where a log can't be written, nothing can be said about that either.
        .log_internal_errors(false)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_does_nothing_to_the_terminal() {
        let error = anyhow::anyhow!("no \u{1b}[31m`\n`").context("the other side failed");
        assert_eq!(in_words(&error), "the other side failed: no \\u{1b}[31m`\\n`");
    }
}

//! The `efa` command: measure, inspect and check EFA devices, run programs on the software device, decode
//! captures.
//!
//! `src/main.rs` only calls [`main`]. This is a library so that `tests/hostile` can call the code that reads
//! untrusted input ([`hostile`]).
//!
//! ```text
//!  main ──► pingpong   two processes exchange messages of every size; a table of times
//!       ──► info       what the device and its endpoints can do; environment variables
//!       ──► doctor     what the machine needs for a device, and what to do about what is missing
//!       ──► decode     the packets of captures, one line each
//!       ──► netio      messages from and into files, point to point or published
//!       ──► soft_efa   runs other programs on the software device
//!            netio, pingpong use: interrupt (signals that end a run)
//!            both, too: capture (the packets of a run)
//!            all use: device (an interface or the software device), output (which may be closed)
//! ```
//!
//! Exit codes: 0 success, 1 failure, 2 invalid command line, 130 and 143 interrupted; of `netio` also 3 refused, 4 lost.

#![forbid(unsafe_code)]

mod capture;
mod child;
mod decode;
mod device;
mod doctor;
mod environment;
#[doc(hidden)]
pub mod hostile;
mod info;
mod interrupt;
mod listing;
mod netio;
mod output;
mod pingpong;
mod soft_efa;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches as _, Parser, Subcommand};
use efa::Environment;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// Reliable datagram messaging over EFA: measure it, inspect it, read its packets
#[derive(Debug, Parser)]
#[command(
    name = "efa",
    version,
    disable_help_subcommand = true,
    after_help = "Environment:\n  \
        EFA_LOG   what to log to standard error, such as `debug` or `efa_rdm=trace` (else RUST_LOG; \
        default: warn)\n  \
        FI_LOG_*  the same as libfabric names it, if EFA_LOG and RUST_LOG are not set\n  \
        FI_EFA_*  thresholds and sizes as libfabric names them; `efa info --parameters` lists all\n\n\
        Exit codes: 0 success, 1 failure, 2 invalid command line, 130 interrupted by Ctrl-C, 143 by SIGTERM; \
        of `efa netio` also 3 refused, 4 lost."
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
    /// Check what this machine needs for a device, and say what to do about what is missing
    Doctor(doctor::Args),
    /// Print the packets of captures, one line each
    Decode(decode::Args),
    /// Publish, subscribe, send and receive files as messages
    Netio(netio::Args),
    /// Run other programs on the software device
    SoftEfa(soft_efa::Args),
}

impl Command {
    /// A message about options that exclude each other.
    fn conflict(&self) -> Option<String> {
        match self {
            Self::Pingpong(args) => args.conflict(),
            Self::SoftEfa(args) => args.conflict(),
            Self::Info(args) => args.conflict(),
            Self::Doctor(args) => args.conflict(),
            Self::Netio(args) => args.conflict(),
            Self::Decode(_) => None,
        }
    }
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(message) => return print_usage(&message),
    };
    log_to_stderr();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_error(format_args!("error: {}", one_line(&error)));
            ExitCode::from(code(&error))
        }
    }
}

/// The exit code of a failure.
fn code(error: &anyhow::Error) -> u8 {
    let of_netio = error.downcast_ref().map(netio::NetioError::code);
    of_netio.or_else(|| error.downcast_ref().map(pingpong::PingpongError::code)).unwrap_or(1)
}

/// Parses the command line of this process, and checks what clap doesn't.
fn parse() -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches()?;
    let cli = Cli::from_arg_matches(&matches)?;
    match cli.command.conflict() {
        None => Ok(cli),
        Some(conflict) => Err(used(&matches).error(ErrorKind::ArgumentConflict, conflict)),
    }
}

/// The command that was given, with the usage that its errors show.
fn used(mut matches: &ArgMatches) -> clap::Command {
    let mut command = Cli::command();
    command.build();
    while let Some((name, of_subcommand)) = matches.subcommand() {
        let Some(subcommand) = command.find_subcommand(name) else { break };
        (command, matches) = (subcommand.clone(), of_subcommand);
    }
    command
}

/// Prints help, the version or an error of the command line.
fn print_usage(message: &clap::Error) -> ExitCode {
    match output::tolerate_closed(message.print()) {
        Err(error) if !message.use_stderr() => {
            output::print_error(format_args!("error: cannot write the output: {error}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(message.exit_code()).unwrap_or(u8::MAX)),
    }
}

/// An error with its causes in one line. Text of the other side may be part of it, so control characters are
/// escaped.
fn one_line(error: &anyhow::Error) -> String {
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
        Command::Netio(args) => Ok(netio::run(&args)?),
        Command::SoftEfa(args) => Ok(soft_efa::run(&args)?),
    }
}

/// Logs by the filter in `EFA_LOG`, else `RUST_LOG`, else by `FI_LOG_*`: warnings by default. An invalid filter
/// is reported.
fn log_to_stderr() {
    let is_set = |variable: &&str| std::env::var_os(variable).is_some_and(|text| !text.is_empty());
    let Some(variable) = ["EFA_LOG", "RUST_LOG"].into_iter().find(is_set) else {
        let log = Environment::of(std::env::vars_os()).log;
        tracing_subscriber::registry()
            .with(
                tracing_subscriber::fmt::layer()
                    .with_writer(io::stderr)
                    .with_ansi(io::stderr().is_terminal())
                    // An error of writing the log can't be logged.
                    .log_internal_errors(false)
                    .with_filter(filter_fn(move |metadata| log.enabled(metadata))),
            )
            .init();
        return;
    };
    let filter = std::env::var(variable).unwrap_or_default();
    let filter = EnvFilter::try_new(&filter).unwrap_or_else(|error| {
        output::print_error(format_args!("warning: {variable}={filter:?}: {error}"));
        EnvFilter::new("warn")
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // An error of writing the log can't be logged.
        .log_internal_errors(false)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_errors_are_escaped() {
        let error = anyhow::anyhow!("no \u{1b}[31m`\n`").context("the other side failed");
        assert_eq!(one_line(&error), "the other side failed: no \\u{1b}[31m`\\n`");
    }
}

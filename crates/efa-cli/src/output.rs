//! Writing to standard output and standard error, either of which may be closed early, by `head` for example.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;

/// Turns the error of a closed pipe into success.
pub(crate) fn tolerate_closed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Prints a value as a line of JSON on standard output.
pub(crate) fn print_json(value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string(value)?;
    tolerate_closed(writeln!(io::stdout(), "{text}"))
}

/// Prints a line on standard error. A failure to write is ignored; the exit code reports the error as well.
pub(crate) fn print_error(line: fmt::Arguments<'_>) {
    // In one piece, as others may write there as well.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

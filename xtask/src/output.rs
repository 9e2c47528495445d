//! Writing to standard output and standard error, which may be closed early, by `head` for example. A task
//! continues then: its exit code counts.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

use anyhow::{Result, bail};

/// The first error of writing that isn't a closed pipe, such as a full disk.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// A line on standard output.
macro_rules! say {
    ($($words:tt)*) => {
        $crate::output::write(format_args!("{}\n", format_args!($($words)*)))
    };
}

/// A line on standard error; a failure to write it is ignored.
macro_rules! print_error {
    ($($words:tt)*) => {{
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("{}\n", format_args!($($words)*)),
        );
    }};
}

/// Text on standard output.
pub(crate) fn write(text: fmt::Arguments<'_>) {
    if cfg!(test) {
        // The test harness captures this.
        print!("{text}");
    } else {
        keep(io::stdout().write_fmt(text));
    }
}

/// Remembers an error of writing.
pub(crate) fn keep(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = LOST.set(error);
    }
}

/// Fails if output was lost, other than to a closed pipe.
pub(crate) fn all_written() -> Result<()> {
    keep(io::stdout().flush());
    match LOST.get() {
        Some(error) => bail!("cannot write the output: {error}"),
        None => Ok(()),
    }
}

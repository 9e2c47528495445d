//! Standard output and standard error, which may be closed before all is said, by `head` for example.
//! A task goes on then: its exit code counts, and children and files are to be seen to.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

use anyhow::{Result, bail};

/// The first failure to write that is none of the reader's: a full disk.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// A line on standard output.
macro_rules! say {
    ($($words:tt)*) => {
        $crate::output::write(format_args!("{}\n", format_args!($($words)*)))
    };
}

/// A line on standard error. If that can't be written, there is nobody left to tell.
macro_rules! tell {
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
        // Which the harness keeps out of its own lines.
        print!("{text}");
    } else {
        keep(io::stdout().write_fmt(text));
    }
}

/// Something was written by somebody else.
pub(crate) fn keep(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = LOST.set(error);
    }
}

/// Fails if somebody who still reads didn't get all.
pub(crate) fn all_written() -> Result<()> {
    keep(io::stdout().flush());
    match LOST.get() {
        Some(error) => bail!("cannot write the output: {error}"),
        None => Ok(()),
    }
}

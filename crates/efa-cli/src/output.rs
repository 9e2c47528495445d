//! Standard output that may be closed before all is written, by `head` for example, and standard
//! error, for which the same goes.

use std::fmt;
use std::io::{self, Write};

/// Makes a success of "nobody reads this any more".
pub(crate) fn tolerate_closed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// A line on standard error. If that can't be written, there is nobody left to tell; the exit code
/// says what it always does.
pub(crate) fn tell(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

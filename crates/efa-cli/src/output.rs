//! Standard output that may be closed before all is written, by `head` for example.

use std::io;

/// Makes a success of "nobody reads this any more".
pub(crate) fn tolerate_closed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

//! Child processes: their options, and what they print, read while they run: a child waits for whoever doesn't read its
//! pipe.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::thread::{self, JoinHandle};

/// An option and its value as one argument, as the value may begin with `-`.
pub(crate) fn option(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut option = OsString::from(name);
    option.push("=");
    option.push(value);
    option
}

/// Reads a pipe to its end in a thread. What can't be read is left out. Fails if the thread can't be started.
pub(crate) fn read_aside(
    pipe: Option<impl Read + Send + 'static>,
) -> io::Result<JoinHandle<Vec<u8>>> {
    thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

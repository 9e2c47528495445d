//! Whether libfabric finds and loads our provider, and why it doesn't: libfabric itself says nothing.
//!
//! ```text
//!   FI_PROVIDER_PATH ─► directory ─► libefars-fi.so ─► loads? ─► offered?
//!                                                       │          └ fi_info -p efars
//!                                                       └ a child process that preloads it
//! ```
//!
//! The dynamic loader tells the reason when it preloads a library, in the same words as `dlopen`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{Line, State};
use crate::child::read_aside;

const LIBRARY: &str = "libefars-fi.so";
/// As cargo names it.
const AS_BUILT: &str = "libefars_fi.so";
/// The first release of libfabric that the provider works with.
const FIRST_RELEASE: (u32, u32) = (1, 17);
/// The longest that a child process may take.
const DEADLINE: Duration = Duration::from_secs(20);
const HOW: &str = "run `cargo xtask provider`, which builds it and says what to set";

/// libfabric and the provider.
pub(super) fn lines() -> [Line; 2] {
    let (libfabric, usable) = libfabric();
    let path = std::env::var_os("FI_PROVIDER_PATH").filter(|path| !path.is_empty());
    let line = |state, found: String, remedy: &str| {
        Line::new("provider for libfabric", None, state, found, remedy)
    };
    let provider = match path.as_deref().map(library) {
        None => line(State::Note, "FI_PROVIDER_PATH is not set".to_owned(), HOW),
        // The directory may be that of another provider.
        Some(Err(Missing { found, remedy })) if is_wanted() => line(State::Bad, found, remedy),
        Some(Err(Missing { found, remedy })) => line(State::Note, found, remedy),
        Some(Ok(library)) => match (load(&library), usable) {
            (Err(reason), _) => line(State::Bad, reason, "build it on this machine"),
            (Ok(()), false) => line(State::Note, format!("{} loads", library.display()), ""),
            (Ok(()), true) => match offered() {
                Ok(()) => line(State::Good, library.display().to_string(), ""),
                Err(reason) => line(
                    State::Bad,
                    format!(
                        "{} loads, and libfabric doesn't offer it: {reason}",
                        library.display()
                    ),
                    "look at FI_PROVIDER, FI_EFARS_DEVICE, and the output with FI_LOG_LEVEL=info",
                ),
            },
        },
    };
    [libfabric, provider]
}

/// The release of libfabric, and whether the provider can be tried with it.
fn libfabric() -> (Line, bool) {
    let line =
        |state, found: String, remedy: &str| Line::new("libfabric", None, state, found, remedy);
    let needed = "1.17 or newer is needed";
    let Ok(output) = run(Command::new("fi_info").arg("--version")) else {
        let remedy = "apt install libfabric-bin, to see what libfabric offers";
        return (line(State::Note, "no fi_info".to_owned(), remedy), false);
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match release(&text) {
        Some((name, numbers)) if numbers >= FIRST_RELEASE => (line(State::Good, name, ""), true),
        Some((name, _)) => (line(State::Note, format!("{name} is too old"), needed), false),
        None => (line(State::Note, "fi_info names no release".to_owned(), needed), false),
    }
}

/// The release in the output of `fi_info --version`.
fn release(text: &str) -> Option<(String, (u32, u32))> {
    let name = text.lines().find_map(|line| line.strip_prefix("libfabric: "))?.trim();
    let mut numbers = name.split('.').map(|number| {
        let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
        number[..digits].parse::<u32>().ok()
    });
    Some((name.to_owned(), (numbers.next()??, numbers.next()??)))
}

/// Why the library isn't where libfabric looks for it.
#[derive(Debug, PartialEq, Eq)]
struct Missing {
    found: String,
    remedy: &'static str,
}

/// The library, in the first directory that has it. From 1.18 on a file may be named, with `@` before it.
fn library(path: &OsStr) -> Result<PathBuf, Missing> {
    let mut why = Vec::new();
    let mut remedy = HOW;
    for place in std::env::split_paths(path) {
        let text = place.to_string_lossy().into_owned();
        if let Some(file) = text.strip_prefix('@').map(PathBuf::from).filter(|file| file.is_file())
        {
            return Ok(file);
        }
        let directory = PathBuf::from(text.strip_prefix('+').unwrap_or(&text));
        let library = directory.join(LIBRARY);
        if library.is_file() {
            return Ok(library);
        }
        let shown = directory.display();
        why.push(match directory {
            _ if !directory.is_dir() => format!("there is no directory {shown}"),
            _ if directory.join(AS_BUILT).is_file() => {
                remedy = "name it libefars-fi.so: libfabric takes only names that end with -fi.so";
                format!("{shown} has {AS_BUILT}")
            }
            _ => format!("there is no {LIBRARY} in {shown}"),
        });
    }
    Err(Missing { found: format!("FI_PROVIDER_PATH: {}", why.join(", ")), remedy })
}

/// Loads the library in a child process: this program, which preloads it and ends.
fn load(library: &Path) -> Result<(), String> {
    let absolute = std::path::absolute(library).map_err(|error| error.to_string())?;
    let separates = |c: &u8| matches!(c, b' ' | b':');
    if absolute.as_os_str().as_encoded_bytes().iter().any(separates) {
        return Err(format!("{}: a space or colon in the path hides it", absolute.display()));
    }
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program);
    child.arg("--version").env("LD_PRELOAD", &absolute).env("LD_BIND_NOW", "1");
    let output = run(&mut child)?;
    match loader_reason(&String::from_utf8_lossy(&output.stderr)) {
        Some(reason) => Err(reason),
        None if output.status.success() => Ok(()),
        None => Err(format!("a program that loads it ends with {}", output.status)),
    }
}

/// What the dynamic loader says about a library that can't be loaded.
fn loader_reason(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let reason = line.strip_prefix("ERROR: ld.so: ").unwrap_or(line);
    Some(reason.replace(" from LD_PRELOAD cannot be preloaded", "").replace(": ignored.", ""))
}

/// What libfabric calls the provider.
fn name() -> &'static str {
    let in_place = std::env::var_os("EFARS_NAME").is_some_and(|name| name == "efa");
    if in_place { "efa" } else { "efars" }
}

/// Whether programs of libfabric are to use it: `FI_PROVIDER` lists it, and doesn't exclude what it lists.
fn is_wanted() -> bool {
    let list = std::env::var("FI_PROVIDER").unwrap_or_default();
    !list.starts_with('^') && list.split([',', ';']).any(|listed| listed == name())
}

/// Whether libfabric offers the provider.
fn offered() -> Result<(), String> {
    let output = run(Command::new("fi_info").args(["-p", name()]))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    Err(last.map_or_else(|| format!("fi_info ends with {}", output.status), str::to_owned))
}

/// Runs a child process to its end, or to the deadline.
fn run(command: &mut Command) -> Result<Output, String> {
    let name = OsString::from(command.get_program()).to_string_lossy().into_owned();
    let failed = |error: std::io::Error| format!("{name}: {error}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let readers = read_aside(stdout).and_then(|stdout| Ok([stdout, read_aside(stderr)?]));
    let end = |child: &mut Child| {
        let _ = child.kill();
        let _ = child.wait();
    };
    let readers = readers.map_err(|error| {
        end(&mut child);
        format!("cannot start a thread: {error}")
    })?;
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if begin.elapsed() > DEADLINE => {
                end(&mut child);
                return Err(format!("{name} did not end within {} s", DEADLINE.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let [stdout, stderr] = readers.map(|reader| reader.join().unwrap_or_default());
    Ok(Output { status, stdout, stderr })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn release_is_that_of_the_library() {
        let text = "fi_info: 1.17.0\nlibfabric: 1.17.0\nlibfabric api: 1.17\n";
        assert_eq!(release(text), Some(("1.17.0".to_owned(), (1, 17))));
        assert_eq!(release("libfabric: 2.6.0rc1"), Some(("2.6.0rc1".to_owned(), (2, 6))));
        assert_eq!(release("libfabric: 2.6rc1").unwrap().1, (2, 6));
        for text in ["", "libfabric: ", "libfabric: x.y", "libfabric: 2"] {
            assert_eq!(release(text), None, "{text:?}");
        }
        assert!((1, 16) < FIRST_RELEASE && FIRST_RELEASE < (2, 0));
    }

    #[test]
    fn reason_of_the_loader_is_shown_without_what_we_did() {
        let text = "ERROR: ld.so: object '/x/libefars-fi.so' from LD_PRELOAD cannot be preloaded \
                    (file too short): ignored.\nefa 0.1.0\n";
        let reason = "object '/x/libefars-fi.so' (file too short)";
        assert_eq!(loader_reason(text).as_deref(), Some(reason));
        let text =
            "efa: error while loading shared libraries: libx.so.1: cannot open shared object";
        assert_eq!(loader_reason(text).as_deref(), Some(text));
        assert_eq!(loader_reason(""), None);
    }
}

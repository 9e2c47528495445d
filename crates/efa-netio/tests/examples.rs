//! Each example prints what its first comment says.
//!
//! The examples are run as processes, so they must have been built: `cargo test -p efa-netio` does so, and so does
//! `cargo build -p efa-netio --examples`.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Beyond what the examples allow themselves.
const DEADLINE: Duration = Duration::from_secs(150);

/// The program of an example, in the directory beside that of this test's program.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(path.exists(), "{}: cargo build -p efa-netio --examples", path.display());
    path
}

/// The lines of the first session in an example's first comment: the command, and what it prints.
fn session(name: &str) -> Vec<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    let source = std::fs::read_to_string(source.with_extension("rs")).unwrap();
    let comment = source.lines().map_while(|line| line.strip_prefix("//!"));
    let comment = comment.map(|line| line.strip_prefix(' ').unwrap_or(line));
    let session = comment.skip_while(|line| *line != "```text").skip(1);
    session.take_while(|line| *line != "```").map(str::to_owned).collect()
}

/// Killed and reaped when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
fn check(name: &str) {
    let [command, expected @ ..] = &session(name)[..] else { panic!("{name} shows no session") };
    assert_eq!(*command, format!("$ cargo run -p efa-netio --example {name}"));
    let mut command = Command::new(program(name));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    // What the examples print fits into the pipes.
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = running.0.try_wait().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < DEADLINE, "{name} is not done after {DEADLINE:?}");
        thread::sleep(Duration::from_millis(5));
    };
    let (mut output, mut errors) = (String::new(), String::new());
    running.0.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    running.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(status.success(), "{name}: {status}, {errors}");
    assert_eq!(output.lines().collect::<Vec<_>>(), expected, "{name}: {errors}");
}

#[test]
fn netio_hello_prints_what_its_comment_shows() {
    check("netio_hello");
}

// conformance: D74
#[test]
fn ring_prints_what_its_comment_shows() {
    check("ring");
}

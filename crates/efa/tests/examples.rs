//! Each example prints what its first comment says.
//!
//! The examples are run as processes, so they must have been built: `cargo test -p efa` does so, and so
//! does `cargo build -p efa --examples`.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Beyond what the examples allow themselves.
const DEADLINE: Duration = Duration::from_secs(150);

/// The program of an example, in the directory beside that of this test's program.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not built: cargo build -p efa --examples", path.display());
    path
}

/// The lines of the session in an example's first comment: commands, which end in the example's name and
/// arguments, and outputs.
fn session(name: &str) -> Vec<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    let source = std::fs::read_to_string(source.with_extension("rs")).unwrap();
    let comment = source.lines().map_while(|line| line.strip_prefix("//!"));
    let comment = comment.map(|line| line.strip_prefix(' ').unwrap_or(line));
    let session = comment.skip_while(|line| *line != "```text").skip(1);
    session.take_while(|line| *line != "```").map(str::to_owned).collect()
}

/// Replaces addresses of endpoints, which differ from run to run, by `ADDRESS`.
fn without_addresses(line: &str) -> String {
    let is_address = |word: &&str| word.parse::<efa::Address>().is_ok();
    let words = line.split(' ');
    words.map(|word| if is_address(&word) { "ADDRESS" } else { word }).collect::<Vec<_>>().join(" ")
}

/// A running example, killed and reaped when dropped.
struct Running {
    child: Child,
    lines: Receiver<String>,
    until: Instant,
}

impl Running {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program(name));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (to, lines) = channel();
        thread::spawn(move || output.lines().try_for_each(|line| to.send(line.unwrap())));
        Self { child, lines, until: Instant::now() + DEADLINE }
    }

    /// The next line that it prints; `None` at the end.
    #[track_caller]
    fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no line and no end within {DEADLINE:?}"),
        }
    }

    /// Waits for its success, and returns what else it prints.
    #[track_caller]
    fn finish(mut self) -> Vec<String> {
        let lines = std::iter::from_fn(|| self.line()).collect();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < self.until, "not done after {DEADLINE:?}");
            thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "{status}");
        lines
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn check(name: &str) {
    check_with(name, "");
}

/// Runs an example whose command names `features`.
fn check_with(name: &str, features: &str) {
    let [command, expected @ ..] = &session(name)[..] else { panic!("{name} shows no session") };
    assert_eq!(*command, format!("$ cargo run -p efa {features}--example {name}"));
    assert_eq!(Running::start(name, &[]).finish(), expected, "{name}");
}

#[test]
fn hello_prints_what_its_comment_shows() {
    check("hello");
}

#[test]
fn two_processes_prints_what_its_comment_shows() {
    check("two_processes");
}

#[test]
fn multi_receive_prints_what_its_comment_shows() {
    check("multi_receive");
}

#[test]
fn counters_prints_what_its_comment_shows() {
    check("counters");
}

#[test]
fn errors_prints_what_its_comment_shows() {
    check("errors");
}

#[test]
fn in_place_prints_what_its_comment_shows() {
    check("in_place");
}

#[test]
fn remote_memory_prints_what_its_comment_shows() {
    check("remote_memory");
}

#[test]
fn scalable_prints_what_its_comment_shows() {
    check("scalable");
}

// conformance: C134
#[test]
fn event_loop_prints_what_its_comment_shows() {
    check("event_loop");
}

#[cfg(feature = "tokio")]
#[test]
fn tokio_pingpong_prints_what_its_comment_shows() {
    check_with("tokio_pingpong", "--features tokio ");
}

#[cfg(feature = "tokio")]
#[test]
fn tokio_connections_prints_what_its_comment_shows() {
    check_with("tokio_connections", "--features tokio ");
}

/// The two programs of `two_hosts`, both with the address of this host.
#[test]
fn two_hosts_print_what_their_comment_shows() {
    let session = session("two_hosts");
    let [first, second] = session.split(|line| line.is_empty()).collect::<Vec<_>>()[..] else {
        panic!("two hosts have two sessions: {session:#?}");
    };
    assert_eq!(first[0], "host-a$ cargo run -p efa --example two_hosts 10.0.0.1");
    assert!(
        second[0].starts_with(
            "host-b$ cargo run -p efa --example two_hosts 10.0.0.2 [::ffff:10.0.0.1]:"
        )
    );

    let a = Running::start("two_hosts", &["127.0.0.1"]);
    let line = a.line().unwrap();
    let b = Running::start("two_hosts", &["127.0.0.1", line.strip_prefix("address: ").unwrap()]);
    let outputs = [[vec![line], a.finish()].concat(), b.finish()];
    for (output, shown) in outputs.iter().zip([first, second]) {
        let shown: Vec<_> = shown[1..].iter().map(|line| without_addresses(line)).collect();
        assert_eq!(output.iter().map(|line| without_addresses(line)).collect::<Vec<_>>(), shown);
    }
}

/// The two programs of `msg_pingpong`; the second is given the address that the first prints.
// conformance: C136
#[test]
fn msg_pingpong_prints_what_its_comment_shows() {
    let session = session("msg_pingpong");
    let [server, client] = session.split(|line| line.is_empty()).collect::<Vec<_>>()[..] else {
        panic!("two programs have two sessions: {session:#?}");
    };
    let first = Running::start("msg_pingpong", &[]);
    let line = first.line().unwrap();
    let address = line.strip_prefix("listening at ").unwrap();
    let second = Running::start("msg_pingpong", &[address]);
    assert_eq!(first.finish(), server[2..]);
    assert_eq!(second.finish(), client[1..]);
}

//! The programs of `cargo xtask bench netio`, in short runs.

#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A run takes a fraction of a second.
const DEADLINE: Duration = Duration::from_secs(60);

/// A process, killed and reaped when dropped.
struct Process {
    child: Child,
    output: ChildStdout,
}

impl Process {
    fn start(words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_efa-bench-netio"));
        let mut child =
            command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        Self { child, output }
    }

    /// The number behind `name` in the line that it says.
    fn finish(mut self, name: &str) -> u64 {
        let begun = Instant::now();
        // What it says fits into the pipe.
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
            assert!(begun.elapsed() < DEADLINE, "a process doesn't end");
        };
        assert!(status.success(), "{status}");
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        let mut words = said.split_whitespace();
        words.find(|word| *word == name).unwrap_or_else(|| panic!("no {name} in {said:?}"));
        words.next().unwrap().parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two subscribers get what a publisher publishes in 50 ms.
fn all_arrive(by: &[&str], size: usize, how: &str) {
    let place = tempfile::Builder::new().prefix("efa-").tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let (place, size) = (place.path().to_str().unwrap(), size.to_string());
    let start = |role| {
        let words = [role, place, &port, &size, "2", "50", "0", how];
        Process::start(&[by, &words].concat())
    };
    let subscribers = [(); 2].map(|()| start("subscribe"));
    let published = start("publish").finish("published");
    assert!(published > 0);
    for subscriber in subscribers {
        assert_eq!(subscriber.finish("received"), published, "of {size} bytes");
    }
}

#[test]
fn publications_of_netio_all_arrive_at_both_subscribers() {
    for size in [64, 1 << 16] {
        all_arrive(&[], size, "look");
    }
    all_arrive(&[], 1 << 20, "read");
}

#[test]
fn messages_of_efa_alone_all_arrive_at_both_subscribers() {
    for size in [64, 1 << 16] {
        all_arrive(&["bare"], size, "look");
    }
}

//! The program of `cargo xtask bench peers`, in short runs: every point gets a line with a time.

#![allow(clippy::unwrap_used)]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const POINTS: [&str; 9] = [
    "latency:0:1:one",
    "latency:8:1:one",
    "latency:1048576:1:one",
    "stream:8:1:one",
    "stream:4096:64:one",
    "stream:4096:64:each",
    "latency:32768:1:one",
    "stream:32768:16:each",
    "stream:1048576:16:each",
];
const DEADLINE: Duration = Duration::from_secs(60);

/// A process, killed and reaped when dropped.
struct Process(Child);

impl Process {
    fn finish(mut self) -> String {
        let begun = Instant::now();
        // What it says fits into the pipe.
        let status = loop {
            match self.0.try_wait().unwrap() {
                Some(status) => break status,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
            assert!(begun.elapsed() < DEADLINE, "a process doesn't end");
        };
        assert!(status.success(), "{status}");
        std::io::read_to_string(self.0.stdout.take().unwrap()).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(what: &str, role: &str, directory: &str) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_efa-bench-peers"));
    command.args([what, role, directory, "50", "1"]).args(POINTS);
    Process(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
}

/// What both sides say.
fn pair(what: &str) -> [String; 2] {
    let place = tempfile::Builder::new().prefix("peers-").tempdir().unwrap();
    let directory = place.path().to_str().unwrap();
    let server = start(what, "server", directory);
    let client = start(what, "client", directory);
    [client.finish(), server.finish()]
}

fn every_point_has_a_time(said: &str, points: &[&str]) {
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), points.len(), "{said}");
    for (line, point) in lines.iter().zip(points) {
        let (words, seconds) = line.rsplit_once(' ').unwrap();
        assert_eq!(words, point.replace(':', " "));
        let seconds: f64 = seconds.parse().unwrap();
        assert!((0.0..10.0).contains(&seconds), "{line}");
    }
}

#[test]
fn messages_of_efa_are_timed_and_the_way_of_their_bytes_is_counted() {
    let [client, server] = pair("ours");
    every_point_has_a_time(&client, &POINTS);
    // Messages without bytes have no way.
    let moved: Vec<&str> = server.lines().collect();
    assert_eq!(moved.len(), POINTS.len() - 1, "{server}");
    for (line, point) in moved.iter().zip(&POINTS[1..]) {
        let numbers = line.strip_prefix(&format!("moved {} ", point.replace(':', " "))).unwrap();
        let shares: Vec<f64> = numbers.split(' ').map(|share| share.parse().unwrap()).collect();
        let [packets, placed, read] = shares[..] else { panic!("{line}") };
        assert!(packets + read >= 1.0 && placed <= packets, "{line}");
        // 32 KiB are several packets, or are read: that depends on how fast the kernel copies here.
        let is_copied_at_most_twice = !point.contains(":8:");
        assert_eq!(placed + read > 0.99, is_copied_at_most_twice, "{line}");
    }
}

#[test]
fn tcp_and_copies_of_both_kinds_are_timed() {
    for what in ["tcp", "memcpy", "readv"] {
        every_point_has_a_time(&pair(what)[0], &POINTS);
    }
}

#[test]
fn ring_is_timed_with_messages_that_fit_a_line() {
    every_point_has_a_time(&pair("ring")[0], &[POINTS[0], POINTS[1], POINTS[3]]);
}

#[test]
fn engine_alone_is_timed_with_messages_that_fit_a_packet_and_have_a_buffer_each() {
    let can = |point: &&str| {
        let is_short = !(point.contains("1048576") || point.contains("32768"));
        is_short && (point.ends_with("each") || point.contains(":1:"))
    };
    let points: Vec<&str> = POINTS.into_iter().filter(can).collect();
    every_point_has_a_time(&pair("engine")[0], &points);
}

#[test]
fn bare_device_is_timed_with_messages_that_fit_a_packet() {
    let is_short = |point: &&str| !(point.contains("1048576") || point.contains("32768"));
    let short: Vec<&str> = POINTS.into_iter().filter(is_short).collect();
    every_point_has_a_time(&pair("device")[0], &short);
}

#[test]
fn unknown_points_are_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_efa-bench-peers"));
    command.args(["ring", "client", ".", "5", "1", "stream:8:65:one"]);
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the window in `stream:8:65:one` is not 1 to 64"), "{said}");
}

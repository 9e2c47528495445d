//! Measures the latency of small messages on the software device alone: two processes make the verbs calls
//! that libfabric's EFA provider makes, without libfabric.
//!
//! ```text
//!   latency N CPU ── starts, on processor CPU ──► latency answer N
//!        │ ◄──── queue pair numbers, through pipes ───► │
//!        └── N times: post_send ──► start_poll … post_recv, post_send ──► …
//! ```
//!
//! `cargo run --release -p efa-softverbs --example latency -- EXCHANGES PROCESSOR` prints the mean one-way time in
//! microseconds, with three decimals, and nothing else. `cargo xtask bench soft` runs it.

#![allow(clippy::unwrap_used, reason = "uses the helpers of the tests")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::verbs::{Completion, Endpoint, Memory, QpOptions, sge, verbs};
use efa_soft::abi::{IBV_ACCESS_LOCAL_WRITE, IBV_WC_RECV, IBV_WC_SUCCESS};

/// Length of the provider's packet for a message of 8 B, in bytes.
const PACKET: usize = 34;
/// Receives posted in advance.
const RECEIVES: u32 = 64;
/// Exchanges before the measurement.
const WARM_UP: usize = 1000;
/// A process that gets no answer for so long gives up.
const TIMEOUT: Duration = Duration::from_secs(10);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments.as_slice() {
        ["answer", count] => answer(count.parse().unwrap()),
        [count, processor] => measure(count.parse().unwrap(), processor),
        _ => panic!("usage: latency EXCHANGES PROCESSOR"),
    }
}

/// An endpoint with its memory.
struct Side {
    end: Endpoint,
    memory: Memory,
}

impl Side {
    fn new() -> Self {
        let end = Endpoint::new(QpOptions {
            sends: RECEIVES,
            receives: RECEIVES,
            ..QpOptions::default()
        });
        Self { end, memory: Memory::of(&[0; 2 * PACKET]) }
    }

    /// Exchanges `count` messages with `qpn`; returns the time that they elapsed.
    fn run(&self, qpn: u32, count: usize, sends_first: bool) -> Duration {
        let region = self.end.register(&self.memory, IBV_ACCESS_LOCAL_WRITE);
        let (send, receive) = (sge(region, 0, PACKET), sge(region, PACKET, PACKET));
        let to = (self.end.handle(self.end.gid()), qpn, self.end.qkey);
        let post_receive = || assert_eq!(self.end.post_receive(1, receive), 0);
        let post_send = || assert_eq!(self.end.post_send(2, to, &[send], 0), 0);
        (0..RECEIVES).for_each(|_| post_receive());
        let mut start = Instant::now();
        for exchange in 0..WARM_UP + count {
            if exchange == WARM_UP {
                start = Instant::now();
            }
            if sends_first {
                post_send();
            }
            self.wait_for_message();
            post_receive();
            if !sends_first {
                post_send();
            }
        }
        let elapsed = start.elapsed();
        // SAFETY: both objects were created here and are not used afterwards.
        unsafe {
            assert_eq!((verbs().ibv_dereg_mr)(region), 0);
            assert_eq!((verbs().ibv_destroy_ah)(to.0), 0);
        }
        elapsed
    }

    /// Polls until a receive completes.
    fn wait_for_message(&self) {
        let mut last = None;
        loop {
            let Some(Completion { status, opcode, .. }) = self.poll(&mut last) else { continue };
            assert_eq!(status, IBV_WC_SUCCESS);
            if opcode == IBV_WC_RECV {
                return;
            }
        }
    }

    fn poll(&self, last: &mut Option<Instant>) -> Option<Completion> {
        // Reads the clock rarely, as that is not what is measured.
        for _ in 0..10_000 {
            if let Some(seen) = self.end.poll() {
                return Some(seen);
            }
        }
        assert!(last.get_or_insert_with(Instant::now).elapsed() < TIMEOUT, "no answer");
        None
    }
}

/// The other process, killed when dropped.
struct Responder(Child);

impl Drop for Responder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure(count: usize, processor: &str) {
    let mut command = Command::new("taskset");
    command.args(["-c", processor]).arg(std::env::current_exe().unwrap());
    command.args(["answer", &count.to_string()]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut responder = Responder(child);
    let side = Side::new();
    writeln!(responder.0.stdin.as_mut().unwrap(), "{}", side.end.number()).unwrap();
    let mut output = BufReader::new(responder.0.stdout.take().unwrap());
    let elapsed = side.run(number(&mut output), count, true);
    println!("{:.3}", elapsed.as_secs_f64() * 1e6 / count as f64 / 2.0);
    // It exits at the end of its input.
    drop(responder.0.stdin.take());
    assert!(responder.0.wait().unwrap().success());
}

fn answer(count: usize) {
    let side = Side::new();
    println!("{}", side.end.number());
    let mut input = stdin().lock();
    let qpn = number(&mut input);
    side.run(qpn, count, false);
    // The last message is delivered only while this process exists.
    let _ = input.read_line(&mut String::new());
}

fn number(from: &mut impl BufRead) -> u32 {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line.trim().parse().unwrap()
}

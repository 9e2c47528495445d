//! How long a small message takes on the software device alone: two processes that call its verbs
//! as libfabric's EFA provider does, without libfabric.
//!
//! ```text
//!   latency N CPU ── starts, on that processor ──► latency answer N
//!        │ ◄──────────── numbers, by pipes ───────────► │
//!        └── N times: post_send ──► start_poll … post_recv, post_send ──► …
//! ```
//!
//! Prints the mean time one way in microseconds. `cargo xtask bench soft` runs it.

#![allow(clippy::unwrap_used, reason = "shares the helpers of the tests, and is one itself")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::verbs::{End, Memory, Seen, Wish, part, verbs};
use efa_soft::abi::{IBV_ACCESS_LOCAL_WRITE, IBV_WC_RECV, IBV_WC_SUCCESS};

/// Bytes of a packet: what the provider makes of a message of 8 B.
const PACKET: usize = 34;
/// Receives posted ahead.
const RECEIVES: u32 = 64;
/// Exchanges before the clock starts.
const WARM_UP: usize = 1000;
/// A process without an answer for so long gives up: its peer is gone.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments.as_slice() {
        ["answer", count] => answer(count.parse().unwrap()),
        [count, processor] => measure(count.parse().unwrap(), processor),
        _ => panic!("usage: latency EXCHANGES PROCESSOR"),
    }
}

/// An end with its memory, and who it talks to.
struct Wire {
    end: End,
    memory: Memory,
}

impl Wire {
    fn new() -> Self {
        let end = End::new(Wish { sends: RECEIVES, receives: RECEIVES, ..Wish::default() });
        Self { end, memory: Memory::of(&[0; 2 * PACKET]) }
    }

    /// Exchanges `count` messages with `qpn`; who begins gets the time that it took.
    fn run(&self, qpn: u32, count: usize, begins: bool) -> Duration {
        let region = self.end.register(&self.memory, IBV_ACCESS_LOCAL_WRITE);
        let (send, receive) = (part(region, 0, PACKET), part(region, PACKET, PACKET));
        let to = (self.end.handle(self.end.gid()), qpn, self.end.qkey);
        let post_receive = || assert_eq!(self.end.post_receive(1, receive), 0);
        let post_send = || assert_eq!(self.end.post_send(2, to, &[send], 0), 0);
        (0..RECEIVES).for_each(|_| post_receive());
        let mut started = Instant::now();
        for exchange in 0..WARM_UP + count {
            if exchange == WARM_UP {
                started = Instant::now();
            }
            if begins {
                post_send();
            }
            self.wait_for_message();
            post_receive();
            if !begins {
                post_send();
            }
        }
        let took = started.elapsed();
        // SAFETY: both are ours and not used afterwards.
        unsafe {
            assert_eq!((verbs().ibv_dereg_mr)(region), 0);
            assert_eq!((verbs().ibv_destroy_ah)(to.0), 0);
        }
        took
    }

    /// Takes completions until one is of a receive.
    fn wait_for_message(&self) {
        let mut last = None;
        loop {
            let Some(Seen { status, opcode, .. }) = self.poll(&mut last) else { continue };
            assert_eq!(status, IBV_WC_SUCCESS);
            if opcode == IBV_WC_RECV {
                return;
            }
        }
    }

    fn poll(&self, last: &mut Option<Instant>) -> Option<Seen> {
        // The clock costs little, but is not what is measured.
        for _ in 0..10_000 {
            if let Some(seen) = self.end.poll() {
                return Some(seen);
            }
        }
        assert!(last.get_or_insert_with(Instant::now).elapsed() < PATIENCE, "no answer");
        None
    }
}

/// The other process, killed if it is still there at the end.
struct Answerer(Child);

impl Drop for Answerer {
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
    let mut answerer = Answerer(child);
    let wire = Wire::new();
    writeln!(answerer.0.stdin.as_mut().unwrap(), "{}", wire.end.number()).unwrap();
    let mut said = BufReader::new(answerer.0.stdout.take().unwrap());
    let took = wire.run(number(&mut said), count, true);
    println!("{:.3}", took.as_secs_f64() * 1e6 / count as f64 / 2.0);
    // It ends when it has nothing more to hear.
    drop(answerer.0.stdin.take());
    assert!(answerer.0.wait().unwrap().success());
}

fn answer(count: usize) {
    let wire = Wire::new();
    println!("{}", wire.end.number());
    let mut input = stdin().lock();
    let qpn = number(&mut input);
    wire.run(qpn, count, false);
    // The device goes on delivering the last message until the peer has it.
    let _ = input.read_line(&mut String::new());
}

fn number(from: &mut impl BufRead) -> u32 {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line.trim().parse().unwrap()
}

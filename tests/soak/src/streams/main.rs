//! Streams of messages of all sizes between processes of this host, some of which are stopped and killed:
//! `cargo xtask soak --streams`.
//!
//! ```text
//!   conductor ── starts, stops, goes on with, kills, replaces ──► 3 senders, 1 receiver
//!
//!   senders ══ tagged messages of 0 B to 2 MiB, 16 under way ══► receiver
//!      │                                                           │ every byte, and the order of each stream
//!      └─ "sent STREAM N" ─► conductor: are the numbers the same? ◄┘ "got STREAM N"
//! ```
//!
//! A stream is what one sender sends to one receiver. It ends with either; then its sender begins another to the
//! receiver that is there. All rounds use one directory, so what a killed process leaves meets the processes after it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a side that cannot continue fails")]

#[path = "../minutes.rs"]
mod minutes;
mod process;
mod sides;

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use fastrand::Rng;

use crate::process::Process;

/// Run streams of messages between processes of this host that are stopped and killed at random. Every byte, the order
/// and the number of messages are checked
#[derive(Parser)]
#[command(name = "efa-soak-streams", bin_name = "cargo xtask soak --streams", version)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Seed of the first round; later rounds use the seeds that follow
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How long to run; a round takes about two seconds
    #[arg(long, default_value = "2", value_parser = minutes::parse)]
    minutes: Duration,
    #[command(subcommand)]
    side: Option<Side>,
}

/// The conductor starts these.
#[derive(Subcommand)]
enum Side {
    #[command(hide = true)]
    Send(sides::Place),
    #[command(hide = true)]
    Receive(sides::Place),
}

const SENDERS: usize = 3;
/// Things that happen to processes in a round.
const EVENTS: usize = 6;
/// From one to the next.
const BETWEEN: Duration = Duration::from_millis(250);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.side {
        Some(Side::Send(place)) => sides::send(&place),
        Some(Side::Receive(place)) => sides::receive(&place),
        None => conduct(arguments.seed, arguments.minutes),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn conduct(first: u64, time: Duration) -> Result<(), String> {
    let directory = tempfile::Builder::new().prefix("efa-soak-").tempdir();
    let directory = directory.map_err(|error| format!("no directory: {error}"))?;
    let (end, mut totals, mut seed) = (Instant::now() + time, Totals::default(), first);
    loop {
        let round = Round::new(seed, directory.path());
        round.and_then(|round| round.run(&mut totals)).map_err(|reason| {
            format!("{reason}\nsoak: round {seed} fails: --seed {seed} --minutes 0")
        })?;
        seed += 1;
        if Instant::now() >= end {
            break;
        }
    }
    println!("soak: {} rounds passed; {totals:?}", seed - first);
    Ok(())
}

#[derive(Debug, Default)]
struct Totals {
    messages: u64,
    streams: usize,
    stopped: u32,
    killed: u32,
}

/// What processes said that were asked to end.
type Said = HashMap<u64, u64>;

struct Round {
    random: Rng,
    place: sides::Place,
    receiver: Process,
    senders: Vec<Process>,
}

impl Round {
    fn new(seed: u64, directory: &std::path::Path) -> Result<Self, String> {
        let place = sides::Place { directory: directory.to_owned(), seed };
        // Senders wait for the receiver of this round.
        let _ = std::fs::remove_file(place.address());
        let receiver = Process::start("receive", &place)?;
        let senders =
            (0..SENDERS).map(|_| Process::start("send", &place)).collect::<Result<_, _>>()?;
        Ok(Self { random: Rng::with_seed(seed), place, receiver, senders })
    }

    fn run(mut self, totals: &mut Totals) -> Result<(), String> {
        for _ in 0..EVENTS {
            std::thread::sleep(BETWEEN);
            // A killed receiver ends all streams, so that is rare.
            match self.random.u32(..8) {
                0..3 => {
                    totals.stopped += 1;
                    let pause = Duration::from_millis(self.random.u64(1..200));
                    let which = self.random.usize(..=SENDERS);
                    self.senders.get(which).unwrap_or(&self.receiver).pause(pause)?;
                }
                3..6 => {
                    totals.killed += 1;
                    let which = self.random.usize(..SENDERS);
                    self.senders[which] = Process::start("send", &self.place)?;
                }
                6 => {
                    totals.killed += 1;
                    self.receiver = Process::start("receive", &self.place)?;
                }
                _ => {}
            }
            self.receiver.check()?;
            self.senders.iter_mut().try_for_each(Process::check)?;
        }
        let mut sent = Said::new();
        self.senders.iter().for_each(Process::ask_to_end);
        for sender in self.senders {
            sent.extend(sender.end("sent")?);
        }
        self.receiver.ask_to_end();
        let got = self.receiver.end("got")?;
        for (stream, count) in &sent {
            let there = got.get(stream).copied().unwrap_or(0);
            if there != *count {
                return Err(format!("of {count} messages of stream {stream:#x} {there} arrived"));
            }
        }
        totals.messages += got.values().sum::<u64>();
        totals.streams += got.len();
        Ok(())
    }
}

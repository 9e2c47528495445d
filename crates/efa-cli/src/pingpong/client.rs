//! The client's side of a run: it sends first, and measures.
//!
//! ```text
//!   latency                           bandwidth, window 3
//!     │ ── message ──► │                │ ── ── ── ──► │
//!     │ ◄── message ── │                │ ── ──        │   a new one when one has completed
//!     ⋮                ⋮                ⋮              ⋮
//!                                       │ ◄── empty ── │   all have been received
//! ```
//!
//! For latency, bytes are written and checked outside of the measured time. For bandwidth they are part of it.

use std::time::Instant;

use efa::Completion;
use indicatif::ProgressBar;

use super::plan::{Direction, Mode, Step};
use super::report::{Row, readable_size};
use super::session::{RunError, Session, Turn, mapped_buffer};

/// Runs the whole plan; adds a row for each size that is finished.
pub(crate) fn run(
    session: &mut Session<'_>,
    progress: &ProgressBar,
    rows: &mut Vec<Row>,
) -> Result<(), RunError> {
    for (index, step) in (0..).zip(session.plan.steps.clone()) {
        progress.set_message(readable_size(step.size));
        rows.push(match session.plan.mode {
            Mode::Latency => round_trips(session, index, step)?,
            Mode::Bandwidth => stream(session, index, step)?,
        });
        progress.inc(1);
        tracing::info!(size = step.size, "a size is finished");
    }
    Ok(())
}

fn round_trips(session: &mut Session<'_>, step: u64, sizes: Step) -> Result<Row, RunError> {
    let Step { size, iterations, .. } = sizes;
    let warmup = session.plan.warmup;
    let mut subprotocols = Subprotocols::default();
    let mut times = Vec::new();
    let (mut ping, mut pong) = (mapped_buffer(size), mapped_buffer(size));
    for number in 0..warmup + iterations {
        let there = Turn { step, number, size, direction: Direction::ToServer };
        let back = Turn { direction: Direction::ToClient, ..there };
        session.fill(there, &mut ping);
        session.post(back, pong)?;
        let begin = Instant::now();
        session.send(there, ping)?;
        let received = session.received(back)?;
        let took = begin.elapsed();
        let sent = session.sent(there)?;
        if number >= warmup {
            times.push(took);
            subprotocols.add(&sent);
        }
        ping = sent.buffer.into_vec();
        pong = session.verify(back, received)?;
    }
    Ok(Row::of_round_trips(sizes, times, subprotocols.0))
}

fn stream(session: &mut Session<'_>, step: u64, sizes: Step) -> Result<Row, RunError> {
    let warmup = session.plan.warmup;
    let mut stream = Stream::new(step, sizes);
    if warmup > 0 {
        stream.send(session, 0..warmup)?;
    }
    stream.subprotocols = Subprotocols::default();
    let begin = Instant::now();
    stream.send(session, warmup..warmup + sizes.iterations)?;
    Ok(Row::of_stream(sizes, begin.elapsed(), stream.subprotocols.0))
}

/// Messages of one size, several at a time.
struct Stream {
    step: u64,
    size: u64,
    /// Buffers not in use.
    free: Vec<Vec<u8>>,
    subprotocols: Subprotocols,
}

impl Stream {
    fn new(step: u64, Step { size, window, .. }: Step) -> Self {
        let free = (0..window).map(|_| mapped_buffer(size)).collect();
        Self { step, size, free, subprotocols: Subprotocols::default() }
    }

    /// Sends these messages, and waits until all are received.
    fn send(
        &mut self,
        session: &mut Session<'_>,
        numbers: std::ops::Range<u64>,
    ) -> Result<(), RunError> {
        let turn = |number| {
            let (step, size, direction) = (self.step, self.size, Direction::ToServer);
            Turn { step, number, size, direction }
        };
        let end = Turn { size: 0, direction: Direction::ToClient, ..turn(numbers.end) };
        session.post(end, Vec::new())?;
        let window = self.free.len();
        for number in numbers {
            let there = turn(number);
            let mut buffer = match self.free.pop() {
                Some(buffer) => buffer,
                None => self.subprotocols.take(session.sent(there)?),
            };
            session.fill(there, &mut buffer);
            session.send(there, buffer)?;
        }
        let received = session.received(end)?;
        session.verify(end, received)?;
        while self.free.len() < window {
            self.free.push(self.subprotocols.take(session.sent(end)?));
        }
        Ok(())
    }
}

/// The subprotocols used, each once.
#[derive(Default)]
pub(super) struct Subprotocols(Vec<&'static str>);

impl Subprotocols {
    pub(super) fn add(&mut self, sent: &Completion) {
        let name = sent.subprotocol.map_or("?", efa::Subprotocol::name);
        if !self.0.contains(&name) {
            self.0.push(name);
        }
    }

    pub(super) fn into_names(self) -> Vec<&'static str> {
        self.0
    }

    /// Adds the subprotocol of a message, and returns its buffer.
    fn take(&mut self, sent: Completion) -> Vec<u8> {
        self.add(&sent);
        sent.buffer.into_vec()
    }
}

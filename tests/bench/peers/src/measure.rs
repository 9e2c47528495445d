//! What is measured, the same for every program: points, the exchanges of a point, and their clock. `measure.h` is the
//! same in C.
//!
//! ```text
//!   client   tell(count) ──────────► server   posts receives
//!            hear() ◄─────────────── tell(1)
//!   clock ┌  latency: send, post ──► receive, send back, post, … count times
//!         │  stream:  at most `window` sends under way ──► as many receives posted, … count messages
//!         └                    ◄──── tell(1)
//!            … more exchanges, longer ones, until one takes the least time; tell(0)
//!                    ◄────────────── tell(1): the last bytes in all buffers are right
//! ```
//!
//! The first exchange of a point, of a window of messages, isn't measured. All buffers have been written before.

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail, ensure};

/// Most messages under way.
pub(crate) const MAX_WINDOW: usize = 64;
/// Least bytes between two buffers.
const LINE: usize = 64;
/// Every byte that is sent.
pub(crate) const SENT: u8 = 0x5a;
/// Every byte of a receive buffer before its message.
pub(crate) const UNSENT: u8 = 1;
const MOST_MESSAGES: u64 = 1 << 24;

/// A measurement: `latency:8:1:one`, `stream:4096:16:each`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// Whether messages follow each other, or go back and forth.
    pub(crate) is_stream: bool,
    /// Bytes of a message.
    pub(crate) size: usize,
    /// Messages under way.
    pub(crate) window: usize,
    /// Whether each message under way has a buffer of its own.
    pub(crate) has_each: bool,
}

impl Point {
    /// Where the buffer of a slot begins.
    pub(crate) fn offset(self, slot: usize) -> usize {
        if self.has_each { slot * self.stride() } else { 0 }
    }

    /// Bytes of the buffers of a side.
    pub(crate) fn bytes(self) -> usize {
        self.stride() * if self.has_each { self.window } else { 1 }
    }

    /// Number of buffers.
    fn buffers(self) -> usize {
        if self.has_each { self.window } else { 1 }
    }

    fn stride(self) -> usize {
        self.size.next_multiple_of(LINE).max(LINE)
    }

    /// The line that tells what was measured.
    fn report(self, message: f64) {
        println!("{self} {message:.6e}");
        // Whoever doesn't read it any more has ended the run.
        let _ = std::io::stdout().flush();
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_stream { "stream" } else { "latency" };
        let form = if self.has_each { "each" } else { "one" };
        write!(f, "{what} {} {} {form}", self.size, self.window)
    }
}

impl FromStr for Point {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split(':').collect();
        let [what @ ("latency" | "stream"), size, window, form @ ("one" | "each")] = *words else {
            bail!("`{text}` is no point like stream:4096:16:each");
        };
        let point = Self {
            is_stream: what == "stream",
            size: size.parse().with_context(|| format!("the size in `{text}`"))?,
            window: window.parse().with_context(|| format!("the window in `{text}`"))?,
            has_each: form == "each",
        };
        let least = if point.is_stream { MAX_WINDOW } else { 1 };
        ensure!((1..=least).contains(&point.window), "the window in `{text}` is not 1 to {least}");
        Ok(point)
    }
}

/// What a transport does for a measurement. A slot has one receive and one send at a time.
pub(crate) trait Transport {
    /// Starts a receive into the buffer of the slot.
    fn receive(&mut self, point: Point, slot: usize) -> Result<()>;
    /// Starts a send from the buffer of the slot.
    fn send(&mut self, point: Point, slot: usize) -> Result<()>;
    /// Waits for the receive of the slot.
    fn await_receive(&mut self, point: Point, slot: usize) -> Result<()>;
    /// Waits for the send of the slot.
    fn await_send(&mut self, slot: usize) -> Result<()>;
    /// Sends a number, outside of the messages that are measured.
    fn tell(&mut self, number: u64) -> Result<()>;
    /// Receives a number.
    fn hear(&mut self) -> Result<u64>;
    /// A byte of the receive buffer of the slot.
    fn received_byte(&self, point: Point, slot: usize, at: usize) -> u8;
    /// Overwrites the receive buffer of the slot with [`UNSENT`].
    fn forget(&mut self, point: Point, slot: usize);
    /// Before a point is measured.
    fn begin(&mut self, _point: Point) {}
    /// After a point was measured.
    fn end(&mut self, _point: Point) {}
}

fn exchange(transport: &mut impl Transport, point: Point, count: u64) -> Result<Duration> {
    let window = point.window as u64;
    transport.tell(count)?;
    transport.hear()?;
    let begin = Instant::now();
    if point.is_stream {
        for number in 0..count {
            let slot = (number % window) as usize;
            if number >= window {
                transport.await_send(slot)?;
            }
            transport.send(point, slot)?;
        }
        for number in count.saturating_sub(window)..count {
            transport.await_send((number % window) as usize)?;
        }
        transport.hear()?;
    } else {
        for _ in 0..count {
            // The receive is posted behind the send, as in `ucx_perftest`: the message is on its way meanwhile.
            transport.send(point, 0)?;
            transport.receive(point, 0)?;
            transport.await_receive(point, 0)?;
            transport.await_send(0)?;
        }
    }
    Ok(begin.elapsed())
}

/// Repeats with more messages until they take the least time; returns the seconds of one, and how many there were.
fn long_enough(
    first: u64,
    least: Duration,
    mut measure: impl FnMut(u64) -> Result<Duration>,
) -> Result<f64> {
    let mut count = first;
    loop {
        let time = measure(count)?;
        if time >= least || count >= MOST_MESSAGES {
            return Ok(time.as_secs_f64() / count as f64);
        }
        let grow = least.as_secs_f64() * 1.3 / time.as_secs_f64().max(1e-9);
        count = (count as f64 * grow.clamp(2.0, 16.0)) as u64;
    }
}

/// The side that measures.
pub(crate) fn client(
    transport: &mut impl Transport,
    points: &[Point],
    least: Duration,
) -> Result<()> {
    for &point in points {
        let first = point.window as u64;
        exchange(transport, point, first)?;
        transport.begin(point);
        let message = long_enough(first, least, |count| exchange(transport, point, count))?;
        transport.tell(0)?;
        transport.hear()?;
        point.report(if point.is_stream { message } else { message / 2.0 });
        transport.end(point);
    }
    Ok(())
}

/// The other side.
pub(crate) fn server(transport: &mut impl Transport, points: &[Point]) -> Result<()> {
    for &point in points {
        let window = point.window as u64;
        transport.begin(point);
        loop {
            let count = transport.hear()?;
            if count == 0 {
                break;
            }
            for slot in 0..window.min(count) {
                transport.receive(point, slot as usize)?;
            }
            transport.tell(1)?;
            for number in 0..count {
                let slot = (number % window) as usize;
                transport.await_receive(point, slot)?;
                if !point.is_stream {
                    transport.send(point, slot)?;
                }
                if number + window < count {
                    transport.receive(point, slot)?;
                }
                if !point.is_stream {
                    transport.await_send(slot)?;
                }
            }
            if point.is_stream {
                transport.tell(1)?;
            }
        }
        verify(transport, point)?;
        transport.end(point);
        transport.tell(1)?;
    }
    Ok(())
}

fn verify(transport: &mut impl Transport, point: Point) -> Result<()> {
    if point.size == 0 {
        return Ok(());
    }
    for slot in 0..point.buffers() {
        for at in [0, point.size / 2, point.size - 1] {
            let byte = transport.received_byte(point, slot, at);
            ensure!(byte == SENT, "{point}: byte {at} of buffer {slot} is {byte:#04x}");
        }
        transport.forget(point, slot);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_read_and_others_refused() {
        let point: Point = "stream:4096:16:each".parse().unwrap();
        assert_eq!(point.to_string(), "stream 4096 16 each");
        assert_eq!((point.bytes(), point.offset(2), point.buffers()), (16 * 4096, 8192, 16));
        let point: Point = "latency:0:1:one".parse().unwrap();
        assert_eq!((point.bytes(), point.offset(5), point.buffers()), (64, 0, 1));
        for text in [
            "",
            "latency:8:1",
            "latency:8:2:one",
            "stream:8:65:one",
            "stream:8:0:one",
            "stream:x:1:one",
            "stream:8:1:two",
            "other:8:1:one",
        ] {
            assert!(text.parse::<Point>().is_err(), "{text}");
        }
    }

    #[test]
    fn number_of_messages_grows_until_they_take_the_least_time() {
        let mut counts = Vec::new();
        let message = long_enough(16, Duration::from_millis(10), |count| {
            counts.push(count);
            Ok(Duration::from_micros(count))
        });
        assert!((message.unwrap() - 1e-6).abs() < 1e-12);
        assert_eq!(counts, [16, 256, 4096, 13_000]);
    }
}

//! Measures the cost of a match while DEPTH receives or messages wait, in this project's code. The C
//! programs beside it (see `measure.h`) do the same in other libraries.
//!
//! ```text
//!   efa-bench-match engine|matcher posted|unexpected DEPTH ROUNDS
//! ```
//!
//! * `engine`: an endpoint of `efa` sends messages to itself on the shm link: send, match, both
//!   completions, next receive, as the C programs do.
//! * `matcher`: `efa-match` alone: the match and the next receive. The other libraries cannot be measured
//!   like this.

#![forbid(unsafe_code)]

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use efa::{
    AddressVector, CompletionQueue, CompletionQueueOptions, Direction, Endpoint, EndpointOptions,
    Fabric, FiAddr, Message, Receive, ShmOptions,
};
use efa_match::{Arrived, Matcher, Pattern, Posted, Source};

const WINDOWS: usize = 8;
const PAYLOAD: &[u8] = b"payload\0";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [who, waiting, depth, rounds] = arguments.as_slice() else {
        bail!("usage: efa-bench-match engine|matcher posted|unexpected DEPTH ROUNDS");
    };
    let waiting = match waiting.as_str() {
        "posted" => Waiting::Receives,
        "unexpected" => Waiting::Messages,
        other => bail!("`{other}` is neither posted nor unexpected"),
    };
    let depth: u64 = depth.parse().context("DEPTH")?;
    let rounds: usize = rounds.parse().context("ROUNDS")?;
    ensure!(depth > 0 && rounds >= WINDOWS, "DEPTH is at least 1, ROUNDS at least {WINDOWS}");
    match who.as_str() {
        "engine" => measure(&mut Engine::new(waiting, depth)?, depth, rounds),
        "matcher" => measure(&mut Alone::new(waiting, depth)?, depth, rounds),
        other => bail!("`{other}` is neither engine nor matcher"),
    }
}

/// Receives wait for messages, or messages for receives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Receives,
    Messages,
}

/// The code that is measured.
trait Contestant {
    /// Matches the waiting receive or message with this tag, and adds another like it.
    fn round(&mut self, tag: u64) -> Result<()>;
}

/// Prints the nanoseconds of a round, the median of all windows.
fn measure(contestant: &mut impl Contestant, depth: u64, rounds: usize) -> Result<()> {
    let mut chosen = Chosen { state: 0x5851_f42d_da94_2042, depth };
    // The first round may set up tables that all others use.
    contestant.round(chosen.next())?;
    let each = rounds / WINDOWS;
    let mut windows = Vec::new();
    for _ in 0..WINDOWS {
        let start = Instant::now();
        measured_rounds(contestant, &mut chosen, each)?;
        windows.push(start.elapsed().as_nanos() as f64 / each as f64);
    }
    windows.sort_by(f64::total_cmp);
    println!("{:.1}", f64::midpoint(windows[WINDOWS / 2 - 1], windows[WINDOWS / 2]));
    Ok(())
}

/// callgrind counts this function, by its name.
#[inline(never)]
fn measured_rounds(
    contestant: &mut impl Contestant,
    chosen: &mut Chosen,
    rounds: usize,
) -> Result<()> {
    for _ in 0..rounds {
        contestant.round(chosen.next())?;
    }
    Ok(())
}

/// The same numbers as in `measure.h`.
struct Chosen {
    state: u64,
    depth: u64,
}

impl Chosen {
    fn next(&mut self) -> u64 {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % self.depth
    }
}

/// The whole engine.
struct Engine {
    waiting: Waiting,
    endpoint: Endpoint,
    queue: CompletionQueue,
    _addresses: AddressVector,
    own: FiAddr,
    /// The buffer of the next receive, if messages wait.
    spare: Vec<u8>,
}

impl Engine {
    fn new(waiting: Waiting, depth: u64) -> Result<Self> {
        let domain = Fabric::shm(ShmOptions::new("bench-match")).domain()?;
        let capacity = usize::try_from(depth)? + 64;
        let queue = domain.completion_queue(CompletionQueueOptions::new().capacity(capacity));
        let addresses = domain.address_vector();
        let mut options = EndpointOptions::default();
        options.protocol.max_receives = capacity;
        let endpoint = domain
            .endpoint(options)
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()?;
        let own = addresses.insert(endpoint.address())?;
        let spare = vec![0; PAYLOAD.len()];
        let mut engine = Self { waiting, endpoint, queue, _addresses: addresses, own, spare };
        // The first exchange includes the handshake of the endpoint with itself.
        engine.post(0, vec![0; PAYLOAD.len()])?;
        engine.send(0)?;
        engine.completions(2)?;
        for tag in 0..depth {
            match waiting {
                Waiting::Receives => engine.post(tag, vec![0; PAYLOAD.len()])?,
                Waiting::Messages => {
                    engine.send(tag)?;
                    engine.completions(1)?;
                }
            }
        }
        Ok(engine)
    }

    fn post(&self, tag: u64, buffer: Vec<u8>) -> Result<()> {
        self.endpoint.receive(Receive::tagged(tag), buffer, tag)?;
        Ok(())
    }

    fn send(&self, tag: u64) -> Result<()> {
        self.endpoint.send(Message::to(self.own).tagged(tag), PAYLOAD, tag)?;
        Ok(())
    }

    /// Waits for this many completions, and returns the buffer of the receive among them.
    fn completions(&mut self, mut wanted: usize) -> Result<Option<Vec<u8>>> {
        let mut received = None;
        while wanted > 0 {
            if let Some(entry) = self.queue.read() {
                let completion = entry?;
                wanted -= 1;
                if completion.is_received() {
                    received = Some(completion.buffer.into_vec());
                }
            }
        }
        Ok(received)
    }
}

impl Contestant for Engine {
    fn round(&mut self, tag: u64) -> Result<()> {
        match self.waiting {
            Waiting::Receives => {
                self.send(tag)?;
                let buffer = self.completions(2)?.context("no receive completed")?;
                self.post(tag, buffer)
            }
            Waiting::Messages => {
                let buffer = std::mem::take(&mut self.spare);
                self.post(tag, buffer)?;
                self.spare = self.completions(1)?.context("no receive completed")?;
                self.send(tag)?;
                self.completions(1)?;
                Ok(())
            }
        }
    }
}

/// The matcher without an engine.
struct Alone {
    waiting: Waiting,
    matcher: Matcher<u32, u32>,
}

impl Alone {
    const SOURCE: Source = Source(0);

    fn new(waiting: Waiting, depth: u64) -> Result<Self> {
        let mut alone = Self { waiting, matcher: Matcher::with_seed(1) };
        for tag in 0..depth {
            match waiting {
                Waiting::Receives => alone.post(tag)?,
                Waiting::Messages => alone.arrive(tag)?,
            }
        }
        Ok(alone)
    }

    fn post(&mut self, tag: u64) -> Result<()> {
        match self.matcher.post(Pattern::any_source(tag), tag as u32) {
            Posted::Waiting(_) => Ok(()),
            Posted::Matched(_, message) => bail!("unexpected message {message}"),
        }
    }

    fn arrive(&mut self, tag: u64) -> Result<()> {
        match self.matcher.arrive(Self::SOURCE, tag, tag as u32) {
            Arrived::Unexpected(_) => Ok(()),
            Arrived::Matched(_) => bail!("another receive for {tag} is posted"),
        }
    }
}

impl Contestant for Alone {
    fn round(&mut self, tag: u64) -> Result<()> {
        match self.waiting {
            Waiting::Receives => {
                let Arrived::Matched(_) = self.matcher.arrive(Self::SOURCE, tag, tag as u32) else {
                    bail!("no receive for {tag}");
                };
                self.post(tag)
            }
            Waiting::Messages => {
                let Posted::Matched(..) = self.matcher.post(Pattern::any_source(tag), tag as u32)
                else {
                    bail!("no message {tag}");
                };
                self.arrive(tag)
            }
        }
    }
}

//! A ping-pong of tagged messages of 8 bytes on this project's stack; `libfabric.c` is the same on
//! libfabric. `cargo xtask bench vs-libfabric` runs both and counts instructions.
//!
//! ```text
//!   client   post receive, inject ──────────► server   post receive
//!            read, read, … ◄────────────────── inject   read, read, …
//! ```
//!
//! `efa-bench-vs-libfabric client|server DIR ROUNDS`: both sides write their address into the directory.
//! Prints `calls N`, the number of calls of the library in all rounds. The process exits without closing
//! anything, so that closing is not counted.

#![forbid(unsafe_code)]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use efa::{
    Address, AddressVector, Completion, CompletionQueue, CompletionQueueOptions, Config, Direction,
    Endpoint, EndpointOptions, Fabric, FiAddr, Message, Receive,
};

const TAG: u64 = 7;
/// Timeout for the other side's address.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(60);
/// Reads of the server after its last message, so that it is sent.
const LAST_READS: u32 = 2000;

/// One side.
struct Side {
    endpoint: Endpoint,
    queue: CompletionQueue,
    addresses: AddressVector,
    /// Calls of the library in the rounds.
    calls: u64,
}

impl Side {
    fn open() -> Result<Self> {
        let domain = Fabric::verbs(None).domain()?;
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        // Otherwise most runs, and some don't, once double the number of receive buffers: 600,000 instructions.
        let usual = Config::default();
        let max_receive_buffers = usual.min_receive_buffers;
        let protocol = usual.with(|config| config.max_receive_buffers = max_receive_buffers);
        let endpoint = domain
            .endpoint(EndpointOptions::default().protocol(protocol))
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()?;
        Ok(Self { endpoint, queue, addresses, calls: 0 })
    }

    /// Writes our address into the directory, and waits for that of the other side.
    fn exchange_addresses(&self, directory: &Path, ours: &str, theirs: &str) -> Result<FiAddr> {
        let unfinished = directory.join(format!("{ours}.new"));
        fs::write(&unfinished, self.endpoint.address().to_string())?;
        fs::rename(unfinished, directory.join(ours))?;
        let begin = Instant::now();
        loop {
            if let Ok(text) = fs::read_to_string(directory.join(theirs)) {
                return Ok(self.addresses.insert(text.parse::<Address>()?)?);
            }
            ensure!(begin.elapsed() < ADDRESS_TIMEOUT, "no {theirs}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn post(&mut self, buffer: Vec<u8>) -> Result<()> {
        self.calls += 1;
        self.endpoint.receive(Receive::tagged(TAG), buffer, 0)?;
        Ok(())
    }

    fn inject(&mut self, peer: FiAddr, round: u64) -> Result<()> {
        self.calls += 1;
        match self.endpoint.inject(Message::to(peer).tagged(TAG), &round.to_le_bytes()) {
            Err(error) if error.is_busy() => self.inject_later(peer, round),
            result => Ok(result?),
        }
    }

    /// The endpoint is busy: reads until it accepts the message.
    #[cold]
    fn inject_later(&mut self, peer: FiAddr, round: u64) -> Result<()> {
        self.calls += u64::from(self.queue.read().is_none());
        self.inject(peer, round)
    }

    /// Waits for the message of this round and returns its buffer.
    fn await_message(&mut self, round: u64) -> Result<Vec<u8>> {
        loop {
            self.calls += 1;
            let Some(entry) = self.queue.read() else { continue };
            let Completion { length, buffer, .. } = entry?;
            let bytes = buffer.into_vec();
            ensure!(
                length == bytes.len() as u64 && bytes == round.to_le_bytes(),
                "round {round}: received {length} bytes, {bytes:?}"
            );
            return Ok(bytes);
        }
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, directory, rounds] = arguments.as_slice() else {
        bail!("usage: efa-bench-vs-libfabric client|server DIR ROUNDS");
    };
    let rounds: u64 = rounds.parse().context("not a number of rounds")?;
    let directory = Path::new(directory);
    let mut side = Side::open()?;
    let mut buffer = vec![0; size_of::<u64>()];
    match role.as_str() {
        "client" => {
            let server = side.exchange_addresses(directory, "client", "server")?;
            for round in 0..rounds {
                side.post(buffer)?;
                side.inject(server, round)?;
                buffer = side.await_message(round)?;
            }
        }
        "server" => {
            let client = side.exchange_addresses(directory, "server", "client")?;
            for round in 0..rounds {
                side.post(buffer)?;
                buffer = side.await_message(round)?;
                side.inject(client, round)?;
            }
            for _ in 0..LAST_READS {
                side.queue.read();
            }
        }
        other => bail!("`{other}` is neither client nor server"),
    }
    println!("calls {}", side.calls);
    std::io::stdout().flush()?;
    std::process::exit(0);
}

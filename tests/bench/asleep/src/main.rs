//! A ping-pong of injected, tagged messages of 8 bytes between two processes that sleep until a message comes:
//! a program of `cargo xtask bench asleep`. `libfabric.c` does the same on a provider of libfabric.
//!
//! ```text
//! efa-bench-asleep shm|tcp blocking|asleep ROUNDS
//! ```
//!
//! `blocking` waits in `CompletionQueue::wait`, which looks for 20 µs before the thread sleeps. `asleep` always
//! sleeps: `try_wait`, poll, read. It prints the nanoseconds of a round trip, and how often each process gave up its
//! processor in a round.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use efa::{
    AddressVector, CompletionQueue, CompletionQueueOptions, Direction, Endpoint, EndpointOptions,
    Fabric, FiAddr, Message, Receive, ShmOptions, TcpOptions, TryWaitError, Wait,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const TAG: u64 = 7;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Rounds before those that count.
const WARM: u64 = 1000;

struct Side {
    fabric: Fabric,
    queue: CompletionQueue,
    addresses: AddressVector,
    endpoint: Endpoint,
    always_sleeps: bool,
}

impl Side {
    fn open(link: &str, how: &str, directory: Option<PathBuf>) -> Result<Self> {
        let fabric = match link {
            "shm" => Fabric::shm(ShmOptions::new("asleep").with(|o| o.directory = directory)),
            "tcp" => Fabric::tcp(TcpOptions::new([127, 0, 0, 1])),
            other => bail!("{other}: shm or tcp is expected"),
        };
        let always_sleeps = match how {
            "blocking" => false,
            "asleep" => true,
            other => bail!("{other}: blocking or asleep is expected"),
        };
        let domain = fabric.domain()?;
        let queue =
            domain.waitable_completion_queue(CompletionQueueOptions::default(), Wait::Fd)?;
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()?;
        Ok(Self { fabric, queue, addresses, endpoint, always_sleeps })
    }

    fn post(&self) -> Result<()> {
        self.endpoint.receive(Receive::tagged(TAG), vec![0; 8], 0)?;
        Ok(())
    }

    fn inject(&self, to: FiAddr, round: u64) -> Result<()> {
        loop {
            match self.endpoint.inject(Message::to(to).tagged(TAG), &round.to_le_bytes()) {
                // The first message waits for the handshake.
                Err(error) if error.is_busy() => ensure!(self.queue.read().is_none(), "a message"),
                result => return Ok(result?),
            }
        }
    }

    fn receive(&self, round: u64) -> Result<()> {
        let received = if self.always_sleeps { self.sleep()? } else { self.queue.wait(TIMEOUT)? };
        ensure!(received.into_message() == round.to_le_bytes(), "round {round} brought another");
        Ok(())
    }

    /// Sleeps until there is a completion.
    fn sleep(&self) -> Result<efa::Completion> {
        let descriptor = self.queue.as_fd().context("the queue has no descriptor")?;
        loop {
            match self.fabric.try_wait(&[&self.queue]) {
                Ok(()) => {
                    let timeout = Timespec::try_from(TIMEOUT)?;
                    let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
                    ensure!(poll(&mut descriptors, Some(&timeout))? > 0, "nothing for {TIMEOUT:?}");
                }
                Err(TryWaitError::Pending) => {}
                Err(other) => return Err(other.into()),
            }
            if let Some(entry) = self.queue.read() {
                return Ok(entry?);
            }
        }
    }
}

fn rounds(side: &Side, to: FiAddr, range: std::ops::Range<u64>, begins: bool) -> Result<()> {
    for round in range {
        side.post()?;
        if begins {
            side.inject(to, round)?;
            side.receive(round)?;
        } else {
            side.receive(round)?;
            side.inject(to, round)?;
        }
    }
    Ok(())
}

/// How often this process gave up its processor so far.
fn switches() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(count.context("no count of context switches")?.trim().parse()?)
}

/// The child, killed and reaped on every path.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn parent(link: &str, how: &str, count: u64) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let hosts = directory.path().join("hosts");
    let side = Side::open(link, how, Some(hosts.clone()))?;
    let child = Command::new(std::env::current_exe()?)
        .args([link, how, &count.to_string(), &side.endpoint.address().to_string()])
        .arg(hosts)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut child = Process(child);
    let mut said = BufReader::new(child.0.stdout.take().context("no output")?).lines();
    let address = said.next().context("the child is gone")??;
    let to = side.addresses.insert(address.parse()?)?;
    rounds(&side, to, 0..WARM, true)?;
    let (begin, before) = (Instant::now(), switches()?);
    rounds(&side, to, WARM..WARM + count, true)?;
    let nanoseconds = begin.elapsed().as_nanos() as u64 / count;
    let mine = (switches()? - before) as f64 / count as f64;
    let theirs: f64 = said.next().context("the child is gone")??.parse()?;
    println!("{nanoseconds} {mine:.2} {theirs:.2}");
    ensure!(child.0.wait()?.success(), "the child failed");
    Ok(())
}

fn child(link: &str, how: &str, count: u64, parent: &str, hosts: &str) -> Result<()> {
    let side = Side::open(link, how, Some(hosts.into()))?;
    let to = side.addresses.insert(parent.parse()?)?;
    // The parent may send at once.
    println!("{}", side.endpoint.address());
    std::io::stdout().flush()?;
    rounds(&side, to, 0..WARM, false)?;
    let before = switches()?;
    rounds(&side, to, WARM..WARM + count, false)?;
    println!("{:.2}", (switches()? - before) as f64 / count as f64);
    // The last message is under way until it is acknowledged.
    side.endpoint.close(TIMEOUT)?;
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [link, how, count] => parent(link, how, count.parse()?),
        [link, how, count, address, hosts] => child(link, how, count.parse()?, address, hosts),
        _ => bail!("shm|tcp blocking|asleep ROUNDS are expected"),
    }
}

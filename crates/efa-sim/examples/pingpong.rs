//! Measures a link between two processes: latency by ping-pong, rate and bandwidth with windows of 118
//! packets (1 MiB in packets of one MTU).
//!
//! ```text
//! $ cargo run --release -p efa-sim --example pingpong -- tcp          over 127.0.0.1 and 127.0.0.2
//! $ cargo run --release -p efa-sim --example pingpong -- shm
//!  bytes       best     median       99 %   one way, ns
//!      8        410        499     341991
//!   4096        463        814     341789
//!
//!  bytes   M/s best  GB/s best   by windows of 118
//!      7      15.35       0.11
//!   4095       2.09       8.56
//!
//! idle poll: 15.3 ns
//! ```
//!
//! These are 2 of the 6 and 2 of the 5 rows of a run while other programs used both processors, which
//! the 99 % show.
//!
//! The program starts itself a second time as the other side and pins the two processes to processors 0
//! and 1 if it can. Latency is half a round trip, averaged over windows of 100 round trips; the best window,
//! the median and the 99th percentile are shown.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use efa_device::{
    Completion, Destination, Device, Gid, Qkey, Qpn, QueuePair, QueuePairOptions, SendRequest,
    Time, WorkId,
};
use efa_sim::shm::{ShmDevice, ShmOptions};
use efa_sim::tcp::{TcpDevice, TcpOptions};
use efa_sim::{SoftDevice, SoftQueuePair};

const HOST: &str = "pingpong";
const KEY: Qkey = Qkey(0x5eed);
const BUFFERS: usize = 256;
const WINDOW: u64 = 118;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let link = match arguments.next().as_deref() {
        Some("shm") => Link::Shm,
        Some("tcp") => Link::Tcp,
        _ => return Err("give a link, shm or tcp".into()),
    };
    match (arguments.next(), arguments.next()) {
        (Some(gid), Some(number)) => {
            let gid = Gid(gid.parse::<std::net::Ipv6Addr>()?.octets());
            echo(link, gid, Qpn(number.parse()?))
        }
        _ => drive(link),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Link {
    Shm,
    Tcp,
}

impl Link {
    fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }

    /// The device of one of the two sides, 0 or 1.
    fn open(self, side: u8) -> Result<SoftDevice> {
        Ok(match self {
            Self::Shm => ShmDevice::open(ShmOptions::new(HOST))?.into(),
            Self::Tcp => TcpDevice::open(TcpOptions::new([127, 0, 0, 1 + side]))?.into(),
        })
    }
}

/// A queue pair with its buffers and its destination.
struct Side {
    qp: SoftQueuePair,
    destination: Destination,
    packets: Vec<Box<[u8]>>,
    sent: u64,
    ended: u64,
    polls: u64,
    clock: Instant,
    now: Time,
}

impl Side {
    fn new(link: Link, side: u8) -> Result<Self> {
        let processor = usize::from(side);
        let mut cpus = rustix::thread::CpuSet::new();
        cpus.set(processor);
        if rustix::thread::sched_setaffinity(None, &cpus).is_err() {
            eprintln!("can't pin to processor {processor}: figures will be worse");
        }
        let device = link.open(side)?;
        let mut qp = device
            .create_queue_pair(QueuePairOptions::default().with(|options| options.qkey = KEY))?;
        for _ in 0..BUFFERS {
            let buffer = qp.allocate_packet()?;
            qp.post_receive(buffer).map_err(|refused| refused.error)?;
        }
        let packets =
            (0..BUFFERS).map(|_| qp.allocate_packet()).collect::<std::result::Result<_, _>>()?;
        let destination = Destination { qkey: KEY, ..Destination::default() };
        Ok(Self {
            qp,
            destination,
            packets,
            sent: 0,
            ended: 0,
            polls: 0,
            clock: Instant::now(),
            now: Time::ZERO,
        })
    }

    /// Sets the destination of all later sends.
    fn target(&mut self, gid: Gid, qpn: Qpn) -> Result<()> {
        self.destination.address_handle = self.qp.create_address_handle(gid)?;
        self.destination.qpn = qpn;
        Ok(())
    }

    fn send(&mut self, length: usize) -> Result<()> {
        while self.packets.is_empty() {
            self.poll()?;
        }
        let Some(packet) = self.packets.pop() else { return Ok(()) };
        self.sent += 1;
        let id = WorkId(self.sent);
        let request =
            SendRequest { id, packet, length, destination: self.destination, immediate: None };
        Ok(self.qp.post_send(request).map_err(|refused| refused.error)?)
    }

    /// Polls once; returns the length of a received packet.
    fn poll(&mut self) -> Result<Option<usize>> {
        // Reading the clock costs as much as a few polls, and timeouts are in milliseconds.
        self.polls += 1;
        if self.polls.is_multiple_of(256) {
            self.now = Time::ZERO + self.clock.elapsed();
        }
        match self.qp.poll(self.now) {
            None => Ok(None),
            Some(Completion::Send { packet, result, .. }) => {
                result.map_err(|status| format!("send: {status}"))?;
                self.ended += 1;
                self.packets.push(packet);
                Ok(None)
            }
            Some(Completion::Receive { packet, length, .. }) => {
                self.qp.post_receive(packet).map_err(|refused| refused.error)?;
                Ok(Some(length))
            }
            Some(other) => Err(format!("unexpected completion: {other:?}").into()),
        }
    }

    fn receive(&mut self) -> Result<usize> {
        loop {
            if let Some(length) = self.poll()? {
                return Ok(length);
            }
        }
    }

    fn round_trips(&mut self, count: u32, length: usize) -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..count {
            self.send(length)?;
            self.receive()?;
        }
        Ok(start.elapsed())
    }

    /// Sends windows of packets; the other side answers each window with one packet of one byte.
    fn windows(&mut self, count: u32, length: usize) -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..count {
            for _ in 0..WINDOW {
                self.send(length)?;
            }
            self.receive()?;
        }
        Ok(start.elapsed())
    }
}

/// The other side: answers each packet of even length, and each window of packets of odd length, and ends
/// when an empty packet arrives.
fn echo(link: Link, gid: Gid, peer: Qpn) -> Result<()> {
    let mut side = Side::new(link, 1)?;
    side.target(gid, peer)?;
    let own = side.qp.address();
    println!("{} {}", own.gid, own.qpn.0);
    let mut in_window = 0;
    loop {
        let length = side.receive()?;
        if length == 0 {
            break;
        }
        if length % 2 == 0 {
            side.send(length)?;
            continue;
        }
        in_window += 1;
        if in_window == WINDOW {
            in_window = 0;
            side.send(1)?;
        }
    }
    while side.ended < side.sent {
        side.poll()?;
    }
    Ok(())
}

/// The other process, killed and reaped when dropped.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn drive(link: Link) -> Result<()> {
    let mut side = Side::new(link, 0)?;
    let own = side.qp.address();
    let mut other = Other(
        Command::new(std::env::current_exe()?)
            .args([link.name(), &own.gid.to_string(), &own.qpn.0.to_string()])
            .stdout(Stdio::piped())
            .spawn()?,
    );
    let output = other.0.stdout.take().ok_or("no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let (gid, number) = line.trim().split_once(' ').ok_or("the other side printed no address")?;
    side.target(Gid(gid.parse::<std::net::Ipv6Addr>()?.octets()), Qpn(number.parse()?))?;

    println!("{:>6} {:>10} {:>10} {:>10}   one way, ns", "bytes", "best", "median", "99 %");
    for length in [8, 64, 256, 1024, 4096, 8928] {
        side.round_trips(2000, length)?;
        let mut windows = Vec::new();
        for _ in 0..1000 {
            windows.push(side.round_trips(100, length)?.as_nanos() / 200);
        }
        windows.sort_unstable();
        println!("{length:>6} {:>10} {:>10} {:>10}", windows[0], windows[500], windows[990]);
    }
    println!("\n{:>6} {:>10} {:>10}   by windows of {WINDOW}", "bytes", "M/s best", "GB/s best");
    for length in [7, 63, 1023, 4095, 8927] {
        side.windows(200, length)?;
        let mut best = Duration::MAX;
        for _ in 0..300 {
            best = best.min(side.windows(20, length)?);
        }
        let each = best.as_secs_f64() / (20.0 * WINDOW as f64);
        println!("{length:>6} {:>10.2} {:>10.2}", 1e-6 / each, length as f64 * 1e-9 / each);
    }
    idle(&mut side)?;
    side.send(0)?;
    while side.ended < side.sent {
        side.poll()?;
    }
    other.0.wait()?;
    Ok(())
}

/// Measures the cost of a poll that finds nothing.
fn idle(side: &mut Side) -> Result<()> {
    while side.ended < side.sent {
        side.poll()?;
    }
    let mut best = Duration::MAX;
    for _ in 0..200 {
        let start = Instant::now();
        for _ in 0..1000 {
            std::hint::black_box(side.qp.poll(side.now));
        }
        best = best.min(start.elapsed());
    }
    println!("\nidle poll: {:.1} ns", best.as_nanos() as f64 / 1000.0);
    Ok(())
}

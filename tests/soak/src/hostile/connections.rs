//! Attacks on the tcp link itself, by connections to the port of the victim.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use clap::ValueEnum;
use efa_sim::tcp::VERSION;
use fastrand::Rng;
use rustix::net::{AddressFamily, SocketType};

/// What the connections do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Connections {
    /// A good hello, and nothing more.
    Hello,
    /// A good hello, and half a frame.
    HalfFrame,
    /// Not a byte.
    Silent,
    /// Frames without a datagram, as fast as possible; no response is read.
    EmptyFrames,
    /// Random bytes.
    Bytes,
    /// A frame that claims 4 GiB.
    Claims,
}

/// After the version: queue pair number, MTU, zeros.
const HELLO: [&[u8]; 3] = [b"EfaS", &VERSION.to_le_bytes(), b"\x34\x12\0\x01\0\0\0\0\0\0"];

/// Connections that are held at a time: more than a queue pair accepts.
const HELD: usize = 400;

/// The connections of an attacker.
#[derive(Debug)]
pub(crate) struct ConnectionAttack {
    kind: Connections,
    victim: SocketAddr,
    key: u32,
    held: Vec<Held>,
    random: Rng,
    /// Connections, or frames.
    pub(crate) count: u64,
}

#[derive(Debug)]
struct Held {
    stream: TcpStream,
    sequence: u32,
    rest: Vec<u8>,
}

/// A connection from an address of the attacker's.
fn connect(to: SocketAddr, from: IpAddr) -> std::io::Result<TcpStream> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddr::new(from, 0))?;
    rustix::net::connect(&socket, &to)?;
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(true)?;
    Ok(stream)
}

impl ConnectionAttack {
    pub(crate) fn new(kind: Connections, victim: SocketAddr, key: u32, seed: u64) -> Self {
        let random = Rng::with_seed(seed);
        Self { kind, victim, key, held: Vec::new(), random, count: 0 }
    }

    /// The bytes that a new connection begins with.
    fn beginning(&mut self) -> Vec<u8> {
        let mut bytes = HELLO.concat();
        match self.kind {
            Connections::Silent => bytes.clear(),
            Connections::Hello | Connections::EmptyFrames => {}
            Connections::HalfFrame => bytes.extend(self.frame(0, 90, 20)),
            Connections::Claims => bytes.extend(self.frame(0, u32::MAX, 64)),
            Connections::Bytes => {
                bytes.truncate(self.random.usize(..=16));
                let start = bytes.len();
                bytes.resize(start + self.random.usize(..200), 0);
                self.random.fill(&mut bytes[start..]);
            }
        }
        bytes
    }

    /// A frame that claims `length` bytes and carries `bytes` of them.
    fn frame(&self, sequence: u32, length: u32, bytes: usize) -> Vec<u8> {
        let mut frame = vec![1, 3, 0, 0];
        frame.extend(length.to_le_bytes());
        frame.extend(sequence.to_le_bytes());
        frame.extend(self.key.to_le_bytes());
        frame.resize(16 + bytes, 0x5a);
        frame
    }

    /// Opens and drives connections for a moment.
    pub(crate) fn run(&mut self) {
        let most = if self.kind == Connections::EmptyFrames { 3 } else { HELD };
        for _ in 0..16 {
            if self.held.len() >= most {
                break;
            }
            // Four addresses of its own, none of an honest peer.
            let last = 66 + self.random.u8(..4);
            let from = match self.victim {
                SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)),
                SocketAddr::V6(to) => IpAddr::V6(*to.ip()),
            };
            let Ok(stream) = connect(self.victim, from) else {
                // The victim's queue of connections is full.
                std::thread::sleep(Duration::from_millis(1));
                break;
            };
            let rest = self.beginning();
            self.held.push(Held { stream, sequence: 0, rest });
            self.count += 1;
        }
        let (kind, key) = (self.kind, self.key);
        let mut frames = 0;
        self.held.retain_mut(|held| {
            if kind == Connections::EmptyFrames {
                let (written, is_open) = held.write_empty(key);
                frames += written;
                return is_open;
            }
            let done = matches!(kind, Connections::Bytes | Connections::Claims);
            held.write() && !(done && held.rest.is_empty()) && held.is_open()
        });
        self.count += frames;
        if kind != Connections::EmptyFrames {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Held {
    /// Writes what is left; whether the connection is still good.
    fn write(&mut self) -> bool {
        match self.stream.write(&self.rest) {
            Ok(count) => {
                self.rest.drain(..count);
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }

    fn is_open(&mut self) -> bool {
        let mut bytes = [0; 64];
        match self.stream.read(&mut bytes) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }

    /// Writes frames without datagrams. Returns their number, and whether the connection is still good: it is closed for more
    /// frames than may wait.
    fn write_empty(&mut self, key: u32) -> (u64, bool) {
        let mut frames = 0;
        if self.rest.len() < 16 {
            for _ in 0..1024 {
                self.rest.extend([1, 0, 0, 0, 0, 0, 0, 0]);
                self.rest.extend(self.sequence.to_le_bytes());
                self.rest.extend(key.to_le_bytes());
                self.sequence = self.sequence.wrapping_add(1);
                frames += 1;
            }
        }
        (frames, self.write())
    }
}

//! Streams of bytes between endpoints of a simulated network: in one process, with a latency.
//!
//! A byte takes between one and two times the longest latency of a packet, drawn from the network's seed, and
//! never overtakes another. So the end of a stream arrives after every packet that was sent before it.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use efa_device::Time;
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::wait::WaitObject;

/// Where pipes are joined: one for a simulated network.
#[derive(Debug)]
pub(crate) struct Switchboard(Mutex<Board>);

#[derive(Debug)]
struct Board {
    random: fastrand::Rng,
    latency: Duration,
    next_port: u16,
    listeners: BTreeMap<SocketAddr, Waiting>,
}

/// Callers that were not accepted yet.
#[derive(Debug)]
struct Waiting {
    callers: VecDeque<(Time, Pipe, SocketAddr)>,
    most: usize,
    /// Who sleeps until one comes.
    sleeper: Option<Arc<WaitObject>>,
}

/// First port that is given out.
const FIRST_PORT: u16 = 49152;

impl Board {
    fn arrival(&mut self, now: Time) -> Time {
        let extra = self.random.u64(0..=self.latency.as_nanos() as u64);
        now + self.latency + Duration::from_nanos(extra)
    }

    /// An address that nobody listens at; `None` if all ports are taken.
    fn free_port(&mut self, ip: IpAddr) -> Option<SocketAddr> {
        (FIRST_PORT..=u16::MAX).find_map(|_| {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
            let address = SocketAddr::new(ip, port);
            (!self.listeners.contains_key(&address)).then_some(address)
        })
    }
}

impl Switchboard {
    /// With the seed of a network and the longest latency of its packets.
    pub(crate) fn new(seed: u64, latency: Duration) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Board {
            random: fastrand::Rng::with_seed(seed),
            latency,
            next_port: FIRST_PORT,
            listeners: BTreeMap::new(),
        })))
    }

    pub(super) fn listen(
        self: &Arc<Self>,
        at: SocketAddr,
        most: usize,
        clock: &Clock,
    ) -> io::Result<Inbox> {
        let mut board = self.0.lock();
        let address = match at.port() {
            0 => board.free_port(at.ip()).ok_or(ErrorKind::AddrInUse)?,
            _ => at,
        };
        if board.listeners.contains_key(&address) {
            return Err(ErrorKind::AddrInUse.into());
        }
        let waiting = Waiting { callers: VecDeque::new(), most, sleeper: None };
        board.listeners.insert(address, waiting);
        drop(board);
        Ok(Inbox { switchboard: self.clone(), address, clock: clock.clone() })
    }

    pub(super) fn connect(self: &Arc<Self>, to: SocketAddr, clock: &Clock) -> Pipe {
        let now = clock.now();
        // Before the lock is taken, which the end of a pipe that is not needed takes.
        let [mut near, far] = self.pair(clock, now);
        let mut board = self.0.lock();
        let arrival = board.arrival(now);
        let from = board.free_port(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap_or(to);
        match board.listeners.get_mut(&to) {
            None => near.state = Opening::Refused(arrival),
            // As a system does whose queue is full: the caller hears nothing.
            Some(waiting) if waiting.callers.len() >= waiting.most => near.state = Opening::Ignored,
            Some(waiting) => {
                waiting.callers.push_back((arrival, far, from));
                wake(&waiting.sleeper);
            }
        }
        near
    }

    fn pair(self: &Arc<Self>, clock: &Clock, opened: Time) -> [Pipe; 2] {
        let way = || Way { chunks: VecDeque::new(), last: opened, closed: None, sleeper: None };
        let ways = Arc::new(Mutex::new([way(), way()]));
        [0, 1].map(|side| Pipe {
            switchboard: self.clone(),
            clock: clock.clone(),
            ways: ways.clone(),
            side,
            state: Opening::Open,
        })
    }
}

/// A listener's side of the switchboard.
#[derive(Debug)]
pub(super) struct Inbox {
    switchboard: Arc<Switchboard>,
    address: SocketAddr,
    clock: Clock,
}

impl Inbox {
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn accept(&mut self) -> Option<(Pipe, SocketAddr)> {
        let now = self.clock.now();
        let mut board = self.switchboard.0.lock();
        let callers = &mut board.listeners.get_mut(&self.address)?.callers;
        let arrived = callers.iter().position(|(arrival, ..)| *arrival <= now)?;
        callers.remove(arrived).map(|(_, pipe, from)| (pipe, from))
    }

    /// From now on callers wake who sleeps on this.
    pub(super) fn wakes(&self, sleeper: &Arc<WaitObject>) {
        if let Some(waiting) = self.switchboard.0.lock().listeners.get_mut(&self.address) {
            waiting.sleeper = Some(Arc::clone(sleeper));
        }
    }

    /// When the next caller arrives.
    pub(super) fn next_event(&self) -> Option<Time> {
        let board = self.switchboard.0.lock();
        board.listeners.get(&self.address)?.callers.iter().map(|(arrival, ..)| *arrival).min()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let waiting = self.switchboard.0.lock().listeners.remove(&self.address);
        // Outside of the lock, which their ends take.
        drop(waiting);
    }
}

/// Bytes on their way in one direction.
#[derive(Debug)]
struct Way {
    chunks: VecDeque<(Time, Vec<u8>)>,
    /// When the last of them arrives.
    last: Time,
    /// When the end arrives.
    closed: Option<Time>,
    /// Who sleeps until something comes.
    sleeper: Option<Arc<WaitObject>>,
}

/// Tells a sleeper that something is on its way: it then learns when that arrives.
fn wake(sleeper: &Option<Arc<WaitObject>>) {
    if let Some(sleeper) = sleeper {
        sleeper.notify();
    }
}

/// How far a pipe has come at the caller's side.
#[derive(Clone, Copy, Debug)]
enum Opening {
    Open,
    /// Nobody listens; the caller learns of it then.
    Refused(Time),
    Ignored,
}

/// One side of a pipe.
#[derive(Debug)]
pub(super) struct Pipe {
    switchboard: Arc<Switchboard>,
    clock: Clock,
    ways: Arc<Mutex<[Way; 2]>>,
    side: usize,
    state: Opening,
}

impl Pipe {
    pub(super) fn is_established(&self) -> io::Result<bool> {
        match self.state {
            Opening::Open => Ok(true),
            Opening::Refused(at) if at <= self.clock.now() => {
                Err(ErrorKind::ConnectionRefused.into())
            }
            Opening::Refused(_) | Opening::Ignored => Ok(false),
        }
    }

    pub(super) fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let now = self.clock.now();
        let way = &mut self.ways.lock()[1 - self.side];
        if let Some((arrival, bytes)) = way.chunks.front_mut()
            && *arrival <= now
        {
            let count = bytes.len().min(into.len());
            for (to, from) in into.iter_mut().zip(bytes.drain(..count)) {
                *to = from;
            }
            if bytes.is_empty() {
                way.chunks.pop_front();
            }
            return Ok(count);
        }
        match way.closed {
            Some(at) if at <= now && way.chunks.is_empty() => Ok(0),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> usize {
        let arrival = self.switchboard.0.lock().arrival(self.clock.now());
        let way = &mut self.ways.lock()[self.side];
        way.last = way.last.max(arrival);
        way.chunks.push_back((way.last, bytes.to_vec()));
        wake(&way.sleeper);
        bytes.len()
    }

    /// From now on what comes wakes who sleeps on this.
    pub(super) fn wakes(&self, sleeper: Option<&Arc<WaitObject>>) {
        self.ways.lock()[1 - self.side].sleeper = sleeper.map(Arc::clone);
    }

    /// When something arrives that has not arrived yet.
    pub(super) fn next_event(&self) -> Option<Time> {
        if let Opening::Refused(at) = self.state {
            return Some(at);
        }
        let way = &self.ways.lock()[1 - self.side];
        way.chunks.front().map(|(arrival, _)| *arrival).or(way.closed)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let arrival = self.switchboard.0.lock().arrival(self.clock.now());
        let way = &mut self.ways.lock()[self.side];
        way.closed = Some(way.last.max(arrival));
        wake(&way.sleeper);
    }
}

//! A victim and its honest peers, all in one thread: every message is checked.
//!
//! ```text
//!   honest peer 1 ═══ messages ═══╗
//!   honest peer 2 ════════════════╬══► victim: the n-th receive from a peer gets its n-th message
//!   honest peer 3 ════════════════╝      ▲
//!                                    attacker
//! ```

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use efa_device::{Access, Device, Qkey, QueuePair, QueuePairOptions, Region, Time};
use efa_proto::RawAddress;
use efa_rdm::{
    Accept, Bounds, Completion, Config, Endpoint, Event, Level, Message, Origin, PeerId,
};
use efa_sim::{SoftDevice, SoftQueuePair, SoftRegion};
use fastrand::Rng;
use rustix::time::{ClockId, clock_gettime};

use crate::packets::Memory;

type Peer = Endpoint<SoftQueuePair, Vec<u8>>;

/// Honest peers from the start.
const HONEST: usize = 3;
/// Messages of an honest peer under way.
const UNDER_WAY: usize = 8;
/// Lengths of an honest peer's messages in turn: of one packet, medium and long.
pub(crate) const LENGTHS: [usize; 10] = [8, 64, 1_000, 1, 20_000, 500, 4_000, 0, 100, 70_000];
const LONGEST: usize = 70_000;
/// Time of a turn on the local link.
pub(crate) const TICK: Duration = Duration::from_micros(20);

/// The bytes of an honest message.
fn content(peer: usize, number: u64) -> &'static [u8] {
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut random = Rng::with_seed(11);
        std::iter::repeat_with(|| random.u8(..)).take(LONGEST + (1 << 16)).collect()
    });
    let start = (number * 31 + peer as u64 * 7_919) % 65_521;
    &BYTES[start as usize..][..LENGTHS[(number % LENGTHS.len() as u64) as usize]]
}

/// The time of a link.
#[derive(Clone, Copy, Debug)]
enum Clock {
    Virtual(Time),
    Real(Instant),
}

/// CPU time of this thread.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[derive(Debug)]
struct Honest {
    endpoint: Peer,
    victim: PeerId,
    /// Its name at the victim.
    name: PeerId,
    sent: u64,
    under_way: usize,
    /// Receives that the victim posted for it.
    posted: u64,
    received: u64,
    spare: Vec<Vec<u8>>,
}

/// What the victim counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Packets that reached the victim's engine.
    pub(crate) packets: u64,
    pub(crate) turns: u64,
    /// CPU time of the victim.
    pub(crate) work: Duration,
}

/// The honest side of a scenario.
#[derive(Debug)]
pub(crate) struct HonestSide {
    device: SoftDevice,
    victim: Peer,
    honest: Vec<Honest>,
    memory: SoftRegion,
    clock: Clock,
    bounds: Bounds,
    counts: Counts,
    sending: bool,
    /// Bytes of unexpected messages, at most.
    pub(crate) kept: usize,
    pub(crate) errors: Vec<String>,
}

/// A queue pair of an honest side.
pub(crate) fn queue_pair(device: &SoftDevice, key: u32) -> Result<SoftQueuePair, String> {
    let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(key));
    device.create_queue_pair(options).map_err(|error| format!("no queue pair: {error}"))
}

impl HonestSide {
    /// On a device; honest peers have queue pairs of the same device.
    pub(crate) fn new(device: SoftDevice, bounds: Bounds) -> Result<Self, String> {
        let clock = match device {
            SoftDevice::Local(_) => Clock::Virtual(Time::ZERO),
            _ => Clock::Real(Instant::now()),
        };
        let config = Config::default().with(|config| config.bounds = bounds);
        let victim = Endpoint::new(queue_pair(&device, 0x1000)?, config)
            .map_err(|error| format!("no victim: {error}"))?;
        let access = Access { remote_read: true, remote_write: true };
        let memory = victim.queue_pair().register(vec![7; 1 << 16].into(), access);
        let memory = memory.map_err(|refused| format!("no memory: {}", refused.error))?;
        let (honest, errors) = (Vec::new(), Vec::new());
        let counts = Counts::default();
        let mut side = Self {
            device,
            victim,
            honest,
            memory,
            clock,
            bounds,
            counts,
            sending: true,
            kept: 0,
            errors,
        };
        for _ in 0..HONEST {
            side.add_peer()?;
        }
        Ok(side)
    }

    /// Another honest peer comes.
    pub(crate) fn add_peer(&mut self) -> Result<usize, String> {
        let number = self.honest.len();
        let queue_pair = queue_pair(&self.device, 0x2000 + number as u32)?;
        let mut endpoint = Endpoint::new(queue_pair, Config::default())
            .map_err(|error| format!("no honest peer: {error}"))?;
        let failed = |error| format!("no peer: {error}");
        let victim = endpoint.insert_peer(self.victim.address()).map_err(failed)?;
        let name = self.victim.insert_peer(endpoint.address()).map_err(failed)?;
        self.honest.push(Honest {
            endpoint,
            victim,
            name,
            sent: 0,
            under_way: 0,
            posted: 0,
            received: 0,
            spare: Vec::new(),
        });
        for _ in 0..UNDER_WAY {
            self.post(number, vec![0; LONGEST]);
        }
        Ok(number)
    }

    /// Messages of one honest peer that arrived.
    pub(crate) fn received_from(&self, number: usize) -> u64 {
        self.honest[number].received
    }

    pub(crate) fn address(&self) -> RawAddress {
        self.victim.address()
    }

    pub(crate) fn memory(&self) -> Memory {
        let length = self.memory.length() as u64;
        Memory { address: self.memory.remote_address(), key: self.memory.remote_key(), length }
    }

    pub(crate) fn counts(&mut self) -> Counts {
        let statistics = self.victim.statistics();
        let packets = statistics.received.total() + statistics.dropped;
        Counts { packets, ..self.counts }
    }

    pub(crate) fn excluded(&mut self) -> u64 {
        self.victim.statistics().excluded
    }

    pub(crate) fn now(&self) -> Time {
        match self.clock {
            Clock::Virtual(now) => now,
            Clock::Real(start) => Time::ZERO + start.elapsed(),
        }
    }

    /// Posts the next receive from an honest peer.
    fn post(&mut self, number: usize, buffer: Vec<u8>) {
        let honest = &mut self.honest[number];
        let context = (number as u64) << 48 | honest.posted;
        honest.posted += 1;
        let accept = Accept::Tagged { source: Some(honest.name), tag: number as u64, ignore: 0 };
        if let Err(refused) = self.victim.receive(accept, buffer, context) {
            self.errors.push(format!("a receive is refused: {}", refused.error));
        }
    }

    /// Runs every endpoint once.
    pub(crate) fn turn(&mut self) {
        self.advance(TICK);
    }

    /// Runs every endpoint once, `tick` later on the local link.
    pub(crate) fn advance(&mut self, tick: Duration) {
        if let Clock::Virtual(now) = &mut self.clock {
            *now += tick;
        }
        self.counts.turns += 1;
        for number in 0..self.honest.len() {
            self.run_honest(number);
        }
        let begun = cpu_time();
        self.run_victim();
        self.counts.work += cpu_time() - begun;
    }

    fn run_honest(&mut self, number: usize) {
        let now = self.now();
        let honest = &mut self.honest[number];
        while self.sending && honest.under_way < UNDER_WAY {
            let mut buffer = honest.spare.pop().unwrap_or_default();
            buffer.clear();
            buffer.extend_from_slice(content(number, honest.sent));
            let message = Message {
                peer: honest.victim,
                tag: Some(number as u64),
                cq_data: Some(honest.sent),
                level: if honest.sent.is_multiple_of(2) {
                    Level::Transmit
                } else {
                    Level::Delivery
                },
                buffer,
                context: honest.sent,
            };
            if let Err(refused) = honest.endpoint.send(message) {
                self.errors.push(format!("honest peer {number}: {}", refused.error));
                break;
            }
            honest.sent += 1;
            honest.under_way += 1;
        }
        honest.endpoint.progress(now);
        while let Some(completion) = honest.endpoint.poll_completion() {
            let Completion::Send(done) = completion else { continue };
            honest.under_way -= 1;
            honest.spare.extend(done.buffer);
            if let Err(error) = done.result {
                self.errors.push(format!("message {} of peer {number}: {error}", done.context));
            }
        }
        while honest.endpoint.poll_event().is_some() {}
    }

    fn run_victim(&mut self) {
        let now = self.now();
        self.victim.progress(now);
        let held = self.victim.packets_held();
        self.kept = self.kept.max(held.unexpected_bytes);
        // Buffers that were posted when the bound was met may have been filled.
        let mtu = self.device.attributes().mtu;
        let room = Config::default().max_receive_buffers * 2 * mtu;
        if held.unexpected_bytes > self.bounds.unexpected.saturating_add(room) {
            let (kept, limit) = (held.unexpected_bytes, self.bounds.unexpected);
            self.errors.push(format!("{kept} unexpected bytes are kept, {limit} are allowed"));
        }
        while let Some(completion) = self.victim.poll_completion() {
            if let Completion::Receive(done) = completion {
                let (number, position) = (done.context >> 48, done.context & 0xffff_ffff_ffff);
                let number = number as usize;
                let expected = content(number, position);
                let length = done.length as usize;
                if let Err(error) = done.result {
                    self.errors.push(format!("receive {position} from peer {number}: {error}"));
                } else if done.cq_data != Some(position) || done.buffer[..length] != *expected {
                    let found = done.cq_data;
                    self.errors.push(format!(
                        "receive {position} from peer {number} got message {found:?} of {length} bytes"
                    ));
                }
                self.counts.messages += 1;
                self.counts.bytes += done.length;
                self.honest[number].received += 1;
                self.post(number, done.buffer);
            }
        }
        while let Some(event) = self.victim.poll_event() {
            let about = match event {
                Event::PeerLost { peer, .. }
                | Event::PeerExcluded { peer, .. }
                | Event::PeerRestarted { old: peer, .. }
                | Event::PacketDropped { origin: Origin::Peer(peer), .. } => peer,
                _ => continue,
            };
            if self.honest.iter().any(|honest| honest.name == about) {
                self.errors.push(format!("an honest peer is blamed: {event:?}"));
            }
        }
        self.errors.truncate(4);
    }

    /// Sends no more, and whether all messages have arrived.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.sending = false;
        self.honest.iter().all(|honest| honest.under_way == 0 && honest.received == honest.sent)
    }
}

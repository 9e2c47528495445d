//! The scenarios: which attack, on which links, with which bounds, and what must hold.
//!
//! ```text
//!   before            during              1 s later        after           end
//!   attacker idle     attacker sends      attacker dead    attacker dead   all messages arrive
//!   └─ rate ─┘        └── rate ──┘                         └─ rate ─┘
//! ```
//!
//! A *rate* is a number of honest messages that arrived, each checked, by what the time of the link is:
//!
//! * `local`: by virtual time. The attacker sends four packets in each turn.
//! * `shm`, `tcp`: by CPU time of the one thread that runs victim and honest peers, so that other processes,
//!   the attacker's among them, don't take part in it; the median of three parts. The attacker is a process
//!   that burns CPU time before it sends, and sends as fast as it can. How much that is depends on the
//!   machine, so the rate during the attack is printed and not judged.
//!
//! On each link the victim's work for an attack is compared with that for an honest packet (`local`) or
//! message: how much of its time honest peers lose to an attacker is that times the attacker's rate.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use efa_rdm::Bounds;
use efa_sim::local::{LocalFabric, LocalOptions};
use tempfile::TempDir;

use crate::attacker::{Attacker, Target};
use crate::connections::Connections;
use crate::honest_side::{Counts, HonestSide, TICK, cpu_time};
use crate::links::{Link, device};
use crate::packets::Packets;
use crate::process::Process;

/// How to attack.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attack {
    Packets(Packets),
    Connections(Connections),
    Rings,
}

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) attack: Attack,
    pub(crate) links: &'static [Link],
    /// The links on which the bounds are the defaults; on the others they are a sixteenth of them.
    pub(crate) defaults: &'static [Link],
}

const EACH: &[Link] = &[Link::Local, Link::Shm, Link::Tcp];
const EACH_AND_LIBFABRIC: &[Link] = &[Link::Local, Link::Shm, Link::Tcp, Link::Libfabric];

const fn packets(name: &'static str, packets: Packets, about: &'static str) -> Scenario {
    Scenario { name, about, attack: Attack::Packets(packets), links: EACH, defaults: &[] }
}

const fn connections(name: &'static str, kind: Connections, about: &'static str) -> Scenario {
    let attack = Attack::Connections(kind);
    Scenario { name, about, attack, links: &[Link::Tcp], defaults: &[] }
}

/// All scenarios.
pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        links: EACH_AND_LIBFABRIC,
        ..packets(
            "restarts",
            Packets::Restarts,
            "50,000 unexpected messages, then a new connid in each packet",
        )
    },
    Scenario {
        links: EACH_AND_LIBFABRIC,
        defaults: &[Link::Shm],
        ..packets(
            "connids",
            Packets::Connids,
            "unexpected messages of 8 kB, a new connid every 50 of them",
        )
    },
    Scenario {
        links: &[Link::Local, Link::Shm, Link::Tcp, Link::Tcp6, Link::Libfabric],
        defaults: &[Link::Local, Link::Shm, Link::Tcp],
        ..packets("flood", Packets::Flood, "unexpected messages of 8 kB")
    },
    packets("long-starts", Packets::LongStarts, "starts of long messages that nobody receives"),
    packets("requests", Packets::Requests, "writes without data, reads without grants"),
    packets("receipts", Packets::Receipts, "messages and writes whose RECEIPTs are not taken"),
    packets("stale", Packets::Stale, "packets of an earlier incarnation"),
    packets("lives", Packets::Lives, "a random incarnation and message in each packet"),
    packets("garbage", Packets::Garbage, "random bytes behind the first two of a packet"),
    Scenario {
        name: "rings",
        about: "a process of the same user writes into its rings",
        attack: Attack::Rings,
        links: &[Link::Shm],
        defaults: &[],
    },
    connections("hello", Connections::Hello, "connections that say hello, and nothing more"),
    connections("half-frame", Connections::HalfFrame, "connections that send half a frame"),
    connections("silent", Connections::Silent, "connections that send nothing"),
    connections("empty-frames", Connections::EmptyFrames, "frames without a datagram"),
    connections("bytes", Connections::Bytes, "connections that send random bytes"),
    connections("claims", Connections::Claims, "frames that claim 4 GiB"),
];

/// Messages before the restarts.
pub(crate) const PREPARED: u64 = 50_000;

/// The default bounds, or a sixteenth of them.
fn bounds(defaults: bool) -> Bounds {
    if defaults {
        return Bounds::default();
    }
    Bounds::default().with(|bounds| {
        for bound in [
            &mut bounds.ahead,
            &mut bounds.unexpected,
            &mut bounds.unexpected_per_peer,
            &mut bounds.requests,
            &mut bounds.responses,
            &mut bounds.discovered,
        ] {
            *bound /= 16;
        }
    })
}

/// How long a part of a scenario takes.
#[derive(Clone, Copy, Debug)]
enum Length {
    Turns(u64),
    Cpu(Duration),
}

/// What happened in a part of a scenario.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    counts: Counts,
    cpu: Duration,
    wall: Duration,
    sent: u64,
    /// The median of the rates of its parts by CPU time, if it was measured so.
    median: f64,
}

impl Part {
    /// Messages for each second of CPU time.
    fn rate(&self) -> f64 {
        self.counts.messages as f64 / self.cpu.as_secs_f64().max(1e-9)
    }

    /// Both together.
    fn and(self, other: Self) -> Self {
        let (one, two) = (self.counts, other.counts);
        let counts = Counts {
            messages: one.messages + two.messages,
            bytes: one.bytes + two.bytes,
            packets: one.packets + two.packets,
            turns: one.turns + two.turns,
            work: one.work + two.work,
        };
        let (cpu, wall) = (self.cpu + other.cpu, self.wall + other.wall);
        Self { counts, cpu, wall, sent: self.sent + other.sent, median: 0.0 }
    }

    /// The victim's CPU time, in nanoseconds: for each of its packets, and in each turn.
    fn work(&self) -> (f64, f64) {
        let work = self.counts.work.as_nanos() as f64;
        (work / self.counts.packets.max(1) as f64, work / self.counts.turns.max(1) as f64)
    }
}

/// The result of a scenario.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) scenario: &'static str,
    pub(crate) link: Link,
    /// Packets, connections or writes of the attacker in a second.
    pub(crate) attack: f64,
    /// Honest messages in a second: before, during, after.
    pub(crate) rates: [f64; 3],
    /// The victim's work for a packet of the attacker, in nanoseconds, beyond that of its honest traffic.
    pub(crate) work: f64,
    pub(crate) bytes: u64,
    pub(crate) excluded: u64,
    pub(crate) kept: usize,
    pub(crate) grown: usize,
    pub(crate) errors: Vec<String>,
}

impl Row {
    /// Of a run in which nothing has happened yet.
    pub(crate) fn new(scenario: &'static str, link: Link) -> Self {
        let (attack, rates, work, errors) = (0.0, [0.0; 3], 0.0, Vec::new());
        let (bytes, excluded, kept, grown) = (0, 0, 0, 0);
        Self { scenario, link, attack, rates, work, bytes, excluded, kept, grown, errors }
    }
}

/// An attacker under way.
enum Running {
    Here(Box<Attacker>, LocalFabric),
    Child(Process),
}

impl Running {
    /// Another turn of an attacker in this thread.
    fn run(&mut self, side: &HonestSide) {
        if let Self::Here(attacker, _) = self {
            attacker.run(4, side.now());
        }
    }

    fn sent(&self) -> u64 {
        match self {
            Self::Here(attacker, _) => attacker.sent,
            Self::Child(process) => process.sent(),
        }
    }

    fn is_prepared(&self) -> bool {
        match self {
            Self::Here(attacker, _) => attacker.is_prepared(),
            Self::Child(process) => process.is_prepared(),
        }
    }

    /// The attacker dies; its device says goodbye to nobody.
    fn die(self) -> Result<(), String> {
        match self {
            Self::Here(attacker, network) => {
                network.kill(attacker.address()).map_err(|error| error.to_string())
            }
            Self::Child(mut process) => {
                let lived = process.is_running();
                lived.then_some(()).ok_or_else(|| "the attacker ended by itself".to_owned())
            }
        }
    }
}

/// The time of so many turns on the local link.
fn virtual_seconds(turns: u64) -> f64 {
    turns as f64 * TICK.as_secs_f64()
}

/// A directory for the files of a scenario.
pub(crate) fn directory() -> Result<TempDir, String> {
    let memory = PathBuf::from("/dev/shm");
    let memory = if memory.is_dir() { memory } else { std::env::temp_dir() };
    TempDir::new_in(memory).map_err(|error| error.to_string())
}

/// Bytes of a process in memory.
pub(crate) fn resident(process: &str) -> usize {
    let pages = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}

/// Limit of a part that goes on too long; none takes a tenth of it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Runs everyone for a time.
fn part(side: &mut HonestSide, attack: &mut Option<Running>, length: Length) -> Part {
    let sent = |attack: &Option<Running>| attack.as_ref().map_or(0, Running::sent);
    let (begun, begun_cpu, first, before) =
        (Instant::now(), cpu_time(), side.counts(), sent(attack));
    let mut turns = 0;
    loop {
        side.turn();
        if let Some(attack) = attack {
            attack.run(side);
        }
        turns += 1;
        let over = match length {
            Length::Turns(all) => turns >= all,
            Length::Cpu(time) => cpu_time() - begun_cpu >= time,
        };
        if over || begun.elapsed() > DEADLINE {
            break;
        }
    }
    let last = side.counts();
    let counts = Counts {
        messages: last.messages - first.messages,
        bytes: last.bytes - first.bytes,
        packets: last.packets - first.packets,
        turns,
        work: last.work - first.work,
    };
    let (cpu, wall) = (cpu_time() - begun_cpu, begun.elapsed());
    Part { counts, cpu, wall, sent: sent(attack) - before, median: 0.0 }
}

/// Runs everyone for a time that is measured: in three parts by CPU time, so that what else the machine does in
/// one of them doesn't count.
fn measure(side: &mut HonestSide, attack: &mut Option<Running>, length: Length) -> Part {
    let Length::Cpu(all) = length else { return part(side, attack, length) };
    let mut parts = [0; 3].map(|_| part(side, attack, Length::Cpu(all / 3)));
    parts.sort_by(|one, other| one.rate().total_cmp(&other.rate()));
    let [low, median, high] = parts;
    Part { median: median.rate(), ..low.and(median).and(high) }
}

impl Scenario {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|scenario| scenario.name == name)
    }

    /// Runs it. `Err`: it could not be run.
    pub(crate) fn run(&'static self, link: Link, seed: u64) -> Result<Row, String> {
        let grown = resident("self");
        let place = directory()?;
        let directory = place.path().join("hosts");
        let defaults = self.defaults.contains(&link);
        let bounds = bounds(defaults);
        let network = LocalFabric::new(LocalOptions::default().with(|it| it.seed = seed));
        let here = match link {
            Link::Local => network.open().into(),
            _ => device(link, Some(&directory), false)?,
        };
        let mut side = HonestSide::new(here, bounds)?;
        let (address, memory) = (side.address(), side.memory());
        let target = Target { address, memory, tag: None, seed, prepared: PREPARED };
        let cpu = |milliseconds| Length::Cpu(Duration::from_millis(milliseconds));
        let [short, long, soon] = match link {
            // The defaults take a while to be filled.
            Link::Local if defaults => [1_500, 15_000, 500].map(Length::Turns),
            Link::Local => [1_500, 5_000, 500].map(Length::Turns),
            _ if defaults => [300, 1_800, 50].map(cpu),
            _ => [300, 600, 50].map(cpu),
        };
        let mut nobody = None;
        part(&mut side, &mut nobody, soon);
        let (attack, before) = match (link, self.attack) {
            (Link::Local, Attack::Packets(packets)) => {
                let attacker = Attacker::new(&network.open().into(), packets, &target)?;
                let before = measure(&mut side, &mut nobody, short);
                (Running::Here(Box::new(attacker), network), before)
            }
            _ => {
                let mut process = Process::start(self, link, &target, Some(&directory))?;
                let before = measure(&mut side, &mut nobody, short);
                process.begin()?;
                (Running::Child(process), before)
            }
        };
        let mut attack = Some(attack);
        let prepares = Instant::now();
        while !attack.as_ref().is_some_and(Running::is_prepared) {
            part(&mut side, &mut attack, soon);
            if prepares.elapsed() > DEADLINE {
                side.errors.push("the attack isn't prepared".to_owned());
                break;
            }
        }
        let during = measure(&mut side, &mut attack, long);
        let newcomer = matches!(self.attack, Attack::Connections(_));
        if newcomer {
            self.newcomer(&mut side, &mut attack);
        }
        if let Some(attack) = attack.take() {
            attack.die()?;
        }
        let dead = Instant::now();
        match link {
            Link::Local => (0..1_000).for_each(|_| side.advance(Duration::from_millis(1))),
            _ => {
                while dead.elapsed() < Duration::from_secs(1) {
                    side.turn();
                }
            }
        }
        let after = measure(&mut side, &mut nobody, short);
        let (drains, mut turns) = (Instant::now(), 0);
        while !side.is_drained() {
            side.turn();
            turns += 1;
            if drains.elapsed() > DEADLINE || link == Link::Local && turns > 20_000 {
                side.errors.push("not all honest messages arrive".to_owned());
                break;
            }
        }
        let grown = resident("self").saturating_sub(grown);
        Ok(self.judge(link, &mut side, [before, during, after], bounds, grown))
    }

    /// An honest peer that comes during the attack is served.
    fn newcomer(&self, side: &mut HonestSide, attack: &mut Option<Running>) {
        let number = match side.add_peer() {
            Ok(number) => number,
            Err(error) => return side.errors.push(error),
        };
        let begun = Instant::now();
        while side.received_from(number) == 0 {
            part(side, attack, Length::Cpu(Duration::from_millis(10)));
            if begun.elapsed() > DEADLINE {
                return side.errors.push("a new honest peer isn't served".to_owned());
            }
        }
    }

    fn judge(
        &self,
        link: Link,
        side: &mut HonestSide,
        parts: [Part; 3],
        bounds: Bounds,
        grown: usize,
    ) -> Row {
        let excluded = side.excluded();
        let mut errors = std::mem::take(&mut side.errors);
        let rates = parts.map(|part| match link {
            Link::Local => part.counts.messages as f64 / virtual_seconds(part.counts.turns),
            _ => part.median,
        });
        let [before, during, after] = rates;
        // In virtual time, half during the attack and all after it, but for random delays.
        if link == Link::Local && during < before * 0.5 {
            errors.push(format!("{during:.0} messages/s during the attack, {before:.0} before it"));
        }
        let all = if link == Link::Local { 0.95 } else { 0.2 };
        if after < before * all {
            errors.push(format!("{after:.0} messages/s after the attack, {before:.0} before it"));
        }
        if during == 0.0 {
            errors.push("no message arrived during the attack".to_owned());
        }
        let message = 1e9 / before;
        let [before, attack, _] = parts;
        let ((packet, idle), (_, attacked)) = (before.work(), attack.work());
        if attack.sent == 0 {
            errors.push("the attacker did nothing".to_owned());
        }
        let sent = attack.sent as f64 / attack.counts.turns.max(1) as f64;
        let work = (attacked - idle).max(0.0) / sent.max(1e-9);
        let (honest, most) = match (link, self.attack) {
            (Link::Local, _) => (packet, 20.0),
            (_, Attack::Connections(_)) => (message, 40.0),
            _ => (message, 10.0),
        };
        if work > most * honest {
            errors.push(format!(
                "{work:.0} ns for an attack, {honest:.0} for an honest packet or message: {most} times that is allowed"
            ));
        }
        // What the bounds allow, and as much again as receive buffers and pools take at most.
        let limit = bounds.unexpected + (256 << 20);
        if grown > limit {
            errors.push(format!("{} MiB of memory, {} are allowed", grown >> 20, limit >> 20));
        }
        let time = match link {
            Link::Local => virtual_seconds(attack.counts.turns),
            _ => attack.wall.as_secs_f64(),
        };
        Row {
            scenario: self.name,
            link,
            attack: attack.sent as f64 / time,
            rates,
            work,
            bytes: side.counts().bytes,
            excluded,
            kept: side.kept,
            grown,
            errors,
        }
    }
}

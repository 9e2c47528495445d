//! A victim on libfabric: the C peer of `cargo xtask interop`, with libfabric's EFA provider on the
//! preloaded software device. Honest peers are ours; each of their messages is checked by the victim.
//!
//! ```text
//!   honest peers, this thread ═══ shm ═══► victim's process: libfabric ─► efa-softverbs
//!              │ ── "receive", "check" (standard input) ──────►  ▲
//!              │ ◄─────────── "done", "intact", "damaged"        ║
//!   attacker's process ════════════════ shm ═════════════════════╝
//! ```
//!
//! libfabric bounds neither the work nor the memory of unexpected messages (docs/security.md), so no rate
//! and no size is judged, only that every message arrives intact and in order, some during the attack and
//! some after it, and that the victim lives and closes its endpoint.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use efa_device::Time;
use efa_proto::RawAddress;
use efa_rdm::{Completion, Config, Endpoint, Level, Message, PeerId};
use efa_sim::{SoftDevice, SoftQueuePair};

use crate::attacker::Target;
use crate::honest_side::{LENGTHS, queue_pair};
use crate::links::{Link, device};
use crate::packets::Memory;
use crate::process::Process;
use crate::scenario::{self, DEADLINE, PREPARED, Row, Scenario, resident};

/// What a victim on libfabric needs.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    /// The C peer of `cargo xtask interop`.
    pub(crate) peer: PathBuf,
    /// `libefa_soft.so`.
    pub(crate) device: PathBuf,
}

const HONEST: u64 = 3;
/// The honest peer whose messages are received from any source, by their tag.
const ANY_SOURCE: u64 = 2;
/// Tag of the attacker's messages, which nobody receives.
const UNWANTED: u64 = 99;
/// Polls of the victim's that are asked for at a time, so that it doesn't pause between its commands.
const POLLS: u64 = 200;
/// Messages of an honest peer under way.
const UNDER_WAY: u64 = 8;

fn length(number: u64) -> u64 {
    LENGTHS[(number % LENGTHS.len() as u64) as usize] as u64
}

/// The seed of the bytes of a message.
fn seed(peer: u64, number: u64) -> u64 {
    number * HONEST + peer
}

/// Bytes that the victim knows by their seed, as its documentation says: splitmix64.
fn fill(buffer: &mut Vec<u8>, seed: u64, length: u64) {
    let start = seed.wrapping_mul(0xd134_2543_de82_ef95);
    buffer.clear();
    for word in 1..=length.div_ceil(8) {
        let mut x = start.wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        buffer.extend((x ^ x >> 31).to_le_bytes());
    }
    buffer.truncate(length as usize);
}

/// The value behind `key=` in a line.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn number(line: &str, key: &str) -> Option<u64> {
    let text = value(line, key)?;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The victim's process. It is killed when this is dropped.
#[derive(Debug)]
struct Victim {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// What is written in the next turn.
    commands: String,
    /// Commands without an answer.
    unanswered: VecDeque<String>,
}

impl Victim {
    fn start(programs: &Programs, place: &Path) -> Result<Self, String> {
        let mut command = Command::new(&programs.peer);
        command.env("LD_PRELOAD", &programs.device).env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
        command.env("EFA_SOFT_NAME", "hostile").env("EFA_SOFT_DIRECTORY", place.join("hosts"));
        command.env("EFA_SOFT_SYSFS", place).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("no victim: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the victim has no standard input or output".to_owned());
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.into_iter().try_for_each(|line| sender.send(line))
        });
        let (commands, unanswered) = (String::new(), VecDeque::new());
        Ok(Self { child, input, lines, commands, unanswered })
    }

    fn command(&mut self, command: std::fmt::Arguments<'_>) {
        let start = self.commands.len();
        let _ = writeln!(self.commands, "{command}");
        self.unanswered.push_back(self.commands[start..].trim_end().to_owned());
    }

    /// Writes the commands. A pipe takes them all: few are under way.
    fn write(&mut self) -> Result<(), String> {
        let written = self.input.write_all(self.commands.as_bytes());
        self.commands.clear();
        written.map_err(|error| self.gone(&error.to_string()))
    }

    /// Runs a command, and returns its answer.
    fn ask(&mut self, command: &str) -> Result<String, String> {
        self.commands.push_str(command);
        self.commands.push('\n');
        self.write()?;
        loop {
            match self.lines.recv_timeout(DEADLINE) {
                Ok(line) if line.starts_with("event") => {}
                Ok(line) => return Ok(line),
                Err(error) => return Err(self.gone(&format!("`{command}`: {error}"))),
            }
        }
    }

    fn gone(&mut self, why: &str) -> String {
        match self.child.try_wait() {
            Ok(Some(status)) => format!("the victim has ended with {status}: {why}"),
            _ => format!("the victim doesn't answer: {why}"),
        }
    }

    fn resident(&self) -> usize {
        resident(&self.child.id().to_string())
    }

    /// CPU time.
    fn cpu(&self) -> Duration {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // The fields 14 and 15; the name before them may have spaces.
        let fields = text.rsplit(") ").next().unwrap_or_default().split(' ').skip(11);
        let ticks: u64 = fields.take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
struct Honest {
    endpoint: Endpoint<SoftQueuePair, Vec<u8>>,
    victim: PeerId,
    /// Its number at the victim.
    name: u64,
    sent: u64,
    under_way: u64,
    posted: u64,
    /// The message that the receive in each slot gets. Later ones can complete earlier.
    slots: [u64; UNDER_WAY as usize],
    received: u64,
    spare: Vec<Vec<u8>>,
}

/// The victim and its honest peers.
#[derive(Debug)]
struct Side {
    victim: Victim,
    address: RawAddress,
    honest: Vec<Honest>,
    start: Instant,
    sending: bool,
    bytes: u64,
    errors: Vec<String>,
}

impl Side {
    fn new(device: &SoftDevice, mut victim: Victim) -> Result<Self, String> {
        let opened = victim.ask("open")?;
        let digits = value(&opened, "address").unwrap_or_default();
        let bytes: Vec<u8> = (0..digits.len() / 2)
            .filter_map(|at| u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok())
            .collect();
        let address = RawAddress::from_bytes(&bytes)
            .map_err(|error| format!("the victim's address in `{opened}`: {error}"))?;
        let mut honest = Vec::new();
        for number in 0..HONEST {
            let queue_pair = queue_pair(device, 0x2000 + number as u32)?;
            let mut endpoint = Endpoint::new(queue_pair, Config::default())
                .map_err(|error| format!("no honest peer: {error}"))?;
            let name =
                endpoint.address().to_bytes().iter().fold(String::new(), |mut text, byte| {
                    let _ = write!(text, "{byte:02x}");
                    text
                });
            let answer = victim.ask(&format!("peer address={name}"))?;
            let name = self::number(&answer, "peer").ok_or_else(|| format!("seen `{answer}`"))?;
            let inserted = endpoint.insert_peer(address);
            let victim = inserted.map_err(|error| format!("no peer: {error}"))?;
            let (sent, under_way, posted, received, spare) = (0, 0, 0, 0, Vec::new());
            let slots = [0; UNDER_WAY as usize];
            honest.push(Honest {
                endpoint,
                victim,
                name,
                sent,
                under_way,
                posted,
                slots,
                received,
                spare,
            });
        }
        let (start, errors) = (Instant::now(), Vec::new());
        let mut side = Self { victim, address, honest, start, sending: true, bytes: 0, errors };
        for peer in 0..HONEST {
            (0..UNDER_WAY).for_each(|slot| side.post(peer, slot));
        }
        for _ in 0..2 {
            side.victim.command(format_args!("poll rounds={POLLS}"));
        }
        Ok(side)
    }

    /// Has the victim post the next receive from an honest peer.
    fn post(&mut self, peer: u64, slot: u64) {
        let honest = &mut self.honest[peer as usize];
        let (position, name) = (honest.posted, honest.name);
        honest.posted += 1;
        honest.slots[slot as usize] = position;
        let (id, size) = (peer * UNDER_WAY + slot, length(position));
        // Of one peer from any source, as MPI libraries receive: libfabric looks through all unexpected
        // messages for these.
        let from = if peer == ANY_SOURCE { String::new() } else { format!("from={name}") };
        self.victim.command(format_args!("receive id={id} size={size} {from} tag={peer}"));
    }

    /// Every honest peer once, and what the victim said.
    fn turn(&mut self) -> Result<(), String> {
        for peer in 0..HONEST {
            self.run_honest(peer);
        }
        loop {
            match self.victim.lines.try_recv() {
                Ok(line) => self.take(&line)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(self.victim.gone("no more output")),
            }
        }
        self.errors.truncate(4);
        self.victim.write()
    }

    fn run_honest(&mut self, peer: u64) {
        let now = Time::ZERO + self.start.elapsed();
        let honest = &mut self.honest[peer as usize];
        while self.sending && honest.under_way < UNDER_WAY {
            let mut buffer = honest.spare.pop().unwrap_or_default();
            fill(&mut buffer, seed(peer, honest.sent), length(honest.sent));
            let level =
                if honest.sent.is_multiple_of(2) { Level::Transmit } else { Level::Delivery };
            let (tag, cq_data) = (Some(peer), Some(honest.sent));
            let (peer, context) = (honest.victim, honest.sent);
            let message = Message { peer, tag, cq_data, level, buffer, context };
            if let Err(refused) = honest.endpoint.send(message) {
                self.errors.push(format!("an honest send: {}", refused.error));
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
                self.errors.push(format!("message {} of peer {peer}: {error}", done.context));
            }
        }
        while honest.endpoint.poll_event().is_some() {}
    }

    /// A line of the victim's.
    fn take(&mut self, line: &str) -> Result<(), String> {
        match line.split(' ').next() {
            Some("done") => self.arrived(line),
            Some("failed") => Err(format!("a receive failed: `{line}`")),
            // libfabric can't send its HANDSHAKE to an incarnation that doesn't exist.
            Some("event") => Ok(()),
            Some("ok" | "intact") => {
                let asked = self.victim.unanswered.pop_front();
                let asked = asked.ok_or_else(|| format!("`{line}` answers nothing"))?;
                if self.sending && asked.starts_with("poll") {
                    self.victim.command(format_args!("{asked}"));
                }
                Ok(())
            }
            _ => {
                let asked = self.victim.unanswered.pop_front();
                Err(format!("`{}`: `{line}`", asked.unwrap_or_default()))
            }
        }
    }

    /// A message from an honest peer is there: the victim checks it, and receives another.
    fn arrived(&mut self, line: &str) -> Result<(), String> {
        let id = number(line, "id").filter(|id| *id < HONEST * UNDER_WAY);
        let id = id.ok_or_else(|| format!("no such receive: `{line}`"))?;
        let (peer, slot) = (id / UNDER_WAY, id % UNDER_WAY);
        let honest = &mut self.honest[peer as usize];
        honest.received += 1;
        let (position, name) = (honest.slots[slot as usize], honest.name);
        let size = length(position);
        for (key, expected) in [("length", size), ("data", position), ("from", name)] {
            if number(line, key) != Some(expected) {
                return Err(format!("message {position} of peer {peer}: `{line}`"));
            }
        }
        self.bytes += size;
        let seed = seed(peer, position);
        self.victim.command(format_args!("check id={id} length={size} seed={seed}"));
        self.post(peer, slot);
        Ok(())
    }

    fn received(&self) -> u64 {
        self.honest.iter().map(|honest| honest.received).sum()
    }

    fn is_drained(&mut self) -> bool {
        self.sending = false;
        self.honest.iter().all(|honest| honest.under_way == 0 && honest.received == honest.sent)
    }

    /// Runs for a time, and longer until a message has arrived.
    fn part(&mut self, time: Duration) -> Result<(), String> {
        let (begun, received) = (Instant::now(), self.received());
        while begun.elapsed() < time || self.received() == received {
            self.turn()?;
            if begun.elapsed() > DEADLINE {
                return Err(format!("no honest message arrives in {DEADLINE:?}"));
            }
        }
        Ok(())
    }

    fn moment(&self) -> Moment {
        Moment { received: self.received(), cpu: self.victim.cpu() }
    }
}

/// Messages and the victim's CPU time until a moment.
#[derive(Clone, Copy, Debug)]
struct Moment {
    received: u64,
    cpu: Duration,
}

impl Moment {
    /// Messages in a second of the victim's CPU time.
    fn rate_until(&self, end: &Self) -> f64 {
        let cpu = end.cpu.saturating_sub(self.cpu).as_secs_f64();
        (end.received - self.received) as f64 / cpu.max(0.01)
    }
}

/// Memory of the victim beyond which the attack isn't continued: libfabric has no bound.
const MEMORY: usize = 1 << 30;
const SECOND: Duration = Duration::from_secs(1);

/// Runs a scenario. `Err`: it could not be run.
pub(crate) fn run(
    scenario: &'static Scenario,
    seed: u64,
    programs: &Programs,
) -> Result<Row, String> {
    let place = scenario::directory()?;
    let place = place.path();
    let directory = place.join("hosts");
    let here = device(Link::Libfabric, Some(&directory), false)?;
    let mut side = Side::new(&here, Victim::start(programs, place)?)?;
    let memory = Memory { address: 0, key: 0, length: 0 };
    let tag = Some(UNWANTED);
    let target = Target { address: side.address, memory, tag, seed, prepared: PREPARED };
    let attacker = Process::start(scenario, Link::Libfabric, &target, Some(&directory))?;
    let mut row = Row::new(scenario.name, Link::Libfabric);
    if let Err(error) = attack(&mut side, attacker, &mut row) {
        side.errors.push(error);
    }
    row.bytes = side.bytes;
    row.errors = side.errors;
    Ok(row)
}

fn attack(side: &mut Side, mut attacker: Process, row: &mut Row) -> Result<(), String> {
    side.part(SECOND / 10)?;
    let resident = side.victim.resident();
    let start = side.moment();
    side.part(SECOND)?;
    let begun = side.moment();
    attacker.begin()?;
    let prepares = Instant::now();
    while !attacker.is_prepared() && prepares.elapsed() < DEADLINE {
        side.turn()?;
    }
    let (prepared, attacked, sent) = (side.moment(), Instant::now(), attacker.sent());
    while attacked.elapsed() < 2 * SECOND && side.victim.resident() < resident + MEMORY {
        side.part(SECOND / 10)?;
    }
    let (over, attacks) = (side.moment(), (attacker.sent() - sent) as f64);
    row.attack = attacks / attacked.elapsed().as_secs_f64();
    if !attacker.is_running() || attacks == 0.0 {
        side.errors.push("the attacker ended by itself, or did nothing".to_owned());
    }
    drop(attacker);
    side.part(SECOND)?;
    let after = side.moment();
    side.part(SECOND)?;
    row.rates =
        [start.rate_until(&begun), prepared.rate_until(&over), after.rate_until(&side.moment())];
    let honest = (over.received - prepared.received) as f64 / row.rates[0];
    let work = (over.cpu - prepared.cpu).as_secs_f64() - honest;
    row.work = work.max(0.0) * 1e9 / attacks.max(1.0);
    row.grown = side.victim.resident().saturating_sub(resident);
    let drains = Instant::now();
    while !side.is_drained() || !side.victim.unanswered.is_empty() {
        side.turn()?;
        if drains.elapsed() > DEADLINE {
            return Err("not all honest messages arrive".to_owned());
        }
    }
    let closed = side.victim.ask("close")?;
    if closed != "closed" {
        return Err(format!("the victim closes its endpoint: `{closed}`"));
    }
    Ok(())
}

//! An attacker in a process of its own: this program, started again.
//!
//! ```text
//!   scenario                                   attacker's process
//!      │ ── starts it ────────────────────────► opens its device
//!      │ ◄──────────────────────────── "ready"  burns CPU time, sends nothing
//!      │ ── "go" ─────────────────────────────► attacks
//!      │ ◄─────────────── "prepared", "sent N"
//!      │ ── SIGKILL                             (it also ends when its standard input does)
//! ```

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use efa_device::{Gid, Time};
use efa_proto::{Connid, RawAddress};
use efa_sim::SoftDevice;

use crate::attacker::{Attacker, LIFE, Target};
use crate::connections::ConnectionAttack;
use crate::links::{Link, device};
use crate::packets::{Memory, Packets};
use crate::rings;
use crate::scenario::{Attack, Scenario};

/// What the process reports.
#[derive(Debug, Default)]
struct Report {
    ready: AtomicBool,
    prepared: AtomicBool,
    sent: AtomicU64,
}

/// A process that attacks. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    report: Arc<Report>,
}

/// Arguments of the hidden subcommand `attack`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    scenario: String,
    link: Link,
    /// GID, queue pair number, connid; address, key and length of memory; seed and prepared messages; the
    /// tag, if there is one.
    #[arg(value_delimiter = ',')]
    target: Vec<String>,
    #[arg(long)]
    directory: Option<PathBuf>,
}

impl Process {
    pub(crate) fn start(
        scenario: &Scenario,
        link: Link,
        to: &Target,
        directory: Option<&PathBuf>,
    ) -> Result<Self, String> {
        let Target { address, memory, tag, seed, prepared } = to;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        let numbers = [address.qpn.into(), address.connid.0.into(), memory.address]
            .into_iter()
            .chain([memory.key.into(), memory.length, *seed, *prepared])
            .chain(*tag)
            .map(|number: u64| number.to_string());
        let words: Vec<_> = std::iter::once(Gid(address.gid).to_string()).chain(numbers).collect();
        command.args(["attack", scenario.name, link.name(), &words.join(",")]);
        if let Some(directory) = directory {
            command.arg("--directory").arg(directory);
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("the attacker doesn't start: {error}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let report = Arc::new(Report::default());
        let process = Self { child, input, report: Arc::clone(&report) };
        if let Some(output) = output {
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    match line.split_once(' ') {
                        Some(("sent", number)) => {
                            report.sent.store(number.parse().unwrap_or(0), Ordering::Relaxed);
                        }
                        _ if line == "ready" => report.ready.store(true, Ordering::Relaxed),
                        _ => report.prepared.store(true, Ordering::Relaxed),
                    }
                }
            });
        }
        let limit = Instant::now() + Duration::from_secs(30);
        while !process.report.ready.load(Ordering::Relaxed) {
            if Instant::now() > limit {
                return Err("the attacker isn't ready after 30 s".to_owned());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(process)
    }

    pub(crate) fn begin(&mut self) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("the attacker has no input")?;
        input.write_all(b"go\n").map_err(|error| format!("the attacker is gone: {error}"))
    }

    pub(crate) fn is_prepared(&self) -> bool {
        self.report.prepared.load(Ordering::Relaxed)
    }

    pub(crate) fn sent(&self) -> u64 {
        self.report.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Arguments {
    fn target(&self) -> Option<Target> {
        let gid: std::net::Ipv6Addr = self.target.first()?.parse().ok()?;
        let number = |place: usize| self.target.get(place)?.parse::<u64>().ok();
        let (qpn, connid) = (number(1)? as u16, Connid(number(2)? as u32));
        let memory = Memory { address: number(3)?, key: number(4)? as u32, length: number(5)? };
        let address = RawAddress { gid: gid.octets(), qpn, connid };
        let (seed, prepared, tag) = (number(6)?, number(7)?, number(8));
        Some(Target { address, memory, tag, seed, prepared })
    }
}

fn report(line: std::fmt::Arguments<'_>) {
    let mut output = std::io::stdout().lock();
    if writeln!(output, "{line}").and_then(|()| output.flush()).is_err() {
        std::process::exit(0);
    }
}

/// What an attacker does over and over.
enum Action {
    Packets(Box<Attacker>),
    Rings(Vec<(std::fs::File, u64)>, fastrand::Rng, u64, Box<Attacker>),
    Connections(ConnectionAttack),
}

impl Action {
    fn new(scenario: &Scenario, arguments: &Arguments, to: &Target) -> Result<Self, String> {
        if let Attack::Connections(kind) = scenario.attack {
            let port = to.address.qpn;
            let host = std::net::Ipv6Addr::from(to.address.gid).to_canonical();
            let key = to.address.connid.0;
            return Ok(Self::Connections(ConnectionAttack::new(
                kind,
                (host, port).into(),
                key,
                to.seed,
            )));
        }
        let device = device(arguments.link, arguments.directory.as_ref(), true)?;
        let packets = match scenario.attack {
            Attack::Packets(packets) => packets,
            _ => Packets::Garbage,
        };
        let mut attacker = Box::new(Attacker::new(&device, packets, to)?);
        let (Attack::Rings, SoftDevice::Shm(host)) = (scenario.attack, &device) else {
            return Ok(Self::Packets(attacker));
        };
        attacker.run(1, Time::ZERO);
        let rings = rings::open(host.path(), attacker.qpn());
        if rings.is_empty() {
            return Err("no ring was found".to_owned());
        }
        Ok(Self::Rings(rings, fastrand::Rng::with_seed(to.seed), 0, attacker))
    }

    fn run(&mut self, now: Time) -> (bool, u64) {
        match self {
            Self::Packets(attacker) => {
                attacker.run(64, now);
                (attacker.is_prepared(), attacker.sent)
            }
            Self::Rings(rings, random, written, attacker) => {
                for _ in 0..16 {
                    *written += rings::write_random(rings, random);
                }
                attacker.run(1, now);
                (true, *written)
            }
            Self::Connections(attack) => {
                attack.run();
                (true, attack.count)
            }
        }
    }
}

/// The attacker's process.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let scenario = Scenario::named(&arguments.scenario).ok_or("no such scenario")?;
    let to = arguments.target().ok_or("no target")?;
    let mut action = Action::new(scenario, arguments, &to)?;
    static GO: AtomicBool = AtomicBool::new(false);
    thread::spawn(|| {
        let mut input = std::io::stdin().lock();
        let mut byte = [0; 3];
        if input.read_exact(&mut byte).is_ok() {
            GO.store(true, Ordering::Relaxed);
            let _ = input.read_to_end(&mut Vec::new());
        }
        std::process::exit(0);
    });
    report(format_args!("ready"));
    let start = Instant::now();
    while !GO.load(Ordering::Relaxed) && start.elapsed() < LIFE {
        std::hint::spin_loop();
    }
    let (mut prepared, mut reported) = (false, start);
    while start.elapsed() < LIFE {
        let (is_prepared, sent) = action.run(Time::ZERO + start.elapsed());
        if is_prepared && !prepared {
            prepared = true;
            report(format_args!("prepared"));
        }
        if reported.elapsed() > Duration::from_millis(50) {
            reported = Instant::now();
            report(format_args!("sent {sent}"));
        }
    }
    Ok(())
}

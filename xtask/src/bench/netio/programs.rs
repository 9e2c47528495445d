//! The programs of `cargo xtask bench netio`, and how they run.

use std::fmt;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use tempfile::TempDir;

use crate::process::{self, Running};
use crate::profile::Profile;
use crate::workspace::Workspace;

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "lower")]
pub(super) enum Contestant {
    Ours,
    /// `efa` without NetIO.
    Efa,
    ZeroMq,
    Zenoh,
    #[value(name = "iceoryx2")]
    Iceoryx,
    Nng,
    /// Processes that copy from one mapping.
    Copy,
}

impl Contestant {
    pub(super) const ALL: [Self; 7] =
        [Self::Ours, Self::Efa, Self::ZeroMq, Self::Zenoh, Self::Iceoryx, Self::Nng, Self::Copy];

    /// A peer's package in the workspace of peers, and a file without which it can't be built, of a package of Debian.
    fn peer(self) -> Option<(&'static str, Option<(&'static str, &'static str)>)> {
        match self {
            Self::Ours | Self::Efa | Self::Copy => None,
            Self::ZeroMq => {
                Some(("netio-peer-zeromq", Some(("/usr/include/zmq.h", "libzmq3-dev"))))
            }
            Self::Zenoh => Some(("netio-peer-zenoh", None)),
            Self::Iceoryx => Some(("netio-peer-iceoryx2", None)),
            Self::Nng => Some(("netio-peer-nng", Some(("/usr/include/nng/nng.h", "libnng-dev")))),
        }
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ours => "NetIO, shm link",
            Self::Efa => "efa alone",
            Self::ZeroMq => "ZeroMQ, ipc",
            Self::Zenoh => "zenoh, Unix socket",
            Self::Iceoryx => "iceoryx2",
            Self::Nng => "NNG, ipc",
            Self::Copy => "copies of one mapping",
        })
    }
}

/// A run of a publisher and its subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) size: usize,
    pub(super) subscribers: usize,
    pub(super) time: Duration,
    /// Messages in a second; 0 is as many as possible.
    pub(super) pace: u32,
    /// Whether subscribers read every byte.
    pub(super) reads: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Messages in a second at a subscriber, in the mean.
    pub(super) rate: f64,
    /// 10⁹ bytes in a second, at all of them.
    pub(super) gigabytes: f64,
    /// Microseconds of processors for a message at a subscriber, both sides together.
    pub(super) processor: f64,
    /// Share of the messages that did not arrive.
    pub(super) lost: f64,
    /// Microseconds from the publication to the subscriber: the medians of all subscribers, in the mean; and the worst of
    /// what 99 % stay below.
    pub(super) median: f64,
    pub(super) late: f64,
}

impl Figures {
    fn of(run: Run, publisher: &str, subscribers: &[String]) -> Result<Self> {
        let [_, _, used] = numbers(publisher, ["published", "nanoseconds", "processor"])?;
        let names = ["received", "lost", "nanoseconds", "processor", "median", "late"];
        let (mut all, mut count, mut missing, mut used) = (Self::default(), 0.0, 0.0, used);
        for said in subscribers {
            let [received, lost, time, processor, median, late] = numbers(said, names)?;
            let rate = received / (time.max(1.0) / 1e9);
            all.rate += rate;
            all.gigabytes += rate * run.size as f64 / 1e9;
            all.median += median / 1e3;
            all.late = all.late.max(late / 1e3);
            (count, missing, used) = (count + received, missing + lost, used + processor);
        }
        let share = subscribers.len() as f64;
        (all.rate, all.median) = (all.rate / share, all.median / share);
        all.processor = used / 1e3 / count.max(1.0);
        all.lost = missing / (count + missing).max(1.0);
        Ok(all)
    }
}

/// Numbers, each behind its name.
fn numbers<const N: usize>(said: &str, names: [&str; N]) -> Result<[f64; N]> {
    let words: Vec<&str> = said.split_whitespace().collect();
    let mut found = [0.0; N];
    for ((pair, name), found) in words.chunks(2).zip(names).zip(&mut found) {
        match pair {
            [word, number] if *word == name => *found = number.parse()?,
            _ => bail!("a process said `{}`", said.trim()),
        }
    }
    match words.len() == 2 * N {
        true => Ok(found),
        false => bail!("a process said `{}`", said.trim()),
    }
}

/// A directory of a run, removed at its end. Its path is short, as sockets are in it.
fn place() -> Result<TempDir> {
    tempfile::Builder::new().prefix("efa-").tempdir().context("cannot make a directory")
}

/// The programs.
pub(super) struct Range {
    programs: Vec<(Contestant, PathBuf)>,
    ours: PathBuf,
    copies: bool,
    /// Who is missing, and why.
    pub(super) missing: Vec<String>,
    deadline: Duration,
}

impl Range {
    pub(super) fn build(
        workspace: &Workspace,
        target: &Path,
        who: &[Contestant],
        deadline: u64,
    ) -> Result<Self> {
        let ours = Profile::Release.program(workspace, "efa-bench-netio")?;
        let (mut programs, mut missing) = (Vec::new(), Vec::new());
        for &who in who {
            match who.peer() {
                None if who == Contestant::Copy => {}
                None => programs.push((who, ours.clone())),
                Some((_, Some((file, package)))) if !Path::new(file).is_file() => {
                    missing.push(format!("{who}: missing; Debian has it in {package}"));
                }
                Some((package, _)) => match build_peer(workspace, target, package) {
                    Ok(program) => programs.push((who, program)),
                    Err(error) => missing.push(format!("{who}: missing; {error:#}")),
                },
            }
        }
        let copies = who.contains(&Contestant::Copy);
        let deadline = Duration::from_secs(deadline);
        Ok(Self { programs, ours, copies, missing, deadline })
    }

    /// All that publish.
    pub(super) fn programs(&self) -> impl Iterator<Item = Contestant> {
        self.programs.iter().map(|(who, _)| *who)
    }

    pub(super) fn has(&self, who: Contestant) -> bool {
        match who {
            Contestant::Copy => self.copies,
            _ => self.programs().any(|other| other == who),
        }
    }

    /// Runs a publisher and its subscribers.
    pub(super) fn publish(&self, who: Contestant, run: Run) -> Result<Figures> {
        let program = self.programs.iter().find(|(other, _)| *other == who);
        let (_, program) = program.context("a program that wasn't built")?;
        let place = place()?;
        let words = words(place.path(), run)?;
        let until = Instant::now() + self.deadline + run.time;
        let start = |role: &str| {
            let mut command = Command::new(program);
            command.args((who == Contestant::Efa).then_some("bare"));
            command.arg(role).args(&words).stdin(Stdio::null());
            Running::start(command.env("IOX2_LOG_LEVEL", "Error"))
        };
        let subscribers = (0..run.subscribers).map(|_| start("subscribe"));
        let mut subscribers = subscribers.collect::<Result<Vec<_>>>()?;
        let publisher = start("publish")?.finish(until).context("the publisher")?;
        let said = subscribers.iter_mut().map(|subscriber| subscriber.finish(until));
        let said = said.collect::<Result<Vec<_>>>().context("a subscriber")?;
        Figures::of(run, &publisher, &said)
    }

    /// Runs processes that copy.
    pub(super) fn copy(&self, run: Run) -> Result<Figures> {
        let place = place()?;
        let words = words(place.path(), run)?;
        let said = self.ours("copy", &words)?;
        let [count, time, used] = numbers(&said, ["copied", "nanoseconds", "processor"])?;
        let all = count / (time / 1e9);
        Ok(Figures {
            rate: all / run.subscribers as f64,
            gigabytes: all * run.size as f64 / 1e9,
            processor: used / 1e3 / count.max(1.0),
            ..Figures::default()
        })
    }

    /// One of eight subscribers is stopped: deliveries to the others in a second, before and after.
    pub(super) fn stopped(&self) -> Result<[f64; 2]> {
        numbers(&self.ours("stopped", &[])?, ["before", "after"])
    }

    /// Subscribers are killed: milliseconds until the publisher knows it, median and longest.
    pub(super) fn killed(&self) -> Result<[f64; 2]> {
        Ok(numbers(&self.ours("killed", &[])?, ["median", "longest"])?.map(|time| time / 1e6))
    }

    /// Shares of a processor that an idle publisher and subscriber take.
    pub(super) fn idle(&self) -> Result<[f64; 2]> {
        Ok(numbers(&self.ours("idle", &[])?, ["publisher", "subscriber"])?.map(|part| part / 1e6))
    }

    fn ours(&self, what: &str, words: &[String]) -> Result<String> {
        let mut command = Command::new(&self.ours);
        let mut running = Running::start(command.arg(what).args(words).stdin(Stdio::null()))?;
        running.finish(Instant::now() + self.deadline).context(what.to_owned())
    }
}

fn words(place: &Path, run: Run) -> Result<Vec<String>> {
    // A port that is free now; if another process takes it meanwhile, the run fails.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let Run { size, subscribers, time, pace, reads } = run;
    let how = if reads { "read" } else { "look" };
    let numbers = [u128::from(port), size as u128, subscribers as u128, time.as_millis()];
    let mut words = vec![place.display().to_string()];
    words.extend(numbers.map(|number| number.to_string()));
    words.extend([pace.to_string(), how.to_owned()]);
    Ok(words)
}

fn build_peer(workspace: &Workspace, target: &Path, package: &str) -> Result<PathBuf> {
    let directory = target.join("netio-peers");
    let mut cargo = workspace.cargo();
    cargo.current_dir(workspace.root().join("tests/bench/netio/peers"));
    cargo.args(["build", "--quiet", "--release", "--locked", "--package", package]);
    process::run(cargo.arg("--target-dir").arg(&directory))?;
    Ok(directory.join("release").join(package))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_sums_and_means_of_what_processes_say() {
        let run =
            Run { size: 1000, subscribers: 2, time: Duration::from_secs(1), pace: 1, reads: false };
        let publisher = "published 100 nanoseconds 1000000000 processor 50000\n";
        let said = [
            "received 100 lost 0 nanoseconds 1000000000 processor 50000 median 1000 late 9000",
            "received 50 lost 50 nanoseconds 1000000000 processor 50000 median 3000 late 4000",
        ];
        let figures = Figures::of(run, publisher, &said.map(str::to_owned)).unwrap();
        let expected = Figures {
            rate: 75.0,
            gigabytes: 0.00015,
            processor: 1.0,
            lost: 0.25,
            median: 2.0,
            late: 9.0,
        };
        assert!((figures.gigabytes - expected.gigabytes).abs() < 1e-12);
        assert_eq!(Figures { gigabytes: expected.gigabytes, ..figures }, expected);
        for said in ["", "published 1", "published 1 nanoseconds x processor 1", "a 1 b 2 c 3"] {
            assert!(Figures::of(run, said, &[]).is_err(), "{said}");
        }
    }
}

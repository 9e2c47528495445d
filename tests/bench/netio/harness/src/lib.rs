//! What the programs of `cargo xtask bench netio` have in common: what is published, and what is measured.
//!
//! ```text
//!   publisher    hello … until all subscribers have heard one │ warm up │ messages that count │ end
//!   subscriber   says that it has heard one (a file)          │         │ counts, times       │ reports
//! ```
//!
//! ```text
//! PROGRAM publish|subscribe DIRECTORY PORT SIZE SUBSCRIBERS MILLISECONDS PER_SECOND look|read
//! ```
//!
//! All of a run share a directory and a TCP port; each program uses what it needs. `PER_SECOND` is 0 to publish as fast as
//! possible; otherwise a subscriber reports how old messages are when it has them. `read`: it adds up all bytes.
//!
//! Every message begins with a [`Stamp`]. A gap in the numbers is a loss, and told.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::time::{ClockId, clock_gettime};

/// Longest time that a part of a run may take beside the messages that count.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two messages by which subscribers are found.
const HELLO: Duration = Duration::from_millis(5);
const WARM: Duration = Duration::from_millis(200);
/// Least bytes of a message.
pub const LEAST: usize = Stamp::LENGTH;
/// Bytes of all messages that a publisher or subscriber keeps, but for their least and largest number.
const MEMORY: usize = 8 << 20;

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Job {
    /// Of the run.
    pub directory: PathBuf,
    /// Free when the run began.
    pub port: u16,
    /// Bytes of a message.
    pub size: usize,
    /// How many there are.
    pub subscribers: usize,
    /// How long to publish.
    pub time: Duration,
    /// Messages in a second; 0 is as many as possible.
    pub pace: u32,
    /// Whether subscribers read every byte.
    pub reads: bool,
}

impl Job {
    /// From the words behind the role.
    ///
    /// # Errors
    /// They are not what they should be.
    pub fn of(words: &[String]) -> Result<Self> {
        let [directory, port, size, subscribers, time, pace, how] = words else {
            bail!("DIRECTORY PORT SIZE SUBSCRIBERS MILLISECONDS PER_SECOND look|read are expected");
        };
        let job = Self {
            directory: directory.into(),
            port: port.parse().context("PORT")?,
            size: size.parse().context("SIZE")?,
            subscribers: subscribers.parse().context("SUBSCRIBERS")?,
            time: Duration::from_millis(time.parse().context("MILLISECONDS")?),
            pace: pace.parse().context("PER_SECOND")?,
            reads: how == "read",
        };
        ensure!(job.size >= LEAST, "a message has at least {LEAST} bytes");
        Ok(job)
    }

    /// How many messages a side keeps: 4 to 512, of 8 MiB.
    #[must_use]
    pub fn depth(&self) -> usize {
        (MEMORY / self.size).clamp(4, 512)
    }

    /// The path of a socket in the directory.
    #[must_use]
    pub fn socket(&self) -> String {
        self.directory.join("socket").display().to_string()
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// It doesn't count.
    Warm = 0,
    /// It counts.
    Counts = 1,
    /// It is the last one. Its number is how many messages there were that count.
    End = 2,
}

/// The first bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// What it is.
    pub phase: Phase,
    /// Its number among those that count.
    pub number: u64,
    /// When it was published, by the system's monotonic clock.
    pub at: u64,
}

impl Stamp {
    /// Its bytes.
    pub const LENGTH: usize = 24;

    fn now(phase: Phase, number: u64) -> Self {
        Self { phase, number, at: now() }
    }

    /// As it is at the beginning of a message.
    #[must_use]
    pub fn bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&(self.phase as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..].copy_from_slice(&self.at.to_le_bytes());
        bytes
    }

    /// Of a message.
    ///
    /// # Errors
    /// It is none of a publisher.
    pub fn of(message: &[u8]) -> Result<Self> {
        let word = |at: usize| {
            let bytes = message.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u64::from_le_bytes).context("a message that is too short")
        };
        let phase = match word(0)? {
            0 => Phase::Warm,
            1 => Phase::Counts,
            2 => Phase::End,
            other => bail!("a message of phase {other}"),
        };
        Ok(Self { phase, number: word(8)?, at: word(16)? })
    }
}

/// Nanoseconds of the system's monotonic clock.
#[must_use]
pub fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Nanoseconds of the processors that this process has used.
#[must_use]
pub fn processor_time() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A program's publisher.
pub trait Publish {
    /// Publishes a message that begins with the stamp, and waits while there is no room for it.
    ///
    /// # Errors
    /// It can't be published.
    fn publish(&mut self, stamp: &[u8; Stamp::LENGTH]) -> Result<()>;

    /// Lets time pass; what is under way goes on.
    ///
    /// # Errors
    /// Something failed.
    fn rest(&mut self, time: Duration) -> Result<()> {
        std::thread::sleep(time);
        Ok(())
    }

    /// Waits until all subscribers have what was published, if that can be known.
    ///
    /// # Errors
    /// They don't get it.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether messages may get lost, so that the last one is repeated.
    fn loses(&self) -> bool {
        false
    }
}

/// A program's subscriber.
pub trait Subscribe {
    /// Waits for a message, and shows it. `false`: there is none yet.
    ///
    /// # Errors
    /// The publisher is gone.
    fn receive(&mut self, show: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Waits a while, after the last message, for the publisher to know that it is here. `false`: it may not know yet.
    ///
    /// # Errors
    /// The publisher is gone.
    fn is_known(&mut self) -> Result<bool> {
        Ok(true)
    }
}

/// The `main` of a program.
///
/// # Errors
/// The words are wrong, or the run failed.
pub fn run<P: Publish, S: Subscribe>(
    words: &[String],
    publisher: impl FnOnce(&Job) -> Result<P>,
    subscriber: impl FnOnce(&Job) -> Result<S>,
) -> Result<()> {
    match words.split_first() {
        Some((role, rest)) if role == "publish" => {
            let job = Job::of(rest)?;
            let mut publisher = publisher(&job)?;
            println!("{}", publish(&job, &mut publisher)?);
        }
        Some((role, rest)) if role == "subscribe" => {
            let job = Job::of(rest)?;
            let mut subscriber = subscriber(&job)?;
            println!("{}", subscribe(&job, &mut subscriber)?);
        }
        _ => bail!("publish or subscribe is expected"),
    }
    Ok(())
}

/// The side of a publisher; returns its report.
fn publish(job: &Job, to: &mut impl Publish) -> Result<String> {
    let begin = Instant::now();
    while told(&job.directory, HEARD)? < job.subscribers {
        ensure!(begin.elapsed() < PATIENCE, "the subscribers don't come");
        to.publish(&Stamp::now(Phase::Warm, 0).bytes())?;
        to.rest(HELLO)?;
    }
    let warm = Instant::now();
    while warm.elapsed() < WARM && job.pace == 0 {
        to.publish(&Stamp::now(Phase::Warm, 0).bytes())?;
    }
    let (begin, processor) = (Instant::now(), processor_time());
    let mut number = 0;
    while begin.elapsed() < job.time {
        to.publish(&Stamp::now(Phase::Counts, number).bytes())?;
        number += 1;
        if job.pace > 0 {
            let next = Duration::from_secs(number) / job.pace;
            to.rest(next.saturating_sub(begin.elapsed()))?;
        }
    }
    let took = begin.elapsed();
    to.publish(&Stamp::now(Phase::End, number).bytes())?;
    let end = Instant::now();
    to.finish()?;
    let processor = processor_time() - processor;
    // What is on its way may need the publisher, and one that was lost is repeated.
    while told(&job.directory, ENDED)? < job.subscribers {
        ensure!(end.elapsed() < PATIENCE, "the subscribers don't end");
        to.rest(HELLO * 4)?;
        if to.loses() {
            to.publish(&Stamp::now(Phase::End, number).bytes())?;
        }
    }
    Ok(format!("published {number} nanoseconds {} processor {processor}", took.as_nanos()))
}

/// The side of a subscriber; returns its report.
fn subscribe(job: &Job, from: &mut impl Subscribe) -> Result<String> {
    let begin = Instant::now();
    let mut seen = Seen::default();
    while seen.total.is_none() {
        let was_first = !seen.is_here;
        let mut result = Ok(());
        from.receive(&mut |message| result = seen.see(job, message))?;
        result?;
        if was_first && seen.is_here {
            tell(&job.directory, HEARD)?;
        }
        ensure!(begin.elapsed() < PATIENCE + job.time, "the last message doesn't come");
    }
    tell(&job.directory, ENDED)?;
    let report = seen.report();
    let end = Instant::now();
    while !from.is_known()? {
        ensure!(end.elapsed() < PATIENCE, "the publisher doesn't end");
    }
    Ok(report)
}

/// What a subscriber tells by a file of this name: a message has arrived, and the last one.
const HEARD: &str = "heard";
const ENDED: &str = "ended";

/// Tells the publisher something.
fn tell(directory: &Path, what: &str) -> Result<()> {
    let file = directory.join(format!("{what}-{}", std::process::id()));
    std::fs::write(&file, "").with_context(|| format!("{}", file.display()))
}

/// How many subscribers have told this.
fn told(directory: &Path, what: &str) -> Result<usize> {
    let files = std::fs::read_dir(directory).context("the directory of the run")?;
    let is_one = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(what);
    Ok(files.filter_map(Result::ok).filter(|file| is_one(&file.file_name())).count())
}

#[derive(Default)]
struct Seen {
    is_here: bool,
    count: u64,
    next: u64,
    /// Time and processor time of the first message that counts, and time of the last one.
    first: (u64, u64),
    last: u64,
    /// How many there were.
    total: Option<u64>,
    ages: Vec<u64>,
    /// Of all bytes, so that they are read.
    sum: u64,
}

impl Seen {
    fn see(&mut self, job: &Job, message: &[u8]) -> Result<()> {
        ensure!(message.len() == job.size, "a message of {} bytes", message.len());
        let stamp = Stamp::of(message)?;
        self.is_here = true;
        if job.reads {
            self.sum = self.sum.wrapping_add(sum_of(message));
        }
        match stamp.phase {
            Phase::Warm => {}
            Phase::Counts => {
                let now = now();
                if self.count == 0 {
                    self.first = (now, processor_time());
                }
                ensure!(stamp.number >= self.next, "message {} comes again", stamp.number);
                (self.count, self.next, self.last) = (self.count + 1, stamp.number + 1, now);
                if job.pace > 0 {
                    self.ages.push(now.saturating_sub(stamp.at));
                }
            }
            Phase::End => self.total = Some(stamp.number),
        }
        Ok(())
    }

    fn report(mut self) -> String {
        std::hint::black_box(self.sum);
        self.ages.sort_unstable();
        let at = |share: usize| self.ages.get(self.ages.len() * share / 100).copied();
        let (median, late) = (at(50).unwrap_or_default(), at(99).unwrap_or_default());
        let processor = processor_time() - self.first.1;
        format!(
            "received {} lost {} nanoseconds {} processor {processor} median {median} late {late}",
            self.count,
            self.total.unwrap_or_default() - self.count,
            self.last - self.first.0
        )
    }
}

/// The sum of all words and bytes: reads every byte.
#[must_use]
pub fn sum_of(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let rest = rest.iter().map(|byte| u64::from(*byte));
    words.chain(rest).fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(pace: u32) -> Job {
        let words = ["/tmp", "1", "64", "2", "10", &pace.to_string(), "read"];
        Job::of(&words.map(str::to_owned)).unwrap()
    }

    fn message(phase: Phase, number: u64, at: u64) -> Vec<u8> {
        let mut message = vec![1; 64];
        message[..24].copy_from_slice(&Stamp { phase, number, at }.bytes());
        message
    }

    #[test]
    fn gaps_are_losses_and_ages_have_a_median() {
        let mut seen = Seen::default();
        for (phase, number) in
            [(Phase::Warm, 0), (Phase::Counts, 0), (Phase::Counts, 3), (Phase::End, 5)]
        {
            seen.see(&job(1), &message(phase, number, now())).unwrap();
        }
        assert_eq!(seen.ages.len(), 2);
        let report = seen.report();
        assert!(report.starts_with("received 2 lost 3 nanoseconds "), "{report}");
    }

    #[test]
    fn message_that_comes_again_or_is_short_is_an_error() {
        let mut seen = Seen::default();
        seen.see(&job(0), &message(Phase::Counts, 4, 0)).unwrap();
        assert!(seen.see(&job(0), &message(Phase::Counts, 4, 0)).is_err());
        assert!(seen.see(&job(0), &[0; 63]).is_err());
        assert!(Stamp::of(&[3; 24]).is_err());
    }

    #[test]
    fn sum_has_every_byte() {
        for length in 0..40 {
            let mut bytes = vec![0; length];
            for at in 0..length {
                bytes[at] = 1;
                assert_eq!(sum_of(&bytes), 1 << (8 * (at % 8) * usize::from(at < length / 8 * 8)));
                bytes[at] = 0;
            }
        }
    }
}

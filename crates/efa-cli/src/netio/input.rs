//! Files and standard input as messages, in registered memory.
//!
//! ```text
//!            free places
//!   Feed ───────────────────► reader (a thread: a read may block)
//!        ◄── filled places ──   file ──► place in the pool
//!        signal
//! ```
//!
//! A place is filled again only when its message has completed: nothing is overwritten while it is under way.

use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use efa_netio::{Message, Netio, Pool, Signal};
use rustix::io::Errno;

use super::NetioError;
use super::place::length;

/// Bytes of all places, but for their least number.
const MEMORY: usize = 32 << 20;
/// Most places, and so messages under way.
const MAX_PLACES: usize = 512;
/// Least places.
const MIN_PLACES: usize = 2;

/// Options of what is sent.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct InputArgs {
    /// The file; standard input without it, or for `-`
    #[arg(value_name = "FILE|-")]
    file: Option<PathBuf>,
    /// Bytes of each message but the last; with --lines, of the longest
    #[arg(long, value_name = "N", default_value = "64K", value_parser = length)]
    message_size: usize,
    /// Send each line with its line feed as a message; a line above --message-size goes as several
    #[arg(long)]
    lines: bool,
    /// Most messages per second
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| (1e-3..=1e9).contains(rate));
    rate.ok_or_else(|| "a number from 0.001 to 1000000000 is expected".to_owned())
}

/// How often a file is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    Times(u64),
    Forever,
}

impl InputArgs {
    /// The file, unless it is standard input.
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref().filter(|file| *file != Path::new("-"))
    }

    /// Opens it.
    pub(super) fn open(&self, netio: &Netio, repeat: Repeat) -> Result<Feed, NetioError> {
        let size = self.message_size;
        let places = (MEMORY / size).clamp(MIN_PLACES, MAX_PLACES);
        let pool = netio.allocate(places * size)?;
        let name =
            self.file().map_or("standard input".to_owned(), |file| file.display().to_string());
        let opened = match self.file() {
            Some(file) => File::open(file).map(Source::File),
            None => Ok(Source::Stdin),
        };
        let failed = |source| NetioError::Input { name: name.clone(), source };
        let source = opened.map_err(failed)?;
        let data = match &source {
            Source::File(file) => file.metadata().ok(),
            Source::Stdin => None,
        };
        if data.as_ref().is_some_and(Metadata::is_dir) {
            return Err(failed(Errno::ISDIR.into()));
        }
        let whole = data.filter(Metadata::is_file).map(|data| data.len());
        let (free, free_places) = channel();
        let (filled_places, filled) = channel();
        // The channel is open.
        for place in 0..places {
            let _ = free.send(place);
        }
        let reader = Reader {
            pool: pool.clone(),
            size,
            lines: self.lines,
            free: free_places,
            filled: filled_places,
            signal: netio.signal(),
        };
        let file = self.file().map(Path::to_owned);
        let read_all = move || reader.read_all(source, file.as_deref(), repeat);
        thread::Builder::new().spawn(read_all).map_err(NetioError::Thread)?;
        Ok(Feed {
            name,
            pool,
            size,
            places,
            free,
            filled,
            whole: match repeat {
                Repeat::Times(times) => whole.map(|whole| whole.saturating_mul(times)),
                Repeat::Forever => None,
            },
            lines: self.lines,
            pace: self.rate.map(Pace::new),
            given: 0,
            under_way: 0,
            ended: false,
        })
    }
}

enum Source {
    File(File),
    Stdin,
}

/// What the reader has done.
enum Filled {
    Place { place: usize, length: usize },
    Failed(io::Error),
}

/// The thread that reads.
struct Reader {
    pool: Pool,
    size: usize,
    lines: bool,
    free: Receiver<usize>,
    filled: Sender<Filled>,
    signal: Signal,
}

impl Reader {
    /// Reads everything, as often as asked for. The end of the channel is the end of the input.
    fn read_all(self, source: Source, file: Option<&Path>, repeat: Repeat) {
        let result = self.read_times(source, file, repeat);
        if let Err(error) = result {
            // Nobody listens when the run is over.
            let _ = self.filled.send(Filled::Failed(error));
        }
        let Self { filled, signal, .. } = self;
        drop(filled);
        signal.raise();
    }

    fn read_times(&self, source: Source, file: Option<&Path>, repeat: Repeat) -> io::Result<()> {
        let mut source = Some(source);
        let mut time = 0;
        loop {
            let source = match (source.take(), file) {
                (Some(source), _) => source,
                (None, Some(file)) => Source::File(File::open(file)?),
                (None, None) => return Ok(()),
            };
            let count = match source {
                Source::File(file) => self.read(&mut BufReader::with_capacity(1 << 16, file))?,
                Source::Stdin => self.read(&mut io::stdin().lock())?,
            };
            time += 1;
            // An empty file is not read again and again.
            if count == 0 || repeat == Repeat::Times(time) {
                return Ok(());
            }
        }
    }

    /// Reads to the end; returns the number of messages.
    fn read(&self, source: &mut impl BufRead) -> io::Result<u64> {
        let mut bytes = Vec::with_capacity(self.size);
        let mut count = 0;
        loop {
            bytes.clear();
            let mut bounded = source.by_ref().take(self.size as u64);
            match self.lines {
                true => bounded.read_until(b'\n', &mut bytes)?,
                false => bounded.read_to_end(&mut bytes)?,
            };
            if bytes.is_empty() {
                return Ok(count);
            }
            // Without a free place to come, the run is over.
            let Ok(place) = self.free.recv() else { return Ok(0) };
            self.pool.write(place * self.size, &bytes);
            count += 1;
            if self.filled.send(Filled::Place { place, length: bytes.len() }).is_err() {
                return Ok(0);
            }
            self.signal.raise();
        }
    }
}

/// What comes next.
pub(super) enum Next {
    /// A message, whose key is for [`Feed::complete`].
    Message(Message),
    /// There is one, but not before this time is over.
    Later(Duration),
    /// The reader has none: its signal will tell.
    Nothing,
    /// There is none any more.
    End,
}

/// What a thread that sleeps until a message is due may be late by; it is made up for.
const LATE: Duration = Duration::from_millis(10);

/// A rate that messages don't exceed. Time in which there was none to give lets no later ones follow faster, but for
/// [`LATE`].
struct Pace {
    interval: Duration,
    /// When the next message may be given.
    due: Option<Instant>,
}

impl Pace {
    /// So many messages per second, as [`rate`] allows them.
    fn new(rate: f64) -> Self {
        Self { interval: Duration::from_secs_f64(1.0 / rate), due: None }
    }

    /// The time until the next message.
    fn left(&self, now: Instant) -> Duration {
        self.due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now))
    }

    /// A message was given.
    fn given(&mut self, now: Instant) {
        let earliest = now.checked_sub(LATE).unwrap_or(now);
        self.due = Some(self.due.map_or(now, |due| due.max(earliest)) + self.interval);
    }
}

/// Messages of an input, in order.
pub(super) struct Feed {
    name: String,
    pool: Pool,
    size: usize,
    places: usize,
    free: Sender<usize>,
    filled: Receiver<Filled>,
    whole: Option<u64>,
    lines: bool,
    pace: Option<Pace>,
    /// Messages that were given.
    given: u64,
    under_way: usize,
    ended: bool,
}

impl Feed {
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Most messages under way.
    pub(super) fn places(&self) -> usize {
        self.places
    }

    /// Bytes of all, if that is known.
    pub(super) fn whole(&self) -> Option<u64> {
        self.whole
    }

    /// Messages that were not given, if it is known how many there are: of an input that is at its end, and of a file, read
    /// once, whose messages are not its lines.
    pub(super) fn left(&self) -> Option<u64> {
        let whole = self.whole.filter(|_| !self.lines);
        match self.ended {
            true => Some(0),
            false => Some(whole?.div_ceil(self.size as u64).saturating_sub(self.given)),
        }
    }

    /// No more messages are wanted.
    pub(super) fn stop(&mut self) {
        self.ended = true;
    }

    /// Whether all messages were given, and have completed.
    pub(super) fn is_over(&self) -> bool {
        self.ended && self.under_way == 0
    }

    pub(super) fn next(&mut self) -> Result<Next, NetioError> {
        if self.ended {
            return Ok(Next::End);
        }
        let left = self.pace.as_ref().map_or(Duration::ZERO, |pace| pace.left(Instant::now()));
        if !left.is_zero() {
            return Ok(Next::Later(left));
        }
        match self.filled.try_recv() {
            Ok(Filled::Place { place, length }) => {
                let begin = place * self.size;
                let part = self.pool.part(begin..begin + length).map_err(efa_netio::Error::from)?;
                if let Some(pace) = &mut self.pace {
                    pace.given(Instant::now());
                }
                self.given += 1;
                self.under_way += 1;
                Ok(Next::Message(Message::of(part).key(place as u64)))
            }
            Ok(Filled::Failed(source)) => {
                Err(NetioError::Input { name: self.name.clone(), source })
            }
            Err(TryRecvError::Empty) => Ok(Next::Nothing),
            Err(TryRecvError::Disconnected) => {
                self.ended = true;
                Ok(Next::End)
            }
        }
    }

    /// A message has completed: its place is free.
    pub(super) fn complete(&mut self, key: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        // The reader may be at its end.
        let _ = self.free.send(key as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_after_an_idle_time_are_no_faster_than_the_rate() {
        let (begin, interval) = (Instant::now(), Duration::from_millis(500));
        let mut pace = Pace::new(2.0);
        assert_eq!(pace.left(begin), Duration::ZERO);
        pace.given(begin);
        assert_eq!(pace.left(begin), interval);
        assert_eq!(pace.left(begin + interval), Duration::ZERO);
        let later = begin + Duration::from_secs(10);
        pace.given(later);
        assert_eq!(pace.left(later), interval - LATE, "the idle time is no more credit than that");
        let late = later + interval - LATE + Duration::from_millis(3);
        pace.given(late);
        assert_eq!(
            pace.left(late),
            interval - Duration::from_millis(3),
            "what was late is made up for"
        );
    }

    #[test]
    fn extreme_rates_have_an_interval() {
        let now = Instant::now();
        for (text, interval) in
            [("0.001", Duration::from_secs(1000)), ("1e9", Duration::from_nanos(1))]
        {
            let mut pace = Pace::new(rate(text).unwrap());
            pace.given(now);
            assert_eq!(pace.left(now), interval);
        }
    }
}

//! What is measured: messages of a size, so many under way, from one buffer or from one for each.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};

/// Most bytes under way.
const MOST_BYTES: u64 = 256 << 20;

/// How messages follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Back and forth.
    Latency,
    /// In one direction.
    Stream,
}

/// Whose memory messages are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    /// One buffer on each side.
    One,
    /// One for each message under way.
    Each,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    pub(super) kind: Kind,
    pub(super) window: u32,
    pub(super) form: Form,
    /// Bytes of a message.
    pub(super) size: u64,
}

/// Windows and forms of streams. A message under way has a buffer of its own in both forms.
pub(super) const STREAMS: [(u32, Form); 5] =
    [(1, Form::One), (16, Form::One), (16, Form::Each), (64, Form::One), (64, Form::Each)];

impl Point {
    pub(super) fn latency(size: u64) -> Self {
        Self { kind: Kind::Latency, window: 1, form: Form::One, size }
    }

    pub(super) fn stream(size: u64, window: u32, form: Form) -> Self {
        Self { kind: Kind::Stream, window, form, size }
    }

    /// All of a size, without those that need too much memory.
    pub(super) fn all_of(size: u64) -> impl Iterator<Item = Self> {
        let streams = STREAMS.map(|(window, form)| Self::stream(size, window, form));
        let fits = |point: &Self| point.window == 1 || point.is_within_memory();
        std::iter::once(Self::latency(size)).chain(streams).filter(fits)
    }

    fn is_within_memory(self) -> bool {
        self.size * u64::from(self.window) <= MOST_BYTES
    }

    /// The stream with the largest window that is measured.
    pub(super) fn widest(size: u64, form: Form) -> Self {
        let windows = [64, 16].into_iter();
        let mut wide = windows.map(|window| Self::stream(size, window, form));
        wide.find(|point| point.is_within_memory()).unwrap_or(Self::stream(size, 1, Form::One))
    }

    /// As an argument of the programs.
    pub(super) fn argument(self) -> String {
        self.to_string().replace(' ', ":")
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Latency => "latency",
            Kind::Stream => "stream",
        };
        let form = match self.form {
            Form::One => "one",
            Form::Each => "each",
        };
        write!(f, "{kind} {} {} {form}", self.size, self.window)
    }
}

impl FromStr for Point {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let [kind, size, window, form] = *words else { bail!("`{text}` is no point") };
        Ok(Self {
            kind: match kind {
                "latency" => Kind::Latency,
                "stream" => Kind::Stream,
                _ => bail!("`{text}` is no point"),
            },
            size: size.parse().with_context(|| format!("the size in `{text}`"))?,
            window: window.parse().with_context(|| format!("the window in `{text}`"))?,
            form: match form {
                "one" => Form::One,
                "each" => Form::Each,
                _ => bail!("`{text}` is no point"),
            },
        })
    }
}

/// A size for readers.
pub(super) fn readable(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_read_as_they_are_written_and_others_refused() {
        for point in Point::all_of(4096) {
            assert_eq!(point.to_string().parse::<Point>().unwrap(), point);
        }
        assert_eq!(Point::stream(8, 64, Form::Each).argument(), "stream:8:64:each");
        for text in ["", "stream 8 1", "other 8 1 one", "stream x 1 one", "stream 8 1 two"] {
            assert!(text.parse::<Point>().is_err(), "{text}");
        }
    }

    #[test]
    fn windows_of_more_than_256_mib_are_left_out() {
        assert_eq!(Point::all_of(4 << 20).count(), 6);
        assert_eq!(Point::all_of(16 << 20).count(), 4);
        assert_eq!(Point::all_of(64 << 20).count(), 2);
        assert_eq!(Point::widest(4 << 20, Form::Each).window, 64);
        assert_eq!(Point::widest(16 << 20, Form::Each), Point::stream(16 << 20, 16, Form::Each));
        assert_eq!(Point::widest(64 << 20, Form::Each), Point::stream(64 << 20, 1, Form::One));
    }

    #[test]
    fn sizes_are_readable() {
        let sizes = [0, 8, 1000, 1024, 1 << 20, 3 << 19].map(readable);
        assert_eq!(sizes, ["0 B", "8 B", "1000 B", "1 KiB", "1 MiB", "1536 KiB"]);
    }
}

//! Messages into a file, onto standard output, or nowhere.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use efa_netio::Tag;

use super::NetioError;

/// Where messages go.
pub(super) enum Sink {
    /// Into a file, one after the other. What the file had stays until the first message or the end.
    File {
        path: PathBuf,
        file: Accounted<File>,
        is_begun: bool,
    },
    /// Onto standard output.
    Out(Format, BufWriter<io::Stdout>),
    Nowhere,
}

/// A buffered file that knows which messages are in it.
pub(super) struct Accounted<W: Write> {
    buffer: BufWriter<Counted<W>>,
    /// Where messages end that were not in the file when the last one was put, and their lengths.
    kept: VecDeque<(u64, usize)>,
}

/// Counts the bytes that a file has taken.
struct Counted<W> {
    file: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<W: Write> Accounted<W> {
    fn new(file: W) -> Self {
        let counted = Counted { file, bytes: 0 };
        Self { buffer: BufWriter::with_capacity(1 << 17, counted), kept: VecDeque::new() }
    }

    fn file(&self) -> &W {
        &self.buffer.get_ref().file
    }

    fn put(&mut self, message: &[u8]) -> io::Result<()> {
        let written = self.buffer.write_all(message);
        let is_in_file = self.buffer.get_ref().bytes;
        while self.kept.front().is_some_and(|(end, _)| *end <= is_in_file) {
            self.kept.pop_front();
        }
        match written {
            Ok(()) => {
                let end = is_in_file + self.buffer.buffer().len() as u64;
                self.kept.push_back((end, message.len()));
            }
            Err(_) => self.lose(message),
        }
        written
    }

    /// A message is not written, or not wholly.
    fn lose(&mut self, message: &[u8]) {
        self.kept.push_back((u64::MAX, message.len()));
    }

    /// Messages that are not wholly in the file, and their bytes.
    fn unwritten(&self) -> (u64, u64) {
        let is_in_file = self.buffer.get_ref().bytes;
        let missing = self.kept.iter().filter(|(end, _)| *end > is_in_file);
        missing
            .fold((0, 0), |(messages, bytes), (_, length)| (messages + 1, bytes + *length as u64))
    }
}

/// How messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Their bytes, one after the other.
    Bytes,
    /// A line each: tag, length, bytes.
    Hex,
    /// An object and a line each.
    Json,
}

impl Sink {
    /// A file, or standard output.
    pub(super) fn new(file: Option<&Path>, format: Format) -> Result<Self, NetioError> {
        let Some(path) = file else { return Ok(Self::Out(format, BufWriter::new(io::stdout()))) };
        let file = File::options().create(true).write(true).truncate(false).open(path);
        let file = file.map_err(|source| NetioError::File { file: path.to_owned(), source })?;
        let (path, file) = (path.to_owned(), Accounted::new(file));
        Ok(Self::File { path, file, is_begun: false })
    }

    pub(super) fn is_stdout(&self) -> bool {
        matches!(self, Self::Out(..))
    }

    /// Writes a message. Returns `false` if nobody reads the output any more.
    pub(super) fn put(&mut self, tag: Tag, message: &[u8]) -> Result<bool, NetioError> {
        if let Err(error) = self.begin() {
            if let Self::File { file, .. } = self {
                file.lose(message);
            }
            return Err(error);
        }
        let written = match self {
            Self::File { file, .. } => file.put(message),
            Self::Out(format, out) => format.write(out, tag, message),
            Self::Nowhere => Ok(()),
        };
        self.outcome(written)
    }

    /// Removes what the file had before.
    fn begin(&mut self) -> Result<(), NetioError> {
        let Self::File { path, file, is_begun: is_begun @ false } = self else { return Ok(()) };
        let file = file.file();
        let emptied = match file.metadata() {
            Ok(data) if data.is_file() => file.set_len(0),
            result => result.map(drop),
        };
        emptied.map_err(|source| NetioError::File { file: path.clone(), source })?;
        *is_begun = true;
        Ok(())
    }

    /// Writes what was kept back, whether or not everything was received. If so, a file has nothing else, also if that
    /// were no messages.
    pub(super) fn end(&mut self, received: Result<(), NetioError>) -> Result<(), NetioError> {
        let begun = if received.is_ok() { self.begin() } else { Ok(()) };
        let flushed = self.flush().map(drop);
        received.and(begun).and(flushed)
    }

    /// Writes what was kept back.
    pub(super) fn flush(&mut self) -> Result<bool, NetioError> {
        let flushed = match self {
            Self::File { file, .. } => file.buffer.flush(),
            Self::Out(_, out) => out.flush(),
            Self::Nowhere => Ok(()),
        };
        self.outcome(flushed)
    }

    /// Messages that were put and are not wholly in the file, and their bytes: after the [end](Self::end), those that could
    /// not be written.
    pub(super) fn unwritten(&self) -> (u64, u64) {
        match self {
            Self::File { file, .. } => file.unwritten(),
            Self::Out(..) | Self::Nowhere => (0, 0),
        }
    }

    fn outcome(&self, result: io::Result<()>) -> Result<bool, NetioError> {
        match (result, self) {
            (Ok(()), _) => Ok(true),
            (Err(source), Self::File { path, .. }) => {
                Err(NetioError::File { file: path.clone(), source })
            }
            (Err(error), _) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            (Err(error), _) => Err(error.into()),
        }
    }
}

impl Format {
    fn write(self, out: &mut impl Write, tag: Tag, message: &[u8]) -> io::Result<()> {
        match self {
            Self::Bytes => out.write_all(message),
            Self::Hex => {
                write!(out, "{tag:#x} {} ", message.len())?;
                message.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
                out.write_all(b"\n")
            }
            Self::Json => {
                write!(out, "{{\"tag\":{tag},\"length\":{},\"hex\":\"", message.len())?;
                message.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
                out.write_all(b"\"}\n")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn file_keeps_what_it_had_until_the_first_message_or_the_end() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("sink");
        let has = || std::fs::read_to_string(&path).unwrap();
        let sink = || {
            std::fs::write(&path, "before").unwrap();
            Sink::new(Some(&path), Format::Bytes).unwrap()
        };
        let mut unused = sink();
        unused.flush().unwrap();
        drop(unused);
        assert_eq!(has(), "before");
        let mut written = sink();
        written.put(0, b"a").unwrap();
        written.put(0, b"b").unwrap();
        written.end(Ok(())).unwrap();
        assert_eq!(has(), "ab");
        sink().end(Ok(())).unwrap();
        assert_eq!(has(), "", "no message was received, up to the end");
    }

    /// A disk with room for so many bytes.
    struct Disk(usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.0);
            self.0 -= count;
            if count == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(count) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn messages_that_are_not_wholly_on_a_full_disk_are_unwritten() {
        let mut file = Accounted::new(Disk(2500));
        (0..5).for_each(|_| file.put(&[1; 1000]).unwrap());
        file.buffer.flush().unwrap_err();
        assert_eq!(file.unwritten(), (3, 3000));

        // Longer than the buffer, after one that was written.
        let mut file = Accounted::new(Disk(250_000));
        file.put(&[1; 200_000]).unwrap();
        file.put(&[1; 200_000]).unwrap_err();
        assert_eq!(file.unwritten(), (1, 200_000));

        let mut file = Accounted::new(Disk(1 << 20));
        (0..1000).for_each(|_| file.put(&[1; 1000]).unwrap());
        assert!(file.kept.len() < 200, "what is written is forgotten");
        file.buffer.flush().unwrap();
        assert_eq!(file.unwritten(), (0, 0));
    }

    #[test]
    fn formats_show_tag_length_and_bytes() {
        let text = |format: Format| {
            let mut out = Vec::new();
            format.write(&mut out, 0x17, b"\x00\xffa").unwrap();
            out
        };
        assert_eq!(text(Format::Bytes), b"\x00\xffa");
        assert_eq!(text(Format::Hex), b"0x17 3 00ff61\n");
        let json: serde_json::Value = serde_json::from_slice(&text(Format::Json)).unwrap();
        assert_eq!(
            (&json["tag"], &json["length"], &json["hex"]),
            (&23.into(), &3.into(), &"00ff61".into())
        );
    }
}

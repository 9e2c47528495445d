//! Messages into a file, onto standard output, or nowhere.

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
        file: BufWriter<File>,
        is_begun: bool,
    },
    /// Onto standard output.
    Out(Format, BufWriter<io::Stdout>),
    Nowhere,
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
        let (path, file) = (path.to_owned(), BufWriter::with_capacity(1 << 17, file));
        Ok(Self::File { path, file, is_begun: false })
    }

    pub(super) fn is_stdout(&self) -> bool {
        matches!(self, Self::Out(..))
    }

    /// Writes a message. Returns `false` if nobody reads the output any more.
    pub(super) fn put(&mut self, tag: Tag, message: &[u8]) -> Result<bool, NetioError> {
        self.begin()?;
        let written = match self {
            Self::File { file, .. } => file.write_all(message),
            Self::Out(format, out) => format.write(out, tag, message),
            Self::Nowhere => Ok(()),
        };
        self.outcome(written)
    }

    /// Removes what the file had before.
    fn begin(&mut self) -> Result<(), NetioError> {
        let Self::File { path, file, is_begun: is_begun @ false } = self else { return Ok(()) };
        let file = file.get_ref();
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
            Self::File { file, .. } => file.flush(),
            Self::Out(_, out) => out.flush(),
            Self::Nowhere => Ok(()),
        };
        self.outcome(flushed)
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

//! Messages into a file, onto standard output, or nowhere.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use efa_netio::Tag;

use super::NetioError;

/// Where messages go.
pub(super) enum Sink {
    /// Into a file, one after the other.
    File(PathBuf, BufWriter<File>),
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
        let file = File::create(path);
        let file = file.map_err(|source| NetioError::File { file: path.to_owned(), source })?;
        Ok(Self::File(path.to_owned(), BufWriter::with_capacity(1 << 17, file)))
    }

    pub(super) fn is_stdout(&self) -> bool {
        matches!(self, Self::Out(..))
    }

    /// Writes a message. Returns `false` if nobody reads the output any more.
    pub(super) fn put(&mut self, tag: Tag, message: &[u8]) -> Result<bool, NetioError> {
        let written = match self {
            Self::File(_, file) => file.write_all(message),
            Self::Out(format, out) => format.write(out, tag, message),
            Self::Nowhere => Ok(()),
        };
        self.outcome(written)
    }

    /// Writes what was kept back.
    pub(super) fn flush(&mut self) -> Result<bool, NetioError> {
        let flushed = match self {
            Self::File(_, file) => file.flush(),
            Self::Out(_, out) => out.flush(),
            Self::Nowhere => Ok(()),
        };
        self.outcome(flushed)
    }

    fn outcome(&self, result: io::Result<()>) -> Result<bool, NetioError> {
        match (result, self) {
            (Ok(()), _) => Ok(true),
            (Err(source), Self::File(file, _)) => {
                Err(NetioError::File { file: file.clone(), source })
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
    use super::*;

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

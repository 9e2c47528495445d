//! Several captures read as one, in the order of their times.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use efa_sim::capture::{CaptureError, CaptureReader, Captured};

use super::DecodeError;
use crate::output;

/// Captures that are read side by side.
pub(super) struct Captures {
    files: Vec<Capture>,
    damage: Vec<DecodeError>,
}

/// A capture and its next record.
struct Capture {
    file: PathBuf,
    reader: CaptureReader<Box<dyn Read>>,
    next: Option<Captured>,
    /// Number of packets read.
    packets: u64,
}

impl Captures {
    /// Opens all of them, each once; `-` is standard input.
    pub(super) fn open(files: &[PathBuf]) -> Result<Self, DecodeError> {
        let mut captures = Self { files: Vec::new(), damage: Vec::new() };
        let mut inodes = HashSet::new();
        for file in files {
            let is_stdin = file.as_os_str() == "-";
            let mut open = || -> Result<_, CaptureError> {
                // Whoever reads it holds its lock.
                if is_stdin && captures.files.iter().any(|of| of.file == *file) {
                    return Err(io::Error::other("standard input is named twice").into());
                }
                let opened: Box<dyn Read> = if is_stdin {
                    Box::new(io::stdin().lock())
                } else {
                    let opened = File::open(file)?;
                    let data = opened.metadata()?;
                    if !inodes.insert((data.dev(), data.ino())) {
                        return Ok(None);
                    }
                    Box::new(opened)
                };
                CaptureReader::new(opened).map(Some)
            };
            let failed = |source| DecodeError::Open { file: file.clone(), source };
            if let Some(reader) = open().map_err(failed)? {
                captures.add(file.clone(), reader);
            }
        }
        Ok(captures)
    }

    /// Bytes that are a capture.
    pub(super) fn of_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let file = PathBuf::new();
        let reader: Box<dyn Read> = Box::new(io::Cursor::new(bytes.to_vec()));
        let opened = |source| DecodeError::Open { file: file.clone(), source };
        let reader = CaptureReader::new(reader).map_err(opened)?;
        let mut captures = Self { files: Vec::new(), damage: Vec::new() };
        captures.add(file, reader);
        Ok(captures)
    }

    fn add(&mut self, file: PathBuf, reader: CaptureReader<Box<dyn Read>>) {
        self.files.push(Capture { file, reader, next: None, packets: 0 });
        let last = self.files.len() - 1;
        self.advance(last);
    }

    /// Reads the next record of a file, in place of the one that is given.
    fn advance(&mut self, index: usize) -> Option<Captured> {
        let capture = &mut self.files[index];
        let next = match capture.reader.next_captured() {
            Some(Ok(captured)) => {
                capture.packets += 1;
                Some(captured)
            }
            Some(Err(source)) => {
                let (file, packets) = (capture.file.clone(), capture.packets);
                self.damage.push(DecodeError::Packet { file, packets, source });
                None
            }
            None => None,
        };
        std::mem::replace(&mut capture.next, next)
    }

    /// The earliest record that is left; of equal times, that of the file named first.
    pub(super) fn next(&mut self) -> Option<Captured> {
        let times = self.files.iter().enumerate();
        let times =
            times.filter_map(|(index, capture)| Some((capture.next.as_ref()?.record.time, index)));
        let (_, index) = times.min()?;
        self.advance(index)
    }

    /// A line for each file that has records of other kinds.
    pub(super) fn skipped(&self) -> impl Iterator<Item = String> {
        self.files.iter().filter_map(|Capture { file, reader, .. }| {
            let skipped = reader.skipped()?;
            let (file, records, reason) = (file.display(), skipped.records, &skipped.reason);
            Some(format!("{file}: records skipped: {records}, the first as: {reason}"))
        })
    }

    /// The damage of the file that was met last. That of others is printed.
    pub(super) fn finish(mut self) -> Result<(), DecodeError> {
        let last = self.damage.pop();
        for damage in self.damage {
            output::print_error(format_args!("error: {}", crate::one_line(&damage.into())));
        }
        last.map_or(Ok(()), Err)
    }
}

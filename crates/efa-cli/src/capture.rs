//! A capture of the packets of the device that a command works with.
//!
//! A thread writes it out while the command runs, so that of one that hangs or is killed nearly nothing is missing.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use efa_sim::capture::{Capture, CaptureError};
use efa_sim::record::{Record, Sink, SinkError};

/// How long packets may be in memory only.
const DELAY: Duration = Duration::from_millis(20);

/// Where packets are captured, and how much of each.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CaptureArgs {
    /// Write all packets that this side sends and receives into a file for `efa decode`
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Write only the first N bytes of each packet: 128 hold nearly every header [default: all]
    #[arg(long, value_name = "N", requires = "capture")]
    capture_bytes: Option<u32>,
}

impl CaptureArgs {
    /// The option, if it is given; it needs the software device.
    pub(crate) fn given(&self) -> Option<&'static str> {
        self.capture.is_some().then_some("--capture")
    }

    /// The capture that is asked for. A device is opened with it, and it begins with [`CaptureFile::start`].
    pub(crate) fn file(&self) -> Option<CaptureFile> {
        let most = self.capture_bytes.map_or(usize::MAX, |bytes| bytes as usize);
        let path = self.capture.clone()?;
        Some(CaptureFile { path, most, capture: Shared::default() })
    }
}

/// A capture can't be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot write the capture", file.display())]
pub(crate) struct CaptureFailed {
    /// Its file.
    file: PathBuf,
    /// The reason.
    source: CaptureError,
}

type Shared = Arc<Mutex<Option<Capture<File>>>>;

/// A capture file that a device writes and whose errors are reported, between `start` and `finish`. Clones share it.
#[derive(Clone)]
pub(crate) struct CaptureFile {
    path: PathBuf,
    /// Bytes of each packet.
    most: usize,
    capture: Shared,
}

impl CaptureFile {
    /// Creates the file, or replaces it. Earlier packets are not captured.
    pub(crate) fn start(&self, interface: &str) -> Result<(), CaptureFailed> {
        let begin = |path: &Path| {
            let created = Capture::create_bounded(path, interface, self.most)?;
            with(&self.capture, |capture| *capture = Some(created));
            Ok(write_out(Arc::downgrade(&self.capture))?)
        };
        begin(&self.path).map_err(|source| self.failed(source))
    }

    /// Ends the file; later packets are not captured.
    pub(crate) fn finish(&self) -> Result<(), CaptureFailed> {
        match with(&self.capture, Option::take) {
            Some(capture) => capture.finish().map(drop).map_err(|source| self.failed(source)),
            None => Ok(()),
        }
    }

    fn failed(&self, source: CaptureError) -> CaptureFailed {
        CaptureFailed { file: self.path.clone(), source }
    }
}

fn with<T>(
    capture: &Mutex<Option<Capture<File>>>,
    f: impl FnOnce(&mut Option<Capture<File>>) -> T,
) -> T {
    f(&mut capture.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Writes what a capture has in memory out, again and again until its end.
fn write_out(capture: Weak<Mutex<Option<Capture<File>>>>) -> io::Result<()> {
    let flush = move || {
        while let Some(shared) = capture.upgrade() {
            // An error is one of `finish`, too.
            let is_over = with(&shared, |capture| match capture {
                Some(capture) => capture.flush().is_err(),
                None => true,
            });
            drop(shared);
            if is_over {
                break;
            }
            thread::sleep(DELAY);
        }
    };
    thread::Builder::new().name("capture".to_owned()).spawn(flush).map(drop)
}

impl Sink for CaptureFile {
    fn record(&mut self, record: &Record<'_>) {
        with(&self.capture, |capture| {
            if let Some(capture) = capture {
                capture.record(record);
            }
        });
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        with(&self.capture, |capture| capture.as_mut().map_or(Ok(()), Capture::flush))
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use efa_device::Time;
    use efa_sim::capture::CaptureReader;
    use efa_sim::record::{PacketEvent, QueuePairId};
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn capture_has_its_packets_while_it_goes_on_and_those_before_its_end() {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("capture.pcapng");
        let args = CaptureArgs { capture: Some(file.clone()), capture_bytes: None };
        let mut capture = args.file().unwrap();
        let id = QueuePairId::default();
        let mut record = |bytes: &'static [u8]| {
            capture.record(&Record {
                time: Time::ZERO,
                event: PacketEvent::Sent,
                source: id,
                destination: id,
                bytes: Cow::Borrowed(bytes),
            });
            capture.clone()
        };
        record(b"too early").start("test").unwrap();
        let capture = record(b"one");
        let read =
            || CaptureReader::open(&file).map_or(0, |reader| reader.filter(Result::is_ok).count());
        while read() == 0 {
            thread::sleep(DELAY);
        }
        assert_eq!(read(), 1);
        record(b"two").finish().unwrap();
        record(b"too late");
        assert_eq!(read(), 2);
        capture.finish().unwrap();
    }
}

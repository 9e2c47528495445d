//! Captures: pcapng files of the packets that passed on a link, written and read.
//!
//! The file opens in Wireshark, and any pcapng library reads it. It has one section with one interface:
//! `if_name` is the device's name, the link type 147 (`LINKTYPE_USER0`), `if_tsresol` 9 (nanoseconds).
//! Each enhanced packet block is one [event](PacketEvent) of one packet. Its data is a pseudo
//! header of 40 bytes, then the packet, whole or, if the capture is [bounded](Capture::bounded), its first bytes. Integers are little-endian; GIDs are in network byte order, as in
//! an IPv6 header.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 1 | version of this header: 1 |
//! | 1 | 1 | event: 0 sent, 1 received, 2 failed |
//! | 2 | 1 | if failed, the [status number](efa_device::Status::code) of the EFA device, 1 to 15; else 0 |
//! | 3 | 1 | reserved: written as 0, ignored when read |
//! | 4 | 2 | queue pair number of the source |
//! | 6 | 2 | queue pair number of the destination |
//! | 8 | 16 | GID of the source |
//! | 24 | 16 | GID of the destination |
//! | 40 | | the packet: EFA RDM protocol headers and payload |
//!
//! Only datagrams are captured: RDMA reads and writes move bytes without packets. Immediate data of a
//! send is not part of the packet and not in the file. Where the capture has both ends, a packet is
//! there twice: `sent` and then `received` or `failed`.
//!
//! # Times
//!
//! A time is a [`Time`](efa_device::Time) that the program gave to a poll, so its origin and precision are the program's.
//!
//! * On the shm and tcp links all events bear the time of the queue pair's latest poll that had to look
//!   for completions (a poll that returns one already queued doesn't count). A packet that was received
//!   or failed bears the time of the poll that found it. A packet that was sent bears the time of the
//!   last such poll *before* it was posted, or of the queue pair's
//!   [creation](efa_device::QueuePairOptions::now): all packets posted between two polls, as the segments of
//!   one message, bear the same time, and the differences of their times are no measure of bandwidth.
//! * On the local link the time is virtual: `sent` is the fabric's time, `received` and `failed` the
//!   simulated moment of the event, to the nanosecond.
//!
//! # Example
//!
//! ```
//! use efa_device::{Device, QueuePair, QueuePairOptions};
//! use efa_sim::capture::{Capture, CaptureReader};
//! use efa_sim::local::{LocalFabric, LocalOptions};
//! use efa_sim::record::PacketEvent;
//!
//! let path = std::env::temp_dir().join(format!("efa-capture-{}.pcapng", std::process::id()));
//! let fabric = LocalFabric::new(LocalOptions::default());
//! fabric.capture(Capture::create(&path, "local")?);
//! let a = fabric.open().create_queue_pair(QueuePairOptions::default())?.address();
//! fabric.inject(a, a, b"hello");
//! fabric.stop_capture();
//!
//! let records: Vec<_> = CaptureReader::open(&path)?.collect::<Result<_, _>>()?;
//! std::fs::remove_file(&path)?;
//! assert_eq!(records.len(), 1);
//! assert_eq!((records[0].event, &*records[0].bytes), (PacketEvent::Sent, &b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod reader;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

pub use self::reader::{CaptureReader, Captured, Skipped};
use crate::record::{PacketEvent, Record, Sink, SinkError};

/// Link type of the file's interface.
const LINK_TYPE: DataLink = DataLink::USER0;
/// Version of the pseudo header.
const VERSION: u8 = 1;
/// Length of the pseudo header.
const HEADER: usize = 40;
/// `if_tsresol` for nanoseconds; the format's own default is 6, microseconds.
const NANOSECONDS: u8 = 9;

/// Why a capture could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Not a pcapng file, or a damaged one.
    #[error("not a valid pcapng file: {reason}")]
    Format {
        /// What is wrong.
        reason: String,
    },
    /// A packet names an interface that the file doesn't describe.
    #[error("interface {interface} is not described")]
    Interface {
        /// The interface's number.
        interface: u32,
    },
    /// A packet is in a block of another kind, which has neither a source and destination nor an event.
    #[error("a packet is in {kind}, expected an enhanced packet block")]
    Block {
        /// The kind.
        kind: &'static str,
    },
    /// The file's link type is another.
    #[error("link type {found}, expected 147 (USER0)")]
    LinkType {
        /// The file's link type.
        found: u32,
    },
    /// A packet was captured in part. An iterator goes on behind it.
    #[error("only {captured} of a packet's {length} bytes were captured")]
    Cut {
        /// Its length with the pseudo header.
        length: u32,
        /// Captured bytes.
        captured: usize,
    },
    /// Shorter than the pseudo header.
    #[error("packet of {length} bytes, shorter than the pseudo header of 40")]
    Short {
        /// Its length.
        length: usize,
    },
    /// A pseudo header of another version.
    #[error("pseudo header has version {found}, expected 1")]
    Version {
        /// The version.
        found: u8,
    },
    /// A field of the pseudo header has an undefined value.
    #[error("pseudo header: {field} is {found}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u8,
    },
    /// A time beyond 2^64 nanoseconds, or an invalid resolution.
    #[error("time out of range: {ticks} units of resolution {resolution:#04x}")]
    Time {
        /// The file's number.
        ticks: u64,
        /// The file's `if_tsresol`.
        resolution: u8,
    },
}

impl From<PcapError> for CaptureError {
    fn from(error: PcapError) -> Self {
        match error {
            PcapError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Format { reason: "it ends within a block".into() }
            }
            PcapError::IoError(error) => Self::Io(error),
            PcapError::IncompleteBuffer => Self::Format { reason: "it ends too early".into() },
            other => Self::Format { reason: other.to_string() },
        }
    }
}

/// A capture file being written. Dropping it flushes the file.
///
/// As a [`Sink`] it stops at the first error, which [`flush`](Self::flush) and [`finish`](Self::finish) return.
pub struct Capture<W: Write> {
    writer: PcapNgWriter<BufWriter<W>>,
    /// The file, if it was created here.
    path: Option<PathBuf>,
    /// Most bytes stored of each packet.
    most: usize,
    scratch: Vec<u8>,
    failed: Option<io::Error>,
}

impl<W: Write> fmt::Debug for Capture<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture")
            .field("path", &self.path)
            .field("most", &self.most)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Capture<File> {
    /// Creates the file `path` for the device named `interface`. An existing file is overwritten.
    ///
    /// # Errors
    /// [`CaptureError::Io`], also if another process is writing a capture to this file.
    pub fn create(path: impl AsRef<Path>, interface: &str) -> Result<Self, CaptureError> {
        Self::create_bounded(path, interface, usize::MAX)
    }

    /// As [`create`](Self::create), for at most the first `most` bytes of each packet.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_bounded(
        path: impl AsRef<Path>,
        interface: &str,
        most: usize,
    ) -> Result<Self, CaptureError> {
        let path = path.as_ref();
        let file = File::options().create(true).write(true).truncate(false).open(path)?;
        if file.metadata()?.is_file() {
            if let Err(Errno::WOULDBLOCK) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
                return Err(io::Error::other("another process writes to it").into());
            }
            file.set_len(0)?;
        }
        Ok(Self { path: Some(path.to_owned()), ..Self::bounded(file, interface, most)? })
    }
}

impl<W: Write> Capture<W> {
    /// Writes to `writer`, for the device named `interface`.
    ///
    /// # Errors
    /// [`CaptureError::Io`].
    pub fn new(writer: W, interface: &str) -> Result<Self, CaptureError> {
        Self::bounded(writer, interface, usize::MAX)
    }

    /// As [`new`](Self::new), for at most the first `most` bytes of each packet, so that a stream fills the
    /// file less fast. Headers take up to 300 bytes, those of most packets less than 64. The file says how long each
    /// packet was.
    ///
    /// # Errors
    /// [`CaptureError::Io`].
    pub fn bounded(writer: W, interface: &str, most: usize) -> Result<Self, CaptureError> {
        let mut writer = PcapNgWriter::new(BufWriter::new(writer))?;
        writer.write_pcapng_block(InterfaceDescriptionBlock {
            linktype: LINK_TYPE,
            // 0 stands for none.
            snaplen: u32::try_from(most.saturating_add(HEADER)).unwrap_or(0),
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(interface)),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        })?;
        Ok(Self { writer, path: None, most, scratch: Vec::new(), failed: None })
    }

    /// Writes one record.
    ///
    /// # Errors
    /// [`CaptureError::Io`].
    pub fn write(&mut self, record: &Record<'_>) -> Result<(), CaptureError> {
        self.scratch.clear();
        emit(record, self.most, &mut self.scratch);
        self.writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(record.time.as_nanos()),
            original_len: u32::try_from(HEADER + record.bytes.len()).unwrap_or(u32::MAX),
            data: Cow::Borrowed(&self.scratch),
            options: Vec::new(),
        })?;
        Ok(())
    }

    /// Writes what is still in memory, so that a reader finds it now.
    ///
    /// # Errors
    /// The first error, also one of [`Sink::record`]. It ends the capture: every later call has it again.
    pub fn flush(&mut self) -> Result<(), SinkError> {
        if self.failed.is_none() {
            let flushed = self.writer.get_mut().flush();
            self.keep(flushed);
        }
        match &self.failed {
            Some(error) => Err(SinkError { path: self.path.clone(), source: same(error) }),
            None => Ok(()),
        }
    }

    /// Keeps an error, which ends the capture.
    fn keep(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            tracing::warn!(%error, "the capture file is incomplete: writing failed");
            self.failed = Some(error);
        }
    }

    /// Flushes and returns the writer.
    ///
    /// # Errors
    /// The first error, also one of [`Sink::record`].
    pub fn finish(self) -> Result<W, CaptureError> {
        match self.failed {
            Some(error) => Err(error.into()),
            None => Ok(self.writer.into_inner().into_inner().map_err(|e| e.into_error())?),
        }
    }
}

impl<W: Write + Send> Sink for Capture<W> {
    fn record(&mut self, record: &Record<'_>) {
        if self.failed.is_none() {
            let written = self.write(record).map_err(|error| match error {
                CaptureError::Io(error) => error,
                other => io::Error::other(other),
            });
            self.keep(written);
        }
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        Self::flush(self)
    }
}

/// Another error that says the same.
fn same(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// The pseudo header, and up to `most` bytes of the packet.
fn emit(record: &Record<'_>, most: usize, into: &mut Vec<u8>) {
    let (event, status) = match record.event {
        PacketEvent::Sent => (0, 0),
        PacketEvent::Received => (1, 0),
        PacketEvent::Failed(status) => (2, status.code()),
    };
    into.extend([VERSION, event, status, 0]);
    into.extend(record.source.qpn.0.to_le_bytes());
    into.extend(record.destination.qpn.0.to_le_bytes());
    into.extend(record.source.gid.0);
    into.extend(record.destination.gid.0);
    into.extend(&record.bytes[..record.bytes.len().min(most)]);
}

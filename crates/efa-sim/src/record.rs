//! Records of the packets that pass on a link: one [`Record`] for each [event](PacketEvent).
//!
//! A link without a [`Sink`] pays one branch per packet.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use efa_device::{Gid, Qpn, QueuePairAddress, Status, Time};

/// A queue pair: its address without the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePairId {
    /// The interface.
    pub gid: Gid,
    /// The queue pair on it.
    pub qpn: Qpn,
}

impl From<QueuePairAddress> for QueuePairId {
    fn from(address: QueuePairAddress) -> Self {
        Self { gid: address.gid, qpn: address.qpn }
    }
}

impl fmt::Display for QueuePairId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.gid, self.qpn.0)
    }
}

/// An event of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketEvent {
    /// The link accepted the packet and sent it.
    Sent,
    /// The packet is in a receive buffer of its destination.
    Received,
    /// The packet was not delivered; the send completes with this status.
    Failed(Status),
}

/// One event of one packet.
#[derive(Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// Nanoseconds of the clock that the queue pairs are polled with (see [`capture`](crate::capture)
    /// for its precision).
    pub time: Time,
    /// The event.
    pub event: PacketEvent,
    /// The sender.
    pub source: QueuePairId,
    /// The receiver.
    pub destination: QueuePairId,
    /// The packet's bytes.
    pub bytes: Cow<'a, [u8]>,
}

/// Prints the number of bytes, and none of them.
impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("time", &self.time)
            .field("event", &self.event)
            .field("source", &self.source)
            .field("destination", &self.destination)
            .field("length", &self.bytes.len())
            .finish()
    }
}

impl Record<'_> {
    /// A copy that owns its bytes.
    #[must_use]
    pub fn into_owned(self) -> Record<'static> {
        Record {
            time: self.time,
            event: self.event,
            source: self.source,
            destination: self.destination,
            bytes: Cow::Owned(self.bytes.into_owned()),
        }
    }
}

/// A sink could not write, so records are missing.
#[derive(Debug, thiserror::Error)]
#[error("{}: records are missing", path.as_ref().map_or("a capture".into(), |path| path.display().to_string()))]
#[non_exhaustive]
pub struct SinkError {
    /// The file, if the sink knows it.
    pub path: Option<PathBuf>,
    /// Why.
    pub source: io::Error,
}

impl SinkError {
    /// The error of a sink that doesn't write to a file, or doesn't know its path.
    #[must_use]
    pub fn new(source: io::Error) -> Self {
        Self { path: None, source }
    }

    /// As [`new`](Self::new), for the file at `path`.
    #[must_use]
    pub fn in_file(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self { path: Some(path.into()), source }
    }
}

/// Receives records: a [`Trace`] in memory, or a capture file.
pub trait Sink: Send {
    /// Receives one record. A sink that fails must not disturb the link: it keeps the error for [`flush`](Self::flush).
    fn record(&mut self, record: &Record<'_>);

    /// Writes out what the sink still has in memory.
    ///
    /// # Errors
    /// The first error of the sink, also one of [`record`](Self::record); every later call has it again.
    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}

/// Records kept in memory. Clones share them.
///
/// It grows until [`take`](Self::take) is called.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<Vec<Record<'static>>>>);

impl Trace {
    /// An empty trace.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The records since the last call, in the order of the events.
    #[must_use]
    pub fn take(&self) -> Vec<Record<'static>> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Sink for Trace {
    fn record(&mut self, record: &Record<'_>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(record.clone().into_owned());
    }
}

/// A sink with several owners: several devices, or a device and the reader of the records.
#[derive(Clone)]
pub struct SharedSink(Arc<Mutex<dyn Sink>>);

impl SharedSink {
    /// Shares `sink`, which is dropped (and a capture file flushed) with the last clone.
    #[must_use]
    pub fn new(sink: impl Sink + 'static) -> Self {
        Self(Arc::new(Mutex::new(sink)))
    }

    /// Has the sink write out what it still has in memory: of a capture file up to 8 KiB, which a process that is killed loses.
    /// Dropping the last clone writes it out as well, and doesn't say whether that failed.
    ///
    /// # Errors
    /// The first error of the sink, since which it has missed records, as a capture on a full disk does.
    pub fn flush(&self) -> Result<(), SinkError> {
        self.lock().flush()
    }

    fn lock(&self) -> MutexGuard<'_, dyn Sink + 'static> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether both are the same sink.
impl PartialEq for SharedSink {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for SharedSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSink")
    }
}

impl Sink for SharedSink {
    fn record(&mut self, record: &Record<'_>) {
        self.lock().record(record);
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        SharedSink::flush(self)
    }
}

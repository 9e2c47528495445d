//! What a link tells about the packets that pass: one [`Record`] for each thing that happens to one.
//!
//! A link without a [`Sink`] pays one branch a packet.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use efa_device::{Gid, Qpn, QueuePairAddress, Status, Time};

/// Which queue pair of which interface; its address without the key.
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

/// What happened to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketEvent {
    /// It was posted and left.
    Sent,
    /// It lies in a receive buffer of its destination.
    Received,
    /// It was given up; the send completes with this status.
    Failed(Status),
}

/// One packet at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When, by the time that the link was polled with.
    pub time: Time,
    /// What happened.
    pub event: PacketEvent,
    /// Who sent it.
    pub source: QueuePairId,
    /// Where it goes.
    pub destination: QueuePairId,
    /// The packet.
    pub bytes: Cow<'a, [u8]>,
}

impl Record<'_> {
    /// The record with bytes of its own.
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

/// The status with this number of the device.
pub(crate) fn status_from_code(code: u8) -> Option<Status> {
    const ALL: [Status; 15] = [
        Status::Flushed,
        Status::QueuePairInternal,
        Status::UnsupportedOperation,
        Status::BadAddressHandle,
        Status::BadLocalKey,
        Status::BadLength,
        Status::RemoteBadAddress,
        Status::RemoteAbort,
        Status::BadDestinationQpn,
        Status::ReceiverNotReady,
        Status::RemoteBadLength,
        Status::BadStatus,
        Status::UnresponsiveRemote,
        Status::UnknownPeer,
        Status::UnreachableRemote,
    ];
    ALL.into_iter().find(|status| status.code() == code)
}

/// Takes records: a [`Trace`] in memory, a capture file.
pub trait Sink: Send {
    /// Takes one. A sink that fails keeps the error to itself; the link goes on.
    fn record(&mut self, record: &Record<'_>);
}

/// Records kept in memory. Clones share them.
///
/// It grows without bound; [`take`](Self::take) it now and then.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<Vec<Record<'static>>>>);

impl Trace {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The records since the last call, in the order in which they happened.
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

/// A sink in many hands: of several devices, or of a device and the one who reads it.
#[derive(Clone)]
pub struct SharedSink(Arc<Mutex<dyn Sink>>);

impl SharedSink {
    /// Shares `sink`. It is dropped, and a file flushed, with the last clone.
    #[must_use]
    pub fn new(sink: impl Sink + 'static) -> Self {
        Self(Arc::new(Mutex::new(sink)))
    }
}

impl fmt::Debug for SharedSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSink")
    }
}

impl Sink for SharedSink {
    fn record(&mut self, record: &Record<'_>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).record(record);
    }
}

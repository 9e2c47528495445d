//! Counters of a device, printed at the end of the process on request.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_device::Status;

/// What an opened device did.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    sends: Counter,
    send_bytes: Counter,
    receives: Counter,
    receive_bytes: Counter,
    reads: Counter,
    read_bytes: Counter,
    writes: Counter,
    write_bytes: Counter,
    receiver_not_ready: Counter,
    failed: Counter,
    /// Steps taken because nobody polled.
    helped: Counter,
}

#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.load(Ordering::Relaxed).fmt(f)
    }
}

impl Statistics {
    pub(crate) fn posted(&self, bytes: usize) {
        self.sends.add(1);
        self.send_bytes.add(bytes as u64);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.receives.add(1);
        self.receive_bytes.add(bytes as u64);
    }

    pub(crate) fn read(&self, bytes: u64) {
        self.reads.add(1);
        self.read_bytes.add(bytes);
    }

    pub(crate) fn wrote(&self, bytes: u64) {
        self.writes.add(1);
        self.write_bytes.add(bytes);
    }

    pub(crate) fn ended(&self, result: Result<(), Status>) {
        match result {
            Ok(()) => {}
            Err(Status::ReceiverNotReady) => self.receiver_not_ready.add(1),
            Err(_) => self.failed.add(1),
        }
    }

    pub(crate) fn helped(&self) {
        self.helped.add(1);
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sends {} of {} B, ", self.sends, self.send_bytes)?;
        write!(f, "receives {} of {} B, ", self.receives, self.receive_bytes)?;
        write!(f, "reads {} of {} B, ", self.reads, self.read_bytes)?;
        write!(f, "writes {} of {} B, ", self.writes, self.write_bytes)?;
        write!(f, "receiver not ready {}, ", self.receiver_not_ready)?;
        write!(f, "failed {}, helped {}", self.failed, self.helped)
    }
}

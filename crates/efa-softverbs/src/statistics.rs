//! Counters of a device, printed when it is closed or the process exits, if the program asks for it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_device::Status;

/// What a device did since it was opened.
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
    background_progress: Counter,
    doorbells: Counter,
    descriptors: Counter,
}

#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl Statistics {
    pub(crate) fn sent(&self, bytes: usize) {
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

    /// Counts how a send, read or write completed.
    pub(crate) fn completed(&self, result: Result<(), Status>) {
        match result {
            Ok(()) => {}
            Err(Status::ReceiverNotReady) => self.receiver_not_ready.add(1),
            Err(_) => self.failed.add(1),
        }
    }

    /// Counts that the progress thread found something to do, as the program didn't poll.
    pub(crate) fn progressed_unpolled(&self) {
        self.background_progress.add(1);
    }

    /// Counts doorbells of rings that were seen to have been rung.
    pub(crate) fn rung(&self, doorbells: u64) {
        self.doorbells.add(doorbells);
    }

    /// Counts descriptors that were read from rings.
    pub(crate) fn read_descriptors(&self, count: u64) {
        self.descriptors.add(count);
    }

    /// Whether the device was not used.
    pub(crate) fn are_zero(&self) -> bool {
        let used = [&self.sends, &self.receives, &self.reads, &self.writes, &self.failed];
        used.into_iter().all(|counter| counter.get() == 0)
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sends {} of {} B, ", self.sends, self.send_bytes)?;
        write!(f, "receives {} of {} B, ", self.receives, self.receive_bytes)?;
        write!(f, "reads {} of {} B, ", self.reads, self.read_bytes)?;
        write!(f, "writes {} of {} B, ", self.writes, self.write_bytes)?;
        write!(f, "receiver not ready {}, ", self.receiver_not_ready)?;
        write!(f, "failed {}, background progress {}, ", self.failed, self.background_progress)?;
        write!(f, "doorbells {}, descriptors {}", self.doorbells, self.descriptors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_unused_device_are_zero() {
        let statistics = Statistics::default();
        statistics.progressed_unpolled();
        assert!(statistics.are_zero());
        statistics.completed(Err(Status::BadLocalKey));
        assert!(!statistics.are_zero());
    }
}

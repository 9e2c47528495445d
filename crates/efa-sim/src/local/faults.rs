//! Random faults of a local fabric, and its counters.
//!
//! [`Faults`] holds probabilities, which apply until changed. Single faults are injected with methods of
//! [`LocalFabric`](super::LocalFabric). Random numbers come from the fabric's seed.

use std::time::Duration;

/// Random faults of a fabric; none by default. Probabilities are from 0.0 (never) to 1.0 (always).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Faults {
    /// Probability that a packet is delayed by [`late_by`](Self::late_by).
    pub late: f64,
    /// The delay of late packets.
    pub late_by: Duration,
    /// Probability that a packet finds its receiver not ready although buffers are posted. Its send fails
    /// with [`ReceiverNotReady`](efa_device::Status::ReceiverNotReady) after the RNR timeout; with endless
    /// retries it arrives again after one RNR delay.
    pub receiver_not_ready: f64,
    /// Probability that a send is refused as if the queue were full.
    pub send_refused: f64,
    /// Most sends outstanding on a queue pair, if lower than its depth.
    pub send_limit: Option<usize>,
    /// Probability that a memory registration is refused.
    pub registration_refused: f64,
    /// Probability that the allocation of a packet buffer is refused.
    pub allocation_refused: f64,
    /// How many packets for each queue pair are kept for
    /// [`deliver_stale`](super::LocalFabric::deliver_stale).
    pub keep_stale: usize,
}

impl Faults {
    /// These faults with some changed:
    ///
    /// ```
    /// let faults = efa_sim::local::Faults::default().with(|faults| faults.receiver_not_ready = 0.01);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// Counters of a fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Sends accepted.
    pub sent: u64,
    /// Packets put into receive buffers, including injected and stale ones.
    pub received: u64,
    /// Bytes of these packets.
    pub received_bytes: u64,
    /// Packets that arrived after one sent later between the same two queue pairs.
    pub overtaken: u64,
    /// Packets that found no posted buffer when they arrived.
    pub waited: u64,
    /// RDMA reads and writes accepted.
    pub rdma: u64,
    /// Bytes copied by RDMA.
    pub rdma_bytes: u64,
    /// Sends and RDMA operations that failed, with any status.
    pub failed: u64,
    /// Sends and RDMA operations that failed with RNR.
    pub receiver_not_ready: u64,
    /// Packets with a wrong queue key.
    pub bad_key: u64,
    /// Packets to a missing queue pair.
    pub bad_destination: u64,
    /// Sends refused by a fault.
    pub sends_refused: u64,
    /// Registrations and packet buffers refused by a fault.
    pub registrations_refused: u64,
    /// Packets injected, including stale ones.
    pub injected: u64,
}

//! What can be made to go wrong on a local fabric, and what it counts.
//!
//! Chances are given in [`Faults`] and hold until changed; single events are calls of
//! [`LocalFabric`](super::LocalFabric). Chances are drawn from the fabric's seed.

use std::time::Duration;

/// Standing faults of a fabric. The default is none.
///
/// A chance is a probability: 0.0 never, 1.0 always.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Chance that a packet takes [`late_by`](Self::late_by) longer.
    pub late: f64,
    /// How much longer.
    pub late_by: Duration,
    /// Chance that a packet finds its receiver not ready although buffers are posted. Its send
    /// fails with [`ReceiverNotReady`](efa_device::Status::ReceiverNotReady) after the device's
    /// retries; with retries for ever it is tried again after one retry delay.
    pub receiver_not_ready: f64,
    /// Chance that a send is refused as if the queue were full.
    pub send_refused: f64,
    /// Most sends outstanding on a queue pair, if lower than its depth.
    pub send_limit: Option<usize>,
    /// Chance that a memory registration is refused.
    pub registration_refused: f64,
    /// Chance that a packet buffer is refused.
    pub allocation_refused: f64,
    /// How many packets addressed to each queue pair are kept, so that
    /// [`deliver_stale`](super::LocalFabric::deliver_stale) has some.
    pub keep_stale: usize,
}

/// What happened on a fabric so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Sends accepted.
    pub sent: u64,
    /// Packets put into receive buffers, injected and stale ones too.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets that arrived after one sent later between the same two queue pairs.
    pub overtaken: u64,
    /// Packets that found no receive buffer at first.
    pub waited: u64,
    /// RDMA reads and writes accepted.
    pub rdma: u64,
    /// Bytes that they moved.
    pub rdma_bytes: u64,
    /// Sends and RDMA operations that failed, whatever the status.
    pub failed: u64,
    /// Those for want of a receive buffer.
    pub receiver_not_ready: u64,
    /// Packets dropped for a key other than the target's.
    pub bad_key: u64,
    /// Packets to a queue pair that did not exist.
    pub bad_destination: u64,
    /// Sends refused by a fault.
    pub sends_refused: u64,
    /// Registrations and packet buffers refused by a fault.
    pub registrations_refused: u64,
    /// Packets injected, stale ones too.
    pub injected: u64,
}

//! Receive buffers: how many are posted to the device follows the traffic.

use std::time::Duration;

use efa_device::{DeviceError, QueuePair, Time};

use crate::storage::Pool;

/// The receive buffers of an endpoint.
///
/// The number of buffers to post doubles when a burst uses more than half of them, and halves after a
/// period in which every burst used less than a quarter. A burst ends when the device has no more
/// completions, or after [`BURST`]: steady traffic doesn't need ever more buffers.
#[derive(Debug)]
pub(crate) struct Inbound<P> {
    spare: Pool<P>,
    posted: usize,
    target: usize,
    /// When fewer than this many are posted, more are posted. 0 if none ever is.
    fewest: usize,
    /// Buffers used in this burst.
    used: usize,
    burst_ends: Time,
    /// Most buffers used in a burst of this period.
    busiest: usize,
    least: usize,
    most: usize,
}

impl<P> Inbound<P> {
    pub(crate) fn new(least: usize, most: usize) -> Self {
        let least = least.min(most);
        let spare = Pool::default();
        let fewest = fewest(least);
        let burst_ends = Time::ZERO;
        Self {
            spare,
            posted: 0,
            target: least,
            fewest,
            used: 0,
            burst_ends,
            busiest: 0,
            least,
            most,
        }
    }

    fn set_target(&mut self, target: usize) {
        self.target = target;
        self.fewest = fewest(target);
    }

    pub(crate) fn posted(&self) -> usize {
        self.posted
    }

    /// Whether none is posted, and some are to be.
    pub(crate) fn is_empty(&self) -> bool {
        self.posted == 0 && self.runs_low()
    }

    /// Posts no more buffers, ever.
    pub(crate) fn close(&mut self) {
        (self.least, self.most) = (0, 0);
        self.set_target(0);
    }

    pub(crate) fn spare(&self) -> usize {
        self.spare.len()
    }

    /// Takes back a buffer whose packet has been handled.
    #[inline(always)]
    pub(crate) fn consumed(&mut self, packet: P) {
        self.posted -= 1;
        self.used += 1;
        self.spare.put(packet);
    }

    /// Takes back a buffer that came back without a packet.
    pub(crate) fn unfilled(&mut self, packet: P) {
        self.posted -= 1;
        self.spare.put(packet);
    }

    /// Whether more buffers are to be posted.
    #[inline]
    pub(crate) fn runs_low(&self) -> bool {
        self.posted < self.fewest
    }

    /// Counts a filled buffer that was given to the application.
    pub(crate) fn handed_over(&mut self) {
        self.posted -= 1;
        self.used += 1;
    }

    /// A free buffer for the application.
    pub(crate) fn take_spare(&mut self) -> Option<P> {
        self.spare.take()
    }

    /// Adds a buffer from the application to the free ones.
    pub(crate) fn put_spare(&mut self, packet: P) {
        self.spare.put(packet);
    }

    /// Ends the burst: the device has no more completions.
    pub(crate) fn drained(&mut self) {
        self.busiest = self.busiest.max(self.used);
        self.used = 0;
    }

    /// Posts buffers up to the target, and allocates those that are missing. A full device queue is no
    /// error.
    pub(crate) fn refill<Q: QueuePair<Packet = P>>(
        &mut self,
        device: &mut Q,
        now: Time,
    ) -> Result<(), DeviceError> {
        if now >= self.burst_ends {
            self.drained();
            self.burst_ends = now + BURST;
        }
        if self.used * 2 > self.target {
            self.set_target((self.target * 2).min(self.most));
        }
        loop {
            let missing = self.target.saturating_sub(self.posted);
            let (posted, refused) = self.spare.give(missing, |packet| {
                device.post_receive(packet).map_err(|refused| (refused.packet, refused.error))
            });
            self.posted += posted;
            match refused {
                Some(DeviceError::QueueFull { .. }) => return Ok(()),
                Some(error) => return Err(error),
                None if posted == missing => return Ok(()),
                None => self.spare.put(device.allocate_packet()?),
            }
        }
    }

    /// Ends a period: lowers the target and frees buffers if the bursts didn't need them, also posted ones if the
    /// device gives them back.
    pub(crate) fn trim<Q: QueuePair<Packet = P>>(&mut self, device: &mut Q) {
        if self.busiest.max(self.used) * 4 < self.target {
            self.set_target((self.target / 2).max(self.least));
        }
        while self.posted > self.target && device.withdraw_receive().is_some() {
            self.posted -= 1;
        }
        self.busiest = 0;
        self.spare.trim();
    }
}

/// Longest duration of a burst.
const BURST: Duration = Duration::from_micros(100);

/// Most buffers that may be missing before more are posted. Posting several at a time saves device
/// calls (doorbells).
const BATCH: usize = 16;

fn fewest(target: usize) -> usize {
    if target == 0 { 0 } else { target - (target / 4).clamp(1, BATCH) + 1 }
}

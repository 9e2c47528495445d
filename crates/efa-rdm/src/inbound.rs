//! Receive buffers: as many as the traffic needs, no more.

use std::time::Duration;

use efa_device::{DeviceError, QueuePair, Time};

use crate::pool::Pool;

/// The receive buffers of an endpoint.
///
/// How many are to be posted doubles when half of them were used in a burst, and halves after a period
/// whose bursts never needed a quarter. A burst ends when the device has nothing more to tell, or
/// after a while: an application that always finds its next message needs no more buffers for that.
#[derive(Debug)]
pub(crate) struct Inbound<P> {
    spare: Pool<P>,
    posted: usize,
    target: usize,
    /// With so few posted, more are posted.
    low: usize,
    /// Used in this burst, and the most of a period.
    used: usize,
    burst_ends: Time,
    busiest: usize,
    least: usize,
    most: usize,
}

impl<P> Inbound<P> {
    pub(crate) fn new(least: usize, most: usize) -> Self {
        let least = least.min(most);
        let spare = Pool::default();
        let low = low_water(least);
        let burst_ends = Time::ZERO;
        Self { spare, posted: 0, target: least, low, used: 0, burst_ends, busiest: 0, least, most }
    }

    fn set_target(&mut self, target: usize) {
        self.target = target;
        self.low = low_water(target);
    }

    pub(crate) fn posted(&self) -> usize {
        self.posted
    }

    pub(crate) fn spare(&self) -> usize {
        self.spare.len()
    }

    /// A buffer was used and read.
    #[inline(always)]
    pub(crate) fn consumed(&mut self, packet: P) {
        self.posted -= 1;
        self.used += 1;
        self.spare.put(packet);
    }

    /// Whether so many are missing that more are to be posted.
    #[inline]
    pub(crate) fn runs_low(&self) -> bool {
        self.posted <= self.low
    }

    /// A buffer was used and is the application's now.
    pub(crate) fn handed_over(&mut self) {
        self.posted -= 1;
        self.used += 1;
    }

    /// A buffer for the application, if one is free.
    pub(crate) fn take_spare(&mut self) -> Option<P> {
        self.spare.take()
    }

    /// The application gave a buffer.
    pub(crate) fn put_spare(&mut self, packet: P) {
        self.spare.put(packet);
    }

    /// The device has nothing more to tell at present: the burst is over.
    pub(crate) fn drained(&mut self) {
        self.busiest = self.busiest.max(self.used);
        self.used = 0;
    }

    /// Posts what is missing.
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

    /// Ends a period.
    pub(crate) fn trim(&mut self) {
        if self.busiest.max(self.used) * 4 < self.target {
            self.set_target((self.target / 2).max(self.least));
        }
        self.busiest = 0;
        self.spare.trim();
    }
}

/// How long a burst lasts that doesn't end by itself.
const BURST: Duration = Duration::from_micros(100);

/// Most buffers that are missing before more are posted: several at a time, for one call of the
/// device costs much more than a buffer.
const BATCH: usize = 16;

fn low_water(target: usize) -> usize {
    target.saturating_sub((target / 4).clamp(1, BATCH))
}

//! Receive buffers: as many as the traffic needs, no more.

use efa_device::{DeviceError, QueuePair};

use crate::pool::Pool;

/// The receive buffers of an endpoint.
///
/// The number posted doubles when the device used up half of them between two refills, and halves
/// after a period that never needed a quarter.
#[derive(Debug)]
pub(crate) struct Inbound<P> {
    spare: Pool<P>,
    posted: usize,
    target: usize,
    /// Used since the last refill, and the most of a period.
    used: usize,
    busiest: usize,
    least: usize,
    most: usize,
}

impl<P> Inbound<P> {
    pub(crate) fn new(least: usize, most: usize) -> Self {
        let least = least.min(most);
        Self { spare: Pool::default(), posted: 0, target: least, used: 0, busiest: 0, least, most }
    }

    pub(crate) fn posted(&self) -> usize {
        self.posted
    }

    pub(crate) fn spare(&self) -> usize {
        self.spare.len()
    }

    /// A buffer was used and read.
    pub(crate) fn consumed(&mut self, packet: P) {
        self.posted -= 1;
        self.used += 1;
        if self.posted + self.spare.len() < self.target {
            self.spare.put(packet);
        }
    }

    /// Posts what is missing.
    pub(crate) fn refill<Q: QueuePair<Packet = P>>(
        &mut self,
        device: &mut Q,
    ) -> Result<(), DeviceError> {
        let used = core::mem::take(&mut self.used);
        if used == 0 && self.posted >= self.target {
            return Ok(());
        }
        self.busiest = self.busiest.max(used);
        if used * 2 > self.target {
            self.target = (self.target * 2).min(self.most);
        }
        while self.posted < self.target {
            let packet = match self.spare.take() {
                Some(packet) => packet,
                None => device.allocate_packet()?,
            };
            if let Err(refused) = device.post_receive(packet) {
                self.spare.put(refused.packet);
                return match refused.error {
                    DeviceError::QueueFull { .. } => Ok(()),
                    error => Err(error),
                };
            }
            self.posted += 1;
        }
        Ok(())
    }

    /// Ends a period.
    pub(crate) fn trim(&mut self) {
        if self.busiest * 4 < self.target {
            self.target = (self.target / 2).max(self.least);
        }
        self.busiest = 0;
        self.spare.trim();
    }
}

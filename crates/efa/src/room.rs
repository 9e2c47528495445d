//! How many operations may start.

use crate::endpoint::{Endpoint, drive};
use crate::endpoint_options::Side;

impl Endpoint {
    /// How many more sends, writes, reads and atomics may start before completions are read (`fi_tx_size_left`), if
    /// no other endpoint uses the completion queue.
    #[must_use]
    pub fn transmits_left(&self) -> usize {
        self.left(Side::Transmit, self.transmit_attributes().size)
    }

    /// How many more receives may be posted before completions are read (`fi_rx_size_left`), if no other endpoint uses
    /// the completion queue.
    #[must_use]
    pub fn receives_left(&self) -> usize {
        self.left(Side::Receive, self.receive_attributes().size)
    }

    fn left(&self, side: Side, most: usize) -> usize {
        drive!(self.shared, driver => driver.left(side, most), _ => 0)
    }
}

//! The send window for peers that may be of a release of libfabric before 2.0: how many message IDs may be sent until no
//! packet with one is in flight to the peer.
//!
//! ```text
//!   message IDs   ├──── all delivered ────┤├───── window ─────┤├─ wait ─ ─
//!                                          ▲                   ▲
//!                       next ID when none was in flight        stop
//! ```
//!
//! Receivers of libfabric before 2.0 drop a message whose ID is a receive window or more ahead of the
//! expected one; then the connection hangs. The device completes a packet when it lies in the
//! receiver's memory, and the receiver handles packets in the order in which they got there. So a
//! packet that is posted after all others with message IDs were completed finds none of them missing. The sender pauses
//! at `stop` until all are completed. A HANDSHAKE with a feature that came later ends this.

use efa_handshake::Extras;

/// Features that no release before 2.0 has. The first is new in 2.1, and announced where the device has it; the others are
/// those of this implementation, and of libfabric's main branch after 2.6. None distinguishes 2.0, which needs no pauses
/// either.
const SHOWS_A_LATER_RELEASE: Extras =
    Extras::UNSOLICITED_WRITE_RECV.union(Extras::PEER_ERROR_20).union(Extras::PEER_ERROR);

/// The message IDs that may be sent to one peer before a pause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWindow {
    /// The first message ID beyond the window. The fast path compares only this.
    pub(crate) stop: u32,
    /// Message IDs between two pauses; 0: no pauses.
    window: u32,
    /// Whether the peer is in the list of peers that wait for a pause.
    pub(crate) waits: bool,
}

impl SendWindow {
    /// A window that begins at the message ID `next`.
    pub(crate) fn new(window: u32, next: u32) -> Self {
        // Without pauses, one ID in four billion equals `stop` and takes the slow path for nothing.
        let ahead = if window == 0 { u32::MAX } else { window };
        Self { stop: next.wrapping_add(ahead), window, waits: false }
    }

    /// Whether the next message has to wait for a pause.
    pub(crate) fn is_over(&self, next: u32) -> bool {
        self.window != 0 && self.stop == next
    }

    /// Ends the pauses if the features in the peer's HANDSHAKE show a release without the problem.
    pub(crate) fn learn(&mut self, extras: Extras, next: u32) {
        if extras.intersects(SHOWS_A_LATER_RELEASE) {
            *self = Self { waits: self.waits, ..Self::new(0, next) };
        }
    }

    /// Starts a new window: no packet is in flight to the peer.
    pub(crate) fn paused(&mut self, next: u32) {
        *self = Self::new(self.window, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_window_stops_at_its_end_across_wrap() {
        for first in [0, 5, u32::MAX - 3] {
            let mut send_window = SendWindow::new(8, first);
            for i in 0..8 {
                assert!(!send_window.is_over(first.wrapping_add(i)));
            }
            let next = first.wrapping_add(8);
            assert!(send_window.is_over(next));
            send_window.paused(next);
            assert!(!send_window.is_over(next) && send_window.is_over(next.wrapping_add(8)));
            send_window.learn(Extras::CONNID_HEADER, next);
            assert!(send_window.is_over(next.wrapping_add(8)), "the peer may be older than 2.0");
            for feature in SHOWS_A_LATER_RELEASE.iter() {
                let mut send_window = send_window;
                send_window.learn(feature | Extras::CONNID_HEADER, next);
                assert!((0..20).all(|i| !send_window.is_over(next.wrapping_add(i))), "{feature:?}");
            }
        }
        let none = SendWindow::new(0, 7);
        assert!(!none.is_over(none.stop), "there are no pauses");
    }
}

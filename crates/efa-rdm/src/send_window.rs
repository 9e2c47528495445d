//! How far messages may run ahead of a receiver that loses those beyond its window.
//!
//! ```text
//!   message ids   ├──── all delivered ────┤├───── window ─────┤├─ wait ─ ─
//!                                          ▲                   ▲
//!                        the last time nothing was in flight   stop
//! ```
//!
//! Receivers of libfabric before 2.0 drop a message whose id is a window or more ahead of the one that
//! they expect, and the peer hangs. The device tells when a packet lies in the receiver's memory, and
//! the receiver handles packets in the order in which they came to lie there; so one that is posted
//! after all others were delivered finds none of them missing. It takes a pause now and then, until
//! the peer's HANDSHAKE tells that it is no such receiver.

use efa_handshake::Extras;

/// The message ids that one peer may be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWindow {
    /// The id whose message doesn't go at once. The only thing that is looked at for each message.
    pub(crate) stop: u32,
    /// How many ids there are between two pauses; 0: no pauses.
    window: u32,
    /// Whether the peer is among those that wait for a pause.
    pub(crate) waits: bool,
}

impl SendWindow {
    /// With a peer that nothing is known of.
    pub(crate) fn new(window: u32, next: u32) -> Self {
        // Without pauses an id that comes up once in four billion has a look taken for nothing.
        let ahead = if window == 0 { u32::MAX } else { window };
        Self { stop: next.wrapping_add(ahead), window, waits: false }
    }

    /// Whether the next message has to wait for a pause.
    pub(crate) fn is_over(&self, next: u32) -> bool {
        self.window != 0 && self.stop == next
    }

    /// The peer has told what it can do.
    pub(crate) fn learn(&mut self, extras: Extras, next: u32) {
        // It came with 2.1; nothing else tells those that keep what is beyond their window.
        if extras.contains(Extras::UNSOLICITED_WRITE_RECV) {
            *self = Self { waits: self.waits, ..Self::new(0, next) };
        }
    }

    /// Nothing is in flight to the peer.
    pub(crate) fn paused(&mut self, next: u32) {
        *self = Self::new(self.window, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_where_it_should_and_ids_wrap() {
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
            assert!(send_window.is_over(next.wrapping_add(8)), "it may be old");
            send_window.learn(Extras::UNSOLICITED_WRITE_RECV, next);
            assert!((0..20).all(|i| !send_window.is_over(next.wrapping_add(i))));
        }
        let none = SendWindow::new(0, 7);
        assert!(!none.is_over(none.stop), "without pauses a look is taken for nothing");
    }
}

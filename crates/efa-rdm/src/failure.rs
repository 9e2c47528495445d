//! The failure of the endpoint's queue pair: it is the end of the endpoint.
//!
//! ```text
//!   a receive buffer comes back flushed ─► every peer ends: what is under way with it fails
//!                                      ├─► posted receives fail, and later ones at once
//!                                      ├─► no more buffers are posted, nothing more is started
//!                                      └─► Event::QueuePairFailed
//! ```
//!
//! A device keeps receive buffers of a live queue pair until packets fill them, so a buffer that comes back
//! [flushed](Status::Flushed) says that the queue pair is in its error state, which it never leaves.

use efa_device::{QueuePair, Status};

use crate::completion::{Completion, OperationError};
use crate::endpoint::Endpoint;
use crate::event::Event;
use crate::payload::Payload;

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// Takes back a receive buffer that came back without a packet. No operation ends by that at once.
    #[cold]
    #[inline(never)]
    pub(crate) fn unfilled(&mut self, packet: Q::Packet, status: Status) -> Option<Completion<B>> {
        self.inbound.unfilled(packet);
        self.receive_failed(status);
        // Not at once: the device may return the next one in the same way.
        if self.inbound.runs_low() {
            self.core_mut().schedule.at_once();
        }
        None
    }

    /// Ends the endpoint if a receive failed in a way that says that its queue pair did.
    pub(crate) fn receive_failed(&mut self, status: Status) {
        if status == Status::Flushed && self.core().peers.closed.is_none() {
            self.end_all(status);
        }
    }

    /// Ends everything: the queue pair failed.
    #[cold]
    #[inline(never)]
    fn end_all(&mut self, status: Status) {
        let error = OperationError::Device(status);
        self.core_mut().peers.closed = Some(status);
        self.core_mut().events.push(Event::QueuePairFailed(status));
        self.inbound.close();
        for peer in self.core().peers.all() {
            self.core_mut().end_peer(peer, error);
            self.settle();
        }
        self.matching.limit = 0;
        self.matching.end_posted_receives(error);
        self.end_receives_in_place();
    }

    /// Ends receives in place if the queue pair failed.
    pub(crate) fn end_receives_in_place(&mut self) {
        if let Some(status) = self.core().peers.closed
            && let Some(in_place) = self.in_place.as_deref_mut()
        {
            in_place.end_receives(OperationError::Device(status));
        }
    }

    /// Why the queue pair failed, if it did: see [`Event::QueuePairFailed`].
    #[must_use]
    pub fn failure(&self) -> Option<Status> {
        self.core().peers.closed
    }
}

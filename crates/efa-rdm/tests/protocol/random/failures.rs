//! Packets that the device fails for good: their message is given up, or their peer is lost.

use efa_device::Status;
use efa_rdm::{Event, OperationError, PeerId};

use super::Run;
use crate::world::place;

impl Run {
    /// The device fails some of the next packets and RDMA operations of an end.
    pub(super) fn fail_packets(&mut self) {
        if !self.failing {
            return;
        }
        let end = self.random.usize(0..self.incarnations.len());
        let count = self.random.u32(1..4);
        self.world
            .network
            .fail_sends(place(&self.world.ends[end]), count, Status::BadLength)
            .unwrap();
    }

    /// Notes peers that were lost, and messages that failed after they had completed.
    pub(super) fn note_failures(&mut self) {
        for end in 0..self.incarnations.len() {
            let events: Vec<_> = self.world.ends[end].events.drain(..).collect();
            for event in events {
                // A write may have the same context: then the model expects less of that message.
                if let Event::InjectedFailed { context, .. } = event
                    && let Some(sent) = self.sent.get_mut(context as usize)
                {
                    sent.lacking = true;
                }
                if let Event::PeerLost { peer, .. } = event {
                    self.lost(end, peer);
                }
            }
        }
    }

    fn lost(&mut self, end: usize, peer: PeerId) {
        if let Some(of) = self.incarnation_of(end, peer) {
            let me = self.incarnations[end];
            self.broken.insert(Self::pair(me, of));
        }
    }
}

/// Whether the operation failed alone, its peer lives.
pub(super) fn is_given_up(result: Result<(), OperationError>) -> bool {
    matches!(
        result,
        Err(OperationError::GivenUp { .. } | OperationError::Device(Status::BadLength))
    )
}

//! The end of a connection: of an endpoint that has one peer, and will have no other.
//!
//! ```text
//!   end_connection ─┬─► the peer ends: sends under way end, unexpected messages are dropped from the first
//!                   │   incomplete one on
//!                   ├─► posted receives end
//!                   └─► the limit of receives becomes 0: a later one takes a message that is complete, also a
//!                       claimed one, or ends at once
//! ```

use efa_device::QueuePair;

use crate::completion::{OperationError, Refused, StartError};
use crate::endpoint::{Accept, Endpoint};
use crate::ids::{PeerId, ReceiveId};
use crate::matching::{Matching, Posted};
use crate::payload::Payload;

impl<Q: QueuePair, B> Matching<Q, B> {
    /// Whether no message will come any more: the connection has ended, or the queue pair failed.
    pub(crate) fn connection_has_ended(&self) -> bool {
        self.limit == 0
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// Ends the only peer of this endpoint, for good: operations under way with it, and receives that no
    /// complete message matched, end with [`OperationError::ConnectionEnded`]. Complete messages before the first
    /// incomplete one, and claimed ones, can still be received; a later receive that accepts none of them ends so at
    /// once. After an incomplete one only if [`Bounds::discovered`](crate::Bounds::discovered) isn't 0.
    ///
    /// `None` if there was no peer yet. On a device with a tag list, messages that matched a receive which
    /// the device holds are dropped.
    pub fn end_connection(&mut self, peer: Option<PeerId>) {
        if let Some(peer) = peer {
            self.core_mut().end_peer(peer, OperationError::ConnectionEnded);
            self.settle();
        }
        self.matching.limit = 0;
        self.matching.end_posted_receives(OperationError::ConnectionEnded);
    }

    /// A receive beyond the limit.
    #[cold]
    #[inline(never)]
    pub(crate) fn receive_refused(
        &mut self,
        error: StartError,
        accept: Accept,
        (buffer, context): (B, u64),
    ) -> Result<ReceiveId, Refused<B>> {
        if !self.matching.connection_has_ended() {
            return Err(Refused { error, buffer });
        }
        let (tagged, pattern) = accept.pattern();
        let waiting = self.matching.begin_wait(Posted { context, buffer, tag: pattern.tag });
        match self.matching.matcher(tagged).take(&pattern) {
            Some(message) => {
                let posted = self.matching.end_wait(waiting);
                self.matching.receive_unexpected(posted.target(tagged), message);
                self.settle();
            }
            None => self.matching.receive_failed(waiting, tagged, self.core().end_of_receives()),
        }
        Ok(ReceiveId::MATCHED)
    }
}

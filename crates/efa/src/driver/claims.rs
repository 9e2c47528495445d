//! Unexpected messages, and cancelling by context.

use efa_device::QueuePair;
use efa_rdm::{Accept, ClaimId, PeerId, SharedReceive};

use super::{Driver, translate};
use crate::buffer::{Buffer, Slot};
use crate::claim::UnexpectedMessage;
use crate::completion::{Refused, StartError};
use crate::device::{ConcretePacket, ConcreteRegion};
use crate::endpoint_options::Side;
use crate::message::Receive;

pub(super) fn accept(source: Option<PeerId>, tag: Option<(u64, u64)>) -> Accept {
    match tag {
        Some((tag, ignore)) => Accept::Tagged { source, tag, ignore },
        None => Accept::Untagged { source },
    }
}

impl<Q: QueuePair<Region: ConcreteRegion, Packet: ConcretePacket>> Driver<Q> {
    pub(crate) fn peek(
        &mut self,
        receive: Receive,
    ) -> Result<Option<UnexpectedMessage>, StartError> {
        let accept = self.accepted(&receive)?;
        let found = self.engine.peek(accept).map_err(|error| translate(error, None, None))?;
        Ok(found.map(|message| self.describe(&message)))
    }

    pub(crate) fn claim(
        &mut self,
        receive: Receive,
    ) -> Result<Option<(ClaimId, UnexpectedMessage)>, StartError> {
        let accept = self.accepted(&receive)?;
        let found = self.engine.claim(accept).map_err(|error| translate(error, None, None))?;
        Ok(found.map(|(claim, message)| (claim, self.describe(&message))))
    }

    pub(crate) fn receive_claimed(
        &mut self,
        claim: ClaimId,
        buffer: Buffer,
        context: u64,
    ) -> Result<(), Refused> {
        if let Err(error) = self.receive.start(&mut self.transmit) {
            return Err(Refused { error, buffer });
        }
        // Who claims a message waits for it.
        let posted = self.engine.receive_claimed(claim, Slot::whole(buffer), context);
        posted.map_err(|refused| self.refused(Side::Receive, None, refused))
    }

    /// Gives a receive of the shared queue to an unexpected message.
    ///
    /// # Errors
    /// The message has ended; the receive comes back.
    pub(crate) fn receive_shared(
        &mut self,
        message: ClaimId,
        receive: SharedReceive<Slot>,
    ) -> Result<(), SharedReceive<Slot>> {
        self.engine.receive_shared(message, receive)
    }

    /// Discards a claimed message, unless it is gone.
    pub(crate) fn discard(&mut self, claim: ClaimId) {
        self.engine.discard(claim);
        self.deliver();
    }

    pub(crate) fn cancel_context(&mut self, context: u64) -> bool {
        let cancelled = self.engine.cancel_context(context);
        self.deliver();
        cancelled
    }

    fn accepted(&mut self, receive: &Receive) -> Result<Accept, StartError> {
        let source = receive.source.map(|source| self.peer(source)).transpose()?;
        Ok(accept(source, receive.tag))
    }

    fn describe(&mut self, message: &efa_rdm::UnexpectedMessage) -> UnexpectedMessage {
        let efa_rdm::UnexpectedMessage { peer, tag, length, cq_data } = *message;
        let (peer, peer_address) = self.sender(Some(peer));
        UnexpectedMessage { peer, peer_address, tag, length, cq_data }
    }
}

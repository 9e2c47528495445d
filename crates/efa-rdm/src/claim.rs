//! Looking at unexpected messages, and claiming them before there is a buffer (`FI_PEEK`, `FI_CLAIM`,
//! `FI_DISCARD`).
//!
//! ```text
//!   unexpected ─┬─ receive, posted later ────────────────► its buffer
//!               └─ claim ─► matches no receive any more ─┬─ receive_claimed ─► a buffer
//!                                                        └─ discard ─► received as a whole, and dropped
//! ```

use efa_device::QueuePair;
use efa_proto::{Header, Packet};

use crate::completion::{Refused, StartError};
use crate::endpoint::{Accept, Endpoint};
use crate::ids::{ClaimId, PeerId};
use crate::matching::{HeldFor, Matching, Target};
use crate::payload::Payload;
use crate::shape::Shape;

/// A message that has begun to arrive and has no receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnexpectedMessage {
    /// The sender.
    pub peer: PeerId,
    /// The tag of a tagged message.
    pub tag: Option<u64>,
    /// Its length in bytes, not all of which need have arrived.
    pub length: u64,
    /// The sender's 64 bits of CQ data.
    pub cq_data: Option<u64>,
}

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// The unexpected message that a receive would get if it were posted now. The message stays.
    ///
    /// # Errors
    /// The endpoint receives in place.
    pub fn peek(&mut self, accept: Accept) -> Result<Option<UnexpectedMessage>, StartError> {
        if Q::IN_PLACE {
            return Err(StartError::InPlaceOnly);
        }
        let (tagged, pattern) = accept.pattern();
        let found = self.matching.matcher(tagged).peek(&pattern);
        Ok(found.and_then(|key| self.matching.describe(key)))
    }

    /// Takes the unexpected message that a receive would get if it were posted now: no receive matches it any
    /// more. [Receive](Self::receive_claimed) it or [discard](Self::discard) it. Until then it is charged to
    /// its sender ([`Bounds::unexpected_per_peer`](crate::Bounds)), and ends with the sender if it isn't
    /// complete.
    ///
    /// # Errors
    /// The endpoint receives in place.
    pub fn claim(
        &mut self,
        accept: Accept,
    ) -> Result<Option<(ClaimId, UnexpectedMessage)>, StartError> {
        if Q::IN_PLACE {
            return Err(StartError::InPlaceOnly);
        }
        let (tagged, pattern) = accept.pattern();
        let Some(key) = self.matching.matcher(tagged).take(&pattern) else { return Ok(None) };
        Ok(self.matching.claim(key))
    }

    /// Receives a claimed message. It completes as any receive does.
    ///
    /// # Errors
    /// The buffer comes back if the claim is stale, or too many receives are posted.
    pub fn receive_claimed(
        &mut self,
        claim: ClaimId,
        buffer: B,
        context: u64,
    ) -> Result<(), Refused<B>> {
        let checked = match self.matching.check_receives() {
            // It is complete: others ended with the connection.
            Err(StartError::Busy { .. }) if self.matching.connection_has_ended() => Ok(()),
            checked => checked,
        };
        let tagged = match checked.and_then(|()| self.matching.claimed(claim)) {
            Ok(tagged) => tagged,
            Err(error) => return Err(Refused { error, buffer }),
        };
        self.matching.receive_unexpected(Target { context, buffer, tagged }, claim.key);
        self.settle();
        Ok(())
    }

    /// Discards a claimed message: nothing is kept of it, and its sender's operation ends as if it had been
    /// received. Returns whether there was such a message. How many may be arriving after that:
    /// [`Bounds::requests`](crate::Bounds).
    pub fn discard(&mut self, claim: ClaimId) -> bool {
        let claimed = self.matching.claimed(claim).is_ok();
        if claimed {
            self.matching.discard_unexpected(claim.key);
            self.settle();
        }
        claimed
    }
}

impl<Q: QueuePair, B: Payload<Q::Region>> Matching<Q, B> {
    /// What the first packet of an unexpected message says.
    pub(crate) fn describe(&self, key: u32) -> Option<UnexpectedMessage> {
        let message = self.messages.get(key)?;
        let packet = Packet::parse(self.held.bytes(message.packets.first)).ok()?;
        let Header::Rtm(rtm) = &packet.header else { return None };
        let length = Shape::of(rtm, packet.payload).ok()?.length;
        let (peer, tag, cq_data) = (message.peer, rtm.tag, rtm.options.cq_data);
        Some(UnexpectedMessage { peer, tag, length, cq_data })
    }

    /// Claims a message that was taken from its matcher.
    fn claim(&mut self, key: u32) -> Option<(ClaimId, UnexpectedMessage)> {
        let described = self.describe(key)?;
        self.claims += 1;
        let number = self.claims;
        self.messages.get_mut(key)?.held_for = HeldFor::Claim(number);
        Some((ClaimId { key, number }, described))
    }

    /// Whether a claimed message is tagged. Fails if the claim is stale.
    fn claimed(&self, claim: ClaimId) -> Result<bool, StartError> {
        let ClaimId { key, number } = claim;
        let message = self.messages.get(key);
        let message = message.filter(|message| message.held_for == HeldFor::Claim(number));
        message.map(|message| message.tagged).ok_or(StartError::ClaimEnded)
    }
}

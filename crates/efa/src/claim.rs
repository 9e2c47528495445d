//! Unexpected messages: looking at them, and claiming them before there is a buffer.
//!
//! ```text
//!   Endpoint::peek(receive) ──► UnexpectedMessage, which stays
//!   Endpoint::claim(receive) ─► Claim ─┬─ receive(buffer) ─► a completion
//!                                      └─ discard, or drop ─► nothing here; the sender's send completes
//! ```

use std::sync::{Arc, Weak};

use efa_rdm::ClaimId;

use crate::address::Address;
use crate::address_vector::FiAddr;
use crate::buffer::{Buffer, ReceiveBuffer};
use crate::completion::{Refused, StartError};
use crate::endpoint::{Endpoint, Shared, drive};
use crate::message::Receive;
use crate::region::LocalAccess;

/// A message that has begun to arrive, and that no receive accepts yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnexpectedMessage {
    /// Index of the sender in the address vector. `None` if it isn't there, or the endpoint lacks
    /// [`Capabilities::SOURCE`](crate::Capabilities::SOURCE).
    pub peer: Option<FiAddr>,
    /// Address of the sender, unless the endpoint lacks that capability.
    pub peer_address: Option<Address>,
    /// The tag of a tagged message.
    pub tag: Option<u64>,
    /// Its length in bytes, not all of which need have arrived.
    pub length: u64,
    /// The data that the sender sent to the completion (`FI_REMOTE_CQ_DATA`).
    pub cq_data: Option<u64>,
}

/// A message that was claimed (`FI_CLAIM`): no receive matches it any more. [Receive](Self::receive) or
/// [discard](Self::discard) it; a claim that is dropped discards its message.
///
/// Until then the message takes memory, is charged to its sender
/// ([`Bounds::unexpected_per_peer`](crate::Bounds)), and ends with the sender if it isn't complete.
#[derive(Debug)]
#[must_use = "a claim that is dropped discards its message"]
pub struct Claim {
    endpoint: Weak<Shared>,
    id: ClaimId,
    message: UnexpectedMessage,
}

/// A claimed message that was not received; claim and buffer come back.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ClaimRefused {
    /// Why. After [`StartError::ClaimEnded`] the message is gone for good.
    pub error: StartError,
    /// The claim.
    pub claim: Claim,
    /// The buffer.
    pub buffer: Buffer,
}

impl Endpoint {
    /// The unexpected message that this receive would get if it were posted now (`FI_PEEK`), without
    /// taking it. `None` (`FI_ENOMSG`) if there is none.
    ///
    /// The answer is about what has arrived: reading completion queues is what lets messages arrive.
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    pub fn peek(&self, receive: Receive) -> Result<Option<UnexpectedMessage>, StartError> {
        self.check_receive(&receive)?;
        drive!(self.shared, driver => driver.peek(receive), _ => Err(StartError::Closed))
    }

    /// Claims the unexpected message that this receive would get if it were posted now (`FI_PEEK` with
    /// `FI_CLAIM`). `None` if there is none. To discard it at once (`FI_DISCARD`), drop the claim.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use efa::{CompletionQueueOptions, Direction, EndpointOptions, Fabric, LocalOptions};
    /// # use efa::{Message, Receive};
    /// # let domain = Fabric::local(LocalOptions::default()).domain()?;
    /// # let queue = domain.completion_queue(CompletionQueueOptions::default());
    /// # let addresses = domain.address_vector();
    /// # let endpoint = || {
    /// #     let builder = domain.endpoint(EndpointOptions::default());
    /// #     builder.bind_completion_queue(&queue, Direction::Both).bind_address_vector(&addresses).enable()
    /// # };
    /// # let (alice, bob) = (endpoint()?, endpoint()?);
    /// # let to_bob = addresses.insert(bob.address())?;
    /// alice.send(Message::to(to_bob).tagged(7), "of any length", 1)?;
    /// let claim = loop {
    ///     queue.progress();
    ///     if let Some(claim) = bob.claim(Receive::tagged(7))? {
    ///         break claim;
    ///     }
    /// };
    /// // The sender says how long it is: allocate at most what this program wants to receive.
    /// let length = claim.message().length.min(1 << 20) as usize;
    /// claim.receive(vec![0; length], 2)?;
    /// # loop {
    /// #     let completion = queue.wait(Duration::from_secs(10))?;
    /// #     if completion.is_received() {
    /// #         assert_eq!(completion.into_message(), *b"of any length");
    /// #         break;
    /// #     }
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    pub fn claim(&self, receive: Receive) -> Result<Option<Claim>, StartError> {
        self.check_receive(&receive)?;
        let claimed =
            drive!(self.shared, driver => driver.claim(receive), _ => Err(StartError::Closed));
        let endpoint = Arc::downgrade(&self.shared);
        Ok(claimed?.map(|(id, message)| Claim { endpoint, id, message }))
    }
}

impl Claim {
    /// The message.
    #[must_use]
    pub fn message(&self) -> &UnexpectedMessage {
        &self.message
    }

    /// Receives the message (`FI_CLAIM`). It completes as any receive does.
    ///
    /// # Errors
    /// The operation was not started: the sender ended before the message was complete, or as for
    /// [`Endpoint::receive`].
    #[allow(clippy::result_large_err, reason = "claim and buffer come back")]
    pub fn receive(
        self,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<(), ClaimRefused> {
        let ReceiveBuffer(buffer) = buffer.into();
        let Some(endpoint) = self.endpoint.upgrade() else {
            return Err(ClaimRefused { error: StartError::Closed, claim: self, buffer });
        };
        let id = self.id;
        let started = match endpoint.check_buffer(&buffer, LocalAccess::RECV) {
            Ok(()) => drive!(
                endpoint,
                driver => driver.receive_claimed(id, buffer, context),
                _ => Err(Refused { error: StartError::Closed, buffer })
            ),
            Err(error) => Err(Refused { error, buffer }),
        };
        // The claim is stale from now on: dropping it discards nothing.
        started.map_err(|Refused { error, buffer }| ClaimRefused { error, claim: self, buffer })
    }

    /// Discards the message (`FI_DISCARD`), as dropping the claim does: nothing is kept of it, and its
    /// sender's operation completes as if it had been received.
    pub fn discard(self) {}
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(endpoint) = self.endpoint.upgrade() {
            let id = self.id;
            drive!(endpoint, driver => driver.discard(id), _ => {});
        }
    }
}

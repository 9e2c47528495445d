//! Unexpected messages: a future that claims one, and one that receives it.

use tokio::task::coop::consume_budget;

use crate::buffer::{Buffer, ReceiveBuffer};
use crate::claim::{Claim, ClaimRefused, UnexpectedMessage};
use crate::completion::{Completion, Refused, StartError};
use crate::endpoint::Endpoint;
use crate::message::Receive;

use super::connections::End;
use super::endpoint::{AsyncEndpoint, AsyncError, Inner, RECEIVE, either};

/// A message that was claimed ([`AsyncEndpoint::claim`]): no receive matches it any more.
/// [Receive](Self::receive) it; a claim that is dropped discards its message.
///
/// What is said of a [`Claim`] holds here too.
#[derive(Debug)]
#[must_use = "a claim that is dropped discards its message"]
pub struct AsyncClaim {
    endpoint: AsyncEndpoint,
    message: UnexpectedMessage,
    /// `None` once its receive was started.
    claim: Option<Claim>,
}

impl AsyncEndpoint {
    /// The unexpected message that this receive would get if it were posted now, without taking it
    /// ([`Endpoint::peek`], `FI_PEEK`). `None` if there is none; [`claim`](Self::claim) waits for one.
    ///
    /// # Errors
    /// As for [`Endpoint::peek`].
    pub fn peek(&self, receive: Receive) -> Result<Option<UnexpectedMessage>, StartError> {
        self.0.endpoint.peek(receive)
    }

    /// Claims the next unexpected message that this receive would get ([`Endpoint::claim`], `FI_PEEK` with
    /// `FI_CLAIM`), and waits until there is one: so a message whose length isn't known gets a buffer that fits.
    ///
    /// Receives that are posted get messages first. A message that was kept for the receive of a dropped future isn't
    /// unexpected, and is not found. Dropping this future leaves the message where it is.
    ///
    /// ```
    /// use efa::{EndpointOptions, Fabric, LocalOptions, Message, Receive};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = Fabric::local(LocalOptions::default()).domain()?;
    /// # let addresses = domain.address_vector();
    /// # let endpoint = || {
    /// #     domain.endpoint(EndpointOptions::default()).bind_address_vector(&addresses).enable_async()
    /// # };
    /// # let (alice, bob) = (endpoint()?, endpoint()?);
    /// # let to_bob = addresses.insert(bob.address())?;
    /// let (sent, received) = tokio::join!(alice.send(Message::to(to_bob), "of any length"), async {
    ///     let mut claim = bob.claim(Receive::untagged()).await?;
    ///     // The sender says how long it is: allocate at most what this program wants to receive.
    ///     let length = claim.message().length.min(1 << 20) as usize;
    ///     claim.receive(vec![0; length]).await
    /// });
    /// sent?;
    /// assert_eq!(received?.into_message(), *b"of any length");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`AsyncError::Refused`], with an empty buffer, as for [`Endpoint::claim`], and with [`StartError::NotConnected`] when
    /// the [connection](crate::with_tokio::AsyncMsgEndpoint) has ended and has left no such message; the runtime was shut
    /// down.
    pub async fn claim(&self, receive: Receive) -> Result<AsyncClaim, AsyncError> {
        let Inner { endpoint, shared, connection, .. } = &*self.0;
        let mut end = connection.as_ref().map(|connection| connection.end());
        loop {
            consume_budget().await;
            // The task that reads completions gives turns after each look at what has arrived.
            let turn = shared.turn.notified();
            // No message comes after the end of a connection.
            let has_ended = end.as_ref().map_or(Ok(false), End::is_there)?;
            if let Some(ended) = shared.state.lock().ended.clone() {
                return Err(ended.into());
            }
            match endpoint.claim(receive) {
                Ok(Some(claim)) => {
                    let (endpoint, message) = (self.clone(), *claim.message());
                    return Ok(AsyncClaim { endpoint, message, claim: Some(claim) });
                }
                Err(error) if !error.is_busy() => {
                    return Err(Refused { error, buffer: Buffer::default() }.into());
                }
                Ok(None) if has_ended => {
                    let error = StartError::NotConnected;
                    return Err(Refused { error, buffer: Buffer::default() }.into());
                }
                Ok(None) | Err(_) => {}
            }
            match &mut end {
                Some(end) if !has_ended => either(turn, end.comes()).await,
                _ => turn.await,
            }
        }
    }
}

impl AsyncClaim {
    /// The message.
    #[must_use]
    pub fn message(&self) -> &UnexpectedMessage {
        &self.message
    }

    /// [Receives](Claim::receive) the message (`FI_CLAIM`). If it is refused, such as for a buffer that isn't registered,
    /// it can be called again. If the future is dropped after it has begun, the message is dropped when it completes.
    ///
    /// # Errors
    /// The receive was refused or failed, or the runtime was shut down. [`StartError::ClaimEnded`]: the sender ended
    /// before the message was complete, or it was received before.
    pub async fn receive(
        &mut self,
        buffer: impl Into<ReceiveBuffer>,
    ) -> Result<Completion, AsyncError> {
        let ReceiveBuffer(buffer) = buffer.into();
        let Self { endpoint, claim, .. } = self;
        let start = |_: &Endpoint, buffer, context| {
            let Some(begun) = claim.take() else {
                return Err(Refused { error: StartError::ClaimEnded, buffer });
            };
            let started = begun.receive(ReceiveBuffer(buffer), context).map(|()| None);
            started.map_err(|ClaimRefused { error, claim: back, buffer }| {
                *claim = Some(back);
                Refused { error, buffer }
            })
        };
        endpoint.0.run_on(RECEIVE, None, buffer, start).await
    }

    /// Discards the message (`FI_DISCARD`), as dropping the claim does.
    pub fn discard(self) {}
}

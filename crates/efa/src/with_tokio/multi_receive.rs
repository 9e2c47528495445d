//! A receive of many messages as a stream.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio::task::coop::poll_proceed;

use super::endpoint::{AsyncEndpoint, AsyncError, RECEIVE, Started};
use super::slots::{Slots, Wanted};
use crate::address_vector::FiAddr;
use crate::buffer::{Buffer, ReceiveBuffer};
use crate::completion::Completion;
use crate::completion_queue::Entry;
use crate::endpoint::Endpoint;
use crate::message::{Receive, ReceiveId};

/// A buffer that takes many messages ([`AsyncEndpoint::receive_many`]): a stream of them.
///
/// When it is dropped, the receive is cancelled. Messages that it had and that weren't taken are kept for other receives
/// that match them, as those of a dropped [receive](AsyncEndpoint::receive) are.
#[derive(Debug)]
#[must_use = "a receive that is dropped is cancelled"]
pub struct MultiReceive {
    endpoint: AsyncEndpoint,
    key: usize,
    id: Option<ReceiveId>,
}

impl AsyncEndpoint {
    /// Posts a buffer for many untagged messages, of one peer or of any ([`Endpoint::receive_many`],
    /// `FI_MULTI_RECV`), and returns the stream of them once it is posted.
    ///
    /// ```
    /// use efa::{EndpointOptions, Fabric, Kind, LocalOptions, Message};
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
    /// let mut messages = bob.receive_many(None, vec![0; 1 << 16]).await?;
    /// for text in ["one", "two"] {
    ///     alice.send(Message::to(to_bob), text).await?;
    ///     let message = messages.next().await.ok_or("the buffer is full")??;
    ///     assert_eq!((message.kind, message.length), (Kind::MultiReceive, 3));
    ///     assert_eq!(message.into_message(), *text.as_bytes());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The receive was refused, or the runtime was shut down.
    pub async fn receive_many(
        &self,
        source: Option<FiAddr>,
        buffer: impl Into<ReceiveBuffer>,
    ) -> Result<MultiReceive, AsyncError> {
        let ReceiveBuffer(buffer) = buffer.into();
        let receive = Receive { source, ..Receive::untagged() };
        let wanted = Wanted::new(receive, &self.0.endpoint.addresses);
        let slot = |slots: &mut Slots| slots.start_collecting(wanted);
        let start = |endpoint: &Endpoint, buffer: Buffer, context| {
            endpoint.receive_many(source, ReceiveBuffer(buffer), context).map(Some)
        };
        // The stream finds what was kept.
        let kept = |_: &mut Slots| None::<Infallible>;
        match self.0.begin(RECEIVE, kept, slot, buffer, start).await? {
            Started::Kept(never) => match never {},
            Started::Operation { key, receive: id } => {
                Ok(MultiReceive { endpoint: self.clone(), key, id })
            }
        }
    }
}

impl MultiReceive {
    /// The next message, as a [`Kind::MultiReceive`](crate::Kind::MultiReceive) with its part of the buffer, or one that a
    /// dropped receive has left. When less than [`min_multi_receive`](crate::EndpointAttributes::min_multi_receive) bytes
    /// are left, the rest comes as [`Kind::Released`](crate::Kind::Released); after that, `None`. Dropping the future
    /// loses none.
    ///
    /// 1024 messages wait to be taken. If there are more, the endpoint makes no progress until some are, or it is closed.
    ///
    /// # Errors
    /// A message failed, such as one that its sender gave up; the endpoint was
    /// [closed](crate::OperationError::Closed); the runtime was shut down.
    pub async fn next(&mut self) -> Option<Result<Completion, AsyncError>> {
        poll_fn(|cx| self.poll_next_message(cx)).await
    }

    fn poll_next_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Completion, AsyncError>>> {
        // Other tasks get their turn while there is always a message.
        let progress = ready!(poll_proceed(cx));
        let shared = &self.endpoint.0.shared;
        let mut state = shared.state.lock();
        if let Some(entry) = state.slots.take_kept_for(self.key) {
            drop(state);
            progress.made_progress();
            return Poll::Ready(Some(entry.map_err(AsyncError::from)));
        }
        let (found, old_waker) = state.slots.poll_collected(self.key, cx.waker());
        let ended = state.ended.clone();
        drop(state);
        drop(old_waker);
        let found = match (found, ended) {
            (Poll::Ready(entry), _) => {
                shared.room.notify_waiters();
                entry.map(|entry: Entry| entry.map_err(AsyncError::from))
            }
            (Poll::Pending, Some(ended)) => Some(Err(ended.into())),
            (Poll::Pending, None) => return Poll::Pending,
        };
        progress.made_progress();
        Poll::Ready(found)
    }
}

impl Stream for MultiReceive {
    type Item = Result<Completion, AsyncError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_next_message(cx)
    }
}

impl Drop for MultiReceive {
    fn drop(&mut self) {
        let inner = &self.endpoint.0;
        let left = inner.shared.stop_collecting(self.key);
        inner.give_up(left, self.id);
    }
}

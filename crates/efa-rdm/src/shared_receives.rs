//! A queue of receives that several endpoints take from.
//!
//! ```text
//!   post ─► earliest unexpected message, of any endpoint ─► found: the caller gives the receive to that endpoint
//!              │ none
//!              ▼
//!   posted receives ◄── arrive: the message of an endpoint takes the earliest receive that accepts it,
//!                               or waits in the order of arrival
//! ```
//!
//! An endpoint reaches its queue by a [`ReceiveSource`]. It keeps the packets of its unexpected messages
//! itself, so that its [bounds](crate::Bounds) hold; the queue has a number of each.

use std::fmt;

use efa_match::{Arrived, Match, Matcher, MessageId, Pattern, Posted as Posting, Source};

use crate::ids::{ClaimId, ReceiveId};

/// A receive of a queue.
#[derive(Debug)]
pub struct SharedReceive<B> {
    /// The buffer.
    pub buffer: B,
    /// The number that it was posted with.
    pub context: u64,
}

/// An unexpected message of one of the endpoints that take from a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMessage {
    /// The endpoint's number.
    pub endpoint: u32,
    /// The message, for [`Endpoint::receive_shared`](crate::Endpoint::receive_shared).
    pub message: ClaimId,
}

/// The place of an unexpected message in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPlace {
    pub(crate) tagged: bool,
    pub(crate) entry: MessageId,
}

/// What became of a receive that was posted to a queue.
#[derive(Debug)]
#[must_use = "a receive that is given to an endpoint isn't in the queue"]
pub enum SharedPosting<B> {
    /// It waits for a message.
    Waiting(ReceiveId),
    /// It accepts this message, whose endpoint is to [get](crate::Endpoint::receive_shared) it.
    Matched(SharedReceive<B>, SharedMessage),
}

/// How an endpoint takes receives from its queue. Dropping it ends the endpoint's part in the queue, and its
/// unexpected messages leave the queue.
pub trait ReceiveSource<B>: fmt::Debug + Send + Sync {
    /// Takes the receive for a message that arrived; if there is none, the message waits in the queue.
    ///
    /// # Errors
    /// The message's place.
    fn arrive(&self, tag: Option<u64>, message: ClaimId) -> Result<SharedReceive<B>, SharedPlace>;

    /// Removes a message that waits, unless a receive has been matched with it.
    fn withdraw(&self, place: SharedPlace);
}

/// Receives, and messages without a receive, of several endpoints. Tagged and untagged ones never match. A
/// message takes the receive that was posted first of those that accept it; a receive gets the message that
/// arrived first of those that it accepts, at whichever endpoint.
///
/// Receives accept messages of any sender.
#[derive(Debug)]
pub struct SharedReceives<B> {
    tagged: Matcher<SharedReceive<B>, SharedMessage>,
    untagged: Matcher<SharedReceive<B>, SharedMessage>,
}

impl<B> SharedReceives<B> {
    /// An empty queue. Peers must not know the seed: they could choose tags that make it slow.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { tagged: Matcher::with_seed(seed), untagged: Matcher::with_seed(seed) }
    }

    /// Posts a receive of untagged messages, or of tagged ones: tag, and bits of it that are ignored.
    pub fn post(&mut self, tag: Option<(u64, u64)>, receive: SharedReceive<B>) -> SharedPosting<B> {
        let tagged = tag.is_some();
        let (tag, ignore) = tag.unwrap_or((0, u64::MAX));
        match self.matcher(tagged).post(Pattern { source: None, tag, ignore }, receive) {
            Posting::Waiting(post) => SharedPosting::Waiting(ReceiveId { post, tagged }),
            Posting::Matched(receive, message) => SharedPosting::Matched(receive, message),
        }
    }

    /// A message arrived at an endpoint: see [`ReceiveSource::arrive`].
    ///
    /// # Errors
    /// The message's place, if there is no receive for it.
    pub fn arrive(
        &mut self,
        tag: Option<u64>,
        message: SharedMessage,
    ) -> Result<SharedReceive<B>, SharedPlace> {
        let tagged = tag.is_some();
        // No receive names a source. As such serves the endpoint, so that its messages are found when it leaves.
        let source = Source(message.endpoint);
        match self.matcher(tagged).arrive(source, tag.unwrap_or(0), message) {
            Arrived::Matched(Match::Once(receive)) => Ok(receive),
            // None is posted to stay.
            Arrived::Matched(Match::Lasting(_)) => unreachable!("{message:?}"),
            Arrived::Unexpected(entry) => Err(SharedPlace { tagged, entry }),
        }
    }

    /// Removes a message, unless a receive has been matched with it.
    pub fn withdraw(&mut self, place: SharedPlace) {
        self.matcher(place.tagged).withdraw(place.entry);
    }

    /// Removes the messages of an endpoint. The cost is linear in the number of all receives and messages.
    pub fn leave(&mut self, endpoint: u32) {
        for tagged in [false, true] {
            let _ = self.matcher(tagged).forget_source(Source(endpoint));
        }
    }

    /// Removes a receive, if it is still posted.
    pub fn cancel(&mut self, receive: ReceiveId) -> Option<SharedReceive<B>> {
        self.matcher(receive.tagged).cancel(receive.post)
    }

    /// The receive that was posted with this context: of several, the first of the tagged ones, or if
    /// there is none, of the others. It looks at all receives.
    pub fn find(&mut self, context: u64) -> Option<ReceiveId> {
        [true, false].into_iter().find_map(|tagged| {
            let post = self.matcher(tagged).find_receive(|receive| receive.context == context)?;
            Some(ReceiveId { post, tagged })
        })
    }

    /// Removes all receives: the tagged ones, then the others, each in the order of posting.
    pub fn drain(&mut self) -> Vec<SharedReceive<B>> {
        [true, false].into_iter().flat_map(|tagged| self.matcher(tagged).drain_receives()).collect()
    }

    fn matcher(&mut self, tagged: bool) -> &mut Matcher<SharedReceive<B>, SharedMessage> {
        if tagged { &mut self.tagged } else { &mut self.untagged }
    }
}

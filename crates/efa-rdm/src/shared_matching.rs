//! An endpoint that takes receives from a [queue](crate::shared_receives) that others share.

use efa_device::QueuePair;
use efa_match::{Handled, Match, MessageId};
use efa_proto::Tag;

use crate::config::ConfigError;
use crate::endpoint::Endpoint;
use crate::ids::ClaimId;
use crate::matching::{HeldFor, Matching, Posted, Target, Waiting};
use crate::payload::Payload;
use crate::shared_receives::{ReceiveSource, SharedPlace, SharedReceive};

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// From now on messages take their receives from a queue, which has at most `most` posted and under way. To be
    /// called before anything is received; the endpoint's own calls that receive are not to be used then. Reads and
    /// receives under way share [`Config::max_receives`](crate::Config).
    ///
    /// # Errors
    /// The device has a tag list, or the queue takes all receives that the endpoint can have.
    pub fn share_receives(
        &mut self,
        queue: Box<dyn ReceiveSource<B>>,
        most: usize,
    ) -> Result<(), ConfigError> {
        if self.matching.has_tag_list {
            return Err(ConfigError::TagListNotShared);
        }
        let limit = self.matching.limit;
        if most >= limit {
            return Err(ConfigError::TooManyShared { receives: most, limit: limit - 1 });
        }
        self.matching.limit = limit - most;
        self.matching.queue = Some(queue);
        Ok(())
    }

    /// Gives a receive of the queue to an unexpected message of this endpoint that it matched.
    ///
    /// # Errors
    /// The message has ended meanwhile; the receive comes back.
    pub fn receive_shared(
        &mut self,
        message: ClaimId,
        receive: SharedReceive<B>,
    ) -> Result<(), SharedReceive<B>> {
        let ClaimId { key, number } = message;
        let waiting = self.matching.messages.get(key).filter(|message| match message.held_for {
            HeldFor::Queue(_, held) => held == number as u32,
            _ => false,
        });
        let Some(tagged) = waiting.map(|message| message.tagged) else { return Err(receive) };
        let SharedReceive { buffer, context } = receive;
        self.matching.receive_unexpected(Target { context, buffer, tagged }, key);
        self.settle();
        Ok(())
    }
}

impl<Q: QueuePair, B> Matching<Q, B> {
    /// Takes the receive for a message from the endpoint's queue, if it has one.
    #[cold]
    #[inline(never)]
    pub(crate) fn find_shared(
        &mut self,
        tag: Option<Tag>,
        key: u32,
    ) -> Option<Handled<Waiting<B>>> {
        self.claims += 1;
        let message = ClaimId { key, number: self.claims };
        Some(match self.queue.as_ref()?.arrive(tag, message) {
            Ok(SharedReceive { buffer, context }) => {
                let posted = Posted { context, buffer, tag: tag.unwrap_or(0) };
                Handled::Matched(Match::Once(self.begin_wait(posted)))
            }
            Err(place) => Handled::Unexpected(place.entry),
        })
    }

    /// Who gets a message that was put among the unexpected ones just now.
    #[inline(always)]
    pub(crate) fn held_for_receive(&self, entry: MessageId) -> HeldFor {
        match self.queue {
            None => HeldFor::Anyone(entry),
            Some(_) => HeldFor::Queue(entry, self.claims as u32),
        }
    }

    /// Removes an unexpected message from the endpoint's queue.
    pub(crate) fn withdraw_shared(&self, tagged: bool, entry: MessageId) {
        if let Some(queue) = &self.queue {
            queue.withdraw(SharedPlace { tagged, entry });
        }
    }
}

//! What became of the messages of each subscriber, at its publisher.
//!
//! ```text
//!   published ─┬─► waits for room ─► sent ─┬─► delivered
//!              │         │                 └─► lost
//!              └─────────┴───────────────────► lost
//! ```
//!
//! The way of a message that arrives counts nothing for this: all is read off what a connection knows anyhow, and what is
//! lost is counted when it is.

use std::net::SocketAddr;

use crate::connection::Connection;
use crate::context::Netio;
use crate::event::ClosedReason;
use crate::ids::PublishSocket;

/// What became of the messages of one subscriber: numbers of messages since it was connected, of all its tags.
///
/// [`Netio::subscribers`] has those of the subscribers of the moment, and
/// [`Event::SubscriberClosed`](crate::Event::SubscriberClosed) the last ones of each. `delivered + lost + queued` is the
/// number of messages that were published to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscriberCounts {
    /// Where its TCP connection comes from: its name in the events of the publisher.
    pub peer: SocketAddr,
    /// Tags that it has now. Not a number of messages.
    pub tags: usize,
    /// Messages that were sent: those that were delivered, and of those queued or lost the ones that didn't wait for room.
    pub sent: u64,
    /// Messages that are complete, as [`PublishOptions::completion`](crate::PublishOptions::completion) has it. With
    /// [`MemoryFree`](crate::Completion::MemoryFree), the default, those that had not arrived when the connection ended are
    /// among them; with [`Delivered`](crate::Completion::Delivered) each was in one of its buffers. Those that were
    /// complete behind one that was too long for its buffer go over to the lost ones when the subscriber says that it was.
    pub delivered: u64,
    /// Messages that were not complete when its connection ended, or were not sent to it at all.
    pub lost: u64,
    /// Messages that are neither delivered nor lost yet: under way, or waiting for room at the subscriber.
    pub queued: u64,
}

impl Connection {
    /// As those of a subscriber.
    pub(crate) fn counts(&self) -> SubscriberCounts {
        let sent = self.sends.count();
        let under_way = self.sends.under_way();
        // Of those that were sent. What is too long for its buffer, and what comes behind it, may be complete all the same.
        let missed = match self.why {
            Some(ClosedReason::TooLong { lost: Some(lost), .. }) => lost.saturating_sub(under_way),
            _ => 0,
        };
        let failed = self.sends.failed().max(missed);
        SubscriberCounts {
            peer: self.peer,
            tags: self.subscriptions.len(),
            sent,
            delivered: sent - under_way - failed,
            lost: failed + self.subscriptions.lost(),
            queued: under_way + self.subscriptions.owed(),
        }
    }
}

impl Netio {
    /// What became of the messages of each subscriber that a publish socket has now, in no order. It counts nothing by
    /// itself: to read it takes some ten loads a subscriber, and no allocation.
    ///
    /// ```
    /// # fn of(netio: &efa_netio::Netio, publisher: efa_netio::PublishSocket) {
    /// for counts in netio.subscribers(publisher).filter(|counts| counts.queued > 1000) {
    ///     println!("{} is {} messages behind", counts.peer, counts.queued);
    /// }
    /// # }
    /// ```
    pub fn subscribers(
        &self,
        socket: PublishSocket,
    ) -> impl Iterator<Item = SubscriberCounts> + use<'_> {
        let keys = self.publishers.get(socket).map_or(&[][..], |found| &found.subscribers);
        let connections = keys.iter().filter_map(|key| self.connections.get(*key));
        connections.map(Connection::counts)
    }
}

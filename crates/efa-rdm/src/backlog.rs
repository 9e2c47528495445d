//! What waits to be sent to a peer, in order.

use std::collections::VecDeque;
use std::collections::vec_deque::IntoIter;

use crate::work::{InFlight, Work};

/// The work for one peer that could not be done at once.
#[derive(Debug)]
pub(crate) struct Backlog<P, B> {
    work: VecDeque<Work<P, B>>,
    /// How much of it [is a response](Work::is_response).
    responses: usize,
}

impl<P, B> Default for Backlog<P, B> {
    fn default() -> Self {
        Self { work: VecDeque::new(), responses: 0 }
    }
}

impl<P, B> Backlog<P, B> {
    pub(crate) fn push_back(&mut self, work: Work<P, B>) {
        self.responses += usize::from(work.is_response());
        self.work.push_back(work);
    }

    pub(crate) fn push_front(&mut self, work: Work<P, B>) {
        self.responses += usize::from(work.is_response());
        self.work.push_front(work);
    }

    /// Puts a packet that came back behind others of these, before other work. Those are at the front, behind a HANDSHAKE
    /// or transfer at most: the search is binary, and for such an item it may put the packet before others that came back.
    pub(crate) fn push_returned(&mut self, packet: Work<P, B>) {
        self.responses += usize::from(packet.is_response());
        let place = self.work.partition_point(Work::is_returned);
        self.work.insert(place, packet);
    }

    pub(crate) fn pop_front(&mut self) -> Option<Work<P, B>> {
        let work = self.work.pop_front()?;
        self.responses -= usize::from(work.is_response());
        Some(work)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.work.len()
    }

    pub(crate) fn responses(&self) -> usize {
        self.responses
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Work<P, B>> {
        self.work.iter()
    }

    /// The written packets.
    pub(crate) fn packets_mut(&mut self) -> impl Iterator<Item = &mut InFlight<B>> {
        self.work.iter_mut().filter_map(|work| match work {
            Work::Packet { record, .. } => Some(record),
            _ => None,
        })
    }
}

impl<P, B> IntoIterator for Backlog<P, B> {
    type Item = Work<P, B>;
    type IntoIter = IntoIter<Work<P, B>>;
    fn into_iter(self) -> Self::IntoIter {
        self.work.into_iter()
    }
}

//! Receives of a connection for messages of the program, which match messages in the order in which they were posted, and
//! may complete in another.

use std::collections::VecDeque;

use efa::OperationError;

/// A receive that has completed.
pub(crate) struct Arrival {
    pub(crate) buffer: Vec<u8>,
    /// Length of the message, and what came beside it; or why there is none.
    pub(crate) result: Result<(usize, Option<u64>), OperationError>,
}

#[derive(Default)]
pub(crate) struct Receives {
    /// In the order of posting. Those that have completed wait for the ones before them.
    queue: VecDeque<Option<Arrival>>,
    /// The place of the first one.
    first: u64,
    /// Of the queue, those that have not completed.
    posted: u32,
    /// Messages that have arrived.
    received: u64,
    /// How many messages the other side has sent in all, as its END has it.
    expected: Option<u64>,
}

impl Receives {
    /// A receive was posted. Returns its place.
    pub(crate) fn post(&mut self) -> u64 {
        let place = self.first + self.queue.len() as u64;
        self.queue.push_back(None);
        self.posted += 1;
        place
    }

    /// A receive has completed.
    pub(crate) fn arrived(&mut self, place: u64, arrival: Arrival) {
        self.posted -= 1;
        self.queue[(place - self.first) as usize] = Some(arrival);
    }

    /// The next receive in order, if it has completed.
    pub(crate) fn next_arrival(&mut self) -> Option<Arrival> {
        let arrival = self.queue.front_mut()?.take()?;
        self.queue.pop_front();
        self.first += 1;
        Some(arrival)
    }

    /// An arrival was a message.
    pub(crate) fn count_message(&mut self) {
        self.received += 1;
    }

    /// Receives that have not completed.
    pub(crate) fn posted(&self) -> u32 {
        self.posted
    }

    /// Messages that have arrived.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// The other side has ended the connection, with so many messages in all. Returns `false` if it had done so before.
    pub(crate) fn expect(&mut self, messages: u64) -> bool {
        let is_first = self.expected.is_none();
        self.expected.get_or_insert(messages);
        is_first
    }

    /// Whether the other side has ended the connection, and all its messages have arrived.
    pub(crate) fn have_all(&self) -> bool {
        self.expected.is_some_and(|count| self.received >= count)
    }
}

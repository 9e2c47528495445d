//! The binding of an endpoint to a completion queue, for one direction.
//!
//! ```text
//!   operation starts ─► a credit of the queue ─► operation completes ─┬─► the reader ─► credit returned
//!                                                                     └─► the queue ─► read ─► credit returned
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use crate::completion::StartError;
use crate::completion_queue::{Credit, Entry, Reader, Shared as CompletionQueue};

/// A completion queue as the transmit or the receive side of one endpoint uses it.
#[derive(Debug)]
pub(crate) struct CqBinding {
    queue: Arc<CompletionQueue>,
    /// Operations under way. Each holds a credit of the queue.
    under_way: usize,
    /// Completions without a credit that the full queue did not take, and those that came after them.
    deferred: VecDeque<(Credit, Entry)>,
    /// The endpoint is being dropped: completions are deferred until its queue pair is destroyed.
    closing: bool,
}

impl CqBinding {
    pub(crate) fn new(queue: Arc<CompletionQueue>) -> Self {
        Self { queue, under_way: 0, deferred: VecDeque::new(), closing: false }
    }

    /// Takes a credit for an operation that is about to start.
    pub(crate) fn start(&mut self) -> Result<(), StartError> {
        if !self.queue.take_credit() {
            return Err(StartError::QueueFull { capacity: self.queue.capacity() });
        }
        self.under_way += 1;
        Ok(())
    }

    /// Returns the credit of an operation that did not start, or whose completion went to the reader.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.under_way -= 1;
        self.queue.return_credits(1);
    }

    /// Operations that have not completed.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way
    }

    /// How many more operations may start before the queue has no credit, or `most` are under way.
    pub(crate) fn left(&self, most: usize) -> usize {
        most.saturating_sub(self.under_way).min(self.queue.credits_left())
    }

    /// Whether `reader` reads this queue.
    #[inline]
    pub(crate) fn is_read_by(&self, reader: &Reader<'_>) -> bool {
        reader.is_of(&self.queue)
    }

    /// Appends a completion to the queue.
    #[inline(never)]
    pub(crate) fn deliver(&mut self, credit: Credit, entry: Entry) {
        if credit == Credit::Held {
            self.under_way -= 1;
        }
        if self.closing || !self.deferred.is_empty() {
            self.deferred.push_back((credit, entry));
        } else if let Some(entry) = self.queue.push(credit, entry) {
            self.deferred.push_back((credit, entry));
        }
    }

    /// Gives a completion to the reader if it reads this queue, and returns whether it does; otherwise
    /// appends it to the queue.
    pub(crate) fn give(&mut self, reader: &mut Reader<'_>, credit: Credit, entry: Entry) -> bool {
        if !self.is_read_by(reader) {
            self.deliver(credit, entry);
            return false;
        }
        *reader.entry = Some(entry);
        if credit == Credit::Held {
            self.end();
        }
        true
    }

    /// Whether no completion waits for space in the queue.
    #[inline(always)]
    pub(crate) fn has_none_deferred(&self) -> bool {
        self.deferred.is_empty()
    }

    /// Whether no completion waits for space in the queue, after appending those that fit.
    #[inline(always)]
    pub(crate) fn is_clear(&mut self) -> bool {
        self.deferred.is_empty() || self.flush()
    }

    /// Appends deferred completions while the queue takes them; returns whether all were taken.
    #[cold]
    fn flush(&mut self) -> bool {
        while let Some((credit, entry)) = self.deferred.pop_front() {
            if let Some(entry) = self.queue.push(credit, entry) {
                self.deferred.push_front((credit, entry));
                return false;
            }
        }
        true
    }

    /// Defers all completions from now on until this binding is dropped.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }
}

impl Drop for CqBinding {
    /// Appends the deferred completions even to a full queue: they hold messages that senders were
    /// told are delivered, and buffers of the application.
    fn drop(&mut self) {
        self.queue.append(self.deferred.drain(..));
        self.queue.return_credits(self.under_way);
    }
}

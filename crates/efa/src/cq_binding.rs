//! The binding of an endpoint to a completion queue, for one direction.
//!
//! ```text
//!   operation starts ─► a credit of the queue ─► operation completes ─┬─► the reader ─► credit returned
//!                                                                     └─► the queue ─► read ─► credit returned
//! ```
//!
//! Taking and returning a credit are atomic operations, which wait until all earlier writes have left the processor. So the
//! only endpoint of a queue keeps the credits that would be returned, for its next operations. Nobody else wants them; as
//! soon as another endpoint is bound to the queue, they are returned.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::completion::StartError;
use crate::completion_queue::{AnyReader, Credit, Entry, Reader, Room, Shared as CompletionQueue};

/// Most credits that are taken together if credits are kept.
const CREDITS_AT_ONCE: usize = 256;

/// A completion queue as the transmit or the receive side of one endpoint uses it.
#[derive(Debug)]
pub(crate) struct CqBinding {
    queue: Arc<CompletionQueue>,
    /// Credits of the queue that the operations under way hold, and that are kept.
    credits: usize,
    /// Of these, kept for operations to come.
    kept: usize,
    /// Whether credits are kept: the endpoint is the only one of the queue.
    keeps: bool,
    /// Completions without a credit that the full queue did not take, and those that came after them.
    deferred: VecDeque<(Credit, Entry)>,
    /// The endpoint is being dropped: completions are deferred until its queue pair is destroyed.
    closing: bool,
}

impl CqBinding {
    pub(crate) fn new(queue: Arc<CompletionQueue>) -> Self {
        Self { queue, credits: 0, kept: 0, keeps: false, deferred: VecDeque::new(), closing: false }
    }

    /// Begins or ends to keep credits, if it is a binding to this queue.
    pub(crate) fn keep_credits(&mut self, queue: &CompletionQueue, keeps: bool) {
        if std::ptr::eq(queue, &*self.queue) {
            self.keeps = keeps;
            self.return_kept();
        }
    }

    #[cold]
    fn return_kept(&mut self) {
        let kept = std::mem::take(&mut self.kept);
        self.credits -= kept;
        self.queue.return_credits(kept);
    }

    /// Takes a credit for an operation that is about to start. The endpoint's `other` binding may keep the last ones.
    #[inline(always)]
    pub(crate) fn start(&mut self, other: &mut Self) -> Result<(), StartError> {
        if self.kept == 0 {
            self.take_credits(other)?;
        }
        self.kept -= 1;
        Ok(())
    }

    /// Takes at least one credit of the queue.
    #[inline(never)]
    fn take_credits(&mut self, other: &mut Self) -> Result<(), StartError> {
        let most = if self.keeps { CREDITS_AT_ONCE } else { 1 };
        self.kept = self.queue.take_credits(most);
        if self.kept == 0 {
            other.return_kept();
            self.kept = self.queue.take_credits(most);
        }
        self.credits += self.kept;
        match self.kept {
            0 => Err(StartError::QueueFull { capacity: self.queue.capacity() }),
            _ => Ok(()),
        }
    }

    /// Returns the credit of an operation that did not start, or whose completion went to the reader.
    #[inline]
    pub(crate) fn end(&mut self) {
        if self.keeps {
            self.kept += 1;
        } else {
            self.credits -= 1;
            self.queue.return_credits(1);
        }
    }

    /// Operations that have not completed.
    pub(crate) fn under_way(&self) -> usize {
        self.credits - self.kept
    }

    /// How many more operations may start before the queue has no credit, or `most` are under way.
    pub(crate) fn left(&self, other: &Self, most: usize) -> usize {
        let others = if Arc::ptr_eq(&self.queue, &other.queue) { other.kept } else { 0 };
        let credits = self.queue.credits_left() + self.kept + others;
        most.saturating_sub(self.under_way()).min(credits)
    }

    /// Whether `reader` reads this queue.
    #[inline]
    pub(crate) fn is_read_by<R: Room + ?Sized>(&self, reader: &Reader<'_, R>) -> bool {
        reader.is_of(&self.queue)
    }

    /// Appends a completion to the queue.
    #[inline(never)]
    pub(crate) fn deliver(&mut self, credit: Credit, entry: Entry) {
        if credit == Credit::Held {
            self.credits -= 1;
        }
        if self.closing || !self.deferred.is_empty() {
            self.deferred.push_back((credit, entry));
        } else if let Some(entry) = self.queue.push(credit, entry) {
            self.deferred.push_back((credit, entry));
        }
    }

    /// Gives a completion to the reader if it reads this queue, and returns whether it does; otherwise
    /// appends it to the queue.
    pub(crate) fn give(
        &mut self,
        reader: &mut AnyReader<'_>,
        credit: Credit,
        entry: Entry,
    ) -> bool {
        if !self.is_read_by(reader) {
            self.deliver(credit, entry);
            return false;
        }
        reader.room.put(entry);
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

    /// Has everything complete on `unread`, a queue that keeps nothing, and drops what waits for space in the present one.
    pub(crate) fn discard(&mut self, unread: Arc<CompletionQueue>) {
        self.keeps = false;
        self.return_kept();
        let held = self.deferred.drain(..).filter(|(credit, _)| *credit == Credit::Held).count();
        self.queue.return_credits(self.credits + held);
        self.credits = unread.take_credits(self.credits);
        self.queue = unread;
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
        self.queue.return_credits(self.credits);
    }
}

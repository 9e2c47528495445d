//! How many messages of the program were given to a connection, and have completed.

#[derive(Default)]
pub(crate) struct Sends {
    under_way: u32,
    /// Messages that have completed since the connection was made.
    completed: u64,
    /// Of these, those that failed.
    failed: u64,
    /// How many messages had completed when the deadline of the connection's end was last set, or passed.
    completed_at_deadline: u64,
}

impl Sends {
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.under_way += 1;
    }

    #[inline]
    pub(crate) fn complete(&mut self) {
        self.under_way -= 1;
        self.completed += 1;
    }

    /// Of the messages that complete, one failed.
    #[cold]
    pub(crate) fn note_failure(&mut self) {
        self.failed += 1;
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    pub(crate) fn under_way(&self) -> u64 {
        self.under_way.into()
    }

    #[inline]
    pub(crate) fn are_under_way(&self) -> bool {
        self.under_way > 0
    }

    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// All so far.
    pub(crate) fn count(&self) -> u64 {
        self.completed + u64::from(self.under_way)
    }

    /// The deadline is set, or has passed. Returns whether messages have completed since that was last so.
    pub(crate) fn note_deadline(&mut self) -> bool {
        std::mem::replace(&mut self.completed_at_deadline, self.completed) < self.completed
    }
}

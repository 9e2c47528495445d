//! Control messages of a connection that wait for room, and the receives that wait for them.

use std::collections::VecDeque;

use crate::wire::Control;

/// Most control messages that wait for room. Then no more of the other side's are received until some are sent.
const MAX_QUEUED: usize = 64;

#[derive(Default)]
pub(crate) struct Controls {
    /// Control messages that found no room.
    queued: VecDeque<Control>,
    /// Buffers of receives for control messages that are posted when there is room for answers.
    held: Vec<Vec<u8>>,
}

impl Controls {
    /// Whether none waits for room.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// Whether as many wait as may.
    pub(crate) fn is_full(&self) -> bool {
        self.queued.len() >= MAX_QUEUED
    }

    pub(crate) fn queue(&mut self, control: Control) {
        self.queued.push_back(control);
    }

    /// The one that is to be sent next.
    pub(crate) fn next(&self) -> Option<Control> {
        self.queued.front().copied()
    }

    /// The next one is sent.
    pub(crate) fn sent(&mut self) {
        self.queued.pop_front();
    }

    /// None of them can be sent any more.
    pub(crate) fn clear(&mut self) {
        self.queued.clear();
    }

    /// Keeps the buffer of a receive while there is no room for answers.
    pub(crate) fn hold(&mut self, buffer: Vec<u8>) {
        self.held.push(buffer);
    }

    /// The buffers that were kept, if there is room for answers.
    pub(crate) fn take_held(&mut self) -> Vec<Vec<u8>> {
        match self.is_full() {
            true => Vec::new(),
            false => std::mem::take(&mut self.held),
        }
    }
}

//! The future of an operation under way.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::endpoint::{Ended, Inner};
use crate::completion_queue::Entry;
use crate::message::ReceiveId;

/// An operation under way.
pub(super) struct Ticket<'a> {
    inner: &'a Inner,
    key: usize,
    receive: Option<ReceiveId>,
    is_done: bool,
}

impl<'a> Ticket<'a> {
    pub(super) fn new(inner: &'a Inner, key: usize, receive: Option<ReceiveId>) -> Self {
        Self { inner, key, receive, is_done: false }
    }
}

impl Future for Ticket<'_> {
    type Output = Result<Entry, Ended>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.inner.shared.state.lock();
        let (found, old_waker) = state.slots.poll(self.key, cx.waker());
        let ended = state.ended.clone();
        drop(state);
        drop(old_waker);
        match (found, ended) {
            (Poll::Ready((entry, left)), _) => {
                self.is_done = true;
                self.inner.give_up(left, self.receive);
                Poll::Ready(Ok(entry))
            }
            (Poll::Pending, Some(ended)) => Poll::Ready(Err(ended)),
            (Poll::Pending, None) => Poll::Pending,
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let left = self.inner.shared.change(|slots| {
            let (left, after) = slots.dropped(self.key);
            (left, [after])
        });
        self.inner.give_up(left, self.receive);
    }
}

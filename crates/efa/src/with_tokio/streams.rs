//! Completions and events as streams.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::sleeper::{SleepError, Sleeper, StreamError, Turns};
use crate::completion::Completion;
use crate::completion_queue::{CompletionQueue, WaitError};
use crate::connection::{ControlError, ControlEvent, EventQueue, EventWaitError};
use crate::wait::sealed::Waitable;

/// The completions of a queue ([`CompletionQueue::stream`]). It never ends.
///
/// Dropping it, or a future of [`next`](Self::next), loses nothing: completions stay in the queue.
#[derive(Debug)]
#[must_use = "a stream does nothing unless it is polled"]
pub struct CompletionStream {
    queue: CompletionQueue,
    sleeper: Sleeper,
    turns: Turns,
}

/// The events of a queue ([`EventQueue::stream`]). It never ends.
///
/// Dropping it, or a future of [`next`](Self::next), loses nothing: events stay in the queue.
#[derive(Debug)]
#[must_use = "a stream does nothing unless it is polled"]
pub struct EventStream {
    queue: EventQueue,
    sleeper: Sleeper,
    turns: Turns,
}

impl CompletionQueue {
    /// The completions as a stream, for tasks of the tokio runtime that this is called in. The queue must be
    /// [waitable](crate::Domain::waitable_completion_queue). Polling the stream progresses its endpoints.
    ///
    /// A queue may have several streams and other readers; each completion goes to one of them.
    ///
    /// ```
    /// use efa::{
    ///     CompletionQueueOptions, Direction, EndpointOptions, Fabric, LocalOptions, Message, Receive, Wait,
    /// };
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Fabric::local(LocalOptions::default()).domain()?;
    /// let queue = domain.waitable_completion_queue(CompletionQueueOptions::default(), Wait::Fd)?;
    /// let addresses = domain.address_vector();
    /// let endpoint = domain
    ///     .endpoint(EndpointOptions::default())
    ///     .bind_completion_queue(&queue, Direction::Both)
    ///     .bind_address_vector(&addresses)
    ///     .enable()?;
    /// let itself = addresses.insert(endpoint.address())?;
    /// endpoint.receive(Receive::untagged(), vec![0; 8], 1)?;
    /// endpoint.send(Message::to(itself), "hello", 2)?;
    ///
    /// let mut completions = queue.stream()?;
    /// let contexts = [completions.next().await?.context, completions.next().await?.context];
    /// assert!(contexts.contains(&1) && contexts.contains(&2));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The queue isn't waitable, or there is no runtime.
    ///
    /// # Panics
    /// The runtime was built without its I/O driver.
    pub fn stream(&self) -> Result<CompletionStream, StreamError> {
        let wait = self.shared().wait_object().ok_or(StreamError::NotWaitable)?;
        let clock = self.shared().domain.fabric().clock();
        let sleeper = Sleeper::new(self.source(), clock, wait)?;
        Ok(CompletionStream { queue: self.clone(), sleeper, turns: Turns::default() })
    }
}

impl CompletionStream {
    /// The next completion.
    ///
    /// # Errors
    /// The operation that completed had failed, [`CompletionQueue::signal`] was called, or the device failed.
    pub async fn next(&mut self) -> Result<Completion, WaitError> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Whether there are completions that weren't read.
    pub(super) fn has_entries(&self) -> bool {
        self.queue.shared().has_entries()
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Completion, WaitError>> {
        let Self { queue, sleeper, turns } = self;
        turns.poll_found(cx, sleeper, || match queue.read() {
            Some(entry) => Some(entry.map_err(WaitError::from)),
            None => queue.take_signal().then_some(Err(WaitError::Signalled)),
        })
    }
}

impl Stream for CompletionStream {
    type Item = Result<Completion, WaitError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(cx).map(Some)
    }
}

impl EventQueue {
    /// The events as a stream, for tasks of the tokio runtime that this is called in. Polling it does what the
    /// connections need.
    ///
    /// # Errors
    /// There is no runtime.
    ///
    /// # Panics
    /// The runtime was built without its I/O driver.
    pub fn stream(&self) -> Result<EventStream, StreamError> {
        let sleeper = Sleeper::new(self.source(), self.clock(), self.wait_object())?;
        Ok(EventStream { queue: self.clone(), sleeper, turns: Turns::default() })
    }
}

impl EventStream {
    /// The next event.
    ///
    /// # Errors
    /// An attempt to connect failed, or the system can't make the task sleep.
    pub async fn next(&mut self) -> Result<ControlEvent, EventWaitError> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<ControlEvent, EventWaitError>> {
        self.poll_entry(cx).map(|found| match found {
            Ok(entry) => Ok(entry?),
            Err(error) => Err(EventWaitError::Device(error.into())),
        })
    }

    /// The next event, or attempt to connect that failed.
    pub(super) async fn next_entry(
        &mut self,
    ) -> Result<Result<ControlEvent, ControlError>, SleepError> {
        poll_fn(|cx| self.poll_entry(cx)).await
    }

    fn poll_entry(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Result<ControlEvent, ControlError>, SleepError>> {
        let Self { queue, sleeper, turns } = self;
        turns.poll_found(cx, sleeper, || queue.read().map(Ok))
    }
}

impl Stream for EventStream {
    type Item = Result<ControlEvent, EventWaitError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(cx).map(Some)
    }
}

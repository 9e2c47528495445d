//! A task that sleeps until a completion queue or event queue has something.

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use efa_device::{DeviceError, Time};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::task::yield_now;

use crate::clock::Clock;
use crate::completion_queue::WaitError;
use crate::wait::{Source, WaitObject, is_readable};

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The completion queue was made without a wait object
    /// ([`Domain::waitable_completion_queue`](crate::Domain::waitable_completion_queue) makes one with it).
    #[error("the queue can't be waited on")]
    NotWaitable,
    /// The call was made outside of a tokio runtime.
    #[error("there is no tokio runtime here")]
    NoRuntime,
    /// The system has no file descriptors left, or can't watch them.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Why a task can't sleep.
#[derive(Debug)]
pub(super) enum SleepError {
    /// The runtime was shut down.
    Runtime(io::Error),
    Device(DeviceError),
}

impl From<DeviceError> for SleepError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl From<SleepError> for DeviceError {
    fn from(error: SleepError) -> Self {
        match error {
            SleepError::Runtime(error) => Self::System {
                operation: "sleeping in a tokio runtime".into(),
                errno: error.raw_os_error().unwrap_or_default(),
                reason: error.to_string(),
            },
            SleepError::Device(error) => error,
        }
    }
}

impl From<SleepError> for WaitError {
    fn from(error: SleepError) -> Self {
        Self::Device(error.into())
    }
}

/// How often a task looks in one poll while the descriptor stays readable.
const TRIES: usize = 4;

/// A descriptor of its own for what it sleeps on, so that a queue can have several.
pub(super) struct Sleeper {
    source: Arc<dyn Source>,
    wait: Arc<WaitObject>,
    clock: Clock,
    descriptor: AsyncFd<OwnedFd>,
    /// What a manual clock may be advanced to, and how often in a row this was polled for that.
    next: Option<Time>,
    polls: u32,
}

impl Sleeper {
    pub(super) fn new(
        source: Arc<dyn Source>,
        clock: &Clock,
        wait: &Arc<WaitObject>,
    ) -> Result<Self, StreamError> {
        if Handle::try_current().is_err() {
            return Err(StreamError::NoRuntime);
        }
        let own = wait.descriptor().try_clone_to_owned()?;
        #[allow(
            deprecated,
            reason = "its successor is unsafe, as descriptors may change; an OwnedFd doesn't"
        )]
        let descriptor = AsyncFd::with_interest(own, Interest::READABLE)?;
        wait.enter();
        Ok(Self {
            source,
            wait: Arc::clone(wait),
            clock: clock.clone(),
            descriptor,
            next: None,
            polls: 0,
        })
    }

    /// Ready when the source may have something to be read.
    pub(super) fn poll_awake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SleepError>> {
        for _ in 0..TRIES {
            // The runtime reports changes. What it has reported so far is seen below.
            if let Poll::Ready(changed) = self.descriptor.poll_read_ready(cx) {
                changed.map_err(SleepError::Runtime)?.clear_ready();
                // From now on the next change wakes the task.
                if let Poll::Ready(again) = self.descriptor.poll_read_ready(cx) {
                    again.map_err(SleepError::Runtime)?.clear_ready();
                    continue;
                }
            }
            if !self.wait.may_sleep(|| self.source.prepare())? {
                return Poll::Ready(Ok(()));
            }
            if self.clock.is_manual() {
                self.pass();
                // Others that wait for time to pass are polled as often.
                return pin!(yield_now()).poll(cx).map(Ok);
            }
            // What is readable by now is no change any more.
            if !is_readable(self.descriptor.get_ref())? {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Sleeper {
    /// Advances a manual clock to the next timeout, after the more polls the farther that is: a task with a much nearer one is
    /// polled as often, and comes first.
    fn pass(&mut self) {
        let next = self.source.next_timeout();
        if self.next != next {
            (self.next, self.polls) = (next, 0);
        }
        self.polls = self.polls.saturating_add(1);
        let far = next.map_or(Duration::ZERO, |next| next - self.clock.now().min(next));
        if self.polls > u128::BITS - far.as_micros().leading_zeros() {
            self.clock.pass(next, self.polls);
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.wait.leave();
    }
}

impl fmt::Debug for Sleeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

/// Gives other tasks a turn after so many results that were there at once.
#[derive(Debug, Default)]
pub(super) struct Turns(u32);

impl Turns {
    const IN_A_ROW: u32 = 64;

    /// Pending, with the task woken, if it is the turn of others.
    pub(super) fn poll_mine(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.0 < Self::IN_A_ROW {
            self.0 += 1;
            return Poll::Ready(());
        }
        self.0 = 0;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Looks for something, and sleeps while there is nothing.
    pub(super) fn poll_found<T, E: From<SleepError>>(
        &mut self,
        cx: &mut Context<'_>,
        sleeper: &mut Sleeper,
        mut find: impl FnMut() -> Option<Result<T, E>>,
    ) -> Poll<Result<T, E>> {
        loop {
            ready!(self.poll_mine(cx));
            if let Some(found) = find() {
                return Poll::Ready(found);
            }
            match sleeper.poll_awake(cx) {
                Poll::Ready(awake) => awake?,
                Poll::Pending => {
                    self.0 = 0;
                    return Poll::Pending;
                }
            }
        }
    }
}

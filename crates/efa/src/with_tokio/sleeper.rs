//! A task that sleeps until a completion queue or event queue has something.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use efa_device::DeviceError;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use crate::clock::Clock;
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

/// How often a task looks in one poll while the descriptor stays readable.
const TRIES: usize = 4;

/// A descriptor of its own for what it sleeps on, so that a queue can have several.
pub(super) struct Sleeper {
    source: Arc<dyn Source>,
    wait: Arc<WaitObject>,
    clock: Clock,
    descriptor: AsyncFd<OwnedFd>,
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
        Ok(Self { source, wait: Arc::clone(wait), clock: clock.clone(), descriptor, polls: 0 })
    }

    /// Ready when the source may have something to be read.
    pub(super) fn poll_awake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), DeviceError>> {
        for _ in 0..TRIES {
            // The runtime reports changes. What it has reported so far is seen below.
            if let Poll::Ready(changed) = self.descriptor.poll_read_ready(cx) {
                changed.map_err(|error| shut_down(&error))?.clear_ready();
                // From now on the next change wakes the task.
                if let Poll::Ready(again) = self.descriptor.poll_read_ready(cx) {
                    again.map_err(|error| shut_down(&error))?.clear_ready();
                    continue;
                }
            }
            if !self.wait.may_sleep(|| self.source.prepare())? {
                return Poll::Ready(Ok(()));
            }
            if self.clock.is_manual() {
                self.polls = self.polls.wrapping_add(1);
                self.clock.pass(self.source.next_timeout(), self.polls);
                break;
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

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.wait.leave();
    }
}

fn shut_down(error: &io::Error) -> DeviceError {
    DeviceError::System {
        operation: "sleeping in a tokio runtime".into(),
        errno: error.raw_os_error().unwrap_or_default(),
        reason: error.to_string(),
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
    pub(super) fn poll_found<T, E: From<DeviceError>>(
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

//! Automatic progress: one thread of a domain that sleeps until an endpoint has something to do.
//!
//! ```text
//!   prepare: progress all endpoints of the domain, arm them ─► sleep on their descriptors ─┐
//!      ▲───────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Completions go to their queues, whose readers it wakes like any other thread.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use efa_device::DeviceError;

use crate::bound_endpoints::BoundEndpoints;
use crate::clock::Clock;
use crate::endpoint::Shared as Endpoint;
use crate::wait::{TryWaitError, WaitObject};

/// After an error of the device the thread polls at this interval.
const AFTER_ERROR: Duration = Duration::from_millis(1);
/// Longest sleep: endpoints wake the thread, and so does the timer.
const LONGEST: Duration = Duration::from_secs(3600);

/// The thread. Dropping this ends it.
pub(crate) struct Background {
    work: Arc<Work>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Work {
    wait: Arc<WaitObject>,
    endpoints: BoundEndpoints,
    ends: AtomicBool,
    clock: Clock,
}

impl Background {
    pub(crate) fn start(clock: Clock) -> Result<Self, DeviceError> {
        let work = Arc::new(Work {
            wait: Arc::new(WaitObject::new()?),
            endpoints: BoundEndpoints::default(),
            ends: AtomicBool::new(false),
            clock,
        });
        let of_thread = Arc::clone(&work);
        let thread = thread::Builder::new().name("efa-progress".into());
        let thread =
            thread.spawn(move || of_thread.run()).map_err(|error| DeviceError::System {
                operation: "starting the thread for automatic progress".into(),
                errno: error.raw_os_error().unwrap_or_default(),
                reason: error.to_string(),
            })?;
        Ok(Self { work, thread: Some(thread) })
    }

    /// What the thread sleeps on.
    pub(crate) fn wait_object(&self) -> &Arc<WaitObject> {
        &self.work.wait
    }

    /// Progresses an endpoint from now on.
    pub(crate) fn bind(&self, endpoint: Arc<Endpoint>) {
        self.work.endpoints.add(endpoint);
        self.work.wait.notify();
    }

    /// When this returns, the thread doesn't use the endpoint.
    pub(crate) fn unbind(&self, endpoint: &Arc<Endpoint>) {
        self.work.endpoints.unbind(endpoint, |_, _| {});
    }
}

impl Work {
    fn run(&self) {
        while !self.ends.load(Ordering::Acquire) {
            self.wait.reset();
            let ends = || self.ends.load(Ordering::Acquire);
            let slept = match self.endpoints.prepare(&self.wait, &self.clock, ends) {
                Ok(()) => self.wait.sleep(LONGEST),
                Err(TryWaitError::Device(error)) => Err(error),
                Err(_) => Ok(()),
            };
            if let Err(error) = slept {
                tracing::warn!(%error, "automatic progress polls, as it can't sleep");
                thread::sleep(AFTER_ERROR);
            }
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.work.ends.store(true, Ordering::Release);
        self.work.wait.notify();
        // The thread itself drops the domain if it held the last endpoint for a moment.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Background")
    }
}

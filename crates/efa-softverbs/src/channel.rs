//! Completion channels, on which programs sleep until a completion queue has something.
//!
//! ```text
//!  req_notify ────► the completion queue is armed
//!  a completion ──► an event of the queue; not armed any more
//!  get_cq_event ◄── the oldest event of the channel, waits for one
//!  ack_cq_events ─► counted; destroy_cq waits until every event that was taken is acknowledged
//! ```
//!
//! The descriptor of a channel is an eventfd, readable as long as events are queued. It is written and read
//! under the lock of the events alone, so neither ever waits.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;

use crate::boundary::{Errno, Outcome};
use crate::process::{lock, lock_in_time};

/// A completion channel.
#[derive(Debug)]
pub(crate) struct Channel {
    descriptor: OwnedFd,
    /// Of which queue each event is, the oldest first.
    events: Mutex<VecDeque<Arc<Notifier>>>,
}

impl Channel {
    pub(crate) fn new() -> Outcome<Self> {
        let descriptor = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { descriptor, events: Mutex::default() })
    }

    /// For poll, select and epoll.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Takes the oldest event and counts it, so that its queue isn't destroyed before it is acknowledged.
    pub(crate) fn take(&self) -> Option<Arc<Notifier>> {
        let mut events = lock(&self.events);
        let notifier = events.pop_front()?;
        self.emptied(&events);
        notifier.counts().taken += 1;
        Some(notifier)
    }

    /// Fails with `EAGAIN` if the program has made the descriptor non-blocking.
    pub(crate) fn check_blocking(&self) -> Outcome<()> {
        let flags = rustix::fs::fcntl_getfl(&self.descriptor)?;
        if flags.contains(OFlags::NONBLOCK) { Err(Errno(libc::EAGAIN)) } else { Ok(()) }
    }

    fn push(&self, notifier: &Arc<Notifier>) {
        let mut events = lock(&self.events);
        events.push_back(Arc::clone(notifier));
        if events.len() == 1 {
            // It fails only if the counter is at its limit, which is then readable.
            let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
        }
    }

    /// Removes the events of a queue.
    fn remove(&self, notifier: &Arc<Notifier>) -> Outcome<()> {
        let mut events = lock_in_time(&self.events)?;
        if !events.is_empty() {
            events.retain(|other| !Arc::ptr_eq(other, notifier));
            self.emptied(&events);
        }
        Ok(())
    }

    /// After events were taken: if none is left, the descriptor isn't readable any more.
    fn emptied(&self, events: &VecDeque<Arc<Notifier>>) {
        if events.is_empty() {
            let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
        }
    }
}

/// How a completion queue announces events on its channel.
#[derive(Debug)]
pub(crate) struct Notifier {
    channel: Arc<Channel>,
    /// Address of the `ibv_cq`.
    handle: AtomicUsize,
    counts: Mutex<Counts>,
    acknowledgement: Condvar,
}

/// Events that the program has taken and acknowledged.
#[derive(Debug, Default)]
struct Counts {
    taken: u64,
    acknowledged: u64,
}

impl Notifier {
    pub(crate) fn new(channel: Arc<Channel>) -> Arc<Self> {
        Arc::new(Self {
            channel,
            handle: AtomicUsize::new(0),
            counts: Mutex::default(),
            acknowledgement: Condvar::new(),
        })
    }

    /// The address of the `ibv_cq`, once that exists.
    pub(crate) fn handle(&self) -> usize {
        self.handle.load(Ordering::Relaxed)
    }

    /// To be called before the program gets the handle.
    pub(crate) fn set_handle(&self, handle: usize) {
        self.handle.store(handle, Ordering::Relaxed);
    }

    /// Queues an event.
    pub(crate) fn notify(self: &Arc<Self>) {
        self.channel.push(self);
    }

    pub(crate) fn acknowledge(&self, events: u32) {
        self.counts().acknowledged += u64::from(events);
        self.acknowledgement.notify_all();
    }

    /// Removes the events that the program has not taken.
    pub(crate) fn remove_events(self: &Arc<Self>) -> Outcome<()> {
        self.channel.remove(self)
    }

    /// Waits until every event that was taken is acknowledged.
    pub(crate) fn wait_for_acknowledgement(&self) {
        let mut counts = self.counts();
        while counts.acknowledged < counts.taken {
            let waited = self.acknowledgement.wait(counts);
            counts = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        lock(&self.counts)
    }
}

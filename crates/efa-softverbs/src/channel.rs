//! Completion channels, on which programs sleep until a completion queue has something.
//!
//! ```text
//!  req_notify ────► the completion queue is armed
//!  a completion ──► an event of the queue; not armed any more
//!  get_cq_event ◄── the oldest event of the channel, waits for one
//!  ack_cq_events ─► counted; destroy_cq waits until every event that was taken is acknowledged
//! ```
//!
//! The descriptor of a channel is the end of a pipe, with 8 bytes for each event: the address of its `ibv_cq`, as the kernel
//! writes them for rdma-core. Programs with [rings](crate::direct) read them themselves, and the library need not know.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::boundary::{Errno, Outcome};
use crate::message::report;
use crate::process::{lock, lock_in_time};

/// Bytes of an event.
const EVENT: usize = 8;

/// A completion channel.
#[derive(Debug)]
pub(crate) struct Channel {
    descriptor: OwnedFd,
    writer: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of the completion queues of the channel.
    notifiers: Vec<Weak<Notifier>>,
    /// Events so far.
    written: u64,
    /// Whether the program was told that events are lost.
    is_overrun: bool,
}

impl Channel {
    pub(crate) fn new() -> Outcome<Self> {
        let (descriptor, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK)?;
        Ok(Self { descriptor, writer, state: Mutex::default() })
    }

    /// For poll, select and epoll.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Takes the oldest event and counts it, so that its queue isn't destroyed before it is acknowledged.
    pub(crate) fn take(&self) -> Option<Arc<Notifier>> {
        let state = lock(&self.state);
        let handle = self.read_event()?;
        let mut known = state.notifiers.iter().filter_map(Weak::upgrade);
        let notifier = known.find(|notifier| notifier.handle() == handle)?;
        notifier.counts().taken += 1;
        Some(notifier)
    }

    /// Fails with `EAGAIN` if the program has made the descriptor non-blocking.
    pub(crate) fn check_blocking(&self) -> Outcome<()> {
        let flags = rustix::fs::fcntl_getfl(&self.descriptor)?;
        if flags.contains(OFlags::NONBLOCK) { Err(Errno(libc::EAGAIN)) } else { Ok(()) }
    }

    /// How many events the program hasn't read.
    fn unread(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.descriptor).map_or(0, |bytes| bytes / EVENT as u64)
    }

    /// The oldest event, if there is one.
    fn read_event(&self) -> Option<usize> {
        if self.unread() == 0 {
            return None;
        }
        let mut event = [0; EVENT];
        let length = rustix::io::read(&self.descriptor, &mut event).ok()?;
        (length == EVENT).then(|| u64::from_ne_bytes(event) as usize)
    }

    /// Never waits. Returns whether there was room.
    fn write_event(&self, handle: usize) -> bool {
        rustix::io::write(&self.writer, &(handle as u64).to_ne_bytes()).is_ok()
    }

    fn push(&self, notifier: &Notifier, unless: Unless) {
        let mut state = lock(&self.state);
        let last = notifier.last.load(Ordering::Relaxed);
        if unless == Unless::Unread && last > state.written.saturating_sub(self.unread()) {
            return;
        }
        if self.write_event(notifier.handle()) {
            state.written += 1;
            notifier.last.store(state.written, Ordering::Relaxed);
        } else if !std::mem::replace(&mut state.is_overrun, true) {
            report(&format_args!(
                "a completion channel is full of events that the program doesn't read, and more are lost"
            ));
        }
    }

    /// Removes a queue and its events.
    fn remove(&self, notifier: &Notifier) -> Outcome<()> {
        let mut state = lock_in_time(&self.state)?;
        state.notifiers.retain(|other| !std::ptr::eq(other.as_ptr(), notifier));
        for _ in 0..self.unread() {
            match self.read_event() {
                // There is room, as it was read just now.
                Some(handle) if handle != notifier.handle() => _ = self.write_event(handle),
                Some(_) | None => {}
            }
        }
        Ok(())
    }
}

/// When an event is not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unless {
    /// It always is: the program has asked for it.
    Never,
    /// The program hasn't read the last one of the same queue.
    Unread,
}

/// How a completion queue announces events on its channel.
#[derive(Debug)]
pub(crate) struct Notifier {
    channel: Arc<Channel>,
    /// Address of the `ibv_cq`.
    handle: AtomicUsize,
    /// Which event of the channel was the last one of this queue, from 1 on; 0 before. Written under the lock of the channel.
    last: AtomicU64,
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
            last: AtomicU64::new(0),
            counts: Mutex::default(),
            acknowledgement: Condvar::new(),
        })
    }

    /// The address of the `ibv_cq`, once that exists.
    pub(crate) fn handle(&self) -> usize {
        self.handle.load(Ordering::Relaxed)
    }

    /// To be called before the program gets the handle.
    pub(crate) fn set_handle(self: &Arc<Self>, handle: usize) {
        self.handle.store(handle, Ordering::Relaxed);
        lock(&self.channel.state).notifiers.push(Arc::downgrade(self));
    }

    /// Queues an event.
    pub(crate) fn notify(&self, unless: Unless) {
        self.channel.push(self, unless);
    }

    pub(crate) fn acknowledge(&self, events: u32) {
        self.counts().acknowledged += u64::from(events);
        self.acknowledgement.notify_all();
    }

    /// Removes the events that the program has not taken.
    pub(crate) fn remove_events(&self) -> Outcome<()> {
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

//! Completion channels, on which programs sleep until a completion queue has something.
//!
//! ```text
//!  req_notify ────► the completion queue is armed
//!  a completion ──► an event of the queue; not armed any more
//!  get_cq_event ◄── the oldest event of the channel, waits for one
//!  ack_cq_events ─► counted; destroy_cq waits until every event that was taken is acknowledged
//! ```
//!
//! The descriptor of a channel is the end of a pipe, with 8 bytes for each event: the address of its `ibv_cq`, as the
//! kernel writes them for rdma-core. Programs with [rings](crate::direct) read them without a call.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno as OsError;
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, pipe_with};

use crate::boundary::{Errno, Outcome};
use crate::message::report;
use crate::process::{lock, lock_in_time};

/// Bytes of an event.
const EVENT: usize = 8;

/// A completion channel.
#[derive(Debug)]
pub(crate) struct Channel {
    /// The program's, which may read it at any time.
    descriptor: OwnedFd,
    /// Both ends for the library, opened again so that it never blocks, whatever the program has set for its own.
    own: OwnedFd,
    /// Unread events beyond which each queue has one at most, so that there is room for all.
    crowded: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of the completion queues of the channel.
    notifiers: Vec<Weak<Notifier>>,
    /// Events so far.
    written: u64,
}

impl Channel {
    pub(crate) fn new() -> Outcome<Self> {
        let (descriptor, _) = pipe_with(PipeFlags::CLOEXEC)?;
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let own = rustix::fs::open(path, flags, Mode::empty())?;
        let crowded = (fcntl_getpipe_size(&own)? / EVENT / 2) as u64;
        Ok(Self { descriptor, own, crowded, state: Mutex::default() })
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
        rustix::io::ioctl_fionread(&self.own).map_or(0, |bytes| bytes / EVENT as u64)
    }

    /// The oldest event, if there is one.
    fn read_event(&self) -> Option<usize> {
        let mut event = [0; EVENT];
        let length = rustix::io::read(&self.own, &mut event).ok()?;
        (length == EVENT).then(|| u64::from_ne_bytes(event) as usize)
    }

    /// Returns whether there was room.
    fn write_event(&self, handle: usize) -> bool {
        let written = rustix::io::write(&self.own, &(handle as u64).to_ne_bytes());
        if written == Err(OsError::AGAIN) {
            report(&format_args!(
                "a completion channel is full of events that the program doesn't read, and more are lost"
            ));
        }
        written.is_ok()
    }

    fn push(&self, notifier: &Notifier, unless: Unless) {
        let mut state = lock(&self.state);
        // Removed meanwhile: the program must not read its handle any more.
        if !state.knows(notifier) {
            return;
        }
        let unread = self.unread();
        let last = notifier.last.load(Ordering::Relaxed);
        let has_unread = last > state.written.saturating_sub(unread);
        if has_unread && (unless == Unless::Unread || unread >= self.crowded) {
            return;
        }
        if self.write_event(notifier.handle()) {
            state.written += 1;
            notifier.last.store(state.written, Ordering::Relaxed);
        }
    }

    /// Removes a queue and its events.
    fn remove(&self, notifier: &Notifier) -> Outcome<()> {
        let mut state = lock_in_time(&self.state)?;
        state.notifiers.retain(|other| !std::ptr::eq(other.as_ptr(), notifier));
        // All are read before any is written: a page of the pipe is free when all of it is read.
        let events: Vec<usize> = std::iter::from_fn(|| self.read_event()).collect();
        for handle in events {
            if handle != notifier.handle() {
                self.write_event(handle);
            }
        }
        Ok(())
    }
}

impl State {
    fn knows(&self, notifier: &Notifier) -> bool {
        self.notifiers.iter().any(|known| std::ptr::eq(known.as_ptr(), notifier))
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
    /// Which event of the channel was the last one of this queue, from 1 on; 0 before. Written under the lock of the
    /// channel.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn with_queues(count: usize) -> (Arc<Channel>, Vec<Arc<Notifier>>) {
        let channel = Arc::new(Channel::new().unwrap());
        let queues = (1..=count).map(|handle| {
            let queue = Notifier::new(Arc::clone(&channel));
            queue.set_handle(handle);
            queue
        });
        let queues = queues.collect();
        (channel, queues)
    }

    fn taken(channel: &Channel) -> Vec<usize> {
        std::iter::from_fn(|| channel.take()).map(|queue| queue.handle()).collect()
    }

    #[test]
    fn queue_that_fills_the_channel_leaves_room_for_the_others() {
        let (channel, queues) = with_queues(100);
        for _ in 0..10_000 {
            queues[0].notify(Unless::Never);
        }
        assert_eq!(channel.unread(), channel.crowded);
        for queue in &queues {
            queue.notify(Unless::Never);
            queue.notify(Unless::Never);
        }
        let taken = taken(&channel);
        let last: Vec<usize> = (2..=100).collect();
        assert_eq!(taken[taken.len() - 99..], last);
        assert!(taken[..taken.len() - 99].iter().all(|&handle| handle == 1));
    }

    #[test]
    fn removed_queue_has_no_events_any_more_and_the_others_keep_theirs_in_order() {
        let (channel, queues) = with_queues(3);
        for index in [0, 1, 0, 2, 1] {
            queues[index].notify(Unless::Never);
        }
        queues[1].remove_events().unwrap();
        // By a thread that has found a completion just before.
        queues[1].notify(Unless::Never);
        assert_eq!(taken(&channel), [1, 1, 3]);
    }

    #[test]
    fn event_that_may_be_needed_is_queued_unless_one_is_unread() {
        let (channel, queues) = with_queues(2);
        for _ in 0..2 {
            for index in [0, 1, 0] {
                queues[index].notify(Unless::Unread);
            }
            assert_eq!(taken(&channel), [1, 2]);
        }
    }

    /// The program reads its descriptor, which blocks, at the same time.
    #[test]
    fn channel_without_events_never_blocks_the_library() {
        let (channel, queues) = with_queues(1);
        assert_eq!(taken(&channel), [0_usize; 0]);
        queues[0].notify(Unless::Never);
        rustix::io::read(channel.descriptor(), &mut [0; EVENT]).unwrap();
        assert_eq!(channel.read_event(), None);
    }
}

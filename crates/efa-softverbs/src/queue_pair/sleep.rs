//! Queue pairs that sleep: the progress thread looks at them when their link has something.
//!
//! ```text
//!             the program arms a completion queue, or polls nothing for a while
//!   awake ───────────────────────────────────────────────────────────────────────► asleep
//!     ▲      step, until the link is armed and has nothing                            │
//!     └───────────────────────────────────────────────────────────────────────────────┘
//!             the descriptor is readable, a time has come, or a post left something to do
//! ```
//!
//! The thread looks at one that is awake every few milliseconds. Queue pairs of the tcp link can sleep, those of a
//! completion queue with a channel, and those with doorbells that trap.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use efa_device::{Armed, Time};

use super::{Locked, QpState, QueuePair};
use crate::clock::now;
use crate::link::LinkQueuePair;
use crate::message::report;
use crate::process::{lock, process};

/// How often a queue pair that has something to do is stepped before it is left to the next look.
const STEPS: usize = 64;
/// Pause between two looks at a queue pair that nobody polls and that has something to do.
const BUSY_PAUSE: Duration = Duration::from_micros(20);

/// When the progress thread must look at a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It is awake: at the thread's next round.
    NextRound,
    /// It sleeps: when the link has something, and at this time.
    Asleep(Option<Time>),
}

/// A [`Look`], written by whoever holds the lock of the queue pair.
#[derive(Debug, Default)]
pub(super) struct NextLook(AtomicU64);

impl NextLook {
    const AWAKE: u64 = 0;
    const WITHOUT_LIMIT: u64 = u64::MAX;

    #[inline]
    fn is_asleep(&self) -> bool {
        self.0.load(Ordering::Relaxed) != Self::AWAKE
    }

    fn get(&self) -> Look {
        match self.0.load(Ordering::Acquire) {
            Self::AWAKE => Look::NextRound,
            Self::WITHOUT_LIMIT => Look::Asleep(None),
            time => Look::Asleep(Some(Time::from_nanos(time))),
        }
    }

    fn set(&self, look: Look) {
        let value = match look {
            Look::NextRound => Self::AWAKE,
            Look::Asleep(None) => Self::WITHOUT_LIMIT,
            Look::Asleep(Some(time)) => time.as_nanos().max(1),
        };
        self.0.store(value, Ordering::Release);
    }
}

impl QueuePair {
    pub(crate) fn next_look(&self) -> Look {
        self.next_look.get()
    }

    #[inline]
    pub(super) fn is_asleep(&self) -> bool {
        self.next_look.is_asleep()
    }

    /// Makes the progress thread look at it soon.
    pub(super) fn stay_awake(&self) {
        if self.is_asleep() {
            self.next_look.set(Look::NextRound);
            process().progress.look_at(now());
        }
    }

    /// The program arms a completion queue: from now on, what arrives wakes the progress thread.
    pub(crate) fn sleep(&self) {
        self.sleep_with(&mut lock(&self.locked));
    }

    pub(super) fn sleep_with(&self, locked: &mut Locked) {
        match self.fall_asleep(locked) {
            Look::Asleep(Some(until)) => process().progress.look_at(until),
            Look::Asleep(None) => {}
            Look::NextRound => process().progress.look_at(now()),
        }
    }

    /// The link has woken the progress thread, or it is time to look.
    pub(crate) fn wake(&self) {
        let mut locked = lock(&self.locked);
        // A program that has polled since is awake itself.
        if self.polled.swap(false, Ordering::Relaxed) && !self.is_awaited() {
            self.next_look.set(Look::NextRound);
        } else {
            self.fall_asleep(&mut locked);
        }
    }

    /// Whether the program waits for a completion of this queue pair, or is to find it in a ring.
    fn is_awaited(&self) -> bool {
        self.send_queue.is_armed() || self.receive_queue.is_armed() || self.traps()
    }

    /// Steps until the link is armed and has nothing, or a completion was found that nobody waits for any more.
    pub(super) fn fall_asleep(&self, locked: &mut Locked) -> Look {
        let look = self.arm(locked).unwrap_or_else(|| self.busy_look(locked));
        self.next_look.set(look);
        look
    }

    /// When to look at one that has something to do. One whose doorbells trap isn't polled by the program meanwhile.
    fn busy_look(&self, locked: &Locked) -> Look {
        let can_step = locked.state >= QpState::Rtr && locked.link.is_some();
        if self.traps() && can_step {
            Look::Asleep(Some(now() + BUSY_PAUSE))
        } else {
            Look::NextRound
        }
    }

    /// `None` if it stays awake.
    fn arm(&self, locked: &mut Locked) -> Option<Look> {
        let sleepers = process().progress.sleepers()?;
        // The thread doesn't know it before, so nobody would look when its link has something.
        if locked.state < QpState::Rtr {
            return None;
        }
        for _ in 0..STEPS {
            let link = locked.link.as_ref()?;
            if link.wait_fd().is_none() || (self.step(locked) && !self.is_awaited()) {
                return None;
            }
            // Their delays are counted in polls.
            if !locked.faults.is_idle() {
                return None;
            }
            let link = locked.link.as_mut()?;
            let armed = link.arm(now()).map_err(|error| report(&error)).ok()?;
            if let Armed::Quiet { until } = armed {
                let watched = sleepers.watch(self.serial, link.wait_fd()?);
                return watched.is_ok().then_some(Look::Asleep(until));
            }
        }
        None
    }

    /// After a call of the program while it sleeps: what a post left to do is done, as nobody may poll.
    #[cold]
    pub(super) fn after_call(&self, locked: &mut Locked) {
        let is_due = locked.link.as_ref().is_some_and(LinkQueuePair::is_due);
        if is_due || !locked.faults.is_idle() {
            self.sleep_with(locked);
        }
    }
}

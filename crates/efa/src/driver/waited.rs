//! Threads that sleep until the endpoint has something for their completion queue or counter.

use std::sync::Arc;
use std::time::Duration;

use efa_device::{Armed, DeviceError, QueuePair, Time};

use super::Driver;
use crate::clock::Clock;
use crate::device::{ConcretePacket, ConcreteRegion};
use crate::reporters::Signal;
use crate::wait::WaitObject;

/// How often an endpoint looks whether a full completion queue has space for its completions again.
const LOOK_FOR_SPACE: Duration = Duration::from_millis(1);

/// What threads sleep on that wait for the endpoint.
#[derive(Debug)]
pub(super) struct Waiters {
    objects: Vec<Arc<WaitObject>>,
    /// Whether a thread may be asleep, and until when at most.
    armed: Option<Option<Time>>,
    /// What is set at events, and the engine's count of them when it last was.
    signals: Vec<Arc<Signal>>,
    signalled: u64,
}

impl Waiters {
    /// `None` if nobody can wait for the endpoint.
    pub(super) fn new(
        objects: Vec<Arc<WaitObject>>,
        signals: Vec<Arc<Signal>>,
    ) -> Option<Box<Self>> {
        let has_some = !(objects.is_empty() && signals.is_empty());
        has_some.then(|| Box::new(Self { objects, armed: None, signals, signalled: 0 }))
    }

    /// The engine has had so many events.
    fn signal(&mut self, events: u64) {
        if std::mem::replace(&mut self.signalled, events) != events {
            self.signals.iter().for_each(|signal| signal.set());
        }
    }

    fn wake(&mut self) {
        self.armed = None;
        self.objects.iter().for_each(|object| object.notify());
    }
}

impl<Q: QueuePair<Region: ConcreteRegion, Packet: ConcretePacket>> Driver<Q> {
    /// Adds the descriptors of the queue pairs to what threads sleep on.
    pub(crate) fn watch(&self) -> Result<(), DeviceError> {
        let objects = self.waiters.iter().flat_map(|waiters| &waiters.objects);
        objects.into_iter().try_for_each(|object| {
            self.engine.wait_fds().try_for_each(|descriptor| object.add(descriptor))
        })
    }

    /// Prepares for sleep, after progress.
    pub(crate) fn arm(&mut self, clock: &Clock) -> Result<Armed, DeviceError> {
        self.now = clock.now();
        // A full queue stops the endpoint, whatever the device has.
        let armed = match self.transmit.is_clear() && self.receive.is_clear() {
            true => self.engine.arm(self.now)?,
            false => Armed::Quiet { until: Some(self.now + LOOK_FOR_SPACE) },
        };
        if let (Some(waiters), Armed::Quiet { until }) = (&mut self.waiters, armed) {
            waiters.armed = Some(until);
        }
        Ok(armed)
    }

    /// The driver for one call.
    #[inline(always)]
    pub(crate) fn waking(&mut self) -> Waking<'_, Q> {
        self.looks = 0;
        Waking(self)
    }

    /// Wakes threads that sleep if a call has left something to do that no descriptor shows: an operation
    /// that ended at once, or something to be done earlier than they sleep. So are those that wait for an event.
    #[cold]
    #[inline(never)]
    fn wake_if_needed(&mut self) {
        let Some(waiters) = &mut self.waiters else { return };
        waiters.signal(self.engine.event_count());
        let Some(until) = waiters.armed else { return };
        if !(self.transmit.is_clear() && self.receive.is_clear()) {
            return;
        }
        let next = self.engine.next_timeout();
        let is_earlier = next.is_some_and(|next| until.is_none_or(|until| next < until));
        if is_earlier || self.engine.has_ended_operations() {
            waiters.wake();
        }
    }
}

/// A driver in a call, after which threads that sleep are woken if it has left something to do. Not a function
/// around the call: that would move what the call takes and returns once more.
#[derive(Debug)]
pub(crate) struct Waking<'a, Q: QueuePair<Region: ConcreteRegion, Packet: ConcretePacket>>(
    pub(crate) &'a mut Driver<Q>,
);

impl<Q: QueuePair<Region: ConcreteRegion, Packet: ConcretePacket>> Drop for Waking<'_, Q> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.0.waiters.is_some() {
            self.0.wake_if_needed();
        }
    }
}

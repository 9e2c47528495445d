//! The endpoints that are bound to a completion queue or counter, and are progressed when it is read.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use efa_device::{Armed, DeviceError, Time};
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::endpoint::Shared as Endpoint;
use crate::wait::{TryWaitError, WaitObject};

/// How often endpoints are progressed that have something to do, before the caller has to read again.
const TRIES: usize = 4;

/// Lists of so many endpoints poll all of them: that costs less than to know which of them are idle.
const FEW: usize = 4;
/// Reads between two looks at which endpoints are idle. One that did nothing between two looks rests.
const LOOK_EVERY: u32 = 256;
/// Reads per poll of an endpoint that rests.
const VISIT_EVERY: u32 = 8;

/// The endpoints of a queue or counter, which are polled in turn. Dropped ones are removed on the way.
///
/// ```text
///              did nothing in 256 reads, has nothing under way
///   rotation ──────────────────────────────────────────────────► rest: every eighth read
///     polled ◄────────────────────────────────────────────────── polls the next of them
///   each read   a poll finds something, or an operation starts
/// ```
///
/// So an idle endpoint costs next to nothing, and of what arrives for it nothing is lost: it waits in the device until
/// the next poll, at most eight reads for each endpoint that rests. Before a thread sleeps, all are polled.
#[derive(Debug, Default)]
pub(crate) struct BoundEndpoints(Mutex<RoundRobin>);

#[derive(Debug, Default)]
struct RoundRobin {
    endpoints: Vec<Bound>,
    /// Index of the endpoint to be polled next.
    next: usize,
    /// `None` until there were more than a [`FEW`].
    rest: Option<Box<Rest>>,
}

#[derive(Debug)]
struct Bound {
    endpoint: Weak<Endpoint>,
    /// Its [activity](Endpoint::activity) at the last look.
    activity: u64,
}

/// The endpoints that are not in the rotation.
#[derive(Debug, Default)]
struct Rest {
    endpoints: VecDeque<Bound>,
    /// Index of one of them that was put into the rotation for one read.
    visited: Option<usize>,
    reads: u32,
}

impl Bound {
    fn is(&self, endpoint: &Arc<Endpoint>) -> bool {
        std::ptr::eq(self.endpoint.as_ptr(), Arc::as_ptr(endpoint))
    }

    /// Whether it was dropped, or did something since the last look.
    fn was_active(&mut self) -> bool {
        self.endpoint.upgrade().is_none_or(|endpoint| {
            let activity = endpoint.activity();
            std::mem::replace(&mut self.activity, activity) != activity
        })
    }

    /// Whether it leaves the rotation.
    fn rests(&mut self) -> bool {
        let was_active = self.was_active();
        !was_active && self.endpoint.upgrade().is_some_and(|endpoint| endpoint.rest())
    }
}

impl RoundRobin {
    fn all(&self) -> impl Iterator<Item = Arc<Endpoint>> {
        let resting = self.rest.iter().flat_map(|rest| &rest.endpoints);
        self.endpoints.iter().chain(resting).filter_map(|bound| bound.endpoint.upgrade())
    }

    /// Before a read: decides which endpoints are in the rotation.
    #[cold]
    #[inline(never)]
    fn change_shifts(&mut self) {
        let Self { endpoints, next, rest: Some(rest) } = self else { return };
        if let Some(at) = rest.visited.take()
            && let Some(visited) = endpoints.get_mut(at)
            && !visited.was_active()
        {
            rest.endpoints.push_back(endpoints.remove(at));
            *next -= usize::from(*next > at);
        }
        rest.reads = rest.reads.wrapping_add(1);
        if rest.reads.is_multiple_of(LOOK_EVERY) {
            rest.endpoints.extend(endpoints.extract_if(.., Bound::rests));
        }
        if *next >= endpoints.len() {
            *next = 0;
        }
        if rest.reads.is_multiple_of(VISIT_EVERY)
            && let Some(visited) = rest.endpoints.pop_front()
        {
            // It is polled first: a busy endpoint may end the read.
            endpoints.insert(*next, visited);
            rest.visited = Some(*next);
        }
    }
}

impl BoundEndpoints {
    pub(crate) fn bind(&self, endpoint: Weak<Endpoint>) {
        let RoundRobin { endpoints, rest, .. } = &mut *self.0.lock();
        endpoints.push(Bound { endpoint, activity: 0 });
        if endpoints.len() > FEW {
            rest.get_or_insert_default();
        }
    }

    /// Removes an endpoint. When this returns, no thread polls it through this list.
    pub(crate) fn unbind(&self, endpoint: &Arc<Endpoint>) {
        let RoundRobin { endpoints, next, rest } = &mut *self.0.lock();
        endpoints.retain(|bound| !bound.is(endpoint));
        *next = 0;
        if let Some(rest) = rest {
            rest.endpoints.retain(|bound| !bound.is(endpoint));
            rest.visited = None;
        }
    }

    /// Polls an endpoint in each read again, as an operation starts.
    pub(crate) fn recall(&self, endpoint: &Arc<Endpoint>) {
        let RoundRobin { endpoints, rest, .. } = &mut *self.0.lock();
        let Some(rest) = rest else { return };
        // A counter of several kinds of operations has it as many times.
        while let Some(at) = rest.endpoints.iter().position(|bound| bound.is(endpoint)) {
            endpoints.extend(rest.endpoints.remove(at));
        }
    }

    /// Progresses the operations of the endpoints in the rotation.
    pub(crate) fn progress(&self) {
        self.any(|endpoint| {
            endpoint.progress();
            false
        });
    }

    /// Progresses the operations of all endpoints.
    fn progress_all(&self) {
        self.0.lock().all().for_each(|endpoint| endpoint.progress());
    }

    /// Calls `poll` with one endpoint of the rotation after the other until it returns `true`; the next call
    /// begins with the endpoint after that one. Returns whether one did.
    #[inline(always)]
    pub(crate) fn any(&self, mut poll: impl FnMut(&Endpoint) -> bool) -> bool {
        let mut some_dropped = false;
        let list = &mut *self.0.lock();
        if list.rest.is_some() {
            list.change_shifts();
        }
        let RoundRobin { endpoints, next, rest } = list;
        for _ in 0..endpoints.len() {
            let endpoint = endpoints.get(*next).and_then(|bound| bound.endpoint.upgrade());
            *next = if *next + 1 < endpoints.len() { *next + 1 } else { 0 };
            match endpoint {
                Some(endpoint) if poll(&endpoint) => return true,
                Some(_) => {}
                None => some_dropped = true,
            }
        }
        if some_dropped {
            endpoints.retain(|bound| bound.endpoint.strong_count() > 0);
            *next = 0;
            if let Some(rest) = rest {
                rest.visited = None;
            }
        }
        false
    }

    /// Progresses every endpoint and prepares it for sleep, unless `is_pending` then. `wait` wakes up when an
    /// endpoint has something to do at a known time.
    pub(crate) fn prepare(
        &self,
        wait: &WaitObject,
        clock: &Clock,
        is_pending: impl Fn() -> bool,
    ) -> Result<(), TryWaitError> {
        for _ in 0..TRIES {
            if is_pending() {
                return Err(TryWaitError::Pending);
            }
            self.progress_all();
            if is_pending() {
                return Err(TryWaitError::Pending);
            }
            if let Armed::Quiet { until } = self.arm()? {
                wait.wake_at(until, clock)?;
                // An endpoint may have completed an operation meanwhile: for another thread, or as it was armed.
                return if is_pending() { Err(TryWaitError::Pending) } else { Ok(()) };
            }
        }
        Err(TryWaitError::Pending)
    }

    fn arm(&self) -> Result<Armed, DeviceError> {
        let mut next = None;
        for endpoint in self.0.lock().all() {
            match endpoint.arm()? {
                Armed::Pending => return Ok(Armed::Pending),
                Armed::Quiet { until } => next = [next, until].into_iter().flatten().min(),
            }
        }
        Ok(Armed::Quiet { until: next })
    }

    /// The earliest time at which an endpoint has to be polled even if nothing arrives.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.0.lock().all().filter_map(|endpoint| endpoint.next_timeout()).min()
    }
}

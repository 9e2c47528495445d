//! The endpoints that are bound to a completion queue or counter, and are progressed when it is read.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

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

/// The endpoints of a queue or counter, which are polled in turn. An endpoint is removed before it is dropped.
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
///
/// Most lists have one endpoint all their life. It is polled without the lock of the list.
#[derive(Debug, Default)]
pub(crate) struct BoundEndpoints {
    /// The endpoint that was bound first, also when it is closed.
    first: OnceLock<Arc<Endpoint>>,
    /// Whether it is the only one.
    is_only: AtomicBool,
    /// Locked before the drivers of its endpoints.
    list: Mutex<RoundRobin>,
}

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
    endpoint: Arc<Endpoint>,
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
        Arc::ptr_eq(&self.endpoint, endpoint)
    }

    /// Whether it did something since the last look.
    fn was_active(&mut self) -> bool {
        let activity = self.endpoint.activity();
        std::mem::replace(&mut self.activity, activity) != activity
    }

    /// Whether it leaves the rotation.
    fn rests(&mut self) -> bool {
        !self.was_active() && self.endpoint.rest()
    }
}

impl RoundRobin {
    /// How many endpoints there are.
    fn len(&self) -> usize {
        self.endpoints.len() + self.rest.as_ref().map_or(0, |rest| rest.endpoints.len())
    }

    fn all(&self) -> impl Iterator<Item = &Endpoint> {
        let resting = self.rest.iter().flat_map(|rest| &rest.endpoints);
        self.endpoints.iter().chain(resting).map(|bound| &*bound.endpoint)
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

    /// Polls one of several endpoints after the other until one has something.
    fn any(&mut self, mut poll: impl FnMut(&Endpoint) -> bool) -> bool {
        if self.rest.is_some() {
            self.change_shifts();
        }
        let Self { endpoints, next, .. } = self;
        for _ in 0..endpoints.len() {
            let Some(bound) = endpoints.get(*next) else { break };
            *next = if *next + 1 < endpoints.len() { *next + 1 } else { 0 };
            if poll(&bound.endpoint) {
                return true;
            }
        }
        false
    }
}

impl BoundEndpoints {
    /// Adds an endpoint. Before any other thread sees the list, `first` is told whether the endpoint that was bound first is
    /// the only one, if that changed.
    pub(crate) fn bind(&self, endpoint: Arc<Endpoint>, first: impl FnOnce(&Endpoint, bool)) {
        self.first.get_or_init(|| Arc::clone(&endpoint));
        self.add_and_tell(endpoint, first);
    }

    /// As [`bind`](Self::bind), but keeps no closed endpoint, whose domain may own this list.
    pub(crate) fn add(&self, endpoint: Arc<Endpoint>) {
        self.add_and_tell(endpoint, |_, _| {});
    }

    fn add_and_tell(&self, endpoint: Arc<Endpoint>, first: impl FnOnce(&Endpoint, bool)) {
        let list = &mut *self.list.lock();
        list.endpoints.push(Bound { endpoint, activity: 0 });
        if list.endpoints.len() > FEW {
            list.rest.get_or_insert_default();
        }
        self.note_only(list, first);
    }

    /// Removes an endpoint, which is closed then: a thread that polls it now, or still begins to, finds it closed.
    /// `first` as for [`bind`](Self::bind).
    pub(crate) fn unbind(&self, endpoint: &Arc<Endpoint>, first: impl FnOnce(&Endpoint, bool)) {
        let list = &mut *self.list.lock();
        list.endpoints.retain(|bound| !bound.is(endpoint));
        list.next = 0;
        if let Some(rest) = &mut list.rest {
            rest.endpoints.retain(|bound| !bound.is(endpoint));
            rest.visited = None;
        }
        self.note_only(list, first);
    }

    /// Notes whether the endpoint that was bound first is the only one.
    fn note_only(&self, list: &RoundRobin, tell: impl FnOnce(&Endpoint, bool)) {
        let Some(first) = self.first.get() else { return };
        let is_only = list.len() == 1 && list.endpoints.iter().any(|one| one.is(first));
        if self.is_only.swap(is_only, Ordering::AcqRel) != is_only {
            tell(first, is_only);
        }
    }

    /// The endpoint, if there is one only.
    #[inline(always)]
    fn only(&self) -> Option<&Endpoint> {
        match self.has_one() {
            true => self.first.get().map(|first| &**first),
            false => None,
        }
    }

    /// Whether there is one endpoint only.
    #[inline(always)]
    pub(crate) fn has_one(&self) -> bool {
        self.is_only.load(Ordering::Acquire)
    }

    /// Polls an endpoint in each read again, as an operation starts.
    pub(crate) fn recall(&self, endpoint: &Arc<Endpoint>) {
        let RoundRobin { endpoints, rest, .. } = &mut *self.list.lock();
        let Some(rest) = rest else { return };
        // A counter of several kinds of operations has it as many times.
        while let Some(at) = rest.endpoints.iter().position(|bound| bound.is(endpoint)) {
            endpoints.extend(rest.endpoints.remove(at));
        }
    }

    /// Whether a poll of all endpoints would find nothing; `false` if that isn't known without one.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.only().is_some_and(Endpoint::is_idle)
    }

    /// Whether a poll handles what was found already; `true` if that isn't known.
    pub(crate) fn have_found(&self) -> bool {
        self.only().is_none_or(Endpoint::has_found)
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
        self.list.lock().all().for_each(|endpoint| endpoint.progress());
    }

    /// Calls `poll` with one endpoint of the rotation after the other until it returns `true`; the next call
    /// begins with the endpoint after that one. Returns whether one did.
    #[inline(always)]
    pub(crate) fn any(&self, mut poll: impl FnMut(&Endpoint) -> bool) -> bool {
        match self.only() {
            Some(only) => poll(only),
            None => self.any_of_several(poll),
        }
    }

    #[inline(never)]
    fn any_of_several(&self, poll: impl FnMut(&Endpoint) -> bool) -> bool {
        self.list.lock().any(poll)
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
        for endpoint in self.list.lock().all() {
            match endpoint.arm()? {
                Armed::Pending => return Ok(Armed::Pending),
                Armed::Quiet { until } => next = [next, until].into_iter().flatten().min(),
            }
        }
        Ok(Armed::Quiet { until: next })
    }

    /// The earliest time at which an endpoint has to be polled even if nothing arrives.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.list.lock().all().filter_map(|endpoint| endpoint.next_timeout()).min()
    }
}

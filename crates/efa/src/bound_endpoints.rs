//! The endpoints that are bound to a completion queue or counter, and are progressed when it is read.

use std::sync::{Arc, Weak};

use efa_device::{Armed, DeviceError, Time};
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::endpoint::Shared as Endpoint;
use crate::wait::{TryWaitError, WaitObject};

/// How often endpoints are progressed that have something to do, before the caller has to read again.
const TRIES: usize = 4;

/// Removes an endpoint from a list.
pub(crate) fn remove(bound: &mut Vec<Weak<Endpoint>>, endpoint: &Arc<Endpoint>) {
    bound.retain(|bound| !std::ptr::eq(bound.as_ptr(), Arc::as_ptr(endpoint)));
}

/// A list of endpoints that are polled in turn. Dropped endpoints are removed on the way.
#[derive(Debug, Default)]
pub(crate) struct BoundEndpoints(Mutex<RoundRobin>);

#[derive(Debug, Default)]
struct RoundRobin {
    endpoints: Vec<Weak<Endpoint>>,
    /// Index of the endpoint to be polled next.
    next: usize,
}

impl BoundEndpoints {
    pub(crate) fn bind(&self, endpoint: Weak<Endpoint>) {
        self.0.lock().endpoints.push(endpoint);
    }

    /// Removes an endpoint. When this returns, no thread polls it through this list.
    pub(crate) fn unbind(&self, endpoint: &Arc<Endpoint>) {
        let RoundRobin { endpoints, next } = &mut *self.0.lock();
        remove(endpoints, endpoint);
        *next = 0;
    }

    /// Progresses the operations of every endpoint.
    pub(crate) fn progress(&self) {
        self.any(|endpoint| {
            endpoint.progress();
            false
        });
    }

    /// Calls `poll` with one endpoint after the other until it returns `true`; the next call begins with
    /// the endpoint after that one. Returns whether one did.
    #[inline(always)]
    pub(crate) fn any(&self, mut poll: impl FnMut(&Endpoint) -> bool) -> bool {
        let mut some_dropped = false;
        let RoundRobin { endpoints, next } = &mut *self.0.lock();
        for _ in 0..endpoints.len() {
            let endpoint = endpoints.get(*next).and_then(Weak::upgrade);
            *next = if *next + 1 < endpoints.len() { *next + 1 } else { 0 };
            match endpoint {
                Some(endpoint) if poll(&endpoint) => return true,
                Some(_) => {}
                None => some_dropped = true,
            }
        }
        if some_dropped {
            endpoints.retain(|endpoint| endpoint.strong_count() > 0);
            *next = 0;
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
            self.progress();
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
        let (mut result, mut next) = (Ok(()), None);
        let found = self.any(|endpoint| match endpoint.arm() {
            Ok(Armed::Pending) => true,
            Ok(Armed::Quiet { until }) => {
                next = [next, until].into_iter().flatten().min();
                false
            }
            Err(error) => {
                result = Err(error);
                true
            }
        });
        result.map(|()| if found { Armed::Pending } else { Armed::Quiet { until: next } })
    }

    /// The earliest time at which an endpoint has to be polled even if nothing arrives.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let bound = self.0.lock();
        bound.endpoints.iter().filter_map(Weak::upgrade).filter_map(|e| e.next_timeout()).min()
    }
}

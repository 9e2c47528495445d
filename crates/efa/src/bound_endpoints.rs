//! The endpoints that are bound to a completion queue or counter, and are progressed when it is read.

use std::sync::{Arc, Weak};

use efa_device::Time;
use parking_lot::Mutex;

use crate::endpoint::Shared as Endpoint;

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

    /// The earliest time at which an endpoint has to be polled even if nothing arrives.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let bound = self.0.lock();
        bound.endpoints.iter().filter_map(Weak::upgrade).filter_map(|e| e.next_timeout()).min()
    }
}

//! The endpoints that an object moves on when it is read.

use std::sync::{Arc, Weak};

use efa_device::Time;
use parking_lot::Mutex;

use crate::endpoint::Shared as Endpoint;

/// Takes an endpoint out of those that are bound to an object.
pub(crate) fn forget(bound: &mut Vec<Weak<Endpoint>>, endpoint: &Arc<Endpoint>) {
    bound.retain(|bound| !std::ptr::eq(bound.as_ptr(), Arc::as_ptr(endpoint)));
}

/// Endpoints that are bound to an object. Those that are gone are forgotten.
#[derive(Debug, Default)]
pub(crate) struct Driven(Mutex<Bound>);

#[derive(Debug, Default)]
struct Bound {
    endpoints: Vec<Weak<Endpoint>>,
    /// Whose turn is next.
    next: usize,
}

impl Driven {
    pub(crate) fn bind(&self, endpoint: Weak<Endpoint>) {
        self.0.lock().endpoints.push(endpoint);
    }

    /// Forgets an endpoint. Nobody is moving it on any more when this returns.
    pub(crate) fn unbind(&self, endpoint: &Arc<Endpoint>) {
        let Bound { endpoints, next } = &mut *self.0.lock();
        forget(endpoints, endpoint);
        *next = 0;
    }

    /// Moves the operations of each on.
    pub(crate) fn progress(&self) {
        self.any(|endpoint| {
            endpoint.progress();
            false
        });
    }

    /// Asks one after the other until one says yes; the next time the one after that is the first.
    #[inline(always)]
    pub(crate) fn any(&self, mut ask: impl FnMut(&Endpoint) -> bool) -> bool {
        let mut gone = false;
        let Bound { endpoints, next } = &mut *self.0.lock();
        for _ in 0..endpoints.len() {
            let endpoint = endpoints.get(*next).and_then(Weak::upgrade);
            *next = if *next + 1 < endpoints.len() { *next + 1 } else { 0 };
            match endpoint {
                Some(endpoint) if ask(&endpoint) => return true,
                Some(_) => {}
                None => gone = true,
            }
        }
        if gone {
            endpoints.retain(|endpoint| endpoint.strong_count() > 0);
            *next = 0;
        }
        false
    }

    /// When the first of them should be moved on although nothing was started.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let bound = self.0.lock();
        bound.endpoints.iter().filter_map(Weak::upgrade).filter_map(|e| e.next_timeout()).min()
    }
}

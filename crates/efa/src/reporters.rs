//! Endpoints that report their events.
//!
//! ```text
//!   a call progresses an endpoint ─► event, kept by the engine ─► Signal ─► wakes who sleeps on a wait object
//!   who is awake ─► Signal::take ─► Endpoint::event of each endpoint, until there are no more
//! ```
//!
//! An endpoint whose events nobody waits for has no signal, and its calls don't look at events.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::connection::ControlEvent;
use crate::endpoint::Shared as Endpoint;
use crate::wait::WaitObject;

/// Says that an endpoint has had an event since the last look.
#[derive(Debug)]
pub(crate) struct Signal {
    is_set: AtomicBool,
    wait: Arc<WaitObject>,
}

impl Signal {
    /// One that wakes who sleeps on `wait`.
    pub(crate) fn new(wait: &Arc<WaitObject>) -> Arc<Self> {
        Arc::new(Self { is_set: AtomicBool::new(false), wait: Arc::clone(wait) })
    }

    pub(crate) fn set(&self) {
        if !self.is_set.swap(true, Ordering::AcqRel) {
            self.wait.notify();
        }
    }

    /// Whether it was set. Events are to be looked for after this call, so that none of a later [`set`](Self::set) is
    /// slept over.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        self.is_set.load(Ordering::Acquire) && self.is_set.swap(false, Ordering::AcqRel)
    }
}

/// The endpoints that report to an event queue.
#[derive(Debug)]
pub(crate) struct Reporters {
    signal: Arc<Signal>,
    /// Locked before the drivers.
    endpoints: Mutex<Vec<Weak<Endpoint>>>,
}

impl Reporters {
    pub(crate) fn new(wait: &Arc<WaitObject>) -> Self {
        Self { signal: Signal::new(wait), endpoints: Mutex::default() }
    }

    /// What is set when an endpoint has an event.
    pub(crate) fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }

    /// Takes events of an endpoint from now on. It needs no removal.
    pub(crate) fn add(&self, endpoint: &Arc<Endpoint>) {
        let mut endpoints = self.endpoints.lock();
        endpoints.retain(|endpoint| endpoint.strong_count() > 0);
        endpoints.push(Arc::downgrade(endpoint));
        drop(endpoints);
        self.signal.set();
    }

    /// Appends events while there are fewer entries than `most`. Returns whether some may be left.
    pub(crate) fn report<E>(
        &self,
        entries: &mut VecDeque<Result<ControlEvent, E>>,
        most: usize,
    ) -> bool {
        if !self.signal.take() {
            return false;
        }
        let endpoints = self.endpoints.lock();
        for endpoint in endpoints.iter().filter_map(Weak::upgrade) {
            while entries.len() < most
                && let Some(event) = endpoint.event()
            {
                let (endpoint, context) = (endpoint.id, endpoint.context);
                entries.push_back(Ok(ControlEvent::Endpoint { endpoint, context, event }));
            }
        }
        let is_full = entries.len() >= most;
        if is_full {
            self.signal.is_set.store(true, Ordering::Release);
        }
        is_full
    }
}

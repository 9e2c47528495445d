//! The endpoints that an object moves on when it is read.

use std::sync::Weak;

use efa_device::Time;
use parking_lot::Mutex;

use crate::endpoint::Shared as Endpoint;

/// Endpoints that are bound to an object. Those that are gone are forgotten.
#[derive(Debug, Default)]
pub(crate) struct Driven(Mutex<Vec<Weak<Endpoint>>>);

impl Driven {
    pub(crate) fn bind(&self, endpoint: Weak<Endpoint>) {
        self.0.lock().push(endpoint);
    }

    /// Moves the operations of each on.
    pub(crate) fn progress(&self) {
        let mut gone = false;
        let mut endpoints = self.0.lock();
        for endpoint in endpoints.iter() {
            match endpoint.upgrade() {
                Some(endpoint) => endpoint.progress(),
                None => gone = true,
            }
        }
        if gone {
            endpoints.retain(|endpoint| endpoint.strong_count() > 0);
        }
    }

    /// When the first of them should be moved on although nothing was started.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let endpoints = self.0.lock();
        endpoints.iter().filter_map(Weak::upgrade).filter_map(|e| e.next_timeout()).min()
    }
}

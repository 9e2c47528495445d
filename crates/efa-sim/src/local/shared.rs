//! The network as its devices and queue pairs share it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::network::Network;

/// A shared handle of the network.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<Network>>);

impl Shared {
    pub(super) fn new(network: Network) -> Self {
        Self(Arc::new(Mutex::new(network)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Network> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Network")
    }
}

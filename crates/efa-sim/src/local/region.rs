//! Memory regions of a local fabric.

use std::sync::{Arc, Mutex, PoisonError};

use efa_device::{Access, Region};

use super::network::{HostId, Shared};

/// Registered memory of a [`LocalDevice`](super::LocalDevice).
#[derive(Clone, Debug)]
pub struct LocalRegion(Arc<Registered>);

/// The memory and its entry in the host's table, which goes with it.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) memory: Mutex<Box<[u8]>>,
    pub(super) length: usize,
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) access: Access,
    pub(super) host: HostId,
    pub(super) shared: Shared,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.lock().deregister(self.host, self.key);
    }
}

impl LocalRegion {
    pub(super) fn new(registered: Registered) -> Self {
        Self(Arc::new(registered))
    }
}

impl Region for LocalRegion {
    fn length(&self) -> usize {
        self.0.length
    }

    fn remote_address(&self) -> u64 {
        self.0.address
    }

    fn remote_key(&self) -> u32 {
        self.0.key
    }

    fn access(&self) -> Access {
        self.0.access
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let memory = self.0.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let from = memory.get(offset..).unwrap_or_default();
        let count = from.len().min(into.len());
        into[..count].copy_from_slice(&from[..count]);
        count
    }

    fn write(&self, offset: usize, from: &[u8]) -> usize {
        let mut memory = self.0.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let into = memory.get_mut(offset..).unwrap_or_default();
        let count = into.len().min(from.len());
        into[..count].copy_from_slice(&from[..count]);
        count
    }
}

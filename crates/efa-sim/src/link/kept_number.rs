//! The number of a queue pair that was retired.

use std::any::Any;
use std::fmt::{self, Debug};
use std::sync::Arc;

use efa_device::{DeviceError, Qpn};

/// Reserves the number of a queue pair that was retired on the
/// [shm](crate::shm::ShmQueuePair::retire) or the [tcp link](crate::tcp::TcpQueuePair::retire), until
/// it is dropped. A queue pair of the same device can have it again:
/// [shm](crate::shm::ShmDevice::create_queue_pair_again), [tcp](crate::tcp::TcpDevice::create_queue_pair_again).
#[must_use = "another queue pair may have the number once this is dropped"]
pub struct KeptNumber {
    number: Qpn,
    /// The file or socket that reserves the number.
    by: Arc<dyn Any + Send + Sync>,
}

impl Debug for KeptNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeptNumber").field(&self.number).finish()
    }
}

impl KeptNumber {
    pub(crate) fn new(number: Qpn, by: Arc<impl Send + Sync + 'static>) -> Self {
        Self { number, by }
    }

    /// What reserves the number. Fails with [`DeviceError::Inconsistent`] for a number of another link.
    pub(crate) fn by<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, DeviceError> {
        Arc::clone(&self.by).downcast().map_err(|_| DeviceError::Inconsistent {
            object: format!("the number {} of a queue pair", self.number.0),
            reason: "it is of another link".into(),
        })
    }
}

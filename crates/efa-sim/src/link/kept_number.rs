//! The number of a queue pair that was retired.

use std::fmt::Debug;
use std::sync::Arc;

/// Reserves the number of a queue pair that was retired on the
/// [shm](crate::shm::ShmQueuePair::retire) or the [tcp link](crate::tcp::TcpQueuePair::retire), until
/// it is dropped.
#[derive(Debug)]
#[must_use = "another queue pair may have the number once this is dropped"]
pub struct KeptNumber {
    /// The file or socket that reserves the number.
    _by: Arc<dyn Debug + Send + Sync>,
}

impl KeptNumber {
    pub(crate) fn new(by: Arc<impl Debug + Send + Sync + 'static>) -> Self {
        Self { _by: by }
    }
}

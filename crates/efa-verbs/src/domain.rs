//! The protection domain: what address handles, memory regions and queue pairs belong to.

use std::ptr::NonNull;
use std::sync::Arc;

use efa_device::DeviceError;
use rdma_sys::{ibv_alloc_pd, ibv_dealloc_pd, ibv_pd};

use crate::context::Context;
use crate::failure::{object, stays};

/// A protection domain, freed at the end. All that is made in it holds it.
#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs lets any thread use a protection domain, several at a time too.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(crate) fn new(context: Arc<Context>) -> Result<Self, DeviceError> {
        // SAFETY: the context is open, and stays so as it is held.
        let raw = object(unsafe { ibv_alloc_pd(context.raw()) }, "ibv_alloc_pd", context.name())?;
        Ok(Self { raw, context })
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Name of the interface.
    pub(crate) fn name(&self) -> &str {
        self.context.name()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: it came from `ibv_alloc_pd`, and whoever made something in it held it.
        stays(unsafe { ibv_dealloc_pd(self.raw()) }, "ibv_dealloc_pd", self.name());
    }
}

//! The protection domain, to which address handles, memory regions and queue pairs belong.

use std::ptr::NonNull;
use std::sync::Arc;

use efa_device::DeviceError;

use crate::abi::ibv_pd;
use crate::context::Context;
use crate::failure::{destroy_failed, object};
use crate::library::Libraries;

/// A protection domain, deallocated on drop. Every object made in it holds it.
#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs and libefa have no thread-local state, so any thread may use the domain.
unsafe impl Send for ProtectionDomain {}
// SAFETY: the calls that take a domain (ibv_reg_mr, ibv_create_ah, efadv_create_qp_ex) are
// thread-safe in libibverbs.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(crate) fn new(context: Arc<Context>) -> Result<Self, DeviceError> {
        // SAFETY: `context.raw()` is open as long as `context` is held.
        let raw = unsafe { (context.libraries().ibverbs.ibv_alloc_pd)(context.raw()) };
        let raw = object(raw, "ibv_alloc_pd", context.name())?;
        Ok(Self { raw, context })
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn libraries(&self) -> &'static Libraries {
        self.context.libraries()
    }

    /// Name of the interface.
    pub(crate) fn name(&self) -> &str {
        self.context.name()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        // SAFETY: `raw` is of `ibv_alloc_pd` and deallocated here alone. Regions, handles and queue
        // pairs hold the domain, so none is left in it.
        let code = unsafe { (self.libraries().ibverbs.ibv_dealloc_pd)(self.raw()) };
        destroy_failed(code, "ibv_dealloc_pd", self.name());
    }
}

//! The completion channel of a queue pair that a thread can sleep on.
//!
//! ```text
//!   arm: take the events that are there, request the next, poll once more ─► sleep on the descriptor
//! ```
//!
//! The library counts the events that were taken and not acknowledged; an acknowledgement takes a lock, so
//! they are acknowledged several at a time.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use efa_device::DeviceError;

use crate::abi::*;
use crate::context::Context;
use crate::failure::{check, destroy_failed, last_error};

/// Events that are acknowledged together.
const ACKNOWLEDGED_AT_ONCE: c_uint = 64;

/// The error of an interface without notification.
pub(crate) const UNSUPPORTED: DeviceError = DeviceError::Unsupported { operation: "waiting" };

/// A completion channel with a non-blocking descriptor, destroyed on drop, after its completion queue.
#[derive(Debug)]
pub(crate) struct Channel {
    raw: NonNull<ibv_comp_channel>,
    /// Events that were taken and not acknowledged.
    taken: c_uint,
    context: Arc<Context>,
}

// SAFETY: libibverbs has no thread-local state, so any thread may use the channel.
unsafe impl Send for Channel {}
// SAFETY: what takes `&self` reads the descriptor alone, which never changes.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let create = context.libraries().ibverbs.ibv_create_comp_channel;
        // SAFETY: the context is open.
        let raw = unsafe { create(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| error("ibv_create_comp_channel", context))?;
        let this = Self { raw, taken: 0, context: Arc::clone(context) };
        let fd = this.number();
        // SAFETY: the descriptor is open as long as the channel.
        let refused = unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFL);
            flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0
        };
        if refused { Err(last_error("fcntl", context.name())) } else { Ok(this) }
    }

    pub(crate) fn raw(&self) -> *mut ibv_comp_channel {
        self.raw.as_ptr()
    }

    fn number(&self) -> c_int {
        // SAFETY: the channel exists until `self` is dropped, and the library never changes `fd`.
        unsafe { (*self.raw()).fd }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open until `self` is dropped.
        unsafe { BorrowedFd::borrow_raw(self.number()) }
    }

    /// Takes the events that are there, and requests one for the next completion of the channel's only queue.
    ///
    /// # Safety
    /// `cq` must be the completion queue that was created with this channel, and not be destroyed.
    pub(crate) unsafe fn request(&mut self, cq: *mut ibv_cq) -> Result<(), DeviceError> {
        let (mut of, mut context): (*mut ibv_cq, *mut c_void) = (null_mut(), null_mut());
        let get = self.context.libraries().ibverbs.ibv_get_cq_event;
        // SAFETY: the channel exists, and both pointers may be written.
        while unsafe { get(self.raw(), &mut of, &mut context) } == 0 {
            self.taken += 1;
        }
        if self.taken >= ACKNOWLEDGED_AT_ONCE {
            // SAFETY: as the caller promises.
            unsafe { self.acknowledge(cq) };
        }
        // SAFETY: the context is open, and nobody writes its functions after `ibv_open_device`.
        let request = unsafe { (*self.context.raw()).ops.req_notify_cq }.ok_or(UNSUPPORTED)?;
        // SAFETY: the completion queue exists, as the caller promises.
        check(unsafe { request(cq, 0) }, "ibv_req_notify_cq", self.context.name())
    }

    /// Acknowledges the events that were taken. Otherwise destroying the completion queue would wait for it.
    ///
    /// # Safety
    /// As for [`request`](Self::request).
    pub(crate) unsafe fn acknowledge(&mut self, cq: *mut ibv_cq) {
        let events = std::mem::take(&mut self.taken);
        if events > 0 {
            // SAFETY: the completion queue exists, as the caller promises, and its events were taken.
            unsafe { (self.context.libraries().ibverbs.ibv_ack_cq_events)(cq, events) };
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        let destroy = self.context.libraries().ibverbs.ibv_destroy_comp_channel;
        // SAFETY: `raw` is of `ibv_create_comp_channel` and destroyed here alone.
        let code = unsafe { destroy(self.raw()) };
        destroy_failed(code, "ibv_destroy_comp_channel", self.context.name());
    }
}

/// The last error of a call that creates a channel, or a completion queue with one.
pub(crate) fn error(call: &str, context: &Context) -> DeviceError {
    match last_error(call, context.name()) {
        DeviceError::System { errno: libc::EOPNOTSUPP | libc::ENOSYS, .. } => UNSUPPORTED,
        other => other,
    }
}

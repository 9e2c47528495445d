//! Completion channels and their events.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::completion_queue::queue_of;
use super::context::device_of;
use crate::abi::*;
use crate::boundary::{BUSY, INVALID, Outcome, code, number, pointer, value};
use crate::channel::{Channel, Notifier};
use crate::process::{HandleType, process};

/// The object that an `ibv_comp_channel` is a member of.
#[repr(C)]
struct ChannelObject {
    /// First, so that the handle is a pointer to the object.
    raw: ibv_comp_channel,
    channel: Arc<Channel>,
}

/// What a completion queue holds of its channel. The program can't destroy the channel meanwhile.
pub(super) struct ChannelRef(*mut ChannelObject);

impl ChannelRef {
    /// Of a channel that was created from `context`; `None` for null. Fails with `EINVAL` for any other
    /// pointer.
    pub(super) fn of(
        channel: *mut ibv_comp_channel,
        context: *mut ibv_context,
    ) -> Outcome<Option<Self>> {
        if channel.is_null() {
            return Ok(None);
        }
        let object = object_of(channel)?;
        process().check_context_of(channel, context)?;
        // SAFETY: `object_of` has found the handle, so the object exists, and no thread destroys it while
        // this one uses it ("Handles").
        unsafe { &(*object).raw.refcnt }.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Self(object)))
    }

    pub(super) fn channel(&self) -> Arc<Channel> {
        // SAFETY: the object isn't destroyed while its count is not 0.
        Arc::clone(unsafe { &(*self.0).channel })
    }
}

impl Drop for ChannelRef {
    fn drop(&mut self) {
        // SAFETY: the object isn't destroyed while its count is not 0.
        unsafe { &(*self.0).raw.refcnt }.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The object of a handle; fails with `EINVAL` for any other pointer.
fn object_of(channel: *mut ibv_comp_channel) -> Outcome<*mut ChannelObject> {
    process().check_handle(channel, HandleType::Channel)?;
    Ok(channel.cast())
}

/// The channel of a handle; fails with `EINVAL` for any other pointer.
fn channel_of(channel: *mut ibv_comp_channel) -> Outcome<Arc<Channel>> {
    let object = object_of(channel)?;
    // SAFETY: the handle is entered, so the object exists, and no thread destroys it while this one uses
    // it ("Handles").
    Ok(Arc::clone(unsafe { &(*object).channel }))
}

/// See `ibv_create_comp_channel(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(|| {
        device_of(context)?;
        process().progress.provide_sleepers()?;
        let channel = Arc::new(Channel::new()?);
        let fd = channel.descriptor().as_raw_fd();
        let raw = ibv_comp_channel { context, fd, refcnt: AtomicI32::new(0) };
        let handle = Box::into_raw(Box::new(ChannelObject { raw, channel })).cast();
        process().add_handle(handle, HandleType::Channel, context);
        Ok(handle)
    })
}

/// See `ibv_destroy_comp_channel(3)`; fails with `EBUSY` while a completion queue has the channel.
#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    code(|| destroy(channel))
}

/// As [`ibv_destroy_comp_channel`].
pub(super) fn destroy(channel: *mut ibv_comp_channel) -> Outcome<()> {
    let object = object_of(channel)?;
    // SAFETY: `object_of` has found the handle, so the object exists.
    if unsafe { &(*object).raw.refcnt }.load(Ordering::Relaxed) != 0 {
        return Err(BUSY);
    }
    process().remove_handle(channel, HandleType::Channel)?;
    // SAFETY: the object comes from the box in `ibv_create_comp_channel`. Its handle was removed just now,
    // which succeeds once, so it is freed once and not found any more.
    drop(unsafe { Box::from_raw(object) });
    Ok(())
}

unsafe extern "C-unwind" {
    /// `poll(2)`. Declared here because cancelling a thread that waits in it unwinds its callers.
    fn poll(files: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
}

/// What a try to take an event has found.
enum Taken {
    Event,
    /// Nothing, and the program wants to wait on this descriptor.
    Wait(c_int),
}

/// See `ibv_get_cq_event(3)`: waits for an event, unless the program has set `O_NONBLOCK`.
///
/// # Safety
/// `cq` and `cq_context` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    loop {
        let mut taken = Taken::Event;
        let result = number(|| {
            if cq.is_null() || cq_context.is_null() {
                return Err(INVALID);
            }
            let channel = channel_of(channel)?;
            let Some(notifier) = channel.take() else {
                channel.check_blocking()?;
                taken = Taken::Wait(channel.descriptor().as_raw_fd());
                return Ok(0);
            };
            let handle = handle_of(&notifier);
            // SAFETY: `cq` and `cq_context` are not null, so valid for writing, as required above. The
            // completion queue isn't destroyed before the program acknowledges the event.
            unsafe {
                cq.write(handle);
                cq_context.write((*handle).cq_context);
            }
            Ok(0)
        });
        if result < 0 {
            return result;
        }
        let Taken::Wait(fd) = taken else { return 0 };
        let mut file = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // Outside of the guarded part, as it may last for ever: a signal handler can call the library.
        // SAFETY: `file` is writable. If the thread is cancelled here, the stack unwinds through this
        // frame, which has nothing to drop.
        if unsafe { poll(&raw mut file, 1, -1) } < 0 {
            return -1;
        }
    }
}

fn handle_of(notifier: &Notifier) -> *mut ibv_cq {
    std::ptr::with_exposed_provenance_mut(notifier.handle())
}

/// See `ibv_ack_cq_events(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    value((), || {
        if let Ok(queue) = queue_of(cq)
            && let Some(notifier) = queue.notifier()
        {
            notifier.acknowledge(events);
        }
    });
}

//! The device list, contexts and asynchronous events.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;

use rustix::event::EventfdFlags;

use super::completion_queue::{self, create_cq_ex};
use super::queue_pair::{self, create_qp_ex};
use super::{channel, counter, domain, post, query, region};
use crate::abi::*;
use crate::attributes::guid;
use crate::boundary::{BUSY, Errno, Outcome, code, number, pointer, value};
use crate::device::{Device, DeviceEntry, DeviceList};
use crate::process::{HandleType, process};

/// The object that an `ibv_context` is a member of.
#[repr(C)]
pub(super) struct ContextObject {
    verbs: verbs_context,
    device: Arc<Device>,
    /// An eventfd that is never written: there are no asynchronous events, as the driver of EFA interfaces
    /// dispatches none.
    events: OwnedFd,
}

impl ContextObject {
    fn open(entry: &'static DeviceEntry) -> Outcome<*mut ibv_context> {
        let device = entry.open()?;
        let events = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let mut verbs: verbs_context = zeroed();
        verbs.sz = size_of::<verbs_context>();
        verbs.query_port = Some(query::query_port_sized);
        verbs.create_cq_ex = Some(create_cq_ex);
        verbs.query_device_ex = Some(query::query_device_ex);
        verbs.create_qp_ex = Some(create_qp_ex);
        let context = &mut verbs.context;
        context.device = entry.as_ptr();
        context.ops.poll_cq = Some(completion_queue::poll_cq);
        context.ops.req_notify_cq = Some(completion_queue::req_notify_cq);
        context.ops.post_send = Some(post::post_send);
        context.ops.post_recv = Some(post::post_recv);
        context.cmd_fd = -1;
        context.async_fd = events.as_raw_fd();
        context.num_comp_vectors = completion_queue::vectors(&device);
        context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        // Marks the context as a member of a `verbs_context`.
        context.abi_compat = usize::MAX as *mut c_void;
        let this = Box::into_raw(Box::new(Self { verbs, device, events }));
        // SAFETY: `this` points to the object that was just boxed.
        let context = unsafe { &raw mut (*this).verbs.context };
        process().add_handle(context, HandleType::Context, null_mut());
        Ok(context)
    }

    /// The object that `context` is a member of.
    fn containing(context: *mut ibv_context) -> *mut Self {
        context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
    }
}

/// The device of a context; fails with `EINVAL` for any other pointer.
pub(super) fn device_of(context: *mut ibv_context) -> Outcome<Arc<Device>> {
    process().check_handle(context, HandleType::Context)?;
    // SAFETY: the handle is entered, so the object exists, and no thread closes the context while
    // this one uses it ("Handles").
    Ok(Arc::clone(unsafe { &(*ContextObject::containing(context)).device }))
}

// ---- devices ------------------------------------------------------------------------------------

/// See `ibv_get_device_list(3)`: an array of the devices with a null at its end.
///
/// # Safety
/// `count` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        let devices = DeviceList::get();
        // SAFETY: `calloc` has no preconditions.
        let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) };
        let list: *mut *mut ibv_device = list.cast();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        for (index, device) in devices.iter().enumerate() {
            // SAFETY: the array has one element more than there are devices.
            unsafe { list.add(index).write(device.as_ptr()) };
        }
        if !count.is_null() {
            // SAFETY: `count` is not null, so `ibv_get_device_list` may write it.
            unsafe { count.write(c_int::try_from(devices.len()).unwrap_or(c_int::MAX)) };
        }
        Ok(list)
    })
}

/// See `ibv_free_device_list(3)`.
///
/// # Safety
/// `list` must be null or come from [`ibv_get_device_list`], and not be used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: `list` is null or was allocated by `calloc` in `ibv_get_device_list`, and the program
    // frees it once.
    unsafe { libc::free(list.cast()) };
}

/// See `ibv_get_device_name(3)`; null for a pointer that isn't a device.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    pointer(|| Ok(DeviceEntry::find(device)?.name().cast_mut()))
}

/// See `ibv_get_device_index(3)`; -1, as without an index of the kernel, which knows nothing of the device. A program would
/// ask the kernel for the device with an index by netlink, and be told of another or refused.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    number(|| DeviceEntry::find(device).map(|_| -1))
}

/// See `ibv_get_device_guid(3)`; 0 if the device can't be opened.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    value(0, || {
        let device = DeviceEntry::find(device).and_then(DeviceEntry::open);
        device.map_or(0, |device| guid(&device))
    })
}

/// See `ibv_open_device(3)`.
#[unsafe(no_mangle)]
pub(super) extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(|| ContextObject::open(DeviceEntry::find(device)?))
}

/// See `ibv_close_device(3)`. Objects that the program has left (perftest leaves a completion queue) are
/// destroyed, those that use others first; with a real device the kernel destroys them. If another thread
/// doesn't release the lock of one, that one and the context are left until the process ends, with `EBUSY`.
#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    code(|| {
        process().remove_handle(context, HandleType::Context)?;
        destroy_all(context, HandleType::QueuePair, queue_pair::destroy)?;
        destroy_all(context, HandleType::Counter, counter::destroy)?;
        destroy_all(context, HandleType::AddressHandle, domain::destroy_address_handle)?;
        destroy_all(context, HandleType::Region, region::deregister)?;
        destroy_all(context, HandleType::CompletionQueue, completion_queue::destroy)?;
        destroy_all(context, HandleType::Channel, channel::destroy)?;
        destroy_all(context, HandleType::Domain, domain::deallocate)?;
        // SAFETY: the object comes from the box in `ContextObject::open`. Its handle was removed just
        // now, which succeeds once, so it is freed once and not found any more.
        drop(unsafe { Box::from_raw(ContextObject::containing(context)) });
        Ok(())
    })
}

/// Destroys the objects of a type that were created from a context. Fails with `EBUSY` if one is left.
fn destroy_all<T>(
    context: *mut ibv_context,
    of_type: HandleType,
    destroy: fn(*mut T) -> Outcome<()>,
) -> Outcome<()> {
    let mut result = Ok(());
    for handle in process().handles_of(context, of_type)? {
        // Any other failure means that another thread has destroyed it meanwhile.
        if destroy(handle) == Err(BUSY) {
            result = Err(BUSY);
        }
    }
    result
}

// ---- events -------------------------------------------------------------------------------------

unsafe extern "C-unwind" {
    /// `read(2)`. Declared here because cancelling a thread that waits in it unwinds its callers.
    fn read(file: c_int, into: *mut c_void, length: usize) -> isize;
}

/// See `ibv_get_async_event(3)`. This device has no events: the thread waits until it is cancelled or
/// gets a signal, unless the program has set `O_NONBLOCK`.
#[unsafe(no_mangle)]
extern "C-unwind" fn ibv_get_async_event(context: *mut ibv_context, _event: *mut c_void) -> c_int {
    let events = number(|| {
        process().check_handle(context, HandleType::Context)?;
        // SAFETY: the handle is entered, so the object exists, and no thread closes the context while
        // this one uses it ("Handles").
        Ok(unsafe { &(*ContextObject::containing(context)).events }.as_raw_fd())
    });
    if events >= 0 {
        let mut count = 0_u64;
        // SAFETY: `count` is writable for its length. If the thread is cancelled here, the stack
        // unwinds through this frame, which has nothing to drop.
        unsafe { read(events, (&raw mut count).cast(), size_of::<u64>()) };
    }
    -1
}

// ---- forks --------------------------------------------------------------------------------------

/// See `ibv_fork_init(3)`. There is nothing to prepare, as no memory is pinned.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// See `ibv_is_fork_initialized(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    IBV_FORK_UNNEEDED
}

//! Device list, contexts, and what can be asked about a device, its port and its addresses.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;

use rustix::event::EventfdFlags;

use crate::abi::*;
use crate::boundary::{Errno, INVALID, Outcome, code, negative, number, pointer, value};
use crate::completion_queue::{self, create_cq_ex, ibv_destroy_cq};
use crate::device::{
    Device, DeviceEntry, DeviceList, MAX_INLINE, MAX_RECEIVE_SGE, MAX_SEND_SGE, VENDOR_ID,
};
use crate::domain::{ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_ah};
use crate::process::{Kind, process};
use crate::queue_pair::{self, ibv_destroy_qp};
use crate::work;

const MAX_COMPLETION_QUEUES: c_int = 1024;
/// Most local entries of an RDMA operation.
const MAX_REMOTE_SGE: u32 = 1;
/// Most entries of a completion queue.
pub(crate) const MAX_COMPLETIONS: u32 = 1 << 16;
const MAX_DOMAINS: c_int = 1024;
/// Width and speed of a port, as InfiniBand counts them: 8 would be twelve lanes.
const FOUR_LANES: u8 = 2;
const EDR: u8 = 32;
/// The one partition: default, full member.
const PARTITION: u16 = 0xffff;

/// What an `ibv_context` is part of.
#[repr(C)]
pub(crate) struct Context {
    verbs: verbs_context,
    device: Arc<Device>,
    /// Becomes readable with an event, of which there are none.
    events: OwnedFd,
}

impl Context {
    fn open(entry: &'static DeviceEntry) -> Outcome<*mut ibv_context> {
        let device = entry.open()?;
        let events = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        // SAFETY: a structure of C for which all zero is valid: pointers and options are null.
        let mut verbs: verbs_context = unsafe { zeroed() };
        verbs.sz = size_of::<verbs_context>();
        verbs.query_port = Some(query_port_sized);
        verbs.create_cq_ex = Some(create_cq_ex);
        verbs.query_device_ex = Some(query_device_ex);
        verbs.create_qp_ex = Some(queue_pair::create_qp_ex);
        let context = &mut verbs.context;
        context.device = entry.as_ptr();
        context.ops.poll_cq = Some(completion_queue::poll_cq);
        context.ops.req_notify_cq = Some(completion_queue::req_notify_cq);
        context.ops.post_send = Some(work::post_send);
        context.ops.post_recv = Some(work::post_recv);
        context.cmd_fd = -1;
        context.async_fd = events.as_raw_fd();
        context.num_comp_vectors = 1;
        context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        // Says that this is the extended form.
        context.abi_compat = usize::MAX as *mut c_void;
        let this = Box::into_raw(Box::new(Self { verbs, device, events }));
        // SAFETY: `this` points to a live object.
        let context = unsafe { &raw mut (*this).verbs.context };
        process().enter(context, Kind::Context, null_mut());
        Ok(context)
    }

    /// The object whose part `context` is.
    fn object(context: *mut ibv_context) -> *mut Self {
        context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
    }

    /// The device of a context.
    pub(crate) fn device(context: *mut ibv_context) -> Outcome<Arc<Device>> {
        process().check(context, Kind::Context)?;
        // SAFETY: the handle is one of ours and was not closed, so the object is alive, unless the
        // program closes it in another thread at this moment, which C forbids.
        Ok(Arc::clone(unsafe { &(*Self::object(context)).device }))
    }
}

/// Refuses a port other than the one.
pub(crate) fn check_port(port: u32) -> Outcome<()> {
    if port == 1 { Ok(()) } else { Err(INVALID) }
}

/// Refuses null.
pub(crate) fn not_null<T>(pointer: *mut T) -> Outcome<*mut T> {
    if pointer.is_null() { Err(INVALID) } else { Ok(pointer) }
}

/// Writes as much of `from` as a caller has room for, and zero beyond.
///
/// # Safety
/// `into` must be valid for writing `room` bytes, and `T` must have no padding that matters.
pub(crate) unsafe fn fill<T>(into: *mut T, from: &T, room: usize) {
    let known = room.min(size_of::<T>());
    let into = into.cast::<u8>();
    // SAFETY: the caller's promise; `known` is within both.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const *from).cast::<u8>(), into, known);
        std::ptr::write_bytes(into.add(known), 0, room - known);
    }
}

/// Reads a structure that has grown over time: what the caller doesn't know is zero.
///
/// # Errors
/// `EINVAL` for null, for one shorter than `least`, and if something is set that isn't known here.
///
/// # Safety
/// `from` must be null or valid for `length` bytes, and `T` consist of numbers.
pub(crate) unsafe fn take<T: Default>(from: *mut T, length: u32, least: usize) -> Outcome<T> {
    let from = not_null(from)?.cast::<u8>();
    let length = length as usize;
    let known = length.min(size_of::<T>());
    let mut taken = T::default();
    // SAFETY: the caller's promise; `known` is within both.
    let rest = unsafe {
        std::ptr::copy_nonoverlapping(from, (&raw mut taken).cast(), known);
        std::slice::from_raw_parts(from.add(known), length - known)
    };
    if length < least || rest.iter().any(|&byte| byte != 0) { Err(INVALID) } else { Ok(taken) }
}

/// The part of a GID that names the interface, as it stands in memory.
fn guid(device: &Device) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&device.gid().0[8..]);
    u64::from_ne_bytes(bytes)
}

fn device_attributes(device: &Device) -> ibv_device_attr {
    // SAFETY: a structure of numbers, for which all zero is valid.
    let mut attributes: ibv_device_attr = unsafe { zeroed() };
    let limits = device.link.attributes();
    let number = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
    for (to, from) in attributes.fw_ver.iter_mut().zip(*b"soft") {
        *to = c_char::from_ne_bytes([from]);
    }
    attributes.node_guid = guid(device);
    attributes.sys_image_guid = guid(device);
    attributes.max_mr_size = limits.max_region_size;
    attributes.page_size_cap = 4096;
    attributes.vendor_id = VENDOR_ID;
    attributes.vendor_part_id = limits.vendor_part_id;
    attributes.max_qp = number(device.link.max_queue_pairs());
    attributes.max_qp_wr = number(limits.max_send.min(limits.max_receive));
    attributes.max_sge = number(MAX_SEND_SGE.min(MAX_RECEIVE_SGE));
    attributes.max_sge_rd = MAX_REMOTE_SGE.cast_signed();
    attributes.max_cq = MAX_COMPLETION_QUEUES;
    attributes.max_cqe = number(MAX_COMPLETIONS as usize);
    // One is the device's own.
    attributes.max_mr = number(limits.max_regions - 1);
    attributes.max_pd = MAX_DOMAINS;
    attributes.max_ah = number(limits.max_address_handles);
    attributes.max_pkeys = 1;
    attributes.phys_port_cnt = 1;
    attributes
}

fn port_attributes(device: &Device) -> ibv_port_attr {
    // SAFETY: a structure of numbers, for which all zero is valid.
    let mut attributes: ibv_port_attr = unsafe { zeroed() };
    attributes.state = IBV_PORT_ACTIVE;
    attributes.max_mtu = IBV_MTU_4096;
    attributes.active_mtu = IBV_MTU_4096;
    attributes.gid_tbl_len = 1;
    attributes.max_msg_sz = u32::try_from(device.settings.mtu).unwrap_or(u32::MAX);
    attributes.pkey_tbl_len = 1;
    // As the real one: four lanes, 25 Gbit/s each.
    attributes.active_width = FOUR_LANES;
    attributes.active_speed = EDR;
    attributes.phys_state = 5;
    attributes.link_layer = IBV_LINK_LAYER_UNSPECIFIED;
    attributes
}

fn query_port(context: *mut ibv_context, port: u8, into: *mut ibv_port_attr, room: usize) -> c_int {
    code(|| {
        let device = Context::device(context)?;
        check_port(port.into())?;
        let into = not_null(into)?;
        // SAFETY: the caller has this much room there, by the contract of the C function.
        unsafe { fill(into, &port_attributes(&device), room) };
        Ok(())
    })
}

extern "C" fn query_port_sized(
    context: *mut ibv_context,
    port: u8,
    into: *mut ibv_port_attr,
    room: usize,
) -> c_int {
    query_port(context, port, into, room)
}

extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _input: *const c_void,
    into: *mut ibv_device_attr_ex,
    room: usize,
) -> c_int {
    code(|| {
        let device = Context::device(context)?;
        let into = not_null(into)?;
        if room < size_of::<ibv_device_attr>() {
            return Err(INVALID);
        }
        let orig_attr = device_attributes(&device);
        let attributes = ibv_device_attr_ex {
            orig_attr,
            comp_mask: 0,
            _rest: [0; 19],
            _xrc: 0,
            phys_port_cnt_ex: 1,
        };
        // SAFETY: the caller has this much room there, by the contract of the C function.
        unsafe { fill(into, &attributes, room) };
        Ok(())
    })
}

// ---- devices ------------------------------------------------------------------------------------

/// An array of the devices, null at its end. See `ibv_get_device_list(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        let devices = DeviceList::get();
        // SAFETY: calloc has no preconditions.
        let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) };
        let list: *mut *mut ibv_device = list.cast();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        for (index, device) in devices.iter().enumerate() {
            // SAFETY: there is room for one more than there are devices.
            unsafe { list.add(index).write(device.as_ptr()) };
        }
        if !count.is_null() {
            // SAFETY: not null, so it is a number of the caller's.
            unsafe { count.write(c_int::try_from(devices.len()).unwrap_or(c_int::MAX)) };
        }
        Ok(list)
    })
}

/// Frees the array.
///
/// # Safety
/// It must come from [`ibv_get_device_list`].
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: from calloc, by the caller's promise, or null.
    unsafe { libc::free(list.cast()) };
}

/// The name, or null for a device that isn't one.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    pointer(|| Ok(DeviceEntry::find(device)?.name().cast_mut()))
}

/// The number of the device.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    number(|| c_int::try_from(DeviceEntry::find(device)?.index()).map_err(|_| INVALID))
}

/// The GUID in network byte order; 0 if the device can't be opened.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    value(0, || {
        let device = DeviceEntry::find(device).and_then(DeviceEntry::open);
        device.map_or(0, |device| guid(&device))
    })
}

/// See `ibv_open_device(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(|| Context::open(DeviceEntry::find(device)?))
}

/// See `ibv_close_device(3)`. Programs leave things behind (perftest a completion queue), and the kernel
/// takes them away with the file; so they end here, users before what they use.
#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    code(|| {
        process().leave(context, Kind::Context)?;
        end_all(context, Kind::QueuePair, ibv_destroy_qp);
        end_all(context, Kind::AddressHandle, ibv_destroy_ah);
        end_all(context, Kind::Region, ibv_dereg_mr);
        end_all(context, Kind::CompletionQueue, ibv_destroy_cq);
        end_all(context, Kind::Domain, ibv_dealloc_pd);
        // SAFETY: it came from `Context::open` and nobody else can take it any more.
        drop(unsafe { Box::from_raw(Context::object(context)) });
        Ok(())
    })
}

/// Ends what there is of a kind, of a context that is being closed.
fn end_all<T>(context: *mut ibv_context, kind: Kind, end: extern "C" fn(*mut T) -> c_int) {
    for handle in process().made_of(context, kind) {
        // It can only fail where another thread was first.
        end(handle);
    }
}

unsafe extern "C-unwind" {
    /// As C has it: to cancel a thread that waits in it is to unwind its callers.
    fn read(file: c_int, into: *mut c_void, room: usize) -> isize;
}

/// See `ibv_get_async_event(3)`. Nothing happens that an event tells of: the thread waits until it is
/// cancelled or gets a signal, unless the program has set `O_NONBLOCK`.
#[unsafe(no_mangle)]
extern "C-unwind" fn ibv_get_async_event(context: *mut ibv_context, _event: *mut c_void) -> c_int {
    let events = number(|| {
        process().check(context, Kind::Context)?;
        // SAFETY: the handle is one of ours.
        Ok(unsafe { &(*Context::object(context)).events }.as_raw_fd())
    });
    if events >= 0 {
        let mut count = 0_u64;
        // SAFETY: there is room for a number. Nothing in this function is to be dropped when the
        // thread is cancelled.
        unsafe { read(events, (&raw mut count).cast(), size_of::<u64>()) };
    }
    -1
}

// ---- questions ----------------------------------------------------------------------------------

/// See `ibv_query_device(3)`.
///
/// # Safety
/// `into` must be null or have room for the structure.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    into: *mut ibv_device_attr,
) -> c_int {
    code(|| {
        let device = Context::device(context)?;
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { not_null(into)?.write(device_attributes(&device)) };
        Ok(())
    })
}

/// See `ibv_query_port(3)`: as old programs know it, with the shorter structure.
///
/// # Safety
/// `into` must be null or have room for the structure.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    into: *mut ibv_port_attr,
) -> c_int {
    query_port(context, port, into, COMPAT_PORT_ATTR)
}

/// See `ibv_query_gid(3)`.
///
/// # Safety
/// `into` must be null or have room for a GID.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    into: *mut ibv_gid,
) -> c_int {
    number(|| {
        let device = Context::device(context)?;
        check_port(port.into())?;
        if index != 0 {
            return Err(INVALID);
        }
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { not_null(into)?.write(ibv_gid { raw: device.gid().0 }) };
        Ok(0)
    })
}

/// See `ibv_query_gid_ex(3)`.
///
/// # Safety
/// `into` must be null or have room for `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    into: *mut ibv_gid_entry,
    flags: u32,
    room: usize,
) -> c_int {
    code(|| {
        let device = Context::device(context)?;
        check_port(port)?;
        if index != 0 || flags != 0 {
            return Err(INVALID);
        }
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { fill(not_null(into)?, &gid_entry(&device), room) };
        Ok(())
    })
}

fn gid_entry(device: &Device) -> ibv_gid_entry {
    let gid = ibv_gid { raw: device.gid().0 };
    ibv_gid_entry { gid, gid_index: 0, port_num: 1, gid_type: 0, ndev_ifindex: 0 }
}

/// See `ibv_query_gid_table(3)`.
///
/// # Safety
/// `into` must be null or have room for `count` entries of `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    into: *mut ibv_gid_entry,
    count: usize,
    flags: u32,
    room: usize,
) -> isize {
    // This one gives a negative error number.
    let filled = code(|| {
        let device = Context::device(context)?;
        if count == 0 || flags != 0 {
            return Err(INVALID);
        }
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { fill(not_null(into)?, &gid_entry(&device), room) };
        Ok(())
    });
    if filled == 0 { 1 } else { -(filled as isize) }
}

/// See `ibv_query_pkey(3)`.
///
/// # Safety
/// `into` must be null or have room for a key.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    into: *mut u16,
) -> c_int {
    number(|| {
        Context::device(context)?;
        check_port(port.into())?;
        if index != 0 {
            return Err(INVALID);
        }
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { not_null(into)?.write(PARTITION) };
        Ok(0)
    })
}

/// The index of a partition key.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    number(|| {
        Context::device(context)?;
        check_port(port.into())?;
        if pkey == PARTITION { Ok(0) } else { Err(INVALID) }
    })
}

/// See `efadv_query_device(3)`.
///
/// # Safety
/// `into` must be null or have room for `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_device(
    context: *mut ibv_context,
    into: *mut efadv_device_attr,
    room: u32,
) -> c_int {
    code(|| {
        let device = Context::device(context)?;
        let into = not_null(into)?;
        let limits = device.link.attributes();
        let short = |value: usize| u16::try_from(value).unwrap_or(u16::MAX);
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let mut capabilities =
            EFADV_DEVICE_ATTR_CAPS_RNR_RETRY | EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID;
        let rdma = device.rdma();
        if rdma.read {
            capabilities |= EFADV_DEVICE_ATTR_CAPS_RDMA_READ;
        }
        if rdma.write {
            capabilities |= EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE;
        }
        if rdma.unsolicited_write_receive {
            capabilities |= EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV;
        }
        let longest = if rdma.read || rdma.write { limits.max_rdma_size } else { 0 };
        let attributes = efadv_device_attr {
            comp_mask: 0,
            max_sq_wr: number(limits.max_send),
            max_rq_wr: number(limits.max_receive),
            max_sq_sge: short(MAX_SEND_SGE),
            max_rq_sge: short(MAX_RECEIVE_SGE),
            inline_buf_size: short(MAX_INLINE),
            // By newer releases, what there is of it with shorter queues: no more here.
            reserved: short(MAX_INLINE).to_ne_bytes(),
            device_caps: capabilities,
            max_rdma_size: u32::try_from(longest).unwrap_or(u32::MAX),
        };
        if (room as usize) < offset_of!(efadv_device_attr, device_caps) {
            return Err(INVALID);
        }
        // SAFETY: the caller has this much room there.
        unsafe { fill(into, &attributes, room as usize) };
        Ok(())
    })
}

/// See `efadv_get_max_sq_depth(3)`: the same whatever is asked for, if that is possible at all.
///
/// # Safety
/// `asked` must be null or valid for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_get_max_sq_depth(
    context: *mut ibv_context,
    asked: *mut efadv_sq_depth_attr,
    length: u32,
) -> c_int {
    negative(|| {
        // SAFETY: the caller's promise.
        let asked = unsafe { take(asked, length, size_of::<efadv_sq_depth_attr>())? };
        let possible = asked.comp_mask == 0
            && asked.max_send_sge as usize <= MAX_SEND_SGE
            && asked.max_rdma_sge <= MAX_REMOTE_SGE
            && asked.max_inline_data as usize <= MAX_INLINE;
        let device = Context::device(context)?;
        if possible { Ok(device.link.attributes().max_send) } else { Err(INVALID) }
    })
}

/// See `efadv_get_max_rq_depth(3)`.
///
/// # Safety
/// `asked` must be null or valid for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_get_max_rq_depth(
    context: *mut ibv_context,
    asked: *mut efadv_rq_depth_attr,
    length: u32,
) -> c_int {
    negative(|| {
        // SAFETY: the caller's promise.
        let asked = unsafe { take(asked, length, offset_of!(efadv_rq_depth_attr, _end))? };
        let possible = asked.comp_mask == 0 && asked.max_recv_sge as usize <= MAX_RECEIVE_SGE;
        let device = Context::device(context)?;
        if possible { Ok(device.link.attributes().max_receive) } else { Err(INVALID) }
    })
}

// ---- forks --------------------------------------------------------------------------------------

/// Nothing needs preparation: no memory is pinned.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// See `ibv_is_fork_initialized(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    IBV_FORK_UNNEEDED
}

/// A host of this test run, removed at the end.
#[cfg(test)]
pub(crate) struct TestHost(std::path::PathBuf);

#[cfg(test)]
impl TestHost {
    pub(crate) fn new() -> Self {
        let name = format!("efa-softverbs-unit-{:016x}", fastrand::u64(..));
        let place = std::env::temp_dir().join(name);
        // SAFETY: the one test that comes here does so once, and the others read the environment by
        // the standard library alone, which locks it.
        unsafe { std::env::set_var("EFA_SOFT_DIRECTORY", &place) };
        Self(place)
    }

    /// The first device, opened.
    pub(crate) fn open(&self) -> *mut ibv_context {
        pointer(|| Context::open(DeviceList::get()[0]))
    }
}

#[cfg(test)]
impl Drop for TestHost {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

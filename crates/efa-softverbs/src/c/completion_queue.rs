//! Completion queues, polled in the old way (`ibv_poll_cq`) and the new (`ibv_start_poll` …).
//!
//! From `ibv_start_poll` to `ibv_end_poll` the program reads one completion after the other, and posts
//! sends and receives meanwhile. What is held for that time, the lock `polling`, is therefore taken by
//! polling alone.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};
use std::sync::Arc;

use super::channel::ChannelRef;
use super::context::device_of;
use super::{not_null, read_sized};
use crate::abi::*;
use crate::attributes::MAX_COMPLETIONS;
use crate::boundary::{INVALID, Outcome, UNSUPPORTED, code, pointer, poll};
use crate::completion::Completion;
use crate::completion_queue::CompletionQueue;
use crate::device::Device;
use crate::direct::ring::{CompletionRing, RingFile};
use crate::limits::Share;
use crate::message::reported;
use crate::process::{HandleType, process};
use crate::settings::DirectPath;
use crate::spin_lock::SpinLock;

/// The object that an `ibv_cq` is a member of.
#[repr(C)]
struct CompletionQueueObject {
    /// First, so that the handle is a pointer to the object.
    ex: ibv_cq_ex,
    efa: efadv_cq_newer,
    queue: Arc<CompletionQueue>,
    polling: SpinLock,
    /// The completion that the program reads. Guarded by `polling`, like `status` and `wr_id` of `ex`.
    current: Completion,
    /// Here as well as in the context: when that is closed, its handle is removed before its queues are destroyed.
    device: Arc<Device>,
    _channel: Option<ChannelRef>,
    _share: Share,
}

type ReadSgid = unsafe extern "C" fn(*mut efadv_cq, *mut ibv_gid) -> c_int;
type IsUnsolicited = unsafe extern "C" fn(*mut efadv_cq) -> bool;

/// Completion vectors of an interface that notifies. libfabric takes one alone for an interface that doesn't.
const VECTORS: c_int = 2;

/// The completion vectors of a device.
pub(super) fn vectors(device: &Device) -> c_int {
    if device.settings.notifications { VECTORS } else { 1 }
}

/// The completion queue that a program asks for.
struct CqInitAttr {
    entries: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: u32,
    /// `IBV_WC_EX_WITH_…`: the members that the program will read by calls.
    wc_flags: u64,
    efa: EfaCqInitAttr,
}

/// Its part of libefa.
#[derive(Default)]
struct EfaCqInitAttr {
    /// `EFADV_WC_EX_WITH_…`
    wc_flags: u64,
    /// Where the ring of completions is, if not in the library's memory.
    file: Option<RingFile>,
}

impl CompletionQueueObject {
    fn create(context: *mut ibv_context, wanted: CqInitAttr) -> Outcome<*mut ibv_cq_ex> {
        let CqInitAttr { entries, cq_context, channel, vector, wc_flags, efa } = wanted;
        let EfaCqInitAttr { wc_flags: efa_wc_flags, file } = efa;
        let device = device_of(context)?;
        let vectors = u32::try_from(vectors(&device)).unwrap_or(0);
        if entries == 0 || entries > MAX_COMPLETIONS || vector >= vectors {
            return Err(INVALID);
        }
        if !channel.is_null() && !device.settings.notifications {
            return Err(UNSUPPORTED);
        }
        // As libefa rounds it.
        let entries = entries.checked_next_power_of_two().ok_or(INVALID)?;
        let direct = device.settings.direct;
        if file.is_some() && direct == DirectPath::Off {
            return Err(UNSUPPORTED);
        }
        let ring = file.map(|file| CompletionRing::in_file(&file, entries)).transpose()?;
        let channel_ref = ChannelRef::of(channel, context)?;
        let share = device.quotas.completion_queues.take(1).map_err(reported)?;
        let mut ex: ibv_cq_ex = zeroed();
        ex.cq_base.context = context;
        ex.cq_base.channel = channel;
        ex.cq_base.cq_context = cq_context;
        ex.cq_base.cqe = c_int::try_from(entries).map_err(|_| INVALID)?;
        ex.cq_base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        ex.cq_base.cond = libc::PTHREAD_COND_INITIALIZER;
        ex.start_poll = Some(start_poll);
        ex.next_poll = Some(next_poll);
        ex.end_poll = Some(end_poll);
        ex.read_opcode = Some(read_opcode);
        ex.read_vendor_err = Some(read_vendor_err);
        ex.read_wc_flags = Some(read_wc_flags);
        // As libefa does, no others than those that the program asks for.
        let has = |flag| wc_flags & flag != 0;
        ex.read_byte_len = has(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len);
        ex.read_imm_data = has(IBV_WC_EX_WITH_IMM).then_some(read_imm_data);
        ex.read_qp_num = has(IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num);
        ex.read_src_qp = has(IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp);
        ex.read_slid = has(IBV_WC_EX_WITH_SLID).then_some(read_slid);
        ex.read_sl = has(IBV_WC_EX_WITH_SL).then_some(read_sl);
        ex.read_dlid_path_bits = has(IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits);
        let has = |flag| efa_wc_flags & flag != 0;
        let wc_read_sgid = has(EFADV_WC_EX_WITH_SGID).then_some(read_sgid as ReadSgid);
        let is_unsolicited =
            has(EFADV_WC_EX_WITH_IS_UNSOLICITED).then_some(is_unsolicited as IsUnsolicited);
        let object = Self {
            ex,
            efa: efadv_cq_newer {
                first: efadv_cq { comp_mask: 0, wc_read_sgid },
                wc_is_unsolicited: is_unsolicited,
            },
            queue: Arc::new(CompletionQueue::new(
                entries as usize,
                channel_ref.as_ref().map(ChannelRef::channel),
                direct,
                ring,
            )),
            polling: SpinLock::new(),
            current: Completion::NONE,
            device,
            _channel: channel_ref,
            _share: share,
        };
        let (queue, device) = (Arc::clone(&object.queue), Arc::clone(&object.device));
        let cq: *mut ibv_cq_ex = Box::into_raw(Box::new(object)).cast();
        if let Some(notifier) = queue.notifier() {
            notifier.set_handle(cq.expose_provenance());
        }
        process().add_handle(cq, HandleType::CompletionQueue, context);
        device.statistics.commanded();
        Ok(cq)
    }

    /// The queue of an object.
    ///
    /// # Safety
    /// `this` must point to an object that exists for `'a`.
    #[inline]
    unsafe fn queue<'a>(this: *mut Self) -> &'a CompletionQueue {
        // SAFETY: the object exists, as required above. Only `queue` is borrowed, which doesn't change
        // while the object exists.
        unsafe { &(*this).queue }
    }

    /// Makes the next completion the one that the program reads; false if there is none.
    ///
    /// # Safety
    /// `this` must point to an object that exists, and this thread must hold `polling`.
    #[inline]
    unsafe fn advance(this: *mut Self) -> bool {
        // SAFETY: the object exists, as required above.
        let Some(completion) = (unsafe { Self::queue(this) }).next() else { return false };
        // SAFETY: this thread holds `polling`, as required above, so no other thread reads or writes
        // these members.
        unsafe {
            (*this).ex.status = completion.status();
            (*this).ex.wr_id = completion.wr_id;
            (*this).current = completion;
        }
        true
    }

    /// The object that `efa` is a member of.
    fn containing(efa: *mut efadv_cq) -> *mut Self {
        efa.wrapping_byte_sub(offset_of!(Self, efa)).cast()
    }
}

/// The queue of a handle; fails with `EINVAL` for any other pointer.
pub(super) fn queue_of(cq: *mut ibv_cq) -> Outcome<Arc<CompletionQueue>> {
    process().check_handle(cq, HandleType::CompletionQueue)?;
    // SAFETY: the handle is entered, so the object exists, and no thread destroys it while this one uses
    // it ("Handles").
    Ok(Arc::clone(unsafe { &(*cq.cast::<CompletionQueueObject>()).queue }))
}

// ---- creation and destruction -------------------------------------------------------------------

/// See `ibv_create_cq(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        let entries = u32::try_from(entries).map_err(|_| INVALID)?;
        let vector = u32::try_from(vector).map_err(|_| INVALID)?;
        let efa = EfaCqInitAttr::default();
        let wanted = CqInitAttr { entries, cq_context, channel, vector, wc_flags: 0, efa };
        Ok(CompletionQueueObject::create(context, wanted)?.cast())
    })
}

/// Creates a completion queue as `ibv_create_cq_ex` does.
///
/// # Safety
/// `attributes` must be null or valid.
unsafe fn create_extended(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
    efa: EfaCqInitAttr,
) -> Outcome<*mut ibv_cq_ex> {
    // SAFETY: `attributes` is not null, so valid for reading, as required above.
    let attributes = unsafe { &*not_null(attributes)? };
    if attributes.comp_mask != 0 || attributes.wc_flags & !IBV_WC_STANDARD_FLAGS != 0 {
        return Err(UNSUPPORTED);
    }
    let &ibv_cq_init_attr_ex {
        cqe: entries,
        cq_context,
        channel,
        comp_vector: vector,
        wc_flags,
        ..
    } = attributes;
    let wanted = CqInitAttr { entries, cq_context, channel, vector, wc_flags, efa };
    CompletionQueueObject::create(context, wanted)
}

/// `ibv_create_cq_ex`, which programs call through the context.
///
/// # Safety
/// `attributes` must be null or valid.
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: `attributes` is null or valid, as required above.
    pointer(|| unsafe { create_extended(context, attributes, EfaCqInitAttr::default()) })
}

/// See `efadv_create_cq(3)`.
///
/// # Safety
/// `attributes` must be null or valid, `efa` null or readable for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_cq(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
    efa: *mut efadv_cq_init_attr,
    length: u32,
) -> *mut ibv_cq_ex {
    pointer(|| {
        let mut asked = EfaCqInitAttr::default();
        if !efa.is_null() {
            // SAFETY: `efa` is not null, so readable for `length` bytes, as required above; the
            // structure consists of numbers.
            let wanted = unsafe {
                let efa: *mut efadv_cq_init_attr_newer = efa.cast();
                read_sized(efa, length, size_of::<efadv_cq_init_attr>())?
            };
            let mut offered = EFADV_WC_EX_WITH_SGID;
            if device_of(context)?.rdma().unsolicited_write_receive {
                offered |= EFADV_WC_EX_WITH_IS_UNSOLICITED;
            }
            if wanted.first.comp_mask != 0 {
                return Err(INVALID);
            }
            if wanted.flags & !EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF != 0
                || wanted.first.wc_flags & !offered != 0
            {
                return Err(UNSUPPORTED);
            }
            let efadv_cq_memory { buffer, length, offset, fd, .. } = wanted.ext_mem_dmabuf;
            asked.wc_flags = wanted.first.wc_flags;
            asked.file = (wanted.flags != 0).then_some(RingFile {
                descriptor: fd,
                offset,
                length,
                address: buffer,
            });
        }
        // SAFETY: `attributes` is null or valid, as required above.
        unsafe { create_extended(context, attributes, asked) }
    })
}

/// See `efadv_cq_from_ibv_cq_ex(3)`.
#[unsafe(no_mangle)]
extern "C" fn efadv_cq_from_ibv_cq_ex(cq: *mut ibv_cq_ex) -> *mut efadv_cq {
    pointer(|| {
        process().check_handle(cq, HandleType::CompletionQueue)?;
        Ok(cq.wrapping_byte_add(offset_of!(CompletionQueueObject, efa)).cast())
    })
}

/// See `ibv_destroy_cq(3)`; fails with `EBUSY` while a queue pair completes there. Waits until the program has
/// acknowledged every event that it took.
#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    code(|| {
        let queue = queue_of(cq)?;
        queue.check_unused()?;
        if let Some(notifier) = queue.notifier() {
            notifier.remove_events()?;
            // Meanwhile the handle stays, as another thread acknowledges by it.
            notifier.wait_for_acknowledgement();
        }
        destroy(cq)
    })
}

/// As [`ibv_destroy_cq`], but without waiting.
pub(super) fn destroy(cq: *mut ibv_cq) -> Outcome<()> {
    let queue = queue_of(cq)?;
    queue.check_unused()?;
    if let Some(notifier) = queue.notifier() {
        notifier.remove_events()?;
    }
    queue.close_doorbell()?;
    process().remove_handle(cq, HandleType::CompletionQueue)?;
    // SAFETY: the object comes from the box in `create`. Its handle was removed just now, which
    // succeeds once, so it is freed once and not found any more.
    let object = unsafe { Box::from_raw(cq.cast::<CompletionQueueObject>()) };
    object.device.statistics.commanded();
    Ok(())
}

// ---- notification -------------------------------------------------------------------------------

/// See `ibv_req_notify_cq(3)`. As libefa, it refuses to tell solicited completions from others.
///
/// # Safety
/// `cq` must be null or a completion queue of this library that is not destroyed.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    code(|| {
        if solicited_only != 0 {
            return Err(UNSUPPORTED);
        }
        // SAFETY: `cq` is not null, so the object exists, as required above.
        let queue = unsafe { CompletionQueueObject::queue(not_null(cq)?.cast()) };
        if queue.is_ours() { queue.arm() } else { Err(INVALID) }
    })
}

// ---- polling ------------------------------------------------------------------------------------

/// See `ibv_poll_cq(3)`, which calls it through the context.
///
/// # Safety
/// `cq` must be null or a completion queue of this library that is not destroyed, `into` null or
/// writable for `count` completions.
pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, into: *mut ibv_wc) -> c_int {
    poll(0, -1, || {
        let Ok(count) = usize::try_from(count) else { return -1 };
        if cq.is_null() || (into.is_null() && count > 0) {
            return -1;
        }
        let this: *mut CompletionQueueObject = cq.cast();
        // SAFETY: `cq` is not null, so the object exists, as required above. Only these two members are
        // borrowed, which all threads may share.
        let (queue, polling) = unsafe { (&(*this).queue, &(*this).polling) };
        if !queue.is_ours() {
            return 0;
        }
        let Some(_polling) = polling.lock_in_time() else { return 0 };
        let mut taken = 0;
        while taken < count
            && let Some(completion) = queue.next()
        {
            // SAFETY: `into` is writable for `count` completions, as required above.
            unsafe { into.add(taken).write(completion.to_wc()) };
            taken += 1;
        }
        c_int::try_from(taken).unwrap_or(c_int::MAX)
    })
}

/// See `ibv_start_poll` in `ibv_create_cq_ex(3)`.
///
/// # Safety
/// `cq` must be null or a completion queue of this library that is not destroyed, `attributes` null or
/// valid.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attributes: *mut ibv_poll_cq_attr) -> c_int {
    poll(libc::ENOENT, libc::EIO, || {
        // SAFETY: `attributes` is null or valid for reading, as required above.
        let unknown = unsafe { attributes.as_ref() }.is_some_and(|a| a.comp_mask != 0);
        if cq.is_null() || unknown {
            return libc::EINVAL;
        }
        let this: *mut CompletionQueueObject = cq.cast();
        // SAFETY: `cq` is not null, so the object exists, as required above. `polling` is held when
        // `advance` needs it, and released again unless the program gets a completion to read.
        unsafe {
            if !CompletionQueueObject::queue(this).is_ours() {
                return libc::ENOENT;
            }
            if !(*this).polling.acquire_in_time() {
                return libc::ENOENT;
            }
            if CompletionQueueObject::advance(this) {
                return 0;
            }
            (*this).polling.release();
        }
        libc::ENOENT
    })
}

/// See `ibv_next_poll` in `ibv_create_cq_ex(3)`.
///
/// # Safety
/// This thread must have called `start_poll` for `cq` with success, and not yet `end_poll`.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let this: *mut CompletionQueueObject = cq.cast();
    poll(libc::ENOENT, libc::EIO, || {
        // SAFETY: `start_poll` has succeeded, as required above, so the object exists and this thread
        // holds `polling`. A forked child touches the parent's queue no further than `is_ours`.
        let next = unsafe {
            CompletionQueueObject::queue(this).is_ours() && CompletionQueueObject::advance(this)
        };
        if next { 0 } else { libc::ENOENT }
    })
}

/// See `ibv_end_poll` in `ibv_create_cq_ex(3)`.
///
/// # Safety
/// This thread must have called `start_poll` for `cq` with success, and not yet `end_poll`.
unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    let this: *mut CompletionQueueObject = cq.cast();
    // SAFETY: `start_poll` has succeeded, as required above, so the object exists and this thread holds
    // `polling`.
    unsafe { (*this).polling.release() };
}

/// Defines functions that read a member of the current completion.
macro_rules! read {
    ($($name:ident($completion:ident) -> $type:ty { $value:expr })*) => {
        $(
            /// # Safety
            /// This thread must have called `start_poll` for `cq` with success, and not yet
            /// `end_poll`.
            unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
                let this: *mut CompletionQueueObject = cq.cast();
                // SAFETY: `start_poll` has succeeded, as required above, so the object exists and
                // this thread holds `polling`, which guards `current`.
                let $completion = unsafe { &(*this).current };
                $value
            }
        )*
    };
}

read! {
    read_opcode(completion) -> c_int { completion.opcode() }
    read_vendor_err(completion) -> u32 { completion.vendor_error() }
    read_byte_len(completion) -> u32 { completion.length }
    read_imm_data(completion) -> u32 { completion.immediate.unwrap_or(0) }
    read_qp_num(completion) -> u32 { completion.qpn }
    read_src_qp(completion) -> u32 { completion.source_qpn() }
    read_wc_flags(completion) -> c_uint { completion.flags() }
    read_slid(completion) -> u32 { completion.source_handle().into() }
    read_sl(_completion) -> u8 { 0 }
    read_dlid_path_bits(_completion) -> u8 { 0 }
}

/// See `efadv_wc_read_sgid(3)`: writes the sender's GID and returns 0 if no address handle has it, and
/// a negative number otherwise. For a peer's write, as with libefa, the GID is of other bytes of the completion.
///
/// # Safety
/// `efa` must be null or of a completion queue for which this thread has called `start_poll` with
/// success, and not yet `end_poll`; `into` must be null or valid.
unsafe extern "C" fn read_sgid(efa: *mut efadv_cq, into: *mut ibv_gid) -> c_int {
    if efa.is_null() || into.is_null() {
        return -libc::EINVAL;
    }
    let this = CompletionQueueObject::containing(efa);
    // SAFETY: `start_poll` has succeeded, as required above, so the object exists and this thread holds
    // `polling`, which guards `current`.
    let current = unsafe { &(*this).current };
    match current.source_gid() {
        Some(raw) => {
            // SAFETY: `into` is not null, so valid for writing, as required above.
            unsafe { into.write(ibv_gid { raw }) };
            0
        }
        None => -libc::ENOENT,
    }
}

/// See `efadv_wc_is_unsolicited(3)`.
///
/// # Safety
/// `efa` must be null or of a completion queue for which this thread has called `start_poll` with
/// success, and not yet `end_poll`.
unsafe extern "C" fn is_unsolicited(efa: *mut efadv_cq) -> bool {
    if efa.is_null() {
        return false;
    }
    let this = CompletionQueueObject::containing(efa);
    // SAFETY: `start_poll` has succeeded, as required above, so the object exists and this thread holds
    // `polling`, which guards `current`.
    unsafe { (*this).current.unsolicited }
}

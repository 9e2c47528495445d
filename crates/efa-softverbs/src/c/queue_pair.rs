//! Queue pairs: created, modified, queried, destroyed.

use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::Arc;

use efa_soft_names::counters::Word;

use super::completion_queue::queue_of;
use super::context::device_of;
use super::domain::domain_of;
use super::wr::{self, RequestBatch};
use super::{not_null, read_sized};
use crate::abi::*;
use crate::boundary::{INVALID, Outcome, UNSUPPORTED, code, pointer};
use crate::domain::DomainRef;
use crate::limits::Share;
use crate::message::reported;
use crate::process::{HandleType, process};
use crate::queue_pair::{ModifyRequest, QpInitAttr, QpState, QueuePair, Settable, Transport};
use crate::spin_lock::SpinLock;
use crate::stack::clear_below;

/// The object that an `ibv_qp` is a member of.
#[repr(C)]
pub(crate) struct QueuePairObject {
    /// First, so that the handle is a pointer to the object.
    pub(super) ex: ibv_qp_ex,
    efa: efadv_qp,
    pub(crate) queue_pair: Arc<QueuePair>,
    pub(super) batch_lock: SpinLock,
    pub(super) batch: RequestBatch,
    _share: Share,
    /// Not in [`QueuePair`], which the progress thread may keep a little longer than the program.
    _domain: DomainRef,
}

/// The object of a handle; fails with `EINVAL` for any other pointer.
fn object_of(qp: *mut ibv_qp) -> Outcome<*mut QueuePairObject> {
    process().check_handle(qp, HandleType::QueuePair)?;
    Ok(qp.cast())
}

/// The queue pair of a handle; fails with `EINVAL` for any other pointer.
pub(super) fn queue_pair_of(qp: *mut ibv_qp) -> Outcome<Arc<QueuePair>> {
    let object = object_of(qp)?;
    // SAFETY: the handle is entered, so the object exists, and no thread destroys it while this one uses
    // it ("Handles").
    Ok(Arc::clone(unsafe { &(*object).queue_pair }))
}

// ---- creation -----------------------------------------------------------------------------------

/// Creates a queue pair with the handles in `basic`; its other members are in `attributes` already.
fn create(
    pd: *mut ibv_pd,
    basic: &ibv_qp_init_attr,
    attributes: &QpInitAttr,
) -> Outcome<*mut ibv_qp> {
    let &ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, .. } = basic;
    let (domain, context) = domain_of(pd)?;
    if !srq.is_null() {
        return Err(INVALID);
    }
    let (send_queue, receive_queue) = (queue_of(send_cq)?, queue_of(recv_cq)?);
    // As the kernel does: other contexts may be closed earlier.
    process().check_context_of(send_cq, context)?;
    process().check_context_of(recv_cq, context)?;
    let share = domain.device().quotas.queue_pairs.take(1).map_err(reported)?;
    let created = QueuePair::create(&domain, attributes, send_queue, receive_queue);
    let queue_pair = domain.device().statistics.created(created, Word::QueuePairErrors)?;
    let mut ex: ibv_qp_ex = zeroed();
    ex.qp_base = ibv_qp {
        context,
        qp_context,
        pd,
        send_cq,
        recv_cq,
        srq: std::ptr::null_mut(),
        handle: queue_pair.number(),
        qp_num: queue_pair.number(),
        state: QpState::Reset.number(),
        qp_type: match attributes.transport {
            Transport::Srd => IBV_QPT_DRIVER,
            Transport::Ud => IBV_QPT_UD,
        },
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    if let Some(operations) = attributes.operations {
        wr::set_functions(&mut ex, operations);
    }
    let hints = attributes.processing_hints.then_some(ignore_hints as SetHints);
    let efa = efadv_qp { comp_mask: 0, wr_set_processing_hints: hints };
    let object = QueuePairObject {
        ex,
        efa,
        queue_pair,
        batch_lock: SpinLock::new(),
        batch: RequestBatch::default(),
        _share: share,
        _domain: domain,
    };
    let qp = Box::into_raw(Box::new(object)).cast();
    process().add_handle(qp, HandleType::QueuePair, context);
    Ok(qp)
}

/// Creates a queue pair for sends.
///
/// # Safety
/// `attributes` must be null or valid.
unsafe fn create_basic(
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
    transport: Transport,
) -> Outcome<*mut ibv_qp> {
    // SAFETY: `attributes` is not null, so valid for reading, as required above.
    let basic = unsafe { &*not_null(attributes)? };
    let expected = match transport {
        Transport::Srd => IBV_QPT_DRIVER,
        Transport::Ud => IBV_QPT_UD,
    };
    if basic.qp_type != expected {
        return Err(UNSUPPORTED);
    }
    let attributes = QpInitAttr {
        transport,
        cap: basic.cap,
        signals_all: basic.sq_sig_all != 0,
        operations: None,
        unsolicited_writes: false,
        inline_writes: false,
        processing_hints: false,
    };
    create(pd, basic, &attributes)
}

/// Creates a queue pair as `ibv_create_qp_ex` does, or `efadv_create_qp_ex` with `efa`, and whether the program wants to
/// give hints.
///
/// # Safety
/// `attributes` must be null or valid.
unsafe fn create_extended(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
    (efa, processing_hints): (Option<&efadv_qp_init_attr>, bool),
) -> Outcome<*mut ibv_qp> {
    // SAFETY: `attributes` is not null, so valid for reading, as required above.
    let attributes = unsafe { &*not_null(attributes)? };
    let transport = match (attributes.qp_type, efa.map(|efa| efa.driver_qp_type)) {
        (IBV_QPT_DRIVER, Some(EFADV_QP_DRIVER_TYPE_SRD)) => Transport::Srd,
        (IBV_QPT_UD, _) => Transport::Ud,
        _ => return Err(UNSUPPORTED),
    };
    let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if attributes.comp_mask & !known != 0 {
        return Err(UNSUPPORTED);
    }
    if attributes.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        return Err(INVALID);
    }
    let builds_requests = attributes.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    let operations = builds_requests.then_some(attributes.send_ops_flags);
    let &ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, .. } = attributes;
    let &ibv_qp_init_attr_ex { pd, qp_type, sq_sig_all, .. } = attributes;
    process().check_context_of(pd, context)?;
    let basic = ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
    let has = |flag| efa.is_some_and(|efa| efa.flags & flag != 0);
    let unsolicited_writes = has(EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV);
    let inline_writes = has(EFADV_QP_FLAGS_INLINE_WRITE);
    let signals_all = sq_sig_all != 0;
    let attributes = QpInitAttr {
        transport,
        cap,
        signals_all,
        operations,
        unsolicited_writes,
        inline_writes,
        processing_hints,
    };
    create(pd, &basic, &attributes)
}

/// See `ibv_create_qp(3)`; UD only.
///
/// # Safety
/// `attributes` must be null or valid.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: `attributes` is null or valid, as required above.
    pointer(|| unsafe { create_basic(pd, attributes, Transport::Ud) })
}

/// See `efadv_create_driver_qp(3)`.
///
/// # Safety
/// `attributes` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_driver_qp(
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
    driver_type: u32,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: `attributes` is null or valid for reading, as required above.
        let qp_type = unsafe { attributes.as_ref() }.map(|attributes| attributes.qp_type);
        if qp_type != Some(IBV_QPT_DRIVER) {
            return Err(INVALID);
        }
        if driver_type != EFADV_QP_DRIVER_TYPE_SRD {
            return Err(UNSUPPORTED);
        }
        // SAFETY: `attributes` is null or valid, as required above.
        unsafe { create_basic(pd, attributes, Transport::Srd) }
    })
}

/// `ibv_create_qp_ex`, which programs call through the context; UD only.
///
/// # Safety
/// `attributes` must be null or valid.
pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: `attributes` is null or valid, as required above.
    pointer(|| unsafe { create_extended(context, attributes, (None, false)) })
}

/// See `efadv_create_qp_ex(3)`.
///
/// # Safety
/// `attributes` must be null or valid, `efa` null or readable for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
    efa: *mut efadv_qp_init_attr,
    length: u32,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: `efa` is null or readable for `length` bytes, as required above; the structure
        // consists of numbers.
        let wanted = unsafe {
            let efa: *mut efadv_qp_init_attr_newer = efa.cast();
            read_sized(efa, length, offset_of!(efadv_qp_init_attr, flags))?
        };
        let efadv_qp_init_attr_newer { first: wanted, wr_flags } = wanted;
        // SAFETY: `attributes` is null or valid for reading, as required above.
        let qp_type = unsafe { attributes.as_ref() }.map(|attributes| attributes.qp_type);
        if wanted.comp_mask != 0 || wanted.reserved != 0 || qp_type != Some(IBV_QPT_DRIVER) {
            return Err(INVALID);
        }
        let device = device_of(context)?;
        let offered = [
            (device.rdma().unsolicited_write_receive, EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV),
            (device.offers_inline_writes(), EFADV_QP_FLAGS_INLINE_WRITE),
        ];
        let offered = offered.iter().filter(|(is_offered, _)| *is_offered);
        let offered = offered.fold(0, |flags, (_, flag)| flags | flag);
        if wanted.flags & !offered != 0 || wr_flags & !EFADV_WR_EX_WITH_PROCESSING_HINTS != 0 {
            return Err(UNSUPPORTED);
        }
        // SAFETY: `attributes` is null or valid, as required above.
        unsafe { create_extended(context, attributes, (Some(&wanted), wr_flags != 0)) }
    })
}

// ---- other forms of a handle --------------------------------------------------------------------

/// See `ibv_qp_to_qp_ex(3)`; null for a queue pair that was created without `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    pointer(|| {
        let qp: *mut ibv_qp_ex = object_of(qp)?.cast();
        // SAFETY: `object_of` has found the handle, so the object exists; its functions don't change while it does.
        let builds_requests = unsafe { (*qp).wr_start }.is_some();
        Ok(if builds_requests { qp } else { std::ptr::null_mut() })
    })
}

/// libefa's part of a queue pair, through which programs give processing hints.
#[unsafe(no_mangle)]
extern "C" fn efadv_qp_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut efadv_qp {
    pointer(|| {
        let object = object_of(qp.cast())?;
        Ok(object.wrapping_byte_add(offset_of!(QueuePairObject, efa)).cast())
    })
}

type SetHints = unsafe extern "C" fn(*mut efadv_qp, u32);

/// `wr_set_processing_hints`: hints require nothing.
extern "C" fn ignore_hints(_qp: *mut efadv_qp, _hints: u32) {}

// ---- modification and destruction ---------------------------------------------------------------

/// See `ibv_modify_qp(3)`.
///
/// # Safety
/// `attributes` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    code(|| {
        let queue_pair = queue_pair_of(qp)?;
        // SAFETY: `attributes` is not null, so valid for reading, as required above.
        let attributes = unsafe { &*not_null(attributes)? };
        let request = ModifyRequest::new(attributes, mask, queue_pair.transport())?;
        let (before, after) = queue_pair.modify(&request)?;
        queue_pair.device().statistics.commanded();
        // SAFETY: `queue_pair_of` has found the handle, so the object exists. The program must not read
        // `state` while it calls this function, as with the real library, which writes it in the same
        // way.
        unsafe { (*qp).state = after.number() };
        if before < QpState::Rtr && after == QpState::Rtr {
            process().progress.watch(&queue_pair);
        }
        if after == QpState::Rts && queue_pair.transport() == Transport::Ud {
            clear_below();
        }
        Ok(())
    })
}

/// The attributes that the kernel's driver lets programs query.
const QUERIED: c_int = IBV_QP_STATE
    | IBV_QP_PKEY_INDEX
    | IBV_QP_PORT
    | IBV_QP_QKEY
    | IBV_QP_RNR_RETRY
    | IBV_QP_SQ_PSN
    | IBV_QP_CAP;

/// See `ibv_query_qp(3)`. As an interface's driver, it refuses to tell of attributes that these queue pairs don't have.
///
/// # Safety
/// `attributes` and `init` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    code(|| {
        let queue_pair = queue_pair_of(qp)?;
        let (attributes, init) = (not_null(attributes)?, not_null(init)?);
        if mask & !QUERIED != 0 {
            return Err(UNSUPPORTED);
        }
        let Settable { state, qkey, rnr_retry, sq_psn } = queue_pair.query()?;
        let mut current: ibv_qp_attr = zeroed();
        current.qp_state = state.number();
        current.cur_qp_state = state.number();
        current.qkey = qkey.0;
        current.cap = *queue_pair.cap();
        current.port_num = 1;
        current.rnr_retry = rnr_retry;
        current.sq_psn = sq_psn;
        // SAFETY: `queue_pair_of` has found the handle, so the object exists; these members don't change
        // while it does. `attributes` and `init` are not null, so valid for writing, as required above.
        unsafe {
            attributes.write(current);
            init.write(ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: std::ptr::null_mut(),
                cap: *queue_pair.cap(),
                qp_type: (*qp).qp_type,
                sq_sig_all: queue_pair.signals_all().into(),
            });
        }
        Ok(())
    })
}

/// See `ibv_query_qp_data_in_order(3)`: no order is guaranteed.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _operation: c_int,
    _flags: u32,
) -> c_int {
    0
}

/// See `ibv_destroy_qp(3)`. What is outstanding ends without completions.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    code(|| destroy(qp))
}

/// As [`ibv_destroy_qp`]. A queue pair whose lock another thread doesn't release is left, with `EBUSY`.
pub(super) fn destroy(qp: *mut ibv_qp) -> Outcome<()> {
    process().remove_handle(qp, HandleType::QueuePair)?;
    // SAFETY: the object comes from the box in `create`. Its handle was removed just now, which
    // succeeds once, so it is freed once and not found any more.
    let object = unsafe { Box::from_raw(qp.cast::<QueuePairObject>()) };
    object.queue_pair.device().statistics.commanded();
    let destroyed = object.queue_pair.destroy();
    if destroyed.is_err() {
        std::mem::forget(object);
    }
    destroyed
}

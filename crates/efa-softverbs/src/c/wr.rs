//! Building work requests by calls: `ibv_wr_start` to `ibv_wr_complete`.
//!
//! ```text
//!  wr_start ─► wr_send | wr_rdma_read | wr_rdma_write …   a request …
//!                 └► wr_set_ud_addr, wr_set_sge …         … and its members, in any order
//!              (more requests)
//!  wr_complete: posts all or, if one is wrong, none      wr_abort: posts none
//! ```

use std::ffi::{c_int, c_void};

use efa_device::RemoteMemory;

use super::domain::address_handle_number;
use super::post::{check_flags, copy_inline, read_list};
use super::queue_pair::QueuePairObject;
use crate::abi::*;
use crate::boundary::{Errno, INTERRUPTED, INVALID, Outcome, code, value};
use crate::queue_pair::{QueuePair, RdmaOpcode};
use crate::work_request::{Operation, SendData, Target, WorkRequest};

/// The requests between `wr_start` and `wr_complete`. Guarded by `QueuePairObject::batch_lock`, which is
/// held from `wr_start` to `wr_complete` or `wr_abort`.
#[derive(Debug, Default)]
pub(super) struct RequestBatch {
    requests: Vec<WorkRequest>,
    /// The first error. `wr_complete` returns it.
    error: Option<Errno>,
    /// How many batches a signal handler has begun in the middle of this one; nothing is added to those.
    refused: usize,
}

/// Runs `f` on the batch, unless a call has failed before.
///
/// # Safety
/// As `ibv_wr_post(3)` asks: `qp` is a queue pair of this library that is not destroyed, and this thread
/// is between `wr_start` and `wr_complete` or `wr_abort`.
#[inline]
unsafe fn with_batch(
    qp: *mut ibv_qp_ex,
    f: impl FnOnce(&mut RequestBatch, &QueuePair) -> Outcome<()>,
) {
    // SAFETY: the object exists and this thread has held `batch_lock` since `wr_start`, as required
    // above, so no other thread has a reference to the batch.
    let (queue_pair, batch) = unsafe {
        let object: *mut QueuePairObject = qp.cast();
        (&(*object).queue_pair, &mut (*object).batch)
    };
    // In a forked child the batch may be one that a thread of the parent was changing.
    if queue_pair.is_ours() && batch.error.is_none() && batch.refused == 0 {
        let result = value(Err(Errno(libc::EIO)), || f(batch, queue_pair));
        batch.error = result.err();
    }
}

/// Begins a request.
///
/// # Safety
/// As [`with_batch`].
unsafe fn begin(qp: *mut ibv_qp_ex, operation: Operation) {
    // SAFETY: the object exists, as `with_batch` requires of the caller; the program has written both
    // members in this thread before the call.
    let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    let begin = |batch: &mut RequestBatch, queue_pair: &QueuePair| {
        check_flags(queue_pair, flags)?;
        let data = SendData::EMPTY;
        batch.requests.push(WorkRequest { wr_id, operation, target: None, data });
        Ok(())
    };
    // SAFETY: the caller fulfils the requirements of `with_batch`.
    unsafe { with_batch(qp, begin) };
}

/// Runs `f` on the last request.
///
/// # Safety
/// As [`with_batch`].
unsafe fn set(qp: *mut ibv_qp_ex, f: impl FnOnce(&mut WorkRequest, &ibv_qp_cap) -> Outcome<()>) {
    let set = |batch: &mut RequestBatch, queue_pair: &QueuePair| {
        f(batch.requests.last_mut().ok_or(INVALID)?, queue_pair.cap())
    };
    // SAFETY: the caller fulfils the requirements of `with_batch`.
    unsafe { with_batch(qp, set) };
}

fn rdma(opcode: RdmaOpcode, address: u64, key: u32) -> Operation {
    Operation::Rdma { opcode, remote: RemoteMemory { address, key } }
}

/// Defines functions of `ibv_qp_ex`.
macro_rules! calls {
    ($($name:ident($qp:ident $(, $argument:ident: $type:ty)*) $body:expr)*) => {
        $(
            /// # Safety
            /// As `ibv_wr_post(3)` asks: `qp` is a queue pair of this library that is not
            /// destroyed, and this thread is between `wr_start` and `wr_complete` or `wr_abort`.
            /// An address handle is null or not destroyed; lists have as many entries as the call
            /// says, and inline data is readable.
            unsafe extern "C" fn $name($qp: *mut ibv_qp_ex $(, $argument: $type)*) {
                // SAFETY: the caller fulfils the requirements of `with_batch`; what the body reads
                // through its other arguments is as required above.
                unsafe { $body }
            }
        )*
    };
}

calls! {
    wr_send(qp) begin(qp, Operation::Send { immediate: None })
    wr_send_imm(qp, immediate: u32) begin(qp, Operation::Send { immediate: Some(immediate) })
    wr_rdma_read(qp, key: u32, address: u64)
        begin(qp, rdma(RdmaOpcode::Read, address, key))
    wr_rdma_write(qp, key: u32, address: u64)
        begin(qp, rdma(RdmaOpcode::Write { immediate: None }, address, key))
    wr_rdma_write_imm(qp, key: u32, address: u64, immediate: u32)
        begin(qp, rdma(RdmaOpcode::Write { immediate: Some(immediate) }, address, key))

    wr_set_ud_addr(qp, ah: *mut ibv_ah, qpn: u32, qkey: u32) set(qp, |request, _| {
        request.target = Some(Target { address_handle: address_handle_number(ah)?, qpn, qkey });
        Ok(())
    })
    wr_set_sge(qp, lkey: u32, addr: u64, length: u32) set(qp, |request, _| {
        request.data = SendData::registered(&[ibv_sge { addr, length, lkey }])?;
        Ok(())
    })
    wr_set_sge_list(qp, count: usize, list: *const ibv_sge) set(qp, |request, cap| {
        let count = c_int::try_from(count).unwrap_or(-1);
        request.data = SendData::registered(read_list(list, count, cap.max_send_sge as usize)?)?;
        Ok(())
    })
    wr_set_inline_data(qp, from: *mut c_void, length: usize) set(qp, |request, cap| {
        request.data = copy_inline(cap, std::iter::once((from.cast_const().cast(), length)))?;
        Ok(())
    })
    wr_set_inline_data_list(qp, count: usize, list: *const ibv_data_buf) set(qp, |request, cap| {
        let list = match count {
            0 => &[],
            _ if list.is_null() => return Err(INVALID),
            _ => std::slice::from_raw_parts(list, count),
        };
        let buffers = list.iter().map(|buffer| (buffer.addr.cast_const().cast(), buffer.length));
        request.data = copy_inline(cap, buffers)?;
        Ok(())
    })
    wr_abort(qp) {
        let object: *mut QueuePairObject = qp.cast();
        if (*object).queue_pair.is_ours() && !end_refused(qp) {
            (*object).batch.requests.clear();
            (*object).batch_lock.release();
        }
    }
}

/// See `ibv_wr_start` in `ibv_wr_post(3)`.
///
/// # Safety
/// `qp` must be a queue pair of this library that is not destroyed.
unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    let object: *mut QueuePairObject = qp.cast();
    // SAFETY: the object exists, as required above. The lock, which threads may share, is held when the
    // batch is written.
    unsafe {
        // In a forked child the lock may be one that a thread of the parent holds.
        if !(*object).queue_pair.is_ours() {
            return;
        }
        if !(*object).batch_lock.acquire() {
            (*object).batch.refused += 1;
            return;
        }
        (*object).batch.requests.clear();
        (*object).batch.error = None;
    }
}

/// Whether this ends a batch that a signal handler has begun in the middle of another.
///
/// # Safety
/// As [`with_batch`].
unsafe fn end_refused(qp: *mut ibv_qp_ex) -> bool {
    // SAFETY: the object exists and this thread has held `batch_lock` since the first `wr_start`, as
    // required above.
    let refused = unsafe { &mut (*qp.cast::<QueuePairObject>()).batch.refused };
    let ends = *refused > 0;
    *refused = refused.saturating_sub(1);
    ends
}

/// See `ibv_wr_complete` in `ibv_wr_post(3)`. Posts all requests of the batch or none.
///
/// # Safety
/// `qp` must be a queue pair of this library that is not destroyed, for which this thread called
/// `wr_start`.
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let object: *mut QueuePairObject = qp.cast();
    // SAFETY: the object exists, as required above; these members may be shared by threads.
    let (queue_pair, lock) = unsafe { (&(*object).queue_pair, &(*object).batch_lock) };
    if !queue_pair.is_ours() {
        return libc::EINVAL;
    }
    // SAFETY: the caller fulfils the requirements of `with_batch`.
    if unsafe { end_refused(qp) } {
        return INTERRUPTED.0;
    }
    let result = code(|| {
        // SAFETY: the object exists and this thread has held `batch_lock` since `wr_start`, as required
        // above.
        let batch = unsafe { &(*object).batch };
        if let Some(error) = batch.error {
            return Err(error);
        }
        for request in &batch.requests {
            request.check(queue_pair)?;
        }
        queue_pair.with_lock(|locked| {
            for request in &batch.requests {
                request.prepare(queue_pair, locked)?;
            }
            queue_pair.reserve_sends(locked, batch.requests.len())?;
            for request in &batch.requests {
                request.post(queue_pair, locked);
            }
            Ok(())
        })
    });
    lock.release();
    result
}

/// Enters the functions of this file into a queue pair. As libefa does, only those of the `operations`
/// (`IBV_QP_EX_WITH_…`) that the program has asked for.
pub(super) fn set_functions(qp: &mut ibv_qp_ex, operations: u64) {
    let has = |operation| operations & operation != 0;
    qp.wr_rdma_read = has(IBV_QP_EX_WITH_RDMA_READ).then_some(wr_rdma_read);
    qp.wr_rdma_write = has(IBV_QP_EX_WITH_RDMA_WRITE).then_some(wr_rdma_write);
    qp.wr_rdma_write_imm = has(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(wr_rdma_write_imm);
    qp.wr_send = has(IBV_QP_EX_WITH_SEND).then_some(wr_send);
    qp.wr_send_imm = has(IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(wr_send_imm);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
}

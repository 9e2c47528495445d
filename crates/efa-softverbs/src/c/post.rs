//! Posting lists of structures: `ibv_post_send`, `ibv_post_recv`.
//!
//! As on the real device every request completes; a request without a completion is refused.

use std::ffi::{c_int, c_uint};

use efa_sim::region::Use;

use super::domain::address_handle_number;
use super::queue_pair::QueuePairObject;
use crate::abi::*;
use crate::boundary::{INVALID, Outcome, code};
use crate::device::{MAX_INLINE, MAX_RECEIVE_SGE};
use crate::memory::locate;
use crate::queue_pair::{QueuePair, Receive};
use crate::work_request::{Operation, SendData, Target, WorkRequest};

/// Reads a scatter or gather list; fails with `EINVAL` for one of more than `most` entries.
///
/// # Safety
/// `list` must be null or point to `count` entries, aligned, that no thread changes for `'a`, if `count`
/// is at most `most`.
pub(super) unsafe fn read_list<'a>(
    list: *const ibv_sge,
    count: c_int,
    most: usize,
) -> Outcome<&'a [ibv_sge]> {
    let count = usize::try_from(count).map_err(|_| INVALID)?;
    if count > most {
        return Err(INVALID);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(INVALID);
    }
    // SAFETY: `list` is not null, so it points to `count` aligned entries that don't change, as
    // required above; `most` is far below `isize::MAX` bytes.
    Ok(unsafe { std::slice::from_raw_parts(list, count) })
}

/// Copies inline data; fails with `EINVAL` if it is longer than the queue pair allows.
///
/// # Safety
/// Each buffer must be readable for its length in bytes, or have the length 0.
pub(super) unsafe fn copy_inline(
    cap: &ibv_qp_cap,
    buffers: impl Iterator<Item = (*const u8, usize)>,
) -> Outcome<SendData> {
    let mut bytes = [0; MAX_INLINE];
    let most = MAX_INLINE.min(cap.max_inline_data as usize);
    let mut length = 0;
    for (from, count) in buffers {
        let rest = bytes[..most].get_mut(length..).ok_or(INVALID)?;
        let into = rest.get_mut(..count).ok_or(INVALID)?;
        if count > 0 {
            // SAFETY: `from` is readable for `count` bytes, as required above, and `into`, on our stack,
            // has this length.
            unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), count) };
        }
        length += count;
    }
    Ok(SendData::Inline { bytes, length })
}

/// Fails with `EINVAL` for flags that the device doesn't know, and for requests without a completion.
#[inline]
pub(super) fn check_flags(queue_pair: &QueuePair, flags: c_uint) -> Outcome<()> {
    let completes = queue_pair.signals_all() || flags & IBV_SEND_SIGNALED != 0;
    let unknown = flags & !(IBV_SEND_SIGNALED | IBV_SEND_INLINE) != 0;
    if completes && !unknown { Ok(()) } else { Err(INVALID) }
}

/// Reads a request of a list.
///
/// # Safety
/// As `ibv_post_send(3)` asks: `sg_list` points to `num_sge` entries, with `IBV_SEND_INLINE` to readable
/// memory, and `wr.ud.ah` is null or an address handle of this library that is not destroyed.
#[inline]
unsafe fn read_send(request: &ibv_send_wr, queue_pair: &QueuePair) -> Outcome<WorkRequest> {
    check_flags(queue_pair, request.send_flags)?;
    let immediate = match request.opcode {
        IBV_WR_SEND => None,
        IBV_WR_SEND_WITH_IMM => Some(request.imm_data),
        _ => return Err(INVALID),
    };
    let (cap, is_inline) = (queue_pair.cap(), request.send_flags & IBV_SEND_INLINE != 0);
    // `max_send_sge` limits what the device reads, and it doesn't read inline data: the list may have
    // an entry for each byte.
    let most = if is_inline { MAX_INLINE } else { cap.max_send_sge as usize };
    // SAFETY: `sg_list` points to `num_sge` entries, as required above, which the program leaves alone
    // during the call.
    let list = unsafe { read_list(request.sg_list, request.num_sge, most)? };
    let data = if is_inline {
        let buffers = list.iter().map(|entry| {
            let from = std::ptr::with_exposed_provenance::<u8>(entry.addr as usize);
            (from, entry.length as usize)
        });
        // SAFETY: the entries of inline data are readable memory, as required above.
        unsafe { copy_inline(cap, buffers)? }
    } else {
        SendData::registered(list)?
    };
    // SAFETY: all queue pairs of this device use this member of the union; its members are any
    // numbers and an address handle as required above.
    let (address_handle, ibv_ud_target { remote_qpn: qpn, remote_qkey: qkey, .. }) =
        unsafe { (address_handle_number(request.wr.ud.ah)?, request.wr.ud) };
    let target = Some(Target { address_handle, qpn, qkey });
    let operation = Operation::Send { immediate };
    Ok(WorkRequest { wr_id: request.wr_id, operation, target, data })
}

/// The queue pair of a handle that is not looked up.
///
/// # Safety
/// `qp` must be null or a queue pair of this library that is not destroyed for `'a`.
#[inline]
unsafe fn queue_pair_at<'a>(qp: *mut ibv_qp) -> Outcome<&'a QueuePair> {
    if qp.is_null() {
        return Err(INVALID);
    }
    // SAFETY: `qp` is not null, so the object exists for `'a`, as required above; `queue_pair` doesn't
    // change while it does.
    Ok(unsafe { &(*qp.cast::<QueuePairObject>()).queue_pair })
}

/// See `ibv_post_send(3)`. Posts the requests before the first that it refuses.
///
/// # Safety
/// As the manual page asks: `qp` is null or a queue pair of this library that is not destroyed during
/// the call, `list` null or the first of valid requests, the last with `next` null, and `bad` null or
/// valid.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut at = list;
    let result = code(|| {
        // SAFETY: `qp` is null or exists during the call, as required above.
        let queue_pair = unsafe { queue_pair_at(qp)? };
        queue_pair.with_lock(|locked| {
            // SAFETY: `at` is `list` or the `next` of a valid request: null or valid, as required above.
            while let Some(request) = unsafe { at.as_ref() } {
                // SAFETY: what a valid request points to is as `read_send` requires.
                let work = unsafe { read_send(request, queue_pair)? };
                work.check(queue_pair)?;
                work.prepare(queue_pair, locked)?;
                queue_pair.reserve_sends(locked, 1)?;
                work.post(queue_pair, locked);
                at = request.next;
            }
            Ok(())
        })
    });
    if result != 0 && !bad.is_null() {
        // SAFETY: `bad` is not null, so valid for writing, as required above.
        unsafe { bad.write(at) };
    }
    result
}

/// Reads a receive of a list.
///
/// # Safety
/// As `ibv_post_recv(3)` asks: `sg_list` points to `num_sge` entries.
#[inline]
unsafe fn read_receive(request: &ibv_recv_wr, queue_pair: &QueuePair) -> Outcome<Receive> {
    let most = queue_pair.cap().max_recv_sge.min(MAX_RECEIVE_SGE as u32) as usize;
    // SAFETY: `sg_list` points to `num_sge` entries, as required above, which the program leaves alone
    // during the call.
    let list = unsafe { read_list(request.sg_list, request.num_sge, most)? };
    for entry in list.iter().filter(|entry| entry.length > 0) {
        locate(queue_pair.device().link.keys(), entry, Use::LocalWrite).ok_or(INVALID)?;
    }
    Receive::new(request.wr_id, list)
}

/// See `ibv_post_recv(3)`. Posts the requests before the first that it refuses; it refuses one whose key
/// doesn't allow local writing.
///
/// # Safety
/// As the manual page asks: `qp` is null or a queue pair of this library that is not destroyed during
/// the call, `list` null or the first of valid requests, the last with `next` null, and `bad` null or
/// valid.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = list;
    let result = code(|| {
        // SAFETY: `qp` is null or exists during the call, as required above.
        let queue_pair = unsafe { queue_pair_at(qp)? };
        queue_pair.with_lock(|locked| {
            // SAFETY: `at` is `list` or the `next` of a valid request: null or valid, as required above.
            while let Some(request) = unsafe { at.as_ref() } {
                // SAFETY: what a valid request points to is as `read_receive` requires.
                let receive = unsafe { read_receive(request, queue_pair)? };
                queue_pair.post_receive(locked, receive)?;
                at = request.next;
            }
            Ok(())
        })
    });
    if result != 0 && !bad.is_null() {
        // SAFETY: `bad` is not null, so valid for writing, as required above.
        unsafe { bad.write(at) };
    }
    result
}

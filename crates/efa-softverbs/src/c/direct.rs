//! Queries for the rings of the [direct data path](crate::direct).

use std::ffi::c_int;
use std::mem::offset_of;

use super::completion_queue::queue_of;
use super::queue_pair::queue_pair_of;
use super::{not_null, write_sized};
use crate::abi::*;
use crate::boundary::{INVALID, Outcome, code};
use crate::direct::completion;
use crate::queue_pair::RingInfo;

/// See `efadv_query_cq(3)`. From then on, completions of queue pairs whose rings the program uses are in the
/// ring. Fails with `EOPNOTSUPP` for a queue with a channel if the structure has no room for the doorbell.
///
/// # Safety
/// `into` must be null or writable for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_cq(
    cq: *mut ibv_cq,
    into: *mut efadv_cq_attr,
    length: u32,
) -> c_int {
    code(|| {
        let queue = queue_of(cq)?;
        let into = not_null(into)?;
        let length = length as usize;
        if length < offset_of!(efadv_cq_attr, doorbell) {
            return Err(INVALID);
        }
        // SAFETY: `queue_of` has found the handle, so the object exists.
        let depth = u32::try_from(unsafe { (*cq).cqe }).map_err(|_| INVALID)?;
        let takes_doorbell = length >= size_of::<efadv_cq_attr>();
        let ring = queue.open_ring(depth, takes_doorbell)?;
        let attributes = efadv_cq_attr {
            comp_mask: 0,
            buffer: ring.address,
            entry_size: completion::SIZE as u32,
            num_entries: ring.entries,
            doorbell: ring.doorbell,
        };
        // SAFETY: `into` is not null, so writable for `length` bytes, as required above.
        unsafe { write_sized(into, &attributes, length) };
        Ok(())
    })
}

/// See `efadv_query_qp_wqs(3)`.
///
/// # Safety
/// `send` and `receive` must be null or writable for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_qp_wqs(
    qp: *mut ibv_qp,
    send: *mut efadv_wq_attr,
    receive: *mut efadv_wq_attr,
    length: u32,
) -> c_int {
    code(|| {
        let queue_pair = queue_pair_of(qp)?;
        let (send, receive) = (not_null(send)?, not_null(receive)?);
        let (send_ring, receive_ring) =
            check_length(length).and_then(|()| queue_pair.open_rings())?;
        for (into, ring) in [(send, send_ring), (receive, receive_ring)] {
            // SAFETY: `into` is not null, so writable for `length` bytes, as required above.
            unsafe { write_sized(into, &attributes(&ring), length as usize) };
        }
        Ok(())
    })
}

/// Fails with `EINVAL` for a structure that has no room for what every caller needs.
fn check_length(length: u32) -> Outcome<()> {
    if (length as usize) < offset_of!(efadv_wq_attr, caps) { Err(INVALID) } else { Ok(()) }
}

fn attributes(ring: &RingInfo) -> efadv_wq_attr {
    efadv_wq_attr {
        comp_mask: 0,
        buffer: ring.address,
        entry_size: ring.size,
        num_entries: ring.entries,
        doorbell: ring.doorbell,
        max_batch: ring.max_batch,
        caps: if ring.long_ids { EFADV_WQ_CAPS_64_BIT_REQ_ID } else { 0 },
        reserved: [0; 2],
    }
}

//! The SRD queue pair: its life, and the posts of work, several with one doorbell.
//!
//! ```text
//!   RESET ─► INIT (queue key) ─► RTR ─► RTS (tries at a receiver that is not ready)
//!
//!   open ── ibv_wr_start
//!   send ── ibv_wr_send, set_sge or set_inline_data, set_ud_addr ┐ any number
//!   read, write ── ibv_wr_rdma_…, set_sge, set_ud_addr           ┘
//!   ring ── ibv_wr_complete: one doorbell for all since `open`
//! ```

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use efa_device::{DeviceError, Qkey, Qpn, QueuePairOptions};
use rdma_sys::*;

use crate::completion_queue::CompletionQueue;
use crate::context::Limits;
use crate::domain::ProtectionDomain;
use crate::efadv::*;
use crate::failure::{check, object, stays};

/// Longest chain of receives that is posted at once.
pub(crate) const RECEIVES: usize = 16;

/// A queue pair, destroyed at the end, before its completion queue.
#[derive(Debug)]
pub(crate) struct QueuePair {
    raw: NonNull<ibv_qp>,
    ex: NonNull<ibv_qp_ex>,
    /// Most bytes of a send that are put into the queue itself.
    pub(crate) max_inline: usize,
    pub(crate) send_depth: usize,
    pub(crate) receive_depth: usize,
    /// Posts since the last doorbell.
    open: u32,
    destroyed: bool,
    receives: Receives,
    pub(crate) completions: CompletionQueue,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs lets any thread use a queue pair; by `&mut` one at a time does. The pointers in
// `receives` are written before each use.
unsafe impl Send for QueuePair {}

/// Receives that wait to be posted.
struct Receives {
    requests: [ibv_recv_wr; RECEIVES],
    places: [ibv_sge; RECEIVES],
    count: usize,
}

impl std::fmt::Debug for Receives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receives").field("count", &self.count).finish_non_exhaustive()
    }
}

/// Memory on this side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) local_key: u32,
}

/// Where a work request goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) handle: NonNull<ibv_ah>,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: Qkey,
}

/// An operation on remote memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Remote {
    Read,
    Write,
    WriteWithImmediate(u32),
}

impl QueuePair {
    pub(crate) fn new(
        domain: Arc<ProtectionDomain>,
        completions: CompletionQueue,
        limits: &Limits,
        options: &QueuePairOptions,
    ) -> Result<Self, DeviceError> {
        let context = domain.context();
        let rdma = limits.rdma();
        // SAFETY: a structure of C for which all zero is valid.
        let mut attributes: ibv_qp_init_attr_ex = unsafe { zeroed() };
        attributes.send_cq = completions.plain();
        attributes.recv_cq = completions.plain();
        attributes.cap.max_send_wr = number(options.send_depth);
        attributes.cap.max_recv_wr = number(options.receive_depth);
        attributes.cap.max_send_sge = 1;
        attributes.cap.max_recv_sge = 1;
        attributes.cap.max_inline_data = inline_length(context.raw(), limits, options);
        attributes.qp_type = ibv_qp_type::IBV_QPT_DRIVER;
        attributes.sq_sig_all = 1;
        attributes.pd = domain.raw();
        attributes.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0
            | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        use ibv_qp_create_send_ops_flags as ops;
        let mut wanted = ops::IBV_QP_EX_WITH_SEND.0 | ops::IBV_QP_EX_WITH_SEND_WITH_IMM.0;
        if rdma.read {
            wanted |= ops::IBV_QP_EX_WITH_RDMA_READ.0;
        }
        if rdma.write {
            wanted |= ops::IBV_QP_EX_WITH_RDMA_WRITE.0;
            wanted |= ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0;
        }
        attributes.send_ops_flags = u64::from(wanted);
        let mut efa = efadv_qp_init_attr {
            driver_qp_type: EFADV_QP_DRIVER_TYPE_SRD,
            ..efadv_qp_init_attr::default()
        };
        if rdma.unsolicited_write_receive {
            efa.flags |= EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV;
        }
        // SAFETY: the context is open; both structures are complete, and the length is that of what
        // is said in the second one.
        let raw = unsafe {
            efadv_create_qp_ex(context.raw(), &mut attributes, &mut efa, FIRST_QP_INIT_ATTR)
        };
        let raw = object(raw, "efadv_create_qp_ex", domain.name())?;
        // SAFETY: the queue pair is new, and was asked for with operations of the extended form.
        let ex = unsafe { ibv_qp_to_qp_ex(raw.as_ptr()) };
        let ex = match object(ex, "ibv_qp_to_qp_ex", domain.name()) {
            Ok(ex) => ex,
            Err(error) => {
                // SAFETY: it was made above and is destroyed once.
                stays(unsafe { ibv_destroy_qp(raw.as_ptr()) }, "ibv_destroy_qp", domain.name());
                return Err(error);
            }
        };
        // SAFETY: structures of C for which all zero is valid.
        let (requests, places) = unsafe { (zeroed(), zeroed()) };
        let receives = Receives { requests, places, count: 0 };
        let this = Self {
            raw,
            ex,
            max_inline: attributes.cap.max_inline_data as usize,
            send_depth: options.send_depth,
            receive_depth: options.receive_depth,
            open: 0,
            destroyed: false,
            receives,
            completions,
            domain,
        };
        this.make_ready(limits, options)?;
        Ok(this)
    }

    fn make_ready(&self, limits: &Limits, options: &QueuePairOptions) -> Result<(), DeviceError> {
        use ibv_qp_attr_mask as mask;
        // SAFETY: a structure of C for which all zero is valid.
        let mut attributes: ibv_qp_attr = unsafe { zeroed() };
        attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attributes.port_num = 1;
        attributes.qkey = options.qkey.0;
        let init = mask::IBV_QP_STATE.0
            | mask::IBV_QP_PKEY_INDEX.0
            | mask::IBV_QP_PORT.0
            | mask::IBV_QP_QKEY.0;
        self.modify(&mut attributes, init, "ibv_modify_qp to INIT")?;
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
        self.modify(&mut attributes, mask::IBV_QP_STATE.0, "ibv_modify_qp to RTR")?;
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
        let mut rts = mask::IBV_QP_STATE.0 | mask::IBV_QP_SQ_PSN.0;
        if limits.retries_receiver_not_ready() {
            attributes.rnr_retry = options.rnr_retry.min(7);
            rts |= mask::IBV_QP_RNR_RETRY.0;
        }
        self.modify(&mut attributes, rts, "ibv_modify_qp to RTS")
    }

    fn modify(&self, to: &mut ibv_qp_attr, mask: u32, verb: &str) -> Result<(), DeviceError> {
        // SAFETY: the queue pair lives, and the attributes that the mask names are set.
        let code = unsafe { ibv_modify_qp(self.raw.as_ptr(), to, mask as c_int) };
        check(code, verb, self.domain.name())
    }

    pub(crate) fn number(&self) -> Qpn {
        // SAFETY: the queue pair lives; nobody writes this member.
        Qpn(unsafe { self.raw.as_ref().qp_num } as u16)
    }

    // ---- sends ----------------------------------------------------------------------------------

    /// Posts without a doorbell yet.
    pub(crate) fn is_open(&self) -> bool {
        self.open > 0
    }

    /// Begins a work request; the operation follows.
    #[inline]
    fn begin(&mut self, work: u64) -> *mut ibv_qp_ex {
        let qp = self.ex.as_ptr();
        if self.open == 0 {
            // SAFETY: the queue pair lives, and no batch is open.
            unsafe { ibv_wr_start(qp) };
        }
        self.open += 1;
        // SAFETY: members for the caller to set; `&mut self` makes this the only one.
        unsafe {
            (*qp).wr_id = work;
            (*qp).wr_flags = 0;
        }
        qp
    }

    /// Puts a datagram into the open batch. `from` must stay until the send has completed.
    #[inline]
    pub(crate) fn send(
        &mut self,
        work: u64,
        from: Place,
        bytes: *mut u8,
        to: Target,
        immediate: Option<u32>,
    ) {
        let inline = from.length as usize <= self.max_inline;
        let qp = self.begin(work);
        // SAFETY: a batch is open, which `begin` sees to. The place is registered memory of
        // `length` bytes at `bytes`, and the handle lives, by the caller's word.
        unsafe {
            match immediate {
                None => ibv_wr_send(qp),
                Some(immediate) => ibv_wr_send_imm(qp, immediate),
            }
            if inline {
                ibv_wr_set_inline_data(qp, bytes.cast::<c_void>(), from.length as usize);
            } else {
                ibv_wr_set_sge(qp, from.local_key, from.address, from.length);
            }
            ibv_wr_set_ud_addr(qp, to.handle.as_ptr(), to.qpn.0.into(), to.qkey.0);
        }
    }

    /// Puts an operation on remote memory into the open batch.
    pub(crate) fn remote(
        &mut self,
        work: u64,
        operation: Remote,
        local: Place,
        (key, address): (u32, u64),
        to: Target,
    ) {
        let qp = self.begin(work);
        // SAFETY: as in `send`; the queue pair was made with what the interface can do, and callers
        // ask for that alone.
        unsafe {
            match operation {
                Remote::Read => ibv_wr_rdma_read(qp, key, address),
                Remote::Write => ibv_wr_rdma_write(qp, key, address),
                Remote::WriteWithImmediate(immediate) => {
                    ibv_wr_rdma_write_imm(qp, key, address, immediate);
                }
            }
            ibv_wr_set_sge(qp, local.local_key, local.address, local.length);
            ibv_wr_set_ud_addr(qp, to.handle.as_ptr(), to.qpn.0.into(), to.qkey.0);
        }
    }

    /// Rings the doorbell for the open batch. After an error none of it was posted.
    #[inline]
    pub(crate) fn ring(&mut self) -> Result<(), DeviceError> {
        if self.open == 0 {
            return Ok(());
        }
        self.open = 0;
        // SAFETY: the queue pair lives and a batch is open.
        let code = unsafe { ibv_wr_complete(self.ex.as_ptr()) };
        check(code, "ibv_wr_complete", self.domain.name())
    }

    // ---- receives -------------------------------------------------------------------------------

    /// Receives that wait to be posted.
    #[inline]
    pub(crate) fn waiting_receives(&self) -> usize {
        self.receives.count
    }

    /// Adds a receive to those that wait; callers post them before there are more than
    /// [`RECEIVES`].
    #[inline]
    pub(crate) fn add_receive(&mut self, work: u64, into: Place) {
        let Receives { requests, places, count } = &mut self.receives;
        let (Some(request), Some(place)) = (requests.get_mut(*count), places.get_mut(*count))
        else {
            return;
        };
        *place = ibv_sge { addr: into.address, length: into.length, lkey: into.local_key };
        request.wr_id = work;
        request.num_sge = 1;
        *count += 1;
    }

    /// Posts the receives that wait; gives how many were not taken, the last ones, and why.
    #[inline]
    pub(crate) fn post_receives(&mut self) -> Result<(), (usize, DeviceError)> {
        let Receives { requests, places, count } = &mut self.receives;
        let posted = std::mem::take(count);
        if posted == 0 {
            return Ok(());
        }
        let (first, place) = (requests.as_mut_ptr(), places.as_mut_ptr());
        for index in 0..posted {
            let next = if index + 1 < posted { first.wrapping_add(index + 1) } else { null_mut() };
            // SAFETY: `posted` is at most the length of both arrays.
            unsafe {
                let request = first.add(index);
                (*request).sg_list = place.add(index);
                (*request).next = next;
            }
        }
        let mut refused = null_mut();
        // SAFETY: the queue pair lives, the chain is complete and in our arrays, and its memory
        // stays until the receives complete, which the owner of the buffers sees to.
        let code = unsafe { ibv_post_recv(self.raw.as_ptr(), first, &mut refused) };
        check(code, "ibv_post_recv", self.domain.name()).map_err(|error| {
            let all = first as usize;
            let taken = (refused as usize).saturating_sub(all) / size_of::<ibv_recv_wr>();
            (posted - taken.min(posted), error)
        })
    }

    /// The numbers of the last `count` receives of the chain that was posted last.
    pub(crate) fn refused(&self, posted: usize, count: usize) -> impl Iterator<Item = u64> + '_ {
        self.receives.requests[posted - count..posted].iter().map(|request| request.wr_id)
    }

    /// Destroys it, for who owns the buffers and must not use it afterwards; `false` if the
    /// interface keeps it, and with it the buffers.
    pub(crate) fn destroy(&mut self) -> bool {
        self.destroyed = true;
        if self.open > 0 {
            self.open = 0;
            // SAFETY: the queue pair lives and a batch is open.
            unsafe { ibv_wr_abort(self.ex.as_ptr()) };
        }
        // SAFETY: it came from `efadv_create_qp_ex`; the owner doesn't use it afterwards.
        !stays(unsafe { ibv_destroy_qp(self.raw.as_ptr()) }, "ibv_destroy_qp", self.domain.name())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.destroyed {
            self.destroy();
        }
    }
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// How much inline data to ask for. Newer interfaces take more than `inline_buf_size`, but may have
/// shorter queues then; libefa tells how short where it has the function.
fn inline_length(context: *mut ibv_context, limits: &Limits, options: &QueuePairOptions) -> u32 {
    let usual = u32::from(limits.efa.inline_buf_size);
    let more = u32::from(limits.efa.inline_buf_size_ex);
    let Some(depth) = Newer::find().get_max_sq_depth.filter(|_| more > usual) else {
        return usual;
    };
    let mut attributes = efadv_sq_depth_attr {
        max_send_sge: 1,
        max_rdma_sge: 1,
        max_inline_data: more,
        ..efadv_sq_depth_attr::default()
    };
    // SAFETY: the context is open, and the structure is of the length that is said.
    let depth = unsafe { depth(context, &mut attributes, size_of::<efadv_sq_depth_attr>() as u32) };
    let enough = usize::try_from(depth).is_ok_and(|depth| depth >= options.send_depth);
    if enough { more } else { usual }
}

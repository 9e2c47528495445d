//! The SRD queue pair: its states, and posts of work requests, several with one doorbell.
//!
//! ```text
//!   RESET ─► INIT (queue key) ─► RTR ─► RTS (RNR retries)
//!
//!   begin ── wr_start, unless a batch is open
//!   send ── wr_send, wr_set_sge or wr_set_inline_data, wr_set_ud_addr ┐ any number
//!   remote ── wr_rdma_…, wr_set_sge, wr_set_ud_addr                   ┘
//!   ring_doorbell ── wr_complete: one doorbell for the batch
//! ```

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use efa_device::{DeviceError, Qkey, Qpn, QueuePairOptions, Rdma};

use crate::abi::*;
use crate::completion_queue::CompletionQueue;
use crate::context::{Context, Limits};
use crate::domain::ProtectionDomain;
use crate::failure::{check, destroy_failed, object};

/// Longest chain of receives that is posted at once.
pub(crate) const RECEIVES: usize = 16;

/// A queue pair, destroyed on drop, before its completion queue.
#[derive(Debug)]
pub(crate) struct QueuePair {
    raw: NonNull<ibv_qp>,
    ex: NonNull<ibv_qp_ex>,
    functions: SendFunctions,
    post_recv: PostRecv,
    /// Most bytes of a send that are copied into the send queue.
    pub(crate) max_inline: usize,
    pub(crate) send_depth: usize,
    pub(crate) receive_depth: usize,
    /// Work requests since the last doorbell.
    batched: u32,
    destroyed: bool,
    receives: Receives,
    pub(crate) completions: CompletionQueue,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs and libefa have no thread-local state, so any thread may use the queue pair. The
// pointers in `receives` are written before each use.
unsafe impl Send for QueuePair {}

type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// The functions in `ibv_qp_ex`. libefa sets them when it makes the queue pair and never changes them.
#[derive(Clone, Copy, Debug)]
struct SendFunctions {
    wr_start: WrStart,
    wr_complete: WrComplete,
    wr_abort: WrStart,
    wr_send: WrSend,
    wr_send_imm: WrSendImm,
    wr_set_sge: WrSetSge,
    wr_set_inline_data: WrSetInlineData,
    wr_set_ud_addr: WrSetUdAddr,
    wr_rdma_read: Option<WrRdma>,
    wr_rdma_write: Option<WrRdma>,
    wr_rdma_write_imm: Option<WrRdmaImm>,
}

impl SendFunctions {
    /// `None` if one is missing that sends need.
    fn of(qp: &ibv_qp_ex) -> Option<Self> {
        Some(Self {
            wr_start: qp.wr_start?,
            wr_complete: qp.wr_complete?,
            wr_abort: qp.wr_abort?,
            wr_send: qp.wr_send?,
            wr_send_imm: qp.wr_send_imm?,
            wr_set_sge: qp.wr_set_sge?,
            wr_set_inline_data: qp.wr_set_inline_data?,
            wr_set_ud_addr: qp.wr_set_ud_addr?,
            wr_rdma_read: qp.wr_rdma_read,
            wr_rdma_write: qp.wr_rdma_write,
            wr_rdma_write_imm: qp.wr_rdma_write_imm,
        })
    }
}

/// Receives that are not posted yet.
struct Receives {
    requests: [ibv_recv_wr; RECEIVES],
    buffers: [ibv_sge; RECEIVES],
    count: usize,
}

impl std::fmt::Debug for Receives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receives").field("count", &self.count).finish_non_exhaustive()
    }
}

/// Registered memory of this side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalBuffer {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) local_key: u32,
}

/// The queue pair that a work request goes to.
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
        rdma: &Rdma,
        options: &QueuePairOptions,
    ) -> Result<Self, DeviceError> {
        let (context, libraries) = (domain.context(), domain.libraries());
        // SAFETY: a structure of numbers and pointers, for which zeros are valid.
        let mut attributes: ibv_qp_init_attr_ex = unsafe { zeroed() };
        attributes.send_cq = completions.plain();
        attributes.recv_cq = completions.plain();
        attributes.cap.max_send_wr = saturated(options.send_depth);
        attributes.cap.max_recv_wr = saturated(options.receive_depth);
        attributes.cap.max_send_sge = 1;
        attributes.cap.max_recv_sge = 1;
        attributes.cap.max_inline_data = inline_length(context, limits, options);
        attributes.qp_type = IBV_QPT_DRIVER;
        attributes.sq_sig_all = 1;
        attributes.pd = domain.raw();
        attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attributes.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
        if rdma.read {
            attributes.send_ops_flags |= IBV_QP_EX_WITH_RDMA_READ;
        }
        if rdma.write {
            attributes.send_ops_flags |=
                IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
        }
        let mut efa = efadv_qp_init_attr {
            driver_qp_type: EFADV_QP_DRIVER_TYPE_SRD,
            ..efadv_qp_init_attr::default()
        };
        if rdma.unsolicited_write_receive {
            efa.flags |= EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV;
        }
        // SAFETY: the context is open, the completion queue and the domain in `attributes` exist, and
        // `efa` is longer than the length that is passed.
        let raw = unsafe {
            (libraries.efa.efadv_create_qp_ex)(
                context.raw(),
                &mut attributes,
                &mut efa,
                FIRST_QP_INIT_ATTR,
            )
        };
        let raw = object(raw, "efadv_create_qp_ex", domain.name())?;
        let (ex, functions, post_recv) = match functions(&domain, raw) {
            Ok(functions) => functions,
            Err(error) => {
                // SAFETY: `raw` was made above and is not used afterwards.
                let code = unsafe { (libraries.ibverbs.ibv_destroy_qp)(raw.as_ptr()) };
                destroy_failed(code, "ibv_destroy_qp", domain.name());
                return Err(error);
            }
        };
        // SAFETY: structures of numbers and pointers, for which zeros are valid.
        let (requests, buffers) = unsafe { (zeroed(), zeroed()) };
        let this = Self {
            raw,
            ex,
            functions,
            post_recv,
            max_inline: attributes.cap.max_inline_data as usize,
            send_depth: options.send_depth,
            receive_depth: options.receive_depth,
            batched: 0,
            destroyed: false,
            receives: Receives { requests, buffers, count: 0 },
            completions,
            domain,
        };
        this.make_ready(limits, options)?;
        Ok(this)
    }

    fn make_ready(&self, limits: &Limits, options: &QueuePairOptions) -> Result<(), DeviceError> {
        // SAFETY: a structure of numbers, for which zeros are valid.
        let mut attributes: ibv_qp_attr = unsafe { zeroed() };
        attributes.qp_state = IBV_QPS_INIT;
        attributes.port_num = 1;
        attributes.qkey = options.qkey.0;
        let init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
        self.modify(&mut attributes, init, "ibv_modify_qp to INIT")?;
        attributes.qp_state = IBV_QPS_RTR;
        self.modify(&mut attributes, IBV_QP_STATE, "ibv_modify_qp to RTR")?;
        attributes.qp_state = IBV_QPS_RTS;
        let mut rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
        if limits.retries_rnr() {
            attributes.rnr_retry = options.rnr_retry.min(7);
            rts |= IBV_QP_RNR_RETRY;
        }
        self.modify(&mut attributes, rts, "ibv_modify_qp to RTS")
    }

    fn modify(&self, to: &mut ibv_qp_attr, mask: c_int, call: &str) -> Result<(), DeviceError> {
        let modify = self.domain.libraries().ibverbs.ibv_modify_qp;
        // SAFETY: the queue pair exists until `self` is dropped, and `to` is a complete structure.
        let code = unsafe { modify(self.raw.as_ptr(), to, mask) };
        check(code, call, self.domain.name())
    }

    /// Puts it into the error state, as an interface does when it aborts a queue pair.
    #[cfg(test)]
    pub(crate) fn fail(&self) -> Result<(), DeviceError> {
        // SAFETY: a structure of numbers, for which zeros are valid.
        let mut attributes: ibv_qp_attr = unsafe { zeroed() };
        attributes.qp_state = IBV_QPS_ERR;
        self.modify(&mut attributes, IBV_QP_STATE, "ibv_modify_qp to ERR")
    }

    pub(crate) fn number(&self) -> Qpn {
        // SAFETY: the queue pair exists until `self` is dropped, and the library writes `qp_num` only
        // when it makes the queue pair.
        Qpn(unsafe { (*self.raw.as_ptr()).qp_num } as u16)
    }

    // ---- sends ----------------------------------------------------------------------------------

    /// Whether work requests wait for a doorbell.
    pub(crate) fn has_batched(&self) -> bool {
        self.batched > 0
    }

    /// Begins a work request. The caller calls the function of an operation next.
    #[inline]
    fn begin(&mut self, wr_id: u64) -> *mut ibv_qp_ex {
        let qp = self.ex.as_ptr();
        if self.batched == 0 {
            // SAFETY: the queue pair exists, and no batch is open.
            unsafe { (self.functions.wr_start)(qp) };
        }
        self.batched += 1;
        // SAFETY: callers set these members before an operation. `&mut self` excludes other callers, and
        // the library reads them only in calls.
        unsafe {
            (*qp).wr_id = wr_id;
            (*qp).wr_flags = 0;
        }
        qp
    }

    /// Adds a datagram to the batch.
    ///
    /// # Safety
    /// * `bytes` must be the pointer to the `from.length` bytes at `from.address`, registered with
    ///   `from.local_key`.
    /// * They must stay allocated and registered, and `to.handle` must exist, until the send completes.
    #[inline]
    pub(crate) unsafe fn send(
        &mut self,
        wr_id: u64,
        from: LocalBuffer,
        bytes: *mut u8,
        to: Target,
        immediate: Option<u32>,
    ) {
        let inline = from.length as usize <= self.max_inline;
        let qp = self.begin(wr_id);
        let functions = &self.functions;
        // SAFETY: `begin` opened a batch. `bytes` are readable, and memory and handle stay valid until
        // the send completes, as the caller promises.
        unsafe {
            match immediate {
                None => (functions.wr_send)(qp),
                Some(immediate) => (functions.wr_send_imm)(qp, immediate),
            }
            if inline {
                (functions.wr_set_inline_data)(qp, bytes.cast::<c_void>(), from.length as usize);
            } else {
                (functions.wr_set_sge)(qp, from.local_key, from.address, from.length);
            }
            (functions.wr_set_ud_addr)(qp, to.handle.as_ptr(), to.qpn.0.into(), to.qkey.0);
        }
    }

    /// Adds an operation on remote memory to the batch.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for an operation that the queue pair was not created with.
    ///
    /// # Safety
    /// The memory of `local` must stay allocated and registered, and `to.handle` must exist, until the
    /// operation completes.
    pub(crate) unsafe fn remote(
        &mut self,
        wr_id: u64,
        operation: Remote,
        local: LocalBuffer,
        (key, address): (u32, u64),
        to: Target,
    ) -> Result<(), DeviceError> {
        enum Start {
            Plain(WrRdma),
            WithImmediate(WrRdmaImm, u32),
        }
        let functions = self.functions;
        let (start, operation) = match operation {
            Remote::Read => (functions.wr_rdma_read.map(Start::Plain), "RDMA read"),
            Remote::Write => (functions.wr_rdma_write.map(Start::Plain), "RDMA write"),
            Remote::WriteWithImmediate(immediate) => {
                let with = |function| Start::WithImmediate(function, immediate);
                (functions.wr_rdma_write_imm.map(with), "RDMA write with immediate data")
            }
        };
        let start = start.ok_or(DeviceError::Unsupported { operation })?;
        let qp = self.begin(wr_id);
        // SAFETY: `begin` opened a batch. Memory and handle stay valid until the operation completes, as
        // the caller promises.
        unsafe {
            match start {
                Start::Plain(function) => function(qp, key, address),
                Start::WithImmediate(function, immediate) => function(qp, key, address, immediate),
            }
            (functions.wr_set_sge)(qp, local.local_key, local.address, local.length);
            (functions.wr_set_ud_addr)(qp, to.handle.as_ptr(), to.qpn.0.into(), to.qkey.0);
        }
        Ok(())
    }

    /// Rings the doorbell for the batch. After an error none of it was posted.
    #[inline]
    pub(crate) fn ring_doorbell(&mut self) -> Result<(), DeviceError> {
        if self.batched == 0 {
            return Ok(());
        }
        self.batched = 0;
        // SAFETY: the queue pair exists, and `begin` opened the batch that is closed here.
        let code = unsafe { (self.functions.wr_complete)(self.ex.as_ptr()) };
        check(code, "ibv_wr_complete", self.domain.name())
    }

    // ---- receives -------------------------------------------------------------------------------

    /// How many receives were added and not posted yet.
    #[inline]
    pub(crate) fn waiting_receives(&self) -> usize {
        self.receives.count
    }

    /// Adds a receive to the chain of the next [`post_receives`](Self::post_receives). Does nothing if
    /// the chain has [`RECEIVES`] already.
    ///
    /// # Safety
    /// The memory of `into` must stay allocated and registered, and nobody may access it, until the
    /// receive completes or is refused.
    #[inline]
    pub(crate) unsafe fn add_receive(&mut self, wr_id: u64, into: LocalBuffer) {
        let Receives { requests, buffers, count } = &mut self.receives;
        let (Some(request), Some(buffer)) = (requests.get_mut(*count), buffers.get_mut(*count))
        else {
            return;
        };
        *buffer = ibv_sge { addr: into.address, length: into.length, lkey: into.local_key };
        request.wr_id = wr_id;
        request.num_sge = 1;
        *count += 1;
    }

    /// Posts the receives that were added. An error says how many of them were refused, counted from
    /// the last, and why.
    #[inline]
    pub(crate) fn post_receives(&mut self) -> Result<(), (usize, DeviceError)> {
        let Receives { requests, buffers, count } = &mut self.receives;
        let posted = std::mem::take(count);
        if posted == 0 {
            return Ok(());
        }
        let (first, buffer) = (requests.as_mut_ptr(), buffers.as_mut_ptr());
        for index in 0..posted {
            let next = if index + 1 < posted { first.wrapping_add(index + 1) } else { null_mut() };
            // SAFETY: `index < posted`, which is at most the length of both arrays.
            unsafe {
                let request = first.add(index);
                (*request).sg_list = buffer.add(index);
                (*request).next = next;
            }
        }
        let mut refused = null_mut();
        // SAFETY: the queue pair exists, and the chain is complete and in our arrays. Its memory stays
        // valid until the receives complete, which the callers of `add_receive` promised.
        let code = unsafe { (self.post_recv)(self.raw.as_ptr(), first, &mut refused) };
        check(code, "ibv_post_recv", self.domain.name()).map_err(|error| {
            let taken =
                (refused as usize).saturating_sub(first as usize) / size_of::<ibv_recv_wr>();
            (posted - taken.min(posted), error)
        })
    }

    /// The number of a receive of the last chain, by its place.
    pub(crate) fn added(&self, place: usize) -> u64 {
        self.receives.requests[place].wr_id
    }

    /// Destroys the queue pair. Returns `false` if that failed; then the interface may still access the
    /// buffers of its work requests. It doesn't access those of a forked child.
    ///
    /// # Safety
    /// No other function of it may be called afterwards.
    pub(crate) unsafe fn destroy(&mut self) -> bool {
        self.destroyed = true;
        if self.domain.context().is_inherited() {
            return true;
        }
        if self.batched > 0 {
            self.batched = 0;
            // SAFETY: the queue pair exists, and `begin` opened the batch that is closed here.
            unsafe { (self.functions.wr_abort)(self.ex.as_ptr()) };
        }
        let destroy = self.domain.libraries().ibverbs.ibv_destroy_qp;
        // SAFETY: `raw` is of `efadv_create_qp_ex` and not used afterwards, as the caller promises; the
        // drop sees `destroyed`.
        let code = unsafe { destroy(self.raw.as_ptr()) };
        !destroy_failed(code, "ibv_destroy_qp", self.domain.name())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.destroyed {
            // SAFETY: nothing is called on a dropped queue pair.
            unsafe { self.destroy() };
        }
    }
}

/// The extended form of a new queue pair, and the functions of posts.
fn functions(
    domain: &ProtectionDomain,
    raw: NonNull<ibv_qp>,
) -> Result<(NonNull<ibv_qp_ex>, SendFunctions, PostRecv), DeviceError> {
    // SAFETY: the caller made the queue pair, with operations of the extended form.
    let ex = unsafe { (domain.libraries().ibverbs.ibv_qp_to_qp_ex)(raw.as_ptr()) };
    let ex = object(ex, "ibv_qp_to_qp_ex", domain.name())?;
    // SAFETY: the queue pair is new, and only the caller has it.
    let send = SendFunctions::of(unsafe { ex.as_ref() });
    // SAFETY: the domain holds the context, and nobody writes its functions after `ibv_open_device`.
    let receive = unsafe { (*domain.context().raw()).ops.post_recv };
    match (send, receive) {
        (Some(send), Some(receive)) => Ok((ex, send, receive)),
        _ => Err(DeviceError::Unsupported { operation: "extended queue pair" }),
    }
}

fn saturated(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// How much inline data to request, in bytes. Newer interfaces take more than `inline_buf_size`, but
/// may have shorter send queues then; newer releases of libefa say how short.
fn inline_length(context: &Context, limits: &Limits, options: &QueuePairOptions) -> u32 {
    let usual = u32::from(limits.efa.inline_buf_size);
    let wide = u32::from(limits.efa.inline_buf_size_ex);
    let query = context.libraries().efa_optional.efadv_get_max_sq_depth;
    let Some(query) = query.filter(|_| wide > usual) else {
        return usual;
    };
    let mut attributes = efadv_sq_depth_attr {
        max_send_sge: 1,
        max_rdma_sge: 1,
        max_inline_data: wide,
        ..efadv_sq_depth_attr::default()
    };
    let length = size_of::<efadv_sq_depth_attr>() as u32;
    // SAFETY: the context is open, and `attributes` is of the `length` that is passed.
    let depth = unsafe { query(context.raw(), &mut attributes, length) };
    let enough = usize::try_from(depth).is_ok_and(|depth| depth >= options.send_depth);
    if enough { wide } else { usual }
}

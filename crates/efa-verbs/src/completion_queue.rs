//! The completion queue: several completions a poll, taken out of the library's form.

use std::mem::zeroed;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_device::{AddressHandle, DeviceError, Gid, Qpn, Source, Status};
use rdma_sys::{
    ibv_cq, ibv_cq_ex, ibv_cq_ex_to_cq, ibv_cq_init_attr_ex, ibv_create_cq_wc_flags,
    ibv_destroy_cq, ibv_end_poll, ibv_gid, ibv_next_poll, ibv_poll_cq_attr, ibv_start_poll,
    ibv_wc_flags, ibv_wc_opcode, ibv_wc_read_byte_len, ibv_wc_read_imm_data, ibv_wc_read_opcode,
    ibv_wc_read_slid, ibv_wc_read_src_qp, ibv_wc_read_vendor_err, ibv_wc_read_wc_flags,
    ibv_wc_status,
};

use crate::context::{Context, Limits};
use crate::efadv::*;
use crate::failure::{object, stays};
use crate::handles::UNKNOWN;

/// Completions of one poll, at most.
pub(crate) const BATCH: usize = 16;

/// What was finished, as the library tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    /// The number given at the post; 0 for a write without a receive buffer.
    pub(crate) work: u64,
    pub(crate) end: End,
    /// What follows is of what came in.
    pub(crate) length: u32,
    pub(crate) immediate: Option<u32>,
    pub(crate) source: Source,
}

/// How it was.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// A send, read or write of our own: whoever has its number knows which.
    Done,
    Failed(Status),
    /// A datagram came in.
    Arrived,
    /// A remote write with immediate data.
    Written,
    /// The same, that took no receive buffer.
    WrittenUnsolicited,
}

const NOTHING: Finished = Finished {
    work: 0,
    end: End::Done,
    length: 0,
    immediate: None,
    source: Source { address_handle: None, qpn: Qpn(0), gid: None },
};

/// Those of one poll, in their order.
#[derive(Debug)]
pub(crate) struct Batch {
    entries: [Finished; BATCH],
    next: usize,
    end: usize,
}

impl Batch {
    pub(crate) const EMPTY: Self = Self { entries: [NOTHING; BATCH], next: 0, end: 0 };

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.end
    }

    /// How many are left.
    pub(crate) fn len(&self) -> usize {
        self.end - self.next
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<&Finished> {
        if self.is_empty() {
            return None;
        }
        let entry = self.entries.get(self.next);
        self.next += 1;
        entry
    }
}

/// A completion queue, destroyed at the end.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    raw: NonNull<ibv_cq_ex>,
    /// Its EFA form, if it tells the GIDs of unknown senders or of unsolicited writes.
    efa: Option<NonNull<efadv_cq>>,
    tells_gid: bool,
    tells_unsolicited: bool,
    context: Arc<Context>,
}

// SAFETY: libibverbs lets any thread use a completion queue.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    /// One with room for so many completions. `Err` for one that the library refuses.
    pub(crate) fn new(
        context: Arc<Context>,
        limits: &Limits,
        entries: usize,
    ) -> Result<Self, DeviceError> {
        // SAFETY: a structure of C for which all zero is valid.
        let mut attributes: ibv_cq_init_attr_ex = unsafe { zeroed() };
        attributes.cqe = u32::try_from(entries).unwrap_or(u32::MAX);
        let standard = [
            ibv_create_cq_wc_flags::IBV_WC_EX_WITH_BYTE_LEN,
            ibv_create_cq_wc_flags::IBV_WC_EX_WITH_IMM,
            ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SRC_QP,
            ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SLID,
        ];
        attributes.wc_flags = standard.iter().fold(0, |all, flag| all | u64::from(flag.0));
        let tells_gid = limits.tells_source_gid();
        let tells_unsolicited = limits.rdma().unsolicited_write_receive;
        let mut wanted = 0;
        if tells_gid {
            wanted |= EFADV_WC_EX_WITH_SGID;
        }
        if tells_unsolicited {
            wanted |= EFADV_WC_EX_WITH_IS_UNSOLICITED;
        }
        let mut efa = efadv_cq_init_attr::new(wanted);
        // SAFETY: the context is open; both structures are complete, and the length is that of what
        // is said in the second one.
        let raw = unsafe {
            efadv_create_cq(context.raw(), &mut attributes, &mut efa, FIRST_CQ_INIT_ATTR)
        };
        let raw = object(raw, "efadv_create_cq", context.name())?;
        // SAFETY: the queue is new and of libefa.
        let efa = NonNull::new(unsafe { efadv_cq_from_ibv_cq_ex(raw.as_ptr()) });
        Ok(Self { raw, efa, tells_gid, tells_unsolicited, context })
    }

    /// In the form that queue pairs are made with.
    pub(crate) fn plain(&self) -> *mut ibv_cq {
        // SAFETY: the one begins with the members of the other.
        unsafe { ibv_cq_ex_to_cq(self.raw.as_ptr()) }
    }

    /// Takes what is finished; a poll of the interface, and one lock of the library's.
    #[inline]
    pub(crate) fn poll(&mut self, batch: &mut Batch) {
        batch.next = 0;
        batch.end = 0;
        let cq = self.raw.as_ptr();
        let mut nothing_special = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: the queue lives; `&mut self` makes this the only poll of it.
        if unsafe { ibv_start_poll(cq, &mut nothing_special) } != 0 {
            return;
        }
        for entry in &mut batch.entries {
            // SAFETY: a poll is under way and has a current completion.
            unsafe { self.current(entry) };
            batch.end += 1;
            // SAFETY: a poll is under way.
            if batch.end == BATCH || unsafe { ibv_next_poll(cq) } != 0 {
                break;
            }
        }
        // SAFETY: a poll is under way.
        unsafe { ibv_end_poll(cq) };
    }

    /// Takes the current completion down. Each field is put where it stays.
    ///
    /// # Safety
    /// A poll must be under way and have a current completion.
    #[inline]
    unsafe fn current(&self, entry: &mut Finished) {
        let cq = self.raw.as_ptr();
        // SAFETY: the queue lives; the library sets these two itself.
        let (status, work) = unsafe { ((*cq).status, (*cq).wr_id) };
        entry.work = work;
        if status != ibv_wc_status::IBV_WC_SUCCESS {
            // SAFETY: the caller's promise.
            entry.end = End::Failed(meaning(unsafe { ibv_wc_read_vendor_err(cq) }));
            return;
        }
        // SAFETY: the caller's promise.
        entry.end = match unsafe { ibv_wc_read_opcode(cq) } {
            ibv_wc_opcode::IBV_WC_RECV => End::Arrived,
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM if self.is_unsolicited() => {
                End::WrittenUnsolicited
            }
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => End::Written,
            _ => End::Done,
        };
        if let End::Done = entry.end {
            return;
        }
        // SAFETY: the caller's promise; the queue was made to tell these.
        unsafe {
            let flags = ibv_wc_read_wc_flags(cq);
            let has_immediate = flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
            entry.length = ibv_wc_read_byte_len(cq);
            entry.immediate = has_immediate.then(|| ibv_wc_read_imm_data(cq));
            entry.source = self.source();
        }
    }

    /// # Safety
    /// As [`current`](Self::current), and the completion must be of a receive.
    #[inline(always)]
    unsafe fn source(&self) -> Source {
        let cq = self.raw.as_ptr();
        // SAFETY: the caller's promise; the queue was made to tell these.
        let (handle, qpn) = unsafe { (ibv_wc_read_slid(cq), ibv_wc_read_src_qp(cq)) };
        // Queue pair numbers of EFA have 16 bits.
        let qpn = Qpn(qpn as u16);
        if handle != UNKNOWN {
            return Source { address_handle: Some(AddressHandle(handle as u16)), qpn, gid: None };
        }
        Source { address_handle: None, qpn, gid: self.source_gid() }
    }

    /// The GID of a sender without address handle, if the interface tells it.
    #[cold]
    fn source_gid(&self) -> Option<Gid> {
        let efa = self.efa.filter(|_| self.tells_gid)?.as_ptr();
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the EFA form lives with the queue and has this function, as it was asked for. It
        // is called while a poll is under way, and has room for a GID.
        let told = unsafe { (*efa).wc_read_sgid.is_some_and(|read| read(efa, &mut gid) >= 0) };
        // SAFETY: a GID is any 16 bytes.
        told.then_some(Gid(unsafe { gid.raw }))
    }

    #[cold]
    fn is_unsolicited(&self) -> bool {
        let Some(efa) = self.efa.filter(|_| self.tells_unsolicited) else { return false };
        let efa = efa.as_ptr();
        // SAFETY: as in `source_gid`; the structure is long enough, as the library took the flag.
        unsafe { (*efa).wc_is_unsolicited.is_some_and(|is| is(efa)) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: it came from `efadv_create_cq`, and the queue pair that has it is dropped first.
        stays(unsafe { ibv_destroy_cq(self.plain()) }, "ibv_destroy_cq", self.context.name());
        self.efa = None;
    }
}

/// What the interface's number means; one that is not known is an error like any.
fn meaning(code: u32) -> Status {
    let status = u8::try_from(code).ok().and_then(Status::from_code);
    status.unwrap_or(Status::BadStatus)
}

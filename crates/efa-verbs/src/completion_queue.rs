//! The completion queue. A poll takes several completions out of the library's queue.

use std::ffi::c_int;
use std::mem::zeroed;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_device::{AddressHandle, DeviceError, Gid, Qpn, Rdma, Source, Status};

use crate::abi::*;
use crate::channel::{self, Channel};
use crate::context::{Context, Limits};
use crate::failure::{destroy_failed, last_error};
use crate::handles::UNKNOWN;

/// Most completions of one poll.
pub(crate) const BATCH: usize = 16;

/// A completion queue entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkCompletion {
    /// The number given at the post; 0 for a write that took no receive buffer.
    pub(crate) wr_id: u64,
    pub(crate) outcome: Outcome,
    /// Bytes received. Like the members below, set only for what came in.
    pub(crate) length: u32,
    pub(crate) immediate: Option<u32>,
    pub(crate) source: Source,
}

/// What happened to a work request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// A send, read or write of this side succeeded; its `wr_id` says which.
    Done,
    Failed(Status),
    /// A remote write with immediate data that takes no receive buffer failed. It has no work request
    /// here, and its `wr_id` is 0.
    FailedUnsolicited(Status),
    /// A datagram came in.
    Received,
    /// A remote write with immediate data came in and took a receive buffer.
    Written,
    /// A remote write with immediate data came in and took no receive buffer.
    WrittenUnsolicited,
}

pub(crate) const NOTHING: WorkCompletion = WorkCompletion {
    wr_id: 0,
    outcome: Outcome::Done,
    length: 0,
    immediate: None,
    source: Source { address_handle: None, qpn: Qpn(0), gid: None },
};

/// The completions of one poll, oldest first.
#[derive(Debug)]
pub(crate) struct Batch {
    entries: [WorkCompletion; BATCH],
    next: usize,
    end: usize,
}

impl Batch {
    pub(crate) const EMPTY: Self = Self { entries: [NOTHING; BATCH], next: 0, end: 0 };

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.end
    }

    /// One completion.
    #[cfg(test)]
    pub(crate) fn of(entry: WorkCompletion) -> Self {
        let mut entries = [NOTHING; BATCH];
        entries[0] = entry;
        Self { entries, next: 0, end: 1 }
    }

    /// How many are left.
    pub(crate) fn len(&self) -> usize {
        self.end - self.next
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<&WorkCompletion> {
        if self.is_empty() {
            return None;
        }
        let entry = self.entries.get(self.next);
        self.next += 1;
        entry
    }
}

/// A completion queue, destroyed on drop, before its channel.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    raw: NonNull<ibv_cq_ex>,
    functions: PollFunctions,
    /// Where the interface reports GIDs of unknown senders.
    source_gid: Option<SourceGid>,
    /// Where the interface has writes that take no receive buffer.
    is_unsolicited: Option<IsUnsolicited>,
    /// If a thread can sleep until there is a completion.
    channel: Option<Channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs and libefa have no thread-local state, so any thread may use the queue.
unsafe impl Send for CompletionQueue {}

/// The functions in `ibv_cq_ex`. libefa sets them when it makes the queue and never changes them.
#[derive(Clone, Copy, Debug)]
struct PollFunctions {
    start_poll: StartPoll,
    next_poll: NextPoll,
    end_poll: EndPoll,
    read_opcode: ReadOpcode,
    read_vendor_err: ReadU32,
    read_byte_len: ReadU32,
    read_imm_data: ReadU32,
    read_src_qp: ReadU32,
    read_wc_flags: ReadU32,
    read_slid: ReadU32,
}

/// `efadv_wc_read_sgid` and its queue.
#[derive(Clone, Copy, Debug)]
struct SourceGid {
    queue: NonNull<efadv_cq>,
    read: unsafe extern "C" fn(*mut efadv_cq, *mut ibv_gid) -> c_int,
}

/// `efadv_wc_is_unsolicited` and its queue.
#[derive(Clone, Copy, Debug)]
struct IsUnsolicited {
    queue: NonNull<efadv_cq>,
    is: unsafe extern "C" fn(*mut efadv_cq) -> bool,
}

impl PollFunctions {
    /// `None` if one is missing, which the queue was created with.
    fn of(cq: &ibv_cq_ex) -> Option<Self> {
        Some(Self {
            start_poll: cq.start_poll?,
            next_poll: cq.next_poll?,
            end_poll: cq.end_poll?,
            read_opcode: cq.read_opcode?,
            read_vendor_err: cq.read_vendor_err?,
            read_byte_len: cq.read_byte_len?,
            read_imm_data: cq.read_imm_data?,
            read_src_qp: cq.read_src_qp?,
            read_wc_flags: cq.read_wc_flags?,
            read_slid: cq.read_slid?,
        })
    }

    /// What a completion with an error means. The library gives those of unsolicited writes the `wr_id` 0,
    /// so that only opcode and flag tell them from those of work requests.
    ///
    /// # Safety
    /// A poll of the queue `cq` must have been started, and have a current completion; `unsolicited` must be
    /// of the same queue.
    #[cold]
    unsafe fn failure(&self, cq: *mut ibv_cq_ex, unsolicited: Option<IsUnsolicited>) -> Outcome {
        // SAFETY: the poll has a current completion, as the caller promises, and the flag is read only if
        // it is of a write with immediate data.
        unsafe {
            let status = status_of((self.read_vendor_err)(cq));
            if (self.read_opcode)(cq) == IBV_WC_RECV_RDMA_WITH_IMM && is_unsolicited(unsolicited) {
                Outcome::FailedUnsolicited(status)
            } else {
                Outcome::Failed(status)
            }
        }
    }
}

impl CompletionQueue {
    /// A queue of `entries` completions, of a queue pair with `rdma`. A thread can sleep on a waitable one.
    pub(crate) fn new(
        context: Arc<Context>,
        limits: &Limits,
        rdma: &Rdma,
        entries: usize,
        waitable: bool,
    ) -> Result<Self, DeviceError> {
        let libraries = context.libraries();
        let channel = waitable.then(|| Channel::new(&context)).transpose()?;
        // SAFETY: a structure of numbers and pointers, for which zeros are valid.
        let mut attributes: ibv_cq_init_attr_ex = unsafe { zeroed() };
        attributes.cqe = u32::try_from(entries).unwrap_or(u32::MAX);
        attributes.channel = channel.as_ref().map_or(null_mut(), Channel::raw);
        attributes.wc_flags = IBV_WC_EX_WITH_BYTE_LEN
            | IBV_WC_EX_WITH_IMM
            | IBV_WC_EX_WITH_SRC_QP
            | IBV_WC_EX_WITH_SLID;
        let mut wanted = 0;
        if limits.reports_source_gid() {
            wanted |= EFADV_WC_EX_WITH_SGID;
        }
        if rdma.unsolicited_write_receive {
            wanted |= EFADV_WC_EX_WITH_IS_UNSOLICITED;
        }
        let mut efa = efadv_cq_init_attr::new(wanted);
        // SAFETY: the context is open, `attributes` is complete, and `efa` is longer than the length
        // that is passed.
        let raw = unsafe {
            (libraries.efa.efadv_create_cq)(
                context.raw(),
                &mut attributes,
                &mut efa,
                FIRST_CQ_INIT_ATTR,
            )
        };
        let raw = match NonNull::new(raw) {
            Some(raw) => raw,
            None if waitable => return Err(channel::error("efadv_create_cq", &context)),
            None => return Err(last_error("efadv_create_cq", context.name())),
        };
        // SAFETY: `raw` was made above, and nobody else has it.
        let functions = PollFunctions::of(unsafe { raw.as_ref() });
        // SAFETY: `raw` was made by `efadv_create_cq` above.
        let efa = unsafe { (libraries.efa.efadv_cq_from_ibv_cq_ex)(raw.as_ptr()) };
        let efa = NonNull::new(efa);
        let Some(functions) = functions else {
            // SAFETY: `raw` was made above and is not used afterwards.
            let code = unsafe { (libraries.ibverbs.ibv_destroy_cq)(raw.as_ptr().cast()) };
            destroy_failed(code, "ibv_destroy_cq", context.name());
            return Err(DeviceError::Unsupported { operation: "extended completion queue" });
        };
        let source_gid = efa.filter(|_| wanted & EFADV_WC_EX_WITH_SGID != 0).and_then(|queue| {
            // SAFETY: `queue` is valid as long as the completion queue, and has this member in every
            // release with `efadv_create_cq`.
            let read = unsafe { (*queue.as_ptr()).wc_read_sgid };
            read.map(|read| SourceGid { queue, read })
        });
        let unsolicited = wanted & EFADV_WC_EX_WITH_IS_UNSOLICITED != 0;
        let is_unsolicited = efa.filter(|_| unsolicited).and_then(|queue| {
            // SAFETY: `queue` is valid as long as the completion queue. It has this member, as the
            // library accepted the flag, which came with the member.
            let is = unsafe { (*queue.as_ptr()).wc_is_unsolicited };
            is.map(|is| IsUnsolicited { queue, is })
        });
        Ok(Self { raw, functions, source_gid, is_unsolicited, channel, context })
    }

    /// In the form that queue pairs are created with: `ibv_cq_ex` begins with the members of `ibv_cq`.
    pub(crate) fn plain(&self) -> *mut ibv_cq {
        self.raw.as_ptr().cast()
    }

    /// The descriptor to sleep on.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(Channel::descriptor)
    }

    /// Makes the descriptor readable with the next completion, and not before. Poll once more afterwards.
    pub(crate) fn request_event(&mut self) -> Result<(), DeviceError> {
        let cq = self.plain();
        let channel = self.channel.as_mut().ok_or(channel::UNSUPPORTED)?;
        // SAFETY: the queue exists until `self` is dropped, and was created with this channel.
        unsafe { channel.request(cq) }
    }

    /// Replaces `batch` by what is completed. Polls the interface once and takes the library's lock
    /// once.
    #[inline]
    pub(crate) fn poll(&mut self, batch: &mut Batch) {
        batch.next = 0;
        batch.end = 0;
        let (cq, functions) = (self.raw.as_ptr(), &self.functions);
        let mut attributes = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: the queue exists until `self` is dropped, and `&mut self` makes this its only poll.
        if unsafe { (functions.start_poll)(cq, &mut attributes) } != 0 {
            return;
        }
        for entry in &mut batch.entries {
            // SAFETY: `start_poll` or `next_poll` returned 0, so the poll has a current completion.
            unsafe { self.read_current(entry) };
            batch.end += 1;
            // SAFETY: the poll was started and not ended.
            if batch.end == BATCH || unsafe { (functions.next_poll)(cq) } != 0 {
                break;
            }
        }
        // SAFETY: the poll was started and is ended here alone.
        unsafe { (functions.end_poll)(cq) };
    }

    /// Writes the current completion into `entry`, each member in place.
    ///
    /// # Safety
    /// A poll must have been started, and have a current completion.
    #[inline]
    unsafe fn read_current(&self, entry: &mut WorkCompletion) {
        let (cq, functions) = (self.raw.as_ptr(), &self.functions);
        // SAFETY: the queue exists, and nobody writes these members between `next_poll` calls.
        let (status, wr_id) = unsafe { ((*cq).status, (*cq).wr_id) };
        entry.wr_id = wr_id;
        if status != IBV_WC_SUCCESS {
            // SAFETY: the poll has a current completion, as the caller promises.
            entry.outcome = unsafe { functions.failure(cq, self.is_unsolicited) };
            return;
        }
        // SAFETY: the poll has a current completion, as the caller promises.
        entry.outcome = match unsafe { (functions.read_opcode)(cq) } {
            IBV_WC_RECV => Outcome::Received,
            // SAFETY: the poll has a current completion, as the caller promises.
            IBV_WC_RECV_RDMA_WITH_IMM if unsafe { is_unsolicited(self.is_unsolicited) } => {
                Outcome::WrittenUnsolicited
            }
            IBV_WC_RECV_RDMA_WITH_IMM => Outcome::Written,
            _ => Outcome::Done,
        };
        if let Outcome::Done = entry.outcome {
            return;
        }
        // SAFETY: the poll has a current completion, as the caller promises, and it is of a receive.
        unsafe {
            let has_immediate = (functions.read_wc_flags)(cq) & IBV_WC_WITH_IMM != 0;
            entry.length = (functions.read_byte_len)(cq);
            entry.immediate = has_immediate.then(|| (functions.read_imm_data)(cq));
            entry.source = self.source(matches!(entry.outcome, Outcome::Received));
        }
    }

    /// The sender. For a write there is no GID: its completion has upper bits of the length in that place.
    ///
    /// # Safety
    /// A poll must have been started, and have a current completion of a receive.
    #[inline(always)]
    unsafe fn source(&self, has_gid: bool) -> Source {
        let cq = self.raw.as_ptr();
        // SAFETY: the poll has a current completion of a receive, as the caller promises.
        let (handle, qpn) =
            unsafe { ((self.functions.read_slid)(cq), (self.functions.read_src_qp)(cq)) };
        // Queue pair numbers of EFA have 16 bits.
        let qpn = Qpn(qpn as u16);
        if handle != UNKNOWN {
            return Source { address_handle: Some(AddressHandle(handle as u16)), qpn, gid: None };
        }
        // SAFETY: the poll has a current completion of a receive, as the caller promises.
        let gid = if has_gid { unsafe { self.read_source_gid() } } else { None };
        Source { address_handle: None, qpn, gid }
    }

    /// The GID of a sender without address handle, if the interface reports it.
    ///
    /// # Safety
    /// A poll must have been started, and have a current completion of a receive.
    #[cold]
    unsafe fn read_source_gid(&self) -> Option<Gid> {
        let SourceGid { queue, read } = self.source_gid?;
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: `queue` exists as long as the completion queue, `gid` may be written, and the poll has
        // a current completion, as the caller promises.
        let code = unsafe { read(queue.as_ptr(), &mut gid) };
        (code >= 0).then_some(Gid(gid.raw))
    }
}

/// Whether the current completion is of a write that took no receive buffer.
///
/// # Safety
/// A poll of the queue must have been started, and have a current completion of a write with immediate data.
#[cold]
unsafe fn is_unsolicited(reported: Option<IsUnsolicited>) -> bool {
    let Some(IsUnsolicited { queue, is }) = reported else { return false };
    // SAFETY: `queue` exists as long as the completion queue, and the poll has a current completion, as the
    // caller promises.
    unsafe { is(queue.as_ptr()) }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        let cq = self.plain();
        if let Some(channel) = &mut self.channel {
            // SAFETY: the queue exists, and was created with this channel.
            unsafe { channel.acknowledge(cq) };
        }
        // SAFETY: `raw` is of `efadv_create_cq` and destroyed here alone. The queue pair that uses it
        // owns it, and is destroyed before its members are dropped.
        let code = unsafe { (self.context.libraries().ibverbs.ibv_destroy_cq)(cq) };
        destroy_failed(code, "ibv_destroy_cq", self.context.name());
    }
}

/// The status of the interface's number; an unknown number is `BadStatus`, and logged once.
fn status_of(code: u32) -> Status {
    let status = u8::try_from(code).ok().and_then(Status::from_code);
    status.unwrap_or_else(|| {
        if is_first(code) {
            tracing::warn!(code, "completion status of the interface is not known");
        }
        Status::BadStatus
    })
}

/// Whether no thread asked for this number before. Those that don't fit the byte that statuses have count as
/// one number.
fn is_first(code: u32) -> bool {
    static SEEN: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    let code = u8::try_from(code).unwrap_or(u8::MAX);
    let bit = 1 << (code % 64);
    SEEN[usize::from(code / 64)].fetch_or(bit, Ordering::Relaxed) & bit == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_that_lacks_a_poll_function_is_refused() {
        // SAFETY: a structure of numbers, pointers and optional functions, for which zeros are valid.
        let cq: ibv_cq_ex = unsafe { zeroed() };
        assert!(cq.context.is_null());
        assert!(PollFunctions::of(&cq).is_none());
    }

    #[test]
    fn failed_unsolicited_write_is_told_from_failed_work_requests() {
        unsafe extern "C" fn start(_: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
            0
        }
        unsafe extern "C" fn next(_: *mut ibv_cq_ex) -> c_int {
            0
        }
        unsafe extern "C" fn end(_: *mut ibv_cq_ex) {}
        unsafe extern "C" fn send(_: *mut ibv_cq_ex) -> c_int {
            0
        }
        unsafe extern "C" fn write(_: *mut ibv_cq_ex) -> c_int {
            IBV_WC_RECV_RDMA_WITH_IMM
        }
        unsafe extern "C" fn seven(_: *mut ibv_cq_ex) -> u32 {
            7
        }
        unsafe extern "C" fn yes(_: *mut efadv_cq) -> bool {
            true
        }
        unsafe extern "C" fn no(_: *mut efadv_cq) -> bool {
            false
        }
        // SAFETY: a structure of numbers, pointers and optional functions, for which zeros are valid.
        let mut cq: ibv_cq_ex = unsafe { zeroed() };
        let of = |read_opcode| PollFunctions {
            start_poll: start,
            next_poll: next,
            end_poll: end,
            read_opcode,
            read_vendor_err: seven,
            read_byte_len: seven,
            read_imm_data: seven,
            read_src_qp: seven,
            read_wc_flags: seven,
            read_slid: seven,
        };
        let flag = |is| Some(IsUnsolicited { queue: NonNull::dangling(), is });
        let mut outcome = |read_opcode, unsolicited| {
            // SAFETY: the functions above access neither queue.
            unsafe { of(read_opcode).failure(&mut cq, unsolicited) }
        };
        let status = Status::RemoteBadAddress;
        let failed = outcome(write, flag(yes));
        assert!(matches!(failed, Outcome::FailedUnsolicited(found) if found == status));
        for (opcode, flag) in [(write as ReadOpcode, flag(no)), (write, None), (send, flag(yes))] {
            assert!(matches!(outcome(opcode, flag), Outcome::Failed(found) if found == status));
        }
    }

    /// The interface has other bytes there.
    #[test]
    fn write_of_a_sender_without_handle_has_no_gid() {
        let name = "completion_queue::tests::write_of_a_sender_without_handle_has_no_gid";
        crate::common::on_soft_device(name, &[], || {
            unsafe extern "C" fn datagram(_: *mut ibv_cq_ex) -> c_int {
                IBV_WC_RECV
            }
            unsafe extern "C" fn write(_: *mut ibv_cq_ex) -> c_int {
                IBV_WC_RECV_RDMA_WITH_IMM
            }
            unsafe extern "C" fn unknown(_: *mut ibv_cq_ex) -> u32 {
                UNKNOWN
            }
            unsafe extern "C" fn two(_: *mut ibv_cq_ex) -> u32 {
                2
            }
            unsafe extern "C" fn nines(_: *mut efadv_cq, gid: *mut ibv_gid) -> c_int {
                // SAFETY: `read_source_gid` passes a GID that may be written.
                unsafe { gid.write(ibv_gid { raw: [9; 16] }) };
                0
            }
            let context = Arc::new(Context::open(None).unwrap());
            let limits = context.limits().unwrap();
            let mut queue = CompletionQueue::new(context, &limits, &Rdma::NONE, 1, false).unwrap();
            let functions = &mut queue.functions;
            (functions.read_wc_flags, functions.read_byte_len) = (two, two);
            (functions.read_imm_data, functions.read_src_qp) = (two, two);
            functions.read_slid = unknown;
            queue.source_gid = Some(SourceGid { queue: NonNull::dangling(), read: nines });
            for (opcode, gid) in [(datagram as ReadOpcode, Some(Gid([9; 16]))), (write, None)] {
                queue.functions.read_opcode = opcode;
                let mut entry = NOTHING;
                // SAFETY: the functions above access no queue.
                unsafe { queue.read_current(&mut entry) };
                assert_eq!(entry.source, Source { address_handle: None, qpn: Qpn(2), gid });
                assert_eq!(entry.immediate, Some(2));
            }
        });
    }

    #[test]
    fn unknown_status_number_is_bad_status() {
        assert_eq!(status_of(0x1_0000), Status::BadStatus);
        assert_eq!(status_of(255), Status::BadStatus);
        assert_eq!((is_first(17), is_first(17), is_first(16)), (true, false, true));
    }
}

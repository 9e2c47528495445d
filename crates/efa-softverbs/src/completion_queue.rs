//! Completion queues, polled in the old way (`ibv_poll_cq`) and the new (`ibv_start_poll` …).
//!
//! ```text
//!  start_poll ─► ready? ─► take one, hold the queue for the program until end_poll
//!                  │ no
//!                  └► let every queue pair of this queue take a step ─► ready?
//! ```
//!
//! While the program looks at a completion it posts sends and receives. So what is held meanwhile,
//! the lock of [`HeldLock`], is taken by polling alone. Other locks are held for the time of a step,
//! and always in the order members, queue pair, ready.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::{offset_of, zeroed};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use efa_device::{Source, Status};

use crate::abi::*;
use crate::boundary::{BUSY, INVALID, Outcome, UNSUPPORTED, code, pointer, value};
use crate::context::{Context, MAX_COMPLETIONS, not_null, take};
use crate::held::HeldLock;
use crate::process::{Kind, generation, lock, process};
use crate::queue_pair::{QueuePair, Serial};

/// What `slid` says of a sender without address handle.
const UNKNOWN: u16 = 0xffff;

/// Polls that find nothing, before the processor is given away once. Some ten µs.
const IDLE_POLLS: u32 = 256;

/// Something that ended.
#[derive(Clone, Debug)]
pub(crate) struct Completion {
    pub(crate) wr_id: u64,
    pub(crate) result: Result<(), Status>,
    pub(crate) opcode: c_int,
    pub(crate) length: u32,
    pub(crate) qpn: u32,
    /// The queue pair: one that was made later can have the same number.
    pub(crate) of: Serial,
    /// Of receives.
    pub(crate) source: Option<Source>,
    /// Of receives that came with it.
    pub(crate) immediate: Option<u32>,
    /// Of writes that took no receive buffer.
    pub(crate) unsolicited: bool,
}

impl Completion {
    const NONE: Self = Self {
        wr_id: 0,
        result: Ok(()),
        opcode: 0,
        length: 0,
        qpn: 0,
        of: Serial::NONE,
        source: None,
        immediate: None,
        unsolicited: false,
    };

    fn vendor_error(&self) -> u32 {
        match self.result {
            Ok(()) => 0,
            // Numbers that programs of this release line don't know yet.
            Err(Status::UnknownPeer) => Status::BadDestinationQpn.code().into(),
            Err(Status::UnreachableRemote) => Status::UnresponsiveRemote.code().into(),
            Err(status) => status.code().into(),
        }
    }

    fn status(&self) -> c_int {
        let Err(status) = self.result else { return IBV_WC_SUCCESS };
        match status {
            Status::Flushed => IBV_WC_WR_FLUSH_ERR,
            Status::QueuePairInternal | Status::UnsupportedOperation | Status::BadAddressHandle => {
                IBV_WC_LOC_QP_OP_ERR
            }
            Status::BadLocalKey => IBV_WC_LOC_PROT_ERR,
            Status::BadLength => IBV_WC_LOC_LEN_ERR,
            Status::RemoteBadAddress => IBV_WC_REM_ACCESS_ERR,
            Status::RemoteAbort => IBV_WC_REM_ABORT_ERR,
            Status::BadDestinationQpn | Status::UnknownPeer => IBV_WC_REM_INV_RD_REQ_ERR,
            Status::ReceiverNotReady => IBV_WC_RNR_RETRY_EXC_ERR,
            Status::RemoteBadLength => IBV_WC_REM_INV_REQ_ERR,
            Status::BadStatus => IBV_WC_BAD_RESP_ERR,
            Status::UnresponsiveRemote | Status::UnreachableRemote => IBV_WC_RESP_TIMEOUT_ERR,
            _ => IBV_WC_GENERAL_ERR,
        }
    }

    fn flags(&self) -> c_uint {
        if self.immediate.is_some() { IBV_WC_WITH_IMM } else { 0 }
    }

    /// Whether it took a receive.
    fn is_of_receive(&self) -> bool {
        self.opcode >= IBV_WC_RECV && !self.unsolicited
    }

    fn source_queue_pair(&self) -> u32 {
        self.source.map_or(0, |source| source.qpn.0.into())
    }

    fn source_handle(&self) -> u16 {
        let handle = self.source.and_then(|source| source.address_handle);
        handle.map_or(UNKNOWN, |handle| handle.0)
    }
}

/// A completion queue, as queue pairs know it.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    generation: u32,
    ready: Mutex<VecDeque<Completion>>,
    members: Mutex<Vec<Arc<QueuePair>>>,
    /// Polls in a row that found nothing.
    idle: AtomicU32,
}

impl Queue {
    #[inline]
    pub(crate) fn push(&self, completion: Completion) {
        lock(&self.ready).push_back(completion);
    }

    /// How many completions of receives of a queue pair the program hasn't seen.
    pub(crate) fn unseen_receives(&self, of: Serial) -> usize {
        self.count(|completion| completion.of == of && completion.is_of_receive())
    }

    /// And of sends and RDMA operations.
    pub(crate) fn unseen_sends(&self, of: Serial) -> usize {
        self.count(|completion| completion.of == of && completion.opcode < IBV_WC_RECV)
    }

    fn count(&self, which: impl Fn(&Completion) -> bool) -> usize {
        lock(&self.ready).iter().filter(|completion| which(completion)).count()
    }

    /// The next completion, if there is one or a step brings one about.
    #[inline]
    fn next(&self) -> Option<Completion> {
        let ready = lock(&self.ready).pop_front();
        let found = ready.or_else(|| {
            for member in &*lock(&self.members) {
                member.poll();
            }
            lock(&self.ready).pop_front()
        });
        match found {
            Some(_) => self.idle.store(0, Ordering::Relaxed),
            None => self.rest(),
        }
        found
    }

    /// Gives the processor away now and then while nothing comes: whoever is to send something may
    /// be waiting for this very one, and would do so until the system takes it from us.
    #[inline]
    fn rest(&self) {
        let idle = self.idle.load(Ordering::Relaxed) + 1;
        if idle < IDLE_POLLS {
            return self.idle.store(idle, Ordering::Relaxed);
        }
        self.idle.store(0, Ordering::Relaxed);
        std::thread::yield_now();
    }

    pub(crate) fn join(&self, member: &Arc<QueuePair>) {
        let mut members = lock(&self.members);
        if !members.iter().any(|other| Arc::ptr_eq(other, member)) {
            members.push(Arc::clone(member));
        }
    }

    /// Takes a queue pair out, with its completions.
    pub(crate) fn part(&self, member: &Arc<QueuePair>) {
        lock(&self.members).retain(|other| !Arc::ptr_eq(other, member));
        lock(&self.ready).retain(|completion| completion.of != member.serial());
    }
}

/// What an `ibv_cq` is part of.
#[repr(C)]
pub(crate) struct QueueObject {
    /// First, so that a pointer to the one is a pointer to the other.
    ex: ibv_cq_ex,
    efa: efadv_cq_newer,
    queue: Arc<Queue>,
    polling: HeldLock,
    /// What the program looks at, while it holds the lock.
    current: Completion,
}

impl QueueObject {
    fn create(
        context: *mut ibv_context,
        entries: u32,
        cq_context: *mut c_void,
        channel: *mut c_void,
    ) -> Outcome<*mut ibv_cq_ex> {
        process().check(context, Kind::Context)?;
        if entries == 0 || entries > MAX_COMPLETIONS {
            return Err(INVALID);
        }
        if !channel.is_null() {
            return Err(UNSUPPORTED);
        }
        // SAFETY: a structure of C for which all zero is valid: pointers and options are null.
        let mut ex: ibv_cq_ex = unsafe { zeroed() };
        ex.cq_base.context = context;
        ex.cq_base.cq_context = cq_context;
        ex.cq_base.cqe = c_int::try_from(entries).map_err(|_| INVALID)?;
        ex.cq_base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        ex.cq_base.cond = libc::PTHREAD_COND_INITIALIZER;
        ex.start_poll = Some(start_poll);
        ex.next_poll = Some(next_poll);
        ex.end_poll = Some(end_poll);
        ex.read_opcode = Some(read_opcode);
        ex.read_vendor_err = Some(read_vendor_err);
        ex.read_byte_len = Some(read_byte_len);
        ex.read_imm_data = Some(read_imm_data);
        ex.read_qp_num = Some(read_qp_num);
        ex.read_src_qp = Some(read_src_qp);
        ex.read_wc_flags = Some(read_wc_flags);
        ex.read_slid = Some(read_slid);
        ex.read_sl = Some(read_sl);
        ex.read_dlid_path_bits = Some(read_dlid_path_bits);
        let first = efadv_cq { comp_mask: 0, wc_read_sgid: Some(read_sgid) };
        let efa = efadv_cq_newer { first, wc_is_unsolicited: Some(is_unsolicited) };
        let queue = Arc::new(Queue { generation: generation(), ..Queue::default() });
        let polling = HeldLock::default();
        let current = Completion::NONE;
        let object = Self { ex, efa, queue, polling, current };
        let cq: *mut ibv_cq_ex = Box::into_raw(Box::new(object)).cast();
        process().enter(cq, Kind::CompletionQueue, context);
        Ok(cq)
    }

    /// Whether it is this process's. In a forked child, locks can be held by threads of the parent.
    ///
    /// # Safety
    /// `this` must be alive.
    #[inline]
    unsafe fn is_ours(this: *mut Self) -> bool {
        // SAFETY: the caller's promise. The queue is shared and never changed in place.
        unsafe { &(*this).queue }.generation == generation()
    }

    /// Takes the next completion for the program to look at; the polling lock must be held.
    ///
    /// # Safety
    /// `this` must be alive, and [ours](Self::is_ours).
    #[inline]
    unsafe fn advance(this: *mut Self) -> bool {
        // SAFETY: the caller's promise. The queue is shared and never changed in place.
        let Some(completion) = (unsafe { &(*this).queue }).next() else { return false };
        // SAFETY: the caller's promise; the lock makes us the only one to touch these.
        unsafe {
            (*this).ex.status = completion.status();
            (*this).ex.wr_id = completion.wr_id;
            (*this).current = completion;
        }
        true
    }
}

/// The queue behind a handle.
pub(crate) fn queue(cq: *mut ibv_cq) -> Outcome<Arc<Queue>> {
    process().check(cq, Kind::CompletionQueue)?;
    // SAFETY: the handle is one of ours and was not destroyed, unless the program destroys it in
    // another thread at this moment, which C forbids.
    Ok(Arc::clone(unsafe { &(*cq.cast::<QueueObject>()).queue }))
}

// ---- life ---------------------------------------------------------------------------------------

/// See `ibv_create_cq(3)`. Completion channels are not offered.
#[unsafe(no_mangle)]
extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut c_void,
    vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        if vector != 0 {
            return Err(INVALID);
        }
        let entries = u32::try_from(entries).map_err(|_| INVALID)?;
        Ok(QueueObject::create(context, entries, cq_context, channel)?.cast())
    })
}

/// # Safety
/// `attributes` must be null or valid.
unsafe fn create_extended(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
) -> Outcome<*mut ibv_cq_ex> {
    // SAFETY: not null, so valid by the caller's promise.
    let attributes = unsafe { &*not_null(attributes)? };
    if attributes.comp_vector != 0 {
        return Err(INVALID);
    }
    if attributes.comp_mask != 0 || attributes.wc_flags & !IBV_WC_STANDARD_FLAGS != 0 {
        return Err(UNSUPPORTED);
    }
    QueueObject::create(context, attributes.cqe, attributes.cq_context, attributes.channel)
}

/// `ibv_create_cq_ex`, which calls it through the context.
///
/// # Safety
/// `attributes` must be null or valid.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller's promise.
    pointer(|| unsafe { create_extended(context, attributes) })
}

/// See `efadv_create_cq(3)`.
///
/// # Safety
/// `attributes` must be null or valid, `efa` null or valid for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_cq(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
    efa: *mut efadv_cq_init_attr,
    length: u32,
) -> *mut ibv_cq_ex {
    pointer(|| {
        if !efa.is_null() {
            // SAFETY: valid for `length` bytes by the caller's promise.
            let asked = unsafe {
                let efa: *mut efadv_cq_init_attr_newer = efa.cast();
                take(efa, length, size_of::<efadv_cq_init_attr>())?
            };
            let mut known = EFADV_WC_EX_WITH_SGID;
            if Context::device(context)?.rdma().unsolicited_write_receive {
                known |= EFADV_WC_EX_WITH_IS_UNSOLICITED;
            }
            if asked.first.comp_mask != 0 {
                return Err(INVALID);
            }
            if asked.flags != 0 || asked.first.wc_flags & !known != 0 {
                return Err(UNSUPPORTED);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { create_extended(context, attributes) }
    })
}

/// See `efadv_cq_from_ibv_cq_ex(3)`.
#[unsafe(no_mangle)]
extern "C" fn efadv_cq_from_ibv_cq_ex(cq: *mut ibv_cq_ex) -> *mut efadv_cq {
    pointer(|| {
        process().check(cq, Kind::CompletionQueue)?;
        Ok(cq.wrapping_byte_add(offset_of!(QueueObject, efa)).cast())
    })
}

/// See `ibv_destroy_cq(3)`; fails with `EBUSY` while a queue pair uses it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    code(|| {
        if !lock(&queue(cq)?.members).is_empty() {
            return Err(BUSY);
        }
        process().leave(cq, Kind::CompletionQueue)?;
        // SAFETY: it came from a box and nobody else can take it any more.
        drop(unsafe { Box::from_raw(cq.cast::<QueueObject>()) });
        Ok(())
    })
}

pub(crate) extern "C" fn req_notify_cq(_cq: *mut ibv_cq, _solicited_only: c_int) -> c_int {
    code(|| Err(UNSUPPORTED))
}

// ---- polling ------------------------------------------------------------------------------------

/// # Safety
/// As all below: `cq` must be null or a completion queue that was not destroyed. Polling looks
/// nothing up, as with the real library. `into` must have room for `count` completions.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, into: *mut ibv_wc) -> c_int {
    value(-1, || {
        let Ok(count) = usize::try_from(count) else { return -1 };
        if cq.is_null() || (into.is_null() && count > 0) {
            return -1;
        }
        let this: *mut QueueObject = cq.cast();
        // SAFETY: not null, so alive by the caller's promise; shared parts alone are referred to.
        let (queue, polling) = unsafe { (&(*this).queue, &(*this).polling) };
        if queue.generation != generation() {
            return 0;
        }
        polling.take();
        let mut taken = 0;
        while taken < count
            && let Some(completion) = queue.next()
        {
            // SAFETY: there is room for `count`, by the caller's promise.
            unsafe { into.add(taken).write(old_form(&completion)) };
            taken += 1;
        }
        polling.give();
        c_int::try_from(taken).unwrap_or(c_int::MAX)
    })
}

fn old_form(completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status(),
        opcode: completion.opcode,
        vendor_err: completion.vendor_error(),
        byte_len: completion.length,
        imm_data: completion.immediate.unwrap_or(0),
        qp_num: completion.qpn,
        src_qp: completion.source_queue_pair(),
        wc_flags: completion.flags(),
        pkey_index: 0,
        slid: completion.source_handle(),
        sl: 0,
        dlid_path_bits: 0,
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attributes: *mut ibv_poll_cq_attr) -> c_int {
    value(libc::EIO, || {
        // SAFETY: null or valid, by the contract of the C function.
        let extended = unsafe { attributes.as_ref() }.is_some_and(|a| a.comp_mask != 0);
        if cq.is_null() || extended {
            return libc::EINVAL;
        }
        let this: *mut QueueObject = cq.cast();
        // SAFETY: not null, so alive by the contract of the C function.
        unsafe {
            if !QueueObject::is_ours(this) {
                return libc::ENOENT;
            }
            (*this).polling.take();
            if QueueObject::advance(this) {
                return 0;
            }
            (*this).polling.give();
        }
        libc::ENOENT
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let this: *mut QueueObject = cq.cast();
    // SAFETY: a poll is under way by the contract of the C function, so the queue is alive and the
    // lock held.
    let next = || unsafe { QueueObject::is_ours(this) && QueueObject::advance(this) };
    value(libc::EIO, || if next() { 0 } else { libc::ENOENT })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    let this: *mut QueueObject = cq.cast();
    // SAFETY: a poll is under way by the contract of the C function.
    unsafe { (*this).polling.give() };
}

/// Defines functions that tell about the completion looked at.
macro_rules! read {
    ($($name:ident($completion:ident) -> $type:ty { $value:expr })*) => {
        $(
            unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
                let this: *mut QueueObject = cq.cast();
                // SAFETY: a poll is under way by the contract of the C function, so the queue is
                // alive and the completion is this thread's to look at.
                let $completion = unsafe { &(*this).current };
                $value
            }
        )*
    };
}

read! {
    read_opcode(completion) -> c_int { completion.opcode }
    read_vendor_err(completion) -> u32 { completion.vendor_error() }
    read_byte_len(completion) -> u32 { completion.length }
    read_imm_data(completion) -> u32 { completion.immediate.unwrap_or(0) }
    read_qp_num(completion) -> u32 { completion.qpn }
    read_src_qp(completion) -> u32 { completion.source_queue_pair() }
    read_wc_flags(completion) -> c_uint { completion.flags() }
    read_slid(completion) -> u32 { completion.source_handle().into() }
    read_sl(_completion) -> u8 { 0 }
    read_dlid_path_bits(_completion) -> u8 { 0 }
}

/// Gives the sender's GID if there is no address handle for it, and a negative number otherwise.
unsafe extern "C" fn read_sgid(cq: *mut efadv_cq, into: *mut ibv_gid) -> c_int {
    if cq.is_null() || into.is_null() {
        return -libc::EINVAL;
    }
    let this: *mut QueueObject = cq.wrapping_byte_sub(offset_of!(QueueObject, efa)).cast();
    // SAFETY: a poll is under way by the contract of the C function.
    let source = unsafe { (*this).current.source };
    match source {
        Some(Source { address_handle: None, gid: Some(gid), .. }) => {
            // SAFETY: not null, so valid by the contract of the C function.
            unsafe { into.write(ibv_gid { raw: gid.0 }) };
            0
        }
        _ => -libc::ENOENT,
    }
}

/// See `efadv_wc_is_unsolicited(3)`.
///
/// # Safety
/// `cq` must be null or of a queue of which a poll is under way.
unsafe extern "C" fn is_unsolicited(cq: *mut efadv_cq) -> bool {
    if cq.is_null() {
        return false;
    }
    let this: *mut QueueObject = cq.wrapping_byte_sub(offset_of!(QueueObject, efa)).cast();
    // SAFETY: a poll is under way by the contract of the C function.
    unsafe { (*this).current.unsolicited }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_the_number_that_programs_expect() {
        let expected = [
            (Status::Flushed, 1, 5),
            (Status::QueuePairInternal, 2, 2),
            (Status::UnsupportedOperation, 3, 2),
            (Status::BadAddressHandle, 4, 2),
            (Status::BadLocalKey, 5, 4),
            (Status::BadLength, 6, 1),
            (Status::RemoteBadAddress, 7, 10),
            (Status::RemoteAbort, 8, 16),
            (Status::BadDestinationQpn, 9, 15),
            (Status::ReceiverNotReady, 10, 13),
            (Status::RemoteBadLength, 11, 9),
            (Status::BadStatus, 12, 7),
            (Status::UnresponsiveRemote, 13, 20),
            (Status::UnknownPeer, 9, 15),
            (Status::UnreachableRemote, 13, 20),
        ];
        for (status, vendor, verbs) in expected {
            let completion = Completion { result: Err(status), ..Completion::NONE };
            assert_eq!((completion.vendor_error(), completion.status()), (vendor, verbs));
        }
        assert_eq!((Completion::NONE.vendor_error(), Completion::NONE.status()), (0, 0));
    }
}

//! Work requests: posted as lists of structures, or built by calls (`ibv_wr_start` …).
//!
//! ```text
//!  wr_start ─► wr_send | wr_rdma_read | wr_rdma_write …   one request …
//!                 └► wr_set_ud_addr, wr_set_sge …         … and what belongs to it, in any order
//!              (again)
//!  wr_complete: all are posted, or none          wr_abort: none
//! ```
//!
//! As on the real device every request completes, and one that says that it need not is refused.

use std::ffi::{c_int, c_uint, c_void};

use efa_device::{
    AddressHandle, Destination, Qkey, Qpn, Region as _, RegionRange, RemoteMemory, Status,
};
use efa_sim::SoftRegion;
use efa_sim::region::{KeyTable, Use};

use crate::abi::*;
use crate::boundary::{Errno, INVALID, Outcome, UNSUPPORTED, code, value};
use crate::device::{Device, MAX_INLINE, MAX_RECEIVE_SGE, MAX_SEND_SGE};
use crate::domain::AddressHandleObject;
use crate::held::HeldLock;
use crate::queue_pair::{Direction, QueuePair, QueuePairObject, Receive, Remote, State, Transport};

/// What a request does.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Send { immediate: Option<u32> },
    Remote { direction: Direction, memory: RemoteMemory },
}

impl Operation {
    fn remote(direction: Direction, address: u64, key: u32) -> Self {
        Self::Remote { direction, memory: RemoteMemory { address, key } }
    }
}

/// What a request carries.
#[derive(Clone, Copy, Debug)]
enum Data {
    /// Memory that was registered.
    Registered { entries: [ibv_sge; MAX_SEND_SGE], count: usize },
    /// Bytes that were copied when the request was made.
    Inline { bytes: [u8; MAX_INLINE], length: usize },
}

impl Data {
    const NONE: Self = {
        let empty = ibv_sge { addr: 0, length: 0, lkey: 0 };
        Self::Registered { entries: [empty; MAX_SEND_SGE], count: 0 }
    };

    fn registered(list: &[ibv_sge]) -> Outcome<Self> {
        let Self::Registered { mut entries, .. } = Self::NONE else { return Err(INVALID) };
        entries.get_mut(..list.len()).ok_or(INVALID)?.copy_from_slice(list);
        Ok(Self::Registered { entries, count: list.len() })
    }

    /// Copies buffers of the program, as many bytes as its queue pair takes.
    ///
    /// # Safety
    /// Each must be readable.
    unsafe fn inline(
        cap: &ibv_qp_cap,
        buffers: impl Iterator<Item = (*const u8, usize)>,
    ) -> Outcome<Self> {
        let mut bytes = [0; MAX_INLINE];
        let most = MAX_INLINE.min(cap.max_inline_data as usize);
        let mut length = 0;
        for (from, count) in buffers {
            let into = bytes[..most].get_mut(length..).and_then(|rest| rest.get_mut(..count));
            let into = into.ok_or(INVALID)?;
            if count > 0 {
                // SAFETY: readable by the caller's promise; `into` has this length.
                unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), count) };
            }
            length += count;
        }
        Ok(Self::Inline { bytes, length })
    }

    /// Copies what is to be sent; gives its length.
    #[inline]
    fn gather(&self, keys: &KeyTable, into: &mut [u8]) -> Result<usize, Status> {
        match self {
            Self::Inline { bytes, length } => {
                into.get_mut(..*length)
                    .ok_or(Status::BadLength)?
                    .copy_from_slice(&bytes[..*length]);
                Ok(*length)
            }
            Self::Registered { entries, count } => {
                let mut at = 0;
                // Where there are no bytes, no memory is named.
                for entry in entries[..*count].iter().filter(|entry| entry.length > 0) {
                    let length = entry.length as usize;
                    let into = into.get_mut(at..).and_then(|rest| rest.get_mut(..length));
                    let into = into.ok_or(Status::BadLength)?;
                    let from = find(keys, entry, Use::LocalRead).ok_or(Status::BadLocalKey)?;
                    // SAFETY: the program registered this memory, and gives it to the device while
                    // it posts; `into` has this length.
                    unsafe {
                        let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
                        std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), length);
                    }
                    at += length;
                }
                Ok(at)
            }
        }
    }
}

/// Where the memory of an entry is.
#[inline]
pub(crate) fn find(keys: &KeyTable, entry: &ibv_sge, wanted: Use) -> Option<u64> {
    keys.locate(entry.lkey, entry.addr, entry.length.into(), wanted)
}

/// A request.
#[derive(Clone, Copy, Debug)]
struct Work {
    wr_id: u64,
    operation: Operation,
    target: Option<(AddressHandle, u32, u32)>,
    data: Data,
}

impl Work {
    /// What would be refused at once: a request without target, one that can't be.
    fn check(&self, queue_pair: &QueuePair) -> Outcome<()> {
        self.target.ok_or(INVALID)?;
        match self.operation {
            Operation::Send { .. } => Ok(()),
            Operation::Remote { direction, .. } => {
                let rdma = queue_pair.device().rdma();
                let possible = match direction {
                    Direction::Read => rdma.read,
                    Direction::Write(_) => rdma.write,
                };
                if !possible || queue_pair.transport() != Transport::Srd {
                    return Err(UNSUPPORTED);
                }
                // One range, as the device says in `max_sge_rd`.
                let one = matches!(self.data, Data::Registered { count: 0..=1, .. });
                if one { Ok(()) } else { Err(INVALID) }
            }
        }
    }

    /// Posts it; [`check`](Self::check) must have allowed that, and there must be room.
    #[inline]
    fn post(&self, queue_pair: &QueuePair, state: &mut State) {
        let Some((address_handle, qpn, qkey)) = self.target else { return };
        // A number of more than 16 bits is nobody's, and neither is 0.
        let qpn = Qpn(u16::try_from(qpn).unwrap_or(0));
        let to = Destination { address_handle, qpn, qkey: Qkey(qkey) };
        let device = queue_pair.device();
        match self.operation {
            Operation::Send { immediate } => {
                let gather = |into: &mut [u8]| self.data.gather(device.link.keys(), into);
                queue_pair.send(state, self.wr_id, to, immediate, gather);
            }
            Operation::Remote { direction, memory } => {
                let (wr_id, local) = (self.wr_id, self.local_range(device, direction));
                queue_pair.start_remote(state, Remote { wr_id, direction, to, memory, local });
            }
        }
    }

    /// Our side of an RDMA operation.
    fn local_range(
        &self,
        device: &Device,
        direction: Direction,
    ) -> Result<RegionRange<SoftRegion>, Status> {
        let nothing = || RegionRange { region: device.nothing.clone(), offset: 0, length: 0 };
        let entry = match &self.data {
            Data::Registered { entries: [entry, ..], count: 1 } if entry.length > 0 => entry,
            _ => return Ok(nothing()),
        };
        let region = device.link.keys().find(entry.lkey).ok_or(Status::BadLocalKey)?;
        if direction == Direction::Read && !region.allows_local_write() {
            return Err(Status::BadLocalKey);
        }
        let start = RemoteMemory { address: entry.addr, key: region.remote_key() };
        region.part(start, entry.length as usize).ok_or(Status::BadLocalKey)
    }
}

// ---- lists --------------------------------------------------------------------------------------

/// The array of a list entry, of `most` entries at the most.
///
/// # Safety
/// `list` must be null or have `count` entries, if these are no more than `most`.
unsafe fn entries<'a>(list: *const ibv_sge, count: c_int, most: usize) -> Outcome<&'a [ibv_sge]> {
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
    // SAFETY: not null, so with `count` entries by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(list, count) })
}

/// Refuses what the real device refuses: flags that it doesn't know, and requests that are not to
/// complete.
#[inline]
fn check_flags(queue_pair: &QueuePair, flags: c_uint) -> Outcome<()> {
    let completes = queue_pair.signals_all() || flags & IBV_SEND_SIGNALED != 0;
    let beyond = flags & !(IBV_SEND_SIGNALED | IBV_SEND_INLINE) != 0;
    if completes && !beyond { Ok(()) } else { Err(INVALID) }
}

/// # Safety
/// `request` must be valid with all that it points to.
#[inline]
unsafe fn read_request(request: &ibv_send_wr, queue_pair: &QueuePair) -> Outcome<Work> {
    check_flags(queue_pair, request.send_flags)?;
    let immediate = match request.opcode {
        IBV_WR_SEND => None,
        IBV_WR_SEND_WITH_IMM => Some(request.imm_data),
        _ => return Err(INVALID),
    };
    let (cap, is_inline) = (queue_pair.cap(), request.send_flags & IBV_SEND_INLINE != 0);
    // The device never sees the list of what is copied, which may be of a byte each.
    let most = if is_inline { MAX_INLINE } else { cap.max_send_sge as usize };
    // SAFETY: the caller's promise.
    let list = unsafe { entries(request.sg_list, request.num_sge, most)? };
    let data = if !is_inline {
        Data::registered(list)?
    } else {
        let buffers = list.iter().map(|entry| {
            let from = std::ptr::with_exposed_provenance::<u8>(entry.addr as usize);
            (from, entry.length as usize)
        });
        // SAFETY: the caller's promise.
        unsafe { Data::inline(cap, buffers)? }
    };
    // SAFETY: both kinds of queue pairs use this form; the handle is the caller's promise.
    let (number, ibv_ud_target { remote_qpn, remote_qkey, .. }) =
        unsafe { (AddressHandleObject::number(request.wr.ud.ah)?, request.wr.ud) };
    let target = Some((number, remote_qpn, remote_qkey));
    Ok(Work { wr_id: request.wr_id, operation: Operation::Send { immediate }, target, data })
}

/// The queue pair behind a handle that is not looked up.
///
/// # Safety
/// `qp` must be null or a queue pair that was not destroyed.
#[inline]
unsafe fn queue_pair<'a>(qp: *mut ibv_qp) -> Outcome<&'a QueuePair> {
    if qp.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { &(*qp.cast::<QueuePairObject>()).queue_pair })
}

/// See `ibv_post_send(3)`. Posts up to the first request that it refuses.
///
/// # Safety
/// `qp` must be null or a queue pair that was not destroyed, `list` null or valid with all that it
/// points to, `bad` null or valid.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut at = list;
    let result = code(|| {
        // SAFETY: the caller's promise.
        let queue_pair = unsafe { queue_pair(qp)? };
        queue_pair.with(|state| {
            // SAFETY: the caller's promise; `next` is null at the end.
            while let Some(request) = unsafe { at.as_ref() } {
                // SAFETY: the caller's promise.
                let work = unsafe { read_request(request, queue_pair)? };
                work.check(queue_pair)?;
                queue_pair.take_room(state, 1)?;
                work.post(queue_pair, state);
                at = request.next;
            }
            Ok(())
        })
    });
    if result != 0 && !bad.is_null() {
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { bad.write(at) };
    }
    result
}

/// # Safety
/// `request` must be valid with all that it points to.
#[inline]
unsafe fn read_receive(request: &ibv_recv_wr, queue_pair: &QueuePair) -> Outcome<Receive> {
    // SAFETY: the caller's promise.
    let most = queue_pair.cap().max_recv_sge.min(MAX_RECEIVE_SGE as u32) as usize;
    // SAFETY: the caller's promise.
    let list = unsafe { entries(request.sg_list, request.num_sge, most)? };
    let Some(entry) = list.first() else {
        let entry = ibv_sge { addr: 0, length: 0, lkey: 0 };
        return Ok(Receive { wr_id: request.wr_id, entry });
    };
    if entry.length > 0 {
        find(queue_pair.device().link.keys(), entry, Use::LocalWrite).ok_or(INVALID)?;
    }
    Ok(Receive { wr_id: request.wr_id, entry: *entry })
}

/// See `ibv_post_recv(3)`. Posts up to the first request that it refuses; one whose key doesn't
/// allow writing is refused here already.
///
/// # Safety
/// As [`post_send`].
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = list;
    let result = code(|| {
        // SAFETY: the caller's promise.
        let queue_pair = unsafe { queue_pair(qp)? };
        queue_pair.with(|state| {
            // SAFETY: the caller's promise; `next` is null at the end.
            while let Some(request) = unsafe { at.as_ref() } {
                // SAFETY: the caller's promise.
                let receive = unsafe { read_receive(request, queue_pair)? };
                queue_pair.receive(state, receive)?;
                at = request.next;
            }
            Ok(())
        })
    });
    if result != 0 && !bad.is_null() {
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { bad.write(at) };
    }
    result
}

// ---- calls --------------------------------------------------------------------------------------

/// The requests between `wr_start` and `wr_complete`.
#[derive(Debug, Default)]
pub(crate) struct Build {
    lock: HeldLock,
    works: Vec<Work>,
    /// The first mistake.
    error: Option<Errno>,
}

/// Runs `f` on the requests under way.
///
/// # Safety
/// `qp` must be a queue pair that was not destroyed, on which this thread called `wr_start`.
#[inline]
unsafe fn building(qp: *mut ibv_qp_ex, f: impl FnOnce(&mut Build, &QueuePair) -> Outcome<()>) {
    // SAFETY: the caller's promise: alive, and `wr_start` took the lock, so that nobody else
    // touches these fields meanwhile.
    let (queue_pair, build) = unsafe {
        let object: *mut QueuePairObject = qp.cast();
        (&(*object).queue_pair, &mut (*object).build)
    };
    // A parent process's may be in the middle of a change, for ever.
    if queue_pair.is_ours() && build.error.is_none() {
        let result = value(Err(Errno(libc::EIO)), || f(build, queue_pair));
        build.error = result.err();
    }
}

/// # Safety
/// As [`building`].
unsafe fn begin(qp: *mut ibv_qp_ex, operation: Operation) {
    // SAFETY: the caller's promise; the program wrote the id before this call.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, (*qp).wr_flags);
        building(qp, |build, queue_pair| {
            check_flags(queue_pair, flags)?;
            build.works.push(Work { wr_id, operation, target: None, data: Data::NONE });
            Ok(())
        });
    }
}

/// # Safety
/// As [`building`].
unsafe fn amend(qp: *mut ibv_qp_ex, f: impl FnOnce(&mut Work, &ibv_qp_cap) -> Outcome<()>) {
    let last = |build: &mut Build, queue_pair: &QueuePair| {
        f(build.works.last_mut().ok_or(INVALID)?, queue_pair.cap())
    };
    // SAFETY: the caller's promise.
    unsafe { building(qp, last) };
}

/// # Safety
/// As [`building`].
unsafe fn refuse(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe { building(qp, |_, _| Err(UNSUPPORTED)) };
}

/// Defines functions of `ibv_qp_ex`.
macro_rules! calls {
    ($($name:ident($qp:ident $(, $argument:ident: $type:ty)*) $body:expr)*) => {
        $(
            unsafe extern "C" fn $name($qp: *mut ibv_qp_ex $(, $argument: $type)*) {
                // SAFETY: by the contract of the C functions the queue pair is alive, this thread
                // called `wr_start`, and pointers are valid with all that they point to.
                unsafe { $body }
            }
        )*
    };
}

calls! {
    wr_send(qp) begin(qp, Operation::Send { immediate: None })
    wr_send_imm(qp, immediate: u32) begin(qp, Operation::Send { immediate: Some(immediate) })
    wr_rdma_read(qp, key: u32, address: u64)
        begin(qp, Operation::remote(Direction::Read, address, key))
    wr_rdma_write(qp, key: u32, address: u64)
        begin(qp, Operation::remote(Direction::Write(None), address, key))
    wr_rdma_write_imm(qp, key: u32, address: u64, immediate: u32)
        begin(qp, Operation::remote(Direction::Write(Some(immediate)), address, key))
    wr_send_inv(qp, _key: u32) refuse(qp)
    wr_send_tso(qp, _header: *mut c_void, _length: u16, _mss: u16) refuse(qp)
    wr_local_inv(qp, _key: u32) refuse(qp)
    wr_bind_mw(qp, _window: *mut c_void, _key: u32, _info: *const c_void) refuse(qp)
    wr_atomic_cmp_swp(qp, _key: u32, _address: u64, _compare: u64, _swap: u64) refuse(qp)
    wr_atomic_fetch_add(qp, _key: u32, _address: u64, _add: u64) refuse(qp)
    wr_atomic_write(qp, _key: u32, _address: u64, _value: *const c_void) refuse(qp)
    wr_set_xrc_srqn(qp, _number: u32) refuse(qp)

    wr_set_ud_addr(qp, handle: *mut ibv_ah, qpn: u32, qkey: u32) amend(qp, |work, _| {
        work.target = Some((AddressHandleObject::number(handle)?, qpn, qkey));
        Ok(())
    })
    wr_set_sge(qp, lkey: u32, addr: u64, length: u32) amend(qp, |work, _| {
        work.data = Data::registered(&[ibv_sge { addr, length, lkey }])?;
        Ok(())
    })
    wr_set_sge_list(qp, count: usize, list: *const ibv_sge) amend(qp, |work, cap| {
        let count = c_int::try_from(count).unwrap_or(-1);
        work.data = Data::registered(entries(list, count, cap.max_send_sge as usize)?)?;
        Ok(())
    })
    wr_set_inline_data(qp, from: *mut c_void, length: usize) amend(qp, |work, cap| {
        work.data = Data::inline(cap, std::iter::once((from.cast_const().cast(), length)))?;
        Ok(())
    })
    wr_set_inline_data_list(qp, count: usize, list: *const ibv_data_buf) amend(qp, |work, cap| {
        let list = match count {
            0 => &[],
            _ if list.is_null() => return Err(INVALID),
            _ => std::slice::from_raw_parts(list, count),
        };
        let buffers = list.iter().map(|b| (b.addr.cast_const().cast(), b.length));
        work.data = Data::inline(cap, buffers)?;
        Ok(())
    })
    wr_abort(qp) {
        let object: *mut QueuePairObject = qp.cast();
        if (*object).queue_pair.is_ours() {
            (*object).build.works.clear();
            (*object).build.lock.give();
        }
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: alive by the contract of the C function; the lock is shared and taken before the rest
    // is touched.
    unsafe {
        let object: *mut QueuePairObject = qp.cast();
        // In a forked child a thread of the parent may have it.
        if !(*object).queue_pair.is_ours() {
            return;
        }
        (*object).build.lock.take();
        let build = &mut (*object).build;
        build.works.clear();
        build.error = None;
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let object: *mut QueuePairObject = qp.cast();
    // SAFETY: alive by the contract of the C function.
    if !unsafe { &(*object).queue_pair }.is_ours() {
        return libc::EINVAL;
    }
    let result = code(|| {
        // SAFETY: alive, and this thread called `wr_start`, by the contract of the C function.
        let (queue_pair, build) = unsafe { (&(*object).queue_pair, &mut (*object).build) };
        if let Some(error) = build.error {
            return Err(error);
        }
        for work in &build.works {
            work.check(queue_pair)?;
        }
        queue_pair.with(|state| {
            queue_pair.take_room(state, build.works.len())?;
            for work in &build.works {
                work.post(queue_pair, state);
            }
            Ok(())
        })
    });
    // SAFETY: as above.
    unsafe { (*object).build.lock.give() };
    result
}

/// Enters the functions of this file into a queue pair.
pub(crate) fn offer(qp: &mut ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_send_tso = Some(wr_send_tso);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_atomic_write = Some(wr_atomic_write);
}

//! Calls of `libefa_soft` with wrong arguments: null pointers, handles that were destroyed, are of another
//! kind or invented, invalid sizes and counts. Each call succeeds or returns an error number; all objects
//! can be destroyed; and a correct program works afterwards.
//!
//! Functions that post or poll are called with null and live handles only: the C headers dereference the
//! handles, so a program with others would crash before it enters the library.

mod functions;

use std::ffi::{c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use efa_soft::abi::*;

pub(crate) use self::functions::*;
use crate::input::Input;
use crate::memory;

/// Most calls of a program.
const CALLS: usize = 200;
/// Bytes of the program's memory.
const MEMORY: usize = 4096;
/// The operations of extended queue pairs.
const OPERATIONS: u64 = IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND_WITH_IMM;
/// Results of `ibv_close_device` and the other destructors: success, unknown handle, in use.
const DESTROY_RESULTS: [c_int; 3] = [0, EINVAL, EBUSY];
const EBUSY: c_int = 16;
const EINVAL: c_int = 22;
/// Larger than every error number.
const ERRORS: c_int = 200;

/// A handle as C sees it.
type Handle = *mut c_void;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Context,
    Domain,
    Region,
    AddressHandle,
    Queue,
    /// One with the functions of `ibv_cq_ex`.
    QueueEx,
    Pair,
    /// One with the functions of `ibv_qp_ex`.
    PairEx,
}

impl Kind {
    /// Whether the library accepts a handle of `self` for one of `other`.
    fn is(self, other: Self) -> bool {
        let plain = |kind| match kind {
            Self::QueueEx => Self::Queue,
            Self::PairEx => Self::Pair,
            kind => kind,
        };
        plain(self) == plain(other)
    }
}

/// A structure of zeros.
pub(crate) fn zeroed<T>() -> T {
    // SAFETY: used for structures of C in which zero is valid everywhere.
    unsafe { std::mem::zeroed() }
}

/// An object that the library created and that is not destroyed yet.
struct LiveObject {
    kind: Kind,
    handle: Handle,
    /// The context that the object belongs to; itself, for a context.
    context: Handle,
}

/// The handles that a program has, live and destroyed.
struct Program<'a> {
    input: Input<'a>,
    live: Vec<LiveObject>,
    destroyed: Vec<Handle>,
    memory: *mut u8,
    /// Completions with success.
    served: usize,
}

impl<'a> Program<'a> {
    fn new(input: &'a [u8], memory: &mut [u8]) -> Self {
        let (live, destroyed) = (Vec::new(), Vec::new());
        Self { input: Input::new(input), live, destroyed, memory: memory.as_mut_ptr(), served: 0 }
    }

    /// A live handle of this kind, or an invalid one.
    fn handle(&mut self, kind: Kind) -> Handle {
        match self.input.byte() {
            0..=199 => self.matching_handle(kind),
            200..=209 => null_mut(),
            210..=225 if !self.destroyed.is_empty() => self.input.pick(&self.destroyed),
            226..=241 if !self.live.is_empty() => self.pick(|_| true),
            242..=248 => (1 + (self.input.number(5) as usize)) as Handle,
            _ => 16 as Handle,
        }
    }

    /// A live handle of this kind, or null.
    fn matching_handle(&mut self, kind: Kind) -> Handle {
        self.pick(|of| of.kind.is(kind))
    }

    /// A live handle of exactly this (extended) kind, or null.
    fn extended(&mut self, kind: Kind) -> Handle {
        self.pick(|of| of.kind == kind)
    }

    /// A live handle that satisfies the condition, or null.
    fn pick(&mut self, fits: impl Fn(&LiveObject) -> bool) -> Handle {
        let fitting = self.live.iter().filter(|of| fits(of)).map(|of| of.handle);
        let fitting: Vec<Handle> = fitting.collect();
        if fitting.is_empty() { null_mut() } else { self.input.pick(&fitting) }
    }

    fn is_live(&self, kind: Kind, handle: Handle) -> bool {
        self.live.iter().any(|of| of.kind.is(kind) && of.handle == handle)
    }

    fn record<T>(&mut self, kind: Kind, made: *mut T, by: Handle, of: Kind) {
        if made.is_null() {
            return;
        }
        let maker = self.live.iter().find(|live| live.kind.is(of) && live.handle == by);
        let Some(&LiveObject { context, .. }) = maker else {
            panic!("{kind:?} created from an unknown {of:?}")
        };
        self.hold(kind, made.cast(), context);
    }

    fn hold(&mut self, kind: Kind, handle: Handle, context: Handle) {
        assert!(self.live.iter().all(|live| live.handle != handle), "{kind:?} returned twice");
        self.destroyed.retain(|destroyed| *destroyed != handle);
        self.live.push(LiveObject { kind, handle, context });
    }

    fn check_destroyed(&mut self, kind: Kind, handle: Handle, result: c_int) {
        let ends = if kind == Kind::Context { &DESTROY_RESULTS[..2] } else { &DESTROY_RESULTS };
        assert!(ends.contains(&result), "{kind:?}: {result}");
        assert_eq!(result == EINVAL, !self.is_live(kind, handle), "{kind:?} {handle:?}: {result}");
        if result == 0 {
            // The objects of a context are destroyed with it.
            let ends = |of: &mut LiveObject| of.handle == handle || of.context == handle;
            self.destroyed.extend(self.live.extract_if(.., ends).map(|of| of.handle));
        }
    }

    fn number(&mut self) -> u64 {
        let near = self.input.pick(&[1, 0, 4, 16, 64, 4096, i32::MAX as u64, u32::MAX as u64]);
        self.input.about(near)
    }

    /// A structure with some bytes set at random; the caller sets its pointers.
    fn noise<T>(&mut self) -> T {
        let mut value: T = zeroed();
        let bytes = (&raw mut value).cast::<u8>();
        for _ in 0..self.input.below(6) {
            let at = self.input.number(2) as usize % size_of::<T>();
            // SAFETY: within the value, whose bytes are numbers of C.
            unsafe { bytes.add(at).write(self.input.byte()) };
        }
        value
    }

    /// The pointer, or null.
    fn or_null<T>(&mut self, value: &mut T) -> *mut T {
        if self.input.byte() < 240 { value } else { null_mut() }
    }

    /// A part of the program's memory, with a valid or an invalid key.
    fn entry(&mut self) -> ibv_sge {
        let length = (self.number() as usize).min(MEMORY) as u32;
        let region = self.matching_handle(Kind::Region).cast::<ibv_mr>();
        // SAFETY: it is live, or null.
        let key = unsafe { region.as_ref() }.map_or(0, |region| region.lkey);
        let lkey = self.input.about32(key);
        let offset = self.input.about(0);
        // Inline data is read without a check of the key, so the address must be valid.
        let end = offset.checked_add(length.into());
        let offset = if end.is_some_and(|end| end <= MEMORY as u64) { offset } else { 0 };
        ibv_sge { addr: self.memory as u64 + offset, length, lkey }
    }

    /// A number of entries, which may be invalid.
    fn entry_count(&mut self) -> c_int {
        self.input.pick(&[1, 1, 2, 0, -1, 3, 1000, c_int::MAX])
    }

    fn open(&mut self) {
        // SAFETY: the list is freed after its last use.
        unsafe {
            let list = ibv_get_device_list(null_mut());
            let right = self.input.byte() < 200;
            let device = if right { *list } else { self.handle(Kind::Pair).cast() };
            let context = ibv_open_device(device);
            assert_eq!(context.is_null(), device != *list);
            ibv_free_device_list(list);
            if !context.is_null() {
                self.hold(Kind::Context, context.cast(), context.cast());
            }
        }
    }

    fn register(&mut self) {
        let by = self.handle(Kind::Domain);
        // Only the program's own memory: the library cannot check other addresses.
        let length = (self.number() as usize).min(MEMORY);
        let access = self.input.about32(7);
        let memory: Handle = self.memory.cast();
        let at = if self.input.byte() < 250 { memory } else { null_mut() };
        let length = if at.is_null() { 0 } else { length };
        // SAFETY: the memory is valid until the process ends.
        let made = unsafe {
            if self.input.one_in(4) {
                ibv_reg_mr_iova2(by.cast(), at, length, self.input.about(at as u64), access)
            } else {
                ibv_reg_mr(by.cast(), at, length, access.cast_signed())
            }
        };
        self.record(Kind::Region, made, by, Kind::Domain);
    }

    fn create_queue(&mut self) {
        let by = self.handle(Kind::Context);
        let depth = self.input.pick(&[16, 1, 0, -1, 4096, 1 << 30, c_int::MAX, c_int::MIN]);
        // SAFETY: the pointers are valid or null.
        unsafe {
            if self.input.one_in(2) {
                let channel = if self.input.byte() < 240 { null_mut() } else { self.memory.cast() };
                let vector = self.input.about32(0).cast_signed();
                let made = ibv_create_cq(by.cast(), depth, null_mut(), channel, vector);
                return self.record(Kind::Queue, made, by, Kind::Context);
            }
            let mut attributes: ibv_cq_init_attr_ex = self.noise();
            if self.input.byte() < 200 {
                attributes = zeroed();
                attributes.cqe = depth as _;
                attributes.wc_flags = IBV_WC_STANDARD_FLAGS;
            }
            (attributes.cq_context, attributes.channel) = (null_mut(), null_mut());
            let mut efa: efadv_cq_init_attr = self.noise();
            let size = self.input.about32(size_of::<efadv_cq_init_attr>() as u32);
            let size = size.min(size_of::<efadv_cq_init_attr>() as u32);
            let (into, efa) = (self.or_null(&mut attributes), self.or_null(&mut efa));
            let made = efadv_create_cq(by.cast(), into, efa, size);
            self.record(Kind::QueueEx, made, by, Kind::Context);
        }
    }

    fn create_pair(&mut self) {
        let (send, receive) = (self.matching_handle(Kind::Queue), self.handle(Kind::Queue));
        let cap = ibv_qp_cap {
            max_send_wr: self.input.about32(4),
            max_recv_wr: self.input.about32(4),
            max_send_sge: self.input.about32(2),
            max_recv_sge: self.input.about32(1),
            max_inline_data: self.input.about32(32),
        };
        let usual = self.input.byte() < 220;
        // SAFETY: the pointers are valid or null.
        unsafe {
            if self.input.one_in(2) {
                let by = self.handle(Kind::Domain);
                let mut attributes: ibv_qp_init_attr = self.noise();
                if usual {
                    attributes = zeroed();
                    attributes.qp_type = self.input.pick(&[IBV_QPT_UD, IBV_QPT_DRIVER]);
                    attributes.sq_sig_all = 1;
                }
                attributes.cap = cap;
                (attributes.send_cq, attributes.recv_cq) = (send.cast(), receive.cast());
                (attributes.srq, attributes.qp_context) = (null_mut(), null_mut());
                let driver = attributes.qp_type == IBV_QPT_DRIVER;
                let into = self.or_null(&mut attributes);
                let made = if driver {
                    efadv_create_driver_qp(by.cast(), into, self.input.about32(0))
                } else {
                    ibv_create_qp(by.cast(), into)
                };
                return self.record(Kind::Pair, made, by, Kind::Domain);
            }
            let by = self.handle(Kind::Context);
            let mut attributes: ibv_qp_init_attr_ex = self.noise();
            if usual {
                attributes = zeroed();
                attributes.qp_type = IBV_QPT_DRIVER;
                attributes.sq_sig_all = 1;
                attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
                attributes.send_ops_flags = self.input.about(OPERATIONS);
            }
            attributes.cap = cap;
            attributes.pd = self.handle(Kind::Domain).cast();
            (attributes.send_cq, attributes.recv_cq) = (send.cast(), receive.cast());
            (attributes.srq, attributes.qp_context) = (null_mut(), null_mut());
            (attributes.xrcd, attributes.rwq_ind_tbl) = (null_mut(), null_mut());
            let mut efa = efadv_qp_init_attr::default();
            let size = self.input.about32(size_of::<efadv_qp_init_attr>() as u32);
            let size = size.min(size_of::<efadv_qp_init_attr>() as u32);
            let (into, efa) = (self.or_null(&mut attributes), self.or_null(&mut efa));
            let made = efadv_create_qp_ex(by.cast(), into, efa, size);
            self.record(Kind::PairEx, made, by, Kind::Context);
        }
    }

    /// Changes to the next state, or to an invalid one.
    fn modify(&mut self) {
        let pair = self.handle(Kind::Pair);
        let mut attributes: ibv_qp_attr = self.noise();
        let (state, mask) = self.input.pick(&[
            (IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
            (IBV_QPS_RTR, IBV_QP_STATE),
            (IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN),
            (IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY),
            (IBV_QPS_ERR, IBV_QP_STATE),
            (IBV_QPS_RESET, IBV_QP_STATE),
        ]);
        let mask = self.input.about32(mask.cast_unsigned()).cast_signed();
        if self.input.byte() < 220 {
            (attributes.qp_state, attributes.port_num) = (state, 1);
            (attributes.qkey, attributes.pkey_index) = (0x1234, 0);
            attributes.rnr_retry = self.input.byte() & 7;
        }
        let to = self.or_null(&mut attributes);
        // SAFETY: the pointer is valid or null.
        let result = unsafe { ibv_modify_qp(pair.cast(), to, mask) };
        assert!((0..ERRORS).contains(&result), "{result}");
        assert!(result != 0 || self.is_live(Kind::Pair, pair));
    }

    fn query(&mut self) {
        let context = self.handle(Kind::Context);
        let right = self.is_live(Kind::Context, context);
        let (port, index) = (self.input.byte() & 3, self.input.about32(0).cast_signed());
        let c = context.cast();
        // SAFETY: the pointers are valid or null.
        let result = unsafe {
            match self.input.below(9) {
                0 => {
                    let mut into = zeroed();
                    let into = self.or_null(&mut into);
                    let result = ibv_query_device(c, into);
                    assert_eq!(result == 0, right && !into.is_null());
                    result
                }
                1 => ibv_query_port(c, port, self.or_null(&mut zeroed())),
                2 => {
                    let mut into = zeroed();
                    let into = self.or_null(&mut into);
                    let result = ibv_query_gid(c, port, index, into);
                    assert!(result != 0 || port == 1 && index == 0 && !into.is_null());
                    result
                }
                3 => ibv_query_pkey(c, port, index, self.or_null(&mut 0)),
                4 => {
                    let mut into: efadv_device_attr = zeroed();
                    let most = size_of::<efadv_device_attr>() as u32;
                    let size = self.input.about32(most).min(most);
                    efadv_query_device(c, self.or_null(&mut into), size)
                }
                5 => {
                    let _ = ibv_get_pkey_index(c, port, index as u16);
                    let _ = ibv_get_device_index(context.cast());
                    assert_eq!(ibv_get_device_guid(context.cast()), 0, "no device");
                    return;
                }
                6 => {
                    let pair = self.handle(Kind::Pair);
                    let (mut now, mut first) = (zeroed(), zeroed());
                    let (now, first) = (self.or_null(&mut now), self.or_null(&mut first));
                    let result = ibv_query_qp(pair.cast(), now, index, first);
                    return assert!(result != 0 || self.is_live(Kind::Pair, pair));
                }
                7 => {
                    let handle = self.handle(Kind::AddressHandle);
                    let mut into: efadv_ah_attr = zeroed();
                    let most = size_of::<efadv_ah_attr>() as u32;
                    let size = self.input.about32(most).min(most);
                    let result = efadv_query_ah(handle.cast(), self.or_null(&mut into), size);
                    return assert!(result != 0 || self.is_live(Kind::AddressHandle, handle));
                }
                _ => {
                    let pair = self.handle(Kind::Pair);
                    let extended = ibv_qp_to_qp_ex(pair.cast());
                    assert!(extended.is_null() || self.is_live(Kind::Pair, pair));
                    return;
                }
            }
        };
        assert!(result != 0 || right, "{result}");
    }

    fn create_handle(&mut self) {
        let by = self.handle(Kind::Domain);
        let mut attributes: ibv_ah_attr = self.noise();
        if self.input.byte() < 200 {
            let context = self.matching_handle(Kind::Context);
            attributes = zeroed();
            (attributes.is_global, attributes.port_num) = (1, 1);
            // SAFETY: a context that is live or null, and a valid pointer to a GID.
            unsafe { ibv_query_gid(context.cast(), 1, 0, &raw mut attributes.grh.dgid) };
        }
        let into = self.or_null(&mut attributes);
        // SAFETY: the pointer is valid or null.
        let made = unsafe { ibv_create_ah(by.cast(), into) };
        self.record(Kind::AddressHandle, made, by, Kind::Domain);
    }

    /// The destination of a send, in most cases a live queue pair.
    fn target(&mut self) -> ibv_ud_target {
        let pair = self.matching_handle(Kind::Pair).cast::<ibv_qp>();
        // SAFETY: it is live, or null.
        let number = unsafe { pair.as_ref() }.map_or(0, |pair| pair.qp_num);
        let known = self.matching_handle(Kind::AddressHandle).cast();
        let ah = if self.input.byte() < 240 { known } else { null_mut() };
        let remote_qpn = self.input.about32(number);
        ibv_ud_target { ah, remote_qpn, remote_qkey: self.input.about32(0x1234) }
    }

    /// Posts lists of requests through the function table of the context, as the C headers do.
    fn post(&mut self) {
        let pair = self.matching_handle(Kind::Pair).cast::<ibv_qp>();
        if pair.is_null() {
            return;
        }
        // All entries are read when the data is inline.
        let two = [self.entry(), self.entry()];
        let mut entries: [ibv_sge; 32] = std::array::from_fn(|place| two[place % 2]);
        let list = if self.input.byte() < 250 { entries.as_mut_ptr() } else { null_mut() };
        let count = self.entry_count();
        // SAFETY: as C does it, with a queue pair that is live or null; lists are terminated. A count
        // beyond the entries is refused before they are read.
        unsafe {
            let ops = &(*(*pair).context).ops;
            let pair = if self.input.byte() < 250 { pair } else { null_mut() };
            if self.input.one_in(2) {
                let mut second: ibv_recv_wr = zeroed();
                (second.sg_list, second.num_sge) = (list, 1);
                let next = if self.input.one_in(4) { &raw mut second } else { null_mut() };
                let wr_id = self.input.byte().into();
                let mut request = ibv_recv_wr { wr_id, next, sg_list: list, num_sge: count };
                let mut bad = null_mut();
                let list = self.or_null(&mut request);
                let result = ops.post_recv.map(|post| post(pair, list, &raw mut bad));
                return assert!(result.is_some_and(|result| (0..ERRORS).contains(&result)));
            }
            let mut second: ibv_send_wr = zeroed();
            (second.sg_list, second.num_sge, second.opcode) = (list, 1, IBV_WR_SEND);
            let mut request: ibv_send_wr = zeroed();
            request.next = if self.input.one_in(4) { &raw mut second } else { null_mut() };
            (request.sg_list, request.num_sge) = (list, count);
            request.opcode = self.input.pick(&[IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, 0, 1, -1, 100]);
            request.send_flags = self.input.pick(&[0, IBV_SEND_INLINE, u32::MAX]);
            request.wr.ud = self.target();
            let mut bad = null_mut();
            let list = self.or_null(&mut request);
            let result = ops.post_send.map(|post| post(pair, list, &raw mut bad));
            assert!(result.is_some_and(|result| (0..ERRORS).contains(&result)));
        }
    }

    /// Builds requests with the `wr_*` functions, in any order between start and complete.
    fn build(&mut self) {
        let pair = self.extended(Kind::PairEx);
        // SAFETY: as C does it: through the functions of a queue pair that is live. Addresses that are
        // read immediately are valid.
        unsafe {
            let qp = ibv_qp_to_qp_ex(pair.cast());
            let Some(functions) = qp.as_ref() else { return };
            let Some(start) = functions.wr_start else { return };
            start(qp);
            for _ in 0..self.input.below(8) {
                let (key, address) = (self.input.about32(0), self.input.about(self.memory as u64));
                let mut entries = [self.entry(), self.entry()];
                let entry = entries[0];
                match self.input.below(10) {
                    0 => functions.wr_send.map(|call| call(qp)),
                    1 => functions.wr_send_imm.map(|call| call(qp, key)),
                    2 => functions.wr_rdma_read.map(|call| call(qp, key, address)),
                    3 => functions.wr_rdma_write.map(|call| call(qp, key, address)),
                    4 => functions.wr_rdma_write_imm.map(|call| call(qp, key, address, 5)),
                    5 => {
                        let ibv_ud_target { ah, remote_qpn, remote_qkey } = self.target();
                        let call = functions.wr_set_ud_addr;
                        call.map(|call| call(qp, ah, remote_qpn, remote_qkey))
                    }
                    6 => {
                        let call = functions.wr_set_sge;
                        call.map(|call| call(qp, entry.lkey, entry.addr, entry.length))
                    }
                    7 => {
                        let count = self.entry_count() as usize;
                        let call = functions.wr_set_sge_list;
                        call.map(|call| call(qp, count, entries.as_mut_ptr()))
                    }
                    8 => {
                        let length = self.number() as usize;
                        let call = functions.wr_set_inline_data;
                        call.map(|call| call(qp, self.memory.cast(), length))
                    }
                    _ => functions.wr_atomic_fetch_add.map(|call| call(qp, key, address, 1)),
                };
            }
            if self.input.one_in(8)
                && let Some(abort) = functions.wr_abort
            {
                return abort(qp);
            }
            let result = functions.wr_complete.map(|call| call(qp));
            assert!(result.is_some_and(|result| (0..ERRORS).contains(&result)));
        }
    }

    fn poll(&mut self) {
        let queue = self.matching_handle(Kind::Queue).cast::<ibv_cq>();
        let extended = self.extended(Kind::QueueEx).cast::<ibv_cq_ex>();
        // SAFETY: as C does it, with queues that are live or null, and space for as many
        // completions as are requested.
        unsafe {
            if let Some(cq) = queue.as_ref()
                && self.input.one_in(2)
            {
                let mut completions: [ibv_wc; 4] = zeroed();
                let count = self.input.pick(&[4, 1, 0, -1, c_int::MIN]);
                let into =
                    if self.input.byte() < 240 { completions.as_mut_ptr() } else { null_mut() };
                let of = if self.input.byte() < 250 { queue } else { null_mut() };
                let poll = (*cq.context).ops.poll_cq;
                let result = poll.map_or(-2, |poll| poll(of, count, into));
                assert!((-1..=4).contains(&result), "{result}");
                let received = &completions[..usize::try_from(result).unwrap_or(0)];
                self.served += received.iter().filter(|wc| wc.status == IBV_WC_SUCCESS).count();
                return;
            }
            let Some(cq) = extended.as_ref() else { return };
            let mut attributes = ibv_poll_cq_attr { comp_mask: self.input.about32(0) };
            let with = self.or_null(&mut attributes);
            let (Some(start), Some(next), Some(end)) = (cq.start_poll, cq.next_poll, cq.end_poll)
            else {
                return;
            };
            if start(extended, with) != 0 {
                return;
            }
            for _ in 0..4 {
                let _ = cq.read_opcode.map(|read| read(extended));
                let _ = cq.read_byte_len.map(|read| read(extended));
                let _ = cq.read_vendor_err.map(|read| read(extended));
                let _ = cq.read_src_qp.map(|read| read(extended));
                let efa = efadv_cq_from_ibv_cq_ex(extended);
                if let Some(efa) = efa.as_mut()
                    && let Some(read) = efa.wc_read_sgid
                {
                    let _ = read(efa, self.or_null(&mut zeroed()));
                }
                if next(extended) != 0 {
                    break;
                }
            }
            end(extended);
        }
    }

    fn destroy(&mut self) {
        let kinds = [Kind::Pair, Kind::AddressHandle, Kind::Region, Kind::Queue, Kind::Domain];
        let kind = match self.input.below(6) {
            5 => Kind::Context,
            place => kinds[place],
        };
        let handle = self.handle(kind);
        self.destroy_one(kind, handle);
    }

    fn destroy_one(&mut self, kind: Kind, handle: Handle) {
        // SAFETY: the library looks the handle up before it dereferences it.
        let result = unsafe {
            match kind {
                Kind::Context => ibv_close_device(handle.cast()),
                Kind::Domain => ibv_dealloc_pd(handle.cast()),
                Kind::Region => ibv_dereg_mr(handle.cast()),
                Kind::AddressHandle => ibv_destroy_ah(handle.cast()),
                Kind::Queue | Kind::QueueEx => ibv_destroy_cq(handle.cast()),
                Kind::Pair | Kind::PairEx => ibv_destroy_qp(handle.cast()),
            }
        };
        self.check_destroyed(kind, handle, result);
    }

    fn call(&mut self) {
        match self.input.byte() {
            0..=15 => self.open(),
            16..=31 => {
                let by = self.handle(Kind::Context);
                // SAFETY: the library looks the handle up before it dereferences it.
                let made = unsafe { ibv_alloc_pd(by.cast()) };
                self.record(Kind::Domain, made, by, Kind::Context);
            }
            32..=47 => self.register(),
            48..=63 => self.create_handle(),
            64..=87 => self.create_queue(),
            88..=119 => self.create_pair(),
            120..=159 => self.modify(),
            160..=175 => self.query(),
            176..=199 => self.post(),
            200..=219 => self.build(),
            220..=235 => self.poll(),
            _ => self.destroy(),
        }
    }

    /// Destroys all objects, users before the objects that they use.
    fn give_back(&mut self) {
        use Kind::{AddressHandle, Context, Domain, Pair, Queue, Region};
        for kind in [Pair, AddressHandle, Region, Queue, Domain, Context] {
            while let handle @ 1.. = self.last(kind) as usize {
                let before = self.live.len();
                self.destroy_one(kind, handle as Handle);
                assert!(self.live.len() < before, "an unused {kind:?} is not destroyed");
            }
        }
    }

    fn last(&self, kind: Kind) -> Handle {
        let last = self.live.iter().rev().find(|of| of.kind.is(kind));
        last.map_or(null_mut(), |of| of.handle)
    }
}

/// The library has one state per process and may return a destroyed handle again, so programs run one
/// at a time.
static ONE: Mutex<()> = Mutex::new(());

/// The directory of the software device for this process, not shared with other processes.
fn hosts() -> &'static Path {
    static HOSTS: OnceLock<PathBuf> = OnceLock::new();
    HOSTS.get_or_init(|| {
        let hosts = memory().join(format!("efa-hostile-calls-{}", std::process::id()));
        // SAFETY: all other code in this program reads the environment through the standard library,
        // whose lock this takes.
        unsafe {
            std::env::set_var("EFA_SOFT_DIRECTORY", &hosts);
            // For the target `rings`, also by `trap`: not by default, as a provider of libfabric that
            // another target loads takes the signal away.
            if std::env::var_os("EFA_SOFT_DIRECT").is_none() {
                std::env::set_var("EFA_SOFT_DIRECT", "thread");
            }
        }
        hosts
    })
}

/// Decisions of a correct program that sends itself a message.
const CORRECT_CALLS: [&[u8]; 11] = [
    b"\x00\x00",
    b"\x10\x00\x00",
    // Memory, an address, a completion queue, a queue pair.
    b"\x20\x00\x00\x05\x00\x00\x00\x00",
    b"\x30\x00\x00\x00\x00\x00\x00",
    b"\x40\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    b"\x58\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    // INIT, RTR, RTS.
    b"\x78\x00\x00\x00\x00\x00\x00\x07\x00",
    b"\x78\x00\x00\x00\x01\x00\x00\x07\x00",
    b"\x78\x00\x00\x00\x03\x00\x00\x07\x00",
    // A receive and a send.
    b"\xb0\x00\x04\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x01\x00\x05\x00",
    b"\xb0\x00\x04\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
];
/// Decisions that poll the completion queue.
const POLL_CALL: &[u8] = b"\xdc\x00\x00\x01\x00\x00\x00";

/// Limit of a program that makes no progress; it takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(60);

/// A message to the own queue pair arrives, and its send completes.
fn run_correct_program(memory: &mut [u8]) {
    let calls = CORRECT_CALLS.concat();
    let mut program = Program::new(&calls, memory);
    while !program.input.is_empty() {
        program.call();
    }
    let begun = Instant::now();
    while begun.elapsed() < DEADLINE {
        program.input = Input::new(POLL_CALL);
        program.call();
        if program.served == 2 {
            return program.give_back();
        }
        std::thread::yield_now();
    }
    panic!("a correct program receives no completions");
}

/// Runs a program of the library while no other runs. It must destroy all its objects.
pub(crate) fn alone(program: impl FnOnce()) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let hosts = hosts();
    program();
    // A thread of the library may keep the device, with files of its memory, a little longer.
    let begun = Instant::now();
    while has_memory(hosts) && begun.elapsed() < DEADLINE {
        std::thread::yield_now();
    }
    // All objects are destroyed: the next program creates them again.
    fs::remove_dir_all(hosts).expect("the library created the directory");
}

/// Whether a device has files of its memory.
fn has_memory(hosts: &Path) -> bool {
    let files = fs::read_dir(hosts.join("efa")).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("mem-"))
}

pub(crate) fn run(bytes: &[u8]) {
    alone(|| {
        let mut memory = vec![0_u8; MEMORY];
        let mut program = Program::new(bytes, &mut memory);
        for _ in 0..CALLS {
            if program.input.is_empty() {
                break;
            }
            program.call();
        }
        program.give_back();
        run_correct_program(&mut memory);
    });
}

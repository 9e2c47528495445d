//! Atomics on peers' memory (`fi_atomic`), and what can be asked of them.

use std::ffi::{c_int, c_void};

use efa::{
    AtomicAttributes, AtomicKind, AtomicOp, Buffer, Datatype, FiAddr, Operation, ReceiveBuffer,
    RemoteMemory, Rma,
};

use crate::abi::*;
use crate::bits;
use crate::boundary::{Errno, INVALID, Outcome, started, status};
use crate::c::domain::Domain;
use crate::c::endpoint::Endpoint;
use crate::c::transfer::{context, copied, refused};
use crate::errors;
use crate::memory::{self, MOST_PIECES};
use crate::object::Object;

pub(crate) static TABLE: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg: Some(readwritemsg),
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg: Some(compwritemsg),
    writevalid: Some(writevalid),
    readwritevalid: Some(readwritevalid),
    compwritevalid: Some(compwritevalid),
};

/// Most pieces of remote memory (`rma_iov_limit`).
const MOST_TARGETS: usize = 4;

/// What is done to each element.
#[derive(Clone, Copy)]
struct What {
    op: AtomicOp,
    datatype: Datatype,
}

impl What {
    #[inline(always)]
    fn new(datatype: fi_datatype, op: fi_op) -> Outcome<Self> {
        let found = Datatype::from_code(datatype).zip(AtomicOp::from_code(op));
        let (datatype, op) = found.ok_or(Errno(FI_EOPNOTSUPP))?;
        Ok(Self { op, datatype })
    }

    /// The length in bytes of so many elements.
    #[inline(always)]
    fn bytes(self, count: usize) -> Outcome<usize> {
        count.checked_mul(self.datatype.size()).ok_or(INVALID)
    }

    /// Memory of a peer with so many elements.
    #[inline(always)]
    fn at(self, peer: FiAddr, address: u64, count: usize, key: u64) -> Outcome<Rma> {
        let length = self.bytes(count)? as u64;
        Ok(Rma::at(peer, RemoteMemory { address, length, key }))
    }

    /// Pieces of a peer's memory.
    ///
    /// # Safety
    /// `count` pieces are at `iov`.
    unsafe fn pieces(
        self,
        peer: FiAddr,
        iov: *const fi_rma_ioc,
        count: usize,
    ) -> Outcome<(Rma, usize)> {
        if count > MOST_TARGETS || iov.is_null() {
            return Err(INVALID);
        }
        let mut pieces = [RemoteMemory { address: 0, length: 0, key: 0 }; MOST_TARGETS];
        let mut total = 0_usize;
        for (index, piece) in pieces[..count].iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let fi_rma_ioc { addr, count, key } = unsafe { iov.add(index).read() };
            *piece = RemoteMemory { address: addr, length: self.bytes(count)? as u64, key };
            total = total.checked_add(count).ok_or(INVALID)?;
        }
        let rma = Rma::pieces(peer, &pieces[..count]).map_err(|_| INVALID)?;
        Ok((rma, total))
    }

    /// The operand of one piece. What only reads needs none, and the program passes anything.
    ///
    /// # Safety
    /// `count` elements are at `at`, as `memory` says.
    #[inline(always)]
    unsafe fn operand(self, ep: &Endpoint, at: *const c_void, count: usize) -> Outcome<Buffer> {
        match self.op {
            AtomicOp::Read => Ok(Buffer::default()),
            // SAFETY: the caller's promise.
            _ => unsafe { memory::sent(ep, at, self.bytes(count)?, std::ptr::null_mut()) },
        }
    }

    /// The operand of several pieces.
    ///
    /// # Safety
    /// `count` pieces are at `iov`, of memory as `memory` says.
    unsafe fn operands(self, ep: &Endpoint, iov: *const fi_ioc, count: usize) -> Outcome<Buffer> {
        if self.op == AtomicOp::Read {
            return Ok(Buffer::default());
        }
        // SAFETY: the caller's promise.
        unsafe {
            let mut pieces = [NONE; MOST_PIECES];
            let pieces = self.flat(iov, count, &mut pieces)?;
            memory::sent_pieces(ep, pieces.as_ptr(), std::ptr::null_mut(), pieces.len())
        }
    }

    /// What several pieces of previous values go into.
    ///
    /// # Safety
    /// As for [`operands`](Self::operands).
    unsafe fn results(
        self,
        ep: &Endpoint,
        iov: *const fi_ioc,
        desc: *mut *mut c_void,
        count: usize,
    ) -> Outcome<ReceiveBuffer> {
        // SAFETY: the caller's promise.
        unsafe {
            let mut pieces = [NONE; MOST_PIECES];
            let pieces = self.flat(iov, count, &mut pieces)?;
            memory::received_pieces(ep, pieces.as_ptr(), desc, pieces.len())
        }
    }

    /// Pieces with their lengths in bytes.
    ///
    /// # Safety
    /// `count` pieces are at `iov`.
    unsafe fn flat(
        self,
        iov: *const fi_ioc,
        count: usize,
        into: &mut [libc::iovec; MOST_PIECES],
    ) -> Outcome<&[libc::iovec]> {
        if count > MOST_PIECES || (iov.is_null() && count > 0) {
            return Err(INVALID);
        }
        for (index, piece) in into[..count].iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let fi_ioc { addr, count } = unsafe { iov.add(index).read() };
            *piece = libc::iovec { iov_base: addr, iov_len: self.bytes(count)? };
        }
        Ok(&into[..count])
    }

    fn operation(self, operand: Buffer) -> Operation {
        Operation::of_bytes(self.op, self.datatype, operand)
    }
}

const NONE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// An operand or comparand; a copy of it if it is injected.
fn given(ep: &Endpoint, operand: Buffer, is_injected: bool) -> Outcome<Buffer> {
    match is_injected {
        false => Ok(operand),
        true => copied(ep.endpoint()?, &operand),
    }
}

/// Starts an atomic that returns nothing, on a copy of the operand if it is injected.
fn start(
    ep: &Endpoint,
    rma: Rma,
    what: What,
    operand: Buffer,
    is_injected: bool,
    context: u64,
) -> Outcome<()> {
    let operand = given(ep, operand, is_injected)?;
    let started = ep.endpoint()?.atomic(rma, what.operation(operand), context);
    started.map_err(|error| errors::of_start(&error))
}

/// Starts an atomic that returns previous values.
fn fetch(
    ep: &Endpoint,
    rma: Rma,
    operation: Operation,
    result: ReceiveBuffer,
    context: u64,
) -> Outcome<()> {
    ep.endpoint()?.fetch_atomic(rma, operation, result, context).map_err(refused)
}

/// The target and the flags of a `fi_msg_atomic`, and the context.
struct Parts {
    what: What,
    rma: Rma,
    is_injected: bool,
    context: u64,
}

impl Parts {
    /// # Safety
    /// The pieces of remote memory are there.
    unsafe fn of(ep: &Endpoint, msg: &fi_msg_atomic, flags: u64) -> Outcome<Self> {
        let what = What::new(msg.datatype, msg.op)?;
        let known = bits::transmit_flags(flags).ok_or(Errno(FI_EBADFLAGS))?;
        // SAFETY: the caller's promise.
        let (rma, _) = unsafe { what.pieces(ep.peer(msg.addr), msg.rma_iov, msg.rma_iov_count) }?;
        let (is_injected, context) = (flags & FI_INJECT != 0, context(msg.context));
        Ok(Self { what, rma: rma.flags(known), is_injected, context })
    }
}

// In each function the table is that of an endpoint, and memory is the program's as `memory` says.

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let (ep, what) = (Object::<Endpoint>::of(ep), What::new(datatype, op)?);
        let rma = what.at(ep.peer(dest_addr), addr, count, key)?;
        let operand = what.operand(ep, buf, count)?;
        start(ep, rma, what, operand, ep.defaults.inject, context(ctx))
    })
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let (ep, what) = (Object::<Endpoint>::of(ep), What::new(datatype, op)?);
        let operand = what.operands(ep, iov, count)?;
        let rma = what.at(ep.peer(dest_addr), addr, operand.len() / what.datatype.size(), key)?;
        start(ep, rma, what, operand, ep.defaults.inject, context(ctx))
    })
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let msg = msg.as_ref().ok_or(INVALID)?;
        let Parts { what, rma, is_injected, context } = Parts::of(ep, msg, flags)?;
        let operand = what.operands(ep, msg.msg_iov, msg.iov_count)?;
        start(ep, rma, what, operand, is_injected, context)
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let (ep, what) = (Object::<Endpoint>::of(ep), What::new(datatype, op)?);
        let rma = what.at(ep.peer(dest_addr), addr, count, key)?;
        let operation = what.operation(what.operand(ep, buf, count)?);
        let injected = ep.endpoint()?.inject_atomic(rma, operation);
        injected.map_err(|error| errors::of_start(&error))
    })
}

unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let (ep, what) = (Object::<Endpoint>::of(ep), What::new(datatype, op)?);
        let rma = what.at(ep.peer(dest_addr), addr, count, key)?;
        let operation =
            what.operation(given(ep, what.operand(ep, buf, count)?, ep.defaults.inject)?);
        let result = memory::received(ep, result, what.bytes(count)?, result_desc)?;
        fetch(ep, rma, operation, result, context(ctx))
    })
}

unsafe extern "C" fn readwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let (ep, what) = (Object::<Endpoint>::of(ep), What::new(datatype, op)?);
        let operation =
            what.operation(given(ep, what.operands(ep, iov, count)?, ep.defaults.inject)?);
        let result = what.results(ep, resultv, result_desc, result_count)?;
        let rma = what.at(ep.peer(dest_addr), addr, result.len() / what.datatype.size(), key)?;
        fetch(ep, rma, operation, result, context(ctx))
    })
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let msg = msg.as_ref().ok_or(INVALID)?;
        let Parts { what, rma, is_injected, context } = Parts::of(ep, msg, flags)?;
        let operation =
            what.operation(given(ep, what.operands(ep, msg.msg_iov, msg.iov_count)?, is_injected)?);
        let result = what.results(ep, resultv, result_desc, result_count)?;
        fetch(ep, rma, operation, result, context)
    })
}

unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let (ep, what) = (Object::<Endpoint>::of(ep), What::new(datatype, op)?);
        let rma = what.at(ep.peer(dest_addr), addr, count, key)?;
        let comparand = given(ep, what.operand(ep, compare, count)?, ep.defaults.inject)?;
        let operation = what
            .operation(given(ep, what.operand(ep, buf, count)?, ep.defaults.inject)?)
            .against(comparand);
        let result = memory::received(ep, result, what.bytes(count)?, result_desc)?;
        fetch(ep, rma, operation, result, context(ctx))
    })
}

unsafe extern "C" fn compwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let (ep, what) = (Object::<Endpoint>::of(ep), What::new(datatype, op)?);
        let comparand = given(ep, what.operands(ep, comparev, compare_count)?, ep.defaults.inject)?;
        let operation = what
            .operation(given(ep, what.operands(ep, iov, count)?, ep.defaults.inject)?)
            .against(comparand);
        let result = what.results(ep, resultv, result_desc, result_count)?;
        let rma = what.at(ep.peer(dest_addr), addr, result.len() / what.datatype.size(), key)?;
        fetch(ep, rma, operation, result, context(ctx))
    })
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let msg = msg.as_ref().ok_or(INVALID)?;
        let Parts { what, rma, is_injected, context } = Parts::of(ep, msg, flags)?;
        let comparand = given(ep, what.operands(ep, comparev, compare_count)?, is_injected)?;
        let operation = what
            .operation(given(ep, what.operands(ep, msg.msg_iov, msg.iov_count)?, is_injected)?)
            .against(comparand);
        let result = what.results(ep, resultv, result_desc, result_count)?;
        fetch(ep, rma, operation, result, context)
    })
}

/// What a domain offers of an atomic.
fn offered(domain: &Domain, what: What, kind: AtomicKind) -> Outcome<AtomicAttributes> {
    domain.domain.atomic(what.op, what.datatype, kind).ok_or(Errno(FI_EOPNOTSUPP))
}

/// How many elements an atomic can change.
///
/// # Safety
/// The table is that of an endpoint; `count` is null or a place for the number.
unsafe fn valid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
    kind: AtomicKind,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe {
        let (ep, to) = (Object::<Endpoint>::of(ep), count.as_mut().ok_or(INVALID)?);
        *to = offered(&ep.domain, What::new(datatype, op)?, kind)?.count;
        Ok(())
    })
}

unsafe extern "C" fn writevalid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: as said above.
    unsafe { valid(ep, datatype, op, count, AtomicKind::Write) }
}

unsafe extern "C" fn readwritevalid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: as said above.
    unsafe { valid(ep, datatype, op, count, AtomicKind::Fetch) }
}

unsafe extern "C" fn compwritevalid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: as said above.
    unsafe { valid(ep, datatype, op, count, AtomicKind::Compare) }
}

/// `fi_query_atomic`.
pub(crate) unsafe extern "C" fn query(
    domain: *mut fid_domain,
    datatype: fi_datatype,
    op: fi_op,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    // SAFETY: the table is that of a domain; the program passes a place for the attributes.
    status(|| unsafe {
        let (domain, to) = (Object::<Domain>::of(domain), attr.as_mut().ok_or(INVALID)?);
        let kind = match flags {
            0 => AtomicKind::Write,
            FI_FETCH_ATOMIC => AtomicKind::Fetch,
            FI_COMPARE_ATOMIC => AtomicKind::Compare,
            _ => return Err(INVALID),
        };
        let AtomicAttributes { size, count, .. } = offered(domain, What::new(datatype, op)?, kind)?;
        (to.size, to.count) = (size, count);
        Ok(())
    })
}

//! Atomics on peers' memory (`fi_atomic`), and what can be asked of them.

use std::ffi::{c_int, c_void};

use efa::{
    AtomicAttributes, AtomicKind, AtomicOp, Buffer, Datatype, Operation, ReceiveBuffer,
    RemoteMemory, Rma,
};

use crate::abi::*;
use crate::bits;
use crate::boundary::{Errno, INVALID, Outcome, started, status};
use crate::c::domain::Domain;
use crate::c::endpoint::Endpoint;
use crate::c::rma;
use crate::c::transfer::{self, context};
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

/// What is done to each element.
#[derive(Clone, Copy)]
struct ElementOp {
    op: AtomicOp,
    datatype: Datatype,
}

impl ElementOp {
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
}

const NONE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// A call that starts an atomic.
#[derive(Clone, Copy)]
struct Call<'a> {
    ep: &'a Endpoint,
    what: ElementOp,
    /// Operands are copied before the call returns (`FI_INJECT`).
    is_injected: bool,
    context: u64,
}

impl<'a> Call<'a> {
    /// A call with the default flags.
    #[inline(always)]
    fn new(ep: &'a Endpoint, datatype: fi_datatype, op: fi_op, ctx: *mut c_void) -> Outcome<Self> {
        let (what, is_injected) = (ElementOp::new(datatype, op)?, ep.defaults.inject);
        Ok(Self { ep, what, is_injected, context: context(ctx) })
    }

    /// A call with a message and flags, and the memory of the peer.
    ///
    /// # Safety
    /// The pieces of remote memory are there.
    unsafe fn of_message(
        ep: &'a Endpoint,
        msg: &fi_msg_atomic,
        flags: u64,
    ) -> Outcome<(Self, Rma)> {
        let what = ElementOp::new(msg.datatype, msg.op)?;
        let known = bits::transmit_flags(flags).ok_or(Errno(FI_EBADFLAGS))?;
        let piece = |fi_rma_ioc { addr, count, key }| {
            Ok(RemoteMemory { address: addr, length: what.bytes(count)? as u64, key })
        };
        let peer = ep.peer(msg.addr);
        // SAFETY: the caller's promise.
        let rma = unsafe { rma::pieces(peer, msg.rma_iov, msg.rma_iov_count, piece) }?;
        let is_injected = flags & FI_INJECT != 0;
        Ok((Self { ep, what, is_injected, context: context(msg.context) }, rma.flags(known)))
    }

    /// Memory of a peer with so many elements.
    #[inline(always)]
    fn at(self, peer: fi_addr_t, address: u64, count: usize, key: u64) -> Outcome<Rma> {
        let length = self.what.bytes(count)? as u64;
        Ok(Rma::at(self.ep.peer(peer), RemoteMemory { address, length, key }))
    }

    /// Memory of a peer as long as an operand or a result of so many bytes.
    fn at_as_long(self, peer: fi_addr_t, address: u64, bytes: usize, key: u64) -> Outcome<Rma> {
        self.at(peer, address, bytes / self.what.datatype.size(), key)
    }

    /// An operand or comparand of one piece. What only reads needs none, and the program passes anything.
    ///
    /// # Safety
    /// `count` elements are at `at`, as `memory` says.
    #[inline(always)]
    unsafe fn operand(self, at: *const c_void, count: usize) -> Outcome<Buffer> {
        if self.what.op == AtomicOp::Read {
            return Ok(Buffer::default());
        }
        let none = std::ptr::null_mut();
        // SAFETY: the caller's promise.
        self.copied(unsafe { memory::sent(&self.ep.domain, at, self.what.bytes(count)?, none) }?)
    }

    /// An operand or comparand of several pieces.
    ///
    /// # Safety
    /// `count` pieces are at `iov`, of memory as `memory` says.
    unsafe fn operands(self, iov: *const fi_ioc, count: usize) -> Outcome<Buffer> {
        if self.what.op == AtomicOp::Read {
            return Ok(Buffer::default());
        }
        let mut pieces = [NONE; MOST_PIECES];
        // SAFETY: the caller's promise.
        let lent = unsafe {
            let pieces = self.what.flat(iov, count, &mut pieces)?;
            memory::sent_pieces(
                &self.ep.domain,
                self.ep.most_pieces,
                pieces.as_ptr(),
                std::ptr::null_mut(),
                pieces.len(),
            )
        };
        self.copied(lent?)
    }

    /// A copy of an operand if the atomic is injected.
    fn copied(self, operand: Buffer) -> Outcome<Buffer> {
        match self.is_injected {
            false => Ok(operand),
            true => transfer::copied(self.ep, &operand),
        }
    }

    /// What previous values of one piece go into.
    ///
    /// # Safety
    /// As for [`operand`](Self::operand).
    unsafe fn result(
        self,
        at: *mut c_void,
        count: usize,
        desc: *mut c_void,
    ) -> Outcome<ReceiveBuffer> {
        // SAFETY: the caller's promise.
        unsafe { memory::received(&self.ep.domain, at, self.what.bytes(count)?, desc) }
    }

    /// What previous values of several pieces go into.
    ///
    /// # Safety
    /// As for [`operands`](Self::operands).
    unsafe fn results(
        self,
        iov: *const fi_ioc,
        desc: *mut *mut c_void,
        count: usize,
    ) -> Outcome<ReceiveBuffer> {
        let mut pieces = [NONE; MOST_PIECES];
        // SAFETY: the caller's promise.
        unsafe {
            let pieces = self.what.flat(iov, count, &mut pieces)?;
            memory::received_pieces(
                &self.ep.domain,
                self.ep.most_pieces,
                pieces.as_ptr(),
                desc,
                pieces.len(),
            )
        }
    }

    fn operation(self, operand: Buffer) -> Operation {
        Operation::of_bytes(self.what.op, self.what.datatype, operand)
    }

    /// Starts an atomic that returns nothing.
    fn start(self, rma: Rma, operand: Buffer) -> Outcome<()> {
        let started = self.ep.endpoint()?.atomic(rma, self.operation(operand), self.context);
        started.map_err(|refused| errors::of_start(&refused.error))
    }

    /// Starts an atomic that returns previous values.
    fn fetch(self, rma: Rma, operation: Operation, result: ReceiveBuffer) -> Outcome<()> {
        let started = self.ep.endpoint()?.fetch_atomic(rma, operation, result, self.context);
        started.map_err(|refused| errors::of_start(&refused.error))
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
        let call = Call::new(Object::<Endpoint>::of(ep), datatype, op, ctx)?;
        let rma = call.at(dest_addr, addr, count, key)?;
        call.start(rma, call.operand(buf, count)?)
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
        let call = Call::new(Object::<Endpoint>::of(ep), datatype, op, ctx)?;
        let operand = call.operands(iov, count)?;
        call.start(call.at_as_long(dest_addr, addr, operand.len(), key)?, operand)
    })
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let msg = msg.as_ref().ok_or(INVALID)?;
        let (call, rma) = Call::of_message(ep, msg, flags)?;
        call.start(rma, call.operands(msg.msg_iov, msg.iov_count)?)
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
        let ep = Object::<Endpoint>::of(ep);
        // `inject_atomic` copies the operand itself.
        let call = Call { ep, what: ElementOp::new(datatype, op)?, is_injected: false, context: 0 };
        let rma = call.at(dest_addr, addr, count, key)?;
        let operation = call.operation(call.operand(buf, count)?);
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
        let call = Call::new(Object::<Endpoint>::of(ep), datatype, op, ctx)?;
        let rma = call.at(dest_addr, addr, count, key)?;
        let operation = call.operation(call.operand(buf, count)?);
        call.fetch(rma, operation, call.result(result, count, result_desc)?)
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
        let call = Call::new(Object::<Endpoint>::of(ep), datatype, op, ctx)?;
        let operation = call.operation(call.operands(iov, count)?);
        let result = call.results(resultv, result_desc, result_count)?;
        call.fetch(call.at_as_long(dest_addr, addr, result.len(), key)?, operation, result)
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
        let (call, rma) = Call::of_message(ep, msg, flags)?;
        let operation = call.operation(call.operands(msg.msg_iov, msg.iov_count)?);
        call.fetch(rma, operation, call.results(resultv, result_desc, result_count)?)
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
        let call = Call::new(Object::<Endpoint>::of(ep), datatype, op, ctx)?;
        let rma = call.at(dest_addr, addr, count, key)?;
        let operation = call.operation(call.operand(buf, count)?);
        let operation = operation.against_bytes(call.operand(compare, count)?);
        call.fetch(rma, operation, call.result(result, count, result_desc)?)
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
        let call = Call::new(Object::<Endpoint>::of(ep), datatype, op, ctx)?;
        let operation = call.operation(call.operands(iov, count)?);
        let operation = operation.against_bytes(call.operands(comparev, compare_count)?);
        let result = call.results(resultv, result_desc, result_count)?;
        call.fetch(call.at_as_long(dest_addr, addr, result.len(), key)?, operation, result)
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
        let (call, rma) = Call::of_message(ep, msg, flags)?;
        let operation = call.operation(call.operands(msg.msg_iov, msg.iov_count)?);
        let operation = operation.against_bytes(call.operands(comparev, compare_count)?);
        call.fetch(rma, operation, call.results(resultv, result_desc, result_count)?)
    })
}

/// What a domain offers of an atomic.
fn offered(domain: &Domain, what: ElementOp, kind: AtomicKind) -> Outcome<AtomicAttributes> {
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
        *to = offered(&ep.domain, ElementOp::new(datatype, op)?, kind)?.count;
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
        let AtomicAttributes { size, count, .. } =
            offered(domain, ElementOp::new(datatype, op)?, kind)?;
        (to.size, to.count) = (size, count);
        Ok(())
    })
}

//! Writes and reads of peers' memory (`fi_rma`).

use std::ffi::c_void;

use efa::{Buffer, FiAddr, RemoteMemory, Rma};

use crate::abi::*;
use crate::bits;
use crate::boundary::{Errno, INVALID, Outcome, started};
use crate::c::endpoint::Endpoint;
use crate::c::transfer::{context, copied, refused};
use crate::errors;
use crate::memory;
use crate::object::Object;

pub(crate) static TABLE: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
};

/// Most pieces of remote memory of one operation (`rma_iov_limit`).
const MOST_REMOTE_PIECES: usize = 4;

/// Memory of a peer.
#[inline(always)]
fn at(peer: FiAddr, address: u64, length: usize, key: u64) -> Rma {
    Rma::at(peer, RemoteMemory { address, length: length as u64, key })
}

/// Several pieces of a peer's memory, as `piece` has each.
///
/// # Safety
/// `count` pieces are at `iov`.
pub(super) unsafe fn pieces<T>(
    peer: FiAddr,
    iov: *const T,
    count: usize,
    piece: impl Fn(T) -> Outcome<RemoteMemory>,
) -> Outcome<Rma> {
    if count > MOST_REMOTE_PIECES || (iov.is_null() && count > 0) {
        return Err(INVALID);
    }
    if count == 1 {
        // SAFETY: the caller's promise.
        return Ok(Rma::at(peer, piece(unsafe { iov.read() })?));
    }
    let mut pieces = [RemoteMemory { address: 0, length: 0, key: 0 }; MOST_REMOTE_PIECES];
    for (index, to) in pieces[..count].iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *to = piece(unsafe { iov.add(index).read() })?;
    }
    Rma::pieces(peer, &pieces[..count]).map_err(|_| INVALID)
}

/// The memory of a peer that `fi_readmsg` and `fi_writemsg` name.
///
/// # Safety
/// The pieces of remote memory are there.
unsafe fn remote(ep: &Endpoint, msg: &fi_msg_rma) -> Outcome<Rma> {
    let piece =
        |fi_rma_iov { addr, len, key }| Ok(RemoteMemory { address: addr, length: len as u64, key });
    // SAFETY: the caller's promise.
    unsafe { pieces(ep.peer(msg.addr), msg.rma_iov, msg.rma_iov_count, piece) }
}

/// Writes with the default flags.
#[inline(always)]
fn start_write(ep: &Endpoint, rma: Rma, buffer: Buffer, context: u64) -> Outcome<()> {
    match ep.defaults.inject {
        true => write_copy(ep, rma, buffer, context),
        false => ep.endpoint()?.write(rma, buffer, context).map_err(refused),
    }
}

/// Copies the bytes and writes the copy, with a completion (`FI_INJECT`).
fn write_copy(ep: &Endpoint, rma: Rma, buffer: Buffer, context: u64) -> Outcome<()> {
    ep.endpoint()?.write(rma, copied(ep, &buffer)?, context).map_err(refused)
}

/// Copies the bytes and writes the copy, without a completion.
fn inject_write(ep: &Endpoint, rma: Rma, bytes: &[u8]) -> Outcome<()> {
    ep.endpoint()?.inject_write(rma, bytes).map_err(|error| errors::of_start(&error))
}

// In each function the table is that of an endpoint, and memory is the program's as `memory` says.

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: fi_addr_t,
    addr: u64,
    key: u64,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let buffer = memory::received(&ep.domain, buf, len, desc)?;
        let rma = at(ep.peer(src_addr), addr, len, key);
        ep.endpoint()?.read(rma, buffer, context(ctx)).map_err(refused)
    })
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    src_addr: fi_addr_t,
    addr: u64,
    key: u64,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let buffer = memory::received_pieces(&ep.domain, ep.most_pieces, iov, desc, count)?;
        let rma = at(ep.peer(src_addr), addr, buffer.len(), key);
        ep.endpoint()?.read(rma, buffer, context(ctx)).map_err(refused)
    })
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let msg = msg.as_ref().ok_or(INVALID)?;
        // `FI_INJECT` means nothing where nothing is sent from; libfabric's providers take it too.
        let flags = bits::transmit_flags(flags).ok_or(Errno(FI_EBADFLAGS))?;
        let buffer = memory::received_pieces(
            &ep.domain,
            ep.most_pieces,
            msg.msg_iov,
            msg.desc,
            msg.iov_count,
        )?;
        let rma = remote(ep, msg)?.flags(flags);
        ep.endpoint()?.read(rma, buffer, context(msg.context)).map_err(refused)
    })
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let buffer = memory::sent(&ep.domain, buf, len, desc)?;
        start_write(ep, at(ep.peer(dest_addr), addr, len, key), buffer, context(ctx))
    })
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let buffer = memory::sent_pieces(&ep.domain, ep.most_pieces, iov, desc, count)?;
        let rma = at(ep.peer(dest_addr), addr, buffer.len(), key);
        start_write(ep, rma, buffer, context(ctx))
    })
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let msg = msg.as_ref().ok_or(INVALID)?;
        let known = bits::transmit_flags(flags & !FI_REMOTE_CQ_DATA);
        let buffer =
            memory::sent_pieces(&ep.domain, ep.most_pieces, msg.msg_iov, msg.desc, msg.iov_count)?;
        let rma = remote(ep, msg)?;
        let mut rma = rma.flags(known.ok_or(Errno(FI_EBADFLAGS))?);
        if flags & FI_REMOTE_CQ_DATA != 0 {
            rma = rma.with_data(msg.data);
        }
        match flags & FI_INJECT != 0 {
            true => write_copy(ep, rma, buffer, context(msg.context)),
            false => ep.endpoint()?.write(rma, buffer, context(msg.context)).map_err(refused),
        }
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        inject_write(ep, at(ep.peer(dest_addr), addr, len, key), memory::copied(buf, len)?)
    })
}

unsafe extern "C" fn writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let buffer = memory::sent(&ep.domain, buf, len, desc)?;
        start_write(
            ep,
            at(ep.peer(dest_addr), addr, len, key).with_data(data),
            buffer,
            context(ctx),
        )
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let rma = at(ep.peer(dest_addr), addr, len, key).with_data(data);
        inject_write(ep, rma, memory::copied(buf, len)?)
    })
}

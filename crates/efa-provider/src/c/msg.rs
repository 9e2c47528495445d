//! Messages without tags (`fi_msg`).

use std::ffi::c_void;

use efa::Receive;

use crate::abi::*;
use crate::boundary::{INVALID, Outcome, started};
use crate::c::endpoint::Endpoint;
use crate::c::transfer::{self, context};
use crate::memory;
use crate::object::Object;

pub(crate) static TABLE: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
};

/// The descriptors of a buffer for many messages: none, as its completions name the place of their message, which a
/// part of a region doesn't tell.
///
/// # Errors
/// The buffer isn't one piece.
fn only_piece(count: usize) -> Outcome<*mut *mut c_void> {
    if count > 1 { Err(INVALID) } else { Ok(std::ptr::null_mut()) }
}

// In each function the table is that of an endpoint, and memory is the program's as `memory` says.

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: fi_addr_t,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let desc = if ep.defaults.receive_many { std::ptr::null_mut() } else { desc };
        let buffer = memory::received(&ep.domain, buf, len, desc)?;
        transfer::receive_untagged(ep, src_addr, buffer, context(ctx))
    })
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    src_addr: fi_addr_t,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let desc = match ep.defaults.receive_many {
            true => only_piece(count)?,
            false => desc,
        };
        let buffer = memory::received_pieces(&ep.domain, ep.most_pieces, iov, desc, count)?;
        transfer::receive_untagged(ep, src_addr, buffer, context(ctx))
    })
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let msg = msg.as_ref().ok_or(INVALID)?;
        if flags & FI_MULTI_RECV != 0 {
            let none = only_piece(msg.iov_count)?;
            let buffer = || {
                memory::received_pieces(
                    &ep.domain,
                    ep.most_pieces,
                    msg.msg_iov,
                    none,
                    msg.iov_count,
                )
            };
            let flags = flags & !FI_MULTI_RECV;
            return transfer::receive_many(ep, msg.addr, flags, buffer, context(msg.context));
        }
        let buffer = || {
            memory::received_pieces(
                &ep.domain,
                ep.most_pieces,
                msg.msg_iov,
                msg.desc,
                msg.iov_count,
            )
        };
        let receive = ep.from(Receive::untagged(), msg.addr);
        transfer::receive_flags(ep, receive, FI_MSG, flags, buffer, context(msg.context))
    })
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: fi_addr_t,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let buffer = memory::sent(&ep.domain, buf, len, desc)?;
        transfer::send(ep, ep.message(dest_addr), buffer, context(ctx))
    })
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest_addr: fi_addr_t,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let buffer = memory::sent_pieces(&ep.domain, ep.most_pieces, iov, desc, count)?;
        transfer::send(ep, ep.message(dest_addr), buffer, context(ctx))
    })
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let msg = msg.as_ref().ok_or(INVALID)?;
        let buffer =
            memory::sent_pieces(&ep.domain, ep.most_pieces, msg.msg_iov, msg.desc, msg.iov_count)?;
        let mut message = ep.message(msg.addr);
        if flags & FI_REMOTE_CQ_DATA != 0 {
            message = message.with_data(msg.data);
        }
        transfer::send_flags(ep, message, buffer, flags & !FI_REMOTE_CQ_DATA, context(msg.context))
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    dest_addr: fi_addr_t,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        transfer::inject(ep, ep.message(dest_addr), memory::copied(buf, len)?)
    })
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest_addr: fi_addr_t,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        let buffer = memory::sent(&ep.domain, buf, len, desc)?;
        transfer::send(ep, ep.message(dest_addr).with_data(data), buffer, context(ctx))
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: fi_addr_t,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let ep = Object::<Endpoint>::of(ep);
        transfer::inject(ep, ep.message(dest_addr).with_data(data), memory::copied(buf, len)?)
    })
}

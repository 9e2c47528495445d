//! Calls that start operations of endpoints: messages, tagged messages, accesses of memory and atomics.

use std::ptr::{null, null_mut};

use efars_fi::abi::*;

use super::{ENTRIES, Program, check};

/// Classes of objects with the calls of an endpoint.
const ENDPOINTS: [usize; 5] =
    [FI_CLASS_EP, FI_CLASS_SEP, FI_CLASS_RX_CTX, FI_CLASS_TX_CTX, FI_CLASS_SRX_CTX];

impl Program<'_> {
    pub(super) fn message(&mut self) {
        let ep: *mut fid_ep = self.object(&ENDPOINTS);
        let ((at, length), to, context) = (self.buffer(), self.address(), self.context());
        let (desc, flags) = (self.descriptor(), self.flags());
        let (pieces, count) = self.pieces();
        let mut descs = [desc; ENTRIES];
        let descs = if self.input.one_in(2) { null_mut() } else { descs.as_mut_ptr() };
        let iov = if self.input.one_in(12) { null() } else { pieces.as_ptr() };
        let msg =
            fi_msg { msg_iov: iov, desc: descs, iov_count: count, addr: to, context, data: 7 };
        let msg = if self.input.one_in(12) { null() } else { &raw const msg };
        match self.input.below(9) {
            0 => call!(ep, msg.recv(ep, at, length, desc, to, context)),
            1 => call!(ep, msg.recvv(ep, iov, descs, count, to, context)),
            2 => call!(ep, msg.recvmsg(ep, msg, flags)),
            3 => call!(ep, msg.send(ep, at, length, desc, to, context)),
            4 => call!(ep, msg.sendv(ep, iov, descs, count, to, context)),
            5 => call!(ep, msg.sendmsg(ep, msg, flags)),
            6 => call!(ep, msg.inject(ep, at, length, to)),
            7 => call!(ep, msg.senddata(ep, at, length, desc, 7, to, context)),
            _ => call!(ep, msg.injectdata(ep, at, length, 7, to)),
        };
    }

    pub(super) fn tagged(&mut self) {
        let ep: *mut fid_ep = self.object(&ENDPOINTS);
        let ((at, length), to, context) = (self.buffer(), self.address(), self.context());
        let (desc, flags) = (self.descriptor(), self.flags());
        let (pieces, count) = self.pieces();
        let (tag, ignore) = (self.input.about(1), self.input.about(0));
        let mut descs = [desc; ENTRIES];
        let descs = if self.input.one_in(2) { null_mut() } else { descs.as_mut_ptr() };
        let iov = if self.input.one_in(12) { null() } else { pieces.as_ptr() };
        let msg = fi_msg_tagged {
            msg_iov: iov,
            desc: descs,
            iov_count: count,
            addr: to,
            tag,
            ignore,
            context,
            data: 7,
        };
        let msg = if self.input.one_in(12) { null() } else { &raw const msg };
        match self.input.below(9) {
            0 => call!(ep, tagged.recv(ep, at, length, desc, to, tag, ignore, context)),
            1 => call!(ep, tagged.recvv(ep, iov, descs, count, to, tag, ignore, context)),
            2 => call!(ep, tagged.recvmsg(ep, msg, flags)),
            3 => call!(ep, tagged.send(ep, at, length, desc, to, tag, context)),
            4 => call!(ep, tagged.sendv(ep, iov, descs, count, to, tag, context)),
            5 => call!(ep, tagged.sendmsg(ep, msg, flags)),
            6 => call!(ep, tagged.inject(ep, at, length, to, tag)),
            7 => call!(ep, tagged.senddata(ep, at, length, desc, 7, to, tag, context)),
            _ => call!(ep, tagged.injectdata(ep, at, length, 7, to, tag)),
        };
    }

    pub(super) fn rma(&mut self) {
        let ep: *mut fid_ep = self.object(&ENDPOINTS);
        let ((at, length), to, context) = (self.buffer(), self.address(), self.context());
        let (desc, flags) = (self.descriptor(), self.flags());
        let (pieces, count) = self.pieces();
        let (addr, key) = (self.input.about(at.addr() as u64), self.input.about(3));
        let mut descs = [desc; ENTRIES];
        let descs = if self.input.one_in(2) { null_mut() } else { descs.as_mut_ptr() };
        let iov = if self.input.one_in(12) { null() } else { pieces.as_ptr() };
        let remote = [fi_rma_iov { addr, len: length, key }; ENTRIES];
        let rma_iov_count = self.count();
        let msg = fi_msg_rma {
            msg_iov: iov,
            desc: descs,
            iov_count: count,
            addr: to,
            rma_iov: if self.input.one_in(12) { null() } else { remote.as_ptr() },
            rma_iov_count,
            context,
            data: 7,
        };
        let msg = if self.input.one_in(12) { null() } else { &raw const msg };
        match self.input.below(9) {
            0 => call!(ep, rma.read(ep, at, length, desc, to, addr, key, context)),
            1 => call!(ep, rma.readv(ep, iov, descs, count, to, addr, key, context)),
            2 => call!(ep, rma.readmsg(ep, msg, flags)),
            3 => call!(ep, rma.write(ep, at, length, desc, to, addr, key, context)),
            4 => call!(ep, rma.writev(ep, iov, descs, count, to, addr, key, context)),
            5 => call!(ep, rma.writemsg(ep, msg, flags)),
            6 => call!(ep, rma.inject(ep, at, length, to, addr, key)),
            7 => call!(ep, rma.writedata(ep, at, length, desc, 7, to, addr, key, context)),
            _ => call!(ep, rma.injectdata(ep, at, length, 7, to, addr, key)),
        };
    }

    pub(super) fn atomic(&mut self) {
        let ep: *mut fid_ep = self.object(&ENDPOINTS);
        let ((at, length), to, context) = (self.buffer(), self.address(), self.context());
        let (desc, flags) = (self.descriptor(), self.flags());
        let (datatype, op) = (self.input.about32(5), self.input.about32(2));
        let (addr, key) = (self.input.about(at.addr() as u64), self.input.about(3));
        // An element has at most 32 bytes.
        let (elements, count) = (length / 32, self.count());
        let local = [fi_ioc { addr: at, count: elements / ENTRIES }; ENTRIES];
        let mut results = local;
        let remote = [fi_rma_ioc { addr, count: elements, key }; ENTRIES];
        let mut descs = [desc; ENTRIES];
        let descs = if self.input.one_in(2) { null_mut() } else { descs.as_mut_ptr() };
        let iov = if self.input.one_in(12) { null() } else { local.as_ptr() };
        let result = if self.input.one_in(12) { null_mut() } else { results.as_mut_ptr() };
        let msg = fi_msg_atomic {
            msg_iov: iov,
            desc: descs,
            iov_count: count,
            addr: to,
            rma_iov: remote.as_ptr(),
            rma_iov_count: count,
            datatype,
            op,
            context,
            data: 7,
        };
        let msg = if self.input.one_in(12) { null() } else { &raw const msg };
        let (n, none) = (elements, null_mut());
        let mut most = 0;
        match self.input.below(9) {
            0 => call!(ep, atomic.write(ep, at, n, desc, to, addr, key, datatype, op, context)),
            1 => call!(
                ep,
                atomic.writev(ep, iov, descs, count, to, addr, key, datatype, op, context)
            ),
            2 => call!(ep, atomic.writemsg(ep, msg, flags)),
            3 => call!(ep, atomic.inject(ep, at, n, to, addr, key, datatype, op)),
            4 => call!(
                ep,
                atomic.readwrite(ep, at, n, desc, at, none, to, addr, key, datatype, op, context)
            ),
            5 => call!(ep, atomic.readwritemsg(ep, msg, result, descs, count, flags)),
            6 => call!(
                ep,
                atomic.compwrite(
                    ep, at, n, desc, at, none, at, none, to, addr, key, datatype, op, context
                )
            ),
            7 => call!(
                ep,
                atomic.compwritemsg(ep, msg, iov, descs, count, result, descs, count, flags)
            ),
            _ => call!(ep, atomic.writevalid(ep, datatype, op, &mut most)),
        };
    }
}

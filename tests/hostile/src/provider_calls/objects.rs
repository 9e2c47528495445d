//! Calls that discover, open, bind, control, read and close objects.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use efars_fi::abi::*;

use super::{ENTRIES, Program, check};

impl Program<'_> {
    /// Asks what there is, with hints that are an earlier answer with something changed.
    pub(super) fn discover(&mut self, with_hints: bool) {
        let version = match self.input.below(4) {
            0 => FI_VERSION(1, 17),
            1 => FI_VERSION(1, 5),
            2 => FI_VERSION(2, 6),
            _ => self.input.about32(FI_VERSION(1, 17)),
        };
        let flags = if with_hints { self.flags() } else { 0 };
        let service = self.input.pick(&[null(), c"x".as_ptr(), c"0".as_ptr(), c"7471".as_ptr()]);
        let service = if with_hints { service } else { null() };
        let hints = if with_hints { self.info() } else { null_mut() };
        if !hints.is_null() {
            self.change(hints);
        }
        let Some(getinfo) = self.library.provider.getinfo else { return };
        let mut found = null_mut();
        // SAFETY: hints are an entry of libfabric or null, and there is a place for the answer.
        let result = unsafe { getinfo(version, null(), service, flags, hints, &mut found) };
        if check("getinfo", result as isize) == 0 {
            assert!(!found.is_null());
            self.infos.push(found);
        }
    }

    /// Changes a number of an entry.
    fn change(&mut self, info: *mut fi_info) {
        let (number, bits) = (self.input.about(4), self.flags());
        let handle = self.any();
        // SAFETY: the entry is of libfabric, with all its attributes; numbers may have any value.
        unsafe {
            let fi_info { tx_attr, rx_attr, ep_attr, domain_attr, .. } = *info;
            let (transmit, receive) = (&mut *tx_attr, &mut *rx_attr);
            let (endpoint, domain) = (&mut *ep_attr, &mut *domain_attr);
            match self.input.below(20) {
                0 => (*info).caps = bits,
                1 => (*info).mode = bits,
                2 => (*info).addr_format = number as u32,
                3 => (*info).handle = handle,
                4 => transmit.op_flags = bits,
                5 => transmit.caps = bits,
                6 => transmit.msg_order = bits,
                7 => transmit.inject_size = number as usize,
                8 => transmit.iov_limit = number as usize,
                9 => receive.op_flags = bits,
                10 => receive.size = number as usize,
                11 => endpoint.type_ = number as u32,
                12 => endpoint.protocol_version = number as u32,
                13 => endpoint.tx_ctx_cnt = number as usize,
                14 => endpoint.rx_ctx_cnt = number as usize,
                15 => domain.mr_mode = bits as c_int,
                16 => domain.av_type = number as u32,
                17 => domain.data_progress = number as u32,
                18 => domain.threading = number as u32,
                _ => domain.cq_data_size = number as usize,
            }
        }
    }

    pub(super) fn fabric(&mut self) {
        let info = self.info();
        let mut attr: fi_fabric_attr = match info.is_null() {
            true => zeroed(),
            // SAFETY: the entry is of libfabric.
            false => unsafe { *(*info).fabric_attr },
        };
        let Some(open) = self.library.provider.fabric else { return };
        let mut made = null_mut();
        let attr = if self.input.one_in(16) { null_mut() } else { &raw mut attr };
        let to = if self.input.one_in(16) { null_mut() } else { &raw mut made };
        // SAFETY: both are null or places for what the function reads and writes.
        let result = unsafe { open(attr, to, self.context()) };
        self.keep(check("fabric", result as isize), made);
    }

    pub(super) fn domain(&mut self) {
        let (info, context) = (self.info(), self.context());
        let fabric: *mut fid_fabric = self.object(&[FI_CLASS_FABRIC]);
        let mut made = null_mut();
        let result = call!(fabric, ops.domain(fabric, info, &mut made, context));
        self.keep(result, made);
    }

    pub(super) fn of_fabric(&mut self) {
        let (info, context, kind) = (self.info(), self.context(), self.input.below(4));
        let attr = [self.input.number(8), self.flags(), self.input.about(1), 0, 0, 0, 0, 0];
        let fabric: *mut fid_fabric = self.object(&[FI_CLASS_FABRIC]);
        let mut attr = attr;
        let attr = if self.input.one_in(8) { null_mut() } else { attr.as_mut_ptr() };
        match kind {
            0 => {
                let mut made = null_mut();
                let result = call!(fabric, ops.passive_ep(fabric, info, &mut made, context));
                self.keep(result, made);
            }
            1 => {
                let mut made = null_mut();
                let result = call!(fabric, ops.eq_open(fabric, attr.cast(), &mut made, context));
                self.keep(result, made);
            }
            2 => {
                let mut made = null_mut();
                let result = call!(fabric, ops.wait_open(fabric, attr.cast(), &mut made));
                self.keep(result, made);
            }
            _ => {
                let mut fids: Vec<*mut fid> = (0..4).map(|_| self.any()).collect();
                let count = self.input.pick(&[1, 0, 4, -1]);
                call!(fabric, ops.trywait(fabric, fids.as_mut_ptr(), count));
            }
        }
    }

    /// Vectors, queues, counters and sets.
    pub(super) fn of_domain(&mut self) {
        let context = self.context();
        let (kind, number, small) =
            (self.input.below(6), self.input.about(16), self.input.below(8));
        let flags = self.flags();
        let wait: *mut fid_wait = self.object(&[FI_CLASS_WAIT]);
        let domain: *mut fid_domain = self.object(&[FI_CLASS_DOMAIN]);
        let size = number as usize % 4096;
        let no_attr = self.input.one_in(12);
        match kind {
            0 => {
                let (type_, rx_ctx_bits) = ((small % 4) as u32, self.input.about(2) as c_int);
                let mut attr = fi_av_attr { type_, rx_ctx_bits, count: size, flags, ..zeroed() };
                let mut made = null_mut();
                let attr = if no_attr { null_mut() } else { &raw mut attr };
                let result = call!(domain, ops.av_open(domain, attr, &mut made, context));
                self.keep(result, made);
            }
            1 | 2 => {
                let (format, wait_obj) = (self.input.below(6) as u32, small as u32);
                let mut attr =
                    fi_cq_attr { size, flags, format, wait_obj, wait_set: wait, ..zeroed() };
                let mut made = null_mut();
                let attr = if no_attr { null_mut() } else { &raw mut attr };
                let result = call!(domain, ops.cq_open(domain, attr, &mut made, context));
                self.keep(result, made);
            }
            3 => {
                let mut attr =
                    fi_cntr_attr { wait_obj: small as u32, wait_set: wait, flags, events: 0 };
                let mut made = null_mut();
                let attr = if no_attr { null_mut() } else { &raw mut attr };
                let result = call!(domain, ops.cntr_open(domain, attr, &mut made, context));
                self.keep(result, made);
            }
            4 => {
                let mut attr = fi_poll_attr { flags };
                let mut made = null_mut();
                let result = call!(domain, ops.poll_open(domain, &mut attr, &mut made));
                self.keep(result, made);
            }
            _ => {
                let mut attr: fi_atomic_attr = zeroed();
                let (datatype, op) = (self.input.about32(5), self.input.about32(2));
                let attr = if no_attr { null_mut() } else { &raw mut attr };
                call!(domain, ops.query_atomic(domain, datatype, op, attr, flags));
            }
        }
    }

    /// Endpoints, contexts of scalable ones, and shared contexts.
    pub(super) fn endpoint(&mut self) {
        let (info, context, index) = (self.info(), self.context(), self.input.about(0) as c_int);
        let domain: *mut fid_domain = self.object(&[FI_CLASS_DOMAIN]);
        let mut made: *mut fid_ep = null_mut();
        let result = match self.input.below(8) {
            0..4 => call!(domain, ops.endpoint(domain, info, &mut made, context)),
            4 => call!(domain, ops.scalable_ep(domain, info, &mut made, context)),
            5 => {
                let ep: *mut fid_ep = self.object(&[FI_CLASS_SEP, FI_CLASS_EP]);
                call!(ep, ops.tx_ctx(ep, index, null_mut(), &mut made, context))
            }
            6 => {
                let ep: *mut fid_ep = self.object(&[FI_CLASS_SEP, FI_CLASS_EP]);
                call!(ep, ops.rx_ctx(ep, index, null_mut(), &mut made, context))
            }
            _ => call!(domain, ops.srx_ctx(domain, null_mut(), &mut made, context)),
        };
        self.keep(result, made);
    }

    pub(super) fn bind(&mut self) {
        let (object, other) = (self.any(), self.any());
        let flags = match self.input.below(4) {
            0 => FI_SEND | FI_RECV,
            1 => FI_SEND | FI_SELECTIVE_COMPLETION,
            2 => FI_RECV,
            _ => self.flags(),
        };
        let flags = if self.input.one_in(4) { 0 } else { flags };
        call!(object, ops.bind(object, other, flags));
    }

    pub(super) fn control(&mut self) {
        let object = self.any();
        // Mostly the one that an endpoint can't do without.
        let command = if self.input.one_in(2) { FI_ENABLE } else { self.input.about32(5) as c_int };
        let mut zeros = [0_u64; 16];
        let argument: *mut c_void =
            if self.input.one_in(4) { null_mut() } else { zeros.as_mut_ptr().cast() };
        if command != FI_QUEUE_WORK || argument.is_null() {
            call!(object, ops.control(object, command, argument));
        }
    }

    pub(super) fn close(&mut self) {
        let object = self.any();
        if call!(object, ops.close(object)) == 0 {
            self.live.retain(|at| *at != object);
            self.closed.push(object);
        }
    }

    pub(super) fn register(&mut self) {
        let domain: *mut fid_domain = self.object(&[FI_CLASS_DOMAIN]);
        let (at, length) = self.buffer();
        let access =
            if self.input.one_in(2) { FI_REMOTE_READ | FI_REMOTE_WRITE } else { self.flags() };
        let (offset, key) = (self.input.about(0), self.input.about(3));
        let (flags, context) = (self.flags(), self.context());
        let (pieces, count) = self.pieces();
        let mut made = null_mut();
        let fid: *mut fid = domain.cast();
        let attr = fi_mr_attr {
            mr_iov: pieces.as_ptr(),
            iov_count: count,
            access,
            offset,
            requested_key: key,
            context,
            iface: self.input.below(4) as u32,
            ..zeroed()
        };
        let attr = if self.input.one_in(8) { null() } else { &raw const attr };
        let to = &raw mut made;
        let result = match self.input.below(3) {
            0 => call!(domain, mr.reg(fid, at, length, access, offset, key, flags, to, context)),
            1 => {
                let pieces = pieces.as_ptr();
                call!(domain, mr.regv(fid, pieces, count, access, offset, key, flags, to, context))
            }
            _ => call!(domain, mr.regattr(fid, attr, flags, to)),
        };
        self.keep(result, made);
    }

    pub(super) fn vector(&mut self) {
        let av: *mut fid_av = self.object(&[FI_CLASS_AV]);
        let (flags, fi, kind) = (self.flags(), self.address(), self.input.below(6));
        let count = self.input.pick(&[1, 0, 2, ENTRIES / 2]);
        let mut fis: [fi_addr_t; ENTRIES] = [fi; ENTRIES];
        let fis = if self.input.one_in(6) { null_mut() } else { fis.as_mut_ptr() };
        let (names, _) = self.buffer();
        let (mut errors, mut length) = ([0_u64; ENTRIES], self.input.about(32) as usize % 128);
        let mut room = [0_u8; 256];
        match kind {
            0 | 1 => {
                let context = errors.as_mut_ptr().cast();
                call!(av, ops.insert(av, names, count, fis, flags, context));
            }
            2 => {
                call!(av, ops.remove(av, fis, count, flags));
            }
            3 => {
                let to = if self.input.one_in(6) { null_mut() } else { room.as_mut_ptr().cast() };
                call!(av, ops.lookup(av, fi, to, &mut length));
            }
            4 => {
                let (node, service) = (null(), c"x".as_ptr());
                call!(av, ops.insertsvc(av, node, service, fis, flags, null_mut()));
            }
            _ if av.is_null() || names.is_null() => {}
            _ => {
                // SAFETY: the object is a vector; `room` is as long as `length` says, or longer.
                unsafe {
                    let straddr = (*(*av).ops).straddr.expect("straddr");
                    straddr(av, names, room.as_mut_ptr().cast(), &mut length);
                }
            }
        }
    }

    pub(super) fn queue(&mut self) {
        let cq: *mut fid_cq = self.object(&[FI_CLASS_CQ]);
        let mut entries = [zeroed::<fi_cq_tagged_entry>(); ENTRIES];
        let mut sources = [0; ENTRIES];
        let at: *mut c_void =
            if self.input.one_in(12) { null_mut() } else { entries.as_mut_ptr().cast() };
        let sources = if self.input.one_in(2) { null_mut() } else { sources.as_mut_ptr() };
        let (count, flags) = (self.input.below(ENTRIES + 1), self.flags());
        let mut failed: fi_cq_err_entry = zeroed();
        match self.input.below(6) {
            0 => call!(cq, ops.read(cq, at, count)),
            1 => call!(cq, ops.readfrom(cq, at, count, sources)),
            2 => {
                let to = if self.input.one_in(6) { null_mut() } else { &raw mut failed };
                call!(cq, ops.readerr(cq, to, flags))
            }
            3 => call!(cq, ops.sread(cq, at, count, null(), 0)),
            4 => call!(cq, ops.signal(cq)),
            _ => {
                let mut text = [0 as c_char; 16];
                let number = self.input.about32(8192) as c_int;
                if !cq.is_null() {
                    // SAFETY: the object is a queue, and the room as long as it says.
                    unsafe {
                        let strerror = (*(*cq).ops).strerror.expect("strerror");
                        strerror(cq, number, null(), text.as_mut_ptr(), text.len());
                    }
                }
                0
            }
        };
    }

    /// Event queues, counters, wait and poll sets.
    pub(super) fn events(&mut self) {
        let eq: *mut fid_eq = self.object(&[FI_CLASS_EQ]);
        let counter: *mut fid_cntr = self.object(&[FI_CLASS_CNTR]);
        let (other, value, flags) = (self.any(), self.input.about(1), self.flags());
        let (mut event, mut room) = (0, [0_u64; 64]);
        let length = self.input.below(513);
        let at: *mut c_void =
            if self.input.one_in(8) { null_mut() } else { room.as_mut_ptr().cast() };
        match self.input.below(11) {
            0 => call!(eq, ops.read(eq, &mut event, at, length, flags)),
            1 => call!(eq, ops.readerr(eq, at.cast(), flags)),
            2 => call!(eq, ops.write(eq, value as u32, at, length, flags)),
            3 => call!(eq, ops.sread(eq, &mut event, at, length, 0, flags)),
            4 => call!(counter, ops.add(counter, value)),
            5 => call!(counter, ops.set(counter, value)),
            6 => call!(counter, ops.adderr(counter, value)),
            7 => call!(counter, ops.wait(counter, value, 0)),
            8 => {
                let wait: *mut fid_wait = self.object(&[FI_CLASS_WAIT]);
                call!(wait, ops.wait(wait, 0))
            }
            9 => {
                let set: *mut fid_poll = self.object(&[FI_CLASS_POLL]);
                call!(set, ops.poll_add(set, other, flags))
            }
            _ => {
                let set: *mut fid_poll = self.object(&[FI_CLASS_POLL]);
                let mut contexts = [null_mut(); 4];
                let count = self.input.pick(&[4, 0, -1]);
                call!(set, ops.poll(set, contexts.as_mut_ptr(), count))
            }
        };
    }

    pub(super) fn connect(&mut self) {
        let ep: *mut fid_ep = self.object(&[FI_CLASS_EP]);
        let pep: *mut fid_pep = self.object(&[FI_CLASS_PEP]);
        let (parameter, length) = self.buffer();
        let (handle, flags) = (self.any(), self.flags());
        let mut length = length % 512;
        // A TCP address of this host where nobody listens.
        let mut name = [0_u8; 512];
        name[..8].copy_from_slice(&[2, 0, 0, 1, 127, 0, 0, 1]);
        let name: *mut c_void =
            if self.input.one_in(6) { null_mut() } else { name.as_mut_ptr().cast() };
        match self.input.below(8) {
            0 => call!(pep, cm.listen(pep)),
            1 => call!(ep, cm.connect(ep, name, parameter, length)),
            2 => call!(ep, cm.accept(ep, parameter, length)),
            3 => call!(pep, cm.reject(pep, handle, parameter, length)),
            4 => call!(ep, cm.shutdown(ep, flags)),
            5 => call!(ep, cm.getname(ep.cast(), name, &mut length)),
            6 => call!(pep, cm.getname(pep.cast(), name, &mut length)),
            _ => call!(ep, cm.getpeer(ep, name, &mut length)),
        };
    }

    pub(super) fn options(&mut self) {
        let ep: *mut fid_ep = self.object(&[FI_CLASS_EP]);
        let (level, name) = (self.input.about(0) as c_int, self.input.about(1) as c_int);
        let mut value = [0_u64; 8];
        value[0] = self.input.about(64);
        let mut length = self.input.pick(&[8, 4, 0, 1, 64]);
        let at: *mut c_void =
            if self.input.one_in(6) { null_mut() } else { value.as_mut_ptr().cast() };
        let context = self.context();
        match self.input.below(3) {
            0 => call!(ep, ops.getopt(ep.cast(), level, name, at, &mut length)),
            1 => call!(ep, ops.setopt(ep.cast(), level, name, at, length)),
            _ => call!(ep, ops.cancel(ep.cast(), context)),
        };
    }
}

//! What `rdma/fi_atomic.h` declares: atomic operations on remote memory.

use std::ffi::{c_int, c_void};

use super::{fi_addr_t, fi_datatype, fi_ioc, fi_op, fi_rma_ioc, fid_ep, structs, tables};

structs! {
    fi_atomic_attr { count: usize, size: usize }

    fi_msg_atomic {
        msg_iov: *const fi_ioc,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: fi_addr_t,
        rma_iov: *const fi_rma_ioc,
        rma_iov_count: usize,
        datatype: fi_datatype,
        op: fi_op,
        context: *mut c_void,
        data: u64,
    }

    fi_msg_fetch { msg_iov: *mut fi_ioc, desc: *mut *mut c_void, iov_count: usize }
    fi_msg_compare { msg_iov: *const fi_ioc, desc: *mut *mut c_void, iov_count: usize }
}

tables! {
    fi_ops_atomic {
        write(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
            dest_addr: fi_addr_t, addr: u64, key: u64, datatype: fi_datatype, op: fi_op,
            context: *mut c_void,
        ) -> isize;
        writev(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize,
            dest_addr: fi_addr_t, addr: u64, key: u64, datatype: fi_datatype, op: fi_op,
            context: *mut c_void,
        ) -> isize;
        writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize;
        inject(
            ep: *mut fid_ep, buf: *const c_void, count: usize, dest_addr: fi_addr_t, addr: u64,
            key: u64, datatype: fi_datatype, op: fi_op,
        ) -> isize;
        readwrite(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
            result: *mut c_void, result_desc: *mut c_void, dest_addr: fi_addr_t, addr: u64,
            key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
        ) -> isize;
        readwritev(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize,
            resultv: *mut fi_ioc, result_desc: *mut *mut c_void, result_count: usize,
            dest_addr: fi_addr_t, addr: u64, key: u64, datatype: fi_datatype, op: fi_op,
            context: *mut c_void,
        ) -> isize;
        readwritemsg(
            ep: *mut fid_ep, msg: *const fi_msg_atomic, resultv: *mut fi_ioc,
            result_desc: *mut *mut c_void, result_count: usize, flags: u64,
        ) -> isize;
        compwrite(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
            compare: *const c_void, compare_desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, dest_addr: fi_addr_t, addr: u64, key: u64,
            datatype: fi_datatype, op: fi_op, context: *mut c_void,
        ) -> isize;
        compwritev(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize,
            comparev: *const fi_ioc, compare_desc: *mut *mut c_void, compare_count: usize,
            resultv: *mut fi_ioc, result_desc: *mut *mut c_void, result_count: usize,
            dest_addr: fi_addr_t, addr: u64, key: u64, datatype: fi_datatype, op: fi_op,
            context: *mut c_void,
        ) -> isize;
        compwritemsg(
            ep: *mut fid_ep, msg: *const fi_msg_atomic, comparev: *const fi_ioc,
            compare_desc: *mut *mut c_void, compare_count: usize, resultv: *mut fi_ioc,
            result_desc: *mut *mut c_void, result_count: usize, flags: u64,
        ) -> isize;
        writevalid(
            ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize,
        ) -> c_int;
        readwritevalid(
            ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize,
        ) -> c_int;
        compwritevalid(
            ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize,
        ) -> c_int;
    }
}

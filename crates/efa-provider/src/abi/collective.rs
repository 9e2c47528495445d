//! What `rdma/fi_collective.h` declares. The provider offers none of it; its functions answer `-FI_ENOSYS`.

use std::ffi::{c_int, c_void};

use super::{fi_addr_t, fi_atomic_attr, fi_collective_op, fi_datatype, fi_ioc, fi_op};
use super::{fid, fid_ep, structs, tables};

structs! {
    fid_av_set { fid: fid, ops: *const fi_ops_av_set }

    fi_collective_attr {
        op: fi_op,
        datatype: fi_datatype,
        datatype_attr: fi_atomic_attr,
        max_members: usize,
        mode: u64,
    }

    fi_collective_addr { set: *const fid_av_set, coll_addr: fi_addr_t }

    fi_msg_collective {
        msg_iov: *const fi_ioc,
        desc: *mut *mut c_void,
        iov_count: usize,
        coll_addr: fi_addr_t,
        root_addr: fi_addr_t,
        coll: fi_collective_op,
        datatype: fi_datatype,
        op: fi_op,
        context: *mut c_void,
    }
}

tables! {
    fi_ops_av_set {
        set_union(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        intersect(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        diff(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        insert(set: *mut fid_av_set, addr: fi_addr_t) -> c_int;
        remove(set: *mut fid_av_set, addr: fi_addr_t) -> c_int;
        addr(set: *mut fid_av_set, coll_addr: *mut fi_addr_t) -> c_int;
    }

    fi_ops_collective {
        barrier(ep: *mut fid_ep, coll_addr: fi_addr_t, context: *mut c_void) -> isize;
        broadcast(
            ep: *mut fid_ep, buf: *mut c_void, count: usize, desc: *mut c_void,
            coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: fi_datatype, flags: u64,
            context: *mut c_void,
        ) -> isize;
        alltoall(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
            result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
            datatype: fi_datatype, flags: u64, context: *mut c_void,
        ) -> isize;
        allreduce(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
            result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
            datatype: fi_datatype, op: fi_op, flags: u64, context: *mut c_void,
        ) -> isize;
        allgather(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
            result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
            datatype: fi_datatype, flags: u64, context: *mut c_void,
        ) -> isize;
        reduce_scatter(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
            result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
            datatype: fi_datatype, op: fi_op, flags: u64, context: *mut c_void,
        ) -> isize;
        reduce(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
            result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
            root_addr: fi_addr_t, datatype: fi_datatype, op: fi_op, flags: u64,
            context: *mut c_void,
        ) -> isize;
        scatter(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
            result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
            root_addr: fi_addr_t, datatype: fi_datatype, flags: u64, context: *mut c_void,
        ) -> isize;
        gather(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
            result: *mut c_void, result_desc: *mut c_void, coll_addr: fi_addr_t,
            root_addr: fi_addr_t, datatype: fi_datatype, flags: u64, context: *mut c_void,
        ) -> isize;
        msg(
            ep: *mut fid_ep, msg: *const fi_msg_collective, resultv: *mut fi_ioc,
            result_desc: *mut *mut c_void, result_count: usize, flags: u64,
        ) -> isize;
        barrier2(
            ep: *mut fid_ep, coll_addr: fi_addr_t, flags: u64, context: *mut c_void,
        ) -> isize;
    }
}

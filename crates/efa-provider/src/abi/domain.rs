//! What `rdma/fi_domain.h` declares: domains, address vectors, memory regions, datatypes and operations.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{enums, fi_addr_t, fi_av_type, fi_info, fi_rx_attr, fi_tx_attr, fid, structs, tables};
use super::{fi_atomic_attr, fi_cntr_attr, fi_collective_attr, fi_cq_attr, fi_poll_attr};
use super::{fid_av_set, fid_cntr, fid_cq, fid_ep, fid_poll, fid_stx};

pub type fi_hmem_iface = c_uint;
pub type fi_datatype = c_uint;
pub type fi_op = c_uint;
pub type fi_collective_op = c_uint;

pub const FI_COLLECTIVE_OFFSET: c_uint = 256;

enums! {
    fi_hmem_iface {
        FI_HMEM_SYSTEM, FI_HMEM_CUDA, FI_HMEM_ROCR, FI_HMEM_ZE, FI_HMEM_NEURON,
        FI_HMEM_SYNAPSEAI,
    }
    fi_datatype {
        FI_INT8, FI_UINT8, FI_INT16, FI_UINT16, FI_INT32, FI_UINT32, FI_INT64, FI_UINT64,
        FI_FLOAT, FI_DOUBLE, FI_FLOAT_COMPLEX, FI_DOUBLE_COMPLEX, FI_LONG_DOUBLE,
        FI_LONG_DOUBLE_COMPLEX, FI_DATATYPE_LAST, FI_INT128 = FI_DATATYPE_LAST, FI_UINT128,
        FI_VOID = FI_COLLECTIVE_OFFSET,
    }
    fi_op {
        FI_MIN, FI_MAX, FI_SUM, FI_PROD, FI_LOR, FI_LAND, FI_BOR, FI_BAND, FI_LXOR, FI_BXOR,
        FI_ATOMIC_READ, FI_ATOMIC_WRITE, FI_CSWAP, FI_CSWAP_NE, FI_CSWAP_LE, FI_CSWAP_LT,
        FI_CSWAP_GE, FI_CSWAP_GT, FI_MSWAP, FI_ATOMIC_OP_LAST, FI_NOOP = FI_COLLECTIVE_OFFSET,
    }
    fi_collective_op {
        FI_BARRIER, FI_BROADCAST, FI_ALLTOALL, FI_ALLREDUCE, FI_ALLGATHER, FI_REDUCE_SCATTER,
        FI_REDUCE, FI_SCATTER, FI_GATHER,
    }
}

/// The device of memory that isn't the system's.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_mr_device {
    pub reserved: u64,
    pub cuda: c_int,
    pub ze: c_int,
    pub neuron: c_int,
    pub synapseai: c_int,
}

structs! {
    fi_av_attr {
        type_: fi_av_type,
        rx_ctx_bits: c_int,
        count: usize,
        ep_per_node: usize,
        name: *const c_char,
        map_addr: *mut c_void,
        flags: u64,
    }

    fi_av_set_attr {
        count: usize,
        start_addr: fi_addr_t,
        end_addr: fi_addr_t,
        stride: u64,
        comm_key_size: usize,
        comm_key: *mut u8,
        flags: u64,
    }

    fid_av { fid: fid, ops: *const fi_ops_av }
    fid_mr { fid: fid, mem_desc: *mut c_void, key: u64 }
    fid_domain { fid: fid, ops: *const fi_ops_domain, mr: *const fi_ops_mr }

    fi_mr_attr {
        mr_iov: *const libc::iovec,
        iov_count: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        context: *mut c_void,
        auth_key_size: usize,
        auth_key: *mut u8,
        iface: fi_hmem_iface,
        device: fi_mr_device,
    }

    fi_mr_modify { flags: u64, attr: fi_mr_attr }
}

tables! {
    fi_ops_av {
        insert(
            av: *mut fid_av, addr: *const c_void, count: usize, fi_addr: *mut fi_addr_t,
            flags: u64, context: *mut c_void,
        ) -> c_int;
        insertsvc(
            av: *mut fid_av, node: *const c_char, service: *const c_char,
            fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void,
        ) -> c_int;
        insertsym(
            av: *mut fid_av, node: *const c_char, nodecnt: usize, service: *const c_char,
            svccnt: usize, fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void,
        ) -> c_int;
        remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int;
        lookup(
            av: *mut fid_av, fi_addr: fi_addr_t, addr: *mut c_void, addrlen: *mut usize,
        ) -> c_int;
        straddr(
            av: *mut fid_av, addr: *const c_void, buf: *mut c_char, len: *mut usize,
        ) -> *const c_char;
        av_set(
            av: *mut fid_av, attr: *mut fi_av_set_attr, av_set: *mut *mut fid_av_set,
            context: *mut c_void,
        ) -> c_int;
    }

    fi_ops_domain {
        av_open(
            domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av,
            context: *mut c_void,
        ) -> c_int;
        cq_open(
            domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq,
            context: *mut c_void,
        ) -> c_int;
        endpoint(
            domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep,
            context: *mut c_void,
        ) -> c_int;
        scalable_ep(
            domain: *mut fid_domain, info: *mut fi_info, sep: *mut *mut fid_ep,
            context: *mut c_void,
        ) -> c_int;
        cntr_open(
            domain: *mut fid_domain, attr: *mut fi_cntr_attr, cntr: *mut *mut fid_cntr,
            context: *mut c_void,
        ) -> c_int;
        poll_open(
            domain: *mut fid_domain, attr: *mut fi_poll_attr, pollset: *mut *mut fid_poll,
        ) -> c_int;
        stx_ctx(
            domain: *mut fid_domain, attr: *mut fi_tx_attr, stx: *mut *mut fid_stx,
            context: *mut c_void,
        ) -> c_int;
        srx_ctx(
            domain: *mut fid_domain, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep,
            context: *mut c_void,
        ) -> c_int;
        query_atomic(
            domain: *mut fid_domain, datatype: fi_datatype, op: fi_op,
            attr: *mut fi_atomic_attr, flags: u64,
        ) -> c_int;
        query_collective(
            domain: *mut fid_domain, coll: fi_collective_op, attr: *mut fi_collective_attr,
            flags: u64,
        ) -> c_int;
        endpoint2(
            domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, flags: u64,
            context: *mut c_void,
        ) -> c_int;
    }

    fi_ops_mr {
        reg(
            fid: *mut fid, buf: *const c_void, len: usize, access: u64, offset: u64,
            requested_key: u64, flags: u64, mr: *mut *mut fid_mr, context: *mut c_void,
        ) -> c_int;
        regv(
            fid: *mut fid, iov: *const libc::iovec, count: usize, access: u64, offset: u64,
            requested_key: u64, flags: u64, mr: *mut *mut fid_mr, context: *mut c_void,
        ) -> c_int;
        regattr(
            fid: *mut fid, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr,
        ) -> c_int;
    }
}

//! Queue pairs, their attributes, and work requests.

use std::ffi::{c_int, c_uint, c_void};

use super::{Unused, ibv_ah, ibv_ah_attr, ibv_context, ibv_cq, ibv_pd, opaque};

opaque!(ibv_srq, ibv_xrcd, ibv_rwq_ind_table);

pub const IBV_QPT_DRIVER: c_int = 0xff;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

// Bits of `ibv_qp_init_attr_ex::comp_mask`.
pub const IBV_QP_INIT_ATTR_PD: u32 = 1 << 0;
pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

// Bits of `ibv_qp_init_attr_ex::send_ops_flags`.
pub const IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1 << 0;
pub const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
pub const IBV_QP_EX_WITH_SEND: u64 = 1 << 2;
pub const IBV_QP_EX_WITH_SEND_WITH_IMM: u64 = 1 << 3;
pub const IBV_QP_EX_WITH_RDMA_READ: u64 = 1 << 4;

#[repr(C)]
#[derive(Debug)]
pub struct ibv_qp_init_attr_ex {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut ibv_rwq_ind_table,
    pub _rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

// Bits of the mask of `ibv_modify_qp`.
pub const IBV_QP_STATE: c_int = 1 << 0;
pub const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
pub const IBV_QP_PORT: c_int = 1 << 5;
pub const IBV_QP_QKEY: c_int = 1 << 6;
pub const IBV_QP_RNR_RETRY: c_int = 1 << 11;
pub const IBV_QP_SQ_PSN: c_int = 1 << 16;

pub const IBV_QPS_INIT: c_int = 1;
pub const IBV_QPS_RTR: c_int = 2;
pub const IBV_QPS_RTS: c_int = 3;
#[cfg(test)]
pub const IBV_QPS_ERR: c_int = 6;

#[repr(C)]
#[derive(Debug)]
pub struct ibv_qp_attr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub _bytes: [u8; 5],
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}

#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_int,
    pub qp_type: c_int,
    pub _mutex: libc::pthread_mutex_t,
    pub _cond: libc::pthread_cond_t,
    pub _events_completed: u32,
}

type Qp = *mut ibv_qp_ex;

/// Up to `wr_abort`. Operations that the queue pair was not created with are null.
#[repr(C)]
pub struct ibv_qp_ex {
    pub qp_base: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub _atomics: [Unused; 2],
    pub _bind_mw: Unused,
    pub _local_inv: Unused,
    pub wr_rdma_read: Option<WrRdma>,
    pub wr_rdma_write: Option<WrRdma>,
    pub wr_rdma_write_imm: Option<WrRdmaImm>,
    pub wr_send: Option<WrSend>,
    pub wr_send_imm: Option<WrSendImm>,
    pub _send_inv: Unused,
    pub _send_tso: Unused,
    pub wr_set_ud_addr: Option<WrSetUdAddr>,
    pub _set_xrc_srqn: Unused,
    pub wr_set_inline_data: Option<WrSetInlineData>,
    pub _set_inline_data_list: Unused,
    pub wr_set_sge: Option<WrSetSge>,
    pub _set_sge_list: Unused,
    pub wr_start: Option<WrStart>,
    pub wr_complete: Option<WrComplete>,
    pub wr_abort: Option<WrStart>,
}

/// Remote key and address.
pub type WrRdma = unsafe extern "C" fn(Qp, u32, u64);
/// Remote key, address, immediate data.
pub type WrRdmaImm = unsafe extern "C" fn(Qp, u32, u64, u32);
pub type WrSend = unsafe extern "C" fn(Qp);
pub type WrSendImm = unsafe extern "C" fn(Qp, u32);
/// Address handle, queue pair number, queue key.
pub type WrSetUdAddr = unsafe extern "C" fn(Qp, *mut ibv_ah, u32, u32);
pub type WrSetInlineData = unsafe extern "C" fn(Qp, *mut c_void, usize);
/// Local key, address, length.
pub type WrSetSge = unsafe extern "C" fn(Qp, u32, u64, u32);
pub type WrStart = unsafe extern "C" fn(Qp);
pub type WrComplete = unsafe extern "C" fn(Qp) -> c_int;

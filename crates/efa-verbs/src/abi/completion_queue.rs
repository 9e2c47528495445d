//! Completion queues in the extended form, and work completions.

use std::ffi::{c_int, c_uint, c_void};

use super::{ibv_context, ibv_pd, opaque};

// `ibv_cq_ex` begins with the members of `ibv_cq`, so a pointer to one is a pointer to the other.
opaque!(ibv_cq);

pub const IBV_WC_SUCCESS: c_int = 0;

// Values of `read_opcode`.
pub const IBV_WC_RECV: c_int = 1 << 7;
pub const IBV_WC_RECV_RDMA_WITH_IMM: c_int = IBV_WC_RECV + 1;

/// A bit of `read_wc_flags`.
pub const IBV_WC_WITH_IMM: c_uint = 1 << 1;

// Bits of `ibv_cq_init_attr_ex::wc_flags`.
pub const IBV_WC_EX_WITH_BYTE_LEN: u64 = 1 << 0;
pub const IBV_WC_EX_WITH_IMM: u64 = 1 << 1;
pub const IBV_WC_EX_WITH_SRC_QP: u64 = 1 << 3;
pub const IBV_WC_EX_WITH_SLID: u64 = 1 << 4;

/// Up to `fd`.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}

#[repr(C)]
#[derive(Debug)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

type Cq = *mut ibv_cq_ex;

/// Up to `read_slid`. Readers of fields that the queue was not created with are null.
#[repr(C)]
pub struct ibv_cq_ex {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub _mutex: libc::pthread_mutex_t,
    pub _cond: libc::pthread_cond_t,
    pub _comp_events_completed: u32,
    pub _async_events_completed: u32,
    pub comp_mask: u32,
    pub status: c_int,
    pub wr_id: u64,
    pub start_poll: Option<StartPoll>,
    pub next_poll: Option<NextPoll>,
    pub end_poll: Option<EndPoll>,
    pub read_opcode: Option<ReadOpcode>,
    pub read_vendor_err: Option<ReadU32>,
    pub read_byte_len: Option<ReadU32>,
    pub read_imm_data: Option<ReadU32>,
    pub read_qp_num: Option<ReadU32>,
    pub read_src_qp: Option<ReadU32>,
    pub read_wc_flags: Option<ReadU32>,
    pub read_slid: Option<ReadU32>,
}

pub type StartPoll = unsafe extern "C" fn(Cq, *mut ibv_poll_cq_attr) -> c_int;
pub type NextPoll = unsafe extern "C" fn(Cq) -> c_int;
pub type EndPoll = unsafe extern "C" fn(Cq);
pub type ReadOpcode = unsafe extern "C" fn(Cq) -> c_int;
pub type ReadU32 = unsafe extern "C" fn(Cq) -> u32;

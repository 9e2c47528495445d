//! The C structures of libibverbs and libefa, as rdma-core 44 lays them out.
//!
//! Written by hand, with the names of the C side and only the members that are read or written here.
//! Members between them are placeholders with a leading underscore. `tests/layout.rs` compares every
//! size and offset with the C headers.
//!
//! ```text
//!   struct verbs_context            what programs point to
//!  ┌──────────────────────┐
//!  │ query_port … close   │  grows at this end
//!  │ sz                   │
//!  │ ┌──────────────────┐ │
//!  │ │ ibv_context      │◄├──────── struct ibv_context *
//!  │ └──────────────────┘ │  always last
//!  └──────────────────────┘
//! ```
//!
//! Structures have grown over time. Where the C function passes the length of a structure that the
//! caller allocated (`inlen`), no more than that is read or written.

#![allow(non_camel_case_types, missing_docs)]

mod counter;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::sync::atomic::AtomicI32;

pub use self::counter::*;

/// A C structure of which zeros are a valid value: it consists of numbers, raw pointers and optional
/// function pointers.
///
/// # Safety
/// All-zero bytes must be a value of the type.
#[allow(unsafe_code)]
pub(crate) unsafe trait Zeroable: Sized {}

/// A structure of zeros, as C programs initialise it.
#[allow(unsafe_code)]
pub(crate) fn zeroed<T: Zeroable>() -> T {
    // SAFETY: `Zeroable` requires that this is a value.
    unsafe { std::mem::zeroed() }
}

macro_rules! zeroable {
    ($($type:ty)*) => {
        $(
            // SAFETY: all members are numbers, raw pointers, options of function pointers, `pthread`
            // objects, which are numbers too, or structures of these.
            #[allow(unsafe_code)]
            unsafe impl Zeroable for $type {}
        )*
    };
}

zeroable! { ibv_cq_ex ibv_device_attr ibv_port_attr ibv_qp_attr ibv_qp_ex verbs_context }
#[cfg(test)]
zeroable! { ibv_cq_init_attr_ex ibv_qp_init_attr }

/// A pointer to a function that this device doesn't offer.
pub type Absent = Option<unsafe extern "C" fn()>;

pub const IBV_SYSFS_NAME_MAX: usize = 64;
pub const IBV_SYSFS_PATH_MAX: usize = 256;

pub const IBV_NODE_UNSPECIFIED: c_int = 7;
pub const IBV_TRANSPORT_UNSPECIFIED: c_int = 4;
pub const IBV_FORK_UNNEEDED: c_int = 2;

#[repr(C)]
pub struct ibv_device {
    pub _ops: [usize; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; IBV_SYSFS_NAME_MAX],
    pub dev_name: [c_char; IBV_SYSFS_NAME_MAX],
    pub dev_path: [c_char; IBV_SYSFS_PATH_MAX],
    pub ibdev_path: [c_char; IBV_SYSFS_PATH_MAX],
}

#[repr(C)]
pub struct ibv_context_ops {
    pub _compat_query: [Absent; 2],
    pub _compat_memory: [Absent; 5],
    pub alloc_mw: Absent,
    pub bind_mw: Absent,
    pub dealloc_mw: Absent,
    pub _compat_create_cq: Absent,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub _compat_cq: [Absent; 3],
    pub _compat_srq: [Absent; 4],
    pub post_srq_recv:
        Option<unsafe extern "C" fn(*mut c_void, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _compat_qp: [Absent; 4],
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _compat_rest: [Absent; 5],
}

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub abi_compat: *mut c_void,
}

#[repr(C)]
pub struct verbs_context {
    pub query_port:
        Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub _memory: [Absent; 2],
    pub _counters: [Absent; 4],
    pub _device_memory: [Absent; 3],
    pub _flow_action: [Absent; 3],
    pub modify_qp_rate_limit: Absent,
    pub _domain: [Absent; 3],
    pub modify_cq: Absent,
    pub post_srq_ops: Absent,
    pub _work_queue: [Absent; 5],
    pub query_rt_values: Absent,
    pub create_cq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub private: *mut c_void,
    pub query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const c_void,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    pub _flow: [Absent; 4],
    pub open_qp: Absent,
    pub create_qp_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub _shared_receive: [Absent; 2],
    pub _xrc: [Absent; 2],
    pub _placeholder: u64,
    /// Directly before the context.
    pub sz: usize,
    /// The last member.
    pub context: ibv_context,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_gid {
    pub raw: [u8; 16],
    pub words: [u64; 2],
}

#[repr(C)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

#[repr(C)]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub _atomics: [c_int; 5],
    pub atomic_cap: c_int,
    pub _ee: [c_int; 2],
    pub max_mw: c_int,
    pub _raw: [c_int; 2],
    pub _multicast: [c_int; 3],
    pub max_ah: c_int,
    pub _fmr: [c_int; 2],
    pub _srq: [c_int; 3],
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

#[repr(C)]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub _rest: [u64; 19],
    pub _xrc: u32,
    pub phys_port_cnt_ex: u32,
}

pub const IBV_PORT_ACTIVE: c_int = 4;
pub const IBV_MTU_4096: c_int = 5;
pub const IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;
/// Length of the structure in old programs: everything before `port_cap_flags2`.
pub const COMPAT_PORT_ATTR: usize = offset_of!(ibv_port_attr, port_cap_flags2);

#[repr(C)]
pub struct ibv_port_attr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

pub const IBV_WC_SUCCESS: c_int = 0;
pub const IBV_WC_LOC_LEN_ERR: c_int = 1;
pub const IBV_WC_LOC_QP_OP_ERR: c_int = 2;
pub const IBV_WC_LOC_PROT_ERR: c_int = 4;
pub const IBV_WC_WR_FLUSH_ERR: c_int = 5;
pub const IBV_WC_BAD_RESP_ERR: c_int = 7;
pub const IBV_WC_REM_INV_REQ_ERR: c_int = 9;
pub const IBV_WC_REM_ACCESS_ERR: c_int = 10;
pub const IBV_WC_REM_OP_ERR: c_int = 11;
pub const IBV_WC_RNR_RETRY_EXC_ERR: c_int = 13;
pub const IBV_WC_REM_INV_RD_REQ_ERR: c_int = 15;
pub const IBV_WC_REM_ABORT_ERR: c_int = 16;
pub const IBV_WC_RESP_TIMEOUT_ERR: c_int = 20;
pub const IBV_WC_GENERAL_ERR: c_int = 21;

pub const IBV_WC_SEND: c_int = 0;
pub const IBV_WC_RDMA_WRITE: c_int = 1;
pub const IBV_WC_RDMA_READ: c_int = 2;
pub const IBV_WC_RECV: c_int = 128;
pub const IBV_WC_RECV_RDMA_WITH_IMM: c_int = 129;

/// In `wc_flags`: the completion has immediate data.
pub const IBV_WC_WITH_IMM: c_uint = 2;

// What a program may want to read of completions.
pub const IBV_WC_EX_WITH_BYTE_LEN: u64 = 1 << 0;
pub const IBV_WC_EX_WITH_IMM: u64 = 1 << 1;
pub const IBV_WC_EX_WITH_QP_NUM: u64 = 1 << 2;
pub const IBV_WC_EX_WITH_SRC_QP: u64 = 1 << 3;
pub const IBV_WC_EX_WITH_SLID: u64 = 1 << 4;
pub const IBV_WC_EX_WITH_SL: u64 = 1 << 5;
pub const IBV_WC_EX_WITH_DLID_PATH_BITS: u64 = 1 << 6;
/// All of these.
pub const IBV_WC_STANDARD_FLAGS: u64 = 0x7f;

#[repr(C)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

pub const IBV_ACCESS_LOCAL_WRITE: c_uint = 1;
pub const IBV_ACCESS_REMOTE_WRITE: c_uint = 2;
pub const IBV_ACCESS_REMOTE_READ: c_uint = 4;
pub const IBV_ACCESS_REMOTE_ATOMIC: c_uint = 8;
/// Access flags that a device may ignore.
pub const IBV_ACCESS_OPTIONAL: c_uint = 0x3ff0_0000;

#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

pub const IBV_QPT_UD: c_int = 4;
pub const IBV_QPT_DRIVER: c_int = 255;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut c_void,
    pub cap: ibv_qp_cap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

pub const IBV_QP_INIT_ATTR_PD: u32 = 1;
pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 64;

pub const IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1;
pub const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 2;
pub const IBV_QP_EX_WITH_SEND: u64 = 4;
pub const IBV_QP_EX_WITH_SEND_WITH_IMM: u64 = 8;
pub const IBV_QP_EX_WITH_RDMA_READ: u64 = 16;

#[repr(C)]
pub struct ibv_qp_init_attr_ex {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut c_void,
    pub cap: ibv_qp_cap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub _rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

pub const IBV_QP_STATE: c_int = 1;
pub const IBV_QP_CUR_STATE: c_int = 2;
pub const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
pub const IBV_QP_PORT: c_int = 1 << 5;
pub const IBV_QP_QKEY: c_int = 1 << 6;
pub const IBV_QP_RNR_RETRY: c_int = 1 << 11;
pub const IBV_QP_SQ_PSN: c_int = 1 << 16;
pub const IBV_QP_CAP: c_int = 1 << 19;

pub const IBV_QPS_RESET: c_int = 0;
pub const IBV_QPS_INIT: c_int = 1;
pub const IBV_QPS_RTR: c_int = 2;
pub const IBV_QPS_RTS: c_int = 3;
pub const IBV_QPS_ERR: c_int = 6;

#[repr(C)]
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
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

pub const IBV_WR_SEND: c_int = 2;
pub const IBV_WR_SEND_WITH_IMM: c_int = 3;
pub const IBV_SEND_SIGNALED: c_uint = 2;
pub const IBV_SEND_INLINE: c_uint = 8;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
pub struct ibv_data_buf {
    pub addr: *mut c_void,
    pub length: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_ud_target {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_wr_target {
    pub ud: ibv_ud_target,
    pub _atomic: [u64; 4],
}

#[repr(C)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub wr: ibv_wr_target,
    pub _qp_type: u32,
    pub _bind_mw: [u64; 6],
}

#[repr(C)]
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
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_int,
    pub qp_type: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}

type Qp = *mut ibv_qp_ex;

#[repr(C)]
pub struct ibv_qp_ex {
    pub qp_base: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(Qp, u32, u64, u64, u64)>,
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(Qp, u32, u64, u64)>,
    pub wr_bind_mw: Option<unsafe extern "C" fn(Qp, *mut c_void, u32, *const c_void)>,
    pub wr_local_inv: Option<unsafe extern "C" fn(Qp, u32)>,
    pub wr_rdma_read: Option<unsafe extern "C" fn(Qp, u32, u64)>,
    pub wr_rdma_write: Option<unsafe extern "C" fn(Qp, u32, u64)>,
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(Qp, u32, u64, u32)>,
    pub wr_send: Option<unsafe extern "C" fn(Qp)>,
    pub wr_send_imm: Option<unsafe extern "C" fn(Qp, u32)>,
    pub wr_send_inv: Option<unsafe extern "C" fn(Qp, u32)>,
    pub wr_send_tso: Option<unsafe extern "C" fn(Qp, *mut c_void, u16, u16)>,
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(Qp, *mut ibv_ah, u32, u32)>,
    pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(Qp, u32)>,
    pub wr_set_inline_data: Option<unsafe extern "C" fn(Qp, *mut c_void, usize)>,
    pub wr_set_inline_data_list: Option<unsafe extern "C" fn(Qp, usize, *const ibv_data_buf)>,
    pub wr_set_sge: Option<unsafe extern "C" fn(Qp, u32, u64, u32)>,
    pub wr_set_sge_list: Option<unsafe extern "C" fn(Qp, usize, *const ibv_sge)>,
    pub wr_start: Option<unsafe extern "C" fn(Qp)>,
    pub wr_complete: Option<unsafe extern "C" fn(Qp) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(Qp)>,
    pub wr_atomic_write: Option<unsafe extern "C" fn(Qp, u32, u64, *const c_void)>,
}

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    /// Number of completion queues with this channel, which several threads change.
    pub refcnt: AtomicI32,
}

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

type Cq = *mut ibv_cq_ex;

#[repr(C)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

#[repr(C)]
pub struct ibv_cq_ex {
    /// The same members as at the start of `ibv_cq`.
    pub cq_base: ibv_cq,
    pub comp_mask: u32,
    pub status: c_int,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(Cq, *mut ibv_poll_cq_attr) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(Cq) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(Cq)>,
    pub read_opcode: Option<unsafe extern "C" fn(Cq) -> c_int>,
    pub read_vendor_err: Option<unsafe extern "C" fn(Cq) -> u32>,
    pub read_byte_len: Option<unsafe extern "C" fn(Cq) -> u32>,
    pub read_imm_data: Option<unsafe extern "C" fn(Cq) -> u32>,
    pub read_qp_num: Option<unsafe extern "C" fn(Cq) -> u32>,
    pub read_src_qp: Option<unsafe extern "C" fn(Cq) -> u32>,
    pub read_wc_flags: Option<unsafe extern "C" fn(Cq) -> c_uint>,
    pub read_slid: Option<unsafe extern "C" fn(Cq) -> u32>,
    pub read_sl: Option<unsafe extern "C" fn(Cq) -> u8>,
    pub read_dlid_path_bits: Option<unsafe extern "C" fn(Cq) -> u8>,
    pub _not_offered: [Absent; 5],
}

#[repr(C)]
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

// ---- libefa -------------------------------------------------------------------------------------

pub const EFADV_QP_DRIVER_TYPE_SRD: u32 = 0;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_qp_init_attr {
    pub comp_mask: u64,
    pub driver_qp_type: u32,
    pub flags: u16,
    pub sl: u8,
    pub reserved: u8,
}

/// [`efadv_qp_init_attr`] as rdma-core 64 has it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_qp_init_attr_newer {
    pub first: efadv_qp_init_attr,
    pub wr_flags: u64,
}

/// In `wr_flags`: the program gives hints how to process sends.
pub const EFADV_WR_EX_WITH_PROCESSING_HINTS: u64 = 1;

#[repr(C)]
pub struct efadv_qp {
    pub comp_mask: u64,
    pub wr_set_processing_hints: Option<unsafe extern "C" fn(*mut efadv_qp, u32)>,
}

pub const EFADV_DEVICE_ATTR_CAPS_RDMA_READ: u32 = 1;
pub const EFADV_DEVICE_ATTR_CAPS_RNR_RETRY: u32 = 2;
pub const EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID: u32 = 4;
pub const EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE: u32 = 8;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_device_attr {
    pub comp_mask: u64,
    pub max_sq_wr: u32,
    pub max_rq_wr: u32,
    pub max_sq_sge: u16,
    pub max_rq_sge: u16,
    pub inline_buf_size: u16,
    pub reserved: [u8; 2],
    pub device_caps: u32,
    pub max_rdma_size: u32,
}

/// As of rdma-core 63, like [`efadv_rq_depth_attr`].
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_sq_depth_attr {
    pub comp_mask: u64,
    pub flags: u32,
    pub max_send_sge: u32,
    pub max_rdma_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_rq_depth_attr {
    pub comp_mask: u64,
    pub max_recv_sge: u32,
    pub _end: u32,
}

/// As of rdma-core 50.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct efadv_mr_attr {
    pub comp_mask: u64,
    /// Which of the following are valid.
    pub ic_id_validity: u16,
    pub recv_ic_id: u16,
    pub rdma_read_ic_id: u16,
    pub rdma_recv_ic_id: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_ah_attr {
    pub comp_mask: u64,
    pub ahn: u16,
    pub reserved: [u8; 6],
}

#[repr(C)]
pub struct efadv_cq {
    pub comp_mask: u64,
    pub wc_read_sgid: Option<unsafe extern "C" fn(*mut efadv_cq, *mut ibv_gid) -> c_int>,
}

/// [`efadv_cq`] as newer releases have it.
#[repr(C)]
pub struct efadv_cq_newer {
    pub first: efadv_cq,
    pub wc_is_unsolicited: Option<unsafe extern "C" fn(*mut efadv_cq) -> bool>,
}

pub const EFADV_WC_EX_WITH_SGID: u64 = 1;
/// Newer than rdma-core 44, like the two constants below.
pub const EFADV_WC_EX_WITH_IS_UNSOLICITED: u64 = 2;
pub const EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV: u16 = 1;
/// As of rdma-core 64, like [`EFADV_SQ_DEPTH_ATTR_INLINE_WRITE`].
pub const EFADV_QP_FLAGS_INLINE_WRITE: u16 = 2;
pub const EFADV_SQ_DEPTH_ATTR_INLINE_WRITE: u32 = 1;
pub const EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV: u32 = 16;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_cq_init_attr {
    pub comp_mask: u64,
    pub wc_flags: u64,
}

/// [`efadv_cq_init_attr`] as newer releases have it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_cq_init_attr_newer {
    pub first: efadv_cq_init_attr,
    pub flags: u64,
    pub ext_mem_dmabuf: efadv_cq_memory,
}

/// The member `ext_mem_dmabuf`, whose type has no name in C. `buffer` is a pointer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct efadv_cq_memory {
    pub buffer: usize,
    pub length: u64,
    pub offset: u64,
    pub fd: i32,
    pub reserved: [u8; 4],
}

/// In `flags`: the ring is in memory of the program.
pub const EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF: u64 = 1;
pub const EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF: u32 = 32;

/// As of rdma-core 60, like [`efadv_cq_attr`]; `caps` is newer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct efadv_wq_attr {
    pub comp_mask: u64,
    pub buffer: *mut u8,
    pub entry_size: u32,
    pub num_entries: u32,
    pub doorbell: *mut u32,
    pub max_batch: u32,
    pub caps: u16,
    pub reserved: [u8; 2],
}

/// In `caps`: request ids have 64 bits.
pub const EFADV_WQ_CAPS_64_BIT_REQ_ID: u16 = 1;

/// `doorbell` is newer than the rest.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct efadv_cq_attr {
    pub comp_mask: u64,
    pub buffer: *mut u8,
    pub entry_size: u32,
    pub num_entries: u32,
    pub doorbell: *mut u32,
}

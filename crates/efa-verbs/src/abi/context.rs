//! Devices, opened devices (contexts), and their attributes.

use std::ffi::{c_char, c_int, c_uint};

use super::{Unused, ibv_cq, ibv_qp, ibv_recv_wr, opaque};

opaque!(ibv_device);

/// Up to `post_recv`.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_context_ops {
    pub _before_req_notify_cq: [Unused; 12],
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub _before_post_recv: [Unused; 13],
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
}

/// Up to `ops`.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
}

/// A union in C, of which the bytes are enough.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct ibv_gid {
    pub raw: [u8; 16],
}

#[repr(C)]
#[derive(Debug)]
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
    pub _atomics: [c_int; 6],
    pub _ee_and_rdd: [c_int; 2],
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

/// The function `ibv_query_port` of the library fills it up to `flags`; the C macro of that name
/// fills all of it.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_port_attr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub _counters: [u32; 2],
    pub _lids: [u16; 3],
    pub _bytes: [u8; 10],
    pub port_cap_flags2: u16,
    // Newer headers have `active_speed_ex` here. Callers say how long their structure is.
}

//! Completion counters, as of rdma-core 65.

use std::ffi::c_int;

use super::ibv_context;

pub const IBV_QP_ATTACH_COMP_CNTR_OP_SEND: u32 = 1;
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RECV: u32 = 2;
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ: u32 = 4;
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE: u32 = 16;
pub const IBV_COMP_CNTR_TYPE_WRS: c_int = 0;

pub const EFADV_DEVICE_ATTR_CAPS_COMP_CNTR: u32 = 64;
pub const EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM: u32 = 1;
pub const EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM: u32 = 2;
pub const EFADV_MEMORY_LOCATION_VA: u8 = 0;
pub const EFADV_MEMORY_LOCATION_DMABUF: u8 = 1;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_comp_cntr_caps {
    pub max_value: u64,
    pub max_counters: u32,
    pub supported_qp_attach_ops: u32,
}

#[repr(C)]
pub struct ibv_comp_cntr {
    pub context: *mut ibv_context,
    pub handle: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_comp_cntr_init_attr {
    pub comp_mask: u32,
    pub kind: c_int,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_qp_attach_comp_cntr_attr {
    pub comp_mask: u32,
    pub op_mask: u32,
}

/// `ptr` is a number here: it may be any.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_memory_location {
    pub ptr: usize,
    pub offset: u64,
    pub fd: i32,
    pub reserved: u32,
    pub kind: u8,
    pub _end: [u8; 7],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_comp_cntr_init_attr {
    pub comp_mask: u64,
    pub flags: u32,
    pub reserved: u32,
    pub comp_cntr_ext_mem: efadv_memory_location,
    pub err_cntr_ext_mem: efadv_memory_location,
}

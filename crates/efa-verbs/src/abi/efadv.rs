//! libefa's direct verbs, as rdma-core 65 declares them in `infiniband/efadv.h`.
//!
//! Structures grew at their end and into reserved bytes. Each call passes the length of its structure
//! ([`FIRST_QP_INIT_ATTR`], [`FIRST_CQ_INIT_ATTR`]), so that an older release, which refuses lengths
//! that it doesn't know, takes it.

use std::ffi::c_int;
use std::mem::offset_of;

use super::ibv_gid;

pub const EFADV_DEVICE_ATTR_CAPS_RDMA_READ: u32 = 1 << 0;
pub const EFADV_DEVICE_ATTR_CAPS_RNR_RETRY: u32 = 1 << 1;
pub const EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID: u32 = 1 << 2;
pub const EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE: u32 = 1 << 3;
pub const EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV: u32 = 1 << 4;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct efadv_device_attr {
    pub comp_mask: u64,
    pub max_sq_wr: u32,
    pub max_rq_wr: u32,
    pub max_sq_sge: u16,
    pub max_rq_sge: u16,
    pub inline_buf_size: u16,
    /// Reserved and zero before rdma-core 64.
    pub inline_buf_size_ex: u16,
    pub device_caps: u32,
    pub max_rdma_size: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct efadv_ah_attr {
    pub comp_mask: u64,
    pub ahn: u16,
    pub reserved: [u8; 6],
}

pub const EFADV_QP_DRIVER_TYPE_SRD: u32 = 0;
pub const EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV: u16 = 1 << 0;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct efadv_qp_init_attr {
    pub comp_mask: u64,
    pub driver_qp_type: u32,
    /// Reserved bytes in the first releases, as are `sl` and `reserved`.
    pub flags: u16,
    pub sl: u8,
    pub reserved: u8,
    pub wr_flags: u64,
}

pub const EFADV_WC_EX_WITH_SGID: u64 = 1 << 0;
pub const EFADV_WC_EX_WITH_IS_UNSOLICITED: u64 = 1 << 1;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct efadv_cq_init_attr {
    pub comp_mask: u64,
    pub wc_flags: u64,
    pub flags: u64,
    pub ext_mem_dmabuf: efadv_ext_mem_dmabuf,
}

/// An anonymous structure in C.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct efadv_ext_mem_dmabuf {
    pub buffer: *mut u8,
    pub length: u64,
    pub offset: u64,
    pub fd: i32,
    pub reserved: [u8; 4],
}

impl efadv_cq_init_attr {
    /// A queue in memory that libefa allocates, with these completion flags.
    #[must_use]
    pub const fn new(wc_flags: u64) -> Self {
        let ext_mem_dmabuf = efadv_ext_mem_dmabuf {
            buffer: std::ptr::null_mut(),
            length: 0,
            offset: 0,
            fd: 0,
            reserved: [0; 4],
        };
        Self { comp_mask: 0, wc_flags, flags: 0, ext_mem_dmabuf }
    }
}

#[repr(C)]
#[derive(Debug)]
pub struct efadv_cq {
    pub comp_mask: u64,
    pub wc_read_sgid: Option<unsafe extern "C" fn(*mut efadv_cq, *mut ibv_gid) -> c_int>,
    /// A member only of queues that were created with [`EFADV_WC_EX_WITH_IS_UNSOLICITED`].
    pub wc_is_unsolicited: Option<unsafe extern "C" fn(*mut efadv_cq) -> bool>,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct efadv_sq_depth_attr {
    pub comp_mask: u64,
    pub flags: u32,
    pub max_send_sge: u32,
    pub max_rdma_sge: u32,
    pub max_inline_data: u32,
}

/// Length of [`efadv_qp_init_attr`] that every release takes. It covers `flags`.
pub const FIRST_QP_INIT_ATTR: u32 = offset_of!(efadv_qp_init_attr, wr_flags) as u32;
/// Length of [`efadv_cq_init_attr`] that every release takes. It covers `wc_flags`.
pub const FIRST_CQ_INIT_ATTR: u32 = offset_of!(efadv_cq_init_attr, flags) as u32;

// The layout of the C compiler on 64-bit machines.
const _: () = {
    assert!(size_of::<efadv_device_attr>() == 32);
    assert!(offset_of!(efadv_device_attr, inline_buf_size_ex) == 22);
    assert!(offset_of!(efadv_device_attr, device_caps) == 24);
    assert!(size_of::<efadv_ah_attr>() == 16);
    assert!(size_of::<efadv_qp_init_attr>() == 24);
    assert!(offset_of!(efadv_qp_init_attr, flags) == 12);
    assert!(FIRST_QP_INIT_ATTR == 16);
    assert!(size_of::<efadv_cq_init_attr>() == 56);
    assert!(FIRST_CQ_INIT_ATTR == 16);
    assert!(size_of::<efadv_cq>() == 24);
    assert!(size_of::<efadv_sq_depth_attr>() == 24);
};

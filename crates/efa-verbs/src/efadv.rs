//! libefa's direct verbs: `infiniband/efadv.h`, by hand.
//!
//! rdma-sys binds libibverbs alone. These are the structures in the form of rdma-core 65 and the
//! functions of versions EFA_1.1 and EFA_1.2, which every supported release exports; those that came
//! later are looked up at run time ([`Newer`]).
//!
//! Structures grew at their end and into reserved bytes. Each call passes the length of what it
//! means ([`FIRST_QP_INIT_ATTR`], [`FIRST_CQ_INIT_ATTR`]), so that a release which doesn't know the
//! rest isn't shown it. `tests/layout.rs` compares sizes, offsets and numbers with the header that is
//! installed.

#![allow(non_camel_case_types, missing_docs, reason = "the names of the C side")]

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use rdma_sys::{ibv_ah, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_gid};
use rdma_sys::{ibv_qp, ibv_qp_init_attr_ex};

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
    /// These three were reserved at first.
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

/// Without a name in C.
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
    /// Memory of libefa's own, and these completion flags.
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
    /// There only if it was asked for with [`EFADV_WC_EX_WITH_IS_UNSOLICITED`].
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

/// Length of [`efadv_qp_init_attr`] in every release; the flags are in it.
pub const FIRST_QP_INIT_ATTR: u32 = offset_of!(efadv_qp_init_attr, wr_flags) as u32;
/// Length of [`efadv_cq_init_attr`] in every release; the completion flags are in it.
pub const FIRST_CQ_INIT_ATTR: u32 = offset_of!(efadv_cq_init_attr, flags) as u32;

// As the C compiler of a 64-bit machine lays them out.
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

#[link(name = "efa")]
unsafe extern "C" {
    pub fn efadv_query_device(
        context: *mut ibv_context,
        attributes: *mut efadv_device_attr,
        length: u32,
    ) -> c_int;
    pub fn efadv_query_ah(
        handle: *mut ibv_ah,
        attributes: *mut efadv_ah_attr,
        length: u32,
    ) -> c_int;
    pub fn efadv_create_qp_ex(
        context: *mut ibv_context,
        attributes: *mut ibv_qp_init_attr_ex,
        efa: *mut efadv_qp_init_attr,
        length: u32,
    ) -> *mut ibv_qp;
    pub fn efadv_create_cq(
        context: *mut ibv_context,
        attributes: *mut ibv_cq_init_attr_ex,
        efa: *mut efadv_cq_init_attr,
        length: u32,
    ) -> *mut ibv_cq_ex;
    pub fn efadv_cq_from_ibv_cq_ex(cq: *mut ibv_cq_ex) -> *mut efadv_cq;
}

type GetMaxSqDepth = unsafe extern "C" fn(*mut ibv_context, *mut efadv_sq_depth_attr, u32) -> c_int;

/// Functions that not every release has: what is `None` is not used.
#[derive(Clone, Copy, Debug)]
pub struct Newer {
    /// EFA_1.5: how deep a send queue can be with so much inline data.
    pub get_max_sq_depth: Option<GetMaxSqDepth>,
}

impl Newer {
    /// Those of the library that this process runs with.
    #[must_use]
    pub fn find() -> Self {
        // SAFETY: a name that ends in zero; the search has no other effect.
        let found: *mut c_void =
            unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"efadv_get_max_sq_depth".as_ptr()) };
        // SAFETY: null is `None`, and what has this name has this type in every release.
        let get_max_sq_depth =
            unsafe { std::mem::transmute::<*mut c_void, Option<GetMaxSqDepth>>(found) };
        Self { get_max_sq_depth }
    }
}

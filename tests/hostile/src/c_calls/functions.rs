//! Functions of `libefa_soft`, as C declares them.

use std::ffi::{c_int, c_uint, c_void};

use efa_soft::abi::*;

unsafe extern "C" {
    pub(crate) fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    pub(crate) fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub(crate) fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
    pub(crate) fn ibv_get_device_index(device: *mut ibv_device) -> c_int;
    pub(crate) fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub(crate) fn ibv_close_device(context: *mut ibv_context) -> c_int;
    pub(crate) fn ibv_query_device(context: *mut ibv_context, into: *mut ibv_device_attr) -> c_int;
    pub(crate) fn ibv_query_port(
        context: *mut ibv_context,
        port: u8,
        into: *mut ibv_port_attr,
    ) -> c_int;
    pub(crate) fn ibv_query_gid(
        c: *mut ibv_context,
        port: u8,
        index: c_int,
        into: *mut ibv_gid,
    ) -> c_int;
    pub(crate) fn ibv_query_pkey(
        c: *mut ibv_context,
        port: u8,
        index: c_int,
        into: *mut u16,
    ) -> c_int;
    pub(crate) fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, key: u16) -> c_int;
    pub(crate) fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub(crate) fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int;
    pub(crate) fn ibv_reg_mr(
        pd: *mut ibv_pd,
        at: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr;
    pub(crate) fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd,
        at: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr;
    pub(crate) fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int;
    pub(crate) fn ibv_create_ah(domain: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah;
    pub(crate) fn ibv_destroy_ah(handle: *mut ibv_ah) -> c_int;
    pub(crate) fn ibv_create_cq(
        context: *mut ibv_context,
        depth: c_int,
        own: *mut c_void,
        channel: *mut c_void,
        vector: c_int,
    ) -> *mut ibv_cq;
    pub(crate) fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int;
    pub(crate) fn ibv_create_qp(
        domain: *mut ibv_pd,
        attributes: *mut ibv_qp_init_attr,
    ) -> *mut ibv_qp;
    pub(crate) fn ibv_modify_qp(pair: *mut ibv_qp, to: *mut ibv_qp_attr, mask: c_int) -> c_int;
    pub(crate) fn ibv_query_qp(
        pair: *mut ibv_qp,
        into: *mut ibv_qp_attr,
        mask: c_int,
        first: *mut ibv_qp_init_attr,
    ) -> c_int;
    pub(crate) fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int;
    pub(crate) fn ibv_qp_to_qp_ex(pair: *mut ibv_qp) -> *mut ibv_qp_ex;
    pub(crate) fn efadv_query_device(
        c: *mut ibv_context,
        into: *mut efadv_device_attr,
        size: u32,
    ) -> c_int;
    pub(crate) fn efadv_query_ah(handle: *mut ibv_ah, into: *mut efadv_ah_attr, size: u32)
    -> c_int;
    pub(crate) fn efadv_create_cq(
        context: *mut ibv_context,
        attributes: *mut ibv_cq_init_attr_ex,
        efa: *mut efadv_cq_init_attr,
        size: u32,
    ) -> *mut ibv_cq_ex;
    pub(crate) fn efadv_cq_from_ibv_cq_ex(queue: *mut ibv_cq_ex) -> *mut efadv_cq;
    pub(crate) fn efadv_create_qp_ex(
        context: *mut ibv_context,
        attributes: *mut ibv_qp_init_attr_ex,
        efa: *mut efadv_qp_init_attr,
        size: u32,
    ) -> *mut ibv_qp;
    pub(crate) fn efadv_create_driver_qp(
        domain: *mut ibv_pd,
        attributes: *mut ibv_qp_init_attr,
        kind: u32,
    ) -> *mut ibv_qp;
    pub(crate) fn efadv_query_cq(queue: *mut ibv_cq, into: *mut efadv_cq_attr, size: u32) -> c_int;
    pub(crate) fn efadv_query_qp_wqs(
        pair: *mut ibv_qp,
        send: *mut efadv_wq_attr,
        receive: *mut efadv_wq_attr,
        size: u32,
    ) -> c_int;
}

//! Compares the structures and constants of `abi` with the C headers.
//!
//! Needs `cc` and the Debian package libibverbs-dev. Without them the test is skipped, or fails if
//! `EFA_INTEROP=1` is set.

#![allow(clippy::unwrap_used)]

mod common;

use std::ffi::CString;
use std::mem::offset_of;

use common::library;
use efa_c_layout::{Number, assert_same, constants, layouts, number};
use efa_soft::abi::*;

fn numbers() -> Vec<Number> {
    let mut numbers = layouts! {
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context_ops {
            alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send,
            post_recv,
        }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        verbs_context {
            query_port, modify_qp_rate_limit, modify_cq, post_srq_ops, query_rt_values,
            create_cq_ex, private = "priv", query_device_ex, open_qp, create_qp_ex, sz, context,
        }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
            vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
            max_cq, max_cqe, max_mr, max_pd, atomic_cap, max_mw, max_ah, max_pkeys,
            local_ca_ack_delay, phys_port_cnt,
        }
        ibv_device_attr_ex { orig_attr, comp_mask, _rest = "odp_caps", phys_port_cnt_ex }
        ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
            port_cap_flags2,
        }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits,
        }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_ah { context, pd, handle }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_init_attr_ex {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
            create_flags, max_tso_header, rwq_ind_tbl, _rx_hash_conf = "rx_hash_conf", source_qpn,
            send_ops_flags,
        }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit,
        }
        ibv_sge { addr, length, lkey }
        ibv_data_buf { addr, length }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex,
            cond, events_completed,
        }
        ibv_qp_ex {
            qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add,
            wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send,
            wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn,
            wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start,
            wr_complete, wr_abort, wr_atomic_write,
        }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed,
        }
        ibv_poll_cq_attr { comp_mask }
        ibv_cq_ex {
            comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode,
            read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags,
            read_slid, read_sl, read_dlid_path_bits, _not_offered = "read_completion_ts",
        }
        ibv_cq_init_attr_ex {
            cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain,
        }
        efadv_qp_init_attr { comp_mask, driver_qp_type }
        efadv_device_attr {
            comp_mask, max_sq_wr, max_rq_wr, max_sq_sge, max_rq_sge, inline_buf_size, device_caps,
            max_rdma_size,
        }
        efadv_ah_attr { comp_mask, ahn }
        efadv_cq { comp_mask, wc_read_sgid }
        efadv_cq_init_attr { comp_mask, wc_flags }
    };
    numbers.push(number("sizeof(union ibv_gid)", size_of::<ibv_gid>()));
    let target = offset_of!(ibv_send_wr, wr);
    for (c, here) in [
        ("wr.ud.ah", offset_of!(ibv_ud_target, ah)),
        ("wr.ud.remote_qpn", offset_of!(ibv_ud_target, remote_qpn)),
        ("wr.ud.remote_qkey", offset_of!(ibv_ud_target, remote_qkey)),
    ] {
        let c = format!("offsetof(struct ibv_send_wr, {c})");
        numbers.push(number(c, target + here));
    }
    numbers.extend(constants! {
        IBV_SYSFS_NAME_MAX IBV_SYSFS_PATH_MAX IBV_NODE_UNSPECIFIED IBV_TRANSPORT_UNSPECIFIED
        IBV_FORK_UNNEEDED IBV_PORT_ACTIVE IBV_MTU_4096 IBV_LINK_LAYER_UNSPECIFIED
        IBV_WC_SUCCESS IBV_WC_LOC_LEN_ERR IBV_WC_LOC_QP_OP_ERR IBV_WC_LOC_PROT_ERR
        IBV_WC_WR_FLUSH_ERR IBV_WC_BAD_RESP_ERR IBV_WC_REM_INV_REQ_ERR IBV_WC_REM_ACCESS_ERR
        IBV_WC_RNR_RETRY_EXC_ERR IBV_WC_REM_INV_RD_REQ_ERR IBV_WC_REM_ABORT_ERR
        IBV_WC_RESP_TIMEOUT_ERR IBV_WC_GENERAL_ERR
        IBV_WC_SEND IBV_WC_RDMA_WRITE IBV_WC_RECV IBV_WC_RECV_RDMA_WITH_IMM IBV_WC_WITH_IMM
        IBV_WC_EX_WITH_BYTE_LEN IBV_WC_EX_WITH_IMM IBV_WC_EX_WITH_QP_NUM IBV_WC_EX_WITH_SRC_QP
        IBV_WC_EX_WITH_SLID IBV_WC_EX_WITH_SL IBV_WC_EX_WITH_DLID_PATH_BITS IBV_WC_STANDARD_FLAGS
        IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE IBV_ACCESS_REMOTE_READ
        IBV_ACCESS_REMOTE_ATOMIC
        IBV_QPT_UD IBV_QPT_DRIVER IBV_QP_INIT_ATTR_PD IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        IBV_QP_EX_WITH_RDMA_WRITE IBV_QP_EX_WITH_SEND IBV_QP_EX_WITH_RDMA_READ
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM IBV_QP_EX_WITH_SEND_WITH_IMM
        IBV_QP_STATE IBV_QP_CUR_STATE IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_QKEY IBV_QP_RNR_RETRY
        IBV_QP_SQ_PSN IBV_QP_CAP IBV_QPS_RESET IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QPS_ERR
        IBV_WR_SEND IBV_WR_SEND_WITH_IMM IBV_SEND_INLINE
        EFADV_QP_DRIVER_TYPE_SRD EFADV_DEVICE_ATTR_CAPS_RDMA_READ EFADV_DEVICE_ATTR_CAPS_RNR_RETRY
        EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID EFADV_WC_EX_WITH_SGID
    });
    numbers.push(number("IBV_ACCESS_OPTIONAL_RANGE", IBV_ACCESS_OPTIONAL as usize));
    numbers
}

#[test]
fn structures_and_constants_match_c_headers() {
    assert_same(&numbers(), &["infiniband/verbs.h", "infiniband/efadv.h"], "libibverbs-dev");
}

/// The functions of libibverbs 64 and libefa 64 that take or return an object of the library. If one were
/// missing here, programs would pass our objects to the real one.
const FUNCTIONS: &str = "
    ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_get_device_guid
    ibv_get_device_index ibv_open_device ibv_close_device ibv_get_async_event ibv_ack_async_event
    ibv_query_device ibv_query_port ibv_query_port_speed ibv_query_gid ibv_query_pkey
    ibv_get_pkey_index _ibv_query_gid_ex _ibv_query_gid_table ibv_alloc_pd ibv_dealloc_pd
    ibv_reg_mr ibv_reg_mr_iova ibv_reg_mr_iova2 ibv_reg_mr_ex ibv_reg_dmabuf_mr ibv_rereg_mr
    ibv_dereg_mr ibv_alloc_dmah ibv_dealloc_dmah ibv_alloc_buf ibv_free_buf ibv_reg_buf_mr
    ibv_export_buf_dmabuf_fd ibv_dm_export_dmabuf_fd ibv_create_comp_channel
    ibv_destroy_comp_channel ibv_create_cq ibv_resize_cq ibv_destroy_cq ibv_get_cq_event
    ibv_ack_cq_events ibv_create_srq ibv_modify_srq ibv_query_srq ibv_destroy_srq ibv_create_qp
    ibv_query_qp ibv_modify_qp ibv_destroy_qp ibv_qp_to_qp_ex ibv_query_qp_data_in_order
    ibv_query_ece ibv_set_ece ibv_create_ah ibv_create_ah_from_wc ibv_init_ah_from_wc
    ibv_resolve_eth_l2_from_gid ibv_destroy_ah ibv_attach_mcast ibv_detach_mcast
    ibv_import_device ibv_import_mr ibv_import_pd ibv_import_dm ibv_unimport_mr ibv_unimport_pd
    ibv_unimport_dm ibv_fork_init ibv_is_fork_initialized _ibv_query_comp_cntr_caps
    ibv_create_comp_cntr ibv_destroy_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr
    ibv_set_comp_cntr ibv_set_err_comp_cntr ibv_read_comp_cntr ibv_read_err_comp_cntr
    ibv_qp_attach_comp_cntr
    efadv_create_driver_qp efadv_create_qp_ex efadv_query_ah efadv_query_device
    efadv_cq_from_ibv_cq_ex efadv_create_cq efadv_query_mr efadv_query_qp_wqs efadv_query_cq
    efadv_get_max_sq_depth efadv_get_max_rq_depth efadv_qp_from_ibv_qp_ex efadv_create_comp_cntr
";

#[test]
fn every_function_with_objects_is_exported() {
    let path = CString::new(library().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: the initialisers of the library have no preconditions.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null());
    for name in FUNCTIONS.split_whitespace() {
        let symbol = CString::new(name).unwrap();
        // SAFETY: the handle is from `dlopen`; the function is not called.
        assert!(!unsafe { libc::dlsym(library, symbol.as_ptr()) }.is_null(), "{name}");
    }
}

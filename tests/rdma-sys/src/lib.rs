//! `efa_verbs::abi` against the crate rdma-sys, which generates its declarations from the installed C
//! headers: offsets, sizes and constants of libibverbs. rdma-sys has no declarations of libefa.
//!
//! `crates/efa-verbs/tests/layout.rs` compares with the C headers directly, and is part of the workspace.

#![cfg(test)]

use std::mem::offset_of;

use efa_verbs::abi;

/// A number of both: what it is, here, there.
type Pair = (String, u64, u64);

/// Offsets of members.
macro_rules! members {
    ($($name:ident { $($member:ident),* $(,)? })*) => {
        vec![$($((
            format!("{}::{}", stringify!($name), stringify!($member)),
            offset_of!(abi::$name, $member) as u64,
            offset_of!(rdma_sys::$name, $member) as u64,
        )),*),*]
    };
}

macro_rules! sizes {
    ($($name:ident)*) => {
        vec![$((
            format!("size of {}", stringify!($name)),
            size_of::<abi::$name>() as u64,
            size_of::<rdma_sys::$name>() as u64,
        )),*]
    };
}

/// Constants of an enum of rdma-sys, whose values are numbers or structures of one.
macro_rules! constants {
    ($enumeration:ident: $($name:ident)*) => {
        vec![$((
            stringify!($name).to_owned(),
            abi::$name as u64,
            rdma_sys::$enumeration::$name as u64,
        )),*]
    };
    ($enumeration:ident.0: $($name:ident)*) => {
        vec![$((
            stringify!($name).to_owned(),
            abi::$name as u64,
            rdma_sys::$enumeration::$name.0 as u64,
        )),*]
    };
}

fn differing(pairs: Vec<Pair>) -> Vec<String> {
    let differs = pairs.into_iter().filter(|(_, here, there)| here != there);
    differs.map(|(what, here, there)| format!("{what}: {here} here, {there} there")).collect()
}

#[test]
fn offsets_agree_with_rdma_sys() {
    let pairs: Vec<Pair> = members! {
        ibv_context { device, ops }
        ibv_context_ops { req_notify_cq, post_recv }
        ibv_device_attr {
            fw_ver, max_mr_size, vendor_id, vendor_part_id, max_qp, max_cqe, max_mr, max_pd, max_mw,
            max_ah, max_pkeys, phys_port_cnt,
        }
        ibv_port_attr { state, max_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, port_cap_flags2 }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr_ex {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
            create_flags, max_tso_header, rwq_ind_tbl, source_qpn, send_ops_flags,
        }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, qkey, sq_psn, qp_access_flags, cap, ah_attr, alt_ah_attr,
            pkey_index, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit,
        }
        ibv_sge { addr, length, lkey }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type }
        ibv_qp_ex {
            qp_base, comp_mask, wr_id, wr_flags, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm,
            wr_send, wr_send_imm, wr_set_ud_addr, wr_set_inline_data, wr_set_sge, wr_start,
            wr_complete, wr_abort,
        }
        ibv_cq_init_attr_ex {
            cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain,
        }
        ibv_poll_cq_attr { comp_mask }
        ibv_comp_channel { context, fd }
        ibv_cq_ex {
            context, channel, cq_context, handle, cqe, comp_mask, status, wr_id, start_poll, next_poll,
            end_poll, read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num,
            read_src_qp, read_wc_flags, read_slid,
        }
    };
    assert!(pairs.len() > 130, "{} members", pairs.len());
    assert_eq!(differing(pairs), [""; 0]);
}

#[test]
fn sizes_agree_with_rdma_sys() {
    let pairs = sizes! {
        ibv_gid ibv_device_attr ibv_mr ibv_global_route ibv_ah_attr ibv_qp_cap ibv_qp_init_attr_ex
        ibv_qp_attr ibv_sge ibv_recv_wr ibv_qp ibv_cq_init_attr_ex ibv_poll_cq_attr
    };
    assert_eq!(differing(pairs), [""; 0]);
}

#[test]
fn constants_agree_with_rdma_sys() {
    let mut pairs: Vec<Pair> = constants! { ibv_access_flags.0:
        IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE IBV_ACCESS_REMOTE_READ
    };
    pairs.extend(constants! { ibv_qp_type: IBV_QPT_DRIVER });
    pairs.extend(constants! { ibv_qp_init_attr_mask.0:
        IBV_QP_INIT_ATTR_PD IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
    });
    pairs.extend(constants! { ibv_qp_create_send_ops_flags.0:
        IBV_QP_EX_WITH_RDMA_WRITE IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM IBV_QP_EX_WITH_SEND
        IBV_QP_EX_WITH_SEND_WITH_IMM IBV_QP_EX_WITH_RDMA_READ
    });
    pairs.extend(constants! { ibv_qp_attr_mask.0:
        IBV_QP_STATE IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_QKEY IBV_QP_RNR_RETRY IBV_QP_SQ_PSN
    });
    pairs.extend(constants! { ibv_qp_state: IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS });
    pairs.extend(constants! { ibv_wc_status: IBV_WC_SUCCESS });
    pairs.extend(constants! { ibv_wc_opcode: IBV_WC_RECV IBV_WC_RECV_RDMA_WITH_IMM });
    pairs.extend(constants! { ibv_wc_flags.0: IBV_WC_WITH_IMM });
    pairs.extend(constants! { ibv_create_cq_wc_flags.0:
        IBV_WC_EX_WITH_BYTE_LEN IBV_WC_EX_WITH_IMM IBV_WC_EX_WITH_SRC_QP IBV_WC_EX_WITH_SLID
    });
    assert_eq!(differing(pairs), [""; 0]);
}

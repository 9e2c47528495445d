//! The declarations in `abi` against the installed C headers: offsets, sizes and constants.
//!
//! Needs `cc` and the Debian package libibverbs-dev. Without them the test prints so and passes,
//! unless `EFA_INTEROP=1` says that they are installed.
//!
//! Structures that the library allocates are declared in part, so their sizes are not compared. What the
//! installed headers are too old to have is left out.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::mem::offset_of;
use std::path::Path;

use common::is_missing;
use efa_c_layout::assert_same;
use efa_verbs::abi::*;

const HEADERS: [&str; 2] = ["infiniband/verbs.h", "infiniband/efadv.h"];

/// A number of the C headers.
struct Number {
    /// The C expression.
    c: String,
    here: u64,
    /// Text that headers contain if they have it; `None` for what every supported release has.
    since: Option<&'static str>,
}

/// Offsets of members; `member = "other"` where the C name is another.
macro_rules! members {
    ($since:expr; $($name:ident { $($member:ident $(= $c:literal)?),* $(,)? })*) => {
        vec![$($({
            let member = [$($c,)? stringify!($member)][0];
            Number {
                c: format!("offsetof(struct {}, {member})", stringify!($name)),
                here: offset_of!($name, $member) as u64,
                since: $since,
            }
        }),*),*]
    };
}

macro_rules! sizes {
    ($($name:ident)*) => {
        vec![$(Number {
            c: format!("sizeof(struct {})", stringify!($name)),
            here: size_of::<$name>() as u64,
            since: None,
        }),*]
    };
}

macro_rules! constants {
    ($($name:ident)*) => {
        vec![$(Number { c: stringify!($name).into(), here: $name as u64, since: None }),*]
    };
}

fn ibverbs() -> Vec<Number> {
    let mut numbers = members! { None;
        ibv_context { device, ops }
        ibv_context_ops { req_notify_cq, post_recv }
        ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
            vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
            max_cq, max_cqe, max_mr, max_pd, max_mw, max_ah, max_pkeys, local_ca_ack_delay,
            phys_port_cnt,
        }
        ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, port_cap_flags2,
        }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr_ex {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
            create_flags, max_tso_header, rwq_ind_tbl, _rx_hash_conf = "rx_hash_conf", source_qpn,
            send_ops_flags,
        }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, port_num,
            timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit,
        }
        ibv_sge { addr, length, lkey }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type,
            _mutex = "mutex", _cond = "cond", _events_completed = "events_completed",
        }
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
            context, channel, cq_context, handle, cqe, _mutex = "mutex", _cond = "cond", comp_mask,
            status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_vendor_err,
            read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid,
        }
    };
    numbers.extend(sizes! {
        ibv_device_attr ibv_mr ibv_global_route ibv_ah_attr ibv_qp_cap ibv_qp_init_attr_ex ibv_qp_attr
        ibv_sge ibv_recv_wr ibv_qp ibv_cq_init_attr_ex ibv_poll_cq_attr
    });
    for (c, here) in [
        ("sizeof(union ibv_gid)", size_of::<ibv_gid>()),
        ("_Alignof(union ibv_gid)", align_of::<ibv_gid>()),
    ] {
        numbers.push(Number { c: c.into(), here: here as u64, since: None });
    }
    numbers.extend(constants! {
        IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE IBV_ACCESS_REMOTE_READ
        IBV_QPT_DRIVER IBV_QP_INIT_ATTR_PD IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        IBV_QP_EX_WITH_RDMA_WRITE IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM IBV_QP_EX_WITH_SEND
        IBV_QP_EX_WITH_SEND_WITH_IMM IBV_QP_EX_WITH_RDMA_READ
        IBV_QP_STATE IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_QKEY IBV_QP_RNR_RETRY IBV_QP_SQ_PSN
        IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS
        IBV_WC_SUCCESS IBV_WC_RECV IBV_WC_RECV_RDMA_WITH_IMM IBV_WC_WITH_IMM
        IBV_WC_EX_WITH_BYTE_LEN IBV_WC_EX_WITH_IMM IBV_WC_EX_WITH_SRC_QP IBV_WC_EX_WITH_SLID
    });
    numbers
}

fn efadv() -> Vec<Number> {
    let mut numbers = members! { None;
        efadv_device_attr {
            comp_mask, max_sq_wr, max_rq_wr, max_sq_sge, max_rq_sge, inline_buf_size, device_caps,
            max_rdma_size,
        }
        efadv_ah_attr { comp_mask, ahn, reserved }
        efadv_qp_init_attr { comp_mask, driver_qp_type }
        efadv_cq_init_attr { comp_mask, wc_flags }
        efadv_cq { comp_mask, wc_read_sgid }
    };
    numbers
        .extend(members! { Some("inline_buf_size_ex"); efadv_device_attr { inline_buf_size_ex } });
    numbers.extend(members! { Some("EFADV_QP_FLAGS_"); efadv_qp_init_attr { flags } });
    numbers.extend(members! { Some("uint8_t sl;"); efadv_qp_init_attr { sl } });
    numbers.extend(members! { Some("uint64_t wr_flags;"); efadv_qp_init_attr { wr_flags } });
    let external = "ext_mem_dmabuf";
    numbers.extend(members! { Some(external); efadv_cq_init_attr { flags, ext_mem_dmabuf } });
    numbers.extend(members! { Some("wc_is_unsolicited"); efadv_cq { wc_is_unsolicited } });
    numbers.extend(members! { Some("efadv_sq_depth_attr");
        efadv_sq_depth_attr { comp_mask, flags, max_send_sge, max_rdma_sge, max_inline_data }
    });
    numbers.extend(sizes! { efadv_device_attr efadv_ah_attr });
    for (c, here, since) in [
        ("efadv_qp_init_attr", size_of::<efadv_qp_init_attr>(), "uint64_t wr_flags;"),
        ("efadv_cq_init_attr", size_of::<efadv_cq_init_attr>(), external),
        ("efadv_cq", size_of::<efadv_cq>(), "wc_is_unsolicited"),
        ("efadv_sq_depth_attr", size_of::<efadv_sq_depth_attr>(), "efadv_sq_depth_attr"),
    ] {
        let c = format!("sizeof(struct {c})");
        numbers.push(Number { c, here: here as u64, since: Some(since) });
    }
    numbers.extend(constants! {
        EFADV_QP_DRIVER_TYPE_SRD EFADV_WC_EX_WITH_SGID EFADV_DEVICE_ATTR_CAPS_RDMA_READ
        EFADV_DEVICE_ATTR_CAPS_RNR_RETRY EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID
    });
    for (c, here) in [
        ("EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE", EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE.into()),
        (
            "EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV",
            EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV.into(),
        ),
        ("EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV", EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV.into()),
        ("EFADV_WC_EX_WITH_IS_UNSOLICITED", EFADV_WC_EX_WITH_IS_UNSOLICITED),
    ] {
        numbers.push(Number { c: c.into(), here, since: Some(c) });
    }
    numbers
}

#[test]
fn declarations_agree_with_the_installed_c_headers() {
    let mut headers = String::new();
    for header in HEADERS {
        let header = Path::new("/usr/include").join(header);
        let Ok(text) = std::fs::read_to_string(header) else { return is_missing("libibverbs-dev") };
        headers.push_str(&text);
    }
    let mut numbers = ibverbs();
    numbers.extend(efadv());
    numbers.retain(|number| number.since.is_none_or(|since| headers.contains(since)));
    assert!(numbers.len() >= 200, "only {} numbers are compared", numbers.len());
    let numbers: Vec<_> = numbers
        .into_iter()
        .map(|Number { c, here, .. }| efa_c_layout::Number { c, here })
        .collect();
    assert_same(&numbers, &HEADERS, "libibverbs-dev");
}

/// Every release takes structures of these lengths, and they cover the members that are set.
#[test]
fn first_lengths_are_those_of_the_first_releases() {
    assert_eq!((FIRST_QP_INIT_ATTR, FIRST_CQ_INIT_ATTR), (16, 16));
    assert!(offset_of!(efadv_qp_init_attr, flags) < FIRST_QP_INIT_ATTR as usize);
    assert!(offset_of!(efadv_cq_init_attr, wc_flags) < FIRST_CQ_INIT_ATTR as usize);
}

//! What `rdma/fabric.h` declares: answers of discovery, the common head of objects, fabrics.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{enums, fi_eq_attr, fi_wait_attr, fid_domain, fid_eq, fid_pep, fid_wait};
use super::{structs, tables};

pub type fi_addr_t = u64;
pub type fid_t = *mut fid;

/// The number of an API version, for example `FI_VERSION(1, 17)`.
#[allow(non_snake_case, reason = "as in C")]
pub const fn FI_VERSION(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// The major number of an API version.
#[allow(non_snake_case, reason = "as in C")]
pub const fn FI_MAJOR(version: u32) -> u32 {
    version >> 16
}

/// The minor number of an API version.
#[allow(non_snake_case, reason = "as in C")]
pub const fn FI_MINOR(version: u32) -> u32 {
    version & 0xffff
}

pub const FI_PATH_MAX: usize = 256;
pub const FI_NAME_MAX: usize = 64;
pub const FI_VERSION_MAX: usize = 64;

enums! {
    u32 {
        FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR_IB,
        FI_ADDR_PSMX, FI_ADDR_GNI, FI_ADDR_BGQ, FI_ADDR_MLX, FI_ADDR_STR, FI_ADDR_PSMX2,
        FI_ADDR_IB_UD, FI_ADDR_EFA, FI_ADDR_PSMX3, FI_ADDR_OPX, FI_ADDR_CXI,
    }
    fi_av_type { FI_AV_UNSPEC, FI_AV_MAP, FI_AV_TABLE }
    fi_progress { FI_PROGRESS_UNSPEC, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL }
    fi_threading {
        FI_THREAD_UNSPEC, FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION,
        FI_THREAD_ENDPOINT,
    }
    fi_resource_mgmt { FI_RM_UNSPEC, FI_RM_DISABLED, FI_RM_ENABLED }
    fi_ep_type {
        FI_EP_UNSPEC, FI_EP_MSG, FI_EP_DGRAM, FI_EP_RDM, FI_EP_SOCK_STREAM, FI_EP_SOCK_DGRAM,
    }
    u32 {
        FI_PROTO_UNSPEC, FI_PROTO_RDMA_CM_IB_RC, FI_PROTO_IWARP, FI_PROTO_IB_UD, FI_PROTO_PSMX,
        FI_PROTO_UDP, FI_PROTO_SOCK_TCP, FI_PROTO_MXM, FI_PROTO_IWARP_RDM, FI_PROTO_IB_RDM,
        FI_PROTO_GNI, FI_PROTO_RXM, FI_PROTO_RXD, FI_PROTO_MLX, FI_PROTO_NETWORKDIRECT,
        FI_PROTO_PSMX2, FI_PROTO_SHM, FI_PROTO_MRAIL, FI_PROTO_RSTREAM, FI_PROTO_RDMA_CM_IB_XRC,
        FI_PROTO_EFA, FI_PROTO_PSMX3, FI_PROTO_RXM_TCP, FI_PROTO_OPX, FI_PROTO_CXI,
        FI_PROTO_XNET,
    }
    u32 {
        FI_TC_UNSPEC, FI_TC_DSCP = 0x100, FI_TC_LABEL = 0x200, FI_TC_BEST_EFFORT = FI_TC_LABEL,
        FI_TC_LOW_LATENCY, FI_TC_DEDICATED_ACCESS, FI_TC_BULK_DATA, FI_TC_SCAVENGER,
        FI_TC_NETWORK_CTRL,
    }
    fi_bus_type { FI_BUS_UNSPEC, FI_BUS_PCI }
    fi_link_state { FI_LINK_UNKNOWN, FI_LINK_DOWN, FI_LINK_UP }
    usize {
        FI_CLASS_UNSPEC, FI_CLASS_FABRIC, FI_CLASS_DOMAIN, FI_CLASS_EP, FI_CLASS_SEP,
        FI_CLASS_RX_CTX, FI_CLASS_SRX_CTX, FI_CLASS_TX_CTX, FI_CLASS_STX_CTX, FI_CLASS_PEP,
        FI_CLASS_INTERFACE, FI_CLASS_AV, FI_CLASS_MR, FI_CLASS_EQ, FI_CLASS_CQ, FI_CLASS_CNTR,
        FI_CLASS_WAIT, FI_CLASS_POLL, FI_CLASS_CONNREQ, FI_CLASS_MC, FI_CLASS_NIC,
        FI_CLASS_AV_SET, FI_CLASS_MR_CACHE, FI_CLASS_MEM_MONITOR, FI_CLASS_PEER_CQ,
        FI_CLASS_PEER_SRX, FI_CLASS_LOG, FI_CLASS_PEER_AV, FI_CLASS_PEER_AV_SET,
    }
    // Commands of `control`.
    c_int {
        FI_GETFIDFLAG, FI_SETFIDFLAG, FI_GETOPSFLAG, FI_SETOPSFLAG, FI_ALIAS, FI_GETWAIT,
        FI_ENABLE, FI_BACKLOG, FI_GET_RAW_MR, FI_MAP_RAW_MR, FI_UNMAP_KEY, FI_QUEUE_WORK,
        FI_CANCEL_WORK, FI_FLUSH_WORK, FI_REFRESH, FI_DUP, FI_GETWAITOBJ, FI_GET_VAL, FI_SET_VAL,
        FI_EXPORT_FID,
    }
    fi_type {
        FI_TYPE_INFO, FI_TYPE_EP_TYPE, FI_TYPE_CAPS, FI_TYPE_OP_FLAGS, FI_TYPE_ADDR_FORMAT,
        FI_TYPE_TX_ATTR, FI_TYPE_RX_ATTR, FI_TYPE_EP_ATTR, FI_TYPE_DOMAIN_ATTR,
        FI_TYPE_FABRIC_ATTR, FI_TYPE_THREADING, FI_TYPE_PROGRESS, FI_TYPE_PROTOCOL,
        FI_TYPE_MSG_ORDER, FI_TYPE_MODE, FI_TYPE_AV_TYPE, FI_TYPE_ATOMIC_TYPE,
        FI_TYPE_ATOMIC_OP, FI_TYPE_VERSION, FI_TYPE_EQ_EVENT, FI_TYPE_CQ_EVENT_FLAGS,
        FI_TYPE_MR_MODE, FI_TYPE_OP_TYPE, FI_TYPE_FID, FI_TYPE_COLLECTIVE_OP,
        FI_TYPE_HMEM_IFACE, FI_TYPE_CQ_FORMAT, FI_TYPE_LOG_LEVEL, FI_TYPE_LOG_SUBSYS,
    }
    fi_param_type { FI_PARAM_STRING, FI_PARAM_INT, FI_PARAM_BOOL, FI_PARAM_SIZE_T }
}

pub const FI_BUS_UNKNOWN: fi_bus_type = FI_BUS_UNSPEC;

pub type fi_av_type = c_uint;
pub type fi_progress = c_uint;
pub type fi_threading = c_uint;
pub type fi_resource_mgmt = c_uint;
pub type fi_ep_type = c_uint;
pub type fi_bus_type = c_uint;
pub type fi_link_state = c_uint;
pub type fi_type = c_uint;
pub type fi_param_type = c_uint;

structs! {
    fi_ioc { addr: *mut c_void, count: usize }

    fi_tx_attr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        inject_size: usize,
        size: usize,
        iov_limit: usize,
        rma_iov_limit: usize,
        tclass: u32,
    }

    fi_rx_attr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        total_buffered_recv: usize,
        size: usize,
        iov_limit: usize,
    }

    fi_ep_attr {
        type_: fi_ep_type,
        protocol: u32,
        protocol_version: u32,
        max_msg_size: usize,
        msg_prefix_size: usize,
        max_order_raw_size: usize,
        max_order_war_size: usize,
        max_order_waw_size: usize,
        mem_tag_format: u64,
        tx_ctx_cnt: usize,
        rx_ctx_cnt: usize,
        auth_key_size: usize,
        auth_key: *mut u8,
    }

    fi_domain_attr {
        domain: *mut fid_domain,
        name: *mut c_char,
        threading: fi_threading,
        control_progress: fi_progress,
        data_progress: fi_progress,
        resource_mgmt: fi_resource_mgmt,
        av_type: fi_av_type,
        mr_mode: c_int,
        mr_key_size: usize,
        cq_data_size: usize,
        cq_cnt: usize,
        ep_cnt: usize,
        tx_ctx_cnt: usize,
        rx_ctx_cnt: usize,
        max_ep_tx_ctx: usize,
        max_ep_rx_ctx: usize,
        max_ep_stx_ctx: usize,
        max_ep_srx_ctx: usize,
        cntr_cnt: usize,
        mr_iov_limit: usize,
        caps: u64,
        mode: u64,
        auth_key: *mut u8,
        auth_key_size: usize,
        max_err_data: usize,
        mr_cnt: usize,
        tclass: u32,
    }

    fi_fabric_attr {
        fabric: *mut fid_fabric,
        name: *mut c_char,
        prov_name: *mut c_char,
        prov_version: u32,
        api_version: u32,
    }

    fi_info {
        next: *mut fi_info,
        caps: u64,
        mode: u64,
        addr_format: u32,
        src_addrlen: usize,
        dest_addrlen: usize,
        src_addr: *mut c_void,
        dest_addr: *mut c_void,
        handle: fid_t,
        tx_attr: *mut fi_tx_attr,
        rx_attr: *mut fi_rx_attr,
        ep_attr: *mut fi_ep_attr,
        domain_attr: *mut fi_domain_attr,
        fabric_attr: *mut fi_fabric_attr,
        nic: *mut fid_nic,
    }

    fi_device_attr {
        name: *mut c_char,
        device_id: *mut c_char,
        device_version: *mut c_char,
        vendor_id: *mut c_char,
        driver: *mut c_char,
        firmware: *mut c_char,
    }

    fi_pci_attr { domain_id: u16, bus_id: u8, device_id: u8, function_id: u8 }
    /// `attr` is a union of one member in C.
    fi_bus_attr { bus_type: fi_bus_type, attr: fi_pci_attr }
    fi_link_attr {
        address: *mut c_char,
        mtu: usize,
        speed: usize,
        state: fi_link_state,
        network_type: *mut c_char,
    }

    /// The head of every object.
    fid { fclass: usize, context: *mut c_void, ops: *const fi_ops }
    fid_fabric { fid: fid, ops: *const fi_ops_fabric, api_version: u32 }
    fid_nic {
        fid: fid,
        device_attr: *mut fi_device_attr,
        bus_attr: *mut fi_bus_attr,
        link_attr: *mut fi_link_attr,
        prov_attr: *mut c_void,
    }

    /// Arguments of `control`.
    fi_alias { fid: *mut *mut fid, flags: u64 }
    fi_fid_var { name: c_int, val: *mut c_void }
    fi_mr_raw_attr { flags: u64, base_addr: *mut u64, raw_key: *mut u8, key_size: *mut usize }
    fi_mr_map_raw {
        flags: u64, base_addr: u64, raw_key: *mut u8, key_size: usize, key: *mut u64,
    }

    fi_param {
        name: *const c_char,
        type_: fi_param_type,
        help_string: *const c_char,
        value: *const c_char,
    }

    fi_context { internal: [*mut c_void; 4] }
    fi_context2 { internal: [*mut c_void; 8] }
    fi_recv_context { ep: *mut super::fid_ep, context: *mut c_void }
}

tables! {
    fi_ops {
        close(fid: *mut fid) -> c_int;
        bind(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int;
        control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int;
        ops_open(
            fid: *mut fid, name: *const c_char, flags: u64, ops: *mut *mut c_void,
            context: *mut c_void,
        ) -> c_int;
        tostr(fid: *const fid, buf: *mut c_char, len: usize) -> c_int;
        ops_set(
            fid: *mut fid, name: *const c_char, flags: u64, ops: *mut c_void,
            context: *mut c_void,
        ) -> c_int;
    }

    fi_ops_fabric {
        domain(
            fabric: *mut fid_fabric, info: *mut fi_info, dom: *mut *mut fid_domain,
            context: *mut c_void,
        ) -> c_int;
        passive_ep(
            fabric: *mut fid_fabric, info: *mut fi_info, pep: *mut *mut fid_pep,
            context: *mut c_void,
        ) -> c_int;
        eq_open(
            fabric: *mut fid_fabric, attr: *mut fi_eq_attr, eq: *mut *mut fid_eq,
            context: *mut c_void,
        ) -> c_int;
        wait_open(
            fabric: *mut fid_fabric, attr: *mut fi_wait_attr, waitset: *mut *mut fid_wait,
        ) -> c_int;
        trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int;
        domain2(
            fabric: *mut fid_fabric, info: *mut fi_info, dom: *mut *mut fid_domain, flags: u64,
            context: *mut c_void,
        ) -> c_int;
    }
}

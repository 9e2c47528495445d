//! What libfabric 1.18 to 2.6 appended to structures and tables, and bits that changed their meaning.
//!
//! The provider uses the 1.17 forms throughout:
//!
//! * It writes no appended member. What the `fi_dupinfo` of the loaded libfabric allocates has that release's
//!   tails, zeroed; `src_addr` of an error entry is set by `fi_cq_readerr` of libfabric's header.
//! * It offers none of the capabilities whose bits, 45, 46 and 48, got another name in 2.0.
//! * Tables have the `size` of their 1.17 form, whatever library and program they meet: where libfabric appended a
//!   function, it calls it only if the table's `size` reaches beyond its place, and else answers `-FI_ENOSYS`.
//!   Of the tables here only [`fi_ops_av`](super::fi_ops_av) has grown, by three functions in 1.20.
//!
//! So most of this file is for `tests/layout.rs`, which shows that nothing was inserted before the appended members.
//! What programs older than 1.17 don't know is decided where it is used, by the API version that they asked for.

use std::ffi::{c_int, c_void};

use super::{FI_CNTR_EVENTS_COMP, FI_MSWAP, FI_OPT_EFA_RNR_RETRY};
use super::{FI_OPT_XPU_TRIGGER, FI_PROGRESS_MANUAL, FI_UINT128, fi_cntr_events, fi_datatype};
use super::{enums, fi_addr_t, fi_op, fi_progress, structs};
use super::{fi_cq_err_entry, fi_domain_attr, fi_mr_attr, fid_mr};

structs! {
    /// `fi_cq_err_entry` since 1.20. The program's `fi_cq_readerr` has set `src_addr` to `FI_ADDR_NOTAVAIL`.
    fi_cq_err_entry_1_20 { entry: fi_cq_err_entry, src_addr: fi_addr_t }

    /// `fi_mr_attr` of 2.0. `hmem_data` came with 1.19, `page_size` with 1.22.
    fi_mr_attr_2_0 {
        attr: fi_mr_attr,
        hmem_data: *mut c_void,
        page_size: usize,
        base_mr: *const fid_mr,
        sub_mr_cnt: usize,
    }
    /// What the first member of `fi_mr_attr` points to if the flag [`FI_MR_DMABUF`] is set.
    fi_mr_dmabuf { fd: c_int, offset: u64, len: usize, base_addr: *mut c_void }

    /// `fi_domain_attr` of 2.5. `max_ep_auth_key` came with 1.20, `max_group_id` with 2.0.
    fi_domain_attr_2_5 {
        attr: fi_domain_attr,
        max_ep_auth_key: usize,
        max_group_id: u32,
        max_cntr_value: u64,
        max_err_cntr_value: u64,
    }
}

/// Bits of `fi_getinfo`'s flags since 2.2.
pub const FI_RESCAN: u64 = 1 << 35;
pub const FI_FIREWALL_ADDR: u64 = 1 << 42;

/// Capabilities since 2.0; the bits were `FI_HMEM_HOST_ALLOC`, `FI_HMEM_DEVICE_ONLY` and `FI_VARIABLE_MSG`.
pub const FI_TAGGED_DIRECTED_RECV: u64 = 1 << 45;
pub const FI_TAGGED_MULTI_RECV: u64 = 1 << 46;
pub const FI_EXACT_DIRECTED_RECV: u64 = 1 << 48;

/// Flags of registrations.
pub const FI_MR_DMABUF: u64 = 1 << 40;
pub const FI_MR_SINGLE_USE: u64 = 1 << 41;

/// Flag of address vectors, since 1.20.
pub const FI_AUTH_KEY: u64 = 1 << 57;
pub const FI_AV_AUTH_KEY: usize = usize::MAX;

pub const FI_PROGRESS_CONTROL_UNIFIED: fi_progress = FI_PROGRESS_MANUAL + 1;
pub const FI_CNTR_EVENTS_BYTES: fi_cntr_events = FI_CNTR_EVENTS_COMP + 1;
pub const FI_DIFF: fi_op = FI_MSWAP + 1;
/// A command of `control`, since 2.2: the descriptor of an interface.
pub const FI_GET_FD: c_int = super::FI_EXPORT_FID + 1;
pub const FI_ADDR_UCX: u32 = super::FI_ADDR_CXI + 1;
/// Either `FI_SOCKADDR_IN` or `FI_SOCKADDR_IN6`, since 2.3.
pub const FI_SOCKADDR_IP: u32 = FI_ADDR_UCX + 1;
pub const FI_EPROTO: c_int = libc::EPROTO;
pub const FI_ENOMR: c_int = 270;
pub const FI_EFIREWALLADDR: c_int = 271;

enums! {
    // Formats of tags, in `mem_tag_format`, since 2.0.
    u64 { FI_TAG_BITS, FI_TAG_MPI, FI_TAG_CCL, FI_TAG_MAX_FORMAT = 1 << 16 }
    fi_datatype {
        FI_FLOAT16 = FI_UINT128 + 1, FI_BFLOAT16, FI_FLOAT8_E4M3, FI_FLOAT8_E5M2,
    }
    // Names of options.
    c_int {
        FI_OPT_CUDA_API_PERMITTED = FI_OPT_XPU_TRIGGER + 1, FI_OPT_SHARED_MEMORY_PERMITTED,
        FI_OPT_MAX_MSG_SIZE, FI_OPT_MAX_TAGGED_SIZE, FI_OPT_MAX_RMA_SIZE, FI_OPT_MAX_ATOMIC_SIZE,
        FI_OPT_INJECT_MSG_SIZE, FI_OPT_INJECT_TAGGED_SIZE, FI_OPT_INJECT_RMA_SIZE,
        FI_OPT_INJECT_ATOMIC_SIZE, FI_OPT_FIREWALL_ADDR,
    }
    // Names of options of EFA; each is a `bool`.
    c_int {
        FI_OPT_EFA_EMULATED_READ = FI_OPT_EFA_RNR_RETRY + 1, FI_OPT_EFA_EMULATED_WRITE,
        FI_OPT_EFA_EMULATED_ATOMICS, FI_OPT_EFA_USE_DEVICE_RDMA,
        FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES,
        FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES, FI_OPT_EFA_HOMOGENEOUS_PEERS,
        FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV,
    }
}

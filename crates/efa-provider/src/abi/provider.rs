//! What `rdma/providers/fi_prov.h` and `fi_log.h` declare: the provider's record, log levels and subsystems.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{enums, fi_context, fi_fabric_attr, fi_info, fid_fabric, structs};

pub type fi_log_subsys = c_uint;
pub type fi_log_level = c_uint;

enums! {
    fi_log_subsys {
        FI_LOG_CORE, FI_LOG_FABRIC, FI_LOG_DOMAIN, FI_LOG_EP_CTRL, FI_LOG_EP_DATA, FI_LOG_AV,
        FI_LOG_CQ, FI_LOG_EQ, FI_LOG_MR, FI_LOG_CNTR, FI_LOG_SUBSYS_MAX,
    }
    fi_log_level { FI_LOG_WARN, FI_LOG_TRACE, FI_LOG_INFO, FI_LOG_DEBUG, FI_LOG_MAX }
}

structs! {
    /// What `fi_prov_ini` returns. It has no table of functions, and no member for its size; later
    /// releases have it as it is here.
    fi_provider {
        version: u32,
        fi_version: u32,
        context: fi_context,
        name: *const c_char,
        getinfo: Option<
            unsafe extern "C" fn(
                version: u32,
                node: *const c_char,
                service: *const c_char,
                flags: u64,
                hints: *const fi_info,
                info: *mut *mut fi_info,
            ) -> c_int,
        >,
        fabric: Option<
            unsafe extern "C" fn(
                attr: *mut fi_fabric_attr,
                fabric: *mut *mut fid_fabric,
                context: *mut c_void,
            ) -> c_int,
        >,
        cleanup: Option<unsafe extern "C" fn()>,
    }
}

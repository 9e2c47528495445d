//! What the provider needs of `rdma/fi_ext.h`: options of EFA, exported objects.

use std::ffi::{c_int, c_void};

use super::{fid, structs};

pub const FI_PROV_SPECIFIC_EFA: c_int = 0xefa << 16;
/// `size_t`: how often the device tries again when the receiver has posted no buffer.
pub const FI_OPT_EFA_RNR_RETRY: c_int = -FI_PROV_SPECIFIC_EFA;

structs! {
    /// The argument of the command [`FI_EXPORT_FID`](super::FI_EXPORT_FID).
    fi_fid_export { fid: *mut *mut fid, flags: u64, context: *mut c_void }
}

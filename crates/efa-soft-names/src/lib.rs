//! The C functions of the software EFA device, with the symbol versions that they have in rdma-core.
//!
//! `efa-softverbs` exports a table of pointers to them. [`libraries`] writes `libibverbs.so.1` and `libefa.so.1`,
//! whose functions jump through that table. Both follow the order of [`functions!`]. Libraries are written rather
//! than linked, as rustc gives the linker a version script of its own, which allows no versions.
//!
//! ```
//! use efa_soft_names::{EFA, IBVERBS};
//!
//! let node = IBVERBS.iter().find(|node| node.functions.contains(&"ibv_reg_mr")).unwrap();
//! assert_eq!(node.version, "IBVERBS_1.1");
//! assert_eq!(EFA.last().unwrap().version, "EFA_1.7");
//! ```

#![forbid(unsafe_code)]

mod cache;
pub mod counters;
mod elf;
pub mod libraries;

/// What [`is_host_name`] accepts.
pub const HOST_NAME: &str = "1 to 60 letters, digits, '.', '_', '-', and no '.' at the start";
/// Longest name in bytes; the number of the device is appended to it.
const MAX_HOST_NAME: usize = 60;

/// Whether the host of a software device on the shm link (`EFA_SOFT_NAME`) can have this name.
#[must_use]
pub fn is_host_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=MAX_HOST_NAME).contains(&name.len()) && name.chars().all(allowed) && !name.starts_with('.')
}

/// Functions that came with one version of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The version, as `IBVERBS_1.1`.
    pub version: &'static str,
    /// Names of the functions whose default version it is.
    pub functions: &'static [&'static str],
}

/// Calls a macro with the functions: `ibverbs { VERSION: NAMES; … } efa { VERSION: NAMES; … }`.
///
/// The table that `efa-softverbs` exports as `efa_soft_functions_1` has this order. Whoever changes the order, or
/// adds functions anywhere but at the end of libefa's, gives the table another number there and in
/// [`TABLE`]: a library must not jump through the table of another release.
#[macro_export]
macro_rules! functions {
    ($callback:path) => {
        $callback! {
            ibverbs {
                "IBVERBS_1.0": ibv_create_comp_channel ibv_destroy_comp_channel;
                "IBVERBS_1.1":
                    ibv_ack_async_event ibv_ack_cq_events ibv_alloc_pd ibv_attach_mcast
                    ibv_close_device ibv_create_ah ibv_create_ah_from_wc ibv_create_cq
                    ibv_create_qp ibv_create_srq ibv_dealloc_pd ibv_dereg_mr ibv_destroy_ah
                    ibv_destroy_cq ibv_destroy_qp ibv_destroy_srq ibv_detach_mcast ibv_fork_init
                    ibv_free_device_list ibv_get_async_event ibv_get_cq_event ibv_get_device_guid
                    ibv_get_device_list ibv_get_device_name ibv_init_ah_from_wc ibv_modify_qp
                    ibv_modify_srq ibv_open_device ibv_query_device ibv_query_gid ibv_query_pkey
                    ibv_query_port ibv_query_qp ibv_query_srq ibv_reg_mr ibv_rereg_mr
                    ibv_resize_cq ibv_resolve_eth_l2_from_gid;
                "IBVERBS_1.5": ibv_get_pkey_index;
                "IBVERBS_1.6": ibv_qp_to_qp_ex;
                "IBVERBS_1.7": ibv_reg_mr_iova;
                "IBVERBS_1.8": ibv_reg_mr_iova2;
                "IBVERBS_1.9": ibv_get_device_index;
                "IBVERBS_1.10":
                    ibv_import_device ibv_import_mr ibv_import_pd ibv_query_ece ibv_set_ece
                    ibv_unimport_mr ibv_unimport_pd;
                "IBVERBS_1.11": _ibv_query_gid_ex _ibv_query_gid_table;
                "IBVERBS_1.12": ibv_reg_dmabuf_mr;
                "IBVERBS_1.13": ibv_import_dm ibv_is_fork_initialized ibv_unimport_dm;
                "IBVERBS_1.14": ibv_query_qp_data_in_order;
                "IBVERBS_1.15": ibv_alloc_dmah ibv_dealloc_dmah ibv_reg_mr_ex;
                "IBVERBS_1.16": ibv_dm_export_dmabuf_fd ibv_query_port_speed;
                "IBVERBS_1.17": ibv_alloc_buf ibv_free_buf ibv_reg_buf_mr;
                "IBVERBS_1.18":
                    _ibv_query_comp_cntr_caps ibv_create_comp_cntr ibv_destroy_comp_cntr
                    ibv_export_buf_dmabuf_fd ibv_inc_comp_cntr ibv_inc_err_comp_cntr
                    ibv_qp_attach_comp_cntr ibv_read_comp_cntr ibv_read_err_comp_cntr
                    ibv_set_comp_cntr ibv_set_err_comp_cntr;
            }
            efa {
                "EFA_1.0": efadv_create_driver_qp;
                "EFA_1.1": efadv_create_qp_ex efadv_query_ah efadv_query_device;
                "EFA_1.2": efadv_cq_from_ibv_cq_ex efadv_create_cq;
                "EFA_1.3": efadv_query_mr;
                "EFA_1.4": efadv_query_cq efadv_query_qp_wqs;
                "EFA_1.5": efadv_get_max_rq_depth efadv_get_max_sq_depth;
                "EFA_1.6": efadv_qp_from_ibv_qp_ex;
                "EFA_1.7": efadv_create_comp_cntr;
            }
        }
    };
}

macro_rules! nodes {
    (ibverbs { $($ibverbs:tt)* } efa { $($efa:tt)* }) => {
        /// The functions of libibverbs that the device has.
        pub const IBVERBS: &[Node] = nodes!(@ $($ibverbs)*);
        /// The functions of libefa: all that rdma-core 65 has.
        pub const EFA: &[Node] = nodes!(@ $($efa)*);
    };
    (@ $($version:literal: $($name:ident)*;)*) => {
        &[$(Node { version: $version, functions: &[$(stringify!($name)),*] }),*]
    };
}

functions!(nodes);

/// Versions of what libibverbs offers to its drivers and to librdmacm. Releases that changed it have a number of
/// their own. The device has none of these functions.
pub const IBVERBS_PRIVATE: &[&str] = &[
    "IBVERBS_PRIVATE_13",
    "IBVERBS_PRIVATE_14",
    "IBVERBS_PRIVATE_15",
    "IBVERBS_PRIVATE_16",
    "IBVERBS_PRIVATE_17",
    "IBVERBS_PRIVATE_22",
    "IBVERBS_PRIVATE_25",
    "IBVERBS_PRIVATE_33",
    "IBVERBS_PRIVATE_34",
    "IBVERBS_PRIVATE_57",
    "IBVERBS_PRIVATE_59",
    "IBVERBS_PRIVATE_64",
    "IBVERBS_PRIVATE_65",
];

/// Name of the table of pointers that the device library exports.
pub const TABLE: &str = "efa_soft_functions_1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_function_has_two_places_in_the_table() {
        let names = || IBVERBS.iter().chain(EFA).flat_map(|node| node.functions);
        for (place, name) in names().enumerate() {
            assert_eq!(names().position(|other| other == name), Some(place), "{name}");
        }
    }
}

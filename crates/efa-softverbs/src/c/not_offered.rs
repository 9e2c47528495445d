//! Functions of libibverbs and libefa that this device doesn't offer; they fail with `EOPNOTSUPP`.
//!
//! `ibv_resize_cq` is one of them, as with libefa on every interface.
//!
//! They are exported because the real ones would take our objects for theirs and crash. None declares
//! its parameters, as none reads them; the C calling convention allows that.

use std::ffi::{c_int, c_void};

use crate::boundary::{Outcome, UNSUPPORTED, code, number, pointer};

/// Defines functions that fail as those with their return type do.
macro_rules! not_offered {
    ($kind:ident -> $type:ty: $($name:ident)*) => {
        $(
            /// Not offered: fails with `EOPNOTSUPP`.
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> $type {
                $kind(refuse)
            }
        )*
    };
}

fn refuse<T>() -> Outcome<T> {
    Err(UNSUPPORTED)
}

not_offered! { code -> c_int:
    ibv_attach_mcast ibv_detach_mcast
    ibv_modify_srq ibv_query_srq ibv_destroy_srq
    ibv_resize_cq
    ibv_query_ece ibv_set_ece
    ibv_resolve_eth_l2_from_gid
    ibv_dealloc_dmah
}

not_offered! { number -> c_int:
    ibv_init_ah_from_wc ibv_rereg_mr
    ibv_dm_export_dmabuf_fd ibv_export_buf_dmabuf_fd
}

not_offered! { pointer -> *mut c_void:
    ibv_create_srq ibv_create_ah_from_wc
    ibv_import_device ibv_import_pd ibv_import_mr ibv_import_dm
    ibv_alloc_dmah ibv_reg_mr_ex ibv_alloc_buf ibv_reg_buf_mr
}

/// Defines functions without a result.
macro_rules! nothing {
    ($($name:ident)*) => {
        $(
            /// Does nothing: no function returns an object of this type.
            #[unsafe(no_mangle)]
            extern "C" fn $name() {}
        )*
    };
}

nothing! { ibv_free_buf ibv_ack_async_event ibv_unimport_pd ibv_unimport_mr ibv_unimport_dm }
